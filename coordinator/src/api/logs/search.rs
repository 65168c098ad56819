//! A search over the logs of all jobs of a project: the newest job first, in each its newest attempt,
//! in each file from its beginning.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use gangline_common::ids::{JobId, MemberId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::blocking;
use super::choice::{Entry, entries};
use super::cursor::Place;
use super::lines::{ANSWER_BYTES, LINES, SCAN_BYTES, context, filter, permit, text_of};
use crate::api::auth::{Action, Caller, Object, authorize, sees};
use crate::api::error::{ApiError, BAD_PARAMETER, Problem};
use crate::api::usage::{is_project, no_such_project};
use crate::api::{App, Params};
use crate::board::{Board, JobSnapshot};
use crate::core::credential::Role;
use crate::core::job::{Attempt, Job};
use crate::ingest::logs::Logs;
use crate::ingest::logs::lines::{Filter, Lines};
use crate::ingest::logs::merge::{Query, Source, page};

/// Attempts that one answer looks at, and files that it opens: with small files the time goes there.
const MAX_ATTEMPTS: usize = 500;
const MAX_OPENED: usize = 2000;
/// Bytes that are read at once.
const BLOCK_BYTES: usize = 256 << 10;

/// Query of a search.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct SearchParams {
    /// Without it the caller's own.
    project: Option<String>,
    /// Only lines that this expression fits (linear-time syntax of Rust's `regex`).
    grep: Option<String>,
    /// Only lines that look like errors; with `grep`, those that are both.
    #[serde(default)]
    errors: bool,
    /// Only jobs whose name or id begins so.
    job: Option<String>,
    /// Only jobs of this user.
    user: Option<String>,
    /// Nothing that was read before, in milliseconds since 1970.
    since_ms: Option<u64>,
    /// Lines before and after each hit, 0 to 50.
    context: Option<usize>,
    /// Lines of this answer at most, 1 to 1000; 1000 when absent.
    limit: Option<usize>,
    /// `cursor` of the answer before.
    cursor: Option<String>,
}

/// A line that was found.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct FoundView {
    job: String,
    /// Name of the job.
    name: String,
    attempt: u32,
    member: String,
    file: String,
    /// When it was read, in milliseconds since 1970; null when nobody knows.
    time_ms: Option<u64>,
    /// Of its first byte in the file.
    offset: u64,
    /// Of the line after it.
    next: u64,
    text: String,
    /// It fits, and is not only near a line that does.
    hit: bool,
    /// It is a piece of a line of more than 16 KiB.
    cut: bool,
}

/// Some lines that were found.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct FoundPage {
    lines: Vec<FoundView>,
    /// Where the search goes on; null when it is over. A page may be empty before that.
    cursor: Option<String>,
    /// Bytes that were looked at.
    scanned_bytes: u64,
    /// Jobs of which logs were removed, or could not be read, in this page.
    incomplete: Vec<String>,
}

/// Lines of the logs of all jobs of a project that fit an expression, or look like errors.
#[utoipa::path(get, path = "/api/v1/logs/search", params(SearchParams),
    responses((status = 200, body = FoundPage), (status = 400, response = Problem),
        (status = 403, response = Problem), (status = 503, response = Problem)))]
pub(in crate::api) async fn search_logs(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<SearchParams>,
) -> Result<Json<FoundPage>, ApiError> {
    let project = params.project.clone().unwrap_or_else(|| principal.project.clone());
    // Operators read every job, and so every project's.
    let object =
        if principal.role >= Role::Operator { Object::Any } else { Object::Project(&project) };
    authorize(&principal, Action::ReadJobs, &object)?;
    if !is_project(&shared.api.board, &project) {
        return Err(no_such_project(&project));
    }
    if params.grep.is_none() && !params.errors {
        return Err(ApiError::new(BAD_PARAMETER, "nothing to search for")
            .hint("give `grep`, or `errors=true`"));
    }
    let limit = params.limit.unwrap_or(LINES);
    if !(1..=LINES).contains(&limit) {
        return Err(ApiError::new(BAD_PARAMETER, format!("limit is {limit}")).hint("use 1 to 1000"));
    }
    let search = Search {
        board: shared.api.board.clone(),
        logs: shared.api.logs.clone(),
        filter: filter(params.grep.as_deref(), params.errors)?,
        context: context(params.context)?,
        since_ms: params.since_ms,
        limit,
        from: params.cursor.as_deref().map(Place::parse).transpose()?,
        budget: SCAN_BYTES,
        attempts: 0,
        opened: 0,
        lines: Vec::new(),
        bytes: 0,
        incomplete: Vec::new(),
    };
    let fits = |job: &Job| {
        let named = params.job.as_deref().is_none_or(|beginning| {
            job.id.as_str().starts_with(beginning) || job.request.name.starts_with(beginning)
        });
        let of_user = params.user.as_ref().is_none_or(|user| job.user == *user);
        job.project == project && named && of_user && sees(&principal, job)
    };
    let jobs: Vec<Arc<Job>> = shared.api.board.jobs().into_iter().filter(|job| fits(job)).collect();
    let permit = permit(&shared).await?;
    let page = blocking("searching logs", move || {
        let _permit = permit;
        search.run(&jobs)
    });
    Ok(Json(page.await?))
}

