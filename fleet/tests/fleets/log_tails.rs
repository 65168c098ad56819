//! Logs of real processes: what is written on every node arrives at the coordinator, once.

use std::time::Duration;

use crate::support::{RAY, SHORT, TestResult, command_fleet, ray_fleet};
use anyhow::Context;
use gangline_common::ids::{MemberId, MemberKey};
use gangline_coordinator::ingest::logs::Logs;
use gangline_fleet::fleet::Fleet;
use gangline_fleet::slots;
use serde_json::{Value, json};

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

/// Files that the spec names: rotated while they are written and while the agent is away, beside
/// others that must not be read.
#[tokio::test]
async fn files_of_the_spec_arrive_once_and_nothing_beside_them() -> TestResult {
    let mut fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    let go = fleet.path("go");
    let script = r#"import os, sys, time
if os.environ["NODE_RANK"] == "1":
    sys.exit(0)
os.makedirs("outputs/run")
os.mkfifo("outputs/fifo.log")
os.symlink("/etc/hostname", "outputs/link.log")
os.symlink("/etc", "outputs/etc")
open("outputs/other.txt", "w").write("line 1\n")
log = open("outputs/run/main.log", "a")
for number in range(400):
    if number % 100 == 50:
        os.rename("outputs/run/main.log", f"outputs/run/main.log.{number}")
        log.write(f"line {number} a\n")
        log.close()
        log = open("outputs/run/main.log", "a")
    log.write(f"line {number}\n")
    log.flush()
    if number == 200:
        print("half", flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
    time.sleep(0.005)
"#;
    let workdir = fleet.shared_root().join("work");
    std::fs::create_dir_all(&workdir)?;
    let spec = json!({
        "name": "files",
        "resources": {"nnodes": 2},
        "launcher": {"type": "command"},
        "workdir": workdir,
        "command": ["python3", "-c", script, go],
        "logs": {"files": ["outputs/**/*.log*", "outputs/etc/**"]},
    });
    let id = api.submit(&spec.to_string()).await?;
    let running = api.wait_job(&id, &["RUNNING"], SHORT).await?;
    while !api.logs(&id, "").await?.contains("half") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let node = running["members"].as_array().context("members")?.iter();
    let node = node.clone().find(|member| member["member"] == "0").context("rank 0")?;
    let node = node["node"].as_str().context("node")?.to_owned();
    fleet.kill_agent(&node)?;
    std::fs::write(&go, "")?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fleet.start_agent(&node)?;
    let api = fleet.api()?;
    let done = api.wait_job(&id, &["SUCCEEDED"], SHORT).await?;
    let logs = logs_of(&fleet, &done, 0)?;
    let files: Vec<_> = logs.iter().filter(|(name, _)| name.starts_with("file-")).collect();
    let mut lines: Vec<&str> = files.iter().flat_map(|(_, text)| text.lines()).collect();
    lines.sort_by_key(|line| {
        let mut words = line.split(' ').skip(1);
        let number: Option<u32> = words.next().and_then(|word| word.parse().ok());
        (number, words.next() != Some("a"))
    });
    let mut expected = Vec::new();
    for number in 0..400 {
        if number % 100 == 50 {
            expected.push(format!("line {number} a"));
        }
        expected.push(format!("line {number}"));
    }
    assert_eq!(lines, expected);
    // One stream for each of the files that there are in the end.
    assert_eq!(files.len(), 5, "{:?}", files.iter().map(|(name, _)| name).collect::<Vec<_>>());
    // What all nodes share is read by one of them.
    assert!(logs_of(&fleet, &done, 1)?.iter().all(|(name, _)| !name.starts_with("file-")));
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_log_over_the_budget_is_cut_and_says_so() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let script = "for number in range(300000): print('line', number)";
    let spec = json!({
        "name": "chatty",
        "launcher": {"type": "command"},
        "command": ["python3", "-c", script],
        "logs": {"max_bytes": "2MiB"},
    });
    let job = api.submit(&spec.to_string()).await?;
    api.wait_job(&job, &["SUCCEEDED"], SHORT).await?;
    let log = api.logs(&job, "").await?;
    assert!(log.len() <= (2 << 20) + 200, "{} bytes", log.len());
    let (last, before) =
        log.lines().rev().filter(|line| !line.is_empty()).fold((None, 0), |(last, count), line| {
            (last.or(Some(line)), count + usize::from(line.starts_with("line ")))
        });
    let last = last.context("no line")?;
    assert_eq!(last, "[gangline] the rest is left out: the logs here are over 2097152 bytes");
    assert!(before > 100_000, "{before} lines");
    fleet.assert_clean().await
}
