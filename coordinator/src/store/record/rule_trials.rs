//! The record of a health rule on trial.

use gangline_common::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::{TimeV1, seal};
use crate::core::health::Level;
use crate::core::trials::{Finding, Proof, RuleTrial, Tally};

#[derive(Serialize, Deserialize)]
pub(super) struct RuleTrialV1 {
    rule: String,
    confirmed: u64,
    refuted: u64,
    untold: u64,
    findings: Vec<FindingV1>,
}

#[derive(Serialize, Deserialize)]
struct FindingV1 {
    node: NodeId,
    component: String,
    level: LevelV1,
    since_ms: u64,
    found: TimeV1,
    proof: ProofV1,
}

#[derive(Serialize, Deserialize)]
enum LevelV1 {
    Info,
    Warning,
    Degraded,
    NoNewJobs,
    DrainAfterJob,
    Fatal,
}

impl From<Level> for LevelV1 {
    fn from(level: Level) -> Self {
        match level {
            Level::Info => LevelV1::Info,
            Level::Warning => LevelV1::Warning,
            Level::Degraded => LevelV1::Degraded,
            Level::NoNewJobs => LevelV1::NoNewJobs,
            Level::DrainAfterJob => LevelV1::DrainAfterJob,
            Level::Fatal => LevelV1::Fatal,
        }
    }
}

impl From<LevelV1> for Level {
    fn from(record: LevelV1) -> Self {
        match record {
            LevelV1::Info => Level::Info,
            LevelV1::Warning => Level::Warning,
            LevelV1::Degraded => Level::Degraded,
            LevelV1::NoNewJobs => Level::NoNewJobs,
            LevelV1::DrainAfterJob => Level::DrainAfterJob,
            LevelV1::Fatal => Level::Fatal,
        }
    }
}

#[derive(Serialize, Deserialize)]
enum ProofV1 {
    None,
    Refuted,
    Confirmed { why: String },
}

pub fn encode_rule_trial(trial: &RuleTrial) -> Result<Vec<u8>, String> {
    let finding = |finding: &Finding| FindingV1 {
        node: finding.node.clone(),
        component: finding.component.clone(),
        level: finding.level.into(),
        since_ms: finding.since_ms,
        found: finding.found.into(),
        proof: match &finding.proof {
            Proof::None => ProofV1::None,
            Proof::Refuted => ProofV1::Refuted,
            Proof::Confirmed { why } => ProofV1::Confirmed { why: why.clone() },
        },
    };
    seal(&RuleTrialV1 {
        rule: trial.rule.clone(),
        confirmed: trial.over.confirmed,
        refuted: trial.over.refuted,
        untold: trial.over.untold,
        findings: trial.findings.iter().map(finding).collect(),
    })
}

impl From<RuleTrialV1> for RuleTrial {
    fn from(record: RuleTrialV1) -> Self {
        let finding = |finding: FindingV1| Finding {
            node: finding.node,
            component: finding.component,
            level: finding.level.into(),
            since_ms: finding.since_ms,
            found: finding.found.into(),
            proof: match finding.proof {
                ProofV1::None => Proof::None,
                ProofV1::Refuted => Proof::Refuted,
                ProofV1::Confirmed { why } => Proof::Confirmed { why },
            },
        };
        RuleTrial {
            rule: record.rule,
            over: Tally {
                confirmed: record.confirmed,
                refuted: record.refuted,
                untold: record.untold,
            },
            findings: record.findings.into_iter().map(finding).collect(),
        }
    }
}
