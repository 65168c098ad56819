//! A node that is cut off: when its part of a gang counts as gone, and what waits until then.

mod support;

use gangline_common::ids::{GangId, MemberId};
use gangline_coordinator::core::effect::{Answer, Rejected, Write};
use gangline_coordinator::core::gang::{EndHow, GangState, Phase};
use gangline_coordinator::core::job::{JobState, RayFacts, RayNode};
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::node::Reachability;
use support::{Fleet, ended, inventory};

/// Two workers `a` and `b`, with nothing to spare, and a job on both.
fn running(spec: &str) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet.add_node("b", 4, false);
    fleet.submit("j1", spec);
    fleet.settle();
    fleet
}

const COMMAND: &str = "{name: c, resources: {nnodes: 2, gpus_per_node: 4}, \
    launcher: {type: command}, command: [\"true\"], on_disconnect: POLICY}";
const RAY: &str = "{name: r, resources: {nnodes: 2, gpus_per_node: 4}, run: python x.py, \
    checkpoint: {dir: /nfs/projects/rl/ckpt}, on_disconnect: POLICY}";

fn command(policy: &str) -> String {
    COMMAND.replace("POLICY", policy)
}

fn ray(policy: &str) -> String {
    RAY.replace("POLICY", policy)
}

fn gang_state(fleet: &Fleet, job: &str) -> GangState {
    let gang = &fleet.job(job).gang;
    fleet.core.gangs().find(|known| known.id == *gang).unwrap().state
}

/// A job that goes back to the queue as soon as its gang is gone.
fn preempt(fleet: &mut Fleet, node: &str) {
    let why = "fan".to_owned();
    fleet.maintain(node, Maintenance::Drain { why, deadline_ms: Some(0) });
    fleet.wait_ms(1_000);
    fleet.maintain(node, Maintenance::Resume);
}

#[test]
fn stop_after_gives_a_silent_node_up_after_its_time_the_grace_and_a_tenth() {
    let mut fleet = running(&command("{stop_after: 60s}"));
    fleet.disconnect("b");
    // (60 s + 30 s of grace) and a tenth.
    fleet.live(&["a"], 98);
    assert_eq!(fleet.state("j1"), JobState::Running, "silence alone ends nothing");
    fleet.live(&["a"], 3);
    assert_eq!(fleet.state("j1"), JobState::Failed);
    let reason = fleet.job("j1").reason.clone();
    assert!(reason.contains("rank 1 on b failed: its node gives no word"), "{reason}");
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopped);
    assert_eq!(fleet.node("b").stops.len(), 1);
    // Its agent was only asleep, say: what it still runs is stopped, and then forgotten.
    assert!(fleet.agents["b"].members.values().any(Phase::holds_resources));
    fleet.connect("b");
    fleet.settle();
    assert!(!fleet.agents["b"].members.values().any(Phase::holds_resources));
    assert!(fleet.node("b").stops.is_empty());
    fleet.submit("j2", &command("keep"));
    fleet.settle();
    assert_eq!(fleet.state("j2"), JobState::Running);
}

#[test]
fn contact_just_before_the_end_begins_the_time_anew() {
    let mut fleet = running(&command("{stop_after: 60s}"));
    for _ in 0..3 {
        fleet.disconnect("b");
        fleet.live(&["a"], 95);
        fleet.connect("b");
        fleet.live(&["a", "b"], 2);
        assert_eq!(fleet.state("j1"), JobState::Running);
    }
}

#[test]
fn a_coordinator_that_was_not_there_gives_nobody_up() {
    let mut fleet = running(&command("{stop_after: 60s}"));
    // Stopped by a signal, or a disk that hung: words may have been answered meanwhile.
    fleet.wait_ms(3_600_000);
    assert_eq!(fleet.node("b").reachability, Reachability::Lost);
    assert_eq!(fleet.state("j1"), JobState::Running);
    fleet.live(&["a", "b"], 5);
    assert_eq!(fleet.state("j1"), JobState::Running);
}

