//! Room on the disks that the agent and its members write to.

use std::path::PathBuf;

use serde::Serialize;

/// The file systems below the agent's own directories. `None`: it does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StorageReading {
    pub state: Option<Room>,
    pub temp: Option<Room>,
}

/// Room of the file system that holds a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
