//! The loop: the next thing that happens, the core's step, and what the agents make of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use gangline_common::ids::{Epoch, GangId, JobId};
use gangline_common::time::Timestamp;
use gangline_core::Core;
use gangline_core::credential::{Principal, Role};
use gangline_core::effect::{Answer, Effects, Push, Rejected, Write};
use gangline_core::event::{Event, Submission};
use gangline_core::job::{Job as CoreJob, JobKind, JobRequest, JobState, Launcher, OnDisconnect};
use gangline_core::policy::Policy;
use gangline_core::projects::{DEFAULT_MAX_PRIORITY, ProjectChange, Quota};
use gangline_core::recovery::Retry;
use gangline_core::stall::HangPolicy;

use crate::agents::{Agents, ChangeKind};
use crate::fleet::{self, Fleet};
use crate::report::{JobTimes, Outcome, Replay, Sums, summarise};
use crate::workload::{Group, Job, Workload};

/// While jobs wait, the core looks at the clock at least this often.
const LOOK_EVERY_MS: u64 = 300_000;
/// When nothing runs and nothing arrives, what still waits after this long waits for ever.
const GIVE_UP_MS: u64 = 86_400_000;
/// Words of life come at least this often; a node without is suspect.
const WORD_EVERY_MS: u64 = 1_000;
/// Ended jobs that the core remembers, as it does in life; older ones are deleted.
const REMEMBERED: usize = 2_000;
/// Steps between two words of progress.
const PROGRESS_EVERY: u64 = 2_048;
/// Where the clocks stand at the first arrival.
const BEGIN: Timestamp = Timestamp { boot_ms: 1_000_000_000, wall_ms: 1_800_000_000_000 };

/// How a workload is replayed.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub policy: Policy,
    /// Jobs make a training checkpoint after each such time of running; what came after the last
    /// one is lost when a job is preempted. Zero for jobs that lose nothing.
    pub checkpoint_every_ms: u64,
}

/// How far a replay is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Jobs that have ended.
    pub ended: usize,
    pub jobs: usize,
}

/// A replay that would not be true: the core did what agents and users rely on it not to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the replay went wrong at {at_ms} ms: {what}")]
pub struct Failure {
    pub at_ms: u64,
    pub what: String,
}

/// Replays `workload` on `fleet`; `progress` is called now and then.
///
/// # Errors
/// The core refused what it must take, or lost a job.
pub fn replay(
    workload: &Workload,
    fleet: &Fleet,
    settings: Settings,
    progress: impl FnMut(Progress),
) -> Result<Replay, Failure> {
    let begun = Instant::now();
    let mut loop_ = Loop::new(workload, fleet, settings, progress);
    loop_.join_fleet()?;
    loop_.run()?;
    let unfinished = loop_.unfinished()?;
    let node_gpus = fleet.node_gpus();
    let offered = workload.offered(fleet);
    Ok(summarise(Outcome {
        policy: settings.policy.word(),
        nodes: fleet.nodes().len(),
        gpus: fleet.gpus(),
        offered,
        workload,
        times: loop_.lives.iter().map(|life| life.times).collect(),
        sums: loop_.sums,
        unfinished,
        node_gpus,
        took_s: begun.elapsed().as_secs_f64(),
    }))
}

/// What became of a job so far.
#[derive(Debug, Clone, Default)]
struct Life {
    times: JobTimes,
    /// Work that is safe in a training checkpoint.
    saved_ms: u64,
    run: Option<Box<Run>>,
    over: bool,
}

/// One attempt on its nodes.
#[derive(Debug, Clone)]
struct Run {
    epoch: Epoch,
    nodes: Vec<usize>,
    gpus: u64,
    /// Since when all members are up.
    since_ms: Option<u64>,
    stopped_ms: Option<u64>,
}

