//! Queue to placement to allocation: by priority, then first in, first out; all or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_common::ids::{Epoch, GpuId, JobId, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::gang::{Gang, GangState, Member, Phase};
use super::job::{Addresses, Attempt, Job, JobRequest, JobState};
use super::node::{Inventory, Node, Reachability};
use super::placement::{Candidate, Leases, Share, out_of_reach, place};

impl Core {
    /// One pass over the queue, in its order. A job that cannot start holds back the
    /// later jobs of its pool (and, when it names none, of every pool), so nobody starves.
    pub(super) fn schedule(&mut self, now: Timestamp, out: &mut Effects) {
        let mut blocked: BTreeMap<Option<String>, JobId> = BTreeMap::new();
        // Guests wait for a part of their cluster only, in order.
        let mut crowded: BTreeMap<JobId, JobId> = BTreeMap::new();
        let queue: Vec<JobId> = self.queue.values().cloned().collect();
        let fleet = if queue.is_empty() { Vec::new() } else { self.possible_nodes() };
        let mut unreachable = BTreeMap::new();
        for id in queue {
            let Some(job) = self.jobs.get(&id).cloned() else { continue };
            if let Some(cluster) = job.cluster.clone() {
                match crowded.get(&cluster) {
                    Some(ahead) => self.say_why(&job, format!("waits behind {ahead}"), out),
                    None => match self.guest_shares(&job, &cluster) {
                        Ok(shares) => self.let_in(&job, shares, now, out),
                        Err(waits) => {
                            self.say_why(&job, waits.reason, out);
                            if waits.holds_back {
                                crowded.insert(cluster, id);
                            }
                        }
                    },
                }
                continue;
            }
            let ahead = blocked.get(&None).or_else(|| match &job.request.pool {
                Some(_) => blocked.get(&job.request.pool),
                None => blocked.values().next(),
            });
            if let Some(ahead) = ahead {
                // Other projects' jobs are nobody's business.
                let same = self.jobs.get(ahead).is_some_and(|other| other.project == job.project);
                let ahead = if same { ahead.as_str() } else { "an earlier job" };
                self.say_why(&job, format!("waits behind {ahead}"), out);
                continue;
            }
            // Such a job holds back nobody: a pool with a wrong letter must not stop the fleet.
            // Many jobs ask for the same, and the queue may be long.
            let missing = unreachable
                .entry(shape(&job.request))
                .or_insert_with(|| out_of_reach(&job.request, &fleet));
            if let Some(reason) = missing {
                self.say_why(&job, reason.clone(), out);
                continue;
            }
            let candidates = self.candidates();
            let mut leases = self.leases();
            match place(&job.request, &candidates, &mut leases) {
                Ok(shares) => {
                    self.next_ports = leases.next;
                    self.allocate(&job, shares, now, out);
                }
                Err(reason) => {
                    self.say_why(&job, reason, out);
                    blocked.insert(job.request.pool.clone(), id);
                }
            }
        }
    }

    /// The nodes that may come back, or are there.
    fn possible_nodes(&self) -> Vec<Candidate> {
        let mut nodes = self.candidates();
        nodes.retain(|node| self.nodes.get(&node.node).is_some_and(|node| !node.revoked));
        nodes
    }

