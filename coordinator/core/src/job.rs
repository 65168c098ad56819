//! Jobs and attempts: what a user asked for, and one try at running it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, JobId, MemberId};
use gangline_common::time::{Stopwatch, Timestamp};

use super::controls::{Changes, Hold};
use super::recovery::{Recovery, Retry, Verdict};
use super::stall::HangPolicy;
use super::topology::Topology;

/// State changes that a job or node remembers; older ones are dropped.
pub const HISTORY_LIMIT: usize = 64;

/// What a submission asks for: the parts of the spec that decisions and agents need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    pub name: String,
    pub kind: JobKind,
    /// 0 to 100; the higher goes first.
    pub priority: u8,
    /// Submitted to be held until somebody releases it.
    pub hold: bool,
    /// Wall clock before which it does not start.
    pub not_before_ms: Option<u64>,
    /// Longest time in the queue in which it could have started.
    pub max_wait_ms: Option<u64>,
    /// Name or id of the standing cluster to run on, as the spec has it.
    pub cluster: Option<String>,
    /// Nodes of the gang; the least of an elastic one.
    pub nnodes: u32,
    /// Most nodes of the gang, at least `nnodes`.
    pub nnodes_max: u32,
    pub gpus_per_node: u32,
    /// CPUs of one member in thousandths; `None` takes the GPU share of the node.
    pub cpus_milli: Option<u32>,
    /// Memory of one member in bytes; `None` takes the GPU share of the node.
    pub memory_bytes: Option<u64>,
    /// Any of these pools; empty for every pool.
    pub pools: Vec<String>,
    /// What a node must have, by key.
    pub node_labels: BTreeMap<String, String>,
    /// Whether its nodes are shared with no other gang; `None` for yes where it takes all GPUs of a
    /// node.
    pub exclusive: Option<bool>,
    pub topology: Option<Topology>,
    /// Any of these models, such as `H100`; empty for any model.
    pub gpu_models: Vec<String>,
    /// Names of nodes that are left out.
    pub exclude_nodes: Vec<String>,
    pub launcher: Launcher,
    pub argv: Vec<Argument>,
    pub env: Vec<(String, String)>,
    /// Names of the project's secrets that join `env` when the job starts.
    pub secrets: Vec<String>,
    pub workdir: Option<String>,
    /// Name of the tree with the job's code, `blake3:` and 64 digits.
    pub tree: Option<String>,
    /// Absolute directory of the job below the shared root; absent without a shared root.
    pub job_directory: Option<String>,
    pub checkpoint_directory: Option<String>,
    /// Further directories below `job_directory` that the job needs, by name.
    pub directories: Vec<String>,
    /// Patterns of further files that are its logs.
    pub log_files: Vec<String>,
    /// Most bytes of all its logs; `None` for what agents keep by default.
    pub log_bytes: Option<u64>,
    pub grace_ms: u64,
    pub start_timeout_ms: u64,
    /// Longest time in the state RUNNING; what the job then has is its grace period.
    pub timeout_ms: Option<u64>,
    /// It may be sent back to the queue for a job of higher priority.
    pub preemptible: bool,
    /// It is not sent back to make room before it has run for this long.
    pub min_runtime_ms: Option<u64>,
    pub on_disconnect: OnDisconnect,
    pub retry: Retry,
    pub hang: HangPolicy,
    /// How long its gang is kept up for a person when its last attempt has failed.
    pub hold_on_failure_ms: Option<u64>,
    /// The submitted spec as canonical JSON: the record of truth that this struct is made from.
    pub spec_json: String,
    /// The exact command of the submitter, for people; may be empty.
    pub submit_command: String,
}

/// What a gang does on a node that loses contact; see `fencing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDisconnect {
    /// It never stops by itself.
    Keep {
        /// It was to fence itself, but no other node could bear witness of that.
        no_witness: bool,
    },
    /// It stops where it sees itself incomplete as well. Only a Ray gang of several nodes has it.
    Fence,
    StopAfter {
        ms: u64,
    },
}

impl JobRequest {
    /// Whether a node of this pool would do.
    pub fn may_use(&self, pool: &str) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|wanted| wanted == pool)
    }

    /// Whether the node of this name is left out.
    pub fn excludes(&self, node: &str) -> bool {
        self.exclude_nodes.iter().any(|excluded| excluded == node)
    }
}

