//! Durations (`90s`, `3d12h`, `1-02:00:00`) and sizes (`512GiB`), read and written exactly.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Longest duration that is taken, so that sums of durations cannot overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * DAY);

const DURATION_UNITS: [(&str, u64); 4] = [("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", 1)];

/// Binary units first: when a size is written, the largest of these that fits it is taken.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// What a duration or size looks like, for messages.
pub(crate) const DURATION_FORM: &str = "a duration such as 90s, 5m, 3d12h or 1-02:30:00";
pub(crate) const SIZE_FORM: &str = "a size such as 512GiB or 64GB";

/// A duration: either parts with the units d, h, m, s in this order, each at most once, or
/// `D-HH:MM:SS`. At most 365 days. `None` for anything else.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let seconds = match text.split_once('-') {
        Some((days, clock)) => days_and_clock(days, clock)?,
        None => parts(text)?,
    };
    let duration = Duration::from_secs(seconds);
    (duration <= MAX_DURATION).then_some(duration)
}

fn parts(mut text: &str) -> Option<u64> {
    let mut total: u64 = 0;
    let mut units = DURATION_UNITS.iter();
    if text.is_empty() {
        return None;
    }
    while !text.is_empty() {
        let (number, rest) = leading_number(text)?;
        let (unit, seconds) = units.find(|(unit, _)| rest.starts_with(unit))?;
        total = total.checked_add(number.checked_mul(*seconds)?)?;
        text = rest.strip_prefix(unit)?;
    }
    Some(total)
}

fn days_and_clock(days: &str, clock: &str) -> Option<u64> {
    let mut fields = clock.split(':');
    let hours = two_digits(fields.next()?, 23)?;
    let minutes = two_digits(fields.next()?, 59)?;
    let seconds = two_digits(fields.next()?, 59)?;
    if fields.next().is_some() {
        return None;
    }
    let (days, rest) = leading_number(days)?;
    if !rest.is_empty() {
        return None;
    }
    days.checked_mul(DAY)?.checked_add(hours * HOUR + minutes * MINUTE + seconds)
}

fn two_digits(text: &str, max: u64) -> Option<u64> {
    let (number, rest) = leading_number(text)?;
    (text.len() == 2 && rest.is_empty() && number <= max).then_some(number)
}

/// The decimal number at the start of `text`, and what follows it.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, rest))
}

/// A duration in the form that [`duration`] reads; a fraction of a second is left out.
pub(crate) fn write_duration(duration: Duration) -> String {
    let mut seconds = duration.as_secs();
    if seconds == 0 {
        return "0s".to_owned();
    }
    let mut out = String::new();
    for (unit, length) in DURATION_UNITS {
        if seconds >= length {
            out.push_str(&format!("{}{unit}", seconds / length));
            seconds %= length;
        }
    }
    out
}

/// A size in bytes: a whole number and a unit. `None` for anything else.
pub(crate) fn size(text: &str) -> Option<u64> {
    let (number, rest) = leading_number(text)?;
    let unit = rest.trim_start_matches(' ');
    let (_, bytes) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes)
}

/// A size in the form that [`size`] reads, with the largest binary unit that loses nothing.
pub(crate) fn write_size(bytes: u64) -> String {
    let fitting = SIZE_UNITS
        .iter()
        .filter(|(name, unit)| *unit == 1 || name.ends_with("iB"))
        .find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    match fitting {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let good = [
            ("90s", 90),
            ("5m", 300),
            ("2h", 7200),
            ("3d12h", 3 * DAY + 12 * HOUR),
            ("1d1s", DAY + 1),
            ("0s", 0),
            ("0-00:00:30", 30),
            ("1-02:03:04", DAY + 2 * HOUR + 3 * MINUTE + 4),
            ("365d", 365 * DAY),
        ];
        for (text, seconds) in good {
            assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        let bad = [
            "",
            "5",
            "m",
            "5 m",
            "-5m",
            "5m2h",
            "5m5m",
            "1.5h",
            "5M",
            "1-2:03:04",
            "1-24:00:00",
            "1-00:60:00",
            "1-00:00",
            "1-00:00:00:00",
            "x-00:00:00",
            "366d",
            "+5m",
            "99999999999999999999s",
            "9999999999999999999d",
        ];
        for text in bad {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes() {
        let good = [
            ("512GiB", 512 << 30),
            ("1 TiB", 1 << 40),
            ("64GB", 64_000_000_000),
            ("0B", 0),
            ("7KB", 7_000),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "5", "GiB", "5gib", "5G", "1.5GiB", "-1GiB", "99999999TiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn written_forms() {
        assert_eq!(write_duration(Duration::from_secs(DAY + 61)), "1d1m1s");
        assert_eq!(write_duration(Duration::ZERO), "0s");
        assert_eq!(write_size(1 << 40), "1TiB");
        assert_eq!(write_size(1536 << 30), "1536GiB");
        assert_eq!(write_size(1000), "1000B");
        assert_eq!(write_size(0), "0B");
    }
}
