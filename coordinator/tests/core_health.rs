//! What follows from what nodes say is wrong with them, as stories.

mod support;

use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::health::{ClearedCondition, Condition, HEALTH, Health, Level};
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::node::{Lifecycle, Reachability};
use gangline_coordinator::core::recovery::{Again, Cause, Verdict};
use gangline_coordinator::core::trials::{MAX_FINDINGS, MAX_RULES, Proof, WINDOW_MS};
use support::{Fleet, verdict};

fn command(name: &str, gpus: u32) -> String {
    format!(
        "{{name: {name}, resources: {{gpus_per_node: {gpus}}}, launcher: {{type: command}}, \
         command: [\"true\"]}}"
    )
}

fn condition(component: &str, level: Level) -> Condition {
    Condition {
        rule: "xid_fatal".to_owned(),
        component: component.to_owned(),
        level,
        blocks_start: false,
        shadow: false,
        action: "REBOOT_SYSTEM".to_owned(),
        reason: "Xid 79: the GPU has fallen off the bus".to_owned(),
        evidence: "seen once".to_owned(),
        clears: "a reboot and a passed check, or an operator".to_owned(),
        since_ms: 5_000,
    }
}

fn say(fleet: &mut Fleet, node: &str, conditions: Vec<Condition>) {
    let (id, session) = fleet.session(node).unwrap();
    let health = Box::new(Health { conditions, blind: Vec::new() });
    fleet.step(Event::Diagnosed { node: id, session, health });
}

fn nodes(count: usize) -> Fleet {
    let mut fleet = Fleet::new();
    for n in 1..=count {
        fleet.add_node(&format!("n{n}"), 4, false);
    }
    fleet
}

fn runs_on(fleet: &Fleet, job: &str) -> Vec<String> {
    let id = fleet.job(job).gang.clone();
    let gang = fleet.core.gangs().find(|gang| gang.id == id).unwrap();
    gang.nodes().iter().map(ToString::to_string).collect()
}

fn gpu_of(fleet: &Fleet, job: &str) -> String {
    let id = fleet.job(job).gang.clone();
    let gang = fleet.core.gangs().find(|gang| gang.id == id).unwrap();
    gang.members.values().find_map(|member| member.gpus.first()).unwrap().to_string()
}

fn is_cordoned(fleet: &Fleet, node: &str) -> bool {
    fleet.node(node).cordon.as_ref().is_some_and(|cordon| cordon.by == HEALTH)
}

#[test]
fn a_fatal_condition_of_a_gpu_cordons_the_node_and_what_uses_that_gpu_starts_elsewhere() {
    let mut fleet = nodes(2);
    fleet.submit("hit", &command("hit", 1));
    fleet.submit("near", &command("near", 1));
    fleet.settle();
    let node = runs_on(&fleet, "hit").remove(0);
    assert_eq!(runs_on(&fleet, "near"), std::slice::from_ref(&node), "packed together");
    let (name, gpu) = (node.trim_start_matches("n-").to_owned(), gpu_of(&fleet, "hit"));
    say(&mut fleet, &name, vec![condition(&format!("gpu:{gpu}"), Level::Fatal)]);
    assert!(is_cordoned(&fleet, &name));
    assert_eq!(fleet.node(&name).word(0, 0), "cordoned");
    assert_eq!(fleet.node(&name).health_word(), "unhealthy");
    let last = fleet.job("hit").history.last().unwrap().text.clone();
    assert!(last.contains("fallen off the bus") && last.contains(&name), "{last}");
    fleet.settle();
    assert_eq!(fleet.state("hit"), JobState::Running);
    assert_ne!(runs_on(&fleet, "hit"), std::slice::from_ref(&node));
    // Its neighbour's GPU is well: it runs on.
    assert_eq!((fleet.state("near"), runs_on(&fleet, "near")), (JobState::Running, vec![node]));
    assert_eq!(fleet.job("near").attempts, 1);
}

#[test]
fn a_rule_on_trial_and_a_warning_change_nothing_but_what_is_shown() {
    let mut fleet = nodes(1);
    fleet.submit("job", &command("job", 4));
    fleet.settle();
    let trial = Condition { shadow: true, ..condition("node", Level::Fatal) };
    let degraded = Condition { rule: "pcie".to_owned(), ..condition("node", Level::Degraded) };
    say(&mut fleet, "n1", vec![trial, degraded]);
    assert!(fleet.node("n1").cordon.is_none() && fleet.node("n1").is_open());
    assert_eq!(fleet.node("n1").health_word(), "degraded");
    assert_eq!(fleet.state("job"), JobState::Running);
    let shown: Vec<String> = fleet.node("n1").history.iter().map(|t| t.text.clone()).collect();
    assert!(shown.iter().any(|text| text.contains("on trial")), "{shown:?}");
}

