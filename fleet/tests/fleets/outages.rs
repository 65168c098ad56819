//! Coordinator and agent killed in mid-training on real Ray: training does not notice.

use std::time::Duration;

use crate::support::{RAY, TestResult, logged_steps, ray_fleet, steps, training, wait_steps};
use gangline_fleet::slots;

/// F3: coordinator kill -9, back after 60 s. No step lost or repeated, no gap in the log.
#[tokio::test]
async fn the_coordinator_is_killed_and_comes_back() -> TestResult {
    let mut fleet = ray_fleet().await?;
    let slot = slots::heavy().await?;
    let api = fleet.api()?;
    let job = api.submit(&training("outage", 4, 95, 0.7)).await?;
    api.wait_job(&job, &["RUNNING"], RAY).await?;
    wait_steps(&fleet, &job, 5).await?;
    fleet.kill_coordinator()?;
    let before = steps(&fleet, &job).len();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(steps(&fleet, &job).len() > before + 10, "training went on meanwhile");
    fleet.start_coordinator().await?;
    let done = api.wait_job(&job, &["SUCCEEDED"], RAY).await?;
    drop(slot);
    assert_eq!(done["attempts"], 1);
    let expected: Vec<u32> = (1..=95).collect();
    assert_eq!(steps(&fleet, &job), expected);
    let log = api.logs(&job, "").await?;
    assert_eq!(logged_steps(&log), expected, "the log has a gap or a duplicate");
    fleet.assert_clean().await
}

/// F1: agent kill -9 and restart. The same processes go on.
#[tokio::test]
async fn an_agent_is_killed_and_adopts_what_runs() -> TestResult {
    let mut fleet = ray_fleet().await?;
    let slot = slots::heavy().await?;
    let api = fleet.api()?;
    let job = api.submit(&training("adopt", 4, 40, 0.5)).await?;
    api.wait_job(&job, &["RUNNING"], RAY).await?;
    wait_steps(&fleet, &job, 3).await?;
    // What the gang lives on; Ray's spare workers come and go by themselves.
    const LASTING: [&str; 5] = ["ray start", "gcs_server", "/raylet", "ppo_cartpole", "ray::Roll"];
    let pids = |found: Vec<gangline_fleet::process::Found>| {
        let lasting = |command: &str| LASTING.iter().any(|word| command.contains(word));
        let mut pids: Vec<u32> =
            found.iter().filter(|p| lasting(&p.command)).map(|p| p.pid).collect();
        pids.sort_unstable();
        pids
    };
    let before = pids(fleet.gang_processes());
    assert!(before.len() >= 8, "{before:?}");
    for name in ["a", "head"] {
        fleet.kill_agent(name)?;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    for name in ["a", "head"] {
        fleet.start_agent(name)?;
        api.wait_node(name, &["mixed", "busy"], Duration::from_secs(20)).await?;
    }
    let after = pids(fleet.gang_processes());
    let kept = before.iter().filter(|pid| after.contains(pid)).count();
    assert_eq!(kept, before.len(), "before {before:?}, after {after:?}");
    let done = api.wait_job(&job, &["SUCCEEDED"], RAY).await?;
    drop(slot);
    assert_eq!(done["attempts"], 1);
    assert_eq!(steps(&fleet, &job), (1..=40).collect::<Vec<u32>>());
    assert_eq!(logged_steps(&api.logs(&job, "").await?), (1..=40).collect::<Vec<u32>>());
    fleet.assert_clean().await
}
