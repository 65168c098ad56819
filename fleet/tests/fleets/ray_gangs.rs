//! Ray gangs on real Ray: where the driver runs, two gangs side by side, a raylet that dies.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{RAY, TestResult, once, ray_fleet, training, wait_steps};
use anyhow::Context;
use gangline_fleet::process::find;
use gangline_fleet::slots;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Two gangs of 2 nodes x 2 GPUs on the same two nodes: disjoint, and one stop does not touch the
/// other.
#[tokio::test]
async fn two_gangs_share_two_nodes() -> TestResult {
    let fleet = ray_fleet().await?;
    let _slots = (slots::heavy().await?, slots::heavy().await?);
    let api = fleet.api()?;
    let first = api.submit(&training("first", 2, 400, 0.5)).await?;
    let second = api.submit(&training("second", 2, 25, 0.2)).await?;
    api.wait_job(&first, &["RUNNING"], RAY).await?;
    let running = api.wait_job(&second, &["RUNNING"], RAY).await?;
    let (mut gpus, mut ports) = (BTreeSet::new(), BTreeSet::new());
    let (mut gpu_count, mut port_count) = (0, 0);
    for job in [&api.job(&first).await?, &running] {
        for member in job["members"].as_array().context("members")? {
            for gpu in texts(&member["gpus"]) {
                gpus.insert(gpu);
                gpu_count += 1;
            }
            let base = member["ports"]["base"].as_u64().context("ports")?;
            let size = member["ports"]["size"].as_u64().context("ports")?;
            ports.extend(base..base + size);
            port_count += size;
        }
    }
    assert_eq!((gpu_count, gpus.len()), (8, 8), "GPU UUIDs are disjoint");
    assert_eq!(ports.len() as u64, port_count, "port blocks are disjoint");

    wait_steps(&fleet, &first, 3).await?;
    wait_steps(&fleet, &second, 3).await?;
    api.stop(&first).await?;
    api.wait_job(&first, &["CANCELLED"], Duration::from_secs(60)).await?;
    let done = api.wait_job(&second, &["SUCCEEDED"], RAY).await?;
    assert_driver_is_on_a_worker(&done)?;
    // Started again, the first one goes on from its training checkpoint only if it is told to:
    // every job has its own directory.
    assert_ne!(api.job(&first).await?["directory"], done["directory"]);
    fleet.assert_clean().await
}

fn assert_driver_is_on_a_worker(job: &Value) -> TestResult {
    let attempt = job["attempt_list"].as_array().and_then(|a| a.last()).context("attempt")?;
    let driver = attempt["driver"]["ray_node_id"].as_str().context("no driver_node_id")?;
    let nodes = attempt["ray_nodes"].as_array().context("ray_nodes")?;
    let at = nodes.iter().find(|node| node["ray_node_id"] == driver).context("unknown node")?;
    assert_eq!(at["member"], "0", "the Ray driver is on rank 0's node");
    assert_eq!(nodes.len(), 3, "head and two workers");
    assert!(["a", "b"].contains(&job["driver_node"].as_str().unwrap_or_default()), "{job}");
    Ok(())
}

/// F26: a raylet killed: the attempt fails with the node's name, and everything else goes.
#[tokio::test]
async fn a_raylet_dies() -> TestResult {
    let fleet = ray_fleet().await?;
    let slot = slots::heavy().await?;
    let api = fleet.api()?;
    let job = api.submit(&once(&training("raylet", 4, 400, 0.3))).await?;
    let running = api.wait_job(&job, &["RUNNING"], RAY).await?;
    wait_steps(&fleet, &job, 2).await?;
    let members = running["members"].as_array().context("members")?;
    let rank_one = members.iter().find(|member| member["member"] == "1").context("rank 1")?;
    let node = rank_one["node"].as_str().context("node")?.to_owned();
    let raylet = fleet
        .gang_processes()
        .into_iter()
        .find(|p| {
            p.command.contains("/raylet/raylet")
                && p.mark.as_ref().is_some_and(|m| m.ends_with(":1"))
        })
        .context("no raylet of rank 1")?;
    let pid = i32::try_from(raylet.pid).ok().and_then(Pid::from_raw).context("pid")?;
    kill_process(pid, Signal::KILL)?;
    let killed = Instant::now();
    let stopping = api.wait_job(&job, &["STOPPING", "FAILED"], Duration::from_secs(15)).await?;
    eprintln!("attempt failed {:.1} s after the kill", killed.elapsed().as_secs_f32());
    let reason = stopping["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains(&format!("on {node}")), "{reason}");
    api.wait_job(&job, &["FAILED"], Duration::from_secs(30)).await?;
    eprintln!("everything gone {:.1} s after the kill: {reason}", killed.elapsed().as_secs_f32());
    drop(slot);
    for name in ["a", "b"] {
        let node = api.get(&format!("/api/v1/nodes/{name}")).await?;
        assert_eq!(node["gpus_in_use"], 0, "{node}");
    }
    assert_eq!(api.job(&job).await?["state"], "FAILED");
    assert!(find("GANGLINE_MARK", running["id"].as_str().unwrap_or("?"), None).is_empty());
    fleet.assert_clean().await
}
