//! The invariants of the reliability page, judged from process tables, ledgers and the disk, and not
//! from the books of the cores that are tested. The names I1 to I21 are that page's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, JobId, MemberKey, NodeId, PortBlock};
use gangline_core::Core;
use gangline_core::accounts::Spent;
use gangline_core::effect::{Desired, Push, Write};
use gangline_core::gang::{EndHow, Gang, GangState, Phase};
use gangline_core::invariants::violations;
use gangline_core::job::{HISTORY_LIMIT, JobState, Outcome};
use gangline_core::node::{Lifecycle, Node, Reachability};

use crate::agent::{Contact, Hash};
use crate::books::Counted;
use crate::disk::{Disk, Key};
use crate::process::Process;
use crate::world::World;

/// What a stopping member may take beyond its grace on a node on which nothing is wrong: the repeat
/// of a Stop, a session that was given up, the longest sweep.
const KILL_BOUND_MS: u64 = 60_000;
/// What a start may take beyond its own limit.
const START_SLACK_MS: u64 = 5_000;
const ACKNOWLEDGE_MS: u64 = 120_000;

/// What has been seen so far.
#[derive(Debug, Default)]
pub struct Checks {
    pub decisions: Hash,
    /// Sessions that the server ended, until the core knows.
    pub ending: BTreeMap<u64, usize>,

    // As the coordinator's core has it now; a crash takes it back to the disk.
    pub jobs: BTreeMap<JobId, JobState>,
    gangs: BTreeMap<GangId, Arc<Gang>>,
    pub nodes: BTreeMap<NodeId, Arc<Node>>,
    pub books: Counted,
    /// When the job entered its state.
    since_ms: BTreeMap<JobId, u64>,

    // What was committed at any time.
    committed: BTreeMap<GangId, Epoch>,
    /// Highest incarnation that was told to stop, since when, and its grace.
    stopped: BTreeMap<GangId, (Epoch, u64)>,
    ended: BTreeSet<MemberKey>,
    pub acknowledged: BTreeSet<JobId>,
    /// With their order of submission: an id may be given to another job.
    pub cancelled: BTreeSet<(JobId, u64)>,
    /// Gangs about which a restored store knows less than was.
    pub diverged: BTreeSet<GangId>,
    /// Jobs of which a restored store knows fewer attempts than there were.
    diverged_jobs: BTreeSet<String>,
    /// Jobs whose hold was answered, and nobody has asked for their release.
    pub on_hold: BTreeSet<JobId>,
    /// Jobs that have ever succeeded.
    pub succeeded: BTreeSet<JobId>,
    pub submitted_ms: BTreeMap<JobId, u64>,
    /// How often a job made room since a moment.
    pub made_room: BTreeMap<JobId, (u64, u32)>,
    /// Since when a job runs, or ran at last.
    pub running_ms: BTreeMap<JobId, u64>,

    // What the machines have.
    started: BTreeSet<MemberKey>,
    entrypoints: BTreeSet<String>,
    gpus: BTreeMap<GpuId, MemberKey>,
    alive: BTreeMap<GangId, BTreeMap<Epoch, u32>>,
    held: BTreeMap<usize, Generation>,
    commits: u64,
}

impl Checks {
    /// Adds a push to the decisions: who is told what.
    pub fn note_push(&mut self, push: &Push) {
        self.decisions.add(push.node.as_str().as_bytes());
        self.decisions.add(&push.generation.n.to_be_bytes());
        for desired in &push.gangs {
            let (gang, epoch, kind) = match desired {
                Desired::Run { gang, .. } => (&gang.id, gang.epoch, 1),
                Desired::Stop { gang, epoch, .. } => (gang, *epoch, 2),
            };
            self.decisions.add(gang.as_str().as_bytes());
            self.decisions.add(&epoch.n.to_be_bytes());
            self.decisions.add(&[kind]);
        }
    }

    /// Whether an order to end this incarnation was ever committed.
    fn is_condemned(&self, key: &MemberKey) -> bool {
        self.stopped.get(&key.gang).is_some_and(|(epoch, _)| *epoch >= key.epoch)
            || self.committed.get(&key.gang).is_some_and(|epoch| *epoch > key.epoch)
    }
}

