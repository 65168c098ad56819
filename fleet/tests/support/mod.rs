//! What the real-process tests share.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;
use std::time::Duration;

use gangline_fleet::build::{Binaries, binaries, workspace};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::ray_env;

pub type TestResult = anyhow::Result<()>;

pub const SHORT: Duration = Duration::from_secs(30);
/// Ray starts in seconds on a quiet machine; this machine may not be quiet.
pub const RAY: Duration = Duration::from_secs(180);

pub async fn built() -> anyhow::Result<Binaries> {
    binaries(true).await
}

pub async fn ray_python(binaries: &Binaries) -> anyhow::Result<PathBuf> {
    ray_env::python(&binaries.target, &|text| eprintln!("{text}")).await
}

/// A coordinator and this many workers without GPUs, for command gangs.
pub async fn command_fleet(workers: u32) -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    for number in 0..workers {
        fleet.add_agent(AgentOptions::worker(&format!("w{number}"), 0)).await?;
    }
    Ok(fleet)
}

/// A coordinator, a head node without GPU and two workers with four GPUs each.
pub async fn ray_fleet() -> anyhow::Result<Fleet> {
    let binaries = built().await?;
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

/// A command gang; `command` is a JSON array.
pub fn command(name: &str, nnodes: u32, command: &str) -> String {
    format!(
        "name: {name}\nresources: {{nnodes: {nnodes}}}\nlauncher: {{type: command}}\ncommand: \
         {command}\n"
    )
}

/// Steps that the training has logged so far, from its own file.
pub fn steps(fleet: &Fleet, job: &str) -> Vec<u32> {
    let path = fleet.shared_root().join("jobs").join(job).join("checkpoints/steps.log");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

/// Waits until the training has done this many steps.
pub async fn wait_steps(fleet: &Fleet, job: &str, wanted: usize) -> anyhow::Result<()> {
    for _ in 0..600 {
        if steps(fleet, job).len() >= wanted {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    anyhow::bail!("{job} has done {} of {wanted} steps", steps(fleet, job).len())
}

/// The `step:N` lines of a log.
pub fn logged_steps(log: &str) -> Vec<u32> {
    log.lines()
        .filter_map(|line| line.split_once("step:")?.1.split([' ', '-']).next()?.parse().ok())
        .collect()
}
