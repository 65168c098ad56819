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
pub mod record;
mod request;
mod trial;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gangline_common::ids::JobId;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition,
    TableError,
};

pub use self::audit::{AuditError, AuditHead, AuditLog, Chained};
use self::trial::TrialBackend;
use crate::core::effect::Write;
use crate::core::secrets::SecretRecord;

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
const IDEMPOTENCY: Table = TableDefinition::new("idempotency");
/// Never loaded: nothing is decided by it.
const AUDIT: Table = TableDefinition::new("audit");
/// In the order in which they are loaded.
const ENTITIES: [Table; 11] = [
    JOIN_TOKENS,
    API_TOKENS,
    SECRETS,
    PROJECTS,
    USAGE,
    POOLS,
    IDEMPOTENCY,
    NODES,
    JOBS,
    ATTEMPTS,
    GANGS,
];
/// Made by their first record: stores are older than these.
const LATE: [&str; 4] = [SECRETS_NAME, PROJECTS_NAME, USAGE_NAME, POOLS_NAME];

/// Layout of the whole store; a file with another number is refused.
pub const STORE_VERSION: u32 = 1;
/// Page cache of the trial run at open.
const TRIAL_CACHE_BYTES: usize = 64 << 20;

/// The store cannot be used. `Refused` and `Corrupt` come from opening, `Failed` from running.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "store {path}: refused to open: {reason}. It was not changed. Restore it from a backup, or \
         move it away to start with an empty store on purpose"
    )]
    Refused { path: PathBuf, reason: String },
    #[error(
        "store {path}: {table}/{key} is damaged: {reason}. It was not changed. Restore it from a \
         backup"
    )]
    Corrupt { path: PathBuf, table: String, key: String, reason: String },
    #[error("store {path}: {reason}; nothing after the last good commit is acknowledged")]
    Failed { path: PathBuf, reason: String },
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
    audit_head: AuditHead,
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
            try_out(path)?;
            let database = Database::open(path).map_err(|e| refused(why(&e)))?;
            return Store::over(path, database);
        }
        if expected {
            return Err(refused("the file is missing although this coordinator has a CA".into()));
        }
        Store::create(path, cluster)
    }

    /// Makes an empty store under another name and gives it its own when it is whole, so that a
    /// crash in between leaves no half-made store behind.
    fn create(path: &Path, cluster: &str) -> Result<Store, StoreError> {
        let refused = |reason: String| StoreError::Refused { path: path.to_owned(), reason };
        let unfinished = path.with_extension("new");
        let boot_id = gangline_common::time::boot_id().unwrap_or_default();
        let mut store = Store {
            path: path.to_owned(),
            database: Arc::new(begin(&unfinished, path).map_err(refused)?),
            meta: Meta { era: 1, cluster: cluster.to_owned(), boot_id },
            audit_head: AuditHead::default(),
        };
        store.transact(|transaction| {
            for table in ENTITIES.into_iter().chain([AUDIT]) {
                transaction.open_table(table).map_err(|e| e.to_string())?;
            }
            Ok(())
        })?;
        store.write_meta()?;
        publish(&unfinished, path).map_err(|e| refused(e.to_string()))?;
        Ok(store)
    }

    /// The store in `database`, when its header record is one of ours.
    fn over(path: &Path, database: Database) -> Result<Store, StoreError> {
        let meta = read_meta(&database)
            .map_err(|reason| StoreError::Refused { path: path.to_owned(), reason })?;
        let (path, audit_head) = (path.to_owned(), AuditHead::default());
        let mut store = Store { path, database: Arc::new(database), meta, audit_head };
        store.audit_head = store.read_audit_head()?;
        Ok(store)
    }

    /// Stores the header record with the current boot id.
    pub fn write_meta(&mut self) -> Result<(), StoreError> {
        let bytes = record::encode_meta(STORE_VERSION, &self.meta);
        self.transact(|transaction| {
            let mut table = transaction.open_table(META).map_err(|e| e.to_string())?;
            table.insert("meta", bytes.as_slice()).map_err(|e| e.to_string())?;
            Ok(())
        })
    }

    /// Every entity, each checked, in an order in which they can be restored.
    pub fn load(&self) -> Result<Vec<Write>, StoreError> {
        let mut writes = Vec::new();
        for table in ENTITIES {
            self.load_table(table, &mut writes)?;
        }
        Ok(writes)
    }

    /// The secrets alone, each checked.
    pub fn secrets(&self) -> Result<Vec<Arc<SecretRecord>>, StoreError> {
        let mut writes = Vec::new();
        self.load_table(SECRETS, &mut writes)?;
        let secret = |write| match write {
            Write::Secret(record) => Some(record),
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
        AuditLog::new(Arc::clone(&self.database))
    }

    fn load_table(&self, definition: Table, writes: &mut Vec<Write>) -> Result<(), StoreError> {
        let name = redb::TableHandle::name(&definition);
        let corrupt = |key: &str, reason: String| StoreError::Corrupt {
            path: self.path.clone(),
            table: name.to_owned(),
            key: key.to_owned(),
            reason,
        };
        let read = self.database.begin_read().map_err(|e| corrupt("", e.to_string()))?;
        let table = match read.open_table(definition) {
            Err(TableError::TableDoesNotExist(_)) if LATE.contains(&name) => return Ok(()),
            opened => opened.map_err(|e| corrupt("", e.to_string()))?,
        };
        for row in table.iter().map_err(|e| corrupt("", e.to_string()))? {
            let (key, value) = row.map_err(|e| corrupt("", e.to_string()))?;
            let write = record::decode(name, value.value())
                .map_err(|reason| corrupt(key.value(), reason))?;
            writes.push(write);
        }
        Ok(())
    }

    /// Makes a batch durable: all of it, or an error after which this process must end.
    pub fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let mut head = self.audit_head;
        self.transact(|transaction| {
            for write in writes {
                apply(transaction, write, &mut head)?;
            }
            Ok(())
        })?;
        self.audit_head = head;
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

fn read_meta(database: &Database) -> Result<Meta, String> {
    let read = database.begin_read().map_err(|e| e.to_string())?;
    let table =
        read.open_table(META).map_err(|_| "it is not a store of a coordinator".to_owned())?;
    let row = table.get("meta").map_err(|e| e.to_string())?.ok_or("it has no header record")?;
    let (version, meta) = record::decode_meta(row.value())?;
    if version != STORE_VERSION {
        return Err(format!("it has layout {version}, this build reads layout {STORE_VERSION}"));
    }
    Ok(meta)
}

/// Reads every page and every record of the file at `path` and changes nothing.
fn try_out(path: &Path) -> Result<(), StoreError> {
    let refused = |reason: String| StoreError::Refused { path: path.to_owned(), reason };
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|e| refused(e.to_string()))?;
    if file.metadata().map_err(|e| refused(e.to_string()))?.len() == 0 {
        return Err(refused("the file is empty (truncated)".to_owned()));
    }
    let run = || {
        let backend = TrialBackend::new(file).map_err(|e| refused(why(&e)))?;
        let mut database = Database::builder()
            .set_cache_size(TRIAL_CACHE_BYTES)
            .create_with_backend(backend)
            .map_err(|e| refused(why(&e)))?;
        if !database.check_integrity().map_err(|e| refused(why(&e)))? {
            return Err(refused("its pages contradict each other".to_owned()));
        }
        Store::over(path, database)?.load().map(drop)
    };
    // redb loads parts of a file before it checks them and can panic there. Nothing of the trial
    // is used again, and nothing of it reached the file.
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(refused("its pages are damaged".to_owned())))
}

