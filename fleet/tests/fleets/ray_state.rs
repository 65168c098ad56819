//! What a job's own Ray says of itself, through the coordinator: a real cluster on two worker
//! nodes with an actor, a dead actor and placement groups.

use std::time::{Duration, Instant};

use crate::support::{RAY, TestResult, command, ray_fleet};
use anyhow::Context;
use gangline_fleet::api::Api;
use gangline_fleet::slots;
use serde_json::Value;

/// One actor per rank by a placement group, one that dies, one group that cannot be placed.
const PROGRAM: &str = r#"
import time
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as At

ray.init()

@ray.remote(num_cpus=0.1)
class Rollout:
    def ping(self):
        return 1

@ray.remote(num_cpus=0.1)
class Broken:
    def __init__(self):
        raise ValueError("no data here")

pool = placement_group([{"GPU": 1, "CPU": 1}] * 2, name="pool", strategy="STRICT_SPREAD")
ray.get(pool.ready())
workers = [
    Rollout.options(name=f"rollout-{n}", scheduling_strategy=At(pool, n)).remote() for n in (0, 1)
]
ray.get([worker.ping.remote() for worker in workers])
broken = Broken.remote()
never = placement_group([{"GPU": 64}], name="never")
print("cluster", "is made", flush=True)
time.sleep(600)
"#;

fn spec() -> String {
    let program = PROGRAM.replace('\n', "\n  ");
    format!(
        "name: state\nresources: {{nnodes: 2, gpus_per_node: 1}}\nenv: {{HIDDEN: canary-9f2}}\n\
         run: |\n  exec python - <<'EOF'\n  {program}\n  EOF\n"
    )
}

fn entries(list: &Value, key: &str) -> Vec<Value> {
    list[key].as_array().cloned().unwrap_or_default()
}

