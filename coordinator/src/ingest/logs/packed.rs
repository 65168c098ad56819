//! The compressed form of a log file that grows no more: gzip members of a fixed plain size, each of
//! which says in its header how long it is, so that any piece can be read without the rest.
//!
//! `gzip -d` reads it. The headers say nothing that is believed unchecked: the sizes must fit the file,
//! and no member may become larger than [`FRAME_BYTES`].

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// Plain bytes of one member; the last may have fewer.
const FRAME_BYTES: usize = 256 << 10;
const LEVEL: u32 = 4;
/// Deflate, an extra field, no time, written on Unix; 12 bytes of extra field, of which 8 are ours.
const HEADER: [u8; 16] = [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 3, 12, 0, b'G', b'L', 8, 0];
/// With the bytes of the whole member and the plain ones.
const HEADER_BYTES: usize = HEADER.len() + 8;
/// CRC-32 and length of the plain bytes.
const TRAILER_BYTES: usize = 8;

/// Compresses `source` into a new file at `to`, flushed to disk. Returns its plain and its compressed
/// bytes.
///
/// # Errors
/// One of them cannot be read or written; `to` may be there in part.
pub fn pack(mut source: File, to: &Path) -> io::Result<(u64, u64)> {
    let target = super::create(to)?;
    let mut out = BufWriter::with_capacity(FRAME_BYTES, target);
    let (mut plain, mut packed) = (0, 0);
    let mut block = Vec::with_capacity(FRAME_BYTES);
    loop {
        block.clear();
        let read = (&mut source).take(FRAME_BYTES as u64).read_to_end(&mut block)?;
        if read == 0 {
            break;
        }
        let member = member(&block)?;
        out.write_all(&member)?;
        plain += read as u64;
        packed += member.len() as u64;
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok((plain, packed))
}

fn member(block: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(LEVEL));
    encoder.write_all(block)?;
    let body = encoder.finish()?;
    let size = |bytes: usize| u32::try_from(bytes).map_err(|_| damaged("a block is too large"));
    let whole = size(HEADER_BYTES + body.len() + TRAILER_BYTES)?.to_le_bytes();
    let length = size(block.len())?.to_le_bytes();
    let sum = crc32fast::hash(block).to_le_bytes();
    Ok([&HEADER[..], &whole, &length, &body, &sum, &length].concat())
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a compressed log is damaged: {what}"))
}

/// A compressed file, for reading.
#[derive(Debug)]
pub struct Packed {
    file: File,
    /// Where each member begins, compressed and plain; then where the last one ends.
    starts: Vec<(u64, u64)>,
    /// The member that was read last.
    newest: Option<(usize, Vec<u8>)>,
}

impl Packed {
    /// Looks at the headers of a file.
    ///
    /// # Errors
    /// It cannot be read, or is not what [`pack`] writes.
    pub fn open(path: &Path) -> io::Result<Packed> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut starts = vec![(0, 0)];
        let (mut at, mut plain) = (0, 0);
        while at < bytes {
            let mut header = [0; HEADER_BYTES];
            let read = file.read_exact_at(&mut header, at);
            read.map_err(|_| damaged("it is cut off"))?;
            let (known, sizes) = header.split_at(HEADER.len());
            let [[whole, length]] = sizes.as_chunks::<4>().0.as_chunks::<2>().0 else {
                return Err(damaged("header"));
            };
            let (whole, length) = (u32::from_le_bytes(*whole), u32::from_le_bytes(*length));
            let end = at + u64::from(whole);
            // Only the last one is short: their number is bounded by what the file holds.
            let full = length as usize == FRAME_BYTES || end == bytes;
            let fits = (1..=FRAME_BYTES).contains(&(length as usize)) && full;
            let large = whole as usize > 2 * FRAME_BYTES;
            let small = (whole as usize) < HEADER_BYTES + TRAILER_BYTES;
            if known != HEADER || !fits || large || small || end > bytes {
                return Err(damaged("a header does not fit it"));
            }
            (at, plain) = (end, plain + u64::from(length));
            starts.push((at, plain));
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
            let (begin, end) = bounds.ok_or_else(|| damaged("a member is missing"))?;
            let mut member = vec![0; (end.0 - begin.0) as usize];
            self.file.read_exact_at(&mut member, begin.0)?;
            let size = (end.1 - begin.1) as usize;
            let body = member.get(HEADER_BYTES..member.len() - TRAILER_BYTES);
            let mut plain = Vec::with_capacity(size);
            let body = DeflateDecoder::new(body.unwrap_or_default());
            // One byte more than there may be shows that there are too many.
            body.take(size as u64 + 1).read_to_end(&mut plain)?;
            let sum = [crc32fast::hash(&plain).to_le_bytes(), (size as u32).to_le_bytes()].concat();
            if plain.len() != size || !member.ends_with(&sum) {
                return Err(damaged("a member is not what its sums say"));
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
        let (plain, to) = (directory.path().join("a.log"), directory.path().join("a.gz"));
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
        // What other programs make of it: one stream of gzip after another.
        let mut all = Vec::new();
        let mut others = flate2::read::MultiGzDecoder::new(File::open(&path).unwrap());
        others.read_to_end(&mut all).unwrap();
        assert_eq!(all, content);
    }

    #[test]
    fn an_empty_file_has_no_frames() {
        let (_directory, path) = packed(b"");
        let mut file = Packed::open(&path).unwrap();
        assert_eq!((file.length(), file.read_at(0, 9).unwrap()), (0, Vec::new()));
    }

    #[test]
    fn headers_that_lie_are_errors_and_cost_little() {
        let (_directory, path) = packed(&b"some text of a log\n".repeat(40_000));
        let whole = std::fs::read(&path).unwrap();
        let lies = |at: usize, bytes: &[u8]| {
            let mut lie = whole.clone();
            lie[at..at + bytes.len()].copy_from_slice(bytes);
            lie
        };
        let sizes = HEADER.len();
        for bad in [
            b"short".to_vec(),
            vec![0; 4096],
            whole[..whole.len() - 1].to_vec(),
            lies(0, &[0; 8]),
            lies(sizes, &[0xff; 4]),
            lies(sizes, &[0; 4]),
            lies(sizes + 4, &u32::MAX.to_le_bytes()),
            lies(sizes + 4, &[0; 4]),
            // Many small ones would make many of a short file.
            lies(sizes + 4, &1000u32.to_le_bytes()),
        ] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(Packed::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        std::fs::write(&path, lies(HEADER_BYTES + 9, b"damage")).unwrap();
        assert!(Packed::open(&path).unwrap().read_at(0, 4000).is_err());
    }
}
