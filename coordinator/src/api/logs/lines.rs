//! Lines of a job's logs: those of one file or of many in the order of time, from a moment on, or
//! those that an expression fits.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use gangline_common::time::wall_text;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::choice::{Choice, Entry, entries};
use super::cursor::Cursor;
use super::{Wanted, blocking, refuse_removed};
use crate::api::auth::{Action, Caller};
use crate::api::error::{
    ApiError, BAD_PARAMETER, Problem, TOO_MANY_SEARCHES, cleaned, no_such_job,
};
use crate::api::jobs::find_job;
use crate::api::{App, Params, Selector, Shared};
use crate::board::JobSnapshot;
use crate::core::job::Attempt;
use crate::ingest::logs::lines::{Filter, Lines};
use crate::ingest::logs::merge::{Query, Shown, Source, page};
use crate::ingest::logs::{Logs, Stored};

/// Reads of many lines at a time, of everybody; others wait [`PATIENCE`].
pub(in crate::api) const MAX_SCANS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that one read looks at.
pub(super) const SCAN_BYTES: u64 = 64 << 20;
/// Lines of one answer, unless asked otherwise, and at most.
pub(super) const LINES: usize = 1000;
const MAX_LINES: usize = 10_000;
/// Bytes of the lines of one answer; as JSON they may be six times as many.
pub(super) const ANSWER_BYTES: usize = 1 << 20;
/// Bytes that are read at once of all files together, and of one.
const BLOCKS_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 256 << 10;
/// Lines around a hit.
pub(super) const MAX_CONTEXT: usize = 50;
/// Bytes from the end of a file in which its last lines are looked for.
const TAIL_BYTES: usize = 1 << 20;
/// How long a read may wait for new lines, in seconds, and how often it looks.
const MAX_WAIT_S: u64 = 20;
const GATHER: Duration = Duration::from_millis(250);

/// A file of a job.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct LogFileView {
    /// A rank, or `head`.
    member: String,
    /// Null when the member has gone on to another node since.
    node: Option<String>,
    /// Such as `output`, or `driver-j-7f3k2-1`.
    file: String,
    /// As it was written, however it is kept.
    bytes: u64,
    /// It is kept compressed.
    compressed: bool,
    /// Nothing more comes to it.
    complete: bool,
    /// When its first bytes were read, RFC 3339; null when nobody knows.
    first: Option<String>,
    /// When its newest bytes were read, or a little before.
    newest: Option<String>,
}

/// The files of one attempt.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct LogFileList {
    job: String,
    /// Null before the first attempt.
    attempt: Option<u32>,
    files: Vec<LogFileView>,
}

/// Query of the files.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct FilesParams {
    /// Number of an attempt; without it the newest.
    attempt: Option<u32>,
}

/// The log files of an attempt: of every member, with length and times.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs/files",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        FilesParams),
    responses((status = 200, body = LogFileList), (status = 404, response = Problem),
        (status = 410, response = Problem)))]
pub(in crate::api) async fn list_files(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<FilesParams>,
) -> Result<Json<LogFileList>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let job = snapshot.job.id.to_string();
    let Some(attempt) = attempt_of(&snapshot, params.attempt)? else {
        return Ok(Json(LogFileList { job, attempt: None, files: Vec::new() }));
    };
    let number = Some(attempt.number);
    let (board, logs) = (shared.api.board.clone(), shared.api.logs.clone());
    let (files, removed) = blocking("listing logs", move || {
        let removed = logs.removed(&attempt.gang, attempt.epoch);
        Ok((entries(&board, &logs, &snapshot, &attempt), removed))
    })
    .await?;
    refuse_removed(removed, number)?;
    let view = |entry: Entry| {
        let (first, newest) = entry.stored.times.unzip();
        LogFileView {
            member: entry.key.member.to_string(),
            node: entry.node,
            file: entry.stored.file,
            bytes: entry.stored.bytes,
            compressed: entry.stored.compressed,
            complete: entry.ended,
            first: first.map(wall_text),
            newest: newest.map(wall_text),
        }
    };
    Ok(Json(LogFileList { job, attempt: number, files: files.into_iter().map(view).collect() }))
}

