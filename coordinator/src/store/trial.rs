//! A trial run on a store: redb works on it as on its own, but its storage is only read.
//!
//! redb trusts a file that was closed cleanly, and repairs one that was not in place. Both come
//! too early for a damaged file, so every open begins with a run over this backend: what redb
//! writes stays in memory and is thrown away.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

const BLOCK: usize = 4096;
type Block = Box<[u8; BLOCK]>;

/// Reads and locks go to the storage; writes do not. Its memory is bounded by what a repair or a
/// migration writes.
pub struct TrialBackend<B> {
    file: B,
    written: Mutex<Written>,
}

struct Written {
    /// Length as redb sees it, in bytes.
    len: u64,
    /// Bytes at the start of the file that redb still sees; the rest of `len` is zero.
    from_file: u64,
    /// Changed blocks, by number.
    blocks: BTreeMap<u64, Block>,
}

impl<B: StorageBackend> TrialBackend<B> {
    /// A file must be open for writing, because only such a file can be locked exclusively.
    pub fn new(file: B) -> io::Result<Self> {
        let len = file.len()?;
        let written = Written { len, from_file: len, blocks: BTreeMap::new() };
        Ok(TrialBackend { file, written: Mutex::new(written) })
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    /// The block as the file has it, with zeros after the part that counts.
    fn original(&self, file: &impl StorageBackend, number: u64) -> io::Result<Block> {
        let mut block = Box::new([0; BLOCK]);
        let start = number.saturating_mul(BLOCK as u64);
        let present = self.from_file.saturating_sub(start).min(BLOCK as u64) as usize;
        if let Some(part) = block.get_mut(..present).filter(|part| !part.is_empty()) {
            file.read(start, part)?;
        }
        Ok(block)
    }

    /// An error unless all of `[offset, offset + len)` lies in what redb sees.
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the file")),
        }
    }
}

/// The pieces of a range, one per block: (block, first byte in it, length).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = offset;
    let mut left = len;
    std::iter::from_fn(move || {
        let within = (at % BLOCK as u64) as usize;
        let size = left.min(BLOCK - within);
        let piece = (at / BLOCK as u64, within, size);
        at += size as u64;
        left -= size;
        (size > 0).then_some(piece)
    })
}

impl<B: StorageBackend> StorageBackend for TrialBackend<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written();
        written.check(offset, out.len())?;
        let mut rest = out;
        for (number, within, size) in pieces(offset, rest.len()) {
            let (part, after) = rest.split_at_mut(size);
            match written.blocks.get(&number) {
                Some(block) => part.copy_from_slice(&block[within..within + size]),
                None => {
                    let block = written.original(&self.file, number)?;
                    part.copy_from_slice(&block[within..within + size]);
                }
            }
            rest = after;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written();
        written.len = len;
        written.from_file = written.from_file.min(len);
        let mut cut = written.blocks.split_off(&(len / BLOCK as u64));
        // The block that holds the new end keeps its first part.
        if let Some(mut block) = cut.remove(&(len / BLOCK as u64)) {
            block[(len % BLOCK as u64) as usize..].fill(0);
            written.blocks.insert(len / BLOCK as u64, block);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written();
        written.check(offset, data.len())?;
        let mut rest = data;
        for (number, within, size) in pieces(offset, data.len()) {
            let (part, after) = rest.split_at(size);
            let mut block = match written.blocks.remove(&number) {
                Some(block) => block,
                None => written.original(&self.file, number)?,
            };
            block[within..within + size].copy_from_slice(part);
            written.blocks.insert(number, block);
            rest = after;
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}

impl<B> fmt::Debug for TrialBackend<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrialBackend").finish_non_exhaustive()
    }
}
