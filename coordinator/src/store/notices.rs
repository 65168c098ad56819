//! The notices, as they are numbered: the newest [`KEPT`] of them. Read page by page, never held in
//! memory.

use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableError, WriteTransaction};

use super::{NOTICES, record};
use crate::core::notices::Notice;

/// Notices that are kept; the oldest goes.
pub const KEPT: u64 = 50_000;

/// A notice in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// Of the store that numbered it: a store that was restored counts on from its copy.
    pub era: u32,
    /// Counts up by one from 1.
    pub sequence: u64,
    pub notice: Notice,
}

impl Numbered {
    /// The same however often it is told.
    pub fn id(&self) -> String {
        format!("{}-{}", self.era, self.sequence)
    }
}

/// The notices cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("notices/{key}: {reason}")]
pub struct NoticeError {
    pub key: String,
    pub reason: String,
}

/// Cheap to clone; reads what was committed last.
#[derive(Clone)]
pub struct NoticeLog {
    database: Arc<Database>,
}

/// Keys are in the order of sequences.
pub(super) fn key(sequence: u64) -> String {
    format!("{sequence:020}")
}

/// Takes out what is older than the newest [`KEPT`].
pub(super) fn trim(transaction: &WriteTransaction, newest: u64) -> Result<(), String> {
    let Some(last) = newest.checked_sub(KEPT) else { return Ok(()) };
    let mut table = transaction.open_table(NOTICES).map_err(|e| e.to_string())?;
    let end = key(last);
    loop {
        let first = table.first().map_err(|e| e.to_string())?;
        let first = first.map(|(key, _)| key.value().to_owned());
        match first.filter(|first| *first <= end) {
            Some(first) => table.remove(first.as_str()).map(drop).map_err(|e| e.to_string())?,
            None => return Ok(()),
        }
    }
}

impl NoticeLog {
    pub(super) fn new(database: Arc<Database>) -> Self {
        NoticeLog { database }
    }

    /// Number of the newest; 0 while there is none. Blocks for the disk, as all of these do.
    pub fn newest(&self) -> Result<u64, NoticeError> {
        let page = self.before(u64::MAX, 1)?;
        Ok(page.first().map_or(0, |newest| newest.sequence))
    }

    /// At most `limit` notices after number `cursor`, oldest first.
    pub fn after(&self, cursor: u64, limit: usize) -> Result<Vec<Numbered>, NoticeError> {
        let mut page = Vec::new();
        self.visit(cursor.saturating_add(1)..u64::MAX, false, |numbered| {
            page.push(numbered);
            page.len() < limit
        })?;
        Ok(page)
    }

    /// At most `limit` notices with a number below `before`, newest first.
    pub fn before(&self, before: u64, limit: usize) -> Result<Vec<Numbered>, NoticeError> {
        self.before_that(before, limit, |_| true)
    }

    /// The same of those that `wanted` names.
    pub fn before_that(
        &self,
        before: u64,
        limit: usize,
        wanted: impl Fn(&Notice) -> bool,
    ) -> Result<Vec<Numbered>, NoticeError> {
        let mut page = Vec::new();
        self.visit(0..before, true, |numbered| {
            if wanted(&numbered.notice) {
                page.push(numbered);
            }
            page.len() < limit
        })?;
        Ok(page)
    }

    /// The last number before a moment, by the wall clock; of those that are kept.
    pub fn number_at(&self, wall_ms: u64) -> Result<u64, NoticeError> {
        let mut number = 0;
        self.visit(0..u64::MAX, true, |numbered| {
            let is_after = numbered.notice.wall_ms >= wall_ms;
            number = numbered.sequence - u64::from(is_after);
            is_after
        })?;
        Ok(number)
    }

    /// Shows notices until `next` says that it has seen enough.
    fn visit(
        &self,
        range: std::ops::Range<u64>,
        backwards: bool,
        mut next: impl FnMut(Numbered) -> bool,
    ) -> Result<(), NoticeError> {
        let failed = |key: &str, reason: String| NoticeError { key: key.to_owned(), reason };
        let read = self.database.begin_read().map_err(|e| failed("", e.to_string()))?;
        let table = match read.open_table(NOTICES) {
            Ok(table) => table,
            // Nobody was ever told anything.
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(failed("", error.to_string())),
        };
        let (begin, end) = (key(range.start), key(range.end));
        let mut rows =
            table.range(begin.as_str()..end.as_str()).map_err(|e| failed("", e.to_string()))?;
        while let Some(row) = if backwards { rows.next_back() } else { rows.next() } {
            let (key, value) = row.map_err(|e| failed("", e.to_string()))?;
            let numbered = record::decode_notice(value.value())
                .map_err(|reason| failed(key.value(), reason))?;
            if !next(numbered) {
                break;
            }
        }
        Ok(())
    }
}
