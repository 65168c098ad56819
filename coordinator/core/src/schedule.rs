//! Queue to placement to allocation: one pass over the waiting jobs, all or nothing for each.
//!
//! What a pass decides is what `explain` shows: the reasons are made here, of the same checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::ids::{Epoch, JobId, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::capacity::{Slot, SlotIndex};
use super::constraints::is_exclusive;
use super::effect::{Effects, Seen, Write};
use super::explain::Leaver;
use super::forecast::{Ends, Reservation};
use super::gang::{Gang, GangState, Member, Phase};
use super::job::{Addresses, Attempt, Job, JobRequest, JobState};
use super::misfits::Need;
use super::order::{Ranking, Standing, Turns};
use super::placement::{Leases, Room, Share, fit, out_of_reach, shares, waits_for, would_do};
use super::policy::Policy;
use super::preemption::{CLAIMANT_LIMIT, gpus_of};
use super::projects::Quota;
use super::queue::{LineId, ShapeId};

/// Most jobs ahead of one for which a pass is rehearsed: with more, nobody is sent back for it soon.
const REHEARSED: usize = 256;
/// Waiting gangs for which nodes are kept at a time.
pub const RESERVATION_LIMIT: usize = 16;

/// What a pass has found out so far. Capacity only shrinks within it, so that what did not fit once
/// does not fit later either.
#[derive(Default)]
pub(super) struct Pass {
    /// Jobs that do not fit now, in the order of the queue: the first of each line, and those that
    /// are due.
    pub blocked: Vec<Arc<Job>>,
    /// Those that nodes are to be kept for, in order, and how many of them have been served: that is
    /// put off until somebody could take such a node.
    due: Vec<Arc<Job>>,
    served: usize,
    kept: Vec<JobId>,
    kept_slots: BTreeMap<SlotIndex, Vec<Kept>>,
    /// When they are supposed to have their nodes, for the time after the pass.
    promised: Vec<(JobId, u64)>,
    ends: Option<Ends>,
    /// By what did not fit; its project matters where that has a maximum.
    failed: BTreeMap<Need, Failed>,
    unreachable: BTreeMap<Need, Option<Arc<str>>>,
    /// For strict order: who holds back a pool, or all of them.
    held_back: BTreeMap<Option<String>, JobId>,
    /// Guests wait for a part of their cluster only, in order.
    crowded: BTreeMap<JobId, JobId>,
    /// Why whole lines wait, and why single jobs do.
    line_reasons: BTreeMap<LineId, Arc<str>>,
    reasons: BTreeMap<JobId, Arc<str>>,
}

/// GPUs that are kept on a node, and from when they are needed.
#[derive(Debug, Clone)]
struct Kept {
    gpus: usize,
    at_ms: u64,
    /// Number of the job, of those that are due.
    place: usize,
}

/// Why a gang was not started, as people read it.
enum Unplaced {
    /// No nodes for it; that stays so until something comes free.
    Misfit(String),
    /// There are nodes, but no ports or no place for its head on them.
    Lease(String),
}

/// What got no leases, whoever else wants nodes, or no nodes because they are kept for others.
struct Failed {
    /// It would have run until then; absent if that does not matter.
    until_ms: Option<u64>,
    reason: Arc<str>,
}

impl Pass {
    fn keep(&mut self, job: &JobId, place: usize, reservation: Reservation) {
        for slot in &reservation.slots {
            let gpus = reservation.gpus as usize;
            let kept = Kept { gpus, at_ms: reservation.at_ms, place };
            self.kept_slots.entry(*slot).or_default().push(kept);
        }
        self.kept.push(job.clone());
    }

    /// How many of those that are due go before a job that does not fit.
    pub fn due_before(&self, job: &Job) -> usize {
        let ahead = self.blocked.iter().take_while(|other| other.id != job.id);
        ahead.filter(|other| self.due.iter().any(|due| due.id == other.id)).count()
    }

    /// Whether anything of the node is kept for the first `count` of those that are due.
    pub fn is_kept_for_first(&self, count: usize, slot: SlotIndex) -> bool {
        let kept = self.kept_slots.get(&slot).into_iter().flatten();
        count > 0 && kept.into_iter().any(|kept| kept.place < count)
    }

