//! What the API shows: JSON shapes, and their making from the entities of the core. Jobs here,
//! nodes in `view/node.rs`.

mod node;

use std::collections::BTreeMap;

use gangline_common::ids::{MemberId, NodeId};
use gangline_common::time::{Timestamp, wall_text};
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::{HIDDEN, sees_values};
use super::live::Number;
use crate::board::{Board, JobSnapshot};
use crate::core::checkpoints::{Saved, TrainingCheckpoint};
use crate::core::credential::Principal;
use crate::core::gang::{End, EndHow, Gang, Member, Phase};
use crate::core::job::{
    Attempt, Guest, Job, JobState, Launcher, OnDisconnect, Outcome, RayDriver, RayFacts, Transition,
};
use crate::training::{Progress, Shown, SlowRank};

pub(super) use node::{NodeFacts, NodeView};

/// Node names by id: made once per answer.
pub(super) struct Names(BTreeMap<NodeId, String>);

impl Names {
    pub fn of(board: &Board) -> Self {
        let nodes = board.nodes();
        Names(nodes.iter().map(|n| (n.node.id.clone(), n.node.name.clone())).collect())
    }

    /// The node's name; its id when the node is not known.
    pub fn name(&self, id: &NodeId) -> String {
        self.0.get(id).cloned().unwrap_or_else(|| id.to_string())
    }
}

fn on_disconnect(policy: OnDisconnect) -> String {
    match policy {
        OnDisconnect::Fence => "fence".to_owned(),
        OnDisconnect::Keep { no_witness: false } => "keep".to_owned(),
        OnDisconnect::Keep { no_witness: true } => {
            "keep (fence needs a witness: a Ray gang of several nodes)".to_owned()
        }
        OnDisconnect::StopAfter { ms } => format!("stop_after {} s", ms / 1000),
    }
}

fn time(timestamp: Timestamp) -> String {
    wall_text(timestamp.wall_ms)
}

/// A job. Times are RFC 3339; what is not known is null.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobView {
    pub id: String,
    pub name: String,
    pub user: String,
    pub project: String,
    /// PENDING, STARTING, RUNNING, STOPPING, HELD, SUCCEEDED, FAILED, CANCELLED or TIMEOUT.
    pub state: &'static str,
    /// Why it waits, or why it ended.
    pub reason: String,
    /// `ray` or `command`.
    pub launcher: &'static str,
    /// `job` or `cluster`.
    pub kind: &'static str,
    /// Id of the standing cluster that the job runs on.
    pub cluster: Option<String>,
    /// Of a cluster that stands: what its jobs leave.
    pub usage: Option<ClusterUsage>,
    /// Of the newest attempt; the least that the job starts with while it has none.
    pub nnodes: u32,
    /// The least that the job starts with.
    pub nnodes_min: u32,
    /// The most that it may have; more than the least for an elastic job.
    pub nnodes_max: u32,
    pub gpus_per_node: u32,
    /// The pools that it names, of which any will do; empty for every pool.
    pub pools: Vec<String>,
    /// 0 to 100; the higher goes first. The spec has what was submitted.
    pub priority: u8,
    /// What its gang does on a node that loses contact: `fence`, `keep`, `stop_after` and a time, or
    /// `keep` and why it cannot be `fence`. Null for a job on a standing cluster.
    pub on_disconnect: Option<String>,
    /// Who holds it back.
    pub held: Option<HeldView>,
    /// Ids of the jobs that have yet to succeed before it starts.
    pub waits_for: Vec<String>,
    /// It does not start before.
    pub not_before: Option<String>,
    /// Longest time in the queue in which it could have started, in seconds.
    pub max_wait_s: Option<u64>,
    /// Longest time in the state RUNNING in seconds; the spec has what was submitted.
    pub timeout_s: Option<u64>,
    pub submitted: String,
    pub started: Option<String>,
    pub ended: Option<String>,
    /// Attempts so far.
    pub attempts: u32,
    /// Of an ended `command` job: 0, or the first rank's that failed.
    pub exit_code: Option<i32>,
    /// Output directory below the shared root.
    pub directory: Option<String>,
    pub checkpoint_directory: Option<String>,
    /// The newest training checkpoint of the attempt that is live, as far as is known.
    pub last_checkpoint: Option<CheckpointView>,
    /// What there is in the checkpoint directory, as the agent of rank 0 said last.
    pub saved: Option<SavedView>,
    /// How far the training is, as its log says; null when it says no steps, or nobody has read it
    /// since the coordinator started.
    pub progress: Option<ProgressView>,
    /// Since when a running training goes on no more.
    pub stalled: Option<String>,
    /// What was said of that last: how it is quiet, and who of its processes is not where the others
    /// are.
    pub stalled_how: Option<String>,
    /// Ranks that have been slower than the others for long.
    pub stragglers: Vec<StragglerView>,
    /// HELD: until when its gang is kept up for a person (`hold_on_failure`).
    pub kept_up_until: Option<String>,
    /// Names of the nodes of the newest attempt.
    pub nodes: Vec<String>,
    /// Name of the node on which Ray placed its driver.
    pub driver_node: Option<String>,
    /// Only in the answer about one job.
    #[serde(flatten)]
    #[schema(value_type = JobDetail)]
    pub detail: Option<JobDetail>,
}

