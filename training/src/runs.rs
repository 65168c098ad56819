//! W&B's transaction logs (`run-ID.wandb`), for the numbers of their history.
//!
//! ```text
//! file:    ":W&B", 0xbee1 u16, version u8; then blocks of 32 KiB, of which the head is the beginning
//! block:   chunks; what is left of it, when no head of a chunk fits any more, is filled with zeros
//! chunk:   CRC-32 of the kind and the bytes u32, length u16, kind u8 (1: whole record, 2: first, 3: middle,
//!          4: last chunk of one), bytes                                           (little-endian)
//! record:  protobuf  Record { 2: history { 1: item { 1: key, 2: nested key, 16: JSON }, 2: step { 1: number } } }
//! ```
//!
//! What W&B adds itself (`_step`, `_runtime`) and the descriptions of its media are passed over.

use std::collections::BTreeSet;

use crc32fast::Hasher;

use crate::events::{MAX_RECORD_BYTES, Scanned};
use crate::protobuf::{Field, Fields};
use crate::reading::{MAX_VALUES, Reading, Source, name_of};

const BLOCK: u64 = 32 << 10;
const MAGIC: &[u8] = b":W&B\xe1\xbe";
/// Of the file, and of a chunk.
const HEAD: usize = 7;
/// Between the parts of a name.
const NESTED: &str = ".";
/// What a value that is a picture, a table or the like has, beside descriptions of it.
const MEDIA: &str = "_type";

/// Calls `each` for the numbers of every record of the history in `bytes`, which begin at `at` of the
/// file: where it begins, or where an earlier scan has stopped.
pub fn scan_run(bytes: &[u8], at: u64, mut each: impl FnMut(Reading)) -> Scanned {
    let mut scanned = Scanned::default();
    let mut chunks = Chunks { rest: bytes, at, is_damaged: false };
    if at == 0 {
        let Some(head) = chunks.take(HEAD) else { return scanned };
        if !head.starts_with(MAGIC) {
            return Scanned { is_damaged: true, ..scanned };
        }
        scanned.used = HEAD as u64;
    }
    let mut record: Option<Vec<u8>> = None;
    while let Some((kind, body)) = chunks.next() {
        let read = chunks.at - at;
        match (kind, &mut record) {
            (Kind::Whole, _) => each_of(body, &mut each),
            (Kind::First, _) => record = Some(body.to_vec()),
            (Kind::Middle | Kind::Last, Some(record)) => record.extend_from_slice(body),
            // The rest of one that was passed over.
            (Kind::Middle | Kind::Last, None) => {}
        }
        if kind == Kind::Last
            && let Some(record) = record.take()
        {
            each_of(&record, &mut each);
        }
        match &record {
            None => scanned.used = read,
            Some(record) if record.len() as u64 > MAX_RECORD_BYTES => {
                scanned.long = Some(read - scanned.used);
                return scanned;
            }
            Some(_) => {}
        }
    }
    scanned.is_damaged = chunks.is_damaged;
    scanned
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    First,
    Middle,
    Last,
}

/// The chunks of some bytes, up to one that is not whole yet or is none.
struct Chunks<'a> {
    rest: &'a [u8],
    at: u64,
    is_damaged: bool,
}

impl<'a> Chunks<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        (self.rest, self.at) = (rest, self.at.saturating_add(count as u64));
        Some(taken)
    }

    fn next(&mut self) -> Option<(Kind, &'a [u8])> {
        let left = BLOCK - self.at % BLOCK;
        if left < HEAD as u64 {
            self.take(usize::try_from(left).ok()?)?;
        }
        let before = (self.rest, self.at);
        let found = self.chunk();
        if found.is_none() {
            (self.rest, self.at) = before;
        }
        found
    }

    fn chunk(&mut self) -> Option<(Kind, &'a [u8])> {
        let head = self.take(HEAD)?;
        let (check, rest) = head.split_first_chunk::<4>()?;
        let (length, kind) = rest.split_first_chunk::<2>()?;
        let body = self.take(usize::from(u16::from_le_bytes(*length)))?;
        let mut sum = Hasher::new();
        sum.update(kind);
        sum.update(body);
        let known = match kind {
            [1] => Some(Kind::Whole),
            [2] => Some(Kind::First),
            [3] => Some(Kind::Middle),
            [4] => Some(Kind::Last),
            _ => None,
        };
        let kind = known.filter(|_| sum.finalize() == u32::from_le_bytes(*check));
        self.is_damaged = kind.is_none();
        Some((kind?, body))
    }
}

