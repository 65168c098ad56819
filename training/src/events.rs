//! TensorBoard's event files (`events.out.tfevents.*`), for their scalars.
//!
//! ```text
//! record:  length u64, check of the length u32, bytes, check of the bytes u32    (little-endian)
//! check:   CRC-32C, rotated right by 15 bits, plus 0xa282ead8
//! bytes:   protobuf  Event { 2: step, 5: Summary { 1: Value { 1: tag, 2: simple_value, 8: tensor } } }
//! ```
//!
//! A scalar is a `simple_value`, or a tensor of exactly one number; everything else is passed over.

use crate::protobuf::{Field, Fields};
use crate::reading::{MAX_VALUES, Reading, Source, name_of};

/// Longest record that is read; images and graphs are longer, and passed over.
pub const MAX_RECORD_BYTES: u64 = 1 << 20;
const HEAD: usize = 12;
const TAIL: usize = 4;

/// How far the records of some bytes were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scanned {
    /// Up to here; what follows is the beginning of a record, whose rest is yet to come.
    pub used: u64,
    /// That record is so long, and is not to be read.
    pub long: Option<u64>,
    /// It is no record: nothing more of the file can be read.
    pub is_damaged: bool,
}

/// Calls `each` for the scalars of every record in `bytes`, which begin at the beginning of one.
pub fn scan(bytes: &[u8], mut each: impl FnMut(Reading)) -> Scanned {
    let mut scanned = Scanned::default();
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_at_checked(HEAD) {
        let Some(length) = length_of(head) else {
            scanned.is_damaged = true;
            break;
        };
        let whole = length.saturating_add((HEAD + TAIL) as u64);
        if length > MAX_RECORD_BYTES {
            scanned.long = Some(whole);
            break;
        }
        // It fits: there are no more than MAX_RECORD_BYTES.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((body, after)) = after.split_at_checked(length) else { break };
        let Some((check, after)) = after.split_at_checked(TAIL) else { break };
        if check != masked(crc32c(body)).to_le_bytes() {
            scanned.is_damaged = true;
            break;
        }
        if let Some(reading) = event(body) {
            each(reading);
        }
        scanned.used = scanned.used.saturating_add(whole);
        rest = after;
    }
    scanned
}

fn length_of(head: &[u8]) -> Option<u64> {
    let (length, check) = head.split_at_checked(8)?;
    (check == masked(crc32c(length)).to_le_bytes()).then_some(())?;
    Some(u64::from_le_bytes(length.try_into().ok()?))
}

fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Of each byte, the remainder of Castagnoli's polynomial, bits reversed.
static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = n as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        // Not a place that could be missed: `n` is below the length.
        #[allow(clippy::indexing_slicing)]
        {
            table[n] = crc;
        }
        n += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        let place = usize::from(crc.to_le_bytes()[0] ^ byte);
        TABLE.get(place).copied().unwrap_or(0) ^ (crc >> 8)
    });
    !crc
}

/// The scalars of an event; `None` when it has none.
fn event(bytes: &[u8]) -> Option<Reading> {
    // What is zero is not written.
    let (mut step, mut values) = (0, Vec::new());
    for field in Fields(bytes) {
        match field {
            (2, Field::Number(number)) => step = number,
            (5, Field::Bytes(summary)) => {
                for field in Fields(summary) {
                    if let (1, Field::Bytes(value)) = field
                        && values.len() < MAX_VALUES
                    {
                        values.extend(value_of(value));
                    }
                }
            }
            _ => {}
        }
    }
    // A negative step is one that nobody has counted.
    let step = Some(step).filter(|step| i64::try_from(*step).is_ok());
    let has_some = !values.is_empty() && step.is_some();
    has_some.then_some(Reading { source: Source::Record, step, total: None, values })
}

fn value_of(bytes: &[u8]) -> Option<(String, f64)> {
    let (mut tag, mut value) = (None, None);
    for field in Fields(bytes) {
        match field {
            (1, Field::Bytes(text)) => tag = std::str::from_utf8(text).ok(),
            (2, Field::Fixed32(number)) => value = Some(float(number)),
            (8, Field::Bytes(bytes)) => value = tensor(bytes),
            _ => {}
        }
    }
    Some((name_of(tag?)?, value?))
}

fn float(bytes: [u8; 4]) -> f64 {
    f64::from(f32::from_le_bytes(bytes))
}

