//! How long gangs will run, and when nodes come free: what reservations and expected starts stand on.
//!
//! Nobody has to say how long a job takes. What is known is used: the time limit of its spec, and how
//! long similar jobs took. A forecast never ends a job and never gives a GPU away; a wrong one makes
//! the queue less tight, no more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gangline_common::time::Timestamp;

use super::Core;
use super::capacity::{Capacity, Slot, SlotIndex};
use super::constraints::may_share;
use super::gang::GangState;
use super::holdings::Holding;
use super::job::{Job, JobState};
use super::placement::never;

/// Durations that are remembered of each sort of job, the newest ones.
const REMEMBERED: usize = 5;
/// Sorts of jobs that are remembered; the one that was of use least recently goes first.
const SORTS: usize = 10_000;
/// What is supposed of a job of which nothing is known and that has just begun.
pub(super) const UNKNOWN_MS: u64 = 600_000;
/// Nothing is supposed to take less: what is over at once is in nobody's way, even on nodes that are
/// kept, and yet has to be sent away again.
const LEAST_MS: u64 = 1_000;
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
    /// Projects of whose jobs more, or less, is known than at the last look.
    pub(super) changed: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Ran {
    ms: VecDeque<u64>,
    used: u64,
}

impl History {
    fn remember(&mut self, sort: Sort, ms: u64) {
        self.clock += 1;
        if !self.changed.contains(&sort.0) {
            self.changed.insert(sort.0.clone());
        }
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
            self.changed.insert(oldest.0);
        }
    }

    /// The longest of the few that are remembered: to be late is worse than to leave a node idle.
    fn longest(&self, sort: &Sort) -> Option<Estimate> {
        let ran = self.sorts.get(sort)?;
        let ms = ran.ms.iter().copied().max()?.max(LEAST_MS);
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
pub(super) struct Reservation {
    pub slots: Vec<SlotIndex>,
    /// GPUs on each; `u32::MAX` for the whole node.
    pub gpus: u32,
    /// On the boot clock.
    pub at_ms: u64,
}

/// When which gang is supposed to have gone; the first first.
pub(super) type Ends = Vec<(u64, Arc<Holding>)>;

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
    pub(super) fn expected_end(&self, holding: &Holding, now: Timestamp) -> u64 {
        let (gang, job) = (&holding.gang, &holding.job);
        if gang.state == GangState::Stopping {
            let grace = gang.since.boot_ms.saturating_add(job.request.grace_ms);
            return grace.max(now.boot_ms.saturating_add(1000));
        }
        // What is kept up for a person has a deadline.
        if job.state == JobState::Held {
            let held_ms = job.running.map_or(0, |held| held.ms(now));
            let limit_ms = job.request.hold_on_failure_ms.unwrap_or_default();
            let left = limit_ms.saturating_sub(held_ms).max(LEAST_MS);
            return now.boot_ms.saturating_add(left);
        }
        let ran = ran_ms(job, now);
        let left = match holding.estimate {
            Some(estimate) if estimate.ms > ran => estimate.ms - ran,
            // It is later than was supposed: by how much, nobody knows.
            Some(_) => (ran / 2).max(OVERTIME_MS),
            // What has run for long goes on for long.
            None => ran.max(UNKNOWN_MS),
        };
        let limit = job.request.timeout_ms.map(|limit| limit.saturating_sub(ran));
        let left = limit.map_or(left, |limit| left.min(limit));
        now.boot_ms.saturating_add(left)
    }

    /// When every gang that holds GPUs is supposed to have gone.
    pub(super) fn expected_ends(&self, now: Timestamp) -> Ends {
        let ends = self.holdings.all();
        let mut ends: Ends =
            ends.map(|holding| (self.expected_end(holding, now), holding.clone())).collect();
        ends.sort_by(|a, b| (a.0, &a.1.gang.id).cmp(&(b.0, &b.1.gang.id)));
        ends
    }

    /// The nodes that will hold `job` soonest, without those that are kept for others.
    pub(super) fn reserve(
        &self,
        job: &Job,
        ends: &Ends,
        is_kept: &dyn Fn(SlotIndex) -> bool,
        now: Timestamp,
    ) -> Option<Reservation> {
        let request = &job.request;
        let wanted = request.nnodes as usize;
        let gpus = gpus_kept(job);
        let mut found: BTreeMap<&str, Vec<SlotIndex>> = BTreeMap::new();
        for slot in open_for(job, &self.capacity).filter(|slot| !is_kept(slot.index)) {
            let slots = found.entry(&slot.kind.pool).or_default();
            if Freed::default().is_enough(job, slot) && slots.len() < wanted {
                slots.push(slot.index);
            }
        }
        if let Some(slots) = found.values_mut().find(|slots| slots.len() >= wanted) {
            return Some(Reservation { slots: std::mem::take(slots), gpus, at_ms: now.boot_ms });
        }
        let mut freed = vec![Freed::default(); self.capacity.indexes()];
        for slot in found.values().flatten() {
            if let Some(freed) = freed.get_mut(*slot) {
                freed.would_do = Some(true);
                freed.is_found = true;
            }
        }
        for (at_ms, share) in ends.iter().flat_map(|(at, end)| end.shares.iter().map(|s| (*at, s)))
        {
            let Some(freed) = freed.get_mut(share.slot) else { continue };
            let Some(slot) = self.capacity.at(share.slot).filter(|_| !freed.is_found) else {
                continue;
            };
            let would_do = *freed.would_do.get_or_insert_with(|| {
                slot.closed.is_none() && never(request, slot).is_none() && !is_kept(slot.index)
            });
            if !would_do {
                continue;
            }
            freed.gangs += u32::from(share.is_rank);
            freed.gpus += share.gpus;
            freed.cpus_milli = freed.cpus_milli.saturating_add(share.cpus_milli);
            freed.memory_bytes = freed.memory_bytes.saturating_add(share.memory_bytes);
            if freed.is_enough(job, slot) {
                freed.is_found = true;
                let slots = found.entry(&slot.kind.pool).or_default();
                slots.push(slot.index);
                if slots.len() >= wanted {
                    return Some(Reservation { slots: std::mem::take(slots), gpus, at_ms });
                }
            }
        }
        None
    }
}

