//! Why a job waits, what would become of one that is not submitted yet, and the queue in its order.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use gangline_common::ids::{GangId, JobId};
use gangline_common::time::{Stopwatch, Timestamp, wall_text};
use gangline_spec::MAX_SPEC_BYTES;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize, sees};
use super::error::{ApiError, Problem};
use super::jobs::{ask, find_job, refused, unexpected};
use super::nodes::check_pool;
use super::submit::{Prepared, Wish, check_media_type, minted, parse, prepare, to_run_after};
use super::{App, Params, Selector, Shared, read_body};
use crate::core::controls::{Changes, Hold};
use crate::core::credential::Principal;
use crate::core::effect::Answer;
use crate::core::event::Event;
use crate::core::explain::{
    ExpectedStart, Explanation, Leaver, Question, QueueLine, QueuePlace, Verdict,
};
use crate::core::job::{Job, JobRequest, JobState};
use crate::core::recovery::Recovery;

/// What became, or would become, of a job.
#[derive(Serialize, ToSchema)]
pub(super) struct ExplanationView {
    /// Absent for a plan.
    job: Option<String>,
    name: String,
    project: String,
    /// `now`, `waits`, `never`, `placed` or `ended`.
    verdict: &'static str,
    /// One sentence; absent when it starts or runs.
    reason: Option<String>,
    /// Where it starts, or runs.
    on: Vec<String>,
    /// Absent when nobody can tell.
    start: Option<StartView>,
    /// Absent for a job that does not wait.
    queue: Option<PlaceView>,
    quotas: Vec<QuotaCheckView>,
    /// Every node once, by the first check that it fails.
    nodes: Vec<NodeGroupView>,
    /// Single changes with which it would start now.
    helps: Vec<String>,
    /// Only with `now`: it starts as soon as these running jobs have gone, which are sent back to the
    /// queue for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    makes_room: Option<Vec<LeaverView>>,
}

/// A running job that is sent back to the queue for another one.
#[derive(Serialize, ToSchema)]
pub(super) struct LeaverView {
    /// Null for a job that the caller may not see.
    job: Option<String>,
    name: Option<String>,
    /// What it leaves.
    gpus: u32,
    /// The work that would have to be done again, in words.
    loses: Option<String>,
    /// The longest time that it has for its end.
    grace_s: u64,
}

/// When a job is supposed to start.
#[derive(Serialize, ToSchema)]
pub(super) struct StartView {
    /// RFC 3339.
    at: String,
    /// Rounded up; 0 only when the next pass over the queue starts it.
    in_s: u64,
    /// Null when it hangs on a job of which nobody knows how long it takes.
    plus_minus_s: Option<u64>,
    /// The job whose end it waits for, if the caller may see it.
    after: Option<String>,
    /// True when nobody knows because a job has taken longer than was supposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    overdue: Option<bool>,
}

/// A place in the queue, and what it is made of.
#[derive(Serialize, ToSchema)]
pub(super) struct PlaceView {
    /// From 1.
    position: usize,
    of: usize,
    priority: u8,
    /// Points for waiting, added to the priority.
    age: u8,
    /// It takes what its project is guaranteed, and goes first.
    guaranteed: bool,
    /// GPU-hours that its project used lately, for each GPU that it is guaranteed.
    used_gpu_hours: f64,
    /// GPU-hours of later jobs that ran while it waited.
    overtaken_by_gpu_hours: f64,
    /// GPU-hours of earlier ones.
    went_before_gpu_hours: f64,
    /// It was overtaken by so much that nodes are kept for it.
    due: bool,
}

/// What its project may use of a pool.
#[derive(Serialize, ToSchema)]
pub(super) struct QuotaCheckView {
    pool: String,
    held: u32,
    wanted: u32,
    guaranteed: u32,
    maximum: Option<u32>,
    allowed: bool,
}

/// Nodes that fail the same check.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeGroupView {
    /// Null for nodes that would do.
    reason: Option<String>,
    nodes: Vec<String>,
    /// Of these, nodes that are taken last, and what is held against each.
    last: BTreeMap<String, String>,
}

/// A waiting job.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueLineView {
    /// Null for a job that the caller may not see.
    job: Option<String>,
    name: Option<String>,
    user: Option<String>,
    project: Option<String>,
    /// Any of these; empty for every pool.
    pools: Vec<String>,
    nnodes: u32,
    gpus_per_node: u32,
    /// RFC 3339.
    submitted: String,
    queue: PlaceView,
    reason: Option<String>,
    start: Option<StartView>,
}

