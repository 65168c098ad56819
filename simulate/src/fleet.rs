//! The nodes of a replay, and how each of them joins the core: by the events of a real join.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use gangline_common::ids::{GpuId, NodeId, PortBlock};
use gangline_common::time::Timestamp;
use gangline_core::credential::{JoinTokenRecord, Principal, Role};
use gangline_core::event::{Event, Join};
use gangline_core::node::{Gpu, Inventory, Session};

/// Nodes of one replay at most.
pub const MAX_NODES: usize = 20_000;
/// GPUs of one node at most: each may need a port block of its own.
pub const MAX_NODE_GPUS: u32 = 128;
/// The priority `normal`, of jobs of which nothing else is known.
pub const PRIORITY: u8 = 50;
/// Memory of a node for each of its GPUs, in bytes.
const GPU_SHARE_BYTES: u64 = 64 << 30;
/// Ports of every node: the address is its own.
const PORTS: PortBlock = PortBlock { base: 1024, size: 64_000 };

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    pub name: String,
    pub pool: String,
    pub gpus: u32,
    /// As NVML names it.
    pub gpu_model: String,
}

/// The quota of a project in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectQuota {
    pub project: String,
    pub pool: String,
    /// GPUs that the project gets back from others.
    pub guaranteed: u32,
    /// GPUs that its jobs hold together at most.
    pub maximum: Option<u32>,
}

/// The nodes of a replay, and who may use how much of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    nodes: Vec<NodeSpec>,
    quotas: Vec<ProjectQuota>,
}

/// A fleet that cannot be replayed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    #[error("the fleet has no GPU")]
    Empty,
    #[error("{0} nodes are too many; {MAX_NODES} are the most")]
    TooManyNodes(usize),
    #[error("{name} has {gpus} GPUs; {MAX_NODE_GPUS} are the most")]
    TooManyGpus { name: String, gpus: u32 },
    #[error("no node is in pool {pool}, in which {project} is to have a quota; there are: {known}")]
    NoSuchPool { pool: String, project: String, known: String },
    #[error(
        "{project} cannot be guaranteed {guaranteed} GPUs of pool {pool} and have {maximum} at most"
    )]
    GuaranteeAboveMaximum { project: String, pool: String, guaranteed: u32, maximum: u32 },
    #[error("the quotas guarantee {promised} GPUs of pool {pool}, which has {gpus}")]
    TooMuchPromised { pool: String, promised: u64, gpus: u64 },
}

impl Fleet {
    /// Nodes with the names and pools that they have.
    ///
    /// # Errors
    /// There is no GPU, or more than a replay can have.
    pub fn new(nodes: Vec<NodeSpec>) -> Result<Fleet, FleetError> {
        if nodes.len() > MAX_NODES {
            return Err(FleetError::TooManyNodes(nodes.len()));
        }
        if let Some(node) = nodes.iter().find(|node| node.gpus > MAX_NODE_GPUS) {
            return Err(FleetError::TooManyGpus { name: node.name.clone(), gpus: node.gpus });
        }
        if nodes.iter().all(|node| node.gpus == 0) {
            return Err(FleetError::Empty);
        }
        Ok(Fleet { nodes, quotas: Vec::new() })
    }

    /// `count` equal nodes in one pool.
    ///
    /// # Errors
    /// As [`Fleet::new`].
    pub fn uniform(count: usize, gpus: u32) -> Result<Fleet, FleetError> {
        if count > MAX_NODES {
            return Err(FleetError::TooManyNodes(count));
        }
        let node = |number: usize| NodeSpec {
            name: format!("node-{number:05}"),
            pool: "default".to_owned(),
            gpus,
            gpu_model: "GPU".to_owned(),
        };
        Fleet::new((1..=count).map(node).collect())
    }

    /// The same with quotas; of two for one project and pool the later one holds.
    ///
    /// # Errors
    /// A quota that a coordinator would refuse.
    pub fn with_quotas(mut self, quotas: Vec<ProjectQuota>) -> Result<Fleet, FleetError> {
        for quota in quotas {
            let same = |old: &ProjectQuota| old.project == quota.project && old.pool == quota.pool;
            self.quotas.retain(|old| !same(old));
            self.quotas.push(quota);
        }
        let mut gpus: BTreeMap<&str, u64> = BTreeMap::new();
        for node in &self.nodes {
            *gpus.entry(&node.pool).or_default() += u64::from(node.gpus);
        }
        let mut promised: BTreeMap<&str, u64> = BTreeMap::new();
        for ProjectQuota { project, pool, guaranteed, maximum } in &self.quotas {
            let (project, pool) = (project.clone(), pool.clone());
            if !gpus.contains_key(pool.as_str()) {
                let known = gpus.keys().copied().collect::<Vec<_>>().join(", ");
                return Err(FleetError::NoSuchPool { pool, project, known });
            }
            let guaranteed = *guaranteed;
            if let Some(maximum) = maximum.filter(|maximum| *maximum < guaranteed) {
                let error =
                    FleetError::GuaranteeAboveMaximum { project, pool, guaranteed, maximum };
                return Err(error);
            }
        }
        for quota in &self.quotas {
            *promised.entry(&quota.pool).or_default() += u64::from(quota.guaranteed);
        }
        for (pool, promised) in promised {
            let gpus = gpus.get(pool).copied().unwrap_or(0);
            if promised > gpus {
                let pool = pool.to_owned();
                return Err(FleetError::TooMuchPromised { pool, promised, gpus });
            }
        }
        Ok(self)
    }

