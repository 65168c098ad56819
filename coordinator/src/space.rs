//! Room on the disk of the state directory. Before it is full, what would fill it is refused or waits,
//! so that what happens to the jobs that run can be written down (F17).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

/// What is free on the disk, as of the last look. Cheap to clone; the looking ends with the last one.
#[derive(Clone)]
pub struct Space(Arc<Known>);

struct Known {
    free_mib: watch::Sender<u64>,
    reserve_mib: u64,
    directory: PathBuf,
}

/// Less is free than is kept for what runs.
#[derive(Debug, thiserror::Error)]
#[error(
    "the coordinator's disk is nearly full: {free_mib} MiB are free in {directory}, and {reserve_mib} MiB \
     are kept for what runs already"
)]
pub struct NoSpace {
    free_mib: u64,
    reserve_mib: u64,
    directory: String,
}

impl Space {
    /// Begins to look at the disk that holds `directory`.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn watch(directory: &Path, reserve_mib: u64) -> io::Result<Space> {
        let free_mib = watch::Sender::new(free(directory)?);
        let known = Arc::new(Known { free_mib, reserve_mib, directory: directory.to_owned() });
        let looked_at = Arc::downgrade(&known);
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(LOOK_EVERY);
            while let Some(known) = looked_at.upgrade() {
                known.look();
                drop(known);
                interval.tick().await;
            }
        });
        Ok(Space(known))
    }

    /// Whether something new may be kept.
    ///
    /// # Errors
    /// The disk is nearly full.
    pub fn check(&self) -> Result<(), NoSpace> {
        let Known { free_mib, reserve_mib, directory } = &*self.0;
        let (free_mib, reserve_mib) = (*free_mib.borrow(), *reserve_mib);
        if free_mib >= reserve_mib {
            return Ok(());
        }
        let directory = directory.display().to_string();
        Err(NoSpace { free_mib, reserve_mib, directory })
    }

    /// Waits until something new may be kept. Looks at once: much is written in a second.
    pub async fn wait(&self) {
        self.0.look();
        let mut free_mib = self.0.free_mib.subscribe();
        // The sender is in `self`, so that the only outcome is that there is room.
        let _ = free_mib.wait_for(|free| *free >= self.0.reserve_mib).await;
    }
}

impl Known {
    fn look(&self) {
        let now = match free(&self.directory) {
            Ok(now) => now,
            Err(error) => return tracing::warn!(%error, "cannot ask how full the disk is"),
        };
        let before = self.free_mib.send_replace(now);
        match (before < self.reserve_mib, now < self.reserve_mib) {
            (false, true) => tracing::warn!(
                free_mib = now,
                "the disk is nearly full: new jobs and uploads are refused, logs wait"
            ),
            (true, false) => tracing::info!(free_mib = now, "there is room again"),
            _ => {}
        }
    }
}

/// MiB that may be written below a directory.
fn free(directory: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize) / MIB)
}
