//! Who starts, who waits and who makes room, as stories: reservations, quotas, fair share, preemption.

mod support;

use gangline_common::ids::MemberId;
use gangline_coordinator::core::effect::{Answer, Rejected};
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::policy::Policy;
use gangline_coordinator::core::projects::Quota;
use support::{Fleet, inventory};

/// A command gang; `more` are further fields of the spec.
fn gang(nodes: u32, gpus: u32, more: &str) -> String {
    format!(
        "{{name: g{nodes}x{gpus}, resources: {{nnodes: {nodes}, gpus_per_node: {gpus}}}, \
         launcher: {{type: command}}, command: [x]{more}}}"
    )
}

fn fleet(nodes: &[&str]) -> Fleet {
    let mut fleet = Fleet::new();
    for name in nodes {
        fleet.add_node(name, 8, false);
    }
    fleet
}

fn at_most(maximum: u32) -> Quota {
    Quota { guaranteed: 0, maximum: Some(maximum) }
}

fn guaranteed(guaranteed: u32) -> Quota {
    Quota { guaranteed, maximum: None }
}

fn is_running(fleet: &Fleet, id: &str) -> bool {
    matches!(fleet.state(id), JobState::Starting | JobState::Running)
}

fn node_of(fleet: &Fleet, id: &str) -> Vec<String> {
    let job = fleet.job(id);
    let gang = fleet.core.gangs().find(|gang| gang.id == job.gang).unwrap();
    let name = |node| fleet.core.nodes().find(|n| n.id == node).unwrap().name.clone();
    gang.nodes().into_iter().map(name).collect()
}

const POOL: &str = "default";

/// A fleet of `nodes` in which `big` wants all nodes, was overtaken, and is due: `long` (2 h in all) and
/// `passed` run, each on a node of its own.
fn overtaken(nodes: &[&str], big: &str) -> Fleet {
    let mut fleet = fleet(nodes);
    fleet.submit("long", &gang(1, 8, ", timeout: 2h"));
    fleet.submit("big", big);
    fleet.submit("passed", &gang(1, 8, ""));
    fleet.settle();
    assert!(is_running(&fleet, "passed"), "what fits starts");
    fleet.beat(3_000);
    fleet
}

#[test]
fn a_gang_that_was_overtaken_long_enough_has_nodes_kept_for_it() {
    let mut fleet = overtaken(&["a", "b"], &gang(2, 8, ""));
    fleet.submit("late", &gang(1, 8, ""));
    fleet.exit_ranks("passed", 0);
    fleet.settle();
    assert_eq!((fleet.state("big"), fleet.state("late")), (JobState::Pending, JobState::Pending));
    fleet.exit_ranks("long", 0);
    fleet.settle();
    assert_eq!(fleet.state("big"), JobState::Running);
}

#[test]
fn what_ends_in_time_starts_on_nodes_that_are_kept() {
    let mut fleet = overtaken(&["a", "b"], &gang(2, 8, ""));
    // Of the two hours of `long` 4,200 s are left.
    fleet.submit("slow", &gang(1, 1, ", timeout: 2h"));
    fleet.submit("unknown", &gang(1, 1, ""));
    fleet.submit("quick", &gang(1, 1, ", timeout: 1h"));
    // How long failed jobs ran says nothing about others.
    fleet.exit_ranks("passed", 1);
    fleet.settle();
    assert_eq!(fleet.state("quick"), JobState::Running);
    for waits in ["big", "slow", "unknown"] {
        assert_eq!(fleet.state(waits), JobState::Pending, "{waits}");
    }
}