/// The attempt of a number, or the newest; `None` before the first.
pub(super) fn attempt_of(
    snapshot: &JobSnapshot,
    number: Option<u32>,
) -> Result<Option<Arc<Attempt>>, ApiError> {
    let Some(number) = number else { return Ok(snapshot.attempts.last().cloned()) };
    let found = snapshot.attempts.iter().find(|attempt| attempt.number == number);
    match (found, snapshot.attempts.last()) {
        (Some(attempt), _) => Ok(Some(attempt.clone())),
        (None, last) => {
            let last = last.map_or(0, |last| last.number);
            Err(ApiError::new(BAD_PARAMETER, format!("attempt is {number}"))
                .hint(format!("the job has made {last} attempts; they count from 1")))
        }
    }
}

/// Query of lines.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct LineParams {
    /// A rank or `head`; without it, and without `node`, `file` and `all`, the Ray driver's log or
    /// rank 0's output.
    rank: Option<String>,
    /// Only files of members on this node, by its name.
    node: Option<String>,
    /// Only files of this name, or whose names begin so before a `*`.
    file: Option<String>,
    /// The files of every member that programs of the job write; with `file=*` Ray's own ones too.
    #[serde(default)]
    all: bool,
    /// Number of an attempt; without it the newest.
    attempt: Option<u32>,
    /// Nothing that was read before, in milliseconds since 1970.
    since_ms: Option<u64>,
    /// Nothing that was read later, in milliseconds since 1970.
    until_ms: Option<u64>,
    /// Only lines that this expression fits (linear-time syntax of Rust's `regex`).
    grep: Option<String>,
    /// Only lines that look like errors; with `grep`, those that are both.
    #[serde(default)]
    errors: bool,
    /// Lines before and after each hit, 0 to 50.
    context: Option<usize>,
    /// Only so many lines from the end.
    tail: Option<usize>,
    /// Lines of this answer at most, 1 to 10000; 1000 when absent.
    limit: Option<usize>,
    /// `cursor` of the answer before: with the same query, what comes after it.
    cursor: Option<String>,
    /// Lines as they are: what a carriage return overwrote is not left out.
    #[serde(default)]
    raw: bool,
    /// When there is nothing new, wait so many seconds for it, at most 20.
    wait_s: Option<u64>,
}

/// One line.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct LineView {
    /// When it was read, in milliseconds since 1970; null when nobody knows.
    time_ms: Option<u64>,
    member: String,
    node: Option<String>,
    file: String,
    /// Of its first byte in the file.
    offset: u64,
    /// Of the line after it.
    next: u64,
    /// Without its end; what is not UTF-8 is replaced.
    text: String,
    /// It fits, and is not only near a line that does.
    hit: bool,
    /// It is a piece of a line of more than 16 KiB.
    cut: bool,
}

/// Some lines.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct LinePage {
    /// Null before the first attempt.
    attempt: Option<u32>,
    /// In the order of time; those of one file in its order.
    lines: Vec<LineView>,
    /// Where the next page begins.
    cursor: String,
    /// More may be there now: ask again at once.
    more: bool,
    /// The attempt has ended and these are its last lines.
    complete: bool,
    /// Bytes that were looked at.
    scanned_bytes: u64,
    /// Files that are damaged and left out.
    unreadable: Vec<String>,
}

/// Lines of a job's logs, of many files in the order of time.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs/lines",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        LineParams),
    responses((status = 200, body = LinePage), (status = 400, response = Problem),
        (status = 404, response = Problem), (status = 410, response = Problem),
        (status = 503, response = Problem)))]
