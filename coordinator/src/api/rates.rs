//! How many requests one token may make: a bucket of requests, and one of submits, for each token.
//!
//! A bucket fills again at a steady rate, so a pause is followed by a burst. The numbers are meant
//! to stop a loop that has gone wild, not to slow people down.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::{ApiError, RATE_LIMITED};
use crate::config::{Rate, RateLimits};

/// Tokens whose buckets are remembered; one more takes the place of the fullest.
const MAX_TOKENS: usize = 4096;

/// SHA-256 of a token.
type Token = [u8; 32];

/// The buckets of all tokens.
pub(super) struct Rates {
    limits: RateLimits,
    buckets: Mutex<HashMap<Token, Buckets>>,
}

#[derive(Clone, Copy)]
struct Buckets {
    requests: Bucket,
    submits: Bucket,
    /// Refused already since it was last full: said once.
    told: bool,
}

/// What is left of a burst at a moment.
#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Bucket { left: f64::from(rate.burst), at: now }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * f64::from(rate.per_s);
        self.left = (self.left + gained).min(f64::from(rate.burst));
        self.at = now;
    }

    /// How long until one may be taken; nothing when one may be taken now.
    fn wait(&self, rate: Rate) -> Option<Duration> {
        let missing = 1.0 - self.left;
        (missing > 0.0).then(|| Duration::from_secs_f64(missing / f64::from(rate.per_s.max(1))))
    }
}

impl Rates {
    pub fn new(limits: RateLimits) -> Self {
        Rates { limits, buckets: Mutex::default() }
    }

    /// Counts a request of a token that speaks for `user`.
    ///
    /// # Errors
    /// 429 when it has had too many: nothing is taken then.
    pub fn take(
        &self,
        token: &Token,
        user: &str,
        submits: bool,
        now: Instant,
    ) -> Result<(), ApiError> {
        let RateLimits { requests, submits: of_submits } = self.limits;
        let mut all = self.lock();
        if all.len() >= MAX_TOKENS && !all.contains_key(token) {
            self.forget_one(&mut all, now);
        }
        let buckets = all.entry(*token).or_insert_with(|| Buckets {
            requests: Bucket::full(requests, now),
            submits: Bucket::full(of_submits, now),
            told: false,
        });
        let mut wanted = vec![("requests", requests, &mut buckets.requests)];
        if submits {
            wanted.push(("submits", of_submits, &mut buckets.submits));
        }
        // No rate is no limit.
        wanted.retain(|(_, rate, _)| rate.per_s > 0);
        for (_, rate, bucket) in &mut wanted {
            bucket.refill(*rate, now);
        }
        let short = wanted
            .iter()
            .filter_map(|(what, rate, bucket)| bucket.wait(*rate).map(|wait| (*what, *rate, wait)));
        if let Some((what, rate, wait)) = short.max_by_key(|(_, _, wait)| *wait) {
            if !std::mem::replace(&mut buckets.told, true) {
                tracing::warn!(
                    user,
                    what,
                    per_s = rate.per_s,
                    "a token makes too many; answering 429"
                );
            }
            return Err(too_many(what, rate, wait));
        }
        for (_, rate, bucket) in wanted {
            bucket.left -= 1.0;
            buckets.told &= bucket.left + 1.0 < f64::from(rate.burst);
        }
        Ok(())
    }

    /// A full bucket is as good as none.
    fn forget_one(&self, all: &mut HashMap<Token, Buckets>, now: Instant) {
        let RateLimits { requests, submits } = self.limits;
        for buckets in all.values_mut() {
            buckets.requests.refill(requests, now);
            buckets.submits.refill(submits, now);
        }
        let missing = |buckets: &Buckets| {
            let requests = f64::from(requests.burst) - buckets.requests.left;
            requests + f64::from(submits.burst) - buckets.submits.left
        };
        let before = all.len();
        all.retain(|_, buckets| missing(buckets) > 0.0);
        if all.len() < before {
            return;
        }
        let fullest = all.iter().min_by(|(_, a), (_, b)| missing(a).total_cmp(&missing(b)));
        if let Some(fullest) = fullest.map(|(token, _)| *token) {
            all.remove(&fullest);
        }
    }

    // Counts are whole after every statement, so a poisoned lock can be used.
    fn lock(&self) -> MutexGuard<'_, HashMap<Token, Buckets>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_many(what: &str, rate: Rate, wait: Duration) -> ApiError {
    let Rate { per_s, burst } = rate;
    // Whole seconds, rounded up: whoever waits so long is let in.
    let seconds = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
    let detail =
        format!("your token makes more than {per_s} {what} a second (after {burst} at once)");
    ApiError::new(RATE_LIMITED, detail)
        .hint(format!(
            "wait {seconds} s; a loop asks less often, or follows a stream instead of polling; an \
             administrator can raise the rate in the coordinator's configuration"
        ))
        .retry_after_s(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RateLimits = RateLimits {
        requests: Rate { per_s: 10, burst: 20 },
        submits: Rate { per_s: 1, burst: 3 },
    };

    fn token(n: u32) -> Token {
        let mut token = [0; 32];
        token[..4].copy_from_slice(&n.to_be_bytes());
        token
    }

    /// How many of `tries` are let in.
    fn let_in(rates: &Rates, token: &Token, submits: bool, tries: u32, now: Instant) -> u32 {
        (0..tries).map(|_| u32::from(rates.take(token, "u", submits, now).is_ok())).sum()
    }

    #[test]
    fn a_burst_then_a_steady_rate_for_each_token() {
        let rates = Rates::new(LIMITS);
        let now = Instant::now();
        assert_eq!(let_in(&rates, &token(1), false, 100, now), 20);
        assert_eq!(let_in(&rates, &token(2), false, 100, now), 20, "tokens do not count together");
        let later = now + Duration::from_millis(500);
        assert_eq!(let_in(&rates, &token(1), false, 100, later), 5);
        // However long the pause, one burst.
        let tomorrow = now + Duration::from_secs(86_400);
        assert_eq!(let_in(&rates, &token(1), false, 100, tomorrow), 20);
    }

    #[test]
    fn submits_count_twice_and_a_refused_one_costs_nothing() {
        let rates = Rates::new(LIMITS);
        let now = Instant::now();
        assert_eq!(let_in(&rates, &token(1), true, 10, now), 3);
        assert_eq!(let_in(&rates, &token(1), false, 100, now), 17);
        let later = now + Duration::from_secs(2);
        assert_eq!(let_in(&rates, &token(1), true, 10, later), 2);
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        let rates = Rates::new(LIMITS);
        let now = Instant::now();
        let_in(&rates, &token(1), true, 3, now);
        let refused = rates.take(&token(1), "u", true, now).err().unwrap();
        assert_eq!(refused.status(), 429);
        assert!(rates.take(&token(1), "u", true, now + Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn no_rate_is_no_limit() {
        let none = Rate { per_s: 0, burst: 0 };
        let rates = Rates::new(RateLimits { requests: none, submits: none });
        assert_eq!(let_in(&rates, &token(1), true, 10_000, Instant::now()), 10_000);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_who_asks_least() {
        let rates = Rates::new(LIMITS);
        let now = Instant::now();
        let_in(&rates, &token(0), false, 20, now);
        for n in 1..3 * MAX_TOKENS as u32 {
            rates.take(&token(n), "u", false, now).unwrap();
        }
        assert!(rates.lock().len() <= MAX_TOKENS);
        assert!(rates.take(&token(0), "u", false, now).is_err(), "who asks most is not forgotten");
    }
}
