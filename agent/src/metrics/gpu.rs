//! GPUs under the names, labels and units of dcgm-exporter.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gangline_common::exposition::{self, Kind, Page};
use gangline_common::ids::GpuId;
use gangline_common::wire::v1::GpuIdentity;

use super::Facts;
use crate::collectors::accelerator::{
    FabricState, GpuSample, Link, P2pStatus, Profile, RecoveryAction, WINDOW_MS, clock_reason,
};

/// One family, and where its value comes from.
pub(super) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    /// Only with `metrics_extended`.
    pub extended: bool,
    read: Read,
}

enum Read {
    Gpu(fn(&GpuSample) -> Option<f64>),
    /// The sum over all links.
    Links(fn(&Link) -> Option<u64>),
}

impl Family {
    fn value(&self, gpu: &GpuSample, links: &LinksTold) -> Option<f64> {
        match self.read {
            Read::Gpu(read) => read(gpu),
            Read::Links(read) => links.sum(gpu, self.name, read),
        }
    }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    read: fn(&GpuSample) -> Option<f64>,
) -> Family {
    Family { name, help, kind: Kind::Gauge, extended: false, read: Read::Gpu(read) }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&GpuSample) -> Option<f64>,
) -> Family {
    Family { name, help, kind: Kind::Counter, extended: false, read: Read::Gpu(read) }
}

const fn of_links(
    name: &'static str,
    help: &'static str,
    read: fn(&Link) -> Option<u64>,
) -> Family {
    Family { name, help, kind: Kind::Counter, extended: false, read: Read::Links(read) }
}

const fn extended(family: Family) -> Family {
    Family { extended: true, ..family }
}

fn mib(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64 / f64::from(1 << 20))
}

fn whole(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}

fn small(number: Option<u32>) -> Option<f64> {
    number.map(f64::from)
}

fn share(gpu: &GpuSample, of: fn(&Profile) -> Option<f32>) -> Option<f64> {
    of(gpu.profile.as_ref()?).map(f64::from)
}

fn rate(gpu: &GpuSample, of: fn(&Profile) -> Option<u64>) -> Option<f64> {
    whole(of(gpu.profile.as_ref()?))
}

/// Counts by the number of the link.
type LinkCounts = BTreeMap<u32, u64>;

