//! How many requests one token may make, over HTTP and in both dialects.

mod fixture;

use axum::http::Method;
use fixture::{ADMIN, ALICE, BOB, Fixture, SPEC};
use gangline_coordinator::config::{Rate, RateLimits};
use serde_json::{Value, json};

/// One a second, after a burst.
fn limits(requests: u32, submits: u32) -> RateLimits {
    let rate = |burst| Rate { per_s: 1, burst };
    RateLimits { requests: rate(requests), submits: rate(submits) }
}

#[tokio::test]
async fn a_token_that_asks_too_often_is_told_when_to_come_back() {
    let fixture = Fixture::limited(limits(20, 20)).await;
    let ask = async |token: &str| {
        let request = fixture.request(Method::GET, "/api/v1/whoami", token);
        request.send().await.unwrap()
    };
    let mut refused = None;
    // A slow machine gets some back on its way.
    for _ in 0..500 {
        let response = ask(ALICE).await;
        if response.status() != 200 {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("a limit");
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem: Value = refused.json().await.unwrap();
    assert_eq!((&problem["code"], &problem["retry_after_s"]), (&json!("E0367"), &json!(1)));
    assert!(problem["detail"].as_str().unwrap().contains("1 requests a second"), "{problem}");
    // Others are not held up, and neither is who asks whether the coordinator lives.
    assert_eq!(ask(BOB).await.status(), 200);
    for _ in 0..100 {
        assert_eq!(
            fixture.request(Method::GET, "/healthz", "").send().await.unwrap().status(),
            200
        );
    }
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(ask(ALICE).await.status(), 200, "after the time that it was told");
}

#[tokio::test]
async fn submits_of_both_dialects_count_together() {
    let fixture = Fixture::limited(limits(1000, 4)).await;
    let ours = async |n: u32| {
        let path = format!("/api/v1/jobs?submission_id=j{n}");
        let request = fixture.request(Method::POST, &path, ALICE).body(SPEC);
        request.send().await.unwrap().status().as_u16()
    };
    let rays = async || {
        let body = json!({"entrypoint": "python train.py"}).to_string();
        let request = fixture.request(Method::POST, "/api/jobs/", ALICE);
        let request = request.header("content-type", "application/json").body(body);
        request.send().await.unwrap()
    };
    let mut made = 0;
    for n in 0..50 {
        if ours(n).await == 201 {
            made += 1;
        }
        if rays().await.status() == 200 {
            made += 1;
        }
    }
    assert!((4..50).contains(&made), "{made} of 100 submits");
    // Ray's clients get a text.
    let mut refused = rays().await;
    while refused.status() == 200 {
        refused = rays().await;
    }
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    let text = refused.text().await.unwrap();
    assert!(text.starts_with("your token makes more than 1 submits a second"), "{text}");
    // Reading goes on, and what was refused left nothing.
    let jobs = fixture.get("/api/v1/jobs?page_size=1000", ADMIN).await;
    assert!(jobs["jobs"].as_array().unwrap().len() >= made);
    assert_eq!(fixture.get("/api/v1/whoami", ALICE).await["user"], "alice");
}

#[tokio::test]
async fn no_rate_is_no_limit() {
    let none = Rate { per_s: 0, burst: 0 };
    let fixture = Fixture::limited(RateLimits { requests: none, submits: none }).await;
    for _ in 0..1000 {
        let response = fixture.request(Method::GET, "/api/v1/whoami", ALICE).send().await.unwrap();
        assert_eq!(response.status(), 200);
    }
}
