//! The shared file system, tried by a child process: a file is written, read and removed, and nobody but the
//! child waits for it.

use std::time::Duration;

use serde::Serialize;

use super::storage::Room;

/// How long a try may take.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The newest try. Without a shared root there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedReading {
    pub outcome: CanaryOutcome,
    /// As the child saw it; `None` unless it got that far.
    pub room: Option<Room>,
}

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum CanaryOutcome {
    /// Written, read back and removed.
    Ok { took_ms: u32 },
    /// A step was refused, e.g. by a full or read-only file system.
    Failed { step: &'static str, reason: String },
    /// No answer within [`TIMEOUT`]. The child was killed; one that cannot be killed is left behind, and there is
    /// no other try until it has ended.
    TimedOut { waiting_ms: u64 },
}
