//! Times for people: reading `3d12h` and `1-12:00:00`, writing ages and points in time.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Read a duration in the forms of a spec: `90s`, `2h30m`, `3d12h`, or Slurm's `D-HH:MM:SS`.
///
/// # Errors
/// What is wanted instead, as a sentence for the command line.
pub fn parse(text: &str) -> Result<Duration, String> {
    gangline_spec::parse_duration(text)
        .ok_or_else(|| "write it as 90s, 2h30m, 3d12h or 1-12:00:00, at most a year".to_owned())
}

/// A length of time in its two largest units: `3h10m`, `22m`, `4.2s` is `4s`.
pub fn short(seconds: u64) -> String {
    let mut parts = Vec::new();
    let mut rest = seconds;
    for (unit, length) in UNITS {
        let count = rest / length;
        rest %= length;
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.concat() }
}

/// How long ago the RFC 3339 time `from` was, as seen at `now`; `None` for a text that is no time.
pub fn age(from: &str, now: Timestamp) -> Option<String> {
    let from: Timestamp = from.parse().ok()?;
    Some(short(u64::try_from(now.as_second() - from.as_second()).unwrap_or(0)))
}

/// An RFC 3339 time as local time with its offset; a text that is no time as it is.
pub fn local(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string(),
        Err(_) => time.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_the_command_line() {
        let good =
            [("90s", 90), ("2h30m", 9_000), ("3d12h", 302_400), ("1-12:00:05", 129_605), ("0s", 0)];
        for (text, seconds) in good {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "5", "m", "5m2h", "5m5m", "-5m", "1.5h", "1-2:03:04", "1-24:00:00", "400d"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("99999999999999999999d").is_err());
    }

    #[test]
    fn ages() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (61, "1m1s"),
            (11_400, "3h10m"),
            (3_600, "1h"),
            (90_061, "1d1h"),
            (86_461, "1d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(short(seconds), expected);
        }
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(age("2026-01-02T03:00:00.5Z", now).as_deref(), Some("4m5s"));
        assert_eq!(age("2027-01-02T03:00:00Z", now).as_deref(), Some("0s"));
        assert_eq!(age("yesterday", now), None);
    }
}