    /// Whether all that are due have been served.
    pub fn has_served_all(&self) -> bool {
        self.served >= self.due.len()
    }

    /// Whether a gang that is on a node until `end_ms` would be in the way of one for which the node is
    /// kept.
    fn is_kept(&self, slot: &Slot, request: &JobRequest, end_ms: u64) -> bool {
        let Some(kept) = self.kept_slots.get(&slot.index) else { return false };
        // One that has the node to itself leaves nothing of it.
        let whole = is_exclusive(request, &slot.kind);
        let gpus = if whole { slot.free_gpus.len() } else { request.gpus_per_node as usize };
        let needed: usize =
            kept.iter().filter(|kept| end_ms > kept.at_ms).map(|kept| kept.gpus.max(1)).sum();
        needed > 0 && slot.free_gpus.len() < needed + gpus.max(1)
    }
}

impl Core {
    /// One pass over the queue.
    pub(super) fn schedule(&mut self, now: Timestamp, out: &mut Effects) {
        self.refresh_capacity();
        self.refresh_holdings();
        self.count_overtaking(now);
        if self.queue.is_empty() {
            return;
        }
        self.estimate_lines();
        self.misfits.at(now.boot_ms);
        let ranking = self.ranking(now);
        let mut pass = Pass::default();
        self.look_at_guests(&ranking, &mut pass, now, out);
        if self.policy == Policy::Fifo {
            for job in self.in_strict_order() {
                if let Some(line) = self.queue.line_of(&job.id) {
                    self.consider(&job, line, &mut pass, now, out);
                }
            }
        } else {
            let mut turns = Turns::new(&ranking, self.queue.lines());
            while let Some((id, sequence)) = turns.next() {
                let job = self.queue.line(id).and_then(|line| line.members.get(&sequence));
                let Some(job) = job.map(|waiting| waiting.job.clone()) else { continue };
                if self.consider(&job, id, &mut pass, now, out) {
                    turns.go_on(id, self.queue.line(id), sequence);
                }
            }
        }
        self.preempt(&mut pass, &ranking, now, out);
        for (job, at_ms) in std::mem::take(&mut pass.promised) {
            if let Some(waiting) = self.queue.waiting_mut(&job) {
                waiting.promised_ms = Some(at_ms);
            }
        }
        self.say_why(pass, now, out);
    }

    /// Starts a job if that is possible; whether the next one of its line is to be looked at as well.
    fn consider(
        &mut self,
        job: &Arc<Job>,
        line: LineId,
        pass: &mut Pass,
        now: Timestamp,
        out: &mut Effects,
    ) -> bool {
        // Such a job holds back nobody.
        let not_yet = self.eligible(job, now).err().map(|not_yet| not_yet.to_string());
        let own = not_yet.or_else(|| self.runs_unknown(&job.gang)).map(Arc::from);
        if let Some(reason) = own.or_else(|| self.held_back(job, pass)) {
            pass.reasons.insert(job.id.clone(), reason);
            return true;
        }
        let Some((shape, estimate)) = self.queue.line(line).map(|l| (l.shape, l.estimate)) else {
            return false;
        };
        let need = self.need(job, shape);
        if let Some(reason) = self.misfits.reason(&need) {
            pass.line_reasons.entry(line).or_insert_with(|| reason.clone());
            return self.block(job, pass);
        }
        // Nor does such a one: a pool with a wrong letter must not stop the fleet.
        let missing = pass
            .unreachable
            .entry(need.clone())
            .or_insert_with(|| self.out_of_reach(job).map(Arc::from));
        if let Some(reason) = missing {
            pass.line_reasons.entry(line).or_insert_with(|| reason.clone());
            return false;
        }
        let ms = estimate.flatten().map_or(u64::MAX, |estimate| estimate.ms);
        let end_ms = now.boot_ms.saturating_add(ms);
        match self.try_gang(job, need, end_ms, pass, now, out) {
            Ok(()) => true,
            Err(reason) => {
                pass.line_reasons.entry(line).or_insert(reason);
                self.block(job, pass)
            }
        }
    }

