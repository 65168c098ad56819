//! The messages of protocol `gangline/1`: everything that is said after the handshake.
//!
//! Unfrozen until the first release; afterwards a changed form is a new module with a conversion.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::frame::{Frame, Kind};
use super::{WireError, codec};
use crate::ids::{Epoch, GangId, Generation, GpuId, JobId, MemberId, MemberKey, PortBlock};

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

// ---------------------------------------------------------------- agent -> coordinator

/// What an agent says on its control stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AgentMessage {
    Inventory(Box<NodeInventory>),
    Report(NodeReport),
    Heartbeat(Heartbeat),
    RenewRequest(RenewRequest),
    Health(NodeHealth),
}

/// What a node is: sent after Welcome and again when it changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeInventory {
    pub name: String,
    pub hostname: String,
    pub agent_version: String,
    pub roles: Vec<NodeRole>,
    pub pool: Option<String>,
    pub labels: Vec<(String, String)>,
    /// Address that other members of a gang reach this node by.
    pub address: IpAddr,
    /// Network interface of `address`, for NCCL and gloo.
    pub interface: Option<String>,
    pub boot_id: String,
    /// Inode of the network namespace: nodes that share it share one port space.
    pub network_namespace: u64,
    /// Start of the container's first process, in milliseconds since boot.
    pub container_start_ms: u64,
    pub gpus: Vec<GpuIdentity>,
    /// Logical CPUs that the container may use, in thousandths.
    pub cpus_milli: u32,
    pub memory_bytes: u64,
    pub shm_bytes: u64,
    /// Largest number of processes; `None` when unlimited or unknown.
    pub pids_limit: Option<u64>,
    /// Ports that may be leased to gangs on this node.
    pub ports: PortBlock,
    pub versions: Vec<(String, String)>,
    pub doctor: Vec<DoctorLine>,
}

/// What a node may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeRole {
    Head,
    Worker,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    pub uuid: GpuId,
    pub index: u32,
    pub name: String,
    pub memory_bytes: u64,
    pub pci_bus_id: Option<String>,
}

/// One line of `gangline-agent doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorLine {
    pub check: String,
    pub level: DoctorLevel,
    pub text: String,
    pub advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DoctorLevel {
    Ok,
    Warning,
    /// Cannot be seen from inside this container.
    Blind,
    Error,
}

/// The agent's whole truth: what it holds and the state of every member it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub held: Generation,
    pub members: Vec<MemberReport>,
    pub gangs: Vec<GangReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    pub key: MemberKey,
    pub state: MemberState,
    /// What the member was told to do for guests of its gang, and has done.
    pub guests: Vec<GuestReport>,
    /// The newest training checkpoint of this incarnation; only rank 0 looks for one.
    pub checkpoint: Option<CheckpointReport>,
    /// What there is of training checkpoints in its directory; only rank 0 looks for them.
    pub saved: Option<SavedReport>,
    /// Absent where no GPU of the member is measured.
    pub usage: Option<UsageReport>,
}

/// What was measured of the GPUs of a member since its agent began to count, in GPU-milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    pub measured_ms: u64,
    /// Of which the GPU was busy.
    pub busy_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// The name of its entry in the checkpoint directory.
    pub name: String,
    /// How long ago it was made when the report was sent, in milliseconds.
    pub age_ms: u64,
}

/// The training checkpoints of a directory that are complete, and the room that its file system has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedReport {
    /// The newest one, of whichever attempt.
    pub newest: Option<SavedCheckpoint>,
    pub count: u32,
    /// What all of them take.
    pub bytes: u64,
    pub room: RoomReport,
    /// Where the spec asks for encrypted copies.
    pub copy: Option<CopyReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    pub name: String,
    /// The number in its name, where that is the number of a step.
    pub step: Option<u64>,
    pub bytes: u64,
    /// How long ago it was changed last when the report was sent, in milliseconds.
    pub age_ms: u64,
}

