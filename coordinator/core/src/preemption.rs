//! Making room: gangs that are sent back to the queue for one that has a better claim.
//!
//! There are two claims. A project takes back what it is guaranteed, from projects that hold more than
//! they are guaranteed. And a job takes the place of preemptible jobs of lower priority. Whole gangs
//! only, those that lose least work since their last training checkpoints, none within its
//! `min_runtime`, and only when that makes the claimant start. A job that was itself sent back for a
//! higher priority displaces nobody: one preemption never leads to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::ids::{JobId, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::capacity::{Slot, SlotIndex};
use super::checkpoints::{TrainingCheckpoint, loss_text};
use super::constraints::may_share;
use super::effect::Effects;
use super::explain::Leaver;
use super::forecast::{Reservation, gpus_kept};
use super::gang::{Gang, GangState};
use super::holdings::Holding;
use super::job::{Job, JobState, Outcome};
use super::order::Ranking;
use super::placement::never;
use super::schedule::{Pass, RESERVATION_LIMIT};

/// Waiting jobs that are looked at for a claim in one pass, from the front of the queue.
pub(super) const CLAIMANT_LIMIT: usize = 8;
/// Up to this many gangs every set of them is compared; of more, a set that is good but may not be best.
const EXACT_LIMIT: usize = 10;

/// A gang that may be sent back.
struct Victim<'a> {
    job: &'a Arc<Job>,
    gang: &'a Arc<Gang>,
    /// Work that would be done again: GPU-milliseconds.
    loss: u64,
    /// What it has not saved: milliseconds, and since when.
    unsaved: (u64, Option<&'a TrainingCheckpoint>),
    /// Its project holds more than it is guaranteed, and the claimant's takes its own back.
    borrows: bool,
    gpus: u32,
    /// So many GPUs its project may lose in all when this one goes. With more it would wait for what
    /// the project is guaranteed, go before the claimant, and take its place again.
    may_lose: u32,
    /// How many GPUs its project holds beyond what it is guaranteed: for one that goes for nothing
    /// else.
    lent: Option<u32>,
}

/// A claim, and the gangs that go for it.
pub(super) struct Claimed {
    pub claimant: JobId,
    pub leavers: Vec<Leaver>,
}

impl Core {
    /// For the first waiting job with a claim: the gangs that make room for it go.
    pub(super) fn preempt(
        &mut self,
        pass: &mut Pass,
        ranking: &Ranking,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !pass.has_served_all() && self.may_preempt(pass) {
            self.refresh_estimates();
        }
        let Some(claimed) = self.first_claim(pass, ranking, now) else { return };
        if let Some(waiting) = self.queue.waiting_mut(&claimed.claimant) {
            waiting.is_claimant = true;
        }
        for leaver in claimed.leavers {
            let outcome = Outcome::Preempted { cause: leaver.cause, keeps_nodes: false };
            self.end_attempt(&leaver.job.id, outcome, "gangline", now, out);
        }
    }

