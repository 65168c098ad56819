//! Projects: what their jobs may ask for and use.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use gangline_common::time::wall_text;
use gangline_spec::Priority;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_BODY, BAD_PARAMETER, Problem};
use super::jobs::done;
use super::tokens::check_word;
use super::{App, Selector, read_json};
use crate::core::credential::Role;
use crate::core::event::Event;
use crate::core::idle::{IdlePolicy, LEAST_MS, WARN_AFTER_MS};
use crate::core::projects::{DEFAULT_MAX_PRIORITY, ProjectChange, ProjectRecord, Quota};

/// A project.
#[derive(Serialize, ToSchema)]
pub(super) struct ProjectView {
    name: String,
    /// The highest priority that its jobs may ask for, 0 to 100.
    max_priority: u8,
    /// GPUs that its jobs may use, by pool; in a pool without a quota, whatever is free.
    quotas: BTreeMap<String, QuotaView>,
    idle: IdleView,
    /// Who decided that; null while nobody has.
    set_by: Option<String>,
    /// When, RFC 3339.
    set: Option<String>,
}

/// What becomes of jobs whose GPUs are idle.
#[derive(Serialize, ToSchema)]
pub(super) struct IdleView {
    /// An event after so many seconds.
    warn_after_s: u64,
    /// Such a job is stopped after so many seconds; null for never.
    reclaim_after_s: Option<u64>,
}

impl From<IdlePolicy> for IdleView {
    fn from(policy: IdlePolicy) -> Self {
        IdleView {
            warn_after_s: policy.warn_after_ms.unwrap_or(WARN_AFTER_MS) / 1000,
            reclaim_after_s: policy.reclaim_after_ms.map(|ms| ms / 1000),
        }
    }
}

/// GPUs of a project in one pool.
#[derive(Serialize, ToSchema)]
pub(super) struct QuotaView {
    /// What the project gets back from others who borrowed it, as soon as it has jobs for it.
    guaranteed: u32,
    /// What its jobs hold together at most; null for no limit.
    maximum: Option<u32>,
    /// What they hold now.
    in_use: u32,
}

/// Projects.
#[derive(Serialize, ToSchema)]
pub(super) struct ProjectList {
    /// By name.
    projects: Vec<ProjectView>,
}

/// What an administrator decides about a project.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProjectBody {
    /// The highest priority that its jobs may ask for, 0 to 100; absent to leave it as it is.
    max_priority: Option<u8>,
    /// By pool. Other pools stay as they are.
    #[serde(default)]
    quotas: BTreeMap<String, QuotaBody>,
    /// Pools in which the project has no quota any more.
    #[serde(default)]
    end_quotas: Vec<String>,
    /// Absent to leave it as it is.
    idle: Option<IdleBody>,
}

/// What becomes of jobs whose GPUs are idle, in place of what was decided before.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IdleBody {
    /// An event after so many seconds, at least 60; 1800 when absent or null.
    warn_after_s: Option<u64>,
    /// Such a job is stopped after so many seconds, at least 60; never when absent or null.
    reclaim_after_s: Option<u64>,
}

/// GPUs of a project in one pool.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QuotaBody {
    /// What the project gets back from others who borrowed it, as soon as it has jobs for it.
    #[serde(default)]
    guaranteed: u32,
    /// What its jobs hold together at most; absent or null for no limit.
    maximum: Option<u32>,
}

/// The caller's own project; all of them for operators and administrators.
#[utoipa::path(get, path = "/api/v1/projects",
    responses((status = 200, body = ProjectList), (status = 403, response = Problem)))]
