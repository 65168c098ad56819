//! What nodes say is wrong with them, and what is done about it.
//!
//! An agent says its conditions whole whenever one changes; its rules, windows and latches are its
//! own. Here it is decided what follows: a fatal condition cordons the node and sends what runs on the
//! part elsewhere, one that comes and goes cordons it and lets run what runs, a milder one drains it,
//! or keeps it from new gangs for as long as it stands. Never more than a part of a pool is taken out
//! of use without an operator: a rule that hits many nodes at once is more likely wrong than they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::ids::{GangId, GpuId, JobId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::audit::Actor;
use super::effect::{Clear, Effects, Seen, Write};
use super::gang::GangState;
use super::job::Outcome;
use super::node::{Cordon, Drain, Lifecycle, Node, Reachability};
use super::nodes::note;
use super::notices::About;
use super::reputation::BLAMED;

/// In whose name nodes are cordoned and drained here.
pub const HEALTH: &str = "health";
/// Of the nodes of a pool, health alone takes at most one in so many out of use,
const ONE_IN: usize = 10;
/// or so many, if that is more.
const AT_LEAST: usize = 2;

/// Name of the part that a condition of the node itself is about.
pub(super) const WHOLE_NODE: &str = "node";

/// Most reasons of one condition that are told apart, as in the agent's rules.
const MAX_REASONS: usize = 8;

/// The reasons for which each condition of a node has been told. Those that stand now and had just the
/// one that they have are not in it.
pub(super) type Told = BTreeMap<ClearedCondition, Vec<String>>;

/// How bad a condition is; each is worse than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Info,
    Warning,
    Degraded,
    NoNewJobs,
    DrainAfterJob,
    Fatal,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Degraded => "degraded",
            Level::NoNewJobs => "no-new-jobs",
            Level::DrainAfterJob => "drain-after-job",
            Level::Fatal => "fatal",
        }
    }
}

/// One thing that is wrong with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub rule: String,
    /// `node`, `gpu:UUID`, `port:DEVICE/N`, `mount:PATH` and the like.
    pub component: String,
    pub level: Level,
    /// The agent would refuse to start a gang while it stands.
    pub blocks_start: bool,
    /// Shown and never acted on.
    pub shadow: bool,
    pub action: String,
    pub reason: String,
    pub evidence: String,
    pub clears: String,
    /// By the node's wall clock.
    pub since_ms: u64,
}

/// Everything that a node says is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    pub conditions: Vec<Condition>,
    /// What cannot be seen from inside the container.
    pub blind: Vec<String>,
}

/// A condition that an operator has ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClearedCondition {
    pub rule: String,
    pub component: String,
    pub since_ms: u64,
}

/// The GPU that a part is, if it is one.
pub(super) fn gpu_of(component: &str) -> Option<GpuId> {
    component.strip_prefix("gpu:").map(|uuid| GpuId(uuid.to_owned()))
}

impl Condition {
    fn key(&self) -> ClearedCondition {
        let (rule, component) = (self.rule.clone(), self.component.clone());
        ClearedCondition { rule, component, since_ms: self.since_ms }
    }

    /// The GPU that it is about, if it is about one.
    fn gpu(&self) -> Option<GpuId> {
        gpu_of(&self.component)
    }

    /// Nothing new is to be given to the part, for as long as this stands.
    fn keeps_away(&self) -> bool {
        self.blocks_start || self.level == Level::NoNewJobs
    }

    /// The node is to be cordoned: it is broken, or it must get nothing new although its agent would start
    /// it (a link that comes and goes is up at every look).
    fn cordons(&self) -> bool {
        match self.level {
            Level::Fatal => true,
            Level::NoNewJobs => !self.blocks_start && self.gpu().is_none(),
            Level::Info | Level::Warning | Level::Degraded | Level::DrainAfterJob => false,
        }
    }

    /// `gpu:GPU-1: 1 of 8 GPUs missing (missing: ...)`.
    pub fn sentence(&self) -> String {
        let headline = self.headline();
        match self.evidence.as_str() {
            "" => headline,
            evidence => format!("{headline} ({evidence})"),
        }
    }

    /// The sentence without what was seen.
    fn headline(&self) -> String {
        match self.component.as_str() {
            WHOLE_NODE => self.reason.clone(),
            component => format!("{component}: {}", self.reason),
        }
    }

