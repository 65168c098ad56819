//! Everything that can happen to the coordinator: the only input of its core.

use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, Generation, JobId, MemberKey, NodeId};

use super::accounts::Reading;
use super::controls::Control;
use super::credential::{ApiTokenRecord, JoinTokenRecord, Principal};
use super::explain::Question;
use super::gang::Phase;
use super::health::Health;
use super::job::{JobRequest, RayFacts};
use super::maintenance::Maintenance;
use super::node::{Inventory, Session};
use super::node_test::{NodeTest, TestState};
use super::pools::PoolChange;
use super::projects::ProjectChange;
use super::recovery::Verdict;
use super::secrets::SecretRecord;
use super::stall::StallWord;
use super::webhooks::{Progress, WebhookKey, WebhookRecord};

/// Ties a reply to the caller that waits for it; chosen by the driver.
pub type RequestId = u64;

#[derive(Debug, Clone)]
pub enum Event {
    /// Time has passed; leases and deadlines are looked at after every event anyway.
    Tick,

    // From the API.
    Submit {
        request: RequestId,
        submission: Box<Submission>,
    },
    /// Nothing changes by it.
    Ask {
        request: RequestId,
        question: Question,
    },
    StopJob {
        request: RequestId,
        job: JobId,
        actor: Principal,
        reason: String,
    },
    /// Hold a job, release it, send it back to the queue, or change what it may have.
    ControlJob {
        request: RequestId,
        job: JobId,
        control: Control,
        actor: Principal,
    },
    /// Forget an ended job and everything that belongs to it.
    DeleteJob {
        request: RequestId,
        job: JobId,
        actor: Principal,
    },
    CreateJoinToken {
        request: RequestId,
        record: JoinTokenRecord,
        actor: Principal,
    },
    CreateApiToken {
        request: RequestId,
        record: ApiTokenRecord,
        actor: Principal,
    },
    /// A token of the API by name, or a join token by id.
    DeleteToken {
        request: RequestId,
        name: String,
        actor: Principal,
    },
    /// Set or replace a secret of a project.
    SetSecret {
        request: RequestId,
        record: SecretRecord,
        actor: Principal,
    },
    DeleteSecret {
        request: RequestId,
        project: String,
        name: String,
        actor: Principal,
    },
    /// Set or replace a webhook.
    SetWebhook {
        request: RequestId,
        record: WebhookRecord,
        actor: Principal,
    },
    DeleteWebhook {
        request: RequestId,
        key: WebhookKey,
        actor: Principal,
    },
    TestWebhook {
        request: RequestId,
        key: WebhookKey,
        actor: Principal,
    },
    /// A webhook was told, or could not be.
    Told {
        request: RequestId,
        key: WebhookKey,
        progress: Progress,
    },
    SetProject {
        request: RequestId,
        name: String,
        change: Box<ProjectChange>,
        actor: Principal,
    },
    MaintainNode {
        request: RequestId,
        node: NodeId,
        wanted: Maintenance,
        actor: Principal,
    },
    /// Give labels to a node, or take back those that operators gave (`None`).
    LabelNode {
        request: RequestId,
        node: NodeId,
        labels: Vec<(String, Option<String>)>,
        actor: Principal,
    },
    SetPool {
        request: RequestId,
        pool: String,
        change: PoolChange,
        actor: Principal,
    },
    DeletePool {
        request: RequestId,
        pool: String,
        actor: Principal,
    },
    RevokeNode {
        request: RequestId,
        node: NodeId,
        actor: Principal,
    },
    /// An operator makes a simulated GPU of a node fail; for the record.
    FaultAsked {
        request: RequestId,
        node: NodeId,
        fault: String,
        actor: Principal,
    },
    /// An operator says that nothing of a lost node runs any more.
    ForceRelease {
        request: RequestId,
        node: NodeId,
        reason: String,
        actor: Principal,
    },

    // From the server: an agent without a certificate, or one that renews.
    Join {
        request: RequestId,
        join: Join,
    },
    Renewed {
        request: RequestId,
        node: NodeId,
        certificate: [u8; 32],
    },

    // From sessions.
    Connected {
        request: RequestId,
        node: NodeId,
        session: Session,
    },
    Disconnected {
        node: NodeId,
        session: u64,
    },
    Inventory {
        node: NodeId,
        session: u64,
        inventory: Box<Inventory>,
        name: String,
    },
    /// A sign of life.
    Heard {
        node: NodeId,
        session: u64,
        /// What the agent says that it holds; samples do not say.
        held: Option<Generation>,
    },
    Reported {
        node: NodeId,
        session: u64,
        report: Report,
    },
    /// Why an attempt failed.
    Examined {
        job: JobId,
        attempt: u32,
        verdict: Box<Verdict>,
    },
    /// What came of a check of the network.
    NodeTested {
        job: JobId,
        state: Box<TestState>,
    },
    /// What is wrong with a node, whole.
    Diagnosed {
        node: NodeId,
        session: u64,
        health: Box<Health>,
    },

    /// From whoever reads logs and samples: a training goes on no more, or again.
    Stall(StallWord),
}

