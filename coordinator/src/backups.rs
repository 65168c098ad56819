//! Copies of the store that a coordinator makes by itself while it serves, a bounded number of them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_common::time::{Timestamp, wall_text};

use crate::config::Config;
use crate::store::StoreReader;
use crate::store::backup::{self, BackupError, Destination, Header, Reader, Summary};

const PREFIX: &str = "store-";
const SUFFIX: &str = ".backup";
/// How often the thread looks whether a copy is due; also how long it waits after a start.
const LOOK: Duration = Duration::from_secs(60);
/// After a copy that failed.
const RETRY: Duration = Duration::from_secs(600);

/// When copies are made, and how many stay.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub directory: PathBuf,
    /// `None` makes none.
    pub interval: Option<Duration>,
    pub keep: usize,
}

impl Schedule {
    pub fn of(config: &Config) -> Schedule {
        let interval = Some(config.backup_interval_s).filter(|seconds| *seconds > 0);
        Schedule {
            directory: config.backups(),
            interval: interval.map(Duration::from_secs),
            keep: config.backup_keep as usize,
        }
    }

    /// Makes a copy when the newest is older than the interval, then removes the oldest.
    ///
    /// # Errors
    /// The copy cannot be made; the older ones stay.
    pub fn make_if_due(
        &self,
        reader: &StoreReader,
        now: Timestamp,
    ) -> Result<Option<Summary>, BackupError> {
        let Some(interval) = self.interval else { return Ok(None) };
        let newest = list(&self.directory)?.into_iter().find_map(|path| header(&path));
        // A copy from the future says nothing: the clock was wrong then or is now.
        let age = newest.and_then(|header| now.wall_ms.checked_sub(header.wall_ms));
        if age.is_some_and(|ms| u128::from(ms) < interval.as_millis()) {
            return Ok(None);
        }
        make_directory(&self.directory)?;
        remove_unfinished(&self.directory)?;
        let mut copy = Destination::new(&self.directory.join(file_name(now.wall_ms)))?;
        reader.back_up(now.wall_ms, io::BufWriter::new(copy.file()))?;
        let summary = copy.publish()?;
        for old in list(&self.directory)?.into_iter().skip(self.keep) {
            std::fs::remove_file(old)?;
        }
        Ok(Some(summary))
    }
}

fn make_directory(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// `store-20261122T012546Z.backup`: the order of names is the order of times.
fn file_name(wall_ms: u64) -> String {
    let text = wall_text(wall_ms);
    let seconds = text.split('.').next().unwrap_or_default();
    let plain: String = seconds.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    format!("{PREFIX}{plain}Z{SUFFIX}")
}

/// The copies in a directory, newest first; none when it is not there.
pub fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            found.push(path);
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// What a process that was killed has left; only one coordinator works here.
fn remove_unfinished(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&format!(".{PREFIX}")) && name.ends_with(".part") {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn header(path: &Path) -> Option<Header> {
    Some(Reader::begin(backup::open(path).ok()?).ok()?.header().clone())
}

/// The newest copy that is whole.
pub fn newest_good(directory: &Path) -> Option<(PathBuf, Summary)> {
    list(directory).ok()?.into_iter().find_map(|path| {
        let summary = backup::verify(backup::open(&path).ok()?).ok()?;
        Some((path, summary))
    })
}

/// Looks after the schedule for as long as the process lives.
pub fn start(schedule: Schedule, reader: StoreReader) -> io::Result<()> {
    if schedule.interval.is_none() {
        return Ok(());
    }
    let run = move || {
        let mut pause = LOOK;
        loop {
            std::thread::sleep(pause);
            pause = LOOK;
            match schedule.make_if_due(&reader, Timestamp::now()) {
                Ok(None) => {}
                Ok(Some(copy)) => tracing::info!(copy = copy.sentence(), "backup"),
                Err(error) => {
                    let directory = schedule.directory.display();
                    tracing::error!(%error, %directory, "no backup was made; it is tried again");
                    pause = RETRY;
                }
            }
        }
    };
    std::thread::Builder::new().name("backups".to_owned()).spawn(run).map(drop)
}
