//! Whether one attempt has stalled: no step, no line, and GPUs that draw a flat line, for longer than
//! its own pace explains. A decision about given times, which are milliseconds of one clock that does
//! not jump.
//!
//! A watch belongs to one attempt and begins when somebody begins to look: whoever was started again
//! begins a new one, and so warns later, never sooner.

use crate::gpus::Pattern;

/// This many steps long nothing is said: one may be a checkpoint or an evaluation.
const STEPS: f64 = 5.0;
/// Lines come, but no step: only after this many times as long.
const TALKING: u64 = 2;
/// Largest factor by which a job is given more time that went on by itself after a warning.
const MOST_PATIENCE: u64 = 8;

/// When to say something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub warn_after_ms: u64,
    /// When something is done about it; at least `warn_after_ms`.
    pub after_ms: u64,
}

/// What is known at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Signs {
    pub now_ms: u64,
    /// Every node of the gang can say what happens there; otherwise silence says nothing.
    pub in_contact: bool,
    pub gpus: Pattern,
    /// The learned time of a step.
    pub step_ms: Option<f64>,
}

/// How it is quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiet {
    /// Neither steps nor lines.
    Silent,
    /// Lines, but no steps.
    NoSteps,
}

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The time for a warning has come.
    Stalled { quiet: Quiet, for_ms: u64 },
    /// The time for acting has come as well.
    Hung { quiet: Quiet, for_ms: u64 },
    /// It goes on after a warning.
    Resumed { after_ms: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Fine,
    Stalled { quiet: Quiet, since_ms: u64 },
    Hung { quiet: Quiet, since_ms: u64 },
}

/// The watch over one attempt.
#[derive(Debug, Clone)]
pub struct Watch {
    line_ms: u64,
    step_ms: u64,
    /// A step was seen in this attempt.
    steps: bool,
    state: State,
    patience: u64,
}

impl Watch {
    pub fn new(now_ms: u64) -> Self {
        Watch { line_ms: now_ms, step_ms: now_ms, steps: false, state: State::Fine, patience: 1 }
    }

    /// A log has grown, or a training checkpoint was made.
    pub fn line(&mut self, now_ms: u64) {
        self.line_ms = self.line_ms.max(now_ms);
    }

    /// A new step has come.
    pub fn step(&mut self, now_ms: u64) {
        self.line(now_ms);
        self.step_ms = self.step_ms.max(now_ms);
        self.steps = true;
    }

    /// Since when it has stalled, as far as that was said.
    pub fn stalled_since(&self) -> Option<u64> {
        match self.state {
            State::Fine => None,
            State::Stalled { since_ms, .. } | State::Hung { since_ms, .. } => Some(since_ms),
        }
    }

    /// When it last said anything.
    pub fn last_sign_ms(&self) -> u64 {
        self.line_ms
    }

    /// Whether judging needs to know about the GPUs: only then is it worth reading them.
    pub fn wants_gpus(&self, now_ms: u64, policy: &Policy) -> bool {
        let least = policy.warn_after_ms.min(policy.after_ms);
        now_ms.saturating_sub(self.step_ms) >= least
    }

    /// What is to be said now, once.
    pub fn judge(&mut self, signs: &Signs, policy: &Policy) -> Option<Verdict> {
        let now = signs.now_ms;
        if !signs.in_contact {
            // What was written meanwhile is on its way; from the return of contact on it counts.
            (self.line_ms, self.step_ms) = (self.line_ms.max(now), self.step_ms.max(now));
            return None;
        }
        if let Some(verdict) = self.resumed(now) {
            return Some(verdict);
        }
        let pace = signs.step_ms.map_or(0.0, |ms| (ms * STEPS).min(u64::MAX as f64)) as u64;
        let limit = policy.warn_after_ms.max(pace).saturating_mul(self.patience);
        let act = policy.after_ms.max(limit);
        let (silent, stepless) =
            (now.saturating_sub(self.line_ms), now.saturating_sub(self.step_ms));
        let (quiet, for_ms) = if silent >= limit && signs.gpus != Pattern::Works {
            (Quiet::Silent, silent)
        } else if self.steps
            && signs.step_ms.is_some()
            && stepless >= limit.saturating_mul(TALKING)
            && signs.gpus == Pattern::Flat
        {
            (Quiet::NoSteps, stepless)
        } else {
            return None;
        };
        match self.state {
            State::Fine => {
                self.state = State::Stalled { quiet, since_ms: now.saturating_sub(for_ms) };
                Some(Verdict::Stalled { quiet, for_ms })
            }
            State::Stalled { quiet, since_ms } if now.saturating_sub(since_ms) >= act => {
                self.state = State::Hung { quiet, since_ms };
                Some(Verdict::Hung { quiet, for_ms: now.saturating_sub(since_ms) })
            }
            State::Stalled { .. } | State::Hung { .. } => None,
        }
    }

