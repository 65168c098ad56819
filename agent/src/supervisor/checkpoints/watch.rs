//! Watches the training checkpoints of a member: for the newest one of its incarnation, for what there
//! is of complete ones, and for the room that is left.
//!
//! A helper process looks, now and then, and never a second one while the first hangs. Short looks find
//! the newest entry; a survey of everything follows when there is something new, or little room. Copies
//! are made beside them, and the last one also after the member has ended.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::MemberId;
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::{CopyReport, RoomReport, SavedCheckpoint, SavedReport};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::copy::{CopyOrder, CopyPlace, Unnamed};
use super::room::Complete;
use super::{Entry, Look, Survey};
use crate::supervisor::births::Nursery;
use crate::supervisor::files::{self, FilesError, Request, Task};
use crate::supervisor::process::{self, ProcessId};
use crate::supervisor::{MemberPlan, Saved, SupervisorEvent, TrainingCheckpoint};

/// Longest pause between two looks; they begin closer together.
const LOOK_EVERY: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// A look that takes longer is given up.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time between two surveys.
const SURVEY_EVERY: Duration = Duration::from_secs(300);
/// A survey may take this part of the time.
const PAUSE_PER_SURVEY: u32 = 10;
/// A survey, which may remove something, is given up after so long; the next one goes on with it.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(300);
/// File systems tell times only so finely, in milliseconds.
pub(super) const TIME_GRAIN_MS: u64 = 1_000;

/// When the member has ended, what it wrote last is waited for so long to be complete.
const LAST_PATIENCE: Duration = Duration::from_secs(180);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// After a copy that failed.
const COPY_RETRY: Duration = Duration::from_secs(300);
/// A copy may take so long, and eight times what it takes at full speed.
const COPY_TIMEOUT: Duration = Duration::from_secs(600);
const SLOWEST_COPY: u64 = 8;
/// Naming a copy, and removing older ones.
const NAME_TIMEOUT: Duration = Duration::from_secs(60);

/// The watch over one member; ends with it, but for the last copy.
pub(in crate::supervisor) struct CheckpointsTask {
    task: JoinHandle<()>,
    /// Tells it of the member's end; absent where no copies are made.
    ended: Option<watch::Sender<bool>>,
}

impl Drop for CheckpointsTask {
    fn drop(&mut self) {
        match &self.ended {
            Some(ended) => drop(ended.send_replace(true)),
            None => self.task.abort(),
        }
    }
}

/// What is known between two looks.
#[derive(Debug, Default)]
struct Known {
    newest: Option<Entry>,
    /// Boot-clock time of the last look that succeeded, in milliseconds.
    looked_ms: Option<u64>,
    hanging: Option<ProcessId>,
}

impl Known {
    /// No helper hangs in the file system.
    fn is_free(&self) -> bool {
        !self.hanging.is_some_and(process::lives)
    }

    /// When, on this machine's boot clock, an entry that was found now was made; `None` for one that
    /// was known.
    fn made_ms(&mut self, found: &Entry, now: Timestamp) -> Option<u64> {
        if self.newest.as_ref() == Some(found) {
            return None;
        }
        self.newest = Some(found.clone());
        let age_ms = now.wall_ms.saturating_sub(found.modified_ms);
        // What was not there at the last look is younger, whatever the clock of the file system says.
        Some(now.boot_ms.saturating_sub(age_ms).max(self.looked_ms.unwrap_or(0)))
    }
}

/// What the surveys so far have found.
#[derive(Debug, Default)]
struct Surveyed {
    last: Survey,
    began: Option<Instant>,
    took: Duration,
    /// There is something that the last one has not seen.
    has_news: bool,
    is_low: bool,
    /// How many were removed to make room, and the last of them.
    removed: u32,
    last_removed: Option<String>,
    /// What was said last.
    said: Option<SavedReport>,
}

