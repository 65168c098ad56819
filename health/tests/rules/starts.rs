//! The check before a start, and what cannot be seen.

use gangline_health::reading::{Canary, Collector, Fabric, Gpu, Memory, Outcome};
use gangline_health::{
    Blind, Check, Component, Config, Level, Reading, Rule, StartCheck, blind_lines,
};

use crate::support::{
    Node, gpu, gpu_part, gpu_set, healthy, local_disk, memory, shared_root, usage, xid,
};

const MAX_AGE_MS: u64 = 30_000;

fn check(node: &Node) -> StartCheck {
    node.engine.start_check(node.time(), MAX_AGE_MS)
}

/// A node that has read everything.
fn ready() -> Node {
    let mut node = Node::new();
    all(&mut node);
    node
}

fn all(node: &mut Node) {
    node.now += 1;
    for reading in healthy() {
        node.see(&reading);
    }
}

#[test]
fn a_healthy_node_with_young_readings_may_start_at_once() {
    let mut node = ready();
    assert_eq!(check(&node), StartCheck::default());
    node.now += 30;
    assert!(check(&node).may_start());
    node.now += 1;
    let late = check(&node);
    assert!(!late.may_start());
    use Check::{Descriptors, Gpus, LocalDisk, Memory, Pids, SharedRoot};
    assert_eq!(late.checks(), [Gpus, SharedRoot, LocalDisk, Memory, Pids, Descriptors]);
    assert!(late.stale.iter().all(|stale| stale.age_ms == Some(31_000)), "{:?}", late.stale);
    // Only what is too old is read again.
    node.see(&Reading::Memory(memory(600)));
    node.see(&Reading::SharedRoot(shared_root(Some(Canary::Done(1)))));
    assert_eq!(check(&node).checks(), [Gpus, LocalDisk, Pids, Descriptors]);
    all(&mut node);
    assert!(check(&node).may_start());
}

#[test]
fn a_node_that_read_nothing_may_not_start() {
    let node = Node::new();
    let check = check(&node);
    assert!(!check.may_start());
    assert_eq!(check.checks().len(), 6);
    assert!(check.stale.iter().all(|stale| stale.age_ms.is_none()));
}

#[test]
fn each_rule_of_the_list_forbids_a_start() {
    let mut set = gpu_set(8);
    set.present = Some([].into());
    let sick = |change: fn(&mut Gpu)| {
        let mut gpu = gpu(5);
        change(&mut gpu);
        Reading::Gpu(Box::new(gpu))
    };
    let full = |used| {
        let root = shared_root(Some(Canary::Done(1)));
        Reading::SharedRoot(gangline_health::reading::SharedRoot {
            bytes: usage(used, 100),
            ..root
        })
    };
    for (reading, rule) in [
        (Reading::GpuSet(set), Rule::GpuSet),
        (sick(|gpu| gpu.handle = Some(gangline_health::reading::Handle::Lost)), Rule::GpuHandle),
        (sick(|gpu| gpu.remap_pending = Some(true)), Rule::RemapPending),
        (sick(|gpu| gpu.remap_failure = Some(true)), Rule::RemapFailure),
        (
            sick(|gpu| {
                gpu.recovery_action = Some(gangline_health::reading::RecoveryAction::DrainP2p)
            }),
            Rule::RecoveryAction,
        ),
        (sick(|gpu| gpu.fabric = Some(Fabric::InProgress)), Rule::Fabric),
        (
            sick(|gpu| {
                gpu.free = Some(true);
                gpu.memory_used_bytes = Some(9 << 30);
            }),
            Rule::Foreign,
        ),
        (
            Reading::SharedRoot(shared_root(Some(Canary::Failed("EIO".to_owned())))),
            Rule::SharedRoot,
        ),
        (full(98), Rule::SharedFull),
        (Reading::LocalDisk(local_disk(1, 1_000_000_000_000)), Rule::LocalDisk),
        (Reading::Memory(memory(1)), Rule::HostMemory),
        (
            Reading::Memory(Memory { pressure_full_avg10: Some(90.0), ..memory(500) }),
            Rule::MemoryPressure,
        ),
        (Reading::Pids(usage(90, 100)), Rule::Pids),
        (Reading::Descriptors(usage(90, 100)), Rule::Descriptors),
    ] {
        let mut node = ready();
        node.see_for(1, &reading);
        let once = check(&node);
        assert_eq!(
            (once.bad.len(), once.stale.len()),
            (0, 1),
            "{rule}: bad once is to be read again"
        );
        assert_eq!(once.stale[0].rule, rule);
        node.see_for(6, &reading);
        let twice = check(&node);
        let bad: Vec<Rule> = twice.bad.iter().map(|condition| condition.rule).collect();
        assert_eq!((bad, twice.may_start()), (vec![rule], false));
        assert_eq!(twice.stale, []);
    }
    // The shared file system at 95 % is a warning and stops nobody.
    let mut node = ready();
    node.see_for(6, &full(95));
    assert_eq!(node.level(Rule::SharedFull), Some(Level::Warning));
    assert!(check(&node).may_start());
    // Neither does a disk that only is nearly full, not even by its first reading.
    let mut node = ready();
    let nearly_full = Reading::LocalDisk(local_disk(50_000_000_000, 1_000_000_000_000));
    node.see_for(1, &nearly_full);
    assert!(check(&node).may_start());
    node.see_for(6, &nearly_full);
    assert_eq!(node.level(Rule::LocalDisk), Some(Level::Degraded));
    assert!(check(&node).may_start());
    // Rules that are not on the list are for the coordinator to weigh.
    let mut node = ready();
    node.see(&xid(0, 79));
    assert!(check(&node).may_start());
}

