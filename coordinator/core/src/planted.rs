//! Bugs that are planted on purpose, one at a time, to show that the simulation finds them. Without
//! the feature `planted`, which no program enables, none ever is; with it none is until asked for.

/// A wrong decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A member on a lost node counts as ended: the next attempt starts beside it.
    LostIsStopped,
    /// A Stop leaves the desired state as soon as its agent says that it stops.
    StopDroppedEarly,
    /// A cordoned node takes new members.
    CordonIgnored,
    /// A changed desired state keeps its generation when a gang is to stop.
    GenerationForgotten,
    /// What a report of an older generation does not list counts as ended.
    OldReportBelieved,
    /// A cancel during a rollback is forgotten: the job starts again.
    CancelForgotten,
    /// Time limits are measured by the wall clock.
    LimitByWallClock,
    /// A cordon is only remembered, not stored.
    CordonNotStored,
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
