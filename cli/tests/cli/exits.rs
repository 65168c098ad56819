//! Every exit code, and the two forms of an error.

use std::net::TcpListener;

use serde_json::json;

use crate::answers::{ended, job, one_job, running, unexpected};
use crate::server::{Server, command, finish, json as answer, problem, run};

/// An address at which nothing answers.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn coordinator_not_reachable_is_6() {
    let address = nowhere();
    let ended = finish(command(&address, &["ps"]).spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (6, ""));
    let expected = format!(
        "error[E0901]: cannot reach the coordinator at {address}\n  why   Connection refused"
    );
    assert!(ended.stderr.starts_with(&expected), "{}", ended.stderr);
    assert!(ended.stderr.contains("\n  hint  "), "{}", ended.stderr);
    let ended = finish(command(&address, &["ps", "--json"]).spawn().unwrap());
    let error = ended.json_error();
    assert_eq!((ended.code, &error["code"], &error["exit_code"]), (6, &json!("E0901"), &json!(6)));
}

#[test]
fn refusals_have_their_codes() {
    let cases = [
        (401, "E0301", 4),
        (403, "E0302", 4),
        (404, "E0306", 102),
        (404, "E0307", 1),
        (409, "E0311", 7),
        (412, "E0399", 7),
        (422, "E0104", 5),
        (422, "E0330", 9),
        (429, "E0304", 1),
        (500, "E0399", 1),
        (503, "E0316", 6),
        (503, "E0313", 1),
    ];
    for (status, code, exit) in cases {
        let server = Server::start(move |_, _| problem(status, code, "The title"));
        let ended = run(&server, &["whoami"]);
        let expected = format!("error[{code}]: The title\n  why   the detail\n  hint  the hint\n");
        assert_eq!((ended.code, ended.stderr), (exit, expected), "{status} {code}");
        let ended = run(&server, &["whoami", "--json"]);
        let error = ended.json_error();
        assert_eq!((ended.code, ended.stdout.as_str()), (exit, ""));
        assert_eq!((&error["code"], &error["status"]), (&json!(code), &json!(status)));
        assert_eq!((&error["detail"], &error["hint"]), (&json!("the detail"), &json!("the hint")));
    }
}

/// A refusal that asks for a wait of so many seconds.
fn too_many(seconds: u32) -> crate::server::Play {
    let crate::server::Play::Answer { status, mut headers, body } =
        problem(429, "E0367", "Too many requests")
    else {
        panic!("a problem is an answer")
    };
    headers.push(("retry-after".to_owned(), seconds.to_string()));
    crate::server::Play::Answer { status, headers, body }
}

