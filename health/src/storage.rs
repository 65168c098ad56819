//! Rules about file systems: the shared one, and local disks.

use crate::clock::At;
use crate::latch::Bad;
use crate::part::Part;
use crate::reading::{Canary, LocalDisk, SharedRoot, Usage};
use crate::rule::{Level, Rule};

const CANARY_MS: u64 = 5_000;
/// In hundredths of a percent.
const FULL_WARNING: u64 = 9_500;
const FULL: u64 = 9_800;
const LOCAL_FULL: u64 = 9_000;
const LEAST_FREE_BYTES: u64 = 2_000_000_000;

pub fn on_shared_root(part: &mut Part, root: &SharedRoot, at: At) {
    match &root.canary {
        Some(Canary::Hangs(ms)) if *ms > CANARY_MS => {
            // Not back after all that time is as good as two readings.
            let evidence = format!("not back after {} s", ms / 1000);
            let bad = Bad::new(
                Rule::SharedRoot,
                Level::Degraded,
                "the shared file system hangs",
                evidence,
            );
            part.event(Rule::SharedRoot, bad, at);
        }
        canary => part.check(Rule::SharedRoot, canary.as_ref().and_then(canary_verdict), at),
    }
    let (bytes, inodes) = (root.bytes.per_10_000(), root.inodes.per_10_000());
    let fullest = match (bytes, inodes) {
        (None, None) => None,
        (bytes, inodes) => Some(bytes.unwrap_or(0).max(inodes.unwrap_or(0))),
    };
    let verdict = fullest.map(|fullest| {
        let level = match fullest {
            FULL.. => Level::NoNewJobs,
            FULL_WARNING.. => Level::Warning,
            _ => return None,
        };
        let evidence = format!("bytes {}, inodes {}", percent(bytes), percent(inodes));
        Some(Bad::new(Rule::SharedFull, level, "the shared file system is full", evidence))
    });
    part.check(Rule::SharedFull, verdict, at);
}

/// `None` while a canary is under way and not late.
fn canary_verdict(canary: &Canary) -> Option<Option<Bad>> {
    let evidence = match canary {
        Canary::Done(ms) if *ms <= CANARY_MS => return Some(None),
        Canary::Hangs(_) => return None,
        Canary::Done(ms) => format!("took {ms} ms"),
        Canary::Failed(error) => error.clone(),
    };
    let reason = "the shared file system is slow or refuses";
    Some(Some(Bad::new(Rule::SharedRoot, Level::Degraded, reason, evidence)))
}

pub fn on_local_disk(part: &mut Part, disk: &LocalDisk, at: At) {
    let full = disk.bytes.per_10_000().map(|part| part > LOCAL_FULL);
    let verdict = full.map(|full| {
        let Usage { used, limit } = disk.bytes;
        let free = limit.unwrap_or(0).saturating_sub(used.unwrap_or(0));
        let level = match (full, free < LEAST_FREE_BYTES) {
            (_, true) => Level::NoNewJobs,
            (true, false) => Level::Degraded,
            (false, false) => return None,
        };
        let evidence =
            format!("{} MB free of {} MB", free / 1_000_000, limit.unwrap_or(0) / 1_000_000);
        Some(Bad::new(Rule::LocalDisk, level, "the local disk is full", evidence))
    });
    part.check(Rule::LocalDisk, verdict, at);
}

pub fn percent(per_10_000: Option<u64>) -> String {
    match per_10_000 {
        Some(part) => format!("{}.{:02} %", part / 100, part % 100),
        None => "not read".to_owned(),
    }
}
