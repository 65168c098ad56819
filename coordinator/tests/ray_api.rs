//! The Ray dialect over a real socket: what Ray's clients send (2.60.0), and what they get back.

mod fixture;

use std::time::Duration;

use axum::http::Method;
use fixture::{ADMIN, ALICE, BOB, CAROL, DAVE, Fixture, SPEC, ended};
use futures_util::StreamExt;
use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::tls::sha256;
use gangline_coordinator::api::dialect::Dialect;
use gangline_coordinator::api::{RouteFacts, route_list};
use gangline_coordinator::core::event::{EntrypointFact, GangFacts};
use gangline_coordinator::core::gang::{EndHow, Phase};
use gangline_coordinator::core::job::{JobState, RayDriver, RayFacts, RayNode};
use reqwest::Response;
use serde_json::{Value, json};
use tokio_tungstenite::MaybeTlsStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

type Socket = tokio_tungstenite::WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

/// Status and text of an answer; an error must be plain text.
async fn text(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let text = response.text().await.unwrap();
    if status >= 400 && !text.is_empty() {
        assert_eq!(kind.as_deref(), Some("text/plain; charset=utf-8"), "{status}: {text}");
    }
    (status, text)
}

/// A submit as `requests` sends it, behind an address prefix.
async fn submit_at(fixture: &Fixture, prefix: &str, token: &str, body: &Value) -> (u16, String) {
    let request = fixture
        .request(Method::POST, &format!("{prefix}/api/jobs/"), token)
        .header("user-agent", "python-requests/2.32.5")
        .header("accept-encoding", "gzip, deflate")
        .header("accept", "*/*")
        .header("content-type", "application/json");
    text(request.body(body.to_string()).send().await.unwrap()).await
}

/// The id of a new job.
async fn submit(fixture: &Fixture, token: &str, body: &Value) -> String {
    let (status, text) = submit_at(fixture, "", token, body).await;
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["job_id"], answer["submission_id"]);
    assert_eq!(answer.as_object().unwrap().len(), 2, "{answer}");
    answer["submission_id"].as_str().unwrap().to_owned()
}

fn hello() -> Value {
    json!({"entrypoint": "python train.py", "runtime_env": {}, "metadata": {}})
}

async fn details(fixture: &Fixture, id: &str, token: &str) -> Value {
    fixture.get(&format!("/api/jobs/{id}"), token).await
}

// ---------------------------------------------------------------- who may

#[tokio::test]
async fn every_ray_route_asks_who_it_is() {
    let fixture = Fixture::start().await;
    let job = submit(&fixture, ALICE, &hello()).await;
    let mut routes = route_list();
    routes.retain(|route| route.dialect == Dialect::Ray);
    assert_eq!(routes.len(), 10 * 6, "ten routes, behind every prefix");
    let mut wrong_tokens = Vec::new();
    for RouteFacts { method, path: template, .. } in routes {
        let at = |id: &str| {
            template
                .replace("{id}", id)
                .replace("{pool}", "h100-a")
                .replace("{cluster}", "rl-dev")
                .replace("{profile}", "1x0")
                .replace("{protocol}", "gcs")
                .replace("{package}", "_ray_pkg_0123456789abcdef.zip")
        };
        let ask = async |path: &str, token: &str| {
            let request = fixture.request(method.clone(), path, token).body("{}");
            text(request.send().await.unwrap()).await
        };
        let what = format!("{method} {}", at(&job));
        let (status, said) = ask(&at(&job), "").await;
        assert_eq!(status, 401, "{what} without a token");
        assert!(said.starts_with("this address needs a token; "), "{said}");
        wrong_tokens.push(ask(&at(&job), "gla_wrong").await.0);
        if template.contains("{id}") {
            let foreign = ask(&at(&job), BOB).await;
            assert_eq!(foreign, (404, format!("Job {job} does not exist")), "{what}");
            let none = ask(&at("nosuchjob"), BOB).await;
            assert_eq!(none, (404, "Job nosuchjob does not exist".to_owned()), "{what}");
        } else {
            let (status, said) = ask(&at(&job), BOB).await;
            assert!(matches!(status, 200 | 400 | 404), "{what}: {status} {said}");
        }
    }
    // The eleventh wrong token of a minute gets the other refusal.
    assert_eq!(wrong_tokens[..10], [403; 10]);
    assert!(wrong_tokens[10..].iter().all(|status| *status == 429), "{wrong_tokens:?}");
    assert_eq!(details(&fixture, &job, ALICE).await["status"], "PENDING", "nobody stopped it");
}

