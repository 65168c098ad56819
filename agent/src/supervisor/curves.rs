//! The numbers in files of trackers (TensorBoard's event files, W&B's transaction logs), as a log: lines of
//! JSON as verl's file logger writes them.
//!
//! Such files hold images and graphs as well, so they are not shipped themselves. A helper process reads
//! what is new of them, now and then, as the job's user, and never a second one while the first hangs; the
//! agent appends the lines to a file in the member's spool, which goes the way of every log.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use gangline_common::ids::MemberId;
use gangline_training::{MAX_NAME_BYTES, MAX_RECORD_BYTES, Reading, scan, scan_run};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::MemberPlan;
use super::births::Nursery;
use super::files::{self, FilesError, Request, Task};
use super::process::{self, ProcessId};

/// The name of the log; the coordinator looks for steps in it.
pub const CURVES: &str = "metrics-tensorboard";
/// In the member's spool: the log, and how far the files of trackers were read.
const LOG_FILE: &str = "curves.jsonl";
const PLACES_FILE: &str = "curves.json";
/// Most bytes of the log.
const LOG_BYTES: u64 = 64 << 20;
/// Between two looks.
const EVERY: Duration = Duration::from_secs(5);
/// A look that takes longer is given up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The same, of the last look, which the member's end waits for.
const LAST_TIMEOUT: Duration = Duration::from_secs(3);
/// Looks in a row while there is more.
const AT_ONCE: usize = 16;
/// Files of each tracker: the newest.
const MAX_FILES: usize = 64;
/// Entries of directories that one look considers for each tracker.
const MAX_ENTRIES: usize = 10_000;
/// Most bytes that one look reads of a file, which hold a record at least, and of all.
const FILE_BYTES: u64 = 2 << 20;
const ALL_BYTES: u64 = 16 << 20;
/// One look goes on to no further file when it has so many bytes of lines.
const LINES_BYTES: usize = 1 << 20;
/// A file is of an earlier attempt when it was written so long before this one.
const CLOCK_SLACK: Duration = Duration::from_secs(5);

const _: () = assert!(FILE_BYTES > MAX_RECORD_BYTES + 16);

/// Whose files they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tracker {
    Tensorboard,
    Wandb,
}

impl Tracker {
    const ALL: [Tracker; 2] = [Tracker::Tensorboard, Tracker::Wandb];

    /// Where the environment of a job says that its files are.
    fn directory(self, variable: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        match self {
            Tracker::Tensorboard => variable("TENSORBOARD_DIR"),
            Tracker::Wandb => Some(variable("WANDB_DIR")?.join("wandb")),
        }
    }

    /// How deep below the directory they lie.
    fn depth(self) -> usize {
        match self {
            Tracker::Tensorboard => 6,
            Tracker::Wandb => 1,
        }
    }

    fn is_one(self, file: &str) -> bool {
        match self {
            Tracker::Tensorboard => file.contains(".tfevents."),
            Tracker::Wandb => file.ends_with(".wandb"),
        }
    }
}

/// What a helper is to look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackerFiles {
    pub directories: BTreeMap<Tracker, PathBuf>,
    /// Files that were not written since then, in milliseconds since 1970, are of no interest.
    pub since_ms: u64,
    /// How far each was read, by its path.
    pub places: BTreeMap<String, Place>,
}

/// How far one file was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub offset: u64,
    /// What follows is no record.
    pub is_damaged: bool,
}

/// What a look has found.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curves {
    pub lines: String,
    /// Of the files that there are.
    pub places: BTreeMap<String, Place>,
    /// Another look finds more.
    pub more: bool,
}

/// Reads what is new of the files. Blocks for as long as the file system does.
///
/// # Errors
/// A directory cannot be read; that there is none is no error. A file that cannot be read has nothing.
pub fn read(asked: &TrackerFiles) -> Result<Curves, FilesError> {
    let mut found = Curves::default();
    let mut left = ALL_BYTES;
    for (tracker, directory) in &asked.directories {
        let files = files_of(*tracker, directory, asked.since_ms);
        for file in files.map_err(files::io_error("look into", directory))? {
            let mut place = asked.places.get(&file.path).copied().unwrap_or_default();
            if left == 0 || found.lines.len() >= LINES_BYTES {
                found.more = true;
            } else if !place.is_damaged
                && let Err(error) = read_one(*tracker, &file, &mut place, &mut left, &mut found)
            {
                tracing::debug!(path = file.path, %error, "a tracker's file");
            }
            found.places.insert(file.path, place);
        }
    }
    Ok(found)
}

