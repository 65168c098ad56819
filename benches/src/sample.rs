//! A sample as a large node sends it.

use gangline_common::ids::GpuId;
use gangline_common::wire::v1::{CollectorSample, GpuSample, HostSample, NodeSample, PortSample};

pub const GPUS: u32 = 8;
const PORTS: u32 = 8;

/// Name of a GPU.
pub fn gpu(index: u32) -> GpuId {
    GpuId(format!("GPU-7f3a2c10-5b7e-4c1a-9f00-{index:012x}"))
}

/// A sample with everything in it, of a node with eight GPUs and eight ports.
pub fn full(wall_ms: u64) -> NodeSample {
    let host = HostSample {
        cpu_busy_pct: Some(37.5),
        memory_used_bytes: Some(412 << 30),
        memory_total_bytes: Some(1 << 40),
        load1: Some(61.2),
        shm_free_bytes: Some(60 << 30),
        cpu_pressure_pct: Some(1.25),
        memory_pressure_pct: Some(0.0),
        io_pressure_pct: Some(0.5),
        oom_kills: Some(0),
        pids: Some(2317),
        network_received_bytes: Some(7_312_468_112_004),
        network_sent_bytes: Some(6_912_468_112_004),
        state_free_bytes: Some(812 << 30),
        temp_free_bytes: Some(812 << 30),
        shared_free_bytes: Some(91 << 40),
        clock_offset_ms: Some(-2),
        agent_memory_bytes: Some(9 << 20),
        agent_cpu_pct: Some(0.25),
    };
    let gpus = (0..GPUS).map(|index| GpuSample {
        utilization_pct: Some(97.0),
        memory_utilization_pct: Some(54.0),
        memory_used_bytes: Some(71 << 30),
        memory_total_bytes: Some(80 << 30),
        temperature_c: Some(64.0),
        memory_temperature_c: Some(81.0),
        power_w: Some(688.4),
        power_limit_w: Some(700.0),
        energy_mj: Some(912_468_112_004),
        sm_clock_mhz: Some(1755),
        memory_clock_mhz: Some(2619),
        clock_reasons: Some(4),
        sm_active: Some(0.91),
        tensor_active: Some(0.47),
        dram_active: Some(0.62),
        pcie_received_bytes_per_s: Some(1_312_468_112),
        pcie_sent_bytes_per_s: Some(912_468_112),
        nvlink_received_bytes_per_s: Some(131_312_468_112),
        nvlink_sent_bytes_per_s: Some(130_912_468_112),
        nvlinks_down: Some(0),
        nvlink_errors: Some(0),
        ecc_corrected: Some(3),
        ecc_uncorrected: Some(0),
        pcie_replays: Some(0),
        processes: Some(1),
        foreign_processes: Some(0),
        ..GpuSample::unread(gpu(index))
    });
    let ports = (0..PORTS).map(|index| PortSample {
        device: format!("mlx5_{index}"),
        port: 1,
        ethernet: Some(false),
        state: Some(4),
        physical_state: Some(5),
        rate_bytes_per_s: Some(50_000_000_000),
        received_bytes: Some(87_312_468_112_004),
        sent_bytes: Some(87_912_468_112_004),
        errors: Some(0),
        link_downed: Some(1),
        congestion: Some(468_112_004),
    });
    let names = ["gpu", "rdma", "host", "storage", "shared", "tasks", "kernel"];
    let collectors = names.map(|name| CollectorSample {
        name: name.to_owned(),
        success: true,
        duration_us: 350,
        age_ms: Some(120),
    });
    NodeSample {
        wall_ms,
        dropped: 0,
        interval_ms: 1000,
        host,
        gpus: gpus.collect(),
        ports: ports.collect(),
        collectors: collectors.to_vec(),
    }
}
