//! Standing clusters and their guests: jobs that run on the gang of a cluster beside others, each on
//! its part of the cluster's GPUs and CPUs.
//!
//! A guest's attempt goes through phases: its ranks prepare what it needs; its entrypoint runs; or
//! is told to stop; when that has ended every member looks for processes of the attempt (they carry
//! its mark) and says when none is left; then the part is free again. Nobody else's process is
//! touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::ids::{GangId, JobId, MemberId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{DesiredGuest, Effects, Rejected, Write};
use super::event::{EntrypointFact, GuestFact, GuestWord, Submission};
use super::gang::{Gang, GangState};
use super::job::{
    Attempt, Guest, GuestPhase, GuestShare, Job, JobKind, JobRequest, JobState, Outcome, Piece,
};
use super::node::Reachability;

/// Guests of one cluster at a time; further ones wait.
pub const GUEST_LIMIT: usize = 64;
/// An entrypoint that has not ended this long after its grace is swept like what it left behind.
pub const STOP_OVERTIME_MS: u64 = 60_000;
/// Commands, environments and specs of the guests of one cluster that start at a time: they travel
/// together, in one message to the node of the head, which takes at most 1 MiB.
pub const STARTING_BYTES: usize = 384 << 10;
/// CPUs of a guest without GPUs that does not say, in thousandths.
const CPU_GUEST_MILLI: u32 = 1000;

