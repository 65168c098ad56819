//! Memory snapshots for readers: what the driver last committed, never queued behind writes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gangline_common::ids::{GangId, GpuId, JobId, NodeId};
use tokio::sync::watch;

use crate::core::Core;
use crate::core::checkpoints::{Saved, TrainingCheckpoint};
use crate::core::credential::{ApiTokenRecord, JoinTokenRecord};
use crate::core::effect::{Effects, Seen, Write};
use crate::core::gang::{Gang, Member};
use crate::core::job::{Attempt, Job, JobState};
use crate::core::node::Node;
use crate::core::node_test::NodeTest;
use crate::core::pools::PoolRecord;
use crate::core::projects::ProjectRecord;
use crate::core::secrets::SecretRecord;
use crate::core::trials::RuleTrial;
use crate::core::webhooks::{Delivery, WebhookKey, WebhookRecord};

/// A job with everything that belongs to it.
#[derive(Debug, Clone)]
pub struct JobSnapshot {
    pub job: Arc<Job>,
    /// By number.
    pub attempts: Vec<Arc<Attempt>>,
    pub gang: Option<Arc<Gang>>,
    /// The newest training checkpoint of the attempt that is live.
    pub checkpoint: Option<TrainingCheckpoint>,
    /// What was said last of the training checkpoints in its directory, by whichever attempt.
    pub saved: Option<Saved>,
}

/// A node and the live gangs with a member there.
#[derive(Debug, Clone)]
pub struct NodeSnapshot {
    pub node: Arc<Node>,
    pub gangs: Vec<Arc<Gang>>,
}

/// The GPUs of a node: those that jobs have, and of the others those that a job could get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuCount {
    pub in_use: usize,
    pub free: usize,
    pub unusable: usize,
}

impl NodeSnapshot {
    /// Members that hold something of the node.
    pub fn holders(&self) -> impl Iterator<Item = &Member> {
        let members = self.gangs.iter().flat_map(|gang| gang.members_on(&self.node.id));
        members.map(|(_, member)| member).filter(|member| member.holds())
    }

    /// Nothing is free on a node that takes no jobs, and no GPU that is not offered for a condition of
    /// its own.
    pub fn gpus(&self) -> GpuCount {
        let held: BTreeSet<&GpuId> = self.holders().flat_map(|member| &member.gpus).collect();
        let (is_open, withheld) = (self.node.is_open(), self.node.withheld());
        let mut count = GpuCount { in_use: held.len(), ..GpuCount::default() };
        let inventory = || self.node.inventory.iter().flat_map(|inventory| &inventory.gpus);
        // One that is held may have been exchanged for another: there are no more for that.
        let rest = inventory().count().saturating_sub(held.len());
        for gpu in inventory().filter(|gpu| !held.contains(&gpu.uuid)).take(rest) {
            match is_open && !withheld.contains(&gpu.uuid) {
                true => count.free += 1,
                false => count.unusable += 1,
            }
        }
        count
    }
}

/// Cheap to clone; one writer (the driver), any number of readers.
#[derive(Clone)]
pub struct Board {
    inner: Arc<RwLock<Inner>>,
    changes: watch::Sender<u64>,
    /// Counts what webhooks wait for: notices, and changes of webhooks.
    notices: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    jobs: BTreeMap<JobId, Arc<Job>>,
    attempts: BTreeMap<(JobId, u32), Arc<Attempt>>,
    gangs: BTreeMap<GangId, Arc<Gang>>,
    live_gangs: BTreeMap<GangId, Arc<Gang>>,
    checkpoints: BTreeMap<GangId, TrainingCheckpoint>,
    saved: BTreeMap<GangId, Saved>,
    nodes: BTreeMap<NodeId, Arc<Node>>,
    /// By name: a token made again under a name replaces the old one.
    tokens: BTreeMap<String, ApiTokenRecord>,
    /// Name of a token by its hash.
    token_names: HashMap<[u8; 32], String>,
    join_tokens: BTreeMap<String, JoinTokenRecord>,
    /// By project and name.
    secrets: BTreeMap<(String, String), Arc<SecretRecord>>,
    projects: BTreeMap<String, ProjectRecord>,
    pools: BTreeMap<String, PoolRecord>,
    node_tests: BTreeMap<JobId, Arc<NodeTest>>,
    rule_trials: BTreeMap<String, Arc<RuleTrial>>,
    webhooks: BTreeMap<WebhookKey, WebhookRecord>,
    deliveries: BTreeMap<WebhookKey, Delivery>,
}

