//! What keeps a job in the queue from starting, and what people do to it there, as stories.

mod support;

use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_common::time::Timestamp;
use gangline_coordinator::core::Core;
use gangline_coordinator::core::controls::{Control, EXCLUDED_LIMIT};
use gangline_coordinator::core::credential::{Principal, Role};
use gangline_coordinator::core::effect::{Answer, Effects, Rejected, Write};
use gangline_coordinator::core::eligibility::BadDependency;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::explain::{Question, Verdict};
use gangline_coordinator::core::job::{Job, JobState, Outcome};
use support::{Fleet, alice, stored};

/// A command gang on all of a node with four GPUs; `more` are further fields.
fn spec(name: &str, more: &str) -> String {
    format!(
        "{{name: {name}, resources: {{gpus_per_node: 4}}, launcher: {{type: command}}, \
         command: [\"true\"]{more}}}"
    )
}

fn one_worker() -> Fleet {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet
}

fn hold() -> Control {
    Control::Hold { why: "check the data".into() }
}

fn requeue(attempt: Option<u32>, nodes: &[&str]) -> Control {
    let exclude_nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    Control::Requeue { why: "slow node".into(), attempt, exclude_nodes }
}

fn submitted(answer: &Answer) -> bool {
    matches!(answer, Answer::Submitted { .. })
}

fn texts(job: &Job) -> Vec<&str> {
    job.history.iter().map(|change| change.text.as_str()).collect()
}

#[test]
fn a_held_job_waits_for_its_release_and_holds_back_nobody() {
    let mut fleet = one_worker();
    fleet.submit("busy", &spec("busy", ""));
    fleet.submit("first", &spec("first", ""));
    fleet.submit("second", &spec("second", ""));
    assert_eq!(fleet.control("first", hold()), Answer::Done);
    assert_eq!(fleet.job("first").reason, "held by alice: check the data");
    // Once more changes nothing.
    let before = fleet.job("first");
    assert_eq!(fleet.control("first", Control::Hold { why: "other".into() }), Answer::Done);
    assert_eq!(fleet.job("first"), before);
    fleet.settle();
    fleet.exit_ranks("busy", 0);
    fleet.settle();
    assert_eq!(fleet.state("second"), JobState::Running);
    fleet.exit_ranks("second", 0);
    fleet.beat(60);
    assert_eq!(fleet.state("first"), JobState::Pending);
    assert_eq!(fleet.control("first", Control::Release), Answer::Done);
    assert_eq!(fleet.state("first"), JobState::Starting);
    fleet.settle();
    let job = fleet.job("first");
    assert_eq!(
        texts(&job)[..3],
        ["submitted", "held: check the data", "released"],
        "{:?}",
        job.history
    );
    // It is not in the queue any more, and has nothing to be released of.
    let refused = Answer::Rejected(Rejected::NotWaiting { state: "RUNNING" });
    assert_eq!(fleet.control("first", hold()), refused);
    assert_eq!(fleet.control("first", Control::Release), Answer::Done);
    fleet.exit_ranks("first", 0);
    let ended = Answer::Rejected(Rejected::AlreadyEnded { state: "SUCCEEDED" });
    for control in [hold(), Control::Release, requeue(None, &[])] {
        assert_eq!(fleet.control("first", control), ended);
    }
}

#[test]
fn a_job_is_submitted_held_and_a_held_one_can_be_stopped() {
    let mut fleet = one_worker();
    fleet.submit("j1", &spec("a", ", queue: {hold: true}"));
    assert_eq!(fleet.state("j1"), JobState::Pending);
    assert_eq!(fleet.job("j1").reason, "held by alice: submitted so");
    fleet.control("j1", Control::Release);
    assert_eq!(fleet.state("j1"), JobState::Starting);
    fleet.submit("j2", &spec("a", ", queue: {hold: true}"));
    fleet.stop("j2");
    assert_eq!((fleet.state("j2"), fleet.job("j2").hold.clone()), (JobState::Cancelled, None));
}

