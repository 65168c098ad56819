//! The place of a job in the queue: its priority, and what it waits for before it may start.

use std::fmt;
use std::time::Duration;

use crate::priority::Priority;

/// Most jobs that one job runs after.
pub const MAX_AFTER: usize = 64;

/// What names a job to run after.
pub(crate) const AFTER_FORM: &str =
    "`job:` and a job's name or id: letters, digits, `-` and `_`, at most 64";

/// The section `queue` of a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    pub priority: Priority,
    /// Whether the job may be sent back to the queue for one of higher priority.
    pub preemptible: bool,
    /// Whether the job does not start until somebody releases it.
    pub hold: bool,
    /// Earliest start.
    pub not_before: Option<Moment>,
    /// Jobs that must have succeeded, each `job:NAME-or-id` or a name or id alone; see
    /// [`after_job`]. At most [`MAX_AFTER`].
    pub after: Vec<String>,
    /// Longest time in the queue in which the job could have started.
    pub max_wait: Option<Duration>,
}

/// The name or id in an entry of [`Queue::after`].
#[must_use]
pub fn after_job(entry: &str) -> &str {
    entry.strip_prefix("job:").unwrap_or(entry)
}

/// A point in time, to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Milliseconds since 1970, UTC.
    pub wall_ms: u64,
}

impl Moment {
    /// A time in the form of RFC 3339: date, `T`, time with seconds, and `Z` or an offset. Not
    /// before 1970. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once(['T', 't'])?;
        let (clock, offset) = time.split_at_checked(8)?;
        let shape = |text: &str, form: &str| {
            let fits = |(c, f): (char, char)| if f == '0' { c.is_ascii_digit() } else { c == f };
            text.len() == form.len() && text.chars().zip(form.chars()).all(fits)
        };
        let offset = offset
            .strip_prefix('.')
            .map_or(offset, |fraction| fraction.trim_start_matches(|c: char| c.is_ascii_digit()));
        let has_offset =
            matches!(offset, "Z" | "z") || shape(offset, "+00:00") || shape(offset, "-00:00");
        if !shape(date, "0000-00-00") || !shape(clock, "00:00:00") || !has_offset {
            return None;
        }
        let parsed: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(parsed.as_millisecond()).ok().map(|wall_ms| Moment { wall_ms })
    }
}

/// In UTC, in the form that [`Moment::parse`] reads.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = i64::try_from(self.wall_ms).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_millisecond(ms) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => f.write_str("a time after the year 9999"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let good = [
            ("2026-12-01T22:00:00+08:00", "2026-12-01T14:00:00Z"),
            ("2026-12-01T14:00:00Z", "2026-12-01T14:00:00Z"),
            ("2026-12-01t14:00:00.25z", "2026-12-01T14:00:00.25Z"),
            ("1970-01-01T00:00:00-00:00", "1970-01-01T00:00:00Z"),
        ];
        for (text, written) in good {
            let moment = Moment::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(moment.to_string(), written);
            assert_eq!(Moment::parse(written), Some(moment));
        }
        let bad = [
            "",
            "tomorrow",
            "2026-12-01",
            "2026-12-01T22:00:00",
            "2026-12-01T22:00+08:00",
            "2026-12-01 22:00:00+08:00",
            "2026-12-01T22:00:00+0800",
            "2026-12-01T22:00:00+08:00[Asia/Shanghai]",
            "2026-13-01T22:00:00Z",
            "2026-02-30T22:00:00Z",
            "2026-12-01T25:00:00Z",
            "1969-12-31T23:59:59Z",
            "+002026-12-01T22:00:00Z",
        ];
        for text in bad {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
