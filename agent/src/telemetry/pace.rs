//! How often readings are taken: once a second, and down to once in ten seconds while they cost too much CPU or
//! the coordinator does not keep up.

use std::time::Duration;

/// The usual time between two samples, and the longest, in milliseconds.
pub(super) const USUAL_MS: u32 = 1000;
const LONGEST_MS: u32 = 10_000;
/// What all readings together may take of one CPU.
const BUDGET: f64 = 0.05;
/// After so many heavy rounds in a row the time doubles; after so many light ones it halves. The second is
/// the larger one, so that it does not swing.
const HEAVY_ROUNDS: u32 = 3;
const LIGHT_ROUNDS: u32 = 10;

/// What one round was like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// CPU time of all readings since the round before, and how long ago that was.
    pub(super) spent: Duration,
    pub(super) wall: Duration,
    /// There is a session, and the sample before this one has not been sent yet.
    pub(super) behind: bool,
}

/// Decides from round to round.
#[derive(Debug)]
pub(super) struct Pacer {
    interval_ms: u32,
    heavy: u32,
    light: u32,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Pacer { interval_ms: USUAL_MS, heavy: 0, light: 0 }
    }

    pub(super) fn interval_ms(&self) -> u32 {
        self.interval_ms
    }

    /// Takes note of a round; true when the time between two has changed.
    pub(super) fn note(&mut self, round: Round) -> bool {
        let before = self.interval_ms;
        let budget = round.wall.mul_f64(BUDGET);
        if round.behind || round.spent > budget {
            self.light = 0;
            self.heavy += 1;
            if self.heavy >= HEAVY_ROUNDS {
                self.heavy = 0;
                self.interval_ms = (self.interval_ms * 2).min(LONGEST_MS);
            }
        } else {
            self.heavy = 0;
            self.light += 1;
            if self.light >= LIGHT_ROUNDS {
                self.light = 0;
                self.interval_ms = (self.interval_ms / 2).max(USUAL_MS);
            }
        }
        self.interval_ms != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(spent_ms: u64, behind: bool) -> Round {
        let (spent, wall) = (Duration::from_millis(spent_ms), Duration::from_secs(1));
        Round { spent, wall, behind }
    }

    #[test]
    fn heavy_rounds_slow_down_to_a_bound_and_light_ones_come_back() {
        let mut pacer = Pacer::new();
        let intervals: Vec<u32> = (0..15)
            .map(|_| {
                pacer.note(round(51, false));
                pacer.interval_ms()
            })
            .collect();
        let (one, two, four, eight, ten) = (1000, 2000, 4000, 8000, 10_000);
        let expected =
            [one, one, two, two, two, four, four, four, eight, eight, eight, ten, ten, ten, ten];
        assert_eq!(intervals, expected);
        for _ in 0..LIGHT_ROUNDS * 4 {
            pacer.note(round(50, false));
        }
        assert_eq!(pacer.interval_ms(), USUAL_MS);
        assert!(!pacer.note(round(0, false)));
    }

    #[test]
    fn a_coordinator_that_is_behind_slows_down_and_now_and_then_does_not() {
        let mut pacer = Pacer::new();
        for _ in 0..20 {
            pacer.note(round(0, true));
            pacer.note(round(0, true));
            pacer.note(round(0, false));
        }
        assert_eq!(pacer.interval_ms(), USUAL_MS);
        for _ in 0..HEAVY_ROUNDS {
            pacer.note(round(0, true));
        }
        assert_eq!(pacer.interval_ms(), 2 * USUAL_MS);
    }
}
