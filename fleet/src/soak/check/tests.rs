//! Histories that are right, and wrong ones that must be found.

use super::*;
use crate::soak::history::Row;

fn id(text: &str) -> Id {
    text.into()
}

fn seen(word: &str, attempts: u32) -> Seen {
    Seen { state: State::of(word).unwrap(), attempts, epoch: None }
}

/// An operation from `from` to `to`, in milliseconds.
fn at(from: u64, to: u64, action: Action, answer: Answer) -> Operation {
    let [invoked, completed] = [from, to].map(Duration::from_millis);
    Operation { action, answer, invoked, completed }
}

fn submit(from: u64, to: u64, key: &str, answer: Answer) -> Operation {
    at(from, to, Action::Submit { key: id(key) }, answer)
}

/// The submit that made `job` of `key`.
fn made(from: u64, to: u64, key: &str, job: &str) -> Operation {
    submit(from, to, key, Answer::Submitted { job: id(job), made: true })
}

fn found(from: u64, to: u64, key: &str, job: &str) -> Operation {
    submit(from, to, key, Answer::Submitted { job: id(job), made: false })
}

fn get(from: u64, to: u64, job: &str, word: &str, attempts: u32) -> Operation {
    at(from, to, Action::Get { job: id(job) }, Answer::Job(seen(word, attempts)))
}

fn stop(from: u64, to: u64, job: &str, answer: Answer) -> Operation {
    at(from, to, Action::Stop { job: id(job) }, answer)
}

/// A stop that is the cause of the end.
fn stopped(from: u64, to: u64, job: &str, word: &str) -> Operation {
    stop(from, to, job, Answer::Stopped { cancels: true, seen: seen(word, 1) })
}

fn list(from: u64, to: u64, rows: &[(&str, &str, &str, u32)]) -> Operation {
    let row = |&(key, job, word, attempts): &(&str, &str, &str, u32)| Row {
        key: id(key),
        job: id(job),
        seen: seen(word, attempts),
    };
    at(from, to, Action::List, Answer::Rows(rows.iter().map(row).collect()))
}

fn broken(operations: &[Operation]) -> Vec<Rule> {
    Checker::default().add(operations).into_iter().map(|violation| violation.rule).collect()
}

#[test]
fn what_a_right_queue_says_passes() {
    let mut with_epoch = get(16, 17, "j1", "STARTING", 1);
    if let Answer::Job(seen) = &mut with_epoch.answer {
        seen.epoch = Some(Epoch { era: 1, n: 1 });
    }
    let history = [
        // The answer was lost; the second submit finds what the first one made.
        submit(0, 5, "k1", Answer::Unknown),
        found(6, 9, "k1", "j1"),
        found(6, 10, "k1", "j1"),
        made(0, 3, "k2", "j2"),
        submit(0, 1, "k3", Answer::Failed),
        submit(4, 5, "k4", Answer::Unknown),
        list(10, 14, &[("k1", "j1", "PENDING", 0), ("k2", "j2", "RUNNING", 1)]),
        // Rolled back, and started again: the attempt is the same one.
        get(12, 15, "j1", "STARTING", 1),
        get(15, 16, "j1", "STOPPING", 0),
        with_epoch,
        get(20, 30, "j1", "RUNNING", 1),
        // At the same time somebody still sees what was before.
        get(21, 29, "j1", "STARTING", 1),
        get(31, 32, "j1", "STOPPING", 1),
        stop(33, 34, "j1", Answer::Stopped { cancels: false, seen: seen("STOPPING", 1) }),
        get(35, 36, "j1", "SUCCEEDED", 1),
        stop(37, 38, "j1", Answer::AlreadyEnded),
        stop(20, 22, "j2", Answer::Unknown),
        stopped(23, 24, "j2", "STOPPING"),
        list(
            40,
            41,
            &[
                ("k4", "j4", "PENDING", 0),
                ("k1", "j1", "SUCCEEDED", 1),
                ("k2", "j2", "CANCELLED", 1),
            ],
        ),
    ];
    let mut checker = Checker::default();
    assert_eq!(checker.add(&history), []);
    assert_eq!(checker.jobs().count(), 3);
    assert!(checker.may_be_stopped("j1") && !checker.may_be_stopped("j4"));
    // What is known holds in the next piece.
    let next = [
        list(50, 51, &[("k1", "j1", "SUCCEEDED", 1), ("k4", "j4", "PENDING", 0)]),
        found(52, 53, "k4", "j5"),
        get(52, 53, "j1", "STOPPING", 1),
    ];
    let rules: Vec<Rule> = checker.add(&next).into_iter().map(|wrong| wrong.rule).collect();
    assert_eq!(rules, [Rule::Doubled, Rule::Lost, Rule::WentBack]);
}

