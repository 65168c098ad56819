//! The shim: the small process that each member runs under.
//!
//! It is the parent of the member's main process and, as a subreaper, of everything that is
//! orphaned below it. It outlives the agent, so that a restart of the agent disturbs no training,
//! and it leaves only when no process of the member is left. It has one thread and no async
//! runtime: its start is on the path between "submitted" and the first instruction of the job, which
//! is why it is forked from a process that stands ready (`nursery`).
//!
//! The agent hands over the listening socket as fd 0, so it can connect before the shim is up.
//! Files in the spool: reads `launch`; writes `shim.pid`, `output.log` and, at the end, `exit`.

mod child;
pub mod fence;
pub mod nursery;
pub mod protocol;
pub mod record;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gangline_common::time::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use self::fence::Deadline;
use self::protocol::{ProtocolError, Push, Request, VERSION};
use self::record::{ExitRecord, How, Launch, StopSignal};
use crate::supervisor::process::{self, ProcessId};

/// Names of the files in a member's spool that the agent and the shim share.
pub const LAUNCH_FILE: &str = "launch";
pub const SOCKET_FILE: &str = "shim.sock";
pub const PID_FILE: &str = "shim.pid";
pub const EXIT_FILE: &str = "exit";
pub const OUTPUT_FILE: &str = "output.log";

/// How long a sweep goes on before what is left counts as unkillable.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two rounds of a sweep.
const SWEEP_PAUSE: Duration = Duration::from_millis(20);
/// Longest grace that is kept; more would overflow a clock somewhere.
const MAX_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Connections at once; the oldest makes room for the newest.
const MAX_CLIENTS: usize = 8;

