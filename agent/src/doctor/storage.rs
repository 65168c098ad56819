//! Room for state and temporary files, and the shared file system.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::Access;
use tokio::sync::oneshot;

use super::{DoctorLine, Level, size};
use crate::collectors::storage::{self, Room};

/// How long a look at a directory may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Ledger and log spool want this much.
const STATE_BYTES: u64 = 1 << 30;

/// Ray's session files, logs and spilled objects want this much.
const TEMP_BYTES: u64 = 10 << 30;

/// Ray stops creating objects on a file system that is fuller than this, in percent.
const RAY_FULL_PCT: u64 = 95;

/// Longest temporary root: a socket path below it must fit into 107 bytes.
const MAX_TEMP_ROOT: usize = 40;

/// Directories whose look is under way, in threads that may never return.
static UNDER_WAY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Why there is no answer about a directory.
pub(super) enum NoAnswer {
    /// Not within [`PATIENCE`].
    Late,
    /// An earlier look at the same directory has not returned.
    Earlier,
    /// No thread could be started, or it ended early.
    Thread(String),
}

/// Runs `work` on the directory in a thread of its own and waits a bounded time for it.
pub(super) async fn look<T: Send + 'static>(
    directory: &Path,
    patience: Duration,
    work: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let under_way = || UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
    if !under_way().insert(directory.to_owned()) {
        return Err(NoAnswer::Earlier);
    }
    let (reply, answer) = oneshot::channel();
    let owned = directory.to_owned();
    let thread = thread::Builder::new().name("doctor-disk".to_owned());
    let started = thread.spawn(move || {
        let found = work(&owned);
        let mut held = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        held.remove(&owned);
        drop(held);
        // The caller may have given up.
        let _ = reply.send(found);
    });
    if let Err(error) = started {
        under_way().remove(directory);
        return Err(NoAnswer::Thread(error.to_string()));
    }
    match tokio::time::timeout(patience, answer).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(_dropped)) => Err(NoAnswer::Thread("it ended without an answer".to_owned())),
        Err(_elapsed) => Err(NoAnswer::Late),
    }
}

fn unanswered(check: &str, path: &Path, reason: &NoAnswer) -> DoctorLine {
    let path = path.display();
    match reason {
        NoAnswer::Late => DoctorLine::new(check, Level::Error, format!("{path} did not answer within {PATIENCE:?}"))
            .advise("the file system hangs: check its server and the mount; a thread of this process is stuck in it"),
        NoAnswer::Earlier => {
            DoctorLine::new(check, Level::Error, format!("{path}: an earlier look at it has not returned"))
                .advise("the file system hangs: check its server and the mount")
        }
        NoAnswer::Thread(reason) => DoctorLine::new(check, Level::Blind, format!("{path}: {reason}")),
    }
}

/// The state directory and the root of temporary directories.
pub(super) async fn local(state_dir: &Path, temp_root: &Path) -> Vec<DoctorLine> {
    let mut lines = vec![
        room("state dir", state_dir, STATE_BYTES).await,
        room("temp root", temp_root, TEMP_BYTES).await,
    ];
    let length = temp_root.as_os_str().len();
    if length > MAX_TEMP_ROOT {
        let text = format!("{}: {length} characters", temp_root.display());
        let advice = format!(
            "choose one of at most {MAX_TEMP_ROOT}: the paths of Ray's sockets would be too long"
        );
        lines.push(DoctorLine::new("temp root path", Level::Error, text).advise(advice));
    }
    lines
}

async fn room(check: &str, path: &Path, wanted: u64) -> DoctorLine {
    let found = look(path, PATIENCE, |path| {
        let existing = nearest(path);
        let writable = rustix::fs::access(&existing, Access::WRITE_OK).is_ok();
        let room = storage::room(&existing).map_err(|error| error.to_string());
        (room, writable)
    });
    match found.await {
        Ok((Ok(room), writable)) => judge_room(check, path, &room, writable, wanted),
        Ok((Err(error), _)) => {
            DoctorLine::new(check, Level::Error, format!("{}: {error}", path.display()))
        }
        Err(reason) => unanswered(check, path, &reason),
    }
}

/// The path, or the closest directory above it that exists: the agent makes the rest.
fn nearest(path: &Path) -> PathBuf {
    let existing = path.ancestors().find(|path| path.exists());
    existing.unwrap_or(Path::new("/")).to_owned()
}

fn judge_room(check: &str, path: &Path, room: &Room, writable: bool, wanted: u64) -> DoctorLine {
    let text =
        format!("{}: {} free of {}", path.display(), size(room.free_bytes), size(room.total_bytes));
    if !writable {
        return DoctorLine::new(check, Level::Error, format!("{text}, not writable"))
            .advise("give the agent a directory that it may write to");
    }
    let used = u128::from(room.total_bytes.saturating_sub(room.free_bytes));
    if used * 100 > u128::from(room.total_bytes) * u128::from(RAY_FULL_PCT) {
        return DoctorLine::new(check, Level::Error, format!("{text}: over {RAY_FULL_PCT} % full"))
            .advise("free some: Ray creates no objects on a file system that full");
    }
    if room.free_bytes < wanted {
        return DoctorLine::new(check, Level::Warning, text)
            .advise(format!("{} or more is advisable", size(wanted)));
    }
    DoctorLine::new(check, Level::Ok, text)
}

