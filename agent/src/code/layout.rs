//! The helper that writes a tree: checks every byte that comes, writes below a new name, and gives
//! the directory its own name when all of it is on disk. A tree that is there already is compared
//! with how it was left; one that was changed since is put aside, and written anew.
//!
//! Paths are gone through directory by directory, over open descriptors and without following a
//! link, so that nothing that somebody puts there meanwhile leads it elsewhere (A29, A35).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gangline_common::random;
use gangline_tree::{Entry, Hash, Kind, MAX_MANIFEST_BYTES, Tree};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RawDir, RenameFlags, Timespec, Timestamps, fchmod,
    flock, fsync, futimens, mkdirat, openat, renameat, renameat_with, statat, symlinkat, syncfs,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::picture::{self, OPEN_DIRECTORY};
use crate::supervisor::files::become_user;

/// Longest order, in bytes.
const ORDER_BYTES: u64 = 64 << 10;
/// What the helper says; anything else is an error for people.
pub const THERE: &str = "there";
pub const SEND: &str = "send";
/// As [`SEND`], with what is wrong about the tree that lies there.
pub const CHANGED: &str = "changed: ";
pub const DONE: &str = "done";
/// Pause between two looks for the lock of another node.
const LOCK_PAUSE: Duration = Duration::from_millis(250);
/// A lock that is held for longer belongs to a node that hangs: it is gone around.
const LOCK_LIMIT: Duration = Duration::from_secs(600);
/// Access to what was written: a tree is for reading.
const FILE: u32 = 0o444;
const PROGRAM: u32 = 0o555;
/// Access to the shelf, and to directories that are being filled.
const DIRECTORY: u32 = 0o755;
/// A file that was not there before.
const NEW_FILE: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::WRONLY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Longest place in a tree that is told, in characters.
const PLACE_CHARS: usize = 200;

/// What a helper is told; the tree's bytes come behind it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub run_as: Option<(u32, u32)>,
    /// There already.
    pub root: PathBuf,
    /// Directories below it, made when they are not there.
    pub below: Vec<String>,
    /// Name of the tree and of its directory, in hexadecimal.
    pub tree: String,
}

