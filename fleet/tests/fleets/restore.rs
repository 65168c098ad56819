//! F46 on real processes: a store of an older copy, or an empty one, disturbs nothing that runs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::{SHORT, TestResult, command, command_fleet};
use anyhow::Context;
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Notes every polite signal in its directory and goes on.
const STUBBORN: &str = r#"["sh", "-c", "trap 'date >> $GANGLINE_CKPT_DIR/signalled' TERM INT HUP; touch $GANGLINE_CKPT_DIR/up-$NODE_RANK; while :; do sleep 0.2; done"]"#;

/// A gang of this many ranks, small enough for several on one node, but not on `exclude`.
fn stubborn(name: &str, nnodes: u32, exclude: &str) -> String {
    format!(
        "name: {name}\nresources: {{nnodes: {nnodes}, cpus_per_node: 0.5, memory_per_node: \
         64MiB, exclude_nodes: [{exclude}]}}\nlauncher: {{type: command}}\ncommand: {STUBBORN}\ngrace_period: 1s\nretry: {{max: 0}}\n"
    )
}

/// A command of the coordinator beside `serve`, on the fleet's state directory.
fn coordinator(fleet: &Fleet, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(&fleet.binaries.coordinator);
    command.arg(arguments[0]).arg("--config").arg(fleet.path("coordinator.toml"));
    command.arg("--state-dir").arg(fleet.state_dir()).args(&arguments[1..]);
    Ok(command.output()?)
}

/// The same, which must succeed; what it printed.
fn done(fleet: &Fleet, arguments: &[&str]) -> anyhow::Result<String> {
    let output = coordinator(fleet, arguments)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let problem = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{arguments:?}: {}: {problem}", output.status);
    Ok(text)
}

/// The shells of the gangs; what they run in between comes and goes, and looks like its shell for a
/// moment.
fn shells(fleet: &Fleet) -> BTreeSet<u32> {
    let found = fleet.gang_processes();
    let all: BTreeSet<u32> =
        found.into_iter().filter(|p| p.command.contains("signalled")).map(|p| p.pid).collect();
    let is_shell = |pid: &&u32| parent(**pid).is_some_and(|parent| !all.contains(&parent));
    all.iter().filter(is_shell).copied().collect()
}

/// `None` when it has gone.
fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Every file that the gangs have written, by name.
fn written(fleet: &Fleet, start: &str) -> usize {
    let jobs = std::fs::read_dir(fleet.shared_root().join("jobs")).into_iter().flatten().flatten();
    let directories = jobs.map(|job| job.path().join("checkpoints"));
    let files =
        directories.flat_map(|path| std::fs::read_dir(path).into_iter().flatten().flatten());
    files.filter(|file| file.file_name().to_string_lossy().starts_with(start)).count()
}

/// Submits a gang that nothing but a forced end ends, and waits until all of it is up.
async fn run(
    fleet: &Fleet,
    api: &Api,
    name: &str,
    nnodes: u32,
    exclude: &str,
) -> anyhow::Result<String> {
    let up = written(fleet, "up-") + nnodes as usize;
    let job = api.submit(&stubborn(name, nnodes, exclude)).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    wait_up(fleet, up).await?;
    Ok(job)
}

