//! The agent's core: which members must run here, decided from events alone.
//!
//! Synchronous, no I/O, no clock, no chance: `step(event, now, &mut effects)`. It holds the rules
//! that make a coordinator's mistake harmless: epochs only grow, a GPU has one holder, an
//! incarnation starts at most once, and nothing stops because it is not mentioned.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

pub mod assignment;
pub mod deadline;
pub mod effect;
pub mod event;
pub mod planted;
pub mod reconcile;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::{Epoch, GangId, Generation, MemberKey};
use gangline_common::time::Timestamp;

use assignment::{DesiredSet, End, GangOrder, Member, Order, Phase, Refusal, Release, Seen};
use effect::{Effect, Effects};
use event::{Durable, Event, MemberChange};
use planted::{Planted, is_planted};
use reconcile::{Action, Situation, decide};

/// Most gangs of one desired state.
pub const MAX_GANGS: usize = 1024;
/// Most members of one gang on one node.
pub const MAX_MEMBERS: usize = 64;
/// Gangs that are remembered by their highest epoch; the longest unlisted is forgotten first.
pub const MAX_SEEN: usize = 4096;
/// Wait before files that could not be removed are tried again.
const RELEASE_RETRY_MS: u64 = 10_000;

/// All decision state of the agent.
#[derive(Debug, Clone, Default)]
pub struct Core {
    held: Generation,
    desired: BTreeMap<GangId, GangOrder>,
    seen: BTreeMap<GangId, Seen>,
    members: BTreeMap<MemberKey, Member>,
    shutting_down: bool,
    /// A desired state has come since this agent started, and in the session in which the last one
    /// was said: what is known from before may be long over.
    informed: bool,
    /// When that session began, in boot-clock milliseconds.
    session_ms: u64,
    /// The newest contact: when its session began, and when it was.
    contact: Option<(u64, u64)>,
    changed: Changed,
}

/// What the step in progress has touched.
#[derive(Debug, Clone, Copy, Default)]
struct Changed {
    ledger: bool,
    report: bool,
}

impl Core {
    /// A core that has not been told what the ledger holds; `Event::Restored` comes first.
    pub fn new() -> Self {
        Core::default()
    }

    /// Generation of the newest accepted desired state.
    pub fn held(&self) -> Generation {
        self.held
    }

    /// The newest contact that it was told of: when its session began, and when it was.
    pub fn contact(&self) -> Option<(u64, u64)> {
        self.contact
    }

    /// Every member that is reported, in a stable order.
    pub fn members(&self) -> impl Iterator<Item = (&MemberKey, &Member)> {
        self.members.iter()
    }

    pub fn member(&self, key: &MemberKey) -> Option<&Member> {
        self.members.get(key)
    }

    /// True while the incarnation is listed or one of its members is known.
    pub fn knows(&self, gang: &GangId, epoch: Epoch) -> bool {
        self.desired.get(gang).is_some_and(|order| order.epoch == epoch)
            || self.members.keys().any(|key| key.gang == *gang && key.epoch == epoch)
    }

    /// True once every member of an earlier run has been found: before that a report would say
    /// less than the truth.
    pub fn is_report_ready(&self) -> bool {
        self.members.values().all(|member| member.phase != Phase::Adopting)
    }

    /// True when no process of any member is left.
    pub fn is_idle(&self) -> bool {
        !self.members.values().any(Member::is_live)
    }

    /// Handles one event; what must be done is added to `effects`.
    pub fn step(&mut self, event: Event, now: Timestamp, effects: &mut Effects) {
        self.changed = Changed::default();
        match event {
            Event::Restored(durable) => self.on_restored(durable, effects),
            Event::Desired(set) => self.on_desired(set, effects),
            Event::MemberChanged { key, change } => self.on_member_changed(&key, change, effects),
            Event::GangChanged { gang, epoch } => self.on_gang_changed(&gang, epoch, effects),
            Event::LogsComplete(key) => self.on_logs_complete(&key),
            Event::Released(key) => self.on_released(&key),
            Event::ReleaseFailed(key) => self.on_release_failed(&key, now),
            Event::Shutdown => self.shutting_down = true,
            Event::Contact { session_ms, boot_ms } => {
                self.contact = self.contact.max(Some((session_ms, boot_ms)));
            }
            Event::Session { began_ms } => self.on_session(began_ms),
            Event::Tick => {}
        }
        self.reconcile(now, effects);
        if self.changed.ledger {
            effects.ledger = Some(self.durable());
        }
        if self.changed.report && self.is_report_ready() {
            effects.list.push(Effect::ReportChanged);
        }
    }