impl Core {
    pub(super) fn is_cluster(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|job| job.is_cluster())
    }

    /// Jobs with an attempt that takes a part of a cluster, by its gang.
    pub(super) fn index_guest(&mut self, attempt: &Attempt) {
        let Some(guest) = &attempt.guest else { return };
        let guests = self.guests.entry(attempt.gang.clone()).or_default();
        if guest.is_live() {
            guests.insert(attempt.job.clone());
        } else {
            guests.remove(&attempt.job);
        }
        if guests.is_empty() {
            self.guests.remove(&attempt.gang);
        }
    }

    // ------------------------------------------------------------ submit

    /// The cluster that a submission names, by id or by name: the newest of the project that has
    /// not ended.
    pub(super) fn cluster_of(&self, submission: &Submission) -> Result<Option<Arc<Job>>, Rejected> {
        let wanted = &submission.request;
        let Some(selector) = &wanted.cluster else { return Ok(None) };
        let stands = |job: &&Arc<Job>| {
            job.is_cluster()
                && job.project == submission.principal.project
                && matches!(job.state, JobState::Pending | JobState::Starting | JobState::Running)
        };
        let live = || self.live_jobs.iter().filter_map(|id| self.jobs.get(id)).filter(stands);
        let by_id = live().find(|job| job.id.as_str() == selector);
        let by_name =
            || live().filter(|job| job.request.name == *selector).max_by_key(|job| job.sequence);
        let cluster = by_id.or_else(by_name).ok_or(Rejected::NoSuchCluster)?;
        let has = &cluster.request;
        if self.bytes_of(wanted, &submission.principal.project) > STARTING_BYTES {
            return Err(Rejected::GuestTooLarge { limit: STARTING_BYTES });
        }
        if wanted.nnodes > has.nnodes_max || wanted.gpus_per_node > has.gpus_per_node {
            return Err(Rejected::ClusterTooSmall {
                cluster: cluster.id.clone(),
                nnodes: has.nnodes_max,
                gpus_per_node: has.gpus_per_node,
            });
        }
        Ok(Some(cluster.clone()))
    }

    /// About what a guest's start takes in a message.
    fn bytes_of(&self, request: &JobRequest, project: &str) -> usize {
        let argv = request.argv.iter().flatten().map(|piece| match piece {
            Piece::Text(text) | Piece::Variable(text) => text.len(),
        });
        let env = request.env.iter().map(|(name, value)| name.len() + value.len());
        let secret = |name: &String| self.secrets.get(&(project.to_owned(), name.clone()));
        let secrets = request.secrets.iter().filter_map(secret);
        let secrets = secrets.map(|secret| secret.name.len() + secret.sealed.0.len());
        let texts = request.spec_json.len() + request.submit_command.len();
        argv.chain(env).chain(secrets).sum::<usize>() + texts
    }

    // ------------------------------------------------------------ start

    /// The ranks that a guest gets, or why it waits, and whether that holds back those behind it. Ranks with the fewest free GPUs come first, so
    /// that whole ones stay free for guests that need them.
    pub(super) fn guest_shares(
        &self,
        job: &Job,
        cluster: &JobId,
    ) -> Result<Vec<GuestShare>, Waits> {
        let Some(cluster) = self.jobs.get(cluster) else {
            return Err(Waits::for_room("its cluster is gone"));
        };
        let name = &cluster.request.name;
        let gang = self.gangs.get(&cluster.gang).filter(|gang| gang.state == GangState::Ready);
        let (JobState::Running, Some(gang)) = (cluster.state, gang) else {
            let word = cluster.state.word();
            let reason = format!("waits for cluster {name}, which is {word}: {}", cluster.reason);
            return Err(Waits::for_room(reason));
        };
        let guests = self.guests.get(&gang.id).map_or(0, BTreeSet::len);
        if guests >= GUEST_LIMIT {
            let reason = format!("{guests} jobs run on cluster {name}, at most {GUEST_LIMIT}");
            return Err(Waits::for_room(reason));
        }
        let starting = self
            .guests_on(&gang.id)
            .into_iter()
            .filter(|(guest, _)| guest.state == JobState::Starting);
        let bytes = |guest: &Job| self.bytes_of(&guest.request, &guest.project);
        let under_way: usize = starting.map(|(guest, _)| bytes(&guest)).sum();
        if under_way > 0 && under_way + bytes(job) > STARTING_BYTES {
            let reason = format!("waits until other jobs have started on cluster {name}");
            return Err(Waits::for_room(reason));
        }
        let taken = self.taken(gang);
        let mut fit = Vec::new();
        let (mut free_gpus, mut large_enough, mut closed) = (0, 0, 0);
        for (id, member) in &gang.members {
            let MemberId::Rank(rank) = *id else { continue };
            let (gpus_taken, cpus_taken) = taken.get(&rank).copied().unwrap_or_default();
            let all = u32::try_from(member.gpus.len()).unwrap_or(u32::MAX);
            let gpus = job.request.gpus_per_node;
            let cpus_milli = guest_cpus(job, member.cpus_milli, all);
            large_enough += usize::from(gpus <= all && cpus_milli <= member.cpus_milli);
            if !self.nodes.get(&member.node).is_some_and(|node| node.is_open()) {
                closed += 1;
                continue;
            }
            let free = all.saturating_sub(gpus_taken);
            free_gpus += free;
            if gpus <= free && cpus_milli <= member.cpus_milli.saturating_sub(cpus_taken) {
                fit.push((free, GuestShare { rank, gpus, cpus_milli }));
            }
        }
        let wanted = job.request.nnodes as usize;
        if fit.len() < wanted {
            let nodes = if wanted == 1 { "node" } else { "nodes" };
            let need = need_words(job);
            if large_enough < wanted {
                let reason = format!(
                    "needs {wanted} {nodes} with {need}; cluster {name} has {large_enough} that large"
                );
                return Err(Waits { reason, holds_back: false });
            }
            let fits = if fit.len() == 1 { "fits" } else { "fit" };
            let closed = match closed {
                0 => String::new(),
                1 => ", 1 node takes nothing new".to_owned(),
                closed => format!(", {closed} nodes take nothing new"),
            };
            return Err(Waits::for_room(format!(
                "needs {wanted} {nodes} with {need} free on cluster {name}; {} {fits} now, and \
                 {free_gpus} GPUs are free{closed}",
                fit.len(),
            )));
        }
        fit.sort_by_key(|(free, share)| (*free, share.rank));
        let mut shares: Vec<GuestShare> = fit.into_iter().take(wanted).map(|(_, s)| s).collect();
        shares.sort_by_key(|share| share.rank);
        Ok(shares)
    }

    /// GPUs and CPUs that guests hold, by rank of the cluster. A rank that has nothing left of a guest
    /// is free of it, whatever the others still look for.
    fn taken(&self, gang: &Gang) -> BTreeMap<u32, (u32, u32)> {
        let mut taken: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for (_, attempt) in self.guests_on(&gang.id) {
            let Some(guest) = &attempt.guest else { continue };
            let swept = |share: &&GuestShare| {
                guest.phase == GuestPhase::Sweeping
                    && guest.done.contains(&MemberId::Rank(share.rank))
            };
            for share in guest.shares.iter().filter(|share| !swept(share)) {
                let (gpus, cpus) = taken.entry(share.rank).or_default();
                *gpus = gpus.saturating_add(share.gpus);
                *cpus = cpus.saturating_add(share.cpus_milli);
            }
        }
        taken
    }

    /// The guests that hold a part of a gang, with their live attempts.
    pub(super) fn guests_on(&self, gang: &GangId) -> Vec<(Arc<Job>, Arc<Attempt>)> {
        let ids = self.guests.get(gang).into_iter().flatten();
        let live = ids.filter_map(|id| {
            let job = self.jobs.get(id)?;
            let attempt = self.attempts.get(&(id.clone(), job.attempts))?;
            attempt.guest.as_ref()?.is_live().then(|| (job.clone(), attempt.clone()))
        });
        live.collect()
    }

    pub(super) fn desired_guests(&self, gang: &Gang) -> Vec<DesiredGuest> {
        let guests = self.guests_on(&gang.id).into_iter();
        let desired = guests.filter_map(|(job, attempt)| {
            let phase = attempt.guest.as_ref()?.phase;
            // Once its entrypoint is to end, nobody needs them, and they may be deleted.
            let secrets = match phase {
                GuestPhase::Preparing | GuestPhase::Running => self.secrets_of(&job)?,
                GuestPhase::Stopping | GuestPhase::Sweeping | GuestPhase::Over => Vec::new(),
            };
            Some(DesiredGuest { job, attempt, secrets })
        });
        desired.collect()
    }

    /// The guest's attempt and its part of the cluster: one transaction, before anybody is told.
    pub(super) fn let_in(
        &mut self,
        job: &Job,
        shares: Vec<GuestShare>,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(gang) = self.gangs.get(&job.gang).cloned() else { return };
        let number = job.attempts + 1;
        let ranks: Vec<String> = shares.iter().map(|share| share.rank.to_string()).collect();
        let attempt = Attempt {
            job: job.id.clone(),
            number,
            gang: gang.id.clone(),
            epoch: gang.epoch,
            started: now,
            ended: None,
            outcome: None,
            verdict: None,
            ray: None,
            guest: Some(Guest {
                shares,
                phase: GuestPhase::Preparing,
                since: now,
                done: BTreeSet::new(),
                log_bytes: None,
            }),
        };
        let mut started = job.clone();
        started.attempts = number;
        started.outcome = None;
        self.put(Write::Job(Arc::new(started)), out);
        self.put(Write::Attempt(Arc::new(attempt)), out);
        let name = self.jobs.get(&gang.job).map_or("", |cluster| &cluster.request.name);
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        let reason = format!("starting on {word} {} of cluster {name}", ranks.join(", "));
        self.set_job_state(&job.id, JobState::Starting, "gangline", reason, now, out);
        self.touch_gang(&gang.id, out);
    }

    // ------------------------------------------------------------ reports

    /// What the cluster's head says: that the cluster stands, and how its guests came on.
    pub(super) fn apply_cluster_facts(
        &mut self,
        gang: &Gang,
        ready: bool,
        facts: Vec<(String, EntrypointFact)>,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if ready && gang.state == GangState::Starting {
            self.set_gang_state(&gang.id, GangState::Ready, now, out);
            self.mark_running(&gang.job, now, out);
            self.ask_for_scheduling();
        }
        let facts: BTreeMap<String, EntrypointFact> = facts.into_iter().collect();
        for (job, attempt) in self.guests_on(&gang.id) {
            // Nobody was told to submit it yet.
            if attempt.guest.as_ref().is_some_and(|guest| guest.phase == GuestPhase::Preparing) {
                continue;
            }
            let operation = job.operation(attempt.number);
            let outcome = match facts.get(&operation) {
                None | Some(EntrypointFact::Waiting) => continue,
                Some(EntrypointFact::Running) => {
                    if job.state == JobState::Starting {
                        self.mark_running(&job.id, now, out);
                        // The head only watches it from now on, and others may start.
                        self.touch_gang(&gang.id, out);
                        self.ask_for_scheduling();
                    }
                    continue;
                }
                Some(EntrypointFact::Succeeded) => Outcome::Succeeded,
                Some(EntrypointFact::Failed { cause }) => Outcome::Failed { cause: cause.clone() },
            };
            self.mark_running(&job.id, now, out);
            let Some(job) = self.jobs.get(&job.id).cloned() else { continue };
            self.end_guest(&job, outcome, GuestPhase::Sweeping, "gangline", now, out);
        }
    }

    /// A member has done its part of a guest's phase.
    pub(super) fn on_guest_word(&mut self, word: GuestWord, now: Timestamp, out: &mut Effects) {
        let found = self
            .guests_on(&word.key.gang)
            .into_iter()
            .find(|(job, attempt)| job.operation(attempt.number) == word.operation);
        let Some((job, attempt)) = found else { return };
        let Some(mut guest) = attempt.guest.clone() else { return };
        match (word.fact, guest.phase) {
            (GuestFact::Prepared, GuestPhase::Preparing) => {}
            (GuestFact::Failed { reason }, GuestPhase::Preparing) => {
                let node = self
                    .gangs
                    .get(&word.key.gang)
                    .and_then(|gang| Some(gang.members.get(&word.key.member)?.node.clone()));
                let node = node.map(|node| self.node_names(&[node])).unwrap_or_default();
                let outcome = Outcome::Failed { cause: format!("on {node}: {reason}") };
                let phase = GuestPhase::Sweeping;
                return self.end_guest(&job, outcome, phase, "gangline", now, out);
            }
            (GuestFact::Swept { log_bytes }, GuestPhase::Sweeping) => {
                guest.log_bytes = guest.log_bytes.or(log_bytes);
            }
            // Of an earlier phase, said again.
            (GuestFact::Prepared | GuestFact::Failed { .. } | GuestFact::Swept { .. }, _) => return,
        }
        if !guest.done.insert(word.key.member) {
            return;
        }
        let prepared = guest.phase == GuestPhase::Preparing
            && guest.shares.iter().all(|share| guest.done.contains(&MemberId::Rank(share.rank)));
        if prepared {
            self.put_guest(&attempt, guest.enters(GuestPhase::Running, now), out);
            self.touch_gang(&job.gang, out);
            return;
        }
        self.put_guest(&attempt, guest, out);
        self.settle_guest(&job.id, now, out);
    }

    fn touch_gang(&mut self, gang: &GangId, out: &mut Effects) {
        if let Some(nodes) = self.gangs.get(gang).map(|gang| gang.nodes()) {
            self.touch_nodes(&nodes, out);
        }
    }

    // ------------------------------------------------------------ the end

    /// The attempt's outcome is fixed, if it was not yet, and it enters `phase` if that is later
    /// than the one it is in.
    pub(super) fn end_guest(
        &mut self,
        job: &Job,
        outcome: Outcome,
        phase: GuestPhase,
        actor: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(attempt) = self.attempts.get(&(job.id.clone(), job.attempts)).cloned() else {
            return;
        };
        let Some(guest) = attempt.guest.clone().filter(Guest::is_live) else { return };
        if job.state.may_become(JobState::Stopping) {
            let mut ended = Attempt::clone(&attempt);
            ended.ended = Some(now);
            ended.outcome = Some(outcome.clone());
            self.put(Write::Attempt(Arc::new(ended)), out);
            let mut stopping = Job::clone(job);
            stopping.outcome = Some(outcome.clone());
            self.put(Write::Job(Arc::new(stopping)), out);
            self.set_job_state(&job.id, JobState::Stopping, actor, outcome.sentence(), now, out);
        }
        // What was not yet submitted has no entrypoint that could be stopped.
        let phase = match guest.phase {
            GuestPhase::Preparing => GuestPhase::Sweeping,
            _ => phase,
        };
        if guest.phase.is_before(phase)
            && let Some(attempt) = self.attempts.get(&(job.id.clone(), job.attempts)).cloned()
        {
            self.put_guest(&attempt, guest.enters(phase, now), out);
            self.touch_gang(&job.gang, out);
        }
        self.settle_guest(&job.id, now, out);
    }

    fn put_guest(&mut self, attempt: &Attempt, guest: Guest, out: &mut Effects) {
        let attempt = Attempt { guest: Some(guest), ..attempt.clone() };
        self.put(Write::Attempt(Arc::new(attempt)), out);
    }

    /// Ends a guest when every member that can answer has said that nothing of it is left. One that
    /// is lost is still asked when it comes back, and keeps its share until then.
    fn settle_guest(&mut self, id: &JobId, now: Timestamp, out: &mut Effects) {
        let Some(job) = self.jobs.get(id).cloned() else { return };
        let Some(attempt) = self.attempts.get(&(id.clone(), job.attempts)).cloned() else { return };
        let Some(guest) = attempt.guest.as_ref().filter(|g| g.phase == GuestPhase::Sweeping) else {
            return;
        };
        let Some(gang) = self.gangs.get(&job.gang).cloned() else { return };
        let (mut all_clean, mut job_done) = (true, true);
        for (member, state) in &gang.members {
            let clean = guest.done.contains(member) || !state.phase.holds_resources();
            let node = self.nodes.get(&state.node);
            let lost = node.is_none_or(|n| n.reachability == Reachability::Lost || n.revoked);
            all_clean &= clean;
            job_done &= clean || lost;
        }
        // A new attempt may start only when nothing of this one is left anywhere.
        let back_to_queue = job.outcome.as_ref().is_some_and(|o| o.terminal_state().is_none());
        if all_clean {
            self.finish_guest(&job, &attempt, now, out);
        } else if job_done && !back_to_queue {
            self.end_guest_job(&job, now, out);
        }
    }

    /// Nothing of the attempt is left on any node.
    fn finish_guest(&mut self, job: &Job, attempt: &Attempt, now: Timestamp, out: &mut Effects) {
        let Some(guest) = attempt.guest.clone() else { return };
        self.put_guest(attempt, guest.enters(GuestPhase::Over, now), out);
        if let Some(cluster) = &job.cluster {
            self.last_guest_ms.insert(cluster.clone(), now.boot_ms);
        }
        self.end_guest_job(job, now, out);
        self.touch_gang(&job.gang, out);
        self.ask_for_scheduling();
    }

    fn end_guest_job(&mut self, job: &Job, now: Timestamp, out: &mut Effects) {
        if job.state == JobState::Stopping {
            let outcome = job.outcome.clone().unwrap_or(Outcome::Succeeded);
            self.end_job(&job.id, &outcome, now, out);
        }
    }

    /// A cluster that ends takes its guests along.
    pub(super) fn end_guests_of(
        &mut self,
        cluster: &Job,
        outcome: &Outcome,
        actor: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let name = &cluster.request.name;
        let why = format!("its cluster {name} ended: {}", outcome.sentence());
        for (job, _) in self.guests_on(&cluster.gang) {
            let outcome = match outcome {
                Outcome::Cancelled { actor, .. } => {
                    Outcome::Cancelled { actor: actor.clone(), reason: why.clone() }
                }
                // The cluster comes back, and its guests with it.
                Outcome::Preempted { .. }
                | Outcome::Retried { .. }
                | Outcome::Evacuated { .. }
                | Outcome::RolledBack { .. } => {
                    Outcome::Preempted { cause: why.clone(), keeps_nodes: false }
                }
                Outcome::Succeeded | Outcome::Failed { .. } | Outcome::TimedOut { .. } => {
                    Outcome::Failed { cause: why.clone() }
                }
            };
            self.end_guest(&job, outcome, GuestPhase::Stopping, actor, now, out);
        }
    }

    /// The cluster's members have ended, and with them every process of a guest.
    pub(super) fn finish_guests_of(&mut self, gang: &GangId, now: Timestamp, out: &mut Effects) {
        for (job, attempt) in self.guests_on(gang) {
            self.finish_guest(&job, &attempt, now, out);
        }
    }

    /// Guests that still wait for a cluster that has ended.
    pub(super) fn fail_waiting_guests(&mut self, cluster: &Job, now: Timestamp, out: &mut Effects) {
        let waits = |job: &&Arc<Job>| job.cluster.as_ref() == Some(&cluster.id);
        let waiting = self.queue.guests().filter(waits).map(|job| job.id.clone());
        let waiting: Vec<JobId> = waiting.collect();
        let cause = format!("its cluster {} ended: {}", cluster.request.name, cluster.reason);
        for id in waiting {
            self.end_job(&id, &Outcome::Failed { cause: cause.clone() }, now, out);
        }
    }

    // ------------------------------------------------------------ time

    /// Starts and stops that take too long, and nodes that have become lost.
    pub(super) fn expire_guests(&mut self, now: Timestamp, out: &mut Effects) {
        let gangs: Vec<GangId> = self.guests.keys().cloned().collect();
        for (job, attempt) in gangs.iter().flat_map(|gang| self.guests_on(gang)).collect::<Vec<_>>()
        {
            let Some(guest) = &attempt.guest else { continue };
            // While the coordinator was away nobody could tell it anything, nor be told.
            let since = guest.since.boot_ms.max(self.started_ms);
            let waited = now.boot_ms.saturating_sub(since);
            let patience = job.request.start_timeout_ms;
            match guest.phase {
                GuestPhase::Preparing | GuestPhase::Running
                    if job.state == JobState::Starting && waited >= patience =>
                {
                    let missing = self.unprepared(&job, guest);
                    let seconds = patience / 1000;
                    let cause = format!("its entrypoint did not run within {seconds} s{missing}");
                    let outcome = Outcome::Failed { cause };
                    self.end_guest(&job, outcome, GuestPhase::Stopping, "gangline", now, out);
                }
                GuestPhase::Stopping if waited >= job.request.grace_ms + STOP_OVERTIME_MS => {
                    let outcome = job.outcome.clone().unwrap_or(Outcome::Succeeded);
                    self.end_guest(&job, outcome, GuestPhase::Sweeping, "gangline", now, out);
                }
                GuestPhase::Sweeping => self.settle_guest(&job.id, now, out),
                GuestPhase::Preparing
                | GuestPhase::Running
                | GuestPhase::Stopping
                | GuestPhase::Over => {}
            }
        }
    }

    /// The nodes that have not said that what the guest needs is there.
    fn unprepared(&self, job: &Job, guest: &Guest) -> String {
        if guest.phase != GuestPhase::Preparing {
            return String::new();
        }
        let members = self.gangs.get(&job.gang).map(|gang| &gang.members);
        let ranks = guest.shares.iter().map(|share| MemberId::Rank(share.rank));
        let missing = ranks.filter(|rank| !guest.done.contains(rank));
        let nodes = missing.filter_map(|rank| Some(members?.get(&rank)?.node.clone()));
        format!(": nothing was heard of {}", self.node_names(&nodes.collect::<Vec<_>>()))
    }

    /// Clusters that nobody used for as long as their spec says.
    pub(super) fn expire_idle_clusters(&mut self, now: Timestamp, out: &mut Effects) {
        let idle = |job: &Arc<Job>| {
            let JobKind::Cluster { idle_stop_ms: Some(limit) } = job.request.kind else {
                return None;
            };
            let gang = self.gangs.get(&job.gang).filter(|gang| gang.state == GangState::Ready)?;
            let waiting = self.queue.guests();
            let mut waiting = waiting.filter(|guest| guest.cluster.as_ref() == Some(&job.id));
            if self.guests.contains_key(&gang.id) || waiting.next().is_some() {
                return None;
            }
            let last = self.last_guest_ms.get(&job.id).copied().unwrap_or(0);
            let since = gang.since.boot_ms.max(self.started_ms).max(last);
            (now.boot_ms.saturating_sub(since) >= limit).then(|| (job.id.clone(), limit))
        };
        let running = self.timed_jobs.iter().filter_map(|id| self.jobs.get(id));
        let idle: Vec<(JobId, u64)> = running.filter_map(idle).collect();
        for (id, limit) in idle {
            let reason = format!("no job ran on it for {} s", limit / 1000);
            let outcome = Outcome::Cancelled { actor: "gangline".to_owned(), reason };
            self.end_attempt(&id, outcome, "gangline", now, out);
        }
    }
}

