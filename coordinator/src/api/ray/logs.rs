//! The whole log of a job, as one JSON answer that is written while the file is read.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::address::Address;
use super::find_job;
use crate::api::App;
use crate::api::auth::{Action, Caller};
use crate::api::error::ApiError;
use crate::api::logs::{Source, Wanted, blocking, length, locate, whole_characters};
use crate::ingest::logs::Logs;

/// Bytes of a log that are served: its end.
const LOG_BYTES: u64 = 16 << 20;
/// Bytes that are in memory at a time, for each reader.
const CHUNK_BYTES: usize = 128 << 10;

/// The Ray driver's log or rank 0's output, of the newest attempt.
pub(super) async fn whole_log(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
) -> Result<Response, ApiError> {
    let board = &shared.api.board;
    let snapshot = find_job(board, &principal, Action::ReadJobs, address.id())?;
    let source = locate(board, &snapshot, &Wanted::default()).source;
    let logs = shared.api.logs.clone();
    let (files, wanted) = (logs.clone(), source.clone());
    let measure = move || Ok(wanted.map_or(0, |source| length(&files, &source)));
    let total = blocking("reading a log", measure).await?;
    let left_out = total.saturating_sub(LOG_BYTES);
    let answer = Answer { logs, source, left_out, offset: left_out, total, part: Part::Begin };
    let pieces = stream::unfold(answer, |mut answer| async {
        let piece = answer.next().await.transpose()?;
        Some((piece, answer))
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, Body::from_stream(pieces)).into_response())
}

/// What comes next.
enum Part {
    Begin,
    Text,
    Nothing,
}

/// An answer that is being written.
struct Answer {
    logs: Logs,
    source: Option<Source>,
    /// Bytes of the file before the first that is served.
    left_out: u64,
    offset: u64,
    total: u64,
    part: Part,
}

impl Answer {
    async fn next(&mut self) -> io::Result<Option<String>> {
        match self.part {
            Part::Begin => {
                self.part = Part::Text;
                let note = match self.left_out {
                    0 => String::new(),
                    bytes => format!(
                        "[gangline] {bytes} earlier bytes of this log are left out; `gangline logs` \
                         has all of it\n"
                    ),
                };
                Ok(Some(format!("{{\"logs\":\"{}", escaped(&note))))
            }
            Part::Text if self.offset < self.total => self.text().await.map(Some),
            Part::Text => {
                self.part = Part::Nothing;
                Ok(Some("\"}".to_owned()))
            }
            Part::Nothing => Ok(None),
        }
    }

    async fn text(&mut self) -> io::Result<String> {
        let Some(source) = self.source.clone() else { return Err(io::ErrorKind::NotFound.into()) };
        let (logs, offset) = (self.logs.clone(), self.offset);
        let left = usize::try_from(self.total - offset).unwrap_or(usize::MAX);
        let read = move || logs.read(&source.key, &source.file, offset, left.min(CHUNK_BYTES));
        let read = tokio::task::spawn_blocking(read).await.map_err(io::Error::other);
        // The answer has begun: it can only be cut off, and the cause is for the operator.
        let mut bytes = read.flatten().inspect_err(|error| {
            tracing::error!(%error, "reading a log for a client of Ray");
        })?;
        let whole = whole_characters(&bytes);
        let last = bytes.len() >= left;
        if !last && whole > 0 {
            bytes.truncate(whole);
        }
        // The job may have been deleted meanwhile; half an answer must not look like a whole one.
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let begins_inside = offset > 0 && offset == self.left_out;
        self.offset += bytes.len() as u64;
        let shown = if begins_inside { whole_lines(&bytes) } else { &bytes };
        Ok(escaped(&String::from_utf8_lossy(shown)))
    }
}

/// What follows the first line break: the text before it is only the end of a line.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let line_break = bytes.iter().position(|byte| *byte == b'\n');
    line_break.map_or(bytes, |at| bytes.split_at(at + 1).1)
}

/// The text as it stands inside a JSON string.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_piece_by_piece() {
        let pieces = ["a\"", "\\", "\u{1b}[0m\n", "\u{20ac}\u{2028}\""];
        let inner: String = pieces.iter().map(|piece| escaped(piece)).collect();
        let read: String = serde_json::from_str(&format!("\"{inner}\"")).unwrap();
        assert_eq!(read, pieces.concat());
        assert_eq!(whole_lines(b"end\nline\n"), b"line\n");
        assert_eq!(whole_lines(b"no break"), b"no break");
    }
}
