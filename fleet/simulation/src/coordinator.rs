//! The coordinator's process: the real core, and around it the driver (batch, commit, act) and the
//! sessions. A kill takes all of it; the disk stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::ids::JobId;
use gangline_core::Core;
use gangline_core::credential::JoinTokenRecord;
use gangline_core::effect::{Answer, Effects, Examine, Write};
use gangline_core::event::{Event, Join, RequestId};
use gangline_core::gang::Member;
use gangline_core::node::Session;
use gangline_core::recovery::{Again, Cause, Verdict};

use crate::agent::Orders;
use crate::network::{AgentWord, CoordinatorWord, Packet};
use crate::submissions::CAUSES;
use crate::users::{Ask, admin};
use crate::world::{DriverBug, Happening, World};

/// A session without a word for this long is given up by the transport.
const IDLE_MS: u64 = 30_000;

/// At which point a kill hits the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hit {
    /// The next commit does not come to its end.
    BeforeCommit,
    /// It does, and nobody is told.
    AfterCommit,
}

/// The server's side of a session.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    pub node: usize,
    heard_ms: u64,
}

pub struct Coordinator {
    pub core: Core,
    /// Names the process.
    pub life: u64,
    pub started_ms: u64,
    batch: Effects,
    /// A commit is scheduled: what happens until then joins the batch.
    gathering: bool,
    pub sessions: BTreeMap<u64, Served>,
    hellos: BTreeMap<RequestId, (usize, u64)>,
    pub hit: Option<Hit>,
}

impl Coordinator {
    /// Writes of the open batch, from number `from` on.
    pub fn batch_from(&self, from: usize) -> Vec<Write> {
        self.batch.writes.get(from..).unwrap_or_default().to_vec()
    }
}

