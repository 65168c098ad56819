//! The values of Slurm's options: times, sizes, numbers of nodes and GPUs.

use std::time::Duration;

/// A time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    None,
    Time(Duration),
}

/// `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, or a word for no limit.
pub(super) fn time(text: &str) -> Option<Limit> {
    if ["unlimited", "infinite", "-1"].contains(&text.to_ascii_lowercase().as_str()) {
        return Some(Limit::None);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(whole(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> = clock.split(':').map(whole).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match (days, parts.as_slice()) {
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let hours = days.unwrap_or_default().checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    let seconds = minutes.checked_mul(60)?.checked_add(seconds)?;
    Some(if seconds == 0 { Limit::None } else { Limit::Time(Duration::from_secs(seconds)) })
}

/// A size in bytes: a whole number of MiB, or with a unit K, M, G, T (of 1024).
pub(super) fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits)?.to_ascii_uppercase();
    let bytes: u64 = match unit.trim_end_matches('B') {
        "K" => 1 << 10,
        "" if unit.is_empty() => 1 << 20,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    };
    whole(digits)?.checked_mul(bytes)
}

/// The least and the most nodes of `2` or `2-4`.
pub(super) fn nodes(text: &str) -> Option<(u64, u64)> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (whole(least)?, whole(most)?);
    (least <= most).then_some((least, most))
}

/// GPUs, perhaps of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpus {
    pub(super) model: Option<String>,
    pub(super) count: u64,
}

/// `8`, `h100:8`, or a model alone for one of it.
pub(super) fn gpus(text: &str) -> Option<Gpus> {
    let gpus = match text.split_once(':') {
        Some((model, count)) => Gpus { model: Some(model.to_owned()), count: whole(count)? },
        None => match whole(text) {
            Some(count) => Gpus { model: None, count },
            None => Gpus { model: Some(text.to_owned()), count: 1 },
        },
    };
    gpus.model.as_deref().is_none_or(crate::checks::is_label).then_some(gpus)
}

/// The GPUs of a list of generic resources, and its other items; `None` for a list that is none.
pub(super) fn gres(text: &str) -> Option<(Option<Gpus>, Vec<&str>)> {
    let (mut found, mut others) = (None, Vec::new());
    for item in text.split(',').filter(|item| !item.eq_ignore_ascii_case("none")) {
        let name = item.strip_prefix("gres/").unwrap_or(item);
        // Sockets stand in parentheses behind the count.
        let name = name.split_once('(').map_or(name, |(name, _)| name);
        let gpu = match name.split_once(':') {
            Some(("gpu", rest)) => gpus(rest)?,
            None if name == "gpu" => Gpus { model: None, count: 1 },
            _ => {
                others.push(item);
                continue;
            }
        };
        if found.replace(gpu).is_some() {
            return None;
        }
    }
    Some((found, others))
}

/// A number in digits alone.
pub(super) fn whole(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let cases = [
            ("90", 90 * 60),
            ("5:30", 330),
            ("2:00:01", 7201),
            ("1-2", 26 * 3600),
            ("1-02:30", 26 * 3600 + 1800),
            ("3-00:00:10", 3 * 86400 + 10),
        ];
        for (text, seconds) in cases {
            assert_eq!(time(text), Some(Limit::Time(Duration::from_secs(seconds))), "{text}");
        }
        for text in ["0", "UNLIMITED", "infinite", "0-0", "-1"] {
            assert_eq!(time(text), Some(Limit::None), "{text}");
        }
        for bad in ["", "x", "1:2:3:4", "1-", "-2", "1-2-3", "1h", "99999999999999999999", "+1"] {
            assert_eq!(time(bad), None, "{bad}");
        }
        assert_eq!(time("9999999999999999999-00"), None);
    }

    #[test]
    fn sizes() {
        let cases = [
            ("512", 512 << 20),
            ("64G", 64 << 30),
            ("64gb", 64 << 30),
            ("1T", 1 << 40),
            ("7K", 7 << 10),
            ("0", 0),
        ];
        for (text, bytes) in cases {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for bad in ["", "G", "5X", "-1", "1.5G", "5B", "99999999T", "5 G"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn nodes_and_gpus() {
        assert_eq!(nodes("4"), Some((4, 4)));
        assert_eq!(nodes("2-4"), Some((2, 4)));
        for bad in ["4-2", "a", "", "2-", "1k", "1,2"] {
            assert_eq!(nodes(bad), None, "{bad}");
        }
        let found = |model: Option<&str>, count| Some(Gpus { model: model.map(Into::into), count });
        assert_eq!(gpus("8"), found(None, 8));
        assert_eq!(gpus("h100:8"), found(Some("h100"), 8));
        assert_eq!(gpus("a100"), found(Some("a100"), 1));
        for bad in ["", "h100:", ":8", "h100:8,a100:8", "h100:x"] {
            assert_eq!(gpus(bad), None, "{bad}");
        }
        assert_eq!(
            gres("gpu:h100:8(S:0-1),nvme:1"),
            Some((found(Some("h100"), 8), vec!["nvme:1"]))
        );
        assert_eq!(gres("gpu"), Some((found(None, 1), vec![])));
        assert_eq!(gres("gres/gpu:2"), Some((found(None, 2), vec![])));
        assert_eq!(gres("none"), Some((None, vec![])));
        assert_eq!(gres("gpu:a100:1,gpu:h100:1"), None);
    }
}
