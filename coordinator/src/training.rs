//! What trainings say of themselves, past the core: steps and metrics read from the stored logs, kept
//! in memory and bounded; and the watch over whether they go on.
//!
//! Nothing here is stored. After a restart the logs are read again, and the watch begins anew: it warns
//! later then, never sooner.

mod capture;
mod patrol;
mod reader;
mod slow;
mod words;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::ids::{Epoch, JobId, MemberId};
use gangline_common::time::Timestamp;
use gangline_training::{Limits, Pace, Reading, Series, Stragglers, Watch};

use crate::board::JobSnapshot;
use crate::core::job::{Job, JobState};
use crate::core::stall::StallWord;
use crate::ingest::logs::Logs;
use reader::File;

pub use patrol::{Parts, run};

/// Jobs of which everything is kept; of further ones only a few names.
const FULL: usize = 512;
/// Jobs that have ended and are still kept: those that were asked for last.
const ENDED: usize = 64;
const LIMITS: Limits = Limits { names: 128, rows: 400 };
const SMALL: Limits = Limits { names: 4, rows: 100 };

/// How far a training is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Progress {
    pub step: u64,
    pub total: Option<u64>,
    /// The learned time of a step in the newest attempt, in milliseconds.
    pub step_ms: Option<f64>,
    /// When the newest step came, as far as this process saw it.
    pub last_step: Option<Timestamp>,
}

impl Progress {
    /// Milliseconds that the rest of it takes at its pace.
    pub fn left_ms(&self) -> Option<f64> {
        let left = self.total?.saturating_sub(self.step);
        Some(self.step_ms? * left as f64)
    }
}

/// What is shown of a job without waiting for whoever reads its logs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shown {
    pub progress: Option<Progress>,
    /// Attempt that has stalled, as far as that was said.
    stalled: Option<(u32, Stalled)>,
    /// Attempt, and those of its ranks that are slower than the others.
    slow: (u32, Vec<SlowRank>),
    /// More may come to its logs.
    follows: bool,
    /// What becomes of the word that it has stalled, while its processes are looked at before that is told.
    looking: Looking,
}

/// Whether somebody looks at the processes of a training that has stalled, before that is told.
#[derive(Debug, Clone, PartialEq, Default)]
enum Looking {
    #[default]
    Nobody,
    Somebody,
    /// It went on meanwhile; that is the word of it.
    Resumed(StallWord),
    /// It was told meanwhile that it hangs.
    Superseded,
}

/// A training that goes on no more.
#[derive(Debug, Clone, PartialEq)]
pub struct Stalled {
    pub since: Timestamp,
    /// What was said of it last.
    pub said: Arc<str>,
}

/// A rank that was said to be slower than the others.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowRank {
    pub rank: u32,
    /// Name of its node.
    pub node: String,
    pub since: Timestamp,
    pub said: String,
}

impl Shown {
    /// That the job has stalled. Whoever watches may not have seen yet that it has ended, or that
    /// another attempt runs.
    pub fn stalled(&self, job: &Job) -> Option<&Stalled> {
        let (attempt, stalled) = self.stalled.as_ref()?;
        (job.state == JobState::Running && job.attempts == *attempt).then_some(stalled)
    }

    /// The ranks of a running job that are slower than the others.
    pub fn slow(&self, job: &Job) -> &[SlowRank] {
        let (attempt, slow) = &self.slow;
        let is_of_it = job.state == JobState::Running && job.attempts == *attempt;
        if is_of_it { slow } else { &[] }
    }
}

/// The steps of one job, and where the reading of its logs stands.
pub struct Training {
    /// Of all trainings that this process has made.
    pub number: u64,
    pub series: Series,
    /// The newest attempt that was begun to be read, 0 before the first; and its epoch: an attempt that
    /// was rolled back is made again under its number.
    attempt: u32,
    epoch: Option<Epoch>,
    /// The highest step of the attempts before, as their logs say; and as TensorBoard's files do of those
    /// whose logs say none, which may count something else.
    highest: Option<u64>,
    highest_beside: Option<u64>,
    pace: Pace,
    /// Of the other ranks that say steps themselves.
    paces: BTreeMap<u32, Pace>,
    last_step: Option<Timestamp>,
    /// The newest attempt says its steps in a log of its own, not only in TensorBoard's files.
    says_steps: bool,
    /// What those files say of steps that are still to come, and all of it before the log says its
    /// first; bounded.
    held: VecDeque<Reading>,
    /// Of the newest attempt.
    files: HashMap<(MemberId, String), File>,
    /// When all of those were looked at last, on the boot clock; 0 before that.
    looked_ms: u64,
    /// Of the newest attempt, while it runs.
    watch: Option<Watch>,
    stragglers: Stragglers,
    /// When its ranks were compared last, on the boot clock.
    compared_ms: u64,
    /// It has failed, its gang is kept up, and its agents were asked to keep how it stands.
    kept_scenes: bool,
}

