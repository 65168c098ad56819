//! Queue to placement to allocation: one pass over the waiting jobs, all or nothing for each.
//!
//! What a pass decides is what `explain` shows: the reasons are made here, of the same checks.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::ids::{Epoch, JobId, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Seen, Write};
use super::forecast::{Ends, Reservation};
use super::gang::{Gang, GangState, Member, Phase};
use super::job::{Addresses, Attempt, Job, JobRequest, JobState};
use super::placement::{Leases, Room, Share, Shortage, fit, out_of_reach, shares, waits_for};
use super::policy::Policy;
use super::topology::Topology;

/// Waiting gangs for which nodes are kept at a time.
pub const RESERVATION_LIMIT: usize = 16;

/// What a pass has found out so far. Capacity only shrinks within it, so that what did not fit once
/// does not fit later either.
#[derive(Default)]
pub(super) struct Pass {
    /// Jobs that do not fit now, in the order of the queue, and the nodes kept for the first ones.
    pub blocked: Vec<Arc<Job>>,
    pub kept: Vec<(JobId, Reservation)>,
    /// By node: GPUs that are kept on it, and from when they are needed.
    kept_nodes: BTreeMap<NodeId, Vec<Kept>>,
    /// For strict order: who holds back a pool, or all of them.
    held_back: BTreeMap<Option<String>, JobId>,
    /// Guests wait for a part of their cluster only, in order.
    crowded: BTreeMap<JobId, JobId>,
    reasons: BTreeMap<JobId, Arc<str>>,
    ends: OnceCell<Ends>,
}

#[derive(Debug, Clone)]
struct Kept {
    gpus: usize,
    at_ms: u64,
}

impl Pass {
    pub(super) fn keep(&mut self, job: &JobId, reservation: Reservation) {
        for node in &reservation.nodes {
            let gpus = reservation.gpus as usize;
            let kept = Kept { gpus, at_ms: reservation.at_ms };
            self.kept_nodes.entry(node.clone()).or_default().push(kept);
        }
        self.kept.push((job.clone(), reservation));
    }

    /// Whether a gang that takes `gpus` of a node until `end_ms` would be in the way of one for which
    /// the node is kept.
    fn is_kept(&self, core: &Core, node: &NodeId, gpus: usize, end_ms: u64) -> bool {
        let Some(kept) = self.kept_nodes.get(node) else { return false };
        let free = core.capacity.slot(node).map_or(0, |slot| slot.free_gpus.len());
        let needed: usize =
            kept.iter().filter(|kept| end_ms > kept.at_ms).map(|kept| kept.gpus.max(1)).sum();
        needed > 0 && free < needed + gpus.max(1)
    }
}

/// What placement depends on: jobs with the same are alike to it.
type Shape<'a> = (
    (u32, u32, u32, Option<u32>, Option<u64>, Option<bool>, Option<Topology>),
    &'a [String],
    &'a BTreeMap<String, String>,
    &'a [String],
    &'a [String],
);

fn shape(request: &JobRequest) -> Shape<'_> {
    (
        (
            request.nnodes,
            request.nnodes_max,
            request.gpus_per_node,
            request.cpus_milli,
            request.memory_bytes,
            request.exclusive,
            request.topology,
        ),
        &request.pools,
        &request.node_labels,
        &request.gpu_models,
        &request.exclude_nodes,
    )
}

/// What did not fit: its project matters where that has a maximum.
type Failed<'a> = BTreeMap<(Shape<'a>, Option<&'a str>), (u64, Arc<str>)>;

