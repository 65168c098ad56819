//! From wire to core: what agents say becomes events. Conversions live with the outer type.

use gangline_common::wire::v1;

use crate::core::accounts::Reading;
use crate::core::event::{
    CheckpointWord, Copied, EntrypointFact, GangFacts, GuestFact, GuestWord, Report, Room,
    SavedCheckpoint, SavedWord, UsageWord,
};
use crate::core::gang::{End, EndHow, Phase};
use crate::core::health::{Condition, Health, Level};
use crate::core::job::{RayDriver, RayFacts, RayNode};
use crate::core::maintenance::NODE_LABEL_LIMIT;
use crate::core::node::{Gpu, Inventory};

/// Longest text that is taken from an agent into a record.
const TEXT_LIMIT: usize = 4096;

fn clip(text: String) -> String {
    if text.len() <= TEXT_LIMIT { text } else { text.chars().take(TEXT_LIMIT / 4).collect() }
}

/// Names with their values.
fn pairs(wire: Vec<(String, String)>) -> Vec<(String, String)> {
    let pairs = wire.into_iter().take(NODE_LABEL_LIMIT);
    pairs.map(|(name, value)| (clip(name), clip(value))).collect()
}

pub fn inventory(wire: v1::NodeInventory) -> Inventory {
    let level = |level: v1::DoctorLevel| {
        let word = match level {
            v1::DoctorLevel::Ok => "ok",
            v1::DoctorLevel::Warning => "warning",
            v1::DoctorLevel::Blind => "blind",
            v1::DoctorLevel::Error => "error",
        };
        word.to_owned()
    };
    let gpu = |gpu: v1::GpuIdentity| Gpu {
        uuid: gpu.uuid,
        index: gpu.index,
        name: gpu.name,
        memory_bytes: gpu.memory_bytes,
    };
    Inventory {
        hostname: clip(wire.hostname),
        agent_version: clip(wire.agent_version),
        head_role: wire.roles.contains(&v1::NodeRole::Head),
        worker_role: wire.roles.contains(&v1::NodeRole::Worker),
        pool: wire.pool.map_or_else(|| "default".to_owned(), clip),
        labels: pairs(wire.labels),
        address: wire.address,
        boot_id: wire.boot_id,
        network_namespace: wire.network_namespace,
        container_start_ms: wire.container_start_ms,
        gpus: wire.gpus.into_iter().map(gpu).collect(),
        cpus_milli: wire.cpus_milli,
        memory_bytes: wire.memory_bytes,
        shm_bytes: wire.shm_bytes,
        pids_limit: wire.pids_limit,
        ports: wire.ports,
        versions: pairs(wire.versions),
        doctor: wire
            .doctor
            .into_iter()
            .map(|line| (clip(line.check), level(line.level), clip(line.text), line.advice))
            .collect(),
    }
}

pub fn report(wire: v1::NodeReport) -> Report {
    Report {
        held: wire.held,
        guests: wire.members.iter().flat_map(guest_words).collect(),
        checkpoints: wire.members.iter().filter_map(checkpoint_word).collect(),
        saved: wire.members.iter().filter_map(saved_word).collect(),
        usage: wire.members.iter().filter_map(usage_word).collect(),
        members: wire.members.into_iter().map(|m| (m.key, phase(m.state))).collect(),
        gangs: wire.gangs.into_iter().map(gang_facts).collect(),
    }
}

/// What a node says is wrong with it, whole.
pub fn health(wire: v1::NodeHealth) -> Health {
    let level = |level: v1::HealthLevel| match level {
        v1::HealthLevel::Info => Level::Info,
        v1::HealthLevel::Warning => Level::Warning,
        v1::HealthLevel::Degraded => Level::Degraded,
        v1::HealthLevel::NoNewJobs => Level::NoNewJobs,
        v1::HealthLevel::DrainAfterJob => Level::DrainAfterJob,
        v1::HealthLevel::Fatal => Level::Fatal,
    };
    let condition = |condition: v1::Condition| Condition {
        rule: clip(condition.rule),
        component: clip(condition.component),
        level: level(condition.level),
        blocks_start: condition.blocks_start,
        shadow: condition.shadow,
        action: clip(condition.action),
        reason: clip(condition.reason),
        evidence: clip(condition.evidence),
        clears: clip(condition.clears),
        since_ms: condition.since_ms,
    };
    let conditions = wire.conditions.into_iter().take(v1::CONDITION_LIMIT);
    let blind = wire.blind.into_iter().take(v1::CONDITION_LIMIT);
    Health { conditions: conditions.map(condition).collect(), blind: blind.map(clip).collect() }
}

fn guest_words(member: &v1::MemberReport) -> impl Iterator<Item = GuestWord> {
    member.guests.iter().map(|guest| GuestWord {
        key: member.key.clone(),
        operation: guest.operation.clone(),
        fact: match guest.state.clone() {
            v1::GuestState::Prepared => GuestFact::Prepared,
            v1::GuestState::Failed { reason } => GuestFact::Failed { reason: clip(reason) },
            v1::GuestState::Swept { log_bytes } => GuestFact::Swept { log_bytes },
        },
    })
}

fn checkpoint_word(member: &v1::MemberReport) -> Option<CheckpointWord> {
    let found = member.checkpoint.as_ref()?;
    let (key, name) = (member.key.clone(), clip(found.name.clone()));
    Some(CheckpointWord { key, name, age_ms: found.age_ms })
}

