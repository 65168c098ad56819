//! Jobs: list, look at, stop, delete, and what the core's answers mean to a caller.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use data_encoding::BASE64URL_NOPAD;
use gangline_common::ids::JobId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize, sees};
use super::error::{
    ALREADY_ENDED, AMBIGUOUS, ApiError, BAD_PARAMETER, BAD_QUOTA, CHECKPOINT_IN_USE,
    CLUSTER_TOO_SMALL, FULL, HAS_JOBS, KEY_REUSED, LAST_ADMIN, NO_SUCH_CLUSTER, NO_SUCH_SECRET,
    NO_SUCH_TOKEN, NODE_IN_CONTACT, NOT_ENDED, NOT_MOVED_HERE, NOTHING_HELD, POOL_IN_USE,
    PRIORITY_TOO_HIGH, Problem, QUOTA_BELOW_USE, SECRET_IN_USE, STORE_FULL, TOKEN_NAME_TAKEN,
    TOO_LARGE, no_such_job, no_such_node, no_such_pool, no_such_webhook, quoted,
};
use super::view::{JobView, Names};
use super::{App, Params, Selector, Shared, page_size, read_json};
use crate::board::{Board, JobSnapshot};
use crate::core::credential::Principal;
use crate::core::effect::{Answer, Rejected};
use crate::core::event::{Event, RequestId};
use crate::core::job::{Job, JobState};

/// Longest reason of a stop or a hold, in characters.
const MAX_REASON: usize = 1024;
/// Jobs that are named when a prefix fits several.
const MAX_CANDIDATES: usize = 5;

/// One job.
#[derive(Serialize, ToSchema)]
pub(super) struct JobAnswer {
    pub job: JobView,
}

/// Asks the core: its answer, or its refusal.
pub(super) async fn ask(
    shared: &Shared,
    make: impl FnOnce(RequestId) -> Event,
) -> Result<Result<Answer, Rejected>, ApiError> {
    Ok(match shared.api.driver.ask(make).await? {
        Answer::Rejected(rejected) => Err(rejected),
        answer => Ok(answer),
    })
}

/// Asks the core for something whose only answer is that it is done: durable when this returns.
pub(super) async fn done(
    shared: &Shared,
    principal: &Principal,
    make: impl FnOnce(RequestId) -> Event,
) -> Result<(), ApiError> {
    match ask(shared, make).await? {
        Ok(Answer::Done) => Ok(()),
        Ok(other) => Err(unexpected(&other)),
        Err(rejected) => Err(refused(shared, principal, rejected)),
    }
}

