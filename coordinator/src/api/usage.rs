//! What was used of the GPUs: the books, and what the allocations that there are have cost so far.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use gangline_common::time::{Timestamp, wall_text};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_PARAMETER, Problem, quoted};
use super::jobs::{ask, refused, unexpected};
use super::{App, Params};
use crate::board::Board;
use crate::core::accounts::{Classes, Spent};
use crate::core::credential::Role;
use crate::core::effect::Answer;
use crate::core::event::Event;
use crate::core::explain::Question;
use crate::core::vacancy::Vacancy;
use crate::store::books::BooksError;

/// How far back a look goes, unless asked otherwise, and at most: seconds.
const WINDOW_S: u64 = 7 * 24 * 3600;
const MAX_WINDOW_S: u64 = 366 * 24 * 3600;
/// Rows of one answer.
const MAX_ROWS: usize = 10_000;

/// Query of the usage.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageParams {
    /// What a row is: `project` when absent.
    by: Option<By>,
    /// How far back, in seconds; 604800 when absent, at most 31622400.
    since_s: Option<u64>,
    /// Only this project's.
    project: Option<String>,
}

/// What a row is.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum By {
    User,
    Project,
    Pool,
    Job,
}

impl By {
    fn key(self, spent: &Spent) -> String {
        match self {
            By::User => spent.user.clone(),
            By::Project => spent.project.clone(),
            By::Pool => spent.pool.clone(),
            By::Job => spent.job.to_string(),
        }
    }
}

/// What was used. GPU-seconds; the classes of a row are all of what was allocated.
#[derive(Serialize, ToSchema)]
pub(super) struct UsageView {
    by: By,
    /// RFC 3339.
    since: String,
    /// RFC 3339.
    until: String,
    /// RFC 3339: the books are full, and what ended before is in them no more. Null where all of the
    /// window is.
    complete_since: Option<String>,
    /// The largest first.
    rows: Vec<UsageRow>,
    total: UsageRow,
    /// Rows that are left out: there are more than 10000.
    left_out: usize,
}

/// GPU-seconds.
#[derive(Serialize, ToSchema)]
pub(super) struct UsageRow {
    /// A user, project, pool or job; `total` for all together.
    key: String,
    jobs: usize,
    attempts: usize,
    /// From the allocation of GPUs until there was evidence that nothing was left on them.
    allocated_gpu_s: f64,
    /// A GPU was busy, and its work was kept.
    productive_gpu_s: f64,
    /// A GPU was not busy while its job ran.
    idle_gpu_s: f64,
    /// The job ran, and no reading says whether the GPU was busy.
    unmeasured_gpu_s: f64,
    /// From the allocation until the job ran.
    startup_gpu_s: f64,
    /// The training did not go on.
    hung_gpu_s: f64,
    /// Run after the newest training checkpoint of an attempt that ended without success.
    lost_gpu_s: f64,
    /// From the end of the attempt until nothing of it was left.
    stopping_gpu_s: f64,
    /// Not of what was allocated: held by nobody, and closed to jobs. Null where it cannot be told, as
    /// for a user.
    quarantined_gpu_s: Option<f64>,
    /// Not of what was allocated: free on nodes with too few of them for whoever waited.
    fragmented_gpu_s: Option<f64>,
    /// Not of what was allocated: asked for by jobs that could have started.
    queued_gpu_s: Option<f64>,
}

#[derive(Default)]
struct Sum {
    jobs: BTreeSet<String>,
    attempts: usize,
    classes: Classes,
    vacant: Vacant,
}

/// GPU-milliseconds that are of no allocation.
#[derive(Clone, Copy, Default)]
struct Vacant {
    quarantined_ms: u64,
    fragmented_ms: u64,
    queued_ms: u64,
}

impl Vacant {
    fn add(&mut self, more: Vacant) {
        self.quarantined_ms = self.quarantined_ms.saturating_add(more.quarantined_ms);
        self.fragmented_ms = self.fragmented_ms.saturating_add(more.fragmented_ms);
        self.queued_ms = self.queued_ms.saturating_add(more.queued_ms);
    }

    fn is_nothing(self) -> bool {
        self.quarantined_ms == 0 && self.fragmented_ms == 0 && self.queued_ms == 0
    }
}

