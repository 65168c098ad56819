//! What has happened to jobs and nodes: the notices, newest first or from a number on.

use axum::Json;
use axum::extract::State;
use gangline_common::time::wall_text;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, Problem};
use super::{App, Params, page_size};
use crate::core::credential::Role;
use crate::core::notices::Notice;
use crate::store::Numbered;

/// Query of the events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// 1 to 1000; 100 when absent.
    page_size: Option<usize>,
    /// Only events with a sequence below this one: `next_before` of the page before.
    before: Option<u64>,
    /// Only events about this, such as `job j-7f3k2` or `node gpu-1`.
    object: Option<String>,
    /// Only events of this kind, such as `job.failed`, or of kinds that begin so, such as `node.*`.
    kind: Option<String>,
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
    responses((status = 200, body = EventPage), (status = 403, response = Problem)))]
pub(super) async fn list_events(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<EventParams>,
) -> Result<Json<EventPage>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let size = page_size(params.page_size)?;
    let (log, before) = (shared.api.notices.clone(), params.before.unwrap_or(u64::MAX));
    let all = principal.role >= Role::Operator;
    let fits = move |notice: &Notice| {
        let kind = params.kind.as_ref().is_none_or(|kind| match kind.strip_suffix('*') {
            Some(beginning) => notice.kind.starts_with(beginning),
            None => notice.kind == *kind,
        });
        let visible = notice.project.as_ref().is_none_or(|project| *project == principal.project);
        let object = params.object.as_ref().is_none_or(|object| *object == notice.object);
        kind && object && (all || visible)
    };
    let page = tokio::task::spawn_blocking(move || log.before_that(before, size, fits))
        .await
        .map_err(|error| ApiError::internal("reading the events", &error))?
        .map_err(|error| ApiError::internal("reading the events", &error))?;
    let oldest = page.last().map(|numbered| numbered.sequence);
    let next_before = oldest.filter(|&sequence| sequence > 1 && page.len() == size);
    Ok(Json(EventPage { events: page.into_iter().map(EventView::from).collect(), next_before }))
}
