//! What is done to a job that has not ended: hold, release, requeue, priority, extend. Each of them
//! may be asked again without harm.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use gangline_common::ids::JobId;
use gangline_spec::Priority;
use serde::Deserialize;
use utoipa::ToSchema;

use super::auth::{Action, Caller};
use super::error::{ApiError, BAD_BODY, BAD_TIME_LIMIT, ENDING, NOT_WAITING, Problem, no_such_job};
use super::jobs::{JobAnswer, checked_reason, done, find_job, view};
use super::{App, Selector, Shared, read_json};
use crate::core::controls::Control;
use crate::core::credential::Principal;
use crate::core::effect::Rejected;
use crate::core::event::Event;

/// Longest time limit in seconds: that of a spec.
const MAX_TIMEOUT_S: u64 = 365 * 24 * 3600;

/// Why a job is held.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldBody {
    /// For people; at most 1024 characters.
    reason: Option<String>,
}

/// How a job is sent back to the queue.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RequeueBody {
    /// For people; at most 1024 characters.
    reason: Option<String>,
    /// Number of the attempt that is meant: when the job has another one already, nothing is done,
    /// so that a repeated request stops it once.
    attempt: Option<u32>,
    /// Ids or names of nodes that the job leaves out from now on.
    #[serde(default)]
    exclude_nodes: Vec<String>,
}

/// The priority that a job gets.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PriorityBody {
    /// 0 to 100; the higher goes first.
    priority: u8,
}

/// The time that a job gets.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    /// Longest time in the state RUNNING in seconds: the whole of it, not what is added.
    timeout_s: u64,
}

/// The job that a caller may control; asked before the body is looked at.
fn find(shared: &Shared, principal: &Principal, selector: &str) -> Result<JobId, ApiError> {
    let found = find_job(&shared.api.board, principal, Action::ControlJob, selector)?;
    Ok(found.job.id.clone())
}

async fn control(
    shared: &Shared,
    principal: &Principal,
    id: JobId,
    control: Control,
) -> Result<Json<JobAnswer>, ApiError> {
    let (job, actor) = (id.clone(), principal.clone());
    let event = |request| Event::ControlJob { request, job, control, actor };
    done(shared, principal, event).await?;
    let snapshot = shared.api.board.job(&id).ok_or_else(no_such_job)?;
    Ok(Json(JobAnswer { job: view(shared, &snapshot) }))
}

fn no_body(example: &str) -> ApiError {
    ApiError::new(BAD_BODY, "the body is empty").hint(format!("send {example}, for example"))
}

/// Holds a job that waits: it does not start until it is released, and holds back no other.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/hold",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    request_body = Option<HoldBody>,
    responses((status = 200, body = JobAnswer), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn hold_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<JobAnswer>, ApiError> {
    let job = find(&shared, &principal, &id)?;
    let body: HoldBody = read_json(body).await?.unwrap_or_default();
    let why = checked_reason(body.reason)?;
    control(&shared, &principal, job, Control::Hold { why }).await
}

/// Releases a job that is held.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/release",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    responses((status = 200, body = JobAnswer), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn release_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
) -> Result<Json<JobAnswer>, ApiError> {
    let job = find(&shared, &principal, &id)?;
    control(&shared, &principal, job, Control::Release).await
}

/// Stops a job politely and sends it back to its place in the queue; one that waits stays there.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/requeue",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    request_body = Option<RequeueBody>,
    responses((status = 200, body = JobAnswer), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn requeue_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<JobAnswer>, ApiError> {
    let job = find(&shared, &principal, &id)?;
    let body: RequeueBody = read_json(body).await?.unwrap_or_default();
    let RequeueBody { reason, attempt, exclude_nodes } = body;
    let requeue = Control::Requeue { why: checked_reason(reason)?, attempt, exclude_nodes };
    control(&shared, &principal, job, requeue).await
}

/// Gives a job another priority: at once a job in the queue has its new place. More than the highest
/// priority of the project is for operators.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/priority",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    request_body(content = PriorityBody, content_type = "application/json"),
    responses((status = 200, body = JobAnswer), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn set_priority(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<JobAnswer>, ApiError> {
    let job = find(&shared, &principal, &id)?;
    let body = read_json(body).await?.ok_or_else(|| no_body(r#"{"priority": 75}"#))?;
    let PriorityBody { priority } = body;
    let highest = Priority::HIGHEST.0;
    if priority > highest {
        return Err(ApiError::new(BAD_BODY, format!("priority is {priority}"))
            .hint(format!("use 0 to {highest}")));
    }
    control(&shared, &principal, job, Control::SetPriority { priority }).await
}

/// Gives a job a longer time limit.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/extend",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    request_body(content = ExtendBody, content_type = "application/json"),
    responses((status = 200, body = JobAnswer), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn extend_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<JobAnswer>, ApiError> {
    let job = find(&shared, &principal, &id)?;
    let body = read_json(body).await?.ok_or_else(|| no_body(r#"{"timeout_s": 7200}"#))?;
    let ExtendBody { timeout_s } = body;
    if !(1..=MAX_TIMEOUT_S).contains(&timeout_s) {
        return Err(ApiError::new(BAD_BODY, format!("timeout_s is {timeout_s}"))
            .hint(format!("use 1 to {MAX_TIMEOUT_S}")));
    }
    control(&shared, &principal, job, Control::Extend { timeout_ms: timeout_s * 1000 }).await
}

/// What a refusal that only these requests get means to the caller.
pub(super) fn refused(rejected: &Rejected) -> Option<ApiError> {
    Some(match rejected {
        Rejected::NotWaiting { state } => {
            ApiError::new(NOT_WAITING, format!("the job is {state}: it cannot be held"))
                .hint("`gangline requeue` sends it back to the queue; hold it then")
        }
        Rejected::Ending => ApiError::new(ENDING, "the job is being stopped for good")
            .hint("`gangline clone` submits it again"),
        Rejected::FixedNodes => {
            ApiError::new(BAD_BODY, "the job runs on a standing cluster, whose nodes are given")
                .hint("requeue it without leaving nodes out")
        }
        Rejected::TooManyExcluded { limit } => {
            ApiError::new(BAD_BODY, format!("a job leaves out at most {limit} nodes by requeues"))
                .hint("cordon the nodes, or submit the job again")
        }
        Rejected::NoTimeLimit => {
            ApiError::new(BAD_TIME_LIMIT, "the job has no time limit that could be extended")
                .hint("it may run for as long as it likes")
        }
        Rejected::ShorterTimeLimit { present_ms } => {
            let detail = format!("the job has {} s already", present_ms / 1000);
            ApiError::new(BAD_TIME_LIMIT, detail)
                .hint("a time limit is only extended; `gangline stop` ends the job")
        }
        _ => return None,
    })
}
