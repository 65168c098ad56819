//! Transitions of gangs: what agents report, what it means for the attempt, and the end.

use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_common::ids::{GangId, JobId, MemberId, MemberKey, NodeId};
use gangline_common::time::Timestamp;

use super::effect::{Effects, Write};
use super::event::{EntrypointFact, GangFacts, Report};
use super::gang::{End, EndHow, Gang, GangState, Phase};
use super::job::{Attempt, GuestPhase, Job, JobState, Launcher, Outcome};
use super::node::Reachability;
use super::planted::{Planted, is_planted};
use super::recovery::KEPT_MS;
use super::{Core, QUARANTINE_MS, Quarantine};

/// After the last process has gone, a job waits this long for the rest of its logs.
pub const LOGS_GRACE_MS: u64 = 60_000;
/// Nor are logs waited for longer than this: nothing of the gang runs, and its job may be waiting to
/// go on.
pub const LOGS_LIMIT_MS: u64 = 900_000;
/// Agents must say something about a committed allocation within this time (F6).
pub const ACKNOWLEDGE_MS: u64 = 120_000;

impl Core {
    pub(super) fn on_reported(
        &mut self,
        node: &NodeId,
        session: u64,
        report: Report,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !self.word_from(node, session, now, out) {
            return;
        }
        self.note_held(node, report.held, now, out);
        for word in report.usage.clone() {
            self.on_usage_word(node, word, now, out);
        }
        let mut touched: Vec<GangId> = Vec::new();
        let mut unknown = BTreeSet::new();
        for (key, phase) in &report.members {
            if self.is_assigned(node, key) {
                if self.apply_phase(key, phase.clone(), now, out) {
                    touched.push(key.gang.clone());
                }
            } else if phase.holds_resources() {
                // Also of an earlier epoch: a store that was restored has not stopped those.
                unknown.insert(key.clone());
            }
        }
        self.apply_absence(node, &report, &mut touched, now, out);
        self.note_unknown(node, unknown, out);
        self.note_stopped(node, &report, out);
        for facts in report.gangs {
            // Only the node of the head (or of rank 0) speaks for the gang (A18).
            if self.speaks_for(node, &facts) {
                touched.push(facts.gang.clone());
                self.apply_facts(facts, now, out);
            }
        }
        for word in report.guests {
            if self.is_assigned(node, &word.key) {
                self.on_guest_word(word, now, out);
            }
        }
        for word in report.checkpoints {
            self.on_checkpoint_word(node, word, now, out);
        }
        for word in report.saved {
            self.on_saved_word(node, word, now, out);
        }
        touched.sort();
        touched.dedup();
        for gang in touched {
            self.guard_head_ports(&gang, now);
            self.evaluate(&gang, now, out);
        }
    }

    pub(super) fn is_assigned(&self, node: &NodeId, key: &MemberKey) -> bool {
        self.gangs.get(&key.gang).is_some_and(|gang| {
            gang.epoch == key.epoch
                && gang.members.get(&key.member).is_some_and(|m| m.node == *node)
        })
    }

    fn speaks_for(&self, node: &NodeId, facts: &GangFacts) -> bool {
        self.gangs.get(&facts.gang).is_some_and(|gang| {
            let first = gang.members.get(&MemberId::Head).or(gang.members.get(&MemberId::Rank(0)));
            gang.epoch == facts.epoch && first.is_some_and(|member| member.node == *node)
        })
    }

    /// Takes a reported phase; an end is final. True when something changed.
    pub(super) fn apply_phase(
        &mut self,
        key: &MemberKey,
        phase: Phase,
        now: Timestamp,
        out: &mut Effects,
    ) -> bool {
        let Some(gang) = self.gangs.get(&key.gang) else { return false };
        let Some(member) = gang.members.get(&key.member) else { return false };
        let news = match (&member.phase, &phase) {
            (Phase::Ended(old), Phase::Ended(new)) => new.logs_complete && !old.logs_complete,
            (Phase::Ended(_), _) => false,
            (old, new) => old != new,
        };
        if !news {
            return false;
        }
        let ended = !phase.holds_resources() && member.phase.holds_resources();
        let (gang, node) = (gang.clone(), member.node.clone());
        if ended {
            self.note_refusal(&node, &phase, now, out);
        }
        let gang = &gang;
        let kept = ended && self.keeps_share(gang, &phase);
        let mut gang = Gang::clone(gang);
        if let Some(member) = gang.members.get_mut(&key.member) {
            member.phase = phase;
            member.kept |= kept;
        }
        self.put(Write::Gang(Arc::new(gang)), out);
        if ended && !kept {
            self.count_released(key, now, out);
            self.ask_for_scheduling();
        }
        true
    }

