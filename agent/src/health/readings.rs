//! What the collectors read, as the health rules take it. Every reading goes to the rules once: what
//! has been seen before is told apart by its number, and what a sample of a GPU only repeats by the
//! time at which it was read.

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::{GangId, GpuId, MemberKey};
use gangline_common::time::Timestamp;
use gangline_health::reading::{
    Agent, Canary, Collector, Fabric, Gpu, GpuSet, Handle, KernelClass, KernelLine, LocalDisk,
    Memory, Nvlink, OomKills, Outcome, Pcie, PhysicalState, Port, PortState, Ports, Process,
    RecoveryAction, SharedRoot, Sxid, Tasks, Usage, Work, Xid,
};
use gangline_health::{Component, Reading, Rule};

use super::judge::Beside;
use crate::collectors::Readings;
use crate::collectors::accelerator::{
    self, AcceleratorError, FabricState, GpuIdentity, GpuSample, Owner, ReadAt, XidEvent,
};
use crate::collectors::host::HostSample;
use crate::collectors::kernel::{self, KernelReading};
use crate::collectors::rdma::{self, RdmaDevice, RdmaReading};
use crate::collectors::shared::{CanaryOutcome, SharedReading};
use crate::collectors::slot::{self, Latest, Status};
use crate::collectors::storage::{Room, StorageReading};
use crate::collectors::tasks::TasksReading;
use crate::holders::Holders;

/// Above this share of time with a kernel running, a PCIe link has no reason to sleep, in percent.
const LOAD_PCT: f32 = 20.0;
/// From here on the clocks of GPUs that do the same can be compared, in percent.
const WORK_PCT: f32 = 50.0;

/// What the node has told the coordinator that it has; what is missing of it later is missing.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Registered {
    pub gpus: BTreeSet<String>,
    pub ports: u32,
    /// The highest rate that each port ever had, in bytes per second: `mlx5_0/1`.
    pub rates: BTreeMap<String, u64>,
    /// RDMA devices that were not counted as `ports`.
    pub excluded: BTreeSet<String>,
}

impl Registered {
    /// More GPUs are there. When none of the earlier ones is, the container has moved to another machine,
    /// and those are not missing.
    pub fn add(&mut self, visible: &BTreeSet<GpuId>) {
        let moved = !visible.is_empty() && !visible.iter().any(|gpu| self.gpus.contains(&gpu.0));
        if moved {
            self.gpus.clear();
            self.ports = 0;
            self.rates.clear();
        }
        self.gpus.extend(visible.iter().map(|gpu| gpu.0.clone()));
    }

    /// The ports that are there, and how fast they are. Those of `excluded` devices do not count.
    pub fn add_ports(&mut self, rdma: &RdmaReading, excluded: &BTreeSet<String>) {
        if self.excluded != *excluded {
            self.excluded = excluded.clone();
            self.ports = 0;
        }
        let ports = all_ports(rdma).filter(|(device, _)| !excluded.contains(&device.name)).count();
        self.ports = self.ports.max(u32::try_from(ports).unwrap_or(u32::MAX));
        for (device, port) in all_ports(rdma) {
            let Some(rate) = port.rate_bytes_per_s.filter(|_| is_up(port)) else { continue };
            let known = self.rates.entry(port_name(&device.name, port.number)).or_default();
            *known = rate.max(*known);
        }
    }
}

fn port_name(device: &str, port: u32) -> String {
    format!("{device}/{port}")
}

