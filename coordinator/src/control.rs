//! The way to a coordinator that serves, for commands on its own machine: a Unix socket in the state
//! directory, because only one process can have the store open.
//!
//! A request is one line, the answer one line of JSON; after that of `backup` comes the copy itself.
//! Only the owner of the process and root are heard. One request at a time; the rest wait in the
//! kernel's queue.

use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_common::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::store::{Counts, StoreReader};

/// Name of the socket in the state directory.
pub const SOCKET: &str = "control.sock";
/// The other side must read or write something within this.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest request and longest answer, in bytes.
const LINE_LIMIT: u64 = 64 << 10;
/// A path of a socket that is longer is refused by the kernel.
const PATH_LIMIT: usize = 100;
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The line that answers a request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A copy follows.
    Copy,
    /// Every record decodes.
    Checked(Checked),
    Failed(String),
}

/// What a check of the store has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub era: u32,
    pub rows: Counts,
    /// Why the audit log does not hold together.
    pub audit_broken: Option<String>,
    /// Time of the newest entry of the audit log, in milliseconds since 1970.
    pub newest_wall_ms: Option<u64>,
}

impl Checked {
    /// Reads the whole store.
    ///
    /// # Errors
    /// What is damaged, by name.
    pub fn of(reader: &StoreReader) -> Result<Checked, String> {
        let rows = reader.check().map_err(|e| e.to_string())?;
        let audit = reader.audit_log();
        let newest = audit.page(u64::MAX, 1).map_err(|e| e.to_string())?;
        Ok(Checked {
            era: reader.meta()?.era,
            rows,
            audit_broken: audit.verify().1,
            newest_wall_ms: newest.first().map(|entry| entry.entry.wall_ms),
        })
    }
}

/// A socket below a directory by a path that is short enough; the directory stays open as long.
fn short_path(state_dir: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let path = state_dir.join(SOCKET);
    if path.as_os_str().len() <= PATH_LIMIT {
        return Ok((path, None));
    }
    let directory = File::open(state_dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(SOCKET);
    Ok((path, Some(directory)))
}

/// Listens, on a thread of its own. The caller has the store open, so nobody else does.
pub fn serve(state_dir: &Path, reader: StoreReader) -> io::Result<()> {
    let (path, _directory) = short_path(state_dir)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        loop {
            let answered = listener.accept().map(|(stream, _)| answer(stream, &reader));
            match answered {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "a request of a local command"),
                Err(error) => {
                    tracing::warn!(%error, "the control socket");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    })?;
    Ok(())
}

fn answer(stream: UnixStream, reader: &StoreReader) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return Err(io::Error::other(format!("user {} may not ask", peer.as_raw())));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    BufReader::new((&stream).take(LINE_LIMIT)).read_line(&mut request)?;
    let mut out = BufWriter::with_capacity(1 << 16, &stream);
    match request.trim_end() {
        "backup" => {
            say(&mut out, &Answer::Copy)?;
            let copy = reader.back_up(Timestamp::now().wall_ms, &mut out);
            let copy = copy.map_err(|e| io::Error::other(format!("backup: {e}")))?;
            tracing::info!(copy = copy.sentence(), "backup");
        }
        "check" => {
            let checked = Checked::of(reader).map_or_else(Answer::Failed, Answer::Checked);
            say(&mut out, &checked)?;
        }
        other => {
            let shown: String = other.chars().take(80).collect();
            say(&mut out, &Answer::Failed(format!("this coordinator knows no request {shown:?}")))?;
        }
    }
    out.flush()
}

fn say(out: &mut impl Write, answer: &Answer) -> io::Result<()> {
    serde_json::to_writer(&mut *out, answer)?;
    out.write_all(b"\n")
}

/// A connection to the coordinator that serves a state directory.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// `None` when no coordinator serves it.
    ///
    /// # Errors
    /// One may serve, but this user may not ask it.
    pub fn connect(state_dir: &Path) -> io::Result<Option<Client>> {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let connected = short_path(state_dir).and_then(|(path, _open)| UnixStream::connect(path));
        match connected {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(Some(Client { stream: BufReader::with_capacity(1 << 16, stream) }))
            }
            Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ask(&mut self, request: &str) -> io::Result<Answer> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        (&mut self.stream).take(LINE_LIMIT).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::other("the coordinator did not answer; its log says why"));
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// The bytes of a copy; whether they are whole shows at their end.
    pub fn backup(mut self) -> io::Result<impl Read> {
        match self.ask("backup")? {
            Answer::Copy => Ok(self.stream),
            Answer::Failed(reason) => Err(io::Error::other(reason)),
            Answer::Checked(_) => Err(io::Error::other("an answer to another request")),
        }
    }

    /// Lets the coordinator read its whole store.
    ///
    /// # Errors
    /// What is damaged, or why there is no answer.
    pub fn check(mut self) -> Result<Checked, String> {
        match self.ask("check").map_err(|e| e.to_string())? {
            Answer::Checked(checked) => Ok(checked),
            Answer::Failed(reason) => Err(reason),
            Answer::Copy => Err("an answer to another request".to_owned()),
        }
    }
}
