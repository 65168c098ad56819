//! Why a job waits, when it will start, and what would help: asked of the checks that decide.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use gangline_common::ids::{JobId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::capacity::{Slot, SlotIndex};
use super::constraints::is_exclusive;
use super::effect::{Answer, Effects, Rejected};
use super::event::RequestId;
use super::forecast::{UNKNOWN_MS, is_overdue};
use super::holdings::{HeldShare, Holding};
use super::job::{Job, JobRequest, JobState};
use super::order::Standing;
use super::placement::{Amount, Room, fit, mismatch, shares, unfit};
use super::preemption::gpus_of;

/// Nodes that a look into the future may visit; beyond it no start is foretold.
const FORESIGHT: usize = 2_000_000;

/// What somebody wants to know.
#[derive(Debug, Clone)]
pub enum Question {
    /// Why a job is where it is.
    Job(JobId),
    /// What would become of a job that nobody has submitted.
    Plan(Box<Job>),
    /// The waiting jobs in the order in which they are looked at.
    Queue,
    /// What the allocations that there are have cost so far.
    Spent,
}

/// A job's situation.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub job: Arc<Job>,
    pub verdict: Verdict,
    /// Absent for a job that does not wait.
    pub place: Option<QueuePlace>,
    pub quotas: Vec<QuotaCheck>,
    /// Every node once, by the first check that it fails; those that would do come first.
    pub nodes: Vec<NodeGroup>,
    /// Changes of the request with which it would start now.
    pub helps: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It starts, or would start, on these nodes at once.
    Now {
        nodes: Vec<String>,
    },
    /// It starts, or would start, as soon as these have gone, which the next pass sends back for it.
    MakesRoom {
        leavers: Vec<Leaver>,
    },
    Waits {
        reason: String,
        start: Option<ExpectedStart>,
    },
    /// The fleet does not have what it needs, or its project may not use so much.
    Never {
        reason: String,
    },
    /// It does not wait any more.
    Placed {
        nodes: Vec<String>,
    },
    Ended,
}

/// A running job that goes back to the queue to make room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaver {
    pub job: Arc<Job>,
    /// What it leaves.
    pub gpus: u32,
    /// What work that costs, as people read it.
    pub loses: String,
    /// Why it goes, as its owner reads it.
    pub cause: String,
}

/// When a job is supposed to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedStart {
    /// From now; 0 only when the very next pass starts it.
    pub in_ms: u64,
    /// How far that may be wrong; unknown when it hangs on a job of which nothing is known.
    pub plus_minus_ms: Option<u64>,
    /// The job whose end it waits for.
    pub after: Option<JobId>,
    /// That is unknown because a job has taken longer than was supposed.
    pub overdue: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct QueuePlace {
    /// From 1.
    pub position: usize,
    pub of: usize,
    pub standing: Standing,
    /// Work that passed it, and work that came first, in GPU-milliseconds.
    pub overtaken_by: u64,
    pub went_before: u64,
    /// Nodes are kept for it.
    pub is_due: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaCheck {
    pub pool: String,
    pub held: u32,
    pub wanted: u32,
    pub guaranteed: u32,
    pub maximum: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGroup {
    /// `None` for nodes that would do.
    pub reason: Option<String>,
    pub nodes: Vec<String>,
    /// Of these, nodes that are taken last, and what is held against each.
    pub last: BTreeMap<String, String>,
}

/// A line of the queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueLine {
    pub place: QueuePlace,
    pub reason: String,
    /// Only of the first ones.
    pub start: Option<ExpectedStart>,
}

/// What a supposed time hangs on; the last is the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    /// On nothing but jobs of which it is known how long they take.
    None,
    /// A job has taken longer than that.
    Overdue,
    /// Of a job nothing is known.
    Unknown,
}

/// The supposed end of a gang; the first is the smallest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ending<'a> {
    at_ms: u64,
    job: JobId,
    doubt: Doubt,
    /// Whose GPUs they are, and of which pool.
    project: &'a str,
    pool: &'a str,
    gpus: u32,
    /// What it leaves.
    freed: Vec<HeldShare>,
}

