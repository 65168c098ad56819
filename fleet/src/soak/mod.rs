//! The soak: real processes under a running queue, killed at random moments, and what must hold.
//!
//! `clients` keeps the queue busy and writes the history, `kills` kills and judges, `check` says
//! whether the history could be true, `runs` whether ranks ran as the ends say. `heads` does the same to
//! Ray heads, `faults` lets trainings run into faults of every kind, `memory` watches memory under load
//! without kills. docs/soak.md has the commands, the bars and the last results.

pub mod check;
pub mod clients;
pub mod faults;
pub mod heads;
pub mod history;
pub mod kills;
pub mod memory;
pub mod runs;
