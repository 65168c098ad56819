//! `diagnose`: why a job failed, from its logs alone.

mod read;

use std::path::Path;

use gangline_diagnosis::{
    Action, Case, Consequence, Diagnosis, Evidence, MAX_SOURCES, Rules, Source, share,
};
use serde_json::Value;

use crate::args::Diagnose;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::terminal::clean;

/// Longest text of a line of evidence on the page, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// Read the logs, and print one answer for all of them.
pub(super) fn run(args: &Diagnose, screen: &Screen) -> Result<u8, CliError> {
    if args.files.len() > MAX_SOURCES {
        let what = format!("{} files are too many; {MAX_SOURCES} is the most", args.files.len());
        return Err(CliError::new(exit::USAGE, code::USAGE, what)
            .hint("give the logs of the ranks that failed first"));
    }
    let rules = rules()?;
    let (head, tail) = share(args.files.len());
    let mut case = Case::new(&rules);
    for path in &args.files {
        let is_stdin = path.as_os_str() == "-";
        let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
        let pieces = read::pieces(path, head, tail, args.files.len()).map_err(|error| {
            CliError::io(format!("cannot read {name}"), &error)
                .hint("give log files, or - for stdin")
        })?;
        if pieces.cut_short {
            screen.warn(&format!("{name} does not end; its later part was not read"));
        }
        case.read(&Source {
            name: &name,
            rank: rank_of(path),
            head: &pieces.head,
            tail: &pieces.tail,
            tail_line: pieces.tail_line,
            ..Source::default()
        });
    }
    let answer = case.conclude();
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&object(&answer, args.shadow)?)?,
        Format::Name => screen.line(answer.category.word())?,
        Format::Table | Format::Wide => screen.print(&page(&answer, &rules, args.shadow))?,
    }
    Ok(exit::OK)
}

pub(super) fn rules() -> Result<Rules, CliError> {
    Rules::built_in().map_err(|error| {
        CliError::new(exit::ERROR, code::INTERNAL, "the rules of this program are broken")
            .why(error.to_string())
    })
}

/// The rank that a file is named after, as in `rank-3.log`.
fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let (_, rest) = name.split_once("rank")?;
    let digits: String = rest
        .trim_start_matches(['-', '_', '=', '.'])
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

fn object(answer: &Diagnosis, shadow: bool) -> Result<Value, CliError> {
    let value = serde_json::to_value(answer);
    let mut value = value.map_err(|error| {
        CliError::new(exit::ERROR, code::INTERNAL, "the answer cannot be printed")
            .why(error.to_string())
    })?;
    if let Some(map) = value.as_object_mut()
        && !shadow
    {
        map.remove("shadow");
    }
    Ok(value)
}

/// The answer for a person.
pub(super) fn page(answer: &Diagnosis, rules: &Rules, shadow: bool) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_by_name() {
        let cases = [
            ("logs/rank-3.log", Some(3)),
            ("worker_rank12.out", Some(12)),
            ("Rank=07.err", Some(7)),
            ("driver.log", None),
            ("ranking.log", None),
        ];
        for (name, rank) in cases {
            assert_eq!(rank_of(Path::new(name)), rank, "{name}");
        }
    }
}
