//! The frame of a bench program: when it runs, and what it says about where it ran.

use std::process::ExitCode;

/// Runs `bench` when cargo asks for a bench run. `cargo test --all-targets` starts the same
/// program without that word; then there is nothing to do, because no test is timed.
pub fn run(name: &str, bench: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    if !std::env::args().any(|word| word == "--bench") {
        return ExitCode::SUCCESS;
    }
    println!("cargo bench -p gangline-benches --bench {name}");
    println!("{}\n", machine());
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The shape of the machine, and how busy it was when the program began.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown CPU", |(_, model)| model.trim());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    format!("{cores} cores ({model}); load average before: {load}")
}
