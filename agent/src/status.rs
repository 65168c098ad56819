//! The status file: what `gangline-agent status` shows without talking to the agent.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gangline_common::time::{Timestamp, wall_text};
use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::core::assignment::Phase;
use crate::link::LinkStatus;
use crate::supervisor::process;

/// How often the file is rewritten.
const INTERVAL: Duration = Duration::from_secs(1);
/// A file older than this was left by an agent that is gone or stuck.
const STALE_MS: u64 = 5_000;

/// One look at the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub pid: u32,
    pub written_wall_ms: u64,
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
            written_wall_ms: Timestamp::now().wall_ms,
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

/// Rewrites the file at most once a second.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    written: Option<Instant>,
    complained: bool,
}

impl StatusFile {
    pub fn new(path: PathBuf) -> Self {
        StatusFile { path, written: None, complained: false }
    }

    /// Writes what `look` sees if the file is due. A failure is logged once and disturbs nothing.
    pub fn refresh(&mut self, look: impl FnOnce() -> Status) {
        // Slightly less than the interval, so that a tick of the same length is never skipped.
        if self.written.is_some_and(|at| at.elapsed() < INTERVAL * 9 / 10) {
            return;
        }
        self.written = Some(Instant::now());
        match write(&self.path, &look()) {
            Ok(()) => self.complained = false,
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "the status file cannot be written");
                }
            }
        }
    }
}

/// Not made durable: it is worth nothing after a crash.
fn write(path: &Path, status: &Status) -> io::Result<()> {
    let temporary = path.with_extension("json.new");
    std::fs::write(&temporary, serde_json::to_vec_pretty(status)?)?;
    std::fs::rename(&temporary, path)
}

/// What the status file tells about the agent now.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    Running(Status),
    /// Written by an agent that is gone or stuck; how long ago, in milliseconds.
    Stale(Status, u64),
    Absent,
}

/// Reads the status below `state_dir` as of `now_wall_ms`. A status whose writer is gone is stale
/// at once.
pub fn read(state_dir: &Path, now_wall_ms: u64) -> io::Result<Finding> {
    let text = match std::fs::read(path(state_dir)) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Finding::Absent),
        Err(e) => return Err(e),
    };
    let status: Status = serde_json::from_slice(&text)?;
    let age = now_wall_ms.saturating_sub(status.written_wall_ms);
    let gone = process::stat(status.pid).is_none_or(|writer| !writer.lives());
    Ok(match gone || age > STALE_MS {
        true => Finding::Stale(status, age),
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
            Finding::Stale(status, age) => format!(
                "the agent is gone or stuck. Last seen {} s ago, at {}:\n{}",
                age / 1000,
                wall_text(status.written_wall_ms),
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
        Status { written_wall_ms: 10_000, ..Status::of(&Core::new(), &link) }
    }

    #[test]
    fn absent_fresh_and_stale() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path(), 0).unwrap(), Finding::Absent);
        assert!(!Finding::Absent.is_connected());
        let mut file = StatusFile::new(path(directory.path()));
        file.refresh(status);
        file.refresh(|| panic!("written twice within a moment"));
        let fresh = read(directory.path(), 12_000).unwrap();
        assert_eq!(fresh, Finding::Running(status()));
        assert!(fresh.is_connected() && fresh.text().contains("n-1"));
        let stale = read(directory.path(), 18_000).unwrap();
        assert_eq!(stale, Finding::Stale(status(), 8_000));
        assert!(!stale.is_connected() && stale.text().contains("8 s"), "{}", stale.text());
    }

    #[test]
    fn a_status_outlives_its_writer_only_as_a_stale_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        write(&path(directory.path()), &Status { pid, ..status() }).unwrap();
        assert!(matches!(read(directory.path(), 10_001).unwrap(), Finding::Stale(_, 1)));
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(path(directory.path()), "{").unwrap();
        assert!(read(directory.path(), 0).is_err());
    }
}
