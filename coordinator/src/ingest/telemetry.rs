//! Samples of nodes: rings for charts, the newest one whole, and a broadcast to whoever watches.
//!
//! Newest wins and nothing waits: what a ring or a watcher has no room for is counted and gone.

mod ring;
mod series;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::ids::{GpuId, NodeId};
use gangline_common::time::Timestamp;
use gangline_common::transport::{FrameReceiver, TransportError};
use gangline_common::wire::WireError;
use gangline_common::wire::frame::Frame;
use gangline_common::wire::v1::NodeSample;
use tokio::sync::broadcast;

pub use ring::{COARSE_MS, Counts, Record};
use series::Totals;
pub use series::{GPU, HOST, Reading, Series};

/// Samples that a watcher may be behind before it loses the oldest.
const WATCH: usize = 16_384;
/// Nodes whose samples are kept.
const MAX_NODES: usize = 20_000;
/// A sample whose time differs more from now than this is kept with the time at which it came.
const MAX_SKEW_MS: u64 = 5_000;
/// A clock is taken to be at most a century off, in milliseconds.
const FARTHEST_CLOCK_MS: i64 = 100 * 366 * 24 * 3600 * 1000;
/// Agents send one a second at most; what comes sooner than this after the one before is not kept.
const LEAST_GAP_MS: u64 = 250;
/// Samples that a watcher that comes back can still have.
const MAX_MISSED: u64 = 20_000;

/// A sample that was kept, for those who watch.
#[derive(Debug)]
pub struct Update {
    /// Counts all samples that were kept, from 1.
    pub number: u64,
    pub node: NodeId,
    pub time_ms: u64,
    /// Samples of this node that were lost before it.
    pub dropped: u32,
    pub reading: Reading,
    pub sample: NodeSample,
}

/// Some of a node's past.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// In the order of each record's readings.
    pub gpus: Vec<GpuId>,
    /// Oldest first.
    pub records: Vec<Record>,
}

#[derive(Clone)]
pub struct Telemetry {
    inner: Arc<Mutex<Inner>>,
    watchers: broadcast::Sender<Arc<Update>>,
}

#[derive(Default)]
struct Inner {
    nodes: HashMap<NodeId, ring::Node>,
    /// Of the newest sample of all.
    number: u64,
    counts: Counts,
    /// There were too many nodes; said once.
    full: bool,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry { inner: Arc::default(), watchers: broadcast::Sender::new(WATCH) }
    }
}

impl Telemetry {
    pub fn latest(&self, node: &NodeId) -> Option<NodeSample> {
        // It was read when it came. Reading it again holds up nobody else.
        let frame = self.lock().nodes.get(node)?.newest().ok()?;
        NodeSample::from_frame(&frame).ok()
    }

    /// How far a node's clock is ahead of this one, in milliseconds, as the node measured it last.
    pub fn clock_ahead_ms(&self, node: &NodeId) -> Option<i64> {
        let ahead_ms = self.lock().nodes.get(node)?.totals?.clock_offset_ms?;
        Some(ahead_ms.clamp(-FARTHEST_CLOCK_MS, FARTHEST_CLOCK_MS))
    }

    pub fn counts(&self, node: &NodeId) -> Option<Counts> {
        Some(self.lock().nodes.get(node)?.counts)
    }

    /// Of all nodes together, those that are gone among them.
    pub fn all_counts(&self) -> Counts {
        self.lock().counts
    }

    /// Samples from `since_ms` on: every one, at most two minutes, or averages of [`COARSE_MS`], at
    /// most an hour.
    pub fn history(&self, node: &NodeId, since_ms: u64, averages: bool) -> Option<History> {
        let inner = self.lock();
        let node = inner.nodes.get(node)?;
        let records = if averages { node.coarse(since_ms) } else { node.fine(since_ms) };
        Some(History { gpus: node.gpus().to_vec(), records })
    }

