//! Nodes that have refused to start a gang because the check before the start found them unfit. The gang
//! loses no attempt and gets other nodes; so that it is not sent to the same ones again and again, they
//! get nothing new for a while.
//!
//! What is wrong with such a node need not be a condition that stands: its readings may only have been
//! too old to say that nothing is.

use gangline_common::ids::NodeId;
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::Effects;
use super::gang::{EndHow, Phase};
use super::reputation::SUSPECTED;

/// A node that has refused a start is left alone for so long.
pub const REFUSED_MS: u64 = 60_000;

/// Why a node refused, and when on the boot clock.
#[derive(Debug, Clone)]
pub(super) struct Refused {
    since_ms: u64,
    why: String,
}

impl Core {
    /// Takes note of how a member has ended on a node.
    pub(super) fn note_refusal(
        &mut self,
        node: &NodeId,
        phase: &Phase,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Phase::Ended(end) = phase else { return };
        let EndHow::Unfit { reason } = &end.how else { return };
        let why = format!("refused to start a gang: {reason}");
        self.doubt(node, SUSPECTED, &why, now, out);
        self.refused.insert(node.clone(), Refused { since_ms: now.boot_ms, why });
        self.capacity.mark(node);
    }

    /// Why a node that has refused takes no new member yet.
    pub(super) fn refused_text(&self, node: &NodeId) -> Option<String> {
        let seconds = REFUSED_MS / 1000;
        self.refused.get(node).map(|refused| format!("{}; left alone for {seconds} s", refused.why))
    }

    /// Nodes that may be asked again.
    pub(super) fn expire_refusals(&mut self, now: Timestamp) {
        let is_over =
            |refused: &Refused| now.boot_ms.saturating_sub(refused.since_ms) >= REFUSED_MS;
        let over = self.refused.iter().filter(|(_, refused)| is_over(refused));
        for node in over.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.forgive(&node);
        }
    }

    /// A node may be asked again.
    pub(super) fn forgive(&mut self, node: &NodeId) {
        if self.refused.remove(node).is_some() {
            self.capacity.mark(node);
            self.ask_for_scheduling();
        }
    }
}
