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

    /// Milliseconds from `earlier` to this instant: by the boot clock, or by the wall clock when the
    /// machine was started again in between.
    pub fn ms_since(self, earlier: Timestamp) -> u64 {
        match self.boot_ms.checked_sub(earlier.boot_ms) {
            Some(ms) => ms,
            None => self.wall_ms.saturating_sub(earlier.wall_ms),
        }
    }

    /// The same instant moved forward, for tests and deadlines.
    pub fn plus_ms(self, ms: u64) -> Self {
        Timestamp { boot_ms: self.boot_ms + ms, wall_ms: self.wall_ms + ms }
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
    fn boot_clock_does_not_go_back() {
        let first = Timestamp::now();
        assert!(Timestamp::now().boot_ms >= first.boot_ms);
    }
}
