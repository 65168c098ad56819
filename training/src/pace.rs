//! How long a step of one attempt takes: learned from when steps came, or from what the training says
//! itself.

use std::collections::VecDeque;

/// Times that are remembered.
const KEPT: usize = 33;
/// The first steps compile and warm up; they are left out.
const WARM_UP: usize = 2;
/// Times that make a median.
const LEAST: usize = 3;
/// From so many on it is the mean of their middle half: whoever looks once a second sees steps of 1.5 s
/// take one second or two.
const MANY: usize = 8;
/// Values in which trainings say how long a step took, in seconds.
const TOLD: [&str; 4] = ["timing_s/step", "perf/time_per_step", "step_time_s", "time/step"];

/// The pace of one attempt. Times are milliseconds of one clock.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    newest: Option<u64>,
    /// Moments at which steps came, each with the newest of them, after the warm-up.
    marks: VecDeque<(u64, u64)>,
    marked: usize,
    /// Milliseconds of a step, as the training says.
    told: VecDeque<f64>,
    said: usize,
}

impl Pace {
    /// A step has come; one that is not newer than the newest is none. `at_ms` is `None` for one that
    /// came in a past that nobody timed. `values` are those of its line.
    pub fn note(&mut self, step: u64, at_ms: Option<u64>, values: &[(String, f64)]) {
        if self.newest.is_some_and(|known| known >= step) {
            return;
        }
        self.newest = Some(step);
        let told = values.iter().find(|(name, _)| TOLD.contains(&name.as_str()));
        let told = told.map(|(_, seconds)| seconds * 1000.0);
        if let Some(ms) = told.filter(|ms| ms.is_finite() && *ms >= 0.0) {
            self.said = self.said.saturating_add(1);
            if self.said > WARM_UP {
                keep(&mut self.told, ms);
            }
        }
        let Some(at) = at_ms else { return };
        match self.marks.back_mut() {
            // Steps that come together share their time.
            Some((known, then)) if *then >= at => *known = step,
            Some(_) | None => {
                self.marked = self.marked.saturating_add(1);
                if self.marked > WARM_UP {
                    keep(&mut self.marks, (step, at));
                }
            }
        }
    }

    /// The usual time of a step in milliseconds; `None` before enough of them.
    pub fn step_ms(&self) -> Option<f64> {
        let told = usual(self.told.iter().copied().collect());
        told.or_else(|| {
            let pairs = self.marks.iter().zip(self.marks.iter().skip(1));
            let times = pairs.map(|((before, then), (step, at))| {
                let steps = step.saturating_sub(*before).max(1);
                at.saturating_sub(*then) as f64 / steps as f64
            });
            usual(times.collect())
        })
    }
}

fn keep<T>(times: &mut VecDeque<T>, one: T) {
    if times.len() >= KEPT {
        times.pop_front();
    }
    times.push_back(one);
}

/// The median, or the mean of the middle half.
fn usual(mut times: Vec<f64>) -> Option<f64> {
    let count = times.len();
    if count < LEAST {
        return None;
    }
    times.sort_by(f64::total_cmp);
    if count < MANY {
        return times.get(count / 2).copied();
    }
    let middle = times.get(count / 4..count - count / 4)?;
    Some(middle.iter().sum::<f64>() / middle.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_after_the_warm_up() {
        let mut pace = Pace::default();
        // Compiling, warming up, then 2 s a step with one checkpoint in between.
        for (step, at) in [(1, 0), (2, 90_000), (3, 100_000), (4, 102_000), (5, 104_000)] {
            pace.note(step, Some(at), &[]);
            assert_eq!(pace.step_ms(), None);
        }
        pace.note(6, Some(144_000), &[]);
        assert_eq!(pace.step_ms(), Some(2_000.0));
        // Only every tenth step is said.
        pace.note(16, Some(164_000), &[]);
        assert_eq!(pace.step_ms(), Some(2_000.0));
    }

    #[test]
    fn steps_that_are_faster_than_looks() {
        let mut pace = Pace::default();
        // Five a second, looked at once a second.
        for step in 0..100 {
            pace.note(step, Some(step / 5 * 1000), &[]);
        }
        assert_eq!(pace.step_ms(), Some(200.0));
        let mut pace = Pace::default();
        // 1.5 s a step.
        for step in 0..40_u64 {
            pace.note(step, Some((step * 1500).div_ceil(1000) * 1000), &[]);
        }
        let step_ms = pace.step_ms().unwrap();
        assert!((1400.0..1600.0).contains(&step_ms), "{step_ms}");
    }

    #[test]
    fn what_the_training_says_counts_more() {
        let mut pace = Pace::default();
        let told = [("timing_s/step".to_owned(), 40.0)];
        for step in 1..=5 {
            // All at once, as after a restart of whoever reads.
            pace.note(step, None, &told);
        }
        assert_eq!(pace.step_ms(), Some(40_000.0));
    }

    #[test]
    fn steps_of_the_past_and_repeats_have_no_time() {
        let mut pace = Pace::default();
        for step in 1..100 {
            pace.note(step, None, &[]);
        }
        assert_eq!(pace.step_ms(), None);
        for at in 0..100 {
            pace.note(100, Some(at), &[]);
            pace.note(3, Some(at), &[("timing_s/step".to_owned(), f64::NAN)]);
        }
        assert_eq!(pace.step_ms(), None, "{pace:?}");
    }
}
