//! The end of members whose agents do not say it: what counts as evidence, and what follows.
//!
//! A node that gives no word keeps what it holds until it has provably stopped by itself
//! (`fencing`), has come back as another incarnation, or an operator forces it. What is given up
//! so is stopped all the same when the node is back.

use std::sync::Arc;

use gangline_common::ids::{GangId, MemberId, MemberKey, NodeId};
use gangline_common::time::Timestamp;

use super::credential::Principal;
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::{Report, RequestId};
use super::fencing::{FENCE_AFTER_MS, Place, RAY_NOTICE_MS, Rule, Waits, gone_at};
use super::gang::{End, EndHow, Gang, GangState, Phase};
use super::job::{Job, JobState, OnDisconnect, Outcome};
use super::node::{Node, Reachability};
use super::nodes::note;
use super::notices::About;
use super::{Core, QUARANTINE_MS, Quarantine};

/// A core that was not asked for longer than this may have missed words that were answered; every
/// silence begins anew then.
pub(super) const PAUSE_MS: u64 = 2_000;

/// A node whose word is missing for the end of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    pub node: NodeId,
    /// What is known of it, and what would help: a sentence for people.
    pub text: String,
}

impl Core {
    /// Looks at every gang with members on lost nodes.
    pub(super) fn expire_silence(&mut self, now: Timestamp, out: &mut Effects) {
        let gangs = self.gangs_with_lost_nodes();
        self.ends_seen.retain(|(gang, _), _| gangs.contains(gang));
        for id in gangs {
            self.note_ends(&id, now);
            self.guard_head_ports(&id, now);
            self.fail_broken(&id, now, out);
            for node in self.provably_gone(&id, now) {
                let why = self.stopped_by_policy(&id);
                self.give_up(&id, &node, &why, "gangline", now, out);
            }
            self.say_what_is_missing(&id, out);
        }
    }

    fn gangs_with_lost_nodes(&self) -> Vec<GangId> {
        let lost = self.nodes.values().filter(|node| is_lost(node));
        let mut gangs: Vec<GangId> = lost
            .filter_map(|node| Some((node, self.on_node.get(&node.id)?)))
            .flat_map(|(node, gangs)| gangs.iter().map(move |gang| (&node.id, gang)))
            .filter(|(node, gang)| self.gangs.get(*gang).is_some_and(|gang| holds(gang, node)))
            .map(|(_, gang)| gang.clone())
            .collect();
        gangs.sort();
        gangs.dedup();
        gangs
    }

    /// Remembers when each node of the gang was first seen to have nothing left of it. A core that
    /// has just started sees it then: later than it was, which only lengthens the wait.
    fn note_ends(&mut self, id: &GangId, now: Timestamp) {
        let Some(gang) = self.gangs.get(id) else { return };
        for node in gang.nodes() {
            if !holds(gang, &node) {
                self.ends_seen.entry((id.clone(), node)).or_insert(now.boot_ms);
            }
        }
    }

    fn rule(&self, gang: &Gang) -> Rule {
        let Some(job) = self.jobs.get(&gang.job) else { return Rule::Keep };
        let waits =
            |after_ms| Waits { after_ms, grace_ms: job.request.grace_ms, notice_ms: RAY_NOTICE_MS };
        match job.request.on_disconnect {
            OnDisconnect::Keep { .. } => Rule::Keep,
            OnDisconnect::Fence => Rule::Fence(waits(FENCE_AFTER_MS)),
            OnDisconnect::StopAfter { ms } => Rule::StopAfter(waits(ms)),
        }
    }

    /// The lost nodes of the gang that have stopped it by themselves.
    fn provably_gone(&self, id: &GangId, now: Timestamp) -> Vec<NodeId> {
        let Some(gang) = self.gangs.get(id) else { return Vec::new() };
        let nodes = gang.nodes();
        let place = |node: &NodeId| {
            let silent = self.nodes.get(node).filter(|node| is_lost(node));
            Place {
                has_head: gang.members_on(node).any(|(member, _)| member == MemberId::Head),
                lost_since_ms: silent.map(|node| node.last_word_ms.max(self.awake_since_ms)),
                ended_ms: self.ends_seen.get(&(id.clone(), node.clone())).copied(),
            }
        };
        let places: Vec<Place> = nodes.iter().map(place).collect();
        let gone = gone_at(self.rule(gang), &places);
        let due =
            nodes.into_iter().zip(gone).filter(|(_, at)| at.is_some_and(|at| at <= now.boot_ms));
        due.map(|(node, _)| node).collect()
    }

