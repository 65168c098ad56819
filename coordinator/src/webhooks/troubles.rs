//! Who could not be told lately, and why: for the list of webhooks and for metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::time::Timestamp;

use crate::core::webhooks::{WebhookKey, WebhookRecord};

/// Attempts are a minute apart at most, or five where the endpoint asks for it. Who has not been tried for
/// so long is not known to fail: what was given up is a dead letter.
const RECENT_MS: u64 = 30 * 60 * 1000;

/// What an endpoint is sent: each has attempts of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strand {
    /// What has happened.
    Notices,
    /// Alerts of what goes on.
    GoingOn,
}

/// A webhook as it was set: its task may still fail when another one has taken its place.
type Set = (WebhookKey, u64);

fn set(record: &WebhookRecord) -> Set {
    (record.key.clone(), record.set.wall_ms)
}

/// Cheap to clone; two entries for each webhook at most.
#[derive(Clone, Default)]
pub struct Troubles(Arc<Mutex<BTreeMap<(Set, Strand), Trouble>>>);

/// The attempts that have failed since the last one that did not.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub attempts: u64,
    /// When the first of them failed, by the wall clock.
    pub since_ms: u64,
    /// Why the last one did, without the address.
    pub cause: String,
    last: Timestamp,
}

impl Troubles {
    /// `None` for a webhook that is well, or has not been tried lately.
    pub fn of(&self, record: &WebhookRecord) -> Option<Trouble> {
        self.at(record, Timestamp::now())
    }

    fn at(&self, record: &WebhookRecord, now: Timestamp) -> Option<Trouble> {
        let troubles = self.lock();
        let of_strand = |strand| troubles.get(&(set(record), strand));
        let both = [Strand::Notices, Strand::GoingOn].into_iter().filter_map(of_strand);
        let recent = both.filter(|trouble| now.ms_since(trouble.last) < RECENT_MS);
        recent.max_by_key(|trouble| trouble.attempts).cloned()
    }

    pub(super) fn failed(&self, record: &WebhookRecord, strand: Strand, cause: &str) {
        let now = Timestamp::now();
        let since_ms = now.wall_ms;
        let new = || Trouble { attempts: 0, since_ms, cause: String::new(), last: now };
        let mut troubles = self.lock();
        let trouble = troubles.entry((set(record), strand)).or_insert_with(new);
        trouble.attempts += 1;
        trouble.last = now;
        cause.clone_into(&mut trouble.cause);
    }

    pub(super) fn end(&self, record: &WebhookRecord, strand: Strand) {
        self.lock().remove(&(set(record), strand));
    }

    /// Forgets those of webhooks that are not among these, as they were set.
    pub(super) fn keep<'a>(&self, live: impl Iterator<Item = &'a WebhookRecord>) {
        let live: Vec<Set> = live.map(set).collect();
        self.lock().retain(|(set, _), _| live.contains(set));
    }

    // The map is whole after every statement.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Set, Strand), Trouble>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::secrets::Sealed;
    use crate::core::webhooks::WebhookKind;

    fn record(set_ms: u64) -> WebhookRecord {
        WebhookRecord {
            key: WebhookKey { project: None, name: "ops".to_owned() },
            kind: WebhookKind::Alertmanager,
            shown: String::new(),
            sealed: Sealed(Vec::new()),
            events: Vec::new(),
            set_by: String::new(),
            set: Timestamp { boot_ms: 0, wall_ms: set_ms },
        }
    }

    #[test]
    fn both_strands_count_and_old_failures_do_not() {
        let (troubles, ops) = (Troubles::default(), record(1));
        let attempts = |at| troubles.at(&ops, at).map(|trouble| trouble.attempts);
        let now = Timestamp::now();
        assert_eq!(attempts(now), None);
        troubles.failed(&ops, Strand::Notices, "503");
        (0..3).for_each(|_| troubles.failed(&ops, Strand::GoingOn, "400"));
        assert_eq!(attempts(now), Some(3));
        troubles.end(&ops, Strand::GoingOn);
        assert_eq!(attempts(now), Some(1));
        let later = Timestamp { boot_ms: now.boot_ms + RECENT_MS + 60_000, ..now };
        assert_eq!(attempts(later), None);
        // The task of a webhook that was set anew says nothing of the new one.
        assert!(troubles.at(&record(2), now).is_none());
        troubles.keep([record(2)].iter());
        assert_eq!(attempts(now), None);
    }
}
