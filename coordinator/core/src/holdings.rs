//! What every gang holds, and what every project holds in every pool: quotas and forecasts look here.
//!
//! Derived, like the capacity of nodes: a gang that changed is marked and looked at again before
//! the next question.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use gangline_common::ids::{GangId, MemberId};
use gangline_common::time::Timestamp;

use super::Core;
use super::capacity::SlotIndex;
use super::forecast::Estimate;
use super::gang::{Gang, GangState};
use super::job::Job;

/// What one gang holds until its processes are gone, or longer where it is kept.
#[derive(Debug, Clone)]
pub struct Holding {
    pub job: Arc<Job>,
    pub gang: Arc<Gang>,
    /// When its attempt was started; absent once that has ended.
    pub since: Option<Timestamp>,
    pub pool: String,
    pub gpus: u32,
    /// How long its job is going to run, as of the last forecast.
    pub estimate: Option<Estimate>,
    pub shares: Vec<HeldShare>,
}

/// What one member holds of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldShare {
    pub slot: SlotIndex,
    pub is_rank: bool,
    pub gpus: usize,
    pub cpus_milli: u32,
    pub memory_bytes: u64,
}

#[derive(Debug, Default)]
pub struct Holdings {
    gangs: BTreeMap<GangId, Arc<Holding>>,
    /// GPUs by project and pool.
    gpus: BTreeMap<String, BTreeMap<String, u32>>,
    changed: BTreeSet<GangId>,
    /// Projects of which it is known better how long their jobs run than the estimates here say.
    stale: BTreeSet<String>,
}

impl Holdings {
    pub fn mark(&mut self, gang: &GangId) {
        if !self.changed.contains(gang) {
            self.changed.insert(gang.clone());
        }
    }

    /// Whether no gang is marked.
    pub fn is_fresh(&self) -> bool {
        self.changed.is_empty()
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Holding>> {
        self.gangs.values()
    }

    /// The pool of a gang that holds something.
    pub fn pool(&self, gang: &GangId) -> Option<&str> {
        self.gangs.get(gang).map(|holding| holding.pool.as_str())
    }

    /// GPUs that a project holds in a pool.
    pub fn gpus(&self, project: &str, pool: &str) -> u32 {
        self.gpus.get(project).and_then(|pools| pools.get(pool)).copied().unwrap_or_default()
    }

    /// The project, if it holds less of some pool now.
    fn set(&mut self, gang: &GangId, holding: Option<Holding>) -> Option<String> {
        let has_less = |old: &&Arc<Holding>| {
            holding.as_ref().is_none_or(|new| new.pool != old.pool || new.gpus < old.gpus)
        };
        let less = self.gangs.get(gang).filter(has_less).map(|old| old.job.project.clone());
        if let Some(old) = self.gangs.remove(gang)
            && let Some(pools) = self.gpus.get_mut(&old.job.project)
        {
            let left = pools.get(&old.pool).copied().unwrap_or_default().saturating_sub(old.gpus);
            if left > 0 {
                pools.insert(old.pool.clone(), left);
            } else {
                pools.remove(&old.pool);
            }
            if pools.is_empty() {
                self.gpus.remove(&old.job.project);
            }
        }
        if let Some(new) = holding {
            if new.gpus > 0 {
                let pools = self.gpus.entry(new.job.project.clone()).or_default();
                *pools.entry(new.pool.clone()).or_default() += new.gpus;
            }
            self.gangs.insert(gang.clone(), Arc::new(new));
        }
        less
    }
}

impl Core {
    /// Looks again at every gang that was marked, and forgets what is known better now.
    pub(super) fn refresh_holdings(&mut self) {
        for project in std::mem::take(&mut self.history.changed) {
            for line in self.queue.lines_mut() {
                if line.first().is_some_and(|job| job.project == project) {
                    line.estimate = None;
                }
            }
            self.holdings.stale.insert(project);
        }
        for id in std::mem::take(&mut self.holdings.changed) {
            let holding = self.holding(&id);
            if let Some(project) = self.holdings.set(&id, holding) {
                self.misfits.forget_project(&project);
            }
        }
    }

    /// Looks again at how long those will run of whose projects more is known now: for forecasts only, since
    /// that is every gang of a project.
    pub(super) fn refresh_estimates(&mut self) {
        let stale = std::mem::take(&mut self.holdings.stale);
        let gangs = self.holdings.gangs.iter();
        let gangs = gangs.filter(|(_, holding)| stale.contains(&holding.job.project));
        self.holdings.changed.extend(gangs.map(|(gang, _)| gang.clone()));
        self.refresh_holdings();
    }

    fn holding(&self, id: &GangId) -> Option<Holding> {
        let gang = self.gangs.get(id).filter(|gang| gang.state != GangState::Stopped)?;
        let job = self.jobs.get(&gang.job)?;
        let held = gang.members.iter().filter(|(_, member)| member.holds());
        let shares = held.filter_map(|(id, member)| {
            Some(HeldShare {
                slot: self.capacity.slot(&member.node)?.index,
                is_rank: *id != MemberId::Head,
                gpus: member.gpus.len(),
                cpus_milli: member.cpus_milli,
                memory_bytes: member.memory_bytes,
            })
        });
        let shares: Vec<HeldShare> = shares.collect();
        let held = gang.members.values().filter(|member| member.holds());
        let gpus = held.map(|member| member.gpus.len() as u32).sum();
        // A gang lies in one pool. One whose node is moved to another keeps the pool it began in.
        let known = self.holdings.gangs.get(id).map(|old| old.pool.clone());
        let first = gang.members.get(&MemberId::Rank(0))?;
        let pool = match known {
            Some(pool) => pool,
            None => self.nodes.get(&first.node)?.pool()?.to_owned(),
        };
        let attempt = self.attempts.get(&(gang.job.clone(), gang.attempt));
        let since = attempt.filter(|attempt| attempt.ended.is_none()).map(|a| a.started);
        let estimate = self.estimate(job);
        let (job, gang) = (job.clone(), gang.clone());
        Some(Holding { job, gang, since, pool, gpus, estimate, shares })
    }
}
