//! What people do to a job that has not ended, besides stopping it: hold it back and release it,
//! send it back to the queue, change its priority or its time limit. What is asked twice is done once.

use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_common::time::Timestamp;

use super::Core;
use super::credential::{Principal, Role};
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;
use super::job::{Job, JobRequest, JobState, Outcome};

/// Nodes that one job leaves out by requeues, beside those of its spec.
pub const EXCLUDED_LIMIT: usize = 64;

/// What somebody wants of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// It does not start until it is released.
    Hold {
        why: String,
    },
    Release,
    /// It is stopped politely and goes back to its place in the queue.
    Requeue {
        why: String,
        /// Only when this is still its newest attempt: a request that comes twice stops it once.
        attempt: Option<u32>,
        /// Ids or names of nodes that it leaves out from now on.
        exclude_nodes: Vec<String>,
    },
    SetPriority {
        /// 0 to 100.
        priority: u8,
    },
    /// It may run for longer.
    Extend {
        /// The whole time, not what is added.
        timeout_ms: u64,
    },
}

impl Control {
    fn action(&self) -> &'static str {
        match self {
            Control::Hold { .. } => "job.hold",
            Control::Release => "job.release",
            Control::Requeue { .. } => "job.requeue",
            Control::SetPriority { .. } => "job.priority",
            Control::Extend { .. } => "job.extend",
        }
    }
}

/// A job that does not start until somebody releases it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub by: String,
    pub why: String,
    pub since: Timestamp,
}

/// What was decided about a job since it was submitted; its spec stays as it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    pub priority: Option<u8>,
    pub timeout_ms: Option<u64>,
    /// Names of nodes that it leaves out, beside those of its spec.
    pub exclude_nodes: Vec<String>,
}

impl Changes {
    /// Puts the changes over what the spec asks for; once more changes nothing.
    pub fn apply(&self, request: &mut JobRequest) {
        request.priority = self.priority.unwrap_or(request.priority);
        request.timeout_ms = self.timeout_ms.or(request.timeout_ms);
        for node in &self.exclude_nodes {
            if !request.exclude_nodes.contains(node) {
                request.exclude_nodes.push(node.clone());
            }
        }
    }
}

impl Job {
    /// Leaves out one more node from now on. Returns what that means, for people.
    pub(super) fn goes_on_without(&mut self, node: Option<String>) -> String {
        let Some(node) = node else { return "tried again".to_owned() };
        let done = format!("tried again without {node}");
        self.change(|changes| changes.exclude_nodes.push(node));
        done
    }

    fn change(&mut self, change: impl FnOnce(&mut Changes)) {
        change(&mut self.changes);
        self.changes.apply(Arc::make_mut(&mut self.request));
    }
}

impl Core {
    pub(super) fn on_control_job(
        &mut self,
        request: RequestId,
        id: &JobId,
        control: Control,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(id).cloned() else {
            return Core::reject(request, Rejected::NoSuchJob, out);
        };
        if job.state.is_terminal() {
            let state = job.state.word();
            return Core::reject(request, Rejected::AlreadyEnded { state }, out);
        }
        let action = control.action();
        let done = match control {
            Control::Hold { why } => self.hold(&job, why, actor, now, out),
            Control::Release => Ok(self.release(&job, actor, now, out)),
            Control::Requeue { attempt: Some(attempt), .. } if attempt != job.attempts => Ok(None),
            Control::Requeue { why, exclude_nodes, .. } => {
                self.requeue(&job, why, &exclude_nodes, actor, now, out)
            }
            Control::SetPriority { priority } => self.reprioritise(&job, priority, actor, now, out),
            Control::Extend { timeout_ms } => self.extend(&job, timeout_ms, actor, now, out),
        };
        match done {
            Ok(Some(detail)) => {
                self.audit(actor, action, format!("job {id}"), &detail, now, out);
                self.ask_for_scheduling();
            }
            // It was so already.
            Ok(None) => {}
            Err(rejected) => return Core::reject(request, rejected, out),
        }
        out.replies.push((request, Answer::Done));
    }

    /// Each of these says what it did, for the audit log; `None` when nothing was to do.
    fn hold(
        &mut self,
        job: &Job,
        why: String,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) -> Result<Option<String>, Rejected> {
        if !job.is_queued() {
            return Err(Rejected::NotWaiting { state: job.state.word() });
        }
        if job.hold.is_some() {
            return Ok(None);
        }
        let mut job = job.clone();
        let text = if why.is_empty() { "held".to_owned() } else { format!("held: {why}") };
        job.note(now, &actor.user, text);
        job.hold = Some(Hold { by: actor.user.clone(), why: why.clone(), since: now });
        self.put_waiting(job, now, out);
        Ok(Some(why))
    }

