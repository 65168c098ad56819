//! Between the words of the wire and those of the core. The core knows neither the wire nor the
//! content of an assignment; this file is where both are known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, Generation, MemberKey};
use gangline_common::tls::sha256;
use gangline_common::wire::v1::{self, Assignment, Ended, EndedHow, MemberState};
use gangline_common::wire::{WireError, codec};

use crate::core::Core;
use crate::core::assignment::{
    DesiredSet, Digest, GangOrder, Member, MemberOrder, Order, Phase, Refusal, RunOrder,
};
use crate::core::event::MemberChange;
use crate::supervisor::{Saved, TrainingCheckpoint};

/// Assignments by incarnation: what the core decides about without reading it.
pub type Assignments = BTreeMap<(GangId, Epoch), Arc<Assignment>>;

/// Splits a desired state into what the core decides on and the assignments.
pub fn desired_set(
    generation: Generation,
    gangs: Vec<v1::DesiredGang>,
) -> Result<(DesiredSet, Assignments), WireError> {
    let mut orders = Vec::with_capacity(gangs.len());
    let mut assignments = Assignments::new();
    for wanted in gangs {
        orders.push(gang_order(&wanted)?);
        if let v1::Order::Run(assignment) = wanted.order {
            assignments.insert((wanted.gang, wanted.epoch), Arc::from(assignment));
        }
    }
    Ok((DesiredSet { generation, gangs: orders }, assignments))
}

/// The decidable part of one gang's order.
pub fn gang_order(wanted: &v1::DesiredGang) -> Result<GangOrder, WireError> {
    let order = match &wanted.order {
        v1::Order::Stop { .. } => Order::Stop,
        v1::Order::Run(assignment) => Order::Run(RunOrder {
            members: assignment
                .members
                .iter()
                .map(|member| MemberOrder { member: member.member, gpus: member.gpus.clone() })
                .collect(),
            grace: Duration::from_millis(assignment.grace_ms),
            contact_within: assignment.on_disconnect.after_ms().map(Duration::from_millis),
            digest: Digest(sha256(&codec::encode("Assignment", assignment)?)),
        }),
    };
    Ok(GangOrder { gang: wanted.gang.clone(), epoch: wanted.epoch, order })
}

/// One gang's order with its assignment; `None` when the assignment is not at hand.
pub fn wire_order(order: &GangOrder, assignments: &Assignments) -> Option<v1::DesiredGang> {
    let wire = match &order.order {
        // An agent that comes back to a stop has begun it: what there was to keep is gone.
        Order::Stop => v1::Order::Stop { keep_scene: false },
        Order::Run(_) => {
            let assignment = assignments.get(&(order.gang.clone(), order.epoch))?;
            v1::Order::Run(Box::new(Assignment::clone(assignment)))
        }
    };
    Some(v1::DesiredGang { gang: order.gang.clone(), epoch: order.epoch, order: wire })
}

/// What the core needs to know of a member's new state; the rest is kept for the report.
/// `Starting` is the core's own word and says nothing new.
pub fn member_change(state: &MemberState) -> Option<MemberChange> {
    match state {
        MemberState::Starting => None,
        MemberState::Running { pid } => Some(MemberChange::Running { pid: *pid }),
        MemberState::Stopping => Some(MemberChange::Stopping),
        MemberState::Ended(_) => Some(MemberChange::Ended),
        MemberState::Refused(refusal) => Some(MemberChange::Refused(core_refusal(refusal))),
    }
}

pub fn core_refusal(refusal: &v1::Refusal) -> Refusal {
    match refusal.clone() {
        v1::Refusal::PortBusy { port } => Refusal::PortBusy { port },
        v1::Refusal::GpuHeld { gpu, by } => Refusal::GpuHeld { gpu, by },
        v1::Refusal::StaleEpoch { highest } => Refusal::StaleEpoch { highest },
        v1::Refusal::Impossible { reason } => Refusal::Impossible { reason },
        v1::Refusal::Unfit { reason } => Refusal::Unfit { reason },
    }
}

