//! Jobs: submit, list, look at, stop.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use data_encoding::BASE64URL_NOPAD;
use gangline_common::ids::{GangId, JobId, short_suffix};
use gangline_common::random;
use gangline_spec::{Code, JobSpec, MAX_SPEC_BYTES, SpecError};
use ring::digest;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize, decoded, sees};
use super::error::{
    ALREADY_ENDED, AMBIGUOUS, ApiError, BAD_MEDIA_TYPE, BAD_PARAMETER, CHECKPOINT_IN_USE, FULL,
    JOB_EXISTS, KEY_REUSED, Problem, no_such_job, quoted,
};
use super::view::{JobView, Names};
use super::{App, Params, Selector, Shared, header_text, read_body, read_json};
use crate::board::{Board, JobSnapshot};
use crate::core::credential::Principal;
use crate::core::effect::{Answer, Rejected};
use crate::core::event::{Event, Submission};
use crate::core::job::{Job, JobState};
use crate::request::{job_request, resolve_paths};

/// Longest idempotency key, in characters.
const MAX_KEY: usize = 128;
/// Longest submit command that is kept, in bytes.
const MAX_COMMAND: usize = 16 << 10;
/// Longest reason of a stop, in characters.
const MAX_REASON: usize = 1024;
/// Jobs of one page, unless asked otherwise, and at most.
const PAGE_SIZE: usize = 100;
const MAX_PAGE_SIZE: usize = 1000;
/// Jobs that are named when a prefix fits several.
const MAX_CANDIDATES: usize = 5;

/// One job.
#[derive(Serialize, ToSchema)]
pub(super) struct JobAnswer {
    job: JobView,
}

/// Query of a submit.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SubmitParams {
    /// Id of the new job, `[A-Za-z0-9_-]{1,64}`; one is made without it.
    submission_id: Option<String>,
}

/// Submits a job. 201: it is durably queued. 200: this very request came before; its job.
#[utoipa::path(post, path = "/api/v1/jobs",
    params(SubmitParams,
        ("Idempotency-Key" = Option<String>, Header,
            description = "The same key and body within 24 h make one job"),
        ("X-Gangline-Command" = Option<String>, Header,
            description = "The submitter's command, percent-encoded UTF-8")),
    request_body(content((String = "application/yaml"), (Object = "application/json")),
        description = "The job spec, at most 1 MiB, every environment entry with a value"),
    responses(
        (status = 201, body = JobAnswer),
        (status = 200, body = JobAnswer),
        (status = 409, response = Problem),
        (status = 413, response = Problem),
        (status = 422, response = Problem)))]
pub(super) async fn submit_job(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<SubmitParams>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    check_media_type(&headers)?;
    let key = idempotency_key(&headers)?;
    let command = submit_command(&headers)?;
    let chosen = params.submission_id.as_deref().map(chosen_id).transpose()?;
    let body = read_body(body, MAX_SPEC_BYTES).await?;
    let hash = request_hash(&body, params.submission_id.as_deref(), &principal.user);
    let (source, spec) = parse(body).await?;
    let project = spec.project.clone().unwrap_or_else(|| principal.project.clone());
    authorize(&principal, Action::SubmitJob, &Object::Project(&project))?;

    let job = match &chosen {
        Some(id) => id.clone(),
        None => minted(JobId::new(format!("j-{}", short_suffix(random::number()?))))?,
    };
    let gang = minted(GangId::new(format!("g-{}", short_suffix(random::number()?))))?;
    let paths = resolve_paths(&spec, &job, &project, &shared.api.paths).map_err(|mut errors| {
        errors.locate(&source);
        ApiError::spec(errors)
    })?;
    let submission = Submission {
        job,
        gang: gang.clone(),
        token_seed: random::bytes()?,
        principal: Principal { project, ..principal.clone() },
        idempotency: key.map(|key| (key, hash)),
        request: Arc::new(job_request(&spec, paths, command)),
    };
    let canonical = submission.request.spec_json.clone();
    let submission = Box::new(submission);
    let answer = shared.api.driver.ask(|request| Event::Submit { request, submission }).await?;
    match answer {
        Answer::Submitted { job } => submitted(&shared, &principal, &job, &gang),
        Answer::Rejected(Rejected::JobExists { job }) => {
            existing(&shared, &principal, &job, &canonical)
        }
        Answer::Rejected(rejected) => Err(refused(&shared, &principal, rejected)),
        other => Err(unexpected(&other)),
    }
}

