//! Rules about one GPU, and about the GPUs as a set.

use std::collections::BTreeSet;

use gangline_common::ids::GpuId;

use crate::clock::At;
use crate::latch::Bad;
use crate::nvlink;
use crate::part::Part;
use crate::reading::{Fabric, Gpu, GpuSet, Handle, Pcie, Process, RecoveryAction, Work};
use crate::rule::{Action, Level, Rule};
use crate::series::{Series, Step};

/// Hardware slowdown, hardware thermal slowdown, power brake.
const SLOWDOWN_BITS: u64 = 0x8 | 0x40 | 0x80;
const SLOWDOWN_MINUTES: usize = 6;
const LEAST_MARGIN_C: i64 = 5;
const MOST_HBM_C: i64 = 95;
const MOST_REMAPPED: u64 = 512;
const MOST_FREE_BYTES: u64 = 500 << 20;
const REPLAYS: u64 = 10;
const REPLAY_MINUTES: usize = 3;
/// The clock of a GPU is compared with the median of at least so many others,
const LEAST_PEERS: usize = 3;
/// each read within so many milliseconds,
const PEER_MS: u64 = 5_000;
/// and is behind below this part of it.
const BEHIND_PERCENT: u64 = 80;
/// How many of a list are named as evidence.
const NAMED: usize = 4;

pub fn on_set(part: &mut Part, set: &GpuSet, at: At) {
    part.check(
        Rule::GpuSet,
        set.present.as_ref().map(|present| missing(&set.registered, present)),
        at,
    );
    let library = set.library.as_ref().map(|library| {
        let (level, reason) = match library {
            Handle::Good => return None,
            Handle::DriverMismatch => (Level::Fatal, "driver and library do not fit together"),
            Handle::Lost | Handle::ResetRequired => (Level::Fatal, "the driver has lost a GPU"),
            Handle::Error(_) => (Level::Degraded, "NVML cannot be used"),
        };
        Some(Bad::new(Rule::GpuLibrary, level, reason, handle_text(library)))
    });
    part.check(Rule::GpuLibrary, library, at);
    if set.library == Some(Handle::Good) {
        part.pass(Rule::XidFatal, at);
        part.pass(Rule::XidWatch, at);
    }
}

fn missing(registered: &BTreeSet<GpuId>, present: &BTreeSet<GpuId>) -> Option<Bad> {
    if registered == present {
        return None;
    }
    let named = |gpus: Vec<&GpuId>| {
        let names: Vec<&str> = gpus.iter().take(NAMED).map(|gpu| gpu.0.as_str()).collect();
        format!("{} ({})", gpus.len(), names.join(" "))
    };
    let gone: Vec<&GpuId> = registered.difference(present).collect();
    let new: Vec<&GpuId> = present.difference(registered).collect();
    let reason = match gone.len() {
        0 => format!("{} GPUs more than the node registered", new.len()),
        gone => format!("{gone} of {} GPUs missing", registered.len()),
    };
    let evidence = format!("missing: {}; not registered: {}", named(gone), named(new));
    Some(Bad::new(Rule::GpuSet, Level::Fatal, reason, evidence))
}

fn handle_text(handle: &Handle) -> String {
    match handle {
        Handle::Good => "good".to_owned(),
        Handle::Lost => "NVML_ERROR_GPU_IS_LOST".to_owned(),
        Handle::ResetRequired => "NVML_ERROR_RESET_REQUIRED".to_owned(),
        Handle::DriverMismatch => "NVML_ERROR_LIB_RM_VERSION_MISMATCH".to_owned(),
        Handle::Error(name) => name.clone(),
    }
}

/// The median of the clocks of other GPUs that do the same work, in MHz.
#[derive(Debug, Clone, Copy)]
pub struct Peers {
    count: usize,
    median_mhz: u32,
}

