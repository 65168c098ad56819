//! What Prometheus reads, over HTTP, with hand-made agents at the other end of real connections.

mod fixture;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::Method;
use fixture::{ALICE, CAROL, DAVE, Fixture, HeldOpen, SPEC};
use gangline_common::request::answer;
use gangline_common::time::Timestamp;
use gangline_common::transport::Connection;
use gangline_common::wire::request::{AgentRequest, FailureReason, RequestFailure};
use gangline_coordinator::core::health::{Condition, Level};
use serde_json::{Value, json};

const RAY_SPEC: &str =
    "name: ray\nresources: {nnodes: 1, gpus_per_node: 1}\nrun: python train.py\n";
const PATIENCE: &str = "x-prometheus-scrape-timeout-seconds";

type Answer = Result<Vec<u8>, RequestFailure>;

/// An agent that gives one answer to everything; without one it stays silent.
struct Agent {
    asked: Arc<Mutex<Vec<AgentRequest>>>,
    _held: HeldOpen,
}

impl Agent {
    async fn connect(fixture: &Fixture, node: &str, says: Option<Answer>) -> Agent {
        let (connection, held) = fixture.connect_agent(node).await;
        let asked = Arc::default();
        tokio::spawn(serve(connection, says, Arc::clone(&asked)));
        Agent { asked, _held: held }
    }
}

