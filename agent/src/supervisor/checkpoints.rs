//! Where a job keeps its training checkpoints: which entries are some, which are complete, how large
//! they are, and which of them may go.
//!
//! The directory lies on a shared file system, so everything here blocks and runs in a helper process
//! (`files`). Frameworks do not say which entry is a checkpoint; the rules are in [`newest`].

mod archive;
pub mod copy;
mod room;
mod seal;
pub(super) mod watch;

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::wire::checkpoint::ListedCheckpoint;
use gangline_common::wire::request::{FailureReason, RequestFailure};
use serde::{Deserialize, Serialize};

pub use self::room::{Look, Survey, look, survey};
use super::births::Nursery;
use super::files::{self, Request, Task};

/// A look that somebody waits for is given up after so long: less than a question of the coordinator.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
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

/// Files and directories of all listed checkpoints together that are looked at; further ones are not
/// counted.
const FILE_LIMIT: usize = 200_000;
/// Most checkpoints of one list: the newest.
const LIST_LIMIT: usize = 1000;
/// Where no file names the newest one, a checkpoint counts as complete when nothing in it was changed
/// for so long, in milliseconds.
const SETTLED_MS: u64 = 120_000;
/// How the names of what is being removed begin: no name of a checkpoint does.
const REMOVED: &str = ".gangline-removed-";
/// Most checkpoints that are removed at a time; the next look goes on.
const REMOVALS: usize = 16;

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

/// Every training checkpoint in `directory`, the one that was changed last first; none when there is no
/// such directory. Blocks for as long as the file system does.
pub fn list(directory: &Path, now_ms: u64) -> io::Result<Vec<ListedCheckpoint>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut pointed: Option<Entry> = None;
    let mut has_pointer = false;
    for pointer in POINTERS {
        if let (None, Some(named)) = (&pointed, by_pointer(directory, pointer)?) {
            (has_pointer, pointed) = (true, named);
        }
    }
    let newest = newest(directory)?.map(|entry| entry.name);
    let mut list = Vec::new();
    let mut left = FILE_LIMIT;
    for entry in entries.take(ENTRY_LIMIT) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(kind) = entry.file_type().ok().filter(|kind| kind.is_dir() || kind.is_file())
        else {
            continue;
        };
        if !may_be_one(&name, kind.is_file()) {
            continue;
        }
        let mut size = Size::default();
        let seen = size.add(&entry.path(), &mut left);
        let is_newest = newest.as_ref() == Some(&name);
        let complete = match &pointed {
            // Written last of all, the file says that what is older than itself is complete.
            Some(pointed) => name == pointed.name || size.changed_ms <= pointed.modified_ms,
            None if has_pointer => false,
            None => now_ms.saturating_sub(size.changed_ms) >= SETTLED_MS,
        };
        // What was not looked at as a whole may still be written.
        let complete = complete && seen;
        let Size { bytes, files, changed_ms } = size;
        list.push(ListedCheckpoint { name, changed_ms, bytes, files, complete, newest: is_newest });
    }
    list.sort_by(|a, b| (b.changed_ms, &b.name).cmp(&(a.changed_ms, &a.name)));
    list.truncate(LIST_LIMIT);
    Ok(list)
}

/// What a tree holds; links in it are not followed.
#[derive(Debug, Default)]
struct Size {
    bytes: u64,
    files: u64,
    /// Newest change of any file or directory of it.
    changed_ms: u64,
}

impl Size {
    /// Adds a file or directory and what is below it. What vanishes meanwhile is not counted; `left`
    /// bounds how many entries are looked at. Whether everything could be looked at.
    fn add(&mut self, path: &Path, left: &mut usize) -> bool {
        let mut open = vec![path.to_owned()];
        let mut seen = true;
        while let Some(path) = open.pop() {
            let metadata = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(_) => {
                    seen = false;
                    continue;
                }
                Ok(metadata) => metadata,
            };
            let Some(less) = left.checked_sub(1) else { return false };
            *left = less;
            self.changed_ms = self.changed_ms.max(modified_ms(&metadata));
            if metadata.is_dir() {
                let Ok(entries) = fs::read_dir(&path) else {
                    seen = false;
                    continue;
                };
                for entry in entries {
                    match entry {
                        Ok(entry) => open.push(entry.path()),
                        Err(_) => seen = false,
                    }
                }
            } else if metadata.is_file() {
                self.bytes = self.bytes.saturating_add(metadata.len());
                self.files += 1;
            }
        }
        seen
    }
}

/// The names of the training checkpoints that go when `keep` stay: complete ones of the same series of
/// numbers as the newest one, the lowest numbers first, and never the newest one or a later number.
fn surplus(list: &[ListedCheckpoint], keep: u32) -> Vec<String> {
    let Some(newest) = list.iter().find(|entry| entry.newest && entry.complete) else {
        return Vec::new();
    };
    let Some((series, last)) = numbered(&newest.name) else { return Vec::new() };
    if !counts_steps(&series) {
        return Vec::new();
    }
    let mut older: Vec<(u64, &str)> = list
        .iter()
        .filter(|entry| entry.complete && !entry.newest)
        .filter_map(|entry| {
            let (of, number) = numbered(&entry.name)?;
            (of == series && number < last).then_some((number, entry.name.as_str()))
        })
        .collect();
    older.sort_unstable();
    let stay = (keep.max(1) - 1) as usize;
    older.truncate(older.len().saturating_sub(stay));
    older.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// The name without its last number, and that number: `global_step_40` is 40 of `global_step_#`.
fn numbered(name: &str) -> Option<(String, u64)> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let before = name.get(..end)?.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name.get(before.len()..end)?.parse().ok()?;
    Some((format!("{before}#{}", name.get(end..)?), number))
}