impl Peers {
    /// Of the other GPUs here; `None` where too few do the same.
    pub fn of<'a>(
        work: &Work,
        others: impl Iterator<Item = &'a (Work, u64)>,
        at: At,
    ) -> Option<Self> {
        let does_the_same =
            |other: &Work| other.gang == work.gang && other.memory_bytes == work.memory_bytes;
        let mut clocks: Vec<u32> = others
            .filter(|(other, read)| does_the_same(other) && at.since(*read) <= PEER_MS)
            .map(|(other, _)| other.sm_clock_mhz)
            .collect();
        clocks.sort_unstable();
        let median_mhz = clocks.get(clocks.len() / 2).copied();
        median_mhz
            .filter(|_| clocks.len() >= LEAST_PEERS)
            .map(|median_mhz| Peers { count: clocks.len(), median_mhz })
    }
}

/// `peers` are those of a GPU under load.
pub fn on_work(part: &mut Part, work: Option<Work>, peers: Option<Peers>, at: At) {
    let verdict = work.as_ref().zip(peers).map(|(work, Peers { count, median_mhz })| {
        let least = u64::from(median_mhz) * BEHIND_PERCENT / 100;
        (u64::from(work.sm_clock_mhz) < least).then(|| {
            let clock = work.sm_clock_mhz;
            let evidence = format!("{clock} MHz; median of {count} others {median_mhz} MHz");
            let reason = "its clock is far below that of its peers";
            Bad::new(Rule::GpuClock, Level::Degraded, reason, evidence)
        })
    });
    part.check(Rule::GpuClock, verdict, at);
    part.work = work.map(|work| (work, at.ms));
}

/// One reading of a GPU; `nvswitch` is whether the GPUs here are joined by NVSwitch.
pub fn on_gpu(part: &mut Part, gpu: &Gpu, nvswitch: Option<bool>, at: At) {
    let handle = gpu.handle.as_ref().map(|handle| {
        let (level, reason) = match handle {
            Handle::Good => return None,
            Handle::Lost => (Level::Fatal, "the GPU is lost"),
            Handle::ResetRequired => (Level::Fatal, "the GPU must be reset"),
            Handle::DriverMismatch => (Level::Fatal, "driver and library do not fit together"),
            Handle::Error(_) => (Level::Degraded, "the GPU does not answer"),
        };
        Some(Bad::new(Rule::GpuHandle, level, reason, handle_text(handle)))
    });
    part.check(Rule::GpuHandle, handle, at);
    memory(part, gpu, at);
    part.check(Rule::RecoveryAction, gpu.recovery_action.map(recovery), at);
    heat(part, gpu, at);
    part.check(Rule::PcieLink, gpu.pcie.and_then(pcie), at);
    replays(part, gpu.pcie_replays, at);
    nvlink::on_links(part, &gpu.nvlinks, nvswitch, at);
    part.check(Rule::Fabric, gpu.fabric.map(|fabric| self::fabric(fabric, nvswitch)), at);
    let persistence = gpu.persistence.map(|on| {
        let off = Bad::new(Rule::Persistence, Level::Info, "persistence mode is off", "");
        (!on).then_some(off)
    });
    part.check(Rule::Persistence, persistence, at);
    part.check(Rule::Foreign, foreign(gpu), at);
    // A GPU that answers and of which the driver wants nothing has passed, should it be asked.
    let wants_nothing = matches!(gpu.recovery_action, None | Some(RecoveryAction::None));
    if gpu.handle == Some(Handle::Good) && wants_nothing {
        part.pass(Rule::XidFatal, at);
        part.pass(Rule::XidWatch, at);
    }
}

