//! When heartbeats are due. One rides with a sample where that is possible: both are in one packet then,
//! which costs the coordinator half of two.

use std::time::Duration;

use tokio::time::Instant;

/// The heartbeats of one session.
pub struct Beats {
    pace: Duration,
    last: Option<Instant>,
    due: Instant,
}

impl Beats {
    /// The first one is due at once.
    pub fn new(pace: Duration, now: Instant) -> Beats {
        Beats { pace, last: None, due: now }
    }

    /// When one must be sent by itself.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// One is sent by itself.
    pub fn alone(&mut self, now: Instant) {
        self.last = Some(now);
        self.due = now + self.pace;
    }

    /// Whether one is sent with the sample that has just been sent: not sooner than half the pace after
    /// the one before. If samples come at about the same pace, the next one is waited for; there are never
    /// more than one and a half paces between two heartbeats.
    pub fn rides(&mut self, now: Instant) -> bool {
        let last = self.last.filter(|last| now < *last + self.pace / 2);
        let early = last.is_some();
        let last = last.unwrap_or(now);
        self.last = Some(last);
        self.due = (now + self.pace * 5 / 4).min(last + self.pace * 3 / 2);
        !early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Duration = Duration::from_secs(1);

    /// When heartbeats are sent, in milliseconds, with samples at these times, until `end`.
    fn sent(samples: &[u64], end: u64) -> Vec<(u64, bool)> {
        let begin = Instant::now();
        let mut beats = Beats::new(PACE, begin);
        let mut sent = Vec::new();
        for ms in 0..=end {
            let now = begin + Duration::from_millis(ms);
            if now >= beats.due() {
                beats.alone(now);
                sent.push((ms, false));
            }
            if samples.contains(&ms) && beats.rides(now) {
                sent.push((ms, true));
            }
        }
        sent
    }

    #[test]
    fn without_samples_they_keep_the_pace() {
        assert_eq!(sent(&[], 3500), [0, 1000, 2000, 3000].map(|ms| (ms, false)));
    }

    #[test]
    fn they_ride_with_samples_of_about_the_same_pace() {
        let samples = [700, 1690, 2720, 3705];
        let expected = [(0, false), (700, true), (1690, true), (2720, true), (3705, true)];
        assert_eq!(sent(&samples, 4000), expected);
    }

    #[test]
    fn a_sample_soon_after_one_carries_none_and_the_next_does() {
        let samples = [100, 1100, 2100];
        assert_eq!(sent(&samples, 2500), [(0, false), (1100, true), (2100, true)]);
    }

    #[test]
    fn samples_that_stay_away_are_not_waited_for_long() {
        assert_eq!(sent(&[600], 3000), [(0, false), (600, true), (1850, false), (2850, false)]);
        for first in 0..1000 {
            let beats = sent(&[first, first + 5000], 7000);
            assert!(beats.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 1500), "{beats:?}");
        }
    }

    #[test]
    fn many_samples_do_not_make_many() {
        let samples: Vec<u64> = (0..100).map(|n| n * 50).collect();
        let beats = sent(&samples, 5000);
        assert!(beats.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 500), "{beats:?}");
    }
}
