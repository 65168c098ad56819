//! Checks of the network between nodes: begin one, and what came of those there were.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use gangline_common::ids::{JobId, NodeId, short_suffix};
use gangline_common::random;
use gangline_common::time::{Timestamp, wall_text};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_BODY, NO_SUCH_NODE_TEST, Problem, no_such_node, quoted};
use super::nodes::with_facts;
use super::submit::{Submitted, Wish, minted, submit};
use super::{App, Params, Selector, Shared, page_size, read_json};
use crate::board::NodeSnapshot;
use crate::core::credential::Principal;
use crate::core::node_test::{Measured, MeasuredNode, NodeTest, Rate, TestState};
use crate::node_tests::{Wanted, spec};

/// Nodes of one check: all ranks meet at one of them.
const MAX_NODES: usize = 256;
/// How long a check may run, unless asked otherwise, and at most: seconds.
const TIMEOUT_S: u64 = 15 * 60;
const MAX_TIMEOUT_S: u64 = 24 * 3600;
/// Longest path of an interpreter, in bytes.
const MAX_PATH: usize = 1024;

/// A wish for a check of the network.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeTestBody {
    /// Ids or names of nodes of one pool, two at least; without them those of the pool that take new
    /// work, as many as are free then.
    #[serde(default)]
    nodes: Vec<String>,
    /// Not needed when nodes are named, nor when there is one pool only.
    pool: Option<String>,
    /// GPUs that the check takes of each node: 0 when absent.
    #[serde(default)]
    gpus_per_node: u32,
    /// `gloo` when the check takes no GPUs, else `nccl`.
    backend: Option<Backend>,
    /// Absolute path of an interpreter with PyTorch; `python3`, else /usr/bin/python3, when absent.
    python: Option<String>,
    /// How long it may run, in seconds; 900 when absent, at most 86400.
    timeout_s: Option<u64>,
}

/// What ranks talk through.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Backend {
    Gloo,
    Nccl,
}

/// A check of the network.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeTestView {
    /// Its job, by which it goes.
    job: String,
    /// open, measured or failed.
    state: &'static str,
    by: String,
    pool: String,
    gpus_per_node: u32,
    /// RFC 3339.
    begun: String,
    /// RFC 3339; null while it is open.
    ended: Option<String>,
    /// Why there is no result.
    why: Option<String>,
    /// Null until it is measured.
    result: Option<MeasuredView>,
}

/// What a check has measured. Rates are bus bandwidth: what crosses the slowest link.
#[derive(Serialize, ToSchema)]
pub(super) struct MeasuredView {
    backend: String,
    /// Of python, torch, cuda and nccl, as far as there are.
    versions: BTreeMap<String, String>,
    /// Of each transfer.
    message_bytes: u64,
    /// All nodes together.
    all_reduce: RateView,
    /// The median of the best rates of all nodes.
    median_bytes_per_s: u64,
    /// Names of nodes whose best rate is below 70 % of the median.
    slow: Vec<String>,
    /// In the order of the ranks.
    nodes: Vec<MeasuredNodeView>,
    pairs: Vec<PairView>,
}

/// What a transfer did.
#[derive(Serialize, ToSchema)]
pub(super) struct RateView {
    bytes_per_s: u64,
    /// Of a message of 8 bytes.
    latency_us: f64,
}

/// A node by the best that it did with any other.
#[derive(Serialize, ToSchema)]
pub(super) struct MeasuredNodeView {
    id: String,
    /// What it was called then.
    name: String,
    #[serde(flatten)]
    best: RateView,
    slow: bool,
}

/// What two nodes did with each other.
#[derive(Serialize, ToSchema)]
pub(super) struct PairView {
    /// Names.
    nodes: [String; 2],
    #[serde(flatten)]
    rate: RateView,
}

/// What the newest check that measured a node says of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct NetworkTestView {
    /// The check's job.
    job: String,
    /// RFC 3339.
    at: String,
    backend: String,
    nodes: usize,
    best_bytes_per_s: u64,
    latency_us: f64,
    median_bytes_per_s: u64,
    slow: bool,
}

/// Checks of the network.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeTestList {
    /// The newest first.
    tests: Vec<NodeTestView>,
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

