//! The loop that owns the core: takes events from one bounded mailbox, lets the core decide, makes
//! the ledger durable, and only then acts and reports.

use std::collections::VecDeque;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, Generation, MemberKey};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::{
    Assignment, DesiredGang, Ended, GangReport, GuestState, MemberState, NodeReport, Order,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

use crate::core::Core;
use crate::core::assignment::{Member, Phase};
use crate::core::effect::{Effect, Effects};
use crate::core::event::{Durable, Event};
use crate::holders::{Holder, Holders};
use crate::ledger::{Content, Ledger};
use crate::link::LinkStatus;
use crate::link::contact::ContactTime;
use crate::meter::Meter;
use crate::status::{Status, StatusFile};
use crate::supervisor::{
    LogSource, MemberPlan, Saved, Supervisor, SupervisorError, SupervisorEvent, TrainingCheckpoint,
};
use crate::tail::{TailMember, TailPlan};
use crate::telemetry::Newest;
use crate::translate::{Assignments, Known, desired_set, member_change, node_report};

/// Inputs that wait for the driver; senders wait when it is full.
pub const MAILBOX: usize = 256;
/// Events that are decided on together, with one write of the ledger.
const BATCH: usize = 64;
/// How often the core is reminded of time, and the status file is refreshed.
const TICK: Duration = Duration::from_secs(1);
/// Wait before a ledger write that failed is tried again.
const LEDGER_RETRY: Duration = Duration::from_secs(1);

/// What the driver is told, apart from the supervisor's events.
#[derive(Debug)]
pub enum Input {
    /// A complete desired state; answered once it is durable, or with the rule that it breaks.
    Desired {
        /// When the session began in which it was said, by the boot clock.
        session_ms: u64,
        generation: Generation,
        gangs: Vec<DesiredGang>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// The coordinator holds every byte of the member's logs.
    LogsComplete(MemberKey),
    /// Stop everything; answered when no process is left. The driver goes on, so that the end of
    /// the members can still be reported.
    Shutdown { idle: oneshot::Sender<()> },
}

/// What the link tells the coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outlook {
    pub held: Generation,
    /// Absent until every member of an earlier run has been found.
    pub report: Option<Arc<NodeReport>>,
    /// When the ages in the report were right, on the boot clock in milliseconds.
    pub at_ms: u64,
}

impl Outlook {
    /// The report as it is right at `now`.
    pub fn report_at(&self, now: Timestamp) -> Option<NodeReport> {
        let mut report = NodeReport::clone(self.report.as_ref()?);
        let since_ms = now.boot_ms.saturating_sub(self.at_ms);
        for checkpoint in report.members.iter_mut().filter_map(|m| m.checkpoint.as_mut()) {
            checkpoint.age_ms = checkpoint.age_ms.saturating_add(since_ms);
        }
        let saved = report.members.iter_mut().filter_map(|member| member.saved.as_mut());
        for newest in saved.filter_map(|saved| saved.newest.as_mut()) {
            newest.age_ms = newest.age_ms.saturating_add(since_ms);
        }
        Some(report)
    }
}

/// The supervisor as the driver sees it.
pub trait Members: Send {
    fn start(&mut self, plan: MemberPlan);
    fn adopt(&mut self, plan: MemberPlan);
    fn update(&mut self, key: &MemberKey, assignment: Arc<Assignment>);
    /// With `keep_scene`, how things stand is kept first.
    fn stop(&mut self, key: &MemberKey, grace: Duration, keep_scene: bool);
    /// Must not take long: the driver waits for it.
    fn release(
        &mut self,
        key: &MemberKey,
    ) -> impl Future<Output = Result<(), SupervisorError>> + Send;
    fn log_files(&self, key: &MemberKey) -> Vec<LogSource>;
}

impl Members for Supervisor {
    fn start(&mut self, plan: MemberPlan) {
        Supervisor::start(self, plan);
    }

    fn adopt(&mut self, plan: MemberPlan) {
        Supervisor::adopt(self, plan);
    }

    fn update(&mut self, key: &MemberKey, assignment: Arc<Assignment>) {
        Supervisor::update(self, key, assignment);
    }

    fn stop(&mut self, key: &MemberKey, grace: Duration, keep_scene: bool) {
        Supervisor::stop(self, key, grace, keep_scene);
    }

    fn release(
        &mut self,
        key: &MemberKey,
    ) -> impl Future<Output = Result<(), SupervisorError>> + Send {
        Supervisor::release(self, key)
    }

    fn log_files(&self, key: &MemberKey) -> Vec<LogSource> {
        Supervisor::log_files(self, key)
    }
}

/// Where the driver gets its events and leaves what others read.
pub struct Channels {
    pub inputs: mpsc::Receiver<Input>,
    pub events: mpsc::Receiver<SupervisorEvent>,
    pub outlook: watch::Sender<Outlook>,
    pub tail: watch::Sender<TailPlan>,
    pub link: watch::Receiver<LinkStatus>,
    pub contact: ContactTime,
    /// Who has which GPU.
    pub holders: watch::Sender<Holders>,
    /// Gangs with a member here that may have a process, with GPUs or without.
    pub gangs: watch::Sender<BTreeSet<GangId>>,
    pub samples: Newest,
    /// Where `gangline-agent status` looks.
    pub status: PathBuf,
}

/// Owns the core and carries out its effects.
pub struct Driver<M> {
    core: Core,
    ledger: Arc<Ledger>,
    members: M,
    channels: Channels,
    status: StatusFile,
    assignments: Assignments,
    /// How members ended, until they are forgotten.
    ends: BTreeMap<MemberKey, Ended>,
    /// What Ray says about gangs whose head is here.
    gangs: BTreeMap<(GangId, Epoch), GangReport>,
    /// What members have done for guests, by operation.
    guests: BTreeMap<MemberKey, BTreeMap<String, GuestState>>,
    /// The newest training checkpoint of each incarnation whose rank 0 is here.
    checkpoints: BTreeMap<MemberKey, TrainingCheckpoint>,
    /// What there is of training checkpoints in the directory of each.
    saved: BTreeMap<MemberKey, Saved>,
    /// Incarnations that are to end because they failed: how things stand is kept first.
    failed: BTreeSet<(GangId, Epoch)>,
    meter: Meter,
    /// Who waits for the end of the last member.
    shutdown: Option<oneshot::Sender<()>>,
}

/// A desired state whose sender waits for an answer.
type Pending = (oneshot::Sender<Result<(), String>>, Result<(), String>);

impl<M: Members> Driver<M> {
    pub fn new(ledger: Ledger, members: M, channels: Channels) -> Self {
        let status = StatusFile::new(channels.status.clone());
        Driver {
            core: Core::new(),
            ledger: Arc::new(ledger),
            members,
            channels,
            status,
            assignments: Assignments::new(),
            ends: BTreeMap::new(),
            gangs: BTreeMap::new(),
            guests: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            saved: BTreeMap::new(),
            failed: BTreeSet::new(),
            meter: Meter::default(),
            shutdown: None,
        }
    }

    /// Runs until every sender of inputs is gone. `content` is what the ledger held.
    pub async fn run(mut self, content: Content) {
        self.assignments = content.assignments;
        let mut effects = Effects::default();
        self.step(Event::Restored(content.durable), &mut effects);
        self.carry_out(effects, Vec::new()).await;

        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let mut effects = Effects::default();
            let mut pending = Vec::new();
            tokio::select! {
                input = self.channels.inputs.recv() => match input {
                    Some(input) => self.handle_input(input, &mut effects, &mut pending),
                    None => return,
                },
                Some(event) = self.channels.events.recv() => {
                    self.handle_supervisor(event, &mut effects);
                }
                _ = ticks.tick() => {
                    self.measure();
                    self.step(Event::Tick, &mut effects);
                }
            }
            for _ in 1..BATCH {
                // What a desired state starts is started before the next one may stop it: nothing
                // begins below an epoch that the ledger already has.
                if !pending.is_empty() {
                    break;
                }
                if let Ok(event) = self.channels.events.try_recv() {
                    self.handle_supervisor(event, &mut effects);
                } else if let Ok(input) = self.channels.inputs.try_recv() {
                    self.handle_input(input, &mut effects, &mut pending);
                } else {
                    break;
                }
            }
            self.carry_out(effects, pending).await;
            if self.core.is_idle()
                && let Some(idle) = self.shutdown.take()
            {
                // Nobody waits any more after a second signal.
                let _ = idle.send(());
            }
        }
    }

    // ------------------------------------------------------------ outside -> core

    fn handle_input(&mut self, input: Input, effects: &mut Effects, pending: &mut Vec<Pending>) {
        match input {
            Input::Desired { session_ms, generation, gangs, reply } => {
                self.step(Event::Session { began_ms: session_ms }, effects);
                let result = self.handle_desired(generation, gangs, effects);
                pending.push((reply, result));
            }
            Input::LogsComplete(key) => self.step(Event::LogsComplete(key), effects),
            Input::Shutdown { idle } => {
                self.shutdown = Some(idle);
                self.step(Event::Shutdown, effects);
            }
        }
    }

    fn handle_desired(
        &mut self,
        generation: Generation,
        gangs: Vec<DesiredGang>,
        effects: &mut Effects,
    ) -> Result<(), String> {
        let failed = gangs.iter().filter(|gang| gang.order == Order::Stop { keep_scene: true });
        self.failed.extend(failed.map(|gang| (gang.gang.clone(), gang.epoch)));
        let (set, assignments) = desired_set(generation, gangs).map_err(|e| e.to_string())?;
        let before = self.core.held();
        let mut own = Effects::default();
        self.step(Event::Desired(set), &mut own);
        if self.core.held() != before {
            // Only now, so that a state that is refused leaves no trace.
            self.assignments.extend(assignments);
        }
        let broken_rule = own.list.iter().find_map(|effect| match effect {
            Effect::ProtocolError(rule) => Some(rule.clone()),
            _ => None,
        });
        effects.ledger = own.ledger.or(effects.ledger.take());
        effects.list.append(&mut own.list);
        broken_rule.map_or(Ok(()), Err)
    }

    fn handle_supervisor(&mut self, event: SupervisorEvent, effects: &mut Effects) {
        match event {
            SupervisorEvent::MemberChanged { key, state } => {
                let change = member_change(&state);
                if let MemberState::Ended(ended) = state {
                    self.ends.entry(key.clone()).or_insert(ended);
                }
                if let Some(change) = change {
                    self.step(Event::MemberChanged { key, change }, effects);
                }
            }
            SupervisorEvent::GangChanged { report } => {
                let (gang, epoch) = (report.gang.clone(), report.epoch);
                self.gangs.insert((gang.clone(), epoch), report);
                self.step(Event::GangChanged { gang, epoch }, effects);
            }
            SupervisorEvent::GuestChanged { key, operation, state } => {
                let (gang, epoch) = (key.gang.clone(), key.epoch);
                let done = self.guests.entry(key).or_default();
                // Work for an earlier order may end later than that for the last one.
                if !matches!(done.get(&operation), Some(GuestState::Swept { .. })) {
                    done.insert(operation, state);
                }
                self.step(Event::GangChanged { gang, epoch }, effects);
            }
            SupervisorEvent::CheckpointMade { key, checkpoint } => {
                let (gang, epoch) = (key.gang.clone(), key.epoch);
                self.checkpoints.insert(key, checkpoint);
                self.step(Event::GangChanged { gang, epoch }, effects);
            }
            SupervisorEvent::SavedChanged { key, saved } => {
                let (gang, epoch) = (key.gang.clone(), key.epoch);
                self.saved.insert(key, saved);
                self.step(Event::GangChanged { gang, epoch }, effects);
            }
        }
    }

    fn step(&mut self, event: Event, effects: &mut Effects) {
        let contact = *self.channels.contact.borrow();
        let at = contact.map(|at| (at.session_ms, at.boot_ms));
        if let Some((session_ms, boot_ms)) = at.filter(|_| at != self.core.contact()) {
            let event = Event::Contact { session_ms, boot_ms };
            self.core.step(event, Timestamp::now(), effects);
        }
        let quiet = event == Event::Tick;
        let text = tracing::enabled!(tracing::Level::DEBUG).then(|| format!("{event:?}"));
        let before = effects.list.len();
        self.core.step(event, Timestamp::now(), effects);
        let done = effects.list.get(before..).unwrap_or_default();
        if let Some(event) = text.filter(|_| !quiet || !done.is_empty()) {
            tracing::debug!(event, effects = ?done, ledger = effects.ledger.is_some(), "step");
        }
    }

    /// Counts what the newest sample says of the GPUs of members that run.
    fn measure(&mut self) {
        let Some(newest) = self.channels.samples.borrow().clone() else { return };
        let running =
            self.core.members().filter(|(_, member)| matches!(member.phase, Phase::Running { .. }));
        let owned = running.flat_map(|(key, member)| member.gpus.iter().map(move |gpu| (gpu, key)));
        let (owners, now_ms) = (owned.collect(), Timestamp::now().boot_ms);
        self.meter.take(newest.number, &newest.sample, &owners, now_ms);
    }

    // ------------------------------------------------------------ core -> outside

    /// Carries out effects, and those that follow from them, until there are none.
    async fn carry_out(&mut self, mut effects: Effects, pending: Vec<Pending>) {
        let mut report = false;
        if let Some(durable) = effects.ledger.take() {
            self.write_ledger(durable).await;
        }
        for (reply, result) in pending {
            // The session may have ended meanwhile; the state is held all the same.
            let _ = reply.send(result);
        }
        let mut queue = VecDeque::from(effects.list);
        while let Some(effect) = queue.pop_front() {
            let Some(event) = self.perform(effect, &mut report).await else { continue };
            let mut more = Effects::default();
            self.step(event, &mut more);
            if let Some(durable) = more.ledger.take() {
                self.write_ledger(durable).await;
            }
            queue.extend(more.list);
        }
        self.forget_unneeded();
        self.publish(report);
    }

    /// Carries out one effect. Returns the event that it ends in, if it does at once.
    async fn perform(&mut self, effect: Effect, report: &mut bool) -> Option<Event> {
        match effect {
            Effect::Start(key) => match self.plan(&key) {
                Some(plan) => self.members.start(plan),
                None => tracing::error!(%key, "no assignment to start"),
            },
            Effect::Adopt(key) => match self.plan(&key) {
                Some(plan) => self.members.adopt(plan),
                None => tracing::error!(%key, "no assignment to adopt"),
            },
            Effect::Update(key) => {
                if let Some(plan) = self.plan(&key) {
                    self.members.update(&key, plan.assignment);
                }
            }
            Effect::Stop { key, grace } => {
                let keep_scene = self.failed.contains(&(key.gang.clone(), key.epoch));
                self.members.stop(&key, grace, keep_scene);
            }
            Effect::Release(key) => {
                return Some(match self.members.release(&key).await {
                    Ok(()) => Event::Released(key),
                    Err(error) => {
                        tracing::warn!(%key, %error, "files of a member stay; tried again later");
                        Event::ReleaseFailed(key)
                    }
                });
            }
            Effect::ReportChanged => *report = true,
            // Answered to the link by `handle_desired`.
            Effect::ProtocolError(rule) => tracing::error!(rule, "the coordinator broke a rule"),
            Effect::Warn(text) => tracing::warn!(text, "unexpected event ignored"),
        }
        None
    }

    fn plan(&self, key: &MemberKey) -> Option<MemberPlan> {
        let assignment = self.assignments.get(&(key.gang.clone(), key.epoch))?;
        let member = assignment.members.iter().find(|member| member.member == key.member)?;
        Some(MemberPlan {
            key: key.clone(),
            assignment: assignment.clone(),
            member: member.clone(),
        })
    }

    /// Returns only when the state is durable: nothing may be done before. What runs goes on
    /// meanwhile, and the link keeps the session alive.
    async fn write_ledger(&self, durable: Durable) {
        let durable = Arc::new(durable);
        let assignments = Arc::new(self.assignments.clone());
        loop {
            let (ledger, durable) = (self.ledger.clone(), durable.clone());
            let assignments = assignments.clone();
            let written =
                tokio::task::spawn_blocking(move || ledger.write(&durable, &assignments)).await;
            let error = match written {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            tracing::error!(error, "the ledger is not durable, so nothing is started or stopped");
            tokio::time::sleep(LEDGER_RETRY).await;
        }
    }

    fn forget_unneeded(&mut self) {
        let core = &self.core;
        self.ends.retain(|key, _| core.member(key).is_some());
        self.checkpoints.retain(|key, _| core.member(key).is_some());
        self.saved.retain(|key, _| core.member(key).is_some());
        self.meter.retain(|key| core.member(key).is_some());
        self.gangs.retain(|(gang, epoch), _| core.knows(gang, *epoch));
        self.assignments.retain(|(gang, epoch), _| core.knows(gang, *epoch));
        self.failed.retain(|(gang, epoch)| core.knows(gang, *epoch));
        let assignments = &self.assignments;
        self.guests.retain(|key, done| {
            let assignment = assignments.get(&(key.gang.clone(), key.epoch));
            let listed = assignment.map_or(&[][..], |assignment| &assignment.guests);
            done.retain(|operation, _| listed.iter().any(|guest| guest.operation == *operation));
            !done.is_empty() && core.member(key).is_some()
        });
    }

    /// Leaves the report, the files to follow and the status where others look.
    fn publish(&mut self, report: bool) {
        let at_ms = Timestamp::now().boot_ms;
        let report = report || self.meter.is_due(at_ms);
        if report || self.channels.outlook.borrow().held != self.core.held() {
            let ready = self.core.is_report_ready();
            self.meter.reported(at_ms);
            let known = Known {
                ends: &self.ends,
                gangs: &self.gangs,
                guests: &self.guests,
                checkpoints: &self.checkpoints,
                saved: &self.saved,
                usage: self.meter.counts(),
            };
            let report = ready.then(|| Arc::new(node_report(&self.core, &known, at_ms)));
            self.channels.outlook.send_replace(Outlook { held: self.core.held(), report, at_ms });
        }
        send_news(&self.channels.tail, self.tail_plan());
        send_news(&self.channels.holders, self.holders());
        let gangs = self.present().map(|(key, _)| key.gang.clone()).collect();
        send_news(&self.channels.gangs, gangs);
        let link = self.channels.link.borrow().clone();
        self.status.refresh(|| Status::of(&self.core, &link));
    }

    /// Members that may have a process.
    fn present(&self) -> impl Iterator<Item = (&MemberKey, &Member)> {
        self.core.members().filter(|(_, member)| {
            !matches!(member.phase, Phase::Waiting | Phase::Ended(_) | Phase::Refused(_))
        })
    }

    fn holders(&self) -> Holders {
        let held = self.present().flat_map(|(key, member)| {
            let assignment = self.assignments.get(&(key.gang.clone(), key.epoch));
            let job = assignment.map(|assignment| assignment.job.clone());
            let holder = Holder { gang: key.gang.clone(), job };
            member.gpus.iter().map(move |gpu| (gpu.clone(), holder.clone()))
        });
        held.collect()
    }

    fn tail_plan(&self) -> TailPlan {
        let followed = self.core.members().filter_map(|(key, member)| {
            let ended = match &member.phase {
                Phase::Waiting | Phase::Refused(_) => return None,
                Phase::Ended(end) if !end.ran || end.logs_complete => return None,
                Phase::Ended(_) => true,
                Phase::Adopting | Phase::Starting | Phase::Running { .. } | Phase::Stopping => {
                    false
                }
            };
            let sources = self.members.log_files(key);
            Some((key.clone(), TailMember { sources, ended }))
        });
        TailPlan { members: followed.collect() }
    }
}

/// Tells who listens only when it is another value.
fn send_news<T: PartialEq>(channel: &watch::Sender<T>, value: T) {
    channel.send_if_modified(|current| {
        let differs = *current != value;
        if differs {
            *current = value;
        }
        differs
    });
}

#[cfg(test)]
mod tests;
