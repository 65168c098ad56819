//! What operators do with nodes: they take them out of use, by a cordon (no new member comes) or a
//! drain (the same, and from a deadline on what still runs there goes back to the queue), and back
//! into use; and they give them labels.

use std::sync::Arc;

use gangline_common::ids::{GangId, JobId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::credential::Principal;
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;
use super::gang::GangState;
use super::job::Outcome;
use super::node::{Cordon, Drain, Lifecycle, Node};
use super::nodes::note;
use super::notices::About;
use super::planted::{Planted, is_planted};

/// Labels that operators may give to one node.
pub const NODE_LABEL_LIMIT: usize = 64;

/// What an operator wants of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Maintenance {
    Cordon {
        why: String,
    },
    Drain {
        why: String,
        /// From now; without it what runs there may run to its end.
        deadline_ms: Option<u64>,
    },
    /// Neither any more.
    Resume,
}

impl Core {
    pub(super) fn on_maintain_node(
        &mut self,
        request: RequestId,
        id: &NodeId,
        wanted: Maintenance,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else {
            return Core::reject(request, Rejected::NoSuchNode, out);
        };
        let mut node = Node::clone(node);
        let by = actor.user.clone();
        let (action, word, detail) = match wanted {
            Maintenance::Cordon { why } => {
                node.cordon = Some(Cordon { by: by.clone(), why: why.clone() });
                ("node.cordon", "cordoned", why)
            }
            Maintenance::Drain { why, deadline_ms } => {
                node.lifecycle = Lifecycle::Draining;
                let detail = match deadline_ms {
                    Some(ms) => format!("within {} s: {why}", ms / 1000),
                    None => why.clone(),
                };
                node.drain = Some(Drain { by: by.clone(), why, since: now, deadline_ms });
                ("node.drain", "draining", detail)
            }
            Maintenance::Resume => {
                node.cordon = None;
                node.drain = None;
                node.lifecycle = match node.inventory {
                    Some(_) => Lifecycle::Online,
                    None => Lifecycle::Pending,
                };
                self.clear_health(&mut node, out);
                // Whoever puts it back has looked at it.
                node.doubt = None;
                ("node.resume", "resumed", String::new())
            }
        };
        if word == "resumed" {
            self.forgive(&node.id);
        }
        note(&mut node, now, word, &by, detail.clone());
        self.audit(actor, action, format!("node {}", node.name), &detail, now, out);
        let reason = [format!("by {by}"), detail].join(": ");
        let kind = ["node", word].join(".");
        self.tell(&kind, About::Node(&node), reason.trim_end_matches(": "), now, out);
        match is_planted(Planted::CordonNotStored) {
            true => self.restore(Write::Node(Arc::new(node))),
            false => self.put(Write::Node(Arc::new(node)), out),
        }
        self.ask_for_scheduling();
        out.replies.push((request, Answer::Done));
    }

    /// Gives labels, or takes back those that operators gave (`None`), so that the agent's of the same
    /// key shows again. Only later placements see it.
    pub(super) fn on_label_node(
        &mut self,
        request: RequestId,
        id: &NodeId,
        labels: Vec<(String, Option<String>)>,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else {
            return Core::reject(request, Rejected::NoSuchNode, out);
        };
        let mut node = Node::clone(node);
        let mut changes: Vec<String> = Vec::new();
        for (key, value) in labels {
            let before = match &value {
                Some(value) => node.set_labels.insert(key.clone(), value.clone()),
                None => node.set_labels.remove(&key),
            };
            if before != value {
                changes.push(value.map_or(format!("{key}-"), |value| format!("{key}={value}")));
            }
        }
        if node.set_labels.len() > NODE_LABEL_LIMIT {
            return Core::reject(request, Rejected::TooManyLabels { limit: NODE_LABEL_LIMIT }, out);
        }
        if !changes.is_empty() {
            let detail = changes.join(" ");
            note(&mut node, now, "labelled", &actor.user, detail.clone());
            self.audit(actor, "node.label", format!("node {}", node.name), &detail, now, out);
            self.put(Write::Node(Arc::new(node)), out);
            self.ask_for_scheduling();
        }
        out.replies.push((request, Answer::Done));
    }

    /// An operator is about to make a simulated GPU fail. What follows comes from the node itself.
    pub(super) fn on_fault_asked(
        &mut self,
        request: RequestId,
        id: &NodeId,
        fault: &str,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else {
            return Core::reject(request, Rejected::NoSuchNode, out);
        };
        let object = format!("node {}", node.name);
        self.audit(actor, "node.inject", object, fault, now, out);
        out.replies.push((request, Answer::Done));
    }

    /// What still runs on a node whose drain has come to its deadline is stopped politely and goes
    /// on elsewhere.
    pub(super) fn expire_drains(&mut self, now: Timestamp, out: &mut Effects) {
        let due = |node: &Node| {
            let drain = node.drain.as_ref()?;
            let waited = now.boot_ms.saturating_sub(drain.since.boot_ms);
            let due = drain.deadline_ms.is_some_and(|deadline| waited >= deadline);
            due.then(|| (drain.by.clone(), format!("{} was drained: {}", node.name, drain.why)))
        };
        let mut ends: Vec<(JobId, String, String)> = Vec::new();
        for (id, node) in &self.nodes {
            let Some((by, cause)) = due(node) else { continue };
            let gangs = self.on_node.get(id).into_iter().flatten();
            let runs = |id: &&GangId| {
                self.gangs.get(*id).is_some_and(|gang| {
                    matches!(gang.state, GangState::Starting | GangState::Ready)
                })
            };
            let jobs = gangs.filter(runs).filter_map(|id| Some(self.gangs.get(id)?.job.clone()));
            ends.extend(jobs.map(|job| (job, by.clone(), cause.clone())));
        }
        for (job, by, cause) in ends {
            let outcome = Outcome::Preempted { cause, keeps_nodes: true };
            self.end_attempt(&job, outcome, &by, now, out);
        }
    }
}