    fn resumed(&mut self, now_ms: u64) -> Option<Verdict> {
        let (quiet, since_ms) = match self.state {
            State::Fine => return None,
            State::Stalled { quiet, since_ms } | State::Hung { quiet, since_ms } => {
                (quiet, since_ms)
            }
        };
        let sign = match quiet {
            Quiet::Silent => self.line_ms,
            Quiet::NoSteps => self.step_ms,
        };
        if sign <= since_ms {
            return None;
        }
        self.state = State::Fine;
        // It was no hang, or it can help itself: the next warning comes later.
        self.patience = self.patience.saturating_mul(2).min(MOST_PATIENCE);
        Some(Verdict::Resumed { after_ms: now_ms.saturating_sub(since_ms) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIN: u64 = 60_000;
    const POLICY: Policy = Policy { warn_after_ms: 4 * MIN, after_ms: 20 * MIN };

    fn signs(now_ms: u64, gpus: Pattern, step_ms: Option<f64>) -> Signs {
        Signs { now_ms, in_contact: true, gpus, step_ms }
    }

    /// What is said at every second up to `until`, with its minute.
    fn watched(
        watch: &mut Watch,
        from: u64,
        until: u64,
        gpus: Pattern,
        step_ms: Option<f64>,
    ) -> Vec<(u64, Verdict)> {
        let seconds = (from / 1000)..(until / 1000);
        let said = seconds.filter_map(|second| {
            let now = second * 1000;
            Some((now / MIN, watch.judge(&signs(now, gpus, step_ms), &POLICY)?))
        });
        said.collect()
    }

    #[test]
    fn warned_after_four_minutes_and_acted_on_after_twenty() {
        let mut watch = Watch::new(0);
        watch.step(MIN);
        let said = watched(&mut watch, MIN, 60 * MIN, Pattern::Flat, None);
        assert_eq!(
            said,
            [
                (5, Verdict::Stalled { quiet: Quiet::Silent, for_ms: 4 * MIN }),
                (21, Verdict::Hung { quiet: Quiet::Silent, for_ms: 20 * MIN }),
            ]
        );
        assert_eq!(watch.stalled_since(), Some(MIN));
        watch.line(60 * MIN);
        let said = watched(&mut watch, 60 * MIN, 61 * MIN, Pattern::Flat, None);
        assert_eq!(said, [(60, Verdict::Resumed { after_ms: 59 * MIN })]);
        assert_eq!(watch.stalled_since(), None);
        // It can help itself: the next time it is given twice as long.
        let said = watched(&mut watch, 61 * MIN, 69 * MIN, Pattern::Flat, None);
        assert_eq!(said, [(68, Verdict::Stalled { quiet: Quiet::Silent, for_ms: 8 * MIN })]);
    }

    #[test]
    fn gpus_that_work_are_no_stall() {
        let mut watch = Watch::new(0);
        assert_eq!(watched(&mut watch, 0, 90 * MIN, Pattern::Works, None), []);
        // Then they go flat.
        let said = watched(&mut watch, 90 * MIN, 91 * MIN, Pattern::Flat, None);
        assert!(
            matches!(said.as_slice(), [(90, Verdict::Stalled { .. }), (90, Verdict::Hung { .. })]),
            "{said:?}"
        );
    }

    #[test]
    fn long_steps_are_waited_for() {
        let mut watch = Watch::new(0);
        watch.step(0);
        let step = Some(2.0 * MIN as f64);
        let said = watched(&mut watch, 0, 15 * MIN, Pattern::Flat, step);
        assert_eq!(said, [(10, Verdict::Stalled { quiet: Quiet::Silent, for_ms: 10 * MIN })]);
    }

    #[test]
    fn who_talks_but_takes_no_step_has_stalled_later() {
        let mut watch = Watch::new(0);
        watch.step(0);
        let mut said = Vec::new();
        for second in 0..20 * 60 {
            watch.line(second * 1000);
            let signs = signs(second * 1000, Pattern::Flat, Some(1000.0));
            said.extend(watch.judge(&signs, &POLICY).map(|verdict| (second / 60, verdict)));
        }
        assert_eq!(said, [(8, Verdict::Stalled { quiet: Quiet::NoSteps, for_ms: 8 * MIN })]);
        // A line is no sign of life of such a one; a step is.
        watch.step(20 * MIN);
        let now = signs(20 * MIN, Pattern::Flat, Some(1000.0));
        assert_eq!(watch.judge(&now, &POLICY), Some(Verdict::Resumed { after_ms: 20 * MIN }));
        // Where nobody has learned a step, or the GPUs are not known, lines are enough.
        for (gpus, step) in [(Pattern::Unknown, Some(1000.0)), (Pattern::Flat, None)] {
            let mut watch = Watch::new(0);
            watch.step(0);
            for second in 0..60 * 60 {
                watch.line(second * 1000);
                assert_eq!(watch.judge(&self::signs(second * 1000, gpus, step), &POLICY), None);
            }
        }
    }

    #[test]
    fn silence_of_a_node_is_none_of_the_training() {
        let mut watch = Watch::new(0);
        for second in 0..3600 {
            let cut_off = Signs { in_contact: false, ..signs(second * 1000, Pattern::Flat, None) };
            assert_eq!(watch.judge(&cut_off, &POLICY), None);
        }
        let said = watched(&mut watch, 60 * MIN, 65 * MIN, Pattern::Flat, None);
        assert!(matches!(said.as_slice(), [(63 | 64, Verdict::Stalled { .. })]), "{said:?}");
    }

    proptest! {
        /// In any history: a warning comes before an action, both once, and neither sooner than it may.
        #[test]
        fn words_come_in_order_and_never_too_soon(
            moves in proptest::collection::vec((0..8u8, 1..400u64), 0..300),
            step_s in proptest::option::of(1..300u64),
        ) {
            let (mut watch, mut now, mut newest, mut warned, mut acted) =
                (Watch::new(0), 0, 0, false, false);
            for (kind, seconds) in moves {
                now += seconds * 1000;
                match kind {
                    0 => { watch.line(now); newest = now; }
                    1 => { watch.step(now); newest = now; }
                    _ => {}
                }
                let gpus = [Pattern::Flat, Pattern::Unknown, Pattern::Works][usize::from(kind % 3)];
                let step_ms = step_s.map(|s| s as f64 * 1000.0);
                let signs = Signs { in_contact: kind != 7, ..signs(now, gpus, step_ms) };
                if kind == 7 { newest = now; }
                match watch.judge(&signs, &POLICY) {
                    None => {}
                    Some(Verdict::Resumed { .. }) => {
                        prop_assert!(warned);
                        (warned, acted) = (false, false);
                    }
                    Some(Verdict::Stalled { quiet, for_ms }) => {
                        prop_assert!(!warned && gpus != Pattern::Works);
                        prop_assert!(for_ms >= POLICY.warn_after_ms.max(step_s.unwrap_or(0) * 5000));
                        prop_assert!(quiet == Quiet::NoSteps || now - newest >= POLICY.warn_after_ms);
                        warned = true;
                    }
                    Some(Verdict::Hung { for_ms, .. }) => {
                        prop_assert!(warned && !acted && for_ms >= POLICY.after_ms);
                        acted = true;
                    }
                }
            }
        }
    }
}
