//! What is stored, and the one store file that names bincode.
//!
//! A record is: layout version (u8), CRC-32 of the rest (u32, little endian), bincode "standard".
//! The `*V1` types are frozen at the first release; a change is then a `*V2` with a conversion.
//! Golden bytes in `tests/golden_records.rs` are their specification.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, JobId, MemberId, NodeId, PortBlock};
use gangline_common::time::{Stopwatch, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

mod accounts;
mod credentials;
mod node_tests;
mod pools;
mod recovery;
mod rule_trials;
mod webhooks;

use accounts::AccountV1;
pub use accounts::{decode_spent, decode_vacancy, encode_account, encode_spent, encode_vacancy};
use credentials::{
    IdempotencyV1, JoinTokenV1, SecretV1, UsageV1, decode_api_token, decode_project,
};
pub use credentials::{
    decode_audit, encode_api_token, encode_audit, encode_idempotency, encode_join_token,
    encode_project, encode_secret, encode_usage,
};

use node_tests::NodeTestV1;
pub use node_tests::encode_node_test;
use pools::PoolV1;
pub use pools::encode_pool;
use recovery::{RecoveryV1, VerdictV1};
use rule_trials::RuleTrialV1;
pub use rule_trials::encode_rule_trial;
use webhooks::{DeliveryV1, WebhookV1};
pub use webhooks::{decode_notice, encode_delivery, encode_notice, encode_webhook};

use super::Meta;
use crate::core::controls::{Changes, Hold};
use crate::core::effect::Write;
use crate::core::gang::{End, EndHow, Gang, GangState, Member, Phase};
use crate::core::health::ClearedCondition;
use crate::core::job::{
    Addresses, Attempt, Guest, GuestPhase, GuestShare, Job, JobState, Outcome, RayDriver, RayFacts,
    RayNode, Transition,
};
use crate::core::node::{Cordon, Drain, Gpu, Inventory, Lifecycle, Node, Reachability};
use crate::core::reputation::Doubt;
use crate::paths::ResolvedPaths;
use crate::request::Owner;

const RECORD_VERSION: u8 = 1;
/// No record decodes to more than this.
const DECODE_LIMIT: usize = 16 << 20;

fn seal<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    seal_as(RECORD_VERSION, value)
}

fn seal_as<T: Serialize>(version: u8, value: &T) -> Result<Vec<u8>, String> {
    let body = bincode::serde::encode_to_vec(value, bincode::config::standard())
        .map_err(|e| e.to_string())?;
    let mut bytes = Vec::with_capacity(5 + body.len());
    bytes.push(version);
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    unseal_as(RECORD_VERSION, bytes)
}

fn unseal_as<T: DeserializeOwned>(expected: u8, bytes: &[u8]) -> Result<T, String> {
    match bytes.first() {
        Some(version) if *version != expected => {
            return Err(format!("record layout {version} is not known to this build"));
        }
        _ => {}
    }
    let body = checked(bytes)?;
    let config = bincode::config::standard().with_limit::<DECODE_LIMIT>();
    let (value, used) =
        bincode::serde::decode_from_slice(body, config).map_err(|e| e.to_string())?;
    if used != body.len() {
        return Err("it has bytes after its end".to_owned());
    }
    Ok(value)
}

/// The body of a record of any layout, when its checksum is right.
fn checked(bytes: &[u8]) -> Result<&[u8], String> {
    let (head, body) = bytes.split_first_chunk::<5>().ok_or("it is cut off")?;
    let [_, crc @ ..] = *head;
    if u32::from_le_bytes(crc) != crc32fast::hash(body) {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(body)
}

#[derive(Serialize, Deserialize)]
struct MetaV1 {
    store_version: u32,
    era: u32,
    cluster: String,
    boot_id: String,
}

/// The first two fields of the header record never change again: an older build names by them what
/// it cannot read.
#[derive(Serialize, Deserialize)]
struct MetaV2 {
    store_version: u32,
    written_by: String,
    era: u32,
    cluster: String,
    boot_id: String,
}

const META_VERSION: u8 = 2;

/// Which build wrote a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub version: u32,
    /// Version of the program; "0.1" for the first layout, which does not say it.
    pub written_by: String,
}

impl Layout {
    /// What this build writes.
    pub fn current() -> Layout {
        Layout { version: super::STORE_VERSION, written_by: super::WRITTEN_BY.to_owned() }
    }
}