    fn durable(&self) -> Durable {
        let rows = self.members.iter();
        Durable {
            held: self.held,
            desired: self.desired.clone(),
            seen: self.seen.clone(),
            members: rows.filter_map(|(key, m)| Some((key.clone(), m.row()?))).collect(),
        }
    }

    // ------------------------------------------------------------ transitions

    fn on_restored(&mut self, durable: Durable, effects: &mut Effects) {
        self.held = durable.held;
        self.desired = durable.desired;
        self.seen = durable.seen;
        for (key, row) in durable.members {
            let member = Member::restored(row);
            if member.phase == Phase::Adopting {
                effects.list.push(Effect::Adopt(key.clone()));
            }
            self.members.insert(key, member);
        }
        // Members that were listed but not started before the restart wait again.
        self.admit();
        self.changed.report = true;
    }

    fn on_desired(&mut self, set: DesiredSet, effects: &mut Effects) {
        match self.judge(&set) {
            Ok(Verdict::Newer) => {
                self.informed = true;
                self.accept(set, effects);
            }
            Ok(Verdict::Known) => self.informed = true,
            // The report tells the coordinator which generation is held here.
            Ok(Verdict::Older) => self.changed.report = true,
            Err(broken_rule) => effects.list.push(Effect::ProtocolError(broken_rule)),
        }
    }

    /// While there was no contact the coordinator may have given up what waits here.
    fn on_session(&mut self, began_ms: u64) {
        if self.session_ms != began_ms {
            (self.session_ms, self.informed) = (began_ms, false);
        }
    }

    fn on_member_changed(&mut self, key: &MemberKey, change: MemberChange, effects: &mut Effects) {
        let ordered = self.desired.get(&key.gang).is_some_and(|order| order.ends(key));
        let Some(member) = self.members.get_mut(key) else {
            effects.list.push(Effect::Warn(format!("{key} is not known here, but {change:?}")));
            return;
        };
        let phase = match (&member.phase, change) {
            (Phase::Waiting, change) => {
                let text = format!("{key} was not started, but {change:?}");
                effects.list.push(Effect::Warn(text));
                return;
            }
            // The end is the last word; what was on its way before it says nothing new.
            (Phase::Ended(_) | Phase::Refused(_), _) => return,
            (
                Phase::Adopting | Phase::Starting | Phase::Running { .. } | Phase::Stopping,
                MemberChange::Running { pid },
            ) => match member.is_ending() {
                true => Phase::Stopping,
                false => Phase::Running { pid },
            },
            (
                Phase::Adopting | Phase::Starting | Phase::Running { .. } | Phase::Stopping,
                MemberChange::Stopping,
            ) if !is_planted(Planted::EndedBeforeReaped) => Phase::Stopping,
            (
                Phase::Adopting | Phase::Starting | Phase::Running { .. } | Phase::Stopping,
                MemberChange::Ended | MemberChange::Stopping,
            ) => {
                let stopped = member.stop_sent.is_some();
                let taken_along = stopped && self.shutting_down && !ordered;
                // A stop of before a restart of the agent is known by its order only.
                let asked = match stopped {
                    true => !taken_along,
                    false => ordered && member.phase == Phase::Adopting,
                };
                Phase::Ended(End { asked, taken_along, ran: true, logs_complete: false })
            }
            (
                Phase::Adopting | Phase::Starting | Phase::Running { .. } | Phase::Stopping,
                MemberChange::Refused(refusal),
            ) => {
                self.changed.ledger = true;
                Phase::Refused(refusal)
            }
        };
        if member.phase != phase {
            member.phase = phase;
            self.changed.report = true;
        }
    }

    fn on_gang_changed(&mut self, gang: &GangId, epoch: Epoch, effects: &mut Effects) {
        if self.knows(gang, epoch) {
            self.changed.report = true;
        } else {
            let text = format!("gang {gang} epoch {epoch} is not known here, but it changed");
            effects.list.push(Effect::Warn(text));
        }
    }