impl World<'_> {
    // ------------------------------------------------------------ life

    /// Starts from what is on the disk.
    pub fn start_coordinator(&mut self, rebooted: bool) {
        let now = self.clock.at(self.now_ms);
        if rebooted {
            self.disk.begin_again(now);
        }
        let core = self.disk.core(now, self.settings.codec);
        let life = self.number();
        self.coordinator = Some(Coordinator {
            core,
            life,
            started_ms: self.now_ms,
            batch: Effects::default(),
            gathering: false,
            sessions: BTreeMap::new(),
            hellos: BTreeMap::new(),
            hit: None,
        });
        self.check_after_start();
    }

    fn start_again_when_due(&mut self) {
        if self.coordinator.is_none() && self.now_ms >= self.weather.coordinator_away_until_ms {
            let rebooted = std::mem::take(&mut self.weather.coordinator_rebooted);
            self.start_coordinator(rebooted);
            self.tally.note("coordinator started again");
        }
    }

    /// The process is gone: what was not committed never happened.
    pub fn kill_coordinator(&mut self) {
        let Some(gone) = self.coordinator.take() else { return };
        let away = self.random.between(100, 3_000);
        self.weather.coordinator_away_until_ms = self.now_ms + away;
        self.users.nobody_answers();
        // Most agents see a reset at once; the others find out by silence.
        for (session, served) in gone.sessions {
            if !self.random.one_in(4) {
                let word = CoordinatorWord::Closed;
                self.send(Packet::Down { node: served.node, session, word });
            }
        }
    }

    pub fn coordinator_beat(&mut self) {
        self.start_again_when_due();
        self.tell(Event::Tick);
        let Some(coordinator) = &mut self.coordinator else { return };
        let now_ms = self.now_ms;
        let idle: Vec<u64> = coordinator
            .sessions
            .iter()
            .filter(|(_, served)| now_ms.saturating_sub(served.heard_ms) >= IDLE_MS)
            .map(|(session, _)| *session)
            .collect();
        for session in idle {
            self.tally.note("session idle for too long");
            self.end_session(session);
        }
    }

    // ------------------------------------------------------------ driver

    /// One event into the core; it is decided upon and committed at once, or a moment later with others.
    pub fn tell(&mut self, event: Event) {
        let now = self.clock.at(self.now_ms);
        let Some(coordinator) = &mut self.coordinator else { return };
        let before = coordinator.batch.writes.len();
        let name = event.name();
        coordinator.core.take(event, now, &mut coordinator.batch);
        let joins = coordinator.gathering;
        let gathering = joins || self.random.one_in(8);
        coordinator.gathering = gathering;
        if !gathering || self.settings.driver_bug == Some(DriverBug::ActBeforeCommit) {
            coordinator.core.decide(now, &mut coordinator.batch);
        }
        coordinator.batch.seen.clear();
        if self.settings.shown_from.is_some_and(|from| self.steps >= from) {
            let writes: Vec<String> = coordinator.batch.writes[before..].iter().map(line).collect();
            let pushes = coordinator.batch.pushes.iter();
            let pushes: Vec<String> =
                pushes.map(|push| format!("{}@{}", push.node, push.generation)).collect();
            if !writes.is_empty() || !pushes.is_empty() {
                eprintln!("{:>24} writes [{}] pushes {pushes:?}", name, writes.join("; "));
            }
        }
        let life = coordinator.life;
        self.check_writes(before);
        if self.settings.driver_bug == Some(DriverBug::ActBeforeCommit)
            && let Some(coordinator) = &mut self.coordinator
        {
            let writes = std::mem::take(&mut coordinator.batch.writes);
            let told =
                std::mem::replace(&mut coordinator.batch, Effects { writes, ..Effects::default() });
            self.act(told);
        }
        if joins {
            return;
        }
        if gathering {
            let wait = self.random.between(1, 30);
            self.after(wait, Happening::Commit { life });
        } else {
            self.commit();
        }
    }

    pub fn commit_due(&mut self, life: u64) {
        let now = self.clock.at(self.now_ms);
        let Some(coordinator) = self.coordinator.as_mut().filter(|c| c.life == life) else {
            return;
        };
        self.tally.note("batch of several events");
        let before = coordinator.batch.writes.len();
        coordinator.core.decide(now, &mut coordinator.batch);
        coordinator.batch.seen.clear();
        self.check_writes(before);
        self.commit();
    }

    /// The batch becomes durable, then the rest of it is acted on.
    pub fn commit(&mut self) {
        let Some(coordinator) = &mut self.coordinator else { return };
        coordinator.gathering = false;
        let batch = std::mem::take(&mut coordinator.batch);
        let hit = coordinator.hit.filter(|_| !batch.writes.is_empty());
        if hit == Some(Hit::BeforeCommit) {
            self.tally.note("fault: coordinator killed before a commit");
            return self.kill_coordinator();
        }
        for write in &batch.writes {
            self.disk.apply(write);
            self.check_committed(write);
        }
        self.checks.books.committed();
        let wrote = !batch.writes.is_empty();
        if hit == Some(Hit::AfterCommit) {
            self.tally.note("fault: coordinator killed after a commit, before anybody was told");
            return self.kill_coordinator();
        }
        self.act(batch);
        // A heartbeat changes nothing that is written.
        if wrote {
            self.check_deeply_now_and_then();
        }
    }

    fn act(&mut self, batch: Effects) {
        for push in &batch.pushes {
            self.checks.note_push(push);
            let Some(coordinator) = &self.coordinator else { return };
            if let Some(served) = coordinator.sessions.get(&push.session) {
                let (node, session) = (served.node, push.session);
                let word = CoordinatorWord::Desired(Arc::new(Orders::of(push)));
                self.send(Packet::Down { node, session, word });
            }
        }
        for close in batch.closes {
            self.tally.note("session closed by the coordinator");
            self.end_session(close.session);
        }
        for examine in batch.examine {
            self.look_into(examine);
        }
        for (request, answer) in batch.replies {
            self.answer(request, answer);
        }
    }

    /// Somebody looks into a failed attempt, and comes to any answer, or to none.
    fn look_into(&mut self, Examine { job, attempt }: Examine) {
        let Some(life) = self.coordinator.as_ref().map(|coordinator| coordinator.life) else {
            return;
        };
        if self.random.one_in(16) {
            return self.tally.note("a verdict never comes");
        }
        let gang = self
            .coordinator
            .as_ref()
            .and_then(|c| c.core.gangs().find(|gang| gang.job == job).map(|gang| gang.nodes()));
        let nodes = gang.unwrap_or_default();
        let cause = *self.random.pick(&CAUSES).unwrap_or(&Cause::Ray);
        let again = *self
            .random
            .pick(&[Again::Never, Again::After(cause), Again::After(cause), Again::Always])
            .unwrap_or(&Again::Never);
        let node = if self.random.one_in(3) { self.random.pick(&nodes).cloned() } else { None };
        let verdict = Verdict {
            again,
            category: String::new(),
            sub_code: String::new(),
            node,
            progressed: self.random.one_in(2),
            summary: "looked into".to_owned(),
            done: String::new(),
        };
        let wait_ms = if self.random.one_in(8) { 20_000 } else { self.random.between(1, 2_000) };
        self.after(wait_ms, Happening::Verdict { life, job, attempt, verdict: Box::new(verdict) });
    }

    pub fn verdict_comes(&mut self, life: u64, job: JobId, attempt: u32, verdict: Box<Verdict>) {
        if self.coordinator.as_ref().is_some_and(|coordinator| coordinator.life == life) {
            self.tally.note("a verdict comes");
            self.tell(Event::Examined { job, attempt, verdict });
        }
    }

    fn answer(&mut self, request: RequestId, answer: Answer) {
        let hello = self.coordinator.as_mut().and_then(|c| c.hellos.remove(&request));
        let Some((node, session)) = hello else { return self.user_hears(request, answer) };
        let word = match answer {
            Answer::Rejected(_) => {
                self.tally.note("session refused");
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.sessions.remove(&session);
                }
                CoordinatorWord::Refused
            }
            _ => CoordinatorWord::Welcome,
        };
        self.send(Packet::Down { node, session, word });
    }

    // ------------------------------------------------------------ sessions

    pub fn coordinator_hears(&mut self, node: usize, session: u64, word: AgentWord) {
        let now_ms = self.now_ms;
        let Some(coordinator) = &mut self.coordinator else { return };
        let id = self.nodes[node].id.clone();
        if let AgentWord::Hello { instance } = word {
            coordinator.sessions.insert(session, Served { node, heard_ms: now_ms });
            let request = self.number();
            let session_of_core = Session {
                number: session,
                instance: instance.to_string(),
                certificate: certificate(node),
                certificate_ends: i64::MAX,
                remote: String::new(),
                introduced: false,
                pushed_ms: None,
            };
            if let Some(coordinator) = &mut self.coordinator {
                coordinator.hellos.insert(request, (node, session));
            }
            return self.tell(Event::Connected { request, node: id, session: session_of_core });
        }
        let Some(served) = coordinator.sessions.get_mut(&session) else {
            self.tally.note("word of a session that is over");
            return;
        };
        served.heard_ms = now_ms;
        match word {
            AgentWord::Hello { .. } => {}
            AgentWord::Inventory => {
                let (inventory, name) =
                    (self.nodes[node].shown_inventory(), self.nodes[node].name.clone());
                self.tell(Event::Inventory { node: id, session, inventory, name });
            }
            AgentWord::Sample => {
                self.tell(Event::Heard { node: id, session, held: None });
            }
            AgentWord::Heartbeat { held, sent_ms } => {
                self.tell(Event::Heard { node: id, session, held: Some(held) });
                if self.coordinator.is_some() {
                    let word = CoordinatorWord::HeartbeatAck { sent_ms };
                    self.send(Packet::Down { node, session, word });
                }
            }
            AgentWord::Report(report) => {
                let report = gangline_core::event::Report::clone(&report);
                self.tell(Event::Reported { node: id, session, report });
            }
            AgentWord::Bye => self.end_session(session),
        }
    }

    /// The server ends a session, and its task tells the core a moment later.
    fn end_session(&mut self, session: u64) {
        let Some(coordinator) = &mut self.coordinator else { return };
        let Some(served) = coordinator.sessions.remove(&session) else { return };
        let word = CoordinatorWord::Closed;
        self.send(Packet::Down { node: served.node, session, word });
        self.checks.ending.insert(session, served.node);
        self.after(1, Happening::SessionOver { session });
    }

    pub fn session_over(&mut self, session: u64) {
        if let Some(node) = self.checks.ending.remove(&session) {
            let node = self.nodes[node].id.clone();
            self.tell(Event::Disconnected { node, session });
        }
    }

    /// A node joins with a token, before the history begins.
    pub fn join(&mut self, node: usize) {
        let request = self.number();
        let now = self.clock.at(self.now_ms);
        let record = JoinTokenRecord {
            id: format!("t{node}"),
            secret_sha256: [7; 32],
            uses_left: 1,
            expires_wall_ms: u64::MAX,
            pool: None,
            created_by: "admin".to_owned(),
            created: now,
        };
        self.tell(Event::CreateJoinToken { request, record, actor: admin() });
        let join = Join {
            token_id: format!("t{node}"),
            secret_sha256: [7; 32],
            node: self.nodes[node].id.clone(),
            node_name: self.nodes[node].name.clone(),
            certificate: certificate(node),
        };
        self.tell(Event::Join { request, join });
    }

    /// A request of a user, with the number that its answer will carry.
    pub fn ask(&mut self, ask: Ask, event: impl FnOnce(RequestId) -> Event) {
        let request = self.number();
        if self.coordinator.is_none() {
            return self.users.was_not_heard(ask);
        }
        self.users.asks.insert(request, ask);
        self.tell(event(request));
    }
}

fn certificate(node: usize) -> [u8; 32] {
    let mut fingerprint = [1; 32];
    fingerprint[..8].copy_from_slice(&(node as u64).to_be_bytes());
    fingerprint
}

/// A write in a few words, for people who look for what broke.
fn line(write: &Write) -> String {
    match write {
        Write::Job(job) => format!("{} {}: {}", job.id, job.state.word(), job.reason),
        Write::Gang(gang) => {
            let member = |(id, member): (&gangline_common::ids::MemberId, &Member)| {
                format!("{id}@{} {:?}", member.node, member.phase)
            };
            let members: Vec<String> = gang.members.iter().map(member).collect();
            format!("{}:{} {:?} {members:?}", gang.id, gang.epoch, gang.state)
        }
        Write::Attempt(attempt) => {
            let guest = attempt.guest.as_ref().map(|guest| guest.phase);
            format!("attempt {}-{} {guest:?} {:?}", attempt.job, attempt.number, attempt.outcome)
        }
        Write::Node(node) => format!("{} {}", node.id, node.generation),
        _ => "other".to_owned(),
    }
}
