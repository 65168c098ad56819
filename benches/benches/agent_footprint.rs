//! What an agent costs its node: memory and CPU of one without GPUs and of one with eight GPUs (the stand-in
//! NVML) and eight RDMA ports (files as mlx5 lays them out), each with a session and a sample per second. Beside
//! them node_exporter, where it is installed, with the same ports, scraped once a second. All run at the same
//! time.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use gangline_benches::measure::RUNS;
use gangline_benches::program;
use gangline_benches::table::{Table, digits};
use gangline_fleet::build::binaries;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::process::Process;

const GPUS: u32 = 8;
const PORTS: u32 = 8;
/// Length of a run, and of the time before the first one.
const RUN: Duration = Duration::from_secs(20);
const WARM_UP: Duration = Duration::from_secs(15);
const SCRAPE: Duration = Duration::from_secs(1);
const PEER: &str = "prometheus-node-exporter";
/// Files of `counters` of an InfiniBand port, and of `hw_counters` of mlx5.
const COUNTERS: [&str; 24] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
    "port_rcv_data_64",
    "port_xmit_data_64",
    "qp1_dropped",
];
const HARDWARE_COUNTERS: [&str; 26] = [
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_write_requests",
];

fn main() -> ExitCode {
    program::run("agent_footprint", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(bench())
    })
}

async fn bench() -> anyhow::Result<()> {
    let mut fleet = Fleet::start(binaries(true).await?, FleetOptions::default()).await?;
    let (with, without) = (fleet.path("sys"), fleet.path("empty-sys"));
    make_ports(&with)?;
    std::fs::create_dir_all(&without)?;
    let agents = [("bare", 0, &without), ("full", GPUS, &with)];
    for (name, gpus, sys) in agents {
        let config = fleet.path(&format!("{name}.toml"));
        std::fs::write(&config, format!("sys_root = {sys:?}\n"))?;
        let mut options = AgentOptions::worker(name, gpus);
        options.extra = vec!["--config".to_owned(), config.display().to_string()];
        fleet.add_agent(options).await?;
    }
    let file = fleet.gpu_file("full");
    let plain = std::fs::read_to_string(&file)?;
    let next = file.with_extension("next");
    std::fs::write(&next, every_reading(&plain))?;
    std::fs::rename(&next, &file)?;

    let processes = fleet.processes()?;
    let id = |name: &str| {
        let found = processes.iter().find(|(known, _)| known == name);
        found.map(|(_, id)| *id).with_context(|| format!("no process of {name}"))
    };
    let mut subjects = vec![
        Subject::new("agent, no GPU and no port", id("bare")?),
        Subject::new("agent, 8 GPUs and 8 ports", id("full")?),
    ];
    let peer = Peer::start(&with, &fleet.path("peer.log"));
    match &peer {
        Ok(peer) => subjects.push(Subject::new("node_exporter, 8 ports", peer.process.id())),
        Err(missing) => println!("node_exporter is left out: {missing:#}."),
    }
    tokio::time::sleep(WARM_UP).await;
    for _ in 0..RUNS {
        for subject in &mut subjects {
            subject.begin()?;
        }
        tokio::time::sleep(RUN).await;
        for subject in &mut subjects {
            subject.end()?;
        }
    }
    print(&subjects);
    if let Ok(peer) = &peer {
        let (scrapes, bytes) = peer.scraped();
        println!("node_exporter: {scrapes} scrapes, {bytes} bytes in the last.");
    }
    println!(
        "CPU: of all threads of the process, in percent of one CPU. The mapping of NVML counts as the agent's \
         memory here; the library is the stand-in, which parses nothing between two changes of its file."
    );
    Ok(())
}

