//! What is said of a training that has stalled, in words.

use gangline_training::{Pattern, Quiet};

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
        assert_eq!(resumed(3_600_000, Some(progress)), "goes on after 60 min, at step 84");
    }
}
