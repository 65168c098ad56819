//! Sources of facts about this node and of its counters. Each collector reads one source and says `None` for
//! what that source does not tell. [`Readings`] holds the newest of all of them.

pub mod accelerator;
pub mod host;
pub mod kernel;
pub mod nvml;
pub mod nvswitch;
pub mod owner;
pub mod rdma;
pub mod shared;
pub mod slot;
pub mod storage;
pub mod tasks;
pub mod versions;

#[cfg(test)]
pub(crate) mod fixture;

use std::sync::Arc;

use gangline_common::time::Timestamp;
use tokio::sync::watch;

use self::accelerator::GpuSample;
use self::host::HostSample;
use self::kernel::KernelReading;
use self::rdma::RdmaReading;
use self::shared::SharedReading;
use self::slot::{Latest, Status};
use self::storage::StorageReading;
use self::tasks::TasksReading;
use self::versions::Versions;

/// The newest readings of everything, put together once per interval: for the health rules and the metrics page.
/// A collector that this node has no use for is `None`: GPUs of a CPU node, the shared root where there is none.
#[derive(Clone, Debug)]
pub struct Readings {
    /// Numbers them from 1, as the samples of the same moment.
    pub number: u64,
    pub at: Timestamp,
    pub gpus: Option<Latest<Vec<GpuSample>>>,
    /// Stays below `/dev`; on a node without RDMA devices the list is empty.
    pub rdma: Latest<RdmaReading>,
    pub host: Latest<HostSample>,
    pub storage: Latest<StorageReading>,
    pub shared: Option<Latest<SharedReading>>,
    pub tasks: Latest<TasksReading>,
    /// `None` where the kernel's log cannot be read.
    pub kernel: Option<Latest<KernelReading>>,
    pub versions: Latest<Versions>,
    /// What this node's clock is ahead of the coordinator's, in milliseconds, and how sure that is (half of the
    /// round trip). `None` without a session.
    pub clock: Option<ClockOffset>,
    /// Samples that were never sent because a newer one came, since the agent began.
    pub dropped: u64,
    /// When the next readings are due, in milliseconds.
    pub interval_ms: u32,
    /// How late these were put together, in milliseconds: the agent itself has too little CPU.
    pub lag_ms: u64,
}

/// A comparison of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ClockOffset {
    pub ahead_ms: i64,
    pub uncertain_ms: u64,
}

impl Readings {
    /// How every collector fares.
    #[must_use]
    pub fn collectors(&self) -> Vec<Status> {
        let mut all = Vec::new();
        all.extend(self.gpus.as_ref().map(|latest| latest.status.clone()));
        all.push(self.rdma.status.clone());
        all.push(self.host.status.clone());
        all.push(self.storage.status.clone());
        all.extend(self.shared.as_ref().map(|latest| latest.status.clone()));
        all.push(self.tasks.status.clone());
        all.extend(self.kernel.as_ref().map(|latest| latest.status.clone()));
        all.push(self.versions.status.clone());
        all
    }
}

/// The newest readings; `None` before the first.
pub type NewestReadings = watch::Receiver<Option<Arc<Readings>>>;
