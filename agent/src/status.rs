//! The status file: what `gangline-agent status` shows without talking to the agent. It is written
//! when something has changed; its time of modification is the agent's sign of life.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use gangline_common::time::wall_text;
use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::core::assignment::Phase;
use crate::link::LinkStatus;
use crate::supervisor::process;

/// How often the file is looked after.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often it is written although nothing has changed: somebody else may have damaged it.
const REWRITE: Duration = Duration::from_secs(60);
/// A file that nobody looked after for longer than this was left by an agent that is gone or stuck.
const STALE_MS: u64 = 5_000;

/// One look at the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub pid: u32,
    pub connected: bool,
    pub coordinator: String,
    /// Absent before the first connection.
    pub node: Option<String>,
    /// Why there is no connection.
    pub problem: Option<String>,
    pub generation: String,
    pub members: Vec<MemberStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub member: String,
    pub state: String,
}

impl Status {
    pub fn of(core: &Core, link: &LinkStatus) -> Self {
        let members = core.members().map(|(key, member)| MemberStatus {
            member: key.to_string(),
            state: phase_word(&member.phase).to_owned(),
        });
        Status {
            pid: std::process::id(),
            connected: link.connected,
            coordinator: link.coordinator.clone(),
            node: link.node.clone(),
            problem: link.problem.clone(),
            generation: core.held().to_string(),
            members: members.collect(),
        }
    }
}

fn phase_word(phase: &Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Adopting => "adopting",
        Phase::Starting => "starting",
        Phase::Running { .. } => "running",
        Phase::Stopping => "stopping",
        Phase::Ended(_) => "ended",
        Phase::Refused(_) => "refused",
    }
}

/// The file below a state directory.
pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("status.json")
}

/// Looks after the file at most once a second.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    looked: Option<Instant>,
    /// What the file says, and since when.
    written: Option<(Status, Instant)>,
    complained: bool,
}

impl StatusFile {
    pub fn new(path: PathBuf) -> Self {
        StatusFile { path, looked: None, written: None, complained: false }
    }

    /// Writes what `look` sees if the file is due. A failure is logged once and disturbs nothing.
    pub fn refresh(&mut self, look: impl FnOnce() -> Status) {
        // Slightly less than the interval, so that a tick of the same length is never skipped.
        if self.looked.is_some_and(|at| at.elapsed() < INTERVAL * 9 / 10) {
            return;
        }
        self.looked = Some(Instant::now());
        let status = look();
        let is_said = |(said, at): &(Status, Instant)| *said == status && at.elapsed() < REWRITE;
        // A file that is gone is written anew, too.
        if self.written.as_ref().is_some_and(is_said) && touch(&self.path).is_ok() {
            return;
        }
        match write(&self.path, &status) {
            Ok(()) => (self.written, self.complained) = (Some((status, Instant::now())), false),
            Err(error) => {
                self.written = None;
                if !std::mem::replace(&mut self.complained, true) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "the status file cannot be written");
                }
            }
        }
    }
}

/// With the time of this host: a file system's own may be that of its server.
fn touch(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.set_modified(SystemTime::now())
}

/// Not made durable: it is worth nothing after a crash.
fn write(path: &Path, status: &Status) -> io::Result<()> {
    let temporary = path.with_extension("json.new");
    std::fs::write(&temporary, serde_json::to_vec_pretty(status)?)?;
    std::fs::rename(&temporary, path)?;
    touch(path)
}

/// What the status file tells about the agent now.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    Running(Status),
    /// Written by an agent that is gone or stuck.
    Stale {
        status: Status,
        seen_wall_ms: u64,
        ago_ms: u64,
    },
    Absent,
}

/// Reads the status below `state_dir` as of `now_wall_ms`. A status whose writer is gone is stale
/// at once.
pub fn read(state_dir: &Path, now_wall_ms: u64) -> io::Result<Finding> {
    let path = path(state_dir);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Finding::Absent),
        Err(e) => return Err(e),
    };
    let status: Status = serde_json::from_slice(&text)?;
    let seen = std::fs::metadata(&path)?.modified()?.duration_since(SystemTime::UNIX_EPOCH);
    let seen_wall_ms = seen.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let ago_ms = now_wall_ms.saturating_sub(seen_wall_ms);
    let gone = process::stat(status.pid).is_none_or(|writer| !writer.lives());
    Ok(match gone || ago_ms > STALE_MS {
        true => Finding::Stale { status, seen_wall_ms, ago_ms },
        false => Finding::Running(status),
    })
}

