//! What the coordinator decides, as stories.

mod support;

use gangline_common::ids::{Generation, JobId, PortBlock};
use gangline_coordinator::board::Board;
use gangline_coordinator::core::effect::{Answer, Effects, Rejected};
use gangline_coordinator::core::event::{EntrypointFact, Event};
use gangline_coordinator::core::gang::{EndHow, GangState, Phase};
use gangline_coordinator::core::job::{JobState, Outcome};
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::node::{LOST_AFTER_MS, Reachability, SUSPECT_AFTER_MS};
use gangline_coordinator::core::{Core, QUARANTINE_MS};
use support::{Fleet, ended, stored};

const COMMAND: &str = "{name: c, resources: {nnodes: 2, gpus_per_node: 2}, launcher: {type: command}, command: [\"true\"]}";
const RAY: &str = "{name: r, resources: {nnodes: 2, gpus_per_node: 4}, run: python x.py}";

fn two_workers() -> Fleet {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet.add_node("b", 4, false);
    fleet
}

#[test]
fn a_command_gang_runs_and_leaves_nothing() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    assert_eq!(fleet.state("j1"), JobState::Starting);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    fleet.exit_ranks("j1", 0);
    assert_eq!(fleet.state("j1"), JobState::Succeeded);
    assert!(fleet.core.gangs().all(|gang| gang.state == GangState::Stopped));
    assert!(fleet.agents.values().all(|agent| agent.members.is_empty()));
}

#[test]
fn two_gangs_share_two_nodes_on_disjoint_gpus_and_ports() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.submit("j2", COMMAND.replace("name: c", "name: d").as_str());
    fleet.settle();
    assert_eq!((fleet.state("j1"), fleet.state("j2")), (JobState::Running, JobState::Running));
    fleet.stop("j1");
    fleet.settle();
    assert_eq!((fleet.state("j1"), fleet.state("j2")), (JobState::Cancelled, JobState::Running));
    fleet.exit_ranks("j2", 0);
    assert_eq!(fleet.state("j2"), JobState::Succeeded);
}

#[test]
fn all_or_nothing_waits_in_order_and_says_why() {
    let mut fleet = two_workers();
    let all = COMMAND.replace("gpus_per_node: 2", "gpus_per_node: 4");
    fleet.submit("busy", &all.replace("nnodes: 2", "nnodes: 1"));
    fleet.submit("big", &all);
    fleet.submit("small", COMMAND);
    assert_eq!(fleet.state("big"), JobState::Pending);
    assert!(fleet.job("big").reason.contains("1 of 2 fit now"), "{}", fleet.job("big").reason);
    let why = "waits for 2 nodes with 2 GPUs each: 1 of 2 fit now (a: 0 of 4 GPUs free)";
    assert_eq!(fleet.job("small").reason, why);
    fleet.stop("big");
    assert_eq!(fleet.state("big"), JobState::Cancelled);
}

#[test]
fn a_job_that_the_fleet_cannot_hold_says_why_and_holds_back_nobody() {
    let mut fleet = two_workers();
    fleet.declare_pool("h1oo");
    let wishes = [
        ("wide", COMMAND.replace("nnodes: 2", "nnodes: 3"), "2 of 2 would do if they were free"),
        (
            "pool",
            COMMAND.replace("nnodes: 2", "nnodes: 2, pool: h1oo"),
            "no node is in pool h1oo; there are: ",
        ),
        (
            "gpus",
            COMMAND.replace("gpus_per_node: 2", "gpus_per_node: 40"),
            "0 of 2 would do if they were free (a: has 4 GPUs",
        ),
    ];
    for (id, spec, why) in &wishes {
        fleet.submit(id, spec);
        assert_eq!(fleet.state(id), JobState::Pending);
        let reason = fleet.job(id).reason.clone();
        assert!(
            reason.starts_with("waits for nodes that the fleet does not have: needs "),
            "{reason}"
        );
        assert!(reason.contains(why), "{reason}");
    }
    fleet.submit("small", COMMAND);
    assert_eq!(fleet.state("small"), JobState::Starting);
    fleet.settle();
    fleet.exit_ranks("small", 0);
    // The missing node joins: the first of them starts.
    fleet.add_node("c", 4, false);
    assert_eq!(fleet.state("wide"), JobState::Starting);
}

