//! What operators decide about nodes, as stories: their labels and their pools.

mod support;

use gangline_coordinator::core::effect::{Answer, Rejected};
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::core::maintenance::NODE_LABEL_LIMIT;
use gangline_coordinator::core::projects::Quota;
use support::{Fleet, inventory};

fn command(name: &str, resources: &str) -> String {
    let launcher = "launcher: {type: command}, command: [\"true\"]";
    format!("{{name: {name}, resources: {{{resources}}}, {launcher}}}")
}

/// Nodes `a` and `b` with four GPUs; the agent of `a` says `rack=r1`.
fn two_nodes() -> Fleet {
    let mut fleet = Fleet::new();
    let mut first = inventory("a", 4, false);
    first.labels = vec![("rack".to_owned(), "r1".to_owned())];
    fleet.add_node_with("a", first);
    fleet.add_node("b", 4, false);
    fleet
}

fn names(fleet: &Fleet, job: &str) -> Vec<String> {
    let gang = &fleet.job(job).gang;
    let gang = fleet.core.gangs().find(|other| other.id == *gang);
    let nodes = gang.into_iter().flat_map(|gang| gang.nodes());
    nodes.map(|node| node.as_str().trim_start_matches("n-").to_owned()).collect()
}

#[test]
fn an_operators_label_goes_before_the_agents_and_can_be_taken_back() {
    let mut fleet = two_nodes();
    let rack = |fleet: &Fleet| fleet.node("a").labels().get("rack").map(|v| v.to_string());
    assert_eq!(rack(&fleet).as_deref(), Some("r1"));
    fleet.label("a", &[("rack", Some("r2")), ("rail", Some("3"))]);
    assert_eq!(rack(&fleet).as_deref(), Some("r2"));
    // What the agent says again changes nothing.
    let mut again = inventory("a", 4, false);
    again.labels = vec![("rack".to_owned(), "r9".to_owned())];
    let (node, session) = fleet.session("a").unwrap();
    fleet.step(gangline_coordinator::core::event::Event::Inventory {
        node,
        session,
        inventory: Box::new(again),
        name: "a".to_owned(),
    });
    assert_eq!(rack(&fleet).as_deref(), Some("r2"));
    fleet.label("a", &[("rack", None)]);
    assert_eq!(rack(&fleet).as_deref(), Some("r9"));
    assert_eq!(fleet.node("a").labels().get("rail"), Some(&"3"));
    let said = fleet.node("a").history.iter().filter(|entry| entry.state == "labelled").count();
    assert_eq!(said, 2);
}

#[test]
fn containers_of_one_image_get_names_of_their_own() {
    let mut fleet = Fleet::new();
    for (name, wished) in [("a", "host"), ("b", "host-2"), ("c", "host"), ("d", "host")] {
        fleet.join(name, wished, None);
    }
    let names = ["a", "b", "c", "d"].map(|name| fleet.node(name).name.clone());
    assert_eq!(names, ["host", "host-2", "host-3", "host-4"]);
}

#[test]
fn labels_of_operators_have_a_bound() {
    let mut fleet = two_nodes();
    let keys: Vec<String> = (0..=NODE_LABEL_LIMIT).map(|n| format!("k{n}")).collect();
    let labels: Vec<(&str, Option<&str>)> =
        keys.iter().map(|key| (key.as_str(), Some("v"))).collect();
    let limit = NODE_LABEL_LIMIT;
    assert_eq!(fleet.label("a", &labels), Answer::Rejected(Rejected::TooManyLabels { limit }));
    assert!(fleet.node("a").set_labels.is_empty());
    assert_eq!(fleet.label("a", &labels[..limit]), Answer::Done);
    // One goes and one comes: still as many.
    assert_eq!(fleet.label("a", &[("k0", None), ("other", Some("v"))]), Answer::Done);
}

#[test]
fn a_node_that_moves_to_another_pool_keeps_its_gang_and_gets_new_ones_of_the_new_pool() {
    let mut fleet = two_nodes();
    fleet.submit("old", &command("old", "nnodes: 2, gpus_per_node: 1, pool: default"));
    fleet.settle();
    let known = vec!["default".to_owned()];
    let unknown = Rejected::NoSuchPool { pool: "fast".to_owned(), known };
    assert_eq!(fleet.set_pool("fast", None, &["b"], &[]), Answer::Rejected(unknown));
    assert_eq!(fleet.set_pool("fast", Some("new machines"), &["b"], &[]), Answer::Done);
    assert_eq!(fleet.node("b").pool(), Some("fast"));
    assert_eq!(fleet.state("old"), JobState::Running);
    fleet.submit("new", &command("new", "gpus_per_node: 1, pool: fast"));
    assert_eq!(names(&fleet, "new"), ["b"]);
    fleet.submit("wide", &command("wide", "nnodes: 2, gpus_per_node: 1, pool: default"));
    let reason = fleet.job("wide").reason.clone();
    assert!(reason.contains("1 of 2 would do if they were free (b: in pool fast)"), "{reason}");
    // Only who was moved here goes back.
    let not_here = Rejected::NotMovedHere { node: "a".to_owned() };
    assert_eq!(fleet.set_pool("default", None, &[], &["a"]), Answer::Rejected(not_here));
    assert_eq!(fleet.set_pool("fast", None, &[], &["b"]), Answer::Done);
    assert_eq!(fleet.node("b").pool(), Some("default"));
    assert_eq!(names(&fleet, "wide"), ["a", "b"]);
}

