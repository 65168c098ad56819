//! Staying with jobs until they have ended: Ctrl-C leaves them alone and says so.

use crate::args::Tail;
use crate::client::Client;
use crate::errors::{CliError, code, exit};
use crate::follow::{LogSource, Position, until_over};
use crate::log_sink::LogSink;
use crate::output::Screen;
use crate::view::{self, Job};

/// How to follow a log.
#[derive(Debug)]
pub(super) struct Following<'a> {
    pub client: &'a Client,
    pub job: &'a Job,
    pub rank: Option<&'a str>,
    pub file: Option<&'a str>,
    /// `None` for the last attempt and every newer one.
    pub attempt: Option<u32>,
    pub tail: Tail,
    pub raw: bool,
}

impl<'a> Following<'a> {
    fn source(&self, attempt: Option<u32>) -> LogSource<'a> {
        let (client, job) = (self.client, &self.job.id);
        LogSource { client, job, rank: self.rank, file: self.file, attempt }
    }

    /// Where the lines begin that the user wants to see. The attempt is named, as the offset of
    /// one means nothing for another that may begin meanwhile.
    async fn begin(&self) -> Result<Position, CliError> {
        let Tail::Lines(_) = self.tail else {
            return Ok(Position::default());
        };
        // One that has not begun has no lines; whether it will begin is for the stream to say.
        let last = last_attempt(self.job);
        let begun = |attempt: &u32| last.is_some_and(|last| *attempt <= last);
        let Some(attempt) = self.attempt.or(last).filter(begun) else {
            return Ok(Position::default());
        };
        let (offset, _) = self.source(Some(attempt)).range(self.tail).await?;
        Ok(Position { attempt: Some(attempt), offset })
    }
}

/// The number of a job's last attempt; `None` before the first.
pub(super) fn last_attempt(job: &Job) -> Option<u32> {
    job.attempts.and_then(|attempts| u32::try_from(attempts).ok()).filter(|number| *number > 0)
}

/// Do `work` unless Ctrl-C comes first: then `None`.
///
/// # Errors
/// Those of `work`, or Ctrl-C cannot be caught.
pub(super) async fn or_ctrl_c<T>(
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<Option<T>, CliError> {
    tokio::select! {
        biased;
        caught = tokio::signal::ctrl_c() => {
            let cannot = |error| CliError::io("cannot wait for Ctrl-C", &error);
            caught.map(|()| None).map_err(cannot)
        }
        done = work => done.map(Some),
    }
}

/// Say that the jobs go on, and give the exit code for it.
pub(super) fn detached(jobs: &[String], screen: &Screen) -> u8 {
    let ids = jobs.join(" ");
    match jobs {
        [_] => screen.hint(&format!("\ndetached; job goes on: gangline stop {ids} to stop it")),
        _ => screen.hint(&format!("\ndetached; jobs go on: gangline stop {ids} to stop them")),
    }
    exit::INTERRUPTED
}

/// Print the log until the job has ended. `None` after Ctrl-C.
pub(super) async fn follow_log(
    following: &Following<'_>,
    screen: &Screen,
) -> Result<Option<()>, CliError> {
    let mut sink = LogSink::new(screen, following.raw);
    let work = async {
        let from = following.begin().await?;
        following.source(following.attempt).follow(from, &mut sink, screen).await
    };
    let done = or_ctrl_c(work).await;
    sink.finish()?;
    done
}

/// The job's end, from the coordinator's record and never from a stream. `None` after Ctrl-C.
pub(super) async fn end_of(
    client: &Client,
    job: &str,
    screen: &Screen,
) -> Result<Option<(serde_json::Value, Job)>, CliError> {
    let Some(value) = or_ctrl_c(until_over(client, job, None, screen)).await?.flatten() else {
        return Ok(None);
    };
    let job = view::read(&value)?;
    Ok(Some((value, job)))
}

/// The exit code that reports how `job` ended; its own one with `propagate`, where it has one.
pub(super) fn result_of(job: &Job, propagate: bool) -> u8 {
    let own = job.exit_code.filter(|_| propagate && job.state != "CANCELLED");
    let own = own.and_then(|code| u8::try_from(code).ok());
    // A job that failed although its command did not must not look like a success.
    own.filter(|code| *code != exit::OK || job.state == "SUCCEEDED")
        .unwrap_or_else(|| view::exit_of(&job.state))
}

/// One sentence about the end of a job, on stderr.
pub(super) fn say_end(job: &Job, screen: &Screen) {
    let reason = crate::terminal::clean(&job.reason);
    let colon = if reason.is_empty() { "" } else { ": " };
    screen.hint(&format!("{} {}{colon}{reason}", job.id, job.state));
}

/// A reader of the output that goes away early has not seen the job's end.
pub(super) fn as_unfinished(error: CliError) -> CliError {
    if error.is_broken_pipe() { error.with_exit(exit::JOB_NOT_FINISHED) } else { error }
}

/// The answer of a submission or stop lacks the job.
pub(super) fn job_in(answer: &serde_json::Value) -> Result<Job, CliError> {
    let job = answer.get("job").map(view::read::<Job>).transpose()?;
    job.filter(|job| !job.id.is_empty()).ok_or_else(|| {
        CliError::new(exit::ERROR, code::BAD_ANSWER, "the coordinator's answer names no job")
            .hint("gangline ps shows whether it is there; the versions may not fit")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: &str, exit_code: Option<i64>) -> Job {
        Job { state: state.to_owned(), exit_code, ..Job::default() }
    }

    #[test]
    fn results() {
        assert_eq!(result_of(&job("SUCCEEDED", Some(0)), false), 0);
        assert_eq!(result_of(&job("FAILED", Some(3)), false), 100);
        assert_eq!(result_of(&job("FAILED", Some(3)), true), 3);
        assert_eq!(result_of(&job("FAILED", Some(0)), true), 100);
        assert_eq!(result_of(&job("FAILED", None), true), 100);
        assert_eq!(result_of(&job("FAILED", Some(-9)), true), 100);
        assert_eq!(result_of(&job("FAILED", Some(256)), true), 100);
        assert_eq!(result_of(&job("CANCELLED", Some(143)), true), 103);
        assert_eq!(result_of(&job("TIMEOUT", None), false), 100);
        assert_eq!(result_of(&job("RUNNING", None), true), 101);
    }
}
