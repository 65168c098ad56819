//! Jobs in the queue on real processes, by the command line: held and released, sent back, put before
//! others, run after others, and waiting no longer than they may.

use std::time::{Duration, Instant};

use crate::support::{SHORT, TestResult, built};
use anyhow::Context;
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use serde_json::Value;

/// Workers with one GPU each: one job of these tests at a time on each.
async fn workers(count: u32) -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    for number in 0..count {
        fleet.add_agent(AgentOptions::worker(&format!("w{number}"), 1)).await?;
    }
    Ok(fleet)
}

/// What the command line says, and its exit code.
fn gangline(fleet: &Fleet, words: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let output = fleet.cli().args(words).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

fn done(fleet: &Fleet, words: &[&str]) -> anyhow::Result<String> {
    let (code, text) = gangline(fleet, words)?;
    anyhow::ensure!(code == Some(0), "{words:?}: {text}");
    Ok(text)
}

/// Submits a shell script on one GPU; `options` are of the command line.
fn submit(fleet: &Fleet, id: &str, script: &str, options: &[&str]) -> TestResult {
    let words = ["submit", "--id", id, "--name", id, "--gpus", "1", "-q"];
    let kind = ["--set", "launcher.type=command"];
    let command = ["--", "sh", "-c", script];
    done(fleet, &[&words[..], &kind, options, &command].concat()).map(drop)
}

/// Waits until `reached` is true of a job.
async fn until(api: &Api, job: &str, reached: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let end = Instant::now() + SHORT;
    loop {
        let now = api.job(job).await?;
        if reached(&now) {
            return Ok(now);
        }
        anyhow::ensure!(Instant::now() < end, "{now}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn texts(job: &Value) -> Vec<&str> {
    let history = job["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    history.iter().filter_map(|entry| entry["text"].as_str()).collect()
}

const LONG: &str = "echo up; sleep 600";

#[tokio::test]
async fn jobs_are_held_released_requeued_and_put_before_others() -> TestResult {
    let mut fleet = workers(1).await?;
    submit(&fleet, "busy", LONG, &[])?;
    submit(&fleet, "first", LONG, &["--hold"])?;
    submit(&fleet, "second", LONG, &[])?;
    fleet.api()?.wait_job("busy", &["RUNNING"], SHORT).await?;
    let (code, text) = gangline(&fleet, &["hold", "busy"])?;
    assert_eq!(code, Some(7), "a running job is not held: {text}");
    done(&fleet, &["stop", "busy"])?;
    // The held one was before it, and holds back nobody.
    fleet.api()?.wait_job("second", &["RUNNING"], SHORT).await?;
    assert_eq!(fleet.api()?.job("first").await?["held"]["why"], "submitted so");
    done(&fleet, &["set-priority", "first", "high"])?;
    done(&fleet, &["release", "first"])?;
    done(&fleet, &["hold", "first", "--reason", "not today"])?;
    // What was decided is kept over a restart of the coordinator.
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    let api = fleet.api()?;
    let first = api.job("first").await?;
    assert_eq!((&first["state"], &first["priority"]), (&"PENDING".into(), &75.into()));
    assert!(first["reason"].as_str().context("reason")?.ends_with(": not today"), "{first}");
    done(&fleet, &["release", "first"])?;
    // It is stopped politely, and the one with the higher priority takes its place.
    done(&fleet, &["requeue", "second", "--reason", "make room"])?;
    api.wait_job("first", &["RUNNING"], SHORT).await?;
    let second = until(&api, "second", |job| job["state"] == "PENDING").await?;
    let attempt = &second["attempt_list"][0];
    assert_eq!(attempt["outcome"], "PREEMPTED");
    assert!(attempt["cause"].as_str().context("cause")?.ends_with(": make room"), "{second}");
    assert!(texts(&second).iter().any(|text| text.contains("requeued by")), "{second}");
    done(&fleet, &["stop", "first"])?;
    until(&api, "second", |job| job["state"] == "RUNNING" && job["attempts"] == 2).await?;
    done(&fleet, &["stop", "second"])?;
    api.wait_job("second", &["CANCELLED"], SHORT).await?;
    let (code, text) = gangline(&fleet, &["requeue", "second"])?;
    assert!(code == Some(7) && text.contains("gangline clone"), "{text}");
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_requeued_job_leaves_a_node_out_from_then_on() -> TestResult {
    let fleet = workers(2).await?;
    let api = fleet.api()?;
    submit(&fleet, "moves", LONG, &[])?;
    let running = api.wait_job("moves", &["RUNNING"], SHORT).await?;
    let node = running["nodes"][0].as_str().context("a node")?.to_owned();
    done(&fleet, &["requeue", "moves", "--exclude-node", &node])?;
    let moved =
        until(&api, "moves", |job| job["state"] == "RUNNING" && job["attempts"] == 2).await?;
    assert_ne!(moved["nodes"][0], *node);
    done(&fleet, &["stop", "moves"])?;
    api.wait_job("moves", &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

#[tokio::test]
async fn jobs_run_after_others_and_fail_with_them() -> TestResult {
    let fleet = workers(2).await?;
    let api = fleet.api()?;
    let file = fleet.path("order");
    let add = |word: &str| format!("echo {word} >> {}", file.display());
    submit(&fleet, "one", &format!("sleep 1; {}", add("one")), &[])?;
    // Both nodes would be free for it.
    submit(&fleet, "two", &add("two"), &["--after", "one"])?;
    submit(&fleet, "three", &add("three"), &["--after", "one", "--after", "two"])?;
    let waits = api.job("three").await?;
    anyhow::ensure!(waits["reason"].as_str().context("reason")?.contains("one (one)"), "{waits}");
    api.wait_job("three", &["SUCCEEDED"], SHORT).await?;
    assert_eq!(std::fs::read_to_string(&file)?, "one\ntwo\nthree\n");

    submit(&fleet, "bad", "sleep 1; exit 3", &[])?;
    submit(&fleet, "next", &add("never"), &["--after", "bad"])?;
    submit(&fleet, "last", &add("never"), &["--after", "next"])?;
    let last = api.wait_job("last", &["FAILED"], SHORT).await?;
    let reason = last["reason"].as_str().context("reason")?;
    let (next, bad) = (reason.find("next (next)"), reason.find("bad (bad)"));
    anyhow::ensure!(next.is_some() && next < bad && reason.contains("code 3"), "{reason}");
    assert_eq!(std::fs::read_to_string(&file)?, "one\ntwo\nthree\n");
    let words = ["submit", "--after", "bad", "--", "true"];
    let (code, text) = gangline(&fleet, &words)?;
    assert!(code == Some(5) && text.contains("is FAILED and will not succeed"), "{text}");
    fleet.assert_clean().await
}

#[tokio::test]
async fn jobs_wait_for_their_time_and_no_longer_than_they_may() -> TestResult {
    let fleet = workers(1).await?;
    let api = fleet.api()?;
    // Its node is free all the time.
    submit(&fleet, "later", "true", &["--not-before", "now+3s"])?;
    let later = api.job("later").await?;
    anyhow::ensure!(later["reason"].as_str().context("reason")?.starts_with("waits until "));
    let later = api.wait_job("later", &["SUCCEEDED"], SHORT).await?;
    let at = |key: &str| later[key].as_str().context("a time").map(str::to_owned);
    anyhow::ensure!(at("started")? >= at("not_before")?, "{later}");

    let before = Instant::now();
    submit(&fleet, "busy", LONG, &["--set", "timeout=8s"])?;
    api.wait_job("busy", &["RUNNING"], SHORT).await?;
    submit(&fleet, "impatient", "true", &["--max-wait", "2s"])?;
    let failed = api.wait_job("impatient", &["FAILED"], SHORT).await?;
    let reason = failed["reason"].as_str().context("reason")?;
    anyhow::ensure!(
        reason.starts_with("queue timeout: it could not start within 2 s: "),
        "{reason}"
    );
    // The running one gets more time, while there is some.
    done(&fleet, &["extend", "--by", "600s", "busy"])?;
    tokio::time::sleep(Duration::from_secs(9).saturating_sub(before.elapsed())).await;
    assert_eq!(api.state("busy").await?, "RUNNING");
    done(&fleet, &["stop", "busy"])?;
    api.wait_job("busy", &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}