impl Finding {
    pub fn is_connected(&self) -> bool {
        matches!(self, Finding::Running(status) if status.connected)
    }

    /// For people.
    pub fn text(&self) -> String {
        match self {
            Finding::Absent => "no agent has run with this state directory\n".to_owned(),
            Finding::Running(status) => describe(status),
            Finding::Stale { status, seen_wall_ms, ago_ms } => format!(
                "the agent is gone or stuck. Last seen {} s ago, at {}:\n{}",
                ago_ms / 1000,
                wall_text(*seen_wall_ms),
                describe(status)
            ),
        }
    }
}

fn describe(status: &Status) -> String {
    let node = status.node.as_deref().unwrap_or("not known yet");
    let mut text = format!("node         {node}\npid          {}\n", status.pid);
    text += &match (status.connected, &status.problem) {
        (true, _) => format!("coordinator  {} (connected)\n", status.coordinator),
        (false, Some(problem)) => {
            format!("coordinator  {} (not connected: {problem})\n", status.coordinator)
        }
        (false, None) => format!("coordinator  {} (not connected)\n", status.coordinator),
    };
    text += &format!("generation   {}\nmembers      {}\n", status.generation, status.members.len());
    for member in &status.members {
        text += &format!("  {}  {}\n", member.member, member.state);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let link = LinkStatus {
            connected: true,
            coordinator: "host:1".into(),
            node: Some("n-1".into()),
            problem: None,
        };
        Status::of(&Core::new(), &link)
    }

    /// As of so many milliseconds after the sign of life.
    fn read_after(state_dir: &Path, ms: u64) -> Finding {
        let written = std::fs::metadata(path(state_dir)).unwrap().modified().unwrap();
        let written = written.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        read(state_dir, written.as_millis() as u64 + ms).unwrap()
    }

    #[test]
    fn absent_fresh_and_stale() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path(), 0).unwrap(), Finding::Absent);
        assert!(!Finding::Absent.is_connected());
        let mut file = StatusFile::new(path(directory.path()));
        file.refresh(status);
        file.refresh(|| panic!("looked after twice within a moment"));
        let fresh = read_after(directory.path(), 2_000);
        assert_eq!(fresh, Finding::Running(status()));
        assert!(fresh.is_connected() && fresh.text().contains("n-1"));
        let stale = read_after(directory.path(), 8_000);
        assert!(
            matches!(&stale, Finding::Stale { status: of, ago_ms: 8_000, .. } if *of == status())
        );
        assert!(!stale.is_connected() && stale.text().contains("8 s"), "{}", stale.text());
    }

    #[test]
    fn what_has_not_changed_is_not_written_again() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path());
        let mut file = StatusFile::new(path.clone());
        let mut again = |status: Status| {
            file.looked = None;
            file.refresh(|| status);
            let found = std::fs::metadata(&path).unwrap();
            (found.ino(), found.modified().unwrap())
        };
        let (first, _) = again(status());
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        let (same, touched) = again(status());
        assert_eq!(same, first);
        assert!(touched > old, "the sign of life is renewed");
        again(Status { connected: false, ..status() });
        assert!(!read_after(directory.path(), 0).is_connected());
        std::fs::remove_file(&path).unwrap();
        again(Status { connected: false, ..status() });
        assert_ne!(read(directory.path(), 0).unwrap(), Finding::Absent);
    }

    #[test]
    fn a_status_outlives_its_writer_only_as_a_stale_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        write(&path(directory.path()), &Status { pid, ..status() }).unwrap();
        assert!(matches!(read_after(directory.path(), 1), Finding::Stale { ago_ms: 1, .. }));
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(path(directory.path()), "{").unwrap();
        assert!(read(directory.path(), 0).is_err());
    }
}
