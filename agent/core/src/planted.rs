//! Bugs that are planted on purpose, one at a time, to show that the simulation finds them. Without
//! the feature `planted`, which no program enables, none ever is; with it none is until asked for.

/// A wrong decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// An incarnation below the highest that was seen is started.
    LowerEpochAccepted,
    /// A gang that is not listed any more is stopped.
    AbsenceIsStop,
    /// A member counts as ended as soon as its end begins.
    EndedBeforeReaped,
    /// The ledger does not have a member before it runs.
    StartNotStored,
}

#[cfg(feature = "planted")]
mod switch {
    use std::cell::Cell;

    use super::Planted;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Plants a bug in every core that this thread steps, or takes it out.
    pub fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }

    pub(crate) fn is_planted(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub(crate) use switch::is_planted;
#[cfg(feature = "planted")]
pub use switch::plant;

#[cfg(not(feature = "planted"))]
pub(crate) const fn is_planted(_: Planted) -> bool {
    false
}