async fn serve(connection: Connection, says: Option<Answer>, asked: Arc<Mutex<Vec<AgentRequest>>>) {
    while let Ok(stream) = connection.accept_request().await {
        let (says, asked) = (says.clone(), Arc::clone(&asked));
        tokio::spawn(answer(stream, |request| async move {
            asked.lock().unwrap().push(request);
            match says {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }));
    }
}

async fn page(fixture: &Fixture, path: &str) -> String {
    let response = fixture.request(Method::GET, path, CAROL).send().await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4");
    response.text().await.unwrap()
}

#[tokio::test]
async fn a49_metrics_need_a_login_and_a_viewer_has_them() {
    let fixture = Fixture::start().await;
    let _node = fixture.node("gpu-1").await;
    for path in [
        "/metrics",
        "/api/v1/prometheus/sd",
        "/api/v1/federate",
        "/api/v1/nodes/gpu-1/metrics",
        "/api/v1/nodes/gpu-1/ray-metrics",
    ] {
        assert_eq!(fixture.problem(Method::GET, path, "").await["status"], 401, "{path}");
        let as_viewer = fixture.request(Method::GET, path, CAROL).send().await.unwrap();
        assert!(![401, 403].contains(&as_viewer.status().as_u16()), "{path}");
    }
}

#[tokio::test]
async fn the_coordinators_page_tells_of_jobs_queue_and_nodes() {
    let fixture = Fixture::start().await;
    let waiting = fixture.submit(ALICE, SPEC).await;
    let before = page(&fixture, "/metrics").await;
    assert!(before.contains("gangline_jobs{state=\"PENDING\",pool=\"\"} 1"), "{before}");
    assert!(before.contains("gangline_queue_oldest_wait_seconds{pool=\"\"} "), "{before}");
    assert!(!before.contains("gangline_node_up"), "{before}");

    let _node = fixture.node("gpu-1").await;
    fixture.place(&waiting, 1).await;
    let _agent = Agent::connect(&fixture, "gpu-1", None).await;
    let after = page(&fixture, "/metrics").await;
    for line in [
        "gangline_jobs{state=\"STARTING\",pool=\"h100-a\"} 1",
        "gangline_queue_wait_seconds_count{pool=\"h100-a\"} 1",
        "gangline_node_up{node=\"gpu-1\",pool=\"h100-a\"} 1",
        "gangline_node_state{node=\"gpu-1\",pool=\"h100-a\",state=\"lost\"} 0",
        "gangline_agent_reconnects_total{node=\"gpu-1\",pool=\"h100-a\"} 0",
        "gangline_build_info{version=\"test\"} 1",
        "gangline_log_bytes_total 0",
        "gangline_lost_samples_total 0",
        "gangline_untimely_samples_total 0",
        "gangline_gangs{state=\"starting\",pool=\"h100-a\"} 1",
    ] {
        assert!(after.contains(&format!("{line}\n")), "{line}:\n{after}");
    }
    assert!(after.contains("gangline_agent_rtt_seconds{node=\"gpu-1\",pool=\"h100-a\"} 0."));
    let info = format!("gangline_job_info{{job_id=\"{waiting}\",name=\"");
    assert!(after.contains(&info), "{info}:\n{after}");
    for histogram in ["gangline_store_commit_seconds", "gangline_schedule_duration_seconds"] {
        assert!(after.contains(&format!("# TYPE {histogram} histogram\n")), "{after}");
        assert!(!after.contains(&format!("{histogram}_count 0\n")), "{after}");
    }
    let in_states = after.lines().filter(|line| {
        line.starts_with("gangline_node_state{node=\"gpu-1\"") && line.ends_with(" 1")
    });
    assert_eq!(in_states.count(), 1, "{after}");
}

fn condition(rule: &str, component: &str, level: Level) -> Condition {
    Condition {
        rule: rule.to_owned(),
        component: component.to_owned(),
        level,
        blocks_start: true,
        shadow: false,
        action: String::new(),
        reason: "something is wrong".to_owned(),
        evidence: String::new(),
        clears: String::new(),
        since_ms: 1,
    }
}

/// What no job gets is not free, and what an operator has ended counts no more.
#[tokio::test]
async fn conditions_and_what_they_take_are_on_the_page() {
    let fixture = Fixture::start().await;
    let node = fixture.node("gpu-1").await;
    let expect = async |lines: &[&str], absent: &str| {
        let text = page(&fixture, "/metrics").await;
        for line in lines {
            let line = line.replacen("{", "{node=\"gpu-1\",pool=\"h100-a\"", 1);
            assert!(text.contains(&format!("{line}\n")), "{line}:\n{text}");
        }
        assert!(absent.is_empty() || !text.contains(absent), "{absent}:\n{text}");
    };
    let free = "gangline_node_gpus{,state=\"free\"} 2";
    expect(&[free, "gangline_node_gpus_differ{} 0"], "gangline_node_conditions{").await;

    node.diagnose(vec![condition("gpu-foreign", "gpu:GPU-gpu-1-0", Level::NoNewJobs)]).await;
    let (free, unusable) =
        ("gangline_node_gpus{,state=\"free\"} 1", "gangline_node_gpus{,state=\"unusable\"} 1");
    let counted = "gangline_node_conditions{,level=\"no-new-jobs\"} 1";
    expect(&[free, unusable, counted], "level=\"fatal\"").await;

    node.diagnose(vec![condition("gpu-set", "node", Level::Fatal)]).await;
    let unusable = "gangline_node_gpus{,state=\"unusable\"} 2";
    let counted = "gangline_node_conditions{,level=\"fatal\"} 1";
    expect(&[unusable, counted, "gangline_node_gpus_differ{} 1"], "").await;

    let resume = fixture.request(Method::POST, "/api/v1/nodes/gpu-1/resume", DAVE);
    let answer = resume.json(&json!({})).send().await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    let free = "gangline_node_gpus{,state=\"free\"} 2";
    expect(&[free, "gangline_node_gpus_differ{} 0"], "gangline_node_conditions{").await;
}

/// What a rule on trial finds is listed and counted, and takes nothing away; one with a name that no rule
/// has is no label.
#[tokio::test]
async fn what_rules_on_trial_find_is_listed_and_counted() {
    let fixture = Fixture::start().await;
    let node = fixture.node("gpu-1").await;
    let since_ms = Timestamp::now().wall_ms;
    let tried = |rule: &str| Condition {
        shadow: true,
        blocks_start: false,
        since_ms,
        ..condition(rule, "gpu:GPU-gpu-1-0", Level::Degraded)
    };
    node.diagnose(vec![tried("gpu-clock"), tried("no \"rule\"")]).await;
    let text = page(&fixture, "/metrics").await;
    let found = |outcome: &str, count: u32| {
        format!(
            "gangline_health_trial_findings{{rule=\"gpu-clock\",outcome=\"{outcome}\"}} {count}\n"
        )
    };
    assert!(text.contains(&found("untold", 1)) && text.contains(&found("confirmed", 0)), "{text}");
    assert!(!text.contains("no \\\"rule"), "{text}");
    let list = fixture.get("/api/v1/rule-trials", DAVE).await;
    let trial = &list["trials"][0];
    assert_eq!((trial["rule"].as_str(), trial["found"].as_u64()), (Some("gpu-clock"), Some(1)));
    assert_eq!(trial["precision"], Value::Null);
    assert_eq!(trial["findings"][0]["node"], "gpu-1");
    assert_eq!(trial["findings"][0]["outcome"], "untold");
    // A rule that acts finds the same GPU broken.
    let fatal = condition("xid-fatal", "gpu:GPU-gpu-1-0", Level::Fatal);
    node.diagnose(vec![tried("gpu-clock"), fatal]).await;
    let text = page(&fixture, "/metrics").await;
    assert!(text.contains(&found("untold", 0)) && text.contains(&found("confirmed", 1)), "{text}");
}

/// A job of weeks is not one jump at its end.
#[tokio::test]
async fn gpu_seconds_grow_while_a_job_runs() {
    let fixture = Fixture::start().await;
    let node = fixture.node("gpu-1").await;
    let spec = SPEC.replace("gpus_per_node: 0", "gpus_per_node: 2");
    let job = fixture.submit(ALICE, &spec).await;
    let key = fixture.place(&job, 1).await;
    node.report_running(&key).await;
    let value = async |name: &str, class: &str| {
        let text = page(&fixture, "/metrics").await;
        let labels = format!("class=\"{class}\",pool=\"h100-a\",project=\"rlhf\"");
        let begin = format!("{name}{{{labels}}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&begin));
        line.map(|value| value.parse::<f64>().unwrap())
    };
    let began = value("gangline_gpu_seconds_total", "allocated").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let later = value("gangline_gpu_seconds_total", "allocated").await.unwrap();
    assert!(later >= began + 0.5, "{began} and then {later}");
    assert!(value("gangline_job_open_gpu_seconds", "unmeasured").await > Some(0.5));
    assert_eq!(value("gangline_job_gpu_seconds_total", "unmeasured").await, None);
    node.report_success(&key).await;
    let ended = value("gangline_job_gpu_seconds_total", "unmeasured").await.unwrap();
    let in_all = value("gangline_gpu_seconds_total", "allocated").await.unwrap();
    assert!(ended >= 0.5 && in_all >= later, "{ended} of {in_all}");
    assert_eq!(value("gangline_job_open_gpu_seconds", "unmeasured").await, None);
}

#[tokio::test]
async fn names_that_users_chose_are_escaped() {
    let fixture = Fixture::start().await;
    let spec = SPEC.replacen("name: ", "name: x", 1);
    fixture.submit(ALICE, &spec).await;
    let text = page(&fixture, "/metrics").await;
    let named: Vec<&str> = text.lines().filter(|line| line.contains("name=\"x")).collect();
    assert_eq!(named.len(), 1, "only the info metric has what users wrote:\n{text}");
    assert!(named[0].starts_with("gangline_job_info{"), "{named:?}");
}

#[tokio::test]
async fn a_node_is_asked_at_the_moment_of_a_scrape() {
    let fixture = Fixture::start().await;
    let _node = fixture.node("gpu-1").await;
    let away = fixture.problem(Method::GET, "/api/v1/nodes/gpu-1/metrics", CAROL).await;
    assert_eq!((&away["status"], &away["code"]), (&json!(503), &json!("E0362")));

    let text = "# TYPE a gauge\na 1\n";
    let agent = Agent::connect(&fixture, "gpu-1", Some(Ok(text.into()))).await;
    assert_eq!(page(&fixture, "/api/v1/nodes/gpu-1/metrics").await, text);
    assert_eq!(*agent.asked.lock().unwrap(), [AgentRequest::NodeMetrics]);
    drop(agent);

    let failure = |reason| RequestFailure { reason, text: "no reading yet".to_owned() };
    for (reason, status, code) in [
        (FailureReason::Unknown, 501, "E0363"),
        (FailureReason::NotHere, 503, "E0356"),
        (FailureReason::NoAnswer, 503, "E0356"),
        (FailureReason::TooLarge, 503, "E0356"),
    ] {
        let _agent = Agent::connect(&fixture, "gpu-1", Some(Err(failure(reason)))).await;
        let problem = fixture.problem(Method::GET, "/api/v1/nodes/gpu-1/metrics", CAROL).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(status), &json!(code)));
    }
    let _agent = Agent::connect(&fixture, "gpu-1", Some(Ok(vec![b'#'; (1 << 20) + 1]))).await;
    let problem = fixture.problem(Method::GET, "/api/v1/nodes/gpu-1/metrics", CAROL).await;
    assert_eq!(problem["code"], "E0356", "a page over the bound");
}

