//! The simulation's part of `cargo soak`: many long histories, and the search for planted bugs.

use std::process::ExitCode;

use clap::Parser;
use gangline_simulation::campaign;
use gangline_simulation::planted::{BUGS, Bug};
use gangline_simulation::world::{Length, Settings};
use indicatif::{ProgressBar, ProgressStyle};

/// A bug that no seed up to this finds is one that the simulation does not see.
const HUNT_SEEDS: u64 = 2_000;

#[derive(Parser)]
#[command(name = "histories", about = "Simulated fleets under faults")]
struct Arguments {
    /// Histories; each has a seed, from `--first` on.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Simulated hours of each history.
    #[arg(long, default_value_t = 2.0)]
    hours: f64,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print everything from this step on.
    #[arg(long)]
    show_from: Option<u64>,
    /// Look for planted bugs instead: each must be found.
    #[arg(long)]
    planted: bool,
}

fn settings(seed: u64, length: Length, nodes: (u64, u64)) -> Settings<'static> {
    Settings {
        seed,
        length,
        nodes,
        codec: &|write| write.clone(),
        deep_every: 64,
        wall_jumps: true,
        reboots: true,
        driver_bug: None,
        shown_from: None,
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.planted {
        true => hunt(),
        false => play(&arguments),
    }
}

fn play(arguments: &Arguments) -> ExitCode {
    let length = Length::Milliseconds((arguments.hours * 3_600_000.0) as u64);
    let last = arguments.first + arguments.seeds.saturating_sub(1);
    let bar = ProgressBar::new(arguments.seeds);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len} histories, {eta} left")
    {
        bar.set_style(style);
    }
    let shown_from = arguments.show_from;
    let make = |seed| Settings { shown_from, ..settings(seed, length, (8, 64)) };
    let done = |seeds| bar.set_position(seeds);
    match campaign::run(arguments.first..=last, arguments.threads, make, || {}, done) {
        Ok(summary) => {
            bar.finish_and_clear();
            print!("{summary}");
            ExitCode::SUCCESS
        }
        Err(broken) => {
            bar.finish_and_clear();
            campaign::show(make(broken.seed), &broken);
            ExitCode::FAILURE
        }
    }
}

/// The first seed that finds each bug.
fn hunt() -> ExitCode {
    println!("{:<48} {:>6} {:>8}  broken", "bug", "seed", "event");
    let mut missed = 0;
    for (name, bug) in BUGS {
        let make = |seed| Settings {
            driver_bug: bug.of_driver(),
            deep_every: 16,
            ..settings(seed, Length::Events(10_000), (3, 8))
        };
        // One thread: the first seed, and not the quickest.
        let begin = || Bug::plant(Some(bug));
        match campaign::run(1..=HUNT_SEEDS, 1, make, begin, |_| {}) {
            Err(broken) => {
                let what: String = broken.what.chars().take(100).collect();
                println!("{name:<48} {:>6} {:>8}  {what}", broken.seed, broken.step);
            }
            Ok(_) => {
                println!("{name:<48} {:>6}", "none");
                missed += 1;
            }
        }
    }
    println!("{} of {} bugs found within {HUNT_SEEDS} seeds", BUGS.len() - missed, BUGS.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