fn all_ports(rdma: &RdmaReading) -> impl Iterator<Item = (&RdmaDevice, &rdma::Port)> {
    rdma.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

/// The rate of a port that is down is none.
fn is_up(port: &rdma::Port) -> bool {
    port.state.as_ref().is_some_and(|state| PortState::from_sysfs(&state.name) == PortState::Active)
}

/// How the kernel begins its line when a cgroup's limit, not the host's memory, was reached.
const OF_A_CGROUP: &str = "emory cgroup out of memory";

/// What the kernel says of a lost GPU without a code is this Xid.
const FALLEN_OFF_THE_BUS: u32 = 79;
/// Of an Xid without a code.
const NO_CODE: &str = "the driver gives no code";

/// What was handed to the rules last, of each source.
#[derive(Debug, Default)]
pub struct Translator {
    numbers: BTreeMap<&'static str, u64>,
    /// Attempts of each collector, successes and failures, when its fate was last told.
    told: BTreeMap<&'static str, u64>,
    gpus: BTreeMap<GpuId, Known>,
    oom_kills: Option<u64>,
    /// Gangs that were here when the host was read last.
    gangs: BTreeSet<GangId>,
    kernel_line: Option<u64>,
    /// PCI address to GPU, for lines of the kernel.
    addresses: BTreeMap<String, GpuId>,
    /// Of every GPU the address is known: another one is not of this node.
    knows_addresses: bool,
    blind_said: bool,
    /// Why the accelerators could not be used when the agent began, on a node that has some.
    library: Option<Handle>,
}

/// What is known of one GPU beside its samples.
#[derive(Debug, Default)]
struct Known {
    /// Of which reading each part was handed out last.
    handed: ReadAt,
    gang: Option<GangId>,
    /// Another gang has held it until then at the latest, in milliseconds of the boot clock.
    held_since_ms: u64,
}

/// What of a sample is handed out.
#[derive(Debug, Clone, Copy)]
struct New {
    slow: bool,
    processes: bool,
}

impl Known {
    /// The parts of a sample that were read since the one before. A list of processes from before the GPU
    /// changed hands says nothing of who has it now.
    fn new_in(&mut self, read_at: ReadAt) -> New {
        let before = std::mem::replace(&mut self.handed, read_at);
        let since = |now: Option<u64>, before: Option<u64>| now.is_none() || now != before;
        New {
            slow: since(read_at.slow_ms, before.slow_ms),
            processes: since(read_at.processes_ms, before.processes_ms)
                && read_at.processes_ms.is_none_or(|ms| ms >= self.held_since_ms),
        }
    }
}

impl Translator {
    /// Everything that is new in `readings`. `now` is from after `beside` was looked at.
    pub fn take(
        &mut self,
        readings: &Readings,
        beside: Beside<'_>,
        registered: &Registered,
        now: Timestamp,
    ) -> Vec<Reading> {
        let Beside { visible, holders, gangs } = beside;
        let mut out = Vec::new();
        self.note_holders(visible, holders, now);
        for status in readings.collectors() {
            out.extend(self.fate(&status));
        }
        self.gpus(readings, visible, registered, holders, &mut out);
        if let Some(rdma) = self.news("rdma", &readings.rdma) {
            ports(&rdma, registered, !holders.is_empty(), &mut out);
        }
        if let Some(host) = self.news("host", &readings.host) {
            self.host(&host, gangs, &mut out);
            out.push(Reading::Agent(Agent {
                loop_lag_ms: Some(readings.lag_ms),
                rss_bytes: host.agent.memory_bytes,
                descriptors: Usage {
                    used: host.agent.open_files,
                    limit: host.agent.open_files_limit,
                },
            }));
        }
        if let Some(storage) = self.news("storage", &readings.storage) {
            disks(&storage, &mut out);
        }
        if let Some(shared) = &readings.shared
            && let Some(reading) = self.news("shared", shared)
        {
            out.push(shared_root(&reading));
        }
        if let Some(tasks) = self.news("tasks", &readings.tasks) {
            out.push(stuck(&tasks));
        }
        match &readings.kernel {
            Some(kernel) => {
                if let Some(kernel) = self.news("kernel", kernel) {
                    self.kernel(&kernel, holders, &mut out);
                }
            }
            None if !std::mem::replace(&mut self.blind_said, true) => out.push(Reading::Blind {
                rule: Rule::Kernel,
                component: Component::Node,
                why: "the kernel's log may not be read in this container".to_owned(),
            }),
            None => {}
        }
        if let Some(clock) = readings.clock
            && clock.uncertain_ms < clock.ahead_ms.unsigned_abs().max(1_000)
        {
            out.push(Reading::ClockOffset(clock.ahead_ms));
        }
        out
    }

    /// An error that the driver reported by itself. One that it does not know is told of all the same.
    pub fn xid(event: &XidEvent, holders: &Holders) -> Reading {
        let gpu = Some(GpuId(event.uuid.clone()));
        match event.xid {
            Some(code) => self::xid(gpu, u32::try_from(code).unwrap_or(u32::MAX), None, holders),
            None => self::xid(gpu, 0, Some(NO_CODE.to_owned()), holders),
        }
    }

    /// The value of a collector if it was not handed out before.
    fn news<T>(&mut self, name: &'static str, latest: &Latest<T>) -> Option<std::sync::Arc<T>> {
        let value = latest.value.clone()?;
        let last = self.numbers.insert(name, latest.number);
        (last != Some(latest.number)).then_some(value)
    }

    /// How the newest run of a collector ended, once for each run, and again and again while it hangs.
    fn fate(&mut self, status: &Status) -> Option<Reading> {
        let runs = status.readings.saturating_add(status.failures);
        let outcome = match &status.outcome {
            slot::Outcome::Starting => return None,
            slot::Outcome::Hung => {
                Outcome::Hangs(u64::try_from(status.duration.as_millis()).unwrap_or(u64::MAX))
            }
            slot::Outcome::Ok => Outcome::Good,
            slot::Outcome::Failed(why) => Outcome::Failed(why.clone()),
            slot::Outcome::Panicked(why) => Outcome::Panicked(why.clone()),
        };
        let told = self.told.insert(status.name, runs);
        let again = matches!(outcome, Outcome::Hangs(_)) || told != Some(runs);
        let name = status.name.to_owned();
        again.then_some(Reading::Collector(Collector { name, outcome }))
    }

    fn note_holders(&mut self, visible: &BTreeSet<GpuId>, holders: &Holders, now: Timestamp) {
        self.gpus.retain(|gpu, _| visible.contains(gpu));
        for gpu in visible {
            let gang = holders.get(gpu).map(|holder| &holder.gang);
            match self.gpus.get_mut(gpu) {
                Some(known) if known.gang.as_ref() == gang => {}
                Some(known) => {
                    known.gang = gang.cloned();
                    known.held_since_ms = now.boot_ms;
                }
                None => {
                    let known = Known { gang: gang.cloned(), ..Known::default() };
                    self.gpus.insert(gpu.clone(), known);
                }
            }
        }
    }

    fn gpus(
        &mut self,
        readings: &Readings,
        visible: &BTreeSet<GpuId>,
        registered: &Registered,
        holders: &Holders,
        out: &mut Vec<Reading>,
    ) {
        let known: BTreeSet<GpuId> = registered.gpus.iter().cloned().map(GpuId).collect();
        let Some(latest) = &readings.gpus else {
            // Neither library nor driver: right for a node that never had a GPU.
            let gone = || Handle::Error("the NVML library is gone or does not start".to_owned());
            let library = self.library.clone().or_else(|| (!known.is_empty()).then(gone));
            let present = Some(BTreeSet::new());
            out.push(Reading::GpuSet(GpuSet { registered: known, present, library }));
            return;
        };
        let Some(gpus) = self.news("gpus", latest) else { return };
        let seen = |gpu: &&GpuSample| {
            let id = GpuId(gpu.uuid.clone());
            visible.contains(&id) || known.contains(&id)
        };
        let gpus: Vec<&GpuSample> = gpus.iter().filter(seen).collect();
        let present = Some(gpus.iter().map(|gpu| GpuId(gpu.uuid.clone())).collect());
        let library = Some(Handle::Good);
        out.push(Reading::GpuSet(GpuSet { registered: known, present, library }));
        for gpu in gpus {
            let known = self.gpus.entry(GpuId(gpu.uuid.clone())).or_default();
            let new = known.new_in(gpu.read_at);
            out.push(Reading::Gpu(Box::new(self::gpu(gpu, holders, new))));
        }
    }

    /// The accelerators could not be used when the agent began.
    pub fn learn_problem(&mut self, problem: &AcceleratorError) {
        self.library = match problem {
            AcceleratorError::VersionMismatch(_) => Some(Handle::DriverMismatch),
            AcceleratorError::NoDriver(_) => None,
            AcceleratorError::Hung(_) | AcceleratorError::Failed(_) => {
                Some(Handle::Error(problem.to_string()))
            }
        };
    }

    /// Where the GPUs are on the bus, for lines of the kernel's log.
    pub fn learn_addresses(&mut self, gpus: &[GpuIdentity]) {
        let address = |gpu: &GpuIdentity| {
            Some((short_address(gpu.pci_bus_id.as_deref()?), GpuId(gpu.uuid.clone())))
        };
        self.addresses = gpus.iter().filter_map(address).collect();
        self.knows_addresses = !gpus.is_empty() && self.addresses.len() == gpus.len();
    }

    /// Where one of these is not among the addresses, an address that is not known may be its.
    pub fn check_addresses<'a>(&mut self, mut ours: impl Iterator<Item = &'a str>) {
        let is_known = |gpu: &str| self.addresses.values().any(|known| known.0 == gpu);
        self.knows_addresses = self.knows_addresses && ours.all(is_known);
    }

    fn host(&mut self, host: &HostSample, gangs: &BTreeSet<GangId>, out: &mut Vec<Reading>) {
        out.push(Reading::Memory(Memory {
            available_bytes: host.mem_available_bytes,
            total_bytes: host.mem_total_bytes,
            pressure_full_avg10: host
                .memory_pressure
                .and_then(|pressure| pressure.full_avg10_pct)
                .map(f64::from),
        }));
        let before = std::mem::replace(&mut self.gangs, gangs.clone());
        if let Some(kills) = host.oom_kills {
            // One that was killed may have left since.
            let mut here = before.union(gangs);
            let before = self.oom_kills.replace(kills);
            let new = before.map_or(0, |before| kills.saturating_sub(before));
            if new > 0 {
                // With one gang here there is nobody else whom it can have been.
                let gang = here.next().filter(|_| here.next().is_none()).cloned();
                out.push(Reading::OomKills(OomKills { new, gang }));
            }
        }
        let shm = match (host.shm_total_bytes, host.shm_free_bytes) {
            (Some(total), Some(free)) => {
                Usage { used: Some(total.saturating_sub(free)), limit: Some(total) }
            }
            _ => Usage::default(),
        };
        out.push(Reading::Shm(shm));
        out.push(Reading::Pids(Usage { used: host.pids, limit: host.pids_limit }));
        let files = Usage { used: host.open_files, limit: host.open_files_limit };
        out.push(Reading::Descriptors(files));
    }

    /// The GPU at an address; the inner `None` when that is not known. `None` when it is none of this node's:
    /// the log is the whole machine's, on which there may be other containers.
    fn whose(&self, pci_address: Option<&str>) -> Option<Option<GpuId>> {
        let Some(address) = pci_address else { return Some(None) };
        let ours = self.addresses.get(&short_address(address));
        (ours.is_some() || !self.knows_addresses).then(|| ours.cloned())
    }

    fn kernel(&mut self, kernel: &KernelReading, holders: &Holders, out: &mut Vec<Reading>) {
        for line in &kernel.lines {
            if self.kernel_line.is_some_and(|last| line.sequence <= last) {
                continue;
            }
            self.kernel_line = Some(line.sequence);
            let of = |class| Reading::Kernel(KernelLine { class, text: line.text.clone() });
            out.push(match &line.class {
                kernel::KernelClass::SoftLockup => of(KernelClass::SoftLockup),
                kernel::KernelClass::HungTask => of(KernelClass::HungTask),
                kernel::KernelClass::ReadOnlyRemount => of(KernelClass::ReadOnlyRemount),
                kernel::KernelClass::NfsNotResponding => of(KernelClass::NfsNotResponding),
                kernel::KernelClass::IoError => of(KernelClass::IoError),
                kernel::KernelClass::OutOfMemory if line.text.contains(OF_A_CGROUP) => {
                    of(KernelClass::ContainerOutOfMemory)
                }
                kernel::KernelClass::AdapterTrouble => of(KernelClass::AdapterTrouble),
                kernel::KernelClass::OutOfMemory => of(KernelClass::HostOutOfMemory),
                kernel::KernelClass::NfsOk => continue,
                kernel::KernelClass::Xid { pci_address, xid } => {
                    let code = u32::try_from(*xid).unwrap_or(u32::MAX);
                    let Some(gpu) = self.whose(Some(pci_address)) else { continue };
                    self::xid(gpu, code, Some(line.text.clone()), holders)
                }
                kernel::KernelClass::Sxid { pci_address, sxid, fatal } => {
                    let Ok(code) = u32::try_from(*sxid) else { continue };
                    let switch = pci_address.clone();
                    Reading::Sxid(Sxid { switch, code, fatal: *fatal })
                }
                kernel::KernelClass::GpuLost { pci_address } => {
                    let Some(gpu) = self.whose(pci_address.as_deref()) else { continue };
                    self::xid(gpu, FALLEN_OFF_THE_BUS, Some(line.text.clone()), holders)
                }
            });
        }
    }
}

