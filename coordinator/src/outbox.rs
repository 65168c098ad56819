//! The way from the driver to sessions: the newest desired state per session, and closes. Secrets are
//! opened here, for the nodes that run their jobs, and nowhere else.
//!
//! A desired state replaces the one before it, so a slow agent never builds a queue here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gangline_common::ids::{Epoch, GangId, NodeId};
use gangline_common::tls::sha256;
use gangline_common::wire::v1::{
    Argument, Assignment, ClearedCondition, CodeTree, DesiredGang, DesiredHeader, Entrypoint,
    GuestAssignment, GuestJob, GuestOrder, HealthCleared, Launcher, MemberAssignment, OnDisconnect,
    Order, Piece, Secret,
};
use tokio::sync::watch;

use crate::core::effect::{Clear, Close, CloseReason, Desired, DesiredGuest, Push};
use crate::core::fencing::FENCE_AFTER_MS;
use crate::core::gang::Gang;
use crate::core::job::{self, Attempt, Guest, GuestPhase, Job, JobRequest, JobState};
use crate::core::secrets::SecretRecord;
use crate::secrets::{Sealer, SecretError};

/// What a session is told; a newer value replaces an older one that was not yet sent.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    pub desired: Option<Arc<DesiredState>>,
    pub cleared: Option<Arc<HealthCleared>>,
    pub close: Option<CloseReason>,
}

/// A whole desired state, ready for the wire. It holds the environments of jobs.
pub struct DesiredState {
    pub header: DesiredHeader,
    pub gangs: Vec<DesiredGang>,
}

impl fmt::Debug for DesiredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DesiredState").field("header", &self.header).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub struct Outbox {
    sessions: Arc<Mutex<HashMap<u64, watch::Sender<Orders>>>>,
    sealer: Sealer,
}

impl Outbox {
    pub fn new(sealer: Sealer) -> Self {
        Outbox { sessions: Arc::default(), sealer }
    }

    /// Opens the way to a session; before its Connected event, so that no push is missed.
    pub fn open(&self, session: u64) -> watch::Receiver<Orders> {
        let (sender, receiver) = watch::channel(Orders::default());
        self.lock().insert(session, sender);
        receiver
    }

    pub fn forget(&self, session: u64) {
        self.lock().remove(&session);
    }

    pub fn push(&self, push: Push) {
        let ready = |desired: &Desired| {
            let gang = desired_gang(desired, &push.node, &self.sealer);
            // Every secret was opened once at the start or sealed with the same key since. What
            // still does not open is left out: it never starts, and its start times out.
            gang.inspect_err(|error| tracing::error!(%error, node = %push.node, "a job cannot run"))
                .ok()
        };
        let gangs: Vec<DesiredGang> = push.gangs.iter().filter_map(ready).collect();
        let header = DesiredHeader { generation: push.generation, count: gangs.len() as u32 };
        let desired = Arc::new(DesiredState { header, gangs });
        if let Some(session) = self.lock().get(&push.session) {
            session.send_modify(|orders| orders.desired = Some(desired));
        }
    }

    pub fn clear(&self, clear: Clear) {
        let conditions = clear.conditions.into_iter().map(|condition| ClearedCondition {
            rule: condition.rule,
            component: condition.component,
            since_ms: condition.since_ms,
        });
        let cleared = Arc::new(HealthCleared { conditions: conditions.collect() });
        if let Some(session) = self.lock().get(&clear.session) {
            session.send_modify(|orders| orders.cleared = Some(cleared));
        }
    }

