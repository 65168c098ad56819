//! A coordinator's core with any number of connected nodes, for the benches that need no network:
//! their agents say at once what real agents would say in time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use gangline_common::ids::{
    GangId, Generation, GpuId, JobId, MemberKey, NodeId, PortBlock, short_suffix,
};
use gangline_common::time::Timestamp;
use gangline_coordinator::core::Core;
use gangline_coordinator::core::credential::{JoinTokenRecord, Principal, Role};
use gangline_coordinator::core::effect::{Desired, Effects, Push};
use gangline_coordinator::core::event::{Event, Join, Report, Submission};
use gangline_coordinator::core::gang::{End, EndHow, Phase};
use gangline_coordinator::core::job::JobRequest;
use gangline_coordinator::core::node::{Gpu, Inventory, Session};
use gangline_coordinator::paths::ResolvedPaths;
use gangline_coordinator::request::{Owner, job_request};

/// GPUs of every node; the gangs take all of them.
const GPUS: u32 = 8;
/// Pool of the nodes, but for those of `add_busy_pool`.
const POOL: &str = "default";

/// Gangs that run from the beginning, at most: with more, setting up takes longer than measuring.
const GANGS: usize = 250;

/// A node as its agent knows it.
#[derive(Clone)]
pub struct Place {
    pub node: NodeId,
    pub session: u64,
    pub held: Generation,
}

pub struct Nodes {
    pub core: Core,
    pub now: Timestamp,
    pub places: Vec<Place>,
    by_node: BTreeMap<NodeId, usize>,
    request: Arc<JobRequest>,
    next: u64,
}

impl Nodes {
    /// `count` nodes of eight GPUs, joined and connected, and gangs of two that fill half of them,
    /// but at most 500.
    pub fn half_busy(count: usize) -> anyhow::Result<Self> {
        Nodes::with_gangs(count, GANGS.min(count / 4))
    }

    /// The same with gangs of two on every node.
    pub fn all_busy(count: usize) -> anyhow::Result<Self> {
        Nodes::with_gangs(count, count / 2)
    }

    /// `count` nodes of which gangs of two fill as many as they are.
    pub fn with_gangs(count: usize, gangs: usize) -> anyhow::Result<Self> {
        let now = Timestamp { boot_ms: 1_000_000, wall_ms: 1_800_000_000_000 };
        let mut nodes = Nodes {
            core: Core::new(1, now),
            now,
            places: Vec::with_capacity(count),
            by_node: BTreeMap::new(),
            request: Arc::new(gang_of_two()?),
            next: 0,
        };
        nodes.join_all(count, POOL)?;
        let request = nodes.request.clone();
        nodes.fill(gangs, &request)?;
        Ok(nodes)
    }

    /// `count` more nodes in another pool, all taken by gangs of two.
    pub fn add_busy_pool(&mut self, count: usize, pool: &str) -> anyhow::Result<()> {
        self.join_all(count, pool)?;
        let request = self.request_with(|request| request.pools = vec![pool.to_owned()]);
        self.fill(count / 2, &request)
    }

    fn join_all(&mut self, count: usize, pool: &str) -> anyhow::Result<()> {
        let first = self.places.len();
        (first..first + count).try_for_each(|number| self.join(number, pool))
    }

    fn fill(&mut self, gangs: usize, request: &Arc<JobRequest>) -> anyhow::Result<()> {
        for _ in 0..gangs {
            let submission = self.submission_of(request.clone())?;
            let submitted = self.step(submission);
            anyhow::ensure!(submitted.pushes.len() == 2, "the gang found no place");
            self.report_all(&submitted.pushes, &Phase::Running { pid: 1 })?;
        }
        Ok(())
    }

