//! File operations below the shared root, which may hang for as long as its server is away.
//!
//! They are carried out either by the shim, before it starts a member, or by a short-lived helper
//! process that the agent can give up on, which looks for training checkpoints as well. Nothing that
//! exists is ever overwritten: a file appears under its name by a hard link, complete or not at all.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::births::Nursery;
use super::checkpoints;
use super::checkpoints::copy::{self, CopyOrder};
use super::curves::{self, TrackerFiles};
use super::process::{self, ProcessId};
use crate::collectors::shared;
use crate::scene::{self, Subject};
use crate::tail::remote::{self, Following};
use gangline_common::time::Timestamp;
use gangline_common::wire::scene::{HUNG_SCENE_FILE, SCENE_FILE};
use gangline_common::wire::v1::Assignment;

/// Largest request that a helper reads, in bytes.
const REQUEST_BYTES: u64 = 16 << 20;
/// Longest answer of a helper that is read, in bytes; a scene is longer, though it is cut only later.
const ANSWER_BYTES: u64 = 4 << 10;
const SCENE_ANSWER_BYTES: u64 = 16 << 20;
const LIST_ANSWER_BYTES: u64 = 2 << 20;
const SURVEY_ANSWER_BYTES: u64 = 64 << 10;
const TRACKERS_ANSWER_BYTES: u64 = 32 << 20;
/// Symbolic links are not followed when a log is opened for copying: jobs can make them.
const NO_FOLLOW: i32 = libc::O_NOFOLLOW | libc::O_CLOEXEC;

/// One step; steps are carried out in order and the first failure ends the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Makes a directory and its parents; one that is there already is fine.
    MakeDirectory { path: PathBuf },
    /// Writes a new file; one with exactly this text that is there already is fine.
    WriteNew { path: PathBuf, text: String },
    /// Puts a link to every entry of a directory into another one; what is there already stays.
    LinkAll { from: PathBuf, into: PathBuf },
    /// Copies a regular file to a new name; one of the same size that is there already is fine.
    CopyNew { from: PathBuf, to: PathBuf },
}

/// What a helper is told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// User and group that touch the targets; the helper's own when absent.
    pub run_as: Option<(u32, u32)>,
    pub task: Task,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    CarryOut(Vec<Operation>),
    /// Find the newest training checkpoint in a directory, and its free space.
    LookAtCheckpoints(PathBuf),
    /// Follow files, for as long as there are commands (`crate::tail::remote`).
    Follow(Following),
    /// List the training checkpoints of a directory.
    ListCheckpoints(PathBuf),
    /// Look at all training checkpoints of a directory, and remove the oldest that are not to stay.
    SurveyCheckpoints {
        directory: PathBuf,
        keep: Option<u32>,
        make_room: bool,
        /// The one that is being copied, which stays.
        copying: Option<String>,
    },
    /// Copy a training checkpoint, encrypted, to another place; the answer is a copy without a name.
    CopyCheckpoint(CopyOrder),
    /// Give such a copy its name, and remove those of lower steps but so many.
    NameCopy {
        order: CopyOrder,
        unfinished: PathBuf,
        keep: Option<u32>,
    },
    /// Read the numbers in trackers' files that are new.
    ReadTrackers(TrackerFiles),
    /// Take down how things stand with a member.
    TakeScene(Box<Subject>),
    /// Write, read and remove this file, to see whether its file system works.
    TryOut(PathBuf),
}

/// Why file operations did not all happen.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("{doing} {path}: {source}", path = path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{} exists already with other content and is not overwritten", .0.display())]
    Exists(PathBuf),
    #[error("cannot become user {uid}, group {gid}: {source}")]
    RunAs { uid: u32, gid: u32, source: io::Error },
    #[error("the file helper cannot be run: {0}")]
    Helper(#[source] io::Error),
    #[error("{0}")]
    Reported(String),
    #[error("no answer within {} s from {}", .after.as_secs(), .path.display())]
    TimedOut {
        after: Duration,
        path: PathBuf,
        /// It was killed, and ends when the file system lets it.
        helper: Option<ProcessId>,
    },
}

pub(super) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FilesError {
    move |source| FilesError::Io { doing, path: path.to_owned(), source }
}

