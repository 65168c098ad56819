//! Following the logs of members: what there is to follow, and how far the coordinator has it.
//!
//! Logs are never dropped and never buffered: bytes stay in the file until the stream takes them,
//! and the file stays until the coordinator has acknowledged its last byte.

pub mod files;
mod fingerprint;
pub mod follow;
#[cfg(test)]
mod follow_tests;
pub mod member;
pub mod nccl;
pub mod place;
pub mod remote;
pub mod ship;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::ids::{Epoch, GangId, MemberKey};
use gangline_common::wire::v1::LogAck;
use tokio::sync::watch;

use crate::supervisor::LogSource;

/// Most files of one member whose offset is kept: more than a supervisor ever lists.
const MAX_FILES: usize = 2048;

/// Everything that is to be followed now: a new value replaces the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TailPlan {
    pub members: BTreeMap<MemberKey, TailMember>,
}

/// The logs of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailMember {
    pub sources: Vec<LogSource>,
    /// The member has ended: no further file will appear.
    pub ended: bool,
}

impl TailPlan {
    /// Every incarnation that has a member to follow, each once.
    pub fn incarnations(&self) -> Vec<(GangId, Epoch)> {
        let mut all: Vec<_> =
            self.members.keys().map(|key| (key.gang.clone(), key.epoch)).collect();
        all.dedup();
        all
    }

    /// The members of one incarnation.
    pub fn of(&self, gang: &GangId, epoch: Epoch) -> Vec<(MemberKey, TailMember)> {
        self.members
            .iter()
            .filter(|(key, _)| key.gang == *gang && key.epoch == epoch)
            .map(|(key, member)| (key.clone(), member.clone()))
            .collect()
    }
}

type Offsets = BTreeMap<MemberKey, BTreeMap<String, u64>>;

/// Offsets before which everything is durable at the coordinator. Shared by the reader of
/// acknowledgements and the shippers.
#[derive(Debug, Clone)]
pub struct Acks {
    offsets: Arc<Mutex<Offsets>>,
    plan: watch::Receiver<TailPlan>,
    changed: watch::Sender<()>,
}

impl Acks {
    /// Keeps offsets of members in `plan` only, so that a peer cannot fill the memory.
    pub fn new(plan: watch::Receiver<TailPlan>) -> Self {
        Acks { offsets: Arc::default(), plan, changed: watch::channel(()).0 }
    }

    fn lock(&self) -> MutexGuard<'_, Offsets> {
        // The map is whole after every statement, so a panic elsewhere does not spoil it.
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything: a new session tells anew what the coordinator has, which may be less.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Notes an acknowledgement. One of an unknown member says nothing and is ignored.
    pub fn note(&self, ack: LogAck) {
        let plan = self.plan.borrow();
        let mut offsets = self.lock();
        offsets.retain(|key, _| plan.members.contains_key(key));
        if !plan.members.contains_key(&ack.key) {
            return;
        }
        let files = offsets.entry(ack.key).or_default();
        if files.len() < MAX_FILES || files.contains_key(&ack.file) {
            let offset = files.entry(ack.file).or_default();
            *offset = ack.offset.max(*offset);
        }
        drop(offsets);
        self.changed.send_replace(());
    }

    /// How many bytes of the file the coordinator has for sure.
    pub fn offset(&self, key: &MemberKey, file: &str) -> u64 {
        self.lock().get(key).and_then(|files| files.get(file)).copied().unwrap_or(0)
    }

    /// What the coordinator has for sure of a member: each file, and how many bytes of it.
    pub fn of(&self, key: &MemberKey) -> Vec<(String, u64)> {
        let offsets = self.lock();
        let files = offsets.get(key).into_iter().flatten();
        files.map(|(file, offset)| (file.clone(), *offset)).collect()
    }

    /// Tells of every later acknowledgement.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use gangline_common::ids::MemberId;

    use super::*;
    use crate::sample::{epoch, gang};

    fn key(name: &str, n: u32, rank: u32) -> MemberKey {
        MemberKey { gang: gang(name), epoch: epoch(n), member: MemberId::Rank(rank) }
    }

    fn plan(keys: &[MemberKey]) -> TailPlan {
        let member = TailMember { sources: vec![], ended: false };
        TailPlan { members: keys.iter().map(|key| (key.clone(), member.clone())).collect() }
    }

    fn ack(key: &MemberKey, file: &str, offset: u64) -> LogAck {
        LogAck { key: key.clone(), file: file.to_owned(), offset }
    }

    #[test]
    fn each_incarnation_is_followed_once() {
        let plan = plan(&[key("a", 1, 0), key("a", 1, 1), key("a", 2, 0), key("b", 1, 0)]);
        let wanted = [(gang("a"), epoch(1)), (gang("a"), epoch(2)), (gang("b"), epoch(1))];
        assert_eq!(plan.incarnations(), wanted);
        assert_eq!(plan.of(&gang("a"), epoch(1)).len(), 2);
    }

    #[test]
    fn offsets_grow_until_a_new_session() {
        let known = key("a", 1, 0);
        let (_plan, receiver) = watch::channel(plan(std::slice::from_ref(&known)));
        let acks = Acks::new(receiver);
        acks.note(ack(&known, "output", 10));
        acks.note(ack(&known, "output", 7));
        assert_eq!(acks.offset(&known, "output"), 10);
        assert_eq!(acks.offset(&known, "driver-x"), 0);
        acks.clear();
        assert_eq!(acks.offset(&known, "output"), 0);
    }

    #[test]
    fn a_peer_cannot_fill_the_memory() {
        let known = key("a", 1, 0);
        let (sender, receiver) = watch::channel(plan(std::slice::from_ref(&known)));
        let acks = Acks::new(receiver);
        acks.note(ack(&key("stranger", 1, 0), "output", 10));
        for n in 0..MAX_FILES + 1000 {
            acks.note(ack(&known, &format!("file-{n}"), 1));
        }
        assert_eq!(acks.lock().len(), 1);
        assert_eq!(acks.lock()[&known].len(), MAX_FILES);
        sender.send_replace(TailPlan::default());
        acks.note(ack(&known, "output", 10));
        assert!(acks.lock().is_empty());
    }
}