impl Inner {
    fn take(&mut self, write: &Write) {
        match write {
            Write::Job(job) => {
                self.jobs.insert(job.id.clone(), job.clone());
            }
            Write::Attempt(attempt) => {
                self.attempts.insert((attempt.job.clone(), attempt.number), attempt.clone());
            }
            Write::Gang(gang) => {
                if gang.is_live() {
                    self.live_gangs.insert(gang.id.clone(), gang.clone());
                } else {
                    self.live_gangs.remove(&gang.id);
                }
                if self.checkpoints.get(&gang.id).is_some_and(|newest| !newest.is_of(gang)) {
                    self.checkpoints.remove(&gang.id);
                }
                self.gangs.insert(gang.id.clone(), gang.clone());
            }
            Write::Node(node) => self.take_node(node),
            Write::ApiToken(token) => self.take_token(token),
            Write::ForgetAttempt { job, number } => {
                self.attempts.remove(&(job.clone(), *number));
            }
            Write::ForgetGang { id } => {
                self.gangs.remove(id);
                self.live_gangs.remove(id);
                self.checkpoints.remove(id);
                self.saved.remove(id);
            }
            Write::ForgetJob { id } => {
                self.jobs.remove(id);
            }
            Write::ForgetApiToken { name } => self.drop_token(name),
            Write::JoinToken(token) => {
                self.join_tokens.insert(token.id.clone(), token.clone());
            }
            Write::ForgetJoinToken { id } => {
                self.join_tokens.remove(id);
            }
            Write::Secret(secret) => {
                let key = (secret.project.clone(), secret.name.clone());
                self.secrets.insert(key, secret.clone());
            }
            Write::Project(project) => {
                self.projects.insert(project.name.clone(), project.clone());
            }
            Write::Pool(pool) => {
                self.pools.insert(pool.name.clone(), pool.clone());
            }
            Write::ForgetPool { name } => {
                self.pools.remove(name);
            }
            Write::NodeTest(test) => {
                self.node_tests.insert(test.job.clone(), test.clone());
            }
            Write::ForgetNodeTest { job } => {
                self.node_tests.remove(job);
            }
            Write::RuleTrial(trial) => {
                self.rule_trials.insert(trial.rule.clone(), trial.clone());
            }
            Write::ForgetRuleTrial { rule } => {
                self.rule_trials.remove(rule);
            }
            Write::ForgetSecret { project, name } => {
                self.secrets.remove(&(project.clone(), name.clone()));
            }
            Write::Webhook(record) => {
                self.webhooks.insert(record.key.clone(), record.clone());
            }
            Write::ForgetWebhook { key } => {
                self.webhooks.remove(key);
            }
            Write::Delivery(delivery) => {
                self.deliveries.insert(delivery.key.clone(), delivery.clone());
            }
            Write::ForgetDelivery { key } => {
                self.deliveries.remove(key);
            }
            Write::Usage(_)
            | Write::Account(_)
            | Write::ForgetAccount { .. }
            | Write::Spent(_)
            | Write::Notice(_)
            | Write::Idempotency(_)
            | Write::ForgetIdempotency { .. }
            | Write::Vacancy(_)
            | Write::Audit(_) => {}
        }
    }

    fn take_node(&mut self, node: &Arc<Node>) {
        self.nodes.insert(node.id.clone(), node.clone());
    }

