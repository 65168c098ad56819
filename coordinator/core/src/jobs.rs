//! Transitions of jobs that people ask for: submit, stop, delete.

use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_common::time::{Stopwatch, Timestamp};

use super::controls::{Changes, Hold};
use super::credential::{IdempotencyRecord, Principal};
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::{RequestId, Submission};
use super::gang::{Gang, GangState};
use super::job::{Job, JobState, Outcome, Transition, remember};
use super::planted::{Planted, is_planted};
use super::recovery::Recovery;
use super::{Core, LIVE_JOB_LIMIT};

impl Core {
    pub(super) fn on_submit(
        &mut self,
        request: RequestId,
        submission: Submission,
        now: Timestamp,
        out: &mut Effects,
    ) {
        match self.check_submission(&submission) {
            Ok(None) => {}
            Ok(Some(job)) => {
                out.replies.push((request, Answer::Submitted { job }));
                return;
            }
            Err(rejected) => return Core::reject(request, rejected, out),
        }
        let cluster = match self.cluster_of(&submission) {
            Ok(cluster) => cluster,
            Err(rejected) => return Core::reject(request, rejected, out),
        };
        let waits_for = match self.unsettled(&submission) {
            Ok(waits_for) => waits_for,
            Err(rejected) => return Core::reject(request, rejected, out),
        };
        let Submission {
            job: id,
            gang,
            token_seed,
            principal,
            idempotency,
            request: wanted,
            node_test,
            ..
        } = submission;
        let hold = wanted.hold.then(|| Hold {
            by: principal.user.clone(),
            why: "submitted so".to_owned(),
            since: now,
        });
        let mut job = Job {
            id: id.clone(),
            user: principal.user.clone(),
            project: principal.project.clone(),
            request: wanted,
            changes: Changes::default(),
            hold,
            waits_for,
            state: JobState::Pending,
            gang: cluster.as_ref().map_or(gang, |cluster| cluster.gang.clone()),
            cluster: cluster.map(|cluster| cluster.id.clone()),
            token_seed,
            attempts: 0,
            sequence: self.next_sequence(),
            submitted: now,
            started: None,
            ended: None,
            eligible: None,
            running: None,
            reason: "just submitted".to_owned(),
            outcome: None,
            recovery: Recovery::default(),
            history: Vec::new(),
        };
        remember(
            &mut job.history,
            Transition {
                wall_ms: now.wall_ms,
                state: JobState::Pending.word().to_owned(),
                actor: principal.user.clone(),
                text: "submitted".to_owned(),
            },
        );
        self.refresh_eligible(&mut job, now);
        let detail = format!("{} in {}", job.request.name, job.project);
        self.audit(&principal, "job.submit", format!("job {id}"), &detail, now, out);
        self.put(Write::Job(Arc::new(job)), out);
        if let Some(test) = node_test {
            self.begin_node_test(*test, out);
        }
        if let Some((key, body_sha256)) = idempotency {
            let record = IdempotencyRecord {
                user: principal.user,
                key,
                body_sha256,
                made: id.to_string(),
                created: now,
            };
            self.put(Write::Idempotency(record), out);
        }
        out.replies.push((request, Answer::Submitted { job: id }));
        self.ask_for_scheduling();
    }

    /// `Ok(Some)`: the same request came before and made this job.
    fn check_submission(&self, submission: &Submission) -> Result<Option<JobId>, Rejected> {
        if let Some((key, hash)) = &submission.idempotency {
            let user = submission.principal.user.clone();
            if let Some(record) = self.idempotency.get(&(user, key.clone())) {
                if record.body_sha256 != *hash {
                    return Err(Rejected::KeyReused { job: record.made.clone() });
                }
                if let Ok(job) = JobId::new(record.made.clone()) {
                    return Ok(Some(job));
                }
            }
        }
        if self.jobs.contains_key(&submission.job) {
            return Err(Rejected::JobExists { job: submission.job.clone() });
        }
        if self.live_jobs.len() >= LIVE_JOB_LIMIT {
            return Err(Rejected::Full { limit: LIVE_JOB_LIMIT });
        }
        let project = &submission.principal.project;
        self.check_priority(project, submission.request.priority)?;
        self.check_secrets(project, &submission.request.secrets)?;
        self.check_pools(&submission.request.pools)?;
        if let Some(directory) = &submission.request.checkpoint_directory {
            let writers = self.writers.get(directory).into_iter().flatten();
            if let Some(job) = writers.into_iter().find(|id| self.may_write(id)) {
                let (job, directory) = (job.clone(), directory.clone());
                return Err(Rejected::CheckpointInUse { job, directory });
            }
        }
        Ok(None)
    }

