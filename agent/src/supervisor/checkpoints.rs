//! Watches where a job keeps its training checkpoints, for the newest one of this incarnation.
//!
//! The directory lies on a shared file system: a helper process looks (`files`), now and then, and
//! never a second one while the first hangs. Frameworks do not say which entry is a checkpoint; the
//! rules are in [`newest`].

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::MemberId;
use gangline_common::time::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::births::Nursery;
use super::files::{self, FilesError, Request, Task};
use super::process::{self, ProcessId};
use super::{MemberPlan, SupervisorEvent, TrainingCheckpoint};

/// Longest pause between two looks; they begin closer together.
const LOOK_EVERY: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// A look that takes longer is given up.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);
/// File systems tell times only so finely, in milliseconds.
const TIME_GRAIN_MS: u64 = 1_000;
/// Entries of the directory that one look considers; further ones are not seen.
const ENTRY_LIMIT: usize = 10_000;
/// Longest content of a file that names the newest checkpoint, in bytes.
const POINTER_BYTES: u64 = 256;
/// Files in which frameworks write, last of all, which checkpoint is the newest that is complete:
/// verl and Megatron, DeepSpeed.
const POINTERS: [&str; 2] = ["latest_checkpointed_iteration.txt", "latest"];
/// A name with one of these words is unfinished, or something else.
const OTHER_WORDS: [&str; 7] = ["tmp", "temp", "partial", "incomplete", "lock", "log", "tfevents"];
/// Files that end so are notes about the training.
const NOTES: [&str; 6] = ["txt", "json", "jsonl", "yaml", "yml", "csv"];

/// An entry that counts as a training checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    /// When it was changed last by the clock of its file system, in milliseconds since 1970.
    pub modified_ms: u64,
}

/// The newest training checkpoint in `directory`; none when there is no such directory. Blocks for
/// as long as the file system does.
///
/// Where a file names the newest one, that one, as of the time of that file. Else the entry that was
/// changed last, and neither is hidden nor has a name that says it is something else.
pub fn newest(directory: &Path) -> io::Result<Option<Entry>> {
    for pointer in POINTERS {
        if let Some(named) = by_pointer(directory, pointer)? {
            return Ok(named);
        }
    }
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut found: Option<Entry> = None;
    for entry in entries.take(ENTRY_LIMIT) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = match entry.metadata() {
            // It was removed in between.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        let kind = metadata.file_type();
        let counts = (kind.is_dir() || kind.is_file()) && may_be_one(&name, kind.is_file());
        let modified_ms = modified_ms(&metadata);
        let newest = |known: &Entry| (modified_ms, &name) > (known.modified_ms, &known.name);
        if counts && found.as_ref().is_none_or(newest) {
            found = Some(Entry { name, modified_ms });
        }
    }
    Ok(found)
}

/// What the file says; the outer `None` when there is no such file, the inner when what it names is
/// not there.
fn by_pointer(directory: &Path, pointer: &str) -> io::Result<Option<Option<Entry>>> {
    // A link or a directory of this name says nothing; what else is wrong shows at the next entry.
    let Ok(file) = files::open_regular(&directory.join(pointer)) else { return Ok(None) };
    let modified_ms = modified_ms(&file.metadata()?);
    let mut text = String::new();
    if file.take(POINTER_BYTES).read_to_string(&mut text).is_err() {
        return Ok(None);
    }
    let text = text.trim();
    let names = match text.parse::<u64>() {
        Ok(step) => vec![format!("global_step_{step}"), format!("iter_{step:07}")],
        Err(_) => vec![text.to_owned()],
    };
    let there = |name: &String| {
        !name.is_empty() && !name.contains(['/', '\0']) && directory.join(name).exists()
    };
    let named = names.into_iter().find(there);
    Ok(Some(named.map(|name| Entry { name, modified_ms })))
}

fn may_be_one(name: &str, is_file: bool) -> bool {
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let note = || name.rsplit_once('.').is_some_and(|(_, end)| NOTES.contains(&end));
    !name.starts_with('.')
        && !name.ends_with('~')
        && !words.any(|word| OTHER_WORDS.contains(&word.to_ascii_lowercase().as_str()))
        && !(is_file && (note() || POINTERS.contains(&name)))
}

fn modified_ms(metadata: &fs::Metadata) -> u64 {
    let ms =
        metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000);
    u64::try_from(ms).unwrap_or_default()
}

/// The watch over one member; ends with it.
pub(super) struct CheckpointsTask(tokio::task::JoinHandle<()>);