#[test]
fn a_lost_acknowledged_write_is_found() {
    let gone = at(2, 3, Action::Get { job: id("j1") }, Answer::Missing);
    assert_eq!(broken(&[made(0, 1, "k1", "j1"), gone]), [Rule::Lost]);
    let gone = stop(2, 3, "j1", Answer::Missing);
    assert_eq!(broken(&[made(0, 1, "k1", "j1"), gone]), [Rule::Lost]);
    assert_eq!(broken(&[made(0, 1, "k1", "j1"), list(2, 3, &[])]), [Rule::Lost]);
    // Not yet acknowledged when the list began.
    assert_eq!(broken(&[made(0, 2, "k1", "j1"), list(1, 3, &[])]), []);
    // Without an answer it must not vanish once it was seen.
    let rows = [("k1", "j1", "PENDING", 0)];
    let history = [
        submit(0, 1, "k1", Answer::Unknown),
        list(2, 3, &rows),
        list(4, 5, &[]),
        list(6, 7, &rows),
    ];
    assert_eq!(broken(&history), [Rule::Lost]);
}

#[test]
fn one_key_with_two_jobs_is_found() {
    let history = [made(0, 1, "k1", "j1"), found(2, 3, "k1", "j2")];
    assert_eq!(broken(&history), [Rule::Doubled]);
    let history = [made(0, 1, "k1", "j1"), made(2, 3, "k1", "j1")];
    assert_eq!(broken(&history), [Rule::MadeTwice]);
    let lost = submit(0, 1, "k1", Answer::Unknown);
    let rows = [("k1", "j1", "PENDING", 0), ("k1", "j2", "PENDING", 0)];
    assert_eq!(broken(&[lost, list(2, 3, &rows)]), [Rule::Doubled]);
    let history = [made(0, 1, "k1", "j1"), made(2, 3, "k2", "j1")];
    assert_eq!(broken(&history), [Rule::Doubled]);
    let rows = [("k1", "j1", "PENDING", 0); 2];
    assert_eq!(broken(&[made(0, 1, "k1", "j1"), list(2, 3, &rows)]), [Rule::Doubled]);
}

#[test]
fn an_answer_from_before_the_first_submit_is_found() {
    assert_eq!(broken(&[found(0, 1, "k1", "j1")]), [Rule::MadeTwice]);
    let failed = submit(0, 1, "k1", Answer::Failed);
    assert_eq!(broken(&[failed, found(2, 3, "k1", "j1")]), [Rule::MadeTwice]);
    // Of two at the same time either may have made it, though only one is told so.
    assert_eq!(broken(&[found(0, 3, "k1", "j1"), made(1, 2, "k1", "j1")]), []);
}

#[test]
fn a_job_that_nobody_submitted_is_found() {
    assert_eq!(broken(&[list(0, 1, &[("k1", "j1", "PENDING", 0)])]), [Rule::Invented]);
    let failed = submit(0, 1, "k1", Answer::Failed);
    assert_eq!(broken(&[failed, list(2, 3, &[("k1", "j1", "PENDING", 0)])]), [Rule::Invented]);
    let later = [list(0, 1, &[("k1", "j1", "PENDING", 0)]), submit(2, 3, "k1", Answer::Unknown)];
    assert_eq!(broken(&later), [Rule::Invented]);
}

#[test]
fn going_back_is_found() {
    let history = |first: (&str, u32), second: (&str, u32)| {
        let [first, second] = [(2, first), (4, second)]
            .map(|(from, (word, attempts))| get(from, from + 1, "j1", word, attempts));
        broken(&[made(0, 1, "k1", "j1"), first, second])
    };
    assert_eq!(history(("RUNNING", 1), ("STARTING", 1)), [Rule::WentBack]);
    assert_eq!(history(("RUNNING", 1), ("PENDING", 0)), [Rule::WentBack]);
    assert_eq!(history(("STOPPING", 1), ("RUNNING", 1)), [Rule::WentBack]);
    assert_eq!(history(("RUNNING", 2), ("PENDING", 1)), [Rule::WentBack], "the attempts go back");
    assert_eq!(history(("SUCCEEDED", 1), ("STOPPING", 1)), [Rule::WentBack]);
    assert_eq!(history(("SUCCEEDED", 1), ("STARTING", 2)), [Rule::WentBack], "after the end");
    assert_eq!(history(("STOPPING", 1), ("STARTING", 2)), [], "another attempt");
    let ended = stop(2, 3, "j1", Answer::AlreadyEnded);
    let history = [made(0, 1, "k1", "j1"), ended, get(4, 5, "j1", "RUNNING", 1)];
    assert_eq!(broken(&history), [Rule::WentBack]);
    // Also where one of the two was a list.
    let history = [
        made(0, 1, "k1", "j1"),
        get(2, 3, "j1", "RUNNING", 1),
        list(4, 5, &[("k1", "j1", "PENDING", 0)]),
    ];
    assert_eq!(broken(&history), [Rule::WentBack]);
}

