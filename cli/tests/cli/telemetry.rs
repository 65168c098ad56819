//! `top` without a terminal, `node ls -w`, `node health` and `metrics`.

use serde_json::{Value, json};

use crate::answers::{nodes, running, unexpected};
use crate::server::{Server, command, finish, json as answer, problem, run};

/// The nodes with what ails the first of them.
fn ill() -> Value {
    let mut all = nodes();
    all["nodes"][0]["health"] = "unhealthy".into();
    all["nodes"][0]["conditions"] = json!([
        {"rule": "xid_fatal", "component": "gpu:GPU-1", "level": "fatal", "reason": "Xid 79: fallen off the bus",
         "evidence": "Xid 79 at 03:04:05", "since": "2099-01-02T03:04:05Z", "action": "REBOOT_SYSTEM",
         "clears": "a reboot and a passed check", "shadow": false, "cleared": false},
        {"rule": "pcie_width", "component": "gpu:GPU-0", "level": "degraded", "reason": "x8 of x16",
         "evidence": "", "since": "2099-01-02T03:04:05Z", "action": "IGNORE_NO_ACTION_REQUIRED",
         "clears": "", "shadow": true, "cleared": false},
    ]);
    all["nodes"][1]["health"] = "healthy".into();
    all["nodes"][1]["conditions"] = json!([]);
    all
}

fn metrics() -> Value {
    let gpu = |uuid: &str, base: f64| {
        json!({"uuid": uuid, "series": {
            "utilization_pct": [base, null, base + 20.0], "memory_used_bytes": [1 << 30, 1 << 30, 2_u64 << 30],
            "power_w": [300, 400, 600.5], "temperature_c": [50, 55, 60], "sm_active": [null, null, null],
        }})
    };
    let member = |name: &str, rank: &str, base: f64| {
        json!({"node": format!("n-{name}"), "name": name, "member": rank,
            "time_ms": [1_000_000, 1_010_000, 1_020_000], "dropped": [0, 0, 0],
            "host": {"cpu_busy_pct": [10, 20, 30], "rdma_bytes_per_s": [1e9, 2e9, 4e9]},
            "gpus": [gpu(&format!("GPU-{rank}"), base)]})
    };
    json!({"job": "j-7f3k2", "attempt": 2, "step_s": 10, "shared": false,
        "members": [member("gpu-0203", "0", 40.0), member("gpu-0205", "1", 60.0)]})
}

fn server() -> Server {
    Server::start(|asked, number| match asked.line().as_str() {
        "GET /api/v1/nodes" if asked.query.get("pool").is_some_and(|pool| pool == "none") => {
            problem(404, "E0370", "No such pool")
        }
        "GET /api/v1/nodes" if number < 4 => answer(200, &ill()),
        "GET /api/v1/nodes" => problem(403, "E0304", "No"),
        "GET /api/v1/nodes/gpu-0203" => answer(200, &ill()["nodes"][0]),
        "GET /api/v1/jobs/j-7f3k2" => answer(200, &running()),
        "GET /api/v1/jobs" => answer(200, &json!({"jobs": [running()], "next_page_token": null})),
        "GET /api/v1/jobs/j-7f3k2/metrics" => answer(200, &metrics()),
        "GET /api/v1/jobs/none" => problem(404, "E0306", "No such job"),
        _ => unexpected(),
    })
}

