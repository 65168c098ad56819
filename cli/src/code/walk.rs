//! Which files of a directory are sent: all but those that `.gitignore` and `.ganglineignore` leave
//! out, by git's own rules; never `.git`; and of the ignored ones those that `code.include` names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gangline_tree::MAX_ENTRIES;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::{DirEntry, WalkBuilder};

use super::cache::Stamp;
use super::{cannot_read, refused};
use crate::errors::CliError;

/// A file or a link that is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub path: PathBuf,
    /// Of a file: tells whether it is what it was.
    pub stamp: Option<Stamp>,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    File { executable: bool, bytes: u64 },
    Link { target: String },
}

/// File of ignore rules for what git keeps and a job does not need.
const OWN_IGNORE_FILE: &str = ".ganglineignore";

/// What is sent of `root`, by path below it.
pub fn walk(root: &Path, include: &[String]) -> Result<BTreeMap<String, Found>, CliError> {
    let metadata = std::fs::metadata(root).map_err(|error| cannot_read(root, &error))?;
    if !metadata.is_dir() {
        return Err(refused(format!("{} is not a directory", root.display()))
            .hint("name a directory in code.snapshot, or an archive in code.zip"));
    }
    let mut found = BTreeMap::new();
    collect(root, WalkBuilder::new(root).git_global(false).ignore(false), None, &mut found)?;
    if !include.is_empty() {
        let include = patterns(root, include)?;
        let mut everything = WalkBuilder::new(root);
        everything.standard_filters(false);
        collect(root, &mut everything, Some(&include), &mut found)?;
    }
    Ok(found)
}

fn patterns(root: &Path, include: &[String]) -> Result<Gitignore, CliError> {
    let wrong = |error: &ignore::Error| {
        refused("a pattern of code.include cannot be read").why(error.to_string())
    };
    let mut builder = GitignoreBuilder::new(root);
    for pattern in include {
        builder.add_line(None, pattern).map_err(|error| wrong(&error))?;
    }
    builder.build().map_err(|error| wrong(&error))
}

fn collect(
    root: &Path,
    walk: &mut WalkBuilder,
    include: Option<&Gitignore>,
    found: &mut BTreeMap<String, Found>,
) -> Result<(), CliError> {
    if include.is_none() {
        // Rules count whether or not the directory is a repository.
        walk.require_git(false).add_custom_ignore_filename(OWN_IGNORE_FILE);
    }
    let not_git = |entry: &DirEntry| entry.depth() == 0 || entry.file_name() != ".git";
    walk.hidden(false).follow_links(false).filter_entry(not_git);
    for entry in walk.build() {
        let entry = entry.map_err(|error| {
            refused(format!("cannot read all of {}", root.display())).why(error.to_string())
        })?;
        let Some(kind) = entry.file_type().filter(|kind| !kind.is_dir()) else { continue };
        let path = entry.path();
        let Ok(below) = path.strip_prefix(root) else { continue };
        let wanted =
            |rules: &Gitignore| rules.matched_path_or_any_parents(below, false).is_ignore();
        if include.is_some_and(|rules| !wanted(rules)) {
            continue;
        }
        let Some(name) = below.to_str() else {
            return Err(unsendable(path, "has a name that is not UTF-8"));
        };
        let mut stamp = None;
        let what = if kind.is_symlink() {
            let target = std::fs::read_link(path).map_err(|error| cannot_read(path, &error))?;
            let target = target.to_str().map(str::to_owned);
            What::Link {
                target: target
                    .ok_or_else(|| unsendable(path, "leads to a name that is not UTF-8"))?,
            }
        } else if kind.is_file() {
            use std::os::unix::fs::PermissionsExt;
            let metadata = entry.metadata().map_err(|error| {
                refused(format!("cannot read {}", path.display())).why(error.to_string())
            })?;
            stamp = Some(Stamp::of(&metadata));
            let executable = metadata.permissions().mode() & 0o111 != 0;
            What::File { executable, bytes: metadata.len() }
        } else {
            return Err(unsendable(path, "is neither a file nor a link"));
        };
        found.insert(name.to_owned(), Found { path: path.to_owned(), stamp, what });
        if found.len() > MAX_ENTRIES {
            return Err(refused(format!("there are more than {MAX_ENTRIES} files in the code"))
                .why(format!("the last one was {}", path.display()))
                .hint(HINT));
        }
    }
    Ok(())
}

/// What helps against most that cannot be sent.
pub const HINT: &str =
    "leave it out with a line in .ganglineignore, which has the rules of .gitignore";

fn unsendable(path: &Path, problem: &str) -> CliError {
    refused(format!("{} {problem}", path.display())).hint(HINT)
}
