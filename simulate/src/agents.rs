//! The agents of the fleet: perfect ones. What they are told to run runs at once, what they are told
//! to stop stops at once, and every report is the whole truth.

use std::collections::BTreeMap;

use gangline_common::ids::{Epoch, GangId, Generation, MemberId, MemberKey, NodeId};
use gangline_core::effect::{Desired, Push};
use gangline_core::event::{CheckpointWord, Event, Report};
use gangline_core::gang::{End, EndHow, Phase};

use crate::fleet::{Fleet, node_id, session_of};

/// A member on its node.
#[derive(Debug)]
struct Held {
    key: MemberKey,
    phase: Phase,
    gpus: u32,
    /// When it made its newest training checkpoint.
    saved_ms: Option<u64>,
}

#[derive(Debug)]
struct Agent {
    id: NodeId,
    session: u64,
    held: Generation,
    gpus: u32,
    used: u32,
    members: Vec<Held>,
}

/// All agents, and what their GPUs do.
#[derive(Debug)]
pub(crate) struct Agents {
    agents: Vec<Agent>,
    by_node: BTreeMap<NodeId, usize>,
    /// GPUs that members hold.
    pub busy: u64,
    /// Free GPUs on nodes that are partly in use.
    pub scattered: u64,
}

/// What a push has changed on a node.
#[derive(Debug)]
pub(crate) struct Change {
    pub gang: GangId,
    pub epoch: Epoch,
    pub node: usize,
    pub gpus: u32,
    pub kind: ChangeKind,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Started,
    Stopped,
}

impl Agents {
    pub fn new(fleet: &Fleet) -> Agents {
        let agent = |(index, spec): (usize, &crate::NodeSpec)| {
            Some(Agent {
                id: node_id(index)?,
                session: session_of(index),
                held: Generation::default(),
                gpus: spec.gpus,
                used: 0,
                members: Vec::new(),
            })
        };
        let agents: Vec<Agent> = fleet.nodes().iter().enumerate().filter_map(agent).collect();
        let by_node = agents.iter().enumerate().map(|(at, agent)| (agent.id.clone(), at));
        Agents { by_node: by_node.collect(), agents, busy: 0, scattered: 0 }
    }

    /// Takes a node's whole desired state. The changes are empty when there is nothing to report.
    pub fn handle_push(&mut self, push: Push) -> Vec<Change> {
        let mut changes = Vec::new();
        let Some(&at) = self.by_node.get(&push.node) else { return changes };
        let Some(agent) = self.agents.get_mut(at) else { return changes };
        if push.generation < agent.held {
            return changes;
        }
        agent.held = push.generation;
        let before = agent.used;
        agent.members.retain(|held| {
            held.phase.holds_resources() || push.gangs.iter().any(|gang| names(gang, &held.key))
        });
        for desired in &push.gangs {
            match desired {
                Desired::Run { gang, .. } => {
                    for (member, share) in gang.members_on(&push.node) {
                        let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member };
                        if agent.members.iter().any(|held| held.key == key) {
                            continue;
                        }
                        let gpus = share.gpus.len() as u32;
                        changes.push(change(&key, at, gpus, ChangeKind::Started));
                        agent.used += gpus;
                        agent.members.push(Held {
                            key,
                            phase: Phase::Running { pid: 1 },
                            gpus,
                            saved_ms: None,
                        });
                    }
                }
                Desired::Stop { gang, epoch, .. } => {
                    for held in &mut agent.members {
                        let meant = held.key.gang == *gang && held.key.epoch <= *epoch;
                        if !meant || !held.phase.holds_resources() {
                            continue;
                        }
                        agent.used -= held.gpus;
                        held.phase = Phase::Ended(end(EndHow::Signalled { signal: 15 }, true));
                        changes.push(change(&held.key, at, held.gpus, ChangeKind::Stopped));
                    }
                }
            }
        }
        let after = agent.used;
        self.recount(at, before, after);
        changes
    }

    /// The processes of a gang on this node have finished well.
    pub fn finish(&mut self, at: usize, gang: &GangId) {
        let Some(agent) = self.agents.get_mut(at) else { return };
        let before = agent.used;
        for held in agent.members.iter_mut().filter(|held| held.key.gang == *gang) {
            if held.phase.holds_resources() {
                agent.used -= held.gpus;
                held.phase = Phase::Ended(end(EndHow::Exited { code: 0 }, false));
            }
        }
        let after = agent.used;
        self.recount(at, before, after);
    }

    /// The gang has made a training checkpoint. True on the node that says so: rank 0's.
    pub fn save(&mut self, at: usize, gang: &GangId, now_ms: u64) -> bool {
        let held = self.agents.get_mut(at).into_iter().flat_map(|agent| &mut agent.members);
        let mut ours = held.filter(|held| held.key.gang == *gang && held.phase.holds_resources());
        let first = ours.find(|held| held.key.member == MemberId::Rank(0));
        let speaks = first.is_some();
        if let Some(held) = first {
            held.saved_ms = Some(now_ms);
        }
        speaks
    }

    /// The truth of one node.
    pub fn report(&self, at: usize, now_ms: u64) -> Option<Event> {
        let agent = self.agents.get(at)?;
        let members = agent.members.iter().map(|held| (held.key.clone(), held.phase.clone()));
        let saved = agent.members.iter().filter_map(|held| Some((held, held.saved_ms?)));
        let checkpoints = saved.map(|(held, saved_ms)| CheckpointWord {
            key: held.key.clone(),
            name: format!("checkpoint-{saved_ms}"),
            age_ms: now_ms.saturating_sub(saved_ms),
        });
        let report = Report {
            held: agent.held,
            members: members.collect(),
            gangs: Vec::new(),
            guests: Vec::new(),
            checkpoints: checkpoints.collect(),
            saved: Vec::new(),
            usage: Vec::new(),
        };
        Some(Event::Reported { node: agent.id.clone(), session: agent.session, report })
    }

    fn recount(&mut self, at: usize, before: u32, after: u32) {
        let Some(agent) = self.agents.get(at) else { return };
        let scattered = |used: u32| if used == 0 { 0 } else { u64::from(agent.gpus - used) };
        self.busy = self.busy + u64::from(after) - u64::from(before);
        self.scattered = self.scattered + scattered(after) - scattered(before);
    }
}

fn names(desired: &Desired, key: &MemberKey) -> bool {
    match desired {
        Desired::Run { gang, .. } => gang.id == key.gang && gang.epoch == key.epoch,
        Desired::Stop { gang, epoch, .. } => *gang == key.gang && key.epoch <= *epoch,
    }
}

fn change(key: &MemberKey, node: usize, gpus: u32, kind: ChangeKind) -> Change {
    Change { gang: key.gang.clone(), epoch: key.epoch, node, gpus, kind }
}

fn end(how: EndHow, asked: bool) -> End {
    End { how, asked, last_output: String::new(), logs_complete: true }
}
