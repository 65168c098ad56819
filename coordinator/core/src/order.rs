//! The order in which waiting jobs are looked at, and what it is made of.
//!
//! First those that take what their project is guaranteed. Then by priority, to which age adds a
//! little; then by what the project has used; then in the order of submission.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::time::Timestamp;

use super::Core;
use super::job::Job;
use super::placement::out_of_reach;
use super::policy::Policy;
use super::preemption::gpus_of;

/// A job gains one point of priority for each of these, at most `AGE_LIMIT`: less than lies between
/// two of the named priorities.
pub const AGE_STEP_MS: u64 = 3_600_000;
pub const AGE_LIMIT: u64 = 24;

/// Where a waiting job stands, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    pub job: Arc<Job>,
    /// It takes what its project is guaranteed.
    pub guaranteed: bool,
    pub priority: u8,
    /// Points for waiting.
    pub age: u8,
    /// Decayed GPU-hours of its project, for each GPU that it is guaranteed (at least one).
    pub used_hours: f64,
}

impl Core {
    /// The waiting jobs in the order in which they are looked at.
    pub fn standings(&self, now: Timestamp) -> Vec<Standing> {
        let waiting = self.queue.values().filter_map(|id| self.jobs.get(id));
        let mut standings: Vec<Standing> = match self.policy {
            Policy::Default => self.by_claims(waiting, now),
            Policy::Fifo | Policy::Backfill => waiting.map(plain).collect(),
            Policy::Shortest => {
                let mut standings: Vec<_> = waiting
                    .map(|job| (self.estimate(job).map_or(u64::MAX, |e| e.ms), plain(job)))
                    .collect();
                standings.sort_by_key(|(ms, standing)| (*ms, standing.job.sequence));
                standings.into_iter().map(|(_, standing)| standing).collect()
            }
        };
        if self.policy == Policy::Default {
            standings.sort_by(compare);
        }
        standings
    }

    /// The jobs that a pass looks at, in order. In strict order and with nobody to be told why, that
    /// ends with the first one that is sure to hold back the rest; guests behind it are looked at
    /// once it has gone.
    pub(super) fn looked_at(&self, now: Timestamp) -> Vec<Arc<Job>> {
        if self.policy != Policy::Fifo || self.explaining {
            return self.standings(now).into_iter().map(|standing| standing.job).collect();
        }
        let open = self.capacity.groups().flat_map(|(_, group)| &group.open);
        let mut free: u64 = open.map(|(gpus, nodes)| u64::from(*gpus) * nodes.len() as u64).sum();
        let mut front = Vec::new();
        for job in self.queue.values().filter_map(|id| self.jobs.get(id)) {
            front.push(job.clone());
            let gpus = u64::from(gpus_of(job));
            let is_bound = job.cluster.is_some() || !job.request.pools.is_empty();
            if is_bound || out_of_reach(&job.request, &self.capacity).is_some() {
                continue;
            }
            match free.checked_sub(gpus) {
                Some(left) => free = left,
                None => break,
            }
        }
        front
    }

    fn by_claims<'a>(
        &self,
        waiting: impl Iterator<Item = &'a Arc<Job>>,
        now: Timestamp,
    ) -> Vec<Standing> {
        let mut standings: Vec<Standing> = waiting.map(plain).collect();
        for standing in &mut standings {
            let waited = now.ms_since(standing.job.submitted) / AGE_STEP_MS;
            standing.age = waited.min(AGE_LIMIT) as u8;
        }
        let several = standings.windows(2).any(|pair| match pair {
            [a, b] => a.job.project != b.job.project,
            _ => false,
        });
        if several {
            let usage = self.usage_now(now);
            let mut hours: BTreeMap<String, f64> = BTreeMap::new();
            for standing in &mut standings {
                let project = &standing.job.project;
                if !hours.contains_key(project) {
                    let used = usage.get(project).copied().unwrap_or_default() / 3_600_000.0;
                    let weight = f64::from(self.guaranteed_everywhere(project).max(1));
                    hours.insert(project.clone(), used / weight);
                }
                standing.used_hours = hours.get(project).copied().unwrap_or_default();
            }
        }
        if self.projects.values().any(|project| !project.quotas.is_empty()) {
            standings.sort_by(compare);
            self.mark_guaranteed(&mut standings, now);
        }
        standings
    }
}

pub(super) fn plain(job: &Arc<Job>) -> Standing {
    let priority = job.request.priority;
    Standing { job: job.clone(), guaranteed: false, priority, age: 0, used_hours: 0.0 }
}

fn compare(a: &Standing, b: &Standing) -> std::cmp::Ordering {
    let points = |s: &Standing| u32::from(s.priority) + u32::from(s.age);
    Reverse(a.guaranteed)
        .cmp(&Reverse(b.guaranteed))
        .then(points(b).cmp(&points(a)))
        .then(a.used_hours.total_cmp(&b.used_hours))
        .then(a.job.sequence.cmp(&b.job.sequence))
}