/// Asks until `fits` is content: Ray learns of a death a moment after it.
async fn until(api: &Api, path: &str, fits: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let list = api.get(path).await?;
        if fits(&list) {
            return Ok(list);
        }
        if Instant::now() >= deadline {
            anyhow::bail!("{path} stays {list}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_jobs_ray_cluster_is_seen_through_the_api() -> TestResult {
    let mut fleet = ray_fleet().await?;
    let slot = slots::heavy().await?;
    let api = fleet.api()?;
    let job = api.submit(&spec()).await?;
    let lists = format!("/api/v1/jobs/{job}/ray");
    api.wait_job(&job, &["RUNNING"], RAY).await?;
    let deadline = Instant::now() + RAY;
    while !api.logs(&job, "").await?.contains("cluster is made") {
        let runs = api.state(&job).await? == "RUNNING" && Instant::now() < deadline;
        anyhow::ensure!(runs, "{}", api.logs(&job, "").await?);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    let nodes = api.get(&format!("{lists}/nodes")).await?;
    assert_eq!((&nodes["total"], &nodes["job"]), (&3.into(), &Value::from(job.as_str())));
    let mut seen: Vec<(String, String)> = Vec::new();
    for node in entries(&nodes, "nodes") {
        assert_eq!((&node["alive"], &node["state"]), (&true.into(), &"ALIVE".into()), "{node}");
        let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
        assert!(!text("address").is_empty() && text("node_id").len() >= 40, "{node}");
        let gpus = if text("member") == "head" { Value::Null } else { 1.0.into() };
        assert_eq!(node["resources"]["GPU"], gpus, "{node}");
        seen.push((text("member"), text("node")));
    }
    seen.sort();
    let members: Vec<&str> = seen.iter().map(|(member, _)| member.as_str()).collect();
    assert_eq!(members, ["0", "1", "head"]);
    assert_eq!(seen[2].1, "head");
    let mut workers = [seen[0].1.as_str(), seen[1].1.as_str()];
    workers.sort_unstable();
    assert_eq!(workers, ["a", "b"]);

    // One actor on each rank, with the process that really is there.
    let alive = api.get(&format!("{lists}/actors?state=alive")).await?;
    let mut places: Vec<(String, String)> = Vec::new();
    for actor in entries(&alive, "actors") {
        // Ray's own, which runs the entrypoint.
        if actor["class"] == "JobSupervisor" {
            assert_eq!(actor["member"], "0", "the entrypoint runs on rank 0");
            continue;
        }
        assert_eq!((&actor["class"], &actor["restarts"]), (&"Rollout".into(), &0.into()));
        let pid = actor["pid"].as_u64().context("pid")?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        assert!(String::from_utf8_lossy(&line).contains("Rollout"), "{pid}");
        assert_eq!(actor["placement_group_id"].as_str().map(str::len), Some(36), "{actor}");
        let text = |key: &str| actor[key].as_str().unwrap_or_default().to_owned();
        places.push((text("name"), text("member")));
        assert_eq!(
            seen.iter().find(|(m, _)| *m == text("member")).map(|s| &s.1),
            Some(&text("node"))
        );
    }
    places.sort();
    let names: Vec<&str> = places.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["rollout-0", "rollout-1"]);
    assert_ne!(places[0].1, places[1].1, "the group is spread");

    let dead =
        until(&api, &format!("{lists}/actors?state=DEAD"), |list| list["total"] == 1).await?;
    let broken = &dead["actors"][0];
    assert_eq!(broken["class"], "Broken");
    assert!(broken["death_cause"].as_str().unwrap_or_default().contains("no data here"), "{dead}");
    let one = api.get(&format!("{lists}/actors?page_size=1")).await?;
    assert_eq!((entries(&one, "actors").len(), &one["total"]), (1, &4.into()));

    let infeasible = |list: &Value| {
        entries(list, "placement_groups").iter().any(|group| group["scheduling"] == "INFEASIBLE")
    };
    let groups = until(&api, &format!("{lists}/placement_groups"), infeasible).await?;
    let group = |name: &str| {
        let all = entries(&groups, "placement_groups");
        all.into_iter().find(|group| group["name"] == name).context("no such group")
    };
    let pool = group("pool")?;
    assert_eq!(pool["state"], "CREATED");
    let mut ranks: Vec<String> = Vec::new();
    for bundle in entries(&pool, "bundles") {
        assert_eq!(bundle["resources"]["GPU"], 1.0);
        ranks.push(bundle["member"].as_str().context("member")?.to_owned());
    }
    ranks.sort();
    assert_eq!(ranks, ["0", "1"]);
    let never = group("never")?;
    assert_eq!(
        (&never["state"], &never["bundles"][0]["member"]),
        (&"PENDING".into(), &Value::Null)
    );
    // A46: values of the job's environment are not in what Ray says.
    let all = format!("{nodes}{alive}{dead}{groups}");
    assert!(!all.contains("canary-9f2"), "{all}");

    // The table of the command says the same.
    let shown = std::process::Command::new(&fleet.binaries.cli)
        .args(["ray", "actors", &job, "--address", &fleet.url(), "--token-file"])
        .arg(fleet.admin_token_file())
        .output()?;
    let table = String::from_utf8(shown.stdout)?;
    assert!(table.contains("rollout-1") && table.contains("no data here"), "{table}");

    // Without the head's agent nobody can be asked; the job runs on, and the next agent can.
    fleet.kill_agent("head")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let problem = loop {
        let headers = [("accept", "application/json")];
        let path = format!("{lists}/nodes");
        let response = api.send(reqwest::Method::GET, &path, &headers, None).await;
        match response {
            Ok(response) if response.status() == 503 => break response.text().await?,
            _ if Instant::now() >= deadline => {
                anyhow::bail!("the agent is gone, yet somebody answers")
            }
            _ => tokio::time::sleep(Duration::from_millis(300)).await,
        }
    };
    assert!(problem.contains("E0362") && problem.contains("head"), "{problem}");
    fleet.start_agent("head")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while api.get(&format!("{lists}/nodes")).await.is_err() {
        anyhow::ensure!(Instant::now() < deadline, "the next agent does not answer");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], Duration::from_secs(90)).await?;
    let (status, problem) = asked(&api, &format!("{lists}/actors")).await?;
    assert_eq!((status, &problem["code"]), (409, &"E0360".into()), "{problem}");
    drop(slot);
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_job_without_ray_says_so() -> TestResult {
    let fleet = crate::support::command_fleet(1).await?;
    let api = fleet.api()?;
    let job = api.submit(&command("plain", 1, r#"["sleep", "600"]"#)).await?;
    api.wait_job(&job, &["RUNNING"], crate::support::SHORT).await?;
    let (status, problem) = asked(&api, &format!("/api/v1/jobs/{job}/ray/nodes")).await?;
    assert_eq!((status, &problem["code"]), (409, &"E0361".into()), "{problem}");
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], crate::support::SHORT).await?;
    fleet.assert_clean().await
}

async fn asked(api: &Api, path: &str) -> anyhow::Result<(u16, Value)> {
    let response = api.send(reqwest::Method::GET, path, &[], None).await?;
    let status = response.status().as_u16();
    Ok((status, serde_json::from_str(&response.text().await?)?))
}