/// What a refusal of the core means to the caller.
pub(super) fn refused(shared: &Shared, principal: &Principal, rejected: Rejected) -> ApiError {
    match rejected {
        Rejected::KeyReused { .. } => key_reused(),
        Rejected::CheckpointInUse { job, directory } => {
            let holder = shared.api.board.job(&job).filter(|s| sees(principal, &s.job));
            let who = match &holder {
                Some(snapshot) => format!("job `{}`", snapshot.job.id),
                None => "a job of another project".to_owned(),
            };
            let ended = holder.is_some_and(|snapshot| snapshot.job.state.is_terminal());
            let error =
                ApiError::new(CHECKPOINT_IN_USE, format!("{who} is using {}", quoted(&directory)));
            match ended {
                false => error.hint("wait for its end, stop it, or name another `checkpoint.dir`"),
                true => error.hint(
                    "it has ended, but a node of it is lost and may run it: wait for the node, \
                     name another `checkpoint.dir`, or see `gangline node force-release`",
                ),
            }
        }
        Rejected::Full { limit } => {
            ApiError::new(FULL, format!("{limit} jobs are waiting or running already"))
                .hint("submit again when some of them have ended")
                .retry_after_s(60)
        }
        Rejected::AlreadyEnded { state } => {
            ApiError::new(ALREADY_ENDED, format!("the job has already ended: {state}"))
                .hint("`gangline clone` submits it again")
        }
        Rejected::NotEnded { state } => ApiError::new(NOT_ENDED, format!("the job is {state}"))
            .hint("stop it, and delete it when it has ended"),
        Rejected::NotGone => {
            ApiError::new(NOT_ENDED, "the job has ended, but a node of it is lost and may run it")
                .hint(
                    "delete it when the node is back and has reported that nothing is left; when \
                     nothing of it can run any more: `gangline node force-release`",
                )
        }
        Rejected::NoSuchJob => no_such_job(),
        Rejected::NoSuchCluster => {
            ApiError::new(NO_SUCH_CLUSTER, "the project has no standing cluster of this name or id")
                .hint(
                    "`gangline cluster ls` lists them; `gangline submit` starts a `kind: cluster`",
                )
        }
        Rejected::ClusterTooSmall { cluster, nnodes, gpus_per_node } => {
            let detail = format!(
                "the job asks for more than cluster `{cluster}` has: {nnodes} nodes with \
                 {gpus_per_node} GPUs each"
            );
            ApiError::new(CLUSTER_TOO_SMALL, detail)
                .hint("ask for less, or leave out `cluster` for a gang of its own")
        }
        Rejected::GuestTooLarge { limit } => {
            let detail =
                format!("a job on a cluster is sent to its head, and is over {limit} bytes");
            ApiError::new(TOO_LARGE, detail).hint("put data and code into files on a shared path")
        }
        Rejected::HasGuests { jobs } => {
            ApiError::new(HAS_JOBS, format!("{jobs} jobs ran on the cluster; their logs are in it"))
                .hint("delete them first")
        }
        Rejected::PriorityTooHigh { highest } => {
            let detail = format!("the highest priority of this project is {highest}");
            ApiError::new(PRIORITY_TOO_HIGH, detail)
                .hint("ask for less; an administrator raises it with `gangline project set`")
        }
        Rejected::TooManyQuotas { limit } => {
            ApiError::new(STORE_FULL, format!("the project has quotas in {limit} pools already"))
                .hint("end those that nobody needs: `gangline project set --no-quota POOL`")
        }
        Rejected::GuaranteeAboveMaximum { guaranteed, maximum } => ApiError::new(
            BAD_QUOTA,
            format!("{guaranteed} GPUs cannot be guaranteed of at most {maximum}"),
        )
        .hint("raise the maximum, or guarantee less"),
        Rejected::GuaranteesTooLarge { gpus, promised } => ApiError::new(
            BAD_QUOTA,
            format!("the pool has {gpus} GPUs, and {promised} are guaranteed to other projects"),
        )
        .hint("guarantee at most what is left, or less to others first"),
        Rejected::QuotaBelowUse { held, jobs } => {
            const SHOWN: usize = 8;
            let named: Vec<&str> = jobs.iter().take(SHOWN).map(|job| job.as_str()).collect();
            let more = jobs.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let holders = named.join(", ");
            ApiError::new(
                QUOTA_BELOW_USE,
                format!("the project's jobs hold {held} GPUs there now: {holders}{more}"),
            )
            .hint("set a maximum of at least that, or requeue or stop some of them first")
        }
        Rejected::NoSuchSecret => {
            ApiError::new(NO_SUCH_SECRET, "the project has no secret of this name")
                .hint("`gangline secret ls` lists them")
        }
        Rejected::SecretInUse { job } => {
            ApiError::new(SECRET_IN_USE, format!("job `{job}` has not ended and names it"))
                .hint("delete it when the job has ended; setting another value is possible now")
        }
        Rejected::NoSuchWebhook => no_such_webhook(),
        Rejected::TooManyWebhooks { limit } => {
            ApiError::new(STORE_FULL, format!("there are {limit} webhooks already"))
                .hint("delete those that nobody needs")
        }
        Rejected::TooManySecrets { limit } => {
            ApiError::new(STORE_FULL, format!("the project has {limit} secrets already"))
                .hint("delete those that nobody needs")
        }
        Rejected::SecretsTooLarge { limit } => {
            let detail = format!("the secrets of one job are over {limit} bytes together");
            ApiError::new(TOO_LARGE, detail).hint("put large ones into a file on a shared path")
        }
        Rejected::NoSuchNode => no_such_node(),
        Rejected::NoSuchPool { pool, known } => no_such_pool(&pool, &known),
        Rejected::PoolInUse { nodes, jobs } => {
            let detail = format!("{} nodes are in it and {jobs} live jobs name it", nodes.len());
            ApiError::new(POOL_IN_USE, detail)
                .hint("move its nodes to another pool, and wait for its jobs or stop them")
        }
        Rejected::NotMovedHere { node } => {
            let detail =
                format!("node {} was not moved to this pool by an operator", quoted(&node));
            ApiError::new(NOT_MOVED_HERE, detail)
                .hint("add the node to the pool that it shall be in")
        }
        Rejected::TooManyPools { limit } => {
            ApiError::new(STORE_FULL, format!("there are {limit} declared pools already"))
                .hint("delete those that nobody needs")
        }
        Rejected::TooManyLabels { limit } => {
            let detail = format!("operators may give one node at most {limit} labels");
            ApiError::new(STORE_FULL, detail).hint("take back those that nobody needs: `KEY-`")
        }
        Rejected::NodeNotLost => {
            let detail = "the node is not lost: its agent itself says what has ended there";
            ApiError::new(NODE_IN_CONTACT, detail)
                .hint("`gangline node drain` takes a node out of use that is in contact")
        }
        Rejected::NothingHeld => ApiError::new(NOTHING_HELD, "the node holds nothing of any job")
            .hint("nothing waits for it: there is nothing to release"),
        Rejected::NoSuchToken => ApiError::new(NO_SUCH_TOKEN, "no token has this name or id")
            .hint("`gangline token ls` lists them"),
        Rejected::LastAdmin => {
            let detail = "without this token nobody could make another one";
            ApiError::new(LAST_ADMIN, detail)
                .hint("make another administrator's token that does not expire first")
        }
        Rejected::TokenNameTaken => {
            let detail = "a token of this name is another user's, or of another project or role";
            ApiError::new(TOKEN_NAME_TAKEN, detail)
                .hint("give it a name of its own, or end the other one first: `gangline token rm`")
        }
        other @ (Rejected::NotWaiting { .. }
        | Rejected::Ending
        | Rejected::FixedNodes
        | Rejected::TooManyExcluded { .. }
        | Rejected::NoTimeLimit
        | Rejected::ShorterTimeLimit { .. }) => {
            super::controls::refused(&other).unwrap_or_else(|| unexpected(&Answer::Rejected(other)))
        }
        other @ (Rejected::JobExists { .. }
        | Rejected::Dependency { .. }
        | Rejected::UnknownSecrets { .. }
        | Rejected::BadJoinToken
        | Rejected::Revoked
        | Rejected::Clone { .. }) => unexpected(&Answer::Rejected(other)),
    }
}