    /// Whether a sentence is one of this condition for the reason that it has now, whatever was seen.
    fn is_said_by(&self, sentence: &str) -> bool {
        let evidence = sentence.strip_prefix(self.headline().as_str());
        evidence.is_some_and(|evidence| evidence.is_empty() || evidence.starts_with(" ("))
    }
}

impl Node {
    /// The conditions that count: not those of rules on trial, nor those that an operator has ended.
    pub fn standing(&self) -> impl Iterator<Item = &Condition> {
        let counts = |condition: &&Condition| {
            !condition.shadow
                && (self.cleared.is_empty() || !self.cleared.contains(&condition.key()))
        };
        self.health.conditions.iter().filter(counts)
    }

    /// What keeps new gangs from the whole node.
    pub fn unfit(&self) -> Option<&Condition> {
        self.standing().find(|condition| condition.keeps_away() && condition.gpu().is_none())
    }

    /// The GPUs that are not offered.
    pub fn withheld(&self) -> BTreeSet<GpuId> {
        self.standing().filter(|condition| condition.keeps_away()).filter_map(|c| c.gpu()).collect()
    }

    /// The worst that stands, in the words of other tools.
    pub fn health_word(&self) -> &'static str {
        match self.standing().map(|condition| condition.level).max() {
            None | Some(Level::Info | Level::Warning) => "healthy",
            Some(Level::Degraded) => "degraded",
            Some(Level::NoNewJobs | Level::DrainAfterJob | Level::Fatal) => "unhealthy",
        }
    }

    /// The worst that stands of what cordons it, and the first of those that are as bad.
    fn worst_cordoning(&self) -> Option<&Condition> {
        let cordoning = || self.standing().filter(|condition| condition.cordons());
        let level = cordoning().map(|condition| condition.level).max()?;
        cordoning().find(|condition| condition.level == level)
    }

    /// How bad that is for which health would take it out of use.
    fn worst_taking_out(&self) -> Option<Level> {
        let drains = || self.worst_at(Level::DrainAfterJob);
        self.worst_cordoning().or_else(drains).map(|condition| condition.level)
    }

    fn worst_at(&self, level: Level) -> Option<&Condition> {
        self.standing().find(|condition| condition.level == level)
    }

    /// A link is the worst of what stands there. A node that was not heard of yet says nothing of it.
    fn is_out_for_a_link(&self) -> bool {
        let worst = self.standing().max_by_key(|condition| condition.level);
        worst.is_some_and(|worst| worst.level == Level::NoNewJobs)
    }

    fn is_taken_by_health(&self) -> bool {
        let cordoned = self.cordon.as_ref().is_some_and(|cordon| cordon.by == HEALTH);
        cordoned || self.drain.as_ref().is_some_and(|drain| drain.by == HEALTH)
    }
}

/// What health has taken out of use of the nodes of a pool.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    nodes: usize,
    taken: usize,
    /// Of those, for nothing worse than a link. They stay cordoned until a person comes, and take nothing
    /// of the share of what is worse.
    for_links: usize,
}

impl Share {
    fn limit(self) -> usize {
        AT_LEAST.max(self.nodes / ONE_IN)
    }

    /// What counts for a node with a condition of such a level.
    fn taken(self, level: Level) -> usize {
        if level == Level::NoNewJobs { self.taken } else { self.taken - self.for_links }
    }

    fn has_room(self, level: Level) -> bool {
        self.taken(level) < self.limit()
    }
}

