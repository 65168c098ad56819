//! The table of rules: what is watched, how bad it is, what to do, and what ends it.
//!
//! `docs/health-rules.md` is written from this table. A new rule begins with [`Stage::Trial`].

use std::fmt;

pub const MINUTE_MS: u64 = 60_000;
pub const HOUR_MS: u64 = 60 * MINUTE_MS;
pub const DAY_MS: u64 = 24 * HOUR_MS;
/// Good readings for so long end what is not kept.
pub const CALM_MS: u64 = 10 * MINUTE_MS;

/// How bad a condition is, and so what a coordinator may do with the part that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Worth knowing; nothing is wrong with the node.
    Info,
    /// Something may become wrong; nothing is withheld.
    Warning,
    /// Works, but not as it should: others are preferred.
    Degraded,
    /// Nothing new is given to it; what runs goes on.
    NoNewJobs,
    /// Nothing new, and a reset or repair once the running job has ended.
    DrainAfterJob,
    /// Broken: the gang on it fails, and a person or a reboot must act.
    Fatal,
}

impl Level {
    pub const ALL: [Level; 6] = [
        Level::Info,
        Level::Warning,
        Level::Degraded,
        Level::NoNewJobs,
        Level::DrainAfterJob,
        Level::Fatal,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Degraded => "degraded",
            Level::NoNewJobs => "no-new-jobs",
            Level::DrainAfterJob => "drain-after-job",
            Level::Fatal => "fatal",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Level::ALL.into_iter().find(|level| level.word() == word)
    }

    /// The word that gpud has for a part with such a condition.
    pub fn state(self) -> State {
        match self {
            Level::Info => State::Healthy,
            Level::Warning | Level::Degraded => State::Degraded,
            Level::NoNewJobs | Level::DrainAfterJob | Level::Fatal => State::Unhealthy,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// gpud's words for the state of a part. The order is from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    Healthy,
    /// Coming up, or nothing was read yet.
    Initializing,
    Degraded,
    Unhealthy,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Healthy => "Healthy",
            State::Initializing => "Initializing",
            State::Degraded => "Degraded",
            State::Unhealthy => "Unhealthy",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// gpud's suggested actions. The order is from mild to severe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    Ignore,
    CheckUserAppAndGpu,
    RebootSystem,
    HardwareInspection,
}

impl Action {
    pub const ALL: [Action; 4] = [
        Action::Ignore,
        Action::CheckUserAppAndGpu,
        Action::RebootSystem,
        Action::HardwareInspection,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Action::Ignore => "IGNORE_NO_ACTION_REQUIRED",
            Action::CheckUserAppAndGpu => "CHECK_USER_APP_AND_GPU",
            Action::RebootSystem => "REBOOT_SYSTEM",
            Action::HardwareInspection => "HARDWARE_INSPECTION",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Action::ALL.into_iter().find(|action| action.word() == word)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What kind of part a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Node,
    Gpu,
    Switch,
    Port,
    Mount,
    Collector,
    /// The nodes of one gang, compared when they are chosen.
    Gang,
}

impl Scope {
    pub fn word(self) -> &'static str {
        match self {
            Scope::Node => "node",
            Scope::Gpu => "GPU",
            Scope::Switch => "switch",
            Scope::Port => "port",
            Scope::Mount => "file system",
            Scope::Collector => "collector",
            Scope::Gang => "gang",
        }
    }
}

/// What ends a condition below [`Level::Fatal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clearing {
    /// Good readings for so many milliseconds.
    Calm(u64),
    /// An operator, or a reboot and then good readings.
    Kept,
    /// So many milliseconds in which it did not happen again.
    Expires(u64),
}

/// Where the readings of a rule come from: what an agent runs again when one is too old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// NVML: the set of GPUs, and each of them.
    Gpus,
    /// The canary in the shared file system.
    SharedRoot,
    LocalDisk,
    Memory,
    Pids,
    Descriptors,
}

impl Check {
    pub fn word(self) -> &'static str {
        match self {
            Check::Gpus => "gpus",
            Check::SharedRoot => "shared-root",
            Check::LocalDisk => "local-disk",
            Check::Memory => "memory",
            Check::Pids => "pids",
            Check::Descriptors => "descriptors",
        }
    }
}

/// A rule's part in the check before a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeforeStart {
    pub check: Check,
    /// From this level on, a condition forbids the start.
    pub forbids: Level,
}