    /// A gang of two whole nodes of the usual pool, but for what `change` does.
    pub fn request_with(&self, change: impl FnOnce(&mut JobRequest)) -> Arc<JobRequest> {
        let mut request = JobRequest::clone(&self.request);
        change(&mut request);
        Arc::new(request)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn step(&mut self, event: Event) -> Effects {
        let mut effects = Effects::default();
        self.core.step(event, self.now, &mut effects);
        effects
    }

    fn join(&mut self, number: usize, pool: &str) -> anyhow::Result<()> {
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
            expires_wall_ms: self.now.wall_ms + 3_600_000,
            pool: None,
            created_by: "admin".to_owned(),
            created: self.now,
        };
        self.step(Event::CreateJoinToken { request: 0, record, actor: alice() });
        let join = Join {
            token_id: token,
            secret_sha256: [7; 32],
            node: node.clone(),
            node_name: name.clone(),
            certificate,
        };
        self.step(Event::Join { request: 0, join });
        let opened = Session {
            number: session,
            instance: name.clone(),
            certificate,
            certificate_ends: i64::MAX,
            remote: "10.0.0.1:4000".to_owned(),
            introduced: false,
            pushed_ms: None,
        };
        self.step(Event::Connected { request: 0, node: node.clone(), session: opened });
        let inventory = Box::new(inventory(&name, number as u64, pool));
        self.step(Event::Inventory { node: node.clone(), session, inventory, name });
        self.by_node.insert(node.clone(), self.places.len());
        self.places.push(Place { node, session, held: Generation::default() });
        Ok(())
    }

    /// Submits a gang that finds no place.
    pub fn wait_in_line(&mut self, request: Arc<JobRequest>) -> anyhow::Result<()> {
        let event = self.submission_of(request)?;
        let effects = self.step(event);
        anyhow::ensure!(effects.pushes.is_empty(), "the gang found a place");
        Ok(())
    }

    /// The submission of a new gang of two whole nodes.
    pub fn submission(&mut self) -> anyhow::Result<Event> {
        self.submission_of(self.request.clone())
    }

    /// The submission of a new gang.
    pub fn submission_of(&mut self, request: Arc<JobRequest>) -> anyhow::Result<Event> {
        let number = self.number();
        let mut token_seed = [0; 32];
        token_seed[..8].copy_from_slice(&number.to_be_bytes());
        let submission = Submission {
            after: Vec::new(),
            job: JobId::new(format!("j-{}-{number}", short_suffix(number)))?,
            gang: GangId::new(format!("g-{}-{number}", short_suffix(number)))?,
            token_seed,
            principal: alice(),
            idempotency: None,
            request,
        };
        Ok(Event::Submit { request: number, submission: Box::new(submission) })
    }

    /// Submits a gang, which finds its place at once. Returns what came of it, and the gang.
    pub fn submit(&mut self) -> anyhow::Result<(Effects, GangId)> {
        let event = self.submission()?;
        let Event::Submit { submission, .. } = &event else {
            anyhow::bail!("not a submission");
        };
        let gang = submission.gang.clone();
        let effects = self.step(event);
        anyhow::ensure!(effects.pushes.len() == 2, "the gang found no place");
        Ok((effects, gang))
    }

    /// What the agent of a pushed node says once every member that it is to run is in `phase`.
    pub fn report(&mut self, push: &Push, phase: &Phase) -> anyhow::Result<Event> {
        let index = self.by_node.get(&push.node).context("a push to an unknown node")?;
        let place = self.places.get_mut(*index).context("a push to an unknown node")?;
        place.held = push.generation;
        let mut members = Vec::new();
        for desired in &push.gangs {
            let Desired::Run { gang, .. } = desired else { continue };
            for (member, _) in gang.members_on(&push.node) {
                let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member };
                members.push((key, phase.clone()));
            }
        }
        let report =
            Report { held: push.generation, members, gangs: Vec::new(), ..Report::default() };
        Ok(Event::Reported { node: place.node.clone(), session: place.session, report })
    }

    pub fn report_all(&mut self, pushes: &[Push], phase: &Phase) -> anyhow::Result<()> {
        for push in pushes {
            let event = self.report(push, phase)?;
            self.step(event);
        }
        Ok(())
    }

    /// Ends the gang that these pushes began: its job succeeds and its nodes are free again.
    pub fn finish(&mut self, pushes: &[Push]) -> anyhow::Result<()> {
        let end = End {
            how: EndHow::Exited { code: 0 },
            asked: false,
            last_output: String::new(),
            logs_complete: true,
        };
        self.report_all(pushes, &Phase::Ended(end))
    }

    /// A sign of life of one node, by its index.
    pub fn heartbeat(&self, index: usize) -> anyhow::Result<Event> {
        let place = self.places.get(index % self.places.len()).context("no nodes")?;
        Ok(Event::Heard { node: place.node.clone(), session: place.session, held: place.held })
    }
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
