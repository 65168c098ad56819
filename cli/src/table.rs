//! Tables without frames: columns two spaces apart, wide characters counted as two.

use std::fmt::Write as _;

use clap::builder::styling::{AnsiColor, Style};

use crate::terminal::clean;

/// The least width that a cut column keeps.
const MIN_CUT_WIDTH: usize = 12;

/// A table whose last column alone may be cut, and only to fit a terminal: ids never are.
#[derive(Debug)]
pub struct Table {
    titles: &'static [&'static str],
    rows: Vec<Vec<String>>,
    /// Widest cell of each column so far; kept over [`Table::take`], so that pages line up.
    widths: Vec<usize>,
    header_done: bool,
    /// Columns of the terminal; `None` cuts nothing.
    limit: Option<usize>,
    cut_last: bool,
}

impl Table {
    /// An empty table; `limit` is the width of the terminal that the last column is cut to.
    pub fn new(titles: &'static [&'static str], limit: Option<usize>) -> Self {
        let widths = titles.iter().map(|title| width(title)).collect();
        Self { titles, rows: Vec::new(), widths, header_done: false, limit, cut_last: false }
    }

    /// Lets the last column be cut: for sentences, never for ids.
    #[must_use]
    pub fn cut_last(mut self) -> Self {
        self.cut_last = true;
        self
    }

    /// Adds rows, see [`Table::row`].
    #[must_use]
    pub fn with_rows(mut self, rows: impl Iterator<Item = Vec<String>>) -> Self {
        rows.for_each(|row| self.row(row));
        self
    }

    /// Adds a row; control sequences are removed here. A missing cell is empty.
    pub fn row(&mut self, cells: Vec<String>) {
        let cells: Vec<String> = cells.iter().map(|cell| clean(cell)).collect();
        for (known, cell) in self.widths.iter_mut().zip(&cells) {
            *known = (*known).max(width(cell));
        }
        self.rows.push(cells);
    }

    /// The text of the rows since the last call; the first text begins with the titles.
    pub fn take(&mut self) -> String {
        let mut out = String::new();
        if !std::mem::replace(&mut self.header_done, true) {
            let titles: Vec<String> = self.titles.iter().map(|t| (*t).to_owned()).collect();
            self.line(&titles, &mut out);
        }
        for row in std::mem::take(&mut self.rows) {
            self.line(&row, &mut out);
        }
        out
    }

    /// The rows as a part of a longer text: a blank line, `title`, and the table, indented. Nothing
    /// without rows.
    pub fn section(mut self, title: &str) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let table = self.take();
        let indented: Vec<String> = table.lines().map(|line| format!("  {line}\n")).collect();
        format!("\n{title}\n{}", indented.concat())
    }

    fn line(&self, cells: &[String], out: &mut String) {
        let mut line = String::new();
        let mut used = 0;
        let last = self.titles.len().saturating_sub(1);
        for (index, (cell, column)) in cells.iter().zip(&self.widths).enumerate() {
            if index > 0 {
                line.push_str("  ");
                used += 2;
            }
            if index == last {
                line.push_str(&self.fit(cell, used));
                continue;
            }
            let style = style_of(cell);
            let pad = column.saturating_sub(width(cell));
            // Writing to a String cannot fail.
            let _ = write!(line, "{style}{cell}{style:#}{:pad$}", "");
            used += column;
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }

    /// `cell` in what is left of the terminal after `used` columns.
    fn fit(&self, cell: &str, used: usize) -> String {
        let Some(limit) = self.limit.filter(|_| self.cut_last) else {
            return cell.to_owned();
        };
        let room = limit.saturating_sub(used).max(MIN_CUT_WIDTH);
        if width(cell) <= room {
            return cell.to_owned();
        }
        let mut out = String::new();
        for c in cell.chars() {
            if width(&out) + char_width(c) + 1 > room {
                break;
            }
            out.push(c);
        }
        out.push('…');
        out
    }
}

/// The colour of a state's word; every other cell is plain.
fn style_of(cell: &str) -> Style {
    let color = match cell {
        "RUNNING" | "SUCCEEDED" | "ready" => AnsiColor::Green,
        "busy" | "mixed" => AnsiColor::Cyan,
        "PENDING" | "STARTING" | "STOPPING" | "HELD" | "suspect" | "draining" | "cordoned" => {
            AnsiColor::Yellow
        }
        "FAILED" | "TIMEOUT" | "lost" | "revoked" => AnsiColor::Red,
        _ => return Style::new(),
    };
    color.on_default()
}

/// Columns that `text` takes on a terminal.
pub fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> usize {
    match u32::from(c) {
        // Combining marks and characters without width.
        0x0300..=0x036f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        // East Asian wide and full-width forms, and pictures.
        0x1100..=0x115f
        | 0x2e80..=0x303e
        | 0x3041..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        clean(&text.replace('\n', "|"))
    }

    #[test]
    fn columns_line_up_over_pages() {
        let mut table = Table::new(&["ID", "NAME", "REASON"], None);
        table.row(vec!["j-1".into(), "训练".into(), "a long reason that stays".into()]);
        assert_eq!(plain(&table.take()), "ID   NAME  REASON|j-1  训练  a long reason that stays|");
        table.row(vec!["j-200".into(), "x".into()]);
        assert_eq!(plain(&table.take()), "j-200  x|");
        table.row(vec!["j-3".into(), "y".into(), "z".into()]);
        assert_eq!(plain(&table.take()), "j-3    y     z|");
    }

    #[test]
    fn only_the_last_column_is_cut() {
        let mut table = Table::new(&["ID", "REASON"], Some(20)).cut_last();
        table.row(vec!["an-id-of-some-length".into(), "waits for 5 more nodes".into()]);
        table.row(vec!["b".into(), "short".into()]);
        let text = plain(&table.take());
        assert!(text.contains("an-id-of-some-length  waits for 5…|"), "{text}");
        assert!(text.contains("b                     short|"), "{text}");
    }

    #[test]
    fn cells_cannot_drive_the_terminal() {
        let mut table = Table::new(&["A", "B"], None);
        table.row(vec!["x\u{1b}[2J".into(), "y\nz".into()]);
        assert_eq!(table.take(), "A  B\nx  y z\n");
    }

    #[test]
    fn states_have_colours() {
        let mut table = Table::new(&["STATE", "B"], None);
        table.row(vec!["FAILED".into(), "b".into()]);
        assert!(table.take().contains("\u{1b}[31mFAILED\u{1b}[0m  b"));
    }
}
