//! The readings that are kept for charts: their names, and how each fits into one to three bytes.
//!
//! A ring holds hours of thousands of nodes, so a reading is not kept as it came: a percentage is
//! known to half of one, power to a tenth of a watt, a rate to 1 part in 256.

use gangline_common::wire::v1::{GpuSample, NodeSample};

/// How a number becomes bytes. Out of range is the nearest that fits; the largest code is "absent".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// 0 to 127 in halves; one byte.
    Percent,
    /// 0 to 1 in steps of 1/250; one byte.
    Share,
    /// 0 to 254 in whole steps; one byte.
    Small,
    /// 0 to 65,534 in whole steps; two bytes.
    Whole,
    /// 0 to 6,553.4 in tenths; two bytes.
    Tenths,
    /// Bytes in whole MiB, up to 16 TiB; three bytes.
    Mebibytes,
    /// Any size, 1 part in 256: the upper half of a single-precision float; two bytes.
    Rough,
}

const MIB: f64 = 1_048_576.0;
const NO_MEBIBYTES: u32 = 0x00ff_ffff;

impl Packing {
    const fn bytes(self) -> usize {
        match self {
            Packing::Percent | Packing::Share | Packing::Small => 1,
            Packing::Whole | Packing::Tenths | Packing::Rough => 2,
            Packing::Mebibytes => 3,
        }
    }

    /// `as` takes what does not fit to the nearest end.
    fn pack(self, value: Option<f64>, out: &mut Vec<u8>) {
        let value = value.filter(|value| value.is_finite());
        let small =
            |scale: f64| value.map_or(u8::MAX, |value| (value * scale).round().min(254.0) as u8);
        let middle = |scale: f64| {
            value.map_or(u16::MAX, |value| (value * scale).round().min(65_534.0) as u16)
        };
        match self {
            Packing::Percent => out.push(small(2.0)),
            Packing::Share => out.push(small(250.0)),
            Packing::Small => out.push(small(1.0)),
            Packing::Whole => out.extend(middle(1.0).to_le_bytes()),
            Packing::Tenths => out.extend(middle(10.0).to_le_bytes()),
            Packing::Mebibytes => {
                let largest = f64::from(NO_MEBIBYTES - 1);
                let mib = value.map_or(NO_MEBIBYTES, |v| (v / MIB).round().min(largest) as u32);
                let [a, b, c, _] = mib.to_le_bytes();
                out.extend([a, b, c]);
            }
            Packing::Rough => {
                let rounded = |value: f64| {
                    let bits = (value as f32).min(1e38).to_bits();
                    (bits.saturating_add(0x8000) >> 16) as u16
                };
                out.extend(value.map_or(u16::MAX, rounded).to_le_bytes());
            }
        }
    }

    /// The number at the beginning of `bytes`.
    fn unpack(self, bytes: &[u8]) -> Option<f64> {
        let small = |scale: f64| {
            let code = *bytes.first()?;
            (code != u8::MAX).then(|| f64::from(code) / scale)
        };
        let code = || Some(u16::from_le_bytes([*bytes.first()?, *bytes.get(1)?]));
        let middle = |scale: f64| {
            code().filter(|code| *code != u16::MAX).map(|code| f64::from(code) / scale)
        };
        match self {
            Packing::Percent => small(2.0),
            Packing::Share => small(250.0),
            Packing::Small => small(1.0),
            Packing::Whole => middle(1.0),
            Packing::Tenths => middle(10.0),
            Packing::Mebibytes => {
                let code = u32::from_le_bytes([*bytes.first()?, *bytes.get(1)?, *bytes.get(2)?, 0]);
                (code != NO_MEBIBYTES).then(|| f64::from(code) * MIB)
            }
            Packing::Rough => code()
                .filter(|code| *code != u16::MAX)
                .map(|code| f64::from(f32::from_bits(u32::from(code) << 16))),
        }
    }
}

/// One kind of reading.
#[derive(Debug, Clone, Copy)]
pub struct Series {
    /// As in the API; the unit is its end.
    pub name: &'static str,
    packing: Packing,
}

/// Of a host.
pub const HOST: [Series; 5] = [
    Series { name: "cpu_busy_pct", packing: Packing::Percent },
    Series { name: "memory_used_bytes", packing: Packing::Mebibytes },
    Series { name: "load1", packing: Packing::Rough },
    Series { name: "network_bytes_per_s", packing: Packing::Rough },
    Series { name: "rdma_bytes_per_s", packing: Packing::Rough },
];

