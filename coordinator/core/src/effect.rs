//! Everything that the coordinator can do: the only output of its core.

use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, Generation, JobId, NodeId};

use super::accounts::{Account, Spent};
use super::audit::AuditEntry;
use super::checkpoints::{Saved, TrainingCheckpoint};
use super::credential::{ApiTokenRecord, IdempotencyRecord, JoinTokenRecord};
use super::eligibility::BadDependency;
use super::event::RequestId;
use super::explain::{Explanation, QueueLine};
use super::gang::Gang;
use super::health::ClearedCondition;
use super::job::{Attempt, Job};
use super::node::Node;
use super::node_test::NodeTest;
use super::notices::Notice;
use super::pools::PoolRecord;
use super::projects::ProjectRecord;
use super::secrets::SecretRecord;
use super::trials::RuleTrial;
use super::usage::Usage;
use super::vacancy::Vacancy;
use super::webhooks::{Delivery, WebhookKey, WebhookRecord};

/// Output of one batch of events. The driver commits `writes`, then acts on the rest.
#[derive(Debug, Default)]
pub struct Effects {
    pub writes: Vec<Write>,
    pub pushes: Vec<Push>,
    pub closes: Vec<Close>,
    pub clears: Vec<Clear>,
    pub examine: Vec<Examine>,
    pub replies: Vec<(RequestId, Answer)>,
    /// Entities whose unstored parts changed, each with the number of writes before it: for the
    /// memory snapshots only, which must take both in the order in which they happened.
    pub seen: Vec<(usize, Seen)>,
}

impl Effects {
    pub(super) fn saw(&mut self, seen: Seen) {
        self.seen.push((self.writes.len(), seen));
    }
}

/// One change of the store. Replaying all of them into an empty core gives the same core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    Job(Arc<Job>),
    Attempt(Arc<Attempt>),
    Gang(Arc<Gang>),
    Node(Arc<Node>),
    JoinToken(JoinTokenRecord),
    ApiToken(ApiTokenRecord),
    Secret(Arc<SecretRecord>),
    Project(ProjectRecord),
    Usage(Usage),
    Account(Account),
    Webhook(WebhookRecord),
    Delivery(Delivery),
    Pool(PoolRecord),
    NodeTest(Arc<NodeTest>),
    RuleTrial(Arc<RuleTrial>),
    Idempotency(IdempotencyRecord),
    ForgetIdempotency {
        user: String,
        key: String,
    },
    ForgetJoinToken {
        id: String,
    },
    ForgetApiToken {
        name: String,
    },
    ForgetSecret {
        project: String,
        name: String,
    },
    ForgetPool {
        name: String,
    },
    ForgetNodeTest {
        job: JobId,
    },
    ForgetRuleTrial {
        rule: String,
    },
    ForgetAccount {
        gang: GangId,
    },
    ForgetWebhook {
        key: WebhookKey,
    },
    ForgetDelivery {
        key: WebhookKey,
    },
    Audit(AuditEntry),
    Notice(Notice),
    /// A line of the books.
    Spent(Spent),
    /// A line of what nobody had.
    Vacancy(Vacancy),
    // A job is forgotten as a whole, in one batch: attempts, gang, then the job itself.
    ForgetAttempt {
        job: JobId,
        number: u32,
    },
    ForgetGang {
        id: GangId,
    },
    ForgetJob {
        id: JobId,
    },
}

/// A snapshot that readers should see, with nothing to store.
#[derive(Debug, Clone)]
pub enum Seen {
    Node(Arc<Node>),
    /// Why a job waits.
    Why {
        job: JobId,
        reason: Arc<str>,
    },
    /// A sign of life, and nothing else.
    Word {
        node: NodeId,
        last_word_ms: u64,
        held: Option<Generation>,
    },
    Checkpoint {
        gang: GangId,
        checkpoint: TrainingCheckpoint,
    },
    Saved {
        gang: GangId,
        saved: Saved,
    },
}

/// A node's whole desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    pub node: NodeId,
    pub session: u64,
    pub generation: Generation,
    pub gangs: Vec<Desired>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Desired {
    /// With the job's secrets, in the order of their names in the spec.
    Run {
        job: Arc<Job>,
        gang: Arc<Gang>,
        secrets: Vec<Arc<SecretRecord>>,
        guests: Vec<DesiredGuest>,
    },
    Stop {
        gang: GangId,
        epoch: Epoch,
        /// It has failed: how things stand is kept before anything of it is ended.
        keep_scene: bool,
    },
}

