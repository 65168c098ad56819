//! What this container is and how busy it is: CPUs, memory, `/dev/shm`, limits, and the ids that tell one boot,
//! container and network namespace from another. The roots of `/proc`, `/sys` and the rest are parameters, so
//! that a test can make its own.

pub mod cgroup;
mod cpu;
mod load;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::slot::{CollectError, Collector};
use super::storage::{Room, room};
pub use cgroup::{CgroupVersion, Limit};
use cpu::{CgroupCpu, allowed_cpus, share_of_allowed};

/// Most of these files are shorter.
const FILE_BYTES: usize = 4096;
/// Longest file that is read from `/proc`, `/sys` or a cgroup, in bytes. `/proc/stat` of a host with 512
/// CPUs has a fifth of that.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Where the kernel's files are.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            cgroup: "/sys/fs/cgroup".into(),
            dev: "/dev".into(),
        }
    }
}

/// What stays the same while the container runs. A value that cannot be seen from here is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostFacts {
    /// Name in this UTS namespace.
    pub hostname: Option<String>,
    /// Kernel release, e.g. `6.8.0-60-generic`.
    pub kernel: Option<String>,
    /// Changes with every boot of the host.
    pub boot_id: Option<String>,
    /// Inode of the network namespace: equal for all agents that share ports.
    pub net_namespace: Option<u64>,
    /// Start of PID 1 in clock ticks since boot: the start of the container, if it has a PID namespace.
    pub container_start_ticks: Option<u64>,
    /// Logical CPUs that this process may use: the scheduler's mask, cut by the CPU quota (rounded down, at
    /// least 1).
    pub cpus: Option<u32>,
    /// CPUs in the scheduler's mask.
    pub cpus_in_mask: Option<u32>,
    /// CPU quota of the tightest cgroup, in CPUs.
    pub cpu_quota: Option<f64>,
    /// Memory that this container may use, in bytes: the host's, cut by the tightest cgroup limit.
    pub memory_bytes: Option<u64>,
    /// Memory of the host, in bytes.
    pub memory_host_bytes: Option<u64>,
    /// Limit of the tightest memory cgroup.
    pub memory_limit: Option<Limit>,
    /// Limit of processes and threads of the tightest pids cgroup.
    pub pids_limit: Option<Limit>,
    /// Size of `/dev/shm` in bytes.
    pub shm_bytes: Option<u64>,
    /// Ports that the kernel gives to outgoing connections: first and last.
    pub ip_local_port_range: Option<(u16, u16)>,
    /// Which cgroup interface is mounted.
    pub cgroup: Option<CgroupVersion>,
}

/// One reading. A value that could not be read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostSample {
    /// How busy the CPUs of [`HostFacts::cpus`] were since the sample before, in percent of all of them:
    /// 100 is every CPU busy. `None` in the first sample.
    pub cpu_busy_pct: Option<f32>,
    /// Memory that cannot be reclaimed at once, in bytes: of this container if it has a limit, else of the host.
    pub mem_used_bytes: Option<u64>,
    /// Memory that could be allocated now, in bytes.
    pub mem_available_bytes: Option<u64>,
    /// [`HostFacts::memory_bytes`].
    pub mem_total_bytes: Option<u64>,
    /// Load average of the host over one minute.
    pub load1: Option<f32>,
    /// Free space of `/dev/shm` and its size, in bytes.
    pub shm_free_bytes: Option<u64>,
    pub shm_total_bytes: Option<u64>,
    /// Time lost to waiting.
    pub cpu_pressure: Option<Pressure>,
    pub memory_pressure: Option<Pressure>,
    pub io_pressure: Option<Pressure>,
    /// Tasks that the kernel killed for want of memory since the cgroup was made: `oom_kill` of the tightest
    /// memory cgroup, else of the own one.
    pub oom_kills: Option<u64>,
    /// Processes and threads of the tightest pids cgroup, and its limit. `None`: nobody counts them.
    pub pids: Option<u64>,
    pub pids_limit: Option<u64>,
    /// Open files of the whole host, and the kernel's limit.
    pub open_files: Option<u64>,
    pub open_files_limit: Option<u64>,
    /// Network interfaces of this namespace, by name, without loopback.
    pub interfaces: Vec<Interface>,
    /// Since the boot of the host, in seconds.
    pub uptime_s: Option<u64>,
    /// The agent itself.
    pub agent: AgentUse,
}

/// Shares of the last ten seconds in which tasks waited, in percent, and the total since boot: of the
/// container's own cgroup where it has such a file, else of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some_avg10_pct: f32,
    pub some_total_us: u64,
    /// Every task waited. `None` for a kernel that does not say so of CPUs.
    pub full_avg10_pct: Option<f32>,
    pub full_total_us: Option<u64>,
}

