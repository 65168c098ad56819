//! What is read: a piece from the start and a piece from the end of each rank's log.

/// Bytes that are looked at from the start of a source.
pub const HEAD_BYTES: usize = 256 * 1024;
/// Bytes that are looked at from the end of a source.
pub const TAIL_BYTES: usize = 2 * 1024 * 1024;
/// Most sources of one failure; more are not looked at.
pub const MAX_SOURCES: usize = 256;
/// Bytes of all sources of one failure together.
const MAX_TOTAL_BYTES: usize = 8 * 1024 * 1024;

/// Bytes from the start and from the end of each of `sources` logs, so that all of them together
/// are read in bounded time.
pub fn share(sources: usize) -> (usize, usize) {
    let each = MAX_TOTAL_BYTES / sources.clamp(1, MAX_SOURCES);
    let head = HEAD_BYTES.min(each / 4);
    (head, TAIL_BYTES.min(each - head))
}

/// The log of one rank, or of a whole job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source<'a> {
    /// What it is called in evidence, such as the path of the file.
    pub name: &'a str,
    /// Rank that wrote it, where that is known.
    pub rank: Option<u32>,
    /// Node that it was written on, where that is known.
    pub node: Option<&'a str>,
    /// How far the node's clock is ahead of the coordinator's, in milliseconds.
    pub clock_ahead_ms: i64,
    /// The start, or all of it.
    pub head: &'a [u8],
    /// The end, when it does not follow the start at once; else empty.
    pub tail: &'a [u8],
    /// Number of the line, from 1, that the tail begins in; `None` when nobody has counted.
    pub tail_line: Option<u64>,
    /// When the bytes were read from the program, where that is known: offsets in `head` followed by
    /// `tail`, ascending, and milliseconds since 1970 on the coordinator's clock, each true until the
    /// next offset.
    pub read_times: &'a [(usize, i64)],
}

impl<'a> Source<'a> {
    /// A log that is there as a whole. Of a long one the middle is left out.
    pub fn whole(name: &'a str, text: &'a [u8]) -> Self {
        let mut source = Source { name, head: text, ..Source::default() };
        if text.len() > HEAD_BYTES + TAIL_BYTES {
            let (head, rest) = text.split_at(HEAD_BYTES);
            let (middle, tail) = rest.split_at(rest.len() - TAIL_BYTES);
            let ends = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            source.head = head;
            source.tail = tail;
            source.tail_line = Some(1 + ends(head) + ends(middle));
        }
        source
    }

    /// The same log, written by `rank`.
    #[must_use]
    pub fn of_rank(self, rank: Option<u32>) -> Self {
        Self { rank, ..self }
    }

    /// The same log, written on `node`, whose clock is ahead by `clock_ahead_ms`.
    #[must_use]
    pub fn on_node(self, node: &'a str, clock_ahead_ms: i64) -> Self {
        Self { node: Some(node), clock_ahead_ms, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_long_log_is_left_out() {
        let text = "0123456\n".repeat(1_000_000).into_bytes();
        let source = Source::whole("a", &text);
        assert_eq!((source.head.len(), source.tail.len()), (HEAD_BYTES, TAIL_BYTES));
        assert_eq!(source.tail_line, Some(1 + (8_000_000 - TAIL_BYTES as u64) / 8));
        assert_eq!(Source::whole("a", b"short\n").tail_line, None);
    }

    #[test]
    fn many_logs_share_one_budget() {
        assert_eq!(share(1), (HEAD_BYTES, TAIL_BYTES));
        for sources in [0, 1, 7, 64, 256, 100_000] {
            let (head, tail) = share(sources);
            assert!(sources.min(MAX_SOURCES) * (head + tail) <= MAX_TOTAL_BYTES);
            assert!(head >= 8 * 1024 && tail >= 24 * 1024);
        }
    }
}
