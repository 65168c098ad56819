//! Checks of the network between nodes: what each pair measured, and which nodes are far slower than
//! the others.
//!
//! A check is a job like every other; its record is made with the job, in one transaction, and filled
//! in when the job has ended. No placement is decided by it: a slow node is named, and a person decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::ids::{JobId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::nodes::note;
use super::notices::About;

/// Records that are kept; the oldest that is over goes.
pub const KEPT: usize = 200;
/// A node whose best rate is below this part of the median of all is slow.
pub const SLOW_PERCENT: u64 = 70;

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTest {
    pub job: JobId,
    /// Who asked for it.
    pub by: String,
    /// The pool that its nodes are of.
    pub pool: String,
    pub gpus_per_node: u32,
    pub begun: Timestamp,
    pub ended_wall_ms: Option<u64>,
    pub state: TestState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestState {
    /// Its job waits or runs.
    Open,
    Measured(Measured),
    /// Why there is no result.
    Failed {
        why: String,
    },
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// `gloo` or `nccl`.
    pub backend: String,
    /// Of torch, CUDA, NCCL, Python: what rank 0 had.
    pub versions: Vec<(String, String)>,
    /// Of each transfer.
    pub message_bytes: u64,
    /// Of an all-reduce over all nodes, as bus bandwidth.
    pub all_reduce: Rate,
    /// In the order of the ranks.
    pub nodes: Vec<MeasuredNode>,
    pub pairs: Vec<Pair>,
    /// Of the best rates of all nodes.
    pub median_bytes_per_s: u64,
}

/// What a transfer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rate {
    pub bytes_per_s: u64,
    /// Of the smallest message.
    pub latency_ns: u64,
}

/// A node, by the best that it did with any other: a pair is as slow as the slower of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredNode {
    pub node: NodeId,
    /// What it was called then.
    pub name: String,
    pub best: Rate,
    /// Below [`SLOW_PERCENT`] of the median.
    pub slow: bool,
}

/// What two nodes did with each other, given by their ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    pub a: u32,
    pub b: u32,
    pub rate: Rate,
}

/// What the program of a check says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    pub backend: String,
    pub versions: Vec<(String, String)>,
    pub message_bytes: u64,
    pub all_reduce: Rate,
    pub pairs: Vec<Pair>,
}

impl Measured {
    /// Judges what was said. `nodes` are those of the ranks, in order, each with its name.
    ///
    /// # Errors
    /// What was said names a rank that there is not, or leaves one out.
    pub fn of(said: Said, nodes: Vec<(NodeId, String)>) -> Result<Measured, String> {
        let mut best: BTreeMap<u32, Rate> = BTreeMap::new();
        for Pair { a, b, rate } in &said.pairs {
            for rank in [a, b] {
                if *rank as usize >= nodes.len() {
                    return Err(format!("it measured rank {rank} of {}", nodes.len()));
                }
                let known = best.entry(*rank).or_insert(*rate);
                known.bytes_per_s = known.bytes_per_s.max(rate.bytes_per_s);
                known.latency_ns = known.latency_ns.min(rate.latency_ns);
            }
        }
        if best.len() != nodes.len() {
            return Err(format!("it measured {} of {} nodes", best.len(), nodes.len()));
        }
        let median_bytes_per_s = median(best.values().map(|rate| rate.bytes_per_s).collect());
        let limit = median_bytes_per_s / 100 * SLOW_PERCENT;
        let nodes = nodes.into_iter().zip(best.into_values()).map(|((node, name), best)| {
            MeasuredNode { node, name, best, slow: best.bytes_per_s < limit }
        });
        Ok(Measured {
            backend: said.backend,
            versions: said.versions,
            message_bytes: said.message_bytes,
            all_reduce: said.all_reduce,
            nodes: nodes.collect(),
            pairs: said.pairs,
            median_bytes_per_s,
        })
    }

    pub fn slow(&self) -> impl Iterator<Item = &MeasuredNode> {
        self.nodes.iter().filter(|node| node.slow)
    }
}

