//! What has happened to jobs and nodes: the notices, newest first, or as they come.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use gangline_common::time::wall_text;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_PARAMETER, Problem, no_such_node, quoted};
use super::follow::{Gone, Outlet};
use super::jobs::find_job;
use super::webhooks::check_kind;
use super::{App, Params, Shared, header_text, page_size};
use crate::core::credential::{Principal, Role};
use crate::core::notices::Notice;
use crate::store::notices::NoticeError;
use crate::store::{NoticeLog, Numbered};

/// Query of the events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// 1 to 1000; 100 when absent.
    page_size: Option<usize>,
    /// Only events with a sequence below this one: `next_before` of the page before.
    before: Option<u64>,
    /// Only events about this, such as `job j-7f3k2` or `node gpu-1`. A job and a node may be named as
    /// in addresses; of one that is gone the id and the name that events have.
    object: Option<String>,
    /// Only events of this kind, such as `job.failed`, or of kinds that begin so, such as `node.*`.
    kind: Option<String>,
}

/// Which events somebody wants and may see.
struct Wanted {
    object: Option<String>,
    kind: Option<String>,
    principal: Principal,
}

impl Wanted {
    /// Reads the parameters `object` and `kind`.
    ///
    /// # Errors
    /// There is no such kind of events, or nothing of that name that the caller may see.
    async fn parse(
        shared: &Shared,
        principal: Principal,
        object: Option<String>,
        kind: Option<String>,
    ) -> Result<Wanted, ApiError> {
        if let Some(kind) = &kind {
            check_kind(BAD_PARAMETER, kind)?;
        }
        let object = match object {
            Some(text) => Some(object_named(shared, &principal, text).await?),
            None => None,
        };
        Ok(Wanted { object, kind, principal })
    }

    fn fits(&self, notice: &Notice) -> bool {
        let kind = self.kind.as_ref().is_none_or(|kind| match kind.strip_suffix('*') {
            Some(beginning) => notice.kind.starts_with(beginning),
            None => notice.kind == *kind,
        });
        let all = self.principal.role >= Role::Operator;
        let own = |project: &String| *project == self.principal.project;
        let visible = all || notice.project.as_ref().is_none_or(own);
        kind && visible && self.object.as_ref().is_none_or(|object| *object == notice.object)
    }
}

/// What events call the object that a caller means: a job by its id, a node by its name.
///
/// # Errors
/// There is none, and no event about one of that name either.
async fn object_named(
    shared: &Shared,
    principal: &Principal,
    text: String,
) -> Result<String, ApiError> {
    let board = &shared.api.board;
    let found = match text.split_once(' ') {
        Some(("job", selector)) => {
            let found = find_job(board, principal, Action::ReadJobs, selector);
            found.map(|snapshot| format!("job {}", snapshot.job.id))
        }
        Some(("node", selector)) => {
            let found = board.node(selector).ok_or_else(no_such_node);
            found.map(|snapshot| format!("node {}", snapshot.node.name))
        }
        Some(("webhook", _)) => return Ok(text),
        Some(_) | None => {
            return Err(ApiError::new(BAD_PARAMETER, format!("object is {}", quoted(&text)))
                .hint("write it as `job j-7f3k2` or `node gpu-1`"));
        }
    };
    let error = match found {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    // Events outlive a job that is deleted.
    let (object, principal) = (Some(text.clone()), principal.clone());
    let gone = Wanted { object, kind: None, principal };
    let about_it = move |notice: &Notice| gone.fits(notice);
    let events = read(shared, move |log| log.before_that(u64::MAX, 1, about_it)).await?;
    if events.is_empty() { Err(error) } else { Ok(text) }
}

/// Something that has happened.
#[derive(Serialize, ToSchema)]
pub(super) struct EventView {
    /// The same in every list and for every webhook.
    id: String,
    sequence: u64,
    /// RFC 3339.
    at: String,
    /// Such as `job.failed`.
    kind: String,
    /// Such as `job j-7f3k2`.
    object: String,
    /// Absent for what is of the whole fleet.
    project: Option<String>,
    reason: String,
}

impl From<Numbered> for EventView {
    fn from(numbered: Numbered) -> Self {
        let (id, sequence) = (numbered.id(), numbered.sequence);
        let Notice { wall_ms, kind, object, project, reason } = numbered.notice;
        EventView { id, sequence, at: wall_text(wall_ms), kind, object, project, reason }
    }
}

/// A page of the events, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct EventPage {
    events: Vec<EventView>,
    /// Absent at the beginning of what is kept.
    next_before: Option<u64>,
}

/// What has happened to the jobs of the caller's project and to the nodes; to all jobs for operators.
#[utoipa::path(get, path = "/api/v1/events", params(EventParams),
    responses((status = 200, body = EventPage), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 409, response = Problem)))]
pub(super) async fn list_events(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<EventParams>,
) -> Result<Json<EventPage>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let size = page_size(params.page_size)?;
    let before = params.before.unwrap_or(u64::MAX);
    let wanted = Wanted::parse(&shared, principal, params.object, params.kind).await?;
    let fits = move |notice: &Notice| wanted.fits(notice);
    let page = read(&shared, move |log| log.before_that(before, size, fits)).await?;
    let oldest = page.last().map(|numbered| numbered.sequence);
    let next_before = oldest.filter(|&sequence| sequence > 1 && page.len() == size);
    Ok(Json(EventPage { events: page.into_iter().map(EventView::from).collect(), next_before }))
}

