//! How collectors run: each on its own, with its own pace and time-out. One that panics has failed, one that
//! hangs is overdue, and neither is noticed by the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
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
    /// How long the last reading took. While the source hangs: for how long it has.
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
    /// It has been under way for longer than the time-out, or one before it still is.
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

/// The least time between two readings, for all collectors: how far they slow down under load.
#[derive(Debug, Default)]
pub struct Pace(AtomicU32);

impl Pace {
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed).into())
    }

    pub fn set(&self, interval_ms: u32) {
        self.0.store(interval_ms, Ordering::Relaxed);
    }
}

/// Where one collector leaves its readings.
pub struct Slot<T> {
    plan: Plan,
    pace: Arc<Pace>,
    /// CPU time of its readings so far, in microseconds.
    spent_us: AtomicU64,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Option<Arc<T>>,
    number: u64,
    outcome: Outcome,
    began: Option<Instant>,
    duration: Duration,
    /// When the reading began that was the first to hang.
    hung_since: Option<Instant>,
    succeeded: Option<Instant>,
    readings: u64,
    failures: u64,
}

impl<T> Slot<T> {
    /// A slot of a collector that never slows down.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Slot::paced(plan, Arc::default())
    }

    #[must_use]
    pub fn paced(plan: Plan, pace: Arc<Pace>) -> Self {
        let state = State {
            value: None,
            number: 0,
            outcome: Outcome::Starting,
            began: None,
            duration: Duration::ZERO,
            hung_since: None,
            succeeded: None,
            readings: 0,
            failures: 0,
        };
        Slot { plan, pace, spent_us: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// The time between two readings as it is now.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.plan.interval.max(self.pace.interval())
    }

    /// CPU time that readings have taken so far.
    #[must_use]
    pub fn cpu_spent(&self) -> Duration {
        Duration::from_micros(self.spent_us.load(Ordering::Relaxed))
    }

    /// A reading begins.
    pub fn begin(&self) {
        self.lock().began = Some(Instant::now());
    }

    /// It has ended.
    pub fn end(&self, result: Result<T, Outcome>) {
        let mut state = self.lock();
        let began = state.began.take();
        state.duration = began.map(|began| began.elapsed()).unwrap_or_default();
        state.hung_since = match &result {
            // A source that is known to hang is not asked again: each of these readings takes no time.
            Err(Outcome::Hung) => state.hung_since.or(began),
            _ => None,
        };
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
        let outcome = if overdue.is_some() { Outcome::Hung } else { state.outcome.clone() };
        let hung = state.hung_since.map(|since| since.elapsed()).max(overdue);
        let duration = hung.filter(|_| outcome == Outcome::Hung).unwrap_or(state.duration);
        let status = Status {
            name: self.plan.name,
            outcome,
            duration,
            age: state.succeeded.map(|at| at.elapsed()),
            readings: state.readings,
            failures: state.failures,
        };
        let (value, number) = (state.value.clone(), state.number);
        Latest { value, number, status, interval: self.interval() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads once and leaves the outcome in the slot; a panic is one.
pub fn read_into<C: Collector>(collector: &mut C, slot: &Slot<C::Reading>) {
    slot.begin();
    let before = cpu_of_thread();
    let result = match catch_unwind(AssertUnwindSafe(|| collector.read())) {
        Ok(Ok(reading)) => Ok(reading),
        Ok(Err(CollectError(reason))) => Err(Outcome::Failed(reason)),
        Err(payload) => Err(Outcome::Panicked(panic_text(&*payload))),
    };
    let spent = cpu_of_thread().saturating_sub(before);
    let spent_us = u64::try_from(spent.as_micros()).unwrap_or(u64::MAX);
    slot.spent_us.fetch_add(spent_us, Ordering::Relaxed);
    slot.end(result);
}

/// CPU time of the calling thread so far.
#[must_use]
pub fn cpu_of_thread() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
}

/// Stack of a collector's thread, in bytes.
const STACK: usize = 512 << 10;

/// Reads on a thread of its own, at multiples of the interval since `epoch`, until the slot is dropped elsewhere.
/// A reading that hangs takes its thread with it and nobody else.
pub fn on_thread<C: Collector>(mut collector: C, slot: &Arc<Slot<C::Reading>>, epoch: Instant) {
    let name = slot.plan.name;
    let weak = Arc::downgrade(slot);
    let body = move || {
        loop {
            let Some(slot) = weak.upgrade() else { return };
            read_into(&mut collector, &slot);
            let interval = slot.interval();
            drop(slot);
            thread::sleep(until_next(epoch.elapsed(), interval));
        }
    };
    let builder = thread::Builder::new().name(format!("collect-{name}")).stack_size(STACK);
    if let Err(error) = builder.spawn(body) {
        slot.end(Err(Outcome::Failed(format!("no thread: {error}"))));
    }
}

/// From `elapsed` to the next multiple of `interval`; never zero.
#[must_use]
pub fn until_next(elapsed: Duration, interval: Duration) -> Duration {
    let interval_us = interval.as_micros().max(1);
    let over_us = elapsed.as_micros() % interval_us;
    Duration::from_micros(u64::try_from(interval_us - over_us).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const PLAN: Plan = Plan {
        name: "test",
        interval: Duration::from_millis(5),
        timeout: Duration::from_millis(5),
    };

    /// Does what it is told, and says when it begins.
    struct Told {
        orders: Receiver<Order>,
        began: Sender<()>,
    }

    enum Order {
        Give(u32),
        Fail,
        Panic,
    }

    impl Collector for Told {
        type Reading = u32;

        fn read(&mut self) -> Result<u32, CollectError> {
            // Nobody listens at the end of a test.
            let _ = self.began.send(());
            match self.orders.recv() {
                Ok(Order::Give(number)) => Ok(number),
                Ok(Order::Fail) | Err(_) => Err(CollectError("as told".to_owned())),
                Ok(Order::Panic) => panic!("as told"),
            }
        }
    }

    fn told() -> (Told, Sender<Order>, Receiver<()>) {
        let (give, orders) = channel();
        let (began, begins) = channel();
        (Told { orders, began }, give, begins)
    }

    #[test]
    fn a_panic_fails_one_reading_of_one_collector() {
        let (mut collector, give, _begins) = told();
        let slot = Slot::new(Plan { timeout: Duration::from_secs(60), ..PLAN });
        let other = Slot::<u32>::new(PLAN);
        assert_eq!(slot.latest().status.outcome, Outcome::Starting);
        for order in [Order::Give(7), Order::Panic, Order::Fail, Order::Give(8)] {
            give.send(order).expect("a collector");
        }
        read_into(&mut collector, &slot);
        assert_eq!((slot.latest().value.as_deref(), slot.latest().number), (Some(&7), 1));
        assert!(slot.latest().status.success());
        read_into(&mut collector, &slot);
        let latest = slot.latest();
        assert_eq!(latest.status.outcome, Outcome::Panicked("as told".to_owned()));
        assert_eq!(
            (latest.value.as_deref(), latest.fresh()),
            (Some(&7), None),
            "the old one is old"
        );
        assert_eq!(other.latest().status.outcome, Outcome::Starting);
        read_into(&mut collector, &slot);
        assert_eq!(slot.latest().status.outcome, Outcome::Failed("as told".to_owned()));
        read_into(&mut collector, &slot);
        let latest = slot.latest();
        assert!(latest.status.success());
        assert_eq!((latest.value.as_deref(), latest.number), (Some(&8), 2));
        assert_eq!((latest.status.readings, latest.status.failures), (4, 2));
    }

    #[test]
    fn a_source_that_hangs_has_hung_since_the_first_reading_of_it() {
        let slot = Slot::<u32>::new(Plan { timeout: Duration::from_secs(60), ..PLAN });
        let hung = || slot.latest().status.duration;
        slot.begin();
        thread::sleep(Duration::from_millis(30));
        slot.end(Err(Outcome::Hung));
        assert!(hung() >= Duration::from_millis(30));
        thread::sleep(Duration::from_millis(30));
        slot.begin();
        assert!(hung() >= Duration::from_millis(60), "while it is asked as well");
        slot.end(Err(Outcome::Hung));
        assert!(hung() >= Duration::from_millis(60), "{:?}", hung());
        slot.begin();
        slot.end(Ok(7));
        assert!(hung() < Duration::from_millis(30));
        slot.begin();
        slot.end(Err(Outcome::Hung));
        assert!(hung() < Duration::from_millis(30), "another time");
    }

    #[test]
    fn a_reading_that_hangs_is_overdue_and_others_go_on() {
        let (hanging, order, begins) = told();
        let slot = Arc::new(Slot::new(PLAN));
        let (quick, give, _) = told();
        let other = Arc::new(Slot::new(PLAN));
        let epoch = Instant::now();
        on_thread(hanging, &slot, epoch);
        on_thread(quick, &other, epoch);
        begins.recv().expect("it has begun");
        while slot.latest().status.outcome != Outcome::Hung {
            thread::yield_now();
        }
        for number in 1..=3 {
            give.send(Order::Give(number)).expect("a collector");
        }
        while other.latest().number < 3 {
            thread::yield_now();
        }
        assert_eq!(slot.latest().value, None);
        // It comes back.
        order.send(Order::Give(9)).expect("a collector");
        while slot.latest().number < 1 {
            thread::yield_now();
        }
        assert_eq!(slot.latest().value.as_deref(), Some(&9));
    }

    #[test]
    fn a_thread_ends_with_its_slot() {
        let (collector, order, begins) = told();
        let slot = Arc::new(Slot::new(PLAN));
        on_thread(collector, &slot, Instant::now());
        begins.recv().expect("it has begun");
        drop(slot);
        order.send(Order::Give(1)).expect("a collector");
        // The collector, and with it this end, goes with the thread.
        while begins.recv().is_ok() {}
    }

    #[test]
    fn a_slower_pace_makes_older_values_fresh() {
        let pace = Arc::new(Pace::default());
        let slot = Slot::<u32>::paced(Plan { interval: Duration::ZERO, ..PLAN }, Arc::clone(&pace));
        slot.begin();
        slot.end(Ok(1));
        assert_eq!(slot.latest().fresh(), None, "older than three times nothing");
        pace.set(10_000);
        assert_eq!(slot.interval(), Duration::from_secs(10));
        assert_eq!(slot.latest().fresh(), Some(&1));
    }

    #[test]
    fn readings_begin_at_multiples_of_the_interval() {
        let ms = Duration::from_millis;
        assert_eq!(until_next(ms(0), ms(1000)), ms(1000));
        assert_eq!(until_next(ms(1), ms(1000)), ms(999));
        assert_eq!(until_next(ms(2500), ms(1000)), ms(500));
        assert_eq!(until_next(ms(1000), ms(1000)), ms(1000));
        assert!(until_next(ms(5), Duration::ZERO) > Duration::ZERO);
    }
}