    /// An agent that holds the newest generation and does not list a member of it has no such
    /// member: complete sets make that evidence.
    fn apply_absence(
        &mut self,
        node: &NodeId,
        report: &Report,
        touched: &mut Vec<GangId>,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let newest = self.nodes.get(node).is_some_and(|n| n.generation == report.held);
        if !newest && !is_planted(Planted::OldReportBelieved) {
            return;
        }
        let mut absent: Vec<(MemberKey, End)> = Vec::new();
        for id in self.on_node.get(node).into_iter().flatten() {
            let Some(gang) = self.gangs.get(id) else { continue };
            for (member, state) in gang.members_on(node) {
                let key = MemberKey { gang: id.clone(), epoch: gang.epoch, member };
                let listed = report.members.iter().any(|(reported, _)| *reported == key);
                if listed {
                    continue;
                }
                let end = match &state.phase {
                    // It comes from a node that has lost its files: no more of its logs will come.
                    Phase::Ended(end) => End { logs_complete: true, ..end.clone() },
                    _ => End {
                        how: EndHow::Failed { reason: "its agent has no such member".to_owned() },
                        asked: gang.state == GangState::Stopping,
                        last_output: String::new(),
                        logs_complete: true,
                    },
                };
                absent.push((key, end));
            }
        }
        for (key, end) in absent {
            if self.apply_phase(&key, Phase::Ended(end), now, out) {
                touched.push(key.gang);
            }
        }
    }

    /// What Ray says of the gang, and how the entrypoint came on.
    fn apply_facts(&mut self, facts: GangFacts, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(&facts.gang).cloned() else { return };
        let key = (gang.job.clone(), gang.attempt);
        if let Some(attempt) = self.attempts.get(&key)
            && facts.ray.is_some()
            && attempt.ray != facts.ray
        {
            let mut attempt = Attempt::clone(attempt);
            attempt.ray = facts.ray;
            self.put(Write::Attempt(Arc::new(attempt)), out);
        }
        if self.is_cluster(&gang.job) {
            return self.apply_cluster_facts(&gang, facts.ready, facts.entrypoints, now, out);
        }
        let operation = self.jobs.get(&gang.job).map(|job| job.operation(gang.attempt));
        let fact = facts.entrypoints.into_iter().find(|(id, _)| Some(id) == operation.as_ref());
        let fact = fact.map(|(_, fact)| fact);
        // An entrypoint that has run says that the cluster was ready, even if it is not any more.
        let was_ready = facts.ready || !matches!(fact, None | Some(EntrypointFact::Waiting));
        if was_ready && gang.state == GangState::Starting {
            self.set_gang_state(&gang.id, GangState::Ready, now, out);
        }
        match fact {
            None | Some(EntrypointFact::Waiting) => {}
            Some(EntrypointFact::Running) => self.mark_running(&gang.job, now, out),
            Some(EntrypointFact::Succeeded) => {
                self.mark_running(&gang.job, now, out);
                self.end_attempt(&gang.job, Outcome::Succeeded, "gangline", now, out);
            }
            Some(EntrypointFact::Failed { cause }) => {
                // A member that died first is the cause; the entrypoint is its consequence.
                self.evaluate(&gang.id, now, out);
                // It may have been the last word of an attempt that was over, and the next one is
                // assigned already: that one has no entrypoint yet.
                if self.gangs.get(&gang.id).is_none_or(|now| now.epoch != gang.epoch) {
                    return;
                }
                self.mark_running(&gang.job, now, out);
                self.end_attempt(&gang.job, Outcome::Failed { cause }, "gangline", now, out);
            }
        }
    }

    pub(super) fn mark_running(&mut self, job: &JobId, now: Timestamp, out: &mut Effects) {
        if self.jobs.get(job).is_some_and(|job| job.state == JobState::Starting) {
            self.set_job_state(job, JobState::Running, "gangline", "running".to_owned(), now, out);
        }
    }

    pub(super) fn set_gang_state(
        &mut self,
        id: &GangId,
        state: GangState,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if let Some(gang) = self.gangs.get(id) {
            let mut gang = Gang::clone(gang);
            gang.state = state;
            gang.since = now;
            if state == GangState::Stopped {
                gang.keeps = false;
                gang.members.values_mut().for_each(|member| member.kept = false);
            }
            self.put(Write::Gang(Arc::new(gang)), out);
        }
    }

