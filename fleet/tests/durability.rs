//! I5: an acknowledged submit survives kill -9, and one idempotency key never makes two jobs.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_fleet::fleet::{Fleet, FleetOptions};
use support::{TestResult, built, command};

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
