//! What the queue promises: who may start, where, and who may be sent back for whom. Judged from what
//! users asked for and were answered, and from the process tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::ids::{MemberId, MemberKey, NodeId};
use gangline_core::gang::Gang;
use gangline_core::job::{Attempt, Job, JobState, Outcome};
use gangline_core::node::Node;

use crate::process::Process;
use crate::world::World;

/// A job makes room at most so often in this time: whoever it made room for goes first, and there are
/// not that many.
const ROOM_LIMIT: u32 = 8;
const ROOM_WINDOW_MS: u64 = 10_000;

impl World<'_> {
    /// A job leaves the queue: nobody holds it, its time has come, what it was to run after has
    /// succeeded.
    pub fn check_begins(&mut self, job: &Job) {
        if self.checks.on_hold.contains(&job.id) || job.hold.is_some() {
            self.fail(|| format!("{} is held and starts", job.id));
        }
        let wall_ms = self.clock.at(self.now_ms).wall_ms;
        if let Some(not_before_ms) = job.request.not_before_ms {
            self.tally.note("job started at its time");
            if wall_ms < not_before_ms {
                self.fail(|| format!("{} starts before its time", job.id));
            }
        }
        let after = self.users.jobs.get(&job.id).map(|known| known.after.clone());
        for other in after.unwrap_or_default() {
            self.tally.note("job started after another");
            if !self.checks.succeeded.contains(&other) {
                self.fail(|| format!("{} starts, and {other} has not succeeded", job.id));
            }
        }
    }

    /// A job that never ran has failed.
    pub fn check_failed_in_queue(&mut self, job: &Job) {
        if job.reason.contains("which it was to run after") {
            self.tally.note("job failed with what it was to run after");
        }
        if !job.reason.starts_with("queue timeout") {
            return;
        }
        self.tally.note("job failed in the queue");
        let submitted = self.checks.submitted_ms.get(&job.id);
        let waited_ms = submitted.map(|submitted| self.now_ms - submitted);
        // Over a start of the machine only the wall clock tells how long it waited.
        if let (Some(waited_ms), Some(limit_ms), false) =
            (waited_ms, job.request.max_wait_ms, self.weather.has_rebooted)
            && waited_ms < limit_ms
        {
            self.fail(|| format!("I15: {} waited for {waited_ms} of {limit_ms} ms", job.id));
        }
    }

    /// A new incarnation: as many nodes as it asked for, each as it asked for.
    pub fn check_placement(&mut self, gang: &Gang) {
        let Some(coordinator) = &self.coordinator else { return };
        let Some(job) = coordinator.core.jobs().find(|job| job.id == gang.job).cloned() else {
            return self.fail(|| format!("{} has no job", gang.id));
        };
        let request = &job.request;
        let ranks: Vec<_> =
            gang.members.iter().filter(|(member, _)| **member != MemberId::Head).collect();
        let nodes: BTreeSet<&NodeId> = ranks.iter().map(|(_, share)| &share.node).collect();
        let count = nodes.len() as u32;
        let complete = nodes.len() == ranks.len()
            && (request.nnodes..=request.nnodes_max).contains(&count)
            && ranks.iter().all(|(_, share)| share.gpus.len() as u32 == request.gpus_per_node);
        if !complete {
            self.fail(|| format!("I2: {} is placed on {ranks:?}", gang.id));
        }
        if count > request.nnodes {
            self.tally.note("gang started above its least");
        }
        for node in nodes {
            let Some(known) = self.checks.nodes.get(node).cloned() else { continue };
            let labels = known.labels();
            let unlike = request
                .node_labels
                .iter()
                .find(|(key, value)| labels.get(key.as_str()).copied() != Some(value.as_str()));
            if let Some((key, value)) = unlike {
                self.fail(|| format!("{} is placed on {node} without {key}={value}", gang.id));
            }
            if request.exclude_nodes.contains(&known.name) {
                self.fail(|| format!("{} is placed on {node}, which it leaves out", gang.id));
            }
        }
        let pools = pools_of(ranks.iter().map(|(_, share)| &share.node), &self.checks.nodes);
        if pools.len() != 1 || !pools.iter().all(|pool| request.may_use(pool)) {
            self.fail(|| format!("{} is placed in the pools {pools:?}", gang.id));
        }
        if !request.pools.is_empty() {
            self.tally.note("gang placed in a pool that it asked for");
        }
        if !request.node_labels.is_empty() {
            self.tally.note("gang placed by its labels");
        }
        if !request.exclude_nodes.is_empty() {
            self.tally.note("gang placed without a node that it leaves out");
        }
    }

    /// A gang that has nodes to itself has them to itself, as the machine sees it. Heads do not
    /// count.
    pub fn check_company(&mut self, node: usize, key: &MemberKey, process: &Process) {
        if process.is_head {
            return;
        }
        if process.has_whole_node {
            self.tally.note("process started on a node of its own");
        }
        let others = self.nodes[node].processes.iter().filter(|(other, beside)| {
            other.gang != key.gang && beside.is_alive() && !beside.is_head
        });
        let bad = others
            .filter(|(_, beside)| beside.has_whole_node || process.has_whole_node)
            .find(|(other, _)| !self.checks.diverged.contains(&other.gang));
        if let Some(other) = bad.map(|(other, _)| other.clone()) {
            self.fail(|| format!("{key} starts beside {other}, and one has the whole node"));
        }
    }

    /// An attempt was ended to make room for another job: of one that may be sent back, not within
    /// its minimum, and not for one that was itself sent back.
    pub fn check_made_room(&mut self, attempt: &Attempt) {
        let Some(Outcome::Preempted { cause, .. }) = &attempt.outcome else { return };
        let claimant =
            cause.strip_prefix("job ").and_then(|rest| rest.split_once(" has priority "));
        let owner = cause.strip_prefix("project ").and_then(|rest| rest.split_once(" takes back "));
        let Some(coordinator) = &self.coordinator else { return };
        let Some(job) = coordinator.core.jobs().find(|job| job.id == attempt.job).cloned() else {
            return;
        };
        let request = &job.request;
        let mut wrong = None;
        if let Some((claimant, rest)) = claimant {
            self.tally.note("job made room for a higher priority");
            let priority = rest.split(';').next().and_then(|number| number.parse::<u8>().ok());
            let newest = coordinator.core.attempts().filter(|a| a.job.as_str() == claimant).last();
            if !request.preemptible || priority.is_none_or(|higher| request.priority >= higher) {
                wrong = Some("it need not make room".to_owned());
            } else if matches!(newest.map(|a| &a.outcome), Some(Some(Outcome::Preempted { .. }))) {
                wrong = Some(format!("{claimant} was sent back itself"));
            }
        } else if let Some((owner, _)) = owner {
            self.tally.note("job gave back what was lent");
            if owner == job.project {
                wrong = Some("it is of that project".to_owned());
            }
        } else {
            return;
        }
        wrong = wrong.or_else(|| self.wrong_loss(attempt, cause));
        let now_ms = self.now_ms;
        let (since_ms, times) = self.checks.made_room.entry(job.id.clone()).or_insert((now_ms, 0));
        if now_ms - *since_ms > ROOM_WINDOW_MS {
            (*since_ms, *times) = (now_ms, 0);
        }
        *times += 1;
        if *times > ROOM_LIMIT {
            let times = *times;
            self.fail(|| format!("{} made room {times} times, last because {cause}", job.id));
        }
        let running = self.checks.jobs.get(&job.id) == Some(&JobState::Running);
        if let Some(least_ms) = request.min_runtime_ms {
            self.tally.note("job with a minimum made room");
            let since = self.checks.running_ms.get(&job.id).filter(|_| running);
            let ran_ms = since.map(|since| self.now_ms - since);
            // Over a start of the machine only the wall clock tells how long it ran.
            let too_soon = ran_ms.is_some_and(|ran_ms| ran_ms < least_ms);
            if !running || too_soon && !self.weather.has_rebooted {
                wrong = Some(format!("it has run for {ran_ms:?} of {least_ms} ms"));
            }
        }
        if let Some(wrong) = wrong {
            self.fail(|| format!("preemption: {} ends because {cause}, but {wrong}", job.id));
        }
    }

    /// The loss is counted from a training checkpoint that this attempt has made, and is not more than
    /// the time since then.
    fn wrong_loss(&mut self, attempt: &Attempt, cause: &str) -> Option<String> {
        let (loss, name) = cause.rsplit_once(" since ")?;
        let number: u64 = name.strip_prefix("global_step_")?.parse().ok()?;
        self.tally.note("job that had saved its work made room");
        let (gang, epoch) = (attempt.gang.clone(), attempt.epoch);
        let key = MemberKey { gang, epoch, member: MemberId::Rank(0) };
        let process = self.nodes.iter().find_map(|sim| sim.processes.get(&key))?;
        let (since_ms, every_ms) = (process.since_ms?, process.saves_every_ms?);
        let made_ms = since_ms + number * every_ms;
        if number == 0 || made_ms > self.now_ms {
            return Some(format!("{name} was not made"));
        }
        let seconds = loss.rsplit_once("loses ")?.1.strip_suffix(" s of work")?;
        let lost_ms = seconds.parse::<u64>().ok()? * 1_000;
        (lost_ms > self.now_ms - made_ms).then(|| format!("{name} was made later"))
    }
}

/// The pools of some nodes. A head may be in another one.
fn pools_of<'a>(
    nodes: impl Iterator<Item = &'a NodeId>,
    known: &BTreeMap<NodeId, Arc<Node>>,
) -> BTreeSet<String> {
    let known = nodes.filter_map(|node| known.get(node));
    known.map(|node| node.pool().unwrap_or_default().to_owned()).collect()
}