#[tokio::test]
async fn a_token_may_come_in_three_ways() {
    let fixture = Fixture::start().await;
    let ask = async |headers: &[(&str, String)]| {
        let mut request = fixture.request(Method::GET, "/api/version", "");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        text(request.send().await.unwrap()).await.0
    };
    let bearer = |token: &str| format!("Bearer {token}");
    let cookie = |token: &str| format!("theme=dark; ray-authentication-token={token}");
    assert_eq!(ask(&[("authorization", bearer(ALICE))]).await, 200);
    assert_eq!(ask(&[("x-ray-authorization", bearer(ALICE))]).await, 200);
    assert_eq!(ask(&[("cookie", cookie(ALICE))]).await, 200);
    assert_eq!(ask(&[("cookie", cookie("gla_wrong"))]).await, 403);
    assert_eq!(
        ask(&[("authorization", bearer("gla_wrong")), ("cookie", cookie(ALICE))]).await,
        403
    );
    // A50: what a browser adds by itself does not count.
    for (name, value) in [("origin", "http://127.0.0.1:9"), ("sec-fetch-site", "same-site")] {
        assert_eq!(ask(&[("cookie", cookie(ALICE)), (name, value.to_owned())]).await, 401);
    }
    let ours = fixture.request(Method::GET, "/api/v1/whoami", "").header("cookie", cookie(ALICE));
    assert_eq!(ours.send().await.unwrap().status(), 401, "the cookie is of the Ray dialect only");
}

#[tokio::test]
async fn errors_before_a_route_have_the_dialects_form() {
    let fixture = Fixture::start().await;
    let ask = async |method: Method, path: &str| {
        text(fixture.request(method, path, ALICE).send().await.unwrap()).await
    };
    assert_eq!(ask(Method::GET, "/api/v0/tasks").await.0, 404);
    assert_eq!(ask(Method::GET, "/api/jobs").await.0, 404);
    assert_eq!(ask(Method::PATCH, "/api/jobs/").await.0, 405);
    let (status, said) = ask(Method::GET, "/api/version?token=x").await;
    assert_eq!(status, 400);
    assert!(said.contains("Authorization"), "{said}");
    for profile in ["4", "x8", "4x8x2", "-1x1", "a%20b"] {
        let (status, said) = ask(Method::GET, &format!("/profile/{profile}/api/version")).await;
        assert_eq!(status, 400);
        assert!(said.contains("/profile/4x8"), "{said}");
    }
    let problem = fixture.problem(Method::GET, "/profile/4x8/api/v1/jobs", ALICE).await;
    assert_eq!(problem["status"], 404, "prefixes are of the Ray dialect only");
}

// ---------------------------------------------------------------- version

/// A node with this Ray, of which the API has heard.
async fn known_node(fixture: &Fixture, ray: &str) {
    fixture.node_with_ray("gpu-1", ray).await;
    // The driver takes events in order, so after this answer it has taken the inventory.
    fixture.submit(BOB, SPEC).await;
}

#[tokio::test]
async fn the_version_is_the_fleets() {
    let fixture = Fixture::start().await;
    let expected = json!({"version": "4", "ray_version": "2.60.0", "ray_commit": "unknown",
        "session_name": "test"});
    assert_eq!(fixture.get("/api/version", ALICE).await, expected);
    known_node(&fixture, "2.55.1").await;
    let told = fixture.get("/profile/2x8/api/version", ALICE).await;
    assert_eq!(told["ray_version"], "2.55.1");
    let other_pool = fixture.get("/pool/elsewhere/api/version", ALICE).await;
    assert_eq!(other_pool["ray_version"], "2.60.0");
}

#[tokio::test]
async fn a_version_that_clients_cannot_read_is_not_told() {
    let fixture = Fixture::start().await;
    known_node(&fixture, "broken\u{1b}[31m").await;
    assert_eq!(fixture.get("/api/version", ALICE).await["ray_version"], "2.60.0");
}

