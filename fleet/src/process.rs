//! Child processes of a fleet, and what is left of them in `/proc`.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

/// A program that the fleet started; its output goes to a file.
pub struct Process {
    pub name: String,
    child: Child,
    /// The program is the only child of what was started, which ends as the program does.
    is_within: bool,
}

impl Process {
    /// Starts `command` with stdout and stderr appended to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> anyhow::Result<Process> {
        let file = File::options().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Process { name: name.to_owned(), child, is_within: false })
    }

    /// Signals are for the only child of what was started, as of `nsenter`.
    pub fn within(self) -> Process {
        Process { is_within: true, ..self }
    }

    /// The program's own id, unless it has not begun.
    pub fn id(&self) -> u32 {
        let outer = self.child.id();
        match self.is_within {
            true => child_of(outer).unwrap_or(outer),
            false => outer,
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself; it is still ours until it is reaped.
            let _ = kill_process(pid, signal);
        }
    }

    /// SIGKILL, and reaps it.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            self.signal(Signal::KILL);
        }
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, then SIGKILL after `patience`. Says how it ended.
    pub fn terminate(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM);
        match self.wait(patience)? {
            Some(status) => Ok(status),
            None => {
                self.kill()?;
                Ok(ExitStatus::from_raw(9))
            }
        }
    }

    /// Waits for the end, at most `patience`.
    pub fn wait(&mut self, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The first child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// A process in `/proc`.
#[derive(Debug, Clone)]
pub struct Found {
    pub pid: u32,
    pub command: String,
    pub mark: Option<String>,
}

/// Every process (zombies apart) whose environment has `NAME=value` with this prefix of a value,
/// or that has a file open below `directory`.
pub fn find(name: &str, value_prefix: &str, directory: Option<&Path>) -> Vec<Found> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|text| text.parse::<u32>().ok()) else {
            continue;
        };
        if pid == own || is_zombie(pid) {
            continue;
        }
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let value = variable(&environment, name);
        let marked = value.as_ref().is_some_and(|value| value.starts_with(value_prefix));
        let open = directory.is_some_and(|directory| has_open_below(pid, directory));
        if marked || open {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let mark = variable(&environment, gangline_common::ids::MARK_VARIABLE);
            found.push(Found { pid, command, mark });
        }
    }
    found
}

fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('Z')))
        .unwrap_or(true)
}

fn variable(environment: &[u8], name: &str) -> Option<String> {
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let text = std::str::from_utf8(entry).ok()?;
        text.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
    })
}

fn has_open_below(pid: u32, directory: &Path) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|target| target.starts_with(directory))
}

/// TCP ports that somebody listens on in this network namespace.
pub fn listening_ports() -> Vec<u16> {
    const LISTEN: &str = "0A";
    let mut ports = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next(), fields.nth(1));
            let port = local
                .filter(|_| state == Some(LISTEN))
                .and_then(|address| address.rsplit_once(':'))
                .and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            ports.extend(port);
        }
    }
    ports
}

/// SIGKILL to one process, of which nothing is known but its id.
pub fn kill(pid: u32) -> anyhow::Result<()> {
    signal(pid, Signal::KILL)
}

/// The same with another signal.
pub fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
    Ok(kill_process(pid, signal)?)
}

/// SIGKILL to everything that `find` finds, until nothing is found.
pub fn sweep(name: &str, value_prefix: &str, directory: Option<&Path>) {
    for _ in 0..100 {
        let found = find(name, value_prefix, directory);
        if found.is_empty() {
            return;
        }
        for process in found {
            // It may have ended by itself.
            let _ = kill(process.pid);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