/// A search for one page.
struct Search {
    board: Board,
    logs: Logs,
    filter: Filter,
    context: usize,
    since_ms: Option<u64>,
    limit: usize,
    /// Where the page before ended.
    from: Option<Place>,
    budget: u64,
    attempts: usize,
    opened: usize,
    lines: Vec<FoundView>,
    bytes: usize,
    incomplete: Vec<String>,
}

impl Search {
    /// Goes through the jobs, which are in the order of the search, until the page is full.
    fn run(mut self, jobs: &[Arc<Job>]) -> io::Result<FoundPage> {
        let first = self.from.as_ref().map_or(u64::MAX, |from| from.job);
        for job in jobs.iter().filter(|job| job.sequence <= first) {
            let Some(snapshot) = self.board.job(&job.id) else { continue };
            for attempt in snapshot.attempts.iter().rev() {
                let from = self.from.clone().filter(|from| from.job == job.sequence);
                if from.as_ref().is_some_and(|from| attempt.number > from.attempt) {
                    continue;
                }
                let begun = from.filter(|from| from.attempt == attempt.number);
                if let Some(end) = self.attempt(&snapshot, attempt, begun.and_then(|b| b.file))? {
                    return Ok(self.page(Some(end)));
                }
            }
        }
        Ok(self.page(None))
    }

    fn page(self, end: Option<Place>) -> FoundPage {
        FoundPage {
            lines: self.lines,
            cursor: end.map(|place| place.text()),
            scanned_bytes: SCAN_BYTES - self.budget,
            incomplete: self.incomplete,
        }
    }

    /// Searches one attempt; where to go on when the page is full.
    fn attempt(
        &mut self,
        snapshot: &JobSnapshot,
        attempt: &Attempt,
        from: Option<(MemberId, String, u64)>,
    ) -> io::Result<Option<Place>> {
        let job = &snapshot.job;
        let ended = attempt.ended.filter(|_| attempt.outcome.is_some());
        if self.since_ms.zip(ended).is_some_and(|(since, ended)| ended.wall_ms < since) {
            return Ok(None);
        }
        let place = |file| Place { job: job.sequence, attempt: attempt.number, file };
        self.attempts += 1;
        if self.attempts > MAX_ATTEMPTS {
            return Ok(Some(place(from)));
        }
        if self.logs.removed(&attempt.gang, attempt.epoch).is_some() {
            self.note(&job.id);
            return Ok(None);
        }
        for entry in entries(&self.board, &self.logs, snapshot, attempt) {
            let (member, file) = (entry.key.member, entry.stored.file.clone());
            let offset = match &from {
                Some((m, f, _)) if (member, &file) < (*m, f) => continue,
                Some((m, f, offset)) if (member, &file) == (*m, f) => Some(*offset),
                _ => None,
            };
            self.opened += 1;
            if self.opened > MAX_OPENED {
                return Ok(Some(place(Some((member, file, offset.unwrap_or(0))))));
            }
            if let Some(next) = self.file(job, attempt.number, &entry, offset)? {
                return Ok(Some(place(Some((member, file, next)))));
            }
        }
        Ok(None)
    }

    /// Searches one file; the offset to go on from when the page is full.
    fn file(
        &mut self,
        job: &Job,
        attempt: u32,
        entry: &Entry,
        offset: Option<u64>,
    ) -> io::Result<Option<u64>> {
        let (key, file) = (&entry.key, &entry.stored.file);
        let open = match self.logs.open(key, file) {
            Ok(open) => open,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::error!(%key, file, %error, "a log cannot be searched");
                self.note(&job.id);
                None
            }
            Err(error) => return Err(error),
        };
        let Some(open) = open else { return Ok(None) };
        let length = open.length();
        let times = self.logs.times(key, file, length);
        let since = self.since_ms.map_or(0, |since| times.since(since, length));
        let mut lines = Lines::new(open, 0, entry.ended, BLOCK_BYTES);
        match offset {
            Some(offset) => lines.resume(offset),
            None => lines.seek(since)?,
        }
        let mut sources = [Source::new(lines, times)];
        let query = Query {
            filter: &self.filter,
            context: self.context,
            until_ms: None,
            max_lines: self.limit.saturating_sub(self.lines.len()).max(1),
            max_bytes: ANSWER_BYTES.saturating_sub(self.bytes).max(1),
        };
        let (shown, more) = page(&mut sources, query, &mut self.budget);
        for shown in shown {
            let Some(text) = text_of(&shown, &self.filter, false) else { continue };
            self.bytes += text.len() + 1;
            self.lines.push(FoundView {
                job: job.id.to_string(),
                name: job.request.name.clone(),
                attempt,
                member: key.member.to_string(),
                file: file.clone(),
                time_ms: shown.ms,
                offset: shown.line.offset,
                next: shown.line.next,
                text,
                hit: shown.line.hit,
                cut: shown.line.cut,
            });
        }
        let [source] = &sources;
        if let Some(error) = &source.broken {
            tracing::error!(%key, file, %error, "a log cannot be searched");
            self.note(&job.id);
        }
        let full = self.lines.len() >= self.limit || self.bytes >= ANSWER_BYTES || self.budget == 0;
        Ok((more || full).then(|| source.resume()))
    }

    fn note(&mut self, job: &JobId) {
        let id = job.to_string();
        if self.incomplete.last() != Some(&id) {
            self.incomplete.push(id);
        }
    }
}