fn saved_word(member: &v1::MemberReport) -> Option<SavedWord> {
    let v1::SavedReport { newest, count, bytes, room, copy } = member.saved.clone()?;
    let newest = newest.map(|newest| SavedCheckpoint {
        name: clip(newest.name),
        step: newest.step,
        bytes: newest.bytes,
        age_ms: newest.age_ms,
    });
    let room = Room {
        free_bytes: room.free_bytes,
        next_bytes: room.next_bytes,
        is_low: room.is_low,
        removed: room.removed,
        last_removed: room.last_removed.map(clip),
    };
    let copy =
        copy.map(|copy| Copied { newest: copy.newest.map(clip), problem: copy.problem.map(clip) });
    Some(SavedWord { key: member.key.clone(), newest, count, bytes, room, copy })
}

fn usage_word(member: &v1::MemberReport) -> Option<UsageWord> {
    let v1::UsageReport { measured_ms, busy_ms } = member.usage?;
    let reading = Reading { measured_ms, busy_ms: busy_ms.min(measured_ms) };
    Some(UsageWord { key: member.key.clone(), reading })
}

fn phase(state: v1::MemberState) -> Phase {
    match state {
        v1::MemberState::Starting => Phase::Starting,
        v1::MemberState::Running { pid } => Phase::Running { pid },
        v1::MemberState::Stopping => Phase::Stopping,
        v1::MemberState::Ended(ended) => Phase::Ended(End {
            how: match ended.how {
                v1::EndedHow::Exited { code } => EndHow::Exited { code },
                v1::EndedHow::Signalled { signal } => EndHow::Signalled { signal },
                v1::EndedHow::Failed { reason } => EndHow::Failed { reason: clip(reason) },
            },
            asked: ended.asked,
            last_output: clip(ended.last_output),
            logs_complete: ended.logs_complete,
        }),
        v1::MemberState::Refused(refusal) => Phase::Ended(refused(refusal)),
    }
}

fn refused(refusal: v1::Refusal) -> End {
    let never = |reason| EndHow::Refused { reason, busy_port: None };
    let how = match refusal {
        v1::Refusal::PortBusy { port } => {
            let reason = format!("port {port} of its block is in use by somebody else");
            EndHow::Refused { reason, busy_port: Some(port) }
        }
        v1::Refusal::GpuHeld { gpu, by } => never(format!("{gpu} is still held by {by}")),
        v1::Refusal::StaleEpoch { highest } => never(format!("the agent has seen epoch {highest}")),
        v1::Refusal::Impossible { reason } => never(clip(reason)),
        v1::Refusal::Unfit { reason } => EndHow::Unfit { reason: clip(reason) },
    };
    End { how, asked: false, last_output: String::new(), logs_complete: true }
}

fn gang_facts(wire: v1::GangReport) -> GangFacts {
    let ready = wire.ray.as_ref().is_some_and(|ray| ray.ready);
    let entrypoint_driver = wire.entrypoints.iter().find_map(|e| driver(&e.state));
    let ray = wire.ray.map(|ray| RayFacts {
        version: clip(ray.version),
        session: clip(ray.session),
        nodes: ray
            .nodes
            .into_iter()
            .map(|node| RayNode {
                member: node.member,
                ray_node_id: clip(node.ray_node_id),
                address: clip(node.address),
                alive: node.alive,
                state_message: clip(node.state_message),
            })
            .collect(),
        driver: entrypoint_driver,
    });
    let entrypoints =
        wire.entrypoints.into_iter().map(|e| (e.operation, entrypoint(e.state))).collect();
    GangFacts { gang: wire.gang, epoch: wire.epoch, ready, ray, entrypoints }
}

fn driver(state: &v1::EntrypointState) -> Option<RayDriver> {
    let found = match state {
        v1::EntrypointState::Waiting => return None,
        v1::EntrypointState::Running { driver }
        | v1::EntrypointState::Succeeded { driver }
        | v1::EntrypointState::Failed { driver, .. } => driver.clone()?,
    };
    Some(RayDriver { ray_node_id: found.ray_node_id, member: found.member, address: found.address })
}

fn entrypoint(state: v1::EntrypointState) -> EntrypointFact {
    match state {
        v1::EntrypointState::Waiting => EntrypointFact::Waiting,
        v1::EntrypointState::Running { .. } => EntrypointFact::Running,
        v1::EntrypointState::Succeeded { .. } => EntrypointFact::Succeeded,
        v1::EntrypointState::Failed { exit_code, error_type, message, .. } => {
            let mut cause = match exit_code {
                Some(code) => format!("the entrypoint exited with code {code}"),
                None => "the entrypoint failed".to_owned(),
            };
            if let Some(kind) = error_type {
                cause = format!("{cause} ({kind})");
            }
            // Ray repeats the log in its message; the last line is what says most.
            if let Some(last) = message.lines().rev().find(|line| !line.trim().is_empty()) {
                let last: String = last.trim().chars().take(400).collect();
                cause = format!("{cause}: {last}");
            }
            EntrypointFact::Failed { cause }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_an_agent_says_only_so_much_is_taken() {
        let long = "ä".repeat(TEXT_LIMIT);
        let found = pairs(vec![(long.clone(), long); NODE_LABEL_LIMIT + 1]);
        assert_eq!(found.len(), NODE_LABEL_LIMIT);
        assert!(found.iter().all(|(name, value)| name.len().max(value.len()) <= TEXT_LIMIT));
    }
}