/// An operation whose source is open already, so that privileges can be dropped in between.
enum Opened<'a> {
    MakeDirectory(&'a Path),
    WriteNew(&'a Path, &'a str),
    CopyNew(File, &'a Path),
    LinkAll(&'a Path, &'a Path),
}

/// Carries the operations out in this process, as its own user. Blocks for as long as the file
/// system does.
pub fn apply(operations: &[Operation]) -> Result<(), FilesError> {
    open_sources(operations)?.into_iter().try_for_each(carry_out)
}

fn open_sources(operations: &[Operation]) -> Result<Vec<Opened<'_>>, FilesError> {
    operations
        .iter()
        .map(|operation| {
            Ok(match operation {
                Operation::MakeDirectory { path } => Opened::MakeDirectory(path),
                Operation::WriteNew { path, text } => Opened::WriteNew(path, text),
                Operation::LinkAll { from, into } => Opened::LinkAll(from, into),
                Operation::CopyNew { from, to } => {
                    Opened::CopyNew(open_regular(from).map_err(io_error("open", from))?, to)
                }
            })
        })
        .collect()
}

/// Opens a regular file for reading, and refuses anything else behind the name.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).custom_flags(NO_FOLLOW | libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

fn carry_out(operation: Opened<'_>) -> Result<(), FilesError> {
    match operation {
        Opened::MakeDirectory(path) => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(io_error("make directory", path)),
        Opened::WriteNew(path, text) => {
            let new = appear(path, |file| file.write_all(text.as_bytes()))?;
            if new || fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
                return Ok(());
            }
            Err(FilesError::Exists(path.to_owned()))
        }
        Opened::LinkAll(from, into) => link_all(from, into),
        Opened::CopyNew(mut source, path) => {
            let mut copied = 0;
            let new = appear(path, |file| {
                copied = io::copy(&mut source, file)?;
                Ok(())
            })?;
            if new || fs::metadata(path).is_ok_and(|there| there.len() == copied) {
                return Ok(());
            }
            Err(FilesError::Exists(path.to_owned()))
        }
    }
}

fn link_all(from: &Path, into: &Path) -> Result<(), FilesError> {
    for entry in fs::read_dir(from).map_err(io_error("read", from))? {
        let entry = entry.map_err(io_error("read", from))?;
        let link = into.join(entry.file_name());
        match std::os::unix::fs::symlink(entry.path(), &link) {
            // Of an earlier attempt or another rank, or made by the job in its place.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            linked => linked.map_err(io_error("link", &link))?,
        }
    }
    Ok(())
}

/// Makes `path` appear with everything that `fill` writes; false when something has that name.
fn appear(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<bool, FilesError> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        let source = io::Error::new(ErrorKind::InvalidInput, "not a file name");
        return Err(FilesError::Io { doing: "write", path: path.to_owned(), source });
    };
    let unfinished = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let result = (|| {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o644).open(&unfinished)?;
        fill(&mut file)?;
        drop(file);
        // Unlike a rename, a link fails when the name is taken, on NFS too.
        match fs::hard_link(&unfinished, path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    })();
    match fs::remove_file(&unfinished) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if result.is_ok() => return Err(io_error("remove", &unfinished)(error)),
        Err(_) => {} // the first error says more
    }
    result.map_err(io_error("write", path))
}

/// The shared root that an assignment was made for, as far as it tells: a job's directory lies in
/// `jobs` below it.
pub fn shared_root(assignment: &Assignment) -> Option<PathBuf> {
    let named = assignment.code.as_ref().and_then(|code| code.shared_root.as_ref());
    if let Some(root) = named {
        return Some(PathBuf::from(root));
    }
    let jobs = Path::new(assignment.job_directory.as_ref()?).parent()?;
    (jobs.file_name()? == "jobs").then(|| jobs.parent().map(Path::to_owned))?
}

/// Gives up root for good. Only for a process with a single thread.
pub fn become_user(uid: u32, gid: u32) -> Result<(), FilesError> {
    let error = |source| FilesError::RunAs { uid, gid, source };
    let check = |rc: i32| if rc == 0 { Ok(()) } else { Err(error(io::Error::last_os_error())) };
    // SAFETY: plain system calls; an empty group list is read from no memory.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(gid, gid, gid))?;
        check(libc::setresuid(uid, uid, uid))
    }
}

/// The answer of a helper that has done everything begins so, and goes on with what it was to find
/// as JSON; any other is an error.
const DONE: &str = "done ";