#[test]
fn node_health_says_what_ails_which_part_and_what_to_do() {
    let server = server();
    let ended = run(&server, &["node", "health"]);
    assert_eq!(
        ended.stdout,
        "\
NODE      HEALTH     RULE        COMPONENT  LEVEL     SINCE                       ACTION                     REASON
gpu-0203  unhealthy  xid_fatal   gpu:GPU-1  fatal     2099-01-02 03:04:05 +00:00  REBOOT_SYSTEM              Xid 79: fallen off the bus
gpu-0203  unhealthy  pcie_width  gpu:GPU-0  degraded  2099-01-02 03:04:05 +00:00  IGNORE_NO_ACTION_REQUIRED  only watched: x8 of x16
"
    );
    assert_eq!(ended.stderr, "1 of 2 node(s) with conditions, 2 judged\n");
    let json = run(&server, &["node", "health", "--json"]).json();
    assert_eq!(json["nodes"][0]["conditions"], ill()["nodes"][0]["conditions"]);
    assert_eq!(json["nodes"][1]["health"], "healthy");
    assert_eq!(run(&server, &["node", "health", "-o", "name"]).stdout, "gpu-0203\n");
    let one = run(&server, &["node", "health", "gpu-0203"]).stdout;
    assert!(one.contains("xid_fatal gpu:GPU-1: evidence: Xid 79 at 03:04:05\n"), "{one}");
    assert!(one.contains("ends with: a reboot and a passed check\n"), "{one}");
    // The list of nodes and the page of one say it too.
    let list = run(&server, &["node", "ls"]).stdout;
    assert!(list.contains("xid_fatal gpu:GPU-1: Xid 79: fallen off the bus"), "{list}");
    let show = run(&server, &["node", "show", "gpu-0203"]).stdout;
    assert!(show.contains("fatal xid_fatal gpu:GPU-1 since 2099"), "{show}");
}

#[test]
fn rules_on_trial_are_shown_with_what_came_of_their_findings() {
    let trials = json!({"trials": [{"rule": "gpu-clock", "found": 9, "confirmed": 3, "refuted": 1, "untold": 5,
    "precision": 0.75, "findings": [
        {"node_id": "n-1", "node": "gpu-0203", "component": "gpu:GPU-1", "since": "2099-01-02T03:04:05Z",
         "outcome": "confirmed", "why": "xid-fatal: Xid 79"},
        {"node_id": "n-2", "node": null, "component": "gpu:GPU-2", "since": "2099-01-02T03:04:05Z",
         "outcome": "untold", "why": null},
    ]}]});
    let said = trials.clone();
    let server = Server::start(move |asked, number| match (asked.line().as_str(), number) {
        ("GET /api/v1/rule-trials", 0..3) => answer(200, &said),
        ("GET /api/v1/rule-trials", _) => answer(200, &json!({"trials": []})),
        _ => unexpected(),
    });
    let ended = run(&server, &["node", "health", "--trials"]);
    assert_eq!(
        ended.stdout,
        "\
RULE       FOUND  CONFIRMED  REFUTED  UNTOLD  PRECISION
gpu-clock  9      3          1        5       75 %

NODE      RULE       COMPONENT  SINCE                       OUTCOME    WHY
gpu-0203  gpu-clock  gpu:GPU-1  2099-01-02 03:04:05 +00:00  confirmed  xid-fatal: Xid 79
n-2       gpu-clock  gpu:GPU-2  2099-01-02 03:04:05 +00:00  untold     -
"
    );
    assert!(ended.stderr.contains("health_trusted"), "{}", ended.stderr);
    assert_eq!(run(&server, &["node", "health", "--trials", "--json"]).json(), trials);
    assert_eq!(run(&server, &["node", "health", "--trials", "-o", "name"]).stdout, "gpu-clock\n");
    let none = run(&server, &["node", "health", "--trials"]);
    assert_eq!(none.stderr, "no rule on trial has found anything\n");
    let both = run(&server, &["node", "health", "gpu-0203", "--trials"]);
    assert_ne!(both.code, 0);
}

#[test]
fn a_watched_list_is_lines_of_what_is_new_where_there_is_no_terminal() {
    let server = Server::start(|asked, number| match (asked.line().as_str(), number) {
        ("GET /api/v1/nodes", 0) => answer(200, &nodes()),
        ("GET /api/v1/nodes", 1) => {
            let mut changed = nodes();
            // The age alone is nothing new.
            changed["nodes"][0]["last_word_ms_ago"] = 9.into();
            changed["nodes"][1]["state"] = "ready".into();
            answer(200, &changed)
        }
        _ => problem(403, "E0304", "No"),
    });
    let ended = run(&server, &["node", "ls", "-w"]);
    let lines: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(&Value, &Value)> = lines.iter().map(|n| (&n["name"], &n["state"])).collect();
    let text = |text: &str| Value::from(text);
    assert_eq!(
        told,
        [
            (&text("gpu-0203"), &text("busy")),
            (&text("gpu-0219"), &text("cordoned")),
            (&text("gpu-0219"), &text("ready")),
        ]
    );
    assert_eq!(ended.code, 4);
}

