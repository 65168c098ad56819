//! What others wrote must not drive the terminal: control sequences are taken out of names,
//! reasons and log lines.

/// Longest part of a log line that is held back until its end is seen, in bytes. A longer line is
/// shown in pieces.
const MAX_HELD_BYTES: usize = 64 * 1024;

/// Whether `c` may change how or where text is shown: C0 and C1 controls, DEL, and the marks that
/// reverse the direction of text.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` for one cell of a table or one line of a message: control sequences are left out, line
/// ends and tabs become spaces.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut sequence = Sequence::default();
    for c in text.chars() {
        match sequence.next(c) {
            Some('\n' | '\t' | '\r') => out.push(' '),
            Some(c) if !is_control(c) => out.push(c),
            Some(_) | None => {}
        }
    }
    out
}

/// Escape the control characters of a JSON text that JSON itself lets stand, so that it is safe on
/// a terminal and still means the same. Line feeds between values stay.
pub fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        // serde_json has escaped the C0 controls inside strings; a line feed is layout.
        if c != '\n' && is_control(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// Finds escape sequences (ECMA-48) in a text that arrives piece by piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sequence {
    #[default]
    Outside,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte, as in `ESC ( B`.
    Intermediate,
    /// In a control sequence, up to its final byte.
    Control,
    /// In a string (OSC, DCS, APC, PM, SOS), up to BEL or ST.
    Text,
    /// In a string, after ESC.
    TextEscape,
}

impl Sequence {
    /// `c` itself when it stands outside of sequences. Single control characters are given back:
    /// the caller decides about them.
    fn next(&mut self, c: char) -> Option<char> {
        // A line end closes whatever was open: a cut-off sequence must not swallow a log.
        if c == '\n' {
            *self = Self::Outside;
            return Some(c);
        }
        let (next, shown) = match (*self, c) {
            (Self::Text, '\u{7}' | '\u{9c}') | (Self::TextEscape, '\\') => (Self::Outside, None),
            (Self::Text, '\u{1b}') => (Self::TextEscape, None),
            (Self::Text, _) => (Self::Text, None),
            (_, '\u{1b}') => (Self::Escape, None),
            (_, '\u{9b}') => (Self::Control, None),
            (_, '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => (Self::Text, None),
            (Self::Outside, c) => (Self::Outside, Some(c)),
            (Self::Escape | Self::TextEscape, '[') => (Self::Control, None),
            (Self::Escape | Self::TextEscape, ']' | 'P' | 'X' | '^' | '_') => (Self::Text, None),
            (Self::Escape | Self::TextEscape | Self::Intermediate, ' '..='/') => {
                (Self::Intermediate, None)
            }
            (Self::Escape | Self::TextEscape | Self::Intermediate, '0'..='~') => {
                (Self::Outside, None)
            }
            (Self::Control, ' '..='?') => (Self::Control, None),
            (Self::Control, '@'..='~') => (Self::Outside, None),
            // No byte of a sequence: the sequence was broken off, and this is text.
            (_, c) => (Self::Outside, Some(c)),
        };
        *self = next;
        shown
    }
}

/// Makes a log safe for a terminal as it streams in: sequences and characters cut between two
/// pieces are handled, and lines that were overwritten with carriage returns (progress bars) are
/// folded to what was seen last.
#[derive(Debug, Default)]
pub struct LogCleaner {
    /// Bytes of a character whose end has not arrived: at most 3.
    partial: Vec<u8>,
    sequence: Sequence,
    line: String,
    /// The line was returned to its start; the next character overwrites it.
    returned: bool,
}

impl LogCleaner {
    /// The text that is complete after `bytes`: whole lines, or a piece of a very long one.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.partial);
        let mut out = String::new();
        let mut chunks = pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for c in chunk.valid().chars() {
                self.push_char(c, &mut out);
            }
            let invalid = chunk.invalid();
            let at_end = chunks.peek().is_none();
            if at_end && may_be_continued(invalid) {
                self.partial = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.push_char(char::REPLACEMENT_CHARACTER, &mut out);
            }
        }
        out
    }

    /// What is still held back, at the end of the log or when the user goes away.
    pub fn finish(&mut self) -> String {
        self.sequence = Sequence::Outside;
        self.returned = false;
        if !std::mem::take(&mut self.partial).is_empty() {
            self.line.push(char::REPLACEMENT_CHARACTER);
        }
        std::mem::take(&mut self.line)
    }

    fn push_char(&mut self, c: char, out: &mut String) {
        let Some(c) = self.sequence.next(c) else {
            return;
        };
        match c {
            '\n' => {
                self.returned = false;
                out.push_str(&self.line);
                out.push('\n');
                self.line.clear();
            }
            '\r' => self.returned = true,
            c if c != '\t' && is_control(c) => {}
            c => {
                if std::mem::take(&mut self.returned) {
                    self.line.clear();
                }
                self.line.push(c);
                if self.line.len() >= MAX_HELD_BYTES {
                    out.push_str(&self.line);
                    self.line.clear();
                }
            }
        }
    }
}

