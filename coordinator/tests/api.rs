//! The HTTP API over a real socket, on a real driver, store and board.

mod fixture;

use axum::http::Method;
use fixture::{ADMIN, ALICE, BOB, CAROL, DAVE, Fixture, SPEC, ended};
use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::join_token::JoinToken;
use gangline_coordinator::api::auth::{Access, Action};
use gangline_coordinator::api::dialect::Dialect;
use gangline_coordinator::api::{OLD_PATHS, RouteFacts, document, route_list};
use gangline_coordinator::core::event::{EntrypointFact, GangFacts};
use gangline_coordinator::core::gang::{EndHow, Phase};
use gangline_coordinator::core::job::{JobState, RayDriver, RayFacts, RayNode};
use gangline_spec::{Names, schema, templates};
use serde_json::{Value, json};

/// The routes of our dialect, those with an old name under that as well.
fn our_routes() -> Vec<RouteFacts> {
    let mut routes = route_list();
    routes.retain(|route| route.dialect == Dialect::Ours);
    let old = OLD_PATHS.iter().flat_map(|(old, new)| {
        let named = routes.iter().filter(move |route| route.path == *new);
        named.map(move |route| RouteFacts { path: (*old).to_owned(), ..route.clone() })
    });
    let old: Vec<RouteFacts> = old.collect();
    assert_eq!(old.len(), 4, "submit, list, look at, stop");
    routes.extend(old);
    routes
}

// ---------------------------------------------------------------- who may

#[tokio::test]
async fn every_route_asks_who_it_is() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let routes = our_routes();
    assert!(routes.len() >= 25, "the table lost routes");
    for RouteFacts { method, path: template, access, .. } in routes {
        let path = template.replace("{id}", &job).replace("{name}", "no-such-token");
        let ask = async |token: &str| {
            let request = fixture.request(method.clone(), &path, token).body("{}");
            request.send().await.unwrap().status().as_u16()
        };
        let what = format!("{method} {path}");
        match access {
            Access::Open => assert_eq!(ask("").await, 200, "{what}"),
            Access::Offers(_) => {
                assert_eq!(ask("").await, 200, "{what} without a token");
                assert!(matches!(ask("gla_wrong").await, 401 | 429), "{what} with a wrong token");
                assert_eq!(ask(CAROL).await, 200, "{what} as a viewer");
            }
            Access::Needs(action) => {
                assert_eq!(ask("").await, 401, "{what} without a token");
                // The eleventh wrong token of a minute gets the other refusal.
                assert!(matches!(ask("gla_wrong").await, 401 | 429), "{what} with a wrong token");
                let of_admins = [Action::RevokeNode, Action::ManageTokens, Action::ManageProjects];
                if of_admins.contains(&action) {
                    assert_eq!(ask(ALICE).await, 403, "{what} as a member");
                    assert_eq!(ask(DAVE).await, 403, "{what} as an operator");
                }
                if matches!(action, Action::MaintainNode | Action::ManagePools) {
                    assert_eq!(ask(ALICE).await, 403, "{what} as a member");
                    assert_ne!(ask(DAVE).await, 403, "{what} as an operator");
                }
                if action == Action::ReadAudit {
                    assert_eq!(ask(ALICE).await, 403, "{what} as a member");
                    assert_eq!(ask(DAVE).await, 200, "{what} as an operator");
                }
                if matches!(
                    action,
                    Action::SubmitJob
                        | Action::StopJob
                        | Action::ControlJob
                        | Action::ManageSecrets
                ) {
                    assert_eq!(ask(CAROL).await, 403, "{what} as a viewer");
                }
                if template.contains("/jobs/{id}") {
                    assert_eq!(ask(BOB).await, 404, "{what} as a member of another project");
                }
            }
        }
    }
}

#[tokio::test]
async fn another_projects_job_and_no_job_are_the_same_answer() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    for RouteFacts { method, path: template, .. } in our_routes() {
        if !template.contains("/jobs/{id}") {
            continue;
        }
        let mut answers = Vec::new();
        for id in [job.as_str(), &job[..6], "hello", "j-nosuchjob", "..%2f..%2fetc"] {
            let path = template.replace("{id}", id);
            let response = fixture.request(method.clone(), &path, BOB).send().await.unwrap();
            let status = response.status().as_u16();
            let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
            answers.push((status, kind, response.text().await.unwrap()));
        }
        assert_eq!(answers[0].0, 404);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{method} {template}");
    }
}

#[tokio::test]
async fn a21_a22_a50_what_does_not_reach_a_route() {
    let fixture = Fixture::start().await;
    for query in ["token=x", "page_size=1&Access_Token=x", "%74oken=x"] {
        let problem = fixture.problem(Method::GET, &format!("/api/v1/jobs?{query}"), ADMIN).await;
        assert_eq!(problem["code"], "E0303", "{query}");
    }
    let rebound = fixture.request(Method::GET, "/healthz", "").header("host", "evil.example:8265");
    assert_eq!(rebound.send().await.unwrap().status(), 400);

    let ray = fixture.request(Method::GET, "/api/v1/whoami", "");
    let ray = ray.header("X-Ray-Authorization", format!("Bearer {ALICE}")).send().await.unwrap();
    let who: Value = ray.json().await.unwrap();
    assert_eq!(who, json!({"user": "alice", "project": "rlhf", "role": "member"}));

    for _ in 0..10 {
        let problem = fixture.problem(Method::GET, "/api/v1/whoami", "gla_guess").await;
        assert_eq!(problem["status"], 401);
    }
    let problem = fixture.problem(Method::GET, "/api/v1/whoami", "gla_guess").await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(429), &json!("E0304")));
    let right = fixture.request(Method::GET, "/api/v1/whoami", ALICE).send().await.unwrap();
    assert_eq!(right.status(), 200, "a guesser must not lock others out");
}

