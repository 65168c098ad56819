//! Labels of nodes and pools over HTTP: who may change them, what is refused, what is shown.

mod fixture;

use axum::http::Method;
use fixture::{ADMIN, ALICE, CAROL, DAVE, Fixture, SPEC};
use serde_json::{Value, json};

/// The status of a PATCH, and its answer.
async fn patch(fixture: &Fixture, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let path = format!("/api/v1/{path}");
    let request = fixture.request(Method::PATCH, &path, token).body(body.to_string());
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Until the agents have told what they have.
async fn until_told(fixture: &Fixture) {
    while fixture.board.nodes().iter().any(|snapshot| snapshot.node.inventory.is_none()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn operators_label_nodes_and_everybody_sees_whose_label_it_is() {
    let fixture = Fixture::start().await;
    fixture.node("gpu-1").await;
    until_told(&fixture).await;
    let labels = json!({"labels": {"rack": "r12", "rail": "1"}});
    assert_eq!(patch(&fixture, "nodes/gpu-1", ALICE, &labels).await.0, 403);
    let (status, node) = patch(&fixture, "nodes/gpu-1", DAVE, &labels).await;
    assert_eq!((status, &node["labels"]), (200, &labels["labels"]));
    let back = json!({"labels": {"rail": null}});
    assert_eq!(patch(&fixture, "nodes/gpu-1", DAVE, &back).await.0, 200);
    let node = fixture.get("/api/v1/nodes/gpu-1", CAROL).await;
    assert_eq!(node["labels"], json!({"rack": "r12"}));
    assert_eq!(node["operator_labels"], json!({"rack": "r12"}));
    assert_eq!(node["agent_labels"], json!({}));
    let audit = fixture.get("/api/v1/audit", DAVE).await;
    let said = audit["entries"].as_array().unwrap().iter().find(|e| e["action"] == "node.label");
    let said = said.unwrap();
    assert_eq!((&said["object"], &said["detail"]), (&json!("node gpu-1"), &json!("rail-")));
}

#[tokio::test]
async fn labels_that_cannot_be_are_refused_with_a_reason() {
    let fixture = Fixture::start().await;
    fixture.node("gpu-1").await;
    let long = "v".repeat(257);
    for (key, value) in
        [("", "v"), ("-a", "v"), ("a b", "v"), ("a", ""), ("a", "x\ny"), ("a", &long)]
    {
        let body = json!({"labels": {key: value}});
        let (status, problem) = patch(&fixture, "nodes/gpu-1", ADMIN, &body).await;
        assert_eq!((status, &problem["code"]), (422, &json!("E0320")), "{key}={value}");
        assert!(problem["hint"].is_string());
    }
    let many: serde_json::Map<String, Value> =
        (0..65).map(|n| (format!("k{n}"), json!("v"))).collect();
    let (status, problem) = patch(&fixture, "nodes/gpu-1", ADMIN, &json!({ "labels": many })).await;
    assert_eq!((status, &problem["code"]), (507, &json!("E0342")));
    let (status, problem) = patch(&fixture, "nodes/nope", ADMIN, &json!({"labels": {}})).await;
    assert_eq!((status, &problem["code"]), (404, &json!("E0307")));
    assert_eq!(patch(&fixture, "nodes/gpu-1", ADMIN, &json!({"pool": "x"})).await.0, 422);
}

#[tokio::test]
async fn pools_are_listed_declared_and_nodes_move_between_them() {
    let fixture = Fixture::start().await;
    let _agents = (fixture.node("gpu-1").await, fixture.node_in_pool("gpu-2", "h20").await);
    until_told(&fixture).await;
    fixture.submit(ALICE, &SPEC.replace("nnodes: 1", "nnodes: 5, pool: h20")).await;
    let pools = fixture.get("/api/v1/pools", CAROL).await;
    let short = |pools: &Value| -> Vec<Value> {
        let pools = pools["pools"].as_array().unwrap();
        pools.iter().map(|p| json!([p["name"], p["nodes"], p["jobs_waiting"]])).collect()
    };
    assert_eq!(short(&pools), [json!(["h100-a", 1, 0]), json!(["h20", 1, 1])]);

    assert_eq!(patch(&fixture, "pools/h20", ALICE, &json!({"add": ["gpu-1"]})).await.0, 403);
    let (status, problem) = patch(&fixture, "pools/h2", DAVE, &json!({"add": ["gpu-1"]})).await;
    assert_eq!((status, &problem["code"]), (404, &json!("E0370")));
    assert_eq!(problem["detail"], "there is no pool `h2`");
    assert!(problem["hint"].as_str().unwrap().starts_with("there are: h100-a, h20; "), "{problem}");

    let (status, pool) = patch(&fixture, "pools/h20", DAVE, &json!({"add": ["gpu-1"]})).await;
    assert_eq!((status, &pool["nodes"]), (200, &json!(2)));
    assert_eq!(pool["members"][0]["name"], "gpu-1");
    assert_eq!(pool["members"][0]["pool_by"], "operator");
    assert_eq!(pool["members"][1]["pool_by"], "agent");
    assert_eq!(fixture.get("/api/v1/nodes/gpu-1", CAROL).await["pool"], "h20");

    let declared = json!({"description": "for the night"});
    let (status, pool) = patch(&fixture, "pools/spare", DAVE, &declared).await;
    assert_eq!((status, &pool["nodes"], &pool["set_by"]), (200, &json!(0), &json!("dave")));
    let remove = json!({"remove": ["gpu-2"]});
    let (status, problem) = patch(&fixture, "pools/h20", DAVE, &remove).await;
    assert_eq!((status, &problem["code"]), (409, &json!("E0372")));
    for nonsense in [json!({}), json!({"ad": []}), json!({"add": ["gpu-1"], "remove": ["gpu-1"]})] {
        assert_eq!(patch(&fixture, "pools/h20", DAVE, &nonsense).await.0, 422, "{nonsense}");
    }

    let delete = async |pool: &str| {
        let path = format!("/api/v1/pools/{pool}");
        let answer = fixture.request(Method::DELETE, &path, DAVE).send().await.unwrap();
        answer.status().as_u16()
    };
    assert_eq!(delete("h20").await, 409);
    assert_eq!(delete("spare").await, 204);
    assert_eq!(delete("spare").await, 404);
}

#[tokio::test]
async fn a_spec_for_a_pool_that_is_not_there_is_refused_at_its_place() {
    let fixture = Fixture::start().await;
    fixture.node_in_pool("gpu-1", "h100").await;
    until_told(&fixture).await;
    let spec = "name: hello\ncommand: [a]\nresources:\n  pool: h10\n";
    let problem = fixture.submit_problem("", spec).await;
    let error = &problem["errors"][0];
    assert_eq!(error["detail"], "there is no pool `h10`");
    assert_eq!((&error["line"], &error["pointer"]), (&json!(4), &json!("/resources/pool")));
    assert!(error["hint"].as_str().unwrap().starts_with("there are: h100; "), "{error}");
}
