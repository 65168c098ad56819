//! What follows a failure, as stories: another attempt or none, and where it runs.

mod support;

use gangline_common::ids::{MemberId, NodeId};
use gangline_coordinator::core::event::{EntrypointFact, Event};
use gangline_coordinator::core::gang::{EndHow, Phase};
use gangline_coordinator::core::health::{Condition, Health, Level};
use gangline_coordinator::core::job::{JobState, Outcome};
use gangline_coordinator::core::recovery::{Again, Cause, EVACUATED_MS, VERDICT_MS, Verdict};
use support::{Fleet, ended, verdict};

fn gang(name: &str, nnodes: &str, more: &str) -> String {
    format!(
        "{{name: {name}, resources: {{nnodes: {nnodes}, gpus_per_node: 4}}, \
         launcher: {{type: command}}, command: [\"true\"]{more}}}"
    )
}

fn nodes(count: usize) -> Fleet {
    let mut fleet = Fleet::new();
    for n in 1..=count {
        fleet.add_node(&format!("n{n}"), 4, false);
    }
    fleet
}

/// Its node, by rank.
fn ranks(fleet: &Fleet, job: &str) -> Vec<String> {
    let id = fleet.job(job).gang.clone();
    let gang = fleet.core.gangs().find(|gang| gang.id == id).unwrap();
    let ranks = gang.members.iter().filter(|(id, _)| **id != MemberId::Head);
    let name =
        |node: &NodeId| fleet.core.nodes().find(|known| known.id == *node).unwrap().name.clone();
    ranks.map(|(_, member)| name(&member.node)).collect()
}

/// One rank's process ends by itself, and everybody does what is to be done then.
fn rank_dies(fleet: &mut Fleet, job: &str, rank: u32) {
    let gang = fleet.job(job).gang.clone();
    let node = ranks(fleet, job)[rank as usize].clone();
    let agent = fleet.agents.get_mut(&node).unwrap();
    let mine = agent.members.iter_mut().filter(|(key, phase)| {
        key.gang == gang && key.member == MemberId::Rank(rank) && phase.holds_resources()
    });
    mine.for_each(|(_, phase)| *phase = ended(EndHow::Signalled { signal: 9 }, false));
    fleet.report(&node);
}

fn found(again: Again, fleet: &Fleet, node: Option<&str>) -> Option<Verdict> {
    let node = node.map(|node| fleet.node(node).id.clone());
    Some(Verdict { node, ..verdict(again) })
}

fn done(fleet: &Fleet, job: &str, number: u32) -> String {
    let attempts = fleet.core.attempts();
    let mut mine = attempts.filter(|attempt| attempt.job.as_str() == job);
    let attempt = mine.find(|attempt| attempt.number == number).unwrap();
    attempt.verdict.as_ref().map(|verdict| verdict.done.clone()).unwrap_or_default()
}

#[test]
fn the_bad_node_is_swapped_and_the_good_ones_are_kept() {
    let mut fleet = nodes(4);
    fleet.submit("train", &gang("train", "3", ""));
    fleet.settle();
    assert_eq!(ranks(&fleet, "train"), ["n1", "n2", "n3"]);
    // Somebody else waits for any node; one is free for it, then none.
    fleet.verdict = found(Again::After(Cause::Hardware), &fleet, Some("n2"));
    fleet.submit("other", &gang("other", "2", ""));
    rank_dies(&mut fleet, "train", 1);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Running);
    assert_eq!(ranks(&fleet, "train"), ["n1", "n4", "n3"], "each rank that is good stays");
    assert_eq!((fleet.job("train").attempts, fleet.state("other")), (2, JobState::Pending));
    assert_eq!(done(&fleet, "train", 1), "tried again without n2");
    assert_eq!(fleet.job("train").changes.exclude_nodes, ["n2"]);
    let attempt = fleet.core.attempts().find(|attempt| attempt.number == 1).unwrap();
    assert!(matches!(attempt.outcome, Some(Outcome::Failed { .. })), "{attempt:?}");
    assert_eq!(fleet.examined, [("train".to_owned(), 1)]);
}

