//! Reading the log of a job: the end of a long one without reading the rest, and following one
//! through lost connections and restarts of the coordinator, without a gap and without a repeat.

use std::time::Duration;

use serde::Deserialize;

use crate::args::Tail;
use crate::client::Client;
use crate::errors::{CliError, code, exit};
use crate::log_sink::LogSink;
use crate::output::Screen;
use crate::pauses::{Pauses, jittered};
use crate::sse::{SseEvent, SseParser};
use crate::view;

/// Bytes asked for at once.
const PAGE_BYTES: u64 = 256 * 1024;
/// Bytes asked for at once while searching backward for the start of the last lines.
const SEARCH_BYTES: u64 = 64 * 1024;
/// How far back the last lines are searched: then so many bytes are shown, not so many lines.
const MAX_SEARCH_BYTES: u64 = 64 * 1024 * 1024;
/// After so many connections that do not go on where the last one ended, what comes is taken.
const MAX_MISFITS: u32 = 3;

/// One log of one job.
#[derive(Debug)]
pub struct LogSource<'a> {
    /// The coordinator.
    pub client: &'a Client,
    /// Id of the job.
    pub job: &'a str,
    /// Whose output; `None` for the job's own log.
    pub rank: Option<&'a str>,
    /// Name of one of the member's files; `None` for its output, or the job's own log.
    pub file: Option<&'a str>,
    /// `None` for the last attempt, and while following every newer one.
    pub attempt: Option<u32>,
}

/// A place in the log of a job: an offset counts within its attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// `None` before the first event of a log that was not begun yet.
    pub attempt: Option<u32>,
    /// Bytes from the beginning of the attempt's log.
    pub offset: u64,
}

/// Data of a `log` event.
#[derive(Debug, Deserialize)]
struct LogData {
    attempt: Option<u32>,
    offset: u64,
    text: String,
}

/// Data of the `end` event.
#[derive(Debug, Deserialize)]
struct EndData {
    /// False when a node could not deliver the rest.
    complete: Option<bool>,
}

/// How a connection to the stream ended.
enum Connection {
    /// The job has ended and everything was sent.
    Over,
    /// It broke off.
    Cut,
    /// It did not go on at the asked offset.
    Misfit,
}

