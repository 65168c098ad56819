//! When a member stops by itself: its shim's half of the gang's `on_disconnect`, as arithmetic.
//!
//! The member stops when the time of the policy has passed since the newest of the last contact with
//! the coordinator and, where that counts, the last sight of the whole gang. The coordinator's half
//! of the rule (`fencing` in its core) counts on exactly this. All times are milliseconds of the
//! machine's boot clock.

/// Without contact for this long, it is looked whether the gang is whole, and again so often.
const LOOK_EVERY_MS: u64 = 5_000;

/// The deadline of one member, and what moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    after_ms: u64,
    looks: bool,
    /// The newest contact or sight of the whole gang.
    good_ms: u64,
    looked_ms: u64,
}

impl Deadline {
    /// With the time of the policy and the newest contact; `looks` where the sight of the whole gang
    /// counts as well.
    pub fn new(after_ms: u64, contact_ms: u64, looks: bool) -> Self {
        Deadline { after_ms, looks, good_ms: contact_ms, looked_ms: 0 }
    }

    /// The agent says when there was contact; nothing lies in the future.
    pub fn note_contact(&mut self, contact_ms: u64, now_ms: u64) {
        self.good_ms = self.good_ms.max(contact_ms.min(now_ms));
    }

    /// It was looked for the gang. What was seen was so when the look began, not when its answer came.
    pub fn note_look(&mut self, begun_ms: u64, is_whole: bool) {
        if is_whole {
            self.good_ms = self.good_ms.max(begun_ms);
        }
        self.looked_ms = begun_ms;
    }

    /// When the member stops if nothing else is noted.
    pub fn due_ms(&self) -> u64 {
        self.good_ms.saturating_add(self.after_ms)
    }

    /// When to look next: soon after contact is missed, and a last time when the end is due, for a
    /// gang that has only just become whole. `None` where nobody looks.
    pub fn look_ms(&self) -> Option<u64> {
        let pause = LOOK_EVERY_MS.min(self.after_ms / 4);
        let last = self.good_ms.max(self.looked_ms);
        let next = last.saturating_add(pause);
        let due = self.due_ms();
        self.looks.then(|| if last < due { next.min(due) } else { next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks whenever it is time to, until it is due; when that was.
    fn ends_at(deadline: &mut Deadline, is_whole: impl Fn(u64) -> bool) -> u64 {
        loop {
            let look = deadline.look_ms().unwrap_or(u64::MAX);
            let now = look.min(deadline.due_ms());
            if now >= look {
                deadline.note_look(now, is_whole(now));
            }
            if now >= deadline.due_ms() {
                return now;
            }
        }
    }

    #[test]
    fn a_gang_that_becomes_whole_just_before_the_end_goes_on() {
        let mut deadline = Deadline::new(60_000, 1_003_000, true);
        assert_eq!(ends_at(&mut deadline, |now| (1_062_999..1_100_000).contains(&now)), 1_158_000);
    }

    #[test]
    fn a_gang_that_is_never_whole_ends_when_it_is_due() {
        let mut deadline = Deadline::new(60_000, 1_003_000, true);
        assert_eq!(ends_at(&mut deadline, |_| false), 1_063_000);
        assert!(deadline.look_ms() > Some(1_063_000), "nobody looks twice at the same moment");
    }
}
