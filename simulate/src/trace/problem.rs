//! What is wrong with a trace: where, what, and how it can be put right.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// From 1; absent when it is the file as a whole.
    pub line: Option<u64>,
    pub column: Option<String>,
    pub what: String,
    pub fix: String,
}

impl Problem {
    pub(super) fn of_file(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Problem { line: None, column: None, what: what.into(), fix: fix.into() }
    }

    pub(super) fn at(
        line: u64,
        column: Option<&str>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let column = column.map(str::to_owned);
        Problem { line: Some(line), column, what: what.into(), fix: fix.into() }
    }

    /// `line 7, column num_gpus`, or `the file`.
    pub fn place(&self) -> String {
        match (self.line, &self.column) {
            (Some(line), Some(column)) => format!("line {line}, column {column}"),
            (Some(line), None) => format!("line {line}"),
            (None, _) => "the file".to_owned(),
        }
    }
}

/// A trace that cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct TraceError {
    pub file: String,
    /// At least one, in the order of the lines.
    pub problems: Vec<Problem>,
    /// Reading ended early; there may be more.
    pub more: bool,
}

impl TraceError {
    pub(super) fn new(file: &str, problems: Vec<Problem>, more: bool) -> Self {
        TraceError { file: file.to_owned(), problems, more }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a trace that can be replayed", self.file)?;
        for problem in &self.problems {
            write!(f, "; {}: {} ({})", problem.place(), problem.what, problem.fix)?;
        }
        Ok(())
    }
}