    /// Draws the conclusion from the members' phases.
    pub(super) fn evaluate(&mut self, id: &GangId, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(id).cloned() else { return };
        match gang.state {
            GangState::Starting | GangState::Ready => self.evaluate_live(&gang, now, out),
            GangState::Stopping => self.settle(id, now, out),
            GangState::Stopped => {}
        }
    }

    fn evaluate_live(&mut self, gang: &Gang, now: Timestamp, out: &mut Effects) {
        // Of one that is held it is known how it came out.
        let job = self.jobs.get(&gang.job).filter(|job| job.state != JobState::Held);
        let Some(launcher) = job.map(|job| job.request.launcher) else { return };
        if let Some(outcome) = self.outcome_of_members(gang, launcher) {
            if launcher == Launcher::Command && outcome == Outcome::Succeeded {
                self.mark_running(&gang.job, now, out);
            }
            self.quarantine_busy_ports(gang, now);
            self.end_attempt(&gang.job, outcome, "gangline", now, out);
            return;
        }
        let all_up = gang
            .members
            .values()
            .all(|member| matches!(member.phase, Phase::Running { .. } | Phase::Ended(_)));
        if launcher == Launcher::Command && all_up {
            if gang.state == GangState::Starting {
                self.set_gang_state(&gang.id, GangState::Ready, now, out);
            }
            self.mark_running(&gang.job, now, out);
        }
    }

    /// The outcome that the members' ends decide, if they do.
    fn outcome_of_members(&self, gang: &Gang, launcher: Launcher) -> Option<Outcome> {
        let mut successes = 0;
        for (id, member) in &gang.members {
            let Phase::Ended(end) = &member.phase else { continue };
            if launcher == Launcher::Command && end.is_success() {
                successes += 1;
                continue;
            }
            match &end.how {
                EndHow::Refused { reason, busy_port: Some(_) } => {
                    return Some(Outcome::RolledBack { cause: reason.clone() });
                }
                EndHow::Unfit { reason } => {
                    let node = self.node_names(std::slice::from_ref(&member.node));
                    let cause = format!("{node} is not fit to start it: {reason}");
                    return Some(Outcome::RolledBack { cause });
                }
                _ => {}
            }
            return Some(Outcome::Failed { cause: self.cause(*id, &member.node, end, launcher) });
        }
        (successes == gang.members.len()).then_some(Outcome::Succeeded)
    }

    /// "rank 1 on gpu-2: Ray worker exited with code 1: raylet [exit code=-9]".
    fn cause(&self, id: MemberId, node: &NodeId, end: &End, launcher: Launcher) -> String {
        let node = self.node_names(std::slice::from_ref(node));
        let who = match (id, launcher) {
            (MemberId::Head, _) => format!("Ray head on {node}"),
            (MemberId::Rank(rank), Launcher::Ray) => format!("Ray worker of rank {rank} on {node}"),
            (MemberId::Rank(rank), Launcher::Command) => format!("rank {rank} on {node}"),
        };
        let mut text = format!("{who} {}", end.sentence());
        let last = end.last_output.trim();
        if !last.is_empty() {
            let shown: String = last.chars().take(400).collect();
            text = format!("{text}: {shown}");
        }
        text
    }

    fn quarantine_busy_ports(&mut self, gang: &Gang, now: Timestamp) {
        for member in gang.members.values() {
            let Phase::Ended(End { how: EndHow::Refused { busy_port: Some(_), .. }, .. }) =
                &member.phase
            else {
                continue;
            };
            let network = self.nodes.get(&member.node).and_then(|n| n.inventory.as_ref());
            if let Some(network) = network.map(|inventory| inventory.network()) {
                self.quarantine.push(Quarantine {
                    network,
                    block: member.ports,
                    until_ms: now.boot_ms + QUARANTINE_MS,
                });
            }
        }
    }

