//! When a node that gives no word has provably stopped its part of a gang, by the gang's
//! `on_disconnect` policy. Until then, or until its agent or an operator says so, no new attempt
//! of the gang starts and nothing that it holds is given away.
//!
//! The other half of the rule runs beside each member, in its shim. It stops the member when the
//! time of the policy has passed since the newest of
//! - the send time of the newest heartbeat that the coordinator acknowledged, and
//! - under `fence`, the time at which the gang was last seen complete: a rank's node reaches the
//!   head's GCS; on the head's node Ray shows every member alive.
//!
//! What is waited for here begins no earlier than that: the coordinator hears a heartbeat after it
//! was sent; a head that has ended answers nobody; and Ray notices within
//! [`Waits::notice_ms`] that a rank is gone. `coordinator/core/tests/fencing_model.rs` explores
//! both halves together.

/// Without contact and without the sight of a complete gang for this long, a member under `fence`
/// is stopped.
pub const FENCE_AFTER_MS: u64 = 60_000;
/// Ray's health checks take a node that has gone for alive no longer than this: with the values
/// that the agent starts Ray with, about 35 s.
pub const RAY_NOTICE_MS: u64 = 60_000;

/// How long things take at most, in milliseconds (in the model: in ticks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Time of the policy.
    pub after_ms: u64,
    /// Between the polite stop and the forced one.
    pub grace_ms: u64,
    /// Until Ray's head shows a node as dead that has gone.
    pub notice_ms: u64,
}

impl Waits {
    /// The end of a member that begins to count at `from_ms`; a tenth more than it takes.
    fn over_at(self, from_ms: u64) -> u64 {
        let span = self.after_ms.saturating_add(self.grace_ms);
        from_ms.saturating_add(span).saturating_add(span.div_ceil(10))
    }
}

/// What a gang does when it is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Nothing: only evidence of another kind counts.
    Keep,
    /// It stops where it has neither contact nor the sight of a complete gang.
    Fence(Waits),
    /// It stops where it has no contact.
    StopAfter(Waits),
}

/// The part of a gang that one node has, as the coordinator knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The head's process is here.
    pub has_head: bool,
    /// The time of the newest word, when the node is lost.
    pub lost_since_ms: Option<u64>,
    /// When it was known that nothing of the gang is left here.
    pub ended_ms: Option<u64>,
}

/// From when on a place that has not ended is known to have stopped itself; `None` without a
/// witness, or while the node is in contact. In the order of `places`, one per node.
pub fn gone_at(rule: Rule, places: &[Place]) -> Vec<Option<u64>> {
    let each = |gone: &dyn Fn(&Place, u64) -> Option<u64>| {
        let open = |place: &Place| place.lost_since_ms.filter(|_| place.ended_ms.is_none());
        places.iter().map(|place| gone(place, open(place)?)).collect()
    };
    match rule {
        Rule::Keep => places.iter().map(|_| None).collect(),
        Rule::StopAfter(waits) => each(&|_, lost| Some(waits.over_at(lost))),
        Rule::Fence(waits) => {
            let head = head_gone_at(waits, places);
            each(&|place, lost| {
                let gone = head?;
                // On the head's own node it is the head that sees, and all there stop together.
                let gone = if place.has_head { gone } else { waits.over_at(gone.max(lost)) };
                Some(gone)
            })
        }
    }
}

/// When the head's node has ended, or has stopped itself because another member is gone.
fn head_gone_at(waits: Waits, places: &[Place]) -> Option<u64> {
    let head = places.iter().find(|place| place.has_head)?;
    if head.ended_ms.is_some() {
        return head.ended_ms;
    }
    let lost = head.lost_since_ms?;
    // One that has ended is enough to make the gang incomplete.
    let witness = places.iter().filter(|place| !place.has_head).filter_map(|p| p.ended_ms).min()?;
    Some(waits.over_at(witness.saturating_add(waits.notice_ms).max(lost)))
}
