//! What allocations cost: GPU-milliseconds of every gang, from the moment it gets its GPUs until there
//! is evidence that nothing of it is left, each in exactly one class.
//!
//! An account is open for as long as a gang holds GPUs. Times come from what is stored anyway; the
//! account keeps what those records do not say. When the gang is gone it becomes one line of the
//! books, which are only ever added to and by which nothing is decided.

use std::collections::{BTreeMap, VecDeque};

use gangline_common::ids::{Epoch, GangId, JobId, MemberId, MemberKey};
use gangline_common::time::{Stopwatch, Timestamp};

use super::Core;
use super::effect::{Effects, Write};
use super::gang::Gang;
use super::job::{Attempt, Job, JobState, Outcome};

/// Stalls of one gang that are remembered after their end.
const STALLS_KEPT: usize = 64;

/// GPU-milliseconds by what became of them. Each counts in one class only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Classes {
    /// A GPU was busy, and its work was kept.
    pub productive_ms: u64,
    /// A GPU was not busy while its job ran.
    pub idle_ms: u64,
    /// The job ran, and no reading says whether the GPU was busy.
    pub unmeasured_ms: u64,
    /// From the allocation until the job ran.
    pub startup_ms: u64,
    /// The training did not go on: from its last sign of progress, once that was told as a stall.
    pub hung_ms: u64,
    /// Run after the newest training checkpoint of an attempt that ended without success.
    pub lost_ms: u64,
    /// From the end of the attempt until nothing of it was left.
    pub stopping_ms: u64,
}

impl Classes {
    /// Every class with its word.
    pub fn each(&self) -> [(&'static str, u64); 7] {
        [
            ("productive", self.productive_ms),
            ("idle", self.idle_ms),
            ("unmeasured", self.unmeasured_ms),
            ("startup", self.startup_ms),
            ("hung", self.hung_ms),
            ("lost", self.lost_ms),
            ("stopping", self.stopping_ms),
        ]
    }

    pub fn total_ms(&self) -> u64 {
        self.each().iter().map(|(_, ms)| ms).sum()
    }

    pub fn add(&mut self, more: &Classes) {
        for (mine, (_, ms)) in self.each_mut().into_iter().zip(more.each()) {
            *mine = mine.saturating_add(ms);
        }
    }

    /// The same shares of `total_ms`: what is rounded off in one class is in the next.
    fn scaled_to(&self, total_ms: u64) -> Classes {
        let whole = u128::from(self.total_ms()).max(1);
        let (mut before, mut given) = (0, 0);
        let mut scaled = Classes::default();
        for (to, (_, ms)) in scaled.each_mut().into_iter().zip(self.each()) {
            before += u128::from(ms);
            let upto = before * u128::from(total_ms) / whole;
            *to = u64::try_from(upto - given).unwrap_or(u64::MAX);
            given = upto;
        }
        scaled
    }

    fn each_mut(&mut self) -> [&mut u64; 7] {
        [
            &mut self.productive_ms,
            &mut self.idle_ms,
            &mut self.unmeasured_ms,
            &mut self.startup_ms,
            &mut self.hung_ms,
            &mut self.lost_ms,
            &mut self.stopping_ms,
        ]
    }
}

/// What an agent has measured of the GPUs of one member, in GPU-milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    pub measured_ms: u64,
    /// Of which the GPU was busy.
    pub busy_ms: u64,
}

impl Reading {
    pub fn plus(self, other: Reading) -> Reading {
        Reading {
            measured_ms: self.measured_ms.saturating_add(other.measured_ms),
            busy_ms: self.busy_ms.saturating_add(other.busy_ms),
        }
    }
}

/// The open account of one incarnation of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub gang: GangId,
    pub epoch: Epoch,
    /// The pool that the gang began in.
    pub pool: String,
    /// How long the gang has its allocation.
    pub held: Stopwatch,
    /// Milliseconds of stalls that are over.
    pub hung_ms: u64,
    /// Once the attempt has ended.
    pub run: Option<Run>,
    /// Members of which nothing is left.
    pub shares: BTreeMap<MemberId, HeldFor>,
}

/// The parts of an attempt, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// From the allocation until the job ran, or until the end of what never ran.
    pub startup_ms: u64,
    pub ran_ms: u64,
    /// Of the run, the stalls.
    pub hung_ms: u64,
    /// The last part of the run, less the stalls in it, when that has to be done again.
    pub lost_ms: u64,
}

/// A stall that is over, on the boot clock. Kept to tell whether it came after the newest training
/// checkpoint: then its time is hung and not lost as well. Not stored: after a restart of the
/// coordinator such a stall counts as both, and what was kept as less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StallOver {
    until_ms: u64,
    ms: u64,
}