#[tokio::test]
async fn a_silent_agent_fails_its_own_scrape_and_delays_no_other() {
    let fixture = Fixture::start().await;
    let (_one, _two) = (fixture.node("silent").await, fixture.node("good").await);
    let _silent = Agent::connect(&fixture, "silent", None).await;
    let _good = Agent::connect(&fixture, "good", Some(Ok(b"a 1\n".to_vec()))).await;
    let scrape = |node: &str, patience: &str| {
        let path = format!("/api/v1/nodes/{node}/metrics");
        fixture.request(Method::GET, &path, CAROL).header(PATIENCE, patience).send()
    };
    // More than its agent may be asked at a time, so that some wait for their turn.
    let silent: Vec<_> = (0..20).map(|_| tokio::spawn(scrape("silent", "5"))).collect();
    let good = scrape("good", "5").await.unwrap();
    assert_eq!(good.text().await.unwrap(), "a 1\n");
    assert!(silent.iter().all(|scrape| !scrape.is_finished()), "the good one waited");
    for scrape in silent {
        let response = scrape.await.unwrap().unwrap();
        assert_eq!(response.status(), 503);
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], "E0356", "{problem}");
    }
    for bad in ["soon", "-1", "0", "NaN"] {
        assert_eq!(scrape("good", bad).await.unwrap().status(), 400, "{bad}");
    }
    assert_eq!(scrape("good", "inf").await.unwrap().status(), 200);
}