/// A file to be read.
struct TrackerFile {
    path: String,
    /// Runs in directories of their own: the path of that one.
    run: Option<String>,
}

fn read_one(
    tracker: Tracker,
    file: &TrackerFile,
    place: &mut Place,
    left: &mut u64,
    found: &mut Curves,
) -> io::Result<()> {
    let open = files::open_regular(Path::new(&file.path))?;
    let length = open.metadata()?.len();
    let wanted = length.saturating_sub(place.offset).min(FILE_BYTES);
    if wanted == 0 {
        return Ok(());
    }
    let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(0)];
    open.read_exact_at(&mut bytes, place.offset)?;
    *left = left.saturating_sub(wanted);
    let each = |reading| put_line(&mut found.lines, file.run.as_deref(), reading);
    let scanned = match tracker {
        Tracker::Tensorboard => scan(&bytes, each),
        Tracker::Wandb => scan_run(&bytes, place.offset, each),
    };
    place.offset = place.offset.saturating_add(scanned.used);
    place.is_damaged = scanned.is_damaged;
    // A long record is passed over once all of it is there.
    let behind = scanned.long.and_then(|long| place.offset.checked_add(long));
    if let Some(behind) = behind.filter(|behind| *behind <= length) {
        place.offset = behind;
        found.more |= behind < length;
    }
    found.more |= scanned.used > 0 && wanted == FILE_BYTES;
    Ok(())
}

/// One line; the values of a run in a directory of its own have its path before their names.
fn put_line(lines: &mut String, run: Option<&str>, reading: Reading) {
    let named = |name: String| match run {
        Some(run) => format!("{run}/{name}"),
        None => name,
    };
    let number = |value: f64| match serde_json::Number::from_f64(value) {
        Some(number) => serde_json::Value::Number(number),
        // JSON has no such numbers.
        None if value.is_nan() => "nan".into(),
        None if value > 0.0 => "inf".into(),
        None => "-inf".into(),
    };
    let values = reading.values.into_iter().map(|(name, value)| (named(name), number(value)));
    // A longer name is shown nowhere.
    let short = |(name, _): &(String, _)| name.len() <= MAX_NAME_BYTES;
    let data: serde_json::Map<String, serde_json::Value> = values.filter(short).collect();
    if data.is_empty() {
        return;
    }
    let line = serde_json::json!({ "step": reading.step, "data": data });
    lines.push_str(&line.to_string());
    lines.push('\n');
}

/// A tracker's files below a directory that were written since then: the newest, the one that was written
/// first before the others. Links are not followed.
fn files_of(tracker: Tracker, directory: &Path, since_ms: u64) -> io::Result<Vec<TrackerFile>> {
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(since_ms);
    let mut found = Vec::new();
    let mut open = vec![(directory.to_owned(), 0)];
    let mut seen = 0;
    while let Some((path, depth)) = open.pop() {
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(_) if depth > 0 => continue, // not ours to read, or something else by now
            entries => entries?,
        };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MAX_ENTRIES {
                break;
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < tracker.depth() {
                open.push((entry.path(), depth + 1));
            }
            let is_one = tracker.is_one(&entry.file_name().to_string_lossy());
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            if let (true, true, Ok(modified)) = (kind.is_file(), is_one, modified)
                && modified >= since
                && let Some(path) = entry.path().to_str()
            {
                found.push((modified, path.to_owned()));
            }
        }
    }
    found.sort();
    let over = found.len().saturating_sub(MAX_FILES);
    let run_of = |path: &str| {
        let below = Path::new(path).strip_prefix(directory).ok()?.parent()?.to_str()?;
        // W&B's are named by their moments, which say nothing.
        (tracker == Tracker::Tensorboard && !below.is_empty()).then(|| below.to_owned())
    };
    let files = found.into_iter().skip(over);
    Ok(files.map(|(_, path)| TrackerFile { run: run_of(&path), path }).collect())
}

