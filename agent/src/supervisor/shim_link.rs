//! The agent's end of a shim's socket.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::shim::SOCKET_FILE;
use crate::shim::protocol::{ProtocolError, Push, Request};

/// How long a request may wait for a shim that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// A way to the socket that is short enough for an address, however long the spool's path is.
/// The directory must stay open while the path is used.
fn short_path(directory: &Path) -> io::Result<(File, PathBuf)> {
    let directory = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC)
        .open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd()));
    Ok((directory, path))
}

/// Makes the socket that a new shim inherits; the kernel queues the agent's connection until the
/// shim is up.
pub fn listen(directory: &Path) -> io::Result<UnixListener> {
    let (_open, path) = short_path(directory)?;
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The conversation broke; the shim itself may be well.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the shim hung up")]
    Closed,
}

/// One connection to a shim.
pub struct ShimLink {
    stream: UnixStream,
    received: Vec<u8>,
    version: u8,
}

impl ShimLink {
    /// Connects and asks for the status, which is the first thing that [`Self::next`] returns, in
    /// one of the versions that an agent speaks.
    pub async fn connect(directory: &Path, version: u8) -> Result<Self, LinkError> {
        let stream = {
            let (_open, path) = short_path(directory)?;
            UnixStream::connect(&path).await?
        };
        let mut link = ShimLink { stream, received: Vec::new(), version };
        link.send(Request::Status).await?;
        Ok(link)
    }

    /// The next thing that the shim says. May be dropped and called again: no byte is lost.
    pub async fn next(&mut self) -> Result<Push, LinkError> {
        loop {
            if let Some(push) = Push::take(&mut self.received)? {
                return Ok(push);
            }
            // The decoder bounds what is buffered: a frame that is too long is an error.
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(LinkError::Closed);
            }
        }
    }

    pub async fn stop(&mut self, grace: Duration) -> Result<(), LinkError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.send(Request::Stop { grace_ms }).await
    }

    /// Tells a shim that has a deadline when there was contact with the coordinator.
    pub async fn contact(&mut self, boot_ms: u64) -> Result<(), LinkError> {
        self.send(Request::Contact { boot_ms }).await
    }

    async fn send(&mut self, request: Request) -> Result<(), LinkError> {
        // What an older shim does not know, it does not need.
        let Some(bytes) = request.encode(self.version) else { return Ok(()) };
        match tokio::time::timeout(WRITE_TIMEOUT, self.stream.write_all(&bytes)).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(LinkError::Io(io::ErrorKind::TimedOut.into())),
        }
    }
}
