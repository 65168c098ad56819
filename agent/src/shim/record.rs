//! The two files by which the agent and a shim know each other across restarts of the agent:
//! `launch` says what to run, `exit` says how it ended. Both are JSON with a version of their own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::fence::Fence;
use crate::supervisor::files::{LogCopy, Operation};
use crate::supervisor::process::ProcessId;

/// Version of both forms.
const VERSION: u32 = 1;
/// Most survivors that are named in an exit record.
pub const MAX_SURVIVORS: usize = 64;
/// Longest reason of a failure that is kept, in characters.
const MAX_REASON_CHARS: usize = 1000;

/// What a shim runs. Holds the job's environment, so the file is private.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    version: u32,
    /// Program and arguments; no shell ever sees them.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// User and group of the main process; the shim's own when absent.
    pub run_as: Option<(u32, u32)>,
    /// What is done below the shared root before the main process starts.
    pub operations: Vec<Operation>,
    pub stop_signal: StopSignal,
    /// Where the logs go at the end; nowhere without a job directory. The agent asks for it.
    pub log_copy: Option<LogCopy>,
    /// When the member stops by itself; never without it.
    #[serde(default)]
    pub fence: Option<Fence>,
}

/// Who gets SIGTERM when a member is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopSignal {
    /// The main process alone: it ends its own children in order, as `ray start` does.
    Process,
    /// The main process and everything in its process group.
    Group,
}

impl Launch {
    pub fn new(argv: Vec<String>, env: Vec<(String, String)>, cwd: PathBuf) -> Self {
        Launch {
            version: VERSION,
            argv,
            env,
            cwd,
            run_as: None,
            operations: Vec::new(),
            stop_signal: StopSignal::Group,
            log_copy: None,
            fence: None,
        }
    }

    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    pub fn from_json(bytes: &[u8]) -> Result<Self, RecordError> {
        let launch: Launch = serde_json::from_slice(bytes)?;
        check_version(launch.version)?;
        Ok(launch)
    }
}

/// How a member ended, written by the shim once none of its processes is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitRecord {
    pub how: How,
    /// A Stop came first.
    pub asked: bool,
    /// The shim stopped the member by itself: its `on_disconnect` was due.
    pub fenced: bool,
    /// Processes that had to be killed.
    pub swept: u32,
    /// Processes that SIGKILL did not end within a minute; empty in all but the worst cases.
    pub survivors: Vec<ProcessId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    Exited { code: i32 },
    Signalled { signal: i32 },
    Failed { reason: String },
}

/// A file is not what this build reads.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("version {0} is not read by this build")]
    Version(u32),
    #[error("unreadable: {0}")]
    Malformed(#[from] serde_json::Error),
}

fn check_version(version: u32) -> Result<(), RecordError> {
    if version == VERSION { Ok(()) } else { Err(RecordError::Version(version)) }
}

/// The form of an exit record on disk and on the socket.
#[derive(Serialize, Deserialize)]
struct StoredExit {
    version: u32,
    how: How,
    asked: bool,
    /// A shim of version 1 has no such end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    fenced: bool,
    swept: u32,
    survivors: Vec<ProcessId>,
}

impl ExitRecord {
    /// Nothing was started.
    pub fn failed(reason: String) -> Self {
        let reason = reason.chars().take(MAX_REASON_CHARS).collect();
        let how = How::Failed { reason };
        ExitRecord { how, asked: false, fenced: false, swept: 0, survivors: Vec::new() }
    }

    pub fn to_json(&self) -> Vec<u8> {
        let stored = StoredExit {
            version: VERSION,
            how: self.how.clone(),
            asked: self.asked,
            fenced: self.fenced,
            swept: self.swept,
            survivors: self.survivors.iter().copied().take(MAX_SURVIVORS).collect(),
        };
        // Only maps with keys that are not text can fail to become JSON; there is none here.
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    pub fn from_json(bytes: &[u8]) -> Result<Self, RecordError> {
        let stored: StoredExit = serde_json::from_slice(bytes)?;
        check_version(stored.version)?;
        let StoredExit { version: _, how, asked, fenced, swept, survivors } = stored;
        Ok(ExitRecord { how, asked, fenced, swept, survivors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::fence::Sight;

    #[test]
    fn golden_launch() {
        let mut launch = Launch::new(
            vec!["python".into(), "a b.py".into()],
            vec![("K".into(), "v=1\n".into())],
            "/work".into(),
        );
        launch.run_as = Some((1000, 100));
        let address = "10.0.0.2:20000".parse().unwrap();
        let sight = Some(Sight::Gcs { address });
        launch.fence = Some(Fence { after_ms: 60_000, grace_ms: 5_000, contact_ms: 7, sight });
        launch.operations = vec![Operation::MakeDirectory { path: "/nfs/j".into() }];
        let json = r#"{"version":1,"argv":["python","a b.py"],"env":[["K","v=1\n"]],"cwd":"/work","run_as":[1000,100],"operations":[{"make_directory":{"path":"/nfs/j"}}],"stop_signal":"group","log_copy":null,"fence":{"after_ms":60000,"grace_ms":5000,"contact_ms":7,"sight":{"gcs":{"address":"10.0.0.2:20000"}}}}"#;
        assert_eq!(String::from_utf8(launch.to_json().unwrap()).unwrap(), json);
        assert!(Launch::from_json(json.as_bytes()).unwrap() == launch);
    }

    #[test]
    fn other_versions_are_refused() {
        let json =
            r#"{"version":2,"how":{"exited":{"code":0}},"asked":false,"swept":0,"survivors":[]}"#;
        assert!(matches!(ExitRecord::from_json(json.as_bytes()), Err(RecordError::Version(2))));
        assert!(matches!(ExitRecord::from_json(b""), Err(RecordError::Malformed(_))));
    }

    #[test]
    fn the_longest_record_fits_into_a_frame() {
        let survivor = ProcessId { pid: u32::MAX, start_time: u64::MAX };
        let mut record = ExitRecord::failed("\u{1}".repeat(5000));
        record.survivors = vec![survivor; 1000];
        assert!(record.to_json().len() <= super::super::protocol::PUSH_BYTES);
    }
}