#[test]
fn a_gang_that_needs_every_node_is_not_starved_by_small_ones() {
    let mut fleet = fleet(&["a", "b", "c"]);
    for n in 0..3 {
        fleet.submit(&format!("s{n}"), &gang(1, 8, ""));
    }
    fleet.settle();
    fleet.submit("big", &gang(3, 8, ""));
    for n in 3..100 {
        fleet.submit(&format!("s{n}"), &gang(1, 8, ""));
    }
    let mut ended = 0;
    while fleet.state("big") != JobState::Running {
        fleet.beat(300);
        let running = (0..100).map(|n| format!("s{n}")).find(|id| is_running(&fleet, id));
        let Some(oldest) = running else { panic!("neither small gangs nor the big one run") };
        fleet.exit_ranks(&oldest, 0);
        fleet.settle();
        ended += 1;
        assert!(ended < 40, "the big gang starves");
    }
}

#[test]
fn half_of_a_kept_node_may_be_used_when_the_other_half_is_enough() {
    let mut fleet = overtaken(&["a", "b", "c"], &gang(3, 4, ""));
    assert_eq!(fleet.state("big"), JobState::Pending);
    fleet.submit("half", &gang(1, 4, ""));
    fleet.submit("more", &gang(1, 4, ""));
    fleet.settle();
    assert_eq!((fleet.state("half"), fleet.state("more")), (JobState::Running, JobState::Pending));
    fleet.exit_ranks("passed", 0);
    fleet.exit_ranks("long", 0);
    fleet.settle();
    assert_eq!(fleet.state("big"), JobState::Running);
}

#[test]
fn two_gangs_that_need_every_gpu_run_one_after_the_other() {
    for policy in Policy::ALL {
        let mut fleet = fleet(&["a", "b", "c", "d"]);
        fleet.core.set_policy(policy);
        for id in ["x", "y"] {
            fleet.submit(id, &gang(4, 8, ""));
        }
        fleet.settle();
        assert_eq!((fleet.state("x"), fleet.state("y")), (JobState::Running, JobState::Pending));
        fleet.exit_ranks("x", 0);
        fleet.settle();
        assert_eq!((fleet.state("x"), fleet.state("y")), (JobState::Succeeded, JobState::Running));
    }
}

#[test]
fn in_strict_order_nobody_passes_and_in_backfill_whatever_fits_starts() {
    for (policy, passes) in [(Policy::Fifo, false), (Policy::Backfill, true)] {
        let mut fleet = fleet(&["a", "b"]);
        fleet.core.set_policy(policy);
        fleet.submit("busy", &gang(1, 8, ""));
        fleet.submit("big", &gang(2, 8, ""));
        fleet.submit("small", &gang(1, 8, ""));
        fleet.settle();
        assert_eq!(is_running(&fleet, "small"), passes, "{policy:?}");
    }
}

#[test]
fn what_jobs_like_it_took_is_what_a_job_is_supposed_to_take() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.submit("before", &gang(1, 1, ""));
    fleet.settle();
    fleet.beat(600);
    fleet.exit_ranks("before", 0);
    fleet.settle();
    fleet.submit("long", &gang(1, 8, ", timeout: 2h"));
    fleet.submit("big", &gang(2, 8, ""));
    fleet.submit("passed", &gang(1, 8, ""));
    fleet.settle();
    fleet.beat(3_000);
    // Nobody knows how long this one takes, and the other one is like the first.
    fleet.submit("unlike", &gang(1, 2, ""));
    fleet.submit("alike", &gang(1, 1, ""));
    fleet.exit_ranks("passed", 0);
    fleet.settle();
    assert!(is_running(&fleet, "alike"));
    assert_eq!(fleet.state("unlike"), JobState::Pending);
}

#[test]
fn a_project_holds_at_most_its_maximum() {
    let mut fleet = fleet(&["a", "b"]);
    assert_eq!(fleet.set_quota("rl", POOL, at_most(8)), Answer::Done);
    fleet.submit("one", &gang(1, 8, ""));
    fleet.submit("two", &gang(1, 8, ""));
    fleet.submit_as("other", "theirs", &gang(1, 8, ""));
    fleet.settle();
    assert!(is_running(&fleet, "one") && is_running(&fleet, "theirs"));
    let reason = fleet.job("two").reason.clone();
    fleet.exit_ranks("theirs", 0);
    fleet.settle();
    assert_eq!(fleet.state("two"), JobState::Pending, "{reason}");
    let reason = &fleet.job("two").reason;
    assert!(reason.contains("may use 0 more GPUs in pool default"), "{reason}");
    fleet.exit_ranks("one", 0);
    fleet.settle();
    assert!(is_running(&fleet, "two"));
}

