//! What people are told about a waiting job is what the scheduler does with it.

mod support;

use gangline_common::ids::{GangId, JobId};
use gangline_coordinator::core::effect::Answer;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::explain::{
    ExpectedStart, Explanation, Leaver, Question, QueueLine, Verdict,
};
use gangline_coordinator::core::job::{Job, JobState};
use gangline_coordinator::core::policy::Policy;
use gangline_coordinator::core::projects::Quota;
use support::Fleet;

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

fn ask(fleet: &mut Fleet, question: Question) -> Answer {
    let request = fleet.number();
    fleet.step(Event::Ask { request, question });
    fleet.answers.last().cloned().unwrap()
}

fn explain(fleet: &mut Fleet, id: &str) -> Explanation {
    match ask(fleet, Question::Job(JobId::new(id).unwrap())) {
        Answer::Explained(explanation) => *explanation,
        other => panic!("{other:?}"),
    }
}

fn queue(fleet: &mut Fleet) -> Vec<QueueLine> {
    match ask(fleet, Question::Queue) {
        Answer::Queue(lines) => lines,
        other => panic!("{other:?}"),
    }
}

/// What a job of `rl` is told that nobody submits.
fn planned(fleet: &mut Fleet, spec: &str) -> Explanation {
    let mut elsewhere = Fleet::new();
    elsewhere.submit("plan", spec);
    let mut job = Job::clone(&elsewhere.job("plan"));
    job.gang = GangId::new("g-plan").unwrap();
    job.submitted = fleet.now;
    let before = fleet.core.jobs().count();
    let explanation = match ask(fleet, Question::Plan(Box::new(job))) {
        Answer::Explained(explanation) => *explanation,
        other => panic!("{other:?}"),
    };
    assert_eq!(fleet.core.jobs().count(), before);
    explanation
}

fn leavers(explanation: &Explanation) -> &[Leaver] {
    match &explanation.verdict {
        Verdict::MakesRoom { leavers } => leavers,
        other => panic!("{other:?}"),
    }
}

fn foretold(fleet: &mut Fleet, id: &str) -> ExpectedStart {
    match explain(fleet, id).verdict {
        Verdict::Waits { start: Some(start), .. } => start,
        other => panic!("{other:?}"),
    }
}

fn at_most(maximum: u32) -> Quota {
    Quota { guaranteed: 0, maximum: Some(maximum) }
}

#[test]
fn a_job_that_is_larger_than_its_quota_can_never_start_and_learns_what_helps() {
    let mut fleet = fleet(&["a", "b", "c", "d"]);
    fleet.set_quota("rl", "default", at_most(2));
    fleet.submit("large", &gang(1, 3, ""));
    let explanation = explain(&mut fleet, "large");
    let Verdict::Never { reason } = &explanation.verdict else { panic!("{explanation:?}") };
    let says = "asks for 3 GPUs, and its project may use 2 in pool default: ";
    assert!(reason.starts_with(says), "{reason}");
    assert_eq!(*reason, fleet.job("large").reason);
    assert_eq!(explanation.helps, ["--gpus 2", "a quota of 3 GPUs in pool default"]);
    assert_eq!(queue(&mut fleet)[0].start, None);
    // Of an elastic one the least counts.
    let elastic = |least: u32| {
        gang(least, 1, "").replace(&format!("nnodes: {least},"), &format!("nnodes: {least}..4,"))
    };
    let Verdict::Never { reason } = planned(&mut fleet, &elastic(3)).verdict else {
        panic!("three GPUs of two")
    };
    assert!(reason.starts_with("asks for at least 3 GPUs"), "{reason}");
    fleet.submit("elastic", &elastic(2));
    fleet.settle();
    assert_eq!(fleet.state("elastic"), JobState::Running);
    // What others hold only for now is waited for.
    let Verdict::Waits { start: Some(start), .. } = planned(&mut fleet, &gang(1, 1, "")).verdict
    else {
        panic!("it may start when `elastic` has ended")
    };
    assert_eq!(start.after, Some(JobId::new("elastic").unwrap()));
    fleet.set_quota("rl", "default", at_most(5));
    fleet.settle();
    assert_eq!(fleet.state("large"), JobState::Running);
}