/// The answer for a job that this request, or the same one before it, made.
fn submitted(
    shared: &Shared,
    principal: &Principal,
    id: &JobId,
    gang: &GangId,
) -> Result<Response, ApiError> {
    let Some(snapshot) = shared.api.board.job(id) else {
        return Err(ApiError::internal("a committed job is not on the board", id));
    };
    if !sees(principal, &snapshot.job) {
        return Err(key_reused());
    }
    // Gang ids are minted per request: another one means that the job is older than this request.
    let status = match snapshot.job.gang == *gang {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let location = format!("/api/v1/jobs/{id}");
    let answer = Json(JobAnswer { job: view(shared, &snapshot) });
    Ok((status, [(header::LOCATION, location)], answer).into_response())
}

/// The id is taken: by the same job again, or by another one (A33).
fn existing(
    shared: &Shared,
    principal: &Principal,
    id: &JobId,
    canonical: &str,
) -> Result<Response, ApiError> {
    let snapshot = shared.api.board.job(id).filter(|s| sees(principal, &s.job));
    match snapshot {
        Some(snapshot) if snapshot.job.request.spec_json == canonical => {
            Ok(Json(JobAnswer { job: view(shared, &snapshot) }).into_response())
        }
        Some(_) => Err(ApiError::new(JOB_EXISTS, format!("job `{id}` exists with another spec"))
            .hint("leave the id out, or choose another one")),
        None => Err(ApiError::new(JOB_EXISTS, format!("the job id `{id}` cannot be used"))
            .hint("leave the id out, or choose another one")),
    }
}

/// What a refusal of the core means to the caller.
fn refused(shared: &Shared, principal: &Principal, rejected: Rejected) -> ApiError {
    match rejected {
        Rejected::KeyReused { .. } => key_reused(),
        Rejected::CheckpointInUse { job, directory } => {
            let holder = shared.api.board.job(&job).filter(|s| sees(principal, &s.job));
            let who = match &holder {
                Some(snapshot) => format!("job `{}`", snapshot.job.id),
                None => "a job of another project".to_owned(),
            };
            ApiError::new(CHECKPOINT_IN_USE, format!("{who} is using {}", quoted(&directory)))
                .hint("wait for its end, stop it, or name another `checkpoint.dir`")
        }
        Rejected::Full { limit } => {
            ApiError::new(FULL, format!("{limit} jobs are waiting or running already"))
                .hint("submit again when some of them have ended")
                .retry_after_s(60)
        }
        Rejected::AlreadyEnded { state } => {
            ApiError::new(ALREADY_ENDED, format!("the job has already ended: {state}"))
        }
        Rejected::NoSuchJob => no_such_job(),
        other @ (Rejected::JobExists { .. }
        | Rejected::NoSuchNode
        | Rejected::NoSuchToken
        | Rejected::LastAdmin
        | Rejected::BadJoinToken
        | Rejected::Revoked
        | Rejected::Clone { .. }) => unexpected(&Answer::Rejected(other)),
    }
}

fn key_reused() -> ApiError {
    ApiError::new(KEY_REUSED, "the idempotency key came before, with another body or job id")
        .hint("use a new key for a new request")
}

/// An answer of the driver that does not belong to the question.
pub(super) fn unexpected(answer: &Answer) -> ApiError {
    ApiError::internal("unexpected answer of the driver", &format_args!("{answer:?}"))
}

fn minted<T, E: std::fmt::Display>(id: Result<T, E>) -> Result<T, ApiError> {
    id.map_err(|error| ApiError::internal("minting an id", &error))
}

/// Parsing may take a while for a spec at the limit, so it does not hold up the other requests.
async fn parse(body: Vec<u8>) -> Result<(String, JobSpec), ApiError> {
    let parsed = tokio::task::spawn_blocking(move || {
        let source = String::from_utf8(body).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let message = format!("the spec is not UTF-8 text (byte {at})");
            SpecError::new(Code::SYNTAX, "", message, None)
        })?;
        gangline_spec::parse_resolved(&source).map(|spec| (source, spec))
    });
    match parsed.await {
        Ok(result) => result.map_err(ApiError::spec),
        Err(error) => Err(ApiError::internal("parsing a spec", &error)),
    }
}

