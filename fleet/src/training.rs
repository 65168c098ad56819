//! The example training on real Ray: its fleet, its spec, and how far it has come.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::build::{Binaries, workspace};
use crate::fleet::{AgentOptions, Fleet, FleetOptions};
use crate::hosts::{Host, Network};
use crate::ray_env;

/// Steps are looked for this often, and so often.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOKS: u32 = 600;

/// The interpreter with Ray; makes its environment if need be.
pub async fn ray_python(binaries: &Binaries) -> anyhow::Result<PathBuf> {
    ray_env::python(&binaries.target, &|text| eprintln!("{text}")).await
}

/// A coordinator, a head node without GPU and two workers with four GPUs each.
pub async fn ray_fleet(binaries: Binaries) -> anyhow::Result<Fleet> {
    let python = ray_python(&binaries).await?;
    let options = FleetOptions { python: Some(python), ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries, options).await?;
    fleet.add_agent(AgentOptions::head("head")).await?;
    fleet.add_agent(AgentOptions::worker("a", 4)).await?;
    fleet.add_agent(AgentOptions::worker("b", 4)).await?;
    Ok(fleet)
}

/// A fleet on hosts that have booted.
pub struct Hosted {
    // Dropped first: its processes are in the namespaces.
    pub fleet: Fleet,
    /// By the name of the node.
    pub hosts: BTreeMap<String, Host>,
    _network: Network,
}

impl Hosted {
    /// A head node without GPU and workers `n1`, `n2`, ... with so many GPUs each.
    pub async fn ray_fleet(binaries: Binaries, workers: u8, gpus: u32) -> anyhow::Result<Hosted> {
        let options =
            FleetOptions { python: Some(ray_python(&binaries).await?), ..FleetOptions::default() };
        let worker = |number| AgentOptions::worker(&format!("n{number}"), gpus);
        let agents = [AgentOptions::head("head")].into_iter().chain((1..=workers).map(worker));
        Hosted::start(binaries, options, agents.collect()).await
    }

    /// A host for each agent. Needs what [`crate::hosts::available`] asks for.
    pub async fn start(
        binaries: Binaries,
        options: FleetOptions,
        agents: Vec<AgentOptions>,
    ) -> anyhow::Result<Hosted> {
        let network = Network::create(u8::try_from(agents.len())?)?;
        let options = FleetOptions {
            address: Some(network.address()),
            // Whoever measures looks often.
            coordinator_config: "request_rate = 0\n".to_owned(),
            ..options
        };
        let mut fleet = Fleet::start(binaries, options).await?;
        let mut hosts = BTreeMap::new();
        for (agent, host) in agents.into_iter().zip(network.hosts()) {
            let host = host.boot()?;
            hosts.insert(agent.name.clone(), host.clone());
            fleet.add_agent(agent.on(&host)).await?;
        }
        Ok(Hosted { fleet, hosts, _network: network })
    }

    pub fn host(&self, node: &str) -> anyhow::Result<Host> {
        self.hosts.get(node).cloned().with_context(|| format!("no host of {node}"))
    }
}

/// The example as a spec, with a pause per step so that there is time for faults.
pub fn training(name: &str, gpus: u32, steps: u32, pause_s: f32) -> String {
    let examples = workspace().join("examples");
    format!(
        "name: {name}\nresources: {{nnodes: 2, gpus_per_node: {gpus}}}\nenv: {{EXAMPLES_DIR: \
         \"{}\"}}\nrun: exec python \"$EXAMPLES_DIR/ppo_cartpole.py\" --steps {steps} --step-sleep \
         {pause_s}\n",
        examples.display()
    )
}

/// The same spec with one attempt, whatever ends it.
pub fn once(spec: &str) -> String {
    format!("{spec}retry: {{max: 0}}\n")
}

/// Steps that the training has done so far, from its own file.
pub fn steps(fleet: &Fleet, job: &str) -> Vec<u32> {
    steps_below(&fleet.shared_root(), job)
}

/// The same for whoever has no fleet at hand; `root` is where the nodes keep what jobs write.
pub fn steps_below(root: &Path, job: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(checkpoints(root, job).join("steps.log"));
    let text = text.unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

/// The step of the newest training checkpoint; 0 before the first.
pub fn saved_step(root: &Path, job: &str) -> u32 {
    let newest = checkpoints(root, job).join("latest_checkpointed_iteration.txt");
    std::fs::read_to_string(newest).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn checkpoints(root: &Path, job: &str) -> PathBuf {
    root.join("jobs").join(job).join("checkpoints")
}

/// The `step:N` lines of a log.
pub fn logged_steps(log: &str) -> Vec<u32> {
    log.lines()
        .filter_map(|line| line.split_once("step:")?.1.split([' ', '-']).next()?.parse().ok())
        .collect()
}

/// Waits until the training has done this many steps.
pub async fn wait_steps(fleet: &Fleet, job: &str, wanted: usize) -> anyhow::Result<()> {
    for _ in 0..LOOKS {
        if steps(fleet, job).len() >= wanted {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    anyhow::bail!("{job} has done {} of {wanted} steps", steps(fleet, job).len())
}
