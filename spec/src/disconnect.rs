//! What a gang does on a node that has lost contact with the coordinator.

use std::time::Duration;

use crate::job::JobSpec;

/// `on_disconnect` of a spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    /// The members of the node stop when it had no contact and saw its gang incomplete for a
    /// minute. A gang without a witness keeps running, see [`JobSpec::keeps_on_disconnect`].
    #[default]
    Fence,
    /// They never stop by themselves.
    Keep,
    /// They stop when the last contact is this long ago.
    StopAfter(Duration),
}

/// The policies that are one word.
pub(crate) const DISCONNECT_WORDS: [&str; 2] = ["fence", "keep"];

impl OnDisconnect {
    /// The policy of a word, by its place in [`DISCONNECT_WORDS`].
    pub(crate) fn from_word(index: usize) -> Self {
        if index == 0 { Self::Fence } else { Self::Keep }
    }
}

impl JobSpec {
    /// Whether `fence` means `keep` for this gang: no other node could bear witness that the one
    /// that is cut off has stopped. True for one node, and for a launcher that starts no Ray.
    #[must_use]
    pub fn keeps_on_disconnect(&self) -> bool {
        self.on_disconnect == OnDisconnect::Fence
            && (self.resources.nnodes < 2 || !self.launcher.kind.starts_ray())
    }
}
