//! The coordinator's decisions: pure, synchronous, total.
//!
//! `Core::step` is the only way in and `Effects` the only way out. No I/O, no clock, no chance:
//! time and ids are arguments. The order of decisions in `step` is the whole story: what happened,
//! what has expired, what can start, what each node must be told.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

pub mod accounts;
pub mod audit;
pub mod capacity;
pub mod checkpoints;
mod constraints;
pub mod controls;
pub mod credential;
pub mod effect;
pub mod eligibility;
pub mod event;
pub mod evidence;
pub mod explain;
pub mod fencing;
pub mod forecast;
pub mod gang;
mod gangs;
pub mod guests;
pub mod health;
mod held;
mod holdings;
pub mod idle;
pub mod invariants;
pub mod job;
mod jobs;
pub mod maintenance;
mod misfits;
pub mod node;
pub mod node_test;
mod nodes;
pub mod notices;
pub mod order;
pub mod overtaking;
pub mod placement;
pub mod planted;
pub mod policy;
pub mod pools;
mod preemption;
pub mod projects;
mod queue;
pub mod recovery;
pub mod refusals;
pub mod reputation;
mod schedule;
pub mod secrets;
pub mod stall;
mod tokens;
pub mod topology;
pub mod trials;
mod unknown;
pub mod usage;
pub mod vacancy;
pub mod versions;
pub mod webhooks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, JobId, NodeId, PortBlock};
use gangline_common::time::Timestamp;

use accounts::Account;
use capacity::Capacity;
use checkpoints::{Saved, TrainingCheckpoint};
use credential::{ApiTokenRecord, IdempotencyRecord, JoinTokenRecord};
use effect::{Answer, Desired, Effects, Push, Rejected, Write};
use event::{Event, RequestId};
use forecast::History;
use gang::{Gang, GangState, Phase};
use holdings::Holdings;
use idle::Meter;
use job::{Attempt, Job, Outcome};
use misfits::Misfits;
use node::{NetworkKey, Node};
use node_test::NodeTest;
use planted::{Planted, is_planted};
use policy::Policy;
use pools::PoolRecord;
use projects::ProjectRecord;
use queue::Queue;
use secrets::SecretRecord;
use trials::RuleTrial;
use usage::Usage;
use vacancy::Vacancies;
use webhooks::{Delivery, WebhookKey, WebhookRecord};

/// Jobs that are not yet terminal; one more is refused.
pub const LIVE_JOB_LIMIT: usize = 20_000;
/// A port block that was found busy is not leased again for this long.
pub const QUARANTINE_MS: u64 = 600_000;
/// How often leases and deadlines are looked at.
pub const CHECK_EVERY_MS: u64 = 250;
/// The queue is looked at after every event that matters to it, and at least this often.
const PASS_EVERY_MS: u64 = 5_000;
/// A desired state that an agent does not hold is pushed again after this long.
const PUSH_AGAIN_MS: u64 = 2_000;

/// All decision state. Everything but the lines under "not stored" comes back from the store.
#[derive(Debug, Default)]
pub struct Core {
    pub(crate) era: u32,
    pub(crate) jobs: BTreeMap<JobId, Arc<Job>>,
    pub(crate) attempts: BTreeMap<(JobId, u32), Arc<Attempt>>,
    pub(crate) gangs: BTreeMap<GangId, Arc<Gang>>,
    pub(crate) nodes: BTreeMap<NodeId, Arc<Node>>,
    pub(crate) join_tokens: BTreeMap<String, JoinTokenRecord>,
    pub(crate) api_tokens: BTreeMap<String, ApiTokenRecord>,
    /// By project and name.
    pub(crate) secrets: BTreeMap<(String, String), Arc<SecretRecord>>,
    pub(crate) projects: BTreeMap<String, ProjectRecord>,
    pub(crate) usage: BTreeMap<String, Usage>,
    /// Of gangs that end: see `accounts`.
    pub(crate) accounts: BTreeMap<GangId, Account>,
    pub(crate) webhooks: BTreeMap<WebhookKey, WebhookRecord>,
    pub(crate) deliveries: BTreeMap<WebhookKey, Delivery>,
    pub(crate) pools: BTreeMap<String, PoolRecord>,
    pub(crate) node_tests: BTreeMap<JobId, Arc<NodeTest>>,
    /// By the id of the rule.
    pub(crate) rule_trials: BTreeMap<String, Arc<RuleTrial>>,
    pub(crate) idempotency: BTreeMap<(String, String), IdempotencyRecord>,

