//! What an agent's process holds: the real core, and what the driver and the supervisor around it
//! remember. All of it goes with the process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gangline_agent_core::assignment::{
    DesiredSet, Digest, GangOrder, MemberOrder, Order, Phase as AgentPhase, Refusal, RunOrder,
};
use gangline_agent_core::{Core, event};
use gangline_common::ids::{Epoch, GangId, MemberId, MemberKey, NodeId};
use gangline_core::effect::{Desired, DesiredGuest, Push};
use gangline_core::event::{CheckpointWord, GangFacts, GuestFact, GuestWord, Report};
use gangline_core::gang::{End, EndHow, Gang, Phase};
use gangline_core::job::{GuestPhase, Job, JobState};

use crate::fencing::after_ms;
use crate::network::CoordinatorWord;
use crate::process::Process;

/// The content of one assignment: what the core decides about without reading it.
#[derive(Debug)]
pub struct Plan {
    pub job: Arc<Job>,
    pub gang: Arc<Gang>,
    pub guests: Vec<GuestPlan>,
}

/// What a node has to do for a guest.
#[derive(Debug)]
pub struct GuestPlan {
    pub operation: String,
    pub order: GuestOrder,
    pub ranks: Vec<MemberId>,
    pub guest: DesiredGuest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestOrder {
    Prepare,
    Run,
    Watch,
    Stop,
    Sweep,
}

/// Plans by incarnation.
pub type Plans = BTreeMap<(GangId, Epoch), Arc<Plan>>;

/// A whole desired state on its way to the agent.
#[derive(Debug)]
pub struct Orders {
    pub set: DesiredSet,
    pub plans: Plans,
}

impl Orders {
    /// As the coordinator's outbox and the agent's translation make it.
    pub fn of(push: &Push) -> Orders {
        let mut plans = Plans::new();
        let gangs = push.gangs.iter().map(|desired| match desired {
            Desired::Run { job, gang, guests, .. } => {
                let guests = guest_plans(guests, gang, &push.node);
                let plan = Plan { job: job.clone(), gang: gang.clone(), guests };
                let members = gang.members_on(&push.node);
                let order = RunOrder {
                    members: members
                        .map(|(member, share)| MemberOrder { member, gpus: share.gpus.clone() })
                        .collect(),
                    grace: Duration::from_millis(job.request.grace_ms),
                    contact_within: after_ms(job).map(Duration::from_millis),
                    digest: digest(&plan),
                };
                plans.insert((gang.id.clone(), gang.epoch), Arc::new(plan));
                GangOrder { gang: gang.id.clone(), epoch: gang.epoch, order: Order::Run(order) }
            }
            Desired::Stop { gang, epoch, .. } => {
                GangOrder { gang: gang.clone(), epoch: *epoch, order: Order::Stop }
            }
        });
        let gangs = gangs.collect();
        Orders { set: DesiredSet { generation: push.generation, gangs }, plans }
    }
}

/// The guests that the node has something to do for, as the coordinator's outbox lists them.
fn guest_plans(guests: &[DesiredGuest], gang: &Gang, node: &NodeId) -> Vec<GuestPlan> {
    let has_head = gang.members_on(node).any(|(id, _)| id == MemberId::Head);
    let plan = |wanted: &DesiredGuest| {
        let guest = wanted.attempt.guest.as_ref()?;
        let ranks: Vec<MemberId> =
            guest.shares.iter().map(|share| MemberId::Rank(share.rank)).collect();
        let has_share = gang.members_on(node).any(|(id, _)| ranks.contains(&id));
        let order = match guest.phase {
            GuestPhase::Preparing if has_share => GuestOrder::Prepare,
            GuestPhase::Running if has_head && wanted.job.state == JobState::Running => {
                GuestOrder::Watch
            }
            GuestPhase::Running if has_head => GuestOrder::Run,
            GuestPhase::Stopping if has_head => GuestOrder::Stop,
            GuestPhase::Sweeping => GuestOrder::Sweep,
            GuestPhase::Preparing
            | GuestPhase::Running
            | GuestPhase::Stopping
            | GuestPhase::Over => return None,
        };
        let operation = wanted.job.operation(wanted.attempt.number);
        Some(GuestPlan { operation, order, ranks, guest: wanted.clone() })
    };
    guests.iter().filter_map(plan).collect()
}

/// Tells two contents of one incarnation apart (FNV-1a over what can differ).
fn digest(plan: &Plan) -> Digest {
    let mut hash = Hash::default();
    hash.add(&plan.gang.attempt.to_be_bytes());
    for guest in &plan.guests {
        hash.add(guest.operation.as_bytes());
        hash.add(&[guest.order as u8]);
    }
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&hash.0.to_be_bytes());
    Digest(digest)
}

/// FNV-1a.
#[derive(Debug, Clone, Copy)]
pub struct Hash(pub u64);

impl Default for Hash {
    fn default() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Something that waits for the agent's driver.
#[derive(Debug, Clone)]
pub enum Input {
    Event(event::Event),
    Desired { session: u64, orders: Arc<Orders> },
}

/// Where the agent's link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contact {
    /// It dials again at a moment that is scheduled.
    Waiting,
    Dialing {
        session: u64,
        since_ms: u64,
    },
    Connected {
        session: u64,
        answered_ms: u64,
    },
}

/// At which point a kill hits the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hit {
    /// Before the next write of the ledger is durable: a torn write is none.
    BeforeLedger,
    /// After it, before anything is done.
    AfterLedger,
    /// Between two things that are done.
    AmidEffects,
}