async fn wait_up(fleet: &Fleet, wanted: usize) -> TestResult {
    for _ in 0..200 {
        if written(fleet, "up-") >= wanted {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!("{} of {wanted} ranks are up", written(fleet, "up-"))
}

async fn unknown(api: &Api, node: &str) -> anyhow::Result<Vec<String>> {
    let node: Value = api.get(&format!("/api/v1/nodes/{node}")).await?;
    let members = node["unknown_members"].as_array().context("unknown_members")?;
    Ok(members.iter().filter_map(|member| member.as_str()).map(str::to_owned).collect())
}

/// Waits until a node shows this many members that the store does not know.
async fn wait_unknown(api: &Api, node: &str, wanted: usize) -> anyhow::Result<Vec<String>> {
    for _ in 0..300 {
        let shown = unknown(api, node).await?;
        if shown.len() == wanted {
            return Ok(shown);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("{node} shows {:?}", unknown(api, node).await?)
}

async fn resume(api: &Api, node: &str) -> TestResult {
    let headers = [("content-type", "application/json")];
    let (status, answer) =
        api.post(&format!("/api/v1/nodes/{node}/resume"), &headers, "{}").await?;
    anyhow::ensure!(status == 200, "resume {node}: {status}: {answer}");
    Ok(())
}

#[tokio::test]
async fn f46_a_store_of_before_the_jobs_signals_nothing_and_the_way_back_adopts_them() -> TestResult
{
    let mut fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    let old = run(&fleet, &api, "old", 1, "").await?;
    // Waits in the copy; it starts on a third node that joins after it.
    let wide = api.submit(&stubborn("wide", 3, "")).await?;
    let copy = fleet.path("copy");
    let copy = copy.to_str().context("path")?;
    let made = done(&fleet, &["backup", copy])?;
    assert!(made.contains("2 jobs"), "{made}");
    let again = coordinator(&fleet, &["backup", copy])?;
    let problem = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && problem.contains("never overwrites"), "{problem}");

    fleet.add_agent(AgentOptions::worker("w2", 0)).await?;
    api.wait_job(&wide, &["RUNNING"], SHORT).await?;
    let new = run(&fleet, &api, "new", 2, "w2").await?;
    wait_up(&fleet, 6).await?;
    let running = shells(&fleet);
    assert_eq!(running.len(), 6, "{running:?}");

    // Not while it serves.
    let refused = coordinator(&fleet, &["restore", copy])?;
    let problem = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && problem.contains("Stop it first"), "{problem}");

    fleet.stop_coordinator()?;
    let restored = done(&fleet, &["restore", copy])?;
    assert!(restored.contains("era 2") && restored.contains("1 job(s) wait"), "{restored}");
    fleet.start_coordinator().await?;
    for node in ["w0", "w1"] {
        let shown = wait_unknown(&api, node, 2).await?;
        assert!(shown.iter().all(|mark| mark.contains(":1.1:")), "{shown:?}");
    }
    api.wait_job(&old, &["RUNNING"], SHORT).await?;
    let (status, _) = api.post(&format!("/api/v1/jobs/{new}/stop"), &[], "").await?;
    assert_eq!(status, 404, "the store does not know this job");
    // Time for every timer that could do harm.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(api.state(&wide).await?, "PENDING");
    assert_eq!(shells(&fleet), running, "a process has gone or come");
    assert_eq!(written(&fleet, "signalled"), 0, "something was signalled");

    // An operator opens the nodes too early: nothing is placed beside what is not known.
    for node in ["w0", "w1"] {
        resume(&api, node).await?;
    }
    let late = api.submit(&command("late", 1, r#"["true"]"#)).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let waits = api.job(&late).await?;
    assert_eq!(waits["state"], "PENDING", "{waits}");
    let reason = waits["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("this store does not know"), "{reason}");
    assert_eq!(shells(&fleet), running);

    // What the copy knows can be ended, under the new era.
    api.stop(&old).await?;
    api.wait_job(&old, &["CANCELLED"], SHORT).await?;
    assert_eq!(shells(&fleet).len(), 5);

    // The way back: the store that was replaced knows all of them.
    fleet.stop_coordinator()?;
    let kept = replaced(&fleet.state_dir())?;
    let restored = done(&fleet, &["restore", &kept])?;
    assert!(restored.contains("era 3"), "{restored}");
    fleet.start_coordinator().await?;
    // Its agent has ended, because the copy did not know its identity; its members have not.
    fleet.kill_agent("w2")?;
    fleet.start_agent("w2")?;
    for node in ["w0", "w1", "w2"] {
        resume(&api, node).await?;
        api.wait_node(node, &["ready", "mixed"], SHORT).await?;
        wait_unknown(&api, node, 0).await?;
    }
    for job in [&wide, &new] {
        api.wait_job(job, &["RUNNING"], SHORT).await?;
    }
    // It had run when that was written, and was ended since.
    api.wait_job(&old, &["FAILED"], SHORT).await?;
    assert_eq!(shells(&fleet).len(), 5);
    for job in [&wide, &new] {
        api.stop(job).await?;
        api.wait_job(job, &["CANCELLED"], SHORT).await?;
    }
    fleet.assert_clean().await
}

/// The store that the last restore has kept.
fn replaced(state_dir: &Path) -> anyhow::Result<String> {
    let names = std::fs::read_dir(state_dir)?.flatten().map(|entry| entry.path());
    let kept = names.filter(|path| path.to_string_lossy().contains(".replaced-")).max();
    Ok(kept.context("no replaced store")?.to_string_lossy().into_owned())
}

/// Somebody starts a coordinator on an empty directory at the same address.
#[tokio::test]
async fn f46_an_empty_store_started_by_mistake_signals_nothing() -> TestResult {
    let mut fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let job = run(&fleet, &api, "kept", 1, "").await?;
    let running = shells(&fleet);
    fleet.stop_coordinator()?;
    let (right, aside) = (fleet.state_dir(), fleet.path("aside"));
    std::fs::rename(&right, &aside)?;
    fleet.start_coordinator().await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let nodes = fleet.api()?.get("/api/v1/nodes").await?;
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(0), "{nodes}");
    assert_eq!(shells(&fleet), running);
    assert_eq!(written(&fleet, "signalled"), 0, "something was signalled");

    fleet.stop_coordinator()?;
    std::fs::remove_dir_all(&right)?;
    std::fs::rename(&aside, &right)?;
    fleet.start_coordinator().await?;
    api.wait_node("w0", &["mixed"], SHORT).await?;
    assert_eq!(api.state(&job).await?, "RUNNING");
    assert_eq!(shells(&fleet), running);
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

/// An operator ends an unknown gang on its node; then the node is as any other.
#[tokio::test]
async fn an_unknown_gang_that_was_ended_by_hand_makes_its_node_free() -> TestResult {
    let mut fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let copy = fleet.path("copy");
    let copy = copy.to_str().context("path")?;
    done(&fleet, &["backup", copy])?;
    run(&fleet, &api, "lost", 1, "").await?;
    fleet.stop_coordinator()?;
    done(&fleet, &["restore", copy])?;
    fleet.start_coordinator().await?;
    wait_unknown(&api, "w0", 1).await?;
    for process in fleet.gang_processes() {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).context("a pid")?;
        // The processes below may have gone with the shell.
        let _ = kill_process(pid, Signal::KILL);
    }
    wait_unknown(&api, "w0", 0).await?;
    resume(&api, "w0").await?;
    let next = api.submit(&command("next", 1, r#"["true"]"#)).await?;
    api.wait_job(&next, &["SUCCEEDED"], SHORT).await?;
    assert_eq!(shells(&fleet), BTreeSet::new());
    Ok(())
}
