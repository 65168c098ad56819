//! Encoding and decoding of the frames that are sent most, beside a copy of as many bytes.

use std::net::IpAddr;
use std::process::ExitCode;

use gangline_benches::measure::{Pace, RUNS, Series, run_function};
use gangline_benches::program;
use gangline_benches::table::{Table, digits, duration};
use gangline_common::ids::{
    Epoch, GangId, Generation, GpuId, JobId, MemberId, MemberKey, PortBlock,
};
use gangline_common::wire::WireError;
use gangline_common::wire::frame::Frame;
use gangline_common::wire::v1::{
    AgentMessage, Assignment, CollectorSample, CoordinatorMessage, DesiredGang, GpuSample,
    Heartbeat, HostSample, Launcher, MemberAssignment, MemberReport, MemberState, NodeReport,
    NodeSample, OnDisconnect, Order, PortSample, Secret,
};

const PACE: Pace = Pace { batches: 400, calls: 128 };
const MEMBERS: u32 = 64;
const GPUS: u32 = 8;
const PORTS: u32 = 8;

fn main() -> ExitCode {
    program::run("wire", bench)
}

fn bench() -> anyhow::Result<()> {
    let epoch = Epoch { era: 3, n: 17 };
    let beat = AgentMessage::Heartbeat(Heartbeat { sequence: 86_400, held: generation() });
    let report = AgentMessage::Report(report(epoch)?);
    let desired = CoordinatorMessage::DesiredGang(Box::new(desired(epoch)?));
    let sample = sample();
    let mut table = Table::new(&[
        "frame",
        "bytes",
        "encode",
        "p99",
        "medians of the runs",
        "decode",
        "p99",
        "medians of the runs",
        "memcpy",
        "encode ratio",
        "decode ratio",
    ]);
    row(&mut table, "Heartbeat", || beat.to_frame(), AgentMessage::from_frame)?;
    row(&mut table, "Report, 64 members", || report.to_frame(), AgentMessage::from_frame)?;
    let assignment = "DesiredGang, 64 ranks, 8 GPUs";
    row(&mut table, assignment, || desired.to_frame(), CoordinatorMessage::from_frame)?;
    row(&mut table, "Sample, 8 GPUs, 8 ports", || sample.to_frame(), NodeSample::from_frame)?;
    println!("{table}");
    println!(
        "Encode: message to the bytes on the wire. Decode: those bytes to the message. p99 is over \
         means of {} calls.",
        PACE.calls
    );
    Ok(())
}

fn row<T>(
    table: &mut Table,
    name: &str,
    encode: impl Fn() -> Result<Frame, WireError>,
    decode: impl Fn(&Frame) -> Result<T, WireError>,
) -> anyhow::Result<()> {
    let bytes = encode()?.to_bytes();
    read(&bytes, &decode)?;
    let (mut encoded, mut decoded, mut copied) =
        (Series::default(), Series::default(), Series::default());
    for _ in 0..RUNS {
        run_function(&mut encoded, PACE, || encode().map(|frame| frame.to_bytes()))?;
        run_function(&mut decoded, PACE, || read(std::hint::black_box(&bytes), &decode))?;
        let mut target = vec![0; bytes.len()];
        run_function(&mut copied, PACE, || {
            std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&bytes));
        })?;
    }
    let spread = |series: &Series| {
        let (low, high) = series.spread();
        format!("{} to {}", duration(low), duration(high))
    };
    let ratio = |series: &Series| format!("{} x", digits(series.median() / copied.median()));
    table.row(vec![
        name.to_owned(),
        bytes.len().to_string(),
        duration(encoded.median()),
        duration(encoded.at(0.99)),
        spread(&encoded),
        duration(decoded.median()),
        duration(decoded.at(0.99)),
        spread(&decoded),
        duration(copied.median()),
        ratio(&encoded),
        ratio(&decoded),
    ]);
    Ok(())
}

