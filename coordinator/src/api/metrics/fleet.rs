//! The coordinator's own page: jobs, queue, nodes, agents, store.
//!
//! Labels are names of nodes, pools, projects, webhooks and states. What users wrote is a label of `gangline_job_info`
//! alone, and a job has no series any more ten minutes after its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::exposition::{Kind, Page};
use gangline_common::time::Timestamp;

use crate::api::ApiState;
use crate::board::{GpuCount, JobSnapshot, NodeSnapshot};
use crate::core::accounts::Spent;
use crate::core::job::{Job, JobState};
use crate::core::node::Reachability;
use crate::core::webhooks::{Delivery, WebhookRecord};
use crate::meters::{Shares, pool_of};

type WebhookValue = fn(&ApiState, &WebhookRecord, Option<&Delivery>) -> u64;

/// How long a job has series after its end.
const AFTER_END_MS: u64 = 600_000;

/// The agents' rule about GPUs that are not those that the node registered.
const GPU_SET: &str = "gpu-set";

/// Every word that a node's state can be here.
const NODE_STATES: [&str; 11] = [
    "pending", "ready", "mixed", "busy", "unfit", "cordoned", "draining", "drained", "suspect",
    "lost", "offline",
];

/// What the driver knows of GPU time.
pub(super) struct GpuTime {
    pub so_far: Shares,
    pub open: Vec<Spent>,
}

/// All families as they are now; those of GPU time where that is known.
pub(super) fn page(api: &ApiState, gpu_time: Option<&GpuTime>) -> Page {
    let now = Timestamp::now();
    let mut page = Page::default();
    let mut info = page.family(
        "gangline_build_info",
        "Version of the coordinator; the value is always 1.",
        Kind::Gauge,
    );
    info.add(&[("version", api.version)], 1.0);
    let nodes = api.board.nodes();
    let nodes: Vec<_> = nodes.iter().filter(|snapshot| !snapshot.node.revoked).collect();
    add_nodes(&mut page, &nodes);
    add_conditions(&mut page, &nodes);
    add_rule_trials(&mut page, api);
    add_agents(&mut page, api, &nodes);
    let jobs = api.board.jobs();
    let declared = api.board.declared_pools();
    let in_use = nodes.iter().filter_map(|snapshot| snapshot.node.pool());
    let pools = declared.keys().map(String::as_str).chain(in_use).collect();
    add_queue(&mut page, api, &jobs, &pools, now);
    add_gangs(&mut page, api);
    add_jobs(&mut page, api, &jobs, now);
    if let Some(gpu_time) = gpu_time {
        add_gpu_time(&mut page, gpu_time);
    }
    page.family(
        "gangline_log_bytes_total",
        "Bytes of logs that were written since the coordinator started.",
        Kind::Counter,
    )
    .add(&[], api.logs.written() as f64);
    add_samples(&mut page, api);
    add_webhooks(&mut page, api);
    page.extend(api.meters.gather());
    page
}

fn add_samples(page: &mut Page, api: &ApiState) {
    let counts = api.telemetry.all_counts();
    for (name, help, count) in [
        (
            "gangline_samples_total",
            "Samples of nodes that came since the coordinator started.",
            counts.received,
        ),
        (
            "gangline_lost_samples_total",
            "Samples of all nodes that agents did not send, or that came too soon to be kept.",
            counts.dropped + counts.hasty,
        ),
        (
            "gangline_untimely_samples_total",
            "Samples of nodes whose time was not now.",
            counts.untimely,
        ),
    ] {
        page.family(name, help, Kind::Counter).add(&[], count as f64);
    }
}

/// Whether others are told. Their names are words, and a project has few of them.
fn add_webhooks(page: &mut Page, api: &ApiState) {
    let webhooks = api.board.webhooks();
    let values: [(&str, &str, Kind, WebhookValue); 3] = [
        (
            "gangline_webhook_failing_attempts",
            "Attempts to tell the webhook that have failed since the last one that arrived.",
            Kind::Gauge,
            |api, record, _| api.troubles.of(record).map_or(0, |trouble| trouble.attempts),
        ),
        (
            "gangline_webhook_delivered_total",
            "Events that the webhook was told of.",
            Kind::Counter,
            |_, _, delivery| delivery.map_or(0, |delivery| delivery.delivered),
        ),
        (
            "gangline_webhook_dead_letters",
            "Events that the webhook could not be told of, of the newest 100.",
            Kind::Gauge,
            |_, _, delivery| delivery.map_or(0, |delivery| delivery.dead.len() as u64),
        ),
    ];
    for (name, help, kind, value) in values {
        let mut family = page.family(name, help, kind);
        for (record, delivery) in &webhooks {
            let project = record.key.project.as_deref().unwrap_or_default();
            let labels = [("project", project), ("webhook", &record.key.name)];
            family.add(&labels, value(api, record, delivery.as_ref()) as f64);
        }
    }
}

