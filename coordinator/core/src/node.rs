//! Nodes: four independent fields of condition, what a node has, and the one word that is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, MemberKey, NodeId, PortBlock};
use gangline_common::time::Timestamp;

use super::health::{ClearedCondition, Health};
use super::job::Transition;
use super::planted::{Planted, is_planted};
use super::reputation::Doubt;

/// Without word for this long a node gets no new work.
pub const SUSPECT_AFTER_MS: u64 = 3_000;
/// Without word for this long a node is lost. What runs there runs on.
pub const LOST_AFTER_MS: u64 = 30_000;
/// After a start of the coordinator, nodes have this long to come back.
pub const START_GRACE_MS: u64 = 300_000;

/// A node as stored and as known now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub id: NodeId,
    pub name: String,
    pub joined: Timestamp,
    /// Pool that the join token bound; the agent cannot change it.
    pub bound_pool: Option<String>,
    /// Pool that an operator moved it to.
    pub set_pool: Option<String>,
    /// Labels that operators gave it; each goes before the agent's of the same key.
    pub set_labels: BTreeMap<String, String>,
    pub lifecycle: Lifecycle,
    pub cordon: Option<Cordon>,
    /// While it is draining.
    pub drain: Option<Drain>,
    /// Certificates of this node that are no longer accepted.
    pub revoked: bool,
    /// Fingerprints of the certificates that were issued and may be valid, newest last.
    pub certificates: Vec<[u8; 32]>,
    /// Number of the desired state; written whenever it changes.
    pub generation: Generation,
    /// Shared: a node is copied with every change of its generation.
    pub inventory: Option<Arc<Inventory>>,
    pub history: Vec<Transition>,
    /// Conditions that an operator has ended and that the agent may still say: stored, because the
    /// agent may hear of it only from the next process.
    pub cleared: BTreeSet<ClearedCondition>,
    /// What the ends of attempts say against it.
    pub doubt: Option<Doubt>,
    /// Incarnations that were given up without this node's word. What it still runs of them, or of
    /// earlier ones of the same gang, is stopped when it is back.
    pub stops: BTreeMap<GangId, Epoch>,

    // Not stored: learned again from the agent.
    pub reachability: Reachability,
    pub session: Option<Session>,
    pub health: Arc<Health>,
    /// Boot-clock time of the newest word, or of the coordinator's start.
    pub last_word_ms: u64,
    pub held: Option<Generation>,
    /// Members that run there and that this store does not know.
    pub unknown: BTreeSet<MemberKey>,
}

/// Certificates remembered per node (current, previous, and a join again).
pub const CERTIFICATE_LIMIT: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    /// Joined, never yet seen with an inventory.
    Pending,
    Online,
    Draining,
    Offline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reachability {
    Reachable,
    Suspect,
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cordon {
    pub by: String,
    pub why: String,
}

/// Who takes a node out of use, and by when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    pub by: String,
    pub why: String,
    pub since: Timestamp,
    /// After `since`, what still runs there goes back to the queue.
    pub deadline_ms: Option<u64>,
}

/// The live connection of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Number that the server gave the connection.
    pub number: u64,
    /// Random text of the agent's process: another text is another process.
    pub instance: String,
    pub certificate: [u8; 32],
    /// Seconds since 1970 after which the certificate is no longer valid.
    pub certificate_ends: i64,
    pub remote: String,
    /// It has said what the node is: before that it might be another incarnation.
    pub introduced: bool,
    /// When the desired state was last pushed, on the boot clock.
    pub pushed_ms: Option<u64>,
}

