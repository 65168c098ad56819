//! The audit log: who did what to what, and from where. Entries are only ever added, and each
//! holds the hash of the one before it, so that a changed, removed or inserted entry shows.

use std::net::IpAddr;

use gangline_common::time::Timestamp;
use gangline_common::tls::sha256;

use super::Core;
use super::credential::Principal;
use super::effect::{Effects, Write};

/// Longest `detail`, in characters.
const DETAIL_LIMIT: usize = 1024;
/// What the first entry holds as the hash before it.
pub const NO_HASH: [u8; 32] = [0; 32];

/// One act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Counts up by one from 1.
    pub sequence: u64,
    pub wall_ms: u64,
    /// User, or `gangline` for the coordinator itself.
    pub actor: String,
    /// Address of the request; absent for what came from no request.
    pub source: Option<IpAddr>,
    /// Such as `job.submit`.
    pub action: String,
    /// Such as `job j-7f3k2`.
    pub object: String,
    /// What changed; never a secret.
    pub detail: String,
    /// Hash of the entry before.
    pub previous: [u8; 32],
}

impl AuditEntry {
    /// SHA-256 over every field, each with its length in front so that none runs into the next.
    pub fn hash(&self) -> [u8; 32] {
        let source = self.source.map(|address| address.to_string()).unwrap_or_default();
        let mut bytes = Vec::new();
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.wall_ms.to_be_bytes());
        for text in [&self.actor, &source, &self.action, &self.object, &self.detail] {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend(self.previous);
        sha256(&bytes)
    }
}

/// Where the log stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHead {
    /// Of the newest entry; 0 while there is none.
    pub sequence: u64,
    pub hash: [u8; 32],
}

impl Default for AuditHead {
    fn default() -> Self {
        AuditHead { sequence: 0, hash: NO_HASH }
    }
}

/// Why a log is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {sequence}: {reason}")]
pub struct BrokenChain {
    pub sequence: u64,
    pub reason: &'static str,
}

impl AuditHead {
    /// The head after `entry`, when that follows this one.
    pub fn follow(self, entry: &AuditEntry) -> Result<AuditHead, BrokenChain> {
        let broken = |reason| Err(BrokenChain { sequence: entry.sequence, reason });
        if entry.sequence != self.sequence + 1 {
            return broken("an entry before it is missing");
        }
        if entry.previous != self.hash {
            return broken(
                "it does not follow from the entry before it, one of the two was changed",
            );
        }
        Ok(AuditHead { sequence: entry.sequence, hash: entry.hash() })
    }
}

/// Who acts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Actor<'a> {
    pub name: &'a str,
    pub from: Option<IpAddr>,
}

impl<'a> From<&'a Principal> for Actor<'a> {
    fn from(principal: &'a Principal) -> Self {
        Actor { name: &principal.user, from: principal.from }
    }
}

impl Core {
    /// Adds an entry, in the same transaction as the change that it tells of.
    pub(super) fn audit<'a>(
        &mut self,
        actor: impl Into<Actor<'a>>,
        action: &str,
        object: String,
        detail: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let actor = actor.into();
        let AuditHead { sequence, hash } = self.audit_head;
        let entry = AuditEntry {
            sequence: sequence + 1,
            wall_ms: now.wall_ms,
            actor: actor.name.to_owned(),
            source: actor.from,
            action: action.to_owned(),
            object,
            detail: detail.chars().take(DETAIL_LIMIT).collect(),
            previous: hash,
        };
        self.put(Write::Audit(entry), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(length: u64) -> Vec<AuditEntry> {
        let mut previous = NO_HASH;
        (1..=length)
            .map(|sequence| {
                let entry = AuditEntry {
                    sequence,
                    wall_ms: sequence * 10,
                    actor: "alice".to_owned(),
                    source: Some(IpAddr::from([127, 0, 0, 1])),
                    action: "job.stop".to_owned(),
                    object: format!("job j-{sequence}"),
                    detail: String::new(),
                    previous,
                };
                previous = entry.hash();
                entry
            })
            .collect()
    }

    fn check(entries: &[AuditEntry]) -> Result<AuditHead, BrokenChain> {
        entries.iter().try_fold(AuditHead::default(), AuditHead::follow)
    }

    #[test]
    fn a47_every_change_breaks_the_chain() {
        let good = chain(5);
        assert_eq!(check(&good).unwrap().sequence, 5);
        let change = |at: usize, change: fn(&mut AuditEntry)| {
            let mut entries = good.clone();
            change(&mut entries[at]);
            check(&entries).unwrap_err().sequence
        };
        // An entry that was changed shows at the one after it.
        assert_eq!(change(1, |entry| entry.actor = "mallory".to_owned()), 3);
        assert_eq!(change(1, |entry| entry.wall_ms += 1), 3);
        assert_eq!(change(1, |entry| entry.source = None), 3);
        assert_eq!(change(1, |entry| entry.detail.push('x')), 3);
        assert_eq!(change(1, |entry| entry.previous = NO_HASH), 2);
        let mut shorter = good.clone();
        shorter.remove(2);
        assert_eq!(check(&shorter).unwrap_err().sequence, 4);
        let mut swapped = good.clone();
        swapped.swap(2, 3);
        assert_eq!(check(&swapped).unwrap_err().sequence, 4);
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let entry = chain(1).remove(0);
        let a = AuditEntry { action: "ab".into(), object: "c".into(), ..entry.clone() };
        let b = AuditEntry { action: "a".into(), object: "bc".into(), ..entry };
        assert_ne!(a.hash(), b.hash());
    }
}