#[test]
fn a_read_that_came_too_often_waits_and_is_sent_once_more() {
    let server = Server::start(|asked, number| match (asked.line().as_str(), number) {
        ("GET /api/v1/whoami", 0) => too_many(1),
        ("GET /api/v1/whoami", _) => {
            answer(200, &json!({"user": "alice", "project": "rlhf", "role": "member"}))
        }
        ("GET /api/v1/nodes", _) => too_many(1),
        ("GET /api/v1/tokens", _) => too_many(60),
        ("POST /api/v1/jobs/j-1/stop", _) => too_many(1),
        _ => answer(200, &job("j-1", "a", "RUNNING")),
    });
    let ended = run(&server, &["whoami"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert!(ended.stdout.contains("alice"), "{}", ended.stdout);
    // Not for ever, not when it takes long, and nothing that changes something.
    for (arguments, line, times) in [
        (&["node", "ls"][..], "GET /api/v1/nodes", 2),
        (&["token", "ls"], "GET /api/v1/tokens", 1),
        (&["stop", "j-1", "-y"], "POST /api/v1/jobs/j-1/stop", 1),
    ] {
        let ended = run(&server, arguments);
        assert_eq!(ended.code, 1, "{line}: {}", ended.stderr);
        assert!(ended.stderr.contains("Too many requests"), "{}", ended.stderr);
        assert!(ended.stderr.contains("the hint"), "{}", ended.stderr);
        assert_eq!(server.asked_for(line).len(), times, "{line}");
    }
}

#[test]
fn no_token_says_how_to_give_one() {
    let server = Server::start(|asked, _| match asked.headers.get("authorization") {
        Some(_) => answer(200, &json!({"user": "alice", "project": "rlhf", "role": "admin"})),
        None => answer(401, &json!({})),
    });
    let address = format!("http://{}", server.address);
    let ended =
        finish(command(&address, &["whoami"]).env_remove("GANGLINE_TOKEN").spawn().unwrap());
    assert_eq!(ended.code, 4);
    assert!(ended.stderr.contains("--token-file"), "{}", ended.stderr);
    let ended = run(&server, &["whoami"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "alice, project rlhf, role admin\n"));
    let ended = run(&server, &["whoami", "--token", "other"]);
    assert_eq!(ended.code, 0);
    assert_eq!(server.asked()[2].headers["authorization"], "Bearer other");
}

#[test]
fn what_is_no_coordinator_is_1() {
    let server = Server::start(|_, _| answer(200, &json!("hello")));
    assert_eq!(run(&server, &["show", "j"]).code, 1);
    let server = Server::start(|_, _| crate::server::Play::Answer {
        status: 200,
        headers: Vec::new(),
        body: b"<html>".to_vec(),
    });
    let ended = run(&server, &["ps"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("E0902"), "{}", ended.stderr);
}

#[test]
fn redirects_are_not_followed() {
    let server = Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/whoami" => crate::server::Play::Answer {
            status: 302,
            headers: vec![("location".to_owned(), "/elsewhere".to_owned())],
            body: Vec::new(),
        },
        _ => answer(200, &json!({"user": "x"})),
    });
    assert_eq!(run(&server, &["whoami"]).code, 1);
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn waiting_reports_the_job() {
    let cases = [("SUCCEEDED", 0), ("FAILED", 100), ("TIMEOUT", 100), ("CANCELLED", 103)];
    for (state, code) in cases {
        // The job runs at the first looks and has ended later.
        let server = Server::start(move |asked, number| match asked.path.as_str() {
            "/api/v1/jobs/@last" => answer(200, &running()),
            _ if number == 0 => answer(200, &running()),
            _ => answer(200, &ended(state, "because", None)),
        });
        let ended = run(&server, &["wait", "@last"]);
        assert_eq!(ended.code, code, "{state}");
        assert_eq!(ended.stdout, format!("j-7f3k2  {state}  because\n"));
        assert_eq!(server.asked()[1].path, "/api/v1/jobs/j-7f3k2");
    }
}

#[test]
fn waiting_gives_up_with_101() {
    let server = Server::start(one_job(running()));
    let ended = run(&server, &["wait", "j-7f3k2", "--timeout", "0s"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (101, ""));
    assert!(ended.stderr.contains("has not ended in time"), "{}", ended.stderr);
}

#[test]
fn no_such_job_is_102_for_every_command() {
    let server = Server::start(|_, _| problem(404, "E0306", "No such job"));
    for words in [
        &["wait", "j"][..],
        &["logs", "-f", "j"],
        &["logs", "j"],
        &["show", "j"],
        &["why", "j"],
        &["explain", "j"],
        &["stop", "j"],
        &["stop", "j", "k"],
        &["extend", "--by", "1h", "j"],
        &["stack", "j"],
        &["bundle", "j"],
        &["checkpoint", "ls", "j"],
        &["ray", "nodes", "j"],
        &["metrics", "j"],
        &["watch", "j"],
        &["diff", "j", "k"],
        &["clone", "j"],
        &["events", "--job", "j"],
        &["cluster", "show", "j"],
    ] {
        let ended = run(&server, words);
        assert_eq!(ended.code, 102, "{words:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("E0306"), "{words:?}: {}", ended.stderr);
    }
    // Where there is no coordinator, nobody can say that there is no such job.
    let server = Server::start(|_, _| problem(404, "E0317", "No such address"));
    assert_eq!(run(&server, &["wait", "j"]).code, 1);
}

/// A run with these words on stdin.
fn piped(server: &Server, words: &[&str], stdin: &[u8]) -> crate::server::Ended {
    let mut command = command(&format!("http://{}", server.address), words);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), stdin).unwrap();
    finish(child)
}

#[test]
fn a_job_may_be_named_on_stdin() {
    let server = Server::start(|asked, _| match asked.line().as_str() {
        "GET /api/v1/jobs/j-7f3k2" => answer(200, &running()),
        "GET /api/v1/jobs/j-8" => answer(200, &job("j-8", "eval", "PENDING")),
        "GET /api/v1/jobs/j-7f3k2/why" => answer(200, &json!({"diagnosis": null})),
        _ => problem(404, "E0306", "No such job"),
    });
    let shown = piped(&server, &["show", "-"], b"j-7f3k2\n");
    assert_eq!((shown.code, shown.stdout.lines().next()), (0, Some("j-7f3k2  qwen3-8b-grpo")));
    // A list is shown one by one, as far as it can be.
    let ended = piped(&server, &["show", "-", "-o", "name"], b"j-7f3k2\nnone\nj-8\n");
    assert_eq!((ended.code, ended.stdout.as_str()), (102, "j-7f3k2\nj-8\n"));
    let both = piped(&server, &["show", "-"], b"j-7f3k2 j-8").stdout;
    assert!(both.starts_with(&shown.stdout) && both.contains("\n\nj-8  eval\n"), "{both}");
    let why = piped(&server, &["why", "-", "-o", "name"], b"j-7f3k2\n");
    assert_eq!((why.code, why.stdout.as_str()), (0, "none\n"), "{}", why.stderr);
    let several = piped(&server, &["why", "-"], b"j-7f3k2\nj-8\n");
    assert_eq!(several.code, 2);
    assert!(several.stderr.contains("stdin names 2 jobs"), "{}", several.stderr);
    assert_eq!(piped(&server, &["why", "-"], b"").code, 2, "an empty list");
}

#[test]
fn waiting_survives_a_restart_of_the_coordinator() {
    let server = Server::start(|_, number| match number {
        0 | 1 => answer(200, &running()),
        2 => crate::server::Play::Nothing,
        3 => problem(503, "E0316", "The coordinator is shutting down"),
        _ => answer(200, &ended("SUCCEEDED", "", None)),
    });
    let ended = run(&server, &["wait", "j-7f3k2"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("trying again"), "{}", ended.stderr);
}

#[test]
fn several_jobs_and_the_list_on_stdin() {
    let server = Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/jobs/good" => {
            let mut job = ended("SUCCEEDED", "", None);
            job["id"] = "good".into();
            answer(200, &job)
        }
        "/api/v1/jobs/bad" => {
            let mut job = ended("CANCELLED", "stopped by bo", None);
            job["id"] = "bad".into();
            answer(200, &job)
        }
        _ => problem(404, "E0306", "No such job"),
    });
    let ended = run(&server, &["wait", "good", "bad", "none"]);
    assert_eq!(ended.stdout, "good  SUCCEEDED\nbad  CANCELLED  stopped by bo\n");
    assert_eq!(ended.code, 103);
    let address = format!("http://{}", server.address);
    let mut command = command(&address, &["wait", "-", "-o", "name"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"good\n good\n").unwrap();
    let ended = finish(child);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "good\ngood\n"));
}

