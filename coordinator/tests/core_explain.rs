//! What people are told about a waiting job is what the scheduler does with it.

mod support;

use gangline_common::ids::JobId;
use gangline_coordinator::core::effect::Answer;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::explain::{Explanation, Question, QueueLine, Verdict};
use gangline_coordinator::core::job::JobState;
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