/// What is supposed to be free on a node, and by which doubtful ends.
struct Supposed<'a> {
    slot: &'a Slot,
    gpus: usize,
    cpus_milli: u32,
    memory_bytes: u64,
    gangs: u32,
    held_whole: bool,
    doubt: Doubt,
}

/// The open nodes at a moment that has not come yet, and what projects hold then.
struct Foreseen<'a> {
    nodes: BTreeMap<SlotIndex, Supposed<'a>>,
    /// GPUs by project and pool.
    held: BTreeMap<(&'a str, &'a str), u32>,
}

/// Waiting jobs for which a start is foretold in a list.
const FORETOLD: usize = 20;
/// Who waits for an end does not start before this.
const LEAST_WAIT_MS: u64 = 1_000;

impl Core {
    pub(super) fn on_question(
        &mut self,
        request: RequestId,
        question: Question,
        now: Timestamp,
        out: &mut Effects,
    ) {
        self.refresh_capacity();
        self.refresh_estimates();
        let answer = match question {
            Question::Job(id) => match self.jobs.get(&id).cloned() {
                Some(job) => Answer::Explained(Box::new(self.explain(&job, now))),
                None => Answer::Rejected(Rejected::NoSuchJob),
            },
            Question::Plan(job) => Answer::Explained(Box::new(self.plan(*job, now))),
            Question::Queue => Answer::Queue(self.queue_lines(now)),
            Question::Spent => Answer::Spent(self.spent_so_far(now), self.vacancies()),
        };
        out.replies.push((request, answer));
    }

    /// Explains a job as if it were the newest of the queue, and takes it out of there again.
    fn plan(&mut self, mut job: Job, now: Timestamp) -> Explanation {
        job.sequence = self.next_sequence();
        self.refresh_eligible(&mut job, now);
        let job = Arc::new(job);
        let is_new = !self.jobs.contains_key(&job.id);
        if is_new {
            self.jobs.insert(job.id.clone(), job.clone());
            self.queue.set(&job);
        }
        let explanation = self.explain(&job, now);
        if is_new {
            self.queue.remove(&job.id);
            self.jobs.remove(&job.id);
        }
        explanation
    }

    fn explain(&self, job: &Arc<Job>, now: Timestamp) -> Explanation {
        let mut explanation = Explanation {
            job: job.clone(),
            verdict: Verdict::Ended,
            place: None,
            quotas: self.quota_checks(job),
            nodes: Vec::new(),
            helps: Vec::new(),
        };
        if job.state != JobState::Pending {
            if let Some(gang) = self.gangs.get(&job.gang).filter(|_| !job.state.is_terminal()) {
                let name = |node: &NodeId| self.node_names(std::slice::from_ref(node));
                let nodes = gang.nodes().iter().map(name).collect();
                explanation.verdict = Verdict::Placed { nodes };
            }
            return explanation;
        }
        let queue = self.standings(now);
        let position = queue.iter().position(|standing| standing.job.id == job.id);
        let ahead = queue.get(..position.unwrap_or_default()).unwrap_or_default();
        explanation.place = position
            .and_then(|at| Some(self.place_in_queue(queue.get(at)?.clone(), at, queue.len())));
        let not_yet = self.eligible(job, now).err().map(|not_yet| not_yet.to_string());
        if let Some(reason) = not_yet.or_else(|| self.runs_unknown(&job.gang)) {
            explanation.verdict = Verdict::Waits { reason, start: None };
            return explanation;
        }
        if job.cluster.is_some() {
            let reason = self.reason_of(job);
            explanation.verdict = Verdict::Waits { reason, start: None };
            return explanation;
        }
        let in_pool = |pool: &str| self.room_in_pool(&job.project, pool);
        let kept = self.kept_for_those_ahead(ahead, now);
        let is_kept = |slot: &Slot| kept.contains(&slot.index);
        let room = Room { gpus_in_pool: &in_pool, is_kept: &is_kept };
        explanation.nodes = self.node_groups(&job.request, &room);
        if let Some(reason) = self.out_of_reach(job) {
            explanation.verdict = Verdict::Never { reason };
            explanation.helps = self.helps(job, &room);
            return explanation;
        }
        explanation.verdict = match fit(&job.request, &self.capacity, &room) {
            Ok(found) => match shares(&job.request, &found, &self.capacity, &mut self.leases()) {
                Ok(_) => {
                    let nodes = found.nodes.iter().map(|slot| slot.name.as_ref().to_owned());
                    Verdict::Now { nodes: nodes.collect() }
                }
                // There are nodes, but no ports on them.
                Err(reason) => Verdict::Waits { reason, start: None },
            },
            Err(shortage) => match self.would_make_room(job, ahead, now) {
                Some(leavers) => Verdict::MakesRoom { leavers },
                None => {
                    let reason =
                        super::placement::waits_for(&job.request, &shortage, &self.capacity, &room);
                    let start = self.expected_start(job, ahead, now);
                    explanation.helps = self.helps(job, &room);
                    Verdict::Waits { reason, start }
                }
            },
        };
        explanation
    }

