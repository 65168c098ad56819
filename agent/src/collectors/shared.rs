//! The shared file system, tried by a child process: a file is written, read and removed, and nobody but the
//! child waits for it.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use super::slot::{Outcome, Plan, Slot};
use super::storage::{Room, room};
use crate::supervisor::Nursery;
use crate::supervisor::files::{self, FilesError, Request, Task};
use crate::supervisor::process::{self, ProcessId};

/// How long a try may take.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is tried. A helper that hangs is looked after as often.
pub const PLAN: Plan = Plan {
    name: "shared",
    interval: Duration::from_secs(10),
    // The birth of a child is waited for as well.
    timeout: Duration::from_secs(20),
};
/// Least time from one try to the next: two that fail are no hiccup.
const GAP: Duration = Duration::from_secs(5);
/// Size of the file.
const BYTES: usize = 4096;

/// The newest try. Without a shared root there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedReading {
    pub outcome: CanaryOutcome,
    /// As the child saw it; `None` unless it got that far.
    pub room: Option<Room>,
}

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum CanaryOutcome {
    /// Written, read back and removed.
    Ok { took_ms: u32 },
    /// A step was refused, e.g. by a full or read-only file system.
    Failed { step: String, reason: String },
    /// No answer within [`TIMEOUT`]. The child was killed; one that cannot be killed is left behind, and there is
    /// no other try until it has ended.
    TimedOut { waiting_ms: u64 },
}

/// What the child answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryAnswer {
    took_ms: u32,
    /// The step that failed, and why.
    failed: Option<(String, String)>,
    room: Option<Room>,
}

/// In the child: tries the file system that holds `file`. Blocks for as long as that does.
pub fn try_out(file: &Path) -> CanaryAnswer {
    let begin = Instant::now();
    // The room first: what is full can say so, and then not take the file.
    let room = file.parent().map(room);
    let (room, failed) = match room {
        Some(Err(error)) => (None, Some(("statfs".to_owned(), error.to_string()))),
        Some(Ok(room)) => (Some(room), write_read_remove(file).err()),
        None => (None, write_read_remove(file).err()),
    };
    let took_ms = u32::try_from(begin.elapsed().as_millis()).unwrap_or(u32::MAX);
    CanaryAnswer { took_ms, failed, room }
}

fn write_read_remove(file: &Path) -> Result<(), (String, String)> {
    let step = |step: &str| {
        let step = step.to_owned();
        move |error: io::Error| (step, error.to_string())
    };
    let stamp = std::process::id().to_le_bytes();
    let content: Vec<u8> = stamp.iter().copied().cycle().take(BYTES).collect();
    // A file that a killed child left is taken over. A link that somebody made is not followed.
    let mut written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(file)
        .map_err(step("open"))?;
    let outcome = (|| {
        written.write_all(&content).map_err(step("write"))?;
        written.sync_all().map_err(step("sync"))?;
        let mut found = Vec::with_capacity(BYTES);
        let opened = files::open_regular(file).map_err(step("open again"))?;
        opened.take(BYTES as u64 + 1).read_to_end(&mut found).map_err(step("read"))?;
        if found != content {
            return Err(("read".to_owned(), "other bytes than were written".to_owned()));
        }
        Ok(())
    })();
    drop(written);
    let removed = std::fs::remove_file(file).map_err(step("remove"));
    outcome.and(removed)
}

/// Tries the file system again and again, for as long as it is polled.
pub struct SharedCollector {
    nursery: Arc<Nursery>,
    /// Where it is mounted, when that is known.
    root: watch::Receiver<Option<PathBuf>>,
    /// Name of the file, unlike that of every other node.
    file: String,
    timeout: Duration,
    /// Somebody does not want to wait for the next try.
    again: Arc<Notify>,
    /// A child that could not be killed, and since when it has been tried.
    hanging: Option<(ProcessId, Instant)>,
}

impl SharedCollector {
    /// `node` is the name that no other node of the fleet has.
    #[must_use]
    pub fn new(
        nursery: Arc<Nursery>,
        root: watch::Receiver<Option<PathBuf>>,
        node: &str,
        timeout: Duration,
    ) -> Self {
        let file = format!(".gangline-canary-{node}");
        SharedCollector { nursery, root, file, timeout, again: Arc::default(), hanging: None }
    }

    /// Tries as soon as [`GAP`] allows whenever `again` is told to.
    #[must_use]
    pub fn on_demand(self, again: Arc<Notify>) -> Self {
        SharedCollector { again, ..self }
    }

