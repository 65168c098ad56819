//! Nodes: list, look at, label, take out of use and back, revoke.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use gangline_common::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize, sees};
use super::error::{ApiError, BAD_BODY, Problem, no_such_node, no_such_pool, quoted};
use super::jobs::done;
use super::node_tests::newest_of;
use super::view::{Names, NodeFacts, NodeView};
use super::{App, Params, Selector, Shared, read_json};
use crate::board::{Board, NodeSnapshot};
use crate::core::credential::Principal;
use crate::core::event::Event;
use crate::core::gang::Gang;
use crate::core::maintenance::{Maintenance, NODE_LABEL_LIMIT};

/// All nodes, by name.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeList {
    nodes: Vec<NodeView>,
}

/// Calls `make` with everything that a view of the node needs.
pub(super) fn with_facts<T>(
    shared: &Shared,
    principal: &Principal,
    snapshot: &NodeSnapshot,
    make: impl FnOnce(&NodeFacts<'_>) -> T,
) -> T {
    let board = &shared.api.board;
    let sample = shared.api.telemetry.latest(&snapshot.node.id);
    let sees = |gang: &Gang| board.job(&gang.job).is_some_and(|owner| sees(principal, &owner.job));
    let counts = shared.api.telemetry.counts(&snapshot.node.id);
    let (sample, now) = (sample.as_ref(), Timestamp::now());
    make(&NodeFacts { snapshot, sample, counts, sees: &sees, now })
}

/// Query of the nodes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodeListParams {
    /// Only the nodes of this pool.
    pool: Option<String>,
}

/// All nodes, or those of one pool.
#[utoipa::path(get, path = "/api/v1/nodes", params(NodeListParams),
    responses((status = 200, body = NodeList), (status = 404, response = Problem)))]
pub(super) async fn list_nodes(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<NodeListParams>,
) -> Result<Json<NodeList>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let board = &shared.api.board;
    let pool = params.pool.as_deref();
    if let Some(pool) = pool {
        check_pool(board, pool)?;
    }
    let nodes = board.nodes();
    let nodes = nodes.iter().filter(|node| pool.is_none() || node.node.pool() == pool);
    let nodes = nodes.map(|node| with_facts(&shared, &principal, node, NodeView::of));
    Ok(Json(NodeList { nodes: nodes.collect() }))
}

/// Refuses the name of a pool that there is not. A revoked node is listed in the pool that it was in.
pub(super) fn check_pool(board: &Board, pool: &str) -> Result<(), ApiError> {
    let mut known: BTreeSet<String> = board.declared_pools().into_keys().collect();
    let tokens = board.tokens().1.into_iter().filter(|token| token.uses_left > 0);
    known.extend(tokens.filter_map(|token| token.pool));
    let nodes = board.nodes();
    known.extend(nodes.iter().filter_map(|node| node.node.pool()).map(str::to_owned));
    if known.contains(pool) {
        return Ok(());
    }
    let known: Vec<String> = known.into_iter().collect();
    Err(no_such_pool(pool, &known))
}

pub(super) fn find_node(shared: &Shared, selector: &str) -> Result<NodeSnapshot, ApiError> {
    shared.api.board.node(selector).ok_or_else(no_such_node)
}

fn detailed(shared: &Shared, principal: &Principal, node: &NodeSnapshot) -> Json<NodeView> {
    let names = Names::of(&shared.api.board);
    let mut view = with_facts(shared, principal, node, |facts| NodeView::detailed(facts, &names));
    if let Some(detail) = &mut view.detail {
        detail.network_test = newest_of(&shared.api.board.node_tests(), &node.node.id);
    }
    Json(view)
}

/// One node with its self-examination, samples, members and history.
#[utoipa::path(get, path = "/api/v1/nodes/{id}",
    params(("id" = String, Path, description = "Id or name")),
    responses((status = 200, body = NodeView), (status = 404, response = Problem)))]
pub(super) async fn get_node(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
) -> Result<Json<NodeView>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let node = find_node(&shared, &id)?;
    Ok(detailed(&shared, &principal, &node))
}

/// Revokes a node's certificates: its connection is closed and it takes no more work. What runs
/// there runs on.
#[utoipa::path(post, path = "/api/v1/nodes/{id}/revoke",
    params(("id" = String, Path, description = "Id or name")),
    responses((status = 200, body = NodeView), (status = 403, response = Problem),
        (status = 404, response = Problem)))]
