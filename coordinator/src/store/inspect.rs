//! A look at a whole store that changes nothing: every open begins with it, and `check`, `backup` and
//! `restore` use it where no coordinator serves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::trial::TrialBackend;
use super::{STORE_VERSION, Store, StoreError, StoreReader, builder, file_storage, reader, why};
use crate::core::secrets::SecretRecord;

/// A store that was read and checked as a whole. Its file is locked while this lives.
pub struct Inspection {
    /// Layout of the file. What is read here has this build's: an older one is migrated in memory.
    pub layout: u32,
    store: Store,
}

impl Inspection {
    pub fn reader(&self) -> StoreReader {
        self.store.reader()
    }

    /// See [`Store::secrets`].
    pub fn secrets(&self) -> Result<Vec<Arc<SecretRecord>>, StoreError> {
        self.store.secrets()
    }

    pub fn era(&self) -> u32 {
        self.store.meta.era
    }
}

/// Reads every page and every record of the file at `path` and changes nothing.
///
/// # Errors
/// `Taken` while a coordinator serves it, else why it would be refused.
pub fn inspect(path: &Path) -> Result<Inspection, StoreError> {
    of(path, file_storage(path).map_err(|e| why(path, &e))?)
}

/// The same for any storage.
pub(super) fn of(path: &Path, storage: impl StorageBackend) -> Result<Inspection, StoreError> {
    let refused = |reason: String| StoreError::Refused { path: path.to_owned(), reason };
    let run = || {
        let backend = TrialBackend::new(storage).map_err(|e| refused(e.to_string()))?;
        let mut database = builder().create_with_backend(backend).map_err(|e| why(path, &e))?;
        if !database.check_integrity().map_err(|e| why(path, &e))? {
            return Err(refused("its pages contradict each other".to_owned()));
        }
        let written = reader::layout(&database).map_err(refused)?;
        let (path, found) = (path.to_owned(), written.version);
        if found > STORE_VERSION {
            return Err(StoreError::Newer { path, found, written_by: written.written_by });
        }
        let mut store = Store::unread(&path, database);
        if found < STORE_VERSION {
            store.migrate(found).map_err(|error| match error {
                StoreError::Failed { reason, .. } => {
                    refused(format!("it has layout {found} and cannot be migrated: {reason}"))
                }
                other => other,
            })?;
        }
        store.read_heads()?;
        store.load()?;
        Ok(Inspection { layout: found, store })
    };
    // redb loads parts of a file before it checks them and can panic there. Nothing of the trial
    // is used again, and nothing of it reached the file.
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(refused("its pages are damaged".to_owned())))
}
