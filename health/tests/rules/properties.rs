//! For any readings in any order: nothing panics, everything is bounded, nothing flip-flops.

use gangline_common::ids::{GangId, GpuId, JobId};
use gangline_common::time::Timestamp;
use gangline_health::reading::{
    Agent, Canary, Collector, Counter, Fabric, Gpu, GpuSet, Handle, KernelClass, KernelLine,
    LocalDisk, Memory, Nvlink, OomKills, Outcome, Pcie, PhysicalState, Port, PortState, Ports,
    RecoveryAction, SharedRoot, Sxid, Tasks, Usage, Xid,
};
use gangline_health::{Config, Engine, Level, MAX_CONDITIONS, MAX_EVIDENCE, Reading, Rule, Saved};
use proptest::prelude::*;

use crate::support::{Node, memory, usage};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..20, Just(u64::MAX), Just(0), any::<u64>(), 90_u64..130]
}

fn maybe() -> impl Strategy<Value = Option<u64>> {
    proptest::option::of(number())
}

fn flag() -> impl Strategy<Value = Option<bool>> {
    proptest::option::of(any::<bool>())
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("b".to_owned()), "\\PC{0,12}", "[a-z\\x00-\\x1f]{0,300}"]
}

fn limited() -> impl Strategy<Value = Usage> {
    (maybe(), maybe()).prop_map(|(used, limit)| Usage { used, limit })
}

fn float() -> impl Strategy<Value = Option<f64>> {
    proptest::option::of(prop_oneof![any::<f64>(), 0.0..500.0])
}

fn handle() -> impl Strategy<Value = Option<Handle>> {
    proptest::option::of(prop_oneof![
        Just(Handle::Good),
        Just(Handle::Lost),
        Just(Handle::ResetRequired),
        Just(Handle::DriverMismatch),
        word().prop_map(Handle::Error),
    ])
}

fn any_gpu() -> impl Strategy<Value = Reading> {
    let memory = (maybe(), maybe(), flag(), flag(), maybe());
    let heat =
        (proptest::option::of(0_u32..7), maybe(), any::<Option<i64>>(), any::<Option<i64>>());
    let link = (any::<u8>(), flag(), maybe(), maybe());
    let links = (proptest::collection::vec(link, 0..40), flag(), 0_u32..5, maybe());
    let rest = (flag(), flag(), maybe(), any::<[Option<u32>; 4]>(), flag());
    (word(), handle(), memory, heat, links, rest).prop_map(
        |(name, handle, memory, heat, (links, nvswitch, fabric, replays), rest)| {
            let link = |(index, active, crc, errors)| Nvlink { index, active, crc, errors };
            Reading::Gpu(Box::new(Gpu {
                handle,
                ecc_sram_uncorrected: memory.0,
                ecc_dram_uncorrected: memory.1,
                remap_pending: memory.2,
                remap_failure: memory.3,
                remapped_uncorrectable: memory.4,
                recovery_action: heat.0.map(RecoveryAction::from_nvml),
                clock_event_reasons: heat.1,
                temperature_margin_c: heat.2,
                hbm_temperature_c: heat.3,
                nvlinks: links.into_iter().map(link).collect(),
                nvswitch,
                fabric: Some(match fabric {
                    0 => Fabric::NotSupported,
                    1 => Fabric::NotStarted,
                    2 => Fabric::InProgress,
                    status => Fabric::Completed(status),
                }),
                pcie_replays: replays,
                persistence: rest.0,
                free: rest.1,
                memory_used_bytes: rest.2,
                pcie: Some(Pcie {
                    generation: rest.3[0],
                    max_generation: rest.3[1],
                    width: rest.3[2],
                    max_width: rest.3[3],
                    under_load: rest.4,
                }),
                foreign: None,
                ..Gpu::new(GpuId(name))
            }))
        },
    )
}

fn any_port() -> impl Strategy<Value = Reading> {
    let counters = proptest::collection::vec(maybe(), Counter::ALL.len());
    let states = (proptest::option::of(0_u8..5), proptest::option::of(0_u8..5));
    (word(), 0_u32..3, flag(), states, (float(), float()), flag(), counters).prop_map(
        |(device, port, expected, seen, rates, in_use, values)| {
            let zipped = Counter::ALL.iter().zip(values);
            let state =
                |n: u8| [PortState::Down, PortState::Active, PortState::Other][usize::from(n) % 3];
            let physical = |n: u8| {
                [PhysicalState::LinkUp, PhysicalState::Polling, PhysicalState::Disabled]
                    [usize::from(n) % 3]
            };
            Reading::Port(Box::new(Port {
                kind: in_use.map(|_| format!("kind {port}")),
                device,
                port,
                excluded: false,
                expected,
                state: seen.0.map(state),
                physical: seen.1.map(physical),
                rate_gbps: rates.0,
                expected_rate_gbps: rates.1,
                in_use,
                counters: zipped.filter_map(|(c, value)| Some((*c, value?))).collect(),
                unreadable: Vec::new(),
            }))
        },
    )
}

