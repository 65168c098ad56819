//! The priority of a job in the queue.

/// The named priorities, lowest first.
pub(crate) const PRIORITY_WORDS: [&str; 4] = ["low", "normal", "high", "urgent"];
/// What the names stand for.
const PRIORITY_VALUES: [u8; 4] = [25, 50, 75, 100];

/// From 0 to 100; the higher goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(pub u8);

impl Priority {
    /// The priority of a job that asks for none.
    pub const NORMAL: Self = Self(50);

    /// The highest there is.
    pub const HIGHEST: Self = Self(100);

    /// The priority of a word: `low` 25, `normal` 50, `high` 75, `urgent` 100.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        let index = PRIORITY_WORDS.iter().position(|known| *known == word)?;
        PRIORITY_VALUES.get(index).copied().map(Self)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}