// ---------------------------------------------------------------- submit

#[tokio::test]
async fn a_submit_becomes_a_job_of_ours() {
    let fixture = Fixture::start().await;
    let body = json!({
        "entrypoint": "python train.py --name 'a b' && echo $HOME",
        "submission_id": "run-7",
        "runtime_env": {"env_vars": {"LR": "1e-6"}},
        "metadata": {"owner": "team rl", "gangline.name": "grpo"},
    });
    assert_eq!(submit(&fixture, ALICE, &body).await, "run-7");
    let shown = details(&fixture, "run-7", ALICE).await;
    assert_eq!(
        shown,
        json!({
            "type": "SUBMISSION",
            "job_id": null,
            "submission_id": "run-7",
            "driver_info": null,
            "status": "PENDING",
            "entrypoint": body["entrypoint"],
            "message": shown["message"],
            "error_type": null,
            "start_time": null,
            "end_time": null,
            "metadata": body["metadata"],
            "runtime_env": body["runtime_env"],
            "driver_agent_http_address": null,
            "driver_node_id": null,
            "driver_exit_code": null,
        })
    );
    let ours = fixture.get("/api/v1/jobs/run-7", ALICE).await;
    assert_eq!(shown["message"], ours["reason"], "our explanation reaches Ray's users");
    assert_ne!(ours["reason"], "");
    assert_eq!((&ours["name"], &ours["launcher"]), (&json!("grpo"), &json!("ray")));
    assert_eq!((&ours["nnodes"], &ours["gpus_per_node"]), (&json!(1), &json!(0)));
    assert_eq!(ours["spec"]["run"], body["entrypoint"]);
    assert_eq!((&ours["user"], &ours["project"]), (&json!("alice"), &json!("rlhf")));
    let generated = submit(&fixture, ALICE, &hello()).await;
    let word = generated.strip_prefix("raysubmit_").unwrap();
    assert!(word.len() == 16 && word.chars().all(|c| c.is_ascii_alphanumeric()), "{generated}");
    let old = json!({"entrypoint": "true", "job_id": "old-name"});
    assert_eq!(submit(&fixture, ALICE, &old).await, "old-name");
}

#[tokio::test]
async fn a33_an_id_is_given_once() {
    let fixture = Fixture::start().await;
    let body = json!({"entrypoint": "true", "submission_id": "mine"});
    submit(&fixture, ALICE, &body).await;
    for token in [ALICE, BOB] {
        let (status, said) = submit_at(&fixture, "", token, &body).await;
        assert_eq!(status, 400);
        assert!(said.contains("mine exists already"), "{said}");
        assert!(!said.contains("alice"), "{said}");
    }
    for id in ["../x", &"x".repeat(65), "a\u{1b}[31m"] {
        let body = json!({"entrypoint": "true", "submission_id": id});
        assert_eq!(submit_at(&fixture, "", ALICE, &body).await.0, 400, "{id}");
    }
}

