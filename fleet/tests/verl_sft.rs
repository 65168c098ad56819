//! Supervised fine-tuning by verl itself, through the template, on two Ray workers without
//! accelerators: the loss falls, checkpoints are kept as asked, and a second job goes on from where
//! the first one ended.
//!
//! It runs only when it is named, because its environment takes 6 GB:
//! `cargo test -p gangline-fleet --test verl_sft -- --nocapture`.

#[path = "fleets/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use gangline_fleet::build::workspace;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::ray_env::VERL;
use gangline_fleet::slots;
use support::{TestResult, built};

/// A first import of torch on a busy machine takes its time.
const TRAINING: Duration = Duration::from_secs(600);

/// Runs the example as one job and returns its steps, each with its training loss.
async fn train(fleet: &Fleet, data: &Path, steps: &str) -> anyhow::Result<Vec<(u32, f64)>> {
    let example = workspace().join("examples/verl_sft/sft.yaml");
    let spec = std::fs::read_to_string(example)?
        .replace("/shared/tiny", &data.display().to_string())
        .replace("/shared/examples", &workspace().join("examples").display().to_string())
        .replace("/shared/checkpoints/tiny", &fleet.shared_root().join("run").display().to_string())
        .replace("overrides:\n", &format!("overrides:\n{steps}"));
    let api = fleet.api()?;
    let job = api.submit(&spec).await?;
    let ended = api.wait_job(&job, &["SUCCEEDED", "FAILED"], TRAINING).await?;
    let log = api.logs(&job, "").await?;
    assert_eq!(ended["state"], "SUCCEEDED", "{ended}\n{log}");
    let losses = log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("step:")?;
        let step = rest.split(' ').next()?.parse().ok()?;
        let (_, loss) = rest.split_once("train/loss:")?;
        Some((step, loss.split(' ').next()?.parse().ok()?))
    });
    Ok(losses.collect())
}

fn kept(fleet: &Fleet) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fleet.shared_root().join("run"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name.starts_with("global_step_"));
    names.sort();
    Ok(names)
}

#[tokio::test]
async fn verl_trains_and_goes_on_from_its_checkpoint() -> TestResult {
    let binaries = built().await?;
    let python = VERL.python(&binaries.target, &|text| eprintln!("{text}")).await?;
    let data = tempfile::tempdir()?;
    let maker = workspace().join("examples/verl_sft/make_data.py");
    let made = Command::new(&python).arg(maker).arg(data.path()).status()?;
    assert!(made.success(), "{made}");
    let slot = slots::heavy().await?;
    let options = FleetOptions { python: Some(python), ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries, options).await?;
    fleet.add_agent(AgentOptions::head("head")).await?;
    fleet.add_agent(AgentOptions::worker("a", 1)).await?;
    fleet.add_agent(AgentOptions::worker("b", 1)).await?;

    let first = train(&fleet, data.path(), "  - trainer.total_training_steps=12\n").await?;
    eprintln!("first job: {first:?}");
    assert_eq!(
        first.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        (1..=12).collect::<Vec<_>>()
    );
    let left = ["global_step_10", "global_step_12"];
    assert_eq!(kept(&fleet)?, left, "step 5 made room");

    let second = train(&fleet, data.path(), "").await?;
    eprintln!("second job: {second:?}");
    assert_eq!(
        second.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        (13..=22).collect::<Vec<_>>()
    );
    // verl counts only what the same process has saved.
    assert_eq!(kept(&fleet)?, [left, ["global_step_20", "global_step_22"]].concat());
    let start = first.first().context("no step")?.1;
    let end = second.last().context("no step")?.1;
    assert!(end < start / 2.0, "the loss went from {start} to {end}");
    drop(slot);
    fleet.assert_clean().await
}
