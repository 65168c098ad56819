//! A diagnosis as a page for a person.

use crate::answer::{Consequence, Diagnosis, Evidence};
use crate::rules::Rules;
use crate::taxonomy::Action;

/// Longest text of a line of evidence on the page, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// The answer for a person, one line for each thing. `clean` makes a text that came from elsewhere fit
/// to be shown. `shadow`: with what rules on probation would say.
pub fn page(
    answer: &Diagnosis,
    rules: &Rules,
    shadow: bool,
    clean: &dyn Fn(&str) -> String,
) -> String {
    let mut out = String::new();
    let mut row = |label: &str, text: &str| {
        out.push_str(&format!("{label:<11} {}\n", clean(text)));
    };
    let sure = match answer.confidence {
        sure if sure >= 0.85 => "high",
        sure if sure >= 0.55 => "medium",
        _ => "low",
    };
    row(
        "Cause",
        &format!(
            "{}: {} ({})    confidence {sure}",
            rules.title(answer.category),
            answer.category.word(),
            answer.sub_code
        ),
    );
    let rank = answer.rank.map(|rank| format!("rank {rank}"));
    let gpu = answer.gpu.as_ref().map(|gpu| format!("GPU {gpu}"));
    let place: Vec<String> = [answer.node.clone(), rank, gpu].into_iter().flatten().collect();
    if !place.is_empty() {
        row("Where", &place.join(", "));
    }
    for (index, evidence) in answer.evidence.iter().enumerate() {
        row(if index == 0 { "Evidence" } else { "" }, &quoted(evidence));
    }
    followed(&mut row, "Then", &answer.consequences);
    row("Retry", retry_word(answer.action));
    row("Advice", &answer.advice);
    if let Some(rule) = &answer.rule {
        row("Rule", &format!("{rule}, rules version {}", answer.rules_version));
    }
    if shadow && answer.shadow.is_empty() {
        row("Probation", "no rule on probation fits");
    } else if shadow {
        followed(&mut row, "Probation", &answer.shadow);
    }
    out
}

fn followed(row: &mut impl FnMut(&str, &str), label: &str, list: &[Consequence]) {
    for (index, other) in list.iter().enumerate() {
        let times = if other.times > 1 { format!(" ×{}", other.times) } else { String::new() };
        let text = format!(
            "{} ({}){times}: {}",
            other.category.word(),
            other.sub_code,
            quoted(&other.evidence)
        );
        row(if index == 0 { label } else { "" }, &text);
    }
}

fn quoted(evidence: &Evidence) -> String {
    let mut chars = evidence.text.chars();
    let mut text: String = chars.by_ref().take(MAX_SHOWN_CHARS).collect();
    if chars.next().is_some() {
        text.push('…');
    }
    match evidence.line {
        Some(line) => format!("{}:{line}: {text}", evidence.file),
        None => format!("{}: {text}", evidence.file),
    }
}

fn retry_word(action: Action) -> &'static str {
    match action {
        Action::FixConfig => "no: change the configuration",
        Action::FixEnv => "no: repair the environment",
        Action::FixCode => "no: change the program",
        Action::FixData => "no: repair what it reads",
        Action::Watch => "no: nothing is known that a retry would help against",
        Action::RetrySame => "yes, as it is",
        Action::RetryElsewhere => "yes, on other nodes",
        Action::RetryElsewhereCordon => {
            "yes, on other nodes; take this one out of use once its kernel log confirms it"
        }
        Action::RetryFromCheckpoint => "yes, from the last training checkpoint",
        Action::RollbackCheckpoint => "yes, from an earlier training checkpoint",
        Action::CheckNetworkRetry => "yes, after a look at the network",
        Action::FreeSpaceThenRetry => "yes, once there is room",
        Action::WaitOrShrink => "yes, once there are more nodes, or with fewer",
        Action::RestartRayRetry => "yes, with a new Ray cluster",
        Action::InvestigateHang => {
            "yes, from the last training checkpoint, once the odd rank is known"
        }
        Action::Resume => "yes, from where it was stopped",
    }
}