#[test]
fn a_requeued_job_goes_back_to_its_place_and_says_who_asked() {
    let mut fleet = one_worker();
    fleet.submit("first", &spec("first", ""));
    fleet.submit("second", &spec("second", ""));
    fleet.settle();
    assert_eq!(fleet.control("first", requeue(Some(1), &[])), Answer::Done);
    assert_eq!(fleet.state("first"), JobState::Stopping);
    // The same request again, before and after it is back: it is stopped once.
    assert_eq!(fleet.control("first", requeue(Some(1), &[])), Answer::Done);
    fleet.settle();
    assert_eq!((fleet.state("first"), fleet.job("first").attempts), (JobState::Running, 2));
    assert_eq!(fleet.state("second"), JobState::Pending);
    assert_eq!(fleet.control("first", requeue(Some(1), &[])), Answer::Done);
    assert_eq!(fleet.state("first"), JobState::Running);
    let attempt = fleet.core.attempts().find(|attempt| attempt.number == 1).unwrap().clone();
    let cause = "requeued by alice: slow node".to_owned();
    assert_eq!(attempt.outcome, Some(Outcome::Preempted { cause, keeps_nodes: false }));
    // Held on its way back, it stays.
    fleet.control("first", requeue(None, &[]));
    assert_eq!(fleet.control("first", hold()), Answer::Done);
    fleet.settle();
    assert_eq!(
        (fleet.state("first"), fleet.state("second")),
        (JobState::Pending, JobState::Running)
    );
    // A stop that comes while it goes back sticks, and takes the hold away.
    fleet.control("second", requeue(None, &[]));
    fleet.control("second", hold());
    fleet.stop("second");
    assert_eq!(fleet.control("second", requeue(None, &[])), Answer::Rejected(Rejected::Ending));
    fleet.settle();
    assert_eq!(fleet.state("second"), JobState::Cancelled);
}

#[test]
fn a_requeue_leaves_nodes_out_from_then_on() {
    let mut fleet = one_worker();
    fleet.add_node("b", 4, false);
    fleet.submit("j1", &spec("a", ""));
    fleet.settle();
    let node = |fleet: &Fleet| {
        let job = fleet.job("j1");
        let gang = fleet.core.gangs().find(|gang| gang.id == job.gang).unwrap().clone();
        gang.nodes().first().unwrap().to_string()
    };
    assert_eq!(node(&fleet), "n-a");
    let refused = fleet.control("j1", requeue(None, &["a", "nobody"]));
    assert_eq!(refused, Answer::Rejected(Rejected::NoSuchNode));
    assert_eq!(fleet.state("j1"), JobState::Running);
    // By id; the name is what counts.
    fleet.control("j1", requeue(None, &["n-a", "a"]));
    fleet.settle();
    assert_eq!((fleet.state("j1"), node(&fleet)), (JobState::Running, "n-b".to_owned()));
    fleet.control("j1", requeue(None, &[]));
    fleet.settle();
    assert_eq!((fleet.job("j1").attempts, node(&fleet)), (3, "n-b".to_owned()));
    assert_eq!(fleet.job("j1").changes.exclude_nodes, ["a"]);
    assert!(!fleet.job("j1").request.spec_json.contains("exclude_nodes"), "the spec stays");
    // While it waits, nodes are left out without a stop.
    fleet.submit("j2", &spec("b", ", queue: {hold: true}"));
    fleet.control("j2", requeue(None, &["a"]));
    assert_eq!((fleet.job("j2").attempts, fleet.state("j2")), (0, JobState::Pending));
    fleet.control("j2", Control::Release);
    assert!(fleet.job("j2").reason.contains("a: excluded"), "{}", fleet.job("j2").reason);
}

#[test]
fn requeues_leave_out_a_bounded_number_of_nodes() {
    let mut fleet = Fleet::new();
    let names: Vec<String> = (0..=EXCLUDED_LIMIT).map(|n| format!("w{n}")).collect();
    names.iter().for_each(|name| fleet.add_node(name, 1, false));
    fleet.submit("j1", &spec("a", ""));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = Answer::Rejected(Rejected::TooManyExcluded { limit: EXCLUDED_LIMIT });
    assert_eq!(fleet.control("j1", requeue(None, &names)), refused);
    assert_eq!(fleet.control("j1", requeue(None, &names[1..])), Answer::Done);
    assert_eq!(fleet.control("j1", requeue(None, &names[..1])), refused);
}

