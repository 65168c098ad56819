//! Trainings that go on no more: what is remembered and told, and when the attempt ends. Stories in
//! virtual time.

mod support;

use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::core::stall::{StallKind, StallWord};
use support::Fleet;

/// One node, two GPUs.
const PLAIN: &str =
    "{name: c, resources: {gpus_per_node: 2}, launcher: {type: command}, command: [\"true\"]}";
const RESTARTS: &str = "{name: c, resources: {gpus_per_node: 2}, launcher: {type: command}, command: [\"true\"], hang: {after: 5m, action: restart}, retry: {max: 0}}";

fn running(spec: &str) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet.submit("j1", spec);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    fleet
}

fn say(fleet: &mut Fleet, attempt: u32, kind: StallKind) {
    let job = "j1".parse().unwrap();
    fleet.step(Event::Stall(StallWord {
        job,
        attempt,
        kind,
        text: "no step for 4 min".to_owned(),
    }));
}

#[test]
fn a_stall_is_told_and_remembered() {
    let mut fleet = running(PLAIN);
    for kind in [StallKind::Stalled, StallKind::Resumed, StallKind::Stalled, StallKind::Hung] {
        say(&mut fleet, 1, kind);
    }
    let told = ["job.running", "job.stalled", "job.resumed", "job.stalled", "job.hung"];
    assert_eq!(fleet.told_of("job j1"), told);
    assert_eq!(fleet.state("j1"), JobState::Running, "by default nothing is done");
    let job = fleet.core.jobs().find(|job| job.id.as_str() == "j1").unwrap();
    let last = job.history.last().unwrap();
    assert_eq!((last.state.as_str(), last.text.as_str()), ("RUNNING", "no step for 4 min"));
}

#[test]
fn a_job_that_wants_it_ends_when_it_hangs() {
    let mut fleet = running(RESTARTS);
    say(&mut fleet, 1, StallKind::Stalled);
    assert_eq!(fleet.state("j1"), JobState::Running);
    say(&mut fleet, 1, StallKind::Hung);
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Failed);
    let job = fleet.core.jobs().find(|job| job.id.as_str() == "j1").unwrap();
    assert_eq!(job.reason, "no progress: no step for 4 min");
    let told = ["job.running", "job.stalled", "job.hung", "job.interrupted", "job.failed"];
    assert_eq!(fleet.told_of("job j1"), told);
}

#[test]
fn a_word_about_an_attempt_that_is_over_is_none() {
    let mut fleet = running(RESTARTS);
    for attempt in [0, 2, u32::MAX] {
        say(&mut fleet, attempt, StallKind::Hung);
    }
    assert_eq!(fleet.told_of("job j1"), ["job.running"]);
    say(&mut fleet, 1, StallKind::Hung);
    for kind in [StallKind::Stalled, StallKind::Hung, StallKind::Resumed] {
        say(&mut fleet, 1, kind);
    }
    fleet.settle();
    for kind in [StallKind::Stalled, StallKind::Hung, StallKind::Resumed] {
        say(&mut fleet, 1, kind);
    }
    assert_eq!(
        fleet.told_of("job j1"),
        ["job.running", "job.hung", "job.interrupted", "job.failed"]
    );
}
