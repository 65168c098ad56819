//! Logs: which file a caller means, whether more will come to it, and reading a piece of it. Lists of
//! files, lines and searches are in the modules below.

mod choice;
mod cursor;
mod lines;
mod search;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::time::wall_text;
use gangline_common::wire::scene::is_scene;
use serde::Deserialize;
use utoipa::IntoParams;

use lines::attempt_of;
pub(super) use lines::permit;

use super::auth::{Action, Caller};
use super::error::{ApiError, BAD_PARAMETER, LOGS_REMOVED, Problem, quoted};
use super::jobs::find_job;
use super::view::outcome_word;
use super::{App, Params, Selector};
use crate::board::{Board, JobSnapshot};
use crate::core::gang::{Gang, GangState, Phase};
use crate::core::job::{Attempt, DRIVER_MEMBER, Job, Launcher, Outcome};
use crate::core::node::Reachability;
use crate::ingest::logs::{Logs, Removed};

pub(super) use lines::{__path_get_lines, __path_list_files, MAX_SCANS, get_lines, list_files};
pub(super) use search::{__path_search_logs, search_logs};

/// Bytes of one answer, unless asked otherwise, and at most.
const READ_BYTES: usize = 1 << 20;
const MAX_READ_BYTES: usize = 4 << 20;

/// Which log of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// `None`: the Ray driver's log, or rank 0's output.
    pub member: Option<MemberId>,
    /// `None`: the newest.
    pub attempt: Option<u32>,
    /// Name of one of the member's files; `None`: its output, or the Ray driver's log.
    pub file: Option<String>,
}

impl Wanted {
    /// Reads the parameters `rank`, `attempt` and `file` for a job.
    pub fn parse(
        job: &Job,
        rank: Option<&str>,
        attempt: Option<u32>,
        file: Option<&str>,
    ) -> Result<Self, ApiError> {
        if attempt == Some(0) {
            return Err(ApiError::new(BAD_PARAMETER, "attempt is 0").hint("attempts count from 1"));
        }
        // On a cluster a job has one file, whatever it is called.
        let own = job.cluster.as_ref().map(|_| format!("driver-{}-", job.id));
        let fits = |name: &str| own.as_ref().is_none_or(|own| name.starts_with(own));
        if let Some(name) = file
            && (!is_file_name(name) || !fits(name))
        {
            return Err(ApiError::new(BAD_PARAMETER, format!("file is {}", quoted(name)))
                .hint("`gangline logs JOB --files` lists the files of a job"));
        }
        let file = file.filter(|_| own.is_none()).map(str::to_owned);
        let Some(text) = rank else { return Ok(Wanted { member: None, attempt, file }) };
        if let Some(cluster) = &job.cluster {
            let detail = "a job on a cluster has one log, that of its Ray driver";
            return Err(ApiError::new(BAD_PARAMETER, detail).hint(format!(
                "the ranks are those of the cluster: ask for the logs of {cluster}"
            )));
        }
        let member: Option<MemberId> = text.parse().ok();
        let nnodes = job.request.nnodes_max;
        let ray = job.request.launcher == Launcher::Ray;
        let exists = match member {
            Some(MemberId::Rank(rank)) => rank < nnodes,
            Some(MemberId::Head) => ray,
            None => false,
        };
        if exists {
            return Ok(Wanted { member, attempt, file });
        }
        let head = if ray { ", and `head`" } else { "" };
        Err(ApiError::new(BAD_PARAMETER, format!("rank is {}", quoted(text)))
            .hint(format!("this job has ranks 0 to {}{head}", nnodes.saturating_sub(1))))
    }
}

/// Name of a member's own output.
const OUTPUT: &str = "output";

/// A file that exists or may come to exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub key: MemberKey,
    pub file: String,
}

/// Whether more bytes may come to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    MayCome,
    /// Nothing more comes; whether everything that was written is there.
    Ended {
        complete: bool,
    },
    /// The file has this many bytes, and some may still be on their way.
    EndsAt(u64),
}