/// A spec is YAML, of which JSON is a part; nothing else is guessed.
fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    const TYPES: [&str; 5] =
        ["application/yaml", "application/x-yaml", "application/json", "text/yaml", "text/plain"];
    let Some(text) = header_text(headers, header::CONTENT_TYPE.as_str())? else { return Ok(()) };
    let essence = text.split(';').next().unwrap_or("").trim();
    if TYPES.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    Err(ApiError::new(BAD_MEDIA_TYPE, format!("{} is not a type of a spec", quoted(essence)))
        .hint("send the spec as application/yaml or application/json"))
}

fn chosen_id(text: &str) -> Result<JobId, ApiError> {
    JobId::new(text).map_err(|error| {
        let message = format!("{} cannot be a job id", quoted(text));
        ApiError::spec(
            SpecError::new(Code::BAD_VALUE, "", message, Some(error.rule.to_owned())).into(),
        )
    })
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(key) = header_text(headers, "idempotency-key")? else { return Ok(None) };
    if (1..=MAX_KEY).contains(&key.len()) {
        return Ok(Some(key.to_owned()));
    }
    let detail = format!("the Idempotency-Key has {} characters", key.len());
    Err(ApiError::new(BAD_PARAMETER, detail).hint(format!("use 1 to {MAX_KEY}")))
}

fn submit_command(headers: &HeaderMap) -> Result<String, ApiError> {
    let Some(text) = header_text(headers, "x-gangline-command")? else { return Ok(String::new()) };
    let command = decoded(text);
    if command.len() <= MAX_COMMAND {
        return Ok(command);
    }
    let detail = format!("X-Gangline-Command has {} bytes", command.len());
    Err(ApiError::new(BAD_PARAMETER, detail).hint(format!("at most {MAX_COMMAND}")))
}

/// What "the same request" means: body, chosen id and user, each with its length before it.
fn request_hash(body: &[u8], submission_id: Option<&str>, user: &str) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    let id = submission_id.map_or(&[][..], str::as_bytes);
    for part in [body, &[u8::from(submission_id.is_some())], id, user.as_bytes()] {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

fn view(shared: &Shared, snapshot: &JobSnapshot) -> JobView {
    JobView::of(snapshot, &Names::of(&shared.api.board))
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
    let size = params.page_size.unwrap_or(PAGE_SIZE);
    if !(1..=MAX_PAGE_SIZE).contains(&size) {
        return Err(ApiError::new(BAD_PARAMETER, format!("page_size is {size}"))
            .hint(format!("use 1 to {MAX_PAGE_SIZE}")));
    }
    let before = params.page_token.as_deref().map(page_start).transpose()?;
    let board = &shared.api.board;
    let wanted = |job: &Arc<Job>| {
        before.is_none_or(|before| job.sequence < before)
            && states.as_ref().is_none_or(|states| states.contains(&job.state))
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
    let jobs = snapshots.map(|snapshot| JobView::of(&snapshot, &names)).collect();
    Ok(Json(JobList { jobs, next_page_token }))
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
    responses((status = 200, body = JobView), (status = 404, response = Problem)))]
pub(super) async fn get_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
) -> Result<Json<JobView>, ApiError> {
    let board = &shared.api.board;
    let snapshot = find_job(board, &principal, Action::ReadJobs, &id)?;
    let view = JobView::detailed(&snapshot, &Names::of(board));
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
    let reason = stop.reason.unwrap_or_default();
    if reason.chars().count() > MAX_REASON {
        return Err(ApiError::new(BAD_PARAMETER, "the reason is too long")
            .hint(format!("at most {MAX_REASON} characters")));
    }
    let (id, actor) = (job.clone(), principal.clone());
    let event = |request| Event::StopJob { request, job: id, actor, reason };
    match shared.api.driver.ask(event).await? {
        Answer::Stopping => {}
        Answer::Rejected(rejected) => return Err(refused(&shared, &principal, rejected)),
        other => return Err(unexpected(&other)),
    }
    let snapshot = board.job(&job).ok_or_else(no_such_job)?;
    let location = format!("/api/v1/jobs/{job}");
    let answer = JobAnswer { job: view(&shared, &snapshot) };
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(answer)))
}
