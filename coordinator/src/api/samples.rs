//! Readings of the last hour, for charts: of a node, and of the GPUs that a job has.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use gangline_common::ids::{GpuId, MemberId, NodeId};
use gangline_common::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_PARAMETER, Problem};
use super::jobs::find_job;
use super::live::Number;
use super::nodes::find_node;
use super::{App, Params, Selector, Shared};
use crate::ingest::telemetry::{COARSE_MS, GPU, HOST, History, Record, Series};

/// What is kept of the past at all, and in full.
const HOUR_MS: u64 = 3_600_000;
const FULL_MS: u64 = 120_000;
/// Steps, in seconds.
const FINE_S: u64 = 1;
const COARSE_S: u64 = COARSE_MS / 1000;

/// Query of a history.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryParams {
    /// Milliseconds since the epoch; without it an hour ago.
    since: Option<u64>,
    /// 1: every sample, of the last two minutes. 10: averages of ten seconds, of the last hour. Without
    /// it the finer one that reaches back to `since`.
    step_s: Option<u64>,
}

/// From when on, in which steps.
#[derive(Clone, Copy)]
struct Wanted {
    since_ms: u64,
    step_s: u64,
}

impl Wanted {
    fn of(params: &HistoryParams) -> Result<Self, ApiError> {
        let now = Timestamp::now().wall_ms;
        let since_ms = params.since.unwrap_or(0).max(now.saturating_sub(HOUR_MS));
        let step_s = match params.step_s {
            None if since_ms >= now.saturating_sub(FULL_MS) => FINE_S,
            None => COARSE_S,
            Some(step @ (FINE_S | COARSE_S)) => step,
            Some(other) => {
                return Err(ApiError::new(BAD_PARAMETER, format!("step_s is {other}"))
                    .hint(format!("use {FINE_S} or {COARSE_S}")));
            }
        };
        Ok(Wanted { since_ms, step_s })
    }

    fn history(self, shared: &Shared, node: &NodeId) -> History {
        let averages = self.step_s == COARSE_S;
        shared.api.telemetry.history(node, self.since_ms, averages).unwrap_or_default()
    }
}

/// Numbers of one series, one for each time; absent ones are null.
type Column = Vec<Option<Number>>;

/// Readings of one node over time.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeSeries {
    /// The node's id.
    node: String,
    name: String,
    /// `head` or a rank: whose GPUs these are. Null for a whole node.
    member: Option<String>,
    /// Milliseconds since the epoch; of an average: when its ten seconds began.
    time_ms: Vec<u64>,
    /// Samples lost before each time, or in its ten seconds.
    dropped: Vec<u32>,
    /// By name: cpu_busy_pct, memory_used_bytes, load1, network_bytes_per_s, rdma_bytes_per_s.
    #[schema(value_type = BTreeMap<String, Vec<Option<f64>>>)]
    host: BTreeMap<&'static str, Column>,
    gpus: Vec<GpuSeries>,
}

/// Readings of one GPU over time.
#[derive(Serialize, ToSchema)]
pub(super) struct GpuSeries {
    uuid: String,
    /// By name: utilization_pct, memory_used_bytes, temperature_c, power_w, sm_clock_mhz, sm_active,
    /// tensor_active, nvlink_bytes_per_s.
    #[schema(value_type = BTreeMap<String, Vec<Option<f64>>>)]
    series: BTreeMap<&'static str, Column>,
}

/// Answer of `GET /api/v1/nodes/{id}/samples`.
#[derive(Serialize, ToSchema)]
pub(super) struct NodeSamples {
    step_s: u64,
    #[serde(flatten)]
    series: NodeSeries,
}

/// Answer of `GET /api/v1/jobs/{id}/metrics`.
#[derive(Serialize, ToSchema)]
pub(super) struct JobMetrics {
    job: String,
    /// The newest attempt; null before the first.
    attempt: Option<u32>,
    step_s: u64,
    /// The job runs on a standing cluster: these are the readings of all its GPUs.
    shared: bool,
    /// A node for each member with GPUs, by rank; those of other jobs are left out.
    members: Vec<NodeSeries>,
}

