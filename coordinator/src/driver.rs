//! The one thread that owns core and store: take a batch, decide, commit, then act.
//!
//! It is synchronous on purpose: commits block, and no `await` is needed where decisions are made.
//! A failed commit ends the loop with the error; `main` then ends the process.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gangline_common::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::board::Board;
use crate::core::Core;
use crate::core::effect::{Answer, Effects, Examine};
use crate::core::event::{Event, RequestId};
use crate::meters::{self, Meters};
use crate::outbox::Outbox;
use crate::store::{Store, StoreError};

/// Events that wait for the driver; senders wait beyond it.
const MAILBOX: usize = 4096;
/// Events of one batch: more gains nothing (one commit serves them all).
const BATCH: usize = 256;
/// Failed attempts that wait to be looked at.
const EXAMINATIONS: usize = 1024;
/// The clock event.
const TICK: Duration = Duration::from_millis(250);

struct Envelope {
    event: Event,
    reply: Option<(RequestId, oneshot::Sender<Answer>)>,
}

/// The way to the driver, for the API and the sessions.
#[derive(Clone)]
pub struct DriverHandle {
    mailbox: mpsc::Sender<Envelope>,
    next_request: Arc<AtomicU64>,
}

/// The driver has ended: the coordinator is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the coordinator is shutting down")]
pub struct DriverGone;

impl DriverHandle {
    /// Sends an event and waits for its answer, which comes after the durable commit.
    pub async fn ask(&self, make: impl FnOnce(RequestId) -> Event) -> Result<Answer, DriverGone> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let envelope = Envelope { event: make(request), reply: Some((request, sender)) };
        self.mailbox.send(envelope).await.map_err(|_| DriverGone)?;
        receiver.await.map_err(|_| DriverGone)
    }

    /// Sends an event that has no answer.
    pub async fn tell(&self, event: Event) -> Result<(), DriverGone> {
        let envelope = Envelope { event, reply: None };
        self.mailbox.send(envelope).await.map_err(|_| DriverGone)
    }
}

/// A running driver.
pub struct Driver {
    pub handle: DriverHandle,
    pub board: Board,
    /// Attempts that failed, for whoever finds out why. What finds no room is not looked at.
    pub examine: mpsc::Receiver<Examine>,
    /// Answers when the loop has ended: `Ok` after every handle is gone, else the store's error.
    pub ended: oneshot::Receiver<Result<(), StoreError>>,
}

/// Restores the core from the store and starts the loop on its own thread.
pub fn start(mut store: Store, outbox: Outbox, meters: Meters) -> Result<Driver, StoreError> {
    let core = restore(&mut store)?;
    let board = Board::of(&core);
    let (mailbox, inbox) = mpsc::channel(MAILBOX);
    let (examiner, examine) = mpsc::channel(EXAMINATIONS);
    let (end, ended) = oneshot::channel();
    let handle = DriverHandle { mailbox, next_request: Arc::new(AtomicU64::new(1)) };
    let ticking = handle.mailbox.downgrade();
    let mut the_loop = Loop {
        core,
        store,
        outbox,
        board: board.clone(),
        meters,
        inbox,
        examiner,
        waiting: HashMap::new(),
    };
    let thread = std::thread::Builder::new().name("driver".to_owned());
    let spawned = thread.spawn(move || {
        // Nobody listens any more when `main` is already on its way out.
        let _ = end.send(the_loop.run());
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "cannot start the driver thread");
    }
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            interval.tick().await;
            let Some(mailbox) = ticking.upgrade() else { return };
            let tick = Envelope { event: Event::Tick, reply: None };
            if mailbox.send(tick).await.is_err() {
                return;
            }
        }
    });
    Ok(Driver { handle, board, examine, ended })
}

