//! What is done to jobs in the queue, through the API: who may, what is answered, what is kept.

mod fixture;

use axum::http::Method;
use fixture::{ADMIN, ALICE, BOB, CAROL, DAVE, Fixture, SPEC};
use serde_json::{Value, json};

/// Status and body of a request about a job.
async fn ask(fixture: &Fixture, job: &str, verb: &str, token: &str, body: &Value) -> (u16, Value) {
    let path = format!("/api/v1/jobs/{job}/{verb}");
    let request = fixture.request(Method::POST, &path, token).body(body.to_string());
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn a_job_is_held_and_released_and_everybody_sees_by_whom() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let why = json!({"reason": "check the data"});
    let (status, answer) = ask(&fixture, "hello", "hold", ALICE, &why).await;
    assert_eq!((status, &answer["job"]["held"]["by"]), (200, &json!("alice")), "{answer}");
    assert_eq!(answer["job"]["state"], "PENDING");
    assert_eq!(answer["job"]["reason"], "held by alice: check the data");
    // An operator asks for the same, and finds it done.
    let (status, again) = ask(&fixture, &job, "hold", DAVE, &json!({})).await;
    assert_eq!((status, &again["job"]["held"]), (200, &answer["job"]["held"]));
    let (_, released) = ask(&fixture, &job, "release", DAVE, &json!({})).await;
    assert_eq!(released["job"]["held"], Value::Null);
    let seen = fixture.get(&format!("/api/v1/jobs/{job}"), CAROL).await;
    let told: Vec<_> = seen["history"].as_array().unwrap().iter().collect();
    let told = told.iter().map(|entry| (entry["actor"].clone(), entry["text"].clone()));
    let expected =
        [("alice", "submitted"), ("alice", "held: check the data"), ("dave", "released")];
    let expected = expected.map(|(actor, text)| (json!(actor), json!(text)));
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let audit = fixture.get("/api/v1/audit?page_size=2", ADMIN).await;
    let actions: Vec<_> = audit["entries"].as_array().unwrap().iter().collect();
    let actions = actions.iter().map(|entry| entry["action"].clone());
    assert_eq!(actions.collect::<Vec<_>>(), ["job.release", "job.hold"], "one entry for each act");
}

#[tokio::test]
async fn a_running_job_is_requeued_once_for_each_attempt() {
    let fixture = Fixture::start().await;
    let node = fixture.node("gpu-1").await;
    let job = fixture.submit(ALICE, SPEC).await;
    let key = fixture.place(&job, 1).await;
    node.report_running(&key).await;
    let (status, problem) = ask(&fixture, &job, "hold", ALICE, &json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("E0380")), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("gangline requeue"));
    let nobody = json!({"exclude_nodes": ["gpu-77"]});
    let (status, problem) = ask(&fixture, &job, "requeue", ALICE, &nobody).await;
    assert_eq!((status, &problem["code"]), (404, &json!("E0307")), "{problem}");
    let body = json!({"reason": "slow", "attempt": 1});
    for _ in 0..2 {
        let (status, answer) = ask(&fixture, &job, "requeue", ALICE, &body).await;
        assert_eq!((status, &answer["job"]["state"]), (200, &json!("STOPPING")));
        let reason = "goes back to the queue: requeued by alice: slow";
        assert_eq!(answer["job"]["reason"], reason);
    }
    let old = json!({"attempt": 7});
    assert_eq!(ask(&fixture, &job, "requeue", ALICE, &old).await.0, 200);
}

#[tokio::test]
async fn a_job_that_has_ended_is_cloned_and_not_requeued() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    ask(&fixture, &job, "stop", ALICE, &json!({})).await;
    for (verb, body) in [
        ("hold", json!({})),
        ("release", json!({})),
        ("requeue", json!({})),
        ("priority", json!({"priority": 1})),
        ("extend", json!({"timeout_s": 60})),
    ] {
        let (status, problem) = ask(&fixture, &job, verb, ALICE, &body).await;
        assert_eq!((status, &problem["code"]), (409, &json!("E0314")), "{verb}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("CANCELLED"), "{problem}");
        assert!(problem["hint"].as_str().unwrap().contains("gangline clone"), "{problem}");
    }
}

#[tokio::test]
async fn a32_a_priority_over_the_projects_highest_is_for_operators() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let urgent = json!({"priority": 100});
    let (status, problem) = ask(&fixture, &job, "priority", ALICE, &urgent).await;
    assert_eq!((status, &problem["code"]), (403, &json!("E0348")), "{problem}");
    assert_eq!(ask(&fixture, &job, "priority", BOB, &urgent).await.0, 404);
    assert_eq!(ask(&fixture, &job, "priority", CAROL, &urgent).await.0, 403);
    let (status, answer) = ask(&fixture, &job, "priority", DAVE, &urgent).await;
    assert_eq!((status, &answer["job"]["priority"]), (200, &json!(100)));
    let seen = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(seen["spec"]["queue"], Value::Null, "the spec stays what was submitted");
    for wrong in [json!({"priority": 101}), json!({"priority": "high"}), json!({}), json!([])] {
        assert_eq!(ask(&fixture, &job, "priority", ALICE, &wrong).await.0, 422, "{wrong}");
    }
}

