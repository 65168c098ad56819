//! What projects have used of the GPUs, the older the less: those who had little go first among jobs of
//! equal priority.

use std::collections::BTreeMap;

use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::job::Attempt;

/// After this long, use counts half.
pub const HALF_LIFE_MS: u64 = 7 * 24 * 3_600_000;

/// What the ended attempts of a project have used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub project: String,
    /// GPU-milliseconds, worth what they are at `at`.
    pub gpu_ms: u64,
    pub at: Timestamp,
}

impl Usage {
    /// GPU-milliseconds at a later time.
    pub fn at(&self, now: Timestamp) -> f64 {
        let half_lives = now.ms_since(self.at) as f64 / HALF_LIFE_MS as f64;
        self.gpu_ms as f64 * (-half_lives).exp2()
    }
}

impl Core {
    /// Adds what an attempt used that has just ended.
    pub(super) fn count_usage(&mut self, attempt: &Attempt, now: Timestamp, out: &mut Effects) {
        let (Some(gang), Some(job)) = (self.gangs.get(&attempt.gang), self.jobs.get(&attempt.job))
        else {
            return;
        };
        let gpus: usize = gang.members.values().map(|member| member.gpus.len()).sum();
        let used = now.ms_since(attempt.started) as f64 * gpus as f64;
        if used == 0.0 {
            return;
        }
        let project = job.project.clone();
        let before = self.usage.get(&project).map_or(0.0, |usage| usage.at(now));
        let usage = Usage { project, gpu_ms: (before + used) as u64, at: now };
        self.put(Write::Usage(usage), out);
    }

    /// Decayed GPU-milliseconds of every project, with what runs now.
    pub(super) fn usage_now(&self, now: Timestamp) -> BTreeMap<String, f64> {
        let mut usage: BTreeMap<String, f64> =
            self.usage.values().map(|usage| (usage.project.clone(), usage.at(now))).collect();
        for holding in self.holdings.all() {
            let Some(since) = holding.since else { continue };
            let used = now.ms_since(since) as f64 * f64::from(holding.gpus);
            match usage.get_mut(&holding.job.project) {
                Some(project) => *project += used,
                None => {
                    usage.insert(holding.job.project.clone(), used);
                }
            }
        }
        usage
    }
}
