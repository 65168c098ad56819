//! A pass over the queue: 10,000 nodes of eight GPUs that are all taken, and up to 1,000 gangs that wait, alike
//! and each of its own shape, beside one walk over the nodes; and the memory of such a core.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use gangline_benches::measure::{RUNS, Series};
use gangline_benches::nodes::Nodes;
use gangline_benches::program;
use gangline_benches::table::Table;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::policy::Policy;

const NODES: usize = 10_000;
const PASSES: usize = 40;

fn main() -> ExitCode {
    program::run("queue", bench)
}

fn bench() -> anyhow::Result<()> {
    let before = resident_mib()?;
    let mut table = Table::of_timings();
    let mut nodes = Nodes::all_busy(NODES)?;
    let mut walk = Series::default();
    for _ in 0..RUNS {
        walk.begin_run()?;
        for _ in 0..PASSES {
            walk.time(|| nodes.core.nodes().filter(|node| node.is_open()).count())?;
        }
    }
    let mut waiting = 0;
    for (count, own_shape) in [(1, false), (100, false), (1_000, false), (2_000, true)] {
        while waiting < count {
            nodes.wait_in_line(1 + waiting as u32 % 64, own_shape.then_some(waiting as u32))?;
            waiting += 1;
        }
        let mut series = Series::default();
        for _ in 0..RUNS {
            series.begin_run()?;
            for _ in 0..PASSES {
                nodes.core.set_policy(Policy::Default);
                let began = Instant::now();
                nodes.step(Event::Tick);
                series.record(began.elapsed(), 1)?;
            }
        }
        let what = match own_shape {
            true => format!("{count} wait, 1,000 of them each of its own shape"),
            false => format!("{count} wait"),
        };
        table.timing(&what, &series, Some(("walk", &walk)));
    }
    println!("{table}");
    println!(
        "{NODES} nodes, {} gangs run. A walk reads the condition of every node once. Memory of the core \
         and its records: {} MiB.",
        NODES / 2,
        resident_mib()?.saturating_sub(before)
    );
    Ok(())
}

/// Resident memory of this process.
fn resident_mib() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib = line.split_whitespace().nth(1).context("no number")?;
    Ok(kib.parse::<u64>()? / 1024)
}