impl LogSource<'_> {
    fn query(&self, position: &'static str, offset: u64) -> Vec<(&'static str, String)> {
        let mut query = vec![(position, offset.to_string())];
        query.extend(self.rank.map(|rank| ("rank", rank.to_owned())));
        query.extend(self.file.map(|file| ("file", file.to_owned())));
        query.extend(self.attempt.map(|attempt| ("attempt", attempt.to_string())));
        query
    }

    async fn page(&self, offset: u64, limit: u64) -> Result<crate::client::LogPage, CliError> {
        let mut query = self.query("offset", offset);
        query.push(("limit", limit.to_string()));
        self.client.log_page(&["jobs", self.job, "logs"], &query).await
    }

    /// Where the last lines begin that `tail` asks for, and where the log ends now.
    ///
    /// # Errors
    /// As [`Client::log_page`].
    pub async fn range(&self, tail: Tail) -> Result<(u64, u64), CliError> {
        let total = self.page(0, 1).await?.total_bytes;
        let Tail::Lines(lines) = tail else {
            return Ok((0, total));
        };
        if lines == 0 {
            return Ok((total, total));
        }
        let mut missing = lines;
        let mut begin = total;
        while begin > 0 && total - begin < MAX_SEARCH_BYTES {
            let from = begin.saturating_sub(SEARCH_BYTES);
            let bytes = self.bytes(from, begin).await?;
            let ends = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
            for (index, _) in ends {
                let after = from + u64::try_from(index).unwrap_or(u64::MAX) + 1;
                // The line end at the very end closes the last line, it begins none.
                if after == total {
                    continue;
                }
                missing -= 1;
                if missing == 0 {
                    return Ok((after, total));
                }
            }
            begin = from;
        }
        Ok((begin, total))
    }

    /// The bytes from `from` to `to`, of at most one search step.
    async fn bytes(&self, from: u64, to: u64) -> Result<Vec<u8>, CliError> {
        let mut out = Vec::new();
        let mut at = from;
        while at < to {
            let page = self.page(at, to - at).await?;
            at = self.after(&page, at)?;
            out.extend_from_slice(&page.bytes);
        }
        Ok(out)
    }

    /// Where the page that began at `at` ends; a page without progress would never end.
    fn after(&self, page: &crate::client::LogPage, at: u64) -> Result<u64, CliError> {
        let length = u64::try_from(page.bytes.len()).unwrap_or(u64::MAX);
        if length == 0 || page.next_offset != at.saturating_add(length) {
            let what = format!("the log of {} breaks off at byte {at}", self.job);
            return Err(CliError::new(exit::ERROR, code::BAD_ANSWER, what)
                .hint("it may have been removed meanwhile; try again"));
        }
        Ok(page.next_offset)
    }

    /// Print the log from `from` to `to`, piece by piece.
    ///
    /// # Errors
    /// As [`Client::log_page`], or stdout cannot be written.
    pub async fn copy(&self, from: u64, to: u64, sink: &mut LogSink<'_>) -> Result<(), CliError> {
        let mut at = from;
        while at < to {
            let page = self.page(at, PAGE_BYTES.min(to - at)).await?;
            let next = self.after(&page, at)?;
            // A character that is cut between two pages comes whole with the next one.
            let cut = if next < to { cut_character(&page.bytes) } else { 0 };
            let whole = page.bytes.len() - cut;
            sink.push(self.attempt, at, page.bytes.get(..whole).unwrap_or_default())?;
            at = next - u64::try_from(cut).unwrap_or(0);
        }
        sink.finish()
    }

    /// Print the log from `from` on until the job has ended. A lost connection is made again for
    /// as long as the user waits.
    ///
    /// # Errors
    /// The coordinator refuses, or stdout cannot be written.
    pub async fn follow(
        &self,
        from: Position,
        sink: &mut LogSink<'_>,
        screen: &Screen,
    ) -> Result<(), CliError> {
        let mut position = from;
        let mut pauses = Pauses::default();
        let mut misfits = 0;
        let mut told = false;
        loop {
            let before = position;
            let strict = misfits < MAX_MISFITS;
            match self.listen(&mut position, strict, sink, screen).await {
                Ok(Connection::Over) => return sink.finish(),
                Ok(Connection::Cut) => {}
                Ok(Connection::Misfit) => misfits += 1,
                Err(error) if error.is_transport() => {
                    if !told {
                        screen.hint(&format!("{error}; the job goes on, trying again"));
                    }
                    told = true;
                }
                Err(error) => return Err(error),
            }
            if position != before {
                (pauses, misfits, told) = (Pauses::default(), 0, false);
            }
            pauses.pause().await;
        }
    }

    /// One connection; `position` is the end of what was printed.
    async fn listen(
        &self,
        position: &mut Position,
        strict: bool,
        sink: &mut LogSink<'_>,
        screen: &Screen,
    ) -> Result<Connection, CliError> {
        let path = ["jobs", self.job, "logs", "stream"];
        let mut query = self.query("since", position.offset);
        if self.attempt.is_none() {
            query.extend(position.attempt.map(|number| ("since_attempt", number.to_string())));
        }
        let mut response = self.client.stream(&path, &query).await?;
        let mut parser = SseParser::default();
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(Connection::Cut),
                Err(error) => return Err(self.client.unreachable(&error)),
            };
            let events = parser.push(&chunk).map_err(|_| self.nonsense("an event is too long"))?;
            for event in events {
                let fits = match event.name.as_str() {
                    "log" => self.take(&event, position, strict, sink, screen)?,
                    "end" => {
                        self.say_if_incomplete(&event, screen);
                        return Ok(Connection::Over);
                    }
                    _ => true,
                };
                if !fits {
                    return Ok(Connection::Misfit);
                }
            }
        }
    }

    /// Print a `log` event. `false` when it does not begin where the last one ended: printing it
    /// would leave a gap or repeat something. The log of a new attempt begins at 0.
    fn take(
        &self,
        event: &SseEvent,
        position: &mut Position,
        strict: bool,
        sink: &mut LogSink<'_>,
        screen: &Screen,
    ) -> Result<bool, CliError> {
        let data: LogData = serde_json::from_str(&event.data)
            .map_err(|error| self.nonsense(&format!("an event cannot be read: {error}")))?;
        let length = u64::try_from(data.text.len()).unwrap_or(u64::MAX);
        let next = match &event.id {
            Some(id) => id.parse().map_err(|_| self.nonsense("an event has no offset"))?,
            None => data.offset.saturating_add(length),
        };
        let is_new = position.attempt.is_some() && position.attempt != data.attempt;
        let expected = if is_new { 0 } else { position.offset };
        if data.offset != expected {
            if strict {
                return Ok(false);
            }
            screen.warn(&format!(
                "the log of {} goes on at byte {} instead of {expected}",
                self.job, data.offset
            ));
        }
        if is_new {
            sink.finish()?;
            let number = data.attempt.map(|number| number.to_string()).unwrap_or_default();
            screen.hint(&format!("── {} attempt {number} ──", self.job));
        }
        sink.push(data.attempt, data.offset, data.text.as_bytes())?;
        *position = Position { attempt: data.attempt, offset: next };
        Ok(true)
    }

    fn say_if_incomplete(&self, event: &SseEvent, screen: &Screen) {
        let data = serde_json::from_str::<EndData>(&event.data);
        if data.is_ok_and(|data| data.complete == Some(false)) {
            screen.warn(&format!(
                "the end of the log of {} is missing: its node could not deliver it",
                self.job
            ));
        }
    }

    fn nonsense(&self, why: &str) -> CliError {
        let what = format!("cannot read the log stream of {}", self.job);
        CliError::new(exit::ERROR, code::BAD_ANSWER, what).why(why)
    }
}

