//! Hosts in network and PID namespaces: the Ray driver's address, and a cut that training does not
//! notice (F8, F9).

use std::time::Duration;

use crate::support::{
    RAY, TestResult, built, has_namespaces, logged_steps, steps, training, wait_steps,
};
use anyhow::Context;
use gangline_fleet::slots;
use gangline_fleet::training::Hosted;

#[tokio::test]
async fn an_agent_is_cut_off_for_a_minute() -> TestResult {
    if !has_namespaces() {
        return Ok(());
    }
    let hosted = Hosted::ray_fleet(built().await?, 2, 4).await?;
    let (fleet, [a, b]) = (&hosted.fleet, [hosted.host("n1")?, hosted.host("n2")?]);
    let slot = slots::heavy().await?;

    let api = fleet.api()?;
    let job = api.submit(&training("cut", 4, 110, 0.6)).await?;
    api.wait_job(&job, &["RUNNING"], RAY).await?;
    wait_steps(fleet, &job, 3).await?;
    b.cut_udp(fleet.quic().port())?;
    let before = steps(fleet, &job).len();
    api.wait_node("n2", &["suspect"], Duration::from_secs(10)).await?;
    api.wait_node("n2", &["lost"], Duration::from_secs(45)).await?;
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(api.state(&job).await?, "RUNNING");
    assert!(steps(fleet, &job).len() > before + 20, "training went on meanwhile");
    b.heal_udp(fleet.quic().port())?;
    let node = api.wait_node("n2", &["busy"], Duration::from_secs(15)).await?;
    assert_eq!(node["reachability"], "reachable");

    let done = api.wait_job(&job, &["SUCCEEDED"], RAY).await?;
    drop(slot);
    assert_eq!(done["attempts"], 1);
    let attempt = done["attempt_list"].as_array().and_then(|l| l.first()).context("attempt")?;
    assert_eq!(attempt["epoch"], "1.1");
    let address = attempt["driver"]["address"].as_str().context("driver address")?;
    let workers = [a.address.to_string(), b.address.to_string()];
    assert!(workers.contains(&address.to_owned()), "{address} is not one of {workers:?}");
    let expected: Vec<u32> = (1..=110).collect();
    assert_eq!(steps(fleet, &job), expected);
    assert_eq!(logged_steps(&api.logs(&job, "").await?), expected);
    fleet.assert_clean().await
}