fn any_reading() -> impl Strategy<Value = Reading> {
    let names = || proptest::collection::btree_set(word(), 0..4);
    let gpus = move || names().prop_map(|names| names.into_iter().map(GpuId).collect());
    let set = (gpus(), proptest::option::of(gpus()), handle());
    let ports = proptest::collection::btree_set((word(), 0_u32..3), 0..4);
    let small = || proptest::option::of(0_u32..10);
    let job = proptest::option::of(prop_oneof![Just("j1"), Just("j2"), Just("j3")]);
    let canary = prop_oneof![
        number().prop_map(Canary::Done),
        number().prop_map(Canary::Hangs),
        word().prop_map(Canary::Failed),
    ];
    let outcome = prop_oneof![
        Just(Outcome::Good),
        Just(Outcome::TimedOut),
        word().prop_map(Outcome::Failed),
        word().prop_map(Outcome::Panicked),
        number().prop_map(Outcome::Hangs),
    ];
    prop_oneof![
        4 => any_gpu(),
        4 => any_port(),
        1 => set.prop_map(|(registered, present, library)| {
            Reading::GpuSet(GpuSet { registered, present, library })
        }),
        2 => (proptest::option::of(word()), 0_u32..200, proptest::option::of(word()), job).prop_map(
            |(gpu, code, text, job)| {
                let job = job.map(|job| JobId::new(job).unwrap());
                Reading::Xid(Xid { gpu: gpu.map(GpuId), code, text, job })
            }
        ),
        1 => (word(), any::<u32>(), any::<bool>())
            .prop_map(|(switch, code, fatal)| Reading::Sxid(Sxid { switch, code, fatal })),
        1 => (proptest::option::of(ports), small(), small(), small()).prop_map(
            |(present, registered, uverbs, umad)| {
                Reading::Ports(Ports { present, registered, uverbs, umad })
            }
        ),
        1 => Just(Reading::NcclError(GangId::new("g").unwrap())),
        1 => (word(), proptest::option::of(canary), limited(), limited()).prop_map(
            |(path, canary, bytes, inodes)| {
                Reading::SharedRoot(SharedRoot { path, canary, bytes, inodes })
            }
        ),
        1 => (word(), limited())
            .prop_map(|(path, bytes)| Reading::LocalDisk(LocalDisk { path, bytes })),
        1 => (maybe(), maybe(), float()).prop_map(
            |(available_bytes, total_bytes, pressure_full_avg10)| {
                Reading::Memory(Memory { available_bytes, total_bytes, pressure_full_avg10 })
            }
        ),
        1 => number().prop_map(|new| Reading::OomKills(OomKills { new, gang: None })),
        1 => limited().prop_map(Reading::Shm),
        1 => limited().prop_map(Reading::Pids),
        1 => limited().prop_map(Reading::Descriptors),
        1 => (proptest::option::of(proptest::collection::vec(word(), 0..5)), maybe())
            .prop_map(|(stuck, zombies)| Reading::Tasks(Tasks { stuck, zombies })),
        1 => any::<i64>().prop_map(Reading::ClockOffset),
        1 => word().prop_map(|text| {
            Reading::Kernel(KernelLine { class: KernelClass::HungTask, text })
        }),
        1 => (maybe(), maybe(), limited()).prop_map(|(loop_lag_ms, rss_bytes, descriptors)| {
            Reading::Agent(Agent { loop_lag_ms, rss_bytes, descriptors })
        }),
        1 => (word(), outcome)
            .prop_map(|(name, outcome)| Reading::Collector(Collector { name, outcome })),
    ]
}

