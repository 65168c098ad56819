//! What follows a failure: whether there is another attempt, and where it runs.
//!
//! The cause is found outside, from the logs: the core asks for a verdict on each attempt that has
//! failed and waits for it while there may be another. What the next attempt may use again is kept
//! for it, so that a healthy node is not given away because another one is sick.

use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_common::ids::{GangId, JobId, MemberId, MemberKey, NodeId};
use gangline_common::time::{Stopwatch, Timestamp};

use super::Core;
use super::capacity::Slot;
use super::controls::EXCLUDED_LIMIT;
use super::effect::{Effects, Examine, Write};
use super::gang::{Gang, GangState, Phase};
use super::job::{Attempt, Job, JobRequest, JobState, Outcome};
use super::placement::{Fit, Room, fit, out_of_reach, shares, unfit};

/// After this many attempts in a row without a new training checkpoint or step there is no other.
pub const STUCK_LIMIT: u32 = 3;
/// A verdict that does not come within this time is asked for again: whoever looks may be busy with
/// many that failed at once, or may have had no room for the question.
pub const ASK_AGAIN_MS: u64 = 60_000;
/// A verdict that does not come within this time is not waited for.
pub const VERDICT_MS: u64 = 600_000;
/// The same of an attempt whose node fell sick: another follows whatever the verdict is.
pub const EVACUATED_MS: u64 = 10_000;
/// What is done about such an attempt.
const EVACUATED_DONE: &str = "goes on without the part that is sick";
/// Nodes are kept for the next attempt for no longer than this.
pub const KEPT_MS: u64 = 180_000;

/// What a spec says about attempts after the first. The default is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retry {
    /// Attempts that follow a failure; those that the fleet is to blame for do not count.
    pub max: u32,
    pub causes: BTreeSet<Cause>,
    /// The pause before the second attempt in a row without progress, and so on; the last holds for
    /// all later ones.
    pub pauses_ms: Vec<u64>,
    pub exclude_failed_nodes: bool,
}

/// Causes that may lead to another attempt; a cause that only a user can mend is none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    NodeLost,
    Hardware,
    NcclTimeout,
    Preempted,
    Rendezvous,
    Ray,
    Storage,
}

impl Cause {
    /// Whether an attempt that ends so is one of those that [`Retry::max`] counts.
    fn counts(self) -> bool {
        !matches!(self, Cause::NodeLost | Cause::Preempted)
    }
}

/// Why an attempt failed, as it was found out; the evidence lies with the logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub again: Again,
    /// Kind of the first cause and which of its kind, in the words of the diagnosis.
    pub category: String,
    pub sub_code: String,
    /// The node that failed, where that is known.
    pub node: Option<NodeId>,
    /// A training step that no earlier attempt had come to.
    pub progressed: bool,
    /// The cause in one line, for people.
    pub summary: String,
    /// What was done about it, for people; empty until that is known.
    pub done: String,
}

/// Whether the same job may run again without a change by its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    Never,
    /// If the spec lets it for such a cause.
    After(Cause),
    /// Whatever the spec says of causes: it says so of a line that was in the log.
    Always,
}

/// When a verdict was asked for, on the boot clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    first_ms: u64,
    last_ms: u64,
}

/// How the attempts of a job went so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Failures that count, each followed by another attempt.
    pub counted: u32,
    /// Attempts in a row that failed without progress.
    pub stuck: u32,
    /// The pause before the next attempt: since when, and how long.
    pub rest: Option<Rest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    pub passed: Stopwatch,
    pub ms: u64,
}

impl Rest {
    /// What is left of the pause, in milliseconds.
    pub fn left_ms(&self, now: Timestamp) -> u64 {
        self.ms.saturating_sub(self.passed.ms(now))
    }
}

impl Retry {
    /// The pause before the attempt that follows `stuck` attempts without progress.
    fn pause_ms(&self, stuck: u32) -> u64 {
        let Some(index) = stuck.checked_sub(2) else { return 0 };
        let at = self.pauses_ms.get(index as usize).or(self.pauses_ms.last());
        at.copied().unwrap_or_default()
    }
}

impl Job {
    /// Whether a failure may be followed by another attempt.
    pub(super) fn may_try_again(&self) -> bool {
        self.request.retry.max > 0 && self.cluster.is_none() && !self.is_cluster()
    }
}

