//! The fixed expressions of this crate, as opposed to those of the rules.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// An expression that is compiled when it is first used. Each has a test that it fits what it is
/// for; one that did not compile would fit nothing.
pub(crate) struct Pattern(LazyLock<Option<Regex>>);

impl Pattern {
    /// The expression that `form` gives.
    pub(crate) const fn new(form: fn() -> Option<Regex>) -> Self {
        Self(LazyLock::new(form))
    }

    pub(crate) fn fits(&self, text: &str) -> bool {
        self.0.as_ref().is_some_and(|regex| regex.is_match(text))
    }

    pub(crate) fn captures<'t>(&self, text: &'t str) -> Option<Captures<'t>> {
        self.0.as_ref()?.captures(text)
    }
}