impl Sum {
    fn add(&mut self, spent: &Spent, part: &Classes) {
        self.jobs.insert(spent.job.to_string());
        self.attempts += 1;
        self.classes.add(part);
    }

    fn row(&self, key: String, by: By) -> UsageRow {
        let of_pools = by == By::Pool;
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let classes = self.classes;
        UsageRow {
            key,
            jobs: self.jobs.len(),
            attempts: self.attempts,
            allocated_gpu_s: seconds(classes.total_ms()),
            productive_gpu_s: seconds(classes.productive_ms),
            idle_gpu_s: seconds(classes.idle_ms),
            unmeasured_gpu_s: seconds(classes.unmeasured_ms),
            startup_gpu_s: seconds(classes.startup_ms),
            hung_gpu_s: seconds(classes.hung_ms),
            lost_gpu_s: seconds(classes.lost_ms),
            stopping_gpu_s: seconds(classes.stopping_ms),
            quarantined_gpu_s: of_pools.then(|| seconds(self.vacant.quarantined_ms)),
            fragmented_gpu_s: of_pools.then(|| seconds(self.vacant.fragmented_ms)),
            queued_gpu_s: (of_pools || by == By::Project).then(|| seconds(self.vacant.queued_ms)),
        }
    }
}

/// Whether a token or a job is of this project, or something was decided about it.
pub(super) fn is_project(board: &Board, name: &str) -> bool {
    board.projects().contains_key(name) || board.jobs().iter().any(|job| job.project == name)
}

/// The answer to somebody who may see every project.
pub(super) fn no_such_project(name: &str) -> ApiError {
    ApiError::new(BAD_PARAMETER, format!("there is no project {}", quoted(name)))
        .hint("`gangline project ls` lists them")
}

/// What the caller's project has used; every project for operators.
#[utoipa::path(get, path = "/api/v1/usage", params(UsageParams),
    responses((status = 200, body = UsageView), (status = 403, response = Problem)))]