/// How far a rule is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Shown and marked, and nothing acts on it: where every new rule begins, until it is known how
    /// often it is right.
    Trial,
    Acts,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub rule: Rule,
    /// Its name wherever it is shown or stored.
    pub id: &'static str,
    /// Row of the node health list.
    pub number: u8,
    pub scope: Scope,
    /// What is bad, with thresholds, and the level of each.
    pub raises: &'static str,
    /// The worst level that it can have.
    pub worst: Level,
    pub action: Action,
    pub stage: Stage,
    /// What a person should do.
    pub advice: &'static str,
    pub clearing: Clearing,
    /// So many bad readings in a row raise it (an event raises at once).
    pub bad_reads: u8,
    /// And for so long, in milliseconds.
    pub bad_for_ms: u64,
    pub before_start: Option<BeforeStart>,
    /// Only events raise it: without one there is nothing to read.
    pub events_only: bool,
    /// It compares parts that do the same: where there are none, nobody is blind.
    pub compares: bool,
}

impl Row {
    /// What ends a condition of this rule at `level`, in words.
    pub fn clears(&self, level: Level) -> &'static str {
        const KEPT: &str = "an operator, or a reboot followed by a passed check";
        match self.clearing {
            _ if level == Level::Fatal => KEPT,
            Clearing::Kept => KEPT,
            Clearing::Calm(CALM_MS) => "10 minutes of good readings",
            Clearing::Calm(MINUTE_MS) => "a minute of good readings",
            Clearing::Calm(_) => "good readings for a while",
            Clearing::Expires(DAY_MS) => "a day without another one",
            Clearing::Expires(HOUR_MS) => "an hour without another one",
            Clearing::Expires(_) => "a while without another one",
        }
    }

    /// Whether a condition at `level` forbids the start of a gang.
    pub fn forbids_start(&self, level: Level) -> bool {
        self.before_start.is_some_and(|before| level >= before.forbids)
    }

    /// Whether a condition at `level` stays until a person or a reboot ends it.
    pub(crate) fn keeps(&self, level: Level) -> bool {
        level == Level::Fatal || self.clearing == Clearing::Kept
    }
}

/// Writes the rules down once: the enum, their order, and each one's row.
macro_rules! rules {
    ($($rule:ident $id:literal $number:literal $scope:ident $worst:ident $action:ident $stage:ident {
        $raises:literal, $advice:literal $(, $field:ident: $value:expr)* $(,)?
    })*) => {
        /// A rule, in the order of the list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($rule,)*
        }

        impl Rule {
            pub const ALL: &[Rule] = &[$(Rule::$rule,)*];

            pub fn row(self) -> &'static Row {
                match self {
                    $(Rule::$rule => {
                        const ROW: Row = Row {
                            $($field: $value,)*
                            ..Row {
                                rule: Rule::$rule,
                                id: $id,
                                number: $number,
                                scope: Scope::$scope,
                                raises: $raises,
                                worst: Level::$worst,
                                action: Action::$action,
                                stage: Stage::$stage,
                                advice: $advice,
                                clearing: Clearing::Calm(CALM_MS),
                                bad_reads: 2,
                                bad_for_ms: 0,
                                before_start: None,
                                events_only: false,
                                compares: false,
                            }
                        };
                        &ROW
                    })*
                }
            }
        }
    };
}

/// Forbids a start from `forbids` on, by the readings of `check`.
const fn start(check: Check, forbids: Level) -> Option<BeforeStart> {
    Some(BeforeStart { check, forbids })
}