/// ECC and remapped rows.
fn memory(part: &mut Part, gpu: &Gpu, at: At) {
    for (series, rule, level, value, what) in [
        (Series::EccSram, Rule::EccSram, Level::Fatal, gpu.ecc_sram_uncorrected, "SRAM"),
        (Series::EccDram, Rule::EccDram, Level::DrainAfterJob, gpu.ecc_dram_uncorrected, "DRAM"),
    ] {
        let step = part.step(series, value, at);
        match step {
            Some(Step::Grew { by, .. }) if by > 0 => {
                let reason = format!("uncorrected ECC errors in {what}");
                let evidence = format!("{by} more, {} by now", value.unwrap_or_default());
                part.event(rule, Bad::new(rule, level, reason, evidence), at);
            }
            Some(Step::Reset) => {
                // The driver counts from its own start: the GPU was reset, or the driver loaded anew.
                for (rule, latch) in &mut part.latches {
                    if matches!(rule, Rule::EccDram | Rule::XidWatch) {
                        latch.started_anew(false);
                    }
                }
                part.check(rule, Some(None), at);
            }
            Some(_) => part.check(rule, Some(None), at),
            None => part.check(rule, None, at),
        }
    }
    let pending = gpu.remap_pending.map(|pending| {
        let reason = "a row remap is pending";
        pending.then(|| Bad::new(Rule::RemapPending, Level::DrainAfterJob, reason, ""))
    });
    part.check(Rule::RemapPending, pending, at);
    let many = gpu.remapped_uncorrectable.map(|rows| rows >= MOST_REMAPPED);
    let failure = match (gpu.remap_failure, many) {
        (None, None) => None,
        (failed, many) => Some(failed == Some(true) || many == Some(true)),
    };
    let failure = failure.map(|failed| {
        let rows = gpu.remapped_uncorrectable;
        let evidence = format!(
            "failed: {:?}; rows remapped for uncorrectable errors: {}",
            gpu.remap_failure.unwrap_or_default(),
            rows.map_or("not read".to_owned(), |rows| rows.to_string()),
        );
        let reason = "memory rows can no longer be remapped";
        failed.then(|| Bad::new(Rule::RemapFailure, Level::Fatal, reason, evidence))
    });
    part.check(Rule::RemapFailure, failure, at);
}

/// What the driver asks for, as a condition; `None` when it asks for nothing.
pub fn recovery(action: RecoveryAction) -> Option<Bad> {
    let (level, words) = match action {
        RecoveryAction::None => return None,
        RecoveryAction::GpuReset => (Level::Fatal, "GPU reset required".to_owned()),
        RecoveryAction::NodeReboot => (Level::Fatal, "node reboot required".to_owned()),
        RecoveryAction::DrainP2p => (Level::DrainAfterJob, "drain P2P".to_owned()),
        RecoveryAction::DrainAndReset => (Level::DrainAfterJob, "drain and reset".to_owned()),
        RecoveryAction::Unknown(value) => (Level::Warning, format!("unknown action {value}")),
    };
    let reason = format!("the driver says: {words}");
    Some(Bad::new(Rule::RecoveryAction, level, reason, "GPU recovery action"))
}

/// Clocks held down, and temperatures.
fn heat(part: &mut Part, gpu: &Gpu, at: At) {
    let slow = gpu.clock_event_reasons.map(|bits| bits & SLOWDOWN_BITS);
    let slowdown = slow.map(|bits| {
        let step = Step::Grew { by: u64::from(bits != 0), ms: 0 };
        let minutes = part.count(Series::Slowdown, step, at).busy(10, at);
        (minutes >= SLOWDOWN_MINUTES).then(|| {
            let evidence = format!("in {minutes} of the last 10 minutes; reasons now {bits:#x}");
            let reason = "hardware holds the clocks down";
            Bad::new(Rule::HardwareSlowdown, Level::Degraded, reason, evidence)
        })
    });
    part.check(Rule::HardwareSlowdown, slowdown, at);
    let margin = gpu.temperature_margin_c.map(|margin| {
        (margin <= LEAST_MARGIN_C).then(|| {
            let evidence = format!("{margin} °C below slowdown");
            Bad::new(Rule::GpuTemperature, Level::Warning, "the GPU is hot", evidence)
        })
    });
    part.check(Rule::GpuTemperature, margin, at);
    let hbm = gpu.hbm_temperature_c.map(|hot| {
        (hot > MOST_HBM_C).then(|| {
            let evidence = format!("{hot} °C");
            Bad::new(Rule::HbmTemperature, Level::Warning, "GPU memory is hot", evidence)
        })
    });
    part.check(Rule::HbmTemperature, hbm, at);
}