/// The copies of complete training checkpoints.
#[derive(Debug, Default)]
struct Copies {
    report: CopyReport,
    /// Of which the last one is.
    copied: Option<Complete>,
    /// One that is being made, and of which.
    running: Option<(Complete, JoinHandle<Result<(), FilesError>>)>,
    /// Of which the last one failed, and when: another one is tried at once.
    failed: Option<(Complete, Instant)>,
    /// A helper that was given up and does not end.
    hanging: Option<ProcessId>,
}

impl Copies {
    /// What is being copied.
    fn of(&self) -> Option<&str> {
        self.running.as_ref().map(|(of, _)| of.name.as_str())
    }

    /// Whether to begin one of the newest that is complete.
    fn wants(&self, newest: &Complete) -> bool {
        self.running.is_none()
            && self.copied.as_ref() != Some(newest)
            && self
                .failed
                .as_ref()
                .is_none_or(|(of, at)| of != newest || at.elapsed() >= COPY_RETRY)
            && !self.hanging.is_some_and(process::lives)
    }

    /// Says no more that the newest one was copied when it was written again since.
    fn compare(&mut self, newest: &Complete) {
        if self.copied.as_ref() != Some(newest) && self.report.newest.as_ref() == Some(&newest.name)
        {
            self.report.newest = None;
        }
    }

    /// Notes how a copy has ended.
    fn ended(&mut self, of: Complete, outcome: Result<(), FilesError>) {
        match outcome {
            Ok(()) => {
                self.failed = None;
                self.report = CopyReport { newest: Some(of.name.clone()), problem: None };
                self.copied = Some(of);
            }
            Err(error) => {
                self.failed = Some((of, Instant::now()));
                self.report.problem = Some(error.to_string());
                if let FilesError::TimedOut { helper, .. } = error {
                    self.hanging = helper;
                }
            }
        }
    }
}

impl Surveyed {
    /// Whether it is time for another one, with so much free space.
    fn is_due(&self, free_bytes: Option<u64>) -> bool {
        let Some(began) = self.began else { return true };
        let room = self.last.room.zip(free_bytes);
        let low = room.is_some_and(|(mut room, free_bytes)| {
            room.free_bytes = free_bytes;
            room.is_low(self.is_low)
        });
        let wanted = self.has_news || self.last.is_open || low;
        let pause = if wanted { self.took * PAUSE_PER_SURVEY } else { SURVEY_EVERY };
        began.elapsed() >= pause
    }

    /// Takes a survey in. Gives what is to be said of it; nothing when it was said.
    fn take(
        &mut self,
        found: Survey,
        copy: Option<CopyReport>,
        now: Timestamp,
    ) -> Option<SavedReport> {
        self.is_low = found.room.is_some_and(|room| room.is_low(self.is_low));
        let removed = u32::try_from(found.for_room.len()).unwrap_or(u32::MAX);
        self.removed = self.removed.saturating_add(removed);
        self.last_removed = found.for_room.last().cloned().or(self.last_removed.take());
        let room = found.room.map_or((0, 0), |room| (room.free_bytes, room.next_bytes));
        let newest = found.newest.as_ref().map(|newest| SavedCheckpoint {
            name: newest.name.clone(),
            step: newest.step,
            bytes: newest.bytes,
            age_ms: now.wall_ms.saturating_sub(newest.changed_ms),
        });
        let report = SavedReport {
            newest,
            count: found.count,
            bytes: found.bytes,
            room: RoomReport {
                free_bytes: room.0,
                next_bytes: room.1,
                is_low: self.is_low,
                removed: self.removed,
                last_removed: self.last_removed.clone(),
            },
            copy,
        };
        let same = |known: &SavedReport| {
            // How much is free matters to people only when it is little.
            let free = known.room.is_low || report.room.is_low;
            let mut known = known.clone();
            if !free {
                known.room.free_bytes = report.room.free_bytes;
            }
            if let (Some(known), Some(newest)) = (&mut known.newest, &report.newest) {
                known.age_ms = newest.age_ms;
            }
            known == report
        };
        let changed = self.last.newest != found.newest;
        let has_copy = report.copy.as_ref().is_some_and(|copy| *copy != CopyReport::default());
        let is_news = found != Survey::default() || has_copy || self.said.is_some();
        self.last = found;
        if !is_news || (!changed && self.said.as_ref().is_some_and(same)) {
            return None;
        }
        self.said = Some(report.clone());
        Some(report)
    }
}