/// How the copies of training checkpoints fare.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CopyReport {
    /// The newest one that was copied since the agent began to look.
    pub newest: Option<String>,
    /// Why the last one was not.
    pub problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomReport {
    pub free_bytes: u64,
    /// What the next training checkpoint may take.
    pub next_bytes: u64,
    /// There is not room for many more.
    pub is_low: bool,
    /// Older ones that were removed to make room since the agent began to look.
    pub removed: u32,
    /// The last of them.
    pub last_removed: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestReport {
    pub operation: String,
    pub state: GuestState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestState {
    /// What the guest needs on this node is there.
    Prepared,
    /// It cannot be made.
    Failed { reason: String },
    /// No process of the attempt is left on this node.
    Swept {
        /// Final length of the Ray driver's log in bytes, when it ran on this member.
        log_bytes: Option<u64>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// Durable in the ledger; processes are being started.
    Starting,
    /// The member's main process runs.
    Running { pid: u32 },
    /// Told to stop; processes are being ended.
    Stopping,
    /// No process of the member is left.
    Ended(Ended),
    /// Nothing was started.
    Refused(Refusal),
}

/// The end of a member, with the evidence that it is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub how: EndedHow,
    /// True when a Stop of the coordinator came first.
    pub asked: bool,
    /// Last lines of the output, for the cause.
    pub last_output: String,
    /// Processes that had to be killed by the sweep.
    pub swept: u32,
    /// Every byte of the member's logs has been acknowledged by the coordinator.
    pub logs_complete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndedHow {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
    },
    /// The process could not be started, or its shim vanished without a record.
    Failed {
        reason: String,
    },
}

/// Why an agent did not start a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A port of the block is bound by somebody else.
    PortBusy { port: u16 },
    /// A GPU is still held by a process of another incarnation.
    GpuHeld { gpu: GpuId, by: MemberKey },
    /// The agent has seen a higher epoch of this gang.
    StaleEpoch { highest: Epoch },
    /// The assignment cannot be carried out on this node.
    Impossible { reason: String },
    /// The check before the start found the node unfit.
    Unfit { reason: String },
}

/// State of a gang as a whole; only the agent of its head (or of rank 0) reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangReport {
    pub gang: GangId,
    pub epoch: Epoch,
    pub ray: Option<RayCluster>,
    pub entrypoints: Vec<EntrypointReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RayCluster {
    /// Every member of the gang is alive in this cluster, and nobody else is in it.
    pub ready: bool,
    pub session: String,
    pub version: String,
    pub nodes: Vec<RayNode>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RayNode {
    pub member: MemberId,
    pub ray_node_id: String,
    pub address: String,
    pub alive: bool,
    pub state_message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntrypointReport {
    pub operation: String,
    pub state: EntrypointState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntrypointState {
    /// Waits for the gang, or was submitted and waits inside Ray.
    Waiting,
    Running {
        driver: Option<RayDriver>,
    },
    Succeeded {
        driver: Option<RayDriver>,
    },
    Failed {
        driver: Option<RayDriver>,
        exit_code: Option<i32>,
        error_type: Option<String>,
        message: String,
    },
}

/// Where the Ray driver runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RayDriver {
    pub ray_node_id: String,
    pub member: Option<MemberId>,
    /// Address that the Ray driver itself reported; absent when it never connected to Ray.
    pub address: Option<String>,
}

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub sequence: u64,
    pub held: Generation,
}

/// Asks for a new certificate over the current one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// PKCS#10 in DER, with a new key.
    #[serde(with = "codec::bytes")]
    pub csr: Vec<u8>,
}

/// What is wrong with a node: every condition that stands, said whole on a new session and again
/// whenever one changes. What is not in it does not stand.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeHealth {
    pub conditions: Vec<Condition>,
    /// What cannot be seen from inside this container: neither healthy nor sick.
    pub blind: Vec<String>,
}

/// Most conditions that a node says at a time.
pub const CONDITION_LIMIT: usize = 256;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Name of the rule, such as `xid_fatal`.
    pub rule: String,
    /// `node`, `gpu:UUID`, `port:DEVICE/N`, `mount:PATH` and the like.
    pub component: String,
    pub level: HealthLevel,
    /// No gang may start here while it stands: the check before the start would refuse it.
    pub blocks_start: bool,
    /// The rule is on trial: shown and never acted on.
    pub shadow: bool,
    /// What to do, in the words of other tools: `REBOOT_SYSTEM`.
    pub action: String,
    pub reason: String,
    pub evidence: String,
    /// What ends it.
    pub clears: String,
    /// When it began, by the node's wall clock.
    pub since_ms: u64,
}

/// How bad a condition is; each is worse than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HealthLevel {
    Info,
    Warning,
    Degraded,
    /// Nothing new starts here.
    NoNewJobs,
    /// Nothing new starts here, and what runs may end.
    DrainAfterJob,
    /// The node is cordoned and what runs on the part starts elsewhere.
    Fatal,
}

