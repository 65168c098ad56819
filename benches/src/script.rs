//! What agents and users of a made-up fleet say, as events for a core.

use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{GangId, GpuId, JobId, NodeId, PortBlock, short_suffix};
use gangline_common::time::Timestamp;
use gangline_coordinator::core::credential::{JoinTokenRecord, Principal, Role};
use gangline_coordinator::core::event::{Event, Join, Submission};
use gangline_coordinator::core::gang::{End, EndHow, Phase};
use gangline_coordinator::core::job::JobRequest;
use gangline_coordinator::core::node::{Gpu, Inventory, Session};
use gangline_coordinator::paths::ResolvedPaths;
use gangline_coordinator::request::{Owner, job_request};

/// GPUs of every node.
pub const GPUS: u32 = 8;
/// The usual pool of nodes.
pub const POOL: &str = "default";

/// An odd number whose multiples lie far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Gives every node, session and gang a number of its own.
pub struct Script {
    gang_of_two: Arc<JobRequest>,
    next: u64,
}

/// A node that comes into the fleet.
pub struct Arrival {
    pub node: NodeId,
    pub session: u64,
    /// It joins, connects, and says what it is.
    pub events: Vec<Event>,
}

impl Script {
    pub fn new() -> anyhow::Result<Self> {
        Ok(Script { gang_of_two: Arc::new(gang_of_two()?), next: 0 })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A gang of two whole nodes.
    pub fn gang_of_two(&self) -> Arc<JobRequest> {
        self.gang_of_two.clone()
    }

    /// The same, but for what `change` does.
    pub fn request_with(&self, change: impl FnOnce(&mut JobRequest)) -> Arc<JobRequest> {
        let mut request = JobRequest::clone(&self.gang_of_two);
        change(&mut request);
        Arc::new(request)
    }

    /// How the node `number` comes into a pool.
    pub fn arrival(
        &mut self,
        number: usize,
        pool: &str,
        now: Timestamp,
    ) -> anyhow::Result<Arrival> {
        let node = NodeId::new(format!("n-{number:05}"))?;
        let name = format!("gpu-{number:05}");
        let session = self.number();
        let mut certificate = [0; 32];
        certificate[..8].copy_from_slice(&session.to_be_bytes());
        let token = format!("t{number}");
        let record = JoinTokenRecord {
            id: token.clone(),
            secret_sha256: [7; 32],
            uses_left: 1,
            expires_wall_ms: now.wall_ms + 3_600_000,
            pool: None,
            created_by: "admin".to_owned(),
            created: now,
        };
        let join = Join {
            token_id: token,
            secret_sha256: [7; 32],
            node: node.clone(),
            node_name: name.clone(),
            certificate,
        };
        let opened = Session {
            number: session,
            instance: name.clone(),
            certificate,
            certificate_ends: i64::MAX,
            remote: "10.0.0.1:4000".to_owned(),
            introduced: false,
            pushed_ms: None,
        };
        let inventory = Box::new(inventory(&name, number as u64, pool));
        let events = vec![
            Event::CreateJoinToken { request: 0, record, actor: alice() },
            Event::Join { request: 0, join },
            Event::Connected { request: 0, node: node.clone(), session: opened },
            Event::Inventory { node: node.clone(), session, inventory, name },
        ];
        Ok(Arrival { node, session, events })
    }

    /// The submission of a new gang.
    pub fn submission(&mut self, request: Arc<JobRequest>) -> anyhow::Result<Submission> {
        let number = self.number();
        let mut token_seed = [0; 32];
        token_seed[..8].copy_from_slice(&number.to_be_bytes());
        // Ids are drawn by chance: neighbours in time are none in the store.
        let suffix = short_suffix(number.wrapping_mul(SPREAD));
        Ok(Submission {
            after: Vec::new(),
            job: JobId::new(format!("j-{suffix}-{number}"))?,
            gang: GangId::new(format!("g-{suffix}-{number}"))?,
            token_seed,
            principal: alice(),
            idempotency: None,
            request,
            node_test: None,
        })
    }
}

/// A member has done its work.
pub fn ended() -> Phase {
    Phase::Ended(End {
        how: EndHow::Exited { code: 0 },
        asked: false,
        last_output: String::new(),
        logs_complete: true,
    })
}

fn gang_of_two() -> anyhow::Result<JobRequest> {
    let spec = gangline_spec::parse(
        "name: bench\nresources: {nnodes: 2, gpus_per_node: 8}\nlauncher: {type: command}\n\
         command: [python, -m, train, --config, grpo.yaml]\nenv: {LR: 1e-6, MODEL: llama}\n",
    )?;
    let paths = ResolvedPaths {
        job_directory: Some("/mnt/shared/jobs/bench".to_owned()),
        checkpoint_directory: None,
    };
    let job = JobId::new("j-bench")?;
    let owner = Owner { job: &job, project: "rl" };
    Ok(job_request(&spec, owner, paths, "gangline submit job.yaml".to_owned()))
}

fn inventory(name: &str, number: u64, pool: &str) -> Inventory {
    let [.., high, low] = number.to_be_bytes();
    Inventory {
        hostname: name.to_owned(),
        agent_version: "0.1.0".to_owned(),
        head_role: false,
        worker_role: true,
        pool: pool.to_owned(),
        labels: vec![("rack".to_owned(), format!("r{}", number / 16))],
        address: IpAddr::from([10, 20, high, low]),
        boot_id: format!("boot-{number}"),
        network_namespace: number,
        container_start_ms: 1,
        gpus: (0..GPUS)
            .map(|index| Gpu {
                uuid: GpuId(format!("GPU-{number:08x}-5b7e-4c1a-9f00-{index:012x}")),
                index,
                name: "NVIDIA H100 80GB HBM3".to_owned(),
                memory_bytes: 80 << 30,
            })
            .collect(),
        cpus_milli: 128_000,
        memory_bytes: 1 << 40,
        shm_bytes: 64 << 30,
        pids_limit: None,
        ports: PortBlock { base: 20_000, size: 12_768 },
        versions: Vec::new(),
        doctor: Vec::new(),
    }
}

fn alice() -> Principal {
    Principal { user: "alice".to_owned(), project: "rl".to_owned(), role: Role::Member, from: None }
}