impl Core {
    /// Whether what an attempt with this outcome held is kept for the next one.
    pub(super) fn keeps_nodes(&self, job: &Job, outcome: &Outcome) -> bool {
        let own = job.cluster.is_none() && !job.is_cluster();
        match outcome {
            Outcome::Failed { .. } => job.may_try_again(),
            Outcome::Preempted { keeps_nodes, .. } => own && *keeps_nodes,
            Outcome::Evacuated { .. } => own,
            Outcome::Retried { .. } => true,
            Outcome::Succeeded
            | Outcome::Cancelled { .. }
            | Outcome::TimedOut { .. }
            | Outcome::RolledBack { .. } => false,
        }
    }

    /// Whether a member of this gang that ends now keeps its share.
    pub(super) fn keeps_share(&self, gang: &Gang, phase: &Phase) -> bool {
        let Phase::Ended(end) = phase else { return false };
        let Some(job) = self.jobs.get(&gang.job) else { return false };
        // Of a gang that is kept up for a person, and for no other attempt, what ends is free.
        let is_settled = job.state == JobState::Held && self.is_last(job);
        match gang.state {
            GangState::Starting | GangState::Ready => {
                !end.is_success() && job.may_try_again() && !is_settled
            }
            GangState::Stopping => gang.keeps,
            GangState::Stopped => false,
        }
    }

    /// Gives away what is kept of a gang whose members have ended.
    pub(super) fn release_kept(&mut self, id: &GangId, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(id) else { return };
        let kept = gang.members.iter().filter(|(_, member)| member.kept);
        let kept: Vec<MemberId> = kept.map(|(member, _)| *member).collect();
        if kept.is_empty() && !gang.keeps {
            return;
        }
        let mut gang = Gang::clone(gang);
        gang.keeps = false;
        gang.members.values_mut().for_each(|member| member.kept = false);
        let epoch = gang.epoch;
        self.put(Write::Gang(Arc::new(gang)), out);
        for member in kept {
            let key = MemberKey { gang: id.clone(), epoch, member };
            self.count_released(&key, now, out);
        }
        self.ask_for_scheduling();
    }

    /// What becomes of an attempt of which nothing runs any more, as far as it is up to it. `None`
    /// while its cause is being looked for.
    pub(super) fn outcome_with_verdict(
        &mut self,
        gang: &Gang,
        job: &Job,
        outcome: Outcome,
        now: Timestamp,
        out: &mut Effects,
    ) -> Option<Outcome> {
        if let Outcome::Evacuated { .. } = outcome {
            return self.evacuated_with_verdict(gang, job, outcome, now, out);
        }
        let Outcome::Failed { cause } = &outcome else { return Some(outcome) };
        if !job.may_try_again() {
            return Some(outcome);
        }
        let attempt = self.attempts.get(&(job.id.clone(), gang.attempt))?.clone();
        let Some(verdict) = attempt.verdict.clone() else {
            return match self.wait_for_verdict(&job.id, gang.attempt, VERDICT_MS, now, out) {
                true => None,
                false => Some(outcome),
            };
        };
        // It was settled while the gang was held.
        if !verdict.done.is_empty() {
            return Some(outcome);
        }
        let mut recovery = self.recovery_after(job, gang, &verdict);
        let (outcome, done) = match another(job, &recovery, verdict.again) {
            Err(why) => (outcome.clone(), format!("not tried again: {why}")),
            Ok(counts) => {
                recovery.counted += u32::from(counts);
                let ms = job.request.retry.pause_ms(recovery.stuck);
                recovery.rest = (ms > 0).then(|| Rest { passed: Stopwatch::start(now), ms });
                let left_out = self.leave_out(job, &verdict);
                let mut next = Job::clone(job);
                next.recovery = recovery;
                let done = next.goes_on_without(left_out);
                let retried = Outcome::Retried { cause: cause.clone() };
                next.outcome = Some(retried.clone());
                next.note(now, "gangline", format!("{}; {done}", verdict.summary));
                self.put(Write::Job(Arc::new(next)), out);
                (retried, done)
            }
        };
        let verdict = Arc::new(Verdict { done, ..Verdict::clone(&verdict) });
        let attempt = Attempt { verdict: Some(verdict), ..Attempt::clone(&attempt) };
        self.put(Write::Attempt(Arc::new(attempt)), out);
        Some(outcome)
    }

    /// The same where another attempt follows in any case: its cause is looked for while what it says
    /// can still be told from its nodes, and it waits only shortly for that.
    fn evacuated_with_verdict(
        &mut self,
        gang: &Gang,
        job: &Job,
        outcome: Outcome,
        now: Timestamp,
        out: &mut Effects,
    ) -> Option<Outcome> {
        let attempt = self.attempts.get(&(job.id.clone(), gang.attempt));
        let is_known = attempt.is_some_and(|attempt| attempt.verdict.is_some());
        let is_over =
            is_known || !self.wait_for_verdict(&job.id, gang.attempt, EVACUATED_MS, now, out);
        is_over.then_some(outcome)
    }

