//! Whatever happens in whatever order, these hold: a simulated process table is driven by the
//! core's effects only, and every step is checked.

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::{Epoch, GangId, GpuId, MemberKey};
use gangline_common::time::Timestamp;
use proptest::prelude::*;

use super::Core;
use super::assignment::{DesiredSet, Digest, GangOrder, Order, Refusal};
use super::effect::{Effect, Effects};
use super::event::{Durable, Event, MemberChange};
use super::tests::{epoch, generation, key, run, stop};

const GANGS: [&str; 3] = ["g1", "g2", "g3"];
const GPUS: [&str; 3] = ["a", "b", "c"];

/// Something that the world does to the agent. Numbers pick among what exists.
#[derive(Debug, Clone)]
enum Deed {
    /// A set of (gang, epoch, run or stop, first GPU, two GPUs), after a jump of the generation.
    Desire {
        jump: u8,
        back: bool,
        orders: Vec<(usize, u32, bool, usize, bool)>,
    },
    Runs(usize),
    Ends(usize),
    Refuses(usize),
    LogsComplete(usize),
    Released {
        pick: usize,
        ok: bool,
    },
    Restart,
    Shutdown,
    Tick(u32),
}

fn deed() -> impl Strategy<Value = Deed> {
    let order = (0..GANGS.len(), 1..4u32, prop::bool::weighted(0.7), 0..GPUS.len(), any::<bool>());
    let desire = (0..3u8, prop::bool::weighted(0.1), prop::collection::vec(order, 0..4));
    prop_oneof![
        6 => desire.prop_map(|(jump, back, orders)| Deed::Desire { jump, back, orders }),
        4 => any::<usize>().prop_map(Deed::Runs),
        4 => any::<usize>().prop_map(Deed::Ends),
        1 => any::<usize>().prop_map(Deed::Refuses),
        3 => any::<usize>().prop_map(Deed::LogsComplete),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(pick, ok)| Deed::Released { pick, ok }),
        2 => Just(Deed::Restart),
        1 => Just(Deed::Shutdown),
        3 => (0..40_000u32).prop_map(Deed::Tick),
    ]
}

/// The node: the core, what its effects did to the process table, and a record of the past.
struct World {
    core: Core,
    now: Timestamp,
    ledger: Durable,
    generation: u64,
    /// Members whose processes exist, and the GPUs that they use.
    processes: BTreeMap<MemberKey, Vec<GpuId>>,
    /// Members that `Adopt` asked about and that have not been answered.
    unanswered: BTreeSet<MemberKey>,
    started: BTreeSet<MemberKey>,
    /// Members that a stop, a higher epoch or the shutdown was ever meant for.
    condemned: BTreeSet<MemberKey>,
    highest: BTreeMap<GangId, Epoch>,
    releasing: Vec<MemberKey>,
}

impl World {
    fn new() -> Self {
        let mut world = World {
            core: Core::new(),
            now: Timestamp::default(),
            ledger: Durable::default(),
            generation: 0,
            processes: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            started: BTreeSet::new(),
            condemned: BTreeSet::new(),
            highest: BTreeMap::new(),
            releasing: Vec::new(),
        };
        world.step(Event::Restored(Durable::default()));
        world
    }

    fn carry_out(&mut self, deed: Deed) {
        let known: Vec<MemberKey> = self.core.members().map(|(key, _)| key.clone()).collect();
        let pick = |n: usize| known.get(n % known.len().max(1)).cloned();
        match deed {
            Deed::Desire { jump, back, orders } => self.desire(jump, back, orders),
            Deed::Runs(n) => {
                if let Some(key) = pick(n).filter(|key| self.processes.contains_key(key)) {
                    self.answer(key, MemberChange::Running { pid: 1 });
                }
            }
            Deed::Ends(n) => {
                if let Some(key) = pick(n) {
                    let existed = self.processes.remove(&key).is_some();
                    if existed || self.unanswered.contains(&key) {
                        self.answer(key, MemberChange::Ended);
                    }
                }
            }
            Deed::Refuses(n) => {
                if let Some(key) = pick(n).filter(|key| self.processes.contains_key(key)) {
                    self.processes.remove(&key);
                    let refusal = Refusal::PortBusy { port: 1 };
                    self.answer(key, MemberChange::Refused(refusal));
                }
            }
            Deed::LogsComplete(n) => {
                if let Some(key) = pick(n) {
                    self.step(Event::LogsComplete(key));
                }
            }
            Deed::Released { pick, ok } if !self.releasing.is_empty() => {
                let key = self.releasing.remove(pick % self.releasing.len());
                self.step(if ok { Event::Released(key) } else { Event::ReleaseFailed(key) });
            }
            Deed::Released { .. } => {}
            Deed::Restart => {
                self.core = Core::new();
                self.unanswered.clear();
                self.releasing.clear();
                self.step(Event::Restored(self.ledger.clone()));
            }
            Deed::Shutdown => {
                self.condemned.extend(self.processes.keys().cloned());
                self.step(Event::Shutdown);
            }
            Deed::Tick(ms) => {
                self.now = self.now.plus_ms(ms.into());
                self.step(Event::Tick);
            }
        }
    }