/// What a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Ends with its entrypoint.
    Job,
    /// A standing Ray cluster: it has no entrypoint, and other jobs run on its gang.
    Cluster {
        /// Ended after this long without a job.
        idle_stop_ms: Option<u64>,
    },
}

/// One word of a command, in pieces.
pub type Argument = Vec<Piece>;

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Arrives as it is.
    Text(String),
    /// A fact of the gang or of the member, which its agent fills in.
    Variable(String),
}

/// The word as it was written, with `$NAME` where a fact will stand.
pub fn written(argument: &Argument) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Variable(name) => format!("${name}"),
    };
    argument.iter().map(piece).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Launcher {
    Ray,
    Command,
}

/// A place in the queue; the smaller is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub priority: Reverse<u8>,
    pub sequence: u64,
}

/// A submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub user: String,
    pub project: String,
    /// What was submitted, with `changes` applied.
    pub request: Arc<JobRequest>,
    /// What was decided about it since.
    pub changes: Changes,
    /// Who holds it back.
    pub hold: Option<Hold>,
    /// Jobs that have to succeed before it starts, and have not yet; in the order of the spec.
    pub waits_for: Vec<JobId>,
    pub state: JobState,
    /// The gang that all attempts of this job run on, one epoch each; a guest's is its cluster's.
    pub gang: GangId,
    /// The standing cluster that the job is a guest of.
    pub cluster: Option<JobId>,
    /// Random bits that the tokens of the gang's epochs are derived from.
    pub token_seed: [u8; 32],
    /// Number of attempts so far.
    pub attempts: u32,
    /// Order of submission.
    pub sequence: u64,
    pub submitted: Timestamp,
    /// Since when it runs, or ran at last.
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// How long it could have started (PENDING only); absent while it may not.
    pub eligible: Option<Stopwatch>,
    /// How long it has run, or has been held (RUNNING and HELD only).
    pub running: Option<Stopwatch>,
    /// One sentence: why the job waits, or why it ended.
    pub reason: String,
    /// What the job will be once its gang is gone (STOPPING and HELD only).
    pub outcome: Option<Outcome>,
    pub recovery: Recovery,
    pub history: Vec<Transition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    Pending,
    Starting,
    Running,
    Stopping,
    /// The gang is kept up for a person after the end.
    Held,
    Succeeded,
    Failed,
    Cancelled,
    Timeout,
}

impl JobState {
    pub fn is_terminal(self) -> bool {
        match self {
            JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::Timeout => {
                true
            }
            JobState::Pending
            | JobState::Starting
            | JobState::Running
            | JobState::Stopping
            | JobState::Held => false,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            JobState::Pending => "PENDING",
            JobState::Starting => "STARTING",
            JobState::Running => "RUNNING",
            JobState::Stopping => "STOPPING",
            JobState::Held => "HELD",
            JobState::Succeeded => "SUCCEEDED",
            JobState::Failed => "FAILED",
            JobState::Cancelled => "CANCELLED",
            JobState::Timeout => "TIMEOUT",
        }
    }

    /// The allowed graph: a terminal state never changes.
    pub fn may_become(self, next: JobState) -> bool {
        use JobState::*;
        match self {
            Pending => matches!(next, Starting | Failed | Cancelled),
            Starting => matches!(next, Running | Stopping | Pending),
            Running => matches!(next, Stopping | Held),
            Held => matches!(next, Stopping),
            Stopping => matches!(next, Pending | Succeeded | Failed | Cancelled | Timeout),
            Succeeded | Failed | Cancelled | Timeout => false,
        }
    }
}

