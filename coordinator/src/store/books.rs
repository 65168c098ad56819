//! The books: one line for each allocation that is over, in the order in which they ended. Only ever
//! added to, but for the oldest when there are more than [`KEPT`].

use std::sync::Arc;

use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableError, TableHandle,
    WriteTransaction,
};

use super::reader::Rows;
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

fn failure(books: Table) -> impl Fn(&str, String) -> BooksError {
    let books = books.name().to_owned();
    move |key, reason| BooksError { books: books.clone(), key: key.to_owned(), reason }
}

/// `None` where there was never anything to write down.
fn open(database: &Database, books: Table) -> Result<Option<Rows>, BooksError> {
    let failed = failure(books);
    let read = database.begin_read().map_err(|e| failed("", e.to_string()))?;
    match read.open_table(books) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(failed("", error.to_string())),
    }
}

/// From when on some books that keep `most` lines have everything, in wall-clock milliseconds;
/// `None` for books that are not full. Blocks for the disk.
pub(super) fn full_since(
    database: &Database,
    books: Table,
    most: u64,
) -> Result<Option<u64>, BooksError> {
    let failed = failure(books);
    let Some(table) = open(database, books)? else { return Ok(None) };
    if table.len().map_err(|e| failed("", e.to_string()))? < most {
        return Ok(None);
    }
    let oldest = table.first().map_err(|e| failed("", e.to_string()))?;
    let Some((key, _)) = oldest else { return Ok(None) };
    let ended = key.value().split('/').next().and_then(|digits| digits.parse().ok());
    ended.map(Some).ok_or_else(|| failed(key.value(), "its key has no time".to_owned()))
}

/// Shows every line of some books that ended at or after a moment. Blocks for the disk.
pub(super) fn lines_since<T>(
    database: &Database,
    books: Table,
    wall_ms: u64,
    decode: fn(&[u8]) -> Result<T, String>,
    mut show: impl FnMut(T),
) -> Result<(), BooksError> {
    let failed = failure(books);
    let Some(table) = open(database, books)? else { return Ok(()) };
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

    /// Since when every line is there, in wall-clock milliseconds; `None` where none has gone. Blocks
    /// for the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub fn full_since(&self) -> Result<Option<u64>, BooksError> {
        full_since(&self.database, BOOKS, KEPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_that_are_full_say_since_when_they_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::create(directory.path().join("books.redb")).unwrap();
        assert_eq!(full_since(&database, BOOKS, 2).unwrap(), None);
        let mut since = Vec::new();
        for ended_ms in [7_000_u64, 9_000, 12_000] {
            let write = database.begin_write().unwrap();
            let key = format!("{ended_ms:020}/g-1/1.1");
            write.open_table(BOOKS).unwrap().insert(key.as_str(), &b""[..]).unwrap();
            write.commit().unwrap();
            since.push(full_since(&database, BOOKS, 2).unwrap());
        }
        assert_eq!(since, [None, Some(7_000), Some(7_000)]);
    }
}
