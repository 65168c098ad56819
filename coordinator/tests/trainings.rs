//! Steps that are read from stored logs, as a coordinator does that was started again; and the page on
//! an attempt that failed.

mod support;

use std::path::Path;

use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::LogChunk;
use gangline_coordinator::board::JobSnapshot;
use gangline_coordinator::core::gang::Gang;
use gangline_coordinator::core::job::{Attempt, Outcome};
use gangline_coordinator::ingest::logs::Logs;
use gangline_coordinator::report::{BYTES, LEAST_BYTES, nodes, text};
use gangline_coordinator::training::Trainings;
use gangline_diagnosis::{Case, Rules, Source};
use std::sync::Arc;
use support::Fleet;

const SPEC: &str =
    "{name: c, resources: {gpus_per_node: 2}, launcher: {type: command}, command: [\"true\"]}";

/// A job that runs, with this many attempts; the last one runs.
fn snapshot(attempts: u32) -> JobSnapshot {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet.submit("j1", SPEC);
    fleet.settle();
    let job = fleet.core.jobs().next().unwrap().clone();
    let first = fleet.core.attempts().next().unwrap();
    let attempts = (1..=attempts).map(|number| {
        let mut attempt = Attempt::clone(first);
        (attempt.number, attempt.epoch.n) = (number, number);
        if number < attempts {
            attempt.ended = Some(attempt.started);
            attempt.outcome = Some(Outcome::Succeeded);
        }
        Arc::new(attempt)
    });
    let attempts = attempts.collect();
    JobSnapshot { job, attempts, gang: None, checkpoint: None, saved: None }
}

/// What rank 0 has written in an attempt.
fn write(root: &Path, snapshot: &JobSnapshot, number: usize, text: &str) {
    let attempt = &snapshot.attempts[number - 1];
    let directory = root.join(attempt.gang.as_str()).join(attempt.epoch.to_string()).join("0");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("output.log"), text).unwrap();
}

/// After every attempt of [`snapshot`], however long this machine has been up.
const STARTED: Timestamp = Timestamp { boot_ms: 2_000_000, wall_ms: 1_800_001_000_000 };

fn trainings(root: &Path) -> Trainings {
    Trainings::new(Logs::new(root.to_owned()), STARTED)
}

/// Step and attempt of every row.
fn rows(trainings: &Trainings, snapshot: &JobSnapshot) -> Vec<(u64, u32)> {
    trainings.read(snapshot, |training| {
        training.series.since(0).0.map(|row| (row.step, row.attempt)).collect()
    })
}

#[test]
fn a_later_attempt_goes_on_from_its_training_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let job = snapshot(3);
    write(root.path(), &job, 1, "step:1 - loss:3\nstep:2 - loss:2\nstep:3 - loss:1\n");
    write(root.path(), &job, 2, "resumes\nstep:3 - loss:1\n");
    let known = trainings(root.path());
    assert_eq!(rows(&known, &job), [(1, 1), (2, 1), (3, 2)]);
    // The second did again what the first had done, the third has said nothing.
    assert!(!known.has_progressed(&job, 2) && !known.has_progressed(&job, 3));
    write(root.path(), &job, 3, "step:3 - loss:1\nstep:4 - loss:0.5\nstep:5 - lo");
    let again = trainings(root.path());
    assert_eq!(rows(&again, &job), [(1, 1), (2, 1), (3, 3), (4, 3)], "the last line is not whole");
    assert!(again.has_progressed(&job, 3) && !again.has_progressed(&job, 2));
    // When they came is not known, and so no pace is learned.
    let shown = again.shown(&job.job.id).progress.unwrap();
    assert_eq!((shown.step, shown.step_ms, shown.last_step), (4, None, None));
}

#[test]
fn of_a_long_log_the_end_is_read() {
    let root = tempfile::tempdir().unwrap();
    let job = snapshot(1);
    let noise = "x".repeat(1023) + "\n";
    let mut text = "step:1 - loss:3\n".to_owned() + &noise.repeat(66 << 10);
    text.push_str("step:9 - loss:1\n");
    write(root.path(), &job, 1, &text);
    assert_eq!(rows(&trainings(root.path()), &job), [(9, 1)]);
}