// ---------------------------------------------------------------- coordinator -> agent

/// What the coordinator says on the control stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorMessage {
    DesiredHeader(DesiredHeader),
    DesiredGang(Box<DesiredGang>),
    HeartbeatAck(HeartbeatAck),
    LogAck(LogAck),
    Renewed(Renewed),
    HealthCleared(HealthCleared),
}

/// Announces a whole desired state: `count` DesiredGang frames follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredHeader {
    pub generation: Generation,
    pub count: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredGang {
    pub gang: GangId,
    pub epoch: Epoch,
    pub order: Order,
}

/// A gang is never stopped by being absent: only by `Stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    Run(Box<Assignment>),
    Stop {
        /// The gang has failed: how things stand is kept before anything of it is ended.
        keep_scene: bool,
    },
}

/// What one node must run for one incarnation of one gang.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub job: JobId,
    pub attempt: u32,
    pub job_name: String,
    pub project: String,
    pub launcher: Launcher,
    /// Ranks of the whole gang.
    pub nnodes: u32,
    pub gpus_per_node: u32,
    /// Addresses of all ranks, by rank.
    pub addresses: Vec<IpAddr>,
    /// Address of the Ray head, or of rank 0.
    pub head_address: IpAddr,
    /// First port of the head's (or of rank 0's) block.
    pub head_ports: PortBlock,
    pub members: Vec<MemberAssignment>,
    /// What is submitted to Ray once the gang is ready; only the head's agent gets it.
    pub entrypoints: Vec<Entrypoint>,
    /// Jobs on a standing cluster that this node has something to do for.
    pub guests: Vec<GuestAssignment>,
    /// `command` launcher: what every rank runs.
    pub argv: Vec<Argument>,
    pub env: Vec<(String, String)>,
    /// Names of those variables of `env` whose values are secrets.
    pub secret_names: Vec<String>,
    pub workdir: Option<String>,
    /// Code that every rank's node must have before the rank starts.
    pub code: Option<CodeTree>,
    /// Directory of the job below the shared root; absent without a shared root.
    pub job_directory: Option<String>,
    pub checkpoint_directory: Option<String>,
    /// So many training checkpoints stay in it; the agent of rank 0 removes older ones. All stay when
    /// absent.
    pub checkpoint_keep: Option<u32>,
    /// The oldest ones may go, down to the newest, where their file system has no room for the next.
    pub checkpoint_may_go: bool,
    /// Each that is complete is copied, encrypted, to where the configuration of the agent says.
    pub checkpoint_copy: bool,
    /// Further directories that ranks make below `job_directory`, by name.
    pub directories: Vec<String>,
    /// Files of `job_directory/config`, written by rank 0's node.
    pub config_files: Vec<(String, String)>,
    pub grace_ms: u64,
    pub start_timeout_ms: u64,
    pub on_disconnect: OnDisconnect,
    /// Ray's token of this epoch.
    pub auth_token: Secret,
    /// User and group of the member's processes; the agent's own when absent.
    pub run_as: Option<(u32, u32)>,
    /// Patterns of further files that are logs, below `workdir` or `job_directory`.
    pub log_files: Vec<String>,
    /// Most bytes of the logs of each member; the agent's default when absent.
    pub log_bytes: Option<u64>,
}

/// What the members of a node do when it has no contact with the coordinator. Contact is the send
/// time of the newest heartbeat that the coordinator acknowledged (at first, of Hello).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDisconnect {
    /// They run on.
    Keep,
    /// They stop when for so long there was neither contact nor the sight of a complete gang.
    Fence { after_ms: u64 },
    /// They stop when the last contact is so long ago.
    StopAfter { after_ms: u64 },
}

impl OnDisconnect {
    /// The time after which members stop by themselves, if they ever do.
    #[must_use]
    pub fn after_ms(self) -> Option<u64> {
        match self {
            OnDisconnect::Keep => None,
            OnDisconnect::Fence { after_ms } | OnDisconnect::StopAfter { after_ms } => {
                Some(after_ms)
            }
        }
    }
}

