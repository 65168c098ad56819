//! Which waiting gang may start before which: the one choice that a replay of history compares.

/// How the queue is served. Every policy starts whole gangs or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// By priority, age and fair share. What fits starts, until a gang was overtaken by too much: then
    /// nodes are kept for it (a reservation), and later gangs start only where they do not delay it.
    #[default]
    Default,
    /// Strictly in order: the first gang that does not fit holds back everything behind it.
    Fifo,
    /// In order, but whatever fits starts: large gangs can wait for ever.
    Backfill,
    /// The shortest predicted gang first, and whatever fits starts.
    Shortest,
}

impl Policy {
    pub const ALL: [Policy; 4] =
        [Policy::Fifo, Policy::Backfill, Policy::Shortest, Policy::Default];

    pub fn word(self) -> &'static str {
        match self {
            Policy::Default => "default",
            Policy::Fifo => "fifo",
            Policy::Backfill => "backfill",
            Policy::Shortest => "shortest",
        }
    }
}
