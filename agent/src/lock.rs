//! One agent per state directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The state directory cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "{} belongs to the agent with pid {pid}, which runs: stop it, or give this one another \
         --state-dir",
        state_dir.display()
    )]
    Taken { state_dir: PathBuf, pid: String },
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Held for as long as the agent runs; the kernel gives it back when the process ends.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the directory, which must exist.
    pub fn take(state_dir: &Path) -> Result<StateLock, LockError> {
        let path = state_dir.join("lock");
        let io = |source| LockError::Io { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                file.take(32).read_to_string(&mut pid).map_err(io)?;
                let pid = pid.trim().to_owned();
                return Err(LockError::Taken { state_dir: state_dir.to_owned(), pid });
            }
            Err(error) => return Err(io(error.into())),
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()));
        written.map_err(io)?;
        Ok(StateLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_by_pid() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateLock::take(directory.path()).unwrap();
        let error = StateLock::take(directory.path()).unwrap_err();
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(first);
        StateLock::take(directory.path()).unwrap();
    }
}
