//! Submitting jobs: the REST route, and the one way into the queue for both dialects.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gangline_common::ids::{GangId, JobId, short_suffix};
use gangline_common::random;
use gangline_spec::{Code, JobSpec, MAX_SPEC_BYTES, SpecError, SpecErrors, after_job};
use gangline_tree::Hash;
use ring::digest;
use serde::Deserialize;
use utoipa::IntoParams;

use super::auth::{Action, Caller, Object, authorize, decoded, sees};
use super::code::{no_such_code, room_for_more};
use super::error::{
    ApiError, BAD_MEDIA_TYPE, BAD_PARAMETER, JOB_EXISTS, Problem, TOO_LARGE, pools_there_are,
    quoted,
};
use super::jobs::{JobAnswer, ask, key_reused, refused, unexpected, view};
use super::{App, Params, Shared, header_text, read_body};
use crate::core::credential::{Principal, Role};
use crate::core::effect::{Answer, Rejected};
use crate::core::eligibility::BadDependency;
use crate::core::event::{Event, Submission};
use crate::core::job::{Job, JobRequest};
use crate::core::node_test::NodeTest;
use crate::paths::{Asker, resolve_paths};
use crate::request::{Owner, job_request, tree};

/// Longest idempotency key, in characters.
const MAX_KEY: usize = 128;
/// Longest submit command that is kept, in bytes.
const MAX_COMMAND: usize = 16 << 10;

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
        (status = 404, response = Problem),
        (status = 409, response = Problem),
        (status = 413, response = Problem),
        (status = 415, response = Problem),
        (status = 422, response = Problem),
        (status = 503, response = Problem),
        (status = 507, response = Problem)))]
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
    let id = match &chosen {
        Some(id) => id.clone(),
        None => minted(JobId::new(format!("j-{}", short_suffix(random::number()?))))?,
    };
    let wish = Wish {
        spec,
        source,
        id,
        idempotency: key.map(|key| (key, hash)),
        command,
        node_test: None,
    };
    match submit(&shared, &principal, wish).await? {
        Submitted::Made { job, seed } => submitted(&shared, &principal, &job, &seed),
        Submitted::Exists { job, canonical } => existing(&shared, &principal, &job, &canonical),
    }
}

/// A wish for a job: what every dialect makes of a submit.
pub(super) struct Wish {
    /// Checked, with every environment entry resolved.
    pub spec: JobSpec,
    /// The text that the spec was read from, for the positions of errors; may be empty.
    pub source: String,
    /// Of the new job.
    pub id: JobId,
    /// Key and hash of the request.
    pub idempotency: Option<(String, [u8; 32])>,
    /// For people; may be empty.
    pub command: String,
    /// The record of the check of the network that the job is to be.
    pub node_test: Option<Box<NodeTest>>,
}

/// What became of a wish.
pub(super) enum Submitted {
    /// The job is durable. It has another seed when the same request came before and made it.
    Made { job: JobId, seed: [u8; 32] },
    /// The id was taken, by a job with this spec or with another one.
    Exists { job: JobId, canonical: String },
}

/// Submits a job for a caller: the one way into the queue.
///
/// # Errors
/// The caller may not, the spec cannot be, or the core refuses.
pub(super) async fn submit(
    shared: &Shared,
    principal: &Principal,
    wish: Wish,
) -> Result<Submitted, ApiError> {
    let Prepared { project, request } = prepare(shared, principal, &wish)?;
    room_for_more(shared)?;
    let Wish { spec, source, id: job, idempotency, node_test, .. } = wish;
    let gang = minted(GangId::new(format!("g-{}", short_suffix(random::number()?))))?;
    let after_names = spec.queue.after;
    let after =
        after_names.iter().map(|entry| dependency(shared, principal, &project, &job, entry));
    let after = after.collect();
    let pools = spec.resources.pools.clone();
    let (names, submitted_to) = (spec.secrets, project.clone());
    let canonical = request.spec_json.clone();
    let seed = random::bytes()?;
    let submission = Box::new(Submission {
        job,
        gang,
        token_seed: seed,
        principal: Principal { project, ..principal.clone() },
        idempotency,
        request,
        after,
        node_test,
    });
    match ask(shared, |request| Event::Submit { request, submission }).await? {
        Ok(Answer::Submitted { job }) => Ok(Submitted::Made { job, seed }),
        Ok(other) => Err(unexpected(&other)),
        Err(Rejected::JobExists { job }) => Ok(Submitted::Exists { job, canonical }),
        Err(Rejected::UnknownSecrets { missing }) => {
            Err(unknown_secrets(&missing, &names, &submitted_to, &source))
        }
        Err(Rejected::NoSuchPool { pool, known }) => {
            Err(unknown_pool(&pool, &pools, &known, &source))
        }
        Err(Rejected::Dependency { index, why }) => {
            Err(bad_dependency(index, &why, &after_names, &submitted_to, &source))
        }
        Err(rejected) => Err(refused(shared, principal, rejected)),
    }
}

