//! The health of one node, decided from what its collectors read: pure, synchronous, total.
//!
//! ```text
//!   collectors -> Reading -> observe -> a Part per GPU, port, mount, ... -> conditions   whole set
//!   (the agent)              by kind:     Latch per rule: hysteresis       -> blind        not seen
//!                            gpu, xid,    Series: counters, windows        -> start_check  before a gang
//!                            port, host   Facts: what was once there       -> saved        survives a restart
//! ```
//!
//! No I/O and no clock: `now` is an argument. The engine runs in the agent, which sees every reading; the
//! coordinator gets whole sets of conditions and decides what to do about them. Conditions come from
//! NVML, sysfs and the kernel only, never from the text of a job's log.
//!
//! The interface is [`Engine`], [`Config`], [`Saved`], [`reading`], [`condition`] and the table in
//! [`rule`]; it is meant to stay as it is. Rules are added to the table and read in the file of their
//! kind.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod clock;
pub mod component;
pub mod condition;
mod gpu;
mod host;
mod latch;
mod nvlink;
mod part;
mod port;
pub mod reading;
pub mod rule;
mod saved;
mod series;
mod start;
mod storage;
pub mod text;
pub mod xid;

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::GpuId;
use gangline_common::time::Timestamp;

pub use component::Component;
pub use condition::{Blind, Condition, Stale, StartCheck, blind_lines};
pub use latch::{MAX_EVIDENCE, MAX_REASON};
pub use reading::Reading;
pub use rule::{Action, Check, Level, Rule, Stage, State};
pub use saved::{Oddities, Saved};

use clock::{At, Clock};
use gpu::Peers;
use part::Part;
use port::Siblings;
use reading::Counter;
use rule::{DAY_MS, MINUTE_MS};
use series::Series;

/// Most parts of a node that are followed; readings of more are refused and counted.
pub const MAX_PARTS: usize = 512;
/// Most lines of [`Engine::blind`].
pub const MAX_BLIND: usize = 256;
/// Most conditions of [`Engine::conditions`]; the mildest are left out.
pub const MAX_CONDITIONS: usize = 256;

/// What the engine is told at its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Of the running kernel; `None`: a reboot cannot be seen, and only an operator ends what is kept.
    pub boot_id: Option<String>,
    /// Rules that are only tried, beside those that the table has on trial: their conditions are shown
    /// and marked, and forbid nothing.
    pub shadow: BTreeSet<Rule>,
    /// Rules that act although the table has them on trial.
    pub trusted: BTreeSet<Rule>,
    /// RDMA devices of management and storage: no rule applies to them.
    pub excluded_devices: BTreeSet<String>,
    /// NVSwitches are on the bus: the GPUs are joined by them, whatever those say of a fabric.
    pub nvswitch: bool,
}

impl Config {
    /// The rule is shown, and nothing acts on it.
    pub fn is_on_trial(&self, rule: Rule) -> bool {
        let by_table = rule.row().stage == Stage::Trial && !self.trusted.contains(&rule);
        by_table || self.shadow.contains(&rule)
    }
}

/// The health of one node.
#[derive(Debug, Clone)]
pub struct Engine {
    config: Config,
    clock: Clock,
    parts: BTreeMap<Component, Part>,
    /// The GPUs that the node registered, once that is known.
    registered: Option<BTreeSet<GpuId>>,
    /// When a gang here last failed with an NCCL error.
    nccl: Option<u64>,
    /// Readings of parts that are too many.
    refused: u64,
    tidied: u64,
}

impl Engine {
    /// Goes on from `saved`. When the machine was booted since, counters begin anew, and what is kept
    /// ends with the first good readings.
    pub fn new(config: Config, saved: &Saved, now: Timestamp) -> Self {
        let rebooted = match (&saved.boot_id, &config.boot_id) {
            (Some(before), Some(now)) => before != now,
            _ => false,
        };
        let mut clock = Clock::new(saved.clock, !rebooted, now);
        clock.oddities = saved.oddities;
        let mut parts = saved.parts();
        if rebooted {
            for part in parts.values_mut() {
                part.series.clear();
                part.minutes.clear();
                part.link_downs.at.clear();
                part.outages.at.clear();
                part.facts.down_since = None;
                for latch in part.latches.values_mut() {
                    latch.started_anew(true);
                }
            }
        }
        let nccl = saved.nccl();
        Engine { config, clock, parts, registered: None, nccl, refused: 0, tidied: 0 }
    }

