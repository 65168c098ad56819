//! Why a job waits, when it will start, and what would help: asked of the checks that decide.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use gangline_common::ids::{JobId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::capacity::{Slot, SlotIndex};
use super::effect::{Answer, Effects, Rejected};
use super::event::RequestId;
use super::forecast::{Basis, UNKNOWN_MS};
use super::holdings::Holding;
use super::job::{Job, JobRequest, JobState};
use super::order::Standing;
use super::placement::{Room, fit, never, out_of_reach, unfit};
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
    Waits {
        reason: String,
        start: Option<ExpectedStart>,
    },
    /// The fleet does not have what it needs.
    Never {
        reason: String,
    },
    /// It does not wait any more.
    Placed {
        nodes: Vec<String>,
    },
    Ended,
}

/// When a job is supposed to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedStart {
    /// From now.
    pub in_ms: u64,
    /// How far that may be wrong; unknown when it hangs on a job of which nothing is known.
    pub plus_minus_ms: Option<u64>,
    /// The job whose end it waits for.
    pub after: Option<JobId>,
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

/// The supposed end of a gang; the first is the smallest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ending<'a> {
    at_ms: u64,
    job: JobId,
    /// Something is known about how long it takes.
    sure: bool,
    /// GPUs that it leaves.
    freed: Vec<(&'a NodeId, usize)>,
}

/// Waiting jobs for which a start is foretold in a list.
const FORETOLD: usize = 20;

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
            Question::Plan(job) => Answer::Explained(Box::new(self.explain(&Arc::new(*job), now))),
            Question::Queue => Answer::Queue(self.queue_lines(now)),
            Question::Spent => Answer::Spent(self.spent_so_far(now), self.vacancies()),
        };
        out.replies.push((request, answer));
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
        let queue = self.standings_with(job, now);
        let position = queue.iter().position(|standing| standing.job.id == job.id);
        let ahead = queue.get(..position.unwrap_or_default()).unwrap_or_default();
        explanation.place = position
            .and_then(|at| Some(self.place_in_queue(queue.get(at)?.clone(), at, queue.len())));
        if let Err(not_yet) = self.eligible(job, now) {
            explanation.verdict = Verdict::Waits { reason: not_yet.to_string(), start: None };
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
        if let Some(reason) = out_of_reach(&job.request, &self.capacity) {
            explanation.verdict = Verdict::Never { reason };
            explanation.helps = self.helps(job, &room);
            return explanation;
        }
        explanation.verdict = match fit(&job.request, &self.capacity, &room) {
            Ok(fit) => {
                let nodes = fit.nodes.iter().map(|slot| slot.name.as_ref().to_owned());
                Verdict::Now { nodes: nodes.collect() }
            }
            Err(shortage) => {
                let reason =
                    super::placement::waits_for(&job.request, &shortage, &self.capacity, &room);
                let start = self.expected_start(job, ahead, now);
                explanation.helps = self.helps(job, &room);
                Verdict::Waits { reason, start }
            }
        };
        explanation
    }

    /// The queue, with a job in it that nobody has submitted yet.
    fn standings_with(&self, job: &Arc<Job>, now: Timestamp) -> Vec<Standing> {
        let mut queue = self.standings(now);
        if !self.jobs.contains_key(&job.id) {
            let at = queue.partition_point(|other| {
                u32::from(other.priority) + u32::from(other.age) >= u32::from(job.request.priority)
            });
            queue.insert(at, Standing::plain(job));
        }
        queue
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
        let mut free: BTreeMap<&NodeId, usize> = self
            .capacity
            .slots()
            .filter(|slot| slot.closed.is_none())
            .map(|slot| (&slot.node, slot.free_gpus.len()))
            .collect();
        let mut ends: BinaryHeap<Reverse<Ending<'_>>> =
            self.holdings.all().map(|holding| Reverse(self.end_of(holding, now))).collect();
        let counts = |job: &&Arc<Job>| job.cluster.is_none() && job.eligible.is_some();
        let gangs = ahead.iter().map(|standing| &standing.job).filter(counts);
        let mut waiting: Vec<&Arc<Job>> = gangs.chain([job]).collect();
        let mut budget = FORESIGHT;
        let (mut at_ms, mut known, mut after) = (now.boot_ms, true, None);
        loop {
            let mut still = Vec::new();
            for candidate in waiting {
                budget = budget.checked_sub(free.len().max(1))?;
                let Some(nodes) = self.nodes_for(candidate, &free) else {
                    still.push(candidate);
                    continue;
                };
                if candidate.id == job.id {
                    let in_ms = at_ms.saturating_sub(now.boot_ms);
                    // A quarter of the way is what such forecasts are wrong by; nobody knows better.
                    let plus_minus_ms = known.then_some(in_ms / 4);
                    return Some(ExpectedStart { in_ms, plus_minus_ms, after });
                }
                let gpus = candidate.request.gpus_per_node as usize;
                for node in &nodes {
                    if let Some(free) = free.get_mut(node) {
                        *free = free.saturating_sub(gpus);
                    }
                }
                let estimate = self.estimate(candidate);
                let end = at_ms.saturating_add(estimate.map_or(UNKNOWN_MS, |estimate| estimate.ms));
                let freed = nodes.into_iter().map(|node| (node, gpus)).collect();
                let (job, sure) = (candidate.id.clone(), estimate.is_some());
                ends.push(Reverse(Ending { at_ms: end, job, sure, freed }));
            }
            waiting = still;
            let Reverse(ending) = ends.pop()?;
            at_ms = at_ms.max(ending.at_ms);
            known &= ending.sure;
            after = Some(ending.job);
            for (node, gpus) in ending.freed {
                *free.entry(node).or_default() += gpus;
            }
        }
    }

    /// When a gang is supposed to have gone, whose it is, whether anything is known about that, and
    /// what it leaves.
    fn end_of(&self, holding: &Holding, now: Timestamp) -> Ending<'_> {
        let sure = match holding.estimate.map(|estimate| estimate.from) {
            Some(Basis::Timeout | Basis::History(_)) => true,
            None => holding.job.state == JobState::Stopping,
        };
        let open = holding.shares.iter().filter_map(|share| {
            let slot = self.capacity.at(share.slot).filter(|slot| slot.closed.is_none())?;
            Some((&slot.node, share.gpus))
        });
        let (at_ms, job) = (self.expected_end(holding, now), holding.job.id.clone());
        Ending { at_ms, job, sure, freed: open.collect() }
    }

    /// The nodes that a job would take of these free GPUs.
    fn nodes_for<'a>(
        &self,
        job: &Job,
        free: &BTreeMap<&'a NodeId, usize>,
    ) -> Option<Vec<&'a NodeId>> {
        let wanted = job.request.nnodes as usize;
        let mut pools: BTreeMap<&str, Vec<(usize, &'a NodeId)>> = BTreeMap::new();
        let enough = free.iter().filter(|(_, free)| **free >= job.request.gpus_per_node as usize);
        for (node, free) in enough {
            let Some(slot) = self.capacity.slot(node) else { continue };
            if never(&job.request, slot).is_none() {
                pools.entry(&slot.kind.pool).or_default().push((*free, node));
            }
        }
        let mut nodes = pools.into_values().find(|nodes| nodes.len() >= wanted)?;
        nodes.sort();
        Some(nodes.into_iter().take(wanted).map(|(_, node)| node).collect())
    }
}
