//! Series of timings: several runs of the same thing, so that chance shows.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Runs of every measurement.
pub const RUNS: usize = 5;
/// Significant digits that a histogram keeps.
const DIGITS: u8 = 3;

/// Timings of one thing, by run. Kept in picoseconds, so that an operation of a few nanoseconds
/// still has three digits.
#[derive(Default)]
pub struct Series {
    runs: Vec<Histogram<u64>>,
}

impl Series {
    /// What follows belongs to a new run.
    pub fn begin_run(&mut self) -> anyhow::Result<()> {
        self.runs.push(Histogram::new(DIGITS)?);
        Ok(())
    }

    /// Records the mean of `operations` that took `elapsed` together.
    pub fn record(&mut self, elapsed: Duration, operations: u32) -> anyhow::Result<()> {
        if self.runs.is_empty() {
            self.begin_run()?;
        }
        let picoseconds = elapsed.as_nanos() * 1000 / u128::from(operations.max(1));
        if let Some(run) = self.runs.last_mut() {
            run.record(u64::try_from(picoseconds)?)?;
        }
        Ok(())
    }

    /// Times one operation.
    pub fn time<T>(&mut self, operation: impl FnOnce() -> T) -> anyhow::Result<T> {
        let began = Instant::now();
        let result = operation();
        self.record(began.elapsed(), 1)?;
        Ok(result)
    }

    /// Nanoseconds at a quantile (0 to 1) over all runs.
    pub fn at(&self, quantile: f64) -> f64 {
        let mut all = match self.runs.first() {
            Some(first) => first.clone(),
            None => return 0.0,
        };
        for run in self.runs.iter().skip(1) {
            // Histograms of one precision always add up: they resize by themselves.
            if all.add(run).is_err() {
                return f64::NAN;
            }
        }
        all.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// Nanoseconds.
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// Smallest and largest median of a run, in nanoseconds.
    pub fn spread(&self) -> (f64, f64) {
        let medians = self.runs.iter().map(|run| run.value_at_quantile(0.5) as f64 / 1000.0);
        medians.fold((f64::INFINITY, 0.0), |(low, high), median| {
            (f64::min(low, median), f64::max(high, median))
        })
    }
}

/// How often a function is called: `batches` timings per run, each the mean of `calls`.
#[derive(Clone, Copy)]
pub struct Pace {
    pub batches: u32,
    pub calls: u32,
}

/// One run of a function that needs no preparation; the first tenth more warms up.
pub fn run_function<T>(
    series: &mut Series,
    pace: Pace,
    mut function: impl FnMut() -> T,
) -> anyhow::Result<()> {
    for _ in 0..pace.batches * pace.calls / 10 {
        std::hint::black_box(function());
    }
    series.begin_run()?;
    for _ in 0..pace.batches {
        let began = Instant::now();
        for _ in 0..pace.calls {
            std::hint::black_box(function());
        }
        series.record(began.elapsed(), pace.calls)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_over_all_runs_and_the_spread_is_between_them() {
        let mut series = Series::default();
        for run in 1..=3u64 {
            series.begin_run().unwrap();
            for _ in 0..10 {
                series.record(Duration::from_nanos(run * 1000), 10).unwrap();
            }
        }
        let near = |value: f64, wanted: f64| (value - wanted).abs() / wanted < 0.002;
        assert!(near(series.median(), 200.0), "{}", series.median());
        assert!(near(series.at(0.99), 300.0), "{}", series.at(0.99));
        let (low, high) = series.spread();
        assert!(near(low, 100.0) && near(high, 300.0), "{low} {high}");
    }

    #[test]
    fn nothing_measured_is_zero_and_no_panic() {
        assert_eq!(Series::default().median(), 0.0);
    }
}
