//! The helper that writes a tree: checks every byte that comes, writes below a new name, and gives
//! the directory its own name when all of it is on disk.
//!
//! Paths are gone through directory by directory, over open descriptors and without following a
//! link, so that nothing that somebody puts there meanwhile leads it elsewhere (A29, A35).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gangline_common::random;
use gangline_tree::{Entry, Hash, Kind, MAX_MANIFEST_BYTES, Tree};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RawDir, Timespec, fchmod, flock, fsync, mkdirat, openat,
    renameat, statat, symlinkat, syncfs,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::supervisor::files::become_user;

/// Longest order, in bytes.
const ORDER_BYTES: u64 = 64 << 10;
/// What the helper says; anything else is an error for people.
pub const THERE: &str = "there";
pub const SEND: &str = "send";
pub const DONE: &str = "done";
/// Pause between two looks for the lock of another node.
const LOCK_PAUSE: Duration = Duration::from_millis(250);
/// A lock that is held for longer belongs to a node that hangs: it is gone around.
const LOCK_LIMIT: Duration = Duration::from_secs(600);
/// Access to what was written: a tree is for reading.
const FILE: u32 = 0o444;
const PROGRAM: u32 = 0o555;
const DIRECTORY: u32 = 0o755;

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
    if exists(&shelf, &order.tree)? {
        return Ok(THERE);
    }
    let lock = wait_for_lock(&shelf, &order.tree)?;
    if exists(&shelf, &order.tree)? {
        return Ok(THERE);
    }
    if lock.is_some() {
        remove_abandoned(&shelf, &order.tree);
    }
    let mut out = io::stdout();
    let asked = writeln!(out, "{SEND}").and_then(|()| out.flush());
    asked.map_err(|_| LayoutError::Forgotten)?;
    let unfinished = unfinished_name(&order.tree)?;
    let written = lay_out(input, &shelf, &unfinished, tree)
        .and_then(|()| give_name(&shelf, &unfinished, &order.tree));
    if written.is_err() {
        remove(&shelf, &unfinished);
    }
    written.map(|()| DONE)
}

fn read_order(input: &mut impl BufRead) -> Result<Order, LayoutError> {
    let wrong = |error: &dyn std::fmt::Display| LayoutError::Order(error.to_string());
    let mut line = Vec::new();
    input.take(ORDER_BYTES).read_until(b'\n', &mut line).map_err(|error| wrong(&error))?;
    serde_json::from_slice(&line).map_err(|error| wrong(&error))
}

const OPEN_DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

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

/// The lock of a tree; `None` when the file system has no locks, or its holder hangs: two nodes then
/// write the same bytes, and one directory wins.
fn wait_for_lock(shelf: &OwnedFd, tree: &str) -> Result<Option<OwnedFd>, LayoutError> {
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
        if exists(shelf, tree)? || began.elapsed() >= LOCK_LIMIT {
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
    let number = random::number().map_err(|error| LayoutError::Order(error.to_string()))?;
    Ok(format!("{}{number:016x}", unfinished_prefix(tree)))
}

fn unfinished_prefix(tree: &str) -> String {
    format!(".{tree}.new-")
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

/// Removes a directory of the shelf. What cannot be removed lies there and is in nobody's way.
fn remove(shelf: &OwnedFd, name: &str) {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}/{name}", shelf.as_raw_fd());
    let _ = std::fs::remove_dir_all(path);
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
    let mut writer = Writer { root: &root, at: None };
    for entry in tree.entries() {
        writer.write(input, entry)?;
    }
    if input.read(&mut [0]).map_err(|_| LayoutError::Cut)? != 0 {
        return Err(LayoutError::Wrong("there is more of it"));
    }
    // One wait for all files instead of one for each.
    syncfs(&root).map_err(io_error("sync", unfinished))
}

/// Writes entries; remembers the last directory, which is most often the next one's too.
struct Writer<'a> {
    root: &'a OwnedFd,
    at: Option<(String, OwnedFd)>,
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
                let flags = OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::WRONLY
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let file = openat(directory, name, flags, Mode::from_raw_mode(0o600));
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
                    .map_err(io_error("write", &entry.path))
            }
        }
    }
}

fn give_name(shelf: &OwnedFd, unfinished: &str, name: &str) -> Result<(), LayoutError> {
    match renameat(shelf, unfinished, shelf, name) {
        Ok(()) => fsync(shelf).map_err(io_error("sync", name)),
        // Another node was faster; it has the same bytes.
        Err(Errno::EXIST | Errno::NOTEMPTY) => {
            remove(shelf, unfinished);
            Ok(())
        }
        Err(error) => Err(io_error("name", name)(error)),
    }
}

#[cfg(test)]
mod tests;
