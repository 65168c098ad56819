//! What the dashboard Node Exporter Full draws besides: CPUs, memory, disks and packets, under the
//! names of node_exporter, from the kernel's files as they are at the moment of a scrape.
//!
//! CPUs, memory and disks are the whole host's, also where the container has limits; what `host`
//! tells of the container is left to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use gangline_common::exposition::{Kind, Page};
use gangline_common::time::Timestamp;

use super::host;
use super::mounts::Mounts;
use crate::collectors::host::{text, word};
use crate::collectors::storage::Room;

/// What is beyond these is left out, so that a page stays small enough to be sent.
const MAX_CPUS: usize = 1024;
const MAX_DISKS: usize = 256;
const MAX_MEMORY_LINES: usize = 256;
/// As many as the host collector tells of.
const MAX_INTERFACES: usize = 64;
/// Numbers without which a line of `diskstats` is not whole; newer kernels write more.
const DISK_COLUMNS: usize = 11;
/// The same of `net/dev`, as the host collector has it.
const INTERFACE_COLUMNS: usize = 12;

/// A counter that goes back by less has not begun anew.
const MAX_BACK_S: u64 = 3;

/// Columns of a CPU in `stat`.
const MODES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
/// Columns behind them: parts of `user` and `nice`.
const GUEST_MODES: [&str; 2] = ["user", "nice"];

/// Lines of `stat` whose first number is the value of a family.
const COUNTS: &[(&str, &str, Kind, &str)] = &[
    ("ctxt", "node_context_switches_total", Kind::Counter, "Switches between tasks."),
    ("intr", "node_intr_total", Kind::Counter, "Interrupts that were served."),
    ("processes", "node_forks_total", Kind::Counter, "Processes and threads that were begun."),
    ("btime", "node_boot_time_seconds", Kind::Gauge, "Boot of the host in Unix time."),
    ("procs_running", "node_procs_running", Kind::Gauge, "Tasks that run or could run."),
    ("procs_blocked", "node_procs_blocked", Kind::Gauge, "Tasks that wait for I/O to complete."),
];

/// Columns of `loadavg`; the first one is told by the host collector.
const LOADS: [(usize, &str, &str); 2] =
    [(1, "node_load5", "5m load average."), (2, "node_load15", "15m load average.")];

/// From what the kernel counts in to what a family is in.
type Unit = fn(u64) -> f64;

fn whole(number: u64) -> f64 {
    number as f64
}

/// A sector has 512 bytes here, whatever the disk says.
fn sectors(number: u64) -> f64 {
    number as f64 * 512.0
}

fn milliseconds(number: u64) -> f64 {
    number as f64 / 1000.0
}

/// Columns of `diskstats` behind the name; discards are there since Linux 4.18.
const DISKS: &[(&str, Unit, &str)] = &[
    ("reads_completed_total", whole, "Reads that succeeded."),
    ("reads_merged_total", whole, "Reads that were merged with others."),
    ("read_bytes_total", sectors, "Bytes that were read."),
    ("read_time_seconds_total", milliseconds, "Seconds that all reads took."),
    ("writes_completed_total", whole, "Writes that succeeded."),
    ("writes_merged_total", whole, "Writes that were merged with others."),
    ("written_bytes_total", sectors, "Bytes that were written."),
    ("write_time_seconds_total", milliseconds, "Seconds that all writes took."),
    ("io_now", whole, "Requests under way."),
    ("io_time_seconds_total", milliseconds, "Seconds in which requests were under way."),
    (
        "io_time_weighted_seconds_total",
        milliseconds,
        "Seconds in which requests were under way, times how many.",
    ),
    ("discards_completed_total", whole, "Discards that succeeded."),
    ("discards_merged_total", whole, "Discards that were merged with others."),
    ("discarded_sectors_total", whole, "Sectors that were discarded."),
    ("discard_time_seconds_total", milliseconds, "Seconds that all discards took."),
];

