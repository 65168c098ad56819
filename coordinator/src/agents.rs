//! Questions to connected agents: who can be asked, and how many questions are open at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::ids::NodeId;
use gangline_common::request::{RequestError, ask};
use gangline_common::transport::{Connection, REQUESTS};
use gangline_common::wire::request::AgentRequest;
use tokio::sync::Semaphore;

/// Questions to all agents together: each may hold a whole answer in memory.
const OPEN: usize = 32;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("its agent is not connected")]
    NotConnected,
    #[error("too many questions are open")]
    Busy,
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The agents that can be asked; cheap to clone.
#[derive(Clone)]
pub struct Agents {
    connected: Arc<Mutex<HashMap<NodeId, Connected>>>,
    open: Arc<Semaphore>,
}

#[derive(Clone)]
struct Connected {
    session: u64,
    connection: Connection,
    slots: Arc<Semaphore>,
}

/// A session's place among the agents that can be asked; given up on drop.
pub struct Entered {
    agents: Agents,
    node: NodeId,
    session: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut connected = self.agents.lock();
        // A newer session of the same node has taken the place.
        if connected.get(&self.node).is_some_and(|entry| entry.session == self.session) {
            connected.remove(&self.node);
        }
    }
}

impl Default for Agents {
    fn default() -> Self {
        Agents { connected: Arc::default(), open: Arc::new(Semaphore::new(OPEN)) }
    }
}

impl Agents {
    /// Lets the agent of a session be asked.
    pub fn enter(&self, node: NodeId, session: u64, connection: &Connection) -> Entered {
        let connection = connection.clone();
        let slots = Arc::new(Semaphore::new(REQUESTS as usize));
        let entry = Connected { session, connection, slots };
        self.lock().insert(node.clone(), entry);
        Entered { agents: self.clone(), node, session }
    }

    /// Asks the agent of a node. Nobody waits in a queue: one question too many is refused.
    pub async fn ask(&self, node: &NodeId, request: &AgentRequest) -> Result<Vec<u8>, AskError> {
        let agent = self.lock().get(node).cloned().ok_or(AskError::NotConnected)?;
        let (Ok(_open), Ok(_slot)) = (self.open.try_acquire(), agent.slots.try_acquire()) else {
            return Err(AskError::Busy);
        };
        Ok(ask(&agent.connection, request).await?)
    }

    // The map is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Connected>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
