//! What survives a restart of the agent, and what ends with a reboot.

use gangline_common::ids::JobId;
use gangline_health::reading::{Counter, Gpu, PhysicalState, Port, PortState, Ports, Xid};
use gangline_health::{Level, Reading, Rule, Saved};

use crate::support::{
    DAY, HOUR, MINUTE, Node, gpu, gpu_id, gpu_part, gpu_set, port, port_part, ports, xid,
};

/// A node with something of everything.
fn troubled() -> Node {
    let mut node = Node::new();
    let mut seen = port(0);
    node.gpu_for(1, &gpu(0));
    node.port_for(1, &seen);
    node.see(&xid(0, 79));
    node.see(&xid(0, 94));
    node.gpu_for(2, &Gpu { remap_pending: Some(true), ecc_sram_uncorrected: Some(1), ..gpu(0) });
    for _ in 0..3 {
        node.grow(&mut seen, Counter::LinkDowned, 1);
    }
    node.grow(&mut seen, Counter::RnrNakRetryErr, 1);
    node
}

#[test]
fn conditions_are_the_same_after_a_restart() {
    let mut node = troubled();
    let before = node.conditions();
    assert_eq!(before.len(), 7, "{before:#?}");
    for pause in [0, 10, 5 * HOUR] {
        node.restart(pause);
        let mut after = node.conditions();
        for (after, before) in after.iter_mut().zip(&before) {
            assert!(after.for_ms >= before.for_ms);
            after.for_ms = before.for_ms;
        }
        assert_eq!(after, before, "after {pause} s");
    }
}

#[test]
fn saving_and_reading_back_changes_nothing_and_is_small() {
    let mut node = Node::new();
    for _ in 0..10 * MINUTE {
        node.now += 1;
        for reading in crate::support::healthy() {
            node.see(&reading);
        }
    }
    let saved = node.engine.saved();
    let text = serde_json::to_string(&saved).unwrap();
    assert_eq!(serde_json::from_str::<Saved>(&text).unwrap(), saved);
    assert!(text.len() < 64 << 10, "{} bytes", text.len());
}

#[test]
fn counters_go_on_over_a_restart() {
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(10, &seen);
    node.gpu_for(10, &gpu(0));
    node.restart(100);
    // Both happened while no agent looked.
    seen.counters.insert(Counter::LinkDowned, 1);
    node.port_for(1, &seen);
    node.gpu_for(1, &Gpu { ecc_sram_uncorrected: Some(1), ..gpu(0) });
    let expected = [(Rule::EccSram, Level::Fatal), (Rule::PortLinkDowned, Level::Degraded)];
    assert_eq!(node.levels(), expected.into());
}

#[test]
fn the_third_flap_counts_over_restarts() {
    let mut node = Node::new();
    let down =
        Port { state: Some(PortState::Down), physical: Some(PhysicalState::Polling), ..port(0) };
    node.port_for(1, &port(0));
    for _ in 0..3 {
        assert_eq!(node.level(Rule::PortFlap), None);
        node.port_for(10, &down);
        node.restart(20);
        node.port_for(30, &port(0));
        node.restart(HOUR);
    }
    assert_eq!(node.level(Rule::PortFlap), Some(Level::NoNewJobs));
}

#[test]
fn a_reboot_begins_the_count_of_flaps_anew() {
    let mut node = Node::new();
    let mut seen = port(0);
    node.port_for(1, &seen);
    for _ in 0..2 {
        node.grow(&mut seen, Counter::LinkDowned, 1);
    }
    node.reboot(300, "second");
    node.port_for(1, &seen);
    for flapped in [false, false, true] {
        node.grow(&mut seen, Counter::LinkDowned, 1);
        assert_eq!(node.level(Rule::PortFlap).is_some(), flapped);
    }
}

#[test]
fn what_was_once_there_is_missed_after_a_restart() {
    let mut node = Node::new();
    node.see_for(1, &Reading::Ports(ports(8)));
    node.restart(10);
    node.see_for(3, &Reading::Ports(Ports { umad: Some(0), ..ports(8) }));
    assert_eq!(node.level(Rule::RdmaDevices), Some(Level::Degraded));
    // A port that was up is expected to be up.
    let down = Port { state: Some(PortState::Down), expected: None, ..port(0) };
    node.port_for(1, &Port { expected: None, ..port(0) });
    node.restart(10);
    node.port_for(2, &down);
    assert_eq!(node.level(Rule::PortState), Some(Level::Degraded));
}

#[test]
fn jobs_that_met_an_xid_are_counted_over_restarts() {
    let mut node = Node::new();
    for job in ["a", "b", "c"] {
        assert_eq!(node.level(Rule::XidRepeated), None);
        let job = Some(JobId::new(job).unwrap());
        node.see(&Reading::Xid(Xid { gpu: Some(gpu_id(0)), code: 31, text: None, job }));
        node.restart(HOUR);
    }
    assert_eq!(node.level(Rule::XidRepeated), Some(Level::Degraded));
}

