//! What Prometheus reads: the coordinator's own metrics, those of each node and of the Ray members
//! there, and the list of all of them.
//!
//! Nodes have no open port, so their pages are asked from the agents at the moment of a scrape. An
//! agent that is gone or does not answer makes a scrape fail, which Prometheus shows as `up == 0`.

mod federation;
mod fleet;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use gangline_common::exposition::{CONTENT_TYPE, Kind, Page};
use gangline_common::ids::{MemberKey, NodeId};
use gangline_common::request::{REQUEST_TIMEOUT, RequestError};
use gangline_common::wire::request::{AgentRequest, FailureReason, RequestFailure};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{
    AGENT_AWAY, AGENT_TOO_OLD, ApiError, BAD_PARAMETER, NO_METRICS, NO_SUCH_RAY_MEMBER, Problem,
    cleaned, quoted,
};
use super::jobs::ask;
use super::listener::Transport;
use super::nodes::find_node;
use super::{App, Params, Selector, Shared, header_text};
use crate::agents::AskError;
use crate::board::NodeSnapshot;
use crate::core::effect::Answer;
use crate::core::event::Event;
use crate::core::explain::Question;
use crate::core::gang::{Gang, Phase};
use crate::core::job::Launcher;
use federation::Merged;

/// How long Prometheus will wait, in seconds.
const PATIENCE_HEADER: &str = "x-prometheus-scrape-timeout-seconds";
/// Share of that time after which the answer is given up: it still has to arrive.
const PATIENCE_SHARE: f64 = 0.9;
/// Longest wait for an agent.
const LONGEST_WAIT: Duration = Duration::from_secs(9);
/// Longest wait for what the driver alone knows; the page does without it then.
const DRIVER_WAIT: Duration = Duration::from_secs(1);
/// Agents that are asked at a time for one page of all of them.
const FEDERATED: usize = 32;
/// Largest page of one node; a Ray page may be as large as any answer.
const NODE_PAGE: usize = 1 << 20;
/// Largest page of all nodes together.
const FEDERATED_PAGE: usize = 64 << 20;

/// How long this scrape may take.
///
/// # Errors
/// When the header is no number of seconds.
fn patience(headers: &HeaderMap) -> Result<Duration, ApiError> {
    let Some(text) = header_text(headers, PATIENCE_HEADER)? else { return Ok(LONGEST_WAIT) };
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| {
        let detail = format!("{PATIENCE_HEADER} is {}", quoted(text));
        ApiError::new(BAD_PARAMETER, detail).hint("give seconds, such as 10")
    })?;
    let wait = Duration::try_from_secs_f64(seconds * PATIENCE_SHARE).unwrap_or(LONGEST_WAIT);
    Ok(wait.min(LONGEST_WAIT).min(REQUEST_TIMEOUT))
}

fn text_page(text: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE))], text).into_response()
}

/// A page that was made here.
fn own_page(page: Page) -> Result<Response, ApiError> {
    let text = page.text().map_err(|error| ApiError::internal("a page of metrics", &error))?;
    Ok(text_page(text))
}

/// The coordinator's own metrics: jobs, queue, nodes, store.
#[utoipa::path(get, path = "/metrics",
    responses((status = 200, content_type = "text/plain; version=0.0.4", body = String)))]
pub(super) async fn own_metrics(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::ReadMetrics, &Object::Fleet)?;
    let ended = shared.api.meters.ended();
    let question = Question::Spent;
    let asking = ask(&shared, |request| Event::Ask { request, question });
    let spent = match tokio::time::timeout(DRIVER_WAIT, asking).await {
        Ok(Ok(Ok(Answer::Spent(open, vacant)))) => {
            Some(fleet::GpuTime { so_far: shared.api.meters.so_far(ended, &open, &vacant), open })
        }
        // A coordinator that cannot decide now is looked at for just that.
        Ok(_) | Err(_) => None,
    };
    own_page(fleet::page(&shared.api, spent.as_ref()))
}

/// A node's metrics, asked from its agent now: GPUs, InfiniBand, host.
#[utoipa::path(get, path = "/api/v1/nodes/{id}/metrics",
    params(("id" = String, Path, description = "Id or name")),
    responses((status = 200, content_type = "text/plain; version=0.0.4", body = String),
        (status = 404, response = Problem), (status = 501, response = Problem),
        (status = 503, response = Problem)))]
pub(super) async fn node_metrics(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::ReadMetrics, &Object::Fleet)?;
    let node = find_node(&shared, &id)?.node;
    let wait = patience(&headers)?;
    let page = scrape(&shared, &node.id, &AgentRequest::NodeMetrics, wait).await;
    page.map(text_page).map_err(|why| why.problem(&node.name))
}

