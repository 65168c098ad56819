//! `ray`: the lists of a job's Ray cluster as tables, JSON and names.

use serde_json::json;

use crate::answers::unexpected;
use crate::server::{Server, json as answer, problem, run};

fn cluster() -> Server {
    Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/jobs/j-1/ray/nodes" => answer(
            200,
            &json!({"job": "j-1", "attempt": 1, "total": 2, "nodes": [
                {"node_id": "aa", "member": "head", "node": "h", "address": "10.0.0.1",
                 "alive": true, "state": "ALIVE", "state_message": null,
                 "resources": {"memory": 1073741824.0, "node:10.0.0.1": 1.0}},
                {"node_id": "bb", "member": "0", "node": "gpu-01", "address": "10.0.0.2",
                 "alive": false, "state": "DEAD", "state_message": "health check failed",
                 "resources": {"CPU": 4.0, "GPU": 0.5}},
            ]}),
        ),
        "/api/v1/jobs/j-1/ray/actors" => answer(
            200,
            &json!({"job": "j-1", "attempt": 1, "total": 7, "actors": [
                {"actor_id": "a1", "class": "Rollout\u{1b}[2J", "name": "r0", "state": "ALIVE",
                 "member": "0", "node": "gpu-01", "node_id": "bb", "pid": 77, "restarts": 2,
                 "death_cause": null, "placement_group_id": "p1", "resources": {}},
                {"actor_id": "a2", "class": "Rollout", "name": null, "state": "DEAD",
                 "member": null, "node": null, "node_id": null, "pid": null, "restarts": 0,
                 "death_cause": "Traceback\n\nValueError: no data\n", "placement_group_id": null,
                 "resources": {"CPU": 1.0}},
            ]}),
        ),
        "/api/v1/jobs/j-1/ray/placement_groups" => answer(
            200,
            &json!({"job": "j-1", "attempt": 1, "total": 1, "placement_groups": [
                {"placement_group_id": "p1", "name": "pool", "state": "PENDING",
                 "scheduling": "INFEASIBLE", "bundles": [
                    {"index": 0, "resources": {"GPU": 1.0}, "member": "0", "node": "gpu-01",
                     "node_id": "bb"},
                    {"index": 1, "resources": {"GPU": 8.0}, "member": null, "node": null,
                     "node_id": null}]},
            ]}),
        ),
        "/api/v1/jobs/j-2/ray/nodes" => problem(409, "E0361", "The job has no Ray cluster"),
        "/api/v1/jobs/j-3/ray/nodes" => problem(502, "E0366", "Ray did not answer"),
        _ => unexpected(),
    })
}

#[test]
fn lists_are_tables() {
    let server = cluster();
    assert_eq!(
        run(&server, &["ray", "nodes", "j-1"]).stdout,
        "MEMBER  NODE    STATE  ADDRESS   RESOURCES\n\
         head    h       ALIVE  10.0.0.1  memory 1.0 GiB\n\
         0       gpu-01  DEAD   10.0.0.2  CPU 4, GPU 0.5\n"
    );
    let ended = run(&server, &["ray", "actors", "j-1", "-s", "ALIVE", "-n", "2"]);
    assert_eq!(
        ended.stdout,
        "ACTOR  CLASS    NAME  STATE  MEMBER  NODE    PID  RESTARTS  CAUSE OF DEATH\n\
         a1     Rollout  r0    ALIVE  0       gpu-01  77   2         -\n\
         a2     Rollout  -     DEAD   -       -       -    0         ValueError: no data\n"
    );
    assert_eq!(ended.stderr, "2 of 7 are shown; --state and -n choose others\n");
    let asked = server.asked_for("GET /api/v1/jobs/j-1/ray/actors");
    assert_eq!(
        (asked[0].query["state"].as_str(), asked[0].query["page_size"].as_str()),
        ("ALIVE", "2")
    );
    assert_eq!(
        run(&server, &["ray", "pgs", "j-1"]).stdout,
        "PLACEMENT GROUP  NAME  STATE    SCHEDULING  BUNDLES\n\
         p1               pool  PENDING  INFEASIBLE  0: GPU 1 on 0 (gpu-01); 1: GPU 8 waits\n"
    );
    assert!(
        run(&server, &["ray", "nodes", "j-1", "-o", "wide"]).stdout.contains("health check failed")
    );
}

#[test]
fn lists_are_json_and_names() {
    let server = cluster();
    let actors = run(&server, &["ray", "actors", "j-1", "-o", "json"]).json();
    assert_eq!(actors["actors"][1]["death_cause"], "Traceback\n\nValueError: no data\n");
    assert_eq!(run(&server, &["ray", "actors", "j-1", "-o", "name"]).stdout, "a1\na2\n");
    assert_eq!(run(&server, &["ray", "pgs", "j-1", "-o", "name"]).stdout, "p1\n");
}

#[test]
fn a_job_without_a_cluster_is_a_conflict_and_a_silent_one_is_no_outage() {
    let server = cluster();
    let ended = run(&server, &["ray", "nodes", "j-2"]);
    assert_eq!(ended.code, 7, "{}", ended.stderr);
    assert!(ended.stderr.contains("no Ray cluster"), "{}", ended.stderr);
    assert_eq!(run(&server, &["ray", "nodes", "j-3"]).code, 1);
    assert_eq!(run(&server, &["ray", "nodes", "../x"]).code, 2);
}
