//! Ray clusters as far as agents see them: they are ready when every member runs, take entrypoints
//! through the head's agent, and spread a guest's processes over its ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_agent_core::event::Event;
use gangline_common::ids::{MemberId, MemberKey};
use gangline_core::event::{EntrypointFact, GangFacts, GuestFact};
use gangline_core::job::{Launcher, RayFacts, RayNode};

use crate::agent::{GuestOrder, GuestPlan, Plan};
use crate::process::Stage;
use crate::world::World;

/// One submitted entrypoint; its submission id makes a second submission harmless.
#[derive(Debug, Clone)]
pub struct Entry {
    ends_ms: u64,
    fact: EntrypointFact,
}

/// What runs in one Ray cluster beside its own processes.
#[derive(Debug, Default)]
pub struct Cluster {
    pub entries: BTreeMap<String, Entry>,
    /// Processes of guests: (operation, member of the cluster).
    pub guests: BTreeSet<(String, MemberId)>,
    /// When the head has seen each rank's node last; only those that have joined.
    pub seen_ms: BTreeMap<MemberId, u64>,
    /// When each raylet has reached the head last, or began to try.
    pub gcs_ms: BTreeMap<MemberId, u64>,
    /// Ranks whose nodes the head takes for dead.
    pub dead: BTreeSet<MemberId>,
}

impl Cluster {
    /// The ranks that the head shows alive.
    pub fn alive(&self) -> impl Iterator<Item = MemberId> {
        self.seen_ms.keys().filter(|member| !self.dead.contains(member)).copied()
    }
}

/// What Ray's head says of its nodes.
fn ray_facts(plan: &Plan, dead: &BTreeSet<MemberId>) -> RayFacts {
    let ranks = plan.gang.members.keys().filter(|member| **member != MemberId::Head);
    let nodes = ranks.map(|member| RayNode {
        member: *member,
        ray_node_id: member.to_string(),
        address: String::new(),
        alive: !dead.contains(member),
        state_message: String::new(),
    });
    RayFacts { nodes: nodes.collect(), ..RayFacts::default() }
}

