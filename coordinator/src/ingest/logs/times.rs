//! When the bytes of a log file were read: `<file>.times` beside it.
//!
//! Records of fixed size, each with its own checksum, in the order of their offsets. They are written
//! after the bytes that they are of are on disk, and are not flushed: after a loss of power the index
//! may be behind or torn, which makes times older than they were, and nothing else. A record that does
//! not fit its checksum ends the index.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Offset, time, end of the time before, checksum.
const RECORD_BYTES: usize = 28;
/// A new record for so many bytes or milliseconds after the last one; rarer in a file that has many,
/// so that an index stays below some megabytes.
const STEPS: [(u64, Step); 3] = [
    (1 << 16, Step { bytes: 64 << 10, ms: 200 }),
    (1 << 17, Step { bytes: 1 << 20, ms: 10_000 }),
    (u64::MAX, Step { bytes: 64 << 20, ms: 600_000 }),
];
/// Nobody knows when the bytes before a record were read: the coordinator was started in between.
const UNSURE: u64 = u64::MAX;
/// Records at the end of an index that are looked at for the last whole one.
const MAX_TORN: u64 = 64;

#[derive(Debug, Clone, Copy)]
struct Step {
    bytes: u64,
    ms: u64,
}

fn step(records: u64) -> Step {
    let found = STEPS.iter().find(|(below, _)| records < *below);
    found.map_or(STEPS[2].1, |(_, step)| *step)
}

/// The bytes from `offset` to the next record were read from `ms` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    offset: u64,
    ms: u64,
    /// When the last bytes before `offset` were read, or [`UNSURE`].
    before_ms: u64,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let (fields, checksum) = bytes.split_at_mut(RECORD_BYTES - 4);
        for (field, value) in fields.chunks_exact_mut(8).zip([self.offset, self.ms, self.before_ms])
        {
            field.copy_from_slice(&value.to_le_bytes());
        }
        checksum.copy_from_slice(&crc32fast::hash(fields).to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let (fields, checksum) = bytes.split_at(RECORD_BYTES - 4);
        if crc32fast::hash(fields).to_le_bytes() != checksum {
            return None;
        }
        let (fields, _) = fields.as_chunks::<8>();
        let [offset, ms, before_ms] = fields else { return None };
        let number = u64::from_le_bytes;
        Some(Record { offset: number(*offset), ms: number(*ms), before_ms: number(*before_ms) })
    }
}

/// The index of a file, for reading. A file without one has no times.
#[derive(Debug, Default)]
pub struct Times {
    file: Option<File>,
    records: u64,
    /// The record that was found last, and where the next one begins.
    last: Option<(Record, u64)>,
}

impl Times {
    /// Opens the index at `path` of a file with `length` bytes.
    pub fn open(path: &Path, length: u64) -> Times {
        let Ok(file) = File::open(path) else { return Times::default() };
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let mut times =
            Times { file: Some(file), records: bytes / RECORD_BYTES as u64, last: None };
        let least = times.records.saturating_sub(MAX_TORN);
        let fits = |record: Record| record.offset <= length;
        while times.records > least && !times.record(times.records - 1).is_some_and(fits) {
            times.records -= 1;
        }
        if times.records == least && least > 0 {
            // Nothing of the end can be read: the rest is not believed either.
            return Times::default();
        }
        times
    }

    fn record(&self, index: u64) -> Option<Record> {
        if index >= self.records {
            return None;
        }
        let mut bytes = [0; RECORD_BYTES];
        let file = self.file.as_ref()?;
        file.read_exact_at(&mut bytes, index * RECORD_BYTES as u64).ok()?;
        Record::of(&bytes)
    }