pub fn encode_meta(layout: &Layout, meta: &Meta) -> Vec<u8> {
    let record = MetaV2 {
        store_version: layout.version,
        written_by: layout.written_by.clone(),
        era: meta.era,
        cluster: meta.cluster.clone(),
        boot_id: meta.boot_id.clone(),
    };
    // A few plain fields: encoding them cannot fail; an empty record would be refused at open.
    seal_as(META_VERSION, &record).unwrap_or_default()
}

pub fn decode_meta(bytes: &[u8]) -> Result<(u32, Meta), String> {
    if bytes.first() == Some(&1) {
        let old: MetaV1 = unseal_as(1, bytes)?;
        let meta = Meta { era: old.era, cluster: old.cluster, boot_id: old.boot_id };
        return Ok((old.store_version, meta));
    }
    let record: MetaV2 = unseal_as(META_VERSION, bytes)?;
    let meta = Meta { era: record.era, cluster: record.cluster, boot_id: record.boot_id };
    Ok((record.store_version, meta))
}

/// What a header record of any layout, known or not, says of the build that wrote it.
pub fn decode_layout(bytes: &[u8]) -> Result<Layout, String> {
    let body = checked(bytes)?;
    let config = bincode::config::standard().with_limit::<DECODE_LIMIT>();
    let part = |e: bincode::error::DecodeError| e.to_string();
    if bytes.first() == Some(&1) {
        let (version, _) = bincode::serde::decode_from_slice(body, config).map_err(part)?;
        return Ok(Layout { version, written_by: "0.1".to_owned() });
    }
    let ((version, written_by), _) =
        bincode::serde::decode_from_slice(body, config).map_err(part)?;
    Ok(Layout { version, written_by })
}

/// Decodes a row of an entity table.
pub fn decode(table: &str, bytes: &[u8]) -> Result<Write, String> {
    Ok(match table {
        "jobs" => Write::Job(Arc::new(unseal::<JobV1>(bytes)?.restore()?)),
        "attempts" => Write::Attempt(Arc::new(unseal::<AttemptV1>(bytes)?.into())),
        "gangs" => Write::Gang(Arc::new(unseal::<GangV1>(bytes)?.into())),
        "nodes" => Write::Node(Arc::new(unseal::<NodeV1>(bytes)?.into())),
        "join_tokens" => Write::JoinToken(unseal::<JoinTokenV1>(bytes)?.into()),
        "api_tokens" => Write::ApiToken(decode_api_token(bytes)?),
        "secrets" => Write::Secret(Arc::new(unseal::<SecretV1>(bytes)?.into())),
        "projects" => Write::Project(decode_project(bytes)?),
        "usage" => Write::Usage(unseal::<UsageV1>(bytes)?.into()),
        "node_tests" => Write::NodeTest(Arc::new(unseal::<NodeTestV1>(bytes)?.into())),
        "rule_trials" => Write::RuleTrial(Arc::new(unseal::<RuleTrialV1>(bytes)?.into())),
        "pools" => Write::Pool(unseal::<PoolV1>(bytes)?.into()),
        "accounts" => Write::Account(unseal::<AccountV1>(bytes)?.into()),
        "webhooks" => Write::Webhook(unseal::<WebhookV1>(bytes)?.into()),
        "deliveries" => Write::Delivery(unseal::<DeliveryV1>(bytes)?.into()),
        "idempotency" => Write::Idempotency(unseal::<IdempotencyV1>(bytes)?.into()),
        other => return Err(format!("unknown table {other}")),
    })
}

// ---------------------------------------------------------------- shared parts

#[derive(Serialize, Deserialize, Clone, Copy)]
struct TimeV1 {
    boot_ms: u64,
    wall_ms: u64,
}

impl From<Timestamp> for TimeV1 {
    fn from(t: Timestamp) -> Self {
        TimeV1 { boot_ms: t.boot_ms, wall_ms: t.wall_ms }
    }
}

impl From<TimeV1> for Timestamp {
    fn from(t: TimeV1) -> Self {
        Timestamp { boot_ms: t.boot_ms, wall_ms: t.wall_ms }
    }
}

#[derive(Serialize, Deserialize)]
struct StopwatchV1 {
    since: TimeV1,
    before_ms: u64,
}

