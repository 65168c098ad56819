//! Training checkpoints: what of a run would not have to be done again.
//!
//! Learned from the agent of rank 0, and not stored: it says them again to a coordinator that has
//! just started. Until then the whole run counts as lost.

use gangline_common::ids::{Epoch, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Seen};
use super::event::CheckpointWord;
use super::gang::Gang;
use super::job::{Job, JobState};

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

impl Core {
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