/// A rank that is slower than the others.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StragglerView {
    pub rank: u32,
    /// Name of its node.
    pub node: String,
    /// RFC 3339.
    pub since: String,
    /// By what it is seen, in one sentence.
    pub text: String,
}

impl StragglerView {
    fn of(slow: &SlowRank) -> Self {
        StragglerView {
            rank: slow.rank,
            node: slow.node.clone(),
            since: time(slow.since),
            text: slow.said.clone(),
        }
    }
}

/// A job that does not start until somebody releases it.
#[derive(Debug, Serialize, ToSchema)]
pub struct HeldView {
    pub by: String,
    /// May be empty.
    pub why: String,
    pub since: String,
}

/// A training checkpoint.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckpointView {
    /// The name of its entry in the checkpoint directory.
    pub name: String,
    pub made: String,
    pub age_s: u64,
}

impl CheckpointView {
    fn of(checkpoint: &TrainingCheckpoint) -> Self {
        let age_s = Timestamp::now().ms_since(checkpoint.made) / 1000;
        CheckpointView { name: checkpoint.name.clone(), made: time(checkpoint.made), age_s }
    }
}

/// The training checkpoints of a directory that are complete, and the room for more.
#[derive(Debug, Serialize, ToSchema)]
pub struct SavedView {
    /// The newest one, of whichever attempt.
    pub newest: Option<SavedCheckpointView>,
    pub count: u32,
    /// What all of them take.
    pub bytes: u64,
    /// Of the file system, as was seen last.
    pub free_bytes: u64,
    /// What the next one may take; 0 when nobody knows.
    pub next_bytes: u64,
    /// There is not room for many more.
    pub is_low: bool,
    /// Older ones that were removed to make room, since the agent began to look.
    pub removed: u32,
    /// The newest one of which there is an encrypted copy, as far as is known.
    pub copied: Option<String>,
    /// Why the last one was not copied.
    pub copy_problem: Option<String>,
}

/// A training checkpoint that is complete.
#[derive(Debug, Serialize, ToSchema)]
pub struct SavedCheckpointView {
    /// The name of its entry in the checkpoint directory.
    pub name: String,
    /// The number in its name, where that is the number of a step.
    pub step: Option<u64>,
    pub bytes: u64,
    /// Since it was changed last.
    pub age_s: u64,
}

impl SavedView {
    fn of(saved: &Saved) -> Self {
        let since_ms = Timestamp::now().ms_since(saved.at);
        let newest = saved.word.newest.as_ref().map(|newest| SavedCheckpointView {
            name: newest.name.clone(),
            step: newest.step,
            bytes: newest.bytes,
            age_s: newest.age_ms.saturating_add(since_ms) / 1000,
        });
        let room = &saved.word.room;
        SavedView {
            newest,
            count: saved.word.count,
            bytes: saved.word.bytes,
            free_bytes: room.free_bytes,
            next_bytes: room.next_bytes,
            is_low: room.is_low,
            removed: room.removed,
            copied: saved.word.copy.as_ref().and_then(|copy| copy.newest.clone()),
            copy_problem: saved.word.copy.as_ref().and_then(|copy| copy.problem.clone()),
        }
    }
}