/// The middle one; of an even number the upper, so that half of the nodes can be slow.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl NodeTest {
    pub fn is_open(&self) -> bool {
        self.state == TestState::Open
    }

    pub fn measured(&self) -> Option<&Measured> {
        match &self.state {
            TestState::Measured(measured) => Some(measured),
            TestState::Open | TestState::Failed { .. } => None,
        }
    }
}

impl Core {
    /// A check begins with its job. The oldest records make room for it.
    pub(super) fn begin_node_test(&mut self, test: NodeTest, out: &mut Effects) {
        while self.node_tests.len() >= KEPT {
            let over = self.node_tests.values().filter(|test| !test.is_open());
            let oldest = over.min_by_key(|test| test.begun.wall_ms).map(|test| test.job.clone());
            // All of them run: their jobs have their own limit.
            let Some(job) = oldest else { break };
            self.put(Write::ForgetNodeTest { job }, out);
        }
        self.put(Write::NodeTest(Arc::new(test)), out);
    }

    /// The result of a check, by whoever reads the logs of its job. Only the first counts.
    pub(super) fn on_node_tested(
        &mut self,
        job: &JobId,
        state: TestState,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(test) = self.node_tests.get(job).filter(|test| test.is_open()) else { return };
        let test = NodeTest { ended_wall_ms: Some(now.wall_ms), state, ..NodeTest::clone(test) };
        for slow in test.measured().into_iter().flat_map(Measured::slow) {
            let Some(node) = self.nodes.get(&slow.node) else { continue };
            let mut node = super::node::Node::clone(node);
            let median = test.measured().map_or(0, |measured| measured.median_bytes_per_s);
            let text = format!(
                "its best rate in the check {job} was {} of {} MB/s, the median of the nodes",
                slow.best.bytes_per_s / 1_000_000,
                median / 1_000_000
            );
            note(&mut node, now, "slow", "gangline", text.clone());
            self.tell("node.slow", About::Node(&node), &text, now, out);
            self.put(Write::Node(Arc::new(node)), out);
        }
        self.put(Write::NodeTest(Arc::new(test)), out);
    }

    pub fn node_tests(&self) -> impl Iterator<Item = &Arc<NodeTest>> {
        self.node_tests.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<(NodeId, String)> {
        (0..count).map(|n| (format!("n-{n}").parse().unwrap(), format!("w{n}"))).collect()
    }

    /// Every pair of `rates.len()` nodes does what the slower one can.
    fn said(rates: &[u64]) -> Said {
        let mut pairs = Vec::new();
        for (a, one) in rates.iter().enumerate() {
            for (b, other) in rates.iter().enumerate().skip(a + 1) {
                let rate = Rate { bytes_per_s: *one.min(other), latency_ns: 1000 };
                pairs.push(Pair { a: a as u32, b: b as u32, rate });
            }
        }
        Said { pairs, ..Said::default() }
    }

    fn slow(rates: &[u64]) -> Vec<String> {
        let measured = Measured::of(said(rates), nodes(rates.len())).unwrap();
        measured.slow().map(|node| node.name.clone()).collect()
    }

    #[test]
    fn a_node_far_below_the_median_is_named_and_its_partners_are_not() {
        assert_eq!(slow(&[1000, 1000, 100]), ["w2"]);
        assert_eq!(slow(&[1000, 990, 1010, 650, 1000]), ["w3"]);
        assert_eq!(slow(&[1000, 900, 800]), [] as [&str; 0]);
        // Of two nodes nobody can say which one it is.
        assert_eq!(slow(&[1000, 10]), [] as [&str; 0]);
    }

    #[test]
    fn what_is_said_of_other_nodes_is_no_result() {
        let all = said(&[10, 10, 10]);
        assert!(Measured::of(all.clone(), nodes(2)).unwrap_err().contains("rank 2 of 2"));
        assert!(Measured::of(all, nodes(4)).unwrap_err().contains("3 of 4 nodes"));
        assert!(Measured::of(Said::default(), nodes(2)).is_err());
    }
}