/// A tree of code, and where nodes have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeTree {
    /// `blake3:` and 64 hexadecimal digits.
    pub tree: String,
    /// The tree lies below this, in `users/USER/code/`; in the member's own directory when absent.
    pub shared_root: Option<String>,
    /// Who submitted the job.
    pub user: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Launcher {
    Ray,
    Command,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAssignment {
    pub member: MemberId,
    pub gpus: Vec<GpuId>,
    pub cpus_milli: u32,
    pub memory_bytes: u64,
    pub ports: PortBlock,
}

/// One word of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argument {
    pub pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Arrives as it is.
    Text(String),
    /// Name of a fact of the gang or of the member, such as `GANGLINE_NODE_RANK`: the agent puts
    /// its value here. Only the text of a template has any.
    Variable(String),
}

impl<T: Into<String>> From<T> for Argument {
    fn from(text: T) -> Self {
        Argument { pieces: vec![Piece::Text(text.into())] }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entrypoint {
    /// Ray's submission id: `JOB-ATTEMPT`.
    pub operation: String,
    pub argv: Vec<Argument>,
    /// The member that the Ray driver is forced onto.
    pub driver: MemberId,
}

/// A job that shares a standing cluster with others. The cluster runs on when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestAssignment {
    /// Ray's submission id: `JOB-ATTEMPT`.
    pub operation: String,
    pub job: JobId,
    pub attempt: u32,
    /// Its ranks of the cluster, in the order of its own; the Ray driver is forced onto the first.
    pub ranks: Vec<u32>,
    pub order: GuestOrder,
}

/// In the order in which a guest goes through them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestOrder {
    /// To its ranks: make what it needs on the node.
    Prepare(Box<GuestJob>),
    /// To the head: submit the entrypoint to Ray.
    Run(Box<GuestJob>),
    /// To the head: the entrypoint runs, and is watched.
    Watch,
    /// To the head: Ray is asked to end the entrypoint.
    Stop,
    /// To every member: the entrypoint has ended, and what it left behind is killed, by its mark.
    Sweep {
        /// Where the first rank keeps a copy of the Ray driver's log.
        log_directory: Option<String>,
    },
}

/// What a guest's entrypoint needs; as the fields of the same names of [`Assignment`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestJob {
    pub argv: Vec<Argument>,
    pub job_name: String,
    pub project: String,
    pub nnodes: u32,
    pub gpus_per_node: u32,
    pub addresses: Vec<IpAddr>,
    pub env: Vec<(String, String)>,
    /// Names of those variables of `env` whose values are secrets.
    pub secret_names: Vec<String>,
    pub workdir: Option<String>,
    pub code: Option<CodeTree>,
    pub job_directory: Option<String>,
    pub checkpoint_directory: Option<String>,
    pub directories: Vec<String>,
    pub config_files: Vec<(String, String)>,
    pub grace_ms: u64,
}

impl GuestAssignment {
    /// The member that the Ray driver is forced onto.
    #[must_use]
    pub fn driver(&self) -> MemberId {
        MemberId::Rank(self.ranks.first().copied().unwrap_or(0))
    }
}