/// How many bytes at the end of `bytes` are the beginning of a character.
fn cut_character(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    (tail..bytes.len())
        .filter_map(|start| bytes.get(start..))
        .find(|end| {
            std::str::from_utf8(end)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .map_or(0, <[u8]>::len)
}

/// Ask for a job until it has ended, through lost connections. `None` when `deadline` comes first.
///
/// # Errors
/// The coordinator refuses, or is not there at the first try.
pub async fn until_over(
    client: &Client,
    job: &str,
    deadline: Option<tokio::time::Instant>,
    screen: &Screen,
) -> Result<Option<serde_json::Value>, CliError> {
    const FIRST_POLL: Duration = Duration::from_millis(100);
    const LONGEST_POLL: Duration = Duration::from_secs(2);
    let mut wait = FIRST_POLL;
    let mut reached = false;
    let mut told = false;
    loop {
        match client.get(&["jobs", job], &[]).await {
            Ok(value) => {
                if view::read::<view::Job>(&value)?.is_over() {
                    return Ok(Some(value));
                }
                (reached, told) = (true, false);
            }
            Err(error) if error.is_transport() && reached => {
                if !told {
                    screen.hint(&format!("{error}; the job goes on, trying again"));
                }
                told = true;
            }
            Err(error) => return Err(error),
        }
        let now = tokio::time::Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Ok(None);
        }
        let next = now + jittered(wait);
        tokio::time::sleep_until(deadline.map_or(next, |deadline| deadline.min(next))).await;
        wait = (wait * 2).min(LONGEST_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_cut_at_the_end() {
        let cases: [(&[u8], usize); 7] = [
            (b"", 0),
            (b"abc", 0),
            ("a训".as_bytes(), 0),
            (b"a\xe8", 1),
            (b"a\xe8\xae", 2),
            (b"\xf0\x9f\x98", 3),
            (b"a\xff", 0),
        ];
        for (bytes, expected) in cases {
            assert_eq!(cut_character(bytes), expected, "{bytes:?}");
        }
    }
}