    /// The attempt is over: its outcome is fixed, and every member is told to stop, or on a standing
    /// cluster what runs of this attempt.
    pub(super) fn end_attempt(
        &mut self,
        job_id: &JobId,
        outcome: Outcome,
        actor: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(job_id).cloned() else { return };
        if !job.state.may_become(JobState::Stopping) {
            return;
        }
        if job.cluster.is_some() {
            return self.end_guest(&job, outcome, GuestPhase::Stopping, actor, now, out);
        }
        if job.state == JobState::Held {
            let Some((outcome, why)) = self.end_of_hold(&job, &outcome, actor) else { return };
            let said = format!("{}; no longer kept up: {why}", outcome.sentence());
            return self.finish_attempt(&job, outcome, said, actor, now, out);
        }
        if let Some(gang) = self.gangs.get(&job.gang).cloned()
            && self.holds_up(&job, &gang, &outcome)
        {
            return self.hold_up(&job, &gang, outcome, now, out);
        }
        let said = outcome.sentence();
        self.finish_attempt(&job, outcome, said, actor, now, out);
    }

    /// The end of an attempt on a gang of its own; `said` is the reason that people read.
    pub(super) fn finish_attempt(
        &mut self,
        job: &Job,
        outcome: Outcome,
        said: String,
        actor: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(gang) = self.gangs.get(&job.gang).cloned() else { return };
        if let Some(attempt) = self.attempts.get(&(job.id.clone(), gang.attempt)) {
            let mut attempt = Attempt::clone(attempt);
            attempt.ended = Some(now);
            attempt.outcome = Some(outcome.clone());
            self.count_usage(&attempt, now, out);
            self.count_run(&attempt, now, out);
            self.put(Write::Attempt(Arc::new(attempt)), out);
        }
        let mut stopping = job.clone();
        if matches!(outcome, Outcome::RolledBack { .. }) {
            stopping.attempts = stopping.attempts.saturating_sub(1);
        }
        stopping.outcome = Some(outcome.clone());
        // After a hold no other attempt follows.
        let is_over = job.state == JobState::Held && self.is_last(job);
        let keeps = !is_over && self.keeps_nodes(&stopping, &outcome);
        self.put(Write::Job(Arc::new(stopping)), out);
        if keeps {
            self.put(Write::Gang(Arc::new(Gang { keeps, ..Gang::clone(&gang) })), out);
        } else {
            self.release_kept(&gang.id, now, out);
        }
        self.set_job_state(&job.id, JobState::Stopping, actor, said, now, out);
        self.set_gang_state(&gang.id, GangState::Stopping, now, out);
        if !is_planted(Planted::GenerationForgotten) {
            self.touch_nodes(&gang.nodes(), out);
        }
        self.end_guests_of(job, &outcome, actor, now, out);
        self.settle(&gang.id, now, out);
    }

    /// Ends a stopping gang when all of it has ended with evidence, and its job when all of it
    /// that can answer has. A lost node keeps its share, not the job.
    pub(super) fn settle(&mut self, id: &GangId, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(id).cloned() else { return };
        if gang.state != GangState::Stopping {
            return;
        }
        let stopping_ms = now.boot_ms.saturating_sub(gang.since.boot_ms);
        let keeps = gang.keeps && stopping_ms < KEPT_MS;
        if gang.keeps && !keeps {
            self.release_kept(id, now, out);
        }
        let waited = stopping_ms >= LOGS_GRACE_MS;
        let given_up = stopping_ms >= LOGS_LIMIT_MS;
        let (mut all_done, mut job_done) = (true, true);
        for member in gang.members.values() {
            let (ended, complete) = match &member.phase {
                Phase::Ended(end) => (true, end.logs_complete),
                _ => (false, false),
            };
            let node = self.nodes.get(&member.node);
            let lost = node.is_none_or(|n| n.reachability == Reachability::Lost || n.revoked);
            all_done &= ended && (complete || given_up);
            job_done &= (ended && (complete || waited)) || lost;
            all_done |= lost && is_planted(Planted::LostIsStopped);
        }
        let Some(job) = self.jobs.get(&gang.job).cloned() else { return };
        let Some(outcome) = job.outcome.clone() else { return };
        // Nothing is gained by looking for a cause before another attempt can begin.
        let early = job_done && !matches!(outcome, Outcome::Evacuated { .. });
        let mut ends = job.state == JobState::Stopping && (all_done || early);
        let mut outcome = outcome;
        if ends {
            outcome = self.with_first_cause(&gang, outcome, out);
            match self.outcome_with_verdict(&gang, &job, outcome, now, out) {
                Some(decided) => outcome = decided,
                None => return,
            }
            ends = all_done || outcome.terminal_state().is_some();
        }
        if all_done || ends {
            self.finish_guests_of(id, now, out);
        }
        if all_done {
            self.close_account(id, now, out);
            self.set_gang_state(id, GangState::Stopped, now, out);
            self.touch_nodes(&gang.nodes(), out);
            self.ask_for_scheduling();
        }
        // Attempt n+1 may start only when every node of attempt n is free of it.
        if ends {
            self.end_job(&gang.job, &outcome, now, out);
            if outcome == Outcome::Succeeded {
                self.trust_after(&gang, now, out);
                self.refute_findings(&gang, now, out);
            }
            match outcome.terminal_state() {
                None if keeps => self.go_on(&gang, now, out),
                _ => self.release_kept(id, now, out),
            }
        }
    }

