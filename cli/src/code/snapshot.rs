//! A directory as a tree: every file cut into chunks and hashed, several files at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gangline_tree::{ChunkRef, Chunker, Entry, Hash, Kind, Tree, TreeError};

use super::cache::{self, Seen};
use super::walk::{Found, HINT, What, walk};
use super::{cannot_read, refused};
use crate::commands::bytes;
use crate::errors::CliError;

/// Files that are named when there is too much.
const LARGEST: usize = 10;
/// Files that `plan` names.
const LARGEST_PLANNED: usize = 3;
/// Files that are hashed at a time, at most.
const THREADS: usize = 4;

/// What a spec says of a directory.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Patterns of ignored files that are sent all the same.
    pub include: &'a [String],
    pub max_bytes: u64,
}

/// The code of a directory, as it was when it was read.
#[derive(Debug)]
pub struct Snapshot {
    pub tree: Tree,
    pub root: PathBuf,
    pub commit: Option<String>,
    /// What the directory was when it was last read.
    pub before: Option<Tree>,
}

impl Snapshot {
    /// Reads a directory; of files that are what they were by the cache, only their names.
    ///
    /// # Errors
    /// It cannot be read, is too large, or holds what cannot be sent.
    pub fn of(
        root: &Path,
        wanted: &Wanted<'_>,
        commit: Option<String>,
        caches: Option<&Path>,
    ) -> Result<Snapshot, CliError> {
        let began_s = cache::now_s();
        let found = walk(root, wanted.include)?;
        check_size(root, &found, wanted.max_bytes)?;
        let seen = caches.map(|caches| cache::load(caches, root)).unwrap_or_default();
        let entries = hash_all(&found, &seen)?;
        let tree = Tree::new(entries).map_err(|error| not_a_tree(root, &error))?;
        if let Some(caches) = caches {
            let stamp = |entry: &Entry| found.get(&entry.path).and_then(|found| found.stamp);
            let stamps: Vec<_> = tree.entries().iter().map(stamp).collect();
            cache::store(caches, root, &tree, &stamps, began_s);
        }
        Ok(Snapshot { tree, root: root.to_owned(), commit, before: seen.tree })
    }

    /// Files and bytes, for people.
    #[must_use]
    pub fn size_text(&self) -> String {
        let files = self.tree.entries().len();
        let word = if files == 1 { "file" } else { "files" };
        format!("{}  {files} {word}, {}", self.root.display(), bytes(self.tree.bytes()))
    }

    /// The largest files, for people.
    #[must_use]
    pub fn largest(&self) -> Vec<String> {
        let sizes = self.tree.entries().iter().map(|entry| (entry.bytes(), entry.path.as_str()));
        largest(sizes, LARGEST_PLANNED)
    }

    /// Names in the directory of which nothing is sent.
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        let sent = self.tree.top_names();
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| !sent.contains(&name.as_str())).collect();
        names.sort();
        names
    }
}

fn largest<'a>(sizes: impl Iterator<Item = (u64, &'a str)>, most: usize) -> Vec<String> {
    let mut sizes: Vec<_> = sizes.filter(|(size, _)| *size > 0).collect();
    sizes.sort_by_key(|(size, path)| (std::cmp::Reverse(*size), *path));
    sizes.truncate(most);
    sizes.iter().map(|(size, path)| format!("{path} {}", bytes(*size))).collect()
}

fn check_size(
    root: &Path,
    found: &BTreeMap<String, Found>,
    max_bytes: u64,
) -> Result<(), CliError> {
    let size = |found: &Found| match found.what {
        What::File { bytes, .. } => bytes,
        What::Link { .. } => 0,
    };
    let total: u64 = found.values().map(size).sum();
    if total <= max_bytes {
        return Ok(());
    }
    let sizes = found.iter().map(|(path, found)| (size(found), path.as_str()));
    let what = format!("the code in {} has {}", root.display(), bytes(total));
    let why = format!(
        "code.max_size is {}; the largest files are {}",
        bytes(max_bytes),
        largest(sizes, LARGEST).join(", ")
    );
    Err(refused(what).why(why).hint(
        "leave out what is no code with lines in .ganglineignore, or raise code.max_size; data is \
         better put where all nodes see it",
    ))
}