#[test]
fn lists_can_be_of_one_pool() {
    let server = server();
    assert_eq!(
        run(&server, &["node", "ls", "--pool", "h100-a", "-o", "name"]).stdout,
        "gpu-0203\n"
    );
    assert_eq!(server.asked()[0].query["pool"], "h100-a");
    for words in [&["node", "ls"][..], &["node", "ls", "-w"], &["top"], &["top", "--once"]] {
        let refused = run(&server, &[words, &["--pool", "none"]].concat());
        assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{words:?}");
        assert!(refused.stderr.contains("E0370"), "{words:?}: {}", refused.stderr);
    }
}

#[test]
fn top_without_a_terminal_is_a_plain_snapshot() {
    let server = server();
    let plain = run(&server, &["top"]);
    assert_eq!(plain.code, 0);
    assert_eq!(plain.stdout, run(&server, &["top", "--once"]).stdout);
    assert!(!plain.stdout.contains('\u{1b}'), "{}", plain.stdout);
    let alice = run(&server, &["top", "--user", "alice", "-o", "name"]).stdout;
    assert_eq!(alice, "gpu-0203\n");
    assert_eq!(run(&server, &["top", "--pool", "h100-a", "-o", "name"]).stdout, "gpu-0203\n");
}

#[test]
fn metrics_are_charts_of_one_line() {
    let server = server();
    let ended = run(&server, &["metrics", "j-7f3k2"]);
    assert_eq!(
        ended.stdout,
        "\
j-7f3k2  qwen3-8b-grpo  RUNNING · attempt 2 · 2 node(s), 2 GPU(s) · one value is 10 s
READING      NOW       MEAN      LOW       HIGH      CHART
GPU busy     70%       60%       50%       70%       ▅ ▆
GPU memory   4.0 GiB   2.7 GiB   2.0 GiB   4.0 GiB   ▅▅█
power        1.2kW     867W      600W      1.2kW     ▄▆█
temperature  60°C      55°C      50°C      60°C      ▅▅▅
host CPU     30%       20%       10%       30%       ▂▂▃
RDMA         8.0 GB/s  4.7 GB/s  2.0 GB/s  8.0 GB/s  ▃▅█

GPU busy
  NODE      RANK  GPU    NOW  MEAN  CHART
  gpu-0203  0     GPU-0  60%  50%   ▄ ▅
  gpu-0205  1     GPU-1  80%  70%   ▅ ▇
"
    );
    assert_eq!(run(&server, &["metrics", "j-7f3k2", "-o", "json"]).json(), metrics());
    let asked = server.asked_for("GET /api/v1/jobs/j-7f3k2/metrics");
    assert!(asked[0].query["since"].parse::<u64>().is_ok_and(|since| since > 1_700_000_000_000));
    assert_eq!(run(&server, &["metrics", "none"]).code, 102);
}

#[test]
fn metrics_of_a_job_without_any_say_so() {
    let server = Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/jobs/j-7f3k2" => answer(200, &running()),
        _ => answer(
            200,
            &json!({"job": "j-7f3k2", "attempt": null, "step_s": 10, "shared": false, "members": []}),
        ),
    });
    let mut child = command(&format!("http://{}", server.address), &["metrics", "j-7f3k2"]);
    let ended = finish(child.spawn().unwrap());
    assert_eq!((ended.code, ended.stderr.as_str()), (0, "the job has not run yet\n"));
}