    /// Whether anything of a job may run: one that has ended may still, on a node that is lost.
    fn may_write(&self, id: &JobId) -> bool {
        let Some(job) = self.jobs.get(id) else { return false };
        let runs = |gang: &Arc<Gang>| gang.is_live() && gang.job == *id;
        !job.state.is_terminal() || self.gangs.get(&job.gang).is_some_and(runs)
    }

    pub(super) fn forget_writer(&mut self, id: &JobId) {
        let job = self.jobs.get(id);
        let Some(directory) = job.and_then(|job| job.request.checkpoint_directory.clone()) else {
            return;
        };
        if let Some(writers) = self.writers.get_mut(&directory) {
            writers.remove(id);
            if writers.is_empty() {
                self.writers.remove(&directory);
            }
        }
    }

    pub(super) fn on_stop_job(
        &mut self,
        request: RequestId,
        id: &JobId,
        actor: &Principal,
        reason: String,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(id).cloned() else {
            return Core::reject(request, Rejected::NoSuchJob, out);
        };
        let detail = reason.clone();
        let outcome = Outcome::Cancelled { actor: actor.user.clone(), reason };
        match job.state {
            JobState::Pending => self.end_job(id, &outcome, now, out),
            JobState::Starting | JobState::Running | JobState::Held => {
                self.end_attempt(id, outcome, &actor.user, now, out);
            }
            JobState::Stopping => self.cancel_while_stopping(id, outcome, now, out),
            JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::Timeout => {
                let state = job.state.word();
                return Core::reject(request, Rejected::AlreadyEnded { state }, out);
            }
        }
        self.audit(actor, "job.stop", format!("job {id}"), &detail, now, out);
        out.replies.push((request, Answer::Stopping));
    }

    /// Forgets a job that has ended, when nothing of it can run any more: a member on a lost node
    /// keeps its share, and its Stop must stay listed until the node is back.
    pub(super) fn on_delete_job(
        &mut self,
        request: RequestId,
        id: &JobId,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(id).cloned() else {
            return Core::reject(request, Rejected::NoSuchJob, out);
        };
        if !job.state.is_terminal() {
            let state = job.state.word();
            return Core::reject(request, Rejected::NotEnded { state }, out);
        }
        // A guest's gang is its cluster's, and a guest ends only when nothing of it is left there.
        let gang = self.gangs.get(&job.gang).filter(|gang| gang.job == job.id);
        let gang = gang.map(|gang| gang.state);
        match gang {
            None | Some(GangState::Stopped) => {}
            Some(GangState::Starting | GangState::Ready | GangState::Stopping) => {
                return Core::reject(request, Rejected::NotGone, out);
            }
        }
        if self.guests.get(&job.gang).is_some_and(|guests| guests.contains(id)) {
            return Core::reject(request, Rejected::NotGone, out);
        }
        if job.is_cluster() {
            let is_guest = |guest: &&Arc<Job>| guest.cluster.as_ref() == Some(id);
            let jobs = self.jobs.values().filter(is_guest).count();
            if jobs > 0 {
                return Core::reject(request, Rejected::HasGuests { jobs }, out);
            }
        }
        // It may have ended in this very batch: those that wait for it must hear of it.
        self.settle_dependents(now, out);
        self.audit(actor, "job.delete", format!("job {id}"), &job.request.name, now, out);
        // A remembered request must not answer with a job that is gone.
        let made = self.idempotency.iter().filter(|(_, record)| record.made == id.as_str());
        let made: Vec<_> = made.map(|(key, _)| key.clone()).collect();
        for (user, key) in made {
            self.put(Write::ForgetIdempotency { user, key }, out);
        }
        let attempts = self.attempts.range((id.clone(), 0)..=(id.clone(), u32::MAX));
        let numbers: Vec<u32> = attempts.map(|((_, number), _)| *number).collect();
        for number in numbers {
            self.put(Write::ForgetAttempt { job: id.clone(), number }, out);
        }
        if gang.is_some() {
            self.put(Write::ForgetGang { id: job.gang.clone() }, out);
        }
        self.put(Write::ForgetJob { id: id.clone() }, out);
        let own = job.cluster.is_none().then(|| job.gang.clone());
        out.replies.push((request, Answer::Deleted { gang: own }));
    }