#[test]
fn what_is_kept_is_given_to_nobody_while_the_cause_is_looked_for() {
    let mut fleet = nodes(2);
    fleet.submit("train", &gang("train", "2", ""));
    fleet.settle();
    fleet.verdict = None;
    fleet.submit("other", &gang("other", "1", ""));
    rank_dies(&mut fleet, "train", 0);
    fleet.settle();
    assert_eq!(
        (fleet.state("train"), fleet.state("other")),
        (JobState::Stopping, JobState::Pending)
    );
    let job = fleet.job("train").id.clone();
    let found = Box::new(verdict(Again::After(Cause::Ray)));
    fleet.step(Event::Examined { job, attempt: 1, verdict: found });
    fleet.settle();
    assert_eq!(
        (fleet.state("train"), fleet.state("other")),
        (JobState::Running, JobState::Pending)
    );
    assert_eq!(ranks(&fleet, "train"), ["n1", "n2"]);
}

#[test]
fn what_only_a_user_can_mend_ends_the_job() {
    let mut fleet = nodes(2);
    fleet.submit("train", &gang("train", "2", ""));
    fleet.settle();
    fleet.submit("other", &gang("other", "2", ""));
    fleet.exit_ranks("train", 1);
    fleet.settle();
    assert_eq!((fleet.state("train"), fleet.state("other")), (JobState::Failed, JobState::Running));
    assert_eq!(done(&fleet, "train", 1), "not tried again: the same would happen again");
}

#[test]
fn a_spec_says_which_causes_are_tried_again_and_how_often() {
    let mut fleet = nodes(1);
    fleet.verdict = Some(verdict(Again::After(Cause::Storage)));
    fleet.submit("picky", &gang("picky", "1", ", retry: {on_events: [ray]}"));
    fleet.settle();
    rank_dies(&mut fleet, "picky", 0);
    fleet.settle();
    assert_eq!(fleet.state("picky"), JobState::Failed);
    assert_eq!(done(&fleet, "picky", 1), "not tried again: its spec does not retry such a cause");

    fleet.verdict = Some(Verdict { progressed: true, ..verdict(Again::After(Cause::Ray)) });
    fleet.submit("twice", &gang("twice", "1", ", retry: {max: 2}"));
    fleet.settle();
    for attempt in 1..=2 {
        rank_dies(&mut fleet, "twice", 0);
        fleet.settle();
        assert_eq!(fleet.state("twice"), JobState::Running, "after attempt {attempt}");
    }
    rank_dies(&mut fleet, "twice", 0);
    fleet.settle();
    assert_eq!(fleet.state("twice"), JobState::Failed);
    assert_eq!(done(&fleet, "twice", 3), "not tried again: its 2 retries are used up");

    fleet.submit("never", &gang("never", "1", ", retry: {max: 0}"));
    fleet.settle();
    rank_dies(&mut fleet, "never", 0);
    fleet.settle();
    assert_eq!((fleet.state("never"), fleet.job("never").attempts), (JobState::Failed, 1));
}

#[test]
fn without_progress_it_pauses_and_then_ends() {
    let mut fleet = nodes(1);
    fleet.verdict = Some(verdict(Again::After(Cause::Ray)));
    fleet.submit("stuck", &gang("stuck", "1", ", retry: {max: 100}"));
    fleet.settle();
    rank_dies(&mut fleet, "stuck", 0);
    fleet.settle();
    assert_eq!(fleet.state("stuck"), JobState::Running, "the first retry has no pause");
    rank_dies(&mut fleet, "stuck", 0);
    fleet.settle();
    assert_eq!(fleet.state("stuck"), JobState::Pending);
    assert!(fleet.job("stuck").recovery.rest.is_some());
    let why = fleet.core.why(&fleet.job("stuck").id).unwrap().to_string();
    assert!(why.starts_with("is tried again in "), "{why}");
    // A restart of the coordinator does not make it shorter or longer.
    fleet.live(&["n1"], 20);
    fleet.restart();
    fleet.connect("n1");
    assert_eq!(fleet.state("stuck"), JobState::Pending);
    fleet.live(&["n1"], 12);
    fleet.settle();
    assert_eq!(fleet.state("stuck"), JobState::Running);
    rank_dies(&mut fleet, "stuck", 0);
    fleet.settle();
    assert_eq!(fleet.state("stuck"), JobState::Failed);
    let done = done(&fleet, "stuck", 3);
    assert_eq!(done, "not tried again: 3 attempts in a row made no progress");
}

#[test]
fn a_training_checkpoint_is_progress() {
    let mut fleet = nodes(1);
    fleet.verdict = Some(verdict(Again::After(Cause::Ray)));
    let spec = gang("long", "1", ", retry: {max: 100}, checkpoint: {dir: /nfs/users/alice/c}");
    fleet.submit("long", &spec);
    fleet.settle();
    for step in 1..=6 {
        fleet.checkpoint("long", MemberId::Rank(0), &format!("global_step_{step}"), 10);
        rank_dies(&mut fleet, "long", 0);
        fleet.settle();
        assert_eq!(fleet.state("long"), JobState::Running, "after step {step}");
    }
    assert_eq!(fleet.job("long").recovery.stuck, 1);
}