impl From<Stopwatch> for StopwatchV1 {
    fn from(watch: Stopwatch) -> Self {
        StopwatchV1 { since: watch.since.into(), before_ms: watch.before_ms }
    }
}

impl From<StopwatchV1> for Stopwatch {
    fn from(record: StopwatchV1) -> Self {
        Stopwatch { since: record.since.into(), before_ms: record.before_ms }
    }
}

#[derive(Serialize, Deserialize)]
struct TransitionV1 {
    wall_ms: u64,
    state: String,
    actor: String,
    text: String,
}

fn history_to(history: &[Transition]) -> Vec<TransitionV1> {
    let convert = |t: &Transition| TransitionV1 {
        wall_ms: t.wall_ms,
        state: t.state.clone(),
        actor: t.actor.clone(),
        text: t.text.clone(),
    };
    history.iter().map(convert).collect()
}

fn history_from(history: Vec<TransitionV1>) -> Vec<Transition> {
    let convert = |t: TransitionV1| Transition {
        wall_ms: t.wall_ms,
        state: t.state,
        actor: t.actor,
        text: t.text,
    };
    history.into_iter().map(convert).collect()
}

#[derive(Serialize, Deserialize)]
enum OutcomeV1 {
    Succeeded,
    Failed { cause: String },
    Cancelled { actor: String, reason: String },
    RolledBack { cause: String },
    Preempted { cause: String, keeps_nodes: bool },
    TimedOut { cause: String },
    Retried { cause: String },
    Evacuated { cause: String },
}

impl From<&Outcome> for OutcomeV1 {
    fn from(outcome: &Outcome) -> Self {
        match outcome.clone() {
            Outcome::Succeeded => OutcomeV1::Succeeded,
            Outcome::Failed { cause } => OutcomeV1::Failed { cause },
            Outcome::Cancelled { actor, reason } => OutcomeV1::Cancelled { actor, reason },
            Outcome::RolledBack { cause } => OutcomeV1::RolledBack { cause },
            Outcome::Preempted { cause, keeps_nodes } => {
                OutcomeV1::Preempted { cause, keeps_nodes }
            }
            Outcome::Retried { cause } => OutcomeV1::Retried { cause },
            Outcome::Evacuated { cause } => OutcomeV1::Evacuated { cause },
            Outcome::TimedOut { cause } => OutcomeV1::TimedOut { cause },
        }
    }
}

impl From<OutcomeV1> for Outcome {
    fn from(outcome: OutcomeV1) -> Self {
        match outcome {
            OutcomeV1::Succeeded => Outcome::Succeeded,
            OutcomeV1::Failed { cause } => Outcome::Failed { cause },
            OutcomeV1::Cancelled { actor, reason } => Outcome::Cancelled { actor, reason },
            OutcomeV1::RolledBack { cause } => Outcome::RolledBack { cause },
            OutcomeV1::Preempted { cause, keeps_nodes } => {
                Outcome::Preempted { cause, keeps_nodes }
            }
            OutcomeV1::Retried { cause } => Outcome::Retried { cause },
            OutcomeV1::Evacuated { cause } => Outcome::Evacuated { cause },
            OutcomeV1::TimedOut { cause } => Outcome::TimedOut { cause },
        }
    }
}

// ---------------------------------------------------------------- jobs

#[derive(Serialize, Deserialize)]
struct JobV1 {
    id: JobId,
    user: String,
    project: String,
    spec_json: String,
    submit_command: String,
    job_directory: Option<String>,
    checkpoint_directory: Option<String>,
    state: JobStateV1,
    gang: GangId,
    cluster: Option<JobId>,
    token_seed: [u8; 32],
    attempts: u32,
    sequence: u64,
    submitted: TimeV1,
    started: Option<TimeV1>,
    ended: Option<TimeV1>,
    reason: String,
    outcome: Option<OutcomeV1>,
    history: Vec<TransitionV1>,
    changes: ChangesV1,
    hold: Option<HoldV1>,
    waits_for: Vec<JobId>,
    eligible: Option<StopwatchV1>,
    running: Option<StopwatchV1>,
    recovery: RecoveryV1,
}

