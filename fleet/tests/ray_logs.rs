//! Logs of real Ray: what its processes on every node write arrives at the coordinator.

mod support;

use std::time::Duration;

use anyhow::Context;
use gangline_common::ids::{MemberId, MemberKey};
use gangline_coordinator::ingest::logs::Logs;
use gangline_fleet::fleet::Fleet;
use gangline_fleet::slots;
use serde_json::{Value, json};
use support::{RAY, SHORT, TestResult, ray_fleet};

/// An actor on rank 1 that writes numbered lines to its own stderr.
const WRITER: &str = r#"cat > writer.py <<'END'
import ray, sys, time
ray.init()
@ray.remote(resources={"gangline_rank_1": 0.001}, num_cpus=1)
class Writer:
    def write(self, lines, pause):
        for number in range(lines):
            print(f"line {number}", file=sys.stderr, flush=True)
            time.sleep(pause)
print("began", flush=True)
ray.get(Writer.remote().write.remote(400, 0.03))
END
exec python writer.py
"#;
const LINES: usize = 400;

/// Every log of a rank that the coordinator has, by name.
fn logs_of(fleet: &Fleet, job: &Value, rank: u32) -> anyhow::Result<Vec<(String, String)>> {
    let attempt = job["attempt_list"].as_array().and_then(|a| a.last()).context("attempt")?;
    let root = fleet.state_dir().join("logs");
    let gangs = std::fs::read_dir(&root)?.flatten().map(|entry| entry.file_name());
    let mut gangs = gangs.filter_map(|name| Some(name.to_str()?.to_owned()));
    // The only gang of this fleet; none before the first byte.
    let Some(gang) = gangs.find(|name| name.starts_with("g-")) else { return Ok(Vec::new()) };
    let epoch = attempt["epoch"].as_str().context("epoch")?;
    let key: MemberKey = format!("{gang}:{epoch}:{rank}").parse()?;
    let logs = Logs::new(root);
    let mut found = Vec::new();
    for (member, file, length) in logs.files(&key.gang, key.epoch) {
        if member == MemberId::Rank(rank) {
            let bytes = logs.read(&key, &file, 0, usize::try_from(length)?)?;
            found.push((file, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(found)
}

fn numbered(text: &str) -> Vec<usize> {
    text.lines().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect()
}

/// The lines of the actor, which are all in one log of its worker.
fn written(fleet: &Fleet, job: &Value) -> anyhow::Result<Vec<usize>> {
    let logs = logs_of(fleet, job, 1)?;
    let mut with_lines = logs.into_iter().filter(|(name, text)| {
        name.starts_with("worker-") && name.ends_with("-err") && !numbered(text).is_empty()
    });
    let lines = with_lines.next().map(|(_, text)| numbered(&text)).unwrap_or_default();
    let others: Vec<String> = with_lines.map(|(name, _)| name).collect();
    anyhow::ensure!(others.is_empty(), "lines are in other logs too: {others:?}");
    Ok(lines)
}

#[tokio::test]
async fn stderr_of_a_worker_arrives_once_though_its_agent_is_killed() -> TestResult {
    let mut fleet = ray_fleet().await?;
    let slot = slots::heavy().await?;
    let spec = json!({
        "name": "writer",
        "resources": {"nnodes": 2},
        "workdir": fleet.shared_root(),
        "run": WRITER,
    });
    let id = fleet.api()?.submit(&spec.to_string()).await?;
    let job = fleet.api()?.wait_job(&id, &["RUNNING"], RAY).await?;
    let members = job["members"].as_array().context("members")?;
    let rank_one = members.iter().find(|member| member["member"] == "1").context("rank 1")?;
    let node = rank_one["node"].as_str().context("node")?.to_owned();
    let looks = async {
        while written(&fleet, &job)?.len() < 50 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(RAY, looks).await.context("no lines arrive")??;
    fleet.kill_agent(&node)?;
    let at_kill = written(&fleet, &job)?.len();
    // It goes on writing while nobody reads.
    tokio::time::sleep(Duration::from_secs(2)).await;
    fleet.start_agent(&node)?;
    let done = fleet.api()?.wait_job(&id, &["SUCCEEDED"], RAY).await?;
    drop(slot);
    let lines = written(&fleet, &done)?;
    eprintln!("{at_kill} lines when the agent was killed, {} at the end", lines.len());
    assert_eq!(lines, (0..LINES).collect::<Vec<_>>());
    for rank in 0..2 {
        let logs = logs_of(&fleet, &done, rank)?;
        let raylet = logs.iter().find(|(name, _)| name == "raylet-out").context("raylet.out")?;
        assert!(raylet.1.contains("raylet"), "{}", raylet.1);
    }
    fleet.api()?.wait_job(&id, &["SUCCEEDED"], SHORT).await?;
    fleet.assert_clean().await
}
