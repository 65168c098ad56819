//! What the driver measures while it works: histograms that only this process knows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::GangId;
use gangline_common::time::Timestamp;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, Histogram, HistogramOpts, HistogramVec, Opts, exponential_buckets};

use crate::board::Board;
use crate::core::effect::{Effects, Write};
use crate::core::gang::Gang;
use crate::core::job::JobState;

/// Cheap to clone; every clone counts into the same.
#[derive(Clone)]
pub struct Meters(Arc<Inner>);

struct Inner {
    commit: Histogram,
    schedule: Histogram,
    queue_wait: HistogramVec,
    gpu_seconds: CounterVec,
}

impl Meters {
    /// Empty ones.
    ///
    /// # Errors
    /// When a name or a bucket is not valid, which is a defect of the program.
    pub fn new() -> Result<Self, prometheus::Error> {
        // 50 us to 13 s, 1 ms to 4 s, and 1 s to 48 days.
        let commit = HistogramOpts::new(
            "gangline_store_commit_seconds",
            "Time of one durable commit of the store.",
        )
        .buckets(exponential_buckets(0.000_05, 4.0, 10)?);
        let schedule = HistogramOpts::new(
            "gangline_schedule_duration_seconds",
            "Time of one decision with a pass over the queue.",
        )
        .buckets(exponential_buckets(0.000_05, 4.0, 10)?);
        let queue_wait = HistogramOpts::new(
            "gangline_queue_wait_seconds",
            "How long a job could have started before it did, by the pool that it got.",
        )
        .buckets(exponential_buckets(1.0, 4.0, 12)?);
        let gpu_seconds = Opts::new(
            "gangline_job_gpu_seconds_total",
            "GPU-seconds of allocations that have ended since the coordinator started, by what \
             became of them.",
        );
        Ok(Meters(Arc::new(Inner {
            commit: Histogram::with_opts(commit)?,
            schedule: Histogram::with_opts(schedule)?,
            queue_wait: HistogramVec::new(queue_wait, &["pool"])?,
            gpu_seconds: CounterVec::new(gpu_seconds, &["project", "pool", "class"])?,
        })))
    }

    /// A commit has taken this long.
    pub fn committed(&self, spent: Duration) {
        self.0.commit.observe(spent.as_secs_f64());
    }

    /// A decision with a pass over the queue has taken this long.
    pub fn scheduled(&self, spent: Duration) {
        self.0.schedule.observe(spent.as_secs_f64());
    }

    /// Notes how long jobs were in the queue that have left it: what [`starts`] found before the board
    /// took the same effects in.
    pub fn note_starts(&self, starts: &[Start], board: &Board) {
        for Start { gang, waited } in starts {
            let gang = board.gang(gang);
            let Some(pool) = gang.and_then(|gang| pool_of(board, &gang)) else { continue };
            self.0.queue_wait.with_label_values(&[&pool]).observe(waited.as_secs_f64());
        }
    }

    /// Notes allocations that have ended: a GPU-second gets its class at the end.
    pub fn note_ends(&self, effects: &Effects) {
        for write in &effects.writes {
            let Write::Spent(spent) = write else { continue };
            for (class, ms) in spent.classes.each() {
                let labels = [spent.project.as_str(), &spent.pool, class];
                self.0.gpu_seconds.with_label_values(&labels).inc_by(ms as f64 / 1000.0);
            }
        }
    }

    /// All families, as they are now.
    pub fn gather(&self) -> Vec<MetricFamily> {
        let Inner { commit, schedule, queue_wait, gpu_seconds } = &*self.0;
        [commit.collect(), schedule.collect(), queue_wait.collect(), gpu_seconds.collect()].concat()
    }
}

/// A job that leaves the queue.
pub struct Start {
    gang: GangId,
    waited: Duration,
}

/// Looks for jobs that leave the queue by these effects. `board` has not taken them in yet.
pub fn starts(board: &Board, effects: &Effects, now: Timestamp) -> Vec<Start> {
    let mut counted = BTreeSet::new();
    let mut starts = Vec::new();
    for write in &effects.writes {
        let Write::Job(job) = write else { continue };
        if job.state != JobState::Starting || !counted.insert(&job.id) {
            continue;
        }
        let before = board.job(&job.id).map(|before| (before.job.state, before.job.eligible));
        let waited_ms = match before {
            // Submitted and placed in one batch.
            None => now.ms_since(job.submitted),
            Some((JobState::Pending, Some(eligible))) => eligible.ms(now),
            // Held or not due until now, or started already.
            Some((JobState::Pending, None)) => 0,
            Some(_) => continue,
        };
        starts.push(Start { gang: job.gang.clone(), waited: Duration::from_millis(waited_ms) });
    }
    starts
}

/// The pool of the nodes that a gang is on, which are all of one pool.
pub fn pool_of(board: &Board, gang: &Gang) -> Option<String> {
    let (_, member) = gang.members.last_key_value()?;
    board.pool_of(&member.node)
}
