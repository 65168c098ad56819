//! Standing clusters and the jobs that run on them, as stories.

mod support;

use gangline_coordinator::core::effect::{Answer, Rejected};
use gangline_coordinator::core::event::EntrypointFact;
use gangline_coordinator::core::gang::{EndHow, GangState};
use gangline_coordinator::core::guests::GUEST_LIMIT;
use gangline_coordinator::core::job::{Guest, GuestPhase, JobState};
use gangline_coordinator::core::maintenance::Maintenance;
use support::{Fleet, ended};

const CLUSTER: &str =
    "{kind: cluster, name: dev, resources: {nnodes: 2, gpus_per_node: 4, cpus_per_node: 8}}";

fn guest(gpus: u32) -> String {
    format!("{{name: g, cluster: dev, resources: {{gpus_per_node: {gpus}}}, command: [x]}}")
}

/// Two workers, a head, and a cluster that stands on them.
fn standing() -> Fleet {
    let mut fleet = Fleet::new();
    for (name, gpus) in [("a", 4), ("b", 4), ("h", 0)] {
        fleet.add_node(name, gpus, name == "h");
    }
    fleet.submit("c", CLUSTER);
    fleet.settle();
    assert_eq!(fleet.state("c"), JobState::Running);
    fleet
}

/// The newest attempt's part of its cluster.
fn part(fleet: &Fleet, id: &str) -> Guest {
    let number = fleet.job(id).attempts;
    let attempt = fleet.core.attempts().find(|a| a.job.as_str() == id && a.number == number);
    attempt.unwrap().guest.clone().unwrap()
}

fn operation(fleet: &Fleet, id: &str) -> String {
    let job = fleet.job(id);
    job.operation(job.attempts)
}

/// What the head says of a guest's entrypoint, and what follows.
fn says(fleet: &mut Fleet, id: &str, fact: EntrypointFact) {
    let operation = operation(fleet, id);
    fleet.agents.get_mut("h").unwrap().entrypoints.insert(operation, fact);
    fleet.settle();
}

#[test]
fn a_job_runs_on_a_cluster_that_goes_on_standing() {
    let mut fleet = standing();
    fleet.submit("j1", &guest(2));
    assert_eq!(fleet.state("j1"), JobState::Starting);
    assert_eq!(part(&fleet, "j1").phase, GuestPhase::Preparing);
    fleet.settle();
    assert_eq!(part(&fleet, "j1").phase, GuestPhase::Running);
    says(&mut fleet, "j1", EntrypointFact::Running);
    assert_eq!(fleet.state("j1"), JobState::Running);
    says(&mut fleet, "j1", EntrypointFact::Succeeded);
    // The log's length is what the member that ran the Ray driver said.
    assert_eq!((fleet.state("j1"), part(&fleet, "j1").log_bytes), (JobState::Succeeded, Some(7)));
    assert_eq!(fleet.state("c"), JobState::Running);
    assert!(fleet.agents.values().all(|agent| agent.guest_processes.is_empty()));
    assert_eq!(fleet.core.gangs().count(), 1, "a guest has no gang of its own");
}

#[test]
fn guests_wait_for_free_gpus_in_order() {
    let mut fleet = standing();
    for (id, gpus) in [("j1", 3), ("j2", 3), ("j3", 3), ("j4", 1)] {
        fleet.submit(id, &guest(gpus));
    }
    fleet.settle();
    let ranks = |id| part(&fleet, id).shares.iter().map(|share| share.rank).collect::<Vec<_>>();
    assert_eq!((ranks("j1"), ranks("j2")), (vec![0], vec![1]));
    assert_eq!(
        fleet.job("j3").reason,
        "needs 1 node with 3 GPUs free on cluster dev; 0 fit now, and 2 GPUs are free"
    );
    assert_eq!(fleet.job("j4").reason, "waits behind j3");
    says(&mut fleet, "j1", EntrypointFact::Succeeded);
    assert_eq!(fleet.state("j3"), JobState::Starting);
    assert_eq!(fleet.state("j4"), JobState::Starting);
    // The fullest rank that fits.
    assert_eq!(part(&fleet, "j4").shares[0].rank, 0);
}

