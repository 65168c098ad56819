//! The `gangline` program as users run it: against a server in this process that plays recorded
//! answers of the coordinator, and without any server.

mod access;
mod again;
mod answers;
mod clusters;
mod control;
mod events;
mod exits;
mod init;
mod logs;
mod offline;
mod ray;
mod screen;
mod server;
mod simulate;
mod submit;
mod tables;
mod telemetry;
mod training;