    /// How the attempts went, with this one.
    pub(super) fn recovery_after(&self, job: &Job, gang: &Gang, verdict: &Verdict) -> Recovery {
        let progressed = verdict.progressed
            || self.checkpoints.get(&gang.id).is_some_and(|newest| newest.is_of(gang));
        let stuck = if progressed { 1 } else { job.recovery.stuck + 1 };
        Recovery { stuck, ..job.recovery }
    }

    /// Asks for a verdict, now and then again; whether it is still to be waited for, which it is for
    /// no longer than `limit_ms`.
    pub(super) fn wait_for_verdict(
        &mut self,
        job: &JobId,
        attempt: u32,
        limit_ms: u64,
        now: Timestamp,
        out: &mut Effects,
    ) -> bool {
        let known = self.examined.get(job).copied();
        let asked = known.unwrap_or(Asked { first_ms: now.boot_ms, last_ms: now.boot_ms });
        if now.boot_ms.saturating_sub(asked.first_ms) >= limit_ms {
            self.examined.remove(job);
            return false;
        }
        if known.is_none() || now.boot_ms.saturating_sub(asked.last_ms) >= ASK_AGAIN_MS {
            out.examine.push(Examine { job: job.clone(), attempt });
            self.examined.insert(job.clone(), Asked { last_ms: now.boot_ms, ..asked });
        }
        true
    }

    /// Asks for a verdict that nothing waits for: on the attempt with which a job ends.
    pub(super) fn ask_why_it_ended(&self, job: &Job, outcome: &Outcome, out: &mut Effects) {
        let known = self.attempts.get(&(job.id.clone(), job.attempts));
        // One that ends in the queue did not fail in its newest attempt.
        let open = known.is_some_and(|attempt| {
            attempt.verdict.is_none() && matches!(attempt.outcome, Some(Outcome::Failed { .. }))
        });
        if open && matches!(outcome, Outcome::Failed { .. }) {
            out.examine.push(Examine { job: job.id.clone(), attempt: job.attempts });
        }
    }

    pub(super) fn on_examined(
        &mut self,
        job: &JobId,
        number: u32,
        verdict: Verdict,
        now: Timestamp,
        out: &mut Effects,
    ) {
        // Of an earlier attempt it may come when the newest is asked about, or kept up.
        let is_newest = self.jobs.get(job).is_some_and(|job| job.attempts == number);
        if is_newest {
            self.examined.remove(job);
        }
        let Some(attempt) = self.attempts.get(&(job.clone(), number)) else { return };
        if attempt.verdict.is_some() {
            return;
        }
        let done = match attempt.outcome {
            Some(Outcome::Evacuated { .. }) => EVACUATED_DONE.to_owned(),
            _ => verdict.done.clone(),
        };
        let verdict = Arc::new(Verdict { done, ..verdict });
        let attempt = Attempt { verdict: Some(verdict.clone()), ..Attempt::clone(attempt) };
        let gang = attempt.gang.clone();
        // Of an attempt whose gang has gone on, nobody knows the nodes any more.
        let of_attempt = self.gangs.get(&gang).filter(|gang| gang.attempt == number).cloned();
        // A node that was left for a condition is already doubted for that.
        let of_attempt =
            of_attempt.filter(|_| !matches!(attempt.outcome, Some(Outcome::Evacuated { .. })));
        if let (Some(gang), Some(verdict)) = (of_attempt, &attempt.verdict) {
            self.doubt_after(&gang, verdict, now, out);
        }
        self.put(Write::Attempt(Arc::new(attempt)), out);
        if is_newest {
            self.settle_hold(job, &verdict, now, out);
        }
        self.settle(&gang, now, out);
    }

    /// The name of the node that later attempts leave out: none that the job could not do without.
    fn leave_out(&mut self, job: &Job, verdict: &Verdict) -> Option<String> {
        let name = self.nodes.get(verdict.node.as_ref()?)?.name.clone();
        let room = job.changes.exclude_nodes.len() < EXCLUDED_LIMIT;
        if !job.request.retry.exclude_failed_nodes || job.request.excludes(&name) || !room {
            return None;
        }
        self.refresh_capacity();
        let mut without = JobRequest::clone(&job.request);
        without.exclude_nodes.push(name.clone());
        out_of_reach(&without, &self.capacity).is_none().then_some(name)
    }

