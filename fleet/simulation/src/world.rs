//! The whole fleet and the queue of what happens next. One thread, one seed, one history.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use gangline_agent_core::event::Event as AgentEvent;
use gangline_common::ids::{JobId, MemberKey};
use gangline_core::recovery::Verdict;

use crate::checks::Checks;
use crate::clock::Clock;
use crate::coordinator::Coordinator;
use crate::disk::{Codec, Disk};
use crate::faults::Weather;
use crate::network::{AgentWord, CoordinatorWord, Packet, USUAL_MS};
use crate::node::{DEFAULT, NodeSim, SPARE};
use crate::random::Random;
use crate::ray::Cluster;
use crate::tally::Tally;
use crate::users::Users;

/// A bug in the code around a core: the cores have their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverBug {
    /// The coordinator tells agents and users before its commit.
    ActBeforeCommit,
    /// The agent acts before its ledger is written.
    ActBeforeLedger,
}

/// How long the faults go on.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// Heartbeats do not count, the ticks that leases are looked at do.
    Events(u64),
    Milliseconds(u64),
}

/// One history to run.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    pub seed: u64,
    pub length: Length,
    /// Fewest and most nodes.
    pub nodes: (u64, u64),
    pub codec: &'a Codec,
    /// Every invariant of the coordinator's core, and the replay of its disk, after so many commits that wrote something.
    pub deep_every: u64,
    /// Wall clocks are set; without, the same history must come out (I15).
    pub wall_jumps: bool,
    /// There is what only the coordinator's wall clock tells: durations over a start of its machine, and
    /// the earliest start of a job.
    pub reboots: bool,
    pub driver_bug: Option<DriverBug>,
    /// What happens is printed from this step on.
    pub shown_from: Option<u64>,
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub seed: u64,
    pub step: u64,
    pub what: String,
}

/// What a history came to.
#[derive(Debug, Default)]
pub struct Outcome {
    pub tally: Tally,
    pub steps: u64,
    pub simulated_ms: u64,
    /// Over everything that the coordinator decided, without a moment of the wall clock.
    pub decisions: u64,
}

/// What happens at one moment.
#[derive(Debug)]
pub enum Happening {
    /// The coordinator's tick, and the checks that are due.
    Beat,
    Commit {
        life: u64,
    },
    /// Somebody has found out why an attempt failed.
    Verdict {
        life: u64,
        job: JobId,
        attempt: u32,
        verdict: Box<Verdict>,
    },
    Arrives(Packet),
    /// The server noticed that a session is over.
    SessionOver {
        session: u64,
    },
    /// An agent's tick and heartbeat.
    AgentBeat {
        node: usize,
        life: u64,
    },
    AgentStarts {
        node: usize,
    },
    Dials {
        node: usize,
        life: u64,
    },
    /// Processes of a member move on.
    Process {
        node: usize,
        key: MemberKey,
        due_ms: u64,
    },
    /// A shim looks at the deadline of its member.
    Shim {
        node: usize,
        key: MemberKey,
        wakes_ms: u64,
    },
    /// The supervisor has something to say.
    Supervisor {
        node: usize,
        life: u64,
        event: AgentEvent,
    },
    /// The supervisor has looked for a member of an earlier run.
    Adopted {
        node: usize,
        life: u64,
        key: MemberKey,
    },
    /// An agent that was held up goes on.
    GoesOn {
        node: usize,
    },
    LinkHeals {
        node: usize,
        cut: u64,
    },
    User,
    Fault,
}

/// A place in the queue: the earlier first, and of one moment the one that was put in first.
struct Due {
    at: Reverse<(u64, u64)>,
    happening: Happening,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

pub struct World<'a> {
    pub settings: Settings<'a>,
    pub random: Random,
    /// Moment of simulated time, in milliseconds.
    pub now_ms: u64,
    pub steps: u64,
    queue: BinaryHeap<Due>,
    queued: u64,
    pub nodes: Vec<NodeSim>,
    pub coordinator: Option<Coordinator>,
    pub clock: Clock,
    pub disk: Disk,
    /// Ray clusters, by incarnation.
    pub clusters: BTreeMap<(gangline_common::ids::GangId, gangline_common::ids::Epoch), Cluster>,
    pub users: Users,
    pub weather: Weather,
    pub checks: Checks,
    pub tally: Tally,
    pub next_number: u64,
    pub broken: Option<String>,
    /// Faults and users have stopped.
    pub is_healing: bool,
}