#[test]
fn quotas_that_cannot_be_kept_are_refused() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.submit("one", &gang(1, 8, ""));
    fleet.settle();
    let refused = |answer| match answer {
        Answer::Rejected(rejected) => rejected,
        other => panic!("{other:?}"),
    };
    let Rejected::QuotaBelowUse { held, jobs } = refused(fleet.set_quota("rl", POOL, at_most(4)))
    else {
        panic!("a quota below what runs")
    };
    assert_eq!((held, jobs.len(), jobs[0].as_str()), (8, 1, "one"));
    let both = Quota { guaranteed: 9, maximum: Some(8) };
    let contradiction = Rejected::GuaranteeAboveMaximum { guaranteed: 9, maximum: 8 };
    assert_eq!(refused(fleet.set_quota("rl", POOL, both)), contradiction);
    assert_eq!(fleet.set_quota("rl", POOL, guaranteed(10)), Answer::Done);
    let too_large = Rejected::GuaranteesTooLarge { gpus: 16, promised: 10 };
    assert_eq!(refused(fleet.set_quota("other", POOL, guaranteed(7))), too_large);
    let unknown = refused(fleet.set_quota("rl", "h10", at_most(4)));
    let known = vec![POOL.to_owned()];
    assert_eq!(unknown, Rejected::NoSuchPool { pool: "h10".to_owned(), known });
}

#[test]
fn a_guarantee_is_lent_and_taken_back_once() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_quota("rl", POOL, guaranteed(8));
    fleet.submit_as("other", "lent-1", &gang(1, 8, ", timeout: 9h"));
    fleet.settle();
    fleet.beat(100);
    fleet.submit_as("other", "lent-2", &gang(1, 8, ", timeout: 9h"));
    fleet.settle();
    assert!(is_running(&fleet, "lent-1") && is_running(&fleet, "lent-2"));
    fleet.submit("own", &gang(1, 8, ""));
    fleet.settle();
    fleet.settle();
    assert!(is_running(&fleet, "own"));
    // The one that had run for less was sent back, and says for whom.
    assert!(is_running(&fleet, "lent-1"));
    assert_eq!(fleet.state("lent-2"), JobState::Pending);
    let said = fleet.job("lent-2").history.iter().any(|t| t.text.contains("guaranteed GPUs"));
    assert!(said, "{:?}", fleet.job("lent-2").history);
    for _ in 0..20 {
        fleet.beat(30);
        fleet.settle();
    }
    assert_eq!((fleet.job("own").attempts, fleet.job("lent-1").attempts), (1, 1));
    assert_eq!(fleet.job("lent-2").attempts, 1);
    fleet.exit_ranks("own", 0);
    fleet.settle();
    assert_eq!(fleet.job("lent-2").attempts, 2);
}

#[test]
fn only_preemptible_jobs_of_lower_priority_make_room_and_none_within_its_minimum() {
    let mut fleet = fleet(&["a"]);
    fleet.set_max_priority("rl", 100);
    let low = ", queue: {priority: low, preemptible: true}, min_runtime: 60s";
    fleet.submit("low", &gang(1, 8, low));
    fleet.settle();
    fleet.submit("urgent", &gang(1, 8, ", queue: {priority: urgent}"));
    fleet.settle();
    assert_eq!((fleet.state("low"), fleet.state("urgent")), (JobState::Running, JobState::Pending));
    fleet.beat(61);
    fleet.settle();
    fleet.settle();
    assert_eq!((fleet.state("low"), fleet.state("urgent")), (JobState::Pending, JobState::Running));
    fleet.submit("more", &gang(1, 8, ", queue: {priority: urgent}"));
    fleet.settle();
    assert_eq!(fleet.state("more"), JobState::Pending);
    assert_eq!(fleet.job("urgent").attempts, 1);
}