    fn stopped_by_policy(&self, id: &GangId) -> String {
        let job = self.gangs.get(id).and_then(|gang| self.jobs.get(&gang.job));
        match job.map(|job| job.request.on_disconnect) {
            Some(OnDisconnect::StopAfter { ms }) => {
                let after = ms / 1000;
                format!("its node gives no word, so it has stopped itself (stop_after {after} s)")
            }
            _ => "its node gives no word and the gang is gone, so it has stopped itself (fence)"
                .to_owned(),
        }
    }

    /// A node that is lost, and dead for Ray as well, never comes back to its gang: whoever it may
    /// still reach, its raylet is turned away. The attempt has failed.
    fn fail_broken(&mut self, id: &GangId, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(id) else { return };
        if !matches!(gang.state, GangState::Starting | GangState::Ready) {
            return;
        }
        let head = gang.members.get(&MemberId::Head).and_then(|head| self.nodes.get(&head.node));
        if head.is_none_or(|node| node.reachability != Reachability::Reachable) {
            return;
        }
        let Some(attempt) = self.attempts.get(&(gang.job.clone(), gang.attempt)) else { return };
        let dead = attempt.ray.iter().flat_map(|ray| &ray.nodes).filter(|node| !node.alive);
        let broken = dead.filter_map(|seen| {
            let node = self.nodes.get(&gang.members.get(&seen.member)?.node)?;
            is_lost(node).then(|| (seen.member, node.name.clone(), seen.state_message.clone()))
        });
        let Some((member, node, said)) = broken.min() else { return };
        let mut cause = format!("{node} is lost, and Ray takes {member} there for dead");
        if !said.is_empty() {
            cause = format!("{cause}: {said}");
        }
        let job = gang.job.clone();
        self.end_attempt(&job, Outcome::Failed { cause }, "gangline", now, out);
    }

    /// Ranks on nodes that may be cut off ask at the head's address whether the gang is whole:
    /// nobody else may answer there.
    pub(super) fn guard_head_ports(&mut self, id: &GangId, now: Timestamp) {
        let Some(gang) = self.gangs.get(id) else { return };
        let Some(head) = gang.members.get(&MemberId::Head) else { return };
        let silent = |node: &NodeId| {
            self.nodes.get(node).is_some_and(|n| n.reachability != Reachability::Reachable)
        };
        let asks = gang.members.values().any(|m| m.phase.holds_resources() && silent(&m.node));
        if head.phase.holds_resources() || !asks {
            return;
        }
        let network = self.nodes.get(&head.node).and_then(|node| node.inventory.as_ref());
        let Some(network) = network.map(|inventory| inventory.network()) else { return };
        let (block, until_ms) = (head.ports, now.boot_ms + QUARANTINE_MS);
        let known = self.quarantine.iter_mut().find(|q| q.network == network && q.block == block);
        match known {
            Some(quarantine) => quarantine.until_ms = until_ms,
            None => self.quarantine.push(Quarantine { network, block, until_ms }),
        }
    }

    /// Takes what a node has of a gang for ended, without the word of its agent.
    fn give_up(
        &mut self,
        id: &GangId,
        node: &NodeId,
        why: &str,
        actor: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(gang) = self.gangs.get(id).cloned() else { return };
        let Some(known) = self.nodes.get(node) else { return };
        let mut known = Node::clone(known);
        let epoch = gang.epoch;
        let stop = known.stops.entry(id.clone()).or_insert(epoch);
        *stop = epoch.max(*stop);
        note(&mut known, now, "gave up", actor, format!("{}: {why}", gang.job));
        self.put(Write::Node(Arc::new(known)), out);
        for (member, state) in gang.members_on(node) {
            if !state.phase.holds_resources() {
                continue;
            }
            let end = End {
                how: EndHow::GivenUp { reason: why.to_owned() },
                asked: gang.state == GangState::Stopping,
                last_output: String::new(),
                logs_complete: true,
            };
            let key = MemberKey { gang: id.clone(), epoch, member };
            self.apply_phase(&key, Phase::Ended(end), now, out);
        }
        self.touch_nodes(std::slice::from_ref(node), out);
        self.evaluate(id, now, out);
    }

    /// The same for everything that a node has.
    pub(super) fn give_up_node(
        &mut self,
        node: &NodeId,
        why: &str,
        actor: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        for id in self.held_on(node) {
            self.give_up(&id, node, why, actor, now, out);
        }
    }