impl Rest {
    /// With the file's durable length: `None` while more may come, else whether all of it is there.
    pub fn complete_at(self, length: u64) -> Option<bool> {
        match self {
            Rest::MayCome => None,
            Rest::Ended { complete } => Some(complete),
            Rest::EndsAt(end) => (length >= end).then_some(true),
        }
    }
}

/// What a caller means right now.
#[derive(Debug, Clone)]
pub(super) struct Located {
    /// `None`: the attempt has not begun.
    pub source: Option<Source>,
    /// The attempt's number; `None` before the first.
    pub attempt: Option<u32>,
    pub rest: Rest,
    /// State word and reason of what is followed: the job, or the one attempt that was asked for.
    pub state: &'static str,
    pub reason: String,
}

/// Finds the wanted log on a snapshot. Take the snapshot before reading bytes: then "nothing more
/// comes" is true of the bytes.
pub(super) fn locate(board: &Board, snapshot: &JobSnapshot, wanted: &Wanted) -> Located {
    let job = &snapshot.job;
    let attempt = match wanted.attempt {
        None => snapshot.attempts.last(),
        Some(number) => snapshot.attempts.iter().find(|attempt| attempt.number == number),
    };
    let gang = snapshot.gang.as_deref();
    let (mut state, mut reason) = (job.state.word(), job.reason.clone());
    let Some(attempt) = attempt else {
        let rest = match job.state.is_terminal() {
            true => Rest::Ended { complete: true },
            false => Rest::MayCome,
        };
        return Located { source: None, attempt: None, rest, state, reason };
    };
    let asked_for_one = wanted.attempt.is_some();
    if let Some(outcome) = attempt.outcome.as_ref().filter(|_| asked_for_one) {
        (state, reason) = (outcome_word(outcome), Outcome::sentence(outcome));
    }
    Located {
        source: Some(source(job, attempt, wanted)),
        attempt: Some(attempt.number),
        rest: rest(board, job, attempt, gang, wanted),
        state,
        reason,
    }
}

/// The wanted file: a member's output, or by default what the job itself says.
fn source(job: &Job, attempt: &Attempt, wanted: &Wanted) -> Source {
    let key = |member| MemberKey { gang: attempt.gang.clone(), epoch: attempt.epoch, member };
    if let Some(file) = &wanted.file {
        let member = wanted.member.unwrap_or(MemberId::Rank(0));
        return Source { key: key(member), file: file.clone() };
    }
    match (wanted.member, job.request.launcher) {
        (Some(member), _) => Source { key: key(member), file: OUTPUT.to_owned() },
        (None, Launcher::Command) => {
            Source { key: key(MemberId::Rank(0)), file: OUTPUT.to_owned() }
        }
        (None, Launcher::Ray) => {
            let file = format!("driver-{}", job.operation(attempt.number));
            let member = attempt.guest.as_ref().map_or(DRIVER_MEMBER, |guest| guest.driver());
            Source { key: key(member), file }
        }
    }
}

/// The answer for a file that is not there, unless it may still come, or is one that every attempt
/// comes to write.
fn check_written(job: &Job, attempt: &Attempt, file: &str) -> Result<(), ApiError> {
    let may_come = attempt.outcome.is_none();
    if may_come || file == OUTPUT || file == source(job, attempt, &Wanted::default()).file {
        return Ok(());
    }
    let detail = format!("no member that is meant has written a file {}", quoted(file));
    Err(ApiError::new(BAD_PARAMETER, detail)
        .hint("`gangline logs JOB --files` lists the files of a job"))
}

/// Refuses an attempt that was neither made nor is the next one: nothing would ever come.
pub(super) fn check_coming(snapshot: &JobSnapshot, number: Option<u32>) -> Result<(), ApiError> {
    let last = snapshot.attempts.last().map_or(0, |last| last.number);
    match number {
        Some(next) if next == last.saturating_add(1) && !snapshot.job.state.is_terminal() => Ok(()),
        number => attempt_of(snapshot, number).map(drop),
    }
}

