//! Secrets: who may set and see them, what jobs name them, and that no value is anywhere.

mod fixture;
mod support;

use axum::http::Method;
use fixture::{ADMIN, ALICE, BOB, CAROL, DAVE, Fixture, SPEC, ended};
use gangline_common::time::Timestamp;
use gangline_coordinator::core::effect::{Answer, Desired, Rejected};
use gangline_coordinator::core::event::Event;
use gangline_coordinator::core::gang::EndHow;
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::core::secrets::{
    JOB_SECRET_BYTES, PROJECT_SECRET_LIMIT, Sealed, SecretRecord,
};
use serde_json::{Value, json};
use support::{Fleet, alice};

const CANARY: &str = "canary-4f1b-value";

async fn send(
    fixture: &Fixture,
    method: Method,
    path: &str,
    token: &str,
    body: &str,
) -> (u16, Value) {
    let request = fixture.request(method, &format!("/api/v1/secrets{path}"), token);
    let response = request.body(body.to_owned()).send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

async fn set(fixture: &Fixture, token: &str, path: &str, value: &str) -> u16 {
    send(fixture, Method::PUT, path, token, value).await.0
}

async fn names(fixture: &Fixture, token: &str, query: &str) -> Vec<String> {
    let list = fixture.get(&format!("/api/v1/secrets{query}"), token).await;
    assert!(!list.to_string().contains(CANARY), "{list}");
    let secrets = list["secrets"].as_array().unwrap();
    secrets.iter().map(|secret| secret["name"].as_str().unwrap().to_owned()).collect()
}

// ---------------------------------------------------------------- the API

#[tokio::test]
async fn a_project_has_its_own_secrets() {
    let fixture = Fixture::start().await;
    assert_eq!(set(&fixture, ALICE, "/HF_TOKEN", CANARY).await, 204);
    assert_eq!(set(&fixture, ALICE, "/HF_TOKEN", &format!("{CANARY}2")).await, 204);
    assert_eq!(set(&fixture, BOB, "/HF_TOKEN", "of vision").await, 204);
    assert_eq!(set(&fixture, ADMIN, "/A?project=rlhf", CANARY).await, 204);
    assert_eq!(set(&fixture, DAVE, "/OPS", "of an operator").await, 204);
    assert_eq!(names(&fixture, ALICE, "").await, ["A", "HF_TOKEN"]);
    assert_eq!(names(&fixture, BOB, "").await, ["HF_TOKEN"]);
    assert_eq!(names(&fixture, DAVE, "").await, ["OPS"]);
    assert!(names(&fixture, ADMIN, "").await.is_empty());
    let list = fixture.get("/api/v1/secrets?project=rlhf", ADMIN).await;
    assert_eq!((&list["project"], &list["secrets"][0]["set_by"]), (&json!("rlhf"), &json!("root")));
    assert!(list["secrets"][1]["set"].as_str().unwrap().ends_with('Z'), "{list}");
    assert_eq!(list["secrets"][0].as_object().unwrap().len(), 3, "no field for a value");

    // Another project is closed, whether or not it has such a secret; viewers have none.
    for (token, path) in [
        (BOB, "/HF_TOKEN?project=rlhf"),
        (BOB, "/NOTHING?project=rlhf"),
        (DAVE, "/HF_TOKEN?project=rlhf"),
        (ALICE, "/HF_TOKEN?project=vision"),
        (ALICE, "/HF_TOKEN?project=no-such-project"),
        (CAROL, "/HF_TOKEN"),
    ] {
        for method in [Method::PUT, Method::DELETE] {
            let (status, problem) = send(&fixture, method.clone(), path, token, "x").await;
            assert_eq!((status, &problem["code"]), (403, &json!("E0302")), "{method} {path}");
        }
    }
    for (token, query) in [(BOB, "?project=rlhf"), (DAVE, "?project=rlhf"), (CAROL, "")] {
        assert_eq!(send(&fixture, Method::GET, query, token, "").await.0, 403, "{query}");
    }
    assert_eq!(send(&fixture, Method::DELETE, "/OPS", ALICE, "").await.1["code"], "E0343");
    assert_eq!(send(&fixture, Method::DELETE, "/HF_TOKEN", ALICE, "").await.0, 204);
    assert_eq!(send(&fixture, Method::DELETE, "/HF_TOKEN", ALICE, "").await.0, 404);
    assert_eq!(names(&fixture, ALICE, "").await, ["A"]);
    assert_eq!(names(&fixture, BOB, "").await, ["HF_TOKEN"]);
    // No address gives a value.
    assert_eq!(send(&fixture, Method::GET, "/A", ADMIN, "").await.0, 405);
}

#[tokio::test]
async fn a_value_is_what_a_variable_can_hold() {
    let fixture = Fixture::start().await;
    for (path, value, status) in [
        ("/1A", "x", 400),
        ("/A-B", "x", 400),
        ("/..%2fx", "x", 400),
        (&*format!("/{}", "A".repeat(129)), "x", 400),
        ("/A", "", 422),
        ("/A", "a\0b", 422),
        ("/A", &*"x".repeat(65537), 413),
        ("/A", &*"x".repeat(65536), 204),
        ("/A", "two\nlines \u{e9}\n", 204),
        ("/A?project=../x", "x", 403),
        ("/A?projct=x", "x", 400),
    ] {
        assert_eq!(set(&fixture, ALICE, path, value).await, status, "{path}");
    }
    let request = fixture.request(Method::PUT, "/api/v1/secrets/A", ALICE).body(vec![0xff]);
    assert_eq!(request.send().await.unwrap().status(), 422);
    assert_eq!(set(&fixture, ADMIN, "/A?project=../x", "x").await, 400);
}

#[tokio::test]
async fn every_change_is_in_the_audit_log_without_the_value() {
    let fixture = Fixture::start().await;
    set(&fixture, ALICE, "/HF_TOKEN", CANARY).await;
    set(&fixture, ADMIN, "/HF_TOKEN?project=rlhf", CANARY).await;
    send(&fixture, Method::DELETE, "/HF_TOKEN", ALICE, "").await;
    let page = fixture.get("/api/v1/audit?page_size=3", ADMIN).await;
    assert!(!page.to_string().contains(CANARY), "{page}");
    let told: Vec<(&str, &str, &str, &str)> = page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap();
            (text("actor"), text("action"), text("object"), text("detail"))
        })
        .collect();
    let object = "secret rlhf/HF_TOKEN";
    assert_eq!(
        told,
        [
            ("alice", "secret.delete", object, ""),
            ("root", "secret.set", object, "replaced"),
            ("alice", "secret.set", object, "new"),
        ]
    );
}