#[test]
fn the_gangs_that_lose_least_are_sent_back() {
    let mut fleet = fleet(&["a", "b", "c"]);
    fleet.set_max_priority("rl", 100);
    let preemptible = ", queue: {preemptible: true}";
    fleet.submit("old", &gang(1, 8, preemptible));
    fleet.settle();
    fleet.beat(100);
    fleet.submit("wide", &gang(2, 4, preemptible));
    fleet.settle();
    fleet.beat(10);
    fleet.submit("half-1", &gang(1, 4, preemptible));
    fleet.submit("half-2", &gang(1, 4, preemptible));
    fleet.settle();
    fleet.beat(10);
    fleet.submit("urgent", &gang(1, 8, ", queue: {priority: urgent}"));
    fleet.settle();
    fleet.settle();
    // Either `old` (120 s x 8), or `wide` (20 s x 8) and one half (10 s x 4) on a node of it.
    assert!(is_running(&fleet, "urgent"));
    assert!(is_running(&fleet, "old"));
    assert_eq!(fleet.job("wide").attempts, 1);
    assert_eq!(fleet.state("wide"), JobState::Pending);
    // And may begin again on what is left over.
    let begun: u32 = ["half-1", "half-2"].map(|half| fleet.job(half).attempts).iter().sum();
    assert_eq!(begun, 3);
}

#[test]
fn nobody_is_sent_back_who_would_go_first_again() {
    let preemptible = ", queue: {preemptible: true}";
    let run = |fleet: &mut Fleet| {
        for _ in 0..20 {
            fleet.beat(10);
            fleet.settle();
        }
    };
    // A job within what its project is guaranteed is looked at before any priority.
    let mut owned = fleet(&["a"]);
    owned.set_max_priority("rl", 100);
    owned.set_quota("owner", POOL, guaranteed(8));
    owned.submit_as("owner", "own", &gang(1, 8, preemptible));
    owned.settle();
    owned.submit("urgent", &gang(1, 8, ", queue: {priority: urgent}"));
    run(&mut owned);
    assert_eq!((is_running(&owned, "own"), owned.job("own").attempts), (true, 1));

    // What the project is guaranteed is for `first`; `second` is behind the lent job.
    let mut lent = fleet(&["a", "b"]);
    lent.set_max_priority("other", 100);
    lent.set_quota("rl", POOL, guaranteed(8));
    lent.label("b", &[("zone", Some("z"))]);
    lent.maintain("b", Maintenance::Cordon { why: "disk".to_owned() });
    lent.submit_as("other", "lent", &gang(1, 8, ", queue: {priority: high}"));
    lent.settle();
    let labelled = gang(1, 8, "").replace("gpus_per_node", "labels: {zone: z}, gpus_per_node");
    lent.submit("first", &labelled);
    lent.submit("second", &gang(1, 8, ""));
    run(&mut lent);
    assert_eq!((is_running(&lent, "lent"), lent.job("lent").attempts), (true, 1));
    lent.stop("first");
    run(&mut lent);
    assert_eq!((is_running(&lent, "second"), lent.job("lent").attempts), (true, 1));
}

