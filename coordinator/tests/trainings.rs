//! Steps that are read from stored logs, as a coordinator does that was started again.

mod support;

use std::path::Path;

use gangline_common::time::Timestamp;
use gangline_coordinator::board::JobSnapshot;
use gangline_coordinator::core::job::{Attempt, Outcome};
use gangline_coordinator::ingest::logs::Logs;
use gangline_coordinator::training::Trainings;
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
    JobSnapshot { job, attempts, gang: None, checkpoint: None }
}

/// What rank 0 has written in an attempt.
fn write(root: &Path, snapshot: &JobSnapshot, number: usize, text: &str) {
    let attempt = &snapshot.attempts[number - 1];
    let directory = root.join(attempt.gang.as_str()).join(attempt.epoch.to_string()).join("0");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("output.log"), text).unwrap();
}

fn trainings(root: &Path) -> Trainings {
    Trainings::new(Logs::new(root.to_owned()), Timestamp::now())
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
