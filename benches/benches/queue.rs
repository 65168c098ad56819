//! Decisions in a fleet of 10,000 nodes of eight GPUs: one gang that finds its place, alone and with 1,000
//! that wait for other nodes; and passes over a queue for which no node is free, of gangs alike and each of
//! its own shape. Beside each stands one walk over the nodes; and the memory of such a core.

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
/// Gangs that wait while another one is placed, and the nodes of a pool of their own, all taken.
const WAITING: usize = 1_000;
const BUSY_POOL: &str = "busy";
const BUSY_NODES: usize = 1_000;
const PASSES: usize = 40;
/// Gangs of one run that are placed, and run before the next one comes.
const PLACED: usize = 100;

fn main() -> ExitCode {
    program::run("queue", bench)
}

fn bench() -> anyhow::Result<()> {
    let mut table = Table::of_timings();
    passes(&mut table)?;
    decisions(&mut table)?;
    println!("{table}");
    println!(
        "A decision is one step of the core: the submission, the place, the records and what each agent is \
         told. A walk reads the condition of every node once."
    );
    Ok(())
}

/// Half of the nodes are busy, and gangs come that find a place; then the same while others wait.
fn decisions(table: &mut Table) -> anyhow::Result<()> {
    let mut nodes = Nodes::with_gangs(NODES, NODES / 4)?;
    let walk = walks(&nodes)?;
    for nnodes in [1, 4, 64] {
        let series = placed(&mut nodes, nnodes)?;
        table.timing(&decision(nnodes, "nobody waits"), &series, Some(("walk", &walk)));
    }
    nodes.add_busy_pool(BUSY_NODES, BUSY_POOL)?;
    for waiting in 0..WAITING {
        let request = nodes.script.request_with(|request| {
            request.nnodes = 1 + waiting as u32 % 64;
            request.nnodes_max = request.nnodes;
            request.pools = vec![BUSY_POOL.to_owned()];
        });
        nodes.wait_in_line(request)?;
    }
    let series = placed(&mut nodes, 4)?;
    let what = decision(4, &format!("{WAITING} wait, a pass over them included"));
    table.timing(&what, &series, Some(("walk", &walk)));
    Ok(())
}

fn decision(nnodes: u32, beside: &str) -> String {
    format!("decision: {nnodes} x 8 GPUs, half of the nodes free, {beside}")
}

/// Times the submissions of gangs that find their place, each of which runs and ends before the next.
fn placed(nodes: &mut Nodes, nnodes: u32) -> anyhow::Result<Series> {
    let request = nodes.script.request_with(|request| {
        (request.nnodes, request.nnodes_max) = (nnodes, nnodes);
    });
    let mut series = Series::default();
    for _ in 0..RUNS {
        series.begin_run()?;
        for round in 0..PLACED + PLACED / 10 {
            let event = nodes.submission_of(request.clone())?;
            let began = Instant::now();
            let effects = nodes.step(event);
            let took = began.elapsed();
            anyhow::ensure!(effects.pushes.len() == nnodes as usize, "the gang found no place");
            nodes.finish(&effects.pushes)?;
            // The first tenth warms up.
            if round >= PLACED / 10 {
                series.record(took, 1)?;
            }
        }
    }
    Ok(series)
}

fn walks(nodes: &Nodes) -> anyhow::Result<Series> {
    let mut walk = Series::default();
    for _ in 0..RUNS {
        walk.begin_run()?;
        for _ in 0..PASSES {
            walk.time(|| nodes.core.nodes().filter(|node| node.is_open()).count())?;
        }
    }
    Ok(walk)
}

/// Every node is taken and the queue grows.
fn passes(table: &mut Table) -> anyhow::Result<()> {
    let before = resident_mib()?;
    let mut nodes = Nodes::all_busy(NODES)?;
    let walk = walks(&nodes)?;
    let mut waiting = 0;
    for (count, own_shape) in [(1, false), (100, false), (1_000, false), (2_000, true)] {
        while waiting < count {
            let request = nodes.script.request_with(|request| {
                request.nnodes = 1 + waiting as u32 % 64;
                request.nnodes_max = request.nnodes;
                // With a number of CPUs of its own it is like no other to the scheduler.
                request.cpus_milli = own_shape.then_some(1000 + waiting as u32);
            });
            nodes.wait_in_line(request)?;
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
            true => format!("pass: {count} wait, 1,000 of them each of its own shape"),
            false => format!("pass: {count} wait"),
        };
        table.timing(&what, &series, Some(("walk", &walk)));
    }
    println!(
        "{NODES} nodes, {} gangs run, {waiting} wait. Memory of the core and its records: {} MiB.\n",
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
