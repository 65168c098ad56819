//! Errors for a person: the message, the place, the line of the text, and a caret below it.

use std::fmt::Write;

use crate::error::{SpecError, SpecErrors};

/// Most characters of a line that a frame shows; a spec in JSON may be one long line.
const MAX_FRAME_CHARS: usize = 120;
/// Where in a shortened line the column of the error stands.
const FRAME_LEAD_CHARS: usize = 40;

impl SpecErrors {
    /// All errors as text for a terminal, each with its line of `source` and a caret under the
    /// column. Control characters of the source are replaced. Ends with a newline.
    #[must_use]
    pub fn render(&self, file_name: &str, source: &str) -> String {
        let frames: Vec<String> =
            self.errors.iter().map(|error| frame(error, file_name, source)).collect();
        let mut out = frames.join("\n");
        if self.omitted > 0 {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "\nand {} more errors", self.omitted);
        }
        out
    }
}

fn frame(error: &SpecError, file_name: &str, source: &str) -> String {
    let mut out = format!("error[{}]: {}\n", error.code, error.message);
    let place = error
        .line
        .zip(error.column)
        .and_then(|(line, column)| Some((line, column, source_line(source, line)?)));
    match place {
        Some((line, column, text)) => {
            let number = line.to_string();
            let gutter = " ".repeat(number.len());
            let (shown, caret) = window(text, column);
            let lead: String =
                shown.chars().take(caret).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            let hint = error.hint.as_deref().unwrap_or_default();
            out.push_str(&format!(
                "{gutter}--> {file_name}:{line}:{column}\n{gutter} |\n{number} | {shown}\n"
            ));
            out.push_str(format!("{gutter} | {lead}^ {hint}").trim_end());
            out.push('\n');
        }
        None => {
            out.push_str(&format!(" --> {file_name}\n"));
            if let Some(hint) = &error.hint {
                out.push_str(&format!("  = {hint}\n"));
            }
        }
    }
    out
}

/// Line `number` (from 1), with the line ends of YAML: LF, CR LF or CR.
fn source_line(source: &str, number: u32) -> Option<&str> {
    let mut rest = source;
    let mut left = number.checked_sub(1)?;
    loop {
        let end = rest.find(['\n', '\r']);
        if left == 0 {
            return rest.get(..end.unwrap_or(rest.len()));
        }
        let after = rest.get(end?..)?;
        rest = after.strip_prefix("\r\n").or_else(|| after.strip_prefix(['\n', '\r']))?;
        left -= 1;
    }
}

/// The part of a line to show, and how many characters of it stand before the caret.
fn window(line: &str, column: u32) -> (String, usize) {
    let before = usize::try_from(column.saturating_sub(1)).unwrap_or(usize::MAX);
    let length = line.chars().count();
    let before = before.min(length);
    let start = if length > MAX_FRAME_CHARS { before.saturating_sub(FRAME_LEAD_CHARS) } else { 0 };
    let mut shown = String::new();
    let mut caret = before - start;
    if start > 0 {
        shown.push('…');
        caret += 1;
    }
    for c in line.chars().skip(start).take(MAX_FRAME_CHARS) {
        // A control character could drive the terminal; one character stays one column.
        let harmless = c == '\t' || !c.is_control();
        shown.push(if harmless { c } else { '\u{fffd}' });
    }
    if length > start + MAX_FRAME_CHARS {
        shown.push('…');
    }
    (shown, caret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_as_in_yaml() {
        let source = "one\r\ntwo\rthree\nfour";
        let lines: Vec<_> = (1..=5).map(|n| source_line(source, n)).collect();
        assert_eq!(lines, [Some("one"), Some("two"), Some("three"), Some("four"), None]);
        assert_eq!(source_line(source, 0), None);
    }

    #[test]
    fn long_lines_are_cut_around_the_column() {
        let line = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let (shown, caret) = window(&line, 501);
        assert_eq!(shown.chars().nth(caret), Some('X'));
        assert!(shown.chars().count() <= MAX_FRAME_CHARS + 2);
        assert_eq!(window("abc", 900), ("abc".to_owned(), 3));
    }
}