impl Job {
    /// Its place in the queue: by priority, then in the order of submission.
    pub fn place(&self) -> Place {
        Place { priority: Reverse(self.request.priority), sequence: self.sequence }
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.request.kind, JobKind::Cluster { .. })
    }

    /// Whether the passing of time may end it or let it start: its time limit, a cluster's idle time,
    /// the earliest start, the longest wait, the end of its hold.
    pub(super) fn is_timed(&self) -> bool {
        let request = &self.request;
        let limited = self.state == JobState::Running && request.timeout_ms.is_some();
        let rests = self.recovery.rest.is_some();
        let waits = rests || request.not_before_ms.is_some() || request.max_wait_ms.is_some();
        let waits = self.state == JobState::Pending && waits;
        let held = self.state == JobState::Held;
        limited || held || waits || (self.is_cluster() && !self.state.is_terminal())
    }

    /// Whether it is in the queue, or will be once its gang is gone.
    pub fn is_queued(&self) -> bool {
        let comes_back =
            self.outcome.as_ref().is_some_and(|outcome| outcome.terminal_state().is_none());
        self.state == JobState::Pending || (self.state == JobState::Stopping && comes_back)
    }

    /// Its times under the clock of another boot: what it may still have is what it had. When it has
    /// ended, nothing but the time between them counts.
    pub fn over_reboot(&mut self, now: Timestamp) {
        if self.state.is_terminal() {
            return;
        }
        for time in [Some(&mut self.submitted), self.started.as_mut()].into_iter().flatten() {
            *time = time.in_this_boot(now);
        }
        let pause = self.recovery.rest.as_mut().map(|rest| &mut rest.passed);
        let watches = [self.eligible.as_mut(), self.running.as_mut(), pause];
        for watch in watches.into_iter().flatten() {
            watch.over_reboot(now);
        }
    }

    /// Adds a line to its history without a change of state.
    pub fn note(&mut self, now: Timestamp, actor: &str, text: String) {
        let state = self.state.word().to_owned();
        let actor = actor.to_owned();
        remember(&mut self.history, Transition { wall_ms: now.wall_ms, state, actor, text });
    }
}

/// How an attempt, and with it perhaps the job, came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed {
        cause: String,
    },
    Cancelled {
        actor: String,
        reason: String,
    },
    /// It ran for as long as its spec lets it.
    TimedOut {
        cause: String,
    },
    /// Stopped to make room, such as for work on a node: back to its place in the queue.
    Preempted {
        cause: String,
        /// What it held is kept for it as far as that is good: it goes on at once.
        keeps_nodes: bool,
    },
    /// It failed, and another attempt follows.
    Retried {
        cause: String,
    },
    /// A part of a node that it ran on fell fatally sick: another attempt follows at once, whatever
    /// its spec says of retries.
    Evacuated {
        cause: String,
    },
    /// Nothing ran: a leased port was taken. Costs no attempt; another block is leased.
    RolledBack {
        cause: String,
    },
}

impl Outcome {
    /// The sentence that people read.
    pub fn sentence(&self) -> String {
        match self {
            Outcome::Succeeded => "finished successfully".to_owned(),
            Outcome::Failed { cause } | Outcome::TimedOut { cause } => cause.clone(),
            Outcome::Cancelled { actor, reason } if reason.is_empty() => {
                format!("stopped by {actor}")
            }
            Outcome::Cancelled { actor, reason } => format!("stopped by {actor}: {reason}"),
            Outcome::Preempted { cause, keeps_nodes: true } | Outcome::Evacuated { cause } => {
                format!("goes on elsewhere: {cause}")
            }
            Outcome::Preempted { cause, .. } => format!("goes back to the queue: {cause}"),
            Outcome::Retried { cause } => format!("is tried again: {cause}"),
            Outcome::RolledBack { cause } => format!("rolled back before anything ran: {cause}"),
        }
    }

    /// The job's final state; `None` when the job goes back to the queue.
    pub fn terminal_state(&self) -> Option<JobState> {
        match self {
            Outcome::Succeeded => Some(JobState::Succeeded),
            Outcome::Failed { .. } => Some(JobState::Failed),
            Outcome::Cancelled { .. } => Some(JobState::Cancelled),
            Outcome::TimedOut { .. } => Some(JobState::Timeout),
            Outcome::Preempted { .. }
            | Outcome::Retried { .. }
            | Outcome::Evacuated { .. }
            | Outcome::RolledBack { .. } => None,
        }
    }