/// Of a GPU.
pub const GPU: [Series; 8] = [
    Series { name: "utilization_pct", packing: Packing::Percent },
    Series { name: "memory_used_bytes", packing: Packing::Mebibytes },
    Series { name: "temperature_c", packing: Packing::Small },
    Series { name: "power_w", packing: Packing::Tenths },
    Series { name: "sm_clock_mhz", packing: Packing::Whole },
    Series { name: "sm_active", packing: Packing::Share },
    Series { name: "tensor_active", packing: Packing::Share },
    Series { name: "nvlink_bytes_per_s", packing: Packing::Rough },
];

/// Bytes of the readings of a host and of one GPU.
pub(super) const HOST_BYTES: usize = packed_bytes(&HOST);
pub(super) const GPU_BYTES: usize = packed_bytes(&GPU);

const fn packed_bytes(series: &[Series]) -> usize {
    let mut bytes = 0;
    let mut index = 0;
    while index < series.len() {
        bytes += series[index].packing.bytes();
        index += 1;
    }
    bytes
}

pub type HostReading = [Option<f64>; HOST.len()];
pub type GpuReading = [Option<f64>; GPU.len()];

pub(super) fn pack(series: &[Series], values: &[Option<f64>], out: &mut Vec<u8>) {
    for (series, value) in series.iter().zip(values) {
        series.packing.pack(*value, out);
    }
}

/// `bytes` are of the right length, or what lacks is absent.
pub(super) fn unpack(series: &[Series], mut bytes: &[u8], values: &mut [Option<f64>]) {
    for (series, value) in series.iter().zip(values) {
        *value = series.packing.unpack(bytes);
        bytes = bytes.get(series.packing.bytes()..).unwrap_or_default();
    }
}

/// What of a sample is kept for charts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    pub host: HostReading,
    /// In the order of the sample's GPUs.
    pub gpus: Vec<GpuReading>,
}

/// What is asked of a sample after it came, and not only by who looks at the node: what rates are made of,
/// and its clock.
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// What the node's clock is ahead.
    pub clock_offset_ms: Option<i64>,
    wall_ms: u64,
    network_bytes: Option<u64>,
    rdma_bytes: Option<u64>,
}

impl Totals {
    pub fn of(sample: &NodeSample) -> Self {
        Totals {
            clock_offset_ms: sample.host.clock_offset_ms,
            wall_ms: sample.wall_ms,
            network_bytes: network_bytes(sample),
            rdma_bytes: rdma_bytes(sample),
        }
    }
}

impl Reading {
    /// Rates are from the sample before, by the node's own clock. `now` is of the sample.
    pub fn of(sample: &NodeSample, now: &Totals, before: Option<&Totals>) -> Self {
        let host = &sample.host;
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let rate = |counter: fn(&Totals) -> Option<u64>| {
            let before = before?;
            let ms = now.wall_ms.checked_sub(before.wall_ms).filter(|ms| *ms > 0)?;
            // A counter that went backwards began anew.
            let more = counter(now)?.checked_sub(counter(before)?)?;
            Some(more as f64 * 1000.0 / ms as f64)
        };
        Reading {
            host: [
                host.cpu_busy_pct.map(f64::from),
                bytes(host.memory_used_bytes),
                host.load1.map(f64::from),
                rate(|totals| totals.network_bytes),
                rate(|totals| totals.rdma_bytes),
            ],
            gpus: sample.gpus.iter().map(gpu_reading).collect(),
        }
    }
}

fn gpu_reading(gpu: &GpuSample) -> GpuReading {
    [
        gpu.utilization_pct.map(f64::from),
        gpu.memory_used_bytes.map(|bytes| bytes as f64),
        gpu.temperature_c.map(f64::from),
        gpu.power_w.map(f64::from),
        gpu.sm_clock_mhz.map(f64::from),
        gpu.sm_active.map(f64::from),
        gpu.tensor_active.map(f64::from),
        both(gpu.nvlink_received_bytes_per_s, gpu.nvlink_sent_bytes_per_s).map(|b| b as f64),
    ]
}

/// In and out together; half of it is better than nothing.
fn both(received: Option<u64>, sent: Option<u64>) -> Option<u64> {
    match (received, sent) {
        (Some(received), Some(sent)) => Some(received.saturating_add(sent)),
        (one, other) => one.or(other),
    }
}