#[tokio::test]
async fn all_nodes_are_on_one_page() {
    let fixture = Fixture::start().await;
    let _nodes = (
        fixture.node("good").await,
        fixture.node("spoiler").await,
        fixture.node_in_pool("elsewhere", "other").await,
    );
    let says = |text: &str| Some(Ok(text.as_bytes().to_vec()));
    let _good = Agent::connect(&fixture, "good", says("# TYPE a gauge\na{x=\"1\"} 1\n")).await;
    let _spoiler = Agent::connect(&fixture, "spoiler", says("a{node=\"good\"} 7\n")).await;
    let all = page(&fixture, "/api/v1/federate").await;
    for line in [
        "gangline_node_answers{node=\"elsewhere\"} 0",
        "gangline_node_answers{node=\"good\"} 1",
        "gangline_node_answers{node=\"spoiler\"} 0",
        "a{x=\"1\",node=\"good\"} 1",
    ] {
        assert!(all.contains(&format!("{line}\n")), "{line}:\n{all}");
    }
    assert!(!all.contains(" 7\n"), "{all}");
    let other = page(&fixture, "/api/v1/federate?pool=other").await;
    assert!(other.contains("elsewhere") && !other.contains("good"), "{other}");
    let wrong = fixture.problem(Method::GET, "/api/v1/federate?pol=x", CAROL).await;
    assert_eq!(wrong["status"], 400);
}

#[tokio::test]
async fn discovery_lists_the_coordinator_and_every_node() {
    let fixture = Fixture::start().await;
    let only: Value = fixture.get("/api/v1/prometheus/sd", CAROL).await;
    assert_eq!(only.as_array().unwrap().len(), 1, "{only}");
    let own = &only[0];
    assert_eq!(
        own["labels"],
        json!({"__metrics_path__": "/metrics", "__scheme__": "http", "instance": "test",
               "job": "gangline"})
    );
    let job = fixture.submit(ALICE, RAY_SPEC).await;
    let _node = fixture.node("gpu-1").await;
    fixture.place(&job, 1).await;
    let response = fixture.request(Method::GET, "/api/v1/prometheus/sd", CAROL).send().await;
    let response = response.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    let list: Value = response.json().await.unwrap();
    let list = list.as_array().unwrap();
    // No member of the Ray cluster runs yet.
    assert_eq!(list.len(), 2, "{list:?}");
    assert_eq!(
        list[1]["labels"],
        json!({"__metrics_path__": "/api/v1/nodes/n-gpu-1/metrics", "__scheme__": "http",
               "instance": "gpu-1", "pool": "h100-a", "job": "gangline-node"})
    );
    assert_eq!(list[0]["targets"], list[1]["targets"]);
    let none = fixture.problem(Method::GET, "/api/v1/nodes/gpu-1/ray-metrics", DAVE).await;
    assert_eq!((&none["status"], &none["code"]), (&json!(404), &json!("E0357")));

    // Over https the targets are asked with https as well.
    let (client, address) = fixture.https();
    let answer = client.get(format!("{address}/api/v1/prometheus/sd")).bearer_auth(CAROL);
    let list: Value = answer.send().await.unwrap().json().await.unwrap();
    assert_eq!(list[0]["labels"]["__scheme__"], "https");
    assert!(list[0]["targets"][0].as_str().unwrap().starts_with("localhost:"), "{list}");
}
