//! Samples through the API: the stream of all nodes and where it goes on, its bounds, and the histories
//! of nodes and jobs. No agent: what one sends is recorded directly.

mod fixture;

use std::time::Duration;

use fixture::{ADMIN, ALICE, BOB, CAROL, Fixture, SPEC};
use gangline_common::ids::{Generation, GpuId, NodeId};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::{GpuSample, HostSample, NodeSample};
use gangline_coordinator::core::event::Event;
use reqwest::{Method, Response};
use serde_json::{Value, json};

/// Longer than anything here takes; a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn gpu(uuid: &str, busy: f32) -> GpuSample {
    GpuSample {
        utilization_pct: Some(busy),
        memory_used_bytes: Some(40 << 30),
        memory_total_bytes: Some(80 << 30),
        temperature_c: Some(61.0),
        power_w: Some(512.5),
        power_limit_w: Some(700.0),
        sm_clock_mhz: Some(1980),
        nvlink_received_bytes_per_s: Some(1 << 30),
        nvlink_sent_bytes_per_s: Some(1 << 30),
        ..GpuSample::unread(GpuId(uuid.to_owned()))
    }
}

/// Records a sample of a node with two GPUs that came `ago_ms` ago.
fn record(fixture: &Fixture, node: &str, ago_ms: u64, busy: f32) {
    let wall_ms = Timestamp::now().wall_ms - ago_ms;
    let sample = NodeSample {
        wall_ms,
        dropped: 0,
        interval_ms: 1000,
        host: HostSample { cpu_busy_pct: Some(12.5), ..HostSample::default() },
        gpus: ["a", "b"].map(|letter| gpu(&format!("GPU-{node}-{letter}"), busy)).into(),
        ports: Vec::new(),
        collectors: Vec::new(),
    };
    let node = NodeId::new(format!("n-{node}")).unwrap();
    fixture.telemetry.record(&node, &sample.to_frame().unwrap(), wall_ms).unwrap();
}

/// An open stream, read event by event.
struct Events {
    response: Response,
    text: String,
    /// Of the last event that had one.
    last: String,
}

impl Events {
    async fn open(fixture: &Fixture, query: &str, last: Option<&str>) -> Self {
        let path = format!("/api/v1/nodes/stream{query}");
        let mut request = fixture.request(Method::GET, &path, ALICE);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { response, text: String::new(), last: String::new() }
    }

    /// The next event of this kind.
    async fn next(&mut self, kind: &str) -> Value {
        let next = async {
            loop {
                let (name, data) = self.any().await;
                if name == kind {
                    return data;
                }
            }
        };
        // A stream that is silent is not: it pings.
        tokio::time::timeout(PATIENCE, next).await.unwrap_or_else(|_| panic!("no {kind}"))
    }