/// A job ends only after its members have ended and delivered their logs, or the time for that is
/// over, or their nodes are lost.
fn rest(board: &Board, job: &Job, attempt: &Attempt, gang: Option<&Gang>, wanted: &Wanted) -> Rest {
    let Some(gang) = gang.filter(|gang| gang.epoch == attempt.epoch) else {
        // The gang went on to another epoch, which it does only when this one was over.
        return Rest::Ended { complete: true };
    };
    if gang.state == GangState::Stopped && (wanted.attempt.is_some() || job.state.is_terminal()) {
        return Rest::Ended { complete: true };
    }
    if !job.state.is_terminal() {
        return Rest::MayCome;
    }
    let guest = attempt.guest.as_ref();
    let driver = guest.map_or(DRIVER_MEMBER, |guest| guest.driver());
    let member = gang.members.get(&wanted.member.unwrap_or(driver));
    match member.map(|member| &member.phase) {
        Some(Phase::Ended(end)) => Rest::Ended { complete: end.logs_complete },
        _ => {
            let node = member.and_then(|member| board.node(member.node.as_str()));
            let gone = node.is_none_or(|node| {
                node.node.revoked || node.node.reachability == Reachability::Lost
            });
            match guest {
                _ if gone => Rest::Ended { complete: false },
                None => Rest::MayCome,
                // Its cluster stands. Without a length its Ray driver never ran.
                Some(guest) => match guest.log_bytes {
                    Some(bytes) => Rest::EndsAt(bytes),
                    // The member that ran it was lost, and has not said how long it is.
                    None if guest.is_live() && !guest.done.contains(&driver) => Rest::MayCome,
                    None => Rest::Ended { complete: true },
                },
            }
        }
    }
}

/// The answer when the logs of an attempt were removed.
pub(super) fn refuse_removed(
    removed: Option<Removed>,
    attempt: Option<u32>,
) -> Result<(), ApiError> {
    let Some(Removed { at_ms, why, .. }) = removed else { return Ok(()) };
    let attempt = attempt.map(|number| format!(" of attempt {number}")).unwrap_or_default();
    let detail = format!("the logs{attempt} were removed at {}: {why}", wall_text(at_ms));
    Err(ApiError::new(LOGS_REMOVED, detail).hint(
        "a copy may be in the job's `logs` directory below the shared root; an administrator sets \
         how long logs are kept",
    ))
}

/// Whether a text may be the name of a log file.
fn is_file_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    // A scene is no log: it is shown where values of variables are hidden.
    (1..=100).contains(&text.len()) && text.bytes().all(plain) && !is_scene(text)
}

/// Durable length of a file; 0 when it does not exist yet. Blocking.
pub(super) fn length(logs: &Logs, source: &Source) -> u64 {
    let files = logs.files(&source.key.gang, source.key.epoch);
    let found =
        files.into_iter().find(|(id, name, _)| *id == source.key.member && *name == source.file);
    found.map_or(0, |(_, _, length)| length)
}

/// Number of leading bytes that end with a whole character. What is not UTF-8 at all counts as
/// whole; only a character that may still be continued is cut off.
pub(super) fn whole_characters(bytes: &[u8]) -> usize {
    for (back, byte) in bytes.iter().rev().take(3).enumerate() {
        let have = back + 1;
        let need = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if need > have { bytes.len() - have } else { bytes.len() };
    }
    bytes.len()
}