    fn say_why(&mut self, job: &Job, reason: String, out: &mut Effects) {
        if job.reason != reason {
            let mut job = job.clone();
            job.reason = reason;
            self.put(Write::Job(Arc::new(job)), out);
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

    /// Every node as the solver sees it, in order of joining: a GPU that two nodes report is
    /// offered by the first of them that is not lost.
    fn candidates(&self) -> Vec<Candidate> {
        let mut nodes: Vec<&Arc<Node>> = self.nodes.values().collect();
        nodes.sort_by_key(|node| (node.joined.wall_ms, node.id.clone()));
        let mut claimed: BTreeSet<GpuId> = BTreeSet::new();
        nodes.into_iter().filter_map(|node| self.candidate(node, &mut claimed)).collect()
    }

    fn candidate(&self, node: &Node, claimed: &mut BTreeSet<GpuId>) -> Option<Candidate> {
        let inventory = node.inventory.as_ref()?;
        let mut used_gpus: BTreeSet<&GpuId> = BTreeSet::new();
        let (mut cpus, mut memory, mut heads) = (0u32, 0u64, 0u32);
        for gang in self.on_node.get(&node.id).into_iter().flatten() {
            let Some(gang) = self.gangs.get(gang) else { continue };
            for (id, member) in gang.members_on(&node.id) {
                if member.phase.holds_resources() {
                    used_gpus.extend(&member.gpus);
                    cpus = cpus.saturating_add(member.cpus_milli);
                    memory = memory.saturating_add(member.memory_bytes);
                    heads += u32::from(id == MemberId::Head);
                }
            }
        }
        let mut free_gpus = Vec::new();
        for gpu in &inventory.gpus {
            let mine = node.reachability == Reachability::Lost || claimed.insert(gpu.uuid.clone());
            if mine && !used_gpus.contains(&gpu.uuid) {
                free_gpus.push(gpu.uuid.clone());
            }
        }
        Some(Candidate {
            node: node.id.clone(),
            name: node.name.clone(),
            closed: closed_reason(node),
            pool: inventory.pool.clone(),
            head_role: inventory.head_role,
            worker_role: inventory.worker_role,
            address: inventory.address,
            free_gpus,
            total_gpus: inventory.gpus.len() as u32,
            gpu_models: models(inventory),
            free_cpus_milli: inventory.cpus_milli.saturating_sub(cpus),
            total_cpus_milli: inventory.cpus_milli,
            free_memory_bytes: inventory.memory_bytes.saturating_sub(memory),
            total_memory_bytes: inventory.memory_bytes,
            heads,
            network: inventory.network(),
            ports: inventory.ports,
        })
    }

    /// Blocks that must not be leased: allocated ones (by network namespace) and quarantined.
    fn leases(&self) -> Leases {
        let mut leases = Leases { next: self.next_ports.clone(), ..Leases::default() };
        for (node, gangs) in &self.on_node {
            let Some(inventory) = self.nodes.get(node).and_then(|n| n.inventory.as_ref()) else {
                continue;
            };
            let taken = leases.taken.entry(inventory.network()).or_default();
            for gang in gangs.iter().filter_map(|id| self.gangs.get(id)) {
                let held = gang.members_on(node).filter(|(_, m)| m.phase.holds_resources());
                taken.extend(held.map(|(_, member)| member.ports));
            }
        }
        for quarantine in &self.quarantine {
            leases.taken.entry(quarantine.network.clone()).or_default().push(quarantine.block);
        }
        leases
    }
}

/// What [`out_of_reach`] looks at.
type Shape = (u32, u32, Option<u32>, Option<u64>, Option<String>, Vec<String>, Vec<String>);

fn shape(request: &JobRequest) -> Shape {
    (
        request.nnodes,
        request.gpus_per_node,
        request.cpus_milli,
        request.memory_bytes,
        request.pool.clone(),
        request.gpu_models.clone(),
        request.exclude_nodes.clone(),
    )
}

fn models(inventory: &Inventory) -> Vec<String> {
    let names: BTreeSet<&String> = inventory.gpus.iter().map(|gpu| &gpu.name).collect();
    names.into_iter().cloned().collect()
}

/// Why a node takes no new member, in the order in which people look.
fn closed_reason(node: &Node) -> Option<String> {
    if node.is_open() {
        return None;
    }
    Some(match (&node.reachability, &node.cordon, &node.drain) {
        _ if node.revoked => "revoked".to_owned(),
        (Reachability::Lost, _, _) => "lost".to_owned(),
        (Reachability::Suspect, _, _) => "suspect".to_owned(),
        (Reachability::Reachable, Some(cordon), _) => {
            format!("cordoned by {}: {}", cordon.by, cordon.why)
        }
        (Reachability::Reachable, None, Some(drain)) => {
            format!("drained by {}: {}", drain.by, drain.why)
        }
        (Reachability::Reachable, None, None) => "not online".to_owned(),
    })
}
