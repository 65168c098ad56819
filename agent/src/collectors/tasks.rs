//! Tasks that are stuck, and those that ended and are waited for by nobody.

use serde::Serialize;

/// What `/proc` shows of the processes of this PID namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TasksReading {
    pub processes: u32,
    pub zombies: u32,
    /// Without a break in state D for two minutes or more: seen so in every reading. At most 16.
    pub blocked: Vec<BlockedTask>,
    /// Number of them.
    pub blocked_count: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockedTask {
    pub pid: u32,
    /// The kernel's name of it, at most 15 characters.
    pub name: String,
    pub for_s: u64,
}
