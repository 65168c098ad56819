//! The spec under construction: its lines, the comments among them, and where in the foreign file
//! each value came from, so that a problem of the result is shown there.

use super::batch::Batch;
use super::{Imported, name_from};
use crate::canonical::is_printable;
use crate::error::{Code, Problems, SpecError, SpecErrors};
use crate::fields::{RESOURCES, Section, Status, TOP};
use crate::overrides;
use crate::tree::{self, Node, Pos, Scalar, ScalarKind, Value};
use crate::yaml::{scalar_text, write_after};

/// Width of a comment, in characters.
const COMMENT_WIDTH: usize = 96;
/// Most lines of a comment that lists findings in a script, and most words of the warning about
/// what is not converted; the rest is counted.
const MAX_FINDINGS: usize = 20;

/// What the spec is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A file whose comments a person reads before it is submitted.
    File,
    /// To be run as it is: what would make it another job is a problem, and the rest is said.
    Submission,
}

/// A spec under construction.
pub(super) struct Draft {
    /// "a Slurm script".
    source: &'static str,
    made_for: For,
    /// `name` and what goes beside it.
    head: Vec<String>,
    resources: Vec<String>,
    /// Fields between the resources and the script.
    middle: Vec<String>,
    env: Vec<(String, Option<String>)>,
    /// Comments right above `run`.
    above_run: Vec<String>,
    /// What has no counterpart, each with where it stood and what to do.
    left_over: Vec<String>,
    /// The words of the leftovers that change what the job does.
    missed: Vec<String>,
    /// How many more leftovers there are than `missed` has words.
    missed_more: usize,
    warnings: Vec<String>,
    /// Of a submission: what does not matter to the job.
    notes: Vec<String>,
    /// Of a submission: what would make it another job.
    refused: Problems,
    /// Pointers into the result, and where their values came from.
    places: Vec<(String, Pos)>,
}

/// A problem of the foreign file.
pub(super) fn problem(
    code: &'static str,
    at: Option<Pos>,
    message: impl Into<String>,
    hint: Option<&str>,
) -> SpecErrors {
    let mut error = SpecError::new(code, "", message, hint.map(str::to_owned));
    error.line = at.map(|pos| pos.line);
    error.column = at.map(|pos| pos.column);
    error.into()
}

/// A value of the foreign file that cannot be meant.
pub(super) fn bad_value(at: Option<Pos>, message: impl Into<String>, hint: &str) -> SpecErrors {
    problem(Code::BAD_VALUE, at, message, Some(hint))
}

impl Draft {
    pub(super) fn new(source: &'static str, made_for: For) -> Self {
        Self {
            source,
            made_for,
            head: Vec::new(),
            resources: Vec::new(),
            middle: Vec::new(),
            env: Vec::new(),
            above_run: Vec::new(),
            left_over: Vec::new(),
            missed: Vec::new(),
            missed_more: 0,
            warnings: Vec::new(),
            notes: Vec::new(),
            refused: Problems::default(),
            places: Vec::new(),
        }
    }

    /// The job's name, made to fit.
    pub(super) fn name(&mut self, written: &str, at: Option<Pos>) {
        let name = name_from(written);
        if name != written {
            let note = format!("`{written}` cannot be a name: lower-case letters, digits and `-`.");
            match self.made_for {
                For::File => comment("", &note, &mut self.head),
                For::Submission => self.notes.push(format!("{note} The job is `{name}`.")),
            }
        }
        self.place("/name", at);
        self.head.push(format!("name: {}", scalar_text(&name)));
    }

    /// A field of the spec itself; `value` is YAML.
    pub(super) fn top(&mut self, name: &str, value: &str, at: Option<Pos>) {
        self.place(&format!("/{name}"), at);
        self.middle.push(self.line(&TOP, name, value));
    }

    /// A field of `resources`; `value` is YAML.
    pub(super) fn resource(&mut self, name: &str, value: &str, at: Option<Pos>) {
        self.place(&format!("/resources/{name}"), at);
        self.resources.push(format!("  {}", self.line(&RESOURCES, name, value)));
    }