#[test]
fn the_head_goes_to_the_head_node_and_has_no_gpu() {
    let mut fleet = two_workers();
    fleet.add_node("h", 0, true);
    fleet.submit("j1", RAY);
    let gang = fleet.core.gangs().next().unwrap().clone();
    let head = &gang.members[&gangline_common::ids::MemberId::Head];
    assert_eq!(head.node.as_str(), "n-h");
    assert!(head.gpus.is_empty() && head.cpus_milli == 0);
    assert_eq!(gang.members.len(), 3);
}

#[test]
fn a_ray_job_runs_when_its_entrypoint_runs() {
    let mut fleet = two_workers();
    fleet.add_node("h", 0, true);
    fleet.submit("j1", RAY);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Starting);
    let head = fleet.agents.get_mut("h").unwrap();
    head.entrypoints.insert("j1-1".into(), EntrypointFact::Running);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    let head = fleet.agents.get_mut("h").unwrap();
    head.entrypoints.insert("j1-1".into(), EntrypointFact::Succeeded);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Succeeded);
}

/// The entrypoint dies of the head's death, and its agent may say so first.
#[test]
fn a_head_that_died_is_the_cause_even_when_its_entrypoint_is_heard_of_first() {
    let mut fleet = two_workers();
    fleet.add_node("h", 0, true);
    fleet.submit("j1", RAY);
    fleet.settle();
    let head = fleet.agents.get_mut("h").unwrap();
    head.entrypoints.insert("j1-1".into(), EntrypointFact::Running);
    fleet.settle();
    let head = fleet.agents.get_mut("h").unwrap();
    let failed = EntrypointFact::Failed { cause: "the entrypoint exited with code 1".to_owned() };
    head.entrypoints.insert("j1-1".into(), failed);
    fleet.report("h");
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    // By itself: the stop has not arrived there.
    for phase in fleet.agents.get_mut("h").unwrap().members.values_mut() {
        *phase = ended(EndHow::Exited { code: 1 }, false);
    }
    fleet.report("h");
    fleet.settle();
    let job = fleet.job("j1");
    let reason = "Ray head on h exited with code 1; then the entrypoint exited with code 1";
    assert_eq!((job.state, job.reason.as_str()), (JobState::Failed, reason));
    let cause = Outcome::Failed { cause: reason.to_owned() };
    let attempt = fleet.core.attempts().find(|attempt| attempt.job == job.id).unwrap();
    assert_eq!(attempt.outcome.as_ref(), Some(&cause));
}

#[test]
fn a_dead_member_fails_the_attempt_and_names_the_node() {
    let mut fleet = two_workers();
    fleet.submit("j1", RAY);
    fleet.settle();
    let agent = fleet.agents.get_mut("b").unwrap();
    for (key, phase) in &mut agent.members {
        if key.member != gangline_common::ids::MemberId::Head {
            *phase = ended(EndHow::Exited { code: 1 }, false);
        }
    }
    fleet.report("b");
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Failed);
    let reason = fleet.job("j1").reason.clone();
    assert!(reason.contains("on b exited with code 1"), "{reason}");
}

#[test]
fn silence_is_a_state_and_the_gang_runs_on() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    fleet.disconnect("b");
    for _ in 0..60 {
        fleet.wait_ms(1000);
        fleet.heartbeat("a");
    }
    assert_eq!(fleet.node("b").reachability, Reachability::Lost);
    assert_eq!(fleet.node("a").reachability, Reachability::Reachable);
    assert_eq!(fleet.state("j1"), JobState::Running);
    fleet.connect("b");
    fleet.settle();
    assert_eq!(fleet.node("b").reachability, Reachability::Reachable);
    assert_eq!(fleet.state("j1"), JobState::Running);
    assert_eq!(fleet.core.gangs().next().unwrap().epoch.n, 1);
    fleet.exit_ranks("j1", 0);
    assert_eq!(fleet.state("j1"), JobState::Succeeded);
}