/// `None` when nothing can be said: values are absent, or the link is idle and slowed down.
fn pcie(pcie: Pcie) -> Option<Option<Bad>> {
    let generation = pcie.generation.zip(pcie.max_generation);
    let width = pcie.width.zip(pcie.max_width);
    if generation.is_none() && width.is_none() {
        return None;
    }
    let below = |pair: Option<(u32, u32)>| pair.is_some_and(|(now, most)| now < most);
    if !below(generation) && !below(width) {
        return Some(None);
    }
    if pcie.under_load != Some(true) {
        return None;
    }
    let shown = |pair: Option<(u32, u32)>| match pair {
        Some((now, most)) => format!("{now} of {most}"),
        None => "not read".to_owned(),
    };
    let evidence = format!("under load: generation {}, width {}", shown(generation), shown(width));
    let reason = "the PCIe link is slower than it can be";
    Some(Some(Bad::new(Rule::PcieLink, Level::Degraded, reason, evidence)))
}

fn replays(part: &mut Part, value: Option<u64>, at: At) {
    let step = part.step(Series::Replays, value, at);
    let verdict = step.map(|step| {
        let minutes = part.count(Series::Replays, step, at);
        let (sum, busy) = (minutes.sum(10, at), minutes.busy(10, at));
        (sum >= REPLAYS && busy >= REPLAY_MINUTES).then(|| {
            let evidence = format!("{sum} replays in {busy} of the last 10 minutes");
            let reason = "PCIe packets are sent again and again";
            Bad::new(Rule::PcieReplays, Level::Degraded, reason, evidence)
        })
    });
    part.check(Rule::PcieReplays, verdict, at);
}

fn fabric(fabric: Fabric, nvswitch: Option<bool>) -> Option<Bad> {
    if nvswitch != Some(true) {
        return None;
    }
    let coming = |words: &str| Bad {
        initializing: true,
        ..Bad::new(Rule::Fabric, Level::Warning, "the fabric is not ready yet", words)
    };
    match fabric {
        Fabric::NotSupported | Fabric::Completed(0) => None,
        Fabric::NotStarted => Some(coming("registration has not started")),
        Fabric::InProgress => Some(coming("registration in progress")),
        Fabric::Completed(status) => {
            let evidence = format!("completed with status {status}");
            Some(Bad::new(Rule::Fabric, Level::Fatal, "fabric registration failed", evidence))
        }
    }
}

fn foreign(gpu: &Gpu) -> Option<Option<Bad>> {
    let used = match (gpu.free, gpu.memory_used_bytes) {
        (Some(true), Some(used)) => Some(used),
        _ => None,
    };
    if gpu.foreign.is_none() && used.is_none() {
        return None;
    }
    let processes: &[Process] = gpu.foreign.as_deref().unwrap_or_default();
    let much = used.filter(|used| *used > MOST_FREE_BYTES);
    if processes.is_empty() && much.is_none() {
        return Some(None);
    }
    let shown = |p: &Process| format!("pid {} ({}, {})", p.pid, p.user, p.name);
    let names: Vec<String> = processes.iter().take(NAMED).map(shown).collect();
    let (reason, evidence) = match (processes.len(), much) {
        (0, Some(used)) => ("memory in use on a free GPU", format!("{} MiB", used >> 20)),
        (count, _) if count > NAMED => {
            let more = count - NAMED;
            ("processes that belong to no gang", format!("{} and {more} more", names.join(", ")))
        }
        _ => ("processes that belong to no gang", names.join(", ")),
    };
    let bad = Bad::new(Rule::Foreign, Level::NoNewJobs, reason, evidence);
    Some(Some(bad.action(Action::CheckUserAppAndGpu)))
}