#[test]
fn an_elastic_gang_that_would_go_first_again_stays_whatever_it_has_grown_to() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_max_priority("rl", 100);
    fleet.set_quota("owner", POOL, guaranteed(8));
    let elastic = gang(1, 8, ", queue: {preemptible: true}").replace("nnodes: 1", "nnodes: 1..2");
    fleet.submit_as("owner", "grown", &elastic);
    fleet.settle();
    assert_eq!(node_of(&fleet, "grown").len(), 2);
    fleet.submit("urgent", &gang(1, 8, ", queue: {priority: urgent}"));
    for _ in 0..20 {
        fleet.beat(10);
        fleet.settle();
    }
    assert_eq!((is_running(&fleet, "grown"), fleet.job("grown").attempts), (true, 1));

    // What is guaranteed to others is taken back.
    fleet.set_quota("rl", POOL, guaranteed(8));
    for _ in 0..20 {
        fleet.beat(10);
        fleet.settle();
    }
    assert!(is_running(&fleet, "urgent") && is_running(&fleet, "grown"));
    assert_eq!((node_of(&fleet, "grown").len(), fleet.job("grown").attempts), (1, 2));
}

#[test]
fn gangs_of_one_project_that_would_go_first_again_are_not_sent_back_together() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_max_priority("rl", 100);
    fleet.set_quota("owner", POOL, guaranteed(8));
    for id in ["one", "two"] {
        fleet.submit_as("owner", id, &gang(1, 8, ", queue: {preemptible: true}"));
    }
    fleet.settle();
    // With one of them gone the other is what the project is guaranteed; with both, one would wait
    // for that, before whoever both made room for.
    fleet.submit("wide", &gang(2, 8, ", queue: {priority: urgent}"));
    for _ in 0..20 {
        fleet.beat(10);
        fleet.settle();
    }
    assert_eq!((fleet.job("one").attempts, fleet.job("two").attempts), (1, 1));
    assert!(is_running(&fleet, "one") && is_running(&fleet, "two"));
    fleet.stop("wide");
    fleet.submit("narrow", &gang(1, 8, ", queue: {priority: urgent}"));
    fleet.settle();
    fleet.settle();
    assert!(is_running(&fleet, "narrow"));
    assert_ne!(is_running(&fleet, "one"), is_running(&fleet, "two"));
}

#[test]
fn a_job_that_took_no_time_last_time_does_not_slip_onto_nodes_that_are_kept() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_max_priority("rl", 100);
    fleet.submit_as("other", "flash-1", &gang(1, 8, ""));
    fleet.settle();
    let flash = fleet.job("flash-1");
    fleet.exit_ranks("flash-1", 0);
    fleet.settle();
    let ended = fleet.job("flash-1").ended.unwrap();
    assert_eq!(ended.ms_since(flash.started.unwrap()), 0, "else this shows nothing");
    let slow = ", queue: {preemptible: true, priority: low}, grace_period: 1h";
    fleet.submit("slow", &gang(1, 8, slow));
    fleet.settle();
    fleet.submit("wide", &gang(2, 8, ", queue: {priority: urgent}"));
    assert_eq!(fleet.state("slow"), JobState::Stopping);
    fleet.submit_as("other", "flash-2", &gang(1, 8, ", queue: {priority: low}"));
    fleet.heartbeat("a");
    assert_eq!(fleet.state("flash-2"), JobState::Pending);
}

#[test]
fn two_claimants_do_not_count_on_the_same_nodes() {
    let mut fleet = fleet(&["a", "b", "c"]);
    for project in ["rl", "owner"] {
        fleet.set_max_priority(project, 100);
    }
    fleet.set_quota("owner", POOL, guaranteed(8));
    fleet.submit("low", &gang(1, 8, ", queue: {preemptible: true, priority: low}"));
    fleet.settle();
    fleet.beat(600);
    fleet.submit_as("third", "fixed", &gang(1, 8, ", min_runtime: 10h"));
    let slow = gang(1, 8, ", queue: {preemptible: true}, grace_period: 1h");
    fleet.submit_as("third", "slow", &slow);
    fleet.settle();
    fleet.submit_as("owner", "first", &gang(1, 8, ""));
    assert_eq!(fleet.state("slow"), JobState::Stopping);
    // `slow` goes for `first`. With it `second` would have its two nodes, without it has not.
    fleet.submit("second", &gang(2, 8, ", queue: {priority: high}"));
    let slow = node_of(&fleet, "slow");
    let others: Vec<String> =
        ["a", "b", "c"].iter().filter(|n| **n != slow[0]).map(|n| (*n).to_owned()).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    for _ in 0..20 {
        fleet.heartbeat(&slow[0]);
        fleet.live(&others, 1);
    }
    assert_eq!((is_running(&fleet, "low"), fleet.job("low").attempts), (true, 1));
    assert_eq!(fleet.state("first"), JobState::Pending);
}