impl<'a> World<'a> {
    pub fn new(settings: Settings<'a>) -> Self {
        let mut random = Random::new(settings.seed);
        let count = random.between(settings.nodes.0, settings.nodes.1);
        // A head node of its own, now and then.
        let has_head_node = random.one_in(2);
        let has_pools = random.one_in(2);
        let nodes = (0..count as usize).map(|index| {
            let is_head = has_head_node && index == 0;
            let gpus = if is_head { 0 } else { random.between(1, 4) as u32 };
            let host = if random.one_in(3) { index as u64 / 2 * 2 } else { index as u64 };
            let is_spare = has_pools && random.one_in(3);
            NodeSim::new(index, gpus, is_head, host, if is_spare { SPARE } else { DEFAULT })
        });
        let nodes = nodes.collect();
        let weather = Weather::of(&mut random);
        World {
            settings,
            random,
            now_ms: 0,
            steps: 0,
            queue: BinaryHeap::new(),
            queued: 0,
            nodes,
            coordinator: None,
            clock: Clock::new(5_000_000),
            disk: Disk::default(),
            clusters: BTreeMap::new(),
            users: Users::default(),
            weather,
            checks: Checks::default(),
            tally: Tally::default(),
            next_number: 1,
            broken: None,
            is_healing: false,
        }
    }

    /// Runs the history to its end.
    pub fn run(mut self) -> Result<Outcome, Broken> {
        let result = self.play();
        let outcome = Outcome {
            tally: std::mem::take(&mut self.tally),
            steps: self.steps,
            simulated_ms: self.now_ms,
            decisions: self.checks.decisions.0,
        };
        match result {
            Ok(()) => Ok(outcome),
            Err(what) => Err(Broken { seed: self.settings.seed, step: self.steps, what }),
        }
    }

    fn play(&mut self) -> Result<(), String> {
        self.begin();
        while self.has_more() {
            self.step()?;
        }
        self.heal()
    }

    fn has_more(&self) -> bool {
        match self.settings.length {
            Length::Events(events) => self.steps < events,
            Length::Milliseconds(ms) => self.now_ms < ms,
        }
    }

    fn begin(&mut self) {
        self.start_coordinator(false);
        for node in 0..self.nodes.len() {
            self.join(node);
            let wait = self.random.below(3_000);
            self.after(wait, Happening::AgentStarts { node });
        }
        self.after(100, Happening::Beat);
        self.after(4_000, Happening::User);
        let first = self.random.between(5_000, 30_000);
        self.after(first, Happening::Fault);
    }

