//! Who makes room for whom, on real processes: a quota that changes, a priority that is higher, and
//! what people are told about it.

use std::time::{Duration, Instant};

use crate::support::{SHORT, TestResult, built};
use anyhow::Context;
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use reqwest::Method;
use serde_json::Value;

async fn two_nodes_with_four_gpus() -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    for name in ["a", "b"] {
        fleet.add_agent(AgentOptions::worker(name, 4)).await?;
    }
    Ok(fleet)
}

/// A gang that writes down every SIGTERM and ends by it, on whole nodes; it makes a training checkpoint
/// when it is told to by a file.
fn gang(name: &str, project: &str, nnodes: u32, more: &str) -> String {
    format!(
        "name: {name}\nproject: {project}\nresources: {{nnodes: {nnodes}, gpus_per_node: 4}}\n\
         launcher: {{type: command}}\ngrace_period: 10s\n{more}\n\
         run: |\n  trap 'echo asked to stop; exit 0' TERM\n  echo begun\n  while :; do\n    [ -e \"$GANGLINE_CKPT_DIR/.go\" ] && mkdir -p \"$GANGLINE_CKPT_DIR/step-10\"\n    \
         sleep 0.1\n  done\n"
    )
}

/// Waits until the job is in `state` with this many attempts.
async fn reached(api: &Api, job: &str, state: &str, attempts: u64) -> anyhow::Result<Value> {
    let until = Instant::now() + SHORT;
    loop {
        let now = api.job(job).await?;
        if now["state"] == state && now["attempts"] == attempts {
            return Ok(now);
        }
        anyhow::ensure!(Instant::now() < until, "{job} is not {state} ({attempts}): {now}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn set_quota(api: &Api, project: &str, quota: &str) -> anyhow::Result<(u16, String)> {
    let body = format!(r#"{{"quotas": {{"default": {quota}}}}}"#);
    let path = format!("/api/v1/projects/{project}");
    let headers = [("content-type", "application/json")];
    let response = api.send(Method::PUT, &path, &headers, Some(body)).await?;
    Ok((response.status().as_u16(), response.text().await?))
}

#[tokio::test]
async fn a_changed_quota_takes_lent_gpus_back_and_no_job_is_lost() -> TestResult {
    let fleet = two_nodes_with_four_gpus().await?;
    let api = fleet.api()?;
    let lent = api.submit(&gang("lent", "vision", 2, "")).await?;
    reached(&api, &lent, "RUNNING", 1).await?;
    let own = api.submit(&gang("own", "rlhf", 1, "")).await?;
    let waits = reached(&api, &own, "PENDING", 0).await?;
    let reason = waits["reason"].as_str().context("a reason")?;
    assert!(reason.contains("0 of 2 fit now"), "{reason}");

    let (status, refused) = set_quota(&api, "vision", r#"{"maximum": 4}"#).await?;
    assert_eq!(status, 409, "{refused}");
    assert!(refused.contains("hold 8 GPUs there now") && refused.contains(&lent), "{refused}");
    let (status, refused) = set_quota(&api, "rlhf", r#"{"guaranteed": 9}"#).await?;
    assert!(status == 422 && refused.contains("the pool has 8 GPUs"), "{status} {refused}");

    let (status, text) = set_quota(&api, "rlhf", r#"{"guaranteed": 4}"#).await?;
    assert_eq!(status, 204, "{text}");
    reached(&api, &own, "RUNNING", 1).await?;
    let sent_back = reached(&api, &lent, "PENDING", 1).await?;
    assert_eq!(sent_back["attempt_list"][0]["outcome"], "PREEMPTED");
    let log = api.logs(&lent, "attempt=1").await?;
    assert!(log.contains("asked to stop"), "{log}");
    let explained = api.get(&format!("/api/v1/jobs/{lent}/explain")).await?;
    assert_eq!(explained["verdict"], "waits", "{explained}");
    let queue = api.get("/api/v1/queue").await?;
    assert_eq!(queue["queue"][0]["job"], Value::from(lent.clone()), "{queue}");

    // It goes on by itself when the GPUs are free again.
    api.stop(&own).await?;
    reached(&api, &lent, "RUNNING", 2).await?;
    api.stop(&lent).await?;
    api.wait_job(&lent, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_preemptible_job_makes_room_for_a_higher_priority() -> TestResult {
    let fleet = two_nodes_with_four_gpus().await?;
    let api = fleet.api()?;
    let soft = "queue: {priority: low, preemptible: true}";
    let old = api.submit(&gang("old", "rlhf", 1, soft)).await?;
    reached(&api, &old, "RUNNING", 1).await?;
    let promised = format!("{soft}\nmin_runtime: 1h");
    let firm = api.submit(&gang("promised", "rlhf", 1, &promised)).await?;
    reached(&api, &firm, "RUNNING", 1).await?;
    let urgent = api.submit(&gang("urgent", "rlhf", 1, "queue: {priority: high}")).await?;
    reached(&api, &urgent, "RUNNING", 1).await?;
    let sent_back = reached(&api, &old, "PENDING", 1).await?;
    let history = sent_back["history"].to_string();
    assert!(history.contains(&format!("job {urgent} has priority 75")), "{history}");
    // The one that was promised an hour runs on, and a second urgent one waits.
    let second = api.submit(&gang("second", "rlhf", 1, "queue: {priority: high}")).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(api.state(&second).await?, "PENDING");
    assert_eq!(api.state(&firm).await?, "RUNNING");
    for job in [&second, &urgent, &firm, &old] {
        api.stop(job).await?;
    }
    for job in [&second, &urgent, &firm, &old] {
        api.wait_job(job, &["CANCELLED"], SHORT).await?;
    }
    fleet.assert_clean().await
}

#[tokio::test]
async fn the_job_with_a_fresh_training_checkpoint_makes_room_before_one_that_began_later()
-> TestResult {
    let fleet = two_nodes_with_four_gpus().await?;
    let api = fleet.api()?;
    let soft = "queue: {priority: low, preemptible: true}";
    let old = api.submit(&gang("old", "rlhf", 1, soft)).await?;
    reached(&api, &old, "RUNNING", 1).await?;
    let young = api.submit(&gang("young", "rlhf", 1, soft)).await?;
    let shown = reached(&api, &young, "RUNNING", 1).await?;
    assert_eq!(shown["last_checkpoint"], Value::Null);

    let shown = api.job(&old).await?;
    let directory = shown["checkpoint_directory"].as_str().context("a directory")?;
    std::fs::write(std::path::Path::new(directory).join(".go"), "")?;
    let until = Instant::now() + SHORT;
    let newest = loop {
        let newest = api.job(&old).await?["last_checkpoint"].clone();
        if !newest.is_null() {
            break newest;
        }
        anyhow::ensure!(Instant::now() < until, "no training checkpoint was seen");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(newest["name"], "step-10", "{newest}");

    let urgent = api.submit(&gang("urgent", "rlhf", 1, "queue: {priority: high}")).await?;
    reached(&api, &urgent, "RUNNING", 1).await?;
    let sent_back = reached(&api, &old, "PENDING", 1).await?;
    assert_eq!(api.state(&young).await?, "RUNNING");
    let cause = sent_back["attempt_list"][0]["cause"].as_str().context("a cause")?;
    assert!(cause.contains(&format!("job {urgent} has priority 75; loses ")), "{cause}");
    assert!(cause.ends_with("work since step-10"), "{cause}");
    assert_eq!(sent_back["last_checkpoint"], Value::Null, "it is of an attempt that is over");
    for job in [&urgent, &young, &old] {
        api.stop(job).await?;
    }
    for job in [&urgent, &young, &old] {
        api.wait_job(job, &["CANCELLED"], SHORT).await?;
    }
    fleet.assert_clean().await
}