/// The allowed graph, written apart from the core's own.
fn may_follow(before: JobState, after: JobState) -> bool {
    use JobState::*;
    before == after
        || matches!(
            (before, after),
            (Pending, Starting | Failed | Cancelled)
                | (Starting, Running | Stopping | Pending)
                | (Running, Stopping | Held)
                | (Held, Stopping)
                | (Stopping, Pending | Succeeded | Failed | Cancelled | Timeout)
        )
}

impl World<'_> {
    // ------------------------------------------------------------ the coordinator's writes

    /// Looks at the writes of a step, from number `from` of the batch.
    pub fn check_writes(&mut self, from: usize) {
        let Some(coordinator) = &self.coordinator else { return };
        let writes = coordinator.batch_from(from);
        for write in writes {
            match write {
                Write::Job(job) => self.check_job(&job),
                Write::Gang(gang) => self.check_gang(gang),
                Write::Node(node) => self.check_node(node),
                Write::Attempt(attempt) => self.check_attempt(&attempt),
                Write::Spent(spent) => self.check_line(&spent),
                Write::ForgetJob { id } => self.check_forgotten(&id),
                Write::ForgetGang { id } => {
                    self.checks.gangs.remove(&id);
                }
                _ => {}
            }
        }
    }

    fn check_job(&mut self, job: &gangline_core::job::Job) {
        let before = self.checks.jobs.insert(job.id.clone(), job.state);
        if before == Some(job.state) {
            return;
        }
        self.checks.since_ms.insert(job.id.clone(), self.now_ms);
        self.checks.decisions.add(job.id.as_str().as_bytes());
        self.checks.decisions.add(job.state.word().as_bytes());
        self.tally.note(match job.state {
            JobState::Pending if before.is_none() => "job: PENDING",
            JobState::Pending => "job: back to PENDING",
            JobState::Starting => "job: STARTING",
            JobState::Running => "job: RUNNING",
            JobState::Stopping => "job: STOPPING",
            JobState::Held => "job: HELD",
            JobState::Succeeded => "job: SUCCEEDED",
            JobState::Failed => "job: FAILED",
            JobState::Cancelled => "job: CANCELLED",
            JobState::Timeout => "job: TIMEOUT",
        });
        match (before, job.state) {
            (None, _) => {
                self.checks.submitted_ms.insert(job.id.clone(), self.now_ms);
            }
            (Some(JobState::Pending), JobState::Starting) => self.check_begins(job),
            (Some(JobState::Pending), JobState::Failed) => self.check_failed_in_queue(job),
            (_, JobState::Running) => {
                self.checks.running_ms.insert(job.id.clone(), self.now_ms);
            }
            (_, JobState::Succeeded) => {
                self.checks.succeeded.insert(job.id.clone());
            }
            _ => {}
        }
        if let Some(before) = before
            && !may_follow(before, job.state)
        {
            self.fail(|| format!("I6: {} went from {before:?} to {:?}", job.id, job.state));
        }
        let said = job.history.last().map(|entry| entry.state.as_str());
        if said != Some(job.state.word()) {
            self.fail(|| format!("I6: the history of {} does not say {:?}", job.id, job.state));
        }
        if job.history.len() > HISTORY_LIMIT {
            self.fail(|| format!("I16: the history of {} has no bound", job.id));
        }
        let again = matches!(job.state, JobState::Starting | JobState::Running);
        let cancelled = self.checks.cancelled.contains(&(job.id.clone(), job.sequence));
        if again && before != Some(JobState::Starting) && cancelled {
            self.fail(|| format!("I7: {} was cancelled and starts", job.id));
        }
        if job.state == JobState::Stopping
            && let (Some(Outcome::TimedOut { .. }), Some(limit), Some(started)) =
                (&job.outcome, job.request.timeout_ms, job.started)
        {
            let ran_ms = self.clock.at(self.now_ms).boot_ms.checked_sub(started.boot_ms);
            // Over a start of the machine only the wall clock tells how long it ran.
            if ran_ms.is_some_and(|ran_ms| ran_ms < limit) && !self.weather.has_rebooted {
                self.fail(|| format!("I15: {} timed out after {ran_ms:?} of {limit} ms", job.id));
            }
        }
    }

    fn check_gang(&mut self, gang: Arc<Gang>) {
        let before = self.checks.gangs.get(&gang.id).cloned();
        if let Some(before) = &before
            && gang.epoch < before.epoch
        {
            self.fail(|| format!("I3: the epoch of {} went back to {}", gang.id, gang.epoch));
        }
        let is_new = before.as_ref().is_none_or(|before| before.epoch < gang.epoch);
        for (member, share) in &gang.members {
            let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member: *member };
            if is_new {
                self.check_openness(&key, &share.node);
            }
            if let Phase::Ended(end) = &share.phase {
                let known = before.as_ref().and_then(|before| before.members.get(member));
                if known.is_some_and(|known| !matches!(known.phase, Phase::Ended(_))) {
                    self.note_given_up(&end.how);
                }
                let node = self.nodes.iter().find(|node| node.id == share.node);
                let process = node.and_then(|node| node.processes.get(&key));
                if process.is_some_and(Process::is_alive) {
                    self.fail(|| format!("I2: {key} counts as ended, and its processes live"));
                }
            }
        }
        if is_new {
            self.check_placement(&gang);
            let over = self.coordinator.as_ref().and_then(|c| over_quota(&c.core));
            if let Some(over) = over {
                self.fail(|| over);
            }
        }
        let now = self.clock.at(self.now_ms);
        self.checks.books.see_gang(&gang, self.now_ms, now);
        self.checks.gangs.insert(gang.id.clone(), gang);
    }

    /// What an allocation cost is the time in which its GPUs were held.
    fn check_line(&mut self, spent: &Spent) {
        let differs = self.checks.books.see_line(spent, self.now_ms);
        // Over a start of the machine only the wall clock tells how long it was.
        if let Some(differs) = differs.filter(|_| !self.weather.has_rebooted) {
            self.fail(|| differs);
        }
        self.tally.note("line of the books compared");
    }

    fn note_given_up(&mut self, how: &EndHow) {
        let EndHow::GivenUp { reason } = how else { return };
        if reason.ends_with("(fence)") {
            self.tally.note("member of a lost node given up: fence");
        } else if reason.contains("(stop_after") {
            self.tally.note("member of a lost node given up: stop_after");
        }
    }

    /// I12: a node that is closed gets no new member.
    fn check_openness(&mut self, key: &MemberKey, node: &NodeId) {
        let Some(node) = self.checks.nodes.get(node) else { return };
        if node.cordon.is_some() || node.lifecycle != Lifecycle::Online || node.revoked {
            let (name, lifecycle) = (node.name.clone(), node.lifecycle);
            self.fail(|| format!("I12: {key} was placed on {name}, cordoned or {lifecycle:?}"));
        }
    }

    fn check_node(&mut self, node: Arc<Node>) {
        let before = self.checks.nodes.get(&node.id);
        if before.is_some_and(|before| before.generation > node.generation) {
            self.fail(|| format!("the generation of {} went back", node.id));
        }
        if node.history.len() > HISTORY_LIMIT {
            self.fail(|| format!("I16: the history of {} has no bound", node.id));
        }
        if node.reachability == Reachability::Lost {
            self.tally.note("node: lost");
        }
        self.checks.nodes.insert(node.id.clone(), node);
    }

    /// A drain stops nothing before its deadline, and who makes room for others has to.
    fn check_attempt(&mut self, attempt: &gangline_core::job::Attempt) {
        let Some(Outcome::Preempted { cause, .. }) = &attempt.outcome else { return };
        let Some(gang) = self.checks.gangs.get(&attempt.gang) else { return };
        let ends_now = gang.epoch == attempt.epoch
            && matches!(gang.state, GangState::Starting | GangState::Ready);
        if !ends_now || attempt.guest.is_some() {
            return;
        }
        if !cause.contains("was drained") {
            return self.check_made_room(attempt);
        }
        let now = self.clock.at(self.now_ms);
        let is_due = gang.nodes().iter().any(|id| {
            let drain = self.checks.nodes.get(id).and_then(|node| node.drain.as_ref());
            drain.is_some_and(|drain| {
                let waited = now.boot_ms.saturating_sub(drain.since.boot_ms);
                drain.deadline_ms.is_some_and(|deadline| waited >= deadline)
            })
        });
        self.tally.note("job preempted by a drain");
        if !is_due {
            self.fail(|| format!("I12: {} was drained before a deadline", attempt.job));
        }
    }

    fn check_forgotten(&mut self, job: &JobId) {
        let state = self.checks.jobs.remove(job);
        self.checks.since_ms.remove(job);
        // Its id may be given to another one.
        self.checks.on_hold.remove(job);
        if !state.is_some_and(JobState::is_terminal) || !self.users.asked_to_delete(job) {
            self.fail(|| format!("I5: {job} is gone in state {state:?}"));
        }
    }

    /// Looks at one write that has just become durable.
    pub fn check_committed(&mut self, write: &Write) {
        let Write::Gang(gang) = write else { return };
        let committed = self.checks.committed.entry(gang.id.clone()).or_insert(gang.epoch);
        *committed = gang.epoch.max(*committed);
        if matches!(gang.state, GangState::Stopping | GangState::Stopped) {
            let stopped = (gang.epoch, self.now_ms);
            let known = self.checks.stopped.entry(gang.id.clone()).or_insert(stopped);
            if known.0 < gang.epoch {
                *known = stopped;
            }
        }
        for (member, share) in &gang.members {
            if matches!(share.phase, Phase::Ended(_)) {
                let (gang, epoch) = (gang.id.clone(), gang.epoch);
                self.checks.ended.insert(MemberKey { gang, epoch, member: *member });
            }
        }
    }

    // ------------------------------------------------------------ starts and restarts

    /// What a start found on the disk: everything that was acknowledged.
    pub fn check_after_start(&mut self) {
        self.checks.books.crashed();
        let Some(coordinator) = &self.coordinator else { return };
        let core = &coordinator.core;
        self.checks.jobs = core.jobs().map(|job| (job.id.clone(), job.state)).collect();
        self.checks.gangs = core.gangs().map(|gang| (gang.id.clone(), gang.clone())).collect();
        self.checks.nodes = core.nodes().map(|node| (node.id.clone(), node.clone())).collect();
        let now_ms = self.now_ms;
        self.checks.since_ms = self.checks.jobs.keys().map(|id| (id.clone(), now_ms)).collect();
        let lost: Vec<JobId> = self
            .checks
            .acknowledged
            .iter()
            .filter(|id| !self.checks.jobs.contains_key(*id) && !self.users.asked_to_delete(id))
            .cloned()
            .collect();
        if !lost.is_empty() {
            self.fail(|| format!("I5: acknowledged jobs are gone after a start: {lost:?}"));
        }
        let broken = self.coordinator.as_ref().map(|c| violations(&c.core)).unwrap_or_default();
        if !broken.is_empty() {
            self.fail(|| format!("after a start: {broken:?}"));
        }
    }

    /// F46: what the older copy does not know was never promised by it. No gang of which it knows
    /// less than was may be judged by it.
    pub fn checks_after_restore(&mut self, older: &Disk) {
        self.checks.books.restored();
        let core = older.core(self.clock.at(self.now_ms), self.settings.codec);
        let known: BTreeMap<GangId, Arc<Gang>> =
            core.gangs().map(|gang| (gang.id.clone(), gang.clone())).collect();
        for (id, epoch) in &self.checks.committed {
            let same = known.get(id).is_some_and(|gang| {
                let stopped = self.checks.stopped.get(id).map(|(epoch, _)| *epoch);
                gang.epoch == *epoch
                    && (stopped != Some(*epoch)
                        || matches!(gang.state, GangState::Stopping | GangState::Stopped))
            });
            if !same {
                self.checks.diverged.insert(id.clone());
            }
        }
        for key in self.disk.records.keys().filter(|key| !older.records.contains_key(key)) {
            if let Key::Attempt(job, _) = key {
                self.checks.diverged_jobs.insert(job.to_string());
            }
        }
        let jobs: BTreeSet<JobId> = core.jobs().map(|job| job.id.clone()).collect();
        self.checks.acknowledged.retain(|id| jobs.contains(id));
        self.checks.cancelled.clear();
        self.checks.on_hold.clear();
        self.checks.submitted_ms.clear();
        self.checks.running_ms.clear();
        self.users.jobs.retain(|id, _| jobs.contains(id));
        self.users.forget_requests();
    }

    // ------------------------------------------------------------ agents and processes

    /// An agent is about to start a member.
    pub fn check_start(&mut self, node: usize, key: &MemberKey) {
        let sim = &self.nodes[node];
        if !self.checks.started.insert(key.clone()) {
            return self.fail(|| format!("I11: {key} was started twice"));
        }
        if let Some(highest) = sim.highest.get(&key.gang)
            && *highest > key.epoch
        {
            let highest = *highest;
            return self.fail(|| format!("I3: {key} starts below epoch {highest}"));
        }
        if self.checks.committed.get(&key.gang).is_none_or(|epoch| *epoch < key.epoch) {
            return self.fail(|| format!("{key} starts, and nothing of it was committed"));
        }
        // An older copy of the store may not know that it was given up.
        if self.checks.ended.contains(key) && !self.checks.diverged.contains(&key.gang) {
            return self.fail(|| format!("I2: {key} starts after it counted as ended"));
        }
        if !sim.ledger.durable.members.contains_key(key) {
            return self.fail(|| format!("I8: {key} starts, and the ledger does not have it"));
        }
        let others = self.checks.alive.get(&key.gang);
        let other = others.and_then(|epochs| epochs.keys().find(|epoch| **epoch != key.epoch));
        if let Some(other) = other.copied()
            && !self.checks.diverged.contains(&key.gang)
        {
            self.fail(|| format!("I4: {key} starts while incarnation {other} lives"));
        }
    }

    /// Processes of a member begin to exist.
    pub fn check_spawn(&mut self, node: usize, key: &MemberKey, process: &Process) {
        self.check_company(node, key, process);
        for gpu in &process.gpus {
            if let Some(other) = self.checks.gpus.insert(gpu.clone(), key.clone()) {
                self.fail(|| format!("I1: {gpu} is used by {other} and by {key}"));
            }
        }
        *self.checks.alive.entry(key.gang.clone()).or_default().entry(key.epoch).or_default() += 1;
    }

    /// Whether another member has ports of the block, which its probe finds out. Only what a restored
    /// store does not know may have them.
    pub fn check_ports(&mut self, node: usize, key: &MemberKey, ports: PortBlock) -> bool {
        let network = self.nodes[node].inventory.network();
        let near = self.nodes.iter().filter(|sim| sim.inventory.network() == network);
        let mut others = near.flat_map(|sim| &sim.processes).filter(|(_, other)| other.is_alive());
        let Some((other, _)) = others.find(|(_, other)| other.ports.overlaps(&ports)) else {
            return false;
        };
        let other = other.clone();
        let known = |gang: &GangId| !self.checks.diverged.contains(gang);
        if known(&other.gang) && known(&key.gang) {
            self.fail(|| format!("ports: {other} and {key} have one block"));
        }
        true
    }

    /// The last process of a member is gone.
    pub fn is_gone(&mut self, node: usize, key: &MemberKey) {
        if let Some(process) = self.nodes[node].processes.get(key) {
            for gpu in &process.gpus {
                self.checks.gpus.remove(gpu);
            }
        }
        if let Some(epochs) = self.checks.alive.get_mut(&key.gang) {
            if let Some(count) = epochs.get_mut(&key.epoch) {
                *count -= 1;
            }
            epochs.retain(|_, count| *count > 0);
        }
        self.checks.alive.retain(|_, epochs| !epochs.is_empty());
        self.guests_gone(key);
    }

    /// I9, I10, F46: nothing is signalled without an order that some store once committed.
    pub fn check_stop(&mut self, node: usize, key: &MemberKey) {
        let alive = self.nodes[node].processes.get(key).is_some_and(Process::is_alive);
        if alive && !self.checks.is_condemned(key) {
            self.fail(|| format!("I10: {key} is stopped, and nobody ordered it"));
        }
    }

    pub fn check_released(&mut self, node: usize, key: &MemberKey) {
        if self.nodes[node].processes.get(key).is_some_and(Process::is_alive) {
            self.fail(|| format!("I8: {key} is released while it lives"));
        }
    }

    /// I8: every process is in the ledger; the agent knows every one.
    pub fn check_agent(&mut self, node: usize) {
        let sim = &self.nodes[node];
        let Some(agent) = &sim.agent else { return };
        for (key, process) in &sim.processes {
            if !process.is_alive() {
                continue;
            }
            let known = agent.core.member(key).is_some_and(|member| member.is_live());
            if !known || !sim.ledger.durable.members.contains_key(key) {
                let key = key.clone();
                return self.fail(|| format!("I8: {key} lives, and its agent does not know it"));
            }
        }
        let seen = sim.ledger.durable.seen.len();
        if seen > gangline_agent_core::MAX_SEEN {
            self.fail(|| format!("I16: {seen} gangs are remembered"));
        }
    }

    /// I11: one submission id is submitted once. I4: nothing of another attempt is left.
    pub fn check_entrypoint(&mut self, incarnation: &(GangId, Epoch), operation: &str) {
        let attempt_of = |operation: &str| {
            let parts: Vec<&str> = operation.splitn(3, '-').collect();
            (parts.first().map(|id| (*id).to_owned()), parts.get(2).map(|s| (*s).to_owned()))
        };
        let name = format!("{} {} {operation}", incarnation.0, incarnation.1);
        if !self.checks.entrypoints.insert(name) {
            self.fail(|| format!("I11: {operation} was submitted twice"));
        }
        let mine = attempt_of(operation);
        // What an older copy of the store does not know runs on until it is found.
        if mine.0.as_ref().is_some_and(|job| self.checks.diverged_jobs.contains(job)) {
            return;
        }
        let known = |gang: &GangId| !self.checks.diverged.contains(gang);
        for (_, cluster) in self.clusters.iter().filter(|((gang, _), _)| known(gang)) {
            let mut guests = cluster.guests.iter().map(|(operation, _)| operation);
            let other = guests.find(|other| *other != operation && attempt_of(other) == mine);
            if let Some(other) = other.cloned() {
                return self.fail(|| format!("I4: {operation} starts while {other} lives"));
            }
        }
    }

    /// What an agent says that it holds only grows.
    pub fn checks_held(&mut self, node: usize, held: Generation) {
        let before = self.checks.held.insert(node, held);
        if before.is_some_and(|before| before > held) {
            self.fail(|| format!("node {node} holds {held}, after {before:?}"));
        }
    }

    // ------------------------------------------------------------ time

    /// I7, I8, I20: what has to end ends in time, where nothing stands in the way.
    pub fn check_time_bounds(&mut self) {
        let now_ms = self.now_ms;
        for sim in &mut self.nodes {
            let link = !sim.link.up.is_cut && !sim.link.down.is_cut;
            let quick = sim.link.up.slow_ms == 0;
            let moves = now_ms >= sim.frozen_until_ms.max(sim.full_until_ms);
            let agent = sim.agent.as_ref();
            let connected = agent.is_some_and(|a| matches!(a.contact, Contact::Connected { .. }));
            if sim.fine_since_ms == u64::MAX && link && quick && moves && connected {
                sim.fine_since_ms = now_ms;
            } else if !(link && quick && moves && connected) {
                sim.fine_since_ms = u64::MAX;
            }
        }
        if !now_ms.is_multiple_of(5_000) && now_ms % 5_000 >= 500 {
            return;
        }
        let Some(coordinator) = &self.coordinator else { return };
        let up_since = coordinator.started_ms;
        let mut late = None;
        for sim in self.nodes.iter().filter(|sim| sim.fine_since_ms != u64::MAX) {
            for (key, process) in sim.processes.iter().filter(|(_, process)| process.is_alive()) {
                let Some((epoch, at_ms)) = self.checks.stopped.get(&key.gang) else { continue };
                let since = (*at_ms).max(sim.fine_since_ms).max(up_since);
                let since = since.max(process.stuck_until_ms);
                let grace_ms = 10_000;
                let is_late = *epoch >= key.epoch && now_ms > since + grace_ms + KILL_BOUND_MS;
                if is_late && !self.checks.diverged.contains(&key.gang) {
                    late = Some(format!("I7: {key} lives {} ms after its Stop", now_ms - since));
                }
            }
        }
        for (job, state) in &self.checks.jobs {
            let since = self.checks.since_ms.get(job).copied().unwrap_or(now_ms).max(up_since);
            let bound = ACKNOWLEDGE_MS + START_SLACK_MS;
            if *state == JobState::Starting && now_ms > since + bound {
                late = Some(format!("I20: {job} is STARTING for {} ms", now_ms - since));
            }
        }
        if let Some(late) = late {
            self.fail(|| late);
        }
    }

    // ------------------------------------------------------------ now and then

    /// Every invariant of the core, and I14: what is on the disk is the core.
    pub fn check_deeply_now_and_then(&mut self) {
        self.checks.commits += 1;
        if self.checks.commits.is_multiple_of(self.settings.deep_every) {
            self.check_deeply();
        }
    }

    pub fn check_deeply(&mut self) {
        let Some(coordinator) = &self.coordinator else { return };
        let mut broken = violations(&coordinator.core);
        broken.extend(over_quota(&coordinator.core));
        let replayed = self.disk.core(self.clock.at(self.now_ms), self.settings.codec);
        let (memory, disk) = (stored(&coordinator.core), stored(&replayed));
        let differs = memory.iter().zip(&disk).find(|(memory, disk)| memory != disk);
        let differs = match differs {
            Some((memory, disk)) => Some(format!("{memory:?} on the disk is {disk:?}")),
            None if memory.len() != disk.len() => Some("one has more".to_owned()),
            None => None,
        };
        if !broken.is_empty() {
            return self.fail(|| format!("the coordinator's books: {broken:?}"));
        }
        if let Some(differs) = differs {
            self.fail(|| format!("I14: the memory and the disk differ: {differs}"));
        }
    }
}