/// Columns of `net/dev` that the host collector does not tell.
const PACKETS: [(usize, &str); 2] = [(1, "receive_packets"), (9, "transmit_packets")];

/// Ticks by CPU and column.
type Cpus = BTreeMap<u32, Vec<u64>>;

/// The ticks that were told last. Those of `idle` and `iowait` may go back a little, which to
/// Prometheus is a counter that began anew.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Cpus>);

impl Told {
    /// Holds up what went back a little.
    fn steady(&self, cpus: &mut Cpus) {
        let most = MAX_BACK_S * rustix::param::clock_ticks_per_second();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (cpu, ticks) in cpus.iter_mut() {
            for (now, before) in ticks.iter_mut().zip(told.get(cpu).into_iter().flatten()) {
                if *now < *before && *before - *now < most {
                    *now = *before;
                }
            }
        }
        told.clone_from(cpus);
    }
}

/// The files as they were; one that cannot be read is empty.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// When they were read; `None` if they were not.
    at: Option<Timestamp>,
    cpus: Cpus,
    stat: String,
    load: String,
    memory: String,
    disks: String,
    network: String,
    system: Option<System>,
    pub(super) mounts: Mounts,
    /// Room of `/`, where that was looked at.
    pub(super) root: Option<Room>,
}

/// What `uname` says, but for the name of the host.
#[derive(Debug)]
struct System {
    name: String,
    release: String,
    version: String,
    machine: &'static str,
    domain: String,
}

impl Kernel {
    /// Reads the files below `proc`. Blocks on nothing but the kernel.
    pub(super) fn read(proc: &Path, at: Timestamp, told: &Told) -> Self {
        let file = |path: &str| text(&proc.join(path)).unwrap_or_default();
        let stat = file("stat");
        let mut cpus: Cpus = stat.lines().filter_map(cpu).take(MAX_CPUS).collect();
        told.steady(&mut cpus);
        Kernel {
            at: Some(at),
            cpus,
            stat,
            load: file("loadavg"),
            memory: file("meminfo"),
            disks: file("diskstats"),
            network: file("self/net/dev"),
            system: System::read(&proc.join("sys/kernel")),
            mounts: Mounts::parse(&file("self/mountinfo")),
            root: None,
        }
    }
}

impl System {
    fn read(sysctl: &Path) -> Option<Self> {
        let name = |file: &str| word(&sysctl.join(file));
        Some(System {
            name: name("ostype")?,
            release: name("osrelease")?,
            version: name("version")?,
            machine: std::env::consts::ARCH,
            domain: name("domainname").unwrap_or_default(),
        })
    }
}

/// Adds what the files say. `node` stands for the host's name, by which the dashboard selects:
/// containers of one image may all have the same, or a random one.
pub(super) fn add(page: &mut Page, kernel: &Kernel, node: &str) {
    add_cpus(page, &kernel.cpus);
    for (key, name, kind, help) in COUNTS {
        page.family(name, help, *kind).add(&[], count(&kernel.stat, key));
    }
    for (column, name, help) in LOADS {
        page.family(name, help, Kind::Gauge).add(&[], load(&kernel.load, column));
    }
    add_memory(page, &kernel.memory);
    add_disks(page, &kernel.disks);
    add_packets(page, &kernel.network);
    let now = kernel.at.map(|at| at.wall_ms as f64 / 1000.0);
    page.family("node_time_seconds", "The node's clock in Unix time.", Kind::Gauge).add(&[], now);
    let mut uname = page.family(
        "node_uname_info",
        "What uname says, with Gangline's name of the node; the value is always 1.",
        Kind::Gauge,
    );
    if let Some(system) = &kernel.system {
        let labels = [
            ("sysname", system.name.as_str()),
            ("release", &system.release),
            ("version", &system.version),
            ("machine", system.machine),
            ("nodename", node),
            ("domainname", &system.domain),
        ];
        uname.add(&labels, 1.0);
    }
}

