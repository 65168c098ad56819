//! `events` about one job or node, and what `webhook` says to do next.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::answers::{running, unexpected};
use crate::server::{Ended, Server, command, finish, json as answer, problem, run};

/// A server with the job `j-7f3k2`, and with events of it and of one that was deleted.
fn events() -> Server {
    Server::start(|asked, _| match asked.line().as_str() {
        "GET /api/v1/jobs/j-7f3k2" | "GET /api/v1/jobs/@last" => answer(200, &running()),
        "GET /api/v1/jobs/j-7" => problem(409, "E0308", "More than one job fits"),
        "GET /api/v1/events" => match asked.query.get("object").map(String::as_str) {
            Some("job+j-none") => problem(404, "E0306", "No such job"),
            Some("node+nosuch") => problem(404, "E0307", "No such node"),
            _ => answer(200, &json!({"events": [], "next_before": null})),
        },
        _ => problem(404, "E0306", "No such job"),
    })
}

/// The object that was asked about last. A space in a query is a `+`.
fn asked_about(server: &Server) -> String {
    server.asked_for("GET /api/v1/events").pop().unwrap().query["object"].clone()
}

#[test]
fn a_job_or_a_node_is_named_as_everywhere() {
    let server = events();
    for (selector, object) in [("@last", "job+j-7f3k2"), ("j-deleted", "job+j-deleted")] {
        let ended = run(&server, &["events", "--job", selector]);
        assert_eq!(ended.code, 0, "{selector}: {}", ended.stderr);
        assert_eq!(asked_about(&server), object);
    }
    for (words, code) in [
        (["--job", "j-none"], 102),
        (["--job", "j-7"], 7),
        (["--job", "a/b"], 2),
        (["--node", "nosuch"], 1),
        (["--node", "a/b"], 2),
    ] {
        let ended = run(&server, &[&["events"], &words[..]].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{words:?}");
    }
    assert_eq!(run(&server, &["events", "--node", "n-aaaaa"]).code, 0);
    assert_eq!(asked_about(&server), "node+n-aaaaa");
}

/// Sets a webhook, with its address on stdin.
fn add(server: &Server, more: &[&str]) -> Ended {
    let words = [&["webhook", "add", "am"], more].concat();
    let mut command = command(&format!("http://{}", server.address), &words);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"http://am.lan/\n").unwrap();
    finish(child)
}

#[test]
fn the_next_step_is_about_the_same_webhook() {
    let server = Server::start(|asked, _| match asked.line().as_str() {
        "PUT /api/v1/webhooks/am" | "POST /api/v1/webhooks/am/test" => {
            answer(200, &json!({"name": "am", "key": null}))
        }
        _ => unexpected(),
    });
    for (more, flags) in
        [(&[][..], ""), (&["--fleet"], " --fleet"), (&["--project", "p1"], " --project p1")]
    {
        let added = add(&server, more);
        assert_eq!(added.code, 0, "{}", added.stderr);
        let hint = format!("try it: gangline webhook test am{flags}\n");
        assert!(added.stderr.ends_with(&hint), "{}", added.stderr);
        let tested = run(&server, &[&["webhook", "test", "am"], more].concat());
        let hint = format!("`gangline webhook ls{flags}`");
        assert!(tested.stderr.contains(&hint), "{}", tested.stderr);
    }
}
