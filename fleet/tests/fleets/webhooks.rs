//! A webhook of a real coordinator that is killed: every event arrives, under one id; and the books
//! survive with it; and so does whoever follows the events. A real Alertmanager takes what goes wrong,
//! and what ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::endpoint::{CANARY, Endpoint};
use crate::support::{SHORT, TestResult, built, runs};
use anyhow::{Context, bail};
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::process::{Process, kill};
use serde_json::{Value, json};

/// GPU-seconds of a job: all, and the classes together.
async fn used(fleet: &Fleet, job: &str) -> anyhow::Result<(f64, f64)> {
    let usage = fleet.api()?.get("/api/v1/usage?by=job").await?;
    let rows = usage["rows"].as_array().cloned().unwrap_or_default();
    let row = rows.iter().find(|row| row["key"] == job);
    let Some(row) = row.and_then(Value::as_object) else { return Ok((0.0, 0.0)) };
    let all = row["allocated_gpu_s"].as_f64().unwrap_or_default();
    let classes =
        row.iter().filter(|(key, _)| key.ends_with("_gpu_s") && *key != "allocated_gpu_s");
    Ok((all, classes.filter_map(|(_, value)| value.as_f64()).sum()))
}

#[tokio::test]
async fn kills_in_between_lose_no_event_and_no_gpu_time() -> TestResult {
    let endpoint = Endpoint::default();
    let url = endpoint.start().await?;
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    fleet.add_agent(AgentOptions::worker("w0", 2)).await?;
    let api = fleet.api()?;
    let body = json!({ "url": url, "key": CANARY, "events": ["job.*"] }).to_string();
    let (status, answer) = api.put("/api/v1/webhooks/ops?fleet=true", &body).await?;
    anyhow::ensure!(status == 200, "{answer}");

    let spec = |name: &str, command: &str| {
        format!(
            "name: {name}\nresources: {{nnodes: 1, gpus_per_node: 2}}\nlauncher: {{type: command}}\n\
             command: [sh, -c, \"{command}\"]\n"
        )
    };
    let mut follows = fleet.cli();
    follows.args(["-q", "-o", "jsonl", "events", "-f", "--kind", "job.failed"]);
    let followed = fleet.path("events.jsonl");
    let mut follows = Process::start("events", &mut follows, &followed)?;
    // What happens while nobody takes it, with a kill after each.
    let mut jobs = Vec::new();
    for number in 0..3 {
        let job = api.submit(&spec(&format!("fails-{number}"), "sleep 1; exit 3")).await?;
        api.wait_job(&job, &["FAILED"], SHORT).await?;
        let before = used(&fleet, &job).await?;
        fleet.kill_coordinator()?;
        fleet.start_coordinator().await?;
        // Its line may have been written before or after the kill; then it stays.
        let end = Instant::now() + SHORT;
        while used(&fleet, &job).await?.0 < 2.0 {
            anyhow::ensure!(Instant::now() < end, "{before:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (all, classes) = used(&fleet, &job).await?;
        assert!((all - classes).abs() < 0.0001, "{all} GPU-s, {classes} in classes");
        jobs.push(job);
    }
    assert!(endpoint.lock().is_empty());
    endpoint.is_well.store(true, Ordering::Relaxed);
    for job in &jobs {
        endpoint.until("job.failed", job).await?;
    }
    // And once more while it is told.
    let job = api.submit(&spec("last", "sleep 600")).await?;
    endpoint.until("job.running", &job).await?;
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    api.wait_node("w0", &["busy", "mixed"], SHORT).await?;
    let interrupted = Instant::now();
    let processes = fleet.gang_processes();
    let sleeps = processes.iter().find(|found| found.command.starts_with("sleep"));
    let sleeps = sleeps.ok_or_else(|| anyhow::anyhow!("no job in {processes:?}"))?;
    kill(sleeps.pid)?;
    endpoint.until("job.interrupted", &job).await?;
    println!("an interruption was told {:?} after it happened", interrupted.elapsed());
    let taken = endpoint.until("job.failed", &job).await?;

    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in &taken {
        let (kind, object) = (event["kind"].to_string(), event["object"].to_string());
        ids.entry(format!("{object} {kind}")).or_default().insert(event["id"].to_string());
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "told under several ids: {ids:?}");
    for job in jobs.iter().chain([&job]) {
        for kind in ["job.running", "job.interrupted", "job.failed"] {
            assert!(ids.contains_key(&format!("\"job {job}\" \"{kind}\"")), "{kind} of {job}");
        }
    }
    // Whoever follows on a terminal hears of each once, through the same kills.
    let failed: Vec<String> = jobs.iter().chain([&job]).map(|job| format!("job {job}")).collect();
    let end = Instant::now() + SHORT;
    loop {
        let text = std::fs::read_to_string(&followed)?;
        let told: Vec<&str> = text.lines().filter(|line| line.ends_with('}')).collect();
        let told = told.into_iter().map(serde_json::from_str::<Value>);
        let told: Vec<Value> = told.collect::<Result<_, _>>()?;
        if told.len() >= failed.len() {
            let objects: Vec<&str> = told.iter().filter_map(|t| t["object"].as_str()).collect();
            assert_eq!(objects, failed);
            break;
        }
        anyhow::ensure!(Instant::now() < end, "`events -f` told of {told:?}, not of {failed:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    follows.terminate(SHORT)?;
    let list = api.get("/api/v1/webhooks?fleet=true").await?;
    assert_eq!(
        (&list["webhooks"][0]["dead"], &list["webhooks"][0]["missed"]),
        (&json!(0), &json!(0))
    );
    assert!(!list.to_string().contains(CANARY) && !fleet.coordinator_log().contains(CANARY));
    fleet.assert_clean().await
}

/// Debian's name of the program, and the one of its makers.
const ALERTMANAGER: [&str; 2] = ["prometheus-alertmanager", "alertmanager"];

fn alertmanager() -> Option<&'static str> {
    ALERTMANAGER.into_iter().find(|program| runs(program, &["--version"]))
}

/// Asks the Alertmanager until the alert of this name is or is no longer among the active ones.
async fn until_alert(
    manager: &Api,
    name: &str,
    is_there: bool,
) -> anyhow::Result<Option<BTreeMap<String, String>>> {
    let end = Instant::now() + SHORT;
    loop {
        // It needs a moment to start, and to take in what it was sent.
        let alerts = manager.get("/api/v2/alerts?active=true").await;
        if let Ok(Value::Array(alerts)) = &alerts {
            let found = alerts.iter().find(|alert| alert["labels"]["alertname"] == name);
            if found.is_some() == is_there {
                let labels = found.map(|alert| serde_json::from_value(alert["labels"].clone()));
                return Ok(labels.transpose()?);
            }
        }
        if Instant::now() >= end {
            bail!("{name} (wanted: {is_there}): {alerts:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_real_alertmanager_takes_what_goes_on_and_what_is_over() -> TestResult {
    let Some(program) = alertmanager() else {
        eprintln!("skipped: no Alertmanager (the Debian package is `prometheus-alertmanager`)");
        return Ok(());
    };
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    fleet.add_agent(AgentOptions::worker("w0", 1)).await?;
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let config = fleet.path("alertmanager.yml");
    std::fs::write(&config, "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")?;
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.path={}", fleet.path("alertmanager").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--cluster.listen-address=");
    let mut process =
        Process::start("alertmanager", &mut command, &fleet.path("alertmanager.log"))?;
    let manager = Api::new(format!("http://127.0.0.1:{port}"), String::new())?;
    let api = fleet.api()?;
    // What happens before it listens is told by another attempt.
    let body = json!({
        "url": format!("http://127.0.0.1:{port}/api/v2/alerts"),
        "kind": "alertmanager",
    });
    let (status, answer) = api.put("/api/v1/webhooks/am?fleet=true", &body.to_string()).await?;
    anyhow::ensure!(status == 200, "{answer}");

    // What has happened: an alert of a job.
    let spec = "name: fails\nlauncher: {type: command}\nretry: {max: 0}\nrun: exit 3\n";
    let job = api.submit(spec).await?;
    let labels = until_alert(&manager, "GanglineJobFailed", true).await?.context("labels")?;
    assert_eq!((&*labels["job_id"], &*labels["severity"]), (&*job, "warning"), "{labels:?}");

    // What goes on, until an operator ends it.
    let inject = json!({ "fault": "xid=79" }).to_string();
    let (status, answer) = api.post("/api/v1/nodes/w0/inject", &[], &inject).await?;
    anyhow::ensure!(status == 200, "{answer}");
    let labels = until_alert(&manager, "GanglineNodeCondition", true).await?.context("labels")?;
    let told = ["node", "rule", "severity"].map(|label| &*labels[label]);
    assert_eq!(told, ["w0", "xid-fatal", "critical"], "{labels:?}");
    let (status, answer) = api.post("/api/v1/nodes/w0/resume", &[], "{}").await?;
    anyhow::ensure!(status == 200, "{answer}");
    until_alert(&manager, "GanglineNodeCondition", false).await?;

    let list = api.get("/api/v1/webhooks?fleet=true").await?;
    assert_eq!(list["webhooks"][0]["dead"], json!(0), "{list}");
    process.kill()?;
    fleet.assert_clean().await
}
