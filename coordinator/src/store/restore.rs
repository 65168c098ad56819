//! A copy becomes the store, under an era of its own, and with nothing in it that would disturb what
//! runs (F46): the fleet has gone on since the copy was made.
//!
//! Epochs and generations compare as (era, n), so whatever the agents hold is older than the new
//! era, and what the copy says of their gangs is not. Gangs that the copy does not know are reported
//! as unknown and run on. No node takes new work until an operator has looked and resumed it, a job
//! that waits is held until somebody releases it, and a drain of before has no deadline any more.

use std::any::Any;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gangline_common::time::{Timestamp, wall_text};
use redb::{Database, StorageBackend, TableHandle};

use super::backup::{self, BackupError, Reader, Summary};
use super::record::{self, Layout};
use super::{
    ENTITIES, LOGS, META, Meta, STORE_VERSION, Store, StoreError, Table, WRITTEN_BY, begin,
    file_storage, inspect, publish,
};
use crate::ca::write_new;
use crate::core::audit::AuditEntry;
use crate::core::controls::Hold;
use crate::core::effect::Write;
use crate::core::job::{Job, JobState, Transition, remember};
use crate::core::node::{Cordon, Node};

/// Begin of a file of the database.
const STORE_MAGIC: &[u8; 4] = b"redb";
/// Rows of one transaction while the new store is made.
const ROWS: usize = 4096;

/// Nothing was restored, and the store is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("backup {path}: {source}. Nothing was changed")]
    Backup { path: PathBuf, source: BackupError },
    #[error("store {path}: a coordinator serves it. Stop it first; nothing was changed")]
    Serving { path: PathBuf },
    #[error("store {path}: {reason}. The store was not replaced")]
    NotMade { path: PathBuf, reason: String },
}

/// What was done.
#[derive(Debug, Clone)]
pub struct Restored {
    pub copy: Summary,
    pub era: u32,
    /// Where the replaced store is now, if there was one.
    pub replaced: Option<PathBuf>,
    /// Jobs of the copy that wait in the queue: they may have run since.
    pub waiting: usize,
    /// Jobs of the copy that had started and not ended.
    pub running: usize,
    pub nodes: usize,
}

/// What to restore, and where.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// A copy, or a store file that nobody serves, such as one that an earlier restore has kept.
    pub source: &'a Path,
    pub store: &'a Path,
    /// A small file with the highest era so far, for when the replaced store cannot be read.
    pub era_file: &'a Path,
    /// For when both were lost: the new era is not below this.
    pub least_era: u32,
    pub now: Timestamp,
}

impl Request<'_> {
    fn bad(&self, source: impl Into<BackupError>) -> RestoreError {
        RestoreError::Backup { path: self.source.to_owned(), source: source.into() }
    }

    fn not_made(&self, reason: impl ToString) -> RestoreError {
        RestoreError::NotMade { path: self.store.to_owned(), reason: reason.to_string() }
    }
}

/// A file that goes when it has served.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It may have got another name.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes the source the store.
///
/// # Errors
/// The source is not whole, a coordinator serves, or the disk fails; see [`RestoreError`].
pub fn restore(request: Request<'_>) -> Result<Restored, RestoreError> {
    let Request { source, store: path, era_file, now, .. } = request;
    if source.canonicalize().is_ok_and(|source| path.canonicalize().is_ok_and(|p| p == source)) {
        return Err(request.bad(io::Error::other("it is the store itself")));
    }
    let copied = copy_of_store(&request).map_err(|e| request.bad(e))?;
    let from = copied.as_ref().map_or(source, |temporary| &temporary.0);
    let copy = backup::open(from).map_err(Into::into).and_then(backup::verify);
    let copy = copy.map_err(|e| request.bad(e))?;
    // From here until the new store has its name nobody else opens the old one.
    let old = hold(path)?;
    let unfinished = Temporary(path.with_extension("new"));
    let database = begin(&unfinished.0).map_err(|e| request.not_made(e))?;
    let store = fill(from, path, database).map_err(|e| request.bad(e))?;
    let restored = calm(store, copy, old.era, &request).map_err(|e| request.not_made(e))?;
    // As the next start will find it.
    let found = inspect(&unfinished.0).and_then(|found| found.reader().check());
    found.map_err(|e| request.not_made(e))?;

    write_new(era_file, restored.era.to_string().as_bytes(), 0o600)
        .map_err(|e| request.not_made(format!("{e:#}")))?;
    let replaced = keep(path, now).map_err(|e| request.not_made(e))?;
    publish(&unfinished.0, path).map_err(|e| request.not_made(e))?;
    Ok(Restored { replaced, ..restored })
}