impl Assignment {
    /// The assignment that a guest would have if the cluster were its own.
    #[must_use]
    pub fn of_guest(&self, guest: &GuestAssignment, job: &GuestJob) -> Assignment {
        let job = job.clone();
        Assignment {
            job: guest.job.clone(),
            attempt: guest.attempt,
            job_name: job.job_name,
            project: job.project,
            nnodes: job.nnodes,
            gpus_per_node: job.gpus_per_node,
            addresses: job.addresses,
            entrypoints: Vec::new(),
            guests: Vec::new(),
            argv: job.argv,
            env: job.env,
            secret_names: job.secret_names,
            workdir: job.workdir,
            code: job.code,
            job_directory: job.job_directory,
            checkpoint_directory: job.checkpoint_directory,
            directories: job.directories,
            config_files: job.config_files,
            grace_ms: job.grace_ms,
            ..self.clone()
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAck {
    pub sequence: u64,
    /// The coordinator's wall clock as it answers.
    pub wall_ms: u64,
}

/// Everything before `offset` of this log file is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAck {
    pub key: MemberKey,
    pub file: String,
    pub offset: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    #[serde(with = "codec::bytes")]
    pub certificate: Vec<u8>,
    #[serde(with = "codec::bytes")]
    pub ca: Vec<u8>,
}

/// An operator has put the node back into use: the agent gives these conditions up, and says so with
/// its next [`NodeHealth`]. Said again as long as it does not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HealthCleared {
    pub conditions: Vec<ClearedCondition>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClearedCondition {
    pub rule: String,
    pub component: String,
    /// A condition that began at another time is another one.
    pub since_ms: u64,
}

// ---------------------------------------------------------------- data plane

/// One reading of a node; newest wins. Everything that was read goes to the health rules of the agent
/// and into its metrics page; this is what screens and job metrics need of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeSample {
    pub wall_ms: u64,
    /// Samples that were dropped since the last one that was sent.
    pub dropped: u32,
    /// When the next one is due: 1000, and more while the agent has too little CPU or the
    /// coordinator does not keep up.
    pub interval_ms: u32,
    pub host: HostSample,
    pub gpus: Vec<GpuSample>,
    pub ports: Vec<PortSample>,
    pub collectors: Vec<CollectorSample>,
}

/// The host as this container sees it; a reading that failed is absent. Counters may begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct HostSample {
    pub cpu_busy_pct: Option<f32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub load1: Option<f32>,
    pub shm_free_bytes: Option<u64>,
    /// Share of the last ten seconds in which some task waited for a CPU, in percent.
    pub cpu_pressure_pct: Option<f32>,
    /// The same, in which every task waited for memory.
    pub memory_pressure_pct: Option<f32>,
    /// The same, in which every task waited for a disk.
    pub io_pressure_pct: Option<f32>,
    /// Tasks that the kernel killed in this container for want of memory.
    pub oom_kills: Option<u64>,
    /// Processes and threads of this container.
    pub pids: Option<u64>,
    /// All interfaces but loopback.
    pub network_received_bytes: Option<u64>,
    pub network_sent_bytes: Option<u64>,
    /// Free space of the state directory, of the temp root and of the shared root.
    pub state_free_bytes: Option<u64>,
    pub temp_free_bytes: Option<u64>,
    pub shared_free_bytes: Option<u64>,
    /// What this node's clock is ahead of the coordinator's.
    pub clock_offset_ms: Option<i64>,
    /// The agent itself.
    pub agent_memory_bytes: Option<u64>,
    pub agent_cpu_pct: Option<f32>,
}

/// One GPU; a reading that failed is absent. Counters are the driver's and may begin anew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    pub uuid: GpuId,
    /// The driver says that it has fallen off the bus.
    pub lost: bool,
    pub utilization_pct: Option<f32>,
    /// Share of time in which device memory was read or written.
    pub memory_utilization_pct: Option<f32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub temperature_c: Option<f32>,
    pub memory_temperature_c: Option<f32>,
    pub power_w: Option<f32>,
    pub power_limit_w: Option<f32>,
    pub energy_mj: Option<u64>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// Why clocks are low: NVML's bits.
    pub clock_reasons: Option<u64>,
    /// Shares of time of the profiling counters, 0 to 1.
    pub sm_active: Option<f32>,
    pub tensor_active: Option<f32>,
    pub dram_active: Option<f32>,
    pub pcie_received_bytes_per_s: Option<u64>,
    pub pcie_sent_bytes_per_s: Option<u64>,
    pub nvlink_received_bytes_per_s: Option<u64>,
    pub nvlink_sent_bytes_per_s: Option<u64>,
    /// Links that exist and are not active.
    pub nvlinks_down: Option<u32>,
    /// CRC, replay and recovery errors of all links.
    pub nvlink_errors: Option<u64>,
    /// Errors of memory since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub pcie_replays: Option<u32>,
    /// Newest critical error since the agent began, and how many there were.
    pub last_xid: Option<u64>,
    pub xids: u32,
    /// Compute processes; those of no gang among them.
    pub processes: Option<u32>,
    pub foreign_processes: Option<u32>,
}

impl GpuSample {
    /// A GPU of which nothing could be read.
    #[must_use]
    pub fn unread(uuid: GpuId) -> Self {
        GpuSample {
            uuid,
            lost: false,
            utilization_pct: None,
            memory_utilization_pct: None,
            memory_used_bytes: None,
            memory_total_bytes: None,
            temperature_c: None,
            memory_temperature_c: None,
            power_w: None,
            power_limit_w: None,
            energy_mj: None,
            sm_clock_mhz: None,
            memory_clock_mhz: None,
            clock_reasons: None,
            sm_active: None,
            tensor_active: None,
            dram_active: None,
            pcie_received_bytes_per_s: None,
            pcie_sent_bytes_per_s: None,
            nvlink_received_bytes_per_s: None,
            nvlink_sent_bytes_per_s: None,
            nvlinks_down: None,
            nvlink_errors: None,
            ecc_corrected: None,
            ecc_uncorrected: None,
            pcie_replays: None,
            last_xid: None,
            xids: 0,
            processes: None,
            foreign_processes: None,
        }
    }
}