#[test]
fn a_job_on_a_cluster_is_held_and_requeued_and_has_no_nodes_to_leave_out() {
    let mut fleet = one_worker();
    fleet.submit("c1", "{kind: cluster, name: c, resources: {gpus_per_node: 4}}");
    fleet.settle();
    let guest = "{name: g, cluster: c, resources: {gpus_per_node: 4}, command: [x]}";
    fleet.submit("g1", guest);
    fleet.submit("g2", guest);
    fleet.settle();
    assert_eq!(fleet.state("g1"), JobState::Starting);
    let refused = Answer::Rejected(Rejected::FixedNodes);
    assert_eq!(fleet.control("g1", requeue(None, &["a"])), refused);
    fleet.control("g1", requeue(None, &[]));
    fleet.control("g1", hold());
    fleet.settle();
    assert_eq!((fleet.state("g1"), fleet.state("g2")), (JobState::Pending, JobState::Starting));
    assert_eq!(fleet.state("c1"), JobState::Running, "the others of its cluster run on");
}

#[test]
fn a_new_priority_is_a_new_place_at_once() {
    let mut fleet = one_worker();
    fleet.submit("busy", &spec("busy", ""));
    fleet.submit("first", &spec("first", ""));
    fleet.submit("second", &spec("second", ""));
    let order = |fleet: &Fleet| {
        let standings = fleet.core.standings(fleet.now).into_iter();
        standings.map(|standing| standing.job.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(order(&fleet), ["first", "second"]);
    assert_eq!(fleet.control("second", Control::SetPriority { priority: 60 }), Answer::Done);
    assert_eq!(order(&fleet), ["second", "first"]);
    assert_eq!(fleet.job("second").request.priority, 60);
    assert!(!fleet.job("second").request.spec_json.contains("priority"), "the spec stays");
    assert!(texts(&fleet.job("second")).contains(&"priority 50 -> 60"));
    let before = fleet.job("second");
    fleet.control("second", Control::SetPriority { priority: 60 });
    assert_eq!(fleet.job("second"), before, "what is so already is done");
    // A job that runs keeps it for when it comes back.
    fleet.settle();
    fleet.control("busy", Control::SetPriority { priority: 10 });
    fleet.control("busy", requeue(None, &[]));
    fleet.settle();
    assert_eq!(
        (fleet.state("busy"), fleet.state("second")),
        (JobState::Pending, JobState::Running)
    );
}

#[test]
fn a32_only_operators_go_over_the_highest_priority_of_a_project() {
    let mut fleet = one_worker();
    fleet.submit("j1", &spec("a", ", queue: {hold: true}"));
    let urgent = || Control::SetPriority { priority: 76 };
    let refused = Answer::Rejected(Rejected::PriorityTooHigh { highest: 75 });
    assert_eq!(fleet.control("j1", urgent()), refused);
    fleet.set_max_priority("rl", 10);
    let low = Control::SetPriority { priority: 11 };
    assert_eq!(
        fleet.control("j1", low),
        Answer::Rejected(Rejected::PriorityTooHigh { highest: 10 })
    );
    let operator = Principal { role: Role::Operator, project: "ops".into(), ..alice() };
    assert_eq!(fleet.control_by(operator, "j1", urgent()), Answer::Done);
    assert_eq!(fleet.job("j1").request.priority, 76);
}

#[test]
fn a_time_limit_is_extended_and_never_shortened() {
    let mut fleet = one_worker();
    fleet.submit("j1", &spec("a", ", timeout: 60s"));
    fleet.settle();
    fleet.beat(50);
    let extend = |seconds: u64| Control::Extend { timeout_ms: seconds * 1000 };
    assert_eq!(fleet.control("j1", extend(90)), Answer::Done);
    assert_eq!(fleet.control("j1", extend(90)), Answer::Done);
    let refused = Answer::Rejected(Rejected::ShorterTimeLimit { present_ms: 90_000 });
    assert_eq!(fleet.control("j1", extend(70)), refused);
    fleet.beat(35);
    assert_eq!(fleet.state("j1"), JobState::Running);
    fleet.beat(10);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Timeout);
    assert_eq!(fleet.job("j1").reason, "its time limit of 90 s is over");
    fleet.submit("j2", &spec("b", ""));
    assert_eq!(fleet.control("j2", extend(70)), Answer::Rejected(Rejected::NoTimeLimit));
}

#[test]
fn a_job_waits_for_its_time_by_the_wall_clock_and_is_not_lost_when_that_jumps() {
    let mut fleet = one_worker();
    // Ten minutes after the beginning of this story.
    let at = gangline_common::time::wall_text(fleet.now.wall_ms + 600_000);
    fleet.submit("j1", &spec("a", &format!(", queue: {{not_before: '{at}'}}")));
    assert_eq!(fleet.job("j1").reason, format!("waits until {at}"));
    fleet.submit("other", &spec("b", ""));
    fleet.settle();
    assert_eq!(fleet.state("other"), JobState::Running);
    fleet.beat(590);
    assert_eq!(fleet.state("j1"), JobState::Pending);
    fleet.beat(15);
    assert!(fleet.job("j1").eligible.is_some());
    // Back by a day: it waits again. Forward by two: it starts.
    fleet.now.wall_ms -= 86_400_000;
    fleet.beat(1);
    assert_eq!(fleet.job("j1").reason, format!("waits until {at}"));
    fleet.exit_ranks("other", 0);
    assert_eq!(fleet.state("j1"), JobState::Pending);
    fleet.now.wall_ms += 2 * 86_400_000;
    fleet.beat(1);
    assert_eq!(fleet.state("j1"), JobState::Starting);
}

#[test]
fn a_job_runs_after_others_have_succeeded() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 8, false);
    fleet.submit("j1", &spec("one", ""));
    fleet.submit("j2", &spec("two", ""));
    fleet.settle();
    fleet.submit("j3", &spec("three", ", queue: {after: [job:j1, j2, j1]}"));
    fleet.submit("j4", &spec("four", ", queue: {after: [j3]}"));
    assert_eq!(fleet.job("j3").reason, "waits for the success of j1 (one), j2 (two)");
    fleet.exit_ranks("j1", 0);
    assert_eq!(fleet.job("j3").reason, "waits for the success of j2 (two)");
    // One that has succeeded is waited for no more, and may go.
    assert!(matches!(fleet.delete("j1"), Answer::Deleted { .. }));
    assert_eq!(fleet.delete("j2"), Answer::Rejected(Rejected::NotEnded { state: "RUNNING" }));
    fleet.exit_ranks("j2", 0);
    assert_eq!(fleet.state("j3"), JobState::Running);
    fleet.exit_ranks("j3", 0);
    fleet.settle();
    assert_eq!(fleet.state("j4"), JobState::Running);
    // What has succeeded already is no reason to wait.
    fleet.submit("j5", &spec("five", ", queue: {after: [j3]}"));
    assert_eq!(fleet.state("j5"), JobState::Starting);
}

