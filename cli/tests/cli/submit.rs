//! `submit` and `run`: what is sent, safe repeats, and staying until the end.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::answers::{end_event, ended, job, log_event, running, unexpected};
use crate::server::{Asked, Play, Server, json as answer, problem, run};

fn spec(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("grpo.yaml");
    std::fs::write(&path, text).unwrap();
    (dir, path.to_str().unwrap().to_owned())
}

fn pending() -> Play {
    answer(201, &json!({"job": job("j-7f3k2", "grpo", "PENDING")}))
}

/// A server that takes a job, which has ended in `state` at the second look, and its log.
fn taking(state: &'static str, exit_code: Option<i64>) -> Server {
    Server::start(move |asked: &Asked, number| match asked.line().as_str() {
        "POST /api/v1/jobs" => pending(),
        "GET /api/v1/jobs/j-7f3k2" if number == 0 => answer(200, &running()),
        "GET /api/v1/jobs/j-7f3k2" => answer(200, &ended(state, "because", exit_code)),
        "GET /api/v1/jobs/j-7f3k2/logs/stream" => {
            Play::Events(format!("{}{}", log_event(1, 0, "hello\n"), end_event(state)))
        }
        _ => unexpected(),
    })
}

#[test]
fn submit_sends_the_canonical_spec_and_the_command() {
    let (_dir, path) = spec("resources: {nnodes: 2, gpus_per_node: 8}\nrun: echo 'hi'\n");
    let server = taking("SUCCEEDED", None);
    let ended = run(
        &server,
        &["submit", &path, "--env", "A=b c", "--token", "s3cret", "--id", "my-id", "--nnodes", "3"],
    );
    assert_eq!(ended.code, 0);
    assert_eq!(
        ended.stdout,
        "j-7f3k2  grpo  PENDING\n  output       /shared/jobs/j-7f3k2\n  \
         checkpoints  /shared/jobs/j-7f3k2/checkpoints\n  nodes        not placed yet\n  \
         Ray driver   not started yet\n"
    );
    assert_eq!(
        ended.stderr,
        "  logs  gangline logs -f j-7f3k2\n  show  gangline show j-7f3k2\n  stop  gangline stop j-7f3k2\n"
    );
    let asked = server.asked();
    let [posted] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(posted.query["submission_id"], "my-id");
    let sent: Value = serde_json::from_str(&posted.body).unwrap();
    assert_eq!(sent["name"], "grpo");
    assert_eq!(sent["resources"], json!({"nnodes": 3, "gpus_per_node": 8}));
    assert_eq!((&sent["env"]["A"], &sent["run"]), (&json!("b c"), &json!("echo 'hi'")));
    let command = &posted.headers["x-gangline-command"];
    assert!(command.starts_with("gangline%20submit%20/"), "{command}");
    assert!(command.contains("--env%20%27A=b%20c%27%20--token%20%2A%2A%2A%20--id"), "{command}");
    assert!(!command.contains("s3cret"));
    let key = &posted.headers["idempotency-key"];
    assert!(key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit()), "{key}");
    // The formats for programs.
    let ended = run(&server, &["submit", &path, "--json"]);
    assert_eq!(ended.json(), json!({"job": job("j-7f3k2", "grpo", "PENDING")}));
    assert_eq!(ended.stderr, "");
    assert_eq!(run(&server, &["submit", &path, "-o", "name"]).stdout, "j-7f3k2\n");
}

#[test]
fn a_lost_answer_is_asked_for_again_with_the_same_key() {
    let (_dir, path) = spec("run: hi\n");
    let server = Server::start(|_, number| match number {
        0 => Play::Nothing,
        1 => problem(503, "E0316", "The coordinator is shutting down"),
        _ => pending(),
    });
    let ended = run(&server, &["submit", &path]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("trying again (1 of 5)"), "{}", ended.stderr);
    let asked = server.asked_for("POST /api/v1/jobs");
    assert_eq!(asked.len(), 3);
    let same = |what: fn(&Asked) -> &str| asked.iter().all(|other| what(other) == what(&asked[0]));
    assert!(same(|asked| &asked.headers["idempotency-key"]));
    assert!(same(|asked| &asked.body));
    // Another submission has another key.
    run(&server, &["submit", &path]);
    let asked = server.asked_for("POST /api/v1/jobs");
    assert_ne!(asked[3].headers["idempotency-key"], asked[0].headers["idempotency-key"]);
}

#[test]
fn repeats_have_a_bound() {
    let (_dir, path) = spec("run: hi\n");
    let server = Server::start(|_, _| Play::Nothing);
    assert_eq!(run(&server, &["submit", &path]).code, 6);
    let tries = server.asked().len();
    assert!((2..=6).contains(&tries), "{tries}: the first try and at most five repeats");
}

#[test]
fn refusals_are_not_repeated() {
    let (_dir, path) = spec("run: hi\n");
    let server = Server::start(|_, _| problem(409, "E0312", "The checkpoint directory is in use"));
    assert_eq!(run(&server, &["submit", &path]).code, 7);
    assert_eq!(server.asked().len(), 1);
    let server = Server::start(|_, _| {
        answer(
            422,
            &json!({"title": "The job spec is not valid", "code": "E0103", "detail": "d",
                "errors": [{"code": "E0103", "pointer": "/checkpoint/dir", "detail": "not below a root"}]}),
        )
    });
    let ended = run(&server, &["submit", &path]);
    assert_eq!(ended.code, 5);
    assert!(ended.stderr.contains("\n  /checkpoint/dir: not below a root\n"), "{}", ended.stderr);
}