#[test]
fn what_cannot_be_seen_forbids_nothing_and_is_said() {
    let mut node = ready();
    let blind = Gpu { fabric: None, foreign: None, ..gpu(2) };
    node.now += 100;
    for reading in healthy() {
        if !matches!(&reading, Reading::Gpu(gpu) if gpu.uuid == blind.uuid) {
            node.see(&reading);
        }
    }
    node.see(&Reading::Gpu(Box::new(blind)));
    node.see(&Reading::Memory(Memory { pressure_full_avg10: None, ..memory(600) }));
    // The pressure was read a moment ago: still young.
    let found = check(&node);
    assert!(found.may_start(), "{:?}", found.stale);
    let said: Vec<_> = found.blind.iter().map(|b| (b.rule, b.component.clone())).collect();
    assert_eq!(said, [(Rule::Fabric, Some(gpu_part(2))), (Rule::Foreign, Some(gpu_part(2)))]);
    assert_eq!(blind_lines(&found.blind)[0], "fabric of gpu:GPU-2: not to be read here");
    let mut many = found.blind.clone();
    many.extend(found.blind.iter().map(|b| Blind { component: Some(gpu_part(3)), ..b.clone() }));
    assert_eq!(
        blind_lines(&many),
        [
            "fabric of gpu:GPU-2 and 1 more: not to be read here",
            "gpu-foreign of gpu:GPU-2 and 1 more: not to be read here",
        ]
    );
}

#[test]
fn a_node_without_gpus_needs_none() {
    let mut node = Node::new();
    node.now += 1;
    for reading in healthy() {
        if !matches!(reading, Reading::Gpu(_) | Reading::GpuSet(_)) {
            node.see(&reading);
        }
    }
    assert_eq!(check(&node).checks(), [Check::Gpus]);
    let set = gangline_health::reading::GpuSet { present: Some([].into()), ..Default::default() };
    node.see(&Reading::GpuSet(set));
    assert!(check(&node).may_start());
    let blind = node.engine.blind(node.time());
    assert!(!blind.iter().any(|b| b.rule == Rule::NvlinkDown), "{blind:?}");
}

#[test]
fn a_shadow_rule_is_shown_and_forbids_nothing() {
    let config = Config { shadow: [Rule::Pids, Rule::GpuSet].into(), ..Config::default() };
    let mut node = Node::with(config);
    all(&mut node);
    node.see_for(3, &Reading::Pids(usage(99, 100)));
    let condition = node.condition(Rule::Pids).unwrap();
    assert!(condition.shadow);
    assert!(check(&node).may_start());
    assert_eq!(node.engine.state(node.time()), gangline_health::State::Healthy);
}

#[test]
fn what_was_never_read_or_is_said_to_be_unseen_is_listed() {
    let mut node = Node::new();
    assert_eq!(node.engine.state(node.time()), gangline_health::State::Initializing);
    let lines = node.engine.blind(node.time());
    assert!(lines.iter().any(|b| b.rule == Rule::GpuSet && b.why == "no reading yet"));
    assert!(!lines.iter().any(|b| b.rule == Rule::XidFatal), "an event is not awaited");
    node.see(&Reading::Blind {
        rule: Rule::Kernel,
        component: Component::Node,
        why: "no permission for /dev/kmsg\u{7}".to_owned(),
    });
    let lines = node.engine.blind(node.time());
    let kernel = lines.iter().find(|b| b.rule == Rule::Kernel).unwrap();
    assert_eq!(kernel.why, "no permission for /dev/kmsg?");
    let good = ready();
    let lines = good.engine.blind(good.time());
    assert_eq!(lines, [], "a node that sees everything");
    // A source that hangs says so by a condition of its own.
    let mut node = ready();
    let outcome = Outcome::Hangs(20_000);
    node.see(&Reading::Collector(Collector { name: "nvml".to_owned(), outcome }));
    assert_eq!(node.level(Rule::Collector), Some(Level::Degraded));
}
