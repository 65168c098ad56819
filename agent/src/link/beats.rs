//! When heartbeats are due. One rides with a sample where that is possible: both are in one packet then,
//! which costs the coordinator half of two.
//!
//! Where samples are words as heartbeats are, a heartbeat is only needed for what it brings back: that there
//! was contact, and how the clocks stand. The answer costs the coordinator more than the word.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::session::until;

/// Samples come once a second, and not sharply.
const MOST_SLACK: Duration = Duration::from_millis(250);
/// While samples are words, the coordinator is asked for an answer this often, or at its pace where that is
/// slower. A fence may count from so much too early, never too late.
const ANSWERED: Duration = Duration::from_secs(3);

/// The heartbeats of one session.
pub struct Beats {
    /// Between two words.
    pace: Duration,
    /// Between two heartbeats, as long as samples come between them.
    period: Duration,
    last: Option<Instant>,
    due: Instant,
}

impl Beats {
    /// The first one is due at once. `words_in_samples`: the coordinator takes samples for words.
    pub fn new(pace: Duration, words_in_samples: bool, now: Instant) -> Beats {
        let period = if words_in_samples { pace.max(ANSWERED) } else { pace };
        Beats { pace, period, last: None, due: now }
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
        let last = self.last.filter(|last| now + slack < *last + self.period);
        let early = last.is_some();
        let last = last.unwrap_or(now);
        self.last = Some(last);
        self.due = (now + self.pace + slack).min(last + self.period + 2 * slack);
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
        sent_by(|begin| Beats::new(PACE, false, begin), samples, end)
    }

    fn sent_by(beats: impl Fn(Instant) -> Beats, samples: &[u64], end: u64) -> Vec<(u64, bool)> {
        let begin = Instant::now();
        let mut beats = beats(begin);
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
        let mut beats = Beats::new(10 * PACE, false, Instant::now());
        let begin = beats.due;
        beats.alone(begin);
        let rides = (1..=20).filter(|second| beats.rides(begin + *second * PACE));
        assert_eq!(rides.collect::<Vec<_>>(), [10, 20]);
    }

    #[test]
    fn where_samples_are_words_every_third_carries_one() {
        let with = |samples: &[u64], end| sent_by(|at| Beats::new(PACE, true, at), samples, end);
        let samples: Vec<u64> = (0..12).map(|n| 300 + n * 1000).collect();
        let rides = [(0, false), (3300, true), (6300, true), (9300, true)];
        assert_eq!(with(&samples, 11_500), rides);
        // When samples stay away, the pace of words is kept without them.
        assert_eq!(with(&[], 3500), [0, 1000, 2000, 3000].map(|ms| (ms, false)));
        assert_eq!(
            with(&[300, 1300], 4700),
            [(0, false), (2550, false), (3550, false), (4550, false)]
        );
        // And there are not two seconds without any word.
        for gap in 0..3000 {
            let samples = [300, 1300, 1300 + gap, 2300 + gap];
            let mut words: Vec<u64> = with(&samples, 6000).iter().map(|(ms, _)| *ms).collect();
            words.extend(samples);
            words.sort_unstable();
            assert!(words.windows(2).all(|pair| pair[1] - pair[0] <= 1500), "{gap}: {words:?}");
        }
    }

    #[test]
    fn a_pace_slower_than_that_of_answers_stays() {
        let samples: Vec<u64> = (0..20).map(|n| n * 1000).collect();
        let beats = sent_by(|at| Beats::new(5 * PACE, true, at), &samples, 19_000);
        assert_eq!(beats, [(0, false), (5000, true), (10_000, true), (15_000, true)]);
    }
}