#[test]
fn a_job_that_is_larger_than_its_quota_holds_back_nobody() {
    let mut fleet = fleet(&["a"]);
    fleet.core.set_policy(Policy::Fifo);
    fleet.set_quota("rl", "default", at_most(2));
    fleet.submit("large", &gang(1, 3, ""));
    fleet.submit_as("other", "small", &gang(1, 1, ""));
    fleet.settle();
    assert_eq!(
        (fleet.state("large"), fleet.state("small")),
        (JobState::Pending, JobState::Running)
    );
}

#[test]
fn who_waits_for_an_overdue_job_is_never_told_now() {
    let mut fleet = fleet(&["a"]);
    fleet.submit("before", &gang(1, 8, ""));
    fleet.settle();
    fleet.beat(100);
    fleet.exit_ranks("before", 0);
    fleet.submit("long", &gang(1, 8, ""));
    fleet.settle();
    fleet.submit("next", &gang(1, 8, ""));
    let start = foretold(&mut fleet, "next");
    assert!(start.plus_minus_ms.is_some() && !start.overdue, "{start:?}");
    for _ in 0..110 {
        fleet.beat(1);
        let start = foretold(&mut fleet, "next");
        assert!(start.in_ms >= 1_000, "{start:?}");
        assert_eq!(start.after, Some(JobId::new("long").unwrap()));
        assert_eq!(queue(&mut fleet)[0].start, Some(start));
    }
    let start = foretold(&mut fleet, "next");
    assert!(start.plus_minus_ms.is_none() && start.overdue, "{start:?}");
}

#[test]
fn who_waits_for_one_that_stops_for_longer_than_it_may_is_never_told_now() {
    let mut fleet = fleet(&["a"]);
    fleet.submit("slow", &gang(1, 8, ", timeout: 10s, grace_period: 2s"));
    fleet.settle();
    fleet.submit("next", &gang(1, 8, ""));
    // Its agent is never told.
    for _ in 0..20 {
        fleet.beat(1);
        let start = foretold(&mut fleet, "next");
        assert!(start.in_ms >= 1_000, "{start:?}");
    }
    assert_eq!(fleet.state("slow"), JobState::Stopping);
    let start = foretold(&mut fleet, "next");
    assert!(start.plus_minus_ms.is_none() && start.overdue, "{start:?}");
}

#[test]
fn a_start_is_foretold_from_cpus_as_well() {
    let mut fleet = fleet(&["a"]);
    let hog =
        gang(1, 1, ", timeout: 1h").replace("gpus_per_node", "cpus_per_node: 16, gpus_per_node");
    fleet.submit("hog", &hog);
    fleet.settle();
    fleet.submit("next", &gang(1, 1, ""));
    let start = foretold(&mut fleet, "next");
    assert_eq!((start.in_ms / 60_000, start.after.as_ref().map(JobId::as_str)), (60, Some("hog")));
    assert_eq!(queue(&mut fleet)[0].start, Some(start));
}

#[test]
fn an_overdue_job_elsewhere_makes_no_forecast_doubtful() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.submit("before", &gang(1, 1, ""));
    fleet.settle();
    fleet.beat(100);
    fleet.exit_ranks("before", 0);
    fleet.submit("overdue", &gang(1, 1, ""));
    fleet.submit("long", &gang(1, 8, ", timeout: 2h"));
    fleet.settle();
    fleet.beat(200);
    fleet.label("b", &[("zone", Some("z"))]);
    let labelled = gang(1, 8, "").replace("gpus_per_node", "labels: {zone: z}, gpus_per_node");
    fleet.submit("next", &labelled);
    let start = foretold(&mut fleet, "next");
    assert_eq!(start.after, Some(JobId::new("long").unwrap()));
    assert!(start.plus_minus_ms.is_some(), "{start:?}");
}

