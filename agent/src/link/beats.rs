//! When heartbeats are due. One rides with a sample where that is possible: both are in one packet then,
//! which costs the coordinator half of two.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::session::until;

/// Samples come once a second, and not sharply.
const MOST_SLACK: Duration = Duration::from_millis(250);

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

    /// Waits until one is to be sent. `sampled` is told of each sample that has been sent.
    pub async fn next(&mut self, sampled: &Notify) {
        loop {
            tokio::select! {
                biased;
                () = sampled.notified() => {
                    if self.rides(Instant::now()) {
                        return;
                    }
                }
                () = until(self.due) => return self.alone(Instant::now()),
            }
        }
    }

    /// One is sent by itself.
    fn alone(&mut self, now: Instant) {
        self.last = Some(now);
        self.due = now + self.pace;
    }

    /// Whether one is sent with the sample that has just been sent: only when one is about due. If samples
    /// come at the same pace, the next one is waited for.
    fn rides(&mut self, now: Instant) -> bool {
        let slack = self.slack();
        let last = self.last.filter(|last| now + slack < *last + self.pace);
        let early = last.is_some();
        let last = last.unwrap_or(now);
        self.last = Some(last);
        self.due = (now + self.pace + slack).min(last + self.pace + 2 * slack);
        !early
    }

    /// How much sooner or later than due one may ride; without a sample, twice as much later once.
    fn slack(&self) -> Duration {
        (self.pace / 4).min(MOST_SLACK)
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
            if now >= beats.due {
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
        let samples = [800, 1790, 2820, 3805];
        let expected = [(0, false), (800, true), (1790, true), (2820, true), (3805, true)];
        assert_eq!(sent(&samples, 4000), expected);
    }

    #[test]
    fn a_sample_soon_after_one_carries_none_and_the_next_does() {
        let samples = [100, 1100, 2100];
        assert_eq!(sent(&samples, 2500), [(0, false), (1100, true), (2100, true)]);
    }

    #[test]
    fn samples_that_stay_away_are_not_waited_for_long() {
        assert_eq!(sent(&[800], 3100), [(0, false), (800, true), (2050, false), (3050, false)]);
        assert_eq!(sent(&[700], 2600), [(0, false), (1500, false), (2500, false)]);
        for first in 0..1000 {
            let beats = sent(&[first, first + 5000], 7000);
            assert!(beats.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 1500), "{beats:?}");
        }
    }

    #[test]
    fn many_samples_do_not_make_many() {
        let samples: Vec<u64> = (0..100).map(|n| n * 50).collect();
        let beats = sent(&samples, 5000);
        assert!(beats.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 750), "{beats:?}");
        // A slow pace stays slow.
        let mut beats = Beats::new(10 * PACE, Instant::now());
        let begin = beats.due;
        beats.alone(begin);
        let rides = (1..=20).filter(|second| beats.rides(begin + *second * PACE));
        assert_eq!(rides.collect::<Vec<_>>(), [10, 20]);
    }
}