#[test]
fn a_verdict_that_never_comes_is_not_waited_for() {
    let mut fleet = nodes(1);
    fleet.verdict = None;
    fleet.submit("train", &gang("train", "1", ""));
    fleet.settle();
    rank_dies(&mut fleet, "train", 0);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Stopping);
    // One that has just started asks again.
    fleet.restart();
    fleet.connect("n1");
    fleet.beat(1);
    assert_eq!(fleet.examined, [("train".to_owned(), 1), ("train".to_owned(), 1)]);
    fleet.live(&["n1"], (VERDICT_MS / 1000) as u32 + 1);
    assert_eq!(fleet.state("train"), JobState::Failed);
}

#[test]
fn a_cancel_sticks_while_the_cause_is_looked_for() {
    let mut fleet = nodes(1);
    fleet.verdict = None;
    fleet.submit("train", &gang("train", "1", ""));
    fleet.settle();
    fleet.submit("other", &gang("other", "1", ""));
    rank_dies(&mut fleet, "train", 0);
    fleet.settle();
    fleet.stop("train");
    fleet.settle();
    assert_eq!(
        (fleet.state("train"), fleet.state("other")),
        (JobState::Cancelled, JobState::Running)
    );
}

#[test]
fn an_elastic_gang_goes_on_with_what_is_left() {
    let mut fleet = nodes(3);
    fleet.verdict = found(Again::After(Cause::Hardware), &fleet, Some("n2"));
    fleet.submit("train", &gang("train", "2..3", ""));
    fleet.settle();
    rank_dies(&mut fleet, "train", 1);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Running);
    assert_eq!(ranks(&fleet, "train"), ["n1", "n3"]);
}

#[test]
fn a_node_that_the_job_cannot_do_without_is_not_left_out() {
    let mut fleet = nodes(1);
    fleet.verdict = found(Again::After(Cause::Hardware), &fleet, Some("n1"));
    fleet.submit("train", &gang("train", "1", ""));
    fleet.settle();
    rank_dies(&mut fleet, "train", 0);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Running);
    assert_eq!(fleet.job("train").changes.exclude_nodes, Vec::<String>::new());
    assert_eq!(done(&fleet, "train", 1), "tried again");
}

#[test]
fn without_another_node_it_waits_and_gives_away_what_it_had() {
    let mut fleet = nodes(3);
    fleet.verdict = found(Again::After(Cause::Hardware), &fleet, Some("n2"));
    fleet.submit("train", &gang("train", "2", ""));
    fleet.submit("long", &gang("long", "1", ""));
    fleet.settle();
    fleet.submit("other", &gang("other", "1", ""));
    rank_dies(&mut fleet, "train", 1);
    fleet.settle();
    assert_eq!(
        (fleet.state("train"), fleet.state("other")),
        (JobState::Pending, JobState::Running)
    );
    fleet.exit_ranks("long", 0);
    fleet.exit_ranks("other", 0);
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Running);
    assert_eq!(ranks(&fleet, "train"), ["n1", "n3"]);
}

#[test]
fn a_sick_node_is_swapped_before_the_job_fails() {
    let mut fleet = nodes(3);
    fleet.submit("train", &gang("train", "2", ""));
    fleet.settle();
    fleet.submit("other", &gang("other", "2", ""));
    falls_sick(&mut fleet, "n1");
    fleet.settle();
    assert_eq!(
        (fleet.state("train"), fleet.state("other")),
        (JobState::Running, JobState::Pending)
    );
    assert_eq!(ranks(&fleet, "train"), ["n3", "n2"]);
    // What its processes did last is of use to whoever asks why, though another attempt follows.
    assert_eq!(fleet.examined, [("train".to_owned(), 1)]);
    assert_eq!(done(&fleet, "train", 1), "goes on without the part that is sick");
}