pub(super) async fn list_projects(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Json<ProjectList>, ApiError> {
    authorize(&principal, Action::ReadProjects, &Object::Project(&principal.project))?;
    let mut known = shared.api.board.projects();
    known.entry(principal.project.clone()).or_default();
    known.retain(|name, _| *name == principal.project || principal.role >= Role::Operator);
    let held = shared.api.board.held_gpus();
    let quota = |project: &str, pool: &str, quota: Quota| QuotaView {
        guaranteed: quota.guaranteed,
        maximum: quota.maximum,
        in_use: held.get(&(project.to_owned(), pool.to_owned())).copied().unwrap_or_default(),
    };
    let quotas = |record: &ProjectRecord| {
        let quotas = record.quotas.iter();
        quotas.map(|(pool, given)| (pool.clone(), quota(&record.name, pool, *given))).collect()
    };
    let view = |(name, decided): (String, Option<ProjectRecord>)| ProjectView {
        name,
        quotas: decided.as_ref().map(quotas).unwrap_or_default(),
        idle: decided.as_ref().map(|d| d.idle).unwrap_or_default().into(),
        max_priority: decided.as_ref().map_or(DEFAULT_MAX_PRIORITY, |d| d.max_priority),
        set_by: decided.as_ref().map(|d| d.set_by.clone()),
        set: decided.as_ref().map(|d| wall_text(d.set.wall_ms)),
    };
    Ok(Json(ProjectList { projects: known.into_iter().map(view).collect() }))
}

/// Decides about a project. Jobs that are submitted already keep what they have.
#[utoipa::path(put, path = "/api/v1/projects/{name}",
    params(("name" = String, Path, description = "Name of the project")),
    request_body(content = ProjectBody, content_type = "application/json"),
    responses((status = 204), (status = 403, response = Problem), (status = 422, response = Problem)))]
pub(super) async fn set_project(
    State(shared): App,
    Caller(principal): Caller,
    Selector(name): Selector,
    body: Body,
) -> Result<StatusCode, ApiError> {
    authorize(&principal, Action::ManageProjects, &Object::Project(&name))?;
    check_word(BAD_PARAMETER, "project", &name)?;
    let body: Option<ProjectBody> = read_json(body).await?;
    let empty = |body: &ProjectBody| {
        body.max_priority.is_none()
            && body.quotas.is_empty()
            && body.end_quotas.is_empty()
            && body.idle.is_none()
    };
    let Some(body) = body.filter(|body| !empty(body)) else {
        return Err(ApiError::new(BAD_BODY, "the body decides nothing").hint(
            r#"send {"max_priority": 75} or {"quotas": {"h100-a": {"guaranteed": 32, "maximum": 64}}}, for example"#,
        ));
    };
    let ProjectBody { max_priority, quotas, end_quotas, idle } = body;
    let idle = idle.map(idle_policy).transpose()?;
    if let Some(max_priority) = max_priority.filter(|highest| *highest > Priority::HIGHEST.0) {
        return Err(ApiError::new(BAD_BODY, format!("max_priority is {max_priority}"))
            .hint("priorities go from 0 to 100"));
    }
    let quota = |body: QuotaBody| Quota { guaranteed: body.guaranteed, maximum: body.maximum };
    let set = quotas.into_iter().map(|(pool, body)| (pool, Some(quota(body))));
    let quotas = end_quotas.into_iter().map(|pool| (pool, None)).chain(set).collect();
    let change = Box::new(ProjectChange { max_priority, quotas, idle });
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::SetProject { request, name, change, actor }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn idle_policy(body: IdleBody) -> Result<IdlePolicy, ApiError> {
    let ms = |name: &str, seconds: Option<u64>| match seconds.map(|s| s.saturating_mul(1000)) {
        Some(ms) if ms < LEAST_MS => {
            Err(ApiError::new(BAD_BODY, format!("{name} is under {} s", LEAST_MS / 1000)))
        }
        checked => Ok(checked),
    };
    let warn_after_ms = ms("warn_after_s", body.warn_after_s)?;
    let reclaim_after_ms = ms("reclaim_after_s", body.reclaim_after_s)?;
    let warned_ms = warn_after_ms.unwrap_or(WARN_AFTER_MS);
    if reclaim_after_ms.is_some_and(|ms| ms < warned_ms) {
        let detail = format!(
            "a job would be stopped before its user is warned, after {} s",
            warned_ms / 1000
        );
        return Err(ApiError::new(BAD_BODY, detail).hint(
            "reclaim later than it warns, or warn earlier: idle.warn_after_s, `--idle-warn`",
        ));
    }
    Ok(IdlePolicy { warn_after_ms, reclaim_after_ms })
}
