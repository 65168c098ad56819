//! The engine's own time: milliseconds that only grow, over restarts and reboots too.
//!
//! Readings carry "now" as the agent saw it. A clock that goes back adds nothing, one that leaps ahead
//! adds at most an hour; both are counted, so that they can be said, and time goes on from there.

use gangline_common::time::Timestamp;

use crate::saved::{Oddities, SavedClock};

/// The most that one reading moves time. Longer than any pause between two readings of a live agent.
pub const MAX_STEP_MS: u64 = 3_600_000;
/// The most that counts for the time in which no agent ran: longer than any window.
pub const MAX_GAP_MS: u64 = 7 * 24 * 3_600_000;

/// An instant for the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Milliseconds of the engine's own time.
    pub ms: u64,
    /// What the wall clock showed, for people.
    pub wall_ms: u64,
}

impl At {
    pub fn since(self, earlier_ms: u64) -> u64 {
        self.ms.saturating_sub(earlier_ms)
    }
}

#[derive(Debug, Clone)]
pub struct Clock {
    ms: u64,
    last: Timestamp,
    pub oddities: Oddities,
}

impl Clock {
    /// Goes on from `saved`: by the boot clock in the same boot, by the wall clock after another.
    pub fn new(saved: SavedClock, same_boot: bool, now: Timestamp) -> Self {
        let gap = if same_boot {
            now.boot_ms.saturating_sub(saved.boot_ms)
        } else {
            now.wall_ms.saturating_sub(saved.wall_ms)
        };
        // Nothing was saved: time begins at one, so that a zero of the file stays in the past.
        let gap = if saved == SavedClock::default() { 1 } else { gap.min(MAX_GAP_MS) };
        Clock { ms: saved.ms.saturating_add(gap), last: now, oddities: Oddities::default() }
    }

    pub fn advance(&mut self, now: Timestamp) -> At {
        self.ms = self.at(now).ms;
        if now.boot_ms < self.last.boot_ms {
            self.oddities.went_back += 1;
        } else if now.boot_ms - self.last.boot_ms > MAX_STEP_MS {
            self.oddities.leapt += 1;
        }
        self.last = now;
        At { ms: self.ms, wall_ms: now.wall_ms }
    }

    /// What `advance` would give.
    pub fn at(&self, now: Timestamp) -> At {
        let step = now.boot_ms.saturating_sub(self.last.boot_ms).min(MAX_STEP_MS);
        At { ms: self.ms.saturating_add(step), wall_ms: now.wall_ms }
    }

    pub fn saved(&self) -> SavedClock {
        SavedClock { ms: self.ms, boot_ms: self.last.boot_ms, wall_ms: self.last.wall_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(boot_ms: u64, wall_ms: u64) -> Timestamp {
        Timestamp { boot_ms, wall_ms }
    }

    #[test]
    fn time_only_grows_and_odd_clocks_are_counted() {
        let mut clock = Clock::new(SavedClock::default(), true, at(1_000, 50_000));
        let start = clock.advance(at(1_000, 50_000)).ms;
        assert_eq!(clock.advance(at(3_000, 52_000)).ms - start, 2_000);
        assert_eq!(clock.advance(at(500, 49_000)).ms - start, 2_000);
        assert_eq!(clock.advance(at(1_500, 50_000)).ms - start, 3_000);
        assert_eq!(clock.advance(at(u64::MAX, u64::MAX)).ms - start, 3_000 + MAX_STEP_MS);
        assert_eq!(clock.oddities, Oddities { went_back: 1, leapt: 1 });
    }

    #[test]
    fn it_goes_on_after_a_restart_and_after_a_reboot() {
        let saved = SavedClock { ms: 10_000, boot_ms: 5_000, wall_ms: 100_000 };
        assert_eq!(Clock::new(saved, true, at(8_000, 0)).ms, 13_000);
        assert_eq!(Clock::new(saved, false, at(7, 160_000)).ms, 70_000);
        assert_eq!(Clock::new(saved, false, at(7, 1)).ms, 10_000);
        assert_eq!(Clock::new(saved, true, at(u64::MAX, 1)).ms, 10_000 + MAX_GAP_MS);
    }
}