/// A wish that the caller may have, as the core takes it.
pub(super) struct Prepared {
    pub project: String,
    pub request: Arc<JobRequest>,
}

/// Checks what can be checked without the core.
///
/// # Errors
/// The caller may not, or the spec cannot be.
pub(super) fn prepare(
    shared: &Shared,
    principal: &Principal,
    wish: &Wish,
) -> Result<Prepared, ApiError> {
    let Wish { spec, source, id: job, command, .. } = wish;
    let project = spec.project.clone().unwrap_or_else(|| principal.project.clone());
    authorize(principal, Action::SubmitJob, &Object::Project(&project))?;
    let board = &shared.api.board;
    let project_of = |id: &str| {
        let id = JobId::new(id).ok()?;
        board.job(&id).map(|snapshot| snapshot.job.project.clone())
    };
    let asker = Asker {
        job,
        user: &principal.user,
        project: &project,
        is_admin: principal.role == Role::Admin,
        project_of: &project_of,
    };
    let paths = resolve_paths(spec, &asker, &shared.api.paths).map_err(|mut errors| {
        errors.locate(source);
        ApiError::spec(errors)
    })?;
    let tree = tree(spec).and_then(Hash::from_text);
    if let Some(tree) = tree.filter(|tree| !shared.api.trees.has(&project, *tree)) {
        return Err(no_such_code(tree));
    }
    let owner = Owner { job, project: &project };
    let request = Arc::new(job_request(spec, owner, paths, command.clone()));
    // Escapes can make the canonical text longer than what was sent; it is read again at a start.
    if request.spec_json.len() > MAX_SPEC_BYTES {
        let detail = format!("the spec has {} bytes when it is stored", request.spec_json.len());
        return Err(ApiError::new(TOO_LARGE, detail)
            .hint(format!("at most {MAX_SPEC_BYTES}; put data and code into files")));
    }
    Ok(Prepared { project, request })
}

/// The pool of the spec that nobody knows, at its place in the text.
fn unknown_pool(pool: &str, named: &[String], known: &[String], source: &str) -> ApiError {
    let pointer = match named.iter().position(|name| name == pool) {
        Some(index) if named.len() > 1 => format!("/resources/pool/{index}"),
        Some(_) | None => "/resources/pool".to_owned(),
    };
    let message = format!("there is no pool {}", quoted(pool));
    let hint = Some(pools_there_are(known));
    let error = SpecError::new(Code::BAD_VALUE, pointer, message, hint);
    let mut errors = SpecErrors::from(error);
    errors.locate(source);
    ApiError::spec(errors)
}

/// The job that an entry of `queue.after` means: an id, of any project that the caller may read, or
/// a name, of which it is the newest job in the project of the submission.
fn dependency(
    shared: &Shared,
    principal: &Principal,
    project: &str,
    own: &JobId,
    entry: &str,
) -> Option<JobId> {
    let wanted = after_job(entry);
    if wanted == own.as_str() {
        return Some(own.clone());
    }
    let board = &shared.api.board;
    let by_id = JobId::new(wanted).ok().and_then(|id| board.job(&id));
    if let Some(found) = by_id.filter(|snapshot| sees(principal, &snapshot.job)) {
        return Some(found.job.id.clone());
    }
    let visible = |job: &Job| job.project == project && sees(principal, job);
    board.newest_named(wanted, visible).map(|job| job.id.clone())
}