#[tokio::test]
async fn the_paths_of_the_first_design_answer() {
    let fixture = Fixture::start().await;
    let request = fixture.request(Method::POST, "/v1/jobs?submission_id=old-way", ALICE);
    let request = request.header("content-type", "application/yaml").body(SPEC);
    assert_eq!(request.send().await.unwrap().status(), 201);
    assert_eq!(fixture.get("/v1/jobs", ALICE).await["jobs"][0]["id"], "old-way");
    assert_eq!(fixture.get("/v1/jobs/old-way", ALICE).await["id"], "old-way");
    let stop = |token| fixture.request(Method::POST, "/v1/jobs/old-way:stop", token);
    assert_eq!(stop("").send().await.unwrap().status(), 401);
    assert_eq!(stop(BOB).send().await.unwrap().status(), 404);
    assert_eq!(stop(ALICE).send().await.unwrap().status(), 202);
    let stopped = stop(ALICE).json(&json!({"reason": "once more"})).send().await.unwrap();
    assert_eq!(stopped.status(), 409, "a stop has a body as under its new name");
    for nothing in ["/v1/nodes", "/v1/jobs/old-way/logs", "/v1/jobs/old-way/stop"] {
        let problem = fixture.problem(Method::GET, nothing, ALICE).await;
        assert_eq!(problem["code"], "E0317", "{nothing}");
    }
}

#[tokio::test]
async fn the_schema_names_the_fleet_to_those_who_may_see_it() {
    let fixture = Fixture::start().await;
    let _one = fixture.node("gpu-1").await;
    let _two = fixture.node_in_pool("gpu-2", "h20").await;
    let revoked = fixture.node_in_pool("gpu-3", "gone").await;
    let path = format!("/api/v1/nodes/{}/revoke", revoked.name());
    let done = fixture.request(Method::POST, &path, ADMIN).send().await.unwrap();
    assert!(done.status().is_success(), "{}", done.status());
    // The inventory has no answer; it is on the board a moment later.
    let mut changes = fixture.board.changes();
    while fixture.board.nodes().iter().any(|snapshot| snapshot.node.inventory.is_none()) {
        changes.changed().await.unwrap();
    }
    let plain = fixture.get("/schema/job.v1.json", "").await;
    assert_eq!(plain["$schema"], "http://json-schema.org/draft-07/schema#");
    assert_eq!(plain, schema(&Names::default(), templates()), "without a token no name is told");

    let told = fixture.get("/schema/job.v1.json", CAROL).await;
    let resources = &told["properties"]["resources"]["properties"];
    assert_eq!(resources["pool"]["anyOf"][0]["anyOf"][0]["enum"], json!(["h100-a", "h20"]));
    assert_eq!(resources["gpu"]["anyOf"][0]["anyOf"][0]["enum"], json!(["Test GPU"]));
    let names = told["properties"]["template"]["anyOf"][0]["enum"].as_array().unwrap();
    assert!(names.contains(&json!("verl/grpo")), "{names:?}");
}

#[tokio::test]
async fn https_and_plain_text_share_the_port() {
    let fixture = Fixture::start().await;
    let (client, base) = fixture.https();
    let ask = client.get(format!("{base}/api/v1/whoami")).bearer_auth(ALICE);
    let who: Value = ask.send().await.unwrap().json().await.unwrap();
    assert_eq!(who["user"], "alice");
    // A name of this coordinator that is not this machine's is fine with a certificate for it.
    let named = client.get(format!("{base}/healthz")).header("host", "gangline.lan:8265");
    assert_eq!(named.send().await.unwrap().status(), 200);
    let plain = fixture.request(Method::GET, "/api/v1/whoami", ALICE).send().await.unwrap();
    assert_eq!(plain.status(), 200);
    // Without the CA nobody is talked to.
    let stranger = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    assert!(stranger.get(format!("{base}/healthz")).send().await.is_err());
    // A17: a certificate of an agent is no login.
    let without = client.get(format!("{base}/api/v1/whoami")).send().await.unwrap();
    assert_eq!(without.status(), 401);
}

#[tokio::test]
async fn addresses_and_methods_that_do_not_exist_are_problems() {
    let fixture = Fixture::start().await;
    let problem = fixture.problem(Method::GET, "/nothing/here", ADMIN).await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(404), &json!("E0317")));
    let problem = fixture.problem(Method::DELETE, "/api/v1/jobs", ADMIN).await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(405), &json!("E0318")));
    let problem = fixture.problem(Method::GET, "/api/v1/jobs?stat=PENDING", ADMIN).await;
    assert_eq!(problem["status"], 400);
    assert!(problem["detail"].as_str().unwrap().contains("stat"));
}

// ---------------------------------------------------------------- submit

#[tokio::test]
async fn a_submitted_job_is_shown_as_it_was_written() {
    let fixture = Fixture::start().await;
    let request = fixture
        .request(Method::POST, "/api/v1/jobs?submission_id=my-job", ALICE)
        .header("content-type", "application/yaml")
        .header("x-gangline-command", "gangline%20submit%20%C3%A9.yaml")
        .body(SPEC);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["location"], "/api/v1/jobs/my-job");
    let job = fixture.get("/api/v1/jobs/my-job", ALICE).await;
    assert_eq!(job["state"], "PENDING");
    assert_eq!((&job["user"], &job["project"]), (&json!("alice"), &json!("rlhf")));
    assert_eq!(job["submit_command"], "gangline submit \u{e9}.yaml");
    assert_eq!(job["spec"]["command"], json!(["python", "train.py; rm -rf ~"]));
    assert_eq!(job["directory"], "/mnt/shared/jobs/my-job");
    assert_eq!(job["checkpoint_directory"], "/mnt/shared/jobs/my-job/checkpoints");
    assert_eq!(job["history"][0]["state"], "PENDING");
    assert_eq!(job["started"], Value::Null);
    assert_eq!(fixture.get("/api/v1/jobs/hello", ALICE).await["id"], "my-job");
    assert_eq!(fixture.get("/api/v1/jobs/@last", ALICE).await["id"], "my-job");
    assert_eq!(fixture.get("/api/v1/jobs/my-", ALICE).await["id"], "my-job");
}