/// Which of the Ray members of a node.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RayMemberParams {
    /// Id of the job; needed where the node runs members of several.
    job: Option<String>,
    /// `head` or the rank; needed where the node runs several members of the job.
    member: Option<String>,
}

/// What Ray exports of one member on the node, as Ray wrote it.
#[utoipa::path(get, path = "/api/v1/nodes/{id}/ray-metrics",
    params(("id" = String, Path, description = "Id or name"), RayMemberParams),
    responses((status = 200, content_type = "text/plain; version=0.0.4", body = String),
        (status = 404, response = Problem), (status = 501, response = Problem),
        (status = 503, response = Problem)))]
pub(super) async fn ray_metrics(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<RayMemberParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::ReadMetrics, &Object::Fleet)?;
    let snapshot = find_node(&shared, &id)?;
    let name = quoted(&snapshot.node.name);
    let mut members = ray_members(&shared, &snapshot);
    members.retain(|(job, key)| {
        params.job.as_ref().is_none_or(|wanted| wanted == job)
            && params.member.as_ref().is_none_or(|wanted| *wanted == key.member.to_string())
    });
    let key = match members.as_slice() {
        [(_, key)] => key.clone(),
        [] => {
            let detail = format!("no such member of a Ray cluster runs on {name}");
            return Err(ApiError::new(NO_SUCH_RAY_MEMBER, detail)
                .hint("those that run are listed in /api/v1/prometheus/sd"));
        }
        several => {
            let detail = format!("{} members of Ray clusters run on {name}", several.len());
            return Err(ApiError::new(BAD_PARAMETER, detail)
                .hint("say which with `job` and `member`; /api/v1/prometheus/sd lists them"));
        }
    };
    let wait = patience(&headers)?;
    let page = scrape(&shared, &snapshot.node.id, &AgentRequest::RayMetrics { key }, wait).await;
    page.map(text_page).map_err(|why| why.problem(&snapshot.node.name))
}

/// The running members of Ray clusters on a node, each with the id of the job that owns the gang.
fn ray_members(shared: &Shared, snapshot: &NodeSnapshot) -> Vec<(String, MemberKey)> {
    let has_ray = |gang: &Gang| {
        let job = shared.api.board.job(&gang.job);
        job.is_some_and(|job| job.job.request.launcher == Launcher::Ray)
    };
    let mut members = Vec::new();
    for gang in snapshot.gangs.iter().filter(|gang| has_ray(gang)) {
        for (member, facts) in gang.members_on(&snapshot.node.id) {
            if matches!(facts.phase, Phase::Running { .. }) {
                let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member };
                members.push((gang.job.to_string(), key));
            }
        }
    }
    members
}

/// Why a scrape has no page.
struct NoPage(AskError);

impl NoPage {
    fn problem(self, node: &str) -> ApiError {
        let node = quoted(node);
        let no_metrics = |why: &str| {
            ApiError::new(NO_METRICS, format!("{node}: {}", cleaned(why))).retry_after_s(5)
        };
        match self.0 {
            AskError::NotConnected => {
                ApiError::new(AGENT_AWAY, format!("the agent of {node} is not connected"))
                    .hint("what runs there runs on; `gangline node ls` shows when it is back")
                    .retry_after_s(5)
            }
            AskError::Request(RequestError::Failed(RequestFailure {
                reason: FailureReason::Unknown,
                ..
            })) => ApiError::new(AGENT_TOO_OLD, format!("the agent of {node} has no metrics"))
                .hint("upgrade it; a running job is not disturbed by that"),
            AskError::Request(RequestError::Failed(RequestFailure { text, .. })) => {
                no_metrics(&text)
            }
            AskError::Late | AskError::Request(RequestError::Timeout) => {
                no_metrics("its agent did not answer in time")
            }
            AskError::Busy => no_metrics("too many questions to its agent are open"),
            AskError::Request(error) => {
                tracing::warn!(node, %error, "a scrape failed");
                no_metrics("the question to its agent failed")
            }
        }
    }
}

async fn scrape(
    shared: &Shared,
    node: &NodeId,
    request: &AgentRequest,
    wait: Duration,
) -> Result<Vec<u8>, NoPage> {
    let page = shared.api.agents.scrape(node, request, wait).await.map_err(NoPage)?;
    if *request == AgentRequest::NodeMetrics && page.len() > NODE_PAGE {
        let text = format!("its page is over {NODE_PAGE} bytes");
        let failure = RequestFailure { reason: FailureReason::TooLarge, text };
        return Err(NoPage(AskError::Request(RequestError::Failed(failure))));
    }
    Ok(page)
}

/// Query of the page of all nodes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FederateParams {
    /// Only nodes of this pool.
    pool: Option<String>,
}

