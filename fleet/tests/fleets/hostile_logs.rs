//! Output that was made to hurt: it reaches its own log, and nobody else notices.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{SHORT, TestResult, command_fleet, peak_kib};
use anyhow::Context;
use gangline_fleet::api::Api;
use gangline_fleet::fleet::Fleet;
use serde_json::json;

/// Escapes, a word of the kernel that is none, a line of zeros, one of 100 MB, and very many files.
const LOUD: &str = r#"
import os, sys
out = sys.stdout.buffer
out.write(b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\n")
out.write(b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
out.write(bytes(1 << 20) + b"\n")
for _ in range(100):
    out.write(b"x" * 1_000_000)
out.write(b"\nafter\n")
out.flush()
os.makedirs("many")
for number in range(int(os.environ["FILES"])):
    with open(f"many/{number}.log", "w") as file:
        file.write("a line\n")
print("end")
"#;
const LOUD_BYTES: u64 = 100_000_000 + (1 << 20);
/// Most memory that the agent may have had at any time, in KiB.
const AGENT_KIB: u64 = 64 << 10;
/// Files that the job writes, unless `GANGLINE_FILES` says another number; a million take some minutes.
const FILES: u32 = 20_000;
/// A development build takes its time for 100 MB.
const LONG: Duration = Duration::from_secs(120);

/// 20 MB a second for ten seconds: 1.2 GB a minute.
const FLOOD: &str = r#"
import sys, time
block = (b"f" * 99 + b"\n") * 10_000
began = time.monotonic()
for number in range(200):
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    time.sleep(max(0, began + number / 20 - time.monotonic()))
"#;
/// Most memory that any of the fleet's processes may have had meanwhile, in KiB.
const FLOOD_KIB: u64 = 200 << 10;

/// F36: it gets its budget, everything else goes on, and memory stays what it was.
#[tokio::test]
async fn f36_a_flood_of_a_gigabyte_a_minute_disturbs_nobody() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let (quiet, stop) = start_quiet(&fleet, &api).await?;
    let flood = json!({
        "name": "flood", "launcher": {"type": "command"}, "command": ["python3", "-c", FLOOD],
        "logs": {"max_bytes": "64MiB"},
    });
    let flood = api.submit(&flood.to_string()).await?;
    api.wait_job(&flood, &["RUNNING"], SHORT).await?;
    let latest = async || anyhow::Ok(api.logs(&quiet, "").await?.lines().count());
    let mut before = latest().await?;
    while api.job(&flood).await?["state"] == "RUNNING" {
        // Lines of its neighbour come all the time.
        let until = Instant::now() + SHORT;
        while latest().await? <= before {
            anyhow::ensure!(Instant::now() < until, "no line after {before} for {SHORT:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        before = latest().await?;
    }
    api.wait_job(&flood, &["SUCCEEDED"], LONG).await?;
    ensure_quiet(&fleet, &api, &quiet, &stop).await?;
    let log = api.logs(&flood, "").await?;
    assert!(log.len() <= (64 << 20) + 200, "{} bytes", log.len());
    let last = log.lines().last().context("no line")?;
    assert_eq!(last, "[gangline] the rest is left out: the logs here are over 67108864 bytes");
    for (name, pid) in fleet.processes()? {
        let kib = peak_kib(pid)?;
        println!("{name} had {} MiB at most", kib >> 10);
        assert!(kib < FLOOD_KIB, "{name}: {kib} KiB");
    }
    fleet.assert_clean().await
}

/// A job that prints a number every 50 ms until the file is there.
async fn start_quiet(fleet: &Fleet, api: &Api) -> anyhow::Result<(String, PathBuf)> {
    let stop = fleet.path("stop");
    let ticks = format!(
        "n=0; until [ -e {} ]; do echo tick $n; n=$((n+1)); sleep 0.05; done; echo $n > {}",
        stop.display(),
        fleet.path("ticks").display(),
    );
    let quiet =
        json!({"name": "quiet", "launcher": {"type": "command"}, "command": ["sh", "-c", ticks]});
    let quiet = api.submit(&quiet.to_string()).await?;
    api.wait_job(&quiet, &["RUNNING"], SHORT).await?;
    Ok((quiet, stop))
}

/// Nothing of it was lost.
async fn ensure_quiet(fleet: &Fleet, api: &Api, quiet: &str, stop: &Path) -> TestResult {
    std::fs::write(stop, "")?;
    api.wait_job(quiet, &["SUCCEEDED"], SHORT).await?;
    let count: usize = std::fs::read_to_string(fleet.path("ticks"))?.trim().parse()?;
    let expected: String = (0..count).map(|n| format!("tick {n}\n")).collect();
    assert_eq!(api.logs(quiet, "").await?, expected);
    Ok(())
}

#[tokio::test]
async fn lines_of_100_mb_escapes_false_xids_and_many_files_disturb_nobody() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let (quiet, stop) = start_quiet(&fleet, &api).await?;
    let workdir = fleet.shared_root().join("work");
    std::fs::create_dir_all(&workdir)?;
    let files = match std::env::var("GANGLINE_FILES") {
        Ok(text) => text.parse().context("GANGLINE_FILES")?,
        Err(_) => FILES,
    };
    // Writing and removing them takes time too.
    let long = LONG.max(Duration::from_millis(files.into()));
    let loud = json!({
        "name": "loud", "launcher": {"type": "command"}, "workdir": workdir,
        "command": ["python3", "-c", LOUD], "logs": {"files": ["many/*.log"]},
        "env": {"FILES": files.to_string()},
    });
    let loud = api.submit(&loud.to_string()).await?;
    api.wait_job(&loud, &["SUCCEEDED"], long).await?;

    // Beside it nothing was lost or late.
    ensure_quiet(&fleet, &api, &quiet, &stop).await?;
    // What a job prints is no evidence about its node.
    let node = api.get("/api/v1/nodes/w0").await?;
    assert!(node["state"] == "ready" && node["cordon"].is_null(), "{node}");

    // Its own log is whole, and does nothing to a terminal.
    let until = Instant::now() + long;
    let log = loop {
        let log = api.logs(&loud, "").await?;
        if log.ends_with("\nafter\nend\n") {
            break log;
        }
        anyhow::ensure!(Instant::now() < until, "{} bytes", log.len());
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(log.len() as u64 > LOUD_BYTES, "{} bytes", log.len());
    for options in [&["--grep", "red"][..], &["--tail", "2"]] {
        let shown = fleet.cli().args(["logs", &loud]).args(options).output()?;
        let text = String::from_utf8(shown.stdout)?;
        assert!(text.contains("red") || text.contains("after"), "{text:?}");
        assert!(!text.contains(['\u{1b}', '\u{7}', '\0']), "{text:?}");
    }
    for (name, pid) in fleet.processes()?.into_iter().filter(|(name, _)| name != "coordinator") {
        let kib = peak_kib(pid)?;
        println!("{name} had {} MiB at most", kib >> 10);
        assert!(kib < AGENT_KIB, "{name}: {kib} KiB");
    }
    fleet.assert_clean().await
}
