//! Reads `/proc` and sends signals to exactly the process that was meant.
//!
//! A pid alone names nobody: it is used again. Everything here names a process by its pid *and*
//! its start time, and signals go through a pidfd that was opened before the start time was
//! compared. Used by the shim as well, so it must stay free of the async runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Most bytes that are read of one `/proc` file.
const PROC_FILE_BYTES: u64 = 1 << 20;

/// One process, for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks since boot.
    pub start_time: u64,
}

impl ProcessId {
    /// When it began on the boot clock, in milliseconds.
    pub fn started_ms(self) -> u64 {
        self.start_time.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1)
    }
}

/// What `/proc/PID/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub id: ProcessId,
    pub parent: u32,
    /// State letter; `Z` and `X` are dead already.
    pub state: u8,
}

impl Stat {
    /// False for a zombie: nothing of it runs and no signal changes it.
    pub fn lives(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Reads the state of `pid`; `None` when there is no such process.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(pid, &read_limited(&format!("/proc/{pid}/stat"))?)
}

/// True while the process itself lives: not a zombie, and not another process with its pid.
pub fn lives(id: ProcessId) -> bool {
    stat(id.pid).is_some_and(|stat| stat.id == id && stat.lives())
}

/// Reads the text of `/proc/PID/stat`.
pub fn parse_stat(pid: u32, text: &[u8]) -> Option<Stat> {
    // The name (field 2) may hold spaces and parentheses, so fields count from the last `)`.
    let after_name = text.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(text.get(after_name + 1..)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // `state` was field 3 and `parent` field 4; field 22 is the 18th after it.
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(Stat { id: ProcessId { pid, start_time }, parent, state })
}

/// Every process that `/proc` shows.
pub fn all() -> Vec<Stat> {
    pids().into_iter().filter_map(stat).collect()
}

/// Living descendants of `root`, without `root` itself.
pub fn living_descendants(root: u32) -> Vec<ProcessId> {
    let mut children: BTreeMap<u32, Vec<Stat>> = BTreeMap::new();
    for stat in all() {
        children.entry(stat.parent).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        // A process is listed under one parent only, so removal also guards against a cycle in
        // a table that changed while it was read.
        for stat in children.remove(&parent).unwrap_or_default() {
            open.push(stat.id.pid);
            if stat.lives() {
                found.push(stat.id);
            }
        }
    }
    found
}

/// Living processes, other than the caller, whose environment has exactly `variable=value`.
pub fn with_environment(variable: &str, value: &str) -> BTreeSet<ProcessId> {
    let entry = format!("{variable}={value}");
    select(|pid| environment_has(pid, |candidate| candidate == entry.as_bytes()))
}

/// The value that a process was given for `variable`: the outer `None` when its environment cannot be
/// read or is empty, as it is for a moment while a program starts; the inner when it has no such
/// variable.
pub fn environment_value(pid: u32, variable: &str) -> Option<Option<String>> {
    let environment = read_limited(&format!("/proc/{pid}/environ"))?;
    if environment.is_empty() {
        return None;
    }
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"="));
    Some(value.map(|value| String::from_utf8_lossy(value).into_owned()))
}

/// Living processes, other than the caller, with `text` in one of their arguments.
pub fn with_argument(text: &str) -> BTreeSet<ProcessId> {
    let holds = |argument: &[u8]| argument.windows(text.len()).any(|part| part == text.as_bytes());
    select(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !text.is_empty() && arguments.split(|byte| *byte == 0).any(holds)
    })
}

/// Living processes, other than the caller, that carry `variable` with one of `values`.
pub fn with_any_environment(variable: &str, values: &BTreeSet<String>) -> BTreeSet<ProcessId> {
    let prefix = format!("{variable}=");
    let holds = |entry: &[u8]| {
        let value = entry.strip_prefix(prefix.as_bytes());
        value.is_some_and(|value| values.iter().any(|known| known.as_bytes() == value))
    };
    select(|pid| environment_has(pid, holds))
}

/// Living processes, other than the caller, that carry `variable=value` and any `other=...`.
pub fn with_environment_and(variable: &str, value: &str, other: &str) -> BTreeSet<ProcessId> {
    let prefix = format!("{other}=");
    with_environment(variable, value)
        .into_iter()
        .filter(|id| environment_has(id.pid, |entry| entry.starts_with(prefix.as_bytes())))
        .collect()
}

/// Living processes, other than the caller, that have a file open below `directory` or work in it.
pub fn with_open_files_below(directory: &Path) -> BTreeSet<ProcessId> {
    select(|pid| opens_below(pid, directory))
}

