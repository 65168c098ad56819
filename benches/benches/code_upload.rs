//! Sending a directory of 1 GiB with `gangline submit`, beside `rsync` to a daemon on the same
//! machine: the whole, nothing new, one file changed, some bytes put into a large one. Both go
//! through a counter of bytes; both write to the same disk.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gangline_benches::program;
use gangline_benches::table::{Table, digits, duration};
use gangline_fleet::build::binaries;
use gangline_fleet::fleet::{Fleet, FleetOptions};

/// Runs of each case; the median is shown. The whole tree is sent once: it takes 3 GiB of disk.
const RUNS: usize = 3;
/// Files of a tree of 1 GiB: (how many, bytes of each).
const FILES: [(usize, usize); 3] = [(4000, 8 << 10), (800, 1 << 20), (12, 16 << 20)];

fn main() -> ExitCode {
    program::run("code_upload", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let fleet = runtime.block_on(async {
            Fleet::start(binaries(true).await?, FleetOptions::default()).await
        })?;
        bench(&fleet)
    })
}

/// What happens to the tree before a transfer.
type Change<'a> = dyn Fn(&mut Noise) -> anyhow::Result<()> + 'a;

/// One transfer.
#[derive(Clone, Copy)]
struct Cost {
    time: Duration,
    /// From the sender, everything that its protocol says included.
    bytes: u64,
}

fn bench(fleet: &Fleet) -> anyhow::Result<()> {
    let source = fleet.path("source");
    let mut noise = Noise(1);
    let mut total = 0;
    for (count, bytes) in FILES {
        for number in 0..count {
            let directory = source.join(format!("d{:02}", number % 40));
            std::fs::create_dir_all(&directory)?;
            noise.write(&directory.join(format!("f{bytes}-{number}.bin")), bytes)?;
            total += bytes;
        }
    }
    let spec = fleet.path("spec.yaml");
    let text = format!(
        "name: bench\nlauncher: {{type: command}}\ncommand: [true]\n\
         code: {{snapshot: \"{}\", max_size: 2GiB}}\n",
        source.display()
    );
    std::fs::write(&spec, text)?;
    let http: SocketAddr = fleet.url().trim_start_matches("http://").parse()?;
    let ours = Gangline { fleet, spec, counter: Counter::start(http)? };
    let peer = Rsync::start(fleet, &source)?;
    if peer.is_none() {
        println!("rsync is not installed: nothing stands beside these figures\n");
    }
    let small = source.join("d07").join("f1048576-7.bin");
    let large = source.join("d03").join("f16777216-3.bin");
    ensure!(small.is_file() && large.is_file(), "the files to change are not there");

    let cases: [(&str, &Change<'_>); 3] = [
        ("nothing changed", &|_| Ok(())),
        ("a file of 1 MiB is new", &|noise| noise.write(&small, 1 << 20)),
        ("16 B put into a file of 16 MiB", &|noise| {
            let mut content = std::fs::read(&large)?;
            let middle = content.len() / 2;
            content.splice(middle..middle, noise.bytes(16));
            Ok(std::fs::write(&large, content)?)
        }),
    ];
    let mut table = Table::new(&["what", "time", "sent", "rsync", "sent", "time", "bytes"]);
    let mut run = |what: &str, before: &Change<'_>, fresh: bool| {
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..if fresh { 1 } else { RUNS } {
            before(&mut noise)?;
            // What changed a moment ago is read again, whatever its times say.
            std::thread::sleep(Duration::from_secs(3));
            mine.push(ours.submit()?);
            if let Some(peer) = &peer {
                theirs.push(peer.send()?);
            }
        }
        row(&mut table, what, &mut mine, &mut theirs);
        anyhow::Ok(())
    };
    run("all of it", &|_| Ok(()), true)?;
    for (what, change) in cases {
        run(what, change, false)?;
    }
    println!(
        "{} files, {}; all of it once, then medians of {RUNS} runs\n",
        count(),
        size(total as u64)
    );
    println!("{table}");
    Ok(())
}

fn count() -> usize {
    FILES.iter().map(|(count, _)| count).sum()
}

