//! Contact with the coordinator: the send time of the newest heartbeat that it acknowledged.
//!
//! When an answer arrives says nothing: it may be as late as the network likes. The coordinator
//! has heard the heartbeat no earlier than it was sent, so what it counts from is never before
//! what is counted from here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gangline_common::time::Timestamp;
use tokio::sync::watch;

use crate::collectors::ClockOffset;

/// When there was contact, in boot-clock milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContactAt {
    /// Begin of the session.
    pub session_ms: u64,
    pub boot_ms: u64,
}

/// The newest contact; `None` before the first of this agent.
pub type ContactTime = watch::Receiver<Option<ContactAt>>;

/// Heartbeats whose answers are waited for; the oldest of more is forgotten. A session is given up
/// long before.
const UNANSWERED: usize = 256;

/// Takes note of what was sent and answered.
pub struct Contact {
    newest: watch::Sender<Option<ContactAt>>,
    session_ms: AtomicU64,
    /// Sequence and send time.
    sent: Mutex<VecDeque<(u64, u64)>>,
}

impl Contact {
    pub fn new(newest: watch::Sender<Option<ContactAt>>) -> Self {
        Contact { newest, session_ms: AtomicU64::new(0), sent: Mutex::new(VecDeque::new()) }
    }

    /// A new session: sequences begin anew. Hello, sent at `sent_ms`, has been answered.
    pub fn greeted(&self, sent_ms: u64) {
        self.session_ms.store(sent_ms, Ordering::Relaxed);
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.note(sent_ms);
    }

    /// When the session began in which words come now.
    pub fn session_ms(&self) -> u64 {
        self.session_ms.load(Ordering::Relaxed)
    }

    pub fn sent(&self, sequence: u64, sent_ms: u64) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() >= UNANSWERED {
            sent.pop_front();
        }
        sent.push_back((sequence, sent_ms));
    }

    /// The coordinator has acknowledged this heartbeat: returns when it was sent. One that was never
    /// sent says nothing.
    pub fn answered(&self, sequence: u64) -> Option<u64> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let index = sent.iter().position(|(number, _)| *number == sequence)?;
        let (_, sent_ms) = sent.drain(..=index).next_back()?;
        drop(sent);
        self.note(sent_ms);
        Some(sent_ms)
    }

    fn note(&self, boot_ms: u64) {
        let at = ContactAt { session_ms: self.session_ms(), boot_ms };
        self.newest.send_if_modified(|newest| {
            let newer = newest.is_none_or(|newest| boot_ms > newest.boot_ms);
            if newer {
                *newest = Some(at);
            }
            newer
        });
    }
}

/// What this node's clock is ahead of the coordinator's, when a heartbeat that was sent at `sent_ms` of
/// the boot clock has been answered `now`, and the answer says `theirs_ms`. The answer was made at some
/// time in between; the middle is wrong by half of it at most.
pub fn clock_offset(sent_ms: u64, now: Timestamp, theirs_ms: u64) -> ClockOffset {
    let uncertain_ms = now.boot_ms.saturating_sub(sent_ms).div_ceil(2);
    let middle_ms = now.wall_ms.saturating_sub(uncertain_ms);
    // Wall clocks of this era are far from the end of an i64.
    let ahead_ms = middle_ms.wrapping_sub(theirs_ms).cast_signed();
    ClockOffset { ahead_ms, uncertain_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_as_certain_as_the_round_trip_is_short() {
        let now = Timestamp { boot_ms: 5_040, wall_ms: 1_000_040 };
        let offset = |theirs| clock_offset(5_000, now, theirs);
        assert_eq!(offset(1_000_020), ClockOffset { ahead_ms: 0, uncertain_ms: 20 });
        assert_eq!(offset(997_020).ahead_ms, 3000);
        assert_eq!(offset(1_004_020).ahead_ms, -4000);
    }

    #[test]
    fn contact_is_when_the_answered_heartbeat_was_sent() {
        let (newest, contact) = watch::channel(None);
        let at = |session_ms, boot_ms| Some(ContactAt { session_ms, boot_ms });
        let link = Contact::new(newest);
        link.greeted(10);
        assert_eq!(*contact.borrow(), at(10, 10));
        (1..=3).for_each(|n| link.sent(n, 10 + 10 * n));
        assert_eq!(*contact.borrow(), at(10, 10), "nothing was answered");
        link.answered(2);
        assert_eq!(*contact.borrow(), at(10, 30));
        link.answered(1);
        link.answered(2);
        link.answered(77);
        assert_eq!(*contact.borrow(), at(10, 30), "late, repeated and invented answers");
        link.greeted(25);
        assert_eq!(*contact.borrow(), at(10, 30), "never back");
        link.answered(3);
        assert_eq!(*contact.borrow(), at(10, 30), "of the session before");
    }

    #[test]
    fn what_waits_for_answers_is_bounded() {
        let (newest, contact) = watch::channel(None);
        let link = Contact::new(newest);
        (1..=1000).for_each(|n| link.sent(n, n));
        link.answered(1);
        assert_eq!(*contact.borrow(), None);
        link.answered(1000);
        assert_eq!(contact.borrow().map(|at| at.boot_ms), Some(1000));
    }
}
