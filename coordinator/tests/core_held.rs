//! `hold_on_failure` in virtual time: what is left of a gang stays for a person, for so long.

mod support;

use gangline_common::ids::MemberId;
use gangline_coordinator::core::controls::Control;
use gangline_coordinator::core::effect::Answer;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::gang::EndHow;
use gangline_coordinator::core::job::{JobState, Outcome};
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::recovery::{Again, Cause};
use support::{Fleet, ended, verdict};

/// Two nodes; one rank on each.
fn spec(more: &str) -> String {
    format!(
        "{{name: train, resources: {{nnodes: 2, gpus_per_node: 4}}, launcher: {{type: command}}, \
         command: [\"true\"], hold_on_failure: 2m{more}}}"
    )
}

fn running(more: &str) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.add_node("n1", 4, false);
    fleet.add_node("n2", 4, false);
    fleet.submit("train", &spec(more));
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Running);
    fleet
}

/// The process of one rank ends by itself.
fn dies(fleet: &mut Fleet, rank: u32) {
    for name in fleet.agents.keys().cloned().collect::<Vec<_>>() {
        let agent = fleet.agents.get_mut(&name).unwrap();
        let mine = agent.members.iter_mut();
        mine.filter(|(key, phase)| key.member == MemberId::Rank(rank) && phase.holds_resources())
            .for_each(|(_, phase)| *phase = ended(EndHow::Exited { code: 1 }, false));
        fleet.report(&name);
    }
}

fn held(more: &str) -> Fleet {
    let mut fleet = running(more);
    dies(&mut fleet, 1);
    assert_eq!(fleet.state("train"), JobState::Held);
    fleet
}

fn done(fleet: &Fleet) -> String {
    let mut attempts = fleet.core.attempts();
    let attempt = attempts.find(|attempt| attempt.job.as_str() == "train").unwrap();
    attempt.verdict.as_ref().map(|verdict| verdict.done.clone()).unwrap_or_default()
}

/// Whether another job could have this node.
fn is_free(fleet: &mut Fleet, node: &str) -> bool {
    let id = format!("probe{}", fleet.number());
    let others = ["n1", "n2"].into_iter().filter(|other| *other != node).collect::<Vec<_>>();
    let spec = format!(
        "{{name: p, resources: {{gpus_per_node: 4, exclude_nodes: [{}]}}, launcher: {{type: \
         command}}, command: [\"true\"]}}",
        others.join(", ")
    );
    fleet.submit(&id, &spec);
    fleet.settle();
    let starts = fleet.state(&id) != JobState::Pending;
    fleet.stop(&id);
    fleet.settle();
    starts
}

#[test]
fn what_is_left_stays_until_its_time_is_over() {
    let mut fleet = held(", retry: {max: 0}");
    let reason = fleet.job("train").reason.clone();
    assert!(reason.contains("rank 1 on n2 exited with code 1"), "{reason}");
    assert!(reason.ends_with("; kept up for 120 s (hold_on_failure)"), "{reason}");
    fleet.settle();
    assert!(!is_free(&mut fleet, "n1"), "its rank still runs there");
    assert!(is_free(&mut fleet, "n2"), "nothing of it is there any more");
    fleet.live(&["n1", "n2"], 100);
    assert_eq!(fleet.state("train"), JobState::Held);
    assert_eq!(fleet.examined, [("train".to_owned(), 1)], "the cause is known meanwhile");
    assert_eq!(done(&fleet), "not tried again: its spec has no retries; kept up for a person");
    // A coordinator that is started again goes on with what is left of the time.
    fleet.restart();
    for name in ["n1", "n2"] {
        fleet.connect(name);
    }
    fleet.live(&["n1", "n2"], 10);
    assert_eq!(fleet.state("train"), JobState::Held);
    fleet.live(&["n1", "n2"], 20);
    assert_eq!(fleet.state("train"), JobState::Failed);
    assert_eq!(fleet.job("train").reason, reason.split("; kept").next().unwrap());
    let history: Vec<String> =
        fleet.job("train").history.iter().map(|entry| entry.text.clone()).collect();
    assert!(history.iter().any(|text| text.ends_with("no longer kept up: its time is over")));
    assert!(is_free(&mut fleet, "n1"));
    let told = ["job.running", "job.held", "job.interrupted", "job.failed"];
    assert_eq!(fleet.told_of("job train"), told);
}