    /// A member that died by itself is the cause even when its consequence, the entrypoint's end, was
    /// heard of first. One that ended well did not die.
    fn with_first_cause(&mut self, gang: &Gang, outcome: Outcome, out: &mut Effects) -> Outcome {
        let launcher = self.jobs.get(&gang.job).map(|job| job.request.launcher);
        let (Outcome::Failed { cause: heard }, Some(Launcher::Ray)) = (&outcome, launcher) else {
            return outcome;
        };
        let causes = gang.members.iter().filter_map(|(id, member)| match &member.phase {
            Phase::Ended(end) if !end.asked && end.how != (EndHow::Exited { code: 0 }) => {
                Some(self.cause(*id, &member.node, end, Launcher::Ray))
            }
            _ => None,
        });
        let causes: Vec<String> = causes.collect();
        let Some(first) = causes.first().filter(|_| !causes.contains(heard)) else {
            return outcome;
        };
        let outcome = Outcome::Failed { cause: format!("{first}; then {heard}") };
        let attempt = self.attempts.get(&(gang.job.clone(), gang.attempt));
        if let Some(attempt) = attempt.filter(|a| a.outcome.as_ref() != Some(&outcome)) {
            let attempt = Attempt { outcome: Some(outcome.clone()), ..Attempt::clone(attempt) };
            self.put(Write::Attempt(Arc::new(attempt)), out);
        }
        outcome
    }

    /// Looks at every stopping gang again: nodes become lost, log graces run out.
    pub(super) fn settle_stopping(&mut self, now: Timestamp, out: &mut Effects) {
        for id in self.stopping_gangs.clone() {
            self.settle(&id, now, out);
        }
    }

    /// Start time-outs: an agent that says nothing, and a Ray cluster that does not get ready.
    pub(super) fn expire_starts(&mut self, now: Timestamp, out: &mut Effects) {
        for id in self.starting_gangs.clone() {
            let Some(gang) = self.gangs.get(&id).cloned() else { continue };
            let Some(job) = self.jobs.get(&gang.job).cloned() else { continue };
            // While the coordinator was away nobody could tell it anything.
            let since = gang.since.boot_ms.max(self.started_ms);
            let waited = now.boot_ms.saturating_sub(since);
            let silent: BTreeSet<NodeId> = gang
                .members
                .values()
                .filter(|member| member.phase == Phase::Assigned)
                .map(|member| member.node.clone())
                .collect();
            let cause = if !silent.is_empty() && waited >= ACKNOWLEDGE_MS {
                let names = self.node_names(&Vec::from_iter(silent));
                format!("not acknowledged within {} s by {names}", ACKNOWLEDGE_MS / 1000)
            } else if waited >= job.request.start_timeout_ms {
                let missing = self.missing(&gang);
                format!("not ready within {} s: {missing}", job.request.start_timeout_ms / 1000)
            } else {
                continue;
            };
            self.end_attempt(&gang.job, Outcome::Failed { cause }, "gangline", now, out);
        }
    }

    /// The members that are not up, and the nodes that Ray has not seen.
    fn missing(&self, gang: &Gang) -> String {
        let ray = self
            .attempts
            .get(&(gang.job.clone(), gang.attempt))
            .and_then(|attempt| attempt.ray.as_ref());
        let mut missing = Vec::new();
        for (id, member) in &gang.members {
            let node = self.node_names(std::slice::from_ref(&member.node));
            let joined = ray.is_some_and(|r| r.nodes.iter().any(|n| n.member == *id && n.alive));
            match member.phase {
                Phase::Running { .. } if joined => {}
                Phase::Running { .. } => missing.push(format!("{id} on {node} has not joined Ray")),
                _ => missing.push(format!("{id} on {node} is not running")),
            }
        }
        missing.join(", ")
    }
}