/// What one member held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldFor {
    pub gpus: u32,
    pub ms: u64,
    pub reading: Reading,
}

impl HeldFor {
    /// Every GPU-millisecond of it in its class.
    fn classes(&self, run: Run) -> Classes {
        let startup_ms = self.ms.min(run.startup_ms);
        let ran_ms = (self.ms - startup_ms).min(run.ran_ms);
        let away_ms = run.lost_ms.saturating_add(run.hung_ms);
        let kept_ms = ran_ms.min(run.ran_ms.saturating_sub(away_ms));
        let hung_ms = (ran_ms - kept_ms).min(run.hung_ms);
        let gpus = u64::from(self.gpus);
        let (all, kept) = (ran_ms * gpus, kept_ms * gpus);
        // Readings are of the whole run; the part of it that was kept was like the rest.
        let measured = self.reading.measured_ms;
        let of_kept = |part: u64| {
            let whole = u128::from(measured.max(all)).max(1);
            u64::try_from(u128::from(kept) * u128::from(part) / whole).unwrap_or(kept)
        };
        let productive_ms = of_kept(self.reading.busy_ms.min(measured));
        let idle_ms = of_kept(measured).min(kept) - productive_ms;
        Classes {
            productive_ms,
            idle_ms,
            unmeasured_ms: kept - productive_ms - idle_ms,
            startup_ms: startup_ms * gpus,
            hung_ms: hung_ms * gpus,
            lost_ms: all - kept - hung_ms * gpus,
            stopping_ms: (self.ms - startup_ms - ran_ms) * gpus,
        }
    }
}

/// One allocation, from its beginning to its end, or to now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    pub gang: GangId,
    pub epoch: Epoch,
    pub job: JobId,
    pub attempt: u32,
    pub user: String,
    pub project: String,
    pub pool: String,
    pub from_wall_ms: u64,
    /// GPUs and milliseconds of every member that has GPUs.
    pub shares: Vec<(u32, u64)>,
    pub classes: Classes,
}

impl Spent {
    pub fn allocated_ms(&self) -> u64 {
        self.shares.iter().map(|(gpus, ms)| u64::from(*gpus) * ms).sum()
    }

    pub fn until_wall_ms(&self) -> u64 {
        let longest = self.shares.iter().map(|(_, ms)| *ms).max().unwrap_or_default();
        self.from_wall_ms.saturating_add(longest)
    }

    /// What of it was after a moment. The classes of a part are those of the whole.
    pub fn after(&self, wall_ms: u64) -> Classes {
        let before_ms = wall_ms.saturating_sub(self.from_wall_ms);
        let shares = self.shares.iter();
        let part = shares.map(|(gpus, ms)| u64::from(*gpus) * ms.saturating_sub(before_ms)).sum();
        self.classes.scaled_to(part)
    }
}

impl Core {
    /// The open account of a gang; `None` for one without GPUs.
    fn account(&self, gang: &Gang, now: Timestamp) -> Option<Account> {
        if gang.members.values().all(|member| member.gpus.is_empty()) {
            return None;
        }
        if let Some(account) = self.accounts.get(&gang.id).filter(|a| a.epoch == gang.epoch) {
            return Some(account.clone());
        }
        let attempt = self.attempts.get(&(gang.job.clone(), gang.attempt))?;
        let held = Stopwatch { since: now, before_ms: now.ms_since(attempt.started) };
        let (id, epoch, pool) = (gang.id.clone(), gang.epoch, self.pool_of(gang));
        let (hung_ms, run, shares) = (0, None, BTreeMap::new());
        Some(Account { gang: id, epoch, pool, held, hung_ms, run, shares })
    }

    /// An attempt ends: from now on its time is that of stopping.
    pub(super) fn count_run(&mut self, attempt: &Attempt, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(&attempt.gang).cloned() else { return };
        let Some(job) = self.jobs.get(&attempt.job).cloned() else { return };
        let Some(mut account) = self.account(&gang, now) else { return };
        let stall_ms = self.open_stall_ms(&gang, now);
        account.hung_ms = account.hung_ms.saturating_add(stall_ms);
        let mut run = run_so_far(&job, attempt, account.held.ms(now), account.hung_ms);
        if !job.is_cluster() && attempt.outcome != Some(Outcome::Succeeded) {
            let unsaved_ms = self.unsaved(&job, now).0.min(run.ran_ms);
            let stalled_ms = stall_ms.saturating_add(self.stalled_ms(&gang, unsaved_ms, now));
            run.lost_ms = unsaved_ms.saturating_sub(stalled_ms);
        }
        account.run = Some(run);
        self.put(Write::Account(account), out);
    }