/// Begins to watch for rank 0, whose main process is `main`; `None` where there is nothing to watch.
pub(in crate::supervisor) fn watch(
    plan: &MemberPlan,
    main: ProcessId,
    place: Option<CopyPlace>,
    nursery: Arc<Nursery>,
    events: mpsc::Sender<SupervisorEvent>,
) -> Option<CheckpointsTask> {
    let directory = PathBuf::from(plan.assignment.checkpoint_directory.as_ref()?);
    if plan.key.member != MemberId::Rank(0) {
        return None;
    }
    let (ended, has_ended) = watch::channel(false);
    let watch = Watch {
        plan: plan.clone(),
        directory,
        began_ms: main.started_ms().saturating_sub(TIME_GRAIN_MS),
        nursery,
        events,
        known: Known::default(),
        surveyed: Surveyed::default(),
        place,
        copies: plan.assignment.checkpoint_copy.then(Copies::default),
        has_ended,
    };
    let ended = watch.copies.is_some().then_some(ended);
    Some(CheckpointsTask { task: tokio::spawn(watch.run()), ended })
}

/// The agent is ending, and the next one looks again.
struct Ending;

struct Watch {
    plan: MemberPlan,
    directory: PathBuf,
    /// When the member began, on the boot clock in milliseconds.
    began_ms: u64,
    nursery: Arc<Nursery>,
    events: mpsc::Sender<SupervisorEvent>,
    known: Known,
    surveyed: Surveyed,
    /// Where copies go.
    place: Option<CopyPlace>,
    /// Absent where the spec asks for none.
    copies: Option<Copies>,
    /// Whether the member has.
    has_ended: watch::Receiver<bool>,
}

