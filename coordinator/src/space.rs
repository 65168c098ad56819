//! Room on the disk of the state directory. Before it is full, what would fill it is refused or waits,
//! so that what happens to the jobs that run can be written down (F17).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

/// What is free on the disk, as of the last look. Cheap to clone; the looking ends with the last one.
#[derive(Clone)]
pub struct Space {
    free_mib: watch::Receiver<u64>,
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
        let (sender, free_mib) = watch::channel(free(directory)?);
        let looked_at = directory.to_owned();
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(LOOK_EVERY);
            while !sender.is_closed() {
                interval.tick().await;
                match free(&looked_at) {
                    Ok(now) => {
                        let before = sender.send_replace(now);
                        match (before < reserve_mib, now < reserve_mib) {
                            (false, true) => tracing::warn!(
                                free_mib = now,
                                "the disk is nearly full: new jobs and uploads are refused, logs wait"
                            ),
                            (true, false) => tracing::info!(free_mib = now, "there is room again"),
                            _ => {}
                        }
                    }
                    Err(error) => tracing::warn!(%error, "cannot ask how full the disk is"),
                }
            }
        });
        Ok(Space { free_mib, reserve_mib, directory: directory.to_owned() })
    }

    /// Whether something new may be kept.
    ///
    /// # Errors
    /// The disk is nearly full.
    pub fn check(&self) -> Result<(), NoSpace> {
        let free_mib = *self.free_mib.borrow();
        if free_mib >= self.reserve_mib {
            return Ok(());
        }
        let (reserve_mib, directory) = (self.reserve_mib, self.directory.display().to_string());
        Err(NoSpace { free_mib, reserve_mib, directory })
    }

    /// Waits until something new may be kept.
    pub async fn wait(&self) {
        let mut free_mib = self.free_mib.clone();
        // When nobody looks any more, nobody is kept waiting.
        let _ = free_mib.wait_for(|free| *free >= self.reserve_mib).await;
    }
}

/// MiB that may be written below a directory.
fn free(directory: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize) / MIB)
}