#[tokio::test]
async fn a_wrong_spec_is_refused_with_all_its_problems() {
    let fixture = Fixture::start().await;
    let text = "version: 1\nkind: job\ncommand: [a]\nresorces: {}\nresources:\n  nnodes: 0\n  gpus_per_node: -1\nenv:\n  HOME:\n";
    let problem = fixture.submit_problem("", text).await;
    assert_eq!(problem["status"], 422);
    let errors = problem["errors"].as_array().unwrap();
    let find = |pointer: &str| {
        errors
            .iter()
            .find(|e| e["pointer"] == pointer)
            .unwrap_or_else(|| panic!("{pointer}: {problem}"))
    };
    let unknown = find("/resorces");
    assert_eq!(
        (&unknown["code"], &unknown["line"], &unknown["column"]),
        (&json!("E0101"), &json!(4), &json!(1))
    );
    assert!(unknown["hint"].as_str().unwrap().contains("resources"), "{unknown}");
    assert_eq!(find("/resources/nnodes")["line"], 6);
    assert_eq!(find("/resources/gpus_per_node")["line"], 7);
    assert!(find("/env/HOME").to_string().contains("HOME"));
    assert_eq!(problem["code"], "E0101");
    assert_eq!(problem["type"], "/errors/E0101");
}

#[tokio::test]
async fn a_submit_that_cannot_be_is_refused() {
    let fixture = Fixture::start().await;
    for id in ["..%2f..%2fx", "", &"x".repeat(65), "a%1b%5b31m"] {
        let problem = fixture.submit_problem(&format!("?submission_id={id}"), SPEC).await;
        assert_eq!(problem["status"], 422, "{id}");
    }
    let elsewhere = format!("{SPEC}checkpoint: {{dir: /etc/x}}\n");
    let problem = fixture.submit_problem("", &elsewhere).await;
    assert_eq!(problem["errors"][0]["pointer"], "/checkpoint/dir");
    assert_eq!(problem["errors"][0]["line"], 8);
    assert!(problem["hint"].as_str().unwrap().contains("/mnt/shared"));
    let problem = fixture.submit_problem("", &format!("{SPEC}project: vision\n")).await;
    assert_eq!(problem["status"], 403);
    let problem = fixture.submit_problem("", "\u{0}").await;
    assert_eq!((&problem["status"], &problem["errors"][0]["code"]), (&json!(422), &json!("E0105")));
    let binary = fixture.request(Method::POST, "/api/v1/jobs", ALICE).body(vec![0xff, 0xfe]);
    assert_eq!(binary.send().await.unwrap().status(), 422);
    let html =
        fixture.request(Method::POST, "/api/v1/jobs", ALICE).header("content-type", "text/html");
    assert_eq!(html.body(SPEC).send().await.unwrap().status(), 415);
    assert_eq!(fixture.get("/api/v1/jobs", ADMIN).await["jobs"], json!([]));
}

#[tokio::test]
async fn a34_a_spec_over_the_limit_is_refused() {
    let fixture = Fixture::start().await;
    for size in [(1 << 20) + 1, 5 << 20] {
        let problem = fixture.submit_problem("", &"#".repeat(size)).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(413), &json!("E0309")));
        assert!(problem["detail"].as_str().unwrap().contains("1048576"));
    }
}

#[tokio::test]
async fn a_spec_that_grows_over_the_limit_when_it_is_stored_is_refused() {
    let fixture = Fixture::start().await;
    // Two bytes as YAML writes a bell, six as JSON does.
    let bells = "\\a".repeat(120_000);
    let text = format!("resources: {{nnodes: 1}}\nrun: \"{bells}\"\nenv: {{A: \"{bells}\"}}\n");
    let problem = fixture.submit_problem("", &text).await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(413), &json!("E0309")), "{problem}");
}

