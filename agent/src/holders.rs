//! Who has which GPU of this node, by the driver's own knowledge: for the health rules and for the
//! labels of metrics.

use std::collections::BTreeMap;

use gangline_common::ids::{GangId, GpuId, JobId};

/// By GPU.
pub type Holders = BTreeMap<GpuId, Holder>;

/// The gang of a member that has a GPU and may still have a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub gang: GangId,
    /// Absent until the gang's assignment came again after a restart of the agent.
    pub job: Option<JobId>,
}
