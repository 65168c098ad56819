//! The store: one redb file, one transaction per batch, two-phase commit, checked on every read.
//!
//! A failed commit is never retried: the process ends and state is rebuilt from the file. A file
//! that is truncated, damaged or newer than this build is refused at open, by name.
//!
//! redb alone would take a damaged file whose last close was clean, so every open begins with a
//! trial run that reads and checks all of it and writes nothing. One damage cannot be seen: after
//! a crash, the flipped bit that names the newest commit looks like a crash during that commit,
//! and the state before it is opened.

mod audit;
pub mod backup;
mod batch;
pub mod books;
mod inspect;
mod migrate;
pub mod notices;
mod reader;
pub mod record;
mod request;
pub mod restore;

mod trial;
mod vacancies;

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, Durability, StorageBackend, TableDefinition};

pub use self::audit::{AuditError, AuditHead, AuditLog, Chained};
pub use self::books::Books;
pub use self::inspect::{Inspection, inspect};
pub use self::notices::{NoticeLog, Numbered};
pub use self::reader::{Counts, StoreReader};
use self::record::Layout;
pub use self::vacancies::VacancyLog;
use crate::core::effect::Write;
use crate::core::secrets::SecretRecord;

/// Most of a store that is held in memory, in bytes, whatever its file has: decisions are made from
/// the core's own memory, and only the audit log and copies are read again.
const CACHE_BYTES: usize = 64 << 20;

type Table = TableDefinition<'static, &'static str, &'static [u8]>;
const META: Table = TableDefinition::new("meta");
const JOBS: Table = TableDefinition::new("jobs");
const ATTEMPTS: Table = TableDefinition::new("attempts");
const GANGS: Table = TableDefinition::new("gangs");
const NODES: Table = TableDefinition::new("nodes");
const JOIN_TOKENS: Table = TableDefinition::new("join_tokens");
const API_TOKENS: Table = TableDefinition::new("api_tokens");
/// Values are sealed: the key is not in the store.
const SECRETS_NAME: &str = "secrets";
const SECRETS: Table = TableDefinition::new(SECRETS_NAME);
const PROJECTS_NAME: &str = "projects";
const PROJECTS: Table = TableDefinition::new(PROJECTS_NAME);
/// What projects have used of the GPUs.
const USAGE_NAME: &str = "usage";
const USAGE: Table = TableDefinition::new(USAGE_NAME);
const POOLS_NAME: &str = "pools";
const POOLS: Table = TableDefinition::new(POOLS_NAME);
/// Checks of the network, and what came of them.
const NODE_TESTS_NAME: &str = "node_tests";
const NODE_TESTS: Table = TableDefinition::new(NODE_TESTS_NAME);
/// What health rules on trial have found.
const RULE_TRIALS_NAME: &str = "rule_trials";
const RULE_TRIALS: Table = TableDefinition::new(RULE_TRIALS_NAME);
/// Of gangs that hold GPUs and end.
const ACCOUNTS_NAME: &str = "accounts";
const ACCOUNTS: Table = TableDefinition::new(ACCOUNTS_NAME);
/// Addresses and keys are sealed.
const WEBHOOKS_NAME: &str = "webhooks";
const WEBHOOKS: Table = TableDefinition::new(WEBHOOKS_NAME);
/// How far each webhook has been told.
const DELIVERIES_NAME: &str = "deliveries";
const DELIVERIES: Table = TableDefinition::new(DELIVERIES_NAME);
const IDEMPOTENCY: Table = TableDefinition::new("idempotency");
/// Never loaded: nothing is decided by it.
const AUDIT: Table = TableDefinition::new("audit");
/// The same is true of these.
const NOTICES_NAME: &str = "notices";
const NOTICES: Table = TableDefinition::new(NOTICES_NAME);
const BOOKS_NAME: &str = "books";
const BOOKS: Table = TableDefinition::new(BOOKS_NAME);
const VACANCIES_NAME: &str = "vacancies";
const VACANCIES: Table = TableDefinition::new(VACANCIES_NAME);
const LOGS: [Table; 4] = [AUDIT, NOTICES, BOOKS, VACANCIES];
/// In the order in which they are loaded.
const ENTITIES: [Table; 16] = [
    JOIN_TOKENS,
    API_TOKENS,
    SECRETS,
    PROJECTS,
    USAGE,
    POOLS,
    WEBHOOKS,
    DELIVERIES,
    IDEMPOTENCY,
    NODES,
    JOBS,
    ATTEMPTS,
    GANGS,
    ACCOUNTS,
    NODE_TESTS,
    RULE_TRIALS,
];
/// Made by their first record: stores are older than these.
const LATE: [&str; 12] = [
    SECRETS_NAME,
    PROJECTS_NAME,
    USAGE_NAME,
    POOLS_NAME,
    ACCOUNTS_NAME,
    NODE_TESTS_NAME,
    RULE_TRIALS_NAME,
    WEBHOOKS_NAME,
    DELIVERIES_NAME,
    NOTICES_NAME,
    BOOKS_NAME,
    VACANCIES_NAME,
];

