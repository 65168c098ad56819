//! The link: keeps one session with the coordinator, for as long as the agent lives.
//!
//! It dials out, and again whenever a session ends, with growing waits and full jitter. What it
//! says it takes from watched values, so a session that begins anew says the newest state and
//! nothing that was lost needs to be remembered.

mod beats;
pub mod contact;
mod requests;
mod session;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gangline_common::backoff::Backoff;
use gangline_common::tls;
use gangline_common::transport::{Connection, TransportError, close};
use gangline_common::wire::WireError;
use gangline_common::wire::tlv::{REFUSE_REVOKED, REFUSE_VERSION, Refuse};
use gangline_common::wire::v1::{HealthCleared, NodeHealth, NodeInventory};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::contact::{Contact, ContactAt};
use crate::collectors::ClockOffset;
use crate::driver::{Input, Outlook};
use crate::join::{IdentityError, RETRY_CEILING, RETRY_FLOOR, StoredIdentity, dial, jitter};
use crate::metrics::NodePage;
use crate::supervisor::{Nursery, RayClusters, Scenes};
use crate::tail::member::Tails;
use crate::tail::{Acks, TailPlan};
use crate::telemetry::{LastSent, Newest};

/// Without an answer to a heartbeat for this long the session is given up.
pub const SILENCE: Duration = Duration::from_secs(10);
/// A coordinator of another version may be upgraded; it is asked this often.
const VERSION_RETRY: Duration = Duration::from_secs(30);
/// A session that lived this long was a good one: the next wait is a short one again.
const GOOD_SESSION: Duration = Duration::from_secs(5);

/// What others see of the link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkStatus {
    pub connected: bool,
    pub coordinator: String,
    pub node: Option<String>,
    pub problem: Option<String>,
}

/// What the link says and whom it tells.
pub struct Channels {
    pub driver: mpsc::Sender<Input>,
    pub outlook: watch::Receiver<Outlook>,
    pub inventory: watch::Receiver<Arc<NodeInventory>>,
    pub samples: Newest,
    /// What is wrong with this node; `None` before it was first looked at.
    pub health: watch::Receiver<Option<Arc<NodeHealth>>>,
    /// The newest word of the coordinator on conditions that an operator has ended.
    pub cleared: watch::Sender<HealthCleared>,
    pub tail: watch::Receiver<TailPlan>,
    /// What is followed beside the logs in the plan.
    pub tails: Tails,
    /// What the coordinator may ask about.
    pub ray: RayClusters,
    pub page: NodePage,
    pub scenes: Scenes,
    /// Where helpers come from that look into file systems.
    pub nursery: Arc<Nursery>,
    pub status: watch::Sender<LinkStatus>,
    /// When there was contact.
    pub contact: watch::Sender<Option<ContactAt>>,
    /// How this node's clock stands to the coordinator's; `None` without a session.
    pub clock: watch::Sender<Option<ClockOffset>>,
    /// What was sent of the samples.
    pub last_sent: Arc<LastSent>,
    /// The connection of the present session.
    pub connection: watch::Sender<Option<Connection>>,
    /// Cancelled when the agent ends: the link then says goodbye.
    pub ending: CancellationToken,
}

/// The link ended for good.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(
        "the coordinator has revoked this identity ({0}). What runs here goes on. To use the node \
         again, move its identity directory away and join with a new token"
    )]
    Revoked(String),
    #[error("the driver has ended")]
    DriverGone,
    #[error("the agent ends")]
    AgentEnds,
}

