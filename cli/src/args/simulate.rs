//! `gangline simulate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs};
use gangline_simulate::Policy;

use crate::durations;

/// `gangline simulate`.
#[derive(Debug, ClapArgs)]
#[command(
    group = ArgGroup::new("source").required(true).args(["trace", "generate", "from_history"]),
    after_help = "The same program that schedules the fleet schedules the replay. \
                  docs/simulation.md says what each figure means."
)]
pub struct Simulate {
    /// Trace: CSV, perhaps gzipped, with columns submit_s, duration_s, num_gpus and perhaps vc,
    /// project, user; - is stdin
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Jobs made from this number, to try the command without a trace
    #[arg(long, value_name = "SEED")]
    pub generate: Option<u64>,
    /// The jobs that the coordinator remembers, on its nodes
    #[arg(long)]
    pub from_history: bool,
    /// Nodes of the fleet; of a history, in place of its own
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "from_history",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub nodes: Option<u32>,
    /// GPUs of each node
    #[arg(
        long,
        value_name = "G",
        required_unless_present = "from_history",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub gpus_per_node: Option<u32>,
    /// Nodes more than the history's own, each like the first
    #[arg(
        long,
        value_name = "N",
        requires = "from_history",
        conflicts_with = "nodes",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub add_nodes: Option<u32>,
    /// Only what was submitted within this time
    #[arg(long, value_name = "TIME", requires = "from_history", value_parser = durations::parse)]
    pub since: Option<Duration>,
    /// Jobs to generate
    #[arg(
        long,
        value_name = "N",
        requires = "generate",
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub jobs: u32,
    /// fifo, backfill, shortest or default (repeatable, or with commas)
    #[arg(
        long,
        value_name = "POLICY",
        value_delimiter = ',',
        default_value = "default",
        value_parser = parse_policy
    )]
    pub policy: Vec<Policy>,
    /// Every policy, in one table
    #[arg(long, conflicts_with = "policy")]
    pub compare: bool,
    /// Scale the times of arrival: GPU-time of the jobs over what the fleet has meanwhile
    #[arg(long, value_name = "F", value_parser = parse_load)]
    pub load: Option<f64>,
    /// How often jobs make training checkpoints; a preempted job goes on from its last one
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = durations::parse)]
    pub checkpoint_every: Duration,
}

fn parse_policy(text: &str) -> Result<Policy, String> {
    let found = Policy::ALL.into_iter().find(|policy| policy.word() == text);
    let words = || Policy::ALL.map(Policy::word).join(", ");
    found.ok_or_else(|| format!("use one of {}", words()))
}

fn parse_load(text: &str) -> Result<f64, String> {
    const LOADS: std::ops::RangeInclusive<f64> = 0.01..=100.0;
    let load = text.parse().ok().filter(|load| LOADS.contains(load));
    load.ok_or_else(|| "use a share such as 0.9, from 0.01 to 100".to_owned())
}
