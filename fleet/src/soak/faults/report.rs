//! What a soak with faults came to.

use std::fmt::Write;
use std::time::Duration;

use super::plan::Kind;
use crate::recovery::Found;

/// One fault that a training has lived through.
#[derive(Debug, Clone)]
pub struct Met {
    pub kind: Kind,
    pub job: String,
    /// Number of the attempt that it met.
    pub attempt: u64,
    pub times: Times,
    /// What was found out, when it ended the attempt.
    pub found: Option<Found>,
}

/// When things happened, counted from the fault.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The attempt was over for the coordinator; none when it went on.
    pub detected: Option<Duration>,
    /// The next attempt was assigned; or what was taken away was there again.
    pub replaced: Duration,
    /// The training made a further step.
    pub step: Duration,
}

/// What a soak came to, when nothing was wrong.
#[derive(Debug, Default)]
pub struct Report {
    pub met: Vec<Met>,
    /// From the first training's submission to the last one's end.
    pub took: Duration,
    pub trainings: u8,
    /// Steps that were done, over all trainings.
    pub steps: usize,
    /// Those of them that had been done before.
    pub repeated: u32,
    pub attempts: usize,
    /// Attempts that something else than a fault of their own training has ended, and what.
    pub others: Vec<String>,
}

impl Report {
    /// Rows of a table, and the rate.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| fault | faults | attempts ended | detected s | replaced or back s | a step again s |\n\
             |---|---|---|---|---|---|\n",
        );
        let mut kinds: Vec<Kind> = self.met.iter().map(|met| met.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let of_kind = || self.met.iter().filter(|met| met.kind == kind);
            let ended = of_kind().filter(|met| met.found.is_some()).count();
            let times = |time: fn(&Times) -> Option<Duration>| {
                middle_and_most(of_kind().filter_map(|met| time(&met.times)).collect())
            };
            // Writing to a text does not fail.
            let _ = writeln!(
                text,
                "| {} | {} | {ended} | {} | {} | {} |",
                kind.word(),
                of_kind().count(),
                times(|times| times.detected),
                times(|times| Some(times.replaced)),
                times(|times| Some(times.step)),
            );
        }
        let minutes = self.took.as_secs_f64() / 60.0;
        let _ = writeln!(
            text,
            "{} faults over {} trainings in {minutes:.1} min: {:.1} a minute, one each {:.0} s of a \
             training; {} steps done, {} of them again; {} attempts",
            self.met.len(),
            self.trainings,
            self.met.len() as f64 / minutes,
            self.took.as_secs_f64() * f64::from(self.trainings) / self.met.len().max(1) as f64,
            self.steps,
            self.repeated,
            self.attempts
        );
        for other in &self.others {
            let _ = writeln!(text, "not by a fault of its own: {other}");
        }
        text
    }
}

/// The middle and the greatest, in seconds.
fn middle_and_most(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    match (times.get(times.len() / 2), times.last()) {
        (Some(middle), Some(most)) => {
            format!("{:.1}, {:.1}", middle.as_secs_f64(), most.as_secs_f64())
        }
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_middle_and_the_greatest() {
        let seconds = |all: &[u64]| all.iter().copied().map(Duration::from_secs).collect();
        assert_eq!(middle_and_most(seconds(&[3, 1, 9])), "3.0, 9.0");
        assert_eq!(middle_and_most(seconds(&[])), "-");
        let times = Times {
            detected: None,
            replaced: Duration::from_secs(2),
            step: Duration::from_secs(4),
        };
        let (kind, job) = (Kind::Agent, "j-1".to_owned());
        let met = vec![Met { kind, job, attempt: 1, times, found: None }];
        let took = Duration::from_secs(60);
        let text = Report { met, took, trainings: 1, ..Report::default() }.table();
        assert!(text.contains("| agent killed | 1 | 0 | - | 2.0, 2.0 | 4.0, 4.0 |\n"), "{text}");
        assert!(text.contains("1 faults over 1 trainings in 1.0 min: 1.0 a minute"), "{text}");
    }
}
