//! The options of `node test`.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use crate::durations;

/// `gangline node test`.
#[derive(Debug, ClapArgs)]
pub struct NodeTest {
    /// Ids or names of nodes of one pool; without them the nodes of the pool that take new work
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// The pool; not needed when nodes are named or when there is only one
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    /// GPUs that the check takes of each node; without them it measures from the hosts' memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpus: u32,
    /// What the ranks talk through [default: gloo without GPUs, nccl with them]
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// An interpreter with PyTorch on the nodes [default: python3, else /usr/bin/python3]
    #[arg(long, value_name = "PATH")]
    pub python: Option<String>,
    /// How long it may run
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = durations::parse)]
    pub timeout: Duration,
    /// Begin it and go at once
    #[arg(long)]
    pub no_wait: bool,
    /// Show the newest result instead: of the node, the pool, or any
    #[arg(long, conflicts_with_all = ["gpus", "backend", "python", "timeout", "no_wait"])]
    pub last: bool,
    /// Make a simulated GPU of the node fail instead: xid=79, link or kill; heal ends it
    #[arg(long, value_name = "FAULT", requires = "nodes",
        conflicts_with_all = ["pool", "gpus", "backend", "python", "timeout", "no_wait", "last"])]
    pub inject: Option<String>,
}

/// What the ranks of a check talk through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    Gloo,
    Nccl,
}

impl Backend {
    pub fn word(self) -> &'static str {
        match self {
            Backend::Gloo => "gloo",
            Backend::Nccl => "nccl",
        }
    }
}
