//! Encrypted copies of training checkpoints in another place: made by a helper process, slowly, one at a
//! time, and never in the way of the job.
//!
//! The copy grows under a hidden name as its owner, the agent's user; only the reading is done as the
//! job's. It gets its own name when it is complete and on the disk, and has the time at which the
//! checkpoint was changed last: one that was written again since then is copied again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use gangline_common::random;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::seal::{CopyKey, Opener, Sealer};
use super::watch::TIME_GRAIN_MS;
use super::{FILE_LIMIT, Size, archive, counts_steps, modified_ms, numbered};

/// What the names of copies end with.
const ENDING: &str = ".glcopy";
/// And those of unfinished ones.
const UNFINISHED: &str = ".part";

/// Where copies go, from the agent's configuration.
#[derive(Debug, Clone)]
pub struct CopyPlace {
    /// Each job has a directory below it.
    pub directory: PathBuf,
    pub key_file: PathBuf,
    /// Most bytes in a second.
    pub bytes_per_s: u64,
    /// One copy of a node at a time.
    pub turn: Arc<Semaphore>,
}

/// What is to be copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOrder {
    /// The checkpoint directory, and the name of an entry there.
    pub directory: PathBuf,
    pub name: String,
    /// What it was when it was found complete: its last change, in milliseconds since 1970, and its size.
    pub changed_ms: u64,
    pub bytes: u64,
    /// The directory of the job's copies.
    pub into: PathBuf,
    pub key_file: PathBuf,
    pub bytes_per_s: u64,
}

impl CopyOrder {
    /// Fails when the checkpoint is not what was found complete any more.
    fn is_as_found(&self) -> io::Result<()> {
        let mut size = Size::default();
        let seen = size.add(&self.directory.join(&self.name), &mut { FILE_LIMIT });
        if !seen || (size.changed_ms, size.bytes) != (self.changed_ms, self.bytes) {
            let changed = "the checkpoint changed after it was found complete";
            return Err(io::Error::new(ErrorKind::InvalidData, changed));
        }
        Ok(())
    }
}

/// A copy that has all bytes and not its name yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unnamed {
    pub unfinished: PathBuf,
    /// Of the files in the checkpoint.
    pub bytes: u64,
}

/// A copy that has begun; the rest may be done as the job's user.
pub struct Begun {
    order: CopyOrder,
    key: CopyKey,
    unfinished: PathBuf,
    file: File,
}

/// Begins a copy as the agent's user; `None` when there is one already. An unfinished one of the job is
/// removed, so that there is never more than one: whoever still writes it cannot name it any more.
///
/// # Errors
/// The key cannot be used, or the place cannot be written.
pub fn begin(order: &CopyOrder) -> io::Result<Option<Begun>> {
    let key = CopyKey::read(&order.key_file)?;
    DirBuilder::new().recursive(true).mode(0o700).create(&order.into)?;
    remove_unfinished(&order.into)?;
    let there = fs::symlink_metadata(order.into.join(format!("{}{ENDING}", order.name)));
    if there.is_ok_and(|there| modified_ms(&there).abs_diff(order.changed_ms) < TIME_GRAIN_MS) {
        return Ok(None);
    }
    let unique = format!(".{:016x}{UNFINISHED}", random::number().map_err(io::Error::other)?);
    let unfinished = order.into.join(unique);
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
    Ok(Some(Begun { order: order.clone(), key, unfinished, file }))
}

impl Begun {
    /// Copies all bytes, as long as `goes_on`. Blocks, and takes its time.
    ///
    /// # Errors
    /// The checkpoint cannot be read or changes, or the copy cannot be written.
    pub fn fill(self, goes_on: impl Fn() -> bool) -> io::Result<Unnamed> {
        let filled = self.fill_file(goes_on);
        if filled.is_err() {
            let _ = self.file.set_len(0); // the next copy removes it, however large
        }
        let bytes = filled?;
        Ok(Unnamed { unfinished: self.unfinished, bytes })
    }

    fn fill_file(&self, goes_on: impl Fn() -> bool) -> io::Result<u64> {
        let CopyOrder { directory, name, bytes_per_s, .. } = &self.order;
        self.order.is_as_found()?;
        let pace = Paced {
            out: &self.file,
            began: Instant::now(),
            written: 0,
            bytes_per_s: (*bytes_per_s).max(1),
            goes_on,
        };
        let mut sealer = Sealer::new(pace, &self.key)?;
        let bytes = archive::write(directory, name, &mut sealer)?;
        sealer.finish()?;
        self.file.sync_all()?;
        self.order.is_as_found()?;
        Ok(bytes)
    }
}

