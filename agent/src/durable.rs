//! Replacing a file so that a crash leaves either the old content or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Writes `bytes` beside `path`, makes them durable, and renames them into place. The file is
/// readable by its owner only. Parts are written in order, without being joined first.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let temporary = with_suffix(path, ".new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Makes a directory that only its owner can enter, with its parents.
pub fn private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn content_is_replaced_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let nested = directory.path().join("a/b");
        private_directory(&nested).unwrap();
        let path = nested.join("file");
        replace_file(&path, &[b"old and long"]).unwrap();
        replace_file(&path, &[b"ne", b"w"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&nested).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&nested).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(replace_file(&directory.path().join("no/file"), &[b"x"]).is_err());
    }
}
