//! What allocations cost, who is told, and what becomes of GPUs that are idle: as stories in virtual
//! time. `support` compares the books with a count of its own after every step.

mod support;

use gangline_common::ids::MemberId;
use gangline_coordinator::core::accounts::Classes;
use gangline_coordinator::core::controls::Control;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::idle::{IdlePolicy, WARN_AFTER_MS};
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::projects::ProjectChange;
use gangline_coordinator::core::stall::{StallKind, StallWord};
use gangline_coordinator::core::vacancy::Vacancy;
use proptest::prelude::*;
use support::{Fleet, ended};

/// Two nodes, two GPUs each.
const COMMAND: &str = "{name: c, resources: {nnodes: 2, gpus_per_node: 2}, launcher: {type: command}, command: [\"true\"], retry: {max: 0}}";
const MIN: u64 = 60_000;

fn two_workers() -> Fleet {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet.add_node("b", 4, false);
    fleet
}

fn seconds(fleet: &mut Fleet, seconds: u64) {
    let names: Vec<String> = fleet.agents.keys().cloned().collect();
    for _ in 0..seconds {
        names.iter().for_each(|name| fleet.heartbeat(name));
        fleet.wait_ms(1_000);
    }
}

#[test]
fn every_part_of_an_attempt_is_in_its_class() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    seconds(&mut fleet, 10);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    seconds(&mut fleet, 60);
    // Half of the GPUs' time was busy.
    fleet.measure("j1", 120_000, 60_000);
    fleet.checkpoint("j1", MemberId::Rank(0), "step-1", 0);
    seconds(&mut fleet, 30);
    fleet.measure("j1", 180_000, 90_000);
    let running = fleet.core.spent_so_far(fleet.now);
    assert_eq!(running[0].classes.productive_ms, 180_000);
    // Rank 0 fails; rank 1 is there for another 5 s.
    let agent = fleet.agents.get_mut("a").unwrap();
    let failed = ended(gangline_coordinator::core::gang::EndHow::Exited { code: 1 }, false);
    agent.members.values_mut().for_each(|phase| *phase = failed.clone());
    fleet.report("a");
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    seconds(&mut fleet, 5);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Failed);
    let [line] = fleet.books.as_slice() else { panic!("{:?}", fleet.books) };
    assert_eq!((line.job.as_str(), line.attempt, line.pool.as_str()), ("j1", 1, "default"));
    assert_eq!((line.user.as_str(), line.project.as_str()), ("alice", "rl"));
    assert_eq!(
        line.classes,
        Classes {
            productive_ms: 120_000,
            idle_ms: 120_000,
            unmeasured_ms: 0,
            startup_ms: 40_000,
            hung_ms: 0,
            lost_ms: 120_000,
            stopping_ms: 10_000,
        }
    );
    assert_eq!(fleet.told_of("job j1"), ["job.running", "job.interrupted", "job.failed"]);
}

/// A training that stands still is neither idle nor lost, also when its attempt ends so.
#[test]
fn a_stall_is_a_class_of_its_own() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    seconds(&mut fleet, 100);
    let job = fleet.job("j1").id.clone();
    let word = |kind, for_ms| {
        let (job, text) = (job.clone(), "no step".to_owned());
        Event::Stall(StallWord { job, attempt: 1, kind, for_ms, text })
    };
    // It stood still for 40 s when that was told, and for 10 s more.
    fleet.step(word(StallKind::Stalled, 40_000));
    seconds(&mut fleet, 10);
    fleet.step(word(StallKind::Resumed, 50_000));
    seconds(&mut fleet, 50);
    fleet.checkpoint("j1", MemberId::Rank(0), "step-1", 0);
    assert_eq!(fleet.core.spent_so_far(fleet.now)[0].classes.hung_ms, 4 * 50_000);
    // Then it works for 20 s, and stands still for 30 s until somebody stops it.
    seconds(&mut fleet, 40);
    fleet.step(word(StallKind::Hung, 20_000));
    seconds(&mut fleet, 10);
    assert_eq!(fleet.core.spent_so_far(fleet.now)[0].classes.hung_ms, 4 * 80_000);
    fleet.stop("j1");
    fleet.settle();
    let [line] = fleet.books.as_slice() else { panic!("{:?}", fleet.books) };
    let Classes { hung_ms, lost_ms, unmeasured_ms, .. } = line.classes;
    assert_eq!((hung_ms, lost_ms, unmeasured_ms), (4 * 80_000, 4 * 20_000, 4 * 110_000));
}