#[tokio::test]
async fn a_time_limit_is_extended() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, &format!("{SPEC}timeout: 1h\n")).await;
    let (status, answer) = ask(&fixture, &job, "extend", ALICE, &json!({"timeout_s": 7200})).await;
    assert_eq!((status, &answer["job"]["timeout_s"]), (200, &json!(7200)));
    let (status, problem) = ask(&fixture, &job, "extend", ALICE, &json!({"timeout_s": 60})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("E0382")), "{problem}");
    for wrong in [json!({"timeout_s": 0}), json!({"timeout_s": 366 * 86_400}), json!({"by_s": 1})] {
        assert_eq!(ask(&fixture, &job, "extend", ALICE, &wrong).await.0, 422, "{wrong}");
    }
    let endless = fixture.submit(ALICE, SPEC).await;
    let (status, problem) =
        ask(&fixture, &endless, "extend", ALICE, &json!({"timeout_s": 60})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("E0382")), "{problem}");
}

#[tokio::test]
async fn a_job_names_the_jobs_that_it_runs_after() {
    let fixture = Fixture::start().await;
    let old = fixture.submit(ALICE, SPEC).await;
    let new = fixture.submit(ALICE, SPEC).await;
    let after = |jobs: &str| format!("{SPEC}queue: {{after: [{jobs}]}}\n");
    // A name is the newest job of that name; its own is the one before it.
    let by_name = fixture.submit(ALICE, &after("job:hello")).await;
    let seen = fixture.get(&format!("/api/v1/jobs/{by_name}"), ALICE).await;
    assert_eq!(seen["waits_for"], json!([new]));
    assert_eq!(seen["reason"], format!("waits for the success of {new} (hello)"));
    let by_id = fixture.submit(ALICE, &after(&format!("{old}, job:{new}"))).await;
    let seen = fixture.get(&format!("/api/v1/jobs/{by_id}"), ALICE).await;
    assert_eq!(seen["waits_for"], json!([old, new]));
    // Another project's job is as good as none, unless one may see it.
    let foreign = fixture.submit(BOB, SPEC).await;
    let problem = fixture.submit_problem("", &after(&format!("{old}, {foreign}"))).await;
    let error = &problem["errors"][0];
    assert_eq!((&problem["status"], &error["pointer"]), (&json!(422), &json!("/queue/after/1")));
    assert!(error["line"].is_number() && error["column"].is_number(), "{problem}");
    let nothing = fixture.submit_problem("", &after("no-such-job")).await;
    assert_eq!(
        nothing["errors"][0]["detail"].as_str().unwrap().replace("no-such-job", &foreign),
        error["detail"].as_str().unwrap()
    );
    fixture.submit(DAVE, &after(&foreign)).await;
    // Itself, by the id that it is to have.
    let problem = fixture.submit_problem("?submission_id=me", &after("me")).await;
    assert_eq!(problem["errors"][0]["detail"], "the job `me` would wait for itself");
    // What has failed never succeeds; and those that wait for it fail with it.
    ask(&fixture, &new, "stop", ALICE, &json!({"reason": "wrong data"})).await;
    let problem = fixture.submit_problem("", &after(&new)).await;
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("is CANCELLED and will not succeed any more"), "{problem}");
    for job in [&by_name, &by_id] {
        let seen = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
        assert_eq!(seen["state"], "FAILED");
        let reason = format!(
            "{new} (hello), which it was to run after, is CANCELLED: stopped by alice: wrong data"
        );
        assert_eq!(seen["reason"], reason);
    }
}

#[tokio::test]
async fn the_same_key_makes_one_job_whatever_became_of_those_before_it() {
    let fixture = Fixture::start().await;
    let first = fixture.submit(ALICE, SPEC).await;
    let spec = format!("{SPEC}queue: {{after: [{first}]}}\n");
    let mut made = Vec::new();
    for round in 0..2 {
        let request = fixture.request(Method::POST, "/api/v1/jobs", ALICE);
        let request = request.header("idempotency-key", "k1").body(spec.clone());
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), [201, 200][round]);
        let answer: Value = response.json().await.unwrap();
        made.push(answer["job"]["id"].clone());
        ask(&fixture, &first, "stop", ALICE, &json!({})).await;
    }
    assert_eq!(made[0], made[1]);
}

#[tokio::test]
async fn a_job_shows_when_it_may_start_and_how_long_it_waits() {
    let fixture = Fixture::start().await;
    let queue = "{not_before: 2199-12-01T22:00:00+08:00, max_wait: 7d, hold: false}";
    let job = fixture.submit(ALICE, &format!("{SPEC}queue: {queue}\n")).await;
    let seen = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(seen["not_before"], "2199-12-01T14:00:00.000Z");
    assert_eq!(seen["max_wait_s"], 7 * 86_400);
    assert_eq!(seen["reason"], "waits until 2199-12-01T14:00:00.000Z");
    let problem = fixture
        .submit_problem("", &format!("{SPEC}queue: {{not_before: 2026-12-01T22:00:00}}\n"))
        .await;
    let error = &problem["errors"][0];
    assert_eq!((&error["pointer"], &error["line"]), (&json!("/queue/not_before"), &json!(8)));
    let detail = error["detail"].as_str().unwrap();
    assert!(detail.contains("such as 2026-12-01T22:00:00+08:00"), "{problem}");
}
