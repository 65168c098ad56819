//! What follows a decision: its commit, and then what everybody is told. A batch that nothing waits
//! behind is finished by the thread that decided it. Under load another thread does it, and the next
//! batch is decided meanwhile.
//!
//! The order is that of the decisions, and nobody is told of anything that is not durable. The first
//! commit that fails is the last.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gangline_common::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::board::Board;
use crate::core::effect::{Answer, Effects, Examine};
use crate::core::event::RequestId;
use crate::meters::{self, Meters};
use crate::outbox::Outbox;
use crate::store::{Store, StoreError};

/// Decided batches that wait for their commit, the one under way not counted. With more the next
/// would only be smaller.
const DECIDED: usize = 1;

/// Where the answer to a request goes.
pub type Reply = (RequestId, oneshot::Sender<Answer>);

/// A batch that is decided.
#[derive(Default)]
pub struct Batch {
    pub asked: Vec<Reply>,
    pub effects: Effects,
}

/// Commits batches and tells of them, one after the other.
pub struct Finisher {
    pub store: Store,
    pub outbox: Outbox,
    pub board: Board,
    pub meters: Meters,
    pub examiner: mpsc::Sender<Examine>,
    waiting: HashMap<RequestId, oneshot::Sender<Answer>>,
    failed: bool,
}

/// No batch can be finished any more: the thread that reports why has the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped;

/// The way from the decisions to the finisher. When it goes, the finisher ends after what it has.
pub struct Queue {
    // Dropped before the sender, so that the thread has the last of it.
    shared: Arc<Mutex<Shared>>,
    batches: SyncSender<Batch>,
    /// Batches that were handed over and are not finished.
    open: Arc<AtomicUsize>,
}

/// The finisher is of whichever thread finishes a batch; they never meet, since one of them only does
/// it when the other has nothing.
struct Shared {
    finisher: Finisher,
    end: Option<oneshot::Sender<Result<(), StoreError>>>,
}

fn finish(shared: &Mutex<Shared>, batch: Batch) -> Result<(), Stopped> {
    // Poisoned: a panic ended the other thread in the middle of a batch.
    let Ok(mut shared) = shared.lock() else { return Err(Stopped) };
    let Err(error) = shared.finisher.finish(batch) else { return Ok(()) };
    if let (Some(error), Some(end)) = (error, shared.end.take()) {
        // Nobody listens any more when `main` is already on its way out.
        let _ = end.send(Err(error));
    }
    Err(Stopped)
}

impl Finisher {
    pub fn new(
        store: Store,
        outbox: Outbox,
        board: Board,
        meters: Meters,
        examiner: mpsc::Sender<Examine>,
    ) -> Self {
        Finisher { store, outbox, board, meters, examiner, waiting: HashMap::new(), failed: false }
    }

    /// Starts the thread. `end` hears of the first failure, or that everything was finished and the
    /// store is closed.
    pub fn start(self, end: oneshot::Sender<Result<(), StoreError>>) -> std::io::Result<Queue> {
        let (batches, inbox) = sync_channel::<Batch>(DECIDED);
        let open = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new(Mutex::new(Shared { finisher: self, end: Some(end) }));
        let queue = Queue { shared: Arc::clone(&shared), batches, open: Arc::clone(&open) };
        std::thread::Builder::new().name("commits".to_owned()).spawn(move || {
            while let Ok(batch) = inbox.recv() {
                if finish(&shared, batch).is_err() {
                    return;
                }
                open.fetch_sub(1, Ordering::Release);
            }
            // Of a panic nobody is told by it: `end` goes unused.
            if let Some(Ok(Shared { finisher, end })) =
                Arc::into_inner(shared).map(Mutex::into_inner)
            {
                drop(finisher);
                if let Some(end) = end {
                    let _ = end.send(Ok(()));
                }
            }
        })?;
        Ok(queue)
    }

    /// `Err(None)` when an earlier commit has failed.
    fn finish(&mut self, batch: Batch) -> Result<(), Option<StoreError>> {
        if self.failed {
            return Err(None);
        }
        self.waiting.extend(batch.asked);
        if !batch.effects.writes.is_empty() {
            let began = Instant::now();
            if let Err(error) = self.store.commit(&batch.effects.writes) {
                self.failed = true;
                return Err(Some(error));
            }
            self.meters.committed(began.elapsed());
        }
        self.act(batch.effects);
        Ok(())
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

impl Drop for Queue {
    fn drop(&mut self) {
        // Or the other thread would say that all is well.
        if std::thread::panicking()
            && let Ok(mut shared) = self.shared.lock()
        {
            shared.end = None;
        }
    }
}

impl Queue {
    /// Finishes the batch here, if nothing is under way elsewhere and `hands_over` is not set; else
    /// leaves it to the other thread, and waits only when that one is behind by a whole batch.
    pub fn finish(&self, batch: Batch, hands_over: bool) -> Result<(), Stopped> {
        if !hands_over && self.open.load(Ordering::Acquire) == 0 {
            return finish(&self.shared, batch);
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        self.batches.send(batch).map_err(|_| Stopped)
    }
}
