//! Samples of many nodes into one coordinator, a process of its own: processor time for each frame,
//! memory, and the delay until a watcher has the sample. Every agent is a connection with an identity of
//! its own that sends a full frame (8 GPUs, 8 ports) a second, and heartbeats. Beside it stands a sink
//! that takes the same frames over the same transport and does nothing with them.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use gangline_benches::agents::inventory;
use gangline_benches::floor::Sink;
use gangline_benches::measure::Series;
use gangline_benches::program;
use gangline_benches::sample::full;
use gangline_benches::table::{Table, digits, duration};
use gangline_benches::watcher::{Watcher, wall};
use gangline_common::ids::Generation;
use gangline_common::transport::{FrameSender, StreamKind};
use gangline_common::wire::frame::Frame;
use gangline_common::wire::v1::{AgentMessage, Heartbeat};
use gangline_fleet::build::binaries;
use gangline_fleet::fleet::{Fleet, FleetOptions};
use gangline_fleet::raw_agent::{RawAgent, hello};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Agents of each step, unless `GANGLINE_FAN_IN` names others, such as `250,5000`.
const AGENTS: [usize; 2] = [1000, 10_000];
/// Joins that are under way at a time.
const JOINING: usize = 16;
/// What each measurement takes, and what passes before it.
const WINDOW: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_secs(1);
/// While agents join, the others send no samples, and heartbeats less often than the second that a
/// coordinator asks for.
const JOINING_BEATS: Duration = Duration::from_secs(2);
/// Samples that carry a heartbeat, as those of real agents: each third, for samples are words themselves.
const SAMPLES_OF_A_BEAT: u64 = 3;
/// Clock ticks of `/proc/PID/stat` in a second, as on every Linux that this runs on.
const TICKS: f64 = 100.0;

fn main() -> ExitCode {
    program::run("fan_in", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(bench())
    })
}

fn steps() -> anyhow::Result<Vec<usize>> {
    match std::env::var("GANGLINE_FAN_IN") {
        Ok(text) => text.split(',').map(|count| Ok(count.trim().parse()?)).collect(),
        Err(_) => Ok(AGENTS.to_vec()),
    }
}

async fn bench() -> anyhow::Result<()> {
    let coordinator_config = "request_rate = 0\nsubmit_rate = 0\n".to_owned();
    let options = FleetOptions { coordinator_config, ..FleetOptions::default() };
    let fleet = Fleet::start(binaries(true).await?, options).await?;
    let pid = fleet.coordinator_id().context("no coordinator")?;
    let idle_mib = resident_mib(pid)?;
    let sending = Arc::new(Sending::default());
    let mut table = Table::new(&[
        "agents",
        "watchers",
        "frames/s",
        "one core",
        "per frame",
        "bare QUIC",
        "ratio",
        "memory",
        "per agent",
        "delay p50",
        "p99",
        "max",
    ]);
    let mut agents = 0;
    for count in steps()? {
        let bare = bare(count).await?;
        join(&fleet, agents..count, &sending).await?;
        agents = count;
        sending.sampling.store(true, Ordering::Relaxed);
        for watchers in [0, 1] {
            let row = measure(&fleet, pid, count, watchers, &sending).await?;
            let per_frame = row.cpu_s / row.frames as f64 * 1e9;
            let delay = |quantile: f64| match watchers {
                0 => "-".to_owned(),
                _ => duration(row.delay.at(quantile)),
            };
            let memory = resident_mib(pid)?;
            table.row(vec![
                count.to_string(),
                watchers.to_string(),
                digits(row.frames as f64 / WINDOW.as_secs_f64()),
                format!("{} %", digits(row.cpu_s / WINDOW.as_secs_f64() * 100.0)),
                duration(per_frame),
                duration(bare),
                format!("{} x", digits(per_frame / bare)),
                format!("{memory} MiB"),
                format!("{} KiB", memory.saturating_sub(idle_mib) * 1024 / count as u64),
                delay(0.5),
                delay(0.99),
                delay(1.0),
            ]);
        }
        sending.sampling.store(false, Ordering::Relaxed);
    }
    println!("{table}");
    println!(
        "A full frame has {} bytes. The coordinator had {idle_mib} MiB before the first agent. The delay is \
         from the moment at which a sample says that it was taken, in whole milliseconds, until the watcher \
         has read the event; the senders and the watcher run on the same cores as the coordinator.",
        full(0).to_frame()?.to_bytes().len()
    );
    Ok(())
}

/// What the agents do, and what they have done.
#[derive(Default)]
struct Sending {
    frames: AtomicU64,
    /// All have joined: samples are sent.
    sampling: AtomicBool,
}

/// Agents that join, connect and send until the bench ends.
async fn join(
    fleet: &Fleet,
    numbers: std::ops::Range<usize>,
    sending: &Arc<Sending>,
) -> anyhow::Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    let token: Arc<str> = fleet.join_token(u32::try_from(numbers.len())?, 3600).await?.into();
    let coordinator = fleet.quic();
    let refused = |refuse: gangline_common::wire::tlv::Refuse| anyhow::anyhow!(refuse.text);
    let own_token = fleet.join_token(1, 3600).await?;
    let first = RawAgent::join(coordinator, &own_token).await?.map_err(refused)?;
    // Its socket serves all: one for each would take more memory than the coordinator.
    let socket = first.socket()?;
    let mut joining: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for number in numbers {
        if joining.len() >= JOINING {
            joining.join_next().await.context("no join is under way")???;
        }
        let (token, sending, socket) = (token.clone(), sending.clone(), socket.clone());
        joining.spawn(async move {
            let agent = RawAgent::join(coordinator, &token).await?.map_err(refused)?;
            let name = format!("held{number}");
            let mut session = agent.connect_over(&socket, &hello(&name)).await?.map_err(refused)?;
            session.say(AgentMessage::Inventory(Box::new(inventory(&name, number)))).await?;
            let samples = session.connection.open_uni(StreamKind::Telemetry).await?;
            tokio::spawn(async move {
                if let Err(error) = serve(session, samples, number, &sending).await {
                    eprintln!("agent {number} has ended: {error:#}");
                }
            });
            Ok(())
        });
    }
    while let Some(joined) = joining.join_next().await {
        joined??;
    }
    Ok(())
}

