//! Reading a store beside its writer: what is loaded at start, checked and copied.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableError,
};

use super::backup::{self, BackupError, Header, Summary};
use super::record::{self, Layout};
use super::{
    AuditLog, Books, ENTITIES, LATE, LOGS, META, Meta, NoticeLog, StoreError, Table, VacancyLog,
};
use crate::core::effect::Write;

pub(super) type Rows = redb::ReadOnlyTable<&'static str, &'static [u8]>;

/// Number of rows, by table.
pub type Counts = BTreeMap<String, u64>;

/// Cheap to clone; every call reads what was committed last, in one read transaction.
#[derive(Clone)]
pub struct StoreReader {
    path: PathBuf,
    database: Arc<Database>,
}

impl StoreReader {
    pub(super) fn new(path: PathBuf, database: Arc<Database>) -> Self {
        StoreReader { path, database }
    }

    /// The header record.
    ///
    /// # Errors
    /// It is missing, damaged or of another layout.
    pub fn meta(&self) -> Result<Meta, String> {
        let read = self.database.begin_read().map_err(|e| e.to_string())?;
        let (_, meta) = record::decode_meta(&header_record(&read)?)?;
        Ok(meta)
    }

    /// A reader of the audit log.
    pub fn audit_log(&self) -> AuditLog {
        AuditLog::new(Arc::clone(&self.database))
    }

    /// A reader of the notices.
    pub fn notices(&self) -> NoticeLog {
        NoticeLog::new(Arc::clone(&self.database))
    }

    /// A reader of the lines of what nobody had.
    pub fn vacancies(&self) -> VacancyLog {
        VacancyLog::new(Arc::clone(&self.database))
    }

    /// A reader of the books.
    pub fn books(&self) -> Books {
        Books::new(Arc::clone(&self.database))
    }

    pub(super) fn load(&self) -> Result<Vec<Write>, StoreError> {
        let mut writes = Vec::new();
        for table in ENTITIES {
            self.load_table(table, &mut writes)?;
        }
        Ok(writes)
    }

    pub(super) fn load_table(
        &self,
        definition: Table,
        writes: &mut Vec<Write>,
    ) -> Result<(), StoreError> {
        let read = self.begin()?;
        self.visit(&read, definition, |name, key, value| {
            writes.push(record::decode(name, value).map_err(|e| self.corrupt(name, key, e))?);
            Ok(())
        })
    }

    /// Decodes every record.
    ///
    /// # Errors
    /// `Corrupt` with the first that is damaged.
    pub fn check(&self) -> Result<Counts, StoreError> {
        let read = self.begin()?;
        let mut counts = Counts::new();
        for definition in ENTITIES.into_iter().chain(LOGS) {
            let name = redb::TableHandle::name(&definition).to_owned();
            let mut rows = 0;
            self.visit(&read, definition, |name, key, value| {
                rows += 1;
                backup::check_row(name, value).map_err(|e| self.corrupt(name, key, e))
            })?;
            counts.insert(name, rows);
        }
        Ok(counts)
    }

    /// Writes a copy of everything to `out`, as it stood when this was called. Commits go on
    /// meanwhile. `wall_ms`: time of the copy.
    ///
    /// # Errors
    /// `out` fails, or a record is damaged: then no copy is better than a bad one.
    pub fn back_up(&self, wall_ms: u64, out: impl io::Write) -> Result<Summary, BackupError> {
        let read = self.begin()?;
        let (store_version, meta) = header_record(&read)
            .and_then(|bytes| record::decode_meta(&bytes))
            .map_err(|reason| self.corrupt("meta", "meta", reason))?;
        let mut rows = Counts::new();
        for definition in ENTITIES.into_iter().chain(LOGS) {
            let name = redb::TableHandle::name(&definition);
            let table = self.open(&read, definition)?;
            let count = table.map_or(Ok(0), |table| table.len());
            let count = count.map_err(|e| self.corrupt(name, "", e.to_string()))?;
            rows.insert(name.to_owned(), count);
        }
        let header = Header {
            store_version,
            written_by: super::WRITTEN_BY.to_owned(),
            era: meta.era,
            cluster: meta.cluster,
            wall_ms,
            rows,
        };
        let mut writer = backup::Writer::begin(out, header)?;
        for definition in ENTITIES.into_iter().chain(LOGS) {
            self.visit(&read, definition, |name, key, value| {
                backup::check_row(name, value).map_err(|e| self.corrupt(name, key, e))?;
                writer.row(name, key, value)
            })?;
        }
        writer.end()
    }

    fn begin(&self) -> Result<ReadTransaction, StoreError> {
        self.database.begin_read().map_err(|e| self.corrupt("", "", e.to_string()))
    }

    fn corrupt(&self, table: &str, key: &str, reason: String) -> StoreError {
        let (path, table, key) = (self.path.clone(), table.to_owned(), key.to_owned());
        StoreError::Corrupt { path, table, key, reason }
    }

    /// Shows every row of a table: its name, the key, the record.
    fn visit<E: From<StoreError>>(
        &self,
        read: &ReadTransaction,
        definition: Table,
        mut show: impl FnMut(&str, &str, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let name = redb::TableHandle::name(&definition);
        let corrupt = |e: redb::StorageError| self.corrupt(name, "", e.to_string());
        let Some(table) = self.open(read, definition)? else { return Ok(()) };
        for row in table.iter().map_err(corrupt)? {
            let (key, value) = row.map_err(corrupt)?;
            show(name, key.value(), value.value())?;
        }
        Ok(())
    }

    /// `None` for a table that is made by its first record and has none.
    fn open(&self, read: &ReadTransaction, definition: Table) -> Result<Option<Rows>, StoreError> {
        let name = redb::TableHandle::name(&definition);
        match read.open_table(definition) {
            Err(TableError::TableDoesNotExist(_)) if LATE.contains(&name) => Ok(None),
            opened => opened.map(Some).map_err(|e| self.corrupt(name, "", e.to_string())),
        }
    }
}

/// What wrote the store, whatever its layout.
pub(super) fn layout(database: &Database) -> Result<Layout, String> {
    let read = database.begin_read().map_err(|e| e.to_string())?;
    record::decode_layout(&header_record(&read)?)
}

fn header_record(read: &ReadTransaction) -> Result<Vec<u8>, String> {
    let table =
        read.open_table(META).map_err(|_| "it is not a store of a coordinator".to_owned())?;
    let row = table.get("meta").map_err(|e| e.to_string())?.ok_or("it has no header record")?;
    Ok(row.value().to_vec())
}
