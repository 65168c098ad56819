//! Places in which logs appear: which files there are, which of them matter, what they are called,
//! and how one is opened without being led out of the place.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use ring::digest::{SHA256, digest};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

/// Entries that one look considers; what a directory has beyond them is not seen.
pub const ENTRY_LIMIT: usize = 10_000;
/// Directories below a root are not entered beyond this depth.
const DEPTH_LIMIT: usize = 16;
/// Longest readable part of a name, in bytes.
const STEM_BYTES: usize = 60;

/// Where a follower looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The logs of the newest session in Ray's temp dir.
    Ray { temp: PathBuf },
    /// Files below `roots` whose path below it one of `patterns` matches, and that were written since
    /// then (in seconds since 1970); never those below `except`, but those of `also` in any case.
    Files {
        roots: Vec<PathBuf>,
        patterns: Vec<String>,
        also: Vec<PathBuf>,
        except: Vec<PathBuf>,
        since_s: u64,
    },
}

/// One regular file, as its directory lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub path: PathBuf,
    pub inode: u64,
    /// Smaller is more important; `None`: not a log, but perhaps one that was renamed.
    pub class: Option<u8>,
}

/// What one look into a place found.
#[derive(Debug, Default)]
pub struct Listing {
    pub files: Vec<Listed>,
    /// There is more than one look considers.
    pub capped: bool,
}

/// Ray's session directory in its temp dir. Only the name of the link's target is used, so that the
/// link cannot lead anywhere else.
pub fn session_directory(temp: &Path) -> Option<PathBuf> {
    let target = fs::read_link(temp.join("session_latest")).ok()?;
    let name = target.file_name()?.to_str()?;
    name.starts_with("session_").then(|| temp.join(name))
}

impl Place {
    /// Every regular file of the place. Blocks for as long as the file system does.
    pub fn list(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        match self {
            Place::Ray { temp } => {
                if let Some(session) = session_directory(temp) {
                    let class = |path: &Path| path.file_name()?.to_str().and_then(ray_class);
                    list_into(&session.join("logs"), &mut listing, &class, &mut Vec::new())?;
                }
            }
            Place::Files { roots, patterns, also, except, since_s: _ } => {
                for root in roots.iter().filter(|_| !patterns.is_empty()) {
                    list_tree(root, patterns, except, &mut listing)?;
                }
                for path in also {
                    if let Ok(found) = fs::symlink_metadata(path)
                        && found.is_file()
                    {
                        let (path, inode) = (path.clone(), found.ino());
                        listing.files.push(Listed { path, inode, class: Some(0) });
                    }
                }
                // One root may lie in another one.
                listing.files.sort_by(|a, b| (&a.path, b.class).cmp(&(&b.path, a.class)));
                listing.files.dedup_by(|a, b| a.path == b.path);
            }
        }
        Ok(listing)
    }

    /// Whether a file that was changed last at this time, in seconds since 1970, is of interest.
    pub fn takes(&self, modified_s: i64) -> bool {
        match self {
            Place::Ray { .. } => true,
            Place::Files { since_s, .. } => u64::try_from(modified_s).unwrap_or(0) >= *since_s,
        }
    }

    /// Opens a regular file of the place for reading. No link is followed below its root, and a FIFO
    /// or a device is refused.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let outside = || io::Error::new(ErrorKind::PermissionDenied, "outside of its place");
        let mut roots = match self {
            Place::Ray { temp } => std::slice::from_ref(temp).iter(),
            Place::Files { roots, .. } => roots.iter(),
        };
        let below = |root: &PathBuf| path.strip_prefix(root).ok().map(|rest| (root.clone(), rest));
        let (root, rest) = roots.find_map(below).ok_or_else(outside)?;
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, &root, directory, Mode::empty())?;
        let mut names = rest.components().peekable();
        while let Some(name) = names.next() {
            let Component::Normal(name) = name else { return Err(outside()) };
            if names.peek().is_some() {
                at = openat(&at, name, directory | OFlags::NOFOLLOW, Mode::empty())?;
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = File::from(openat(&at, name, flags, Mode::empty())?);
            if !file.metadata()?.is_file() {
                return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
            }
            return Ok(file);
        }
        Err(outside())
    }

    /// The name under which a file's bytes are kept: plain, the same for the same path, at most 80
    /// bytes.
    pub fn name(&self, path: &Path) -> String {
        let file = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        match self {
            Place::Ray { .. } => ray_name(&file),
            Place::Files { .. } => format!("file-{}-{}", plain(&file), short_digest(path)),
        }
    }
}