#[test]
fn a_port_is_down_for_five_minutes_also_when_the_agent_restarts_meanwhile() {
    let mut node = Node::new();
    let down = Port { state: Some(PortState::Down), ..port(0) };
    node.port_for(1, &port(0));
    node.port_for(2 * MINUTE, &down);
    node.restart(30);
    node.port_for(3 * MINUTE, &down);
    assert_eq!(node.level(Rule::PortDrop), Some(Level::Degraded));
}

#[test]
fn a_reboot_alone_ends_nothing_that_is_fatal_and_a_passed_check_does() {
    let mut node = troubled();
    node.reboot(300, "second");
    assert_eq!(node.level(Rule::XidFatal), Some(Level::Fatal));
    // One good reading is not a check.
    node.gpu_for(1, &gpu(0));
    assert_eq!(node.level(Rule::XidFatal), Some(Level::Fatal));
    node.gpu_for(1, &gpu(0));
    assert_eq!(node.level(Rule::XidFatal), None);
    assert_eq!(node.level(Rule::EccSram), None);
    assert_eq!(node.level(Rule::XidWatch), None);
    // The port has not been read yet.
    assert_eq!(node.level(Rule::PortBroken), Some(Level::Fatal));
    assert_eq!(node.level(Rule::PortFlap), Some(Level::NoNewJobs));
    node.port_for(2, &port(0));
    assert_eq!(node.level(Rule::PortBroken), None);
    assert_eq!(node.level(Rule::PortFlap), None);
    // What good readings end takes its ten minutes after a reboot too.
    assert_eq!(node.level(Rule::RemapPending), Some(Level::DrainAfterJob));
    node.gpu_for(11 * MINUTE, &gpu(0));
    node.port_for(11 * MINUTE, &port(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn a_gpu_that_is_still_sick_after_the_reboot_does_not_pass() {
    for sick in [
        Gpu { handle: Some(gangline_health::reading::Handle::Lost), ..gpu(0) },
        Gpu { handle: None, ..gpu(0) },
        Gpu { recovery_action: Some(gangline_health::reading::RecoveryAction::GpuReset), ..gpu(0) },
    ] {
        let mut node = Node::new();
        node.see(&xid(0, 79));
        node.reboot(300, "second");
        node.gpu_for(HOUR, &sick);
        assert_eq!(node.level(Rule::XidFatal), Some(Level::Fatal));
    }
}

#[test]
fn a_new_xid_after_the_reboot_is_not_ended_by_it() {
    let mut node = Node::new();
    node.see(&xid(0, 79));
    node.reboot(300, "second");
    node.see(&xid(0, 79));
    node.gpu_for(HOUR, &gpu(0));
    assert_eq!(node.level(Rule::XidFatal), Some(Level::Fatal));
}

#[test]
fn a_missing_gpu_that_is_back_after_a_reboot_is_healed() {
    let mut node = Node::new();
    let mut set = gpu_set(8);
    set.present.as_mut().unwrap().remove(&gpu_id(7));
    node.see_for(2, &Reading::GpuSet(set.clone()));
    node.reboot(300, "second");
    node.see_for(10, &Reading::GpuSet(set));
    assert_eq!(node.level(Rule::GpuSet), Some(Level::Fatal));
    node.reboot(300, "third");
    node.see_for(2, &Reading::GpuSet(gpu_set(8)));
    assert_eq!(node.conditions(), []);
}

#[test]
fn without_a_boot_id_only_an_operator_ends_what_is_fatal() {
    let mut node = Node::with(gangline_health::Config::default());
    node.see(&xid(0, 79));
    node.restart(300);
    node.gpu_for(DAY, &gpu(0));
    assert_eq!(node.level(Rule::XidFatal), Some(Level::Fatal));
    assert!(node.clear(Rule::XidFatal, &gpu_part(0)));
    node.restart(10);
    assert_eq!(node.conditions(), []);
}

#[test]
fn counters_begin_anew_with_a_reboot() {
    let mut node = Node::new();
    let mut seen = port(0);
    for counter in Counter::ALL {
        seen.counters.insert(*counter, 5);
    }
    node.port_for(3, &seen);
    node.reboot(300, "second");
    for counter in Counter::ALL {
        seen.counters.insert(*counter, 500);
    }
    node.port_for(3, &seen);
    assert_eq!(node.conditions(), []);
    assert!(!node.clear(Rule::PortBroken, &port_part(0)));
}

#[test]
fn what_another_version_saved_is_read_as_far_as_it_is_understood() {
    let node = troubled();
    let mut saved = serde_json::to_value(node.engine.saved()).unwrap();
    saved["new_field"] = 1.into();
    let parts = saved["parts"].as_array_mut().unwrap();
    let mut strange = parts[0].clone();
    strange["component"] = "tachyon:7".into();
    parts.push(strange);
    parts[0]["conditions"][0]["rule"] = "rule-of-the-future".into();
    parts[0]["values"][0][0] = "flux".into();
    let saved: Saved = serde_json::from_value(saved).unwrap();
    let engine = gangline_health::Engine::new(node.config.clone(), &saved, node.time());
    assert_eq!(engine.conditions(node.time()).len(), node.conditions().len() - 1);
    // An empty file is an agent that never ran.
    let none: Saved = serde_json::from_str("{}").unwrap();
    assert_eq!(none, Saved::default());
}