/// Layout of the whole store. An older one is brought up to it at open (see `migrate`), a newer one
/// is refused.
pub const STORE_VERSION: u32 = 2;
/// The build that writes, for people who meet the file with another one.
pub const WRITTEN_BY: &str = env!("CARGO_PKG_VERSION");

/// The store cannot be used. `Failed` comes from running, the others from opening.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "store {path}: refused to open: {reason}. It was not changed. Restore it from a backup"
    )]
    Refused { path: PathBuf, reason: String },
    #[error("store {path}: another process has it open. One coordinator serves a state directory")]
    Taken { path: PathBuf },
    #[error(
        "store {path}: it has layout {found}, written by gangline-coordinator {written_by}; this \
         build ({WRITTEN_BY}) reads layouts 1 to {STORE_VERSION}. It was not changed. Start that \
         version or a later one, or restore a backup from before the upgrade"
    )]
    Newer { path: PathBuf, found: u32, written_by: String },
    #[error(
        "store {path}: {table}/{key} is damaged: {reason}. It was not changed. Restore it from a \
         backup"
    )]
    Corrupt { path: PathBuf, table: String, key: String, reason: String },
    #[error("store {path}: {reason}; nothing after the last good commit is acknowledged")]
    Failed { path: PathBuf, reason: String },
    #[error(
        "the thread that decides or the one that commits has panicked; the log says where. Nothing \
         after the last good commit is acknowledged"
    )]
    Panicked,
}

/// Facts about the store itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    pub era: u32,
    /// Random name of the cluster, made with the store.
    pub cluster: String,
    /// Boot id of the machine at the last start: boot-clock times of another boot mean nothing.
    pub boot_id: String,
}

pub struct Store {
    path: PathBuf,
    database: Arc<Database>,
    pub meta: Meta,
    heads: Heads,
}

/// Where the logs stand.
#[derive(Debug, Clone, Copy, Default)]
struct Heads {
    audit: AuditHead,
    /// Number of the newest notice.
    notices: u64,
}

impl Store {
    /// Opens or creates `path`. `expected` says that this coordinator has served before: then a
    /// missing file is a loss, not a beginning.
    ///
    /// # Errors
    /// `Refused` or `Corrupt`; the file is then as it was.
    pub fn open(path: &Path, expected: bool, cluster: &str) -> Result<Store, StoreError> {
        let refused = |reason: String| StoreError::Refused { path: path.to_owned(), reason };
        if path.try_exists().map_err(|e| refused(e.to_string()))? {
            return Store::open_on(path, || file_storage(path), |from| keep_copy(path, from));
        }
        if expected {
            return Err(refused("the file is missing although this coordinator has a CA".into()));
        }
        Store::create(path, cluster)
    }