impl From<Rate> for RateView {
    fn from(Rate { bytes_per_s, latency_ns }: Rate) -> Self {
        RateView { bytes_per_s, latency_us: microseconds(latency_ns) }
    }
}

impl From<&MeasuredNode> for MeasuredNodeView {
    fn from(node: &MeasuredNode) -> Self {
        let (id, name) = (node.node.to_string(), node.name.clone());
        MeasuredNodeView { id, name, best: node.best.into(), slow: node.slow }
    }
}

impl From<&Measured> for MeasuredView {
    fn from(measured: &Measured) -> Self {
        let name = |rank: u32| {
            let node = measured.nodes.get(rank as usize);
            node.map_or_else(|| format!("rank {rank}"), |node| node.name.clone())
        };
        let pairs = measured.pairs.iter();
        MeasuredView {
            backend: measured.backend.clone(),
            versions: measured.versions.iter().cloned().collect(),
            message_bytes: measured.message_bytes,
            all_reduce: measured.all_reduce.into(),
            median_bytes_per_s: measured.median_bytes_per_s,
            slow: measured.slow().map(|node| node.name.clone()).collect(),
            nodes: measured.nodes.iter().map(MeasuredNodeView::from).collect(),
            pairs: pairs
                .map(|p| PairView { nodes: [name(p.a), name(p.b)], rate: p.rate.into() })
                .collect(),
        }
    }
}

impl From<&NodeTest> for NodeTestView {
    fn from(test: &NodeTest) -> Self {
        let (state, why) = match &test.state {
            TestState::Open => ("open", None),
            TestState::Measured(_) => ("measured", None),
            TestState::Failed { why } => ("failed", Some(why.clone())),
        };
        NodeTestView {
            job: test.job.to_string(),
            state,
            by: test.by.clone(),
            pool: test.pool.clone(),
            gpus_per_node: test.gpus_per_node,
            begun: wall_text(test.begun.wall_ms),
            ended: test.ended_wall_ms.map(wall_text),
            why,
            result: test.measured().map(MeasuredView::from),
        }
    }
}

/// What the newest check that measured `node` says of it.
pub(super) fn newest_of(tests: &[Arc<NodeTest>], node: &NodeId) -> Option<NetworkTestView> {
    tests.iter().find_map(|test| {
        let measured = test.measured()?;
        let of_node = measured.nodes.iter().find(|measured| measured.node == *node)?;
        Some(NetworkTestView {
            job: test.job.to_string(),
            at: wall_text(test.ended_wall_ms.unwrap_or(test.begun.wall_ms)),
            backend: measured.backend.clone(),
            nodes: measured.nodes.len(),
            best_bytes_per_s: of_node.best.bytes_per_s,
            latency_us: microseconds(of_node.best.latency_ns),
            median_bytes_per_s: measured.median_bytes_per_s,
            slow: of_node.slow,
        })
    })
}

/// The nodes that a check is to be of.
struct Chosen {
    pool: String,
    nnodes: (u32, u32),
    exclude: Vec<String>,
}

/// Named nodes: all of them, and no other one of their pool.
fn named(shared: &Shared, body: &NodeTestBody) -> Result<Chosen, ApiError> {
    let bad = |detail: String| ApiError::new(BAD_BODY, detail);
    let (mut ids, mut pools) = (BTreeSet::new(), BTreeSet::new());
    for wanted in &body.nodes {
        let found =
            shared.api.board.node(wanted).ok_or_else(|| {
                no_such_node().hint(format!("there is no node {}", quoted(wanted)))
            })?;
        pools.extend(found.node.pool().map(str::to_owned));
        ids.insert(found.node.id.clone());
    }
    let mut pools = pools.into_iter();
    let (Some(pool), None) = (pools.next(), pools.next()) else {
        return Err(bad("the nodes are not all in one pool".to_owned())
            .hint("a gang lies in one pool: check each pool by itself"));
    };
    if body.pool.as_ref().is_some_and(|wanted| *wanted != pool) {
        return Err(bad(format!("the nodes are in pool {pool}"))
            .hint("leave the pool out when nodes are named"));
    }
    let count = ids.len();
    if !(2..=MAX_NODES).contains(&count) {
        return Err(bad(format!("{count} different nodes are named"))
            .hint(format!("name 2 to {MAX_NODES} nodes, or a pool")));
    }
    let of_pool = |found: &NodeSnapshot| !found.node.revoked && found.node.pool() == Some(&pool);
    let others = shared.api.board.nodes().into_iter();
    let others = others.filter(|found| of_pool(found) && !ids.contains(&found.node.id));
    let exclude = others.map(|found| found.node.name.clone()).collect();
    Ok(Chosen { pool, nnodes: (count as u32, count as u32), exclude })
}

