//! What came of a replay: times of each job, and the figures that policies and fleets are compared by.

use serde::Serialize;

use crate::workload::{Job, Workload};

/// Unfinished jobs that are named.
const NAMED: usize = 10;
const HOUR_MS: f64 = 3_600_000.0;

/// When a job arrived, first started and ended, in milliseconds since the first arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobTimes {
    pub submit_ms: u64,
    pub start_ms: Option<u64>,
    pub end_ms: Option<u64>,
}

/// A job that did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// `line 7` of the trace, or a job's id.
    pub job: String,
    pub gpus: u64,
    /// What the core says about it.
    pub reason: String,
}

/// The figures of one replay. Times in seconds; waits and completion times are of finished jobs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub policy: String,
    pub nodes: usize,
    pub gpus: u64,
    pub jobs: usize,
    pub finished: usize,
    /// From the first arrival to the last end.
    pub makespan_s: f64,
    /// From the first arrival to the last.
    pub arrivals_s: f64,
    /// GPU-time of all jobs over capacity between the first and the last arrival.
    pub load: Option<f64>,
    /// GPU-time that jobs held, over capacity, up to the last end.
    pub gpu_utilisation: f64,
    /// The same up to the last arrival.
    pub gpu_utilisation_arrivals: f64,
    pub wait_mean_s: f64,
    pub wait_p50_s: f64,
    pub wait_p90_s: f64,
    pub wait_p99_s: f64,
    pub wait_max_s: f64,
    pub jct_mean_s: f64,
    pub jct_p50_s: f64,
    pub jct_p90_s: f64,
    pub jct_p99_s: f64,
    pub jct_max_s: f64,
    /// Share of the free GPU-time, up to the last arrival, on nodes that were partly in use.
    pub fragmentation: f64,
    pub preemptions: u64,
    /// GPU-hours of work after the last training checkpoint, done again.
    pub gpu_hours_lost: f64,
    pub gpu_hours: f64,
    pub unfinished: usize,
    pub unfinished_jobs: Vec<Unfinished>,
    pub without_gpus: usize,
    /// Longest queue.
    pub queue_max: usize,
    /// Events that the core took, and how many a second of real time.
    pub events: u64,
    pub events_per_s: f64,
}

/// A report with what it was made from.
#[derive(Debug, Clone)]
pub struct Replay {
    pub report: Report,
    /// In the order of [`Workload::jobs`].
    pub times: Vec<JobTimes>,
}

/// What the replay adds up while time passes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    /// GPU-milliseconds held, up to now and up to the last arrival.
    pub busy: u128,
    pub busy_arrivals: u128,
    /// Free GPU-milliseconds up to the last arrival, and those on partly used nodes.
    pub free: u128,
    pub scattered: u128,
    pub lost: u128,
    pub preemptions: u64,
    pub events: u64,
    pub queue_max: usize,
    pub last_end_ms: u64,
}

/// Everything that a report is made from.
pub(crate) struct Outcome<'a> {
    pub policy: &'a str,
    pub nodes: usize,
    pub gpus: u64,
    pub offered: u128,
    pub workload: &'a Workload,
    pub times: Vec<JobTimes>,
    pub sums: Sums,
    pub unfinished: Vec<(usize, String)>,
    pub node_gpus: u32,
    pub took_s: f64,
}

pub(crate) fn summarise(outcome: Outcome<'_>) -> Replay {
    let Outcome { workload, times, sums, .. } = &outcome;
    let ended = times.iter().filter(|times| times.end_ms.is_some());
    let waits = Spread::of(ended.clone().filter_map(|t| Some(t.start_ms? - t.submit_ms)));
    let completions = Spread::of(ended.filter_map(|t| Some(t.end_ms? - t.submit_ms)));
    let arrivals_ms = workload.span_ms();
    let capacity = |ms: u64| outcome.gpus as f64 * ms as f64;
    let unfinished_jobs = outcome.unfinished.iter().take(NAMED).filter_map(|(at, reason)| {
        let job: &Job = workload.jobs.get(*at)?;
        let (nnodes, gpus) = job.demand.shape(outcome.node_gpus);
        let gpus = u64::from(nnodes) * u64::from(gpus);
        Some(Unfinished { job: workload.label(job), gpus, reason: reason.clone() })
    });
    let report = Report {
        policy: outcome.policy.to_owned(),
        nodes: outcome.nodes,
        gpus: outcome.gpus,
        jobs: workload.jobs.len(),
        finished: completions.count,
        makespan_s: seconds(sums.last_end_ms as f64),
        arrivals_s: seconds(arrivals_ms as f64),
        load: ratio(outcome.offered as f64, capacity(arrivals_ms)),
        gpu_utilisation: share(sums.busy as f64, capacity(sums.last_end_ms)),
        gpu_utilisation_arrivals: share(sums.busy_arrivals as f64, capacity(arrivals_ms)),
        wait_mean_s: waits.mean,
        wait_p50_s: waits.p50,
        wait_p90_s: waits.p90,
        wait_p99_s: waits.p99,
        wait_max_s: waits.max,
        jct_mean_s: completions.mean,
        jct_p50_s: completions.p50,
        jct_p90_s: completions.p90,
        jct_p99_s: completions.p99,
        jct_max_s: completions.max,
        fragmentation: share(sums.scattered as f64, sums.free as f64),
        preemptions: sums.preemptions,
        gpu_hours_lost: rounded(sums.lost as f64 / HOUR_MS),
        gpu_hours: rounded(sums.busy as f64 / HOUR_MS),
        unfinished: outcome.unfinished.len(),
        unfinished_jobs: unfinished_jobs.collect(),
        without_gpus: workload.without_gpus,
        queue_max: sums.queue_max,
        events: sums.events,
        events_per_s: (sums.events as f64 / outcome.took_s.max(1e-9)).round(),
    };
    Replay { report, times: outcome.times }
}

/// Mean and percentiles of times, in seconds. The p-th percentile is the smallest value that at
/// least p of a hundred values do not exceed (nearest rank).
#[derive(Debug, Default)]
pub struct Spread {
    pub count: usize,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    /// Of `values` in milliseconds; all zero without any.
    pub fn of(values: impl Iterator<Item = u64>) -> Spread {
        let mut sorted: Vec<u64> = values.collect();
        sorted.sort_unstable();
        let Some(last) = sorted.last() else { return Spread::default() };
        let rank = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).map_or(0.0, |ms| seconds(*ms as f64))
        };
        let sum: u128 = sorted.iter().map(|ms| u128::from(*ms)).sum();
        Spread {
            count: sorted.len(),
            mean: seconds(sum as f64 / sorted.len() as f64),
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max: seconds(*last as f64),
        }
    }
}

/// Milliseconds as seconds, to the millisecond.
fn seconds(ms: f64) -> f64 {
    ms.round() / 1000.0
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn share(part: f64, whole: f64) -> f64 {
    ratio(part, whole).unwrap_or(0.0)
}

/// To six digits; absent when there is no whole.
fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| (part / whole * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Spread::of((1..=10).map(|n| n * 1000));
        assert_eq!(
            (spread.mean, spread.p50, spread.p90, spread.p99, spread.max),
            (5.5, 5.0, 9.0, 10.0, 10.0)
        );
        let one = Spread::of([7_000].into_iter());
        assert_eq!((one.p50, one.p99), (7.0, 7.0));
        assert_eq!(Spread::of(std::iter::empty()).max, 0.0);
    }
}