/// The metrics of all nodes on one page, with the label `node`. A node that does not answer, or whose
/// page cannot be joined with the others, is there with `gangline_node_answers 0`.
#[utoipa::path(get, path = "/api/v1/federate", params(FederateParams),
    responses((status = 200, content_type = "text/plain; version=0.0.4", body = String)))]
pub(super) async fn federate(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<FederateParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::ReadMetrics, &Object::Fleet)?;
    let wait = patience(&headers)?;
    let until = tokio::time::Instant::now() + wait;
    let nodes = named(shared.api.board.nodes());
    let wanted = nodes.filter(|(_, snapshot)| {
        params.pool.as_deref().is_none_or(|pool| snapshot.node.pool() == Some(pool))
    });
    let asking = wanted.map(|(name, snapshot)| {
        let shared = &shared;
        async move {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            let request = AgentRequest::NodeMetrics;
            let page = scrape(shared, &snapshot.node.id, &request, left).await.ok();
            (name, page)
        }
    });
    let mut pages = stream::iter(asking).buffer_unordered(FEDERATED);
    let mut merged = Merged::new(FEDERATED_PAGE);
    let mut answers = BTreeMap::new();
    while let Some((name, page)) = pages.next().await {
        let joined = page.is_some_and(|page| match merged.add(&name, &page) {
            Ok(()) => true,
            Err(why) => {
                tracing::warn!(node = name, %why, "a page of metrics is left out");
                false
            }
        });
        answers.insert(name, joined);
    }
    let mut own = Page::default();
    let mut up = own.family(
        "gangline_node_answers",
        "Whether the metrics of the node are on this page.",
        Kind::Gauge,
    );
    for (name, joined) in &answers {
        up.add(&[("node", name)], f64::from(*joined));
    }
    let text = own.text().map_err(|error| ApiError::internal("a page of metrics", &error))?;
    Ok(text_page(text + &merged.text()))
}

/// Nodes that may be asked, with their names.
fn named(nodes: Vec<NodeSnapshot>) -> impl Iterator<Item = (String, NodeSnapshot)> {
    let present = nodes.into_iter().filter(|snapshot| !snapshot.node.revoked);
    present.map(|snapshot| (snapshot.node.name.clone(), snapshot))
}

/// What Prometheus is to scrape, in its own form: addresses and labels.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TargetGroup {
    targets: Vec<String>,
    labels: BTreeMap<&'static str, String>,
}

/// Everything that there is to scrape, for `http_sd_configs` of Prometheus: the coordinator, every
/// node, and every member of a Ray cluster that runs.
#[utoipa::path(get, path = "/api/v1/prometheus/sd",
    responses((status = 200, body = Vec<TargetGroup>)))]
pub(super) async fn discover(
    State(shared): App,
    Caller(principal): Caller,
    transport: Option<Extension<Transport>>,
    headers: HeaderMap,
) -> Result<Json<Vec<TargetGroup>>, ApiError> {
    authorize(&principal, Action::ReadMetrics, &Object::Fleet)?;
    // Whoever asks reaches this coordinator by the name that it asked for.
    let host = header_text(&headers, "host")?.unwrap_or("localhost:8265").to_owned();
    let encrypted = transport.is_some_and(|Extension(transport)| transport == Transport::Tls);
    let scheme = if encrypted { "https" } else { "http" };
    let group = |path: String, labels: Vec<(&'static str, String)>| {
        let always = [("__metrics_path__", path), ("__scheme__", scheme.to_owned())];
        let labels = always.into_iter().chain(labels).collect();
        TargetGroup { targets: vec![host.clone()], labels }
    };
    let cluster = shared.api.cluster.clone();
    let own = vec![("instance", cluster), ("job", "gangline".to_owned())];
    let mut groups = vec![group("/metrics".to_owned(), own)];
    for (name, snapshot) in named(shared.api.board.nodes()) {
        let id = &snapshot.node.id;
        let pool = snapshot.node.pool().unwrap_or_default().to_owned();
        let place = [("instance", name.clone()), ("pool", pool)];
        let node = [("job", "gangline-node".to_owned())];
        let labels = place.iter().cloned().chain(node).collect();
        groups.push(group(format!("/api/v1/nodes/{id}/metrics"), labels));
        for (job, key) in ray_members(&shared, &snapshot) {
            let member = key.member.to_string();
            let ray = [
                ("job", "ray".to_owned()),
                ("ray_io_cluster", job.clone()),
                ("member", member.clone()),
                ("__param_job", job),
                ("__param_member", member),
            ];
            let labels = place.iter().cloned().chain(ray).collect();
            groups.push(group(format!("/api/v1/nodes/{id}/ray-metrics"), labels));
        }
    }
    Ok(Json(groups))
}
