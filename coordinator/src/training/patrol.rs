//! The round over all running jobs: reads what is new of their logs, looks at their GPUs where it is
//! quiet, and tells the core who has stalled.

use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::MemberId;
use gangline_common::time::Timestamp;
use gangline_common::wire::request::AgentRequest;
use gangline_training::{Gpu, Pattern, Policy, Signs, Verdict, Watch, pattern};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, MissedTickBehavior};

use super::{Kept, Looking, Stalled, Training, Trainings, capture, whole, words};
use crate::agents::Agents;
use crate::board::{Board, JobSnapshot};
use crate::core::event::Event;
use crate::core::gang::Gang;
use crate::core::job::JobState;
use crate::core::node::Reachability;
use crate::core::stall::{HangAction, StallKind, StallWord};
use crate::driver::DriverHandle;
use crate::ingest::logs::Logs;
use crate::ingest::telemetry::{GPU, HOST, Record, Series, Telemetry};

/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// The readings that are looked at: not more than are kept of every second.
const WINDOW_MS: u64 = 110_000;
/// Gangs that are looked into at a time; further ones wait for their turn. And beside those, gangs that
/// have failed and whose scenes are kept: nobody waits for that.
const CAPTURES: usize = 2;
const KEEPS: usize = 2;

/// What the round needs.
pub struct Parts {
    pub driver: DriverHandle,
    pub board: Board,
    pub logs: Logs,
    pub telemetry: Telemetry,
    pub trainings: Trainings,
    pub agents: Agents,
}

/// Goes round for as long as the driver lives.
pub async fn run(parts: Parts) {
    let parts = Arc::new(parts);
    let captures = Arc::new(Semaphore::new(CAPTURES));
    let keeps = Arc::new(Semaphore::new(KEEPS));
    let mut ticks = tokio::time::interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let this = parts.clone();
        let (said, held) = match tokio::task::spawn_blocking(move || this.round()).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::error!(%error, "a round over the trainings failed");
                continue;
            }
        };
        for gang in held {
            let (agents, keeps) = (parts.agents.clone(), keeps.clone());
            tokio::spawn(async move {
                // Nobody closes it.
                let _turn = keeps.acquire().await;
                capture::keep(&agents, &gang).await;
            });
        }
        for word in said {
            tracing::info!(job = %word.job, kind = ?word.kind, text = word.text, "training");
            if parts.is_for_whoever_looks(&word) {
                continue;
            }
            if parts.wants_capture(&word) {
                // One for each job that hangs, and those of one job come minutes apart.
                let (this, captures) = (parts.clone(), captures.clone());
                tokio::spawn(async move {
                    this.tell_with_stacks(word, &captures).await;
                });
            } else if parts.driver.tell(Event::Stall(word)).await.is_err() {
                return;
            }
        }
    }
}

impl Parts {
    /// Whether the gang is looked into before a word is told: with the warning, which then names who is
    /// apart, and again before something is done about it.
    fn wants_capture(&self, word: &StallWord) -> bool {
        let action = || self.board.job(&word.job).map(|found| found.job.request.hang.action);
        let wants = match word.kind {
            StallKind::Stalled => true,
            StallKind::Hung => action().is_some_and(|action| action != HangAction::Notify),
            StallKind::Resumed | StallKind::Straggler | StallKind::StragglerOver => false,
        };
        if wants && word.kind == StallKind::Stalled {
            whole(&self.trainings.kept(&word.job).shown).looking = Looking::Somebody;
        }
        wants
    }

    /// Whether whoever looks at a training that has stalled, and has not told that yet, tells this word
    /// too, or nothing.
    fn is_for_whoever_looks(&self, word: &StallWord) -> bool {
        let kept = self.trainings.kept(&word.job);
        let mut shown = whole(&kept.shown);
        match (&shown.looking, word.kind) {
            (Looking::Somebody, StallKind::Resumed) => {
                shown.looking = Looking::Resumed(word.clone());
                true
            }
            (Looking::Somebody, StallKind::Hung) => {
                shown.looking = Looking::Superseded;
                false
            }
            _ => false,
        }
    }