#[test]
fn who_is_left_enough_in_one_pool_takes_nothing_in_another() {
    let mut fleet = fleet(&["b"]);
    fleet.set_max_priority("rl", 100);
    assert_eq!(fleet.set_pool("other", Some("more"), &["b"], &[]), Answer::Done);
    fleet.submit("low", &gang(1, 8, ", queue: {preemptible: true}"));
    fleet.settle();
    fleet.add_node("a", 8, false);
    fleet.submit("slow", &gang(1, 8, ", queue: {preemptible: true}, grace_period: 1h"));
    fleet.settle();
    fleet.submit("urgent", &gang(1, 8, ", queue: {priority: urgent}"));
    for _ in 0..20 {
        fleet.heartbeat("a");
        fleet.live(&["b"], 1);
    }
    assert_eq!(fleet.state("slow"), JobState::Stopping);
    assert_eq!((is_running(&fleet, "low"), fleet.job("low").attempts), (true, 1));
}

#[test]
fn nobody_starts_on_what_others_have_just_left_for_a_higher_priority() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_max_priority("rl", 100);
    let preemptible = ", queue: {preemptible: true}";
    fleet.submit("slow", &gang(1, 8, &format!("{preemptible}, grace_period: 1h")));
    fleet.submit("short", &gang(1, 8, &format!("{preemptible}, timeout: 5m")));
    fleet.settle();
    fleet.submit("urgent", &gang(2, 8, ", queue: {priority: urgent}"));
    // Only the agent of `short` hears of it yet.
    let (slow, short) = (node_of(&fleet, "slow"), node_of(&fleet, "short"));
    for _ in 0..20 {
        fleet.heartbeat(&slow[0]);
        fleet.live(&[&short[0]], 1);
    }
    // It would be over before the grace of `slow` is.
    assert_eq!((fleet.state("short"), fleet.job("short").attempts), (JobState::Pending, 1));
    fleet.settle();
    assert!(is_running(&fleet, "urgent"));
}

#[test]
fn no_project_loses_more_than_was_lent_to_it() {
    let mut fleet = fleet(&["a", "b", "c"]);
    fleet.set_quota("rl", POOL, guaranteed(16));
    fleet.set_quota("borrower", POOL, guaranteed(8));
    fleet.submit_as("third", "promised", &gang(1, 8, ", min_runtime: 10m"));
    fleet.submit_as("borrower", "one", &gang(1, 8, ""));
    fleet.submit_as("borrower", "two", &gang(1, 8, ""));
    fleet.settle();
    fleet.submit("pair", &gang(2, 8, ""));
    fleet.settle();
    fleet.beat(30);
    // One of `one` and `two` is the borrower's own.
    let running = |fleet: &Fleet| ["promised", "one", "two"].map(|job| is_running(fleet, job));
    assert_eq!((running(&fleet), is_running(&fleet, "pair")), ([true, true, true], false));
    fleet.beat(600);
    fleet.settle();
    assert!(is_running(&fleet, "pair"));
    let [promised, one, two] = running(&fleet);
    assert!(!promised && one != two, "{promised} {one} {two}");
}