impl Watch {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut ended: Option<Instant> = None;
        loop {
            if self.round().await.is_err() {
                return;
            }
            if *self.has_ended.borrow() {
                if let (None, Some(copies)) = (ended, &mut self.copies) {
                    copies.failed = None; // the last one is tried at once
                }
                let since = ended.get_or_insert_with(Instant::now).elapsed();
                if self.has_copied_all() || since > LAST_PATIENCE && !self.is_copying() {
                    return;
                }
                // Nothing is written any more: what is open may be complete by now.
                self.surveyed.has_news = true;
                tokio::time::sleep(LAST_PAUSE).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = LOOK_EVERY.min(pause * 2),
                // Without a sender the task is aborted instead.
                Ok(()) = self.has_ended.changed() => self.surveyed.has_news = true,
            }
        }
    }

    fn is_copying(&self) -> bool {
        self.copies.as_ref().is_some_and(|copies| copies.running.is_some())
    }

    fn has_copied_all(&self) -> bool {
        let (Some(copies), Some(_)) = (&self.copies, &self.place) else { return true };
        let has_last = self.surveyed.last.newest == copies.copied;
        has_last && !self.surveyed.last.is_open && !self.surveyed.has_news && !self.is_copying()
    }

    /// Collects a copy that has ended, and begins the next. Gives whether there is something to say.
    async fn copy(&mut self) -> bool {
        let Some(copies) = &mut self.copies else { return false };
        let mut news = false;
        if copies.running.as_ref().is_some_and(|(_, task)| task.is_finished())
            && let Some((of, task)) = copies.running.take()
        {
            let broken = |error: JoinError| Err(FilesError::Helper(io::Error::other(error)));
            let outcome = task.await.unwrap_or_else(broken);
            let (key, name) = (&self.plan.key, &of.name);
            match &outcome {
                Ok(()) => tracing::info!(%key, name, "a training checkpoint was copied"),
                Err(error) => tracing::warn!(%key, name, %error, "no copy of a checkpoint"),
            }
            copies.ended(of, outcome);
            news = true;
        }
        let Some(newest) = &self.surveyed.last.newest else { return news };
        if !copies.wants(newest) {
            return news;
        }
        let Some(place) = self.place.clone() else {
            let problem =
                "the agent's configuration has no checkpoint_copies and checkpoint_copy_key";
            copies.failed = Some((newest.clone(), Instant::now()));
            let said = copies.report.problem.replace(problem.to_owned());
            return news || said.as_deref() != Some(problem);
        };
        let assignment = &self.plan.assignment;
        let order = CopyOrder {
            directory: self.directory.clone(),
            name: newest.name.clone(),
            changed_ms: newest.changed_ms,
            bytes: newest.bytes,
            into: place.directory.join(assignment.job.as_str()),
            key_file: place.key_file.clone(),
            bytes_per_s: place.bytes_per_s,
        };
        let full_speed = newest.bytes / (place.bytes_per_s / SLOWEST_COPY).max(1);
        let timeout = COPY_TIMEOUT + Duration::from_secs(full_speed);
        let (run_as, keep) = (assignment.run_as, assignment.checkpoint_keep);
        let nursery = Arc::clone(&self.nursery);
        let task = copy_one(nursery, order, place, run_as, keep, timeout);
        copies.running = Some((newest.clone(), tokio::spawn(task)));
        news
    }

    async fn round(&mut self) -> Result<(), Ending> {
        if !self.known.is_free() {
            return Ok(());
        }
        self.known.hanging = None;
        let asked_ms = Timestamp::now().boot_ms;
        let task = Task::LookAtCheckpoints(self.directory.clone());
        let Some(look) = self.ask::<Look>(task, LOOK_TIMEOUT).await else { return Ok(()) };
        self.take_look(look.newest, asked_ms).await?;
        let copied = self.copy().await;
        if self.known.is_free() && (copied || self.surveyed.is_due(look.free_bytes)) {
            self.survey().await?;
            self.copy().await;
        }
        Ok(())
    }

    async fn take_look(&mut self, newest: Option<Entry>, asked_ms: u64) -> Result<(), Ending> {
        let made = newest.and_then(|found| {
            let made_ms = self.known.made_ms(&found, Timestamp::now())?;
            Some((found.name, made_ms))
        });
        self.known.looked_ms = Some(asked_ms);
        self.surveyed.has_news |= made.is_some();
        // One of an earlier incarnation says nothing about the work of this one.
        let Some((name, made_ms)) = made.filter(|(_, ms)| *ms >= self.began_ms) else {
            return Ok(());
        };
        let (key, checkpoint) = (self.plan.key.clone(), TrainingCheckpoint { name, made_ms });
        let event = SupervisorEvent::CheckpointMade { key, checkpoint };
        self.events.send(event).await.map_err(|_| Ending)
    }

    fn survey_task(&self) -> Task {
        let assignment = &self.plan.assignment;
        // Then the directory is the next incarnation's, or nobody's.
        let may_remove = !*self.has_ended.borrow();
        Task::SurveyCheckpoints {
            directory: self.directory.clone(),
            keep: assignment.checkpoint_keep.filter(|_| may_remove),
            // Nothing goes before it was told that there is little room.
            make_room: assignment.checkpoint_may_go && self.surveyed.is_low && may_remove,
            copying: self.copies.as_ref().and_then(Copies::of).map(str::to_owned),
        }
    }

    async fn survey(&mut self) -> Result<(), Ending> {
        let task = self.survey_task();
        let began = Instant::now();
        let found = self.ask::<Survey>(task, SURVEY_TIMEOUT).await;
        (self.surveyed.began, self.surveyed.took) = (Some(began), began.elapsed());
        let Some(found) = found else { return Ok(()) };
        self.surveyed.has_news = false;
        let key = &self.plan.key;
        for name in &found.surplus {
            tracing::info!(%key, name, "an old training checkpoint was removed");
        }
        for name in &found.for_room {
            tracing::warn!(%key, name, "an old training checkpoint was removed to make room");
        }
        if let Some(problem) = &found.problem {
            tracing::warn!(%key, problem, "old training checkpoints stay");
        }
        let now = Timestamp::now();
        if let (Some(copies), Some(newest)) = (&mut self.copies, &found.newest) {
            copies.compare(newest);
        }
        let copy = self.copies.as_ref().map(|copies| copies.report.clone());
        let Some(report) = self.surveyed.take(found, copy, now) else { return Ok(()) };
        let saved = Saved { report, at_ms: now.boot_ms };
        let event = SupervisorEvent::SavedChanged { key: self.plan.key.clone(), saved };
        self.events.send(event).await.map_err(|_| Ending)
    }

    async fn ask<T: DeserializeOwned>(&mut self, task: Task, timeout: Duration) -> Option<T> {
        let request = Request { run_as: self.plan.assignment.run_as, task };
        match files::ask_helper::<T>(&self.nursery, &request, timeout).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(key = %self.plan.key, %error, "no look at the training checkpoints");
                if let FilesError::TimedOut { helper, .. } = error {
                    self.known.hanging = helper;
                }
                None
            }
        }
    }
}