    fn place_in_queue(&self, standing: Standing, at: usize, of: usize) -> QueuePlace {
        let overtaken = self.overtaken(&standing.job.id);
        QueuePlace {
            position: at + 1,
            of,
            overtaken_by: overtaken.behind,
            went_before: overtaken.ahead,
            is_due: self.is_due(&standing.job),
            standing,
        }
    }

    fn queue_lines(&self, now: Timestamp) -> Vec<QueueLine> {
        let queue = self.standings(now);
        let of = queue.len();
        let line = |(at, standing): (usize, &Standing)| QueueLine {
            place: self.place_in_queue(standing.clone(), at, of),
            reason: self.reason_of(&standing.job),
            start: match at < FORETOLD
                && standing.job.cluster.is_none()
                && standing.job.eligible.is_some()
            {
                true => {
                    self.expected_start(&standing.job, queue.get(..at).unwrap_or_default(), now)
                }
                false => None,
            },
        };
        queue.iter().enumerate().map(line).collect()
    }

    fn reason_of(&self, job: &Job) -> String {
        self.why(&job.id).map_or_else(|| job.reason.clone(), |why| why.as_ref().to_owned())
    }

    fn quota_checks(&self, job: &Job) -> Vec<QuotaCheck> {
        let quotas = self.projects.get(&job.project).map(|record| &record.quotas);
        let quotas = quotas.into_iter().flatten().filter(|(pool, _)| job.request.may_use(pool));
        quotas
            .map(|(pool, quota)| QuotaCheck {
                pool: pool.clone(),
                held: self.holdings.gpus(&job.project, pool),
                wanted: gpus_of(job),
                guaranteed: quota.guaranteed,
                maximum: quota.maximum,
            })
            .collect()
    }

    /// Nodes that are kept for due gangs that are looked at earlier.
    fn kept_for_those_ahead(&self, ahead: &[Standing], now: Timestamp) -> BTreeSet<SlotIndex> {
        let mut kept = BTreeSet::new();
        let due = ahead.iter().map(|standing| &standing.job).filter(|job| self.is_due(job));
        let ends = self.expected_ends(now);
        for job in due.take(super::schedule::RESERVATION_LIMIT) {
            if let Some(reservation) = self.reserve(job, &ends, &|slot| kept.contains(&slot), now) {
                kept.extend(reservation.slots);
            }
        }
        kept
    }

    fn node_groups(&self, request: &JobRequest, room: &Room<'_>) -> Vec<NodeGroup> {
        let mut groups: BTreeMap<Option<String>, NodeGroup> = BTreeMap::new();
        for slot in self.capacity.slots().filter(|slot| !slot.revoked) {
            let (reason, name) = (unfit(request, slot, room), slot.name.as_ref().to_owned());
            let (nodes, last) = (Vec::new(), BTreeMap::new());
            let new = NodeGroup { reason: reason.clone(), nodes, last };
            let group = groups.entry(reason).or_insert(new);
            if slot.lateness > 0 {
                group.last.insert(name.clone(), self.held_against(&slot.node));
            }
            group.nodes.push(name);
        }
        groups.into_values().collect()
    }

