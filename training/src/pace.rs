//! How long a step of one attempt takes: learned from when steps came, or from what the training says
//! itself.

use std::collections::VecDeque;

/// Steps whose time is remembered.
const KEPT: usize = 33;
/// The first steps compile and warm up; they are left out.
const WARM_UP: u32 = 2;
/// Times that make a median.
const LEAST: usize = 3;
/// Values in which trainings say how long a step took, in seconds.
const TOLD: [&str; 4] = ["timing_s/step", "perf/time_per_step", "step_time_s", "time/step"];

/// The pace of one attempt. Times are milliseconds of one clock.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// The newest step, and when it came; `None` for one that came in a past that nobody timed.
    newest: Option<(u64, Option<u64>)>,
    /// Steps that were timed, those of the warm-up among them.
    timed: u32,
    /// Milliseconds of a step, oldest first.
    times: VecDeque<f64>,
}

impl Pace {
    /// A step has come; one that is not newer than the newest is none. `values` are those of its line.
    pub fn note(&mut self, step: u64, at_ms: Option<u64>, values: &[(String, f64)]) {
        if self.newest.is_some_and(|(known, _)| known >= step) {
            return;
        }
        let told = values.iter().find(|(name, _)| TOLD.contains(&name.as_str()));
        let told = told.map(|(_, seconds)| seconds * 1000.0).filter(|ms| ms.is_finite());
        let lasted = self.newest.replace((step, at_ms)).and_then(|(known, then)| {
            let ms = at_ms?.saturating_sub(then?);
            Some(ms as f64 / step.saturating_sub(known).max(1) as f64)
        });
        let Some(ms) = told.or(lasted).filter(|ms| *ms >= 0.0) else { return };
        self.timed = self.timed.saturating_add(1);
        if self.timed <= WARM_UP {
            return;
        }
        if self.times.len() >= KEPT {
            self.times.pop_front();
        }
        self.times.push_back(ms);
    }

    /// The median time of a step in milliseconds; `None` before enough of them.
    pub fn step_ms(&self) -> Option<f64> {
        if self.times.len() < LEAST {
            return None;
        }
        let mut sorted: Vec<f64> = self.times.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
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
