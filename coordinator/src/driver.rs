//! The one thread that owns the core: take a batch, decide, then have it committed and acted on
//! (`finish`).
//!
//! It is synchronous on purpose: commits block, and no `await` is needed where decisions are made.
//! A failed commit ends the loop with the error; `main` then ends the process.

mod finish;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_common::time::Timestamp;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::board::Board;
use crate::core::Core;
use crate::core::effect::{Answer, Examine};
use crate::core::event::{Event, RequestId};
use crate::meters::Meters;
use crate::outbox::Outbox;
use crate::store::{Store, StoreError};
use finish::{Batch, Finisher, Queue, Reply, Stopped};

/// Events that wait for the driver; senders wait beyond it.
const MAILBOX: usize = 4096;
/// Events of one batch: more gains nothing (one commit serves them all).
const BATCH: usize = 256;
/// Writes with which a batch is full while more events wait: to decide them while this one is
/// committed gains more than one commit less.
const FULL: usize = 192;
/// Failed attempts that wait to be looked at.
const EXAMINATIONS: usize = 1024;
/// Words of nodes wait so long for others at most: to wake the driver for each of ten thousand a second
/// takes more time than to hear them. A node is suspect so much later at most: a hundredth of the time
/// that it may be silent.
const GATHER: Duration = Duration::from_millis(25);
/// The clock event.
const TICK: Duration = Duration::from_millis(250);

/// What the driver is sent; without an event only to wake it.
struct Envelope {
    event: Option<Event>,
    reply: Option<Reply>,
}

/// Events that wait for others, at most [`MAILBOX`], so that the driver is woken once for all of them.
///
/// It takes them whenever it is woken, and before whatever else waits: nothing that is sent to the mailbox
/// after one of them overtakes it.
#[derive(Default)]
struct Gathering {
    events: Mutex<Vec<Event>>,
    begun: Notify,
}

impl Gathering {
    /// Adds an event; gives it back when there are too many.
    fn add(&self, event: Event) -> Option<Event> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() >= MAILBOX {
            return Some(event);
        }
        events.push(event);
        if events.len() == 1 {
            self.begun.notify_one();
        }
        None
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The way to the driver, for the API and the sessions.
#[derive(Clone)]
pub struct DriverHandle {
    mailbox: mpsc::Sender<Envelope>,
    gathering: Arc<Gathering>,
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
        let envelope = Envelope { event: Some(make(request)), reply: Some((request, sender)) };
        self.mailbox.send(envelope).await.map_err(|_| DriverGone)?;
        receiver.await.map_err(|_| DriverGone)
    }

    /// Sends an event that has no answer.
    pub async fn tell(&self, event: Event) -> Result<(), DriverGone> {
        let envelope = Envelope { event: Some(event), reply: None };
        self.mailbox.send(envelope).await.map_err(|_| DriverGone)
    }

    /// Sends an event that has no answer and can wait some milliseconds. It may overtake what was sent before
    /// it.
    pub async fn tell_soon(&self, event: Event) -> Result<(), DriverGone> {
        // As a full mailbox does: who sends very many lets others run.
        tokio::task::coop::consume_budget().await;
        match self.gathering.add(event) {
            Some(event) => self.tell(event).await,
            None if self.mailbox.is_closed() => Err(DriverGone),
            None => Ok(()),
        }
    }
}

/// A running driver.
pub struct Driver {
    pub handle: DriverHandle,
    pub board: Board,
    /// Attempts that failed, for whoever finds out why. What finds no room is not looked at.
    pub examine: mpsc::Receiver<Examine>,
    /// Answers when the loop has ended: `Ok` after every handle is gone, else the store's error; not at
    /// all after a panic.
    pub ended: oneshot::Receiver<Result<(), StoreError>>,
}

