//! What the coordinator's store reads: records of every table, and whole copies.

use gangline_coordinator::store::backup::{self, Header, Reader, Writer};
use gangline_coordinator::store::{Counts, STORE_VERSION, record};
use ring::digest;

use super::{Memory, Target, Verdict, again};
use crate::records::{self, Golden, Value};

/// Layout and checksum come before the body.
const HEAD: usize = 5;
/// The codec lets a record claim 16 MiB, whatever there is of it; a list reserves a MiB before its first
/// element, and lists lie in each other; a job's spec is parsed.
const RECORD: Memory = Memory { fixed: (16 << 20) + (4 << 20), per_byte: 1024 };

pub fn targets() -> anyhow::Result<Vec<Target>> {
    let goldens = records::all();
    let mut targets = vec![copies(&goldens)?];
    // One target for each table, from all of its goldens.
    let mut begun: Vec<(&'static str, Vec<Golden>)> = Vec::new();
    for golden in goldens {
        let table = match &golden.value {
            Value::Row(table, _) => table,
            Value::Meta(..) => "meta",
            Value::Audit(_) => "audit",
            Value::Notice(_) => "notices",
            Value::Spent(_) => "spent",
            Value::Vacancy(_) => "vacancy",
        };
        match begun.iter_mut().find(|(name, _)| *name == table) {
            Some((_, of_table)) => of_table.push(golden),
            None => begun.push((table, vec![golden])),
        }
    }
    targets.extend(begun.into_iter().map(|(table, goldens)| table_target(table, goldens)));
    Ok(targets)
}

/// Inputs are the layout and the body; the checksum between them is made right.
fn table_target(table: &'static str, goldens: Vec<Golden>) -> Target {
    let without_checksum = |golden: &Golden| {
        let mut stored = golden.stored();
        stored.drain(1..HEAD);
        stored
    };
    let seeds = goldens.iter().map(without_checksum).collect();
    Target {
        name: table,
        seeds,
        words: &[
            b"\xfd\0\0\0\0\0\0\0\x80",
            b"\xfc\xff\xff\xff\x7f",
            b"\xfb\xff\xff",
            b"\0",
            b"\x01",
        ],
        limit: 32 << 10,
        memory: RECORD,
        feed: Box::new(move |input| {
            let stored = sealed(input);
            let Some(like) = goldens.first() else { return Verdict::Refused };
            if table == "meta" {
                // Read of stores of every layout, before anything else is.
                let _ = record::decode_layout(&stored);
            }
            match like.value.decode_like(&stored) {
                Err(_) => Verdict::Refused,
                Ok(value) => again(&value, like.value.decode_like(&value.encode())),
            }
        }),
    }
}

fn sealed(input: &[u8]) -> Vec<u8> {
    let (layout, body) = input.split_at(input.len().min(1));
    [layout, &crc32fast::hash(body).to_le_bytes(), body].concat()
}

// ---------------------------------------------------------------- copies

const MAGIC: usize = 8;
const END: u8 = 3;

/// Checksums of the records, and the hash at the end, are made right.
fn copies(goldens: &[Golden]) -> anyhow::Result<Target> {
    let rows: Vec<(&str, Vec<u8>)> = goldens
        .iter()
        .filter_map(|golden| match &golden.value {
            Value::Row(table, _) => Some((*table, golden.stored())),
            Value::Meta(..)
            | Value::Audit(_)
            | Value::Notice(_)
            | Value::Spent(_)
            | Value::Vacancy(_) => None,
        })
        .collect();
    let mut counts = Counts::new();
    for (table, _) in &rows {
        *counts.entry((*table).to_owned()).or_default() += 1;
    }
    let header = Header {
        store_version: STORE_VERSION,
        written_by: "0.1".to_owned(),
        era: 1,
        cluster: "c".to_owned(),
        wall_ms: 5,
        rows: counts,
    };
    let mut copy = Vec::new();
    let mut writer = Writer::begin(&mut copy, header.clone())?;
    for (table, stored) in &rows {
        writer.row(table, "key", stored)?;
    }
    writer.end()?;
    let mut empty = Vec::new();
    Writer::begin(&mut empty, Header { rows: Counts::new(), ..header })?.end()?;
    Ok(Target {
        name: "copy of a store",
        seeds: vec![copy, empty],
        words: &[
            b"\x02\x04\0\0\0jobs",
            b"\xff\xff\xff\xff",
            b"\x03\0\0\0\0\0\0\0\0",
            b"\"rows\":{",
        ],
        limit: 64 << 10,
        memory: RECORD,
        feed: Box::new(|input| {
            let copy = resealed(input);
            let _ = backup::verify(input);
            let _ = backup::verify(copy.as_slice());
            let Ok(mut reader) = Reader::begin(copy.as_slice()) else { return Verdict::Refused };
            let mut rows = Vec::new();
            loop {
                match reader.next_row() {
                    Ok(Some(row)) => rows.push(row),
                    Ok(None) => break,
                    Err(_) => return Verdict::Refused,
                }
            }
            let header = reader.header().clone();
            again(&(&header, &rows), written_again(&header, &rows).as_ref().map(|(h, r)| (h, r)))
        }),
    })
}

type Copy = (Header, Vec<backup::Row>);

fn written_again(header: &Header, rows: &[backup::Row]) -> Result<Copy, String> {
    let mut copy = Vec::new();
    let text = |error: backup::BackupError| error.to_string();
    let mut writer = Writer::begin(&mut copy, header.clone()).map_err(text)?;
    for row in rows {
        writer.row(&row.table, &row.key, &row.value).map_err(text)?;
    }
    writer.end().map_err(text)?;
    let mut reader = Reader::begin(copy.as_slice()).map_err(text)?;
    let mut back = Vec::new();
    while let Some(row) = reader.next_row().map_err(text)? {
        back.push(row);
    }
    Ok((reader.header().clone(), back))
}

/// The copy with right checksums, as far as its lengths can be followed.
fn resealed(input: &[u8]) -> Vec<u8> {
    let mut copy = input.to_vec();
    let mut at = MAGIC;
    loop {
        let length = copy.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied();
        let Some(length) = length.map(|length| u32::from_le_bytes(length) as usize) else { break };
        let body = at + 8..(at + 8).saturating_add(length);
        if copy.get(body.clone()).is_none() {
            break;
        }
        let hash = digest::digest(&digest::SHA256, copy.get(..at).unwrap_or_default());
        if let Some([END, _, _, _, _, _, _, _, _, end @ ..]) = copy.get_mut(body.clone()) {
            end.iter_mut().zip(hash.as_ref()).for_each(|(byte, right)| *byte = *right);
        }
        let checksum = crc32fast::hash(copy.get(body.clone()).unwrap_or_default()).to_le_bytes();
        if let Some(place) = copy.get_mut(at + 4..at + 8) {
            place.copy_from_slice(&checksum);
        }
        at = body.end;
    }
    copy
}
