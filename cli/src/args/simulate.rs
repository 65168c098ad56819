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
    /// Quota to try, such as rlhf=64, rlhf=64..128 or rlhf@h100=0..32: GPUs that the project is
    /// guaranteed, and holds at most (repeatable)
    #[arg(long, value_name = "QUOTA", value_parser = parse_quota)]
    pub quota: Vec<QuotaWish>,
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

/// A quota of the command line; without a pool it is in the pool of the first node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaWish {
    pub project: String,
    pub pool: Option<String>,
    pub guaranteed: u32,
    pub maximum: Option<u32>,
}

fn parse_quota(text: &str) -> Result<QuotaWish, String> {
    let read = || {
        let (whose, gpus) = text.split_once('=')?;
        let (project, pool) = match whose.split_once('@') {
            Some((project, pool)) => (project, Some(pool.to_owned())),
            None => (whose, None),
        };
        let (guaranteed, maximum) = match gpus.split_once("..") {
            Some((guaranteed, maximum)) => (guaranteed, Some(maximum.parse().ok()?)),
            None => (gpus, None),
        };
        let guaranteed = guaranteed.parse().ok()?;
        let named = !project.is_empty() && pool.as_deref() != Some("");
        named.then(|| QuotaWish { project: project.to_owned(), pool, guaranteed, maximum })
    };
    read().ok_or_else(|| "write it as rlhf=64, rlhf=64..128 or rlhf@h100=0..32".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas() {
        let of = |text| parse_quota(text).map(|q| (q.project, q.pool, q.guaranteed, q.maximum));
        assert_eq!(of("a=64"), Ok(("a".into(), None, 64, None)));
        assert_eq!(of("a@p=0..32"), Ok(("a".into(), Some("p".into()), 0, Some(32))));
        for bad in ["", "a", "=1", "a=", "a=x", "a@=1", "a=1..", "a=..2", "a=-1", "a=1..2..3"] {
            assert!(parse_quota(bad).is_err(), "{bad}");
        }
    }
}
