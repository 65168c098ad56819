//! Rows 15 to 25: file systems, the host, the container, the agent.

use gangline_common::ids::GangId;
use gangline_health::reading::{
    Agent, Canary, KernelClass, KernelLine, LocalDisk, Memory, OomKills, SharedRoot, Tasks, Usage,
};
use gangline_health::{Component, Level, Reading, Rule};

use crate::support::{DAY, HOUR, MINUTE, Node, local_disk, memory, shared_root, usage};

/// A polled rule: nothing after one reading, the level after two, healed by ten minutes and no less.
fn polled(bad: &Reading, good: &Reading, rule: Rule, level: Level) {
    let mut node = Node::new();
    node.see_for(1, bad);
    node.see_for(1, good);
    node.see_for(1, bad);
    assert_eq!(node.conditions(), [], "{rule}: one bad reading");
    node.see_for(1, bad);
    assert_eq!(node.levels(), [(rule, level)].into());
    node.see_for(10 * MINUTE, good);
    assert_eq!(node.level(rule), Some(level), "{rule}: too soon");
    node.see_for(1, good);
    assert_eq!(node.conditions(), [], "{rule}: ten minutes");
}

/// A value that is just good.
fn quiet(good: &Reading) {
    let mut node = Node::new();
    node.see_for(30, good);
    assert_eq!(node.conditions(), [], "{good:?}");
}

#[test]
fn row_15_the_canary() {
    let good = Reading::SharedRoot(shared_root(Some(Canary::Done(5_000))));
    quiet(&good);
    for canary in [Canary::Done(5_001), Canary::Failed("ESTALE".to_owned())] {
        let bad = Reading::SharedRoot(shared_root(Some(canary)));
        polled(&bad, &good, Rule::SharedRoot, Level::Degraded);
    }
}