    // Not stored: derived, or learned again.
    pub(crate) policy: Policy,
    pub(crate) capacity: Capacity,
    pub(crate) holdings: Holdings,
    pub(crate) history: History,
    counted_ms: u64,
    explaining: bool,
    pub(crate) queue: Queue,
    misfits: Misfits,
    pub(crate) live_jobs: BTreeSet<JobId>,
    /// Jobs that the passing of time may end: running with a time limit, and standing clusters.
    pub(crate) timed_jobs: BTreeSet<JobId>,
    /// Jobs that name a checkpoint directory, by that directory.
    pub(crate) writers: BTreeMap<String, BTreeSet<JobId>>,
    pub(crate) on_node: BTreeMap<NodeId, BTreeSet<GangId>>,
    /// Gangs that time-outs are looked up for: the ones that start, and the ones that stop.
    pub(crate) starting_gangs: BTreeSet<GangId>,
    pub(crate) stopping_gangs: BTreeSet<GangId>,
    /// Nodes that run members of a gang that is not known, by gang.
    pub(crate) unknown_on: BTreeMap<GangId, BTreeSet<NodeId>>,
    /// Jobs with an attempt that takes a part of a standing cluster, by its gang.
    pub(crate) guests: BTreeMap<GangId, BTreeSet<JobId>>,
    /// Jobs that wait for another one's success, by that one.
    pub(crate) waited_for: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Jobs that have ended in this step, for those that wait for them.
    pub(crate) just_ended: Vec<JobId>,
    /// The newest training checkpoint of each live gang that has made one.
    pub(crate) checkpoints: BTreeMap<GangId, TrainingCheckpoint>,
    /// Gangs whose training stands still, with the epoch, and since when on the boot clock.
    pub(crate) stalls: BTreeMap<GangId, (Epoch, u64)>,
    /// The last stalls of each live gang that are over; see `accounts`.
    stalls_over: BTreeMap<GangId, (Epoch, VecDeque<accounts::StallOver>)>,
    vacancies: Vacancies,
    /// What was said of the training checkpoints of each live gang.
    pub(crate) saved: BTreeMap<GangId, Saved>,
    /// What agents have measured of the GPUs of each live gang.
    meters: BTreeMap<GangId, Meter>,
    /// When it was asked why the newest attempt of a job failed, while that is waited for.
    examined: BTreeMap<JobId, recovery::Asked>,
    /// When the last guest of a cluster ended.
    pub(crate) last_guest_ms: BTreeMap<JobId, u64>,
    /// Nodes that are doubted, and how much: a step of `reputation`.
    pub(crate) doubted: BTreeMap<NodeId, u8>,
    /// Nodes that have refused to start a gang, and get none for a while.
    refused: BTreeMap<NodeId, refusals::Refused>,
    /// Nodes that health left in use because it had taken its share of their pool, and for what this was
    /// said last.
    beyond_share: BTreeMap<NodeId, health::Level>,
    /// Nodes that have said to this process what is wrong with them.
    diagnosed: BTreeSet<NodeId>,
    /// What was told of conditions that changed their words.
    told: BTreeMap<NodeId, health::Told>,
    /// Those that an operator put back into use before that.
    resumed_unheard: BTreeSet<NodeId>,
    pub(crate) quarantine: Vec<Quarantine>,
    pub(crate) next_ports: BTreeMap<NetworkKey, u32>,
    /// When this core began, by the boot clock and by the wall clock.
    pub(crate) started_ms: u64,
    started_wall_ms: u64,
    /// When it was first seen that a node had nothing left of a gang of which another node is lost.
    pub(crate) ends_seen: BTreeMap<(GangId, NodeId), u64>,
    /// Since when this core has looked at time without a pause.
    pub(crate) awake_since_ms: u64,
    checked_ms: u64,
    next_sequence: u64,
    next_check_ms: u64,
    last_pass_ms: u64,
    passes: u64,
    want_schedule: bool,
    dirty_nodes: BTreeSet<NodeId>,
}

/// A block that somebody else uses.
#[derive(Debug, Clone)]
pub(crate) struct Quarantine {
    pub network: NetworkKey,
    pub block: PortBlock,
    pub until_ms: u64,
}

impl Core {
    /// An empty core of a store's era.
    pub fn new(era: u32, now: Timestamp) -> Self {
        Core {
            era,
            started_ms: now.boot_ms,
            started_wall_ms: now.wall_ms,
            awake_since_ms: now.boot_ms,
            checked_ms: now.boot_ms,
            want_schedule: true,
            explaining: true,
            ..Core::default()
        }
    }

