//! Jobs and attempts: what a user asked for, and one try at running it.

use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, JobId, MemberId};
use gangline_common::time::Timestamp;

/// State changes that a job or node remembers; older ones are dropped.
pub const HISTORY_LIMIT: usize = 64;

/// What a submission asks for: the parts of the spec that decisions and agents need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    pub name: String,
    pub nnodes: u32,
    pub gpus_per_node: u32,
    /// CPUs of one member in thousandths; `None` takes the GPU share of the node.
    pub cpus_milli: Option<u32>,
    /// Memory of one member in bytes; `None` takes the GPU share of the node.
    pub memory_bytes: Option<u64>,
    pub pool: Option<String>,
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
    pub grace_ms: u64,
    pub start_timeout_ms: u64,
    /// The submitted spec as canonical JSON: the record of truth that this struct is made from.
    pub spec_json: String,
    /// The exact command of the submitter, for people; may be empty.
    pub submit_command: String,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    Ray,
    Command,
}

/// A submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub user: String,
    pub project: String,
    pub request: Arc<JobRequest>,
    pub state: JobState,
    /// The gang that all attempts of this job run on, one epoch each.
    pub gang: GangId,
    /// Random bits that the tokens of the gang's epochs are derived from.
    pub token_seed: [u8; 32],
    /// Number of attempts so far.
    pub attempts: u32,
    /// Order of submission.
    pub sequence: u64,
    pub submitted: Timestamp,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// One sentence: why the job waits, or why it ended.
    pub reason: String,
    /// What the job will be once its gang is gone (STOPPING only).
    pub outcome: Option<Outcome>,
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
            Outcome::Failed { cause } => cause.clone(),
            Outcome::Cancelled { actor, reason } if reason.is_empty() => {
                format!("stopped by {actor}")
            }
            Outcome::Cancelled { actor, reason } => format!("stopped by {actor}: {reason}"),
            Outcome::RolledBack { cause } => format!("rolled back before anything ran: {cause}"),
        }
    }

    /// The job's final state; `None` when the job goes back to the queue.
    pub fn terminal_state(&self) -> Option<JobState> {
        match self {
            Outcome::Succeeded => Some(JobState::Succeeded),
            Outcome::Failed { .. } => Some(JobState::Failed),
            Outcome::Cancelled { .. } => Some(JobState::Cancelled),
            Outcome::RolledBack { .. } => None,
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
    pub ray: Option<RayFacts>,
}

impl Attempt {
    /// Ray's submission id, and the operation id of the attempt's entrypoint.
    pub fn operation(job: &JobId, number: u32) -> String {
        format!("{job}-{number}")
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
