//! Many seeds on several threads, and a failure told so that it can be run again.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::tally::Tally;
use crate::world::{Broken, Outcome, Settings, World};

/// Steps that are shown before the one that broke.
const SHOWN: u64 = 40;

/// What all histories together came to.
#[derive(Debug, Default)]
pub struct Summary {
    pub tally: Tally,
    pub seeds: u64,
    pub steps: u64,
    pub simulated_ms: u64,
    pub took: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { tally, seeds, steps, simulated_ms, took } = self;
        let hours = *simulated_ms as f64 / 3_600_000.0;
        writeln!(f, "{seeds} histories, {steps} events, {hours:.1} h simulated in {took:.1?}")?;
        write!(f, "{tally}")
    }
}

/// Runs one history. With a failure, the steps before it are printed by a second run.
pub fn one(settings: Settings<'_>) -> Result<Outcome, Broken> {
    World::new(settings).run()
}

/// Prints the last steps of a history that broke.
pub fn show(settings: Settings<'_>, broken: &Broken) {
    eprintln!("seed {} broke at step {}: {}", broken.seed, broken.step, broken.what);
    let shown_from = Some(broken.step.saturating_sub(SHOWN));
    if let Ok(outcome) = one(Settings { shown_from, ..settings }) {
        eprintln!("a second run did not break, in {} steps: it is not a simulation", outcome.steps);
    }
    eprintln!("seed {} broke at step {}: {}", broken.seed, broken.step, broken.what);
}

/// Runs the seeds, on `threads` threads. `begin` is called on each thread first, `done` after every
/// seed. The first failure ends it.
pub fn run<'a>(
    seeds: std::ops::RangeInclusive<u64>,
    threads: usize,
    settings: impl Fn(u64) -> Settings<'a> + Sync,
    begin: impl Fn() + Sync,
    done: impl Fn(u64) + Sync,
) -> Result<Summary, Broken> {
    let started = Instant::now();
    let next = AtomicU64::new(*seeds.start());
    let found: Mutex<(Summary, Option<Broken>)> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                begin();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > *seeds.end() {
                        return;
                    }
                    let result = one(settings(seed));
                    let Ok(mut found) = found.lock() else { return };
                    match result {
                        Ok(outcome) => {
                            found.0.tally.add(&outcome.tally);
                            found.0.seeds += 1;
                            found.0.steps += outcome.steps;
                            found.0.simulated_ms += outcome.simulated_ms;
                        }
                        Err(broken) => {
                            next.store(u64::MAX / 2, Ordering::Relaxed);
                            // The smallest seed that broke is told.
                            if found.1.as_ref().is_none_or(|other| broken.seed < other.seed) {
                                found.1 = Some(broken);
                            }
                        }
                    }
                    done(found.0.seeds);
                }
            });
        }
    });
    let (mut summary, broken) = match found.into_inner() {
        Ok(found) => found,
        Err(poisoned) => poisoned.into_inner(),
    };
    summary.took = started.elapsed();
    broken.map_or(Ok(summary), Err)
}