/// Writes no faster than it may.
struct Paced<W, G> {
    out: W,
    began: Instant,
    written: u64,
    bytes_per_s: u64,
    goes_on: G,
}

impl<W: Write, G: Fn() -> bool> Write for Paced<W, G> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !(self.goes_on)() {
            return Err(io::Error::new(
                ErrorKind::ConnectionAborted,
                "nobody wants the copy any more",
            ));
        }
        let written = self.out.write(bytes)?;
        self.written = self.written.saturating_add(written as u64);
        let due = Duration::from_secs_f64(self.written as f64 / self.bytes_per_s as f64);
        if let Some(ahead) = due.checked_sub(self.began.elapsed()) {
            std::thread::sleep(ahead);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Gives a copy its name, as the agent's user, and removes those of lower steps but `keep`. An earlier
/// copy of that name is replaced.
///
/// # Errors
/// It cannot be renamed.
pub fn finish(order: &CopyOrder, unfinished: &Path, keep: Option<u32>) -> io::Result<()> {
    let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(order.changed_ms));
    if let Some(changed) = changed {
        let _ = File::open(unfinished)?.set_modified(changed); // else it is made again some time
    }
    fs::rename(unfinished, order.into.join(format!("{}{ENDING}", order.name)))?;
    File::open(&order.into)?.sync_all()?;
    let Some((series, step)) = numbered(&order.name).filter(|(series, _)| counts_steps(series))
    else {
        return Ok(());
    };
    let Some(keep) = keep else { return Ok(()) };
    let mut older = Vec::new();
    for entry in fs::read_dir(&order.into)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(ENDING) else { continue };
        match numbered(name) {
            Some((of, number)) if of == series && number < step => {
                older.push((number, entry.path()));
            }
            _ => {}
        }
    }
    older.sort_unstable();
    let stay = (keep.max(1) - 1) as usize;
    older.truncate(older.len().saturating_sub(stay));
    older.into_iter().try_for_each(|(_, path)| fs::remove_file(path))
}

