//! What a tree may hold. A tree is laid out on nodes by a program that trusts nothing of it, and
//! with these rules no entry of it can reach outside of its own directory.

use std::collections::HashSet;

use crate::chunker::MAX_CHUNK_BYTES;
use crate::manifest::{Entry, Kind, MAX_ENTRIES, MAX_MANIFEST_BYTES, MAX_TREE_BYTES};

/// Longest path in a tree, and longest name in a path, in bytes.
const MAX_PATH_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 255;

/// Something is no tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error("it has more than {MAX_ENTRIES} files")]
    TooManyEntries,
    #[error("it has more than {MAX_TREE_BYTES} bytes")]
    TooLarge,
    #[error("its list of files has more than {MAX_MANIFEST_BYTES} bytes")]
    ListTooLong,
    #[error("{path:?} {problem}")]
    Path { path: String, problem: &'static str },
    #[error("the link {path:?} to {target:?} {problem}")]
    Link { path: String, target: String, problem: &'static str },
    #[error("{path:?} has a chunk of {bytes} bytes; a chunk has 1 to {MAX_CHUNK_BYTES}")]
    Chunk { path: String, bytes: u32 },
    #[error("it is not a list of files: {0}")]
    Malformed(&'static str),
}

impl TreeError {
    fn path(path: &str, problem: &'static str) -> TreeError {
        TreeError::Path { path: path.to_owned(), problem }
    }
}

/// Checks a whole tree.
pub fn check(entries: &[Entry]) -> Result<(), TreeError> {
    if entries.len() > MAX_ENTRIES {
        return Err(TreeError::TooManyEntries);
    }
    let mut bytes = 0u64;
    let mut before: Option<&str> = None;
    for entry in entries {
        check_path(&entry.path)?;
        match before {
            Some(before) if before == entry.path => {
                return Err(TreeError::path(&entry.path, "is there twice"));
            }
            Some(before) if before > entry.path.as_str() => {
                return Err(TreeError::path(&entry.path, "is not in order"));
            }
            _ => before = Some(&entry.path),
        }
        match &entry.kind {
            Kind::File { chunks, .. } => {
                for chunk in chunks {
                    if chunk.bytes == 0 || chunk.bytes as usize > MAX_CHUNK_BYTES {
                        let path = entry.path.clone();
                        return Err(TreeError::Chunk { path, bytes: chunk.bytes });
                    }
                    bytes = bytes.saturating_add(chunk.bytes.into());
                }
            }
            Kind::Symlink { target } => check_link(&entry.path, target)?,
        }
        if bytes > MAX_TREE_BYTES {
            return Err(TreeError::TooLarge);
        }
    }
    // Nothing lies below a file, nor below a link, which could lead anywhere.
    let paths: HashSet<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    for entry in entries {
        let mut slashes = entry.path.match_indices('/');
        let above = slashes.find_map(|(at, _)| entry.path.get(..at).filter(|p| paths.contains(p)));
        if above.is_some() {
            return Err(TreeError::path(&entry.path, "lies below something that is no directory"));
        }
    }
    Ok(())
}

/// Checks a path of a file in a tree: relative, plain, and of a length that file systems take.
///
/// # Errors
/// The rule that it breaks.
pub fn check_path(path: &str) -> Result<(), TreeError> {
    let problem = if path.is_empty() {
        "is no path"
    } else if path.len() > MAX_PATH_BYTES {
        "is too long"
    } else if path.starts_with('/') {
        "is absolute"
    } else if path.chars().any(char::is_control) {
        "has a control character"
    } else if path.split('/').any(|name| name == "..") {
        "leads out of the tree"
    } else if path.split('/').any(|name| matches!(name, "" | ".")) {
        "has an empty part or a `.`"
    } else if path.split('/').any(|name| name.len() > MAX_NAME_BYTES) {
        "has a name that is too long"
    } else {
        return Ok(());
    };
    Err(TreeError::path(path, problem))
}

/// A link leads to something in its tree: up from its own directory, then down. `..` after a name
/// could, through another link, lead further up than it seems.
fn check_link(path: &str, target: &str) -> Result<(), TreeError> {
    let wrong = |problem| {
        Err(TreeError::Link { path: path.to_owned(), target: target.to_owned(), problem })
    };
    if target.is_empty() || target.len() > MAX_PATH_BYTES {
        return wrong("has no target of a usable length");
    }
    if target.starts_with('/') || target.chars().any(char::is_control) {
        return wrong("does not lead into the tree by a plain relative path");
    }
    let mut depth = path.matches('/').count();
    let mut below = false;
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." if below || depth == 0 => return wrong("leads out of the tree"),
            ".." => depth -= 1,
            name if name.len() > MAX_NAME_BYTES => return wrong("has a name that is too long"),
            _ => below = true,
        }
    }
    Ok(())
}
