//! What found no place, remembered from one pass to the next until something comes free.
//!
//! A submission makes nothing free: without this, thousands of waiting gangs would be tried again for
//! each new one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::capacity::Slot;
use super::job::JobRequest;
use super::queue::ShapeId;

/// What a gang needs, and its project where that may use no more than so much.
pub(super) type Need = (ShapeId, Option<String>);

/// After this long all is tried again: the reasons count nodes, of which fewer may fit by now.
const REMEMBERED_MS: u64 = 5_000;

#[derive(Debug, Default)]
pub(super) struct Misfits {
    known: BTreeMap<Need, Misfit>,
    /// Boot time of the last time that nothing was known, in milliseconds.
    since_ms: u64,
}

#[derive(Debug)]
struct Misfit {
    /// Those that it may use; empty for all.
    pools: Vec<String>,
    /// Why, as people read it.
    reason: Arc<str>,
}

impl Misfits {
    /// Begins a pass.
    pub fn at(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.since_ms) >= REMEMBERED_MS {
            self.since_ms = now_ms;
            self.known.clear();
        }
    }

    /// Something may have come free anywhere.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// Something may have come free in these pools.
    pub fn forget_pools(&mut self, freed: &BTreeSet<String>) {
        if freed.is_empty() {
            return;
        }
        let is_freed = |pool: &String| freed.contains(pool);
        self.known
            .retain(|_, misfit| !misfit.pools.is_empty() && !misfit.pools.iter().any(is_freed));
    }

    /// A project holds less than before.
    pub fn forget_project(&mut self, project: &str) {
        self.known.retain(|(_, limited), _| limited.as_deref() != Some(project));
    }

    pub fn insert(&mut self, need: Need, request: &JobRequest, reason: Arc<str>) {
        self.known.insert(need, Misfit { pools: request.pools.clone(), reason });
    }

    pub fn reason(&self, need: &Need) -> Option<&Arc<str>> {
        self.known.get(need).map(|misfit| &misfit.reason)
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
