//! Which of several good nodes a gang is given, what that does not change, what is told of nodes that
//! differ, and what becomes of checks of the network, as stories.

mod support;

use gangline_common::ids::NodeId;
use gangline_coordinator::core::effect::Answer;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::gang::EndHow;
use gangline_coordinator::core::health::{Condition, Health, Level};
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::node::{Inventory, Reachability};
use gangline_coordinator::core::node_test::{
    KEPT, Measured, NodeTest, Pair, Rate, Said, TestState,
};
use gangline_coordinator::core::recovery::{Again, Cause, Verdict};
use gangline_coordinator::core::reputation::{BLAMED, HALF_LIFE_MS, SUSPECTED};
use support::{Fleet, ended, verdict};

fn command(name: &str, nnodes: u32) -> String {
    format!(
        "{{name: {name}, resources: {{nnodes: {nnodes}, gpus_per_node: 4}}, \
         launcher: {{type: command}}, command: [\"true\"], retry: {{max: 0}}}}"
    )
}

fn nodes(count: usize) -> Fleet {
    let mut fleet = Fleet::new();
    for n in 1..=count {
        fleet.add_node(&format!("n{n}"), 4, false);
    }
    fleet
}

/// The names of the nodes that a job runs on.
fn on(fleet: &Fleet, job: &str) -> Vec<String> {
    let id = fleet.job(job).gang.clone();
    let gang = fleet.core.gangs().find(|gang| gang.id == id).unwrap();
    gang.nodes().iter().map(|node| node.as_str().trim_start_matches("n-").to_owned()).collect()
}

fn doubt(fleet: &Fleet, node: &str) -> u32 {
    fleet.node(node).doubt.as_ref().map_or(0, |doubt| doubt.at(fleet.now))
}

/// A job runs and fails, and this is found to be why.
fn fails(fleet: &mut Fleet, job: &str, nnodes: u32, found: Verdict) {
    fleet.verdict = Some(found);
    fleet.submit(job, &command(job, nnodes));
    fleet.settle();
    let gang = fleet.job(job).gang.clone();
    let names: Vec<String> = fleet.agents.keys().cloned().collect();
    for name in names {
        let agent = fleet.agents.get_mut(&name).unwrap();
        let mine = agent
            .members
            .iter_mut()
            .filter(|(key, phase)| key.gang == gang && phase.holds_resources());
        mine.for_each(|(_, phase)| *phase = ended(EndHow::Signalled { signal: 9 }, false));
        fleet.report(&name);
    }
    fleet.settle();
    assert_eq!(fleet.state(job), JobState::Failed);
}

fn of_node(fleet: &Fleet, again: Again, node: &str) -> Verdict {
    Verdict { node: Some(fleet.node(node).id.clone()), ..verdict(again) }
}

fn succeeds(fleet: &mut Fleet, job: &str, nnodes: u32) {
    fleet.submit(job, &command(job, nnodes));
    fleet.settle();
    fleet.exit_ranks(job, 0);
    fleet.settle();
    assert_eq!(fleet.state(job), JobState::Succeeded);
}

#[test]
fn a_node_that_ended_an_attempt_is_taken_last_until_it_is_trusted_again() {
    let mut fleet = nodes(2);
    let found = of_node(&fleet, Again::After(Cause::Hardware), "n1");
    fails(&mut fleet, "bad", 1, found);
    assert_eq!((doubt(&fleet, "n1"), doubt(&fleet, "n2")), (BLAMED, 0));
    let why = fleet.node("n1").doubt.clone().unwrap().why;
    assert!(why.contains("ray_runtime") && !why.contains("raylet"), "no words of its log: {why}");
    fleet.submit("next", &command("next", 1));
    fleet.settle();
    assert_eq!(on(&fleet, "next"), ["n2"], "the other one does as well");
    // Nobody waits because of it.
    fleet.submit("more", &command("more", 1));
    fleet.settle();
    assert_eq!((fleet.state("more"), on(&fleet, "more")), (JobState::Running, vec!["n1".into()]));
    fleet.exit_ranks("more", 0);
    fleet.exit_ranks("next", 0);
    fleet.settle();
    assert_eq!(doubt(&fleet, "n1"), BLAMED / 2, "one that ended well takes half away");
    succeeds(&mut fleet, "again", 2);
    assert_eq!(doubt(&fleet, "n1"), BLAMED / 4);
    fleet.submit("trusted", &command("trusted", 1));
    fleet.settle();
    assert_eq!(on(&fleet, "trusted"), ["n1"], "by name again");
}