    pub fn close(&self, close: Close) {
        if let Some(session) = self.lock().get(&close.session) {
            session.send_modify(|orders| orders.close = Some(close.reason));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, watch::Sender<Orders>>> {
        // The map is whole after every statement, so a panic elsewhere does not spoil it.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn desired_gang(
    desired: &Desired,
    node: &NodeId,
    sealer: &Sealer,
) -> Result<DesiredGang, SecretError> {
    Ok(match desired {
        Desired::Run { job, gang, secrets, guests } => {
            let mut assignment = assignment(job, gang, node);
            assignment.env.extend(revealed(secrets, sealer)?);
            assignment.secret_names = names(secrets);
            assignment.guests = guests_on(guests, gang, node, sealer)?;
            DesiredGang {
                gang: gang.id.clone(),
                epoch: gang.epoch,
                order: Order::Run(Box::new(assignment)),
            }
        }
        Desired::Stop { gang, epoch, keep_scene } => DesiredGang {
            gang: gang.clone(),
            epoch: *epoch,
            order: Order::Stop { keep_scene: *keep_scene },
        },
    })
}

/// Secrets as variables. They come last, so that no tracker's default stands in their place.
fn revealed(
    secrets: &[Arc<SecretRecord>],
    sealer: &Sealer,
) -> Result<Vec<(String, String)>, SecretError> {
    let variable =
        |secret: &Arc<SecretRecord>| Ok((secret.name.clone(), sealer.reveal(secret)?.reveal()));
    secrets.iter().map(variable).collect()
}

fn names(secrets: &[Arc<SecretRecord>]) -> Vec<String> {
    secrets.iter().map(|secret| secret.name.clone()).collect()
}

/// One node's part of a gang, without its secrets. The same job, gang and node give the same bytes
/// every time.
fn assignment(job: &Job, gang: &Gang, node: &NodeId) -> Assignment {
    use gangline_common::ids::MemberId;
    let request = &job.request;
    let launcher = match request.launcher {
        job::Launcher::Ray => Launcher::Ray,
        job::Launcher::Command => Launcher::Command,
    };
    let first = gang.members.get(&MemberId::Head).or(gang.members.get(&MemberId::Rank(0)));
    let has_head = gang.members_on(node).any(|(id, _)| id == MemberId::Head);
    let has_rank_zero = gang.members_on(node).any(|(id, _)| id == MemberId::Rank(0));
    let entrypoint = Entrypoint {
        operation: job.operation(gang.attempt),
        argv: arguments(request),
        driver: job::DRIVER_MEMBER,
    };
    let checkpoint = Checkpoints::of(request);
    let member = |(id, member): (MemberId, &crate::core::gang::Member)| MemberAssignment {
        member: id,
        gpus: member.gpus.clone(),
        cpus_milli: member.cpus_milli,
        memory_bytes: member.memory_bytes,
        ports: member.ports,
    };
    Assignment {
        job: job.id.clone(),
        attempt: gang.attempt,
        job_name: request.name.clone(),
        project: job.project.clone(),
        launcher,
        nnodes: gang.ranks(),
        gpus_per_node: request.gpus_per_node,
        addresses: gang.addresses.ranks.clone(),
        head_address: gang.addresses.head,
        head_ports: first
            .map_or(gangline_common::ids::PortBlock { base: 0, size: 0 }, |member| member.ports),
        members: gang.members_on(node).map(member).collect(),
        entrypoints: if has_head && !job.is_cluster() { vec![entrypoint] } else { Vec::new() },
        guests: Vec::new(),
        argv: if launcher == Launcher::Command { arguments(request) } else { Vec::new() },
        env: environment(request, gang.attempt),
        secret_names: Vec::new(),
        workdir: request.workdir.clone(),
        code: code(job),
        job_directory: request.job_directory.clone(),
        checkpoint_directory: request.checkpoint_directory.clone(),
        checkpoint_keep: checkpoint.keep.filter(|_| !checkpoint.by_framework),
        checkpoint_may_go: checkpoint.keep.is_some(),
        checkpoint_copy: checkpoint.copy,
        directories: request.directories.clone(),
        config_files: if has_rank_zero { config_files(request) } else { Vec::new() },
        grace_ms: request.grace_ms,
        start_timeout_ms: request.start_timeout_ms,
        on_disconnect: match request.on_disconnect {
            job::OnDisconnect::Keep { .. } => OnDisconnect::Keep,
            job::OnDisconnect::Fence => OnDisconnect::Fence { after_ms: FENCE_AFTER_MS },
            job::OnDisconnect::StopAfter { ms } => OnDisconnect::StopAfter { after_ms: ms },
        },
        auth_token: auth_token(&job.token_seed, &gang.id, gang.epoch),
        run_as: None,
        log_files: request.log_files.clone(),
        log_bytes: request.log_bytes.map(|bytes| bytes / u64::from(gang.ranks().max(1))),
    }
}

/// What the spec says about training checkpoints that stay.
#[derive(Debug, Default)]
struct Checkpoints {
    keep: Option<u32>,
    /// A template passes that on to a framework, which then removes older ones itself.
    by_framework: bool,
    /// Encrypted copies are asked for.
    copy: bool,
}

impl Checkpoints {
    fn of(request: &JobRequest) -> Self {
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct Spec {
            template: Option<serde::de::IgnoredAny>,
            checkpoint: Checkpoint,
        }
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct Checkpoint {
            keep: Option<u32>,
            encrypted_copy: bool,
        }
        // The text was made by this program; one that does not read keeps everything.
        let spec: Spec = serde_json::from_str(&request.spec_json).unwrap_or_default();
        let Checkpoint { keep, encrypted_copy: copy } = spec.checkpoint;
        Checkpoints { keep, by_framework: spec.template.is_some(), copy }
    }
}

fn config_files(request: &JobRequest) -> Vec<(String, String)> {
    vec![
        ("spec.json".to_owned(), request.spec_json.clone()),
        ("submit.txt".to_owned(), request.submit_command.clone()),
    ]
}

/// The guests that a node has something to do for: its ranks prepare, the head's node runs and
/// stops, every node sweeps. Secrets go to the head's node alone, which gives them to Ray.
fn guests_on(
    guests: &[DesiredGuest],
    gang: &Gang,
    node: &NodeId,
    sealer: &Sealer,
) -> Result<Vec<GuestAssignment>, SecretError> {
    use gangline_common::ids::MemberId;
    let has_head = gang.members_on(node).any(|(id, _)| id == MemberId::Head);
    let mut listed = Vec::new();
    for DesiredGuest { job, attempt, secrets } in guests {
        let Some(guest) = &attempt.guest else { continue };
        let has_share = guest.shares.iter().any(|share| {
            let member = gang.members.get(&MemberId::Rank(share.rank));
            member.is_some_and(|member| member.node == *node)
        });
        let order = match guest.phase {
            GuestPhase::Preparing if has_share => {
                GuestOrder::Prepare(Box::new(guest_job(job, guest, gang, attempt.number)))
            }
            GuestPhase::Running if has_head && job.state == JobState::Running => GuestOrder::Watch,
            GuestPhase::Running if has_head => {
                let mut run = guest_job(job, guest, gang, attempt.number);
                run.config_files = Vec::new(); // its ranks have them
                run.env.extend(revealed(secrets, sealer)?);
                run.secret_names = names(secrets);
                GuestOrder::Run(Box::new(run))
            }
            GuestPhase::Stopping if has_head => GuestOrder::Stop,
            GuestPhase::Sweeping => {
                GuestOrder::Sweep { log_directory: log_directory(job, attempt) }
            }
            GuestPhase::Preparing
            | GuestPhase::Running
            | GuestPhase::Stopping
            | GuestPhase::Over => continue,
        };
        listed.push(GuestAssignment {
            operation: job.operation(attempt.number),
            job: job.id.clone(),
            attempt: attempt.number,
            ranks: guest.shares.iter().map(|share| share.rank).collect(),
            order,
        });
    }
    Ok(listed)
}

fn log_directory(job: &Job, attempt: &Attempt) -> Option<String> {
    let directory = job.request.job_directory.as_ref()?;
    Some(format!("{directory}/logs/attempt-{}", attempt.number))
}

fn guest_job(job: &Job, guest: &Guest, gang: &Gang, attempt: u32) -> GuestJob {
    let request = &job.request;
    let address = |rank: u32| gang.addresses.ranks.get(rank as usize).copied();
    GuestJob {
        argv: arguments(request),
        job_name: request.name.clone(),
        project: job.project.clone(),
        nnodes: u32::try_from(guest.shares.len()).unwrap_or(u32::MAX),
        gpus_per_node: request.gpus_per_node,
        addresses: guest.shares.iter().filter_map(|share| address(share.rank)).collect(),
        env: environment(request, attempt),
        secret_names: Vec::new(),
        workdir: request.workdir.clone(),
        code: code(job),
        job_directory: request.job_directory.clone(),
        checkpoint_directory: request.checkpoint_directory.clone(),
        directories: request.directories.clone(),
        config_files: config_files(request),
        grace_ms: request.grace_ms,
    }
}

/// The job's code, and the shared root below which the job's own directory is.
fn code(job: &Job) -> Option<CodeTree> {
    let tree = job.request.tree.clone()?;
    let directory = job.request.job_directory.as_deref();
    let shared_root = directory.and_then(|path| path.strip_suffix(&format!("/jobs/{}", job.id)));
    Some(CodeTree { tree, shared_root: shared_root.map(str::to_owned), user: job.user.clone() })
}

fn arguments(request: &JobRequest) -> Vec<Argument> {
    let piece = |piece: &job::Piece| match piece.clone() {
        job::Piece::Text(text) => Piece::Text(text),
        job::Piece::Variable(name) => Piece::Variable(name),
    };
    let argument = |pieces: &job::Argument| Argument { pieces: pieces.iter().map(piece).collect() };
    request.argv.iter().map(argument).collect()
}

/// The job's variables, after one that depends on the attempt: the file of verl's metrics, which
/// verl empties at its start.
fn environment(request: &JobRequest, attempt: u32) -> Vec<(String, String)> {
    let metrics = request.job_directory.as_ref().map(|directory| {
        let path = format!("{directory}/logs/metrics-{attempt}.jsonl");
        ("VERL_FILE_LOGGER_PATH".to_owned(), path)
    });
    metrics.into_iter().chain(request.env.iter().cloned()).collect()
}

/// Ray's token of one epoch: fresh for each, the same for each repetition of the push.
fn auth_token(seed: &[u8; 32], gang: &GangId, epoch: Epoch) -> Secret {
    let mut bytes = seed.to_vec();
    bytes.extend_from_slice(gang.as_str().as_bytes());
    bytes.extend_from_slice(&epoch.era.to_be_bytes());
    bytes.extend_from_slice(&epoch.n.to_be_bytes());
    Secret(data_encoding::HEXLOWER.encode(&sha256(&bytes)))
}