#[test]
fn a_failure_goes_down_the_whole_chain_with_its_cause() {
    let mut fleet = one_worker();
    fleet.submit("j0", &spec("zero", ""));
    for n in 1..300 {
        let after = format!(", queue: {{after: [j{}], hold: {}}}", n - 1, n == 3);
        assert!(submitted(&fleet.submit(&format!("j{n}"), &spec("next", &after))));
    }
    fleet.settle();
    fleet.exit_ranks("j0", 3);
    assert_eq!(fleet.state("j0"), JobState::Failed);
    let job = fleet.job("j1");
    assert_eq!(job.state, JobState::Failed);
    assert!(
        job.reason.starts_with(
            "j0 (zero), which it was to run after, is FAILED: rank 0 on a exited with code 3"
        ),
        "{}",
        job.reason
    );
    assert!(fleet.core.jobs().all(|job| job.state == JobState::Failed && job.hold.is_none()));
    assert!(fleet.core.jobs().all(|job| job.reason.len() < 1_024));
}

/// A batch may hold both: the end of a job, and the wish of its owner to be rid of it.
#[test]
fn a_job_that_is_deleted_in_the_batch_of_its_end_fails_those_that_wait_for_it() {
    let mut fleet = one_worker();
    fleet.submit("j1", &spec("a", ", queue: {hold: true}"));
    fleet.submit("j2", &spec("b", ", queue: {after: [j1]}"));
    let (job, actor) = (JobId::new("j1").unwrap(), alice());
    let stop = Event::StopJob {
        request: fleet.number(),
        job: job.clone(),
        actor: actor.clone(),
        reason: "enough".to_owned(),
    };
    let delete = Event::DeleteJob { request: fleet.number(), job, actor };
    let mut batch = Effects::default();
    fleet.core.take(stop, fleet.now, &mut batch);
    fleet.core.take(delete, fleet.now, &mut batch);
    fleet.core.decide(fleet.now, &mut batch);
    assert_eq!(fleet.core.jobs().count(), 1);
    assert_eq!(fleet.state("j2"), JobState::Failed);
    assert!(fleet.job("j2").reason.contains("is CANCELLED: "), "{}", fleet.job("j2").reason);
}

