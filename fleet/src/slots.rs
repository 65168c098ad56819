//! Shares of one machine that parallel tests must not take twice: places for Ray gangs, and ranges
//! of ports. Whatever runs the tests (threads of one process, or many processes), a lock file is
//! the place. The files lie in the system's temp directory, because checkouts share the ports.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// Ray gangs at a time.
const HEAVY: u16 = 2;
/// Port ranges of the default range of 20000 to 32767.
const RANGES: u16 = 8;
const PORTS_PER_RANGE: u16 = 1590;

/// Held for its lock, which goes with the file.
pub struct Slot {
    number: u16,
    _lock: File,
}

/// Waits for a place for a Ray gang.
pub async fn heavy() -> anyhow::Result<Slot> {
    any_of("heavy", HEAVY).await
}

/// A range of ports that no other fleet uses, first and last.
pub async fn ports() -> anyhow::Result<(Slot, (u16, u16))> {
    let slot = any_of("ports", RANGES).await?;
    let base = 20_000 + slot.number * PORTS_PER_RANGE;
    Ok((slot, (base, base + PORTS_PER_RANGE - 1)))
}

async fn any_of(what: &str, count: u16) -> anyhow::Result<Slot> {
    let directory = std::env::temp_dir();
    loop {
        for number in 0..count {
            let lock = File::create(directory.join(format!("gangline-{what}-{number}.lock")))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Slot { number, _lock: lock });
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
