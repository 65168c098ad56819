//! `cargo soak`: real fleets under random kill -9 for as long as asked, and the other long runs.
//!
//! Without a choice: coordinator and agents are killed under a running queue. The last tables of
//! results are in docs/soak.md.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use gangline_fleet::build::{binaries, workspace};
use gangline_fleet::soak::{faults, heads, kills, memory};
use gangline_fleet::{hosts, slots, training};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// Agents of a fleet under kills.
const AGENTS: usize = 3;
/// Clients that keep its queue busy.
const CLIENTS: u64 = 4;
/// Trainings at a time under faults.
const TRAININGS: u8 = 3;

#[derive(Parser)]
#[command(name = "soak", about = "Random kills under a running queue, and other long runs")]
struct Arguments {
    /// Kills of the coordinator alone, and as many of an agent alone; a tenth as many of both.
    #[arg(long, default_value_t = 200)]
    cycles: u32,
    /// The same seed makes the same kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead: kill so many Ray heads, each under a training of its own.
    #[arg(long, value_name = "KILLS")]
    ray_heads: Option<u32>,
    /// Instead: so many faults of every kind under three trainings, on nodes in namespaces (needs root).
    #[arg(long, value_name = "FAULTS")]
    faults: Option<u32>,
    /// Instead: watch memory and descriptors under load for so long, without kills (`1h`, `10m`).
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    memory: Option<Duration>,
    /// Instead: feed every decoder with mutated input for so many seconds.
    #[arg(long, value_name = "SECONDS")]
    fuzz: Option<u64>,
    /// Instead: simulated fleets; what follows is for them (`--simulation --help`).
    #[arg(long, num_args = 0.., allow_hyphen_values = true)]
    simulation: Option<Vec<String>>,
}

fn duration(text: &str) -> Result<Duration, String> {
    gangline_spec::parse_duration(text).ok_or_else(|| "a duration such as 10m or 1h".to_owned())
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Dropping a run at any point leaves nothing running.
    tokio::select! {
        done = run(&arguments) => done.map(|()| ExitCode::SUCCESS),
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(further) = &arguments.simulation {
        // A program of its own: it is built with the switches for planted bugs, and nothing else
        // ever is.
        let simulation = ["gangline-simulation", "--features", "planted", "--bin", "histories"];
        return program(&simulation, further).await;
    }
    if let Some(seconds) = arguments.fuzz {
        // A program of its own as well: it counts what it allocates.
        let further = [seconds.to_string(), "--seed".to_owned(), arguments.seed.to_string()];
        return program(&["gangline-fuzz"], &further).await;
    }
    if let Some(duration) = arguments.memory {
        return watch_memory(duration).await;
    }
    if let Some(faults) = arguments.faults {
        return let_faults_happen(faults, arguments.seed).await;
    }
    if let Some(heads) = arguments.ray_heads {
        return kill_heads(heads, arguments.seed).await;
    }
    kill(arguments).await
}

/// Runs another program of this workspace to its end.
async fn program(what: &[&str], further: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(workspace())
        .args(["run", "--release", "--package"])
        .args(what)
        .arg("--")
        .args(further)
        .kill_on_drop(true)
        .status()
        .await
        .context("cargo is needed to build it")?;
    if !status.success() {
        bail!("it found something, or could not run");
    }
    Ok(())
}

async fn kill(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { cycles, seed, .. } = *arguments;
    let options =
        kills::Options { seed, cycles, both: cycles / 10, agents: AGENTS, clients: CLIENTS };
    println!("cargo soak --cycles {cycles} --seed {seed}");
    let mut fleet = kills::fleet(binaries(false).await?, AGENTS).await?;
    let report = kills::run(&mut fleet, options, &mut |line| println!("{line}")).await?;
    println!("{:<12} {:>6} {:>14} {:>14}", "killed", "kills", "settled mean", "slowest");
    for (victim, tally) in &report.kills {
        let mean = tally.total / tally.kills.max(1);
        let word = victim.word();
        println!("{word:<12} {:>6} {mean:>14.2?} {:>14.2?}", tally.kills, tally.slowest);
    }
    println!(
        "{} jobs, {} of them cancelled and {} failed because a kill met the start of a member, up to {} in the queue at a kill; {} submits without an \
         answer; {} answers and rows checked, {} looks at an empty queue: none lost, none doubled, \
         no process left",
        report.jobs,
        report.cancelled,
        report.unstarted,
        report.queue,
        report.unanswered,
        report.looked_at,
        report.looks
    );
    Ok(())
}

async fn kill_heads(heads: u32, seed: u64) -> anyhow::Result<()> {
    println!("cargo soak --ray-heads {heads} --seed {seed}");
    let fleet = training::ray_fleet(binaries(false).await?).await?;
    let _slot = slots::heavy().await?;
    let tallies = heads::run(&fleet, heads, seed, &mut |line| println!("{line}")).await?;
    println!("killed        kills  head is named      gone mean        slowest");
    for (word, tally) in tallies {
        let mean = tally.total / tally.kills.max(1);
        let (kills, named) = (tally.kills, tally.named);
        println!("{word:<12} {kills:>6} {named:>14} {mean:>14.2?} {:>14.2?}", tally.slowest);
    }
    println!("every job failed and said why, no process left, and the next one ran");
    Ok(())
}

async fn let_faults_happen(faults: u32, seed: u64) -> anyhow::Result<()> {
    println!("cargo soak --faults {faults} --seed {seed}");
    if let Err(missing) = hosts::available() {
        bail!("{missing}");
    }
    let ground = faults::ground(binaries(false).await?, TRAININGS).await?;
    let deck = faults::Kind::DECK.to_vec();
    let options = faults::Options { seed, faults, trainings: TRAININGS, deck };
    let _slot = slots::heavy().await?;
    let report = faults::run(ground, options, |line| println!("{line}")).await?;
    print!("{}", report.table());
    println!(
        "every training succeeded, from its checkpoints, each step is in the logs once, nothing is left"
    );
    Ok(())
}

async fn watch_memory(duration: Duration) -> anyhow::Result<()> {
    println!("cargo soak --memory {duration:?}");
    let mut fleet = kills::fleet(binaries(false).await?, memory::NODES).await?;
    memory::run(&mut fleet, duration, &mut |line| println!("{line}")).await
}
