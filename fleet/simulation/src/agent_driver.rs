//! The agent's process at work: link, driver (step, ledger, act) and supervisor, around its core.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gangline_agent_core::assignment::{Phase, Refusal};
use gangline_agent_core::effect::{Effect, Effects};
use gangline_agent_core::event::{Event, MemberChange};
use gangline_common::ids::{MemberId, MemberKey};
use gangline_core::gang::EndHow;
use gangline_core::job::Launcher;

use crate::agent::{Agent, Contact, Hit, INBOX_LIMIT, Input, Orders};
use crate::network::{AgentWord, CoordinatorWord, Packet};
use crate::node::Ledger;
use crate::process::{Process, Stage};
use crate::world::{DriverBug, Happening, World};

/// Without an answer to a heartbeat for this long an agent gives its session up.
const SILENCE_MS: u64 = 10_000;
/// Of three words a second apart two are samples, for which there is no answer.
const SAMPLES: u8 = 2;

impl World<'_> {
    // ------------------------------------------------------------ life

    pub fn agent_starts(&mut self, node: usize) {
        let sim = &self.nodes[node];
        if sim.agent.is_some() || self.now_ms < sim.agent_away_until_ms.max(sim.off_until_ms) {
            return;
        }
        let life = self.number();
        let sim = &mut self.nodes[node];
        let mut agent = Agent::new(life);
        agent.plans = sim.ledger.plans.clone();
        let durable = sim.ledger.durable.clone();
        if !durable.members.is_empty() {
            self.tally.note("agent started with members in its ledger");
        }
        self.nodes[node].agent = Some(agent);
        self.after(self.now_ms % 7, Happening::AgentBeat { node, life });
        let wait = self.random.below(200);
        self.after(wait, Happening::Dials { node, life });
        self.run_driver(node, vec![Input::Event(Event::Restored(durable))]);
    }

    /// The process is gone; what it started runs on.
    pub fn kill_agent(&mut self, node: usize, away_ms: u64) {
        self.disturbed(node);
        let sim = &mut self.nodes[node];
        sim.agent = None;
        // The next process has its own troubles.
        (sim.frozen_until_ms, sim.full_until_ms) = (0, 0);
        sim.agent_away_until_ms = self.now_ms + away_ms;
        self.after(away_ms, Happening::AgentStarts { node });
    }

    pub fn agent_beat(&mut self, node: usize, life: u64) {
        if !self.lives(node, life) {
            return;
        }
        self.after(1_000, Happening::AgentBeat { node, life });
        if self.now_ms < self.nodes[node].frozen_until_ms {
            return;
        }
        self.beat_link(node, life);
        if self.now_ms >= self.nodes[node].full_until_ms {
            self.tell_agent(node, Event::Tick);
            self.ship_logs(node);
            self.watch_ray(node);
            self.watch_checkpoints(node);
        }
    }

    /// A new training checkpoint is reported.
    fn watch_checkpoints(&mut self, node: usize) {
        let sim = &mut self.nodes[node];
        let Some(agent) = &sim.agent else { return };
        let saved = agent.saved(&sim.processes, self.now_ms);
        let saved: BTreeMap<_, _> = saved.map(|word| (word.key, word.name)).collect();
        if saved == agent.said_saved || agent.session().is_none() {
            return;
        }
        if let Some(agent) = &mut sim.agent {
            agent.said_saved = saved;
        }
        self.tally.note("training checkpoint reported");
        self.send_report(node);
    }

    fn beat_link(&mut self, node: usize, life: u64) {
        let now_ms = self.now_ms;
        let Some(agent) = &self.nodes[node].agent else { return };
        match agent.contact {
            Contact::Connected { answered_ms, .. } if now_ms >= answered_ms + SILENCE_MS => {
                self.tally.note("session given up by a silent agent");
                self.drop_session(node, true);
            }
            Contact::Connected { session, .. } if agent.samples.is_some_and(|n| n < SAMPLES) => {
                if let Some(agent) = &mut self.nodes[node].agent {
                    agent.samples = agent.samples.map(|sent| sent + 1);
                }
                self.tally.note("sample in place of a heartbeat");
                self.send(Packet::Up { node, session, word: AgentWord::Sample });
            }
            Contact::Connected { session, .. } => {
                let held = agent.core.held();
                if let Some(agent) = &mut self.nodes[node].agent {
                    agent.samples = agent.samples.map(|_| 0);
                }
                self.checks_held(node, held);
                let sent_ms = self.nodes[node].clock.at(now_ms).boot_ms;
                let word = AgentWord::Heartbeat { held, sent_ms };
                self.send(Packet::Up { node, session, word });
            }
            Contact::Dialing { since_ms, .. } if now_ms >= since_ms + SILENCE_MS => {
                self.drop_session(node, true);
            }
            Contact::Dialing { .. } | Contact::Waiting => {}
        }
        let _ = life;
    }

    // ------------------------------------------------------------ link

    pub fn dial(&mut self, node: usize, life: u64) {
        if !self.lives(node, life) {
            return;
        }
        if self.now_ms < self.nodes[node].frozen_until_ms {
            return self.after(500, Happening::Dials { node, life });
        }
        let session = self.number();
        let now_ms = self.now_ms;
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if agent.contact != Contact::Waiting {
            return;
        }
        agent.contact = Contact::Dialing { session, since_ms: now_ms };
        let instance = agent.instance;
        self.send(Packet::Up { node, session, word: AgentWord::Hello { instance } });
    }

    /// Ends the session on this side and dials again after a wait that grows.
    fn drop_session(&mut self, node: usize, says_bye: bool) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let life = agent.instance;
        let session = match agent.contact {
            Contact::Waiting => return,
            Contact::Dialing { session, .. } | Contact::Connected { session, .. } => session,
        };
        if matches!(agent.contact, Contact::Connected { .. }) {
            agent.tries = 0;
        }
        agent.contact = Contact::Waiting;
        agent.tries = (agent.tries + 1).min(5);
        let longest = (200_u64 << agent.tries).min(5_000);
        // What was not sent yet goes with the session.
        self.nodes[node].link.up.stalled.retain(|packet| packet.session() != session);
        if says_bye {
            self.send(Packet::Up { node, session, word: AgentWord::Bye });
        }
        let wait = self.random.between(200, longest);
        self.after(wait, Happening::Dials { node, life });
    }

    pub fn agent_hears(&mut self, node: usize, session: u64, word: CoordinatorWord) {
        let now_ms = self.now_ms;
        let frozen = now_ms < self.nodes[node].frozen_until_ms;
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if frozen {
            agent.words.push_back((session, word));
            let waiting = agent.words.len();
            if waiting > INBOX_LIMIT {
                self.fail(|| format!("I16: {waiting} words wait for a frozen agent"));
            }
            return;
        }
        let mine = match agent.contact {
            Contact::Waiting => None,
            Contact::Dialing { session, .. } | Contact::Connected { session, .. } => Some(session),
        };
        if mine != Some(session) {
            return;
        }
        match word {
            CoordinatorWord::Welcome => {
                let greeted_ms = match agent.contact {
                    Contact::Dialing { since_ms, .. } => Some(since_ms),
                    Contact::Connected { .. } | Contact::Waiting => None,
                };
                agent.contact = Contact::Connected { session, answered_ms: now_ms };
                if let Some(since_ms) = greeted_ms {
                    let boot_ms = self.nodes[node].clock.at(since_ms).boot_ms;
                    self.had_contact(node, session, boot_ms);
                }
                self.tally.note("session began");
                self.send(Packet::Up { node, session, word: AgentWord::Inventory });
                self.send_report(node);
            }
            CoordinatorWord::Refused | CoordinatorWord::Closed => self.drop_session(node, false),
            CoordinatorWord::HeartbeatAck { sent_ms } => {
                if let Contact::Connected { answered_ms, .. } = &mut agent.contact {
                    *answered_ms = now_ms;
                }
                self.had_contact(node, session, sent_ms);
            }
            CoordinatorWord::Desired(orders) => {
                self.input(node, Input::Desired { session, orders });
            }
        }
    }

    pub fn send_report(&mut self, node: usize) {
        let sim = &self.nodes[node];
        let Some(agent) = &sim.agent else { return };
        let Some(session) = agent.session() else { return };
        if let Some(report) = agent.report(&sim.processes, self.now_ms) {
            let word = AgentWord::Report(Arc::new(report));
            self.send(Packet::Up { node, session, word });
        }
    }

    // ------------------------------------------------------------ driver

    pub fn tell_agent(&mut self, node: usize, event: Event) {
        self.input(node, Input::Event(event));
    }

    fn input(&mut self, node: usize, input: Input) {
        let sim = &mut self.nodes[node];
        let held_up = self.now_ms < sim.frozen_until_ms.max(sim.full_until_ms);
        let Some(agent) = &mut sim.agent else { return };
        if held_up || !agent.inbox.is_empty() {
            agent.inbox.push_back(input);
            let waiting = agent.inbox.len();
            if waiting > INBOX_LIMIT {
                self.fail(|| format!("I16: {waiting} inputs wait for an agent"));
            }
            return;
        }
        self.run_driver(node, vec![input]);
    }

    /// An agent that was frozen, or whose disk was full, takes up what waited: in one batch.
    pub fn go_on(&mut self, node: usize) {
        let sim = &mut self.nodes[node];
        if self.now_ms < sim.frozen_until_ms.max(sim.full_until_ms) {
            return;
        }
        let Some(agent) = &mut sim.agent else { return };
        let words: Vec<_> = agent.words.drain(..).collect();
        let inputs: Vec<Input> = agent.inbox.drain(..).collect();
        self.disturbed(node);
        // A batch ends with a desired state.
        let mut batch = Vec::new();
        for input in inputs {
            let ends = matches!(input, Input::Desired { .. });
            batch.push(input);
            if ends {
                self.run_driver(node, std::mem::take(&mut batch));
            }
        }
        if !batch.is_empty() {
            self.tally.note("agent's driver took a batch");
            self.run_driver(node, batch);
        }
        for (session, word) in words {
            self.agent_hears(node, session, word);
        }
    }

    /// Decides on a batch, makes the ledger durable, and only then acts.
    fn run_driver(&mut self, node: usize, inputs: Vec<Input>) {
        let mut effects = Effects::default();
        for input in self.contact_input(node).into_iter().chain(inputs) {
            let shown = self.settings.shown_from.is_some_and(|from| self.steps >= from);
            if shown && !matches!(input, Input::Event(Event::Tick | Event::Contact { .. })) {
                eprintln!("{:>24} {} <- {input:?}", "agent", self.nodes[node].name);
            }
            match input {
                Input::Event(event) => self.step_agent(node, event, &mut effects),
                Input::Desired { session, orders } => {
                    self.take_orders(node, session, &orders, &mut effects);
                }
            }
        }
        self.carry_out(node, effects);
    }

    fn step_agent(&mut self, node: usize, event: Event, effects: &mut Effects) {
        let sim = &mut self.nodes[node];
        let now = sim.clock.at(self.now_ms);
        if let Some(agent) = &mut sim.agent {
            agent.core.step(event, now, effects);
        }
    }

    fn take_orders(&mut self, node: usize, session: u64, orders: &Orders, effects: &mut Effects) {
        let Some(agent) = &self.nodes[node].agent else { return };
        let before = agent.core.held();
        let mut own = Effects::default();
        // Sessions are told apart by their numbers, which grow like the times of their begin.
        self.step_agent(node, Event::Session { began_ms: session }, &mut own);
        self.step_agent(node, Event::Desired(orders.set.clone()), &mut own);
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if agent.core.held() != before {
            let plans = orders.plans.iter();
            agent
                .plans
                .extend(plans.map(|(incarnation, plan)| (incarnation.clone(), plan.clone())));
        }
        let broken = own.list.iter().find_map(|effect| match effect {
            Effect::ProtocolError(rule) => Some(rule.clone()),
            _ => None,
        });
        let current = agent.session() == Some(session);
        effects.ledger = own.ledger.or(effects.ledger.take());
        effects.list.append(&mut own.list);
        if let Some(rule) = broken {
            self.fail(|| format!("the coordinator broke a rule of the protocol: {rule}"));
            if current {
                self.drop_session(node, true);
            }
        }
    }

    /// Carries out effects, and those that follow from them, until there are none or the process
    /// is hit.
    fn carry_out(&mut self, node: usize, mut effects: Effects) {
        let late_ledger = self.settings.driver_bug == Some(DriverBug::ActBeforeLedger);
        let mut queue = VecDeque::new();
        let mut report = false;
        let mut late = None;
        loop {
            if let Some(durable) = effects.ledger.take() {
                if late_ledger {
                    late = Some(durable);
                } else if !self.write_ledger(node, durable) {
                    return;
                }
            }
            queue.extend(std::mem::take(&mut effects.list));
            let Some(effect) = queue.pop_front() else { break };
            let hit = self.nodes[node].agent.as_ref().and_then(|agent| agent.hit);
            if hit == Some(Hit::AmidEffects) && self.random.one_in(2) {
                self.tally.note("fault: agent killed amid its effects");
                return self.kill_hit_agent(node);
            }
            if let Some(event) = self.perform(node, effect, &mut report) {
                effects = Effects::default();
                self.step_agent(node, event, &mut effects);
            }
        }
        if let Some(durable) = late
            && !self.write_ledger(node, durable)
        {
            return;
        }
        if let Some(agent) = &mut self.nodes[node].agent {
            agent.forget_unneeded();
        }
        self.check_agent(node);
        if report {
            self.send_report(node);
        }
    }

    /// False when a kill comes first, or right after.
    fn write_ledger(&mut self, node: usize, durable: gangline_agent_core::event::Durable) -> bool {
        let sim = &mut self.nodes[node];
        let Some(agent) = &sim.agent else { return false };
        let hit = agent.hit;
        if hit == Some(Hit::BeforeLedger) {
            self.tally.note("fault: agent killed while it wrote its ledger");
            self.kill_hit_agent(node);
            return false;
        }
        for (gang, seen) in &durable.seen {
            let highest = sim.highest.entry(gang.clone()).or_insert(seen.epoch);
            *highest = seen.epoch.max(*highest);
        }
        sim.ledger = Ledger { durable, plans: agent.plans.clone() };
        if hit == Some(Hit::AfterLedger) {
            self.tally.note("fault: agent killed after a write of its ledger");
            self.kill_hit_agent(node);
            return false;
        }
        true
    }

    fn kill_hit_agent(&mut self, node: usize) {
        let away = self.random.between(100, 5_000);
        self.kill_agent(node, away);
    }

    /// Carries out one effect. Returns the event that it ends in, if it does at once.
    fn perform(&mut self, node: usize, effect: Effect, report: &mut bool) -> Option<Event> {
        match effect {
            Effect::Start(key) => self.start_member(node, key),
            Effect::Adopt(key) => {
                let life = self.nodes[node].agent.as_ref()?.instance;
                let wait = self.random.between(5, 400);
                self.after(wait, Happening::Adopted { node, life, key });
            }
            Effect::Update(_) => self.tally.note("agent: a live member's assignment changed"),
            Effect::Stop { key, grace } => {
                let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                self.stop_member(node, key, grace_ms);
            }
            Effect::Release(key) => {
                if self.random.per_mille(30) && !self.is_healing {
                    self.tally.note("fault: files of a member cannot be removed");
                    return Some(Event::ReleaseFailed(key));
                }
                self.check_released(node, &key);
                self.nodes[node].processes.remove(&key);
                return Some(Event::Released(key));
            }
            Effect::ReportChanged => *report = true,
            Effect::ProtocolError(_) => {}
            Effect::Warn(_) => self.tally.note("agent: unexpected event ignored"),
        }
        None
    }

    // ------------------------------------------------------------ supervisor

    fn start_member(&mut self, node: usize, key: MemberKey) {
        self.check_start(node, &key);
        let sim = &mut self.nodes[node];
        let Some(agent) = &mut sim.agent else { return };
        let life = agent.instance;
        agent.attached.insert(key.clone());
        let Some(plan) = agent.plans.get(&(key.gang.clone(), key.epoch)).cloned() else {
            return self.fail(|| format!("no assignment of {key} is at hand"));
        };
        let Some(member) = plan.gang.members.get(&key.member) else { return };
        let taken = self.check_ports(node, &key, member.ports);
        let sim = &mut self.nodes[node];
        let refusal = if taken || sim.strangers > 0 {
            sim.strangers = sim.strangers.saturating_sub(1);
            self.tally.note("fault: port of a block bound by a stranger");
            Some(Refusal::PortBusy { port: member.ports.base })
        } else if self.random.per_mille(5) && !self.is_healing {
            self.tally.note("fault: member cannot be started");
            Some(match self.random.per_mille(500) {
                true => Refusal::Impossible { reason: "no such interpreter".to_owned() },
                false => {
                    self.tally.note("fault: node unfit to start a member");
                    Refusal::Unfit { reason: "no certain reading within 10 s of: gpu".to_owned() }
                }
            })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let event = Event::MemberChanged { key, change: MemberChange::Refused(refusal) };
            let wait = self.random.between(1, 100);
            return self.after(wait, Happening::Supervisor { node, life, event });
        }
        let fence = self.fence_of(node, &key, &plan);
        let run_ms = match plan.job.request.launcher {
            Launcher::Command => self.users.run_ms(&plan.job.id),
            Launcher::Ray => None,
        };
        let jitter = self.random.below(1_000);
        let (code, pid) = (self.users.exit_code(&plan.job.id), self.number() as u32);
        let due_ms = self.now_ms + self.random.between(10, 400);
        let process = Process {
            gpus: member.gpus.clone(),
            ports: member.ports,
            is_head: key.member == MemberId::Head,
            is_ray: plan.job.request.launcher == Launcher::Ray,
            has_whole_node: member.exclusive,
            stage: Stage::Spawning,
            pid,
            due_ms: Some(due_ms),
            exit: EndHow::Exited { code },
            stopping: false,
            stuck_until_ms: 0,
            run_ms: run_ms.map(|ms| ms + jitter),
            since_ms: None,
            saves_every_ms: self.users.saves_every_ms(&plan.job.id),
            fence,
        };
        self.check_spawn(node, &key, &process);
        self.nodes[node].processes.insert(key.clone(), process);
        self.tally.note("process started");
        let wait = due_ms - self.now_ms;
        self.after(wait, Happening::Process { node, key, due_ms });
    }

    /// The member is looked for by pid, start time and mark: whatever is found is its own.
    pub fn adopted(&mut self, node: usize, key: MemberKey) {
        let sim = &mut self.nodes[node];
        let Some(agent) = &mut sim.agent else { return };
        if self.now_ms < sim.frozen_until_ms {
            let life = agent.instance;
            return self.after(500, Happening::Adopted { node, life, key });
        }
        agent.attached.insert(key.clone());
        self.tell_shims(node);
        let sim = &self.nodes[node];
        let change = match sim.processes.get(&key) {
            Some(process) if process.stage == Stage::Running && !process.stopping => {
                self.tally.note("member adopted");
                Some(MemberChange::Running { pid: process.pid })
            }
            // It says when it runs.
            Some(process) if process.stage == Stage::Spawning => {
                self.tally.note("member adopted before it ran");
                Some(MemberChange::Running { pid: process.pid })
            }
            Some(process) if process.is_alive() => {
                self.tally.note("member adopted on its way to its end");
                Some(MemberChange::Stopping)
            }
            Some(_) => {
                self.tally.note("member found ended");
                Some(MemberChange::Ended)
            }
            None => {
                self.tally.note("member of the ledger was never started");
                Some(MemberChange::Ended)
            }
        };
        if let Some(change) = change {
            self.tell_agent(node, Event::MemberChanged { key, change });
        }
    }

    fn stop_member(&mut self, node: usize, key: MemberKey, grace_ms: u64) {
        self.check_stop(node, &key);
        // One in ten ignores SIGTERM.
        let patience = match self.random.one_in(10) {
            true => {
                self.tally.note("process ignores SIGTERM");
                grace_ms
            }
            false => self.random.below(grace_ms.min(3_000) + 1),
        };
        let due_ms = self.now_ms + 1 + patience;
        let sim = &mut self.nodes[node];
        let Some(process) = sim.processes.get_mut(&key) else { return };
        if !matches!(process.stage, Stage::Spawning | Stage::Running) || process.stopping {
            return;
        }
        process.stopping = true;
        process.exit = EndHow::Signalled { signal: 15 };
        process.due_ms = Some(due_ms);
        let life = sim.agent.as_ref().map_or(0, |agent| agent.instance);
        let event = Event::MemberChanged { key: key.clone(), change: MemberChange::Stopping };
        self.after(1, Happening::Supervisor { node, life, event });
        self.after(1 + patience, Happening::Process { node, key, due_ms });
    }

    /// Processes of a member move on: begin to run, end, are swept.
    pub fn process_moves(&mut self, node: usize, key: &MemberKey, due_ms: u64) {
        let now_ms = self.now_ms;
        let sweep_ms = now_ms + self.random.between(5, 500);
        let Some(process) = self.nodes[node].processes.get_mut(key) else { return };
        if process.due_ms != Some(due_ms) {
            return;
        }
        process.due_ms = None;
        let (mut change, mut next) = (None, None);
        match process.stage {
            Stage::Spawning if !process.stopping => {
                process.stage = Stage::Running;
                process.since_ms = Some(now_ms);
                change = Some(MemberChange::Running { pid: process.pid });
                next = process.run_ms.map(|ms| now_ms + ms);
            }
            Stage::Spawning | Stage::Running => {
                process.stage = Stage::Sweeping;
                next = Some(sweep_ms.max(process.stuck_until_ms));
            }
            Stage::Sweeping if now_ms < process.stuck_until_ms => {
                next = Some(process.stuck_until_ms);
            }
            Stage::Sweeping => {
                process.stage = Stage::Gone;
                change = Some(MemberChange::Ended);
            }
            Stage::Gone => {}
        }
        process.due_ms = next;
        if let Some(due_ms) = next {
            let key = key.clone();
            self.after(due_ms - now_ms, Happening::Process { node, key, due_ms });
        }
        if change == Some(MemberChange::Ended) {
            self.is_gone(node, key);
        }
        if matches!(change, Some(MemberChange::Running { .. })) {
            self.shim_waits(node, key);
        }
        if let Some(change) = change {
            self.supervisor_says(node, key, change);
        }
    }

    /// Ends a member's main process from outside: a crash, a kill.
    pub fn crash_process(&mut self, node: usize, key: &MemberKey, exit: EndHow) {
        let due_ms = self.now_ms + 1;
        let Some(process) = self.nodes[node].processes.get_mut(key) else { return };
        if matches!(process.stage, Stage::Spawning | Stage::Running) {
            process.stage = Stage::Running;
            process.exit = exit;
            process.stopping = true;
            process.due_ms = Some(due_ms);
            self.after(1, Happening::Process { node, key: key.clone(), due_ms });
        }
    }

    /// The machine is switched off: nothing of any member is left.
    pub fn wipe_processes(&mut self, node: usize) {
        let keys: Vec<MemberKey> = self.nodes[node].processes.keys().cloned().collect();
        for key in keys {
            if let Some(process) = self.nodes[node].processes.get_mut(&key)
                && process.is_alive()
            {
                process.stage = Stage::Gone;
                process.due_ms = None;
                process.exit = EndHow::Failed { reason: "its shim vanished".to_owned() };
                self.is_gone(node, &key);
            }
        }
    }

    fn supervisor_says(&mut self, node: usize, key: &MemberKey, change: MemberChange) {
        let follows =
            self.nodes[node].agent.as_ref().is_some_and(|agent| agent.attached.contains(key));
        if follows {
            self.tell_agent(node, Event::MemberChanged { key: key.clone(), change });
        }
    }

    /// Logs of members that ended reach the coordinator while there is a session.
    fn ship_logs(&mut self, node: usize) {
        let Some(agent) = &self.nodes[node].agent else { return };
        if agent.session().is_none() {
            return;
        }
        let waits = |phase: &Phase| matches!(phase, Phase::Ended(end) if !end.logs_complete);
        let members = agent.core.members();
        let keys: Vec<MemberKey> =
            members.filter(|(_, m)| waits(&m.phase)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            if self.is_healing || self.random.one_in(2) {
                self.tell_agent(node, Event::LogsComplete(key));
            }
        }
    }
}