pub fn wire_refusal(refusal: &Refusal) -> v1::Refusal {
    match refusal.clone() {
        Refusal::PortBusy { port } => v1::Refusal::PortBusy { port },
        Refusal::GpuHeld { gpu, by } => v1::Refusal::GpuHeld { gpu, by },
        Refusal::StaleEpoch { highest } => v1::Refusal::StaleEpoch { highest },
        Refusal::Impossible { reason } => v1::Refusal::Impossible { reason },
        Refusal::Unfit { reason } => v1::Refusal::Unfit { reason },
    }
}

/// What is reported of members beside what the core says.
pub struct Known<'a> {
    /// How each member ended.
    pub ends: &'a BTreeMap<MemberKey, Ended>,
    /// What Ray says.
    pub gangs: &'a BTreeMap<(GangId, Epoch), v1::GangReport>,
    /// What members have done for the guests of a standing cluster.
    pub guests: &'a BTreeMap<MemberKey, BTreeMap<String, v1::GuestState>>,
    /// The newest training checkpoint of each incarnation whose rank 0 is here.
    pub checkpoints: &'a BTreeMap<MemberKey, TrainingCheckpoint>,
    /// What there is of training checkpoints in the directory of each.
    pub saved: &'a BTreeMap<MemberKey, Saved>,
    /// What was measured of the GPUs of members.
    pub usage: &'a BTreeMap<MemberKey, v1::UsageReport>,
}

/// The agent's whole truth, at this time of the boot clock.
pub fn node_report(core: &Core, known: &Known<'_>, now_ms: u64) -> v1::NodeReport {
    let checkpoint = |key: &MemberKey| {
        let checkpoint = known.checkpoints.get(key)?;
        let age_ms = now_ms.saturating_sub(checkpoint.made_ms);
        Some(v1::CheckpointReport { name: checkpoint.name.clone(), age_ms })
    };
    let done = |key: &MemberKey| {
        let done = known.guests.get(key).into_iter().flatten();
        let report = |(operation, state): (&String, &v1::GuestState)| v1::GuestReport {
            operation: operation.clone(),
            state: state.clone(),
        };
        done.map(report).collect()
    };
    let members = core
        .members()
        .map(|(key, member)| v1::MemberReport {
            key: key.clone(),
            state: member_state(member, known.ends.get(key)),
            guests: done(key),
            checkpoint: checkpoint(key),
            saved: known.saved.get(key).map(|saved| saved.report_at(now_ms)),
            usage: known.usage.get(key).copied(),
        })
        .collect();
    v1::NodeReport { held: core.held(), members, gangs: known.gangs.values().cloned().collect() }
}

fn member_state(member: &Member, ended: Option<&Ended>) -> MemberState {
    match &member.phase {
        // Adopting is never reported: the first report waits until it is over.
        Phase::Waiting | Phase::Adopting | Phase::Starting => MemberState::Starting,
        Phase::Running { pid } => MemberState::Running { pid: *pid },
        Phase::Stopping => MemberState::Stopping,
        Phase::Refused(refusal) => MemberState::Refused(wire_refusal(refusal)),
        Phase::Ended(end) => {
            let mut ended = ended.cloned().unwrap_or_else(called_off);
            if end.taken_along && end.ran {
                let reason = "the agent of this node was told to end and took it along".to_owned();
                ended.how = EndedHow::Failed { reason };
            }
            ended.asked = end.asked;
            ended.logs_complete = end.logs_complete;
            MemberState::Ended(ended)
        }
    }
}

/// The end of a member that never had a process.
fn called_off() -> Ended {
    Ended {
        how: EndedHow::Failed { reason: "called off before it was started".to_owned() },
        asked: true,
        last_output: String::new(),
        swept: 0,
        logs_complete: true,
    }
}