    /// The first of the jobs that do not fit which has a claim, and the gangs that make room for it. One
    /// claim at a time: two could each count on the same free nodes. Changes nothing, so that a plan asks
    /// it as well.
    pub(super) fn first_claim(
        &self,
        pass: &mut Pass,
        ranking: &Ranking,
        now: Timestamp,
    ) -> Option<Claimed> {
        if !self.may_preempt(pass) {
            return None;
        }
        let claimants: Vec<_> = pass.blocked.iter().take(CLAIMANT_LIMIT).cloned().collect();
        for claimant in &claimants {
            if !self.may_claim(claimant, ranking) {
                continue;
            }
            let ahead = pass.due_before(claimant);
            // Nothing would be kept for it until it starts.
            if ahead >= RESERVATION_LIMIT {
                break;
            }
            if ahead > 0 {
                self.keep_for_those_due(pass, now);
            }
            let is_kept = |slot: SlotIndex| pass.is_kept_for_first(ahead, slot);
            // Gangs that are already on their way out leave enough, in this pool or in another one.
            if self.met_claim(claimant, &is_kept).is_some() {
                continue;
            }
            for pool in self.capacity.pools().filter(|pool| claimant.request.may_use(pool)) {
                let found = self.victims(claimant, pool, &is_kept, ranking, now);
                let Some(victims) = found else { continue };
                let leaver = |victim: &Victim<'_>| Leaver {
                    job: victim.job.clone(),
                    gpus: victim.gpus,
                    loses: loss_text(victim.unsaved),
                    cause: cause(victim, claimant, pool),
                };
                let leavers = victims.iter().map(leaver).collect();
                return Some(Claimed { claimant: claimant.id.clone(), leavers });
            }
        }
        None
    }

    /// Whether anybody could have a claim: mostly nobody has.
    fn may_preempt(&self, pass: &Pass) -> bool {
        let highest = pass.blocked.iter().map(|job| job.request.priority).max();
        let Some(highest) = highest else { return false };
        let lower = |job: &Arc<Job>| job.request.preemptible && job.request.priority < highest;
        let mut running = self.holdings.all().map(|holding| &holding.job);
        let quotas = self.projects.values().flat_map(|project| project.quotas.values());
        quotas.into_iter().any(|quota| quota.guaranteed > 0) || running.any(lower)
    }

    /// Whether there may be anybody who would go for this one.
    fn may_claim(&self, claimant: &Job, ranking: &Ranking) -> bool {
        let lower =
            |job: &Job| job.request.preemptible && job.request.priority < claimant.request.priority;
        ranking.is_guaranteed(claimant)
            || self.holdings.all().any(|holding| lower(&holding.job))
                && !self.was_displaced(claimant)
    }

    /// The gangs of a pool that lose least and whose end lets `claimant` start there. Nodes that are
    /// kept are for jobs ahead of it.
    ///
    /// Only gangs that would wait behind the claimant: another one would take its place again.
    fn victims(
        &self,
        claimant: &Arc<Job>,
        pool: &str,
        is_kept: &dyn Fn(SlotIndex) -> bool,
        ranking: &Ranking,
        now: Timestamp,
    ) -> Option<Vec<Victim<'_>>> {
        let gpus = gpus_of(claimant);
        if gpus == 0 || self.room_in_pool(&claimant.project, pool) < gpus {
            return None;
        }
        let held = self.holdings.gpus(&claimant.project, pool);
        let quota = self.quota(&claimant.project, pool).unwrap_or_default();
        let guaranteed =
            ranking.is_guaranteed(claimant) && held.saturating_add(gpus) <= quota.guaranteed;
        let displaced = self.was_displaced(claimant);
        let mut room = Claim::new(self, claimant, pool, is_kept);
        let place = (ranking.is_guaranteed(claimant), ranking.points(claimant));
        let mut over: BTreeMap<&str, u32> = BTreeMap::new();
        let mut victims = Vec::new();
        for holding in self.holdings.all() {
            let (gang, job) = (&holding.gang, &holding.job);
            if holding.pool != pool || holding.gpus == 0 {
                continue;
            }
            let borrowed = *over.entry(&job.project).or_insert_with(|| {
                let own = self.quota(&job.project, pool).unwrap_or_default().guaranteed;
                self.holdings.gpus(&job.project, pool).saturating_sub(own)
            });
            let points = ranking.points(job);
            let may_lose = |goes_behind: &dyn Fn((bool, u32)) -> bool| match (
                goes_behind((true, points)),
                goes_behind((false, points)),
            ) {
                (true, _) => u32::MAX,
                (false, true) => self.may_lose(holding),
                (false, false) => 0,
            };
            let preemptible = !displaced
                && job.request.preemptible
                && job.request.priority < claimant.request.priority;
            let lower = preemptible.then(|| may_lose(&|again| again < place));
            let lower = lower.filter(|limit| *limit >= holding.gpus);
            // Between equals the one goes first for which others were sent back.
            let lends = guaranteed && job.project != claimant.project && borrowed > 0;
            let borrows = lends.then(|| may_lose(&|again| again <= place));
            let borrows = borrows.filter(|limit| *limit >= holding.gpus);
            let runs = matches!(gang.state, GangState::Starting | GangState::Ready)
                && matches!(job.state, JobState::Starting | JobState::Running);
            let Some(may_lose) = lower.or(borrows).filter(|_| runs) else { continue };
            if self.is_protected(job, now) {
                continue;
            }
            let unsaved = self.unsaved(job, now);
            let loss = unsaved.0.saturating_mul(u64::from(holding.gpus));
            let lent = lower.is_none().then_some(borrowed);
            let (gpus, borrows) = (holding.gpus, borrows.is_some());
            victims.push(Victim { job, gang, loss, unsaved, borrows, gpus, may_lose, lent });
        }
        victims.sort_by(|a, b| (a.loss, &a.gang.id).cmp(&(b.loss, &b.gang.id)));
        if victims.len() > EXACT_LIMIT {
            let mut taken = Taken::default();
            victims.retain(|victim| taken.may_take(victim));
        }
        let chosen = choose(&victims, &mut room)?;
        let mut keep = chosen.into_iter();
        victims.retain(|_| keep.next().unwrap_or(false));
        Some(victims)
    }

    /// The nodes of a job for which gangs were sent back, when it waits for nothing but the end of what
    /// is on its way out. They are kept from now on: whoever started there meanwhile would be sent back
    /// again, however short.
    pub(super) fn left_for(
        &self,
        job: &Job,
        is_kept: &dyn Fn(SlotIndex) -> bool,
        now: Timestamp,
    ) -> Option<Reservation> {
        self.queue.waiting(&job.id).filter(|waiting| waiting.is_claimant)?;
        let claim = self.met_claim(job, is_kept)?;
        let nodes = claim.enough.iter().filter_map(|node| self.capacity.slot(node));
        let slots = nodes.map(|slot| slot.index).take(claim.wanted).collect();
        Some(Reservation { slots, gpus: gpus_kept(job), at_ms: now.boot_ms })
    }

    /// What is free, and what gangs on their way out leave, where that is enough.
    fn met_claim<'a>(
        &'a self,
        job: &'a Job,
        is_kept: &'a dyn Fn(SlotIndex) -> bool,
    ) -> Option<Claim<'a>> {
        let in_reach = |pool: &&str| {
            job.request.may_use(pool) && self.room_in_pool(&job.project, pool) >= gpus_of(job)
        };
        let pools = self.capacity.pools().filter(in_reach);
        pools.map(|pool| Claim::new(self, job, pool, is_kept)).find(Claim::is_met)
    }

    /// So many GPUs of its pool the project may lose in all, this gang's among them, and the gang would
    /// still not wait for what the project is guaranteed. An elastic one may hold more than the least
    /// that it waits for.
    fn may_lose(&self, holding: &Holding) -> u32 {
        let job = &holding.job;
        let Some(record) = self.projects.get(&job.project) else { return u32::MAX };
        let quotas = record.quotas.iter().filter(|(pool, _)| job.request.may_use(pool));
        let limits = quotas.map(|(pool, quota)| {
            let held = self.holdings.gpus(&job.project, pool);
            let beyond = held.saturating_add(gpus_of(job)).saturating_sub(quota.guaranteed);
            match *pool == holding.pool {
                true => beyond.saturating_sub(1),
                // Nothing is lost there: it waits for what is guaranteed, or it does not.
                false if beyond == 0 => 0,
                false => u32::MAX,
            }
        });
        limits.min().unwrap_or(u32::MAX)
    }

    /// Inside the time that it is promised.
    fn is_protected(&self, job: &Job, now: Timestamp) -> bool {
        let Some(promised) = job.request.min_runtime_ms else { return false };
        let running = job.started.filter(|_| job.state == JobState::Running);
        running.is_none_or(|started| now.ms_since(started) < promised)
    }

    /// Its newest attempt was ended to make room.
    fn was_displaced(&self, job: &Job) -> bool {
        let attempt = self.attempts.get(&(job.id.clone(), job.attempts));
        matches!(attempt.and_then(|a| a.outcome.as_ref()), Some(Outcome::Preempted { .. }))
    }
}