#[test]
fn keep_waits_for_evidence_and_says_how_to_force_it() {
    let mut fleet = running(&command("fence")); // Without Ray there is no witness.
    for name in ["c", "d"] {
        fleet.add_node(name, 4, false);
    }
    fleet.disconnect("b");
    fleet.live(&["a", "c", "d"], 40);
    assert_eq!(fleet.force_release("a", "x"), Answer::Rejected(Rejected::NodeNotLost));
    preempt(&mut fleet, "a");
    fleet.live(&["a", "c", "d"], 3_600);
    assert_eq!(fleet.state("j1"), JobState::Stopping, "attempt 2 must not start");
    let reason = fleet.job("j1").reason.clone();
    assert!(reason.contains("b is lost") && reason.contains("node force-release b"), "{reason}");
    assert_eq!(fleet.job("j1").attempts, 1);

    assert_eq!(fleet.force_release("b", "power is off"), Answer::Done);
    fleet.live(&["a", "c", "d"], 2);
    assert_eq!((fleet.state("j1"), fleet.job("j1").attempts), (JobState::Running, 2));
    let history = fleet.node("b").history.clone();
    assert!(history.iter().any(|t| t.actor == "alice" && t.text.contains("power is off")));
    assert_eq!(fleet.force_release("b", "x"), Answer::Rejected(Rejected::NothingHeld));

    // The operator was wrong: the old incarnation is stopped as soon as the node is heard.
    assert!(fleet.agents["b"].members.values().any(Phase::holds_resources));
    fleet.connect("b");
    fleet.settle();
    assert!(!fleet.agents["b"].members.values().any(Phase::holds_resources));
    assert_eq!((fleet.state("j1"), fleet.job("j1").attempts), (JobState::Running, 2));
}

#[test]
fn forcing_is_in_the_audit_log() {
    let mut fleet = running(&command("keep"));
    fleet.disconnect("b");
    fleet.live(&["a"], 40);
    let mut out = gangline_coordinator::core::effect::Effects::default();
    let node = fleet.node("b").id.clone();
    let (reason, actor) = ("burnt".to_owned(), support::alice());
    let event =
        gangline_coordinator::core::event::Event::ForceRelease { request: 1, node, reason, actor };
    fleet.core.step(event, fleet.now, &mut out);
    let entry = out.writes.iter().find_map(|write| match write {
        Write::Audit(entry) => Some(format!("{entry:?}")),
        _ => None,
    });
    let entry = entry.expect("an entry");
    for part in ["node.force-release", "node b", "j1: burnt", "alice"] {
        assert!(entry.contains(part), "{entry}");
    }
}

/// A Ray gang with its head on `h`, and a node `c` to spare; Ray says whether rank 1 is dead.
fn ray_gang(policy: &str) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.add_node("h", 0, true);
    for name in ["a", "b"] {
        fleet.add_node(name, 4, false);
    }
    fleet.submit("j1", &ray(policy));
    fleet.settle();
    fleet.add_node("c", 4, false);
    fleet
}

fn ray_says_dead(fleet: &mut Fleet, head: &str, rank: u32) {
    let node = RayNode {
        member: MemberId::Rank(rank),
        ray_node_id: "ff".to_owned(),
        address: "10.0.0.1".to_owned(),
        alive: false,
        state_message: "health check failed".to_owned(),
    };
    let agent = fleet.agents.get_mut(head).unwrap();
    agent.ray = RayFacts { nodes: vec![node], ..RayFacts::default() };
}

#[test]
fn a_node_that_is_lost_and_dead_for_ray_fails_the_gang_and_fences_itself() {
    let mut fleet = ray_gang("fence");
    fleet.disconnect("b");
    fleet.live(&["h", "a", "c"], 600);
    assert_ne!(fleet.state("j1"), JobState::Failed, "Ray sees it whole: nothing has happened");
    ray_says_dead(&mut fleet, "h", 1);
    fleet.live(&["h", "a", "c"], 3);
    assert_eq!(fleet.state("j1"), JobState::Failed);
    let reason = fleet.job("j1").reason.clone();
    assert!(reason.contains("b is lost, and Ray takes 1 there for dead: health"), "{reason}");
    // What it held is not free yet, nor the directory of its training checkpoints.
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopping);
    let again = fleet.submit("j2", &ray("fence").replace("name: r", "name: s"));
    assert!(matches!(again, Answer::Rejected(Rejected::CheckpointInUse { .. })), "{again:?}");
    fleet.live(&["h", "a", "c"], 95);
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopping);
    // 60 s and the grace of 30 s since the head ended, and a tenth.
    fleet.live(&["h", "a", "c"], 6);
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopped);
    fleet.submit("j2", &ray("fence").replace("name: r", "name: s"));
    fleet.live(&["h", "a", "c"], 2);
    assert_ne!(fleet.state("j2"), JobState::Pending);
}

