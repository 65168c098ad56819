//! The order in which waiting jobs are looked at, and what it is made of.
//!
//! First those that take what their project is guaranteed. Then by priority, to which age adds a
//! little; then those that were overtaken by too much; then by what the project has used; then in the
//! order of submission.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_common::time::Timestamp;

use super::Core;
use super::job::Job;
use super::policy::Policy;
use super::preemption::gpus_of;
use super::queue::{Line, LineId, Waiting};

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

impl Standing {
    /// Of a job that nobody has submitted.
    pub(super) fn plain(job: &Arc<Job>) -> Standing {
        let priority = job.request.priority;
        Standing { job: job.clone(), guaranteed: false, priority, age: 0, used_hours: 0.0 }
    }
}

/// A place in the order; the smaller one is looked at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    guaranteed: Reverse<bool>,
    points: Reverse<u32>,
    due: Reverse<bool>,
    /// Of a number that is not negative: then the bits are in order, too.
    used_hours: u64,
    expected_ms: u64,
    pub sequence: u64,
}

/// What ranks are made from at one moment.
pub(super) struct Ranking {
    policy: Policy,
    now: Timestamp,
    /// By project; empty when there is only one.
    used_hours: BTreeMap<String, f64>,
    /// Jobs that take what their project is guaranteed, by sequence.
    guaranteed: BTreeSet<u64>,
}

impl Ranking {
    fn standing(&self, job: &Arc<Job>) -> Standing {
        let mut standing = Standing::plain(job);
        if self.policy == Policy::Default {
            let waited = self.now.ms_since(job.submitted) / AGE_STEP_MS;
            standing.age = waited.min(AGE_LIMIT) as u8;
            standing.used_hours = self.used_hours.get(&job.project).copied().unwrap_or_default();
            standing.guaranteed = self.guaranteed.contains(&job.sequence);
        }
        standing
    }

    /// Whether the job waits for what its project is guaranteed.
    pub fn is_guaranteed(&self, job: &Job) -> bool {
        self.guaranteed.contains(&job.sequence)
    }

    /// Its priority with the points for waiting.
    pub fn points(&self, job: &Arc<Job>) -> u32 {
        let standing = self.standing(job);
        u32::from(standing.priority) + u32::from(standing.age)
    }

    /// The place of a job that may be due, and is going to run for `expected_ms`.
    pub fn rank(&self, job: &Arc<Job>, is_due: bool, expected_ms: u64) -> Rank {
        let standing = self.standing(job);
        let shortest = self.policy == Policy::Shortest;
        Rank {
            guaranteed: Reverse(standing.guaranteed),
            points: Reverse(if shortest { 0 } else { self.points(job) }),
            due: Reverse(is_due),
            // However much its project has used, nobody waits much longer than in strict order.
            used_hours: if is_due { 0 } else { standing.used_hours.max(0.0).to_bits() },
            expected_ms: if shortest { expected_ms } else { 0 },
            sequence: job.sequence,
        }
    }

    fn rank_in(&self, waiting: &Waiting, line: &Line) -> Rank {
        let expected_ms = line.estimate.flatten().map_or(u64::MAX, |estimate| estimate.ms);
        self.rank(&waiting.job, waiting.is_due(), expected_ms)
    }
}

/// The lines of the queue, by the rank of the first job of each that has not been looked at.
pub(super) struct Turns<'a> {
    ranking: &'a Ranking,
    heads: BinaryHeap<Reverse<(Rank, LineId)>>,
}

impl<'a> Turns<'a> {
    pub fn new<'l>(
        ranking: &'a Ranking,
        lines: impl Iterator<Item = (LineId, &'l Line)>,
    ) -> Turns<'a> {
        let head = |(id, line): (LineId, &Line)| {
            Some(Reverse((ranking.rank_in(line.members.values().next()?, line), id)))
        };
        let heads = lines.filter_map(head).collect();
        Turns { ranking, heads }
    }

    /// Whose turn it is: the line, and the job's number in it. The others of the line have no turn
    /// until `go_on` is called.
    pub fn next(&mut self) -> Option<(LineId, u64)> {
        self.heads.pop().map(|Reverse((rank, line))| (line, rank.sequence))
    }

    /// The next job of the line has its turn as well.
    pub fn go_on(&mut self, id: LineId, line: Option<&Line>, sequence: u64) {
        if let Some(line) = line
            && let Some(waiting) = line.next(sequence)
        {
            self.heads.push(Reverse((self.ranking.rank_in(waiting, line), id)));
        }
    }
}

