//! The check before a member starts. It asks what the collectors have read anyway, so a healthy node
//! pays no I/O; only where a reading is old, or was bad once, it waits for the next. That comes within
//! five seconds: the shared file system, which is tried less often otherwise, is tried again as well.

use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::GpuId;
use gangline_common::time::Timestamp;
use gangline_health::rule::Check;
use gangline_health::{Component, Stale};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{SharedJudge, lock};

/// A reading older than this is made again first, in milliseconds.
const MAX_AGE_MS: u64 = 30_000;
/// How long a start waits for readings.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Least time from asking for a reading to asking for another.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Says whether a member may start here now.
#[derive(Clone)]
pub struct Gate {
    pub(super) judge: SharedJudge,
    /// Tells who tries the shared file system not to wait for its next time.
    try_shared: Arc<Notify>,
}

impl Gate {
    pub(super) fn new(judge: SharedJudge) -> Self {
        Gate { judge, try_shared: Arc::default() }
    }

    /// Told when the shared file system is to be tried at once.
    pub fn try_shared(&self) -> Arc<Notify> {
        Arc::clone(&self.try_shared)
    }

    /// Waits at most [`PATIENCE`]. `gpus` are those that the member would get: of the others nothing
    /// is asked.
    ///
    /// # Errors
    /// Why it may not, for people.
    pub async fn check(&self, gpus: &[GpuId]) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let mut ask_at = Instant::now();
        loop {
            let waits_for = match self.look(gpus) {
                Ok(stale) if stale.is_empty() => return Ok(()),
                Ok(stale) => stale,
                Err(bad) => return Err(bad),
            };
            if Instant::now() >= deadline {
                return Err(unread(&waits_for));
            }
            if Instant::now() >= ask_at && waits_for.iter().any(is_of_shared_root) {
                ask_at = Instant::now() + ASK_AGAIN;
                self.try_shared.notify_one();
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// What is too old to say, or why there must be no start.
    pub(super) fn look(&self, gpus: &[GpuId]) -> Result<Vec<Stale>, String> {
        let judge = lock(&self.judge);
        let concerns = |component: Option<&Component>| match component {
            Some(Component::Gpu(gpu)) => gpus.contains(gpu),
            _ => true,
        };
        let check = judge.engine.start_check(Timestamp::now(), MAX_AGE_MS);
        let mut bad = check.bad.iter().filter(|bad| concerns(Some(&bad.component)));
        if let Some(bad) = bad.next() {
            return Err(match bad.evidence.as_str() {
                "" => format!("{}: {}", bad.component, bad.reason),
                evidence => format!("{}: {} ({evidence})", bad.component, bad.reason),
            });
        }
        // The root may have become known by this very start: the first try of it is not waited for.
        let there = |stale: &Stale| {
            stale.check != Check::SharedRoot || judge.has_shared_root && stale.age_ms.is_some()
        };
        let stale = check.stale.into_iter();
        Ok(stale.filter(|s| concerns(s.component.as_ref()) && there(s)).collect())
    }
}

fn is_of_shared_root(stale: &Stale) -> bool {
    stale.check == Check::SharedRoot
}

fn unread(stale: &[Stale]) -> String {
    let mut names: Vec<&str> = stale.iter().map(|stale| stale.check.word()).collect();
    names.sort_unstable();
    names.dedup();
    format!("no certain reading within {} s of: {}", PATIENCE.as_secs(), names.join(", "))
}
