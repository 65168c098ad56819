//! Sessions and what they carry. Within one session and direction words come in order; words of an
//! older session may come after those of a newer one, twice, or never.

use std::collections::VecDeque;
use std::sync::Arc;

use gangline_common::ids::Generation;
use gangline_core::event::Report;

use crate::agent::Orders;

/// What an agent says.
#[derive(Debug, Clone)]
pub enum AgentWord {
    /// Begins a session; `instance` names the agent's process.
    Hello {
        instance: u64,
    },
    Inventory,
    /// Sent once a second by agents that ask for an answer less often.
    Sample,
    Heartbeat {
        held: Generation,
        /// By the agent's boot clock.
        sent_ms: u64,
    },
    Report(Arc<Report>),
    /// The agent has closed the session.
    Bye,
}

/// What the coordinator says.
#[derive(Debug, Clone)]
pub enum CoordinatorWord {
    Welcome,
    Refused,
    Desired(Arc<Orders>),
    HeartbeatAck {
        sent_ms: u64,
    },
    /// The session has ended: closed, or reset because the coordinator is gone.
    Closed,
}

/// A word under way.
#[derive(Debug, Clone)]
pub enum Packet {
    Up { node: usize, session: u64, word: AgentWord },
    Down { node: usize, session: u64, word: CoordinatorWord },
}

impl Packet {
    pub fn session(&self) -> u64 {
        match self {
            Packet::Up { session, .. } | Packet::Down { session, .. } => *session,
        }
    }
}

/// One direction of a node's link.
#[derive(Debug, Default)]
pub struct Way {
    /// Words that were sent while nothing came through, in order; bounded by [`STALLED_LIMIT`].
    pub stalled: VecDeque<Packet>,
    pub is_cut: bool,
    /// Longest time that a word takes, in milliseconds; 0 stands for the usual one.
    pub slow_ms: u64,
    /// When the newest word of the newest session arrives.
    pub last_ms: u64,
    pub newest_session: u64,
}

/// A word a second, and both sides give a silent session up: no way ever holds more.
pub const STALLED_LIMIT: usize = 512;
/// Usual longest time of a word, in milliseconds.
pub const USUAL_MS: u64 = 40;

/// A node's link.
#[derive(Debug, Default)]
pub struct Link {
    pub up: Way,
    pub down: Way,
    /// No other machine reaches this one.
    pub is_isolated: bool,
    /// Number of the newest cut: a heal of an older one does nothing.
    pub cut: u64,
}