/// The helper: reads one [`Request`] as JSON from stdin, carries it out, answers on stdout with one
/// line of text, and exits 0 or 1.
pub fn helper_main() -> ExitCode {
    // The files are for people to read; what must stay private is never written here.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let answer = read_request().and_then(|request| match &request.task {
        Task::CarryOut(operations) => {
            let opened = open_sources(operations)?;
            request.become_user()?;
            opened.into_iter().try_for_each(carry_out)?;
            found(&None::<()>)
        }
        Task::LookAtCheckpoints(directory) => {
            request.become_user()?;
            let looked = checkpoints::look(directory);
            found(&Some(looked.map_err(io_error("look into", directory))?))
        }
        Task::Follow(following) => {
            request.become_user()?;
            remote::serve(following.clone()).map_err(FilesError::Helper)?;
            found(&None::<()>)
        }
        Task::ListCheckpoints(directory) => {
            request.become_user()?;
            let now_ms = Timestamp::now().wall_ms;
            let listed = checkpoints::list(directory, now_ms);
            found(&Some(listed.map_err(io_error("look into", directory))?))
        }
        Task::SurveyCheckpoints { directory, keep, make_room, copying } => {
            request.become_user()?;
            let now_ms = Timestamp::now().wall_ms;
            let survey =
                checkpoints::survey(directory, *keep, *make_room, copying.as_deref(), now_ms);
            found(&Some(survey.map_err(io_error("look into", directory))?))
        }
        Task::CopyCheckpoint(order) => {
            let error = |source| io_error("copy", &order.directory.join(&order.name))(source);
            let Some(begun) =
                copy::begin(order).map_err(io_error("begin a copy in", &order.into))?
            else {
                return found(&None::<()>);
            };
            request.become_user()?;
            found(&Some(begun.fill(is_awaited).map_err(error)?))
        }
        Task::NameCopy { order, unfinished, keep } => {
            let named = copy::finish(order, unfinished, *keep);
            named.map_err(io_error("finish a copy in", &order.into))?;
            found(&None::<()>)
        }
        Task::ReadTrackers(asked) => {
            request.become_user()?;
            found(&Some(curves::read(asked)?))
        }
        Task::TakeScene(subject) => {
            let scene = scene::take(subject);
            found(&Some(scene.map_err(|error| FilesError::Reported(error.to_string()))?))
        }
        Task::TryOut(file) => {
            request.become_user()?;
            found(&Some(shared::try_out(file)))
        }
    });
    // Nobody reads the answer any more when writing it fails; the exit code still tells.
    match answer {
        Ok(found) => {
            let _ = writeln!(io::stdout(), "{DONE}{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stdout(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn found(answer: &impl Serialize) -> Result<String, FilesError> {
    serde_json::to_string(answer).map_err(|error| FilesError::Helper(error.into()))
}

/// Whether somebody still waits for the helper's answer.
fn is_awaited() -> bool {
    let output = io::stdout();
    let mut looked = [PollFd::new(&output, PollFlags::empty())];
    let gone = PollFlags::HUP | PollFlags::ERR;
    match poll(&mut looked, Some(&Timespec::default())) {
        Ok(_) => !looked.iter().any(|fd| fd.revents().intersects(gone)),
        // Nothing is known: the answer will show it.
        Err(_) => true,
    }
}

fn read_request() -> Result<Request, FilesError> {
    let mut text = Vec::new();
    // One line, or all there is: what follows it is for the task.
    let mut input = io::stdin().lock().take(REQUEST_BYTES);
    input.read_until(b'\n', &mut text).map_err(FilesError::Helper)?;
    serde_json::from_slice(&text).map_err(|error| FilesError::Helper(error.into()))
}

/// Carries operations out in a helper, as this user, and gives up on it after `timeout`.
pub async fn run_helper(
    nursery: &Arc<Nursery>,
    run_as: Option<(u32, u32)>,
    operations: Vec<Operation>,
    timeout: Duration,
) -> Result<(), FilesError> {
    if operations.is_empty() {
        return Ok(());
    }
    let request = Request { run_as, task: Task::CarryOut(operations) };
    ask_helper::<()>(nursery, &request, timeout).await.map(|_| ())
}

/// Has `request` carried out by a helper and gives up on it after `timeout`. Returns what it was to
/// find.
pub async fn ask_helper<T: DeserializeOwned>(
    nursery: &Arc<Nursery>,
    request: &Request,
    timeout: Duration,
) -> Result<Option<T>, FilesError> {
    let body = serde_json::to_vec(request).map_err(|error| FilesError::Helper(error.into()))?;
    let (ours, theirs) = UnixStream::pair().map_err(FilesError::Helper)?;
    let nursery = Arc::clone(nursery);
    let birth = tokio::task::spawn_blocking(move || {
        let theirs = theirs.into_std()?;
        theirs.set_nonblocking(false)?;
        nursery.helper(theirs)
    });
    let born = birth.await.map_err(|error| FilesError::Helper(io::Error::other(error)))?;
    let helper = born.map_err(FilesError::Helper)?;
    match tokio::time::timeout(timeout, exchange(ours, &body, request.answer_bytes())).await {
        Ok(Ok(answer)) => match answer.trim_end().split_at_checked(DONE.len()) {
            Some((DONE, found)) => {
                serde_json::from_str(found).map_err(|error| FilesError::Helper(error.into()))
            }
            _ if answer.is_empty() => {
                Err(FilesError::Reported("the file helper ended without an answer".to_owned()))
            }
            _ => Err(FilesError::Reported(answer.trim_end().to_owned())),
        },
        Ok(Err(error)) => Err(FilesError::Helper(error)),
        Err(_) => {
            // Without an effect on one that hangs in a file system; it ends when that comes back.
            let _ = helper.map(|helper| process::send(helper, Signal::KILL));
            Err(FilesError::TimedOut { after: timeout, path: request.first_target(), helper })
        }
    }
}

async fn exchange(mut stream: UnixStream, body: &[u8], most: u64) -> io::Result<String> {
    stream.write_all(body).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.take(most).read_to_string(&mut answer).await?;
    Ok(answer)
}

impl Request {
    fn become_user(&self) -> Result<(), FilesError> {
        self.run_as.map_or(Ok(()), |(uid, gid)| become_user(uid, gid))
    }

    fn answer_bytes(&self) -> u64 {
        match self.task {
            Task::TakeScene(_) => SCENE_ANSWER_BYTES,
            Task::ListCheckpoints(_) => LIST_ANSWER_BYTES,
            Task::SurveyCheckpoints { .. } => SURVEY_ANSWER_BYTES,
            Task::ReadTrackers(_) => TRACKERS_ANSWER_BYTES,
            Task::CarryOut(_)
            | Task::LookAtCheckpoints(_)
            | Task::CopyCheckpoint(_)
            | Task::NameCopy { .. }
            | Task::Follow(_)
            | Task::TryOut(_) => ANSWER_BYTES,
        }
    }

    fn first_target(&self) -> PathBuf {
        let operations = match &self.task {
            Task::CarryOut(operations) => operations,
            Task::LookAtCheckpoints(path) | Task::TryOut(path) => return path.clone(),
            Task::CopyCheckpoint(order) | Task::NameCopy { order, .. } => {
                return order.into.clone();
            }
            Task::ReadTrackers(asked) => {
                return asked.directories.values().next().cloned().unwrap_or_default();
            }
            Task::Follow(_) => return PathBuf::new(),
            Task::ListCheckpoints(directory) | Task::SurveyCheckpoints { directory, .. } => {
                return directory.clone();
            }
            Task::TakeScene(_) => return PathBuf::from("/proc"),
        };
        match operations.first() {
            Some(Operation::MakeDirectory { path } | Operation::WriteNew { path, .. }) => {
                path.clone()
            }
            Some(Operation::CopyNew { to, .. }) => to.clone(),
            Some(Operation::LinkAll { into, .. }) => into.clone(),
            None => PathBuf::new(),
        }
    }
}

/// Logs of one ended member and where they are kept below the job's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCopy {
    /// `<job directory>/logs/attempt-<n>`.
    pub directory: PathBuf,
    /// `head` or `rank-<n>`: the name of the member's own output there.
    pub member: String,
    pub run_as: Option<(u32, u32)>,
}

impl LogCopy {
    /// Where a scene goes: `<job directory>/bundle/attempt-<n>`, and the file in it. `None` for a log
    /// that is none.
    fn scene(&self, log: &str) -> Option<(PathBuf, PathBuf)> {
        let kind = match log {
            SCENE_FILE => "",
            HUNG_SCENE_FILE => "-hung",
            _ => return None,
        };
        let attempt = self.directory.file_name()?;
        let job = self.directory.parent()?.parent()?;
        let directory = job.join("bundle").join(attempt);
        let file = directory.join(format!("{}{kind}.json", self.member));
        Some((directory, file))
    }
}

impl fmt::Display for LogCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.log", self.directory.display(), self.member)
    }
}