#[test]
fn curves_of_tensorboard_stand_beside_the_steps_of_the_log() {
    let root = tempfile::tempdir().unwrap();
    let job = snapshot(1);
    let beside = |text: &str| {
        write(root.path(), &job, 1, "");
        let attempt = &job.attempts[0];
        let member = root.path().join(attempt.gang.as_str()).join(attempt.epoch.to_string());
        std::fs::write(member.join("0/metrics-tensorboard.log"), text).unwrap();
    };
    let curves = "{\"step\":1,\"data\":{\"kl\":0.5}}\n{\"step\":2,\"data\":{\"kl\":0.25}}\n\
                  {\"step\":4096,\"data\":{\"kl\":0.1}}\n";
    // Where nothing else says steps, theirs count.
    beside(curves);
    assert_eq!(rows(&trainings(root.path()), &job), [(1, 1), (2, 1), (4096, 1)]);
    // Where the log does, a step that it has not come to waits, perhaps for ever: it counts samples.
    write(root.path(), &job, 1, "step:1 - loss:3\nstep:2 - loss:2\n");
    let known = trainings(root.path());
    assert_eq!(rows(&known, &job), [(1, 1), (2, 1)]);
    let kl = known.read(&job, |training| {
        let (_, place) = training.series.names().find(|(name, _)| *name == "kl").unwrap();
        training.series.since(0).0.map(|row| row.value(place)).collect::<Vec<_>>()
    });
    assert_eq!(kl, [Some(0.5), Some(0.25)]);
    assert_eq!(known.shown(&job.job.id).progress.unwrap().step, 2);
}

#[test]
fn curves_that_come_before_the_first_step_of_the_log_do_not_count_beside_it() {
    let root = tempfile::tempdir().unwrap();
    let job = snapshot(2);
    let curves = |number: usize, text: &str| {
        write(root.path(), &job, number, "starts\n");
        let attempt = &job.attempts[number - 1];
        let member = root.path().join(attempt.gang.as_str()).join(attempt.epoch.to_string());
        std::fs::write(member.join("0/metrics-tensorboard.log"), text).unwrap();
    };
    // The first attempt ended before its log said a step.
    curves(1, "{\"step\":4096,\"data\":{\"kl\":0.5}}\n");
    curves(2, "{\"step\":2,\"data\":{\"kl\":0.25}}\n{\"step\":4096,\"data\":{\"kl\":0.1}}\n");
    let logs = Logs::new(root.path().to_owned());
    let known = Trainings::new(logs.clone(), STARTED);
    assert_eq!(rows(&known, &job), [(2, 2), (4096, 2)]);
    assert!(!known.has_progressed(&job, 2), "as far as the one before");
    // In a later look the log says its first steps.
    let attempt = &job.attempts[1];
    let key =
        MemberKey { gang: attempt.gang.clone(), epoch: attempt.epoch, member: MemberId::Rank(0) };
    let bytes = b"step:1 - loss:3\nstep:2 - loss:2\n".to_vec();
    let (file, offset) = ("output".to_owned(), "starts\n".len() as u64);
    let chunk = LogChunk { key, file, offset, bytes, read_ms: Timestamp::now().wall_ms };
    logs.write_batch(vec![chunk]).unwrap();
    assert_eq!(rows(&known, &job), [(1, 2), (2, 2)]);
    assert_eq!(known.shown(&job.job.id).progress.unwrap().step, 2);
    assert!(known.has_progressed(&job, 2), "no log had said a step before");
    let kl = known.read(&job, |training| {
        let (_, place) = training.series.names().find(|(name, _)| *name == "kl").unwrap();
        training.series.since(0).0.map(|row| row.value(place)).collect::<Vec<_>>()
    });
    assert_eq!(kl, [None, Some(0.25)]);
}

#[test]
fn the_nodes_for_the_page_are_known_until_the_gang_has_gone_on() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet.submit("j1", SPEC);
    fleet.settle();
    let of = |fleet: &Fleet| JobSnapshot {
        job: fleet.core.jobs().next().unwrap().clone(),
        attempts: fleet.core.attempts().cloned().collect(),
        gang: fleet.core.gangs().next().cloned(),
        checkpoint: None,
        saved: None,
    };
    let before = of(&fleet);
    assert_eq!(nodes(&before, 1), [fleet.node("a").id.clone()]);
    assert!(nodes(&before, 2).is_empty(), "there is no such attempt");
    let mut gang = Gang::clone(before.gang.as_ref().unwrap());
    gang.epoch.n += 1;
    let after = JobSnapshot { gang: Some(Arc::new(gang)), ..before };
    assert!(nodes(&after, 1).is_empty());
}

#[test]
fn the_page_on_a_failure_has_room_whatever_is_in_it() {
    let rules = Rules::built_in().unwrap();
    let mut case = Case::new(&rules);
    let line = format!("ModuleNotFoundError: No module named '{}'\n", "ä".repeat(3000));
    case.read(&Source::whole("rank-0/output", line.as_bytes()));
    let diagnosis = case.conclude();
    let job = snapshot(1);
    let cause = "rank 0 on a exited with code 1: \u{1b}[2J".to_owned() + &"ö\n".repeat(2000);
    let outcome = Some(Outcome::Failed { cause });
    let failed = Attempt { outcome, ..Attempt::clone(&job.attempts[0]) };
    for room in [LEAST_BYTES, 700, BYTES] {
        let page = text(&job, &failed, &diagnosis, &rules, room);
        assert!(page.len() <= room, "{} of {room}", page.len());
        assert!(page.starts_with("j1 c attempt 1 failed, ") && page.contains("gangline why j1 "));
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
    }
}