fn add_cpus(page: &mut Page, cpus: &Cpus) {
    let hz = rustix::param::clock_ticks_per_second().max(1) as f64;
    let help = "Seconds that the CPU spent in each mode.";
    let mut all = page.family("node_cpu_seconds_total", help, Kind::Counter);
    for (cpu, ticks) in cpus {
        let cpu = cpu.to_string();
        for (mode, ticks) in MODES.into_iter().zip(ticks) {
            all.add(&[("cpu", &cpu), ("mode", mode)], *ticks as f64 / hz);
        }
    }
    let help = "Seconds that the CPU spent in virtual machines.";
    let mut guests = page.family("node_cpu_guest_seconds_total", help, Kind::Counter);
    for (cpu, ticks) in cpus {
        let cpu = cpu.to_string();
        for (mode, ticks) in GUEST_MODES.into_iter().zip(ticks.iter().skip(MODES.len())) {
            guests.add(&[("cpu", &cpu), ("mode", mode)], *ticks as f64 / hz);
        }
    }
}

fn add_memory(page: &mut Page, meminfo: &str) {
    let lines = meminfo.lines().take(MAX_MEMORY_LINES);
    // A page that has a name twice is refused as a whole.
    let families: BTreeMap<String, f64> = lines.filter_map(memory).collect();
    for (name, value) in &families {
        let help = "The line of /proc/meminfo, of the whole host.";
        page.family(name, help, Kind::Gauge).add(&[], *value);
    }
}

fn add_disks(page: &mut Page, diskstats: &str) {
    let disks: BTreeMap<&str, Vec<u64>> =
        diskstats.lines().filter_map(disk).take(MAX_DISKS).collect();
    for (column, (name, unit, help)) in DISKS.iter().enumerate() {
        let kind = if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
        let mut out = page.family(&format!("node_disk_{name}"), help, kind);
        for (device, columns) in &disks {
            out.add(&[("device", device)], columns.get(column).map(|number| unit(*number)));
        }
    }
}

fn add_packets(page: &mut Page, network: &str) {
    let interfaces: BTreeMap<&str, Vec<u64>> =
        network.lines().filter_map(interface).take(MAX_INTERFACES).collect();
    for (column, what) in PACKETS {
        let help = format!("Network device statistic {what}.");
        let mut out = page.family(&format!("node_network_{what}_total"), &help, Kind::Counter);
        for (device, columns) in &interfaces {
            out.add(&[("device", device)], columns.get(column).map(|number| whole(*number)));
        }
    }
}

/// All words as numbers; `None` when one of them is none.
fn numbers<'a>(words: impl Iterator<Item = &'a str>) -> Option<Vec<u64>> {
    words.map(|word| word.parse().ok()).collect()
}

/// The first number of the line of `stat` that begins with `key`.
fn count(stat: &str, key: &str) -> Option<f64> {
    stat.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_it = words.next()? == key;
        let number: u64 = words.next().filter(|_| is_it)?.parse().ok()?;
        Some(whole(number))
    })
}

/// A CPU's number and its ticks by mode; the line of all CPUs together has no number.
fn cpu(line: &str) -> Option<(u32, Vec<u64>)> {
    let (number, ticks) = line.strip_prefix("cpu")?.split_once(' ')?;
    let number: u32 = number.parse().ok()?;
    let ticks = numbers(ticks.split_ascii_whitespace())?;
    (ticks.len() >= MODES.len()).then_some((number, ticks))
}

fn load(loadavg: &str, column: usize) -> Option<f64> {
    let load: f64 = loadavg.split_ascii_whitespace().nth(column)?.parse().ok()?;
    (load >= 0.0).then_some(load)
}

