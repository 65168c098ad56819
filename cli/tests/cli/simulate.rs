//! `simulate --from-history`: the coordinator's own jobs, as they were and on another fleet.

use serde_json::{Value, json};

use crate::answers::unexpected;
use crate::server::{Server, json as answer, run};

/// A job of one node with 8 GPUs: minutes after noon at which it came, started and ended.
fn past(id: &str, submitted: u32, started: Option<u32>, ended: Option<u32>) -> Value {
    let time = |minute: u32| format!("2026-03-01T{:02}:{:02}:00Z", 12 + minute / 60, minute % 60);
    json!({
        "id": id, "name": "train", "user": "alice", "project": "rlhf", "state": "SUCCEEDED",
        "kind": "job", "cluster": null, "nnodes": 1, "gpus_per_node": 8, "pools": ["h100-a"],
        "priority": 50, "submitted": time(submitted), "started": started.map(time),
        "ended": ended.map(time),
    })
}

/// One node; three jobs of an hour that came at once and ran one after another, and one that waits.
fn coordinator() -> Server {
    Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/jobs" => answer(
            200,
            &json!({"jobs": [
                past("j-4", 30, None, None),
                past("j-3", 0, Some(120), Some(180)),
                past("j-2", 0, Some(60), Some(120)),
                past("j-1", 0, Some(0), Some(60)),
            ], "next_page_token": null}),
        ),
        "/api/v1/nodes" => answer(
            200,
            &json!({"nodes": [
                {"id": "n-1", "name": "gpu-1", "state": "busy", "pool": "h100-a", "gpus_total": 8,
                 "gpus": [{"uuid": "GPU-1", "name": "NVIDIA H100"}]},
                {"id": "n-2", "name": "gpu-2", "state": "revoked", "pool": "h100-a", "gpus_total": 8},
            ]}),
        ),
        "/api/v1/projects" => answer(
            200,
            &json!({"projects": [
                {"name": "rlhf", "quotas": {"h100-a": {"guaranteed": 0, "maximum": 16, "in_use": 8},
                                            "gone": {"guaranteed": 8, "maximum": null, "in_use": 0}}},
            ]}),
        ),
        _ => unexpected(),
    })
}

#[test]
fn history_stands_beside_the_change() {
    let server = coordinator();
    let ended = run(&server, &["simulate", "--from-history", "--add-nodes", "2", "--json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let document = ended.json();
    let rows: Vec<(&str, f64, f64)> = document
        .as_array()
        .expect("an array")
        .iter()
        .map(|row| {
            let number = |key: &str| row[key].as_f64().expect("a number");
            (row["replay"].as_str().expect("text"), number("wait_mean_s"), number("makespan_s"))
        })
        .collect();
    // With two nodes more the quota of 16 GPUs still lets two jobs run at a time.
    assert_eq!(
        rows,
        [
            ("as it was", 3_600.0, 10_800.0),
            ("same fleet", 3_600.0, 10_800.0),
            ("with the change", 1_200.0, 7_200.0),
        ]
    );
    assert_eq!(document[2]["nodes"], 3);

    let wider = ["simulate", "--from-history", "--add-nodes", "2", "--quota", "rlhf=0..24"];
    let table = run(&server, &wider);
    assert_eq!(table.code, 0, "{}", table.stderr);
    let change = table.stdout.lines().find(|line| line.starts_with("with the change"));
    assert!(
        change.is_some_and(|line| line.contains("  1h  ") && line.contains("  0s  ")),
        "{table:?}"
    );
    assert!(table.stderr.contains("1 jobs that have not run to an end are left out"), "{table:?}");
}

#[test]
fn a_quota_that_cannot_be_is_refused() {
    let server = coordinator();
    for (quota, why) in [
        ("rlhf=64", "which has 8"),
        ("rlhf@nowhere=1", "no node is in pool nowhere"),
        ("rlhf=8..4", "and have 4 at most"),
    ] {
        let ended = run(&server, &["simulate", "--from-history", "--quota", quota]);
        assert_eq!(ended.code, 2, "{quota}");
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
}

#[test]
fn a_coordinator_without_a_past_is_told_apart() {
    let server = Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/jobs" => answer(200, &json!({"jobs": [], "next_page_token": null})),
        "/api/v1/nodes" => answer(
            200,
            &json!({"nodes": [{"name": "gpu-1", "state": "ready", "pool": "a", "gpus_total": 8}]}),
        ),
        _ => answer(200, &json!({"projects": []})),
    });
    let ended = run(&server, &["simulate", "--from-history"]);
    assert_eq!(ended.code, 5);
    assert!(ended.stderr.contains("remembers no job with GPUs"), "{}", ended.stderr);
}