#[test]
fn a_pool_of_the_join_token_goes_before_the_agents_and_an_operators_before_both() {
    let mut fleet = Fleet::new();
    fleet.add_node_bound("a", inventory("a", 4, false), Some("h100"));
    assert_eq!(fleet.node("a").pool(), Some("h100"));
    assert_eq!(fleet.node("a").inventory.as_ref().unwrap().pool, "default");
    fleet.set_pool("spare", Some(""), &["a"], &[]);
    assert_eq!(fleet.node("a").pool(), Some("spare"));
    fleet.set_pool("spare", None, &[], &["a"]);
    assert_eq!(fleet.node("a").pool(), Some("h100"));
}

#[test]
fn a_pool_that_nobody_knows_is_refused_with_the_pools_there_are() {
    let mut fleet = Fleet::new();
    // Nobody can know better before there is any pool.
    fleet.submit("early", &command("early", "pool: h100"));
    assert_eq!(
        fleet.job("early").reason,
        "waits for nodes that the fleet does not have: needs 1 node in pool h100; no node has joined yet"
    );
    fleet.add_node("a", 4, false);
    let known = vec!["default".to_owned()];
    let unknown = Answer::Rejected(Rejected::NoSuchPool { pool: "h10".to_owned(), known });
    assert_eq!(fleet.submit("typo", &command("typo", "pool: h10")), unknown);
    fleet.declare_pool("h10");
    assert!(matches!(
        fleet.submit("typo", &command("typo", "pool: h10")),
        Answer::Submitted { .. }
    ));
}

#[test]
fn a_declared_pool_goes_when_nothing_names_it() {
    let mut fleet = two_nodes();
    fleet.set_pool("fast", Some("new"), &["a"], &[]);
    fleet.submit("j1", &command("j1", "gpus_per_node: 4, pool: fast"));
    let in_use = |nodes: &[&str], jobs| {
        let nodes = nodes.iter().map(|name| name.to_string()).collect();
        Answer::Rejected(Rejected::PoolInUse { nodes, jobs })
    };
    assert_eq!(fleet.delete_pool("fast"), in_use(&["a"], 1));
    fleet.set_pool("fast", None, &[], &["a"]);
    assert_eq!(fleet.delete_pool("fast"), in_use(&[], 1));
    fleet.settle();
    fleet.exit_ranks("j1", 0);
    assert_eq!(fleet.delete_pool("fast"), Answer::Done);
    let known = vec!["default".to_owned()];
    let unknown = Rejected::NoSuchPool { pool: "fast".to_owned(), known };
    assert_eq!(fleet.delete_pool("fast"), Answer::Rejected(unknown));
}

// ---------------------------------------------------------------- constraints of jobs

#[test]
fn a_job_gets_only_nodes_with_its_labels() {
    let mut fleet = two_nodes();
    fleet.label("b", &[("rack", Some("r2"))]);
    fleet.submit("j1", &command("j1", "gpus_per_node: 1, labels: {rack: r2}"));
    assert_eq!(names(&fleet, "j1"), ["b"]);
    fleet.submit("j2", &command("j2", "nnodes: 2, labels: {rack: r2}"));
    assert_eq!(
        fleet.job("j2").reason,
        "waits for nodes that the fleet does not have: needs 2 nodes and rack=r2; \
         1 of 2 would do if they were free (a: has rack=r1)"
    );
    // What an operator says counts for what starts from now on, and moves nothing that runs.
    fleet.settle();
    fleet.label("b", &[("rack", Some("r9"))]);
    assert_eq!((fleet.state("j1"), names(&fleet, "j1")), (JobState::Running, vec!["b".to_owned()]));
    fleet.submit("j3", &command("j3", "gpus_per_node: 1, labels: {rack: r9}"));
    assert_eq!(names(&fleet, "j3"), ["b"]);
    // The agent's label shows again.
    fleet.label("a", &[("rack", Some("r2"))]);
    fleet.label("b", &[("rack", Some("r2"))]);
    assert_eq!(names(&fleet, "j2"), ["a", "b"]);
}

