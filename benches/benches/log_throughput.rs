//! A log from the process that writes it to the coordinator's disk, beside the same bytes over bare QUIC,
//! through `tail | nc`, and through rsyslog, in turns with them.
//!
//! `GANGLINE_BENCH_MIB` says how long the log is (256 unless it is set).

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gangline_benches::floor::Sink;
use gangline_benches::program;
use gangline_benches::table::{Table, digits};
use gangline_benches::watcher::Watcher;
use gangline_common::wire::frame::{Frame, Kind};
use gangline_common::wire::v1::LOG_CHUNK_BYTES;
use gangline_fleet::build::binaries;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};

/// rsyslog, which takes each line apart, gets only this part of what the others get.
const SHORT: u64 = 8;
const RUNS: usize = 3;
/// A way that has not brought everything by then is left out.
const PATIENCE: Duration = Duration::from_secs(120);
/// Files as long as the log that a way writes at most: what the agent keeps, and what is stored.
const FILES: u64 = 2;
/// How long samples are watched before anything is shipped.
const IDLE: Duration = Duration::from_secs(10);
/// Between two looks at how much has come.
const LOOK: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    program::run("log_throughput", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(bench())
    })
}

async fn bench() -> anyhow::Result<()> {
    let mib: usize = match std::env::var("GANGLINE_BENCH_MIB") {
        Ok(text) => text.parse().context("GANGLINE_BENCH_MIB")?,
        Err(_) => 256,
    };
    let mut fleet = Fleet::start(binaries(true).await?, FleetOptions::default()).await?;
    fleet.add_agent(AgentOptions::worker("w0", 0)).await?;
    let source = fleet.path("source.log");
    let bytes = make(mib << 20, &source)?;
    // Compression makes it half as long; it takes the longest then.
    let noisy = fleet.path("noisy.log");
    let noise = make_noise(mib << 20, &noisy)?;
    let short = fleet.path("short.log");
    beginning(&source, bytes / SHORT, &short)?;
    let watcher = Watcher::start(&fleet)?;
    // It begins with the newest sample that there is, however old.
    tokio::time::sleep(Duration::from_secs(1)).await;
    watcher.take();
    tokio::time::sleep(IDLE).await;
    let idle = watcher.take();
    let mut meanwhile = Vec::new();
    let ways = ["Gangline", "Gangline, hex digits", "bare QUIC", "tail | nc", "rsyslog"];
    let mut speeds: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut missing = Vec::new();
    for run in 0..=RUNS {
        for (way, speeds) in speeds.iter_mut().enumerate() {
            make_ready(&fleet.path("scratch"), bytes)?;
            let took = match way {
                0 | 1 => {
                    let (source, bytes) = if way == 0 { (&source, bytes) } else { (&noisy, noise) };
                    ours(&fleet, source, bytes, &watcher).await.map(|(took, delays)| {
                        meanwhile.extend(delays);
                        took
                    })
                }
                2 => bare(&fleet.path(&format!("quic-{run}")), bytes).await,
                3 => tail_to_nc(&fleet, &source, bytes, run),
                _ => rsyslog(&fleet, &short, length(&short), run),
            };
            match took {
                // The first round only warms the caches.
                Ok(took) if run > 0 => {
                    let bytes = match way {
                        1 => noise,
                        4 => length(&short),
                        _ => bytes,
                    };
                    speeds.push(bytes as f64 / 1e6 / took.as_secs_f64());
                }
                Ok(_) => {}
                Err(error) if way < 3 => return Err(error.context(ways[way])),
                Err(error) => missing.push(format!("{} is left out: {error:#}", ways[way])),
            }
        }
    }
    let mut table = Table::new(&["way", "MB/s", "of the runs", "Gangline beside it"]);
    let middle = |speeds: &[f64]| {
        let mut sorted = speeds.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    let own = middle(&speeds[0]).context("no run")?;
    for (way, speeds) in ways.iter().zip(&speeds) {
        let Some(median) = middle(speeds) else { continue };
        let low = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let high = speeds.iter().copied().fold(0.0, f64::max);
        let range = format!("{} to {}", digits(low), digits(high));
        let ratio = format!("{} x", digits(own / median));
        table.row(vec![(*way).to_owned(), digits(median), range, ratio]);
    }
    println!("{table}");
    watcher.stop()?;
    missing.dedup();
    for line in missing {
        println!("{line}");
    }
    println!(
        "{mib} MiB ({} for rsyslog), medians of {RUNS} runs, from the first byte that is written or read to the last one in \
         the receiver's file; every copy of Gangline's, nc's and rsyslog's was compared with the source.",
        mib as u64 / SHORT
    );
    println!("{}", late("while nothing was shipped", idle)?);
    println!("{}", late("while Gangline shipped", meanwhile)?);
    Ok(())
}

/// Brings what was written before to the disk, and uses memory for as many pages of files as the next way
/// needs: a virtual machine may get its memory only when it is used, which takes longer than a copy.
fn make_ready(scratch: &Path, bytes: u64) -> anyhow::Result<()> {
    ensure!(Command::new("sync").status().context("sync")?.success(), "sync failed");
    let mut file = File::create(scratch)?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..(FILES * bytes) >> 20 {
        file.write_all(&zeros)?;
    }
    std::fs::remove_file(scratch)?;
    Ok(())
}

/// How late the node's samples were, in words.
fn late(when: &str, mut delays: Vec<Duration>) -> anyhow::Result<String> {
    delays.sort_unstable();
    let last = delays.last().with_context(|| format!("no sample came {when}"))?;
    let median = delays.get(delays.len() / 2).unwrap_or(last);
    let count = delays.len();
    Ok(format!(
        "{count} samples came {when}: read {} ms after they were begun in the middle, {} ms at most.",
        median.as_millis(),
        last.as_millis()
    ))
}

/// The whole lines among the first bytes of a file.
fn beginning(source: &Path, bytes: u64, path: &Path) -> anyhow::Result<()> {
    let mut text = Vec::new();
    File::open(source)?.take(bytes).read_to_end(&mut text)?;
    let end = text.iter().rposition(|byte| *byte == b'\n').context("no line")?;
    text.truncate(end + 1);
    Ok(std::fs::write(path, text)?)
}

/// Writes lines of random hexadecimal digits, and gives how many bytes.
fn make_noise(bytes: usize, path: &Path) -> anyhow::Result<u64> {
    let mut out = BufWriter::new(File::create(path)?);
    let (mut written, mut state) = (0, 1_u64);
    while written < bytes {
        let mut line = String::with_capacity(128);
        for _ in 0..6 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            line += &format!("{state:016x}");
        }
        line.push('\n');
        out.write_all(line.as_bytes())?;
        written += line.len();
    }
    out.into_inner()?.sync_all()?;
    Ok(written as u64)
}

