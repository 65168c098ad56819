//! What a tree looks like where it lies, as lines of text: written down beside it when it is whole,
//! and compared before the next member uses it.
//!
//! Names, kinds, sizes, modes and times are looked at; contents are not read. Agents mostly run as
//! root, and modes stop no job of root: this is how its changes are noticed.

use std::ffi::CString;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use gangline_tree::MAX_ENTRIES;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, fchmod, fstat, openat, readlinkat, statat,
};
use rustix::io::Errno;

/// Opens a directory, and nothing else that may have its name.
pub const OPEN_DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);
/// Access to the directories of a tree that is whole: its files are for reading, and nothing joins
/// them.
const SEALED: u32 = 0o555;
/// Access to directories whose content is to go.
const UNSEALED: u32 = 0o700;
/// Directories in directories that are opened to writing before they are removed; a tree has fewer.
const MAX_DEPTH: usize = 1024;

/// Takes each line of a picture, and says whether it goes on.
type Line<'a> = dyn FnMut(&str) -> io::Result<bool> + 'a;

/// Takes the right to write away from a directory and from all below it.
pub fn seal(directory: &OwnedFd) -> io::Result<()> {
    for name in names_in(directory)? {
        match openat(directory, name.as_c_str(), OPEN_DIRECTORY, Mode::empty()) {
            Ok(below) => seal(&below)?,
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fchmod(directory, Mode::from_raw_mode(SEALED))?;
    Ok(())
}

/// Writes down what a tree looks like.
pub fn write(root: &OwnedFd, out: &mut impl Write) -> io::Result<()> {
    let mut keep = |line: &str| -> io::Result<bool> {
        out.write_all(line.as_bytes())?;
        Ok(true)
    };
    look_at(root, &mut keep)?;
    Ok(())
}

/// Where a tree first looks other than was written down; `None` where it nowhere does. Ends at the
/// first difference, so whatever was put into the tree makes this no longer than the tree itself.
pub fn difference(root: &OwnedFd, written: impl Read) -> io::Result<Option<String>> {
    let mut written = BufReader::new(written);
    let mut there: Vec<u8> = Vec::new();
    let mut is_same = |line: &str| -> io::Result<bool> {
        there.resize(line.len(), 0);
        // What cannot be read any more is not the same either.
        Ok(written.read_exact(&mut there).is_ok() && there.as_slice() == line.as_bytes())
    };
    if let Some(place) = look_at(root, &mut is_same)? {
        return Ok(Some(place));
    }
    match written.read(&mut [0]) {
        Ok(0) => Ok(None),
        _ => Ok(Some("its end".to_owned())),
    }
}

/// Gives the lines of a tree, and the place of the one that was refused.
fn look_at(root: &OwnedFd, line: &mut Line<'_>) -> io::Result<Option<String>> {
    let mode = fstat(root)?.st_mode & 0o7777;
    if !line(&format!("0 d {mode:o} .\n"))? {
        return Ok(Some(".".to_owned()));
    }
    look_below(root, 1, line)
}

fn look_below(
    directory: &OwnedFd,
    depth: usize,
    line: &mut Line<'_>,
) -> io::Result<Option<String>> {
    for name in names_in(directory)? {
        // Whatever is in a name, it stays on its line, and harmless where it is shown.
        let shown = name.as_bytes().escape_ascii().to_string();
        let found = statat(directory, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        let mode = found.st_mode & 0o7777;
        let text = match kind {
            FileType::RegularFile => {
                let (size, seconds, rest) = (found.st_size, found.st_mtime, found.st_mtime_nsec);
                format!("{depth} f {mode:o} {size} {seconds}.{rest:09} {shown}\n")
            }
            FileType::Directory => format!("{depth} d {mode:o} {shown}\n"),
            FileType::Symlink => {
                let target = readlinkat(directory, name.as_c_str(), Vec::new())?;
                format!("{depth} l {shown}\t{}\n", target.as_bytes().escape_ascii())
            }
            _ => format!("{depth} o {shown}\n"),
        };
        if !line(&text)? {
            return Ok(Some(shown));
        }
        if kind.is_dir() {
            let below = openat(directory, name.as_c_str(), OPEN_DIRECTORY, Mode::empty())?;
            if let Some(place) = look_below(&below, depth + 1, line)? {
                return Ok(Some(format!("{shown}/{place}")));
            }
        }
    }
    Ok(None)
}

/// The names in a directory, in order; of more than any tree has, only so many that it shows.
fn names_in(directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    // A descriptor remembers how far it was read, so it is one of its own.
    let directory = openat(directory, ".", OPEN_DIRECTORY, Mode::empty())?;
    let mut buffer = Vec::with_capacity(8 << 10);
    let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
        if names.len() > MAX_ENTRIES {
            break;
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Removes a directory with all that is in it, directories that nobody may write into included:
/// only root need not ask for that first.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        done => return done,
    }
    let directory = rustix::fs::open(path, OPEN_DIRECTORY, Mode::empty())?;
    unseal(&directory, 0);
    std::fs::remove_dir_all(path)
}

/// Gives the owner back all rights to a directory and those below it. Where that fails, removing
/// them does too, and says why.
fn unseal(directory: &OwnedFd, depth: usize) {
    let _ = fchmod(directory, Mode::from_raw_mode(UNSEALED));
    if depth >= MAX_DEPTH {
        return;
    }
    for name in names_in(directory).unwrap_or_default() {
        if let Ok(below) = openat(directory, name.as_c_str(), OPEN_DIRECTORY, Mode::empty()) {
            unseal(&below, depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OPEN_DIRECTORY, Mode::empty()).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_tree_looks_as_it_was_written_down_until_something_is_other() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("tree");
        std::fs::create_dir_all(root.join("b/c")).unwrap();
        std::fs::write(root.join("a\nb\u{1b}.py"), "1").unwrap();
        std::fs::write(root.join("b/c/d.py"), "12").unwrap();
        symlink("c/d.py", root.join("b/l")).unwrap();
        let mut written = Vec::new();
        write(&open(&root), &mut written).unwrap();
        let text = String::from_utf8(written.clone()).unwrap();
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.contains(" a\\nb\\x1b.py\n") && text.contains("2 l l\tc/d.py\n"), "{text}");
        let differs = |written: &[u8]| difference(&open(&root), written).unwrap();
        assert_eq!(differs(&written), None);
        assert_eq!(differs(&[&written[..], b"1 f 444 1 1.0 z\n"].concat()).unwrap(), "its end");
        assert_eq!(differs(&written[..written.len() - 1]).unwrap(), "b/l");
        assert_eq!(differs(b"").unwrap(), ".");
        std::fs::write(root.join("b/c/d.py"), "123").unwrap();
        assert_eq!(differs(&written).unwrap(), "b/c/d.py");
        std::fs::write(root.join("b/c/d.py"), "12").unwrap();
        std::fs::write(root.join("b/c/0.py"), "").unwrap();
        assert_eq!(differs(&written).unwrap(), "b/c/0.py");
        std::fs::remove_dir_all(root.join("b")).unwrap();
        assert_eq!(differs(&written).unwrap(), "its end");
    }

    #[test]
    fn what_is_sealed_can_be_removed_by_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("tree");
        let below = root.join("b/c");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(below.join("d.py"), "1").unwrap();
        symlink(directory.path(), root.join("l")).unwrap();
        let before = mode(directory.path());
        seal(&open(&root)).unwrap();
        assert_eq!((mode(&root), mode(&root.join("b")), mode(&below)), (0o555, 0o555, 0o555));
        // Root may remove it as it is; others take this way.
        unseal(&open(&root), 0);
        assert_eq!((mode(&root), mode(&root.join("b")), mode(&below)), (0o700, 0o700, 0o700));
        assert_eq!(mode(directory.path()), before, "a link was followed");
        seal(&open(&root)).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists());
        assert_eq!(remove_tree(&root).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