#[test]
fn a_sample_is_a_word_that_says_nothing_of_what_is_held() {
    let mut fleet = two_workers();
    fleet.beat(1);
    let held = fleet.node("a").held;
    assert!(held.is_some());
    for _ in 0..60 {
        fleet.wait_ms(1000);
        fleet.sample("a");
    }
    assert_eq!(fleet.node("a").reachability, Reachability::Reachable);
    assert_eq!(fleet.node("a").held, held);
    assert_eq!(fleet.node("b").reachability, Reachability::Lost);
    fleet.sample("b");
    assert_eq!(fleet.node("b").reachability, Reachability::Reachable);
}

/// `j1` ran on both workers and was stopped while `b` was away for good: it is over, but not on `b`.
fn stopped_behind_a_lost_node() -> Fleet {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    fleet.disconnect("b");
    fleet.stop("j1");
    for _ in 0..40 {
        fleet.deliver("a");
        fleet.report("a");
        fleet.wait_ms(1000);
        fleet.heartbeat("a");
    }
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
    fleet
}

#[test]
fn a_lost_node_keeps_its_share_but_not_the_job() {
    let mut fleet = stopped_behind_a_lost_node();
    fleet.submit("j2", COMMAND);
    assert_eq!(fleet.state("j2"), JobState::Pending);
    fleet.connect("b");
    fleet.settle();
    assert_eq!(fleet.state("j2"), JobState::Running);
}

#[test]
fn a_busy_port_costs_no_attempt() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    let first = fleet.core.gangs().next().unwrap().clone();
    fleet.deliver("a");
    fleet.deliver("b");
    let agent = fleet.agents.get_mut("a").unwrap();
    for phase in agent.members.values_mut() {
        let reason = "port taken".to_owned();
        *phase = ended(EndHow::Refused { reason, busy_port: Some(20_000) }, false);
    }
    fleet.report("a");
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    let second = fleet.core.gangs().next().unwrap().clone();
    assert_eq!((second.epoch.n, fleet.job("j1").attempts), (2, 1));
    for (id, member) in &second.members {
        assert!(
            !member.ports.overlaps(&first.members[id].ports)
                || first.members[id].node.as_str() != "n-a"
        );
    }
}

/// The check before the start finds what no condition has said yet.
#[test]
fn a_node_that_is_not_fit_to_start_costs_no_attempt_and_is_left_alone_for_a_while() {
    let mut fleet = two_workers();
    fleet.submit("j1", &COMMAND.replace("nnodes: 2", "nnodes: 1"));
    fleet.deliver("a");
    let refuse = |fleet: &mut Fleet, node: &str| {
        for phase in fleet.agents.get_mut(node).unwrap().members.values_mut() {
            *phase = ended(EndHow::Unfit { reason: "no certain reading".to_owned() }, false);
        }
        fleet.report(node);
    };
    refuse(&mut fleet, "a");
    let nodes = |fleet: &Fleet| fleet.core.gangs().next().unwrap().nodes();
    assert_eq!(nodes(&fleet), ["n-b".parse().unwrap()], "the other one is tried");
    fleet.deliver("b");
    refuse(&mut fleet, "b");
    fleet.settle();
    let job = fleet.job("j1");
    assert_eq!((job.state, job.attempts), (JobState::Pending, 0));
    let said = "a: refused to start a gang: no certain reading; left alone for 60 s";
    assert!(fleet.core.why(&job.id).unwrap().to_string().contains(said), "{}", job.reason);
    fleet.live(&["a", "b"], 55);
    assert_eq!(fleet.state("j1"), JobState::Pending, "nobody asks it again and again");
    // A person who has looked at it need not wait.
    fleet.maintain("b", Maintenance::Resume);
    fleet.settle();
    assert_eq!(
        (fleet.state("j1"), nodes(&fleet)),
        (JobState::Running, vec!["n-b".parse().unwrap()])
    );
    fleet.submit(
        "j2",
        &COMMAND.replace("nnodes: 2", "nnodes: 1").replace("gpus_per_node: 2", "gpus_per_node: 4"),
    );
    assert_eq!(fleet.state("j2"), JobState::Pending);
    fleet.live(&["a", "b"], 10);
    fleet.settle();
    assert_eq!(fleet.state("j2"), JobState::Running);
}