/// What each link told last, by GPU and family. As many as the node has ever had.
#[derive(Debug, Default)]
pub(super) struct LinksTold(Mutex<BTreeMap<(String, &'static str), LinkCounts>>);

impl LinksTold {
    /// The sum over all links that ever told; absent when none does now. One that does not answer
    /// counts with what it told last: without it the sum would go back, which to Prometheus is a
    /// counter that began anew.
    fn sum(
        &self,
        gpu: &GpuSample,
        family: &'static str,
        of: fn(&Link) -> Option<u64>,
    ) -> Option<f64> {
        let links = gpu.links.iter().flatten();
        let now: Vec<_> = links.filter_map(|link| Some((link.number, of(link)?))).collect();
        if now.is_empty() {
            return None;
        }
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.entry((gpu.uuid.clone(), family)).or_default();
        told.extend(now);
        Some(told.values().fold(0_u64, |sum, count| sum.saturating_add(*count)) as f64)
    }
}

/// The number of nvmlDeviceGpuRecoveryAction.
fn recovery(gpu: &GpuSample) -> Option<f64> {
    let number = match gpu.recovery? {
        RecoveryAction::None => 0,
        RecoveryAction::GpuReset => 1,
        RecoveryAction::NodeReboot => 2,
        RecoveryAction::DrainPeers => 3,
        RecoveryAction::DrainAndReset => 4,
        RecoveryAction::Other(number) => number,
    };
    Some(number as f64)
}

/// What NVML tells and dcgm-exporter has no name for.
const OWN: &[Family] = &[
    gauge(
        "gangline_gpu_recovery_action",
        "What the driver wants done about the GPU (number of nvmlDeviceGpuRecoveryAction, 0 is \
         nothing).",
        recovery,
    ),
    gauge(
        "gangline_gpu_fabric_registered",
        "Whether the GPU is registered with its NVSwitch fabric (0 or 1).",
        |g| {
            let fabric = g.fabric?;
            Some(f64::from(fabric.state == FabricState::Completed && fabric.status == 0))
        },
    ),
    gauge(
        "gangline_gpu_sram_ecc_threshold_exceeded",
        "Whether the driver says that SRAM had too many uncorrectable errors (0 or 1).",
        |g| g.ecc.sram_threshold_exceeded.map(f64::from),
    ),
];
/// Labels of those.
const OWN_LABELS: [&str; 3] = ["gpu", "UUID", "hpc_job"];

/// Every family with one value per GPU. Names, kinds and units are those of dcgm-exporter's
/// `default-counters.csv`.
pub(super) const FAMILIES: &[Family] = &[
    gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", |g| small(g.sm_clock_mhz)),
    gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", |g| small(g.mem_clock_mhz)),
    gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", |g| {
        g.memory_temperature_c.map(f64::from)
    }),
    gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", |g| g.temperature_c.map(f64::from)),
    gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", |g| g.power_w.map(f64::from)),
    counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since boot (in mJ).",
        |g| whole(g.energy_mj),
    ),
    counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", |g| {
        small(g.pcie.replays)
    }),
    gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", |g| g.utilization_pct.map(f64::from)),
    gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", |g| {
        g.memory_utilization_pct.map(f64::from)
    }),
    gauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", |g| g.encoder_pct.map(f64::from)),
    gauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", |g| g.decoder_pct.map(f64::from)),
    // As in DCGM: 0 while there was none.
    gauge("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", |g| {
        g.hears_xids.then(|| g.last_xid.unwrap_or(0) as f64)
    }),
    gauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", |g| mib(g.memory_free_bytes)),
    gauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", |g| mib(g.memory_used_bytes)),
    gauge("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", |g| {
        mib(g.memory_reserved_bytes)
    }),
    counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for uncorrectable errors",
        |g| g.rows.map(|rows| f64::from(rows.uncorrected)),
    ),
    counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for correctable errors",
        |g| g.rows.map(|rows| f64::from(rows.corrected)),
    ),
    gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", |g| {
        g.rows.map(|rows| f64::from(rows.failed))
    }),
    gauge(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "Why clocks are low (bits of nvmlClocksEventReasons).",
        |g| whole(g.clock_reasons),
    ),
    gauge(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "Data that all NVLinks carry, sent and received (in MiB per second).",
        |g| g.nvlink_mib_per_s,
    ),
    // As in DCGM: 0 for a physical GPU.
    gauge("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "Whether a vGPU is licensed (0 or 1).", |g| {
        g.vgpu_licensed.map(f64::from)
    }),
    gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", |g| {
        share(g, |p| p.graphics_active)
    }),
    gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        |g| share(g, |p| p.tensor_active),
    ),
    gauge(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        |g| share(g, |p| p.dram_active),
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "The rate of data transmitted over the PCIe bus (in bytes per second).",
        |g| rate(g, |p| p.pcie_sent_bytes_per_s),
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "The rate of data received over the PCIe bus (in bytes per second).",
        |g| rate(g, |p| p.pcie_received_bytes_per_s),
    ),
    gauge(
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        "The rate of data transmitted over NVLink (in bytes per second).",
        |g| rate(g, |p| p.nvlink_sent_bytes_per_s),
    ),
    gauge(
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        "The rate of data received over NVLink (in bytes per second).",
        |g| rate(g, |p| p.nvlink_received_bytes_per_s),
    ),
    extended(gauge(
        "DCGM_FI_PROF_SM_ACTIVE",
        "The ratio of cycles an SM has at least 1 warp assigned.",
        |g| share(g, |p| p.sm_active),
    )),
    extended(gauge(
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "The ratio of number of warps resident on an SM.",
        |g| share(g, |p| p.sm_occupancy),
    )),
    extended(gauge(
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
        "Ratio of cycles the fp64 pipes are active.",
        |g| share(g, |p| p.fp64_active),
    )),
    extended(gauge(
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        "Ratio of cycles the fp32 pipes are active.",
        |g| share(g, |p| p.fp32_active),
    )),
    extended(gauge(
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        "Ratio of cycles the fp16 pipes are active.",
        |g| share(g, |p| p.fp16_active),
    )),
    extended(counter(
        "DCGM_FI_DEV_POWER_VIOLATION",
        "Throttling duration due to power constraints (in ns).",
        |g| whole(g.violations.power_ns),
    )),
    extended(counter(
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "Throttling duration due to thermal constraints (in ns).",
        |g| whole(g.violations.thermal_ns),
    )),
    extended(counter(
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        "Throttling duration due to sync-boost constraints (in ns).",
        |g| whole(g.violations.sync_boost_ns),
    )),
    extended(counter(
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        "Throttling duration due to board limit constraints (in ns).",
        |g| whole(g.violations.board_limit_ns),
    )),
    extended(counter(
        "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
        "Throttling duration due to low utilization (in ns).",
        |g| whole(g.violations.low_utilization_ns),
    )),
    extended(counter(
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        "Throttling duration due to reliability constraints (in ns).",
        |g| whole(g.violations.reliability_ns),
    )),
    extended(counter(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "Total number of single-bit volatile ECC errors.",
        |g| whole(g.ecc.volatile.corrected),
    )),
    extended(counter(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Total number of double-bit volatile ECC errors.",
        |g| whole(g.ecc.volatile.uncorrected),
    )),
    extended(counter(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "Total number of single-bit persistent ECC errors.",
        |g| whole(g.ecc.aggregate.corrected),
    )),
    extended(counter(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "Total number of double-bit persistent ECC errors.",
        |g| whole(g.ecc.aggregate.uncorrected),
    )),
    extended(counter(
        "DCGM_FI_DEV_RETIRED_SBE",
        "Total number of retired pages due to single-bit errors.",
        |g| small(g.retired?.single_bit),
    )),
    extended(counter(
        "DCGM_FI_DEV_RETIRED_DBE",
        "Total number of retired pages due to double-bit errors.",
        |g| small(g.retired?.double_bit),
    )),
    extended(counter(
        "DCGM_FI_DEV_RETIRED_PENDING",
        "Whether pages are pending retirement (0 or 1).",
        |g| g.retired?.pending.map(f64::from),
    )),
    extended(of_links(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "Total number of NVLink flow-control CRC errors.",
        |link| link.crc_flit,
    )),
    extended(of_links(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "Total number of NVLink data CRC errors.",
        |link| link.crc_data,
    )),
    extended(of_links(
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "Total number of NVLink retries.",
        |link| link.replays,
    )),
    extended(of_links(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "Total number of NVLink recovery errors.",
        |link| link.recoveries,
    )),
    extended(gauge(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
        "Data that NVLink 0 carries, sent and received (in MiB per second).",
        |g| g.first_link_mib_per_s,
    )),
];

