//! How long gangs will run, and when nodes come free: what reservations and expected starts stand on.
//!
//! Nobody has to say how long a job takes. What is known is used: the time limit of its spec, and how
//! long similar jobs took. A forecast never ends a job and never gives a GPU away; a wrong one makes
//! the queue less tight, no more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gangline_common::ids::{GangId, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::capacity::{Capacity, Slot};
use super::constraints::may_share;
use super::gang::GangState;
use super::job::{Job, JobState};
use super::placement::never;

/// Durations that are remembered of each sort of job, the newest ones.
const REMEMBERED: usize = 5;
/// Sorts of jobs that are remembered; the one that was of use least recently goes first.
const SORTS: usize = 10_000;
/// What is supposed of a job of which nothing is known and that has just begun.
pub(super) const UNKNOWN_MS: u64 = 600_000;
/// A gang that has outrun its forecast is supposed to go on for at least this long.
const OVERTIME_MS: u64 = 60_000;

/// How long a job will run, in milliseconds, and how that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    pub ms: u64,
    pub from: Basis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The time limit of its spec.
    Timeout,
    /// So many similar jobs that succeeded.
    History(u32),
}

/// What makes jobs similar: the more of it they share, the better. Project, user, name, GPUs.
type Sort = (String, Option<String>, Option<String>, u64);

/// How long jobs of each sort ran.
#[derive(Debug, Default)]
pub struct History {
    sorts: BTreeMap<Sort, Ran>,
    by_use: BTreeSet<(u64, Sort)>,
    clock: u64,
}

#[derive(Debug, Default)]
struct Ran {
    ms: VecDeque<u64>,
    used: u64,
}

impl History {
    fn remember(&mut self, sort: Sort, ms: u64) {
        self.clock += 1;
        let ran = self.sorts.entry(sort.clone()).or_default();
        self.by_use.remove(&(ran.used, sort.clone()));
        ran.used = self.clock;
        if ran.ms.len() >= REMEMBERED {
            ran.ms.pop_front();
        }
        ran.ms.push_back(ms);
        self.by_use.insert((self.clock, sort));
        while self.sorts.len() > SORTS
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.sorts.remove(&oldest);
        }
    }

    /// The longest of the few that are remembered: to be late is worse than to leave a node idle.
    fn longest(&self, sort: &Sort) -> Option<Estimate> {
        let ran = self.sorts.get(sort)?;
        let ms = ran.ms.iter().copied().max()?;
        Some(Estimate { ms, from: Basis::History(ran.ms.len() as u32) })
    }
}

/// From the closest likeness to the loosest.
fn sorts_of(job: &Job) -> [Sort; 3] {
    let gpus = u64::from(job.request.nnodes) * u64::from(job.request.gpus_per_node);
    let (project, user, name) =
        (job.project.clone(), Some(job.user.clone()), Some(job.request.name.clone()));
    [
        (project.clone(), user.clone(), name, gpus),
        (project.clone(), user, None, gpus),
        (project, None, None, gpus),
    ]
}

/// Nodes that are kept for a gang that waits, and from when it can use them.
#[derive(Debug, Clone)]
pub struct Reservation {
    pub nodes: BTreeSet<NodeId>,
    /// GPUs on each; `u32::MAX` for the whole node.
    pub gpus: u32,
    /// On the boot clock.
    pub at_ms: u64,
}

/// When which gang is supposed to have gone; the first first.
pub type Ends = Vec<(u64, GangId)>;

impl Core {
    /// Takes note of how long a job ran that has just succeeded.
    pub(super) fn note_duration(&mut self, job: &Job) {
        if job.state != JobState::Succeeded {
            return;
        }
        if let (Some(started), Some(ended)) = (job.started, job.ended) {
            let ms = ended.ms_since(started);
            for sort in sorts_of(job) {
                self.history.remember(sort, ms);
            }
        }
    }

    /// How long a job is going to run from its start, if anything is known about it.
    pub fn estimate(&self, job: &Job) -> Option<Estimate> {
        let similar = sorts_of(job).iter().find_map(|sort| self.history.longest(sort));
        let limit = job.request.timeout_ms.map(|ms| Estimate { ms, from: Basis::Timeout });
        match (similar, limit) {
            (Some(similar), Some(limit)) if limit.ms < similar.ms => Some(limit),
            (Some(similar), _) => Some(similar),
            (None, limit) => limit,
        }
    }