#[test]
fn a_job_that_waits_for_a_quarantined_block_starts_when_it_is_free_again() {
    let mut fleet = Fleet::new();
    let mut only = support::inventory("a", 4, false);
    // Room for a single block.
    only.ports = PortBlock { base: 20_000, size: 256 };
    fleet.add_node_with("a", only);
    fleet.submit("j1", &COMMAND.replace("nnodes: 2", "nnodes: 1"));
    fleet.deliver("a");
    for phase in fleet.agents.get_mut("a").unwrap().members.values_mut() {
        let reason = "port taken".to_owned();
        *phase = ended(EndHow::Refused { reason, busy_port: Some(20_000) }, false);
    }
    fleet.report("a");
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Pending);
    assert!(fleet.job("j1").reason.contains("no free port block"), "{}", fleet.job("j1").reason);
    // Contact goes on meanwhile; nothing else happens that could wake the queue.
    for _ in 0..QUARANTINE_MS / 2000 - 2 {
        fleet.wait_ms(2000);
        fleet.heartbeat("a");
    }
    assert_eq!(fleet.state("j1"), JobState::Pending);
    for _ in 0..4 {
        fleet.wait_ms(2000);
        fleet.heartbeat("a");
    }
    assert_eq!(fleet.state("j1"), JobState::Starting);
}

#[test]
fn a_job_chooses_models_and_leaves_nodes_out() {
    let mut fleet = two_workers();
    let one = |more: &str| {
        COMMAND
            .replace("nnodes: 2, gpus_per_node: 2", &format!("nnodes: 1, gpus_per_node: 1, {more}"))
    };
    fleet.submit("other", &one("gpu: A100"));
    assert_eq!(fleet.state("other"), JobState::Pending);
    assert!(fleet.job("other").reason.contains("a: has H100"), "{}", fleet.job("other").reason);
    fleet.stop("other");
    fleet.submit("any", &one("gpu: [A100, h100], exclude_nodes: [a]"));
    assert_eq!(fleet.state("any"), JobState::Starting);
    let gang = fleet.core.gangs().find(|gang| gang.job.as_str() == "any").unwrap().clone();
    assert!(gang.members.values().all(|member| member.node.as_str() == "n-b"));
    fleet.submit("none", &one("exclude_nodes: [a, b]"));
    let reason = fleet.job("none").reason.clone();
    assert!(reason.contains("a: excluded by the job"), "{reason}");
}

#[test]
fn a_cancel_during_a_rollback_sticks() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.deliver("a");
    fleet.deliver("b");
    for phase in fleet.agents.get_mut("a").unwrap().members.values_mut() {
        let reason = "port taken".to_owned();
        *phase = ended(EndHow::Refused { reason, busy_port: Some(20_000) }, false);
    }
    fleet.report("a");
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    assert_eq!(fleet.stop("j1"), Answer::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
}

#[test]
fn a_gang_that_never_gets_ready_fails_with_the_missing() {
    let mut fleet = two_workers();
    fleet.submit("j1", RAY);
    for _ in 0..130 {
        fleet.wait_ms(1000);
        fleet.heartbeat("a");
        fleet.heartbeat("b");
    }
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    assert!(fleet.job("j1").reason.contains("not acknowledged within 120 s by a, b"));
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Failed);
}

#[test]
fn one_checkpoint_directory_has_one_live_job() {
    let mut fleet = two_workers();
    let spec = COMMAND.replace("name: c", "name: c, checkpoint: {dir: /nfs/projects/rl/ckpt}");
    fleet.submit("j1", &spec);
    let answer = fleet.submit("j2", &spec);
    assert!(
        matches!(answer, Answer::Rejected(Rejected::CheckpointInUse { job, .. }) if job.as_str() == "j1")
    );
}

#[test]
fn a_deleted_job_leaves_nothing_and_others_stay() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.submit("j2", &COMMAND.replace("name: c", "name: d"));
    fleet.settle();
    let not_ended = Answer::Rejected(Rejected::NotEnded { state: "RUNNING" });
    assert_eq!(fleet.delete("j1"), not_ended);
    fleet.exit_ranks("j1", 0);
    let gang = fleet.job("j1").gang.clone();
    assert_eq!(fleet.delete("j1"), Answer::Deleted { gang: Some(gang.clone()) });
    assert!(fleet.core.jobs().all(|job| job.id.as_str() == "j2"));
    assert!(fleet.core.attempts().all(|attempt| attempt.job.as_str() == "j2"));
    assert!(fleet.core.gangs().all(|left| left.id != gang));
    assert_eq!(fleet.delete("j1"), Answer::Rejected(Rejected::NoSuchJob));
    assert_eq!(fleet.state("j2"), JobState::Running);
    // The id is free again, and an agent that still speaks of the old gang disturbs nobody.
    fleet.submit("j1", COMMAND);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    assert_ne!(fleet.job("j1").gang, gang);
}