/// Makes one copy, when it is its turn.
async fn copy_one(
    nursery: Arc<Nursery>,
    order: CopyOrder,
    place: CopyPlace,
    run_as: Option<(u32, u32)>,
    keep: Option<u32>,
    timeout: Duration,
) -> Result<(), FilesError> {
    let closed = |_| FilesError::Helper(io::Error::other("copies have ended"));
    let _turn = place.turn.acquire().await.map_err(closed)?;
    let request = Request { run_as, task: Task::CopyCheckpoint(order.clone()) };
    let Some(made) = files::ask_helper::<Unnamed>(&nursery, &request, timeout).await? else {
        return Ok(()); // it was there already
    };
    let task = Task::NameCopy { order, unfinished: made.unfinished, keep };
    let request = Request { run_as: None, task };
    files::ask_helper::<()>(&nursery, &request, NAME_TIMEOUT).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::super::room::Room;
    use super::*;

    #[test]
    fn clocks_of_file_systems_make_no_checkpoint_older_than_the_look_that_did_not_see_it() {
        let mut known = Known::default();
        let at = |boot_ms, wall_ms| Timestamp { boot_ms, wall_ms };
        let found = |modified_ms| Entry { name: "a".to_owned(), modified_ms };
        // An agent that has just started has only the clocks.
        assert_eq!(known.made_ms(&found(9_000), at(5_000, 10_000)), Some(4_000));
        known.looked_ms = Some(5_000);
        assert_eq!(known.made_ms(&found(9_000), at(35_000, 40_000)), None);
        known.looked_ms = Some(35_000);
        // Written again under its name, on a server whose clock is slow, then fast.
        assert_eq!(known.made_ms(&found(12_000), at(65_000, 70_000)), Some(35_000));
        assert_eq!(known.made_ms(&found(99_000), at(66_000, 71_000)), Some(66_000));
        assert_eq!(known.made_ms(&found(60_000), at(66_000, 71_000)), Some(55_000));
    }

    #[test]
    fn nothing_is_removed_after_the_members_end() {
        let (mut plan, _) = crate::supervisor::fixtures::command_plan(0);
        let assignment = Arc::make_mut(&mut plan.assignment);
        (assignment.checkpoint_keep, assignment.checkpoint_may_go) = (Some(3), true);
        let (ended, has_ended) = watch::channel(false);
        let watch = Watch {
            plan,
            directory: PathBuf::from("/checkpoints"),
            began_ms: 0,
            nursery: Arc::new(Nursery::new("/nonexistent".into())),
            events: mpsc::channel(1).0,
            known: Known::default(),
            surveyed: Surveyed { is_low: true, ..Surveyed::default() },
            place: None,
            copies: None,
            has_ended,
        };
        let task = |keep, make_room| Task::SurveyCheckpoints {
            directory: PathBuf::from("/checkpoints"),
            keep,
            make_room,
            copying: None,
        };
        assert_eq!(watch.survey_task(), task(Some(3), true));
        ended.send_replace(true);
        assert_eq!(watch.survey_task(), task(None, false));
    }

    #[test]
    fn what_was_said_is_not_said_again() {
        let at = |wall_ms| Timestamp { boot_ms: wall_ms, wall_ms };
        let room = |free_bytes| Room { free_bytes, total_bytes: 0, next_bytes: 100 };
        let found = |free_bytes| Survey {
            newest: Some(Complete {
                name: "global_step_4".to_owned(),
                step: Some(4),
                bytes: 100,
                changed_ms: 1_000,
            }),
            count: 1,
            bytes: 100,
            room: Some(room(free_bytes)),
            ..Survey::default()
        };
        let mut surveyed = Surveyed::default();
        assert_eq!(surveyed.take(Survey::default(), None, at(0)), None, "there is nothing yet");
        let said = surveyed.take(found(5_000), None, at(3_000)).unwrap();
        assert_eq!(said.newest.map(|newest| newest.age_ms), Some(2_000));
        assert!(!said.room.is_low);
        assert_eq!(surveyed.take(found(4_000), None, at(9_000)), None);
        // A warning, and then what became of it.
        assert!(surveyed.take(found(250), None, at(9_000)).unwrap().room.is_low);
        let mut removed = found(350);
        removed.for_room = vec!["global_step_1".to_owned(), "global_step_2".to_owned()];
        let said = surveyed.take(removed, None, at(9_000)).unwrap().room;
        assert!(said.is_low && said.removed == 2, "{said:?}");
        assert_eq!(said.last_removed.as_deref(), Some("global_step_2"));
        assert!(!surveyed.take(found(900), None, at(9_000)).unwrap().room.is_low);
        // It is gone.
        assert_eq!(surveyed.take(Survey::default(), None, at(9_000)).unwrap().newest, None);
    }

    #[test]
    fn a_checkpoint_that_was_written_again_wants_a_copy_again() {
        let mut copies = Copies::default();
        let (name, step) = ("last".to_owned(), None);
        let first = Complete { name, step, bytes: 9, changed_ms: 1_000 };
        assert!(copies.wants(&first));
        copies.ended(first.clone(), Ok(()));
        assert!(!copies.wants(&first) && copies.report.newest.as_deref() == Some("last"));
        copies.compare(&first);
        assert_eq!(copies.report.newest.as_deref(), Some("last"));
        let later = Complete { changed_ms: 2_000, ..first.clone() };
        assert!(copies.wants(&later));
        copies.compare(&later);
        assert_eq!(copies.report.newest, None, "the copy is of what it was");
        let larger = Complete { bytes: 10, ..first };
        assert!(copies.wants(&larger));
        copies.ended(larger.clone(), Err(FilesError::Reported("no space".to_owned())));
        assert!(!copies.wants(&larger), "not at once");
    }

    #[test]
    fn a_survey_is_made_when_there_is_something_to_see() {
        let mut surveyed = Surveyed::default();
        assert!(surveyed.is_due(None));
        surveyed.began = Some(Instant::now());
        assert!(!surveyed.is_due(Some(0)), "nobody knows what a checkpoint takes");
        surveyed.last.room = Some(Room { free_bytes: 900, total_bytes: 0, next_bytes: 100 });
        assert!(!surveyed.is_due(Some(900)) && surveyed.is_due(Some(200)));
        surveyed.has_news = true;
        assert!(surveyed.is_due(Some(900)));
        surveyed.took = Duration::from_secs(60);
        assert!(!surveyed.is_due(Some(900)), "a slow file system is left alone");
    }
}
