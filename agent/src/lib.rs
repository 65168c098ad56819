//! The agent: one per node. It dials the coordinator, keeps a durable copy of what the node must
//! run, starts and stops the members of gangs, and ships samples and logs.
//!
//! `core` decides and does no I/O; `driver` owns it and carries out its effects through `ledger`,
//! `supervisor` and `link`. Samples and logs never pass through the core. `run` puts the parts
//! together.

pub mod code;
pub mod collectors;
pub mod config;
pub mod doctor;
pub mod driver;
pub mod durable;
pub mod health;
pub mod holders;
pub mod inventory;
pub mod join;
pub mod ledger;
pub mod link;
pub mod lock;
pub mod meter;
pub mod metrics;
pub mod network;
pub mod reaper;
pub mod route;
pub mod run;
pub mod scene;
pub mod shim;
pub mod simulated;
pub mod status;
pub mod supervisor;
pub mod tail;
pub mod telemetry;
pub mod translate;

pub use gangline_agent_core as core;

#[cfg(test)]
mod sample;