/// Restores the core from the store and starts the loop on its own thread.
pub fn start(mut store: Store, outbox: Outbox, meters: Meters) -> Result<Driver, StoreError> {
    let core = restore(&mut store)?;
    let board = Board::of(&core);
    let (mailbox, inbox) = mpsc::channel(MAILBOX);
    let (examiner, examine) = mpsc::channel(EXAMINATIONS);
    let (end, ended) = oneshot::channel();
    let gathering = Arc::new(Gathering::default());
    let next_request = Arc::new(AtomicU64::new(1));
    let handle = DriverHandle { mailbox, gathering: gathering.clone(), next_request };
    let ticking = handle.mailbox.downgrade();
    let gathered = gathering.clone();
    let finisher = Finisher::new(store, outbox, board.clone(), meters.clone(), examiner);
    let started = finisher.start(end).and_then(|queue| {
        let mut the_loop = Loop { core, meters, inbox, gathered, queue };
        let thread = std::thread::Builder::new().name("driver".to_owned());
        // Why it stopped is told by the finisher.
        thread.spawn(move || drop(the_loop.run()))
    });
    if let Err(error) = started {
        tracing::error!(%error, "cannot start the driver's threads");
    }
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            let envelope = tokio::select! {
                _ = interval.tick() => Envelope { event: Some(Event::Tick), reply: None },
                () = gathering.begun.notified() => {
                    tokio::time::sleep(GATHER).await;
                    Envelope { event: None, reply: None }
                }
            };
            let Some(mailbox) = ticking.upgrade() else { return };
            if mailbox.send(envelope).await.is_err() {
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
    meters: Meters,
    inbox: mpsc::Receiver<Envelope>,
    gathered: Arc<Gathering>,
    queue: Queue,
}

impl Loop {
    /// Until every handle is gone, or a commit has failed.
    fn run(&mut self) -> Result<(), Stopped> {
        let mut next = None;
        while let Some(first) = next.take().or_else(|| self.inbox.blocking_recv()) {
            let mut batch = Batch::default();
            self.take(first, &mut batch);
            for _ in 1..BATCH {
                next = self.inbox.try_recv().ok();
                if batch.effects.writes.len() >= FULL {
                    break;
                }
                match next.take() {
                    Some(envelope) => self.take(envelope, &mut batch),
                    None => break,
                }
            }
            let (began, passes) = (Instant::now(), self.core.passes());
            self.core.decide(Timestamp::now(), &mut batch.effects);
            if self.core.passes() != passes {
                self.meters.scheduled(began.elapsed());
            }
            self.queue.finish(batch, next.is_some())?;
        }
        Ok(())
    }

    fn take(&mut self, envelope: Envelope, batch: &mut Batch) {
        batch.asked.extend(envelope.reply);
        // One moment for all: those that were gathered have waited longer than they take.
        let now = Timestamp::now();
        for event in self.gathered.take().into_iter().chain(envelope.event) {
            let name = event.name();
            let before = batch.effects.writes.len();
            self.core.take(event, now, &mut batch.effects);
            let writes = batch.effects.writes.len() - before;
            tracing::debug!(event = name, writes, "taken");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::credential::IdempotencyRecord;
    use crate::core::effect::Write;

    fn heard(session: u64) -> Event {
        let held = Some(gangline_common::ids::Generation::default());
        Event::Heard { node: "n-a".parse().unwrap(), session, held }
    }

    fn session_of(event: &Event) -> u64 {
        match event {
            Event::Heard { session, .. } => *session,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn words_are_gathered_up_to_a_bound_and_then_wait_for_the_driver() {
        let (mailbox, mut inbox) = mpsc::channel(2);
        let gathering = Arc::new(Gathering::default());
        let next_request = Arc::new(AtomicU64::new(1));
        let handle = DriverHandle { mailbox, gathering: gathering.clone(), next_request };
        for session in 0..=MAILBOX as u64 {
            handle.tell_soon(heard(session)).await.unwrap();
        }
        // They are announced once, and the one that found no room went by itself.
        tokio::time::timeout(Duration::from_secs(5), gathering.begun.notified()).await.unwrap();
        assert_eq!(session_of(&inbox.try_recv().unwrap().event.unwrap()), MAILBOX as u64);
        assert!(inbox.try_recv().is_err());
        let gathered: Vec<u64> = gathering.take().iter().map(session_of).collect();
        assert_eq!(gathered, (0..MAILBOX as u64).collect::<Vec<_>>());
        assert!(gathering.take().is_empty());
        // And the next one is announced again.
        handle.tell_soon(heard(7)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(5), gathering.begun.notified()).await.unwrap();
        drop(inbox);
        assert!(handle.tell_soon(heard(8)).await.is_err());
    }

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
