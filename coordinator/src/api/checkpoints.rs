//! The training checkpoints of a job, as the agent of its rank 0 sees them: the coordinator need not have
//! the file system.

use axum::Json;
use axum::extract::State;
use gangline_common::ids::MemberId;
use gangline_common::time::{Timestamp, wall_text};
use gangline_common::wire::checkpoint::ListedCheckpoint;
use gangline_common::wire::request::AgentRequest;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::{Action, Caller};
use super::error::{AGENT_SILENT, ApiError, NO_SCENE, Problem, quoted};
use super::jobs::find_job;
use super::scenes::problem;
use super::view::{Names, newest_gang};
use super::{App, Selector};

/// Training checkpoints of a job, those that were changed last first.
#[derive(Serialize, ToSchema)]
pub(super) struct CheckpointList {
    job: String,
    directory: String,
    /// Name of the node that was asked.
    node: String,
    checkpoints: Vec<ListedView>,
}

/// One of them.
#[derive(Serialize, ToSchema)]
pub(super) struct ListedView {
    /// The name of its entry in the directory.
    name: String,
    /// When anything in it was changed last, by the clock of the file system.
    changed: String,
    age_s: u64,
    bytes: u64,
    files: u64,
    /// A file of the framework says so, or nothing in it has changed for two minutes. False for one
    /// that may be on its way.
    complete: bool,
    /// The one that the job would go on from.
    newest: bool,
}

/// The training checkpoints in the job's directory, with their sizes.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/checkpoints",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`")),
    responses((status = 200, body = CheckpointList), (status = 404, response = Problem),
        (status = 501, response = Problem), (status = 502, response = Problem),
        (status = 503, response = Problem)))]
pub(super) async fn get_checkpoints(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
) -> Result<Json<CheckpointList>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let job = &snapshot.job;
    let Some(directory) = job.request.checkpoint_directory.clone() else {
        return Err(ApiError::new(NO_SCENE, "the job has no directory of training checkpoints")
            .hint("set `checkpoint.dir` in the spec, or give the coordinator a shared root"));
    };
    let gang = newest_gang(&snapshot);
    let member = gang.and_then(|gang| gang.members.get(&MemberId::Rank(0)));
    let Some(node) = member.map(|member| member.node.clone()) else {
        return Err(ApiError::new(NO_SCENE, "the job has not had a node yet"));
    };
    let name = Names::of(&shared.api.board).name(&node);
    let request = AgentRequest::Checkpoints { directory: directory.clone() };
    let answer = shared.api.agents.ask(&node, &request).await;
    let answer = answer.map_err(|error| problem(error, &name))?;
    let listed: Vec<ListedCheckpoint> = serde_json::from_slice(&answer).map_err(|error| {
        tracing::warn!(%node, %error, "an agent's answer is not understood");
        ApiError::new(AGENT_SILENT, format!("the answer of {} is not understood", quoted(&name)))
    })?;
    let now_ms = Timestamp::now().wall_ms;
    let view = |listed: ListedCheckpoint| ListedView {
        name: listed.name,
        changed: wall_text(listed.changed_ms),
        age_s: now_ms.saturating_sub(listed.changed_ms) / 1000,
        bytes: listed.bytes,
        files: listed.files,
        complete: listed.complete,
        newest: listed.newest,
    };
    let checkpoints = listed.into_iter().map(view).collect();
    Ok(Json(CheckpointList { job: job.id.to_string(), directory, node: name, checkpoints }))
}
