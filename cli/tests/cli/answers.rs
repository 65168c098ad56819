//! Recorded answers of the coordinator's contract.

use serde_json::{Value, json};

use crate::server::{Play, json as answer, problem};

/// The row of a job. Submitted in a far future, so that its age is always 0 s.
pub fn job(id: &str, name: &str, state: &str) -> Value {
    json!({
        "id": id, "name": name, "user": "alice", "project": "rlhf", "state": state,
        "reason": "", "launcher": "ray", "nnodes": 2, "gpus_per_node": 8, "pools": ["h100-a"],
        "submitted": "2099-01-02T03:04:05Z", "started": null, "ended": null, "attempts": 0,
        "exit_code": null, "directory": "/shared/jobs/j-7f3k2",
        "checkpoint_directory": "/shared/jobs/j-7f3k2/checkpoints", "nodes": [],
        "driver_node": null,
    })
}

/// A running job with all its detail.
pub fn running() -> Value {
    let mut job = job("j-7f3k2", "qwen3-8b-grpo", "RUNNING");
    let more = json!({
        "started": "2099-01-02T03:04:15Z", "attempts": 1, "nodes": ["gpu-0203", "gpu-0205"],
        "driver_node": "gpu-0203",
        "last_checkpoint": {"name": "global_step_40", "made": "2099-01-02T03:09:15Z", "age_s": 250},
        "saved": {
            "newest": {"name": "global_step_20", "step": 20, "bytes": 13_207_024_435_u64, "age_s": 290},
            "count": 2, "bytes": 26_414_048_870_u64, "free_bytes": 21_474_836_480_u64,
            "next_bytes": 13_207_024_435_u64, "is_low": true, "removed": 1,
        },
        "spec": {"run": "true"},
        "submit_command": "gangline submit grpo.yaml",
        "attempt_list": [{
            "number": 1, "epoch": "1.1", "started": "2099-01-02T03:04:06Z", "ended": null,
            "outcome": null, "cause": null, "ray_version": "2.60.0", "ray_session": "session_1",
            "driver": {"node": "gpu-0203", "member": "0", "ray_node_id": "aaaa", "address": "10.0.0.3"},
            "ray_nodes": [
                {"member": "head", "node": "gpu-0203", "ray_node_id": "hhhh", "address": "10.0.0.3", "alive": true, "state_message": ""},
                {"member": "0", "node": "gpu-0203", "ray_node_id": "aaaa", "address": "10.0.0.3", "alive": true, "state_message": ""},
                {"member": "1", "node": "gpu-0205", "ray_node_id": "bbbb", "address": "10.0.0.5", "alive": false, "state_message": "lost"},
            ],
        }],
        "members": [{
            "member": "0", "node": "gpu-0203", "gpus": ["GPU-1", "GPU-2"], "cpus": 16.0,
            "memory_bytes": 68_719_476_736_u64, "ports": {"base": 20000, "size": 256},
            "phase": "running", "pid": 4121, "end": null,
        }],
        "history": [
            {"time": "2099-01-02T03:04:05Z", "state": "PENDING", "actor": "alice", "text": "submitted"},
            {"time": "2099-01-02T03:04:15Z", "state": "RUNNING", "actor": "gangline", "text": "all members are up"},
        ],
    });
    let (map, more) = (job.as_object_mut().unwrap(), more.as_object().unwrap());
    map.extend(more.clone());
    job
}

/// The same job, ended.
pub fn ended(state: &str, reason: &str, exit_code: Option<i64>) -> Value {
    let mut job = running();
    job["state"] = state.into();
    job["reason"] = reason.into();
    job["exit_code"] = json!(exit_code);
    job["ended"] = "2099-01-02T03:05:00Z".into();
    job
}

