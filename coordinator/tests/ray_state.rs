//! What a job's Ray cluster says of itself, over HTTP, with a hand-made agent at the other end of a
//! real connection: whole answers, refusals, and answers that no honest agent gives.

mod fixture;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::Method;
use fixture::{ALICE, BOB, Fixture, HeldOpen, SPEC};
use gangline_common::request::answer;
use gangline_common::transport::{Connection, REQUESTS};
use gangline_common::wire::request::{
    AgentRequest, FailureReason, RayStateRequest, RaySubject, RequestFailure,
};
use serde_json::{Value, json};

const RAY_SPEC: &str =
    "name: ray\nresources: {nnodes: 1, gpus_per_node: 1}\nrun: python train.py\n";
const LISTS: [&str; 3] = ["nodes", "actors", "placement_groups"];

type Answer = Result<Vec<u8>, RequestFailure>;

/// An agent that gives one answer to everything; without one it stays silent.
struct Agent {
    answer: Arc<Mutex<Option<Answer>>>,
    asked: Arc<Mutex<Vec<RayStateRequest>>>,
    _held: HeldOpen,
}

impl Agent {
    /// The agent of `node`, connected to the coordinator of the fixture.
    async fn connect(fixture: &Fixture, node: &str) -> Agent {
        let (connection, held) = fixture.connect_agent(node).await;
        let (answer, asked) = (Arc::default(), Arc::default());
        tokio::spawn(serve(connection, Arc::clone(&answer), Arc::clone(&asked)));
        Agent { answer, asked, _held: held }
    }

    fn says(&self, answer: Answer) {
        *self.answer.lock().unwrap() = Some(answer);
    }

    fn fails(&self, reason: FailureReason, text: &str) {
        self.says(Err(RequestFailure { reason, text: text.to_owned() }));
    }

