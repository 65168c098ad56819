//! A seeded simulation of a whole fleet: the coordinator's core and the agents' cores are the real
//! ones; network, clocks, disks, processes, GPUs, Ray and users are made up, and break. Every
//! invariant is judged from what the machines have, after every step.
//!
//! Read `world` (what can happen), `faults` (what breaks), `checks` (what must hold), `healing`
//! (what must then happen).

pub mod agent;
mod agent_driver;
mod books;
pub mod campaign;
mod checks;
mod clock;
mod coordinator;
pub mod disk;
mod faults;
mod fencing;
mod healing;
mod network;
mod node;
mod operators;
mod process;
mod queue_checks;
pub mod random;
mod ray;
mod submissions;
pub mod tally;
mod users;
pub mod world;

#[cfg(feature = "planted")]
pub mod planted;