#[test]
fn a_job_that_never_ran_is_deleted() {
    let mut fleet = two_workers();
    fleet.submit("big", &RAY.replace("nnodes: 2", "nnodes: 3"));
    assert!(matches!(fleet.delete("big"), Answer::Rejected(Rejected::NotEnded { .. })));
    fleet.stop("big");
    assert!(matches!(fleet.delete("big"), Answer::Deleted { .. }));
    assert_eq!(fleet.core.jobs().count(), 0);
}

#[test]
fn a_job_is_not_deleted_while_a_lost_node_may_run_it() {
    let mut fleet = stopped_behind_a_lost_node();
    assert_eq!(fleet.delete("j1"), Answer::Rejected(Rejected::NotGone));
    fleet.connect("b");
    fleet.settle();
    assert!(matches!(fleet.delete("j1"), Answer::Deleted { .. }));
    assert!(fleet.agents.values().all(|agent| agent.members.is_empty()));
}

#[test]
fn a_remembered_request_goes_with_its_job() {
    let mut fleet = two_workers();
    let key = Some(("k".to_owned(), [1; 32]));
    fleet.submit_with_key("j1", COMMAND, key.clone());
    fleet.stop("j1");
    fleet.settle();
    assert!(matches!(fleet.delete("j1"), Answer::Deleted { .. }));
    let again = fleet.submit_with_key("j2", COMMAND, key);
    assert!(matches!(again, Answer::Submitted { job } if job.as_str() == "j2"));
}

#[test]
fn a_restored_core_goes_on() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    std::mem::swap(&mut fleet.core, &mut fleet.replayed);
    fleet.replayed = gangline_coordinator::core::Core::new(1, fleet.now);
    for write in support::stored(&fleet.core) {
        fleet.replayed.restore(write);
    }
    fleet.connect("a");
    fleet.connect("b");
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    let phases = fleet.agents.values().flat_map(|agent| agent.members.values());
    assert!(phases.clone().count() == 2);
    assert!(phases.clone().all(|phase| matches!(phase, Phase::Running { .. })));
    fleet.exit_ranks("j1", 0);
    assert_eq!(fleet.state("j1"), JobState::Succeeded);
}

#[test]
fn the_board_shows_the_last_word_of_a_batch() {
    let mut fleet = two_workers();
    fleet.settle();
    fleet.heartbeat("b");
    fleet.wait_ms(SUSPECT_AFTER_MS);
    let board = Board::of(&fleet.core);
    let (node, session) = fleet.session("b").unwrap();
    // The connection times out when the lease does, so that both easily come in one batch.
    let later = fleet.now.plus_ms(LOST_AFTER_MS);
    let mut batch = Effects::default();
    fleet.core.step(Event::Disconnected { node, session }, later, &mut batch);
    fleet.core.step(Event::Tick, later, &mut batch);
    board.publish(&batch);
    assert_eq!(board.node("b").unwrap().node.reachability, Reachability::Lost);
}

#[test]
fn the_higher_priority_goes_first() {
    let mut fleet = two_workers();
    fleet.submit("first", COMMAND.replace("gpus_per_node: 2", "gpus_per_node: 4").as_str());
    for (id, priority) in [("low", "low"), ("later", "normal"), ("high", "high"), ("last", "75")] {
        let queue = format!("queue: {{priority: {priority}}}, launcher");
        let spec = COMMAND.replace("gpus_per_node: 2", "gpus_per_node: 4");
        fleet.submit(id, &spec.replace("launcher", &queue));
    }
    fleet.settle();
    let mut order = Vec::new();
    for running in ["first", "high", "last", "later", "low"] {
        assert_eq!(fleet.state(running), JobState::Running, "{running} after {order:?}");
        order.push(running);
        fleet.exit_ranks(running, 0);
        fleet.settle();
    }
}