    fn release(
        &mut self,
        job: &Job,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) -> Option<String> {
        if job.state == JobState::Held {
            let why = format!("released by {}", actor.user);
            self.let_go(job, &why, now, out);
            return Some("was kept up after its failure".to_owned());
        }
        let hold = job.hold.as_ref()?;
        let text = format!("was held by {}", hold.by);
        let mut job = job.clone();
        job.note(now, &actor.user, "released".to_owned());
        job.hold = None;
        self.put_waiting(job, now, out);
        Some(text)
    }

    fn requeue(
        &mut self,
        job: &Job,
        why: String,
        exclude_nodes: &[String],
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) -> Result<Option<String>, Rejected> {
        if job.state == JobState::Stopping && !job.is_queued() {
            return Err(Rejected::Ending);
        }
        let left_out = self.to_leave_out(job, exclude_nodes)?;
        let without = match left_out.is_empty() {
            true => String::new(),
            false => format!("without {}", left_out.join(", ")),
        };
        if !left_out.is_empty() {
            let mut job = job.clone();
            job.change(|changes| changes.exclude_nodes.extend(left_out));
            job.note(now, &actor.user, format!("goes on {without}"));
            self.put_waiting(job, now, out);
        }
        if job.is_queued() {
            return Ok(Some(without).filter(|without| !without.is_empty()));
        }
        let mut cause = format!("requeued by {}", actor.user);
        if !why.is_empty() {
            cause = format!("{cause}: {why}");
        }
        self.end_attempt(
            &job.id,
            Outcome::Preempted { cause, keeps_nodes: false },
            &actor.user,
            now,
            out,
        );
        let words = [why, without].into_iter().filter(|text| !text.is_empty());
        Ok(Some(words.collect::<Vec<_>>().join(", ")))
    }

    /// The names of the nodes that are new among those that a job leaves out.
    fn to_leave_out(&self, job: &Job, nodes: &[String]) -> Result<Vec<String>, Rejected> {
        if !nodes.is_empty() && job.cluster.is_some() {
            return Err(Rejected::FixedNodes);
        }
        let mut names: Vec<String> = Vec::new();
        for wanted in nodes {
            let is_it =
                |node: &&Arc<super::node::Node>| node.id.as_str() == wanted || node.name == *wanted;
            let node = self.nodes.values().find(is_it).ok_or(Rejected::NoSuchNode)?;
            if !job.request.exclude_nodes.contains(&node.name) && !names.contains(&node.name) {
                names.push(node.name.clone());
            }
        }
        if job.changes.exclude_nodes.len() + names.len() > EXCLUDED_LIMIT {
            return Err(Rejected::TooManyExcluded { limit: EXCLUDED_LIMIT });
        }
        Ok(names)
    }

    fn reprioritise(
        &mut self,
        job: &Job,
        priority: u8,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) -> Result<Option<String>, Rejected> {
        if actor.role < Role::Operator {
            self.check_priority(&job.project, priority)?;
        }
        let before = job.request.priority;
        if before == priority {
            return Ok(None);
        }
        let detail = format!("priority {before} -> {priority}");
        let mut job = job.clone();
        job.change(|changes| changes.priority = Some(priority));
        job.note(now, &actor.user, detail.clone());
        self.put_waiting(job, now, out);
        Ok(Some(detail))
    }

    fn extend(
        &mut self,
        job: &Job,
        timeout_ms: u64,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) -> Result<Option<String>, Rejected> {
        if job.state == JobState::Stopping && !job.is_queued() {
            return Err(Rejected::Ending);
        }
        let present_ms = job.request.timeout_ms.ok_or(Rejected::NoTimeLimit)?;
        if timeout_ms == present_ms {
            return Ok(None);
        }
        if timeout_ms < present_ms {
            return Err(Rejected::ShorterTimeLimit { present_ms });
        }
        let detail = format!("time limit {} s -> {} s", present_ms / 1000, timeout_ms / 1000);
        let mut job = job.clone();
        job.change(|changes| changes.timeout_ms = Some(timeout_ms));
        job.note(now, &actor.user, detail.clone());
        self.put_waiting(job, now, out);
        Ok(Some(detail))
    }

    fn put_waiting(&mut self, mut job: Job, now: Timestamp, out: &mut Effects) {
        self.refresh_eligible(&mut job, now);
        self.put(Write::Job(Arc::new(job)), out);
    }
}
