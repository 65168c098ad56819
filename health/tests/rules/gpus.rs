//! Rows 1 to 13: GPUs.

use gangline_health::reading::{
    Collector, Fabric, Gpu, GpuSet, Handle, Nvlink, Outcome, Pcie, Process, RecoveryAction, Work,
};
use gangline_health::{Action, Component, Config, Level, Reading, Rule, State};

use crate::support::{DAY, HOUR, MINUTE, Node, gpu, gpu_id, gpu_part, gpu_set};

/// Two readings of a GPU that differs from a healthy one, and what comes of them.
fn of(change: impl FnOnce(&mut Gpu)) -> Node {
    let mut node = Node::new();
    node.gpu_for(1, &gpu(0));
    let mut sick = gpu(0);
    change(&mut sick);
    node.gpu_for(2, &sick);
    node
}

/// What good readings for nine and then for two more minutes leave.
fn heal(node: &mut Node, rule: Rule) -> (Option<Level>, Option<Level>) {
    node.gpu_for(9 * MINUTE, &gpu(0));
    let nine = node.level(rule);
    node.gpu_for(2 * MINUTE, &gpu(0));
    (nine, node.level(rule))
}

#[test]
fn row_1_a_missing_gpu_is_fatal() {
    let mut node = Node::new();
    let mut set = gpu_set(8);
    set.present.as_mut().unwrap().remove(&gpu_id(3));
    node.see_for(1, &Reading::GpuSet(set.clone()));
    assert_eq!(node.conditions(), []);
    node.see_for(1, &Reading::GpuSet(set));
    let condition = node.condition(Rule::GpuSet).unwrap();
    assert_eq!(condition.level, Level::Fatal);
    assert_eq!(condition.component, Component::Node);
    assert_eq!(condition.state, State::Unhealthy);
    assert_eq!(condition.suggested_action, Action::RebootSystem);
    assert_eq!(condition.reason, "1 of 8 GPUs missing");
    assert!(condition.evidence.contains("GPU-3"), "{}", condition.evidence);
    // One more that is missing is news.
    let mut worse = gpu_set(8);
    worse.present.as_mut().unwrap().retain(|gpu| *gpu != gpu_id(3) && *gpu != gpu_id(4));
    node.see_for(1, &Reading::GpuSet(worse));
    let two = node.condition(Rule::GpuSet).unwrap();
    assert_eq!(two.reason, "2 of 8 GPUs missing");
    assert!(!two.says_the_same(&condition));
    // Back again: still fatal, for whatever took it away.
    node.see_for(DAY, &Reading::GpuSet(gpu_set(8)));
    assert_eq!(node.level(Rule::GpuSet), Some(Level::Fatal));
    assert!(node.clear(Rule::GpuSet, &Component::Node));
    node.see_for(5, &Reading::GpuSet(gpu_set(8)));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_1_a_list_that_failed_is_not_an_empty_list() {
    let mut node = Node::new();
    let set = GpuSet { present: None, library: None, ..gpu_set(8) };
    node.see_for(10, &Reading::GpuSet(set));
    assert_eq!(node.conditions(), []);
    // No GPU registered and none there: a node without GPUs.
    let none = GpuSet { registered: [].into(), present: Some([].into()), library: None };
    let mut node = Node::new();
    node.see_for(10, &Reading::GpuSet(none));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_2_what_nvml_says_of_the_library_and_of_a_gpu() {
    for (handle, level) in [
        (Handle::DriverMismatch, Level::Fatal),
        (Handle::Lost, Level::Fatal),
        (Handle::Error("NVML_ERROR_UNKNOWN".to_owned()), Level::Degraded),
    ] {
        let mut node = Node::new();
        let set = GpuSet { library: Some(handle), ..gpu_set(8) };
        node.see_for(2, &Reading::GpuSet(set));
        assert_eq!(node.level(Rule::GpuLibrary), Some(level));
    }
    for (handle, level) in [
        (Handle::Lost, Level::Fatal),
        (Handle::ResetRequired, Level::Fatal),
        (Handle::Error("NVML_ERROR_UNKNOWN".to_owned()), Level::Degraded),
    ] {
        let node = of(|gpu| gpu.handle = Some(handle));
        assert_eq!(node.levels(), [(Rule::GpuHandle, level)].into());
    }
}

#[test]
fn row_2_a_hanging_nvml_call_degrades_the_node_at_once_and_heals() {
    let mut node = Node::new();
    let nvml = |outcome| Reading::Collector(Collector { name: "nvml".to_owned(), outcome });
    node.see_for(1, &nvml(Outcome::Good));
    node.see_for(1, &nvml(Outcome::Hangs(15_000)));
    let condition = node.condition(Rule::Collector).unwrap();
    assert_eq!(condition.component, Component::collector("nvml"));
    assert_eq!((condition.level, condition.state), (Level::Degraded, State::Degraded));
    assert_eq!(condition.evidence, "for 15 s");
    node.see_for(10 * MINUTE, &nvml(Outcome::Good));
    assert_eq!(node.level(Rule::Collector), Some(Level::Degraded));
    node.see_for(2, &nvml(Outcome::Good));
    assert_eq!(node.conditions(), []);
}

#[test]
fn a_collector_that_fails_or_panics_is_a_warning_and_one_that_times_out_twice_is_degraded() {
    for (outcome, level) in [
        (Outcome::Failed("EIO".to_owned()), Level::Warning),
        (Outcome::Panicked("index".to_owned()), Level::Warning),
        (Outcome::TimedOut, Level::Degraded),
    ] {
        let mut node = Node::new();
        let reading = Reading::Collector(Collector { name: "rdma".to_owned(), outcome });
        node.see_for(1, &reading);
        assert_eq!(node.conditions(), []);
        node.see_for(1, &reading);
        assert_eq!(node.level(Rule::Collector), Some(level));
    }
}

#[test]
fn row_4_uncorrected_ecc_in_sram_is_fatal_and_in_dram_drains() {
    let mut node = Node::new();
    node.gpu_for(
        1,
        &Gpu { ecc_sram_uncorrected: Some(7), ecc_dram_uncorrected: Some(3), ..gpu(0) },
    );
    // What was there before this agent is no growth.
    assert_eq!(node.conditions(), []);
    node.gpu_for(
        1,
        &Gpu { ecc_sram_uncorrected: Some(7), ecc_dram_uncorrected: Some(4), ..gpu(0) },
    );
    assert_eq!(node.levels(), [(Rule::EccDram, Level::DrainAfterJob)].into());
    node.gpu_for(
        1,
        &Gpu { ecc_sram_uncorrected: Some(8), ecc_dram_uncorrected: Some(4), ..gpu(0) },
    );
    let condition = node.condition(Rule::EccSram).unwrap();
    assert_eq!(
        (condition.level, condition.suggested_action),
        (Level::Fatal, Action::HardwareInspection)
    );
    assert_eq!(condition.reason, "uncorrected ECC errors in SRAM");
    node.gpu_for(
        DAY,
        &Gpu { ecc_sram_uncorrected: Some(8), ecc_dram_uncorrected: Some(4), ..gpu(0) },
    );
    assert_eq!(node.levels().len(), 2);
    // The GPU was reset: its counters begin anew. That ends the drain, not what was fatal.
    node.gpu_for(5, &gpu(0));
    assert_eq!(node.levels(), [(Rule::EccSram, Level::Fatal)].into());
}

#[test]
fn row_4_a_counter_that_goes_backwards_raises_nothing() {
    let mut node = Node::new();
    for value in [5, 3, 0, u64::MAX, 0] {
        let before = node.conditions().len();
        node.gpu_for(1, &Gpu { ecc_dram_uncorrected: Some(value), ..gpu(0) });
        let grew = value == u64::MAX;
        assert_eq!(node.conditions().len() > before, grew, "{value}");
    }
}

#[test]
fn row_5_remap_pending_drains_and_failure_is_fatal() {
    let mut node = of(|gpu| gpu.remap_pending = Some(true));
    assert_eq!(node.levels(), [(Rule::RemapPending, Level::DrainAfterJob)].into());
    assert_eq!(heal(&mut node, Rule::RemapPending), (Some(Level::DrainAfterJob), None));
    let node = of(|gpu| gpu.remap_failure = Some(true));
    let condition = node.condition(Rule::RemapFailure).unwrap();
    assert_eq!(
        (condition.level, condition.suggested_action),
        (Level::Fatal, Action::HardwareInspection)
    );
    let node = of(|gpu| gpu.remapped_uncorrectable = Some(511));
    assert_eq!(node.conditions(), []);
    let node = of(|gpu| gpu.remapped_uncorrectable = Some(512));
    assert_eq!(node.levels(), [(Rule::RemapFailure, Level::Fatal)].into());
}

#[test]
fn what_is_found_stays_while_nvml_hangs_however_long() {
    let mut node = of(|gpu| gpu.remap_pending = Some(true));
    let hangs = Outcome::Hangs(20_000);
    let nvml = Reading::Collector(Collector { name: "nvml".to_owned(), outcome: hangs });
    node.see_for(3 * DAY, &nvml);
    let expected = [(Rule::RemapPending, Level::DrainAfterJob), (Rule::Collector, Level::Degraded)];
    assert_eq!(node.levels(), expected.into());
    node.restart(2 * DAY);
    assert_eq!(node.level(Rule::RemapPending), Some(Level::DrainAfterJob));
    // A collector that another version of the agent had is not awaited.
    node.gpu_for(MINUTE + 1, &gpu(0));
    assert_eq!(node.level(Rule::Collector), None);
    assert_eq!(node.level(Rule::RemapPending), Some(Level::DrainAfterJob));
    node.gpu_for(9 * MINUTE, &gpu(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_6_the_drivers_verdict() {
    for (action, level) in [
        (RecoveryAction::GpuReset, Level::Fatal),
        (RecoveryAction::NodeReboot, Level::Fatal),
        (RecoveryAction::DrainP2p, Level::DrainAfterJob),
        (RecoveryAction::DrainAndReset, Level::DrainAfterJob),
        (RecoveryAction::Unknown(77), Level::Warning),
    ] {
        let node = of(|gpu| gpu.recovery_action = Some(action));
        assert_eq!(node.levels(), [(Rule::RecoveryAction, level)].into());
    }
    let mut node = of(|gpu| gpu.recovery_action = Some(RecoveryAction::DrainAndReset));
    assert_eq!(heal(&mut node, Rule::RecoveryAction), (Some(Level::DrainAfterJob), None));
}

#[test]
fn row_7_thermal_slowdown_in_six_of_ten_minutes() {
    let mut node = Node::new();
    let slow = |bits| Gpu { clock_event_reasons: Some(bits), ..gpu(0) };
    node.now -= node.now % MINUTE;
    for minute in 0..5 {
        node.gpu_for(1, &slow(0x40));
        node.gpu_for(59, &slow(0));
        assert_eq!(node.conditions(), [], "{minute}");
    }
    node.gpu_for(2, &slow(0x8 | 0x80));
    let condition = node.condition(Rule::HardwareSlowdown).unwrap();
    assert_eq!(condition.level, Level::Degraded);
    assert_eq!(condition.evidence, "in 6 of the last 10 minutes; reasons now 0x88");
    // The window empties, then ten good minutes.
    node.gpu_for(10 * MINUTE, &slow(0));
    assert_eq!(node.level(Rule::HardwareSlowdown), Some(Level::Degraded));
    node.gpu_for(15 * MINUTE, &slow(0));
    assert_eq!(node.conditions(), []);
    // Power cap and idle are not slowdown.
    node.gpu_for(20 * MINUTE, &slow(0x1 | 0x2 | 0x4 | 0x20));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_8_temperatures_warn() {
    assert_eq!(of(|gpu| gpu.temperature_margin_c = Some(6)).conditions(), []);
    let mut node = of(|gpu| gpu.temperature_margin_c = Some(5));
    assert_eq!(node.levels(), [(Rule::GpuTemperature, Level::Warning)].into());
    assert_eq!(heal(&mut node, Rule::GpuTemperature), (Some(Level::Warning), None));
    assert_eq!(of(|gpu| gpu.hbm_temperature_c = Some(95)).conditions(), []);
    let mut node = of(|gpu| gpu.hbm_temperature_c = Some(96));
    assert_eq!(node.levels(), [(Rule::HbmTemperature, Level::Warning)].into());
    assert_eq!(heal(&mut node, Rule::HbmTemperature), (Some(Level::Warning), None));
}

#[test]
fn row_9_a_pcie_link_below_its_maximum_counts_only_under_load() {
    let pcie = |generation, width, under_load| {
        let (max_generation, max_width) = (Some(5), Some(16));
        Some(Pcie { generation, max_generation, width, max_width, under_load })
    };
    for idle in [Some(false), None] {
        assert_eq!(of(|gpu| gpu.pcie = pcie(Some(1), Some(16), idle)).conditions(), []);
    }
    let mut node = of(|gpu| gpu.pcie = pcie(Some(4), Some(16), Some(true)));
    assert_eq!(node.levels(), [(Rule::PcieLink, Level::Degraded)].into());
    // Idle and slow is no healing.
    node.gpu_for(DAY / 24, &Gpu { pcie: pcie(Some(1), Some(16), Some(false)), ..gpu(0) });
    assert_eq!(node.level(Rule::PcieLink), Some(Level::Degraded));
    assert_eq!(heal(&mut node, Rule::PcieLink), (Some(Level::Degraded), None));
    let node = of(|gpu| gpu.pcie = pcie(None, Some(8), Some(true)));
    assert_eq!(node.levels(), [(Rule::PcieLink, Level::Degraded)].into());
}

#[test]
fn row_9_replays_that_keep_coming() {
    let mut node = Node::new();
    let replays = |count| Gpu { pcie_replays: Some(count), ..gpu(0) };
    node.gpu_for(5, &replays(100));
    // A burst within one minute is not enough.
    node.now -= node.now % MINUTE;
    node.gpu_for(60, &replays(140));
    assert_eq!(node.conditions(), []);
    node.gpu_for(60, &replays(143));
    assert_eq!(node.conditions(), []);
    node.gpu_for(60, &replays(146));
    assert_eq!(node.levels(), [(Rule::PcieReplays, Level::Degraded)].into());
    node.gpu_for(25 * MINUTE, &replays(146));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_10_an_nvlink_that_is_down() {
    let down = |gpu: &mut Gpu| gpu.nvlinks[4].active = Some(false);
    let node = of(down);
    let condition = node.condition(Rule::NvlinkDown).unwrap();
    assert_eq!(condition.level, Level::Fatal);
    assert_eq!(condition.evidence, "inactive: 4; 17 of 18 active");
    // Without NVSwitch: only one that was active is missed, and it is a warning.
    let mut node = Node::new();
    let bridged = |links: &[bool]| Gpu {
        nvswitch: Some(false),
        nvlinks: (0..)
            .zip(links)
            .map(|(index, active)| Nvlink { index, active: Some(*active), ..Nvlink::default() })
            .collect(),
        ..gpu(0)
    };
    node.gpu_for(10, &bridged(&[true, true, false, false]));
    assert_eq!(node.conditions(), []);
    node.gpu_for(2, &bridged(&[true, false, false, false]));
    assert_eq!(node.levels(), [(Rule::NvlinkDown, Level::Warning)].into());
    node.gpu_for(11 * MINUTE, &bridged(&[true, true, false, false]));
    assert_eq!(node.conditions(), []);
    // An operator says that there are no more than that.
    node.gpu_for(2, &bridged(&[true, false, false, false]));
    assert!(node.clear(Rule::NvlinkDown, &gpu_part(0)));
    node.gpu_for(10, &bridged(&[true, false, false, false]));
    node.restart(10);
    node.gpu_for(10, &bridged(&[true, false, false, false]));
    assert_eq!(node.conditions(), []);
    node.gpu_for(2, &bridged(&[false, false, false, false]));
    assert_eq!(node.levels(), [(Rule::NvlinkDown, Level::Warning)].into());
    // Links that cannot be read say nothing.
    let node = of(|gpu| gpu.nvlinks.iter_mut().for_each(|link| link.active = None));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_10_links_that_have_not_come_up_yet_are_fatal_only_after_a_while() {
    let mut node = Node::new();
    let mut sick = gpu(0);
    sick.nvlinks.iter_mut().for_each(|link| link.active = Some(false));
    node.gpu_for(9 * MINUTE, &sick);
    assert_eq!(node.levels(), [(Rule::NvlinkDown, Level::Warning)].into());
    let mut slow = Node::new();
    slow.gpu_for(MINUTE, &sick);
    slow.gpu_for(11 * MINUTE, &gpu(0));
    assert_eq!(slow.conditions(), []);
    node.gpu_for(2 * MINUTE, &sick);
    assert_eq!(node.level(Rule::NvlinkDown), Some(Level::Fatal));
    // Once they were up, it is a fault at once.
    slow.gpu_for(2, &sick);
    assert_eq!(slow.level(Rule::NvlinkDown), Some(Level::Fatal));
}

#[test]
fn row_10_a_machine_with_switches_on_the_bus_needs_no_gpu_to_say_so() {
    for nvswitch in [None, Some(false)] {
        // An A100 has no fabric state.
        let fabric = Some(Fabric::NotSupported);
        let mut sick = Gpu { nvswitch, fabric, ..gpu(0) };
        let config = Config { nvswitch: true, ..Config::default() };
        let mut node = Node::with(config);
        node.gpu_for(10, &sick);
        assert_eq!(node.conditions(), []);
        sick.nvlinks[4].active = Some(false);
        node.gpu_for(2, &sick);
        assert_eq!(node.levels(), [(Rule::NvlinkDown, Level::Fatal)].into());
    }
}

#[test]
fn row_10_nvlink_errors_warn_and_crc_at_a_hundred_per_second_is_fatal() {
    let mut node = Node::new();
    node.gpu_for(1, &gpu(0));
    let mut sick = gpu(0);
    sick.nvlinks[2].errors = Some(3);
    node.gpu_for(1, &sick);
    assert_eq!(node.levels(), [(Rule::NvlinkErrors, Level::Warning)].into());
    for second in 1..=10 {
        sick.nvlinks[2].crc = Some(second * 99);
        node.gpu_for(1, &sick);
    }
    assert_eq!(node.levels(), [(Rule::NvlinkErrors, Level::Warning)].into());
    for second in 1..=2 {
        sick.nvlinks[2].crc = Some(990 + second * 100);
        node.gpu_for(1, &sick);
    }
    assert_eq!(node.level(Rule::NvlinkCrc), Some(Level::Fatal));
    node.gpu_for(11 * MINUTE, &sick);
    assert_eq!(node.levels(), [(Rule::NvlinkCrc, Level::Fatal)].into());
}

#[test]
fn row_11_the_fabric_must_be_complete_before_a_start() {
    for coming in [Fabric::NotStarted, Fabric::InProgress] {
        let node = of(|gpu| gpu.fabric = Some(coming));
        let condition = node.condition(Rule::Fabric).unwrap();
        assert_eq!((condition.level, condition.state), (Level::Warning, State::Initializing));
    }
    let node = of(|gpu| gpu.fabric = Some(Fabric::Completed(5)));
    assert_eq!(node.levels(), [(Rule::Fabric, Level::Fatal)].into());
    let node = of(|gpu| {
        gpu.fabric = Some(Fabric::NotStarted);
        gpu.nvswitch = Some(false);
    });
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_12_persistence_mode_is_only_told() {
    let node = of(|gpu| gpu.persistence = Some(false));
    let condition = node.condition(Rule::Persistence).unwrap();
    assert_eq!((condition.level, condition.state), (Level::Info, State::Healthy));
}

#[test]
fn f31_row_13_a_foreign_process_withholds_its_gpu() {
    let mut node = Node::new();
    let foreign =
        vec![Process { pid: 4_711, user: "eve".to_owned(), name: "miner\u{1b}".to_owned() }];
    let taken = Gpu { foreign: Some(foreign), ..gpu(0) };
    node.gpu_for(5, &taken);
    assert_eq!(node.conditions(), []);
    node.gpu_for(5, &taken);
    let condition = node.condition(Rule::Foreign).unwrap();
    assert_eq!((condition.level, &condition.component), (Level::NoNewJobs, &gpu_part(0)));
    assert_eq!(condition.evidence, "pid 4711 (eve, miner?)");
    node.gpu_for(MINUTE, &gpu(0));
    assert_eq!(node.level(Rule::Foreign), Some(Level::NoNewJobs));
    node.gpu_for(2, &gpu(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn row_13_memory_in_use_counts_on_a_free_gpu_only() {
    let used =
        |free, mib: u64| Gpu { free, memory_used_bytes: Some(mib << 20), foreign: None, ..gpu(0) };
    let mut node = Node::new();
    node.gpu_for(30, &used(Some(false), 70_000));
    node.gpu_for(30, &used(None, 70_000));
    node.gpu_for(30, &used(Some(true), 500));
    // Memory that goes a few seconds after its gang is no leftover.
    node.gpu_for(4, &used(Some(true), 60_000));
    node.gpu_for(30, &used(Some(true), 3));
    assert_eq!(node.conditions(), []);
    node.gpu_for(7, &used(Some(true), 501));
    assert_eq!(node.levels(), [(Rule::Foreign, Level::NoNewJobs)].into());
    let condition = node.condition(Rule::Foreign).unwrap();
    assert_eq!(condition.reason, "memory in use on a free GPU");
    assert_eq!(condition.evidence, "501 MiB");
}

#[test]
fn absent_readings_neither_raise_nor_heal() {
    let mut node = Node::new();
    let nothing = Gpu::new(gpu_id(0));
    node.gpu_for(100, &nothing);
    assert_eq!(node.conditions(), []);
    let mut sick = gpu(0);
    sick.remap_pending = Some(true);
    sick.temperature_margin_c = Some(1);
    sick.pcie = Some(Pcie {
        width: Some(4),
        max_width: Some(16),
        under_load: Some(true),
        ..Pcie::default()
    });
    node.gpu_for(1, &sick);
    // One bad reading, then none, then one: two in a row.
    node.gpu_for(100, &nothing);
    node.gpu_for(1, &sick);
    let before = node.levels();
    assert_eq!(before.len(), 3, "{before:?}");
    node.gpu_for(3_600, &nothing);
    assert_eq!(node.levels(), before);
}

/// One second of four GPUs under load, the first of them with this clock.
fn work(node: &mut Node, clock: u32, gangs: [&str; 4]) {
    for (index, gang) in gangs.into_iter().enumerate() {
        let sm_clock_mhz = if index == 0 { clock } else { 1_900 + 10 * index as u32 };
        let work = Work { gang: gang.parse().unwrap(), memory_bytes: 80 << 30, sm_clock_mhz };
        node.see(&Reading::Gpu(Box::new(Gpu { work: Some(work), ..gpu(index) })));
    }
    node.now += 1;
}

#[test]
fn row_7_a_clock_far_below_that_of_gpus_that_do_the_same_is_only_shown_at_first() {
    let same = ["g-1"; 4];
    let mut node = Node::new();
    let worked = |node: &mut Node, seconds: u64, clock: u32, gangs: [&str; 4]| {
        (0..seconds).for_each(|_| work(node, clock, gangs));
        node.level(Rule::GpuClock)
    };
    // The median of the others is 1,920 MHz: 80 % of it are 1,536.
    assert_eq!(worked(&mut node, HOUR, 1_536, same), None);
    // Too few that do the same, or others that do something else.
    assert_eq!(worked(&mut node, HOUR, 900, ["g-1", "g-1", "g-1", "g-2"]), None);
    // Not for long enough, and then a pause that nobody looked at.
    assert_eq!(worked(&mut node, 4 * MINUTE, 900, same), None);
    node.gpu_for(MINUTE, &gpu(0));
    assert_eq!(worked(&mut node, 4 * MINUTE, 900, same), None);
    assert_eq!(worked(&mut node, 2 * MINUTE, 900, same), Some(Level::Degraded));
    let condition = node.condition(Rule::GpuClock).unwrap();
    assert_eq!(condition.component, gpu_part(0));
    assert_eq!(condition.evidence, "900 MHz; median of 3 others 1920 MHz");
    assert!(condition.shadow, "a new rule acts on nothing");
    assert_eq!(node.engine.state(node.time()), State::Healthy);
    let blind = node.engine.blind(node.time());
    assert!(!blind.iter().any(|line| line.rule == Rule::GpuClock), "{blind:?}");
    // It stands for a day after it was last seen, whatever is seen meanwhile.
    assert_eq!(worked(&mut node, HOUR, 1_900, same), Some(Level::Degraded));
    node.gpu_for(22 * HOUR, &gpu(0));
    assert_eq!(node.level(Rule::GpuClock), Some(Level::Degraded));
    node.gpu_for(HOUR, &gpu(0));
    assert_eq!(node.level(Rule::GpuClock), None);
}

#[test]
fn a_rule_on_trial_acts_once_an_operator_trusts_it() {
    let trusted = Config { trusted: [Rule::GpuClock].into(), ..Config::default() };
    let mut node = Node::with(trusted);
    (0..6 * MINUTE).for_each(|_| work(&mut node, 900, ["g-1"; 4]));
    assert!(!node.condition(Rule::GpuClock).unwrap().shadow);
    assert_eq!(node.engine.state(node.time()), State::Degraded);
}
