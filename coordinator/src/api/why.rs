//! Why an attempt failed, and what was done about it.

use axum::Json;
use axum::extract::State;
use gangline_common::time::wall_text;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller};
use super::error::{ApiError, BAD_PARAMETER, Problem};
use super::jobs::find_job;
use super::logs::permit;
use super::view::outcome_word;
use super::{App, Params, Selector};
use crate::board::JobSnapshot;
use crate::core::job::{Attempt, Outcome};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhyParams {
    /// Number of the attempt; the newest that failed when absent.
    attempt: Option<u32>,
}

/// Why an attempt failed.
#[derive(Serialize, ToSchema)]
pub(super) struct WhyView {
    job: String,
    name: String,
    state: &'static str,
    reason: String,
    /// Absent before the first attempt.
    attempt: Option<u32>,
    /// What the attempt came to; absent while it runs.
    outcome: Option<&'static str>,
    /// As it was said when the attempt ended.
    cause: Option<String>,
    /// RFC 3339.
    started: Option<String>,
    ended: Option<String>,
    /// Title of the category, for people.
    title: Option<String>,
    /// The answer of the rules: `category`, `sub_code`, `retry`, `action`, `confidence`, `certain`,
    /// `rank`, `node`, `gpu`, `evidence`, `advice`, `rule`, `rules_version`, `consequences`, `shadow`.
    /// Null when the attempt did not fail.
    #[schema(value_type = Option<Object>)]
    diagnosis: Option<Value>,
    /// What was done about it; empty while that is open.
    done: String,
    /// Of a training that goes on no more: how it is quiet, and who of its processes is not where the
    /// others are.
    stalled: Option<String>,
    /// Ranks of a running training that are slower than the others, one sentence each.
    stragglers: Vec<String>,
    /// Every attempt of the job with its end, the oldest first.
    attempts: Vec<AttemptEnd>,
}

/// How an attempt ended.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptEnd {
    attempt: u32,
    outcome: Option<&'static str>,
    /// The cause in one line.
    summary: String,
    done: String,
}

impl AttemptEnd {
    fn of(attempt: &Attempt) -> Self {
        let said = || attempt.outcome.as_ref().map(Outcome::sentence).unwrap_or_default();
        let verdict = attempt.verdict.as_deref();
        AttemptEnd {
            attempt: attempt.number,
            outcome: attempt.outcome.as_ref().map(outcome_word),
            summary: verdict.map_or_else(said, |verdict| verdict.summary.clone()),
            done: verdict.map(|verdict| verdict.done.clone()).unwrap_or_default(),
        }
    }
}

/// Why a job failed: the first cause over all of its ranks, what followed, and what was done.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/why",
    params(("job" = String, Path, description = "Id, unique prefix, name or `@last`"), WhyParams),
    responses((status = 200, body = WhyView), (status = 404, response = Problem)))]
pub(super) async fn why(
    State(shared): App,
    Caller(principal): Caller,
    Selector(selector): Selector,
    Params(params): Params<WhyParams>,
) -> Result<Json<WhyView>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &selector)?;
    let attempt = wanted(&snapshot, params.attempt)?;
    let (examiner, job) = (shared.api.examiner.clone(), snapshot.job.clone());
    let attempts = snapshot.attempts.iter().map(|attempt| AttemptEnd::of(attempt)).collect();
    let shown = attempt.clone();
    let _permit = permit(&shared).await?;
    let looked = tokio::task::spawn_blocking(move || {
        let attempt = attempt.as_deref().filter(|attempt| has_failed(attempt))?;
        examiner.answer(&snapshot, attempt)
    });
    let diagnosis =
        looked.await.map_err(|error| ApiError::internal("looking into an attempt", &error))?;
    let category = diagnosis.as_ref().and_then(|found| found.get("category")?.as_str());
    let title = category.map(|category| shared.api.examiner.title(category).to_owned());
    let ended = shown.as_ref().map(|attempt| AttemptEnd::of(attempt));
    let training = shared.api.trainings.shown(&job.id);
    let shown = shown.as_deref();
    Ok(Json(WhyView {
        job: job.id.to_string(),
        name: job.request.name.clone(),
        state: job.state.word(),
        reason: job.reason.clone(),
        attempt: shown.map(|attempt| attempt.number),
        outcome: ended.as_ref().and_then(|ended| ended.outcome),
        cause: shown.and_then(|attempt| attempt.outcome.as_ref()).map(Outcome::sentence),
        started: shown.map(|attempt| wall_text(attempt.started.wall_ms)),
        ended: shown.and_then(|attempt| attempt.ended).map(|ended| wall_text(ended.wall_ms)),
        title,
        diagnosis,
        done: ended.map(|ended| ended.done).unwrap_or_default(),
        stalled: training.stalled(&job).map(|stalled| stalled.said.to_string()),
        stragglers: training.slow(&job).iter().map(|slow| slow.said.clone()).collect(),
        attempts,
    }))
}

fn has_failed(attempt: &Attempt) -> bool {
    attempt.outcome.as_ref().is_some_and(Outcome::is_failure)
}

/// The attempt that is asked about: the newest that failed, else the newest.
fn wanted(
    snapshot: &JobSnapshot,
    number: Option<u32>,
) -> Result<Option<std::sync::Arc<Attempt>>, ApiError> {
    let attempts = &snapshot.attempts;
    let Some(number) = number else {
        let failed = attempts.iter().rev().find(|attempt| has_failed(attempt));
        return Ok(failed.or(attempts.last()).cloned());
    };
    match attempts.iter().find(|attempt| attempt.number == number) {
        Some(attempt) => Ok(Some(attempt.clone())),
        None => {
            let detail = format!("{} has no attempt {number}", snapshot.job.id);
            let hint = match attempts.last() {
                Some(last) => format!("it had {}", last.number),
                None => "it has not started yet".to_owned(),
            };
            Err(ApiError::new(BAD_PARAMETER, detail).hint(hint))
        }
    }
}