impl Core {
    pub(super) fn on_diagnosed(
        &mut self,
        id: &NodeId,
        session: u64,
        health: Health,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !self.word_from(id, session, now, out) {
            return;
        }
        let Some(node) = self.nodes.get(id) else { return };
        let mut node = Node::clone(node);
        let is_first = !self.diagnosed.contains(id);
        let mut told = self.told.remove(id).unwrap_or_default();
        let news = news(&node.health, &health, &mut told, is_first.then_some(self.started_wall_ms));
        if !told.is_empty() {
            self.told.insert(id.clone(), told);
        }
        let known = node.cleared.clone();
        for News { kind, text, worse } in &news {
            // Not what the operator has ended.
            if let Some(worse) = worse {
                node.cleared.remove(worse);
            }
            if *kind != INFO {
                let word = kind.trim_start_matches("node.");
                note(&mut node, now, word, HEALTH, text.clone());
            }
            self.tell(kind, About::Node(&node), text, now, out);
        }
        let still: BTreeSet<ClearedCondition> =
            health.conditions.iter().map(Condition::key).collect();
        node.cleared.retain(|condition| still.contains(condition));
        self.diagnosed.insert(id.clone());
        if self.resumed_unheard.remove(id) {
            // What began since then the operator cannot have seen.
            let is_older =
                |condition: &ClearedCondition| condition.since_ms <= self.started_wall_ms;
            node.cleared.extend(still.into_iter().filter(is_older));
        }
        let has_changed = node.cleared != known;
        node.health = Arc::new(health);
        if !node.cleared.is_empty() {
            out.clears.push(clear(&node, session));
        }
        self.capacity.mark(id);
        let node = Arc::new(node);
        if news.is_empty() && !has_changed {
            self.nodes.insert(id.clone(), node.clone());
            out.saw(Seen::Node(node.clone()));
        } else {
            self.put(Write::Node(node.clone()), out);
        }
        self.note_findings(&node, now, out);
        self.act_on_health(id, now, out);
        if !news.is_empty() {
            self.renew_cordon(id, now, out);
        }
        self.ask_for_scheduling();
    }

    /// What health could not do for its share of the pool, in case that has changed. Each pool is counted
    /// once, and anew after a node of it was taken.
    pub(super) fn retry_health(&mut self, now: Timestamp, out: &mut Effects) {
        let mut shares: BTreeMap<Option<String>, Share> = BTreeMap::new();
        for (id, said) in std::mem::take(&mut self.beyond_share) {
            let Some(node) = self.nodes.get(&id) else { continue };
            let pool = node.pool();
            let key = pool.map(str::to_owned);
            let share = *shares.entry(key.clone()).or_insert_with(|| self.share_of_pool(pool));
            // What a person has taken out of use meanwhile needs no share, nor does what is well again.
            let wants = node.worst_taking_out().filter(|_| {
                node.cordon.is_none() && node.lifecycle != Lifecycle::Draining && !node.revoked
            });
            if wants.is_some_and(|level| !share.has_room(level)) {
                self.beyond_share.insert(id, said);
                continue;
            }
            shares.remove(&key);
            self.act_on_health(&id, now, out);
        }
    }

    /// An operator puts a node back into use: what it said until now is over.
    pub(super) fn clear_health(&mut self, node: &mut Node, out: &mut Effects) {
        // What it said to a process before this one is not stored: it will say it again.
        if !self.diagnosed.contains(&node.id) {
            self.resumed_unheard.insert(node.id.clone());
        }
        node.cleared.extend(node.health.conditions.iter().map(Condition::key));
        if let Some(session) = node.session.as_ref().filter(|_| !node.cleared.is_empty()) {
            out.clears.push(clear(node, session.number));
        }
    }

    fn act_on_health(&mut self, id: &NodeId, now: Timestamp, out: &mut Effects) {
        let Some(node) = self.nodes.get(id) else { return };
        let worst = node.worst_cordoning();
        let level = worst.map_or(Level::Fatal, |condition| condition.level);
        let cordons = worst.map(Condition::sentence);
        let draining = node.worst_at(Level::DrainAfterJob).map(Condition::sentence);
        let cordoned_here = node.cordon.as_ref().is_some_and(|cordon| cordon.by == HEALTH);
        let drained_here = node.drain.as_ref().is_some_and(|drain| drain.by == HEALTH);
        match &cordons {
            Some(why) if node.cordon.is_none() => self.take_out(id, level, why, now, out),
            Some(_) => {}
            None if cordoned_here => self.put_back(id, Level::Fatal, now, out),
            None => {}
        }
        match &draining {
            Some(why) if cordons.is_none() => {
                self.take_out(id, Level::DrainAfterJob, why, now, out);
            }
            Some(_) => {}
            None if drained_here => self.put_back(id, Level::DrainAfterJob, now, out),
            None => {}
        }
        let is_fatal = cordons.is_some() && level == Level::Fatal;
        if is_fatal && self.nodes.get(id).is_some_and(|node| node.cordon.is_some()) {
            self.leave(id, now, out);
        }
    }