    /// Single changes with which the job would start now.
    fn helps(&self, job: &Arc<Job>, room: &Room<'_>) -> Vec<String> {
        let starts = |request: &JobRequest| fit(request, &self.capacity, room).is_ok();
        let changed = |change: &dyn Fn(&mut JobRequest)| {
            let mut request = JobRequest::clone(&job.request);
            change(&mut request);
            request
        };
        let mut helps = Vec::new();
        let fewer = (1..job.request.nnodes)
            .rev()
            .take(64)
            .find(|nnodes| starts(&changed(&|request| request.nnodes = *nnodes)));
        helps.extend(fewer.map(|nnodes| format!("--nnodes {nnodes}")));
        // There are nodes, but its project may not use so much more.
        let any = |_: &str| u32::MAX;
        let without_quota = Room { gpus_in_pool: &any, is_kept: room.is_kept };
        if let Ok(found) = fit(&job.request, &self.capacity, &without_quota) {
            let fewer = (1..job.request.gpus_per_node)
                .rev()
                .take(64)
                .find(|gpus| starts(&changed(&|request| request.gpus_per_node = *gpus)));
            helps.extend(fewer.map(|gpus| format!("--gpus {gpus}")));
            if let Some(slot) = found.nodes.first() {
                let pool = &slot.kind.pool;
                let gpus = self.holdings.gpus(&job.project, pool).saturating_add(gpus_of(job));
                helps.push(format!("a quota of {gpus} GPUs in pool {pool}"));
            }
        }
        for pool in self.capacity.pools() {
            if !job.request.may_use(pool)
                && starts(&changed(&|request| request.pools = vec![pool.to_owned()]))
            {
                helps.push(format!("--pool {pool}"));
            }
        }
        if !job.request.exclude_nodes.is_empty()
            && starts(&changed(&|request| request.exclude_nodes.clear()))
        {
            helps.push("without exclude_nodes".to_owned());
        }
        if !job.request.node_labels.is_empty()
            && starts(&changed(&|request| request.node_labels.clear()))
        {
            helps.push("without labels".to_owned());
        }
        if job.request.exclusive != Some(false)
            && starts(&changed(&|request| request.exclusive = Some(false)))
        {
            helps.push("exclusive: false".to_owned());
        }
        if !job.request.gpu_models.is_empty()
            && starts(&changed(&|request| request.gpu_models.clear()))
        {
            helps.push("any GPU model".to_owned());
        }
        helps
    }