    fn desire(&mut self, jump: u8, back: bool, orders: Vec<(usize, u32, bool, usize, bool)>) {
        let wanted = self.generation + u64::from(jump);
        let n = if back { wanted.saturating_sub(2) } else { wanted };
        let gangs: Vec<GangOrder> = orders
            .into_iter()
            .map(|(gang, n, runs, gpu, two)| {
                let gpus = [GPUS[gpu], GPUS[(gpu + 1) % GPUS.len()]];
                let gpus = if two { &gpus[..] } else { &gpus[..1] };
                if runs { run(GANGS[gang], n, gpus) } else { stop(GANGS[gang], n) }
            })
            .collect();
        let before = self.core.held();
        // Word that an order condemns is noted before the step that may act on it.
        let mut condemned = BTreeSet::new();
        for order in &gangs {
            let living = self.processes.keys().filter(|key| order.ends(key));
            condemned.extend(living.cloned());
        }
        let accepted_if_newer = generation(n) > before;
        if accepted_if_newer {
            self.condemned.append(&mut condemned);
        }
        self.step(Event::Desired(DesiredSet { generation: generation(n), gangs: gangs.clone() }));
        if accepted_if_newer && self.core.held() == generation(n) {
            self.generation = n;
            for order in &gangs {
                let highest = self.highest.entry(order.gang.clone()).or_insert(order.epoch);
                *highest = order.epoch.max(*highest);
            }
        }
        assert!(self.core.held() >= before, "the generation went back");
    }

    fn answer(&mut self, key: MemberKey, change: MemberChange) {
        self.unanswered.remove(&key);
        self.step(Event::MemberChanged { key, change });
    }

    fn step(&mut self, event: Event) {
        let mut effects = Effects::default();
        self.core.step(event, self.now, &mut effects);
        if let Some(ledger) = effects.ledger {
            self.ledger = ledger;
        }
        for effect in effects.list {
            self.perform(effect);
        }
        self.check();
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Start(key) => {
                let row = self.ledger.members.get(&key);
                let gpus = row.expect("started before its ledger write").gpus.clone();
                assert!(self.started.insert(key.clone()), "{key} started twice");
                let seen = self.ledger.seen.get(&key.gang).expect("its epoch is not durable");
                assert_eq!(seen.epoch, key.epoch, "not the highest epoch");
                if let Some(highest) = self.highest.get(&key.gang) {
                    assert!(key.epoch >= *highest, "{key} is below {highest}");
                }
                self.processes.insert(key, gpus);
            }
            Effect::Adopt(key) => {
                assert!(self.started.contains(&key), "{key} adopted but never started");
                self.unanswered.insert(key);
            }
            Effect::Update(key) => {
                assert!(self.started.contains(&key), "{key} is told news and was never started");
            }
            Effect::Stop { key, .. } => {
                assert!(
                    self.condemned.contains(&key)
                        || !self.processes.contains_key(&key)
                        || self.is_condemned_now(&key),
                    "{key} stopped though nobody said so"
                );
            }
            Effect::Release(key) => {
                assert!(!self.processes.contains_key(&key), "{key} released while it lives");
                self.releasing.push(key);
            }
            Effect::ReportChanged => {
                assert!(self.core.is_report_ready(), "a report of half the truth");
            }
            Effect::ProtocolError(_) | Effect::Warn(_) => {}
        }
    }

    /// A member that started after the order that ends it arrived cannot exist, but one that was
    /// adopted may be judged by an order of before the restart.
    fn is_condemned_now(&self, key: &MemberKey) -> bool {
        self.ledger.desired.get(&key.gang).is_some_and(|order| order.ends(key))
    }

    fn check(&self) {
        let mut holders: BTreeMap<&GpuId, &MemberKey> = BTreeMap::new();
        for (key, gpus) in &self.processes {
            for gpu in gpus {
                if let Some(other) = holders.insert(gpu, key) {
                    panic!("{gpu} is held by {key} and {other}");
                }
            }
        }
        let mut alive: BTreeMap<&GangId, Epoch> = BTreeMap::new();
        for key in self.processes.keys() {
            let epoch = alive.entry(&key.gang).or_insert(key.epoch);
            assert_eq!(*epoch, key.epoch, "two incarnations of {} live", key.gang);
            assert!(self.core.member(key).is_some(), "{key} lives and is not reported");
            assert!(self.ledger.members.contains_key(key), "{key} lives outside the ledger");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_is_safe(deeds in prop::collection::vec(deed(), 1..80)) {
        let mut world = World::new();
        for deed in deeds {
            world.carry_out(deed);
        }
    }

    /// Once orders stop changing and every process obeys, nothing waits forever.
    #[test]
    fn a_quiet_node_settles(deeds in prop::collection::vec(deed(), 1..40)) {
        let mut world = World::new();
        for deed in deeds {
            world.carry_out(deed);
        }
        world.carry_out(Deed::Restart);
        let stops: Vec<_> = (0..GANGS.len()).map(|gang| (gang, 9, false, 0, false)).collect();
        world.carry_out(Deed::Desire { jump: 3, back: false, orders: stops });
        settle(&mut world);
        prop_assert!(world.processes.is_empty());
        world.carry_out(Deed::Desire { jump: 1, back: false, orders: vec![] });
        settle(&mut world);
        prop_assert_eq!(world.core.members().count(), 0);
        prop_assert!(world.ledger.members.is_empty());
    }
}

/// Everything that can be answered is answered, several times over.
fn settle(world: &mut World) {
    for _ in 0..3 {
        for n in 0..16 {
            world.carry_out(Deed::Ends(n));
            world.carry_out(Deed::LogsComplete(n));
            world.carry_out(Deed::Released { pick: n, ok: true });
        }
        world.carry_out(Deed::Tick(40_000));
    }
}

#[test]
fn orders_are_compared_by_content() {
    let order = run("g", 1, &["a"]);
    let Order::Run(mut changed) = order.order.clone() else { panic!("not a run") };
    changed.digest = Digest([1; 32]);
    assert_ne!(order, GangOrder { order: Order::Run(changed), ..order.clone() });
    assert!(stop("g", 2).ends(&key("g", 1)) && !order.ends(&key("g", 1)));
    assert!(epoch(2) > epoch(1));
}