impl Core {
    pub(super) fn ranking(&self, now: Timestamp) -> Ranking {
        let mut ranking = Ranking {
            policy: self.policy,
            now,
            used_hours: BTreeMap::new(),
            guaranteed: BTreeSet::new(),
        };
        if self.policy == Policy::Default {
            let lines = self.queue.lines().filter_map(|(_, line)| line.first());
            ranking.used_hours = self.used_hours(lines.chain(self.queue.guests()), now);
            ranking.guaranteed = self.guaranteed(&ranking);
        }
        ranking
    }

    /// Of the projects of these jobs, if there are several.
    fn used_hours<'a>(
        &self,
        jobs: impl Iterator<Item = &'a Arc<Job>>,
        now: Timestamp,
    ) -> BTreeMap<String, f64> {
        let projects: BTreeSet<&str> = jobs.map(|job| job.project.as_str()).collect();
        if projects.len() < 2 {
            return BTreeMap::new();
        }
        let usage = self.usage_now(now);
        let hours = |project: &str| {
            let used = usage.get(project).copied().unwrap_or_default() / 3_600_000.0;
            let weight = f64::from(self.guaranteed_everywhere(project).max(1));
            (project.to_owned(), used / weight)
        };
        projects.into_iter().map(hours).collect()
    }

    /// The jobs that stay within what their project is guaranteed, taken in the order of the queue.
    fn guaranteed(&self, ranking: &Ranking) -> BTreeSet<u64> {
        let mut guaranteed = BTreeSet::new();
        let has_quota = |job: &Arc<Job>| {
            let record = self.projects.get(&job.project);
            gpus_of(job) > 0 && record.is_some_and(|record| !record.quotas.is_empty())
        };
        let lines = self.queue.lines().filter(|(_, line)| line.first().is_some_and(has_quota));
        let mut turns = Turns::new(ranking, lines);
        let mut planned: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        while let Some((id, sequence)) = turns.next() {
            let Some(line) = self.queue.line(id) else { continue };
            let Some(waiting) = line.members.get(&sequence) else { continue };
            let (job, gpus) = (&waiting.job, gpus_of(&waiting.job));
            let Some(record) = self.projects.get(&job.project) else { continue };
            let within = record.quotas.iter().find(|(pool, quota)| {
                let held = self.holdings.gpus(&job.project, pool);
                let planned = planned.get(&(job.project.as_str(), pool.as_str()));
                let taken = held + planned.copied().unwrap_or_default();
                job.request.may_use(pool) && taken.saturating_add(gpus) <= quota.guaranteed
            });
            // What is too much for one of the line is too much for the rest of it.
            if let Some((pool, _)) = within {
                *planned.entry((&record.name, pool)).or_default() += gpus;
                guaranteed.insert(sequence);
                turns.go_on(id, Some(line), sequence);
            }
        }
        guaranteed
    }

    /// All waiting jobs in the order in which they are looked at.
    pub fn standings(&self, now: Timestamp) -> Vec<Standing> {
        let mut ranking = self.ranking(now);
        let waiting = || self.queue.ids().filter_map(|id| self.jobs.get(id));
        if self.policy == Policy::Default {
            ranking.used_hours = self.used_hours(waiting(), now);
        }
        let mut standings: Vec<(Rank, Standing)> = waiting()
            .map(|job| {
                let expected = match self.policy {
                    Policy::Shortest => self.estimate(job),
                    Policy::Default | Policy::Fifo | Policy::Backfill => None,
                };
                let expected_ms = expected.map_or(u64::MAX, |estimate| estimate.ms);
                (ranking.rank(job, self.is_due(job), expected_ms), ranking.standing(job))
            })
            .collect();
        standings.sort_by_key(|(rank, _)| *rank);
        standings.into_iter().map(|(_, standing)| standing).collect()
    }

    /// The jobs that a pass in strict order looks at. With nobody to be told why, that ends with the
    /// first one that is sure to hold back the rest.
    pub(super) fn in_strict_order(&self) -> Vec<Arc<Job>> {
        let waiting = self.queue.ids().filter(|id| self.queue.line_of(id).is_some());
        let waiting = waiting.filter_map(|id: &JobId| self.jobs.get(id));
        if self.explaining {
            return waiting.cloned().collect();
        }
        let open = self.capacity.groups().flat_map(|(_, group)| &group.open);
        let mut free: u64 = open.map(|(gpus, nodes)| u64::from(*gpus) * nodes.len() as u64).sum();
        let mut front = Vec::new();
        for job in waiting {
            front.push(job.clone());
            let is_bound = !job.request.pools.is_empty();
            if is_bound || self.out_of_reach(job).is_some() {
                continue;
            }
            match free.checked_sub(u64::from(gpus_of(job))) {
                Some(left) => free = left,
                None => break,
            }
        }
        front
    }
}