/// One process of an agent.
#[derive(Debug)]
pub struct Agent {
    pub core: Core,
    /// Names the process; grows with every start.
    pub instance: u64,
    pub contact: Contact,
    /// Tries to connect since the last session that lived.
    pub tries: u32,
    pub plans: Plans,
    /// Members that the supervisor follows.
    pub attached: BTreeSet<MemberKey>,
    /// What Ray's watch has said.
    pub facts: BTreeMap<(GangId, Epoch), GangFacts>,
    /// What members have done for guests, by operation.
    pub guests: BTreeMap<MemberKey, BTreeMap<String, GuestFact>>,
    /// Waits for the disk of the ledger.
    pub inbox: VecDeque<Input>,
    /// Waits for the whole process, by session.
    pub words: VecDeque<(u64, CoordinatorWord)>,
    pub hit: Option<Hit>,
    /// Names of the training checkpoints that it has reported.
    pub said_saved: BTreeMap<MemberKey, String>,
    /// The newest contact: the session, and the send time of the word that the coordinator has
    /// answered, by the boot clock.
    pub contact_at: Option<(u64, u64)>,
    /// Its samples are words of the node, and so many have been sent since its last heartbeat. Half of the
    /// agents have none, as nodes without readings.
    pub samples: Option<u8>,
}

/// Bound of what waits for an agent that does not move.
pub const INBOX_LIMIT: usize = 1024;

impl Agent {
    pub fn new(instance: u64) -> Self {
        Agent {
            core: Core::new(),
            instance,
            contact: Contact::Waiting,
            tries: 0,
            plans: Plans::new(),
            attached: BTreeSet::new(),
            facts: BTreeMap::new(),
            guests: BTreeMap::new(),
            inbox: VecDeque::new(),
            words: VecDeque::new(),
            hit: None,
            said_saved: BTreeMap::new(),
            contact_at: None,
            samples: instance.is_multiple_of(2).then_some(0),
        }
    }

    pub fn session(&self) -> Option<u64> {
        match self.contact {
            Contact::Connected { session, .. } => Some(session),
            Contact::Waiting | Contact::Dialing { .. } => None,
        }
    }

    /// The whole truth; `None` while members of an earlier run are looked for.
    pub fn report(&self, processes: &BTreeMap<MemberKey, Process>, now_ms: u64) -> Option<Report> {
        if !self.core.is_report_ready() {
            return None;
        }
        let members = self.core.members();
        let members =
            members.map(|(key, member)| (key.clone(), phase(&member.phase, processes.get(key))));
        let guests = self.guests.iter().flat_map(|(key, done)| {
            done.iter().map(|(operation, fact)| GuestWord {
                key: key.clone(),
                operation: operation.clone(),
                fact: fact.clone(),
            })
        });
        Some(Report {
            held: self.core.held(),
            members: members.collect(),
            gangs: self.facts.values().cloned().collect(),
            guests: guests.collect(),
            checkpoints: self.saved(processes, now_ms).collect(),
            saved: Vec::new(),
            usage: Vec::new(),
        })
    }

    /// What rank 0 of each gang has saved, as the agent that follows it sees it.
    pub fn saved<'a>(
        &'a self,
        processes: &'a BTreeMap<MemberKey, Process>,
        now_ms: u64,
    ) -> impl Iterator<Item = CheckpointWord> + 'a {
        let firsts = self.attached.iter().filter(|key| key.member == MemberId::Rank(0));
        firsts.filter_map(move |key| {
            let (number, made_ms) = processes.get(key)?.saved(now_ms)?;
            let name = format!("global_step_{number}");
            Some(CheckpointWord { key: key.clone(), name, age_ms: now_ms - made_ms })
        })
    }

    /// What the driver no longer needs goes.
    pub fn forget_unneeded(&mut self) {
        let core = &self.core;
        self.facts.retain(|(gang, epoch), _| core.knows(gang, *epoch));
        self.plans.retain(|(gang, epoch), _| core.knows(gang, *epoch));
        self.attached.retain(|key| core.member(key).is_some());
        let plans = &self.plans;
        self.guests.retain(|key, done| {
            let plan = plans.get(&(key.gang.clone(), key.epoch));
            let listed = plan.map_or(&[][..], |plan| &plan.guests);
            done.retain(|operation, _| listed.iter().any(|guest| guest.operation == *operation));
            !done.is_empty() && core.member(key).is_some()
        });
    }
}

/// A member's phase as the coordinator reads it in a report.
fn phase(phase: &AgentPhase, process: Option<&Process>) -> Phase {
    match phase {
        AgentPhase::Waiting | AgentPhase::Adopting | AgentPhase::Starting => Phase::Starting,
        AgentPhase::Running { pid } => Phase::Running { pid: *pid },
        AgentPhase::Stopping => Phase::Stopping,
        AgentPhase::Refused(refusal) => Phase::Ended(refused(refusal)),
        AgentPhase::Ended(end) => {
            let gone = || EndHow::Failed { reason: "no process of it was found".to_owned() };
            Phase::Ended(End {
                how: process.map_or_else(gone, |process| process.exit.clone()),
                asked: end.asked,
                last_output: String::new(),
                logs_complete: end.logs_complete,
            })
        }
    }
}

fn refused(refusal: &Refusal) -> End {
    let never = |reason| EndHow::Refused { reason, busy_port: None };
    let how = match refusal {
        Refusal::PortBusy { port } => {
            EndHow::Refused { reason: format!("port {port} is in use"), busy_port: Some(*port) }
        }
        Refusal::GpuHeld { gpu, by } => never(format!("{gpu} is still held by {by}")),
        Refusal::StaleEpoch { highest } => never(format!("the agent has seen epoch {highest}")),
        Refusal::Impossible { reason } => never(reason.clone()),
        Refusal::Unfit { reason } => EndHow::Unfit { reason: reason.clone() },
    };
    End { how, asked: false, last_output: String::new(), logs_complete: true }
}
