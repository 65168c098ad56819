//! The commit of a directory, for people who ask later what a job ran.

use std::path::Path;
use std::process::{Command, Stdio};

use gangline_spec::CHANGED;

/// The commit, with a mark when files are not as committed; `None` where git knows none, or is not
/// there.
pub fn commit(directory: &Path) -> Option<String> {
    let commit = git(directory, &["rev-parse", "--verify", "--quiet", "HEAD"])?;
    let commit = commit.trim();
    if !matches!(commit.len(), 40 | 64) || !commit.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let status = ["status", "--porcelain", "--untracked-files=normal", "--", "."];
    let changed = git(directory, &status).is_none_or(|files| !files.is_empty());
    Some(format!("{commit}{}", if changed { CHANGED } else { "" }))
}

fn git(directory: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        // Nothing that the directory's own settings name is run.
        .args(["-c", "core.fsmonitor=false", "-C"])
        .arg(directory)
        .args(arguments)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