    fn last_question(&self) -> RayStateRequest {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

async fn serve(
    connection: Connection,
    says: Arc<Mutex<Option<Answer>>>,
    asked: Arc<Mutex<Vec<RayStateRequest>>>,
) {
    while let Ok(stream) = connection.accept_request().await {
        let (says, asked) = (says.lock().unwrap().clone(), Arc::clone(&asked));
        tokio::spawn(answer(stream, |request| async move {
            let AgentRequest::RayState(request) = request else { panic!("{request:?}") };
            asked.lock().unwrap().push(request);
            match says {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }));
    }
}

/// A Ray job with a place, and the agent of its head.
async fn placed(fixture: &Fixture) -> (String, Agent) {
    let job = fixture.submit(ALICE, RAY_SPEC).await;
    let _node = fixture.node("gpu-1").await;
    fixture.place(&job, 1).await;
    let agent = Agent::connect(fixture, "gpu-1").await;
    (job, agent)
}

fn path(job: &str, list: &str) -> String {
    format!("/api/v1/jobs/{job}/ray/{list}")
}

fn list(entries: Value) -> Answer {
    Ok(json!({"total": 9, "entries": entries}).to_string().into_bytes())
}

#[tokio::test]
async fn the_agent_of_the_head_is_asked_and_its_answer_is_shown() {
    let fixture = Fixture::start().await;
    let (job, agent) = placed(&fixture).await;
    agent.says(list(json!([
        {"node_id": "aa", "member": "head", "address": "10.0.0.1", "state": "ALIVE",
         "resources": {"CPU": 0.0}, "field_of_a_newer_agent": [1]},
        {"node_id": "bb", "member": "7", "address": "10.0.0.2", "state": "DEAD"},
    ])));
    let nodes = fixture.get(&path(&job, "nodes"), ALICE).await;
    assert_eq!(
        (&nodes["job"], &nodes["attempt"], &nodes["total"]),
        (&json!(job), &json!(1), &json!(9))
    );
    assert_eq!(
        nodes["nodes"][0],
        json!({"node_id": "aa", "member": "head", "node": "gpu-1", "address": "10.0.0.1",
               "alive": true, "state": "ALIVE", "state_message": null, "resources": {"CPU": 0.0}})
    );
    // No member of this gang: it has no node of ours.
    assert_eq!(
        (&nodes["nodes"][1]["node"], &nodes["nodes"][1]["alive"]),
        (&Value::Null, &json!(false))
    );
    let question = agent.last_question();
    assert_eq!((question.subject, question.state, question.limit), (RaySubject::Nodes, None, 100));

    agent.says(list(
        json!([{"actor_id": "a1", "class": "A", "state": "ALIVE", "member": "0", "pid": 7}]),
    ));
    let actors =
        fixture.get(&format!("{}?state=alive&page_size=5", path(&job, "actors")), ALICE).await;
    let actor = &actors["actors"][0];
    assert_eq!((&actor["node"], &actor["pid"]), (&json!("gpu-1"), &json!(7)));
    let question = agent.last_question();
    assert_eq!((question.state.as_deref(), question.limit), (Some("ALIVE"), 5));

    agent.says(list(json!([{"placement_group_id": "p1", "state": "PENDING",
                            "bundles": [{"index": 0, "resources": {"GPU": 8.0}}]}])));
    let groups = fixture.get(&path(&job, "placement_groups"), ALICE).await;
    assert_eq!(groups["placement_groups"][0]["bundles"][0]["member"], Value::Null);
    // More than was asked for is cut.
    agent.says(list(json!([{}, {}, {}])));
    let cut = fixture.get(&format!("{}?page_size=2", path(&job, "actors")), ALICE).await;
    assert_eq!(cut["actors"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn what_cannot_be_asked_says_why() {
    let fixture = Fixture::start().await;
    let problem = async |job: &str, list: &str| {
        let problem = fixture.problem(Method::GET, &path(job, list), ALICE).await;
        (problem["status"].as_u64().unwrap(), problem["code"].as_str().unwrap().to_owned())
    };
    let told = |status: u64, code: &str| (status, code.to_owned());
    let job = fixture.submit(ALICE, RAY_SPEC).await;
    let plain = fixture.submit(ALICE, SPEC).await;
    for list in LISTS {
        assert_eq!(problem(&job, list).await, told(409, "E0360"), "it waits");
        assert_eq!(problem(&plain, list).await, told(409, "E0361"), "it has no Ray");
        assert_eq!(problem("j-nobody", list).await, told(404, "E0306"));
        let other = fixture.problem(Method::GET, &path(&job, list), BOB).await;
        assert_eq!(other["status"], 404, "not Bob's");
        for query in ["state=BUSY", "state=", "page_size=0", "page_size=1001", "stat=ALIVE"] {
            let path = format!("{}?{query}", path(&job, list));
            assert_eq!(fixture.problem(Method::GET, &path, ALICE).await["status"], 400, "{path}");
        }
    }
    let _node = fixture.node("gpu-1").await;
    fixture.place(&job, 1).await;
    assert_eq!(problem(&job, "nodes").await, told(503, "E0362"), "its agent is not connected");
    drop(Agent::connect(&fixture, "gpu-1").await);
    assert_eq!(problem(&job, "nodes").await, told(503, "E0362"), "its agent has gone");
}

#[tokio::test]
async fn failures_and_lies_of_an_agent_are_problems() {
    let fixture = Fixture::start().await;
    let (job, agent) = placed(&fixture).await;
    let path = path(&job, "actors");
    let reasons = [
        (FailureReason::Unknown, 501, "E0363"),
        (FailureReason::NotHere, 409, "E0365"),
        (FailureReason::NoAnswer, 502, "E0366"),
        (FailureReason::TooLarge, 400, "E0300"),
    ];
    for (reason, status, code) in reasons {
        agent.fails(reason, "a\u{1b}[2Jb");
        let problem = fixture.problem(Method::GET, &path, ALICE).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(status), &json!(code)));
        assert!(!problem["detail"].as_str().unwrap().contains('\u{1b}'), "{problem}");
    }
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let lies: [&[u8]; 6] =
        [b"", b"null", b"{}", b"{\"total\":-1,\"entries\":[]}", b"\xff\xfe", &deep];
    for lie in lies {
        agent.says(Ok(lie.to_vec()));
        let problem = fixture.problem(Method::GET, &path, ALICE).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(502), &json!("E0366")));
    }
}

/// One job's silent cluster holds up nobody for long, and takes a bounded number of questions.
#[tokio::test]
async fn questions_to_a_silent_agent_are_bounded() {
    let fixture = Arc::new(Fixture::start().await);
    let (job, agent) = placed(&fixture).await;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..REQUESTS {
        let (fixture, path) = (Arc::clone(&fixture), path(&job, "nodes"));
        waiting.spawn(async move { fixture.problem(Method::GET, &path, ALICE).await });
    }
    while agent.asked.lock().unwrap().len() < REQUESTS as usize {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let ninth = fixture.problem(Method::GET, &path(&job, "nodes"), ALICE).await;
    assert_eq!((&ninth["status"], &ninth["code"]), (&json!(503), &json!("E0364")));
    while let Some(problem) = waiting.join_next().await {
        assert_eq!(problem.unwrap()["code"], "E0366");
    }
    agent.says(list(json!([])));
    assert_eq!(fixture.get(&path(&job, "nodes"), ALICE).await["nodes"], json!([]));
}