fn why(error: &DatabaseError) -> String {
    match error {
        DatabaseError::DatabaseAlreadyOpen => "another process has it open".to_owned(),
        other => other.to_string(),
    }
}

/// An empty database at `unfinished`, over whatever a start that did not end well has left there.
/// It will hold token hashes and the seeds of Ray's tokens: its owner's business only.
fn begin(unfinished: &Path, path: &Path) -> Result<Database, String> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(unfinished).map_err(|e| e.to_string())?;
    file.try_lock().map_err(|_| "another process is making it".to_owned())?;
    // Under the lock: a process that was faster may have given the file its name already.
    if path.try_exists().map_err(|e| e.to_string())? {
        return Err("another process has just made it".to_owned());
    }
    file.set_len(0).map_err(|e| e.to_string())?;
    Database::builder().create_file(file).map_err(|e| why(&e))
}

/// Gives a finished store its name, durably.
fn publish(finished: &Path, path: &Path) -> std::io::Result<()> {
    std::fs::rename(finished, path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn attempt_key(job: &JobId, number: u32) -> String {
    format!("{job}/{number:010}")
}

fn secret_key(project: &str, name: &str) -> String {
    format!("{project}\0{name}")
}

fn apply(
    transaction: &redb::WriteTransaction,
    write: &Write,
    head: &mut AuditHead,
) -> Result<(), String> {
    let (table, key, value) = match write {
        Write::Job(job) => (JOBS, job.id.to_string(), Some(record::encode_job(job)?)),
        Write::Attempt(attempt) => (
            ATTEMPTS,
            attempt_key(&attempt.job, attempt.number),
            Some(record::encode_attempt(attempt)?),
        ),
        Write::ForgetAttempt { job, number } => (ATTEMPTS, attempt_key(job, *number), None),
        Write::ForgetGang { id } => (GANGS, id.to_string(), None),
        Write::ForgetJob { id } => (JOBS, id.to_string(), None),
        Write::Gang(gang) => (GANGS, gang.id.to_string(), Some(record::encode_gang(gang)?)),
        Write::Node(node) => (NODES, node.id.to_string(), Some(record::encode_node(node)?)),
        Write::JoinToken(token) => {
            (JOIN_TOKENS, token.id.clone(), Some(record::encode_join_token(token)?))
        }
        Write::ForgetJoinToken { id } => (JOIN_TOKENS, id.clone(), None),
        Write::ApiToken(token) => {
            (API_TOKENS, token.name.clone(), Some(record::encode_api_token(token)?))
        }
        Write::Secret(secret) => (
            SECRETS,
            secret_key(&secret.project, &secret.name),
            Some(record::encode_secret(secret)?),
        ),
        Write::Project(project) => {
            (PROJECTS, project.name.clone(), Some(record::encode_project(project)?))
        }
        Write::Usage(usage) => (USAGE, usage.project.clone(), Some(record::encode_usage(usage)?)),
        Write::Pool(pool) => (POOLS, pool.name.clone(), Some(record::encode_pool(pool)?)),
        Write::ForgetPool { name } => (POOLS, name.clone(), None),
        Write::ForgetSecret { project, name } => (SECRETS, secret_key(project, name), None),
        Write::Idempotency(record) => (
            IDEMPOTENCY,
            format!("{}\0{}", record.user, record.key),
            Some(record::encode_idempotency(record)?),
        ),
        Write::ForgetApiToken { name } => (API_TOKENS, name.clone(), None),
        Write::Audit(entry) => {
            let chained = head.chain(entry.clone());
            *head = AuditHead::of(&chained);
            (AUDIT, audit::key(chained.sequence), Some(record::encode_audit(&chained)?))
        }
        Write::ForgetIdempotency { user, key } => (IDEMPOTENCY, format!("{user}\0{key}"), None),
    };
    let mut table = transaction.open_table(table).map_err(|e| e.to_string())?;
    match value {
        Some(bytes) => table.insert(key.as_str(), bytes.as_slice()).map(drop),
        None => table.remove(key.as_str()).map(drop),
    }
    .map_err(|e| e.to_string())
}
