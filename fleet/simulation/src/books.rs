//! GPU time as a stranger counts it, from what is written about gangs: the lines of the coordinator's
//! books must say the same, whatever crashes lie between.

use std::collections::BTreeMap;

use gangline_common::ids::{Epoch, GangId, MemberId};
use gangline_common::time::Timestamp;
use gangline_core::accounts::Spent;
use gangline_core::gang::{Gang, GangState, Phase};

/// One incarnation of a gang.
type Name = (GangId, Epoch);
type Members = BTreeMap<MemberId, Held>;

/// What one member holds, at moments in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Held {
    gpus: u64,
    begin_ms: u64,
    end_ms: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Counted {
    open: BTreeMap<Name, Members>,
    /// What was there before each change that is not committed yet.
    undo: Vec<(Name, Option<Members>)>,
    /// Incarnations whose line is written, and not committed yet.
    closed: Vec<Name>,
}

impl Counted {
    /// `now` is what the coordinator's clock shows.
    pub fn see_gang(&mut self, gang: &Gang, now_ms: u64, now: Timestamp) {
        let name = (gang.id.clone(), gang.epoch);
        // One of a restored store may not have begun either, but it is older.
        let is_new = gang.since == now
            && gang.state == GangState::Starting
            && gang.members.values().all(|member| member.phase == Phase::Assigned);
        // What was not seen to begin, since it was before a restore, is not counted.
        if !is_new && !self.open.contains_key(&name) {
            return;
        }
        self.undo.push((name.clone(), self.open.get(&name).cloned()));
        let members = self.open.entry(name).or_default();
        for (id, member) in gang.members.iter().filter(|(_, member)| !member.gpus.is_empty()) {
            let gpus = member.gpus.len() as u64;
            let begins = Held { gpus, begin_ms: now_ms, end_ms: None };
            let held = members.entry(*id).or_insert(begins);
            if !member.holds() && held.end_ms.is_none() {
                held.end_ms = Some(now_ms);
            }
        }
    }

    /// How a line differs. Of what was never counted, after a restore, nobody can tell.
    pub fn see_line(&mut self, spent: &Spent, now_ms: u64) -> Option<String> {
        let name = (spent.gang.clone(), spent.epoch);
        let members = self.open.get(&name)?;
        self.closed.push(name);
        let time = |held: &Held| held.gpus * (held.end_ms.unwrap_or(now_ms) - held.begin_ms);
        let expected: u64 = members.values().map(time).sum();
        let (line, classes) = (spent.allocated_ms(), spent.classes.total_ms());
        ((line, classes) != (expected, expected)).then(|| {
            format!("the books: {spent:?} is {line} GPU-ms, {classes} in classes, of {members:?}")
        })
    }

    pub fn committed(&mut self) {
        self.undo.clear();
        for name in self.closed.drain(..) {
            self.open.remove(&name);
        }
    }

    /// What was not committed has not been.
    pub fn crashed(&mut self) {
        self.closed.clear();
        for (name, before) in std::mem::take(&mut self.undo).into_iter().rev() {
            match before {
                Some(members) => self.open.insert(name, members),
                None => self.open.remove(&name),
            };
        }
    }

    /// An older copy of the store knows nothing of what was counted since.
    pub fn restored(&mut self) {
        *self = Counted::default();
    }
}
