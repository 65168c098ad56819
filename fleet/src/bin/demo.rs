//! `cargo demo`: one coordinator, three agents, one reinforcement-learning job on real Ray.
//!
//! It sets up what it needs, runs the example to its end, shows where everything is, and leaves
//! nothing running. `--keep` keeps the fleet up until Ctrl-C.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use gangline_fleet::build::{Binaries, binaries, workspace};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::ray_env;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
#[command(name = "demo", about = "Runs the example on a small fleet of this machine")]
struct Arguments {
    /// Keep the fleet up after the example, until Ctrl-C, and print what to try.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("runtime")
        .and_then(|runtime| runtime.block_on(until_interrupted(arguments)));
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo; Ctrl-C or SIGTERM drops it at any point, and the drop cleans up.
async fn until_interrupted(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = demo(&arguments) => result.map(|()| ExitCode::SUCCESS),
        _ = interrupt.recv() => stopped(),
        _ = terminate.recv() => stopped(),
    }
}

fn stopped() -> anyhow::Result<ExitCode> {
    eprintln!("\nstopped; nothing is left running");
    Ok(ExitCode::from(130))
}

async fn demo(arguments: &Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let (binaries, python) = set_up().await?;
    let shared_root = binaries.target.join("demo");
    let options = FleetOptions {
        python: Some(python),
        shared_root: Some(shared_root),
        ..FleetOptions::default()
    };
    let mut fleet = Fleet::start(binaries, options).await?;
    step(started, &format!("coordinator at {}", fleet.url()));
    fleet.add_agent(AgentOptions::head("head")).await?;
    fleet.add_agent(AgentOptions::worker("worker-a", 4)).await?;
    fleet.add_agent(AgentOptions::worker("worker-b", 4)).await?;
    step(started, "three agents joined: head (no GPU), worker-a and worker-b (4 simulated GPUs)");

    let outcome = run_example(&fleet, started).await;
    if outcome.is_err() {
        eprintln!("{}", fleet.coordinator_log());
        for name in ["head", "worker-a", "worker-b"] {
            eprintln!("{}", fleet.agent_log(name));
        }
    }
    outcome?;
    if arguments.keep {
        print_what_to_try(&fleet);
        std::future::pending::<()>().await;
    }
    for name in ["worker-a", "worker-b", "head"] {
        fleet.stop_agent(name)?;
    }
    fleet.stop_coordinator()?;
    fleet.assert_clean().await?;
    step(started, "everything stopped, nothing left running");
    Ok(())
}

/// Builds the programs and the Python environment, each with its progress on stderr.
async fn set_up() -> anyhow::Result<(Binaries, PathBuf)> {
    let binaries = binaries(false).await?;
    let spinner = ProgressBar::new_spinner()
        .with_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})")?);
    spinner.enable_steady_tick(Duration::from_millis(120));
    let terminal = !spinner.is_hidden();
    let python = ray_env::python(&binaries.target, &|text| {
        spinner.set_message(text.to_owned());
        if !terminal {
            eprintln!("{text}");
        }
    })
    .await?;
    spinner.finish_and_clear();
    Ok((binaries, python))
}

async fn run_example(fleet: &Fleet, started: Instant) -> anyhow::Result<()> {
    let examples = workspace().join("examples");
    let spec = examples.join("ppo_cartpole.yaml");
    let variable = format!("EXAMPLES_DIR={}", examples.display());
    println!("\n$ gangline submit examples/ppo_cartpole.yaml --env {variable}");
    let mut submit = cli(fleet);
    submit.arg("submit").arg(&spec).args(["--env", &variable, "-o", "name"]);
    let submitted = submit.output().await?;
    if !submitted.status.success() {
        bail!("submit: {}", String::from_utf8_lossy(&submitted.stderr));
    }
    let job = String::from_utf8(submitted.stdout)?.trim().to_owned();
    println!("{job}\n\n$ gangline logs -f {job}");
    let mut follow = cli(fleet);
    follow.args(["logs", "-f", &job]);
    let status = follow.status().await?;
    let detail = fleet.api()?.job(&job).await?;
    let state = detail["state"].as_str().unwrap_or_default();
    if !status.success() || state != "SUCCEEDED" {
        let reason = detail["reason"].as_str().unwrap_or_default();
        bail!("{job} is {state}: {reason} (logs -f ended with {status})");
    }
    println!("\n$ gangline show {job}");
    let mut show = cli(fleet);
    show.args(["show", &job]);
    show.status().await?;
    let directory = detail["directory"].as_str().context("the job has no directory")?;
    println!("\nartefacts in {directory}:");
    list(Path::new(directory), 1);
    println!();
    step(started, &format!("{job} SUCCEEDED"));
    Ok(())
}

/// The CLI as a user has it, pointed at this fleet.
fn cli(fleet: &Fleet) -> Command {
    let mut command = Command::from(fleet.cli());
    command.kill_on_drop(true);
    command
}

/// The directory tree, three levels deep.
fn list(directory: &Path, depth: usize) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let slash = if path.is_dir() { "/" } else { "" };
        println!("{}{name}{slash}", "  ".repeat(depth));
        if path.is_dir() && depth < 3 {
            list(&path, depth + 1);
        }
    }
}

fn print_what_to_try(fleet: &Fleet) {
    println!("\nThe fleet is up until Ctrl-C. In another terminal:");
    println!("  export GANGLINE_ADDRESS={}", fleet.url());
    println!("  export GANGLINE_TOKEN=$(cat {})", fleet.admin_token_file().display());
    println!(
        "  export PATH={}:$PATH",
        fleet.binaries.cli.parent().unwrap_or(Path::new("")).display()
    );
    println!("  gangline node ls");
    println!("  gangline top");
    println!("  gangline run --nnodes 2 --gpus 1 -- sh -c 'echo rank $NODE_RANK; nproc'");
    println!("  gangline init && gangline submit job.yaml -f");
    println!("  gangline ps -a");
    println!("API document: {}/api/v1/openapi.json", fleet.url());
}

fn step(started: Instant, text: &str) {
    println!("[{:5.1} s] {text}", started.elapsed().as_secs_f32());
}
