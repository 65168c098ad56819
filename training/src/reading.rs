//! One line of a log, and what it says of a training. The forms:
//!
//! ```text
//! step:84 - actor/pg_loss:0.0121 - critic/score/mean:0.412        verl's console
//! {"step": 84, "data": {"actor/pg_loss": 0.0121}}                 verl's file logger, and flat records
//! {'loss': 1.2, 'grad_norm': 0.3, 'epoch': 0.1}                   Hugging Face's trainer
//!  41%|████      | 812/1980 [21:14<30:33,  1.57s/it]              its progress bar, and verl's
//! Epoch [3/10] Step [4/100] loss 0.31                             everybody's own loop
//!  iteration     5426/  250000 | lm loss: 6.1E+00 | ...           Megatron
//! ```

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// Values of one line; further ones are left out.
pub const MAX_VALUES: usize = 256;
/// Longest name of a value.
pub const MAX_NAME_BYTES: usize = 96;
/// Values of a line of free form.
const MAX_FREE_VALUES: usize = 32;
/// Longest line of free form that is looked at.
const MAX_FREE_BYTES: usize = 4096;

/// How sure a step is one of the training as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A record that counts steps from the beginning of the training to its end.
    Record,
    /// A loop's own line, which may count anew in every epoch.
    Loop,
    /// A progress bar.
    Bar,
}

/// What one line says.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    pub source: Source,
    /// `None`: values of whatever step is the newest.
    pub step: Option<u64>,
    pub total: Option<u64>,
    /// Not finite where the training said so.
    pub values: Vec<(String, f64)>,
}

/// `None` when the pattern is none; it is a constant that a test tries.
type Pattern = LazyLock<Option<Regex>>;

static VERL: Pattern =
    LazyLock::new(|| Regex::new(r"(?:^|[\s)\]])step:\s?([0-9]{1,15}) - (.*)$").ok());
static BAR: Pattern = LazyLock::new(|| {
    Regex::new(
        r"^\s*(?:(?i:train[a-z]*(?: progress)?|epoch[ 0-9/]*|steps?):\s*)?[0-9]{1,3}%\|[^|]{0,200}\|\s*([0-9]{1,15})/([0-9]{1,15})\s\[",
    )
    .ok()
});
static STEP: Pattern = LazyLock::new(|| {
    Regex::new(
        r"(?i)(?:^|[^a-z0-9_/-])(?:global[_ ]?|train(?:ing)?[_ ]|optimizer[_ ])?(?:step|iteration|iter|update)s?\s*[:=#]?\s*[\[(]?\s*([0-9]{1,15})(?:\s*(?:/|of)\s*([0-9]{1,15}))?",
    )
    .ok()
});
static PAIR: Pattern = LazyLock::new(|| {
    Regex::new(
        r"([A-Za-z_][A-Za-z0-9_./@-]{0,63}(?: [a-z]{1,24}){0,2}(?: \([a-z]{1,4}\))?)\s*[:=]\s*\[?([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|[-+]?inf))",
    )
    .ok()
});
static WORDS: Pattern = LazyLock::new(|| {
    Regex::new(
        r"(?i)\b([a-z_/]{0,32}(?:loss|reward|score|accuracy|acc|lr|ppl|perplexity|kl|grad_norm))\s+([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?|nan|[-+]?inf)",
    )
    .ok()
});
/// A line that is nothing but its step.
static ALONE: Pattern = LazyLock::new(|| {
    Regex::new(r"(?i)^\s*(?:\[[^\]]{0,40}\]:?\s*|\([^)]{0,80}\)\s*)?(?:training |train )?(?:step|iteration)\s*[:=#]?\s*[0-9]{1,15}\s*(?:done|finished)?\.?\s*$")
        .ok()
});
/// Python's dictionary, as `print` writes it.
static ITEM: Pattern = LazyLock::new(|| {
    Regex::new(
        r"'([A-Za-z_][A-Za-z0-9_./@ -]{0,95})':\s*'?([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|[-+]?inf)'?\s*[,}]",
    )
    .ok()
});

