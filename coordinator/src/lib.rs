//! The coordinator: a durable queue of jobs, gang allocations, and what every node shall run.
//!
//! Reading order: `core::{event, effect}` (everything that can happen and be done), `core::step`,
//! `driver` (commit, then act). After these every file is a leaf.

pub mod agents;
pub mod api;
pub mod backups;
pub mod board;
pub mod ca;
pub mod check;
pub mod commands;
pub mod config;
pub mod control;
pub mod convert;
pub mod coordinator;
pub mod driver;
pub mod examine;
pub mod ingest;
pub mod meters;
pub mod node_tests;
pub mod outbox;
pub mod packages;
pub mod paths;
pub mod report;
pub mod request;
pub mod retention;
pub mod secrets;
pub mod server;
pub mod session;
pub mod space;
pub mod store;
pub mod threads;
pub mod training;
pub mod trees;
pub mod webhooks;

pub use gangline_core as core;