#[tokio::test]
async fn a_job_names_secrets_that_its_project_has() {
    let fixture = Fixture::start().await;
    set(&fixture, BOB, "/HF_TOKEN", CANARY).await;
    let spec = format!("{SPEC}secrets: [WANDB_API_KEY, HF_TOKEN]\n");
    set(&fixture, ALICE, "/WANDB_API_KEY", CANARY).await;
    let problem = fixture.submit_problem("", &spec).await;
    assert_eq!(problem["status"], 422);
    let errors = problem["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{problem}");
    assert_eq!((&errors[0]["pointer"], &errors[0]["line"]), (&json!("/secrets/1"), &json!(8)));
    assert!(errors[0]["hint"].as_str().unwrap().contains("gangline secret set"), "{problem}");
    set(&fixture, ALICE, "/HF_TOKEN", CANARY).await;
    let job = fixture.submit(ALICE, &spec).await;
    let shown = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(shown["spec"]["secrets"], json!(["WANDB_API_KEY", "HF_TOKEN"]));
    let ray = fixture.get(&format!("/api/jobs/{job}"), ALICE).await;
    assert!(!format!("{shown} {ray}").contains(CANARY));
    assert_eq!(ray["runtime_env"]["env_vars"], json!({"LR": "1e-6"}));

    let (status, problem) = send(&fixture, Method::DELETE, "/HF_TOKEN", ALICE, "").await;
    assert_eq!((status, &problem["code"]), (409, &json!("E0344")));
    assert!(problem["detail"].as_str().unwrap().contains(&job), "{problem}");
    assert_eq!(send(&fixture, Method::DELETE, "/HF_TOKEN", BOB, "").await.0, 204, "another one");
    let stop = format!("/api/v1/jobs/{job}/stop");
    fixture.request(Method::POST, &stop, ALICE).send().await.unwrap();
    assert_eq!(send(&fixture, Method::DELETE, "/HF_TOKEN", ALICE, "").await.0, 204);
}

#[tokio::test]
async fn a46_the_store_and_its_directory_hold_no_value() {
    let fixture = Fixture::start().await;
    set(&fixture, ALICE, "/HF_TOKEN", CANARY).await;
    fixture.submit(ALICE, &format!("{SPEC}secrets: [HF_TOKEN]\n")).await;
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(fixture.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            let bytes = std::fs::read(entry.path()).unwrap();
            let found = bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
            assert!(!found, "{:?}", entry.path());
            let named = bytes.windows(8).any(|window| window == b"HF_TOKEN");
            seen.push((entry.file_name().into_string().unwrap(), named));
        }
    }
    // The search sees what is there: the name, in the store and not beside the key.
    assert!(seen.contains(&("store.redb".to_owned(), true)), "{seen:?}");
    assert!(seen.contains(&("secrets.key".to_owned(), false)), "{seen:?}");
}