#[test]
fn what_keeps_away_new_gangs_ends_with_the_condition() {
    let mut fleet = nodes(1);
    let full = Condition {
        rule: "shared_full".to_owned(),
        blocks_start: true,
        ..condition("node", Level::NoNewJobs)
    };
    say(&mut fleet, "n1", vec![full]);
    fleet.submit("job", &command("job", 1));
    assert_eq!(fleet.state("job"), JobState::Pending);
    let reason = fleet.job("job").reason.clone();
    assert!(reason.contains("unfit"), "{reason}");
    assert_eq!(fleet.node("n1").word(0, 0), "unfit");
    say(&mut fleet, "n1", vec![]);
    assert_eq!(fleet.state("job"), JobState::Starting);
}

#[test]
fn a_link_that_comes_and_goes_cordons_under_the_cap_and_lets_run_what_runs() {
    let mut fleet = nodes(3);
    fleet.submit("job", &command("job", 4));
    fleet.settle();
    let host = runs_on(&fleet, "job").remove(0).trim_start_matches("n-").to_owned();
    let flaps = || {
        let rule = "port-flap".to_owned();
        vec![Condition { rule, ..condition("port:mlx5_0/1", Level::NoNewJobs) }]
    };
    say(&mut fleet, &host, flaps());
    assert!(is_cordoned(&fleet, &host));
    assert_eq!(fleet.state("job"), JobState::Running);
    let others: Vec<String> = (1..=3).map(|n| format!("n{n}")).filter(|n| *n != host).collect();
    for name in &others {
        say(&mut fleet, name, flaps());
    }
    assert!(is_cordoned(&fleet, &others[0]));
    assert!(!is_cordoned(&fleet, &others[1]), "health has taken its share");
    fleet.submit("next", &command("next", 4));
    fleet.settle();
    assert_eq!(fleet.state("next"), JobState::Pending, "all the same it gets nothing new");
    // What is worse has a share of its own.
    say(&mut fleet, &others[1], vec![condition("node", Level::Fatal)]);
    assert!(is_cordoned(&fleet, &others[1]));
    // Worse than that, and only that again: what runs leaves, and the cordon stays.
    say(&mut fleet, &host, [flaps(), vec![condition("node", Level::Fatal)]].concat());
    assert_ne!(fleet.state("job"), JobState::Running);
    say(&mut fleet, &host, flaps());
    assert!(is_cordoned(&fleet, &host));
    say(&mut fleet, &host, vec![]);
    assert!(fleet.node(&host).is_open());
}

