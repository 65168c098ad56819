//! Encoding and decoding of the frames that are sent most, beside a copy of as many bytes.

use std::net::IpAddr;
use std::process::ExitCode;

use gangline_benches::measure::{Pace, RUNS, Series, run_function};
use gangline_benches::program;
use gangline_benches::sample::{GPUS, full, gpu};
use gangline_benches::table::{Table, digits, duration};
use gangline_common::ids::{Epoch, GangId, Generation, JobId, MemberId, MemberKey, PortBlock};
use gangline_common::wire::WireError;
use gangline_common::wire::frame::Frame;
use gangline_common::wire::v1::{
    AgentMessage, Assignment, CoordinatorMessage, DesiredGang, Heartbeat, Launcher,
    MemberAssignment, MemberReport, MemberState, NodeReport, NodeSample, OnDisconnect, Order,
    Secret,
};

const PACE: Pace = Pace { batches: 400, calls: 128 };
const MEMBERS: u32 = 64;

fn main() -> ExitCode {
    program::run("wire", bench)
}

fn bench() -> anyhow::Result<()> {
    let epoch = Epoch { era: 3, n: 17 };
    let beat = AgentMessage::Heartbeat(Heartbeat { sequence: 86_400, held: generation() });
    let report = AgentMessage::Report(report(epoch)?);
    let desired = CoordinatorMessage::DesiredGang(Box::new(desired(epoch)?));
    let sample = full(1_800_000_000_000);
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
        Ok(MemberReport { key, state, guests, checkpoint: None, saved: None, usage: None })
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
        secret_names: Vec::new(),
        workdir: Some("/mnt/shared/code/train".to_owned()),
        code: None,
        job_directory: Some("/mnt/shared/jobs/j-7f3k2".to_owned()),
        checkpoint_directory: Some("/mnt/shared/jobs/j-7f3k2/checkpoints".to_owned()),
        checkpoint_keep: None,
        checkpoint_may_go: false,
        checkpoint_copy: false,
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
        log_files: Vec::new(),
        log_bytes: None,
    };
    Ok(DesiredGang {
        gang: GangId::new("g-7f3k2")?,
        epoch,
        order: Order::Run(Box::new(assignment)),
    })
}
