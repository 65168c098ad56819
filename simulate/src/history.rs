//! What a coordinator remembers, as a workload: its own ended jobs.

use crate::workload::{Demand, Group, Groups, Job, Workload};

/// A job that has run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastJob {
    pub id: String,
    /// Milliseconds since 1970.
    pub submit_ms: u64,
    pub duration_ms: u64,
    pub nnodes: u32,
    pub gpus_per_node: u32,
    pub group: Group,
}

/// The workload of `jobs`, in any order. Jobs without GPUs are counted and left out.
pub fn workload(jobs: Vec<PastJob>) -> Workload {
    let mut workload = Workload::default();
    let mut groups = Groups::default();
    for job in jobs {
        if job.gpus_per_node == 0 {
            workload.without_gpus += 1;
            continue;
        }
        workload.jobs.push(Job {
            submit_ms: job.submit_ms,
            duration_ms: job.duration_ms,
            demand: Demand::Gang { nnodes: job.nnodes, gpus_per_node: job.gpus_per_node },
            group: groups.number(job.group),
            origin: u32::try_from(workload.ids.len()).unwrap_or(u32::MAX),
        });
        workload.ids.push(job.id);
    }
    workload.groups = groups.into_list();
    workload.settle();
    workload
}
