//! Who was overtaken by how much: the bound on waiting that needs no forecast.
//!
//! While a gang waits, GPUs work for jobs that come before it in the queue and for jobs that come
//! after it and fitted earlier. Both are counted. A gang that was overtaken by more than an eighth of the
//! work that was done ahead of it is *due*: from then on it goes before its equals, whatever their
//! projects have used, and nodes are kept for it. So small jobs fill what a large gang cannot use yet,
//! and no gang waits much longer than in strict order.

use std::collections::BTreeMap;

use gangline_common::ids::JobId;
use gangline_common::time::Timestamp;

use super::Core;
use super::job::Job;
use super::policy::Policy;
use super::preemption::gpus_of;
use super::queue::Waiting;

/// How often the work is counted, at least this long apart; and so much longer for each waiting job.
const COUNT_EVERY_MS: u64 = 10_000;
const COUNT_EACH_MS: u64 = 20;
/// A gang may be overtaken by this part of the work ahead of it. With a third large gangs of recorded
/// workloads ended so late that GPUs stood idle at the end; with a tenth small ones waited longer.
const SHARE: u64 = 8;
/// Every gang may be overtaken by its own GPUs' work of this long.
const SLACK_MS: u64 = 600_000;

/// Work that was done while a gang waited, in GPU-milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overtaken {
    pub ahead: u64,
    pub behind: u64,
}

/// GPUs that work, by pool and priority: of jobs up to each place in the order of submission.
type Working = BTreeMap<String, BTreeMap<u8, Vec<(u64, u64)>>>;

impl Core {
    /// Counts the work since the last time.
    pub(super) fn count_overtaking(&mut self, now: Timestamp) {
        if self.policy != Policy::Default {
            return;
        }
        let ms = now.boot_ms.saturating_sub(self.counted_ms);
        let every = COUNT_EVERY_MS + COUNT_EACH_MS * self.queue.len() as u64;
        if ms < every {
            return;
        }
        // What was done while nobody counted is counted by nobody.
        let ms = ms.min(60 * every);
        self.counted_ms = now.boot_ms;
        let working = self.working();
        // Nobody overtakes a job that may not start.
        for line in self.queue.lines_mut() {
            for waiting in line.members.values_mut() {
                let (ahead, behind) = split(&working, &waiting.job);
                let counted = &mut waiting.overtaken;
                counted.ahead = counted.ahead.saturating_add(ahead.saturating_mul(ms));
                counted.behind = counted.behind.saturating_add(behind.saturating_mul(ms));
            }
        }
    }

    fn working(&self) -> Working {
        let mut working: Working = BTreeMap::new();
        for holding in self.holdings.all() {
            let levels = working.entry(holding.pool.clone()).or_default();
            let level = levels.entry(holding.job.request.priority).or_default();
            level.push((holding.job.sequence, u64::from(holding.gpus)));
        }
        for level in working.values_mut().flat_map(|levels| levels.values_mut()) {
            level.sort_unstable();
            let mut sum = 0;
            for (_, gpus) in level {
                sum += *gpus;
                *gpus = sum;
            }
        }
        working
    }

    /// Whether nodes are kept for a gang that waits.
    pub(super) fn is_due(&self, job: &Job) -> bool {
        self.queue.waiting(&job.id).is_some_and(Waiting::is_due)
    }

    /// Work that was done before and beside a job that waits.
    pub fn overtaken(&self, job: &JobId) -> Overtaken {
        self.queue.waiting(job).map_or_else(Overtaken::default, |waiting| waiting.overtaken)
    }
}

impl Waiting {
    /// Whether nodes are kept for it.
    pub(super) fn is_due(&self) -> bool {
        let slack = u64::from(gpus_of(&self.job).max(1)).saturating_mul(SLACK_MS);
        let Overtaken { ahead, behind } = self.overtaken;
        self.is_claimant || behind > (ahead / SHARE).saturating_add(slack)
    }
}

/// GPUs that work ahead of a job and behind it.
fn split(working: &Working, job: &Job) -> (u64, u64) {
    let (mut ahead, mut behind) = (0, 0);
    let pools = working.iter().filter(|(pool, _)| job.request.may_use(pool));
    for (priority, level) in pools.flat_map(|(_, levels)| levels) {
        let all = level.last().map_or(0, |(_, sum)| *sum);
        let earlier = level.partition_point(|(sequence, _)| *sequence < job.sequence);
        let earlier = earlier.checked_sub(1).and_then(|at| level.get(at));
        let before = match *priority > job.request.priority {
            true => all,
            false => earlier.map_or(0, |(_, sum)| *sum),
        };
        ahead += before;
        behind += all - before;
    }
    (ahead, behind)
}
