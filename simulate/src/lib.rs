//! What-if: the coordinator's own core, driven in virtual time over a trace or over history.
//!
//! Nothing here decides anything: `replay` feeds the core with the events that a fleet and its users
//! would cause, answers as perfect agents would, and writes down what came of it.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod agents;
pub mod fleet;
pub mod generate;
pub mod history;
mod replay;
pub mod report;
pub mod trace;
pub mod workload;

pub use fleet::{Fleet, FleetError, NodeSpec, ProjectQuota};
pub use gangline_core::policy::Policy;
pub use replay::{Failure, Progress, Settings, replay};
pub use report::{JobTimes, Replay, Report};
pub use trace::TraceError;
pub use workload::{Demand, Group, Job, Workload};
