//! One node: hardware, clock, link, ledger, processes, and the agent while it runs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use gangline_agent_core::event::Durable;
use gangline_common::ids::{Epoch, GangId, GpuId, MemberKey, NodeId, PortBlock};
use gangline_core::node::{Gpu, Inventory};

use crate::agent::{Agent, Plans};
use crate::clock::Clock;
use crate::network::Link;
use crate::process::Process;

/// The pools; every node may be in the first.
pub const DEFAULT: &str = "default";
pub const SPARE: &str = "spare";
/// The label that jobs ask for.
pub const ZONE: &str = "zone";
/// Its values; agents say the first two.
pub const ZONES: [&str; 3] = ["a", "b", "c"];

/// The agent's file: survives everything, changes as a whole.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    pub durable: Durable,
    pub plans: Plans,
}

#[derive(Debug)]
pub struct NodeSim {
    pub id: NodeId,
    pub name: String,
    pub inventory: Inventory,
    pub clock: Clock,
    pub link: Link,
    pub ledger: Ledger,
    pub processes: BTreeMap<MemberKey, Process>,
    pub agent: Option<Agent>,
    /// Nothing of the agent moves before this moment (SIGSTOP, a machine that swaps).
    pub frozen_until_ms: u64,
    /// The disk of the ledger takes nothing before this moment.
    pub full_until_ms: u64,
    /// Starts that will find a port of their block bound by a stranger.
    pub strangers: u32,
    /// The machine is switched off until this moment.
    pub off_until_ms: u64,
    /// The agent is not started again before this moment.
    pub agent_away_until_ms: u64,
    /// Since when nothing is wrong with the node or its link.
    pub fine_since_ms: u64,
    /// Highest incarnation of each gang that the agent has durably accepted.
    pub highest: BTreeMap<GangId, Epoch>,
}

impl NodeSim {
    /// Node number `index`, with a host that it may share with its neighbour.
    pub fn new(index: usize, gpus: u32, is_head: bool, host: u64, pool: &str) -> Self {
        let name = format!("n{index}");
        let gpu = |number| Gpu {
            uuid: GpuId(format!("GPU-{index}-{number}")),
            index: number,
            name: "H100".to_owned(),
            memory_bytes: 80 << 30,
        };
        let inventory = Inventory {
            hostname: format!("host-{host}"),
            agent_version: "simulated".to_owned(),
            head_role: is_head,
            worker_role: !is_head,
            pool: pool.to_owned(),
            labels: vec![(ZONE.to_owned(), ZONES[index % 2].to_owned())],
            address: IpAddr::from([10, 0, (index >> 8) as u8, index as u8]),
            boot_id: format!("boot-{host}-0"),
            network_namespace: host,
            container_start_ms: 1,
            gpus: (0..gpus).map(gpu).collect(),
            cpus_milli: 16_000,
            memory_bytes: 64 << 30,
            shm_bytes: 8 << 30,
            pids_limit: None,
            ports: PortBlock { base: 20_000, size: 4_096 },
            versions: Vec::new(),
            doctor: Vec::new(),
        };
        NodeSim {
            id: node_id(index),
            name,
            inventory,
            clock: Clock::new(1_000 + 977 * index as u64),
            link: Link::default(),
            ledger: Ledger::default(),
            processes: BTreeMap::new(),
            agent: None,
            frozen_until_ms: 0,
            full_until_ms: 0,
            strangers: 0,
            off_until_ms: 0,
            agent_away_until_ms: 0,
            fine_since_ms: 0,
            highest: BTreeMap::new(),
        }
    }

    pub fn shown_inventory(&self) -> Box<Inventory> {
        Box::new(self.inventory.clone())
    }
}

/// The id of node number `index`.
pub fn node_id(index: usize) -> NodeId {
    named(NodeId::new(format!("n{index}")))
}

/// An id that the simulation made itself.
pub fn named<T, E: std::fmt::Debug>(id: Result<T, E>) -> T {
    match id {
        Ok(id) => id,
        Err(error) => unreachable!("an id of the simulation is none: {error:?}"),
    }
}