fn hash_all(found: &BTreeMap<String, Found>, seen: &Seen) -> Result<Vec<Entry>, CliError> {
    let jobs: Vec<(&String, &Found)> = found.iter().collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Result<Entry, CliError>>> = Mutex::new(Vec::with_capacity(jobs.len()));
    let work = || {
        let mut chunker = Chunker::default();
        while let Some((name, found)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let entry =
                known(name, found, seen).map_or_else(|| entry(&mut chunker, name, found), Ok);
            // A panic of another thread is passed on by the scope.
            if let Ok(mut done) = done.lock() {
                done.push(entry);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    std::thread::scope(|scope| {
        (1..threads.min(jobs.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    done.into_inner().unwrap_or_default().into_iter().collect()
}

/// The entry of a file that is what it was.
fn known(name: &str, found: &Found, seen: &Seen) -> Option<Entry> {
    let What::File { executable, .. } = found.what else { return None };
    let Kind::File { chunks, .. } = seen.content(name, found.stamp?)? else { return None };
    Some(Entry { path: name.to_owned(), kind: Kind::File { executable, chunks: chunks.clone() } })
}

fn entry(chunker: &mut Chunker, name: &str, found: &Found) -> Result<Entry, CliError> {
    let kind = match &found.what {
        What::Link { target } => Kind::Symlink { target: target.clone() },
        What::File { executable, .. } => {
            let mut chunks = Vec::new();
            let cut = File::open(&found.path).and_then(|file| {
                chunker.cut(file, |chunk| {
                    // A chunk has at most a MiB.
                    chunks.push(ChunkRef { hash: Hash::of(chunk), bytes: chunk.len() as u32 });
                    Ok::<(), io::Error>(())
                })
            });
            cut.map_err(|error| cannot_read(&found.path, &error))?;
            Kind::File { executable: *executable, chunks }
        }
    };
    Ok(Entry { path: name.to_owned(), kind })
}

fn not_a_tree(root: &Path, error: &TreeError) -> CliError {
    let what = format!("the code in {} cannot be sent", root.display());
    let hint = match error {
        TreeError::Link { .. } => {
            "a link in the code leads to something in the code; name other data by its own path, \
             and leave the link out with a line in .ganglineignore"
        }
        _ => HINT,
    };
    refused(what).why(error.to_string()).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::errors::exit;

    fn read(root: &Path, include: &[String], max_bytes: u64) -> Result<Snapshot, CliError> {
        Snapshot::of(root, &Wanted { include, max_bytes }, None, None)
    }

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn paths(root: &tempfile::TempDir, include: &[&str]) -> Vec<String> {
        let include: Vec<String> = include.iter().map(|pattern| (*pattern).to_owned()).collect();
        let snapshot = read(root.path(), &include, 1 << 20).unwrap();
        snapshot.tree.entries().iter().map(|entry| entry.path.clone()).collect()
    }

    #[test]
    fn ignore_files_are_honoured_by_gits_rules() {
        let root = directory(&[
            (".gitignore", "*.log\n/data/\n!keep.log\n"),
            (".ganglineignore", "notes\n"),
            (".env", "A=1"),
            (".git/config", "secret"),
            (".ignore", "train.py"),
            ("train.py", "1"),
            ("a.log", "1"),
            ("keep.log", "1"),
            ("data/x.bin", "1"),
            ("data/configs/a.yaml", "1"),
            ("pkg/data/y.bin", "1"),
            ("pkg/.gitignore", "local.py\n"),
            ("pkg/local.py", "1"),
            ("pkg/notes/z", "1"),
            ("vendored/.git", "gitdir: elsewhere"),
            ("vendored/v.py", "1"),
        ]);
        let plain = [
            ".env",
            ".ganglineignore",
            ".gitignore",
            ".ignore",
            "keep.log",
            "pkg/.gitignore",
            "pkg/data/y.bin",
            "train.py",
            "vendored/v.py",
        ];
        assert_eq!(paths(&root, &[]), plain);
        let mut more = plain.to_vec();
        more.extend(["data/configs/a.yaml", "pkg/local.py"]);
        more.sort_unstable();
        assert_eq!(paths(&root, &["data/configs/**", "local.py"]), more);
        let snapshot = read(root.path(), &[], 1 << 20).unwrap();
        assert_eq!(snapshot.left_out(), [".git", "a.log", "data"]);
        assert!(snapshot.size_text().ends_with("9 files, 53 B"), "{}", snapshot.size_text());
    }

    #[test]
    fn the_same_files_are_the_same_tree() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let make = || {
            let root = directory(&[("a.py", "print(1)"), ("run.sh", "#!/bin/sh")]);
            let run = root.path().join("run.sh");
            fs::set_permissions(run, fs::Permissions::from_mode(0o700)).unwrap();
            symlink("a.py", root.path().join("latest")).unwrap();
            fs::create_dir(root.path().join("empty")).unwrap();
            root
        };
        let name = |root: &tempfile::TempDir| read(root.path(), &[], 1 << 20).unwrap().tree.name();
        let (one, other) = (make(), make());
        assert_eq!(name(&one), name(&other));
        let run = other.path().join("run.sh");
        fs::set_permissions(run, fs::Permissions::from_mode(0o600)).unwrap();
        assert_ne!(name(&one), name(&other));
    }

    #[test]
    fn too_much_is_refused_with_the_largest_files() {
        let root = tempfile::tempdir().unwrap();
        for number in 1..=12 {
            let name = root.path().join(format!("f{number:02}"));
            fs::write(name, vec![b'x'; 1000 * number]).unwrap();
        }
        let error = read(root.path(), &[], 70_000).unwrap_err();
        assert_eq!(error.exit(), exit::INVALID);
        let text = error.to_text();
        assert!(text.contains("has 76.2 KiB") && text.contains("68.4 KiB"), "{text}");
        assert!(text.contains("f12 11.7 KiB, f11") && text.contains("f03"), "{text}");
        assert!(!text.contains("f02") && text.contains(".ganglineignore"), "{text}");
        assert!(read(root.path(), &[], 78_000).is_ok());
    }

    #[test]
    fn what_cannot_be_sent_is_named() {
        use std::os::unix::fs::symlink;
        let root = directory(&[("a.py", "1")]);
        symlink("/etc", root.path().join("data")).unwrap();
        let text = read(root.path(), &[], 1 << 20).unwrap_err().to_text();
        assert!(text.contains("\"data\"") && text.contains(".ganglineignore"), "{text}");
        fs::write(root.path().join(".ganglineignore"), "data\nsocket\n").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        assert_eq!(paths(&root, &[]), [".ganglineignore", "a.py"]);
        let text = read(root.path(), &["socket".to_owned()], 1 << 20).unwrap_err();
        assert!(text.to_text().contains("neither a file nor a link"), "{}", text.to_text());
        for place in ["missing", "a.py"] {
            assert!(read(&root.path().join(place), &[], 1 << 20).is_err(), "{place}");
        }
    }

    #[test]
    fn only_files_that_rested_and_stayed_are_taken_from_the_cache() {
        let root = directory(&[("a.py", "print(1)"), ("pkg/b.py", "print(2)")]);
        let caches = tempfile::tempdir().unwrap();
        let of = || {
            let wanted = Wanted { include: &[], max_bytes: 1 << 20 };
            Snapshot::of(root.path(), &wanted, None, Some(caches.path())).unwrap().tree
        };
        let first = of();
        // Written a moment ago: by now there may be another content with the same times.
        let found = walk(root.path(), &[]).unwrap();
        let stamp = |path: &str| found[path].stamp.unwrap();
        let seen = cache::load(caches.path(), root.path());
        assert!(seen.content("a.py", stamp("a.py")).is_none());
        let stamps: Vec<_> = first.entries().iter().map(|e| found[&e.path].stamp).collect();
        cache::store(caches.path(), root.path(), &first, &stamps, cache::now_s() + 10);
        let seen = cache::load(caches.path(), root.path());
        assert_eq!(seen.content("a.py", stamp("a.py")), Some(&first.entries()[0].kind));
        assert_eq!(seen.content("a.py", stamp("pkg/b.py")), None);
        assert_eq!(of(), first);
        // The same size and the same time of change, set back: only the time of status tells.
        let file = fs::File::options().write(true).open(root.path().join("a.py")).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        std::io::Write::write_all(&mut &file, b"print(9)").unwrap();
        file.set_modified(modified).unwrap();
        assert_ne!(of(), first);
        // Few directories are remembered, the newest ones.
        let mine = fs::read_dir(caches.path()).unwrap().next().unwrap().unwrap().path();
        for number in 0..70 {
            let old = fs::File::create(caches.path().join(format!("old{number}"))).unwrap();
            old.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        of();
        assert!(mine.exists());
        assert_eq!(fs::read_dir(caches.path()).unwrap().count(), 64);
        // A cache that is damaged is none.
        for entry in fs::read_dir(caches.path()).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            bytes.iter_mut().skip(40).take(1).for_each(|byte| *byte ^= 1);
            fs::write(&path, bytes).unwrap();
        }
        assert!(cache::load(caches.path(), root.path()).content("a.py", stamp("a.py")).is_none());
    }
}