/// The number of a tensor that has exactly one.
fn tensor(bytes: &[u8]) -> Option<f64> {
    let (mut kind, mut numbers, mut content) = (0, Vec::new(), None);
    for field in Fields(bytes) {
        match field {
            (1, Field::Number(number)) => kind = number,
            (4, Field::Bytes(bytes)) => content = Some(bytes),
            (5, Field::Fixed32(number)) => numbers.push(float(number)),
            (6, Field::Fixed64(number)) => numbers.push(f64::from_le_bytes(number)),
            // The cast gives the sign back: negative numbers are written as large ones.
            (7 | 10, Field::Number(number)) => numbers.push(number as i64 as f64),
            (5, Field::Bytes(packed)) => numbers.push(float(packed.try_into().ok()?)),
            (6, Field::Bytes(packed)) => numbers.push(f64::from_le_bytes(packed.try_into().ok()?)),
            (7 | 10, Field::Bytes(packed)) => {
                let mut packed = Fields(packed);
                numbers.push(packed.number()? as i64 as f64);
                packed.is_empty().then_some(())?;
            }
            _ => {}
        }
        if numbers.len() > 1 {
            return None;
        }
    }
    const FLOAT: u64 = 1;
    const DOUBLE: u64 = 2;
    const INT32: u64 = 3;
    const INT64: u64 = 9;
    match (kind, content.filter(|content| !content.is_empty())) {
        (FLOAT | DOUBLE | INT32 | INT64, None) => numbers.first().copied(),
        (FLOAT, Some(content)) => Some(float(content.try_into().ok()?)),
        (DOUBLE, Some(content)) => Some(f64::from_le_bytes(content.try_into().ok()?)),
        (INT32, Some(content)) => Some(f64::from(i32::from_le_bytes(content.try_into().ok()?))),
        (INT64, Some(content)) => Some(i64::from_le_bytes(content.try_into().ok()?) as f64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::written::{bytes_field, varint};
    use proptest::prelude::*;

    fn number_field(number: u64, value: u64) -> Vec<u8> {
        [varint(number << 3), varint(value)].concat()
    }

    fn simple(tag: &str, value: f32) -> Vec<u8> {
        [bytes_field(1, tag.as_bytes()), vec![2 << 3 | 5], value.to_le_bytes().to_vec()].concat()
    }

    fn with_tensor(tag: &str, tensor: &[Vec<u8>]) -> Vec<u8> {
        [bytes_field(1, tag.as_bytes()), bytes_field(8, &tensor.concat())].concat()
    }

    fn event_of(step: u64, values: &[Vec<u8>]) -> Vec<u8> {
        let summary: Vec<u8> = values.iter().flat_map(|value| bytes_field(1, value)).collect();
        let wall = [vec![1 << 3 | 1], 1.5e9_f64.to_le_bytes().to_vec()].concat();
        let step = if step == 0 { Vec::new() } else { number_field(2, step) };
        [wall, step, bytes_field(5, &summary)].concat()
    }

    fn record(body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u64).to_le_bytes();
        [
            &length[..],
            &masked(crc32c(&length)).to_le_bytes(),
            body,
            &masked(crc32c(body)).to_le_bytes(),
        ]
        .concat()
    }

    /// A step and its values.
    type Found = (u64, Vec<(String, f64)>);

    fn read(bytes: &[u8]) -> (Vec<Found>, Scanned) {
        let mut found = Vec::new();
        let scanned = scan(bytes, |reading| found.push((reading.step.unwrap(), reading.values)));
        (found, scanned)
    }

    fn one(value: Vec<u8>) -> Option<f64> {
        let (found, _) = read(&record(&event_of(7, &[value])));
        found.first().map(|(_, values)| values[0].1)
    }

    #[test]
    fn the_check_is_castagnolis() {
        // From RFC 3720, and from the first record of every file.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(crc32c(b"")), 0xa282_ead8);
    }

    #[test]
    fn scalars_of_both_forms() {
        let values = [simple("loss", 0.5), simple("val/acc", f32::NAN)];
        let file = [record(&event_of(0, &values[..1])), record(&event_of(3, &values))].concat();
        let (found, scanned) = read(&file);
        assert_eq!(found[0], (0, vec![("loss".to_owned(), 0.5)]));
        assert_eq!((found[1].0, found[1].1[0].1), (3, 0.5));
        assert!(found[1].1[1].1.is_nan());
        assert_eq!(scanned, Scanned { used: file.len() as u64, ..Scanned::default() });

        let tensor = |fields: &[Vec<u8>]| one(with_tensor("loss", fields));
        let kind = |kind| number_field(1, kind);
        let shape = bytes_field(2, b"");
        assert_eq!(tensor(&[kind(1), shape, bytes_field(4, &0.25_f32.to_le_bytes())]), Some(0.25));
        assert_eq!(tensor(&[kind(1), bytes_field(5, &0.25_f32.to_le_bytes())]), Some(0.25));
        assert_eq!(tensor(&[kind(2), bytes_field(6, &0.1_f64.to_le_bytes())]), Some(0.1));
        assert_eq!(tensor(&[kind(9), bytes_field(10, &varint(-4_i64 as u64))]), Some(-4.0));
        assert_eq!(tensor(&[kind(3), number_field(7, 12)]), Some(12.0));
        // A text, a histogram, none at all.
        assert_eq!(tensor(&[kind(7), bytes_field(8, b"words")]), None);
        assert_eq!(tensor(&[kind(1), bytes_field(4, &[0; 24])]), None);
        assert_eq!(tensor(&[kind(1), bytes_field(5, &[0; 8])]), None);
        assert_eq!(tensor(&[kind(1)]), None);
        assert_eq!(one(bytes_field(1, b"loss")), None);
        // Names are shown: they are plain, or the value is left out.
        assert_eq!(one(simple("\u{1b}[2J", 1.0)), None);
        assert_eq!(one(simple(&"x".repeat(200), 1.0)), None);
        let negative = record(&event_of(-1_i64 as u64, &[simple("loss", 0.5)]));
        assert!(read(&negative).0.is_empty());
    }

    #[test]
    fn what_is_still_being_written_waits() {
        let first = record(&event_of(1, &[simple("loss", 0.5)]));
        let file = [first.clone(), record(&event_of(2, &[simple("loss", 0.4)]))].concat();
        for end in 0..file.len() {
            let (found, scanned) = read(&file[..end]);
            let whole = if end < first.len() { 0 } else { first.len() };
            assert_eq!(
                (found.len(), scanned.used),
                (usize::from(whole > 0), whole as u64),
                "{end}"
            );
            assert!(!scanned.is_damaged && scanned.long.is_none());
        }
    }

    #[test]
    fn long_records_are_passed_over_and_damaged_ones_end_the_file() {
        let first = record(&event_of(1, &[simple("loss", 0.5)]));
        let image = record(&vec![0; MAX_RECORD_BYTES as usize + 1]);
        let file = [&first[..], &image[..100]].concat();
        let (found, scanned) = read(&file);
        assert_eq!((found.len(), scanned.used), (1, first.len() as u64));
        assert_eq!(scanned.long, Some(image.len() as u64));
        let huge = u64::MAX.to_le_bytes();
        let huge = [&huge[..], &masked(crc32c(&huge)).to_le_bytes()].concat();
        assert_eq!(read(&huge).1.long, Some(u64::MAX));
        for at in 0..first.len() {
            let mut damaged = first.clone();
            damaged[at] ^= 1;
            let (found, scanned) = read(&damaged);
            assert!(found.is_empty() && scanned.is_damaged && scanned.used == 0, "{at}");
        }
    }

    #[test]
    fn many_values_are_not_all_taken() {
        let values: Vec<Vec<u8>> = (0..2000).map(|n| simple(&format!("m{n}"), 0.5)).collect();
        let (found, _) = read(&record(&event_of(1, &values)));
        assert_eq!(found[0].1.len(), MAX_VALUES);
    }

    proptest! {
        /// No bytes are too bad, in a record that checks and in none.
        #[test]
        fn any_bytes(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bare = scan(&body, |_| {});
            prop_assert!(bare.used <= body.len() as u64);
            let whole = record(&body);
            prop_assert_eq!(scan(&whole, |_| {}).used, whole.len() as u64);
            let event = record(&bytes_field(5, &bytes_field(1, &body)));
            prop_assert_eq!(scan(&event, |_| {}).used, event.len() as u64);
            let tensor = record(&event_of(1, &[with_tensor("loss", &[body])]));
            prop_assert_eq!(scan(&tensor, |_| {}).used, tensor.len() as u64);
        }
    }
}