/// Whether `invalid`, the end of a piece, can be the start of a character.
fn may_be_continued(invalid: &[u8]) -> bool {
    match std::str::from_utf8(invalid) {
        Ok(_) => false,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    }
}

/// What is drawn on a terminal of this size, for tests of screens.
#[cfg(test)]
pub fn drawn(width: u16, height: u16, draw: impl FnOnce(&mut ratatui::Frame)) -> String {
    let backend = ratatui::backend::TestBackend::new(width, height);
    let mut terminal = ratatui::Terminal::new(backend).unwrap();
    terminal.draw(draw).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| -> String {
        let cells = (0..width).filter_map(|x| buffer.cell((x, y)));
        cells.map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_left_out_of_cells() {
        let cases = [
            ("plain", "plain"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("a\u{1b}]0;title\u{7}b", "ab"),
            ("a\u{1b}]8;;http://x\u{1b}\\b", "ab"),
            ("a\u{9b}2Jb", "ab"),
            ("two\nlines\tand\r", "two lines and "),
            ("a\u{202e}b\u{7f}c\u{0}", "abc"),
            ("a\u{1b}(Bb", "ab"),
            ("H20 训练", "H20 训练"),
            ("cut \u{1b}]0;never ends", "cut "),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_log_is_the_same_however_it_is_cut() {
        let text = "é \u{1b}[1;31mred\u{1b}[0m\n 10%\r 20%\r100%\r\n训练\u{1b}]0;x\u{7}!\nend";
        let expected = "é red\n100%\n训练!\nend";
        let bytes = text.as_bytes();
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let mut cleaner = LogCleaner::default();
            let mut out = cleaner.push(first);
            out.push_str(&cleaner.push(second));
            out.push_str(&cleaner.finish());
            assert_eq!(out, expected, "cut at {cut}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_marked() {
        let mut cleaner = LogCleaner::default();
        assert_eq!(cleaner.push(b"a\xffb\n"), "a\u{fffd}b\n");
        assert_eq!(cleaner.push(b"\xe8\xae"), "");
        assert_eq!(cleaner.finish(), "\u{fffd}");
    }

    #[test]
    fn a_long_line_is_not_held_back_for_ever() {
        let mut cleaner = LogCleaner::default();
        let out = cleaner.push(&vec![b'x'; MAX_HELD_BYTES * 3 + 5]);
        assert_eq!(out.len(), MAX_HELD_BYTES * 3);
        assert_eq!(cleaner.finish(), "xxxxx");
    }

    #[test]
    fn an_open_sequence_ends_with_its_line() {
        let mut cleaner = LogCleaner::default();
        assert_eq!(cleaner.push(b"a\x1b]0;open\nnext\n"), "a\nnext\n");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({"name": "a\u{9b}2J\u{202e}\u{1b}[31m\n"});
        let escaped = escape_json(&value.to_string());
        assert!(!escaped.chars().any(is_control));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
