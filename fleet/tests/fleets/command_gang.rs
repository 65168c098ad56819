//! Command gangs on real processes: what every rank sees, what is left, what is refused.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{SHORT, TestResult, command, command_fleet, once};
use anyhow::Context;

#[tokio::test]
async fn arguments_arrive_literally_and_every_rank_knows_its_place() -> TestResult {
    let fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    let odd = r#"["python3", "-c", "import os,sys; print(os.environ['NODE_RANK'], os.environ['NNODES'], os.environ['GANGLINE_JOB_ID'], sys.argv[1:])", "train.py; rm -rf ~", "$(id)", "`id`", "a\nb", "'\"$HOME"]"#;
    let job = api.submit(&command("literal", 2, odd)).await?;
    api.wait_job(&job, &["SUCCEEDED"], SHORT).await?;
    for rank in 0..2 {
        let log = api.logs(&job, &format!("rank={rank}")).await?;
        let expected = format!(
            "{rank} 2 {job} ['train.py; rm -rf ~', '$(id)', '`id`', 'a\\nb', '\\'\"$HOME']\n"
        );
        assert_eq!(log, expected);
    }
    fleet.assert_clean().await
}

#[tokio::test]
async fn the_same_spec_three_times_makes_three_directories() -> TestResult {
    let fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    let spec = command(
        "thrice",
        2,
        r#"["sh", "-c", "echo $GANGLINE_JOB_ID > $GANGLINE_CKPT_DIR/$NODE_RANK"]"#,
    );
    let mut directories = BTreeSet::new();
    for _ in 0..3 {
        let job = api.submit(&spec).await?;
        let done = api.wait_job(&job, &["SUCCEEDED"], SHORT).await?;
        let directory = done["directory"].as_str().unwrap_or_default().to_owned();
        for rank in 0..2 {
            let written = std::fs::read_to_string(format!("{directory}/checkpoints/{rank}"))?;
            assert_eq!(written.trim(), job);
        }
        let config = std::fs::read_to_string(format!("{directory}/config/spec.json"))?;
        assert!(config.contains("thrice"));
        assert!(std::path::Path::new(&format!("{directory}/logs")).is_dir());
        directories.insert(directory);
    }
    assert_eq!(directories.len(), 3);
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_failing_rank_is_named_and_the_others_are_stopped() -> TestResult {
    let fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    let script = r#"["sh", "-c", "if [ $NODE_RANK = 1 ]; then echo no such file: data.parquet; exit 3; fi; sleep 600 & setsid sleep 600 & sleep 600"]"#;
    let job = api.submit(&command("failing", 2, script)).await?;
    let done = api.wait_job(&job, &["FAILED"], SHORT).await?;
    let reason = done["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("rank 1 on w1 exited with code 3"), "{reason}");
    assert!(reason.contains("no such file: data.parquet"), "{reason}");
    fleet.assert_clean().await
}

#[tokio::test]
async fn stop_means_stopped_whatever_the_processes_do() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    // Ignores TERM, has a child in its own session and a daemon that has lost its parent.
    let script = r#"["sh", "-c", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & (setsid sleep 600 &) ; echo up; while :; do sleep 1; done"]"#;
    let spec = command("stubborn", 1, script) + "grace_period: 1s\n";
    let job = api.submit(&spec).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    // The shell, the child in its own session, the daemon: all of them, before the stop.
    while fleet.gang_processes().len() < 3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    assert!(fleet.gang_processes().is_empty(), "{:?}", fleet.gang_processes());
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_long_log_arrives_whole() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let script = r#"["python3", "-c", "for i in range(200000): print('line', i)"]"#;
    let job = api.submit(&command("chatty", 1, script)).await?;
    api.wait_job(&job, &["SUCCEEDED"], SHORT).await?;
    let log = api.logs(&job, "").await?;
    let expected: String = (0..200_000).map(|i| format!("line {i}\n")).collect();
    assert!(log == expected, "{} of {} bytes", log.len(), expected.len());
    let copy = fleet.shared_root().join("jobs").join(&job).join("logs");
    // The copy may be complete a little after the end of the job.
    let is_there = || {
        let read = |path: &std::path::PathBuf| std::fs::read_to_string(path);
        walk(&copy).iter().any(|path| read(path).is_ok_and(|text| text == expected))
    };
    let until = Instant::now() + SHORT;
    while !is_there() {
        assert!(Instant::now() < until, "{:?}", walk(&copy));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    fleet.assert_clean().await
}

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

/// A45: what a job prints is no evidence about the hardware below it.
#[tokio::test]
async fn a45_log_text_that_speaks_of_hardware_changes_nothing_of_a_node() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let words = [
        "sh",
        "-c",
        r#"printf '%s\n' "$@"; printf '%s\n' "$@" >&2; exit 1"#,
        "sh",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "mlx5_core 0000:5e:00.0: Port module event: link down",
    ];
    let spec = once(&command("liar", 1, &serde_json::json!(words).to_string()));
    for _ in 0..2 {
        let job = api.submit(&spec).await?;
        api.wait_job(&job, &["FAILED"], SHORT).await?;
        assert!(api.logs(&job, "").await?.contains("Xid"));
        let node = api.get("/api/v1/nodes/w0").await?;
        assert_eq!(node["state"], "ready", "{node}");
        assert!(node["cordon"].is_null(), "{node}");
    }
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_job_over_its_time_limit_ends_with_a_word_and_its_grace() -> TestResult {
    let mut fleet = command_fleet(2).await?;
    let spec = r#"{"name": "long", "resources": {"nnodes": 2}, "launcher": {"type": "command"},
        "timeout": "4s", "grace_period": "20s",
        "run": "trap 'echo saved; exit 0' TERM; echo began; while :; do sleep 0.1; done"}"#;
    let job = fleet.api()?.submit(spec).await?;
    fleet.api()?.wait_job(&job, &["RUNNING"], SHORT).await?;
    // The limit holds over a restart of the coordinator.
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    let api = fleet.api()?;
    let ended = api.wait_job(&job, &["TIMEOUT", "FAILED", "SUCCEEDED"], SHORT).await?;
    anyhow::ensure!(ended["state"] == "TIMEOUT", "{ended}");
    assert_eq!(ended["reason"], "its time limit of 4 s is over");
    assert_eq!(ended["attempt_list"][0]["outcome"], "TIMEOUT");
    let log = api.logs(&job, "").await?;
    anyhow::ensure!(log.starts_with("began\n") && log.ends_with("saved\n"), "{log}");
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_drained_node_sends_its_job_to_another() -> TestResult {
    let fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    let job = api.submit(&command("moves", 1, r#"["sleep", "600"]"#)).await?;
    let running = api.wait_job(&job, &["RUNNING"], SHORT).await?;
    let first = running["nodes"][0].as_str().context("a node")?.to_owned();
    let headers = [("content-type", "application/json")];
    let drain = format!("/api/v1/nodes/{first}/drain");
    let (status, refused) = api.post(&drain, &headers, r#"{"reason": ""}"#).await?;
    assert_eq!(status, 422, "{refused}");
    let body = r#"{"reason": "fan", "deadline_s": 0}"#;
    let (status, node) = api.post(&drain, &headers, body).await?;
    assert_eq!((status, &node["drain"]["why"]), (200, &"fan".into()));
    let until = Instant::now() + SHORT;
    let moved = loop {
        let now = api.job(&job).await?;
        if now["state"] == "RUNNING" && now["attempts"] == 2 {
            break now;
        }
        anyhow::ensure!(Instant::now() < until, "{now}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_ne!(moved["nodes"][0], *first);
    assert_eq!(moved["attempt_list"][0]["outcome"], "PREEMPTED");
    assert_eq!(api.get(&format!("/api/v1/nodes/{first}")).await?["state"], "drained");
    let resume = format!("/api/v1/nodes/{first}/resume");
    assert_eq!(api.post(&resume, &headers, "").await?.1["state"], "ready");
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}
