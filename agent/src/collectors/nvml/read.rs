//! One reading of one GPU: what may change from one second to the next each time, processes every two seconds,
//! which GPUs NVLink joins every minute, the rest every ten seconds or as soon as something has gone wrong. What is
//! repeated meanwhile says when it was read.

use std::sync::Arc;

use gangline_common::time::Timestamp;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, MemoryLocation, P2pCapabilitiesIndex, P2pStatus as WrapperP2p,
    PerformancePolicy, RetirementCause, TemperatureSensor,
};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::struct_wrappers::device::{FieldValueSample, ProcessInfo};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::NVML_NVLINK_MAX_LINKS;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX as DATA_RECEIVED,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX as DATA_SENT,
};

use super::raw;
use super::traffic::Traffic;
use super::window::ClockWindow;
use crate::collectors::accelerator::{
    Ecc, EccCounts, Fabric, GpuProcess, GpuSample, Link, Owner, P2pStatus, Pcie, Peer, Profile,
    ReadAt, RecoveryAction, RemappedRows, RetiredPages, Violations,
};
use crate::collectors::owner;

/// How often what changes slowly is read, in milliseconds.
const SLOW_MS: u64 = 10_000;
/// A list of processes that is older is made anew: every second time of those that come once a second.
const PROCESSES_MS: u64 = 1_500;
/// How often every pair of GPUs is asked about: it is wiring, and pairs are many.
const PEERS_MS: u64 = 60_000;
/// `nvml.h` gives rates of the profiling counters in MiB per second.
const MIB: f64 = 1_048_576.0;
/// Stands for the number of a link where all are meant together.
const ALL_LINKS: u32 = u32::MAX;

/// What is remembered of a GPU between two readings.
pub(super) struct Memory<'nvml> {
    slow: Option<Slow>,
    /// The list of processes, and when it was read, in milliseconds of the boot clock.
    processes: Option<(u64, Option<Vec<GpuProcess>>)>,
    /// Which GPUs NVLink leads to, and when that was read.
    peers: Option<(u64, Arc<[Peer]>)>,
    /// Why clocks were low.
    clocks: ClockWindow,
    profiled: Option<bool>,
    last: Option<GpmSample<'nvml>>,
}

impl Memory<'_> {
    pub(super) fn new() -> Self {
        let clocks = ClockWindow::default();
        Memory { slow: None, processes: None, peers: None, clocks, profiled: None, last: None }
    }
}

/// What changes slowly, as it was read last.
struct Slow {
    /// In milliseconds of the boot clock.
    at_ms: u64,
    sample: GpuSample,
    /// Of all links together, and of the first one.
    traffic: [Traffic; 2],
    /// A verdict of the driver's is not what it was: the next sample looks again.
    again: bool,
}

impl Slow {
    fn is_fresh(&self, now_ms: u64) -> bool {
        !self.again && now_ms.saturating_sub(self.at_ms) < SLOW_MS
    }
}

/// What the driver says of itself, of which one reading is a doubt and two are certain.
fn verdicts(sample: &GpuSample) -> (Option<RemappedRows>, Option<Fabric>, Option<bool>) {
    (sample.rows, sample.fabric, sample.persistence)
}

/// Reads the GPU with this uuid, which NVML has at `index`; `peers` are the indices of the others. `now` is from
/// before the reading.
pub(super) fn sample<'nvml>(
    nvml: &'nvml Nvml,
    index: u32,
    uuid: &str,
    peers: impl Iterator<Item = u32>,
    memory: &mut Memory<'nvml>,
    now: Timestamp,
) -> GpuSample {
    let mut reader = Reader { lost: false, reset_required: false };
    let handle = nvml.device_by_index(index);
    let problem = handle.as_ref().err().map(ToString::to_string);
    let sample = match reader.take(handle) {
        Some(device) => {
            let sample = reader.sample(nvml, &device, uuid, memory, now.boot_ms);
            let read = memory.peers.take();
            let fresh = read.filter(|(at_ms, _)| now.boot_ms.saturating_sub(*at_ms) < PEERS_MS);
            let (at_ms, peers) =
                fresh.unwrap_or_else(|| (now.boot_ms, self::peers(nvml, &device, peers)));
            memory.peers = Some((at_ms, Arc::clone(&peers)));
            GpuSample { peers, ..sample }
        }
        None => GpuSample { problem, ..GpuSample::default() },
    };
    if reader.lost {
        // What is left of it is of before.
        *memory = Memory::new();
        return GpuSample { uuid: uuid.to_owned(), lost: true, ..GpuSample::default() };
    }
    GpuSample { uuid: uuid.to_owned(), reset_required: reader.reset_required, ..sample }
}

