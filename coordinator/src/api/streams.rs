//! Server-sent events: a job's log as it grows, and the samples of all nodes.
//!
//! Each stream is a task that reads when its client has taken the event before. A client that
//! takes nothing for [`STALLED`] is dropped; it comes back with the id of its last event.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use gangline_common::ids::{JobId, NodeId};
use gangline_common::wire::v1::NodeSample;
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, mpsc};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_PARAMETER, Problem, TOO_MANY_STREAMS};
use super::jobs::find_job;
use super::logs::{Located, Rest, Source, Wanted, blocking, locate, whole_characters};
use super::view::{Names, SampleView};
use super::{App, Params, Selector, Shared, header_text};

/// Streams at a time, of everybody and of one user.
const MAX_STREAMS: usize = 256;
const MAX_STREAMS_PER_USER: usize = 64;
/// Log bytes of one event. As JSON they may be six times as long.
const CHUNK_BYTES: usize = 32 << 10;
/// Events that wait for a client.
const QUEUE: usize = 2;
/// A client that takes no event for this long is dropped.
const STALLED: Duration = Duration::from_secs(30);
/// Changes closer together than this are looked at together.
const GATHER: Duration = Duration::from_millis(50);
/// How often a quiet stream shows that it lives.
const PING: Duration = Duration::from_secs(15);
/// A client that lost its stream should come back after this.
const RETRY: Duration = Duration::from_secs(2);
/// Node names are looked up again at least this often.
const NAMES_AGE: Duration = Duration::from_secs(5);

/// Counts open streams.
#[derive(Debug, Default)]
pub(super) struct Slots {
    open: Mutex<BTreeMap<String, usize>>,
}

/// The right to one open stream; given back on drop.
struct Slot {
    slots: Arc<Slots>,
    user: String,
}

impl Slots {
    fn take(self: &Arc<Self>, user: &str) -> Result<Slot, ApiError> {
        // Counts are whole after every statement, so a poisoned lock can be used.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(user).copied().unwrap_or(0);
        let detail = if own >= MAX_STREAMS_PER_USER {
            format!("you have {own} streams open")
        } else if all >= MAX_STREAMS {
            format!("{all} streams are open")
        } else {
            open.insert(user.to_owned(), own + 1);
            return Ok(Slot { slots: self.clone(), user: user.to_owned() });
        };
        Err(ApiError::new(TOO_MANY_STREAMS, detail)
            .hint("close some, or read logs with `GET …/logs`")
            .retry_after_s(10))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                open.remove(&self.user);
            }
        }
    }
}

/// The sending end of a stream.
struct Outlet {
    events: mpsc::Sender<Event>,
    _slot: Slot,
}

/// The client has gone, or takes nothing.
struct Gone;

impl Outlet {
    async fn send(&self, event: Event) -> Result<(), Gone> {
        self.events.send_timeout(event, STALLED).await.map_err(|_| Gone)
    }

    async fn send_json(
        &self,
        name: &str,
        id: Option<u64>,
        data: &impl Serialize,
    ) -> Result<(), Gone> {
        let mut event = Event::default().event(name);
        if let Some(id) = id {
            event = event.id(id.to_string());
        }
        match event.json_data(data) {
            Ok(event) => self.send(event).await,
            Err(error) => {
                tracing::error!(%error, name, "an event cannot be written as JSON");
                Err(Gone)
            }
        }
    }
}

/// A stream and the answer that carries it.
fn open(slot: Slot) -> (Outlet, Response) {
    let (events, receiver) = mpsc::channel(QUEUE);
    let first = stream::iter([Ok::<_, Infallible>(Event::default().retry(RETRY))]);
    let rest = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|event| (Ok(event), receiver))
    });
    let events_out = futures_util::StreamExt::chain(first, rest);
    let sse = Sse::new(events_out).keep_alive(KeepAlive::new().interval(PING).text("ping"));
    let unbuffered =
        [(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))];
    (Outlet { events, _slot: slot }, (unbuffered, sse).into_response())
}

/// Query of a followed log.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FollowParams {
    /// First byte; `Last-Event-ID` comes before it.
    since: Option<u64>,
    /// Attempt that `since` belongs to. When another attempt is the newest by now, its log comes
    /// from its beginning.
    since_attempt: Option<u32>,
    /// A rank or `head`; without it the Ray driver's log, or rank 0's output.
    rank: Option<String>,
    /// Number of an attempt; without it the newest, and every newer one when it begins.
    attempt: Option<u32>,
}

/// Data of the event `log`; its id is the offset of the next byte.
#[derive(Serialize, ToSchema)]
pub(super) struct LogEvent {
    attempt: u32,
    /// Of the first byte of `text`.
    offset: u64,
    /// At most 32 KiB of the log; what is not UTF-8 is replaced.
    text: String,
}

/// Data of the event `end`, the last one.
#[derive(Serialize, ToSchema)]
pub(super) struct EndEvent {
    state: &'static str,
    reason: String,
    /// Absent when no attempt was made.
    attempt: Option<u32>,
    /// False when a node could not deliver the rest of the log.
    complete: bool,
}

