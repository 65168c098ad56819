//! The expanded spec as YAML, for people and for `gangline plan -o yaml`.

use serde_json::Value;

use crate::canonical::{escape_for_yaml, is_printable, sorted};
use crate::job::JobSpec;

/// Any JSON value as block YAML, the keys of its mappings in alphabetical order: for a spec that
/// a coordinator of another version wrote. Ends with a newline.
#[must_use]
pub fn yaml(value: &Value) -> String {
    let mut out = String::new();
    write(&sorted(value), 0, &mut out);
    out
}

/// A JSON value as a text that [`crate::parse`] reads: JSON lets some characters stand in a
/// string that YAML wants escaped.
#[must_use]
pub fn json_source(value: &Value) -> String {
    let lines: Vec<String> = format!("{value:#}").lines().map(escape_for_yaml).collect();
    lines.join("\n")
}

impl JobSpec {
    /// The spec as block YAML: what [`JobSpec::canonical_json`] says, one value a line, and a
    /// text of several lines as it is.
    /// [`crate::parse`] of the text gives this spec again. Ends with a newline.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut out = String::new();
        write(&self.canonical(), 0, &mut out);
        out
    }
}

/// Write a mapping or list at `depth`, each entry on a line of its own.
fn write(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                out.push_str(&format!("{indent}{}:", scalar_text(key)));
                write_after(value, depth, out);
            }
        }
        Value::Array(items) => {
            for item in items {
                out.push_str(&format!("{indent}-"));
                match item {
                    // The first entry of a mapping stands beside the dash.
                    Value::Object(entries) if !entries.is_empty() => {
                        let mut inner = String::new();
                        write(item, depth + 1, &mut inner);
                        out.push(' ');
                        out.push_str(inner.trim_start());
                    }
                    _ => write_after(item, depth, out),
                }
            }
        }
        other => out.push_str(&format!("{indent}{}\n", scalar(other))),
    }
}

/// Write a value behind a key or a dash.
pub(crate) fn write_after(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            out.push('\n');
            write(value, depth + 1, out);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            write(value, depth + 1, out);
        }
        Value::String(text) => match block(text, depth) {
            Some(block) => out.push_str(&block),
            None => out.push_str(&format!(" {}\n", scalar_text(text))),
        },
        other => out.push_str(&format!(" {}\n", scalar(other))),
    }
}

/// A text of several lines as a block scalar behind a key or a dash at `depth`, so that it can be
/// read and compared line by line; `None` where quotes are the surer form.
fn block(text: &str, depth: usize) -> Option<String> {
    let (body, chomp) = match text.strip_suffix('\n') {
        Some(body) => (body, ""),
        None => (text, "-"),
    };
    let last = body.rsplit('\n').next().unwrap_or_default();
    let carried = |c: char| c == '\n' || c == '\t' || is_printable(c);
    if !text.contains('\n') || last.trim().is_empty() || !text.chars().all(carried) {
        return None;
    }
    // The first line tells the indentation, unless it begins with a blank itself.
    let indicator = if body.starts_with([' ', '\t', '\n']) { "2" } else { "" };
    let indent = "  ".repeat(depth + 1);
    let mut out = format!(" |{indicator}{chomp}\n");
    for line in body.split('\n') {
        out.push_str(if line.is_empty() { "" } else { &indent });
        out.push_str(line);
        out.push('\n');
    }
    Some(out)
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => scalar_text(text),
        other => other.to_string(),
    }
}

/// A text without quotes where every YAML reader takes it for this text, else in JSON's quotes.
pub(crate) fn scalar_text(text: &str) -> String {
    let start = |c: char| c.is_ascii_alphabetic() || c == '/' || c == '_' || c == '$';
    let inner = |c: char| c.is_ascii_alphanumeric() || " _/.,=+$@(){}[]\"'-".contains(c);
    // YAML 1.1 readers take some words for booleans and nothing.
    let word = text.to_ascii_lowercase();
    let reserved = ["true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"];
    let plain = text.starts_with(start)
        && text.chars().all(inner)
        && !text.ends_with(' ')
        && !reserved.contains(&word.as_str());
    if plain { text.to_owned() } else { escape_for_yaml(&Value::from(text).to_string()) }
}