// ---------------------------------------------------------------- the agent's side

/// Where the log is in a member's spool.
pub(super) fn log_of(spool: &Path) -> PathBuf {
    spool.join(LOG_FILE)
}

/// Reads for one member until it is dropped.
pub(super) struct CurvesTask {
    task: JoinHandle<Reader>,
    last: watch::Sender<bool>,
}

impl CurvesTask {
    /// Begins to read where there is something to be read: what all nodes share is rank 0's. The member
    /// began at `began_ms` of the wall clock; `roots` are where files of the job are looked for.
    pub fn begin(
        plan: &MemberPlan,
        began_ms: u64,
        roots: &[PathBuf],
        spool: &Path,
        nursery: &Arc<Nursery>,
    ) -> Option<CurvesTask> {
        let assignment = &plan.assignment;
        let variable = |wanted: &str| {
            let set = assignment.env.iter().rev().find(|(name, _)| name == wanted)?;
            let directory = PathBuf::from(&set.1);
            let plain = directory.components().all(|part| part != std::path::Component::ParentDir);
            let inside = roots.iter().any(|root| directory.starts_with(root));
            (plain && inside).then_some(directory)
        };
        let directory = |tracker: Tracker| Some((tracker, tracker.directory(&variable)?));
        let directories: BTreeMap<_, _> = Tracker::ALL.into_iter().filter_map(directory).collect();
        if plan.key.member != MemberId::Rank(0) || directories.is_empty() {
            return None;
        }
        let reader = Reader {
            label: plan.key.to_string(),
            asked: TrackerFiles {
                directories,
                since_ms: began_ms.saturating_sub(CLOCK_SLACK.as_millis() as u64),
                places: read_places(spool),
            },
            run_as: assignment.run_as,
            spool: spool.to_owned(),
            nursery: Arc::clone(nursery),
            hanging: None,
            is_full: false,
        };
        // It is there before the logs of the member are listed.
        if let Err(error) = reader.open_log() {
            tracing::warn!(key = %plan.key, %error, "no log for the numbers of trackers");
            return None;
        }
        let (last, is_last) = watch::channel(false);
        Some(CurvesTask { task: tokio::spawn(reader.run(is_last)), last })
    }

    /// The member has ended: reads what it wrote last, if that goes quickly.
    pub async fn finish(self) {
        self.last.send_replace(true);
        let mut task = self.task;
        match tokio::time::timeout(LAST_TIMEOUT, &mut task).await {
            Ok(Ok(mut reader)) => {
                let rest = reader.read_all(LAST_TIMEOUT);
                let _ = tokio::time::timeout(LAST_TIMEOUT, rest).await; // what is left out is said nowhere
            }
            Ok(Err(error)) => tracing::error!(%error, "reading trackers' files failed"),
            Err(_) => task.abort(),
        }
    }
}

struct Reader {
    label: String,
    asked: TrackerFiles,
    run_as: Option<(u32, u32)>,
    spool: PathBuf,
    nursery: Arc<Nursery>,
    /// A helper that was given up and does not end.
    hanging: Option<ProcessId>,
    is_full: bool,
}

