//! From pieces of a log to lines: a piece may end anywhere, also in the middle of a character.

use crate::reading::{Reading, read};

/// Longest line that is read; the rest of a longer one is skipped.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// One file that is read from its beginning, or from somewhere in it.
#[derive(Debug, Default)]
pub struct Feed {
    /// The line so far, at most [`MAX_LINE_BYTES`].
    line: Vec<u8>,
    /// Nothing is read up to the next end of a line.
    skips: bool,
}

impl Feed {
    /// A feed that begins somewhere: what comes before the first end of a line is no line.
    pub fn from_the_middle() -> Self {
        Feed { line: Vec::new(), skips: true }
    }

    /// Calls `each` for every reading in the lines that this piece completes. A carriage return ends
    /// a line as well: what a progress bar has overwritten was a state of its own.
    pub fn take(&mut self, mut piece: &[u8], mut each: impl FnMut(Reading)) {
        while let Some(end) = piece.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (head, rest) = piece.split_at(end);
            if self.skips {
                self.skips = false;
            } else if self.line.is_empty() {
                each_of(head, &mut each);
            } else {
                self.keep(head);
                if !std::mem::take(&mut self.skips) {
                    each_of(&self.line, &mut each);
                }
            }
            self.line.clear();
            piece = rest.split_at(1).1;
        }
        self.keep(piece);
    }

    fn keep(&mut self, more: &[u8]) {
        if self.skips {
            return;
        }
        let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
        if more.len() > room {
            // A line of this length is none of a training.
            self.line = Vec::new();
            self.skips = true;
            return;
        }
        self.line.extend_from_slice(more);
    }
}

fn each_of(line: &[u8], each: &mut impl FnMut(Reading)) {
    if line.len() <= MAX_LINE_BYTES
        && let Some(reading) = read(line)
    {
        each(reading);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(pieces: &[&[u8]]) -> Vec<Option<u64>> {
        let mut feed = Feed::default();
        let mut steps = Vec::new();
        for piece in pieces {
            feed.take(piece, |reading| steps.push(reading.step));
        }
        steps
    }

    #[test]
    fn lines_come_in_pieces() {
        assert_eq!(
            steps(&[b"step:1 - a:1\nste", b"p:2 - a:", b"2\r\nstep:3 - a:1"]),
            [Some(1), Some(2)]
        );
        let long = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(steps(&[&long, b"step:1 - a:1\nstep:2 - a:1\n"]), [Some(2)]);
    }

    #[test]
    fn what_begins_in_the_middle_of_a_line_is_left_out() {
        let mut feed = Feed::from_the_middle();
        let mut steps = Vec::new();
        feed.take(b"tep:1 - a:1\nstep:2 - a:1\n", |reading| steps.push(reading.step));
        assert_eq!(steps, [Some(2)]);
    }

    proptest! {
        /// How a log is cut into pieces changes nothing, and no bytes are too bad.
        #[test]
        fn any_bytes_in_any_pieces(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            noise in "(step:[0-9]{1,3} - [a-z:0-9. -]{0,20}\n|\\{'loss': [0-9.]{1,4}\\}\r|[ -~]{0,30}\n){0,8}",
            cut in 0..400usize,
        ) {
            let all = [noise.as_bytes(), &bytes, noise.as_bytes()].concat();
            let whole = steps(&[&all]);
            let (head, tail) = all.split_at(cut.min(all.len()));
            prop_assert_eq!(whole, steps(&[head, tail]));
        }
    }
}