pub(in crate::api) async fn get_lines(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<LineParams>,
) -> Result<Json<LinePage>, ApiError> {
    let found = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let job = found.job.id.clone();
    let wanted = Arc::new(Asked::parse(&found, &params)?);
    let wait = Duration::from_secs(params.wait_s.unwrap_or(0).min(MAX_WAIT_S));
    let deadline = Instant::now() + wait;
    let mut changes = shared.api.logs.changes();
    let mut board = shared.api.board.changes();
    let mut before: Option<LinePage> = None;
    let mut seen: Option<(JobSnapshot, u64)> = None;
    loop {
        changes.mark_unchanged();
        board.mark_unchanged();
        // The job first, then its bytes, so that its end is the end of these bytes.
        let snapshot = shared.api.board.job(&job).ok_or_else(no_such_job)?;
        let gang = snapshot.attempts.last().map_or(&snapshot.job.gang, |attempt| &attempt.gang);
        let grown = shared.api.logs.growth(gang);
        // Others write all the time: the files are looked at when something of this job is new.
        let same =
            seen.as_ref().is_some_and(|(known, then)| *then == grown && is_same(known, &snapshot));
        let page = match before.take().filter(|_| same) {
            Some(page) => page,
            None => {
                seen = Some((snapshot.clone(), grown));
                look(&shared, snapshot, wanted.clone()).await?
            }
        };
        let idle = page.lines.is_empty() && !page.more && !page.complete;
        if !idle || Instant::now() >= deadline {
            return Ok(Json(page));
        }
        let changed = async {
            tokio::select! {
                changed = changes.changed() => changed.is_ok(),
                changed = board.changed() => changed.is_ok(),
            }
        };
        if !matches!(tokio::time::timeout_at(deadline, changed).await, Ok(true)) {
            return Ok(Json(page));
        }
        before = Some(page);
        tokio::time::sleep(GATHER).await;
    }
}

/// Whether nothing was committed about a job between two snapshots.
fn is_same(one: &JobSnapshot, other: &JobSnapshot) -> bool {
    let gangs = match (&one.gang, &other.gang) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    };
    let attempts = one.attempts.iter().zip(&other.attempts).all(|(a, b)| Arc::ptr_eq(a, b));
    let as_many = one.attempts.len() == other.attempts.len();
    gangs && attempts && as_many && Arc::ptr_eq(&one.job, &other.job)
}

/// The right to one read of many lines.
pub(in crate::api) async fn permit(shared: &Shared) -> Result<OwnedSemaphorePermit, ApiError> {
    let waiting = shared.scans.clone().acquire_owned();
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(ApiError::new(
            TOO_MANY_SEARCHES,
            format!("{MAX_SCANS} reads of logs are under way"),
        )
        .hint("ask again in a moment, or for fewer files")
        .retry_after_s(5)),
    }
}

/// A checked query.
struct Asked {
    choice: Choice,
    filter: Filter,
    context: usize,
    cursor: Option<Cursor>,
    attempt: Option<u32>,
    since_ms: Option<u64>,
    until_ms: Option<u64>,
    tail: Option<usize>,
    limit: usize,
    raw: bool,
}

impl Asked {
    fn parse(snapshot: &JobSnapshot, params: &LineParams) -> Result<Asked, ApiError> {
        let beginning = params.file.as_deref().map(|file| file.strip_suffix('*').unwrap_or(file));
        let beginning = beginning.filter(|beginning| !beginning.is_empty());
        let job = &snapshot.job;
        let wanted = Wanted::parse(job, params.rank.as_deref(), params.attempt, beginning)?;
        let bad = |what: String, hint: &str| Err(ApiError::new(BAD_PARAMETER, what).hint(hint));
        let limit = params.limit.unwrap_or(LINES);
        if !(1..=MAX_LINES).contains(&limit) {
            return bad(format!("limit is {limit}"), "use 1 to 10000");
        }
        let filter = filter(params.grep.as_deref(), params.errors)?;
        if params.tail.is_some_and(|tail| tail > MAX_LINES || !filter.is_all()) {
            return bad("tail cannot be used so".to_owned(), "at most 10000, and without a search");
        }
        let choice = Choice {
            member: wanted.member,
            node: params.node.clone(),
            file: params.file.clone(),
            all: params.all,
        };
        let cursor = params.cursor.as_deref().map(Cursor::parse).transpose()?;
        Ok(Asked {
            choice,
            filter,
            context: context(params.context)?,
            attempt: params.attempt.or(cursor.as_ref().map(|cursor| cursor.attempt)),
            cursor,
            since_ms: params.since_ms,
            until_ms: params.until_ms,
            tail: params.tail,
            limit,
            raw: params.raw,
        })
    }

