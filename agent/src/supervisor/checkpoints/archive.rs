//! A training checkpoint as one stream, and back: its name, then every directory and file of it.
//!
//! ```text
//! 1, name        2, directory        3, file, size (u64), bytes        0, number of files (u64): the end
//! ```
//!
//! Names and paths have their length (u16) before them; a path begins with the name of the checkpoint.
//! Numbers are big-endian.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::super::files::open_regular;

const END: u8 = 0;
const NAME: u8 = 1;
const DIRECTORY: u8 = 2;
const FILE: u8 = 3;
/// Directories and files of one checkpoint.
const MAX_ENTRIES: u64 = 200_000;
/// Longest path, in bytes, and most parts of one.
const MAX_PATH: usize = 4096;
const MAX_DEPTH: usize = 64;
const BUFFER: usize = 1 << 20;

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

/// Writes the entry `name` of `directory`, and gives how many bytes its files have. Blocks.
///
/// # Errors
/// Something cannot be read or written, is neither a file nor a directory, or changes meanwhile.
pub(super) fn write(directory: &Path, name: &str, out: &mut impl Write) -> io::Result<u64> {
    put(out, NAME, name.as_bytes())?;
    let mut open = vec![PathBuf::from(name)];
    let (mut entries, mut files, mut bytes) = (0_u64, 0_u64, 0_u64);
    while let Some(path) = open.pop() {
        entries += 1;
        if entries > MAX_ENTRIES || path.components().count() > MAX_DEPTH {
            return Err(invalid("the checkpoint has too many files, or too many directories deep"));
        }
        let full = directory.join(&path);
        let kind = fs::symlink_metadata(&full)?.file_type();
        if kind.is_dir() {
            put(out, DIRECTORY, path.as_os_str().as_bytes())?;
            for entry in fs::read_dir(&full)? {
                open.push(path.join(entry?.file_name()));
            }
        } else if kind.is_file() {
            put(out, FILE, path.as_os_str().as_bytes())?;
            bytes = bytes.saturating_add(write_file(&full, out)?);
            files += 1;
        } else {
            let path = path.display();
            return Err(invalid(format!("{path} is a link, or something else that is not copied")));
        }
    }
    out.write_all(&[END])?;
    out.write_all(&files.to_be_bytes())?;
    Ok(bytes)
}

fn put(out: &mut impl Write, kind: u8, path: &[u8]) -> io::Result<()> {
    let length = u16::try_from(path.len()).ok().filter(|_| path.len() <= MAX_PATH);
    let length = length.ok_or_else(|| invalid("a path of the checkpoint is too long"))?;
    out.write_all(&[kind])?;
    out.write_all(&length.to_be_bytes())?;
    out.write_all(path)
}

fn write_file(path: &Path, out: &mut impl Write) -> io::Result<u64> {
    let mut file = open_regular(path)?;
    let before = file.metadata()?;
    out.write_all(&before.len().to_be_bytes())?;
    let mut buffer = vec![0; BUFFER];
    let mut left = before.len();
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
        let read = file.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 {
            break;
        }
        out.write_all(buffer.get(..read).unwrap_or_default())?;
        left -= read as u64;
    }
    let after = file.metadata()?;
    if left > 0 || after.len() != before.len() || after.modified()? != before.modified()? {
        return Err(invalid(format!("{} changed while it was copied", path.display())));
    }
    Ok(before.len())
}

/// Makes what a stream holds in the directory `into`, and gives its name. It appears under that name
/// when the stream was read to its end and is whole; nothing that exists is replaced. Blocks.
///
/// # Errors
/// The stream is not one, is cut or damaged, or something of that name is there already.
pub fn restore(from: &mut impl Read, into: &Path) -> io::Result<String> {
    let unfinished = into.join(format!(".gangline-restoring-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&unfinished)?;
    let restored = read_all(from, &unfinished).and_then(|name| {
        rename_new(&unfinished.join(&name), &into.join(&name))?;
        File::open(into)?.sync_all()?;
        Ok(name)
    });
    let removed = fs::remove_dir_all(&unfinished);
    let name = restored?;
    removed?;
    Ok(name)
}

/// Renames what nothing of that name is replaced by.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let taken =
        || io::Error::new(ErrorKind::AlreadyExists, format!("{} is there already", to.display()));
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => Err(taken()),
        // NFS cannot do it in one step.
        Err(Errno::INVAL) if fs::symlink_metadata(to).is_ok() => Err(taken()),
        Err(Errno::INVAL) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

fn read_all(from: &mut impl Read, into: &Path) -> io::Result<String> {
    if byte(from)? != NAME {
        return Err(invalid("it is not the copy of a training checkpoint"));
    }
    let name = String::from_utf8(path_bytes(from)?).map_err(|_| invalid("its name is no text"))?;
    let mut parts = Path::new(&name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return Err(invalid("its name is no name"));
    }
    let (mut entries, mut files) = (0_u64, 0_u64);
    loop {
        let kind = byte(from)?;
        if kind == END {
            break;
        }
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(invalid("it has too many files"));
        }
        let path = inside(&path_bytes(from)?, &name)?;
        match kind {
            DIRECTORY => fs::DirBuilder::new().mode(0o755).create(into.join(path))?,
            FILE => {
                read_file(from, &into.join(path))?;
                files += 1;
            }
            _ => return Err(invalid("it has an entry that is not known")),
        }
    }
    if number(from)? != files {
        return Err(invalid("it lacks files"));
    }
    // The end of the stream is part of what is checked.
    if from.read(&mut [0])? != 0 {
        return Err(invalid("it goes on after its end"));
    }
    Ok(name)
}

/// A path that leads nowhere else than into the checkpoint.
fn inside(bytes: &[u8], name: &str) -> io::Result<PathBuf> {
    let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
    let mut parts = path.components();
    let fits = parts.next() == Some(Component::Normal(name.as_ref()))
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && path.components().count() <= MAX_DEPTH
        && !bytes.contains(&0);
    fits.then(|| path.to_owned()).ok_or_else(|| invalid("it has a path that leads out of it"))
}

fn read_file(from: &mut impl Read, path: &Path) -> io::Result<()> {
    let size = number(from)?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o644).open(path)?;
    // Nothing is set aside for what is only said to come.
    if io::copy(&mut from.take(size), &mut file)? != size {
        return Err(invalid("it ends in the middle of a file"));
    }
    file.sync_all()
}