#[test]
fn cpus_are_counted_as_well() {
    let mut fleet = standing();
    let wants = |cpus: u32| {
        format!("{{name: g, cluster: dev, resources: {{cpus_per_node: {cpus}}}, command: [x]}}")
    };
    for (id, cpus) in [("j1", 8), ("j2", 5), ("j3", 4), ("j4", 3)] {
        fleet.submit(id, &wants(cpus));
    }
    let states = ["j1", "j2", "j3", "j4"].map(|id| fleet.state(id));
    use JobState::{Pending, Starting};
    assert_eq!(states, [Starting, Starting, Pending, Pending]);
    assert!(fleet.job("j3").reason.contains("4 CPUs"), "{}", fleet.job("j3").reason);
}

#[test]
fn guests_are_few() {
    let mut fleet = standing();
    let spec = "{name: g, cluster: dev, resources: {cpus_per_node: 0.01}, command: [x]}";
    for number in 0..=GUEST_LIMIT {
        fleet.submit(&format!("j{number}"), spec);
    }
    let last = fleet.job(&format!("j{GUEST_LIMIT}"));
    assert_eq!(last.state, JobState::Pending);
    assert_eq!(
        last.reason,
        format!("{GUEST_LIMIT} jobs run on cluster dev, at most {GUEST_LIMIT}")
    );
}

#[test]
fn stopping_a_guest_stops_nothing_else() {
    let mut fleet = standing();
    for id in ["j1", "j2"] {
        fleet.submit(id, &guest(2));
        fleet.settle();
        says(&mut fleet, id, EntrypointFact::Running);
    }
    fleet.stop("j1");
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    assert_eq!(part(&fleet, "j1").phase, GuestPhase::Stopping);
    let stopped = operation(&fleet, "j1");
    // The model's entrypoints say once what they are told; a real one changes its state.
    for agent in fleet.agents.values_mut() {
        agent.entrypoints.remove(&stopped);
    }
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
    assert_eq!((fleet.state("j2"), fleet.state("c")), (JobState::Running, JobState::Running));
    let left: Vec<_> = fleet.agents["h"].guest_processes.iter().cloned().collect();
    assert_eq!(left, [operation(&fleet, "j2")]);
}

#[test]
fn an_entrypoint_that_does_not_end_is_swept_after_its_grace() {
    let mut fleet = standing();
    fleet.submit("j1", &guest(2));
    fleet.settle();
    fleet.stop("j1");
    // No node says more than that it lives.
    fleet.beat(80);
    assert_eq!(part(&fleet, "j1").phase, GuestPhase::Stopping);
    fleet.beat(15);
    assert_eq!(part(&fleet, "j1").phase, GuestPhase::Sweeping);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
}

#[test]
fn a_guest_that_does_not_start_fails_alone() {
    let mut fleet = standing();
    let spec = guest(1).replace("command", "launcher: {start_timeout: 10s}, command");
    fleet.submit("j1", &spec);
    fleet.settle();
    fleet.wait_ms(10_000);
    assert_eq!(fleet.state("j1"), JobState::Stopping);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Failed);
    assert_eq!(fleet.job("j1").reason, "its entrypoint did not run within 10 s");
    assert_eq!(fleet.state("c"), JobState::Running);
}

#[test]
fn the_end_of_a_cluster_ends_its_guests() {
    for stopped in [true, false] {
        let mut fleet = standing();
        fleet.submit("runs", &guest(4));
        fleet.submit("waits", &guest(4).replace("gpus_per_node: 4", "nnodes: 2, gpus_per_node: 4"));
        fleet.settle();
        says(&mut fleet, "runs", EntrypointFact::Running);
        assert_eq!(fleet.state("waits"), JobState::Pending);
        if stopped {
            fleet.stop("c");
        } else {
            let agent = fleet.agents.get_mut("a").unwrap();
            let member = agent.members.values_mut().next().unwrap();
            *member = ended(EndHow::Exited { code: 1 }, false);
        }
        fleet.settle();
        let expected = match stopped {
            true => (JobState::Cancelled, JobState::Cancelled),
            false => (JobState::Failed, JobState::Failed),
        };
        assert_eq!((fleet.state("c"), fleet.state("runs")), expected);
        assert_eq!(fleet.state("waits"), JobState::Failed);
        let reason = &fleet.job("waits").reason;
        assert!(reason.starts_with("its cluster dev ended: "), "{reason}");
        assert!(fleet.core.gangs().all(|gang| gang.state == GangState::Stopped));
        let answer = fleet.submit("late", &guest(1));
        assert_eq!(answer, Answer::Rejected(Rejected::NoSuchCluster));
    }
}