impl Reader {
    async fn run(mut self, mut is_last: watch::Receiver<bool>) -> Reader {
        loop {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                // Without a sender nobody waits for the rest.
                _ = is_last.changed() => return self,
            }
            tokio::select! {
                () = self.read_all(TIMEOUT) => {}
                // A look that hangs is given up here, and its helper ends by itself.
                _ = is_last.changed() => return self,
            }
        }
    }

    async fn read_all(&mut self, timeout: Duration) {
        for _ in 0..AT_ONCE {
            match self.read_once(timeout).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(key = self.label, %error, "trackers' files were not read");
                    if let FilesError::TimedOut { helper, .. } = error {
                        self.hanging = helper;
                    }
                    return;
                }
            }
        }
    }

    /// Gives whether there is more.
    async fn read_once(&mut self, timeout: Duration) -> Result<bool, FilesError> {
        if self.is_full || self.hanging.is_some_and(process::lives) {
            return Ok(false);
        }
        let request = Request { run_as: self.run_as, task: Task::ReadTrackers(self.asked.clone()) };
        let found = files::ask_helper::<Curves>(&self.nursery, &request, timeout).await?;
        let Some(found) = found else { return Ok(false) };
        if found.places != self.asked.places {
            self.keep(&found.lines, found.places).map_err(FilesError::Helper)?;
        }
        Ok(found.more)
    }

    fn open_log(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(log_of(&self.spool))
    }

    /// Lines first: what is read twice after a crash is the same. What was not written is read again.
    fn keep(&mut self, lines: &str, places: BTreeMap<String, Place>) -> io::Result<()> {
        let mut log = self.open_log()?;
        let before = log.metadata()?.len();
        if before.saturating_add(lines.len() as u64) > LOG_BYTES {
            self.is_full = true;
            let over = "the rest of the trackers' files is left out";
            tracing::warn!(key = self.label, bytes = LOG_BYTES, over);
            return Ok(());
        }
        if let Err(error) = log.write_all(lines.as_bytes()) {
            let _ = log.set_len(before); // no half a line; else there is one in the log
            return Err(error);
        }
        self.asked.places = places;
        let places = serde_json::to_vec(&self.asked.places).map_err(io::Error::other)?;
        let unfinished = self.spool.join(format!(".{PLACES_FILE}.new"));
        fs::write(&unfinished, places)?;
        fs::rename(unfinished, self.spool.join(PLACES_FILE))
    }
}