/// Whether the number of a series is that of a step: others tell ranks, parts or seeds apart.
fn counts_steps(series: &str) -> bool {
    let before = series.split('#').next().unwrap_or_default().to_ascii_lowercase();
    let mut words = before.split(|c: char| !c.is_ascii_alphabetic()).rev();
    let word = words.find(|word| !word.is_empty()).unwrap_or_default();
    ["step", "steps", "iter", "iteration", "epoch", "checkpoint", "ckpt"].contains(&word)
}

/// Removes what is surplus but the one that is being copied, oldest first, and adds the names of what is
/// gone to `gone`. Blocks for as long as the file system does. A removal that is cut off leaves nothing
/// that looks like a training checkpoint.
///
/// Errors when the directory cannot be read, or something of it cannot be removed.
fn retain(
    directory: &Path,
    keep: u32,
    copying: Option<&str>,
    now_ms: u64,
    gone: &mut Vec<String>,
) -> io::Result<()> {
    let keep = keep.max(fewest(directory)?);
    let mut names = surplus(&list(directory, now_ms)?, keep);
    names.retain(|name| Some(name.as_str()) != copying);
    for name in names.iter().take(REMOVALS) {
        remove_checkpoint(directory, name, gone)?;
    }
    Ok(())
}

/// Removes what removals that were cut off have left.
fn sweep(directory: &Path) -> io::Result<()> {
    for left in fs::read_dir(directory)?.take(ENTRY_LIMIT).flatten() {
        if left.file_name().to_string_lossy().starts_with(REMOVED) {
            remove(&left.path())?;
        }
    }
    Ok(())
}

/// So many stay at least. Without a word of the framework the newest one may be incomplete after all:
/// then it is two.
fn fewest(directory: &Path) -> io::Result<u32> {
    for pointer in POINTERS {
        if by_pointer(directory, pointer)?.is_some() {
            return Ok(1);
        }
    }
    Ok(2)
}

/// Removes one that is a directory; whether it did. What goes is first given another name, and is in
/// `gone` from then on.
fn remove_checkpoint(directory: &Path, name: &str, gone: &mut Vec<String>) -> io::Result<bool> {
    // A file may be one of many that make a checkpoint together.
    let kind = fs::symlink_metadata(directory.join(name));
    if !kind.is_ok_and(|kind| kind.is_dir()) {
        return Ok(false);
    }
    let aside = directory.join(format!("{REMOVED}{name}"));
    match fs::rename(directory.join(name), &aside) {
        // The job has removed it itself.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        renamed => renamed?,
    }
    gone.push(name.to_owned());
    remove(&aside)?;
    Ok(true)
}

/// The step that a name says, where its number is one of a step.
fn step_of(name: &str) -> Option<u64> {
    numbered(name).filter(|(series, _)| counts_steps(series)).map(|(_, number)| number)
}

/// Removes a file, a link, or a directory with everything in it; no link is followed.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
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

