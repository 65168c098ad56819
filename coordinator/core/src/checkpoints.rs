//! Training checkpoints: what of a run would not have to be done again.
//!
//! Learned from the agent of rank 0, and not stored: it says them again to a coordinator that has
//! just started. Until then the whole run counts as lost.

use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Seen, Write};
use super::event::{CheckpointWord, SavedWord};
use super::gang::Gang;
use super::job::{Job, JobState};
use super::notices::About;

/// The newest training checkpoint of one incarnation of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingCheckpoint {
    pub epoch: Epoch,
    /// The name of its entry in the checkpoint directory.
    pub name: String,
    /// By the clocks of this machine.
    pub made: Timestamp,
}

impl TrainingCheckpoint {
    /// Whether it is of what the gang runs now, or ran last and is still stopping.
    pub fn is_of(&self, gang: &Gang) -> bool {
        gang.is_live() && gang.epoch == self.epoch
    }
}

/// What was said of a gang's training checkpoints, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub word: SavedWord,
    /// When the ages in it were right.
    pub at: Timestamp,
}

impl Saved {
    /// Whether it is of what the gang runs now, or ran last and is still stopping.
    pub fn is_of(&self, gang: &Gang) -> bool {
        gang.is_live() && gang.epoch == self.word.key.epoch
    }

    /// Whether it says the same, apart from how old things are by now.
    fn is_like(&self, other: &Saved) -> bool {
        let made = |saved: &Saved| {
            let newest = saved.word.newest.as_ref()?;
            Some(saved.at.boot_ms.saturating_sub(newest.age_ms))
        };
        let ageless = |saved: &Saved| {
            let mut word = saved.word.clone();
            if let Some(newest) = &mut word.newest {
                newest.age_ms = 0;
            }
            word
        };
        let apart_ms = made(self).unwrap_or(0).abs_diff(made(other).unwrap_or(0));
        ageless(self) == ageless(other) && apart_ms < SAME_MS
    }
}

impl Core {
    /// What is said of training checkpoints is shown, and what a person should know of it is told.
    pub(super) fn on_saved_word(
        &mut self,
        node: &NodeId,
        word: SavedWord,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if word.key.member != MemberId::Rank(0) || !self.is_assigned(node, &word.key) {
            return;
        }
        let id = word.key.gang.clone();
        let saved = Saved { word, at: now };
        let known = self.saved.get(&id).filter(|known| known.word.key == saved.word.key);
        if known.is_some_and(|known| known.is_like(&saved)) {
            return;
        }
        let problem = |saved: &Saved| saved.word.copy.as_ref()?.problem.clone();
        let known_problem = known.and_then(problem);
        let new_problem = problem(&saved).filter(|new| known_problem.as_ref() != Some(new));
        let before = known.map(|known| known.word.room.clone()).unwrap_or_default();
        let room = saved.word.room.clone();
        out.saw(Seen::Saved { gang: id.clone(), saved: saved.clone() });
        self.saved.insert(id.clone(), saved);
        let (free, next) = (size_text(room.free_bytes), size_text(room.next_bytes));
        if room.is_low && !before.is_low {
            let text = match room.next_bytes {
                0 => format!("the file system of its training checkpoints has {free} left"),
                _ => format!(
                    "the file system of its training checkpoints has {free} left, and the next \
                     one takes about {next}"
                ),
            };
            self.tell_of_saved(&id, "job.disk_low", &text, now, out);
        }
        if room.removed > before.removed {
            let count = room.removed - before.removed;
            let last = room.last_removed.as_deref().unwrap_or("unknown");
            let text = format!(
                "{count} of its oldest training checkpoints removed to make room, the last {last}; \
                 {free} left"
            );
            self.tell_of_saved(&id, "job.checkpoints_removed", &text, now, out);
        }
        if let Some(problem) = new_problem {
            let text = format!("a training checkpoint was not copied: {problem}");
            self.tell_of_saved(&id, "job.copy_failed", &text, now, out);
        }
    }

    fn tell_of_saved(
        &mut self,
        gang: &GangId,
        kind: &str,
        text: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let job = self.gangs.get(gang).and_then(|gang| self.jobs.get(&gang.job)).cloned();
        let Some(job) = job else { return };
        let mut noted = Job::clone(&job);
        noted.note(now, "gangline", text.to_owned());
        self.put(Write::Job(Arc::new(noted)), out);
        self.tell(kind, About::Job(&job), text, now, out);
    }

    pub(super) fn on_checkpoint_word(
        &mut self,
        node: &NodeId,
        word: CheckpointWord,
        now: Timestamp,
        out: &mut Effects,
    ) {
        // Only rank 0 looks at the directory (A18).
        if word.key.member != MemberId::Rank(0) || !self.is_assigned(node, &word.key) {
            return;
        }
        let made = Timestamp {
            boot_ms: now.boot_ms.saturating_sub(word.age_ms),
            wall_ms: now.wall_ms.saturating_sub(word.age_ms),
        };
        let checkpoint = TrainingCheckpoint { epoch: word.key.epoch, name: word.name, made };
        let gang = word.key.gang;
        // Every report says it again, of another age by the time that reports take.
        let known = self.checkpoints.get(&gang);
        let is_known = known.is_some_and(|known| {
            let apart_ms = known.made.boot_ms.abs_diff(made.boot_ms);
            (known.epoch, &known.name) == (checkpoint.epoch, &checkpoint.name) && apart_ms < SAME_MS
        });
        if !is_known {
            out.saw(Seen::Checkpoint { gang: gang.clone(), checkpoint: checkpoint.clone() });
            self.checkpoints.insert(gang, checkpoint);
        }
    }

    /// How much of its run would have to be done again if it ended now, in milliseconds, and since
    /// which training checkpoint; without word of one it is all of it.
    pub(super) fn unsaved(&self, job: &Job, now: Timestamp) -> (u64, Option<&TrainingCheckpoint>) {
        let running = job.started.filter(|_| job.state == JobState::Running);
        let ran_ms = running.map_or(0, |started| now.ms_since(started));
        let newest = self.checkpoints.get(&job.gang);
        let newest = newest.filter(|newest| now.ms_since(newest.made) < ran_ms);
        (newest.map_or(ran_ms, |newest| now.ms_since(newest.made)), newest)
    }
}

/// Two reports of one name are of the same checkpoint when their times are not further apart, in
/// milliseconds.
const SAME_MS: u64 = 2_000;

/// `12.3 GiB`, for people.
fn size_text(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(*unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

/// "loses 4 min of work since global_step_40", for people.
pub(super) fn loss_text((unsaved_ms, since): (u64, Option<&TrainingCheckpoint>)) -> String {
    let since = since.map(|newest| format!(" since {}", newest.name)).unwrap_or_default();
    match unsaved_ms / 1000 {
        0 => format!("loses no work{since}"),
        seconds @ 1..60 => format!("loses {seconds} s of work{since}"),
        seconds @ 60..3600 => format!("loses {} min of work{since}", seconds / 60),
        seconds => {
            format!("loses {} h {} min of work{since}", seconds / 3600, seconds % 3600 / 60)
        }
    }
}