#[test]
fn another_reason_is_told_once_and_the_cordon_says_what_is_worst() {
    let mut fleet = nodes(1);
    let why = |fleet: &Fleet| fleet.node("n1").cordon.as_ref().unwrap().why.clone();
    let flap = Condition {
        rule: "port-flap".to_owned(),
        reason: "the link comes and goes".to_owned(),
        ..condition("port:mlx5_0/1", Level::NoNewJobs)
    };
    let xid = |code: u32, evidence: &str| Condition {
        reason: format!("Xid {code}"),
        evidence: evidence.to_owned(),
        ..condition("gpu:x", Level::Fatal)
    };
    say(&mut fleet, "n1", vec![flap.clone()]);
    assert_eq!(why(&fleet), "port:mlx5_0/1: the link comes and goes (seen once)");
    // Something worse.
    let before = fleet.told_of("node n1").len();
    say(&mut fleet, "n1", vec![xid(48, "once"), flap.clone()]);
    assert_eq!(why(&fleet), "gpu:x: Xid 48 (once)");
    assert_eq!(fleet.told_of("node n1")[before..], ["node.condition", "node.cordoned"]);
    // Other numbers, and another condition that is as bad, change nothing of it.
    say(&mut fleet, "n1", vec![xid(48, "twice"), flap.clone()]);
    assert_eq!(fleet.told_of("node n1").len(), before + 2);
    let switch = Condition { rule: "sxid".to_owned(), ..condition("switch:s", Level::Fatal) };
    say(&mut fleet, "n1", vec![switch.clone(), xid(48, "twice"), flap.clone()]);
    assert_eq!(fleet.told_of("node n1")[before + 2..], ["node.condition"]);
    assert_eq!(why(&fleet), "gpu:x: Xid 48 (once)");
    // The same part for another reason: told, and not again however often the two alternate.
    say(&mut fleet, "n1", vec![xid(79, "once"), flap.clone()]);
    assert_eq!(why(&fleet), "gpu:x: Xid 79 (once)");
    let told = fleet.told_of("node n1")[before + 3..].to_vec();
    assert_eq!(told, ["node.condition", "node.healed", "node.cordoned"]);
    let history = fleet.node("n1").history.len();
    for code in [48, 79, 48, 79, 48] {
        say(&mut fleet, "n1", vec![xid(code, "again"), flap.clone()]);
    }
    assert_eq!(fleet.told_of("node n1").len(), before + 6);
    assert_eq!(fleet.node("n1").history.len(), history);
    assert_eq!(why(&fleet), "gpu:x: Xid 79 (once)");
    // Nor is there any end of it when everything is found at once.
    for code in 100..200 {
        say(&mut fleet, "n1", vec![xid(code, "")]);
    }
    let storm = fleet.told_of("node n1").iter().filter(|kind| **kind == "node.condition").count();
    assert!(storm < 12, "{storm}");
    // What is worst is over: what remains is what it is cordoned for.
    say(&mut fleet, "n1", vec![flap]);
    assert_eq!(why(&fleet), "port:mlx5_0/1: the link comes and goes (seen once)");
    say(&mut fleet, "n1", vec![]);
    assert!(fleet.node("n1").is_open());
}

#[test]
fn what_is_only_worth_knowing_is_told_and_is_no_part_of_the_history() {
    let mut fleet = nodes(1);
    let since_ms = fleet.now.wall_ms + 1;
    let level = |level| vec![Condition { since_ms, ..condition("gpu:x", level) }];
    let history = fleet.node("n1").history.len();
    let before = fleet.told_of("node n1").len();
    say(&mut fleet, "n1", level(Level::Info));
    say(&mut fleet, "n1", level(Level::Info));
    say(&mut fleet, "n1", vec![]);
    assert_eq!(fleet.told_of("node n1")[before..], ["node.info", "node.info"]);
    assert_eq!(fleet.node("n1").history.len(), history);
    say(&mut fleet, "n1", level(Level::Warning));
    say(&mut fleet, "n1", level(Level::Info));
    say(&mut fleet, "n1", vec![]);
    let told = &fleet.told_of("node n1")[before + 2..];
    assert_eq!(told, ["node.condition", "node.condition", "node.info"]);
    // After a restart the same is not told again.
    say(&mut fleet, "n1", level(Level::Info));
    fleet.wait_ms(1_000);
    fleet.restart();
    fleet.connect("n1");
    let before = fleet.told_of("node n1").len();
    say(&mut fleet, "n1", level(Level::Info));
    assert_eq!(fleet.told_of("node n1").len(), before);
}

#[test]
fn a_gpu_that_somebody_else_uses_is_not_offered_and_the_others_are() {
    let mut fleet = nodes(1);
    let gpu = fleet.node("n1").inventory.as_ref().unwrap().gpus[0].uuid.clone();
    let foreign = condition(&format!("gpu:{gpu}"), Level::NoNewJobs);
    say(&mut fleet, "n1", vec![foreign]);
    fleet.submit("four", &command("four", 4));
    fleet.submit("three", &command("three", 3));
    assert_eq!(fleet.state("four"), JobState::Pending);
    assert_eq!(fleet.state("three"), JobState::Starting);
}

#[test]
fn a_drain_after_the_job_lets_it_end_takes_nothing_new_and_is_over_with_the_condition() {
    let mut fleet = nodes(1);
    fleet.submit("job", &command("job", 1));
    fleet.settle();
    let pending = condition("gpu:x", Level::DrainAfterJob);
    say(&mut fleet, "n1", vec![pending]);
    assert_eq!(fleet.node("n1").lifecycle, Lifecycle::Draining);
    fleet.submit("next", &command("next", 1));
    assert_eq!((fleet.state("job"), fleet.state("next")), (JobState::Running, JobState::Pending));
    fleet.exit_ranks("job", 0);
    assert_eq!(fleet.state("job"), JobState::Succeeded);
    assert_eq!(fleet.state("next"), JobState::Pending);
    say(&mut fleet, "n1", vec![]);
    assert_eq!(fleet.node("n1").lifecycle, Lifecycle::Online);
    assert_eq!(fleet.state("next"), JobState::Starting);
}