    /// The first record for which `after` is true; those that cannot be read count as after.
    fn first_that(&self, after: impl Fn(&Record) -> bool) -> u64 {
        let (mut low, mut high) = (0, self.records);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.record(middle).is_none_or(|record| after(&record)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// When the byte at `offset` was read, in milliseconds since 1970; bytes before the first record
    /// have its time. `None` without an index.
    pub fn at(&mut self, offset: u64) -> Option<u64> {
        if let Some((record, next)) = self.last
            && (record.offset..next).contains(&offset)
        {
            return Some(record.ms);
        }
        let after = self.first_that(|record| record.offset > offset);
        let next = self.record(after).map_or(u64::MAX, |record| record.offset);
        let found = self.record(after.saturating_sub(1))?;
        if after > 0 {
            self.last = Some((found, next));
        }
        Some(found.ms)
    }

    /// When the bytes from `from` to `to` were read: offsets, the first of them `from`, and milliseconds
    /// since 1970. Of more than `most` records the last ones.
    pub fn between(&self, from: u64, to: u64, most: usize) -> Vec<(u64, u64)> {
        let end = self.first_that(|record| record.offset >= to);
        let begin = self.first_that(|record| record.offset > from).saturating_sub(1);
        let begin = begin.max(end.saturating_sub(most as u64));
        let records = (begin..end).filter_map(|index| self.record(index));
        records.map(|record| (record.offset.max(from), record.ms)).collect()
    }

    /// Where the first byte is that may have been read at `since_ms` or later, in a file with `length`
    /// bytes. Without an index everything may have been.
    pub fn since(&self, since_ms: u64, length: u64) -> u64 {
        if self.records == 0 {
            return 0;
        }
        let mut index = self.first_that(|record| record.ms >= since_ms);
        // The bytes of the record before may have come until then.
        let until = match self.record(index) {
            Some(next) => next.before_ms,
            None => match self.records.checked_sub(1).and_then(|last| self.record(last)) {
                Some(last) => last.ms.saturating_add(step(self.records).ms),
                None => UNSURE,
            },
        };
        if until >= since_ms {
            index = index.saturating_sub(1);
        }
        if index == 0 {
            return 0;
        }
        self.record(index).map_or(length, |record| record.offset.min(length))
    }

    /// The times of the first and the last record.
    pub fn ends(&self) -> Option<(u64, u64)> {
        Some((self.record(0)?.ms, self.record(self.records.checked_sub(1)?)?.ms))
    }
}

/// What is known of the end of an index that is being written.
#[derive(Debug, Clone, Copy)]
pub struct End {
    records: u64,
    last: Option<Record>,
    /// When the newest bytes were read, or [`UNSURE`].
    newest_ms: u64,
}

impl End {
    /// The end of the index at `path` of a file with `length` bytes.
    pub fn of(path: &Path, length: u64) -> End {
        let times = Times::open(path, length);
        let last = times.records.checked_sub(1).and_then(|index| times.record(index));
        let newest_ms = if length == 0 { 0 } else { UNSURE };
        End { records: times.records, last, newest_ms }
    }

    /// Takes note that the bytes from `offset` on were read at `ms`; the record to write, if one is
    /// due. Time never goes back within a file.
    pub fn note(&mut self, offset: u64, ms: u64) -> Option<Pending> {
        let sure = self.newest_ms != UNSURE;
        let newest = if sure { self.newest_ms } else { 0 };
        let ms = ms.max(newest).max(self.last.map_or(0, |last| last.ms));
        let before_ms = std::mem::replace(&mut self.newest_ms, ms);
        let step = step(self.records);
        let due = self.last.is_none_or(|last| {
            offset >= last.offset.saturating_add(step.bytes) || ms >= last.ms + step.ms
        });
        if !due && sure {
            return None;
        }
        let record = Record { offset, ms, before_ms };
        let index = self.records;
        self.records += 1;
        self.last = Some(record);
        Some(Pending { index, record })
    }
}

/// A record that is written when the bytes before and after it are on disk.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    index: u64,
    record: Record,
}

/// Writes records of one index.
///
/// # Errors
/// The disk refuses; the index is behind then.
pub fn write(path: &Path, pending: &[Pending]) -> io::Result<()> {
    let Some(first) = pending.first() else { return Ok(()) };
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let bytes: Vec<u8> = pending.iter().flat_map(|pending| pending.record.to_bytes()).collect();
    file.write_all_at(&bytes, first.index * RECORD_BYTES as u64)?;
    // What is behind it was not whole, or is of bytes that are not there.
    file.set_len((first.index + pending.len() as u64) * RECORD_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &Path, chunks: &[(u64, u64)], length: u64) -> Times {
        let mut end = End::of(path, 0);
        let pending: Vec<Pending> =
            chunks.iter().filter_map(|(offset, ms)| end.note(*offset, *ms)).collect();
        write(path, &pending).unwrap();
        Times::open(path, length)
    }

    #[test]
    fn bytes_have_the_time_of_their_record_and_since_finds_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.times");
        let chunks = [(0, 1000), (10, 1100), (20, 1200), (30, 5000), (100_000, 5001)];
        let mut times = written(&path, &chunks, 200_000);
        assert_eq!(times.records, 4, "the second one came too soon");
        for (offset, ms) in [(0, 1000), (15, 1000), (20, 1200), (29, 1200), (30, 5000)] {
            assert_eq!(times.at(offset), Some(ms), "{offset}");
        }
        assert_eq!(times.at(150_000), Some(5001));
        for (since, offset) in [
            (0, 0),
            (1000, 0),
            (1100, 0),
            (1101, 20),
            (1200, 20),
            (1201, 30),
            (5000, 30),
            (5001, 100_000),
            (5201, 100_000),
            (5202, 200_000),
        ] {
            assert_eq!(times.since(since, 200_000), offset, "{since}");
        }
        assert_eq!(times.ends(), Some((1000, 5001)));
    }