struct Loop<'a, P> {
    workload: &'a Workload,
    fleet: &'a Fleet,
    settings: Settings,
    progress: P,
    core: Core,
    agents: Agents,
    /// Since the first arrival.
    now_ms: u64,
    last_word_ms: u64,
    lives: Vec<Life>,
    /// The next arrival; those before it are submitted.
    arrival: usize,
    /// The core has as many live jobs as it takes: arrivals wait at its door.
    full: bool,
    /// When a run ends unless it is interrupted: time, job, epoch.
    ends: BinaryHeap<Reverse<(u64, usize, u32)>>,
    /// When a run makes its next training checkpoint: time, job, epoch. Only where the core asks
    /// what would be lost: nobody is sent back unless GPUs are guaranteed to somebody.
    saves: BinaryHeap<Reverse<(u64, usize, u32)>>,
    save_every_ms: Option<u64>,
    pushes: VecDeque<Push>,
    effects: Effects,
    remembered: VecDeque<JobId>,
    requests: BTreeMap<(u32, u32, u32), Arc<JobRequest>>,
    running: usize,
    live: usize,
    ended: usize,
    cut: Vec<(usize, String)>,
    sums: Sums,
}

impl<'a, P: FnMut(Progress)> Loop<'a, P> {
    fn new(workload: &'a Workload, fleet: &'a Fleet, settings: Settings, progress: P) -> Self {
        let mut core = Core::new(1, BEGIN);
        core.set_policy(settings.policy);
        // Nobody watches; those that are left in the end are asked then.
        core.set_explaining(false);
        let lives = workload.jobs.iter().map(|job| Life {
            times: JobTimes { submit_ms: job.submit_ms, ..JobTimes::default() },
            ..Life::default()
        });
        let lent = fleet.quotas().iter().any(|quota| quota.guaranteed > 0);
        Loop {
            workload,
            fleet,
            settings,
            progress,
            core,
            agents: Agents::new(fleet),
            now_ms: 0,
            last_word_ms: 0,
            lives: lives.collect(),
            arrival: 0,
            full: false,
            ends: BinaryHeap::new(),
            saves: BinaryHeap::new(),
            save_every_ms: Some(settings.checkpoint_every_ms).filter(|every| *every > 0 && lent),
            pushes: VecDeque::new(),
            effects: Effects::default(),
            remembered: VecDeque::new(),
            requests: BTreeMap::new(),
            running: 0,
            live: 0,
            ended: 0,
            cut: Vec::new(),
            sums: Sums::default(),
        }
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, Failure> {
        Err(Failure { at_ms: self.now_ms, what: what.into() })
    }

    fn join_fleet(&mut self) -> Result<(), Failure> {
        for (index, spec) in self.fleet.nodes().iter().enumerate() {
            let Some(events) = fleet::join_events(index, spec, BEGIN) else {
                return self.fail(format!("{} cannot join", spec.name));
            };
            for event in events {
                self.step(event)?;
            }
        }
        // Whoever was allowed a high priority in life is allowed it here.
        let mut highest: BTreeMap<&str, u8> = BTreeMap::new();
        for group in &self.workload.groups {
            let known = highest.entry(&group.project).or_insert(DEFAULT_MAX_PRIORITY);
            *known = group.priority.max(*known);
        }
        let mut changes: BTreeMap<&str, ProjectChange> = BTreeMap::new();
        for (project, priority) in highest.into_iter().filter(|(_, p)| *p > DEFAULT_MAX_PRIORITY) {
            changes.entry(project).or_default().max_priority = Some(priority);
        }
        for quota in self.fleet.quotas() {
            let (guaranteed, maximum) = (quota.guaranteed, quota.maximum);
            let change = changes.entry(&quota.project).or_default();
            change.quotas.insert(quota.pool.clone(), Some(Quota { guaranteed, maximum }));
        }
        for (project, change) in changes {
            let (name, change) = (project.to_owned(), Box::new(change));
            let actor = fleet::operator();
            self.step(Event::SetProject { request: 0, name, change, actor })?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut idle_since = None;
        while let Some(at) = self.next_time(&mut idle_since) {
            self.pass_time(at);
            let looked = self.sums.events;
            while let Some(Reverse((due, job, epoch))) = self.ends.peek().copied()
                && due <= self.now_ms
            {
                self.ends.pop();
                self.finish(job, epoch)?;
            }
            while let Some(Reverse((due, job, epoch))) = self.saves.peek().copied()
                && due <= self.now_ms
            {
                self.saves.pop();
                self.save(job, epoch)?;
            }
            while !self.full
                && let Some(job) = self.workload.jobs.get(self.arrival)
                && job.submit_ms <= self.now_ms
            {
                self.submit(self.arrival, job)?;
            }
            if self.sums.events == looked {
                self.step(Event::Tick)?;
            }
        }
        Ok(())
    }

    /// When something happens next; `None` when nothing ever will.
    fn next_time(&self, idle_since: &mut Option<u64>) -> Option<u64> {
        let arrival = self.workload.jobs.get(self.arrival).filter(|_| !self.full);
        let arrival = arrival.map(|job| job.submit_ms.max(self.now_ms));
        let end = self.ends.peek().map(|Reverse((at, _, _))| *at);
        let save = self.saves.peek().map(|Reverse((at, _, _))| *at);
        let known = [arrival, end, save].into_iter().flatten().min();
        let waiting = self.live > self.running;
        let look = self.now_ms + LOOK_EVERY_MS;
        match known {
            Some(at) => {
                *idle_since = None;
                Some(if waiting { at.min(look) } else { at })
            }
            None if waiting => {
                let since = *idle_since.get_or_insert(self.now_ms);
                (look - since <= GIVE_UP_MS).then_some(look)
            }
            None => None,
        }
    }

    fn pass_time(&mut self, at: u64) {
        let passed = u128::from(at - self.now_ms);
        self.sums.busy += u128::from(self.agents.busy) * passed;
        let last_arrival = self.workload.span_ms();
        let before = u128::from(at.min(last_arrival) - self.now_ms.min(last_arrival));
        self.sums.busy_arrivals += u128::from(self.agents.busy) * before;
        self.sums.free += u128::from(self.fleet.gpus() - self.agents.busy) * before;
        self.sums.scattered += u128::from(self.agents.scattered) * before;
        self.now_ms = at;
        if at - self.last_word_ms >= WORD_EVERY_MS {
            self.last_word_ms = at;
            self.core.hear_from_all(BEGIN.plus_ms(at));
        }
    }

    fn submit(&mut self, index: usize, job: &Job) -> Result<(), Failure> {
        let (nnodes, gpus_per_node) = job.demand.shape(self.fleet.node_gpus());
        let Some(group) = self.workload.groups.get(job.group as usize) else {
            return self.fail("a job of no group");
        };
        let request = self
            .requests
            .entry((job.group, nnodes, gpus_per_node))
            .or_insert_with(|| Arc::new(request_of(group, nnodes, gpus_per_node)))
            .clone();
        let (Some(id), Some(gang)) = (job_id(index), gang_id(index)) else {
            return self.fail("no id for a job");
        };
        let submission = Submission {
            job: id,
            gang,
            token_seed: [0; 32],
            principal: Principal {
                user: group.user.clone(),
                project: group.project.clone(),
                role: Role::Member,
                from: None,
            },
            idempotency: None,
            request,
            after: Vec::new(),
            node_test: None,
        };
        self.step(Event::Submit { request: 1, submission: Box::new(submission) })?;
        if !self.full {
            self.arrival += 1;
        }
        Ok(())
    }

    /// A run has come to its end, unless it was stopped before.
    fn finish(&mut self, index: usize, epoch: u32) -> Result<(), Failure> {
        let Some(run) = self.lives.get(index).and_then(|life| life.run.as_ref()) else {
            return Ok(());
        };
        if run.epoch.n != epoch || run.stopped_ms.is_some() {
            return Ok(());
        }
        let Some(gang) = gang_id(index) else { return Ok(()) };
        let nodes = run.nodes.clone();
        for node in &nodes {
            self.agents.finish(*node, &gang);
        }
        // All ranks end at once; nothing that the core makes of the first is told before the last.
        for node in nodes {
            self.report(node)?;
        }
        self.deliver()
    }

    /// A run makes a training checkpoint, unless it was stopped before.
    fn save(&mut self, index: usize, epoch: u32) -> Result<(), Failure> {
        let Some(run) = self.lives.get(index).and_then(|life| life.run.as_ref()) else {
            return Ok(());
        };
        let (Some(gang), Some(every_ms)) = (gang_id(index), self.save_every_ms) else {
            return Ok(());
        };
        if run.epoch.n != epoch || run.stopped_ms.is_some() {
            return Ok(());
        }
        let nodes = run.nodes.clone();
        self.saves.push(Reverse((self.now_ms + every_ms, index, epoch)));
        for node in nodes {
            if self.agents.save(node, &gang, self.now_ms) {
                self.report(node)?;
            }
        }
        self.deliver()
    }

    fn report(&mut self, node: usize) -> Result<(), Failure> {
        match self.agents.report(node, self.now_ms) {
            Some(event) => self.take(event),
            None => Ok(()),
        }
    }

    /// One event, and everything that follows from it at the same instant.
    fn step(&mut self, event: Event) -> Result<(), Failure> {
        self.take(event)?;
        self.deliver()
    }

    /// What the core wants of the agents reaches them, and they answer, until all is quiet.
    fn deliver(&mut self) -> Result<(), Failure> {
        while let Some(push) = self.pushes.pop_front() {
            let changes = self.agents.handle_push(push);
            let node = changes.first().map(|change| change.node);
            for change in changes {
                let Some(index) = index_of(change.gang.as_str()) else { continue };
                match change.kind {
                    ChangeKind::Started => {
                        self.member_up(index, change.epoch, change.node, change.gpus);
                    }
                    ChangeKind::Stopped => self.member_stopped(index),
                }
            }
            if let Some(node) = node {
                self.report(node)?;
            }
        }
        self.forget_old()
    }

    fn member_up(&mut self, index: usize, epoch: Epoch, node: usize, gpus: u32) {
        let Some(job) = self.workload.jobs.get(index) else { return };
        let Some(life) = self.lives.get_mut(index) else { return };
        let (wanted, _) = job.demand.shape(self.fleet.node_gpus());
        let run = life.run.get_or_insert_with(|| {
            self.running += 1;
            Box::new(Run { epoch, nodes: Vec::new(), gpus: 0, since_ms: None, stopped_ms: None })
        });
        run.nodes.push(node);
        run.gpus += u64::from(gpus);
        if run.nodes.len() == wanted as usize {
            run.since_ms = Some(self.now_ms);
            life.times.start_ms.get_or_insert(self.now_ms);
            let left = job.duration_ms.saturating_sub(life.saved_ms);
            self.ends.push(Reverse((self.now_ms + left, index, epoch.n)));
            let save = self
                .save_every_ms
                .map(|every_ms| Reverse((self.now_ms + every_ms, index, epoch.n)));
            self.saves.extend(save);
        }
    }

    fn member_stopped(&mut self, index: usize) {
        if let Some(run) = self.lives.get_mut(index).and_then(|life| life.run.as_mut()) {
            run.stopped_ms.get_or_insert(self.now_ms);
        }
    }

    /// One step of the core.
    fn take(&mut self, event: Event) -> Result<(), Failure> {
        let mut out = std::mem::take(&mut self.effects);
        self.core.step(event, BEGIN.plus_ms(self.now_ms), &mut out);
        self.sums.events += 1;
        if self.sums.events.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(Progress { ended: self.ended, jobs: self.workload.jobs.len() });
        }
        for (_, answer) in out.replies.drain(..) {
            match answer {
                Answer::Submitted { .. } => self.live += 1,
                Answer::Rejected(Rejected::Full { .. }) => self.full = true,
                Answer::Rejected(rejected) => return self.fail(format!("refused: {rejected:?}")),
                Answer::Done
                | Answer::Stopping
                | Answer::Explained(_)
                | Answer::Queue(_)
                | Answer::Spent(..)
                | Answer::Deleted { .. }
                | Answer::Connected
                | Answer::Joined { .. } => {}
            }
        }
        for write in out.writes.drain(..) {
            if let Write::Job(job) = write {
                self.see(&job);
            }
        }
        self.pushes.extend(out.pushes.drain(..));
        if let Some(close) = out.closes.first() {
            return self.fail(format!("the session of {} was closed", close.node));
        }
        out.seen.clear();
        self.effects = out;
        self.sums.queue_max = self.sums.queue_max.max(self.live - self.running.min(self.live));
        Ok(())
    }

    /// A job as the core has just written it.
    fn see(&mut self, job: &CoreJob) {
        // Most writes only say anew why a job waits.
        if job.state == JobState::Pending && job.attempts == 0 {
            return;
        }
        let Some(index) = index_of(job.id.as_str()) else { return };
        let now_ms = self.now_ms;
        let every = self.settings.checkpoint_every_ms;
        let Some(life) = self.lives.get_mut(index) else { return };
        match job.state {
            JobState::Pending => {
                let Some(run) = life.run.take_if(|run| run.stopped_ms.is_some()) else { return };
                self.running -= 1;
                let stopped = run.stopped_ms.unwrap_or(now_ms);
                let ran = run.since_ms.map_or(0, |since| stopped - since);
                let kept = ran.checked_div(every).map_or(ran, |times| times * every);
                life.saved_ms += kept;
                self.sums.lost += u128::from(ran - kept) * u128::from(run.gpus);
                self.sums.preemptions += 1;
            }
            state if state.is_terminal() && !life.over => {
                life.over = true;
                if life.run.take().is_some() {
                    self.running -= 1;
                }
                if state == JobState::Succeeded {
                    life.times.end_ms = Some(now_ms);
                    self.sums.last_end_ms = now_ms;
                } else {
                    let reason = format!("{}: {}", state.word(), job.reason);
                    self.cut.push((index, reason));
                }
                self.live -= 1;
                self.ended += 1;
                self.full = false;
                self.remembered.push_back(job.id.clone());
            }
            _ => {}
        }
    }

    fn forget_old(&mut self) -> Result<(), Failure> {
        while self.remembered.len() > REMEMBERED {
            let Some(job) = self.remembered.pop_front() else { break };
            self.take(Event::DeleteJob { request: 0, job, actor: fleet::operator() })?;
        }
        Ok(())
    }

    /// Jobs that have not come to their end, with what the core says of them, in order.
    fn unfinished(&mut self) -> Result<Vec<(usize, String)>, Failure> {
        let mut unfinished = std::mem::take(&mut self.cut);
        if self.live > 0 {
            self.core.set_explaining(true);
            self.core.set_policy(self.settings.policy);
            self.step(Event::Tick)?;
        }
        for job in self.core.jobs().filter(|job| !job.state.is_terminal()) {
            let why = self.core.why(&job.id).map_or(job.reason.as_str(), |why| why);
            let index = index_of(job.id.as_str());
            unfinished.extend(index.map(|index| (index, why.to_owned())));
        }
        let kept_out = self.arrival..self.workload.jobs.len();
        unfinished.extend(kept_out.map(|index| (index, "the queue is full".to_owned())));
        unfinished.sort();
        Ok(unfinished)
    }
}

fn job_id(index: usize) -> Option<JobId> {
    JobId::new(format!("j{index}")).ok()
}

fn gang_id(index: usize) -> Option<GangId> {
    GangId::new(format!("g{index}")).ok()
}

/// The job of an id that [`job_id`] or [`gang_id`] made.
fn index_of(id: &str) -> Option<usize> {
    id.get(1..)?.parse().ok()
}

fn request_of(group: &Group, nnodes: u32, gpus_per_node: u32) -> JobRequest {
    JobRequest {
        name: group.name.clone(),
        kind: JobKind::Job,
        hold: false,
        not_before_ms: None,
        max_wait_ms: None,
        priority: group.priority,
        cluster: None,
        nnodes,
        nnodes_max: nnodes,
        gpus_per_node,
        cpus_milli: None,
        memory_bytes: None,
        pools: group.pools.clone(),
        node_labels: BTreeMap::new(),
        exclusive: None,
        topology: None,
        gpu_models: group.gpu_models.clone(),
        exclude_nodes: Vec::new(),
        launcher: Launcher::Command,
        argv: Vec::new(),
        env: Vec::new(),
        secrets: Vec::new(),
        workdir: None,
        tree: None,
        job_directory: None,
        checkpoint_directory: None,
        directories: Vec::new(),
        grace_ms: 0,
        start_timeout_ms: u64::MAX,
        timeout_ms: group.timeout_ms,
        preemptible: false,
        min_runtime_ms: None,
        log_files: Vec::new(),
        log_bytes: None,
        on_disconnect: OnDisconnect::Keep { no_witness: false },
        retry: Retry::default(),
        hang: HangPolicy::default(),
        hold_on_failure_ms: None,
        spec_json: String::new(),
        submit_command: String::new(),
    }
}