fn add_nodes(page: &mut Page, nodes: &[&NodeSnapshot]) {
    let mut up =
        page.family("gangline_node_up", "Whether the node is in contact (0 or 1).", Kind::Gauge);
    for snapshot in nodes {
        let node = &snapshot.node;
        let is_up = node.reachability == Reachability::Reachable;
        up.add(&place(snapshot), f64::from(is_up));
    }
    let mut states = page.family(
        "gangline_node_state",
        "Whether the node is in this state (0 or 1); it is in exactly one.",
        Kind::Gauge,
    );
    for snapshot in nodes {
        let word = snapshot.node.word(snapshot.gpus().in_use, snapshot.holders().count());
        let [name, pool] = place(snapshot);
        for state in NODE_STATES {
            states.add(&[name, pool, ("state", state)], f64::from(state == word));
        }
    }
    let mut gpus = page.family(
        "gangline_node_gpus",
        "GPUs of the node: in use by jobs, free, or unusable because the node takes no jobs or \
         something is wrong with the GPU.",
        Kind::Gauge,
    );
    for snapshot in nodes {
        if snapshot.node.inventory.is_none() {
            continue;
        }
        let GpuCount { in_use, free, unusable } = snapshot.gpus();
        let [name, pool] = place(snapshot);
        for (state, count) in [("in_use", in_use), ("free", free), ("unusable", unusable)] {
            gpus.add(&[name, pool, ("state", state)], count as f64);
        }
    }
}

/// What stands against nodes, by how bad it is: what an operator has ended counts no more. The words
/// of rules and the parts that they are about come from agents, and are no labels.
fn add_conditions(page: &mut Page, nodes: &[&NodeSnapshot]) {
    let mut family = page.family(
        "gangline_node_conditions",
        "Conditions of the node that stand, by level; none where there is none.",
        Kind::Gauge,
    );
    for snapshot in nodes {
        let mut count: BTreeMap<&str, u32> = BTreeMap::new();
        for condition in snapshot.node.standing() {
            *count.entry(condition.level.word()).or_default() += 1;
        }
        let [name, pool] = place(snapshot);
        for (level, count) in count {
            family.add(&[name, pool, ("level", level)], f64::from(count));
        }
    }
    let mut family = page.family(
        "gangline_node_gpus_differ",
        "Whether the GPUs of the node are not those that it registered (0 or 1).",
        Kind::Gauge,
    );
    for snapshot in nodes.iter().filter(|snapshot| snapshot.node.inventory.is_some()) {
        let differs = snapshot.node.standing().any(|condition| condition.rule == GPU_SET);
        family.add(&place(snapshot), f64::from(differs));
    }
}

/// Rules on trial, by name: as many as the core follows, and plain words only.
fn add_rule_trials(page: &mut Page, api: &ApiState) {
    let mut family = page.family(
        "gangline_health_trial_findings",
        "Findings of health rules on trial, by what came of them. Those of the last day can still come \
         to something else.",
        Kind::Gauge,
    );
    for trial in &api.board.rule_trials() {
        let tally = trial.tally();
        let outcomes =
            [("confirmed", tally.confirmed), ("refuted", tally.refuted), ("untold", tally.untold)];
        for (outcome, count) in outcomes {
            family.add(&[("rule", &trial.rule), ("outcome", outcome)], count as f64);
        }
    }
}

