//! Agents without processes: sessions that take an assignment, say that they hold it, and end it when they
//! are told to. Everything up to the agent's ledger is as in a real fleet.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use gangline_common::ids::{Generation, MemberKey, PortBlock};
use gangline_common::transport::TransportError;
use gangline_common::wire::frame::Frame;
use gangline_common::wire::v1::{
    AgentMessage, CoordinatorMessage, DesiredGang, Ended, EndedHow, Heartbeat, MemberReport,
    MemberState, NodeInventory, NodeReport, NodeRole, Order,
};
use gangline_fleet::fleet::Fleet;
use gangline_fleet::raw_agent::{RawAgent, RawSession, hello};
use tokio::sync::mpsc;

/// Frames and orders that wait for an agent.
const MAILBOX: usize = 1024;
/// CPUs of a node, in thousandths, and its memory: gangs never wait for either.
const CPUS_MILLI: u32 = 192_000;
const MEMORY: u64 = 4 << 40;
/// Every agent has a network of its own, and nearly all of its ports.
const PORTS: PortBlock = PortBlock { base: 1_024, size: 60_000 };

enum Input {
    Frame(Frame),
    /// The job's members have done their work.
    End(String),
}

/// Who waits for the word that a job is held, by job; each gets one word per agent.
type Waiting = Arc<Mutex<HashMap<String, mpsc::Sender<Instant>>>>;

/// Nodes that are there as long as this is.
pub struct Agents {
    mailboxes: Vec<mpsc::Sender<Input>>,
    waiting: Waiting,
}

impl Agents {
    /// Joins and connects `count` nodes, and waits until each is ready.
    pub async fn start(fleet: &Fleet, count: usize) -> anyhow::Result<Self> {
        let mut agents = Agents { mailboxes: Vec::new(), waiting: Waiting::default() };
        for number in 0..count {
            let name = format!("held{number}");
            let token = fleet.join_token(1, 600).await?;
            let refused = |refuse: gangline_common::wire::tlv::Refuse| anyhow::anyhow!(refuse.text);
            let agent = RawAgent::join(fleet.quic(), &token).await?.map_err(refused)?;
            let mut session = agent.connect(&hello(&name)).await?.map_err(refused)?;
            let inventory = Box::new(inventory(&name, number));
            session.say(AgentMessage::Inventory(inventory)).await?;
            let (mailbox, inbox) = mpsc::channel(MAILBOX);
            tokio::spawn(serve(session, mailbox.clone(), inbox, agents.waiting.clone()));
            agents.mailboxes.push(mailbox);
            let patience = std::time::Duration::from_secs(20);
            fleet.api()?.wait_node(&name, &["ready"], patience).await?;
        }
        Ok(agents)
    }

    /// When each agent's word came that it holds the assignment of `job`; before the submission.
    pub fn await_job(&self, job: &str) -> mpsc::Receiver<Instant> {
        let (told, words) = mpsc::channel(self.mailboxes.len());
        lock(&self.waiting).insert(job.to_owned(), told);
        words
    }

    /// The members of a job end everywhere.
    pub async fn end(&self, job: &str) -> anyhow::Result<()> {
        for mailbox in &self.mailboxes {
            mailbox.send(Input::End(job.to_owned())).await.ok().context("an agent has ended")?;
        }
        lock(&self.waiting).remove(job);
        Ok(())
    }
}

fn lock(waiting: &Waiting) -> std::sync::MutexGuard<'_, HashMap<String, mpsc::Sender<Instant>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One agent's side of its session.
struct Held {
    generation: Generation,
    /// Gangs that the announced desired state still lacks, and those that came.
    expected: u32,
    coming: Vec<DesiredGang>,
    members: BTreeMap<MemberKey, (String, MemberState)>,
    /// Jobs of which the newest heartbeat says that they are held, by its number.
    said: BTreeMap<u64, Vec<String>>,
    sequence: u64,
}

/// Until the connection ends, which is how a bench ends too.
async fn serve(
    session: RawSession,
    mailbox: mpsc::Sender<Input>,
    inbox: mpsc::Receiver<Input>,
    waiting: Waiting,
) {
    let RawSession { connection, control, mut incoming, endpoint } = session;
    let reader = tokio::spawn(async move {
        while let Ok(Some(frame)) = incoming.receive().await {
            if mailbox.send(Input::Frame(frame)).await.is_err() {
                return;
            }
        }
    });
    if let Err(error) = answer(control, inbox, waiting).await {
        eprintln!("an agent's session has ended: {error:#}");
    }
    reader.abort();
    drop((connection, endpoint));
}