    /// Guests need nothing of the fleet: they have a queue for each cluster.
    fn look_at_guests(
        &mut self,
        ranking: &Ranking,
        pass: &mut Pass,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let mut guests: Vec<_> =
            self.queue.guests().map(|job| (ranking.rank(job, false, 0), job.clone())).collect();
        guests.sort_by_key(|(rank, _)| *rank);
        for (_, job) in guests {
            let Some(cluster) = job.cluster.clone() else { continue };
            let reason = match (self.eligible(&job, now), pass.crowded.get(&cluster)) {
                (Err(not_yet), _) => not_yet.to_string(),
                (Ok(()), Some(ahead)) => format!("waits behind {ahead}"),
                (Ok(()), None) => match self.guest_shares(&job, &cluster) {
                    Ok(shares) => {
                        self.let_in(&job, shares, now, out);
                        continue;
                    }
                    Err(waits) => {
                        if waits.holds_back {
                            pass.crowded.insert(cluster, job.id.clone());
                        }
                        waits.reason
                    }
                },
            };
            pass.reasons.insert(job.id.clone(), Arc::from(reason));
        }
    }

    /// In strict order a job that cannot start holds back the later jobs of its pool and, when it
    /// names none, of every pool.
    fn held_back(&self, job: &Job, pass: &Pass) -> Option<Arc<str>> {
        if self.policy != Policy::Fifo {
            return None;
        }
        let pools = &job.request.pools;
        let ahead = pass.held_back.get(&None).or_else(|| match pools.is_empty() {
            false => pools.iter().find_map(|pool| pass.held_back.get(&Some(pool.clone()))),
            true => pass.held_back.values().next(),
        })?;
        Some(Arc::from(format!("waits behind {}", self.name_for(ahead, job))))
    }

