//! What is replayed: jobs with a time of arrival, a length and a size.

use std::collections::BTreeMap;

use crate::fleet::Fleet;

/// Jobs of one replay at most: their bookkeeping then takes about a GiB.
pub const MAX_JOBS: usize = 5_000_000;
/// Longest text of a project, user, pool or model, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// One job of the past, or of a generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Since the first arrival.
    pub submit_ms: u64,
    /// How long it runs when nothing interrupts it.
    pub duration_ms: u64,
    pub demand: Demand,
    /// Index into [`Workload::groups`].
    pub group: u32,
    /// Where it comes from: a line of the trace, or an index of [`Workload::ids`].
    pub origin: u32,
}

/// How many GPUs a job wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// So many, on as few nodes as hold them.
    Gpus(u32),
    /// A gang as it was submitted.
    Gang { nnodes: u32, gpus_per_node: u32 },
}

impl Demand {
    /// Nodes and GPUs of each on nodes with `node_gpus` GPUs: `ceil(k / G)` nodes, which share the
    /// GPUs evenly (so 9 GPUs on nodes of 8 are two nodes with 5).
    pub fn shape(self, node_gpus: u32) -> (u32, u32) {
        match self {
            Demand::Gpus(gpus) => {
                let nnodes = gpus.div_ceil(node_gpus.max(1)).max(1);
                (nnodes, gpus.div_ceil(nnodes))
            }
            Demand::Gang { nnodes, gpus_per_node } => (nnodes, gpus_per_node),
        }
    }
}

/// What jobs have in common: who submitted them and what else they ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub project: String,
    pub user: String,
    /// Empty for jobs without one.
    pub name: String,
    pub priority: u8,
    /// Any of these; empty for every pool.
    pub pools: Vec<String>,
    pub gpu_models: Vec<String>,
    /// The time limit of its spec; the model never runs into it.
    pub timeout_ms: Option<u64>,
}

/// Jobs in the order of their arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    pub jobs: Vec<Job>,
    pub groups: Vec<Group>,
    /// Names of jobs that have one; a trace has lines.
    pub ids: Vec<String>,
    /// Jobs without a GPU: they do not compete for any, and are left out.
    pub without_gpus: usize,
}

impl Workload {
    /// What people call a job: `line 7`, or its id.
    pub fn label(&self, job: &Job) -> String {
        let id = self.ids.get(job.origin as usize).filter(|_| !self.ids.is_empty());
        id.cloned().unwrap_or_else(|| format!("line {}", job.origin))
    }

    /// From the first arrival to the last.
    pub fn span_ms(&self) -> u64 {
        self.jobs.last().map_or(0, |job| job.submit_ms)
    }

    /// Moves the arrivals so that the jobs' GPU-time is `load` of what `fleet` has between the first
    /// and the last of them. Jobs that the fleet can never hold do not count.
    ///
    /// # Errors
    /// All jobs arrive at once, or none fits: there is nothing to stretch.
    pub fn set_load(&mut self, fleet: &Fleet, load: f64) -> Result<(), String> {
        let capacity = fleet.gpus() as f64 * self.span_ms() as f64;
        if capacity == 0.0 {
            return Err("all jobs arrive at the same time, so there is no load to set".to_owned());
        }
        let offered = self.offered(fleet) as f64;
        if offered == 0.0 {
            return Err("no job fits the fleet, so there is no load to set".to_owned());
        }
        self.scale_arrivals(offered / capacity / load);
        Ok(())
    }

    /// GPU-milliseconds of all jobs that fit the fleet at all.
    pub fn offered(&self, fleet: &Fleet) -> u128 {
        let work = |job: &Job| {
            let (nnodes, gpus) = job.demand.shape(fleet.node_gpus());
            let held = fleet.holds(nnodes, gpus);
            held.then(|| u128::from(nnodes) * u128::from(gpus) * u128::from(job.duration_ms))
        };
        self.jobs.iter().filter_map(work).sum()
    }

    /// Stretches or squeezes the times of arrival by `factor`.
    fn scale_arrivals(&mut self, factor: f64) {
        for job in &mut self.jobs {
            // Both are far below 2^53: a trace spans ten years at most.
            job.submit_ms = (job.submit_ms as f64 * factor).round() as u64;
        }
    }

    /// Sorts by arrival, jobs of one instant as they stood, and moves the first to zero.
    pub(crate) fn settle(&mut self) {
        self.jobs.sort_by_key(|job| job.submit_ms);
        let first = self.jobs.first().map_or(0, |job| job.submit_ms);
        for job in &mut self.jobs {
            job.submit_ms -= first;
        }
    }
}

/// Gives each distinct group one number.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    numbers: BTreeMap<Group, u32>,
}

impl Groups {
    pub fn number(&mut self, group: Group) -> u32 {
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(group).or_insert(next)
    }

    pub fn into_list(self) -> Vec<Group> {
        let mut numbered: Vec<(Group, u32)> = self.numbers.into_iter().collect();
        numbered.sort_by_key(|(_, number)| *number);
        numbered.into_iter().map(|(group, _)| group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_takes_as_few_nodes_as_hold_it() {
        let cases =
            [(1, (1, 1)), (8, (1, 8)), (9, (2, 5)), (12, (2, 6)), (24, (3, 8)), (128, (16, 8))];
        for (gpus, shape) in cases {
            assert_eq!(Demand::Gpus(gpus).shape(8), shape, "{gpus}");
        }
        assert_eq!(Demand::Gpus(3).shape(1), (3, 1));
        assert_eq!(Demand::Gang { nnodes: 2, gpus_per_node: 3 }.shape(8), (2, 3));
    }

    #[test]
    fn groups_keep_the_order_in_which_they_came() {
        let mut groups = Groups::default();
        let of = |project: &str| Group { project: project.to_owned(), ..Group::default() };
        assert_eq!([of("b"), of("a"), of("b")].map(|group| groups.number(group)), [0, 1, 0]);
        assert_eq!(groups.into_list(), [of("b"), of("a")]);
    }
}
