//! What is observed. Everything that can be absent is optional: absent is absent and never 0, and an
//! absent value neither raises a condition nor heals one.
//!
//! There is no reading for a line of a job's log: such text is not evidence of hardware.

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::{GangId, GpuId, JobId};

use crate::component::Component;
use crate::rule::Rule;

/// One observation.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading {
    GpuSet(GpuSet),
    Gpu(Box<Gpu>),
    Xid(Xid),
    Sxid(Sxid),
    Ports(Ports),
    Port(Box<Port>),
    /// A gang with a member here failed with an NCCL error. Alone it says nothing of the node.
    NcclError(GangId),
    SharedRoot(SharedRoot),
    LocalDisk(LocalDisk),
    Memory(Memory),
    OomKills(OomKills),
    Shm(Usage),
    Pids(Usage),
    Descriptors(Usage),
    Tasks(Tasks),
    /// The node's wall clock less the coordinator's, milliseconds.
    ClockOffset(i64),
    Kernel(KernelLine),
    Agent(Agent),
    Collector(Collector),
    /// Something cannot be seen from here, and why.
    Blind {
        rule: Rule,
        component: Component,
        why: String,
    },
}

/// The GPUs as a set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuSet {
    /// Those that the node told the coordinator of.
    pub registered: BTreeSet<GpuId>,
    /// Those that are there; `None`: could not be listed.
    pub present: Option<BTreeSet<GpuId>>,
    /// Whether NVML itself can be used; `None` where there is no NVML and should be none.
    pub library: Option<Handle>,
}