    /// Whether something went wrong in the attempt, so that people ask why: what its processes did
    /// last is kept, and its logs are looked into.
    pub fn is_failure(&self) -> bool {
        match self {
            Outcome::Failed { .. } | Outcome::Retried { .. } | Outcome::Evacuated { .. } => true,
            Outcome::Succeeded
            | Outcome::Cancelled { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Preempted { .. }
            | Outcome::RolledBack { .. } => false,
        }
    }
}

/// One remembered change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    pub wall_ms: u64,
    pub state: String,
    pub actor: String,
    pub text: String,
}

/// Appends to a bounded history.
pub fn remember(history: &mut Vec<Transition>, transition: Transition) {
    if history.len() >= HISTORY_LIMIT {
        history.remove(0);
    }
    history.push(transition);
}

/// One try at running a job: it runs on one epoch of the job's gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub job: JobId,
    pub number: u32,
    pub gang: GangId,
    pub epoch: Epoch,
    pub started: Timestamp,
    pub ended: Option<Timestamp>,
    pub outcome: Option<Outcome>,
    /// Why it failed, once that is known.
    pub verdict: Option<Arc<Verdict>>,
    pub ray: Option<RayFacts>,
    /// The part of a standing cluster that the attempt has.
    pub guest: Option<Guest>,
}

/// An attempt's part of a standing cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// By the guest's own rank; its Ray driver is on the first.
    pub shares: Vec<GuestShare>,
    pub phase: GuestPhase,
    /// Since when it is in this phase.
    pub since: Timestamp,
    /// Members of the cluster that have done their part of this phase.
    pub done: BTreeSet<MemberId>,
    /// Final length of the Ray driver's log in bytes, from the member that ran it.
    pub log_bytes: Option<u64>,
}

/// What a guest takes of one rank of its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestShare {
    /// Of the cluster.
    pub rank: u32,
    pub gpus: u32,
    pub cpus_milli: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestPhase {
    /// Its ranks make what it needs.
    Preparing,
    /// Its entrypoint is to run.
    Running,
    /// Its entrypoint is to end.
    Stopping,
    /// Its entrypoint has ended; every member looks for what it left behind.
    Sweeping,
    /// Nothing of it is left.
    Over,
}

impl GuestPhase {
    /// The phases as numbers, in their order.
    fn order(self) -> u8 {
        match self {
            GuestPhase::Preparing => 0,
            GuestPhase::Running => 1,
            GuestPhase::Stopping => 2,
            GuestPhase::Sweeping => 3,
            GuestPhase::Over => 4,
        }
    }

    pub fn is_before(self, other: GuestPhase) -> bool {
        self.order() < other.order()
    }
}

impl Guest {
    /// Whether it still takes its part of the cluster.
    pub fn is_live(&self) -> bool {
        self.phase != GuestPhase::Over
    }

    /// The same in a later phase, of which nobody has done anything yet.
    pub fn enters(self, phase: GuestPhase, now: Timestamp) -> Guest {
        Guest { phase, since: now, done: BTreeSet::new(), ..self }
    }

    /// The member that the Ray driver is forced onto.
    pub fn driver(&self) -> MemberId {
        self.shares.first().map_or(DRIVER_MEMBER, |share| MemberId::Rank(share.rank))
    }
}

impl Job {
    /// Ray's submission id, and the operation id, of the entrypoint of an attempt. The Ray cluster of
    /// a guest may have seen a job of this id that was deleted since.
    pub fn operation(&self, number: u32) -> String {
        match self.cluster {
            None => format!("{}-{number}", self.id),
            Some(_) => format!("{}-{number}-s{}", self.id, self.sequence),
        }
    }
}

/// The member that the Ray driver is forced onto: never the head.
pub const DRIVER_MEMBER: MemberId = MemberId::Rank(0);

/// What Ray said about the attempt's cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RayFacts {
    pub version: String,
    pub session: String,
    pub nodes: Vec<RayNode>,
    pub driver: Option<RayDriver>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RayNode {
    pub member: MemberId,
    pub ray_node_id: String,
    pub address: String,
    pub alive: bool,
    pub state_message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RayDriver {
    pub ray_node_id: String,
    pub member: Option<MemberId>,
    pub address: Option<String>,
}

/// Addresses of a gang, by rank, and the head's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    pub ranks: Vec<IpAddr>,
    pub head: IpAddr,
}