/// A session ended.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("protocol: {0}")]
    Wire(#[from] WireError),
    #[error("protocol: {0}")]
    Protocol(String),
    #[error("refused: {}", .0.text)]
    Refused(Refuse),
    #[error("the coordinator closed the session: {text}")]
    Closed { code: u32, text: String },
    #[error("no heartbeat was answered for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("new certificate: {0}")]
    Identity(#[from] IdentityError),
    #[error("the driver has ended")]
    DriverGone,
    #[error("the agent ends")]
    AgentEnds,
}

impl SessionError {
    fn is_revocation(&self) -> bool {
        match self {
            SessionError::Refused(refuse) => refuse.code == REFUSE_REVOKED,
            SessionError::Closed { code, .. } => *code == close::REVOKED,
            _ => false,
        }
    }

    /// What the coordinator is told when this side ends the session.
    fn close_code(&self) -> u32 {
        match self {
            SessionError::Wire(_) | SessionError::Protocol(_) => close::PROTOCOL,
            SessionError::DriverGone | SessionError::AgentEnds => close::SHUTDOWN,
            _ => close::DONE,
        }
    }
}

/// The link of one agent.
pub struct Link {
    identity: StoredIdentity,
    state_dir: PathBuf,
    /// Random, new at each start: tells a restart from a clone.
    instance: String,
    silence: Duration,
    channels: Channels,
    acks: Acks,
    contact: Contact,
}

impl Link {
    /// `silence` is how long heartbeats may stay unanswered: `SILENCE` but in tests.
    pub fn new(
        identity: StoredIdentity,
        state_dir: PathBuf,
        instance: String,
        silence: Duration,
        channels: Channels,
    ) -> Self {
        let acks = Acks::new(channels.tail.clone());
        let contact = Contact::new(channels.contact.clone());
        Link { identity, state_dir, instance, silence, channels, acks, contact }
    }

    /// Keeps a session until that is no longer possible.
    pub async fn run(mut self) -> LinkError {
        let mut backoff = Backoff::new(RETRY_FLOOR, RETRY_CEILING);
        self.show(false, None);
        loop {
            let began = Instant::now();
            let error = match self.one_session().await {
                Ok(renewed) => {
                    tracing::info!(node = %renewed.node, "certificate renewed; connecting with it");
                    self.identity = renewed;
                    continue;
                }
                Err(error) => error,
            };
            if error.is_revocation() {
                return LinkError::Revoked(error.to_string());
            }
            match error {
                SessionError::DriverGone => return LinkError::DriverGone,
                SessionError::AgentEnds => return LinkError::AgentEnds,
                _ => {}
            }
            self.show(false, Some(self.problem(&error)));
            if began.elapsed() >= GOOD_SESSION {
                backoff.reset();
            }
            let wait = self.wait_after(&error, &mut backoff);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.channels.ending.cancelled() => return LinkError::AgentEnds,
            }
        }
    }

    fn wait_after(&self, error: &SessionError, backoff: &mut Backoff) -> Duration {
        let coordinator = self.identity.coordinator.to_string();
        if let SessionError::Refused(refuse) = error
            && refuse.code == REFUSE_VERSION
        {
            let why = &refuse.text;
            tracing::error!(coordinator, why, retry_in = ?VERSION_RETRY, "versions do not fit");
            return VERSION_RETRY;
        }
        let wait = backoff.next_wait(jitter());
        match self.is_expired() {
            true => tracing::error!(coordinator, problem = self.problem(error), "no session"),
            false => tracing::warn!(coordinator, %error, retry_in = ?wait, "no session"),
        }
        wait
    }

    fn is_expired(&self) -> bool {
        gangline_common::time::Timestamp::now().wall_ms > self.identity.expires_wall_ms
    }

    /// What an operator needs to know. The coordinator does not say why it refuses a handshake.
    fn problem(&self, error: &SessionError) -> String {
        match self.is_expired() {
            true => format!(
                "the certificate of this node has expired: move the identity directory below {} \
                 away and join with a new token ({error})",
                self.state_dir.display()
            ),
            false => error.to_string(),
        }
    }

    /// Dials and serves one session. `Ok` is a new identity to go on with at once.
    async fn one_session(&self) -> Result<StoredIdentity, SessionError> {
        let tls = tls::agent_config(&self.identity.identity, &self.identity.ca)
            .map_err(IdentityError::from)?;
        let ending = &self.channels.ending;
        let (endpoint, connection) = tokio::select! {
            dialled = dial(&self.identity.coordinator, tls) => dialled?,
            () = ending.cancelled() => return Err(SessionError::AgentEnds),
        };
        let result = tokio::select! {
            result = self.serve(&connection) => result,
            () = ending.cancelled() => Err(SessionError::AgentEnds),
        };
        self.channels.connection.send_replace(None);
        self.channels.clock.send_replace(None);
        let result = match result {
            Err(SessionError::Transport(error)) => Err(session::reason(&connection, error).await),
            other => other,
        };
        let code = result.as_ref().err().map_or(close::DONE, SessionError::close_code);
        let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        endpoint.close(code, &text).await;
        result
    }

    fn show(&self, connected: bool, problem: Option<String>) {
        self.channels.status.send_replace(LinkStatus {
            connected,
            coordinator: self.identity.coordinator.to_string(),
            node: Some(self.identity.node.to_string()),
            problem,
        });
    }
}

#[cfg(test)]
mod test_coordinator;
#[cfg(test)]
mod tests;