    /// A cordon of health says what is worst now: something worse has come since, or what it was for has
    /// another reason, or is over while something else stands.
    fn renew_cordon(&mut self, id: &NodeId, now: Timestamp, out: &mut Effects) {
        let Some(node) = self.nodes.get(id) else { return };
        let Some(cordon) = node.cordon.as_ref().filter(|cordon| cordon.by == HEALTH) else {
            return;
        };
        let Some(worst) = node.worst_cordoning() else { return };
        let says_it = |condition: &Condition| {
            let is_as_bad = condition.cordons() && condition.level == worst.level;
            is_as_bad && condition.is_said_by(&cordon.why)
        };
        if node.standing().any(says_it) {
            return;
        }
        let why = worst.sentence();
        let mut node = Node::clone(node);
        node.cordon = Some(Cordon { by: HEALTH.to_owned(), why: why.clone() });
        self.change(node, ("node.cordon", "cordoned"), &why, now, out);
    }

    /// Cordons or drains a node, if health has not taken its share of the pool.
    fn take_out(
        &mut self,
        id: &NodeId,
        level: Level,
        why: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else { return };
        let is_out = node.cordon.is_some() || node.lifecycle == Lifecycle::Draining;
        if node.revoked || level == Level::DrainAfterJob && is_out {
            return;
        }
        let share = self.share_of_pool(node.pool());
        if !node.is_taken_by_health() && !share.has_room(level) {
            let said = self.beyond_share.get(id).copied();
            self.beyond_share.insert(id.clone(), said.map_or(level, |said| said.max(level)));
            if said >= Some(level) {
                return;
            }
            let (taken, limit) = (share.taken(level), share.limit());
            let text = format!(
                "stays in use: health has taken {taken} nodes of the pool and may take {limit}; an \
                 operator must decide ({why})"
            );
            if node.history.last().is_none_or(|last| last.text != text) {
                let mut node = Node::clone(node);
                note(&mut node, now, "not cordoned", HEALTH, text.clone());
                self.tell("node.not_cordoned", About::Node(&node), &text, now, out);
                self.put(Write::Node(Arc::new(node)), out);
            }
            return;
        }
        let mut node = Node::clone(node);
        let (action, word) = if level != Level::DrainAfterJob {
            node.cordon = Some(Cordon { by: HEALTH.to_owned(), why: why.to_owned() });
            ("node.cordon", "cordoned")
        } else {
            node.lifecycle = Lifecycle::Draining;
            let (by, why) = (HEALTH.to_owned(), why.to_owned());
            node.drain = Some(Drain { by, why, since: now, deadline_ms: None });
            ("node.drain", "draining")
        };
        self.change(node, (action, word), why, now, out);
    }

    /// The node says that what health cordoned or drained it for is over.
    fn put_back(&mut self, id: &NodeId, level: Level, now: Timestamp, out: &mut Effects) {
        let Some(node) = self.nodes.get(id) else { return };
        let mut node = Node::clone(node);
        if level == Level::Fatal {
            node.cordon = None;
        } else {
            node.drain = None;
            node.lifecycle = Lifecycle::Online;
        }
        self.change(node, ("node.resume", "resumed"), "what it was for is over", now, out);
    }

    fn change(
        &mut self,
        mut node: Node,
        (action, word): (&str, &str),
        why: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        note(&mut node, now, word, HEALTH, why.to_owned());
        let actor = Actor { name: HEALTH, from: None };
        self.audit(actor, action, format!("node {}", node.name), why, now, out);
        let reason = format!("by {HEALTH}: {why}");
        self.tell(&format!("node.{word}"), About::Node(&node), &reason, now, out);
        self.put(Write::Node(Arc::new(node)), out);
        self.ask_for_scheduling();
    }

    /// How much of a pool health has taken. What it took and is lost now, such as for a reboot, is still
    /// taken; other nodes that are lost are no part of what there is to take from.
    fn share_of_pool(&self, pool: Option<&str>) -> Share {
        let mut share = Share::default();
        for node in self.nodes.values().filter(|node| !node.revoked && node.pool() == pool) {
            let is_there = matches!(node.lifecycle, Lifecycle::Online | Lifecycle::Draining)
                && node.reachability != Reachability::Lost;
            let is_taken = node.is_taken_by_health();
            share.nodes += usize::from(is_there || is_taken);
            share.taken += usize::from(is_taken);
            share.for_links += usize::from(is_taken && node.is_out_for_a_link());
        }
        share
    }

