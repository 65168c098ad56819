//! The record of a check of the network between nodes.

use gangline_common::ids::{JobId, NodeId};
use serde::{Deserialize, Serialize};

use super::{TimeV1, seal};
use crate::core::node_test::{Measured, MeasuredNode, NodeTest, Pair, Rate, TestState};

#[derive(Serialize, Deserialize)]
pub(super) struct NodeTestV1 {
    job: JobId,
    by: String,
    pool: String,
    gpus_per_node: u32,
    begun: TimeV1,
    ended_wall_ms: Option<u64>,
    state: TestStateV1,
}

#[derive(Serialize, Deserialize)]
enum TestStateV1 {
    Open,
    Measured(MeasuredV1),
    Failed { why: String },
}

#[derive(Serialize, Deserialize)]
struct MeasuredV1 {
    backend: String,
    versions: Vec<(String, String)>,
    message_bytes: u64,
    all_reduce: RateV1,
    /// In the order of the ranks: node, name, best rate, whether it is slow.
    nodes: Vec<(NodeId, String, RateV1, bool)>,
    /// Two ranks and what they did.
    pairs: Vec<(u32, u32, RateV1)>,
    median_bytes_per_s: u64,
}

/// Bytes per second and nanoseconds.
#[derive(Serialize, Deserialize)]
struct RateV1(u64, u64);

impl From<Rate> for RateV1 {
    fn from(rate: Rate) -> Self {
        RateV1(rate.bytes_per_s, rate.latency_ns)
    }
}

impl From<RateV1> for Rate {
    fn from(RateV1(bytes_per_s, latency_ns): RateV1) -> Self {
        Rate { bytes_per_s, latency_ns }
    }
}

pub fn encode_node_test(test: &NodeTest) -> Result<Vec<u8>, String> {
    seal(&NodeTestV1 {
        job: test.job.clone(),
        by: test.by.clone(),
        pool: test.pool.clone(),
        gpus_per_node: test.gpus_per_node,
        begun: test.begun.into(),
        ended_wall_ms: test.ended_wall_ms,
        state: match &test.state {
            TestState::Open => TestStateV1::Open,
            TestState::Measured(measured) => TestStateV1::Measured(measured.into()),
            TestState::Failed { why } => TestStateV1::Failed { why: why.clone() },
        },
    })
}

impl From<&Measured> for MeasuredV1 {
    fn from(measured: &Measured) -> Self {
        let node = |n: &MeasuredNode| (n.node.clone(), n.name.clone(), n.best.into(), n.slow);
        MeasuredV1 {
            backend: measured.backend.clone(),
            versions: measured.versions.clone(),
            message_bytes: measured.message_bytes,
            all_reduce: measured.all_reduce.into(),
            nodes: measured.nodes.iter().map(node).collect(),
            pairs: measured.pairs.iter().map(|p| (p.a, p.b, p.rate.into())).collect(),
            median_bytes_per_s: measured.median_bytes_per_s,
        }
    }
}

impl From<MeasuredV1> for Measured {
    fn from(record: MeasuredV1) -> Self {
        let node = |(node, name, best, slow): (NodeId, String, RateV1, bool)| MeasuredNode {
            node,
            name,
            best: best.into(),
            slow,
        };
        let pair = |(a, b, rate): (u32, u32, RateV1)| Pair { a, b, rate: rate.into() };
        Measured {
            backend: record.backend,
            versions: record.versions,
            message_bytes: record.message_bytes,
            all_reduce: record.all_reduce.into(),
            nodes: record.nodes.into_iter().map(node).collect(),
            pairs: record.pairs.into_iter().map(pair).collect(),
            median_bytes_per_s: record.median_bytes_per_s,
        }
    }
}

impl From<NodeTestV1> for NodeTest {
    fn from(record: NodeTestV1) -> Self {
        NodeTest {
            job: record.job,
            by: record.by,
            pool: record.pool,
            gpus_per_node: record.gpus_per_node,
            begun: record.begun.into(),
            ended_wall_ms: record.ended_wall_ms,
            state: match record.state {
                TestStateV1::Open => TestState::Open,
                TestStateV1::Measured(measured) => TestState::Measured(measured.into()),
                TestStateV1::Failed { why } => TestState::Failed { why },
            },
        }
    }
}