pub(super) fn key_reused() -> ApiError {
    ApiError::new(KEY_REUSED, "the idempotency key came before, with another body or job id")
        .hint("use a new key for a new request")
}

/// An answer of the driver that does not belong to the question.
pub(super) fn unexpected(answer: &Answer) -> ApiError {
    ApiError::internal("unexpected answer of the driver", &format_args!("{answer:?}"))
}

pub(super) fn view(shared: &Shared, snapshot: &JobSnapshot) -> JobView {
    let view = JobView::of(snapshot, &Names::of(&shared.api.board));
    view.with_progress(&shared.api.trainings.shown(&snapshot.job.id), &snapshot.job)
}

/// The job that a caller means: an id, a name (its newest job), the beginning of one id, `@last`.
///
/// # Errors
/// The same 404 for a job that does not exist and for one that the caller may not see.
pub(super) fn find_job(
    board: &Board,
    principal: &Principal,
    action: Action,
    selector: &str,
) -> Result<JobSnapshot, ApiError> {
    let may = |job: &Job| authorize(principal, action, &Object::Job(job)).is_ok();
    let by_id = JobId::new(selector).ok().and_then(|id| board.job(&id));
    if let Some(snapshot) = by_id.filter(|snapshot| may(&snapshot.job)) {
        return Ok(snapshot);
    }
    if selector == "@last" {
        let last = board.jobs().into_iter().find(|job| job.user == principal.user && may(job));
        return last.and_then(|job| board.job(&job.id)).ok_or_else(no_such_job);
    }
    if let Some(job) = board.newest_named(selector, may) {
        return board.job(&job.id).ok_or_else(no_such_job);
    }
    let mut fitting: Vec<Arc<Job>> = board.jobs();
    fitting.retain(|job| !selector.is_empty() && job.id.as_str().starts_with(selector) && may(job));
    match fitting.as_slice() {
        [] => Err(no_such_job()),
        [job] => board.job(&job.id).ok_or_else(no_such_job),
        several => {
            let ids: Vec<&str> =
                several.iter().take(MAX_CANDIDATES).map(|job| job.id.as_str()).collect();
            let detail = format!("{} begins the ids of {} jobs", quoted(selector), several.len());
            Err(ApiError::new(AMBIGUOUS, detail).hint(format!("such as {}", ids.join(", "))))
        }
    }
}