/// The nodes of a pool that take new work: as many of them as are free when the check begins.
fn of_pool(
    shared: &Shared,
    principal: &Principal,
    body: &NodeTestBody,
) -> Result<Chosen, ApiError> {
    let nodes = shared.api.board.nodes();
    let workers = nodes.iter().filter(|found| {
        found.node.inventory.as_ref().is_some_and(|has| has.worker_role) && !found.node.revoked
    });
    let mut pools: BTreeMap<&str, Vec<&NodeSnapshot>> = BTreeMap::new();
    for found in workers {
        pools.entry(found.node.pool().unwrap_or_default()).or_default().push(found);
    }
    let known = || pools.keys().map(|pool| (*pool).to_owned()).collect::<Vec<_>>();
    let (pool, workers) = match &body.pool {
        Some(wanted) => pools
            .get_key_value(wanted.as_str())
            .ok_or_else(|| super::error::no_such_pool(wanted, &known()))?,
        None if pools.len() == 1 => pools.iter().next().ok_or_else(no_such_node)?,
        None => {
            let detail = format!("there are {} pools with workers", pools.len());
            return Err(ApiError::new(BAD_BODY, detail)
                .hint(format!("name one of them, or nodes: {}", known().join(", "))));
        }
    };
    let fits = |found: &&&NodeSnapshot| {
        let gpus = found.node.inventory.as_ref().map_or(0, |has| has.gpus.len());
        let (_, in_use) = with_facts(shared, principal, found, |facts| facts.word());
        found.node.is_open() && gpus.saturating_sub(in_use) >= body.gpus_per_node as usize
    };
    let count = workers.iter().filter(fits).count();
    if count < 2 {
        let needs = match body.gpus_per_node {
            0 => "take new work".to_owned(),
            gpus => format!("take new work and have {gpus} GPUs free"),
        };
        let all = workers.len();
        return Err(ApiError::new(
            BAD_BODY,
            format!("{count} of {all} nodes of pool {pool} {needs}"),
        )
        .hint("a check is of two nodes or more; `gangline node ls` shows what is in the way"));
    }
    let most = count.min(MAX_NODES) as u32;
    Ok(Chosen { pool: (*pool).to_owned(), nnodes: (2, most), exclude: Vec::new() })
}

fn check_python(path: &str) -> Result<(), ApiError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    if path.starts_with('/') && path.len() <= MAX_PATH && path.chars().all(plain) {
        return Ok(());
    }
    Err(ApiError::new(BAD_BODY, format!("{} is not the path of an interpreter", quoted(path)))
        .hint("use an absolute path of A-Z a-z 0-9 / . _ - +, such as /opt/env/bin/python"))
}

/// Begins a check of the network between nodes: a job like every other one, in the caller's project. Its
/// result is kept when the job has ended.
#[utoipa::path(post, path = "/api/v1/node-tests",
    request_body(content = NodeTestBody, content_type = "application/json"),
    responses((status = 201, body = NodeTestView), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 422, response = Problem),
        (status = 503, response = Problem), (status = 507, response = Problem)))]