fn xid(gpu: Option<GpuId>, code: u32, text: Option<String>, holders: &Holders) -> Reading {
    let holder = gpu.as_ref().and_then(|gpu| holders.get(gpu));
    let job = holder.and_then(|holder| holder.job.clone());
    Reading::Xid(Xid { gpu, code, text, job })
}

/// `00000000:3B:00.0` of NVML and `0000:3b:00` of the kernel become the same.
fn short_address(address: &str) -> String {
    let lower = address.to_ascii_lowercase();
    let without_function = lower.split('.').next().unwrap_or_default();
    let parts: Vec<&str> = without_function.split(':').collect();
    match parts.as_slice() {
        [.., domain, bus, device] => {
            format!("{}:{bus}:{device}", domain.trim_start_matches('0'))
        }
        _ => without_function.to_owned(),
    }
}

/// What the GPU does, if it is under load.
fn work(sample: &GpuSample, gang: Option<&GangId>) -> Option<Work> {
    sample.utilization_pct.filter(|pct| *pct >= WORK_PCT)?;
    Some(Work {
        gang: gang?.clone(),
        memory_bytes: sample.memory_total_bytes?,
        sm_clock_mhz: sample.sm_clock_mhz?,
    })
}

/// What is not new is absent.
fn gpu(sample: &GpuSample, holders: &Holders, new: New) -> Gpu {
    let uuid = GpuId(sample.uuid.clone());
    let holder = holders.get(&uuid);
    let holds = |key: &MemberKey| holders.values().any(|holder| holder.gang == key.gang);
    let foreign = |process: &accelerator::GpuProcess| match &process.owner {
        Owner::Foreign { uid } => Some(Process {
            pid: process.pid,
            user: uid.map_or("unknown user".to_owned(), |uid| format!("uid {uid}")),
            name: String::new(),
        }),
        // Nor has a member any business on a GPU that its gang was not given (A42). Of a gang that holds
        // nothing here any more it may be the last process, on its way out.
        Owner::Member(key) if holder.map_or_else(|| holds(key), |by| by.gang != key.gang) => {
            Some(Process {
                pid: process.pid,
                user: format!("gang {}", key.gang),
                name: String::new(),
            })
        }
        Owner::Member(_) | Owner::Unknown => None,
    };
    let ecc = &sample.ecc.volatile;
    let split = ecc.sram_uncorrected.is_some() || ecc.dram_uncorrected.is_some();
    let slow = |value: Option<u64>| value.filter(|_| new.slow);
    let rows = sample.rows.filter(|_| new.slow);
    Gpu {
        handle: Some(match (sample.lost, sample.reset_required, &sample.problem) {
            (true, _, _) => Handle::Lost,
            (_, true, _) => Handle::ResetRequired,
            (_, _, Some(problem)) => Handle::Error(problem.clone()),
            _ => Handle::Good,
        }),
        ecc_sram_uncorrected: slow(ecc.sram_uncorrected),
        // An old driver does not say where: then it is the milder of the two.
        ecc_dram_uncorrected: slow(if split { ecc.dram_uncorrected } else { ecc.uncorrected }),
        remap_pending: rows.map(|rows| rows.pending),
        remap_failure: rows.map(|rows| rows.failed),
        remapped_uncorrectable: rows.map(|rows| u64::from(rows.uncorrected)),
        recovery_action: sample.recovery.map(recovery),
        clock_event_reasons: sample.clock_reasons,
        temperature_margin_c: sample.temperature_margin_c.filter(|_| new.slow).map(i64::from),
        hbm_temperature_c: sample.memory_temperature_c.map(|degrees| degrees as i64),
        // Beside the load of the same moment.
        pcie: new.slow.then_some(Pcie {
            generation: sample.pcie.generation,
            max_generation: sample.pcie.max_generation,
            width: sample.pcie.width,
            max_width: sample.pcie.max_width,
            under_load: sample.utilization_pct.map(|pct| pct >= LOAD_PCT),
        }),
        pcie_replays: sample.pcie.replays.map(u64::from),
        nvlinks: sample.links.iter().flatten().map(|one| link(one, new.slow)).collect(),
        // What kind of machine it is does not become old.
        nvswitch: sample.fabric.map(|fabric| !matches!(fabric.state, FabricState::Other(_))),
        fabric: sample.fabric.filter(|_| new.slow).map(|fabric| match fabric.state {
            FabricState::NotStarted => Fabric::NotStarted,
            FabricState::InProgress => Fabric::InProgress,
            FabricState::Completed => Fabric::Completed(fabric.status),
            FabricState::Other(_) => Fabric::NotSupported,
        }),
        persistence: sample.persistence.filter(|_| new.slow),
        // Together: little memory in use would be a good reading of a list that is not there.
        free: new.processes.then_some(holder.is_none()),
        work: work(sample, holder.map(|holder| &holder.gang)),
        memory_used_bytes: sample.memory_used_bytes.filter(|_| new.processes),
        foreign: sample
            .processes
            .as_ref()
            .filter(|_| new.processes)
            .map(|all| all.iter().filter_map(foreign).collect()),
        ..Gpu::new(uuid)
    }
}