/// Counters of one network interface, since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    pub name: String,
    pub received_bytes: u64,
    pub received_errors: u64,
    pub received_drops: u64,
    pub sent_bytes: u64,
    pub sent_errors: u64,
    pub sent_drops: u64,
}

/// What the agent's own process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AgentUse {
    pub memory_bytes: Option<u64>,
    /// Since the sample before, in percent of one CPU. `None` in the first one.
    pub cpu_pct: Option<f32>,
    pub open_files: Option<u64>,
    pub open_files_limit: Option<u64>,
}

/// Reads the facts. Takes some small files and blocks on nothing but the kernel.
#[must_use]
pub fn facts(roots: &Roots) -> HostFacts {
    let sysctl = roots.proc.join("sys");
    let mask = allowed_cpus(&roots.proc);
    let cpus_in_mask = mask.as_deref().and_then(|m| u32::try_from(m.len()).ok());
    let cpu_quota = cgroup::cpu_quota(roots).map(|quota| quota.cpus);
    let memory = memory(roots);
    HostFacts {
        hostname: word(&sysctl.join("kernel/hostname")),
        kernel: word(&sysctl.join("kernel/osrelease")),
        boot_id: word(&sysctl.join("kernel/random/boot_id")),
        net_namespace: namespace(&roots.proc.join("self/ns/net")),
        container_start_ticks: text(&roots.proc.join("1/stat"))
            .as_deref()
            .and_then(parse_start_ticks),
        cpus: usable_cpus(cpus_in_mask, cpu_quota),
        cpus_in_mask,
        cpu_quota,
        memory_bytes: memory.total,
        memory_host_bytes: memory.host.map(|host| host.total),
        memory_limit: memory.limit,
        pids_limit: cgroup::pids_limit(roots),
        shm_bytes: shm(roots).map(|room| room.total_bytes),
        ip_local_port_range: text(&sysctl.join("net/ipv4/ip_local_port_range"))
            .as_deref()
            .and_then(parse_port_range),
        cgroup: cgroup::version(&roots.cgroup),
    }
}

/// The 1 Hz reader. CPU shares are differences, so it remembers its last reading.
pub struct HostCollector {
    roots: Roots,
    /// CPUs in the mask and usable CPUs, as of the start.
    mask: Option<Vec<u32>>,
    cpus: Option<u32>,
    /// `None` where `sysinfo` cannot work at all.
    system: Option<sysinfo::System>,
    host_read: Option<Instant>,
    last: Option<CgroupCpu>,
    agent: load::AgentMeter,
}

impl HostCollector {
    /// A collector that has taken no sample yet.
    #[must_use]
    pub fn new(roots: Roots) -> Self {
        let facts = facts(&roots);
        Self {
            mask: allowed_cpus(&roots.proc),
            cpus: facts.cpus,
            system: sysinfo::System::new().ok(),
            host_read: None,
            last: None,
            agent: load::AgentMeter::default(),
            roots,
        }
    }

    /// Takes a sample. Blocks on nothing but the kernel. Where the CPU share is that of the host, two samples
    /// must be at least 200 ms apart for it, else it is `None`.
    pub fn sample(&mut self) -> HostSample {
        let memory = memory(&self.roots);
        let shm = shm(&self.roots);
        let pids = cgroup::pids(&self.roots);
        let files = load::open_files(&self.roots);
        HostSample {
            cpu_busy_pct: self.cpu_busy(),
            mem_used_bytes: memory.used,
            mem_available_bytes: memory.available,
            mem_total_bytes: memory.total,
            load1: text(&self.roots.proc.join("loadavg")).as_deref().and_then(parse_load1),
            shm_free_bytes: shm.as_ref().map(|room| room.free_bytes),
            shm_total_bytes: shm.map(|room| room.total_bytes),
            cpu_pressure: load::pressure(&self.roots, "cpu"),
            memory_pressure: load::pressure(&self.roots, "memory"),
            io_pressure: load::pressure(&self.roots, "io"),
            oom_kills: cgroup::oom_kills(&self.roots),
            pids: pids.map(|(count, _)| count),
            pids_limit: pids.and_then(|(_, limit)| match limit {
                Limit::At(count) => Some(count),
                Limit::Unlimited => None,
            }),
            open_files: files.map(|(open, _)| open),
            open_files_limit: files.map(|(_, limit)| limit),
            interfaces: load::interfaces(&self.roots),
            uptime_s: load::uptime_s(&self.roots),
            agent: self.agent.read(&self.roots),
        }
    }

