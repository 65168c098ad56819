//! The time of a line, in the many forms that programs print it.

use regex::{Captures, Regex};

use crate::pattern::Pattern;

/// How far into a line its time is looked for, in bytes.
const LOOKED_AT_BYTES: usize = 96;

const DAY_MS: i64 = 24 * 3600 * 1000;
/// No clock of a zone is farther from UTC than this, either way.
const FARTHEST_ZONE_MS: i64 = 15 * 3600 * 1000;
/// Zones that are not a whole number of hours ahead of UTC, in minutes.
const ODD_ZONES: [i64; 13] = [-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825];
/// A line may seem to be read so long before it was written.
const CLOCKS_DIFFER_MS: i64 = 120_000;
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// A time as a line gives it: some lines leave out the year, or the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    year: Option<i32>,
    /// Month and day, from 1.
    day: Option<(u8, u8)>,
    /// Milliseconds since midnight, UTC where the line says so.
    of_day_ms: i64,
    /// The line says in which zone.
    has_zone: bool,
}

impl Stamp {
    /// Milliseconds since 1970, with `context` for what it does not say.
    pub(crate) fn resolve(self, context: Context) -> i64 {
        let (month, day) = self.day.unwrap_or(context.day);
        days(self.year.unwrap_or(context.year), month, day) * DAY_MS + self.of_day_ms
    }

    /// Whether its zone has to be found out.
    pub(crate) fn is_local(self) -> bool {
        !self.has_zone
    }

    /// The same of a line that was written around `at_ms`: what it does not say is chosen so that it
    /// comes nearest to that.
    pub(crate) fn near(self, at_ms: i64) -> i64 {
        let year = 1970 + (at_ms.div_euclid(DAY_MS) * 400).div_euclid(146_097);
        let year = i32::try_from(year).unwrap_or(i32::MAX - 1);
        let resolved =
            |year: i32, day: (u8, u8)| days(year, day.0, day.1) * DAY_MS + self.of_day_ms;
        let candidates = match (self.year, self.day) {
            (Some(year), Some(day)) => [resolved(year, day); 3],
            (None, Some(day)) => [-1, 0, 1].map(|more| resolved(year.saturating_add(more), day)),
            (_, None) => {
                let midnight = at_ms.div_euclid(DAY_MS) * DAY_MS;
                [-1, 0, 1].map(|more| midnight + more * DAY_MS + self.of_day_ms)
            }
        };
        candidates.into_iter().min_by_key(|at| at.abs_diff(at_ms)).unwrap_or(at_ms)
    }

    /// How far its clock seems to be ahead of the one that says that it was read at `read_ms`; `None`
    /// for a line that is not of that time.
    pub(crate) fn lead_ms(self, read_ms: i64) -> Option<i64> {
        let lead = self.near(read_ms).saturating_sub(read_ms);
        (lead.abs() <= FARTHEST_ZONE_MS).then_some(lead)
    }
}

/// The zone, in milliseconds ahead of UTC, of a log whose lines lead by that much at most. A line is read
/// after it was written, sometimes long after: it is the next zone that there is.
pub(crate) fn zone_of(lead_ms: i64) -> i64 {
    let whole = (-12..=14).map(|hours| hours * 60);
    let zones = whole.chain(ODD_ZONES).map(|minutes: i64| minutes * 60_000);
    let next = zones.filter(|zone| *zone >= lead_ms.saturating_sub(CLOCKS_DIFFER_MS)).min();
    next.unwrap_or_default()
}

/// What the lines of one failure that say more tell about those that say less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    year: i32,
    day: (u8, u8),
}

impl Context {
    /// The latest year and day of any of `stamps`.
    pub(crate) fn of(stamps: impl Iterator<Item = Stamp> + Clone) -> Context {
        let year = stamps.clone().filter_map(|stamp| stamp.year).max().unwrap_or(2000);
        let day = stamps.filter_map(|stamp| stamp.day).max().unwrap_or((1, 1));
        Context { year, day }
    }
}