#[test]
fn health_alone_takes_only_its_share_of_a_pool() {
    let mut fleet = nodes(5);
    fleet.submit("job", &command("job", 4));
    fleet.settle();
    let host = runs_on(&fleet, "job").remove(0).trim_start_matches("n-").to_owned();
    let mut others: Vec<String> = (1..=5).map(|n| format!("n{n}")).collect();
    others.retain(|name| *name != host);
    for name in &others {
        say(&mut fleet, name, vec![condition("node", Level::Fatal)]);
    }
    say(&mut fleet, &host, vec![condition("node", Level::Fatal)]);
    let taken = |fleet: &Fleet| (1..=5).filter(|n| is_cordoned(fleet, &format!("n{n}"))).count();
    assert_eq!(taken(&fleet), 2);
    assert!(!is_cordoned(&fleet, &host));
    assert_eq!(fleet.state("job"), JobState::Running, "what runs on the others goes on");
    let said = fleet.node(&host).history.last().unwrap().clone();
    assert!(
        said.state == "not cordoned" && said.text.contains("an operator must decide"),
        "{said:?}"
    );
    // Again and again the same is not said anew.
    say(&mut fleet, &host, vec![condition("node", Level::Fatal)]);
    let count = fleet.node(&host).history.iter().filter(|t| t.state == "not cordoned").count();
    assert_eq!(count, 1);
    // An operator decides about one of them: there is room for the next, without another word.
    let first = others.iter().find(|name| is_cordoned(&fleet, name)).unwrap().clone();
    fleet.maintain(&first, Maintenance::Resume);
    fleet.beat(2);
    assert_eq!(taken(&fleet), 2);
}

#[test]
fn nodes_that_are_lost_are_not_what_health_takes_its_share_of() {
    let mut fleet = nodes(40);
    fleet.beat(1);
    let all: Vec<String> = (1..=40).map(|n| format!("n{n}")).collect();
    let (there, lost) = all.split_at(20);
    for name in lost {
        fleet.disconnect(name);
    }
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    fleet.live(&there, 40);
    assert_eq!(fleet.node("n40").reachability, Reachability::Lost);
    for name in &there[..4] {
        say(&mut fleet, name, vec![condition("node", Level::Fatal)]);
    }
    let taken = |fleet: &Fleet| all.iter().filter(|name| is_cordoned(fleet, name)).count();
    assert_eq!(taken(&fleet), 2, "of the twenty that are there");
    let said = |fleet: &Fleet, name: &str| {
        fleet.node(name).history.iter().filter(|t| t.state == "not cordoned").count()
    };
    assert_eq!((said(&fleet, "n3"), said(&fleet, "n4")), (1, 1));
    // The others come back: there is room for two more, without another word of the nodes.
    for name in lost {
        fleet.connect(name);
    }
    fleet.live(&there, 1);
    assert_eq!(taken(&fleet), 4);
    // One that was taken and is rebooted now is still taken.
    say(&mut fleet, "n5", vec![condition("node", Level::Fatal)]);
    fleet.disconnect("n1");
    let others: Vec<&str> = all[1..].iter().map(String::as_str).collect();
    fleet.live(&others, 40);
    assert_eq!((fleet.node("n1").reachability, taken(&fleet)), (Reachability::Lost, 4));
    // It is said once, whatever else happens to the node and whatever numbers change.
    let numbers =
        Condition { evidence: "seen twice".to_owned(), ..condition("node", Level::Fatal) };
    say(&mut fleet, "n5", vec![numbers]);
    fleet.live(&others, 2);
    assert_eq!(said(&fleet, "n5"), 1);
    // What a person takes out of use is left, share or not.
    fleet.maintain("n5", Maintenance::Cordon { why: "fan".to_owned() });
    fleet.live(&others, 1);
    assert_eq!((said(&fleet, "n5"), taken(&fleet)), (1, 4));
}