/// Words of which a line of free form has one at least, so that the rest is not looked at.
const NEEDLES: [&str; 4] = ["step", "iter", "update", "%|"];

/// What a line says of a training; `None` for the lines of everything else.
pub fn read(line: &[u8]) -> Option<Reading> {
    let first = line.iter().find(|byte| !byte.is_ascii_whitespace())?;
    if *first == b'{'
        && let Some(reading) = record(line)
    {
        return Some(reading);
    }
    if !line.iter().any(u8::is_ascii_digit) {
        return None;
    }
    let text = String::from_utf8_lossy(line);
    let text = anstream::adapter::strip_str(&text).to_string();
    if let Some(reading) = verl(&text).or_else(|| dictionary(&text)) {
        return Some(reading);
    }
    if text.len() > MAX_FREE_BYTES {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    if !NEEDLES.iter().any(|needle| lower.contains(needle)) {
        return None;
    }
    bar(&text).or_else(|| free(&text))
}

fn verl(text: &str) -> Option<Reading> {
    // Most lines are none, and a search for a word is cheap.
    if !text.contains("step:") {
        return None;
    }
    let found = VERL.as_ref()?.captures(text)?;
    let step = found.get(1)?.as_str().parse().ok()?;
    let pairs = found.get(2)?.as_str().split(" - ").take(MAX_VALUES);
    let value = |pair: &str| {
        let (name, number) = pair.rsplit_once(':')?;
        Some((name_of(name)?, number_of(number)?))
    };
    let values = pairs.filter_map(value).collect();
    Some(Reading { source: Source::Record, step: Some(step), total: None, values })
}

/// A line of JSON with a step.
fn record(line: &[u8]) -> Option<Reading> {
    let Value::Object(object) = object_of(line)? else { return None };
    let step_of = |name: &&str| object.get(*name).and_then(Value::as_u64);
    let step = ["step", "global_step", "iteration"].iter().find_map(step_of)?;
    let total = ["total_steps", "max_steps"].iter().find_map(step_of);
    let data = object.get("data").and_then(Value::as_object).unwrap_or(&object);
    let numbers = data.iter().filter(|(name, _)| !name.ends_with("step") && *name != "total_steps");
    let value = |(name, value): (&String, &Value)| {
        let number = value.as_f64().or_else(|| not_finite(value.as_str()?));
        Some((name_of(name)?, number?))
    };
    let values: Vec<_> = numbers.filter_map(value).take(MAX_VALUES).collect();
    // A record of something else may have a step as well; a training's has numbers.
    let is_training = object.contains_key("data") || !values.is_empty();
    is_training.then_some(Reading { source: Source::Record, step: Some(step), total, values })
}

/// JSON, also as Python writes it: with `NaN` and `Infinity`, which become texts.
fn object_of(line: &[u8]) -> Option<Value> {
    if let Ok(value) = serde_json::from_slice(line) {
        return Some(value);
    }
    let text = std::str::from_utf8(line).ok()?;
    if !text.contains(": NaN") && !text.contains("Infinity") {
        return None;
    }
    let quoted = text
        .replace(": NaN", r#": "nan""#)
        .replace(": Infinity", r#": "inf""#)
        .replace(": -Infinity", r#": "-inf""#);
    serde_json::from_str(&quoted).ok()
}

fn not_finite(text: &str) -> Option<f64> {
    matches!(text, "nan" | "inf" | "-inf").then(|| number_of(text))?
}

fn dictionary(text: &str) -> Option<Reading> {
    let from = text.find("{'")?;
    let inside = text.get(from..=text.rfind('}')?)?;
    let mut values = Vec::new();
    let mut step = None;
    for found in ITEM.as_ref()?.captures_iter(inside).take(MAX_VALUES) {
        let (name, number) = (found.get(1)?.as_str(), found.get(2)?.as_str());
        if matches!(name, "step" | "global_step") {
            step = number.parse().ok();
        } else if let (Some(name), Some(value)) = (name_of(name), number_of(number)) {
            values.push((name, value));
        }
    }
    let says = |(name, _): &(String, f64)| is_metric(name);
    let is_training = values.iter().any(says);
    is_training.then_some(Reading { source: Source::Record, step, total: None, values })
}

/// A progress bar of a training: one with another name counts something else.
fn bar(text: &str) -> Option<Reading> {
    let found = BAR.as_ref()?.captures(text)?;
    let number = |group: usize| found.get(group)?.as_str().parse().ok();
    let (step, total) = (number(1)?, number(2)?);
    let fits = step <= total && total > 0;
    fits.then(|| Reading {
        source: Source::Bar,
        step: Some(step),
        total: Some(total),
        values: Vec::new(),
    })
}

fn free(text: &str) -> Option<Reading> {
    let found = STEP.as_ref()?.captures(text)?;
    let number = |group: usize| found.get(group)?.as_str().parse::<u64>().ok();
    let (step, total) = (number(1)?, number(2));
    let rest = text.get(found.get(0)?.start()..)?;
    let mut values: Vec<(String, f64)> = Vec::new();
    for pattern in [&PAIR, &WORDS] {
        // What stands before the step is the prefix of a logger.
        for pair in pattern.as_ref()?.captures_iter(rest) {
            let (Some(name), Some(value)) = (pair.get(1), pair.get(2)) else { continue };
            // `12:30:01` and `3/10` are no values.
            let goes_on = rest.get(value.end()..).and_then(|rest| rest.chars().next());
            if goes_on.is_some_and(|next| matches!(next, ':' | '/') || next.is_alphanumeric()) {
                continue;
            }
            let known = |name: &str| values.iter().any(|(known, _)| known == name);
            let (Some(name), Some(value)) = (name_of(name.as_str()), number_of(value.as_str()))
            else {
                continue;
            };
            if values.len() < MAX_FREE_VALUES && !is_counter(&name) && !known(&name) {
                values.push((name, value));
            }
        }
    }
    let total = total.filter(|total| *total >= step);
    let says_something = values.iter().any(|(name, _)| is_metric(name));
    let is_alone = ALONE.as_ref().is_some_and(|alone| alone.is_match(text));
    let is_training = total.is_some() || says_something || is_alone;
    is_training.then_some(Reading { source: Source::Loop, step: Some(step), total, values })
}

/// The step itself, under any name.
fn is_counter(name: &str) -> bool {
    ["step", "steps", "iteration", "iter", "update"]
        .iter()
        .any(|word| name.eq_ignore_ascii_case(word) || name.ends_with(&format!("_{word}")))
}

/// Whether a name is one of those that trainings follow.
fn is_metric(name: &str) -> bool {
    const WORDS: [&str; 17] = [
        "loss",
        "reward",
        "score",
        "acc",
        "lr",
        "learning_rate",
        "ppl",
        "perplexity",
        "kl",
        "grad",
        "return",
        "entropy",
        "error",
        "mse",
        "mae",
        "f1",
        "throughput",
    ];
    let name = name.to_ascii_lowercase();
    let mut parts = name.split(['/', '_', '.', '-']);
    parts.any(|part| WORDS.contains(&part)) || WORDS.iter().any(|word| name.ends_with(word))
}

/// A name that can be shown anywhere: plain characters, and blanks as `_`.
pub(crate) fn name_of(text: &str) -> Option<String> {
    let text = text.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./@-%=+() ".contains(c);
    let fits = (1..=MAX_NAME_BYTES).contains(&text.len()) && text.chars().all(plain);
    fits.then(|| text.replace(' ', "_"))
}

/// A number as Python writes it, `np.float64(0.5)` and `tensor(0.5)` among them.
fn number_of(text: &str) -> Option<f64> {
    let text = text.trim();
    let inner = text.strip_suffix(')').and_then(|rest| rest.split_once('(')).filter(|(kind, _)| {
        kind.starts_with("np.") || kind.starts_with("numpy.") || *kind == "tensor"
    });
    let text = inner.map_or(text, |(_, inner)| inner.trim());
    // `nan`, `inf` and `-inf` are numbers to Rust as well; `infinity` and hexadecimals are not Python's.
    let ordinary = text.len() <= 32
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eEnaif".contains(&byte));
    text.parse().ok().filter(|_| ordinary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(line: &str) -> (Option<u64>, Option<u64>, Vec<(String, f64)>) {
        let reading = read(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
        (reading.step, reading.total, reading.values)
    }

    fn values(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn patterns_are_patterns() {
        for pattern in [&VERL, &BAR, &STEP, &PAIR, &WORDS, &ALONE, &ITEM] {
            assert!(pattern.is_some());
        }
    }

    #[test]
    fn verl_console() {
        let expected = values(&[("actor/pg_loss", 0.0121), ("critic/score/mean", 0.412)]);
        for line in [
            "step:84 - actor/pg_loss:0.0121 - critic/score/mean:0.412",
            "\x1b[36m(TaskRunner pid=4121, ip=10.0.0.3)\x1b[0m step:84 - actor/pg_loss:0.0121 - critic/score/mean:np.float64(0.412)",
            "(main_task pid=9) step:84 - actor/pg_loss:1.21e-2 - note:hello - critic/score/mean:0.412",
        ] {
            assert_eq!(reading(line), (Some(84), None, expected.clone()), "{line}");
        }
        let (_, _, odd) =
            reading("step:1 - actor/grad_norm:nan - val-core/openai/gsm8k/acc/mean@1:inf");
        assert!(odd[0].1.is_nan() && odd[1].1 == f64::INFINITY, "{odd:?}");
    }

    #[test]
    fn records_of_json() {
        let line = r#"{"step": 84, "data": {"actor/pg_loss": 0.5, "note": "x", "val": null}}"#;
        assert_eq!(reading(line), (Some(84), None, values(&[("actor/pg_loss", 0.5)])));
        let flat = r#"{"step": 3, "total_steps": 9, "loss": 0.5}"#;
        assert_eq!(reading(flat), (Some(3), Some(9), values(&[("loss", 0.5)])));
        assert_eq!(read(br#"{"step": "build", "message": "x"}"#), None);
        assert_eq!(read(br#"{"step": 3, "message": "x"}"#), None);
    }

    #[test]
    fn hugging_face() {
        let line = "{'loss': 1.25, 'grad_norm': '0.5', 'learning_rate': 1e-05, 'epoch': 0.1}";
        let expected =
            values(&[("loss", 1.25), ("grad_norm", 0.5), ("learning_rate", 1e-5), ("epoch", 0.1)]);
        assert_eq!(reading(line), (None, None, expected));
        let step = "[rank0]: {'loss': 1.25, 'step': 40}";
        assert_eq!(reading(step), (Some(40), None, values(&[("loss", 1.25)])));
        let bar = " 41%|████      | 812/1980 [21:14<30:33,  1.57s/it]";
        assert_eq!(reading(bar), (Some(812), Some(1980), Vec::new()));
        let verl = "Training Progress:  35%|███▌      | 84/240 [1:02:11<1:55:29, 44.42s/it]";
        assert_eq!(reading(verl), (Some(84), Some(240), Vec::new()));
    }

    #[test]
    fn loops_of_their_own() {
        for (line, step, total, expected) in [
            ("step 5/100 loss 1.2", 5, Some(100), values(&[("loss", 1.2)])),
            ("Step: 5 | Loss: 1.2 | lr: 1e-4", 5, None, values(&[("Loss", 1.2), ("lr", 1e-4)])),
            (
                "2026-11-22 14:03:40,123 INFO train.py:80 - Epoch [3/10] Step [4/100], loss=0.31, acc: 0.5",
                4,
                Some(100),
                values(&[("loss", 0.31), ("acc", 0.5)]),
            ),
            (
                " iteration     5426/  250000 | consumed samples:        43408 | lm loss: 6.1E+00 | grad norm: 1.5 |",
                5426,
                Some(250_000),
                values(&[("consumed_samples", 43408.0), ("lm_loss", 6.1), ("grad_norm", 1.5)]),
            ),
            ("[rank0]: step 7", 7, None, Vec::new()),
            ("global_step=12 reward=3.5", 12, None, values(&[("reward", 3.5)])),
        ] {
            assert_eq!(reading(line), (Some(step), total, expected), "{line}");
        }
    }

    #[test]
    fn lines_of_everything_else() {
        for line in [
            "",
            "Loading checkpoint shards:  50%|█████     | 2/4 [00:03<00:03,  1.52s/it]",
            "Map: 100%|██████████| 7473/7473 [00:01<00:00, 5000 examples/s]",
            "INFO 11-22 14:03:40 Next step: 3 minutes of warm-up for the kernels",
            "took 12 steps to resolve 4 conflicts",
            "{'model': 'qwen', 'layers': 28}",
            "Saved checkpoint at step 80 to /ckpt/global_step_80",
            "GET /api/update/3 200",
            "Updating 3 packages",
        ] {
            assert_eq!(read(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn numbers_that_json_has_not_are_read() {
        let line =
            r#"{"step": 84, "data": {"loss": NaN, "grad": -Infinity, "max": Infinity, "lr": 0.5}}"#;
        let (step, _, values) = reading(line);
        assert_eq!((step, values.len()), (Some(84), 4));
        let of = |name: &str| values.iter().find(|(known, _)| known == name).unwrap().1;
        assert!(of("loss").is_nan() && of("lr") == 0.5);
        assert_eq!((of("grad"), of("max")), (f64::NEG_INFINITY, f64::INFINITY));
        // A text is no number, whatever it says.
        assert_eq!(reading(r#"{"step": 1, "data": {"a": "nan", "b": "12"}}"#).2.len(), 1);
    }

    #[test]
    fn what_is_hostile_is_bounded() {
        let many: String = (0..2000).map(|n| format!(" - m{n}:{n}")).collect();
        assert_eq!(reading(&format!("step:1{many}")).2.len(), MAX_VALUES);
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(reading(&format!("step:1 - {long}:1 - a\x1b[31mb:2 - <b>:3")).2.len(), 1);
        assert_eq!(read(b"step:99999999999999999999 - a:1"), None);
        let deep = "{".repeat(50_000);
        assert_eq!(read(deep.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn no_line_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }

        #[test]
        fn nearly_right_lines_are_bounded(
            line in "[ ({]{0,2}('?(step|loss|iteration|Training Progress|[a-z/]{1,9})'?[:= /\\[|%-]{0,3}(-?[0-9.e]{1,9}|nan)[ ,}\\]|-]{0,3}){0,8}",
        ) {
            if let Some(reading) = read(line.as_bytes()) {
                prop_assert!(reading.values.len() <= MAX_VALUES);
                prop_assert!(reading.values.iter().all(|(name, _)| name.len() <= MAX_NAME_BYTES));
            }
        }

        #[test]
        fn what_verl_writes_is_read(
            step in 0..1_000_000u64,
            pairs in proptest::collection::btree_map("[a-z]{1,8}(/[a-z_@0-9]{1,8}){0,2}", -1e9..1e9f64, 1..20),
        ) {
            let text: String = pairs.iter().map(|(name, value)| format!(" - {name}:{value}")).collect();
            let (read_step, _, read_values) = reading(&format!("step:{step}{text}"));
            prop_assert_eq!(read_step, Some(step));
            prop_assert_eq!(read_values, pairs.into_iter().collect::<Vec<_>>());
        }
    }
}