/// Its cause is known well enough to go on.
#[test]
fn a_job_on_a_sick_node_waits_only_shortly_for_its_verdict() {
    let mut fleet = nodes(2);
    fleet.verdict = None;
    fleet.submit("train", &gang("train", "1", ", retry: {max: 0}"));
    fleet.settle();
    falls_sick(&mut fleet, "n1");
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Stopping);
    fleet.live(&["n1", "n2"], (EVACUATED_MS / 1000) as u32 + 1);
    assert_eq!(
        (fleet.state("train"), ranks(&fleet, "train")),
        (JobState::Running, vec!["n2".to_owned()])
    );
    assert_eq!(fleet.examined.first(), Some(&("train".to_owned(), 1)));
    // It comes while the next attempt runs, and says nothing of that one.
    let (job, late) = (fleet.job("train").id.clone(), Box::new(verdict(Again::Never)));
    fleet.step(Event::Examined { job, attempt: 1, verdict: late });
    fleet.settle();
    assert_eq!((fleet.state("train"), fleet.job("train").attempts), (JobState::Running, 2));
    assert_eq!(done(&fleet, "train", 1), "goes on without the part that is sick");
    assert_eq!(done(&fleet, "train", 2), "");
}

/// A sick node is lost before it has said that nothing runs there: its fence is waited for, and nothing is
/// asked or written meanwhile.
#[test]
fn a_sick_node_that_is_lost_keeps_nobody_busy() {
    let mut fleet = nodes(3);
    fleet.verdict = None;
    fleet.submit("train", &gang("train", "2", ""));
    fleet.settle();
    falls_sick(&mut fleet, "n1");
    fleet.deliver("n2");
    fleet.report("n2");
    fleet.live(&["n2", "n3"], 60);
    assert_eq!(fleet.state("train"), JobState::Stopping);
    assert!(fleet.examined.is_empty(), "{:?}", fleet.examined);
}

/// The head's agent tells in one report that the entrypoint was stopped, and that nothing is left.
#[test]
fn the_last_word_of_an_attempt_does_not_end_the_next_one() {
    let mut fleet = nodes(3);
    fleet.add_node("h", 0, true);
    let ray = "{name: train, resources: {nnodes: 2, gpus_per_node: 4}, run: \"true\"}";
    fleet.submit("train", ray);
    fleet.settle();
    let head = fleet.agents.get_mut("h").unwrap();
    head.entrypoints.insert("train-1".into(), EntrypointFact::Running);
    fleet.report("h");
    fleet.settle();
    assert_eq!(fleet.state("train"), JobState::Running);

    falls_sick(&mut fleet, "n1");
    let stopped = EntrypointFact::Failed { cause: "Job was intentionally stopped".into() };
    let head = fleet.agents.get_mut("h").unwrap();
    head.entrypoints.insert("train-1".into(), stopped);
    // The other nodes have been heard of when the head's tells.
    for node in ["n1", "n2", "h"] {
        fleet.deliver(node);
        fleet.report(node);
    }
    assert_eq!(fleet.state("train"), JobState::Starting, "{}", fleet.job("train").reason);
    assert_eq!((fleet.job("train").attempts, ranks(&fleet, "train").len()), (2, 2));
}

/// A GPU of the node falls off the bus.
fn falls_sick(fleet: &mut Fleet, name: &str) {
    let (node, session) = fleet.session(name).unwrap();
    let gpu = fleet.node(name).inventory.as_ref().unwrap().gpus[0].uuid.clone();
    let condition = Condition {
        rule: "xid-fatal".to_owned(),
        component: format!("gpu:{gpu}"),
        level: Level::Fatal,
        blocks_start: true,
        shadow: false,
        action: "REBOOT_SYSTEM".to_owned(),
        reason: "Xid 79: the GPU has fallen off the bus".to_owned(),
        evidence: String::new(),
        clears: String::new(),
        since_ms: 5_000,
    };
    let health = Box::new(Health { conditions: vec![condition], blind: Vec::new() });
    fleet.step(Event::Diagnosed { node, session, health });
}

#[test]
fn a_rank_that_ended_well_gives_its_node_away_at_once() {
    let mut fleet = nodes(2);
    fleet.verdict = Some(verdict(Again::After(Cause::Ray)));
    fleet.submit("train", &gang("train", "2", ""));
    fleet.settle();
    fleet.submit("other", &gang("other", "1", ""));
    let gang = fleet.job("train").gang.clone();
    let agent = fleet.agents.get_mut("n1").unwrap();
    let mine = agent.members.iter_mut().filter(|(key, _)| key.gang == gang);
    mine.for_each(|(_, phase): (_, &mut Phase)| *phase = ended(EndHow::Exited { code: 0 }, false));
    fleet.report("n1");
    fleet.settle();
    assert_eq!(fleet.state("other"), JobState::Running);
    rank_dies(&mut fleet, "train", 1);
    fleet.settle();
    assert_eq!(
        (fleet.state("train"), fleet.state("other")),
        (JobState::Pending, JobState::Running)
    );
}
