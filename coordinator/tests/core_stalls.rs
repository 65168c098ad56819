//! Trainings that go on no more: what is remembered and told, and when the attempt ends; and what is told
//! of their training checkpoints. Stories in virtual time.

mod support;

use gangline_common::ids::MemberKey;
use gangline_coordinator::core::event::{Copied, Event, Room, SavedCheckpoint, SavedWord};
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
        for_ms: 240_000,
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
fn a_slow_rank_is_told_and_its_end_remembered() {
    let mut fleet = running(RESTARTS);
    say(&mut fleet, 1, StallKind::Straggler);
    say(&mut fleet, 1, StallKind::StragglerOver);
    assert_eq!(fleet.told_of("job j1"), ["job.running", "job.straggler"]);
    assert_eq!(fleet.state("j1"), JobState::Running, "nothing is done about it");
    assert_eq!(fleet.job("j1").history.len(), 5);
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

/// One complete training checkpoint of 12.5 GiB, this old, with this much free.
fn saved(key: MemberKey, age_ms: u64, room: Room, problem: Option<&str>) -> SavedWord {
    let bytes = 25 << 29;
    let newest =
        SavedCheckpoint { name: "global_step_40".to_owned(), step: Some(40), bytes, age_ms };
    let copy = Copied { newest: None, problem: problem.map(str::to_owned) };
    SavedWord { key, newest: Some(newest), count: 1, bytes, room, copy: Some(copy) }
}

#[test]
fn little_room_for_training_checkpoints_is_told_once() {
    let mut fleet = running(PLAIN);
    let room = |free: u64, is_low, removed| Room {
        free_bytes: free << 30,
        next_bytes: 25 << 29,
        is_low,
        removed,
        last_removed: (removed > 0).then(|| "global_step_10".to_owned()),
    };
    let mut say = |room: Room, problem| {
        fleet.saved("j1", |key| saved(key, 5_000, room, problem));
        fleet.told_of("job j1").iter().map(|kind| kind.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(say(room(100, false, 0), None), ["job.running"]);
    let low = ["job.running", "job.disk_low"];
    for free in [20, 20, 15] {
        assert_eq!(say(room(free, true, 0), None), low);
    }
    let removed = ["job.running", "job.disk_low", "job.checkpoints_removed"];
    for _ in 0..2 {
        assert_eq!(say(room(15, true, 2), None), removed);
    }
    // There is room again, and then not.
    assert_eq!(say(room(100, false, 2), None), removed);
    assert_eq!(say(room(15, true, 2), None).len(), 4);
    for _ in 0..2 {
        let told = say(room(15, true, 2), Some("no route"));
        assert_eq!((told.len(), told[4].as_str()), (5, "job.copy_failed"));
    }
    let job = fleet.core.jobs().find(|job| job.id.as_str() == "j1").unwrap();
    let texts: Vec<&str> = job.history.iter().rev().take(4).map(|e| e.text.as_str()).collect();
    assert_eq!(texts[0], "a training checkpoint was not copied: no route");
    assert_eq!(
        texts[2],
        "2 of its oldest training checkpoints removed to make room, the last global_step_10; \
         15.0 GiB left"
    );
    assert_eq!(
        texts[3],
        "the file system of its training checkpoints has 20.0 GiB left, and the next one takes \
         about 12.5 GiB"
    );
}