/// Pairs that the driver says nothing of are left out: an error may be the other GPU's as well.
fn peers(nvml: &Nvml, device: &Device<'_>, indices: impl Iterator<Item = u32>) -> Arc<[Peer]> {
    let joined = indices.filter_map(|index| {
        let peer = nvml.device_by_index(index).ok()?;
        let status = device.p2p_status(&peer, P2pCapabilitiesIndex::NvLink).ok()?;
        let nvlink = match status {
            WrapperP2p::Ok => P2pStatus::Ok,
            WrapperP2p::ChipsetNotSupported => P2pStatus::ChipsetNotSupported,
            WrapperP2p::GpuNotSupported => P2pStatus::GpuNotSupported,
            WrapperP2p::IohTopologyNotSupported => P2pStatus::TopologyNotSupported,
            WrapperP2p::DisabledByRegkey => P2pStatus::DisabledByRegKey,
            WrapperP2p::NotSupported => P2pStatus::NotSupported,
            WrapperP2p::Unknown => P2pStatus::Unknown,
        };
        Some(Peer { index, nvlink })
    });
    joined.collect()
}

/// Notes what failed readings say about the GPU as a whole.
struct Reader {
    lost: bool,
    reset_required: bool,
}

impl Reader {
    /// The value, or `None` with a note if the GPU is gone.
    fn take<T>(&mut self, reading: Result<T, WrapperError>) -> Option<T> {
        match &reading {
            Err(WrapperError::GpuLost) => self.lost = true,
            Err(WrapperError::ResetRequired) => self.reset_required = true,
            _ => {}
        }
        reading.ok()
    }