/// How far a training is.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProgressView {
    pub step: u64,
    /// Where the log says it.
    pub total: Option<u64>,
    /// Median of the newest steps of the attempt.
    #[schema(value_type = Option<f64>)]
    pub step_time_s: Option<Number>,
    pub steps_per_s: Option<f64>,
    /// Seconds since the newest step; null when it came before the coordinator started.
    pub last_step_age_s: Option<u64>,
    /// Seconds that the rest takes at this pace.
    pub eta_s: Option<u64>,
}

impl ProgressView {
    pub(super) fn of(progress: &Progress) -> Self {
        let now = Timestamp::now();
        let per_s = progress.step_ms.filter(|ms| *ms > 0.0).map(|ms| 1000.0 / ms);
        ProgressView {
            step: progress.step,
            total: progress.total,
            step_time_s: progress.step_ms.map(|ms| Number(ms / 1000.0)),
            steps_per_s: per_s,
            last_step_age_s: progress.last_step.map(|at| now.ms_since(at) / 1000),
            // The cast saturates.
            eta_s: progress.left_ms().map(|ms| (ms / 1000.0) as u64),
        }
    }
}

/// What the jobs on a standing cluster use of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClusterUsage {
    pub gpus: u32,
    pub gpus_free: u32,
    /// Ids of the jobs that run on it.
    pub jobs: Vec<String>,
    /// Jobs that wait for a part of it.
    pub waiting: u32,
}

/// What a job's own page adds.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobDetail {
    /// The submitted spec, with its defaults. To all but the submitter and administrators the
    /// values of `env` are `***`.
    #[schema(value_type = Object, required = false)]
    pub spec: serde_json::Value,
    /// `***` where it holds a value that the caller must not see.
    #[schema(required = false)]
    pub submit_command: String,
    #[schema(required = false)]
    pub attempt_list: Vec<AttemptView>,
    /// Members of the newest attempt.
    #[schema(required = false)]
    pub members: Vec<MemberView>,
    /// The newest changes of state, oldest first.
    #[schema(required = false)]
    pub history: Vec<TransitionView>,
}

/// One try at running a job.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttemptView {
    pub number: u32,
    pub epoch: String,
    pub started: String,
    pub ended: Option<String>,
    /// SUCCEEDED, FAILED, TIMEOUT, CANCELLED, PREEMPTED or ROLLED_BACK.
    pub outcome: Option<&'static str>,
    pub cause: Option<String>,
    pub ray_version: Option<String>,
    pub ray_session: Option<String>,
    pub driver: Option<RayDriverView>,
    pub ray_nodes: Vec<RayNodeView>,
}

/// Where Ray placed its driver.
#[derive(Debug, Serialize, ToSchema)]
pub struct RayDriverView {
    pub node: Option<String>,
    /// `head` or the rank.
    pub member: Option<String>,
    pub ray_node_id: String,
    pub address: Option<String>,
}

/// A node of the attempt's Ray cluster, in Ray's words.
#[derive(Debug, Serialize, ToSchema)]
pub struct RayNodeView {
    pub member: String,
    pub node: Option<String>,
    pub ray_node_id: String,
    pub address: String,
    pub alive: bool,
    pub state_message: String,
}

/// One member: its share of the allocation, and what its processes do.
#[derive(Debug, Serialize, ToSchema)]
pub struct MemberView {
    /// `head` or the rank.
    pub member: String,
    pub node: String,
    pub gpus: Vec<String>,
    pub cpus: f64,
    pub memory_bytes: u64,
    pub ports: PortsView,
    /// assigned, starting, running, stopping or ended.
    pub phase: &'static str,
    pub pid: Option<u32>,
    pub end: Option<EndView>,
}

/// A half-open range of TCP ports.
#[derive(Debug, Serialize, ToSchema)]
pub struct PortsView {
    pub base: u16,
    pub size: u16,
}

/// How a member ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct EndView {
    /// "exited with code 1".
    pub text: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// A stop came first.
    pub asked: bool,
    pub last_output: String,
    pub logs_complete: bool,
}

/// One remembered change of state.
#[derive(Debug, Serialize, ToSchema)]
pub struct TransitionView {
    pub time: String,
    pub state: String,
    pub actor: String,
    pub text: String,
}

fn history(transitions: &[Transition]) -> Vec<TransitionView> {
    let view = |t: &Transition| TransitionView {
        time: wall_text(t.wall_ms),
        state: t.state.clone(),
        actor: t.actor.clone(),
        text: t.text.clone(),
    };
    transitions.iter().map(view).collect()
}