#[test]
fn a_plan_shows_code_and_asks_about_places_without_it() {
    let (dir, path) = spec(
        "code: {snapshot: .}\nreward: {path: reward.py, symbol: f}\nresources: {nnodes: 2}\n\
         run: python reward.py\n",
    );
    std::fs::write(dir.path().join("reward.py"), "def f(*_):\n    return 0.0\n").unwrap();
    let explanation = json!({
        "name": "grpo", "project": "rlhf", "verdict": "now", "reason": null,
        "on": ["gpu-1", "gpu-2"], "start": null, "queue": null, "quotas": [], "nodes": [],
        "helps": [],
    });
    let server = Server::start(move |asked: &Asked, _| match asked.line().as_str() {
        "POST /api/v1/plan" => answer(200, &explanation),
        _ => unexpected(),
    });
    let ended = run(&server, &["plan", &path]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("gpu-1, gpu-2"), "{}", ended.stdout);
    let told = &ended.stderr;
    assert!(told.contains("  code  ") && told.contains("  2 files, "), "{told}");
    let sent: Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!((sent.get("code"), sent.get("reward")), (None, None), "{sent}");
    assert_eq!(sent["resources"]["nnodes"], 2);
    // What it means is shown whole.
    let shown = run(&server, &["plan", &path, "-o", "json"]).json();
    assert_eq!(shown["spec"]["code"]["snapshot"], ".");
    // An archive as well.
    std::fs::write(dir.path().join("code.zip"), "PK").unwrap();
    std::fs::write(&path, "code: {zip: code.zip}\nrun: python a.py\n").unwrap();
    let ended = run(&server, &["plan", &path]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("code.zip, an archive of 2 B"), "{}", ended.stderr);
    let sent: Value = serde_json::from_str(&server.asked().pop().unwrap().body).unwrap();
    assert_eq!(sent.get("code"), None, "{sent}");
}

#[test]
fn a_bad_spec_is_never_sent() {
    let (_dir, path) = spec("rum: hi\n");
    let server = taking("SUCCEEDED", None);
    let ended = run(&server, &["submit", &path]);
    assert_eq!(ended.code, 5);
    assert!(ended.stderr.contains("grpo.yaml:1:1"), "{}", ended.stderr);
    assert!(server.asked().is_empty());
    let ended = run(&server, &["submit", &path, "--json"]);
    let error = ended.json_error();
    assert_eq!(error["errors"][0]["pointer"], "/rum");
    assert_eq!((&error["exit_code"], &error["errors"][0]["line"]), (&json!(5), &json!(1)));
}

#[test]
fn wait_reports_the_result() {
    let (_dir, path) = spec("run: hi\n");
    for (state, own, code, propagated) in [
        ("SUCCEEDED", Some(0), 0, 0),
        ("FAILED", Some(3), 100, 3),
        ("FAILED", None, 100, 100),
        ("CANCELLED", Some(143), 103, 103),
    ] {
        let server = taking(state, own);
        let ended = run(&server, &["submit", &path, "--wait"]);
        assert_eq!(ended.code, code, "{state}");
        assert!(ended.stdout.starts_with(&format!("j-7f3k2  qwen3-8b-grpo  {state}  because\n")));
        assert!(ended.stdout.contains("  Ray driver   gpu-0203\n"), "{}", ended.stdout);
        let nodes = "  Ray nodes    gpu-0203 (head, 10.0.0.3) gpu-0203 (0, 10.0.0.3) gpu-0205 (1, 10.0.0.5, dead)\n";
        assert!(ended.stdout.contains(nodes), "{}", ended.stdout);
        assert_eq!(run(&server, &["submit", &path, "--propagate"]).code, propagated, "{state}");
    }
}

#[test]
fn follow_prints_the_log_alone_to_stdout() {
    let (_dir, path) = spec("run: hi\n");
    let server = taking("FAILED", Some(1));
    let ended = run(&server, &["submit", "-f", &path]);
    assert_eq!((ended.code, ended.stdout.as_str()), (100, "hello\n"));
    assert!(ended.stderr.contains("j-7f3k2 FAILED: because\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("output       /shared/jobs/j-7f3k2\n"), "{}", ended.stderr);
    let lines = run(&server, &["submit", "-f", &path, "-o", "jsonl"]).stdout;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["job"]["id"], "j-7f3k2");
    assert_eq!(lines[1], json!({"attempt": 1, "offset": 0, "text": "hello\n"}));
}

#[test]
fn run_sends_a_command_for_every_node() {
    let server = taking("SUCCEEDED", Some(0));
    let ended = run(&server, &["run", "--nnodes", "2", "--", "echo", "$HOME", "a b"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "hello\n"));
    let sent: Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!(sent["command"], json!(["echo", "$HOME", "a b"]));
    assert_eq!(sent["launcher"]["type"], "command");
    assert_eq!((&sent["resources"]["nnodes"], &sent["name"]), (&json!(2), &json!("echo")));
    let server = taking("FAILED", Some(7));
    assert_eq!(run(&server, &["run", "--", "false"]).code, 100);
    assert_eq!(run(&server, &["run", "--propagate", "--", "false"]).code, 7);
}
