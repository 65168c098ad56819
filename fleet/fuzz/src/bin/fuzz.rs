//! Feeds every decoder for as long as asked: `cargo soak --fuzz SECONDS` runs this in release.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use gangline_fuzz::run::{Until, feed, quiet_panics, watch};
use gangline_fuzz::targets;

#[derive(Parser)]
#[command(name = "fuzz", about = "Mutations of good input for every decoder")]
struct Arguments {
    /// For all decoders together, the same for each.
    seconds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only decoders whose name has this in it.
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> anyhow::Result<ExitCode> {
    let Arguments { seconds, seed, only } = Arguments::parse();
    let scratch = gangline_fuzz::scratch()?;
    let mut targets = targets::all(scratch.path())?;
    targets.retain(|target| target.name.contains(&only));
    let share = Duration::from_secs(seconds) / targets.len().max(1) as u32;
    quiet_panics();
    watch();
    println!("cargo soak --fuzz {seconds} --seed {seed}");
    println!("{:<28} {:>10} {:>10} {:>12} {:>10}", "decoder", "inputs", "taken", "peak KiB", "ms");
    let mut code = ExitCode::SUCCESS;
    for target in &mut targets {
        match feed(target, seed, Until::Passed(share)) {
            Ok(tally) => println!(
                "{:<28} {:>10} {:>10} {:>12} {:>10.1}",
                target.name,
                tally.inputs,
                tally.taken,
                tally.peak / 1024,
                tally.slowest.as_secs_f64() * 1000.0
            ),
            Err(bad) => {
                println!("{bad}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