#[test]
fn a_cancelled_or_timed_out_job_fails_those_that_wait_for_it() {
    for (end, word) in [("stop", "CANCELLED"), ("time", "TIMEOUT")] {
        let mut fleet = one_worker();
        fleet.submit("j1", &spec("a", ", timeout: 5s"));
        fleet.settle();
        fleet.submit("j2", &spec("b", ", queue: {after: [j1]}"));
        if end == "stop" {
            fleet.stop("j1");
        } else {
            fleet.beat(6);
        }
        fleet.settle();
        assert_eq!(fleet.state("j2"), JobState::Failed);
        assert!(fleet.job("j2").reason.contains(&format!("is {word}: ")), "{end}");
    }
}

#[test]
fn a_job_that_can_never_be_run_after_is_refused_with_its_place() {
    let mut fleet = one_worker();
    fleet.submit("c1", "{kind: cluster, name: c}");
    fleet.submit("bad", &spec("a", ""));
    fleet.stop("bad");
    fleet.settle();
    let bad = |index, why| Answer::Rejected(Rejected::Dependency { index, why });
    let cases = [
        ("[c1]", bad(0, BadDependency::Cluster { job: "c1".parse().unwrap() })),
        ("[nobody]", bad(0, BadDependency::Missing)),
        ("[j1]", bad(0, BadDependency::Itself)),
        ("[bad]", bad(0, BadDependency::Ended { job: "bad".parse().unwrap(), state: "CANCELLED" })),
    ];
    for (after, refused) in cases {
        let answer = fleet.submit("j1", &spec("a", &format!(", queue: {{after: {after}}}")));
        assert_eq!(answer, refused, "{after}");
    }
    // Two that name each other: the first cannot be submitted.
    let x = spec("x", ", queue: {after: [y]}");
    assert_eq!(fleet.submit("x", &x), bad(0, BadDependency::Missing));
}

#[test]
fn a_job_that_cannot_start_within_its_time_fails() {
    let mut fleet = one_worker();
    fleet.submit("busy", &spec("busy", ""));
    fleet.settle();
    fleet.submit("j1", &spec("a", ", queue: {max_wait: 60s}"));
    fleet.beat(40);
    // Time in which somebody holds it does not count; after that it has its whole time again.
    fleet.control("j1", hold());
    fleet.beat(100);
    fleet.control("j1", Control::Release);
    fleet.beat(58);
    assert_eq!(fleet.state("j1"), JobState::Pending);
    fleet.beat(4);
    assert_eq!(fleet.state("j1"), JobState::Failed);
    let reason = fleet.job("j1").reason.clone();
    assert!(
        reason.starts_with("queue timeout: it could not start within 60 s: waits for 1 node"),
        "{reason}"
    );
    // Nor does time before its time, or behind another job.
    let at = gangline_common::time::wall_text(fleet.now.wall_ms + 100_000);
    fleet.submit("j2", &spec("b", &format!(", queue: {{max_wait: 5s, not_before: '{at}'}}")));
    fleet.submit("j3", &spec("c", ", queue: {max_wait: 5s, after: [busy]}"));
    fleet.beat(99);
    assert_eq!((fleet.state("j2"), fleet.state("j3")), (JobState::Pending, JobState::Pending));
    fleet.beat(8);
    assert_eq!((fleet.state("j2"), fleet.state("j3")), (JobState::Failed, JobState::Pending));
    fleet.exit_ranks("busy", 0);
    assert_eq!(fleet.state("j3"), JobState::Running);
}

/// The core that a coordinator makes of the store when the machine was started again: `away_ms`
/// later by the wall clock, with a boot clock that shows `up_ms`.
fn after_reboot(fleet: &Fleet, away_ms: u64, up_ms: u64) -> (Core, Timestamp) {
    let now = Timestamp { boot_ms: up_ms, wall_ms: fleet.now.wall_ms + away_ms };
    let mut core = Core::new(2, now);
    for mut write in stored(&fleet.core) {
        write.begin_again(now, true);
        core.restore(write);
    }
    (core, now)
}

fn job<'a>(core: &'a Core, id: &str) -> &'a Arc<Job> {
    core.jobs().find(|job| job.id.as_str() == id).unwrap()
}

