//! Users and operators: they submit, ask again when nobody answered, cancel, delete, and take nodes
//! out of use.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gangline_common::ids::{GangId, JobId};
use gangline_core::credential::{Principal, Role};
use gangline_core::effect::{Answer, Rejected};
use gangline_core::event::{Event, RequestId, Submission};
use gangline_core::job::{JobKind, JobRequest, JobState, Launcher, OnDisconnect};
use gangline_core::maintenance::Maintenance;
use gangline_core::projects::{ProjectChange, Quota};

use crate::node::named;
use crate::world::{Happening, World};

/// A request without an answer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    Submit {
        job: JobId,
    },
    Stop {
        job: JobId,
    },
    Delete {
        job: JobId,
    },
    /// Of an operator.
    Other,
}

/// What a user knows of a job.
#[derive(Debug, Clone)]
pub struct UserJob {
    request: Arc<JobRequest>,
    project: &'static str,
    key: Option<String>,
    /// The submission was answered.
    pub known: bool,
    /// Absent for one that runs until it is stopped.
    run_ms: Option<u64>,
    code: i32,
    delete_asked: bool,
}

#[derive(Debug, Default)]
pub struct Users {
    pub jobs: BTreeMap<JobId, UserJob>,
    pub asks: BTreeMap<RequestId, Ask>,
    /// Requests that nobody answered: they are made again.
    unheard: VecDeque<Ask>,
    made: u64,
}

/// Requests that users remember to make again.
const UNHEARD_LIMIT: usize = 32;
/// Jobs that have not ended, at a time; ended ones are deleted.
const LIVE_JOBS: usize = 10;
const KNOWN_JOBS: usize = 24;

impl Users {
    /// The coordinator is gone, and every request that waited with it.
    pub fn nobody_answers(&mut self) {
        for (_, ask) in std::mem::take(&mut self.asks) {
            self.was_not_heard(ask);
        }
    }

    pub fn was_not_heard(&mut self, ask: Ask) {
        if self.unheard.len() < UNHEARD_LIMIT && ask != Ask::Other {
            self.unheard.push_back(ask);
        }
    }

    /// After the store was replaced nobody remembers what was asked.
    pub fn forget_requests(&mut self) {
        self.asks.clear();
        self.unheard.clear();
    }

    pub fn run_ms(&self, job: &JobId) -> Option<u64> {
        self.jobs.get(job).and_then(|job| job.run_ms)
    }

    pub fn exit_code(&self, job: &JobId) -> i32 {
        self.jobs.get(job).map_or(0, |job| job.code)
    }

    pub fn asked_to_delete(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_none_or(|job| job.delete_asked)
    }
}

pub fn admin() -> Principal {
    Principal { user: "root".into(), project: "p0".into(), role: Role::Admin, from: None }
}

fn member(project: &str) -> Principal {
    let project = project.to_owned();
    Principal { user: "alice".into(), project, role: Role::Member, from: None }
}