/// Which of Ray's logs matter, and which matter most when there are too many.
fn ray_class(file: &str) -> Option<u8> {
    let (stem, end) = file.split_once('.')?;
    if !end.split('.').all(|part| ["out", "err", "log"].contains(&part) || is_number(part)) {
        return None;
    }
    let worker = stem.starts_with("worker-");
    match stem {
        // Not that of `runtime_env_agent`: it prints the environment of jobs, with their secrets.
        "raylet" | "gcs_server" | "dashboard_agent" => Some(0),
        _ if worker && end.starts_with("err") => Some(1),
        _ if worker && end.starts_with("out") => Some(2),
        "dashboard" => Some(3),
        _ if stem.starts_with("runtime_env_setup-") => Some(3),
        _ => None,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `worker-<id>-<job>-<pid>.err` becomes `worker-<pid>-<first of the id>-err`.
fn ray_name(file: &str) -> String {
    if let Some((stem, end)) = file.strip_prefix("worker-").and_then(|rest| rest.split_once('.')) {
        let parts: Vec<&str> = stem.split('-').collect();
        if let (Some(id), Some(pid)) = (parts.first(), parts.get(2)) {
            return format!("worker-{}-{}-{}", plain(pid), first(&plain(id), 8), plain(end));
        }
    }
    plain(file)
}

/// A text with `-` in the place of everything that a name may not have, cut at the front.
fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let text: String = text.chars().map(plain).collect();
    let from = text.len().saturating_sub(STEM_BYTES);
    text.get(from..).unwrap_or_default().to_owned()
}

fn first(text: &str, bytes: usize) -> &str {
    text.get(..bytes).unwrap_or(text)
}

fn short_digest(path: &Path) -> String {
    let digest = digest(&SHA256, path.as_os_str().as_encoded_bytes());
    digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Adds the regular files of one directory; one that is not there has none. Directories go into
/// `deeper`.
fn list_into(
    directory: &Path,
    listing: &mut Listing,
    class: &dyn Fn(&Path) -> Option<u8>,
    deeper: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        if listing.files.len() + deeper.len() >= ENTRY_LIMIT {
            listing.capped = true;
            break;
        }
        let entry = entry?;
        // Neither a link nor a FIFO is a file here.
        match entry.file_type() {
            Ok(kind) if kind.is_file() => {
                let path = entry.path();
                let class = class(&path);
                listing.files.push(Listed { path, inode: entry.ino(), class });
            }
            Ok(kind) if kind.is_dir() => deeper.push(entry.path()),
            Ok(_) | Err(_) => {} // something else, or removed in between
        }
    }
    Ok(())
}

fn list_tree(
    root: &Path,
    patterns: &[String],
    except: &[PathBuf],
    listing: &mut Listing,
) -> io::Result<()> {
    let patterns: Vec<Vec<&str>> =
        patterns.iter().map(|pattern| pattern.split('/').collect()).collect();
    let below = |path: &Path| -> Option<Vec<String>> {
        let names = path.strip_prefix(root).ok()?.iter();
        names.map(|name| name.to_str().map(str::to_owned)).collect()
    };
    let class = |path: &Path| {
        let names = below(path)?;
        patterns.iter().any(|pattern| matches_path(pattern, &names)).then_some(0)
    };
    let mut waiting = vec![root.to_owned()];
    let mut entered = 0;
    while let Some(directory) = waiting.pop() {
        entered += 1;
        if entered > ENTRY_LIMIT {
            listing.capped = true;
            break;
        }
        let mut deeper = Vec::new();
        match list_into(&directory, listing, &class, &mut deeper) {
            // A job may have directories that even its own user cannot read.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            listed => listed?,
        }
        let leads = |directory: &PathBuf| {
            below(directory).is_some_and(|names| {
                names.len() <= DEPTH_LIMIT
                    && !except.contains(directory)
                    && patterns.iter().any(|pattern| leads_below(pattern, &names))
            })
        };
        deeper.retain(leads);
        waiting.append(&mut deeper);
        if listing.capped {
            break;
        }
    }
    Ok(())
}

/// Whether something below the directory `names` can match.
fn leads_below(pattern: &[&str], names: &[String]) -> bool {
    let mut names = names.iter();
    for (index, part) in pattern.iter().enumerate() {
        if *part == "**" {
            return true;
        }
        match names.next() {
            Some(name) if matches_name(part, name) => {}
            Some(_) => return false,
            // What is left of the pattern is for what lies below.
            None => return index < pattern.len(),
        }
    }
    false
}

/// `**` stands for any number of directories, also none.
fn matches_path(pattern: &[&str], names: &[String]) -> bool {
    wildcard(pattern, names, |part| *part == "**", |part, name| matches_name(part, name))
}

/// `*` stands for any text and `?` for any one character.
fn matches_name(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    wildcard(&pattern, &name, |c| *c == '*', |wanted, c| *wanted == '?' || wanted == c)
}

/// Matches a text against a pattern in which some items stand for any run of the text. The steps are
/// bounded by the product of the lengths: only the last such item is ever tried again.
fn wildcard<P, T>(
    pattern: &[P],
    text: &[T],
    is_run: impl Fn(&P) -> bool,
    one: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while let Some(item) = text.get(t) {
        match pattern.get(p) {
            Some(run) if is_run(run) => {
                again = Some((p, t));
                p += 1;
            }
            Some(wanted) if one(wanted, item) => (p, t) = (p + 1, t + 1),
            _ => match again {
                // The run takes one item more.
                Some((run, from)) => {
                    again = Some((run, from + 1));
                    (p, t) = (run + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(is_run))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(roots: &[&Path], patterns: &[&str]) -> Place {
        Place::Files {
            roots: roots.iter().map(|root| root.to_path_buf()).collect(),
            patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
            also: Vec::new(),
            except: Vec::new(),
            since_s: 0,
        }
    }

    fn matches(pattern: &str, path: &str) -> bool {
        let pattern: Vec<&str> = pattern.split('/').collect();
        let names: Vec<String> = path.split('/').map(str::to_owned).collect();
        matches_path(&pattern, &names)
    }

    #[test]
    fn patterns() {
        for (pattern, path) in [
            ("train.log", "train.log"),
            ("*.log", "a.log"),
            ("outputs/**/main_*.log", "outputs/main_ppo.log"),
            ("outputs/**/main_*.log", "outputs/2026-11-22/10-00-00/main_ppo.log"),
            ("**/*.lo?", "x/y.log"),
            ("**", "x/y"),
            ("a*b*c", "axxbyybc"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*.log", "a/b.log"),
            ("outputs/**/main_*.log", "other/main_ppo.log"),
            ("a*b*c", "axxbyyb"),
            ("?", "ab"),
            ("a/b", "a"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        // Nothing but bounded work.
        assert!(!matches(&"*a".repeat(100), &"a".repeat(5000).replace("aaaa", "aaab")));
    }

    #[test]
    fn names_are_plain_and_readable() {
        let ray = Place::Ray { temp: "/t".into() };
        let id = "0c72b90f8d26cbb18da8d6d379d10543f084bf8d868f320a042f8d01";
        let worker = format!("/t/session_1/logs/worker-{id}-02000000-18388.err");
        assert_eq!(ray.name(Path::new(&worker)), "worker-18388-0c72b90f-err");
        assert_eq!(ray.name(Path::new("/t/s/raylet.out")), "raylet-out");
        let files = files(&[Path::new("/w")], &[]);
        let name = files.name(Path::new("/w/outputs/é x.log"));
        assert!(name.starts_with("file---x-log-"), "{name}");
        let long = files.name(&Path::new("/w").join("y".repeat(250)));
        assert!(long.len() <= 80 && long != files.name(&Path::new("/v").join("y".repeat(250))));
    }

    #[test]
    fn only_logs_that_matter_are_followed() {
        for (file, class) in [
            ("raylet.out", Some(0)),
            ("raylet.1.out", Some(0)),
            ("gcs_server.err", Some(0)),
            ("worker-a-b-1.err", Some(1)),
            ("worker-a-b-1.out.2", Some(2)),
            ("runtime_env_setup-01000000.log", Some(3)),
            ("runtime_env_agent.log", None),
            ("job-driver-x.log", None),
            ("java-worker-1.out", None),
            ("python-core-worker-1_2.log", None),
            ("debug_state.txt", None),
            ("raylet.sock", None),
        ] {
            assert_eq!(ray_class(file), class, "{file}");
        }
    }

    #[test]
    fn one_file_is_found_where_nothing_else_is_looked_for() {
        let root = tempfile::tempdir().unwrap();
        let (logs, outside) = (root.path().join("logs"), tempfile::tempdir().unwrap());
        fs::create_dir(&logs).unwrap();
        for name in ["metrics-1.jsonl", "metrics-2.jsonl", "rank-0.log"] {
            fs::write(logs.join(name), "x").unwrap();
        }
        let mut place = files(&[root.path()], &["**"]);
        let also = logs.join("metrics-2.jsonl");
        if let Place::Files { also: wanted, except, .. } = &mut place {
            wanted.push(also.clone());
            except.push(logs.clone());
        }
        let listed = |place: &Place| -> Vec<PathBuf> {
            place.list().unwrap().files.into_iter().map(|file| file.path).collect()
        };
        assert_eq!(listed(&place), std::slice::from_ref(&also));
        assert!(place.open(&also).is_ok() && place.name(&also).contains("metrics-2-jsonl"));
        // A link leads nowhere.
        fs::remove_file(&also).unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), &also).unwrap();
        assert!(listed(&place).is_empty());
        assert!(place.open(&also).is_err());
    }

    #[test]
    fn a_look_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..ENTRY_LIMIT + 10 {
            File::create(root.path().join(format!("{n}.log"))).unwrap();
        }
        let listing = files(&[root.path()], &["*.log"]).list().unwrap();
        assert!(listing.capped && listing.files.len() == ENTRY_LIMIT);
    }

    #[test]
    fn nothing_leads_out_of_a_place() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir_all(inside.join("logs")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("a.log"), "secret").unwrap();
        fs::write(inside.join("logs/a.log"), "fine").unwrap();
        std::os::unix::fs::symlink(outside.join("a.log"), inside.join("logs/b.log")).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("other")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        let fifo = inside.join("logs/c.log");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let place = files(&[&inside], &["**"]);
        place.open(&inside.join("logs/a.log")).unwrap();
        for bad in ["logs/b.log", "other/a.log", "../out/a.log", "logs/c.log", "logs", ""] {
            assert!(place.open(&inside.join(bad)).is_err(), "{bad}");
        }
        assert!(place.open(&outside.join("a.log")).is_err());
        let listed: Vec<PathBuf> =
            place.list().unwrap().files.into_iter().map(|file| file.path).collect();
        assert_eq!(listed, [inside.join("logs/a.log")]);
    }
}
