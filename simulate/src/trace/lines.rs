//! A file as lines of bounded length, unpacked when it is gzip by its first bytes.

use std::io::{BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::Problem;

/// Longest line, in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// Most bytes of a trace after unpacking.
const MAX_BYTES: u64 = 2 << 30;

pub(super) struct Lines<'a> {
    reader: Box<dyn BufRead + 'a>,
    number: u64,
    bytes: u64,
    /// What was found wrong when the first bytes were read.
    broken: Option<std::io::Error>,
}

impl<'a> Lines<'a> {
    pub fn new(input: impl Read + 'a) -> Self {
        let mut input = BufReader::new(input);
        let (packed, broken) = match input.fill_buf() {
            Ok(bytes) => (bytes.starts_with(&[0x1f, 0x8b]), None),
            Err(error) => (false, Some(error)),
        };
        let reader: Box<dyn BufRead + 'a> = match packed {
            true => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            false => Box::new(input),
        };
        Lines { reader, number: 0, bytes: 0, broken }
    }

    /// The next line that is not empty, with its number from 1.
    pub fn next_line(&mut self) -> Result<Option<(u64, String)>, Problem> {
        loop {
            self.number += 1;
            let mut bytes = Vec::new();
            let read = match self.broken.take() {
                Some(error) => Err(error),
                None => (&mut self.reader).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut bytes),
            };
            let read = read.map_err(|error| {
                let fix = "is it whole, and CSV or gzip?";
                Problem::at(self.number, None, format!("cannot be read: {error}"), fix)
            })?;
            if read == 0 {
                return Ok(None);
            }
            self.bytes += read as u64;
            if self.bytes > MAX_BYTES {
                let what = format!("the trace has more than {} GiB", MAX_BYTES >> 30);
                return Err(Problem::at(self.number, None, what, "replay a part of it"));
            }
            if read as u64 > MAX_LINE_BYTES {
                let what = format!("the line is longer than {} KiB", MAX_LINE_BYTES >> 10);
                return Err(Problem::at(self.number, None, what, "is the file CSV?"));
            }
            let Ok(text) = String::from_utf8(bytes) else {
                let what = "the line is not UTF-8 text";
                return Err(Problem::at(self.number, None, what, "is the file CSV or gzip?"));
            };
            let text = text.trim_end_matches(['\n', '\r']);
            // Some programs begin a file with a mark of its byte order.
            let text = if self.number == 1 { text.trim_start_matches('\u{feff}') } else { text };
            if !text.trim().is_empty() {
                return Ok(Some((self.number, text.to_owned())));
            }
        }
    }
}

/// The fields of a line: separated by commas, perhaps in quotes, in which `""` is one quote.
/// `None` when a quote is not closed.
pub(super) fn fields(line: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let field = fields.last_mut()?;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if field.trim().is_empty() => {
                field.clear();
                quoted = true;
            }
            ',' if !quoted => fields.push(String::new()),
            other => field.push(other),
        }
    }
    (!quoted).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_be_quoted() {
        let cases = [
            ("a,b", vec!["a", "b"]),
            ("\"a,b\",c", vec!["a,b", "c"]),
            ("\"a\"\"b\", \"c\"", vec!["a\"b", "c"]),
            (",", vec!["", ""]),
        ];
        for (line, expected) in cases {
            assert_eq!(fields(line).unwrap(), expected, "{line}");
        }
        assert_eq!(fields("\"a,b"), None);
    }
}
