//! From bytes to lines that can be looked at: cut to a bounded length, free of control sequences,
//! progress bars taken apart, without prefixes.

use std::borrow::Cow;

use regex::Regex;
use serde_json::Value;

use crate::clock::{Stamp, stamp};
use crate::pattern::Pattern;
use crate::prefix::{Level, level_of, message};
use crate::source::Source;

/// Longest line that is looked at as a whole, in bytes. Of a longer one it is a piece from the
/// start and one from the end.
const MAX_LINE_BYTES: usize = 16 * 1024;
const LINE_START_BYTES: usize = 12 * 1024;
/// Most lines that one record of JSON is taken apart into.
const MAX_INNER_LINES: usize = 400;
/// Longest line of evidence, in characters.
const MAX_SHOWN_CHARS: usize = 400;

static UPTIME: Pattern =
    Pattern::new(|| Regex::new(r"^[^\[\]]{0,60}\[ *[0-9]{1,9}\.[0-9]{6}\]").ok());

/// One line, or one part of a line that was overwritten with carriage returns.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// From 1; `None` where nobody has counted.
    pub(crate) number: Option<u64>,
    /// Without control sequences, with its prefixes.
    pub(crate) whole: &'a str,
    /// Without its prefixes.
    pub(crate) text: &'a str,
    pub(crate) rank: Option<u32>,
    pub(crate) writer: Option<&'a str>,
    pub(crate) level: Option<Level>,
    pub(crate) stamp: Option<Stamp>,
    /// It has the kernel's time since the start of the machine, and no other.
    pub(crate) is_uptime: bool,
    /// When it was read from the program, in milliseconds since 1970.
    pub(crate) read_ms: Option<i64>,
}

impl Line<'_> {
    /// The line as evidence shows it.
    pub(crate) fn shown(&self) -> String {
        let mut chars = self.whole.trim().chars();
        let mut shown: String = chars.by_ref().take(MAX_SHOWN_CHARS).collect();
        if chars.next().is_some() {
            shown.push('…');
        }
        shown
    }
}

/// Calls `each` for every line of `source`, in order.
pub(crate) fn read(source: &Source<'_>, mut each: impl FnMut(&Line<'_>)) {
    let parts = [(source.head, 0, Some(1)), (source.tail, source.head.len(), source.tail_line)];
    for (bytes, begins_at, first) in parts {
        let mut end = begins_at;
        for (index, raw) in (0..).zip(bytes.split(|byte| *byte == b'\n')) {
            let number = first.map(|first: u64| first + index);
            end += raw.len();
            let read_ms = read_at(source.read_times, end);
            end += 1;
            // Each state of a progress bar is looked at: an error may hide between two of them.
            for part in raw.split(|byte| *byte == b'\r').filter(|part| !part.is_empty()) {
                let whole = tidy(part);
                one(&whole, (number, read_ms), &mut each);
            }
        }
    }
}

/// When the byte at `offset` was read.
fn read_at(times: &[(usize, i64)], offset: usize) -> Option<i64> {
    let after = times.partition_point(|(from, _)| *from <= offset);
    times.get(after.checked_sub(1)?).map(|(_, ms)| *ms)
}

fn one(
    whole: &str,
    (number, read_ms): (Option<u64>, Option<i64>),
    each: &mut impl FnMut(&Line<'_>),
) {
    if let Some(inner) = inner(whole) {
        let stamp = stamp(whole);
        for text in inner.text.lines().take(MAX_INNER_LINES) {
            let text = tidy(text.as_bytes());
            let read = message(&text);
            each(&Line {
                number,
                whole: &text,
                text: read.text,
                rank: read.rank.or(inner.rank),
                writer: read.writer,
                level: read.level.or(inner.level),
                stamp,
                is_uptime: false,
                read_ms,
            });
        }
        return;
    }
    let read = message(whole);
    let stamp = stamp(whole);
    let is_uptime = stamp.is_none() && UPTIME.fits(whole);
    each(&Line {
        number,
        whole,
        text: read.text,
        rank: read.rank,
        writer: read.writer,
        level: read.level,
        stamp,
        is_uptime,
        read_ms,
    });
}

/// A line that is a record of JSON, as container runtimes and loggers write them.
struct Inner {
    text: String,
    rank: Option<u32>,
    level: Option<Level>,
}

fn inner(line: &str) -> Option<Inner> {
    if !line.starts_with('{') || !line.ends_with('}') {
        return None;
    }
    let record: Value = serde_json::from_str(line).ok()?;
    let fields = [
        "log",
        "message",
        "msg",
        "event",
        "error",
        "exc",
        "exc_info",
        "exception",
        "traceback",
        "stack",
        "stack_trace",
    ];
    let texts = fields.iter().filter_map(|field| record.get(field)?.as_str());
    let text = texts.collect::<Vec<_>>().join("\n");
    let rank = record.get("rank").and_then(Value::as_u64).and_then(|rank| rank.try_into().ok());
    let level =
        ["level", "levelname", "severity"].iter().find_map(|name| record.get(name)?.as_str());
    let level = level.map(|word| level_of(&word.to_ascii_uppercase()));
    (!text.is_empty()).then_some(Inner { text, rank, level })
}

/// A bounded piece of `bytes` as text without control sequences and control characters.
fn tidy(bytes: &[u8]) -> Cow<'_, str> {
    let text = if bytes.len() > MAX_LINE_BYTES {
        let (start, rest) = bytes.split_at(LINE_START_BYTES);
        let (_, end) = rest.split_at(rest.len() - (MAX_LINE_BYTES - LINE_START_BYTES));
        Cow::Owned(format!("{} {}", String::from_utf8_lossy(start), String::from_utf8_lossy(end)))
    } else {
        String::from_utf8_lossy(bytes)
    };
    if !text.chars().any(is_unsafe) {
        return text;
    }
    let stripped = anstream::adapter::strip_str(&text).to_string();
    Cow::Owned(stripped.chars().filter(|c| !is_unsafe(*c)).collect())
}

/// What may change how or where text is shown. Tabs stay.
fn is_unsafe(c: char) -> bool {
    c != '\t'
        && (c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8]) -> Vec<(u64, String)> {
        let mut out = Vec::new();
        read(&Source::whole("a", bytes), |line| {
            out.push((line.number.unwrap(), line.text.to_owned()));
        });
        out
    }

    #[test]
    fn lines_are_clean_and_numbered() {
        let bytes = b"\x1b[31mred\x1b[0m\n 10%\r 20%\r\nnul\0\xff\n\n[rank1]: last";
        let expected = [(1, "red"), (2, " 10%"), (2, " 20%"), (3, "nul\u{fffd}"), (5, "last")];
        assert_eq!(texts(bytes), expected.map(|(number, text)| (number, text.to_owned())));
    }

    #[test]
    fn records_of_json_are_opened() {
        let line = br#"{"log":"[rank1]: A\nB\u001b[0m\n","stream":"stderr","time":"2025-01-01T00:00:00Z"}"#;
        assert_eq!(texts(line), [(1, "A".to_owned()), (1, "B".to_owned())]);
        // What is no message is one line.
        assert_eq!(texts(br#"{"loss": 1}"#).len(), 1);
    }

    #[test]
    fn a_long_line_is_seen_from_both_ends() {
        let mut line = b"start ".to_vec();
        line.extend(std::iter::repeat_n(b'x', 1_000_000));
        line.extend(b" end");
        let read = texts(&line);
        assert_eq!(read.len(), 1);
        assert!(read[0].1.len() <= MAX_LINE_BYTES + 1);
        assert!(read[0].1.starts_with("start") && read[0].1.ends_with("end"));
    }
}
