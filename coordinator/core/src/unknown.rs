//! Gangs that agents run and this store does not know, because it was restored from an older copy
//! (F46): they are shown, they run on, and nothing is started beside them.

use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_common::ids::{GangId, MemberKey, NodeId};

use super::Core;
use super::effect::{Effects, Seen};
use super::node::Node;

impl Core {
    /// Takes over what a node has reported.
    pub(super) fn note_unknown(
        &mut self,
        id: &NodeId,
        unknown: BTreeSet<MemberKey>,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.unknown == unknown {
            return;
        }
        let gone: Vec<GangId> =
            node.unknown.difference(&unknown).map(|key| key.gang.clone()).collect();
        for key in &unknown {
            self.unknown_on.entry(key.gang.clone()).or_default().insert(id.clone());
        }
        for gang in gone.iter().filter(|gang| !unknown.iter().any(|key| key.gang == **gang)) {
            if let Some(nodes) = self.unknown_on.get_mut(gang) {
                nodes.remove(id);
                if nodes.is_empty() {
                    self.unknown_on.remove(gang);
                }
            }
        }
        Arc::make_mut(node).unknown = unknown;
        out.saw(Seen::Node(node.clone()));
        self.capacity.mark(id);
        self.ask_for_scheduling();
    }

    /// Why an attempt on `gang` must not start: an incarnation runs that this store has never seen, and
    /// two would write the same training checkpoints.
    pub(super) fn runs_unknown(&self, gang: &GangId) -> Option<String> {
        let nodes: Vec<NodeId> = self.unknown_on.get(gang)?.iter().cloned().collect();
        let names = self.node_names(&nodes);
        Some(format!("runs already on {names}, started after the copy that this store is of"))
    }
}

impl Node {
    /// Why its unknown members keep new ones away: what they hold is not known.
    pub(super) fn unknown_text(&self) -> Option<String> {
        match self.unknown.len() {
            0 => None,
            count => Some(format!("{count} member(s) that this store does not know run there")),
        }
    }
}
