//! `cargo soak`: command gangs under random kill -9 of coordinator and agents, for as long as asked.
//!
//! Every cycle submits a gang, kills somebody in the middle, starts it again, and demands that the
//! job ends SUCCEEDED, that each rank ran exactly once, and that nothing is left. The last table of
//! results is in docs/soak.md.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use gangline_fleet::api::Api;
use gangline_fleet::build::{binaries, workspace};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};

#[derive(Parser)]
#[command(name = "soak", about = "Random kills under running gangs")]
struct Arguments {
    /// Kills of each kind.
    #[arg(long, default_value_t = 200)]
    cycles: u32,
    /// The same seed makes the same kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated fleets instead of real ones; what follows is for them (`--simulation --help`).
    #[arg(long, num_args = 0.., allow_hyphen_values = true)]
    simulation: Option<Vec<String>>,
}

/// Whom a cycle kills.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Coordinator,
    Agent,
}

struct Tally {
    kills: u32,
    slowest: Duration,
    total: Duration,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(further) = &arguments.simulation {
        return simulate(further).await;
    }
    let mut fleet = Fleet::start(binaries(false).await?, FleetOptions::default()).await?;
    for name in ["a", "b"] {
        fleet.add_agent(AgentOptions::worker(name, 0)).await?;
    }
    println!("cargo soak --cycles {} --seed {}", arguments.cycles, arguments.seed);
    println!("{:<12} {:>6} {:>14} {:>14}", "killed", "kills", "job mean", "job slowest");
    for (victim, word) in [(Victim::Coordinator, "coordinator"), (Victim::Agent, "agent")] {
        let tally = soak(&mut fleet, victim, &arguments).await?;
        let mean = tally.total / tally.kills.max(1);
        println!("{word:<12} {:>6} {mean:>14.2?} {:>14.2?}", tally.kills, tally.slowest);
    }
    fleet.assert_clean().await?;
    let jobs = count_jobs(&fleet.api()?).await?;
    if jobs != u64::from(2 * arguments.cycles) {
        bail!("{} cycles made {jobs} jobs", 2 * arguments.cycles);
    }
    println!("{jobs} jobs, none lost, none doubled, no process left");
    Ok(())
}

/// Runs the simulation, a program of its own: it is built with the switches for planted bugs, and
/// nothing else ever is.
async fn simulate(further: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = tokio::process::Command::new(cargo)
        .current_dir(workspace())
        .args(["run", "--release", "--package", "gangline-simulation"])
        .args(["--features", "planted", "--bin", "histories", "--"])
        .args(further)
        .status()
        .await
        .context("cargo is needed to build the simulation")?;
    if !status.success() {
        bail!("the simulation found something, or could not run");
    }
    Ok(())
}

async fn soak(fleet: &mut Fleet, victim: Victim, arguments: &Arguments) -> anyhow::Result<Tally> {
    let mut random = arguments.seed | 1;
    let mut tally = Tally { kills: 0, slowest: Duration::ZERO, total: Duration::ZERO };
    for cycle in 0..arguments.cycles {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let started = Instant::now();
        one_cycle(fleet, victim, random).await.with_context(|| format!("cycle {cycle}"))?;
        tally.kills += 1;
        tally.slowest = tally.slowest.max(started.elapsed());
        tally.total += started.elapsed();
    }
    Ok(tally)
}

async fn one_cycle(fleet: &mut Fleet, victim: Victim, random: u64) -> anyhow::Result<()> {
    let api = fleet.api()?;
    let spec = "name: soak\nresources: {nnodes: 2}\nlauncher: {type: command}\nrun: |\n  echo \
                started >> $GANGLINE_CKPT_DIR/$NODE_RANK\n  sleep 0.5\n  echo done\n";
    let job = api.submit(spec).await?;
    tokio::time::sleep(Duration::from_millis(random % 700)).await;
    match victim {
        Victim::Coordinator => {
            fleet.kill_coordinator()?;
            fleet.start_coordinator().await?;
        }
        Victim::Agent => {
            let name = if random & (1 << 20) == 0 { "a" } else { "b" };
            fleet.kill_agent(name)?;
            fleet.start_agent(name)?;
        }
    }
    let done = api.wait_job(&job, &["SUCCEEDED"], Duration::from_secs(60)).await?;
    let directory = done["checkpoint_directory"].as_str().context("no directory")?;
    for rank in 0..2 {
        let text = std::fs::read_to_string(format!("{directory}/{rank}"))?;
        if text != "started\n" {
            bail!("rank {rank} of {job} ran {} times", text.lines().count());
        }
    }
    fleet.assert_clean().await
}

/// All jobs, over all pages.
async fn count_jobs(api: &Api) -> anyhow::Result<u64> {
    let (mut count, mut token) = (0, String::new());
    loop {
        let page = api.get(&format!("/api/v1/jobs?page_size=1000{token}")).await?;
        count += page["jobs"].as_array().map_or(0, Vec::len) as u64;
        match page["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => return Ok(count),
        }
    }
}
