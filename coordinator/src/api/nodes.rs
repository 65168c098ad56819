//! Nodes: list, look at, revoke.

use axum::Json;
use axum::extract::State;
use gangline_common::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::{Action, Caller, Object, authorize, sees};
use super::error::{ApiError, Problem, no_such_node};
use super::jobs::done;
use super::view::{Names, NodeFacts, NodeView};
use super::{App, Selector, Shared};
use crate::board::NodeSnapshot;
use crate::core::credential::Principal;
use crate::core::event::Event;
use crate::core::gang::Gang;

/// All nodes, by name.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeList {
    nodes: Vec<NodeView>,
}

/// Calls `make` with everything that a view of the node needs.
fn with_facts<T>(
    shared: &Shared,
    principal: &Principal,
    snapshot: &NodeSnapshot,
    make: impl FnOnce(&NodeFacts<'_>) -> T,
) -> T {
    let board = &shared.api.board;
    let sample = shared.api.telemetry.latest(&snapshot.node.id);
    let sees = |gang: &Gang| board.job(&gang.job).is_some_and(|owner| sees(principal, &owner.job));
    make(&NodeFacts { snapshot, sample: sample.as_deref(), sees: &sees, now: Timestamp::now() })
}

/// All nodes.
#[utoipa::path(get, path = "/api/v1/nodes", responses((status = 200, body = NodeList)))]
pub(super) async fn list_nodes(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Json<NodeList>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let nodes = shared.api.board.nodes();
    let nodes = nodes.iter().map(|node| with_facts(&shared, &principal, node, NodeView::of));
    Ok(Json(NodeList { nodes: nodes.collect() }))
}

fn find_node(shared: &Shared, selector: &str) -> Result<NodeSnapshot, ApiError> {
    shared.api.board.node(selector).ok_or_else(no_such_node)
}

fn detailed(shared: &Shared, principal: &Principal, node: &NodeSnapshot) -> Json<NodeView> {
    let names = Names::of(&shared.api.board);
    Json(with_facts(shared, principal, node, |facts| NodeView::detailed(facts, &names)))
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