#[test]
fn time_takes_doubt_away_also_over_a_restart() {
    let mut fleet = nodes(2);
    let found = of_node(&fleet, Again::After(Cause::Hardware), "n1");
    fails(&mut fleet, "bad", 1, found);
    fleet.restart();
    fleet.connect("n1");
    fleet.connect("n2");
    fleet.settle();
    fleet.submit("next", &command("next", 1));
    fleet.settle();
    assert_eq!(on(&fleet, "next"), ["n2"], "it was stored");
    fleet.exit_ranks("next", 0);
    fleet.settle();
    fleet.wait_ms(2 * HALF_LIFE_MS);
    fleet.connect("n1");
    fleet.connect("n2");
    fleet.settle();
    assert_eq!(doubt(&fleet, "n1"), BLAMED / 4);
    fleet.submit("later", &command("later", 1));
    fleet.settle();
    assert_eq!(on(&fleet, "later"), ["n1"]);
    fleet.wait_ms(3 * HALF_LIFE_MS);
    assert_eq!(fleet.node("n1").doubt, None, "forgotten");
}

#[test]
fn who_has_not_come_back_yet_after_a_restart_is_not_doubted_for_a_lost_node() {
    let mut fleet = nodes(2);
    fleet.submit("j", &command("j", 2).replace("max: 0", "max: 1"));
    fleet.settle();
    assert_eq!(fleet.state("j"), JobState::Running);
    fleet.verdict = None;
    fleet.exit_ranks("j", 1);
    fleet.settle();
    assert_eq!(fleet.examined.len(), 1, "somebody looks into it");
    fleet.restart();
    let away = fleet.node("n1").reachability;
    assert!(away != Reachability::Reachable && away != Reachability::Lost, "{away:?}");
    let job = fleet.job("j").id.clone();
    let found = Box::new(verdict(Again::After(Cause::NodeLost)));
    fleet.step(Event::Examined { job, attempt: 1, verdict: found });
    assert_eq!((doubt(&fleet, "n1"), doubt(&fleet, "n2")), (0, 0));
}

#[test]
fn what_a_user_can_mend_says_nothing_of_nodes_and_a_hang_a_little_of_each() {
    let mut fleet = nodes(2);
    fails(&mut fleet, "code", 2, verdict(Again::Never));
    fails(&mut fleet, "storage", 2, verdict(Again::After(Cause::Storage)));
    assert_eq!((doubt(&fleet, "n1"), doubt(&fleet, "n2")), (0, 0));
    fails(&mut fleet, "hang", 2, verdict(Again::After(Cause::NcclTimeout)));
    assert_eq!((doubt(&fleet, "n1"), doubt(&fleet, "n2")), (SUSPECTED, SUSPECTED));
    // An operator has looked at it.
    fleet.maintain("n1", Maintenance::Resume);
    assert_eq!((doubt(&fleet, "n1"), doubt(&fleet, "n2")), (0, SUSPECTED));
}

#[test]
fn a_degraded_node_is_taken_last_and_a_sick_gpu_is_held_against_its_node() {
    let mut fleet = nodes(3);
    let condition = |level, rule: &str| Condition {
        rule: rule.to_owned(),
        component: "node".to_owned(),
        level,
        blocks_start: false,
        shadow: false,
        action: String::new(),
        reason: "it is slow".to_owned(),
        evidence: String::new(),
        clears: String::new(),
        since_ms: 1,
    };
    let say = |fleet: &mut Fleet, node: &str, conditions: Vec<Condition>| {
        let (id, session) = fleet.session(node).unwrap();
        let health = Box::new(Health { conditions, blind: Vec::new() });
        fleet.step(Event::Diagnosed { node: id, session, health });
    };
    say(&mut fleet, "n1", vec![condition(Level::Degraded, "pcie")]);
    fleet.submit("a", &command("a", 1));
    fleet.settle();
    assert_eq!(on(&fleet, "a"), ["n2"]);
    say(&mut fleet, "n2", vec![condition(Level::Fatal, "xid-fatal")]);
    assert_eq!(doubt(&fleet, "n2"), BLAMED);
    fleet.settle();
    assert_eq!((fleet.state("a"), on(&fleet, "a")), (JobState::Running, vec!["n3".into()]));
    say(&mut fleet, "n1", vec![]);
    fleet.submit("b", &command("b", 1));
    fleet.settle();
    assert_eq!(on(&fleet, "b"), ["n1"], "well again");
}