fn each_of(record: &[u8], each: &mut impl FnMut(Reading)) {
    for field in Fields(record) {
        if let (2, Field::Bytes(history)) = field
            && let Some(reading) = history_of(history)
        {
            each(reading);
        }
    }
}

/// The numbers of one step; `None` when there are none.
fn history_of(bytes: &[u8]) -> Option<Reading> {
    // What is zero is not written.
    let (mut step, mut items) = (0, Vec::new());
    for field in Fields(bytes) {
        match field {
            (1, Field::Bytes(item)) if items.len() < MAX_VALUES => items.extend(item_of(item)),
            (2, Field::Bytes(message)) => {
                for field in Fields(message) {
                    if let (1, Field::Number(number)) = field {
                        step = number;
                    }
                }
            }
            _ => {}
        }
    }
    let is_media = |item: &&Item<'_>| item.path.len() > 1 && item.path.last() == Some(&MEDIA);
    let media: BTreeSet<&str> =
        items.iter().filter(is_media).filter_map(|item| item.path.first().copied()).collect();
    let values = items.iter().filter_map(|item| {
        let first = item.path.first().filter(|first| !media.contains(*first))?;
        let name = name_of(&item.path.join(NESTED)).filter(|_| !first.starts_with('_'))?;
        Some((name, number_of(item.json)?))
    });
    let values: Vec<(String, f64)> = values.collect();
    // A negative step is one that nobody has counted.
    let step = Some(step).filter(|step| i64::try_from(*step).is_ok());
    let has_some = !values.is_empty() && step.is_some();
    has_some.then_some(Reading { source: Source::Record, step, total: None, values })
}

struct Item<'a> {
    path: Vec<&'a str>,
    json: &'a str,
}

fn item_of(bytes: &[u8]) -> Option<Item<'_>> {
    let (mut path, mut json) = (Vec::new(), None);
    for field in Fields(bytes) {
        match field {
            (1 | 2, Field::Bytes(name)) => path.push(std::str::from_utf8(name).ok()?),
            (16, Field::Bytes(text)) => json = std::str::from_utf8(text).ok(),
            _ => {}
        }
    }
    Some(Item { path, json: json? })
}

