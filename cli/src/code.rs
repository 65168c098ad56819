//! The code that a spec names on this machine: what of it is sent, and sending it.
//!
//! A directory becomes a tree (`walk` says which files, `snapshot` cuts and hashes them); `upload`
//! sends what the coordinator does not have. What is submitted names the tree.

mod cache;
mod git;
mod reward;
mod snapshot;
mod upload;
mod walk;

use std::path::{Path, PathBuf};

use gangline_spec::{CodeSource, CodeSpec, JobSpec};

use crate::commands::bytes;
use crate::errors::{CliError, code, exit};
pub use snapshot::{Snapshot, Wanted};
pub use upload::send;

/// Largest archive that is sent; the coordinator's own bound.
const MAX_ZIP_BYTES: u64 = 512 << 20;

/// Code of a spec that is on this machine.
#[derive(Debug)]
pub enum Local {
    Directory(Box<Snapshot>),
    Archive { path: PathBuf, bytes: u64 },
}

impl Local {
    /// Looks at the code of `spec`, whose places are relative to `base`. `None` when there is
    /// nothing to send.
    ///
    /// # Errors
    /// It cannot be read, is too large, or holds what cannot be sent.
    pub fn find(spec: &JobSpec, base: &Path) -> Result<Option<Local>, CliError> {
        let Some(code) = &spec.code else { return Ok(None) };
        match &code.source {
            CodeSource::Path(_) | CodeSource::Tree(_) => Ok(None),
            CodeSource::Snapshot(place) => {
                let root = base.join(place);
                let commit = if code.record_git { git::commit(&root) } else { None };
                let caches = cache::directory(|name| std::env::var(name).ok());
                let wanted = Wanted { include: &code.include, max_bytes: code.max_bytes };
                let snapshot = Snapshot::of(&root, &wanted, commit, caches.as_deref())?;
                if let Some(reward) = &spec.reward {
                    reward::check(reward, &snapshot)?;
                }
                Ok(Some(Local::Directory(Box::new(snapshot))))
            }
            CodeSource::Zip(place) => {
                let path = base.join(place);
                let metadata = std::fs::metadata(&path).map_err(|e| cannot_read(&path, &e))?;
                let (size, most) = (metadata.len(), code.max_bytes.min(MAX_ZIP_BYTES));
                if size > most {
                    let what = format!("the archive {} has {}", path.display(), bytes(size));
                    return Err(refused(what)
                        .why(format!("at most {} are sent", bytes(most)))
                        .hint("leave data out of it, or set code.max_size (at most 512MiB)"));
                }
                Ok(Some(Local::Archive { path, bytes: size }))
            }
        }
    }

    /// Directory that the places of a spec file are relative to.
    #[must_use]
    pub fn base_of(spec_file: Option<&Path>) -> PathBuf {
        let above = spec_file.filter(|path| path.as_os_str() != "-").and_then(Path::parent);
        above.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
    }

    /// What is sent and what not, in a few lines for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Local::Archive { path, bytes: size } => {
                format!("  code  {}, an archive of {}", path.display(), bytes(*size))
            }
            Local::Directory(snapshot) => {
                let mut text = format!("  code  {}", snapshot.size_text());
                let largest = snapshot.largest();
                if !largest.is_empty() {
                    text.push_str(&format!("\n  largest  {}", largest.join(", ")));
                }
                let left_out = snapshot.left_out();
                if !left_out.is_empty() {
                    text.push_str(&format!("\n  left out  {}", left_out.join(" ")));
                }
                text
            }
        }
    }
}

/// The spec without the code that is on this machine alone, and without a reward function in it: as
/// the coordinator can be asked about places for the job, for which code does not matter.
#[must_use]
pub fn without_local(spec: &JobSpec) -> JobSpec {
    let mut asked = spec.clone();
    let is_local = |code: &CodeSpec| match code.source {
        CodeSource::Snapshot(_) | CodeSource::Zip(_) => true,
        CodeSource::Tree(_) | CodeSource::Path(_) => false,
    };
    if asked.code.as_ref().is_some_and(is_local) {
        asked.code = None;
        asked.reward = asked.reward.filter(|reward| reward.in_code().is_none());
    }
    asked
}

fn refused(what: impl Into<String>) -> CliError {
    CliError::new(exit::INVALID, code::CODE, what)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> CliError {
    CliError::io(format!("cannot read {}", path.display()), error)
        .hint("code.snapshot and code.zip are relative to the spec file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_this_machine_alone_is_not_asked_about() {
        let tree = format!("{{snapshot: 'blake3:{}'}}", "0f".repeat(32));
        for (code, reward, keeps_code, keeps_reward) in [
            ("{snapshot: .}", "reward.py", false, false),
            ("{zip: code.zip}", "./reward.py", false, false),
            ("{snapshot: .}", "/shared/reward.py", false, true),
            (tree.as_str(), "reward.py", true, true),
            ("{path: /shared/code}", "reward.py", true, true),
        ] {
            let reward = format!("{{path: {reward}, symbol: f}}");
            let text = format!("name: x\nrun: x\ncode: {code}\nreward: {reward}\n");
            let spec = gangline_spec::parse(&text).unwrap();
            let asked = without_local(&spec);
            let kept = (asked.code.is_some(), asked.reward.is_some());
            assert_eq!(kept, (keeps_code, keeps_reward), "{text}");
            // What is asked is a spec of its own.
            assert!(gangline_spec::parse_resolved(&asked.canonical_json()).is_ok(), "{text}");
            assert_eq!(asked.resources, spec.resources);
        }
    }
}