#[test]
fn another_end_is_found() {
    let of = |first: Operation, second: Operation| {
        broken(&[made(0, 1, "k1", "j1"), stop(0, 9, "j1", Answer::Unknown), first, second])
    };
    let succeeded = || get(2, 5, "j1", "SUCCEEDED", 1);
    assert_eq!(of(succeeded(), get(3, 4, "j1", "CANCELLED", 1)), [Rule::EndChanged]);
    assert_eq!(of(succeeded(), get(3, 4, "j1", "SUCCEEDED", 2)), [Rule::EndChanged]);
    assert_eq!(of(succeeded(), get(3, 4, "j1", "RUNNING", 2)), [Rule::EndChanged]);
    assert_eq!(of(succeeded(), get(3, 4, "j1", "RUNNING", 1)), []);
}

#[test]
fn an_epoch_that_goes_back_is_found() {
    let with = |from: u64, (era, n): (u32, u32)| {
        let seen = Seen { epoch: Some(Epoch { era, n }), ..seen("STARTING", 1) };
        at(from, from + 1, Action::Get { job: id("j1") }, Answer::Job(seen))
    };
    let history = |epochs: [(u32, u32); 2]| {
        broken(&[made(0, 1, "k1", "j1"), with(2, epochs[0]), with(4, epochs[1])])
    };
    assert_eq!(history([(1, 2), (1, 1)]), [Rule::EpochWentBack]);
    assert_eq!(history([(2, 1), (1, 9)]), [Rule::EpochWentBack]);
    assert_eq!(history([(1, 9), (2, 1)]), []);
}

#[test]
fn a_forgotten_stop_is_found() {
    let after = |operation: Operation| {
        broken(&[made(0, 1, "k1", "j1"), stopped(2, 4, "j1", "STOPPING"), operation])
    };
    assert_eq!(after(get(5, 6, "j1", "RUNNING", 2)), [Rule::StopForgotten], "it started later");
    let stale = after(list(5, 6, &[("k1", "j1", "RUNNING", 1)]));
    assert_eq!(stale, [Rule::WentBack, Rule::StopForgotten]);
    assert_eq!(after(get(3, 6, "j1", "RUNNING", 1)), [], "it may have read before the stop");
    assert_eq!(after(get(5, 6, "j1", "SUCCEEDED", 1)), [Rule::StopUndone]);
    assert_eq!(after(get(3, 6, "j1", "SUCCEEDED", 1)), [Rule::StopUndone], "even at the same time");
    assert_eq!(after(get(5, 6, "j1", "CANCELLED", 1)), []);
    let shown = stopped(2, 4, "j1", "RUNNING");
    assert_eq!(broken(&[made(0, 1, "k1", "j1"), shown]), [Rule::StopForgotten]);
}

#[test]
fn a_stop_that_was_not_is_found() {
    let cancelled = || get(4, 5, "j1", "CANCELLED", 0);
    let history = |stop: Operation| broken(&[made(0, 1, "k1", "j1"), stop, cancelled()]);
    assert_eq!(history(get(2, 3, "j1", "PENDING", 0)), [Rule::StopInvented]);
    assert_eq!(history(stop(2, 3, "j1", Answer::Failed)), [Rule::StopInvented]);
    assert_eq!(history(stop(6, 7, "j1", Answer::AlreadyEnded)), [Rule::StopInvented]);
    assert_eq!(history(stop(2, 3, "j1", Answer::Unknown)), []);
    let ended = [
        made(0, 1, "k1", "j1"),
        get(2, 3, "j1", "SUCCEEDED", 1),
        stop(4, 5, "j1", Answer::Stopped { cancels: false, seen: seen("SUCCEEDED", 1) }),
    ];
    assert_eq!(broken(&ended), [Rule::StopInvented]);
}
