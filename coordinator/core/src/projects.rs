//! What the jobs of a project may ask for. A project is there as soon as a token names it; it has a
//! record once an administrator has decided something about it.

use gangline_common::time::Timestamp;

use super::Core;
use super::credential::Principal;
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;

/// The highest priority of a project about which nothing was decided: `high`.
pub const DEFAULT_MAX_PRIORITY: u8 = 75;

/// What was decided about a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectRecord {
    pub name: String,
    /// The highest priority that its jobs may ask for.
    pub max_priority: u8,
    pub set_by: String,
    pub set: Timestamp,
}

impl Core {
    pub(super) fn on_set_project(
        &mut self,
        request: RequestId,
        record: ProjectRecord,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let detail = format!("highest priority {}", record.max_priority);
        self.audit(actor, "project.set", format!("project {}", record.name), &detail, now, out);
        self.put(Write::Project(record), out);
        out.replies.push((request, Answer::Done));
    }

    /// Whether a job of `project` may have this priority. Jobs that are submitted keep theirs.
    pub(super) fn check_priority(&self, project: &str, priority: u8) -> Result<(), Rejected> {
        let record = self.projects.get(project);
        let highest = record.map_or(DEFAULT_MAX_PRIORITY, |record| record.max_priority);
        if priority > highest {
            return Err(Rejected::PriorityTooHigh { highest });
        }
        Ok(())
    }
}
