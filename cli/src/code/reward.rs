//! The reward function in code that is about to be sent: its file, its syntax and its name. That
//! it can be imported is seen on the nodes, in the environment of the job.

use std::process::{Command, Stdio};

use gangline_spec::Reward;

use super::{Snapshot, refused};
use crate::errors::CliError;

/// Reads a Python file without running anything of it. Exit code 3: a text on stdout says what is
/// wrong with it.
const READER: &str = include_str!("read_reward.py");
const FOUND_WRONG: i32 = 3;

/// # Errors
/// The code has no such file, it is not Python, or nothing in it has the name. A machine without
/// Python leaves the last two to the nodes.
pub fn check(reward: &Reward, snapshot: &Snapshot) -> Result<(), CliError> {
    let Some(path) = reward.in_code() else { return Ok(()) };
    if !snapshot.tree.entries().iter().any(|entry| entry.path == path) {
        let file = snapshot.root.join(path);
        let hint = if file.exists() {
            "it is there but ignored: name it in code.include, or take it out of .gitignore"
        } else {
            "reward.path is relative to code.snapshot"
        };
        return Err(refused(format!("reward.path: the code has no file {path}")).hint(hint));
    }
    let read = Command::new("python3")
        .args(["-I", "-c", READER])
        .arg(snapshot.root.join(path))
        .arg(&reward.symbol)
        .stdin(Stdio::null())
        .output();
    match read {
        Ok(output) if output.status.code() == Some(FOUND_WRONG) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let (what, hint) = text.trim_end().split_once('\n').unwrap_or((text.trim_end(), ""));
            Err(refused(format!("reward: {path}: {what}")).hint(hint))
        }
        // No Python here, or one that cannot read it: the nodes check it before the job runs.
        Ok(_) | Err(_) => Ok(()),
    }
}