/// By the wall clock, as it was when the hold began.
fn kept_up_until(job: &Job) -> Option<u64> {
    let held = job.running.filter(|_| job.state == JobState::Held)?;
    let left_ms = job.request.hold_on_failure_ms?.saturating_sub(held.before_ms);
    Some(held.since.wall_ms.saturating_add(left_ms))
}

impl JobView {
    /// The row of a list.
    pub(super) fn of(snapshot: &JobSnapshot, names: &Names) -> Self {
        let job = &snapshot.job;
        let request = &job.request;
        let gang = newest_gang(snapshot);
        let mut nodes: Vec<String> =
            newest_members(snapshot).iter().map(|(_, member)| names.name(&member.node)).collect();
        nodes.sort();
        nodes.dedup();
        JobView {
            id: job.id.to_string(),
            name: request.name.clone(),
            user: job.user.clone(),
            project: job.project.clone(),
            state: job.state.word(),
            reason: job.reason.clone(),
            launcher: match request.launcher {
                Launcher::Ray => "ray",
                Launcher::Command => "command",
            },
            kind: if job.is_cluster() { "cluster" } else { "job" },
            cluster: job.cluster.as_ref().map(ToString::to_string),
            usage: None,
            nnodes: size(snapshot).unwrap_or(request.nnodes),
            nnodes_min: request.nnodes,
            nnodes_max: request.nnodes_max,
            gpus_per_node: request.gpus_per_node,
            pools: request.pools.clone(),
            priority: request.priority,
            on_disconnect: job.cluster.is_none().then(|| on_disconnect(request.on_disconnect)),
            held: job.hold.as_ref().map(|hold| HeldView {
                by: hold.by.clone(),
                why: hold.why.clone(),
                since: time(hold.since),
            }),
            waits_for: job.waits_for.iter().map(ToString::to_string).collect(),
            not_before: request.not_before_ms.map(wall_text),
            max_wait_s: request.max_wait_ms.map(|ms| ms / 1000),
            timeout_s: request.timeout_ms.map(|ms| ms / 1000),
            submitted: time(job.submitted),
            started: job.started.map(time),
            ended: job.ended.map(time),
            attempts: job.attempts,
            exit_code: exit_code(job, gang),
            directory: request.job_directory.clone(),
            checkpoint_directory: request.checkpoint_directory.clone(),
            last_checkpoint: snapshot.checkpoint.as_ref().map(CheckpointView::of),
            saved: snapshot.saved.as_ref().map(SavedView::of),
            progress: None,
            kept_up_until: kept_up_until(job).map(wall_text),
            stalled: None,
            stalled_how: None,
            stragglers: Vec::new(),
            nodes,
            driver_node: driver_node(snapshot, names),
            detail: None,
        }
    }

    /// The job's own page, as `reader` may see it.
    pub(super) fn detailed(
        snapshot: &JobSnapshot,
        names: &Names,
        reader: &Principal,
    ) -> Result<Self, serde_json::Error> {
        let job = &snapshot.job;
        let gang = snapshot.gang.as_deref();
        let mut spec = serde_json::from_str(&job.request.spec_json)?;
        let mut submit_command = job.request.submit_command.clone();
        if !sees_values(reader, job) {
            hide_values(&mut spec, &mut submit_command);
        }
        let detail = JobDetail {
            spec,
            submit_command,
            attempt_list: snapshot
                .attempts
                .iter()
                .map(|attempt| AttemptView::of(attempt, gang, names))
                .collect(),
            members: newest_members(snapshot)
                .into_iter()
                .map(|(id, member)| MemberView::of(id, member, names))
                .collect(),
            history: history(&job.history),
        };
        Ok(JobView { detail: Some(detail), ..JobView::of(snapshot, names) })
    }
}

/// Takes the values of variables out of what is shown (A46). The command may set some as well
/// (`--env NAME=VALUE`), in more spellings than can be told apart: then all of it goes.
fn hide_values(spec: &mut serde_json::Value, submit_command: &mut String) {
    let variables = spec.get_mut("env").and_then(serde_json::Value::as_object_mut);
    for (name, value) in variables.into_iter().flatten() {
        if submit_command.contains(&format!("{name}=")) {
            *submit_command = HIDDEN.to_owned();
        }
        *value = HIDDEN.into();
    }
}

