//! The books: one line for each allocation that is over, in the order in which they ended. Only ever
//! added to, but for the oldest when there are more than [`KEPT`].

use std::sync::Arc;

use redb::{
    Database, ReadableDatabase, ReadableTableMetadata, TableError, TableHandle, WriteTransaction,
};

use super::{BOOKS, Table, record};
use crate::core::accounts::Spent;

/// Lines that are kept; the oldest goes.
pub const KEPT: u64 = 200_000;

/// The books cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{books}/{key}: {reason}")]
pub struct BooksError {
    pub books: String,
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

/// Takes out the oldest lines when there are more than [`KEPT`], of these books or of others.
pub(super) fn trim(transaction: &WriteTransaction, books: Table) -> Result<(), String> {
    let mut table = transaction.open_table(books).map_err(|e| e.to_string())?;
    while table.len().map_err(|e| e.to_string())? > KEPT {
        table.pop_first().map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Shows every line of some books that ended at or after a moment. Blocks for the disk.
pub(super) fn lines_since<T>(
    database: &Database,
    books: Table,
    wall_ms: u64,
    decode: fn(&[u8]) -> Result<T, String>,
    mut show: impl FnMut(T),
) -> Result<(), BooksError> {
    let failed = |key: &str, reason: String| BooksError {
        books: books.name().to_owned(),
        key: key.to_owned(),
        reason,
    };
    let read = database.begin_read().map_err(|e| failed("", e.to_string()))?;
    let table = match read.open_table(books) {
        Ok(table) => table,
        // There was never anything to write down.
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(failed("", error.to_string())),
    };
    let begin = format!("{wall_ms:020}");
    for row in table.range(begin.as_str()..).map_err(|e| failed("", e.to_string()))? {
        let (key, value) = row.map_err(|e| failed("", e.to_string()))?;
        show(decode(value.value()).map_err(|e| failed(key.value(), e))?);
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
    pub fn since(&self, wall_ms: u64, show: impl FnMut(Spent)) -> Result<(), BooksError> {
        lines_since(&self.database, BOOKS, wall_ms, record::decode_spent, show)
    }
}
