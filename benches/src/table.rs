//! The table that every bench program prints, as Markdown, so that it can be kept as it is.

use std::fmt;

use crate::measure::Series;

/// Rows of text below one head.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Table { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// The head of a table of timings; see `timing`.
    pub fn of_timings() -> Self {
        Table::new(&["what", "median", "p99", "medians of the runs", "beside it", "ratio"])
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// A timing and, where there is one, what it stands beside and how many times as long it takes.
    pub fn timing(&mut self, what: &str, series: &Series, beside: Option<(&str, &Series)>) {
        let (low, high) = series.spread();
        let (text, ratio) = match beside {
            Some((name, floor)) => (
                format!("{name} {}", duration(floor.median())),
                format!("{} x", digits(series.median() / floor.median())),
            ),
            None => (String::new(), String::new()),
        };
        self.row(vec![
            what.to_owned(),
            duration(series.median()),
            duration(series.at(0.99)),
            format!("{} to {}", duration(low), duration(high)),
            text,
            ratio,
        ]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.rows.iter().map(|row| cell(row, column).len()).max().unwrap_or(0))
            .collect();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                write!(f, "| {:width$} ", cell(row, column))?;
            }
            writeln!(f, "|")?;
            if number == 0 {
                let line: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                writeln!(f, "| {} |", line.join(" | "))?;
            }
        }
        Ok(())
    }
}

/// Three significant digits.
pub fn digits(value: f64) -> String {
    match value {
        value if !value.is_finite() => "unknown".to_owned(),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Nanoseconds in the unit that people would use.
pub fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        value if value < 1e3 => format!("{} ns", digits(value)),
        value if value < 1e6 => format!("{} us", digits(value / 1e3)),
        value if value < 1e9 => format!("{} ms", digits(value / 1e6)),
        value => format!("{} s", digits(value / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_digits() {
        assert_eq!(duration(7.123), "7.12 ns");
        assert_eq!(duration(45_670.0), "45.7 us");
        assert_eq!(duration(8_000_000.0), "8.00 ms");
        assert_eq!(duration(3.5e9), "3.50 s");
        assert_eq!(digits(f64::NAN), "unknown");
    }

    #[test]
    fn a_table_is_markdown() {
        let mut table = Table::new(&["a", "long"]);
        table.row(vec!["1234".to_owned(), "x".to_owned()]);
        assert_eq!(table.to_string(), "| a    | long |\n| ---- | ---- |\n| 1234 | x    |\n");
    }
}
