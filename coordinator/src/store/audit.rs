//! The audit log: entries are only ever added, and each holds the hash of the one before it, so that
//! a changed, removed or inserted entry shows. It is read page by page and never held in memory.

use std::sync::Arc;

use gangline_common::tls::sha256;
use redb::{Database, ReadableDatabase, TableError};

use super::{AUDIT, record};
use crate::core::audit::AuditEntry;

/// What the first entry holds as the hash before it.
pub const NO_HASH: [u8; 32] = [0; 32];

/// An entry in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chained {
    /// Counts up by one from 1.
    pub sequence: u64,
    pub entry: AuditEntry,
    /// Hash of the entry before.
    pub previous: [u8; 32],
}

impl Chained {
    /// SHA-256 over every field, each with its length in front so that none runs into the next.
    pub fn hash(&self) -> [u8; 32] {
        let AuditEntry { wall_ms, actor, source, action, object, detail } = &self.entry;
        let source = source.map(|address| address.to_string()).unwrap_or_default();
        let mut bytes = Vec::new();
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(wall_ms.to_be_bytes());
        for text in [actor, &source, action, object, detail] {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend(self.previous);
        sha256(&bytes)
    }
}

/// Where the log stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHead {
    /// Of the newest entry; 0 while there is none.
    pub sequence: u64,
    pub hash: [u8; 32],
}

impl Default for AuditHead {
    fn default() -> Self {
        AuditHead { sequence: 0, hash: NO_HASH }
    }
}

/// Why a log is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {sequence}: {reason}")]
pub struct BrokenChain {
    pub sequence: u64,
    pub reason: &'static str,
}

impl AuditHead {
    /// The head after `entry`.
    pub fn of(entry: &Chained) -> AuditHead {
        AuditHead { sequence: entry.sequence, hash: entry.hash() }
    }

    /// Puts an entry in the place after this head.
    pub fn chain(self, entry: AuditEntry) -> Chained {
        Chained { sequence: self.sequence + 1, entry, previous: self.hash }
    }

    /// The head after `entry`, when that follows this one.
    pub fn follow(self, entry: &Chained) -> Result<AuditHead, BrokenChain> {
        let broken = |reason| Err(BrokenChain { sequence: entry.sequence, reason });
        if entry.sequence != self.sequence + 1 {
            return broken("an entry before it is missing");
        }
        if entry.previous != self.hash {
            return broken(
                "it does not follow from the entry before it, one of the two was changed",
            );
        }
        Ok(AuditHead::of(entry))
    }
}

/// An entry cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("audit/{key}: {reason}")]
pub struct AuditError {
    pub key: String,
    pub reason: String,
}

/// Cheap to clone; reads what was committed last.
#[derive(Clone)]
pub struct AuditLog {
    database: Arc<Database>,
}

/// Keys are in the order of sequences.
pub fn key(sequence: u64) -> String {
    format!("{sequence:020}")
}

impl AuditLog {
    pub(super) fn new(database: Arc<Database>) -> Self {
        AuditLog { database }
    }

    /// The newest entry.
    pub(super) fn newest(&self) -> Result<Option<Chained>, AuditError> {
        let mut newest = None;
        self.visit(u64::MAX, true, |entry| {
            newest = Some(entry);
            false
        })?;
        Ok(newest)
    }

    /// At most `limit` entries with a sequence below `before`, newest first. Blocks for the disk.
    pub fn page(&self, before: u64, limit: usize) -> Result<Vec<Chained>, AuditError> {
        let mut page = Vec::new();
        if limit > 0 {
            self.visit(before, true, |entry| {
                page.push(entry);
                page.len() < limit
            })?;
        }
        Ok(page)
    }

    /// Follows the whole chain: how far it holds, and why not further. Blocks for the disk.
    pub fn verify(&self) -> (AuditHead, Option<String>) {
        let (mut head, mut broken) = (AuditHead::default(), None);
        let read = self.visit(u64::MAX, false, |entry| match head.follow(&entry) {
            Ok(next) => {
                head = next;
                true
            }
            Err(error) => {
                broken = Some(error.to_string());
                false
            }
        });
        let unreadable = read.err().map(|error| error.to_string());
        (head, broken.or(unreadable))
    }

    /// Shows entries below `before` until `next` says that it has seen enough.
    fn visit(
        &self,
        before: u64,
        backwards: bool,
        mut next: impl FnMut(Chained) -> bool,
    ) -> Result<(), AuditError> {
        let failed = |key: &str, reason: String| AuditError { key: key.to_owned(), reason };
        let read = self.database.begin_read().map_err(|e| failed("", e.to_string()))?;
        let table = match read.open_table(AUDIT) {
            Ok(table) => table,
            // A store of before there was an audit log.
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(failed("", error.to_string())),
        };
        let end = key(before);
        let mut rows = table.range(..end.as_str()).map_err(|e| failed("", e.to_string()))?;
        while let Some(row) = if backwards { rows.next_back() } else { rows.next() } {
            let (key, value) = row.map_err(|e| failed("", e.to_string()))?;
            let entry = record::decode_audit(value.value())
                .map_err(|reason| failed(key.value(), reason))?;
            if !next(entry) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn chain(length: u64) -> Vec<Chained> {
        let mut head = AuditHead::default();
        (1..=length)
            .map(|number| {
                let entry = head.chain(AuditEntry {
                    wall_ms: number * 10,
                    actor: "alice".to_owned(),
                    source: Some(IpAddr::from([127, 0, 0, 1])),
                    action: "job.stop".to_owned(),
                    object: format!("job j-{number}"),
                    detail: String::new(),
                });
                head = AuditHead::of(&entry);
                entry
            })
            .collect()
    }

    fn check(entries: &[Chained]) -> Result<AuditHead, BrokenChain> {
        entries.iter().try_fold(AuditHead::default(), AuditHead::follow)
    }

    #[test]
    fn a47_every_change_breaks_the_chain() {
        let good = chain(5);
        assert_eq!(check(&good).unwrap().sequence, 5);
        let change = |at: usize, change: fn(&mut Chained)| {
            let mut entries = good.clone();
            change(&mut entries[at]);
            check(&entries).unwrap_err().sequence
        };
        // An entry that was changed shows at the one after it.
        assert_eq!(change(1, |chained| chained.entry.actor = "mallory".to_owned()), 3);
        assert_eq!(change(1, |chained| chained.entry.wall_ms += 1), 3);
        assert_eq!(change(1, |chained| chained.entry.source = None), 3);
        assert_eq!(change(1, |chained| chained.entry.detail.push('x')), 3);
        assert_eq!(change(1, |chained| chained.previous = NO_HASH), 2);
        let mut shorter = good.clone();
        shorter.remove(2);
        assert_eq!(check(&shorter).unwrap_err().sequence, 4);
        let mut swapped = good.clone();
        swapped.swap(2, 3);
        assert_eq!(check(&swapped).unwrap_err().sequence, 4);
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let chained = chain(1).remove(0);
        let with = |action: &str, object: &str| {
            let (action, object) = (action.to_owned(), object.to_owned());
            let entry = AuditEntry { action, object, ..chained.entry.clone() };
            Chained { entry, ..chained.clone() }.hash()
        };
        assert_ne!(with("ab", "c"), with("a", "bc"));
    }
}