/// Runs the member whose spool is `directory`; returns when no process of it is left.
pub fn main(directory: &Path) -> ExitCode {
    let listener = match child::detach(directory) {
        Ok(listener) => listener,
        Err(error) => {
            // Without a spool there is nowhere else to say it.
            eprintln!("gangline-shim: {}: {error}", directory.display());
            return ExitCode::FAILURE;
        }
    };
    let (record, clients) = match Shim::start(listener) {
        Ok(mut shim) => (shim.supervise(), shim.clients),
        Err(reason) => (ExitRecord::failed(reason), Vec::new()),
    };
    let written = write_private(EXIT_FILE, &record.to_json());
    let farewell = Push::Ended(record).encode();
    for mut client in clients {
        // A client that cannot take it finds the file.
        let _ = client.stream.write_all(&farewell);
    }
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gangline-shim: {EXIT_FILE}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a file of the spool (the current directory) so that it is there completely or not at all.
fn write_private(name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!("{name}.new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(bytes)?;
    fs::rename(&unfinished, name)
}

struct Client {
    stream: UnixStream,
    received: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running,
    /// SIGTERM was sent.
    Terminating {
        deadline: Instant,
    },
    Sweeping {
        since: Instant,
    },
}

struct Shim {
    listener: UnixListener,
    /// A signalfd: SIGCHLD wakes the loop, the rest is swallowed.
    signals: OwnedFd,
    clients: Vec<Client>,
    main: ProcessId,
    stop_signal: StopSignal,
    phase: Phase,
    /// How the main process ended, once it has.
    how: Option<How>,
    asked: bool,
    /// When the member stops without being told to.
    deadline: Option<Deadline>,
    fenced: bool,
    killed: BTreeSet<ProcessId>,
}

impl Shim {
    /// Starts the main process. The error is the reason that the member's end will carry.
    fn start(listener: UnixListener) -> Result<Self, String> {
        let own = std::process::id();
        let start_time = process::stat(own).map(|stat| stat.id.start_time).unwrap_or_default();
        // A single write: what is read before it shows no line yet.
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(PID_FILE)
            .and_then(|mut file| file.write_all(format!("{own} {start_time}\n").as_bytes()))
            .map_err(|error| format!("{PID_FILE} cannot be written: {error}"))?;
        let signals =
            child::signals().map_err(|error| format!("no signals can be received: {error}"))?;
        let launch = fs::read(LAUNCH_FILE)
            .map_err(|error| error.to_string())
            .and_then(|bytes| Launch::from_json(&bytes).map_err(|error| error.to_string()))
            .map_err(|error| format!("{LAUNCH_FILE} cannot be read: {error}"))?;
        child::prepare_files(&launch)?;
        let mut deadline = launch.fence.clone().map(Deadline::new);
        if deadline.as_mut().is_some_and(|deadline| deadline.check(boot_ms)) {
            return Err("the last contact with the coordinator is too long ago".to_owned());
        }
        let main = child::start(&launch)?;
        Ok(Shim {
            listener,
            signals,
            clients: Vec::new(),
            main,
            stop_signal: launch.stop_signal,
            phase: Phase::Running,
            how: None,
            asked: false,
            deadline,
            fenced: false,
            killed: BTreeSet::new(),
        })
    }

    /// Serves the agent until nothing of the member is left, or nothing that can be killed.
    fn supervise(&mut self) -> ExitRecord {
        loop {
            self.wait_for_events();
            self.accept();
            self.serve_clients();
            let children_left = self.reap();
            self.check_deadline();
            let now = Instant::now();
            match self.phase {
                Phase::Running if self.how.is_some() => self.phase = Phase::Sweeping { since: now },
                Phase::Terminating { deadline } if self.how.is_some() || now >= deadline => {
                    self.phase = Phase::Sweeping { since: now };
                }
                _ => {}
            }
            let Phase::Sweeping { since } = self.phase else { continue };
            if !children_left {
                return self.record(Vec::new());
            }
            let left = self.kill_descendants();
            if since.elapsed() > SWEEP_LIMIT {
                return self.record(left);
            }
        }
    }

    fn record(&mut self, survivors: Vec<ProcessId>) -> ExitRecord {
        let how = self.how.take().unwrap_or_else(|| How::Failed {
            reason: format!("process {} does not end after SIGKILL", self.main.pid),
        });
        let swept = u32::try_from(self.killed.len()).unwrap_or(u32::MAX);
        ExitRecord { how, asked: self.asked, fenced: self.fenced, swept, survivors }
    }

    fn wait_for_events(&self) {
        let timeout = match self.phase {
            Phase::Running => self.deadline.as_ref().map(|deadline| deadline.pause(boot_ms())),
            Phase::Terminating { deadline } => {
                Some(deadline.saturating_duration_since(Instant::now()))
            }
            Phase::Sweeping { .. } => Some(SWEEP_PAUSE),
        };
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(duration.subsec_nanos()),
        });
        let mut sources = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        sources.extend(self.clients.iter().map(|c| PollFd::new(&c.stream, PollFlags::IN)));
        if poll(&mut sources, timeout.as_ref()).is_err() {
            // Interrupted, or out of kernel memory: what follows works without an event, and the
            // pause keeps a lasting error from becoming a busy loop.
            std::thread::sleep(SWEEP_PAUSE);
        }
        let mut ignored = [0u8; 1024];
        while matches!(rustix::io::read(&self.signals, &mut ignored), Ok(n) if n > 0) {}
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if !trusted(&stream) || stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= MAX_CLIENTS {
                self.clients.remove(0);
            }
            self.clients.push(Client { stream, received: Vec::new() });
        }
    }

    fn serve_clients(&mut self) {
        for mut client in std::mem::take(&mut self.clients) {
            if self.serve(&mut client) {
                self.clients.push(client);
            }
        }
    }

    /// Reads and answers what a client said; false when the connection is over.
    fn serve(&mut self, client: &mut Client) -> bool {
        let mut piece = [0u8; 256];
        loop {
            match client.stream.read(&mut piece) {
                Ok(0) => return false,
                Ok(count) => client.received.extend(piece.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            loop {
                let answer = match Request::take(&mut client.received) {
                    Ok(None) => break,
                    Ok(Some(Request::Status)) => Push::Started(self.main),
                    Ok(Some(Request::Stop { grace_ms })) => {
                        self.asked = true;
                        self.stop(Duration::from_millis(grace_ms).min(MAX_GRACE));
                        continue;
                    }
                    Ok(Some(Request::Contact { boot_ms: contact_ms })) => {
                        if let Some(deadline) = &mut self.deadline {
                            deadline.note_contact(contact_ms, boot_ms());
                        }
                        continue;
                    }
                    Err(ProtocolError::Version(_)) => {
                        let push = Push::Unsupported { lowest: VERSION, highest: VERSION };
                        // The connection ends either way.
                        let _ = client.stream.write_all(&push.encode());
                        return false;
                    }
                    Err(_) => return false,
                };
                // A full socket buffer means that the client does not read: it is let go.
                if client.stream.write_all(&answer.encode()).is_err() {
                    return false;
                }
            }
        }
    }

    /// Stops the member by itself when its time without contact is over.
    fn check_deadline(&mut self) {
        let (Phase::Running, None, Some(deadline)) = (self.phase, &self.how, &mut self.deadline)
        else {
            return;
        };
        if deadline.check(boot_ms) {
            let grace = deadline.grace().min(MAX_GRACE);
            self.fenced = true;
            self.stop(grace);
        }
    }

    fn stop(&mut self, grace: Duration) {
        let now = Instant::now();
        match self.phase {
            Phase::Sweeping { .. } => {}
            _ if grace.is_zero() => self.phase = Phase::Sweeping { since: now },
            Phase::Running => {
                self.terminate();
                self.phase = Phase::Terminating { deadline: now + grace };
            }
            Phase::Terminating { deadline } => {
                self.phase = Phase::Terminating { deadline: deadline.min(now + grace) };
            }
        }
    }

    fn terminate(&self) {
        if self.how.is_some() {
            return;
        }
        // The main process was not reaped yet, so its pid and its group are its own.
        let Some(pid) = i32::try_from(self.main.pid).ok().and_then(Pid::from_raw) else { return };
        let sent = match self.stop_signal {
            StopSignal::Process => rustix::process::kill_process(pid, Signal::TERM),
            StopSignal::Group => rustix::process::kill_process_group(pid, Signal::TERM),
        };
        if let Err(error) = sent {
            // The deadline and SIGKILL follow in any case.
            eprintln!("gangline-shim: SIGTERM to {pid:?}: {error}");
        }
    }

    /// Reaps whatever has ended; false when no child, living or dead, is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if u32::try_from(pid.as_raw_nonzero().get()) == Ok(self.main.pid)
                        && self.how.is_none()
                    {
                        self.how = ending(status);
                    }
                }
                Ok(None) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false, // ECHILD
            }
        }
    }

    /// One round of the sweep: SIGKILL to every living descendant. Returns those it found.
    fn kill_descendants(&mut self) -> Vec<ProcessId> {
        let living = process::living_descendants(std::process::id());
        for &id in &living {
            // EPERM (a setuid program) leaves it among the survivors, which is the truth.
            if matches!(process::send(id, Signal::KILL), Ok(true)) {
                self.killed.insert(id);
            }
        }
        living
    }
}

fn boot_ms() -> u64 {
    Timestamp::now().boot_ms
}

fn ending(status: WaitStatus) -> Option<How> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(How::Exited { code }),
        (None, Some(signal)) => Some(How::Signalled { signal }),
        (None, None) => None,
    }
}

/// Only root and the shim's own user may give orders, whatever the mode of the socket says.
fn trusted(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream.as_fd())
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}
