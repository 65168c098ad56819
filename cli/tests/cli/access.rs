//! `token`, `secret` and `audit`: who may come in, what jobs are given, and who did what.

use serde_json::json;

use crate::answers::unexpected;
use std::io::Write;
use std::process::Stdio;

use crate::server::{Play, Server, command, finish, json as answer, run};

fn tokens() -> Server {
    Server::start(|asked, _| match asked.line().as_str() {
        "GET /api/v1/tokens" => answer(
            200,
            &json!({"tokens": [
                {"kind": "api", "name": "alice", "user": "alice", "project": "rlhf",
                 "role": "member", "created": "2099-01-02T03:04:05Z", "expires": null,
                 "expired": false},
                {"kind": "api", "name": "old\u{1b}[2J", "user": "bo", "project": "rlhf",
                 "role": "viewer", "created": "2099-01-02T03:04:05Z",
                 "expires": "2099-01-03T03:04:05Z", "expired": true},
                {"kind": "join", "id": "k3f9", "uses_left": 2, "pool": null,
                 "created_by": "root", "created": "2099-01-02T03:04:05Z",
                 "expires": "2099-01-02T04:04:05Z"},
            ]}),
        ),
        "DELETE /api/v1/tokens/alice" => {
            Play::Answer { status: 204, headers: Vec::new(), body: Vec::new() }
        }
        "DELETE /api/v1/tokens/nobody" => crate::server::problem(404, "E0322", "No such token"),
        "POST /api/v1/tokens" => {
            let expires = "2099-01-03T03:04:05Z";
            answer(201, &json!({"token": "gla_new", "id": "eve", "expires": expires}))
        }
        _ => unexpected(),
    })
}

