//! What found no place, remembered from one pass to the next until something comes free.
//!
//! A submission makes nothing free: without this, thousands of waiting gangs would be tried again for
//! each new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::capacity::Slot;
use super::queue::ShapeId;

/// What a gang needs, and its project where that may use no more than so much.
pub(super) type Need = (ShapeId, Option<String>);

/// After this long all is tried again: the reasons count nodes, of which fewer may fit by now.
const REMEMBERED_MS: u64 = 5_000;

#[derive(Debug, Default)]
pub(super) struct Misfits {
    /// Why, as people read it.
    reasons: BTreeMap<Need, Arc<str>>,
    /// Boot time of the last time that nothing was known, in milliseconds.
    since_ms: u64,
}

impl Misfits {
    /// Begins a pass.
    pub fn at(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.since_ms) >= REMEMBERED_MS {
            self.since_ms = now_ms;
            self.reasons.clear();
        }
    }

    /// Something may have come free.
    pub fn forget(&mut self) {
        self.reasons.clear();
    }

    pub fn insert(&mut self, need: Need, reason: Arc<str>) {
        self.reasons.insert(need, reason);
    }

    pub fn reason(&self, need: &Need) -> Option<&Arc<str>> {
        self.reasons.get(need)
    }
}

/// Whether what did not fit is to be tried again, now that a node is as it is: it may fit, or the fleet
/// no longer has what it needs.
pub(super) fn is_news(old: Option<&Slot>, new: &Slot) -> bool {
    let is_open = new.closed.is_none() && !new.revoked;
    let Some(old) = old else { return is_open };
    let is_other = old.kind != new.kind || old.name != new.name || old.revoked != new.revoked;
    let has_more = old.closed.is_some()
        || old.free_gpus.len() < new.free_gpus.len()
        || old.free_cpus_milli < new.free_cpus_milli
        || old.free_memory_bytes < new.free_memory_bytes
        || old.gangs > new.gangs
        || old.held_whole && !new.held_whole;
    is_other || is_open && has_more
}
