//! Health rules on trial: what they have found, and what came of it.

use axum::Json;
use axum::extract::State;
use gangline_common::time::wall_text;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, Problem};
use crate::board::Board;
use crate::core::trials::{Finding, Proof, RuleTrial};

/// A health rule that is shown and never acted on.
#[derive(Serialize, ToSchema)]
pub(super) struct RuleTrialView {
    /// As in the conditions of nodes.
    rule: String,
    /// Findings so far: the sum of the next three.
    found: u64,
    /// Within a day a rule that acts found the part as bad, or an attempt failed and its node was to
    /// blame.
    confirmed: u64,
    /// Nothing did, and work that needed the part ended well, or still runs after that day.
    refuted: u64,
    /// Nothing happened there that would tell, or not yet.
    untold: u64,
    /// Confirmed ones among those that are confirmed or refuted, 0 to 1; null when there is none.
    precision: Option<f64>,
    /// Those of the last day, the oldest first; at most 256.
    findings: Vec<TrialFindingView>,
}

/// One finding of a rule on trial.
#[derive(Serialize, ToSchema)]
pub(super) struct TrialFindingView {
    node_id: String,
    /// Null when the node is no longer known.
    node: Option<String>,
    component: String,
    /// When the condition began, by the node's clock, RFC 3339.
    since: String,
    /// `untold`, `refuted` or `confirmed`.
    outcome: &'static str,
    /// What confirmed it.
    why: Option<String>,
}

/// Health rules on trial.
#[derive(Serialize, ToSchema)]
pub(super) struct RuleTrialList {
    /// By name.
    trials: Vec<RuleTrialView>,
}

fn view(trial: &RuleTrial, board: &Board) -> RuleTrialView {
    let tally = trial.tally();
    let finding = |finding: &Finding| {
        let (outcome, why) = match &finding.proof {
            Proof::None => ("untold", None),
            Proof::Refuted => ("refuted", None),
            Proof::Confirmed { why } => ("confirmed", Some(why.clone())),
        };
        TrialFindingView {
            node_id: finding.node.to_string(),
            node: board.node(finding.node.as_str()).map(|found| found.node.name.clone()),
            component: finding.component.clone(),
            since: wall_text(finding.since_ms),
            outcome,
            why,
        }
    };
    RuleTrialView {
        rule: trial.rule.clone(),
        found: tally.found(),
        confirmed: tally.confirmed,
        refuted: tally.refuted,
        untold: tally.untold,
        precision: tally.precision(),
        findings: trial.findings.iter().map(finding).collect(),
    }
}

/// What health rules on trial have found, and how often they were right: a rule is trusted once that is
/// known. Rules that have found nothing yet are not listed.
#[utoipa::path(get, path = "/api/v1/rule-trials",
    responses((status = 200, body = RuleTrialList), (status = 403, response = Problem)))]
pub(super) async fn list_rule_trials(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Json<RuleTrialList>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let board = &shared.api.board;
    let trials = board.rule_trials();
    Ok(Json(RuleTrialList { trials: trials.iter().map(|trial| view(trial, board)).collect() }))
}