    #[test]
    fn an_index_that_is_torn_or_lies_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.times");
        written(&path, &[(0, 1000), (10, 2000), (20, 3000)], 30);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let mut times = Times::open(&path, 30);
            assert_eq!(times.records, (length / RECORD_BYTES) as u64);
            assert!(times.at(25).unwrap_or(3000) <= 3000);
        }
        // Of a file that lost its end.
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(Times::open(&path, 15).records, 2);
        for bad in [vec![0xff; 4000], vec![0; 4000], b"text".repeat(900)] {
            std::fs::write(&path, bad).unwrap();
            let mut times = Times::open(&path, 30);
            assert_eq!((times.at(3), times.since(9, 30), times.ends()), (None, 0, None));
        }
        // A bad record in the middle hides what is behind it, at most.
        let mut bytes = whole.clone();
        bytes[RECORD_BYTES + 3] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(Times::open(&path, 30).since(2500, 30) <= 20);
    }

    #[test]
    fn after_a_restart_the_bytes_before_may_be_of_any_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.times");
        written(&path, &[(0, 1000)], 10);
        let mut end = End::of(&path, 10);
        let pending = end.note(10, 9000).unwrap();
        write(&path, &[pending]).unwrap();
        let times = Times::open(&path, 20);
        assert_eq!(times.since(5000, 20), 0, "the first ten bytes may have come at 5000");
        assert_eq!(times.since(9001, 20), 10);
    }

    #[test]
    fn time_does_not_go_back_and_an_index_stays_small() {
        let directory = tempfile::tempdir().unwrap();
        let mut end = End::of(&directory.path().join("x.times"), 0);
        assert_eq!(end.note(0, 5000).map(|pending| pending.record.ms), Some(5000));
        assert_eq!(end.note(100_000, 10).map(|pending| pending.record.ms), Some(5000));
        for second in 0..1_000_000 {
            end.note(200_000 + second, 6000 + second * 1000);
        }
        assert!(end.records < 180_000, "{}", end.records);
    }
}
