//! How collectors run: each on its own, with its own pace and time-out. One that panics has failed, one that
//! hangs is overdue, and neither is noticed by the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// A reader of one source.
pub trait Collector: Send + 'static {
    /// What it reads.
    type Reading: Send + Sync + 'static;

    /// Reads once. May block for as long as the source does.
    ///
    /// # Errors
    /// Why there is no reading. What is absent within one is not an error.
    fn read(&mut self) -> Result<Self::Reading, CollectError>;
}

/// Why there is no reading, in words for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CollectError(pub String);

/// The pace of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: &'static str,
    pub interval: Duration,
    /// A reading that takes longer is overdue.
    pub timeout: Duration,
}

/// How a collector fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    pub name: &'static str,
    pub outcome: Outcome,
    /// How long the last reading took, or the one that is under way has taken if that is overdue.
    pub duration: Duration,
    /// Since the last reading that succeeded.
    pub age: Option<Duration>,
    pub readings: u64,
    pub failures: u64,
}

impl Status {
    /// The last reading succeeded and none is overdue.
    #[must_use]
    pub fn success(&self) -> bool {
        self.outcome == Outcome::Ok
    }
}

/// What became of the newest reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// None is complete, and none is overdue.
    Starting,
    Ok,
    Failed(String),
    Panicked(String),
    /// It has been under way for longer than the time-out.
    Hung,
}

/// The newest reading of a collector and how it fares.
#[derive(Debug)]
pub struct Latest<T> {
    /// The last that succeeded, however old.
    pub value: Option<Arc<T>>,
    /// Numbers the readings that succeeded, from 1: tells a new one from one that was seen.
    pub number: u64,
    pub status: Status,
    interval: Duration,
}

impl<T> Clone for Latest<T> {
    fn clone(&self) -> Self {
        Latest { value: self.value.clone(), status: self.status.clone(), ..*self }
    }
}

/// Readings that may be missed before a value counts as old.
const MISSED: u32 = 3;

impl<T> Latest<T> {
    /// The value, unless the newest reading failed or it is older than three intervals.
    #[must_use]
    pub fn fresh(&self) -> Option<&T> {
        let young = self.status.age.is_some_and(|age| age < self.interval * MISSED);
        self.value.as_deref().filter(|_| self.status.success() && young)
    }
}

/// Where one collector leaves its readings.
pub struct Slot<T> {
    plan: Plan,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Option<Arc<T>>,
    number: u64,
    outcome: Outcome,
    began: Option<Instant>,
    duration: Duration,
    succeeded: Option<Instant>,
    readings: u64,
    failures: u64,
}

impl<T> Slot<T> {
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let state = State {
            value: None,
            number: 0,
            outcome: Outcome::Starting,
            began: None,
            duration: Duration::ZERO,
            succeeded: None,
            readings: 0,
            failures: 0,
        };
        Slot { plan, state: Mutex::new(state) }
    }

    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// A reading begins.
    pub fn begin(&self) {
        self.lock().began = Some(Instant::now());
    }

    /// It has ended.
    pub fn end(&self, result: Result<T, Outcome>) {
        let mut state = self.lock();
        state.duration = state.began.take().map(|began| began.elapsed()).unwrap_or_default();
        state.readings += 1;
        match result {
            Ok(value) => {
                state.value = Some(Arc::new(value));
                state.number += 1;
                state.succeeded = Some(Instant::now());
                state.outcome = Outcome::Ok;
            }
            Err(outcome) => {
                if outcome != state.outcome {
                    tracing::warn!(collector = self.plan.name, ?outcome, "no reading");
                }
                state.failures += 1;
                state.outcome = outcome;
            }
        }
    }

    /// Never waits for a reading.
    #[must_use]
    pub fn latest(&self) -> Latest<T> {
        let state = self.lock();
        let under_way = state.began.map(|began| began.elapsed());
        let overdue = under_way.filter(|spent| *spent >= self.plan.timeout);
        let status = Status {
            name: self.plan.name,
            outcome: if overdue.is_some() { Outcome::Hung } else { state.outcome.clone() },
            duration: overdue.unwrap_or(state.duration),
            age: state.succeeded.map(|at| at.elapsed()),
            readings: state.readings,
            failures: state.failures,
        };
        let (value, number) = (state.value.clone(), state.number);
        Latest { value, number, status, interval: self.plan.interval }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads once and leaves the outcome in the slot; a panic is one.
pub fn read_into<C: Collector>(collector: &mut C, slot: &Slot<C::Reading>) {
    slot.begin();
    let result = match catch_unwind(AssertUnwindSafe(|| collector.read())) {
        Ok(Ok(reading)) => Ok(reading),
        Ok(Err(CollectError(reason))) => Err(Outcome::Failed(reason)),
        Err(payload) => Err(Outcome::Panicked(panic_text(&*payload))),
    };
    slot.end(result);
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
}