    /// Whether waiting jobs are told why: a replay that nobody watches need not.
    pub fn set_explaining(&mut self, explaining: bool) {
        self.explaining = explaining;
    }

    /// Why a waiting job waits, as of the newest pass over the queue.
    pub fn why(&self, job: &JobId) -> Option<&Arc<str>> {
        self.queue.waiting(job)?.why.as_ref()
    }

    /// Serves the queue in another way; for comparisons.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.want_schedule = true;
    }

    /// Takes one stored entity in; only before the first step.
    pub fn restore(&mut self, write: Write) {
        match write {
            Write::Job(job) => {
                self.next_sequence = self.next_sequence.max(job.sequence + 1);
                self.index_waiting(&job);
                self.queue.set(&job);
                self.holdings.mark(&job.gang);
                if job.state.is_terminal() {
                    if self.jobs.get(&job.id).is_none_or(|old| !old.state.is_terminal()) {
                        self.note_duration(&job);
                    }
                    self.live_jobs.remove(&job.id);
                } else {
                    self.live_jobs.insert(job.id.clone());
                }
                if job.is_timed() {
                    self.timed_jobs.insert(job.id.clone());
                } else {
                    self.timed_jobs.remove(&job.id);
                }
                if let Some(directory) = &job.request.checkpoint_directory {
                    let writers = self.writers.entry(directory.clone()).or_default();
                    writers.insert(job.id.clone());
                }
                self.jobs.insert(job.id.clone(), job);
            }
            Write::Attempt(attempt) => {
                self.index_guest(&attempt);
                self.holdings.mark(&attempt.gang);
                self.attempts.insert((attempt.job.clone(), attempt.number), attempt);
            }
            Write::Gang(gang) => {
                self.index_gang(&gang);
                self.gangs.insert(gang.id.clone(), gang);
            }
            Write::Node(node) => {
                self.capacity.mark(&node.id);
                // How much is looked at with the time.
                match node.doubt {
                    Some(_) => drop(self.doubted.entry(node.id.clone()).or_default()),
                    None => drop(self.doubted.remove(&node.id)),
                }
                self.nodes.insert(node.id.clone(), node);
            }
            Write::JoinToken(record) => {
                self.join_tokens.insert(record.id.clone(), record);
            }
            Write::ApiToken(record) => {
                self.api_tokens.insert(record.name.clone(), record);
            }
            Write::Secret(record) => {
                self.secrets.insert((record.project.clone(), record.name.clone()), record);
            }
            Write::ForgetSecret { project, name } => {
                self.secrets.remove(&(project, name));
            }
            Write::Usage(usage) => {
                self.usage.insert(usage.project.clone(), usage);
            }
            Write::Account(account) => {
                self.accounts.insert(account.gang.clone(), account);
            }
            Write::ForgetAccount { gang } => {
                self.accounts.remove(&gang);
            }
            Write::Webhook(record) => {
                self.webhooks.insert(record.key.clone(), record);
            }
            Write::ForgetWebhook { key } => {
                self.webhooks.remove(&key);
            }
            Write::Delivery(delivery) => {
                self.deliveries.insert(delivery.key.clone(), delivery);
            }
            Write::ForgetDelivery { key } => {
                self.deliveries.remove(&key);
            }
            Write::Project(record) => {
                self.projects.insert(record.name.clone(), record);
                self.misfits.forget();
            }
            Write::Pool(record) => {
                self.pools.insert(record.name.clone(), record);
            }
            Write::ForgetPool { name } => {
                self.pools.remove(&name);
            }
            Write::NodeTest(test) => {
                self.node_tests.insert(test.job.clone(), test);
            }
            Write::ForgetNodeTest { job } => {
                self.node_tests.remove(&job);
            }
            Write::RuleTrial(trial) => {
                self.rule_trials.insert(trial.rule.clone(), trial);
            }
            Write::ForgetRuleTrial { rule } => {
                self.rule_trials.remove(&rule);
            }
            Write::Idempotency(record) => {
                self.idempotency.insert((record.user.clone(), record.key.clone()), record);
            }
            Write::ForgetIdempotency { user, key } => {
                self.idempotency.remove(&(user, key));
            }
            Write::ForgetJoinToken { id } => {
                self.join_tokens.remove(&id);
            }
            Write::ForgetApiToken { name } => {
                self.api_tokens.remove(&name);
            }
            // Nothing is ever decided by what is in the audit log, the notices and the books.
            Write::Audit(_) | Write::Notice(_) | Write::Spent(_) | Write::Vacancy(_) => {}
            Write::ForgetAttempt { job, number } => {
                self.attempts.remove(&(job, number));
            }
            Write::ForgetGang { id } => {
                self.holdings.mark(&id);
                self.checkpoints.remove(&id);
                self.saved.remove(&id);
                self.starting_gangs.remove(&id);
                self.stopping_gangs.remove(&id);
                for node in self.gangs.remove(&id).iter().flat_map(|gang| gang.nodes()) {
                    self.on_node.entry(node).or_default().remove(&id);
                }
            }
            Write::ForgetJob { id } => {
                self.forget_writer(&id);
                self.jobs.remove(&id);
                self.queue.remove(&id);
                self.last_guest_ms.remove(&id);
                self.live_jobs.remove(&id);
                self.timed_jobs.remove(&id);
                self.examined.remove(&id);
            }
        }
    }

    /// One event in, its effects out.
    pub fn step(&mut self, event: Event, now: Timestamp, out: &mut Effects) {
        self.take(event, now, out);
        self.decide(now, out);
    }

    /// The first half of a step: what the event itself changes. Any number of them may come before
    /// [`decide`](Self::decide), so that events that came together cost one pass over the queue.
    pub fn take(&mut self, event: Event, now: Timestamp, out: &mut Effects) {
        match event {
            Event::Tick => {}
            Event::Submit { request, submission } => self.on_submit(request, *submission, now, out),
            Event::Ask { request, question } => self.on_question(request, question, now, out),
            Event::StopJob { request, job, actor, reason } => {
                self.on_stop_job(request, &job, &actor, reason, now, out);
            }
            Event::ControlJob { request, job, control, actor } => {
                self.on_control_job(request, &job, control, &actor, now, out);
            }
            Event::DeleteJob { request, job, actor } => {
                self.on_delete_job(request, &job, &actor, now, out);
            }
            Event::CreateJoinToken { request, record, actor } => {
                self.on_create_join_token(request, record, &actor, now, out);
            }
            Event::CreateApiToken { request, record, actor } => {
                self.on_create_api_token(request, record, &actor, now, out);
            }
            Event::DeleteToken { request, name, actor } => {
                self.on_delete_token(request, &name, &actor, now, out);
            }
            Event::SetSecret { request, record, actor } => {
                self.on_set_secret(request, record, &actor, now, out);
            }
            Event::DeleteSecret { request, project, name, actor } => {
                self.on_delete_secret(request, (project, name), &actor, now, out);
            }
            Event::SetWebhook { request, record, actor } => {
                self.on_set_webhook(request, record, &actor, now, out);
            }
            Event::DeleteWebhook { request, key, actor } => {
                self.on_delete_webhook(request, &key, &actor, now, out);
            }
            Event::TestWebhook { request, key, actor } => {
                self.on_test_webhook(request, &key, &actor, now, out);
            }
            Event::Told { request, key, progress } => self.on_told(request, &key, progress, out),
            Event::SetProject { request, name, change, actor } => {
                self.on_set_project(request, (name, *change), &actor, now, out);
            }
            Event::MaintainNode { request, node, wanted, actor } => {
                self.on_maintain_node(request, &node, wanted, &actor, now, out);
            }
            Event::LabelNode { request, node, labels, actor } => {
                self.on_label_node(request, &node, labels, &actor, now, out);
            }
            Event::SetPool { request, pool, change, actor } => {
                self.on_set_pool(request, pool, change, &actor, now, out);
            }
            Event::DeletePool { request, pool, actor } => {
                self.on_delete_pool(request, pool, &actor, now, out);
            }
            Event::RevokeNode { request, node, actor } => {
                self.on_revoke(request, &node, &actor, now, out);
            }
            Event::FaultAsked { request, node, fault, actor } => {
                self.on_fault_asked(request, &node, &fault, &actor, now, out);
            }
            Event::ForceRelease { request, node, reason, actor } => {
                self.on_force_release(request, &node, &reason, &actor, now, out);
            }
            Event::Join { request, join } => self.on_join(request, join, now, out),
            Event::Renewed { request, node, certificate } => {
                self.on_renewed(request, &node, certificate, out);
            }
            Event::Connected { request, node, session } => {
                self.on_connected(request, &node, session, now, out);
            }
            Event::Disconnected { node, session } => self.on_disconnected(&node, session, out),
            Event::Inventory { node, session, inventory, name } => {
                self.on_inventory(&node, session, *inventory, &name, now, out);
            }
            Event::Heard { node, session, held } => self.on_heard(&node, session, held, now, out),
            Event::Reported { node, session, report } => {
                self.on_reported(&node, session, report, now, out);
            }
            Event::Examined { job, attempt, verdict } => {
                self.on_examined(&job, attempt, *verdict, now, out);
            }
            Event::NodeTested { job, state } => self.on_node_tested(&job, *state, now, out),
            Event::Stall(word) => self.on_stall_word(&word, now, out),
            Event::Diagnosed { node, session, health } => {
                self.on_diagnosed(&node, session, *health, now, out);
            }
        }
    }

    /// The second half: what follows from all of it. Time-outs, who runs next, and what nodes are told.
    pub fn decide(&mut self, now: Timestamp, out: &mut Effects) {
        if now.boot_ms >= self.next_check_ms {
            self.next_check_ms = now.boot_ms + CHECK_EVERY_MS;
            self.expire(now, out);
        }
        self.settle_dependents(now, out);
        if std::mem::take(&mut self.want_schedule) {
            self.last_pass_ms = now.boot_ms;
            self.passes += 1;
            self.schedule(now, out);
        }
        self.push_dirty(now, out);
    }

    /// Leases, deadlines, and everything that is remembered for a time only.
    fn expire(&mut self, now: Timestamp, out: &mut Effects) {
        if now.boot_ms.saturating_sub(self.checked_ms) > evidence::PAUSE_MS {
            self.awake_since_ms = now.boot_ms;
        }
        self.checked_ms = now.boot_ms;
        self.expire_leases(now, out);
        self.expire_silence(now, out);
        self.expire_starts(now, out);
        self.settle_stopping(now, out);
        self.expire_guests(now, out);
        self.expire_drains(now, out);
        self.expire_doubt(now, out);
        self.expire_findings(now, out);
        self.expire_refusals(now);
        // A replay that nobody watches need not.
        if self.explaining {
            self.count_vacancy(now, out);
        }
        self.retry_health(now, out);
        self.expire_time_limits(now, out);
        self.expire_holds(now, out);
        self.expire_waits(now, out);
        self.expire_idle_clusters(now, out);
        let quarantined = self.quarantine.len();
        self.quarantine.retain(|quarantine| quarantine.until_ms > now.boot_ms);
        // Time alone changes ages, forecasts and who may be sent back.
        let passed = now.boot_ms.saturating_sub(self.last_pass_ms);
        self.want_schedule |= !self.queue.is_empty() && passed >= PASS_EVERY_MS;
        // Nobody reports that a block is free again; a job may wait for nothing else.
        self.want_schedule |= self.quarantine.len() < quarantined;
        let old: Vec<_> = self
            .idempotency
            .iter()
            .filter(|(_, record)| {
                // A wall clock that is set must not make a repeated request a new one.
                let age_ms = now.boot_ms.saturating_sub(record.created.boot_ms);
                age_ms > credential::IDEMPOTENCY_MS
            })
            .map(|(key, _)| key.clone())
            .collect();
        for (user, key) in old {
            self.put(Write::ForgetIdempotency { user, key }, out);
        }
    }

    /// The one way to change something that is stored: memory and store never differ.
    pub(crate) fn put(&mut self, write: Write, out: &mut Effects) {
        self.restore(write.clone());
        out.writes.push(write);
    }

    /// Gangs with members on each node, live ones only, and the gangs that time-outs are for.
    fn index_gang(&mut self, gang: &Gang) {
        for (gangs, state) in [
            (&mut self.starting_gangs, GangState::Starting),
            (&mut self.stopping_gangs, GangState::Stopping),
        ] {
            if gang.state == state {
                gangs.insert(gang.id.clone());
            } else {
                gangs.remove(&gang.id);
            }
        }
        if self.checkpoints.get(&gang.id).is_some_and(|newest| !newest.is_of(gang)) {
            self.checkpoints.remove(&gang.id);
        }
        if self.saved.get(&gang.id).is_some_and(|saved| !saved.is_of(gang)) {
            self.saved.remove(&gang.id);
        }
        if !gang.is_live() {
            self.meters.remove(&gang.id);
            self.stalls.remove(&gang.id);
            self.stalls_over.remove(&gang.id);
        }
        self.holdings.mark(&gang.id);
        let nodes = gang.nodes();
        self.mark_nodes(&nodes);
        for node in nodes {
            let gangs = self.on_node.entry(node).or_default();
            if gang.is_live() {
                gangs.insert(gang.id.clone());
            } else {
                gangs.remove(&gang.id);
            }
        }
    }

    /// A node's desired state has changed: a new generation, pushed at the end of the step.
    pub(crate) fn touch_nodes(&mut self, nodes: &[NodeId], out: &mut Effects) {
        for id in nodes {
            let Some(node) = self.nodes.get(id) else { continue };
            let mut node = Node::clone(node);
            node.generation.era = self.era;
            node.generation.n += 1;
            self.put(Write::Node(Arc::new(node)), out);
            self.dirty_nodes.insert(id.clone());
        }
    }

    pub(crate) fn push_later(&mut self, node: &NodeId) {
        self.dirty_nodes.insert(node.clone());
    }

    fn push_dirty(&mut self, now: Timestamp, out: &mut Effects) {
        for id in std::mem::take(&mut self.dirty_nodes) {
            let gangs = self.desired(&id);
            let Some(node) = self.nodes.get_mut(&id).filter(|node| node.is_introduced()) else {
                continue;
            };
            let node = Arc::make_mut(node);
            let Some(session) = &mut node.session else { continue };
            session.pushed_ms = Some(now.boot_ms);
            out.pushes.push(Push {
                node: id,
                session: session.number,
                generation: node.generation,
                gangs,
            });
        }
    }

    /// A node's whole desired state. A gang leaves it only when it has ended with evidence, and
    /// what was given up without the node's word only with that word.
    pub fn desired(&self, node: &NodeId) -> Vec<Desired> {
        let listed = self.on_node.get(node);
        let given_up = self.nodes.get(node).into_iter().flat_map(|node| &node.stops);
        let given_up = given_up
            .filter(|(gang, _)| listed.is_none_or(|listed| !listed.contains(*gang)))
            .map(|(gang, epoch)| Desired::Stop {
                gang: gang.clone(),
                epoch: *epoch,
                keep_scene: false,
            });
        let live = listed.into_iter().flatten().filter_map(|id| {
            let gang = self.gangs.get(id)?;
            let job = self.jobs.get(&gang.job)?;
            Some(match gang.state {
                GangState::Starting | GangState::Ready => {
                    let secrets = self.secrets_of(job)?;
                    let guests = self.desired_guests(gang);
                    Desired::Run { job: job.clone(), gang: gang.clone(), secrets, guests }
                }
                GangState::Stopping
                    if is_planted(Planted::StopDroppedEarly)
                        && gang.members_on(node).all(|(_, m)| m.phase == Phase::Stopping) =>
                {
                    return None;
                }
                GangState::Stopping | GangState::Stopped => Desired::Stop {
                    gang: gang.id.clone(),
                    epoch: gang.epoch,
                    keep_scene: job.outcome.as_ref().is_some_and(Outcome::is_failure),
                },
            })
        });
        given_up.chain(live).collect()
    }

    pub(crate) fn reject(request: RequestId, rejected: Rejected, out: &mut Effects) {
        out.replies.push((request, Answer::Rejected(rejected)));
    }

    pub(crate) fn ask_for_scheduling(&mut self) {
        self.want_schedule = true;
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    // Read access for the driver (snapshots at start) and for tests.

    /// Passes over the queue since this core began.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.values()
    }

    pub fn attempts(&self) -> impl Iterator<Item = &Arc<Attempt>> {
        self.attempts.values()
    }

    pub fn gangs(&self) -> impl Iterator<Item = &Arc<Gang>> {
        self.gangs.values()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    pub fn join_tokens(&self) -> impl Iterator<Item = &JoinTokenRecord> {
        self.join_tokens.values()
    }

    pub fn secrets(&self) -> impl Iterator<Item = &Arc<SecretRecord>> {
        self.secrets.values()
    }

    pub fn projects(&self) -> impl Iterator<Item = &ProjectRecord> {
        self.projects.values()
    }

    pub fn usage(&self) -> impl Iterator<Item = &Usage> {
        self.usage.values()
    }

    pub fn pools(&self) -> impl Iterator<Item = &PoolRecord> {
        self.pools.values()
    }

    pub fn api_tokens(&self) -> impl Iterator<Item = &ApiTokenRecord> {
        self.api_tokens.values()
    }
}