/// Query of a list of jobs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// States, separated by commas.
    state: Option<String>,
    user: Option<String>,
    /// `job` or `cluster`.
    kind: Option<String>,
    /// Id of a standing cluster: only the jobs on it.
    cluster: Option<String>,
    /// 1 to 1000; 100 when absent.
    page_size: Option<usize>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// A page of jobs, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct JobList {
    jobs: Vec<JobView>,
    /// Absent at the end.
    next_page_token: Option<String>,
}

/// The jobs that the caller may see.
#[utoipa::path(get, path = "/api/v1/jobs", params(ListParams),
    responses((status = 200, body = JobList), (status = 400, response = Problem)))]
pub(super) async fn list_jobs(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<JobList>, ApiError> {
    let states = params.state.as_deref().map(states).transpose()?;
    let clusters = params.kind.as_deref().map(is_cluster_word).transpose()?;
    let size = page_size(params.page_size)?;
    let before = params.page_token.as_deref().map(page_start).transpose()?;
    let board = &shared.api.board;
    let wanted = |job: &Arc<Job>| {
        before.is_none_or(|before| job.sequence < before)
            && states.as_ref().is_none_or(|states| states.contains(&job.state))
            && clusters.is_none_or(|clusters| job.is_cluster() == clusters)
            && params.cluster.as_ref().is_none_or(|cluster| {
                job.cluster.as_ref().is_some_and(|of_job| of_job.as_str() == cluster)
            })
            && params.user.as_ref().is_none_or(|user| job.user == *user)
            && sees(&principal, job)
    };
    // One more than the page tells whether there is another page.
    let mut jobs: Vec<Arc<Job>> = board.jobs().into_iter().filter(wanted).take(size + 1).collect();
    let more = jobs.len() > size;
    jobs.truncate(size);
    let next_page_token = jobs.last().filter(|_| more).map(|job| page_token(job.sequence));
    let names = Names::of(board);
    let snapshots = jobs.iter().filter_map(|job| board.job(&job.id));
    let view = |snapshot| {
        let view = JobView::of(&snapshot, &names).with_usage(board, &snapshot);
        view.with_progress(&shared.api.trainings.shown(&snapshot.job.id), &snapshot.job)
    };
    let jobs = snapshots.map(view).collect();
    Ok(Json(JobList { jobs, next_page_token }))
}

fn is_cluster_word(text: &str) -> Result<bool, ApiError> {
    match text {
        "job" => Ok(false),
        "cluster" => Ok(true),
        _ => Err(ApiError::new(BAD_PARAMETER, format!("{} is not a kind of a job", quoted(text)))
            .hint("the kinds are job and cluster")),
    }
}

fn states(text: &str) -> Result<Vec<JobState>, ApiError> {
    use JobState::*;
    const ALL: [JobState; 9] =
        [Pending, Starting, Running, Stopping, Held, Succeeded, Failed, Cancelled, Timeout];
    let parse = |word: &str| {
        let found = ALL.into_iter().find(|state| state.word().eq_ignore_ascii_case(word.trim()));
        found.ok_or_else(|| {
            let words: Vec<&str> = ALL.iter().map(|state| state.word()).collect();
            ApiError::new(BAD_PARAMETER, format!("{} is not a state of a job", quoted(word)))
                .hint(format!("the states are {}", words.join(", ")))
        })
    };
    text.split(',').map(parse).collect()
}

fn page_token(sequence: u64) -> String {
    BASE64URL_NOPAD.encode(&sequence.to_be_bytes())
}

fn page_start(token: &str) -> Result<u64, ApiError> {
    let bytes = BASE64URL_NOPAD.decode(token.as_bytes()).ok();
    let bytes: Option<[u8; 8]> = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_be_bytes).ok_or_else(|| {
        ApiError::new(BAD_PARAMETER, "page_token is not one of this API")
            .hint("use `next_page_token` of the page before, unchanged")
    })
}

