//! What happens after a failure: which causes lead to another attempt, how many there may be, and
//! what lines of a log say about it.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};
use serde_json::{Value, json};

use crate::error::{Code, Problems};
use crate::tree::join;
use crate::units;
use crate::validate::{check_count, dotted};

/// Most attempts after the first.
pub(crate) const RETRIES: RangeInclusive<u32> = 0..=1000;
pub(crate) const FACTOR: RangeInclusive<f64> = 1.0..=10.0;
const BACKOFF: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(24 * 3600);
/// Most entries of `log_policies`.
pub const MAX_LOG_POLICIES: usize = 64;
const MAX_PATTERN_BYTES: usize = 1024;
/// Memory that the compiled form of one pattern may take, in bytes.
const PATTERN_MEMORY: usize = 1 << 20;

/// The section `retry` of a spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// Attempts after the first that follow a failure. Attempts that a lost node or the coordinator
    /// itself ended do not count.
    pub max: u32,
    /// The causes that lead to another attempt.
    pub on_events: BTreeSet<RetryEvent>,
    pub backoff: Backoff,
    /// Whether the nodes that failed are left out of later attempts.
    pub exclude_failed_nodes: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max: 3,
            on_events: RetryEvent::ALL.into_iter().collect(),
            backoff: Backoff::default(),
            exclude_failed_nodes: true,
        }
    }
}

/// The pause before an attempt. The first one after a failure has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub initial: Duration,
    /// What each further pause is longer by.
    pub factor: f64,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(30), factor: 2.0, max: Duration::from_secs(600) }
    }
}

impl Backoff {
    /// The pause before the `retry`th attempt after the first, counted from 1, since the job last made
    /// progress.
    #[must_use]
    pub fn before(&self, retry: u32) -> Duration {
        let Some(exponent) = retry.checked_sub(2) else { return Duration::ZERO };
        let factor = self.factor.powi(i32::try_from(exponent).unwrap_or(i32::MAX));
        let pause = self.initial.as_secs_f64() * factor;
        Duration::try_from_secs_f64(pause).unwrap_or(self.max).min(self.max)
    }
}

/// A kind of cause that may lead to another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryEvent {
    /// A node was lost, rebooted or made anew.
    NodeLost,
    /// A GPU, its driver or another part of a node failed.
    Hardware,
    /// A collective operation hung, or the network between nodes failed.
    NcclTimeout,
    /// The attempt was stopped from outside.
    Preempted,
    /// Ranks did not find each other.
    Rendezvous,
    /// Ray itself failed.
    Ray,
    /// A file system failed.
    Storage,
}

impl RetryEvent {
    pub const ALL: [Self; 7] = [
        Self::NodeLost,
        Self::Hardware,
        Self::NcclTimeout,
        Self::Preempted,
        Self::Rendezvous,
        Self::Ray,
        Self::Storage,
    ];

    pub(crate) const WORDS: [&'static str; 7] =
        ["node_lost", "hardware", "nccl_timeout", "preempted", "rendezvous", "ray", "storage"];

    /// The word of the spec.
    #[must_use]
    pub fn word(self) -> &'static str {
        let place = Self::ALL.iter().position(|event| *event == self);
        place.and_then(|place| Self::WORDS.get(place)).copied().unwrap_or_default()
    }
}

/// An entry of `log_policies`: what a line of the job's log says about its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPolicy {
    /// A regular expression, as [`pattern`] reads it.
    pub pattern: String,
    pub action: LogAction,
    /// The category that the failure is then shown under.
    pub diagnose: Option<String>,
}

/// What a log policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAction {
    /// Another attempt, whatever the cause.
    Retry,
    /// Another attempt, without the node that wrote the line.
    ExcludeNodeAndRetry,
    /// The end of the job.
    FailNoRetry,
}