/// Copies `logs` (log file name of the agent, path) into the job's directory. The one log of a
/// Ray driver becomes `driver.log`; of several, each keeps the name of its operation.
pub async fn copy_logs(
    nursery: &Arc<Nursery>,
    copy: &LogCopy,
    logs: &[(String, PathBuf)],
    timeout: Duration,
) -> Result<(), FilesError> {
    if logs.is_empty() {
        return Ok(());
    }
    let drivers = logs.iter().filter(|(file, _)| file.starts_with("driver-")).count();
    let mut operations = vec![Operation::MakeDirectory { path: copy.directory.clone() }];
    for (file, from) in logs {
        if let Some((directory, to)) = copy.scene(file) {
            operations.push(Operation::MakeDirectory { path: directory });
            operations.push(Operation::CopyNew { from: from.clone(), to });
            continue;
        }
        let name = match file.as_str() {
            "output" => &copy.member,
            _ if drivers == 1 => "driver",
            other => other,
        };
        let to = copy.directory.join(format!("{name}.log"));
        operations.push(Operation::CopyNew { from: from.clone(), to });
    }
    run_helper(nursery, copy.run_as, operations, timeout).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let config = root.path().join("jobs/j1/config");
        let write = |text: &str| {
            apply(&[
                Operation::MakeDirectory { path: config.clone() },
                Operation::WriteNew { path: config.join("job.yaml"), text: text.to_owned() },
            ])
        };
        write("run: a").unwrap();
        write("run: a").unwrap();
        assert!(matches!(write("run: b"), Err(FilesError::Exists(_))));
        assert_eq!(fs::read_to_string(config.join("job.yaml")).unwrap(), "run: a");
        assert_eq!(fs::read_dir(&config).unwrap().count(), 1, "an unfinished file was left");
    }

    #[test]
    fn a_copy_is_complete_and_repeatable() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("output.log"), root.path().join("rank-0.log"));
        fs::write(&from, "line\n").unwrap();
        let copy = [Operation::CopyNew { from: from.clone(), to: to.clone() }];
        apply(&copy).unwrap();
        apply(&copy).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "line\n");
        fs::write(&from, "another line\n").unwrap();
        assert!(matches!(apply(&copy), Err(FilesError::Exists(_))));
        assert_eq!(fs::read_to_string(&to).unwrap(), "line\n");
    }

    #[test]
    fn links_lead_to_everything_and_replace_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (from, into) = (root.path().join("tree"), root.path().join("work"));
        fs::create_dir_all(from.join("pkg")).unwrap();
        fs::write(from.join("train.py"), "1").unwrap();
        fs::create_dir(&into).unwrap();
        fs::write(into.join("pkg"), "the job's own").unwrap();
        let link = [Operation::LinkAll { from: from.clone(), into: into.clone() }];
        apply(&link).unwrap();
        apply(&link).unwrap();
        assert_eq!(fs::read_link(into.join("train.py")).unwrap(), from.join("train.py"));
        assert_eq!(fs::read_to_string(into.join("pkg")).unwrap(), "the job's own");
    }

    #[test]
    fn the_shared_root_is_known_from_an_assignment() {
        let mut assignment = crate::sample::assignment("a");
        assert_eq!(shared_root(&assignment), None);
        assignment.job_directory = Some("/nfs/jobs/job-a".to_owned());
        assert_eq!(shared_root(&assignment), Some(PathBuf::from("/nfs")));
        assignment.job_directory = Some("/elsewhere/job-a".to_owned());
        assert_eq!(shared_root(&assignment), None);
    }

    #[test]
    fn links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (secret, link) = (root.path().join("secret"), root.path().join("job-driver-x.log"));
        fs::write(&secret, "key").unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let to = root.path().join("driver.log");
        let copy = [Operation::CopyNew { from: link, to: to.clone() }];
        assert!(matches!(apply(&copy), Err(FilesError::Io { doing: "open", .. })));
        assert!(!to.exists());
    }
}