/// What dcgm-exporter calls the bits of the reasons of clocks, from the lowest.
const CLOCK_EVENTS: [&str; clock_reason::BITS] = [
    "gpu_idle",
    "clocks_setting",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
];

/// A GPU as it is labelled: what identifies it, and the job that has it.
struct Labelled<'a> {
    sample: &'a GpuSample,
    labels: Vec<(&'static str, &'a str)>,
}

/// Adds every family of every GPU that was read.
pub(super) fn add(page: &mut Page, facts: &Facts<'_>) {
    let Some(samples) = facts.readings.gpus.as_ref().and_then(|gpus| gpus.fresh()) else { return };
    let gpus: Vec<(&GpuSample, &GpuIdentity)> = samples
        .iter()
        .filter_map(|sample| {
            // What is not in the inventory is not this container's.
            let mut known = facts.inventory.gpus.iter();
            Some((sample, known.find(|gpu| gpu.uuid.0 == sample.uuid)?))
        })
        .collect();
    let numbers: Vec<(String, String)> = gpus
        .iter()
        .map(|(_, identity)| (identity.index.to_string(), format!("nvidia{}", identity.index)))
        .collect();
    let gpus: Vec<Labelled<'_>> = gpus
        .iter()
        .zip(&numbers)
        .map(|((sample, identity), (index, device))| {
            let labels = labels(facts, identity, index, device);
            Labelled { sample, labels }
        })
        .collect();
    for family in FAMILIES.iter().filter(|family| facts.options.extended || !family.extended) {
        let mut out = page.family(family.name, family.help, family.kind);
        for gpu in &gpus {
            out.add(&gpu.labels, family.value(gpu.sample, facts.links));
        }
    }
    for family in OWN {
        let mut out = page.family(family.name, family.help, family.kind);
        for gpu in &gpus {
            let labels = gpu.labels.iter().filter(|(name, _)| OWN_LABELS.contains(name));
            let labels: Vec<_> = labels.copied().collect();
            out.add(&labels, family.value(gpu.sample, facts.links));
        }
    }
    let out = page.family(
        "DCGM_EXP_XID_ERRORS_COUNT",
        "Count of XID errors within the last five minutes, by code.",
        Kind::Gauge,
    );
    add_counts(out, &gpus, "xid", |gpu| {
        let codes = gpu.recent_xids.iter().map(|(xid, count)| (xid.to_string(), *count));
        gpu.hears_xids.then(|| codes.collect())
    });
    if facts.options.extended {
        let out = page.family(
            "DCGM_EXP_CLOCK_EVENTS_COUNT",
            "Count of readings within the last five minutes that had low clocks, by reason.",
            Kind::Gauge,
        );
        add_counts(out, &gpus, "clock_event", |gpu| {
            let counts = CLOCK_EVENTS.iter().zip(gpu.clock_events?);
            let seen = counts.filter(|(_, count)| *count > 0);
            Some(seen.map(|(event, count)| ((*event).to_owned(), count.into())).collect())
        });
        add_peers(page, facts, &gpus);
    }
}

