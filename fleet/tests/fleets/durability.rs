//! I5: an acknowledged submit survives kill -9, and one idempotency key never makes two jobs; F17: nor is
//! anything lost when the coordinator's disk is nearly full.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::disk::SmallDisk;
use crate::support::{SHORT, TestResult, built, command};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};

/// Fifty times: submit, kill in the next instant, start, submit again with the same key.
#[tokio::test]
async fn fifty_kills_lose_nothing_and_double_nothing() -> TestResult {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    let api = fleet.api()?;
    let spec = command("kept", 1, r#"["true"]"#);
    let mut acknowledged: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..50u32 {
        let key = format!("round-{round}");
        let headers = [("content-type", "application/yaml"), ("idempotency-key", key.as_str())];
        let submitting = {
            let (api, spec, key) = (api.clone(), spec.clone(), key.clone());
            tokio::spawn(async move {
                let headers =
                    [("content-type", "application/yaml"), ("idempotency-key", key.as_str())];
                api.post("/api/v1/jobs", &headers, &spec).await
            })
        };
        // Kill before, in the middle of, or after the commit.
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 150)).await;
        let answered = match round % 2 {
            0 => submitting.await?.ok(),
            _ => None,
        };
        fleet.kill_coordinator()?;
        if let Some((status, answer)) = answered {
            assert_eq!(status, 201, "{answer}");
            let id = answer["job"]["id"].as_str().unwrap_or_default().to_owned();
            acknowledged.insert(key.clone(), id);
        }
        fleet.start_coordinator().await?;
        if let Some(id) = acknowledged.get(&key) {
            assert_eq!(api.job(id).await?["id"], id.as_str(), "round {round} lost {id}");
        }
        let (status, answer) = api.post("/api/v1/jobs", &headers, &spec).await?;
        assert!(status == 200 || status == 201, "{status}: {answer}");
        let id = answer["job"]["id"].as_str().unwrap_or_default().to_owned();
        if let Some(first) = acknowledged.insert(key, id.clone()) {
            assert_eq!(first, id, "round {round}: one key made two jobs");
        }
    }
    let jobs = api.get("/api/v1/jobs?page_size=1000").await?;
    let count = jobs["jobs"].as_array().map_or(0, Vec::len);
    assert_eq!(count, 50, "fifty keys made {count} jobs");
    Ok(())
}

/// The last number that a job has counted up to, as the coordinator has it.
async fn counted(fleet: &Fleet, job: &str) -> anyhow::Result<u32> {
    let log = fleet.api()?.logs(job, "").await?;
    Ok(log.lines().filter_map(|line| line.trim().parse().ok()).max().unwrap_or(0))
}

/// Waits for a job to be counted up to more than `before`.
async fn wait_counted(fleet: &Fleet, job: &str, before: u32) -> TestResult {
    let end = Instant::now() + SHORT;
    while counted(fleet, job).await? <= before {
        anyhow::ensure!(Instant::now() < end, "no line after {before}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_nothing_new_and_loses_nothing() -> TestResult {
    let options =
        FleetOptions { coordinator_config: "reserve_mib = 16\n".to_owned(), ..Default::default() };
    let mut fleet = Fleet::start(built().await?, options).await?;
    fleet.stop_coordinator()?;
    let _disk = SmallDisk::below(&fleet.state_dir(), 64)?;
    fleet.start_coordinator().await?;
    for name in ["w0", "w1"] {
        fleet.add_agent(AgentOptions::worker(name, 0)).await?;
    }
    let api = fleet.api()?;
    let end_file = fleet.path("end");
    let count = format!(
        "i=0; while [ ! -e {} ]; do i=$((i+1)); echo $i; sleep 0.05; done; echo $i",
        end_file.display()
    );
    let count = serde_json::to_string(&["sh", "-c", &count])?;
    let job = api.submit(&command("counts", 1, &count)).await?;
    let other = api.submit(&command("sleeps", 1, r#"["sleep", "300"]"#)).await?;
    api.wait_job(&other, &["RUNNING"], SHORT).await?;
    wait_counted(&fleet, &job, 0).await?;

    let filler = fleet.state_dir().join("others");
    std::fs::write(&filler, vec![1; 52 << 20])?;
    let refused = async || {
        let headers = [("content-type", "application/yaml")];
        api.post("/api/v1/jobs", &headers, &command("new", 1, r#"["true"]"#)).await
    };
    let end = Instant::now() + SHORT;
    let answer = loop {
        let (status, answer) = refused().await?;
        match status {
            507 => break answer,
            201 => anyhow::ensure!(Instant::now() < end, "a full disk is not noticed"),
            _ => anyhow::bail!("{status}: {answer}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(answer["code"], "E0342", "{answer}");
    assert!(answer["detail"].as_str().is_some_and(|text| text.contains("16 MiB are kept")));
    // One batch may have been under way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let until_then = counted(&fleet, &job).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(counted(&fleet, &job).await?, until_then, "its log grows on a full disk");
    // What happens to jobs is still written down.
    assert_eq!(api.state(&job).await?, "RUNNING");
    api.stop(&other).await?;
    assert_ne!(api.state(&other).await?, "RUNNING");

    std::fs::remove_file(&filler)?;
    wait_counted(&fleet, &job, until_then).await?;
    api.wait_job(&other, &["CANCELLED"], SHORT).await?;
    std::fs::write(end_file, "")?;
    api.wait_job(&job, &["SUCCEEDED"], SHORT).await?;
    let log = api.logs(&job, "").await?;
    let numbers: Vec<u32> = log.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let last = numbers.last().copied().unwrap_or(0);
    let whole: Vec<u32> = (1..=last).chain([last]).collect();
    assert_eq!(numbers, whole, "lines are missing or twice");
    Ok(())
}