/// Loads every record. Boot-clock times of another boot begin anew.
fn restore(store: &mut Store) -> Result<Core, StoreError> {
    let now = Timestamp::now();
    let mut core = Core::new(store.meta.era, now);
    let boot_id = gangline_common::time::boot_id().unwrap_or_default();
    let rebooted = store.meta.boot_id != boot_id;
    let mut begun_again = Vec::new();
    for mut write in store.load()? {
        write.begin_again(now, rebooted);
        if rebooted {
            begun_again.push(write.clone());
        }
        core.restore(write);
    }
    if rebooted {
        // Or the next start of this boot would find the times of the boot before.
        store.commit(&begun_again)?;
        store.meta.boot_id = boot_id;
        store.write_meta()?;
    }
    Ok(core)
}

struct Loop {
    core: Core,
    store: Store,
    outbox: Outbox,
    board: Board,
    meters: Meters,
    inbox: mpsc::Receiver<Envelope>,
    examiner: mpsc::Sender<Examine>,
    waiting: HashMap<RequestId, oneshot::Sender<Answer>>,
}

impl Loop {
    fn run(&mut self) -> Result<(), StoreError> {
        while let Some(first) = self.inbox.blocking_recv() {
            let mut effects = Effects::default();
            self.take(first, &mut effects);
            for _ in 1..BATCH {
                match self.inbox.try_recv() {
                    Ok(envelope) => self.take(envelope, &mut effects),
                    Err(_) => break,
                }
            }
            let (began, passes) = (Instant::now(), self.core.passes());
            self.core.decide(Timestamp::now(), &mut effects);
            if self.core.passes() != passes {
                self.meters.scheduled(began.elapsed());
            }
            if !effects.writes.is_empty() {
                let began = Instant::now();
                self.store.commit(&effects.writes)?;
                self.meters.committed(began.elapsed());
            }
            self.act(effects);
        }
        Ok(())
    }

    fn take(&mut self, envelope: Envelope, effects: &mut Effects) {
        if let Some((request, sender)) = envelope.reply {
            self.waiting.insert(request, sender);
        }
        let event = envelope.event.name();
        let before = effects.writes.len();
        self.core.take(envelope.event, Timestamp::now(), effects);
        let writes = effects.writes.len() - before;
        tracing::debug!(event, writes, "taken");
    }

    fn act(&mut self, effects: Effects) {
        let starts = meters::starts(&self.board, &effects, Timestamp::now());
        self.board.publish(&effects);
        self.meters.note_starts(&starts, &self.board);
        self.meters.note_ends(&effects);
        // A desired state replaces the one before it: only the newest of a session is made ready.
        let mut told = HashSet::new();
        for push in effects.pushes.into_iter().rev() {
            if told.insert(push.session) {
                self.outbox.push(push);
            }
        }
        for examine in effects.examine {
            if let Err(error) = self.examiner.try_send(examine) {
                tracing::warn!(%error, "a failed attempt is not looked into");
            }
        }
        for clear in effects.clears {
            self.outbox.clear(clear);
        }
        for close in effects.closes {
            self.outbox.close(close);
        }
        for (request, answer) in effects.replies {
            if let Some(sender) = self.waiting.remove(&request) {
                // The caller may have gone; its change is committed all the same.
                let _ = sender.send(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::credential::IdempotencyRecord;
    use crate::core::effect::Write;

    /// Times of the boot before must not come back with the second start of a boot.
    #[test]
    fn a_start_after_a_boot_stores_the_times_that_it_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let long_ago = Timestamp { boot_ms: u64::MAX / 2, wall_ms: 1 };
        let record = IdempotencyRecord {
            user: "alice".to_owned(),
            key: "k".to_owned(),
            body_sha256: [1; 32],
            made: "j1".to_owned(),
            created: long_ago,
        };
        let mut store = Store::open(&path, false, "c").unwrap();
        store.commit(&[Write::Idempotency(record)]).unwrap();
        store.meta.boot_id = "the boot before".to_owned();
        store.write_meta().unwrap();
        restore(&mut store).unwrap();
        drop(store);
        let store = Store::open(&path, false, "c").unwrap();
        assert_eq!(Some(store.meta.boot_id.clone()), gangline_common::time::boot_id());
        let rows = store.load().unwrap();
        let [Write::Idempotency(record)] = rows.as_slice() else { panic!("{rows:?}") };
        assert!(record.created.boot_ms <= Timestamp::now().boot_ms);
    }
}