/// Days from 1970-01-01 to a day of the Gregorian calendar.
fn days(year: i32, month: u8, day: u8) -> i64 {
    let (year, month) = (i64::from(year), i64::from(month));
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// One expression for all forms; the first that fits in the line is taken.
static FORMS: Pattern = Pattern::new(|| {
    let clock = r"(?P<H>[0-2][0-9]):(?P<M>[0-5][0-9]):(?P<S>[0-6][0-9])(?:[.,](?P<f>[0-9]{1,9}))?";
    let form = format!(
        r"(?x)(?:
            (?P<y>20[0-9]{{2}})[-/](?P<m>[0-1][0-9])[-/](?P<d>[0-3][0-9])[T\x20]
          | (?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\x20+(?P<md>[0-9]{{1,2}})\x20
          | \b(?P<m2>[0-1][0-9])-(?P<d2>[0-3][0-9])\x20
          | \b[EWIF](?P<m3>[0-1]?[0-9])(?P<d3>[0-3][0-9])\x20
          | \b
        ){clock}
        (?:(?P<z>Z|[+-][0-9]{{2}}:?[0-9]{{2}})|\x20(?P<y2>20[0-9]{{2}})\b)?"
    );
    Regex::new(&form).ok()
});

/// The time at the start of `line`, if there is one.
pub(crate) fn stamp(line: &str) -> Option<Stamp> {
    let mut end = LOOKED_AT_BYTES.min(line.len());
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let start = line.get(..end)?;
    // Cheap, and true of most lines without a time.
    if !start.as_bytes().windows(3).any(|w| matches!(w, [b'0'..=b'9', b':', b'0'..=b'5'])) {
        return None;
    }
    let found = FORMS.captures(start)?;
    let number = |name: &str| found.name(name).and_then(|text| text.as_str().parse::<i64>().ok());
    let of_day = (number("H")? * 3600 + number("M")? * 60 + number("S")?) * 1000;
    let fraction = found.name("f").map_or(0, |text| thousandths(text.as_str()));
    let two = |month: &str, day: &str| Some((number(month)?, number(day)?));
    let named = || Some((month_of(&found)?, number("md")?));
    let day = two("m", "d").or_else(named).or_else(|| two("m2", "d2")).or_else(|| two("m3", "d3"));
    let day = day.filter(|(month, day)| (1..=12).contains(month) && (1..=31).contains(day));
    let day = day.and_then(|(m, d)| Some((u8::try_from(m).ok()?, u8::try_from(d).ok()?)));
    let year = number("y").or_else(|| number("y2")).and_then(|year| i32::try_from(year).ok());
    let zone = found.name("z").map(|text| zone_ms(text.as_str()));
    let of_day_ms = of_day + fraction - zone.unwrap_or_default();
    Some(Stamp { year, day, of_day_ms, has_zone: zone.is_some() })
}

fn month_of(found: &Captures<'_>) -> Option<i64> {
    let name = found.name("mon")?.as_str().to_ascii_lowercase();
    let index = MONTHS.iter().position(|month| **month == name)?;
    i64::try_from(index + 1).ok()
}

/// The first three digits after the point.
fn thousandths(digits: &str) -> i64 {
    digits.bytes().chain([b'0'; 3]).take(3).fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'))
}

/// The offset of a zone such as `+08:00`, in milliseconds.
fn zone_ms(text: &str) -> i64 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let Ok(number) = digits.parse::<i64>() else { return 0 };
    let minutes = number / 100 * 60 + number % 100;
    if text.starts_with('-') { -minutes * 60_000 } else { minutes * 60_000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: &str) -> Option<i64> {
        let context = Context { year: 2025, day: (3, 23) };
        stamp(line).map(|stamp| stamp.resolve(context))
    }

    #[test]
    fn a_zone_is_the_next_one_that_there_is() {
        let minutes = |lead: i64| zone_of(lead * 60_000) / 60_000;
        let late = [(0, 0), (-9, 0), (1, 0), (471, 480), (480, 480), (329, 330), (-425, -420)];
        for (lead, zone) in late {
            assert_eq!(minutes(lead), zone, "{lead}");
        }
        assert_eq!(zone_of(i64::MAX), 0);
    }

    #[test]
    fn every_form_is_the_same_moment() {
        let expected = 1_742_702_951_250;
        for line in [
            "2025-03-23T04:09:11.250Z stderr F text",
            "[2025-03-23 04:09:11,250 E 412 412] (raylet) text",
            "2025/03/23 04:09:11.250 text",
            "ERROR 03-23 04:09:11.250 [core.py:708] text",
            "[rank0]:[E323 04:09:11.250257255 ProcessGroupNCCL.cpp:607] text",
            "E0323 04:09:11.250271 1234 file.cpp:123] text",
            "[Sun Mar 23 04:09:11.250 2025] text",
            "(raylet) 2025-03-23T12:09:11.250+08:00 text",
            "[04:09:11.250] WARNING text",
        ] {
            assert_eq!(at(line), Some(expected), "{line}");
        }
        assert_eq!(at("Mar 23 04:09:11 gpu-1 kernel: text"), Some(expected - 250));
        assert_eq!(at("[Sun Mar 23 04:09:11 2025] NVRM: text"), Some(expected - 250));
    }

    #[test]
    fn other_numbers_are_no_time() {
        for line in ["[ 1911.220145] NVRM", "1:2:3", "Xid (PCI:0000:61:00): 119", "", "12:61:00"] {
            assert_eq!(at(line), None, "{line}");
        }
    }
}
