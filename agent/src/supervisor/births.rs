//! The agent's end of its nursery (`crate::shim::nursery`): asks for shims and helpers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::process::ProcessId;
use crate::shim::nursery::{self, Kind, ROOM, ROOM_VARIABLE, Request};

/// How long a birth may take before the nursery counts as broken.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Starts the nursery when it is first needed, and again when it has gone.
#[derive(Debug)]
pub struct Nursery {
    program: PathBuf,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    /// `None` only while it is being dropped.
    socket: Option<OwnedFd>,
    process: Child,
}

impl Nursery {
    /// `program` is the agent's own.
    pub fn new(program: PathBuf) -> Self {
        Nursery { program, running: Mutex::new(None) }
    }

    /// Starts the shim of a member; it serves `listener`. `None`: the nursery broke down in
    /// between, so whether a shim was born has to be seen. Blocks.
    pub fn shim(
        &self,
        directory: &Path,
        mark: &str,
        listener: impl AsFd,
    ) -> io::Result<Option<ProcessId>> {
        let request =
            Request { kind: Kind::Shim, mark: mark.to_owned(), directory: directory.to_owned() };
        self.bear(&request, listener)
    }

    /// Starts a helper that reads its request from `stream` and answers there. Blocks.
    pub fn helper(&self, stream: impl AsFd) -> io::Result<Option<ProcessId>> {
        let request =
            Request { kind: Kind::Helper, mark: String::new(), directory: PathBuf::new() };
        self.bear(&request, stream)
    }

    /// As [`Nursery::helper`], for one that writes code (`crate::code`). Blocks.
    pub fn code_helper(&self, stream: impl AsFd) -> io::Result<Option<ProcessId>> {
        let request =
            Request { kind: Kind::CodeHelper, mark: String::new(), directory: PathBuf::new() };
        self.bear(&request, stream)
    }

    fn bear(&self, request: &Request, fd: impl AsFd) -> io::Result<Option<ProcessId>> {
        // Nothing in here panics between a request and its answer.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nursery) = running.as_ref()
            && nursery.send(request, &fd).is_err()
        {
            // Nothing was received, so nothing was born: it may be asked for again.
            *running = None;
        }
        let nursery = match running.as_ref() {
            Some(nursery) => nursery,
            None => {
                let nursery = running.insert(Running::start(&self.program)?);
                nursery.send(request, &fd)?;
                nursery
            }
        };
        match nursery.receive() {
            Ok(born) => born.map(Some),
            Err(error) => {
                tracing::warn!(%error, "the nursery broke down; the next birth starts a new one");
                *running = None;
                Ok(None)
            }
        }
    }
}

impl Running {
    fn start(program: &Path) -> io::Result<Self> {
        // After an upgrade the file may be gone while this process still runs from it.
        let own = Path::new("/proc/self/exe");
        let program = if program.exists() { program } else { own };
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&here, sockopt::Timeout::Recv, Some(ANSWER_LIMIT))?;
        let process = Command::new(program)
            .arg("nursery")
            .env_clear()
            .env(ROOM_VARIABLE, "-".repeat(ROOM))
            .stdin(Stdio::from(there))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        Ok(Running { socket: Some(here), process })
    }

    fn send(&self, request: &Request, fd: impl AsFd) -> io::Result<()> {
        match &self.socket {
            Some(socket) => nursery::send(socket, request, fd),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn receive(&self) -> io::Result<io::Result<ProcessId>> {
        match &self.socket {
            Some(socket) => nursery::receive(socket),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its end of the socket closed, the nursery ends by itself; one that hangs is killed.
        self.socket = None;
        let _ = self.process.kill();
        if let Err(error) = self.process.wait() {
            tracing::warn!(%error, "the nursery was not collected");
        }
    }
}