/// The training checkpoints in a directory, as JSON, for a question of the coordinator.
///
/// # Errors
/// The file system does not answer in time, or not well.
pub async fn answer(nursery: &Arc<Nursery>, directory: &str) -> Result<Vec<u8>, RequestFailure> {
    let request = Request { run_as: None, task: Task::ListCheckpoints(PathBuf::from(directory)) };
    let failure = |text| RequestFailure { reason: FailureReason::NoAnswer, text };
    let listed =
        files::ask_helper::<Vec<ListedCheckpoint>>(nursery, &request, ANSWER_TIMEOUT).await;
    let listed = listed.map_err(|error| failure(error.to_string()))?.unwrap_or_default();
    serde_json::to_vec(&listed).map_err(|error| failure(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gangline_common::time::Timestamp;
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

    const HOUR_MS: u64 = 3_600_000;

    fn retain(directory: &Path, keep: u32, now_ms: u64) -> io::Result<Vec<String>> {
        let mut gone = Vec::new();
        super::retain(directory, keep, None, now_ms, &mut gone).map(|()| gone)
    }

    fn names(list: &[ListedCheckpoint], of: impl Fn(&ListedCheckpoint) -> bool) -> Vec<&str> {
        list.iter().filter(|entry| of(entry)).map(|entry| entry.name.as_str()).collect()
    }

    #[test]
    fn what_is_listed_has_its_size_and_says_whether_it_is_complete() {
        let root = directory(&["global_step_20/", "global_step_40/", "train.log"]);
        let deep = root.path().join("global_step_40/actor");
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("model.pt"), [0; 1000]).unwrap();
        std::os::unix::fs::symlink("/etc", deep.join("link")).unwrap();
        let now_ms = Timestamp::now().wall_ms;
        let listed = list(root.path(), now_ms).unwrap();
        assert_eq!(names(&listed, |_| true), ["global_step_40", "global_step_20"]);
        assert_eq!((listed[0].bytes, listed[0].files), (1000, 1));
        // Nothing names it, and it has just been written to.
        assert_eq!(names(&listed, |entry| entry.complete), ["global_step_20"]);
        assert_eq!(names(&listed, |entry| entry.newest), ["global_step_40"]);
        let later = list(root.path(), now_ms + HOUR_MS).unwrap();
        assert_eq!(names(&later, |entry| entry.complete).len(), 2);

        let pointer = root.path().join("latest_checkpointed_iteration.txt");
        fs::write(&pointer, "20").unwrap();
        touch(&pointer, 10);
        let listed = list(root.path(), now_ms + HOUR_MS).unwrap();
        assert_eq!(names(&listed, |entry| entry.complete), ["global_step_20"]);
        assert_eq!(names(&listed, |entry| entry.newest), ["global_step_20"]);
        fs::write(&pointer, "80").unwrap();
        let listed = list(root.path(), now_ms + HOUR_MS).unwrap();
        assert_eq!(names(&listed, |entry| entry.complete || entry.newest), [""; 0]);
        assert_eq!(list(&root.path().join("nowhere"), now_ms).unwrap(), []);
    }

    #[test]
    fn the_oldest_of_the_newest_ones_series_go_and_nothing_else() {
        let root = directory(&[
            "global_step_9/",
            "global_step_100/",
            "best_step_3/",
            "final/",
            "global_step_20/",
            "global_step_40/",
            "notes.txt",
        ]);
        std::os::unix::fs::symlink(root.path().join("final"), root.path().join("global_step_1"))
            .unwrap();
        fs::write(root.path().join("global_step_9/model.pt"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("global_step_9/etc")).unwrap();
        touch(&root.path().join("global_step_9"), 1);
        let now_ms = Timestamp::now().wall_ms + HOUR_MS;
        // The newest is the one that was changed last; a higher number is of another run.
        assert_eq!(retain(root.path(), 2, now_ms).unwrap(), ["global_step_9"]);
        assert_eq!(retain(root.path(), 2, now_ms).unwrap(), [""; 0]);
        // Only a pointer says for certain that the newest one is complete.
        assert_eq!(retain(root.path(), 1, now_ms).unwrap(), [""; 0]);
        fs::write(root.path().join("latest"), "global_step_40").unwrap();
        assert_eq!(retain(root.path(), 1, now_ms).unwrap(), ["global_step_20"]);
        assert_eq!(retain(root.path(), 1, now_ms).unwrap(), [""; 0]);
        let mut left: Vec<String> = fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let stays = [
            "best_step_3",
            "final",
            "global_step_1",
            "global_step_100",
            "global_step_40",
            "latest",
            "notes.txt",
        ];
        assert_eq!(left, stays);
        assert!(Path::new("/etc/passwd").exists());
    }

    #[test]
    fn nothing_goes_while_the_newest_one_is_not_known_to_be_complete() {
        let root = directory(&["step_1/", "step_2/", "step_3/"]);
        fs::write(root.path().join("step_3/model.pt"), "x").unwrap();
        let now_ms = Timestamp::now().wall_ms;
        assert_eq!(retain(root.path(), 1, now_ms).unwrap(), [""; 0]);
        assert_eq!(retain(root.path(), 1, now_ms + HOUR_MS).unwrap(), ["step_1"]);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn parts_of_one_checkpoint_are_no_series() {
        let root = directory(&["step_1/", "step_2/"]);
        for rank in 0..4 {
            fs::write(root.path().join(format!("global_step_40_rank_{rank}.pt")), "x").unwrap();
            fs::create_dir(root.path().join(format!("seed_{rank}"))).unwrap();
        }
        fs::write(root.path().join("global_step_50.pt"), "x").unwrap();
        let now_ms = Timestamp::now().wall_ms + HOUR_MS;
        for newest in ["global_step_40_rank_3.pt", "seed_3", "global_step_50.pt"] {
            touch(&root.path().join(newest), 0);
            assert_eq!(retain(root.path(), 1, now_ms).unwrap(), [""; 0], "{newest}");
        }
        let series = ["global_step_#", "epoch=1-step=#.ckpt", "iter_#", "ckpt-#"];
        assert!(series.into_iter().all(counts_steps));
        assert!(!["rank_#", "step_1_of_#", "model-#-of-8", "#"].into_iter().any(counts_steps));
    }

    #[test]
    fn numbers_make_a_series() {
        let of = numbered;
        assert_eq!(of("global_step_40"), Some(("global_step_#".to_owned(), 40)));
        assert_eq!(of("epoch=1-step=20.ckpt"), Some(("epoch=1-step=#.ckpt".to_owned(), 20)));
        assert_eq!(of("iter_0000500"), Some(("iter_#".to_owned(), 500)));
        assert_eq!(of("final"), None);
    }
}
