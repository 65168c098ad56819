//! A text of the coordinator's in the job's directory, which only nodes see: written by a helper, for the
//! file system may hang.

use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::wire::request::{FailureReason, RequestFailure};

use super::births::Nursery;
use super::files::{self, Operation};

/// Shorter than what the coordinator waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Name of the file, beside the logs of its attempt.
const FILE: &str = "why.txt";

/// Writes `<directory>/logs/attempt-<n>/why.txt`. One that is there stays.
///
/// # Errors
/// The directory is no absolute path, or the file system does not answer in time, or not well.
pub async fn write(
    nursery: &Arc<Nursery>,
    directory: &str,
    attempt: u32,
    text: String,
) -> Result<Vec<u8>, RequestFailure> {
    let failure = |text| RequestFailure { reason: FailureReason::NoAnswer, text };
    let directory = Path::new(directory);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !directory.is_absolute() || !directory.components().all(plain) {
        return Err(failure("not the directory of a job".to_owned()));
    }
    let path = directory.join("logs").join(format!("attempt-{attempt}"));
    let operations = vec![
        Operation::MakeDirectory { path: path.clone() },
        Operation::WriteNew { path: path.join(FILE), text },
    ];
    let written = files::run_helper(nursery, None, operations, TIMEOUT).await;
    written.map(|()| Vec::new()).map_err(|error| failure(error.to_string()))
}