/// One port of an RDMA device; a reading that failed is absent. Counters are the device's and may
/// begin anew.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PortSample {
    pub device: String,
    pub port: u32,
    /// Carries Ethernet (RoCE), not InfiniBand.
    pub ethernet: Option<bool>,
    /// InfiniBand's number: 1 down, 2 init, 3 armed, 4 active.
    pub state: Option<u8>,
    /// InfiniBand's number: 2 polling, 3 disabled, 5 link up.
    pub physical_state: Option<u8>,
    pub rate_bytes_per_s: Option<u64>,
    pub received_bytes: Option<u64>,
    pub sent_bytes: Option<u64>,
    /// Symbol, receive, integrity, overrun, retry and work request errors together.
    pub errors: Option<u64>,
    pub link_downed: Option<u64>,
    /// Packets marked or notified because of congestion; ticks of waiting on InfiniBand.
    pub congestion: Option<u64>,
}

/// How one collector fares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorSample {
    pub name: String,
    /// Its last reading succeeded and none is overdue.
    pub success: bool,
    /// How long the last reading took.
    pub duration_us: u32,
    /// Since the last reading that succeeded; absent before the first.
    pub age_ms: Option<u32>,
}

/// Bytes of a log file at an offset; writing it twice changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    pub key: MemberKey,
    pub file: String,
    pub offset: u64,
    #[serde(with = "codec::bytes")]
    pub bytes: Vec<u8>,
    /// When the agent read the bytes, by its wall clock.
    pub read_ms: u64,
}

/// Largest payload of one log chunk, in bytes: leaves room for the rest of the frame.
pub const LOG_CHUNK_BYTES: usize = 192 << 10;

/// Asks for the code of a job that is assigned to the node; the first message of its stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeRequest {
    pub job: JobId,
    pub tree: String,
}

/// A part of the answer. All bytes together are the length of the tree's list as a big-endian u32,
/// the list, and every chunk of every file in the list's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodePart {
    Bytes {
        #[serde(with = "codec::bytes")]
        bytes: Vec<u8>,
    },
    /// Nothing more comes.
    Refused { reason: String },
}

/// Largest payload of one part of code, in bytes.
pub const CODE_PART_BYTES: usize = 240 << 10;

// ---------------------------------------------------------------- frames

/// Defines `to_frame`/`from_frame` of an enum whose variants are frame kinds.
macro_rules! framed {
    ($message:ident { $($variant:ident),+ $(,)? }) => {
        impl $message {
            pub fn to_frame(&self) -> Result<Frame, WireError> {
                match self {
                    $($message::$variant(body) => Frame::new(
                        Kind::$variant,
                        codec::encode(Kind::$variant.name(), body)?,
                    ),)+
                }
            }

            /// Decodes a frame; a kind of the other direction is an error.
            pub fn from_frame(frame: &Frame) -> Result<Self, WireError> {
                match frame.kind {
                    $(Kind::$variant => codec::decode(Kind::$variant.name(), &frame.body)
                        .map($message::$variant),)+
                    other => Err(WireError::Unexpected(other.name())),
                }
            }
        }
    };
}

framed!(AgentMessage { Inventory, Report, Heartbeat, RenewRequest, Health });
framed!(CoordinatorMessage {
    DesiredHeader,
    DesiredGang,
    HeartbeatAck,
    LogAck,
    Renewed,
    HealthCleared,
});

/// A message that is one frame kind: those of data-plane streams and of requests.
macro_rules! framed_one {
    ($message:ident, $kind:ident) => {
        impl $message {
            pub fn to_frame(&self) -> Result<Frame, WireError> {
                Frame::new(Kind::$kind, codec::encode(Kind::$kind.name(), self)?)
            }

            pub fn from_frame(frame: &Frame) -> Result<Self, WireError> {
                if frame.kind != Kind::$kind {
                    return Err(WireError::Unexpected(frame.kind.name()));
                }
                codec::decode(Kind::$kind.name(), &frame.body)
            }
        }
    };
}

pub(super) use framed_one;

framed_one!(NodeSample, Sample);
framed_one!(LogChunk, LogChunk);
framed_one!(CodeRequest, CodeRequest);
framed_one!(CodePart, CodePart);