#[tokio::test]
async fn the_same_key_makes_one_job() {
    let fixture = Fixture::start().await;
    let submit = async |token: &str, key: &str, query: &str, body: &str| {
        let path = format!("/api/v1/jobs{query}");
        let request = fixture.request(Method::POST, &path, token).header("idempotency-key", key);
        let response = request.body(body.to_owned()).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let (status, first) = submit(ALICE, "k1", "", SPEC).await;
    assert_eq!(status, 201);
    let (status, again) = submit(ALICE, "k1", "", SPEC).await;
    assert_eq!((status, &again["job"]["id"]), (200, &first["job"]["id"]));
    let (status, problem) = submit(ALICE, "k1", "", &format!("{SPEC}# other\n")).await;
    assert_eq!((status, &problem["code"]), (422, &json!("E0310")));
    let (status, _) = submit(ALICE, "k1", "?submission_id=chosen", SPEC).await;
    assert_eq!(status, 422, "another id is another request");
    let (status, other) = submit(BOB, "k1", "", SPEC).await;
    assert_eq!(status, 201, "keys belong to their user");
    assert_ne!(other["job"]["id"], first["job"]["id"]);
    let (status, _) = submit(ALICE, &"k".repeat(129), "", SPEC).await;
    assert_eq!(status, 400);

    let (status, _) = submit(ALICE, "k2", "?submission_id=both", SPEC).await;
    assert_eq!(status, 201);
    let (status, _) = submit(ALICE, "k2", "?submission_id=both", SPEC).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a33_a_chosen_id_belongs_to_one_spec() {
    let fixture = Fixture::start().await;
    let submit = async |token: &str, body: &str| {
        let request = fixture.request(Method::POST, "/api/v1/jobs?submission_id=mine", token);
        let response = request.body(body.to_owned()).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    assert_eq!(submit(ALICE, SPEC).await.0, 201);
    let (status, same) = submit(ALICE, &format!("# a comment\n{SPEC}")).await;
    assert_eq!((status, &same["job"]["id"]), (200, &json!("mine")));
    let (status, problem) = submit(ALICE, &SPEC.replace("nnodes: 1", "nnodes: 2")).await;
    assert_eq!((status, &problem["code"]), (409, &json!("E0311")));
    let (status, problem) = submit(BOB, SPEC).await;
    assert_eq!(status, 409);
    assert!(!problem.to_string().contains("alice"), "{problem}");
    assert!(problem.get("job").is_none(), "{problem}");
}

#[tokio::test]
async fn one_checkpoint_directory_has_one_live_job() {
    let fixture = Fixture::start().await;
    let spec = format!("{SPEC}checkpoint: {{dir: /fast/run-7}}\n");
    let first = fixture.submit(ALICE, &spec).await;
    let submit = async |token: &str| {
        let request = fixture.request(Method::POST, "/api/v1/jobs", token).body(spec.clone());
        request.send().await.unwrap().json::<Value>().await.unwrap()
    };
    let own = submit(ALICE).await;
    assert_eq!((&own["status"], &own["code"]), (&json!(409), &json!("E0312")));
    assert!(own["detail"].as_str().unwrap().contains(&first));
    let foreign = submit(BOB).await;
    assert_eq!(foreign["status"], 409);
    assert!(!foreign.to_string().contains(&first), "{foreign}");
}

// ---------------------------------------------------------------- list, stop

#[tokio::test]
async fn lists_have_pages_and_filters() {
    let fixture = Fixture::start().await;
    let mut submitted = Vec::new();
    for _ in 0..5 {
        submitted.push(fixture.submit(ALICE, SPEC).await);
    }
    fixture.submit(BOB, SPEC).await;
    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs?page_size=2".to_owned();
    loop {
        let page = fixture.get(&path, ALICE).await;
        let jobs = page["jobs"].as_array().unwrap();
        assert!(jobs.len() <= 2);
        seen.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        let Some(token) = page["next_page_token"].as_str() else { break };
        path = format!("/api/v1/jobs?page_size=2&page_token={token}");
    }
    submitted.reverse();
    assert_eq!(seen, submitted, "newest first, own project only");
    let count = async |query: &str, token| {
        let list = fixture.get(&format!("/api/v1/jobs?{query}"), token).await;
        list["jobs"].as_array().unwrap().len()
    };
    assert_eq!(count("", ADMIN).await, 6);
    assert_eq!(count("user=bob", ADMIN).await, 1);
    assert_eq!(count("state=running,pending", ADMIN).await, 6);
    assert_eq!(count("state=RUNNING", ADMIN).await, 0);
    for query in ["state=GONE", "page_size=0", "page_size=1001", "page_token=%21"] {
        let problem = fixture.problem(Method::GET, &format!("/api/v1/jobs?{query}"), ADMIN).await;
        assert_eq!(
            (&problem["status"], &problem["code"]),
            (&json!(400), &json!("E0300")),
            "{query}"
        );
    }
    let problem = fixture.problem(Method::GET, "/api/v1/jobs/j-", ALICE).await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(409), &json!("E0308")));
}

#[tokio::test]
async fn a_waiting_job_is_stopped_at_once() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let path = format!("/api/v1/jobs/{job}/stop");
    let stop = fixture.request(Method::POST, &path, ALICE).body(r#"{"reason": "wrong data"}"#);
    let response = stop.send().await.unwrap();
    assert_eq!(response.status(), 202);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["job"]["state"], "CANCELLED");
    assert_eq!(answer["job"]["reason"], "stopped by alice: wrong data");
    let problem = fixture.problem(Method::POST, &path, ALICE).await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(409), &json!("E0314")));
    let logs = fixture.request(Method::GET, &format!("/api/v1/jobs/{job}/logs"), ALICE);
    let logs = logs.send().await.unwrap();
    assert_eq!(logs.headers()["x-gangline-complete"], "true");
    let stream = fixture.stream(&format!("/api/v1/jobs/{job}/logs/stream"), ALICE, None).await;
    let events = stream.until_end().await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].name, "end");
    assert_eq!(events[0].data["state"], "CANCELLED");
}

#[tokio::test]
async fn a_stop_takes_only_what_it_knows() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let path = format!("/api/v1/jobs/{job}/stop");
    for (body, status) in [
        (r#"{"force": true}"#.to_owned(), 422),
        ("[".to_owned(), 422),
        (json!({"reason": "x".repeat(1025)}).to_string(), 400),
        ("x".repeat(65 << 10), 413),
    ] {
        let request = fixture.request(Method::POST, &path, ALICE).body(body);
        assert_eq!(request.send().await.unwrap().status(), status);
    }
    assert_eq!(fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await["state"], "PENDING");
}

// ---------------------------------------------------------------- logs

