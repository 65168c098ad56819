//! Server-sent events: a job's log as it grows.
//!
//! A client that is dropped, because it takes nothing, comes back with the id of its last event.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller};
use super::error::{ApiError, BAD_PARAMETER, Problem};
use super::follow::{Carrier, Follower, Gone, LogEnd, Outlet, Piece, Resume, Slot};
use super::jobs::find_job;
use super::logs::{Wanted, check_coming};
use super::{App, Params, Selector, header_text};

/// How often a quiet stream shows that it lives.
pub(super) const PING: Duration = Duration::from_secs(15);
/// A client that lost its stream should come back after this.
pub(super) const RETRY: Duration = Duration::from_secs(2);

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
    /// Name of one of the member's files; without it its output, or the Ray driver's log.
    file: Option<String>,
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
    let (rank, file) = (params.rank.as_deref(), params.file.as_deref());
    let wanted = Wanted::parse(&snapshot.job, rank, params.attempt, file)?;
    check_coming(&snapshot, params.attempt)?;
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
