//! Following a job's log as it grows, for every protocol that carries it: the looking, the bounded
//! queue to the client, and the number of clients.
//!
//! Each stream is a task that reads when its client has taken the message before. A client that
//! takes nothing for [`STALLED`] is dropped.

use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::JobId;
use tokio::sync::mpsc;

use super::Shared;
use super::error::{ApiError, TOO_MANY_STREAMS};
use super::logs::{Located, Source, Wanted, blocking, locate, whole_characters};
use super::places::{Full, Place, Places};

/// Streams of one kind at a time, of everybody and of one user.
const MAX_STREAMS: usize = 256;
const MAX_STREAMS_PER_USER: usize = 64;
/// Log bytes of one message. As JSON they may be six times as long.
pub(super) const CHUNK_BYTES: usize = 32 << 10;
/// Messages that wait for a client.
const QUEUE: usize = 2;
/// A client that takes no message for this long is dropped.
pub(super) const STALLED: Duration = Duration::from_secs(30);
/// Changes closer together than this are looked at together.
const GATHER: Duration = Duration::from_millis(50);

/// Open streams of one kind, by user: who has too many of one can still open another.
pub(super) struct Slots(Arc<Places<String>>);

/// The right to one open stream; given back on drop.
pub(super) type Slot = Place<String>;

impl Default for Slots {
    fn default() -> Self {
        Slots(Arc::new(Places::new(MAX_STREAMS, MAX_STREAMS_PER_USER)))
    }
}

impl Slots {
    pub fn take(&self, user: &str) -> Result<Slot, ApiError> {
        self.0.take(&user.to_owned()).map_err(|full| {
            let detail = match full {
                Full::Own(own) => format!("you have {own} streams open"),
                Full::All(all) => format!("{all} streams are open"),
            };
            ApiError::new(TOO_MANY_STREAMS, detail)
                .hint("close some, or ask without a stream: `GET …/logs`, `GET /api/v1/nodes`")
                .retry_after_s(10)
        })
    }
}

/// The sending end of a stream of messages of one protocol.
pub(super) struct Outlet<M> {
    messages: mpsc::Sender<M>,
    _slot: Slot,
}

/// The client has gone, or takes nothing.
pub(super) struct Gone;

impl<M> Outlet<M> {
    /// The two ends of a stream.
    pub fn new(slot: Slot) -> (Self, mpsc::Receiver<M>) {
        let (messages, receiver) = mpsc::channel(QUEUE);
        (Outlet { messages, _slot: slot }, receiver)
    }

    pub async fn send(&self, message: M) -> Result<(), Gone> {
        self.messages.send_timeout(message, STALLED).await.map_err(|_| Gone)
    }

    /// Returns when the client has gone.
    pub async fn closed(&self) {
        self.messages.closed().await;
    }
}

/// A piece of a log.
pub(super) struct Piece {
    pub attempt: u32,
    /// Of its first byte, and of the byte after its last one.
    pub offset: u64,
    pub next: u64,
    /// What is not UTF-8 is replaced.
    pub text: String,
}

/// The end of a followed log.
pub(super) struct LogEnd {
    pub state: &'static str,
    pub reason: String,
    /// `None` when no attempt was made.
    pub attempt: Option<u32>,
    /// False when a node could not deliver the rest of the log.
    pub complete: bool,
}

/// How one protocol carries a followed log.
pub(super) trait Carrier: Send + Sync + 'static {
    type Message: Send + 'static;
    fn piece(&self, piece: Piece) -> Result<Self::Message, Gone>;
    fn end(&self, end: LogEnd) -> Result<Self::Message, Gone>;
}

/// Where the client wants to begin.
#[derive(Default)]
pub(super) struct Resume {
    pub offset: u64,
    /// Attempt that the offset belongs to; `None`: whichever is the newest.
    pub attempt: Option<u32>,
}

/// The file that is being sent.
struct Current {
    source: Source,
    attempt: u32,
    offset: u64,
}

