//! Keeps the logs of jobs within their time and size: now and then a pass over all of them, with what
//! the board says of the attempts that wrote them.

use std::collections::HashMap;
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId};
use gangline_common::time::Timestamp;

use crate::board::{Board, JobSnapshot};
use crate::config::Config;
use crate::core::gang::GangState;
use crate::core::job::{Attempt, Outcome};
use crate::ingest::logs::{Fate, Logs, Policy};
use crate::space::Space;

/// When the first pass begins, and the time between two.
const FIRST: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(600);
const DAY_MS: u64 = 24 * 3600 * 1000;

/// How long a configuration keeps logs.
pub fn policy(config: &Config) -> Policy {
    Policy {
        keep_ms: u64::from(config.logs_keep_days) * DAY_MS,
        keep_failed_ms: u64::from(config.logs_keep_failed_days) * DAY_MS,
        max_bytes: u64::from(config.logs_max_gib) << 30,
    }
}

/// Runs for as long as the coordinator does.
pub async fn run(logs: Logs, board: Board, space: Space, policy: Policy) {
    tokio::time::sleep(FIRST).await;
    loop {
        let (logs, board, space) = (logs.clone(), board.clone(), space.clone());
        let pass = move || {
            let fates = fates(&board);
            let fate = |gang: &GangId, epoch| fates.get(&(gang.clone(), epoch)).copied();
            let room = || space.check().is_ok();
            logs.sweep(fate, policy, Timestamp::now().wall_ms, room)
        };
        match tokio::task::spawn_blocking(pass).await {
            Ok(Ok(swept)) if swept.packed + swept.removed > 0 => {
                tracing::info!(?swept, "logs kept")
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the directory of logs cannot be read"),
            Err(error) => tracing::error!(%error, "the pass over all logs failed"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// What became of every attempt that had a gang of its own.
fn fates(board: &Board) -> HashMap<(GangId, Epoch), Fate> {
    let mut fates = HashMap::new();
    for job in board.jobs() {
        let Some(snapshot) = board.job(&job.id) else { continue };
        for attempt in snapshot.attempts.iter().filter(|attempt| attempt.guest.is_none()) {
            fates.insert((attempt.gang.clone(), attempt.epoch), fate(&snapshot, attempt));
        }
        // Between two attempts, or rolled back: nothing says yet that it is over.
        if let Some(gang) = snapshot.gang.filter(|gang| gang.is_live()) {
            fates.insert((gang.id.clone(), gang.epoch), Fate::Live);
        }
    }
    fates
}

fn fate(snapshot: &JobSnapshot, attempt: &Attempt) -> Fate {
    let stands = snapshot
        .gang
        .as_ref()
        .is_some_and(|gang| gang.epoch == attempt.epoch && gang.state != GangState::Stopped);
    match (&attempt.outcome, attempt.ended) {
        (Some(outcome), Some(ended)) if !stands => Fate::Ended {
            at_ms: ended.wall_ms,
            failed: outcome.is_failure() || matches!(outcome, Outcome::TimedOut { .. }),
        },
        _ => Fate::Live,
    }
}