/// Why a guest waits.
pub(super) struct Waits {
    pub reason: String,
    /// Those behind it wait until it has started; not behind one that never can.
    pub holds_back: bool,
}

impl Waits {
    fn for_room(reason: impl Into<String>) -> Self {
        Waits { reason: reason.into(), holds_back: true }
    }
}

/// What a guest asks for, else the share of the rank's CPUs that goes with its GPUs.
fn guest_cpus(job: &Job, all_milli: u32, all_gpus: u32) -> u32 {
    let gpus = job.request.gpus_per_node;
    match job.request.cpus_milli {
        Some(cpus) => cpus,
        None if gpus > 0 && all_gpus > 0 => {
            let share = u64::from(all_milli) * u64::from(gpus) / u64::from(all_gpus);
            u32::try_from(share).unwrap_or(u32::MAX)
        }
        None => CPU_GUEST_MILLI.min(all_milli),
    }
}

fn need_words(job: &Job) -> String {
    let cpus = job.request.cpus_milli.map(|milli| format!("{} CPUs", f64::from(milli) / 1000.0));
    let gpus = match job.request.gpus_per_node {
        0 => None,
        1 => Some("1 GPU".to_owned()),
        gpus => Some(format!("{gpus} GPUs")),
    };
    match (gpus, cpus) {
        (Some(gpus), Some(cpus)) => format!("{gpus} and {cpus}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "1 CPU".to_owned(),
    }
}
