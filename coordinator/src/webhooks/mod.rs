//! Telling others: every webhook has a task of its own, which reads the notices from the store behind
//! its own cursor. So nobody waits for a slow endpoint, least of all the driver, and nothing is held
//! in memory for it.
//!
//! Told at least once: the cursor is committed after the endpoint has answered. A notice has the
//! same id however often it is told. What cannot be told is given up after a bound and kept as a
//! dead letter.

mod address;
mod alerts;
mod endpoint;
mod payload;
mod troubles;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinHandle;

pub use self::address::{AddressError, Target};
use self::endpoint::Endpoint;
pub use self::payload::{EVENT_ID, SIGNATURE, signature};
pub use self::troubles::{Trouble, Troubles};
use crate::board::Board;
use crate::core::webhooks::{WebhookKey, WebhookRecord};
use crate::driver::DriverHandle;
use crate::secrets::Sealer;
use crate::store::NoticeLog;
use crate::training::Trainings;

/// How endpoints are told.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// For one answer.
    pub timeout: Duration,
    /// Waits between the attempts for one notice: the shortest and the longest. They grow, with jitter.
    pub wait: (Duration, Duration),
    /// Attempts for one notice.
    pub attempts: u32,
    /// A notice that is older has one attempt only: an endpoint that comes back is told of the present.
    pub patience: Duration,
    /// How often alerts that go on are sent again.
    pub again: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            timeout: Duration::from_secs(10),
            wait: (Duration::from_secs(1), Duration::from_secs(60)),
            attempts: 16,
            patience: Duration::from_secs(3600),
            again: Duration::from_secs(60),
        }
    }
}

/// What telling needs. Cheap to clone.
#[derive(Clone)]
pub struct Parts {
    pub driver: DriverHandle,
    pub board: Board,
    pub notices: NoticeLog,
    pub sealer: Sealer,
    /// Name of the cluster.
    pub cluster: String,
    pub pace: Pace,
    pub troubles: Troubles,
    /// Which of them have stalled.
    pub trainings: Trainings,
}

/// Runs until it is dropped, and with it every task.
pub async fn run(parts: Parts) {
    let mut changes = parts.board.notices();
    let mut tasks: BTreeMap<WebhookKey, Task> = BTreeMap::new();
    loop {
        let wanted = parts.board.webhooks().into_iter().map(|(record, _)| record);
        let mut wanted: BTreeMap<WebhookKey, WebhookRecord> =
            wanted.map(|record| (record.key.clone(), record)).collect();
        // A task whose record changed begins again from its cursor.
        tasks.retain(|key, task| {
            let keeps = wanted.get(key) == Some(&task.record) && !task.handle.is_finished();
            if keeps {
                wanted.remove(key);
            }
            keeps
        });
        for (key, record) in wanted {
            let endpoint = Endpoint::new(parts.clone(), record.clone());
            let handle = tokio::spawn(endpoint.run());
            tasks.insert(key, Task { record, handle });
        }
        parts.troubles.keep(tasks.values().map(|task| &task.record));
        if changes.changed().await.is_err() {
            return;
        }
    }
}

struct Task {
    record: WebhookRecord,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}