#[test]
fn a32_a_project_has_a_highest_priority() {
    let mut fleet = two_workers();
    let spec = |priority: u8| {
        COMMAND.replace("launcher", &format!("queue: {{priority: {priority}}}, launcher"))
    };
    let refused = Answer::Rejected(Rejected::PriorityTooHigh { highest: 75 });
    assert_eq!(fleet.submit("j1", &spec(76)), refused);
    assert!(matches!(fleet.submit("j2", &spec(75)), Answer::Submitted { .. }));
    fleet.set_max_priority("rl", 10);
    assert_eq!(
        fleet.submit("j3", &spec(50)),
        Answer::Rejected(Rejected::PriorityTooHigh { highest: 10 })
    );
    fleet.set_max_priority("rl", 100);
    assert!(matches!(fleet.submit("j4", &spec(100)), Answer::Submitted { .. }));
    assert!(matches!(fleet.submit_as("other", "j5", &spec(76)), Answer::Rejected(_)));
}

#[test]
fn i12_a_cordoned_or_drained_node_gets_nothing_new() {
    let out_of_use = [
        Maintenance::Cordon { why: "fan".into() },
        Maintenance::Drain { why: "fan".into(), deadline_ms: None },
        Maintenance::Drain { why: "fan".into(), deadline_ms: Some(60_000) },
    ];
    for wanted in out_of_use {
        let mut fleet = two_workers();
        fleet.submit("before", COMMAND);
        fleet.settle();
        fleet.maintain("a", wanted.clone());
        fleet.submit("after", COMMAND);
        fleet.settle();
        let reason = fleet.job("after").reason.clone();
        assert!(reason.contains("by alice: fan"), "{wanted:?}: {reason}");
        // What runs there runs on, at least until a deadline.
        fleet.beat(59);
        assert_eq!(fleet.state("before"), JobState::Running, "{wanted:?}");
        assert_eq!(fleet.state("after"), JobState::Pending, "{wanted:?}");
        fleet.maintain("a", Maintenance::Resume);
        fleet.settle();
        assert_eq!(fleet.state("after"), JobState::Running, "{wanted:?}");
        fleet.beat(10);
        assert_eq!(fleet.state("before"), JobState::Running, "{wanted:?}");
    }
}

#[test]
fn a_drain_at_its_deadline_sends_jobs_back_to_their_place_in_the_queue() {
    let mut fleet = two_workers();
    fleet.submit("runs", COMMAND.replace("gpus_per_node: 2", "gpus_per_node: 4").as_str());
    fleet.submit("waits", COMMAND.replace("gpus_per_node: 2", "gpus_per_node: 4").as_str());
    fleet.settle();
    fleet.maintain("a", Maintenance::Drain { why: "fan".into(), deadline_ms: Some(30_000) });
    fleet.beat(29);
    assert_eq!(fleet.state("runs"), JobState::Running);
    fleet.beat(2);
    assert_eq!(fleet.state("runs"), JobState::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("runs"), JobState::Pending);
    let attempt = fleet.core.attempts().find(|attempt| attempt.number == 1).unwrap().clone();
    let cause = "a was drained: fan".to_owned();
    assert_eq!(attempt.outcome, Some(Outcome::Preempted { cause, keeps_nodes: true }));
    fleet.maintain("a", Maintenance::Resume);
    fleet.settle();
    assert_eq!((fleet.state("runs"), fleet.job("runs").attempts), (JobState::Running, 2));
    assert_eq!(fleet.state("waits"), JobState::Pending, "its place is behind");
    // A stop while it goes back sticks.
    fleet.maintain("b", Maintenance::Drain { why: "fan".into(), deadline_ms: Some(0) });
    fleet.beat(1);
    assert_eq!(fleet.state("runs"), JobState::Stopping);
    fleet.stop("runs");
    fleet.settle();
    assert_eq!(fleet.state("runs"), JobState::Cancelled);
}