    /// Opens what `storage` gives, twice: first for a trial that changes nothing, then to keep. A
    /// store of an older layout is migrated after `keep_copy` (of that layout) has made one.
    ///
    /// # Errors
    /// As [`Store::open`]; the storage is then as it was.
    pub fn open_on<B: StorageBackend>(
        path: &Path,
        storage: impl Fn() -> Result<B, DatabaseError>,
        keep_copy: impl FnOnce(u32) -> io::Result<()>,
    ) -> Result<Store, StoreError> {
        let refused = |reason: String| StoreError::Refused { path: path.to_owned(), reason };
        let trial = storage().map_err(|e| why(path, &e))?;
        let inspection = inspect::of(path, trial)?;
        let layout = inspection.layout;
        if layout < STORE_VERSION {
            keep_copy(layout).map_err(|e| {
                refused(format!("it has layout {layout}, and no copy of it can be made: {e}"))
            })?;
        }
        // Gives the lock back.
        drop(inspection);
        let kept = storage().map_err(|e| why(path, &e))?;
        let database = builder().create_with_backend(kept);
        let mut store = Store::unread(path, database.map_err(|e| why(path, &e))?);
        if layout < STORE_VERSION {
            store.migrate(layout)?;
        }
        store.read_heads()?;
        Ok(store)
    }

    /// An empty store on an empty storage.
    ///
    /// # Errors
    /// `Failed` when the storage fails.
    pub fn create_on(path: &Path, database: Database, meta: Meta) -> Result<Store, StoreError> {
        let mut store = Store { meta, ..Store::unread(path, database) };
        store.transact(|transaction| {
            for table in ENTITIES.into_iter().chain([AUDIT]) {
                transaction.open_table(table).map_err(|e| e.to_string())?;
            }
            Ok(())
        })?;
        store.write_meta()?;
        Ok(store)
    }

    /// Makes an empty store under another name and gives it its own when it is whole, so that a
    /// crash in between leaves no half-made store behind.
    fn create(path: &Path, cluster: &str) -> Result<Store, StoreError> {
        let refused = |reason: String| StoreError::Refused { path: path.to_owned(), reason };
        let unfinished = path.with_extension("new");
        let database = begin(&unfinished).map_err(refused)?;
        // Under the lock: a process that was faster may have given the file its name already.
        if path.try_exists().map_err(|e| refused(e.to_string()))? {
            return Err(refused("another process has just made it".to_owned()));
        }
        let boot_id = gangline_common::time::boot_id().unwrap_or_default();
        let meta = Meta { era: 1, cluster: cluster.to_owned(), boot_id };
        let store = Store::create_on(path, database, meta)?;
        publish(&unfinished, path).map_err(|e| refused(e.to_string()))?;
        Ok(store)
    }

    /// A store whose heads are not read yet.
    fn unread(path: &Path, database: Database) -> Store {
        let meta = Meta { era: 0, cluster: String::new(), boot_id: String::new() };
        let (path, heads) = (path.to_owned(), Heads::default());
        Store { path, database: Arc::new(database), meta, heads }
    }

    /// The header record and where the logs stand.
    fn read_heads(&mut self) -> Result<(), StoreError> {
        let refused = |reason| StoreError::Refused { path: self.path.clone(), reason };
        self.meta = self.reader().meta().map_err(refused)?;
        self.heads.audit = self.read_audit_head()?;
        self.heads.notices = self.notices().newest().map_err(|error| StoreError::Corrupt {
            path: self.path.clone(),
            table: NOTICES_NAME.to_owned(),
            key: error.key,
            reason: error.reason,
        })?;
        Ok(())
    }

    /// Brings the layout `from` up to this build's, in one transaction.
    fn migrate(&mut self, from: u32) -> Result<(), StoreError> {
        self.transact(|transaction| migrate::migrate(transaction, from))
    }

    /// A reader, which goes on beside the writer.
    pub fn reader(&self) -> StoreReader {
        StoreReader::new(self.path.clone(), Arc::clone(&self.database))
    }

    /// Stores the header record with the current boot id.
    pub fn write_meta(&mut self) -> Result<(), StoreError> {
        let bytes = record::encode_meta(&Layout::current(), &self.meta);
        self.transact(|transaction| {
            let mut table = transaction.open_table(META).map_err(|e| e.to_string())?;
            table.insert("meta", bytes.as_slice()).map_err(|e| e.to_string())?;
            Ok(())
        })
    }

    /// Every entity, each checked, in an order in which they can be restored.
    pub fn load(&self) -> Result<Vec<Write>, StoreError> {
        self.reader().load()
    }