#[test]
fn a_plan_names_the_jobs_that_would_make_room_and_they_do() {
    let mut fleet = fleet(&["a", "b"]);
    let soft = ", queue: {preemptible: true, priority: low}";
    fleet.submit_as("p2", "old", &gang(1, 8, soft));
    fleet.settle();
    fleet.beat(600);
    fleet.submit_as("p2", "young", &gang(1, 8, soft));
    fleet.settle();
    fleet.beat(10);
    let high = gang(1, 8, ", queue: {priority: high}");
    for _ in 0..2 {
        let explanation = planned(&mut fleet, &high);
        let leavers = leavers(&explanation);
        assert_eq!((leavers.len(), leavers[0].job.id.as_str(), leavers[0].gpus), (1, "young", 8));
        assert!(leavers[0].loses.starts_with("loses 10 s of work"), "{leavers:?}");
    }
    let states = |fleet: &Fleet| ["old", "young"].map(|id| fleet.state(id));
    assert_eq!(states(&fleet), [JobState::Running, JobState::Running]);
    // It takes a higher priority.
    let low = planned(&mut fleet, &gang(1, 8, ", queue: {priority: low}"));
    assert!(matches!(low.verdict, Verdict::Waits { .. }), "{low:?}");
    fleet.submit("urgent", &high);
    fleet.settle();
    fleet.settle();
    assert_eq!(fleet.state("urgent"), JobState::Running);
    assert_eq!(states(&fleet), [JobState::Running, JobState::Pending]);
    // The other one is still preemptible, but not for two that need it at once.
    let both = planned(&mut fleet, &gang(2, 8, ", queue: {priority: high}"));
    assert!(matches!(both.verdict, Verdict::Waits { .. }), "{both:?}");
}

#[test]
fn a_plan_knows_what_is_taken_back_and_who_is_protected() {
    let mut fleet = fleet(&["a"]);
    fleet.set_quota("rl", "default", Quota { guaranteed: 8, maximum: None });
    fleet.submit_as("other", "lent", &gang(1, 8, ", min_runtime: 60s"));
    fleet.settle();
    let early = planned(&mut fleet, &gang(1, 8, ""));
    assert!(matches!(early.verdict, Verdict::Waits { .. }), "{early:?}");
    fleet.beat(61);
    let explanation = planned(&mut fleet, &gang(1, 8, ""));
    assert_eq!(leavers(&explanation)[0].job.id.as_str(), "lent");
    assert!(explanation.place.is_some_and(|place| place.standing.guaranteed));
    assert_eq!(fleet.state("lent"), JobState::Running);
    // Two would be more than what is guaranteed: the first in the queue has the claim.
    fleet.submit("first", &gang(1, 8, ""));
    assert_eq!(fleet.state("lent"), JobState::Stopping);
    let late = planned(&mut fleet, &gang(1, 8, ""));
    assert!(matches!(late.verdict, Verdict::Waits { .. }), "{late:?}");
}

#[test]
fn every_node_stands_once_under_the_first_check_that_it_fails() {
    let mut fleet = fleet(&["a", "b", "c", "d"]);
    fleet.submit("busy", &gang(1, 6, ", timeout: 1h"));
    fleet.settle();
    fleet.disconnect("d");
    fleet.submit("big", "{name: big, resources: {nnodes: 4, gpus_per_node: 8}, launcher: {type: command}, command: [x]}");
    let explanation = explain(&mut fleet, "big");
    let mut nodes: Vec<&str> =
        explanation.nodes.iter().flat_map(|group| &group.nodes).map(String::as_str).collect();
    nodes.sort();
    assert_eq!(nodes, ["a", "b", "c", "d"]);
    let reason = |node: &str| {
        let group = explanation.nodes.iter().find(|group| group.nodes.iter().any(|n| n == node));
        group.unwrap().reason.clone()
    };
    assert_eq!(reason("a").as_deref(), Some("2 of 8 GPUs free"));
    assert_eq!(reason("b"), None);
    assert!(reason("d").is_some());
    assert_eq!(explanation.helps, ["--nnodes 2"]);
    let Verdict::Waits { reason, .. } = &explanation.verdict else { panic!("{explanation:?}") };
    assert_eq!(*reason, fleet.job("big").reason);
}

