//! The books: one line for each allocation that is over, in the order in which they ended. Only ever
//! added to, but for the oldest when there are more than [`KEPT`].

use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableError, WriteTransaction};

use super::{BOOKS, record};
use crate::core::accounts::Spent;

/// Lines that are kept; the oldest goes.
pub const KEPT: u64 = 200_000;

/// The books cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("books/{key}: {reason}")]
pub struct BooksError {
    pub key: String,
    pub reason: String,
}

/// Cheap to clone; reads what was committed last.
#[derive(Clone)]
pub struct Books {
    database: Arc<Database>,
}

/// Keys are in the order of the ends. An incarnation has one line.
pub(super) fn key(spent: &Spent) -> String {
    format!("{:020}/{}/{}", spent.until_wall_ms(), spent.gang, spent.epoch)
}

/// Takes out the oldest lines when there are more than [`KEPT`].
pub(super) fn trim(transaction: &WriteTransaction) -> Result<(), String> {
    let mut table = transaction.open_table(BOOKS).map_err(|e| e.to_string())?;
    while table.len().map_err(|e| e.to_string())? > KEPT {
        table.pop_first().map_err(|e| e.to_string())?;
    }
    Ok(())
}

impl Books {
    pub(super) fn new(database: Arc<Database>) -> Self {
        Books { database }
    }

    /// Shows every line that ended at or after a moment. Blocks for the disk.
    ///
    /// # Errors
    /// The disk fails, or a line is damaged.
    pub fn since(&self, wall_ms: u64, mut show: impl FnMut(Spent)) -> Result<(), BooksError> {
        let failed = |key: &str, reason: String| BooksError { key: key.to_owned(), reason };
        let read = self.database.begin_read().map_err(|e| failed("", e.to_string()))?;
        let table = match read.open_table(BOOKS) {
            Ok(table) => table,
            // Nothing was ever allocated.
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(failed("", error.to_string())),
        };
        let begin = format!("{wall_ms:020}");
        for row in table.range(begin.as_str()..).map_err(|e| failed("", e.to_string()))? {
            let (key, value) = row.map_err(|e| failed("", e.to_string()))?;
            show(record::decode_spent(value.value()).map_err(|e| failed(key.value(), e))?);
        }
        Ok(())
    }
}
