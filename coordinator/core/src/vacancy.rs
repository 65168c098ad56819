//! GPU time that is of no allocation: of GPUs that are closed to jobs, of GPUs that are free in pieces
//! too small for whoever waits, and of those that jobs wait for.
//!
//! Counted pool by pool every few seconds while the coordinator runs, and written down as a line every
//! quarter of an hour in which there was any. Nothing is decided by it.

use std::collections::BTreeMap;

use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};

/// Time between two looks, and the longest that counts: what lay between was not seen.
pub const LOOK_EVERY_MS: u64 = 10_000;
const MOST_MS: u64 = 60_000;
/// Time of one line.
pub const LINE_MS: u64 = 900_000;
/// Projects that a line tells apart; the others are one.
const PROJECTS: usize = 1000;

/// GPU-milliseconds of a pool in some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vacancy {
    /// Empty for what waits for any pool.
    pub pool: String,
    pub from_wall_ms: u64,
    pub until_wall_ms: u64,
    /// Held by nobody, on a node that takes no new work or themselves not offered.
    pub quarantined_ms: u64,
    /// Free, on nodes that have fewer free than any waiting job asks of a node of the pool.
    pub fragmented_ms: u64,
    /// Asked for by jobs that could have started, by project.
    pub queued_ms: BTreeMap<String, u64>,
}

impl Vacancy {
    /// A line of the last `ms`.
    fn begin(pool: &str, now: Timestamp, ms: u64) -> Vacancy {
        Vacancy {
            pool: pool.to_owned(),
            from_wall_ms: now.wall_ms.saturating_sub(ms),
            until_wall_ms: now.wall_ms,
            quarantined_ms: 0,
            fragmented_ms: 0,
            queued_ms: BTreeMap::new(),
        }
    }

    fn is_nothing(&self) -> bool {
        self.quarantined_ms == 0 && self.fragmented_ms == 0 && self.queued_ms.is_empty()
    }

    /// What of `ms` of the line was after a moment; lines are of one piece.
    pub fn part_after(&self, ms: u64, wall_ms: u64) -> u64 {
        let all = self.until_wall_ms.saturating_sub(self.from_wall_ms);
        let part = self.until_wall_ms.saturating_sub(self.from_wall_ms.max(wall_ms));
        match all {
            0 => 0,
            all => {
                let scaled = u128::from(ms) * u128::from(part) / u128::from(all);
                u64::try_from(scaled).unwrap_or(u64::MAX)
            }
        }
    }
}

/// GPUs of a pool at one moment.
#[derive(Default)]
struct Seen {
    quarantined: u64,
    fragmented: u64,
    queued: BTreeMap<String, u64>,
}

/// The lines that are being written.
#[derive(Debug, Default)]
pub(super) struct Vacancies {
    open: BTreeMap<String, Vacancy>,
    looked_ms: Option<u64>,
    begun_ms: u64,
}

impl Core {
    /// Counts what was vacant since the last look.
    pub(super) fn count_vacancy(&mut self, now: Timestamp, out: &mut Effects) {
        let looked_ms = self.vacancies.looked_ms;
        let since_ms = looked_ms.map_or(u64::MAX, |looked| now.boot_ms.saturating_sub(looked));
        if since_ms < LOOK_EVERY_MS {
            return;
        }
        self.vacancies.looked_ms = Some(now.boot_ms);
        let ms = match looked_ms {
            Some(_) => since_ms.min(MOST_MS),
            None => 0,
        };
        self.refresh_capacity();
        for (pool, seen) in self.vacant_now() {
            let Vacancies { open, .. } = &mut self.vacancies;
            let line = open.entry(pool.clone()).or_insert_with(|| Vacancy::begin(&pool, now, ms));
            line.quarantined_ms += seen.quarantined * ms;
            line.fragmented_ms += seen.fragmented * ms;
            for (project, gpus) in seen.queued.into_iter().filter(|_| ms > 0) {
                *line.queued_ms.entry(project).or_default() += gpus * ms;
            }
            line.until_wall_ms = now.wall_ms;
        }
        if now.boot_ms.saturating_sub(self.vacancies.begun_ms) >= LINE_MS {
            self.vacancies.begun_ms = now.boot_ms;
            for (_, line) in std::mem::take(&mut self.vacancies.open) {
                if !line.is_nothing() {
                    self.put(Write::Vacancy(line), out);
                }
            }
        }
    }

    /// The lines that are being written, as far as they have come.
    pub fn vacancies(&self) -> Vec<Vacancy> {
        self.vacancies.open.values().filter(|line| !line.is_nothing()).cloned().collect()
    }

    fn vacant_now(&self) -> BTreeMap<String, Seen> {
        let mut pools: BTreeMap<String, Seen> = BTreeMap::new();
        // The fewest GPUs of one node that somebody waits for: in a pool, and in any.
        let mut least: BTreeMap<&str, u32> = BTreeMap::new();
        for (_, line) in self.queue.lines() {
            let Some(job) = line.first() else { continue };
            let request = &job.request;
            let could = line.members.values().filter(|waiting| waiting.job.eligible.is_some());
            let gpus = u64::from(request.nnodes) * u64::from(request.gpus_per_node);
            let wanted = could.count() as u64 * gpus;
            if wanted == 0 {
                continue;
            }
            let named = request.pools.iter().map(String::as_str);
            let anywhere = request.pools.is_empty().then_some("");
            for pool in named.chain(anywhere) {
                let known = least.entry(pool).or_insert(request.gpus_per_node);
                *known = (*known).min(request.gpus_per_node);
            }
            let pool = request.pools.first().cloned().unwrap_or_default();
            let queued = &mut pools.entry(pool).or_default().queued;
            let known = queued.contains_key(&job.project) || queued.len() < PROJECTS;
            let project = if known { job.project.clone() } else { String::new() };
            *queued.entry(project).or_default() += wanted;
        }
        for slot in self.capacity.slots().filter(|slot| !slot.revoked) {
            let pool = slot.kind.pool.as_str();
            let free = slot.free_gpus.len() as u32;
            let closed = slot.closed.is_some();
            let unused = slot.kind.gpus.saturating_sub(slot.used_gpus);
            let quarantined = if closed { unused } else { unused.saturating_sub(free) };
            let needs = [pool, ""].into_iter().filter_map(|pool| least.get(pool)).min();
            let too_few = !closed && needs.is_some_and(|least| free < *least);
            let fragmented = if too_few { free } else { 0 };
            if quarantined > 0 || fragmented > 0 {
                let seen = pools.entry(pool.to_owned()).or_default();
                seen.quarantined += u64::from(quarantined);
                seen.fragmented += u64::from(fragmented);
            }
        }
        pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_line_is_in_proportion() {
        let begin = Timestamp { boot_ms: 0, wall_ms: 1000 };
        let line = Vacancy { until_wall_ms: 3000, ..Vacancy::begin("a", begin, 0) };
        let parts = [0, 1000, 2000, 3000, 9000].map(|wall_ms| line.part_after(80, wall_ms));
        assert_eq!(parts, [80, 80, 40, 0, 0]);
        assert_eq!(Vacancy::begin("a", begin, 0).part_after(80, 0), 0);
        // What one look alone has seen was before it.
        let line = Vacancy::begin("a", begin, 400);
        assert_eq!([0, 800, 1000].map(|wall_ms| line.part_after(80, wall_ms)), [80, 40, 0]);
    }
}
