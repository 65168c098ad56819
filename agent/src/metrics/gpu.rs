//! GPUs under the names, labels and units of dcgm-exporter.

use gangline_common::exposition::{Kind, Page};
use gangline_common::ids::GpuId;
use gangline_common::wire::v1::GpuIdentity;

use super::Facts;
use crate::collectors::accelerator::{GpuSample, Link, Profile};

/// One family, and where its value comes from.
pub(super) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    /// Only with `metrics_extended`.
    pub extended: bool,
    read: fn(&GpuSample) -> Option<f64>,
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    read: fn(&GpuSample) -> Option<f64>,
) -> Family {
    Family { name, help, kind: Kind::Gauge, extended: false, read }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&GpuSample) -> Option<f64>,
) -> Family {
    Family { name, help, kind: Kind::Counter, extended: false, read }
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

/// The sum over all links that tell; absent when none does.
fn of_links(gpu: &GpuSample, of: fn(&Link) -> Option<u64>) -> Option<f64> {
    let told: Vec<u64> = gpu.links.iter().flatten().filter_map(of).collect();
    (!told.is_empty()).then(|| told.iter().fold(0u64, |sum, n| sum.saturating_add(*n)) as f64)
}

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
    extended(gauge("DCGM_FI_DEV_RETIRED_PENDING", "Whether pages wait for retirement.", |g| {
        g.retired?.pending.map(f64::from)
    })),
    extended(counter(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "Total number of NVLink flow-control CRC errors.",
        |g| of_links(g, |link| link.crc_flit),
    )),
    extended(counter(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "Total number of NVLink data CRC errors.",
        |g| of_links(g, |link| link.crc_data),
    )),
    extended(counter(
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "Total number of NVLink retries.",
        |g| of_links(g, |link| link.replays),
    )),
    extended(counter(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "Total number of NVLink recovery errors.",
        |g| of_links(g, |link| link.recoveries),
    )),
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
            out.add(&gpu.labels, (family.read)(gpu.sample));
        }
    }
    let mut out = page.family(
        "DCGM_EXP_XID_ERRORS_COUNT",
        "Count of XID errors since the agent started, by code.",
        Kind::Gauge,
    );
    for gpu in &gpus {
        for (xid, count) in &gpu.sample.xids {
            let code = xid.to_string();
            let mut labels = gpu.labels.clone();
            labels.push(("xid", &code));
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