#[test]
fn the_next_attempt_starts_when_the_cut_off_rank_has_fenced_itself() {
    let mut fleet = ray_gang("fence");
    fleet.disconnect("b");
    fleet.live(&["h", "a", "c"], 40);
    preempt(&mut fleet, "a");
    fleet.live(&["h", "a", "c"], 95);
    assert_eq!((fleet.state("j1"), fleet.job("j1").attempts), (JobState::Stopping, 1));
    // Nobody else may answer where the head was asked for.
    let head = fleet.core.gangs().next().unwrap().members[&MemberId::Head].ports;
    fleet.live(&["h", "a", "c"], 8);
    assert_eq!(fleet.job("j1").attempts, 2);
    let gang = fleet.core.gangs().next().unwrap();
    assert_eq!(gang.epoch.n, 2);
    assert_ne!(gang.members[&MemberId::Head].ports, head);
}

#[test]
fn a_cut_off_head_is_given_up_when_ray_must_have_noticed() {
    let mut fleet = running(&ray("fence")); // The head is beside rank 0.
    fleet.add_node("c", 4, false);
    let gang: GangId = fleet.job("j1").gang.clone();
    let head =
        fleet.core.gangs().find(|g| g.id == gang).unwrap().members[&MemberId::Head].node.clone();
    let (cut, other) = if head == fleet.node("a").id { ("a", "b") } else { ("b", "a") };
    fleet.disconnect(cut);
    fleet.live(&[other, "c"], 300);
    assert_ne!(fleet.state("j1"), JobState::Failed, "there is no witness yet");
    // The raylet of the other node has given the head up, and is the witness.
    for phase in fleet.agents.get_mut(other).unwrap().members.values_mut() {
        *phase = ended(EndHow::Exited { code: 1 }, false);
    }
    fleet.live(&[other, "c"], 150);
    assert_eq!(fleet.state("j1"), JobState::Failed);
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopping);
    // 60 s for Ray, 60 s, 30 s of grace, and a tenth of both.
    fleet.live(&[other, "c"], 12);
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopped);
}

#[test]
fn a_gang_that_is_lost_as_a_whole_has_no_witness() {
    let mut fleet = ray_gang("fence");
    for name in ["h", "a", "b"] {
        fleet.disconnect(name);
    }
    fleet.live(&["c"], 40);
    fleet.stop("j1");
    fleet.live(&["c"], 7_200);
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopping);
    // One that comes back is enough.
    fleet.connect("h");
    fleet.live(&["h", "c"], 110);
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopped);
}

#[test]
fn a_node_that_comes_back_as_another_incarnation_is_evidence() {
    let mut fleet = running(&ray("keep"));
    fleet.disconnect("b");
    fleet.live(&["a"], 40);
    let again = support::inventory("b", 4, false);
    let again = gangline_coordinator::core::node::Inventory { boot_id: "next".into(), ..again };
    let agent = fleet.agents.get_mut("b").unwrap();
    agent.inventory = Some(again);
    agent.members.clear();
    // Before it has said what it is, it is told nothing: it would start its part anew.
    fleet.open_session("b");
    fleet.heartbeat("b");
    fleet.wait_ms(3_000);
    assert_eq!(fleet.agents["b"].in_flight, None);
    fleet.disconnect("b");
    fleet.connect("b");
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Failed);
    let reason = fleet.job("j1").reason.clone();
    assert!(reason.contains("new container"), "{reason}");
    assert!(!fleet.agents["b"].members.values().any(Phase::holds_resources));
    assert_eq!(gang_state(&fleet, "j1"), GangState::Stopped);
}

#[test]
fn a_new_start_of_the_same_container_is_no_evidence() {
    let first = inventory("b", 4, false);
    let mut again = first.clone();
    assert!(!again.is_after(&first));
    again.container_start_ms -= 1;
    assert!(!again.is_after(&first), "older than what was known is nothing new");
    again.container_start_ms += 2;
    assert!(again.is_after(&first));
}