    async fn any(&mut self) -> (String, Value) {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
                if let Some(id) = field("id: ") {
                    self.last = id.to_owned();
                }
                if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
                    return (name.to_owned(), serde_json::from_str(data).unwrap());
                }
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await;
            let chunk = chunk.expect("silence").unwrap().expect("the stream has ended");
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

#[tokio::test]
async fn a_stream_brings_states_and_samples_and_goes_on_where_it_ended() {
    let fixture = Fixture::start().await;
    fixture.node("gpu-1").await;
    fixture.node("gpu-2").await;
    record(&fixture, "gpu-1", 2000, 10.0);
    record(&fixture, "gpu-2", 2000, 20.0);
    let mut events = Events::open(&fixture, "", None).await;
    let first = events.next("node").await;
    assert_eq!((&first["name"], &first["state"]), (&json!("gpu-1"), &json!("ready")));
    assert_eq!((&first["gpus_total"], &first["gpus_in_use"]), (&json!(2), &json!(0)));
    let sample = events.next("sample").await;
    assert_eq!((&sample["name"], &sample["host"]["cpu_busy_pct"]), (&json!("gpu-1"), &json!(12.5)));
    let gpu = &sample["gpus"][1];
    assert_eq!(gpu["uuid"], "GPU-gpu-1-b");
    assert_eq!((&gpu["utilization_pct"], &gpu["power_w"]), (&json!(10), &json!(512.5)));
    assert_eq!(gpu["nvlink_bytes_per_s"], 2_u64 << 30);
    assert_eq!(gpu["sm_active"], Value::Null);
    assert_eq!(events.next("sample").await["name"], "gpu-2");

    // New ones come as they are recorded, and a change of a state comes too.
    record(&fixture, "gpu-1", 1000, 30.0);
    assert_eq!(events.next("sample").await["gpus"][0]["utilization_pct"], 30);
    let cordon = fixture.request(Method::POST, "/api/v1/nodes/gpu-2/cordon", ADMIN);
    cordon.body(r#"{"reason": "fan"}"#).send().await.unwrap();
    let changed = events.next("node").await;
    assert_eq!((&changed["name"], &changed["state"]), (&json!("gpu-2"), &json!("cordoned")));

    // What came while the client was away comes from the ring, once and in order.
    let last = events.last.clone();
    drop(events);
    record(&fixture, "gpu-2", 600, 40.0);
    record(&fixture, "gpu-1", 300, 50.0);
    let mut events = Events::open(&fixture, "", Some(&last)).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        busy.push(events.next("sample").await["gpus"][0]["utilization_pct"].clone());
    }
    assert_eq!(busy, [json!(40), json!(50)]);
    record(&fixture, "gpu-1", 0, 60.0);
    assert_eq!(events.next("sample").await["gpus"][0]["utilization_pct"], 60);

    // An id of another life of the coordinator: nobody knows what was lost.
    let mut events = Events::open(&fixture, "", Some("1-1")).await;
    assert_eq!(events.any().await, ("dropped".to_owned(), json!({"events": null})));
    assert_eq!(events.next("sample").await["name"], "gpu-2");
}

#[tokio::test]
async fn a_watcher_may_want_one_node_or_one_pool() {
    let fixture = Fixture::start().await;
    fixture.node_in_pool("gpu-1", "hot").await;
    fixture.node_in_pool("gpu-2", "cold").await;
    while fixture.get("/api/v1/nodes/gpu-2", ALICE).await["pool"] != "cold" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    record(&fixture, "gpu-1", 1000, 10.0);
    record(&fixture, "gpu-2", 1000, 20.0);
    for query in ["?pool=cold", "?node=gpu-2", "?node=n-gpu-2"] {
        let mut events = Events::open(&fixture, query, None).await;
        assert_eq!(events.next("node").await["name"], "gpu-2", "{query}");
        assert_eq!(events.next("sample").await["gpus"][0]["utilization_pct"], 20, "{query}");
    }
    let mut events = Events::open(&fixture, "?pool=cold", None).await;
    events.next("sample").await;
    record(&fixture, "gpu-1", 0, 30.0);
    record(&fixture, "gpu-2", 0, 40.0);
    assert_eq!(events.next("sample").await["gpus"][0]["utilization_pct"], 40);
}

#[tokio::test]
async fn too_many_watchers_are_a_refusal_and_nothing_else() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, SPEC).await;
    fixture.node("gpu-1").await;
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..200 {
        let request = fixture.request(Method::GET, "/api/v1/nodes/stream", ALICE);
        let response = request.send().await.unwrap();
        if response.status() == 200 {
            open.push(response);
            continue;
        }
        assert_eq!(response.status(), 503);
        let problem: Value = response.json().await.unwrap();
        assert_eq!((&problem["code"], &problem["retry_after_s"]), (&json!("E0315"), &json!(10)));
        refused += 1;
    }
    assert_eq!((open.len(), refused), (64, 136));
    // Lists, logs of the same user, and streams of others go on.
    assert_eq!(fixture.get("/api/v1/nodes", ALICE).await["nodes"][0]["name"], "gpu-1");
    drop(fixture.stream(&format!("/api/v1/jobs/{job}/logs/stream"), ALICE, None).await);
    drop(fixture.stream("/api/v1/nodes/stream", BOB, None).await);
    // Whoever goes makes room.
    drop(open);
    let again = async {
        loop {
            let request = fixture.request(Method::GET, "/api/v1/nodes/stream", ALICE);
            if request.send().await.unwrap().status() == 200 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("no room was made");
}

#[tokio::test]
async fn who_reads_too_slowly_is_told_what_is_lost() {
    let fixture = Fixture::start().await;
    fixture.node("gpu-1").await;
    let mut slow = Events::open(&fixture, "", None).await;
    slow.next("node").await;
    // More than its connection and its batches hold: each comes alone, as of one node each.
    let fleet: Vec<NodeId> = (0..2000).map(|n| NodeId::new(format!("n-x{n}")).unwrap()).collect();
    let wall_ms = Timestamp::now().wall_ms;
    for round in 0..40 {
        for id in &fleet {
            let wall_ms = wall_ms + 1000 * round;
            let sample = NodeSample {
                wall_ms,
                dropped: 0,
                interval_ms: 1000,
                host: HostSample::default(),
                gpus: (0..8).map(|n| gpu(&format!("GPU-{n}"), 1.0)).collect(),
                ports: Vec::new(),
                collectors: Vec::new(),
            };
            fixture.telemetry.record(id, &sample.to_frame().unwrap(), wall_ms).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let mut samples = 0_u64;
    let told = async {
        loop {
            let (name, data) = slow.any().await;
            if name == "sample" {
                samples += 1;
            }
            if name == "dropped" {
                return (samples, data["events"].as_u64().unwrap());
            }
        }
    };
    let (samples, events) = tokio::time::timeout(PATIENCE, told).await.expect("nobody told it");
    assert!(events > 0 && samples + events <= 80_000, "{samples} and {events}");
}

#[tokio::test]
async fn histories_are_of_a_node_and_of_the_gpus_of_a_job() {
    let fixture = Fixture::start().await;
    let job = fixture.submit(ALICE, &SPEC.replace("gpus_per_node: 0", "gpus_per_node: 1")).await;
    let empty = fixture.get(&format!("/api/v1/jobs/{job}/metrics"), ALICE).await;
    assert_eq!((&empty["attempt"], &empty["members"]), (&Value::Null, &json!([])));
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    node.report_running(&member).await;
    let uuid = {
        let shown = fixture.get("/api/v1/nodes/gpu-1", ALICE).await;
        let gpus = shown["gpus"].as_array().unwrap().clone();
        let used = gpus.iter().find(|gpu| gpu["in_use"] == true).unwrap();
        used["uuid"].as_str().unwrap().to_owned()
    };
    let now = Timestamp::now().wall_ms;
    for (at, busy) in [(now - 90_000, 11.0), (now, 80.0), (now + 1000, 90.0)] {
        let sample = NodeSample {
            wall_ms: at,
            dropped: u32::from(at == now),
            interval_ms: 1000,
            host: HostSample { cpu_busy_pct: Some(5.0), ..HostSample::default() },
            gpus: vec![gpu("GPU-other", 1.0), gpu(&uuid, busy)],
            ports: Vec::new(),
            collectors: Vec::new(),
        };
        fixture
            .telemetry
            .record(&NodeId::new("n-gpu-1").unwrap(), &sample.to_frame().unwrap(), at)
            .unwrap();
    }
    let path = "/api/v1/nodes/gpu-1/samples";
    let all = fixture.get(&format!("{path}?step_s=1"), BOB).await;
    assert_eq!(all["time_ms"], json!([now - 90_000, now, now + 1000]));
    assert_eq!((&all["name"], &all["dropped"]), (&json!("gpu-1"), &json!([0, 1, 0])));
    assert_eq!(all["host"]["cpu_busy_pct"], json!([5, 5, 5]));
    assert_eq!(all["gpus"][1]["series"]["utilization_pct"], json!([11, 80, 90]));
    let late = fixture.get(&format!("{path}?since={now}"), BOB).await;
    assert_eq!((&late["step_s"], &late["time_ms"]), (&json!(1), &json!([now, now + 1000])));
    let coarse = fixture.get(path, BOB).await;
    assert_eq!(coarse["step_s"], 10);
    assert_eq!(coarse["gpus"][0]["series"]["utilization_pct"][0], 1);
    let wrong = fixture.problem(Method::GET, &format!("{path}?step_s=7"), BOB).await;
    assert_eq!((&wrong["status"], &wrong["code"]), (&json!(400), &json!("E0300")));

    // Only its own GPU, and not from before it had it.
    let metrics = fixture.get(&format!("/api/v1/jobs/{job}/metrics?step_s=1"), CAROL).await;
    assert_eq!((&metrics["attempt"], &metrics["shared"]), (&json!(1), &json!(false)));
    let rank = &metrics["members"][0];
    assert_eq!((&rank["name"], &rank["member"]), (&json!("gpu-1"), &json!("0")));
    assert_eq!(rank["gpus"].as_array().map(Vec::len), Some(1));
    assert_eq!(rank["gpus"][0]["uuid"], json!(uuid));
    assert_eq!(rank["gpus"][0]["series"]["utilization_pct"], json!([80, 90]));
    let foreign = fixture.problem(Method::GET, &format!("/api/v1/jobs/{job}/metrics"), BOB).await;
    assert_eq!(foreign["status"], 404);
    let shown = fixture.get("/api/v1/nodes/gpu-1", ALICE).await;
    assert_eq!(shown["telemetry"], json!({"received": 3, "dropped": 1, "hasty": 0, "untimely": 0}));
}

/// A word waits some milliseconds for others. A node whose session ends meanwhile has given it all the
/// same: its heartbeat was acknowledged, and a fence counts from that.
#[tokio::test]
async fn a_word_is_not_overtaken_by_the_end_of_its_session() {
    let fixture = Fixture::start().await;
    let id = fixture.node("gpu-1").await.id;
    let node = || fixture.board.node(id.as_str()).unwrap().node;
    let before = node().last_word_ms;
    while Timestamp::now().boot_ms <= before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let heard = Event::Heard { node: id.clone(), session: 1, held: Some(Generation::default()) };
    fixture.driver.tell_soon(heard).await.unwrap();
    fixture.driver.tell(Event::Disconnected { node: id.clone(), session: 1 }).await.unwrap();
    let mut changes = fixture.board.changes();
    while node().session.is_some() {
        tokio::time::timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    }
    assert!(node().last_word_ms > before);
}
