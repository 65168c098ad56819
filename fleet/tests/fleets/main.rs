//! The tests with real processes, as one program: most of them wait most of the time, so more of them
//! run at once than there are processors (`.cargo/config.toml`). Places for Ray and ranges of ports
//! are shared out by `gangline_fleet::slots`.

mod attacks;
mod certificates;
mod checkpoints;
mod clusters;
mod code;
mod command_gang;
mod crowd;
mod durability;
mod fencing;
mod greedy;
mod health;
mod hostile_logs;
mod job_controls;
mod log_tails;
mod logs;
mod nodes;
mod outages;
mod partition;
mod prometheus;
mod ray_client;
mod ray_gangs;
mod ray_state;
mod recovery;
mod refused;
mod restore;
mod scenes;
mod scheduling;
mod secrets;
mod sick_parts;
mod soak;
mod soak_faults;
mod support;
mod telemetry;
mod templates;
mod training;
mod users;
mod webhooks;
