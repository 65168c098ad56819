//! The waits before something is tried again.

use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

/// The waits before a lost connection is made again, each twice as long as the one before.
#[derive(Debug)]
pub struct Pauses(Duration);

impl Pauses {
    /// The first of them.
    const FIRST: Duration = Duration::from_millis(250);
    /// None is longer.
    pub const LONGEST: Duration = Duration::from_secs(5);

    /// Waits; the next time for longer.
    pub async fn pause(&mut self) {
        tokio::time::sleep(jittered(self.0)).await;
        self.0 = (self.0 * 2).min(Self::LONGEST);
    }
}

impl Default for Pauses {
    fn default() -> Self {
        Pauses(Self::FIRST)
    }
}

/// `wait`, or up to a quarter less, so that many clients do not come back at once.
pub fn jittered(wait: Duration) -> Duration {
    let mut bits = [0];
    // Without random numbers the wait is as good without its jitter.
    match SystemRandom::new().fill(&mut bits) {
        Ok(()) => wait - wait * u32::from(bits[0]) / 1024,
        Err(_) => wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_takes_away_at_most_a_quarter() {
        let wait = Duration::from_secs(4);
        for _ in 0..50 {
            let jittered = jittered(wait);
            assert!(jittered > Duration::from_secs(3) && jittered <= wait, "{jittered:?}");
        }
    }
}