pub(super) async fn get_usage(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<UsageParams>,
) -> Result<Json<UsageView>, ApiError> {
    let named = params.project.clone();
    // Operators see every project's.
    let object = match &named {
        Some(_) if principal.role >= Role::Operator => Object::Any,
        Some(project) => Object::Project(project),
        None => Object::Project(&principal.project),
    };
    authorize(&principal, Action::ReadProjects, &object)?;
    let window_s = params.since_s.unwrap_or(WINDOW_S);
    if !(1..=MAX_WINDOW_S).contains(&window_s) {
        return Err(ApiError::new(BAD_PARAMETER, format!("since_s is {window_s}"))
            .hint(format!("use 1 to {MAX_WINDOW_S}")));
    }
    let (all, project) = (principal.role >= Role::Operator, principal.project.clone());
    let (own, wanted) = (project.clone(), params.project.clone());
    let may_see = move |project: &str| {
        (all || *project == *own) && wanted.as_ref().is_none_or(|wanted| wanted == project)
    };
    // Of GPUs that nobody has, a project has no part.
    let whole_fleet = all && params.project.is_none();
    let mine = move |spent: &Spent| {
        (all || spent.project == project)
            && params.project.as_ref().is_none_or(|wanted| *wanted == spent.project)
    };
    let now = Timestamp::now();
    let since_ms = now.wall_ms.saturating_sub(window_s * 1000);
    // What ends between the two looks is in both.
    let question = Question::Spent;
    let (open, vacant) = match ask(&shared, |request| Event::Ask { request, question }).await? {
        Ok(Answer::Spent(open, vacant)) => (open, vacant),
        Ok(other) => return Err(unexpected(&other)),
        Err(rejected) => return Err(refused(&shared, &principal, rejected)),
    };
    let by = params.by.unwrap_or(By::Project);
    let (books, vacancies) = (shared.api.books.clone(), shared.api.vacancies.clone());
    let summed = tokio::task::spawn_blocking(move || {
        let (mut sums, mut total): (BTreeMap<String, Sum>, Sum) = Default::default();
        let mut add = |spent: &Spent| {
            let part = spent.after(since_ms);
            if part.total_ms() > 0 && mine(spent) {
                sums.entry(by.key(spent)).or_default().add(spent, &part);
                total.add(spent, &part);
            }
        };
        let key = |spent: &Spent| (spent.gang.clone(), spent.epoch);
        each_once(open, key, |show| books.since(since_ms, show), &mut add)?;
        let mut add = |line: &Vacancy| {
            let part = |ms: u64| line.part_after(ms, since_ms);
            let mut of_pool = Vacant::default();
            for (project, ms) in line.queued_ms.iter().filter(|(project, _)| may_see(project)) {
                of_pool.queued_ms += part(*ms);
                if by == By::Project {
                    sums.entry(project.clone()).or_default().vacant.queued_ms += part(*ms);
                }
            }
            if whole_fleet {
                of_pool.quarantined_ms = part(line.quarantined_ms);
                of_pool.fragmented_ms = part(line.fragmented_ms);
            }
            if by == By::Pool && !of_pool.is_nothing() {
                // What waits for any pool is of none.
                let pool = if line.pool.is_empty() { "(any)" } else { &line.pool };
                sums.entry(pool.to_owned()).or_default().vacant.add(of_pool);
            }
            total.vacant.add(of_pool);
        };
        let key = |line: &Vacancy| (line.pool.clone(), line.from_wall_ms);
        each_once(vacant, key, |show| vacancies.since(since_ms, show), &mut add)?;
        let begins = [books.full_since()?, vacancies.full_since()?].into_iter().flatten().max();
        Ok((sums, total, begins.filter(|begins_ms| *begins_ms > since_ms)))
    });
    let (sums, total, begins_ms) = summed
        .await
        .map_err(|error| ApiError::internal("reading the books", &error))?
        .map_err(|error: BooksError| ApiError::internal("reading the books", &error))?;
    // The books know projects that are gone.
    let is_unknown = |project: &&String| sums.is_empty() && !is_project(&shared.api.board, project);
    if let Some(project) = named.as_ref().filter(is_unknown) {
        return Err(no_such_project(project));
    }
    let mut rows: Vec<UsageRow> = sums.into_iter().map(|(key, sum)| sum.row(key, by)).collect();
    rows.sort_by(|a, b| b.allocated_gpu_s.total_cmp(&a.allocated_gpu_s));
    let left_out = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    Ok(Json(UsageView {
        by,
        since: wall_text(since_ms),
        until: wall_text(now.wall_ms),
        complete_since: begins_ms.map(wall_text),
        rows,
        total: total.row("total".to_owned(), if whole_fleet { By::Pool } else { by }),
        left_out,
    }))
}

/// Shows every line that is written down, and of those that were open before it was read, those that
/// are not: the line that is written is the last word.
fn each_once<T, K: Ord>(
    open: Vec<T>,
    key: impl Fn(&T) -> K,
    written: impl FnOnce(&mut dyn FnMut(T)) -> Result<(), BooksError>,
    show: &mut impl FnMut(&T),
) -> Result<(), BooksError> {
    let mut open: BTreeMap<K, T> = open.into_iter().map(|line| (key(&line), line)).collect();
    written(&mut |line| {
        open.remove(&key(&line));
        show(&line);
    })?;
    open.values().for_each(show);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was open when the driver was asked, and written down before the disk was read.
    #[test]
    fn what_is_written_down_meanwhile_counts_once() {
        let line = |pool: &str, from_wall_ms: u64, queued_ms: u64| Vacancy {
            pool: pool.to_owned(),
            from_wall_ms,
            until_wall_ms: from_wall_ms + queued_ms,
            quarantined_ms: queued_ms,
            fragmented_ms: 0,
            queued_ms: BTreeMap::new(),
        };
        let open = vec![line("a", 100, 40), line("b", 100, 7)];
        let written = vec![line("a", 0, 100), line("a", 100, 50)];
        let mut shown = Vec::new();
        let key = |line: &Vacancy| (line.pool.clone(), line.from_wall_ms);
        let read = |show: &mut dyn FnMut(Vacancy)| {
            written.into_iter().for_each(show);
            Ok(())
        };
        each_once(open, key, read, &mut |line| shown.push(line.quarantined_ms)).unwrap();
        assert_eq!(shown, [100, 50, 7]);
    }
}
