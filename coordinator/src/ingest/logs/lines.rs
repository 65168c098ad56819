//! Lines of a log file, one after the other: all of them, or those that a filter lets through, with
//! the lines around them.
//!
//! Memory and work are bounded whatever the file holds: a line is at most [`MAX_LINE`] bytes, a longer
//! one comes in pieces; expressions are matched in linear time; and every byte that is read counts
//! against a budget.

use std::io;
use std::sync::LazyLock;
use std::time::Instant;

use regex::bytes::{Regex, RegexBuilder};

use super::LogFile;

/// Longest line, in bytes.
pub const MAX_LINE: usize = 16 << 10;
/// Longest expression, in bytes, and what it may need compiled.
const MAX_PATTERN: usize = 1000;
/// What a millisecond of looking costs of a budget, in bytes: 64 MiB are 8 s.
const BYTES_A_MS: u64 = 8 << 10;
const MAX_COMPILED: usize = 1 << 20;
/// Bytes that are searched backward for the lines before a hit.
const BEFORE_BYTES: u64 = 64 << 10;
/// Lines of one group: hits whose surroundings overlap.
const MAX_GROUP: usize = 200;
/// An expression that often fits across line ends is tried line by line for the rest of a block.
const MAX_MISSES: usize = 16;

/// What a line with an error looks like: documented in docs/api.md.
const ERRORS: &str = "(?i-u)(?:error|exception)s?\\b|\\b(?:traceback|fatal|critical|panic(?:ked)?|abort(?:ed)?|\
     killed|failed|failures?|segmentation fault|core dumped|out of memory|oom|timed out|xid)\\b";

static ERROR_LINES: LazyLock<Option<Regex>> = LazyLock::new(|| build(ERRORS).ok());

/// An expression cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadPattern {
    #[error("the expression is longer than {MAX_PATTERN} bytes")]
    TooLong,
    #[error("{0}")]
    Bad(String),
}

fn build(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern)
        .multi_line(true)
        .crlf(true)
        .size_limit(MAX_COMPILED)
        .nest_limit(50)
        .build()
}

/// Which lines are wanted.
#[derive(Debug, Default, Clone)]
pub struct Filter {
    /// All of them must fit.
    wanted: Vec<Regex>,
}

impl Filter {
    /// Lines that fit an expression, lines with errors, or those that are both; without either, all.
    ///
    /// # Errors
    /// The expression is none, or too large.
    pub fn new(pattern: Option<&str>, errors: bool) -> Result<Filter, BadPattern> {
        let mut wanted = Vec::new();
        if let Some(pattern) = pattern {
            if pattern.len() > MAX_PATTERN {
                return Err(BadPattern::TooLong);
            }
            wanted.push(build(pattern).map_err(|error| BadPattern::Bad(error.to_string()))?);
        }
        if errors {
            let found = ERROR_LINES.as_ref();
            wanted.push(found.ok_or(BadPattern::Bad("what errors look like".to_owned()))?.clone());
        }
        Ok(Filter { wanted })
    }

    pub fn is_all(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether a line, or a piece of one, is wanted.
    pub fn fits(&self, line: &[u8]) -> bool {
        self.wanted.iter().all(|wanted| wanted.is_match(line))
    }

    /// The first line of `lines` that fits, as its bounds and where in it the expression begins.
    /// `lines` ends with a line end.
    fn find(&self, lines: &[u8]) -> Option<(usize, usize, usize)> {
        let first = self.wanted.first()?;
        let mut at = 0;
        let mut misses = 0;
        while at < lines.len() {
            let begin = if misses < MAX_MISSES { first.find_at(lines, at)?.start() } else { at };
            if begin >= lines.len() {
                return None;
            }
            let before = lines.get(at..begin).unwrap_or_default();
            let start = memchr::memrchr(b'\n', before).map_or(at, |found| at + found + 1);
            let rest = lines.get(begin..).unwrap_or_default();
            let end = memchr::memchr(b'\n', rest).map_or(lines.len(), |found| begin + found);
            // What fits may reach over the end of the line, and the line alone may not.
            let line = lines.get(start..end).unwrap_or_default();
            if self.fits(line) {
                return Some((start, end, begin));
            }
            misses += 1;
            at = end + 1;
        }
        None
    }
}

/// A line, or a piece of a long one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub offset: u64,
    /// Where the next one begins.
    pub next: u64,
    /// Without its line end.
    pub text: Vec<u8>,
    /// It is wanted, and not only near one that is.
    pub hit: bool,
    /// It is a piece of a longer line.
    pub cut: bool,
}