/// The bytes of one frame to its message.
fn read<T>(bytes: &[u8], decode: &impl Fn(&Frame) -> Result<T, WireError>) -> anyhow::Result<T> {
    match Frame::split_first(bytes)? {
        Some((frame, [])) => Ok(decode(&frame)?),
        Some(_) | None => anyhow::bail!("not exactly one frame"),
    }
}

fn generation() -> Generation {
    Generation { era: 3, n: 4711 }
}

fn report(epoch: Epoch) -> anyhow::Result<NodeReport> {
    let members = (0..MEMBERS).map(|number| {
        let gang = GangId::new(format!("g-7f3k{number:02}"))?;
        let key = MemberKey { gang, epoch, member: MemberId::Rank(0) };
        let state = MemberState::Running { pid: 40_000 + number };
        let guests = Vec::new();
        Ok(MemberReport { key, state, guests, checkpoint: None, usage: None })
    });
    let members = members.collect::<anyhow::Result<_>>()?;
    Ok(NodeReport { held: generation(), members, gangs: Vec::new() })
}

/// One node's part of a gang of 64 nodes, with what a real job carries.
fn desired(epoch: Epoch) -> anyhow::Result<DesiredGang> {
    let env = (0..20).map(|n| (format!("VARIABLE_{n}"), format!("value of variable {n}")));
    let spec = r#"{"command":["python","-m","train"],"resources":{"nnodes":64}}"#.repeat(8);
    let assignment = Assignment {
        job: JobId::new("j-7f3k2")?,
        attempt: 2,
        job_name: "grpo-llama".to_owned(),
        project: "rlhf".to_owned(),
        launcher: Launcher::Command,
        nnodes: MEMBERS,
        gpus_per_node: GPUS,
        addresses: (0..MEMBERS).map(|n| IpAddr::from([10, 20, 0, n as u8])).collect(),
        head_address: IpAddr::from([10, 20, 0, 0]),
        head_ports: PortBlock { base: 20_000, size: 344 },
        members: vec![MemberAssignment {
            member: MemberId::Rank(0),
            gpus: (0..GPUS).map(gpu).collect(),
            cpus_milli: 128_000,
            memory_bytes: 1 << 40,
            ports: PortBlock { base: 20_000, size: 344 },
        }],
        entrypoints: Vec::new(),
        guests: Vec::new(),
        argv: ["python", "-m", "train", "--config", "configs/grpo-llama-70b.yaml"]
            .map(Into::into)
            .to_vec(),
        env: env.collect(),
        workdir: Some("/mnt/shared/code/train".to_owned()),
        code: None,
        job_directory: Some("/mnt/shared/jobs/j-7f3k2".to_owned()),
        checkpoint_directory: Some("/mnt/shared/jobs/j-7f3k2/checkpoints".to_owned()),
        directories: Vec::new(),
        config_files: vec![
            ("spec.json".to_owned(), spec),
            ("submit.txt".to_owned(), "gangline submit grpo.yaml --set nnodes=64".to_owned()),
        ],
        grace_ms: 30_000,
        start_timeout_ms: 300_000,
        on_disconnect: OnDisconnect::Fence { after_ms: 60_000 },
        auth_token: Secret("6b".repeat(32)),
        run_as: None,
    };
    Ok(DesiredGang {
        gang: GangId::new("g-7f3k2")?,
        epoch,
        order: Order::Run(Box::new(assignment)),
    })
}

fn gpu(index: u32) -> GpuId {
    GpuId(format!("GPU-7f3a2c10-5b7e-4c1a-9f00-{index:012x}"))
}

fn sample() -> NodeSample {
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
        wall_ms: 1_800_000_000_000,
        dropped: 0,
        interval_ms: 1000,
        host,
        gpus: gpus.collect(),
        ports: ports.collect(),
        collectors: collectors.to_vec(),
    }
}