#[test]
fn a_lost_node_holds_no_guest_back() {
    let mut fleet = standing();
    fleet.submit("j1", &guest(4));
    fleet.settle();
    says(&mut fleet, "j1", EntrypointFact::Running);
    fleet.disconnect("b");
    for _ in 0..40 {
        fleet.heartbeat("a");
        fleet.heartbeat("h");
        fleet.wait_ms(1_000);
    }
    says(&mut fleet, "j1", EntrypointFact::Succeeded);
    assert_eq!(fleet.state("j1"), JobState::Succeeded);
    // It is asked all the same when it comes back, and until then the job is not forgotten.
    assert_eq!(part(&fleet, "j1").phase, GuestPhase::Sweeping);
    assert_eq!(fleet.delete("j1"), Answer::Rejected(Rejected::NotGone));
    assert!(
        !fleet.agents["b"].guest_processes.contains(&operation(&fleet, "j1")),
        "it ran on the other node"
    );
    fleet.connect("b");
    fleet.settle();
    assert_eq!(part(&fleet, "j1").phase, GuestPhase::Over);
    assert_eq!(fleet.delete("j1"), Answer::Deleted { gang: None });
}

#[test]
fn a_lost_node_keeps_its_share_of_a_guest_until_it_is_back() {
    let mut fleet = standing();
    fleet.submit("j1", &guest(4).replace("gpus_per_node: 4", "nnodes: 2, gpus_per_node: 4"));
    fleet.settle();
    says(&mut fleet, "j1", EntrypointFact::Running);
    assert!(fleet.agents["b"].guest_processes.contains(&operation(&fleet, "j1")));
    fleet.disconnect("b");
    fleet.beat(40);
    fleet.stop("j1");
    let stopped = operation(&fleet, "j1");
    fleet.agents.get_mut("h").unwrap().entrypoints.remove(&stopped);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Cancelled);
    // The rank that is clean is free, the other one is not.
    fleet.submit("one", &guest(4));
    fleet.submit("two", &guest(4));
    assert_eq!(part(&fleet, "one").shares[0].rank, 0);
    assert_eq!(fleet.state("two"), JobState::Pending);
    assert!(
        fleet.agents["b"].guest_processes.contains(&operation(&fleet, "j1")),
        "nobody could tell it"
    );
    fleet.connect("b");
    fleet.settle();
    assert!(!fleet.agents["b"].guest_processes.contains(&operation(&fleet, "j1")));
    assert_eq!(fleet.state("two"), JobState::Starting);
}

#[test]
fn a_cluster_nobody_uses_ends_by_itself() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    fleet.add_node("b", 4, false);
    fleet.add_node("h", 0, true);
    fleet.submit("c", &CLUSTER.replace("name: dev", "name: dev, idle_stop: 60s"));
    fleet.submit("j1", &guest(1));
    assert_eq!(
        fleet.job("j1").reason,
        "waits for cluster dev, which is STARTING: starting on a, b, h"
    );
    fleet.settle();
    says(&mut fleet, "j1", EntrypointFact::Running);
    fleet.beat(100);
    assert_eq!(fleet.state("c"), JobState::Running, "a job runs on it");
    says(&mut fleet, "j1", EntrypointFact::Succeeded);
    fleet.beat(50);
    assert_eq!(fleet.state("c"), JobState::Running);
    fleet.beat(15);
    fleet.settle();
    assert_eq!(fleet.state("c"), JobState::Cancelled);
    assert_eq!(fleet.job("c").reason, "stopped by gangline: no job ran on it for 60 s");
}

