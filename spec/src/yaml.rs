//! The expanded spec as YAML, for people and for `gangline plan -o yaml`.

use serde_json::Value;

use crate::canonical::escape_for_yaml;
use crate::job::JobSpec;

impl JobSpec {
    /// The spec as block YAML: what [`JobSpec::canonical_json`] says, one value a line.
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
fn write_after(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            out.push('\n');
            write(value, depth + 1, out);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            write(value, depth + 1, out);
        }
        other => out.push_str(&format!(" {}\n", scalar(other))),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => scalar_text(text),
        other => other.to_string(),
    }
}

/// A text without quotes where every YAML reader takes it for this text, else in JSON's quotes.
fn scalar_text(text: &str) -> String {
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
