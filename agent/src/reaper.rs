//! Collecting dead orphans, as process 1 of a container and every subreaper has to.
//!
//! Children that this program waits for itself are collected within milliseconds of their death.
//! A zombie that is seen at two looks in a row is therefore nobody's, and collecting it takes no
//! exit status away from anybody.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};
use tokio::time::MissedTickBehavior;

use crate::supervisor::process::{self, ProcessId};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Makes orphans of members' processes children of this process instead of the container's first
/// one, which may never collect them.
pub fn become_subreaper() {
    let own = Some(rustix::process::getpid());
    if let Err(error) = rustix::process::set_child_subreaper(own) {
        tracing::warn!(%error, "cannot become a subreaper; the container's first process has to \
            collect orphans");
    }
}

/// Collects orphans until it is dropped.
pub async fn run() {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = BTreeSet::new();
    loop {
        ticks.tick().await;
        let look = tokio::task::spawn_blocking(zombies).await;
        let Ok(now) = look else { return };
        for orphan in now.intersection(&seen) {
            collect(*orphan);
        }
        seen = now;
    }
}

/// Dead children of this process that nobody has waited for yet.
fn zombies() -> BTreeSet<ProcessId> {
    // One call instead of a walk through all processes of the host, as nearly always nothing is dead.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if !matches!(waitid(WaitId::All, options), Ok(Some(_))) {
        return BTreeSet::new();
    }
    let own = std::process::id();
    let dead = |stat: &process::Stat| stat.parent == own && stat.state == b'Z';
    process::all().into_iter().filter(dead).map(|stat| stat.id).collect()
}

fn collect(orphan: ProcessId) {
    let Some(pid) = i32::try_from(orphan.pid).ok().and_then(Pid::from_raw) else { return };
    // Otherwise somebody was quicker, which is as good.
    if let Ok(Some(_)) = waitpid(Some(pid), WaitOptions::NOHANG) {
        tracing::debug!(pid = orphan.pid, "collected an orphan");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_child_is_found_and_collected_once() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let own = |ids: &BTreeSet<ProcessId>| ids.iter().find(|id| id.pid == child.id()).copied();
        let mut found = None;
        while found.is_none() {
            found = own(&zombies());
            std::thread::yield_now();
        }
        collect(found.unwrap());
        assert_eq!(own(&zombies()), None);
        assert!(child.wait().is_err(), "its status was taken, as an orphan's is");
    }
}