fn place(snapshot: &NodeSnapshot) -> [(&'static str, &str); 2] {
    let node = &snapshot.node;
    [("node", &node.name), ("pool", node.pool().unwrap_or_default())]
}

fn add_agents(page: &mut Page, api: &ApiState, nodes: &[&NodeSnapshot]) {
    let (round_trips, reconnects) = (api.agents.round_trips(), api.agents.reconnects());
    let mut family = page.family(
        "gangline_agent_rtt_seconds",
        "How long a packet takes to the agent of the node and back, smoothed.",
        Kind::Gauge,
    );
    for snapshot in nodes {
        let round_trip = round_trips.get(&snapshot.node.id);
        family.add(&place(snapshot), round_trip.map(|round_trip| round_trip.as_secs_f64()));
    }
    let mut family = page.family(
        "gangline_agent_reconnects_total",
        "How often the agent of the node has connected again since the coordinator started.",
        Kind::Counter,
    );
    for snapshot in nodes {
        let count = reconnects.get(&snapshot.node.id);
        family.add(&place(snapshot), count.map(|count| *count as f64));
    }
}

/// Where a job is or wants to be: the pool of its nodes, or the one pool that it asks for. Empty for
/// any; a pool that does not exist is none.
fn pool(api: &ApiState, job: &Job, pools: &BTreeSet<&str>) -> String {
    // What a waiting job had before says nothing of where it goes; an ended one stays where it was.
    let gang = api.board.gang(&job.gang);
    let gang = gang.filter(|gang| gang.is_live() || job.state.is_terminal());
    if let Some(pool) = gang.and_then(|gang| pool_of(&api.board, &gang)) {
        return pool;
    }
    match job.request.pools.as_slice() {
        [only] if pools.contains(only.as_str()) => only.clone(),
        _ => String::new(),
    }
}

fn add_queue(
    page: &mut Page,
    api: &ApiState,
    jobs: &[Arc<Job>],
    pools: &BTreeSet<&str>,
    now: Timestamp,
) {
    let mut count: BTreeMap<(&str, String), u32> = BTreeMap::new();
    let mut oldest: BTreeMap<String, u64> = BTreeMap::new();
    for job in jobs {
        let pool = pool(api, job, pools);
        if let Some(eligible) = job.eligible.filter(|_| job.state == JobState::Pending) {
            let longest = oldest.entry(pool.clone()).or_default();
            *longest = (*longest).max(eligible.ms(now));
        }
        *count.entry((job.state.word(), pool)).or_default() += 1;
    }
    let mut family =
        page.family("gangline_jobs", "Jobs that are known, by state and pool.", Kind::Gauge);
    for ((state, pool), count) in &count {
        family.add(&[("state", state), ("pool", pool)], f64::from(*count));
    }
    let mut family = page.family(
        "gangline_queue_oldest_wait_seconds",
        "How long that waiting job could have started that waits longest, by pool.",
        Kind::Gauge,
    );
    for (pool, waited_ms) in &oldest {
        family.add(&[("pool", pool)], seconds(*waited_ms));
    }
}

fn add_gangs(page: &mut Page, api: &ApiState) {
    let mut count: BTreeMap<(&str, String), u32> = BTreeMap::new();
    for gang in api.board.live_gangs() {
        let pool = pool_of(&api.board, &gang).unwrap_or_default();
        *count.entry((gang.state.word(), pool)).or_default() += 1;
    }
    let mut family = page.family(
        "gangline_gangs",
        "Gangs that hold an allocation, by state and pool.",
        Kind::Gauge,
    );
    for ((state, pool), count) in &count {
        family.add(&[("state", state), ("pool", pool)], f64::from(*count));
    }
}

fn add_gpu_time(page: &mut Page, gpu_time: &GpuTime) {
    let mut family = page.family(
        "gangline_gpu_seconds_total",
        "GPU-seconds since the coordinator started, up to now: allocated to jobs, and of no \
         allocation: quarantined, fragmented, and queued for by jobs.",
        Kind::Counter,
    );
    for ((class, project, pool), ms) in &gpu_time.so_far {
        let labels = [("class", *class), ("pool", pool), ("project", project)];
        family.add(&labels, seconds(*ms));
    }
    let mut open: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for spent in &gpu_time.open {
        for (class, ms) in spent.classes.each() {
            *open.entry((&spent.project, &spent.pool, class)).or_default() += ms;
        }
    }
    let mut family = page.family(
        "gangline_job_open_gpu_seconds",
        "GPU-seconds of allocations that go on, from their beginning, by what became of them as it \
         looks now.",
        Kind::Gauge,
    );
    for ((project, pool, class), ms) in open {
        family.add(&[("class", class), ("pool", pool), ("project", project)], seconds(ms));
    }
}

fn add_jobs(page: &mut Page, api: &ApiState, jobs: &[Arc<Job>], now: Timestamp) {
    let shown = jobs.iter().filter(|job| is_shown(job.ended, now));
    let shown: Vec<JobSnapshot> = shown.filter_map(|job| api.board.job(&job.id)).collect();
    let mut info = page.family(
        "gangline_job_info",
        "Who a job belongs to and what it is called; the value is always 1.",
        Kind::Gauge,
    );
    for JobSnapshot { job, gang, .. } in &shown {
        let pool = gang.as_ref().and_then(|gang| pool_of(&api.board, gang)).unwrap_or_default();
        let labels = [
            ("job_id", job.id.as_str()),
            ("name", &job.request.name),
            ("user", &job.user),
            ("project", &job.project),
            ("pool", &pool),
        ];
        info.add(&labels, 1.0);
    }
    let mut progress = page.family(
        "gangline_job_last_progress_timestamp_seconds",
        "When a running job last wrote a line to its log or a training checkpoint.",
        Kind::Gauge,
    );
    for snapshot in &shown {
        let label = [("hpc_job", snapshot.job.id.as_str())];
        progress.add(&label, last_progress(api, snapshot).map(|at| seconds(at.wall_ms)));
    }
    add_trainings(page, api, &shown);
}

/// Of jobs whose log says steps, and of all that run whether they have stalled.
fn add_trainings(page: &mut Page, api: &ApiState, shown: &[JobSnapshot]) {
    let trainings: Vec<_> = shown
        .iter()
        .map(|snapshot| (&snapshot.job, api.trainings.shown(&snapshot.job.id)))
        .collect();
    let mut steps =
        page.family("gangline_job_step", "The newest step that the job's log says.", Kind::Gauge);
    for (job, training) in &trainings {
        let step = training.progress.map(|progress| progress.step as f64);
        steps.add(&[("hpc_job", job.id.as_str())], step);
    }
    let mut times = page.family(
        "gangline_job_step_seconds",
        "How long a step of the job takes: the median of the newest.",
        Kind::Gauge,
    );
    for (job, training) in &trainings {
        let step_ms = training.progress.and_then(|progress| progress.step_ms);
        times.add(&[("hpc_job", job.id.as_str())], step_ms.map(|ms| ms / 1000.0));
    }
    let mut stalled = page.family(
        "gangline_job_stalled",
        "Whether a running job goes on no more: no step, no line, GPUs that draw a flat line.",
        Kind::Gauge,
    );
    for (job, training) in trainings.iter().filter(|(job, _)| job.state == JobState::Running) {
        stalled.add(&[("hpc_job", job.id.as_str())], f64::from(training.stalled(job).is_some()));
    }
}

/// Whether a job that has ended then, or has not, still has series.
fn is_shown(ended: Option<Timestamp>, now: Timestamp) -> bool {
    ended.is_none_or(|ended| now.ms_since(ended) < AFTER_END_MS)
}

/// When a running job last did something that can be seen from here. A cluster and its guests share
/// one log, which says nothing of any of them.
fn last_progress(api: &ApiState, snapshot: &JobSnapshot) -> Option<Timestamp> {
    let job = &snapshot.job;
    if job.state != JobState::Running || job.is_cluster() || job.cluster.is_some() {
        return None;
    }
    let wrote = api.logs.last_growth(&job.gang);
    let saved = snapshot.checkpoint.as_ref().map(|checkpoint| checkpoint.made);
    // What was before this process began is not known.
    let times = [Some(api.started), job.started, wrote, saved];
    // The time of now comes last: what was written meanwhile does not lie in the future.
    newest(times.into_iter().flatten(), Timestamp::now())
}

/// The newest of these times; those of before a reboot wrap around, and would always be it.
fn newest(times: impl Iterator<Item = Timestamp>, now: Timestamp) -> Option<Timestamp> {
    times.filter(|at| at.boot_ms <= now.boot_ms).max_by_key(|at| at.boot_ms)
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_no_series_ten_minutes_after_its_end() {
        let at = |boot_ms| Timestamp { boot_ms, wall_ms: 0 };
        assert!(is_shown(None, at(u64::MAX)));
        assert!(is_shown(Some(at(1000)), at(1000 + AFTER_END_MS - 1)));
        assert!(!is_shown(Some(at(1000)), at(1000 + AFTER_END_MS)));
    }
    #[test]
    fn what_was_before_a_reboot_is_not_the_newest() {
        let at = |boot_ms, wall_ms| Timestamp { boot_ms, wall_ms };
        let now = at(20_000, 1_000_000);
        let long_ago = at(9_000_000, 400_000).in_this_boot(now);
        let (process, wrote) = (at(5_000, 985_000), at(12_000, 992_000));
        assert_eq!(newest([process, long_ago, wrote].into_iter(), now), Some(wrote));
        assert_eq!(newest([process, long_ago].into_iter(), now), Some(process));
    }
}