pub(super) async fn revoke_node(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
) -> Result<Json<NodeView>, ApiError> {
    authorize(&principal, Action::RevokeNode, &Object::Fleet)?;
    let node = find_node(&shared, &id)?.node.id.clone();
    let (revoked, actor) = (node.clone(), principal.clone());
    let event = |request| Event::RevokeNode { request, node: revoked, actor };
    done(&shared, &principal, event).await?;
    let snapshot = find_node(&shared, node.as_str())?;
    Ok(detailed(&shared, &principal, &snapshot))
}

/// Longest key of a label, in bytes.
const MAX_LABEL_KEY: usize = 63;
/// Longest value of a label, in bytes.
const MAX_LABEL_VALUE: usize = 256;
/// Most labels in one request.
const MAX_LABEL_CHANGES: usize = 2 * NODE_LABEL_LIMIT;

/// Changes of a node.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NodePatch {
    /// Each goes before the agent's of the same key; null takes back what operators gave.
    labels: BTreeMap<String, Option<String>>,
}

fn check_label(key: &str, value: Option<&str>) -> Result<(), ApiError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let good = key.starts_with(|c: char| c.is_ascii_alphanumeric())
        && key.len() <= MAX_LABEL_KEY
        && key.chars().all(plain);
    if !good {
        let detail = format!("{} cannot be the key of a label", quoted(key));
        return Err(ApiError::new(BAD_BODY, detail).hint(format!(
            "use 1 to {MAX_LABEL_KEY} of A-Z a-z 0-9 . _ - /, the first a letter or a digit"
        )));
    }
    let Some(value) = value else { return Ok(()) };
    if value.trim().is_empty()
        || value.len() > MAX_LABEL_VALUE
        || value.chars().any(char::is_control)
    {
        let detail = format!("{} cannot be the value of label {key}", quoted(value));
        return Err(ApiError::new(BAD_BODY, detail)
            .hint(format!("use one line of 1 to {MAX_LABEL_VALUE} bytes")));
    }
    Ok(())
}

/// Gives labels to a node, or takes them back. Only later placements see it.
#[utoipa::path(patch, path = "/api/v1/nodes/{id}",
    params(("id" = String, Path, description = "Id or name")),
    request_body(content = NodePatch, content_type = "application/json"),
    responses((status = 200, body = NodeView), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 422, response = Problem),
        (status = 507, response = Problem)))]
pub(super) async fn patch_node(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<NodeView>, ApiError> {
    authorize(&principal, Action::MaintainNode, &Object::Fleet)?;
    let NodePatch { labels } = read_json(body).await?.ok_or_else(|| {
        let hint = r#"send {"labels": {"rack": "r12", "old": null}}, for example"#;
        ApiError::new(BAD_BODY, "the body is empty").hint(hint)
    })?;
    if labels.len() > MAX_LABEL_CHANGES {
        return Err(ApiError::new(BAD_BODY, format!("there are {} labels", labels.len()))
            .hint(format!("change at most {MAX_LABEL_CHANGES} at once")));
    }
    labels.iter().try_for_each(|(key, value)| check_label(key, value.as_deref()))?;
    let id = find_node(&shared, &id)?.node.id.clone();
    let (node, actor) = (id.clone(), principal.clone());
    let labels = labels.into_iter().collect();
    let event = |request| Event::LabelNode { request, node, labels, actor };
    done(&shared, &principal, event).await?;
    Ok(detailed(&shared, &principal, &find_node(&shared, id.as_str())?))
}

/// Longest reason, in characters.
const MAX_REASON: usize = 1024;
/// Longest time to a deadline: a year, in seconds.
const MAX_DEADLINE_S: u64 = 366 * 24 * 3600;

/// Why a node is cordoned.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CordonBody {
    /// For everybody who wonders; at most 1024 characters.
    reason: String,
}

/// Why a node is drained, and by when.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainBody {
    /// For everybody who wonders; at most 1024 characters.
    reason: String,
    /// Seconds from now after which what still runs there goes back to the queue; 0 at once; never
    /// when absent.
    deadline_s: Option<u64>,
}

fn reason(text: String) -> Result<String, ApiError> {
    let length = text.chars().count();
    if text.trim().is_empty() || length > MAX_REASON {
        let detail = format!("the reason has {length} characters");
        return Err(ApiError::new(BAD_BODY, detail).hint(format!("use 1 to {MAX_REASON}")));
    }
    Ok(text)
}

