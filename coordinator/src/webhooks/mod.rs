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

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_common::time::Timestamp;
use tokio::task::JoinHandle;

pub use self::address::{AddressError, Target};
use self::endpoint::Endpoint;
pub use self::payload::{EVENT_ID, SIGNATURE, signature};
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

/// Who could not be told at the last attempt. Cheap to clone; no more than there are webhooks.
#[derive(Clone, Default)]
pub struct Troubles(Arc<Mutex<BTreeMap<WebhookKey, Trouble>>>);

/// The attempts that have failed since the last one that did not.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub attempts: u64,
    /// When the first of them failed, by the wall clock.
    pub since_ms: u64,
    /// Why the last one did, without the address.
    pub cause: String,
}

impl Troubles {
    /// `None` for a webhook that is well, or has not been tried.
    pub fn of(&self, key: &WebhookKey) -> Option<Trouble> {
        self.lock().get(key).cloned()
    }

    fn failed(&self, key: &WebhookKey, cause: &str) {
        let since_ms = Timestamp::now().wall_ms;
        let new = || Trouble { attempts: 0, since_ms, cause: String::new() };
        let mut troubles = self.lock();
        let trouble = troubles.entry(key.clone()).or_insert_with(new);
        trouble.attempts += 1;
        cause.clone_into(&mut trouble.cause);
    }

    fn end(&self, key: &WebhookKey) {
        self.lock().remove(key);
    }

    // The map is whole after every statement.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<WebhookKey, Trouble>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            match keeps {
                true => drop(wanted.remove(key)),
                false => parts.troubles.end(key),
            }
            keeps
        });
        for (key, record) in wanted {
            let endpoint = Endpoint::new(parts.clone(), record.clone());
            let handle = tokio::spawn(endpoint.run());
            tasks.insert(key, Task { record, handle });
        }
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