    fn sample<'nvml>(
        &mut self,
        nvml: &'nvml Nvml,
        device: &Device<'nvml>,
        uuid: &str,
        memory: &mut Memory<'nvml>,
        now_ms: u64,
    ) -> GpuSample {
        let mut slow = match memory.slow.take() {
            Some(slow) if slow.is_fresh(now_ms) => slow,
            before => self.read_slow(nvml, device, now_ms, before.as_ref()),
        };
        let mut sample = slow.sample.clone();
        self.fast(device, &mut sample);
        // An error that shows in a total is looked up at once, and not within ten seconds.
        let went_wrong = sample.ecc.volatile.uncorrected != slow.sample.ecc.volatile.uncorrected
            || states(&sample) != states(&slow.sample);
        if went_wrong && !self.lost {
            slow = self.read_slow(nvml, device, now_ms, Some(&slow));
            sample = slow.sample.clone();
            self.fast(device, &mut sample);
        }
        if let Some(reasons) = sample.clock_reasons {
            memory.clocks.add(now_ms, reasons);
        }
        sample.clock_events = memory.clocks.counts(now_ms);
        let processes = memory
            .processes
            .take()
            .filter(|(at_ms, _)| now_ms.saturating_sub(*at_ms) < PROCESSES_MS);
        let (processes_ms, processes) = processes.unwrap_or_else(|| {
            let all = self.take(device.running_compute_processes());
            (now_ms, all.map(|all| owned(&all)))
        });
        sample.processes = processes.clone();
        sample.read_at = ReadAt { slow_ms: Some(slow.at_ms), processes_ms: Some(processes_ms) };
        memory.slow = Some(slow);
        memory.processes = Some((processes_ms, processes));
        sample.profile = self.profile(nvml, device, memory);
        if self.lost {
            tracing::warn!(gpu = uuid, "the GPU has fallen off the bus");
        }
        sample
    }

    /// What may change from one second to the next.
    fn fast(&mut self, device: &Device<'_>, sample: &mut GpuSample) {
        let rates = self.take(device.utilization_rates());
        sample.utilization_pct = rates.as_ref().map(|rates| rates.gpu as f32);
        sample.memory_utilization_pct = rates.as_ref().map(|rates| rates.memory as f32);
        let memory = self.take(device.memory_info());
        sample.memory_used_bytes = memory.as_ref().map(|memory| memory.used);
        sample.memory_total_bytes = memory.as_ref().map(|memory| memory.total);
        sample.memory_reserved_bytes = memory.as_ref().map(|memory| memory.reserved);
        sample.memory_free_bytes = memory.as_ref().map(|memory| memory.free);
        sample.temperature_c =
            self.take(device.temperature(TemperatureSensor::Gpu)).map(|celsius| celsius as f32);
        let fields = [NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION];
        let [memory_c, recovery] = self.fields(device, fields);
        sample.recovery = recovery.map(recovery_action);
        // A GPU whose memory has no sensor answers 0.
        sample.memory_temperature_c = memory_c.filter(|celsius| *celsius > 0).map(|c| c as f32);
        sample.power_w = self.take(device.power_usage()).map(watts);
        sample.energy_mj = self.take(device.total_energy_consumption());
        sample.sm_clock_mhz = self.take(device.clock_info(Clock::SM));
        sample.mem_clock_mhz = self.take(device.clock_info(Clock::Memory));
        sample.clock_reasons =
            self.take(device.current_throttle_reasons()).map(|reasons| reasons.bits());
        sample.pcie.replays = self.take(device.pcie_replay_counter());
        let ecc = &mut sample.ecc.volatile;
        ecc.corrected = self.total(device, MemoryError::Corrected, EccCounter::Volatile);
        ecc.uncorrected = self.total(device, MemoryError::Uncorrected, EccCounter::Volatile);
        for link in sample.links.iter_mut().flatten() {
            link.active = self.take(device.link_wrapper_for(link.number).is_active());
        }
    }

    fn read_slow(
        &mut self,
        nvml: &Nvml,
        device: &Device<'_>,
        at_ms: u64,
        before: Option<&Slow>,
    ) -> Slow {
        let mut sample = self.slow(nvml, device);
        let again = before.is_none_or(|before| verdicts(&before.sample) != verdicts(&sample));
        let counts = match sample.links {
            Some(_) => self.carried_kib(nvml, device),
            None => [None; 2],
        };
        let [all, first] = before.map(|before| before.traffic).unwrap_or_default();
        let traffic = [all.read(at_ms, counts[0]), first.read(at_ms, counts[1])];
        sample.nvlink_mib_per_s = traffic[0].mib_per_s;
        sample.first_link_mib_per_s = traffic[1].mib_per_s;
        Slow { at_ms, sample, traffic, again }
    }

    /// Data that all links and the first one have carried in both directions, in KiB.
    fn carried_kib(&mut self, nvml: &Nvml, device: &Device<'_>) -> [Option<u64>; 2] {
        let fields = [
            (DATA_SENT, ALL_LINKS),
            (DATA_RECEIVED, ALL_LINKS),
            (DATA_SENT, 0),
            (DATA_RECEIVED, 0),
        ];
        let Some(answers) = self.take(raw::fields_of_parts(nvml, device, fields)) else {
            return [None; 2];
        };
        let [sent, received, first_sent, first_received] =
            answers.map(|answer| self.whole_number(answer));
        let both = |sent: Option<u64>, received: Option<u64>| Some(sent?.saturating_add(received?));
        [both(sent, received), both(first_sent, first_received)]
    }

    /// The rest.
    fn slow(&mut self, nvml: &Nvml, device: &Device<'_>) -> GpuSample {
        let encoder = self.take(device.encoder_utilization());
        let decoder = self.take(device.decoder_utilization());
        GpuSample {
            encoder_pct: encoder.map(|share| share.utilization as f32),
            decoder_pct: decoder.map(|share| share.utilization as f32),
            temperature_margin_c: self.take(raw::margin_temperature(nvml, device)),
            power_limit_w: self
                .take(device.enforced_power_limit())
                .or_else(|| self.take(device.power_management_limit()))
                .map(watts),
            violations: self.violations(device),
            pcie: Pcie {
                replays: None,
                generation: self.take(device.current_pcie_link_gen()),
                width: self.take(device.current_pcie_link_width()),
                max_generation: self.take(device.max_pcie_link_gen()),
                max_width: self.take(device.max_pcie_link_width()),
            },
            ecc: Ecc {
                volatile: self.counts(device, EccCounter::Volatile),
                aggregate: self.counts(device, EccCounter::Aggregate),
                sram_threshold_exceeded: self.take(raw::sram_threshold_exceeded(nvml, device)),
            },
            rows: self.take(raw::remapped_rows(nvml, device)),
            retired: self.retired(device),
            links: self.links(device),
            fabric: self.take(raw::fabric(nvml, device)).flatten(),
            persistence: self.take(device.is_in_persistent_mode()),
            vgpu_licensed: self.take(raw::vgpu_licensed(nvml, device)).flatten(),
            ..GpuSample::default()
        }
    }

    /// Fields that have numbers and no function, as whole numbers.
    fn fields<const N: usize>(&mut self, device: &Device<'_>, ids: [u32; N]) -> [Option<u64>; N] {
        let answers = self.take(device.field_values_for(&ids.map(FieldId))).unwrap_or_default();
        let mut answers = answers.into_iter();
        // By position: the wrapper translates numbers that differ between drivers.
        ids.map(|_| {
            let answer = answers.next()?;
            self.whole_number(answer)
        })
    }

    fn whole_number(&mut self, answer: Result<FieldValueSample, WrapperError>) -> Option<u64> {
        let answer = self.take(answer)?;
        match self.take(answer.value)? {
            SampleValue::U32(value) => Some(value.into()),
            SampleValue::U64(value) => Some(value),
            SampleValue::I64(value) => u64::try_from(value).ok(),
            SampleValue::F64(_) => None,
        }
    }

    fn total(
        &mut self,
        device: &Device<'_>,
        error: MemoryError,
        counter: EccCounter,
    ) -> Option<u64> {
        self.take(device.total_ecc_errors(error, counter))
    }

    fn counts(&mut self, device: &Device<'_>, counter: EccCounter) -> EccCounts {
        use MemoryError::{Corrected, Uncorrected};
        use MemoryLocation::{Device as Dram, SRAM};
        let mut at = |error: MemoryError, location: MemoryLocation| {
            self.take(device.memory_error_counter(error, counter, location))
        };
        EccCounts {
            sram_corrected: at(Corrected, SRAM),
            sram_uncorrected: at(Uncorrected, SRAM),
            dram_corrected: at(Corrected, Dram),
            dram_uncorrected: at(Uncorrected, Dram),
            corrected: self.total(device, Corrected, counter),
            uncorrected: self.total(device, Uncorrected, counter),
        }
    }

    fn violations(&mut self, device: &Device<'_>) -> Violations {
        let mut of = |policy: PerformancePolicy| {
            self.take(device.violation_status(policy)).map(|time| time.violation_time)
        };
        Violations {
            power_ns: of(PerformancePolicy::Power),
            thermal_ns: of(PerformancePolicy::Thermal),
            sync_boost_ns: of(PerformancePolicy::SyncBoost),
            board_limit_ns: of(PerformancePolicy::BoardLimit),
            low_utilization_ns: of(PerformancePolicy::LowUtilization),
            reliability_ns: of(PerformancePolicy::Reliability),
        }
    }

    fn retired(&mut self, device: &Device<'_>) -> Option<RetiredPages> {
        let mut pages = |cause: RetirementCause| {
            let pages = self.take(device.retired_pages(cause))?;
            u32::try_from(pages.len()).ok()
        };
        let (single_bit, double_bit) = (
            pages(RetirementCause::MultipleSingleBitEccErrors),
            pages(RetirementCause::DoubleBitEccError),
        );
        let pending = self.take(device.are_pages_pending_retired());
        (single_bit.is_some() || double_bit.is_some()).then_some(RetiredPages {
            single_bit,
            double_bit,
            pending,
        })
    }

    /// The links that exist. A link number that does not is refused.
    fn links(&mut self, device: &Device<'_>) -> Option<Vec<Link>> {
        let mut links = Vec::new();
        for number in 0..NVML_NVLINK_MAX_LINKS {
            let link = device.link_wrapper_for(number);
            let Some(active) = self.take(link.is_active()) else { continue };
            let mut errors = |counter| self.take(link.error_counter(counter));
            links.push(Link {
                number,
                active: Some(active),
                replays: errors(ErrorCounter::DlReplay),
                recoveries: errors(ErrorCounter::DlRecovery),
                crc_flit: errors(ErrorCounter::DlCrcFlit),
                crc_data: errors(ErrorCounter::DlCrcData),
            });
        }
        (!links.is_empty()).then_some(links)
    }

    /// What happened since the sample before.
    fn profile<'nvml>(
        &mut self,
        nvml: &'nvml Nvml,
        device: &Device<'nvml>,
        memory: &mut Memory<'nvml>,
    ) -> Option<Profile> {
        if memory.profiled.is_none() {
            memory.profiled = match device.gpm_support() {
                Ok(supported) => Some(supported),
                // An old driver has no such function, and will not get one while it is loaded.
                Err(WrapperError::FailedToLoadSymbol(_) | WrapperError::NotSupported) => {
                    Some(false)
                }
                Err(error) => {
                    self.take::<()>(Err(error));
                    None
                }
            };
        }
        if memory.profiled != Some(true) {
            return None;
        }
        let now = self.take(device.gpm_sample())?;
        let before = memory.last.replace(now)?;
        let metrics = gpm_metrics_get(nvml, &before, memory.last.as_ref()?, &METRICS);
        let mut values = self.take(metrics)?.into_iter().map(|metric| {
            let value = metric.ok()?.value;
            (value.is_finite() && value >= 0.0).then_some(value)
        });
        let mut next = || values.next().flatten();
        Some(Profile {
            graphics_active: next().map(share),
            sm_active: next().map(share),
            sm_occupancy: next().map(share),
            tensor_active: next().map(share),
            dram_active: next().map(share),
            fp64_active: next().map(share),
            fp32_active: next().map(share),
            fp16_active: next().map(share),
            pcie_received_bytes_per_s: next().map(bytes_per_s),
            pcie_sent_bytes_per_s: next().map(bytes_per_s),
            nvlink_received_bytes_per_s: next().map(bytes_per_s),
            nvlink_sent_bytes_per_s: next().map(bytes_per_s),
        })
    }
}

