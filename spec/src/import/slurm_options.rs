//! The `#SBATCH` lines of a batch script as options with their positions, its `#GANGLINE` lines,
//! and the script without them.

use super::draft::{bad_value, problem};
use crate::error::{Code, SpecErrors, quoted};
use crate::tree::Pos;

/// One option as it was given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// The long name, or `-x` for a short option that is not known.
    pub(super) name: String,
    pub(super) value: Option<String>,
    pub(super) at: Pos,
    /// As it was written.
    pub(super) written: String,
}

impl Given {
    /// The value.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn value(&self) -> Result<&str, SpecErrors> {
        self.value.as_deref().filter(|value| !value.is_empty()).ok_or_else(|| {
            let message = format!("`--{}` has no value", self.name);
            problem(Code::MISSING, Some(self.at), message, None)
        })
    }

    /// Its name with dashes.
    pub(super) fn spelled(&self) -> String {
        let dashes = if self.name.starts_with('-') { "" } else { "--" };
        format!("{dashes}{}", self.name)
    }

    /// The error of a value that cannot be meant.
    pub(super) fn wrong(&self, hint: &str) -> SpecErrors {
        let value = quoted(self.value.as_deref().unwrap_or_default());
        bad_value(Some(self.at), format!("`--{}` cannot be {value}", self.name), hint)
    }
}

/// The rest of a line after `#GANGLINE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnLine {
    pub(super) text: String,
    /// Of the text's beginning.
    pub(super) at: Pos,
}

/// A batch script, taken apart.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// The words after `#!`; empty when there is no such line.
    pub(super) interpreter: String,
    pub(super) options: Vec<Given>,
    pub(super) own: Vec<OwnLine>,
    /// The script without its first line, its options and its `#GANGLINE` lines.
    pub(super) body: String,
    /// Line of each line of `body` in the file, from 1.
    pub(super) lines: Vec<u32>,
    /// Lines with options that come too late, so that Slurm ignores them too.
    pub(super) late: Vec<u32>,
    /// `#GANGLINE` lines that come too late.
    pub(super) own_late: Vec<u32>,
    /// Whether the lines end as under Windows.
    pub(super) windows: bool,
}

/// Begins a line with an option of Slurm.
const SBATCH: &str = "#SBATCH";
/// Begins a line with a field of the spec.
const GANGLINE: &str = "#GANGLINE";

/// What stands behind `mark` at the beginning of a line, when the line has it.
fn directive<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.strip_prefix(mark).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// Whether a file is a script and no spec: by its first line, by a line of options among its first
/// comments, or by its name.
#[must_use]
pub fn is_script(file_name: &str, text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let comments = text.lines().take_while(|line| line.is_empty() || line.starts_with('#'));
    let is_option =
        |line: &str| directive(line, SBATCH).or_else(|| directive(line, GANGLINE)).is_some();
    let endings = [".sh", ".bash", ".sbatch", ".slurm"];
    text.starts_with("#!")
        || comments.into_iter().any(is_option)
        || endings.iter().any(|ending| file_name.ends_with(ending))
}

/// Options with another spelling of one letter.
const SHORT: [(char, &str); 18] = [
    ('A', "account"),
    ('C', "constraint"),
    ('D', "chdir"),
    ('G', "gpus"),
    ('H', "hold"),
    ('J', "job-name"),
    ('N', "nodes"),
    ('a', "array"),
    ('c', "cpus-per-task"),
    ('d', "dependency"),
    ('e', "error"),
    ('n', "ntasks"),
    ('o', "output"),
    ('p', "partition"),
    ('q', "qos"),
    ('t', "time"),
    ('w', "nodelist"),
    ('x', "exclude"),
];

/// Options that take no value from the next word.
const ALONE: [&str; 7] =
    ["contiguous", "exclusive", "hold", "no-requeue", "overcommit", "oversubscribe", "requeue"];

/// Take `source` apart.
///
/// # Errors
/// A line of options that is no line of options, or a script without a command.
pub(super) fn read(source: &str) -> Result<Script, SpecErrors> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let mut script = Script::default();
    let mut commands = false;
    for (line, number) in source.split('\n').zip(1u32..) {
        let without = line.strip_suffix('\r');
        script.windows |= without.is_some();
        let line = without.unwrap_or(line);
        if let Some(at) = line.find('\0') {
            let column = line.get(..at).unwrap_or_default().chars().count() + 1;
            let at = Pos { line: number, column: u32::try_from(column).unwrap_or(u32::MAX) };
            return Err(bad_value(Some(at), "the script holds a NUL character", "remove it"));
        }
        if let (1, Some(interpreter)) = (number, line.strip_prefix("#!")) {
            script.interpreter = interpreter.split_whitespace().collect::<Vec<_>>().join(" ");
            continue;
        }
        match (directive(line, SBATCH), directive(line, GANGLINE)) {
            (Some(rest), _) if !commands => {
                script.options.extend(options(&words(rest, number)?)?);
                continue;
            }
            (_, Some(rest)) if !commands => {
                script.own.push(own_line(rest, number));
                continue;
            }
            (Some(_), _) => script.late.push(number),
            (_, Some(_)) => script.own_late.push(number),
            (None, None) => {}
        }
        let text = line.trim();
        commands |= !text.is_empty() && !text.starts_with('#');
        if script.body.is_empty() && text.is_empty() {
            continue;
        }
        script.body.push_str(line);
        script.body.push('\n');
        script.lines.push(number);
    }
    if !commands {
        let hint = Some("give a script that runs something");
        let at = Some(Pos { line: 1, column: 1 });
        return Err(problem(Code::MISSING, at, "the script has no command", hint));
    }
    Ok(script)
}