#[test]
fn a_gang_whose_nodes_differ_starts_and_its_owner_is_told() {
    let mut fleet = nodes(2);
    for (n, driver) in [("n1", "580.82"), ("n2", "575.57")] {
        let node = fleet.node(n);
        let (id, session) = fleet.session(n).unwrap();
        let versions = vec![("driver".to_owned(), driver.to_owned())];
        let has = Inventory::clone(node.inventory.as_ref().unwrap());
        let inventory = Box::new(Inventory { versions, ..has });
        fleet.step(Event::Inventory { node: id, session, inventory, name: n.to_owned() });
    }
    fleet.submit("alone", &command("alone", 1));
    fleet.settle();
    assert!(!fleet.told_of("job alone").contains(&"job.versions_differ"));
    fleet.exit_ranks("alone", 0);
    fleet.settle();
    fleet.submit("both", &command("both", 2));
    fleet.settle();
    assert_eq!(fleet.state("both"), JobState::Running);
    assert!(fleet.told_of("job both").contains(&"job.versions_differ"));
    let shown = fleet.job("both").history.iter().any(|entry| {
        entry.text == "warning: its nodes differ: driver 575.57 on n2 and 580.82 on n1"
    });
    assert!(shown, "{:?}", fleet.job("both").history);
    // An agent may say anything: the record of a job has only so much room for it.
    let has = Inventory::clone(fleet.node("n2").inventory.as_ref().unwrap());
    let (node, session) = fleet.session("n2").unwrap();
    let versions = vec![("driver".to_owned(), "9".repeat(5000))];
    let inventory = Box::new(Inventory { versions, ..has });
    fleet.step(Event::Inventory { node, session, inventory, name: "n2".to_owned() });
    fleet.exit_ranks("both", 0);
    fleet.settle();
    fleet.submit("long", &command("long", 2));
    fleet.settle();
    let longest = fleet.job("long").history.iter().map(|entry| entry.text.len()).max();
    assert_eq!(longest, Some(1024));
}

fn test_of(job: &str, begun: gangline_common::time::Timestamp) -> Box<NodeTest> {
    Box::new(NodeTest {
        job: job.parse().unwrap(),
        by: "ops".to_owned(),
        pool: "default".to_owned(),
        gpus_per_node: 0,
        begun,
        ended_wall_ms: None,
        state: TestState::Open,
    })
}

fn measured(fleet: &Fleet, rates: [u64; 3]) -> TestState {
    let pairs = [(0, 1), (0, 2), (1, 2)].map(|(a, b)| {
        let bytes_per_s = rates[a].min(rates[b]);
        Pair { a: a as u32, b: b as u32, rate: Rate { bytes_per_s, latency_ns: 1 } }
    });
    let nodes: Vec<(NodeId, String)> =
        ["n1", "n2", "n3"].map(|name| (fleet.node(name).id.clone(), name.to_owned())).into();
    let said = Said { pairs: pairs.into(), ..Said::default() };
    TestState::Measured(Measured::of(said, nodes).unwrap())
}

#[test]
fn a_check_is_kept_with_its_job_and_names_the_slow_node_once() {
    let mut fleet = nodes(3);
    fleet.node_test = Some(test_of("check", fleet.now));
    fleet.submit("check", &command("check", 3));
    fleet.settle();
    assert!(fleet.core.node_tests().next().unwrap().is_open());
    fleet.restart();
    let job = fleet.job("check").id.clone();
    let state = Box::new(measured(&fleet, [9_000_000_000, 9_000_000_000, 2_000_000_000]));
    fleet.step(Event::NodeTested { job: job.clone(), state });
    let test = fleet.core.node_tests().next().unwrap().clone();
    let slow: Vec<_> = test.measured().unwrap().slow().map(|node| node.name.clone()).collect();
    assert_eq!(slow, ["n3"]);
    assert_eq!(fleet.told_of("node n3").iter().filter(|kind| **kind == "node.slow").count(), 1);
    let last = fleet.node("n3").history.last().unwrap().text.clone();
    assert!(last.contains("2000 of 9000 MB/s"), "{last}");
    assert!(fleet.node("n3").cordon.is_none(), "a person decides");
    // Whoever reads logs may say it twice.
    let state = Box::new(TestState::Failed { why: "no".to_owned() });
    fleet.step(Event::NodeTested { job, state });
    assert!(fleet.core.node_tests().next().unwrap().measured().is_some());
}

#[test]
fn only_so_many_checks_are_kept() {
    let mut fleet = nodes(2);
    for n in 0..=KEPT {
        let job = format!("c{n}");
        fleet.node_test = Some(test_of(&job, fleet.now));
        assert!(matches!(fleet.submit(&job, &command("c", 2)), Answer::Submitted { .. }));
        let state = Box::new(TestState::Failed { why: "no".to_owned() });
        fleet.step(Event::NodeTested { job: fleet.job(&job).id.clone(), state });
        fleet.stop(&job);
        fleet.wait_ms(1);
    }
    assert_eq!(fleet.core.node_tests().count(), KEPT);
    assert!(fleet.core.node_tests().all(|test| test.job.as_str() != "c0"), "the oldest goes");
}