/// Why a tree was not written.
#[derive(Debug, thiserror::Error)]
enum LayoutError {
    #[error("{doing} {path}: {source}")]
    Io { doing: &'static str, path: String, source: io::Error },
    #[error("what the coordinator sent is not the code that was asked for ({0})")]
    Wrong(&'static str),
    #[error("the code is cut off")]
    Cut,
    #[error("the order cannot be read: {0}")]
    Order(String),
    #[error("{0}")]
    User(String),
    #[error("nobody waits for it any more")]
    Forgotten,
}

fn io_error<E: Into<io::Error>>(
    doing: &'static str,
    path: impl AsRef<Path>,
) -> impl FnOnce(E) -> LayoutError {
    let path = path.as_ref().display().to_string();
    move |source| LayoutError::Io { doing, path, source: source.into() }
}

/// The helper: fd 0 and 1 are its end of a socket.
pub fn helper_main() -> ExitCode {
    // What is written is for every process of the job to read.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let mut input = io::stdin().lock();
    match carry_out(&mut input) {
        Ok(said) => {
            // Nobody waits any more when this fails; the exit code still tells.
            let _ = writeln!(io::stdout(), "{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stdout(), "{}", error.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn carry_out(input: &mut impl BufRead) -> Result<&'static str, LayoutError> {
    let order = read_order(input)?;
    let tree = Hash::from_hex(&order.tree);
    let tree = tree.ok_or_else(|| LayoutError::Order("not the name of a tree".to_owned()))?;
    if let Some((uid, gid)) = order.run_as {
        become_user(uid, gid).map_err(|error| LayoutError::User(error.to_string()))?;
    }
    let shelf = open_shelf(&order)?;
    let found = look(&shelf, &order.tree)?;
    if found == Found::Whole {
        return Ok(THERE);
    }
    let lock = wait_for_lock(&shelf, &order.tree, found == Found::Nothing)?;
    let question = match look(&shelf, &order.tree)? {
        Found::Whole => return Ok(THERE),
        Found::Nothing => SEND.to_owned(),
        Found::Changed(how) => format!("{CHANGED}{}", how.replace('\n', " ")),
    };
    if lock.is_some() {
        remove_abandoned(&shelf, &order.tree);
    }
    let mut out = io::stdout();
    let asked = writeln!(out, "{question}").and_then(|()| out.flush());
    asked.map_err(|_| LayoutError::Forgotten)?;
    let unfinished = unfinished_name(&order.tree)?;
    let written = lay_out(input, &shelf, &unfinished, tree)
        .and_then(|()| give_name(&shelf, &unfinished, &order.tree));
    if written.is_err() {
        discard(&shelf, &unfinished);
    }
    written.map(|()| DONE)
}

fn read_order(input: &mut impl BufRead) -> Result<Order, LayoutError> {
    let wrong = |error: &dyn std::fmt::Display| LayoutError::Order(error.to_string());
    let mut line = Vec::new();
    input.take(ORDER_BYTES).read_until(b'\n', &mut line).map_err(|error| wrong(&error))?;
    serde_json::from_slice(&line).map_err(|error| wrong(&error))
}

/// Opens the directory that trees lie in, and makes what is missing of it below the root.
fn open_shelf(order: &Order) -> Result<OwnedFd, LayoutError> {
    let root = File::open(&order.root).map_err(io_error("open", &order.root))?;
    let mut directory = OwnedFd::from(root);
    let mut path = order.root.clone();
    for name in &order.below {
        path.push(name);
        directory = enter(&directory, OsStr::new(name)).map_err(io_error("open", &path))?;
    }
    Ok(directory)
}

/// Opens a directory in another one, and makes it when it is not there.
fn enter(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    match mkdirat(directory, name, Mode::from_raw_mode(DIRECTORY)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    openat(directory, name, OPEN_DIRECTORY, Mode::empty())
}

fn exists(shelf: &OwnedFd, name: &str) -> Result<bool, LayoutError> {
    match statat(shelf, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() => Ok(true),
        Ok(_) => {
            let source = io::Error::from(io::ErrorKind::NotADirectory);
            Err(LayoutError::Io { doing: "use", path: name.to_owned(), source })
        }
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(io_error("look for", name)(error)),
    }
}

/// What lies in the place of a tree.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The tree, as it was written.
    Whole,
    /// Something that no job may be given, and why.
    Changed(String),
}

/// Looks whether a tree is there, and as it was left.
fn look(shelf: &OwnedFd, tree: &str) -> Result<Found, LayoutError> {
    if !exists(shelf, tree)? {
        return Ok(Found::Nothing);
    }
    let list = open_list(shelf, tree).or_else(|| {
        // Another node may be about to give it its name.
        std::thread::sleep(LOCK_PAUSE);
        open_list(shelf, tree)
    });
    let Some(list) = list else {
        return Ok(Found::Changed("nothing says how it was written".to_owned()));
    };
    let compared = openat(shelf, tree, OPEN_DIRECTORY, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|root| picture::difference(&root, list));
    Ok(match compared {
        Ok(None) => Found::Whole,
        Ok(Some(place)) => {
            let place: String = place.chars().take(PLACE_CHARS).collect();
            Found::Changed(format!("{place} is not as it was written"))
        }
        Err(error) => Found::Changed(format!("it cannot be looked through: {error}")),
    })
}

/// Where it is written down how a tree was left.
fn list_name(tree: &str) -> String {
    format!(".{tree}.list")
}

fn open_list(shelf: &OwnedFd, tree: &str) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(shelf, list_name(tree), flags, Mode::empty()).ok().map(File::from)
}

/// The lock of a tree; `None` when the file system has no locks, or its holder hangs: two nodes then
/// write the same bytes, and one directory wins. One that `may_appear` is waited for no longer than
/// until it is there.
fn wait_for_lock(
    shelf: &OwnedFd,
    tree: &str,
    may_appear: bool,
) -> Result<Option<OwnedFd>, LayoutError> {
    let name = format!(".{tree}.lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(shelf, &name, flags, Mode::from_raw_mode(0o644));
    let file = file.map_err(io_error("open", &name))?;
    let began = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return Ok(None),
        }
        let appeared = may_appear && exists(shelf, tree)? && open_list(shelf, tree).is_some();
        if appeared || began.elapsed() >= LOCK_LIMIT {
            return Ok(None);
        }
        pause_while_wanted()?;
    }
}

/// Waits a moment, and ends when the agent has gone.
fn pause_while_wanted() -> Result<(), LayoutError> {
    let stdin = io::stdin();
    let mut watched = [PollFd::new(&stdin, PollFlags::RDHUP)];
    let pause = Timespec { tv_sec: 0, tv_nsec: LOCK_PAUSE.subsec_nanos().into() };
    match poll(&mut watched, Some(&pause)) {
        Ok(0) | Err(Errno::INTR) => Ok(()),
        Ok(_) | Err(_) => Err(LayoutError::Forgotten),
    }
}

fn unfinished_name(tree: &str) -> Result<String, LayoutError> {
    numbered(&unfinished_prefix(tree))
}

fn unfinished_prefix(tree: &str) -> String {
    format!(".{tree}.new-")
}

/// The list of what has no name yet.
fn unfinished_list(unfinished: &str) -> String {
    format!("{unfinished}.list")
}

/// A name that nothing has.
fn numbered(prefix: &str) -> Result<String, LayoutError> {
    let number = random::number().map_err(|error| LayoutError::Order(error.to_string()))?;
    Ok(format!("{prefix}{number:016x}"))
}

/// Removes what a node has left that died while it held the lock.
fn remove_abandoned(shelf: &OwnedFd, tree: &str) {
    let prefix = unfinished_prefix(tree);
    let Ok(directory) = openat(shelf, ".", OPEN_DIRECTORY, Mode::empty()) else { return };
    let mut buffer = Vec::with_capacity(8 << 10);
    let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
    let mut abandoned = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_string_lossy();
        if name.starts_with(&prefix) {
            abandoned.push(name.into_owned());
        }
    }
    abandoned.iter().for_each(|name| remove(shelf, name));
}

/// Removes a directory or a file of the shelf. What cannot be removed lies there and is in nobody's
/// way.
fn remove(shelf: &OwnedFd, name: &str) {
    use std::os::fd::AsRawFd;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", shelf.as_raw_fd()));
    if picture::remove_tree(&path).is_err() {
        let _ = std::fs::remove_file(&path);
    }
}

/// Removes what was written and gets no name.
fn discard(shelf: &OwnedFd, unfinished: &str) {
    remove(shelf, unfinished);
    remove(shelf, &unfinished_list(unfinished));
}

fn read_exact(input: &mut impl Read, buffer: &mut [u8]) -> Result<(), LayoutError> {
    input.read_exact(buffer).map_err(|_| LayoutError::Cut)
}

/// Reads a list and its files and writes them into a new directory of the shelf.
fn lay_out(
    input: &mut impl Read,
    shelf: &OwnedFd,
    unfinished: &str,
    name: Hash,
) -> Result<(), LayoutError> {
    let mut length = [0; 4];
    read_exact(input, &mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_MANIFEST_BYTES {
        return Err(LayoutError::Wrong("its list is too long"));
    }
    let mut list = vec![0; length];
    read_exact(input, &mut list)?;
    if Hash::of(&list) != name {
        return Err(LayoutError::Wrong("its list has another hash"));
    }
    let tree = Tree::from_bytes(&list).map_err(|_| LayoutError::Wrong("its list is none"))?;
    let mode = Mode::from_raw_mode(DIRECTORY);
    mkdirat(shelf, unfinished, mode).map_err(io_error("make", unfinished))?;
    let root = openat(shelf, unfinished, OPEN_DIRECTORY, Mode::empty());
    let root = root.map_err(io_error("open", unfinished))?;
    let mut writer = Writer { root: &root, at: None, times: whole_second() };
    for entry in tree.entries() {
        writer.write(input, entry)?;
    }
    if input.read(&mut [0]).map_err(|_| LayoutError::Cut)? != 0 {
        return Err(LayoutError::Wrong("there is more of it"));
    }
    picture::seal(&root).map_err(io_error("make read-only", unfinished))?;
    write_list(shelf, &root, &unfinished_list(unfinished))?;
    // One wait for all files instead of one for each.
    syncfs(&root).map_err(io_error("sync", unfinished))
}

/// Writes down what a tree looks like.
fn write_list(shelf: &OwnedFd, root: &OwnedFd, name: &str) -> Result<(), LayoutError> {
    let file = openat(shelf, name, NEW_FILE, Mode::from_raw_mode(0o600));
    let file = File::from(file.map_err(io_error("make", name))?);
    let mut out = BufWriter::new(&file);
    picture::write(root, &mut out).map_err(io_error("write", name))?;
    out.flush().map_err(io_error("write", name))?;
    fchmod(file.as_fd(), Mode::from_raw_mode(FILE)).map_err(io_error("write", name))
}

/// The time that all files of a tree get: every file system keeps a whole second, on every node.
fn whole_second() -> Timestamps {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = Timespec { tv_sec: i64::try_from(now.as_secs()).unwrap_or_default(), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// Writes entries; remembers the last directory, which is most often the next one's too.
struct Writer<'a> {
    root: &'a OwnedFd,
    at: Option<(String, OwnedFd)>,
    times: Timestamps,
}

impl Writer<'_> {
    fn write(&mut self, input: &mut impl Read, entry: &Entry) -> Result<(), LayoutError> {
        let (above, name) = entry.path.rsplit_once('/').unwrap_or(("", &entry.path));
        if self.at.as_ref().is_none_or(|(path, _)| path != above) {
            let mut directory: Option<OwnedFd> = None;
            for name in above.split('/').filter(|name| !name.is_empty()) {
                let below = directory.as_ref().unwrap_or(self.root);
                let entered = enter(below, OsStr::new(name));
                directory = Some(entered.map_err(io_error("make", &entry.path))?);
            }
            self.at = directory.map(|directory| (above.to_owned(), directory));
        }
        let directory = self.at.as_ref().map_or(self.root, |(_, directory)| directory);
        match &entry.kind {
            Kind::Symlink { target } => {
                symlinkat(target, directory, name).map_err(io_error("link", &entry.path))
            }
            Kind::File { executable, chunks } => {
                let file = openat(directory, name, NEW_FILE, Mode::from_raw_mode(0o600));
                let mut file = File::from(file.map_err(io_error("make", &entry.path))?);
                let mut buffer = Vec::new();
                for chunk in chunks {
                    buffer.resize(chunk.bytes as usize, 0);
                    read_exact(input, &mut buffer)?;
                    if Hash::of(&buffer) != chunk.hash {
                        return Err(LayoutError::Wrong("a chunk has another hash"));
                    }
                    file.write_all(&buffer).map_err(io_error("write", &entry.path))?;
                }
                let mode = if *executable { PROGRAM } else { FILE };
                fchmod(file.as_fd(), Mode::from_raw_mode(mode))
                    .map_err(io_error("write", &entry.path))?;
                // Where it cannot be set, the one that is there is written down.
                let _ = futimens(file.as_fd(), &self.times);
                Ok(())
            }
        }
    }
}

/// Gives a tree its name, and then its list: a tree without one is never used.
fn give_name(shelf: &OwnedFd, unfinished: &str, name: &str) -> Result<(), LayoutError> {
    match renameat(shelf, unfinished, shelf, name) {
        Ok(()) => {}
        Err(Errno::EXIST | Errno::NOTEMPTY) => {
            if look(shelf, name)? == Found::Whole {
                // Another node was faster; it has the same bytes.
                discard(shelf, unfinished);
                return Ok(());
            }
            replace(shelf, unfinished, name)?;
        }
        Err(error) => return Err(io_error("name", name)(error)),
    }
    renameat(shelf, unfinished_list(unfinished), shelf, list_name(name))
        .map_err(io_error("name the list of", name))?;
    fsync(shelf).map_err(io_error("sync", name))
}

/// Puts a new tree in the place of one that was changed. That one stays beside it: a job may run in
/// it, and what a job wrote there may be all that there is of it.
fn replace(shelf: &OwnedFd, unfinished: &str, name: &str) -> Result<(), LayoutError> {
    let aside = numbered(&format!(".{name}.changed-"))?;
    let rename = |from: &str, to: &str| {
        renameat(shelf, from, shelf, to).map_err(io_error("put aside what was", name))
    };
    rename(unfinished, &aside)?;
    // Both at once, so that a job that runs finds its code at every moment.
    if renameat_with(shelf, &aside, shelf, name, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    // NFS cannot do that: for a moment there is none.
    rename(&aside, unfinished)?;
    rename(name, &aside)?;
    rename(unfinished, name).inspect_err(|_| {
        // Changed code is better than none, for jobs that run.
        let _ = renameat(shelf, &aside, shelf, name);
    })
}

#[cfg(test)]
mod tests;