/// A stall that was over before the failure is not lost as well.
#[test]
fn a_stall_after_the_last_checkpoint_counts_once() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    seconds(&mut fleet, 20);
    fleet.checkpoint("j1", MemberId::Rank(0), "step-1", 0);
    seconds(&mut fleet, 40);
    let job = fleet.job("j1").id.clone();
    for (kind, text) in [(StallKind::Stalled, "no step"), (StallKind::Resumed, "step 2")] {
        let (job, text) = (job.clone(), text.to_owned());
        fleet.step(Event::Stall(StallWord { job, attempt: 1, kind, for_ms: 20_000, text }));
    }
    seconds(&mut fleet, 40);
    fleet.exit_ranks("j1", 1);
    fleet.settle();
    let [line] = fleet.books.as_slice() else { panic!("{:?}", fleet.books) };
    let Classes { hung_ms, lost_ms, unmeasured_ms, .. } = line.classes;
    assert_eq!((hung_ms, lost_ms, unmeasured_ms), (4 * 20_000, 4 * 60_000, 4 * 20_000));
}

#[test]
fn what_succeeds_loses_nothing_and_what_never_ran_was_all_startup() {
    let mut fleet = two_workers();
    fleet.submit("good", COMMAND);
    fleet.settle();
    seconds(&mut fleet, 20);
    fleet.exit_ranks("good", 0);
    fleet.submit("bad", COMMAND);
    seconds(&mut fleet, 3);
    fleet.stop("bad");
    fleet.settle();
    let of = |job: &str| fleet.books.iter().find(|line| line.job.as_str() == job).unwrap();
    assert_eq!(of("good").classes, Classes { unmeasured_ms: 80_000, ..Classes::default() });
    assert_eq!(of("bad").classes, Classes { startup_ms: 12_000, ..Classes::default() });
}

/// What a job holds on a lost node costs until there is evidence, whatever became of the job.
#[test]
fn a_lost_node_costs_until_it_is_released() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    fleet.disconnect("b");
    fleet.live(&["a"], 400);
    fleet.stop("j1");
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
    assert!(fleet.books.is_empty());
    fleet.live(&["a"], 100);
    fleet.force_release("b", "it is gone");
    let [line] = fleet.books.as_slice() else { panic!("{:?}", fleet.books) };
    assert_eq!(line.shares, [(2, 400_000), (2, 500_000)]);
    assert_eq!(line.classes.stopping_ms, 200_000);
    assert_eq!(fleet.told_of("node b"), ["node.joined", "node.lost", "node.released"]);
    assert_eq!(fleet.told_of("job j1"), ["job.running", "job.node_lost", "job.cancelled"]);
}

#[test]
fn an_agent_that_counts_anew_takes_nothing_back() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    seconds(&mut fleet, 50);
    fleet.measure("j1", 100_000, 100_000);
    seconds(&mut fleet, 50);
    fleet.measure("j1", 40_000, 0);
    let classes = fleet.core.spent_so_far(fleet.now)[0].classes;
    assert_eq!((classes.productive_ms, classes.idle_ms), (200_000, 80_000));
    assert_eq!(classes.unmeasured_ms, 120_000);
}

// ---------------------------------------------------------------- idle GPUs

/// Two GPUs on each of two nodes; minutes of the job, as agents report them.
fn idle_for(fleet: &mut Fleet, from: u64, minutes: u64) {
    for minute in from..from + minutes {
        seconds(fleet, 60);
        fleet.measure("j1", 2 * (minute + 1) * MIN, 0);
    }
}

#[test]
fn idle_gpus_are_warned_of_once_and_again_after_work() {
    let mut fleet = two_workers();
    fleet.submit("j1", COMMAND);
    fleet.settle();
    fleet.measure("j1", 0, 0);
    idle_for(&mut fleet, 0, WARN_AFTER_MS / MIN - 1);
    assert_eq!(fleet.told_of("job j1"), ["job.running"]);
    idle_for(&mut fleet, 29, 20);
    assert_eq!(fleet.told_of("job j1"), ["job.running", "job.idle"]);
    let said = &fleet.notices.last().unwrap().reason;
    assert!(said.starts_with("its 4 GPUs were idle for "), "{said}");
    // A little work.
    fleet.measure("j1", 2 * 50 * MIN, 1_000);
    for minute in 50..90 {
        seconds(&mut fleet, 60);
        fleet.measure("j1", 2 * (minute + 1) * MIN, 1_000);
    }
    assert_eq!(fleet.told_of("job j1"), ["job.running", "job.idle", "job.idle"]);
    assert_eq!(fleet.state("j1"), JobState::Running);
}