/// What a look brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<T> {
    Yes(T),
    /// Nothing more is there now.
    End,
    /// The budget is used up; go on with another one.
    Spent,
}

/// Reads lines of one file from an offset on.
#[derive(Debug)]
pub struct Lines {
    file: LogFile,
    /// The file grows no more: its last line counts without a line end.
    ended: bool,
    block: Vec<u8>,
    /// Offset of the block's first byte.
    base: u64,
    /// Within the block: what is before it was read.
    at: usize,
    block_bytes: usize,
    /// Nothing before this is shown as the surroundings of a hit.
    floor: u64,
}

impl Lines {
    /// From `offset` on, where a line must begin. `block_bytes` are read at once, at least two lines.
    pub fn new(file: LogFile, offset: u64, ended: bool, block_bytes: usize) -> Lines {
        let block_bytes = block_bytes.max(2 * MAX_LINE);
        let (block, at) = (Vec::new(), 0);
        Lines { file, ended, block, base: offset, at, block_bytes, floor: offset }
    }

    /// Where reading goes on.
    pub fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Goes on at `offset`, where a line or a piece of one begins.
    pub fn resume(&mut self, offset: u64) {
        self.block.clear();
        (self.base, self.at, self.floor) = (offset, 0, offset);
    }

    /// Goes on with the line that holds `offset`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn seek(&mut self, offset: u64) -> io::Result<()> {
        let from = offset.saturating_sub(MAX_LINE as u64);
        let before = self.file.read_at(from, (offset - from) as usize)?;
        let begun = memchr::memrchr(b'\n', &before).map_or(0, |found| found + 1);
        self.resume(from + begun as u64);
        Ok(())
    }

    /// Where the last `count` lines begin, of which no more than `bytes` are looked at.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn last(&mut self, count: usize, bytes: usize) -> io::Result<u64> {
        let length = self.file.length();
        let from = length.saturating_sub(bytes as u64);
        let end = self.file.read_at(from, bytes)?;
        let body = end.strip_suffix(b"\n").unwrap_or(&end);
        let mut begins = memchr::memrchr_iter(b'\n', body).map(|at| from + at as u64 + 1);
        if count == 0 {
            return Ok(length);
        }
        let first = begins.nth(count - 1);
        Ok(first.unwrap_or(if from == 0 { 0 } else { from }))
    }

    fn rest(&self) -> &[u8] {
        self.block.get(self.at..).unwrap_or_default()
    }

    fn is_at_end(&self) -> bool {
        self.base + self.block.len() as u64 >= self.file.length()
    }

    /// Reads a block from the present place on.
    fn fill(&mut self, budget: &mut u64) -> io::Result<Found<()>> {
        if self.is_at_end() {
            return Ok(Found::End);
        }
        if *budget == 0 {
            return Ok(Found::Spent);
        }
        (self.base, self.at) = (self.offset(), 0);
        self.block = self.file.read_at(self.base, self.block_bytes)?;
        *budget = budget.saturating_sub(self.block.len() as u64);
        Ok(Found::Yes(()))
    }

    fn take(&mut self, text: usize, all: usize, cut: bool) -> Line {
        let offset = self.offset();
        let line = self.rest().get(..text).unwrap_or_default().to_vec();
        self.at += all;
        Line { offset, next: self.offset(), text: without_return(line), hit: false, cut }
    }

    /// The next line.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_line(&mut self, budget: &mut u64) -> io::Result<Found<Line>> {
        loop {
            let rest = self.rest();
            let most = rest.len().min(MAX_LINE + 1);
            if let Some(end) = memchr::memchr(b'\n', rest.get(..most).unwrap_or_default()) {
                return Ok(Found::Yes(self.take(end, end + 1, false)));
            }
            if rest.len() > MAX_LINE {
                let piece = whole_characters(rest.get(..MAX_LINE).unwrap_or_default());
                return Ok(Found::Yes(self.take(piece, piece, true)));
            }
            match self.fill(budget)? {
                Found::Yes(()) => {}
                Found::Spent => return Ok(Found::Spent),
                Found::End if self.ended && !self.rest().is_empty() => {
                    let all = self.rest().len();
                    return Ok(Found::Yes(self.take(all, all, false)));
                }
                Found::End => return Ok(Found::End),
            }
        }
    }

    /// The next line that fits.
    fn next_hit(&mut self, filter: &Filter, budget: &mut u64) -> io::Result<Found<Line>> {
        loop {
            let rest = self.rest();
            if let Some(end) = memchr::memrchr(b'\n', rest) {
                let whole = rest.get(..=end).unwrap_or_default();
                let began = Instant::now();
                let found = filter.find(whole);
                // Some expressions take long for what they read: time counts as well.
                let spent_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                *budget = budget.saturating_sub(spent_ms.saturating_mul(BYTES_A_MS));
                let Some((start, end, begin)) = found else {
                    self.at += end + 1;
                    continue;
                };
                self.at += start;
                let (length, begin) = (end - start, begin - start);
                let mut line = self.take(length, length + 1, length > MAX_LINE);
                if line.cut {
                    // What fits is shown, and some of what is before it.
                    let from = begin.saturating_sub(MAX_LINE / 4);
                    line.text.drain(..from.min(line.text.len()));
                    line.text.truncate(MAX_LINE);
                }
                line.hit = true;
                return Ok(Found::Yes(line));
            }
            if rest.len() < MAX_LINE {
                match self.fill(budget)? {
                    Found::Yes(()) => continue,
                    Found::Spent => return Ok(Found::Spent),
                    Found::End => {}
                }
            }
            // A line without an end in sight: piece by piece.
            match self.next_line(budget)? {
                Found::Yes(mut line) if filter.fits(&line.text) => {
                    line.hit = true;
                    return Ok(Found::Yes(line));
                }
                Found::Yes(_) => {}
                none => return Ok(none),
            }
        }
    }

    /// The next lines that belong together: one line without a filter; else a hit and `context` lines
    /// before and after it, and further hits among those.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_group(
        &mut self,
        filter: &Filter,
        context: usize,
        budget: &mut u64,
    ) -> io::Result<Found<Vec<Line>>> {
        if filter.is_all() {
            return Ok(match self.next_line(budget)? {
                Found::Yes(line) => Found::Yes(vec![line]),
                Found::End => Found::End,
                Found::Spent => Found::Spent,
            });
        }
        let hit = match self.next_hit(filter, budget)? {
            Found::Yes(hit) => hit,
            Found::End => return Ok(Found::End),
            Found::Spent => return Ok(Found::Spent),
        };
        let mut group = self.before(hit.offset, context)?;
        group.push(hit);
        let mut left = context;
        while left > 0 && group.len() < MAX_GROUP {
            // What is missing at the end is missing: it may not be written yet.
            let Found::Yes(mut line) = self.next_line(budget)? else { break };
            line.hit = filter.fits(&line.text);
            left = if line.hit { context } else { left - 1 };
            group.push(line);
        }
        self.floor = self.offset();
        Ok(Found::Yes(group))
    }

    /// The last `count` lines before `end`, where a line ends.
    fn before(&mut self, end: u64, count: usize) -> io::Result<Vec<Line>> {
        let from = self.floor.max(end.saturating_sub(BEFORE_BYTES));
        if count == 0 || from >= end {
            return Ok(Vec::new());
        }
        let bytes = self.file.read_at(from, (end - from) as usize)?;
        let mut lines = Vec::new();
        let mut next = bytes.len();
        while lines.len() < count && next > 0 {
            let body = bytes.get(..next).unwrap_or_default();
            let ended = body.strip_suffix(b"\n").unwrap_or(body);
            let start = match memchr::memrchr(b'\n', ended) {
                Some(found) => found + 1,
                None if from == self.floor => 0,
                // Its beginning was not read.
                None => break,
            };
            let line = ended.get(start..).unwrap_or_default();
            let cut = line.len() > MAX_LINE;
            let text = line.get(..line.len().min(MAX_LINE)).unwrap_or_default().to_vec();
            let at = |index: usize| from + index as u64;
            let (offset, next_at) = (at(start), at(next));
            let text = without_return(text);
            lines.push(Line { offset, next: next_at, text, hit: false, cut });
            next = start;
        }
        lines.reverse();
        Ok(lines)
    }
}