#[test]
fn stop_asks_about_jobs_of_others() {
    let stoppable = || {
        Server::start(|asked, _| match asked.line().as_str() {
            "GET /api/v1/whoami" => answer(200, &json!({"user": "alice"})),
            "GET /api/v1/jobs/mine" => answer(200, &running()),
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
            "POST /api/v1/jobs/j-7f3k2/stop" => {
                answer(202, &json!({"job": job("j-7f3k2", "x", "STOPPING")}))
            }
            "POST /api/v1/jobs/j-over/stop" => problem(409, "E0314", "The job has already ended"),
            _ => unexpected(),
        })
    };
    let server = stoppable();
    let ended = run(&server, &["stop", "mine", "--reason", "wrong data"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "j-7f3k2  STOPPING\n"));
    let posted = &server.asked_for("POST /api/v1/jobs/j-7f3k2/stop")[0];
    assert_eq!(posted.body, r#"{"reason":"wrong data"}"#);
    assert_eq!(posted.headers["idempotency-key"].len(), 32);

    let server = stoppable();
    let ended = run(&server, &["stop", "theirs"]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.stderr.contains("belongs to bo") && ended.stderr.contains("--yes"),
        "{}",
        ended.stderr
    );
    assert!(server.asked().iter().all(|asked| asked.method == "GET"));
    assert_eq!(run(&server, &["stop", "theirs", "--yes"]).code, 0);

    let server = stoppable();
    assert_eq!(run(&server, &["stop", "over"]).code, 7);
    // The other jobs are stopped all the same.
    let ended = run(&server, &["stop", "over", "mine", "-o", "name"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (7, "j-7f3k2\n"));
}

#[test]
fn tokens() {
    let server = Server::start(|asked, _| match asked.line().as_str() {
        "POST /api/v1/tokens" => {
            let answered =
                json!({"token": "gx1.a.b.c", "id": "b", "expires": "2099-01-02T03:04:05Z"});
            answer(201, &answered)
        }
        _ => unexpected(),
    });
    let ended = run(&server, &["node", "token", "--uses", "3", "--ttl", "2h", "--pool", "h100-a"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "gx1.a.b.c\n"));
    assert!(ended.stderr.contains("quic://HOST:8265"), "{}", ended.stderr);
    let sent: serde_json::Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!(sent, json!({"kind": "join", "uses": 3, "ttl_s": 7200, "pool": "h100-a"}));
    let ended = run(&server, &["token", "create", "--user", "bo", "--project", "eval", "--json"]);
    assert_eq!(ended.json()["token"], "gx1.a.b.c");
    let sent: serde_json::Value = serde_json::from_str(&server.asked()[1].body).unwrap();
    assert_eq!(
        sent,
        json!({"kind": "api", "name": "bo", "user": "bo", "project": "eval", "role": "member", "ttl_s": null})
    );
}

#[test]
fn a_token_is_never_asked_for_twice() {
    let server = Server::start(|_, _| crate::server::Play::Nothing);
    assert_eq!(run(&server, &["node", "token"]).code, 6);
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn stderr_is_json_too_in_json_mode() {
    let server = Server::start(|_, number| match number {
        0 | 1 => answer(200, &running()),
        2 => crate::server::Play::Nothing,
        _ => answer(200, &running()),
    });
    let ended = run(&server, &["wait", "j-7f3k2", "--timeout", "1s", "--json"]);
    assert_eq!(ended.code, 101);
    let lines: Vec<serde_json::Value> =
        ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, [json!({"warning": "j-7f3k2 has not ended in time; it goes on"})]);
}

#[test]
fn nodes_are_taken_out_of_use_and_back() {
    let server = Server::start(|asked, _| match asked.line().as_str() {
        "POST /api/v1/nodes/gpu-1/cordon" => {
            let cordon = json!({"by": "liu", "why": "fan"});
            answer(200, &json!({"name": "gpu-1", "state": "cordoned", "cordon": cordon}))
        }
        "POST /api/v1/nodes/gpu-1/drain" => {
            let drain = json!({"by": "liu", "why": "fan", "deadline": "2099-01-02T03:04:05Z"});
            answer(200, &json!({"name": "gpu-1", "state": "draining", "drain": drain}))
        }
        "POST /api/v1/nodes/gpu-1/resume" => {
            answer(200, &json!({"name": "gpu-1", "state": "ready"}))
        }
        _ => unexpected(),
    });
    let said = |words: &[&str]| {
        let ended = run(&server, words);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stdout
    };
    let cordon = said(&["node", "cordon", "gpu-1", "--reason", "fan"]);
    assert_eq!(cordon, "gpu-1  cordoned  cordoned by liu: fan\n");
    let drain = said(&["node", "drain", "gpu-1", "--reason", "fan", "--deadline", "2h"]);
    assert_eq!(drain, "gpu-1  draining  drained by liu: fan, until 2099-01-02 03:04:05 +00:00\n");
    said(&["node", "drain", "gpu-1", "--reason", "fan", "--stop-jobs"]);
    said(&["node", "drain", "gpu-1", "--reason", "fan"]);
    assert_eq!(said(&["node", "resume", "gpu-1"]), "gpu-1  ready\n");
    let bodies: Vec<serde_json::Value> =
        server.asked().iter().map(|asked| serde_json::from_str(&asked.body).unwrap()).collect();
    assert_eq!(bodies[1], json!({"reason": "fan", "deadline_s": 7200}));
    assert_eq!(bodies[2], json!({"reason": "fan", "deadline_s": 0}));
    assert_eq!(bodies[3], json!({"reason": "fan"}));
    assert_eq!(run(&server, &["node", "drain", "gpu-1"]).code, 2, "a reason is asked for");
}

#[test]
fn nodes_get_labels_and_lose_them() {
    let server = Server::start(|asked, _| match asked.line().as_str() {
        "PATCH /api/v1/nodes/gpu-1" => {
            answer(200, &json!({"name": "gpu-1", "labels": {"rack": "r12"}}))
        }
        _ => unexpected(),
    });
    let ended = run(&server, &["node", "label", "gpu-1", "rack=r12", "note=a=b", "old-"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "gpu-1  rack=r12\n"), "{}", ended.stderr);
    let body: serde_json::Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!(body, json!({"labels": {"rack": "r12", "note": "a=b", "old": null}}));
    for wrong in [&["gpu-1"][..], &["gpu-1", "rack"], &["gpu-1", "=x"], &["gpu-1", "a=1", "a-"]] {
        let words: Vec<&str> = ["node", "label"].iter().chain(wrong).copied().collect();
        assert_eq!(run(&server, &words).code, 2, "{wrong:?}");
    }
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn pools_are_listed_shown_made_and_deleted() {
    let pool = json!({
        "name": "h100-a", "description": "8 x H100", "set_by": "liu", "set": "2099-01-02T03:04:05Z",
        "nodes": 2, "nodes_open": 1, "gpus": 16, "gpus_in_use": 8, "gpus_free": 0,
        "gpu_models": {"NVIDIA H100": 16}, "jobs_waiting": 3,
        "members": [
            {"name": "gpu-1", "state": "busy", "pool_by": "operator", "gpus_total": 8,
             "gpus_in_use": 8, "labels": {"rack": "r12"}},
            {"name": "gpu-2", "state": "drained", "pool_by": "agent", "gpus_total": 8,
             "gpus_in_use": 0, "labels": {}},
        ],
    });
    let server = Server::start(move |asked, _| match asked.line().as_str() {
        "GET /api/v1/pools" => answer(200, &json!({"pools": [pool]})),
        "GET /api/v1/pools/h100-a" | "PATCH /api/v1/pools/h100-a" => answer(200, &pool),
        "GET /api/v1/pools/h10" => crate::server::problem(404, "E0370", "No such pool"),
        "DELETE /api/v1/pools/h100-a" => {
            crate::server::Play::Answer { status: 204, headers: Vec::new(), body: Vec::new() }
        }
        _ => unexpected(),
    });
    assert_eq!(
        run(&server, &["pool", "ls"]).stdout,
        "POOL    NODES  OPEN  GPUS  IN USE  FREE  WAITING  MODELS            DESCRIPTION\n\
         h100-a  2      1     16    8       0     3        16 x NVIDIA H100  8 x H100\n"
    );
    let shown = "h100-a\n  description  8 x H100\n  set          2099-01-02 03:04:05 +00:00 by liu\n  \
        nodes        2, 1 open\n  GPUs         16, 8 in use, 0 free: 16 x NVIDIA H100\n  \
        waiting      3 job(s) name this pool\n\nNodes\n  \
        NODE   STATE    GPUS  IN USE  BY        LABELS\n  \
        gpu-1  busy     8     8       operator  rack=r12\n  \
        gpu-2  drained  8     0       agent\n";
    assert_eq!(run(&server, &["pool", "show", "h100-a"]).stdout, shown);
    assert_eq!(run(&server, &["pool", "show", "h10"]).code, 1);
    let words = ["pool", "set", "h100-a", "--description", "8 x H100", "--add", "gpu-1"];
    assert_eq!(run(&server, &words).stdout, shown);
    let asked = server.asked();
    let body: serde_json::Value = serde_json::from_str(&asked.last().unwrap().body).unwrap();
    assert_eq!(body, json!({"description": "8 x H100", "add": ["gpu-1"], "remove": []}));
    assert_eq!(run(&server, &["pool", "set", "h100-a"]).code, 2, "nothing to change");
    let ended = run(&server, &["pool", "rm", "h100-a"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, "pool h100-a is deleted\n"));
}