impl World<'_> {
    /// What the agent of a head, and of members of standing clusters, does about once a second.
    pub fn watch_ray(&mut self, node: usize) {
        let Some(agent) = &self.nodes[node].agent else { return };
        let mut mine: Vec<(MemberKey, Arc<Plan>)> = Vec::new();
        for key in &agent.attached {
            let runs = self.nodes[node]
                .processes
                .get(key)
                .is_some_and(|process| process.stage == Stage::Running);
            let plan = agent.plans.get(&(key.gang.clone(), key.epoch));
            if let Some(plan) =
                plan.filter(|plan| runs && plan.job.request.launcher == Launcher::Ray)
            {
                mine.push((key.clone(), plan.clone()));
            }
        }
        for (key, plan) in mine {
            let mut news = false;
            if key.member == MemberId::Head {
                news |= self.watch_head(node, &key, &plan);
            }
            for guest in &plan.guests {
                news |= self.serve_guest(node, &key, guest);
            }
            if news {
                let (gang, epoch) = (key.gang, key.epoch);
                self.tell_agent(node, Event::GangChanged { gang, epoch });
            }
        }
    }

    /// Every member of the gang runs and reaches the head.
    fn is_ready(&self, head: usize, plan: &Plan) -> bool {
        let cluster = self.clusters.get(&(plan.gang.id.clone(), plan.gang.epoch));
        plan.gang.members.iter().all(|(member, share)| {
            let key =
                MemberKey { gang: plan.gang.id.clone(), epoch: plan.gang.epoch, member: *member };
            let Some(node) = self.nodes.iter().position(|node| node.id == share.node) else {
                return false;
            };
            let process = self.nodes[node].processes.get(&key);
            let is_dead = cluster.is_some_and(|cluster| cluster.dead.contains(member));
            let runs = process.is_some_and(|process| process.stage == Stage::Running);
            runs && !is_dead && self.reach(head, node)
        })
    }

    fn watch_head(&mut self, node: usize, key: &MemberKey, plan: &Plan) -> bool {
        let ready = self.is_ready(node, plan);
        let incarnation = (key.gang.clone(), key.epoch);
        let own = (!plan.job.is_cluster()).then(|| plan.job.operation(plan.gang.attempt));
        if let Some(operation) = &own
            && ready
        {
            self.submit_entrypoint(&incarnation, operation, &plan.job.id, &[]);
        }
        for guest in &plan.guests {
            let job = &guest.guest.job;
            match guest.order {
                GuestOrder::Run if ready => {
                    self.submit_entrypoint(&incarnation, &guest.operation, &job.id, &guest.ranks);
                }
                GuestOrder::Stop => {
                    self.stop_entrypoint(&incarnation, &guest.operation, job.request.grace_ms);
                }
                GuestOrder::Run | GuestOrder::Prepare | GuestOrder::Watch | GuestOrder::Sweep => {}
            }
        }
        let now_ms = self.now_ms;
        let cluster = self.clusters.entry(incarnation.clone()).or_default();
        let operations = own.iter().chain(plan.guests.iter().map(|guest| &guest.operation));
        let fact = |operation: &String| {
            let fact = match cluster.entries.get(operation) {
                None => EntrypointFact::Waiting,
                Some(entry) if now_ms < entry.ends_ms => EntrypointFact::Running,
                Some(entry) => entry.fact.clone(),
            };
            (operation.clone(), fact)
        };
        let facts = GangFacts {
            gang: key.gang.clone(),
            epoch: key.epoch,
            ready,
            ray: (ready || !cluster.dead.is_empty()).then(|| ray_facts(plan, &cluster.dead)),
            entrypoints: operations.map(fact).collect(),
        };
        let Some(agent) = &mut self.nodes[node].agent else { return false };
        let news = agent.facts.get(&incarnation) != Some(&facts);
        agent.facts.insert(incarnation, facts);
        news
    }

    fn submit_entrypoint(
        &mut self,
        incarnation: &(gangline_common::ids::GangId, gangline_common::ids::Epoch),
        operation: &str,
        job: &gangline_common::ids::JobId,
        ranks: &[MemberId],
    ) {
        let known = self.clusters.get(incarnation);
        if known.is_some_and(|cluster| cluster.entries.contains_key(operation)) {
            return;
        }
        self.check_entrypoint(incarnation, operation);
        // Without an end of its own it runs until it is stopped.
        let run_ms = self.users.run_ms(job).unwrap_or(u64::MAX / 4);
        let fact = match self.users.exit_code(job) {
            0 => EntrypointFact::Succeeded,
            code => EntrypointFact::Failed { cause: format!("exited with code {code}") },
        };
        self.tally.note(match ranks.is_empty() {
            true => "entrypoint started",
            false => "guest's entrypoint started",
        });
        let ends_ms = self.now_ms.saturating_add(run_ms);
        let cluster = self.clusters.entry(incarnation.clone()).or_default();
        cluster.entries.insert(operation.to_owned(), Entry { ends_ms, fact });
        cluster.guests.extend(ranks.iter().map(|rank| (operation.to_owned(), *rank)));
    }

    fn stop_entrypoint(
        &mut self,
        incarnation: &(gangline_common::ids::GangId, gangline_common::ids::Epoch),
        operation: &str,
        grace_ms: u64,
    ) {
        let wait = match self.random.one_in(10) {
            // The coordinator sweeps it in the end.
            true => grace_ms + 100_000,
            false => self.random.below(grace_ms + 1),
        };
        let now_ms = self.now_ms;
        let cluster = self.clusters.entry(incarnation.clone()).or_default();
        let fact = EntrypointFact::Failed { cause: "stopped".to_owned() };
        match cluster.entries.get_mut(operation) {
            None => {
                cluster.entries.insert(operation.to_owned(), Entry { ends_ms: now_ms, fact });
            }
            Some(entry) if now_ms < entry.ends_ms && entry.fact != fact => {
                *entry = Entry { ends_ms: entry.ends_ms.min(now_ms + wait), fact };
            }
            Some(_) => {}
        }
    }

    /// What a member does for a guest, apart from its entrypoint. True when there is news.
    fn serve_guest(&mut self, node: usize, key: &MemberKey, guest: &GuestPlan) -> bool {
        let has_share = guest.ranks.contains(&key.member);
        let said = self.nodes[node]
            .agent
            .as_ref()
            .and_then(|agent| agent.guests.get(key)?.get(&guest.operation));
        let fact = match guest.order {
            GuestOrder::Prepare if has_share && said.is_none() => {
                match self.random.per_mille(20) && !self.is_healing {
                    true => {
                        self.tally.note("fault: guest cannot be prepared");
                        GuestFact::Failed { reason: "no space".to_owned() }
                    }
                    false => GuestFact::Prepared,
                }
            }
            GuestOrder::Sweep if !matches!(said, Some(GuestFact::Swept { .. })) => {
                let incarnation = (key.gang.clone(), key.epoch);
                let now_ms = self.now_ms;
                let cluster = self.clusters.entry(incarnation).or_default();
                if cluster.guests.remove(&(guest.operation.clone(), key.member)) {
                    self.tally.note("guest swept from a member");
                }
                if let Some(entry) = cluster.entries.get_mut(&guest.operation) {
                    entry.ends_ms = entry.ends_ms.min(now_ms);
                }
                GuestFact::Swept { log_bytes: has_share.then_some(7) }
            }
            GuestOrder::Prepare
            | GuestOrder::Run
            | GuestOrder::Watch
            | GuestOrder::Stop
            | GuestOrder::Sweep => return false,
        };
        let Some(agent) = &mut self.nodes[node].agent else { return false };
        agent.guests.entry(key.clone()).or_default().insert(guest.operation.clone(), fact);
        true
    }

    /// What a member ran for guests goes with it.
    pub fn guests_gone(&mut self, key: &MemberKey) {
        let incarnation = (key.gang.clone(), key.epoch);
        if let Some(cluster) = self.clusters.get_mut(&incarnation) {
            cluster.guests.retain(|(_, member)| *member != key.member);
        }
    }
}