    fn query(&self) -> Query<'_> {
        Query {
            filter: &self.filter,
            context: self.context,
            until_ms: self.until_ms,
            max_lines: self.limit,
            max_bytes: ANSWER_BYTES,
        }
    }
}

/// Reads the parameters `grep` and `errors`.
pub(super) fn filter(grep: Option<&str>, errors: bool) -> Result<Filter, ApiError> {
    Filter::new(grep, errors).map_err(|error| {
        let detail = format!("grep cannot be used: {}", cleaned_lines(&error.to_string()));
        ApiError::new(BAD_PARAMETER, detail)
            .hint("the syntax is that of Rust's `regex`: without look-around and back-references")
    })
}

/// The message of an expression has several lines, and quotes it.
fn cleaned_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| cleaned(line.trim())).collect();
    let last = lines.last().cloned().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(&last).to_owned()
}

/// Reads the parameter `context`.
pub(super) fn context(asked: Option<usize>) -> Result<usize, ApiError> {
    match asked.unwrap_or(0) {
        context @ 0..=MAX_CONTEXT => Ok(context),
        context => Err(ApiError::new(BAD_PARAMETER, format!("context is {context}"))
            .hint(format!("at most {MAX_CONTEXT}"))),
    }
}

/// One look at the files.
async fn look(
    shared: &Arc<Shared>,
    snapshot: JobSnapshot,
    asked: Arc<Asked>,
) -> Result<LinePage, ApiError> {
    let Some(attempt) = attempt_of(&snapshot, asked.attempt)? else {
        let complete = snapshot.job.state.is_terminal();
        let (lines, unreadable) = (Vec::new(), Vec::new());
        let cursor = String::new();
        let (more, scanned_bytes) = (false, 0);
        return Ok(LinePage {
            attempt: None,
            lines,
            cursor,
            more,
            complete,
            scanned_bytes,
            unreadable,
        });
    };
    let permit = permit(shared).await?;
    let (board, logs) = (shared.api.board.clone(), shared.api.logs.clone());
    let work = move || {
        let _permit = permit;
        let removed = logs.removed(&attempt.gang, attempt.epoch);
        if let Err(error) = refuse_removed(removed, Some(attempt.number)) {
            return Ok(Err(error));
        }
        let all = entries(&board, &logs, &snapshot, &attempt);
        let over = attempt.outcome.is_some() && all.iter().all(|entry| entry.ended);
        let chosen = asked.choice.check_node(&all);
        let chosen = chosen.and_then(|()| asked.choice.check_file(&snapshot.job, &attempt, &all));
        let chosen = match chosen.and_then(|()| asked.choice.of(&snapshot, &attempt, all)) {
            Ok(chosen) => chosen,
            Err(error) => return Ok(Err(error)),
        };
        let mut read = Read::open(&logs, &asked, attempt.number, chosen)?;
        let (shown, more) = read.next(&asked)?;
        Ok(Ok(read.page(shown, more, over && !more, &asked)))
    };
    blocking("reading lines of logs", work).await?
}

/// Files that are being read.
struct Read {
    attempt: u32,
    entries: Vec<Entry>,
    sources: Vec<Source>,
    budget: u64,
}

