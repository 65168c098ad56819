//! What was seen within the last minutes.

use std::collections::VecDeque;

use crate::collectors::accelerator::{WINDOW_MS, clock_reason};

/// Things with their times; of more than `MOST` the oldest are forgotten.
#[derive(Debug)]
pub(super) struct Window<T, const MOST: usize>(VecDeque<(u64, T)>);

/// Reasons of clocks: one reading a second, and some room for seconds that are short.
pub(super) type ClockWindow = Window<u64, 330>;
/// Codes of Xid errors. Of a GPU that reports more, the newest count.
pub(super) type XidWindow = Window<u64, 1024>;

impl<T, const MOST: usize> Default for Window<T, MOST> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Copy, const MOST: usize> Window<T, MOST> {
    /// Times are milliseconds of the boot clock.
    pub(super) fn add(&mut self, at_ms: u64, seen: T) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((at_ms, seen));
    }

    /// What is still within the window.
    pub(super) fn newest(&mut self, now_ms: u64) -> impl Iterator<Item = T> {
        let is_old = |at_ms: u64| now_ms.saturating_sub(at_ms) >= WINDOW_MS;
        while self.0.front().is_some_and(|(at_ms, _)| is_old(*at_ms)) {
            self.0.pop_front();
        }
        self.0.iter().map(|(_, seen)| *seen)
    }
}

impl ClockWindow {
    /// How many readings had each bit; `None` without a reading.
    pub(super) fn counts(&mut self, now_ms: u64) -> Option<[u16; clock_reason::BITS]> {
        let mut counts = None;
        for reasons in self.newest(now_ms) {
            let counts = counts.get_or_insert([0_u16; clock_reason::BITS]);
            for (bit, count) in counts.iter_mut().enumerate() {
                *count = count.saturating_add(u16::from(reasons >> bit & 1 == 1));
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_count_for_five_minutes() {
        let mut window = ClockWindow::default();
        assert_eq!(window.counts(7), None, "without a reading nothing is known");
        // A hundred seconds of heat, and then nothing; bits that have no name do not count.
        for second in 0..400 {
            let hot = clock_reason::SW_THERMAL | clock_reason::HW_THERMAL;
            window.add(second * 1000, if second < 100 { hot } else { 1 << 40 });
            let counts = window.counts(second * 1000).expect("readings");
            let left = match second {
                0..100 => second + 1,
                100..300 => 100,
                _ => 399 - second,
            };
            assert_eq!([counts[5], counts[6]], [left as u16; 2], "after {second} s");
            assert_eq!(counts.iter().map(|count| u64::from(*count)).sum::<u64>(), 2 * left);
        }
        // The readings failed, and their time passes.
        assert_eq!(window.counts(698_999), Some([0; clock_reason::BITS]));
        assert_eq!(window.counts(699_000), None);
        assert_eq!(window.0.len(), 0);
    }

    #[test]
    fn a_window_is_bounded_and_what_is_newest_stays() {
        let mut window = Window::<u64, 3>::default();
        for code in 0..10 {
            window.add(code, code);
        }
        assert_eq!(window.newest(10).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(window.0.capacity() <= 4);
        // A clock that another thread has read later is no reason to forget.
        assert_eq!(window.newest(0).collect::<Vec<_>>(), [7, 8, 9]);
    }
}