    /// A comment above the next field of `resources`: how it was made.
    pub(super) fn resource_note(&mut self, text: &str) {
        if self.made_for == For::File {
            comment("  ", text, &mut self.resources);
        }
    }

    /// A variable of the job; without a value it is taken from the shell that submits.
    pub(super) fn variable(&mut self, name: &str, value: Option<String>, at: Option<Pos>) {
        self.place(&crate::tree::join("/env", name), at);
        self.env.push((name.to_owned(), value));
    }

    /// A comment above `run` that only the reader of a file needs.
    pub(super) fn file_note(&mut self, text: &str) {
        if self.made_for == For::File {
            comment("", text, &mut self.above_run);
        }
    }

    /// A comment above `run`, or a warning.
    pub(super) fn run_note(&mut self, text: &str) {
        match self.made_for {
            For::File => comment("", text, &mut self.above_run),
            For::Submission => self.warn(text),
        }
    }

    /// Comments above `run` about places in the script, and a warning that they are there; or a
    /// warning that has them.
    pub(super) fn findings(&mut self, warning: &str, title: &str, findings: &[String]) {
        if findings.is_empty() {
            return;
        }
        if self.made_for == For::Submission {
            let shown: Vec<&str> = findings.iter().take(MAX_FINDINGS).map(String::as_str).collect();
            let more = findings.len().saturating_sub(shown.len());
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            self.warn(format!("{warning}: {}{more}", shown.join("; ")));
            return;
        }
        self.warn(format!("{warning}: see the comments above `run`"));
        self.file_note(title);
        for finding in findings.iter().take(MAX_FINDINGS) {
            comment("", &format!("  {finding}"), &mut self.above_run);
        }
        if let Some(more) = findings.len().checked_sub(MAX_FINDINGS).filter(|more| *more > 0) {
            self.file_note(&format!("  and {more} more"));
        }
    }

    /// Something without a counterpart that does not change what the job does.
    pub(super) fn ignored(&mut self, written: &str, advice: &str) {
        let text = format!("{written}: {advice}");
        match self.made_for {
            For::File => self.left_over.push(text),
            For::Submission => self.notes.push(text),
        }
    }

    /// Of a submission, a problem; else nothing, and false.
    pub(super) fn refuse(&mut self, code: &'static str, at: Pos, what: String, hint: &str) -> bool {
        if self.made_for == For::Submission {
            self.refused.extend(problem(code, Some(at), what, Some(hint)));
        }
        self.made_for == For::Submission
    }