/// What the agent says it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    pub hostname: String,
    pub agent_version: String,
    pub head_role: bool,
    pub worker_role: bool,
    /// By the agent's configuration; see [`Node::pool`].
    pub pool: String,
    /// By the agent's configuration; see [`Node::labels`].
    pub labels: Vec<(String, String)>,
    pub address: IpAddr,
    pub boot_id: String,
    pub network_namespace: u64,
    pub container_start_ms: u64,
    pub gpus: Vec<Gpu>,
    pub cpus_milli: u32,
    pub memory_bytes: u64,
    pub shm_bytes: u64,
    pub pids_limit: Option<u64>,
    pub ports: PortBlock,
    pub versions: Vec<(String, String)>,
    /// Lines of `doctor`: (check, level, text, advice).
    pub doctor: Vec<(String, String, String, Option<String>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub uuid: GpuId,
    pub index: u32,
    pub name: String,
    pub memory_bytes: u64,
}

/// Nodes with the same key share one port space.
pub type NetworkKey = (String, u64);

impl Inventory {
    /// Whether nothing that ran when the node said `earlier` can run any more: the machine or the
    /// container was started since.
    pub fn is_after(&self, earlier: &Inventory) -> bool {
        self.boot_id != earlier.boot_id || self.container_start_ms > earlier.container_start_ms
    }

    pub fn network(&self) -> NetworkKey {
        (self.boot_id.clone(), self.network_namespace)
    }
}

impl Node {
    /// The one pool that it is in: an operator's word goes before the join token's, and that before
    /// the agent's. `None` while nobody has said one.
    pub fn pool(&self) -> Option<&str> {
        let own = self.inventory.as_ref().map(|inventory| &inventory.pool);
        self.set_pool.as_ref().or(self.bound_pool.as_ref()).or(own).map(String::as_str)
    }

    /// The labels that jobs can ask for, by key.
    pub fn labels(&self) -> BTreeMap<&str, &str> {
        let own = self.inventory.iter().flat_map(|inventory| &inventory.labels);
        let own = own.map(|(key, value)| (key.as_str(), value.as_str()));
        own.chain(self.set_labels.iter().map(|(key, value)| (key.as_str(), value.as_str())))
            .collect()
    }

    /// Whether new members may be placed here.
    pub fn is_open(&self) -> bool {
        self.reachability == Reachability::Reachable
            && self.lifecycle == Lifecycle::Online
            && (self.cordon.is_none() || is_planted(Planted::CordonIgnored))
            && !self.revoked
            && self.is_introduced()
            && self.unknown.is_empty()
            && self.unfit().is_none()
    }

    /// Whether the present session has said what the node is.
    pub fn is_introduced(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.introduced)
    }

    /// The one word for people; the first that holds, in a fixed order.
    pub fn word(&self, in_use_gpus: usize, members: usize) -> &'static str {
        if self.revoked {
            return "revoked";
        }
        match self.reachability {
            Reachability::Lost => return "lost",
            Reachability::Suspect => return "suspect",
            Reachability::Reachable => {}
        }
        match self.lifecycle {
            Lifecycle::Pending => return "pending",
            Lifecycle::Offline => return "offline",
            Lifecycle::Draining if members == 0 => return "drained",
            Lifecycle::Draining => return "draining",
            Lifecycle::Online => {}
        }
        if self.cordon.is_some() {
            return "cordoned";
        }
        if self.unfit().is_some() {
            return "unfit";
        }
        let gpus = self.inventory.as_ref().map_or(0, |inventory| inventory.gpus.len());
        match (members, in_use_gpus) {
            (0, _) => "ready",
            (_, used) if gpus > 0 && used == gpus => "busy",
            _ => "mixed",
        }
    }

    /// Reachability that follows from the age of the newest word.
    pub fn reachability_at(&self, now_ms: u64, started_ms: u64) -> Reachability {
        let silent = now_ms.saturating_sub(self.last_word_ms);
        // After a coordinator start nobody is lost before everybody had time to come back.
        let in_grace = self.held.is_none()
            && self.last_word_ms <= started_ms
            && now_ms.saturating_sub(started_ms) < START_GRACE_MS;
        if silent >= LOST_AFTER_MS && !in_grace {
            Reachability::Lost
        } else if silent >= SUSPECT_AFTER_MS || self.session.is_none() && self.held.is_none() {
            Reachability::Suspect
        } else {
            Reachability::Reachable
        }
    }
}
