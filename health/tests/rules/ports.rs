//! Rows 14 and 26: RDMA ports, their counters, and their character devices.

use gangline_common::ids::GangId;
use gangline_health::reading::{Counter, PhysicalState, Port, PortState, Ports};
use gangline_health::{Component, Level, Reading, Rule};

use crate::support::{DAY, HOUR, MINUTE, Node, gpu_set, port, port_part, ports};

fn down() -> Port {
    Port { state: Some(PortState::Down), physical: Some(PhysicalState::Polling), ..port(0) }
}

fn nccl() -> Reading {
    Reading::NcclError(GangId::new("g").unwrap())
}

#[test]
fn a_port_that_is_down_is_degraded_and_after_four_minutes_dropped() {
    let mut node = Node::new();
    node.port_for(10, &port(0));
    node.port_for(1, &down());
    assert_eq!(node.conditions(), []);
    node.port_for(1, &down());
    let condition = node.condition(Rule::PortState).unwrap();
    assert_eq!((condition.level, &condition.component), (Level::Degraded, &port_part(0)));
    assert_eq!(condition.reason, "the port is down: cable or switch side");
    node.port_for(4 * MINUTE - 2, &down());
    assert_eq!(node.levels(), [(Rule::PortState, Level::Degraded)].into());
    node.port_for(MINUTE, &down());
    let both = [(Rule::PortState, Level::Degraded), (Rule::PortDrop, Level::Degraded)];
    assert_eq!(node.levels(), both.into());
    node.port_for(10 * MINUTE, &port(0));
    assert_eq!(node.levels(), both.into());
    node.port_for(2, &port(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn other_states_of_a_port() {
    for (physical, reason) in [
        (PhysicalState::Disabled, "the port is down: switched off by somebody"),
        (PhysicalState::Training, "the port is down"),
    ] {
        let mut node = Node::new();
        node.port_for(2, &Port { physical: Some(physical), ..port(0) });
        assert_eq!(node.condition(Rule::PortState).unwrap().reason, reason);
    }
    let mut node = Node::new();
    node.port_for(2, &Port { rate_gbps: Some(200.0), ..port(0) });
    assert_eq!(node.condition(Rule::PortState).unwrap().evidence, "200 of 400 Gb/s");
    for state in [PortState::Initializing, PortState::Armed, PortState::Other] {
        let mut node = Node::new();
        node.port_for(2, &Port { state: Some(state), physical: None, ..port(0) });
        assert_eq!(node.level(Rule::PortState), Some(Level::Degraded));
    }
}

#[test]
fn a_port_that_nobody_expects_and_that_never_was_up_is_no_fault() {
    let mut node = Node::new();
    let unused = Port { expected: None, ..down() };
    node.port_for(HOUR, &unused);
    assert_eq!(node.conditions(), []);
    node.port_for(1, &Port { expected: None, ..port(0) });
    node.port_for(2, &unused);
    assert_eq!(node.level(Rule::PortState), Some(Level::Degraded));
    let mut node = Node::new();
    node.port_for(HOUR, &Port { expected: Some(false), ..down() });
    assert_eq!(node.conditions(), []);
}

#[test]
fn three_outages_in_twelve_hours_are_a_flap_that_stays() {
    let mut node = Node::new();
    node.port_for(1, &port(0));
    for outage in 0..3 {
        assert_eq!(node.level(Rule::PortFlap), None, "{outage}");
        node.port_for(27, &down());
        node.port_for(HOUR, &port(0));
    }
    let condition = node.condition(Rule::PortFlap).unwrap();
    assert_eq!(condition.level, Level::NoNewJobs);
    assert_eq!(condition.evidence, "0 times link_downed, 3 outages in 12 hours");
    node.port_for(3 * DAY, &port(0));
    assert_eq!(node.levels(), [(Rule::PortFlap, Level::NoNewJobs)].into());
    assert!(node.clear(Rule::PortFlap, &port_part(0)));
    // Its history is gone too: one more outage is one.
    node.port_for(30, &down());
    node.port_for(11 * MINUTE, &port(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn short_and_rare_outages_are_no_flap() {
    let mut node = Node::new();
    for _ in 0..10 {
        node.port_for(20, &down());
        node.port_for(MINUTE, &port(0));
    }
    for _ in 0..5 {
        node.port_for(40, &down());
        node.port_for(7 * HOUR, &port(0));
    }
    assert_eq!(node.level(Rule::PortFlap), None);
}

#[test]
fn a_lost_link_is_latched_apart_from_its_state() {
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    node.grow(&mut seen, Counter::LinkDowned, 1);
    // The link was never seen down; what was counted counts.
    assert_eq!(node.levels(), [(Rule::PortLinkDowned, Level::Degraded)].into());
    node.port_for(9 * MINUTE, &seen);
    assert_eq!(node.level(Rule::PortLinkDowned), Some(Level::Degraded));
    node.port_for(2 * MINUTE, &seen);
    assert_eq!(node.conditions(), []);
    node.grow(&mut seen, Counter::LinkDowned, 1);
    node.port_for(HOUR, &seen);
    node.grow(&mut seen, Counter::LinkDowned, 1);
    assert_eq!(node.level(Rule::PortFlap), Some(Level::NoNewJobs));
}

#[test]
fn a_lost_link_and_an_nccl_error_belong_together_in_either_order() {
    let mut node = Node::new();
    node.see(&nccl());
    assert_eq!(node.conditions(), [], "an error alone says nothing of the node");
    let mut seen = port(0);
    node.port_for(4 * MINUTE, &seen);
    node.grow(&mut seen, Counter::LinkDowned, 1);
    assert_eq!(node.level(Rule::PortLostInGang), Some(Level::NoNewJobs));

    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    node.grow(&mut seen, Counter::LinkDowned, 1);
    node.port_for(4 * MINUTE, &seen);
    node.see(&nccl());
    assert_eq!(node.level(Rule::PortLostInGang), Some(Level::NoNewJobs));

    let mut node = Node::new();
    node.port_for(1, &seen);
    node.grow(&mut seen, Counter::LinkDowned, 1);
    node.port_for(6 * MINUTE, &seen);
    node.see(&nccl());
    assert_eq!(node.level(Rule::PortLostInGang), None);
}

#[test]
fn what_must_never_grow_is_fatal() {
    for counter in
        [Counter::RnrNakRetryErr, Counter::ExcessiveBufferOverrun, Counter::LocalLinkIntegrity]
    {
        let mut node = Node::new();
        let mut seen = port(0);
        seen.counters.insert(counter, 41);
        node.port_for(5, &seen);
        assert_eq!(node.conditions(), []);
        node.grow(&mut seen, counter, 1);
        let condition = node.condition(Rule::PortBroken).unwrap();
        assert_eq!(condition.level, Level::Fatal);
        assert_eq!(condition.evidence, format!("{} +1", counter.file()));
        node.port_for(HOUR, &seen);
        assert_eq!(node.level(Rule::PortBroken), Some(Level::Fatal));
    }
}

#[test]
fn symbol_errors_by_second_and_by_hour() {
    // 10 per second is not more than 10.
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    for _ in 0..12 {
        node.grow(&mut seen, Counter::SymbolError, 10);
    }
    assert_eq!(node.conditions(), []);
    // 11 per second is; the hour is not full yet.
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    for _ in 0..3 {
        node.grow(&mut seen, Counter::SymbolError, 11);
    }
    assert_eq!(node.levels(), [(Rule::PortSymbols, Level::Degraded)].into());
    node.port_for(11 * MINUTE, &seen);
    assert_eq!(node.conditions(), []);
    // One every 29 s is 124 in an hour.
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    for _ in 0..130 {
        node.port_for(28, &seen);
        node.grow(&mut seen, Counter::SymbolError, 1);
    }
    let condition = node.condition(Rule::PortSymbols).unwrap();
    assert_eq!(condition.level, Level::Fatal);
    assert!(condition.evidence.contains("in the last hour"), "{}", condition.evidence);
    // One every 31 s is 116.
    let mut node = Node::new();
    let mut seen = port(0);
    for _ in 0..500 {
        node.port_for(30, &seen);
        node.grow(&mut seen, Counter::SymbolError, 1);
    }
    assert_eq!(node.conditions(), []);
}

#[test]
fn retraining_discards_and_slow_restarts_by_their_rates() {
    for (counter, per_second, seconds, rule, level) in [
        (Counter::LinkErrorRecovery, 1, 10, Rule::PortRetraining, Level::Degraded),
        (Counter::XmitDiscards, 101, 2, Rule::PortDiscards, Level::Warning),
        (Counter::RoceSlowRestart, 11, 2, Rule::PortSlowRestart, Level::Degraded),
    ] {
        let mut node = Node::new();
        node.now -= node.now % MINUTE;
        let mut seen = port(0);
        node.port_for(1, &seen);
        for _ in 0..seconds {
            node.grow(&mut seen, counter, per_second);
        }
        assert_eq!(node.levels(), [(rule, level)].into());
        node.port_for(12 * MINUTE, &seen);
        assert_eq!(node.conditions(), []);
    }
    for (counter, per_second, seconds) in [
        (Counter::LinkErrorRecovery, 5, 1),
        (Counter::XmitDiscards, 100, 20),
        (Counter::RoceSlowRestart, 10, 20),
    ] {
        let mut node = Node::new();
        let mut seen = port(0);
        node.port_for(1, &seen);
        for _ in 0..seconds {
            node.grow(&mut seen, counter, per_second);
        }
        node.port_for(5, &seen);
        assert_eq!(node.conditions(), [], "{}", counter.file());
    }
}

#[test]
fn a_burst_of_retraining_counts_wherever_the_minute_begins() {
    for into_the_minute in [0, 10, 55, 57, 59] {
        let mut node = Node::new();
        node.now += MINUTE - node.now % MINUTE + into_the_minute;
        let mut seen = port(0);
        node.port_for(1, &seen);
        for _ in 0..2 {
            node.grow(&mut seen, Counter::LinkErrorRecovery, 3);
        }
        node.port_for(1, &seen);
        let condition = node.condition(Rule::PortRetraining).unwrap();
        assert_eq!(condition.evidence, "6 link_error_recovery within a minute");
    }
    // Six within 65 s are not.
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    for _ in 0..6 {
        node.grow(&mut seen, Counter::LinkErrorRecovery, 1);
        node.port_for(12, &seen);
    }
    assert_eq!(node.conditions(), []);
}

#[test]
fn receive_errors_must_keep_coming() {
    for counter in [Counter::RcvErrors, Counter::RcvRemotePhysical] {
        let mut node = Node::new();
        node.now -= node.now % MINUTE;
        let mut seen = port(0);
        node.port_for(1, &seen);
        for minute in 0..3 {
            assert_eq!(node.conditions(), [], "{minute}");
            node.grow(&mut seen, counter, 1);
            node.port_for(59, &seen);
        }
        assert_eq!(node.levels(), [(Rule::PortReceive, Level::Degraded)].into());
        node.port_for(21 * MINUTE, &seen);
        assert_eq!(node.conditions(), []);
    }
}

#[test]
fn timeouts_count_while_a_gang_trains() {
    let mut node = Node::new();
    let mut seen = Port { in_use: Some(false), ..port(0) };
    node.port_for(1, &seen);
    for _ in 0..10 {
        node.grow(&mut seen, Counter::LocalAckTimeout, 1);
    }
    assert_eq!(node.conditions(), []);
    seen.in_use = Some(true);
    for _ in 0..2 {
        node.grow(&mut seen, Counter::LocalAckTimeout, 1);
    }
    assert_eq!(node.levels(), [(Rule::PortTimeouts, Level::Warning)].into());
    node.port_for(11 * MINUTE, &seen);
    assert_eq!(node.conditions(), []);
    // One every few seconds, with good readings in between.
    let mut node = Node::new();
    node.port_for(1, &seen);
    node.grow(&mut seen, Counter::LocalAckTimeout, 1);
    assert_eq!(node.conditions(), [], "a single one");
    node.port_for(5, &seen);
    node.grow(&mut seen, Counter::LocalAckTimeout, 1);
    let condition = node.condition(Rule::PortTimeouts).unwrap();
    assert_eq!(condition.level, Level::Warning);
    assert_eq!(condition.evidence, "2 local_ack_timeout_err in 10 minutes");
    // One in twenty minutes is none of it.
    let mut node = Node::new();
    for _ in 0..10 {
        node.grow(&mut seen, Counter::LocalAckTimeout, 1);
        node.port_for(20 * MINUTE, &seen);
    }
    assert_eq!(node.conditions(), []);
}

/// A port with a usual amount of loss, then with ten times of it.
fn learn(node: &mut Node, seen: &mut Port, counter: Counter, minutes: u64, per_minute: u64) {
    for _ in 0..minutes {
        node.grow(seen, counter, per_minute);
        node.port_for(59, seen);
    }
}

#[test]
fn loss_is_compared_with_what_is_usual() {
    for counter in [
        Counter::OutOfSequence,
        Counter::PacketSeqErr,
        Counter::ImpliedNakSeqErr,
        Counter::DuplicateRequest,
    ] {
        let mut node = Node::new();
        let mut seen = port(0);
        learn(&mut node, &mut seen, counter, 40, 20);
        learn(&mut node, &mut seen, counter, 5, 150);
        assert_eq!(node.conditions(), []);
        learn(&mut node, &mut seen, counter, 1, 900);
        learn(&mut node, &mut seen, counter, 1, 10);
        assert_eq!(node.conditions(), [], "one minute is not two");
        learn(&mut node, &mut seen, counter, 3, 900);
        assert_eq!(node.levels(), [(Rule::PortLoss, Level::Warning)].into());
        learn(&mut node, &mut seen, counter, 13, 20);
        assert_eq!(node.conditions(), []);
    }
    // Nothing is unusual before half an hour was learnt from.
    let mut node = Node::new();
    let mut seen = port(0);
    learn(&mut node, &mut seen, Counter::OutOfSequence, 10, 20);
    learn(&mut node, &mut seen, Counter::OutOfSequence, 10, 9_000);
    assert_eq!(node.conditions(), []);
}

#[test]
fn ten_times_the_usual_timeouts_are_degraded() {
    let mut node = Node::new();
    let mut seen = Port { in_use: Some(false), ..port(0) };
    learn(&mut node, &mut seen, Counter::LocalAckTimeout, 40, 8);
    learn(&mut node, &mut seen, Counter::LocalAckTimeout, 2, 900);
    assert_eq!(node.levels(), [(Rule::PortTimeouts, Level::Degraded)].into());
}

#[test]
fn failed_requests_warn() {
    for counter in [Counter::ReqCqeError, Counter::RespCqeError] {
        let mut node = Node::new();
        let mut seen = port(0);
        node.port_for(1, &seen);
        node.grow(&mut seen, counter, 1);
        assert_eq!(node.levels(), [(Rule::PortRequests, Level::Warning)].into());
        node.port_for(11 * MINUTE, &seen);
        assert_eq!(node.conditions(), []);
    }
}

#[test]
fn a_counter_that_goes_backwards_was_reset() {
    for counter in Counter::ALL {
        let mut node = Node::new();
        let mut seen = port(0);
        seen.counters.insert(*counter, u64::MAX);
        node.port_for(3, &seen);
        seen.counters.insert(*counter, 7);
        node.port_for(3, &seen);
        seen.counters.insert(*counter, 0);
        node.port_for(3, &seen);
        assert_eq!(node.conditions(), [], "{}", counter.file());
    }
}

#[test]
fn unreadable_counters_are_said_and_are_no_fault() {
    let mut node = Node::new();
    node.port_for(3, &port(0));
    let dark = Port {
        state: None,
        physical: None,
        rate_gbps: None,
        counters: [].into(),
        unreadable: vec!["state".to_owned(), "counters/symbol_error".to_owned()],
        ..port(0)
    };
    node.port_for(HOUR, &dark);
    assert_eq!(node.conditions(), []);
    let blind = node.engine.blind(node.time());
    let said =
        blind.iter().find(|b| b.rule == Rule::PortState && b.component == Some(port_part(0)));
    assert_eq!(said.unwrap().why, "2 files cannot be read: state counters/symbol_error");
    // The others go on.
    let mut other = Port { device: "mlx5_1".to_owned(), ..port(0) };
    node.port_for(1, &other);
    node.grow(&mut other, Counter::LinkDowned, 1);
    assert_eq!(node.condition(Rule::PortLinkDowned).unwrap().component, port_part(1));
    // What it counted while it could not be read counts afterwards.
    let mut seen = port(0);
    seen.counters.insert(Counter::LocalLinkIntegrity, 2);
    node.port_for(1, &seen);
    assert_eq!(node.condition(Rule::PortBroken).unwrap().component, port_part(0));
    let still = node.engine.blind(node.time());
    assert!(!still.iter().any(|b| b.rule == Rule::PortState && b.component == Some(port_part(0))));
}

#[test]
fn management_ports_have_no_rules() {
    let mut node = Node::new();
    node.engine = gangline_health::Engine::new(
        gangline_health::Config {
            excluded_devices: ["mlx5_9".to_owned()].into(),
            ..node.config.clone()
        },
        &gangline_health::Saved::default(),
        node.time(),
    );
    let mut seen = Port { device: "mlx5_9".to_owned(), ..down() };
    node.port_for(10 * MINUTE, &seen);
    seen.excluded = true;
    seen.device = "mlx5_8".to_owned();
    node.port_for(10 * MINUTE, &seen);
    let mut set = ports(8);
    set.present.as_mut().unwrap().insert(("mlx5_9".to_owned(), 1));
    set.present.as_mut().unwrap().remove(&("mlx5_0".to_owned(), 1));
    node.see_for(1, &Reading::Ports(set.clone()));
    assert_eq!(node.conditions(), []);
    // It does not make up for a port that is missing either.
    node.see_for(2, &Reading::Ports(set));
    assert_eq!(node.levels(), [(Rule::PortCount, Level::Degraded)].into());
}

#[test]
fn conditions_of_a_removed_device_do_not_stay() {
    let mut node = Node::new();
    node.see_for(1, &Reading::Ports(ports(8)));
    node.port_for(3, &down());
    let mut seven = ports(8);
    seven.present.as_mut().unwrap().remove(&("mlx5_0".to_owned(), 1));
    // A list that failed is no removal.
    let failed = Ports { present: None, registered: Some(8), uverbs: None, umad: None };
    node.see_for(HOUR, &Reading::Ports(failed));
    assert_eq!(node.levels(), [(Rule::PortState, Level::Degraded)].into());
    node.see_for(9 * MINUTE, &Reading::Ports(seven.clone()));
    assert_eq!(node.level(Rule::PortState), Some(Level::Degraded));
    node.see_for(2 * MINUTE, &Reading::Ports(seven.clone()));
    // Gone: what remains is that a port is missing.
    assert_eq!(node.levels(), [(Rule::PortCount, Level::Degraded)].into());

    // What was fatal is shown for a day.
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    node.grow(&mut seen, Counter::LocalLinkIntegrity, 1);
    node.see_for(DAY - MINUTE, &Reading::Ports(seven.clone()));
    assert_eq!(node.level(Rule::PortBroken), Some(Level::Fatal));
    node.see_for(2 * MINUTE, &Reading::Ports(seven.clone()));
    assert_eq!(node.level(Rule::PortBroken), None);

    // So is what a person must end.
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    for _ in 0..3 {
        node.grow(&mut seen, Counter::LinkDowned, 1);
    }
    node.see_for(DAY - MINUTE, &Reading::Ports(seven.clone()));
    assert_eq!(node.level(Rule::PortFlap), Some(Level::NoNewJobs));
    node.see_for(2 * MINUTE, &Reading::Ports(seven));
    assert_eq!(node.level(Rule::PortFlap), None);
}

#[test]
fn row_26_lost_character_devices_take_three_readings() {
    for (uverbs, umad) in [(Some(7), Some(8)), (Some(8), Some(0)), (Some(0), None)] {
        let mut node = Node::new();
        node.see_for(1, &Reading::Ports(ports(8)));
        let lost = Reading::Ports(Ports { uverbs, umad, ..ports(8) });
        node.see_for(2, &lost);
        assert_eq!(node.conditions(), []);
        node.see_for(1, &lost);
        let condition = node.condition(Rule::RdmaDevices).unwrap();
        assert_eq!((condition.level, condition.component), (Level::Degraded, Component::Node));
        node.see_for(11 * MINUTE, &Reading::Ports(ports(8)));
        assert_eq!(node.conditions(), []);
    }
    // A container that never had umad devices does not miss them.
    let mut node = Node::new();
    node.see_for(10, &Reading::Ports(Ports { umad: Some(0), ..ports(8) }));
    assert_eq!(node.conditions(), []);
}

/// Ports as an agent tells of them that was never told what to expect.
fn of_kind(kind: &str, index: usize, up: bool, rate: f64) -> Port {
    let (state, physical) = match up {
        true => (PortState::Active, PhysicalState::LinkUp),
        false => (PortState::Down, PhysicalState::Polling),
    };
    Port {
        kind: Some(kind.to_owned()),
        expected: None,
        expected_rate_gbps: None,
        state: Some(state),
        physical: Some(physical),
        rate_gbps: Some(rate),
        ..port(index)
    }
}

/// A node with so many GPUs, and its ports once a second for so long.
fn with_ports(gpus: usize, seconds: u64, ports: &[Port]) -> Node {
    let mut node = Node::new();
    node.see(&Reading::GpuSet(gpu_set(gpus)));
    ports_for(&mut node, seconds, ports);
    node
}

fn ports_for(node: &mut Node, seconds: u64, ports: &[Port]) {
    for _ in 0..seconds {
        node.now += 1;
        ports.iter().for_each(|port| node.see(&Reading::Port(Box::new(port.clone()))));
    }
}

#[test]
fn a_port_that_was_never_up_is_missed_where_nearly_all_of_its_kind_are() {
    let fabric =
        |dead: usize| (0..8).map(|n| of_kind("CX7", n, n >= dead, 400.0)).collect::<Vec<_>>();
    let mut node = with_ports(8, 4 * MINUTE, &fabric(1));
    assert_eq!(node.conditions(), [], "it may only be coming up");
    ports_for(&mut node, 4, &fabric(1));
    let condition = node.condition(Rule::PortState).unwrap();
    assert_eq!((condition.level, &condition.component), (Level::Degraded, &port_part(0)));
    assert_eq!(condition.reason, "the port was never up, and its siblings are");
    let evidence = "state Down, physical state Polling; 7 of 7 others of its kind are up";
    assert_eq!(condition.evidence, evidence);
    // It is still missed after a restart, and well once it is up: that is no end of an outage.
    node.restart(10);
    ports_for(&mut node, 5, &fabric(1));
    assert_eq!(node.level(Rule::PortState), Some(Level::Degraded));
    ports_for(&mut node, 11 * MINUTE, &fabric(0));
    assert_eq!(node.conditions(), []);
    for outage in 1..=3 {
        assert_eq!(node.level(Rule::PortFlap), None, "{outage}");
        ports_for(&mut node, 30, &fabric(1));
        ports_for(&mut node, 1, &fabric(0));
    }
    assert_eq!(node.level(Rule::PortFlap), Some(Level::NoNewJobs));

    // Two of eight are, three are not: then it is how the node is.
    assert_eq!(with_ports(8, 5 * MINUTE, &fabric(2)).conditions().len(), 4);
    assert_eq!(with_ports(8, HOUR, &fabric(3)).conditions(), []);
    // Four for eight GPUs, or sixteen.
    for ports in [4, 16] {
        let ports: Vec<Port> = (0..ports).map(|n| of_kind("CX7", n, n > 0, 400.0)).collect();
        assert_eq!(with_ports(8, 5 * MINUTE, &ports).conditions().len(), 2, "{}", ports.len());
    }
    // Somebody's decision, and a node that has one port more than GPUs, none of which is for it.
    let mut off = fabric(1);
    off[0].physical = Some(PhysicalState::Disabled);
    assert_eq!(with_ports(8, HOUR, &off).conditions(), []);
    let spare: Vec<Port> = (0..9).map(|n| of_kind("CX7", n, n > 0, 400.0)).collect();
    assert_eq!(with_ports(8, HOUR, &spare).conditions(), []);
    assert_eq!(with_ports(0, HOUR, &fabric(1)).conditions(), []);
}

#[test]
fn a_port_that_was_always_slower_than_its_siblings_is_degraded() {
    let fabric = |slow: usize| {
        let rate = move |n| if n < slow { 200.0 } else { 400.0 };
        (0..8).map(|n| of_kind("CX7", n, true, rate(n))).collect::<Vec<_>>()
    };
    let node = with_ports(8, 3, &fabric(1));
    let condition = node.condition(Rule::PortState).unwrap();
    assert_eq!(condition.reason, "the port is slower than its siblings");
    assert_eq!(condition.evidence, "200 of 400 Gb/s");
    assert_eq!(node.conditions().len(), 1);
    assert_eq!(with_ports(8, 3, &fabric(2)).conditions().len(), 2);
    for slow in [0, 3, 4, 7] {
        assert_eq!(with_ports(8, MINUTE, &fabric(slow)).conditions(), [], "{slow}");
    }
}

#[test]
fn adapters_of_storage_and_management_that_are_partly_unused_are_no_fault() {
    let mut all: Vec<Port> = (0..8).map(|n| of_kind("CX7 single", n, true, 400.0)).collect();
    // Two dual ones of which one port each has a cable; and a card of another speed.
    all.extend((8..12).map(|n| of_kind("CX7 dual", n, n % 2 == 0, 200.0)));
    all.extend((12..14).map(|n| of_kind("CX6", n, n == 12, 100.0)));
    all.push(Port { kind: None, ..of_kind("", 14, false, 10.0) });
    let mut node = with_ports(8, HOUR, &all);
    assert_eq!(node.conditions(), []);
    node.restart(10);
    ports_for(&mut node, HOUR, &all);
    assert_eq!(node.conditions(), []);
}

#[test]
fn an_operator_may_leave_a_port_that_differs_from_its_siblings() {
    for sick in [of_kind("CX7", 0, false, 0.0), of_kind("CX7", 0, true, 100.0)] {
        let mut ports: Vec<Port> = (1..8).map(|n| of_kind("CX7", n, true, 400.0)).collect();
        ports.push(sick);
        let mut node = with_ports(8, 5 * MINUTE, &ports);
        assert!(node.clear(Rule::PortState, &port_part(0)));
        node.clear(Rule::PortDrop, &port_part(0));
        ports_for(&mut node, HOUR, &ports);
        node.restart(10);
        ports_for(&mut node, HOUR, &ports);
        assert_eq!(node.conditions(), []);
    }
}

#[test]
fn a_port_that_is_missed_is_not_well_because_others_are_down_too() {
    let fabric =
        |dead: usize| (0..8).map(|n| of_kind("CX7", n, n >= dead, 400.0)).collect::<Vec<_>>();
    let mut node = with_ports(8, 5 * MINUTE, &fabric(1));
    ports_for(&mut node, HOUR, &fabric(5));
    let stands = node.conditions().into_iter().any(|condition| {
        (condition.rule, &condition.component) == (Rule::PortState, &port_part(0))
    });
    assert!(stands);
    ports_for(&mut node, 11 * MINUTE, &fabric(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn a_port_that_is_as_its_siblings_again_is_missed_again() {
    let with = |rate| {
        let others = (1..8).map(|n| of_kind("CX7", n, true, 400.0));
        others.chain([of_kind("CX7", 0, true, rate)]).collect::<Vec<_>>()
    };
    let mut node = with_ports(8, 3, &with(100.0));
    assert!(node.clear(Rule::PortState, &port_part(0)));
    ports_for(&mut node, MINUTE, &with(100.0));
    assert_eq!(node.conditions(), []);
    ports_for(&mut node, MINUTE, &with(400.0));
    ports_for(&mut node, 3, &with(100.0));
    assert_eq!(node.level(Rule::PortState), Some(Level::Degraded));
}

#[test]
fn what_an_operator_takes_as_gone_is_not_missed_until_it_has_been_there_again() {
    // A port that was taken out of use.
    let mut node = Node::new();
    let (up, down) = (Port { expected: None, ..port(0) }, Port { expected: None, ..down() });
    node.port_for(10, &up);
    node.port_for(5 * MINUTE, &down);
    assert!(node.clear(Rule::PortState, &port_part(0)));
    assert!(node.clear(Rule::PortDrop, &port_part(0)));
    node.port_for(HOUR, &down);
    node.restart(10);
    node.port_for(HOUR, &down);
    assert_eq!(node.conditions(), []);
    node.port_for(1, &up);
    node.port_for(2, &down);
    assert_eq!(node.level(Rule::PortState), Some(Level::Degraded));
    // Character devices that the container has lost.
    for lost in [
        Ports { umad: Some(0), ..ports(8) },
        Ports { uverbs: Some(6), ..ports(8) },
        Ports { umad: Some(0), uverbs: Some(0), ..ports(8) },
    ] {
        let mut node = Node::new();
        node.see_for(1, &Reading::Ports(ports(8)));
        node.see_for(3, &Reading::Ports(lost.clone()));
        assert!(node.clear(Rule::RdmaDevices, &Component::Node));
        node.see_for(5, &Reading::Ports(lost.clone()));
        node.restart(10);
        node.see_for(5, &Reading::Ports(lost.clone()));
        assert_eq!(node.conditions(), []);
        node.see_for(1, &Reading::Ports(ports(8)));
        node.see_for(3, &Reading::Ports(lost.clone()));
        assert_eq!(node.level(Rule::RdmaDevices), Some(Level::Degraded), "{lost:?}");
    }
}