impl Event {
    /// What happened, without what it carries: events carry secrets.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Tick => "tick",
            Event::Submit { .. } => "submit",
            Event::Ask { .. } => "ask",
            Event::StopJob { .. } => "stop job",
            Event::ControlJob { .. } => "control job",
            Event::DeleteJob { .. } => "delete job",
            Event::CreateJoinToken { .. } => "create join token",
            Event::CreateApiToken { .. } => "create API token",
            Event::DeleteToken { .. } => "delete token",
            Event::SetSecret { .. } => "set secret",
            Event::DeleteSecret { .. } => "delete secret",
            Event::SetWebhook { .. } => "set webhook",
            Event::DeleteWebhook { .. } => "delete webhook",
            Event::TestWebhook { .. } => "test webhook",
            Event::Told { .. } => "told",
            Event::SetProject { .. } => "set project",
            Event::MaintainNode { .. } => "maintain node",
            Event::LabelNode { .. } => "label node",
            Event::SetPool { .. } => "set pool",
            Event::DeletePool { .. } => "delete pool",
            Event::RevokeNode { .. } => "revoke node",
            Event::FaultAsked { .. } => "fault asked",
            Event::ForceRelease { .. } => "force release",
            Event::Join { .. } => "join",
            Event::Renewed { .. } => "renewed",
            Event::Connected { .. } => "connected",
            Event::Disconnected { .. } => "disconnected",
            Event::Inventory { .. } => "inventory",
            Event::Heard { .. } => "heard",
            Event::Reported { .. } => "reported",
            Event::Examined { .. } => "examined",
            Event::NodeTested { .. } => "node tested",
            Event::Diagnosed { .. } => "diagnosed",
            Event::Stall(_) => "stall",
        }
    }
}

/// A request to make a job. Ids and random bits are minted by the caller.
#[derive(Debug, Clone)]
pub struct Submission {
    pub job: JobId,
    /// Whether the client chose the id: then an equal id with an equal spec is the same job.
    pub gang: GangId,
    pub token_seed: [u8; 32],
    pub principal: Principal,
    pub idempotency: Option<(String, [u8; 32])>,
    pub request: Arc<JobRequest>,
    /// The jobs that it is to run after, in the order of the spec; `None` for one that there is not,
    /// or that the submitter may not see.
    pub after: Vec<Option<JobId>>,
    /// The record of the check of the network that the job is.
    pub node_test: Option<Box<NodeTest>>,
}

/// A join whose certificate is already signed but not yet handed out.
#[derive(Debug, Clone)]
pub struct Join {
    pub token_id: String,
    pub secret_sha256: [u8; 32],
    pub node: NodeId,
    pub node_name: String,
    pub certificate: [u8; 32],
}

/// An agent's whole truth.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub held: Generation,
    pub members: Vec<(MemberKey, Phase)>,
    pub gangs: Vec<GangFacts>,
    pub guests: Vec<GuestWord>,
    pub checkpoints: Vec<CheckpointWord>,
    pub saved: Vec<SavedWord>,
    pub usage: Vec<UsageWord>,
}

/// What was measured of the GPUs of a member since its agent began to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageWord {
    pub key: MemberKey,
    pub reading: Reading,
}

/// The newest training checkpoint of the incarnation that a member is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointWord {
    pub key: MemberKey,
    pub name: String,
    /// How long ago it was made, in milliseconds.
    pub age_ms: u64,
}

/// What there is of training checkpoints in the directory of the incarnation that a member is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedWord {
    pub key: MemberKey,
    /// The newest one that is complete.
    pub newest: Option<SavedCheckpoint>,
    /// All that are complete.
    pub count: u32,
    pub bytes: u64,
    pub room: Room,
    /// Where encrypted copies are asked for.
    pub copy: Option<Copied>,
}

/// How the copies of training checkpoints fare.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Copied {
    /// The newest one that was copied.
    pub newest: Option<String>,
    /// Why the last one was not.
    pub problem: Option<String>,
}

/// A training checkpoint that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedCheckpoint {
    pub name: String,
    pub step: Option<u64>,
    pub bytes: u64,
    /// How long ago it was changed last, in milliseconds.
    pub age_ms: u64,
}

/// What the file system of a checkpoint directory has room for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Room {
    pub free_bytes: u64,
    /// What the next training checkpoint may take.
    pub next_bytes: u64,
    /// There is not room for many more.
    pub is_low: bool,
    /// Older ones that were removed to make room since the agent began to look, and the last of them.
    pub removed: u32,
    pub last_removed: Option<String>,
}

/// What a member of a standing cluster has done for a guest, named by its operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestWord {
    pub key: MemberKey,
    pub operation: String,
    pub fact: GuestFact,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestFact {
    /// What the guest needs on the node is there.
    Prepared,
    /// It cannot be made.
    Failed { reason: String },
    /// No process of the attempt is left.
    Swept {
        /// Length of the Ray driver's log, when it ran on this member.
        log_bytes: Option<u64>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangFacts {
    pub gang: GangId,
    pub epoch: Epoch,
    pub ready: bool,
    pub ray: Option<RayFacts>,
    /// State of the attempt's entrypoint, by operation id.
    pub entrypoints: Vec<(String, EntrypointFact)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntrypointFact {
    Waiting,
    Running,
    Succeeded,
    Failed { cause: String },
}
