//! Where output goes: data to stdout in the chosen format, everything else to stderr.

use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use clap::builder::styling::AnsiColor;
use serde_json::Value;

use crate::errors::CliError;
use crate::terminal::{clean, escape_json};

/// The form of the data on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// More columns.
    Wide,
    /// The coordinator's JSON, indented.
    Json,
    /// The coordinator's JSON, one object a line.
    Jsonl,
    /// Ids alone, one a line.
    Name,
}

/// Reads the format, with an answer for formats that other tools have.
///
/// # Errors
/// A sentence for the command line.
pub fn parse_format(text: &str) -> Result<Format, String> {
    Format::from_str(text, true).map_err(|_| match text {
        "yaml" | "csv" => {
            format!("{text} is not built; use json, and a converter such as yq or jq")
        }
        _ => "use one of table, wide, json, jsonl, name".to_owned(),
    })
}

/// Stdout and stderr of one command.
#[derive(Debug)]
pub struct Screen {
    format: Format,
    quiet: bool,
    terminal: bool,
}

impl Screen {
    /// Output in `format`; `quiet` leaves out hints.
    pub fn new(format: Format, quiet: bool) -> Self {
        Self { format, quiet, terminal: std::io::stdout().is_terminal() }
    }

    /// The chosen format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether data is JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.format, Format::Json | Format::Jsonl)
    }

    /// Whether hints and progress are left out.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether more columns are wanted.
    pub fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Whether stdout is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Columns of the terminal; `None` when stdout is none, and nothing may be cut.
    pub fn width(&self) -> Option<usize> {
        self.size().map(|(columns, _)| columns)
    }

    fn size(&self) -> Option<(usize, usize)> {
        if !self.terminal {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then_some((usize::from(size.ws_col), usize::from(size.ws_row)))
    }

    /// Print text for people to stdout. Colours are removed where they are not wanted; the text
    /// must be free of other control sequences.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn print(&self, text: &str) -> Result<(), CliError> {
        let mut out = anstream::stdout().lock();
        write_out(&mut out, text.as_bytes())
    }

    /// Print one line to stdout, without control sequences.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn line(&self, text: &str) -> Result<(), CliError> {
        self.plain(&format!("{}\n", clean(text)))
    }

    /// Print a JSON document to stdout: indented, or on one line for `jsonl`.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn json(&self, value: &Value) -> Result<(), CliError> {
        let text = if self.format == Format::Jsonl { value.to_string() } else { pretty(value) };
        self.plain(&format!("{}\n", escape_json(&text)))
    }

    /// Print one JSON object on one line, whatever the format.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn json_line(&self, value: &Value) -> Result<(), CliError> {
        self.plain(&format!("{}\n", escape_json(&value.to_string())))
    }

    /// Print text to stdout as it is.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn plain(&self, text: &str) -> Result<(), CliError> {
        write_out(&mut std::io::stdout().lock(), text.as_bytes())
    }

    /// Replace what the terminal shows with `text`, cut to its height.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn redraw(&self, text: &str) -> Result<(), CliError> {
        let rows = self.size().map_or(usize::MAX, |(_, rows)| rows.saturating_sub(1));
        let mut stdout = std::io::stdout().lock();
        // The moves of the cursor must stay where colours are not wanted.
        let plain = anstream::AutoStream::choice(&stdout) == anstream::ColorChoice::Never;
        let text =
            if plain { anstream::adapter::strip_str(text).to_string() } else { text.to_owned() };
        let mut out = String::from("\u{1b}[H");
        for line in text.lines().take(rows) {
            out.push_str(line);
            out.push_str("\u{1b}[K\r\n");
        }
        out.push_str("\u{1b}[J");
        write_out(&mut stdout, out.as_bytes())
    }

    /// A hint or progress for a person, on stderr; left out with `--quiet` and for programs.
    pub fn hint(&self, text: &str) {
        if !self.quiet && !self.is_json() {
            let lines: Vec<String> = text.split('\n').map(clean).collect();
            self.stderr(&lines.join("\n"));
        }
    }

    /// A warning, on stderr, also with `--quiet`: JSON in JSON mode.
    pub fn warn(&self, text: &str) {
        if self.is_json() {
            self.stderr(&escape_json(&serde_json::json!({ "warning": text }).to_string()));
            return;
        }
        let style = AnsiColor::Yellow.on_default().bold();
        self.stderr(&format!("{style}warning{style:#}: {}", clean(text)));
    }

    /// The error that ends the command: JSON in JSON mode.
    pub fn error(&self, error: &CliError) {
        if self.is_json() {
            self.stderr(&escape_json(&error.to_json().to_string()));
            return;
        }
        let text = error.to_text();
        let style = AnsiColor::Red.on_default().bold();
        let safe: Vec<String> = text.lines().map(clean).collect();
        let safe = safe.join("\n");
        match safe.strip_prefix("error") {
            Some(rest) => self.stderr(&format!("{style}error{style:#}{rest}")),
            None => self.stderr(&safe),
        }
    }

    fn stderr(&self, text: &str) {
        // With stderr gone there is nobody to tell.
        let _ = writeln!(anstream::stderr().lock(), "{text}");
    }
}

fn write_out(out: &mut impl Write, bytes: &[u8]) -> Result<(), CliError> {
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| CliError::io("cannot write to stdout", &error))
}

fn pretty(value: &Value) -> String {
    // A JSON value always has a text; `{:#}` is the indented one.
    format!("{value:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_by_name() {
        assert_eq!(parse_format("jsonl"), Ok(Format::Jsonl));
        assert!(parse_format("yaml").is_err_and(|text| text.contains("not built")));
        assert!(parse_format("xml").is_err_and(|text| text.contains("table, wide")));
    }
}