/// How long a job runs by now.
fn ran_ms(job: &Job, now: Timestamp) -> u64 {
    now.ms_since(job.started.filter(|_| job.state == JobState::Running).unwrap_or(now))
}

/// Whether a gang has outrun what was supposed of it: by how much, nobody knows, however often the
/// end is foretold again.
pub(super) fn is_overdue(holding: &Holding, now: Timestamp) -> bool {
    let (gang, job) = (&holding.gang, &holding.job);
    match gang.state {
        GangState::Stopping => now.ms_since(gang.since) >= job.request.grace_ms,
        _ => holding.estimate.is_some_and(|estimate| estimate.ms <= ran_ms(job, now)),
    }
}

/// What is kept for a job on each of its nodes: see [`Reservation::gpus`].
pub(super) fn gpus_kept(job: &Job) -> u32 {
    // Who wants whole nodes must not find a small gang there that came meanwhile.
    if job.request.exclusive == Some(true) { u32::MAX } else { job.request.gpus_per_node }
}

/// What gangs that end leave on a node, beside what is free now.
#[derive(Debug, Clone, Copy, Default)]
struct Freed {
    /// Whether the node would do, once that was looked at.
    would_do: Option<bool>,
    /// It is one of those that were found.
    is_found: bool,
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

/// Nodes with something free that would do: of each kind and number of free GPUs in the order in which
/// they are taken.
fn open_for<'a>(job: &'a Job, capacity: &'a Capacity) -> impl Iterator<Item = &'a Slot> {
    let groups = capacity
        .groups()
        .filter(|(kind, _)| super::placement::mismatch(&job.request, kind).is_none());
    let nodes = groups.flat_map(|(_, group)| {
        group.open.range(job.request.gpus_per_node..).flat_map(|(_, nodes)| nodes)
    });
    nodes
        .filter_map(|(_, _, index)| capacity.at(*index))
        .filter(|slot| !job.request.excludes(&slot.name))
}