    fn see(&mut self, seen: &Seen) {
        match seen {
            Seen::Node(node) => self.take_node(node),
            Seen::Why { job, reason } => {
                if let Some(job) = self.jobs.get_mut(job)
                    && job.state == JobState::Pending
                {
                    Arc::make_mut(job).reason = reason.as_ref().to_owned();
                }
            }
            Seen::Word { node, last_word_ms, held } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    let node = Arc::make_mut(node);
                    node.last_word_ms = *last_word_ms;
                    node.held = *held;
                }
            }
            Seen::Saved { gang, saved } => {
                if self.gangs.contains_key(gang) {
                    self.saved.insert(gang.clone(), saved.clone());
                }
            }
            Seen::Checkpoint { gang, checkpoint } => {
                if self.gangs.get(gang).is_some_and(|gang| checkpoint.is_of(gang)) {
                    self.checkpoints.insert(gang.clone(), checkpoint.clone());
                }
            }
        }
    }

    fn take_token(&mut self, token: &ApiTokenRecord) {
        self.drop_token(&token.name);
        self.token_names.insert(token.sha256, token.name.clone());
        self.tokens.insert(token.name.clone(), token.clone());
    }

    fn drop_token(&mut self, name: &str) {
        if let Some(old) = self.tokens.remove(name) {
            self.token_names.remove(&old.sha256);
        }
    }
}

impl Board {
    /// The snapshot of a core that was just restored.
    pub fn of(core: &Core) -> Board {
        let mut inner = Inner::default();
        let jobs = core.jobs().cloned().map(Write::Job);
        let attempts = core.attempts().cloned().map(Write::Attempt);
        let gangs = core.gangs().cloned().map(Write::Gang);
        let nodes = core.nodes().cloned().map(Write::Node);
        let tokens = core.api_tokens().cloned().map(Write::ApiToken);
        let join_tokens = core.join_tokens().cloned().map(Write::JoinToken);
        let secrets = core.secrets().cloned().map(Write::Secret);
        let projects = core.projects().cloned().map(Write::Project);
        let pools = core.pools().cloned().map(Write::Pool);
        let tests = core.node_tests().cloned().map(Write::NodeTest);
        let trials = core.rule_trials().cloned().map(Write::RuleTrial);
        let webhooks = core.webhooks().cloned().map(Write::Webhook);
        let deliveries = core.deliveries().cloned().map(Write::Delivery);
        let tokens = tokens.chain(join_tokens).chain(secrets).chain(projects).chain(pools);
        let tokens = tokens.chain(webhooks).chain(deliveries).chain(tests).chain(trials);
        for write in jobs.chain(attempts).chain(gangs).chain(nodes).chain(tokens) {
            inner.take(&write);
        }
        Board {
            inner: Arc::new(RwLock::new(inner)),
            changes: watch::Sender::new(0),
            notices: watch::Sender::new(0),
        }
    }

    /// Takes in what a batch changed, after its commit.
    pub fn publish(&self, effects: &Effects) {
        if effects.writes.is_empty() && effects.seen.is_empty() {
            return;
        }
        {
            let mut inner = self.write();
            // In the order in which they happened: what was seen of a node before a write must not
            // hide the write.
            let mut seen = effects.seen.iter().peekable();
            for (index, write) in effects.writes.iter().enumerate() {
                while let Some((_, before)) = seen.next_if(|(at, _)| *at <= index) {
                    inner.see(before);
                }
                inner.take(write);
            }
            for (_, last) in seen {
                inner.see(last);
            }
        }
        // Signs of life wake nobody.
        let only_words = effects.seen.iter().all(|(_, seen)| matches!(seen, Seen::Word { .. }));
        if effects.writes.is_empty() && only_words {
            return;
        }
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        let matters = |write: &Write| {
            matches!(write, Write::Notice(_) | Write::Webhook(_) | Write::ForgetWebhook { .. })
        };
        if effects.writes.iter().any(matters) {
            self.notices.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    // A poisoned lock means that a reader panicked; the maps are whole after every statement.
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when there are new notices, or other webhooks.
    pub fn notices(&self) -> watch::Receiver<u64> {
        self.notices.subscribe()
    }

    /// All webhooks with how far each was told, by project and name.
    pub fn webhooks(&self) -> Vec<(WebhookRecord, Option<Delivery>)> {
        let inner = self.read();
        let with_delivery =
            |record: &WebhookRecord| (record.clone(), inner.deliveries.get(&record.key).cloned());
        inner.webhooks.values().map(with_delivery).collect()
    }

    /// How far a webhook was told.
    pub fn delivery(&self, key: &WebhookKey) -> Option<Delivery> {
        self.read().deliveries.get(key).cloned()
    }

    /// All jobs, newest first.
    pub fn jobs(&self) -> Vec<Arc<Job>> {
        let mut jobs: Vec<_> = self.read().jobs.values().cloned().collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.sequence));
        jobs
    }