impl Training {
    fn new(number: u64, limits: Limits) -> Self {
        Training {
            number,
            series: Series::new(limits),
            attempt: 0,
            epoch: None,
            highest: None,
            highest_beside: None,
            pace: Pace::default(),
            paces: BTreeMap::new(),
            last_step: None,
            says_steps: false,
            held: VecDeque::new(),
            files: HashMap::new(),
            looked_ms: 0,
            watch: None,
            stragglers: Stragglers::default(),
            compared_ms: 0,
            kept_scenes: false,
        }
    }

    pub fn progress(&self) -> Option<Progress> {
        Some(Progress {
            step: self.series.newest()?,
            total: self.series.total(),
            step_ms: self.pace.step_ms(),
            last_step: self.last_step,
        })
    }
}

/// One job of [`Trainings`].
struct Kept {
    training: Mutex<Training>,
    shown: Mutex<Shown>,
    /// When it was last asked for or read, as a count of such moments.
    used: AtomicU64,
}

/// All of them. Cheap to clone.
#[derive(Clone)]
pub struct Trainings {
    logs: Logs,
    started: Timestamp,
    jobs: Arc<Mutex<HashMap<JobId, Arc<Kept>>>>,
    counter: Arc<AtomicU64>,
}

impl Trainings {
    pub fn new(logs: Logs, started: Timestamp) -> Self {
        Trainings { logs, started, jobs: Arc::default(), counter: Arc::default() }
    }

    /// When this process began: numbers and versions of another one mean something else.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// What is known of a job right now. Never waits.
    pub fn shown(&self, job: &JobId) -> Shown {
        let kept = self.lock().get(job).cloned();
        kept.map(|kept| whole(&kept.shown).clone()).unwrap_or_default()
    }

    /// Whether an attempt has come to a step that none before it had come to. Blocking.
    pub fn has_progressed(&self, snapshot: &JobSnapshot, attempt: u32) -> bool {
        self.read(snapshot, |training| {
            let newest = training.series.newest().filter(|_| training.series.has_begun());
            let highest = match training.says_steps {
                true => training.highest,
                false => training.highest.max(training.highest_beside),
            };
            training.attempt == attempt && newest > highest
        })
    }

    /// The steps of a job with everything that its logs say by now. Blocking.
    pub fn read<T>(&self, snapshot: &JobSnapshot, answer: impl FnOnce(&Training) -> T) -> T {
        let kept = self.kept(&snapshot.job.id);
        let mut training = whole(&kept.training);
        training.read(&self.logs, snapshot, self.started, Timestamp::now());
        self.show(&kept, &training);
        answer(&training)
    }

    fn kept(&self, job: &JobId) -> Arc<Kept> {
        let used = self.counter.fetch_add(1, Ordering::Relaxed);
        let mut jobs = self.lock();
        let limits = if jobs.len() < FULL { LIMITS } else { SMALL };
        let kept = jobs.entry(job.clone()).or_insert_with(|| {
            Arc::new(Kept {
                training: Mutex::new(Training::new(used, limits)),
                shown: Mutex::default(),
                used: AtomicU64::new(used),
            })
        });
        kept.used.store(used, Ordering::Relaxed);
        kept.clone()
    }

    fn show(&self, kept: &Kept, training: &Training) {
        whole(&kept.shown).progress = training.progress();
    }

    /// Forgets the jobs that are gone, and of those that have ended all but the ones used last.
    fn forget(&self, lives: impl Fn(&JobId) -> Option<bool>) {
        let mut jobs = self.lock();
        let mut ended = Vec::new();
        jobs.retain(|job, kept| match lives(job) {
            Some(true) => true,
            Some(false) => {
                ended.push((kept.used.load(Ordering::Relaxed), job.clone()));
                true
            }
            None => false,
        });
        ended.sort_unstable();
        let over = ended.len().saturating_sub(ENDED);
        for (_, job) in ended.into_iter().take(over) {
            jobs.remove(&job);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Kept>>> {
        whole(&self.jobs)
    }
}

/// What is behind these locks is only ever a copy of what the logs say: one that a panic left behind
/// is read again, or shown as it is.
fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
