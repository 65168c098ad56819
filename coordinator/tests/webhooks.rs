//! Webhooks: real endpoints on sockets that take, refuse and never answer; who may set them; that no
//! address and no key is anywhere; and that an end of the coordinator in between loses nothing.

mod fixture;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::routing::post;
use fixture::{ADMIN, ALICE, BOB, CAROL, DAVE, Fixture, SPEC};
use gangline_common::time::Timestamp;
use gangline_coordinator::core::effect::{Effects, Write};
use gangline_coordinator::core::gang::EndHow;
use gangline_coordinator::core::job::Transition;
use gangline_coordinator::core::node::{Lifecycle, Node, Reachability};
use gangline_coordinator::core::notices::Notice;
use gangline_coordinator::driver;
use gangline_coordinator::ingest::logs::Logs;
use gangline_coordinator::meters::Meters;
use gangline_coordinator::outbox::Outbox;
use gangline_coordinator::secrets::Sealer;
use gangline_coordinator::store::Store;
use gangline_coordinator::training::Trainings;
use gangline_coordinator::webhooks::{self, EVENT_ID, Pace, Parts, SIGNATURE, Troubles, signature};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const KEY: &str = "0123456789abcdef-key";
/// How long anything may take here.
const LONG: Duration = Duration::from_secs(60);

/// Fast enough for a test.
const PACE: Pace = Pace {
    timeout: Duration::from_millis(500),
    wait: (Duration::from_millis(10), Duration::from_millis(50)),
    attempts: 3,
    patience: Duration::from_secs(3600),
    again: Duration::from_millis(300),
};

/// One request as it came in.
#[derive(Clone, Debug)]
struct Came {
    headers: HeaderMap,
    body: Bytes,
    at_ms: u64,
}

impl Came {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn kind(&self) -> String {
        self.json()["kind"].as_str().unwrap_or_default().to_owned()
    }

    fn id(&self) -> &str {
        self.headers[EVENT_ID].to_str().unwrap()
    }
}

/// The pause that every endpoint here asks for with its 429, in seconds.
const PAUSE: &str = "1";

/// What an endpoint answers to its n-th request, from 0, and once it is well; `None` for never.
type Answers = fn(usize, bool) -> Option<u16>;

#[derive(Clone)]
struct Endpoint {
    address: SocketAddr,
    came: Arc<Mutex<Vec<Came>>>,
    answers: Answers,
    is_well: Arc<AtomicBool>,
}

impl Endpoint {
    async fn start(answers: Answers) -> Endpoint {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let endpoint = Endpoint { address, came: Arc::default(), answers, is_well: Arc::default() };
        let routes = Router::new().route("/secret-path", post(take));
        let routes = routes.route("/api/v2/alerts", post(take)).with_state(endpoint.clone());
        tokio::spawn(async move { axum::serve(socket, routes).await });
        endpoint
    }

    fn url(&self) -> String {
        format!("http://{}/secret-path", self.address)
    }

    fn came(&self) -> Vec<Came> {
        self.came.lock().unwrap().clone()
    }