#[test]
fn a_label_that_no_node_has_is_named_with_the_values_there_are_and_holds_back_nobody() {
    let mut fleet = two_nodes();
    fleet.label("b", &[("rack", Some("r2"))]);
    let why = |fleet: &mut Fleet, id: &str, labels: &str| {
        fleet.submit(id, &command(id, &format!("labels: {{{labels}}}")));
        let reason = fleet.job(id).reason.clone();
        reason.split_once("; ").map(|(_, why)| why.to_owned()).unwrap_or(reason)
    };
    assert_eq!(why(&mut fleet, "value", "rack: r3"), "no node has rack=r3; rack is one of: r1, r2");
    assert_eq!(why(&mut fleet, "key", "rak: r1"), "no node has a label rak; there are: rack");
    let both = why(&mut fleet, "both", "rack: r1, rail: 1");
    assert_eq!(both, "no node has a label rail; there are: rack");
    fleet.submit("other", &command("other", "gpus_per_node: 1"));
    assert_eq!(fleet.state("other"), JobState::Starting);
    // Once a node has it, the job starts.
    fleet.label("b", &[("rack", Some("r3"))]);
    assert_eq!(names(&fleet, "value"), ["b"]);
}

#[test]
fn any_of_several_pools_will_do_and_a_gang_lies_in_one() {
    let mut fleet = two_nodes();
    for name in ["c", "d", "e"] {
        fleet.add_node(name, 4, false);
    }
    fleet.set_pool("fast", Some(""), &["a"], &[]);
    fleet.set_pool("slow", Some(""), &["b", "c"], &[]);
    fleet.submit("both", &command("both", "nnodes: 2, gpus_per_node: 4, pool: [fast, slow]"));
    assert_eq!(names(&fleet, "both"), ["b", "c"]);
    fleet.submit("one", &command("one", "gpus_per_node: 4, pool: [fast, slow]"));
    assert_eq!(names(&fleet, "one"), ["a"]);
    fleet.submit("waits", &command("waits", "gpus_per_node: 4, pool: [slow, fast]"));
    assert_eq!(
        fleet.job("waits").reason,
        "waits for 1 node with 4 GPUs each in pool slow or fast: 0 of 5 fit now \
         (a: 0 of 4 GPUs free; b: 0 of 4 GPUs free; c: 0 of 4 GPUs free; d: in pool default; \
         e: in pool default)"
    );
    fleet.submit("beside", &command("beside", "gpus_per_node: 4, pool: default"));
    assert_eq!(names(&fleet, "beside"), ["d"]);
    let known = ["default", "fast", "slow"].map(str::to_owned).to_vec();
    let unknown = Rejected::NoSuchPool { pool: "slo".to_owned(), known };
    let answer = fleet.submit("typo", &command("typo", "pool: [fast, slo]"));
    assert_eq!(answer, Answer::Rejected(unknown));
}

#[test]
fn an_exclusive_gang_waits_for_an_empty_node_and_nobody_comes_later() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    let part = "gpus_per_node: 1, cpus_per_node: 1, memory_per_node: 1GiB";
    fleet.submit("first", &command("first", part));
    let whole = format!("{part}, exclusive: true");
    fleet.submit("whole", &command("whole", &whole));
    assert_eq!(
        fleet.job("whole").reason,
        "waits for 1 node with 1 GPUs each: 0 of 1 fit now \
         (a: 1 job runs there, and this one wants the whole node)"
    );
    fleet.settle();
    fleet.exit_ranks("first", 0);
    assert_eq!(fleet.state("whole"), JobState::Running);
    fleet.submit("late", &command("late", part));
    assert_eq!(
        fleet.job("late").reason,
        "waits for 1 node with 1 GPUs each: 0 of 1 fit now (a: another job has the whole node)"
    );
    // Only evidence ends that: not the stop, but the end of the processes.
    fleet.stop("whole");
    assert_eq!(fleet.state("late"), JobState::Pending);
    fleet.settle();
    assert_eq!(fleet.state("late"), JobState::Running);
}