    /// What a watcher that knows everything up to `number` has missed, at most [`MAX_MISSED`]
    /// samples, and the number up to which it then knows everything. Without a number: the newest
    /// sample of each node.
    pub fn missed(&self, number: Option<u64>) -> (Vec<(NodeId, History)>, u64) {
        let inner = self.lock();
        let number = number.map(|number| number.max(inner.number.saturating_sub(MAX_MISSED)));
        let of_node = |(id, node): (&NodeId, &ring::Node)| {
            let newer = match number {
                Some(number) => node.after(number),
                None => node.newest_record().into_iter().collect(),
            };
            let history = History { gpus: node.gpus().to_vec(), records: newer };
            (!history.records.is_empty()).then(|| (id.clone(), history))
        };
        (inner.nodes.iter().filter_map(of_node).collect(), inner.number)
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Update>> {
        self.watchers.subscribe()
    }

    /// Forgets the nodes that `keep` does not let through.
    pub fn retain(&self, keep: impl Fn(&NodeId) -> bool) {
        let mut inner = self.lock();
        inner.nodes.retain(|id, _| keep(id));
        inner.nodes.shrink_to_fit();
    }

    /// Keeps the sample of a frame that came at `now_ms`.
    ///
    /// # Errors
    /// The frame holds no sample.
    pub fn record(&self, id: &NodeId, frame: &Frame, now_ms: u64) -> Result<(), WireError> {
        let sample = NodeSample::from_frame(frame)?;
        let totals = Totals::of(&sample);
        let mut inner = self.lock();
        let Inner { nodes, number, counts, full } = &mut *inner;
        let room = nodes.len() < MAX_NODES;
        let node = match nodes.get_mut(id) {
            Some(node) => node,
            None if room => nodes.entry(id.clone()).or_default(),
            None => {
                if !std::mem::replace(full, true) {
                    tracing::warn!(most = MAX_NODES, "samples of further nodes are not kept");
                }
                return Ok(());
            }
        };
        let before = node.totals.replace(totals);
        node.replace_newest(frame);
        for counts in [&mut node.counts, &mut *counts] {
            counts.received += 1;
            counts.dropped += u64::from(sample.dropped);
        }
        if before.is_some() && now_ms.abs_diff(node.received_ms) < LEAST_GAP_MS {
            node.counts.hasty += 1;
            counts.hasty += 1;
            return Ok(());
        }
        node.received_ms = now_ms;
        let mut time_ms = sample.wall_ms;
        if time_ms.abs_diff(now_ms) > MAX_SKEW_MS {
            if node.counts.untimely == 0 {
                let ahead_ms = i128::from(time_ms) - i128::from(now_ms);
                tracing::warn!(node = %id, ahead_ms, "the node's samples carry a wrong time");
            }
            node.counts.untimely += 1;
            counts.untimely += 1;
            time_ms = now_ms;
        }
        let reading = Reading::of(&sample, &totals, before.as_ref());
        *number += 1;
        let gpus: Vec<_> = sample.gpus.iter().map(|gpu| &gpu.uuid).zip(&reading.gpus).collect();
        node.push(*number, time_ms, sample.dropped, reading.host, &gpus);
        if self.watchers.receiver_count() > 0 {
            let (number, node, dropped) = (*number, id.clone(), sample.dropped);
            let update = Update { number, node, time_ms, dropped, reading, sample };
            // Sent below the lock, so that watchers see numbers in their order. The last watcher
            // may have left just now, which is no error.
            let _ = self.watchers.send(Arc::new(update));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next sample from a telemetry stream; false when it has ended.
    pub async fn receive(
        &self,
        node: &NodeId,
        stream: &mut FrameReceiver,
    ) -> Result<bool, TransportError> {
        let Some(frame) = stream.receive().await? else { return Ok(false) };
        self.record(node, &frame, Timestamp::now().wall_ms)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gangline_common::wire::v1::HostSample;

    fn sample(wall_ms: u64, dropped: u32) -> Frame {
        let host = HostSample { cpu_busy_pct: Some(50.0), ..HostSample::default() };
        let (gpus, ports, collectors) = (Vec::new(), Vec::new(), Vec::new());
        let sample =
            NodeSample { wall_ms, dropped, interval_ms: 1000, host, gpus, ports, collectors };
        sample.to_frame().unwrap()
    }

    fn id(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn times(telemetry: &Telemetry, node: &str) -> Vec<u64> {
        let history = telemetry.history(&id(node), 0, false).unwrap_or_default();
        history.records.iter().map(|record| record.time_ms).collect()
    }

    #[test]
    fn a_sample_of_the_future_has_the_time_at_which_it_came() {
        let telemetry = Telemetry::default();
        let now = 1_000_000;
        telemetry.record(&id("n-1"), &sample(now + 4_000, 0), now).unwrap();
        telemetry.record(&id("n-1"), &sample(now + 3_600_000, 0), now + 1_000).unwrap();
        telemetry.record(&id("n-1"), &sample(0, 3), now + 2_000).unwrap();
        assert_eq!(times(&telemetry, "n-1"), [now + 4_000, now + 1_000, now + 2_000]);
        let counts = telemetry.counts(&id("n-1")).unwrap();
        assert_eq!(counts, Counts { received: 3, dropped: 3, hasty: 0, untimely: 2 });
    }

    #[test]
    fn who_sends_too_often_fills_no_ring() {
        let telemetry = Telemetry::default();
        let mut watcher = telemetry.subscribe();
        for ms in 0..1_000 {
            telemetry.record(&id("n-1"), &sample(50_000 + ms, 0), 50_000 + ms).unwrap();
        }
        assert_eq!(times(&telemetry, "n-1"), [50_000, 50_250, 50_500, 50_750]);
        assert_eq!(telemetry.counts(&id("n-1")).unwrap().hasty, 996);
        // The newest is shown all the same.
        assert_eq!(telemetry.latest(&id("n-1")).unwrap().wall_ms, 50_999);
        let numbers: Vec<u64> =
            std::iter::from_fn(|| Some(watcher.try_recv().ok()?.number)).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
    }

    #[test]
    fn what_was_missed_comes_from_the_ring() {
        let telemetry = Telemetry::default();
        for (number, node) in ["n-1", "n-2", "n-1", "n-2", "n-1"].into_iter().enumerate() {
            let now = 1_000_000 + 1_000 * number as u64;
            telemetry.record(&id(node), &sample(now, 0), now).unwrap();
        }
        let numbers = |number| {
            let (missed, newest) = telemetry.missed(number);
            let all = missed.iter().flat_map(|(_, history)| &history.records);
            let mut all: Vec<u64> = all.map(|record| record.number).collect();
            all.sort_unstable();
            (all, newest)
        };
        assert_eq!(numbers(Some(2)), (vec![3, 4, 5], 5));
        assert_eq!(numbers(Some(5)), (vec![], 5));
        assert_eq!(numbers(None), (vec![4, 5], 5));
        telemetry.retain(|node| node.as_str() == "n-2");
        assert_eq!(numbers(None), (vec![4], 5));
        assert_eq!(telemetry.all_counts().received, 5, "a counter does not go back");
        assert!(telemetry.latest(&id("n-1")).is_none());
    }
}
