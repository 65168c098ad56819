//! When a training that goes on no more is spoken of, and what is done about it.

use std::time::Duration;

/// `hang` of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hang {
    /// Quiet for this long, and for five of its steps: a warning.
    pub warn_after: Duration,
    /// Quiet for this long: the action. At least `warn_after`.
    pub after: Duration,
    pub action: HangAction,
}

/// Without a word in the spec.
pub const DEFAULT_WARN_AFTER: Duration = Duration::from_secs(4 * 60);
pub const DEFAULT_HANG_AFTER: Duration = Duration::from_secs(20 * 60);

/// What is done about a training that hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HangAction {
    #[default]
    Notify,
    /// As the first, after another look at what its processes do, which is kept.
    Capture,
    /// As the second, and the attempt ends as failed.
    Restart,
}

impl HangAction {
    /// All of them, in the order of [`HangAction::WORDS`].
    const ALL: [Self; 4] = [Self::Notify, Self::Capture, Self::Restart, Self::Capture];
    /// The last one is another word for the second.
    pub(crate) const WORDS: [&'static str; 4] =
        ["notify", "capture", "restart", "capture_and_notify"];

    /// The action of a word, by its place in [`HangAction::WORDS`].
    pub(crate) fn from_word(index: usize) -> Self {
        Self::ALL.get(index).copied().unwrap_or_default()
    }

    /// As it is written in a spec.
    #[must_use]
    pub fn word(self) -> &'static str {
        let index = Self::ALL.iter().position(|action| *action == self);
        index.and_then(|index| Self::WORDS.get(index)).copied().unwrap_or("notify")
    }
}

impl Default for Hang {
    fn default() -> Self {
        Hang {
            warn_after: DEFAULT_WARN_AFTER,
            after: DEFAULT_HANG_AFTER,
            action: HangAction::default(),
        }
    }
}
