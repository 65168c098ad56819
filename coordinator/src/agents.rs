//! Questions to connected agents: who can be asked, and how many questions are open at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_common::ids::NodeId;
use gangline_common::request::{RequestError, ask};
use gangline_common::transport::{Connection, REQUESTS};
use gangline_common::wire::request::AgentRequest;
use tokio::sync::Semaphore;

/// Questions to all agents together: each may hold a whole answer in memory.
const OPEN: usize = 32;
/// Scrapes of all agents together, apart from those: agents that do not answer hold them for as long
/// as Prometheus waits.
const SCRAPES: usize = 128;
/// Scrapes of one agent; further questions to it always find a free stream.
const SCRAPES_PER_AGENT: usize = REQUESTS as usize / 2;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("its agent is not connected")]
    NotConnected,
    #[error("too many questions are open")]
    Busy,
    #[error("no answer in time")]
    Late,
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The agents that can be asked; cheap to clone.
#[derive(Clone)]
pub struct Agents {
    connected: Arc<Mutex<HashMap<NodeId, Connected>>>,
    /// How often the agent of a node has come back, one entry for each that ever came.
    returns: Arc<Mutex<HashMap<NodeId, u64>>>,
    open: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
}

#[derive(Clone)]
struct Connected {
    session: u64,
    connection: Connection,
    slots: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
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
        Agents {
            connected: Arc::default(),
            returns: Arc::default(),
            open: Arc::new(Semaphore::new(OPEN)),
            scrapes: Arc::new(Semaphore::new(SCRAPES)),
        }
    }
}

impl Agents {
    /// Lets the agent of a session be asked.
    pub fn enter(&self, node: NodeId, session: u64, connection: &Connection) -> Entered {
        let connection = connection.clone();
        let slots = Arc::new(Semaphore::new(REQUESTS as usize));
        let scrapes = Arc::new(Semaphore::new(SCRAPES_PER_AGENT));
        let entry = Connected { session, connection, slots, scrapes };
        self.lock().insert(node.clone(), entry);
        self.returns().entry(node.clone()).and_modify(|count| *count += 1).or_default();
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

    /// Asks the agent of a node for metrics. A question waits for its turn, and everything together
    /// takes at most `within`; an agent that does not answer holds up no other one's questions.
    pub async fn scrape(
        &self,
        node: &NodeId,
        request: &AgentRequest,
        within: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let agent = self.lock().get(node).cloned().ok_or(AskError::NotConnected)?;
        let asking = async {
            // First its own turn: who waits for a slow agent keeps nobody from another one. None of
            // these is ever closed.
            let closed = |_| AskError::Busy;
            let _turn = agent.scrapes.acquire().await.map_err(closed)?;
            let _slot = agent.slots.acquire().await.map_err(closed)?;
            let _open = self.scrapes.acquire().await.map_err(closed)?;
            Ok(ask(&agent.connection, request).await?)
        };
        tokio::time::timeout(within, asking).await.map_err(|_| AskError::Late)?
    }

    /// How long a packet takes to each connected agent and back.
    pub fn round_trips(&self) -> HashMap<NodeId, Duration> {
        let connected = self.lock();
        let round_trip = |entry: &Connected| entry.connection.round_trip();
        connected.iter().map(|(node, entry)| (node.clone(), round_trip(entry))).collect()
    }

    /// How often the agent of each node has connected again since this process began.
    pub fn reconnects(&self) -> HashMap<NodeId, u64> {
        self.returns().clone()
    }

    fn returns(&self) -> MutexGuard<'_, HashMap<NodeId, u64>> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The map is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Connected>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
