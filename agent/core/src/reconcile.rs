//! The decision: what is desired and what is known -> what to do. A pure function; carrying its
//! answer out needs no further choice.

use std::collections::BTreeMap;

use gangline_common::ids::{GangId, GpuId, MemberKey};
use gangline_common::time::Timestamp;

use super::assignment::{GangOrder, Member, Order, Phase, Refusal, Release};
use super::planted::{Planted, is_planted};

/// A stop that shows no effect for this long is asked for again (asking twice does no harm).
pub const STOP_REPEAT_MS: u64 = 30_000;

/// Everything a decision rests on.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    pub desired: &'a BTreeMap<GangId, GangOrder>,
    pub members: &'a BTreeMap<MemberKey, Member>,
    /// The agent ends: everything stops, nothing starts.
    pub shutting_down: bool,
    /// The coordinator has said since the start of this agent what is to run.
    pub informed: bool,
    /// Boot-clock milliseconds of the newest contact.
    pub contact: Option<u64>,
    pub now: Timestamp,
}

/// One decision about one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Stop(MemberKey),
    Release(MemberKey),
    /// It waited for its start and is no longer wanted.
    CallOff(MemberKey),
    Refuse(MemberKey, Refusal),
    Start(MemberKey),
}

/// Decides for every member: stops first, then files that can go, then starts.
pub fn decide(situation: Situation<'_>) -> Vec<Action> {
    let mut actions = Vec::new();
    for (key, member) in situation.members {
        if wants_stop(&situation, key, member) {
            actions.push(Action::Stop(key.clone()));
        } else if wants_release(&situation, key, member) {
            actions.push(Action::Release(key.clone()));
        }
    }
    start_waiting(&situation, &mut actions);
    actions
}

fn must_end(situation: &Situation<'_>, key: &MemberKey) -> bool {
    // A gang that is not listed is not ordered to end: absence is never a stop.
    let absent = !situation.desired.contains_key(&key.gang);
    if absent && is_planted(Planted::AbsenceIsStop) {
        return true;
    }
    situation.shutting_down || situation.desired.get(&key.gang).is_some_and(|order| order.ends(key))
}

fn wants_stop(situation: &Situation<'_>, key: &MemberKey, member: &Member) -> bool {
    // Nobody knows yet what a member under adoption is; its answer comes first.
    if !member.is_live() || member.phase == Phase::Adopting || !must_end(situation, key) {
        return false;
    }
    match member.stop_sent {
        None => true,
        Some(sent) => situation.now.boot_ms >= sent.boot_ms.saturating_add(STOP_REPEAT_MS),
    }
}

fn wants_release(situation: &Situation<'_>, key: &MemberKey, member: &Member) -> bool {
    let listed = situation.desired.get(&key.gang).is_some_and(|order| order.covers(key));
    let due = match member.release {
        Release::Kept => true,
        Release::Asked => false,
        Release::RetryAt(time) => situation.now.boot_ms >= time.boot_ms,
    };
    member.is_settled() && !listed && due
}

fn start_waiting(situation: &Situation<'_>, actions: &mut Vec<Action>) {
    let mut holders: BTreeMap<&GpuId, &MemberKey> = BTreeMap::new();
    for (key, member) in situation.members.iter().filter(|(_, member)| member.is_live()) {
        holders.extend(member.gpus.iter().map(|gpu| (gpu, key)));
    }
    for (key, member) in situation.members {
        if member.phase != Phase::Waiting {
            continue;
        }
        let listed = situation.desired.get(&key.gang).is_some_and(|order| order.covers(key));
        if !listed || must_end(situation, key) {
            actions.push(Action::CallOff(key.clone()));
            continue;
        }
        if earlier_incarnation_lives(situation, key) || !has_contact(situation, key) {
            continue;
        }
        match free_gpus(situation, member, &holders) {
            Gpus::Free => {
                holders.extend(member.gpus.iter().map(|gpu| (gpu, key)));
                actions.push(Action::Start(key.clone()));
            }
            Gpus::ComingFree => {}
            Gpus::Held { gpu, by } => {
                actions.push(Action::Refuse(key.clone(), Refusal::GpuHeld { gpu, by }));
            }
        }
    }
}

/// Whether a member may begin. After a restart of the agent the coordinator must have spoken: the
/// machine may have started again too, and then what the ledger says counts as ended. A member that
/// stops by itself without contact needs it now, in the session in which its order was said.
fn has_contact(situation: &Situation<'_>, key: &MemberKey) -> bool {
    let Some(GangOrder { order: Order::Run(run), .. }) = situation.desired.get(&key.gang) else {
        return false;
    };
    let Some(within) = run.contact_within else { return situation.informed };
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let until = situation.contact.map(|contact| contact.saturating_add(within_ms));
    situation.informed && until.is_some_and(|until| situation.now.boot_ms < until)
}

fn earlier_incarnation_lives(situation: &Situation<'_>, key: &MemberKey) -> bool {
    situation.members.iter().any(|(other, member)| {
        other.gang == key.gang && other.epoch < key.epoch && member.is_live()
    })
}

enum Gpus {
    Free,
    /// Their holder is being stopped.
    ComingFree,
    Held {
        gpu: GpuId,
        by: MemberKey,
    },
}

fn free_gpus(
    situation: &Situation<'_>,
    member: &Member,
    holders: &BTreeMap<&GpuId, &MemberKey>,
) -> Gpus {
    let mut answer = Gpus::Free;
    for gpu in &member.gpus {
        let Some(holder) = holders.get(gpu) else { continue };
        let ending = must_end(situation, holder)
            || situation.members.get(*holder).is_some_and(Member::is_ending);
        if !ending {
            return Gpus::Held { gpu: gpu.clone(), by: (*holder).clone() };
        }
        answer = Gpus::ComingFree;
    }
    answer
}