#[test]
fn a_gang_of_all_gpus_of_a_node_has_it_to_itself_unless_it_says_otherwise() {
    let part = "cpus_per_node: 1, memory_per_node: 1GiB";
    for (asks, shares) in [("", false), (", exclusive: false", true), (", exclusive: true", false)]
    {
        let mut fleet = Fleet::new();
        fleet.add_node("a", 4, false);
        fleet.submit("all", &command("all", &format!("gpus_per_node: 4, {part}{asks}")));
        assert_eq!(fleet.state("all"), JobState::Starting);
        fleet.submit("cpu", &command("cpu", part));
        assert_eq!(fleet.state("cpu") == JobState::Starting, shares, "{asks}");
    }
    // A head does no compute: it is no company.
    let mut fleet = Fleet::new();
    let mut both = inventory("a", 4, true);
    both.worker_role = true;
    fleet.add_node_with("a", both);
    fleet.add_node("b", 4, false);
    let whole = "gpus_per_node: 4, cpus_per_node: 1, memory_per_node: 1GiB, exclusive: true";
    fleet.submit(
        "ray",
        &format!("{{name: ray, resources: {{{whole}, exclude_nodes: [a]}}, run: x}}"),
    );
    assert_eq!(names(&fleet, "ray"), ["a", "b"], "its head is on a");
    fleet.submit("whole", &command("whole", whole));
    assert_eq!(names(&fleet, "whole"), ["a"]);
}

#[test]
fn an_elastic_gang_starts_with_what_there_is_above_its_least() {
    let mut fleet = two_nodes();
    let elastic = "nnodes: 2..4, gpus_per_node: 4";
    fleet.submit("j1", &command("j1", elastic));
    assert_eq!(names(&fleet, "j1"), ["a", "b"]);
    fleet.add_node("c", 4, false);
    fleet.settle();
    assert_eq!(names(&fleet, "j1"), ["a", "b"], "it grows only with another attempt");
    assert_eq!(fleet.state("j1"), JobState::Running);
    fleet.exit_ranks("j1", 0);
    fleet.add_node("d", 4, false);
    fleet.add_node("e", 4, false);
    fleet.submit("j2", &command("j2", elastic));
    assert_eq!(names(&fleet, "j2").len(), 4);
    fleet.submit("j3", &command("j3", elastic));
    let reason = fleet.job("j3").reason.clone();
    assert!(
        reason.starts_with("waits for 2 to 4 nodes with 4 GPUs each: 1 of 5 fit now"),
        "{reason}"
    );
}

#[test]
fn what_a_gang_wants_in_common_comes_before_what_is_closest() {
    let mut fleet = Fleet::new();
    for (name, rack, rail) in
        [("a", "r1", "1"), ("b", "r2", "1"), ("c", "r1", "2"), ("d", "r2", "2")]
    {
        fleet.add_node(name, 4, false);
        fleet.label(name, &[("rack", Some(rack)), ("rail", Some(rail))]);
    }
    let asks = |topology: &str| format!("nnodes: 2, gpus_per_node: 4, topology: {topology}");
    let mut takes = |topology: &str| {
        fleet.submit(topology, &command("j", &asks(topology)));
        let nodes = names(&fleet, topology);
        fleet.stop(topology);
        fleet.settle();
        nodes
    };
    assert_eq!(takes("rack"), ["a", "c"]);
    assert_eq!(takes("rail"), ["a", "b"]);
    // Nobody has a label of that name: the next closest counts, and nobody waits.
    assert_eq!(takes("leaf"), ["a", "c"]);
    fleet.submit("wide", &command("wide", &asks("rack").replace("nnodes: 2", "nnodes: 3")));
    assert_eq!(names(&fleet, "wide").len(), 3);
}

#[test]
fn whole_nodes_are_kept_for_who_waits_for_them() {
    let mut fleet = Fleet::new();
    fleet.add_node("a", 4, false);
    let part = "gpus_per_node: 1, cpus_per_node: 1, memory_per_node: 1GiB";
    fleet.submit("first", &command("first", part));
    fleet.submit("whole", &command("whole", &format!("{part}, exclusive: true")));
    fleet.submit("passed", &command("passed", part));
    fleet.settle();
    fleet.beat(3_000);
    // Two GPUs are free, but a later job there would keep the one that was passed waiting for ever.
    fleet.submit("late", &command("late", part));
    assert_eq!(fleet.job("late").reason, "waits behind whole");
    fleet.settle();
    fleet.exit_ranks("first", 1);
    fleet.exit_ranks("passed", 1);
    assert_eq!(fleet.state("whole"), JobState::Running);
    fleet.exit_ranks("whole", 0);
    assert_eq!(fleet.state("late"), JobState::Running);
}

#[test]
fn an_elastic_gang_takes_no_more_than_its_project_may_have() {
    let mut fleet = Fleet::new();
    for name in ["a", "b", "c", "d"] {
        fleet.add_node(name, 4, false);
    }
    fleet.set_quota("rl", "default", Quota { guaranteed: 0, maximum: Some(12) });
    fleet.submit("j1", &command("j1", "nnodes: 2..4, gpus_per_node: 4"));
    assert_eq!(names(&fleet, "j1"), ["a", "b", "c"]);
}
