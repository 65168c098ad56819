//! The check before a member starts. It asks what the collectors have read anyway, so a healthy node
//! pays no I/O; only where a reading is old, or was bad once, it waits for the next.

use std::time::Duration;

use gangline_common::ids::GpuId;
use gangline_common::time::Timestamp;
use gangline_health::rule::Check;
use gangline_health::{Component, Stale};
use tokio::time::Instant;

use super::{SharedState, lock};

/// A reading older than this is made again first, in milliseconds.
const MAX_AGE_MS: u64 = 30_000;
/// How long a start waits for readings.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Says whether a member may start here now.
#[derive(Clone)]
pub struct Gate(pub(super) SharedState);

impl Gate {
    pub(super) fn new(state: SharedState) -> Self {
        Gate(state)
    }

    /// Waits at most [`PATIENCE`]. `gpus` are those that the member would get: of the others nothing
    /// is asked.
    ///
    /// # Errors
    /// Why it may not, for people.
    pub async fn check(&self, gpus: &[GpuId]) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let waits_for = match self.look(gpus) {
                Ok(stale) if stale.is_empty() => return Ok(()),
                Ok(stale) => stale,
                Err(bad) => return Err(bad),
            };
            if Instant::now() >= deadline {
                return Err(unread(&waits_for));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// What is too old to say, or why there must be no start.
    fn look(&self, gpus: &[GpuId]) -> Result<Vec<Stale>, String> {
        let state = lock(&self.0);
        let concerns = |component: Option<&Component>| match component {
            Some(Component::Gpu(gpu)) => gpus.contains(gpu),
            _ => true,
        };
        let check = state.engine.start_check(Timestamp::now(), MAX_AGE_MS);
        let mut bad = check.bad.iter().filter(|bad| concerns(Some(&bad.component)));
        if let Some(bad) = bad.next() {
            return Err(match bad.evidence.as_str() {
                "" => format!("{}: {}", bad.component, bad.reason),
                evidence => format!("{}: {} ({evidence})", bad.component, bad.reason),
            });
        }
        // The root may have become known by this very start: the first try of it is not waited for.
        let there = |stale: &Stale| {
            stale.check != Check::SharedRoot || state.has_shared_root && stale.age_ms.is_some()
        };
        let stale = check.stale.into_iter();
        Ok(stale.filter(|s| concerns(s.component.as_ref()) && there(s)).collect())
    }
}

fn unread(stale: &[Stale]) -> String {
    let mut names: Vec<&str> = stale.iter().map(|stale| stale.check.word()).collect();
    names.sort_unstable();
    names.dedup();
    format!("no certain reading within {} s of: {}", PATIENCE.as_secs(), names.join(", "))
}