#[test]
fn row_15_a_hanging_shared_file_system_is_degraded_when_its_time_is_up() {
    let mut node = Node::new();
    let canary = |canary| Reading::SharedRoot(shared_root(Some(canary)));
    node.see_for(1, &canary(Canary::Done(3)));
    for ms in [1_000, 3_000, 5_000] {
        node.see_for(1, &canary(Canary::Hangs(ms)));
        assert_eq!(node.conditions(), []);
    }
    node.see_for(1, &canary(Canary::Hangs(6_000)));
    let condition = node.condition(Rule::SharedRoot).unwrap();
    assert_eq!(condition.level, Level::Degraded);
    assert_eq!(condition.component, Component::mount("/shared"));
    assert_eq!(condition.evidence, "not back after 6 s");
    node.see_for(10 * MINUTE, &canary(Canary::Done(3)));
    assert_eq!(node.level(Rule::SharedRoot), Some(Level::Degraded));
    node.see_for(2, &canary(Canary::Done(3)));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_15_fullness_in_bytes_and_inodes() {
    let of = |bytes, inodes| {
        Reading::SharedRoot(SharedRoot { bytes, inodes, ..shared_root(Some(Canary::Done(1))) })
    };
    let none = Usage::default();
    let good = of(usage(9_499, 10_000), usage(9_499, 10_000));
    quiet(&good);
    quiet(&of(none, none));
    for (bytes, inodes, level) in [
        (usage(9_500, 10_000), none, Level::Warning),
        (none, usage(9_799, 10_000), Level::Warning),
        (usage(9_800, 10_000), usage(1, 10_000), Level::NoNewJobs),
        (usage(1, 10_000), usage(10_000, 10_000), Level::NoNewJobs),
    ] {
        polled(&of(bytes, inodes), &good, Rule::SharedFull, level);
    }
}

#[test]
fn row_16_the_local_disk() {
    const GB: u64 = 1_000_000_000;
    let good = Reading::LocalDisk(local_disk(100 * GB, 1_000 * GB));
    quiet(&good);
    polled(
        &Reading::LocalDisk(local_disk(99 * GB, 1_000 * GB)),
        &good,
        Rule::LocalDisk,
        Level::Degraded,
    );
    // Small disks: 2 GB must be free.
    polled(&Reading::LocalDisk(local_disk(GB, 4 * GB)), &good, Rule::LocalDisk, Level::NoNewJobs);
    quiet(&Reading::LocalDisk(local_disk(2 * GB, 4 * GB)));
    quiet(&Reading::LocalDisk(LocalDisk { path: "/".to_owned(), bytes: usage(0, 0) }));
}

#[test]
fn row_17_memory_and_its_pressure() {
    let good = Reading::Memory(memory(20));
    quiet(&good);
    polled(&Reading::Memory(memory(19)), &good, Rule::HostMemory, Level::Degraded);
    let pressed = |percent| Reading::Memory(Memory { pressure_full_avg10: percent, ..memory(900) });
    quiet(&pressed(Some(20.0)));
    quiet(&pressed(Some(f64::NAN)));
    quiet(&pressed(Some(f64::INFINITY)));
    quiet(&pressed(None));
    polled(&pressed(Some(20.1)), &pressed(Some(0.0)), Rule::MemoryPressure, Level::Degraded);
}

#[test]
fn row_18_oom_kills_go_to_their_gang() {
    let mut node = Node::new();
    node.see(&Reading::OomKills(OomKills { new: 0, gang: None }));
    assert_eq!(node.conditions(), []);
    let gang = Some(GangId::new("train-7").unwrap());
    node.see(&Reading::OomKills(OomKills { new: 2, gang }));
    let condition = node.condition(Rule::OomKill).unwrap();
    assert_eq!((condition.level, condition.evidence.as_str()), (Level::Info, "gang train-7"));
    node.see_for(DAY, &Reading::ClockOffset(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn rows_19_and_20_limits_that_come_near() {
    quiet(&Reading::Shm(usage(90, 100)));
    polled(
        &Reading::Shm(usage(91, 100)),
        &Reading::Shm(usage(1, 100)),
        Rule::SharedMemory,
        Level::Warning,
    );
    quiet(&Reading::Pids(usage(800, 1_000)));
    polled(
        &Reading::Pids(usage(801, 1_000)),
        &Reading::Pids(usage(1, 1_000)),
        Rule::Pids,
        Level::Warning,
    );
    quiet(&Reading::Pids(Usage { used: Some(9_000), limit: None }));
    let good = Reading::Descriptors(usage(80, 100));
    quiet(&good);
    polled(&Reading::Descriptors(usage(81, 100)), &good, Rule::Descriptors, Level::Warning);
}

#[test]
fn row_21_tasks_that_hang_and_zombies() {
    let tasks = |stuck: Option<&[&str]>, zombies| {
        let stuck = stuck.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        Reading::Tasks(Tasks { stuck, zombies })
    };
    let good = tasks(Some(&[]), Some(1_000));
    quiet(&good);
    quiet(&tasks(None, None));
    polled(&tasks(Some(&["nvidia-smi"]), Some(0)), &good, Rule::StuckTasks, Level::Degraded);
    polled(&tasks(Some(&[]), Some(1_001)), &good, Rule::Zombies, Level::Degraded);
}

#[test]
fn row_22_the_clock() {
    quiet(&Reading::ClockOffset(2_000));
    for offset in [2_001, -2_001, i64::MIN, i64::MAX] {
        let (bad, good) = (Reading::ClockOffset(offset), Reading::ClockOffset(-2_000));
        polled(&bad, &good, Rule::ClockOffset, Level::Warning);
    }
}

#[test]
fn row_23_what_the_kernel_says() {
    for class in [
        KernelClass::SoftLockup,
        KernelClass::HungTask,
        KernelClass::ReadOnlyRemount,
        KernelClass::NfsNotResponding,
        KernelClass::HostOutOfMemory,
        KernelClass::IoError,
        KernelClass::AdapterTrouble,
    ] {
        let mut node = Node::new();
        node.see(&Reading::Kernel(KernelLine { class, text: "a line".to_owned() }));
        assert_eq!(node.levels(), [(Rule::Kernel, Level::Degraded)].into());
        node.see_for(HOUR - 1, &Reading::ClockOffset(0));
        assert_eq!(node.level(Rule::Kernel), Some(Level::Degraded));
        node.see_for(1, &Reading::ClockOffset(0));
        assert_eq!(node.conditions(), []);
    }
    // A container that runs out of its own memory is no fault of the node.
    let mut node = Node::new();
    let class = KernelClass::ContainerOutOfMemory;
    node.see(&Reading::Kernel(KernelLine { class, text: String::new() }));
    assert_eq!(node.levels(), [(Rule::Kernel, Level::Info)].into());
}

#[test]
fn row_25_the_agent_itself() {
    let agent = |loop_lag_ms, rss: u64, files| {
        let (loop_lag_ms, rss_bytes) = (Some(loop_lag_ms), Some(rss << 20));
        Reading::Agent(Agent { loop_lag_ms, rss_bytes, descriptors: usage(files, 1_000) })
    };
    let good = agent(1_000, 256, 800);
    quiet(&good);
    polled(&agent(1_001, 1, 1), &good, Rule::AgentLag, Level::Warning);
    polled(&agent(1, 257, 1), &good, Rule::AgentMemory, Level::Warning);
    polled(&agent(1, 1, 801), &good, Rule::AgentDescriptors, Level::Warning);
}