/// Writes a log of about so many bytes, and gives how many.
fn make(bytes: usize, path: &Path) -> anyhow::Result<u64> {
    let mut out = BufWriter::new(File::create(path)?);
    let (mut written, mut step) = (0, 0_u64);
    while written < bytes {
        step += 1;
        let line = format!(
            "(WorkerDict pid={}) step:{step} - actor/pg_loss:{:.4} - critic/score/mean:{:.3} - \
             perf/throughput:{:.1}\n",
            4000 + step % 8,
            (step * 7919 % 10_000) as f64 / 10_000.0,
            (step * 104_729 % 1000) as f64 / 1000.0,
            (step * 15_485_863 % 40_000) as f64 / 10.0,
        );
        out.write_all(line.as_bytes())?;
        written += line.len();
    }
    out.into_inner()?.sync_all()?;
    Ok(written as u64)
}

/// A job whose rank writes the log: through the agent's spool and QUIC to the coordinator's store, which
/// makes every batch durable before it acknowledges it. Also how late samples were meanwhile.
async fn ours(
    fleet: &Fleet,
    source: &Path,
    bytes: u64,
    watcher: &Watcher,
) -> anyhow::Result<(Duration, Vec<Duration>)> {
    let api = fleet.api()?;
    let go = fleet.path("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.005; done; exec cat {}",
        go.display(),
        source.display()
    );
    let spec = format!("name: log\nlauncher: {{type: command}}\ncommand: [sh, -c, \"{script}\"]\n");
    let before = outputs(&fleet.state_dir().join("logs"));
    let job = api.submit(&spec).await?;
    api.wait_job(&job, &["RUNNING"], PATIENCE).await?;
    watcher.take();
    let began = Instant::now();
    std::fs::write(&go, "")?;
    let logs = fleet.state_dir().join("logs");
    let until = began + PATIENCE;
    let stored = loop {
        if let Some(path) = outputs(&logs).into_iter().find(|path| !before.contains(path)) {
            break path;
        }
        ensure!(Instant::now() < until, "no log has come");
        tokio::time::sleep(LOOK).await;
    };
    while length(&stored) < bytes {
        ensure!(Instant::now() < until, "{} of {bytes} bytes have come", length(&stored));
        tokio::time::sleep(LOOK).await;
    }
    let (took, delays) = (began.elapsed(), watcher.take());
    api.wait_job(&job, &["SUCCEEDED"], PATIENCE).await?;
    std::fs::remove_file(&go)?;
    ensure!(same(source, &stored)?, "the stored log is another");
    // The agent's own copy below the shared root must not run beside what is measured next.
    let copies = fleet.shared_root().join("jobs").join(&job).join("logs");
    while longest(&copies) < bytes {
        ensure!(Instant::now() < until, "{} has no copy of the log", copies.display());
        tokio::time::sleep(LOOK).await;
    }
    Ok((took, delays))
}

