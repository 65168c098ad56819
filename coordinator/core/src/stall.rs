//! Trainings that go on no more, that go on again, or of which one rank is slow. Whoever reads logs and samples says so (they do
//! not pass through here); what is remembered and told of it, and whether the attempt ends, is decided
//! here.

use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::job::{Job, JobState, Outcome};
use super::notices::About;

/// What a job wants to happen when it hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HangPolicy {
    pub warn_after_ms: u64,
    pub after_ms: u64,
    pub action: HangAction,
}

impl Default for HangPolicy {
    fn default() -> Self {
        HangPolicy { warn_after_ms: 240_000, after_ms: 1_200_000, action: HangAction::Notify }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HangAction {
    Notify,
    /// Where its processes stand is written down; whoever says that it hangs has done that.
    Capture,
    /// The attempt ends as failed.
    Restart,
}

/// What is said of a running attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StallWord {
    pub job: JobId,
    pub attempt: u32,
    pub kind: StallKind,
    /// How long there was no sign of progress, in milliseconds.
    pub for_ms: u64,
    /// What was seen, for people: no new step, no line, for how long, and who is apart.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallKind {
    /// The time for a warning has come.
    Stalled,
    /// The time for the action of its spec has come.
    Hung,
    Resumed,
    /// A rank has been slower than the others for long.
    Straggler,
    /// It is no longer.
    StragglerOver,
}

impl Core {
    /// A word that comes when the attempt has ended, or another one began, says nothing any more.
    pub(super) fn on_stall_word(&mut self, word: &StallWord, now: Timestamp, out: &mut Effects) {
        let Some(job) = self.jobs.get(&word.job).cloned() else { return };
        let attempt = self.attempts.get(&(job.id.clone(), word.attempt));
        let goes_on = attempt.is_some_and(|attempt| attempt.ended.is_none());
        if job.state != JobState::Running || !goes_on {
            return;
        }
        let action = job.request.hang.action;
        let (kind, text) = match (word.kind, action) {
            (StallKind::Stalled, _) => (Some("job.stalled"), word.text.clone()),
            (StallKind::Resumed, _) => (Some("job.resumed"), word.text.clone()),
            (StallKind::Straggler, _) => (Some("job.straggler"), word.text.clone()),
            // Nobody is woken for that.
            (StallKind::StragglerOver, _) => (None, word.text.clone()),
            (StallKind::Hung, HangAction::Notify | HangAction::Capture) => {
                (Some("job.hung"), word.text.clone())
            }
            (StallKind::Hung, HangAction::Restart) => {
                (Some("job.hung"), format!("{}; the attempt is ended", word.text))
            }
        };
        // On a standing cluster the GPUs are the cluster's.
        let own = self.gangs.get(&job.gang).filter(|_| job.cluster.is_none()).cloned();
        match (own, word.kind) {
            (Some(gang), StallKind::Stalled | StallKind::Hung) => {
                self.count_stall(&gang, word.for_ms, now);
            }
            (Some(gang), StallKind::Resumed) => self.count_resumed(&gang, now, out),
            (Some(_), StallKind::Straggler | StallKind::StragglerOver) | (None, _) => {}
        }
        let mut noted = Job::clone(&job);
        noted.note(now, "gangline", text.clone());
        self.put(Write::Job(Arc::new(noted)), out);
        if let Some(kind) = kind {
            self.tell(kind, About::Job(&job), &text, now, out);
        }
        if word.kind == StallKind::Hung && action == HangAction::Restart {
            let cause = format!("no progress: {}", word.text);
            self.end_attempt(&job.id, Outcome::Failed { cause }, "gangline", now, out);
        }
    }
}