#[test]
fn an_operator_ends_what_stands_and_the_agent_is_told_until_it_has_heard() {
    let mut fleet = nodes(1);
    let fatal = condition("node", Level::Fatal);
    say(&mut fleet, "n1", vec![fatal.clone()]);
    assert!(is_cordoned(&fleet, "n1"));
    fleet.maintain("n1", Maintenance::Resume);
    assert!(fleet.node("n1").cordon.is_none() && fleet.node("n1").is_open());
    let key = ClearedCondition {
        rule: fatal.rule.clone(),
        component: fatal.component.clone(),
        since_ms: fatal.since_ms,
    };
    let told = |fleet: &Fleet| fleet.cleared.last().cloned();
    assert_eq!(told(&fleet), Some([key.clone()].into()));
    // It has not heard, and says the same: it is told again, and nothing is done about it.
    fleet.cleared.clear();
    say(&mut fleet, "n1", vec![fatal.clone()]);
    assert!(fleet.node("n1").cordon.is_none());
    assert_eq!(told(&fleet), Some([key].into()));
    // It has heard; the same at another time is another condition.
    say(&mut fleet, "n1", vec![]);
    assert!(fleet.node("n1").cleared.is_empty());
    say(&mut fleet, "n1", vec![Condition { since_ms: 9_000, ..fatal }]);
    assert!(is_cordoned(&fleet, "n1"));
    // A reboot and a passed check ended it, says the agent: health takes its own cordon back.
    say(&mut fleet, "n1", vec![]);
    assert!(fleet.node("n1").is_open());
}

#[test]
fn what_is_worse_than_what_an_operator_has_ended_stands_although_it_began_as_that() {
    for worse in [
        Condition { reason: "Xid 48".to_owned(), ..condition("gpu:x", Level::Fatal) },
        Condition { rule: "port".to_owned(), ..condition("port:mlx5_0/1", Level::Fatal) },
    ] {
        let mut fleet = nodes(1);
        let milder = match worse.rule.as_str() {
            "port" => Condition { level: Level::NoNewJobs, ..worse.clone() },
            _ => condition("gpu:x", Level::Fatal),
        };
        say(&mut fleet, "n1", vec![milder.clone()]);
        fleet.disconnect("n1");
        fleet.maintain("n1", Maintenance::Resume);
        fleet.connect("n1");
        say(&mut fleet, "n1", vec![milder]);
        assert!(fleet.node("n1").is_open());
        say(&mut fleet, "n1", vec![worse]);
        assert!(is_cordoned(&fleet, "n1"));
        assert!(fleet.node("n1").cleared.is_empty());
    }
}

#[test]
fn what_an_operator_has_ended_stays_ended_over_a_restart_before_the_agent_has_heard() {
    let mut fleet = nodes(1);
    let fatal = condition("node", Level::Fatal);
    say(&mut fleet, "n1", vec![fatal.clone()]);
    fleet.disconnect("n1");
    fleet.maintain("n1", Maintenance::Resume);
    fleet.restart();
    fleet.connect("n1");
    fleet.cleared.clear();
    // The agent has heard nothing of it, and says it to the new process.
    say(&mut fleet, "n1", vec![fatal.clone()]);
    assert!(fleet.node("n1").cordon.is_none() && fleet.node("n1").is_open());
    let told = fleet.cleared.last().cloned().unwrap_or_default();
    assert_eq!(told.first().map(|cleared| cleared.since_ms), Some(fatal.since_ms), "{told:?}");
    // It has heard: nothing of it is kept, not even over another restart.
    say(&mut fleet, "n1", vec![]);
    fleet.restart();
    assert!(fleet.node("n1").cleared.is_empty());
}

#[test]
fn what_an_operator_has_ended_before_the_agent_is_back_after_a_restart_stays_ended() {
    let mut fleet = nodes(1);
    let fatal = condition("node", Level::Fatal);
    say(&mut fleet, "n1", vec![fatal.clone()]);
    assert!(is_cordoned(&fleet, "n1"));
    fleet.restart();
    // Nobody has been told of what begins between the restart and the resume.
    let later = fleet.now.wall_ms + 1;
    fleet.wait_ms(5_000);
    fleet.maintain("n1", Maintenance::Resume);
    fleet.connect("n1");
    fleet.cleared.clear();
    assert!(fatal.since_ms < later);
    say(&mut fleet, "n1", vec![fatal.clone()]);
    assert!(fleet.node("n1").cordon.is_none() && fleet.node("n1").is_open());
    let told = fleet.cleared.last().cloned().unwrap_or_default();
    assert_eq!(told.first().map(|cleared| cleared.since_ms), Some(fatal.since_ms), "{told:?}");
    // What began after the restart is another matter.
    say(&mut fleet, "n1", vec![fatal.clone(), Condition { since_ms: later, ..fatal }]);
    assert!(is_cordoned(&fleet, "n1"));
}