impl LogAction {
    pub(crate) const ALL: [Self; 3] = [Self::Retry, Self::ExcludeNodeAndRetry, Self::FailNoRetry];
    pub(crate) const WORDS: [&'static str; 3] =
        ["retry", "exclude_node_and_retry", "fail_no_retry"];

    /// The word of the spec.
    #[must_use]
    pub fn word(self) -> &'static str {
        let place = Self::ALL.iter().position(|action| *action == self);
        place.and_then(|place| Self::WORDS.get(place)).copied().unwrap_or_default()
    }
}

/// The expression of a log policy: matched against one line, in linear time.
///
/// # Errors
/// A text that is no expression, or one whose compiled form is too large.
pub fn pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(PATTERN_MEMORY).dfa_size_limit(PATTERN_MEMORY).build()
}

pub(crate) fn check(retry: &Retry, policies: &[LogPolicy], out: &mut Problems) {
    check_count("/retry/max", retry.max, &RETRIES, out);
    let backoff = &retry.backoff;
    for (name, time) in [("initial", &backoff.initial), ("max", &backoff.max)] {
        let pointer = join("/retry/backoff", name);
        crate::checks::check_range(&pointer, time, &BACKOFF, |d| units::write_duration(*d), out);
    }
    let pointer = "/retry/backoff/factor";
    crate::checks::check_range(pointer, &backoff.factor, &FACTOR, f64::to_string, out);
    if policies.len() > MAX_LOG_POLICIES {
        let message =
            format!("`log_policies` has {} entries; at most {MAX_LOG_POLICIES}", policies.len());
        out.value(Code::TOO_LARGE, "/log_policies", message, None);
    }
    for (index, policy) in policies.iter().enumerate() {
        check_pattern(&format!("/log_policies/{index}/pattern"), &policy.pattern, out);
        if let Some(category) = &policy.diagnose {
            let pointer = format!("/log_policies/{index}/diagnose");
            let good = (1..=40).contains(&category.len())
                && category.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let form = "a category, such as gpu_oom: lower-case letters and `_`";
            crate::checks::check_form(&pointer, category, good, form, out);
        }
    }
}

fn check_pattern(pointer: &str, text: &str, out: &mut Problems) {
    crate::checks::check_text(pointer, text, MAX_PATTERN_BYTES, out);
    let why = match pattern(text) {
        Err(regex::Error::CompiledTooBig(_)) => "it is too large when compiled".to_owned(),
        // The last line of the error is what is wrong; those before it draw the place.
        Err(error) => error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
        Ok(_) => return,
    };
    let message = format!("`{}` is not a regular expression", dotted(pointer));
    out.value(Code::BAD_VALUE, pointer, message, Some(why));
}

impl Retry {
    /// As JSON; `None` for the default.
    pub(crate) fn canonical(&self) -> Option<Value> {
        if *self == Self::default() {
            return None;
        }
        let events: Vec<_> = self.on_events.iter().map(|event| event.word()).collect();
        Some(json!({
            "backoff": {
                "factor": self.backoff.factor,
                "initial": units::write_duration(self.backoff.initial),
                "max": units::write_duration(self.backoff.max),
            },
            "exclude_failed_nodes": self.exclude_failed_nodes,
            "max": self.max,
            "on_events": events,
        }))
    }
}

impl LogPolicy {
    pub(crate) fn canonical(&self) -> Value {
        let mut policy = json!({ "action": self.action.word(), "pattern": self.pattern });
        if let Some(category) = &self.diagnose {
            policy["diagnose"] = json!(category);
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_their_values() {
        assert_eq!(RetryEvent::NodeLost.word(), "node_lost");
        assert_eq!(RetryEvent::Storage.word(), "storage");
        assert_eq!(LogAction::FailNoRetry.word(), "fail_no_retry");
    }

    #[test]
    fn pauses_grow_to_a_bound_and_the_first_retry_has_none() {
        let backoff = Backoff::default();
        let pauses: Vec<u64> = (0..9).map(|retry| backoff.before(retry).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(backoff.before(u32::MAX), backoff.max);
    }

    #[test]
    fn patterns_are_bounded() {
        assert!(pattern("Xid .*: (48|79)").is_ok());
        assert!(pattern("(").is_err());
        assert!(pattern("(a{1000}){1000}").is_err());
    }
}