    /// Has the agents look into the gang first: what follows the word may be its end.
    async fn tell_with_stacks(&self, mut word: StallWord, captures: &Semaphore) {
        let began = Instant::now();
        let until = began + capture::LIMIT;
        let Some(snapshot) = self.board.job(&word.job) else { return };
        if let Some(gang) = &snapshot.gang
            && snapshot.job.cluster.is_none()
        {
            // What is kept is how it stood when its time was over.
            let request = match word.kind {
                StallKind::Hung => |key| AgentRequest::KeepScene { key, hung: true },
                _ => |key| AgentRequest::Stacks { key },
            };
            let seen = match turn(captures, until).await {
                Some(_turn) => {
                    capture::capture(&self.agents, &self.board, gang, request, until).await
                }
                None => "no stacks: too many others hang".to_owned(),
            };
            tracing::info!(job = %word.job, seen, "training");
            word.text = format!("{}; {seen}", word.text);
        }
        word.for_ms += u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let kept = self.trainings.kept(&word.job);
        let is_warning = word.kind == StallKind::Stalled;
        {
            let mut shown = whole(&kept.shown);
            // What is over before it was told is not told.
            if is_warning && shown.looking != Looking::Somebody {
                shown.looking = Looking::Nobody;
                return;
            }
            match &mut shown.stalled {
                Some((attempt, stalled)) if *attempt == word.attempt => {
                    stalled.said = word.text.as_str().into();
                }
                // The word that it goes on is on its way, and nothing is done about it.
                Some(_) | None if !is_warning => return,
                Some(_) | None => {}
            }
        }
        // Without a driver there is nobody who waits for it.
        let _ = self.driver.tell(Event::Stall(word)).await;
        if is_warning {
            // It may have gone on just now: that comes after the warning.
            let looking = std::mem::take(&mut whole(&kept.shown).looking);
            if let Looking::Resumed(word) = looking {
                let _ = self.driver.tell(Event::Stall(word)).await;
            }
        }
    }

    /// What is to be said, and the gangs that have failed and are kept up since the last round.
    fn round(&self) -> (Vec<StallWord>, Vec<Arc<Gang>>) {
        let (mut said, mut held) = (Vec::new(), Vec::new());
        for job in self.board.jobs() {
            // What ends is looked at once more, and then no longer.
            let looks = match job.state {
                JobState::Running | JobState::Stopping | JobState::Held => !job.is_cluster(),
                state if state.is_terminal() => self.trainings.shown(&job.id).follows,
                _ => false,
            };
            let Some(snapshot) = looks.then(|| self.board.job(&job.id)).flatten() else { continue };
            let kept = self.trainings.kept(&job.id);
            said.extend(self.look(&kept, &snapshot, Timestamp::now()));
            if snapshot.job.state == JobState::Held
                && let Some(gang) = &snapshot.gang
                && !std::mem::replace(&mut whole(&kept.training).kept_scenes, true)
            {
                held.push(gang.clone());
            }
        }
        let board = &self.board;
        self.trainings.forget(|id| Some(!board.job(id)?.job.state.is_terminal()));
        (said, held)
    }

    fn look(&self, kept: &Kept, snapshot: &JobSnapshot, now: Timestamp) -> Vec<StallWord> {
        let mut training = whole(&kept.training);
        // Another attempt has ended the watch over the one before.
        training.read(&self.logs, snapshot, self.trainings.started, now);
        whole(&kept.shown).follows = !snapshot.job.state.is_terminal();
        let Some(attempt) = snapshot.attempts.last() else { return Vec::new() };
        let runs = snapshot.job.state == JobState::Running && attempt.ended.is_none();
        if !runs {
            training.watch = None;
            self.trainings.show(kept, &training);
            let mut shown = whole(&kept.shown);
            (shown.stalled, shown.slow) = (None, (0, Vec::new()));
            return Vec::new();
        }
        let mut watch = training.watch.take().unwrap_or_else(|| Watch::new(now.boot_ms));
        let saved = snapshot.checkpoint.as_ref().map(|checkpoint| checkpoint.made.boot_ms);
        // A time of before a reboot wraps around; it is none of this watch.
        saved.filter(|at| *at <= now.boot_ms).into_iter().for_each(|at| watch.line(at));
        let word = self.judge(&mut watch, &training, snapshot, now);
        let since = watch.stalled_since().map(|since| {
            let ago_ms = now.boot_ms.saturating_sub(since);
            let wall_ms = now.wall_ms.saturating_sub(ago_ms);
            Timestamp { boot_ms: since, wall_ms }
        });
        training.watch = Some(watch);
        self.trainings.show(kept, &training);
        // All ranks of a training that waits for one are equally slow.
        let compared = match since {
            None => self.compare(&mut training, snapshot, now),
            Some(_) => None,
        };
        let mut said = Vec::new();
        let mut shown = whole(&kept.shown);
        let before = shown.stalled.take().filter(|(number, _)| *number == attempt.number);
        let before = before.map(|(_, stalled)| stalled.said);
        let newest = word.as_ref().map(|(_, _, text)| text.as_str().into());
        shown.stalled = since.map(|since| {
            let said = newest.or(before).unwrap_or_default();
            (attempt.number, Stalled { since, said })
        });
        if let Some((words, slow)) = compared {
            said.extend(words);
            shown.slow = (attempt.number, slow);
        }
        if let Some((kind, for_ms, text)) = word {
            said.push(StallWord {
                job: snapshot.job.id.clone(),
                attempt: attempt.number,
                kind,
                for_ms,
                text,
            });
        }
        said
    }

