//! What the Ray cluster of a job's gang says of itself: its nodes, actors and placement groups.
//!
//! The coordinator holds none of it. It asks the agent of the gang's head, which asks Ray; what
//! comes back is the word of a job's own processes and is only shown.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use gangline_common::ids::{MemberId, NodeId};
use gangline_common::request::RequestError;
use gangline_common::wire::ray_state::{
    ActorEntry, BundleEntry, NodeEntry, PlacementGroupEntry, RayList,
};
use gangline_common::wire::request::{
    AgentRequest, FailureReason, RayStateRequest, RaySubject, RequestFailure,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller};
use super::error::{
    AGENT_AWAY, AGENT_TOO_OLD, ApiError, BAD_PARAMETER, NO_RAY, NOT_RUNNING, Problem, RAY_NOT_UP,
    RAY_SILENT, TOO_MANY_QUESTIONS, cleaned, quoted,
};
use super::jobs::find_job;
use super::view::{Names, newest_gang};
use super::{App, Params, Selector, Shared, page_size};
use crate::agents::AskError;
use crate::board::JobSnapshot;
use crate::core::credential::Principal;
use crate::core::gang::Gang;
use crate::core::job::Launcher;

/// Query of a list of Ray's.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RayParams {
    /// Only what is in this state, in Ray's word. Nodes: ALIVE, DEAD. Actors:
    /// DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING, DEAD. Placement groups: PENDING,
    /// PREPARED, CREATED, REMOVED, RESCHEDULING.
    state: Option<String>,
    /// 1 to 1000; 100 when absent. There are no further pages: narrow the list with `state`.
    page_size: Option<usize>,
}

/// Nodes of the job's Ray cluster, dead ones too.
#[derive(Serialize, ToSchema)]
pub(super) struct RayNodeList {
    job: String,
    attempt: u32,
    /// How many there are in the wanted state, shown or not.
    total: u64,
    nodes: Vec<RayNodeState>,
}

/// A node of Ray's.
#[derive(Serialize, ToSchema)]
pub(super) struct RayNodeState {
    node_id: String,
    /// `head` or the rank; null for a node that is no member of the gang.
    member: Option<String>,
    /// Name of the node that the member runs on.
    node: Option<String>,
    address: String,
    alive: bool,
    /// ALIVE or DEAD.
    state: String,
    state_message: Option<String>,
    /// In all, by Ray's names: CPU, GPU, memory and further ones.
    resources: BTreeMap<String, f64>,
}

/// Actors of the job's Ray cluster.
#[derive(Serialize, ToSchema)]
pub(super) struct RayActorList {
    job: String,
    attempt: u32,
    /// How many there are in the wanted state, shown or not.
    total: u64,
    actors: Vec<RayActor>,
}

/// An actor.
#[derive(Serialize, ToSchema)]
pub(super) struct RayActor {
    actor_id: String,
    class: String,
    name: Option<String>,
    /// DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING or DEAD.
    state: String,
    /// `head` or the rank that it is on, or was on last.
    member: Option<String>,
    /// Name of the node of that member.
    node: Option<String>,
    node_id: Option<String>,
    /// Null until it has a process.
    pid: Option<u32>,
    restarts: u64,
    /// Why it is dead, in Ray's words.
    death_cause: Option<String>,
    placement_group_id: Option<String>,
    /// What it asks for.
    resources: BTreeMap<String, f64>,
}

/// Placement groups of the job's Ray cluster.
#[derive(Serialize, ToSchema)]
pub(super) struct RayPlacementGroupList {
    job: String,
    attempt: u32,
    /// How many there are in the wanted state, shown or not.
    total: u64,
    placement_groups: Vec<RayPlacementGroup>,
}

/// A placement group. Ray's state API does not tell its strategy.
#[derive(Serialize, ToSchema)]
pub(super) struct RayPlacementGroup {
    placement_group_id: String,
    name: Option<String>,
    /// PENDING, PREPARED, CREATED, REMOVED or RESCHEDULING.
    state: String,
    /// How far its scheduling has come, such as INFEASIBLE, in Ray's word.
    scheduling: Option<String>,
    bundles: Vec<RayBundle>,
}

/// A bundle of a placement group.
#[derive(Serialize, ToSchema)]
pub(super) struct RayBundle {
    index: u32,
    resources: BTreeMap<String, f64>,
    /// `head` or the rank that it is placed on; null while it waits.
    member: Option<String>,
    /// Name of the node of that member.
    node: Option<String>,
    node_id: Option<String>,
}