/// Query of a piece of a log.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogParams {
    /// A rank or `head`; without it the Ray driver's log, or rank 0's output.
    rank: Option<String>,
    /// Number of an attempt; without it the newest.
    attempt: Option<u32>,
    /// Name of one of the member's files; without it its output, or the Ray driver's log.
    file: Option<String>,
    /// First byte; 0 when absent.
    offset: Option<u64>,
    /// Nothing that was read before, in milliseconds since 1970.
    since_ms: Option<u64>,
    /// Bytes at most; 1 MiB when absent, never more than 4 MiB.
    limit: Option<usize>,
}

/// A piece of a log, as it was written.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        LogParams),
    responses(
        (status = 200, body = String, content_type = "text/plain", headers(
            ("x-gangline-next-offset" = u64, description = "Where to go on"),
            ("x-gangline-total-bytes" = u64, description = "Length so far"),
            ("x-gangline-complete" = bool,
                description = "The job has ended and this is the end of its log"))),
        (status = 404, response = Problem), (status = 409, response = Problem),
        (status = 410, response = Problem)))]
pub(super) async fn get_logs(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<LogParams>,
) -> Result<Response, ApiError> {
    let board = &shared.api.board;
    let snapshot = find_job(board, &principal, Action::ReadJobs, &id)?;
    let (rank, file) = (params.rank.as_deref(), params.file.as_deref());
    let wanted = Wanted::parse(&snapshot.job, rank, params.attempt, file)?;
    let attempt = attempt_of(&snapshot, params.attempt)?;
    let located = locate(board, &snapshot, &wanted);
    let first = params.offset.unwrap_or(0);
    let limit = params.limit.unwrap_or(READ_BYTES).min(MAX_READ_BYTES);
    let logs = shared.api.logs.clone();
    let source = located.source.clone();
    let piece = blocking("reading a log", move || {
        let Some(Source { key, file }) = source else { return Ok((Vec::new(), first, None, None)) };
        let removed = logs.removed(&key.gang, key.epoch);
        let Some(mut open) = logs.open(&key, &file)? else {
            return Ok((Vec::new(), first, None, removed));
        };
        let total = open.length();
        let since = params.since_ms.map_or(0, |ms| logs.times(&key, &file, total).since(ms, total));
        let offset = first.max(since);
        open.read_at(offset, limit).map(|bytes| (bytes, offset, Some(total), removed))
    });
    let (mut bytes, offset, total, removed) = piece.await?;
    refuse_removed(removed, located.attempt)?;
    if let (None, Some(attempt), Some(file)) = (total, &attempt, &wanted.file) {
        check_written(&snapshot.job, attempt, file)?;
    }
    let total = total.unwrap_or(0);
    let whole = whole_characters(&bytes);
    let cut_off = offset.saturating_add(bytes.len() as u64) < total;
    if cut_off && whole > 0 {
        bytes.truncate(whole);
    }
    let next = offset.saturating_add(bytes.len() as u64);
    let complete = located.rest.complete_at(total).is_some() && next >= total;
    let number = |name, value: u64| (HeaderName::from_static(name), HeaderValue::from(value));
    let flag = HeaderValue::from_static(if complete { "true" } else { "false" });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        number("x-gangline-next-offset", next),
        number("x-gangline-total-bytes", total),
        (HeaderName::from_static("x-gangline-complete"), flag),
    ];
    Ok((headers, bytes).into_response())
}

/// Runs blocking file work apart from the requests. Failures stay inside; the caller gets an id.
pub(super) async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(ApiError::internal(what, &error)),
        Err(error) => Err(ApiError::internal(what, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_fall_between_characters() {
        let text = "aé€😀z".as_bytes();
        let whole = [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11];
        for (length, expected) in whole.into_iter().enumerate() {
            assert_eq!(whole_characters(&text[..length]), expected, "{length}");
        }
    }

    #[test]
    fn what_is_not_utf8_is_not_held_back() {
        for bytes in [&b"a\xff"[..], b"\x80\x80\x80\x80", b"a\xc0", b"\xf5"] {
            assert_eq!(whole_characters(bytes), bytes.len(), "{bytes:?}");
        }
    }
}
