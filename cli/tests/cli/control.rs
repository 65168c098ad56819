//! `hold`, `release`, `requeue`, `set-priority`, `extend`, and what `submit` says about the queue.

use serde_json::{Value, json};

use crate::answers::{ended, job, running, unexpected};
use crate::server::{Ended, Server, json as answer, problem, run};

fn held() -> Value {
    let mut job = job("j-1", "sft", "PENDING");
    let more = json!({
        "reason": "held by alice: check the data", "priority": 60, "timeout_s": 90_000,
        "held": {"by": "alice", "why": "check the data", "since": "2099-01-02T03:04:06Z"},
        "waits_for": ["j-7", "j-8"], "not_before": "2099-01-03T00:00:00.000Z",
        "max_wait_s": 3_600,
    });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job
}

/// A server with a job of alice's that runs, one that is held, and one of bo's.
fn jobs() -> Server {
    Server::start(|asked, _| {
        if asked.method == "POST" && asked.path == "/api/v1/jobs" {
            return answer(201, &json!({"job": held()}));
        }
        let done = |job: Value| answer(200, &json!({"job": job}));
        match asked.line().as_str() {
            "GET /api/v1/whoami" => answer(200, &json!({"user": "alice"})),
            "GET /api/v1/jobs/runs" => answer(200, &running()),
            "GET /api/v1/jobs/@last" => answer(200, &held()),
            "GET /api/v1/jobs/theirs" => {
                let mut job = running();
                job["user"] = "bo".into();
                answer(200, &job)
            }
            "GET /api/v1/jobs/over" => {
                let mut job = ended("FAILED", "", None);
                job["id"] = "j-over".into();
                answer(200, &job)
            }
            "POST /api/v1/jobs/j-1/hold" | "POST /api/v1/jobs/j-1/priority" => done(held()),
            "POST /api/v1/jobs/j-1/release" => done(job("j-1", "sft", "STARTING")),
            "POST /api/v1/jobs/j-7f3k2/hold" => {
                problem(409, "E0380", "The job is not in the queue")
            }
            "POST /api/v1/jobs/j-7f3k2/requeue" => done(job("j-7f3k2", "x", "STOPPING")),
            "POST /api/v1/jobs/j-7f3k2/priority" => done(running()),
            "POST /api/v1/jobs/j-1/extend" => done(held()),
            "POST /api/v1/jobs/j-7f3k2/extend" => {
                problem(409, "E0382", "The time limit cannot be changed so")
            }
            "POST /api/v1/jobs/j-over/extend" => problem(409, "E0314", "The job has already ended"),
            _ => unexpected(),
        }
    })
}

/// The body of the newest request with this line.
fn sent(server: &Server, line: &str) -> Value {
    serde_json::from_str(&server.asked_for(line).pop().unwrap().body).unwrap()
}

fn said(ended: &Ended) -> (i32, &str) {
    (ended.code, ended.stdout.as_str())
}

#[test]
fn a_job_is_held_with_its_reason_and_released() {
    let server = jobs();
    let ended = run(&server, &["hold", "@last", "--reason", "check the data"]);
    assert_eq!(said(&ended), (0, "j-1  PENDING  held by alice: check the data\n"));
    let line = "POST /api/v1/jobs/j-1/hold";
    assert_eq!(sent(&server, line), json!({"reason": "check the data"}));
    assert_eq!(server.asked_for(line)[0].headers["idempotency-key"].len(), 32);
    assert_eq!(said(&run(&server, &["release", "@last"])), (0, "j-1  STARTING\n"));
    // One that cannot be held does not keep the others from it.
    let ended = run(&server, &["hold", "runs", "@last", "-o", "name"]);
    assert_eq!(said(&ended), (7, "j-1\n"));
    assert!(ended.stderr.contains("E0380"), "{}", ended.stderr);
}