    fn held_on(&self, node: &NodeId) -> Vec<GangId> {
        let gangs = self.on_node.get(node).into_iter().flatten();
        let held = gangs.filter(|id| self.gangs.get(*id).is_some_and(|gang| holds(gang, node)));
        held.cloned().collect()
    }

    /// An operator answers for it that nothing of the node runs any more.
    pub(super) fn on_force_release(
        &mut self,
        request: RequestId,
        id: &NodeId,
        reason: &str,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else {
            return Core::reject(request, Rejected::NoSuchNode, out);
        };
        if !is_lost(node) {
            return Core::reject(request, Rejected::NodeNotLost, out);
        }
        let held = self.held_on(id);
        if held.is_empty() {
            return Core::reject(request, Rejected::NothingHeld, out);
        }
        let jobs: Vec<String> =
            held.iter().filter_map(|gang| Some(self.gangs.get(gang)?.job.to_string())).collect();
        let detail = format!("{}: {reason}", jobs.join(", "));
        let node = node.clone();
        let name = node.name.clone();
        self.audit(actor, "node.force-release", format!("node {name}"), &detail, now, out);
        // Whoever sees nodes sees this; whose jobs they are is not for all of them.
        let said = format!("by {}: {reason}", actor.user);
        self.tell("node.released", About::Node(&node), &said, now, out);
        let why = format!("released by {} without a word of its node: {reason}", actor.user);
        self.give_up_node(id, &why, &actor.user, now, out);
        self.ask_for_scheduling();
        out.replies.push((request, Answer::Done));
    }

    /// A node that holds its newest desired state and runs nothing of what was given up need not be
    /// told any more.
    pub(super) fn note_stopped(&mut self, id: &NodeId, report: &Report, out: &mut Effects) {
        let Some(node) = self.nodes.get(id) else { return };
        if node.stops.is_empty() || node.generation != report.held {
            return;
        }
        let mut node = Node::clone(node);
        let before = node.stops.len();
        node.stops.retain(|gang, epoch| {
            report.members.iter().any(|(key, phase)| {
                key.gang == *gang && key.epoch <= *epoch && phase.holds_resources()
            })
        });
        if node.stops.len() < before {
            self.put(Write::Node(Arc::new(node)), out);
            self.touch_nodes(std::slice::from_ref(id), out);
        }
    }

    /// The nodes whose word is missing before the job's next attempt may start, or before what the
    /// job held is free; empty when nothing is missing.
    pub fn missing_evidence(&self, gang: &GangId) -> Vec<Missing> {
        let Some(gang) = self.gangs.get(gang).filter(|gang| gang.state == GangState::Stopping)
        else {
            return Vec::new();
        };
        let rule = self.rule(gang);
        let lost = gang.nodes().into_iter().filter(|node| holds(gang, node));
        lost.filter_map(|id| {
            let node = self.nodes.get(&id).filter(|node| is_lost(node))?;
            let name = &node.name;
            let meanwhile = match rule {
                Rule::Keep => "it may run on (on_disconnect: keep, or fence without a witness)",
                Rule::Fence(_) => {
                    "it counts as stopped when a part of the gang that it would have seen has been \
                     gone for long enough (on_disconnect: fence)"
                }
                Rule::StopAfter(_) => {
                    "it counts as stopped when its time and the grace are over \
                     (on_disconnect: stop_after)"
                }
            };
            let text = format!(
                "{name} is lost and has not said that the gang has ended there; {meanwhile}. If \
                 nothing of it can run any more: gangline node force-release {name} --reason TEXT"
            );
            Some(Missing { node: id, text })
        })
        .collect()
    }

    /// A job that waits for such words says so.
    fn say_what_is_missing(&mut self, id: &GangId, out: &mut Effects) {
        let missing = self.missing_evidence(id);
        let job = self.gangs.get(id).and_then(|gang| self.jobs.get(&gang.job)).cloned();
        let (Some(job), false) = (job, missing.is_empty()) else { return };
        let back_to_queue = job.outcome.as_ref().is_some_and(|o| o.terminal_state().is_none());
        if job.state == JobState::Stopping && back_to_queue {
            let texts: Vec<String> = missing.into_iter().map(|missing| missing.text).collect();
            let reason = texts.join("; ");
            if job.reason != reason {
                self.put(Write::Job(Arc::new(Job { reason, ..Job::clone(&job) })), out);
            }
        }
    }
}

fn is_lost(node: &Node) -> bool {
    node.reachability == Reachability::Lost
}

/// Whether processes of the gang may exist on the node.
fn holds(gang: &Gang, node: &NodeId) -> bool {
    gang.members_on(node).any(|(_, member)| member.phase.holds_resources())
}