/// A job whose project warns of idle GPUs after two minutes and reclaims them after five.
fn reclaiming() -> Fleet {
    let mut fleet = two_workers();
    let idle = IdlePolicy { warn_after_ms: Some(2 * MIN), reclaim_after_ms: Some(5 * MIN) };
    fleet.change_project("rl", ProjectChange { idle: Some(idle), ..ProjectChange::default() });
    fleet.submit("j1", COMMAND);
    fleet.settle();
    fleet.measure("j1", 0, 0);
    fleet
}

#[test]
fn a_project_may_have_idle_gpus_reclaimed() {
    let mut fleet = reclaiming();
    idle_for(&mut fleet, 0, 4);
    assert_eq!(fleet.told_of("job j1"), ["job.running", "job.idle"]);
    let said = fleet.notices.last().unwrap().reason.clone();
    assert_eq!(said, "its 4 GPUs were idle for 2 min; they are reclaimed in 3 min");
    idle_for(&mut fleet, 4, 2);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
    let reason = fleet.job("j1").reason.clone();
    let expected = "stopped by gangline: its 4 GPUs were idle for 5 min, and project rl says to \
                    reclaim them";
    assert_eq!(reason, expected);
}

/// The counts of an agent that was cut off come at once. Its users have had no warning.
#[test]
fn nothing_is_reclaimed_before_its_warning() {
    let mut fleet = reclaiming();
    seconds(&mut fleet, 3600);
    fleet.measure("j1", 2 * 60 * MIN, 0);
    assert_eq!(fleet.told_of("job j1"), ["job.running", "job.idle"]);
    assert_eq!(fleet.state("j1"), JobState::Running);
    let said = fleet.notices.last().unwrap().reason.clone();
    assert_eq!(said, "its 4 GPUs were idle for 30 min; they are reclaimed in 3 min");
    idle_for(&mut fleet, 60, 2);
    assert_eq!(fleet.state("j1"), JobState::Running);
    idle_for(&mut fleet, 62, 1);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
}

/// Without readings nobody is idle, and what is busy on one node only is busy.
#[test]
fn what_is_not_measured_is_not_idle() {
    let mut fleet = two_workers();
    let idle = IdlePolicy { warn_after_ms: Some(MIN), reclaim_after_ms: Some(2 * MIN) };
    fleet.change_project("rl", ProjectChange { idle: Some(idle), ..ProjectChange::default() });
    fleet.submit("j1", COMMAND);
    fleet.settle();
    seconds(&mut fleet, 3600);
    fleet.measure("j1", 0, 0);
    assert_eq!(fleet.state("j1"), JobState::Running);
    assert_eq!(fleet.told_of("job j1"), ["job.running"]);
    for minute in 1..10 {
        seconds(&mut fleet, 60);
        fleet.measure("j1", 2 * minute * MIN, minute);
    }
    assert_eq!(fleet.told_of("job j1"), ["job.running"]);
    assert_eq!(fleet.state("j1"), JobState::Running);
}

#[test]
fn operators_acts_on_nodes_are_told() {
    let mut fleet = two_workers();
    fleet.maintain("a", Maintenance::Cordon { why: "fan".to_owned() });
    fleet.maintain("a", Maintenance::Drain { why: "fan".to_owned(), deadline_ms: None });
    fleet.maintain("a", Maintenance::Resume);
    assert_eq!(
        fleet.told_of("node a"),
        ["node.joined", "node.cordoned", "node.draining", "node.resumed"]
    );
    let reasons: Vec<&str> = fleet.notices[2..].iter().map(|n| n.reason.as_str()).collect();
    assert_eq!(reasons, ["by alice: fan", "by alice: fan", "by alice"]);
}

// ---------------------------------------------------------------- what nobody has

/// GPU-milliseconds of the open lines: closed to jobs, free in pieces, and waited for by project `rl`.
fn vacant(fleet: &Fleet) -> [u64; 3] {
    let lines = fleet.core.vacancies();
    let sum = |of: fn(&Vacancy) -> u64| lines.iter().map(of).sum();
    [
        sum(|line| line.quarantined_ms),
        sum(|line| line.fragmented_ms),
        sum(|line| line.queued_ms.get("rl").copied().unwrap_or(0)),
    ]
}

/// What a minute adds to them.
fn in_a_minute(fleet: &mut Fleet) -> [u64; 3] {
    let before = vacant(fleet);
    seconds(fleet, 60);
    let mut gpus = vacant(fleet);
    gpus.iter_mut().zip(before).for_each(|(after, before)| *after = (*after - before) / MIN);
    gpus
}

