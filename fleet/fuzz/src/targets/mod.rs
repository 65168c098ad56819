//! The decoders, each with the good input that it begins with and its bound of memory.

mod agent;
mod code;
mod store;
mod text;
mod training;
mod wire;

use std::fmt::Debug;

/// What became of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Refused,
    Taken,
    /// It was taken, and is not the same when it is written and read again.
    Broken(String),
}

/// The most that a decoder may hold at one time, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub fixed: usize,
    pub per_byte: usize,
}

impl Memory {
    /// For an input of so many bytes.
    pub fn bound(self, input: usize) -> usize {
        self.fixed + self.per_byte * input
    }
}

/// What decodes an input and judges that.
pub type Feed = Box<dyn FnMut(&[u8]) -> Verdict>;

/// A decoder under test.
pub struct Target {
    pub name: &'static str,
    /// Inputs that are taken.
    pub seeds: Vec<Vec<u8>>,
    /// Pieces that mutations put in.
    pub words: &'static [&'static [u8]],
    /// Longest input, in bytes.
    pub limit: usize,
    pub memory: Memory,
    pub feed: Feed,
}

/// Every decoder. Files that some of them read are made below `scratch`.
///
/// # Errors
/// Good input cannot be made.
pub fn all(scratch: &std::path::Path) -> anyhow::Result<Vec<Target>> {
    let mut targets = wire::targets()?;
    targets.extend(agent::targets(scratch)?);
    targets.extend(store::targets()?);
    targets.extend(code::targets(scratch)?);
    targets.extend(text::targets(scratch)?);
    targets.extend(training::targets()?);
    Ok(targets)
}

/// What was taken has to come back the same.
fn again<T: Debug + PartialEq, E: Debug>(first: &T, second: Result<T, E>) -> Verdict {
    match second {
        Ok(second) if second == *first => Verdict::Taken,
        other => Verdict::Broken(format!("{first:?} came back as {other:?}")),
    }
}

/// A decoder of text: what is not UTF-8 does not reach it.
fn of_text(feed: impl Fn(&str) -> Verdict + 'static) -> Feed {
    Box::new(move |input| std::str::from_utf8(input).map_or(Verdict::Refused, &feed))
}

/// Whether it was taken, of a decoder without an encoder.
fn taken<T, E>(result: &Result<T, E>) -> Verdict {
    match result {
        Ok(_) => Verdict::Taken,
        Err(_) => Verdict::Refused,
    }
}

fn bytes_of(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