#[test]
fn a_cordon_of_a_person_stays_when_the_node_is_well_again() {
    let mut fleet = nodes(1);
    fleet.maintain("n1", Maintenance::Cordon { why: "fan".to_owned() });
    say(&mut fleet, "n1", vec![condition("node", Level::Fatal)]);
    say(&mut fleet, "n1", vec![]);
    assert_eq!(fleet.node("n1").cordon.as_ref().map(|cordon| cordon.by.as_str()), Some("alice"));
}

/// What a rule on trial says of a part.
fn tried(fleet: &Fleet, component: &str) -> Condition {
    Condition {
        rule: "gpu-clock".to_owned(),
        shadow: true,
        since_ms: fleet.now.wall_ms,
        ..condition(component, Level::Degraded)
    }
}

fn tally(fleet: &Fleet) -> (u64, u64, u64) {
    let tally = fleet.core.rule_trials().next().map(|trial| trial.tally()).unwrap_or_default();
    (tally.confirmed, tally.refuted, tally.untold)
}

fn precision(fleet: &Fleet) -> Option<f64> {
    fleet.core.rule_trials().next().and_then(|trial| trial.tally().precision())
}

#[test]
fn what_a_rule_on_trial_finds_is_held_against_what_other_rules_and_jobs_say() {
    let mut fleet = nodes(3);
    fleet.submit("job", &command("job", 4));
    fleet.settle();
    let host = runs_on(&fleet, "job").remove(0).trim_start_matches("n-").to_owned();
    let others: Vec<String> = (1..=3).map(|n| format!("n{n}")).filter(|n| *n != host).collect();
    let gpu = format!("gpu:{}", gpu_of(&fleet, "job"));
    // On a part that work ends well on, on one that turns out to be broken, and on one that is idle.
    let of_work = tried(&fleet, &gpu);
    say(&mut fleet, &host, vec![of_work.clone()]);
    let broken = tried(&fleet, "gpu:b");
    say(&mut fleet, &others[0], vec![broken.clone()]);
    let idle = tried(&fleet, "gpu:c");
    say(&mut fleet, &others[1], vec![idle.clone()]);
    assert_eq!((tally(&fleet), precision(&fleet)), ((0, 0, 3), None));
    // Said again, it is the same finding.
    let more = tried(&fleet, "node");
    say(&mut fleet, &others[1], vec![idle.clone(), more]);
    say(&mut fleet, &others[1], vec![idle.clone()]);
    assert_eq!(tally(&fleet), (0, 0, 4));
    // What another part of the node has proves nothing.
    let fatal = |component: &str| condition(component, Level::Fatal);
    say(&mut fleet, &others[0], vec![broken.clone(), fatal("gpu:x")]);
    assert_eq!(tally(&fleet), (0, 0, 4));
    say(&mut fleet, &others[0], vec![broken.clone(), fatal("gpu:b")]);
    assert_eq!((tally(&fleet), precision(&fleet)), ((1, 0, 3), Some(1.0)));
    // Nor what is less bad, nor what a part has for a node.
    let warning = Condition { rule: "hot".to_owned(), ..condition("gpu:c", Level::Warning) };
    say(&mut fleet, &others[1], vec![idle.clone(), warning, fatal("gpu:x")]);
    assert_eq!(tally(&fleet), (1, 0, 3));
    // Work that went well for a moment says nothing.
    fleet.exit_ranks("job", 0);
    assert_eq!((fleet.state("job"), tally(&fleet)), (JobState::Succeeded, (1, 0, 3)));
    fleet.submit("longer", &command("longer", 4));
    fleet.settle();
    assert_eq!(runs_on(&fleet, "longer"), [format!("n-{host}")], "the others are cordoned");
    fleet.live(&["n1", "n2", "n3"], 700);
    fleet.exit_ranks("longer", 0);
    fleet.settle();
    assert_eq!((tally(&fleet), precision(&fleet)), ((1, 1, 2), Some(0.5)));
    // All of it is stored.
    fleet.restart();
    assert_eq!(tally(&fleet), (1, 1, 2));
    let trial = fleet.core.rule_trials().next().unwrap().clone();
    let why = trial.findings.iter().find_map(|finding| match &finding.proof {
        Proof::Confirmed { why } => Some(why.as_str()),
        _ => None,
    });
    assert_eq!(why, Some("xid_fatal: Xid 79: the GPU has fallen off the bus"));
}