#[test]
fn gpus_that_nobody_has_are_in_the_class_of_the_reason() {
    let spec = |gpus: u32| {
        COMMAND.replace("nnodes: 2, gpus_per_node: 2", &format!("nnodes: 1, gpus_per_node: {gpus}"))
    };
    let mut fleet = two_workers();
    seconds(&mut fleet, 20);
    assert_eq!(in_a_minute(&mut fleet), [0, 0, 0], "free GPUs for which nobody waits");
    fleet.maintain("b", Maintenance::Cordon { why: "fan".to_owned() });
    assert_eq!(in_a_minute(&mut fleet), [4, 0, 0], "a closed node");
    fleet.submit("j1", &spec(3));
    fleet.settle();
    assert_eq!(in_a_minute(&mut fleet), [4, 0, 0], "one GPU is left, for whoever wants one");
    fleet.submit("j2", &spec(2));
    fleet.settle();
    assert_eq!(in_a_minute(&mut fleet), [4, 1, 2], "it is too few for who waits");
    fleet.control("j2", Control::Hold { why: String::new() });
    assert_eq!(in_a_minute(&mut fleet), [4, 0, 0], "who is held waits for no GPU");
    fleet.control("j2", Control::Release);
    fleet.maintain("b", Maintenance::Resume);
    fleet.settle();
    assert_eq!(in_a_minute(&mut fleet), [0, 0, 0], "everybody has what they want");
}

// ---------------------------------------------------------------- any history

#[derive(Debug, Clone)]
enum Act {
    Submit(u32),
    Stop(u8),
    Settle,
    Seconds(u64),
    Exit(u8, i32),
    Lose(bool),
    Connect(bool),
    Measure(u8, u64, u64),
    /// The coordinator starts anew from what it has stored.
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..=4u32).prop_map(Act::Submit),
        1 => any::<u8>().prop_map(Act::Stop),
        4 => Just(Act::Settle),
        3 => (1..200u64).prop_map(Act::Seconds),
        2 => (any::<u8>(), 0..2i32).prop_map(|(job, code)| Act::Exit(job, code)),
        1 => any::<bool>().prop_map(Act::Lose),
        1 => any::<bool>().prop_map(Act::Connect),
        2 => (any::<u8>(), 0..900_000u64, 0..900_000u64)
            .prop_map(|(job, measured, busy)| Act::Measure(job, measured, busy)),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The comparison is in `Fleet::step`: the sum over the classes is what is allocated, and that is
    /// the sum over the intervals. Here it is that every allocation of some history has its line.
    #[test]
    fn the_books_are_the_intervals_of_any_history(acts in proptest::collection::vec(act(), 1..40)) {
        let mut fleet = two_workers();
        let mut jobs = 0u8;
        let name = |away: bool| if away { "a" } else { "b" };
        for act in acts {
            let job = |number: u8| format!("j{}", number % jobs.max(1));
            match act {
                Act::Submit(gpus) => {
                    let spec = COMMAND.replace("gpus_per_node: 2", &format!("gpus_per_node: {gpus}"));
                    fleet.submit(&format!("j{jobs}"), &spec);
                    jobs += 1;
                }
                Act::Settle => fleet.settle(),
                Act::Seconds(long) => seconds(&mut fleet, long),
                Act::Lose(which) => fleet.disconnect(name(which)),
                Act::Connect(which) => {
                    fleet.disconnect(name(which));
                    fleet.connect(name(which));
                }
                Act::Stop(_) | Act::Exit(..) | Act::Measure(..) if jobs == 0 => {}
                Act::Stop(number) => {
                    fleet.stop(&job(number));
                }
                Act::Exit(number, code) => fleet.exit_ranks(&job(number), code),
                Act::Measure(number, measured, busy) => {
                    fleet.measure(&job(number), measured, busy.min(measured));
                }
                Act::Restart => restart(&mut fleet),
            }
        }
        for number in 0..jobs {
            fleet.stop(&format!("j{number}"));
        }
        for which in [true, false] {
            fleet.disconnect(name(which));
            fleet.connect(name(which));
        }
        fleet.settle();
        seconds(&mut fleet, 70);
        fleet.settle();
        prop_assert_eq!(fleet.core.spent_so_far(fleet.now), vec![]);
        prop_assert_eq!(fleet.core.accounts().count(), 0);
        let attempts = fleet.core.attempts().count();
        prop_assert_eq!(fleet.books.len(), attempts);
    }
}

/// Nothing is left but what was stored.
fn restart(fleet: &mut Fleet) {
    let names: Vec<String> = fleet.agents.keys().cloned().collect();
    names.iter().for_each(|name| fleet.disconnect(name));
    fleet.restart();
    names.iter().for_each(|name| fleet.connect(name));
}