    /// Takes in one reading, once: the same one taken in again would count as a second one.
    pub fn observe(&mut self, reading: &Reading, now: Timestamp) {
        let at = self.clock.advance(now);
        self.tidy(at);
        match reading {
            Reading::GpuSet(set) => {
                self.registered = Some(set.registered.iter().take(MAX_PARTS).cloned().collect());
                self.with(Component::Node, at, |part| gpu::on_set(part, set, at));
                if let Some(present) = &set.present {
                    self.forget_gone(at, |component| match component {
                        Component::Gpu(uuid) => {
                            Some(present.contains(uuid) || set.registered.contains(uuid))
                        }
                        _ => None,
                    });
                }
            }
            Reading::Gpu(gpu) => {
                let nvswitch = if self.config.nvswitch { Some(true) } else { gpu.nvswitch };
                let component = Component::gpu(&gpu.uuid);
                let peers = gpu.work.as_ref().and_then(|work| {
                    let others = self.parts.iter().filter(|(other, _)| **other != component);
                    Peers::of(work, others.filter_map(|(_, part)| part.work.as_ref()), at)
                });
                self.with(component, at, |part| {
                    gpu::on_gpu(part, gpu, nvswitch, at);
                    gpu::on_work(part, gpu.work.clone(), peers, at);
                });
            }
            Reading::Xid(xid) => {
                let component = xid.gpu.as_ref().map_or(Component::Node, Component::gpu);
                self.with(component, at, |part| xid::on_xid(part, xid, at));
            }
            Reading::Sxid(sxid) => {
                self.with(Component::switch(&sxid.switch), at, |part| xid::on_sxid(part, sxid, at));
            }
            Reading::Ports(ports) => self.on_ports(ports, at),
            Reading::Port(port) => {
                if !port.excluded && !self.config.excluded_devices.contains(&port.device) {
                    let nccl = self.nccl;
                    let component = Component::port(&port.device, port.port);
                    let siblings = self.siblings(&component, port);
                    self.with(component, at, |part| port::on_port(part, port, siblings, nccl, at));
                }
            }
            Reading::NcclError(_) => {
                self.nccl = Some(at.ms);
                for (component, part) in &mut self.parts {
                    if matches!(component, Component::Port { .. }) {
                        port::on_nccl_error(part, at);
                    }
                }
            }
            Reading::SharedRoot(root) => {
                let component = Component::mount(&root.path);
                self.with(component, at, |part| storage::on_shared_root(part, root, at));
            }
            Reading::LocalDisk(disk) => {
                let component = Component::mount(&disk.path);
                self.with(component, at, |part| storage::on_local_disk(part, disk, at));
            }
            Reading::Collector(collector) => {
                let component = Component::collector(&collector.name);
                self.with(component, at, |part| host::on_collector(part, collector, at));
            }
            Reading::Blind { rule, component, why } => {
                let why = text::clean(why, MAX_REASON);
                self.with(component.clone(), at, |part| drop(part.blind.insert(*rule, why)));
            }
            Reading::Memory(memory) => self.node(at, |part| host::on_memory(part, memory, at)),
            Reading::OomKills(kills) => self.node(at, |part| host::on_oom_kills(part, kills, at)),
            Reading::Shm(usage) => self.node(at, |part| host::on_shm(part, *usage, at)),
            Reading::Pids(usage) => self.node(at, |part| host::on_pids(part, *usage, at)),
            Reading::Descriptors(usage) => {
                self.node(at, |part| host::on_descriptors(part, *usage, at));
            }
            Reading::Tasks(tasks) => self.node(at, |part| host::on_tasks(part, tasks, at)),
            Reading::ClockOffset(ms) => self.node(at, |part| host::on_clock_offset(part, *ms, at)),
            Reading::Kernel(line) => self.node(at, |part| host::on_kernel(part, line, at)),
            Reading::Agent(agent) => self.node(at, |part| host::on_agent(part, agent, at)),
        }
    }

    /// All conditions, the worst first, then by part and rule.
    pub fn conditions(&self, now: Timestamp) -> Vec<Condition> {
        let at = self.clock.at(now);
        let mut conditions = Vec::new();
        for (component, part) in &self.parts {
            for (rule, latch) in &part.latches {
                if let Some(raised) = &latch.raised
                    && !latch.is_over(rule.row(), at)
                {
                    let shadow = self.config.is_on_trial(*rule);
                    conditions.push(Condition::new(*rule, component, raised, shadow, at));
                }
            }
        }
        // A stable sort: parts and rules are in order already.
        conditions.sort_by_key(|condition| std::cmp::Reverse(condition.level));
        conditions.truncate(MAX_CONDITIONS);
        conditions
    }

    /// The node in one word: that of its worst part. Rules that are only tried do not count.
    pub fn state(&self, now: Timestamp) -> State {
        if self.parts.is_empty() {
            return State::Initializing;
        }
        let conditions = self.conditions(now);
        let acting = conditions.iter().filter(|condition| !condition.shadow);
        acting.map(|condition| condition.state).max().unwrap_or(State::Healthy)
    }

