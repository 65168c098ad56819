//! The ledger: the agent's durable copy of its desired state and of what it started.
//!
//! One file, replaced as a whole: a magic text, then length and CRC-32 of the body, then rows of
//! (tag, length, body). A ledger that does not read back exactly is never repaired and never
//! taken for an empty one: an agent that forgot what it started could start it twice.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, MemberKey};
use gangline_common::wire::{WireError, codec, v1};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::core::assignment::{MemberRow, Seen};
use crate::core::event::Durable;
use crate::durable::{private_directory, replace_file};
use crate::translate::{Assignments, core_refusal, gang_order, wire_order, wire_refusal};

/// Names the file and its version.
const MAGIC: &[u8; 8] = b"GLEDGER1";
/// Largest ledger that is read, in bytes: far over every real one, far under memory.
const LIMIT: u64 = 2 << 30;

/// The ledger cannot be used, or not be written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the ledger {} is damaged ({reason}), so it is unknown what runs on this node. \
         Restore the file; or make sure that no process here has GANGLINE_MARK in its \
         environment, and then move the file away",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error("cannot encode the ledger: {0}")]
    Encode(#[from] WireError),
    #[error("the assignment of gang {gang} epoch {epoch} is not at hand")]
    MissingAssignment { gang: GangId, epoch: Epoch },
}

/// The file; written by the driver only.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
}

/// What was in the file: empty on the first start.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub durable: Durable,
    pub assignments: Assignments,
}

impl Ledger {
    /// Opens the ledger below `state_dir` and reads it. A missing file is a first start.
    pub fn open(state_dir: &Path) -> Result<(Ledger, Content), LedgerError> {
        let directory = state_dir.join("ledger");
        private_directory(&directory).map_err(|source| LedgerError::Io {
            what: "create",
            path: directory.clone(),
            source,
        })?;
        let ledger = Ledger { path: directory.join("state") };
        let content = match ledger.read()? {
            None => Content::default(),
            Some(bytes) => parse(&bytes).map_err(|reason| ledger.damaged(reason))?,
        };
        Ok((ledger, content))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `durable` and the assignments that it needs durable. Blocks for the disk.
    pub fn write(&self, durable: &Durable, assignments: &Assignments) -> Result<(), LedgerError> {
        let body = encode(durable, assignments)?;
        let length = (body.len() as u64).to_be_bytes();
        let checksum = crc32fast::hash(&body).to_be_bytes();
        replace_file(&self.path, &[MAGIC, &length, &checksum, &body])
            .map_err(|source| self.io("write", source))
    }

    fn read(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() > LIMIT => {
                return Err(self.damaged(format!("{} bytes are too many", metadata.len())));
            }
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.io("read", source)),
        }
        fs::read(&self.path).map(Some).map_err(|source| self.io("read", source))
    }

    fn io(&self, what: &'static str, source: io::Error) -> LedgerError {
        LedgerError::Io { what, path: self.path.clone(), source }
    }

    fn damaged(&self, reason: String) -> LedgerError {
        LedgerError::Damaged { path: self.path.clone(), reason }
    }
}

// ---------------------------------------------------------------- rows

/// Row tags. A tag is never given to another row.
mod tag {
    pub const HELD: u8 = 1;
    pub const SEEN: u8 = 2;
    pub const MEMBER: u8 = 3;
    /// An order of the desired state, with its assignment.
    pub const ORDER: u8 = 4;
    /// An assignment that is no longer listed but still has members here.
    pub const ASSIGNMENT: u8 = 5;
}

#[derive(Serialize, Deserialize)]
struct SeenRecord {
    gang: GangId,
    epoch: Epoch,
    closed: bool,
    listed: Generation,
}

#[derive(Serialize, Deserialize)]
struct MemberRecord {
    key: MemberKey,
    gpus: Vec<GpuId>,
    grace_ms: u64,
    refused: Option<v1::Refusal>,
}