pub(super) struct Follower<C: Carrier> {
    pub shared: Arc<Shared>,
    pub job: JobId,
    pub wanted: Wanted,
    pub resume: Resume,
    pub carrier: C,
    pub outlet: Outlet<C::Message>,
    current: Option<Current>,
}

/// What one look brought.
enum Step {
    /// Look again at once.
    Progress,
    /// Everything is sent; wait for a change.
    Idle,
    Done,
}

impl<C: Carrier> Follower<C> {
    pub fn new(
        shared: Arc<Shared>,
        (job, wanted): (JobId, Wanted),
        resume: Resume,
        carrier: C,
        outlet: Outlet<C::Message>,
    ) -> Self {
        Follower { shared, job, wanted, resume, carrier, outlet, current: None }
    }

    /// Runs until the end is sent, or the client has gone.
    pub async fn run(mut self) {
        let mut board = self.shared.api.board.changes();
        let mut logs = self.shared.api.logs.changes();
        loop {
            // Marked before looking: a change during the look wakes the next one.
            board.mark_unchanged();
            logs.mark_unchanged();
            match self.step().await {
                Ok(Step::Progress) => continue,
                Ok(Step::Idle) => {}
                Ok(Step::Done) | Err(Gone) => return,
            }
            let lives = tokio::select! {
                changed = board.changed() => changed.is_ok(),
                changed = logs.changed() => changed.is_ok(),
                () = self.outlet.closed() => false,
            };
            if !lives {
                return;
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// One look: the job first, then the bytes, so that an end is the end of these bytes.
    async fn step(&mut self) -> Result<Step, Gone> {
        let board = &self.shared.api.board;
        let Some(snapshot) = board.job(&self.job) else { return Ok(Step::Done) };
        let located = locate(board, &snapshot, &self.wanted);
        let wanted = located.source.clone();
        let moved = match (&self.current, &wanted) {
            (Some(current), Some(wanted)) => current.source != *wanted,
            (Some(_), None) | (None, _) => false,
        };
        let length = self.current.as_ref().map_or(0, |current| current.offset);
        let ended = located.rest.complete_at(length).is_some();
        if self.send_more(moved || ended).await? {
            return Ok(Step::Progress);
        }
        if let (Some(source), Some(attempt)) = (wanted, located.attempt)
            && (moved || self.current.is_none())
        {
            let offset = self.first_offset(attempt);
            self.current = Some(Current { source, attempt, offset });
            return Ok(Step::Progress);
        }
        match located.rest.complete_at(length) {
            Some(complete) => self.send_end(located, complete).await,
            None => Ok(Step::Idle),
        }
    }

    /// The client's offset is of the first file only, and only of the attempt that it names.
    fn first_offset(&self, attempt: u32) -> u64 {
        let same = self.resume.attempt.is_none_or(|resumed| resumed == attempt);
        if self.current.is_none() && same { self.resume.offset } else { 0 }
    }

    /// Sends the next piece of the current file; false when there is none. `last`: nothing more
    /// comes to it, so half a character at its end is sent as it is.
    async fn send_more(&mut self, last: bool) -> Result<bool, Gone> {
        let Some(current) = &mut self.current else { return Ok(false) };
        let (logs, source, offset) =
            (self.shared.api.logs.clone(), current.source.clone(), current.offset);
        let read = move || logs.read(&source.key, &source.file, offset, CHUNK_BYTES);
        let mut bytes = blocking("reading a log", read).await.map_err(|_| Gone)?;
        let whole = whole_characters(&bytes);
        if whole > 0 || !last {
            bytes.truncate(whole);
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        let next = offset.saturating_add(bytes.len() as u64);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let piece = Piece { attempt: current.attempt, offset, next, text };
        self.outlet.send(self.carrier.piece(piece)?).await?;
        current.offset = next;
        Ok(true)
    }

    async fn send_end(&self, located: Located, complete: bool) -> Result<Step, Gone> {
        let Located { state, reason, attempt, .. } = located;
        let end = self.carrier.end(LogEnd { state, reason, attempt, complete })?;
        self.outlet.send(end).await?;
        Ok(Step::Done)
    }
}