/// GPUs that a job takes at least.
pub(super) fn gpus_of(job: &Job) -> u32 {
    job.request.nnodes.saturating_mul(job.request.gpus_per_node)
}

/// What a claimant needs in one pool, and what is there if some gangs go.
struct Claim<'a> {
    core: &'a Core,
    claimant: &'a Job,
    wanted: usize,
    /// Nodes that would do now, or when gangs have gone that are on their way out.
    enough: BTreeSet<&'a NodeId>,
    /// GPUs that are free on a node, and gangs that have gone from it.
    free: BTreeMap<&'a NodeId, (usize, u32)>,
    /// Whether a node is kept for somebody ahead.
    is_kept: &'a dyn Fn(SlotIndex) -> bool,
}

impl<'a> Claim<'a> {
    fn new(
        core: &'a Core,
        claimant: &'a Job,
        pool: &str,
        is_kept: &'a dyn Fn(SlotIndex) -> bool,
    ) -> Self {
        let wanted = claimant.request.nnodes as usize;
        let (enough, free) = (BTreeSet::new(), BTreeMap::new());
        let mut claim = Claim { core, claimant, wanted, enough, free, is_kept };
        let groups = core.capacity.groups().filter(|(kind, _)| kind.pool == pool);
        let nodes = groups.flat_map(|(_, group)| group.open.values().flatten());
        for slot in nodes.filter_map(|(_, _, index)| core.capacity.at(*index)) {
            let fits = slot.free_gpus.len() >= claim.gpus() && claim.may_share(slot, 0);
            if claim.is_open(slot) && fits {
                claim.enough.insert(&slot.node);
                if claim.is_met() {
                    break;
                }
            }
        }
        for gang in core.holdings.all().map(|holding| &holding.gang) {
            if gang.state == GangState::Stopping {
                claim.add(gang);
            }
        }
        claim
    }