    fn judge(
        &self,
        watch: &mut Watch,
        training: &Training,
        snapshot: &JobSnapshot,
        now: Timestamp,
    ) -> Option<(StallKind, u64, String)> {
        let hang = snapshot.job.request.hang;
        let policy = Policy { warn_after_ms: hang.warn_after_ms, after_ms: hang.after_ms };
        let gang = snapshot.gang.as_deref()?;
        let (gpus, gpu_pattern) = if watch.wants_gpus(now.boot_ms, &policy) {
            self.gpus(gang, snapshot, hang.warn_after_ms, now)
        } else {
            (0, Pattern::Unknown)
        };
        let progress = training.progress();
        let signs = Signs {
            now_ms: now.boot_ms,
            in_contact: self.is_in_contact(gang),
            gpus: gpu_pattern,
            step_ms: training.pace.step_ms().or_else(|| self.mean_step_ms(training, snapshot)),
        };
        Some(match watch.judge(&signs, &policy)? {
            Verdict::Stalled { quiet, for_ms } => {
                let text = words::quiet(quiet, for_ms, progress, gpus, gpu_pattern);
                (StallKind::Stalled, for_ms, text)
            }
            Verdict::Hung { quiet, for_ms } => {
                let text = words::quiet(quiet, for_ms, progress, gpus, gpu_pattern);
                (StallKind::Hung, for_ms, text)
            }
            Verdict::Resumed { after_ms } => {
                (StallKind::Resumed, after_ms, words::resumed(after_ms, progress))
            }
        })
    }

    /// Whether every node of the gang can say what happens there.
    fn is_in_contact(&self, gang: &Gang) -> bool {
        gang.members.values().all(|member| {
            let node = self.board.node(member.node.as_str());
            node.is_some_and(|found| {
                found.node.reachability == Reachability::Reachable && found.node.is_introduced()
            })
        })
    }

    /// Of steps that came before this process began: what one took in the mean since the attempt
    /// began. That counts its start as well, so it is too long rather than too short.
    fn mean_step_ms(&self, training: &Training, snapshot: &JobSnapshot) -> Option<f64> {
        let attempt = snapshot.attempts.last()?;
        let (rows, _) = training.series.since(0);
        let mut past = rows.filter(|row| row.attempt == attempt.number && row.wall_ms.is_none());
        let first = past.next()?.step;
        let steps = past.last().map_or(first, |row| row.step).saturating_sub(first).max(1);
        Some(self.trainings.started.ms_since(attempt.started) as f64 / steps as f64)
    }

    /// How many GPUs the attempt has, as far as its members tell, and what their readings say.
    fn gpus(
        &self,
        gang: &Gang,
        snapshot: &JobSnapshot,
        quiet_ms: u64,
        now: Timestamp,
    ) -> (usize, Pattern) {
        let since_ms = now.wall_ms.saturating_sub(quiet_ms.min(WINDOW_MS));
        let guest = snapshot.attempts.last().and_then(|attempt| attempt.guest.as_ref());
        let mine = |member: &MemberId| {
            guest.is_none_or(|guest| {
                guest.shares.iter().any(|share| MemberId::Rank(share.rank) == *member)
            })
        };
        let (mut gpus, mut rdma) = (Vec::new(), Vec::new());
        for (_, member) in gang.members.iter().filter(|(id, _)| mine(id)) {
            if member.gpus.is_empty() {
                continue;
            }
            let history = self.telemetry.history(&member.node, since_ms, false).unwrap_or_default();
            for uuid in &member.gpus {
                let slot = history.gpus.iter().position(|known| known == uuid);
                let of = |name| {
                    let place = place(&GPU, name);
                    let value = |record: &Record| *record.gpus.get(slot?)?.get(place?)?;
                    history.records.iter().filter_map(value).collect()
                };
                gpus.push(Gpu {
                    utilization: of("utilization_pct"),
                    power_w: of("power_w"),
                    tensor: of("tensor_active"),
                });
            }
            // What others send from there is none of this gang's.
            let alone = self.board.node(member.node.as_str()).is_some_and(|n| n.gangs.len() == 1);
            if alone {
                let place = place(&HOST, "rdma_bytes_per_s");
                let value = |record: &Record| *record.host.get(place?)?;
                rdma.push(history.records.iter().filter_map(value).collect());
            }
        }
        (gpus.len(), pattern(&gpus, &rdma))
    }
}

/// A place among those that are looked into; `None` when there is none in time.
async fn turn(captures: &Semaphore, until: Instant) -> Option<SemaphorePermit<'_>> {
    // Nobody closes it.
    tokio::time::timeout_at(until, captures.acquire()).await.ok()?.ok()
}

pub(super) fn place(all: &[Series], name: &str) -> Option<usize> {
    all.iter().position(|series| series.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_a_turn_past_the_limit() {
        let captures = Semaphore::new(1);
        // What is free is had at once, also when no time is left.
        let first = turn(&captures, Instant::now()).await;
        assert!(first.is_some());
        assert!(turn(&captures, Instant::now()).await.is_none());
        drop(first);
        assert!(turn(&captures, Instant::now()).await.is_some());
    }
}