    /// How long the stall that goes on has gone on.
    fn open_stall_ms(&self, gang: &Gang, now: Timestamp) -> u64 {
        let stall = self.stalls.get(&gang.id).filter(|(epoch, _)| *epoch == gang.epoch);
        stall.map_or(0, |(_, since_ms)| now.boot_ms.saturating_sub(*since_ms))
    }

    /// What of the last so many milliseconds was a stall that is over.
    fn stalled_ms(&self, gang: &Gang, last_ms: u64, now: Timestamp) -> u64 {
        let over = self.stalls_over.get(&gang.id).filter(|(epoch, _)| *epoch == gang.epoch);
        let from_ms = now.boot_ms.saturating_sub(last_ms);
        let of = |stall: &StallOver| stall.ms.min(stall.until_ms.saturating_sub(from_ms));
        over.map_or(0, |(_, over)| over.iter().map(of).sum())
    }

    /// A training has stood still for so long, and may go on doing so.
    pub(super) fn count_stall(&mut self, gang: &Gang, for_ms: u64, now: Timestamp) {
        let since_ms = now.boot_ms.saturating_sub(for_ms);
        let stall = self.stalls.entry(gang.id.clone()).or_insert((gang.epoch, since_ms));
        if stall.0 != gang.epoch {
            *stall = (gang.epoch, since_ms);
        }
    }

    /// It goes on again.
    pub(super) fn count_resumed(&mut self, gang: &Gang, now: Timestamp, out: &mut Effects) {
        let stall_ms = self.open_stall_ms(gang, now);
        self.stalls.remove(&gang.id);
        if stall_ms > 0 {
            let none = || (gang.epoch, VecDeque::new());
            let over = self.stalls_over.entry(gang.id.clone()).or_insert_with(none);
            if over.0 != gang.epoch {
                *over = none();
            }
            if over.1.len() >= STALLS_KEPT {
                over.1.pop_front();
            }
            over.1.push_back(StallOver { until_ms: now.boot_ms, ms: stall_ms });
        }
        let Some(mut account) = self.account(gang, now).filter(|_| stall_ms > 0) else { return };
        account.hung_ms = account.hung_ms.saturating_add(stall_ms);
        self.put(Write::Account(account), out);
    }

    /// Nothing of a member is left: its GPUs are free.
    pub(super) fn count_released(&mut self, key: &MemberKey, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(&key.gang).cloned() else { return };
        let Some(mut account) = self.account(&gang, now) else { return };
        let gpus = gang.members.get(&key.member).map_or(0, |member| member.gpus.len() as u32);
        if gpus > 0 && !account.shares.contains_key(&key.member) {
            let reading = self.reading(&gang, key.member);
            let share = HeldFor { gpus, ms: account.held.ms(now), reading };
            account.shares.insert(key.member, share);
            self.put(Write::Account(account), out);
        }
    }

    /// The gang is gone: its account becomes a line of the books.
    pub(super) fn close_account(&mut self, id: &GangId, now: Timestamp, out: &mut Effects) {
        let Some(gang) = self.gangs.get(id).cloned() else { return };
        if let Some(spent) = self.spent(&gang, now) {
            self.put(Write::Spent(spent), out);
        }
        if self.accounts.contains_key(id) {
            self.put(Write::ForgetAccount { gang: id.clone() }, out);
        }
    }

    /// What a gang that is not gone has cost so far.
    fn spent(&self, gang: &Gang, now: Timestamp) -> Option<Spent> {
        let account = self.account(gang, now)?;
        let job = self.jobs.get(&gang.job)?;
        let attempt = self.attempts.get(&(gang.job.clone(), gang.attempt))?;
        let held_ms = account.held.ms(now);
        let hung_ms = || account.hung_ms.saturating_add(self.open_stall_ms(gang, now));
        let run = account.run.unwrap_or_else(|| run_so_far(job, attempt, held_ms, hung_ms()));
        let with_gpus = gang.members.iter().filter(|(_, member)| !member.gpus.is_empty());
        let shares = with_gpus.map(|(id, member)| {
            let open = || HeldFor {
                gpus: member.gpus.len() as u32,
                ms: held_ms,
                reading: self.reading(gang, *id),
            };
            account.shares.get(id).copied().unwrap_or_else(open)
        });
        let shares: Vec<HeldFor> = shares.collect();
        let mut classes = Classes::default();
        shares.iter().for_each(|share| classes.add(&share.classes(run)));
        Some(Spent {
            gang: gang.id.clone(),
            epoch: gang.epoch,
            job: job.id.clone(),
            attempt: gang.attempt,
            user: job.user.clone(),
            project: job.project.clone(),
            pool: account.pool,
            from_wall_ms: attempt.started.wall_ms,
            shares: shares.iter().map(|share| (share.gpus, share.ms)).collect(),
            classes,
        })
    }