/// A job of one rank that writes `log` and fails; what `why` says of it, to its user and to a viewer.
async fn why(fixture: &Fixture, spec: &str, log: &str) -> [Value; 2] {
    let job = fixture.submit(ALICE, spec).await;
    let node = fixture.node("gpu-1").await;
    let member = fixture.place(&job, 1).await;
    fixture.write_log(&member, "output", log.as_bytes());
    node.report_running(&member).await;
    let end = ended(EndHow::Exited { code: 1 });
    node.report(vec![(member.clone(), end)], Vec::new()).await;
    node.until(&member, JobState::is_terminal).await;
    let path = format!("/api/v1/jobs/{job}/why");
    [fixture.get(&path, ALICE).await, fixture.get(&path, CAROL).await]
}

const COMMAND_SPEC: &str =
    "name: c\nlauncher: {type: command}\nrun: exit 1\nretry: {max: 0}\nresources: {nnodes: 1}\n";

#[tokio::test]
async fn a46_why_quotes_no_value() {
    let fixture = Fixture::start().await;
    set(&fixture, ALICE, "/HF_TOKEN", CANARY).await;
    let spec = format!("{COMMAND_SPEC}secrets: [HF_TOKEN]\n");
    let log = format!("RuntimeError: CUDA out of memory with {CANARY}\nKeyError: '{CANARY}'\n");
    for found in why(&fixture, &spec, &log).await {
        assert_eq!(found["diagnosis"]["category"], "gpu_oom", "{found}");
        assert!(!found.to_string().contains(CANARY), "{found}");
        let quoted = &found["diagnosis"]["evidence"][0]["text"];
        assert!(quoted.as_str().unwrap().contains("out of memory with"), "{found}");
    }
}

#[tokio::test]
async fn a_log_policy_says_what_the_failure_is_shown_as() {
    let fixture = Fixture::start().await;
    let policy =
        "log_policies: [{pattern: ours went wrong, action: fail_no_retry, diagnose: storage}]\n";
    let spec = format!("{COMMAND_SPEC}{policy}");
    let [found, _] = why(&fixture, &spec, "KeyError: 'x'\nours went wrong\n").await;
    let diagnosis = &found["diagnosis"];
    let said = (&diagnosis["category"], &diagnosis["sub_code"], &diagnosis["retry"]);
    assert_eq!(said, (&json!("storage"), &json!("log_policy"), &json!(false)), "{found}");
    assert_eq!(diagnosis["evidence"][0]["text"], "ours went wrong");
    assert!(diagnosis["evidence"][1]["text"].as_str().unwrap().contains("KeyError"), "{found}");
}

#[tokio::test]
async fn a46_values_of_variables_are_for_the_submitter_and_admins() {
    let fixture = Fixture::start().await;
    let submit = async |command: &str| {
        let request = fixture.request(Method::POST, "/api/v1/jobs", ALICE);
        let request = request.header("x-gangline-command", command).body(SPEC);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        format!("/api/v1/jobs/{}", answer["job"]["id"].as_str().unwrap())
    };
    let plain = submit("gangline%20submit%20x.yaml").await;
    let telling = submit("gangline%20submit%20x.yaml%20--env%20LR=1e-6").await;
    for token in [ALICE, ADMIN] {
        assert_eq!(fixture.get(&plain, token).await["spec"]["env"], json!({"LR": "1e-6"}));
        let command = fixture.get(&telling, token).await["submit_command"].clone();
        assert_eq!(command, "gangline submit x.yaml --env LR=1e-6");
    }
    for token in [CAROL, DAVE] {
        let shown = fixture.get(&plain, token).await;
        assert_eq!(shown["spec"]["env"], json!({"LR": "***"}));
        assert_eq!(shown["submit_command"], "gangline submit x.yaml");
        assert!(!fixture.get(&telling, token).await.to_string().contains("1e-6"));
        let ray = fixture.get(&plain.replace("/v1", ""), token).await;
        assert_eq!(ray["runtime_env"]["env_vars"], json!({"LR": "***"}));
    }
}

// ---------------------------------------------------------------- decisions

const COMMAND: &str = "{resources: {nnodes: 2, gpus_per_node: 2}, launcher: {type: command}, \
                       command: [\"true\"], secrets: [A, B]}";

fn set_secret(fleet: &mut Fleet, name: &str, sealed: Vec<u8>) -> Answer {
    let record = SecretRecord {
        project: "rl".to_owned(),
        name: name.to_owned(),
        sealed: Sealed(sealed),
        set_by: "alice".to_owned(),
        set: Timestamp { boot_ms: 0, wall_ms: 0 },
    };
    fleet.step(Event::SetSecret { request: 1, record, actor: alice() });
    fleet.answers.last().cloned().unwrap()
}