    pub fn quotas(&self) -> &[ProjectQuota] {
        &self.quotas
    }

    pub fn nodes(&self) -> &[NodeSpec] {
        &self.nodes
    }

    pub fn gpus(&self) -> u64 {
        self.nodes.iter().map(|node| u64::from(node.gpus)).sum()
    }

    /// GPUs of the largest node.
    pub fn node_gpus(&self) -> u32 {
        self.nodes.iter().map(|node| node.gpus).max().unwrap_or(0)
    }

    /// Whether that many nodes have that many GPUs, whatever else a job asks for.
    pub fn holds(&self, nnodes: u32, gpus_per_node: u32) -> bool {
        let large = self.nodes.iter().filter(|node| node.gpus >= gpus_per_node);
        large.take(nnodes as usize).count() == nnodes as usize
    }
}

/// Whoever asks in a replay.
pub(crate) fn operator() -> Principal {
    Principal {
        user: "operator".to_owned(),
        project: "operators".to_owned(),
        role: Role::Admin,
        from: None,
    }
}

/// The id of the node with this index.
pub(crate) fn node_id(index: usize) -> Option<NodeId> {
    NodeId::new(format!("n{index}")).ok()
}

/// The number of the session of the node with this index.
pub(crate) fn session_of(index: usize) -> u64 {
    index as u64 + 1
}

/// What happens when the node with this index joins, in order.
pub(crate) fn join_events(index: usize, spec: &NodeSpec, now: Timestamp) -> Option<Vec<Event>> {
    let node = node_id(index)?;
    let session = session_of(index);
    let mut certificate = [0; 32];
    certificate[..8].copy_from_slice(&session.to_be_bytes());
    let token = JoinTokenRecord {
        id: format!("t{index}"),
        secret_sha256: [0; 32],
        uses_left: 1,
        expires_wall_ms: now.wall_ms + 1,
        pool: None,
        created_by: operator().user,
        created: now,
    };
    let join = Join {
        token_id: token.id.clone(),
        secret_sha256: token.secret_sha256,
        node: node.clone(),
        node_name: spec.name.clone(),
        certificate,
    };
    let opened = Session {
        number: session,
        instance: spec.name.clone(),
        certificate,
        certificate_ends: i64::MAX,
        remote: "replay".to_owned(),
        introduced: false,
        pushed_ms: None,
    };
    let inventory = Box::new(inventory(index, spec));
    Some(vec![
        Event::CreateJoinToken { request: 0, record: token, actor: operator() },
        Event::Join { request: 0, join },
        Event::Connected { request: 0, node: node.clone(), session: opened },
        Event::Inventory { node, session, inventory, name: spec.name.clone() },
    ])
}

fn inventory(index: usize, spec: &NodeSpec) -> Inventory {
    let gpu = |number: u32| Gpu {
        uuid: GpuId(format!("GPU-{index}-{number}")),
        index: number,
        name: spec.gpu_model.clone(),
        memory_bytes: GPU_SHARE_BYTES,
    };
    Inventory {
        hostname: spec.name.clone(),
        agent_version: String::new(),
        head_role: false,
        worker_role: true,
        pool: spec.pool.clone(),
        labels: Vec::new(),
        address: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + index as u32)),
        boot_id: format!("boot-{index}"),
        network_namespace: index as u64,
        container_start_ms: 0,
        gpus: (0..spec.gpus).map(gpu).collect(),
        // The defaults of a job are its GPU share of the node, so GPUs alone decide what fits.
        cpus_milli: spec.gpus.max(1) * 1000,
        memory_bytes: u64::from(spec.gpus.max(1)) * GPU_SHARE_BYTES,
        shm_bytes: GPU_SHARE_BYTES,
        pids_limit: None,
        ports: PORTS,
        versions: Vec::new(),
        doctor: Vec::new(),
    }
}