    pub fn job(&self, id: &JobId) -> Option<JobSnapshot> {
        let inner = self.read();
        let job = inner.jobs.get(id)?.clone();
        let range = (id.clone(), 0)..=(id.clone(), u32::MAX);
        let attempts = inner.attempts.range(range).map(|(_, attempt)| attempt.clone()).collect();
        let gang = inner.gangs.get(&job.gang).cloned();
        let checkpoint = inner.checkpoints.get(&job.gang).cloned();
        let checkpoint = checkpoint.filter(|_| job.cluster.is_none());
        let saved = inner.saved.get(&job.gang).cloned().filter(|_| job.cluster.is_none());
        Some(JobSnapshot { job, attempts, gang, checkpoint, saved })
    }

    /// The jobs on a standing cluster that have not ended, in the order of submission.
    pub fn live_guests(&self, cluster: &JobId) -> Vec<JobSnapshot> {
        let of_cluster =
            |job: &&Arc<Job>| job.cluster.as_ref() == Some(cluster) && !job.state.is_terminal();
        let mut ids: Vec<(u64, JobId)> = {
            let inner = self.read();
            inner.jobs.values().filter(of_cluster).map(|j| (j.sequence, j.id.clone())).collect()
        };
        ids.sort();
        ids.iter().filter_map(|(_, id)| self.job(id)).collect()
    }

    /// The newest job of this name among those that `visible` lets through.
    pub fn newest_named(&self, name: &str, visible: impl Fn(&Job) -> bool) -> Option<Arc<Job>> {
        let inner = self.read();
        let named = inner.jobs.values().filter(|job| job.request.name == name && visible(job));
        named.max_by_key(|job| job.sequence).cloned()
    }

