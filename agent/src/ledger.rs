//! The ledger: the agent's durable copy of its desired state and of what it started.
//!
//! Rows of (tag, length, body), written as a whole into one of two slots in turn. A ledger whose
//! slots do not read back is never repaired and never taken for an empty one: an agent that forgot
//! what it started could start it twice. One write back is harmless: what was started has its
//! spool, and what was ordered is ordered again by a coordinator that finds an older state held.

mod slots;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, MemberKey};
use gangline_common::wire::{WireError, codec, v1};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::core::assignment::{MemberRow, Seen};
use crate::core::event::Durable;
use crate::durable::private_directory;
use crate::translate::{Assignments, core_refusal, gang_order, wire_order, wire_refusal};
use slots::{Slots, SlotsError};

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
    slots: Mutex<Slots>,
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
        let path = directory.join("state");
        let (slots, body) = Slots::open(path.clone()).map_err(|error| explain(&path, error))?;
        let content = match body {
            None => Content::default(),
            Some(body) => parse(&body)
                .map_err(|reason| LedgerError::Damaged { path: path.clone(), reason })?,
        };
        Ok((Ledger { path, slots: Mutex::new(slots) }, content))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `durable` and the assignments that it needs durable. Blocks for the disk.
    pub fn write(&self, durable: &Durable, assignments: &Assignments) -> Result<(), LedgerError> {
        let body = encode(durable, assignments)?;
        // A write that panicked has not touched what says which slot is the newest.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.write(&body).map_err(|error| explain(&self.path, error))
    }
}

fn explain(path: &Path, error: SlotsError) -> LedgerError {
    let path = path.to_owned();
    match error {
        SlotsError::Io(what, source) => LedgerError::Io { what, path, source },
        SlotsError::Damaged(reason) => LedgerError::Damaged { path, reason },
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

fn parse(mut body: &[u8]) -> Result<Content, String> {
    let cut = || "it is cut off".to_owned();
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
