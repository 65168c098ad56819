//! One file with two slots that are written in turn, so that a write costs one `fdatasync`.
//!
//! ```text
//! file = slot | slot                          both of the same length, a multiple of 4 KiB
//! slot = magic 8 | sequence u64 | length u64 | CRC-32 u32 | body | anything     (big endian)
//! ```
//! The checksum covers sequence, length of the slot, and body: a file that was cut has none.
//!
//! The sound slot with the higher sequence is the content. A write goes over the other slot: one
//! that does not come to its end leaves the content before it. A slot of zeros was never written.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::durable::replace_file;

/// Names the file and its version.
const MAGIC: &[u8; 8] = b"GLEDGER2";
const HEADER: usize = 28;
/// Length of a slot at first, in bytes: some hundred gangs.
const SMALLEST: usize = 64 << 10;
/// Largest file that is read, in bytes: far over every real one, far under memory.
const LIMIT: u64 = 2 << 30;

#[derive(Debug)]
pub enum SlotsError {
    Io(&'static str, io::Error),
    Damaged(String),
}

/// The open file.
#[derive(Debug)]
pub struct Slots {
    path: PathBuf,
    /// Absent until the first write.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Length of one slot, in bytes.
    length: usize,
    /// Which slot holds the content: 0 or 1.
    newest: usize,
    sequence: u64,
}

impl Slots {
    /// Opens the file and reads the content; `None` when there is no file yet.
    pub fn open(path: PathBuf) -> Result<(Slots, Option<Vec<u8>>), SlotsError> {
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok((Slots { path, open: None }, None));
            }
            Err(error) => return Err(SlotsError::Io("open", error)),
        };
        let bytes = read(&file)?;
        let damaged = |reason: &str| SlotsError::Damaged(reason.to_owned());
        let (first, second) = bytes.split_at(bytes.len() / 2);
        if first.len() != second.len() || first.is_empty() || !first.len().is_multiple_of(4096) {
            return Err(SlotsError::Damaged(format!("{} bytes are not two slots", bytes.len())));
        }
        let (newest, (sequence, body)) = match (parse(first), parse(second)) {
            (Ok(a), Ok(b)) if a.0 == b.0 => return Err(damaged("both slots claim to be newer")),
            (Ok(a), Ok(b)) if a.0 > b.0 => (0, a),
            (_, Ok(b)) => (1, b),
            (Ok(a), Err(_)) => (0, a),
            (Err(one), Err(other)) => {
                return Err(SlotsError::Damaged(format!("slot 1 {one}; slot 2 {other}")));
            }
        };
        let open = Open { file, length: first.len(), newest, sequence };
        Ok((Slots { path, open: Some(open) }, Some(body.to_vec())))
    }

    /// Makes `body` the content. When it fails, the content before it stays. Blocks for the disk.
    pub fn write(&mut self, body: &[u8]) -> Result<(), SlotsError> {
        match &mut self.open {
            Some(open) if HEADER + body.len() <= open.length => {
                open.write(body).map_err(|error| SlotsError::Io("write", error))
            }
            _ => self.replace(body).map_err(|error| SlotsError::Io("replace", error)),
        }
    }

    /// Writes a new file with room for twice as much.
    fn replace(&mut self, body: &[u8]) -> io::Result<()> {
        let length = (2 * (HEADER + body.len())).next_power_of_two().max(SMALLEST);
        let sequence = self.open.as_ref().map_or(0, |open| open.sequence) + 1;
        let header = header(sequence, length, body);
        // Zeros rather than a hole: the blocks are there before a write needs them.
        let rest = vec![0; 2 * length - HEADER - body.len()];
        replace_file(&self.path, &[&header, body, &rest])?;
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        self.open = Some(Open { file, length, newest: 0, sequence });
        Ok(())
    }
}

impl Open {
    fn write(&mut self, body: &[u8]) -> io::Result<()> {
        let (slot, sequence) = (1 - self.newest, self.sequence + 1);
        let bytes = [header(sequence, self.length, body).as_slice(), body].concat();
        self.file.write_all_at(&bytes, (slot * self.length) as u64)?;
        self.file.sync_data()?;
        (self.newest, self.sequence) = (slot, sequence);
        Ok(())
    }
}

fn read(file: &File) -> Result<Vec<u8>, SlotsError> {
    let length = file.metadata().map_err(|error| SlotsError::Io("read", error))?.len();
    if length > LIMIT {
        return Err(SlotsError::Damaged(format!("{length} bytes are too many")));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| SlotsError::Io("read", error))?;
    Ok(bytes)
}

fn header(sequence: u64, slot: usize, body: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (magic, rest) = header.split_at_mut(8);
    magic.copy_from_slice(MAGIC);
    let (number, rest) = rest.split_at_mut(8);
    number.copy_from_slice(&sequence.to_be_bytes());
    let (length, checksum) = rest.split_at_mut(8);
    length.copy_from_slice(&(body.len() as u64).to_be_bytes());
    checksum.copy_from_slice(&crc(sequence, slot, body).to_be_bytes());
    header
}

fn crc(sequence: u64, slot: usize, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_be_bytes());
    hasher.update(&(slot as u64).to_be_bytes());
    hasher.update(body);
    hasher.finalize()
}

fn parse(slot: &[u8]) -> Result<(u64, &[u8]), &'static str> {
    let short = "is too short";
    let (magic, rest) = slot.split_first_chunk::<8>().ok_or(short)?;
    let (sequence, rest) = rest.split_first_chunk::<8>().ok_or(short)?;
    let (length, rest) = rest.split_first_chunk::<8>().ok_or(short)?;
    let (checksum, rest) = rest.split_first_chunk::<4>().ok_or(short)?;
    if magic == &[0; 8] {
        return Err("is empty");
    }
    if magic != MAGIC {
        return Err("does not begin as one of this version does");
    }
    let length = usize::try_from(u64::from_be_bytes(*length)).map_err(|_| "has a wrong length")?;
    let body = rest.get(..length).ok_or("has a wrong length")?;
    let sequence = u64::from_be_bytes(*sequence);
    if u32::from_be_bytes(*checksum) != crc(sequence, slot.len(), body) {
        return Err("has a wrong checksum");
    }
    Ok((sequence, body))
}

/// For tests that damage the file: where the slot that was written last begins.
#[cfg(test)]
pub fn newest(path: &std::path::Path) -> (usize, usize) {
    match Slots::open(path.to_owned()) {
        Ok((Slots { open: Some(open), .. }, _)) => (open.newest, open.length),
        other => panic!("{other:?}"),
    }
}