async fn answer(
    mut control: gangline_common::transport::FrameSender,
    mut inbox: mpsc::Receiver<Input>,
    waiting: Waiting,
) -> anyhow::Result<()> {
    let mut held = Held {
        generation: Generation::default(),
        expected: 0,
        coming: Vec::new(),
        members: BTreeMap::new(),
        said: BTreeMap::new(),
        sequence: 0,
    };
    while let Some(input) = inbox.recv().await {
        let news = match input {
            Input::End(job) => held.end(&job),
            Input::Frame(frame) => match CoordinatorMessage::from_frame(&frame)? {
                CoordinatorMessage::DesiredHeader(header) => {
                    held.generation = header.generation;
                    held.expected = header.count;
                    held.coming.clear();
                    (header.count == 0).then(|| held.take())
                }
                CoordinatorMessage::DesiredGang(gang) => {
                    held.coming.push(*gang);
                    (held.coming.len() == held.expected as usize).then(|| held.take())
                }
                CoordinatorMessage::HeartbeatAck(ack) => {
                    let now = Instant::now();
                    for job in held.said.remove(&ack.sequence).unwrap_or_default() {
                        if let Some(told) = lock(&waiting).get(&job) {
                            // Room for a word of every agent; a waiter that left needs none.
                            let _ = told.try_send(now);
                        }
                    }
                    None
                }
                CoordinatorMessage::LogAck(_)
                | CoordinatorMessage::Renewed(_)
                | CoordinatorMessage::HealthCleared(_) => None,
            },
        };
        let Some(new) = news else { continue };
        held.say(&mut control, new).await?;
    }
    Ok(())
}

impl Held {
    /// The whole desired state is there. Gives the jobs that are new.
    fn take(&mut self) -> Vec<String> {
        let mut new = Vec::new();
        let mut members = BTreeMap::new();
        for gang in std::mem::take(&mut self.coming) {
            let Order::Run(assignment) = gang.order else { continue };
            let job = assignment.job.to_string();
            for member in &assignment.members {
                let member = member.member;
                let key = MemberKey { gang: gang.gang.clone(), epoch: gang.epoch, member };
                let known = self.members.remove(&key).unwrap_or_else(|| {
                    new.push(job.clone());
                    (job.clone(), MemberState::Starting)
                });
                members.insert(key, known);
            }
        }
        self.members = members;
        new
    }

    /// A job's members are over; `None` when there are none of it here.
    fn end(&mut self, job: &str) -> Option<Vec<String>> {
        let mut found = false;
        for (_, state) in self.members.values_mut().filter(|(of, _)| of == job) {
            found = true;
            *state = MemberState::Ended(Ended {
                how: EndedHow::Exited { code: 0 },
                asked: false,
                last_output: String::new(),
                swept: 0,
                logs_complete: true,
            });
        }
        found.then(Vec::new)
    }

    /// The report, and right behind it a heartbeat: its answer says that the report was read.
    async fn say(
        &mut self,
        control: &mut gangline_common::transport::FrameSender,
        new: Vec<String>,
    ) -> Result<(), TransportError> {
        let members = self.members.iter().map(|(key, (_, state))| MemberReport {
            key: key.clone(),
            state: state.clone(),
            guests: Vec::new(),
            checkpoint: None,
            saved: None,
            usage: None,
        });
        let (held, gangs) = (self.generation, Vec::new());
        let report = NodeReport { held, members: members.collect(), gangs };
        control.send(&AgentMessage::Report(report).to_frame()?).await?;
        if new.is_empty() {
            return Ok(());
        }
        self.sequence += 1;
        self.said.insert(self.sequence, new);
        let beat = Heartbeat { sequence: self.sequence, held };
        control.send(&AgentMessage::Heartbeat(beat).to_frame()?).await
    }
}

/// What a node says of itself.
pub fn inventory(name: &str, number: usize) -> NodeInventory {
    NodeInventory {
        name: name.to_owned(),
        hostname: name.to_owned(),
        agent_version: "bench".to_owned(),
        roles: vec![NodeRole::Worker],
        pool: None,
        labels: Vec::new(),
        address: IpAddr::from([127, 0, 0, 1]),
        interface: None,
        boot_id: format!("boot-{number}"),
        network_namespace: number as u64 + 1,
        container_start_ms: 1,
        gpus: Vec::new(),
        cpus_milli: CPUS_MILLI,
        memory_bytes: MEMORY,
        shm_bytes: MEMORY,
        pids_limit: None,
        ports: PORTS,
        versions: Vec::new(),
        doctor: Vec::new(),
    }
}
