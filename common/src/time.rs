//! Time as an argument: what a core is told about "now".

use std::time::{SystemTime, UNIX_EPOCH};

/// One reading of both clocks, in milliseconds.
///
/// Durations and deadlines use `boot` (CLOCK_BOOTTIME: monotonic, counts suspend). `wall` is for
/// showing to people and for certificates only, because it can jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    pub boot_ms: u64,
    pub wall_ms: u64,
}

impl Timestamp {
    /// Reads both clocks. Only drivers and I/O code call this; cores get a value.
    pub fn now() -> Self {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp {
            boot_ms: boot.tv_sec as u64 * 1000 + boot.tv_nsec as u64 / 1_000_000,
            wall_ms: wall.as_millis() as u64,
        }
    }

    /// Milliseconds from `earlier` to this instant by the boot clock, 0 when it is later. A reading of
    /// an earlier boot is made one of this boot first.
    pub fn ms_since(self, earlier: Timestamp) -> u64 {
        let ms = self.boot_ms.wrapping_sub(earlier.boot_ms).cast_signed();
        u64::try_from(ms).unwrap_or(0)
    }

    /// A reading of an earlier boot as one of this boot: what lies between is known from the wall clock
    /// only. Such a time is negative, and wraps around: it is good for [`Timestamp::ms_since`], not
    /// for comparing.
    pub fn in_this_boot(self, now: Timestamp) -> Self {
        let ago = now.wall_ms.saturating_sub(self.wall_ms);
        Timestamp { boot_ms: now.boot_ms.wrapping_sub(ago), ..self }
    }

    /// The same instant moved forward, for tests and deadlines.
    pub fn plus_ms(self, ms: u64) -> Self {
        Timestamp { boot_ms: self.boot_ms + ms, wall_ms: self.wall_ms + ms }
    }
}

/// How long something has gone on, also when the machine was started again in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopwatch {
    /// What it counts from: the beginning, or the last time that it was carried over.
    pub since: Timestamp,
    /// Milliseconds that had passed by then.
    pub before_ms: u64,
}

impl Stopwatch {
    pub fn start(now: Timestamp) -> Self {
        Stopwatch { since: now, before_ms: 0 }
    }

    /// Milliseconds so far.
    pub fn ms(self, now: Timestamp) -> u64 {
        self.before_ms.saturating_add(now.ms_since(self.since))
    }

    /// Carries it over to another boot, whose clock began anew: what lies between is known from the
    /// wall clock only, and is not negative.
    pub fn over_reboot(&mut self, now: Timestamp) {
        let between = now.wall_ms.saturating_sub(self.since.wall_ms);
        *self = Stopwatch { since: now, before_ms: self.before_ms.saturating_add(between) };
    }
}

/// RFC 3339 text in UTC with milliseconds of a wall-clock reading.
pub fn wall_text(wall_ms: u64) -> String {
    i64::try_from(wall_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| "out of range".to_owned(), |t| format!("{t:.3}"))
}

/// The kernel's id of the current boot, or `None` where `/proc` does not show it.
pub fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_text_is_rfc3339() {
        assert_eq!(wall_text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(wall_text(u64::MAX), "out of range");
    }

    #[test]
    fn a_stopwatch_goes_on_over_reboots_whatever_the_clocks_do() {
        let at = |boot_ms, wall_ms| Timestamp { boot_ms, wall_ms };
        let mut watch = Stopwatch::start(at(1_000, 50_000));
        assert_eq!(watch.ms(at(3_000, 52_000)), 2_000);
        // A jump of the wall clock is no time.
        assert_eq!(watch.ms(at(3_000, 9_000_000)), 2_000);
        // Started again, and up for longer than the first time.
        watch.over_reboot(at(700, 60_000));
        assert_eq!(watch.ms(at(5_700, 65_000)), 15_000);
        // Again, with a wall clock that went back.
        watch.over_reboot(at(10, 1_000));
        assert_eq!(watch.ms(at(20, 1_010)), 10_010);
        assert_eq!(at(9_000, 50_000).in_this_boot(at(700, 50_300)), at(400, 50_000));
        let long_ago = at(9_000, 50_000).in_this_boot(at(700, 99_000));
        assert_eq!(at(1_700, 100_000).ms_since(long_ago), 50_000);
        assert_eq!(long_ago.ms_since(at(1_700, 100_000)), 0);
    }

    #[test]
    fn boot_clock_does_not_go_back() {
        let first = Timestamp::now();
        assert!(Timestamp::now().boot_ms >= first.boot_ms);
    }
}