/// One job with its attempts, members and history.
#[utoipa::path(get, path = "/api/v1/jobs/{id}",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    responses((status = 200, body = JobView), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn get_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
) -> Result<Json<JobView>, ApiError> {
    let board = &shared.api.board;
    let snapshot = find_job(board, &principal, Action::ReadJobs, &id)?;
    let view = JobView::detailed(&snapshot, &Names::of(board), &principal)
        .map(|view| view.with_usage(board, &snapshot))
        .map(|view| {
            view.with_progress(&shared.api.trainings.shown(&snapshot.job.id), &snapshot.job)
        });
    view.map(Json).map_err(|error| ApiError::internal("reading a stored spec", &error))
}

/// Body of a stop.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopRequest {
    /// For people; at most 1024 characters.
    reason: Option<String>,
}

/// Stops a job: the request is durable when this answers; the job then ends as CANCELLED.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/stop",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    request_body = Option<StopRequest>,
    responses((status = 202, body = JobAnswer), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn stop_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<JobAnswer>), ApiError> {
    let board = &shared.api.board;
    let job = find_job(board, &principal, Action::StopJob, &id)?.job.id.clone();
    let stop: StopRequest = read_json(body).await?.unwrap_or_default();
    let reason = checked_reason(stop.reason)?;
    match ask_to_stop(&shared, &principal, &job, reason).await? {
        Ok(()) => {}
        Err(rejected) => return Err(refused(&shared, &principal, rejected)),
    }
    let snapshot = board.job(&job).ok_or_else(no_such_job)?;
    let location = format!("/api/v1/jobs/{job}");
    let answer = JobAnswer { job: view(&shared, &snapshot) };
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(answer)))
}

/// A reason for people, which may be absent.
pub(super) fn checked_reason(reason: Option<String>) -> Result<String, ApiError> {
    let reason = reason.unwrap_or_default();
    if reason.chars().count() > MAX_REASON {
        return Err(ApiError::new(BAD_PARAMETER, "the reason is too long")
            .hint(format!("at most {MAX_REASON} characters")));
    }
    Ok(reason)
}

/// Asks the core to stop a job; durable when this returns.
pub(super) async fn ask_to_stop(
    shared: &Shared,
    principal: &Principal,
    job: &JobId,
    reason: String,
) -> Result<Result<(), Rejected>, ApiError> {
    let (job, actor) = (job.clone(), principal.clone());
    match ask(shared, |request| Event::StopJob { request, job, actor, reason }).await? {
        Ok(Answer::Stopping) => Ok(Ok(())),
        Ok(other) => Err(unexpected(&other)),
        Err(rejected) => Ok(Err(rejected)),
    }
}

/// Forgets an ended job, durably, and deletes its logs. What it wrote below the shared root stays.
pub(super) async fn delete(
    shared: &Shared,
    principal: &Principal,
    job: &JobId,
) -> Result<(), ApiError> {
    let (id, actor) = (job.clone(), principal.clone());
    let gang = match ask(shared, |request| Event::DeleteJob { request, job: id, actor }).await? {
        Ok(Answer::Deleted { gang }) => gang,
        Ok(other) => return Err(unexpected(&other)),
        Err(rejected) => return Err(refused(shared, principal, rejected)),
    };
    tracing::info!(%job, user = principal.user, "deleted");
    let Some(gang) = gang else { return Ok(()) };
    let logs = shared.api.logs.clone();
    // The job is gone already, so leftovers of its logs are the coordinator's own trouble.
    let removed = tokio::task::spawn_blocking(move || logs.remove(&gang)).await;
    let result = removed.map_err(std::io::Error::other).and_then(|result| result);
    if let Err(error) = result {
        tracing::warn!(%job, %error, "the logs of a deleted job are not all gone");
    }
    Ok(())
}
