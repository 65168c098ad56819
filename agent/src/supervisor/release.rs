//! The last step of a member's life: its logs go below the shared root and its spool goes away.
//!
//! A shared root may hang for hours, so the spool is first moved aside, which is instant, and the
//! copy is made in the background. What is left of a copy when the agent ends is taken up again
//! by the next one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::births::Nursery;
use super::{SupervisorConfig, SupervisorError, files, spool};

/// How long the copy of one member's logs may take.
const COPY_TIMEOUT: Duration = Duration::from_secs(600);
/// Copies at once: a hanging share must not pile up helpers.
const COPIES: usize = 2;

/// Copies logs of released members, a few at a time.
#[derive(Clone)]
pub struct Archive {
    directory: PathBuf,
    nursery: Arc<Nursery>,
    slots: Arc<Semaphore>,
}

impl Archive {
    pub fn new(config: &SupervisorConfig, nursery: Arc<Nursery>) -> Self {
        Archive {
            directory: config.state_dir.join("released"),
            nursery,
            slots: Arc::new(Semaphore::new(COPIES)),
        }
    }

    /// Takes up what an earlier agent left. Needs the runtime.
    pub fn resume(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            self.clone().spawn(entry.path());
        }
    }

    /// Moves a spool aside and lets its logs be copied. Blocks shortly; needs the runtime.
    pub fn take(&self, spool: &Path) -> Result<(), SupervisorError> {
        let error = |source| SupervisorError::Release { path: spool.to_owned(), source };
        let Some(name) = spool.file_name() else {
            return Err(error(std::io::ErrorKind::InvalidInput.into()));
        };
        std::fs::create_dir_all(&self.directory).map_err(error)?;
        let aside = self.directory.join(name);
        match std::fs::rename(spool, &aside) {
            Ok(()) => self.clone().spawn(aside),
            Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => {}
            Err(other) => return Err(error(other)),
        }
        Ok(())
    }

    fn spawn(self, spool: PathBuf) {
        tokio::spawn(async move { self.finish(spool).await });
    }

    async fn finish(self, spool: PathBuf) {
        // The semaphore is never closed, so the only outcome is a slot.
        let Ok(_slot) = self.slots.acquire().await else { return };
        let copied = match spool::log_copy(&spool) {
            Ok(Some(copy)) => {
                let logs = spool::spooled_logs(&spool);
                let logs: Vec<_> = logs.into_iter().filter(|(_, path)| path.exists()).collect();
                files::copy_logs(&self.nursery, &copy, &logs, COPY_TIMEOUT)
                    .await
                    .map_err(|error| format!("{copy}: {error}"))
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = copied {
            // The coordinator has every byte; only the convenience below the shared root is gone.
            tracing::warn!(spool = %spool.display(), %error, "logs were not copied");
        }
        if let Err(error) = tokio::fs::remove_dir_all(&spool).await {
            tracing::warn!(spool = %spool.display(), %error, "spool was not removed");
        }
    }
}
