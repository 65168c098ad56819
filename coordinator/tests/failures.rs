//! Failures of the coordinator itself, provoked on its own disk (A48): the caller learns a request
//! id and nothing of what lies behind.

mod fixture;

use axum::http::Method;
use fixture::{ALICE, Fixture, SPEC};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;

/// What would tell a stranger how this machine is made.
const TELLTALES: [&str; 9] =
    ["os error", "directory", "(os", ".log", ".key", ".rs", "panick", "backtrace", "/tmp"];

/// Everything that an answer says: its status, its headers and its body.
async fn all(response: Response) -> (u16, String, String) {
    let status = response.status().as_u16();
    let headers = format!("{:?}", response.headers());
    (status, headers, response.text().await.unwrap())
}

/// Sends what must fail inside, and finds the request id in the answer.
async fn failed(fixture: &Fixture, request: RequestBuilder) -> String {
    let (status, headers, body) = all(request.send().await.unwrap()).await;
    assert_eq!(status, 500, "{body}");
    let state = fixture.path().display().to_string();
    for telltale in TELLTALES.iter().copied().chain([state.as_str()]) {
        assert!(!body.contains(telltale) && !headers.contains(telltale), "{telltale}: {body}");
    }
    let begin = body.find("r-").expect("a request id");
    let id: String =
        body[begin..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    assert_eq!(id.len(), 10, "{id}");
    id
}

#[tokio::test]
async fn a48_an_internal_error_says_a_request_id_and_nothing_else() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    fixture.write_log(&member, "output", b"text");
    node.report_running(&member).await;
    let log = format!("{}/{}/{}", member.gang, member.epoch, member.member);
    let log = fixture.path().join("logs").join(log).join("output.log");
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    let ask = |method, path: &str| fixture.request(method, path, ALICE);

    let logs = ask(Method::GET, &format!("/api/v1/jobs/{job}/logs"));
    let mut ids = vec![failed(&fixture, logs).await];
    // Ray's dialect streams a log: it has nothing to say any more when the reading fails.
    let rays = ask(Method::GET, &format!("/api/jobs/{job}/logs")).send().await;
    let cut = match rays {
        Ok(response) => response.text().await.is_err(),
        Err(error) => error.is_request(),
    };
    assert!(cut, "the answer ends in the middle");

    std::fs::create_dir(fixture.path().join("secrets.key")).unwrap();
    let secret = ask(Method::PUT, "/api/v1/secrets/KEY").body("value");
    ids.push(failed(&fixture, secret).await);

    std::fs::remove_dir_all(fixture.path().join("packages")).unwrap();
    std::fs::write(fixture.path().join("packages"), "").unwrap();
    // Ray's dialect, as a text.
    let package = ask(Method::PUT, "/api/packages/gcs/_ray_pkg_0123456789abcdef.zip").body("zip");
    ids.push(failed(&fixture, package).await);

    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each failure has its own id");

    // The whole problem, once.
    let problem = fixture.problem(Method::GET, &format!("/api/v1/jobs/{job}/logs"), ALICE).await;
    let id = problem["request_id"].as_str().unwrap();
    let expected = serde_json::json!({
        "type": "/errors/E0399", "title": "The coordinator failed", "status": 500, "code": "E0399",
        "detail": "the request failed inside the coordinator", "request_id": id,
        "hint": format!("look for {id} in the coordinator's log"),
    });
    assert_eq!(problem, expected);
}

/// What a caller gets wrong is told in the caller's words, never in those of a library's innards.
#[tokio::test]
async fn a48_mistakes_are_told_without_what_is_behind() {
    let fixture = Fixture::start().await;
    let bodies: [(Method, &str, &str); 5] = [
        (Method::POST, "/api/v1/jobs", "run: [\n"),
        (Method::POST, "/api/v1/jobs/@last/stop", "{"),
        (Method::PUT, "/api/v1/secrets/..%2f..%2fetc", "x"),
        (Method::POST, "/api/jobs/", "{\"entrypoint\": 1}"),
        (Method::GET, "/api/v1/jobs?page_token=..%2f..%2fetc%2fpasswd", ""),
    ];
    fixture.submit(ALICE, SPEC).await;
    for (method, path, body) in bodies {
        let request = fixture.request(method, path, ALICE).body(body);
        let (status, _, text) = all(request.send().await.unwrap()).await;
        assert!((400..500).contains(&status), "{path}: {status} {text}");
        let state = fixture.path().display().to_string();
        for telltale in ["os error", ".rs", "backtrace", "panick", "passwd", state.as_str()] {
            assert!(!text.contains(telltale), "{path}: {text}");
        }
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(problem["request_id"].is_null(), "{path}: {text}");
    }
}

#[tokio::test]
async fn a37_a_path_in_the_query_of_a_log_is_refused() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    let _node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    fixture.write_log(&member, "output", b"text");
    std::fs::write(fixture.path().join("logs/secret.log"), "not a log of this job").unwrap();
    let up = "..%2f..%2f..%2fsecret";
    for query in [
        format!("rank={up}"),
        format!("attempt={up}"),
        format!("file={up}"),
        format!("rank=0&offset={up}"),
    ] {
        for list in ["logs", "logs/stream"] {
            let path = format!("/api/v1/jobs/{job}/{list}?{query}");
            assert_eq!(fixture.problem(Method::GET, &path, ALICE).await["status"], 400, "{path}");
        }
    }
    for id in [up, "..", "%2e%2e", "..%2f"] {
        let path = format!("/api/v1/jobs/{id}/logs");
        assert_eq!(fixture.problem(Method::GET, &path, ALICE).await["status"], 404, "{path}");
    }
}