/// Length of the longest file in a directory and those in it; 0 while it has none.
fn longest(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let lengths = entries.map(|entry| match entry.path() {
        path if path.is_dir() => longest(&path),
        path => length(&path),
    });
    lengths.max().unwrap_or(0)
}

/// The output of every rank that is stored as it came.
fn outputs(logs: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![logs.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if entry.file_name() == "output.log" {
                found.push(path);
            }
        }
    }
    found
}

/// As many bytes in frames of the same size, which the other end takes and drops.
async fn bare(directory: &Path, bytes: u64) -> anyhow::Result<Duration> {
    std::fs::create_dir_all(directory)?;
    let sink = Sink::start(directory, 1).await?;
    let mut streams = sink.streams().await?;
    let stream = streams.first_mut().context("no stream")?;
    let frame = Frame::new(Kind::LogChunk, vec![7; LOG_CHUNK_BYTES])?;
    let frames = bytes.div_ceil(LOG_CHUNK_BYTES as u64);
    let began = Instant::now();
    for _ in 0..frames {
        stream.send(&frame).await?;
    }
    while sink.taken().0 < frames {
        ensure!(began.elapsed() < PATIENCE, "{} of {frames} frames have come", sink.taken().0);
        tokio::time::sleep(LOOK).await;
    }
    let took = began.elapsed();
    sink.stop().await;
    Ok(took)
}

/// Processes that end with this value.
struct Ended(Vec<Child>);

impl Drop for Ended {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended by itself cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits until somebody listens, without taking the place of the one who will connect.
fn wait_for_port(port: u16) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    // Local address, remote address, state: 0A is listening.
    let listens = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words.as_slice(), [_, local, _, "0A", ..] if local.ends_with(&format!(":{port:04X}")))
    };
    loop {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
        if tables.into_iter().flatten().any(|text| text.lines().any(listens)) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "nobody listens on port {port}");
        std::thread::sleep(LOOK);
    }
}