/// Removes what copies that failed have left, and agents that died.
fn remove_unfinished(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(UNFINISHED) {
            // One that does not go costs room, and stands in nobody's way.
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(path = %entry.path().display(), %error, "an unfinished copy stays");
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Makes the training checkpoint of a copy again in the directory `into`, and gives its name.
///
/// # Errors
/// The key is another one, the copy is damaged or cut, or there is something of that name.
pub fn restore(copy: &Path, key_file: &Path, into: &Path) -> io::Result<String> {
    let key = CopyKey::read(key_file)?;
    let file = BufReader::with_capacity(1 << 20, File::open(copy)?);
    archive::restore(&mut Opener::new(file, &key)?, into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn order(root: &Path, name: &str) -> CopyOrder {
        let key_file = root.join("key");
        fs::write(&key_file, "5c".repeat(32)).unwrap();
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
        let directory = root.join("checkpoints");
        let model = directory.join(name).join("actor/model.pt");
        fs::create_dir_all(model.parent().unwrap()).unwrap();
        fs::write(model, vec![9; 2_500_000]).unwrap();
        let into = root.join("copies/j-1");
        let (name, bytes_per_s) = (name.to_owned(), 1 << 40);
        let (changed_ms, bytes) = found(&directory.join(&name));
        CopyOrder { directory, name, changed_ms, bytes, into, key_file, bytes_per_s }
    }

    fn found(checkpoint: &Path) -> (u64, u64) {
        let mut size = Size::default();
        assert!(size.add(checkpoint, &mut { FILE_LIMIT }));
        (size.changed_ms, size.bytes)
    }

    fn change(order: &mut CopyOrder, byte: u8) {
        let model = order.directory.join(&order.name).join("actor/model.pt");
        fs::write(&model, vec![byte; 2_500_000]).unwrap();
        let later = SystemTime::now() + Duration::from_secs(u64::from(byte));
        File::open(model).unwrap().set_modified(later).unwrap();
        (order.changed_ms, order.bytes) = found(&order.directory.join(&order.name));
    }

    fn copied(order: &CopyOrder, keep: Option<u32>) -> PathBuf {
        let unnamed = begin(order).unwrap().unwrap().fill(|| true).unwrap();
        assert_eq!(unnamed.bytes, 2_500_000);
        finish(order, &unnamed.unfinished, keep).unwrap();
        order.into.join(format!("{}{ENDING}", order.name))
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_copy_is_made_once_and_restored_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let order = order(root.path(), "global_step_40");
        let copy = copied(&order, None);
        assert!(begin(&order).unwrap().is_none(), "it is there already");
        let sealed = fs::read(&copy).unwrap();
        assert!(!sealed.windows(8).any(|window| window == [9; 8]), "it can be read");
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
        let into = root.path().join("again");
        fs::create_dir(&into).unwrap();
        assert_eq!(restore(&copy, &order.key_file, &into).unwrap(), "global_step_40");
        let model = fs::read(into.join("global_step_40/actor/model.pt")).unwrap();
        assert!(model == vec![9; 2_500_000]);
    }

    #[test]
    fn a_copy_that_was_tampered_with_or_cut_makes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let order = order(root.path(), "global_step_40");
        let copy = copied(&order, None);
        let whole = fs::read(&copy).unwrap();
        let into = root.path().join("again");
        fs::create_dir(&into).unwrap();
        let mut changed = whole.clone();
        changed[2_000_000] ^= 1;
        // The cut at the end of a chunk is the one that only the mark of the last chunk tells.
        let chunk = 40 + (1 << 20) + 16;
        for bad in [&changed[..], &whole[..chunk], &whole[..whole.len() - 1], &whole[..0]] {
            fs::write(&copy, bad).unwrap();
            let error = restore(&copy, &order.key_file, &into).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            assert_eq!(names(&into), [""; 0]);
        }
        fs::write(&copy, &whole).unwrap();
        fs::write(&order.key_file, "5d".repeat(32)).unwrap();
        assert!(restore(&copy, &order.key_file, &into).is_err());
    }

    #[test]
    fn a_checkpoint_that_was_written_again_is_copied_again() {
        let root = tempfile::tempdir().unwrap();
        let mut order = order(root.path(), "last");
        copied(&order, None);
        let stale = order.clone();
        change(&mut order, 7);
        let error = begin(&CopyOrder { changed_ms: 1, ..stale }).unwrap().unwrap().fill(|| true);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidData, "it is another one by now");
        let copy = copied(&order, None);
        assert!(begin(&order).unwrap().is_none(), "it is there already");
        let into = root.path().join("again");
        fs::create_dir(&into).unwrap();
        restore(&copy, &order.key_file, &into).unwrap();
        assert!(fs::read(into.join("last/actor/model.pt")).unwrap() == vec![7; 2_500_000]);
        // Another file of it is written again behind the copying.
        change(&mut order, 8);
        let model = order.directory.join("last/actor/model.pt");
        let begun = begin(&order).unwrap().unwrap();
        let written = std::cell::Cell::new(false);
        let writes = || {
            if !written.replace(true) {
                fs::write(model.with_file_name("late.pt"), "x").unwrap();
            }
            true
        };
        assert_eq!(begun.fill(writes).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn so_many_copies_stay_as_checkpoints() {
        let root = tempfile::tempdir().unwrap();
        for step in [9, 10, 20, 30] {
            copied(&order(root.path(), &format!("global_step_{step}")), Some(2));
        }
        copied(&order(root.path(), "best"), Some(1));
        let into = root.path().join("copies/j-1");
        assert_eq!(names(&into), ["best.glcopy", "global_step_20.glcopy", "global_step_30.glcopy"]);
    }

    #[test]
    fn a_copy_that_nobody_wants_any_more_ends() {
        let root = tempfile::tempdir().unwrap();
        let mut order = order(root.path(), "global_step_40");
        let error = begin(&order).unwrap().unwrap().fill(|| false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        let left = names(&order.into);
        assert_eq!(left.len(), 1);
        assert_eq!(fs::metadata(order.into.join(&left[0])).unwrap().len(), 0);
        // However often it fails, one stays at most; one that was overtaken gets no name.
        let overtaken = begin(&order).unwrap().unwrap().fill(|| true).unwrap();
        drop(begin(&order).unwrap().unwrap());
        assert_eq!(names(&order.into).len(), 1);
        assert!(finish(&order, &overtaken.unfinished, None).is_err());
        let copy = copied(&order, None);
        assert_eq!(names(&order.into), [copy.file_name().unwrap().to_str().unwrap()]);
        order.key_file = root.path().join("nowhere");
        assert!(begin(&order).is_err());
    }
}