    /// Other projects' jobs are nobody's business.
    fn name_for<'a>(&self, ahead: &'a JobId, job: &Job) -> &'a str {
        let same = self.jobs.get(ahead).is_some_and(|other| other.project == job.project);
        if same { ahead.as_str() } else { "an earlier job" }
    }

    fn try_gang(
        &mut self,
        job: &Arc<Job>,
        need: Need,
        end_ms: u64,
        pass: &mut Pass,
        now: Timestamp,
        out: &mut Effects,
    ) -> Result<(), Arc<str>> {
        let known = pass.failed.get(&need);
        if let Some(failed) = known.filter(|f| f.until_ms.is_none_or(|until| until <= end_ms)) {
            return Err(failed.reason.clone());
        }
        let mut until_ms = None;
        let failed = match self.start_if_it_fits(job, &|_| false, pass.due.is_empty(), now, out) {
            Ok(()) if pass.due.is_empty() => return Ok(()),
            Err(Unplaced::Misfit(why)) => {
                let reason: Arc<str> = Arc::from(why);
                self.misfits.insert(need, &job.request, reason.clone());
                return Err(reason);
            }
            Err(Unplaced::Lease(why)) => why,
            // It would fit if nothing were kept for those ahead of it.
            Ok(()) => {
                self.serve_those_due(pass, now);
                let is_kept = |slot: &Slot| pass.is_kept(slot, &job.request, end_ms);
                match self.start_if_it_fits(job, &is_kept, true, now, out) {
                    Ok(()) => return Ok(()),
                    Err(Unplaced::Misfit(why) | Unplaced::Lease(why)) => {
                        until_ms = Some(end_ms);
                        match pass.kept.first() {
                            Some(ahead) => format!("waits behind {}", self.name_for(ahead, job)),
                            None => why,
                        }
                    }
                }
            }
        };
        let reason: Arc<str> = Arc::from(failed);
        pass.failed.insert(need, Failed { until_ms, reason: reason.clone() });
        Err(reason)
    }

    fn need(&self, job: &Job, shape: ShapeId) -> Need {
        let limited = self.projects.get(&job.project).is_some_and(|p| !p.quotas.is_empty());
        (shape, limited.then(|| job.project.clone()))
    }

    /// For the invariants: what is remembered as finding no place, and would find one.
    pub(super) fn forgotten_fits(&self) -> Vec<String> {
        if !self.capacity.is_fresh() || !self.holdings.is_fresh() {
            return Vec::new();
        }
        let firsts = self.queue.lines().filter_map(|(_, line)| Some((line.first()?, line.shape)));
        let known = firsts.filter_map(|(job, shape)| {
            let reason = self.misfits.reason(&self.need(job, shape))?;
            let in_pool = |pool: &str| self.room_in_pool(&job.project, pool);
            let room = Room { gpus_in_pool: &in_pool, is_kept: &|_| false };
            let found = fit(&job.request, &self.capacity, &room).ok()?;
            let count = found.nodes.len();
            Some(format!("misfits: {} fits on {count} nodes, but: {reason}", job.id))
        });
        known.collect()
    }

    /// Looks for the nodes of a gang and, if it is to, starts it there.
    fn start_if_it_fits(
        &mut self,
        job: &Arc<Job>,
        is_kept: &dyn Fn(&Slot) -> bool,
        start: bool,
        now: Timestamp,
        out: &mut Effects,
    ) -> Result<(), Unplaced> {
        let request = &job.request;
        let in_pool = |pool: &str| self.room_in_pool(&job.project, pool);
        let room = Room { gpus_in_pool: &in_pool, is_kept };
        let found = match fit(request, &self.capacity, &room) {
            Ok(found) if start => found,
            Ok(_) => return Ok(()),
            Err(_) if !self.explaining => return Err(Unplaced::Misfit(String::new())),
            Err(shortage) => {
                let why = waits_for(request, &shortage, &self.capacity, &room);
                return Err(Unplaced::Misfit(why));
            }
        };
        let mut leases = self.leases();
        let shares =
            shares(request, &found, &self.capacity, &mut leases).map_err(Unplaced::Lease)?;
        self.next_ports = leases.next;
        self.allocate(job, shares, now, out);
        self.refresh_capacity();
        self.refresh_holdings();
        Ok(())
    }

    /// The job waits for others to end: what that means for those behind it. Whether the next one of
    /// its line has to be looked at.
    fn block(&self, job: &Arc<Job>, pass: &mut Pass) -> bool {
        match self.policy {
            Policy::Fifo => {
                let pools = job.request.pools.iter().cloned().map(Some);
                let anywhere = job.request.pools.is_empty().then_some(None);
                let held_back = pools.chain(anywhere).map(|pool| (pool, job.id.clone()));
                pass.held_back.extend(held_back);
            }
            Policy::Backfill | Policy::Shortest => {}
            Policy::Default => {
                if !self.has_room_for(job) {
                    return false;
                }
                pass.blocked.push(job.clone());
                if self.is_due(job) && pass.due.len() < RESERVATION_LIMIT {
                    pass.due.push(job.clone());
                    return true;
                }
            }
        }
        false
    }

    /// Keeps nodes for the gangs that are due, by what is known now about when others end.
    fn serve_those_due(&mut self, pass: &mut Pass, now: Timestamp) {
        if !pass.has_served_all() {
            self.refresh_estimates();
        }
        self.keep_for_those_due(pass, now);
    }

    /// Keeps nodes for the gangs that are due, in this pass. What they are promised is remembered by
    /// whoever makes the pass.
    pub(super) fn keep_for_those_due(&self, pass: &mut Pass, now: Timestamp) {
        while let Some(job) = pass.due.get(pass.served).cloned() {
            let place = pass.served;
            pass.served += 1;
            let is_kept = |slot: SlotIndex| pass.kept_slots.contains_key(&slot);
            if let Some(reservation) = self.left_for(&job, &is_kept, now) {
                pass.keep(&job.id, place, reservation);
                continue;
            }
            let ends = pass.ends.get_or_insert_with(|| self.expected_ends(now));
            let Some(mut reservation) = self.reserve(&job, ends, &is_kept, now) else { continue };
            let Some(waiting) = self.queue.waiting(&job.id) else { continue };
            if let Some(promised) = waiting.promised_ms {
                reservation.at_ms = reservation.at_ms.min(promised);
            }
            pass.promised.push((job.id.clone(), reservation.at_ms));
            pass.keep(&job.id, place, reservation);
        }
    }

    fn estimate_lines(&mut self) {
        let unknown = self.queue.lines().filter(|(_, line)| line.estimate.is_none());
        let estimates: Vec<_> =
            unknown.filter_map(|(id, line)| Some((id, self.estimate(line.first()?)))).collect();
        for (id, estimate) in estimates {
            self.queue.set_estimate(id, estimate);
        }
    }

    /// The gangs that the next pass would send back for a job that does not fit, with these jobs ahead of
    /// it: that pass in a rehearsal, of the same checks. `None` when it would send back none for it.
    pub(super) fn would_make_room(
        &self,
        job: &Arc<Job>,
        ahead: &[Standing],
        now: Timestamp,
    ) -> Option<Vec<Leaver>> {
        // In the other orders nobody is sent back.
        if self.policy != Policy::Default {
            return None;
        }
        let mut pass = Pass::default();
        // Whose next member is not looked at.
        let mut settled: BTreeSet<LineId> = BTreeSet::new();
        if ahead.len() > REHEARSED {
            return None;
        }
        for candidate in ahead.iter().map(|standing| &standing.job).chain([job]) {
            if pass.blocked.len() >= CLAIMANT_LIMIT {
                return None;
            }
            let Some(line) = self.queue.line_of(&candidate.id) else { continue };
            let not_yet = || {
                self.eligible(candidate, now).is_err()
                    || self.runs_unknown(&candidate.gang).is_some()
            };
            if settled.contains(&line) || not_yet() {
                continue;
            }
            let goes_on = self.out_of_reach(candidate).is_none()
                && (self.fits_beside(candidate, &mut pass, now)
                    || self.block(candidate, &mut pass));
            if !goes_on {
                settled.insert(line);
            }
        }
        let claimed = self.first_claim(&mut pass, &self.ranking(now), now)?;
        (claimed.claimant == job.id).then_some(claimed.leavers)
    }

    /// Whether a job has its nodes now beside what the pass keeps for those that are due.
    fn fits_beside(&self, job: &Job, pass: &mut Pass, now: Timestamp) -> bool {
        let request = &job.request;
        let in_pool = |pool: &str| self.room_in_pool(&job.project, pool);
        let room = Room { gpus_in_pool: &in_pool, is_kept: &|_| false };
        if fit(request, &self.capacity, &room).is_err() {
            return false;
        }
        self.keep_for_those_due(pass, now);
        let ms = self.estimate(job).map_or(u64::MAX, |estimate| estimate.ms);
        let end_ms = now.boot_ms.saturating_add(ms);
        let is_kept = |slot: &Slot| pass.is_kept(slot, request, end_ms);
        let room = Room { gpus_in_pool: &in_pool, is_kept: &is_kept };
        fit(request, &self.capacity, &room).is_ok()
    }

    /// Why a job could not start even if everything were free: the fleet does not have such nodes, or
    /// its project may not use so much of any pool that has. It waits for no other job to end.
    pub(super) fn out_of_reach(&self, job: &Job) -> Option<String> {
        out_of_reach(&job.request, &self.capacity).or_else(|| self.beyond_quota(job))
    }

    /// Why a job is too large for what its project may use, alone, of the pools that would do.
    fn beyond_quota(&self, job: &Job) -> Option<String> {
        let request = &job.request;
        let gpus = gpus_of(job);
        let is_beyond = |quota: &Quota| quota.maximum.is_some_and(|maximum| maximum < gpus);
        self.projects.get(&job.project).filter(|p| p.quotas.values().any(is_beyond))?;
        let pools = would_do(request, &self.capacity).into_iter();
        let pools = pools.filter(|(_, nodes)| *nodes >= request.nnodes as usize);
        let mut limits = Vec::new();
        for (pool, _) in pools {
            match self.quota(&job.project, pool).and_then(|quota| quota.maximum) {
                Some(maximum) if maximum < gpus => {
                    limits.push(format!("{maximum} in pool {pool}"));
                }
                Some(_) | None => return None,
            }
        }
        if limits.is_empty() {
            return None;
        }
        let least = if request.nnodes_max > request.nnodes { "at least " } else { "" };
        Some(format!(
            "asks for {least}{gpus} GPUs, and its project may use {}: a larger quota or fewer GPUs \
             would help",
            limits.join(", ")
        ))
    }

    /// Whether its project may have the job's GPUs in some pool that would do.
    fn has_room_for(&self, job: &Job) -> bool {
        let gpus = u64::from(job.request.nnodes) * u64::from(job.request.gpus_per_node);
        let mut pools = self.capacity.pools().filter(|pool| job.request.may_use(pool));
        pools.any(|pool| u64::from(self.room_in_pool(&job.project, pool)) >= gpus)
    }

    /// Tells readers why each job waits, where that has changed. Nothing of it is stored.
    fn say_why(&mut self, mut pass: Pass, now: Timestamp, out: &mut Effects) {
        if !self.explaining {
            return;
        }
        for job in self.queue.aside() {
            if let Err(not_yet) = self.eligible(job, now) {
                pass.reasons.insert(job.id.clone(), Arc::from(not_yet.to_string()));
            }
        }
        for (job, reason) in &pass.reasons {
            if self.queue.tell(job, reason) {
                out.saw(Seen::Why { job: job.clone(), reason: reason.clone() });
            }
        }
        for (line, reason) in pass.line_reasons {
            let knows = |job: &JobId| pass.reasons.contains_key(job);
            for job in self.queue.tell_line(line, &reason, knows) {
                out.saw(Seen::Why { job, reason: reason.clone() });
            }
        }
    }

    /// The allocation, the attempt and the job's new state: one transaction, before anybody is
    /// told.
    pub(super) fn allocate(
        &mut self,
        job: &Job,
        shares: Vec<Share>,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let rank_zero = shares.iter().find(|share| share.member == MemberId::Rank(0));
        let head = shares.iter().find(|share| share.member == MemberId::Head).or(rank_zero);
        let Some(head_address) = head.map(|share| share.address) else { return };
        let mut ranks: Vec<&Share> =
            shares.iter().filter(|share| share.member != MemberId::Head).collect();
        ranks.sort_by_key(|share| share.member);
        let addresses = Addresses {
            ranks: ranks.iter().map(|share| share.address).collect(),
            head: head_address,
        };
        let previous = self.gangs.get(&job.gang).map(|gang| gang.epoch);
        let epoch = match previous {
            Some(epoch) if epoch.era == self.era => Epoch { era: self.era, n: epoch.n + 1 },
            _ => Epoch { era: self.era, n: 1 },
        };
        let number = job.attempts + 1;
        let members = shares.into_iter().map(|share| {
            let member = Member {
                node: share.node,
                gpus: share.gpus,
                cpus_milli: share.cpus_milli,
                memory_bytes: share.memory_bytes,
                exclusive: share.exclusive,
                ports: share.ports,
                phase: Phase::Assigned,
                kept: false,
            };
            (share.member, member)
        });
        let gang = Gang {
            id: job.gang.clone(),
            job: job.id.clone(),
            attempt: number,
            epoch,
            state: GangState::Starting,
            since: now,
            members: members.collect(),
            addresses,
            keeps: false,
        };
        let attempt = Attempt {
            job: job.id.clone(),
            number,
            gang: gang.id.clone(),
            epoch,
            started: now,
            ended: None,
            outcome: None,
            verdict: None,
            ray: None,
            guest: None,
        };
        let nodes = gang.nodes();
        let mut started = job.clone();
        started.attempts = number;
        started.outcome = None;
        started.recovery.rest = None;
        self.put(Write::Job(Arc::new(started)), out);
        self.put(Write::Attempt(Arc::new(attempt)), out);
        self.put(Write::Gang(Arc::new(gang)), out);
        let reason = format!("starting on {}", self.node_names(&nodes));
        self.set_job_state(&job.id, JobState::Starting, "gangline", reason, now, out);
        self.warn_of_versions(&job.id, &nodes, now, out);
        self.touch_nodes(&nodes, out);
    }

    pub(super) fn node_names(&self, nodes: &[NodeId]) -> String {
        let names: Vec<&str> = nodes
            .iter()
            .map(|id| self.nodes.get(id).map_or(id.as_str(), |node| node.name.as_str()))
            .collect();
        names.join(", ")
    }

    /// Blocks that must not be leased although no gang has them.
    pub(super) fn leases(&self) -> Leases {
        let mut leases = Leases { next: self.next_ports.clone(), ..Leases::default() };
        for quarantine in &self.quarantine {
            leases.taken.entry(quarantine.network.clone()).or_default().push(quarantine.block);
        }
        leases
    }
}