/// Events of one look; what waits beyond is looked at next.
const AT_ONCE: usize = 200;
/// A stream on which nothing happens says so, that whoever listens knows that it lives.
const QUIET: Duration = Duration::from_secs(15);
/// What comes within this time of a first event is sent with it.
const GATHER: Duration = Duration::from_millis(50);

/// Query of the stream of events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventStreamParams {
    /// Begin behind the event with this sequence; 0 for all that are kept. Without it, and without
    /// `Last-Event-ID`, only what is new comes.
    after: Option<u64>,
    /// Only events about this, such as `job j-7f3k2` or `node gpu-1`. A job and a node may be named as
    /// in addresses; of one that is gone the id and the name that events have.
    object: Option<String>,
    /// Only events of this kind, such as `job.failed`, or of kinds that begin so, such as `node.*`.
    kind: Option<String>,
}

/// What has happened, oldest first, and then what happens: server-sent events with the kind as their
/// name. A `Last-Event-ID` goes on behind that event, as far back as events are kept.
#[utoipa::path(get, path = "/api/v1/events/stream",
    params(EventStreamParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event that came")),
    responses((status = 200, body = EventView, content_type = "text/event-stream"),
        (status = 400, response = Problem), (status = 404, response = Problem),
        (status = 409, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn watch_events(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<EventStreamParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let user = principal.user.clone();
    let wanted = Wanted::parse(&shared, principal, params.object, params.kind).await?;
    let after = match header_text(&headers, "last-event-id")? {
        Some(id) => Some(sequence_of(id)?),
        None => params.after,
    };
    // Before the answer: what happens after it is new.
    let newest = read(&shared, |log| log.newest()).await?;
    // A store that was restored may know less than the client.
    let cursor = after.map_or(newest, |after| after.min(newest));
    let slot = shared.watchers.take(&user)?;
    let (outlet, receiver) = Outlet::new(slot);
    let bytes = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|bytes: Bytes| (Ok::<_, Infallible>(bytes), receiver))
    });
    tokio::spawn(async move {
        // It ends when the client has gone, which is not an error.
        let _gone = follow(&shared, &outlet, cursor, &wanted).await;
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

/// The sequence in an id: `3-1207` is 1207, whichever copy of the store numbered it.
fn sequence_of(id: &str) -> Result<u64, ApiError> {
    let sequence = id.split_once('-').and_then(|(_, sequence)| sequence.parse().ok());
    sequence.ok_or_else(|| {
        let detail = format!("{} is not the id of an event", quoted(id));
        ApiError::new(BAD_PARAMETER, detail).hint("send the id of the last event that came")
    })
}

async fn follow(
    shared: &Shared,
    outlet: &Outlet<Bytes>,
    mut cursor: u64,
    wanted: &Wanted,
) -> Result<(), Gone> {
    let mut news = shared.api.board.notices();
    let mut silent_at = Instant::now() + QUIET;
    // Where it begins, for who loses the connection before anything has come.
    outlet.send(mark(cursor)).await?;
    loop {
        // Before looking: what comes while it looks is looked at next.
        news.mark_unchanged();
        let from = cursor;
        let page = read(shared, move |log| log.after(from, AT_ONCE)).await.map_err(|_| Gone)?;
        let full = page.len() == AT_ONCE;
        let mut bytes = Vec::new();
        for numbered in page {
            cursor = numbered.sequence;
            if wanted.fits(&numbered.notice) {
                write_event(&mut bytes, EventView::from(numbered));
            }
        }
        if !bytes.is_empty() {
            outlet.send(bytes.into()).await?;
            silent_at = Instant::now() + QUIET;
        }
        if full {
            continue;
        }
        tokio::select! {
            // What comes in a burst is read together.
            changed = news.changed() => {
                changed.map_err(|_| Gone)?;
                tokio::time::sleep(GATHER).await;
            }
            () = outlet.closed() => return Err(Gone),
            () = tokio::time::sleep_until(silent_at.into()) => {
                outlet.send(mark(cursor)).await?;
                silent_at = Instant::now() + QUIET;
            }
        }
    }
}

/// A sign of life with how far the stream has come: an id without data is no event for a client, which
/// remembers it all the same. Whichever copy of the store numbered it, only the number counts.
fn mark(cursor: u64) -> Bytes {
    format!(": here\nid: 0-{cursor}\n\n").into()
}

/// Something of the notices, which are on the disk.
async fn read<T: Send + 'static>(
    shared: &Shared,
    look: impl FnOnce(NoticeLog) -> Result<T, NoticeError> + Send + 'static,
) -> Result<T, ApiError> {
    let log = shared.api.notices.clone();
    tokio::task::spawn_blocking(move || look(log))
        .await
        .map_err(|error| ApiError::internal("reading the events", &error))?
        .map_err(|error| ApiError::internal("reading the events", &error))
}

fn write_event(bytes: &mut Vec<u8>, event: EventView) {
    match serde_json::to_string(&event) {
        Ok(data) => {
            let text = format!("event: {}\nid: {}\ndata: {data}\n\n", event.kind, event.id);
            bytes.extend_from_slice(text.as_bytes());
        }
        Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_gone_on_from_whichever_store_numbered_it() {
        assert_eq!(sequence_of("3-1207").ok(), Some(1207));
        for id in ["", "7", "3-", "3-x", "-"] {
            assert!(sequence_of(id).is_err(), "{id}");
        }
    }
}
