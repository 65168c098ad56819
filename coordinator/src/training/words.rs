//! What is said of a training that has stalled, in words.

use gangline_training::{Pattern, Quiet, Sign, Slow};

use super::Progress;

/// `4 min`, or `45 s` for what is shorter than two minutes.
pub(super) fn time(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

/// What was seen: how long it is quiet, the last step, the GPUs.
pub(super) fn quiet(
    quiet: Quiet,
    for_ms: u64,
    progress: Option<Progress>,
    gpus: usize,
    pattern: Pattern,
) -> String {
    let time = time(for_ms);
    let step = progress.map(|progress| progress.step);
    let mut text = match (quiet, step) {
        (Quiet::Silent, Some(step)) => format!("no step after {step} and no line for {time}"),
        (Quiet::Silent, None) => format!("no line for {time}"),
        (Quiet::NoSteps, Some(step)) => format!("no step after {step} for {time}, only lines"),
        (Quiet::NoSteps, None) => format!("no step for {time}, only lines"),
    };
    if let Some(step_ms) = progress.and_then(|progress| progress.step_ms) {
        text.push_str(&format!("; a step takes {:.1} s", step_ms / 1000.0));
    }
    match (gpus, pattern) {
        (0, _) | (_, Pattern::Works) => {}
        (_, Pattern::Flat) => text.push_str(&format!("; its {gpus} GPUs draw a flat line")),
        (_, Pattern::Unknown) => text.push_str(&format!("; its {gpus} GPUs were not read")),
    }
    text
}

/// It goes on.
pub(super) fn resumed(after_ms: u64, progress: Option<Progress>) -> String {
    let step = progress.map(|progress| format!(", at step {}", progress.step));
    format!("goes on after {}{}", time(after_ms), step.unwrap_or_default())
}

/// What tells that a rank is slower than the others.
pub(super) fn slow(slow: &Slow, node: &str, gpu: Option<&str>, now_ms: u64) -> String {
    let (value, usual, others) = (slow.value, slow.usual, slow.others);
    let gpu = gpu.map(|gpu| format!(" of {gpu}")).unwrap_or_default();
    let seen = match slow.sign {
        Sign::StepTime => {
            let (own, usual) = (value / 1000.0, usual / 1000.0);
            format!("a step takes {own:.2} s, {usual:.2} s on the {others} others")
        }
        Sign::Clock => format!("the clock{gpu} is at {value:.0} MHz, {usual:.0} MHz on the others"),
        Sign::Utilization => {
            format!("the use{gpu} is {value:.0} %, {usual:.0} % on the {others} others")
        }
    };
    let time = time(now_ms.saturating_sub(slow.since_ms));
    format!("rank {} on {node} is slower than the others: {seen}, for {time}", slow.rank)
}

pub(super) fn no_longer_slow(rank: u32, node: &str) -> String {
    format!("rank {rank} on {node} is no longer slower than the others")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences() {
        let progress = Progress { step: 84, step_ms: Some(44_420.0), ..Progress::default() };
        assert_eq!(
            quiet(Quiet::Silent, 240_000, Some(progress), 32, Pattern::Flat),
            "no step after 84 and no line for 4 min; a step takes 44.4 s; its 32 GPUs draw a flat line"
        );
        assert_eq!(quiet(Quiet::Silent, 10_000, None, 0, Pattern::Unknown), "no line for 10 s");
        assert_eq!(
            quiet(Quiet::NoSteps, 600_000, None, 1, Pattern::Unknown),
            "no step for 10 min, only lines; its 1 GPUs were not read"
        );
        let step = Slow {
            rank: 13,
            sign: Sign::StepTime,
            value: 2_914.0,
            usual: 1_900.0,
            others: 31,
            since_ms: 1_000,
        };
        assert_eq!(
            slow(&step, "gpu-0231", None, 241_000),
            "rank 13 on gpu-0231 is slower than the others: a step takes 2.91 s, 1.90 s on the 31 \
             others, for 4 min"
        );
        let clock = Slow { sign: Sign::Clock, value: 1200.4, usual: 1980.0, ..step };
        assert_eq!(
            slow(&clock, "a", Some("GPU-3"), 301_000),
            "rank 13 on a is slower than the others: the clock of GPU-3 is at 1200 MHz, 1980 MHz on \
             the others, for 5 min"
        );
        assert_eq!(resumed(3_600_000, Some(progress)), "goes on after 60 min, at step 84");
    }
}