fn delete_secret(fleet: &mut Fleet, name: &str) -> Answer {
    let (project, name) = ("rl".to_owned(), name.to_owned());
    fleet.step(Event::DeleteSecret { request: 1, project, name, actor: alice() });
    fleet.answers.last().cloned().unwrap()
}

/// What a node is told of a job's secrets.
fn told(fleet: &Fleet, node: &str) -> Vec<Vec<u8>> {
    let desired = fleet.core.desired(&fleet.node(node).id);
    let secrets = desired.into_iter().flat_map(|desired| match desired {
        Desired::Run { secrets, .. } => secrets,
        Desired::Stop { .. } => Vec::new(),
    });
    secrets.map(|secret| secret.sealed.0.clone()).collect()
}

#[test]
fn a18_only_nodes_that_run_the_job_are_told() {
    let mut fleet = Fleet::new();
    for name in ["a", "b", "c"] {
        fleet.add_node(name, 2, false);
    }
    set_secret(&mut fleet, "A", vec![1]);
    set_secret(&mut fleet, "B", vec![2]);
    set_secret(&mut fleet, "C", vec![3]);
    fleet.submit("j1", COMMAND);
    assert_eq!(fleet.state("j1"), JobState::Starting);
    let told: Vec<Vec<Vec<u8>>> = ["a", "b", "c"].map(|node| told(&fleet, node)).into();
    let mut counts: Vec<usize> = told.iter().map(Vec::len).collect();
    counts.sort_unstable();
    assert_eq!(counts, [0, 2, 2]);
    assert!(told.iter().all(|told| told.is_empty() || *told == [vec![1], vec![2]]), "{told:?}");
}

/// One generation with two contents would be refused by every agent.
#[test]
fn a_new_value_of_a_running_job_is_a_new_generation() {
    let mut fleet = Fleet::new();
    for name in ["a", "b", "c"] {
        fleet.add_node(name, 2, false);
    }
    set_secret(&mut fleet, "A", vec![1]);
    set_secret(&mut fleet, "B", vec![2]);
    fleet.submit("j1", COMMAND);
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    let generations = |fleet: &Fleet| ["a", "b", "c"].map(|name| fleet.node(name).generation);
    let before = generations(&fleet);
    set_secret(&mut fleet, "A", vec![9]);
    let after = generations(&fleet);
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        let runs = !told(&fleet, name).is_empty();
        assert_eq!(after[index] > before[index], runs, "{name}");
    }
    fleet.settle();
    assert_eq!(fleet.state("j1"), JobState::Running);
    set_secret(&mut fleet, "UNUSED", vec![9]);
    assert_eq!(generations(&fleet), after);
}

#[test]
fn a_secret_stays_as_long_as_a_job_names_it() {
    let mut fleet = Fleet::new();
    set_secret(&mut fleet, "A", vec![1]);
    let unknown = fleet.submit("j1", COMMAND);
    assert_eq!(unknown, Answer::Rejected(Rejected::UnknownSecrets { missing: vec![1] }));
    set_secret(&mut fleet, "B", vec![2]);
    fleet.submit("j1", COMMAND);
    let in_use = Rejected::SecretInUse { job: "j1".parse().unwrap() };
    assert_eq!(delete_secret(&mut fleet, "B"), Answer::Rejected(in_use));
    fleet.stop("j1");
    assert_eq!(delete_secret(&mut fleet, "B"), Answer::Done);
    assert_eq!(delete_secret(&mut fleet, "B"), Answer::Rejected(Rejected::NoSuchSecret));
}

#[test]
fn secrets_are_bounded() {
    let mut fleet = Fleet::new();
    set_secret(&mut fleet, "A", vec![0; JOB_SECRET_BYTES - 12]);
    set_secret(&mut fleet, "B", vec![0; 11]);
    let too_large = Answer::Rejected(Rejected::SecretsTooLarge { limit: JOB_SECRET_BYTES });
    assert_eq!(fleet.submit("j1", COMMAND), too_large);
    assert_eq!(set_secret(&mut fleet, "B", vec![0; 10]), Answer::Done);
    assert!(matches!(fleet.submit("j1", COMMAND), Answer::Submitted { .. }));
    assert_eq!(set_secret(&mut fleet, "B", vec![0; 11]), too_large);
    assert_eq!(set_secret(&mut fleet, "B", vec![1; 10]), Answer::Done);
    for number in 2..PROJECT_SECRET_LIMIT {
        assert_eq!(set_secret(&mut fleet, &format!("N{number}"), vec![0]), Answer::Done);
    }
    let full = Answer::Rejected(Rejected::TooManySecrets { limit: PROJECT_SECRET_LIMIT });
    assert_eq!(set_secret(&mut fleet, "ONE_MORE", vec![0]), full);
    assert_eq!(set_secret(&mut fleet, "A", vec![0]), Answer::Done);
}
