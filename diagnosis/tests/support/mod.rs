//! Labelled logs: reading them, asking for their diagnosis, and counting what was right.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gangline_diagnosis::{Case, Category, Diagnosis, Rules, Source};
use serde::Deserialize;

/// A log with what a person says about it.
#[derive(Debug, Deserialize)]
pub struct Labelled {
    pub id: String,
    pub category: String,
    pub log: String,
    /// In words; its first word says whether to retry.
    #[serde(default)]
    expected_action: String,
    retry: Option<bool>,
}

impl Labelled {
    /// Whether the person would start the job again without a change.
    pub fn retries(&self) -> bool {
        self.retry.unwrap_or(!self.expected_action.starts_with("FIX_"))
    }
}

/// Where the held-out logs are.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The records of a file with one JSON object a line.
pub fn records<T: for<'a> Deserialize<'a>>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the rules say about one log.
pub fn diagnose(rules: &Rules, log: &str) -> Diagnosis {
    let mut case = Case::new(rules);
    case.read(&Source::whole("log", log.as_bytes()));
    case.conclude()
}

/// What was right.
#[derive(Default)]
pub struct Score {
    pub logs: usize,
    pub right: usize,
    /// Answers other than `unknown`.
    pub answered: usize,
    pub retry_right: usize,
    /// By category: logs, right, answered with it.
    categories: BTreeMap<String, (usize, usize, usize)>,
    /// By confidence, in tenths: answers, right.
    confidence: BTreeMap<u32, (usize, usize)>,
    pub wrong: Vec<String>,
}

impl Score {
    /// Asks for the diagnosis of each log.
    pub fn of(rules: &Rules, logs: &[Labelled]) -> Score {
        let mut score = Score::default();
        for labelled in logs {
            score.add(labelled, &diagnose(rules, &labelled.log));
        }
        score
    }

    fn add(&mut self, labelled: &Labelled, answer: &Diagnosis) {
        let right = answer.category.word() == labelled.category;
        let retry_right = answer.retry == labelled.retries();
        self.logs += 1;
        self.right += usize::from(right);
        let of = self.categories.entry(labelled.category.clone()).or_default();
        of.0 += 1;
        of.1 += usize::from(right);
        self.categories.entry(answer.category.word().to_owned()).or_default().2 += 1;
        if answer.category != Category::Unknown {
            self.answered += 1;
            self.retry_right += usize::from(retry_right);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let tenth = (answer.confidence * 10.0) as u32;
            let at = self.confidence.entry(tenth).or_default();
            at.0 += 1;
            at.1 += usize::from(right);
        }
        if !right || !retry_right {
            let rule = answer.rule.as_deref().unwrap_or("none");
            self.wrong.push(format!(
                "{}: {} (retry: {}) -> {} {} by {rule}: {}",
                labelled.id,
                labelled.category,
                labelled.retries(),
                answer.category.word(),
                answer.action.word(),
                answer.evidence.first().map_or("", |line| line.text.as_str()),
            ));
        }
    }

    pub fn top_1(&self) -> f64 {
        ratio(self.right, self.logs)
    }

    /// Right on retry yes or no, of all answers other than `unknown`.
    pub fn retry(&self) -> f64 {
        ratio(self.retry_right, self.answered)
    }

    /// The figures as they stand in the documentation.
    pub fn report(&self, title: &str) -> String {
        let mut out = format!(
            "{title}: {} logs, top-1 {:.1} %, answered {:.1} %, right of those {:.1} %, retry yes/no of those {:.1} %\n",
            self.logs,
            100.0 * self.top_1(),
            100.0 * ratio(self.answered, self.logs),
            100.0 * ratio(self.right, self.answered),
            100.0 * self.retry(),
        );
        let _ = writeln!(out, "| category | logs | right | answers with it |\n|---|---|---|---|");
        for (category, (logs, right, answers)) in &self.categories {
            let _ = writeln!(out, "| {category} | {logs} | {right} | {answers} |");
        }
        let _ = writeln!(out, "| confidence at least | coverage | precision |\n|---|---|---|");
        for tenth in self.confidence.keys().rev() {
            let above = self.confidence.range(tenth..);
            let (answers, right) = above.fold((0, 0), |sum, (_, at)| (sum.0 + at.0, sum.1 + at.1));
            let _ = writeln!(
                out,
                "| {:.1} | {:.1} % | {:.1} % |",
                f64::from(*tenth) / 10.0,
                100.0 * ratio(answers, self.logs),
                100.0 * ratio(right, answers),
            );
        }
        for wrong in &self.wrong {
            let _ = writeln!(out, "wrong: {wrong}");
        }
        out
    }
}

#[allow(clippy::cast_precision_loss)]
fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
