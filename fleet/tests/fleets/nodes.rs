//! Labels, pools and whole nodes on real processes: agents that say what they are, operators who know
//! better, and command gangs that ask for it.

use std::time::{Duration, Instant};

use crate::support::{SHORT, TestResult, built};
use anyhow::ensure;
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use serde_json::Value;

/// Three workers with two GPUs each: `a` in the pool `cold`, and `b` and `c` in none of their own.
async fn three_workers() -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    for (name, extra) in [
        ("a", &["--pool", "cold", "--label", "rack=r1"][..]),
        ("b", &["--label", "rack=r1"]),
        ("c", &["--label", "rack=r2"]),
    ] {
        let extra = extra.iter().map(|word| word.to_string()).collect();
        fleet.add_agent(AgentOptions { extra, ..AgentOptions::worker(name, 2) }).await?;
    }
    Ok(fleet)
}

/// Runs `gangline`: its exit code and everything that it says.
fn gangline(fleet: &Fleet, words: &[&str]) -> anyhow::Result<(i32, String)> {
    let output = fleet.cli().args(words).env_clear().output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code().unwrap_or(-1), String::from_utf8(said)?))
}

fn done(fleet: &Fleet, words: &[&str]) -> anyhow::Result<String> {
    let (code, said) = gangline(fleet, words)?;
    ensure!(code == 0, "{words:?}: {code}: {said}");
    Ok(said)
}

fn spec(name: &str, resources: &str, script: &str) -> String {
    format!(
        "name: {name}\nresources: {{{resources}}}\nlauncher: {{type: command}}\nrun: {script}\n"
    )
}

fn nodes(job: &Value) -> Vec<&str> {
    let nodes = job["nodes"].as_array().into_iter().flatten();
    nodes.filter_map(Value::as_str).collect()
}

/// Until the job waits for this reason.
async fn waits_because(api: &Api, job: &str, why: &str) -> TestResult {
    let until = Instant::now() + SHORT;
    loop {
        let now = api.job(job).await?;
        if now["reason"].as_str().is_some_and(|reason| reason.contains(why)) {
            ensure!(now["state"] == "PENDING", "{now}");
            return Ok(());
        }
        ensure!(Instant::now() < until, "{why}: {now}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn gangs_run_where_labels_and_pools_say() -> TestResult {
    let mut fleet = three_workers().await?;
    let api = fleet.api()?;

    // The agents' own words: pools, labels, and as many nodes as there are.
    let size = r#"'echo "$GANGLINE_NNODES $NNODES $NODE_RANK"'"#;
    let elastic = spec("elastic", "nnodes: 1..3, gpus_per_node: 2, pool: default", size);
    let elastic = api.submit(&elastic).await?;
    let ended = api.wait_job(&elastic, &["SUCCEEDED"], SHORT).await?;
    assert_eq!(nodes(&ended), ["b", "c"]);
    assert_eq!((&ended["nnodes"], &ended["nnodes_max"]), (&2.into(), &3.into()));
    assert_eq!(api.logs(&elastic, "rank=1").await?, "2 2 1\n");
    let cold = spec("cold", "labels: {rack: r1}, pool: [cold, hot, default]", "exit 0");
    let refused = api.submit(&cold).await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("there is no pool `hot`"), "{refused}");

    // An operator's words go before them, and last over a restart of the coordinator.
    let said = done(&fleet, &["node", "label", "c", "rack=r9", "rail=1"])?;
    ensure!(said.starts_with("c  rack=r9 rail=1\n"), "{said}");
    done(&fleet, &["pool", "set", "hot", "--description", "new machines", "--add", "c"])?;
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    let api = fleet.api()?;
    let shown = done(&fleet, &["pool", "show", "hot"])?;
    ensure!(shown.contains("new machines") && shown.contains("rack=r9 rail=1"), "{shown}");
    let there = spec("there", "gpus_per_node: 1, pool: [cold, hot], labels: {rail: 1}", "exit 0");
    let there = api.submit(&there).await?;
    assert_eq!(nodes(&api.wait_job(&there, &["SUCCEEDED"], SHORT).await?), ["c"]);
    let nowhere = api.submit(&spec("nowhere", "labels: {rack: r2}", "exit 0")).await?;
    waits_because(&api, &nowhere, "no node has rack=r2; rack is one of: r1, r9").await?;
    done(&fleet, &["node", "label", "c", "rack-"])?;
    assert_eq!(nodes(&api.wait_job(&nowhere, &["SUCCEEDED"], SHORT).await?), ["c"]);
    fleet.assert_clean().await
}

#[tokio::test]
async fn a_whole_node_is_whole_and_a_moved_node_keeps_what_runs() -> TestResult {
    let fleet = three_workers().await?;
    let api = fleet.api()?;
    let part = "gpus_per_node: 1, cpus_per_node: 0.1, memory_per_node: 64MiB, pool: default";
    let whole =
        spec("whole", &format!("{part}, labels: {{rack: r1}}, exclusive: true"), "sleep 600");
    let whole = api.submit(&whole).await?;
    let running = api.wait_job(&whole, &["RUNNING"], SHORT).await?;
    assert_eq!(nodes(&running), ["b"]);
    // It shares with nobody who comes, though a GPU and nearly all CPUs are free.
    let beside =
        api.submit(&spec("beside", &format!("{part}, labels: {{rack: r1}}"), "exit 0")).await?;
    waits_because(&api, &beside, "b: another job has the whole node").await?;
    // And it would not have come to a node with company.
    let company = spec("company", &format!("{part}, labels: {{rack: r2}}"), "sleep 600");
    let company = api.submit(&company).await?;
    assert_eq!(nodes(&api.wait_job(&company, &["RUNNING"], SHORT).await?), ["c"]);
    let second =
        spec("second", &format!("{part}, labels: {{rack: r2}}, exclusive: true"), "exit 0");
    let second = api.submit(&second).await?;
    waits_because(&api, &second, "c: 1 job runs there, and this one wants the whole node").await?;
    api.stop(&company).await?;
    assert_eq!(nodes(&api.wait_job(&second, &["SUCCEEDED"], SHORT).await?), ["c"]);

    // The node goes to another pool: its gang runs on, and who waits for it there does not get it.
    done(&fleet, &["pool", "set", "cold", "--add", "b"])?;
    waits_because(&api, &beside, "b: in pool cold").await?;
    assert_eq!(api.state(&whole).await?, "RUNNING");
    api.stop(&whole).await?;
    api.wait_job(&whole, &["CANCELLED"], SHORT).await?;
    done(&fleet, &["pool", "set", "cold", "--remove", "b"])?;
    assert_eq!(nodes(&api.wait_job(&beside, &["SUCCEEDED"], SHORT).await?), ["b"]);
    let (code, said) = gangline(&fleet, &["pool", "set", "cold", "--remove", "a"])?;
    ensure!(code == 7 && said.contains("was not moved to this pool"), "{code}: {said}");
    fleet.assert_clean().await
}
