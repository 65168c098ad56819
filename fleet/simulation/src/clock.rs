//! Clocks of one machine: the boot clock only grows, the wall clock may be set.

use gangline_common::time::Timestamp;

/// Wall time at the begin of a simulation.
const BEGIN_WALL_MS: u64 = 1_800_000_000_000;

/// Tells what a machine's clocks show at a moment of simulated time, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Boot clock at the moment `booted_ms`.
    uptime_ms: u64,
    booted_ms: u64,
    /// How far the wall clock is off.
    wall_off_ms: i64,
}

impl Clock {
    /// A machine that has been up for `uptime_ms` at moment 0.
    pub fn new(uptime_ms: u64) -> Self {
        Clock { uptime_ms, booted_ms: 0, wall_off_ms: 0 }
    }

    pub fn at(&self, moment_ms: u64) -> Timestamp {
        Timestamp {
            boot_ms: self.uptime_ms + moment_ms.saturating_sub(self.booted_ms),
            wall_ms: (BEGIN_WALL_MS + moment_ms).saturating_add_signed(self.wall_off_ms),
        }
    }

    /// The machine is started again: its boot clock begins anew.
    pub fn reboot(&mut self, moment_ms: u64) {
        (self.uptime_ms, self.booted_ms) = (0, moment_ms);
    }

    /// Somebody sets the wall clock.
    pub fn set_wall_off(&mut self, off_ms: i64) {
        self.wall_off_ms = off_ms;
    }
}
