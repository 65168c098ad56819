//! What rules on trial have found, and what came of it.
//!
//! A new health rule is only shown at first. What it finds is kept for a day, once for each part, and
//! held against what happens there meanwhile: a rule that acts finds the part broken, or an attempt
//! fails and its node is to blame; or work ends well. From the tally a person sees whether the rule may
//! act.

use std::sync::Arc;

use gangline_common::ids::NodeId;
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::gang::{Gang, GangState};
use super::health::{Condition, Level};
use super::node::Node;

/// Rules that are followed; findings of more are not counted.
pub const MAX_RULES: usize = 64;
/// Findings of a rule that wait for their day to end; the oldest is judged early.
pub const MAX_FINDINGS: usize = 256;
/// For so long, a finding is held against what happens.
pub const WINDOW_MS: u64 = 24 * 3_600_000;
/// A condition that is older by its node's clock has been found before, or nobody listened then.
const NEW_MS: u64 = WINDOW_MS / 2;
/// Longest explanation, in characters.
const MAX_WHY: usize = 200;
/// Name of the part that a condition of the node itself is about.
pub(super) const WHOLE_NODE: &str = "node";

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
    /// Work that needed the part ended well, or runs still.
    pub refuted: u64,
    /// Nothing happened there that would tell.
    pub untold: u64,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub node: NodeId,
    pub component: String,
    /// When the condition began, by the node's wall clock.
    pub since_ms: u64,
    pub found: Timestamp,
    pub proof: Proof,
}

/// What is known of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    None,
    Refuted,
    /// Final: a part that was broken once has been found rightly.
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

    /// The oldest finding is judged by what is known of it.
    fn close_oldest(&mut self) {
        if !self.findings.is_empty() {
            self.over.add(&self.findings.remove(0).proof);
        }
    }
}

impl Finding {
    fn is_about(&self, node: &NodeId, component: &str) -> bool {
        let is_part = |name: &str| name == WHOLE_NODE || name == self.component;
        self.node == *node && (is_part(component) || self.component == WHOLE_NODE)
    }

    fn is_over(&self, now: Timestamp) -> bool {
        now.ms_since(self.found) >= WINDOW_MS
    }

    /// Whether a gang uses what the finding is about.
    fn concerns(&self, gang: &Gang) -> bool {
        let gpu = self.component.strip_prefix("gpu:");
        let mut members = gang.members_on(&self.node);
        members.any(|(_, member)| gpu.is_none_or(|gpu| member.gpus.iter().any(|g| g.0 == gpu)))
    }
}

impl Core {
    pub fn rule_trials(&self) -> impl Iterator<Item = &Arc<RuleTrial>> {
        self.rule_trials.values()
    }

    /// Takes note of what rules on trial find on a node, and of what the others find to be broken there.
    pub(super) fn note_findings(&mut self, node: &Node, now: Timestamp, out: &mut Effects) {
        for condition in &node.health.conditions {
            if condition.shadow && condition.level > Level::Info {
                self.note_finding(node, condition, now, out);
            }
        }
        for condition in node.standing().filter(|c| c.level >= Level::DrainAfterJob) {
            let why = format!("{}: {}", condition.rule, condition.reason);
            self.confirm_findings(&node.id, &condition.component, &why, out);
        }
    }

    fn note_finding(
        &mut self,
        node: &Node,
        condition: &Condition,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let trial = self.rule_trials.get(&condition.rule);
        let is_room = trial.is_some() || self.rule_trials.len() < MAX_RULES;
        let is_known = trial.is_some_and(|trial| trial.has(&node.id, &condition.component));
        if !is_room || is_known || now.wall_ms.saturating_sub(condition.since_ms) >= NEW_MS {
            return;
        }
        let mut trial = trial.map(|trial| RuleTrial::clone(trial)).unwrap_or_default();
        trial.rule = condition.rule.clone();
        while trial.findings.len() >= MAX_FINDINGS {
            trial.close_oldest();
        }
        trial.findings.push(Finding {
            node: node.id.clone(),
            component: condition.component.clone(),
            since_ms: condition.since_ms,
            found: now,
            proof: Proof::None,
        });
        self.put(Write::RuleTrial(Arc::new(trial)), out);
    }

    /// A part of a node, or the node itself, has turned out to be broken.
    pub(super) fn confirm_findings(
        &mut self,
        node: &NodeId,
        component: &str,
        why: &str,
        out: &mut Effects,
    ) {
        self.judge_findings(out, |finding| {
            let is_open = !matches!(finding.proof, Proof::Confirmed { .. });
            let why = || why.chars().take(MAX_WHY).collect();
            (is_open && finding.is_about(node, component)).then(|| Proof::Confirmed { why: why() })
        });
    }

    /// The work of a gang has ended well.
    pub(super) fn refute_findings(&mut self, gang: &Gang, out: &mut Effects) {
        self.judge_findings(out, |finding| {
            (finding.proof == Proof::None && finding.concerns(gang)).then_some(Proof::Refuted)
        });
    }

    fn judge_findings(&mut self, out: &mut Effects, judge: impl Fn(&Finding) -> Option<Proof>) {
        let mut judged = Vec::new();
        for trial in self.rule_trials.values() {
            if trial.findings.iter().any(|finding| judge(finding).is_some()) {
                let mut trial = RuleTrial::clone(trial);
                for finding in &mut trial.findings {
                    if let Some(proof) = judge(finding) {
                        finding.proof = proof;
                    }
                }
                judged.push(trial);
            }
        }
        for trial in judged {
            self.put(Write::RuleTrial(Arc::new(trial)), out);
        }
    }

    /// Findings whose day is over. Work that has needed the part and runs still says that it was well.
    pub(super) fn expire_findings(&mut self, now: Timestamp, out: &mut Effects) {
        let mut over = Vec::new();
        for trial in self.rule_trials.values() {
            if !trial.findings.iter().any(|finding| finding.is_over(now)) {
                continue;
            }
            let mut trial = RuleTrial::clone(trial);
            let (ended, stay) = trial.findings.into_iter().partition(|f| f.is_over(now));
            let ended: Vec<Finding> = ended;
            trial.findings = stay;
            for finding in ended {
                let runs_on = finding.proof == Proof::None && self.runs_on(&finding, now);
                let proof = if runs_on { Proof::Refuted } else { finding.proof };
                trial.over.add(&proof);
            }
            over.push(trial);
        }
        for trial in over {
            self.put(Write::RuleTrial(Arc::new(trial)), out);
        }
    }

    fn runs_on(&self, finding: &Finding, now: Timestamp) -> bool {
        let gangs = self.on_node.get(&finding.node).into_iter().flatten();
        gangs.filter_map(|id| self.gangs.get(id)).any(|gang| {
            let is_older = now.ms_since(gang.since) >= now.ms_since(finding.found);
            gang.state == GangState::Ready && is_older && finding.concerns(gang)
        })
    }
}