    /// The next attempt of a job whose gang has just gone: at once, on the nodes that it had as far as
    /// they are good, with others in the place of those that are not. Where that cannot be, the job
    /// waits in the queue.
    pub(super) fn go_on(&mut self, gang: &Gang, now: Timestamp, out: &mut Effects) {
        let Some(job) = self.jobs.get(&gang.job).cloned() else { return };
        if job.state != JobState::Pending || self.eligible(&job, now).is_err() {
            return;
        }
        self.refresh_capacity();
        self.refresh_holdings();
        let Some(found) = self.again(&job, gang) else { return };
        let mut leases = self.leases();
        let Ok(shares) = shares(&job.request, &found, &self.capacity, &mut leases) else { return };
        self.next_ports = leases.next;
        self.allocate(&job, shares, now, out);
    }

    fn anyone_due_for(&self, pool: &str) -> bool {
        let mut firsts = self.queue.lines().filter_map(|(_, line)| line.first());
        firsts.any(|job| job.request.may_use(pool) && self.is_due(job))
    }

    /// The nodes for a gang that had others before: those of its ranks that would still do, each with
    /// its rank, and in the other places nodes of the same pool.
    fn again(&self, job: &Job, gang: &Gang) -> Option<Fit<'_>> {
        let request = &*job.request;
        let in_pool = |pool: &str| self.room_in_pool(&job.project, pool);
        let room = Room { gpus_in_pool: &in_pool, is_kept: &|_| false };
        let good = |slot: &&Slot| unfit(request, slot, &room).is_none();
        let ranks = gang.members.iter().filter(|(id, _)| **id != MemberId::Head);
        let mut places: Vec<Option<&Slot>> =
            ranks.map(|(_, member)| self.capacity.slot(&member.node).filter(good)).collect();
        let kept: BTreeSet<_> = places.iter().flatten().map(|slot| slot.index).collect();
        let pool = places.iter().flatten().map(|slot| slot.kind.pool.clone()).next()?;
        let allowed = in_pool(&pool).checked_div(request.gpus_per_node);
        if allowed.is_some_and(|nodes| (nodes as usize) < places.len()) {
            return None;
        }
        let missing = (places.len() - kept.len()) as u32;
        // Nodes may be kept for those that are due; then it takes its turn like everybody.
        if missing > 0 && self.anyone_due_for(&pool) {
            return None;
        }
        if missing > 0 {
            let spare = JobRequest {
                nnodes: missing,
                nnodes_max: missing,
                pools: vec![pool],
                ..request.clone()
            };
            let is_kept = |slot: &Slot| kept.contains(&slot.index);
            let room = Room { gpus_in_pool: &in_pool, is_kept: &is_kept };
            match fit(&spare, &self.capacity, &room) {
                Ok(found) => {
                    let mut found = found.nodes.into_iter();
                    for place in places.iter_mut().filter(|place| place.is_none()) {
                        *place = found.next();
                    }
                }
                // An elastic gang goes on with what it has.
                Err(_) if kept.len() >= request.nnodes as usize => {}
                Err(_) => return None,
            }
        }
        Some(Fit { nodes: places.into_iter().flatten().collect() })
    }
}

/// Whether there is another attempt, and whether it counts.
///
/// # Errors
/// Why there is none.
pub(super) fn another(job: &Job, recovery: &Recovery, again: Again) -> Result<bool, String> {
    let retry = &job.request.retry;
    let counts = match again {
        Again::Never => return Err("the same would happen again".to_owned()),
        Again::After(cause) if !retry.causes.contains(&cause) => {
            return Err("its spec does not retry such a cause".to_owned());
        }
        Again::After(cause) => cause.counts(),
        Again::Always => true,
    };
    if recovery.stuck >= STUCK_LIMIT {
        let stuck = recovery.stuck;
        return Err(format!("{stuck} attempts in a row made no progress"));
    }
    if counts && recovery.counted >= retry.max {
        return Err(format!("its {} retries are used up", retry.max));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_with_the_second_attempt_without_progress() {
        let retry = Retry { pauses_ms: vec![10, 20], ..Retry::default() };
        let pauses: Vec<u64> = (0..6).map(|stuck| retry.pause_ms(stuck)).collect();
        assert_eq!(pauses, [0, 0, 10, 20, 20, 20]);
        assert_eq!(Retry::default().pause_ms(9), 0);
    }
}