    /// An operator ends a condition, and the history that led to it. Whether there was one. It comes
    /// back when what is read is still bad; what is gone is not missed any more until it has been there
    /// again.
    pub fn clear(&mut self, rule: Rule, component: &Component, now: Timestamp) -> bool {
        self.clock.advance(now);
        let Some(part) = self.parts.get_mut(component) else { return false };
        match rule {
            Rule::PortFlap | Rule::PortLostInGang => {
                part.link_downs.at.clear();
                part.outages.at.clear();
            }
            Rule::PortRetraining => part.retrainings = Default::default(),
            Rule::PortTimeouts => {
                part.minutes.remove(&Series::Port(Counter::LocalAckTimeout));
            }
            Rule::PortSymbols | Rule::PortReceive | Rule::HardwareSlowdown | Rule::PcieReplays => {
                part.minutes.clear();
            }
            Rule::XidRepeated => part.app_xids.clear(),
            Rule::PortState | Rule::PortDrop => {
                part.facts.was_active = false;
                part.facts.stands_apart = true;
                part.facts.down_since = None;
            }
            Rule::NvlinkDown => part.facts.most_links = 0,
            Rule::RdmaDevices => {
                part.facts.most_umad = 0;
                part.facts.spared_uverbs = part.facts.few_uverbs;
            }
            _ => {}
        }
        part.latches.get_mut(&rule).is_some_and(latch::Latch::clear)
    }

    /// As [`Engine::clear`], if it is the condition that began then: an order that comes late or twice
    /// does not end a newer one.
    pub fn clear_one(
        &mut self,
        rule: Rule,
        component: &Component,
        since_wall_ms: u64,
        now: Timestamp,
    ) -> bool {
        let latch = self.parts.get(component).and_then(|part| part.latches.get(&rule));
        let raised = latch.and_then(|latch| latch.raised.as_ref());
        raised.is_some_and(|raised| raised.since.wall_ms == since_wall_ms)
            && self.clear(rule, component, now)
    }

    /// Forgets a part that is no longer of this node, such as a mount of an earlier configuration.
    pub fn forget(&mut self, component: &Component) -> bool {
        self.parts.remove(component).is_some()
    }

    /// What must be written down to go on from here.
    pub fn saved(&self) -> Saved {
        let boot_id = self.config.boot_id.as_deref();
        Saved::new(boot_id, self.clock.saved(), self.clock.oddities, self.nccl, &self.parts)
    }

    /// How often the clock of the readings was not to be believed.
    pub fn oddities(&self) -> Oddities {
        self.clock.oddities
    }

    fn node(&mut self, at: At, read: impl FnOnce(&mut Part)) {
        self.with(Component::Node, at, read);
    }

    /// Reads into a part, which is made when it is new and there is room.
    fn with(&mut self, component: Component, at: At, read: impl FnOnce(&mut Part)) {
        if self.parts.len() >= MAX_PARTS && !self.parts.contains_key(&component) {
            self.refused = self.refused.saturating_add(1);
            return;
        }
        let part = self.parts.entry(component).or_default();
        part.seen = at.ms;
        read(part);
    }

    /// The other ports of its kind, where they can be compared with.
    fn siblings(&self, component: &Component, port: &reading::Port) -> Option<Siblings> {
        let kind = port.kind.as_ref()?;
        let others = self.parts.iter().filter(|(other, _)| *other != component);
        let looks = others.filter_map(|(_, part)| part.look.as_ref());
        let gpus = self.registered.as_ref()?.len();
        Siblings::of(looks.filter(|look| look.kind == *kind), gpus)
    }

    fn on_ports(&mut self, ports: &reading::Ports, at: At) {
        let mut ports = ports.clone();
        if let Some(present) = &mut ports.present {
            present.retain(|(device, _)| !self.config.excluded_devices.contains(device));
        }
        self.node(at, |part| port::on_ports(part, &ports, at));
        if let Some(present) = &ports.present {
            let present: BTreeSet<Component> =
                present.iter().map(|(device, port)| Component::port(device, *port)).collect();
            self.forget_gone(at, |component| match component {
                Component::Port { .. } => Some(present.contains(component)),
                _ => None,
            });
        }
    }

    /// Forgets parts that complete lists have not had for a while. `listed` is `None` for parts that
    /// the list is not about.
    fn forget_gone(&mut self, at: At, listed: impl Fn(&Component) -> Option<bool>) {
        self.parts.retain(|component, part| match listed(component) {
            Some(present) => !part.is_gone(present, at),
            None => true,
        });
    }

    /// Once a minute: ends what has run out, and forgets parts without a word for a day and without a
    /// condition. A collector says how it fared after each run, and while it hangs: without a word it is
    /// one of another version. Of other parts that are sick and silent only lists, or the agent, know that
    /// they are gone.
    fn tidy(&mut self, at: At) {
        if at.since(self.tidied) < MINUTE_MS {
            return;
        }
        self.tidied = at.ms;
        self.parts.retain(|component, part| {
            for (rule, latch) in &mut part.latches {
                if latch.is_over(rule.row(), at) {
                    latch.clear();
                }
            }
            let stays = part.has_conditions() && !matches!(component, Component::Collector(_));
            stays || at.since(part.seen) < DAY_MS
        });
    }
}