/// Waiting jobs in the order in which they are looked at.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueView {
    queue: Vec<QueueLineView>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct QueueParams {
    /// Jobs that name this pool, or none.
    pool: Option<String>,
}

/// Why a job is where it is.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/explain",
    params(("job" = String, Path, description = "Id, unique prefix, name or `@last`")),
    responses((status = 200, body = ExplanationView), (status = 404, response = Problem)))]
pub(super) async fn explain_job(
    State(shared): App,
    Caller(principal): Caller,
    Selector(selector): Selector,
) -> Result<Json<ExplanationView>, ApiError> {
    let found = find_job(&shared.api.board, &principal, Action::ReadJobs, &selector)?;
    let job = found.job.id.clone();
    let explanation = explained(&shared, &principal, Question::Job(job.clone())).await?;
    Ok(Json(view(&shared, &principal, Some(&job), &explanation)))
}

/// What would become of a job. Nothing is submitted.
#[utoipa::path(post, path = "/api/v1/plan",
    request_body(content = String, content_type = "application/yaml"),
    responses((status = 200, body = ExplanationView), (status = 403, response = Problem),
        (status = 413, response = Problem), (status = 415, response = Problem),
        (status = 422, response = Problem)))]
pub(super) async fn plan_job(
    State(shared): App,
    Caller(principal): Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ExplanationView>, ApiError> {
    check_media_type(&headers)?;
    let (source, spec) = parse(read_body(body, MAX_SPEC_BYTES).await?).await?;
    let id = minted(JobId::new("plan"))?;
    let wish = Wish {
        spec,
        source,
        id: id.clone(),
        idempotency: None,
        command: String::new(),
        node_test: None,
    };
    let Prepared { project, request } = prepare(&shared, &principal, &wish)?;
    let now = Timestamp::now();
    let waits_for = to_run_after(&shared, &principal, &project, &wish)?;
    let hold = request.hold.then(|| Hold {
        by: principal.user.clone(),
        why: "submitted so".to_owned(),
        since: now,
    });
    let job = Job {
        id,
        user: principal.user.clone(),
        project,
        request,
        changes: Changes::default(),
        hold,
        waits_for,
        eligible: Some(Stopwatch::start(now)),
        running: None,
        state: JobState::Pending,
        gang: minted(GangId::new("plan"))?,
        cluster: None,
        token_seed: [0; 32],
        attempts: 0,
        sequence: u64::MAX,
        submitted: now,
        started: None,
        ended: None,
        reason: String::new(),
        outcome: None,
        recovery: Recovery::default(),
        history: Vec::new(),
    };
    let explanation = explained(&shared, &principal, Question::Plan(Box::new(job))).await?;
    Ok(Json(view(&shared, &principal, None, &explanation)))
}

/// The waiting jobs of all projects; of others only what they ask for.
#[utoipa::path(get, path = "/api/v1/queue", params(QueueParams),
    responses((status = 200, body = QueueView), (status = 400, response = Problem),
        (status = 404, response = Problem)))]
pub(super) async fn list_queue(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<QueueParams>,
) -> Result<Json<QueueView>, ApiError> {
    authorize(&principal, Action::ReadJobs, &Object::Project(&principal.project))?;
    let question = Question::Queue;
    let lines = match ask(&shared, |request| Event::Ask { request, question }).await? {
        Ok(Answer::Queue(lines)) => lines,
        Ok(other) => return Err(unexpected(&other)),
        Err(rejected) => return Err(refused(&shared, &principal, rejected)),
    };
    if let Some(pool) = &params.pool
        // Jobs wait for pools that are gone.
        && !lines.iter().any(|line| request_of(line).pools.contains(pool))
    {
        check_pool(&shared.api.board, pool)?;
    }
    let in_pool =
        |line: &&QueueLine| params.pool.as_ref().is_none_or(|pool| request_of(line).may_use(pool));
    let lines = lines.iter().filter(in_pool);
    Ok(Json(QueueView { queue: lines.map(|line| line_view(&shared, &principal, line)).collect() }))
}

fn request_of(line: &QueueLine) -> &JobRequest {
    &line.place.standing.job.request
}

async fn explained(
    shared: &Shared,
    principal: &Principal,
    question: Question,
) -> Result<Explanation, ApiError> {
    match ask(shared, |request| Event::Ask { request, question }).await? {
        Ok(Answer::Explained(explanation)) => Ok(*explanation),
        Ok(other) => Err(unexpected(&other)),
        Err(rejected) => Err(refused(shared, principal, rejected)),
    }
}