/// Two nodes: one busy, one cordoned that has not told anything.
pub fn nodes() -> Value {
    let gpu = |index: u64, job: Value| {
        json!({
            "uuid": format!("GPU-{index}"), "index": index, "name": "H100", "in_use": !job.is_null(),
            "memory_bytes": 85_899_345_920_u64, "job": job,
            "sample": {
                "uuid": format!("GPU-{index}"), "utilization_pct": 80.5 + index as f64,
                "memory_used_bytes": 42_949_672_960_u64, "memory_total_bytes": 85_899_345_920_u64,
                "temperature_c": 60.0 + index as f64, "power_w": 612.4, "power_limit_w": null,
                "sm_clock_mhz": null, "memory_clock_mhz": null,
            },
        })
    };
    json!({"nodes": [
        {
            "id": "n-aaaaa", "name": "gpu-0203", "state": "busy", "reachability": "reachable",
            "lifecycle": "online", "cordon": null, "pool": "h100-a", "roles": ["head", "worker"],
            "pool_by": "operator", "labels": {"rack": "r12", "rail": "1"},
            "agent_labels": {"rack": "r1", "rail": "1"}, "operator_labels": {"rack": "r12"},
            "address": "10.0.0.3",
            "gpus": [gpu(0, json!("j-7f3k2")), gpu(1, json!("j-7f3k2"))],
            "gpus_total": 2, "gpus_in_use": 2, "gpus_free": 0, "jobs": ["j-7f3k2"], "cpus": 64.0,
            "memory_bytes": 549_755_813_888_u64, "agent_version": "0.1.0", "last_word_ms_ago": 412,
            "generation": "1.7", "held": "1.7", "unknown_members": [],
        },
        {
            "id": "n-bbbbb", "name": "gpu-0219", "state": "cordoned", "reachability": "reachable",
            "lifecycle": "online", "cordon": {"by": "liu", "why": "fan replacement"}, "pool": null,
            "roles": [], "labels": {}, "address": null, "gpus": [], "gpus_total": null,
            "gpus_in_use": 0, "jobs": [], "cpus": null, "memory_bytes": null,
            "agent_version": null, "last_word_ms_ago": 252_000, "generation": "1.0", "held": null,
            "unknown_members": ["g-1:1.1:0"],
        },
    ]})
}

/// A piece of a log as `GET …/logs` gives it.
pub fn log_page(log: &[u8], query: &std::collections::BTreeMap<String, String>) -> Play {
    let number = |name: &str| query.get(name).map(|value| value.parse::<usize>().unwrap());
    let offset = number("offset").unwrap_or(0).min(log.len());
    let end = offset.saturating_add(number("limit").unwrap_or(1 << 20)).min(log.len());
    let headers = vec![
        ("content-type".to_owned(), "text/plain; charset=utf-8".to_owned()),
        ("x-gangline-next-offset".to_owned(), end.to_string()),
        ("x-gangline-total-bytes".to_owned(), log.len().to_string()),
        ("x-gangline-complete".to_owned(), "false".to_owned()),
    ];
    Play::Answer { status: 200, headers, body: log[offset..end].to_vec() }
}

/// A `log` event of a stream.
pub fn log_event(attempt: u32, offset: usize, text: &str) -> String {
    let data = json!({"attempt": attempt, "offset": offset, "text": text});
    format!("event: log\nid: {}\ndata: {data}\n\n", offset + text.len())
}

/// The `end` event of a stream.
pub fn end_event(state: &str) -> String {
    let data = json!({"state": state, "reason": "", "attempt": 1, "complete": true});
    format!("event: end\ndata: {data}\n\n")
}

/// The answer for whatever a test does not expect.
pub fn unexpected() -> Play {
    problem(404, "E0317", "No such address")
}

/// Plays a job that `GET /api/v1/jobs/ANY` shows, and nothing else.
pub fn one_job(job: Value) -> impl Fn(&crate::server::Asked, usize) -> Play + Send + Sync {
    move |asked, _| match asked.path.strip_prefix("/api/v1/jobs/") {
        Some(rest) if !rest.contains('/') => answer(200, &job),
        _ => unexpected(),
    }
}