#[test]
fn tokens_are_listed_without_control_sequences() {
    let server = tokens();
    let ended = run(&server, &["token", "ls"]);
    assert_eq!(
        ended.stdout,
        "NAME   KIND  USER   PROJECT  ROLE    USES LEFT  CREATED                     EXPIRES\n\
         alice  api   alice  rlhf     member  -          2099-01-02 03:04:05 +00:00  never\n\
         old    api   bo     rlhf     viewer  -          2099-01-02 03:04:05 +00:00  2099-01-03 03:04:05 +00:00 (expired)\n\
         k3f9   join  -      -        -       2          2099-01-02 03:04:05 +00:00  2099-01-02 04:04:05 +00:00\n"
    );
    assert_eq!(run(&server, &["token", "ls", "-o", "name"]).stdout, "alice\nold\nk3f9\n");
    let tokens = run(&server, &["token", "ls", "--json"]).json();
    assert_eq!(tokens["tokens"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_token_is_deleted_by_name() {
    let server = tokens();
    let ended = run(&server, &["token", "rm", "alice"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, "alice is deleted\n"));
    let ended = run(&server, &["token", "rm", "nobody"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("E0322"), "{}", ended.stderr);
}

#[test]
fn a_join_token_comes_with_the_command_for_the_node() {
    let ended = run(&tokens(), &["node", "token"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "gla_new\n"));
    let command =
        "gangline-agent run --join quic://HOST:8265 --token-file FILE\n  HOST is this machine";
    assert!(ended.stderr.contains(command), "no node knows this loopback: {}", ended.stderr);
}

#[test]
fn a_new_token_may_expire() {
    let server = tokens();
    let words = ["--user", "eve", "--project", "rlhf", "--role", "viewer", "--ttl", "1d"];
    let ended = run(&server, &[&["token", "create"], &words[..]].concat());
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "gla_new\n"));
    let body: serde_json::Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!(
        body,
        json!({"kind": "api", "name": "eve", "user": "eve", "project": "rlhf", "role": "viewer",
            "ttl_s": 86400})
    );
}

fn audit(intact: bool) -> Server {
    Server::start(move |asked, _| match asked.path.as_str() {
        "/api/v1/audit" => {
            assert_eq!(asked.query["page_size"], "2");
            answer(
                200,
                &json!({"entries": [
                    {"sequence": 9, "at": "2099-01-02T03:04:06Z", "actor": "dave",
                     "source": "127.0.0.1", "action": "job.stop", "object": "job j-1",
                     "detail": "needs the GPUs", "hash": "ab"},
                    {"sequence": 8, "at": "2099-01-02T03:04:05Z", "actor": "join token k3f9",
                     "source": null, "action": "node.join", "object": "node n-1",
                     "detail": "gpu-1", "hash": "cd"},
                ], "next_before": 8}),
            )
        }
        "/api/v1/audit/verify" => {
            let broken = (!intact).then_some("entry 8: it does not follow");
            answer(200, &json!({"intact": intact, "entries": 7, "hash": "ab12", "broken": broken}))
        }
        _ => unexpected(),
    })
}

#[test]
fn the_audit_log_is_a_table() {
    let ended = run(&audit(true), &["audit", "-n", "2"]);
    assert_eq!(
        ended.stdout,
        "AT                          ACTOR            FROM       ACTION     OBJECT    DETAIL\n\
         2099-01-02 03:04:06 +00:00  dave             127.0.0.1  job.stop   job j-1   needs the GPUs\n\
         2099-01-02 03:04:05 +00:00  join token k3f9  -          node.join  node n-1  gpu-1\n"
    );
}

#[test]
fn a_broken_log_is_an_error() {
    let ended = run(&audit(true), &["audit", "verify"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "intact: 7 entries, last hash ab12\n"));
    let ended = run(&audit(false), &["audit", "verify"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("entry 8: it does not follow"), "{}", ended.stderr);
    assert_eq!(run(&audit(false), &["audit", "verify", "--json"]).code, 1);
}

fn secrets() -> Server {
    Server::start(|asked, _| match asked.line().as_str() {
        "GET /api/v1/secrets" => answer(
            200,
            &json!({"project": "rlhf", "secrets": [
                {"name": "HF_TOKEN", "set_by": "alice\u{1b}[2J", "set": "2099-01-02T03:04:05Z"},
            ]}),
        ),
        "PUT /api/v1/secrets/HF_TOKEN" | "DELETE /api/v1/secrets/HF_TOKEN" => {
            Play::Answer { status: 204, headers: Vec::new(), body: Vec::new() }
        }
        "DELETE /api/v1/secrets/USED" => crate::server::problem(409, "E0344", "A job needs it"),
        _ => unexpected(),
    })
}

#[test]
fn a_secret_is_set_from_a_file_or_stdin_and_never_printed() {
    let server = secrets();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("value");
    std::fs::write(&file, "canary 17\n").unwrap();
    let file = file.to_str().unwrap();
    let words = ["secret", "set", "HF_TOKEN", "--from-file", file, "--project", "rlhf"];
    let from_file = run(&server, &words);
    let address = format!("http://{}", server.address);
    let mut child =
        command(&address, &["secret", "set", "HF_TOKEN"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"canary\nof two lines").unwrap();
    let from_stdin = finish(child);
    for ended in [&from_file, &from_stdin] {
        assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{}", ended.stderr);
        assert!(!ended.stderr.contains("canary"), "{}", ended.stderr);
    }
    let asked = server.asked();
    assert_eq!((asked[0].body.as_str(), asked[0].query["project"].as_str()), ("canary 17", "rlhf"));
    assert_eq!((asked[1].body.as_str(), asked[1].query.len()), ("canary\nof two lines", 0));

    std::fs::write(file, "x".repeat(64 * 1024 + 3)).unwrap();
    assert_eq!(run(&server, &words).code, 5);
    std::fs::write(file, "\n").unwrap();
    assert_eq!(run(&server, &words).code, 5);
    assert_eq!(run(&server, &["secret", "set", "../x", "--from-file", file]).code, 2);
    assert_eq!(server.asked().len(), 2, "nothing is sent that cannot be");
}

#[test]
fn secrets_are_listed_and_deleted_by_name() {
    let server = secrets();
    assert_eq!(
        run(&server, &["secret", "ls"]).stdout,
        "NAME      SET BY  SET\n\
         HF_TOKEN  alice   2099-01-02 03:04:05 +00:00\n"
    );
    assert_eq!(run(&server, &["secret", "ls", "-o", "name"]).stdout, "HF_TOKEN\n");
    let ended = run(&server, &["secret", "rm", "HF_TOKEN"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, "HF_TOKEN is deleted\n"));
    let ended = run(&server, &["secret", "rm", "USED"]);
    assert_eq!(ended.code, 7);
    assert!(ended.stderr.contains("E0344"), "{}", ended.stderr);
}