/// The gang of the newest attempt; none while the job waits, even after a rollback. A guest has that
/// of its cluster for as long as it runs there.
pub(super) fn newest_gang(snapshot: &JobSnapshot) -> Option<&Gang> {
    if let Some((gang, guest)) = guest_of(snapshot) {
        return Some(gang).filter(|_| guest.is_live());
    }
    let waits = snapshot.job.state == JobState::Pending;
    snapshot.gang.as_deref().filter(|gang| !waits && gang.attempt == snapshot.job.attempts)
}

/// Ranks of the newest attempt.
fn size(snapshot: &JobSnapshot) -> Option<u32> {
    if let Some((_, guest)) = guest_of(snapshot) {
        return u32::try_from(guest.shares.len()).ok();
    }
    newest_gang(snapshot).map(Gang::ranks)
}

/// The members of the newest attempt: those of its gang, or of a guest the cluster's ranks of which
/// it has a part.
fn newest_members(snapshot: &JobSnapshot) -> Vec<(MemberId, &Member)> {
    let Some((gang, guest)) = guest_of(snapshot) else {
        let members = newest_gang(snapshot).map(|gang| &gang.members);
        return members.into_iter().flatten().map(|(id, member)| (*id, member)).collect();
    };
    let ranks = guest.shares.iter().map(|share| MemberId::Rank(share.rank));
    ranks.filter_map(|rank| Some((rank, gang.members.get(&rank)?))).collect()
}

/// The newest attempt's part of a standing cluster, and the gang of that.
fn guest_of(snapshot: &JobSnapshot) -> Option<(&Gang, &Guest)> {
    let attempt = snapshot.attempts.last()?;
    let gang = snapshot.gang.as_deref().filter(|gang| gang.epoch == attempt.epoch)?;
    Some((gang, attempt.guest.as_ref()?))
}

impl JobView {
    /// Adds how far the training is.
    pub(super) fn with_progress(self, shown: &Shown, job: &Job) -> Self {
        let progress = shown.progress.as_ref().map(ProgressView::of);
        let stalled = shown.stalled(job);
        JobView {
            progress,
            stalled: stalled.map(|stalled| time(stalled.since)),
            stalled_how: stalled.map(|stalled| stalled.said.to_string()),
            stragglers: shown.slow(job).iter().map(StragglerView::of).collect(),
            ..self
        }
    }

    /// Adds what the jobs on it use, when this is a cluster that stands.
    pub(super) fn with_usage(mut self, board: &Board, snapshot: &JobSnapshot) -> Self {
        let job = &snapshot.job;
        let Some(gang) = newest_gang(snapshot).filter(|_| job.is_cluster()) else { return self };
        if job.state != JobState::Running {
            return self;
        }
        let gpus = gang.members.values().map(|member| member.gpus.len()).sum::<usize>();
        let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
        let (mut jobs, mut waiting, mut taken) = (Vec::new(), 0, 0u32);
        for guest in board.live_guests(&job.id) {
            let part = guest.attempts.last().and_then(|attempt| attempt.guest.as_ref());
            match part.filter(|part| part.is_live()) {
                Some(part) => {
                    jobs.push(guest.job.id.to_string());
                    taken = part.shares.iter().fold(taken, |sum, s| sum.saturating_add(s.gpus));
                }
                None => waiting += 1,
            }
        }
        let gpus_free = gpus.saturating_sub(taken);
        self.usage = Some(ClusterUsage { gpus, gpus_free, jobs, waiting });
        self
    }
}

/// Only what is known: the exit of a Ray driver is told in words.
pub(super) fn exit_code(job: &Job, gang: Option<&Gang>) -> Option<i32> {
    if !job.state.is_terminal() || job.request.launcher != Launcher::Command {
        return None;
    }
    if job.state == JobState::Succeeded {
        return Some(0);
    }
    gang?.members.values().find_map(|member| match &member.phase {
        Phase::Ended(End { how: EndHow::Exited { code }, asked: false, .. }) if *code != 0 => {
            Some(*code)
        }
        _ => None,
    })
}

fn driver_node(snapshot: &JobSnapshot, names: &Names) -> Option<String> {
    let attempt = snapshot.attempts.last()?;
    if let Some((gang, guest)) = guest_of(snapshot) {
        return gang.members.get(&guest.driver()).map(|member| names.name(&member.node));
    }
    let ray = attempt.ray.as_ref()?;
    let member = driver_member(ray.driver.as_ref()?, ray)?;
    node_of(member, attempt, snapshot.gang.as_deref(), names)
}

