//! Durable commits of the coordinator's store: admissions of gangs, alone and in batches, each
//! beside a raw write of 4 KiB with fdatasync and beside redb alone, in the same directory and in
//! turns with them.

use std::process::ExitCode;
use std::time::Instant;

use gangline_benches::floor::{PlainRedb, RawDisk};
use gangline_benches::measure::{RUNS, Series};
use gangline_benches::nodes::Nodes;
use gangline_benches::program;
use gangline_benches::table::{Table, digits, duration};
use gangline_coordinator::core::effect::Write;
use gangline_coordinator::store::Store;

/// Admissions of one commit; 256 is the most that the coordinator takes together.
const BATCHES: [usize; 4] = [1, 16, 64, 256];
/// Nodes of the fleet whose records are written.
const NODES: usize = 20;

fn main() -> ExitCode {
    program::run("store", bench)
}

fn bench() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let mut store = Store::open(&directory.path().join("store.redb"), false, "bench")?;
    let mut raw = RawDisk::create(directory.path())?;
    let mut plain = PlainRedb::create(directory.path())?;
    let mut nodes = Nodes::half_busy(NODES)?;

    let mut table = Table::new(&[
        "admissions per commit",
        "records",
        "commit",
        "p99",
        "medians of the runs",
        "admissions/s",
        "raw 4 KiB write + fdatasync",
        "ratio",
        "redb alone, as many records",
        "ratio",
    ]);
    for batch in BATCHES {
        row(&mut table, batch, &mut store, &mut raw, &mut plain, &mut nodes)?;
    }
    println!("{table}");
    println!(
        "One admission: the records that the submission of a gang of two writes. Both peers are \
         measured in turns with the commits beside them; redb alone has the same durability \
         (two-phase) and as many records of 512 B, in one table."
    );
    Ok(())
}

fn row(
    table: &mut Table,
    batch: usize,
    store: &mut Store,
    raw: &mut RawDisk,
    plain: &mut PlainRedb,
    nodes: &mut Nodes,
) -> anyhow::Result<()> {
    let (mut commit, mut floor, mut peer) =
        (Series::default(), Series::default(), Series::default());
    let commits = if batch > 16 { 40 } else { 150 };
    let mut records = 0;
    for _ in 0..RUNS {
        for series in [&mut commit, &mut floor, &mut peer] {
            series.begin_run()?;
        }
        for round in 0..commits + commits / 10 {
            let writes = admissions(nodes, batch)?;
            records = writes.len();
            let began = Instant::now();
            store.commit(&writes)?;
            let own = began.elapsed();
            let began = Instant::now();
            raw.write()?;
            let disk = began.elapsed();
            let began = Instant::now();
            plain.commit(records as u64)?;
            let redb = began.elapsed();
            // The first tenth warms up.
            if round >= commits / 10 {
                commit.record(own, 1)?;
                floor.record(disk, 1)?;
                peer.record(redb, 1)?;
            }
        }
    }
    let (low, high) = commit.spread();
    table.row(vec![
        batch.to_string(),
        records.to_string(),
        duration(commit.median()),
        duration(commit.at(0.99)),
        format!("{} to {}", duration(low), duration(high)),
        format!("{:.0}", batch as f64 * 1e9 / commit.median()),
        duration(floor.median()),
        format!("{} x", digits(commit.median() / floor.median())),
        duration(peer.median()),
        format!("{} x", digits(commit.median() / peer.median())),
    ]);
    Ok(())
}

/// What the core writes for this many new gangs. They end again, so that there is always room.
fn admissions(nodes: &mut Nodes, count: usize) -> anyhow::Result<Vec<Write>> {
    let mut writes = Vec::new();
    for _ in 0..count {
        let (effects, _) = nodes.submit()?;
        nodes.finish(&effects.pushes)?;
        writes.extend(effects.writes);
    }
    Ok(writes)
}
