//! The two-incarnations rule as a model whose whole state space is explored: a Ray gang of two
//! nodes, one with the head and one with a rank, which can be cut from the coordinator and from
//! each other at any time; agents that die while their shims live, and that start again; messages
//! that are lost, late and repeated; and a third node with a gang of its own, whose place the next
//! attempt takes.
//!
//! The coordinator's half is the real `fencing::gone_at`. A cut needs no state of its own: a tick
//! in which nothing arrives is one in which the link is down.
//!
//! Times are ages in ticks, capped where nothing depends on them any more, so that the space is
//! finite without a last day.

use std::time::{Duration, Instant};

use gangline_core::fencing::{Place, Rule, Waits, gone_at};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

/// Time of the policy, of the grace and of Ray's health checks, in ticks.
const AFTER: u8 = 2;
const GRACE: u8 = 1;
const NOTICE: u8 = 2;
/// Without word for this long a node is lost.
const LOST: u8 = 1;
/// Beyond this age nothing of the coordinator's depends on an age: the longest wait, and one.
const CAP: u8 = 2 * (AFTER + GRACE + 1) + NOTICE + 1;

const HEAD: usize = 0;
const RANK: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Fence,
    Keep,
    StopAfter,
}

/// Errors that somebody could make; each must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// `fence` gives up a silent node without anybody who has seen that the gang is incomplete.
    NoWitness,
    /// The agent takes the arrival of an answer for contact, not the heartbeat that it answers.
    AnswerIsContact,
    /// An agent that starts again goes on with what its ledger says.
    StartsFromLedger,
    /// A shim without an agent stops counting.
    NeedsAgent,
    /// The head's end is expected as soon as a rank has gone, before Ray notices.
    NoNotice,
    /// A silent node is given up at once.
    SilenceIsEnough,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Agent {
    Up,
    Dead,
    /// Started again; the coordinator has not yet said what is to run.
    Uninformed,
    /// Started again and informed; it does not die a second time.
    Informed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Member {
    /// Accepted; its GPU is not free yet.
    Waiting,
    /// `good`: the age of the newest contact or, under `fence`, sight of the complete gang.
    Running {
        good: u8,
    },
    /// Told to end; gone within the grace.
    Dying {
        age: u8,
    },
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    agent: Agent,
    member: Member,
    /// Age of the agent's newest contact, capped at `AFTER`.
    contact: u8,
    /// Age of the heartbeat whose answer is on its way.
    answer: Option<u8>,

    // What the coordinator knows.
    silent: u8,
    /// Age of the news that nothing is left here.
    ended: Option<u8>,
}

impl Node {
    fn lives(&self) -> bool {
        matches!(self.member, Member::Running { .. } | Member::Dying { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Seen {
    Never,
    Alive,
    /// Gone or out of reach for so long, and still shown as alive.
    Doubted(u8),
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; 2],
    /// The rank as Ray's head shows it.
    seen: Seen,
    /// The gang has been incomplete at some time, or somebody told it to stop.
    disturbed: bool,
    /// A member has stopped itself.
    fenced: bool,
    /// The coordinator stops the attempt.
    stopping: bool,
    /// The next attempt has started on a node that is free and on the third.
    next_started: bool,
    /// The third node's own gang.
    other_runs: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    /// Time passes; with or without a link between the two nodes.
    Tick {
        ray_link: bool,
    },
    /// The coordinator hears a heartbeat of this age and answers it.
    Heard(usize, u8),
    /// The answer arrives; it may arrive again.
    Answered(usize),
    AgentDies(usize),
    AgentStarts(usize),
    /// A desired state that still lists the gang arrives.
    Informed(usize),
    Started(usize),
    /// The member ends by itself, or its raylet does.
    Exits(usize),
    Stop,
    StopArrives(usize),
    EndReported(usize),
    OtherEnds,
    StartNext,
}

#[derive(Clone)]
struct Fencing {
    policy: Policy,
    mistake: Mistake,
    /// One node only: no witness, so `fence` means `keep`.
    single: bool,
}

impl Fencing {
    fn rule(&self) -> Rule {
        let notice = if self.mistake == Mistake::NoNotice { 0 } else { NOTICE };
        let waits =
            Waits { after_ms: AFTER.into(), grace_ms: GRACE.into(), notice_ms: notice.into() };
        match self.policy {
            Policy::Keep => Rule::Keep,
            Policy::StopAfter => Rule::StopAfter(waits),
            Policy::Fence if self.mistake == Mistake::NoWitness => Rule::StopAfter(waits),
            Policy::Fence if self.single => Rule::Keep,
            Policy::Fence => Rule::Fence(waits),
        }
    }

    /// Whether shims stop their members at all.
    fn has_deadline(&self) -> bool {
        match self.policy {
            Policy::Keep => false,
            Policy::StopAfter => true,
            Policy::Fence => !self.single,
        }
    }

    fn places(&self) -> std::ops::RangeInclusive<usize> {
        HEAD..=if self.single { HEAD } else { RANK }
    }

    /// Whether every member of the attempt is known to be gone.
    fn may_start_next(&self, state: &State) -> bool {
        const NOW: u64 = 100;
        let at = |age: u8| NOW - u64::from(age);
        let nodes = || self.places().filter_map(|index| state.nodes.get(index));
        let lost = |node: &Node| node.silent >= LOST;
        let places: Vec<Place> = nodes()
            .enumerate()
            .map(|(index, node)| Place {
                has_head: index == HEAD,
                lost_since_ms: lost(node).then(|| at(node.silent)),
                ended_ms: node.ended.map(at),
            })
            .collect();
        let gone = gone_at(self.rule(), &places);
        nodes().zip(gone).all(|(node, gone)| {
            let silence_is_enough = self.mistake == Mistake::SilenceIsEnough && lost(node);
            node.ended.is_some() || silence_is_enough || gone.is_some_and(|gone| gone <= NOW)
        })
    }

    fn tick(&self, state: &mut State, ray_link: bool) {
        let [head, rank] = &state.nodes;
        let (head_runs, rank_runs) = (head.lives(), rank.lives());
        let joined = head_runs && rank_runs && ray_link;
        state.seen = match state.seen {
            _ if !head_runs => Seen::Dead,
            Seen::Never if joined => Seen::Alive,
            Seen::Never => Seen::Never,
            Seen::Dead => Seen::Dead,
            Seen::Alive | Seen::Doubted(_) if joined => Seen::Alive,
            Seen::Alive if NOTICE > 0 => Seen::Doubted(1),
            Seen::Doubted(age) if age < NOTICE => Seen::Doubted(age + 1),
            Seen::Alive | Seen::Doubted(_) => Seen::Dead,
        };
        let complete = match self.policy {
            Policy::Fence => [matches!(state.seen, Seen::Alive | Seen::Doubted(_)), joined],
            Policy::Keep | Policy::StopAfter => [false, false],
        };
        state.disturbed |= !joined;
        for (node, complete) in state.nodes.iter_mut().zip(complete) {
            let older = |age: u8, cap: u8| (age + 1).min(cap);
            node.contact = older(node.contact, AFTER);
            node.answer = node.answer.map(|age| age + 1).filter(|age| *age <= AFTER);
            node.silent = older(node.silent, CAP);
            node.ended = node.ended.map(|age| older(age, CAP));
            let counts = self.mistake != Mistake::NeedsAgent || node.agent != Agent::Dead;
            node.member = match node.member {
                Member::Running { .. } if complete => Member::Running { good: 0 },
                Member::Running { good } if !self.has_deadline() || !counts => {
                    Member::Running { good }
                }
                Member::Running { good } if good + 1 >= AFTER => {
                    state.fenced = true;
                    Member::Dying { age: 0 }
                }
                Member::Running { good } => Member::Running { good: good + 1 },
                Member::Dying { age } if age + 1 >= GRACE => Member::Gone,
                Member::Dying { age } => Member::Dying { age: age + 1 },
                other => other,
            };
        }
    }

    fn may_start(&self, node: &Node) -> bool {
        let informed = match node.agent {
            Agent::Up | Agent::Informed => true,
            Agent::Uninformed => self.mistake == Mistake::StartsFromLedger,
            Agent::Dead => false,
        };
        let in_time = !self.has_deadline()
            || node.contact < AFTER
            || self.mistake == Mistake::StartsFromLedger;
        node.member == Member::Waiting && informed && in_time
    }
}

impl Model for Fencing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node {
            agent: Agent::Up,
            member: Member::Waiting,
            contact: 0,
            answer: None,
            silent: 0,
            ended: None,
        };
        let mut state = State {
            nodes: [node; 2],
            seen: Seen::Never,
            disturbed: false,
            fenced: false,
            stopping: false,
            next_started: false,
            other_runs: true,
        };
        if self.single {
            state.nodes[RANK].member = Member::Gone;
            state.nodes[RANK].ended = Some(CAP);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick { ray_link: true });
        if !self.single {
            actions.push(Action::Tick { ray_link: false });
        }
        for index in self.places() {
            let node = &state.nodes[index];
            if node.ended.is_some() {
                continue;
            }
            let up = node.agent != Agent::Dead;
            if up && !state.next_started {
                actions.extend([Action::Heard(index, 0), Action::Heard(index, 1)]);
            }
            if up && node.answer.is_some() {
                actions.push(Action::Answered(index));
            }
            match node.agent {
                Agent::Up => actions.push(Action::AgentDies(index)),
                Agent::Dead => actions.push(Action::AgentStarts(index)),
                Agent::Uninformed if !state.stopping => actions.push(Action::Informed(index)),
                Agent::Uninformed | Agent::Informed => {}
            }
            if self.may_start(node) {
                actions.push(Action::Started(index));
            }
            if matches!(node.member, Member::Running { .. }) {
                actions.push(Action::Exits(index));
            }
            if state.stopping && up {
                match node.member {
                    Member::Running { .. } | Member::Waiting => {
                        actions.push(Action::StopArrives(index));
                    }
                    Member::Gone => actions.push(Action::EndReported(index)),
                    Member::Dying { .. } => {}
                }
            }
        }
        if !state.stopping {
            actions.push(Action::Stop);
        }
        if state.other_runs {
            actions.push(Action::OtherEnds);
        }
        if state.stopping && !state.other_runs && !state.next_started && self.may_start_next(state)
        {
            actions.push(Action::StartNext);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Tick { ray_link } => self.tick(&mut state, ray_link),
            Action::Heard(index, age) => {
                let node = &mut state.nodes[index];
                node.silent = 0;
                node.answer = Some(node.answer.map_or(age, |older| older.min(age)));
            }
            Action::Answered(index) => {
                let node = &mut state.nodes[index];
                let age = node.answer?;
                let age = if self.mistake == Mistake::AnswerIsContact { 0 } else { age };
                node.contact = node.contact.min(age);
                if let Member::Running { good } = &mut node.member {
                    *good = (*good).min(age);
                }
            }
            Action::AgentDies(index) => state.nodes[index].agent = Agent::Dead,
            Action::AgentStarts(index) => {
                let node = &mut state.nodes[index];
                node.agent = Agent::Uninformed;
                node.contact = AFTER;
                node.answer = None;
            }
            Action::Informed(index) => state.nodes[index].agent = Agent::Informed,
            Action::Started(index) => {
                let node = &mut state.nodes[index];
                let good = node.contact.min(AFTER - 1);
                node.member = Member::Running { good };
            }
            Action::Exits(index) => {
                state.nodes[index].member = Member::Gone;
                state.disturbed = true;
            }
            Action::Stop => {
                state.stopping = true;
                state.disturbed = true;
            }
            Action::StopArrives(index) => {
                let node = &mut state.nodes[index];
                node.member = match node.member {
                    Member::Waiting => Member::Gone,
                    _ => Member::Dying { age: 0 },
                };
            }
            Action::EndReported(index) => {
                let node = &mut state.nodes[index];
                // Nothing depends on the rest of such a node.
                *node = Node {
                    agent: Agent::Up,
                    member: Member::Gone,
                    contact: 0,
                    answer: None,
                    silent: 0,
                    ended: Some(0),
                };
            }
            Action::OtherEnds => state.other_runs = false,
            Action::StartNext => state.next_started = true,
        }
        for node in &mut state.nodes {
            if node.member == Member::Gone {
                (node.contact, node.answer) = (0, None);
            }
            if state.next_started {
                (node.silent, node.ended) = (0, node.ended.map(|_| 0));
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always("I4: one live incarnation", |_, state| {
                !(state.next_started && state.nodes.iter().any(Node::lives))
            }),
            Property::<Self>::always("I1: one gang per GPU", |_, state| {
                !(state.next_started && state.other_runs)
            }),
            Property::<Self>::always("I10: an undisturbed gang is left alone", |model, state| {
                model.policy == Policy::StopAfter || !state.fenced || state.disturbed
            }),
            Property::<Self>::sometimes(
                "a gang starts again when all have answered",
                |_, state| {
                    state.next_started && state.nodes.iter().all(|node| node.ended.is_some())
                },
            ),
        ];
        if !self.has_deadline() {
            properties.push(Property::<Self>::always("keep never stops by itself", |_, state| {
                !state.fenced
            }));
            properties.push(Property::<Self>::always("keep waits for every node", |_, state| {
                !state.next_started || state.nodes.iter().all(|node| node.ended.is_some())
            }));
            return properties;
        }
        properties.push(Property::<Self>::sometimes("a cut-off head is given up", |_, state| {
            state.next_started && state.nodes[HEAD].ended.is_none()
        }));
        properties.push(Property::<Self>::sometimes("a cut-off rank is given up", |_, state| {
            state.next_started && state.nodes[RANK].ended.is_none()
        }));
        properties.push(Property::<Self>::sometimes(
            "a shim fences without its agent",
            |_, state| {
                let alone = |node: &Node| node.agent == Agent::Dead && node.ended.is_none();
                state.fenced && state.nodes.iter().all(alone)
            },
        ));
        properties
    }
}

fn explore(policy: Policy, mistake: Mistake, single: bool) -> (usize, Vec<&'static str>) {
    let begun = Instant::now();
    let model = Fencing { policy, mistake, single };
    let expectations: Vec<_> =
        model.properties().iter().map(|p| (p.name, p.expectation.clone())).collect();
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let wrong = expectations
        .into_iter()
        .filter(|(name, expectation)| {
            let found = checker.discovery(name).is_some();
            match expectation {
                Expectation::Always => found,
                Expectation::Sometimes | Expectation::Eventually => !found,
            }
        })
        .map(|(name, _)| name)
        .collect();
    let states = checker.unique_state_count();
    println!("{policy:?} {mistake:?}: {states} states in {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(600), "the space has grown out of hand");
    (states, wrong)
}

fn holds(policy: Policy, single: bool) {
    assert_eq!(explore(policy, Mistake::None, single).1, Vec::<&str>::new());
}

fn is_found(policy: Policy, mistake: Mistake) {
    let wrong = explore(policy, mistake, false).1;
    assert!(wrong.contains(&"I4: one live incarnation"), "{mistake:?} is not found: {wrong:?}");
}

#[test]
fn fence_holds() {
    holds(Policy::Fence, false);
}

#[test]
fn keep_holds() {
    holds(Policy::Keep, false);
}

#[test]
fn stop_after_holds() {
    holds(Policy::StopAfter, false);
}

#[test]
fn fence_of_one_node_is_keep() {
    holds(Policy::Fence, true);
}

#[test]
fn planted_mistakes_are_found() {
    is_found(Policy::Fence, Mistake::NoWitness);
    is_found(Policy::Fence, Mistake::NeedsAgent);
    is_found(Policy::Fence, Mistake::NoNotice);
    is_found(Policy::Fence, Mistake::SilenceIsEnough);
    is_found(Policy::StopAfter, Mistake::AnswerIsContact);
    is_found(Policy::StopAfter, Mistake::StartsFromLedger);
    is_found(Policy::StopAfter, Mistake::SilenceIsEnough);
}