#[tokio::test]
async fn the_size_of_the_gang_comes_from_many_places() {
    let fixture = Fixture::start().await;
    let body = |metadata: Value, gpus: Value| json!({"entrypoint": "true", "metadata": metadata, "entrypoint_num_gpus": gpus});
    let metadata = json!({"gangline.nnodes": "4", "gangline.gpus_per_node": "8",
        "gangline.pool": "h100-a"});
    for (prefix, body, expected) in [
        ("", body(json!({}), json!(null)), json!([1, 0, null])),
        ("", body(json!({}), json!(0.5)), json!([1, 1, null])),
        ("", body(json!({}), json!(8)), json!([1, 8, null])),
        ("/profile/4x8", body(json!({}), json!(null)), json!([4, 8, null])),
        ("/profile/4x8", body(json!({}), json!(8.0)), json!([4, 8, null])),
        ("/pool/h100-a", body(json!({}), json!(2)), json!([1, 2, "h100-a"])),
        ("/pool/h100-a/profile/2x4", body(json!({}), json!(0)), json!([2, 4, "h100-a"])),
        ("", body(metadata.clone(), json!(null)), json!([4, 8, "h100-a"])),
        ("/pool/h100-a/profile/4x8", body(metadata.clone(), json!(null)), json!([4, 8, "h100-a"])),
    ] {
        let (status, answer) = submit_at(&fixture, prefix, ALICE, &body).await;
        assert_eq!(status, 200, "{prefix} {body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let path = format!("/api/v1/jobs/{}", answer["job_id"].as_str().unwrap());
        let job = fixture.get(&path, ALICE).await;
        let got = json!([job["nnodes"], job["gpus_per_node"], job["pools"][0]]);
        assert_eq!(got, expected, "{prefix} {body}");
    }
    for (prefix, body, word) in [
        ("/profile/2x8", body(metadata.clone(), json!(null)), "number of nodes"),
        ("/profile/4x4", body(metadata.clone(), json!(null)), "number of GPUs"),
        ("/pool/other", body(metadata, json!(null)), "pool"),
        ("/profile/4x8", body(json!({}), json!(1)), "entrypoint_num_gpus"),
        ("/profile/0x8", body(json!({}), json!(null)), "nnodes"),
        ("/profile/1x65", body(json!({}), json!(null)), "gpus_per_node"),
        ("", body(json!({}), json!(-1)), "entrypoint_num_gpus"),
        ("", body(json!({}), json!(1e300)), "entrypoint_num_gpus"),
        ("", body(json!({"gangline.nnodes": "four"}), json!(null)), "gangline.nnodes"),
        ("", body(json!({"gangline.nodes": "4"}), json!(null)), "gangline.nnodes"),
        ("/pool/..%2f..", body(json!({}), json!(null)), "pool"),
    ] {
        let (status, said) = submit_at(&fixture, prefix, ALICE, &body).await;
        assert_eq!(status, 400, "{prefix} {body}: {said}");
        assert!(said.contains(word), "{prefix} {body}: {said}");
    }
}

#[tokio::test]
async fn cpus_and_memory_size_a_job_without_gpus() {
    let fixture = Fixture::start().await;
    let mut body = hello();
    body["entrypoint_num_cpus"] = json!(2);
    body["entrypoint_memory"] = json!(1 << 30);
    let job = submit(&fixture, ALICE, &body).await;
    let spec = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await["spec"].clone();
    assert_eq!(spec["resources"]["cpus_per_node"], 2.0);
    assert_eq!(spec["resources"]["memory_per_node"], "1GiB");
    body["entrypoint_num_gpus"] = json!(1);
    let (status, said) = submit_at(&fixture, "", ALICE, &body).await;
    assert_eq!(status, 400);
    assert!(said.contains("leave out entrypoint_num_cpus"), "{said}");
}

#[tokio::test]
async fn nothing_is_ignored_in_silence() {
    let fixture = Fixture::start().await;
    let with = |field: &str, value: Value| {
        let mut body = hello();
        body[field] = value;
        body
    };
    let env = |part: &str, value: Value| with("runtime_env", json!({part: value}));
    for (body, word) in [
        (
            env("working_dir", json!("s3://bucket/code.zip")),
            "runtime_env.working_dir `\"s3://bucket/code.zip\"` is not available yet",
        ),
        (env("working_dir", json!("gcs://_ray_pkg_0.zip")), "has not been uploaded"),
        (env("working_dir", json!("gcs://x-1.0-py3-none-any.whl")), "is not available yet"),
        (env("py_modules", json!(["gcs://_ray_pkg_0.zip"])), "PYTHONPATH"),
        (env("pip", json!(["numpy"])), "image"),
        (env("uv", json!({"packages": []})), "runtime_env.uv"),
        (env("conda", json!("env")), "runtime_env.conda"),
        (env("container", json!({"image": "x"})), "pool"),
        (env("image_uri", json!("x")), "pool"),
        (env("config", json!({"eager_install": true})), "runtime_env.config"),
        (env("no_such_part", json!(1)), "runtime_env.no_such_part"),
        (env("env_vars", json!({"A": 1})), "env_vars.A"),
        (env("env_vars", json!({"GANGLINE_JOB_ID": "x"})), "GANGLINE_"),
        (env("env_vars", json!({"A B": "x"})), "env_vars"),
        (with("entrypoint_resources", json!({"TPU": 1})), "entrypoint_resources"),
        (with("entrypoint_label_selector", json!({"a": "b"})), "entrypoint_label_selector"),
        (with("retry_policy", json!({"max_retries": 3})), "retry_policy"),
        (with("metadata", json!({"a key": "x"})), "metadata"),
        (with("metadata", json!({"a": 1})), "string"),
        (with("entrypoint", json!("")), "entrypoint"),
        (with("entrypoint", json!(["python"])), "string"),
        (json!({"runtime_env": {}}), "entrypoint"),
        (json!([]), "not valid"),
    ] {
        let (status, said) = submit_at(&fixture, "", ALICE, &body).await;
        assert_eq!(status, 400, "{body}: {said}");
        assert!(said.contains(word), "{body}: {said}");
    }
    let (status, _) =
        submit_at(&fixture, "", ALICE, &with("metadata", json!("x".repeat(2 << 20)))).await;
    assert_eq!(status, 413);
    let elsewhere = with("metadata", json!({"gangline.project": "vision"}));
    let (status, said) = submit_at(&fixture, "", ALICE, &elsewhere).await;
    assert_eq!(status, 403, "{said}");
    assert_eq!(fixture.get("/api/jobs/", ADMIN).await, json!([]));
    let mut empty = hello();
    for field in ["entrypoint_resources", "entrypoint_label_selector"] {
        empty[field] = json!({});
    }
    empty["runtime_env"] = json!({"working_dir": null, "pip": [], "env_vars": {}});
    submit(&fixture, ALICE, &empty).await;
    let theirs = submit(&fixture, ADMIN, &elsewhere).await;
    assert_eq!(details(&fixture, &theirs, BOB).await["submission_id"], theirs);
}

// ---------------------------------------------------------------- look, stop, delete

#[tokio::test]
async fn a46_values_of_variables_are_for_the_owner() {
    let fixture = Fixture::start().await;
    let mut body = hello();
    body["runtime_env"] = json!({"env_vars": {"API_KEY": "canary-7"}});
    let job = submit(&fixture, ALICE, &body).await;
    let own = details(&fixture, &job, ALICE).await;
    assert_eq!(own["runtime_env"]["env_vars"]["API_KEY"], "canary-7");
    let for_admins = details(&fixture, &job, ADMIN).await;
    assert_eq!(for_admins["runtime_env"]["env_vars"]["API_KEY"], "canary-7");
    for answer in
        [details(&fixture, &job, CAROL).await, fixture.get("/api/jobs/", DAVE).await[0].clone()]
    {
        assert_eq!(answer["runtime_env"]["env_vars"]["API_KEY"], "***");
        assert!(!answer.to_string().contains("canary-7"), "{answer}");
    }
}

#[tokio::test]
async fn a_list_has_the_jobs_of_the_callers_project() {
    let fixture = Fixture::start().await;
    let mut jobs = vec![submit(&fixture, ALICE, &hello()).await, fixture.submit(ALICE, SPEC).await];
    submit(&fixture, BOB, &hello()).await;
    let list = fixture.get("/api/jobs/", ALICE).await;
    let ids: Vec<_> =
        list.as_array().unwrap().iter().map(|job| job["submission_id"].clone()).collect();
    jobs.reverse();
    assert_eq!(ids, jobs, "newest first");
    assert_eq!(list[0]["entrypoint"], "python 'train.py; rm -rf ~'", "a job of the other dialect");
    assert_eq!(fixture.get("/api/jobs/", ADMIN).await.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_stopped_job_is_deleted_from_both_dialects() {
    let fixture = Fixture::start().await;
    let job = submit(&fixture, ALICE, &hello()).await;
    let ask = async |method: Method, path: &str| {
        let path = format!("/api/jobs/{job}{path}");
        text(fixture.request(method, &path, ALICE).send().await.unwrap()).await
    };
    let (status, said) = ask(Method::DELETE, "").await;
    assert_eq!(status, 400);
    assert!(said.contains("the job is PENDING; stop it"), "{said}");
    let stop = ask(Method::POST, "/stop").await;
    assert_eq!(stop, (200, r#"{"stopped":true}"#.to_owned()));
    let ended = details(&fixture, &job, ALICE).await;
    assert_eq!(
        (&ended["status"], &ended["message"]),
        (&json!("STOPPED"), &json!("stopped by alice"))
    );
    assert!(ended["end_time"].as_u64().unwrap() > 1_600_000_000_000, "{ended}");
    assert_eq!(ask(Method::POST, "/stop").await, (200, r#"{"stopped":false}"#.to_owned()));
    assert_eq!(ask(Method::GET, "/logs").await, (200, r#"{"logs":""}"#.to_owned()));
    assert_eq!(ask(Method::DELETE, "").await, (200, r#"{"deleted":true}"#.to_owned()));
    assert_eq!(ask(Method::DELETE, "").await.0, 404);
    assert_eq!(fixture.get("/api/jobs/", ALICE).await, json!([]));
    assert_eq!(fixture.get("/api/v1/jobs", ALICE).await["jobs"], json!([]));
    let gone = fixture.problem(Method::GET, &format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(gone["status"], 404);
}

// ---------------------------------------------------------------- logs

/// A command job that runs on a node, with this much in its log.
async fn running(fixture: &Fixture, log: &[u8]) -> (String, fixture::Node, MemberKey) {
    let job = fixture.submit(ALICE, SPEC).await;
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    fixture.write_log(&member, "output", log);
    node.report_running(&member).await;
    (job, node, member)
}

#[tokio::test]
async fn a_log_comes_as_one_text() {
    let fixture = Fixture::start().await;
    let text = format!("\u{1b}[31m\"quoted\" \\ {}\u{20ac}\n", "\u{20ac}".repeat(100_000));
    let (job, node, member) = running(&fixture, text.as_bytes()).await;
    let log = fixture.get(&format!("/api/jobs/{job}/logs"), ALICE).await;
    assert!(log["logs"] == text, "the log is not what was written");
    node.report_success(&member).await;
    let shown = details(&fixture, &job, ALICE).await;
    assert_eq!((&shown["status"], &shown["driver_exit_code"]), (&json!("SUCCEEDED"), &json!(0)));
    let (start, end) = (shown["start_time"].as_u64().unwrap(), shown["end_time"].as_u64().unwrap());
    assert!(start > 1_600_000_000_000 && end >= start, "{shown}");
    let directory = fixture.state().join("logs").join(member.gang.as_str());
    assert!(directory.exists());
    let delete = fixture.request(Method::DELETE, &format!("/api/jobs/{job}"), ALICE);
    assert_eq!(delete.send().await.unwrap().status(), 200);
    assert!(!directory.exists(), "the log goes with its job");
}

#[tokio::test]
async fn only_the_end_of_a_long_log_is_sent() {
    let fixture = Fixture::start().await;
    let line = "0123456789abcdef\n";
    let mut text = line.repeat((17 << 20) / line.len());
    text.push_str("the end, and half a character: ");
    let bytes = [text.as_bytes(), &[0xe2, 0x82]].concat();
    let (job, _node, _member) = running(&fixture, &bytes).await;
    let log = fixture.get(&format!("/api/jobs/{job}/logs"), ALICE).await;
    let (note, rest) = log["logs"].as_str().unwrap().split_once('\n').unwrap();
    let left_out = bytes.len() - (16 << 20);
    assert!(note.contains(&format!("{left_out} earlier bytes")), "{note}");
    assert!(rest.len() > (16 << 20) - 32 && rest.len() <= (16 << 20) + 3, "{}", rest.len());
    assert!(rest.starts_with(line), "{}", &rest[..40]);
    assert!(rest.ends_with("half a character: \u{fffd}"));
}

async fn open_tail(fixture: &Fixture, job: &str, token: &str) -> Result<Socket, WsError> {
    let url = format!("ws://{}/profile/1x0/api/jobs/{job}/logs/tail", fixture.address());
    let mut request = url.into_client_request().unwrap();
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert("authorization", bearer);
    tokio_tungstenite::connect_async(request).await.map(|(socket, _)| socket)
}

/// All text until the Close frame, and its code.
async fn read_tail(mut socket: Socket) -> (String, Option<CloseCode>) {
    let mut seen = String::new();
    while let Some(message) = socket.next().await {
        match message {
            Ok(Message::Text(text)) => seen.push_str(&text),
            Ok(Message::Close(frame)) => return (seen, frame.map(|frame| frame.code)),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    (seen, None)
}

#[tokio::test]
async fn a_tail_lasts_until_the_job_has_ended() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let tail = open_tail(&fixture, &job, ALICE).await.unwrap();
    let reading = tokio::spawn(read_tail(tail));
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    let text = format!("begin {}\u{20ac} end\n", "x".repeat(70_000));
    fixture.write_log(&member, "output", text.as_bytes());
    node.report_running(&member).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!reading.is_finished(), "the job still runs");
    node.report_success(&member).await;
    let (seen, code) = reading.await.unwrap();
    assert!(seen == text, "{} of {} bytes", seen.len(), text.len());
    assert_eq!(code, Some(CloseCode::Normal));
    let again = read_tail(open_tail(&fixture, &job, ALICE).await.unwrap()).await;
    assert!(again == (text, Some(CloseCode::Normal)), "an ended job has its whole log");
}

#[tokio::test]
async fn a_tail_says_when_the_rest_of_the_log_is_lost() {
    let fixture = Fixture::start().await;
    let (job, node, member) = running(&fixture, b"step:1").await;
    let Phase::Ended(end) = ended(EndHow::Exited { code: 0 }) else { unreachable!() };
    let end = Phase::Ended(gangline_coordinator::core::gang::End { logs_complete: false, ..end });
    node.report(vec![(member.clone(), end)], Vec::new()).await;
    let revoke = fixture.request(Method::POST, "/api/v1/nodes/gpu-1/revoke", ADMIN);
    assert_eq!(revoke.send().await.unwrap().status(), 200);
    node.until(&member, JobState::is_terminal).await;
    let (seen, code) = read_tail(open_tail(&fixture, &job, ALICE).await.unwrap()).await;
    assert!(seen.starts_with("step:1\n[gangline] a node could not deliver"), "{seen}");
    assert_eq!(code, Some(CloseCode::Normal));
}

#[tokio::test]
async fn a_tail_is_for_those_who_may_and_bounded() {
    let fixture = Fixture::start().await;
    let job = submit(&fixture, ALICE, &hello()).await;
    let status = async |job: &str, token: &str| match open_tail(&fixture, job, token).await {
        Err(WsError::Http(response)) => response.status().as_u16(),
        Err(error) => panic!("{error}"),
        Ok(_) => 101,
    };
    assert_eq!(status(&job, BOB).await, 404);
    assert_eq!(status("nosuchjob", ALICE).await, 404);
    assert_eq!(status(&job, "gla_wrong").await, 403);
    let plain = fixture.request(Method::GET, &format!("/api/jobs/{job}/logs/tail"), ALICE);
    let (code, said) = text(plain.send().await.unwrap()).await;
    assert_eq!(code, 400);
    assert!(said.contains("WebSocket"), "{said}");
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(open_tail(&fixture, &job, ALICE).await.unwrap());
    }
    assert_eq!(status(&job, ALICE).await, 503);
    let stream = fixture.request(Method::GET, &format!("/api/v1/jobs/{job}/logs/stream"), ALICE);
    assert_eq!(
        stream.send().await.unwrap().status(),
        503,
        "tails and streams are counted together"
    );
    assert_eq!(status(&job, ADMIN).await, 101, "others have their own");
    drop(open);
    // The places are given back when the coordinator sees that the clients have gone.
    for _ in 0..100 {
        if status(&job, ALICE).await == 101 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the places of closed tails are not given back");
}

#[tokio::test]
async fn a_ray_job_shows_its_driver() {
    let fixture = Fixture::start().await;
    let job = submit(&fixture, ALICE, &hello()).await;
    let node = fixture.node("gpu-1").await;
    let head = fixture.place(&job, 1).await;
    let rank = MemberKey { member: MemberId::Rank(0), ..head.clone() };
    let tail = tokio::spawn(read_tail(open_tail(&fixture, &job, ALICE).await.unwrap()));
    fixture.write_log(&rank, "output", b"raylet of rank 0");
    fixture.write_log(&rank, &format!("driver-{job}-1"), b"step:1");
    let ray_node = RayNode {
        member: MemberId::Rank(0),
        ray_node_id: "bb".to_owned(),
        address: "10.0.0.7".to_owned(),
        alive: true,
        state_message: String::new(),
    };
    let driver = RayDriver {
        ray_node_id: "bb".to_owned(),
        member: Some(MemberId::Rank(0)),
        address: Some("10.0.0.7".to_owned()),
    };
    let facts = |entrypoint| GangFacts {
        gang: head.gang.clone(),
        epoch: head.epoch,
        ready: true,
        ray: Some(RayFacts {
            version: "2.60.0".to_owned(),
            session: "session_1".to_owned(),
            nodes: vec![ray_node.clone()],
            driver: Some(driver.clone()),
        }),
        entrypoints: vec![(format!("{job}-1"), entrypoint)],
    };
    let both = |phase: Phase| vec![(head.clone(), phase.clone()), (rank.clone(), phase)];
    let up = both(Phase::Running { pid: 7 });
    node.report(up.clone(), vec![facts(EntrypointFact::Running)]).await;
    node.until(&head, |state| state == JobState::Running).await;
    let shown = details(&fixture, &job, ALICE).await;
    assert_eq!(shown["status"], "RUNNING");
    let info = json!({"id": format!("{job}-1"), "node_ip_address": "10.0.0.7", "pid": ""});
    assert_eq!((&shown["driver_info"], &shown["driver_node_id"]), (&info, &json!("bb")));
    let log = fixture.get(&format!("/api/jobs/{job}/logs"), ALICE).await;
    assert_eq!(log, json!({"logs": "step:1"}));
    let cause = "the entrypoint failed with exit code 3".to_owned();
    node.report(up, vec![facts(EntrypointFact::Failed { cause: cause.clone() })]).await;
    node.report(both(ended(EndHow::Exited { code: 0 })), Vec::new()).await;
    node.until(&head, JobState::is_terminal).await;
    let shown = details(&fixture, &job, ALICE).await;
    assert_eq!((&shown["status"], &shown["message"]), (&json!("FAILED"), &json!(cause)));
    assert_eq!(shown["driver_exit_code"], Value::Null);
    assert_eq!(tail.await.unwrap(), ("step:1".to_owned(), Some(CloseCode::Normal)));
}

// ---------------------------------------------------------------- packages

#[tokio::test]
async fn packages_are_uploaded_once_and_stay_in_their_project() {
    let fixture = Fixture::start().await;
    let path = "/api/packages/gcs/_ray_pkg_0123456789abcdef.zip";
    let find = async |token: &str| {
        text(fixture.request(Method::GET, path, token).send().await.unwrap()).await
    };
    let put = async |path: &str, token: &str, body: Vec<u8>| {
        text(fixture.request(Method::PUT, path, token).body(body).send().await.unwrap()).await
    };
    assert_eq!(find(ALICE).await, (404, String::new()));
    let code = vec![7; 3 << 20];
    assert_eq!(put(path, ALICE, code.clone()).await, (200, String::new()));
    assert_eq!(find(ALICE).await, (200, String::new()));
    assert_eq!(find(BOB).await.0, 404, "a name that another project filled is not yours");
    assert_eq!(put(path, ALICE, code.clone()).await.0, 200);
    let (status, said) = put(path, ALICE, b"other code".to_vec()).await;
    assert_eq!(status, 400);
    assert!(said.contains("another content"), "{said}");
    for wrong in ["gcs/..%2f..%2fx.zip", "s3/x.zip", "gcs/x.tar", "gcs/.x.zip"] {
        let (status, said) = put(&format!("/api/packages/{wrong}"), ALICE, b"x".to_vec()).await;
        assert_eq!(status, 400, "{wrong}: {said}");
    }
    let mut stored = Vec::new();
    let mut directories = vec![fixture.state().join("packages")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => directories.push(entry.path()),
                false => stored.push(entry.path()),
            }
        }
    }
    stored.sort();
    assert_eq!(stored.len(), 2, "{stored:?}");
    assert_eq!(std::fs::read(&stored[0]).unwrap(), code);
    let hash = data_encoding::HEXLOWER.encode(&sha256(&code));
    assert_eq!(std::fs::read_to_string(&stored[1]).unwrap(), hash);
}