#[test]
fn a_start_is_foretold_from_time_limits_and_comes_then() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.submit("long", &gang(1, 8, ", timeout: 2h"));
    fleet.submit("short", &gang(1, 8, ", timeout: 1h"));
    fleet.settle();
    fleet.submit("both", &gang(2, 8, ""));
    let Verdict::Waits { start: Some(start), .. } = explain(&mut fleet, "both").verdict else {
        panic!("no start is foretold")
    };
    assert_eq!(start.in_ms / 60_000, 120);
    assert_eq!(start.after, Some(JobId::new("long").unwrap()));
    assert!(start.plus_minus_ms.is_some());
    let lines = queue(&mut fleet);
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0].place.position, lines[0].place.of), (1, 1));
    // Of a job without a limit and without others like it nobody knows when it ends.
    fleet.exit_ranks("short", 1);
    fleet.settle();
    fleet.submit("endless", &gang(1, 7, ""));
    fleet.settle();
    let Verdict::Waits { start: Some(start), .. } = explain(&mut fleet, "both").verdict else {
        panic!("no start is foretold")
    };
    assert_eq!(start.plus_minus_ms, None);
}

#[test]
fn a_plan_says_now_later_or_never_and_changes_nothing() {
    let mut fleet = fleet(&["a", "b"]);
    let plan = |fleet: &mut Fleet, spec: &str| {
        let probe = fleet.submit("probe", spec);
        assert!(matches!(probe, Answer::Submitted { .. }));
        let mut job = gangline_coordinator::core::job::Job::clone(&fleet.job("probe"));
        fleet.stop("probe");
        fleet.settle();
        fleet.delete("probe");
        job.id = JobId::new("plan").unwrap();
        (job.state, job.sequence) = (JobState::Pending, u64::MAX);
        let before = fleet.core.jobs().count();
        let Answer::Explained(explanation) = ask(fleet, Question::Plan(Box::new(job))) else {
            panic!("no explanation")
        };
        assert_eq!(fleet.core.jobs().count(), before);
        explanation.verdict
    };
    let now = plan(&mut fleet, &gang(2, 8, ""));
    assert_eq!(now, Verdict::Now { nodes: vec!["a".to_owned(), "b".to_owned()] });
    fleet.submit("busy", &gang(1, 8, ", timeout: 1h"));
    fleet.settle();
    let later = plan(&mut fleet, &gang(2, 8, ""));
    assert!(matches!(later, Verdict::Waits { start: Some(_), .. }), "{later:?}");
    let never = plan(&mut fleet, &gang(3, 8, ""));
    assert!(matches!(never, Verdict::Never { .. }), "{never:?}");
}

#[test]
fn what_helps_names_labels_and_whole_nodes() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    let part = "gpus_per_node: 1, cpus_per_node: 1, memory_per_node: 1GiB";
    let spec = |name: &str, more: &str| {
        format!(
            "{{name: {name}, resources: {{{part}{more}}}, launcher: {{type: command}}, command: [a]}}"
        )
    };
    fleet.submit("first", &spec("first", ""));
    fleet.submit("whole", &spec("whole", ", exclusive: true"));
    assert_eq!(explain(&mut fleet, "whole").helps, ["exclusive: false"]);
    fleet.submit("rack", &spec("rack", ", labels: {rack: r1}"));
    assert_eq!(explain(&mut fleet, "rack").helps, ["without labels"]);
}
