//! Cutting content into chunks where the content itself says so: a byte that is put in or taken out
//! changes the chunks around it and no other.

use std::io::{self, Read};

use fastcdc::v2020::FastCDC;

/// Bounds of a chunk, in bytes; only the last one of a file may be smaller. A smaller average finds
/// more that is the same and needs a longer list: at 256 KiB the list of a GiB has 150 KB.
const MIN_CHUNK_BYTES: usize = 64 << 10;
const AVERAGE_CHUNK_BYTES: usize = 256 << 10;
pub const MAX_CHUNK_BYTES: usize = 1 << 20;
/// Bytes that are looked at together: so much that moving what is left over costs little.
const BUFFER_BYTES: usize = 4 * MAX_CHUNK_BYTES;

/// Reads content and gives its chunks one by one. One serves any number of files.
pub struct Chunker {
    buffer: Vec<u8>,
}

impl Default for Chunker {
    fn default() -> Self {
        Chunker { buffer: vec![0; BUFFER_BYTES] }
    }
}

impl Chunker {
    /// Reads `source` to its end and hands over every chunk.
    ///
    /// # Errors
    /// Those of reading, and those of `take`.
    pub fn cut<E: From<io::Error>>(
        &mut self,
        mut source: impl Read,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut have = 0;
        loop {
            let ended = self.fill(&mut source, &mut have)?;
            let bytes = self.buffer.get(..have).unwrap_or_default();
            let mut used = 0;
            let cutter = FastCDC::new(bytes, MIN_CHUNK_BYTES, AVERAGE_CHUNK_BYTES, MAX_CHUNK_BYTES);
            for chunk in cutter {
                // Where a cut is may depend on bytes that have not been read yet.
                if !ended && have - chunk.offset < MAX_CHUNK_BYTES {
                    break;
                }
                used = chunk.offset + chunk.length;
                take(bytes.get(chunk.offset..used).unwrap_or_default())?;
            }
            if ended {
                return Ok(());
            }
            self.buffer.copy_within(used..have, 0);
            have -= used;
        }
    }

    /// Fills the buffer from `have` on; true when the source has ended.
    fn fill(&mut self, source: &mut impl Read, have: &mut usize) -> io::Result<bool> {
        loop {
            let room = self.buffer.get_mut(*have..).unwrap_or_default();
            if room.is_empty() {
                return Ok(false);
            }
            match source.read(room) {
                Ok(0) => return Ok(true),
                Ok(count) => *have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Hash;

    /// Bytes that look random and are the same every time.
    fn noise(bytes: usize, mut seed: u64) -> Vec<u8> {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as u8
        };
        (0..bytes).map(|_| next()).collect()
    }

    fn chunks(content: &[u8]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let cut = Chunker::default().cut(content, |chunk| {
            out.push(chunk.to_vec());
            Ok::<(), io::Error>(())
        });
        cut.unwrap();
        out
    }

    #[test]
    fn chunks_are_the_content_within_bounds() {
        for bytes in [0, 1, MIN_CHUNK_BYTES, BUFFER_BYTES, BUFFER_BYTES + 1, 9 << 20] {
            let content = noise(bytes, 7);
            let chunks = chunks(&content);
            assert_eq!(chunks.concat(), content, "{bytes}");
            assert!(chunks.iter().all(|chunk| (1..=MAX_CHUNK_BYTES).contains(&chunk.len())));
        }
    }

    #[test]
    fn a_change_in_the_middle_changes_the_chunks_around_it_alone() {
        let before = noise(12 << 20, 3);
        let mut after = before.clone();
        after.splice(6 << 20..6 << 20, *b"a few bytes more");
        let names = |content: &[u8]| -> BTreeSet<Hash> {
            chunks(content).iter().map(|chunk| Hash::of(chunk)).collect()
        };
        let (before, after) = (names(&before), names(&after));
        assert!(before.len() > 20, "{}", before.len());
        let new = after.difference(&before).count();
        assert!((1..=3).contains(&new), "{new} of {}", after.len());
    }

    #[test]
    fn how_content_is_read_does_not_matter() {
        struct Drops<'a>(&'a [u8]);
        impl Read for Drops<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let count = buffer.len().min(4093);
                self.0.read(buffer.get_mut(..count).unwrap_or_default())
            }
        }
        let content = noise(5 << 20, 11);
        let mut dropped = Vec::new();
        let cut = Chunker::default().cut(Drops(&content), |chunk| {
            dropped.push(chunk.to_vec());
            Ok::<(), io::Error>(())
        });
        cut.unwrap();
        assert_eq!(dropped, chunks(&content));
    }
}