/// A job on a standing cluster, in the phase that its attempt says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredGuest {
    pub job: Arc<Job>,
    pub attempt: Arc<Attempt>,
    pub secrets: Vec<Arc<SecretRecord>>,
}

/// Find out why this attempt failed, and say so with `Event::Examined`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examine {
    pub job: JobId,
    pub attempt: u32,
}

/// End this connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    pub node: NodeId,
    pub session: u64,
    pub reason: CloseReason,
}

/// Tell an agent which conditions an operator has ended: the whole list, which replaces an older one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clear {
    pub node: NodeId,
    pub session: u64,
    pub conditions: BTreeSet<ClearedCondition>,
}

/// Why a connection is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    Revoked,
    CertificateExpired,
    Superseded,
}

/// What a caller is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Done,
    Submitted {
        job: JobId,
    },
    Stopping,
    Explained(Box<Explanation>),
    /// In the order in which waiting jobs are looked at.
    Queue(Vec<QueueLine>),
    /// What the allocations that there are have cost so far, and what is of none.
    Spent(Vec<Spent>, Vec<Vacancy>),
    /// The job is forgotten, and with it the gang that was its own: nobody's logs are in it now.
    Deleted {
        gang: Option<GangId>,
    },
    Connected,
    Joined {
        name: String,
    },
    Rejected(Rejected),
}

/// A request that is refused: a value, not a failure of the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// The same idempotency key came with another body.
    KeyReused {
        job: String,
    },
    /// The id is taken by another job.
    JobExists {
        job: JobId,
    },
    /// A live job uses the same training checkpoint directory.
    CheckpointInUse {
        job: JobId,
        directory: String,
    },
    /// Too many live jobs; see `core::LIVE_JOB_LIMIT`.
    Full {
        limit: usize,
    },
    NoSuchJob,
    /// The project has no standing cluster of this name that has not ended.
    NoSuchCluster,
    /// The cluster can never hold the job.
    ClusterTooSmall {
        cluster: JobId,
        nnodes: u32,
        gpus_per_node: u32,
    },
    /// See `core::guests::STARTING_BYTES`.
    GuestTooLarge {
        limit: usize,
    },
    /// Jobs that ran on the cluster have their logs in its gang.
    HasGuests {
        jobs: usize,
    },
    NoSuchNode,
    /// Nobody has declared the pool, and no node and no join token is of it.
    NoSuchPool {
        pool: String,
        known: Vec<String>,
    },
    /// Nodes or jobs that have not ended name the pool.
    PoolInUse {
        nodes: Vec<String>,
        jobs: usize,
    },
    /// No operator has moved the node to the pool: its join token or its agent put it there.
    NotMovedHere {
        node: String,
    },
    /// See `core::pools::POOL_LIMIT`.
    TooManyPools {
        limit: usize,
    },
    /// See `core::maintenance::NODE_LABEL_LIMIT`.
    TooManyLabels {
        limit: usize,
    },
    /// Only what a lost node holds can be released without its word.
    NodeNotLost,
    /// The node holds nothing of any gang.
    NothingHeld,
    NoSuchToken,
    NoSuchSecret,
    NoSuchWebhook,
    /// See `core::webhooks::WEBHOOK_LIMIT`.
    TooManyWebhooks {
        limit: usize,
    },
    /// A job that has not ended names the secret.
    SecretInUse {
        job: JobId,
    },
    /// The project has no secrets of these names, given by their place in the spec.
    UnknownSecrets {
        missing: Vec<usize>,
    },
    /// The job that the submission is to run after, by its place in the spec.
    Dependency {
        index: usize,
        why: BadDependency,
    },
    /// The job is not in the queue.
    NotWaiting {
        state: &'static str,
    },
    /// The job is being stopped for good.
    Ending,
    /// The job runs on a standing cluster, whose nodes are given.
    FixedNodes,
    /// See `core::controls::EXCLUDED_LIMIT`.
    TooManyExcluded {
        limit: usize,
    },
    /// The job has no time limit that could be extended.
    NoTimeLimit,
    /// A time limit is only ever extended.
    ShorterTimeLimit {
        present_ms: u64,
    },
    /// The highest that the project may ask for.
    PriorityTooHigh {
        highest: u8,
    },
    /// See `core::projects::QUOTA_LIMIT`.
    TooManyQuotas {
        limit: usize,
    },
    GuaranteeAboveMaximum {
        guaranteed: u32,
        maximum: u32,
    },
    /// The project's jobs hold more than the maximum would be.
    QuotaBelowUse {
        held: u32,
        jobs: Vec<JobId>,
    },
    /// With what others are guaranteed it would be more than the pool has.
    GuaranteesTooLarge {
        gpus: u64,
        promised: u32,
    },
    /// See `core::secrets::PROJECT_SECRET_LIMIT`.
    TooManySecrets {
        limit: usize,
    },
    /// See `core::secrets::JOB_SECRET_BYTES`.
    SecretsTooLarge {
        limit: usize,
    },
    /// Without this token nobody could make another one.
    LastAdmin,
    /// A token of the API of this name is somebody else's, or of another project or role.
    TokenNameTaken,
    AlreadyEnded {
        state: &'static str,
    },
    /// The job cannot be deleted in this state.
    NotEnded {
        state: &'static str,
    },
    /// The job has ended, but members on nodes that are lost may still run.
    NotGone,
    /// Unknown, expired, used up: deliberately one answer.
    BadJoinToken,
    Revoked,
    /// Another process with the same identity is connected.
    Clone {
        remote: String,
    },
}