pub(super) async fn begin_node_test(
    State(shared): App,
    Caller(principal): Caller,
    body: Body,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::MaintainNode, &Object::Fleet)?;
    let body: NodeTestBody = read_json(body).await?.unwrap_or_default();
    body.python.as_deref().map_or(Ok(()), check_python)?;
    let timeout_s = body.timeout_s.unwrap_or(TIMEOUT_S);
    if !(1..=MAX_TIMEOUT_S).contains(&timeout_s) {
        return Err(ApiError::new(BAD_BODY, format!("timeout_s is {timeout_s}"))
            .hint(format!("use 1 to {MAX_TIMEOUT_S}")));
    }
    let Chosen { pool, nnodes, exclude } = match body.nodes.is_empty() {
        true => of_pool(&shared, &principal, &body)?,
        false => named(&shared, &body)?,
    };
    let backend = match body.backend {
        Some(Backend::Gloo) => "gloo",
        Some(Backend::Nccl) if body.gpus_per_node == 0 => {
            return Err(ApiError::new(BAD_BODY, "nccl needs GPUs")
                .hint("say how many of each node, in gpus_per_node (--gpus)"));
        }
        Some(Backend::Nccl) => "nccl",
        None if body.gpus_per_node == 0 => "gloo",
        None => "nccl",
    };
    let gpus_per_node = body.gpus_per_node;
    let (python, of) = (body.python, pool.clone());
    let wanted = Wanted { pool, nnodes, exclude, gpus_per_node, backend, python, timeout_s };
    let spec = spec(&wanted).map_err(ApiError::spec)?;
    let id = minted(JobId::new(format!("j-{}", short_suffix(random::number()?))))?;
    let test = NodeTest {
        job: id.clone(),
        by: principal.user.clone(),
        pool: of,
        gpus_per_node,
        begun: Timestamp::now(),
        ended_wall_ms: None,
        state: TestState::Open,
    };
    let wish = Wish {
        spec,
        source: String::new(),
        id,
        idempotency: None,
        command: "gangline node test".to_owned(),
        node_test: Some(Box::new(test)),
    };
    let job = match submit(&shared, &principal, wish).await? {
        Submitted::Made { job, .. } => job,
        Submitted::Exists { job, .. } => {
            return Err(ApiError::internal("a job id was minted twice", &job));
        }
    };
    let begun = find(&shared, job.as_str())?;
    let location = format!("/api/v1/node-tests/{job}");
    let answer = Json(NodeTestView::from(&*begun));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], answer).into_response())
}

fn find(shared: &Shared, job: &str) -> Result<Arc<NodeTest>, ApiError> {
    let tests = shared.api.board.node_tests();
    tests.into_iter().find(|test| test.job.as_str() == job).ok_or_else(|| {
        ApiError::new(NO_SUCH_NODE_TEST, format!("there is no check {}", quoted(job)))
            .hint("a check goes by the id of its job; the newest 200 are kept")
    })
}

/// Query of the checks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodeTestParams {
    /// 1 to 1000; 100 when absent.
    page_size: Option<usize>,
    /// Only checks that have measured this node, by id or name.
    node: Option<String>,
    /// Only checks of this pool.
    pool: Option<String>,
}

/// Checks of the network, the newest first. At most 200 are kept.
#[utoipa::path(get, path = "/api/v1/node-tests", params(NodeTestParams),
    responses((status = 200, body = NodeTestList), (status = 404, response = Problem)))]
pub(super) async fn list_node_tests(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<NodeTestParams>,
) -> Result<Json<NodeTestList>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let size = page_size(params.page_size)?;
    let node = params.node.as_ref().map(|wanted| shared.api.board.node(wanted));
    let node = match node {
        Some(None) => return Err(no_such_node()),
        Some(Some(found)) => Some(found.node.id.clone()),
        None => None,
    };
    let mut tests = shared.api.board.node_tests();
    tests.retain(|test| {
        let has = |node: &NodeId| {
            test.measured().is_some_and(|all| all.nodes.iter().any(|one| one.node == *node))
        };
        params.pool.as_ref().is_none_or(|pool| *pool == test.pool) && node.as_ref().is_none_or(has)
    });
    tests.truncate(size);
    Ok(Json(NodeTestList { tests: tests.iter().map(|test| NodeTestView::from(&**test)).collect() }))
}

/// One check of the network.
#[utoipa::path(get, path = "/api/v1/node-tests/{id}",
    params(("id" = String, Path, description = "Id of its job")),
    responses((status = 200, body = NodeTestView), (status = 404, response = Problem)))]
pub(super) async fn get_node_test(
    State(shared): App,
    Caller(principal): Caller,
    Selector(job): Selector,
) -> Result<Json<NodeTestView>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    Ok(Json(NodeTestView::from(&*find(&shared, &job)?)))
}