fn no_body() -> ApiError {
    ApiError::new(BAD_BODY, "the body is empty").hint(r#"send {"reason": "fan"}, for example"#)
}

async fn maintain(
    shared: &Shared,
    principal: &Principal,
    selector: &str,
    wanted: Maintenance,
) -> Result<Json<NodeView>, ApiError> {
    authorize(principal, Action::MaintainNode, &Object::Fleet)?;
    let id = find_node(shared, selector)?.node.id.clone();
    let (node, actor) = (id.clone(), principal.clone());
    let event = |request| Event::MaintainNode { request, node, wanted, actor };
    done(shared, principal, event).await?;
    Ok(detailed(shared, principal, &find_node(shared, id.as_str())?))
}

/// Lets no new member come to a node. What runs there runs on.
#[utoipa::path(post, path = "/api/v1/nodes/{id}/cordon",
    params(("id" = String, Path, description = "Id or name")),
    request_body(content = CordonBody, content_type = "application/json"),
    responses((status = 200, body = NodeView), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 422, response = Problem)))]
pub(super) async fn cordon_node(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<NodeView>, ApiError> {
    let CordonBody { reason: why } = read_json(body).await?.ok_or_else(no_body)?;
    maintain(&shared, &principal, &id, Maintenance::Cordon { why: reason(why)? }).await
}

/// Takes a node out of use: no new member comes, and after the deadline what still runs there is
/// stopped politely and goes back to its place in the queue.
#[utoipa::path(post, path = "/api/v1/nodes/{id}/drain",
    params(("id" = String, Path, description = "Id or name")),
    request_body(content = DrainBody, content_type = "application/json"),
    responses((status = 200, body = NodeView), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 422, response = Problem)))]
pub(super) async fn drain_node(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<NodeView>, ApiError> {
    let DrainBody { reason: why, deadline_s } = read_json(body).await?.ok_or_else(no_body)?;
    if let Some(seconds) = deadline_s.filter(|seconds| *seconds > MAX_DEADLINE_S) {
        return Err(ApiError::new(BAD_BODY, format!("deadline_s is {seconds}"))
            .hint(format!("use at most {MAX_DEADLINE_S}, or leave it out")));
    }
    let deadline_ms = deadline_s.map(|seconds| seconds * 1000);
    maintain(&shared, &principal, &id, Maintenance::Drain { why: reason(why)?, deadline_ms }).await
}

/// Why an operator answers for a lost node.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseBody {
    /// How it is known that nothing of the node runs any more; at most 1024 characters.
    reason: String,
}

/// Gives up what a lost node holds, on the caller's word that nothing of it runs any more: its
/// gangs end, and their next attempts may start. When the node comes back, what it still runs of
/// them is stopped.
#[utoipa::path(post, path = "/api/v1/nodes/{id}/force-release",
    params(("id" = String, Path, description = "Id or name")),
    request_body(content = ReleaseBody, content_type = "application/json"),
    responses((status = 200, body = NodeView), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 409, response = Problem),
        (status = 422, response = Problem)))]
pub(super) async fn force_release_node(
    State(shared): App,
    Caller(principal): Caller,
    Selector(selector): Selector,
    body: Body,
) -> Result<Json<NodeView>, ApiError> {
    authorize(&principal, Action::MaintainNode, &Object::Fleet)?;
    let ReleaseBody { reason: why } = read_json(body).await?.ok_or_else(no_body)?;
    let reason = reason(why)?;
    let id = find_node(&shared, &selector)?.node.id.clone();
    let (node, actor) = (id.clone(), principal.clone());
    let event = |request| Event::ForceRelease { request, node, reason, actor };
    done(&shared, &principal, event).await?;
    Ok(detailed(&shared, &principal, &find_node(&shared, id.as_str())?))
}

/// Takes a node back into use after a cordon or a drain.
#[utoipa::path(post, path = "/api/v1/nodes/{id}/resume",
    params(("id" = String, Path, description = "Id or name")),
    responses((status = 200, body = NodeView), (status = 403, response = Problem),
        (status = 404, response = Problem)))]
pub(super) async fn resume_node(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
) -> Result<Json<NodeView>, ApiError> {
    maintain(&shared, &principal, &id, Maintenance::Resume).await
}