#[test]
fn a_job_that_wants_a_whole_node_starts_on_none_that_is_kept() {
    let big = gang(2, 4, ", queue: {priority: high}");
    let mut fleet = overtaken(&["a", "b"], &big);
    fleet.exit_ranks("passed", 0);
    fleet.settle();
    // Four GPUs would be left for `big`, but not the node.
    fleet.submit(
        "whole",
        &gang(1, 4, "").replace("gpus_per_node", "exclusive: true, gpus_per_node"),
    );
    fleet.settle();
    assert_eq!(fleet.state("whole"), JobState::Pending);
    fleet.submit("part", &gang(1, 4, ""));
    fleet.settle();
    assert!(is_running(&fleet, "part"));
    fleet.exit_ranks("long", 0);
    fleet.settle();
    assert!(is_running(&fleet, "big"));
}

#[test]
fn what_is_safe_in_a_training_checkpoint_is_not_lost() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_max_priority("rl", 100);
    let preemptible = ", queue: {preemptible: true}";
    let urgent = gang(1, 8, ", queue: {priority: urgent}");
    let cause = |fleet: &Fleet, job: &str, number: u32| {
        let mut attempts = fleet.core.attempts();
        let attempt = attempts.find(|a| a.job.as_str() == job && a.number == number).unwrap();
        attempt.outcome.clone().unwrap().sentence()
    };
    fleet.submit("old", &gang(1, 8, preemptible));
    fleet.settle();
    fleet.beat(600);
    fleet.submit("young", &gang(1, 8, preemptible));
    fleet.settle();
    fleet.beat(60);
    fleet.checkpoint("old", MemberId::Rank(0), "global_step_40", 10_000);
    // The same again, as every report says it.
    fleet.checkpoint("old", MemberId::Rank(0), "global_step_40", 10_500);
    fleet.submit("urgent-1", &urgent);
    fleet.settle();
    fleet.settle();
    assert!(is_running(&fleet, "urgent-1") && is_running(&fleet, "young"));
    let said = cause(&fleet, "old", 1);
    assert!(said.ends_with("priority 100; loses 10 s of work since global_step_40"), "{said}");

    // Its next attempt has made none: what the one before has made says nothing of this one's work.
    fleet.exit_ranks("urgent-1", 0);
    fleet.settle();
    assert!(is_running(&fleet, "old"));
    fleet.beat(400);
    // One that is older than the attempt says as little.
    fleet.checkpoint("old", MemberId::Rank(0), "global_step_40", 3_600_000);
    fleet.checkpoint("young", MemberId::Rank(0), "global_step_20", 399_000);
    fleet.submit("urgent-2", &urgent);
    fleet.settle();
    fleet.settle();
    assert!(is_running(&fleet, "old"), "it loses 400 s; young would lose 399");
    let said = cause(&fleet, "young", 1);
    assert!(said.ends_with("loses 6 min of work since global_step_20"), "{said}");
}

#[test]
fn only_rank_0_of_the_attempt_that_runs_speaks_of_training_checkpoints() {
    let mut fleet = fleet(&["a", "b", "c"]);
    fleet.set_max_priority("rl", 100);
    fleet.submit("wide", &gang(2, 8, ", queue: {preemptible: true}"));
    fleet.settle();
    fleet.beat(600);
    fleet.submit("young", &gang(1, 8, ", queue: {preemptible: true}"));
    fleet.settle();
    fleet.beat(600);
    fleet.checkpoint("wide", MemberId::Rank(1), "global_step_40", 1_000);
    fleet.submit("urgent", &gang(1, 8, ", queue: {priority: urgent}"));
    fleet.settle();
    fleet.settle();
    assert_eq!((is_running(&fleet, "wide"), is_running(&fleet, "urgent")), (true, true));
    assert_eq!(fleet.state("young"), JobState::Pending);
}

#[test]
fn nobody_is_sent_back_when_that_would_not_be_enough() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_max_priority("rl", 100);
    fleet.submit("firm", &gang(1, 8, ""));
    fleet.submit("soft", &gang(1, 8, ", queue: {preemptible: true}"));
    fleet.settle();
    fleet.submit("urgent", &gang(2, 8, ", queue: {priority: urgent}"));
    fleet.settle();
    assert!(is_running(&fleet, "firm") && is_running(&fleet, "soft"));
}

