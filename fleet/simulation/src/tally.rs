//! What happened in a run, counted: a simulation in which nothing happens shows nothing.

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Tally) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// What happened less often than it must.
    pub fn missing(&self, least: &[(&'static str, u64)]) -> Vec<String> {
        let rare = least.iter().filter(|(what, least)| self.of(what) < *least);
        rare.map(|(what, least)| format!("{what}: {} times, not {least}", self.of(what))).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.counts {
            writeln!(f, "{count:>12}  {what}")?;
        }
        Ok(())
    }
}