/// A copy of the source beside the store, when that is a store file.
fn copy_of_store(request: &Request<'_>) -> Result<Option<Temporary>, BackupError> {
    let mut begin = [0; 4];
    // A shorter file is neither; the check of the copy says so.
    let _ = io::Read::read(&mut backup::open(request.source)?, &mut begin)?;
    if begin != *STORE_MAGIC {
        return Ok(None);
    }
    let inspection = inspect(request.source)?;
    let copied = Temporary(request.store.with_extension("source"));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let out = io::BufWriter::new(options.open(&copied.0)?);
    inspection.reader().back_up(request.now.wall_ms, out)?;
    Ok(Some(copied))
}

/// Gives the new store its era, and takes out of it what would disturb.
fn calm(
    mut store: Store,
    copy: Summary,
    old_era: Option<u32>,
    request: &Request<'_>,
) -> Result<Restored, StoreError> {
    let before = store.load()?;
    let seen = before.iter().filter_map(era_of);
    let known = [Some(copy.header.era), old_era, read_era(request.era_file)];
    let newest = known.into_iter().flatten().chain(seen).max().unwrap_or(0);
    let era = newest.saturating_add(1).max(request.least_era);
    store.meta.era = era;
    store.write_meta()?;
    let made = wall_text(copy.header.wall_ms);
    let calmed = |write| calmed(write, era, &made, request.now);
    let mut writes: Vec<Write> = before.iter().filter_map(calmed).collect();
    let nodes = before.iter().filter(|write| matches!(write, Write::Node(_))).count();
    writes.push(Write::Audit(AuditEntry {
        wall_ms: request.now.wall_ms,
        actor: "gangline".to_owned(),
        source: None,
        action: "store.restore".to_owned(),
        object: "store".to_owned(),
        detail: format!("from a copy of {made}, era {era}"),
    }));
    store.commit(&writes)?;
    let (waiting, running) = unended(&before);
    Ok(Restored { copy, era, replaced: None, waiting, running, nodes })
}

/// What is at the place of the store now.
struct Old {
    /// When it can be read.
    era: Option<u32>,
    /// Whatever holds its lock.
    _lock: Option<Box<dyn Any>>,
}

fn hold(path: &Path) -> Result<Old, RestoreError> {
    let taken = || RestoreError::Serving { path: path.to_owned() };
    let nothing = Old { era: None, _lock: None };
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => return Ok(nothing),
        Err(e) => {
            return Err(RestoreError::NotMade { path: path.to_owned(), reason: e.to_string() });
        }
    }
    match inspect(path) {
        Ok(inspection) => {
            return Ok(Old { era: Some(inspection.era()), _lock: Some(Box::new(inspection)) });
        }
        Err(StoreError::Taken { .. }) => return Err(taken()),
        Err(error) => tracing::info!(%error, "the store that is replaced"),
    }
    match file_storage(path) {
        Ok(storage) => match storage.try_lock_range(Bound::Unbounded, Bound::Unbounded) {
            Ok(true) => Ok(Old { era: None, _lock: Some(Box::new(storage)) }),
            _ => Err(taken()),
        },
        // Empty, or not readable at all: nobody serves that.
        Err(_) => Ok(nothing),
    }
}

/// Gives the replaced file a second name; its first is taken over by the new store.
fn keep(path: &Path, now: Timestamp) -> io::Result<Option<PathBuf>> {
    if !path.try_exists()? {
        return Ok(None);
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".replaced-{}", now.wall_ms / 1000));
    let kept = PathBuf::from(name);
    std::fs::hard_link(path, &kept)?;
    Ok(Some(kept))
}