/// What a look at the shared root found.
struct Shared {
    written: std::io::Result<()>,
    /// It lies on the same device as `/`.
    own_disk: Option<bool>,
}

/// The shared file system: writes and removes a small file.
pub(super) async fn shared(root: Option<&Path>) -> DoctorLine {
    const CHECK: &str = "shared root";
    let Some(root) = root else {
        return DoctorLine::new(CHECK, Level::Ok, "none is configured");
    };
    let found = look(root, PATIENCE, |root| {
        let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
        Shared {
            written: write_and_remove(root),
            own_disk: device(root).and_then(|own| Some(own == device(Path::new("/"))?)),
        }
    });
    let shown = root.display();
    match found.await {
        Err(reason) => unanswered(CHECK, root, &reason),
        Ok(Shared { written: Err(error), .. }) => {
            DoctorLine::new(CHECK, Level::Error, format!("{shown}: a file cannot be written: {error}"))
                .advise("mount the shared file system here and let the agent's user write to it")
        }
        Ok(Shared { own_disk: Some(false), .. }) => {
            DoctorLine::new(CHECK, Level::Ok, format!("{shown}: mounted and writable"))
        }
        Ok(Shared { .. }) => {
            DoctorLine::new(CHECK, Level::Warning, format!("{shown}: writable, on the container's own disk"))
                .advise("other nodes do not see it and it ends with the container: is the shared file system mounted?")
        }
    }
}

fn write_and_remove(root: &Path) -> std::io::Result<()> {
    let file = root.join(format!(".gangline-doctor-{}", std::process::id()));
    // A file of that name is from a process that is gone: process ids are not unique between nodes.
    let mut open = OpenOptions::new().write(true).create(true).truncate(true).open(&file)?;
    let written =
        open.write_all(b"written by gangline-agent doctor\n").and_then(|()| open.sync_all());
    drop(open);
    let removed = std::fs::remove_file(&file);
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::{NoAnswer, PATIENCE, judge_room, local, look, shared};
    use crate::collectors::fixture::Tree;
    use crate::collectors::storage::Room;
    use crate::doctor::Level;

    #[test]
    fn room_is_judged_by_what_is_left() {
        let judge = |free: u64, total: u64, writable| {
            let (free_bytes, total_bytes) = (free << 30, total << 30);
            let room = Room { free_bytes, total_bytes, ..Room::default() };
            judge_room("x", Path::new("/x"), &room, writable, 10 << 30).level
        };
        assert_eq!(judge(50, 100, true), Level::Ok);
        assert_eq!(judge(9, 100, true), Level::Warning);
        assert_eq!(judge(40, 1000, true), Level::Error, "96 % full");
        assert_eq!(judge(50, 100, false), Level::Error);
    }

    #[tokio::test]
    async fn a_long_temp_root_is_an_error_of_its_own() {
        let tree = Tree::new();
        let long = tree.path("a-directory-whose-name-alone-is-long-enough");
        let lines = local(&tree.path("state"), &long).await;
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[2].check, "temp root path");
        assert_eq!(local(Path::new("/tmp"), Path::new("/tmp")).await.len(), 2);
    }

    #[tokio::test]
    async fn a_shared_root_must_be_there_and_is_left_as_it_was() {
        let tree = Tree::new().file("shared/keep", "");
        assert_eq!(shared(None).await.level, Level::Ok);
        assert_eq!(shared(Some(&tree.path("absent"))).await.level, Level::Error);
        let root = tree.path("shared");
        assert!(shared(Some(&root)).await.level < Level::Error);
        let left = std::fs::read_dir(&root).expect("directory").count();
        assert_eq!(left, 1, "only the file that was there");
    }

    #[tokio::test]
    async fn a_directory_that_hangs_costs_one_thread() {
        let tree = Tree::new();
        let root = tree.path("");
        let (release, hold) = sync_channel::<()>(0);
        let first = look(&root, Duration::from_millis(20), move |_| hold.recv().is_ok()).await;
        assert!(matches!(first, Err(NoAnswer::Late)));
        let second = look(&root, PATIENCE, |_| true).await;
        assert!(matches!(second, Err(NoAnswer::Earlier)));
        release.send(()).expect("the thread waits");
        loop {
            match look(&root, PATIENCE, |_| true).await {
                Ok(found) => break assert!(found),
                Err(NoAnswer::Earlier) => tokio::task::yield_now().await,
                Err(_) => panic!("answers again once the first look has returned"),
            }
        }
    }
}