/// Nodes of the Ray cluster that the job runs on.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/ray/nodes",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"), RayParams),
    responses((status = 200, body = RayNodeList), (status = 404, response = Problem),
        (status = 409, response = Problem), (status = 501, response = Problem),
        (status = 502, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn ray_nodes(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<RayParams>,
) -> Result<Json<RayNodeList>, ApiError> {
    let question = Question::new(&shared, &principal, &id, params, RaySubject::Nodes)?;
    let RayList { total, entries } = question.ask::<NodeEntry>(&shared).await?;
    let view = |entry: NodeEntry| RayNodeState {
        node: question.node(entry.member.as_deref()),
        alive: entry.state == "ALIVE",
        node_id: entry.node_id,
        member: entry.member,
        address: entry.address,
        state: entry.state,
        state_message: entry.state_message,
        resources: entry.resources,
    };
    let nodes = entries.into_iter().map(view).collect();
    let (job, attempt) = (question.job(), question.snapshot.job.attempts);
    Ok(Json(RayNodeList { job, attempt, total, nodes }))
}

/// Actors of the Ray cluster that the job runs on.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/ray/actors",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"), RayParams),
    responses((status = 200, body = RayActorList), (status = 404, response = Problem),
        (status = 409, response = Problem), (status = 501, response = Problem),
        (status = 502, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn ray_actors(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<RayParams>,
) -> Result<Json<RayActorList>, ApiError> {
    let question = Question::new(&shared, &principal, &id, params, RaySubject::Actors)?;
    let RayList { total, entries } = question.ask::<ActorEntry>(&shared).await?;
    let view = |entry: ActorEntry| RayActor {
        actor_id: entry.actor_id,
        class: entry.class,
        name: entry.name,
        state: entry.state,
        node: question.node(entry.member.as_deref()),
        member: entry.member,
        node_id: entry.node_id,
        pid: entry.pid,
        restarts: entry.restarts,
        death_cause: entry.death_cause,
        placement_group_id: entry.placement_group_id,
        resources: entry.resources,
    };
    let actors = entries.into_iter().map(view).collect();
    let (job, attempt) = (question.job(), question.snapshot.job.attempts);
    Ok(Json(RayActorList { job, attempt, total, actors }))
}

/// Placement groups of the Ray cluster that the job runs on.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/ray/placement_groups",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"), RayParams),
    responses((status = 200, body = RayPlacementGroupList), (status = 404, response = Problem),
        (status = 409, response = Problem), (status = 501, response = Problem),
        (status = 502, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn ray_placement_groups(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<RayParams>,
) -> Result<Json<RayPlacementGroupList>, ApiError> {
    let question = Question::new(&shared, &principal, &id, params, RaySubject::PlacementGroups)?;
    let RayList { total, entries } = question.ask::<PlacementGroupEntry>(&shared).await?;
    let bundle = |entry: BundleEntry| RayBundle {
        index: entry.index,
        resources: entry.resources,
        node: question.node(entry.member.as_deref()),
        member: entry.member,
        node_id: entry.node_id,
    };
    let view = |entry: PlacementGroupEntry| RayPlacementGroup {
        placement_group_id: entry.placement_group_id,
        name: entry.name,
        state: entry.state,
        scheduling: entry.scheduling,
        bundles: entry.bundles.into_iter().map(bundle).collect(),
    };
    let placement_groups = entries.into_iter().map(view).collect();
    let (job, attempt) = (question.job(), question.snapshot.job.attempts);
    Ok(Json(RayPlacementGroupList { job, attempt, total, placement_groups }))
}

/// A question about the Ray cluster of a job, and whom to ask.
struct Question {
    snapshot: JobSnapshot,
    gang: Gang,
    names: Names,
    /// Node of the gang's head.
    head: NodeId,
    subject: RaySubject,
    state: Option<String>,
    limit: usize,
}

impl Question {
    fn new(
        shared: &Shared,
        principal: &Principal,
        selector: &str,
        params: RayParams,
        subject: RaySubject,
    ) -> Result<Self, ApiError> {
        let board = &shared.api.board;
        let snapshot = find_job(board, principal, Action::ReadJobs, selector)?;
        let limit = page_size(params.page_size)?;
        let state = params.state.map(|word| ray_state(subject, &word)).transpose()?;
        if snapshot.job.request.launcher != Launcher::Ray {
            let hint = "only jobs with `launcher: {type: ray}` have a Ray cluster";
            return Err(ApiError::new(NO_RAY, "the job runs its command without Ray").hint(hint));
        }
        let gang = newest_gang(&snapshot).filter(|gang| gang.is_live()).cloned();
        let head = gang.as_ref().and_then(|gang| gang.members.get(&MemberId::Head));
        let (Some(head), Some(gang)) = (head.map(|head| head.node.clone()), gang) else {
            let state = snapshot.job.state.word();
            let detail = format!("the job is {state}: it has no Ray cluster now");
            return Err(ApiError::new(NOT_RUNNING, detail).hint(
                "its log and its history stay; `gangline show` tells why it waits or ended",
            ));
        };
        let names = Names::of(board);
        Ok(Question { snapshot, gang, names, head, subject, state, limit })
    }

    fn job(&self) -> String {
        self.snapshot.job.id.to_string()
    }

    /// Name of the node that a member of the gang runs on.
    fn node(&self, member: Option<&str>) -> Option<String> {
        let member = self.gang.members.get(&member?.parse().ok()?)?;
        Some(self.names.name(&member.node))
    }

    async fn ask<T: DeserializeOwned>(&self, shared: &Shared) -> Result<RayList<T>, ApiError> {
        let request = AgentRequest::RayState(RayStateRequest {
            gang: self.gang.id.clone(),
            epoch: self.gang.epoch,
            subject: self.subject,
            state: self.state.clone(),
            limit: self.limit as u32,
        });
        let answer = shared.api.agents.ask(&self.head, &request).await;
        let answer = answer.map_err(|error| self.problem(error))?;
        let mut list: RayList<T> = serde_json::from_slice(&answer).map_err(|error| {
            tracing::warn!(node = %self.head, %error, "an agent's answer is not understood");
            self.silent("its node's agent gave an answer that is not understood")
        })?;
        list.entries.truncate(self.limit);
        Ok(list)
    }

    fn problem(&self, error: AskError) -> ApiError {
        let node = self.names.name(&self.head);
        let old = || {
            ApiError::new(AGENT_TOO_OLD, format!("the agent of {} cannot be asked", quoted(&node)))
                .hint("upgrade it; a running job is not disturbed by that")
        };
        match error {
            AskError::NotConnected => {
                let detail = format!(
                    "the agent of {}, where the Ray head runs, is not connected",
                    quoted(&node)
                );
                ApiError::new(AGENT_AWAY, detail)
                    .hint("the job runs on; ask again when the node is back (`gangline node ls`)")
                    .retry_after_s(5)
            }
            AskError::Busy => {
                let detail = format!("too many questions to {} are open", quoted(&node));
                ApiError::new(TOO_MANY_QUESTIONS, detail).retry_after_s(1)
            }
            AskError::Request(RequestError::Failed(RequestFailure { reason, text })) => {
                match reason {
                    FailureReason::Unknown => old(),
                    FailureReason::NotHere => {
                        ApiError::new(RAY_NOT_UP, "the Ray cluster of the job is not up")
                            .hint("while a job is STARTING its cluster is being made; ask again")
                            .retry_after_s(2)
                    }
                    FailureReason::NoAnswer => self.silent(&text),
                    FailureReason::TooLarge => {
                        ApiError::new(BAD_PARAMETER, "the answer would be too large")
                            .hint("use a smaller page_size, or `state`")
                    }
                }
            }
            AskError::Late => self.silent("no answer in time"),
            AskError::Request(error) => {
                tracing::warn!(node = %self.head, %error, "a question to an agent failed");
                self.silent(match error {
                    RequestError::Timeout => "no answer in time",
                    _ => "the question to its node's agent failed",
                })
            }
        }
    }

    fn silent(&self, why: &str) -> ApiError {
        ApiError::new(RAY_SILENT, format!("Ray did not answer: {}", cleaned(why)))
            .hint("ask again; when it stays so, look at the log of the head (`logs --rank head`)")
            .retry_after_s(2)
    }
}

/// Ray's word for a state of this subject.
fn ray_state(subject: RaySubject, word: &str) -> Result<String, ApiError> {
    let words: &[&str] = match subject {
        RaySubject::Nodes => &["ALIVE", "DEAD"],
        RaySubject::Actors => {
            &["DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING", "DEAD"]
        }
        RaySubject::PlacementGroups => {
            &["PENDING", "PREPARED", "CREATED", "REMOVED", "RESCHEDULING"]
        }
    };
    let found = words.iter().find(|known| known.eq_ignore_ascii_case(word.trim()));
    found.map(|known| (*known).to_owned()).ok_or_else(|| {
        ApiError::new(BAD_PARAMETER, format!("{} is not a state here", quoted(word)))
            .hint(format!("the states are {}", words.join(", ")))
    })
}