rules! {
    GpuSet "gpu-set" 1 Node Fatal RebootSystem Acts {
        "the GPUs that are there are not those that the node registered: fatal",
        "look for the missing GPU with the platform (lspci, Xid 79); replace the node if a reboot does not bring it back",
        before_start: start(Check::Gpus, Level::Degraded),
    }
    GpuLibrary "gpu-library" 2 Node Fatal RebootSystem Acts {
        "NVML cannot be used: driver and library differ: fatal; another error: degraded",
        "start the container again so that it gets the host's driver library; then reboot",
        before_start: start(Check::Gpus, Level::Degraded),
    }
    GpuHandle "gpu-handle" 2 Gpu Fatal RebootSystem Acts {
        "the driver says that the GPU is lost or must be reset: fatal; another error: degraded",
        "have the platform reset the GPU or reboot; inspect the hardware if it comes again",
        before_start: start(Check::Gpus, Level::Degraded),
    }
    XidFatal "xid-fatal" 3 Gpu Fatal RebootSystem Acts {
        "an Xid of the fatal tier: fatal",
        "move the work away; reset the GPU or reboot; the same Xid after two reboots is for the vendor",
        events_only: true,
    }
    XidWatch "xid-watch" 3 Gpu DrainAfterJob RebootSystem Acts {
        "Xid 94, contained memory error: drain after the job",
        "the job that met it restarts; reset the GPU once it is free",
        clearing: Clearing::Kept, events_only: true,
    }
    XidRepeated "xid-repeated" 3 Gpu Degraded CheckUserAppAndGpu Acts {
        "the same Xid of the application tier in 3 different jobs within 24 h: degraded",
        "compare the jobs; if they have nothing in common, test the GPU",
        clearing: Clearing::Expires(DAY_MS), events_only: true,
    }
    XidApp "xid-app" 3 Gpu Info CheckUserAppAndGpu Acts {
        "an Xid of the application tier: info",
        "look into the job; the node is fine",
        clearing: Clearing::Expires(DAY_MS), events_only: true,
    }
    XidNvlink "xid-nvlink" 3 Gpu Warning CheckUserAppAndGpu Acts {
        "Xid 144-150 without its severity word, or one that waits for Xid 154: warning",
        "read the kernel log of the host for the severity; the link counters and the recovery action decide meanwhile",
        clearing: Clearing::Expires(DAY_MS), events_only: true,
    }
    XidInfo "xid-info" 3 Gpu Info Ignore Acts {
        "an Xid of the information tier, an unused or an unknown one: info",
        "nothing; an unknown one is worth a look into NVIDIA's catalogue",
        clearing: Clearing::Expires(DAY_MS), events_only: true,
    }
    Sxid "sxid" 3 Switch Fatal RebootSystem Acts {
        "an SXid that NVSwitch calls fatal: fatal; non-fatal: info",
        "reset all GPUs and switches of the machine together; inspect the hardware if it comes again",
        clearing: Clearing::Expires(DAY_MS), events_only: true,
    }
    EccSram "ecc-sram" 4 Gpu Fatal HardwareInspection Acts {
        "an uncorrected ECC error in SRAM: fatal",
        "reset the GPU; run the vendor's field diagnosis if it comes again",
    }
    EccDram "ecc-dram" 4 Gpu DrainAfterJob RebootSystem Acts {
        "an uncorrected ECC error in DRAM: drain after the job",
        "reset the GPU after the job, so that the row is remapped",
        clearing: Clearing::Kept,
    }
    RemapPending "remap-pending" 5 Gpu DrainAfterJob RebootSystem Acts {
        "a row remap is pending: drain after the job",
        "reset the GPU after the job; the remap is done by the reset",
        before_start: start(Check::Gpus, Level::Degraded),
    }
    RemapFailure "remap-failure" 5 Gpu Fatal HardwareInspection Acts {
        "a row remap failed, or 512 rows and more were remapped for uncorrectable errors: fatal",
        "replace the GPU",
        before_start: start(Check::Gpus, Level::Degraded),
    }
    RecoveryAction "recovery-action" 6 Gpu Fatal RebootSystem Acts {
        "the driver asks for an action: GPU reset or node reboot: fatal; drain: drain after the job; an unknown one: warning",
        "do what the driver says",
        before_start: start(Check::Gpus, Level::Degraded),
    }
    HardwareSlowdown "hw-slowdown" 7 Gpu Degraded HardwareInspection Acts {
        "clocks held down by hardware slowdown, heat or power brake in 6 of the last 10 minutes: degraded",
        "check cooling and power of the machine",
    }
    GpuClock "gpu-clock" 7 Gpu Degraded HardwareInspection Trial {
        "under load for 5 minutes, the SM clock is below 80 % of the median of three other GPUs and more that the same gang has here: degraded",
        "compare temperature, power and clock event reasons with its neighbours",
        clearing: Clearing::Expires(DAY_MS), bad_for_ms: 5 * MINUTE_MS, compares: true,
    }
    GpuTemperature "gpu-temperature" 8 Gpu Warning HardwareInspection Acts {
        "5 °C or less below the slowdown temperature: warning",
        "check cooling",
    }
    HbmTemperature "hbm-temperature" 8 Gpu Warning HardwareInspection Acts {
        "GPU memory above 95 °C: warning",
        "check cooling",
    }
    PcieLink "pcie-link" 9 Gpu Degraded HardwareInspection Acts {
        "PCIe generation or width below the maximum under load: degraded",
        "reseat the GPU or its riser; check the slot",
    }
    PcieReplays "pcie-replays" 9 Gpu Degraded HardwareInspection Acts {
        "10 PCIe replays and more in 10 minutes, spread over 3 of them: degraded",
        "check the signal path: riser, slot, GPU",
    }
    NvlinkDown "nvlink-down" 10 Gpu Fatal RebootSystem Acts {
        "an NVLink is inactive: fatal on machines with NVSwitch; elsewhere fewer than before: warning",
        "reset all GPUs of the machine together; then inspect baseboard and bridges",
    }
    NvlinkErrors "nvlink-errors" 10 Gpu Warning Ignore Acts {
        "NVLink replay, recovery or CRC errors were counted: warning",
        "nothing as long as jobs are fast; watch",
    }
    NvlinkCrc "nvlink-crc" 10 Gpu Fatal HardwareInspection Acts {
        "100 NVLink CRC errors per second and more: fatal",
        "inspect baseboard and bridges",
    }
    Fabric "fabric" 11 Gpu Fatal RebootSystem Acts {
        "fabric registration has failed: fatal; it is not complete yet: warning (NVSwitch machines)",
        "see to the fabric manager, or to the platform's",
        before_start: start(Check::Gpus, Level::Warning),
    }
    Persistence "persistence-mode" 12 Gpu Info Ignore Acts {
        "persistence mode is off: info",
        "switch it on for quicker starts",
    }
    Foreign "gpu-foreign" 13 Gpu NoNewJobs CheckUserAppAndGpu Acts {
        "a process that belongs to no gang, or more than 500 MiB in use on a free GPU, for 5 s: this GPU is not offered",
        "find and end the process; it is shown with pid and user",
        clearing: Clearing::Calm(MINUTE_MS), bad_for_ms: 5_000,
        before_start: start(Check::Gpus, Level::Degraded),
    }
    PortState "port-state" 14 Port Degraded HardwareInspection Acts {
        "an RDMA port that was up is not ACTIVE, or its link not up, or its rate below the highest that it had; or one that differs from nearly all others of its kind (never up for 4 minutes, or slower): degraded",
        "check cable and switch port; Disabled was somebody's decision",
    }
    PortDrop "port-drop" 14 Port Degraded HardwareInspection Acts {
        "an RDMA port is down for more than 4 minutes: degraded",
        "check cable and switch port",
    }
    PortLinkDowned "port-link-downed" 14 Port Degraded HardwareInspection Acts {
        "link_downed grew: degraded, whatever the link is now",
        "watch; a third time in 12 hours is a flap",
    }
    PortFlap "port-flap" 14 Port NoNewJobs HardwareInspection Acts {
        "3 times in 12 h link_downed grew, or the port was down for 25 s and came back: cordon",
        "replace cable or transceiver, then clear it",
        clearing: Clearing::Kept, events_only: true,
    }
    PortLostInGang "port-lost-in-gang" 14 Port NoNewJobs HardwareInspection Acts {
        "link_downed grew within 5 minutes of an NCCL error of a gang here: cordon",
        "replace cable or transceiver, then clear it",
        clearing: Clearing::Kept, events_only: true,
    }
    PortBroken "port-broken" 14 Port Fatal HardwareInspection Acts {
        "rnr_nak_retry_err, excessive_buffer_overrun_errors or local_link_integrity_errors grew: fatal",
        "inspect cable, switch port and flow control",
    }
    PortSymbols "port-symbol-errors" 14 Port Fatal HardwareInspection Acts {
        "symbol_error: more than 10 per second: degraded; more than 120 in an hour: fatal",
        "replace cable or transceiver",
    }
    PortRetraining "port-retraining" 14 Port Degraded HardwareInspection Acts {
        "link_error_recovery: more than 5 per minute: degraded",
        "replace cable or transceiver",
    }
    PortReceive "port-receive-errors" 14 Port Degraded HardwareInspection Acts {
        "port_rcv_errors or port_rcv_remote_physical_errors in 3 of the last 10 minutes: degraded",
        "own errors: this cable; remote ones: upstream of the switch",
    }
    PortDiscards "port-discards" 14 Port Warning Ignore Acts {
        "port_xmit_discards: more than 100 per second: warning",
        "look for congestion, or for a neighbour that is down",
    }
    PortTimeouts "port-ack-timeouts" 14 Port Degraded CheckUserAppAndGpu Acts {
        "local_ack_timeout_err grew by 2 and more in 10 minutes while a gang trains: warning; ten times the usual: degraded",
        "compare with the gang's other nodes",
    }
    PortLoss "port-loss" 14 Port Warning CheckUserAppAndGpu Acts {
        "out_of_sequence, packet_seq_err, implied_nak_seq_err or duplicate_request: ten times the usual, two minutes in a row: warning",
        "compare with the gang's other nodes; check flow control of the fabric",
    }
    PortSlowRestart "port-slow-restart" 14 Port Degraded HardwareInspection Acts {
        "roce_slow_restart: more than 10 per second: degraded",
        "check flow control and the path of this port",
    }
    PortRequests "port-failed-requests" 14 Port Warning CheckUserAppAndGpu Acts {
        "req_cqe_error or resp_cqe_error grew: warning",
        "look at the job that ran meanwhile",
    }
    PortCount "port-count" 14 Node Degraded HardwareInspection Acts {
        "fewer RDMA ports than the node registered: degraded",
        "look for the missing adapter with the platform",
        bad_reads: 3,
    }
    SharedRoot "shared-root" 15 Mount Degraded CheckUserAppAndGpu Acts {
        "writing, reading and removing 4 KiB in the shared file system failed or took more than 5 s: degraded",
        "see to the file server and the mount",
        before_start: start(Check::SharedRoot, Level::Degraded),
    }
    SharedFull "shared-full" 15 Mount NoNewJobs CheckUserAppAndGpu Acts {
        "the shared file system is 95 % full, in bytes or inodes: warning; 98 %: no new jobs",
        "make room",
        before_start: start(Check::SharedRoot, Level::NoNewJobs),
    }
    LocalDisk "local-disk" 16 Mount NoNewJobs CheckUserAppAndGpu Acts {
        "less than 10 % free on a local disk: degraded; less than 2 GB: no new jobs",
        "make room; leftovers of jobs lie in the temp root",
        before_start: start(Check::LocalDisk, Level::NoNewJobs),
    }
    HostMemory "host-memory" 17 Node Degraded CheckUserAppAndGpu Acts {
        "less than 2 % of the memory available: degraded",
        "see who holds it; give jobs a memory limit",
        before_start: start(Check::Memory, Level::Degraded),
    }
    MemoryPressure "memory-pressure" 17 Node Degraded CheckUserAppAndGpu Acts {
        "all tasks waited for memory for more than 20 % of 10 s (PSI full): degraded",
        "see who holds it; give jobs a memory limit",
        before_start: start(Check::Memory, Level::Degraded),
    }
    OomKill "oom-kill" 18 Node Info CheckUserAppAndGpu Acts {
        "the kernel ended a process of a gang for want of memory: info, with the gang",
        "give the job more memory, or make it use less",
        clearing: Clearing::Expires(DAY_MS), events_only: true,
    }
    SharedMemory "shm-full" 19 Node Warning CheckUserAppAndGpu Acts {
        "less than 10 % of /dev/shm free: warning",
        "make /dev/shm larger, or see who fills it",
    }
    Pids "pids" 20 Node Warning CheckUserAppAndGpu Acts {
        "more than 80 % of pids.max in use: warning",
        "raise pids.max, or see who forks",
        before_start: start(Check::Pids, Level::Warning),
    }
    Descriptors "descriptors" 20 Node Warning CheckUserAppAndGpu Acts {
        "more than 80 % of the file descriptors in use: warning",
        "raise the limit, or see who leaks",
        before_start: start(Check::Descriptors, Level::Warning),
    }
    StuckTasks "stuck-tasks" 21 Node Degraded RebootSystem Acts {
        "a task in uninterruptible sleep for more than 2 minutes: degraded",
        "see what it waits for: file server, driver",
    }
    Zombies "zombies" 21 Node Degraded CheckUserAppAndGpu Acts {
        "more than 1000 zombies: degraded",
        "start the container with an init process",
    }
    ClockOffset "clock-offset" 22 Node Warning CheckUserAppAndGpu Acts {
        "clock more than 2 s off the coordinator's: warning",
        "see to time synchronisation of the host",
    }
    Kernel "kernel" 23 Node Degraded RebootSystem Acts {
        "the kernel says: soft lockup, hung task, read-only remount, NFS not responding, out of memory on the host, I/O errors, an RDMA adapter without power, too hot or in a slow slot: degraded; out of memory in a container: info",
        "read the kernel log of the host",
        clearing: Clearing::Expires(HOUR_MS), events_only: true,
    }
    Versions "versions" 24 Gang Warning CheckUserAppAndGpu Acts {
        "driver, CUDA, NCCL or OFED differ within a gang: warning when it is placed",
        "make the images and hosts of the pool alike",
    }
    AgentLag "agent-lag" 25 Node Warning CheckUserAppAndGpu Acts {
        "the agent's own loop is late by more than 1 s: warning",
        "see what loads the node",
    }
    AgentMemory "agent-memory" 25 Node Warning CheckUserAppAndGpu Acts {
        "the agent itself uses more than 256 MiB: warning",
        "report it; restarting the agent disturbs no job",
    }
    AgentDescriptors "agent-descriptors" 25 Node Warning CheckUserAppAndGpu Acts {
        "the agent has more than 80 % of the files open that it may: warning",
        "raise LimitNOFILE of the agent; it is a leak if that does not last",
    }
    RdmaDevices "rdma-devices" 26 Node Degraded CheckUserAppAndGpu Acts {
        "fewer uverbs devices than RDMA devices, or fewer umad devices than before, 3 readings in a row: degraded",
        "give the container its RDMA devices",
        bad_reads: 3,
    }
    Collector "collector" 25 Collector Degraded CheckUserAppAndGpu Acts {
        "a source of readings hangs or times out: degraded; it fails or panics: warning",
        "what it reads is not seen meanwhile; see what it waits for",
    }
}