    /// The secrets and the webhooks, which are sealed with the same key: each checked.
    pub fn secrets(&self) -> Result<Vec<Arc<SecretRecord>>, StoreError> {
        let mut writes = Vec::new();
        self.reader().load_table(SECRETS, &mut writes)?;
        self.reader().load_table(WEBHOOKS, &mut writes)?;
        let secret = |write| match write {
            Write::Secret(record) => Some(record),
            Write::Webhook(record) => Some(Arc::new(record.as_secret())),
            _ => None,
        };
        Ok(writes.into_iter().filter_map(secret).collect())
    }

    /// Where the audit log stands.
    fn read_audit_head(&self) -> Result<AuditHead, StoreError> {
        let newest = self.audit_log().newest().map_err(|error| StoreError::Corrupt {
            path: self.path.clone(),
            table: "audit".to_owned(),
            key: error.key,
            reason: error.reason,
        })?;
        Ok(newest.as_ref().map(AuditHead::of).unwrap_or_default())
    }

    /// A reader of the audit log, which goes on beside the writer.
    pub fn audit_log(&self) -> AuditLog {
        self.reader().audit_log()
    }

    /// A reader of the notices, which goes on beside the writer.
    pub fn notices(&self) -> NoticeLog {
        self.reader().notices()
    }

    /// Makes a batch durable: all of it, or an error after which this process must end.
    pub fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let (mut heads, era) = (self.heads, self.meta.era);
        self.transact(|transaction| batch::apply(transaction, writes, era, &mut heads))?;
        self.heads = heads;
        Ok(())
    }

    fn transact(
        &mut self,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<(), String>,
    ) -> Result<(), StoreError> {
        let failed = |reason: String| StoreError::Failed { path: self.path.clone(), reason };
        let mut transaction = self.database.begin_write().map_err(|e| failed(e.to_string()))?;
        transaction.set_durability(Durability::Immediate).map_err(|e| failed(e.to_string()))?;
        transaction.set_two_phase_commit(true);
        change(&transaction).map_err(failed)?;
        transaction.commit().map_err(|e| failed(e.to_string()))
    }
}

/// The file at `path`; the caller locks it by opening it.
fn file_storage(path: &Path) -> Result<FileBackend, DatabaseError> {
    let file = File::options().read(true).write(true).open(path).map_err(io_error)?;
    if file.metadata().map_err(io_error)?.len() == 0 {
        let error = io::Error::new(io::ErrorKind::InvalidData, "the file is empty (truncated)");
        return Err(io_error(error));
    }
    FileBackend::new(file)
}

fn io_error(error: io::Error) -> DatabaseError {
    DatabaseError::Storage(redb::StorageError::Io(error))
}

/// The same, byte for byte, beside it, durably: what the build of before needs to go back.
fn keep_copy(path: &Path, layout: u32) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".layout-{layout}"));
    let (copy, unfinished) = (PathBuf::from(&name), path.with_extension("copy"));
    std::fs::copy(path, &unfinished)?;
    File::open(&unfinished)?.sync_all()?;
    publish(&unfinished, &copy)?;
    tracing::warn!(store = %path.display(), copy = %copy.display(), layout, "the store is migrated");
    Ok(())
}

fn why(path: &Path, error: &DatabaseError) -> StoreError {
    let path = path.to_owned();
    let reason = match error {
        DatabaseError::DatabaseAlreadyOpen => return StoreError::Taken { path },
        // Without the words around it that say no more.
        DatabaseError::Storage(redb::StorageError::Io(error)) => error.to_string(),
        other => other.to_string(),
    };
    StoreError::Refused { path, reason }
}

/// How every store is opened.
fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// An empty database at `unfinished`, over whatever a start that did not end well has left there.
/// It will hold token hashes and the seeds of Ray's tokens: its owner's business only.
fn begin(unfinished: &Path) -> Result<Database, String> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(unfinished).map_err(|e| e.to_string())?;
    file.try_lock().map_err(|_| "another process is making it".to_owned())?;
    file.set_len(0).map_err(|e| e.to_string())?;
    builder().create_file(file).map_err(|e| e.to_string())
}

/// Gives a finished store its name, durably.
fn publish(finished: &Path, path: &Path) -> std::io::Result<()> {
    std::fs::rename(finished, path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