/// The readings of a node.
#[utoipa::path(get, path = "/api/v1/nodes/{id}/samples",
    params(("id" = String, Path, description = "Id or name"), HistoryParams),
    responses((status = 200, body = NodeSamples), (status = 404, response = Problem)))]
pub(super) async fn node_samples(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<HistoryParams>,
) -> Result<Json<NodeSamples>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let wanted = Wanted::of(&params)?;
    let node = find_node(&shared, &id)?.node;
    let history = wanted.history(&shared, &node.id);
    let gpus = history.gpus.clone();
    let series = NodeSeries::of((&node.id, node.name.clone()), None, &history, &gpus);
    Ok(Json(NodeSamples { step_s: wanted.step_s, series }))
}

/// The readings of the GPUs that a job has, or had when it ran last, on the nodes that they are on.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/metrics",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        HistoryParams),
    responses((status = 200, body = JobMetrics), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn job_metrics(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<HistoryParams>,
) -> Result<Json<JobMetrics>, ApiError> {
    let wanted = Wanted::of(&params)?;
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let attempt = snapshot.attempts.last();
    let mut members = Vec::new();
    // Before the attempt and after it the GPUs were somebody else's.
    let from = attempt.map_or(u64::MAX, |attempt| attempt.started.wall_ms);
    let to = attempt.and_then(|attempt| attempt.ended).map_or(u64::MAX, |ended| ended.wall_ms);
    for (member, placed) in snapshot.gang.iter().flat_map(|gang| &gang.members) {
        if matches!(member, MemberId::Head) || attempt.is_none() {
            continue;
        }
        let mut history = wanted.history(&shared, &placed.node);
        let step_ms = if wanted.step_s == COARSE_S { COARSE_MS } else { 0 };
        history.records.retain(|record| record.time_ms + step_ms > from && record.time_ms <= to);
        let found = shared.api.board.node(placed.node.as_str());
        let name = found.map_or_else(|| placed.node.to_string(), |found| found.node.name.clone());
        let member = Some(member.to_string());
        members.push(NodeSeries::of((&placed.node, name), member, &history, &placed.gpus));
    }
    Ok(Json(JobMetrics {
        job: snapshot.job.id.to_string(),
        attempt: attempt.map(|attempt| attempt.number),
        step_s: wanted.step_s,
        shared: snapshot.job.cluster.is_some(),
        members,
    }))
}

impl NodeSeries {
    fn of(
        (node, name): (&NodeId, String),
        member: Option<String>,
        history: &History,
        gpus: &[GpuId],
    ) -> Self {
        let records = &history.records;
        let of_gpu = |uuid: &GpuId| {
            let slot = history.gpus.iter().position(|known| known == uuid);
            let value = |record: &Record, series: usize| {
                record.gpus.get(slot?)?.get(series).copied().flatten()
            };
            GpuSeries { uuid: uuid.to_string(), series: columns(&GPU, records, value) }
        };
        NodeSeries {
            node: node.to_string(),
            name,
            member,
            time_ms: records.iter().map(|record| record.time_ms).collect(),
            dropped: records.iter().map(|record| record.dropped).collect(),
            host: columns(&HOST, records, |record, series| {
                record.host.get(series).copied().flatten()
            }),
            gpus: gpus.iter().map(of_gpu).collect(),
        }
    }
}

fn columns(
    names: &[Series],
    records: &[Record],
    value: impl Fn(&Record, usize) -> Option<f64>,
) -> BTreeMap<&'static str, Column> {
    let column = |(index, series): (usize, &Series)| {
        let values = records.iter().map(|record| value(record, index).map(Number));
        (series.name, values.collect())
    };
    names.iter().enumerate().map(column).collect()
}