#[test]
fn one_that_was_sent_back_sends_nobody_back() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.set_max_priority("rl", 100);
    let middle = ", queue: {priority: normal, preemptible: true}";
    fleet.submit("middle", &gang(1, 8, middle));
    fleet
        .submit("low", &gang(1, 8, ", queue: {priority: low, preemptible: true}, min_runtime: 1h"));
    fleet.settle();
    fleet.submit("urgent", &gang(1, 8, ", queue: {priority: urgent}"));
    fleet.settle();
    fleet.settle();
    assert_eq!(fleet.state("middle"), JobState::Pending);
    fleet.beat(3_700);
    fleet.settle();
    assert_eq!((fleet.state("middle"), fleet.state("low")), (JobState::Pending, JobState::Running));
}

#[test]
fn who_has_used_less_goes_first_among_equals() {
    let mut fleet = fleet(&["a"]);
    fleet.submit("used", &gang(1, 8, ""));
    fleet.settle();
    fleet.beat(300);
    fleet.submit("mine", &gang(1, 8, ""));
    fleet.submit_as("other", "theirs", &gang(1, 8, ""));
    fleet.exit_ranks("used", 0);
    fleet.settle();
    assert!(is_running(&fleet, "theirs"), "{}", fleet.job("theirs").reason);
    assert_eq!(fleet.state("mine"), JobState::Pending);
    // Priority goes before.
    fleet.submit("high", &gang(1, 8, ", queue: {priority: high}"));
    fleet.submit_as("third", "fresh", &gang(1, 8, ""));
    fleet.exit_ranks("theirs", 0);
    fleet.settle();
    assert!(is_running(&fleet, "high"));
}

#[test]
fn a_project_that_has_used_much_is_not_passed_for_ever() {
    let mut fleet = fleet(&["a"]);
    fleet.submit("used", &gang(1, 8, ""));
    fleet.settle();
    fleet.beat(3_000);
    fleet.submit("mine", &gang(1, 8, ""));
    // A project of its own each, and none has used as much; all wait since the same moment.
    let others: Vec<String> = (0..30).map(|n| format!("t{n}")).collect();
    for other in &others {
        fleet.submit_as(&format!("p-{other}"), other, &gang(1, 8, ""));
    }
    fleet.exit_ranks("used", 0);
    fleet.settle();
    let mut passed = 0;
    while fleet.state("mine") == JobState::Pending {
        fleet.beat(600);
        let running = others.iter().find(|id| is_running(&fleet, id));
        fleet.exit_ranks(running.expect("somebody runs"), 0);
        fleet.settle();
        passed += 1;
        assert!(passed < 20, "passed by nearly all");
    }
    assert!(passed > 1, "the others went first for a while");
}

#[test]
fn a_gang_lies_in_one_rack_when_that_costs_nothing() {
    let mut fleet = Fleet::new();
    for (name, rack) in [("a", "r1"), ("b", "r2"), ("c", "r1"), ("d", "r2"), ("e", "r2")] {
        let mut inventory = inventory(name, 8, false);
        inventory.labels = vec![("rack".to_owned(), rack.to_owned())];
        fleet.add_node_with(name, inventory);
    }
    fleet.submit("three", &gang(3, 8, ""));
    fleet.submit("two", &gang(2, 8, ""));
    fleet.settle();
    assert_eq!(node_of(&fleet, "three"), ["b", "d", "e"]);
    assert_eq!(node_of(&fleet, "two"), ["a", "c"]);
}

#[test]
fn empty_nodes_stay_empty() {
    let mut fleet = fleet(&["a", "b", "c"]);
    for n in 0..4 {
        fleet.submit(&format!("j{n}"), &gang(1, 4, ""));
    }
    fleet.submit("whole", &gang(1, 8, ""));
    fleet.settle();
    assert!(is_running(&fleet, "whole"));
}
