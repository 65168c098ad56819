//! The example training on real Ray: its fleet, its spec, and how far it has come.

use std::path::PathBuf;
use std::time::Duration;

use crate::build::{Binaries, workspace};
use crate::fleet::{AgentOptions, Fleet, FleetOptions};
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

/// Steps that the training has logged so far, from its own file.
pub fn steps(fleet: &Fleet, job: &str) -> Vec<u32> {
    let path = fleet.shared_root().join("jobs").join(job).join("checkpoints/steps.log");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
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