fn byte(from: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

fn path_bytes(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    from.read_exact(&mut length)?;
    let length = usize::from(u16::from_be_bytes(length));
    if !(1..=MAX_PATH).contains(&length) {
        return Err(invalid("it has a path of no length, or one that is too long"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn checkpoint() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let actor = root.path().join("global_step_4/actor");
        fs::create_dir_all(&actor).unwrap();
        fs::create_dir(root.path().join("global_step_4/empty")).unwrap();
        fs::write(actor.join("model.pt"), vec![5; 3_000_000]).unwrap();
        fs::write(root.path().join("global_step_4/data.pt"), "").unwrap();
        root
    }

    fn written(root: &Path, name: &str) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        write(root, name, &mut out).map(|_| out)
    }

    fn is_empty(directory: &Path) -> bool {
        fs::read_dir(directory).unwrap().count() == 0
    }

    #[test]
    fn what_was_written_is_made_again() {
        let (root, into) = (checkpoint(), tempfile::tempdir().unwrap());
        let stream = written(root.path(), "global_step_4").unwrap();
        assert_eq!(restore(&mut &stream[..], into.path()).unwrap(), "global_step_4");
        let made = into.path().join("global_step_4");
        assert_eq!(fs::read(made.join("actor/model.pt")).unwrap(), vec![5; 3_000_000]);
        assert_eq!(fs::read(made.join("data.pt")).unwrap(), b"");
        assert!(made.join("empty").is_dir());
        assert_eq!(fs::read_dir(into.path()).unwrap().count(), 1, "nothing else is left");
        // A second time nothing is replaced.
        fs::write(made.join("data.pt"), "newer").unwrap();
        let error = restore(&mut &stream[..], into.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(made.join("data.pt")).unwrap(), b"newer");
        // One that is a file.
        fs::write(root.path().join("a.ckpt"), "abc").unwrap();
        let stream = written(root.path(), "a.ckpt").unwrap();
        assert_eq!(restore(&mut &stream[..], into.path()).unwrap(), "a.ckpt");
        assert_eq!(fs::read(into.path().join("a.ckpt")).unwrap(), b"abc");
    }

    #[test]
    fn a_part_of_a_stream_makes_nothing() {
        let (root, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("a/b"), "some bytes").unwrap();
        let stream = written(root.path(), "a").unwrap();
        for end in 0..stream.len() {
            assert!(restore(&mut &stream[..end], into.path()).is_err(), "{end}");
            assert!(is_empty(into.path()), "{end}");
        }
        let longer = [&stream[..], b"x"].concat();
        assert!(restore(&mut &longer[..], into.path()).is_err() && is_empty(into.path()));
    }

    #[test]
    fn links_are_not_copied() {
        let root = checkpoint();
        std::os::unix::fs::symlink("/etc", root.path().join("global_step_4/link")).unwrap();
        let error = written(root.path(), "global_step_4").unwrap_err();
        assert!(error.to_string().contains("global_step_4/link is a link"), "{error}");
    }

    #[test]
    fn no_path_leads_out() {
        let (into, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stream = |name: &str, path: &str| {
            let mut out = Vec::new();
            put(&mut out, NAME, name.as_bytes()).unwrap();
            put(&mut out, DIRECTORY, name.as_bytes()).unwrap();
            put(&mut out, FILE, path.as_bytes()).unwrap();
            out.extend([0; 8]);
            out.push(END);
            out.extend(1_u64.to_be_bytes());
            out
        };
        let far = outside.path().join("x").display().to_string();
        for (name, path) in [
            ("a", "a/../../x"),
            ("a", "b/x"),
            ("a", &far),
            ("a", "a"),
            ("a", "a/./../x"),
            ("a", "a/x\0"),
            ("..", "../x"),
            (".", "./x"),
            ("a/b", "a/b/x"),
            ("/a", "/a/x"),
        ] {
            assert!(restore(&mut &stream(name, path)[..], into.path()).is_err(), "{name} {path}");
            assert!(is_empty(into.path()) && is_empty(outside.path()), "{name} {path}");
        }
        assert!(restore(&mut &stream("a", "a/x")[..], into.path()).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_make_nothing_elsewhere(bytes in prop::collection::vec(any::<u8>(), 0..300), from in 0..20usize) {
            let (root, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            fs::write(root.path().join("a"), "abc").unwrap();
            let stream = written(root.path(), "a").unwrap();
            let from = from.min(stream.len());
            let mixed = [&stream[..from], &bytes].concat();
            if restore(&mut &mixed[..], into.path()).is_err() {
                prop_assert!(is_empty(into.path()));
            }
        }
    }
}
