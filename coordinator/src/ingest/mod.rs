//! The data plane: samples into rings, log chunks onto disk. Never through the core.

pub mod logs;
pub mod telemetry;
