//! The steps of a job and their values, in order and bounded: when there are too many rows, every
//! second one goes, and from then on only every second new one stays.

use std::collections::BTreeMap;

use crate::reading::{Reading, Source};

/// What a series may take at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub names: usize,
    pub rows: usize,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub step: u64,
    pub attempt: u32,
    /// When it came, in milliseconds since 1970; `None` for what was read again later.
    pub wall_ms: Option<u64>,
    /// Number of the change that last touched it.
    pub version: u64,
    /// Counts the steps that were seen, with those that were thinned out.
    ordinal: u64,
    /// By the place of each name; may be shorter than the names are.
    values: Vec<Option<f64>>,
}

impl Row {
    /// The value of the name at this place.
    pub fn value(&self, name: usize) -> Option<f64> {
        self.values.get(name).copied().flatten()
    }
}

/// All steps of one job over its attempts.
#[derive(Debug, Clone)]
pub struct Series {
    limits: Limits,
    names: BTreeMap<String, usize>,
    /// By step, ascending.
    rows: Vec<Row>,
    /// Of the rows whose number divides by this one is kept, and the newest.
    every: u64,
    seen: u64,
    version: u64,
    /// Number of the change that last took rows away, other than by thinning out.
    taken_back: u64,
    /// There were more names than are kept.
    too_many_names: bool,
    attempt: u32,
    /// The attempt has not said a step yet.
    fresh: bool,
    /// What a loop that counts anew in every epoch has done in the epochs before.
    before: u64,
    newest: Option<u64>,
    total: Option<u64>,
}

impl Series {
    pub fn new(limits: Limits) -> Self {
        Series {
            limits,
            names: BTreeMap::new(),
            rows: Vec::new(),
            every: 1,
            seen: 0,
            version: 0,
            taken_back: 0,
            too_many_names: false,
            attempt: 0,
            fresh: true,
            before: 0,
            newest: None,
            total: None,
        }
    }

