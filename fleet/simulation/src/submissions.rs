//! What is submitted: jobs of every kind, drawn with the weights of one seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_core::job::{JobKind, JobRequest, JobState, Launcher, OnDisconnect};
use gangline_core::recovery::{Cause, Retry};
use gangline_core::stall::HangPolicy;

use crate::node::{DEFAULT, SPARE, ZONE, ZONES, named};
use crate::users::UserJob;
use crate::world::World;

/// What a job is to run on.
struct Place {
    project: &'static str,
    nnodes: u32,
    gpus: u32,
    launcher: Launcher,
    kind: JobKind,
    cluster: Option<String>,
}

impl World<'_> {
    pub fn submit_something(&mut self) {
        self.users.made += 1;
        let id = named(JobId::new(format!("j{}", self.users.made)));
        let place = self.some_place();
        let is_own = place.cluster.is_none();
        let run_ms = (!self.random.one_in(6)).then(|| match self.random.one_in(5) {
            true => self.random.between(0, 800),
            false => self.random.between(1_000, 60_000),
        });
        let timeout_ms = self.random.one_in(6).then(|| self.random.between(2_000, 40_000));
        let after = self.some_dependencies();
        let on_disconnect = self.some_policy(&place);
        let is_elastic = is_own && place.kind == JobKind::Job && self.random.one_in(4);
        let more = if is_elastic { self.random.between(1, 2) as u32 } else { 0 };
        // A wall clock that is set would change what follows.
        let not_before = self.random.one_in(16).then(|| self.random.between(1_000, 30_000));
        let not_before = not_before.filter(|_| self.settings.reboots);
        let wall_ms = self.clock.at(self.now_ms).wall_ms;
        let zone = (is_own && self.random.one_in(8)).then(|| self.some_zone());
        let exclusive = match self.random.below(8) {
            0 | 1 if is_own => Some(true),
            2 if is_own => Some(false),
            _ => None,
        };
        let request = JobRequest {
            name: id.to_string(),
            kind: place.kind,
            priority: *self.random.pick(&[25, 50, 50, 50, 75, 90]).unwrap_or(&50),
            hold: self.random.one_in(16),
            not_before_ms: not_before.map(|wait_ms| wall_ms + wait_ms),
            max_wait_ms: self.random.one_in(10).then(|| self.random.between(2_000, 60_000)),
            cluster: place.cluster,
            nnodes: place.nnodes,
            nnodes_max: place.nnodes + more,
            gpus_per_node: place.gpus,
            cpus_milli: Some(1_000),
            memory_bytes: Some(1 << 30),
            pools: self.some_pools(is_own),
            node_labels: zone.map(|zone| (ZONE.to_owned(), zone)).into_iter().collect(),
            exclusive,
            launcher: place.launcher,
            grace_ms: *self.random.pick(&[0, 2_000, 10_000]).unwrap_or(&0),
            start_timeout_ms: 60_000,
            timeout_ms,
            preemptible: self.random.one_in(2),
            min_runtime_ms: self.random.one_in(4).then_some(10_000),
            retry: self.some_retry(is_own),
            on_disconnect,
            // Not drawn: what follows stays as it was.
            hold_on_failure_ms: (is_own && self.users.made.is_multiple_of(4)).then_some(8_000),
            ..plain_request()
        };
        let job = UserJob {
            request: Arc::new(request),
            project: place.project,
            after,
            key: self.random.one_in(2).then(|| format!("key-{id}")),
            known: false,
            run_ms,
            code: i32::from(self.random.one_in(10)),
            saves_every_ms: self.random.one_in(2).then(|| self.random.between(2_000, 15_000)),
            release_asked: false,
            delete_asked: false,
        };
        if self.is_shown() {
            let r = &job.request;
            eprintln!(
                "SUBMIT {id} p{} nn{}-{} g{} {:?} excl{:?} pre{} lab{:?} {} {:?} {:?}",
                r.priority,
                r.nnodes,
                r.nnodes_max,
                r.gpus_per_node,
                r.launcher,
                r.exclusive,
                r.preemptible,
                r.node_labels,
                job.project,
                r.kind,
                r.exclude_nodes
            );
        }
        self.users.jobs.insert(id.clone(), job);
        self.submit(id);
    }

    fn some_place(&mut self) -> Place {
        let workers = self.nodes.iter().filter(|node| node.inventory.worker_role).count() as u64;
        let nnodes = match self.random.below(16) {
            // More than there are: it waits, and nobody behind it may.
            0 => workers + 1,
            1 => workers,
            _ => self.random.between(1, 3.min(workers)),
        };
        let project = if self.random.one_in(2) { "p1" } else { "p2" };
        let running = |(id, job): (&JobId, &UserJob)| {
            let stands = self.checks.jobs.get(id) == Some(&JobState::Running);
            (stands && matches!(job.request.kind, JobKind::Cluster { .. }))
                .then(|| (id.clone(), job.project, job.request.nnodes, job.request.gpus_per_node))
        };
        let clusters: Vec<_> = self.users.jobs.iter().filter_map(running).collect();
        let is_cluster = self.random.one_in(6);
        match self.random.pick(&clusters).cloned().filter(|_| self.random.one_in(2)) {
            Some((on, project, nodes, gpus)) => Place {
                project,
                nnodes: self.random.between(1, nodes.into()) as u32,
                gpus: self.random.below(u64::from(gpus) + 1) as u32,
                launcher: Launcher::Ray,
                kind: JobKind::Job,
                cluster: Some(on.to_string()),
            },
            None if is_cluster => {
                let idle_stop_ms = self.random.one_in(2).then_some(30_000);
                Place {
                    project,
                    nnodes: nnodes.min(workers) as u32,
                    gpus: self.random.between(1, 3) as u32,
                    launcher: Launcher::Ray,
                    kind: JobKind::Cluster { idle_stop_ms },
                    cluster: None,
                }
            }
            None => Place {
                project,
                nnodes: nnodes as u32,
                launcher: if self.random.one_in(2) { Launcher::Ray } else { Launcher::Command },
                gpus: self.random.below(4) as u32,
                kind: JobKind::Job,
                cluster: None,
            },
        }
    }

    /// Jobs to run after: those that have not ended are waited for, of others the submission is
    /// refused or not, by how they ended.
    fn some_dependencies(&mut self) -> Vec<JobId> {
        if !self.random.one_in(5) {
            return Vec::new();
        }
        let known: Vec<JobId> = self.checks.jobs.keys().cloned().collect();
        let count = self.random.between(1, 2);
        let mut after = Vec::new();
        for _ in 0..count {
            after.extend(self.random.pick(&known).cloned());
        }
        after
    }

    fn some_policy(&mut self, place: &Place) -> OnDisconnect {
        // Only a Ray gang of several nodes has a witness.
        let has_witness = place.launcher == Launcher::Ray && place.nnodes > 1;
        match self.random.below(8) {
            _ if place.cluster.is_some() => OnDisconnect::Keep { no_witness: false },
            0..=4 if has_witness => OnDisconnect::Fence,
            0 => OnDisconnect::Keep { no_witness: true },
            1..=3 => OnDisconnect::StopAfter {
                ms: *self.random.pick(&[20_000, 45_000]).unwrap_or(&45_000),
            },
            _ => OnDisconnect::Keep { no_witness: false },
        }
    }

    /// Now and then one that no node is in.
    fn some_pools(&mut self, is_own: bool) -> Vec<String> {
        let pools: &[&str] = match self.random.below(10) {
            0 if is_own => &[SPARE],
            1 if is_own => &[DEFAULT],
            2 if is_own => &[DEFAULT, SPARE],
            _ => &[],
        };
        pools.iter().map(|pool| (*pool).to_owned()).collect()
    }

    fn some_retry(&mut self, is_own: bool) -> Retry {
        if !is_own || self.random.one_in(2) {
            return Retry::default();
        }
        let causes = self.random.one_in(4);
        Retry {
            max: *self.random.pick(&[1, 2, 5]).unwrap_or(&1),
            causes: CAUSES.into_iter().filter(|cause| !causes || *cause != Cause::Ray).collect(),
            pauses_ms: vec![2_000, 10_000],
            exclude_failed_nodes: self.random.one_in(4),
        }
    }

    pub fn some_zone(&mut self) -> String {
        self.random.pick(&ZONES).map_or_else(String::new, |zone| (*zone).to_owned())
    }
}