fn row(table: &mut Table, what: &str, mine: &mut [Cost], theirs: &mut [Cost]) {
    let median = |costs: &mut [Cost]| -> Option<Cost> {
        costs.sort_by_key(|cost| cost.time);
        costs.get(costs.len() / 2).copied()
    };
    let Some(mine) = median(mine) else { return };
    let shown = |cost: Cost| [duration(cost.time.as_nanos() as f64), size(cost.bytes)];
    let mut cells = vec![what.to_owned()];
    cells.extend(shown(mine));
    if let Some(theirs) = median(theirs) {
        let ratio = |a: f64, b: f64| format!("{} x", digits(a / b));
        cells.extend(shown(theirs));
        cells.push(ratio(mine.time.as_secs_f64(), theirs.time.as_secs_f64()));
        cells.push(ratio(mine.bytes as f64, theirs.bytes as f64));
    }
    table.row(cells);
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1048576.0 => format!("{} MiB", digits(bytes / 1048576.0)),
        bytes => format!("{} KiB", digits(bytes / 1024.0)),
    }
}

/// Bytes that do not repeat and do not pack.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(count + 8);
        while out.len() < count {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            out.extend_from_slice(&self.0.to_le_bytes());
        }
        out.truncate(count);
        out
    }

    fn write(&mut self, path: &Path, count: usize) -> anyhow::Result<()> {
        Ok(std::fs::write(path, self.bytes(count))?)
    }
}

/// Passes connections on and counts what the client sends.
struct Counter {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
}

impl Counter {
    fn start(to: SocketAddr) -> anyhow::Result<Counter> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let counter = Counter { address: listener.local_addr()?, sent: Arc::default() };
        let sent = counter.sent.clone();
        // Both ends of a connection end its threads; the process ends this one.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(to) else { continue };
                let (Ok(back), Ok(client_back)) = (server.try_clone(), client.try_clone()) else {
                    continue;
                };
                let sent = sent.clone();
                std::thread::spawn(move || pass(client, server, Some(&sent)));
                std::thread::spawn(move || pass(back, client_back, None));
            }
        });
        Ok(counter)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: Option<&AtomicU64>) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if let Some(count) = count {
            count.fetch_add(length as u64, Ordering::Relaxed);
        }
        if to.write_all(buffer.get(..length).unwrap_or_default()).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn timed(counter: &Counter, command: &mut Command) -> anyhow::Result<Cost> {
    counter.sent.store(0, Ordering::Relaxed);
    let began = Instant::now();
    let output = command.output()?;
    let time = began.elapsed();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{command:?}: {text}");
    Ok(Cost { time, bytes: counter.sent.load(Ordering::Relaxed) })
}

struct Gangline<'a> {
    fleet: &'a Fleet,
    spec: PathBuf,
    counter: Counter,
}

impl Gangline<'_> {
    /// No node is there, so the job waits and nothing else happens.
    fn submit(&self) -> anyhow::Result<Cost> {
        let mut command = Command::new(&self.fleet.binaries.cli);
        command
            .args(["--address", &format!("http://{}", self.counter.address), "--token-file"])
            .arg(self.fleet.admin_token_file())
            .arg("submit")
            .arg(&self.spec)
            .env("XDG_CACHE_HOME", self.fleet.path("cache"));
        timed(&self.counter, &mut command)
    }
}

/// A daemon of rsync and how to send to it.
struct Rsync {
    daemon: Child,
    source: PathBuf,
    counter: Counter,
}

impl Rsync {
    /// `None` when rsync is not installed.
    fn start(fleet: &Fleet, source: &Path) -> anyhow::Result<Option<Rsync>> {
        let there = Command::new("rsync").arg("--version").stdout(Stdio::null()).status();
        if !there.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut config = format!("port = {port}\naddress = 127.0.0.1\nuse chroot = no\n");
        let target = fleet.path("rsync");
        std::fs::create_dir_all(&target)?;
        config.push_str(&format!("[tree]\npath = {}\nread only = no\n", target.display()));
        if rustix::process::geteuid().is_root() {
            config.push_str("uid = 0\ngid = 0\n");
        }
        let file = fleet.path("rsyncd.conf");
        std::fs::write(&file, config)?;
        let log = File::create(fleet.path("rsyncd.log"))?;
        let daemon = Command::new("rsync")
            .args(["--daemon", "--no-detach", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(to).is_err() {
            ensure!(Instant::now() < until, "the daemon of rsync does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        let source = source.to_owned();
        Ok(Some(Rsync { daemon, source, counter: Counter::start(to)? }))
    }

    /// With `--fsync`, because what `gangline submit` was answered is durable too.
    fn send(&self) -> anyhow::Result<Cost> {
        let mut source = self.source.clone().into_os_string();
        source.push("/");
        let mut command = Command::new("rsync");
        command.args(["-a", "--delete", "--fsync"]).arg(source);
        command.arg(format!("rsync://{}/tree/", self.counter.address));
        timed(&self.counter, &mut command).context("rsync")
    }
}

impl Drop for Rsync {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
