//! Whether a waiting job may start at all: nobody holds it, its time has come, and what it is to run
//! after has succeeded. A job that may not is passed over and holds back nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_common::time::{Stopwatch, Timestamp, wall_text};

use super::Core;
use super::effect::{Effects, Rejected, Write};
use super::event::Submission;
use super::job::{Job, JobState, Outcome};

/// Jobs that a reason names; of more it gives the number.
const NAMED_LIMIT: usize = 5;

/// Characters that are repeated of the reason of another job's end.
const REASON_LIMIT: usize = 400;

/// Why a job may not start, whatever is free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotYet {
    Held {
        by: String,
        why: String,
    },
    /// Its spec gives the earliest time.
    Before {
        wall_ms: u64,
    },
    /// It failed, and is tried again after a pause.
    Rests {
        left_ms: u64,
    },
    /// These have not succeeded yet, each with its name.
    After {
        jobs: Vec<(JobId, String)>,
    },
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotYet::Held { by, why } if why.is_empty() => write!(f, "held by {by}"),
            NotYet::Held { by, why } => write!(f, "held by {by}: {why}"),
            NotYet::Before { wall_ms } => write!(f, "waits until {}", wall_text(*wall_ms)),
            NotYet::Rests { left_ms } => {
                write!(f, "is tried again in {} s", left_ms.div_ceil(1000))
            }
            NotYet::After { jobs } => {
                f.write_str("waits for the success of ")?;
                for (index, (id, name)) in jobs.iter().take(NAMED_LIMIT).enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{id} ({name})")?;
                }
                match jobs.len().saturating_sub(NAMED_LIMIT) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

/// Why a job cannot run after another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadDependency {
    /// There is none, or the submitter may not see it.
    Missing,
    Itself,
    /// It will never succeed: it has ended.
    Ended {
        job: JobId,
        state: &'static str,
    },
    /// It will never succeed: a standing cluster is stopped.
    Cluster {
        job: JobId,
    },
}

impl Core {
    /// Whether `job`, which is in the queue, may start as far as it is up to the job itself.
    ///
    /// # Errors
    /// Why it may not.
    pub fn eligible(&self, job: &Job, now: Timestamp) -> Result<(), NotYet> {
        if let Some(hold) = &job.hold {
            return Err(NotYet::Held { by: hold.by.clone(), why: hold.why.clone() });
        }
        if let Some(wall_ms) = job.request.not_before_ms.filter(|wall_ms| now.wall_ms < *wall_ms) {
            return Err(NotYet::Before { wall_ms });
        }
        let left_ms = job.recovery.rest.map_or(0, |rest| rest.left_ms(now));
        if left_ms > 0 {
            return Err(NotYet::Rests { left_ms });
        }
        if !job.waits_for.is_empty() {
            let name = |id: &JobId| self.jobs.get(id).map(|job| job.request.name.clone());
            let named = |id: &JobId| (id.clone(), name(id).unwrap_or_default());
            return Err(NotYet::After { jobs: job.waits_for.iter().map(named).collect() });
        }
        Ok(())
    }

    /// Starts or stops the count of the time in which `job` could have started.
    pub(super) fn refresh_eligible(&self, job: &mut Job, now: Timestamp) {
        let may = job.state == JobState::Pending && self.eligible(job, now).is_ok();
        job.eligible = may.then(|| job.eligible.unwrap_or(Stopwatch::start(now)));
    }

    /// Jobs whose time has come are looked at again, and those that could have started for as long
    /// as their spec lets them wait are failed. A wall clock that goes back makes a job wait again.
    pub(super) fn expire_waits(&mut self, now: Timestamp, out: &mut Effects) {
        let (mut changed, mut overdue) = (Vec::new(), Vec::new());
        let timed = self.timed_jobs.iter().filter_map(|id| self.jobs.get(id));
        for job in timed.filter(|job| job.state == JobState::Pending) {
            if self.eligible(job, now).is_ok() != job.eligible.is_some() {
                changed.push(job.clone());
            } else if let (Some(limit), Some(eligible)) = (job.request.max_wait_ms, job.eligible)
                && eligible.ms(now) >= limit
            {
                let why = self.why(&job.id);
                let reason = why.map_or_else(|| job.reason.clone(), |why| why.to_string());
                overdue.push((job.id.clone(), limit, reason));
            }
        }
        for job in changed {
            let mut job = Job::clone(&job);
            self.refresh_eligible(&mut job, now);
            self.put(Write::Job(Arc::new(job)), out);
            self.ask_for_scheduling();
        }
        for (id, limit, reason) in overdue {
            let cause =
                format!("queue timeout: it could not start within {} s: {reason}", limit / 1000);
            self.end_job(&id, &Outcome::Failed { cause }, now, out);
        }
    }