impl World<'_> {
    pub fn user_acts(&mut self) {
        let wait = self.random.between(200, self.weather.user_pause_ms);
        self.after(wait, Happening::User);
        if self.random.one_in(2)
            && let Some(ask) = self.users.unheard.pop_front()
        {
            self.tally.note("user: request made again");
            return self.ask_again(ask);
        }
        let states = &self.checks.jobs;
        let live: Vec<JobId> =
            states.iter().filter(|(_, s)| !s.is_terminal()).map(|(id, _)| id.clone()).collect();
        let ended: Vec<JobId> =
            states.iter().filter(|(_, s)| s.is_terminal()).map(|(id, _)| id.clone()).collect();
        let many = live.len() + ended.len() >= KNOWN_JOBS;
        if (many || (!ended.is_empty() && self.random.one_in(6)))
            && let Some(job) = self.random.pick(&ended).cloned()
        {
            self.delete(job);
        }
        match self.random.below(20) {
            0..=9 if live.len() < LIVE_JOBS => self.submit_something(),
            10..=11 => {
                if let Some(job) = self.random.pick(&live).cloned() {
                    self.stop(job);
                }
            }
            12 | 13 => self.maintain_something(),
            14 => self.resubmit_something(),
            15 if self.random.one_in(3) => self.decide_about_a_project(),
            _ => {}
        }
    }

    fn ask_again(&mut self, ask: Ask) {
        match ask {
            Ask::Submit { job } => self.submit(job),
            Ask::Stop { job } => self.stop(job),
            Ask::Delete { job } => self.delete(job),
            Ask::Other => {}
        }
    }

    // ------------------------------------------------------------ submit

    fn submit_something(&mut self) {
        self.users.made += 1;
        let id = named(JobId::new(format!("j{}", self.users.made)));
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
        let cluster = self.random.pick(&clusters).cloned().filter(|_| self.random.one_in(2));
        let run_ms = (!self.random.one_in(6)).then(|| match self.random.one_in(5) {
            true => self.random.between(0, 800),
            false => self.random.between(1_000, 60_000),
        });
        let (project, nnodes, gpus, launcher, kind, on) = match cluster {
            Some((on, project, nodes, gpus)) => {
                let nnodes = self.random.between(1, nodes.into()) as u32;
                let gpus = self.random.below(u64::from(gpus) + 1) as u32;
                (project, nnodes, gpus, Launcher::Ray, JobKind::Job, Some(on.to_string()))
            }
            None if is_cluster => {
                let idle_stop_ms = self.random.one_in(2).then_some(30_000);
                let kind = JobKind::Cluster { idle_stop_ms };
                let gpus = self.random.between(1, 3) as u32;
                (project, nnodes.min(workers) as u32, gpus, Launcher::Ray, kind, None)
            }
            None => {
                let launcher =
                    if self.random.one_in(2) { Launcher::Ray } else { Launcher::Command };
                let gpus = self.random.below(4) as u32;
                (project, nnodes as u32, gpus, launcher, JobKind::Job, None)
            }
        };
        let timeout_ms = self.random.one_in(6).then(|| self.random.between(2_000, 40_000));
        let request = JobRequest {
            name: id.to_string(),
            kind,
            priority: *self.random.pick(&[25, 50, 50, 50, 75, 90]).unwrap_or(&50),
            cluster: on,
            nnodes,
            nnodes_max: nnodes,
            gpus_per_node: gpus,
            cpus_milli: Some(1_000),
            memory_bytes: Some(1 << 30),
            launcher,
            grace_ms: *self.random.pick(&[0, 2_000, 10_000]).unwrap_or(&0),
            start_timeout_ms: 60_000,
            timeout_ms,
            preemptible: self.random.one_in(2),
            min_runtime_ms: self.random.one_in(4).then_some(10_000),
            ..plain_request()
        };
        let job = UserJob {
            request: Arc::new(request),
            project,
            key: self.random.one_in(2).then(|| format!("key-{id}")),
            known: false,
            run_ms,
            code: i32::from(self.random.one_in(10)),
            delete_asked: false,
        };
        self.users.jobs.insert(id.clone(), job);
        self.submit(id);
    }

    fn resubmit_something(&mut self) {
        let known = self.users.jobs.iter().filter(|(_, job)| job.known && job.key.is_some());
        let known: Vec<JobId> = known.map(|(id, _)| id.clone()).collect();
        if let Some(job) = self.random.pick(&known).cloned() {
            self.tally.note("user: submission repeated after its answer");
            self.submit(job);
        }
    }

    fn submit(&mut self, id: JobId) {
        let Some(job) = self.users.jobs.get(&id).cloned() else { return };
        // Minted for every request, as the coordinator's API does it.
        let number = self.number();
        let submission = Submission {
            job: id.clone(),
            gang: named(GangId::new(format!("g{number}"))),
            token_seed: [3; 32],
            principal: member(job.project),
            idempotency: job.key.map(|key| (key, [9; 32])),
            request: job.request,
            after: Vec::new(),
        };
        self.ask(Ask::Submit { job: id }, |request| Event::Submit {
            request,
            submission: Box::new(submission),
        });
    }

    /// Asks to stop a job.
    pub fn stop(&mut self, job: JobId) {
        self.ask(Ask::Stop { job: job.clone() }, |request| Event::StopJob {
            request,
            job,
            actor: admin(),
            reason: "enough".to_owned(),
        });
    }

    fn delete(&mut self, job: JobId) {
        if let Some(known) = self.users.jobs.get_mut(&job) {
            known.delete_asked = true;
        }
        self.ask(Ask::Delete { job: job.clone() }, |request| Event::DeleteJob {
            request,
            job,
            actor: admin(),
        });
    }

    // ------------------------------------------------------------ operators

    fn maintain_something(&mut self) {
        let index = self.random.below(self.nodes.len() as u64) as usize;
        let why = "work".to_owned();
        let wanted = match self.random.below(8) {
            0 | 1 => Maintenance::Cordon { why },
            2 => Maintenance::Drain { why, deadline_ms: None },
            3 => Maintenance::Drain { why, deadline_ms: Some(self.random.between(0, 20_000)) },
            _ => Maintenance::Resume,
        };
        self.maintain(index, wanted);
    }

    pub fn maintain(&mut self, node: usize, wanted: Maintenance) {
        self.tally.note(match wanted {
            Maintenance::Cordon { .. } => "operator: cordon",
            Maintenance::Drain { deadline_ms: None, .. } => "operator: drain",
            Maintenance::Drain { deadline_ms: Some(_), .. } => "operator: drain with a deadline",
            Maintenance::Resume => "operator: resume",
        });
        let node = self.nodes[node].id.clone();
        self.ask(Ask::Other, |request| Event::MaintainNode {
            request,
            node,
            wanted,
            actor: admin(),
        });
    }

    fn decide_about_a_project(&mut self) {
        let mut change = ProjectChange::default();
        if self.random.one_in(2) {
            change.max_priority = Some(*self.random.pick(&[50, 75, 90]).unwrap_or(&75));
        } else {
            let maximum = self.random.one_in(2).then(|| self.random.between(3, 12) as u32);
            let guaranteed = self.random.below(4) as u32;
            let quota = (!self.random.one_in(4)).then_some(Quota { guaranteed, maximum });
            change.quotas.insert("default".to_owned(), quota);
        }
        let name = if self.random.one_in(2) { "p1" } else { "p2" };
        self.change_project(name, change);
    }

    pub fn change_project(&mut self, name: &str, change: ProjectChange) {
        self.tally.note("operator: project changed");
        let (name, change) = (name.to_owned(), Box::new(change));
        let actor = admin();
        self.ask(Ask::Other, |request| Event::SetProject { request, name, change, actor });
    }

    // ------------------------------------------------------------ answers

    pub fn user_hears(&mut self, request: RequestId, answer: Answer) {
        let Some(ask) = self.users.asks.remove(&request) else { return };
        match (ask, answer) {
            (Ask::Submit { job }, Answer::Submitted { job: made }) => {
                self.tally.note("user: job submitted");
                if job != made {
                    self.fail(|| format!("I5: the submission of {job} made {made}"));
                }
                if let Some(known) = self.users.jobs.get_mut(&job) {
                    known.known = true;
                }
                self.checks.acknowledged.insert(job);
            }
            (Ask::Submit { job }, Answer::Rejected(rejected)) => self.refused(job, rejected),
            (Ask::Stop { job }, Answer::Stopping) => {
                self.tally.note("user: job cancelled");
                let core = self.coordinator.as_ref().map(|coordinator| &coordinator.core);
                let known = core.and_then(|core| core.jobs().find(|known| known.id == job));
                if let Some(sequence) = known.map(|known| known.sequence) {
                    self.checks.cancelled.insert((job, sequence));
                }
            }
            (Ask::Delete { job }, Answer::Deleted { .. }) => {
                self.tally.note("user: job deleted");
                self.users.jobs.remove(&job);
                self.checks.acknowledged.remove(&job);
            }
            (Ask::Stop { job } | Ask::Delete { job }, Answer::Rejected(Rejected::NoSuchJob)) => {
                // A request that was repeated after the job had been deleted.
                let deleted = self.users.asked_to_delete(&job);
                if deleted {
                    self.users.jobs.remove(&job);
                    self.checks.acknowledged.remove(&job);
                } else if self.checks.acknowledged.contains(&job) {
                    self.fail(|| format!("I5: {job} was acknowledged and is not known"));
                }
            }
            (_, Answer::Rejected(_)) => self.tally.note("user: request refused"),
            _ => {}
        }
    }

    fn refused(&mut self, job: JobId, rejected: Rejected) {
        let Some(known) = self.users.jobs.get_mut(&job) else { return };
        match rejected {
            // The client chose the id: it has been heard before.
            Rejected::JobExists { .. } if known.key.is_none() => {
                known.known = true;
                self.checks.acknowledged.insert(job);
            }
            Rejected::JobExists { .. } | Rejected::KeyReused { .. } => {
                self.fail(|| format!("I5: the repeated submission of {job}: {rejected:?}"));
            }
            Rejected::PriorityTooHigh { highest } => {
                self.tally.note("user: priority refused");
                if known.request.priority <= highest {
                    self.fail(|| format!("I13: {job} was refused below {highest}"));
                }
                self.users.jobs.retain(|id, job_known| *id != job || job_known.known);
            }
            _ => {
                self.tally.note("user: submission refused");
                self.users.jobs.retain(|id, job_known| *id != job || job_known.known);
            }
        }
    }
}

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
        // The deadlines of shims are not simulated: nothing stops by itself.
        on_disconnect: OnDisconnect::Keep { no_witness: false },
        grace_ms: 0,
        start_timeout_ms: 60_000,
        timeout_ms: None,
        preemptible: false,
        min_runtime_ms: None,
        spec_json: "{}".to_owned(),
        submit_command: String::new(),
    }
}
