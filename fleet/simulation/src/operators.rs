//! Operators, and what people do to jobs beside submitting and stopping them.

use gangline_common::ids::JobId;
use gangline_core::controls::Control;
use gangline_core::event::Event;
use gangline_core::maintenance::Maintenance;
use gangline_core::projects::{ProjectChange, Quota};

use crate::node::{DEFAULT, SPARE, ZONE};
use crate::users::{Ask, admin};
use crate::world::World;

impl World<'_> {
    // ------------------------------------------------------------ jobs

    pub fn control_something(&mut self, live: &[JobId]) {
        let Some(job) = self.random.pick(live).cloned() else { return };
        match self.random.below(8) {
            0 | 1 => self.hold(job),
            2 | 3 => self.release(job),
            4 | 5 => {
                let count = self.nodes.len() as u64;
                let node = self.random.below(count) as usize;
                let exclude_nodes = match self.random.one_in(4) {
                    true => vec![self.nodes[node].name.clone()],
                    false => Vec::new(),
                };
                let why = "again".to_owned();
                self.tally.note("user: requeue");
                self.control(
                    Ask::Other,
                    job,
                    Control::Requeue { why, attempt: None, exclude_nodes },
                );
            }
            6 => {
                let priority = *self.random.pick(&[0, 25, 60, 90, 100]).unwrap_or(&50);
                self.tally.note("user: priority set");
                self.control(Ask::Other, job, Control::SetPriority { priority });
            }
            _ => {
                let timeout_ms = self.random.between(40_000, 80_000);
                self.tally.note("user: time limit extended");
                self.control(Ask::Other, job, Control::Extend { timeout_ms });
            }
        }
    }

    pub fn hold(&mut self, job: JobId) {
        self.tally.note("user: hold");
        let ask = Ask::Hold { job: job.clone() };
        self.control(ask, job, Control::Hold { why: String::new() });
    }

    pub fn release(&mut self, job: JobId) {
        self.tally.note("user: release");
        self.users.asks_to_release(&job);
        // It may start before the answer comes.
        self.checks.on_hold.remove(&job);
        let ask = Ask::Release { job: job.clone() };
        self.control(ask, job, Control::Release);
    }

    fn control(&mut self, ask: Ask, job: JobId, control: Control) {
        let actor = admin();
        self.ask(ask, |request| Event::ControlJob { request, job, control, actor });
    }

    // ------------------------------------------------------------ operators

    pub fn maintain_something(&mut self) {
        let index = self.random.below(self.nodes.len() as u64) as usize;
        let why = "work".to_owned();
        let wanted = match self.random.below(8) {
            0 | 1 => Maintenance::Cordon { why },
            2 => Maintenance::Drain { why, deadline_ms: None },
            3 => Maintenance::Drain { why, deadline_ms: Some(self.random.between(0, 20_000)) },
            _ => Maintenance::Resume,
        };
        self.maintain(index, wanted);
    }

    pub fn maintain(&mut self, node: usize, wanted: Maintenance) {
        self.tally.note(match wanted {
            Maintenance::Cordon { .. } => "operator: cordon",
            Maintenance::Drain { deadline_ms: None, .. } => "operator: drain",
            Maintenance::Drain { deadline_ms: Some(_), .. } => "operator: drain with a deadline",
            Maintenance::Resume => "operator: resume",
        });
        let node = self.nodes[node].id.clone();
        self.ask(Ask::Other, |request| Event::MaintainNode {
            request,
            node,
            wanted,
            actor: admin(),
        });
    }

    pub fn decide_about_a_project(&mut self) {
        let mut change = ProjectChange::default();
        if self.random.one_in(2) {
            change.max_priority = Some(*self.random.pick(&[50, 75, 90]).unwrap_or(&75));
        } else {
            let maximum = self.random.one_in(2).then(|| self.random.between(3, 12) as u32);
            let guaranteed = self.random.below(5) as u32;
            let pool = if self.random.one_in(4) { SPARE } else { DEFAULT };
            let quota = (!self.random.one_in(4)).then_some(Quota { guaranteed, maximum });
            change.quotas.insert(pool.to_owned(), quota);
        }
        let name = if self.random.one_in(2) { "p1" } else { "p2" };
        self.change_project(name, change);
    }

    pub fn change_project(&mut self, name: &str, change: ProjectChange) {
        self.tally.note("operator: project changed");
        let (name, change) = (name.to_owned(), Box::new(change));
        let actor = admin();
        self.ask(Ask::Other, |request| Event::SetProject { request, name, change, actor });
    }

    /// A node gets a label, or an operator's goes, so that the agent's shows again.
    pub fn label_something(&mut self) {
        self.tally.note("operator: node labelled");
        let index = self.random.below(self.nodes.len() as u64) as usize;
        let node = self.nodes[index].id.clone();
        let value = (!self.random.one_in(3)).then(|| self.some_zone());
        let labels = vec![(ZONE.to_owned(), value)];
        let actor = admin();
        self.ask(Ask::Other, |request| Event::LabelNode { request, node, labels, actor });
    }

    /// Somebody has looked: nothing runs on a machine that is switched off.
    pub fn release_something_by_force(&mut self) {
        let now_ms = self.now_ms;
        let off = |sim: &&crate::node::NodeSim| {
            now_ms < sim.off_until_ms && !sim.processes.values().any(|process| process.is_alive())
        };
        let off: Vec<_> = self.nodes.iter().filter(off).map(|sim| sim.id.clone()).collect();
        let Some(node) = self.random.pick(&off).cloned() else { return };
        self.tally.note("operator: release by force");
        let (actor, reason) = (admin(), "it is off".to_owned());
        self.ask(Ask::Other, |request| Event::ForceRelease { request, node, reason, actor });
    }
}
