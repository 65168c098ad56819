//! A coordinator's core with any number of connected nodes, for the benches that need no network:
//! their agents say at once what real agents would say in time.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use gangline_common::ids::{GangId, Generation, MemberKey, NodeId};
use gangline_common::time::Timestamp;
use gangline_coordinator::core::Core;
use gangline_coordinator::core::effect::{Desired, Effects, Push};
use gangline_coordinator::core::event::{Event, Report};
use gangline_coordinator::core::gang::Phase;
use gangline_coordinator::core::job::JobRequest;

use crate::script::{POOL, Script, ended};

/// Gangs that run from the beginning, at most: with more, setting up takes longer than measuring.
const GANGS: usize = 250;

/// A node as its agent knows it.
#[derive(Clone)]
pub struct Place {
    pub node: NodeId,
    pub session: u64,
    pub held: Generation,
}

pub struct Nodes {
    pub core: Core,
    pub now: Timestamp,
    pub places: Vec<Place>,
    by_node: BTreeMap<NodeId, usize>,
    pub script: Script,
}

impl Nodes {
    /// `count` nodes of eight GPUs, joined and connected, and gangs of two that fill half of them,
    /// but at most 500.
    pub fn half_busy(count: usize) -> anyhow::Result<Self> {
        Nodes::with_gangs(count, GANGS.min(count / 4))
    }

    /// The same with gangs of two on every node.
    pub fn all_busy(count: usize) -> anyhow::Result<Self> {
        Nodes::with_gangs(count, count / 2)
    }

    /// `count` nodes of which gangs of two fill as many as they are.
    pub fn with_gangs(count: usize, gangs: usize) -> anyhow::Result<Self> {
        let now = Timestamp { boot_ms: 1_000_000, wall_ms: 1_800_000_000_000 };
        let mut nodes = Nodes {
            core: Core::new(1, now),
            now,
            places: Vec::with_capacity(count),
            by_node: BTreeMap::new(),
            script: Script::new()?,
        };
        nodes.join_all(count, POOL)?;
        let request = nodes.script.gang_of_two();
        nodes.fill(gangs, &request)?;
        Ok(nodes)
    }

    /// `count` more nodes in another pool, all taken by gangs of two.
    pub fn add_busy_pool(&mut self, count: usize, pool: &str) -> anyhow::Result<()> {
        self.join_all(count, pool)?;
        let request = self.script.request_with(|request| request.pools = vec![pool.to_owned()]);
        self.fill(count / 2, &request)
    }

    fn join_all(&mut self, count: usize, pool: &str) -> anyhow::Result<()> {
        let first = self.places.len();
        (first..first + count).try_for_each(|number| self.join(number, pool))
    }

    fn fill(&mut self, gangs: usize, request: &Arc<JobRequest>) -> anyhow::Result<()> {
        for _ in 0..gangs {
            let submission = self.submission_of(request.clone())?;
            let submitted = self.step(submission);
            anyhow::ensure!(submitted.pushes.len() == 2, "the gang found no place");
            self.report_all(&submitted.pushes, &Phase::Running { pid: 1 })?;
        }
        Ok(())
    }

    pub fn step(&mut self, event: Event) -> Effects {
        let mut effects = Effects::default();
        self.core.step(event, self.now, &mut effects);
        effects
    }

    fn join(&mut self, number: usize, pool: &str) -> anyhow::Result<()> {
        let arrival = self.script.arrival(number, pool, self.now)?;
        for event in arrival.events {
            self.step(event);
        }
        let (node, session) = (arrival.node, arrival.session);
        self.by_node.insert(node.clone(), self.places.len());
        self.places.push(Place { node, session, held: Generation::default() });
        Ok(())
    }

    /// Submits a gang that finds no place.
    pub fn wait_in_line(&mut self, request: Arc<JobRequest>) -> anyhow::Result<()> {
        let event = self.submission_of(request)?;
        let effects = self.step(event);
        anyhow::ensure!(effects.pushes.is_empty(), "the gang found a place");
        Ok(())
    }

    /// The submission of a new gang of two whole nodes.
    pub fn submission(&mut self) -> anyhow::Result<Event> {
        self.submission_of(self.script.gang_of_two())
    }

    /// The submission of a new gang.
    pub fn submission_of(&mut self, request: Arc<JobRequest>) -> anyhow::Result<Event> {
        let submission = self.script.submission(request)?;
        Ok(Event::Submit { request: 0, submission: Box::new(submission) })
    }

    /// Submits a gang, which finds its place at once. Returns what came of it, and the gang.
    pub fn submit(&mut self) -> anyhow::Result<(Effects, GangId)> {
        let event = self.submission()?;
        let Event::Submit { submission, .. } = &event else {
            anyhow::bail!("not a submission");
        };
        let gang = submission.gang.clone();
        let effects = self.step(event);
        anyhow::ensure!(effects.pushes.len() == 2, "the gang found no place");
        Ok((effects, gang))
    }

    /// What the agent of a pushed node says once every member that it is to run is in `phase`.
    pub fn report(&mut self, push: &Push, phase: &Phase) -> anyhow::Result<Event> {
        let index = self.by_node.get(&push.node).context("a push to an unknown node")?;
        let place = self.places.get_mut(*index).context("a push to an unknown node")?;
        place.held = push.generation;
        let mut members = Vec::new();
        for desired in &push.gangs {
            let Desired::Run { gang, .. } = desired else { continue };
            for (member, _) in gang.members_on(&push.node) {
                let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member };
                members.push((key, phase.clone()));
            }
        }
        let report =
            Report { held: push.generation, members, gangs: Vec::new(), ..Report::default() };
        Ok(Event::Reported { node: place.node.clone(), session: place.session, report })
    }

    pub fn report_all(&mut self, pushes: &[Push], phase: &Phase) -> anyhow::Result<()> {
        for push in pushes {
            let event = self.report(push, phase)?;
            self.step(event);
        }
        Ok(())
    }

    /// Ends the gang that these pushes began: its job succeeds and its nodes are free again.
    pub fn finish(&mut self, pushes: &[Push]) -> anyhow::Result<()> {
        self.report_all(pushes, &ended())
    }

    /// A sign of life of one node, by its index.
    pub fn heartbeat(&self, index: usize) -> anyhow::Result<Event> {
        let place = self.places.get(index % self.places.len()).context("no nodes")?;
        let held = Some(place.held);
        Ok(Event::Heard { node: place.node.clone(), session: place.session, held })
    }
}