    /// Plays the queue forward: gangs end when they are supposed to, and those ahead start as they
    /// fit.
    fn expected_start(
        &self,
        job: &Arc<Job>,
        ahead: &[Standing],
        now: Timestamp,
    ) -> Option<ExpectedStart> {
        let mut foreseen = self.foreseen();
        let mut ends: BinaryHeap<Reverse<Ending<'_>>> =
            self.holdings.all().map(|holding| Reverse(self.end_of(holding, now))).collect();
        let counts = |job: &&Arc<Job>| job.cluster.is_none() && job.eligible.is_some();
        let gangs = ahead.iter().map(|standing| &standing.job).filter(counts);
        let mut waiting: Vec<&Arc<Job>> = gangs.chain([job]).collect();
        let mut budget = FORESIGHT;
        let (mut at_ms, mut after) = (now.boot_ms, None);
        // Of the last end, and of what keeps the job from its nodes and is not foreseen here.
        let (mut of_end, mut of_rest) = (Doubt::None, Doubt::None);
        loop {
            let mut still = Vec::new();
            for candidate in waiting {
                budget = budget.checked_sub(foreseen.nodes.len().max(1))?;
                let Some((pool, nodes)) = self.nodes_for(candidate, &foreseen) else {
                    still.push(candidate);
                    continue;
                };
                let doubt = foreseen.doubt_of(&nodes).max(of_end);
                if candidate.id == job.id {
                    if after.is_none() && !self.fits_now(job, ahead, now) {
                        of_rest = Doubt::Unknown;
                        still.push(candidate);
                        continue;
                    }
                    let in_ms = at_ms.saturating_sub(now.boot_ms);
                    let in_ms = if after.is_some() { in_ms.max(LEAST_WAIT_MS) } else { in_ms };
                    let doubt = doubt.max(of_rest);
                    // A quarter of the way is what such forecasts are wrong by; nobody knows better.
                    let plus_minus_ms = (doubt == Doubt::None).then_some(in_ms / 4);
                    let overdue = doubt == Doubt::Overdue;
                    return Some(ExpectedStart { in_ms, plus_minus_ms, after, overdue });
                }
                let estimate = self.estimate(candidate);
                let ms = estimate.map_or(UNKNOWN_MS, |estimate| estimate.ms);
                let freed = foreseen.start(candidate, pool, &nodes);
                ends.push(Reverse(Ending {
                    at_ms: at_ms.saturating_add(ms),
                    job: candidate.id.clone(),
                    doubt: if estimate.is_some() { doubt } else { Doubt::Unknown },
                    project: &candidate.project,
                    pool,
                    gpus: gpus_of(candidate),
                    freed,
                }));
            }
            waiting = still;
            let Reverse(ending) = ends.pop()?;
            at_ms = at_ms.max(ending.at_ms);
            of_end = ending.doubt;
            foreseen.end(&ending);
            after = Some(ending.job);
        }
    }

    /// Whether a pass would start the job, with these ahead of it.
    fn fits_now(&self, job: &Job, ahead: &[Standing], now: Timestamp) -> bool {
        let in_pool = |pool: &str| self.room_in_pool(&job.project, pool);
        let kept = self.kept_for_those_ahead(ahead, now);
        let is_kept = |slot: &Slot| kept.contains(&slot.index);
        let room = Room { gpus_in_pool: &in_pool, is_kept: &is_kept };
        fit(&job.request, &self.capacity, &room).is_ok()
    }

    /// What is free now.
    fn foreseen(&self) -> Foreseen<'_> {
        let open = self.capacity.slots().filter(|slot| slot.closed.is_none());
        let nodes = open.map(|slot| (slot.index, Supposed::of(slot))).collect();
        let mut held: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for holding in self.holdings.all() {
            *held.entry((&holding.job.project, &holding.pool)).or_default() += holding.gpus;
        }
        Foreseen { nodes, held }
    }

    /// When a gang is supposed to have gone, how sure that is, and what it leaves.
    fn end_of<'a>(&self, holding: &'a Holding, now: Timestamp) -> Ending<'a> {
        let state = holding.job.state;
        let is_known =
            holding.estimate.is_some() || matches!(state, JobState::Stopping | JobState::Held);
        let doubt = match is_known {
            _ if is_overdue(holding, now) => Doubt::Overdue,
            true => Doubt::None,
            false => Doubt::Unknown,
        };
        Ending {
            at_ms: self.expected_end(holding, now),
            job: holding.job.id.clone(),
            doubt,
            project: &holding.job.project,
            pool: &holding.pool,
            gpus: holding.gpus,
            freed: holding.shares.clone(),
        }
    }

    /// The nodes that a job would take of what is free then, and their pool.
    fn nodes_for<'a>(
        &self,
        job: &Job,
        foreseen: &Foreseen<'a>,
    ) -> Option<(&'a str, Vec<SlotIndex>)> {
        let wanted = job.request.nnodes as usize;
        let mut pools: BTreeMap<&'a str, Vec<(usize, SlotIndex)>> = BTreeMap::new();
        let enough = foreseen.nodes.values().filter(|node| node.is_enough(&job.request));
        for Supposed { slot, gpus, .. } in enough {
            pools.entry(&slot.kind.pool).or_default().push((*gpus, slot.index));
        }
        let may_use = |pool: &str| {
            let maximum = self.quota(&job.project, pool).and_then(|quota| quota.maximum);
            let held = foreseen.held.get(&(job.project.as_str(), pool)).copied();
            let taken = held.unwrap_or_default().saturating_add(gpus_of(job));
            maximum.is_none_or(|maximum| taken <= maximum)
        };
        let (pool, mut nodes) =
            pools.into_iter().find(|(pool, nodes)| nodes.len() >= wanted && may_use(pool))?;
        nodes.sort_unstable();
        Some((pool, nodes.into_iter().take(wanted).map(|(_, index)| index).collect()))
    }
}

