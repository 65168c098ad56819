//! Pools: list, look at, declare, and move nodes between them.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use gangline_common::time::wall_text;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_BODY, BAD_PARAMETER, Problem, no_such_pool, quoted};
use super::jobs::done;
use super::nodes::{find_node, with_facts};
use super::tokens::check_word;
use super::view::NodeView;
use super::{App, Selector, Shared, read_json};
use crate::core::credential::Principal;
use crate::core::event::Event;
use crate::core::job::JobState;
use crate::core::pools::PoolChange;

/// Longest description, in bytes.
const MAX_DESCRIPTION: usize = 1024;
/// Most nodes that one request moves.
const MAX_NODES: usize = 4096;

/// A pool. A node is in exactly one.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct PoolView {
    name: String,
    /// For people; empty when nobody has declared the pool.
    description: String,
    /// Who declared it; null while nobody has.
    set_by: Option<String>,
    /// When, RFC 3339.
    set: Option<String>,
    /// Nodes in it, those that are revoked left out.
    nodes: usize,
    /// Of these, nodes that take new members now.
    nodes_open: usize,
    gpus: usize,
    /// Allocated.
    gpus_in_use: usize,
    /// Could be allocated now: on nodes that take new members.
    gpus_free: usize,
    /// Number of GPUs by their model, in NVML's words.
    gpu_models: BTreeMap<String, usize>,
    /// Jobs that wait and name the pool.
    jobs_waiting: usize,
    /// Only in the answer about one pool: its nodes, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<PoolNodeView>>,
}

/// A node of a pool.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PoolNodeView {
    id: String,
    name: String,
    /// The one word of the node's condition.
    state: &'static str,
    /// Who put it into the pool: `operator`, `join token` or `agent`.
    pool_by: Option<&'static str>,
    gpus_total: Option<usize>,
    gpus_in_use: usize,
    labels: BTreeMap<String, String>,
}

/// Pools.
#[derive(Serialize, ToSchema)]
pub(super) struct PoolList {
    /// By name.
    pools: Vec<PoolView>,
}

/// Changes of a pool; each part may be left out.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PoolPatch {
    /// For people, one line of at most 1024 bytes. Makes the pool when there is none of this name.
    description: Option<String>,
    /// Nodes, by id or name, that move here. What runs there runs on.
    add: Vec<String>,
    /// Nodes that were moved here, and go back to the pool of their join token or agent.
    remove: Vec<String>,
}

/// Every pool with its nodes.
fn pools(shared: &Shared, principal: &Principal) -> BTreeMap<String, PoolView> {
    let board = &shared.api.board;
    let mut pools: BTreeMap<String, PoolView> = BTreeMap::new();
    for (name, record) in board.declared_pools() {
        let pool = pools.entry(name).or_default();
        pool.description = record.description;
        pool.set = Some(wall_text(record.set.wall_ms));
        pool.set_by = Some(record.set_by);
    }
    for token in board.tokens().1 {
        if let Some(name) = token.pool.filter(|_| token.uses_left > 0) {
            pools.entry(name).or_default();
        }
    }
    for snapshot in board.nodes() {
        let node = &snapshot.node;
        let Some(name) = node.pool().filter(|_| !node.revoked) else { continue };
        let view = with_facts(shared, principal, &snapshot, NodeView::of);
        let pool = pools.entry(name.to_owned()).or_default();
        pool.nodes += 1;
        pool.gpus += view.gpus_total.unwrap_or(0);
        pool.gpus_in_use += view.gpus_in_use;
        if node.is_open() {
            pool.nodes_open += 1;
            pool.gpus_free += view.gpus_free;
        }
        for gpu in view.gpus {
            *pool.gpu_models.entry(gpu.name).or_default() += 1;
        }
        pool.members.get_or_insert_default().push(PoolNodeView {
            id: view.id,
            name: view.name,
            state: view.state,
            pool_by: view.pool_by,
            gpus_total: view.gpus_total,
            gpus_in_use: view.gpus_in_use,
            labels: view.labels,
        });
    }
    let jobs = board.jobs();
    for job in jobs.iter().filter(|job| job.state == JobState::Pending) {
        for name in &job.request.pools {
            if let Some(pool) = pools.get_mut(name) {
                pool.jobs_waiting += 1;
            }
        }
    }
    for (name, pool) in &mut pools {
        pool.name.clone_from(name);
    }
    pools
}