fn recovery(action: accelerator::RecoveryAction) -> RecoveryAction {
    match action {
        accelerator::RecoveryAction::None => RecoveryAction::None,
        accelerator::RecoveryAction::GpuReset => RecoveryAction::GpuReset,
        accelerator::RecoveryAction::NodeReboot => RecoveryAction::NodeReboot,
        accelerator::RecoveryAction::DrainPeers => RecoveryAction::DrainP2p,
        accelerator::RecoveryAction::DrainAndReset => RecoveryAction::DrainAndReset,
        accelerator::RecoveryAction::Other(number) => {
            RecoveryAction::Unknown(u32::try_from(number).unwrap_or(u32::MAX))
        }
    }
}

/// Its state is read each time, its counters are not.
fn link(link: &accelerator::Link, counted: bool) -> Nvlink {
    let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        _ if !counted => None,
        (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    };
    Nvlink {
        index: u8::try_from(link.number).unwrap_or(u8::MAX),
        active: link.active,
        crc: sum(link.crc_flit, link.crc_data),
        errors: sum(link.replays, link.recoveries),
    }
}

fn ports(rdma: &RdmaReading, registered: &Registered, in_use: bool, out: &mut Vec<Reading>) {
    let characters = |prefix: &str| {
        let names = rdma.character_devices.as_ref()?;
        let count = names.iter().filter(|name| name.starts_with(prefix)).count();
        u32::try_from(count).ok()
    };
    // A device that cannot be read is not gone.
    let whole = rdma.left_out == 0 && rdma.devices.iter().all(|device| device.problem.is_none());
    out.push(Reading::Ports(Ports {
        present: whole.then(|| {
            all_ports(rdma).map(|(device, port)| (device.name.clone(), port.number)).collect()
        }),
        registered: Some(registered.ports),
        uverbs: characters("uverbs"),
        umad: characters("umad"),
    }));
    let gbps = |rate: u64| rate as f64 * 8.0 / 1e9;
    for (device, port) in all_ports(rdma) {
        let counters = port.counters.iter().filter_map(|(name, counter)| {
            // The rules know a counter by its last value, over restarts of the agent too.
            Some((gangline_health::reading::Counter::from_file(name)?, counter.value))
        });
        out.push(Reading::Port(Box::new(Port {
            device: device.name.clone(),
            port: port.number,
            kind: kind(device, port),
            state: port.state.as_ref().map(|state| PortState::from_sysfs(&state.name)),
            physical: port
                .physical_state
                .as_ref()
                .map(|state| PhysicalState::from_sysfs(&state.name)),
            rate_gbps: port.rate_bytes_per_s.map(gbps),
            expected_rate_gbps: registered
                .rates
                .get(&port_name(&device.name, port.number))
                .map(|rate| gbps(*rate)),
            in_use: Some(in_use),
            counters: counters.collect(),
            unreadable: port.unreadable.clone(),
            ..Port::default()
        })));
    }
}