/// Readings with the time between them, in milliseconds; some clocks leap.
fn history() -> impl Strategy<Value = Vec<(Reading, Timestamp)>> {
    let step = prop_oneof![8 => 0_u64..20_000, 1 => Just(u64::MAX), 1 => any::<u64>()];
    let entry = (any_reading(), step, any::<u64>());
    proptest::collection::vec(entry, 0..120).prop_map(|entries| {
        let mut boot_ms = 1_000_u64;
        let timed = entries.into_iter().map(|(reading, step, wall_ms)| {
            boot_ms = boot_ms.wrapping_add(step);
            (reading, Timestamp { boot_ms, wall_ms })
        });
        timed.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_taken_bounded_and_repeatable(history in history()) {
        let config = Config { boot_id: Some("one".to_owned()), ..Config::default() };
        let begin = Timestamp { boot_ms: 1_000, wall_ms: 0 };
        let mut engine = Engine::new(config.clone(), &Saved::default(), begin);
        let mut twin = engine.clone();
        let mut now = begin;
        for (reading, then) in &history {
            now = *then;
            engine.observe(reading, now);
            twin.observe(reading, now);
        }
        let conditions = engine.conditions(now);
        prop_assert!(conditions.len() <= MAX_CONDITIONS);
        prop_assert!(conditions.iter().all(|c| c.evidence.chars().count() <= MAX_EVIDENCE));
        prop_assert!(conditions.iter().all(|c| c.level <= c.rule.row().worst), "{conditions:#?}");
        prop_assert!(conditions.is_sorted_by(|a, b| a.level >= b.level));
        prop_assert_eq!(&conditions, &twin.conditions(now));
        let _ = (engine.start_check(now, 30_000), engine.blind(now), engine.state(now));

        // What is saved is read back, and says the same.
        let text = serde_json::to_string(&engine.saved()).unwrap();
        let saved: Saved = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&saved, &engine.saved());
        let again = Engine::new(config.clone(), &saved, now);
        prop_assert_eq!(&again.conditions(now), &conditions);
        // After a boot nothing is lost by the boot alone.
        let booted = Config { boot_id: Some("two".to_owned()), ..config };
        let after = Engine::new(booted, &saved, now).conditions(now);
        prop_assert_eq!(after.len(), conditions.len());
    }

    /// Readings that hop over a threshold: a condition, once raised, stays for ten minutes after the
    /// last bad reading, and is never raised by one bad reading alone.
    #[test]
    fn a_condition_does_not_flip_flop(bad in proptest::collection::vec(any::<bool>(), 1..400), seed in 0_u64..600) {
        let mut node = Node::new();
        let rule = Rule::Pids;
        let (mut was, mut last_bad, mut row) = (false, 0, 0_u64);
        for second in 0..3_000_u64 {
            // Runs of noise with silence between.
            let index = usize::try_from((second + seed) % 1_000).unwrap();
            let high = bad.get(index).copied().unwrap_or(false);
            node.see_for(1, &Reading::Pids(usage(if high { 81 } else { 80 }, 100)));
            row = if high { row + 1 } else { 0 };
            last_bad = if high { second } else { last_bad };
            let is = node.level(rule).is_some();
            if is && !was {
                prop_assert!(row >= 2, "raised by {row} readings");
            }
            if was && !is {
                prop_assert!(second - last_bad >= 600, "ended {} s after", second - last_bad);
            }
            was = is;
        }
    }

    /// The same for levels: it worsens by two readings of that level, and eases after ten minutes.
    #[test]
    fn levels_do_not_flip_flop(steps in proptest::collection::vec((0_u64..3, 1_u64..900), 1..30)) {
        let mut node = Node::new();
        let root = |used| crate::support::shared_root(None::<Canary>).with(used);
        let mut was: Option<Level> = None;
        let mut since: Vec<(Option<Level>, u64)> = Vec::new();
        for (kind, seconds) in steps {
            let (used, level) = [
                (90, None),
                (95, Some(Level::Warning)),
                (98, Some(Level::NoNewJobs)),
            ][usize::try_from(kind).unwrap()];
            for _ in 0..seconds {
                node.see_for(1, &Reading::SharedRoot(root(used)));
                since.push((level, node.now));
                let is = node.level(Rule::SharedFull);
                if is > was {
                    let last_two = since.iter().rev().take(2);
                    prop_assert!(last_two.clone().count() == 2);
                    prop_assert!(last_two.clone().all(|(level, _)| *level >= is));
                }
                if is < was {
                    let now = node.now;
                    let recent = since.iter().filter(|(_, then)| now - then < 600);
                    prop_assert!(recent.clone().all(|(level, _)| *level <= is));
                }
                was = is;
            }
        }
    }
}

/// A shared file system that is so full.
trait With {
    fn with(self, used: u64) -> Self;
}

impl With for SharedRoot {
    fn with(self, used: u64) -> Self {
        SharedRoot { bytes: usage(used, 100), ..self }
    }
}

#[test]
fn memory_at_the_threshold_does_not_flip_flop() {
    let mut node = Node::new();
    let mut changes = 0;
    let mut was = None;
    for second in 0..7_200_u64 {
        // Around 2 %: two low readings, then two high ones, for an hour; then quiet.
        let low = second < 3_600 && second % 4 < 2;
        node.see_for(1, &Reading::Memory(memory(if low { 19 } else { 20 })));
        let is = node.level(Rule::HostMemory);
        changes += usize::from(is != was);
        was = is;
    }
    assert_eq!((changes, was), (2, None));
}