#[test]
fn time_limits_are_served_over_a_reboot_whatever_the_boot_clock_shows() {
    // Up for less than before, and for longer.
    for up_ms in [30_000, 3_000_000_000] {
        let mut fleet = one_worker();
        fleet.submit("runs", &spec("a", ", timeout: 1000s"));
        fleet.settle();
        fleet.submit("waits", &spec("b", ", queue: {max_wait: 2000s}"));
        fleet.beat(100);
        let (mut core, mut now) = after_reboot(&fleet, 500_000, up_ms);
        let mut step = |core: &mut Core, seconds: u64| {
            now = now.plus_ms(seconds * 1000);
            core.step(Event::Tick, now, &mut Effects::default());
        };
        step(&mut core, 0);
        assert_eq!(job(&core, "runs").state, JobState::Running, "600 of 1000 s, {up_ms}");
        step(&mut core, 390);
        assert_eq!(job(&core, "runs").state, JobState::Running, "990 of 1000 s, {up_ms}");
        step(&mut core, 15);
        // Nobody has heard of its node since, so it has ended already.
        assert_eq!(job(&core, "runs").state, JobState::Timeout, "1005 of 1000 s, {up_ms}");
        step(&mut core, 985);
        assert_eq!(job(&core, "waits").state, JobState::Pending, "1990 of 2000 s, {up_ms}");
        step(&mut core, 15);
        assert_eq!(job(&core, "waits").state, JobState::Failed, "2005 of 2000 s, {up_ms}");
    }
}

#[test]
fn what_a_job_waits_for_comes_back_from_the_store() {
    let mut fleet = one_worker();
    let at = gangline_common::time::wall_text(fleet.now.wall_ms + 100_000);
    fleet.submit("busy", &spec("busy", ""));
    fleet.settle();
    fleet.submit("j1", &spec("a", ", queue: {after: [busy]}"));
    fleet.submit("j2", &spec("b", &format!(", queue: {{not_before: '{at}'}}")));
    fleet.submit("j3", &spec("c", ""));
    fleet.control("j3", hold());
    fleet.control("j3", Control::SetPriority { priority: 60 });
    let (mut core, now) = after_reboot(&fleet, 1_000, 10_000);
    let mut out = Effects::default();
    core.step(Event::Tick, now, &mut out);
    let reasons = ["j1", "j2", "j3"].map(|id| core.why(&id.parse().unwrap()).unwrap().to_string());
    let expected = [
        "waits for the success of busy (busy)".to_owned(),
        format!("waits until {at}"),
        "held by alice: check the data".to_owned(),
    ];
    assert_eq!(reasons, expected);
    let stop = Event::StopJob {
        request: 1,
        job: "busy".parse().unwrap(),
        actor: alice(),
        reason: String::new(),
    };
    core.step(stop, now, &mut out);
    let release = Event::ControlJob {
        request: 2,
        job: "j3".parse().unwrap(),
        control: Control::Release,
        actor: alice(),
    };
    core.step(release, now, &mut out);
    assert_eq!(job(&core, "j3").request.priority, 60);
    assert!(job(&core, "j3").eligible.is_some());
    assert!(
        out.writes
            .iter()
            .any(|write| matches!(write, Write::Audit(a) if a.action == "job.release"))
    );
    assert!(gangline_coordinator::core::invariants::violations(&core).is_empty());
}

#[test]
fn explain_says_what_keeps_a_job_and_foretells_no_start() {
    let mut fleet = one_worker();
    fleet.submit("first", &spec("first", ", queue: {hold: true}"));
    fleet.submit("busy", &spec("busy", ", timeout: 60s"));
    fleet.submit("next", &spec("next", ", timeout: 60s"));
    fleet.settle();
    let question = Event::Ask { request: 1, question: Question::Job("first".parse().unwrap()) };
    fleet.step(question);
    let Some(Answer::Explained(explained)) = fleet.answers.last() else { panic!() };
    let reason = "held by alice: submitted so".to_owned();
    assert_eq!(explained.verdict, Verdict::Waits { reason, start: None });
    // Who may not start is not in the way of those behind.
    fleet.step(Event::Ask { request: 2, question: Question::Job("next".parse().unwrap()) });
    let Some(Answer::Explained(explained)) = fleet.answers.last() else { panic!() };
    let Verdict::Waits { start: Some(start), .. } = &explained.verdict else {
        panic!("{:?}", explained.verdict)
    };
    assert_eq!(start.after, Some("busy".parse().unwrap()));
}