    pub fn gang(&self, id: &GangId) -> Option<Arc<Gang>> {
        self.read().gangs.get(id).cloned()
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> Vec<NodeSnapshot> {
        let inner = self.read();
        // One look at every member, not one at every gang for every node.
        let mut gangs: HashMap<&NodeId, Vec<Arc<Gang>>> = HashMap::new();
        for gang in inner.live_gangs.values() {
            let mut seen: Vec<&NodeId> = gang.members.values().map(|m| &m.node).collect();
            seen.sort();
            seen.dedup();
            seen.into_iter().for_each(|node| gangs.entry(node).or_default().push(gang.clone()));
        }
        let of_node = |node: &Arc<Node>| {
            let gangs = gangs.get(&node.id).cloned().unwrap_or_default();
            NodeSnapshot { node: node.clone(), gangs }
        };
        let mut nodes: Vec<_> = inner.nodes.values().map(of_node).collect();
        nodes.sort_by(|a, b| a.node.name.cmp(&b.node.name));
        nodes
    }

    /// The pool that a node is in.
    pub fn pool_of(&self, node: &NodeId) -> Option<String> {
        self.read().nodes.get(node)?.pool().map(str::to_owned)
    }

    /// A node by id or by name.
    pub fn node(&self, id_or_name: &str) -> Option<NodeSnapshot> {
        let inner = self.read();
        let node = inner
            .nodes
            .values()
            .find(|node| node.id.as_str() == id_or_name)
            .or_else(|| inner.nodes.values().find(|node| node.name == id_or_name))?;
        Some(snapshot(&inner, node))
    }

    /// The version of a program that most nodes report, of one pool or of all; of several that are
    /// equally frequent, the one that sorts last. Revoked nodes do not count.
    pub fn common_version(&self, program: &str, pool: Option<&str>) -> Option<String> {
        let inner = self.read();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let nodes = inner.nodes.values().filter(|node| !node.revoked);
        let of_pool = nodes.filter(|node| pool.is_none() || node.pool() == pool);
        for inventory in of_pool.filter_map(|node| node.inventory.as_ref()) {
            let versions = inventory.versions.iter().filter(|(name, _)| name == program);
            for (_, version) in versions.filter(|(_, version)| !version.is_empty()) {
                *counts.entry(version).or_default() += 1;
            }
        }
        let most = counts.into_iter().max_by_key(|(version, count)| (*count, *version));
        most.map(|(version, _)| version.to_owned())
    }

    /// Checks of the network, the newest first.
    pub fn node_tests(&self) -> Vec<Arc<NodeTest>> {
        let mut tests: Vec<_> = self.read().node_tests.values().cloned().collect();
        tests.sort_by(|a, b| b.begun.wall_ms.cmp(&a.begun.wall_ms).then(b.job.cmp(&a.job)));
        tests
    }

    /// What rules on trial have found, by the rule.
    pub fn rule_trials(&self) -> Vec<Arc<RuleTrial>> {
        self.read().rule_trials.values().cloned().collect()
    }

    /// The pools that were declared, by name.
    pub fn declared_pools(&self) -> BTreeMap<String, PoolRecord> {
        self.read().pools.clone()
    }

    /// A token of the API by the SHA-256 of its text.
    pub fn token(&self, sha256: &[u8; 32]) -> Option<ApiTokenRecord> {
        let inner = self.read();
        inner.token_names.get(sha256).and_then(|name| inner.tokens.get(name)).cloned()
    }

    /// Every token, by name and by id.
    pub fn tokens(&self) -> (Vec<ApiTokenRecord>, Vec<JoinTokenRecord>) {
        let inner = self.read();
        (inner.tokens.values().cloned().collect(), inner.join_tokens.values().cloned().collect())
    }

    /// Every project that a token names or about which something was decided, by name, with what
    /// was.
    pub fn projects(&self) -> BTreeMap<String, Option<ProjectRecord>> {
        let inner = self.read();
        let named = inner.tokens.values().map(|token| (token.project.clone(), None));
        let decided = inner.projects.values().map(|p| (p.name.clone(), Some(p.clone())));
        named.chain(decided).collect()
    }

    /// The gangs that are not gone.
    pub fn live_gangs(&self) -> Vec<Arc<Gang>> {
        self.read().live_gangs.values().cloned().collect()
    }

    /// GPUs that jobs hold, by project and pool.
    pub fn held_gpus(&self) -> BTreeMap<(String, String), u32> {
        let inner = self.read();
        let mut held: BTreeMap<(String, String), u32> = BTreeMap::new();
        for gang in inner.live_gangs.values() {
            let members = gang.members.values().filter(|member| member.holds());
            for member in members {
                let job = inner.jobs.get(&gang.job);
                let node = inner.nodes.get(&member.node).and_then(|node| node.inventory.as_ref());
                if let (Some(job), Some(inventory)) = (job, node) {
                    let key = (job.project.clone(), inventory.pool.clone());
                    *held.entry(key).or_default() += member.gpus.len() as u32;
                }
            }
        }
        held
    }

    /// The secrets of a project by name, sealed.
    pub fn secrets(&self, project: &str) -> Vec<Arc<SecretRecord>> {
        let inner = self.read();
        let from = inner.secrets.range((project.to_owned(), String::new())..);
        let of_project = from.take_while(|((other, _), _)| other == project);
        of_project.map(|(_, secret)| secret.clone()).collect()
    }

    /// Counts up at every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

fn snapshot(inner: &Inner, node: &Arc<Node>) -> NodeSnapshot {
    let gangs = inner
        .live_gangs
        .values()
        .filter(|gang| gang.members.values().any(|member| member.node == node.id))
        .cloned()
        .collect();
    NodeSnapshot { node: node.clone(), gangs }
}
