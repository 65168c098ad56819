//! What a training says of itself: `show`, `metrics --step`, and `watch` without a terminal.

use serde_json::{Value, json};

use crate::answers::{log_page, running, unexpected};
use crate::server::{Server, json as answer, run};

fn training(state: &str, step: u64) -> Value {
    let mut job = running();
    job["state"] = state.into();
    job["progress"] = json!({"step": step, "total": 240, "step_time_s": 44.42, "steps_per_s": 0.0225,
        "last_step_age_s": 12, "eta_s": (240 - step) * 44});
    job
}

fn series(step: u64) -> Value {
    json!({"job": "j-7f3k2", "attempt": 1, "progress": training("RUNNING", step)["progress"],
        "names": ["actor/pg_loss", "critic/score/mean"], "too_many_names": false, "every": 1,
        "reset": true, "steps": [step - 2, step - 1, step], "attempts": [1, 1, 1],
        "time_ms": [null, 1000, 2000],
        "values": {"actor/pg_loss": [0.5, null, -0.25], "critic/score/mean": [0.412, 0.42, 0.421_234]},
        "cursor": "1-2-3"})
}

#[test]
fn show_says_how_far_it_is_and_that_it_has_stalled() {
    let server = Server::start(|_, _| {
        let mut job = training("RUNNING", 84);
        job["stalled"] = "2099-01-02T03:20:00Z".into();
        answer(200, &job)
    });
    let shown = run(&server, &["show", "j-7f3k2"]).stdout;
    let progress = "  progress     step 84/240, 44 s a step, the last 12s ago, about 1h54m left\n";
    assert!(shown.contains(progress), "{shown}");
    assert!(shown.contains("  stalled      since 2099-01-02 03:20:00 +00:00\n"), "{shown}");
}

#[test]
fn metrics_by_step_are_a_table_or_values() {
    let server = Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/jobs/j-7f3k2/series" => answer(200, &series(84)),
        "/api/v1/jobs/j-7f3k2" => answer(200, &training("RUNNING", 84)),
        _ => unexpected(),
    });
    assert_eq!(
        run(&server, &["metrics", "j-7f3k2", "--step"]).stdout,
        "\
j-7f3k2  qwen3-8b-grpo  RUNNING · attempt 1 · step 84/240 · 44 s a step · the last 12s ago · about 1h54m left
METRIC             NOW     LOW    HIGH    CHART
actor/pg_loss      -0.25   -0.25  0.5     █ ▁
critic/score/mean  0.4212  0.412  0.4212  ▁▇█
"
    );
    let only = run(&server, &["metrics", "j-7f3k2", "--step", "--csv", "critic"]).stdout;
    assert_eq!(
        only,
        "step,attempt,time_ms,critic/score/mean\n82,1,,0.412\n83,1,1000,0.42\n84,1,2000,0.421234\n"
    );
    let json = run(&server, &["metrics", "j-7f3k2", "--step", "-o", "json", "actor"]).json();
    assert_eq!(json["values"], json!({"actor/pg_loss": [0.5, null, -0.25]}));
    for wrong in [&["--csv"][..], &["--step", "--since", "2m"], &["critic"], &["--step", "nosuch"]]
    {
        let ended = run(&server, &[&["metrics", "j-7f3k2"], wrong].concat());
        assert_eq!(ended.code, 2, "{wrong:?}");
    }
}

/// A job that takes a step and fails.
fn ending() -> Server {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    Server::start(move |asked, _| {
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        // Looked for by its name first, then watched.
        let look = match asked.path.as_str() {
            "/api/v1/jobs/j-7f3k2" => looks.fetch_add(1, relaxed),
            _ => looks.load(relaxed).saturating_sub(1),
        };
        let (state, step) = match look {
            0..=1 => ("RUNNING", 84),
            2 => ("RUNNING", 85),
            _ => ("FAILED", 85),
        };
        match asked.path.as_str() {
            "/api/v1/jobs/j-7f3k2" => answer(200, &training(state, step)),
            "/api/v1/jobs/j-7f3k2/metrics" => answer(200, &json!({"members": []})),
            "/api/v1/jobs/j-7f3k2/logs" => log_page(b"", &asked.query),
            "/api/v1/jobs/j-7f3k2/series" => {
                let mut series = series(step);
                let wanted = asked.query["names"].replace("%2F", "/");
                series["values"].as_object_mut().unwrap().retain(|name, _| *name == wanted);
                answer(200, &series)
            }
            _ => unexpected(),
        }
    })
}

#[test]
fn watch_without_a_terminal_prints_changes_until_the_end() {
    let server = ending();
    let ended = run(&server, &["watch", "j-7f3k2"]);
    assert_eq!(
        ended.stdout,
        "\
2099-01-02 03:04:05 +00:00  PENDING  submitted
2099-01-02 03:04:15 +00:00  RUNNING  all members are up
RUNNING · step 84/240 · critic/score/mean 0.4212 · 44 s a step · the last 12s ago · about 1h54m left
RUNNING · step 85/240 · critic/score/mean 0.4212 · 44 s a step · the last 12s ago · about 1h53m left
FAILED · step 85/240 · 44 s a step · the last 12s ago · about 1h53m left
"
    );
    assert_eq!(ended.code, 100);
    let server = ending();
    let ended = run(&server, &["watch", "j-7f3k2", "-o", "jsonl"]);
    let lines: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["event"]["state"], "PENDING");
    assert_eq!((&lines[2]["progress"]["step"], &lines[2]["stalled"]), (&json!(84), &Value::Null));
    assert_eq!(lines[4]["state"], "FAILED");
}