    /// One thing happens; everything is checked.
    pub fn step(&mut self) -> Result<(), String> {
        let Some(Due { at: Reverse((moment, _)), happening }) = self.queue.pop() else {
            return Err("nothing happens any more".to_owned());
        };
        self.now_ms = self.now_ms.max(moment);
        let counts = !matches!(
            happening,
            Happening::AgentBeat { .. }
                | Happening::Shim { .. }
                | Happening::Arrives(
                    Packet::Up { word: AgentWord::Heartbeat { .. } | AgentWord::Sample, .. }
                        | Packet::Down { word: CoordinatorWord::HeartbeatAck { .. }, .. }
                )
        );
        self.steps += u64::from(counts);
        if counts && self.is_shown() {
            eprintln!("  {:>7} {:>10.3} s  {happening:?}", self.steps, self.now_ms as f64 / 1e3);
        }
        self.happen(happening);
        match self.broken.take() {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Beat => {
                self.after(500, Happening::Beat);
                self.coordinator_beat();
                self.ray_looks();
                self.check_time_bounds();
            }
            Happening::Commit { life } => self.commit_due(life),
            Happening::Verdict { life, job, attempt, verdict } => {
                self.verdict_comes(life, job, attempt, verdict);
            }
            Happening::Arrives(packet) => self.arrive(packet),
            Happening::SessionOver { session } => self.session_over(session),
            Happening::AgentBeat { node, life } => self.agent_beat(node, life),
            Happening::AgentStarts { node } => self.agent_starts(node),
            Happening::Dials { node, life } => self.dial(node, life),
            Happening::Process { node, key, due_ms } => self.process_moves(node, &key, due_ms),
            Happening::Shim { node, key, wakes_ms } => self.shim_wakes(node, &key, wakes_ms),
            Happening::Supervisor { node, life, event } => {
                if self.lives(node, life) {
                    self.tell_agent(node, event);
                }
            }
            Happening::Adopted { node, life, key } => {
                if self.lives(node, life) {
                    self.adopted(node, key);
                }
            }
            Happening::GoesOn { node } => self.go_on(node),
            Happening::LinkHeals { node, cut } => {
                if self.nodes[node].link.cut == cut {
                    self.heal_link(node);
                }
            }
            Happening::User => {
                if !self.is_healing {
                    self.user_acts();
                }
            }
            Happening::Fault => {
                if !self.is_healing {
                    self.fault_strikes();
                }
            }
        }
    }

    /// Whether the agent's process of that instance is still there.
    pub fn lives(&self, node: usize, life: u64) -> bool {
        self.nodes[node].agent.as_ref().is_some_and(|agent| agent.instance == life)
    }

    pub fn after(&mut self, wait_ms: u64, happening: Happening) {
        self.queued += 1;
        let at = Reverse((self.now_ms + wait_ms, self.queued));
        self.queue.push(Due { at, happening });
    }

    pub fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Whether what happens now is printed.
    pub fn is_shown(&self) -> bool {
        self.settings.shown_from.is_some_and(|from| self.steps >= from)
    }

    /// The first broken invariant is the one that counts.
    pub fn fail(&mut self, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    /// Puts a word on its way.
    pub fn send(&mut self, packet: Packet) {
        let (node, is_up) = match &packet {
            Packet::Up { node, .. } => (*node, true),
            Packet::Down { node, .. } => (*node, false),
        };
        let link = &mut self.nodes[node].link;
        let way = if is_up { &mut link.up } else { &mut link.down };
        if way.is_cut {
            way.stalled.push_back(packet);
            let stalled = way.stalled.len();
            if stalled > crate::network::STALLED_LIMIT {
                self.fail(|| format!("I16: {stalled} words wait for one link"));
            }
            return;
        }
        let longest = if way.slow_ms > 0 { way.slow_ms } else { USUAL_MS };
        let session = packet.session();
        // A session's own words stay in order; those of two sessions need not.
        let floor = if way.newest_session == session { way.last_ms } else { 0 };
        let arrival = (self.now_ms + 1 + self.random.below(longest)).max(floor);
        if session >= way.newest_session {
            (way.newest_session, way.last_ms) = (session, arrival);
        }
        // A report that is said again changes nothing.
        let again = matches!(&packet, Packet::Up { word: AgentWord::Report(_), .. })
            && self.random.per_mille(10);
        if again {
            self.tally.note("word: report doubled");
            let wait = arrival - self.now_ms;
            self.after(wait, Happening::Arrives(packet.clone()));
        }
        let wait = arrival - self.now_ms;
        self.after(wait, Happening::Arrives(packet));
    }

    /// Words come through again, in the order in which they were sent.
    pub fn heal_link(&mut self, node: usize) {
        let link = &mut self.nodes[node].link;
        let mut packets = Vec::new();
        for way in [&mut link.up, &mut link.down] {
            (way.is_cut, way.slow_ms) = (false, 0);
            packets.extend(way.stalled.drain(..));
        }
        link.is_isolated = false;
        for packet in packets {
            self.send(packet);
        }
        self.disturbed(node);
    }

    fn arrive(&mut self, packet: Packet) {
        match packet {
            Packet::Up { node, session, word } => self.coordinator_hears(node, session, word),
            Packet::Down { node, session, word } => self.agent_hears(node, session, word),
        }
    }
}