impl<'a> Supposed<'a> {
    fn of(slot: &'a Slot) -> Self {
        Supposed {
            slot,
            gpus: slot.free_gpus.len(),
            cpus_milli: slot.free_cpus_milli,
            memory_bytes: slot.free_memory_bytes,
            gangs: slot.gangs,
            held_whole: slot.held_whole,
            doubt: Doubt::None,
        }
    }

    /// The checks of placement, of what is supposed.
    fn is_enough(&self, request: &JobRequest) -> bool {
        let Slot { kind, name, .. } = self.slot;
        if self.gpus < request.gpus_per_node as usize
            || mismatch(request, kind).is_some()
            || request.excludes(name)
        {
            return false;
        }
        let amount = Amount::of(request, kind);
        let is_alone = self.gangs == 0;
        self.cpus_milli >= amount.cpus_milli
            && self.memory_bytes >= amount.memory_bytes
            && (is_alone || !self.held_whole && !is_exclusive(request, kind))
    }

    fn take(&mut self, request: &JobRequest) -> HeldShare {
        let amount = Amount::of(request, &self.slot.kind);
        let share = HeldShare {
            slot: self.slot.index,
            is_rank: true,
            gpus: request.gpus_per_node as usize,
            cpus_milli: amount.cpus_milli,
            memory_bytes: amount.memory_bytes,
        };
        self.gpus = self.gpus.saturating_sub(share.gpus);
        self.cpus_milli = self.cpus_milli.saturating_sub(share.cpus_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(share.memory_bytes);
        self.gangs += 1;
        self.held_whole = is_exclusive(request, &self.slot.kind);
        share
    }

    fn give_back(&mut self, share: &HeldShare, doubt: Doubt) {
        self.gpus += share.gpus;
        self.cpus_milli = self.cpus_milli.saturating_add(share.cpus_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(share.memory_bytes);
        self.gangs = self.gangs.saturating_sub(u32::from(share.is_rank));
        self.held_whole &= self.gangs > 0;
        self.doubt = self.doubt.max(doubt);
    }
}

impl<'a> Foreseen<'a> {
    /// The worst of these nodes.
    fn doubt_of(&self, nodes: &[SlotIndex]) -> Doubt {
        let nodes = nodes.iter().filter_map(|index| self.nodes.get(index));
        nodes.map(|node| node.doubt).max().unwrap_or(Doubt::None)
    }

    /// A gang begins on these nodes; what it takes of them.
    fn start(&mut self, job: &'a Job, pool: &'a str, nodes: &[SlotIndex]) -> Vec<HeldShare> {
        *self.held.entry((&job.project, pool)).or_default() += gpus_of(job);
        let mut shares = Vec::with_capacity(nodes.len());
        for index in nodes {
            if let Some(node) = self.nodes.get_mut(index) {
                shares.push(node.take(&job.request));
            }
        }
        shares
    }

    fn end(&mut self, ending: &Ending<'a>) {
        if let Some(held) = self.held.get_mut(&(ending.project, ending.pool)) {
            *held = held.saturating_sub(ending.gpus);
        }
        for share in &ending.freed {
            if let Some(node) = self.nodes.get_mut(&share.slot) {
                node.give_back(share, ending.doubt);
            }
        }
    }
}
