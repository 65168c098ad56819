//! Bounds: parts, text, clocks; and that the same readings say the same.

use gangline_common::ids::GpuId;
use gangline_common::time::Timestamp;
use gangline_health::reading::{Gpu, KernelClass, KernelLine, Nvlink, SharedRoot, Xid};
use gangline_health::{
    Engine, Level, MAX_BLIND, MAX_CONDITIONS, MAX_EVIDENCE, MAX_PARTS, MAX_REASON, Reading, Rule,
};

use crate::support::{HOUR, Node, gpu, gpu_part, port, shared_root, xid};

#[test]
fn more_parts_than_can_be_followed_are_refused_and_said() {
    let mut node = Node::new();
    for index in 0..5_000 {
        let gpu = Some(GpuId(format!("GPU-{index}")));
        node.see(&Reading::Xid(Xid { gpu, code: 79, text: None, job: None }));
    }
    assert_eq!(node.conditions().len(), MAX_CONDITIONS);
    let blind = node.engine.blind(node.time());
    assert!(blind.len() <= MAX_BLIND + 2);
    let refused = format!("{} readings of more parts than can be followed", 5_000 - MAX_PARTS);
    assert!(blind.iter().any(|b| b.why == refused));
    // Those that are followed go on.
    assert!(node.clear(Rule::XidFatal, &gpu_part(0)));
}

#[test]
fn text_from_outside_is_bounded_and_clean() {
    let mut node = Node::new();
    let long = "\u{1b}[2J\u{202e}\n".repeat(10_000);
    node.see(&Reading::Kernel(KernelLine { class: KernelClass::SoftLockup, text: long.clone() }));
    let path = long.clone();
    let canary = Some(gangline_health::reading::Canary::Failed(long.clone()));
    node.see_for(2, &Reading::SharedRoot(SharedRoot { path, ..shared_root(canary) }));
    let gpu = Some(GpuId(long.clone()));
    node.see(&Reading::Xid(Xid { gpu, code: 79, text: Some(long), job: None }));
    let conditions = node.conditions();
    assert_eq!(conditions.len(), 3);
    for condition in conditions {
        for (text, most) in [
            (&condition.reason, MAX_REASON),
            (&condition.evidence, MAX_EVIDENCE),
            (&condition.component.to_string(), 128),
        ] {
            assert!(text.chars().count() <= most, "{text}");
            assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text}");
        }
    }
}

#[test]
fn a_gpu_with_more_links_than_there_are_is_read_as_far_as_there_are() {
    let mut node = Node::new();
    let link = |index: u8| Nvlink { index, active: Some(true), crc: Some(1), errors: Some(1) };
    let many = Gpu { nvlinks: (0..=255).map(link).collect(), ..gpu(0) };
    node.gpu_for(10, &many);
    assert_eq!(node.conditions(), []);
}

#[test]
fn clocks_that_leap_are_said_and_time_goes_on() {
    let mut node = Node::new();
    node.port_for(5, &port(0));
    let sick = Gpu { remap_pending: Some(true), ..gpu(0) };
    node.gpu_for(2, &sick);
    let before = node.now;
    // A reading of the far future, then one of the past, then as before.
    let far = Timestamp { boot_ms: u64::MAX, wall_ms: u64::MAX };
    node.engine.observe(&Reading::Gpu(Box::new(gpu(0))), far);
    node.engine.observe(&Reading::Gpu(Box::new(gpu(0))), Timestamp::default());
    node.now = before;
    node.gpu_for(HOUR, &sick);
    assert_eq!(node.level(Rule::RemapPending), Some(Level::DrainAfterJob));
    node.gpu_for(9 * 60, &gpu(0));
    assert_eq!(node.level(Rule::RemapPending), Some(Level::DrainAfterJob));
    node.gpu_for(2 * 60, &gpu(0));
    assert_eq!(node.conditions(), []);
    let odd = node.engine.oddities();
    assert_eq!((odd.went_back, odd.leapt), (1, 1));
    let blind = node.engine.blind(node.time());
    assert!(blind.iter().any(|b| b.why.contains("went back 1 times and leapt ahead 1 times")));
}

#[test]
fn the_same_readings_say_the_same_and_the_worst_comes_first() {
    let run = || {
        let mut node = Node::new();
        for index in [5, 1, 3] {
            node.see(&xid(index, 63));
            node.see(&xid(index, 79));
            node.gpu_for(2, &Gpu { temperature_margin_c: Some(0), ..gpu(index) });
        }
        node
    };
    let (one, two): (Node, Node) = (run(), run());
    assert_eq!(one.conditions(), two.conditions());
    assert_eq!(one.engine.saved(), two.engine.saved());
    let levels: Vec<Level> = one.conditions().iter().map(|c| c.level).collect();
    assert!(levels.is_sorted_by(|a, b| a >= b), "{levels:?}");
    let fatal: Vec<_> = one.conditions().iter().take(3).map(|c| c.component.clone()).collect();
    assert_eq!(fatal, [gpu_part(1), gpu_part(3), gpu_part(5)]);
    let again: Engine = one.engine.clone();
    assert_eq!(again.conditions(one.time()), one.conditions());
}

#[test]
fn a_forgotten_part_is_gone() {
    let mut node = Node::new();
    node.see(&xid(0, 79));
    assert!(node.engine.forget(&gpu_part(0)));
    assert!(!node.engine.forget(&gpu_part(0)));
    assert_eq!(node.conditions(), []);
}
