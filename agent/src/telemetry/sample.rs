//! What goes over the wire of everything that was read.

use gangline_common::ids::GpuId;
use gangline_common::wire::v1;

use crate::collectors::Readings;
use crate::collectors::accelerator::{GpuSample, Link, Owner, Profile};
use crate::collectors::host::{HostSample, Interface};
use crate::collectors::rdma::{LinkLayer, Port, PortState, RdmaReading};
use crate::collectors::slot::Status;
use crate::collectors::storage::Room;

/// Counters of RDMA ports count words of this many bytes.
const WORD_BYTES: u64 = 4;
/// Errors of a port.
const ERRORS: [&str; 7] = [
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "rnr_nak_retry_err",
    "req_cqe_error",
    "resp_cqe_error",
];
/// Signs of congestion: of RoCE, and of InfiniBand.
const CONGESTION_ETHERNET: [&str; 3] =
    ["np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled"];
const CONGESTION_INFINIBAND: [&str; 1] = ["port_xmit_wait"];

/// The sample of these readings. What is old is absent, as what failed is.
pub(super) fn of(readings: &Readings) -> v1::NodeSample {
    let gpus = readings.gpus.as_ref().and_then(|latest| latest.fresh());
    let statuses = readings.collectors();
    v1::NodeSample {
        wall_ms: readings.at.wall_ms,
        dropped: 0,
        interval_ms: readings.interval_ms,
        host: host(readings),
        gpus: gpus.into_iter().flatten().map(gpu).collect(),
        ports: readings.rdma.fresh().map(ports).unwrap_or_default(),
        collectors: statuses.iter().map(collector).collect(),
    }
}

fn host(readings: &Readings) -> v1::HostSample {
    let sample = readings.host.fresh().cloned().unwrap_or_default();
    let storage = readings.storage.fresh();
    let shared = readings.shared.as_ref().and_then(|latest| latest.fresh());
    let free = |room: Option<&Room>| room.map(|room| room.free_bytes);
    let traffic = |of: fn(&Interface) -> u64| traffic(&sample, of);
    v1::HostSample {
        cpu_busy_pct: sample.cpu_busy_pct,
        memory_used_bytes: sample.mem_used_bytes,
        memory_total_bytes: sample.mem_total_bytes,
        load1: sample.load1,
        shm_free_bytes: sample.shm_free_bytes,
        cpu_pressure_pct: sample.cpu_pressure.map(|pressure| pressure.some_avg10_pct),
        memory_pressure_pct: sample.memory_pressure.and_then(|pressure| pressure.full_avg10_pct),
        io_pressure_pct: sample.io_pressure.and_then(|pressure| pressure.full_avg10_pct),
        oom_kills: sample.oom_kills,
        pids: sample.pids,
        network_received_bytes: traffic(|interface| interface.received_bytes),
        network_sent_bytes: traffic(|interface| interface.sent_bytes),
        state_free_bytes: free(storage.and_then(|reading| reading.state.as_ref())),
        temp_free_bytes: free(storage.and_then(|reading| reading.temp.as_ref())),
        shared_free_bytes: free(shared.and_then(|reading| reading.room.as_ref())),
        clock_offset_ms: readings.clock.map(|clock| clock.ahead_ms),
        agent_memory_bytes: sample.agent.memory_bytes,
        agent_cpu_pct: sample.agent.cpu_pct,
    }
}

fn traffic(sample: &HostSample, of: fn(&Interface) -> u64) -> Option<u64> {
    let all = sample.interfaces.iter().map(of);
    (!sample.interfaces.is_empty()).then(|| all.fold(0, u64::saturating_add))
}

fn gpu(sample: &GpuSample) -> v1::GpuSample {
    let profile = sample.profile.unwrap_or_default();
    let rate = |of: fn(&Profile) -> Option<u64>| of(&profile);
    let links = sample.links.as_deref();
    let foreign = |owner: &Owner| matches!(owner, Owner::Foreign { .. });
    let processes = sample.processes.as_deref();
    v1::GpuSample {
        uuid: GpuId(sample.uuid.clone()),
        lost: sample.lost,
        utilization_pct: sample.utilization_pct,
        memory_utilization_pct: sample.memory_utilization_pct,
        memory_used_bytes: sample.memory_used_bytes,
        memory_total_bytes: sample.memory_total_bytes,
        temperature_c: sample.temperature_c,
        memory_temperature_c: sample.memory_temperature_c,
        power_w: sample.power_w,
        power_limit_w: sample.power_limit_w,
        energy_mj: sample.energy_mj,
        sm_clock_mhz: sample.sm_clock_mhz,
        memory_clock_mhz: sample.mem_clock_mhz,
        clock_reasons: sample.clock_reasons,
        sm_active: profile.sm_active,
        tensor_active: profile.tensor_active,
        dram_active: profile.dram_active,
        pcie_received_bytes_per_s: rate(|profile| profile.pcie_received_bytes_per_s),
        pcie_sent_bytes_per_s: rate(|profile| profile.pcie_sent_bytes_per_s),
        nvlink_received_bytes_per_s: rate(|profile| profile.nvlink_received_bytes_per_s),
        nvlink_sent_bytes_per_s: rate(|profile| profile.nvlink_sent_bytes_per_s),
        nvlinks_down: links
            .map(|links| count(links.iter().filter(|link| link.active == Some(false)).count())),
        nvlink_errors: links.and_then(link_errors),
        ecc_corrected: sample.ecc.volatile.corrected,
        ecc_uncorrected: sample.ecc.volatile.uncorrected,
        pcie_replays: sample.pcie.replays,
        last_xid: sample.last_xid,
        xids: sample.xids.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count)),
        processes: processes.map(|all| count(all.len())),
        foreign_processes: processes
            .map(|all| count(all.iter().filter(|process| foreign(&process.owner)).count())),
    }
}

