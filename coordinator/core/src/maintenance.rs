//! Nodes that an operator takes out of use: cordoned (no new member comes), drained (the same, and
//! from a deadline on what still runs there goes back to the queue), and taken back.

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
                ("node.resume", "resumed", String::new())
            }
        };
        note(&mut node, now, word, &by, detail.clone());
        self.audit(actor, action, format!("node {}", node.name), &detail, now, out);
        self.put(Write::Node(Arc::new(node)), out);
        self.ask_for_scheduling();
        out.replies.push((request, Answer::Done));
    }

    /// What still runs on a node whose drain has come to its deadline is stopped politely and goes
    /// back to its place in the queue.
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
            self.end_attempt(&job, Outcome::Preempted { cause }, &by, now, out);
        }
    }
}