fn tail_to_nc(fleet: &Fleet, source: &Path, bytes: u64, run: usize) -> anyhow::Result<Duration> {
    let (port, copy) = (free_port()?, fleet.path(&format!("nc-{run}.log")));
    let mut receiver = Command::new("nc");
    receiver.args(["-l", "127.0.0.1", &port.to_string()]).stdin(Stdio::null());
    let mut children = Ended(vec![receiver.stdout(File::create(&copy)?).spawn().context("nc")?]);
    wait_for_port(port)?;
    let began = Instant::now();
    let mut tail = Command::new("tail");
    tail.args(["-c", "+1", "-F"]).arg(source).stdin(Stdio::null()).stderr(Stdio::null());
    let mut tail = tail.stdout(Stdio::piped()).spawn()?;
    let pipe = tail.stdout.take().context("no pipe")?;
    children.0.push(tail);
    let mut sender = Command::new("nc");
    sender.args(["127.0.0.1", &port.to_string()]).stdin(pipe).stdout(Stdio::null());
    children.0.push(sender.spawn().context("nc")?);
    let took = arrived(began, &copy, bytes)?;
    drop(children);
    ensure!(same(source, &copy)?, "the copy is another");
    std::fs::remove_file(&copy)?;
    Ok(took)
}

/// One that follows the file and one that writes what comes over TCP.
fn rsyslog(fleet: &Fleet, source: &Path, bytes: u64, run: usize) -> anyhow::Result<Duration> {
    let port = free_port()?;
    let directory = fleet.path(&format!("rsyslog-{run}"));
    let copy = directory.join("copy.log");
    std::fs::create_dir_all(directory.join("send"))?;
    std::fs::create_dir_all(directory.join("take"))?;
    let start = |name: &str, config: String| -> anyhow::Result<Child> {
        let path = directory.join(format!("{name}.conf"));
        std::fs::write(&path, config)?;
        let log = File::create(directory.join(format!("{name}.log")))?;
        let mut command = Command::new("rsyslogd");
        command.args(["-n", "-f"]).arg(&path).arg("-i").arg(directory.join(format!("{name}.pid")));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().context("rsyslogd")
    };
    // With a second worker it puts lines in another order.
    let take = format!(
        "global(workDirectory=\"{dir}/take\" maxMessageSize=\"8k\")\n\
         main_queue(queue.workerThreads=\"1\")\nmodule(load=\"imtcp\")\n\
         template(name=\"raw\" type=\"string\" string=\"%rawmsg%\\n\")\n\
         ruleset(name=\"keep\") {{ action(type=\"omfile\" file=\"{copy}\" template=\"raw\") }}\n\
         input(type=\"imtcp\" port=\"{port}\" address=\"127.0.0.1\" ruleset=\"keep\")\n",
        dir = directory.display(),
        copy = copy.display(),
    );
    let mut children = Ended(vec![start("take", take)?]);
    wait_for_port(port)?;
    let send = format!(
        "global(workDirectory=\"{dir}/send\" maxMessageSize=\"8k\")\n\
         main_queue(queue.workerThreads=\"1\")\nmodule(load=\"imfile\")\n\
         template(name=\"raw\" type=\"string\" string=\"%msg%\")\n\
         ruleset(name=\"send\") {{ action(type=\"omfwd\" target=\"127.0.0.1\" port=\"{port}\" \
         protocol=\"tcp\" template=\"raw\") }}\n\
         input(type=\"imfile\" file=\"{source}\" tag=\"t\" ruleset=\"send\")\n",
        dir = directory.display(),
        source = source.display(),
    );
    let began = Instant::now();
    children.0.push(start("send", send)?);
    let took = arrived(began, &copy, bytes)?;
    drop(children);
    ensure!(same(source, &copy)?, "the copy is another");
    std::fs::remove_dir_all(&directory)?;
    Ok(took)
}

fn arrived(began: Instant, copy: &Path, bytes: u64) -> anyhow::Result<Duration> {
    while length(copy) < bytes {
        if began.elapsed() > PATIENCE {
            bail!("{} of {bytes} bytes have come", length(copy));
        }
        std::thread::sleep(LOOK);
    }
    Ok(began.elapsed())
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Whether two files have the same bytes.
fn same(one: &Path, other: &Path) -> anyhow::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let read = one.read(&mut left)?;
        if read == 0 {
            return Ok(other.read(&mut right)? == 0);
        }
        other.read_exact(&mut right[..read]).context("it is shorter")?;
        if left[..read] != right[..read] {
            return Ok(false);
        }
    }
}