fn find_pool(
    shared: &Shared,
    principal: &Principal,
    name: &str,
) -> Result<Json<PoolView>, ApiError> {
    let mut pools = pools(shared, principal);
    let Some(mut pool) = pools.remove(name) else {
        let known: Vec<String> = pools.into_keys().collect();
        return Err(no_such_pool(name, &known));
    };
    pool.members.get_or_insert_default();
    Ok(Json(pool))
}

/// All pools.
#[utoipa::path(get, path = "/api/v1/pools", responses((status = 200, body = PoolList)))]
pub(super) async fn list_pools(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Json<PoolList>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let pools = pools(&shared, &principal).into_values();
    Ok(Json(PoolList { pools: pools.map(|pool| PoolView { members: None, ..pool }).collect() }))
}

/// One pool with its nodes.
#[utoipa::path(get, path = "/api/v1/pools/{name}",
    params(("name" = String, Path, description = "Name of the pool")),
    responses((status = 200, body = PoolView), (status = 404, response = Problem)))]
pub(super) async fn get_pool(
    State(shared): App,
    Caller(principal): Caller,
    Selector(name): Selector,
) -> Result<Json<PoolView>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    find_pool(&shared, &principal, &name)
}

/// Declares a pool, describes it, or moves nodes. Only later placements see it: what runs runs on.
#[utoipa::path(patch, path = "/api/v1/pools/{name}",
    params(("name" = String, Path, description = "Name of the pool")),
    request_body(content = PoolPatch, content_type = "application/json"),
    responses((status = 200, body = PoolView), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 409, response = Problem),
        (status = 422, response = Problem), (status = 507, response = Problem)))]
pub(super) async fn patch_pool(
    State(shared): App,
    Caller(principal): Caller,
    Selector(pool): Selector,
    body: Body,
) -> Result<Json<PoolView>, ApiError> {
    authorize(&principal, Action::ManagePools, &Object::Fleet)?;
    check_word(BAD_PARAMETER, "pool", &pool)?;
    let change = change(&shared, read_json(body).await?.unwrap_or_default())?;
    let (name, actor) = (pool.clone(), principal.clone());
    done(&shared, &principal, |request| Event::SetPool { request, pool, change, actor }).await?;
    find_pool(&shared, &principal, &name)
}

fn change(shared: &Shared, patch: PoolPatch) -> Result<PoolChange, ApiError> {
    let PoolPatch { description, add, remove } = patch;
    if description.is_none() && add.is_empty() && remove.is_empty() {
        return Err(ApiError::new(BAD_BODY, "the body changes nothing")
            .hint(r#"send {"description": "8 x H100", "add": ["gpu-1"]}, for example"#));
    }
    if let Some(text) = &description
        && (text.len() > MAX_DESCRIPTION || text.chars().any(char::is_control))
    {
        let detail = format!("the description has {} bytes", text.len());
        return Err(ApiError::new(BAD_BODY, detail)
            .hint(format!("use one line of at most {MAX_DESCRIPTION}")));
    }
    if add.len() + remove.len() > MAX_NODES {
        let detail = format!("{} nodes are to move", add.len() + remove.len());
        return Err(ApiError::new(BAD_BODY, detail).hint(format!("at most {MAX_NODES} at once")));
    }
    if let Some(both) = add.iter().find(|node| remove.contains(node)) {
        let detail = format!("{} is in `add` and in `remove`", quoted(both));
        return Err(ApiError::new(BAD_BODY, detail).hint("keep one"));
    }
    let ids = |names: &[String]| {
        let id = |name: &String| Ok(find_node(shared, name)?.node.id.clone());
        names.iter().map(id).collect::<Result<Vec<_>, ApiError>>()
    };
    Ok(PoolChange { description, add: ids(&add)?, remove: ids(&remove)? })
}

/// Takes the declaration of a pool back, when no node is in it and no live job names it.
#[utoipa::path(delete, path = "/api/v1/pools/{name}",
    params(("name" = String, Path, description = "Name of the pool")),
    responses((status = 204), (status = 403, response = Problem), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn delete_pool(
    State(shared): App,
    Caller(principal): Caller,
    Selector(pool): Selector,
) -> Result<StatusCode, ApiError> {
    authorize(&principal, Action::ManagePools, &Object::Fleet)?;
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::DeletePool { request, pool, actor }).await?;
    Ok(StatusCode::NO_CONTENT)
}
