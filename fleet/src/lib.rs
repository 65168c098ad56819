//! Real fleets on one machine: real coordinator, real agents, real Ray, real processes.
//!
//! The demo, the soak and the real-process tests all stand on this crate. A fleet owns a directory,
//! its processes, and nothing else; when it is dropped, none of them is left.

pub mod api;
pub mod build;
pub mod fleet;
pub mod hosts;
pub mod process;
pub mod raw_agent;
pub mod ray_env;
pub mod recovery;
pub mod slots;
pub mod soak;
pub mod training;