    /// Another attempt begins. Its steps replace those of the attempts before it from its first one
    /// on.
    pub fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.fresh = true;
        self.before = 0;
        self.total = None;
    }

    /// Takes a line in. Gives the step when the line is of one that was not the newest before.
    pub fn take(&mut self, reading: &Reading, wall_ms: Option<u64>) -> Option<u64> {
        let Some(step) = self.step_of(reading) else {
            // Values of a training that says no step: counted by its own lines.
            let step = self.newest.filter(|_| !self.fresh).unwrap_or_default();
            return self.put(step, reading, wall_ms);
        };
        self.put(step, reading, wall_ms)
    }

    /// The step that the line is of; `None` when it does not say.
    fn step_of(&mut self, reading: &Reading) -> Option<u64> {
        let said = reading.step?;
        match reading.source {
            Source::Record => {}
            Source::Bar => {
                let larger = self.total.is_none_or(|total| reading.total >= Some(total));
                // A smaller bar is one of an evaluation.
                if !larger && !self.fresh {
                    return self.newest;
                }
            }
            Source::Loop => {
                let last = self.newest.filter(|_| !self.fresh).unwrap_or(0);
                let here = last.saturating_sub(self.before);
                if said.saturating_mul(2) < here {
                    self.before = last;
                }
            }
        }
        if self.before == 0 {
            self.total = reading.total.or(self.total);
        } else {
            // What an epoch has is not what there is.
            self.total = None;
        }
        Some(match reading.source {
            Source::Loop => said.saturating_add(self.before),
            Source::Record | Source::Bar => said,
        })
    }

    fn put(&mut self, step: u64, reading: &Reading, wall_ms: Option<u64>) -> Option<u64> {
        self.version += 1;
        if std::mem::take(&mut self.fresh) {
            let kept = self.rows.partition_point(|row| row.step < step);
            if kept < self.rows.len() {
                self.rows.truncate(kept);
                self.taken_back = self.version;
            }
            self.newest = None;
        }
        let is_new = self.newest.is_none_or(|newest| step > newest);
        if is_new {
            self.newest = Some(step);
        }
        let at = self.rows.partition_point(|row| row.step < step);
        let is_last = at == self.rows.len();
        if self.rows.get(at).is_none_or(|row| row.step != step) {
            if !is_last && reading.values.is_empty() {
                return None;
            }
            if is_last {
                self.drop_unwanted_newest();
            }
            let (attempt, version, ordinal) = (self.attempt, self.version, self.seen);
            self.seen += 1;
            let row = Row { step, attempt, wall_ms, version, ordinal, values: Vec::new() };
            self.rows.insert(at.min(self.rows.len()), row);
        }
        self.fill(step, reading);
        self.thin_out();
        is_new.then_some(step)
    }

    fn fill(&mut self, step: u64, reading: &Reading) {
        let version = self.version;
        let mut places = Vec::with_capacity(reading.values.len());
        for (name, value) in &reading.values {
            let known = self.names.get(name).copied();
            let place = known.or_else(|| {
                let next = self.names.len();
                if next >= self.limits.names {
                    self.too_many_names = true;
                    return None;
                }
                self.names.insert(name.clone(), next);
                Some(next)
            });
            places.extend(place.map(|place| (place, *value)));
        }
        let at = self.rows.partition_point(|row| row.step < step);
        let Some(row) = self.rows.get_mut(at).filter(|row| row.step == step) else { return };
        row.version = version;
        for (place, value) in places {
            if row.values.len() <= place {
                row.values.resize(place + 1, None);
            }
            if let Some(slot) = row.values.get_mut(place) {
                *slot = Some(value);
            }
        }
    }

    /// The newest row was kept because it was the newest.
    fn drop_unwanted_newest(&mut self) {
        if self.rows.last().is_some_and(|row| row.ordinal % self.every != 0) {
            self.rows.pop();
        }
    }

    fn thin_out(&mut self) {
        if self.rows.len() <= self.limits.rows.max(2) {
            return;
        }
        self.every = self.every.saturating_mul(2);
        let (every, newest) = (self.every, self.rows.last().map(|row| row.step));
        self.rows.retain(|row| row.ordinal % every == 0 || Some(row.step) == newest);
        // Steps that came in another order may all have kept their numbers.
        let over = self.rows.len().saturating_sub(self.limits.rows.max(2));
        self.rows.drain(..over);
    }

    /// The newest step of the newest attempt that has said one.
    pub fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Whether the attempt that was begun last has said a step.
    pub fn has_begun(&self) -> bool {
        !self.fresh
    }

    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// Names with their places, by name.
    pub fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        self.names.iter().map(|(name, place)| (name.as_str(), *place))
    }

    pub fn has_too_many_names(&self) -> bool {
        self.too_many_names
    }

    /// One step in so many is kept.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Number of the newest change: everything after it is news.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Rows that have changed after `version`, ascending by step, and whether rows that a reader of
    /// that version knows are gone: then these are all.
    pub fn since(&self, version: u64) -> (impl Iterator<Item = &Row>, bool) {
        let anew = version < self.taken_back || version > self.version;
        let from = if anew { 0 } else { version };
        (self.rows.iter().filter(move |row| row.version > from), anew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read;
    use proptest::prelude::*;

    fn series(rows: usize) -> Series {
        let mut series = Series::new(Limits { names: 4, rows });
        series.begin(1);
        series
    }

    fn feed(series: &mut Series, lines: &[&str]) {
        for line in lines {
            series.take(&read(line.as_bytes()).unwrap(), None);
        }
    }

    fn column(series: &Series, name: &str) -> Vec<(u64, Option<f64>)> {
        let place = series.names().find(|(known, _)| *known == name).map(|(_, place)| place);
        let rows = series.since(0).0;
        rows.map(|row| (row.step, place.and_then(|place| row.value(place)))).collect()
    }

    #[test]
    fn one_step_from_two_files_is_one_row() {
        let mut series = series(10);
        feed(
            &mut series,
            &["step:1 - loss:0.5", r#"{"step": 1, "data": {"lr": 0.1}}"#, "step:2 - loss:0.4"],
        );
        assert_eq!(column(&series, "loss"), [(1, Some(0.5)), (2, Some(0.4))]);
        assert_eq!(column(&series, "lr"), [(1, Some(0.1)), (2, None)]);
    }

    #[test]
    fn a_later_attempt_replaces_what_it_does_again() {
        let mut series = series(10);
        feed(&mut series, &["step:1 - a:1", "step:2 - a:2", "step:3 - a:3"]);
        let known = series.version();
        series.begin(2);
        assert_eq!((series.newest(), series.has_begun()), (Some(3), false));
        feed(&mut series, &["step:2 - a:20"]);
        assert_eq!(column(&series, "a"), [(1, Some(1.0)), (2, Some(20.0))]);
        assert_eq!((series.newest(), series.has_begun()), (Some(2), true));
        let (rows, anew) = series.since(known);
        assert!(anew && rows.count() == 2, "whoever knew step 3 begins anew");
        let (rows, anew) = series.since(series.version());
        assert!(!anew && rows.count() == 0);
    }

    #[test]
    fn loops_that_count_anew_and_bars_of_something_else() {
        let mut series = series(100);
        let epoch: Vec<String> = (1..=4).map(|n| format!("Step {n}/4 loss 0.5")).collect();
        for _ in 0..3 {
            feed(&mut series, &epoch.iter().map(String::as_str).collect::<Vec<_>>());
        }
        assert_eq!((series.newest(), series.total()), (Some(12), None));

        let mut series = self::series(100);
        feed(
            &mut series,
            &[
                " 10%|█ | 50/500 [00:10<01:00,  1.5s/it]",
                "{'loss': 0.5, 'epoch': 1.0}",
                " 60%|█ | 6/10 [00:10<01:00,  1.5s/it]",
                "{'eval_loss': 0.6, 'epoch': 1.0}",
            ],
        );
        assert_eq!((series.newest(), series.total()), (Some(50), Some(500)));
        assert_eq!(column(&series, "eval_loss"), [(50, Some(0.6))]);
    }

    #[test]
    fn names_are_bounded() {
        let mut series = series(10);
        feed(&mut series, &["step:1 - a:1 - b:1 - c:1 - d:1 - e:1 - f:1", "step:2 - a:2 - f:2"]);
        assert_eq!(series.names().count(), 4);
        assert!(series.has_too_many_names());
        assert_eq!(column(&series, "a"), [(1, Some(1.0)), (2, Some(2.0))]);
    }

    #[test]
    fn a_long_training_is_thinned_out_evenly() {
        let mut series = series(64);
        for step in 1..=10_000 {
            feed(&mut series, &[&format!("step:{step} - a:{step}")]);
            assert_eq!(series.since(0).0.last().map(|row| row.step), Some(step));
        }
        let steps: Vec<u64> = column(&series, "a").into_iter().map(|(step, _)| step).collect();
        assert!((32..=64).contains(&steps.len()), "{}", steps.len());
        let gaps: Vec<u64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().rev().skip(1).all(|gap| *gap == series.every()), "{gaps:?}");
    }

    proptest! {
        /// Whatever is said in whatever order: bounded, ascending, and the newest step is there.
        #[test]
        fn always_bounded_and_in_order(
            lines in proptest::collection::vec((0..60u64, 0..6u32, 0..4u8, 0..12u8), 0..200),
            rows in 0..12usize,
        ) {
            let mut series = series(rows);
            let mut attempt = 1;
            for (step, name, kind, chance) in lines {
                if chance == 0 {
                    attempt += 1;
                    series.begin(attempt);
                }
                let source = [Source::Record, Source::Loop, Source::Bar][usize::from(kind % 3)];
                let values = vec![(format!("m{name}"), 1.0)];
                let step = (kind < 3).then_some(step);
                let reading = Reading { source, step, total: Some(60), values };
                let before = series.version();
                series.take(&reading, Some(1));
                prop_assert!(series.version() > before);
                let steps: Vec<u64> = series.since(0).0.map(|row| row.step).collect();
                prop_assert!(steps.len() <= rows.max(2));
                prop_assert!(steps.is_sorted_by(|a, b| a < b));
                prop_assert!(series.names().count() <= 4);
                prop_assert!(!series.has_begun() || series.newest().is_some());
            }
        }
    }
}