#[tokio::test]
async fn a_log_is_followed_from_before_the_job_to_its_end() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let path = format!("/api/v1/jobs/{job}/logs/stream");
    let follower = fixture.stream(&path, ALICE, None).await;
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    let text = format!("begin {}\u{20ac} end\n", "x".repeat(70_000));
    fixture.write_log(&member, "output", text.as_bytes());
    node.report_running(&member).await;
    node.report_success(&member).await;

    let events = follower.until_end().await;
    let (end, logs) = events.split_last().unwrap();
    assert_eq!(end.name, "end");
    assert_eq!(end.data["state"], "SUCCEEDED", "{:?}", end.data);
    assert_eq!(end.data["complete"], true);
    let mut next = 0;
    let mut seen = String::new();
    for event in logs {
        let piece = event.data["text"].as_str().unwrap();
        assert!(piece.len() <= 64 << 10);
        assert_eq!(event.data["offset"], next);
        next += piece.len();
        assert_eq!(event.id.as_deref(), Some(next.to_string().as_str()));
        assert_eq!(event.data["attempt"], 1);
        seen.push_str(piece);
    }
    assert!(logs.len() >= 3, "one event holds too much");
    assert_eq!(seen, text);

    let resumed = fixture.stream(&path, ALICE, Some(70_000)).await.until_end().await;
    assert_eq!(resumed[0].data["text"], text[70_000..]);
    let other = format!("{path}?since=70000&since_attempt=2");
    let restarted = fixture.stream(&other, ALICE, None).await.until_end().await;
    assert_eq!(restarted[0].data["offset"], 0);
    let view = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(view["exit_code"], 0);
    assert_eq!(view["nodes"], json!(["gpu-1"]));
    assert_eq!(view["members"][0]["end"]["text"], "exited with code 0");
    assert_eq!(view["attempt_list"][0]["outcome"], "SUCCEEDED");
}

#[tokio::test]
async fn a_log_is_read_in_pieces() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    fixture.write_log(&member, "output", "a\u{20ac}b\u{1b}[31m\u{20ac}".as_bytes());
    node.report_running(&member).await;
    let read = async |query: &str| {
        let path = format!("/api/v1/jobs/{job}/logs{query}");
        let response = fixture.request(Method::GET, &path, ALICE).send().await.unwrap();
        assert_eq!(response.status(), 200, "{query}");
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        let headers =
            ["next-offset", "total-bytes", "complete"].map(|h| header(&format!("x-gangline-{h}")));
        (headers, response.text().await.unwrap())
    };
    let (headers, text) = read("?limit=3").await;
    assert_eq!((headers, text.as_str()), (["1", "13", "false"].map(str::to_owned), "a"));
    let (headers, text) = read("?offset=1").await;
    assert_eq!(headers, ["13", "13", "false"]);
    assert_eq!(text, "\u{20ac}b\u{1b}[31m\u{20ac}");
    node.report_success(&member).await;
    let (headers, text) = read("?offset=13&rank=0&attempt=1").await;
    assert_eq!((headers, text.as_str()), (["13", "13", "true"].map(str::to_owned), ""));
    let (headers, _) = read("?limit=0").await;
    assert_eq!(headers, ["0", "13", "false"]);
    for query in ["rank=1", "rank=head", "rank=-1", "attempt=0", "offset=-1"] {
        let path = format!("/api/v1/jobs/{job}/logs?{query}");
        assert_eq!(fixture.problem(Method::GET, &path, ALICE).await["status"], 400, "{query}");
    }
}

#[tokio::test]
async fn a_log_is_complete_only_when_the_job_has_ended() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, &SPEC.replace("nnodes: 1", "nnodes: 2")).await;
    let nodes = [fixture.node("gpu-1").await, fixture.node("gpu-2").await];
    let first = fixture.place(&job, 1).await;
    let second = MemberKey { member: MemberId::Rank(1), ..first.clone() };
    fixture.write_log(&first, "output", b"rank 0");
    let view = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    let on = |rank: usize| {
        nodes.iter().find(|node| view["members"][rank]["node"] == node.name()).unwrap()
    };
    let complete = async || {
        let path = format!("/api/v1/jobs/{job}/logs");
        let response = fixture.request(Method::GET, &path, ALICE).send().await.unwrap();
        response.headers()["x-gangline-complete"].to_str().unwrap().to_owned()
    };
    on(1).report(vec![(second.clone(), Phase::Running { pid: 8 })], Vec::new()).await;
    on(0).report_running(&first).await;
    let exited = ended(EndHow::Exited { code: 0 });
    on(0).report(vec![(first.clone(), exited)], Vec::new()).await;
    // The driver takes events in order, so after this answer it has taken the report.
    fixture.submit(BOB, SPEC).await;
    assert_eq!(complete().await, "false", "rank 1 still runs");
    on(1).report_success(&second).await;
    assert_eq!(complete().await, "true");
}

#[tokio::test]
async fn a_follower_goes_on_with_the_next_incarnation() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let path = format!("/api/v1/jobs/{job}/logs/stream");
    let follower = fixture.stream(&path, ALICE, None).await;
    let node = fixture.node("gpu-1").await;
    let first = fixture.place(&job, 1).await;
    fixture.write_log(&first, "output", b"first, and half a character: \xe2\x82");
    let busy = EndHow::Refused { reason: "port 20000 is taken".into(), busy_port: Some(20_000) };
    node.report(vec![(first.clone(), ended(busy))], Vec::new()).await;
    let second = fixture.place(&job, 2).await;
    fixture.write_log(&second, "output", b"second");
    node.report_running(&second).await;
    node.report_success(&second).await;

    let events = follower.until_end().await;
    let texts: String = events.iter().filter_map(|event| event.data["text"].as_str()).collect();
    // The follower may look for the first time when the first incarnation is history.
    assert!(
        ["second", "first, and half a character: \u{fffd}second"].contains(&texts.as_str()),
        "{events:?}"
    );
    let begin = events.iter().find(|event| event.data["text"] == "second").unwrap();
    assert_eq!((&begin.data["offset"], begin.id.as_deref()), (&json!(0), Some("6")));
    assert_eq!(events.last().unwrap().data["state"], "SUCCEEDED");
}

