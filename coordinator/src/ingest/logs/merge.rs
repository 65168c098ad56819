//! Lines of several log files in the order of their times, page by page.
//!
//! Only the file whose next line may be the oldest is read on, so that every page makes progress and
//! no line comes before an older one. Within a file the order is that of the file.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use super::Times;
use super::lines::{Filter, Found, Line, Lines};

/// A file from an offset on.
#[derive(Debug)]
pub struct Source {
    pub lines: Lines,
    pub times: Times,
    /// Lines that were found and not shown yet.
    pending: Option<Vec<Line>>,
    /// Why it cannot be read.
    pub broken: Option<io::Error>,
}

impl Source {
    pub fn new(lines: Lines, times: Times) -> Source {
        Source { lines, times, pending: None, broken: None }
    }

    /// Where the next page goes on.
    pub fn resume(&self) -> u64 {
        let first = self.pending.as_ref().and_then(|lines| lines.first());
        first.map_or(self.lines.offset(), |line| line.offset)
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    pub filter: &'a Filter,
    /// Lines around each hit.
    pub context: usize,
    /// Nothing that was read later, in milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// Of the answer; a group of lines that belong together may go beyond.
    pub max_lines: usize,
    pub max_bytes: usize,
}

/// A line of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Index of its file.
    pub source: usize,
    /// When it was read; `None` when nobody knows.
    pub ms: Option<u64>,
    pub line: Line,
}

/// The next lines of all sources; whether more may be there now. `budget` is what may be read, in
/// bytes. A source that cannot be read is marked and left out. Blocking.
pub fn page(sources: &mut [Source], query: Query<'_>, budget: &mut u64) -> (Vec<Shown>, bool) {
    let mut shown: Vec<Shown> = Vec::new();
    let mut bytes = 0;
    // By the time of the next line, as far as it is known before it is read.
    let mut order = BinaryHeap::new();
    for (index, source) in sources.iter_mut().enumerate() {
        let at = source.resume();
        order.push(Reverse((source.times.at(at), index)));
    }
    while let Some(Reverse((ms, index))) = order.pop() {
        let Some(source) = sources.get_mut(index) else { continue };
        if query.until_ms.is_some_and(|until| ms.is_some_and(|ms| ms > until)) {
            continue;
        }
        let Some(group) = source.pending.take() else {
            match source.lines.next_group(query.filter, query.context, budget) {
                Ok(Found::Yes(group)) => {
                    let first = group.first().map_or(0, |line| line.offset);
                    source.pending = Some(group);
                    order.push(Reverse((source.times.at(first), index)));
                }
                Ok(Found::End) => {}
                Ok(Found::Spent) => return (shown, true),
                Err(error) => source.broken = Some(error),
            }
            continue;
        };
        let size: usize = group.iter().map(|line| line.text.len() + 1).sum();
        let full = shown.len() + group.len() > query.max_lines || bytes + size > query.max_bytes;
        if full && !shown.is_empty() {
            source.pending = Some(group);
            return (shown, true);
        }
        bytes += size;
        shown.extend(group.into_iter().map(|line| {
            let ms = source.times.at(line.offset);
            Shown { source: index, ms, line }
        }));
        let at = source.lines.offset();
        order.push(Reverse((source.times.at(at), index)));
    }
    (shown, false)
}

#[cfg(test)]
mod tests {
    use gangline_common::wire::v1::LogChunk;

    use super::super::Logs;
    use super::*;

    /// Ranks that write in turn, a line each 300 ms.
    fn scene() -> (tempfile::TempDir, Logs) {
        let directory = tempfile::tempdir().unwrap();
        let logs = Logs::new(directory.path().to_owned());
        let now = gangline_common::time::Timestamp::now().wall_ms;
        let mut offsets = [0; 3];
        for step in 0..30_u64 {
            let rank = (step % 3) as usize;
            let bytes = format!("rank {rank} step {step}\n").into_bytes();
            let length = bytes.len() as u64;
            let key = format!("g-a:1.1:{rank}").parse().unwrap();
            let (file, offset) = ("output".to_owned(), offsets[rank]);
            // Within what is believed of an agent's clock.
            let read_ms = now - 4500 + step * 150;
            logs.write_batch(vec![LogChunk { key, file, offset, bytes, read_ms }]).unwrap();
            offsets[rank] += length;
        }
        (directory, logs)
    }

    fn sources(logs: &Logs, offsets: &[u64]) -> Vec<Source> {
        let open = |(rank, offset): (usize, &u64)| {
            let key = format!("g-a:1.1:{rank}").parse().unwrap();
            let file = logs.open(&key, "output").unwrap().unwrap();
            let times = logs.times(&key, "output", file.length());
            Source::new(Lines::new(file, *offset, true, 0), times)
        };
        offsets.iter().enumerate().map(open).collect()
    }

    #[test]
    fn ranks_are_merged_in_the_order_of_time_over_pages() {
        let (_directory, logs) = scene();
        for (max_lines, pattern) in [(1, None), (7, None), (1000, None), (3, Some("step"))] {
            let filter = Filter::new(pattern, false).unwrap();
            let (mut offsets, mut steps) = (vec![0; 3], Vec::new());
            loop {
                let mut all = sources(&logs, &offsets);
                let query = Query {
                    filter: &filter,
                    context: 0,
                    until_ms: None,
                    max_lines,
                    max_bytes: 999,
                };
                let (shown, more) = page(&mut all, query, &mut 1_000_000);
                for line in &shown {
                    let text = String::from_utf8(line.line.text.clone()).unwrap();
                    let words: Vec<&str> = text.split(' ').collect();
                    assert_eq!(words[1].parse(), Ok(line.source));
                    steps.push(words[3].parse::<u32>().unwrap());
                }
                offsets = all.iter().map(Source::resume).collect();
                if !more {
                    break;
                }
            }
            assert_eq!(steps, (0..30).collect::<Vec<u32>>(), "{max_lines} {pattern:?}");
        }
    }

    #[test]
    fn a_small_budget_makes_progress_too() {
        let (_directory, logs) = scene();
        let filter = Filter::new(Some("step (28|29)$"), false).unwrap();
        let (mut offsets, mut found, mut pages) = (vec![0; 3], 0, 0);
        loop {
            let mut all = sources(&logs, &offsets);
            let query =
                Query { filter: &filter, context: 0, until_ms: None, max_lines: 9, max_bytes: 999 };
            let (shown, more) = page(&mut all, query, &mut 1);
            (found, pages) = (found + shown.len(), pages + 1);
            offsets = all.iter().map(Source::resume).collect();
            if !more {
                break;
            }
        }
        assert!(found == 2 && pages > 2, "{found} hits on {pages} pages");
    }

    #[test]
    fn a_file_that_is_damaged_is_left_out() {
        let (directory, logs) = scene();
        let mut all = sources(&logs, &[0; 3]);
        // Cut behind the back of those who have it open.
        std::fs::write(directory.path().join("g-a/1.1/1/output.log"), "").unwrap();
        let filter = Filter::default();
        let query =
            Query { filter: &filter, context: 0, until_ms: None, max_lines: 99, max_bytes: 9999 };
        let (shown, more) = page(&mut all, query, &mut 1_000_000);
        assert_eq!((shown.len(), more, all[1].broken.is_some()), (20, false, true));
    }
}
