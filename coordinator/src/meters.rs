//! What the driver measures while it works: histograms that only this process knows, and GPU time
//! since it began.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_common::ids::GangId;
use gangline_common::time::Timestamp;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, Histogram, HistogramOpts, HistogramVec, Opts, exponential_buckets};

use crate::board::Board;
use crate::core::accounts::Spent;
use crate::core::effect::{Effects, Write};
use crate::core::gang::Gang;
use crate::core::job::JobState;
use crate::core::vacancy::Vacancy;

/// GPU-milliseconds by what they were, and the project and the pool that they are of. What no project
/// has, is of none.
pub type Shares = BTreeMap<(&'static str, String, String), u64>;

/// Cheap to clone; every clone counts into the same.
#[derive(Clone)]
pub struct Meters(Arc<Inner>);

struct Inner {
    commit: Histogram,
    schedule: Histogram,
    queue_wait: HistogramVec,
    gpu_seconds: CounterVec,
    /// When this began, by the wall clock.
    since_ms: u64,
    /// Since then, of allocations that have ended and of lines of vacancy that are written.
    ended: Mutex<Shares>,
    /// What was told last.
    told: Mutex<Shares>,
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
            since_ms: Timestamp::now().wall_ms,
            ended: Mutex::default(),
            told: Mutex::default(),
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

    /// Notes allocations that have ended, when a GPU-second gets its class, and what was vacant.
    pub fn note_ends(&self, effects: &Effects) {
        for write in &effects.writes {
            match write {
                Write::Spent(spent) => {
                    for (class, ms) in spent.classes.each() {
                        let labels = [spent.project.as_str(), &spent.pool, class];
                        self.0.gpu_seconds.with_label_values(&labels).inc_by(ms as f64 / 1000.0);
                    }
                    add_spent(&mut whole(&self.0.ended), spent, self.0.since_ms);
                }
                Write::Vacancy(line) => add_vacancy(&mut whole(&self.0.ended), line),
                _ => {}
            }
        }
    }

    /// GPU time since this began, of what is over.
    pub fn ended(&self) -> Shares {
        whole(&self.0.ended).clone()
    }

    /// GPU time since this began, with what goes on. `ended` was read before that was asked for: what
    /// ended in between is in neither, and so nothing is ever told to be less than before.
    pub fn so_far(&self, mut ended: Shares, open: &[Spent], vacant: &[Vacancy]) -> Shares {
        open.iter().for_each(|spent| add_spent(&mut ended, spent, self.0.since_ms));
        vacant.iter().for_each(|line| add_vacancy(&mut ended, line));
        let mut told = whole(&self.0.told);
        for (share, ms) in ended {
            let known = told.entry(share).or_default();
            *known = (*known).max(ms);
        }
        told.clone()
    }

    /// All families, as they are now.
    pub fn gather(&self) -> Vec<MetricFamily> {
        let Inner { commit, schedule, queue_wait, gpu_seconds, .. } = &*self.0;
        [commit.collect(), schedule.collect(), queue_wait.collect(), gpu_seconds.collect()].concat()
    }
}

fn add_spent(shares: &mut Shares, spent: &Spent, since_ms: u64) {
    let share = ("allocated", spent.project.clone(), spent.pool.clone());
    *shares.entry(share).or_default() += spent.after(since_ms).total_ms();
}

fn add_vacancy(shares: &mut Shares, line: &Vacancy) {
    let of_nobody = [("quarantined", line.quarantined_ms), ("fragmented", line.fragmented_ms)];
    let of_nobody = of_nobody.map(|(class, ms)| ((class, String::new(), line.pool.clone()), ms));
    let queued = line.queued_ms.iter();
    let queued = queued.map(|(project, ms)| (("queued", project.clone(), line.pool.clone()), *ms));
    for (share, ms) in of_nobody.into_iter().chain(queued) {
        *shares.entry(share).or_default() += ms;
    }
}

// The maps are whole after every statement.
fn whole(shares: &Mutex<Shares>) -> MutexGuard<'_, Shares> {
    shares.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::accounts::Classes;

    /// Two GPUs since a moment before the meters began.
    fn spent(since_ms: u64, ms: u64) -> Spent {
        Spent {
            gang: GangId::new("g-1").unwrap(),
            epoch: gangline_common::ids::Epoch { era: 1, n: 1 },
            job: gangline_common::ids::JobId::new("j-1").unwrap(),
            attempt: 1,
            user: "alice".to_owned(),
            project: "rl".to_owned(),
            pool: "a".to_owned(),
            from_wall_ms: since_ms - 10_000,
            shares: vec![(2, 10_000 + ms)],
            classes: Classes { unmeasured_ms: 2 * (10_000 + ms), ..Classes::default() },
        }
    }

    #[test]
    fn gpu_time_grows_while_a_job_runs_and_never_goes_back() {
        let meters = Meters::new().unwrap();
        let since_ms = meters.0.since_ms;
        let of = |shares: &Shares, class, project: &str| {
            shares.get(&(class, project.to_owned(), "a".to_owned())).copied().unwrap_or(0)
        };
        let vacant = |ms| Vacancy {
            pool: "a".to_owned(),
            from_wall_ms: since_ms,
            until_wall_ms: since_ms + ms,
            quarantined_ms: ms,
            fragmented_ms: 0,
            queued_ms: [("rl".to_owned(), 8 * ms)].into(),
        };
        let mut told = Vec::new();
        let mut look = |ended: Shares, open: &[Spent], lines: &[Vacancy]| {
            let shares = meters.so_far(ended, open, lines);
            let quarantined = of(&shares, "quarantined", "");
            told.push((of(&shares, "allocated", "rl"), quarantined, of(&shares, "queued", "rl")));
        };
        look(meters.ended(), &[spent(since_ms, 5_000)], &[vacant(100)]);
        look(meters.ended(), &[spent(since_ms, 6_000)], &[vacant(200)]);
        // It ends between the two looks.
        let before = meters.ended();
        let writes = vec![Write::Spent(spent(since_ms, 7_000)), Write::Vacancy(vacant(300))];
        meters.note_ends(&Effects { writes, ..Effects::default() });
        look(before, &[], &[]);
        look(meters.ended(), &[], &[]);
        let expected =
            [(10_000, 100, 800), (12_000, 200, 1_600), (12_000, 200, 1_600), (14_000, 300, 2_400)];
        assert_eq!(told, expected);
    }
}
