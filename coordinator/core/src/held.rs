//! `hold_on_failure`: what is left of a gang whose last attempt has failed is kept up for a person, with
//! a deadline. Nothing is torn down until then: the job is HELD, and what its members hold counts as
//! taken.
//!
//! Whether it was the last attempt is a question of the cause, which is found from the logs while the
//! gang is held. Where another attempt follows, the hold ends there and then.

use std::sync::Arc;

use gangline_common::ids::{JobId, MemberId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::gang::{Gang, GangState, Phase};
use super::gangs::LOGS_GRACE_MS;
use super::job::{Attempt, Job, JobState, Outcome};
use super::node::Reachability;
use super::notices::About;
use super::recovery::{VERDICT_MS, Verdict, another};

/// The last lines of what has failed are on their way for so long.
const LINES_MS: u64 = 5_000;

impl Core {
    /// Whether what is left of the gang is kept up after this outcome.
    pub(super) fn holds_up(&self, job: &Job, gang: &Gang, outcome: &Outcome) -> bool {
        job.request.hold_on_failure_ms.is_some()
            && matches!(outcome, Outcome::Failed { .. })
            && job.state == JobState::Running
            && job.cluster.is_none()
            && !job.is_cluster()
            && gang.state == GangState::Ready
            && self.what_ends_it(gang).is_none()
    }

    /// The attempt has failed, and its gang stays.
    pub(super) fn hold_up(
        &mut self,
        job: &Job,
        gang: &Gang,
        outcome: Outcome,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if let Some(attempt) = self.attempts.get(&(job.id.clone(), gang.attempt)) {
            let attempt = Attempt { outcome: Some(outcome.clone()), ..Attempt::clone(attempt) };
            self.put(Write::Attempt(Arc::new(attempt)), out);
        }
        let seconds = job.request.hold_on_failure_ms.unwrap_or_default() / 1000;
        let said = format!("{}; kept up for {seconds} s (hold_on_failure)", outcome.sentence());
        let mut job = job.clone();
        let id = job.id.clone();
        job.outcome = Some(outcome);
        self.put(Write::Job(Arc::new(job)), out);
        self.set_job_state(&id, JobState::Held, "gangline", said, now, out);
    }

    /// What somebody or something wants to be the outcome of a job that is held, and why its hold ends;
    /// `None` when it does not. It has failed, whatever becomes of what is left.
    pub(super) fn end_of_hold(
        &self,
        job: &Job,
        wanted: &Outcome,
        actor: &str,
    ) -> Option<(Outcome, String)> {
        let failed = job.outcome.clone()?;
        match wanted {
            // What is left of it ends as well, and is heard of again and again.
            Outcome::Succeeded
            | Outcome::Failed { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Retried { .. }
            | Outcome::RolledBack { .. } => None,
            // Nobody knows yet whether another attempt would follow; there must be none now.
            Outcome::Cancelled { .. } if !self.is_last(job) => {
                Some((wanted.clone(), wanted.sentence()))
            }
            Outcome::Cancelled { .. } => Some((failed, wanted.sentence())),
            // Somebody sends it back to the queue.
            Outcome::Preempted { keeps_nodes: false, .. } => {
                Some((wanted.clone(), wanted.sentence()))
            }
            Outcome::Preempted { cause, .. } | Outcome::Evacuated { cause } => {
                Some((failed, format!("{cause} ({actor})")))
            }
        }
    }

    /// Whether it is settled that no other attempt follows.
    pub(super) fn is_last(&self, job: &Job) -> bool {
        let attempt = self.attempts.get(&(job.id.clone(), job.attempts));
        let verdict = attempt.and_then(|attempt| attempt.verdict.as_ref());
        !job.may_try_again() || verdict.is_some_and(|verdict| !verdict.done.is_empty())
    }

    /// Somebody has seen enough. Whether another attempt follows is decided as ever.
    pub(super) fn let_go(&mut self, job: &Job, why: &str, now: Timestamp, out: &mut Effects) {
        let Some(outcome) = job.outcome.clone() else { return };
        let said = format!("{}; no longer kept up: {why}", outcome.sentence());
        self.finish_attempt(job, outcome, said, "gangline", now, out);
    }

    /// Looks at every job that is held: its time, its nodes, and whether its cause is known.
    pub(super) fn expire_holds(&mut self, now: Timestamp, out: &mut Effects) {
        let held = self.timed_jobs.iter().filter_map(|id| self.jobs.get(id));
        let held: Vec<_> = held.filter(|job| job.state == JobState::Held).cloned().collect();
        for job in held {
            let Some(gang) = self.gangs.get(&job.gang).cloned() else { continue };
            let held_ms = job.running.map_or(u64::MAX, |held| held.ms(now));
            let limit_ms = job.request.hold_on_failure_ms.unwrap_or_default();
            let over = || (held_ms >= limit_ms).then(|| "its time is over".to_owned());
            match self.what_ends_it(&gang).or_else(over) {
                Some(why) => self.let_go(&job, &why, now, out),
                None => self.look_for_the_cause(&job, &gang, held_ms, now, out),
            }
        }
    }

    /// Why there is nothing to keep up, if so: a node is gone, or nothing of the gang runs.
    fn what_ends_it(&self, gang: &Gang) -> Option<String> {
        let mut runs = false;
        for (id, member) in &gang.members {
            if !member.phase.holds_resources() {
                continue;
            }
            let node = self.nodes.get(&member.node);
            if node.is_none_or(|node| node.revoked || node.reachability == Reachability::Lost) {
                let name = node.map_or("a node", |node| node.name.as_str());
                return Some(format!("{name} is lost"));
            }
            runs |= *id != MemberId::Head;
        }
        (!runs).then(|| "nothing of it runs any more".to_owned())
    }

    fn look_for_the_cause(
        &mut self,
        job: &Job,
        gang: &Gang,
        held_ms: u64,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let attempt = self.attempts.get(&(job.id.clone(), gang.attempt));
        if attempt.is_none_or(|attempt| attempt.verdict.is_some()) {
            return;
        }
        let complete = gang.members.values().all(|member| match &member.phase {
            Phase::Ended(end) => end.logs_complete,
            _ => true,
        });
        if held_ms < LINES_MS || !(complete || held_ms >= LOGS_GRACE_MS) {
            return;
        }
        if !self.wait_for_verdict(&job.id, gang.attempt, VERDICT_MS, now, out) {
            // Nobody can say whether it is the last. It is asked again, and told but once.
            if held_ms < 2 * VERDICT_MS {
                self.tell("job.held", About::Job(job), &job.reason, now, out);
            }
            self.release_kept(&gang.id, now, out);
        }
    }

    /// The cause of a job that is held is known: either another attempt follows, and the hold ends, or
    /// none does, and that is settled.
    pub(super) fn settle_hold(
        &mut self,
        id: &JobId,
        verdict: &Verdict,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(id).filter(|job| job.state == JobState::Held).cloned() else {
            return;
        };
        let Some(gang) = self.gangs.get(&job.gang).cloned() else { return };
        let recovery = self.recovery_after(&job, &gang, verdict);
        let why = match job.may_try_again() {
            true => another(&job, &recovery, verdict.again).err(),
            false => Some("its spec has no retries".to_owned()),
        };
        let Some(why) = why else {
            return self.let_go(&job, "another attempt follows", now, out);
        };
        if let Some(attempt) = self.attempts.get(&(id.clone(), gang.attempt)) {
            let done = format!("not tried again: {why}; kept up for a person");
            let verdict = Some(Arc::new(Verdict { done, ..verdict.clone() }));
            let attempt = Attempt { verdict, ..Attempt::clone(attempt) };
            self.put(Write::Attempt(Arc::new(attempt)), out);
        }
        // One without retries was told of at once.
        if job.may_try_again() {
            self.tell("job.held", About::Job(&job), &job.reason, now, out);
        }
        self.release_kept(&gang.id, now, out);
    }
}