#[test]
fn what_cannot_be_is_refused_at_submit() {
    let mut fleet = standing();
    let too_large = Rejected::ClusterTooSmall {
        cluster: fleet.job("c").id.clone(),
        nnodes: 2,
        gpus_per_node: 4,
    };
    assert_eq!(fleet.submit("j1", &guest(5)), Answer::Rejected(too_large));
    let other = guest(1).replace("cluster: dev", "cluster: other");
    assert_eq!(fleet.submit("j2", &other), Answer::Rejected(Rejected::NoSuchCluster));
    // By id as well as by name.
    let by_id = guest(1).replace("cluster: dev", "cluster: c");
    assert!(matches!(fleet.submit("j3", &by_id), Answer::Submitted { .. }));
    assert_eq!(fleet.delete("c"), Answer::Rejected(Rejected::NotEnded { state: "RUNNING" }));
}

#[test]
fn a_cluster_is_deleted_after_its_jobs() {
    let mut fleet = standing();
    fleet.submit("j1", &guest(1));
    fleet.settle();
    fleet.stop("c");
    fleet.settle();
    assert_eq!(fleet.delete("c"), Answer::Rejected(Rejected::HasGuests { jobs: 1 }));
    assert_eq!(fleet.delete("j1"), Answer::Deleted { gang: None });
    assert!(matches!(fleet.delete("c"), Answer::Deleted { gang: Some(_) }));
}

#[test]
fn guests_of_another_project_are_strangers() {
    // The cluster of `rl` is not there for a principal of another project.
    let mut fleet = standing();
    let answer = fleet.submit_as("vision", "j1", &guest(1));
    assert_eq!(answer, Answer::Rejected(Rejected::NoSuchCluster));
}

#[test]
fn a_drained_node_takes_the_cluster_back_to_the_queue_and_its_jobs_with_it() {
    let mut fleet = standing();
    fleet.submit("j1", &guest(2));
    fleet.settle();
    says(&mut fleet, "j1", EntrypointFact::Running);
    fleet.maintain("a", Maintenance::Drain { why: "fan".into(), deadline_ms: Some(0) });
    fleet.beat(1);
    fleet.settle();
    assert_eq!((fleet.state("c"), fleet.state("j1")), (JobState::Pending, JobState::Pending));
    fleet.maintain("a", Maintenance::Resume);
    fleet.settle();
    assert_eq!((fleet.state("c"), fleet.state("j1")), (JobState::Running, JobState::Starting));
    says(&mut fleet, "j1", EntrypointFact::Running);
    assert_eq!((fleet.state("j1"), fleet.job("j1").attempts), (JobState::Running, 2));
}

#[test]
fn an_id_that_is_used_again_is_another_job_for_ray() {
    let mut fleet = standing();
    fleet.submit("j1", &guest(2));
    fleet.settle();
    says(&mut fleet, "j1", EntrypointFact::Succeeded);
    assert_eq!(fleet.delete("j1"), Answer::Deleted { gang: None });
    // Ray still knows the end of the first one.
    fleet.submit("j1", &guest(2));
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Starting);
    says(&mut fleet, "j1", EntrypointFact::Running);
    assert_eq!(fleet.state("j1"), JobState::Running);
}

#[test]
fn a_rank_whose_node_takes_nothing_new_gets_no_guest() {
    let mut fleet = standing();
    fleet.maintain("a", Maintenance::Drain { why: "fan".into(), deadline_ms: None });
    fleet.submit("j1", &guest(1));
    assert_eq!(part(&fleet, "j1").shares[0].rank, 1);
    fleet.submit("j2", &guest(4));
    let reason = fleet.job("j2").reason.clone();
    assert!(reason.ends_with("and 3 GPUs are free, 1 node takes nothing new"), "{reason}");
}

#[test]
fn a_guest_that_can_never_fit_holds_nobody_back() {
    let mut fleet = standing();
    let huge = "{name: g, cluster: dev, resources: {cpus_per_node: 500}, command: [x]}";
    fleet.submit("huge", huge);
    assert_eq!(
        fleet.job("huge").reason,
        "needs 1 node with 500 CPUs; cluster dev has 0 that large"
    );
    fleet.submit("j1", &guest(1));
    assert_eq!(fleet.state("j1"), JobState::Starting);
}