impl Core {
    /// One pass over the queue.
    pub(super) fn schedule(&mut self, now: Timestamp, out: &mut Effects) {
        self.refresh_capacity();
        self.refresh_holdings();
        self.count_overtaking(now);
        if self.queue.is_empty() {
            return;
        }
        let queue = self.looked_at(now);
        let mut pass = Pass::default();
        let mut failed: Failed<'_> = BTreeMap::new();
        let mut unreachable: BTreeMap<Shape<'_>, Option<Arc<str>>> = BTreeMap::new();
        for job in &queue {
            // Such a job holds back nobody.
            if let Err(not_yet) = self.eligible(job, now) {
                pass.reasons.insert(job.id.clone(), Arc::from(not_yet.to_string()));
                continue;
            }
            if let Some(cluster) = job.cluster.clone() {
                self.try_guest(job, cluster, &mut pass, now, out);
                continue;
            }
            if let Some(reason) = self.runs_unknown(&job.gang) {
                pass.reasons.insert(job.id.clone(), Arc::from(reason));
                continue;
            }
            if let Some(reason) = self.held_back(job, &pass) {
                pass.reasons.insert(job.id.clone(), reason);
                continue;
            }
            // Such a job holds back nobody: a pool with a wrong letter must not stop the fleet.
            let missing = unreachable
                .entry(shape(&job.request))
                .or_insert_with(|| out_of_reach(&job.request, &self.capacity).map(Arc::from));
            if let Some(reason) = missing {
                pass.reasons.insert(job.id.clone(), reason.clone());
                continue;
            }
            let limited = self.projects.get(&job.project).is_some_and(|p| !p.quotas.is_empty());
            let key = (shape(&job.request), limited.then_some(job.project.as_str()));
            // While no node is kept for anybody it does not matter how long the job takes.
            let end_ms = match pass.kept_nodes.is_empty() {
                true => 0,
                false => self.end_if_started(job, now),
            };
            let known = failed.get(&key).filter(|(end, _)| *end <= end_ms);
            let reason = match known {
                Some((_, reason)) => reason.clone(),
                None => match self.try_gang(job, &pass, end_ms, now, out) {
                    Ok(()) => continue,
                    Err(reason) => {
                        let reason: Arc<str> = Arc::from(reason);
                        failed.insert(key, (end_ms, reason.clone()));
                        reason
                    }
                },
            };
            pass.reasons.insert(job.id.clone(), reason);
            self.block(job, &mut pass, now);
        }
        self.preempt(&pass, now, out);
        self.say_why(pass, out);
    }

