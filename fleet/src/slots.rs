//! A place for heavy tests: at most two Ray gangs at a time on one machine, whatever runs the
//! tests (threads of one process, or many processes).

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

const SLOTS: usize = 2;

/// Held while a test uses Ray; the lock goes with the file.
pub struct Slot(#[expect(dead_code, reason = "held for its lock")] File);

/// Waits for a free slot below the target directory.
pub async fn heavy(target: &Path) -> anyhow::Result<Slot> {
    loop {
        for number in 0..SLOTS {
            let file = File::create(target.join(format!("heavy-{number}.lock")))?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Slot(file));
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
