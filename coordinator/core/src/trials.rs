//! What rules on trial have found, and what came of it.
//!
//! A new health rule is only shown at first. What it finds is kept for a day, once for each part, and
//! held against what happens there meanwhile: a rule that acts finds the same part no better, or an
//! attempt fails and its node is to blame; or work that needs the part goes well. From the tally a person
//! sees whether the rule may act.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::ids::NodeId;
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::gang::{Gang, GangState};
use super::health::{Condition, Level, WHOLE_NODE, gpu_of};
use super::node::Node;

/// Rules that are followed. Another one takes the place of one that has found nothing for a day.
pub const MAX_RULES: usize = 64;
/// Parts of a day that are followed for a rule. Of more it finds nothing that counts until the day of the
/// oldest is over: they were found together, and would tell the same.
pub const MAX_FINDINGS: usize = 256;
/// Longest name of a rule and of a part, in bytes; others are not followed.
const MAX_RULE: usize = 40;
const MAX_PART: usize = 256;
/// For so long, a finding is held against what happens.
pub const WINDOW_MS: u64 = 24 * 3_600_000;
/// A condition that is older by its node's clock has been found before, or nobody listened then.
const NEW_MS: u64 = WINDOW_MS / 2;
/// Work that went well for less than this says nothing.
const LEAST_WORK_MS: u64 = 600_000;
/// Longest explanation, in characters.
const MAX_WHY: usize = 200;

/// A rule on trial.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleTrial {
    pub rule: String,
    /// What became of findings whose day is over.
    pub over: Tally,
    /// Those of the last day, the oldest first.
    pub findings: Vec<Finding>,
}

/// How many findings came to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub confirmed: u64,
    /// Nothing confirmed it, and work that needed the part went well.
    pub refuted: u64,
    /// Nothing happened there that would tell.
    pub untold: u64,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub node: NodeId,
    pub component: String,
    pub level: Level,
    /// When the condition began, by the node's wall clock.
    pub since_ms: u64,
    pub found: Timestamp,
    pub proof: Proof,
}

/// What is known of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    None,
    /// So far: a part may work and be found out later.
    Refuted,
    /// A part that was broken once has been found rightly.
    Confirmed {
        why: String,
    },
}

impl Tally {
    fn add(&mut self, proof: &Proof) {
        let count = match proof {
            Proof::None => &mut self.untold,
            Proof::Refuted => &mut self.refuted,
            Proof::Confirmed { .. } => &mut self.confirmed,
        };
        *count = count.saturating_add(1);
    }

    pub fn found(&self) -> u64 {
        self.confirmed.saturating_add(self.refuted).saturating_add(self.untold)
    }

    /// Of the findings that something can be said of, the part that was confirmed.
    pub fn precision(&self) -> Option<f64> {
        let told = self.confirmed.saturating_add(self.refuted);
        (told > 0).then(|| self.confirmed as f64 / told as f64)
    }
}

impl RuleTrial {
    /// With those of the last day, as far as they are known.
    pub fn tally(&self) -> Tally {
        let mut tally = self.over;
        self.findings.iter().for_each(|finding| tally.add(&finding.proof));
        tally
    }

    fn has(&self, node: &NodeId, component: &str) -> bool {
        self.findings.iter().any(|finding| finding.node == *node && finding.component == component)
    }
}

impl Finding {
    fn is_over(&self, now: Timestamp) -> bool {
        now.ms_since(self.found) >= WINDOW_MS
    }

    /// Whether a gang needs what the finding is about.
    fn concerns(&self, gang: &Gang) -> bool {
        // Whoever is alone speaks to nobody.
        let needs_no_port = self.component.starts_with("port:") && gang.nodes().len() < 2;
        !needs_no_port && gang.uses(&self.node, gpu_of(&self.component).as_ref())
    }
}