    /// The jobs that a submission has to wait for.
    pub(super) fn unsettled(&self, submission: &Submission) -> Result<Vec<JobId>, Rejected> {
        let mut waits_for = Vec::new();
        for (index, id) in submission.after.iter().enumerate() {
            let bad = |why| Rejected::Dependency { index, why };
            let Some(id) = id else { return Err(bad(BadDependency::Missing)) };
            if *id == submission.job {
                return Err(bad(BadDependency::Itself));
            }
            let Some(job) = self.jobs.get(id) else { return Err(bad(BadDependency::Missing)) };
            if job.is_cluster() {
                return Err(bad(BadDependency::Cluster { job: id.clone() }));
            }
            match job.state {
                JobState::Succeeded => {}
                JobState::Failed | JobState::Cancelled | JobState::Timeout => {
                    let (job, state) = (id.clone(), job.state.word());
                    return Err(bad(BadDependency::Ended { job, state }));
                }
                _ if waits_for.contains(id) => {}
                _ => waits_for.push(id.clone()),
            }
        }
        Ok(waits_for)
    }

    /// Who waits for whom, before `job` takes the place of what was known of it.
    pub(super) fn index_waiting(&mut self, job: &Job) {
        let before = self.jobs.get(&job.id).map(|job| job.waits_for.as_slice()).unwrap_or_default();
        if before == job.waits_for {
            return;
        }
        for id in before {
            if let Some(waiting) = self.waited_for.get_mut(id) {
                waiting.remove(&job.id);
                if waiting.is_empty() {
                    self.waited_for.remove(id);
                }
            }
        }
        for id in &job.waits_for {
            self.waited_for.entry(id.clone()).or_default().insert(job.id.clone());
        }
    }

    /// What the end of a job means to those that wait for it, and their end to others. A job waits
    /// only for jobs that were there before it, so this comes to an end.
    pub(super) fn settle_dependents(&mut self, now: Timestamp, out: &mut Effects) {
        while let Some(id) = self.just_ended.pop() {
            let Some(ended) = self.jobs.get(&id).cloned() else { continue };
            for waiting in self.waited_for.get(&id).cloned().unwrap_or_default() {
                if ended.state == JobState::Succeeded {
                    self.stop_waiting_for(&id, &waiting, now, out);
                    continue;
                }
                // In a long chain each reason has the one before it in it.
                let reason: String = ended.reason.chars().take(REASON_LIMIT).collect();
                let (name, state) = (&ended.request.name, ended.state.word());
                let cause =
                    format!("{id} ({name}), which it was to run after, is {state}: {reason}");
                self.end_job(&waiting, &Outcome::Failed { cause }, now, out);
            }
        }
    }

    fn stop_waiting_for(&mut self, id: &JobId, job: &JobId, now: Timestamp, out: &mut Effects) {
        let Some(job) = self.jobs.get(job) else { return };
        let mut job = Job::clone(job);
        job.waits_for.retain(|other| other != id);
        job.note(now, "gangline", format!("{id} has succeeded"));
        self.refresh_eligible(&mut job, now);
        self.put(Write::Job(Arc::new(job)), out);
        self.ask_for_scheduling();
    }

    /// The jobs that wait for another one's success, by that one: made anew, for the invariants.
    pub(super) fn waiting_now(&self) -> Vec<(&JobId, BTreeSet<&JobId>)> {
        let mut found = BTreeMap::<&JobId, BTreeSet<&JobId>>::new();
        for job in self.jobs.values() {
            for id in &job.waits_for {
                found.entry(id).or_default().insert(&job.id);
            }
        }
        found.into_iter().collect()
    }
}
