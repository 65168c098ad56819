//! How a file is known again, whatever it is called: its inode, and a digest of its first bytes,
//! which tells a file from another one that got the same inode later, or from what was written into
//! it after it was emptied.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// Most bytes of the beginning of a file that are digested.
const HEAD_BYTES: usize = 1024;

/// What a file is known by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    pub device: u64,
    pub inode: u64,
    /// How many of its first bytes `head` is a digest of: all, until there are [`HEAD_BYTES`].
    head_bytes: usize,
    head: String,
}

impl Fingerprint {
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let bytes = read_up_to(file, 0, HEAD_BYTES)?;
        Ok(Fingerprint {
            device: metadata.dev(),
            inode: metadata.ino(),
            head_bytes: bytes.len(),
            head: digest_of(&bytes),
        })
    }

    pub fn is_inode_of(&self, metadata: &Metadata) -> bool {
        (self.device, self.inode) == (metadata.dev(), metadata.ino())
    }

    /// Whether the file still begins with what it began with; of an empty beginning any file does.
    pub fn heads(&self, file: &File) -> io::Result<bool> {
        let bytes = read_up_to(file, 0, self.head_bytes)?;
        Ok(bytes.len() == self.head_bytes && digest_of(&bytes) == self.head)
    }

    /// Takes in what a file that it heads has more at its beginning. Says whether there was more.
    pub fn grow(&mut self, file: &File) -> io::Result<bool> {
        if self.head_bytes >= HEAD_BYTES {
            return Ok(false);
        }
        let bytes = read_up_to(file, 0, HEAD_BYTES)?;
        if bytes.len() <= self.head_bytes {
            return Ok(false);
        }
        (self.head_bytes, self.head) = (bytes.len(), digest_of(&bytes));
        Ok(true)
    }

    /// Whether enough of the beginning is known to tell the file from any other.
    pub fn is_telling(&self) -> bool {
        self.head_bytes >= HEAD_BYTES / 4
    }
}

fn digest_of(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// At most `limit` bytes from `offset` on; fewer only at the end of the file.
pub fn read_up_to(file: &File, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; limit];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_how_it_begins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "one\n").unwrap();
        let mut print = Fingerprint::of(&File::open(&path).unwrap()).unwrap();
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let file = File::open(&path).unwrap();
        assert!(print.heads(&file).unwrap());
        assert!(print.grow(&file).unwrap());
        assert!(!print.grow(&file).unwrap());
        for other in ["", "one\n", "two\ntwo\n"] {
            std::fs::write(&path, other).unwrap();
            assert!(!print.heads(&file).unwrap(), "{other}");
        }
        std::fs::write(&path, "one\ntwo\n".repeat(1000)).unwrap();
        assert!(print.grow(&file).unwrap());
        assert!(!print.grow(&file).unwrap(), "what is known of the beginning is bounded");
        assert!(print.is_inode_of(&file.metadata().unwrap()));
    }
}
