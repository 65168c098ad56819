//! What a directory was when it was last read, so that only changed files are read again.
//!
//! A file counts as unchanged when its inode, size and both times are the same and it had been at
//! rest for a while when it was read: a later write changes the time of status, which no program can
//! set back. Losing the cache costs time and nothing else, so its failures are silent.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gangline_tree::{Entry, Hash, Kind, MAX_MANIFEST_BYTES, Tree};

const MAGIC: &[u8; 16] = b"gangline seen 1\n";
/// A change that is as recent as this when the file is read may be followed by one of the same time.
const REST_S: i64 = 2;
/// Directories that are remembered; the one that was read longest ago is forgotten.
const MAX_DIRECTORIES: usize = 64;
/// Numbers of a stamp, 8 bytes each.
const NUMBERS: usize = 6;

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp([i64; NUMBERS]);

impl Stamp {
    pub fn of(metadata: &Metadata) -> Stamp {
        Stamp([
            metadata.ino().cast_signed(),
            metadata.size().cast_signed(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ])
    }

    fn changed_s(&self) -> i64 {
        let Stamp([_, _, _, _, seconds, _]) = self;
        *seconds
    }
}

/// The files of one directory as they were.
#[derive(Debug, Default)]
pub struct Seen {
    files: HashMap<String, (Stamp, Kind)>,
    /// All of them: what was sent then, most likely.
    pub tree: Option<Tree>,
}

impl Seen {
    /// Content of the file at `path` below the directory, when it is what it was.
    pub fn content(&self, path: &str, stamp: Stamp) -> Option<&Kind> {
        self.files.get(path).filter(|(then, _)| *then == stamp).map(|(_, kind)| kind)
    }
}

/// Where the caches of this user are; `None` when nothing says.
pub fn directory(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let base = env("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = base.or_else(|| Some(PathBuf::from(env("HOME")?).join(".cache")))?;
    Some(base.join("gangline").join("code"))
}

/// Seconds since 1970.
pub fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn file(caches: &Path, root: &Path) -> Option<PathBuf> {
    let root = std::fs::canonicalize(root).ok()?;
    Some(caches.join(Hash::of(root.as_os_str().as_encoded_bytes()).hex()))
}

/// What was kept of `root`.
pub fn load(caches: &Path, root: &Path) -> Seen {
    let bytes = file(caches, root).and_then(|file| std::fs::read(file).ok());
    bytes.and_then(|bytes| decode(&bytes)).unwrap_or_default()
}

/// Keeps what was read of `root`, which began at `began_s`. `stamps` are those of the tree's entries,
/// in order.
pub fn store(caches: &Path, root: &Path, tree: &Tree, stamps: &[Option<Stamp>], began_s: i64) {
    let Some(file) = file(caches, root) else { return };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(caches);
    let unfinished = file.with_extension(std::process::id().to_string());
    let write = || -> std::io::Result<()> {
        made?;
        let mut options = std::fs::File::options();
        let new = options.write(true).create(true).truncate(true).mode(0o600);
        new.open(&unfinished)?.write_all(&encode(tree, stamps, began_s))?;
        std::fs::rename(&unfinished, &file)
    };
    if write().is_err() {
        // It may never have been made.
        let _ = std::fs::remove_file(&unfinished);
    }
    forget_oldest(caches);
}

fn forget_oldest(caches: &Path) {
    let entries = std::fs::read_dir(caches).into_iter().flatten().flatten();
    let age = |entry: std::fs::DirEntry| Some((entry.metadata().ok()?.mtime(), entry.path()));
    let mut files: Vec<_> = entries.filter_map(age).collect();
    files.sort();
    for (_, path) in files.iter().take(files.len().saturating_sub(MAX_DIRECTORIES)) {
        // Another run may have been faster.
        let _ = std::fs::remove_file(path);
    }
}

fn encode(tree: &Tree, stamps: &[Option<Stamp>], began_s: i64) -> Vec<u8> {
    let list = tree.to_bytes();
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&began_s.to_be_bytes());
    // A list has at most some MiB.
    out.extend_from_slice(&(list.len() as u32).to_be_bytes());
    out.extend_from_slice(&list);
    for stamp in stamps {
        let Stamp(numbers) = stamp.unwrap_or(Stamp([0; NUMBERS]));
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
    }
    out.extend_from_slice(&Hash::of(&out).0);
    out
}

fn decode(bytes: &[u8]) -> Option<Seen> {
    let (rest, hash) = bytes.split_last_chunk::<32>()?;
    if Hash::of(rest).0 != *hash {
        return None;
    }
    let rest = rest.strip_prefix(MAGIC.as_slice())?;
    let (began_s, rest) = rest.split_first_chunk::<8>()?;
    let began_s = i64::from_be_bytes(*began_s);
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    let (list, mut rest) = rest.split_at_checked(length.min(MAX_MANIFEST_BYTES))?;
    let tree = Tree::from_bytes(list).ok()?;
    let mut files = HashMap::new();
    for Entry { path, kind } in tree.entries() {
        let mut stamp = Stamp([0; NUMBERS]);
        for number in &mut stamp.0 {
            let (next, after) = rest.split_first_chunk::<8>()?;
            *number = i64::from_be_bytes(*next);
            rest = after;
        }
        if matches!(kind, Kind::File { .. }) && stamp.changed_s() + REST_S <= began_s {
            files.insert(path.clone(), (stamp, kind.clone()));
        }
    }
    Some(Seen { files, tree: Some(tree) })
}