/// The jobs that a wish that is not submitted would have to wait for.
pub(super) fn to_run_after(
    shared: &Shared,
    principal: &Principal,
    project: &str,
    wish: &Wish,
) -> Result<Vec<JobId>, ApiError> {
    let names = &wish.spec.queue.after;
    let mut waits_for = Vec::new();
    for (index, entry) in names.iter().enumerate() {
        let id = dependency(shared, principal, project, &wish.id, entry);
        let Some(found) = id.and_then(|id| shared.api.board.job(&id)) else {
            let why = BadDependency::Missing;
            return Err(bad_dependency(index, &why, names, project, &wish.source));
        };
        if !found.job.state.is_terminal() {
            waits_for.push(found.job.id.clone());
        }
    }
    Ok(waits_for)
}

/// The job that cannot be run after, at its place in the text.
fn bad_dependency(
    index: usize,
    why: &BadDependency,
    names: &[String],
    project: &str,
    source: &str,
) -> ApiError {
    let name = quoted(names.get(index).map_or("", |entry| after_job(entry)));
    let (message, hint) = match why {
        BadDependency::Missing => (
            format!("there is no job {name} in the project `{project}` to run after"),
            "submit that one first: a job runs after jobs that are there already, so that no two \
             wait for each other; of another project name the id",
        ),
        BadDependency::Itself => {
            (format!("the job {name} would wait for itself"), "leave it out of `queue.after`")
        }
        BadDependency::Ended { job, state } => (
            format!("{name} (job {job}) is {state} and will not succeed any more"),
            "`gangline clone` submits it again; run after the new one",
        ),
        BadDependency::Cluster { job } => (
            format!("{name} (job {job}) is a standing cluster, which never succeeds"),
            "`cluster:` or `--on` runs a job on it",
        ),
    };
    let pointer = format!("/queue/after/{index}");
    let error = SpecError::new(Code::BAD_VALUE, pointer, message, Some(hint.to_owned()));
    let mut errors = SpecErrors { errors: vec![error], omitted: 0 };
    errors.locate(source);
    ApiError::spec(errors)
}

/// The secrets of the spec that the project does not have, each at its place in the text.
fn unknown_secrets(missing: &[usize], names: &[String], project: &str, source: &str) -> ApiError {
    let error = |index: &usize| {
        let name = quoted(names.get(*index).map_or("", String::as_str));
        let message = format!("the project `{project}` has no secret {name}");
        let hint = "`gangline secret set NAME` keeps one, `gangline secret ls` lists them";
        SpecError::new(Code::BAD_VALUE, format!("/secrets/{index}"), message, Some(hint.to_owned()))
    };
    let errors = missing.iter().map(error).collect();
    let mut errors = SpecErrors { errors, omitted: 0 };
    errors.locate(source);
    ApiError::spec(errors)
}

/// The answer for a job that this request, or the same one before it, made.
fn submitted(
    shared: &Shared,
    principal: &Principal,
    id: &JobId,
    seed: &[u8; 32],
) -> Result<Response, ApiError> {
    let Some(snapshot) = shared.api.board.job(id) else {
        return Err(ApiError::internal("a committed job is not on the board", id));
    };
    if !sees(principal, &snapshot.job) {
        return Err(key_reused());
    }
    // Seeds are drawn per request: another one means that the job is older than this request.
    let status = match snapshot.job.token_seed == *seed {
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

pub(super) fn minted<T, E: std::fmt::Display>(id: Result<T, E>) -> Result<T, ApiError> {
    id.map_err(|error| ApiError::internal("minting an id", &error))
}

/// Parsing may take a while for a spec at the limit, so it does not hold up the other requests.
pub(super) async fn parse(body: Vec<u8>) -> Result<(String, JobSpec), ApiError> {
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
pub(super) fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
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
