//! Samples of nodes: a ring per node, and a broadcast to whoever watches.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::ids::NodeId;
use gangline_common::transport::{FrameReceiver, TransportError};
use gangline_common::wire::v1::NodeSample;
use tokio::sync::broadcast;

/// Samples kept per node: two minutes at 1 Hz.
const RING: usize = 120;
/// Samples that a watcher may be behind before it loses the oldest.
const WATCH: usize = 1024;

#[derive(Clone)]
pub struct Telemetry {
    rings: Arc<Mutex<HashMap<NodeId, VecDeque<Arc<NodeSample>>>>>,
    watchers: broadcast::Sender<Arc<(NodeId, NodeSample)>>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry { rings: Arc::default(), watchers: broadcast::Sender::new(WATCH) }
    }
}

impl Telemetry {
    pub fn latest(&self, node: &NodeId) -> Option<Arc<NodeSample>> {
        self.lock().get(node)?.back().cloned()
    }

    /// Oldest first.
    pub fn ring(&self, node: &NodeId) -> Vec<Arc<NodeSample>> {
        self.lock().get(node).map(|ring| ring.iter().cloned().collect()).unwrap_or_default()
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Arc<(NodeId, NodeSample)>> {
        self.watchers.subscribe()
    }

    fn record(&self, node: &NodeId, sample: NodeSample) {
        {
            let mut rings = self.lock();
            let ring = rings.entry(node.clone()).or_default();
            if ring.len() >= RING {
                ring.pop_front();
            }
            ring.push_back(Arc::new(sample.clone()));
        }
        // No watcher is not an error.
        let _ = self.watchers.send(Arc::new((node.clone(), sample)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, VecDeque<Arc<NodeSample>>>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one telemetry stream until it ends.
    pub async fn receive(
        &self,
        node: &NodeId,
        mut stream: FrameReceiver,
    ) -> Result<(), TransportError> {
        while let Some(frame) = stream.receive().await? {
            self.record(node, NodeSample::from_frame(&frame)?);
        }
        Ok(())
    }
}