impl Rule {
    pub fn id(self) -> &'static str {
        self.row().id
    }

    pub fn from_id(id: &str) -> Option<Self> {
        Rule::ALL.iter().copied().find(|rule| rule.id() == id)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// The rules as rows of a Markdown table, for `docs/health-rules.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "| # | rule | of | raised by | ended by | gpud's action | what to do |\n|---|---|---|---|---|---|---|\n",
    );
    let mut rows: Vec<&Row> = Rule::ALL.iter().map(|rule| rule.row()).collect();
    rows.sort_by_key(|row| (row.number, row.rule));
    for row in rows {
        let (below, fatal) = (row.clears(Level::Info), row.clears(Level::Fatal));
        let only_fatal = row.raises.matches(": ").count() <= 1;
        let ended = match row.worst {
            Level::Fatal if only_fatal || below == fatal => fatal.to_owned(),
            Level::Fatal => format!("{below}; when fatal, {fatal}"),
            _ => below.to_owned(),
        };
        let start = if row.before_start.is_some() { " *" } else { "" };
        let trial = if row.stage == Stage::Trial { ", on trial" } else { "" };
        let (number, id, scope) = (row.number, row.id, row.scope.word());
        let (raises, action, advice) = (row.raises, row.action.word(), row.advice);
        page.push_str(&format!(
            "| {number}{start} | `{id}`{trial} | {scope} | {raises} | {ended} | {action} | {advice} |\n"
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_every_row_of_the_list_is_there() {
        let ids: BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.id()).collect();
        assert_eq!(ids.len(), Rule::ALL.len());
        let numbers: BTreeSet<u8> = Rule::ALL.iter().map(|rule| rule.row().number).collect();
        assert_eq!(numbers, (1..=26).collect());
        for rule in Rule::ALL {
            assert_eq!(Rule::from_id(rule.id()), Some(*rule));
            assert_eq!(rule.row().rule, *rule);
        }
        assert_eq!(Rule::from_id("no-such-rule"), None);
    }

    #[test]
    fn the_check_before_a_start_has_the_rows_of_the_list() {
        let rows = Rule::ALL.iter().map(|rule| rule.row()).filter(|row| row.before_start.is_some());
        let numbers: BTreeSet<u8> = rows.map(|row| row.number).collect();
        assert_eq!(numbers, [1, 2, 5, 6, 11, 13, 15, 16, 17, 20].into());
    }

    #[test]
    fn words_are_read_again() {
        for level in Level::ALL {
            assert_eq!(Level::from_word(level.word()), Some(level));
        }
        for action in Action::ALL {
            assert_eq!(Action::from_word(action.word()), Some(action));
        }
        assert_eq!((Level::from_word("bad"), Action::from_word("")), (None, None));
    }
}