/// The adapter by its type and board, which tells single from dual ports, and what is spoken on the link.
fn kind(device: &RdmaDevice, port: &rdma::Port) -> Option<String> {
    let (adapter, link) = (device.hca_type.as_ref()?, port.link_layer?);
    Some(format!("{adapter} {} {link:?}", device.board_id.as_deref().unwrap_or_default()))
}

fn usage_of(room: &Room) -> (Usage, Usage) {
    let bytes = Usage {
        used: Some(room.total_bytes.saturating_sub(room.free_bytes)),
        limit: Some(room.total_bytes),
    };
    // Some file systems count no inodes.
    let inodes = match room.total_inodes {
        0 => Usage::default(),
        total => Usage { used: Some(total.saturating_sub(room.free_inodes)), limit: Some(total) },
    };
    (bytes, inodes)
}

/// The disks go by what they are for: the temp root comes and goes with jobs, and what is not there is
/// absent, not a disk that is no longer read.
fn disks(storage: &StorageReading, out: &mut Vec<Reading>) {
    for (name, room) in [("state directory", &storage.state), ("temp root", &storage.temp)] {
        let bytes = room.as_ref().map(|room| usage_of(room).0).unwrap_or_default();
        out.push(Reading::LocalDisk(LocalDisk { path: name.to_owned(), bytes }));
    }
}