impl Read {
    /// Opens the chosen files where the cursor, the time or the number of last lines says.
    fn open(logs: &Logs, asked: &Asked, attempt: u32, chosen: Vec<Entry>) -> io::Result<Read> {
        let block = (BLOCKS_BYTES / chosen.len().max(1)).min(BLOCK_BYTES);
        let (mut entries, mut sources) = (Vec::new(), Vec::new());
        for entry in chosen {
            let Stored { file, member, .. } = &entry.stored;
            let Some(open) = logs.open(&entry.key, file)? else { continue };
            let length = open.length();
            let times = logs.times(&entry.key, file, length);
            let since = asked.since_ms.map_or(0, |since| times.since(since, length));
            let mut lines = Lines::new(open, 0, entry.ended, block);
            let cursor = asked.cursor.as_ref().filter(|cursor| cursor.attempt == attempt);
            let resumed = cursor.and_then(|c| c.offsets.get(&(*member, file.clone())).copied());
            match (resumed, asked.tail) {
                (Some(offset), _) => lines.resume(offset),
                (None, Some(tail)) if asked.cursor.is_none() => {
                    let last = lines.last(tail, block.clamp(64 << 10, TAIL_BYTES))?;
                    lines.seek(last.max(since))?;
                }
                (None, _) => lines.seek(since)?,
            }
            sources.push(Source::new(lines, times));
            entries.push(entry);
        }
        Ok(Read { attempt, entries, sources, budget: SCAN_BYTES })
    }

    /// The lines of this page; whether there are more.
    fn next(&mut self, asked: &Asked) -> io::Result<(Vec<Shown>, bool)> {
        let Some(tail) = asked.tail.filter(|_| asked.cursor.is_none()) else {
            return Ok(page(&mut self.sources, asked.query(), &mut self.budget));
        };
        // The last lines of all are among the last lines of each.
        let mut last = VecDeque::new();
        loop {
            let (shown, more) = page(&mut self.sources, asked.query(), &mut self.budget);
            last.extend(shown);
            while last.len() > tail {
                last.pop_front();
            }
            if !more || self.budget == 0 {
                return Ok((last.into(), more));
            }
        }
    }

    fn page(self, shown: Vec<Shown>, more: bool, complete: bool, asked: &Asked) -> LinePage {
        let mut cursor = Cursor { attempt: self.attempt, ..Cursor::default() };
        let mut unreadable = Vec::new();
        for (entry, source) in self.entries.iter().zip(&self.sources) {
            let (member, file) = (entry.key.member, entry.stored.file.clone());
            if let Some(error) = &source.broken {
                tracing::error!(key = %entry.key, file, %error, "a log cannot be read");
                unreadable.push(format!("{member}/{file}"));
            }
            cursor.offsets.insert((member, file), source.resume());
        }
        let view = |shown: Shown| {
            let entry = self.entries.get(shown.source)?;
            let text = text_of(&shown, &asked.filter, asked.raw)?;
            Some(LineView {
                time_ms: shown.ms,
                member: entry.key.member.to_string(),
                node: entry.node.clone(),
                file: entry.stored.file.clone(),
                offset: shown.line.offset,
                next: shown.line.next,
                text,
                hit: shown.line.hit,
                cut: shown.line.cut,
            })
        };
        LinePage {
            attempt: Some(self.attempt),
            lines: shown.into_iter().filter_map(view).collect(),
            cursor: cursor.text(),
            more,
            complete,
            scanned_bytes: SCAN_BYTES - self.budget,
            unreadable,
        }
    }
}

/// The text of a line for people: what a carriage return overwrote and NUL bytes are left out, unless
/// it is to be `raw`. `None` for a piece of nothing but NUL bytes.
pub(super) fn text_of(shown: &Shown, filter: &Filter, raw: bool) -> Option<String> {
    let text = String::from_utf8_lossy(&shown.line.text);
    if raw {
        return Some(text.into_owned());
    }
    // Of a line that was found, what was found in it.
    let found =
        |part: &&str| !part.trim().is_empty() && (!shown.line.hit || filter.fits(part.as_bytes()));
    let visible = |part: &&str| !part.trim().is_empty();
    let seen = text.rsplit('\r').find(found).or_else(|| text.rsplit('\r').find(visible));
    let seen = seen.unwrap_or_default();
    let seen = if seen.contains('\0') { seen.replace('\0', "") } else { seen.to_owned() };
    let noise = seen.is_empty() && text.contains('\0');
    (!noise).then_some(seen)
}
