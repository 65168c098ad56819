//! What the ends of attempts say of the nodes that they ran on.
//!
//! An attempt that the fleet is to blame for adds doubt about the node that ended it, or a little about
//! each of its nodes when nobody knows which one it was; one that ends well takes doubt away, and so
//! does time. Doubt decides nothing alone: of nodes that would do equally well, the doubted are taken
//! last, and after them those whose health is degraded.

use std::sync::Arc;

use gangline_common::ids::NodeId;
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::gang::Gang;
use super::health::Level;
use super::node::{Node, Reachability};
use super::recovery::{Again, Cause, Verdict};

/// After this long, doubt counts half.
pub const HALF_LIFE_MS: u64 = 24 * 3_600_000;
/// Thousandths that an attempt adds for the node that it was found to have ended by,
pub const BLAMED: u32 = 1000;
/// and for each of its nodes when that is not known.
pub const SUSPECTED: u32 = 250;
/// Doubt is never more than this.
pub const MOST: u32 = 8000;
/// Less than this is forgotten.
const LEAST: u32 = 50;
/// Doubt from which a node is taken later, and from which still later.
const STEPS: [u32; 2] = [500, 2000];
/// Longest reason, in characters.
const REASON: usize = 300;

/// What there is against a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Thousandths, worth so much at `at`.
    pub milli: u32,
    pub at: Timestamp,
    /// The newest thing that was held against it.
    pub why: String,
}

impl Doubt {
    /// Thousandths at a later time.
    pub fn at(&self, now: Timestamp) -> u32 {
        let half_lives = now.ms_since(self.at) as f64 / HALF_LIFE_MS as f64;
        (f64::from(self.milli) * (-half_lives).exp2()) as u32
    }

    fn step(&self, now: Timestamp) -> u8 {
        let now = self.at(now);
        STEPS.iter().filter(|step| now >= **step).count() as u8
    }
}

/// How late a node is taken among those that would do equally well; 0 is first.
pub(super) type Lateness = u8;

impl Node {
    /// Some condition says that it does its work badly, and none that it must do none.
    pub fn is_degraded(&self) -> bool {
        self.standing().any(|condition| condition.level == Level::Degraded)
    }
}

impl Core {
    /// See [`Lateness`]; as of the last time that time was looked at.
    pub(super) fn lateness(&self, node: &Node) -> Lateness {
        let doubted = self.doubted.get(&node.id).copied().unwrap_or_default();
        let degraded = if node.is_degraded() { STEPS.len() as u8 + 1 } else { 0 };
        doubted + degraded
    }

    /// Why a node is taken late, as people read it.
    pub(super) fn held_against(&self, id: &NodeId) -> String {
        let Some(node) = self.nodes.get(id) else { return String::new() };
        let degraded = node.standing().find(|condition| condition.level == Level::Degraded);
        let degraded = degraded.map(|condition| format!("degraded: {}", condition.sentence()));
        let doubted = node.doubt.as_ref().map(|doubt| doubt.why.clone());
        degraded.into_iter().chain(doubted).collect::<Vec<_>>().join("; ")
    }

    /// An attempt was looked into: what that says of its nodes.
    pub(super) fn doubt_after(
        &mut self,
        gang: &Gang,
        verdict: &Verdict,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let of_gang = gang.nodes();
        let is_lost = |id: &&NodeId| {
            // One that has not come back since this process began is not lost for that.
            let node = self.nodes.get(*id);
            node.is_some_and(|node| node.revoked || node.reachability == Reachability::Lost)
        };
        let (blamed, milli) = match (&verdict.node, verdict.again) {
            (Some(node), Again::After(_) | Again::Always) => (vec![node.clone()], BLAMED),
            (None, Again::After(Cause::NodeLost)) => {
                (of_gang.iter().filter(is_lost).cloned().collect(), BLAMED)
            }
            (None, Again::After(Cause::Hardware | Cause::NcclTimeout | Cause::Ray)) => {
                (of_gang, SUSPECTED)
            }
            // What everybody shares, what was asked for, and what a user can mend.
            (None, Again::After(Cause::Storage | Cause::Rendezvous | Cause::Preempted))
            | (None, Again::Always)
            | (_, Again::Never) => return,
        };
        // Nothing of what its job wrote: everybody may read what is held against a node.
        let why = format!("an attempt failed here: {} ({})", verdict.category, verdict.sub_code);
        for node in blamed {
            if milli == BLAMED {
                self.confirm_by_attempt(&node, &why, out);
            }
            self.doubt(&node, milli, &why, now, out);
        }
    }

    /// Holds something against a node.
    pub(super) fn doubt(
        &mut self,
        id: &NodeId,
        milli: u32,
        why: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else { return };
        let before = node.doubt.as_ref().map_or(0, |doubt| doubt.at(now));
        let milli = before.saturating_add(milli).min(MOST);
        let why = why.chars().take(REASON).collect();
        let doubt = Some(Doubt { milli, at: now, why });
        self.put(Write::Node(Arc::new(Node { doubt, ..Node::clone(node) })), out);
        self.judge_doubt(id, now);
    }

    /// An attempt has ended well: its nodes are doubted half as much.
    pub(super) fn trust_after(&mut self, gang: &Gang, now: Timestamp, out: &mut Effects) {
        for id in gang.nodes() {
            let Some(node) = self.nodes.get(&id) else { continue };
            let Some(doubt) = &node.doubt else { continue };
            let milli = doubt.at(now) / 2;
            let left = Doubt { milli, at: now, why: doubt.why.clone() };
            let doubt = Some(left).filter(|doubt| doubt.milli >= LEAST);
            self.put(Write::Node(Arc::new(Node { doubt, ..Node::clone(node) })), out);
            self.judge_doubt(&id, now);
        }
    }

    /// Doubt that time has taken away.
    pub(super) fn expire_doubt(&mut self, now: Timestamp, out: &mut Effects) {
        if self.doubted.is_empty() {
            return;
        }
        for id in self.doubted.keys().cloned().collect::<Vec<_>>() {
            let node = self.nodes.get(&id);
            let over = node.filter(|node| node.doubt.as_ref().is_some_and(|d| d.at(now) < LEAST));
            if let Some(node) = over {
                self.put(Write::Node(Arc::new(Node { doubt: None, ..Node::clone(node) })), out);
            }
            self.judge_doubt(&id, now);
        }
    }

    /// Takes note of how much a node is doubted now.
    fn judge_doubt(&mut self, id: &NodeId, now: Timestamp) {
        let doubt = self.nodes.get(id).and_then(|node| node.doubt.as_ref());
        let step = doubt.map(|doubt| doubt.step(now));
        let before = match step {
            Some(step) => self.doubted.insert(id.clone(), step),
            None => self.doubted.remove(id),
        };
        if before.unwrap_or_default() != step.unwrap_or_default() {
            self.capacity.mark(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_halves_with_each_day() {
        let now = Timestamp { boot_ms: 5, wall_ms: 5 };
        let doubt = Doubt { milli: 4000, at: now, why: String::new() };
        let after = |days: u64| now.plus_ms(days * HALF_LIFE_MS);
        let left: Vec<u32> = (0..4).map(|days| doubt.at(after(days))).collect();
        assert_eq!(left, [4000, 2000, 1000, 500]);
        let steps: Vec<u8> = (0..5).map(|days| doubt.step(after(days))).collect();
        assert_eq!(steps, [2, 2, 1, 1, 0]);
    }
}
