//! Signs that a job went on, and that it ended well.

use std::collections::BTreeMap;

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

/// A bar of what goes before the first step: weights, files, data, graphs.
static PREPARES: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)^\W*(?:[\w-]{1,30} )?(?:(?:down|up|re)?loading|fetching|resolving|capturing|compiling|tokeniz\w+|map|filter|generating \w+ split|preprocess\w*)\b[^|]{0,120}[0-9]%(?: Completed)? ?\||^\S{1,200}\.(?:safetensors|bin|json|gguf|parquet)\b[^|]{0,40}[0-9]%\|",
    )
    .ok()
});

static WELL: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)(?:^Training completed\b|^Job '[^']+' succeeded|`Trainer\.fit` stopped: `max_|'train_runtime':|^(?:training|train|job|run) (?:has )?(?:finished|done|complete|completed|succeeded)(?: successfully)?\b[^,;]{0,40}$|\bexited with (?:exit )?(?:code|status) 0\b|^ok$|^OK(?: \([^)]*\))?$|successfully finished|WorkerState\.SUCCEEDED|^all [0-9]+ (?:epochs|steps|episodes|iterations|jobs|tests)\b.{0,20}\b(?:done|finished|passed)|^(?:done|finished)[.!]?$)",
    )
    .ok()
});

/// The number of a step, after the word for it; or of a progress bar, before how many there are.
static NUMBER: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)\b(?P<word>(?:global_?)?(?:step|iter(?:ation)?|epoch|batch|update|episode))s?\b\s*[:=#]?\s*\[?(?P<step>[0-9]{1,15})|\b(?P<bar>[0-9]{1,15})/(?P<all>[0-9]{1,15}) \[",
    )
    .ok()
});

/// Counters of one log that are told apart.
const MAX_COUNTERS: usize = 64;
/// Of a step that is many steps after the one before, no more count.
const MAX_AT_ONCE: u64 = 2;

/// Whether the line is a step of a loop that runs.
pub(crate) fn is_step(text: &str) -> bool {
    text.len() <= MAX_BYTES
        && STEP.fits(text)
        && !PREPARES.fits(text)
        && !text.contains("generation throughput: 0.0 ")
}

/// How far the loops of one log are.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    counters: BTreeMap<String, u64>,
    last: String,
}

impl Progress {
    /// How many steps the line is ahead: none if it only says again what was known, as bars that are
    /// drawn anew do, and other ranks.
    pub(crate) fn next(&mut self, text: &str) -> u64 {
        if !is_step(text) || text == self.last {
            return 0;
        }
        text.clone_into(&mut self.last);
        let Some(found) = NUMBER.captures(text) else { return 1 };
        let group = |name: &str| found.name(name).map(|group| group.as_str());
        let (counter, number, at_once) = match (group("word"), group("all")) {
            (Some(word), _) => (word.to_ascii_lowercase(), group("step"), MAX_AT_ONCE),
            (None, all) => (format!("/{}", all.unwrap_or_default()), group("bar"), 1),
        };
        let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else { return 1 };
        if number == 0 && at_once == 1 {
            // A bar of which nothing is done yet.
            return 0;
        }
        let is_known = self.counters.contains_key(&counter);
        if !is_known && self.counters.len() >= MAX_COUNTERS {
            return 1;
        }
        match self.counters.insert(counter, number) {
            Some(before) if number >= before => (number - before).min(at_once),
            // It begins, or begins anew.
            Some(_) | None => 1,
        }
    }
}

/// Whether the line says that all went well.
pub(crate) fn is_success(text: &str) -> bool {
    text.len() <= MAX_BYTES && WELL.fits(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_progress() {
        let mut progress = Progress::default();
        for (text, steps) in [
            ("step:10 - loss:0.5", 1),
            ("rank 3: step:10 - loss:0.6", 0),
            ("step:11 - loss:0.5", 1),
            ("step:90 - loss:0.4", 2),
            ("Training:  16%|█▌   | 42/256 [3:31:08<18:27:12, 308.99s/it]", 1),
            ("Training:  16%|█▌   | 42/256 [3:42:31<18:53:46, 317.88s/it]", 0),
            ("Train:   0%|    | 0/512 [00:02<?, ?it/s]", 0),
            ("Rollout:  20%|██   | 104/512 [01:02<04:06,  1.66it/s]", 1),
            ("Rollout:  22%|██▏  | 113/512 [02:27<08:41,  1.31s/it]", 1),
            ("{'loss': 0.31, 'grad_norm': 1.2}", 1),
            ("Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s", 0),
            ("step:1 - loss:0.5", 1),
        ] {
            assert_eq!(progress.next(text), steps, "{text}");
        }
    }

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
        for text in [
            "Loading checkpoint shards: 100%|██████████| 4/4 [00:13<00:00,  3.41s/it]",
            "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:03<00:03,  1.6s/it]",
            "Multi-thread loading shards: 100% Completed | 4/4 [00:04<00:00,  1.07s/it]",
            "model-00001-of-00004.safetensors:  45%|████▌     | 2.21G/4.98G [00:41<00:51, 53.7MB/s]",
        ] {
            assert!(!is_step(text), "{text}");
        }
        assert!(is_success("Job 'raysubmit_x' succeeded") && is_success("Training finished."));
        assert!(!is_success("Job 'raysubmit_x' failed"));
        assert!(!is_success("Training finished, but saving the model failed"));
    }
}