/// A job's log as it grows: events `log`, then one event `end`. May begin before the job does.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs/stream",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        FollowParams,
        ("Last-Event-ID" = Option<u64>, Header, description = "Offset of the next byte")),
    responses((status = 200, body = LogEvent, content_type = "text/event-stream"),
        (status = 404, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn follow_logs(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<FollowParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let wanted = Wanted::parse(&snapshot.job, params.rank.as_deref(), params.attempt)?;
    let last = header_text(&headers, "last-event-id")?.map(|text| {
        text.trim()
            .parse::<u64>()
            .map_err(|_| ApiError::new(BAD_PARAMETER, "Last-Event-ID is not a byte offset"))
    });
    let offset = last.transpose()?.or(params.since).unwrap_or(0);
    let slot = shared.slots.take(&principal.user)?;
    let (outlet, response) = open(slot);
    let follower = Follower {
        job: snapshot.job.id.clone(),
        wanted,
        resume: Resume { offset, attempt: params.since_attempt },
        current: None,
        outlet,
        shared,
    };
    tokio::spawn(follower.run());
    Ok(response)
}

/// Where the client wants to begin.
struct Resume {
    offset: u64,
    attempt: Option<u32>,
}

/// The file that is being sent.
struct Current {
    source: Source,
    attempt: u32,
    offset: u64,
}

struct Follower {
    shared: Arc<Shared>,
    job: JobId,
    wanted: Wanted,
    resume: Resume,
    current: Option<Current>,
    outlet: Outlet,
}

/// What one look brought.
enum Step {
    /// Look again at once.
    Progress,
    /// Everything is sent; wait for a change.
    Idle,
    Done,
}

impl Follower {
    async fn run(mut self) {
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
                () = self.outlet.events.closed() => false,
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
        let located = locate(board, &snapshot, self.wanted);
        let wanted = located.source.clone();
        let moved = match (&self.current, &wanted) {
            (Some(current), Some(wanted)) => current.source != *wanted,
            (Some(_), None) | (None, _) => false,
        };
        let ended = located.rest != Rest::MayCome;
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
        match located.rest {
            Rest::Ended { complete } => self.send_end(located, complete).await,
            Rest::MayCome => Ok(Step::Idle),
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
        let event = LogEvent { attempt: current.attempt, offset, text };
        self.outlet.send_json("log", Some(next), &event).await?;
        current.offset = next;
        Ok(true)
    }

    async fn send_end(&self, located: Located, complete: bool) -> Result<Step, Gone> {
        let Located { state, reason, attempt, .. } = located;
        let event = EndEvent { state, reason, attempt, complete };
        self.outlet.send_json("end", None, &event).await?;
        Ok(Step::Done)
    }
}

/// Data of the event `sample`.
#[derive(Serialize, ToSchema)]
pub(super) struct SampleEvent {
    /// The node's id.
    node: String,
    name: String,
    sample: SampleView,
}

/// The samples of all nodes: the newest of each at once, then every new one. A client that is too
/// slow loses the oldest.
#[utoipa::path(get, path = "/api/v1/nodes/stream",
    responses((status = 200, body = SampleEvent, content_type = "text/event-stream"),
        (status = 503, response = Problem)))]
pub(super) async fn watch_nodes(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let slot = shared.slots.take(&principal.user)?;
    let (outlet, response) = open(slot);
    let names = BTreeMap::new();
    tokio::spawn(async move {
        // It ends when the client has gone, which is not an error.
        let _gone = Watcher { shared, outlet, names, looked: None }.run().await;
    });
    Ok(response)
}

struct Watcher {
    shared: Arc<Shared>,
    outlet: Outlet,
    names: BTreeMap<NodeId, String>,
    /// When the names were looked up.
    looked: Option<Instant>,
}

impl Watcher {
    async fn run(mut self) -> Result<(), Gone> {
        let mut samples = self.shared.api.telemetry.subscribe();
        for node in self.shared.api.board.nodes() {
            if let Some(sample) = self.shared.api.telemetry.latest(&node.node.id) {
                self.send(&node.node.id, &sample).await?;
            }
        }
        loop {
            let received = tokio::select! {
                received = samples.recv() => received,
                () = self.outlet.events.closed() => return Err(Gone),
            };
            match received {
                Ok(sample) => self.send(&sample.0, &sample.1).await?,
                // Newest wins: what was lost is not worth waiting for.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            }
        }
    }

    async fn send(&mut self, node: &NodeId, sample: &NodeSample) -> Result<(), Gone> {
        let name = self.name(node);
        let event = SampleEvent { node: node.to_string(), name, sample: SampleView::of(sample) };
        self.outlet.send_json("sample", None, &event).await
    }

    /// The node's name; looking up every sample would cost a pass over all nodes each.
    fn name(&mut self, node: &NodeId) -> String {
        if self.looked.is_none_or(|looked| looked.elapsed() >= NAMES_AGE) {
            self.names = Names::of(&self.shared.api.board).into_map();
            self.looked = Some(Instant::now());
        }
        self.names.get(node).cloned().unwrap_or_else(|| node.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_per_user_and_given_back() {
        let slots = Arc::new(Slots::default());
        let held: Vec<Slot> =
            (0..MAX_STREAMS_PER_USER).map_while(|_| slots.take("a").ok()).collect();
        assert_eq!(held.len(), MAX_STREAMS_PER_USER);
        assert_eq!(slots.take("a").err().unwrap().status(), 503);
        let others: Vec<Slot> =
            (0..1000).map_while(|n| slots.take(&format!("u{}", n / 50)).ok()).collect();
        assert_eq!(held.len() + others.len(), MAX_STREAMS);
        drop(held);
        assert!(slots.take("a").is_ok());
        drop(others);
        assert!(slots.open.lock().unwrap().is_empty());
    }
}