#[test]
fn a_requeue_names_the_attempt_and_asks_about_jobs_of_others() {
    let server = jobs();
    let line = "POST /api/v1/jobs/j-7f3k2/requeue";
    assert_eq!(said(&run(&server, &["requeue", "runs"])), (0, "j-7f3k2  STOPPING\n"));
    assert_eq!(sent(&server, line), json!({"attempt": 1}));
    let words = ["requeue", "runs", "--exclude-node", "gpu-1", "--exclude-node", "gpu-2"];
    assert_eq!(run(&server, &[&words[..], &["--reason", "slow"]].concat()).code, 0);
    let body = json!({"attempt": 1, "exclude_nodes": ["gpu-1", "gpu-2"], "reason": "slow"});
    assert_eq!(sent(&server, line), body);
    let ended = run(&server, &["requeue", "theirs"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("belongs to bo"), "{}", ended.stderr);
    assert_eq!(server.asked_for(line).len(), 2);
    assert_eq!(run(&server, &["requeue", "theirs", "--yes"]).code, 0);
}

#[test]
fn the_last_word_of_set_priority_is_the_priority() {
    let server = jobs();
    let ended = run(&server, &["set-priority", "@last", "runs", "high"]);
    assert_eq!(
        said(&ended),
        (0, "j-1  PENDING  held by alice: check the data\nj-7f3k2  RUNNING\n")
    );
    for id in ["j-1", "j-7f3k2"] {
        let line = format!("POST /api/v1/jobs/{id}/priority");
        assert_eq!(sent(&server, &line), json!({"priority": 75}));
    }
    let wrong = run(&server, &["set-priority", "@last", "101"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("use low, normal, high, urgent, or 0 to 100"));
    assert_eq!(run(&server, &["set-priority", "50"]).code, 2, "no job");
}

#[test]
fn extend_sends_the_whole_time() {
    let server = jobs();
    assert_eq!(run(&server, &["extend", "--by", "2h", "@last"]).code, 0);
    assert_eq!(sent(&server, "POST /api/v1/jobs/j-1/extend"), json!({"timeout_s": 97_200}));
    // Neither has a limit; what that means for each of them, the coordinator says.
    for (job, code) in [("runs", "E0382"), ("over", "E0314")] {
        let ended = run(&server, &["extend", "--by", "2h", job]);
        assert_eq!(ended.code, 7);
        assert!(ended.stderr.contains(code), "{}", ended.stderr);
    }
    assert_eq!(sent(&server, "POST /api/v1/jobs/j-over/extend"), json!({"timeout_s": 7_200}));
}

#[test]
fn submit_says_what_the_job_waits_for() {
    let server = jobs();
    let words = [
        "submit",
        "--hold",
        "--after",
        "@last",
        "--after",
        "runs",
        "--not-before",
        "2099-01-03T08:00:00+08:00",
        "--max-wait",
        "90m",
        "--",
        "true",
    ];
    let ended = run(&server, &words);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(
        sent(&server, "POST /api/v1/jobs")["queue"],
        json!({
            "after": ["job:j-1", "job:j-7f3k2"], "hold": true, "max_wait": "1h30m",
            "not_before": "2099-01-03T00:00:00Z",
        })
    );
    let before = jiff::Timestamp::now();
    let dry = run(&server, &["submit", "--dry-run", "--not-before", "now+2h", "--", "true"]);
    let spec: Value = serde_json::from_str(&dry.stdout).unwrap();
    let time: jiff::Timestamp = spec["queue"]["not_before"].as_str().unwrap().parse().unwrap();
    assert!((7_198..7_300).contains(&(time.as_second() - before.as_second())), "{time}");
    let wrong = run(&server, &["submit", "--not-before", "tomorrow", "--", "true"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("2026-12-01T22:00:00+08:00"), "{}", wrong.stderr);
    // Nobody is asked for a plan, so that only names and ids can stand in it.
    let plain = run(&server, &["submit", "--dry-run", "--after", "tokenize", "--", "true"]);
    let spec: Value = serde_json::from_str(&plain.stdout).unwrap();
    assert_eq!(spec["queue"], json!({"after": ["tokenize"]}));
    let odd = run(&server, &["submit", "--dry-run", "--after", "@last", "--", "true"]);
    assert_eq!(odd.code, 5);
    assert!(odd.stderr.contains("`queue.after.0` cannot be `@last`"), "{}", odd.stderr);
}

#[test]
fn show_says_what_keeps_a_job_in_the_queue() {
    let ended = run(&jobs(), &["show", "@last"]);
    for line in [
        "  priority     60\n",
        "  time limit   1d1h\n",
        "  held         by alice since 2099-01-02 03:04:06 +00:00: check the data\n",
        "  waits for    j-7 j-8\n",
        "  not before   2099-01-03 00:00:00 +00:00\n",
        "  max wait     1h\n",
    ] {
        assert!(ended.stdout.contains(line), "{line}: {}", ended.stdout);
    }
}
