//! Signs that a job went on, and that it ended well.

use regex::Regex;

use crate::pattern::Pattern;

/// Longest line that can be a sign, in bytes.
const MAX_BYTES: usize = 2000;

static STEP: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)(?:\b(?:global_?)?(?:steps?|iter(?:ation)?s?|epochs?|batch|update|episode)\b\s*[:=#]?\s*\[?[0-9]|[0-9]%\||(?:it/s|s/it)\b|\b(?:train/|actor/|train_)?(?:loss|reward)'?\s*[:=]\s*-?[0-9]|throughput: [0-9]|Avg prompt throughput)",
    )
    .ok()
});

static WELL: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)(?:^Training completed\b|^Job '[^']+' succeeded|`Trainer\.fit` stopped: `max_|'train_runtime':|^(?:training|train|job|run) (?:has )?(?:finished|done|complete|completed|succeeded)(?: successfully)?\b[^,;]{0,40}$|\bexited with (?:exit )?(?:code|status) 0\b|^ok$|^OK(?: \([^)]*\))?$|successfully finished|WorkerState\.SUCCEEDED|^all [0-9]+ (?:epochs|steps|episodes|iterations|jobs|tests)\b.{0,20}\b(?:done|finished|passed)|^(?:done|finished)[.!]?$)",
    )
    .ok()
});

/// Whether the line is a step of a loop that runs.
pub(crate) fn is_step(text: &str) -> bool {
    text.len() <= MAX_BYTES && STEP.fits(text)
}

/// Whether the line says that all went well.
pub(crate) fn is_success(text: &str) -> bool {
    text.len() <= MAX_BYTES && WELL.fits(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_ends() {
        for text in [
            " iteration     5426/  250000 | consumed samples:        43408",
            "step:12 - actor/loss:0.1",
            "Epoch 3: loss 0.2",
            "41%|████      | 812/1980 [21:14<30:33,  1.57s/it]",
            "{'loss': 0.31, 'grad_norm': 1.2}",
            "Epoch [3/10] Step [4/100]",
        ] {
            assert!(is_step(text), "{text}");
        }
        assert!(!is_step("Traceback (most recent call last):"));
        assert!(is_success("Job 'raysubmit_x' succeeded") && is_success("Training finished."));
        assert!(!is_success("Job 'raysubmit_x' failed"));
        assert!(!is_success("Training finished, but saving the model failed"));
    }
}
