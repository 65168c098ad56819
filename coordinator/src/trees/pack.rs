//! A pack: the new chunks of one upload in one file, so that ten thousand small files cost one write
//! and one fsync. A pack is written once, under a name of its own, and never changed.
//!
//! ```text
//! "gangline pack 1\n" | u32 count | count x (32-byte BLAKE3, u32 bytes) | the chunks (big endian)
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gangline_tree::Hash;

const MAGIC: &[u8; 16] = b"gangline pack 1\n";
const ROW: usize = 36;
/// Most chunks of one pack: far more than one upload holds.
const MAX_ROWS: usize = 2 << 20;

/// Where one chunk lies in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub hash: Hash,
    pub offset: u64,
    pub bytes: u32,
}

/// Writes a new file at `path` and waits until the disk has it. Says where each chunk is.
pub fn write(path: &Path, chunks: &[(Hash, &[u8])]) -> io::Result<Vec<Row>> {
    let mut head = MAGIC.to_vec();
    // A pack holds the chunks of one upload: a few MiB.
    head.extend_from_slice(&(chunks.len() as u32).to_be_bytes());
    let mut offset = (head.len() + chunks.len() * ROW) as u64;
    let mut rows = Vec::with_capacity(chunks.len());
    for (hash, chunk) in chunks {
        let bytes = chunk.len() as u32;
        head.extend_from_slice(&hash.0);
        head.extend_from_slice(&bytes.to_be_bytes());
        rows.push(Row { hash: *hash, offset, bytes });
        offset += u64::from(bytes);
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&head)?;
    for (_, chunk) in chunks {
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    Ok(rows)
}

/// Reads what is in a pack. One that is not whole is an error.
pub fn read(path: &Path) -> io::Result<Vec<Row>> {
    let broken = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut head = [0; 20];
    file.read_exact(&mut head)?;
    let (magic, count) = head.split_at(MAGIC.len());
    let count = count.iter().fold(0, |count: usize, byte| count << 8 | usize::from(*byte));
    if magic != MAGIC || count > MAX_ROWS {
        return Err(broken("it does not begin as a pack"));
    }
    let mut table = vec![0; count * ROW];
    file.read_exact(&mut table)?;
    let mut offset = (head.len() + table.len()) as u64;
    let mut rows = Vec::with_capacity(count);
    for row in table.chunks_exact(ROW) {
        let (hash, bytes) = row.split_at(32);
        let hash = Hash(hash.try_into().map_err(|_| broken("a row is cut off"))?);
        let bytes = bytes.iter().fold(0, |bytes: u32, byte| bytes << 8 | u32::from(*byte));
        rows.push(Row { hash, offset, bytes });
        offset = offset.saturating_add(bytes.into());
    }
    if offset != length {
        return Err(broken("its length is not that of its chunks"));
    }
    Ok(rows)
}
