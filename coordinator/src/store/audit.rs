//! Reading the audit log, page by page, straight from the store: it is never held in memory.

use std::sync::Arc;

use redb::{Database, ReadableDatabase, TableError};

use super::{AUDIT, record};
use crate::core::audit::{AuditEntry, AuditHead};

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
    pub(super) fn newest(&self) -> Result<Option<AuditEntry>, AuditError> {
        let mut newest = None;
        self.visit(u64::MAX, true, |entry| {
            newest = Some(entry);
            false
        })?;
        Ok(newest)
    }

    /// At most `limit` entries with a sequence below `before`, newest first. Blocks for the disk.
    pub fn page(&self, before: u64, limit: usize) -> Result<Vec<AuditEntry>, AuditError> {
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
        mut next: impl FnMut(AuditEntry) -> bool,
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