    fn gpus(&self) -> usize {
        self.claimant.request.gpus_per_node as usize
    }

    fn is_open(&self, slot: &Slot) -> bool {
        slot.closed.is_none()
            && never(&self.claimant.request, slot).is_none()
            && !(self.is_kept)(slot.index)
    }

    fn may_share(&self, slot: &Slot, gone: u32) -> bool {
        may_share(&self.claimant.request, slot, gone)
    }

    fn is_met(&self) -> bool {
        self.enough.len() >= self.wanted
    }

    /// With what this gang leaves behind.
    fn add(&mut self, gang: &'a Gang) {
        for (id, member) in gang.members.iter().filter(|(_, m)| m.holds()) {
            let Some(slot) = self.core.capacity.slot(&member.node) else { continue };
            if !self.is_open(slot) {
                continue;
            }
            let (free, gone) = self.free.entry(&slot.node).or_insert((slot.free_gpus.len(), 0));
            *free += member.gpus.len();
            *gone += u32::from(*id != MemberId::Head);
            let request = &self.claimant.request;
            if *free >= request.gpus_per_node as usize && may_share(request, slot, *gone) {
                self.enough.insert(&slot.node);
            }
        }
    }
}

/// Why a gang goes, for people.
fn cause(victim: &Victim<'_>, claimant: &Job, pool: &str) -> String {
    let lost = loss_text(victim.unsaved);
    let Job { id, project, request, .. } = claimant;
    match victim.borrows {
        true => format!("project {project} takes back its guaranteed GPUs of pool {pool}; {lost}"),
        false => format!("job {id} has priority {}; {lost}", request.priority),
    }
}

