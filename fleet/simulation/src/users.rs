//! Users: what they have asked for, when they ask again because nobody answered, and what they make
//! of answers. What they submit is in `submissions`, what operators do in `operators`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gangline_common::ids::{GangId, JobId};
use gangline_core::credential::{Principal, Role};
use gangline_core::effect::{Answer, Rejected};
use gangline_core::event::{Event, RequestId, Submission};
use gangline_core::job::JobRequest;

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
    Hold {
        job: JobId,
    },
    Release {
        job: JobId,
    },
    /// Of an operator, or one that is not made again.
    Other,
}

/// What a user knows of a job.
#[derive(Debug, Clone)]
pub struct UserJob {
    pub request: Arc<JobRequest>,
    pub project: &'static str,
    /// The jobs that it is to run after.
    pub after: Vec<JobId>,
    pub key: Option<String>,
    /// The submission was answered.
    pub known: bool,
    /// Absent for one that runs until it is stopped.
    pub run_ms: Option<u64>,
    pub code: i32,
    /// How often it makes a training checkpoint, if it makes any.
    pub saves_every_ms: Option<u64>,
    pub release_asked: bool,
    pub delete_asked: bool,
}

#[derive(Debug, Default)]
pub struct Users {
    pub jobs: BTreeMap<JobId, UserJob>,
    pub asks: BTreeMap<RequestId, Ask>,
    /// Requests that nobody answered: they are made again.
    unheard: VecDeque<Ask>,
    pub made: u64,
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

    pub fn saves_every_ms(&self, job: &JobId) -> Option<u64> {
        self.jobs.get(job).and_then(|job| job.saves_every_ms)
    }

    pub fn asks_to_release(&mut self, job: &JobId) {
        if let Some(known) = self.jobs.get_mut(job) {
            known.release_asked = true;
        }
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
        match self.random.below(26) {
            0..=9 if live.len() < LIVE_JOBS => self.submit_something(),
            10..=11 => {
                if let Some(job) = self.random.pick(&live).cloned() {
                    self.stop(job);
                }
            }
            12 | 13 => self.maintain_something(),
            14 => self.resubmit_something(),
            15 if self.random.one_in(3) => self.decide_about_a_project(),
            16..=18 => self.control_something(&live),
            19 => self.label_something(),
            20 => self.release_something_by_force(),
            _ => {}
        }
    }

    fn ask_again(&mut self, ask: Ask) {
        match ask {
            Ask::Submit { job } => self.submit(job),
            Ask::Stop { job } => self.stop(job),
            Ask::Delete { job } => self.delete(job),
            Ask::Hold { job } => self.hold(job),
            Ask::Release { job } => self.release(job),
            Ask::Other => {}
        }
    }

    // ------------------------------------------------------------ requests

    fn resubmit_something(&mut self) {
        let known = self.users.jobs.iter().filter(|(_, job)| job.known && job.key.is_some());
        let known: Vec<JobId> = known.map(|(id, _)| id.clone()).collect();
        if let Some(job) = self.random.pick(&known).cloned() {
            self.tally.note("user: submission repeated after its answer");
            self.submit(job);
        }
    }

    pub fn submit(&mut self, id: JobId) {
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
            after: job.after.into_iter().map(Some).collect(),
            node_test: None,
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
                    if known.request.hold && !known.release_asked {
                        self.checks.on_hold.insert(job.clone());
                    }
                }
                self.checks.acknowledged.insert(job);
            }
            (Ask::Hold { job }, Answer::Done) => {
                self.checks.on_hold.insert(job);
            }
            (Ask::Release { job }, Answer::Done) => {
                self.checks.on_hold.remove(&job);
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
            (
                Ask::Stop { job } | Ask::Delete { job } | Ask::Hold { job } | Ask::Release { job },
                Answer::Rejected(Rejected::NoSuchJob),
            ) => {
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
            rejected => {
                self.tally.note(match rejected {
                    Rejected::Dependency { .. } => "user: dependency refused",
                    _ => "user: submission refused",
                });
                self.users.jobs.retain(|id, job_known| *id != job || job_known.known);
            }
        }
    }
}
