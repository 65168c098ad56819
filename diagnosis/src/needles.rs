//! What a line must contain before an expression can fit it. One search for all of these words leaves
//! few expressions to try on a line, and none on most lines.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

/// A word shorter than this is in too many lines to be worth a search, in bytes.
const MIN_BYTES: usize = 3;
/// Most words of one expression.
const MAX_WORDS: usize = 400;

/// Which of many expressions may fit a line.
#[derive(Debug)]
pub(crate) struct Needles {
    search: Option<AhoCorasick>,
    /// For each word the expression that it is of.
    owners: Vec<usize>,
    /// Expressions without a word of their own.
    always: Vec<usize>,
}

impl Needles {
    /// The words of `patterns`.
    ///
    /// # Errors
    /// The index of a pattern that is no expression, and why.
    pub(crate) fn of<'a>(
        patterns: impl Iterator<Item = &'a str>,
    ) -> Result<Needles, (usize, Box<regex_syntax::Error>)> {
        let (mut words, mut owners, mut always) = (Vec::new(), Vec::new(), Vec::new());
        for (index, pattern) in patterns.enumerate() {
            let hir = parse(pattern).map_err(|error| (index, error))?;
            match required(&hir).filter(|words| shortest(words) >= MIN_BYTES) {
                Some(found) => {
                    owners.extend(found.iter().map(|_| index));
                    words.extend(found);
                }
                None => always.push(index),
            }
        }
        let search = AhoCorasickBuilder::new().ascii_case_insensitive(true).build(&words).ok();
        if search.is_none() {
            // Too many words for the search: every expression is tried, which is slow and right.
            always = (0..).take(always.len() + owners.last().map_or(0, |last| last + 1)).collect();
        }
        Ok(Needles { search, owners, always })
    }

    /// The expressions that may fit `line`, in their order.
    pub(crate) fn candidates(&self, line: &str) -> Vec<usize> {
        let mut found = self.always.clone();
        if let Some(search) = &self.search {
            let hits = search.find_overlapping_iter(line);
            found.extend(hits.filter_map(|hit| self.owners.get(hit.pattern().as_usize())));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Whether `pattern` is an expression.
///
/// # Errors
/// It is none, and why.
pub(crate) fn check(pattern: &str) -> Result<(), Box<regex_syntax::Error>> {
    parse(pattern).map(|_| ())
}

/// The expression as a tree. Case is left to the search.
fn parse(pattern: &str) -> Result<Hir, Box<regex_syntax::Error>> {
    ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).map_err(Box::new)
}

/// Words of which every fitting line has at least one; `None` when there are none.
fn required(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Literal(literal) => Some(vec![literal.0.to_vec()]),
        HirKind::Capture(capture) => required(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min >= 1 => required(&repetition.sub),
        HirKind::Concat(parts) => {
            parts.iter().filter_map(required).max_by_key(|words| shortest(words))
        }
        HirKind::Alternation(branches) => {
            let mut words = Vec::new();
            for branch in branches {
                words.extend(required(branch)?);
            }
            (words.len() <= MAX_WORDS).then_some(words)
        }
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) | HirKind::Repetition(_) => None,
    }
}

fn shortest(words: &[Vec<u8>]) -> usize {
    words.iter().map(Vec::len).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_the_words_is_no_candidate() {
        let patterns = ["a (?:bad|sad) day", r"\w+Error: [0-9]+", "x?", "[Nn]ode (?:is )?down"];
        let needles = Needles::of(patterns.into_iter()).unwrap();
        assert_eq!(needles.always, [2]);
        assert_eq!(needles.candidates("nothing"), [2]);
        assert_eq!(needles.candidates("a BAD day"), [0, 2]);
        assert_eq!(needles.candidates("KeyError: 3, node down"), [1, 2, 3]);
    }

    #[test]
    fn a_broken_expression_is_named() {
        assert_eq!(Needles::of(["a", "("].into_iter()).unwrap_err().0, 1);
    }
}
