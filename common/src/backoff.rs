//! Waiting times between reconnects: exponential with full jitter, as a pure iterator.

use std::time::Duration;

/// Yields waits between `floor` and `ceiling`; random numbers come from the caller.
#[derive(Debug, Clone)]
pub struct Backoff {
    floor: Duration,
    ceiling: Duration,
    attempt: u32,
}

impl Backoff {
    pub fn new(floor: Duration, ceiling: Duration) -> Self {
        Backoff { floor, ceiling, attempt: 0 }
    }

    /// The next wait: uniform between `floor` and `floor * 2^attempt`, at most `ceiling`.
    /// `random` is any 64 random bits.
    pub fn next_wait(&mut self, random: u64) -> Duration {
        let exponential = self.floor.saturating_mul(1 << self.attempt.min(16));
        self.attempt = self.attempt.saturating_add(1);
        let high = exponential.min(self.ceiling).max(self.floor);
        let spread = (high - self.floor).as_micros() as u64;
        self.floor + Duration::from_micros(random % (spread + 1))
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_stay_between_the_bounds_and_grow() {
        let floor = Duration::from_millis(200);
        let ceiling = Duration::from_secs(5);
        let mut backoff = Backoff::new(floor, ceiling);
        assert_eq!(backoff.next_wait(u64::MAX), floor);
        let widest = (0..40).map(|_| backoff.next_wait(4_799_999)).max();
        assert!(widest.is_some_and(|wait| wait > Duration::from_secs(3) && wait <= ceiling));
        backoff.reset();
        assert_eq!(backoff.next_wait(7), floor);
    }
}