/// What a rule calls itself, if that may be a label.
fn is_plain(rule: &str) -> bool {
    rule.len() <= MAX_RULE && rule.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

impl Core {
    pub fn rule_trials(&self) -> impl Iterator<Item = &Arc<RuleTrial>> {
        self.rule_trials.values()
    }

    /// Takes note of what rules on trial find on a node, and of what the others find to be broken there.
    pub(super) fn note_findings(&mut self, node: &Node, now: Timestamp, out: &mut Effects) {
        let mut news: BTreeMap<String, RuleTrial> = BTreeMap::new();
        for condition in node.health.conditions.iter().filter(|condition| condition.shadow) {
            let Condition { rule, component, level, since_ms, .. } = condition;
            let is_new = now.wall_ms.saturating_sub(*since_ms) < NEW_MS;
            if *level == Level::Info || !is_new || !is_plain(rule) || component.len() > MAX_PART {
                continue;
            }
            let known = news.get(rule).or_else(|| Some(&**self.rule_trials.get(rule)?));
            let is_full = |trial: &RuleTrial| trial.findings.len() >= MAX_FINDINGS;
            if known.is_some_and(|trial| is_full(trial) || trial.has(&node.id, component)) {
                continue;
            }
            let mut trial = match known.cloned() {
                Some(trial) => trial,
                None if self.makes_room_for_a_rule(&news, out) => {
                    RuleTrial { rule: rule.clone(), ..RuleTrial::default() }
                }
                None => continue,
            };
            trial.findings.push(Finding {
                node: node.id.clone(),
                component: component.clone(),
                level: *level,
                since_ms: *since_ms,
                found: now,
                proof: Proof::None,
            });
            news.insert(rule.clone(), trial);
        }
        for trial in news.into_values() {
            self.put(Write::RuleTrial(Arc::new(trial)), out);
        }
        for condition in node.standing().filter(|condition| condition.level > Level::Info) {
            let why = format!("{}: {}", condition.rule, condition.reason);
            let about = &condition.component;
            self.confirm_findings(&node.id, out, &why, |finding| {
                let is_as_bad = condition.level >= finding.level.min(Level::DrainAfterJob);
                is_as_bad && (about == WHOLE_NODE || *about == finding.component)
            });
        }
    }

    /// Whether another rule can be followed, beside those of which there is news.
    fn makes_room_for_a_rule(
        &mut self,
        news: &BTreeMap<String, RuleTrial>,
        out: &mut Effects,
    ) -> bool {
        let new = news.keys().filter(|rule| !self.rule_trials.contains_key(*rule)).count();
        if self.rule_trials.len() + new < MAX_RULES {
            return true;
        }
        let is_idle =
            |trial: &&Arc<RuleTrial>| trial.findings.is_empty() && !news.contains_key(&trial.rule);
        let idle = self.rule_trials.values().find(is_idle);
        let Some(rule) = idle.map(|trial| trial.rule.clone()) else { return false };
        self.put(Write::ForgetRuleTrial { rule }, out);
        true
    }

    /// An attempt has failed, and this node is to blame.
    pub(super) fn confirm_by_attempt(&mut self, node: &NodeId, why: &str, out: &mut Effects) {
        self.confirm_findings(node, out, why, |_| true);
    }

    /// The findings on a node of which this is true were right.
    fn confirm_findings(
        &mut self,
        node: &NodeId,
        out: &mut Effects,
        why: &str,
        is_right: impl Fn(&Finding) -> bool,
    ) {
        self.judge_findings(out, |finding| {
            let is_open = !matches!(finding.proof, Proof::Confirmed { .. });
            let why = || why.chars().take(MAX_WHY).collect();
            (finding.node == *node && is_open && is_right(finding))
                .then(|| Proof::Confirmed { why: why() })
        });
    }

    /// The work of a gang has ended well.
    pub(super) fn refute_findings(&mut self, gang: &Gang, now: Timestamp, out: &mut Effects) {
        let attempt = self.attempts.get(&(gang.job.clone(), gang.attempt));
        let Some(started) = attempt.map(|attempt| attempt.started) else { return };
        let worked_ms = now.ms_since(started);
        self.judge_findings(out, |finding| {
            let worked_ms = worked_ms.min(now.ms_since(finding.found));
            let is_open = finding.proof == Proof::None && worked_ms >= LEAST_WORK_MS;
            (is_open && finding.concerns(gang)).then_some(Proof::Refuted)
        });
    }

    fn judge_findings(&mut self, out: &mut Effects, judge: impl Fn(&Finding) -> Option<Proof>) {
        self.revise_trials(out, |_, trial| {
            trial.findings.iter().any(|finding| judge(finding).is_some()).then(|| {
                let mut trial = trial.clone();
                for finding in &mut trial.findings {
                    if let Some(proof) = judge(finding) {
                        finding.proof = proof;
                    }
                }
                trial
            })
        });
    }

    /// Findings whose day is over. Work that has needed the part and runs still says that it was well.
    pub(super) fn expire_findings(&mut self, now: Timestamp, out: &mut Effects) {
        self.revise_trials(out, |core, trial| {
            trial.findings.iter().any(|finding| finding.is_over(now)).then(|| {
                let mut trial = trial.clone();
                for finding in trial.findings.extract_if(.., |finding| finding.is_over(now)) {
                    let runs_on = finding.proof == Proof::None && core.runs_on(&finding);
                    trial.over.add(if runs_on { &Proof::Refuted } else { &finding.proof });
                }
                trial
            })
        });
    }

    /// Puts what becomes of each trial, where that is another one.
    fn revise_trials(
        &mut self,
        out: &mut Effects,
        revise: impl Fn(&Core, &RuleTrial) -> Option<RuleTrial>,
    ) {
        let revised = self.rule_trials.values().filter_map(|trial| revise(self, trial));
        for trial in revised.collect::<Vec<_>>() {
            self.put(Write::RuleTrial(Arc::new(trial)), out);
        }
    }

    fn runs_on(&self, finding: &Finding) -> bool {
        let gangs = self.on_node.get(&finding.node).into_iter().flatten();
        gangs.filter_map(|id| self.gangs.get(id)).any(|gang| {
            // By the wall clock: the machine may have been started again between the two.
            let is_older = gang.since.wall_ms <= finding.found.wall_ms;
            gang.state == GangState::Ready && is_older && finding.concerns(gang)
        })
    }
}