/// Python's JSON has numbers that JSON has not.
fn number_of(json: &str) -> Option<f64> {
    match json {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ if json.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => json.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::written::bytes_field;
    use proptest::prelude::*;

    /// What wandb 0.31.0 writes offline, of it the head and the history: step 1 has `loss` 0.5; step 2 has 0.25, `actor/acc` that is not
    /// a number, a text and `nested.a` 3; step 3 has 0.125 and a table.
    const RUN: &[u8] = include_bytes!("runs/run-sample.wandb");

    /// A step and its values.
    type Found = (u64, Vec<(String, f64)>);

    fn read_from(bytes: &[u8], at: u64) -> (Vec<Found>, Scanned) {
        let mut found = Vec::new();
        let keep = |reading: Reading| found.push((reading.step.unwrap(), reading.values));
        let scanned = scan_run(bytes, at, keep);
        (found, scanned)
    }

    /// A record of one value of step 7, with a text of so many bytes beside it.
    fn record(padding: usize) -> Vec<u8> {
        let value = [bytes_field(2, b"loss"), bytes_field(16, b"0.5")].concat();
        let text = [bytes_field(2, b"text"), bytes_field(16, &vec![b'x'; padding])].concat();
        let history = [bytes_field(1, &value), bytes_field(1, &text), bytes_field(2, &[8, 7])];
        bytes_field(2, &history.concat())
    }

    /// A file of these records.
    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mut out = [MAGIC, &[0]].concat();
        for record in records {
            let (mut rest, mut is_first) = (&record[..], true);
            loop {
                let left = BLOCK as usize - out.len() % BLOCK as usize;
                if left < HEAD {
                    out.extend(vec![0; left]);
                    continue;
                }
                let (body, after) = rest.split_at(rest.len().min(left - HEAD));
                let kind = match (is_first, after.is_empty()) {
                    (true, true) => 1,
                    (true, false) => 2,
                    (false, false) => 3,
                    (false, true) => 4,
                };
                let mut sum = Hasher::new();
                sum.update(&[kind]);
                sum.update(body);
                out.extend(sum.finalize().to_le_bytes());
                out.extend((body.len() as u16).to_le_bytes());
                out.push(kind);
                out.extend(body);
                (rest, is_first) = (after, false);
                if rest.is_empty() {
                    break;
                }
            }
        }
        out
    }

    #[test]
    fn numbers_of_the_history() {
        let (found, scanned) = read_from(RUN, 0);
        let end = Scanned { used: RUN.len() as u64, ..Scanned::default() };
        assert_eq!((found.len(), scanned), (3, end));
        assert_eq!(found[0], (1, vec![("loss".to_owned(), 0.5)]));
        let second: Vec<&str> = found[1].1.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((found[1].0, second), (2, vec!["nested.a", "loss", "actor/acc"]));
        assert!(found[1].1[2].1.is_nan());
        assert_eq!(found[2], (3, vec![("loss".to_owned(), 0.125)]), "no rows of tables");
    }

    #[test]
    fn what_is_still_being_written_waits() {
        for end in 0..RUN.len() {
            let (first, scanned) = read_from(&RUN[..end], 0);
            assert!(!scanned.is_damaged && scanned.long.is_none(), "{end}");
            let (rest, _) = read_from(&RUN[scanned.used as usize..], scanned.used);
            assert_eq!(first.len() + rest.len(), 3, "{end}");
        }
    }

    #[test]
    fn records_go_over_blocks_and_long_ones_are_passed_over() {
        let sizes = [10, 32_600, 32_700, 32_740, 32_741, 32_742, 40_000, 200_000, 5];
        let records: Vec<Vec<u8>> = sizes.into_iter().map(record).collect();
        let whole = file(&records);
        let (found, scanned) = read_from(&whole, 0);
        assert_eq!((found.len(), scanned.used), (sizes.len(), whole.len() as u64));
        assert!(found.iter().all(|(step, values)| *step == 7 && values[0].1 == 0.5));

        let whole = file(&[record(5), record(3 << 20), record(6)]);
        let (mut at, mut count) = (0, 0);
        for _ in 0..10 {
            let window = &whole[at..whole.len().min(at + (2 << 20))];
            let (found, scanned) = read_from(window, at as u64);
            assert!(!scanned.is_damaged);
            count += found.len();
            at += (scanned.used + scanned.long.unwrap_or(0)) as usize;
        }
        assert_eq!((count, at), (2, whole.len()), "without the long one");
    }

    #[test]
    fn damaged_files_end() {
        let (_, scanned) = read_from(b"no log of runs", 0);
        assert!(scanned.is_damaged && scanned.used == 0);
        let mut damaged = RUN.to_vec();
        damaged[RUN.len() / 2] ^= 1;
        let (found, scanned) = read_from(&damaged, 0);
        assert!(scanned.is_damaged && found.len() < 3);
    }

    proptest! {
        /// No bytes are too bad, in a record that checks and in none.
        #[test]
        fn any_bytes(body in proptest::collection::vec(any::<u8>(), 0..300), at in 0_u64..70_000) {
            let used = scan_run(&body, at, |_| {}).used;
            prop_assert!(used <= body.len() as u64);
            for record in [body.clone(), bytes_field(2, &body), bytes_field(2, &bytes_field(1, &body))] {
                let whole = file(&[record]);
                prop_assert_eq!(scan_run(&whole, 0, |_| {}).used, whole.len() as u64);
            }
        }
    }
}