/// I13: what the gangs of a project hold together is within its maximum.
fn over_quota(core: &Core) -> Option<String> {
    let mut held: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    let projects: BTreeMap<&JobId, &str> =
        core.jobs().map(|job| (&job.id, job.project.as_str())).collect();
    let pools: BTreeMap<&NodeId, &str> = core
        .nodes()
        .filter_map(|node| Some((&node.id, node.inventory.as_ref()?.pool.as_str())))
        .collect();
    for gang in core.gangs().filter(|gang| gang.is_live()) {
        for member in gang.members.values().filter(|member| member.holds()) {
            let (Some(project), Some(pool)) = (projects.get(&gang.job), pools.get(&member.node))
            else {
                continue;
            };
            *held.entry((project, pool)).or_default() += member.gpus.len() as u32;
        }
    }
    held.into_iter().find_map(|((project, pool), held)| {
        let record = core.projects().find(|record| record.name == project)?;
        let maximum = record.quotas.get(pool)?.maximum?;
        (held > maximum).then(|| format!("I13: {project} holds {held} GPUs of at most {maximum}"))
    })
}

/// The stored part of a core, in one order.
fn stored(core: &Core) -> Vec<Write> {
    let nodes = core.nodes().map(|node| {
        let mut node = Node::clone(node);
        node.reachability = Reachability::Suspect;
        node.session = None;
        node.health = Default::default();
        node.cleared.clear();
        node.last_word_ms = 0;
        node.held = None;
        node.unknown.clear();
        // Short silences are remembered in memory only.
        node.history.clear();
        Write::Node(Arc::new(node))
    });
    let jobs = core.jobs().cloned().map(Write::Job);
    let attempts = core.attempts().cloned().map(Write::Attempt);
    let gangs = core.gangs().cloned().map(Write::Gang);
    let projects = core.projects().cloned().map(Write::Project);
    let usage = core.usage().cloned().map(Write::Usage);
    let usage = usage.chain(core.accounts().cloned().map(Write::Account));
    jobs.chain(attempts).chain(gangs).chain(nodes).chain(projects).chain(usage).collect()
}
