//! Training checkpoints as an agent lists them: JSON in the body of an answer.

use serde::{Deserialize, Serialize};

/// One of the training checkpoints of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListedCheckpoint {
    pub name: String,
    /// When anything in it was changed last by the clock of its file system, in milliseconds since
    /// 1970.
    pub changed_ms: u64,
    pub bytes: u64,
    pub files: u64,
    /// A file of the framework says so, or nothing in it has changed for a while. Else it may be on
    /// its way.
    pub complete: bool,
    /// The one that a job would go on from.
    pub newest: bool,
}