/// What an earlier agent has left.
fn read_places(spool: &Path) -> BTreeMap<String, Place> {
    let text = fs::read(spool.join(PLACES_FILE)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gangline_common::time::Timestamp;

    /// What tensorboardX 2.6.5 writes: a version, then `loss` 0.5 at step 1 and 0.25 at step 2,
    /// and `acc` not a number at step 2.
    const EVENTS: &[u8] = include_bytes!("curves/events.out.tfevents.sample");

    fn asked(directory: &Path) -> TrackerFiles {
        let directories = [(Tracker::Tensorboard, directory.to_owned())].into();
        TrackerFiles { directories, since_ms: 0, places: BTreeMap::new() }
    }

    #[test]
    fn scalars_become_lines_and_are_read_once() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("val")).unwrap();
        let (file, val) = (
            root.path().join("events.out.tfevents.1.host.2.0"),
            root.path().join("val/events.out.tfevents.1.host.2.1"),
        );
        let cut = EVENTS.len() - 3;
        fs::write(&file, &EVENTS[..cut]).unwrap();
        let mut asked = asked(root.path());
        let found = read(&asked).unwrap();
        assert!(
            found.lines.starts_with("{\"data\":{\"loss\":0.5},\"step\":1}\n"),
            "{}",
            found.lines
        );
        assert!(!found.lines.contains("acc") && !found.more, "{}", found.lines);
        // What was being written is read when it is there.
        fs::write(&file, EVENTS).unwrap();
        fs::write(&val, EVENTS).unwrap();
        asked.places = found.places;
        let found = read(&asked).unwrap();
        assert!(
            found.lines.contains("{\"data\":{\"acc\":\"nan\"},\"step\":2}\n"),
            "{}",
            found.lines
        );
        assert!(found.lines.contains("{\"data\":{\"val/loss\":0.5},\"step\":1}\n"));
        assert_eq!(found.lines.matches("0.5").count(), 1, "nothing is read twice");
        asked.places = found.places;
        assert_eq!(read(&asked).unwrap().lines, "");
        // Of an earlier attempt nothing is read.
        asked.places.clear();
        asked.since_ms = Timestamp::now().wall_ms + 60_000;
        assert_eq!(read(&asked).unwrap(), Curves::default());
        asked.directories = [(Tracker::Tensorboard, root.path().join("nowhere"))].into();
        assert_eq!(read(&asked).unwrap(), Curves::default());
    }

    #[test]
    fn runs_of_wandb_become_lines_as_well() {
        /// See the tests of the training crate.
        const RUN: &[u8] = include_bytes!("../../../training/src/runs/run-sample.wandb");
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("wandb/offline-run-20261123_084050-a1");
        fs::create_dir_all(run.join("files")).unwrap();
        fs::write(run.join("files/deep.wandb"), RUN).unwrap();
        let file = run.join("run-a1.wandb");
        let mut asked = asked(&root.path().join("tensorboard"));
        asked.directories.insert(Tracker::Wandb, root.path().join("wandb"));
        let mut lines = String::new();
        for end in [5, 200, RUN.len() - 3, RUN.len()] {
            fs::write(&file, &RUN[..end]).unwrap();
            let found = read(&asked).unwrap();
            lines.push_str(&found.lines);
            asked.places = found.places;
        }
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0], r#"{"data":{"loss":0.5},"step":1}"#);
        assert_eq!(lines[1], r#"{"data":{"actor/acc":"nan","loss":0.25,"nested.a":3.0},"step":2}"#);
        assert_eq!(asked.places.len(), 1);
    }

    #[test]
    fn what_is_no_event_file_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let secret = outside.path().join("events.out.tfevents.1");
        fs::write(&secret, EVENTS).unwrap();
        std::os::unix::fs::symlink(&secret, root.path().join("events.out.tfevents.2")).unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("run")).unwrap();
        fs::write(root.path().join("notes.txt"), EVENTS).unwrap();
        fs::create_dir(root.path().join("events.out.tfevents.3")).unwrap();
        assert_eq!(read(&asked(root.path())).unwrap(), Curves::default());
        // Bytes that are none end the file, and are not tried again and again.
        let bad = root.path().join("events.out.tfevents.4");
        fs::write(&bad, [EVENTS, &[7; 100]].concat()).unwrap();
        let found = read(&asked(root.path())).unwrap();
        assert!(found.lines.contains("\"loss\":0.25"));
        let place = found.places[bad.to_str().unwrap()];
        assert_eq!(place, Place { offset: EVENTS.len() as u64, is_damaged: true });
    }

    #[test]
    fn what_was_not_written_is_read_again() {
        let spool = tempfile::tempdir().unwrap();
        let mut reader = Reader {
            label: String::new(),
            asked: asked(spool.path()),
            run_as: None,
            spool: spool.path().join("gone"),
            nursery: Arc::new(Nursery::new("/nonexistent".into())),
            hanging: None,
            is_full: false,
        };
        let places = BTreeMap::from([("events".to_owned(), Place::default())]);
        assert!(reader.keep("{}\n", places.clone()).is_err());
        assert!(reader.asked.places.is_empty());
        reader.spool = spool.path().to_owned();
        reader.keep("{}\n", places.clone()).unwrap();
        assert_eq!(reader.asked.places, places);
        assert_eq!(read_places(spool.path()), places);
        assert_eq!(fs::read_to_string(log_of(spool.path())).unwrap(), "{}\n");
    }

    #[test]
    fn a_look_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        let mut asked = asked(root.path());
        for n in 0..MAX_FILES + 10 {
            fs::write(root.path().join(format!("events.out.tfevents.{n}")), EVENTS).unwrap();
        }
        assert_eq!(read(&asked).unwrap().places.len(), MAX_FILES);
        fs::remove_dir_all(root.path()).unwrap();
        fs::create_dir(root.path()).unwrap();
        // 12 MB of records are read over several looks, in order and once.
        let records = EVENTS.repeat(12_000_000 / EVENTS.len());
        let expected = 12_000_000 / EVENTS.len();
        fs::write(root.path().join("events.out.tfevents.1"), &records).unwrap();
        let (mut count, mut looks) = (0, 0);
        loop {
            let found = read(&asked).unwrap();
            (count, looks) = (count + found.lines.matches("\"loss\":0.5").count(), looks + 1);
            asked.places = found.places;
            if !found.more {
                break;
            }
        }
        assert_eq!(count, expected);
        assert!(looks >= 3, "{looks}");
    }
}
