//! The compressed form of a log file that grows no more: zstd frames of a fixed size and a table of
//! them at the end, so that any piece can be read without the rest.
//!
//! It is zstd's seekable format: `zstd -d` reads it. The table says nothing that is believed
//! unchecked: its sums must fit the file, and no frame may become larger than [`FRAME_BYTES`].

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// Plain bytes of one frame.
const FRAME_BYTES: usize = 256 << 10;
const LEVEL: i32 = 3;
/// The skippable frame that holds the table, and the last word of the file.
const TABLE_MAGIC: u32 = 0x184d_2a5e;
const FOOTER_MAGIC: u32 = 0x8f92_eab1;
/// Number of frames, a byte of flags, the last word.
const FOOTER_BYTES: u64 = 9;
/// Magic and length of the skippable frame.
const HEADER_BYTES: u64 = 8;
/// Compressed and plain size of a frame.
const ENTRY_BYTES: usize = 8;
/// Frames of one file, which are 4 TiB: a larger number is a lie.
const MAX_FRAMES: u32 = 16 << 20;

/// Compresses `source` into a new file at `to`, flushed to disk. Returns its plain and its compressed
/// bytes.
///
/// # Errors
/// One of them cannot be read or written; `to` may be there in part.
pub fn pack(mut source: File, to: &Path) -> io::Result<(u64, u64)> {
    let target = super::create(to)?;
    let mut out = BufWriter::with_capacity(FRAME_BYTES, target);
    let mut compressor = Compressor::new(LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    let mut table = Vec::new();
    let (mut plain, mut packed) = (0, 0);
    let mut block = Vec::with_capacity(FRAME_BYTES);
    loop {
        block.clear();
        let read = (&mut source).take(FRAME_BYTES as u64).read_to_end(&mut block)?;
        if read == 0 {
            break;
        }
        let frame = compressor.compress(&block)?;
        out.write_all(&frame)?;
        for size in [frame.len(), read] {
            table.extend_from_slice(&size_of_frame(size)?.to_le_bytes());
        }
        plain += read as u64;
        packed += frame.len() as u64;
    }
    let frames = size_of_frame(table.len() / ENTRY_BYTES)?;
    let content = size_of_frame(table.len() + FOOTER_BYTES as usize)?;
    let header = [TABLE_MAGIC.to_le_bytes(), content.to_le_bytes()].concat();
    let footer = [&frames.to_le_bytes()[..], &[0], &FOOTER_MAGIC.to_le_bytes()].concat();
    for part in [&header, &table, &footer] {
        out.write_all(part)?;
        packed += part.len() as u64;
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok((plain, packed))
}

fn size_of_frame(size: usize) -> io::Result<u32> {
    u32::try_from(size).map_err(|_| damaged("too many frames"))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a compressed log is damaged: {what}"))
}

/// A compressed file, for reading.
#[derive(Debug)]
pub struct Packed {
    file: File,
    /// Where each frame begins, compressed and plain; then where the last one ends.
    starts: Vec<(u64, u64)>,
    /// The frame that was read last.
    newest: Option<(usize, Vec<u8>)>,
}

impl Packed {
    /// Reads the table of a file.
    ///
    /// # Errors
    /// It cannot be read, or is not what [`pack`] writes.
    pub fn open(path: &Path) -> io::Result<Packed> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let at = bytes.checked_sub(FOOTER_BYTES).ok_or_else(|| damaged("it is too short"))?;
        let mut footer = [0; FOOTER_BYTES as usize];
        file.read_exact_at(&mut footer, at)?;
        let (frames, rest) = footer.split_first_chunk::<4>().ok_or_else(|| damaged("footer"))?;
        if rest != [&[0], &FOOTER_MAGIC.to_le_bytes()[..]].concat() {
            return Err(damaged("it has no table"));
        }
        let frames = u32::from_le_bytes(*frames);
        let table_bytes = u64::from(frames) * ENTRY_BYTES as u64;
        let table_at = at.checked_sub(table_bytes).filter(|at| *at >= HEADER_BYTES);
        let table_at = table_at.filter(|_| frames <= MAX_FRAMES);
        let table_at = table_at.ok_or_else(|| damaged("its table is too large"))?;
        let mut table = vec![0; frames as usize * ENTRY_BYTES];
        file.read_exact_at(&mut table, table_at)?;
        let mut starts = Vec::with_capacity(frames as usize + 1);
        let mut at = (0, 0);
        for [packed, plain] in table.as_chunks::<4>().0.as_chunks::<2>().0 {
            let sizes = (u32::from_le_bytes(*packed), u32::from_le_bytes(*plain));
            let fits = (1..=FRAME_BYTES).contains(&(sizes.1 as usize));
            if !fits || sizes.0 as usize > 2 * FRAME_BYTES {
                return Err(damaged("a frame is too large or empty"));
            }
            starts.push(at);
            at = (at.0 + u64::from(sizes.0), at.1 + u64::from(sizes.1));
        }
        starts.push(at);
        if at.0 != table_at - HEADER_BYTES {
            return Err(damaged("its table does not fit it"));
        }
        Ok(Packed { file, starts, newest: None })
    }

    /// Plain bytes.
    pub fn length(&self) -> u64 {
        self.starts.last().map_or(0, |(_, plain)| *plain)
    }

    /// At most `limit` bytes from `offset` on; fewer only at the end.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn read_at(&mut self, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let available = self.length().saturating_sub(offset);
        let wanted = usize::try_from(available).unwrap_or(usize::MAX).min(limit);
        let mut out = Vec::with_capacity(wanted);
        while out.len() < wanted {
            let at = offset + out.len() as u64;
            let index = self.starts.partition_point(|(_, plain)| *plain <= at).saturating_sub(1);
            let begin = self.starts.get(index).map_or(0, |(_, plain)| *plain);
            let frame = self.frame(index)?;
            let from = usize::try_from(at - begin).unwrap_or(usize::MAX);
            let rest = frame.get(from..).filter(|rest| !rest.is_empty());
            let rest = rest.ok_or_else(|| damaged("a frame is shorter than its table says"))?;
            let take = rest.len().min(wanted - out.len());
            out.extend_from_slice(rest.get(..take).unwrap_or_default());
        }
        Ok(out)
    }

    fn frame(&mut self, index: usize) -> io::Result<&[u8]> {
        if self.newest.as_ref().is_none_or(|(newest, _)| *newest != index) {
            let bounds = self.starts.get(index).zip(self.starts.get(index + 1));
            let (begin, end) = bounds.ok_or_else(|| damaged("a frame is missing"))?;
            let mut packed = vec![0; (end.0 - begin.0) as usize];
            self.file.read_exact_at(&mut packed, begin.0)?;
            let size = (end.1 - begin.1) as usize;
            let plain = Decompressor::new()?.decompress(&packed, size)?;
            if plain.len() != size {
                return Err(damaged("a frame has another size than its table says"));
            }
            self.newest = Some((index, plain));
        }
        Ok(self.newest.as_ref().map_or(&[], |(_, frame)| frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (plain, to) = (directory.path().join("a.log"), directory.path().join("a.zst"));
        std::fs::write(&plain, content).unwrap();
        let (bytes, size) = pack(File::open(plain).unwrap(), &to).unwrap();
        assert_eq!(bytes, content.len() as u64);
        assert_eq!(size, std::fs::metadata(&to).unwrap().len());
        (directory, to)
    }

    #[test]
    fn any_piece_of_a_file_can_be_read() {
        let content: Vec<u8> =
            (0..60_000).flat_map(|n| format!("step {n}: loss 0.{n}\n").into_bytes()).collect();
        assert!(content.len() > 4 * FRAME_BYTES);
        let (_directory, path) = packed(&content);
        assert!(std::fs::metadata(&path).unwrap().len() < content.len() as u64 / 3);
        let mut file = Packed::open(&path).unwrap();
        assert_eq!(file.length(), content.len() as u64);
        for (offset, limit) in
            [(0, 10), (FRAME_BYTES - 3, 7), (FRAME_BYTES, 1), (5, 3 * FRAME_BYTES), (0, 1 << 30)]
        {
            let end = content.len().min(offset + limit);
            assert_eq!(file.read_at(offset as u64, limit).unwrap(), content[offset..end]);
        }
        assert_eq!(file.read_at(content.len() as u64 + 5, 9).unwrap(), b"");
        // What other programs make of it: frames, and one that is skipped.
        let all = zstd::stream::decode_all(File::open(&path).unwrap()).unwrap();
        assert_eq!(all, content);
    }

    #[test]
    fn an_empty_file_has_no_frames() {
        let (_directory, path) = packed(b"");
        let mut file = Packed::open(&path).unwrap();
        assert_eq!((file.length(), file.read_at(0, 9).unwrap()), (0, Vec::new()));
    }

    #[test]
    fn a_table_that_lies_is_an_error_and_costs_little() {
        let (_directory, path) = packed(&b"some text of a log\n".repeat(40_000));
        let whole = std::fs::read(&path).unwrap();
        let end = whole.len();
        let frames = u32::from_le_bytes(*whole[end - 9..].first_chunk::<4>().unwrap());
        let lies = |at: usize, bytes: &[u8]| {
            let mut lie = whole.clone();
            lie[at..at + bytes.len()].copy_from_slice(bytes);
            lie
        };
        let table = end - 9 - frames as usize * ENTRY_BYTES;
        for bad in [
            b"short".to_vec(),
            vec![0; 4096],
            lies(end - 9, &[0xff; 4]),
            lies(end - 9, &(frames - 1).to_le_bytes()),
            lies(table, &[0xff; 4]),
            lies(table + 4, &u32::MAX.to_le_bytes()),
            lies(table + 4, &[0; 4]),
        ] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(Packed::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        for bad in [lies(table + 4, &1000u32.to_le_bytes()), lies(9, b"damage"), lies(0, &[0; 8])] {
            std::fs::write(&path, bad).unwrap();
            let mut file = Packed::open(&path).unwrap();
            assert!(file.read_at(0, 4000).is_err());
        }
    }
}
