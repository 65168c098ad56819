//! Search over stored logs, plain and compressed, beside `grep` on the same bytes as a plain file, in
//! turns with it.
//!
//! `GANGLINE_BENCH_MIB` says how much log is made (64 unless it is set; 1024 for the documented table).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use gangline_benches::measure::{RUNS, Series};
use gangline_benches::program;
use gangline_benches::table::{Table, digits, duration};
use gangline_common::ids::MemberKey;
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::{LOG_CHUNK_BYTES, LogChunk};
use gangline_coordinator::ingest::logs::lines::{Filter, Found, Lines};
use gangline_coordinator::ingest::logs::{Fate, Logs, Policy};

const FILE: &str = "output";
/// Bytes that a search reads at once, as the API does.
const BLOCK_BYTES: usize = 256 << 10;
/// What is searched for: a word that is there once, lines of every thousandth step, and an expression
/// without a word to look for first.
const PATTERNS: [(&str, &str); 3] = [
    ("one line", "Xid .* 79"),
    ("1 line in 1,000", "step:[0-9]*000 "),
    ("no line, no fixed word", "[0-9]{3}z[a-f]{2}"),
];

fn main() -> ExitCode {
    program::run("log_search", bench)
}

fn bench() -> anyhow::Result<()> {
    let mib: usize = match std::env::var("GANGLINE_BENCH_MIB") {
        Ok(text) => text.parse().context("GANGLINE_BENCH_MIB")?,
        Err(_) => 64,
    };
    let directory = tempfile::tempdir()?;
    let key: MemberKey = "g-bench:1.1:0".parse()?;
    let plain = directory.path().join("plain.log");
    let (stored, packed) =
        (Logs::new(directory.path().join("stored")), Logs::new(directory.path().join("packed")));
    make(mib << 20, &plain, &key, [&stored, &packed])?;
    let policy = Policy { keep_ms: 0, keep_failed_ms: 0, max_bytes: 0 };
    let fate = Some(Fate::Ended { at_ms: 0, failed: false });
    let swept = packed.sweep(|_, _| fate, policy, Timestamp::now().wall_ms, || true)?;
    ensure!(swept.packed == 1, "the log was not compressed");

    let mut table =
        Table::new(&["search", "hits", "form", "median", "MB/s", "grep -E", "grep MB/s", "ratio"]);
    for (what, pattern) in PATTERNS {
        let mut series = [Series::default(), Series::default(), Series::default()];
        let mut counts = [0; 3];
        for run in 0..=RUNS {
            // The first round only warms the caches.
            let measured = run > 0;
            for (index, series) in series.iter_mut().enumerate() {
                let count = || match index {
                    0 => search(&stored, &key, pattern),
                    1 => search(&packed, &key, pattern),
                    _ => grep(&plain, pattern),
                };
                if measured {
                    series.begin_run()?;
                    counts[index] = series.time(count)??;
                } else {
                    count()?;
                }
            }
        }
        ensure!(counts[0] == counts[2] && counts[1] == counts[2], "{pattern}: {counts:?} hits");
        let [own, own_packed, peer] = &series;
        let speed = |series: &Series| digits((mib << 20) as f64 / series.median() * 1000.0);
        for (form, series) in [("plain", own), ("compressed", own_packed)] {
            table.row(vec![
                what.to_owned(),
                counts[0].to_string(),
                form.to_owned(),
                duration(series.median()),
                speed(series),
                duration(peer.median()),
                speed(peer),
                format!("{} x", digits(series.median() / peer.median())),
            ]);
        }
    }
    println!("{table}");
    println!(
        "{mib} MiB of log, compressed to {} MiB; all of it in the cache of the system. grep runs in the \
         locale C, as a process of its own, and counts lines.",
        swept.bytes >> 20
    );
    Ok(())
}

/// Writes the same log as a plain file and into both stores.
fn make(bytes: usize, plain: &Path, key: &MemberKey, stores: [&Logs; 2]) -> anyhow::Result<()> {
    let mut out = File::create(plain)?;
    let (mut offset, mut step) = (0, 0_u64);
    let mut text = Vec::with_capacity(LOG_CHUNK_BYTES);
    while (offset as usize) < bytes {
        text.clear();
        while text.len() < LOG_CHUNK_BYTES - 300 {
            step += 1;
            writeln!(
                text,
                "(WorkerDict pid={}) step:{step} - actor/pg_loss:{:.4} - critic/score/mean:{:.3} - \
                 perf/throughput:{:.1} - timing_s/gen:{:.2}",
                4000 + step % 8,
                (step * 7919 % 10_000) as f64 / 10_000.0,
                (step * 104_729 % 1000) as f64 / 1000.0,
                (step * 15_485_863 % 40_000) as f64 / 10.0,
                (step * 32_452_843 % 9000) as f64 / 100.0,
            )?;
        }
        if offset as usize + text.len() >= bytes {
            writeln!(text, "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.")?;
        }
        out.write_all(&text)?;
        for store in stores {
            let (key, file, read_ms) = (key.clone(), FILE.to_owned(), Timestamp::now().wall_ms);
            let chunk = LogChunk { key, file, offset, bytes: text.clone(), read_ms };
            store.write_batch(vec![chunk])?;
        }
        offset += text.len() as u64;
    }
    out.sync_all()?;
    Ok(())
}

/// Lines of a stored log that fit.
fn search(logs: &Logs, key: &MemberKey, pattern: &str) -> anyhow::Result<usize> {
    let filter = Filter::new(Some(pattern), false)?;
    let file = logs.open(key, FILE)?.context("no log")?;
    let mut lines = Lines::new(file, 0, true, BLOCK_BYTES);
    let (mut count, mut budget) = (0, u64::MAX);
    while let Found::Yes(group) = lines.next_group(&filter, 0, &mut budget)? {
        count += group.len();
    }
    Ok(count)
}

/// Lines that `grep` counts.
fn grep(plain: &Path, pattern: &str) -> anyhow::Result<usize> {
    let mut command = Command::new("grep");
    command.args(["-a", "-c", "-E", "-e", pattern]).arg(plain).env("LC_ALL", "C");
    let output = command.stdin(Stdio::null()).output().context("grep")?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