    /// What every allocation that there is now has cost so far.
    pub fn spent_so_far(&self, now: Timestamp) -> Vec<Spent> {
        let live = self.gangs.values().filter(|gang| gang.is_live());
        live.filter_map(|gang| self.spent(gang, now)).collect()
    }

    /// A gang lies in the pool that it began in, as far as that is known.
    fn pool_of(&self, gang: &Gang) -> String {
        let held = self.holdings.pool(&gang.id).map(str::to_owned);
        let nodes = gang.members.values().filter_map(|member| self.nodes.get(&member.node));
        let first = || nodes.filter_map(|node| node.pool()).next().map(str::to_owned);
        held.or_else(first).unwrap_or_default()
    }

    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.accounts.values()
    }
}

/// The parts of an attempt that ends now, after it had its allocation for `held_ms`.
fn run_so_far(job: &Job, attempt: &Attempt, held_ms: u64, hung_ms: u64) -> Run {
    let runs = matches!(job.state, JobState::Running | JobState::Held);
    let started = job.started.filter(|_| runs);
    let startup_ms = started.map_or(held_ms, |at| at.ms_since(attempt.started).min(held_ms));
    let ran_ms = held_ms - startup_ms;
    Run { startup_ms, ran_ms, hung_ms: hung_ms.min(ran_ms), lost_ms: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(gpus: u32, ms: u64, measured_ms: u64, busy_ms: u64) -> HeldFor {
        HeldFor { gpus, ms, reading: Reading { measured_ms, busy_ms } }
    }

    #[test]
    fn each_gpu_millisecond_is_in_its_class() {
        let run = Run { startup_ms: 100, ran_ms: 800, hung_ms: 0, lost_ms: 200 };
        // Two GPUs, half of the readings busy, 100 ms of stopping.
        let classes = held(2, 1000, 1600, 800).classes(run);
        assert_eq!(
            classes,
            Classes {
                productive_ms: 600,
                idle_ms: 600,
                unmeasured_ms: 0,
                startup_ms: 200,
                hung_ms: 0,
                lost_ms: 400,
                stopping_ms: 200,
            }
        );
        // A quarter of the run was measured, all of it busy.
        let classes = held(2, 1000, 400, 400).classes(run);
        assert_eq!((classes.productive_ms, classes.unmeasured_ms), (300, 900));
        // Gone before the attempt ended: only what it did after the checkpoint is lost.
        let classes = held(1, 750, 0, 0).classes(run);
        assert_eq!((classes.unmeasured_ms, classes.lost_ms, classes.stopping_ms), (600, 50, 0));
        assert_eq!(held(1, 40, 0, 0).classes(run).startup_ms, 40);
        // A stall is neither: what was kept and what was lost lie beside it.
        let stalled = held(1, 1000, 800, 800).classes(Run { hung_ms: 300, ..run });
        assert_eq!((stalled.productive_ms, stalled.hung_ms, stalled.lost_ms), (300, 300, 200));
    }

    proptest::proptest! {
        #[test]
        fn the_classes_of_any_part_are_all_of_it(
            shares in proptest::collection::vec((1..=8u32, 0..1u64 << 40, 0..u64::MAX, 0..u64::MAX), 1..5),
            startup_ms in 0..1u64 << 40,
            ran_ms in 0..1u64 << 40,
            lost_ms in 0..1u64 << 41,
            hung_ms in 0..1u64 << 41,
            from in 0..1u64 << 41,
            at in 0..1u64 << 42,
        ) {
            let run = Run { startup_ms, ran_ms, hung_ms, lost_ms };
            let shares = shares.into_iter().map(|(gpus, ms, all, busy)| held(gpus, ms, all, busy));
            let shares: Vec<HeldFor> = shares.collect();
            let mut classes = Classes::default();
            shares.iter().for_each(|share| classes.add(&share.classes(run)));
            let spent = Spent {
                gang: "g-1".parse().unwrap(),
                epoch: Epoch { era: 1, n: 1 },
                job: "j-1".parse().unwrap(),
                attempt: 1,
                user: String::new(),
                project: String::new(),
                pool: String::new(),
                from_wall_ms: from,
                shares: shares.iter().map(|share| (share.gpus, share.ms)).collect(),
                classes,
            };
            proptest::prop_assert_eq!(classes.total_ms(), spent.allocated_ms());
            let after = spent.after(at).total_ms();
            let expected: u64 = spent.shares.iter().map(|(gpus, ms)| {
                u64::from(*gpus) * (from + ms).saturating_sub(at.max(from))
            }).sum();
            proptest::prop_assert_eq!(after, expected);
            proptest::prop_assert_eq!(spent.after(0), classes);
        }
    }
}