#[derive(Serialize, Deserialize)]
struct ChangesV1 {
    priority: Option<u8>,
    timeout_ms: Option<u64>,
    exclude_nodes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct HoldV1 {
    by: String,
    why: String,
    since: TimeV1,
}

#[derive(Serialize, Deserialize)]
enum JobStateV1 {
    Pending,
    Starting,
    Running,
    Stopping,
    Held,
    Succeeded,
    Failed,
    Cancelled,
    Timeout,
}

impl From<JobState> for JobStateV1 {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Pending => JobStateV1::Pending,
            JobState::Starting => JobStateV1::Starting,
            JobState::Running => JobStateV1::Running,
            JobState::Stopping => JobStateV1::Stopping,
            JobState::Held => JobStateV1::Held,
            JobState::Succeeded => JobStateV1::Succeeded,
            JobState::Failed => JobStateV1::Failed,
            JobState::Cancelled => JobStateV1::Cancelled,
            JobState::Timeout => JobStateV1::Timeout,
        }
    }
}

impl From<JobStateV1> for JobState {
    fn from(state: JobStateV1) -> Self {
        match state {
            JobStateV1::Pending => JobState::Pending,
            JobStateV1::Starting => JobState::Starting,
            JobStateV1::Running => JobState::Running,
            JobStateV1::Stopping => JobState::Stopping,
            JobStateV1::Held => JobState::Held,
            JobStateV1::Succeeded => JobState::Succeeded,
            JobStateV1::Failed => JobState::Failed,
            JobStateV1::Cancelled => JobState::Cancelled,
            JobStateV1::Timeout => JobState::Timeout,
        }
    }
}

pub fn encode_job(job: &Job) -> Result<Vec<u8>, String> {
    seal(&JobV1 {
        id: job.id.clone(),
        user: job.user.clone(),
        project: job.project.clone(),
        spec_json: job.request.spec_json.clone(),
        submit_command: job.request.submit_command.clone(),
        job_directory: job.request.job_directory.clone(),
        checkpoint_directory: job.request.checkpoint_directory.clone(),
        state: job.state.into(),
        gang: job.gang.clone(),
        cluster: job.cluster.clone(),
        token_seed: job.token_seed,
        attempts: job.attempts,
        sequence: job.sequence,
        submitted: job.submitted.into(),
        started: job.started.map(TimeV1::from),
        ended: job.ended.map(TimeV1::from),
        reason: job.reason.clone(),
        outcome: job.outcome.as_ref().map(OutcomeV1::from),
        history: history_to(&job.history),
        changes: ChangesV1 {
            priority: job.changes.priority,
            timeout_ms: job.changes.timeout_ms,
            exclude_nodes: job.changes.exclude_nodes.clone(),
        },
        hold: job.hold.as_ref().map(|hold| HoldV1 {
            by: hold.by.clone(),
            why: hold.why.clone(),
            since: hold.since.into(),
        }),
        waits_for: job.waits_for.clone(),
        eligible: job.eligible.map(StopwatchV1::from),
        running: job.running.map(StopwatchV1::from),
        recovery: job.recovery.into(),
    })
}