    fn on_logs_complete(&mut self, key: &MemberKey) {
        // Anything but an end is early word: the tail says it again once the member has ended.
        if let Some(Member { phase: Phase::Ended(end), .. }) = self.members.get_mut(key)
            && !end.logs_complete
        {
            end.logs_complete = true;
            self.changed.report = true;
        }
    }

    fn on_released(&mut self, key: &MemberKey) {
        // Only what was asked for: a member that lives is never dropped by a stray answer.
        if !self.members.get(key).is_some_and(|member| member.release == Release::Asked) {
            return;
        }
        self.members.remove(key);
        if let Some(seen) = self.seen.get_mut(&key.gang)
            && seen.epoch == key.epoch
        {
            seen.closed = true;
        }
        self.changed = Changed { ledger: true, report: true };
    }

    fn on_release_failed(&mut self, key: &MemberKey, now: Timestamp) {
        if let Some(member) = self.members.get_mut(key)
            && member.release == Release::Asked
        {
            member.release = Release::RetryAt(now.plus_ms(RELEASE_RETRY_MS));
        }
    }

    // ------------------------------------------------------------ desired state

    /// Compares a desired state with what is held; an error names the rule that it breaks.
    fn judge(&self, set: &DesiredSet) -> Result<Verdict, String> {
        let gangs = check_form(set)?;
        if set.generation < self.held {
            return Ok(Verdict::Older);
        }
        if set.generation == self.held {
            let same = gangs.len() == self.desired.len()
                && gangs.iter().all(|(gang, order)| self.desired.get(*gang) == Some(*order));
            return match same {
                true => Ok(Verdict::Known),
                false => Err(format!("generation {} came with two contents", set.generation)),
            };
        }
        for (gang, order) in gangs {
            if let Some(held) = self.desired.get(gang)
                && held.epoch == order.epoch
                && let (Order::Run(before), Order::Run(after)) = (&held.order, &order.order)
                && before.members != after.members
            {
                return Err(format!("members of gang {gang} changed within epoch {}", order.epoch));
            }
        }
        Ok(Verdict::Newer)
    }

    fn accept(&mut self, set: DesiredSet, effects: &mut Effects) {
        self.held = set.generation;
        self.note_new_content(&set, effects);
        self.desired = set.gangs.into_iter().map(|order| (order.gang.clone(), order)).collect();
        for order in self.desired.values() {
            let first = Seen { epoch: order.epoch, closed: false, listed: self.held };
            let seen = self.seen.entry(order.gang.clone()).or_insert(first);
            if order.epoch > seen.epoch {
                *seen = first;
            }
            seen.listed = self.held;
            seen.closed |= order.order == Order::Stop && order.epoch == seen.epoch;
        }
        self.admit();
        self.bound_seen();
        self.changed = Changed { ledger: true, report: true };
    }

    /// Members that run are told when their incarnation's assignment says something new.
    fn note_new_content(&self, set: &DesiredSet, effects: &mut Effects) {
        for order in &set.gangs {
            let (Some(GangOrder { epoch, order: Order::Run(before), .. }), Order::Run(after)) =
                (self.desired.get(&order.gang), &order.order)
            else {
                continue;
            };
            if *epoch != order.epoch || before.digest == after.digest {
                continue;
            }
            let keys = after.members.iter().map(|wanted| order.key(wanted.member));
            let live = keys.filter(|key| self.members.get(key).is_some_and(Member::is_live));
            effects.list.extend(live.map(Effect::Update));
        }
    }

    /// Gives every listed member that is not known a place: to wait for its start, or refused.
    fn admit(&mut self) {
        for order in self.desired.values() {
            let Order::Run(run) = &order.order else { continue };
            let refusal = match self.seen.get(&order.gang) {
                Some(seen)
                    if seen.epoch > order.epoch && !is_planted(Planted::LowerEpochAccepted) =>
                {
                    Some(Refusal::StaleEpoch { highest: seen.epoch })
                }
                Some(seen) if seen.epoch == order.epoch && seen.closed => {
                    let reason = format!("epoch {} has already ended on this node", order.epoch);
                    Some(Refusal::Impossible { reason })
                }
                Some(_) | None => None,
            };
            for wanted in &run.members {
                let waiting = Member::waiting(wanted.gpus.clone(), run.grace);
                let phase = refusal.clone().map_or(Phase::Waiting, Phase::Refused);
                self.members.entry(order.key(wanted.member)).or_insert(Member { phase, ..waiting });
            }
        }
    }