#[tokio::test]
async fn the_log_of_a_ray_job_is_its_drivers() {
    let fixture = Fixture::start().await;
    let spec = SPEC.replace("{type: command}", "{type: ray}");
    let job = fixture.submit(ALICE, &spec).await;
    let node = fixture.node("gpu-1").await;
    let head = fixture.place(&job, 1).await;
    assert_eq!(head.member, MemberId::Head);
    let rank = MemberKey { member: MemberId::Rank(0), ..head.clone() };
    let path = format!("/api/v1/jobs/{job}/logs/stream");
    let follower = fixture.stream(&path, ALICE, None).await;
    fixture.write_log(&head, "output", b"raylet of the head");
    fixture.write_log(&rank, "output", b"raylet of rank 0");
    // Ray keeps a note of the same name on the head: not the driver's log.
    fixture.write_log(&head, &format!("driver-{job}-1"), b"setting up");
    fixture.write_log(&rank, &format!("driver-{job}-1"), b"step:1");
    let ray_node = |member, id: &str| RayNode {
        member,
        ray_node_id: id.to_owned(),
        address: "127.0.0.1".to_owned(),
        alive: true,
        state_message: String::new(),
    };
    let facts = |entrypoint| GangFacts {
        gang: head.gang.clone(),
        epoch: head.epoch,
        ready: true,
        ray: Some(RayFacts {
            version: "2.60.0".to_owned(),
            session: "session_1".to_owned(),
            nodes: vec![ray_node(MemberId::Head, "aa"), ray_node(MemberId::Rank(0), "bb")],
            driver: Some(RayDriver { ray_node_id: "bb".to_owned(), member: None, address: None }),
        }),
        entrypoints: vec![(format!("{job}-1"), entrypoint)],
    };
    let both = |phase: Phase| vec![(head.clone(), phase.clone()), (rank.clone(), phase)];
    let running = both(Phase::Running { pid: 7 });
    node.report(running.clone(), vec![facts(EntrypointFact::Running)]).await;
    node.until(&head, |state| state == JobState::Running).await;
    let view = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(view["driver_node"], "gpu-1");
    assert_eq!(view["attempt_list"][0]["driver"]["member"], "0");
    assert_eq!(view["attempt_list"][0]["ray_nodes"][0]["member"], "head");
    node.report(running, vec![facts(EntrypointFact::Succeeded)]).await;
    node.until(&head, |state| state == JobState::Stopping).await;
    node.report(both(ended(EndHow::Exited { code: 0 })), Vec::new()).await;

    let events = follower.until_end().await;
    let texts: Vec<_> = events.iter().filter_map(|event| event.data["text"].as_str()).collect();
    assert_eq!(texts, ["step:1"]);
    for (rank, expected) in [("head", "raylet of the head"), ("0", "raylet of rank 0")] {
        let path = format!("/api/v1/jobs/{job}/logs?rank={rank}");
        let response = fixture.request(Method::GET, &path, ALICE).send().await.unwrap();
        assert_eq!(response.headers()["x-gangline-complete"], "true");
        assert_eq!(response.text().await.unwrap(), expected);
    }
}

// ---------------------------------------------------------------- nodes, tokens

#[tokio::test]
async fn a_node_shows_only_the_jobs_of_the_caller() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, &SPEC.replace("gpus_per_node: 0", "gpus_per_node: 1")).await;
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    node.report_running(&member).await;
    let own = fixture.get("/api/v1/nodes/gpu-1", ALICE).await;
    assert_eq!((&own["state"], &own["gpus_in_use"]), (&json!("mixed"), &json!(1)));
    assert_eq!((&own["jobs"], &own["gpus"][0]["job"]), (&json!([job]), &json!(job)));
    assert_eq!(own["members"][0]["phase"], "running");
    assert_eq!(own["doctor"][0]["check"], "shm");
    let foreign = fixture.get("/api/v1/nodes/gpu-1", BOB).await;
    assert_eq!(foreign["gpus"][0]["in_use"], true);
    assert!(!foreign.to_string().contains(&job), "{foreign}");
    drop(fixture.stream("/api/v1/nodes/stream", BOB, None).await);
    let list = fixture.get("/api/v1/nodes", BOB).await;
    assert_eq!(list["nodes"][0]["name"], "gpu-1");
    assert!(list["nodes"][0].get("doctor").is_none());

    let revoke = fixture.request(Method::POST, "/api/v1/nodes/gpu-1/revoke", ADMIN);
    let revoked: Value = revoke.send().await.unwrap().json().await.unwrap();
    assert_eq!(revoked["state"], "revoked");
    let problem = fixture.problem(Method::POST, "/api/v1/nodes/none/revoke", ADMIN).await;
    assert_eq!((&problem["status"], &problem["code"]), (&json!(404), &json!("E0307")));
}

