//! Room on the disks that the agent and its members write to.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use serde::{Deserialize, Serialize};

use super::slot::{CollectError, Collector};

/// The file systems below the agent's own directories. `None`: it does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StorageReading {
    pub state: Option<Room>,
    pub temp: Option<Room>,
}

/// Room of the file system that holds a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub path: PathBuf,
    pub total_bytes: u64,
    /// What a process without privileges can still write.
    pub free_bytes: u64,
    /// 0 where the file system makes inodes as it needs them.
    pub total_inodes: u64,
    pub free_inodes: u64,
    /// Mounted, or gone over, to read-only.
    pub read_only: bool,
}

/// Looks at the state directory and the temp root.
pub struct StorageCollector {
    state: PathBuf,
    temp: PathBuf,
}

impl StorageCollector {
    #[must_use]
    pub fn new(state: PathBuf, temp: PathBuf) -> Self {
        StorageCollector { state, temp }
    }
}

impl Collector for StorageCollector {
    type Reading = StorageReading;

    /// A temp root that no member has needed yet is looked for at the next directory above it.
    fn read(&mut self) -> Result<StorageReading, CollectError> {
        let state = room(&self.state)
            .map_err(|error| CollectError(format!("{}: {error}", self.state.display())))?;
        let temp = self.temp.ancestors().find_map(|path| room(path).ok());
        Ok(StorageReading { state: Some(state), temp })
    }
}

/// Room of the file system that holds `path`. Blocks as long as that does.
///
/// # Errors
/// The kernel's, e.g. for a path that does not exist.
pub fn room(path: &Path) -> io::Result<Room> {
    let found = rustix::fs::statvfs(path)?;
    Ok(Room {
        path: path.to_owned(),
        total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        total_inodes: found.f_files,
        free_inodes: found.f_favail,
        read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_yet_has_the_room_of_the_one_above() {
        let root = tempfile::tempdir().expect("directory");
        let temp = root.path().join("gangline/temp");
        let mut collector = StorageCollector::new(root.path().to_owned(), temp);
        let reading = collector.read().expect("reading");
        let (state, temp) = (reading.state.expect("state"), reading.temp.expect("temp"));
        assert_eq!((&state.path, &temp.path), (&root.path().to_owned(), &root.path().to_owned()));
        assert!(state.total_bytes > 0 && state.free_bytes <= state.total_bytes);
        assert_eq!(state.total_bytes, temp.total_bytes);
        assert!(!state.read_only);
        let missing = StorageCollector::new("/nonexistent/state".into(), "/".into()).read();
        assert!(missing.is_err());
    }
}