/// In the order of the fields of [`Profile`].
const METRICS: [GpmMetricId; 12] = [
    GpmMetricId::GraphicsUtil,
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::Fp64Util,
    GpmMetricId::Fp32Util,
    GpmMetricId::Fp16Util,
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::NvlinkTotalRxPerSec,
    GpmMetricId::NvlinkTotalTxPerSec,
];

/// Percent to the 0 to 1 that DCGM has.
fn share(percent: f64) -> f32 {
    (percent / 100.0) as f32
}

fn bytes_per_s(mib_per_s: f64) -> u64 {
    (mib_per_s * MIB) as u64
}

fn states(sample: &GpuSample) -> Vec<Option<bool>> {
    sample.links.iter().flatten().map(|link| link.active).collect()
}

fn recovery_action(number: u64) -> RecoveryAction {
    match number {
        0 => RecoveryAction::None,
        1 => RecoveryAction::GpuReset,
        2 => RecoveryAction::NodeReboot,
        3 => RecoveryAction::DrainPeers,
        4 => RecoveryAction::DrainAndReset,
        other => RecoveryAction::Other(other),
    }
}

fn owned(all: &[ProcessInfo]) -> Vec<GpuProcess> {
    let pids: Vec<u32> = all.iter().map(|process| process.pid).collect();
    let with = |(process, owner): (&ProcessInfo, Owner)| {
        let used_bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        GpuProcess { pid: process.pid, used_bytes, owner }
    };
    all.iter().zip(owner::of_all(&pids)).map(with).collect()
}

fn watts(milliwatts: u32) -> f32 {
    milliwatts as f32 / 1000.0
}