fn link_errors(links: &[Link]) -> Option<u64> {
    let of = |link: &Link| [link.replays, link.recoveries, link.crc_flit, link.crc_data];
    sum(links.iter().flat_map(of))
}

/// The sum of those that are there; `None` without any.
fn sum(numbers: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    numbers.flatten().reduce(u64::saturating_add)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn ports(reading: &RdmaReading) -> Vec<v1::PortSample> {
    let of = |name: &str, port: &Port| {
        let value = |counter: &str| port.counters.get(counter).map(|counter| counter.value);
        let bytes = |counter: &str| value(counter).and_then(|words| words.checked_mul(WORD_BYTES));
        let congestion = match port.link_layer {
            Some(LinkLayer::Ethernet) => &CONGESTION_ETHERNET[..],
            Some(LinkLayer::InfiniBand) | None => &CONGESTION_INFINIBAND[..],
        };
        let number = |state: &Option<PortState>| state.as_ref().map(|state| state.number);
        v1::PortSample {
            device: name.to_owned(),
            port: port.number,
            ethernet: port.link_layer.map(|layer| layer == LinkLayer::Ethernet),
            state: number(&port.state),
            physical_state: number(&port.physical_state),
            rate_bytes_per_s: port.rate_bytes_per_s,
            received_bytes: bytes("port_rcv_data"),
            sent_bytes: bytes("port_xmit_data"),
            errors: sum(ERRORS.iter().map(|name| value(name))),
            link_downed: value("link_downed"),
            congestion: sum(congestion.iter().map(|name| value(name))),
        }
    };
    let all = reading.devices.iter();
    all.flat_map(|device| device.ports.iter().map(|port| of(&device.name, port))).collect()
}

fn collector(status: &Status) -> v1::CollectorSample {
    v1::CollectorSample {
        name: status.name.to_owned(),
        success: status.success(),
        duration_us: u32::try_from(status.duration.as_micros()).unwrap_or(u32::MAX),
        age_ms: status.age.map(|age| u32::try_from(age.as_millis()).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::accelerator::GpuProcess;
    use crate::collectors::rdma::{Counter, RdmaDevice};

    #[test]
    fn what_a_gpu_does_not_say_is_absent() {
        let bare = GpuSample { uuid: "GPU-a".to_owned(), ..GpuSample::default() };
        assert_eq!(gpu(&bare), v1::GpuSample::unread(GpuId("GPU-a".to_owned())));
    }

    #[test]
    fn links_processes_and_errors_are_summed() {
        let process = |owner| GpuProcess { pid: 1, used_bytes: None, owner };
        let link = |number, active| Link { number, active, ..Link::default() };
        let sample = GpuSample {
            links: Some(vec![
                Link { crc_data: Some(3), replays: Some(4), ..link(0, Some(true)) },
                link(1, Some(false)),
                link(2, None),
            ]),
            processes: Some(vec![process(Owner::Unknown), process(Owner::Foreign { uid: None })]),
            xids: vec![(31, 2), (79, 1)],
            ..GpuSample::default()
        };
        let sent = gpu(&sample);
        assert_eq!((sent.nvlinks_down, sent.nvlink_errors), (Some(1), Some(7)));
        assert_eq!((sent.processes, sent.foreign_processes, sent.xids), (Some(2), Some(1), 3));
        let silent = GpuSample { links: Some(vec![link(0, Some(true))]), ..GpuSample::default() };
        assert_eq!(gpu(&silent).nvlink_errors, None, "no counter is no error count");
    }

    #[test]
    fn ports_count_bytes_and_the_congestion_of_their_kind() {
        let counter = |value| Counter { value, ..Counter::default() };
        let counters = [("port_rcv_data", 5), ("np_cnp_sent", 7), ("port_xmit_wait", 9)];
        let port = |layer| Port {
            number: 1,
            link_layer: layer,
            counters: counters.map(|(name, value)| (name.to_owned(), counter(value))).into(),
            ..Port::default()
        };
        let device = |layer| RdmaDevice { ports: vec![port(layer)], ..RdmaDevice::default() };
        let devices = vec![device(Some(LinkLayer::Ethernet)), device(Some(LinkLayer::InfiniBand))];
        let sent = ports(&RdmaReading { devices, ..RdmaReading::default() });
        assert_eq!((sent[0].received_bytes, sent[0].sent_bytes), (Some(20), None));
        assert_eq!((sent[0].congestion, sent[1].congestion), (Some(7), Some(9)));
        assert_eq!((sent[0].errors, sent[0].link_downed), (None, None));
    }
}