async fn serve(
    session: gangline_fleet::raw_agent::RawSession,
    mut samples: FrameSender,
    number: usize,
    sending: &Sending,
) -> anyhow::Result<()> {
    let gangline_fleet::raw_agent::RawSession { connection, mut control, mut incoming, endpoint } =
        session;
    let mut sample = full(0);
    // Spread over the second, as agents that began at any time are.
    let phase = Duration::from_micros(number as u64 * 7919 % 1_000_000);
    let mut due = tokio::time::interval_at(Instant::now() + phase, PERIOD);
    // Those that were due before the first are not made up for.
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    // By themselves while agents join; then they ride with the samples, as those of real agents do.
    let mut beats = tokio::time::interval_at(Instant::now() + phase, JOINING_BEATS);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let (mut sequence, mut sampled) = (0, number as u64);
    loop {
        tokio::select! {
            _ = due.tick(), if sending.sampling.load(Ordering::Relaxed) => {
                sample.wall_ms = wall().as_millis() as u64;
                samples.send(&sample.to_frame()?).await?;
                sampled += 1;
                if sampled % SAMPLES_OF_A_BEAT == 0 {
                    sequence += 1;
                    control.send(&heartbeat(sequence)?).await?;
                }
                sending.frames.fetch_add(1, Ordering::Relaxed);
            }
            _ = beats.tick(), if !sending.sampling.load(Ordering::Relaxed) => {
                sequence += 1;
                control.send(&heartbeat(sequence)?).await?;
            }
            frame = incoming.receive() => {
                if frame?.is_none() {
                    drop((connection, endpoint));
                    anyhow::bail!("the coordinator has closed the session");
                }
            }
        }
    }
}

fn heartbeat(sequence: u64) -> anyhow::Result<Frame> {
    let beat = Heartbeat { sequence, held: Generation::default() };
    Ok(AgentMessage::Heartbeat(beat).to_frame()?)
}

struct Measured {
    frames: u64,
    cpu_s: f64,
    delay: Series,
}

async fn measure(
    fleet: &Fleet,
    pid: u32,
    count: usize,
    watchers: usize,
    sending: &Sending,
) -> anyhow::Result<Measured> {
    let watchers: Vec<Watcher> =
        (0..watchers).map(|_| Watcher::start(fleet)).collect::<Result<_, _>>()?;
    tokio::time::sleep(SETTLE).await;
    watchers.iter().for_each(|watcher| drop(watcher.take()));
    let (frames, cpu) = (sending.frames.load(Ordering::Relaxed), cpu_s(pid)?);
    tokio::time::sleep(WINDOW).await;
    let (frames, cpu) = (sending.frames.load(Ordering::Relaxed) - frames, cpu_s(pid)? - cpu);
    let mut delay = Series::default();
    for watcher in watchers {
        let seen = watcher.take();
        let lost = watcher.stop()?;
        anyhow::ensure!(!seen.is_empty(), "the watcher saw no sample");
        if lost > 0 {
            println!("{count} agents: a watcher was told that it lost events, {lost} time(s)");
        }
        for one in seen {
            delay.record(one, 1)?;
        }
    }
    Ok(Measured { frames, cpu_s: cpu, delay })
}

/// Processor time for a frame that is taken and forgotten, in nanoseconds, on as many connections.
async fn bare(count: usize) -> anyhow::Result<f64> {
    let directory = tempfile::tempdir()?;
    let sink = Sink::start(directory.path(), count).await?;
    let frame = full(0).to_frame()?;
    let mut senders = JoinSet::new();
    for (number, mut stream) in sink.streams().await?.into_iter().enumerate() {
        let frame = frame.clone();
        let phase = PERIOD.mul_f64(number as f64 / count as f64);
        senders.spawn(async move {
            let mut due = tokio::time::interval_at(Instant::now() + phase, PERIOD);
            loop {
                due.tick().await;
                if stream.send(&frame).await.is_err() {
                    return;
                }
            }
        });
    }
    tokio::time::sleep(SETTLE).await;
    let (frames, cpu) = sink.taken();
    tokio::time::sleep(WINDOW).await;
    let (frames, cpu) = (sink.taken().0 - frames, sink.taken().1 - cpu);
    drop(senders);
    sink.stop().await;
    anyhow::ensure!(frames > 0, "the sink took no frame");
    Ok(cpu as f64 / frames as f64)
}

/// Processor time of a process so far, in seconds.
fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold anything.
    let after = stat.rsplit_once(')').context("no name in stat")?.1;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |index: usize| -> anyhow::Result<f64> {
        Ok(fields.get(index).context("stat is short")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) / TICKS)
}

fn resident_mib(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib = line.split_whitespace().nth(1).context("no number")?;
    Ok(kib.parse::<u64>()? / 1024)
}