#[test]
fn another_attempt_ends_the_hold() {
    let mut fleet = running("");
    fleet.verdict = Some(verdict(Again::After(Cause::Ray)));
    dies(&mut fleet, 1);
    assert_eq!(fleet.state("train"), JobState::Held);
    assert!(!is_free(&mut fleet, "n2"), "it may be needed for the next attempt");
    fleet.live(&["n1", "n2"], 10);
    assert_eq!((fleet.state("train"), fleet.job("train").attempts), (JobState::Running, 2));
    assert_eq!(done(&fleet), "tried again");
    assert!(!fleet.told_of("job train").contains(&"job.held"), "nobody is to look at it");
    // The last one is held.
    fleet.verdict = Some(verdict(Again::Never));
    dies(&mut fleet, 0);
    fleet.live(&["n1", "n2"], 60);
    assert_eq!(fleet.state("train"), JobState::Held);
    assert!(is_free(&mut fleet, "n1"), "no other attempt follows");
    let held = fleet.told_of("job train").into_iter().filter(|kind| *kind == "job.held");
    assert_eq!(held.count(), 1);
}

#[test]
fn what_ends_in_a_hold_that_is_settled_is_free() {
    let mut fleet = Fleet::new();
    for name in ["n1", "n2", "n3"] {
        fleet.add_node(name, 4, false);
    }
    fleet.submit("train", &spec("").replace("nnodes: 2", "nnodes: 3"));
    fleet.settle();
    fleet.verdict = Some(verdict(Again::Never));
    dies(&mut fleet, 1);
    fleet.live(&["n1", "n2", "n3"], 60);
    assert_eq!(fleet.state("train"), JobState::Held);
    assert!(done(&fleet).ends_with("kept up for a person"), "{}", done(&fleet));
    dies(&mut fleet, 2);
    let kept = fleet.core.gangs().flat_map(|gang| gang.members.values()).filter(|m| m.kept);
    assert_eq!(kept.count(), 0, "no other attempt needs it");
    assert_eq!(fleet.state("train"), JobState::Held);
}

#[test]
fn a_person_ends_it() {
    let mut fleet = held(", retry: {max: 0}");
    assert_eq!(fleet.control("train", Control::Release), Answer::Done);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Failed);
    let mut fleet = held(", retry: {max: 0}");
    assert_eq!(fleet.stop("train"), Answer::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Failed, "that it failed is what it came to");
    let mut fleet = held(", retry: {max: 0}");
    let requeue = Control::Requeue { why: String::new(), attempt: None, exclude_nodes: vec![] };
    assert_eq!(fleet.control("train", requeue), Answer::Done);
    fleet.settle();
    assert_eq!((fleet.state("train"), fleet.job("train").attempts), (JobState::Running, 2));
    // Before it is known whether there would be another attempt: then there is none.
    let mut fleet = running("");
    fleet.verdict = None;
    dies(&mut fleet, 1);
    assert_eq!(fleet.stop("train"), Answer::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Cancelled);
    let attempt = fleet.core.attempts().next().unwrap();
    assert!(matches!(attempt.outcome, Some(Outcome::Cancelled { .. })), "{attempt:?}");
}

#[test]
fn a_lost_node_a_drain_or_the_end_of_the_rest_ends_it() {
    let mut fleet = held(", retry: {max: 0}");
    fleet.live(&["n2"], 40);
    assert_eq!(fleet.state("train"), JobState::Failed, "n1 is lost");
    let mut fleet = held(", retry: {max: 0}");
    let drain = Maintenance::Drain { why: "fan".to_owned(), deadline_ms: Some(10_000) };
    fleet.maintain("n1", drain);
    fleet.live(&["n1", "n2"], 5);
    assert_eq!(fleet.state("train"), JobState::Held, "a drain has a deadline");
    fleet.live(&["n1", "n2"], 10);
    assert_eq!(fleet.state("train"), JobState::Failed);
    let mut fleet = held(", retry: {max: 0}");
    dies(&mut fleet, 0);
    fleet.live(&["n1", "n2"], 3);
    assert_eq!(fleet.state("train"), JobState::Failed);
}

#[test]
fn what_nobody_could_look_at_is_not_held() {
    // Of a job of one rank nothing is left.
    let mut fleet = Fleet::new();
    fleet.add_node("n1", 4, false);
    let one = spec(", retry: {max: 0}").replace("nnodes: 2", "nnodes: 1");
    fleet.submit("train", &one);
    fleet.settle();
    fleet.exit_ranks("train", 1);
    assert_eq!(fleet.state("train"), JobState::Failed);
    // Nor one that somebody stopped, or that was never asked to be.
    let mut fleet = running(", retry: {max: 0}");
    fleet.stop("train");
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Cancelled);
}

#[test]
fn a_verdict_that_comes_late_finds_nobody_held() {
    let mut fleet = running(", retry: {max: 0}");
    fleet.verdict = None;
    dies(&mut fleet, 1);
    fleet.live(&["n1", "n2"], 10);
    assert_eq!(fleet.examined.len(), 1);
    fleet.control("train", Control::Release);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Failed);
    let job = fleet.job("train").id.clone();
    let late = Box::new(verdict(Again::After(Cause::Ray)));
    fleet.step(Event::Examined { job, attempt: 1, verdict: late });
    assert_eq!((fleet.state("train"), fleet.job("train").attempts), (JobState::Failed, 1));
}
