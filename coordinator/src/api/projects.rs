//! Projects: what their jobs may ask for.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use gangline_common::time::{Timestamp, wall_text};
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
use crate::core::projects::{DEFAULT_MAX_PRIORITY, ProjectRecord};

/// A project.
#[derive(Serialize, ToSchema)]
pub(super) struct ProjectView {
    name: String,
    /// The highest priority that its jobs may ask for, 0 to 100.
    max_priority: u8,
    /// Who decided that; null while nobody has.
    set_by: Option<String>,
    /// When, RFC 3339.
    set: Option<String>,
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
    /// The highest priority that its jobs may ask for, 0 to 100.
    max_priority: u8,
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
    let view = |(name, decided): (String, Option<ProjectRecord>)| ProjectView {
        name,
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
    let Some(ProjectBody { max_priority }) = body else {
        return Err(ApiError::new(BAD_BODY, "the body is empty")
            .hint(r#"send {"max_priority": 75}, for example"#));
    };
    if max_priority > Priority::HIGHEST.0 {
        return Err(ApiError::new(BAD_BODY, format!("max_priority is {max_priority}"))
            .hint("priorities go from 0 to 100"));
    }
    let (set_by, set) = (principal.user.clone(), Timestamp::now());
    let record = ProjectRecord { name, max_priority, set_by, set };
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::SetProject { request, record, actor }).await?;
    Ok(StatusCode::NO_CONTENT)
}