    /// An attempt that is rolled back or preempted would go back to the queue; a cancel in between
    /// must stick (F45).
    fn cancel_while_stopping(
        &mut self,
        id: &JobId,
        outcome: Outcome,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(id) else { return };
        if is_planted(Planted::CancelForgotten) {
            return;
        }
        let comes_back = |outcome: &Outcome| {
            outcome.terminal_state().is_none() || self.keeps_nodes(job, outcome)
        };
        if job.outcome.as_ref().is_some_and(comes_back) {
            let gang = job.gang.clone();
            let mut job = Job::clone(job);
            job.reason = outcome.sentence();
            job.outcome = Some(outcome);
            job.hold = None;
            remember(
                &mut job.history,
                Transition {
                    wall_ms: now.wall_ms,
                    state: job.state.word().to_owned(),
                    actor: "user".to_owned(),
                    text: job.reason.clone(),
                },
            );
            self.put(Write::Job(Arc::new(job)), out);
            self.release_kept(&gang, now, out);
            self.settle(&gang, now, out);
        }
    }

    /// Moves a job along the allowed graph; anything else is left as it is.
    pub(super) fn set_job_state(
        &mut self,
        id: &JobId,
        state: JobState,
        actor: &str,
        reason: String,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(id) else { return };
        if !job.state.may_become(state) {
            return;
        }
        let mut job = Job::clone(job);
        job.state = state;
        job.running = None;
        if state == JobState::Running {
            job.started = Some(now);
        }
        if matches!(state, JobState::Running | JobState::Held) {
            job.running = Some(Stopwatch::start(now));
        }
        if state.is_terminal() {
            job.ended = Some(now);
            job.hold = None;
            job.waits_for = Vec::new();
        }
        self.refresh_eligible(&mut job, now);
        remember(
            &mut job.history,
            Transition {
                wall_ms: now.wall_ms,
                state: state.word().to_owned(),
                actor: actor.to_owned(),
                text: reason.clone(),
            },
        );
        job.reason = reason;
        self.put(Write::Job(Arc::new(job.clone())), out);
        self.tell_of_job(&job, now, out);
    }

    /// Jobs that have run for as long as their spec lets them are stopped politely. The limit holds
    /// while the coordinator is away as well.
    pub(super) fn expire_time_limits(&mut self, now: Timestamp, out: &mut Effects) {
        let due = |job: &Job| {
            let running = job.running.filter(|_| job.state == JobState::Running)?;
            let limit = job.request.timeout_ms?;
            let ran_ms = match (is_planted(Planted::LimitByWallClock), job.started) {
                (true, Some(started)) => now.wall_ms.saturating_sub(started.wall_ms),
                _ => running.ms(now),
            };
            (ran_ms >= limit).then(|| format!("its time limit of {} s is over", limit / 1000))
        };
        let due: Vec<_> = self
            .timed_jobs
            .iter()
            .filter_map(|id| Some((id.clone(), due(self.jobs.get(id)?)?)))
            .collect();
        for (job, cause) in due {
            self.end_attempt(&job, Outcome::TimedOut { cause }, "gangline", now, out);
        }
    }

    /// The end of a job: its final state, or back to the queue after a rollback.
    pub(super) fn end_job(
        &mut self,
        id: &JobId,
        outcome: &Outcome,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let state = outcome.terminal_state().unwrap_or(JobState::Pending);
        let actor = match outcome {
            Outcome::Cancelled { actor, .. } => actor.clone(),
            Outcome::Succeeded
            | Outcome::Failed { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Preempted { .. }
            | Outcome::Retried { .. }
            | Outcome::Evacuated { .. }
            | Outcome::RolledBack { .. } => "gangline".to_owned(),
        };
        self.set_job_state(id, state, &actor, outcome.sentence(), now, out);
        if let Some(job) = self.jobs.get(id).cloned()
            && job.state.is_terminal()
        {
            self.just_ended.push(job.id.clone());
            self.ask_why_it_ended(&job, outcome, out);
            if job.is_cluster() {
                self.fail_waiting_guests(&job, now, out);
            }
        }
        self.ask_for_scheduling();
    }
}