/// The shared root goes by one name, whatever became of the try.
pub const SHARED_ROOT: &str = "shared root";

fn shared_root(shared: &SharedReading) -> Reading {
    let canary = match &shared.outcome {
        CanaryOutcome::Ok { took_ms } => Canary::Done(u64::from(*took_ms)),
        CanaryOutcome::Failed { step, reason } => Canary::Failed(format!("{step}: {reason}")),
        CanaryOutcome::TimedOut { waiting_ms } => Canary::Hangs(*waiting_ms),
    };
    let (bytes, inodes) = shared.room.as_ref().map(usage_of).unwrap_or_default();
    Reading::SharedRoot(SharedRoot {
        path: SHARED_ROOT.to_owned(),
        canary: Some(canary),
        bytes,
        inodes,
    })
}

fn stuck(tasks: &TasksReading) -> Reading {
    let names = tasks.blocked.iter().map(|task| format!("{} ({})", task.name, task.pid));
    Reading::Tasks(Tasks { stuck: Some(names.collect()), zombies: Some(u64::from(tasks.zombies)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::Holder;

    #[test]
    fn addresses_of_the_driver_and_of_the_kernel_meet() {
        for (nvml, kernel) in
            [("00000000:3B:00.0", "0000:3b:00"), ("00000001:3b:00.0", "0001:3B:00.0")]
        {
            assert_eq!(short_address(nvml), short_address(kernel));
        }
        assert_ne!(short_address("00000000:3B:00.0"), short_address("00000001:3B:00.0"));
    }

    #[test]
    fn gpus_of_another_machine_take_the_place_of_all_and_one_that_is_gone_stays() {
        let visible = |uuids: &[&str]| uuids.iter().map(|uuid| GpuId((*uuid).to_owned())).collect();
        let mut registered = Registered::default();
        registered.add(&visible(&["a", "b"]));
        registered.add(&visible(&["a"]));
        registered.add(&visible(&[]));
        registered.add(&visible(&["a", "c"]));
        assert_eq!(registered.gpus, ["a", "b", "c"].map(str::to_owned).into());
        registered.add(&visible(&["x", "y"]));
        assert_eq!(registered.gpus, ["x", "y"].map(str::to_owned).into());
    }

    fn identity(uuid: &str, pci_bus_id: Option<&str>) -> GpuIdentity {
        GpuIdentity {
            index: 0,
            uuid: uuid.to_owned(),
            name: String::new(),
            memory_bytes: 0,
            pci_bus_id: pci_bus_id.map(str::to_owned),
            minor: None,
        }
    }

    /// GPU, code and job of everything that the kernel's lines make.
    fn xids(
        gpus: &[GpuIdentity],
        classes: &[kernel::KernelClass],
    ) -> Vec<(Option<String>, u32, Option<String>)> {
        let line = |(class, sequence): (&kernel::KernelClass, u64)| kernel::KernelLine {
            sequence,
            at_us: 0,
            class: class.clone(),
            text: "as the kernel says it".to_owned(),
        };
        let lines = classes.iter().zip(1..).map(line).collect();
        let reading = KernelReading { lines, ..KernelReading::default() };
        let job = Some("train-1".parse().unwrap());
        let holder = Holder { gang: "g".parse().unwrap(), job };
        let holders = Holders::from([(GpuId("a".to_owned()), holder)]);
        let (mut translator, mut out) = (Translator::default(), Vec::new());
        translator.learn_addresses(gpus);
        translator.kernel(&reading, &holders, &mut out);
        let of = |reading: Reading| match reading {
            Reading::Xid(xid) => {
                (xid.gpu.map(|gpu| gpu.0), xid.code, xid.job.map(|job| job.to_string()))
            }
            other => panic!("{other:?}"),
        };
        out.into_iter().map(of).collect()
    }

    #[test]
    fn what_the_kernel_says_of_a_gpu_is_that_gpus_and_its_jobs() {
        let at = |address: &str| Some(address.to_owned());
        let classes = [
            kernel::KernelClass::Xid { pci_address: "0000:1b:00".to_owned(), xid: 13 },
            kernel::KernelClass::GpuLost { pci_address: at("0000:1b:00.0") },
            kernel::KernelClass::GpuLost { pci_address: at("0000:5d:00.0") },
            kernel::KernelClass::GpuLost { pci_address: None },
        ];
        let (a, job) = (Some("a".to_owned()), Some("train-1".to_owned()));
        let ours = [(a.clone(), 13, job.clone()), (a, 79, job)];
        // An address that none of the GPUs here has is of another container on this machine.
        let gpus = [identity("a", Some("00000000:1B:00.0"))];
        assert_eq!(xids(&gpus, &classes), [&ours[..], &[(None, 79, None)]].concat());
        // Where one of them has none, it may be that one.
        let gpus = [gpus[0].clone(), identity("b", None)];
        let node = [(None, 79, None), (None, 79, None)];
        assert_eq!(xids(&gpus, &classes), [&ours[..], &node].concat());
    }

    #[test]
    fn an_xid_that_the_driver_has_no_code_for_is_told_of() {
        let event =
            |xid| XidEvent { sequence: 1, at: Default::default(), uuid: "a".to_owned(), xid };
        for (xid, code) in [(None, 0), (Some(31), 31), (Some(u64::MAX), u32::MAX)] {
            let reading = Translator::xid(&event(xid), &Holders::new());
            assert!(matches!(&reading, Reading::Xid(found) if found.code == code), "{reading:?}");
        }
    }

    #[test]
    fn memory_that_a_cgroup_lacks_is_not_the_hosts() {
        let line = |sequence, text: &str| kernel::KernelLine {
            sequence,
            at_us: 0,
            class: kernel::KernelClass::OutOfMemory,
            text: text.to_owned(),
        };
        let lines = vec![
            line(1, "Memory cgroup out of memory: Killed process 77 (ray::W) total-vm:1kB"),
            line(2, "Out of memory: Killed process 78 (python3) total-vm:1kB"),
        ];
        let reading = KernelReading { lines, matched: 2, overwritten: 0 };
        let mut out = Vec::new();
        let mut translator = Translator::default();
        let holders = Holders::new();
        translator.kernel(&reading, &holders, &mut out);
        // What was read is not told again.
        translator.kernel(&reading, &holders, &mut out);
        let classes = out.iter().map(|reading| match reading {
            Reading::Kernel(line) => line.class,
            other => panic!("{other:?}"),
        });
        let classes: Vec<KernelClass> = classes.collect();
        assert_eq!(classes, [KernelClass::ContainerOutOfMemory, KernelClass::HostOutOfMemory]);
    }

    #[test]
    fn what_samples_repeat_is_handed_out_once_and_no_list_blames_from_before_a_gpu_changed_hands() {
        let at = |second: u64| Timestamp { boot_ms: second * 1000, wall_ms: 0 };
        let holder = |gang: &str| {
            let holder = Holder { gang: gang.parse().unwrap(), job: None };
            Holders::from([(GpuId("a".to_owned()), holder)])
        };
        let visible = BTreeSet::from([GpuId("a".to_owned())]);
        let read = |slow: u64, processes: u64| ReadAt {
            slow_ms: Some(slow * 1000),
            processes_ms: Some(processes * 1000),
        };
        let mut translator = Translator::default();
        let mut new = |second: u64, gang: &str, read_at: ReadAt| {
            translator.note_holders(&visible, &holder(gang), at(second));
            let new = translator.gpus.get_mut(&GpuId("a".to_owned())).unwrap().new_in(read_at);
            (new.slow, new.processes)
        };
        assert_eq!(new(10, "g", read(10, 10)), (true, true));
        assert_eq!(new(11, "g", read(10, 10)), (false, false));
        assert_eq!(new(12, "g", read(10, 12)), (false, true));
        // Another gang has it; the list is from before that, or nobody knows.
        assert_eq!(new(15, "h", read(10, 14)), (false, false));
        assert_eq!(new(16, "h", read(10, 14)), (false, false));
        assert_eq!(new(17, "h", read(17, 16)), (true, true));
        // A sample that repeats nothing is new as a whole.
        assert_eq!(new(18, "h", ReadAt::default()), (true, true));
        assert_eq!(new(19, "h", ReadAt::default()), (true, true));
    }

    #[test]
    fn a_process_of_a_gang_that_does_not_hold_the_gpu_is_foreign() {
        let process = |owner| accelerator::GpuProcess { pid: 7, used_bytes: None, owner };
        let member = |gang: &str| Owner::Member(format!("{gang}:1.1:0").parse().unwrap());
        let gpu_with = |owner| GpuSample {
            uuid: "a".to_owned(),
            processes: Some(vec![process(owner)]),
            ..GpuSample::default()
        };
        let holder = Holder { gang: "g".parse().unwrap(), job: None };
        let holders = Holders::from([(GpuId("a".to_owned()), holder)]);
        let all = New { slow: true, processes: true };
        let count =
            |owner, holders: &Holders| gpu(&gpu_with(owner), holders, all).foreign.unwrap().len();
        assert_eq!(count(member("g"), &holders), 0);
        assert_eq!(count(member("h"), &holders), 1);
        assert_eq!(count(Owner::Foreign { uid: Some(0) }, &holders), 1);
        assert_eq!(count(Owner::Unknown, &holders), 0);
        // A gang that holds nothing here any more may still be on its way out.
        assert_eq!(count(member("g"), &Holders::new()), 0);
        // One that holds another GPU takes what it was not given.
        let holder = Holder { gang: "g".parse().unwrap(), job: None };
        let of_another = Holders::from([(GpuId("b".to_owned()), holder)]);
        assert_eq!(count(member("g"), &of_another), 1);
    }
}
