//! F46: gangs that agents run and the store does not know, because it is of an older copy. They run
//! on, nothing is placed beside them, and no second incarnation is started.

mod support;

use gangline_common::ids::{Epoch, GangId, MemberId, MemberKey};
use gangline_coordinator::core::gang::Phase;
use gangline_coordinator::core::job::JobState;
use support::Fleet;

fn gang(nnodes: u32) -> String {
    format!(
        "resources: {{nnodes: {nnodes}, gpus_per_node: 8}}\nlauncher: {{type: command}}\ncommand: \
         [\"true\"]\n"
    )
}

/// A member of an incarnation that the core has never heard of starts to run on a node.
fn run_unknown(fleet: &mut Fleet, node: &str, gang: &GangId) -> MemberKey {
    let epoch = Epoch { era: 1, n: 7 };
    let key = MemberKey { gang: gang.clone(), epoch, member: MemberId::Rank(0) };
    let agent = fleet.agents.get_mut(node).unwrap();
    agent.members.insert(key.clone(), Phase::Running { pid: 1 });
    agent.gpus.insert(key.clone(), Vec::new());
    fleet.report(node);
    key
}

fn is_running(fleet: &Fleet, node: &str, key: &MemberKey) -> bool {
    fleet.agents[node].members.get(key) == Some(&Phase::Running { pid: 1 })
}

#[test]
fn f46_nothing_is_placed_beside_an_unknown_member() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 8, false);
    let key = run_unknown(&mut fleet, "a", &GangId::new("g-lost").unwrap());
    assert_eq!(fleet.node("a").unknown.len(), 1);
    fleet.submit("new", &gang(1));
    fleet.settle();
    fleet.beat(60);
    assert_eq!(fleet.state("new"), JobState::Pending);
    let reason = fleet.job("new").reason.clone();
    assert!(reason.contains("1 member(s) that this store does not know run there"), "{reason}");
    assert!(is_running(&fleet, "a", &key), "it was stopped");

    // It ends by itself, and the node is as any other.
    fleet.agents.get_mut("a").unwrap().members.remove(&key);
    fleet.report("a");
    fleet.settle();
    assert_eq!(fleet.state("new"), JobState::Running);
}

#[test]
fn f46_a_job_whose_gang_runs_unknown_is_not_started_again() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 8, false);
    // Too large for now, so that it waits.
    fleet.submit("twice", &gang(2));
    let lost = fleet.job("twice").gang.clone();
    let key = run_unknown(&mut fleet, "a", &lost);
    for node in ["b", "c"] {
        fleet.add_node(node, 8, false);
    }
    // Others are not held back by it.
    fleet.submit("other", &gang(2));
    fleet.settle();
    assert_eq!(fleet.state("other"), JobState::Running);
    assert_eq!(fleet.state("twice"), JobState::Pending);
    let reason = fleet.job("twice").reason.clone();
    assert!(reason.contains("runs already on a, "), "{reason}");
    fleet.exit_ranks("other", 0);
    fleet.settle();
    fleet.beat(60);
    assert_eq!(fleet.state("twice"), JobState::Pending);
    assert!(is_running(&fleet, "a", &key), "it was stopped");

    // A node that says nothing more has not said that it ended.
    fleet.disconnect("a");
    fleet.beat(120);
    assert_eq!(fleet.state("twice"), JobState::Pending);
    fleet.connect("a");
    fleet.agents.get_mut("a").unwrap().members.remove(&key);
    fleet.report("a");
    fleet.settle();
    assert_eq!(fleet.state("twice"), JobState::Running);
}
