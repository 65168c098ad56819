//! Processes of one member as the kernel has them, with everything that they started.

use gangline_common::ids::{GpuId, PortBlock};
use gangline_core::gang::EndHow;

use crate::fencing::Fence;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The shim lives, the main process not yet.
    Spawning,
    Running,
    /// The main process is gone, the shim kills what is left.
    Sweeping,
    /// Nothing is left but the record of the end.
    Gone,
}

/// All processes of a member: one shim and what is below it.
#[derive(Debug, Clone)]
pub struct Process {
    pub gpus: Vec<GpuId>,
    pub ports: PortBlock,
    pub is_head: bool,
    pub is_ray: bool,
    /// No rank of another gang may run beside it.
    pub has_whole_node: bool,
    pub stage: Stage,
    pub pid: u32,
    /// When it moves on by itself.
    pub due_ms: Option<u64>,
    /// How it ends, or has ended.
    pub exit: EndHow,
    /// Its end was asked for.
    pub stopping: bool,
    /// A process of it cannot be killed before this moment.
    pub stuck_until_ms: u64,
    /// How long its main process runs; absent for one that runs until it is stopped.
    pub run_ms: Option<u64>,
    /// Since when its main process runs.
    pub since_ms: Option<u64>,
    /// How often it makes a training checkpoint, if it makes any.
    pub saves_every_ms: Option<u64>,
    /// When its shim stops it by itself.
    pub fence: Option<Fence>,
}

impl Process {
    pub fn is_alive(&self) -> bool {
        self.stage != Stage::Gone
    }

    /// Number of its newest training checkpoint while it runs, and when that was made.
    pub fn saved(&self, now_ms: u64) -> Option<(u64, u64)> {
        let since_ms = self.since_ms.filter(|_| self.stage == Stage::Running)?;
        let every_ms = self.saves_every_ms?;
        let count = now_ms.saturating_sub(since_ms).checked_div(every_ms)?;
        (count > 0).then_some((count, since_ms + count * every_ms))
    }
}