/// Adds what NVLink is between each two GPUs of this node.
fn add_peers(page: &mut Page, facts: &Facts<'_>, gpus: &[Labelled<'_>]) {
    let mut out = page.family(
        "DCGM_EXP_P2P_STATUS",
        "Whether NVLink leads to the other GPU (number of nvmlGpuP2PStatus_t, 0 is yes).",
        Kind::Gauge,
    );
    for gpu in gpus {
        for peer in gpu.sample.peers.iter() {
            if !facts.inventory.gpus.iter().any(|known| known.index == peer.index) {
                continue;
            }
            let (number, word) = p2p(peer.nvlink);
            let index = peer.index.to_string();
            let mut labels = gpu.labels.clone();
            labels.extend([("peer_gpu", index.as_str()), ("link_status", word)]);
            out.add(&labels, number);
        }
    }
}

/// The number of nvmlGpuP2PStatus_t, and dcgm-exporter's word.
fn p2p(status: P2pStatus) -> (f64, &'static str) {
    match status {
        P2pStatus::Ok => (0.0, "OK"),
        P2pStatus::ChipsetNotSupported => (1.0, "ChipsetNotSupported"),
        P2pStatus::GpuNotSupported => (2.0, "GPUNotSupported"),
        P2pStatus::TopologyNotSupported => (3.0, "TopologyNotSupported"),
        P2pStatus::DisabledByRegKey => (4.0, "DisabledByRegKey"),
        P2pStatus::NotSupported => (5.0, "NotSupported"),
        P2pStatus::Unknown => (6.0, "Unknown"),
    }
}

/// Adds what each GPU counted within the window, by the value of a label. Where that is nothing there is a 0
/// without it, in the shape of dcgm-exporter's; a GPU that does not count has none.
fn add_counts(
    mut out: exposition::Family<'_>,
    gpus: &[Labelled<'_>],
    label: &'static str,
    counts: impl Fn(&GpuSample) -> Option<Vec<(String, u32)>>,
) {
    let window = WINDOW_MS.to_string();
    for gpu in gpus {
        let Some(counts) = counts(gpu.sample) else { continue };
        let mut labels = gpu.labels.clone();
        labels.push(("window_size_in_ms", &window));
        if counts.is_empty() {
            out.add(&labels, 0.0);
        }
        for (value, count) in &counts {
            let mut labels = labels.clone();
            labels.push((label, value));
            out.add(&labels, f64::from(*count));
        }
    }
}

fn labels<'a>(
    facts: &'a Facts<'_>,
    gpu: &'a GpuIdentity,
    index: &'a str,
    device: &'a str,
) -> Vec<(&'static str, &'a str)> {
    let hostname = facts.inventory.hostname.as_str();
    let mut labels = vec![("gpu", index), ("UUID", gpu.uuid.0.as_str())];
    labels.extend(gpu.pci_bus_id.as_deref().map(|address| ("pci_bus_id", address)));
    labels.extend([("device", device), ("modelName", gpu.name.as_str()), ("hostname", hostname)]);
    if facts.options.compat_hostname_label {
        labels.push(("Hostname", hostname));
    }
    let driver = facts.inventory.versions.iter().find(|(name, _)| name == "driver");
    labels.extend(driver.map(|(_, version)| ("DCGM_FI_DRIVER_VERSION", version.as_str())));
    let holder = facts.holders.get(&GpuId(gpu.uuid.0.clone()));
    let job = holder.and_then(|holder| holder.job.as_ref());
    labels.extend(job.map(|job| ("hpc_job", job.as_str())));
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_does_not_answer_takes_nothing_back() {
        let told = LinksTold::default();
        let link = |number, replays| Link { number, replays, ..Link::default() };
        let gpu = |links: Vec<Link>| GpuSample {
            uuid: "GPU-a".to_owned(),
            links: Some(links),
            ..GpuSample::default()
        };
        let mut sums = Vec::new();
        for links in [
            vec![link(0, None)],
            vec![link(0, Some(7)), link(1, Some(20))],
            vec![link(0, Some(8)), link(1, None)],
            vec![link(0, Some(9))],
            vec![link(0, None), link(1, None)],
            vec![link(0, Some(9)), link(1, Some(21))],
        ] {
            sums.push(told.sum(&gpu(links), "replays", |link| link.replays));
        }
        assert_eq!(sums, [None, Some(27.0), Some(28.0), Some(29.0), None, Some(30.0)]);
        // Another family, and another GPU, count for themselves.
        assert_eq!(told.sum(&gpu(vec![link(0, Some(1))]), "crc", |link| link.replays), Some(1.0));
    }
}