/// What NVML answers when asked for a GPU, or when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handle {
    Good,
    /// `NVML_ERROR_GPU_IS_LOST`.
    Lost,
    /// `NVML_ERROR_RESET_REQUIRED`.
    ResetRequired,
    /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH` and `NVML_ERROR_DRIVER_NOT_LOADED`.
    DriverMismatch,
    /// Any other error, by name.
    Error(String),
}

/// What a GPU does under load, to compare it with others that do the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    pub gang: GangId,
    /// GPUs of one kind have as much.
    pub memory_bytes: u64,
    pub sm_clock_mhz: u32,
}

/// One GPU. `Gpu::new` has everything absent.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    pub uuid: GpuId,
    pub handle: Option<Handle>,
    /// Uncorrected errors since the driver was loaded.
    pub ecc_sram_uncorrected: Option<u64>,
    pub ecc_dram_uncorrected: Option<u64>,
    pub remap_pending: Option<bool>,
    pub remap_failure: Option<bool>,
    /// Rows remapped for uncorrectable errors.
    pub remapped_uncorrectable: Option<u64>,
    pub recovery_action: Option<RecoveryAction>,
    /// Bits of NVML's clock event reasons.
    pub clock_event_reasons: Option<u64>,
    /// Degrees below the slowdown temperature, °C.
    pub temperature_margin_c: Option<i64>,
    pub hbm_temperature_c: Option<i64>,
    pub pcie: Option<Pcie>,
    pub pcie_replays: Option<u64>,
    /// Links that the GPU has; empty where links cannot be read.
    pub nvlinks: Vec<Nvlink>,
    /// Whether the GPUs of this machine are joined by NVSwitch, by what this one says of a fabric.
    pub nvswitch: Option<bool>,
    pub fabric: Option<Fabric>,
    pub persistence: Option<bool>,
    /// Whether no gang holds it.
    pub free: Option<bool>,
    /// `None` while it is not known to be under load.
    pub work: Option<Work>,
    pub memory_used_bytes: Option<u64>,
    /// Processes on it that belong to no gang that holds it; `None`: could not be listed.
    pub foreign: Option<Vec<Process>>,
}

impl Gpu {
    /// A GPU of which nothing was read.
    pub fn new(uuid: GpuId) -> Self {
        Gpu {
            uuid,
            handle: None,
            ecc_sram_uncorrected: None,
            ecc_dram_uncorrected: None,
            remap_pending: None,
            remap_failure: None,
            remapped_uncorrectable: None,
            recovery_action: None,
            clock_event_reasons: None,
            temperature_margin_c: None,
            hbm_temperature_c: None,
            pcie: None,
            pcie_replays: None,
            nvlinks: Vec::new(),
            nvswitch: None,
            fabric: None,
            persistence: None,
            free: None,
            work: None,
            memory_used_bytes: None,
            foreign: None,
        }
    }
}

/// NVML's GPU recovery action, also the text of Xid 154.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    None,
    GpuReset,
    NodeReboot,
    DrainP2p,
    DrainAndReset,
    Unknown(u32),
}

impl RecoveryAction {
    /// From the value of `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
    pub fn from_nvml(value: u32) -> Self {
        match value {
            0 => RecoveryAction::None,
            1 => RecoveryAction::GpuReset,
            2 => RecoveryAction::NodeReboot,
            3 => RecoveryAction::DrainP2p,
            4 => RecoveryAction::DrainAndReset,
            other => RecoveryAction::Unknown(other),
        }
    }

    /// From the text of Xid 154: `... changed from 0x0 (None) to 0x2 (Node Reboot Required)`.
    pub fn from_xid_154(text: &str) -> Option<Self> {
        let (_, to) = text.rsplit_once(" to ")?;
        let (_, word) = to.split_once('(')?;
        let (word, _) = word.split_once(')')?;
        match word.trim() {
            "None" => Some(RecoveryAction::None),
            "GPU Reset Required" => Some(RecoveryAction::GpuReset),
            "Node Reboot Required" => Some(RecoveryAction::NodeReboot),
            "Drain P2P" => Some(RecoveryAction::DrainP2p),
            "Drain and Reset" => Some(RecoveryAction::DrainAndReset),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pcie {
    pub generation: Option<u32>,
    pub max_generation: Option<u32>,
    pub width: Option<u32>,
    pub max_width: Option<u32>,
    /// Idle links slow down by themselves: below the maximum is bad only under load.
    pub under_load: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Nvlink {
    pub index: u8,
    pub active: Option<bool>,
    /// CRC errors, flits and data together.
    pub crc: Option<u64>,
    /// Replays and recoveries together.
    pub errors: Option<u64>,
}

/// NVML's fabric state and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    NotSupported,
    NotStarted,
    InProgress,
    /// Completed, with NVML's status code: 0 is success.
    Completed(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub user: String,
    pub name: String,
}

/// An Xid from NVML's events or from the kernel (facility 0), never from a job's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xid {
    /// `None` where the GPU behind a PCI address is not known.
    pub gpu: Option<GpuId>,
    pub code: u32,
    /// What the kernel printed after the code; decides for 144-150 and 154.
    pub text: Option<String>,
    /// The job that held the GPU.
    pub job: Option<JobId>,
}

/// `nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sxid {
    pub switch: String,
    pub code: u32,
    pub fatal: bool,
}

/// The RDMA devices as a set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ports {
    /// Ports that are there, as (device, port); `None`: the directory could not be read, which is not
    /// the same as empty.
    pub present: Option<BTreeSet<(String, u32)>>,
    /// How many the node registered; management ports not counted.
    pub registered: Option<u32>,
    /// Character devices.
    pub uverbs: Option<u32>,
    pub umad: Option<u32>,
}

/// One RDMA port.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Port {
    pub device: String,
    pub port: u32,
    /// Ports of one kind (adapter, board, link layer) are compared with each other; `None`: not known.
    pub kind: Option<String>,
    /// A port of management or storage, by the node's configuration: no rule applies.
    pub excluded: bool,
    /// Whether it should be up; `None`: once it has been up.
    pub expected: Option<bool>,
    pub state: Option<PortState>,
    pub physical: Option<PhysicalState>,
    pub rate_gbps: Option<f64>,
    pub expected_rate_gbps: Option<f64>,
    /// Whether a gang trains on this node.
    pub in_use: Option<bool>,
    /// Those that could be read.
    pub counters: BTreeMap<Counter, u64>,
    /// Files that are there and could not be read. That does not make the port bad or gone.
    pub unreadable: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    Down,
    Initializing,
    Armed,
    Active,
    Other,
}