fn check(state: &str) -> Value {
    json!({"job": "j-c1", "state": state, "by": "ops", "pool": "h100-a", "gpus_per_node": 0,
        "begun": "2099-01-02T03:04:05Z", "ended": null, "why": null, "result": null})
}

fn measured() -> Value {
    let mut test = check("measured");
    let node = |name: &str, rate: u64, slow: bool| json!({"id": format!("n-{name}"), "name": name, "bytes_per_s": rate, "latency_us": 18.4, "slow": slow});
    let pair = |a: &str, b: &str, rate: u64| json!({"nodes": [a, b], "bytes_per_s": rate, "latency_us": 20.0});
    test["result"] = json!({
        "backend": "gloo", "versions": {"torch": "1.13.1"}, "message_bytes": 64 << 20,
        "all_reduce": {"bytes_per_s": 900_000_000_u64, "latency_us": 60.2},
        "median_bytes_per_s": 1_000_000_000_u64, "slow": ["gpu-3"],
        "nodes": [node("gpu-1", 1_000_000_000, false), node("gpu-2", 1_000_000_000, false),
            node("gpu-3", 400_000_000, true)],
        "pairs": [pair("gpu-1", "gpu-2", 1_000_000_000), pair("gpu-1", "gpu-3", 400_000_000)],
    });
    test
}

#[test]
fn a_check_is_waited_for_and_names_the_slow_node() {
    let server = Server::start(|asked, number| match asked.line().as_str() {
        "POST /api/v1/node-tests" => answer(201, &check("open")),
        "GET /api/v1/node-tests/j-c1" if number == 1 => answer(200, &check("open")),
        "GET /api/v1/node-tests/j-c1" => answer(200, &measured()),
        "GET /api/v1/node-tests" => answer(200, &json!({"tests": [check("open"), measured()]})),
        "POST /api/v1/nodes/gpu-1/inject" => problem(409, "E0396", "real GPUs"),
        _ => unexpected(),
    });
    let ended = run(&server, &["node", "test", "gpu-1", "gpu-2", "gpu-3", "--timeout", "5m"]);
    assert_eq!((ended.code, ended.stderr.contains("j-c1 measures pool h100-a")), (0, true));
    for line in [
        "  through      gloo (torch 1.13.1)",
        "  all-reduce   900 MB/s over 3 nodes, 60 us; 64.0 MiB each",
        "  slow         gpu-3 (below 70 % of the median)",
        "  gpu-3  400 MB/s  18 us    40%        SLOW",
        "  gpu-1 gpu-3  400 MB/s  20 us",
    ] {
        assert!(ended.stdout.lines().any(|have| have == line), "{line}\n{}", ended.stdout);
    }
    // The newest that is over.
    let last = run(&server, &["node", "test", "--last", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&last.stdout).unwrap(), measured());
    let refused = run(&server, &["node", "test", "gpu-1", "--inject", "kill"]);
    assert_eq!(refused.code, 7, "{}", refused.stderr);
    assert_eq!(run(&server, &["node", "test", "--inject", "kill"]).code, 2, "a node is needed");
    let asked = server.asked();
    let body: Value = serde_json::from_str(&asked[0].body).unwrap();
    assert_eq!(
        (&body["nodes"], &body["timeout_s"]),
        (&json!(["gpu-1", "gpu-2", "gpu-3"]), &json!(300))
    );
}

#[test]
fn a_check_without_a_result_is_an_error_that_says_what_to_do() {
    let mut failed = check("failed");
    failed["why"] = "gpu-2: no PyTorch: install it".into();
    let server = Server::start(move |asked, _| match asked.line().as_str() {
        "POST /api/v1/node-tests" => answer(201, &check("open")),
        "GET /api/v1/node-tests/j-c1" => answer(200, &failed),
        _ => unexpected(),
    });
    let ended = run(&server, &["node", "test", "--pool", "h100-a"]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.stderr.contains("E0916") && ended.stderr.contains("install it"),
        "{}",
        ended.stderr
    );
}