fn network_bytes(sample: &NodeSample) -> Option<u64> {
    both(sample.host.network_received_bytes, sample.host.network_sent_bytes)
}

/// Of all ports; absent when no port tells.
fn rdma_bytes(sample: &NodeSample) -> Option<u64> {
    let ports = sample.ports.iter().map(|port| both(port.received_bytes, port.sent_bytes));
    ports.fold(None, both)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gangline_common::wire::v1::{HostSample, PortSample};

    fn through(packing: Packing, value: Option<f64>) -> Option<f64> {
        let mut bytes = Vec::new();
        packing.pack(value, &mut bytes);
        assert_eq!(bytes.len(), packing.bytes());
        packing.unpack(&bytes)
    }

    const ALL: [Packing; 7] = [
        Packing::Percent,
        Packing::Share,
        Packing::Small,
        Packing::Whole,
        Packing::Tenths,
        Packing::Mebibytes,
        Packing::Rough,
    ];

    #[test]
    fn numbers_come_back_as_near_as_promised() {
        assert_eq!(through(Packing::Percent, Some(83.4)), Some(83.5));
        assert_eq!(through(Packing::Share, Some(0.5)), Some(0.5));
        assert_eq!(through(Packing::Small, Some(64.0)), Some(64.0));
        assert_eq!(through(Packing::Whole, Some(1980.0)), Some(1980.0));
        assert_eq!(through(Packing::Tenths, Some(699.94)), Some(699.9));
        assert_eq!(through(Packing::Mebibytes, Some(79.0 * MIB)), Some(79.0 * MIB));
        for value in [0.0, 0.07, 1.5, 48e9, 3.2e12] {
            let back = through(Packing::Rough, Some(value)).unwrap();
            assert!((back - value).abs() <= value / 256.0, "{value} came back as {back}");
        }
    }

    fn sample(wall_ms: u64, network: u64, ports: &[u64]) -> NodeSample {
        let port = |bytes: &u64| PortSample {
            device: "mlx5_0".to_owned(),
            port: 1,
            ethernet: None,
            state: None,
            physical_state: None,
            rate_bytes_per_s: None,
            received_bytes: Some(*bytes),
            sent_bytes: Some(*bytes),
            errors: None,
            link_downed: None,
            congestion: None,
        };
        let host = HostSample { network_sent_bytes: Some(network), ..HostSample::default() };
        let (gpus, collectors) = (Vec::new(), Vec::new());
        let ports = ports.iter().map(port).collect();
        NodeSample { wall_ms, dropped: 0, interval_ms: 1000, host, gpus, ports, collectors }
    }

    #[test]
    fn rates_are_between_two_samples() {
        let rates = |old: &NodeSample, new: &NodeSample| {
            let host = Reading::of(new, &Totals::of(new), Some(&Totals::of(old))).host;
            (host[3], host[4])
        };
        let old = sample(1_000, 500, &[1000, 0]);
        assert_eq!(rates(&old, &sample(3_000, 900, &[1500, 500])), (Some(200.0), Some(1000.0)));
        // A counter that began anew, a clock that went back, ports that are gone.
        assert_eq!(rates(&old, &sample(2_000, 0, &[2000, 0])), (None, Some(2000.0)));
        assert_eq!(rates(&old, &sample(1_000, 900, &[1500, 500])), (None, None));
        assert_eq!(rates(&old, &sample(2_000, 500, &[])), (Some(0.0), None));
        assert_eq!(Reading::of(&old, &Totals::of(&old), None).host[3], None);
    }

    #[test]
    fn absent_is_absent_and_what_does_not_fit_is_the_nearest() {
        for packing in ALL {
            assert_eq!(through(packing, None), None, "{packing:?}");
            assert_eq!(through(packing, Some(f64::NAN)), None, "{packing:?}");
            assert_eq!(through(packing, Some(0.0)), Some(0.0), "{packing:?}");
            assert!(through(packing, Some(1e30)).is_some_and(|v| v > 1.0), "{packing:?}");
            let negative = through(packing, Some(-5.0)).unwrap();
            assert!(negative <= 0.0, "{packing:?}: {negative}");
            assert_eq!(packing.unpack(&[]), None, "{packing:?}");
        }
    }
}