/// What projects lose when some victims go.
#[derive(Default)]
struct Taken<'a> {
    by_project: BTreeMap<&'a str, Loss>,
}

#[derive(Clone, Copy)]
struct Loss {
    gpus: u32,
    /// Of them, those that go only because they are lent.
    lent: u32,
    /// The least that any of the victims allows.
    may_lose: u32,
}

impl<'a> Taken<'a> {
    /// Takes one more, if all that were taken would still wait behind the claimant, and its project is
    /// still left what it is guaranteed, but for the part of its largest gang that is its own.
    fn may_take(&mut self, victim: &Victim<'a>) -> bool {
        let none = Loss { gpus: 0, lent: 0, may_lose: u32::MAX };
        let loss = self.by_project.entry(&victim.job.project).or_insert(none);
        let gpus = loss.gpus.saturating_add(victim.gpus);
        let may_lose = loss.may_lose.min(victim.may_lose);
        if gpus > may_lose || victim.lent.is_some_and(|borrowed| loss.lent >= borrowed) {
            return false;
        }
        let lent = loss.lent.saturating_add(victim.lent.map_or(0, |_| victim.gpus));
        *loss = Loss { gpus, lent, may_lose };
        true
    }
}

/// Whether all of them may go together.
fn may_go(victims: &[Victim<'_>], chosen: &[bool]) -> bool {
    let chosen = victims.iter().zip(chosen).filter(|(_, chosen)| **chosen);
    let mut chosen: Vec<_> = chosen.map(|(victim, _)| victim).collect();
    chosen.sort_by_key(|victim| victim.gpus);
    let mut taken = Taken::default();
    chosen.into_iter().all(|victim| taken.may_take(victim))
}

/// Which of the victims, sorted by their loss, go: the set with the smallest loss that is enough.
fn choose<'a>(victims: &[Victim<'a>], claim: &mut Claim<'a>) -> Option<Vec<bool>> {
    let (enough, free) = (claim.enough.clone(), claim.free.clone());
    let mut is_enough = |chosen: &[bool]| {
        claim.enough.clone_from(&enough);
        claim.free.clone_from(&free);
        for (victim, _) in victims.iter().zip(chosen).filter(|(_, chosen)| **chosen) {
            claim.add(victim.gang);
        }
        claim.is_met()
    };
    if !is_enough(&vec![true; victims.len()]) {
        return None;
    }
    if victims.len() <= EXACT_LIMIT {
        let sets = (1u32..1 << victims.len())
            .map(|set| (0..victims.len()).map(|n| set >> n & 1 == 1).collect::<Vec<bool>>());
        let loss = |chosen: &[bool]| -> (u64, usize) {
            let losses = victims.iter().zip(chosen).filter(|(_, chosen)| **chosen);
            let count = losses.clone().count();
            (losses.map(|(victim, _)| victim.loss).sum(), count)
        };
        let good = sets.filter(|chosen| may_go(victims, chosen) && is_enough(chosen));
        return good.min_by_key(|chosen| loss(chosen));
    }
    // As few of the cheap ones as are enough, then without those that turn out not to be needed,
    // the dearest first.
    let (mut low, mut high) = (1, victims.len());
    let first = |count: usize| (0..victims.len()).map(|n| n < count).collect::<Vec<bool>>();
    while low < high {
        let middle = (low + high) / 2;
        if is_enough(&first(middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let mut chosen = first(low);
    for n in (0..low).rev() {
        let mut fewer = chosen.clone();
        if let Some(one) = fewer.get_mut(n) {
            *one = false;
        }
        if is_enough(&fewer) {
            chosen = fewer;
        }
    }
    Some(chosen)
}