fn without_return(mut line: Vec<u8>) -> Vec<u8> {
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    line
}

/// Number of leading bytes that do not end within a character.
fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let begins = |at: &usize| bytes.get(*at).is_some_and(|byte| *byte >= 0xc0);
    match (tail..bytes.len()).rev().find(begins) {
        Some(at) => match std::str::from_utf8(bytes.get(at..).unwrap_or_default()) {
            Err(error) if error.error_len().is_none() && at > 0 => at,
            _ => bytes.len(),
        },
        None => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(content: &[u8], ended: bool) -> (tempfile::TempDir, Lines) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        std::fs::write(&path, content).unwrap();
        let file = LogFile::open_plain(&path, content.len() as u64).unwrap();
        (directory, Lines::new(file, 0, ended, 0))
    }

    fn all(content: &[u8], ended: bool) -> Vec<Line> {
        let (_directory, mut lines) = lines(content, ended);
        let mut budget = u64::MAX;
        let mut found = Vec::new();
        while let Found::Yes(line) = lines.next_line(&mut budget).unwrap() {
            found.push(line);
        }
        found
    }

    fn groups(content: &[u8], pattern: &str, context: usize) -> Vec<Vec<(String, bool)>> {
        let (_directory, mut lines) = lines(content, true);
        let filter = Filter::new(Some(pattern), false).unwrap();
        let mut found = Vec::new();
        let mut budget = u64::MAX;
        while let Found::Yes(group) = lines.next_group(&filter, context, &mut budget).unwrap() {
            let text = |line: &Line| (String::from_utf8_lossy(&line.text).into_owned(), line.hit);
            found.push(group.iter().map(text).collect());
        }
        found
    }

    fn texts(groups: &[Vec<(String, bool)>]) -> Vec<Vec<&str>> {
        groups.iter().map(|group| group.iter().map(|(text, _)| text.as_str()).collect()).collect()
    }

    #[test]
    fn lines_cover_a_file_without_gap_or_repeat() {
        let mut content = b"one\r\n\ntwo".to_vec();
        content.extend_from_slice(&[b"\n", "训练".repeat(30_000).as_bytes(), b"\nlast"].concat());
        let found = all(&content, true);
        let mut at = 0;
        for line in &found {
            assert_eq!(line.offset, at);
            assert!(line.text.len() <= MAX_LINE && std::str::from_utf8(&line.text).is_ok());
            at = line.next;
        }
        assert_eq!(at, content.len() as u64);
        assert_eq!(found[0].text, b"one");
        assert_eq!(found[2].text, b"two");
        assert_eq!(found.iter().filter(|line| line.cut).count(), 180_000 / MAX_LINE);
        // More may come to the last line.
        let growing = all(&content, false);
        assert_eq!(growing.len(), found.len() - 1);
    }

    #[test]
    fn a_line_of_a_hundred_megabytes_comes_in_pieces() {
        let mut content = vec![0; 100 << 20];
        content.extend_from_slice(b"\nerror: end\n");
        let (_directory, mut lines) = lines(&content, true);
        let filter = Filter::new(Some("end"), true).unwrap();
        let (mut spent, mut budget) = (0, 1 << 20);
        let hit = loop {
            match lines.next_group(&filter, 1, &mut budget).unwrap() {
                Found::Yes(hit) => break hit,
                Found::Spent => (spent, budget) = (spent + 1, 1 << 20),
                Found::End => panic!("nothing was found"),
            }
        };
        assert!(spent > 90, "{spent}");
        assert_eq!(hit.last().unwrap().text, b"error: end");
        assert!(lines.block.len() <= 2 * MAX_LINE);
    }

    #[test]
    fn hits_are_the_lines_that_grep_shows() {
        let content = b"alpha\nbeta error\ngamma\ndelta\nerror again\nomega\n";
        let hits = |pattern| texts(&groups(content, pattern, 0)).concat().join("|");
        assert_eq!(hits("error"), "beta error|error again");
        assert_eq!(hits("^error"), "error again");
        assert_eq!(hits("a$"), "alpha|gamma|delta|omega");
        assert_eq!(hits("(?i)ALPHA"), "alpha");
        assert_eq!(hits("^$"), "");
        // Across line ends nothing fits.
        assert_eq!(hits("error\\s+gamma"), "");
        assert_eq!(hits("a[\\s\\S]*gamma"), "");
        let many: String = (0..20_000).map(|n| format!("ab {n}\n")).collect();
        let many = format!("{many}a b z\n");
        assert_eq!(texts(&groups(many.as_bytes(), "a[^z]*z", 0)), [["a b z"]]);
        let long = [vec![b'x'; 40_000], b" needle ".to_vec(), vec![b'y'; 40_000]].concat();
        let long = [&long[..], b"\nshort\n"].concat();
        let found = groups(&long, "needle", 0);
        assert!(found.len() == 1 && found[0][0].0.contains("needle"));
    }

    #[test]
    fn lines_around_a_hit_come_once() {
        let content: Vec<u8> = (1..=20).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let found = groups(&content, "line (5|7|12|13)$", 2);
        let numbers = |group: &Vec<(String, bool)>| {
            let number = |(text, hit): &(String, bool)| (text[5..].parse().unwrap(), *hit);
            group.iter().map(number).collect::<Vec<(u32, bool)>>()
        };
        let shown: Vec<Vec<(u32, bool)>> = found.iter().map(numbers).collect();
        let hits = |of: &[u32], range: std::ops::RangeInclusive<u32>| {
            range.map(|n| (n, of.contains(&n))).collect::<Vec<_>>()
        };
        assert_eq!(shown, [hits(&[5, 7], 3..=9), hits(&[12, 13], 10..=15)]);
    }

    #[test]
    fn a_filter_has_limits() {
        assert!(matches!(Filter::new(Some(&"x".repeat(1001)), false), Err(BadPattern::TooLong)));
        for bad in ["(", "a{100000}{100000}", "(?:\\pL{500}){500}", &"(".repeat(400)] {
            assert!(matches!(Filter::new(Some(bad), false), Err(BadPattern::Bad(_))), "{bad}");
        }
        let errors = Filter::new(None, true).unwrap();
        for line in [
            "RuntimeError: NCCL",
            "Traceback (most recent call last):",
            "E0101 FATAL x",
            "NVRM: Xid (PCI:0000:9b:00): 79",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "Killed",
        ] {
            assert!(errors.fits(line.as_bytes()), "{line}");
        }
        for line in ["step 84: loss 0.5", "INFO terror_rate=2", "no_failed_steps"] {
            assert!(!errors.fits(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn the_last_lines_are_found_from_behind() {
        let content = b"one\ntwo\nthree\nfour";
        for (count, offset) in [(0, 18), (1, 14), (2, 8), (4, 0), (9, 0)] {
            assert_eq!(lines(content, true).1.last(count, 100).unwrap(), offset, "{count}");
        }
        assert_eq!(lines(b"one\ntwo\n", true).1.last(1, 100).unwrap(), 4);
        let (_directory, mut lines) = lines(content, true);
        lines.seek(10).unwrap();
        assert_eq!(lines.offset(), 8);
    }
}