impl Write {
    /// Makes a loaded record usable under the clock of this start: leases begin now, and boot
    /// times of another boot are replaced.
    pub fn begin_again(&mut self, now: gangline_common::time::Timestamp, rebooted: bool) {
        match self {
            Write::Gang(gang) if rebooted => Arc::make_mut(gang).since.boot_ms = now.boot_ms,
            Write::Node(node) => {
                let node = Arc::make_mut(node);
                node.last_word_ms = now.boot_ms;
                if let Some(doubt) = node.doubt.as_mut().filter(|_| rebooted) {
                    doubt.at = doubt.at.in_this_boot(now);
                }
                if let Some(drain) = node.drain.as_mut().filter(|_| rebooted) {
                    drain.since.boot_ms = now.boot_ms;
                }
            }
            Write::Usage(usage) if rebooted => usage.at.boot_ms = now.boot_ms,
            Write::Account(account) if rebooted => account.held.over_reboot(now),
            Write::Job(job) if rebooted => Arc::make_mut(job).over_reboot(now),
            Write::Attempt(attempt) if rebooted => {
                let attempt = Arc::make_mut(attempt);
                if attempt.ended.is_none() {
                    attempt.started = attempt.started.in_this_boot(now);
                }
                if let Some(guest) = &mut attempt.guest {
                    guest.since.boot_ms = now.boot_ms;
                }
            }
            Write::RuleTrial(trial) if rebooted => {
                for finding in &mut Arc::make_mut(trial).findings {
                    finding.found = finding.found.in_this_boot(now);
                }
            }
            // Remembered for longer then, never for less.
            Write::Idempotency(record) if rebooted => record.created.boot_ms = now.boot_ms,
            Write::Job(_)
            | Write::Attempt(_)
            | Write::Gang(_)
            | Write::JoinToken(_)
            | Write::ApiToken(_)
            | Write::Secret(_)
            | Write::Project(_)
            | Write::Usage(_)
            | Write::Account(_)
            | Write::Webhook(_)
            | Write::Delivery(_)
            | Write::Pool(_)
            | Write::NodeTest(_)
            | Write::RuleTrial(_)
            | Write::Idempotency(_)
            | Write::ForgetIdempotency { .. }
            | Write::ForgetJoinToken { .. }
            | Write::ForgetApiToken { .. }
            | Write::ForgetSecret { .. }
            | Write::ForgetPool { .. }
            | Write::ForgetNodeTest { .. }
            | Write::ForgetRuleTrial { .. }
            | Write::ForgetAccount { .. }
            | Write::ForgetWebhook { .. }
            | Write::ForgetDelivery { .. }
            | Write::Audit(_)
            | Write::Notice(_)
            | Write::Spent(_)
            | Write::Vacancy(_)
            | Write::ForgetAttempt { .. }
            | Write::ForgetGang { .. }
            | Write::ForgetJob { .. } => {}
        }
    }
}
