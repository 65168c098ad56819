//! Steps and metrics of a training, as its own log lines say them.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller};
use super::error::{ApiError, BAD_PARAMETER, Problem, quoted};
use super::jobs::find_job;
use super::logs::blocking;
use super::view::ProgressView;
use super::{App, Params, Selector};
use crate::board::JobSnapshot;
use crate::training::{Training, Trainings};

/// Query of the steps.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SeriesParams {
    /// Names of metrics, separated by commas; without it all of them.
    names: Option<String>,
    /// `cursor` of the answer before: only what has changed since.
    after: Option<String>,
}

/// Steps and metrics of a job, over all its attempts: a later attempt's steps replace those of the
/// attempts before it from its first one on. Of a long training one step in `every` is kept, and the
/// newest.
#[derive(Serialize, ToSchema)]
pub(super) struct JobSeries {
    job: String,
    /// The newest attempt; null before the first.
    attempt: Option<u32>,
    progress: Option<ProgressView>,
    /// Every metric that there is.
    names: Vec<String>,
    /// There are more metrics than are kept.
    too_many_names: bool,
    every: u64,
    /// These are all steps, and replace what was there: rows that `after` knew are gone.
    reset: bool,
    /// Ascending.
    steps: Vec<u64>,
    /// The attempt of each step.
    attempts: Vec<u32>,
    /// When each step came, in milliseconds since the epoch; null when it came before the coordinator
    /// started.
    time_ms: Vec<Option<u64>>,
    /// One value for each step by name; null where there is none, or where it is no number.
    values: BTreeMap<String, Vec<Option<f64>>>,
    /// For `after`.
    cursor: String,
}

/// Steps and metrics that the job's log says: verl's console and file logger, Hugging Face's trainer,
/// `step N/M loss X`.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/series",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        SeriesParams),
    responses((status = 200, body = JobSeries), (status = 400, response = Problem),
        (status = 404, response = Problem), (status = 409, response = Problem)))]
pub(super) async fn job_series(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<SeriesParams>,
) -> Result<Json<JobSeries>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let after = params.after.as_deref().map(Cursor::parse).transpose()?;
    let trainings = shared.api.trainings.clone();
    let answer = blocking("reading the steps of a job", move || {
        let names = params.names.as_deref();
        Ok(trainings.read(&snapshot, |training| {
            JobSeries::of(&trainings, training, &snapshot, names, after)
        }))
    });
    Ok(Json(answer.await?))
}

/// Which change of which reading: process, training, version.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cursor {
    process: u64,
    training: u64,
    version: u64,
}

impl Cursor {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let mut parts = text.splitn(3, '-').map(|part| part.parse().ok());
        let mut next = || parts.next().flatten();
        let cursor = next().zip(next()).zip(next());
        let cursor =
            cursor.map(|((process, training), version)| Cursor { process, training, version });
        cursor.ok_or_else(|| {
            ApiError::new(BAD_PARAMETER, format!("after is {}", quoted(text)))
                .hint("give the `cursor` of an answer")
        })
    }
}

impl JobSeries {
    fn of(
        trainings: &Trainings,
        training: &Training,
        snapshot: &JobSnapshot,
        wanted: Option<&str>,
        after: Option<Cursor>,
    ) -> Self {
        let series = &training.series;
        let here = Cursor {
            process: trainings.started().wall_ms,
            training: training.number,
            version: series.version(),
        };
        let same =
            |after: &Cursor| after.process == here.process && after.training == here.training;
        let known = after.filter(same).map_or(0, |after| after.version);
        let (rows, anew) = series.since(known);
        let rows: Vec<_> = rows.collect();
        let is_wanted = |name: &str| {
            wanted.is_none_or(|wanted| wanted.split(',').any(|one| one.trim() == name))
        };
        let chosen = series.names().filter(|(name, _)| is_wanted(name));
        let column = |(name, place): (&str, usize)| {
            let values = rows.iter().map(|row| row.value(place).filter(|value| value.is_finite()));
            (name.to_owned(), values.collect())
        };
        let Cursor { process, training: number, version } = here;
        JobSeries {
            job: snapshot.job.id.to_string(),
            attempt: snapshot.attempts.last().map(|attempt| attempt.number),
            progress: training.progress().as_ref().map(ProgressView::of),
            names: series.names().map(|(name, _)| name.to_owned()).collect(),
            too_many_names: series.has_too_many_names(),
            every: series.every(),
            reset: anew || known == 0,
            steps: rows.iter().map(|row| row.step).collect(),
            attempts: rows.iter().map(|row| row.attempt).collect(),
            time_ms: rows.iter().map(|row| row.wall_ms).collect(),
            values: chosen.map(column).collect(),
            cursor: format!("{process}-{number}-{version}"),
        }
    }
}