    /// With a CPU quota: what this cgroup used of it. Without: the busy time of the CPUs in the mask, whoever
    /// used them, which `sysinfo` gives per CPU.
    fn cpu_busy(&mut self) -> Option<f32> {
        if let Some(quota) = cgroup::cpu_quota(&self.roots) {
            let now = CgroupCpu {
                used: cgroup::cpu_used(&quota.directory, &self.roots)?,
                at: Instant::now(),
            };
            let cpus = f64::from(self.cpus?).min(quota.cpus);
            let last = self.last.replace(now);
            return last.and_then(|last| now.busy_pct_since(last, cpus));
        }
        let system = self.system.as_mut()?;
        // Too soon after the last time `sysinfo` leaves its numbers as they are, and at first these are zeros.
        let since = self.host_read.map(|read| read.elapsed());
        if since.is_some_and(|since| since < sysinfo::MINIMUM_CPU_UPDATE_INTERVAL) {
            return None;
        }
        system.refresh_cpu_usage();
        self.host_read = Some(Instant::now());
        since?;
        let cpus = system.cpus().iter();
        let usage = cpus.map(|cpu| (cpu.name(), cpu.usage()));
        share_of_allowed(usage, self.mask.as_deref())
    }
}

impl Collector for HostCollector {
    type Reading = HostSample;

    fn read(&mut self) -> Result<HostSample, CollectError> {
        let sample = self.sample();
        // Without any memory to be seen there is no `/proc` to read.
        match sample.mem_total_bytes {
            Some(_) => Ok(sample),
            None => Err(CollectError(format!("{} cannot be read", self.roots.proc.display()))),
        }
    }
}

fn shm(roots: &Roots) -> Option<Room> {
    room(&roots.dev.join("shm")).ok()
}

/// Lines of `/proc/meminfo` in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostMemory {
    total: u64,
    available: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Memory {
    host: Option<HostMemory>,
    limit: Option<Limit>,
    total: Option<u64>,
    used: Option<u64>,
    available: Option<u64>,
}

fn memory(roots: &Roots) -> Memory {
    let host = text(&roots.proc.join("meminfo")).as_deref().and_then(parse_meminfo);
    let limited = cgroup::memory_limit(roots);
    let limit = limited.as_ref().map(|limited| limited.limit);
    // A limit at or above what the host has limits nothing; v1 writes "no limit" as such a number.
    let tight = limited.and_then(|limited| match limited.limit {
        Limit::At(bytes) if host.is_none_or(|host| bytes < host.total) => {
            Some((bytes, limited.used()))
        }
        Limit::At(_) | Limit::Unlimited => None,
    });
    let host_available = host.map(|host| host.available);
    match (tight, host) {
        (Some((bytes, used)), _) => Memory {
            host,
            limit,
            total: Some(bytes),
            used,
            available: used.map(|used| {
                let within = bytes.saturating_sub(used);
                host_available.map_or(within, |host| within.min(host))
            }),
        },
        (None, Some(held)) => Memory {
            host,
            limit: limit.map(|_| Limit::Unlimited),
            total: Some(held.total),
            used: Some(held.total.saturating_sub(held.available)),
            available: host_available,
        },
        (None, None) => Memory { host, limit, total: None, used: None, available: None },
    }
}

fn usable_cpus(in_mask: Option<u32>, quota: Option<f64>) -> Option<u32> {
    let Some(quota) = quota else { return in_mask };
    // Below one CPU a node still has one; the cast saturates.
    let whole = (quota.floor() as u32).max(1);
    Some(in_mask.map_or(whole, |mask| mask.min(whole)))
}

/// The text of a small file; `None` when it cannot be read or is longer than any that this module knows.
pub(crate) fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    // Nearly all fit: a buffer that has to grow costs a read each time.
    let mut text = String::with_capacity(FILE_BYTES);
    let file = std::fs::File::open(path).ok()?;
    let read = file.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
    (u64::try_from(read).ok()? < MAX_FILE_BYTES).then_some(text)
}

/// The text of a file without the white space around it; `None` when nothing is left.
pub(crate) fn word(path: &Path) -> Option<String> {
    let text = text(path)?;
    let word = text.trim();
    (!word.is_empty()).then(|| word.to_owned())
}

/// The inode of a namespace, from a link in `/proc/<pid>/ns` such as `net:[4026531840]`.
pub(crate) fn namespace(link: &Path) -> Option<u64> {
    let target = std::fs::read_link(link).ok()?;
    let (_, inode) = target.to_str()?.split_once(":[")?;
    inode.strip_suffix(']')?.parse().ok()
}

/// Field 22 of `/proc/<pid>/stat`. The command in field 2 may hold spaces and brackets, so fields are counted
/// from its last bracket.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn parse_port_range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u16>);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (numbers.next().is_none() && first <= last).then_some((first, last))
}

fn parse_load1(text: &str) -> Option<f32> {
    let load: f32 = text.split_ascii_whitespace().next()?.parse().ok()?;
    (load.is_finite() && load >= 0.0).then_some(load)
}

fn parse_meminfo(text: &str) -> Option<HostMemory> {
    let line = |key: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(HostMemory {
        total: line("MemTotal:").filter(|total| *total > 0)?,
        available: line("MemAvailable:")?,
    })
}

#[cfg(test)]
mod tests;