#[test]
fn a_finding_is_judged_after_a_day_once_however_long_its_condition_stands() {
    let mut fleet = nodes(1);
    fleet.submit("job", &command("job", 1));
    fleet.settle();
    let used = tried(&fleet, &format!("gpu:{}", gpu_of(&fleet, "job")));
    let free = tried(&fleet, "gpu:free");
    let info = Condition { level: Level::Info, ..tried(&fleet, "node") };
    let said = vec![used.clone(), free.clone(), info];
    say(&mut fleet, "n1", said.clone());
    let open = |fleet: &Fleet| fleet.core.rule_trials().next().unwrap().findings.len();
    assert_eq!(open(&fleet), 2, "what is only worth knowing is no finding");
    // The boot clock of a day, beat by beat, is long; nodes are heard of all the same.
    fleet.now = fleet.now.plus_ms(WINDOW_MS - 60_000);
    fleet.live(&["n1"], 30);
    assert_eq!(open(&fleet), 2);
    // What comes and goes within its day is one finding.
    let again = Condition { since_ms: fleet.now.wall_ms, ..used.clone() };
    say(&mut fleet, "n1", vec![free.clone()]);
    say(&mut fleet, "n1", vec![again, free.clone()]);
    assert_eq!(open(&fleet), 2);
    fleet.live(&["n1"], 60);
    say(&mut fleet, "n1", said);
    assert_eq!(open(&fleet), 0);
    // The job needs the one, and runs still.
    assert_eq!((fleet.state("job"), tally(&fleet)), (JobState::Running, (0, 1, 1)));
}

#[test]
fn an_attempt_that_its_node_is_to_blame_for_confirms_and_findings_are_bounded() {
    let mut fleet = nodes(2);
    fleet.submit("job", &command("job", 4));
    fleet.settle();
    let host = runs_on(&fleet, "job").remove(0).trim_start_matches("n-").to_owned();
    let found = tried(&fleet, "port:mlx5_0/1");
    say(&mut fleet, &host, vec![found]);
    let node = Some(fleet.node(&host).id.clone());
    fleet.verdict = Some(Verdict { node, ..verdict(Again::After(Cause::Hardware)) });
    fleet.exit_ranks("job", 1);
    assert_eq!(tally(&fleet), (1, 0, 0));
    let other = if host == "n1" { "n2" } else { "n1" };
    for n in 0..MAX_FINDINGS {
        let one = tried(&fleet, &format!("gpu:{n}"));
        say(&mut fleet, other, vec![one]);
    }
    // Whatever is said of more than can be followed pushes nothing out.
    assert_eq!(tally(&fleet), (1, 0, MAX_FINDINGS as u64 - 1));
    let rule =
        |n: usize| format!("rule-{}{}", ('a'..).nth(n / 8).unwrap(), ('a'..).nth(n % 8).unwrap());
    let tried_by = |fleet: &Fleet, n: usize| Condition { rule: rule(n), ..tried(fleet, "node") };
    let many: Vec<Condition> = (0..MAX_RULES).map(|n| tried_by(&fleet, n)).collect();
    say(&mut fleet, other, many);
    let has = |fleet: &Fleet, n: usize| fleet.core.rule_trials().any(|trial| trial.rule == rule(n));
    assert_eq!(fleet.core.rule_trials().count(), MAX_RULES);
    assert!(has(&fleet, 0) && !has(&fleet, MAX_RULES - 1));
    let odd = Condition { rule: "A \"rule\"".to_owned(), ..tried(&fleet, "node") };
    let long = tried(&fleet, &"x".repeat(300));
    say(&mut fleet, other, vec![odd, long]);
    // A rule that has found nothing for a day makes room.
    fleet.now = fleet.now.plus_ms(WINDOW_MS);
    fleet.live(&["n1", "n2"], 2);
    let late = tried_by(&fleet, MAX_RULES);
    say(&mut fleet, other, vec![late]);
    assert_eq!(fleet.core.rule_trials().count(), MAX_RULES);
    assert!(has(&fleet, MAX_RULES));
}