impl JobV1 {
    fn restore(self) -> Result<Job, String> {
        let paths = ResolvedPaths {
            job_directory: self.job_directory,
            checkpoint_directory: self.checkpoint_directory,
        };
        let owner = Owner { job: &self.id, project: &self.project };
        let mut request =
            super::request::restore(&self.spec_json, owner, self.submit_command, paths)?;
        let ChangesV1 { priority, timeout_ms, exclude_nodes } = self.changes;
        let changes = Changes { priority, timeout_ms, exclude_nodes };
        changes.apply(&mut request);
        let hold = |hold: HoldV1| Hold { by: hold.by, why: hold.why, since: hold.since.into() };
        Ok(Job {
            id: self.id,
            user: self.user,
            project: self.project,
            request: Arc::new(request),
            changes,
            hold: self.hold.map(hold),
            waits_for: self.waits_for,
            state: self.state.into(),
            gang: self.gang,
            cluster: self.cluster,
            token_seed: self.token_seed,
            attempts: self.attempts,
            sequence: self.sequence,
            submitted: self.submitted.into(),
            started: self.started.map(Timestamp::from),
            ended: self.ended.map(Timestamp::from),
            eligible: self.eligible.map(Stopwatch::from),
            running: self.running.map(Stopwatch::from),
            reason: self.reason,
            outcome: self.outcome.map(Outcome::from),
            recovery: self.recovery.into(),
            history: history_from(self.history),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct AttemptV1 {
    job: JobId,
    number: u32,
    gang: GangId,
    epoch: Epoch,
    started: TimeV1,
    ended: Option<TimeV1>,
    outcome: Option<OutcomeV1>,
    ray: Option<RayFactsV1>,
    guest: Option<GuestV1>,
    verdict: Option<VerdictV1>,
}

#[derive(Serialize, Deserialize)]
struct GuestV1 {
    /// Rank of the cluster, GPUs, CPUs in thousandths.
    shares: Vec<(u32, u32, u32)>,
    phase: GuestPhaseV1,
    since: TimeV1,
    done: BTreeSet<MemberId>,
    log_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
enum GuestPhaseV1 {
    Preparing,
    Running,
    Stopping,
    Sweeping,
    Over,
}

impl From<&Guest> for GuestV1 {
    fn from(guest: &Guest) -> Self {
        GuestV1 {
            shares: guest.shares.iter().map(|s| (s.rank, s.gpus, s.cpus_milli)).collect(),
            phase: match guest.phase {
                GuestPhase::Preparing => GuestPhaseV1::Preparing,
                GuestPhase::Running => GuestPhaseV1::Running,
                GuestPhase::Stopping => GuestPhaseV1::Stopping,
                GuestPhase::Sweeping => GuestPhaseV1::Sweeping,
                GuestPhase::Over => GuestPhaseV1::Over,
            },
            since: guest.since.into(),
            done: guest.done.clone(),
            log_bytes: guest.log_bytes,
        }
    }
}

impl From<GuestV1> for Guest {
    fn from(record: GuestV1) -> Self {
        let share = |(rank, gpus, cpus_milli)| GuestShare { rank, gpus, cpus_milli };
        Guest {
            shares: record.shares.into_iter().map(share).collect(),
            phase: match record.phase {
                GuestPhaseV1::Preparing => GuestPhase::Preparing,
                GuestPhaseV1::Running => GuestPhase::Running,
                GuestPhaseV1::Stopping => GuestPhase::Stopping,
                GuestPhaseV1::Sweeping => GuestPhase::Sweeping,
                GuestPhaseV1::Over => GuestPhase::Over,
            },
            since: record.since.into(),
            done: record.done,
            log_bytes: record.log_bytes,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RayFactsV1 {
    version: String,
    session: String,
    nodes: Vec<(MemberId, String, String, bool, String)>,
    driver: Option<(String, Option<MemberId>, Option<String>)>,
}

pub fn encode_attempt(attempt: &Attempt) -> Result<Vec<u8>, String> {
    let ray = attempt.ray.as_ref().map(|ray| RayFactsV1 {
        version: ray.version.clone(),
        session: ray.session.clone(),
        nodes: ray
            .nodes
            .iter()
            .map(|n| {
                let (id, address) = (n.ray_node_id.clone(), n.address.clone());
                (n.member, id, address, n.alive, n.state_message.clone())
            })
            .collect(),
        driver: ray.driver.as_ref().map(|d| (d.ray_node_id.clone(), d.member, d.address.clone())),
    });
    seal(&AttemptV1 {
        job: attempt.job.clone(),
        number: attempt.number,
        gang: attempt.gang.clone(),
        epoch: attempt.epoch,
        started: attempt.started.into(),
        ended: attempt.ended.map(TimeV1::from),
        outcome: attempt.outcome.as_ref().map(OutcomeV1::from),
        ray,
        guest: attempt.guest.as_ref().map(GuestV1::from),
        verdict: attempt.verdict.as_deref().map(VerdictV1::from),
    })
}

impl From<AttemptV1> for Attempt {
    fn from(record: AttemptV1) -> Self {
        let node = |(member, ray_node_id, address, alive, state_message)| RayNode {
            member,
            ray_node_id,
            address,
            alive,
            state_message,
        };
        let ray = record.ray.map(|ray| RayFacts {
            version: ray.version,
            session: ray.session,
            nodes: ray.nodes.into_iter().map(node).collect(),
            driver: ray.driver.map(|(ray_node_id, member, address)| RayDriver {
                ray_node_id,
                member,
                address,
            }),
        });
        Attempt {
            job: record.job,
            number: record.number,
            gang: record.gang,
            epoch: record.epoch,
            started: record.started.into(),
            ended: record.ended.map(Timestamp::from),
            outcome: record.outcome.map(Outcome::from),
            ray,
            guest: record.guest.map(Guest::from),
            verdict: record.verdict.map(Into::into),
        }
    }
}

// ---------------------------------------------------------------- gangs

#[derive(Serialize, Deserialize)]
struct GangV1 {
    id: GangId,
    owner: OwnerV1,
    epoch: Epoch,
    state: GangStateV1,
    since: TimeV1,
    members: Vec<(MemberId, MemberV1)>,
    rank_addresses: Vec<IpAddr>,
    head_address: IpAddr,
    keeps: bool,
}

/// A gang is owned by one job's attempt; a standing cluster is a job too.
#[derive(Serialize, Deserialize)]
enum OwnerV1 {
    Job { job: JobId, attempt: u32 },
}

#[derive(Serialize, Deserialize)]
enum GangStateV1 {
    Starting,
    Ready,
    Stopping,
    Stopped,
}

#[derive(Serialize, Deserialize)]
struct MemberV1 {
    node: NodeId,
    gpus: Vec<GpuId>,
    cpus_milli: u32,
    memory_bytes: u64,
    exclusive: bool,
    ports: PortBlock,
    phase: PhaseV1,
    kept: bool,
}

#[derive(Serialize, Deserialize)]
enum PhaseV1 {
    Assigned,
    Starting,
    Running { pid: u32 },
    Stopping,
    Ended { how: EndHowV1, asked: bool, last_output: String, logs_complete: bool },
}

#[derive(Serialize, Deserialize)]
enum EndHowV1 {
    Exited { code: i32 },
    Signalled { signal: i32 },
    Failed { reason: String },
    Refused { reason: String, busy_port: Option<u16> },
    Unfit { reason: String },
    GivenUp { reason: String },
}

pub fn encode_gang(gang: &Gang) -> Result<Vec<u8>, String> {
    seal(&GangV1 {
        id: gang.id.clone(),
        owner: OwnerV1::Job { job: gang.job.clone(), attempt: gang.attempt },
        epoch: gang.epoch,
        state: match gang.state {
            GangState::Starting => GangStateV1::Starting,
            GangState::Ready => GangStateV1::Ready,
            GangState::Stopping => GangStateV1::Stopping,
            GangState::Stopped => GangStateV1::Stopped,
        },
        since: gang.since.into(),
        members: gang.members.iter().map(|(id, member)| (*id, member.into())).collect(),
        rank_addresses: gang.addresses.ranks.clone(),
        head_address: gang.addresses.head,
        keeps: gang.keeps,
    })
}

impl From<&Member> for MemberV1 {
    fn from(member: &Member) -> Self {
        MemberV1 {
            node: member.node.clone(),
            gpus: member.gpus.clone(),
            cpus_milli: member.cpus_milli,
            memory_bytes: member.memory_bytes,
            exclusive: member.exclusive,
            ports: member.ports,
            phase: match &member.phase {
                Phase::Assigned => PhaseV1::Assigned,
                Phase::Starting => PhaseV1::Starting,
                Phase::Running { pid } => PhaseV1::Running { pid: *pid },
                Phase::Stopping => PhaseV1::Stopping,
                Phase::Ended(end) => PhaseV1::Ended {
                    how: (&end.how).into(),
                    asked: end.asked,
                    last_output: end.last_output.clone(),
                    logs_complete: end.logs_complete,
                },
            },
            kept: member.kept,
        }
    }
}

impl From<&EndHow> for EndHowV1 {
    fn from(how: &EndHow) -> Self {
        match how.clone() {
            EndHow::Exited { code } => EndHowV1::Exited { code },
            EndHow::Signalled { signal } => EndHowV1::Signalled { signal },
            EndHow::Failed { reason } => EndHowV1::Failed { reason },
            EndHow::Refused { reason, busy_port } => EndHowV1::Refused { reason, busy_port },
            EndHow::Unfit { reason } => EndHowV1::Unfit { reason },
            EndHow::GivenUp { reason } => EndHowV1::GivenUp { reason },
        }
    }
}

impl From<EndHowV1> for EndHow {
    fn from(how: EndHowV1) -> Self {
        match how {
            EndHowV1::Exited { code } => EndHow::Exited { code },
            EndHowV1::Signalled { signal } => EndHow::Signalled { signal },
            EndHowV1::Failed { reason } => EndHow::Failed { reason },
            EndHowV1::Refused { reason, busy_port } => EndHow::Refused { reason, busy_port },
            EndHowV1::Unfit { reason } => EndHow::Unfit { reason },
            EndHowV1::GivenUp { reason } => EndHow::GivenUp { reason },
        }
    }
}

impl From<MemberV1> for Member {
    fn from(record: MemberV1) -> Self {
        Member {
            node: record.node,
            gpus: record.gpus,
            cpus_milli: record.cpus_milli,
            memory_bytes: record.memory_bytes,
            exclusive: record.exclusive,
            ports: record.ports,
            phase: match record.phase {
                PhaseV1::Assigned => Phase::Assigned,
                PhaseV1::Starting => Phase::Starting,
                PhaseV1::Running { pid } => Phase::Running { pid },
                PhaseV1::Stopping => Phase::Stopping,
                PhaseV1::Ended { how, asked, last_output, logs_complete } => {
                    Phase::Ended(End { how: how.into(), asked, last_output, logs_complete })
                }
            },
            kept: record.kept,
        }
    }
}

impl From<GangV1> for Gang {
    fn from(record: GangV1) -> Self {
        let OwnerV1::Job { job, attempt } = record.owner;
        let members: BTreeMap<MemberId, Member> =
            record.members.into_iter().map(|(id, member)| (id, member.into())).collect();
        Gang {
            id: record.id,
            job,
            attempt,
            epoch: record.epoch,
            state: match record.state {
                GangStateV1::Starting => GangState::Starting,
                GangStateV1::Ready => GangState::Ready,
                GangStateV1::Stopping => GangState::Stopping,
                GangStateV1::Stopped => GangState::Stopped,
            },
            since: record.since.into(),
            members,
            addresses: Addresses { ranks: record.rank_addresses, head: record.head_address },
            keeps: record.keeps,
        }
    }
}

// ---------------------------------------------------------------- nodes

#[derive(Serialize, Deserialize)]
struct NodeV1 {
    id: NodeId,
    name: String,
    joined: TimeV1,
    bound_pool: Option<String>,
    set_pool: Option<String>,
    set_labels: BTreeMap<String, String>,
    lifecycle: LifecycleV1,
    cordon: Option<(String, String)>,
    drain: Option<DrainV1>,
    revoked: bool,
    certificates: Vec<[u8; 32]>,
    generation: Generation,
    inventory: Option<InventoryV1>,
    history: Vec<TransitionV1>,
    /// Gangs and epochs that are to be stopped when the node is back.
    stops: Vec<(GangId, Epoch)>,
    /// Rule, component and time of conditions that an operator has ended.
    cleared: Vec<(String, String, u64)>,
    doubt: Option<DoubtV1>,
}

#[derive(Serialize, Deserialize)]
struct DoubtV1 {
    milli: u32,
    at: TimeV1,
    why: String,
}

#[derive(Serialize, Deserialize)]
struct DrainV1 {
    by: String,
    why: String,
    since: TimeV1,
    deadline_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
enum LifecycleV1 {
    Pending,
    Online,
    Draining,
    Offline,
}

#[derive(Serialize, Deserialize)]
struct InventoryV1 {
    hostname: String,
    agent_version: String,
    head_role: bool,
    worker_role: bool,
    pool: String,
    labels: Vec<(String, String)>,
    address: IpAddr,
    boot_id: String,
    network_namespace: u64,
    container_start_ms: u64,
    gpus: Vec<(GpuId, u32, String, u64)>,
    cpus_milli: u32,
    memory_bytes: u64,
    shm_bytes: u64,
    pids_limit: Option<u64>,
    ports: PortBlock,
    versions: Vec<(String, String)>,
    doctor: Vec<(String, String, String, Option<String>)>,
}

pub fn encode_node(node: &Node) -> Result<Vec<u8>, String> {
    seal(&NodeV1 {
        id: node.id.clone(),
        name: node.name.clone(),
        joined: node.joined.into(),
        bound_pool: node.bound_pool.clone(),
        set_pool: node.set_pool.clone(),
        set_labels: node.set_labels.clone(),
        lifecycle: match node.lifecycle {
            Lifecycle::Pending => LifecycleV1::Pending,
            Lifecycle::Online => LifecycleV1::Online,
            Lifecycle::Draining => LifecycleV1::Draining,
            Lifecycle::Offline => LifecycleV1::Offline,
        },
        cordon: node.cordon.as_ref().map(|c| (c.by.clone(), c.why.clone())),
        drain: node.drain.as_ref().map(|drain| DrainV1 {
            by: drain.by.clone(),
            why: drain.why.clone(),
            since: drain.since.into(),
            deadline_ms: drain.deadline_ms,
        }),
        revoked: node.revoked,
        certificates: node.certificates.clone(),
        generation: node.generation,
        inventory: node.inventory.as_deref().map(InventoryV1::from),
        history: history_to(&node.history),
        stops: node.stops.iter().map(|(gang, epoch)| (gang.clone(), *epoch)).collect(),
        cleared: node
            .cleared
            .iter()
            .map(|c| (c.rule.clone(), c.component.clone(), c.since_ms))
            .collect(),
        doubt: node.doubt.as_ref().map(|doubt| DoubtV1 {
            milli: doubt.milli,
            at: doubt.at.into(),
            why: doubt.why.clone(),
        }),
    })
}

impl From<&Inventory> for InventoryV1 {
    fn from(i: &Inventory) -> Self {
        let gpu = |g: &Gpu| (g.uuid.clone(), g.index, g.name.clone(), g.memory_bytes);
        InventoryV1 {
            hostname: i.hostname.clone(),
            agent_version: i.agent_version.clone(),
            head_role: i.head_role,
            worker_role: i.worker_role,
            pool: i.pool.clone(),
            labels: i.labels.clone(),
            address: i.address,
            boot_id: i.boot_id.clone(),
            network_namespace: i.network_namespace,
            container_start_ms: i.container_start_ms,
            gpus: i.gpus.iter().map(gpu).collect(),
            cpus_milli: i.cpus_milli,
            memory_bytes: i.memory_bytes,
            shm_bytes: i.shm_bytes,
            pids_limit: i.pids_limit,
            ports: i.ports,
            versions: i.versions.clone(),
            doctor: i.doctor.clone(),
        }
    }
}

impl From<InventoryV1> for Inventory {
    fn from(i: InventoryV1) -> Self {
        let gpu = |(uuid, index, name, memory_bytes)| Gpu { uuid, index, name, memory_bytes };
        Inventory {
            hostname: i.hostname,
            agent_version: i.agent_version,
            head_role: i.head_role,
            worker_role: i.worker_role,
            pool: i.pool,
            labels: i.labels,
            address: i.address,
            boot_id: i.boot_id,
            network_namespace: i.network_namespace,
            container_start_ms: i.container_start_ms,
            gpus: i.gpus.into_iter().map(gpu).collect(),
            cpus_milli: i.cpus_milli,
            memory_bytes: i.memory_bytes,
            shm_bytes: i.shm_bytes,
            pids_limit: i.pids_limit,
            ports: i.ports,
            versions: i.versions,
            doctor: i.doctor,
        }
    }
}

impl From<NodeV1> for Node {
    fn from(record: NodeV1) -> Self {
        Node {
            id: record.id,
            name: record.name,
            joined: record.joined.into(),
            bound_pool: record.bound_pool,
            set_pool: record.set_pool,
            set_labels: record.set_labels,
            lifecycle: match record.lifecycle {
                LifecycleV1::Pending => Lifecycle::Pending,
                LifecycleV1::Online => Lifecycle::Online,
                LifecycleV1::Draining => Lifecycle::Draining,
                LifecycleV1::Offline => Lifecycle::Offline,
            },
            cordon: record.cordon.map(|(by, why)| Cordon { by, why }),
            drain: record.drain.map(|drain| Drain {
                by: drain.by,
                why: drain.why,
                since: drain.since.into(),
                deadline_ms: drain.deadline_ms,
            }),
            revoked: record.revoked,
            certificates: record.certificates,
            generation: record.generation,
            inventory: record.inventory.map(|inventory| Arc::new(Inventory::from(inventory))),
            history: history_from(record.history),
            stops: record.stops.into_iter().collect(),
            cleared: record
                .cleared
                .into_iter()
                .map(|(rule, component, since_ms)| ClearedCondition { rule, component, since_ms })
                .collect(),
            doubt: record.doubt.map(|doubt| Doubt {
                milli: doubt.milli,
                at: doubt.at.into(),
                why: doubt.why,
            }),
            reachability: Reachability::Suspect,
            session: None,
            health: Arc::default(),
            last_word_ms: 0,
            held: None,
            unknown: BTreeSet::new(),
        }
    }
}