    fn try_guest(
        &mut self,
        job: &Arc<Job>,
        cluster: JobId,
        pass: &mut Pass,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let reason = match pass.crowded.get(&cluster) {
            Some(ahead) => format!("waits behind {ahead}"),
            None => match self.guest_shares(job, &cluster) {
                Ok(shares) => return self.let_in(job, shares, now, out),
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

    /// Until when a job would run that starts now, as far as anybody knows.
    fn end_if_started(&self, job: &Job, now: Timestamp) -> u64 {
        let ms = self.estimate(job).map_or(u64::MAX, |estimate| estimate.ms);
        now.boot_ms.saturating_add(ms)
    }

    fn try_gang(
        &mut self,
        job: &Arc<Job>,
        pass: &Pass,
        end_ms: u64,
        now: Timestamp,
        out: &mut Effects,
    ) -> Result<(), String> {
        let request = &job.request;
        let gpus = request.gpus_per_node as usize;
        let is_kept = |node: &NodeId| pass.is_kept(self, node, gpus, end_ms);
        let in_pool = |pool: &str| self.room_in_pool(&job.project, pool);
        let room = Room { gpus_in_pool: &in_pool, is_kept: &is_kept };
        let found = match fit(request, &self.capacity, &room) {
            Ok(found) => found,
            Err(shortage) => return Err(self.why_not(job, &shortage, &room, pass)),
        };
        let mut leases = self.leases();
        let shares = shares(request, &found, &self.capacity, &mut leases)?;
        self.next_ports = leases.next;
        self.allocate(job, shares, now, out);
        self.refresh_capacity();
        self.refresh_holdings();
        Ok(())
    }

    fn why_not(&self, job: &Job, shortage: &Shortage, room: &Room<'_>, pass: &Pass) -> String {
        if !self.explaining {
            return String::new();
        }
        let free = Room { gpus_in_pool: room.gpus_in_pool, is_kept: &|_| false };
        let keeper = || {
            let (ahead, _) = pass.kept.first()?;
            fit(&job.request, &self.capacity, &free).is_ok().then(|| self.name_for(ahead, job))
        };
        if let Some(ahead) = keeper() {
            return format!("waits behind {ahead}");
        }
        waits_for(&job.request, shortage, &self.capacity, room)
    }

    /// The job waits for others to end: what that means for those behind it.
    fn block(&mut self, job: &Arc<Job>, pass: &mut Pass, now: Timestamp) {
        match self.policy {
            Policy::Fifo => {
                let pools = job.request.pools.iter().cloned().map(Some);
                let anywhere = job.request.pools.is_empty().then_some(None);
                let held_back = pools.chain(anywhere).map(|pool| (pool, job.id.clone()));
                pass.held_back.extend(held_back);
            }
            Policy::Backfill | Policy::Shortest => {}
            Policy::Default => {
                let may_ever = self.has_room_for(job);
                if may_ever && self.is_due(job) && pass.kept.len() < RESERVATION_LIMIT {
                    let ends = pass.ends.get_or_init(|| self.expected_ends(now));
                    let is_kept = |node: &NodeId| pass.kept_nodes.contains_key(node);
                    if let Some(mut reservation) = self.reserve(job, ends, &is_kept, now) {
                        let promised = self.promised.entry(job.id.clone());
                        let promised = promised.or_insert(reservation.at_ms);
                        *promised = reservation.at_ms.min(*promised);
                        reservation.at_ms = *promised;
                        pass.keep(&job.id, reservation);
                    }
                }
                if may_ever {
                    pass.blocked.push(job.clone());
                }
            }
        }
    }

    /// Whether its project may have the job's GPUs in some pool that would do.
    fn has_room_for(&self, job: &Job) -> bool {
        let gpus = u64::from(job.request.nnodes) * u64::from(job.request.gpus_per_node);
        let pools = self.capacity.pools();
        let mut pools = pools.into_iter().filter(|pool| job.request.may_use(pool));
        pools.any(|pool| u64::from(self.room_in_pool(&job.project, pool)) >= gpus)
    }

    /// Tells readers why each job waits, where that has changed. Nothing of it is stored.
    fn say_why(&mut self, pass: Pass, out: &mut Effects) {
        if !self.explaining {
            return;
        }
        for (job, reason) in pass.reasons {
            if self.why.get(&job) != Some(&reason) {
                out.saw(Seen::Why { job: job.clone(), reason: reason.clone() });
                self.why.insert(job, reason);
            }
        }
    }

    /// The allocation, the attempt and the job's new state: one transaction, before anybody is
    /// told.
    fn allocate(&mut self, job: &Job, shares: Vec<Share>, now: Timestamp, out: &mut Effects) {
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
        };
        let attempt = Attempt {
            job: job.id.clone(),
            number,
            gang: gang.id.clone(),
            epoch,
            started: now,
            ended: None,
            outcome: None,
            ray: None,
            guest: None,
        };
        let nodes = gang.nodes();
        let mut started = job.clone();
        started.attempts = number;
        started.outcome = None;
        self.put(Write::Job(Arc::new(started)), out);
        self.put(Write::Attempt(Arc::new(attempt)), out);
        self.put(Write::Gang(Arc::new(gang)), out);
        let reason = format!("starting on {}", self.node_names(&nodes));
        self.set_job_state(&job.id, JobState::Starting, "gangline", reason, now, out);
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
    fn leases(&self) -> Leases {
        let mut leases = Leases { next: self.next_ports.clone(), ..Leases::default() };
        for quarantine in &self.quarantine {
            leases.taken.entry(quarantine.network.clone()).or_default().push(quarantine.block);
        }
        leases
    }
}
