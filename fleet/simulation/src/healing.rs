//! After the faults: everything is mended, and what must then happen in time is demanded (I18 to
//! I21).

use std::collections::BTreeMap;

use gangline_common::ids::{JobId, MemberKey};
use gangline_core::gang::{GangState, Phase};
use gangline_core::job::{JobKind, JobState};
use gangline_core::maintenance::Maintenance;
use gangline_core::node::Node;
use gangline_core::projects::ProjectChange;

use crate::agent::Contact;
use crate::node::{DEFAULT, SPARE};
use crate::process::Stage;
use crate::world::{Happening, World};

/// Every agent is connected and holds what is desired within this.
const CONNECTED_MS: u64 = 60_000;
/// Jobs run for a minute at most, a few at a time: after this everything that could run has run.
const DRAINED_MS: u64 = 1_500_000;
/// The end of the last process, of its logs and files.
const QUIET_MS: u64 = 120_000;

impl World<'_> {
    pub fn heal(&mut self) -> Result<(), String> {
        self.is_healing = true;
        self.mend();
        self.until(CONNECTED_MS, Self::unconnected)?;
        self.commit();
        self.check_deeply();
        self.operators_tidy_up();
        self.until(DRAINED_MS, Self::unfinished)?;
        // A node may have come back after its operator had looked.
        self.end_unknown();
        self.until(QUIET_MS, Self::left_behind)?;
        self.commit();
        self.check_deeply();
        self.broken.take().map_or(Ok(()), Err)
    }

    fn mend(&mut self) {
        self.weather.coordinator_away_until_ms = 0;
        self.clock.set_wall_off(0);
        self.forget_hits();
        for node in 0..self.nodes.len() {
            self.heal_link(node);
            let now_ms = self.now_ms;
            let sim = &mut self.nodes[node];
            (sim.frozen_until_ms, sim.full_until_ms) = (0, 0);
            (sim.off_until_ms, sim.agent_away_until_ms) = (0, 0);
            sim.strangers = 0;
            let mut killed = Vec::new();
            for (key, process) in &mut sim.processes {
                if process.stuck_until_ms > now_ms {
                    process.stuck_until_ms = now_ms;
                    if process.stage == Stage::Sweeping {
                        process.due_ms = Some(now_ms + 1);
                        killed.push(key.clone());
                    }
                }
            }
            for key in killed {
                self.after(1, Happening::Process { node, key, due_ms: now_ms + 1 });
            }
            self.go_on(node);
            self.agent_starts(node);
        }
    }

    fn forget_hits(&mut self) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.hit = None;
        }
        for sim in &mut self.nodes {
            if let Some(agent) = &mut sim.agent {
                agent.hit = None;
            }
        }
    }

    /// Goes on until `missing` finds nothing any more, at most for so long.
    fn until(
        &mut self,
        bound_ms: u64,
        missing: impl Fn(&Self) -> Option<String>,
    ) -> Result<(), String> {
        let end = self.now_ms + bound_ms;
        loop {
            let next = self.now_ms + 1_000;
            while self.now_ms < next {
                self.step()?;
            }
            match missing(self) {
                None => return Ok(()),
                Some(what) if self.now_ms >= end => {
                    return Err(format!("{bound_ms} ms after the last fault: {what}"));
                }
                Some(_) => {}
            }
        }
    }

    /// I18.
    fn unconnected(&self) -> Option<String> {
        let Some(coordinator) = &self.coordinator else {
            return Some("I18: no coordinator runs".to_owned());
        };
        for sim in &self.nodes {
            let Some(agent) = &sim.agent else {
                return Some(format!("I18: no agent runs on {}", sim.name));
            };
            if !matches!(agent.contact, Contact::Connected { .. }) {
                return Some(format!("I18: {} is not connected", sim.name));
            }
            let node = coordinator.core.nodes().find(|node| node.id == sim.id);
            if node.is_none_or(|node| node.generation != agent.core.held()) {
                return Some(format!("I18: {} does not hold what is desired", sim.name));
            }
        }
        None
    }

    /// Nodes are taken back, and what would never end is stopped.
    fn operators_tidy_up(&mut self) {
        for node in 0..self.nodes.len() {
            self.maintain(node, Maintenance::Resume);
        }
        for project in ["p1", "p2"] {
            let quotas = [DEFAULT, SPARE].map(|pool| (pool.to_owned(), None)).into();
            self.change_project(project, ProjectChange { quotas, ..ProjectChange::default() });
        }
        let Some(coordinator) = &self.coordinator else { return };
        let wall_ms = self.clock.at(self.now_ms).wall_ms;
        let endless = |job: &gangline_core::job::Job| {
            let cluster = matches!(job.request.kind, JobKind::Cluster { .. });
            let request = &job.request;
            let workers = coordinator.core.nodes().filter(|node| {
                let pool = node.pool().unwrap_or_default();
                let inventory = node.inventory.as_ref();
                let labels = node.labels();
                inventory.is_some_and(|has| {
                    has.worker_role && has.gpus.len() as u32 >= request.gpus_per_node
                }) && request.may_use(pool)
                    && !request.exclude_nodes.contains(&node.name)
                    && request.node_labels.iter().all(|(key, value)| {
                        labels.get(key.as_str()).copied() == Some(value.as_str())
                    })
            });
            // Submitted while the clock was ahead.
            let far = request.not_before_ms.is_some_and(|at| at > wall_ms + DRAINED_MS / 2);
            cluster
                || far
                || self.users.run_ms(&job.id).is_none()
                || job.request.nnodes > most_in_a_pool(workers)
        };
        let live = coordinator.core.jobs().filter(|job| !job.state.is_terminal());
        let stops: Vec<JobId> = live.filter(|job| endless(job)).map(|job| job.id.clone()).collect();
        let held = coordinator.core.jobs().filter(|job| job.hold.is_some());
        let held: Vec<JobId> = held.map(|job| job.id.clone()).collect();
        for job in held {
            self.release(job);
        }
        for job in stops {
            self.stop(job);
        }
        self.end_unknown();
    }

    /// What nobody knows is ended by hand.
    fn end_unknown(&mut self) {
        let Some(coordinator) = &self.coordinator else { return };
        let unknown: Vec<MemberKey> =
            coordinator.core.nodes().flat_map(|node| node.unknown.iter().cloned()).collect();
        for key in unknown {
            self.tally.note("operator: unknown member ended by hand");
            for node in 0..self.nodes.len() {
                let exit = gangline_core::gang::EndHow::Signalled { signal: 9 };
                self.crash_process(node, &key, exit);
            }
        }
    }

    /// I19, I20: every job that can run has run, every other one has ended.
    fn unfinished(&self) -> Option<String> {
        let coordinator = self.coordinator.as_ref()?;
        let mut jobs = coordinator.core.jobs();
        let job = jobs.find(|job| !job.state.is_terminal())?;
        let which = if job.state == JobState::Pending { "I19" } else { "I20" };
        let why = coordinator.core.why(&job.id).map_or(job.reason.as_str(), |why| why.as_ref());
        let gang = coordinator.core.gangs().find(|gang| gang.id == job.gang);
        let members = gang.map(|gang| (&gang.id, gang.epoch, &gang.members));
        Some(format!("{which}: {} is {:?}: {why} {members:?}", job.id, job.state))
    }

    /// I8, I21: nothing is left anywhere, and everybody knows it.
    fn left_behind(&self) -> Option<String> {
        let coordinator = self.coordinator.as_ref()?;
        for gang in coordinator.core.gangs() {
            if gang.state != GangState::Stopped {
                return Some(format!("I20: {} is {:?}", gang.id, gang.state));
            }
            if gang.members.values().any(|m| !matches!(m.phase, Phase::Ended(_))) {
                return Some(format!("I21: {} has stopped, a member has not", gang.id));
            }
        }
        for node in coordinator.core.nodes() {
            if let Some(key) = node.unknown.first() {
                return Some(format!("I21: {key} on {} is not known", node.name));
            }
            if let Some((gang, epoch)) = node.stops.first_key_value() {
                return Some(format!("I21: {} is still told to stop {gang}:{epoch}", node.name));
            }
        }
        for sim in &self.nodes {
            if let Some((key, _)) = sim.processes.iter().find(|(_, process)| process.is_alive()) {
                return Some(format!("I8: {key} still lives on {}", sim.name));
            }
            if let Some(key) = sim.ledger.durable.members.keys().next() {
                return Some(format!("I21: the ledger of {} still has {key}", sim.name));
            }
        }
        None
    }
}

/// A gang lies in one pool.
fn most_in_a_pool<'a>(nodes: impl Iterator<Item = &'a std::sync::Arc<Node>>) -> u32 {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.pool().unwrap_or_default()).or_default() += 1;
    }
    counts.into_values().max().unwrap_or_default()
}