#[test]
fn a_job_over_its_time_limit_is_stopped_politely() {
    let mut fleet = two_workers();
    fleet.submit("long", COMMAND.replace("{name: c,", "{name: c, timeout: 60s,").as_str());
    fleet.settle();
    assert_eq!(fleet.state("long"), JobState::Running);
    fleet.beat(58);
    assert_eq!(fleet.state("long"), JobState::Running);
    fleet.beat(3);
    assert_eq!(fleet.state("long"), JobState::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("long"), JobState::Timeout);
    let attempt = fleet.core.attempts().next().unwrap().clone();
    let cause = "its time limit of 60 s is over".to_owned();
    assert_eq!(attempt.outcome, Some(Outcome::TimedOut { cause: cause.clone() }));
    assert_eq!(fleet.job("long").reason, cause);
}

#[test]
fn a_job_that_went_back_to_the_queue_has_its_whole_time_again() {
    let mut fleet = two_workers();
    let spec =
        "{resources: {gpus_per_node: 4}, launcher: {type: command}, command: [x], timeout: 60s}";
    fleet.submit("moves", spec);
    fleet.settle();
    fleet.beat(40);
    fleet.maintain("a", Maintenance::Drain { why: "fan".into(), deadline_ms: Some(0) });
    fleet.beat(1);
    fleet.settle();
    assert_eq!((fleet.state("moves"), fleet.job("moves").attempts), (JobState::Running, 2));
    fleet.beat(50);
    assert_eq!(fleet.state("moves"), JobState::Running);
    fleet.beat(15);
    fleet.settle();
    assert_eq!(fleet.state("moves"), JobState::Timeout);
}

/// F5 with F15: a clock that is set does not make a repeated request a new one.
#[test]
fn a_repeated_submission_is_the_same_job_whatever_the_wall_clock_says() {
    let mut fleet = Fleet::new();
    let key = Some(("k".to_owned(), [1; 32]));
    fleet.submit_with_key("j1", COMMAND, key.clone());
    fleet.now.wall_ms += 365 * 24 * 3_600_000;
    fleet.wait_ms(1_000);
    let again = fleet.submit_with_key("j2", COMMAND, key.clone());
    assert_eq!(again, Answer::Submitted { job: JobId::new("j1").unwrap() });
    // After a day it is forgotten.
    fleet.wait_ms(24 * 3_600_000);
    fleet.wait_ms(1_000);
    let new = fleet.submit_with_key("j2", COMMAND, key);
    assert_eq!(new, Answer::Submitted { job: JobId::new("j2").unwrap() });
}

/// F46: what a restored store has its nodes do is newer than everything that they were told.
#[test]
fn a_restored_store_numbers_generations_above_those_that_agents_hold() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    let mut restored = Core::new(2, fleet.now);
    for mut write in stored(&fleet.core) {
        write.begin_again(fleet.now, false);
        restored.restore(write);
    }
    (fleet.core, fleet.replayed) = (restored, Core::new(2, fleet.now));
    for write in stored(&fleet.core) {
        fleet.replayed.restore(write);
    }
    fleet.agents.get_mut("a").unwrap().held = Generation { era: 1, n: 9 };
    fleet.connect("a");
    fleet.deliver("a");
    fleet.report("a");
    assert!(fleet.agents["a"].held > Generation { era: 1, n: 9 });
    assert_eq!(fleet.node("a").generation, fleet.agents["a"].held);
}

/// The files of a node are lost with the end of a log that only it had: the job goes on all the same.
#[test]
fn logs_that_can_never_come_hold_up_nothing() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    fleet.maintain("a", Maintenance::Drain { why: "fan".into(), deadline_ms: Some(0) });
    fleet.beat(1);
    for name in ["a", "b"] {
        fleet.deliver(name);
        for phase in fleet.agents.get_mut(name).unwrap().members.values_mut() {
            let Phase::Ended(end) = phase else { panic!("{phase:?}") };
            end.logs_complete = false;
        }
        fleet.report(name);
    }
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    fleet.agents.get_mut("a").unwrap().members.clear();
    fleet.report("a");
    for phase in fleet.agents.get_mut("b").unwrap().members.values_mut() {
        *phase = ended(EndHow::Signalled { signal: 15 }, true);
    }
    fleet.report("b");
    assert_eq!(fleet.state("j1"), JobState::Pending);
}