/// The era that a record names.
fn era_of(write: &Write) -> Option<u32> {
    match write {
        Write::Node(node) => Some(node.generation.era),
        Write::Gang(gang) => Some(gang.epoch.era),
        _ => None,
    }
}

fn read_era(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A store of this build's layout with every row of the copy.
fn fill(source: &Path, path: &Path, database: Database) -> Result<Store, BackupError> {
    let mut reader = Reader::begin(backup::open(source)?)?;
    let header = reader.header().clone();
    let boot_id = gangline_common::time::boot_id().unwrap_or_default();
    let meta = Meta { era: header.era, cluster: header.cluster.clone(), boot_id };
    let mut store = Store::create_on(path, database, meta)?;
    let layout = Layout { version: header.store_version, written_by: WRITTEN_BY.to_owned() };
    let bytes = record::encode_meta(&layout, &store.meta);
    store.transact(|transaction| insert(transaction, META, "meta", &bytes))?;
    loop {
        let mut rows = Vec::new();
        while rows.len() < ROWS
            && let Some(row) = reader.next_row()?
        {
            rows.push(row);
        }
        if rows.is_empty() {
            break;
        }
        store.transact(|transaction| {
            for row in &rows {
                let table = ENTITIES
                    .into_iter()
                    .chain(LOGS)
                    .find(|table| table.name() == row.table)
                    .ok_or_else(|| format!("there is no table {}", row.table))?;
                insert(transaction, table, &row.key, &row.value)?;
            }
            Ok(())
        })?;
    }
    if header.store_version < STORE_VERSION {
        store.migrate(header.store_version)?;
    }
    store.read_heads()?;
    Ok(store)
}

fn insert(
    transaction: &redb::WriteTransaction,
    table: Table,
    key: &str,
    value: &[u8],
) -> Result<(), String> {
    let mut table = transaction.open_table(table).map_err(|e| e.to_string())?;
    table.insert(key, value).map(drop).map_err(|e| e.to_string())
}

/// A record of the copy that must change, so that nothing is done by it before a person has looked.
fn calmed(write: &Write, era: u32, made: &str, now: Timestamp) -> Option<Write> {
    let node = match write {
        Write::Node(node) => node,
        Write::Job(job) => return held(job, made, now).map(Arc::new).map(Write::Job),
        _ => return None,
    };
    let mut node = Node::clone(node);
    // Newer than anything that its agent holds.
    node.generation.era = era;
    let why = format!("the store was restored from a copy of {made}: look at what runs here");
    if let Some(drain) = &mut node.drain {
        drain.deadline_ms = None;
    }
    remember(
        &mut node.history,
        Transition {
            wall_ms: now.wall_ms,
            state: "cordoned".to_owned(),
            actor: "gangline".to_owned(),
            text: why.clone(),
        },
    );
    node.cordon.get_or_insert(Cordon { by: "gangline".to_owned(), why });
    Some(Write::Node(Arc::new(node)))
}

/// A job that waits in the copy: it may have run since, so that nobody but a person starts it.
fn held(job: &Job, made: &str, now: Timestamp) -> Option<Job> {
    if job.state != JobState::Pending || job.hold.is_some() {
        return None;
    }
    let mut job = Job::clone(job);
    let why = format!("the store was restored from a copy of {made}: has it run since?");
    job.note(now, "gangline", format!("held: {why}"));
    job.reason = format!("held by gangline: {why}");
    job.hold = Some(Hold { by: "gangline".to_owned(), why, since: now });
    job.eligible = None;
    Some(job)
}

/// How many jobs wait, and how many have started and not ended.
fn unended(writes: &[Write]) -> (usize, usize) {
    let jobs = writes.iter().filter_map(|write| match write {
        Write::Job(job) if !job.state.is_terminal() => Some(job.state),
        _ => None,
    });
    let (waiting, running): (Vec<_>, Vec<_>) = jobs.partition(|state| *state == JobState::Pending);
    (waiting.len(), running.len())
}