pub const CAUSES: [Cause; 7] = [
    Cause::NodeLost,
    Cause::Hardware,
    Cause::NcclTimeout,
    Cause::Preempted,
    Cause::Rendezvous,
    Cause::Ray,
    Cause::Storage,
];

/// Everything that the simulation does not vary.
fn plain_request() -> JobRequest {
    JobRequest {
        name: String::new(),
        kind: JobKind::Job,
        priority: 50,
        cluster: None,
        nnodes: 1,
        gpus_per_node: 0,
        cpus_milli: None,
        memory_bytes: None,
        hold: false,
        not_before_ms: None,
        max_wait_ms: None,
        nnodes_max: 1,
        pools: Vec::new(),
        node_labels: BTreeMap::new(),
        exclusive: None,
        topology: None,
        gpu_models: Vec::new(),
        exclude_nodes: Vec::new(),
        launcher: Launcher::Command,
        argv: Vec::new(),
        env: Vec::new(),
        secrets: Vec::new(),
        workdir: None,
        tree: None,
        job_directory: None,
        checkpoint_directory: None,
        directories: Vec::new(),
        log_files: Vec::new(),
        log_bytes: None,
        on_disconnect: OnDisconnect::Keep { no_witness: false },
        hang: HangPolicy::default(),
        hold_on_failure_ms: None,
        grace_ms: 0,
        start_timeout_ms: 60_000,
        timeout_ms: None,
        preemptible: false,
        min_runtime_ms: None,
        retry: Retry::default(),
        spec_json: "{}".to_owned(),
        submit_command: String::new(),
    }
}