impl Drop for CheckpointsTask {
    fn drop(&mut self) {
        self.0.abort();
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

/// Begins to watch for rank 0, whose main process is `main`; `None` where there is nothing to watch.
pub(super) fn watch(
    plan: &MemberPlan,
    main: ProcessId,
    nursery: Arc<Nursery>,
    events: mpsc::Sender<SupervisorEvent>,
) -> Option<CheckpointsTask> {
    let directory = PathBuf::from(plan.assignment.checkpoint_directory.as_ref()?);
    if plan.key.member != MemberId::Rank(0) {
        return None;
    }
    let began_ms = main.started_ms().saturating_sub(TIME_GRAIN_MS);
    let task = look_again_and_again(plan.clone(), directory, began_ms, nursery, events);
    Some(CheckpointsTask(tokio::spawn(task)))
}

async fn look_again_and_again(
    plan: MemberPlan,
    directory: PathBuf,
    began_ms: u64,
    nursery: Arc<Nursery>,
    events: mpsc::Sender<SupervisorEvent>,
) {
    let request =
        Request { run_as: plan.assignment.run_as, task: Task::NewestCheckpoint(directory) };
    let mut known = Known::default();
    let mut pause = FIRST_PAUSE;
    loop {
        if !known.hanging.is_some_and(process::lives) {
            known.hanging = None;
            let asked_ms = Timestamp::now().boot_ms;
            match files::ask_helper::<Entry>(&nursery, &request, LOOK_TIMEOUT).await {
                Ok(found) => {
                    let made_ms = found.and_then(|found| {
                        let made_ms = known.made_ms(&found, Timestamp::now())?;
                        Some((found.name, made_ms))
                    });
                    known.looked_ms = Some(asked_ms);
                    // One of an earlier incarnation says nothing about the work of this one.
                    if let Some((name, made_ms)) = made_ms.filter(|(_, ms)| *ms >= began_ms) {
                        let checkpoint = TrainingCheckpoint { name, made_ms };
                        let key = plan.key.clone();
                        let event = SupervisorEvent::CheckpointMade { key, checkpoint };
                        if events.send(event).await.is_err() {
                            // The agent is ending; the next one looks again.
                            return;
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(key = %plan.key, %error, "no look at the training checkpoints");
                    if let FilesError::TimedOut { helper, .. } = error {
                        known.hanging = helper;
                    }
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = LOOK_EVERY.min(pause * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, FileTimes};
    use std::time::SystemTime;

    /// Makes entries, each a second newer than the one before; those that end in `/` are directories.
    fn directory(names: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (n, name) in (1u64..).zip(names) {
            let path = root.path().join(name.trim_end_matches('/'));
            if name.ends_with('/') {
                fs::create_dir(&path).unwrap();
            } else {
                fs::write(&path, "").unwrap();
            }
            touch(&path, n);
        }
        root
    }

    fn touch(path: &Path, second: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn entry(name: &str, second: u64) -> Option<Entry> {
        Some(Entry { name: name.to_owned(), modified_ms: second * 1000 })
    }

    #[test]
    fn the_entry_that_was_changed_last_counts_unless_it_is_something_else() {
        let root = directory(&[
            "checkpoint-10/",
            "epoch=1-step=20.ckpt",
            "checkpoint-30.tmp/",
            "tmp-checkpoint-30/",
            "30.orbax-checkpoint-tmp-17/",
            ".hidden/",
            "trainer_state.json",
            "train.log",
            "events.out.tfevents.17",
            "model.pt~",
        ]);
        assert_eq!(newest(root.path()).unwrap(), entry("epoch=1-step=20.ckpt", 2));
        touch(&root.path().join("checkpoint-10"), 90);
        assert_eq!(newest(root.path()).unwrap(), entry("checkpoint-10", 90));
        std::os::unix::fs::symlink("checkpoint-10", root.path().join("best")).unwrap();
        assert_eq!(newest(root.path()).unwrap(), entry("checkpoint-10", 90));
        assert_eq!(newest(&root.path().join("nowhere")).unwrap(), None);
    }

    #[test]
    fn a_file_that_names_the_newest_one_is_believed() {
        let root = directory(&["global_step_20/", "global_step_40/", "global_step_60/"]);
        let pointer = root.path().join("latest_checkpointed_iteration.txt");
        fs::write(&pointer, "40").unwrap();
        touch(&pointer, 50);
        // The next one is being written.
        assert_eq!(newest(root.path()).unwrap(), entry("global_step_40", 50));
        // It was removed: nothing is known to be complete.
        fs::write(&pointer, "80").unwrap();
        assert_eq!(newest(root.path()).unwrap(), None);

        let megatron = directory(&["iter_0000500/", "latest_checkpointed_iteration.txt"]);
        fs::write(megatron.path().join("latest_checkpointed_iteration.txt"), "500\n").unwrap();
        assert_eq!(newest(megatron.path()).unwrap().unwrap().name, "iter_0000500");

        let deepspeed = directory(&["global_step3/", "global_step4/", "latest"]);
        fs::write(deepspeed.path().join("latest"), "global_step3").unwrap();
        assert_eq!(newest(deepspeed.path()).unwrap().unwrap().name, "global_step3");
        for outside in ["../global_step3", "/etc/passwd", ""] {
            fs::write(deepspeed.path().join("latest"), outside).unwrap();
            assert_eq!(newest(deepspeed.path()).unwrap(), None, "{outside}");
        }
    }

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
}
