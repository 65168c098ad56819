//! Server-sent events: a job's log as it grows, and the samples of all nodes.
//!
//! A client that is dropped, because it takes nothing, comes back with the id of its last event.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use gangline_common::ids::NodeId;
use gangline_common::wire::v1::NodeSample;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_PARAMETER, Problem};
use super::follow::{Carrier, Follower, Gone, LogEnd, Outlet, Piece, Resume, Slot};
use super::jobs::find_job;
use super::logs::Wanted;
use super::view::{Names, SampleView};
use super::{App, Params, Selector, Shared, header_text};

/// How often a quiet stream shows that it lives.
const PING: Duration = Duration::from_secs(15);
/// A client that lost its stream should come back after this.
const RETRY: Duration = Duration::from_secs(2);
/// Node names are looked up again at least this often.
const NAMES_AGE: Duration = Duration::from_secs(5);

/// An event with JSON data.
fn json_event(name: &str, id: Option<u64>, data: &impl Serialize) -> Result<Event, Gone> {
    let mut event = Event::default().event(name);
    if let Some(id) = id {
        event = event.id(id.to_string());
    }
    event.json_data(data).map_err(|error| {
        tracing::error!(%error, name, "an event cannot be written as JSON");
        Gone
    })
}

/// A stream and the answer that carries it.
fn open(slot: Slot) -> (Outlet<Event>, Response) {
    let (outlet, receiver) = Outlet::new(slot);
    let first = stream::iter([Ok::<_, Infallible>(Event::default().retry(RETRY))]);
    let rest = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|event| (Ok(event), receiver))
    });
    let events_out = futures_util::StreamExt::chain(first, rest);
    let sse = Sse::new(events_out).keep_alive(KeepAlive::new().interval(PING).text("ping"));
    let unbuffered =
        [(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))];
    (outlet, (unbuffered, sse).into_response())
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
        (status = 404, response = Problem), (status = 409, response = Problem),
        (status = 503, response = Problem)))]
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
    let resume = Resume { offset, attempt: params.since_attempt };
    let job = (snapshot.job.id.clone(), wanted);
    let follower = Follower::new(shared, job, resume, Events, outlet);
    tokio::spawn(follower.run());
    Ok(response)
}

/// A followed log as events.
struct Events;

impl Carrier for Events {
    type Message = Event;

    fn piece(&self, piece: Piece) -> Result<Event, Gone> {
        let Piece { attempt, offset, next, text } = piece;
        json_event("log", Some(next), &LogEvent { attempt, offset, text })
    }

    fn end(&self, end: LogEnd) -> Result<Event, Gone> {
        let LogEnd { state, reason, attempt, complete } = end;
        json_event("end", None, &EndEvent { state, reason, attempt, complete })
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
    outlet: Outlet<Event>,
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
                () = self.outlet.closed() => return Err(Gone),
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
        self.outlet.send(json_event("sample", None, &event)?).await
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
