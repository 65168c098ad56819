//! Jobs that take all that they can get: processes, descriptors, room on the disk. The agent of the node
//! and what else runs there go on.

use std::time::{Duration, Instant};

use crate::support::disk::SmallDisk;
use crate::support::{SHORT, TestResult, built};
use anyhow::{Context, ensure};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::recovery::limits::LimitedGroup;
use serde_json::json;

/// Processes and threads that the whole node may have.
const PIDS: u64 = 400;
/// Nobody beside it forks: a line each tenth of a second, by one process.
const QUIET: &str = "import time\nn = 0\nwhile True: print('tick', n); n += 1; time.sleep(0.1)";
const GREEDY: &str = r#"
import os, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
except OSError as error:
    print("no more processes:", error, flush=True)
files = []
try:
    while True: files.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    os.write(1, f"no more files: {error}\n".encode())
time.sleep(600)
"#;

#[tokio::test]
async fn a43_a_fork_bomb_and_a_leak_of_descriptors_disturb_nobody_else() -> TestResult {
    let group = match LimitedGroup::of_pids(PIDS) {
        Ok(group) => group,
        Err(error) => {
            eprintln!("SKIPPED: {error:#}");
            return Ok(());
        }
    };
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    let inside = Some(group.directory().to_owned());
    fleet.add_agent(AgentOptions { group: inside, ..AgentOptions::worker("w0", 0) }).await?;
    let api = fleet.api()?;
    let before = fleet.processes()?;
    let spec = |name: &str, script: &str| {
        json!({
            "name": name, "launcher": {"type": "command"}, "retry": {"max": 0},
            "command": ["python3", "-u", "-c", script],
        })
        .to_string()
    };
    let quiet = api.submit(&spec("quiet", QUIET)).await?;
    api.wait_job(&quiet, &["RUNNING"], SHORT).await?;
    let greedy = api.submit(&spec("greedy", GREEDY)).await?;
    let began = Instant::now();
    loop {
        let log = api.logs(&greedy, "").await?;
        if log.contains("no more processes") && log.contains("no more files") {
            break;
        }
        ensure!(began.elapsed() < SHORT, "{log}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // It is seen; and while nothing can be forked here, the node answers and the other job goes on.
    let began = Instant::now();
    let ticks = || async {
        let log = api.logs(&quiet, "").await?;
        anyhow::Ok(log.lines().count())
    };
    let first = ticks().await?;
    let mut seen = false;
    while began.elapsed() < Duration::from_secs(6) || !seen {
        let node = api.get("/api/v1/nodes/w0").await?;
        // It gets nothing new meanwhile; and it is heard of all the time.
        ensure!(node["state"] == "mixed" || node["state"] == "unfit", "{node}");
        seen |= node["conditions"].to_string().contains("\"pids\"");
        ensure!(began.elapsed() < SHORT, "the condition never came: {node}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(ticks().await? > first + 20, "the quiet job stood still");
    api.stop(&greedy).await?;
    api.wait_job(&greedy, &["CANCELLED"], SHORT).await?;
    api.post("/api/v1/nodes/w0/resume", &[], "{}").await?;
    let after = api.submit(&spec("after", "print('well')")).await?;
    api.wait_job(&after, &["SUCCEEDED"], SHORT).await?;
    ensure!(api.state(&quiet).await? == "RUNNING");
    api.stop(&quiet).await?;
    api.wait_job(&quiet, &["CANCELLED"], SHORT).await?;
    ensure!(fleet.processes()? == before, "the agent was not the same all the time");
    let agent = before.iter().find(|(name, _)| name == "w0").context("w0")?.1;
    ensure!(std::path::Path::new(&format!("/proc/{agent}")).exists(), "the agent is gone");
    fleet.assert_clean().await
}

/// A44, on a smaller disk: more than the two gigabytes that have to be free on one.
const DISK_MIB: u32 = 3 << 10;

#[tokio::test]
async fn a44_a_job_that_fills_the_temporary_directory_is_said_and_the_agent_goes_on() -> TestResult
{
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    std::fs::create_dir_all(fleet.temp_root())?;
    let _disk = SmallDisk::below(&fleet.temp_root(), DISK_MIB)?;
    fleet.add_agent(AgentOptions::worker("w0", 0)).await?;
    let api = fleet.api()?;
    let before = fleet.processes()?;
    let big = fleet.temp_root().join("big");
    let script = format!("dd if=/dev/zero of={} bs=1M 2>&1; echo full; sleep 600", big.display());
    let spec = |name: &str, script: &str| {
        json!({
            "name": name, "launcher": {"type": "command"}, "retry": {"max": 0},
            "command": ["sh", "-c", script],
        })
        .to_string()
    };
    let job = api.submit(&spec("fills", &script)).await?;
    let began = Instant::now();
    loop {
        let node = api.get("/api/v1/nodes/w0").await?;
        ensure!(!["suspect", "lost"].iter().any(|word| node["state"] == *word), "{node}");
        let is_said = node["conditions"].to_string().contains("\"local-disk\"");
        if is_said && api.logs(&job, "").await?.contains("No space left on device") {
            break;
        }
        ensure!(began.elapsed() < 2 * SHORT, "{node}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    std::fs::remove_file(big)?;
    api.post("/api/v1/nodes/w0/resume", &[], "{}").await?;
    let after = api.submit(&spec("after", "echo well")).await?;
    api.wait_job(&after, &["SUCCEEDED"], SHORT).await?;
    ensure!(fleet.processes()? == before, "the agent was not the same all the time");
    fleet.assert_clean().await
}