/// Sends `signal` to the very process `id`; false when it is gone, so that nobody was signalled.
pub fn send(id: ProcessId, signal: Signal) -> Result<bool, Errno> {
    let Some(pidfd) = open(id)? else { return Ok(false) };
    match pidfd_send_signal(&pidfd, signal) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A pidfd of the very process `id`; `None` when it is gone. It is readable once the process ends.
pub fn open(id: ProcessId) -> Result<Option<OwnedFd>, Errno> {
    let Some(pid) = i32::try_from(id.pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    // From here on the pidfd stands for one process; is it the one that was meant?
    Ok(stat(id.pid).is_some_and(|stat| stat.id == id).then_some(pidfd))
}

/// Waits until the process has ended, for `limit` at most; false when it lives on. Blocks.
pub fn wait(id: ProcessId, limit: Duration) -> Result<bool, Errno> {
    let Some(pidfd) = open(id)? else { return Ok(true) };
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(ended) => return Ok(ended > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn select(mut wanted: impl FnMut(u32) -> bool) -> BTreeSet<ProcessId> {
    let own = std::process::id();
    let mut found = BTreeSet::new();
    for pid in pids() {
        if pid == own {
            continue;
        }
        // The start time is read before the evidence: a pid that changes hands in between yields
        // an id that no longer exists, and nobody is signalled.
        let Some(stat) = stat(pid) else { continue };
        if stat.lives() && wanted(pid) {
            found.insert(stat.id);
        }
    }
    found
}

fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn environment_has(pid: u32, wanted: impl Fn(&[u8]) -> bool) -> bool {
    read_limited(&format!("/proc/{pid}/environ"))
        .is_some_and(|bytes| bytes.split(|&byte| byte == 0).any(wanted))
}

fn opens_below(pid: u32, directory: &Path) -> bool {
    let below = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(directory));
    if below(Path::new(&format!("/proc/{pid}/cwd"))) {
        return true;
    }
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.flatten().any(|entry| below(&entry.path()))
}

fn read_limited(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1024);
    fs::File::open(path).ok()?.take(PROC_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper(mark: &str) -> Child {
        let child =
            Command::new("sleep").arg("60").env("GANGLINE_TEST_MARK", mark).spawn().unwrap();
        // A spawn may return while the kernel is still setting the new program up.
        while !environment_has(child.id(), |entry| !entry.is_empty()) {
            std::thread::yield_now();
        }
        child
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_skipped() {
        let text = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 9 9";
        let stat = parse_stat(42, text).unwrap();
        assert_eq!(stat.id, ProcessId { pid: 42, start_time: 987_654 });
        assert_eq!((stat.parent, stat.state), (7, b'S'));
        assert_eq!(parse_stat(42, b"42 (cut off"), None);
        assert_eq!(parse_stat(42, b""), None);
    }

    #[test]
    fn children_are_found_and_dead_ones_are_not() {
        let child = sleeper("descend");
        let id = stat(child.id()).unwrap().id;
        assert!(living_descendants(std::process::id()).contains(&id));
        assert!(lives(id));
        end(child);
        assert!(!living_descendants(std::process::id()).contains(&id));
        assert!(!lives(id));
    }

    #[test]
    fn the_environment_must_match_exactly() {
        let child = sleeper("g-1:1.1:0");
        let id = stat(child.id()).unwrap().id;
        assert!(with_environment("GANGLINE_TEST_MARK", "g-1:1.1:0").contains(&id));
        assert!(!with_environment("GANGLINE_TEST_MARK", "g-1:1.1").contains(&id));
        assert!(with_environment_and("GANGLINE_TEST_MARK", "g-1:1.1:0", "PATH").contains(&id));
        assert!(!with_environment_and("GANGLINE_TEST_MARK", "g-1:1.1:0", "NO_SUCH").contains(&id));
        end(child);
    }

    #[test]
    fn open_files_and_the_working_directory_give_a_process_away() {
        let directory = tempfile::tempdir().unwrap();
        let directory_path = directory.path().canonicalize().unwrap();
        let child = Command::new("sleep").arg("60").current_dir(&directory_path).spawn().unwrap();
        let id = stat(child.id()).unwrap().id;
        assert!(with_open_files_below(&directory_path).contains(&id));
        assert!(!with_open_files_below(&directory_path.join("other")).contains(&id));
        end(child);
    }

    #[test]
    fn a_stranger_with_the_same_pid_is_never_signalled() {
        let mut child = sleeper("stranger");
        let id = stat(child.id()).unwrap().id;
        let earlier = ProcessId { start_time: id.start_time - 1, ..id };
        assert!(!send(earlier, Signal::KILL).unwrap());
        assert!(child.try_wait().unwrap().is_none(), "the wrong process was killed");
        assert!(!wait(id, Duration::ZERO).unwrap());
        assert!(send(id, Signal::KILL).unwrap());
        // A zombie has ended.
        assert!(wait(id, Duration::from_secs(60)).unwrap());
        assert!(!child.wait().unwrap().success());
        assert!(!send(id, Signal::KILL).unwrap());
    }
}
