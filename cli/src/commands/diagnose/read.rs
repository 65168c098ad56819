//! The first and the last bytes of a log, whatever its size, in bounded memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of all files together that are read through to count lines. Of a longer file the middle is
/// skipped, and the lines behind it have no number.
const COUNTED_BYTES: u64 = 256 * 1024 * 1024;
/// Most bytes of a stream, such as stdin. What comes later is not read.
const MAX_STREAM_BYTES: u64 = 4 * 1024 * 1024 * 1024;
const BLOCK_BYTES: usize = 256 * 1024;

/// What is looked at of one log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) head: Vec<u8>,
    /// Empty when the head is all, or goes on without a gap.
    pub(super) tail: Vec<u8>,
    /// Line that the tail begins in, where it was counted.
    pub(super) tail_line: Option<u64>,
    /// It was a stream without an end.
    pub(super) cut_short: bool,
}

/// The first `head` and the last `tail` bytes of the file at `path`, one of `files`; `-` is stdin.
///
/// # Errors
/// The file cannot be read.
pub(super) fn pieces(path: &Path, head: usize, tail: usize, files: usize) -> io::Result<Pieces> {
    if path.as_os_str() == "-" {
        return stream(io::stdin().lock(), head, tail);
    }
    let mut file = File::open(path)?;
    let data = file.metadata()?;
    if data.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let counted = COUNTED_BYTES / files.max(1) as u64;
    if !data.is_file() || data.len() <= counted.max((head + tail) as u64) {
        return stream(file, head, tail);
    }
    let mut pieces = Pieces::default();
    (&mut file).take(head as u64).read_to_end(&mut pieces.head)?;
    file.seek(SeekFrom::Start(data.len().saturating_sub(tail as u64)))?;
    file.take(tail as u64).read_to_end(&mut pieces.tail)?;
    Ok(pieces)
}

fn stream(input: impl Read, head: usize, tail: usize) -> io::Result<Pieces> {
    let mut input = input.take(MAX_STREAM_BYTES);
    let mut pieces = Pieces::default();
    (&mut input).take(head as u64).read_to_end(&mut pieces.head)?;
    let mut line = 1 + line_ends(&pieces.head);
    let mut gap = false;
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = match input.read(&mut block) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        pieces.tail.extend_from_slice(block.get(..read).unwrap_or_default());
        // Twice the tail is kept, so that it is moved seldom.
        if pieces.tail.len() > 2 * tail + BLOCK_BYTES {
            line += forget(&mut pieces.tail, tail);
            gap = true;
        }
    }
    if pieces.tail.len() > tail {
        line += forget(&mut pieces.tail, tail);
        gap = true;
    }
    pieces.cut_short = input.limit() == 0;
    if gap {
        pieces.tail_line = Some(line);
    } else {
        pieces.head.append(&mut pieces.tail);
    }
    Ok(pieces)
}

/// Keeps the last `keep` bytes; how many lines ended in the rest.
fn forget(bytes: &mut Vec<u8>, keep: usize) -> u64 {
    let kept = bytes.split_off(bytes.len().saturating_sub(keep));
    let ends = line_ends(bytes);
    *bytes = kept;
    ends
}

fn line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_stream_is_whole() {
        let read = stream(&b"a\nb\nc"[..], 2, 100).unwrap();
        assert_eq!(read, Pieces { head: b"a\nb\nc".to_vec(), ..Pieces::default() });
        assert_eq!(stream(&b""[..], 2, 2).unwrap(), Pieces::default());
    }

    #[test]
    fn a_long_stream_has_two_ends_and_a_line_number() {
        let text: String = (1..=400_000).map(|number| format!("line {number}\n")).collect();
        let read = stream(text.as_bytes(), 100, 1000).unwrap();
        assert_eq!((read.head.len(), read.tail.len()), (100, 1000));
        let tail = String::from_utf8(read.tail).unwrap();
        let second = tail.lines().nth(1).unwrap();
        let number: u64 = second.strip_prefix("line ").unwrap().parse().unwrap();
        assert_eq!(read.tail_line, Some(number - 1));
    }

    #[test]
    fn the_middle_of_a_file_may_be_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "0123456789").unwrap();
        // As one of so many files that none may be read through.
        let read = pieces(&path, 2, 3, usize::MAX).unwrap();
        assert_eq!((read.head.as_slice(), read.tail.as_slice()), (&b"01"[..], &b"789"[..]));
        assert_eq!(read.tail_line, None);
        assert!(pieces(folder.path(), 2, 3, 1).is_err());
    }
}
