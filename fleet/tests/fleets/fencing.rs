//! A node that is cut off stops its part of a gang, or does not, as the gang's `on_disconnect` says;
//! and nothing of it is given away before (F2, F8, F10).

use std::time::{Duration, Instant};

use crate::support::{
    RAY, SHORT, TestResult, built, command_fleet, has_namespaces, once, training, wait_steps,
};
use anyhow::Context;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::slots;
use gangline_fleet::training::Hosted;
use serde_json::Value;

/// Processes of this rank, of whatever gang.
fn ranks_of(fleet: &Fleet, rank: u32) -> usize {
    let member = format!(":{rank}");
    let is_its = |mark: &String| mark.ends_with(&member);
    fleet.gang_processes().iter().filter(|found| found.mark.as_ref().is_some_and(is_its)).count()
}

fn gang(name: &str, policy: &str) -> String {
    format!(
        "{{name: {name}, resources: {{nnodes: 2}}, launcher: {{type: command}}, \
         grace_period: 2s, retry: {{max: 0}}, on_disconnect: {policy}, command: [sleep, \"600\"]}}"
    )
}

/// The rank of the job that is on the node.
fn rank_on(job: &Value, node: &str) -> anyhow::Result<u32> {
    let members = job["members"].as_array().context("no members")?;
    let here = members.iter().filter(|member| member["node"] == node);
    let mut ranks = here.filter_map(|member| member["member"].as_str()?.parse().ok());
    ranks.next().with_context(|| format!("no rank on {node}: {members:?}"))
}

fn phase_of(job: &Value, rank: u32) -> String {
    let members = job["members"].as_array().into_iter().flatten();
    let mut its = members.filter(|member| member["member"] == rank.to_string().as_str());
    its.next().and_then(|member| member["phase"].as_str()).unwrap_or_default().to_owned()
}

/// Waits until rank `rank` has no process any more; how long that took.
async fn gone(fleet: &Fleet, rank: u32, limit: Duration) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    while ranks_of(fleet, rank) > 0 {
        anyhow::ensure!(
            begun.elapsed() < limit,
            "rank {rank} still runs: {:?}",
            fleet.gang_processes()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(begun.elapsed())
}

#[tokio::test]
async fn a_shim_stops_its_member_without_its_agent() -> TestResult {
    let mut fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    let job = api.submit(&gang("shim", "{stop_after: 10s}")).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    assert!(ranks_of(&fleet, 1) > 0, "rank 1 runs on w1");
    // With contact nothing happens, for longer than the time of the policy.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(ranks_of(&fleet, 1) > 0, "a node in contact is left alone");

    fleet.kill_agent("w1")?;
    let took = gone(&fleet, 1, Duration::from_secs(20)).await?;
    assert!((8.0..14.0).contains(&took.as_secs_f64()), "it took {took:?}");
    // Nobody has said so: the coordinator waits until it must be true.
    let done = api.wait_job(&job, &["FAILED"], Duration::from_secs(60)).await?;
    let reason = done["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("rank 1 on w1 failed: its node gives no word"), "{reason}");
    gone(&fleet, 0, Duration::from_secs(20)).await?;

    // The node comes back and is as good as before.
    fleet.start_agent("w1")?;
    api.wait_node("w1", &["ready"], SHORT).await?;
    let again = api.submit(&gang("again", "keep")).await?;
    api.wait_job(&again, &["RUNNING"], SHORT).await?;
    api.stop(&again).await?;
    api.wait_job(&again, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_node_that_is_cut_off_stops_or_keeps_what_it_runs() -> TestResult {
    if !has_namespaces() {
        return Ok(());
    }
    let agents = ["a", "b"].map(|name| AgentOptions::worker(name, 0)).to_vec();
    let hosted = Hosted::start(built().await?, FleetOptions::default(), agents).await?;
    let (fleet, b) = (&hosted.fleet, hosted.host("b")?);
    let api = fleet.api()?;
    let keeps = api.submit(&gang("keeps", "fence")).await?;
    let stops = api.submit(&gang("stops", "{stop_after: 10s}")).await?;
    for job in [&keeps, &stops] {
        api.wait_job(job, &["RUNNING"], SHORT).await?;
    }
    let policy = api.job(&keeps).await?["on_disconnect"].clone();
    assert!(policy.as_str().is_some_and(|text| text.starts_with("keep")), "{policy}");
    let before = ranks_of(fleet, 1);
    b.cut()?;
    api.wait_node("b", &["lost"], Duration::from_secs(45)).await?;
    let done = api.wait_job(&stops, &["FAILED"], Duration::from_secs(30)).await?;
    let reason = done["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("stop_after 10 s"), "{reason}");
    assert_eq!(api.state(&keeps).await?, "RUNNING");
    assert!((1..before).contains(&ranks_of(fleet, 1)), "one of the two still runs on b");
    b.heal()?;
    api.wait_node("b", &["mixed", "busy"], Duration::from_secs(30)).await?;
    assert_eq!(api.state(&keeps).await?, "RUNNING", "as if nothing had been");
    api.stop(&keeps).await?;
    api.wait_job(&keeps, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_rank_of_a_ray_gang_that_is_cut_off_fences_itself() -> TestResult {
    if !has_namespaces() {
        return Ok(());
    }
    let hosted = Hosted::ray_fleet(built().await?, 2, 4).await?;
    let (fleet, b) = (&hosted.fleet, hosted.host("n2")?);
    let slot = slots::heavy().await?;
    let api = fleet.api()?;
    let job = api.submit(&once(&training("fenced", 4, 1000, 0.6))).await?;
    api.wait_job(&job, &["RUNNING"], RAY).await?;
    wait_steps(fleet, &job, 3).await?;
    // Which rank is on n2 does not matter: the other one loses it.
    let its_rank = rank_on(&api.job(&job).await?, "n2")?;
    b.cut()?;
    let cut = Instant::now();
    let took = gone(fleet, its_rank, Duration::from_secs(110)).await?;
    eprintln!("the rank on n2 was gone {took:?} after the cut");
    api.wait_job(&job, &["FAILED"], Duration::from_secs(120)).await?;
    // The coordinator takes it for ended only when that must be true: nobody has asked the node.
    let limit = Instant::now() + Duration::from_secs(150);
    while phase_of(&api.job(&job).await?, its_rank) != "ended" {
        anyhow::ensure!(Instant::now() < limit, "what the lost node held is not given up");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    eprintln!("it was given up {:?} after the cut", cut.elapsed());
    drop(slot);
    b.heal()?;
    api.wait_node("n2", &["ready"], Duration::from_secs(30)).await?;
    fleet.assert_clean().await
}
