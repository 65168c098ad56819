//! Room on the disk of the state directory. Before it is full, what would fill it is refused or waits,
//! so that what happens to the jobs that run can be written down (F17).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Bytes that were taken since the last look, and between it and the one before: they may not have
    /// been on the disk when it was looked at.
    taken: Mutex<[u64; 2]>,
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
        let directory = directory.to_owned();
        let taken = Mutex::default();
        let known = Arc::new(Known { free_mib, reserve_mib, directory, taken });
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
        let Known { free_mib, reserve_mib, directory, .. } = &*self.0;
        let (free_mib, reserve_mib) = (*free_mib.borrow(), *reserve_mib);
        if free_mib >= reserve_mib {
            return Ok(());
        }
        let directory = directory.display().to_string();
        Err(NoSpace { free_mib, reserve_mib, directory })
    }

    /// Takes room for so many bytes that are written next; waits until there is.
    pub async fn take(&self, bytes: u64) {
        let mut looks = self.0.free_mib.subscribe();
        while !self.0.take(bytes) {
            // The sender is in `self`: only a look ends the wait.
            let _ = looks.changed().await;
        }
    }
}

impl Known {
    fn look(&self) {
        let now = match free(&self.directory) {
            Ok(now) => now,
            Err(error) => return tracing::warn!(%error, "cannot ask how full the disk is"),
        };
        {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            *taken = [0, taken[0]];
        }
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

    /// Between two looks no more is taken than there was beyond the reserve.
    fn take(&self, bytes: u64) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all = taken[0] + taken[1] + bytes;
        let fits = *self.free_mib.borrow() >= self.reserve_mib + all.div_ceil(MIB);
        if fits {
            taken[0] += bytes;
        }
        fits
    }
}

/// MiB that may be written below a directory.
fn free(directory: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize) / MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_beyond_the_reserve() {
        let known = Known {
            free_mib: watch::Sender::new(300),
            reserve_mib: 256,
            directory: PathBuf::from("/"),
            taken: Mutex::default(),
        };
        let fitted = (0..100).filter(|_| known.take(3 * MIB)).count();
        assert_eq!(fitted, 14, "of 44 MiB in pieces of 3");
        // What was taken before a look may not be seen by it, but by the one after that.
        *known.taken.lock().unwrap() = [0, 14 * 3 * MIB];
        assert!(!known.take(3 * MIB));
        *known.taken.lock().unwrap() = [0, 0];
        assert!(known.take(3 * MIB));
        assert!(!known.take(1 << 40));
    }
}