fn own_line(rest: &str, line: u32) -> OwnLine {
    let text = rest.trim_start();
    let before = GANGLINE.len().saturating_add(rest.len().saturating_sub(text.len()));
    let column = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
    OwnLine { text: text.to_owned(), at: Pos { line, column } }
}

/// A word of a line, without its quotes.
#[derive(Debug)]
struct Word {
    text: String,
    at: Pos,
}

/// The words of the rest of a line after `#SBATCH`, with a shell's quotes; `#` begins a comment.
fn words(rest: &str, line: u32) -> Result<Vec<Word>, SpecErrors> {
    let first_column = u32::try_from(SBATCH.len()).unwrap_or_default() + 1;
    let mut words: Vec<Word> = Vec::new();
    let mut word: Option<Word> = None;
    let mut quote: Option<(char, Pos)> = None;
    let mut chars = rest.chars().zip(first_column..);
    while let Some((c, column)) = chars.next() {
        let at = Pos { line, column };
        if matches!(c, ' ' | '\t') && quote.is_none() {
            words.extend(word.take());
            continue;
        }
        if c == '#' && quote.is_none() && word.is_none() {
            break;
        }
        let word = word.get_or_insert_with(|| Word { text: String::new(), at });
        match (c, quote) {
            ('\\', None) => word.text.extend(chars.next().map(|(next, _)| next)),
            ('"' | '\'', None) => quote = Some((c, at)),
            (c, Some((open, _))) if c == open => quote = None,
            (c, _) => word.text.push(c),
        }
    }
    if let Some((_, at)) = quote {
        return Err(problem(Code::SYNTAX, Some(at), "a quote without its end", None));
    }
    words.extend(word);
    Ok(words)
}

fn options(words: &[Word]) -> Result<Vec<Given>, SpecErrors> {
    let mut out = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let (name, mut value) = match word.text.strip_prefix("--") {
            Some("hetjob" | "packjob") => return Err(groups(word.at)),
            Some(long) => match long.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (long.to_owned(), None),
            },
            None => short(word)?,
        };
        let mut written = word.text.clone();
        let takes_next = value.is_none() && !ALONE.contains(&name.as_str());
        if takes_next && let Some(next) = words.next_if(|next| !next.text.starts_with('-')) {
            written = format!("{written} {}", next.text);
            value = Some(next.text.clone());
        }
        out.push(Given { name, value, at: word.at, written });
    }
    Ok(out)
}

/// `-N2` and `-N`, whose value is the next word.
fn short(word: &Word) -> Result<(String, Option<String>), SpecErrors> {
    let mut chars = word.text.strip_prefix('-').unwrap_or_default().chars();
    let Some(letter) = chars.next() else {
        if matches!(word.text.as_str(), "hetjob" | "packjob") {
            return Err(groups(word.at));
        }
        let message = format!("{} is no option", quoted(&word.text));
        return Err(problem(Code::SYNTAX, Some(word.at), message, Some("write `--name=value`")));
    };
    let known = SHORT.iter().find(|(short, _)| *short == letter);
    let name = known.map_or_else(|| format!("-{letter}"), |(_, long)| (*long).to_owned());
    let rest = chars.as_str();
    Ok((name, (!rest.is_empty()).then(|| rest.to_owned())))
}

fn groups(at: Pos) -> SpecErrors {
    let hint = Some("make one job of each group");
    let message = "a job with groups of different shapes is not built yet";
    problem(Code::NOT_YET, Some(at), message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(source: &str) -> Vec<(String, Option<String>, u32, u32)> {
        let script = read(source).unwrap();
        let options = script.options.into_iter();
        options.map(|o| (o.name, o.value, o.at.line, o.at.column)).collect()
    }

    #[test]
    fn options_in_every_form() {
        let source = "#!/bin/bash -l\n\n# a comment\n#SBATCH --nodes=2 -t 1:00 # why\n\
                      #SBATCH -N3 --job-name \"a b\"\n##SBATCH --no\n#SBATCHX\n\
                      #SBATCH --exclusive\n#SBATCH --foo bar -Z\necho hi\n#SBATCH --late=1\n";
        let text = |text: &str| Some(text.to_owned());
        let expected = [
            ("nodes".to_owned(), text("2"), 4, 9),
            ("time".to_owned(), text("1:00"), 4, 19),
            ("nodes".to_owned(), text("3"), 5, 9),
            ("job-name".to_owned(), text("a b"), 5, 13),
            ("exclusive".to_owned(), None, 8, 9),
            ("foo".to_owned(), text("bar"), 9, 9),
            ("-Z".to_owned(), None, 9, 19),
        ];
        assert_eq!(given(source), expected);
        let script = read(source).unwrap();
        assert_eq!(script.interpreter, "/bin/bash -l");
        let body = "# a comment\n##SBATCH --no\n#SBATCHX\necho hi\n#SBATCH --late=1\n\n";
        assert_eq!(script.body, body);
        assert_eq!(script.late, [11]);
        assert_eq!(script.lines.get(..4), Some(&[3, 6, 7, 10][..]));
    }

    #[test]
    fn what_is_no_script() {
        let cases = [
            ("", (1, 1)),
            ("#!/bin/sh\n#SBATCH -N 2\n", (1, 1)),
            ("#SBATCH --name=\"x\necho\n", (1, 16)),
            ("#SBATCH x\necho\n", (1, 9)),
            ("#SBATCH -N 1\n#SBATCH hetjob\necho\n", (2, 9)),
            ("echo a\0\n", (1, 7)),
        ];
        for (source, (line, column)) in cases {
            let errors = read(source).unwrap_err();
            let error = &errors.errors[0];
            assert_eq!((error.line, error.column), (Some(line), Some(column)), "{source}");
        }
    }
}