fn view(
    shared: &Shared,
    principal: &Principal,
    id: Option<&JobId>,
    explanation: &Explanation,
) -> ExplanationView {
    let job = &explanation.job;
    let (verdict, reason, on, start) = match &explanation.verdict {
        Verdict::Now { nodes } => ("now", None, nodes.clone(), None),
        Verdict::MakesRoom { .. } => ("now", None, Vec::new(), None),
        Verdict::Waits { reason, start } => {
            ("waits", Some(reason.clone()), Vec::new(), start.as_ref())
        }
        Verdict::Never { reason } => ("never", Some(reason.clone()), Vec::new(), None),
        Verdict::Placed { nodes } => ("placed", None, nodes.clone(), None),
        Verdict::Ended => ("ended", Some(job.reason.clone()), Vec::new(), None),
    };
    let makes_room = match &explanation.verdict {
        Verdict::MakesRoom { leavers } => {
            Some(leavers.iter().map(|leaver| leaver_view(principal, leaver)).collect())
        }
        Verdict::Now { .. }
        | Verdict::Waits { .. }
        | Verdict::Never { .. }
        | Verdict::Placed { .. }
        | Verdict::Ended => None,
    };
    let quotas = explanation.quotas.iter().map(|quota| QuotaCheckView {
        pool: quota.pool.clone(),
        held: quota.held,
        wanted: quota.wanted,
        guaranteed: quota.guaranteed,
        maximum: quota.maximum,
        allowed: quota
            .maximum
            .is_none_or(|maximum| quota.held.saturating_add(quota.wanted) <= maximum),
    });
    let nodes = explanation.nodes.iter().map(|group| NodeGroupView {
        reason: group.reason.clone(),
        nodes: group.nodes.clone(),
        last: group.last.clone(),
    });
    ExplanationView {
        job: id.map(ToString::to_string),
        name: job.request.name.clone(),
        project: job.project.clone(),
        verdict,
        reason,
        on,
        start: start.map(|start| start_view(shared, principal, start)),
        queue: explanation.place.as_ref().map(place_view),
        quotas: quotas.collect(),
        nodes: nodes.collect(),
        helps: explanation.helps.clone(),
        makes_room,
    }
}

fn leaver_view(principal: &Principal, leaver: &Leaver) -> LeaverView {
    let Leaver { job, gpus, loses, .. } = leaver;
    let seen = sees(principal, job);
    LeaverView {
        job: seen.then(|| job.id.to_string()),
        name: seen.then(|| job.request.name.clone()),
        gpus: *gpus,
        loses: seen.then(|| loses.clone()),
        grace_s: job.request.grace_ms.div_ceil(1000),
    }
}

fn start_view(shared: &Shared, principal: &Principal, start: &ExpectedStart) -> StartView {
    let visible = |id: &&JobId| {
        shared.api.board.job(id).is_some_and(|snapshot| sees(principal, &snapshot.job))
    };
    StartView {
        at: wall_text(Timestamp::now().wall_ms.saturating_add(start.in_ms)),
        in_s: start.in_ms.div_ceil(1000),
        plus_minus_s: start.plus_minus_ms.map(|ms| ms.div_ceil(1000)),
        after: start.after.as_ref().filter(visible).map(ToString::to_string),
        overdue: start.overdue.then_some(true),
    }
}

fn place_view(place: &QueuePlace) -> PlaceView {
    const HOUR_MS: f64 = 3_600_000.0;
    PlaceView {
        position: place.position,
        of: place.of,
        priority: place.standing.priority,
        age: place.standing.age,
        guaranteed: place.standing.guaranteed,
        used_gpu_hours: place.standing.used_hours,
        overtaken_by_gpu_hours: place.overtaken_by as f64 / HOUR_MS,
        went_before_gpu_hours: place.went_before as f64 / HOUR_MS,
        due: place.is_due,
    }
}

fn line_view(shared: &Shared, principal: &Principal, line: &QueueLine) -> QueueLineView {
    let job = &line.place.standing.job;
    let seen = sees(principal, job);
    QueueLineView {
        job: seen.then(|| job.id.to_string()),
        name: seen.then(|| job.request.name.clone()),
        user: seen.then(|| job.user.clone()),
        project: seen.then(|| job.project.clone()),
        pools: job.request.pools.clone(),
        nnodes: job.request.nnodes,
        gpus_per_node: job.request.gpus_per_node,
        submitted: wall_text(job.submitted.wall_ms),
        queue: place_view(&line.place),
        reason: seen.then(|| line.reason.clone()),
        start: line.start.as_ref().map(|start| start_view(shared, principal, start)),
    }
}