    /// Forgets the longest unlisted gangs, so that a node of any age needs bounded memory.
    fn bound_seen(&mut self) {
        let excess = self.seen.len().saturating_sub(MAX_SEEN);
        if excess == 0 {
            return;
        }
        let in_use: BTreeSet<&GangId> =
            self.desired.keys().chain(self.members.keys().map(|key| &key.gang)).collect();
        let mut idle: Vec<(Generation, GangId)> = self
            .seen
            .iter()
            .filter(|(gang, _)| !in_use.contains(gang))
            .map(|(gang, seen)| (seen.listed, gang.clone()))
            .collect();
        idle.sort();
        for (_, gang) in idle.into_iter().take(excess) {
            self.seen.remove(&gang);
        }
    }

    // ------------------------------------------------------------ reconcile

    /// The newest contact, if it is of the session in which the desired state was said. With a newer
    /// one comes a newer state.
    fn contact_now(&self) -> Option<u64> {
        let of_now = self.contact.filter(|(session_ms, _)| *session_ms == self.session_ms);
        of_now.map(|(_, boot_ms)| boot_ms)
    }

    fn reconcile(&mut self, now: Timestamp, effects: &mut Effects) {
        let actions = decide(Situation {
            desired: &self.desired,
            members: &self.members,
            shutting_down: self.shutting_down,
            informed: self.informed,
            contact: self.contact_now(),
            now,
        });
        for action in actions {
            self.apply(action, now, effects);
        }
    }

    fn apply(&mut self, action: Action, now: Timestamp, effects: &mut Effects) {
        let (Action::Stop(key)
        | Action::Release(key)
        | Action::CallOff(key)
        | Action::Refuse(key, _)
        | Action::Start(key)) = &action;
        let key = key.clone();
        let Some(member) = self.members.get_mut(&key) else { return };
        match action {
            Action::Stop(_) => {
                member.phase = Phase::Stopping;
                member.stop_sent = Some(now);
                effects.list.push(Effect::Stop { key, grace: member.grace });
            }
            Action::Release(_) => {
                member.release = Release::Asked;
                effects.list.push(Effect::Release(key));
                return;
            }
            Action::CallOff(_) => {
                let asked = self.desired.get(&key.gang).is_some_and(|order| order.ends(&key));
                let taken_along = self.shutting_down && !asked;
                let end = End { asked, taken_along, ran: false, logs_complete: true };
                member.phase = Phase::Ended(end);
            }
            Action::Refuse(_, refusal) => {
                member.phase = Phase::Refused(refusal);
                self.changed.ledger = true;
            }
            Action::Start(_) => {
                member.phase = Phase::Starting;
                effects.list.push(Effect::Start(key));
                self.changed.ledger = true;
            }
        }
        self.changed.report = true;
    }
}

enum Verdict {
    Newer,
    Known,
    Older,
}

/// Checks what does not depend on the state: bounds, and that every name is there once.
fn check_form(set: &DesiredSet) -> Result<BTreeMap<&GangId, &GangOrder>, String> {
    if set.gangs.len() > MAX_GANGS {
        return Err(format!("{} gangs are over the limit of {MAX_GANGS}", set.gangs.len()));
    }
    let mut gangs = BTreeMap::new();
    for order in &set.gangs {
        if gangs.insert(&order.gang, order).is_some() {
            return Err(format!("gang {} is listed twice", order.gang));
        }
        let Order::Run(run) = &order.order else { continue };
        if run.members.is_empty() || run.members.len() > MAX_MEMBERS {
            let count = run.members.len();
            return Err(format!("gang {} has {count} members, not 1 to {MAX_MEMBERS}", order.gang));
        }
        let names: BTreeSet<_> = run.members.iter().map(|wanted| wanted.member).collect();
        if names.len() != run.members.len() {
            return Err(format!("gang {} names a member twice", order.gang));
        }
    }
    Ok(gangs)
}
