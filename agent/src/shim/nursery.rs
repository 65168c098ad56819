//! `gangline-agent nursery`: the process that shims and helpers are forked from.
//!
//! To start the agent's own program anew for every member costs more than everything else on the
//! path to the job's first instruction. This process has started once, has one thread and holds
//! nothing, so a fork of it is a complete, clean process at a fifth of that price. It ends when the
//! agent does; what it gave birth to lives on.
//!
//! ```text
//! fd 0, SOCK_SEQPACKET: request = kind u8 | mark | 0 | directory      with one fd
//!                       answer  = pid u32 | start time u64            (big endian)
//! ```

use std::ffi::{CStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

use gangline_common::ids::MARK_VARIABLE;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::code;
use crate::supervisor::files;
use crate::supervisor::process::{self, ProcessId};

/// A variable of this process whose place in memory a child's mark is written over, so that `/proc`
/// shows the mark of a shim as it does of every other process of its member.
pub const ROOM_VARIABLE: &str = "GANGLINE_ROOM";
/// Length of its value: room for the longest mark, in bytes.
pub const ROOM: usize = 512;
/// Longest request, in bytes: the longest path and the longest mark.
const REQUEST_BYTES: usize = libc::PATH_MAX as usize + ROOM + 2;
const ANSWER_BYTES: usize = 12;

/// What is born.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Gets the listening socket as fd 0.
    Shim = b's' as isize,
    /// Gets its end of a socket pair as fd 0 and 1.
    Helper = b'h' as isize,
    /// The same, for one that writes code.
    CodeHelper = b'c' as isize,
}

/// One birth. A helper has neither mark nor directory.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    pub mark: String,
    pub directory: PathBuf,
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend(self.mark.as_bytes());
        bytes.push(0);
        bytes.extend(self.directory.as_os_str().as_encoded_bytes());
        bytes
    }

    /// `None` for what is no request.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (&kind, rest) = bytes.split_first()?;
        let kind = match kind {
            b's' => Kind::Shim,
            b'h' => Kind::Helper,
            b'c' => Kind::CodeHelper,
            _ => return None,
        };
        let end = rest.iter().position(|&byte| byte == 0)?;
        let (mark, directory) = rest.split_at_checked(end)?;
        let mark = String::from_utf8(mark.to_vec()).ok()?;
        let directory = OsString::from_vec(directory.get(1..)?.to_vec()).into();
        Some(Request { kind, mark, directory })
    }
}

/// Sends a request with the fd that the child gets. An error means that it was not received.
pub fn send(socket: impl AsFd, request: &Request, fd: impl AsFd) -> io::Result<()> {
    let bytes = request.encode();
    if bytes.len() > REQUEST_BYTES || request.mark.len() > ROOM {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let fds = [fd.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for the answer: which process was born, or why none could be. The outer error means that
/// there is no answer.
pub fn receive(socket: impl AsFd) -> io::Result<Result<ProcessId, io::Error>> {
    let mut answer = [0; ANSWER_BYTES];
    let (length, _) = rustix::net::recv(socket, &mut answer, RecvFlags::empty())?;
    if length != ANSWER_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let [a, b, c, d, start_time @ ..] = answer;
    let (pid, start_time) = (u32::from_be_bytes([a, b, c, d]), u64::from_be_bytes(start_time));
    Ok(match pid {
        0 => Err(io::Error::from_raw_os_error(start_time as i32)),
        pid => Ok(ProcessId { pid, start_time }),
    })
}

/// Serves requests until the agent has gone. Returns in every child as well, with its end.
pub fn main() -> ExitCode {
    // A signal to the agent's group is no business of members.
    let _ = rustix::process::setsid();
    // SAFETY: no handler is installed; nobody here waits for a child.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        let (request, fd) = match next() {
            Ok(Some(next)) => next,
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("gangline-agent nursery: {error}");
                return ExitCode::FAILURE;
            }
        };
        // SAFETY: this process has one thread, so the child finds every lock free.
        match unsafe { libc::fork() } {
            0 => return live(&request, fd),
            child => {
                drop(fd);
                if let Err(error) = answer(child) {
                    eprintln!("gangline-agent nursery: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
}

fn next() -> io::Result<Option<(Request, OwnedFd)>> {
    let mut bytes = vec![0; REQUEST_BYTES];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        match recvmsg(io::stdin(), &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Ok(None);
    }
    let request = bytes.get(..received.bytes).and_then(Request::decode);
    match (request, fd) {
        (Some(request), Some(fd)) => Ok(Some((request, fd))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "malformed request")),
    }
}

/// Tells the agent which process was born, or that none was.
fn answer(child: i32) -> io::Result<()> {
    let (pid, number) = match u32::try_from(child) {
        // One that has ended already has no start time any more, and no process has this one.
        Ok(pid) => (pid, process::stat(pid).map_or(0, |stat| stat.id.start_time)),
        Err(_) => (0, io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN) as u64),
    };
    let bytes = [pid.to_be_bytes().as_slice(), &number.to_be_bytes()].concat();
    rustix::net::send(io::stdin(), &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The life of a child.
fn live(request: &Request, fd: OwnedFd) -> ExitCode {
    // SAFETY: system calls; a child waits for children of its own. The standard streams of this
    // process are its own, and the nursery's socket, fd 0, must not live on in it.
    let prepared = unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let last = if request.kind == Kind::Shim { 0 } else { 1 };
        (0..=last).all(|stream| libc::dup2(fd.as_raw_fd(), stream) >= 0)
    };
    drop(fd);
    if !prepared {
        return ExitCode::FAILURE;
    }
    match request.kind {
        Kind::Helper => files::helper_main(),
        Kind::CodeHelper => code::helper_main(),
        Kind::Shim => {
            write_mark(&request.mark);
            // Only what `ps` shows.
            let _ = rustix::thread::set_name(c"gangline-shim");
            super::main(&request.directory)
        }
    }
}

/// Writes `GANGLINE_MARK=<mark>` over the variable that keeps the room for it.
fn write_mark(mark: &str) {
    unsafe extern "C" {
        static mut environ: *mut *mut libc::c_char;
    }
    let entry = format!("{MARK_VARIABLE}={mark}");
    let room = ROOM_VARIABLE.len() + 1 + ROOM;
    // SAFETY: there is one thread. The list ends with a null pointer, its entries are C strings in
    // memory of this process; what is written is no longer than the entry that it goes over.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let found = CStr::from_ptr(*at).to_bytes();
            if found.len() == room && found.starts_with(ROOM_VARIABLE.as_bytes()) {
                std::ptr::write_bytes(*at, 0, room);
                let length = entry.len().min(room);
                std::ptr::copy_nonoverlapping(entry.as_ptr().cast(), *at, length);
                return;
            }
            at = at.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back() {
        for (kind, mark, directory) in [
            (Kind::Shim, "g-1:1.2:rank-0", "/var/lib/x y"),
            (Kind::Helper, "", ""),
            (Kind::CodeHelper, "", ""),
        ] {
            let request = Request { kind, mark: mark.to_owned(), directory: directory.into() };
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for bytes in [&b""[..], b"x\0", b"s", b"sm", b"s\xff\0d"] {
            assert_eq!(Request::decode(bytes), None, "{bytes:?}");
        }
    }
}