    /// Never ends.
    pub async fn run(mut self, slot: Arc<Slot<SharedReading>>) {
        let mut ticks = tokio::time::interval(PLAN.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut tried = tokio::time::Instant::now();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.again.notified() => tokio::time::sleep_until(tried + GAP).await,
            }
            tried = tokio::time::Instant::now();
            let root = self.root.borrow_and_update().clone();
            let Some(root) = root else { continue };
            slot.begin();
            let reading = self.read(&root).await;
            slot.end(reading);
        }
    }

    /// One try.
    ///
    /// # Errors
    /// No child could be had: nothing is known of the file system.
    pub async fn read(&mut self, root: &Path) -> Result<SharedReading, Outcome> {
        if let Some((child, since)) = self.hanging {
            if process::lives(child) {
                return Ok(SharedReading::timed_out(since.elapsed()));
            }
            self.hanging = None;
        }
        let begin = Instant::now();
        let request = Request { run_as: None, task: Task::TryOut(root.join(&self.file)) };
        match files::ask_helper::<CanaryAnswer>(&self.nursery, &request, self.timeout).await {
            Ok(Some(answer)) => Ok(answer.into()),
            Ok(None) => Err(Outcome::Failed("the helper found nothing to say".to_owned())),
            Err(FilesError::TimedOut { helper, .. }) => {
                self.hanging = helper.map(|helper| (helper, begin));
                Ok(SharedReading::timed_out(begin.elapsed()))
            }
            Err(error) => Err(Outcome::Failed(error.to_string())),
        }
    }
}

impl SharedReading {
    fn timed_out(waiting: Duration) -> Self {
        let waiting_ms = u64::try_from(waiting.as_millis()).unwrap_or(u64::MAX);
        SharedReading { outcome: CanaryOutcome::TimedOut { waiting_ms }, room: None }
    }
}

impl From<CanaryAnswer> for SharedReading {
    fn from(answer: CanaryAnswer) -> Self {
        let outcome = match answer.failed {
            None => CanaryOutcome::Ok { took_ms: answer.took_ms },
            Some((step, reason)) => CanaryOutcome::Failed { step, reason },
        };
        SharedReading { outcome, room: answer.room }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_leaves_nothing_behind() {
        let root = tempfile::tempdir().expect("directory");
        let file = root.path().join(".gangline-canary-n1");
        std::fs::write(&file, "of a child that was killed").expect("written");
        let answer = try_out(&file);
        assert_eq!(answer.failed, None);
        assert!(answer.room.is_some_and(|room| room.total_bytes > 0));
        assert_eq!(std::fs::read_dir(root.path()).expect("directory").count(), 0);
    }

    #[test]
    fn the_step_that_fails_is_named_and_links_are_not_followed() {
        let root = tempfile::tempdir().expect("directory");
        let missing = try_out(&root.path().join("not/there/file"));
        assert_eq!(missing.failed.map(|(step, _)| step).as_deref(), Some("statfs"));
        let (secret, link) = (root.path().join("secret"), root.path().join("link"));
        std::fs::write(&secret, "key").expect("written");
        std::os::unix::fs::symlink(&secret, &link).expect("link");
        let answer = SharedReading::from(try_out(&link));
        assert!(
            matches!(&answer.outcome, CanaryOutcome::Failed { step, .. } if step == "open"),
            "{answer:?}"
        );
        assert!(answer.room.is_some());
        assert_eq!(std::fs::read_to_string(&secret).expect("read"), "key");
    }

    #[tokio::test]
    async fn while_a_child_hangs_there_is_no_other_try() {
        let nursery = Arc::new(Nursery::new("/nonexistent/program".into()));
        let (_root, known) = watch::channel(None);
        let mut collector = SharedCollector::new(nursery, known, "n1", TIMEOUT);
        let own = process::stat(std::process::id()).expect("own process").id;
        let since = Instant::now().checked_sub(Duration::from_secs(7)).expect("a time");
        collector.hanging = Some((own, since));
        let reading = collector.read(Path::new("/")).await.expect("reading");
        assert!(
            matches!(reading.outcome, CanaryOutcome::TimedOut { waiting_ms } if waiting_ms >= 7000)
        );

        // It has ended: there is another try, for which there is no program here.
        let ended = ProcessId { start_time: own.start_time + 1, ..own };
        collector.hanging = Some((ended, since));
        assert!(matches!(collector.read(Path::new("/")).await, Err(Outcome::Failed(_))));
    }
}