#[tokio::test]
async fn only_what_a_lost_node_holds_is_released_by_force() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    fixture.node("gpu-1").await;
    fixture.place(&job, 1).await;
    let refused = async |node: &str, token: &str, body: &str| {
        let path = format!("/api/v1/nodes/{node}/force-release");
        let request = fixture.request(Method::POST, &path, token).body(body.to_owned());
        let problem: Value = request.send().await.unwrap().json().await.unwrap();
        problem["code"].as_str().unwrap_or_default().to_owned()
    };
    let why = r#"{"reason": "the container is deleted"}"#;
    assert_eq!(refused("gpu-1", ALICE, why).await, "E0302", "operators only");
    assert_eq!(refused("gpu-1", DAVE, why).await, "E0368", "its agent can say it itself");
    assert_eq!(refused("gpu-1", DAVE, "").await, "E0320");
    assert_eq!(refused("gpu-1", DAVE, r#"{"reason": " "}"#).await, "E0320");
    assert_eq!(refused("none", DAVE, why).await, "E0307");
    // One node is no witness of itself, and the job says what that means.
    let shown = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    let policy = shown["on_disconnect"].as_str().unwrap();
    assert!(policy.starts_with("keep (fence needs a witness"), "{policy}");
}

#[tokio::test]
async fn tokens_are_made_by_admins_and_work() {
    let fixture = Fixture::start().await;
    let make = async |body: Value| {
        let request = fixture.request(Method::POST, "/api/v1/tokens", ADMIN).body(body.to_string());
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let (status, join) = make(json!({"kind": "join", "uses": 2, "ttl_s": 600, "pool": null})).await;
    assert_eq!(status, 201);
    let token: JoinToken = join["token"].as_str().unwrap().parse().unwrap();
    assert_eq!((token.pin, token.id.as_str()), ([7; 32], join["id"].as_str().unwrap()));
    assert!(join["expires"].as_str().unwrap().ends_with('Z'));
    let wish = json!({"kind": "api", "name": "carol-1", "user": "carol", "project": "rlhf", "role": "member"});
    let (status, made) = make(wish).await;
    assert_eq!(status, 201);
    let who = fixture.get("/api/v1/whoami", made["token"].as_str().unwrap()).await;
    assert_eq!(who, json!({"user": "carol", "project": "rlhf", "role": "member"}));
    for wrong in [
        json!({"kind": "join", "uses": 0}),
        json!({"kind": "join", "ttl_s": 0}),
        json!({"kind": "join", "pool": "../x"}),
        json!({"kind": "join", "use": 1}),
        json!({"kind": "api", "name": "", "user": "u", "project": "p", "role": "member"}),
        json!({"kind": "api", "name": "n", "user": "u", "project": "p", "role": "root"}),
        json!({"kind": "other"}),
        json!([]),
    ] {
        let (status, problem) = make(wrong.clone()).await;
        assert_eq!(status, 422, "{wrong}: {problem}");
    }
}

// ---------------------------------------------------------------- the document

#[tokio::test]
async fn each_role_may_what_it_is_for() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let of_bob = fixture.submit(BOB, SPEC).await;
    // A viewer sees its project, and nothing of another.
    assert_eq!(fixture.get("/api/v1/jobs", CAROL).await["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(fixture.get(&format!("/api/v1/jobs/{job}"), CAROL).await["id"], job.as_str());
    let hidden = fixture.problem(Method::GET, &format!("/api/v1/jobs/{of_bob}"), CAROL).await;
    assert_eq!(hidden["code"], "E0306");
    let stop = format!("/api/v1/jobs/{job}/stop");
    assert_eq!(fixture.problem(Method::POST, &stop, CAROL).await["code"], "E0302");
    // An operator sees and stops anybody's, and submits only to its own project.
    assert_eq!(fixture.get("/api/v1/jobs", DAVE).await["jobs"].as_array().unwrap().len(), 2);
    let answer = fixture.request(Method::POST, &stop, DAVE).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let spec = SPEC.replace("name:", "project: rlhf\nname:");
    assert!(spec.contains("project: rlhf"), "{spec}");
    let request = fixture.request(Method::POST, "/api/v1/jobs", DAVE).body(spec);
    let request = request.header("content-type", "application/yaml");
    assert_eq!(request.send().await.unwrap().status(), 403);
}

#[tokio::test]
async fn a_token_is_listed_expires_and_is_deleted() {
    let fixture = Fixture::start().await;
    let make = async |body: Value| {
        let request = fixture.request(Method::POST, "/api/v1/tokens", ADMIN).json(&body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 201, "{body}");
        response.json::<Value>().await.unwrap()
    };
    let api = |name: &str, ttl_s: Option<u64>| {
        json!({"kind": "api", "name": name, "user": "eve", "project": "rlhf", "role": "viewer",
            "ttl_s": ttl_s})
    };
    let short = make(api("short", Some(1))).await;
    let long = make(api("long", Some(3600))).await;
    let join = make(json!({"kind": "join", "uses": 2})).await;
    let token = |made: &Value| made["token"].as_str().unwrap().to_owned();
    let who = fixture.get("/api/v1/whoami", &token(&long)).await;
    assert_eq!(who, json!({"user": "eve", "project": "rlhf", "role": "viewer"}));

    // A name stands for one user, project and role: only its token is made anew.
    let refused = async |body: Value| {
        let request = fixture.request(Method::POST, "/api/v1/tokens", ADMIN).json(&body);
        request.send().await.unwrap().json::<Value>().await.unwrap()["code"].clone()
    };
    let other = json!({"kind": "api", "name": "long", "user": "eve", "project": "vision",
        "role": "viewer"});
    assert_eq!(refused(other).await, "E0325");
    // Nobody could make another one: the last administrator's.
    for (role, ttl_s) in [("viewer", None), ("admin", Some(60))] {
        let body = json!({"kind": "api", "name": "root", "user": "root", "project": "ops",
            "role": role, "ttl_s": ttl_s});
        assert_eq!(refused(body).await, "E0323");
    }
    let long = make(api("long", Some(3600))).await;

    let listed = fixture.get("/api/v1/tokens", ADMIN).await;
    let text = listed.to_string();
    for made in [&short, &long, &join] {
        assert!(!text.contains(&token(made)), "a token is shown again");
    }
    let row = |key: &str, value: &str| {
        let rows = listed["tokens"].as_array().unwrap();
        rows.iter().find(|row| row[key] == value).cloned().unwrap_or_default()
    };
    assert_eq!(row("name", "long")["role"], "viewer");
    assert!(row("name", "long")["expires"].is_string());
    assert!(row("name", "alice")["expires"].is_null());
    assert_eq!(row("id", join["id"].as_str().unwrap())["uses_left"], 2);

    // A15 for people: an expired token says so, and lets nobody in.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let expired = loop {
        let answer = fixture.request(Method::GET, "/api/v1/whoami", &token(&short)).send().await;
        let answer = answer.unwrap();
        if answer.status() != 200 {
            break answer.json::<Value>().await.unwrap();
        }
        assert!(std::time::Instant::now() < deadline, "it never expires");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_eq!(expired["status"], 401);
    assert!(expired["detail"].as_str().unwrap().contains("expired"), "{expired}");

    for name in ["long", join["id"].as_str().unwrap()] {
        let path = format!("/api/v1/tokens/{name}");
        let gone = fixture.request(Method::DELETE, &path, ADMIN).send().await.unwrap();
        assert_eq!(gone.status(), 204, "{name}");
        assert_eq!(fixture.problem(Method::DELETE, &path, ADMIN).await["code"], "E0322");
    }
    assert_eq!(fixture.problem(Method::GET, "/api/v1/whoami", &token(&long)).await["status"], 401);
    let last = fixture.problem(Method::DELETE, "/api/v1/tokens/root", ADMIN).await;
    assert_eq!(last["code"], "E0323");
    let problem = fixture
        .request(Method::POST, "/api/v1/tokens", ADMIN)
        .json(&api("never", Some(0)))
        .send()
        .await
        .unwrap();
    assert_eq!(problem.status(), 422);
}

#[tokio::test]
async fn a47_what_is_done_is_in_the_audit_log_and_its_chain_holds() {
    let fixture = Fixture::start().await;
    let before = fixture.get("/api/v1/audit", ADMIN).await["entries"][0]["sequence"].clone();
    let job = fixture.submit(ALICE, SPEC).await;
    let stop = fixture.request(Method::POST, &format!("/api/v1/jobs/{job}/stop"), DAVE);
    let stop = stop.json(&json!({"reason": "needs the GPUs"}));
    assert_eq!(stop.send().await.unwrap().status(), 202);
    let page = fixture.get("/api/v1/audit?page_size=2", ADMIN).await;
    let entries = page["entries"].as_array().unwrap();
    let told = |at: usize, key: &str| entries[at][key].as_str().unwrap().to_owned();
    assert_eq!((told(0, "actor"), told(0, "action")), ("dave".into(), "job.stop".into()));
    assert_eq!(told(0, "detail"), "needs the GPUs");
    assert_eq!((told(1, "actor"), told(1, "action")), ("alice".into(), "job.submit".into()));
    assert_eq!((told(1, "object"), told(1, "source")), (format!("job {job}"), "127.0.0.1".into()));
    assert_eq!(page["next_before"], entries[1]["sequence"]);
    let older = fixture.get(&format!("/api/v1/audit?before={}", page["next_before"]), ADMIN).await;
    assert_eq!(older["entries"][0]["sequence"], before);
    assert!(older["next_before"].is_null());

    let verdict = fixture.get("/api/v1/audit/verify", ADMIN).await;
    assert_eq!((&verdict["intact"], &verdict["broken"]), (&json!(true), &Value::Null));
    assert_eq!(verdict["entries"], entries[0]["sequence"]);
    assert_eq!(verdict["hash"], entries[0]["hash"]);
}

#[tokio::test]
async fn the_document_is_served_and_lists_every_route() {
    let fixture = Fixture::start().await;
    let served = fixture.get("/api/v1/openapi.json", "").await;
    for RouteFacts { dialect, method, path, access } in route_list() {
        if dialect == Dialect::Ray {
            assert_eq!(served["paths"][&path], Value::Null, "{path} is not our contract");
            continue;
        }
        let operation = &served["paths"][&path][method.as_str().to_lowercase()];
        assert!(operation.is_object(), "{method} {path} is not in the document");
        let security = match access {
            Access::Open => json!([{}]),
            Access::Offers(_) => json!([{}, { "bearer": [] }]),
            Access::Needs(_) => Value::Null,
        };
        assert_eq!(operation["security"], security, "{method} {path}");
    }
}

#[test]
fn the_committed_document_is_the_generated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let generated = document() + "\n";
    if std::env::var_os("GANGLINE_UPDATE_OPENAPI").is_some() {
        std::fs::write(path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == generated,
        "coordinator/openapi.json is not what the handlers say. If the change is meant: \
         GANGLINE_UPDATE_OPENAPI=1 cargo test -p gangline-coordinator --test api document"
    );
}

#[tokio::test]
async fn a32_the_highest_priority_is_for_administrators_to_set() {
    let fixture = Fixture::start().await;
    let urgent = format!("{SPEC}queue: {{priority: urgent}}\n");
    let refused = fixture.submit_problem("", &urgent).await;
    assert_eq!((&refused["status"], &refused["code"]), (&json!(403), &json!("E0348")));
    let put = async |token: &str, body: &str| {
        let request = fixture.request(Method::PUT, "/api/v1/projects/rlhf", token);
        request.body(body.to_owned()).send().await.unwrap().status().as_u16()
    };
    assert_eq!(put(ALICE, r#"{"max_priority": 100}"#).await, 403);
    for bad in ["", "{}", r#"{"max_priority": 101}"#, r#"{"max_priority": -1}"#, r#"{"max": 1}"#] {
        assert!(matches!(put(ADMIN, bad).await, 400 | 422), "{bad}");
    }
    assert_eq!(put(ADMIN, r#"{"max_priority": 100}"#).await, 204);
    let job = fixture.submit(ALICE, &urgent).await;
    let shown = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(shown["priority"], 100);
    let own = fixture.get("/api/v1/projects", ALICE).await["projects"].clone();
    assert_eq!(own.as_array().map(Vec::len), Some(1), "{own}");
    assert_eq!((&own[0]["name"], &own[0]["max_priority"]), (&json!("rlhf"), &json!(100)));
    assert_eq!(own[0]["set_by"], "root");
    let all = fixture.get("/api/v1/projects", ADMIN).await["projects"].clone();
    let names: Vec<&str> =
        all.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "ops", "rlhf", "vision"]);
}