/// The family of a line such as `Active(anon):   123 kB`, and its value. Without a unit it is a
/// number of things, not of bytes.
fn memory(line: &str) -> Option<(String, f64)> {
    let (key, value) = line.split_once(':')?;
    let key = key.replace('(', "_").replace(')', "");
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut words = value.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let (suffix, factor) = match (words.next(), words.next()) {
        (None, _) => ("", 1),
        (Some("kB"), None) => ("_bytes", 1024),
        _ => return None,
    };
    let name = format!("node_memory_{key}{suffix}");
    let of_container = host::VALUES.iter().any(|(known, ..)| *known == name);
    let is_good = !key.is_empty() && key.bytes().all(is_name) && !of_container;
    Some((name, whole(number.checked_mul(factor)?))).filter(|_| is_good)
}

/// A line such as ` 259 0 nvme0n1 10 1 8 ...`.
fn disk(line: &str) -> Option<(&str, Vec<u64>)> {
    let mut words = line.split_ascii_whitespace();
    let (major, minor, name) = (words.next()?, words.next()?, words.next()?);
    numbers([major, minor].into_iter())?;
    let columns = numbers(words)?;
    (columns.len() >= DISK_COLUMNS && !is_left_out(name)).then_some((name, columns))
}

/// Whether node_exporter leaves the device out unless it is told otherwise:
/// `^(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$`.
fn is_left_out(device: &str) -> bool {
    let stem = device.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_disk = |prefix: &str| {
        let letters = stem.strip_prefix(prefix).unwrap_or_default();
        matches!(letters.as_bytes(), [b'a'..=b'z'])
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let nvme = stem.strip_prefix("nvme").and_then(|rest| rest.strip_suffix('p')?.split_once('n'));
    stem.len() < device.len()
        && (matches!(stem, "ram" | "zram" | "loop" | "fd")
            || ["hd", "sd", "vd", "xvd"].into_iter().any(is_disk)
            || nvme.is_some_and(|(one, other)| is_number(one) && is_number(other)))
}

/// An interface and its columns; those that the host collector tells of, and no others.
fn interface(line: &str) -> Option<(&str, Vec<u64>)> {
    let (name, columns) = line.split_once(':')?;
    let (name, columns) = (name.trim(), numbers(columns.split_ascii_whitespace())?);
    (columns.len() >= INTERFACE_COLUMNS && name != "lo").then_some((name, columns))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::collectors::fixture::Tree;

    const AT: Timestamp = Timestamp { boot_ms: 1, wall_ms: 1_795_507_900_250 };

    /// A host with two CPUs, of which the first runs virtual machines, one disk and one interface.
    fn tree() -> Tree {
        Tree::new()
            .file(
                "proc/stat",
                "cpu  120 1 60 900 25 2 3 4 5 6\n\
                 cpu0 100 1 50 450 25 2 3 4 5 6\n\
                 cpu1 20 0 10 450 0 0 0 0 0 0\n\
                 intr 187854 0 0 3\nctxt 291943\nbtime 1795507882\nprocesses 9875\n\
                 procs_running 3\nprocs_blocked 0\nsoftirq 1 2 3\n",
            )
            .file("proc/loadavg", "12.50 9.25 7.75 3/1200 4242\n")
            .file(
                "proc/meminfo",
                "MemTotal:       67108864 kB\nMemFree:            1024 kB\n\
                 MemAvailable:   33554432 kB\nActive(anon):          8 kB\n\
                 HugePages_Total:       2\n",
            )
            .file(
                "proc/diskstats",
                "   7       0 loop0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
                 259       0 nvme0n1 10 1 8 1500 20 2 16 250 3 4000 5000 6 7 8 9 10 11\n \
                 259       1 nvme0n1p1 9 1 8 1500 20 2 16 250 3 4000 5000 6 7 8 9 10 11\n",
            )
            .file(
                "proc/self/net/dev",
                "Inter-|   Receive                 |  Transmit\n face |bytes    packets errs\n    \
                 lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  \
                 eth0: 100 2 0 0 0 0 0 0 900 6 0 0 0 0 0 0\n",
            )
            .file(
                "proc/self/mountinfo",
                "700 650 0:52 / / rw,relatime - overlay overlay rw\n\
                 701 700 259:2 / /var/lib/gangline rw - xfs /dev/nvme0n1p2 rw\n",
            )
            .file("proc/sys/kernel/ostype", "Linux\n")
            .file("proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
            .file("proc/sys/kernel/version", "#61-Ubuntu SMP PREEMPT_DYNAMIC\n")
            .file("proc/sys/kernel/domainname", "(none)\n")
    }

    /// What the golden pages show; the same on every machine.
    pub(in crate::metrics) fn kernel() -> Kernel {
        let tree = tree();
        let mut kernel = Kernel::read(&tree.path("proc"), AT, &Told::default());
        kernel.system.as_mut().unwrap().machine = "x86_64";
        let (total_bytes, free_bytes) = (1 << 38, 1 << 37);
        kernel.root = Some(Room { path: "/".into(), total_bytes, free_bytes, ..Room::default() });
        kernel
    }

    fn text_of(kernel: &Kernel) -> String {
        let mut page = Page::default();
        add(&mut page, kernel, "gpu-1");
        page.text().unwrap()
    }

    /// The samples of a host that has this one file.
    fn samples_of(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::new().file(&format!("proc/{path}"), text);
        let kernel = Kernel { at: None, ..Kernel::read(&tree.path("proc"), AT, &Told::default()) };
        let text = text_of(&kernel);
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn many(line: fn(u32) -> String) -> String {
        (0..1500).map(line).collect()
    }

    #[test]
    fn samples_are_those_of_node_exporter() {
        let text = text_of(&kernel());
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "node_cpu_seconds_total{cpu=\"0\",mode=\"user\"} 1",
            "node_cpu_seconds_total{cpu=\"0\",mode=\"nice\"} 0.01",
            "node_cpu_seconds_total{cpu=\"0\",mode=\"system\"} 0.5",
            "node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 4.5",
            "node_cpu_seconds_total{cpu=\"0\",mode=\"iowait\"} 0.25",
            "node_cpu_seconds_total{cpu=\"0\",mode=\"irq\"} 0.02",
            "node_cpu_seconds_total{cpu=\"0\",mode=\"softirq\"} 0.03",
            "node_cpu_seconds_total{cpu=\"0\",mode=\"steal\"} 0.04",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"user\"} 0.2",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"nice\"} 0",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"system\"} 0.1",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"idle\"} 4.5",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"iowait\"} 0",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"irq\"} 0",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"softirq\"} 0",
            "node_cpu_seconds_total{cpu=\"1\",mode=\"steal\"} 0",
            "node_cpu_guest_seconds_total{cpu=\"0\",mode=\"user\"} 0.05",
            "node_cpu_guest_seconds_total{cpu=\"0\",mode=\"nice\"} 0.06",
            "node_cpu_guest_seconds_total{cpu=\"1\",mode=\"user\"} 0",
            "node_cpu_guest_seconds_total{cpu=\"1\",mode=\"nice\"} 0",
            "node_context_switches_total 291943",
            "node_intr_total 187854",
            "node_forks_total 9875",
            "node_boot_time_seconds 1795507882",
            "node_procs_running 3",
            "node_procs_blocked 0",
            "node_load5 9.25",
            "node_load15 7.75",
            "node_memory_Active_anon_bytes 8192",
            "node_memory_HugePages_Total 2",
            "node_memory_MemFree_bytes 1048576",
            "node_disk_reads_completed_total{device=\"nvme0n1\"} 10",
            "node_disk_reads_merged_total{device=\"nvme0n1\"} 1",
            "node_disk_read_bytes_total{device=\"nvme0n1\"} 4096",
            "node_disk_read_time_seconds_total{device=\"nvme0n1\"} 1.5",
            "node_disk_writes_completed_total{device=\"nvme0n1\"} 20",
            "node_disk_writes_merged_total{device=\"nvme0n1\"} 2",
            "node_disk_written_bytes_total{device=\"nvme0n1\"} 8192",
            "node_disk_write_time_seconds_total{device=\"nvme0n1\"} 0.25",
            "node_disk_io_now{device=\"nvme0n1\"} 3",
            "node_disk_io_time_seconds_total{device=\"nvme0n1\"} 4",
            "node_disk_io_time_weighted_seconds_total{device=\"nvme0n1\"} 5",
            "node_disk_discards_completed_total{device=\"nvme0n1\"} 6",
            "node_disk_discards_merged_total{device=\"nvme0n1\"} 7",
            "node_disk_discarded_sectors_total{device=\"nvme0n1\"} 8",
            "node_disk_discard_time_seconds_total{device=\"nvme0n1\"} 0.009",
            "node_network_receive_packets_total{device=\"eth0\"} 2",
            "node_network_transmit_packets_total{device=\"eth0\"} 6",
            "node_time_seconds 1795507900.25",
            "node_uname_info{sysname=\"Linux\",release=\"6.8.0-60-generic\",\
             version=\"#61-Ubuntu SMP PREEMPT_DYNAMIC\",machine=\"x86_64\",nodename=\"gpu-1\",\
             domainname=\"(none)\"} 1",
        ];
        assert_eq!(samples, expected);
        let gauges = text.lines().filter(|line| line.ends_with(" gauge"));
        // The clock, uname, two loads, three lines of memory, requests, boot, running and blocked.
        assert_eq!(gauges.count(), 11, "{text}");
        let counters = text.lines().filter(|line| line.ends_with(" counter"));
        assert!(counters.clone().all(|line| line.contains("_total counter")), "{text}");
        assert_eq!(counters.count(), 21, "{text}");
    }

    #[test]
    fn a_file_that_is_missing_or_too_long_has_no_families() {
        let nothing = Kernel::read(&Tree::new().path("proc"), AT, &Told::default());
        let text = text_of(&nothing);
        let names: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert_eq!(names, ["# TYPE node_time_seconds gauge"]);
        assert_eq!(text_of(&Kernel::default()), "");
        let long = format!("ctxt 1\n{}", "cpu0 1 1 1 1 1 1 1 1\n".repeat(20_000));
        assert_eq!(samples_of("stat", &long), [""; 0]);
        // A host whose name and release are not told is not called anything.
        assert_eq!(samples_of("sys/kernel/ostype", "Linux\n"), [""; 0]);
    }

    #[test]
    fn a_garbled_line_is_left_out_alone() {
        let stat = "cpu0 1 2 3 4\ncpu1 1 x 1 1 1 1 1 1\ncpux 1 1 1 1 1 1 1 1\n\
                    cpu3 0 0 0 0 0 0 0 700\nintr\nctxt -1\nprocesses 1e3\n\u{7}\nprocs_running 4";
        let samples = samples_of("stat", stat);
        assert_eq!(samples.len(), MODES.len() + 1, "{samples:?}");
        assert!(samples.contains(&"node_cpu_seconds_total{cpu=\"3\",mode=\"steal\"} 7".to_owned()));
        assert!(samples.contains(&"node_procs_running 4".to_owned()), "{samples:?}");

        let disks = "8 0 sda 1 2 3\n8 x sdb 1 2 3 4 5 6 7 8 9 10 11\n8 32\n\
                     8 48 sdd 1 2 3 4 5 6 7 8 9 ten 11\n8 64 sde 1 2 3 4 5 6 7 8 9 10 11\n";
        let samples = samples_of("diskstats", disks);
        // An old kernel says nothing of discards.
        assert_eq!(samples.len(), DISK_COLUMNS, "{samples:?}");
        assert!(samples.iter().all(|sample| sample.contains("{device=\"sde\"}")), "{samples:?}");

        assert_eq!(samples_of("loadavg", "1.00 NaN 2.50"), ["node_load15 2.5"]);
        assert_eq!(samples_of("loadavg", "1.00 -1"), [""; 0]);
        let network = "eth0: 1 2 3\neth1: 1 2 3 4 5 6 7 8 9 10 11 12\neth2: 1 2 3 4 5 6 7 8 x\n";
        let packets = [
            "node_network_receive_packets_total{device=\"eth1\"} 2",
            "node_network_transmit_packets_total{device=\"eth1\"} 10",
        ];
        assert_eq!(samples_of("self/net/dev", network), packets);
    }

    #[test]
    fn lines_of_meminfo_are_bytes_or_numbers() {
        let told = |name: &str, value| Some((format!("node_memory_{name}"), value));
        assert_eq!(memory("Inactive(file):  2 kB"), told("Inactive_file_bytes", 2048.0));
        assert_eq!(memory("Committed_AS:    3 kB"), told("Committed_AS_bytes", 3072.0));
        assert_eq!(memory("DirectMap1G:     4 kB"), told("DirectMap1G_bytes", 4096.0));
        assert_eq!(memory("HugePages_Free:     5"), told("HugePages_Free", 5.0));
        for wrong in [
            "",
            "Cached",
            "Cached:",
            "Cached: kB",
            "Cached: 1 MB",
            "Cached: 1 kB more",
            "Cached: -1 kB",
            "Cached: 18446744073709551615 kB",
            ": 1 kB",
            "Ca ched: 1 kB",
            "Ca\"ched: 1 kB",
            // The container's, which `host` tells.
            "MemTotal: 1 kB",
            "MemAvailable: 1 kB",
        ] {
            assert_eq!(memory(wrong), None, "{wrong:?}");
        }
        let twice = "Cached: 1 kB\nCached: 2 kB\n";
        assert_eq!(samples_of("meminfo", twice), ["node_memory_Cached_bytes 2048"]);
    }

    #[test]
    fn partitions_and_what_is_no_disk_are_left_out() {
        let out = "ram0 zram1 loop12 fd0 sda1 sdz15 hdb2 vda3 xvdf1 nvme0n1p1 nvme12n3p45";
        for device in out.split(' ') {
            assert!(is_left_out(device), "{device}");
        }
        let disks = "sda sdaa1 sd1 vda xvda nvme0n1 nvme0p1 nvme0c1n1p1 nvmen1p1 md0 dm-0 sr0 loop";
        for device in disks.split(' ') {
            assert!(!is_left_out(device), "{device}");
        }
    }

    #[test]
    fn a_counter_that_goes_back_a_little_stays_and_one_that_begins_anew_does_not() {
        let told = Told::default();
        let told_of = |idle: u64| {
            let mut cpus = Cpus::from([(0, vec![9, 9, 9, idle])]);
            told.steady(&mut cpus);
            cpus[&0][3]
        };
        let seen: Vec<u64> = [900, 899, 601, 901, 2].map(told_of).into();
        assert_eq!(seen, [900, 900, 900, 901, 2]);
    }

    #[test]
    fn a_page_stays_bounded() {
        let stat = many(|n| format!("cpu{n} 1 1 1 1 1 1 1 1\n"));
        assert_eq!(samples_of("stat", &stat).len(), MAX_CPUS * MODES.len());
        let disks = many(|n| format!("8 {n} md{n} 1 2 3 4 5 6 7 8 9 10 11\n"));
        assert_eq!(samples_of("diskstats", &disks).len(), MAX_DISKS * DISK_COLUMNS);
        let memory = many(|n| format!("Line{n}: 1 kB\n"));
        assert_eq!(samples_of("meminfo", &memory).len(), MAX_MEMORY_LINES);
    }
}
