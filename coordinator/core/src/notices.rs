//! What people and programs outside are told of: one notice for each change of a job or a node that
//! somebody may wait for. It is part of the transaction of that change; the store numbers it.

use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::job::{Job, JobState, Outcome};
use super::node::Node;

/// Longest reason, in characters.
pub(super) const REASON_LIMIT: usize = 1024;

/// Every kind of notice.
pub const KINDS: [&str; 32] = [
    "job.running",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
    "job.timeout",
    "job.interrupted",
    "job.held",
    "job.requeued",
    "job.node_lost",
    "job.idle",
    "job.stalled",
    "job.hung",
    "job.resumed",
    "job.versions_differ",
    "job.disk_low",
    "job.checkpoints_removed",
    "job.copy_failed",
    "job.straggler",
    "node.joined",
    "node.lost",
    "node.back",
    "node.cordoned",
    "node.draining",
    "node.resumed",
    "node.revoked",
    "node.released",
    "node.condition",
    "node.healed",
    "node.info",
    "node.not_cordoned",
    "node.slow",
    "webhook.test",
];

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub wall_ms: u64,
    /// One of [`KINDS`].
    pub kind: String,
    /// Such as `job j-7f3k2`.
    pub object: String,
    /// The job's; absent for what is of the whole fleet.
    pub project: Option<String>,
    /// One sentence; never a secret.
    pub reason: String,
}

/// What a notice is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum About<'a> {
    Job(&'a Job),
    Node(&'a Node),
}

impl Core {
    /// Adds a notice, in the same transaction as the change that it tells of.
    pub(super) fn tell(
        &mut self,
        kind: &str,
        about: About<'_>,
        reason: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let (object, project) = match about {
            About::Job(job) => (format!("job {}", job.id), Some(job.project.clone())),
            About::Node(node) => (format!("node {}", node.name), None),
        };
        let notice = Notice {
            wall_ms: now.wall_ms,
            kind: kind.to_owned(),
            object,
            project,
            reason: reason.chars().take(REASON_LIMIT).collect(),
        };
        self.put(Write::Notice(notice), out);
    }

    /// A job has come to another state.
    pub(super) fn tell_of_job(&mut self, job: &Job, now: Timestamp, out: &mut Effects) {
        let kind = match job.state {
            JobState::Running => "job.running",
            JobState::Succeeded => "job.succeeded",
            JobState::Failed => "job.failed",
            JobState::Cancelled => "job.cancelled",
            JobState::Timeout => "job.timeout",
            // Told at once: the end of what still runs may take its whole grace.
            JobState::Stopping => match job.outcome {
                Some(
                    Outcome::Failed { .. }
                    | Outcome::Preempted { .. }
                    | Outcome::Retried { .. }
                    | Outcome::Evacuated { .. }
                    | Outcome::TimedOut { .. },
                ) => "job.interrupted",
                _ => return,
            },
            JobState::Pending => "job.requeued",
            // Told as long as there is something to look at; and when another attempt may follow, once
            // it is known that none does.
            JobState::Held if self.is_last(job) => "job.held",
            JobState::Held => return,
            JobState::Starting => return,
        };
        self.tell(kind, About::Job(job), &job.reason, now, out);
    }

    /// A node is lost: those whose jobs have members there want to know.
    pub(super) fn tell_of_loss(&mut self, node: &Node, now: Timestamp, out: &mut Effects) {
        let gangs = self.on_node.get(&node.id).into_iter().flatten();
        let jobs = gangs.filter_map(|id| self.jobs.get(&self.gangs.get(id)?.job)).cloned();
        let jobs: Vec<_> = jobs.filter(|job| !job.state.is_terminal()).collect();
        let said = node.history.last().map(|entry| entry.text.clone()).unwrap_or_default();
        self.tell("node.lost", About::Node(node), &said, now, out);
        for job in jobs {
            let reason = format!("{} is lost: {said}", node.name);
            self.tell("job.node_lost", About::Job(&job), &reason, now, out);
        }
    }
}