/// Eight InfiniBand ports.
fn make_ports(sys: &Path) -> anyhow::Result<()> {
    let write = |path: &Path, text: &str| -> anyhow::Result<()> {
        std::fs::create_dir_all(path.parent().context("a directory")?)?;
        Ok(std::fs::write(path, text)?)
    };
    for number in 0..PORTS {
        let device = sys.join(format!("class/infiniband/mlx5_{number}"));
        for (name, text) in [
            ("board_id", "MT_0000000838\n"),
            ("fw_ver", "28.39.1002\n"),
            ("hca_type", "MT4129\n"),
            ("node_guid", "a088:c203:0012:3456\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/phys_state", "5: LinkUp\n"),
            ("ports/1/rate", "400 Gb/sec (4X NDR)\n"),
            ("ports/1/link_layer", "InfiniBand\n"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:a088:c203:0012:3456\n"),
        ] {
            write(&device.join(name), text)?;
        }
        for name in COUNTERS {
            write(&device.join("ports/1/counters").join(name), "87312468112004\n")?;
        }
        for name in HARDWARE_COUNTERS {
            write(&device.join("ports/1/hw_counters").join(name), "468112004\n")?;
        }
    }
    Ok(())
}

/// The same GPUs with everything that the stand-in can say, and 18 links each.
fn every_reading(plain: &str) -> String {
    let link = "[[gpu.link]]\nactive = true\n".repeat(18);
    let more = format!(
        "mem_clock_mhz = 2619\nencoder_util = 0\ndecoder_util = 0\nmemory_temperature_c = 78\n\
         temperature_margin_c = 22\nenergy_mj = 88412345678\nclock_reasons = 4\npersistence = true\n\
         recovery_action = 0\npcie = {{ replays = 0, generation = 5, width = 16, max_generation = 5, max_width = \
         16 }}\nviolations = {{ power_ns = 120000000 }}\nrows = {{ corrected = 0 }}\nfabric = {{ state = 3 }}\n\
         ecc = {{ volatile = {{ dram_corrected = 2 }} }}\ngpm = {{ sm = 91.0, tensor = 47.5, dram = 62.0 }}\n{link}"
    );
    plain.replace("mem_clock_mhz = 2619\n", &more)
}

/// One process and what was seen of it.
struct Subject {
    name: &'static str,
    pid: u32,
    began: Option<(Instant, Duration)>,
    /// Percent of one CPU, by run.
    cpu: Vec<f64>,
    /// MiB at the end of each run: all that is resident, and that part which is the process' own.
    resident: Vec<f64>,
    own: Vec<f64>,
}

impl Subject {
    fn new(name: &'static str, pid: u32) -> Self {
        Subject { name, pid, began: None, cpu: vec![], resident: vec![], own: vec![] }
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        self.began = Some((Instant::now(), cpu_of(self.pid)?));
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let (at, before) = self.began.take().context("a run that began")?;
        let used = cpu_of(self.pid)?.saturating_sub(before);
        self.cpu.push(used.as_secs_f64() / at.elapsed().as_secs_f64() * 100.0);
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        self.resident.push(mebibytes(&status, "VmRSS:")?);
        self.own.push(mebibytes(&status, "RssAnon:")?);
        Ok(())
    }
}

/// CPU time of all threads that live.
fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // One that has ended since takes its time with it.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let spent = text.split(' ').next().context("schedstat")?;
        nanoseconds += spent.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

fn mebibytes(status: &str, key: &str) -> anyhow::Result<f64> {
    let line =
        status.lines().find_map(|line| line.strip_prefix(key)).context("a line of memory")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

fn print(subjects: &[Subject]) {
    let mut table = Table::new(&["process", "resident", "own", "CPU", "runs"]);
    for subject in subjects {
        let mut runs = String::new();
        for (number, cpu) in subject.cpu.iter().enumerate() {
            let _ = write!(runs, "{}{}", if number > 0 { " " } else { "" }, digits(*cpu));
        }
        table.row(vec![
            subject.name.to_owned(),
            format!("{} MiB", digits(median(&subject.resident))),
            format!("{} MiB", digits(median(&subject.own))),
            format!("{} %", digits(median(&subject.cpu))),
            runs,
        ]);
    }
    println!("{table}");
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// node_exporter and who scrapes it.
struct Peer {
    process: Process,
    over: Arc<AtomicBool>,
    scrapes: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl Peer {
    fn start(sys: &Path, log: &Path) -> anyhow::Result<Peer> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(PEER);
        command
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--path.sysfs={}", sys.display()));
        let process = Process::start(PEER, &mut command, log).context(PEER)?;
        let (over, scrapes, bytes) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicU64>::default(),
            Arc::<AtomicU64>::default(),
        );
        let (ends, counted, length) = (Arc::clone(&over), Arc::clone(&scrapes), Arc::clone(&bytes));
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(SCRAPE);
                // It may not listen yet; what was not scraped is not counted.
                if let Ok(read) = scrape(address) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    length.store(read, Ordering::Relaxed);
                }
            }
        });
        Ok(Peer { process, over, scrapes, bytes })
    }

    fn scraped(&self) -> (u64, u64) {
        (self.scrapes.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn scrape(address: SocketAddr) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    anyhow::ensure!(page.starts_with(b"HTTP/1.0 200"), "no page");
    Ok(u64::try_from(page.len())?)
}
