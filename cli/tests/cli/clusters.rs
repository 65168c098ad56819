//! `cluster`, and jobs that are submitted to one.

use serde_json::{Value, json};

use crate::answers::{job, unexpected};
use crate::server::{Server, json as answer, run};

fn cluster() -> Value {
    let mut cluster = job("j-c1", "rl-dev", "RUNNING");
    cluster["kind"] = "cluster".into();
    cluster["usage"] = json!({"gpus": 16, "gpus_free": 12, "jobs": ["j-1", "j-2"], "waiting": 3});
    cluster
}

fn server() -> Server {
    Server::start(|asked, _| match asked.line().as_str() {
        "GET /api/v1/jobs" => answer(200, &json!({"jobs": [cluster()], "next_page_token": null})),
        "GET /api/v1/jobs/rl-dev" | "GET /api/v1/jobs/j-c1" => answer(200, &cluster()),
        "GET /api/v1/jobs/train" => answer(200, &job("j-9", "train", "RUNNING")),
        "GET /api/v1/whoami" => answer(200, &json!({"user": "alice"})),
        "POST /api/v1/jobs" => answer(201, &json!({"job": job("j-9", "train", "PENDING")})),
        "POST /api/v1/jobs/j-c1/stop" => {
            let mut stopping = cluster();
            stopping["state"] = "STOPPING".into();
            answer(202, &json!({"job": stopping}))
        }
        _ => unexpected(),
    })
}

#[test]
fn clusters_are_listed_with_what_is_free() {
    let server = server();
    let ended = run(&server, &["cluster", "ls", "-q"]);
    assert_eq!(
        ended.stdout,
        "ID    NAME    USER   STATE    NODES  GPUS  FREE  JOBS  WAITING  AGE  REASON\n\
         j-c1  rl-dev  alice  RUNNING  2      16    12    2     3        0s\n"
    );
    let asked = server.asked();
    assert_eq!(asked[0].query["kind"], "cluster");
    assert_eq!(asked[0].query["state"], "PENDING,STARTING,RUNNING,STOPPING,HELD");
    let listed = run(&server, &["cluster", "ls", "--json", "--all"]).json();
    assert_eq!(listed, json!({"clusters": [cluster()]}));
    assert_eq!(server.asked()[1].query.get("state"), None);
}

#[test]
fn the_address_is_for_the_ray_command() {
    let server = server();
    let ended = run(&server, &["cluster", "address", "rl-dev", "-q"]);
    assert!(ended.stdout.ends_with("/on/rl-dev\n"), "{}", ended.stdout);
    assert!(ended.stdout.starts_with("http://127.0.0.1:"), "{}", ended.stdout);
    let no_cluster = run(&server, &["cluster", "address", "train"]);
    assert_eq!(no_cluster.code, 2);
    assert!(no_cluster.stderr.contains("is a job, not a cluster"), "{}", no_cluster.stderr);
}

#[test]
fn a_cluster_with_jobs_is_not_stopped_without_a_word() {
    let server = server();
    let unanswered = run(&server, &["cluster", "stop", "rl-dev"]);
    assert_eq!(unanswered.code, 1);
    assert!(
        unanswered.stderr.contains("j-1, j-2 of rl-dev will end with it"),
        "{}",
        unanswered.stderr
    );
    assert!(server.asked().iter().all(|asked| !asked.line().starts_with("POST")));
    let stopped = run(&server, &["cluster", "stop", "rl-dev", "--yes"]);
    assert_eq!((stopped.code, stopped.stdout.as_str()), (0, "j-c1  STOPPING\n"));
}

#[test]
fn a_job_is_submitted_to_a_cluster() {
    let server = server();
    let ended = run(&server, &["submit", "--on", "rl-dev", "--gpus", "4", "--", "python", "x.py"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let sent: Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!((&sent["cluster"], &sent["kind"]), (&json!("rl-dev"), &json!("job")));
    let pool = run(&server, &["submit", "--on", "rl-dev", "--pool", "a", "--", "true"]);
    assert_eq!(pool.code, 5);
    assert!(pool.stderr.contains("the nodes of a cluster are given already"), "{}", pool.stderr);
}