    /// What runs on the parts that are fatally sick goes on elsewhere.
    fn leave(&mut self, id: &NodeId, now: Timestamp, out: &mut Effects) {
        let Some(node) = self.nodes.get(id) else { return };
        let mut ends: Vec<(JobId, String)> = Vec::new();
        for condition in node.standing().filter(|condition| condition.level == Level::Fatal) {
            let gpu = condition.gpu();
            let uses = |gang: &&GangId| {
                self.gangs.get(*gang).is_some_and(|gang| {
                    let starts_or_runs =
                        matches!(gang.state, GangState::Starting | GangState::Ready);
                    starts_or_runs && gang.uses(id, gpu.as_ref())
                })
            };
            let gangs = self.on_node.get(id).into_iter().flatten().filter(uses);
            let jobs = gangs.filter_map(|id| Some(self.gangs.get(id)?.job.clone()));
            let cause = format!("{}: {}", node.name, condition.sentence());
            ends.extend(jobs.map(|job| (job, cause.clone())));
        }
        if let Some((_, cause)) = ends.first() {
            self.doubt(id, BLAMED, cause, now, out);
        }
        for (job, cause) in ends {
            let outcome = Outcome::Evacuated { cause };
            self.end_attempt(&job, outcome, HEALTH, now, out);
        }
    }
}

fn clear(node: &Node, session: u64) -> Clear {
    Clear { node: node.id.clone(), session, conditions: node.cleared.clone() }
}

/// Told of what is only worth knowing. It is not part of the node's history.
const INFO: &str = "node.info";

/// One transition of a condition.
struct News {
    /// Of the notice.
    kind: &'static str,
    text: String,
    /// The condition stood before, and was milder or had another reason.
    worse: Option<ClearedCondition>,
}

/// What is told: conditions that are new, worse or milder, that stand for another reason, and that ended.
/// What is only worth knowing and began until `told_until_ms` was told by the process before this one,
/// which kept nothing of it.
fn news(before: &Health, after: &Health, told: &mut Told, told_until_ms: Option<u64>) -> Vec<News> {
    let same = |a: &Condition, b: &Condition| a.rule == b.rule && a.component == b.component;
    let shown = |condition: &Condition| {
        let trial = if condition.shadow { ", on trial" } else { "" };
        format!("{} [{}{trial}]: {}", condition.rule, condition.level.word(), condition.sentence())
    };
    let mut news = Vec::new();
    for condition in &after.conditions {
        let old = before.conditions.iter().find(|old| same(old, condition));
        let has_another_reason = old.is_some_and(|old| is_another_reason(old, condition, told));
        if has_another_reason || old.is_none_or(|old| old.level != condition.level) {
            let worst = old.map_or(condition.level, |old| old.level.max(condition.level));
            if worst == Level::Info && told_until_ms.is_some_and(|told| condition.since_ms <= told)
            {
                continue;
            }
            let kind = if worst == Level::Info { INFO } else { "node.condition" };
            let is_worse = old.is_some_and(|old| old.level < condition.level);
            let worse = (is_worse || has_another_reason).then(|| condition.key());
            news.push(News { kind, text: shown(condition), worse });
        }
    }
    for old in &before.conditions {
        if !after.conditions.iter().any(|condition| same(old, condition)) {
            let kind = if old.level == Level::Info { INFO } else { "node.healed" };
            let text = format!("{} on {} is over", old.rule, old.component);
            news.push(News { kind, text, worse: None });
        }
    }
    if !told.is_empty() {
        let stand: BTreeSet<ClearedCondition> =
            after.conditions.iter().map(Condition::key).collect();
        told.retain(|key, _| stand.contains(key));
    }
    news
}

/// Whether a condition that stands on has a reason that was not told of it yet.
fn is_another_reason(old: &Condition, now: &Condition, told: &mut Told) -> bool {
    if old.reason == now.reason {
        return false;
    }
    let reasons = told.entry(now.key()).or_insert_with(|| vec![old.reason.clone()]);
    let is_new = reasons.len() < MAX_REASONS && !reasons.contains(&now.reason);
    if is_new {
        reasons.push(now.reason.clone());
    }
    is_new
}
