//! What the jobs of a project may ask for and use. A project is there as soon as a token names it; it
//! has a record once an administrator has decided something about it.

use std::collections::BTreeMap;

use gangline_common::time::Timestamp;

use super::Core;
use super::credential::Principal;
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;
use super::idle::IdlePolicy;

/// The highest priority of a project about which nothing was decided: `high`.
pub const DEFAULT_MAX_PRIORITY: u8 = 75;
/// Pools in which a project may have a quota.
pub const QUOTA_LIMIT: usize = 256;

/// What was decided about a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectRecord {
    pub name: String,
    /// The highest priority that its jobs may ask for.
    pub max_priority: u8,
    /// By pool; without one the project may use what is free.
    pub quotas: BTreeMap<String, Quota>,
    pub idle: IdlePolicy,
    pub set_by: String,
    pub set: Timestamp,
}

/// GPUs of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// What the project gets back from others who borrowed it, as soon as it has jobs for it.
    pub guaranteed: u32,
    /// What its jobs hold together at most.
    pub maximum: Option<u32>,
}

/// What an administrator changes about a project; the rest stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProjectChange {
    pub max_priority: Option<u8>,
    /// By pool: a quota, or the end of one.
    pub quotas: BTreeMap<String, Option<Quota>>,
    /// In place of the whole policy.
    pub idle: Option<IdlePolicy>,
}

impl Core {
    pub(super) fn on_set_project(
        &mut self,
        request: RequestId,
        (name, change): (String, ProjectChange),
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let before = self.projects.get(&name);
        let mut record = ProjectRecord {
            name: name.clone(),
            max_priority: before.map_or(DEFAULT_MAX_PRIORITY, |record| record.max_priority),
            quotas: before.map_or_else(BTreeMap::new, |record| record.quotas.clone()),
            idle: before.map(|record| record.idle).unwrap_or_default(),
            set_by: actor.user.clone(),
            set: now,
        };
        let mut detail = Vec::new();
        if let Some(max_priority) = change.max_priority {
            record.max_priority = max_priority;
            detail.push(format!("highest priority {max_priority}"));
        }
        if let Some(idle) = change.idle {
            record.idle = idle;
            let minutes = |ms: Option<u64>, none: &str| {
                ms.map_or(none.to_owned(), |ms| format!("after {} min", ms / 60_000))
            };
            let warn = minutes(idle.warn_after_ms, "as usual");
            let reclaim = minutes(idle.reclaim_after_ms, "never");
            detail.push(format!("idle GPUs: warn {warn}, reclaim {reclaim}"));
        }
        self.refresh_capacity();
        self.refresh_holdings();
        for (pool, quota) in change.quotas {
            if let Some(quota) = quota {
                if let Err(rejected) = self.check_quota(&name, &pool, quota) {
                    return Core::reject(request, rejected, out);
                }
                let most = quota.maximum.map_or("all".to_owned(), |most| most.to_string());
                detail.push(format!("{} to {most} GPUs of pool {pool}", quota.guaranteed));
                record.quotas.insert(pool, quota);
            } else {
                detail.push(format!("no quota in pool {pool}"));
                record.quotas.remove(&pool);
            }
        }
        let detail = detail.join(", ");
        self.audit(actor, "project.set", format!("project {name}"), &detail, now, out);
        self.put(Write::Project(record), out);
        self.ask_for_scheduling();
        out.replies.push((request, Answer::Done));
    }

    /// A quota that could not be kept from the first moment on is refused.
    fn check_quota(&self, project: &str, pool: &str, quota: Quota) -> Result<(), Rejected> {
        let known = self.projects.get(project).is_some_and(|r| r.quotas.contains_key(pool));
        let pools = self.known_pools();
        if !known && !pools.contains(pool) {
            let known = pools.into_iter().map(str::to_owned).collect();
            return Err(Rejected::NoSuchPool { pool: pool.to_owned(), known });
        }
        let quotas = self.projects.get(project).map_or(0, |record| record.quotas.len());
        if !known && quotas >= QUOTA_LIMIT {
            return Err(Rejected::TooManyQuotas { limit: QUOTA_LIMIT });
        }
        if let Some(maximum) = quota.maximum {
            if quota.guaranteed > maximum {
                let guaranteed = quota.guaranteed;
                return Err(Rejected::GuaranteeAboveMaximum { guaranteed, maximum });
            }
            let held = self.holdings.gpus(project, pool);
            if held > maximum {
                let mut jobs: Vec<_> = self
                    .holdings
                    .all()
                    .filter(|h| h.job.project == project && h.pool == pool && h.gpus > 0)
                    .map(|holding| holding.job.id.clone())
                    .collect();
                jobs.sort();
                return Err(Rejected::QuotaBelowUse { held, jobs });
            }
        }
        let others = self.projects.values().filter(|record| record.name != project);
        let promised: u32 =
            others.filter_map(|record| record.quotas.get(pool)).map(|q| q.guaranteed).sum();
        let gpus = self.gpus_of_pool(pool);
        if quota.guaranteed > 0 && u64::from(promised) + u64::from(quota.guaranteed) > gpus {
            return Err(Rejected::GuaranteesTooLarge { gpus, promised });
        }
        Ok(())
    }

    fn gpus_of_pool(&self, pool: &str) -> u64 {
        let groups = self.capacity.groups().filter(|(kind, _)| kind.pool == pool);
        groups.map(|(kind, group)| u64::from(kind.gpus) * group.all.len() as u64).sum()
    }

    /// Whether a job of `project` may have this priority. Jobs that are submitted keep theirs.
    pub(super) fn check_priority(&self, project: &str, priority: u8) -> Result<(), Rejected> {
        let record = self.projects.get(project);
        let highest = record.map_or(DEFAULT_MAX_PRIORITY, |record| record.max_priority);
        if priority > highest {
            return Err(Rejected::PriorityTooHigh { highest });
        }
        Ok(())
    }

    pub(super) fn quota(&self, project: &str, pool: &str) -> Option<Quota> {
        self.projects.get(project)?.quotas.get(pool).copied()
    }

    /// GPUs that the jobs of a project may take in a pool beyond what they hold.
    pub(super) fn room_in_pool(&self, project: &str, pool: &str) -> u32 {
        let maximum = self.quota(project, pool).and_then(|quota| quota.maximum);
        let held = || self.holdings.gpus(project, pool);
        maximum.map_or(u32::MAX, |maximum| maximum.saturating_sub(held()))
    }

    /// GPUs that a project is guaranteed in all pools together.
    pub(super) fn guaranteed_everywhere(&self, project: &str) -> u32 {
        let record = self.projects.get(project);
        record.map_or(0, |record| record.quotas.values().map(|quota| quota.guaranteed).sum())
    }
}