    /// Waits until what came fits.
    async fn until(&self, what: &str, fits: impl Fn(&[Came]) -> bool) -> Vec<Came> {
        let end = Instant::now() + LONG;
        loop {
            let came = self.came();
            if fits(&came) {
                return came;
            }
            assert!(Instant::now() < end, "no {what}: {came:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn take(
    State(endpoint): State<Endpoint>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, HeaderMap) {
    let number = {
        let mut came = endpoint.came.lock().unwrap();
        came.push(Came { headers, body, at_ms: Timestamp::now().wall_ms });
        came.len() - 1
    };
    match (endpoint.answers)(number, endpoint.is_well.load(Ordering::Relaxed)) {
        Some(status) => {
            let pause = (RETRY_AFTER, HeaderValue::from_static(PAUSE));
            let headers = (status == 429).then_some(pause).into_iter().collect();
            (StatusCode::from_u16(status).unwrap(), headers)
        }
        None => std::future::pending().await,
    }
}

struct Telling {
    fixture: Fixture,
    task: JoinHandle<()>,
}

impl Telling {
    async fn start() -> Telling {
        let fixture = Fixture::start().await;
        let task = tokio::spawn(webhooks::run(Parts {
            driver: fixture.driver.clone(),
            board: fixture.board.clone(),
            notices: fixture.notices.clone(),
            sealer: fixture.sealer.clone(),
            cluster: "test".to_owned(),
            pace: PACE,
            troubles: fixture.troubles.clone(),
            trainings: fixture.trainings.clone(),
        }));
        Telling { fixture, task }
    }

    async fn send(&self, method: Method, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let request = self.fixture.request(method, &format!("/api/v1/webhooks{path}"), token);
        let response = request.json(body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    async fn add(&self, name: &str, url: &str, more: Value) {
        let mut body = json!({ "url": url, "key": KEY });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let path = format!("/{name}?fleet=true");
        let (status, answer) = self.send(Method::PUT, &path, ADMIN, &body).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn row(&self, name: &str) -> Value {
        let (_, list) = self.send(Method::GET, "?fleet=true", ADMIN, &json!({})).await;
        let rows = list["webhooks"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    }

    /// A node joins: an event of the fleet.
    async fn node(&self, name: &str) {
        self.fixture.node(name).await;
    }
}

#[tokio::test]
async fn a_body_is_signed_and_tried_again_under_the_same_id() {
    let telling = Telling::start().await;
    // A refusal, no answer, and then it is taken.
    let endpoint = Endpoint::start(|number, _| match number {
        0 => Some(500),
        1 => None,
        _ => Some(200),
    })
    .await;
    telling.add("ops", &endpoint.url(), json!({})).await;
    telling.node("gpu-1").await;
    telling.node("gpu-2").await;
    let came = endpoint.until("four requests", |came| came.len() == 4).await;
    let ids: Vec<&str> = came.iter().map(Came::id).collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2] && ids[2] != ids[3], "{ids:?}");
    assert_eq!(came[0].body, came[2].body);
    let body = came[3].json();
    assert_eq!((&body["kind"], &body["object"]), (&json!("node.joined"), &json!("node gpu-2")));
    assert_eq!((&body["id"], &body["cluster"]), (&json!(ids[3]), &json!("test")));
    for one in &came {
        let header = one.headers[SIGNATURE].to_str().unwrap();
        let (time, made) = header.split_once(",v1=").unwrap();
        let seconds: u64 = time.strip_prefix("t=").unwrap().parse().unwrap();
        assert_eq!(made, signature(KEY, seconds, &one.body));
        assert_ne!(made, signature("another key, 16 or more", seconds, &one.body));
        assert!(seconds.abs_diff(one.at_ms / 1000) < LONG.as_secs());
    }
}

#[tokio::test]
async fn what_cannot_be_told_is_a_dead_letter_and_the_next_one_is_told() {
    let telling = Telling::start().await;
    let endpoint = Endpoint::start(|number, _| Some(if number < 3 { 500 } else { 204 })).await;
    telling.add("ops", &endpoint.url(), json!({ "events": ["node.joined"] })).await;
    telling.node("gpu-1").await;
    telling.node("gpu-2").await;
    let came = endpoint.until("the next", |came| came.len() == 4).await;
    assert_eq!(came[3].json()["object"], "node gpu-2");
    let end = Instant::now() + LONG;
    while telling.row("ops").await["delivered"] != 1 {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_, dead) = telling.send(Method::GET, "/ops/dead?fleet=true", ADMIN, &json!({})).await;
    let [letter] = dead["dead"].as_array().unwrap().as_slice() else { panic!("{dead}") };
    assert_eq!(letter["id"].as_str().unwrap(), came[0].id());
    assert_eq!((&letter["attempts"], &letter["cause"]), (&json!(3), &json!("it answered 500")));
    assert_eq!((&letter["kind"], &letter["object"]), (&json!("node.joined"), &json!("node gpu-1")));
}

/// A body that an endpoint does not want stays unwanted: the next one is told at once.
#[tokio::test]
async fn what_is_refused_for_good_has_one_attempt() {
    let telling = Telling::start().await;
    let endpoint = Endpoint::start(|number, _| Some(if number == 0 { 422 } else { 200 })).await;
    telling.add("ops", &endpoint.url(), json!({ "events": ["node.joined"] })).await;
    telling.node("gpu-1").await;
    telling.node("gpu-2").await;
    let came = endpoint.until("the next", |came| came.len() == 2).await;
    assert_eq!(came[1].json()["object"], "node gpu-2");
    let end = Instant::now() + LONG;
    while telling.row("ops").await["delivered"] != 1 {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_, dead) = telling.send(Method::GET, "/ops/dead?fleet=true", ADMIN, &json!({})).await;
    let letter = &dead["dead"][0];
    assert_eq!((&letter["attempts"], &letter["cause"]), (&json!(1), &json!("it answered 422")));
}

/// An endpoint that asks for a pause gets it, whatever the pace of attempts is.
#[tokio::test]
async fn who_asks_to_be_left_alone_is() {
    let telling = Telling::start().await;
    let endpoint = Endpoint::start(|number, _| Some(if number == 0 { 429 } else { 200 })).await;
    telling.add("ops", &endpoint.url(), json!({})).await;
    telling.node("gpu-1").await;
    let came = endpoint.until("another attempt", |came| came.len() == 2).await;
    assert_eq!(came[0].id(), came[1].id());
    let waited_ms = came[1].at_ms.saturating_sub(came[0].at_ms);
    assert!(waited_ms >= 950, "{waited_ms} ms after it asked for {PAUSE} s");
}

/// Whoever looks sees it before anything is given up.
#[tokio::test]
async fn an_endpoint_that_fails_shows_it_until_it_is_well() {
    let telling = Telling::start().await;
    let endpoint = Endpoint::start(|_, is_well| Some(if is_well { 200 } else { 503 })).await;
    telling.add("ops", &endpoint.url(), json!({ "events": ["node.joined"] })).await;
    assert_eq!(telling.row("ops").await["failing"], Value::Null);
    telling.node("gpu-1").await;
    endpoint.until("an attempt", |came| !came.is_empty()).await;
    let until = async |fits: fn(&Value) -> bool| {
        let end = Instant::now() + LONG;
        loop {
            let row = telling.row("ops").await;
            if fits(&row["failing"]) {
                return row;
            }
            assert!(Instant::now() < end, "{row}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let row = until(|failing| failing["attempts"].as_u64() >= Some(1)).await;
    assert_eq!(row["failing"]["cause"], "it answered 503", "{row}");
    assert!(row["failing"]["since"].is_string(), "{row}");
    let page = async || {
        let request = telling.fixture.request(Method::GET, "/metrics", CAROL);
        request.send().await.unwrap().text().await.unwrap()
    };
    let line = "gangline_webhook_failing_attempts{project=\"\",webhook=\"ops\"} ";
    let text = page().await;
    assert!(text.contains(line) && !text.contains(&format!("{line}0\n")), "{text}");
    endpoint.is_well.store(true, Ordering::Relaxed);
    telling.node("gpu-2").await;
    until(Value::is_null).await;
    assert!(page().await.contains(&format!("{line}0\n")));
}

#[tokio::test]
async fn who_never_answers_delays_nobody() {
    let telling = Telling::start().await;
    let silent = Endpoint::start(|_, _| None).await;
    let good = Endpoint::start(|_, _| Some(200)).await;
    telling.add("silent", &silent.url(), json!({})).await;
    telling.add("good", &good.url(), json!({})).await;
    // Nobody listens there at all.
    telling.add("closed", "http://127.0.0.1:9/", json!({})).await;
    for number in 0..20 {
        telling.node(&format!("gpu-{number}")).await;
    }
    let before = Instant::now();
    good.until("twenty events", |came| came.len() == 20).await;
    println!("20 events beside an endpoint that never answers: {:?}", before.elapsed());
    // What is deleted is not told any more, also in the middle of an attempt.
    let (status, _) = telling.send(Method::DELETE, "/silent?fleet=true", ADMIN, &json!({})).await;
    assert_eq!(status, 204);
    tokio::time::sleep(PACE.timeout).await;
    let then = silent.came().len();
    tokio::time::sleep(2 * PACE.timeout).await;
    assert_eq!(silent.came().len(), then);
}

#[tokio::test]
async fn a_project_is_told_of_its_own_jobs_only() {
    let telling = Telling::start().await;
    let all = Endpoint::start(|_, _| Some(200)).await;
    telling.add("all", &all.url(), json!({ "events": ["job.*"] })).await;
    let node = telling.fixture.node("w0").await;
    for (token, project) in [(BOB, "vision"), (ALICE, "rlhf")] {
        let job = telling.fixture.submit(token, SPEC).await;
        let key = telling.fixture.place(&job, 1).await;
        node.report_running(&key).await;
        let died = fixture::ended(EndHow::Exited { code: 7 });
        let before = Instant::now();
        node.report(vec![(key.clone(), died)], Vec::new()).await;
        let object = format!("job {job}");
        let is = |came: &Came, kind: &str| {
            came.kind() == kind && came.json()["object"] == object.as_str()
        };
        let came = all
            .until("interruption", |came| came.iter().any(|came| is(came, "job.interrupted")))
            .await;
        let took = before.elapsed();
        println!("an interruption was told after {took:?}");
        assert!(took < Duration::from_secs(30), "{took:?}");
        // The end is told once it is known why.
        all.until("end", |came| came.iter().any(|came| is(came, "job.failed"))).await;
        let is_it = |came: &&Came| came.kind() == "job.interrupted";
        let first = came.iter().rfind(is_it).unwrap().json();
        assert_eq!(first["project"], project);
        assert!(first["reason"].as_str().unwrap().contains("exited with code 7"), "{first}");
    }
    // Over the API each sees what is theirs, and the nodes.
    for (token, others) in [(ALICE, "vision"), (BOB, "rlhf")] {
        let page = telling.fixture.get("/api/v1/events?page_size=1000", token).await;
        let events = page["events"].as_array().unwrap();
        assert!(events.iter().any(|event| event["kind"] == "job.failed"), "{page}");
        assert!(events.iter().any(|event| event["kind"] == "node.joined"), "{page}");
        assert!(events.iter().all(|event| event["project"] != others), "{page}");
    }
    let kinds = telling.fixture.get("/api/v1/events?kind=node.*&object=node%20w0", DAVE).await;
    assert_eq!(kinds["events"].as_array().unwrap().len(), 1, "{kinds}");
}

#[tokio::test]
async fn who_may_set_what_and_what_is_shown() {
    let telling = Telling::start().await;
    let public =
        json!({ "url": "https://hooks.example.com/T0/canary-in-url", "key": "canary-key-canary" });
    for (token, path, status) in [
        (ALICE, "/team", 200),
        (BOB, "/team?project=rlhf", 403),
        (ALICE, "/ops?fleet=true", 403),
        (DAVE, "/ops?fleet=true", 403),
        (CAROL, "/team", 403),
        (ADMIN, "/team?project=rlhf", 200),
        (ADMIN, "/ops?fleet=true", 200),
        (ADMIN, "/ops?fleet=true&project=rlhf", 400),
        (ALICE, "/a%20b", 400),
    ] {
        let (got, answer) = telling.send(Method::PUT, path, token, &public).await;
        assert_eq!(got, status, "{path}: {answer}");
    }
    for (url, word) in [
        ("http://127.0.0.1:8265/", "own machine"),
        ("http://169.254.169.254/latest", "link-local"),
        ("file:///etc/passwd", "http or https"),
    ] {
        let (status, problem) =
            telling.send(Method::PUT, "/x", ALICE, &json!({ "url": url })).await;
        assert_eq!(status, 422);
        assert!(problem["detail"].as_str().unwrap().contains(word), "{problem}");
    }
    for bad in [
        json!({}),
        json!({ "url": "http://a/", "kind": "x" }),
        json!({ "url": "http://a/", "events": ["job.fialed"] }),
        json!({ "url": "http://a/", "key": "short" }),
    ] {
        assert_eq!(telling.send(Method::PUT, "/x", ALICE, &bad).await.0, 422, "{bad}");
    }
    // A key that is made is shown once.
    let (_, made) = telling.send(Method::PUT, "/made", ALICE, &json!({ "url": "http://a/" })).await;
    let made = made["key"].as_str().unwrap().to_owned();
    assert!(made.len() > 40);
    let mut seen = String::new();
    for (token, path) in [(ALICE, ""), (ADMIN, "?fleet=true"), (ALICE, "/team/dead")] {
        seen += &telling.send(Method::GET, path, token, &json!({})).await.1.to_string();
    }
    seen += &telling.fixture.get("/api/v1/audit?page_size=100", ADMIN).await.to_string();
    assert!(seen.contains("https://hooks.example.com") && seen.contains("webhook.set"), "{seen}");
    let stored = std::fs::read(telling.fixture.state().join("store.redb")).unwrap();
    let stored = String::from_utf8_lossy(&stored);
    for secret in ["canary", &made] {
        assert!(!seen.contains(secret), "{secret} in {seen}");
        assert!(!stored.contains(secret), "{secret} is in the store");
    }
    assert_eq!(telling.send(Method::DELETE, "/team", BOB, &json!({})).await.0, 404);
    assert_eq!(telling.send(Method::POST, "/none/test", ALICE, &json!({})).await.0, 404);
}

/// By a name that leads to this machine: refused when it is connected to, and said so.
#[tokio::test]
async fn a_members_webhook_does_not_reach_this_machine_by_name() {
    let telling = Telling::start().await;
    let endpoint = Endpoint::start(|_, _| Some(200)).await;
    let url = format!("http://localhost:{}/secret-path", endpoint.address.port());
    let body = json!({ "url": url });
    assert_eq!(telling.send(Method::PUT, "/team", ALICE, &body).await.0, 200);
    assert_eq!(telling.send(Method::POST, "/team/test", ALICE, &json!({})).await.0, 200);
    let end = Instant::now() + LONG;
    let dead = loop {
        let (_, dead) = telling.send(Method::GET, "/team/dead", ALICE, &json!({})).await;
        if dead["dead"].as_array().is_some_and(|dead| !dead.is_empty()) {
            break dead;
        }
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let cause = dead["dead"][0]["cause"].as_str().unwrap();
    assert!(cause.contains("no address that may be connected to"), "{cause}");
    assert!(endpoint.came().is_empty());
}

/// What the board shows after half a minute of silence, or after it, without the wait.
async fn reach(telling: &Telling, name: &str, reachability: Reachability) {
    let board = &telling.fixture.board;
    let mut changes = board.changes();
    // Its inventory comes in by itself, and would replace this.
    while board.node(name).unwrap().node.lifecycle != Lifecycle::Online {
        changes.changed().await.unwrap();
    }
    let mut node = Node::clone(&board.node(name).unwrap().node);
    node.reachability = reachability;
    let notice = Notice {
        wall_ms: Timestamp::now().wall_ms,
        kind: "node.lost".to_owned(),
        object: format!("node {name}"),
        project: None,
        reason: String::new(),
    };
    node.history.push(Transition {
        wall_ms: notice.wall_ms,
        state: "lost".to_owned(),
        actor: "gangline".to_owned(),
        text: "no word for 30 s".to_owned(),
    });
    let writes = vec![Write::Node(Arc::new(node)), Write::Notice(notice)];
    board.publish(&Effects { writes, ..Effects::default() });
}

#[tokio::test]
async fn an_alert_goes_on_until_it_is_over() {
    let telling = Telling::start().await;
    let endpoint = Endpoint::start(|number, _| Some(if number == 0 { 503 } else { 200 })).await;
    let url = format!("http://{}/api/v2/alerts", endpoint.address);
    telling.add("am", &url, json!({ "kind": "alertmanager" })).await;
    telling.node("gpu-1").await;
    reach(&telling, "gpu-1", Reachability::Lost).await;
    let lost = |came: &Came| {
        let alerts = came.json();
        let alerts = alerts.as_array().unwrap().clone();
        alerts.into_iter().find(|alert| alert["labels"]["alertname"] == "GanglineNodeLost")
    };
    let came = endpoint
        .until("an alert that is sent again", |came| came.iter().filter_map(lost).count() >= 3)
        .await;
    let alert = came.iter().find_map(lost).unwrap();
    assert_eq!(alert["labels"]["node"], "gpu-1");
    assert_eq!(alert["labels"]["severity"], "critical");
    assert!(alert["endsAt"].as_str() > alert["startsAt"].as_str(), "{alert}");
    let open = |alert: &Value| {
        let ends: String = alert["endsAt"].as_str().unwrap().to_owned();
        ends > gangline_common::time::wall_text(Timestamp::now().wall_ms)
    };
    assert!(open(&alert));
    reach(&telling, "gpu-1", Reachability::Reachable).await;
    endpoint
        .until("its end", |came| {
            came.iter().filter_map(lost).next_back().is_some_and(|a| !open(&a))
        })
        .await;
    let then = endpoint.came().len();
    tokio::time::sleep(3 * PACE.again).await;
    assert_eq!(endpoint.came().len(), then, "it is over, and sent again");
}

/// The coordinator's process ends between the commit of a notice and telling, and between telling and
/// the commit of the cursor: what was not told is told by the next one, under its id.
#[tokio::test]
async fn the_next_coordinator_goes_on_where_the_last_one_was() {
    let telling = Telling::start().await;
    let endpoint =
        Endpoint::start(|number, is_well| Some(if number < 2 || is_well { 200 } else { 500 }))
            .await;
    let patient = json!({ "events": ["node.joined"] });
    telling.add("ops", &endpoint.url(), patient).await;
    for name in ["gpu-1", "gpu-2"] {
        telling.node(name).await;
    }
    let told = endpoint.until("two", |came| came.len() == 2).await;
    // As a kill does it: no task, no driver, only the file.
    telling.task.abort();
    for name in ["gpu-3", "gpu-4"] {
        telling.node(name).await;
    }
    let copy = tempfile::tempdir().unwrap();
    for file in ["store.redb", "secrets.key"] {
        std::fs::copy(telling.fixture.state().join(file), copy.path().join(file)).unwrap();
    }
    drop(telling);

    endpoint.is_well.store(true, Ordering::Relaxed);
    let store = Store::open(&copy.path().join("store.redb"), true, "test").unwrap();
    let sealer = Sealer::open(&copy.path().join("secrets.key"), &store.secrets().unwrap()).unwrap();
    let notices = store.notices();
    let driver = driver::start(store, Outbox::new(sealer.clone()), Meters::new().unwrap()).unwrap();
    let parts = Parts {
        driver: driver.handle,
        board: driver.board,
        notices,
        sealer,
        cluster: "test".to_owned(),
        pace: PACE,
        troubles: Troubles::default(),
        trainings: Trainings::new(Logs::new(copy.path().join("logs")), Timestamp::now()),
    };
    let task = tokio::spawn(webhooks::run(parts));
    let came = endpoint
        .until("the rest", |came| {
            let objects: Vec<Value> =
                came.iter().map(|came| came.json()["object"].clone()).collect();
            objects.contains(&json!("node gpu-3")) && objects.contains(&json!("node gpu-4"))
        })
        .await;
    task.abort();
    for again in came.iter().filter(|one| one.json()["object"] == "node gpu-2") {
        assert_eq!(again.id(), told[1].id(), "told twice under two ids");
    }
}

/// Notices have a bound, and who was away for longer is told how many it has missed.
#[tokio::test]
async fn the_oldest_notices_go() {
    use gangline_coordinator::store::notices::KEPT;
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(&directory.path().join("store.redb"), false, "c").unwrap();
    let notice = |number: u64| {
        Write::Notice(Notice {
            wall_ms: number,
            kind: "node.joined".to_owned(),
            object: format!("node {number}"),
            project: None,
            reason: String::new(),
        })
    };
    let all: Vec<Write> = (1..=KEPT).map(notice).collect();
    store.commit(&all).unwrap();
    store.commit(&(KEPT + 1..=KEPT + 10).map(notice).collect::<Vec<_>>()).unwrap();
    let log = store.notices();
    assert_eq!(log.newest().unwrap(), KEPT + 10);
    let first = log.after(0, 1).unwrap().remove(0);
    assert_eq!((first.sequence, first.notice.object), (11, "node 11".to_owned()));
    assert_eq!(log.number_at(20).unwrap(), 19);
    assert_eq!(log.number_at(1 << 60).unwrap(), KEPT + 10);
    assert_eq!(log.before(14, 10).unwrap().len(), 3);
    drop((store, log));
    // Numbers go on after a start.
    let mut store = Store::open(&directory.path().join("store.redb"), true, "c").unwrap();
    store.commit(&[notice(7)]).unwrap();
    assert_eq!(store.notices().newest().unwrap(), KEPT + 11);
}

/// Reads a stream of events until `enough` of its text.
async fn read_until(response: &mut reqwest::Response, enough: &str) -> String {
    let mut text = String::new();
    let began = Instant::now();
    while !text.contains(enough) {
        assert!(began.elapsed() < LONG, "{enough} is not in {text}");
        let chunk = tokio::time::timeout(LONG, response.chunk()).await.unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(&chunk.expect("the stream goes on")));
    }
    text
}

#[tokio::test]
async fn events_come_as_they_happen_and_a_lost_stream_goes_on_where_it_stopped() {
    let fixture = Fixture::start().await;
    let open = async |query: &str, last: Option<&str>| {
        let path = format!("/api/v1/events/stream{query}");
        let mut request = fixture.request(Method::GET, &path, ADMIN);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request.send().await.unwrap()
    };
    let _first = fixture.node("gpu-1").await;
    let mut all = open("?after=0&kind=node.*", None).await;
    assert_eq!(all.headers()["content-type"], "text/event-stream");
    let text = read_until(&mut all, "}\n\n").await;
    assert!(text.starts_with(": here\nid: 0-0\n\nevent: node.joined\nid: 1-1\n"), "{text}");
    // What is new, and nothing of before.
    let mut fresh = open("", None).await;
    let _second = fixture.node("gpu-2").await;
    let text = read_until(&mut all, "gpu-2").await;
    assert!(text.contains("\"object\":\"node gpu-2\""), "{text}");
    let text = read_until(&mut fresh, "gpu-2").await;
    assert!(!text.contains("gpu-1"), "{text}");
    // Behind the event that came last.
    drop(all);
    let mut again = open("?kind=node.joined", Some("1-1")).await;
    let text = read_until(&mut again, "gpu-2").await;
    assert!(!text.contains("gpu-1"), "{text}");
    assert_eq!(open("", Some("nonsense")).await.status(), 400);
    // A stream that was lost before anything came.
    let mut again = open("?kind=node.joined", Some("0-0")).await;
    read_until(&mut again, "gpu-1").await;
    // A restored store may know less than the client: that is no gap and no error.
    assert_eq!(open("", Some("1-999999")).await.status(), 200);
}
