//! What every gang holds, and what every project holds in every pool: quotas and forecasts look here.
//!
//! Derived, like the capacity of nodes: a gang that changed is marked and looked at again before
//! the next question.

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::{GangId, JobId};

use super::Core;
use super::gang::GangState;

/// What one gang holds until its processes are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub job: JobId,
    pub project: String,
    pub pool: String,
    pub gpus: u32,
}

#[derive(Debug, Default)]
pub struct Holdings {
    gangs: BTreeMap<GangId, Holding>,
    /// GPUs by project and pool.
    gpus: BTreeMap<String, BTreeMap<String, u32>>,
    changed: BTreeSet<GangId>,
}

impl Holdings {
    pub fn mark(&mut self, gang: &GangId) {
        self.changed.insert(gang.clone());
    }

    pub fn gangs(&self) -> impl Iterator<Item = (&GangId, &Holding)> {
        self.gangs.iter()
    }

    /// GPUs that a project holds in a pool.
    pub fn gpus(&self, project: &str, pool: &str) -> u32 {
        self.gpus.get(project).and_then(|pools| pools.get(pool)).copied().unwrap_or_default()
    }

    fn set(&mut self, gang: &GangId, holding: Option<Holding>) {
        if let Some(old) = self.gangs.remove(gang)
            && let Some(pools) = self.gpus.get_mut(&old.project)
        {
            let left = pools.get(&old.pool).copied().unwrap_or_default().saturating_sub(old.gpus);
            if left > 0 {
                pools.insert(old.pool, left);
            } else {
                pools.remove(&old.pool);
            }
            if pools.is_empty() {
                self.gpus.remove(&old.project);
            }
        }
        if let Some(new) = holding {
            if new.gpus > 0 {
                let pools = self.gpus.entry(new.project.clone()).or_default();
                *pools.entry(new.pool.clone()).or_default() += new.gpus;
            }
            self.gangs.insert(gang.clone(), new);
        }
    }
}

impl Core {
    /// Looks again at every gang that was marked.
    pub(super) fn refresh_holdings(&mut self) {
        for id in std::mem::take(&mut self.holdings.changed) {
            let holding = self.holding(&id);
            self.holdings.set(&id, holding);
        }
    }

    fn holding(&self, id: &GangId) -> Option<Holding> {
        let gang = self.gangs.get(id).filter(|gang| gang.state != GangState::Stopped)?;
        let job = self.jobs.get(&gang.job)?;
        let held = gang.members.values().filter(|member| member.phase.holds_resources());
        let gpus = held.map(|member| member.gpus.len() as u32).sum();
        // A gang lies in one pool. One whose node is moved to another keeps the pool it began in.
        let known = self.holdings.gangs.get(id).map(|old| old.pool.clone());
        let first = gang.members.get(&gangline_common::ids::MemberId::Rank(0))?;
        let pool = match known {
            Some(pool) => pool,
            None => self.nodes.get(&first.node)?.pool()?.to_owned(),
        };
        Some(Holding { job: gang.job.clone(), project: job.project.clone(), pool, gpus })
    }
}
