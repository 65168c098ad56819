//! A copy becomes the store, under an era of its own, and with nothing in it that would disturb what
//! runs (F46): the fleet has gone on since the copy was made.
//!
//! Epochs and generations compare as (era, n), so whatever the agents hold is older than the new
//! era, and what the copy says of their gangs is not. Gangs that the copy does not know are reported
//! as unknown and run on. No node takes new work until an operator has looked and resumed it, and a
//! drain of before has no deadline any more.

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
    AUDIT, ENTITIES, META, Meta, STORE_VERSION, Store, StoreError, Table, WRITTEN_BY, begin,
    file_storage, inspect, publish,
};
use crate::ca::write_new;
use crate::core::audit::AuditEntry;
use crate::core::effect::Write;
use crate::core::job::{Transition, remember};
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
#[derive(Debug)]
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

/// A copy, or a store file such as the one that an earlier restore has kept: this is copied beside
/// `path` first.
fn as_copy(source: &Path, path: &Path, now: Timestamp) -> Result<Source, BackupError> {
    let mut begin = [0; 4];
    // A shorter file is neither; the copy's own check says so.
    let _ = io::Read::read(&mut backup::open(source)?, &mut begin)?;
    if begin != *STORE_MAGIC {
        return Ok(Source { path: source.to_owned(), temporary: false });
    }
    let inspection = inspect(source)?;
    let copied = Source { path: path.with_extension("source"), temporary: true };
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let out = io::BufWriter::new(options.open(&copied.path)?);
    inspection.reader().back_up(now.wall_ms, out)?;
    Ok(copied)
}

/// A copy that is restored.
struct Source {
    path: PathBuf,
    temporary: bool,
}

impl Drop for Source {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes `source` the store at `path`: a copy, or a store file that nobody serves. `era_path` is a small file beside it with the highest era so
/// far, for when the replaced store cannot be read.
///
/// # Errors
/// The copy is not whole, a coordinator serves, or the disk fails; see [`RestoreError`].
pub fn restore(
    source: &Path,
    path: &Path,
    era_path: &Path,
    now: Timestamp,
) -> Result<Restored, RestoreError> {
    let bad = |e: BackupError| RestoreError::Backup { path: source.to_owned(), source: e };
    let not_made = |reason: String| RestoreError::NotMade { path: path.to_owned(), reason };
    if source.canonicalize().is_ok_and(|source| path.canonicalize().is_ok_and(|p| p == source)) {
        return Err(bad(io::Error::other("it is the store itself").into()));
    }
    let from = as_copy(source, path, now).map_err(bad)?;
    let copy = backup::open(&from.path).map_err(Into::into).and_then(backup::verify);
    let copy = copy.map_err(bad)?;
    // From here until the new store has its name nobody else opens the old one.
    let old = hold(path)?;
    let unfinished = path.with_extension("new");
    let database = begin(&unfinished).map_err(not_made)?;
    let mut store = fill(&from.path, path, database).map_err(bad)?;
    let before = store.load().map_err(|e| not_made(e.to_string()))?;
    let seen = before.iter().filter_map(era_of);
    let known = [Some(copy.header.era), old.era, read_era(era_path)].into_iter().flatten();
    let era = known.chain(seen).max().unwrap_or(0).saturating_add(1);
    store.meta.era = era;
    store.write_meta().map_err(|e| not_made(e.to_string()))?;
    let made = wall_text(copy.header.wall_ms);
    let mut writes: Vec<Write> =
        before.iter().filter_map(|write| calmed(write, era, &made, now)).collect();
    let nodes = writes.len();
    writes.push(Write::Audit(AuditEntry {
        wall_ms: now.wall_ms,
        actor: "gangline".to_owned(),
        source: None,
        action: "store.restore".to_owned(),
        object: "store".to_owned(),
        detail: format!("from a copy of {made}, era {era}"),
    }));
    store.commit(&writes).map_err(|e| not_made(e.to_string()))?;
    let (waiting, running) = unended(&before);
    drop(store);
    // As the next start will find it.
    inspect(&unfinished).map_err(|e| not_made(e.to_string()))?;

    let failed = |e: io::Error| not_made(e.to_string());
    write_new(era_path, era.to_string().as_bytes(), 0o600)
        .map_err(|e| not_made(format!("{e:#}")))?;
    let replaced = keep(path, now).map_err(failed)?;
    publish(&unfinished, path).map_err(failed)?;
    Ok(Restored { copy, era, replaced, waiting, running, nodes })
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
                    .chain([AUDIT])
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
    let Write::Node(node) = write else { return None };
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

/// How many jobs wait, and how many have started and not ended.
fn unended(writes: &[Write]) -> (usize, usize) {
    let jobs = writes.iter().filter_map(|write| match write {
        Write::Job(job) if !job.state.is_terminal() => Some(job.state),
        _ => None,
    });
    let (waiting, running): (Vec<_>, Vec<_>) =
        jobs.partition(|state| *state == crate::core::job::JobState::Pending);
    (waiting.len(), running.len())
}