/// The member on which Ray's driver runs: told by the agent, or found by Ray's node id.
fn driver_member(driver: &RayDriver, ray: &RayFacts) -> Option<MemberId> {
    driver.member.or_else(|| {
        let node = ray.nodes.iter().find(|node| node.ray_node_id == driver.ray_node_id);
        node.map(|node| node.member)
    })
}

/// The node of an attempt's member; `None` for an attempt whose gang record was overwritten.
fn node_of(
    member: MemberId,
    attempt: &Attempt,
    gang: Option<&Gang>,
    names: &Names,
) -> Option<String> {
    let gang = gang.filter(|gang| gang.epoch == attempt.epoch)?;
    gang.members.get(&member).map(|member| names.name(&member.node))
}

/// The word of an outcome.
pub(super) fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "SUCCEEDED",
        Outcome::Failed { .. } | Outcome::Retried { .. } | Outcome::Evacuated { .. } => "FAILED",
        Outcome::Cancelled { .. } => "CANCELLED",
        Outcome::Preempted { .. } => "PREEMPTED",
        Outcome::TimedOut { .. } => "TIMEOUT",
        Outcome::RolledBack { .. } => "ROLLED_BACK",
    }
}

impl AttemptView {
    fn of(attempt: &Attempt, gang: Option<&Gang>, names: &Names) -> Self {
        let ray = attempt.ray.as_ref();
        let node = |member| node_of(member, attempt, gang, names);
        let driver = ray.and_then(|ray| {
            let driver = ray.driver.as_ref()?;
            let member = driver_member(driver, ray);
            Some(RayDriverView {
                node: member.and_then(node),
                member: member.map(|member| member.to_string()),
                ray_node_id: driver.ray_node_id.clone(),
                address: driver.address.clone(),
            })
        });
        let ray_nodes = ray.map(|ray| ray.nodes.as_slice()).unwrap_or_default();
        AttemptView {
            number: attempt.number,
            epoch: attempt.epoch.to_string(),
            started: time(attempt.started),
            ended: attempt.ended.map(time),
            outcome: attempt.outcome.as_ref().map(outcome_word),
            cause: attempt.outcome.as_ref().map(Outcome::sentence),
            ray_version: ray.map(|ray| ray.version.clone()),
            ray_session: ray.map(|ray| ray.session.clone()),
            driver,
            ray_nodes: ray_nodes
                .iter()
                .map(|n| RayNodeView {
                    member: n.member.to_string(),
                    node: node(n.member),
                    ray_node_id: n.ray_node_id.clone(),
                    address: n.address.clone(),
                    alive: n.alive,
                    state_message: n.state_message.clone(),
                })
                .collect(),
        }
    }
}

impl MemberView {
    fn of(id: MemberId, member: &Member, names: &Names) -> Self {
        let (phase, pid, end) = match &member.phase {
            Phase::Assigned => ("assigned", None, None),
            Phase::Starting => ("starting", None, None),
            Phase::Running { pid } => ("running", Some(*pid), None),
            Phase::Stopping => ("stopping", None, None),
            Phase::Ended(end) => ("ended", None, Some(EndView::of(end))),
        };
        MemberView {
            member: id.to_string(),
            node: names.name(&member.node),
            gpus: member.gpus.iter().map(ToString::to_string).collect(),
            cpus: f64::from(member.cpus_milli) / 1000.0,
            memory_bytes: member.memory_bytes,
            ports: PortsView { base: member.ports.base, size: member.ports.size },
            phase,
            pid,
            end,
        }
    }
}

impl EndView {
    fn of(end: &End) -> Self {
        let (exit_code, signal) = match end.how {
            EndHow::Exited { code } => (Some(code), None),
            EndHow::Signalled { signal } => (None, Some(signal)),
            EndHow::Failed { .. }
            | EndHow::Refused { .. }
            | EndHow::Unfit { .. }
            | EndHow::GivenUp { .. } => (None, None),
        };
        EndView {
            text: end.sentence(),
            exit_code,
            signal,
            asked: end.asked,
            last_output: end.last_output.clone(),
            logs_complete: end.logs_complete,
        }
    }
}