    /// When a gang is supposed to have gone, on the boot clock.
    pub(super) fn expected_end(&self, gang: &GangId, now: Timestamp) -> Option<u64> {
        let gang = self.gangs.get(gang)?;
        let job = self.jobs.get(&gang.job)?;
        if gang.state == GangState::Stopping {
            let grace = gang.since.boot_ms.saturating_add(job.request.grace_ms);
            return Some(grace.max(now.boot_ms.saturating_add(1000)));
        }
        let ran =
            now.ms_since(job.started.filter(|_| job.state == JobState::Running).unwrap_or(now));
        let left = match self.estimate(job) {
            Some(estimate) if estimate.ms > ran => estimate.ms - ran,
            // It is later than was supposed: by how much, nobody knows.
            Some(_) => (ran / 2).max(OVERTIME_MS),
            // What has run for long goes on for long.
            None => ran.max(UNKNOWN_MS),
        };
        let limit = job.request.timeout_ms.map(|limit| limit.saturating_sub(ran));
        let left = limit.map_or(left, |limit| left.min(limit));
        Some(now.boot_ms.saturating_add(left))
    }

    /// When every gang that holds GPUs is supposed to have gone.
    pub(super) fn expected_ends(&self, now: Timestamp) -> Ends {
        let gangs = self.holdings.gangs().map(|(gang, _)| gang);
        let mut ends: Ends =
            gangs.filter_map(|gang| Some((self.expected_end(gang, now)?, gang.clone()))).collect();
        ends.sort();
        ends
    }

    /// The nodes that will hold `job` soonest, without those that are kept for others.
    pub(super) fn reserve(
        &self,
        job: &Job,
        ends: &Ends,
        is_kept: &dyn Fn(&NodeId) -> bool,
        now: Timestamp,
    ) -> Option<Reservation> {
        let request = &job.request;
        let wanted = request.nnodes as usize;
        let mut free: BTreeMap<&NodeId, Freed> = BTreeMap::new();
        let mut found: BTreeMap<&str, BTreeSet<NodeId>> = BTreeMap::new();
        let reserved = |found: &BTreeMap<&str, BTreeSet<NodeId>>, pool: &str, at_ms: u64| {
            let nodes = found.get(pool).filter(|nodes| nodes.len() >= wanted)?;
            let nodes = nodes.clone();
            // Who wants whole nodes must not find a small gang there that came meanwhile.
            let whole = request.exclusive == Some(true);
            let gpus = if whole { u32::MAX } else { request.gpus_per_node };
            Some(Reservation { nodes, gpus, at_ms })
        };
        for slot in open_for(job, &self.capacity).filter(|slot| !is_kept(&slot.node)) {
            let nodes = found.entry(&slot.kind.pool).or_default();
            if Freed::default().is_enough(job, slot) && nodes.len() < wanted {
                nodes.insert(slot.node.clone());
            }
        }
        for pool in found.keys() {
            if let Some(reservation) = reserved(&found, pool, now.boot_ms) {
                return Some(reservation);
            }
        }
        for (at_ms, gang) in ends {
            let members = self.gangs.get(gang).map(|gang| gang.members.iter());
            let held = members.into_iter().flatten().filter(|(_, m)| m.phase.holds_resources());
            for (id, member) in held {
                let Some(slot) = self.capacity.slot(&member.node) else { continue };
                if slot.closed.is_some() || never(request, slot).is_some() || is_kept(&slot.node) {
                    continue;
                }
                let freed = free.entry(&member.node).or_default();
                freed.gangs += u32::from(*id != MemberId::Head);
                freed.gpus += member.gpus.len();
                freed.cpus_milli = freed.cpus_milli.saturating_add(member.cpus_milli);
                freed.memory_bytes = freed.memory_bytes.saturating_add(member.memory_bytes);
                if freed.is_enough(job, slot) {
                    let pool = slot.kind.pool.as_str();
                    found.entry(pool).or_default().insert(slot.node.clone());
                    if let Some(reservation) = reserved(&found, pool, *at_ms) {
                        return Some(reservation);
                    }
                }
            }
        }
        None
    }
}

/// What gangs that end leave on a node, beside what is free now.
#[derive(Debug, Clone, Copy, Default)]
struct Freed {
    gangs: u32,
    gpus: usize,
    cpus_milli: u32,
    memory_bytes: u64,
}

impl Freed {
    fn is_enough(&self, job: &Job, slot: &Slot) -> bool {
        let amount = super::placement::Amount::of(&job.request, &slot.kind);
        slot.free_gpus.len() + self.gpus >= job.request.gpus_per_node as usize
            && slot.free_cpus_milli.saturating_add(self.cpus_milli) >= amount.cpus_milli
            && slot.free_memory_bytes.saturating_add(self.memory_bytes) >= amount.memory_bytes
            && may_share(&job.request, slot, self.gangs)
    }
}

/// Nodes with something free that would do, in order of their names.
fn open_for<'a>(job: &'a Job, capacity: &'a Capacity) -> impl Iterator<Item = &'a Slot> {
    let groups = capacity
        .groups()
        .filter(|(kind, _)| super::placement::mismatch(&job.request, kind).is_none());
    let nodes = groups.flat_map(|(_, group)| {
        group.open.range(job.request.gpus_per_node..).flat_map(|(_, nodes)| nodes)
    });
    nodes
        .filter_map(|(_, node)| capacity.slot(node))
        .filter(|slot| !job.request.excludes(&slot.name))
}