impl PortState {
    /// From sysfs: `4: ACTIVE`.
    pub fn from_sysfs(text: &str) -> Self {
        match word(text) {
            "DOWN" => PortState::Down,
            "INIT" => PortState::Initializing,
            "ARMED" => PortState::Armed,
            "ACTIVE" => PortState::Active,
            _ => PortState::Other,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhysicalState {
    Sleep,
    /// Looking for the other end: cable or switch side.
    Polling,
    /// Somebody's decision.
    Disabled,
    Training,
    LinkUp,
    Recovering,
    Other,
}

impl PhysicalState {
    /// From sysfs: `5: LinkUp`.
    pub fn from_sysfs(text: &str) -> Self {
        match word(text) {
            "Sleep" => PhysicalState::Sleep,
            "Polling" => PhysicalState::Polling,
            "Disabled" => PhysicalState::Disabled,
            "PortConfigurationTraining" => PhysicalState::Training,
            "LinkUp" => PhysicalState::LinkUp,
            "LinkErrorRecovery" => PhysicalState::Recovering,
            _ => PhysicalState::Other,
        }
    }
}

/// `4: ACTIVE` without its number.
fn word(text: &str) -> &str {
    text.rsplit(':').next().unwrap_or(text).trim()
}

/// The counters of a port that a rule reads. Others (`port_xmit_wait`, congestion notifications) are
/// trends for charts: no rule is made of them.
macro_rules! counters {
    ($($counter:ident $file:literal)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Counter {
            $($counter,)*
        }

        impl Counter {
            pub const ALL: &[Counter] = &[$(Counter::$counter,)*];

            /// Name of the file in `counters/` or `hw_counters/`.
            pub fn file(self) -> &'static str {
                match self {
                    $(Counter::$counter => $file,)*
                }
            }
        }
    };
}

counters! {
    LinkDowned "link_downed"
    RnrNakRetryErr "rnr_nak_retry_err"
    ExcessiveBufferOverrun "excessive_buffer_overrun_errors"
    LocalLinkIntegrity "local_link_integrity_errors"
    SymbolError "symbol_error"
    LinkErrorRecovery "link_error_recovery"
    RcvErrors "port_rcv_errors"
    RcvRemotePhysical "port_rcv_remote_physical_errors"
    XmitDiscards "port_xmit_discards"
    LocalAckTimeout "local_ack_timeout_err"
    OutOfSequence "out_of_sequence"
    PacketSeqErr "packet_seq_err"
    ImpliedNakSeqErr "implied_nak_seq_err"
    DuplicateRequest "duplicate_request"
    RoceSlowRestart "roce_slow_restart"
    ReqCqeError "req_cqe_error"
    RespCqeError "resp_cqe_error"
}

impl Counter {
    pub fn from_file(name: &str) -> Option<Self> {
        Counter::ALL.iter().copied().find(|counter| counter.file() == name)
    }
}

/// How much of something is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub used: Option<u64>,
    /// `None`: no limit, or not known.
    pub limit: Option<u64>,
}

impl Usage {
    /// Used part in hundredths of a percent; `None` without a limit.
    pub fn per_10_000(self) -> Option<u64> {
        let (used, limit) = (u128::from(self.used?), u128::from(self.limit?));
        let part = (used * 10_000).checked_div(limit)?;
        Some(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

/// The shared file system, asked by a child process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRoot {
    pub path: String,
    pub canary: Option<Canary>,
    pub bytes: Usage,
    pub inodes: Usage,
}

/// How writing, reading and removing 4 KiB went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Canary {
    /// Done, in so many milliseconds.
    Done(u64),
    /// Not back after so many milliseconds.
    Hangs(u64),
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDisk {
    pub path: String,
    pub bytes: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Memory {
    pub available_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
    /// PSI, `full avg10`, percent.
    pub pressure_full_avg10: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKills {
    /// More than at the reading before.
    pub new: u64,
    pub gang: Option<GangId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tasks {
    /// Names of tasks in uninterruptible sleep for more than 2 minutes.
    pub stuck: Option<Vec<String>>,
    pub zombies: Option<u64>,
}

/// A line of the kernel's own log (facility 0: what a program wrote there does not count).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLine {
    pub class: KernelClass,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelClass {
    SoftLockup,
    HungTask,
    ReadOnlyRemount,
    NfsNotResponding,
    /// The whole host was out of memory.
    HostOutOfMemory,
    /// A container was; that is its own affair.
    ContainerOutOfMemory,
    /// md, NVMe time-out, buffer I/O error.
    IoError,
    /// An RDMA adapter lacks power or is too hot, or its slot too little bandwidth.
    AdapterTrouble,
}

impl KernelClass {
    pub fn word(self) -> &'static str {
        match self {
            KernelClass::SoftLockup => "soft lockup",
            KernelClass::HungTask => "hung task",
            KernelClass::ReadOnlyRemount => "file system remounted read-only",
            KernelClass::NfsNotResponding => "NFS server not responding",
            KernelClass::HostOutOfMemory => "host out of memory",
            KernelClass::ContainerOutOfMemory => "container out of memory",
            KernelClass::IoError => "I/O error",
            KernelClass::AdapterTrouble => "adapter in trouble",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agent {
    /// How late the agent's loop was, milliseconds.
    pub loop_lag_ms: Option<u64>,
    pub rss_bytes: Option<u64>,
    /// Files that it has open, of those that it may.
    pub descriptors: Usage,
}

/// How one run of a collector ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    pub name: String,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Good,
    Failed(String),
    /// This run was given up.
    TimedOut,
    /// A call does not come back; so long for, milliseconds.
    Hangs(u64),
    Panicked(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_words() {
        assert_eq!(PortState::from_sysfs("4: ACTIVE\n"), PortState::Active);
        assert_eq!(PortState::from_sysfs("1: DOWN"), PortState::Down);
        assert_eq!(PortState::from_sysfs("\u{0}"), PortState::Other);
        assert_eq!(PhysicalState::from_sysfs("5: LinkUp"), PhysicalState::LinkUp);
        assert_eq!(PhysicalState::from_sysfs("2: Polling"), PhysicalState::Polling);
        for counter in Counter::ALL {
            assert_eq!(Counter::from_file(counter.file()), Some(*counter));
        }
        assert_eq!(Counter::from_file("port_xmit_wait"), None);
    }

    #[test]
    fn the_drivers_verdict() {
        let text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)";
        assert_eq!(RecoveryAction::from_xid_154(text), Some(RecoveryAction::NodeReboot));
        assert_eq!(RecoveryAction::from_xid_154("changed from (None) to ("), None);
        assert_eq!(RecoveryAction::from_nvml(4), RecoveryAction::DrainAndReset);
        assert_eq!(RecoveryAction::from_nvml(99), RecoveryAction::Unknown(99));
    }

    #[test]
    fn usage_without_a_limit_is_absent() {
        assert_eq!(Usage { used: Some(5), limit: None }.per_10_000(), None);
        assert_eq!(Usage { used: Some(5), limit: Some(0) }.per_10_000(), None);
        assert_eq!(Usage { used: Some(95), limit: Some(100) }.per_10_000(), Some(9_500));
        let most = Usage { used: Some(u64::MAX), limit: Some(1) };
        assert_eq!(most.per_10_000(), Some(u64::MAX));
    }
}
