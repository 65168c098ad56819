//! `diagnose`: why a job failed, from its logs alone.

mod read;

use std::path::Path;

use gangline_diagnosis::{Case, Diagnosis, MAX_SOURCES, Rules, Source, share};
use serde_json::Value;

use crate::args::Diagnose;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::terminal::clean;

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
    gangline_diagnosis::page(answer, rules, shadow, &|text| clean(text).to_string())
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