fn encode(durable: &Durable, assignments: &Assignments) -> Result<Vec<u8>, LedgerError> {
    let mut body = Vec::new();
    put(&mut body, tag::HELD, &durable.held)?;
    for (gang, seen) in &durable.seen {
        let Seen { epoch, closed, listed } = *seen;
        put(&mut body, tag::SEEN, &SeenRecord { gang: gang.clone(), epoch, closed, listed })?;
    }
    for order in durable.desired.values() {
        let wire =
            wire_order(order, assignments).ok_or_else(|| missing(&order.gang, order.epoch))?;
        put(&mut body, tag::ORDER, &wire)?;
    }
    let mut unlisted = None;
    for (key, row) in &durable.members {
        let record = MemberRecord {
            key: key.clone(),
            gpus: row.gpus.clone(),
            grace_ms: row.grace.as_millis() as u64,
            refused: row.refused.as_ref().map(wire_refusal),
        };
        put(&mut body, tag::MEMBER, &record)?;
        // Members are in order, so those of one incarnation follow each other.
        let incarnation = (key.gang.clone(), key.epoch);
        let listed = durable.desired.get(&key.gang).is_some_and(|order| {
            order.epoch == key.epoch && order.order != crate::core::assignment::Order::Stop
        });
        if !listed && row.refused.is_none() && unlisted.as_ref() != Some(&incarnation) {
            let assignment =
                assignments.get(&incarnation).ok_or_else(|| missing(&key.gang, key.epoch))?;
            let wire = v1::DesiredGang {
                gang: key.gang.clone(),
                epoch: key.epoch,
                order: v1::Order::Run(Box::new(v1::Assignment::clone(assignment))),
            };
            put(&mut body, tag::ASSIGNMENT, &wire)?;
            unlisted = Some(incarnation);
        }
    }
    Ok(body)
}

fn missing(gang: &GangId, epoch: Epoch) -> LedgerError {
    LedgerError::MissingAssignment { gang: gang.clone(), epoch }
}

fn put<T: Serialize>(body: &mut Vec<u8>, tag: u8, row: &T) -> Result<(), WireError> {
    let bytes = codec::encode("ledger row", row)?;
    body.push(tag);
    body.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    body.extend_from_slice(&bytes);
    Ok(())
}

fn parse(bytes: &[u8]) -> Result<Content, String> {
    let cut = || "it is cut off".to_owned();
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(cut)?;
    if magic != MAGIC {
        return Err("it does not begin as a ledger of this version does".to_owned());
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
    let (checksum, mut body) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let length = u64::from_be_bytes(*length);
    if length != body.len() as u64 {
        return Err(format!("its body has {} bytes instead of {length}", body.len()));
    }
    if u32::from_be_bytes(*checksum) != crc32fast::hash(body) {
        return Err("its checksum is wrong".to_owned());
    }
    let mut content = Content::default();
    while let Some((&tag, rest)) = body.split_first() {
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (row, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        take(&mut content, tag, row)?;
        body = rest;
    }
    Ok(content)
}

fn take(content: &mut Content, tag: u8, row: &[u8]) -> Result<(), String> {
    fn decode<T: DeserializeOwned>(row: &[u8]) -> Result<T, String> {
        codec::decode("ledger row", row).map_err(|e| e.to_string())
    }
    let durable = &mut content.durable;
    match tag {
        tag::HELD => durable.held = decode(row)?,
        tag::SEEN => {
            let SeenRecord { gang, epoch, closed, listed } = decode(row)?;
            durable.seen.insert(gang, Seen { epoch, closed, listed });
        }
        tag::MEMBER => {
            let record: MemberRecord = decode(row)?;
            let row = MemberRow {
                gpus: record.gpus,
                grace: Duration::from_millis(record.grace_ms),
                refused: record.refused.as_ref().map(core_refusal),
            };
            durable.members.insert(record.key, row);
        }
        tag::ORDER | tag::ASSIGNMENT => {
            let wire: v1::DesiredGang = decode(row)?;
            if tag == tag::ORDER {
                let order = gang_order(&wire).map_err(|e| e.to_string())?;
                durable.desired.insert(wire.gang.clone(), order);
            }
            if let v1::Order::Run(assignment) = wire.order {
                content.assignments.insert((wire.gang, wire.epoch), assignment.into());
            }
        }
        unknown => return Err(format!("row tag {unknown} is unknown")),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