    /// Something without a counterpart; `word` goes into the warning.
    pub(super) fn missed(&mut self, word: &str, written: &str, advice: &str) {
        if !self.missed.iter().any(|known| known == word) {
            if self.missed.len() < MAX_FINDINGS {
                self.missed.push(word.to_owned());
            } else {
                self.missed_more += 1;
            }
        }
        self.ignored(written, advice);
    }

    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }

    /// The problems of the value at `pointer` are shown at `at`.
    pub(super) fn place(&mut self, pointer: &str, at: Option<Pos>) {
        self.places.extend(at.map(|at| (pointer.to_owned(), at)));
    }

    /// The finished text with `script` as `run`.
    ///
    /// # Errors
    /// The result is not a valid spec: a value out of range, or a script that is too long.
    pub(super) fn finish(mut self, script: &str) -> Result<Imported, SpecErrors> {
        let text = self.text(script);
        if let Err(mut errors) = crate::parse(&text) {
            for error in &mut errors.errors {
                let at = self.origin(&error.pointer);
                error.line = at.map(|pos| pos.line);
                error.column = at.map(|pos| pos.column);
            }
            return Err(errors);
        }
        if !self.missed.is_empty() {
            let mut words = self.missed.join(", ");
            if self.missed_more > 0 {
                words.push_str(&format!(" and {} more", self.missed_more));
            }
            self.warnings
                .push(format!("not converted, see the comments at the end of the file: {words}"));
        }
        Ok(Imported { text, warnings: self.warnings })
    }

    /// The finished spec as a tree with `script` as `run`, in which each value has its place in the
    /// foreign file.
    ///
    /// # Errors
    /// The spec cannot be read back.
    pub(super) fn into_tree(self, script: &str) -> Result<Batch, SpecErrors> {
        let (mut tree, _) = tree::parse(&self.fields())?;
        tree.each_position(&mut |pos| *pos = None);
        let value = Value::Scalar(Scalar { text: script.to_owned(), kind: ScalarKind::Text });
        overrides::put(&mut tree, &["run"], None, Node { value, pos: None, origin: None })?;
        // As in `origin` the first one counts.
        for (pointer, at) in self.places.iter().rev() {
            tree.set_position(pointer, *at);
        }
        Ok(Batch { tree, problems: self.refused, warnings: self.warnings, notes: self.notes })
    }

    /// Where the value at `pointer`, or the nearest one above it, came from.
    fn origin(&self, pointer: &str) -> Option<Pos> {
        let mut pointer = pointer;
        loop {
            if let Some((_, pos)) = self.places.iter().find(|(known, _)| known == pointer) {
                return Some(*pos);
            }
            pointer = pointer.rsplit_once('/')?.0;
        }
    }

    /// `name: value`. In a file it is a comment where no coordinator acts on the field yet: taken
    /// out of its comment it is a field again. In a submission it is refused when it is read.
    fn line(&self, section: &Section, name: &str, value: &str) -> String {
        let status = section.field(name).map_or(Status::NotYet(None), |field| field.status);
        if status.is_read() || self.made_for == For::Submission {
            return format!("{name}: {value}");
        }
        let hint = match status {
            Status::NotYet(Some(hint)) => format!("; {hint}"),
            _ => String::new(),
        };
        format!("# {name}: {value}  # not acted on yet{hint}")
    }

    fn text(&self, script: &str) -> String {
        let mut out = format!(
            "# A Gangline job made from {}. `gangline validate FILE` checks it,\n# `gangline plan \
             FILE` prints what it runs, `gangline submit FILE` runs it.\n{}",
            self.source,
            self.fields()
        );
        for line in &self.above_run {
            out.push_str(line);
            out.push('\n');
        }
        out.push_str("run:");
        write_after(&script.into(), 0, &mut out);
        if !self.left_over.is_empty() {
            let mut lines = Vec::new();
            comment("", "Not converted:", &mut lines);
            for item in &self.left_over {
                comment("", &format!("  {item}"), &mut lines);
            }
            out.push('\n');
            out.push_str(&lines.join("\n"));
            out.push('\n');
        }
        out
    }

    /// The lines above `run`.
    fn fields(&self) -> String {
        let mut out = String::new();
        let resources = ["resources:".to_owned()];
        let resources = resources.iter().filter(|_| !self.resources.is_empty());
        let lines = self.head.iter().chain(resources).chain(&self.resources).chain(&self.middle);
        for line in lines {
            out.push_str(line);
            out.push('\n');
        }
        if !self.env.is_empty() {
            out.push_str("env:\n");
            for (name, value) in &self.env {
                let value =
                    value.as_ref().map_or(serde_json::Value::Null, |value| value.as_str().into());
                out.push_str(&format!("  {}:", scalar_text(name)));
                write_after(&value, 1, &mut out);
            }
        }
        out
    }
}

/// Add `text` as comment lines that begin with `indent`; its own leading blanks stay, and the
/// lines after the first get them too.
fn comment(indent: &str, text: &str, out: &mut Vec<String>) {
    let safe: String = text.chars().map(|c| if is_printable(c) { c } else { '\u{fffd}' }).collect();
    let lead: String = safe.chars().take_while(|c| *c == ' ').collect();
    let mut line = String::new();
    for word in safe.split_whitespace() {
        if !line.is_empty() && line.chars().count() + word.chars().count() >= COMMENT_WIDTH {
            out.push(format!("{indent}# {lead}{line}"));
            line = "  ".to_owned();
            line.push_str(word);
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    out.push(format!("{indent}# {lead}{line}").trim_end().to_owned());
}
