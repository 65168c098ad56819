//! One step of the coordinator's core: signs of life, reports, submissions and the clock, with 100
//! to 10,000 nodes of which many are busy, beside what any such step at least has to read.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use gangline_benches::measure::{Pace, RUNS, Series, run_function};
use gangline_benches::nodes::Nodes;
use gangline_benches::program;
use gangline_benches::table::Table;
use gangline_common::ids::NodeId;
use gangline_coordinator::core::effect::Effects;
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::gang::Phase;

const LOOKUP: Pace = Pace { batches: 200, calls: 64 };
const SCAN: Pace = Pace { batches: 100, calls: 4 };
/// Time between two looks at leases and deadlines, and between signs of life, in milliseconds.
const CHECK_MS: u64 = 250;
const HEARTBEAT_MS: u64 = 2_000;

fn main() -> ExitCode {
    program::run("core", bench)
}

fn bench() -> anyhow::Result<()> {
    let mut table = Table::of_timings();
    for count in [100, 1_000, 10_000] {
        rows(&mut table, count)?;
    }
    println!("{table}");
    println!(
        "One thread. Half of the nodes, at most 500, run gangs of two. A lookup finds one node id among all; a \
         walk reads every node's condition and GPUs once, with no decision. p99 of lookups and \
         walks is over means of {} and {} calls.",
        LOOKUP.calls, SCAN.calls
    );
    Ok(())
}

#[derive(Default)]
struct Measured {
    heartbeat: Series,
    same_report: Series,
    new_report: Series,
    submit: Series,
    tick: Series,
    lookup: Series,
    walk: Series,
}

fn rows(table: &mut Table, count: usize) -> anyhow::Result<()> {
    let mut nodes = Nodes::half_busy(count)?;
    let mut measured = Measured::default();
    let gangs = if count > 1_000 { 20 } else { 200 };
    for _ in 0..RUNS {
        lookups(&nodes, &mut measured.lookup)?;
        walks(&nodes, &mut measured.walk)?;
        heartbeats(&mut nodes, &mut measured.heartbeat)?;
        lives(&mut nodes, &mut measured, gangs)?;
        ticks(&mut nodes, &mut measured.tick)?;
    }
    let lookup = Some(("lookup", &measured.lookup));
    let walk = Some(("walk", &measured.walk));
    let mut add = |what: &str, series: &Series, beside| {
        table.timing(&format!("{count} nodes: {what}"), series, beside);
    };
    add("heartbeat", &measured.heartbeat, lookup);
    add("report, nothing new", &measured.same_report, lookup);
    add("report, a member began", &measured.new_report, lookup);
    add("submit and place 2 x 8 GPUs", &measured.submit, walk);
    add("look at leases and deadlines", &measured.tick, walk);
    Ok(())
}

fn lookups(nodes: &Nodes, series: &mut Series) -> anyhow::Result<()> {
    let index: BTreeMap<NodeId, usize> =
        nodes.places.iter().enumerate().map(|(n, place)| (place.node.clone(), n)).collect();
    let mut asked = nodes.places.iter().cycle();
    run_function(series, LOOKUP, || asked.next().and_then(|place| index.get(&place.node)))
}

fn walks(nodes: &Nodes, series: &mut Series) -> anyhow::Result<()> {
    run_function(series, SCAN, || {
        let open = nodes.core.nodes().filter(|node| node.is_open());
        let gpus = open.filter_map(|node| node.inventory.as_ref()).flat_map(|i| &i.gpus);
        gpus.filter(|gpu| !gpu.uuid.0.is_empty()).count()
    })
}

fn heartbeats(nodes: &mut Nodes, series: &mut Series) -> anyhow::Result<()> {
    series.begin_run()?;
    for number in 0..5_000 {
        let event = nodes.heartbeat(number)?;
        timed(nodes, event, series)?;
    }
    Ok(())
}

/// Whole lives of gangs: submitted, running, the same said again, ended.
fn lives(nodes: &mut Nodes, measured: &mut Measured, gangs: usize) -> anyhow::Result<()> {
    for series in [&mut measured.submit, &mut measured.new_report, &mut measured.same_report] {
        series.begin_run()?;
    }
    for _ in 0..gangs {
        let event = nodes.submission()?;
        let submitted = timed(nodes, event, &mut measured.submit)?;
        anyhow::ensure!(submitted.pushes.len() == 2, "the gang found no place");
        for push in &submitted.pushes {
            for series in [&mut measured.new_report, &mut measured.same_report] {
                let event = nodes.report(push, &Phase::Running { pid: 4711 })?;
                timed(nodes, event, series)?;
            }
        }
        nodes.finish(&submitted.pushes)?;
    }
    Ok(())
}

fn ticks(nodes: &mut Nodes, series: &mut Series) -> anyhow::Result<()> {
    series.begin_run()?;
    for number in 0..80 {
        nodes.now = nodes.now.plus_ms(CHECK_MS);
        if (number * CHECK_MS).is_multiple_of(HEARTBEAT_MS) {
            for index in 0..nodes.places.len() {
                let event = nodes.heartbeat(index)?;
                nodes.step(event);
            }
            nodes.now = nodes.now.plus_ms(CHECK_MS);
        }
        timed(nodes, Event::Tick, series)?;
    }
    Ok(())
}

fn timed(nodes: &mut Nodes, event: Event, series: &mut Series) -> anyhow::Result<Effects> {
    let mut effects = Effects::default();
    let began = Instant::now();
    nodes.core.step(event, nodes.now, &mut effects);
    series.record(began.elapsed(), 1)?;
    Ok(effects)
}
