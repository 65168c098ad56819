//! `clone` and `diff`: the specs of jobs that were submitted.

use serde_json::{Value, json};

use crate::answers::{job, running, unexpected};
use crate::server::{Server, json as answer, problem, run};

/// The spec of a job of the torchrun template, as a coordinator keeps it. The argument `1e-3` is a
/// number in `params`, so the template would not give it again.
fn template_spec() -> Value {
    json!({
        "expansion": ["torchrun", {"fill": "--nnodes=$GANGLINE_NNODES"},
            {"fill": "--node-rank=$GANGLINE_NODE_RANK"}, {"fill": "--master-addr=$MASTER_ADDR"},
            {"fill": "--master-port=$MASTER_PORT"},
            {"fill": "--nproc-per-node=$GANGLINE_GPUS_PER_NODE"}, "--max-restarts", "0",
            "train.py", "1e-3"],
        "grace_period": "30s", "kind": "job",
        "launcher": {"start_timeout": "5m", "type": "torchrun"}, "name": "ddp",
        "params": {"args": [0.001], "script": "train.py"},
        "resources": {"gpus_per_node": 8, "nnodes": 2}, "template": "torchrun@1", "version": 1,
    })
}

fn script_spec(run: &str, nnodes: u32) -> Value {
    json!({
        "env": {"LR": "1e-6"}, "grace_period": "30s", "kind": "job",
        "launcher": {"start_timeout": "5m", "type": "command"}, "name": "sft",
        "resources": {"gpus_per_node": 8, "nnodes": nnodes}, "run": run, "version": 1,
    })
}

fn with_spec(id: &str, spec: &Value) -> Value {
    let mut job = running();
    job["id"] = id.into();
    job["spec"] = spec.clone();
    job
}

/// A server with the jobs `j-1` and `j-2` that takes a new one.
fn serving(first: Value, second: Value) -> Server {
    Server::start(move |asked, _| match asked.line().as_str() {
        "GET /api/v1/jobs/j-1" => answer(200, &with_spec("j-1", &first)),
        "GET /api/v1/jobs/j-2" => answer(200, &with_spec("j-2", &second)),
        "GET /api/v1/jobs/j-old" => answer(200, &job("j-old", "old", "SUCCEEDED")),
        "POST /api/v1/jobs" => answer(201, &json!({"job": job("j-9", "again", "PENDING")})),
        "GET /api/v1/jobs/nobody" => problem(404, "E0306", "No such job"),
        _ => unexpected(),
    })
}

fn sent(server: &Server) -> Value {
    serde_json::from_str(&server.asked_for("POST /api/v1/jobs").pop().unwrap().body).unwrap()
}

#[test]
fn clone_submits_the_same_spec() {
    // What YAML wants escaped must arrive too.
    let spec = script_spec("echo 'a: \u{85}\u{2028}\u{feff}\u{1b}'\n\techo\n", 2);
    let server = serving(spec.clone(), template_spec());
    let ended = run(&server, &["clone", "j-1"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.starts_with("j-9  again  PENDING\n"), "{}", ended.stdout);
    assert!(ended.stderr.contains("gangline logs -f j-9"), "{}", ended.stderr);
    assert_eq!(sent(&server), spec);
    let posted = server.asked_for("POST /api/v1/jobs").pop().unwrap();
    assert_eq!(posted.headers["x-gangline-command"], "gangline%20clone%20j-1");
    assert_eq!(posted.headers["idempotency-key"].len(), 32);
    assert_eq!(run(&server, &["clone", "j-1", "-o", "name"]).stdout, "j-9\n");
    // The arguments of a template are those of the first job.
    assert_eq!(run(&server, &["clone", "j-2", "--nnodes", "4", "--name", "ddp-4"]).code, 0);
    let mut expected = template_spec();
    expected["resources"]["nnodes"] = json!(4);
    expected["name"] = json!("ddp-4");
    assert_eq!(sent(&server), expected);
}

#[test]
fn clone_puts_options_over_the_spec() {
    let server = serving(script_spec("true", 2), template_spec());
    let options =
        ["--gpus", "4", "--env", "LR=1e-5", "--env", "NEW=b c", "--set", "grace_period=2m"];
    assert_eq!(run(&server, &[&["clone", "j-1"], &options[..]].concat()).code, 0);
    let sent_spec = sent(&server);
    assert_eq!(sent_spec["resources"], json!({"gpus_per_node": 4, "nnodes": 2}));
    assert_eq!(sent_spec["env"], json!({"LR": "1e-5", "NEW": "b c"}));
    assert_eq!(sent_spec["grace_period"], "2m");
    // A changed param reaches the arguments.
    let ended = run(&server, &["clone", "j-2", "--set", "params.script=other.py"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let expansion = sent(&server)["expansion"].clone();
    assert!(expansion.as_array().unwrap().contains(&json!("other.py")), "{expansion}");
    // A bad change is found before anything is sent.
    let before = server.asked_for("POST /api/v1/jobs").len();
    let ended = run(&server, &["clone", "j-1", "--set", "resources.nnode=3"]);
    assert_eq!(ended.code, 5);
    assert!(ended.stderr.contains("the spec of j-1 is not a valid spec"), "{}", ended.stderr);
    assert_eq!(server.asked_for("POST /api/v1/jobs").len(), before);
}

#[test]
fn diff_compares_line_by_line() {
    let script = "set -e\npython a.py\npython b.py\n";
    let server = serving(script_spec(script, 2), script_spec(&script.replace("a.py", "c.py"), 4));
    let ended = run(&server, &["diff", "j-1", "j-2"]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (
            1,
            "--- j-1\n+++ j-2\n@@ -8,9 +8,9 @@\n name: sft\n resources:\n   gpus_per_node: 8\n\
             -  nnodes: 2\n+  nnodes: 4\n run: |\n   set -e\n-  python a.py\n+  python c.py\n   \
             python b.py\n version: 1\n"
        )
    );
    let ended = run(&server, &["diff", "j-1", "j-1"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, ""));
    assert_eq!(ended.stderr, "the specs of j-1 and j-1 are equal\n");
    let ended = run(&server, &["diff", "j-1", "j-2", "--json"]);
    let value = ended.json();
    assert_eq!(
        (ended.code, &value["equal"], &value["jobs"]),
        (1, &json!(false), &json!(["j-1", "j-2"]))
    );
    assert!(value["diff"].as_str().unwrap().contains("\n-  nnodes: 2\n+  nnodes: 4\n"));
    assert_eq!(run(&server, &["diff", "j-1", "j-1", "--json"]).json()["equal"], json!(true));
}

#[test]
fn diff_prints_no_control_sequences() {
    let server = serving(script_spec("a\u{1b}[2J\n\u{1b}]0;x\u{7}b\n", 1), script_spec("c\n", 1));
    let ended = run(&server, &["diff", "j-1", "j-2"]);
    assert!(!ended.stdout.contains('\u{1b}'), "{:?}", ended.stdout);
    let ended = run(&server, &["diff", "j-1", "j-2", "--color", "always"]);
    assert!(ended.stdout.contains("\u{1b}[31m-run:"), "{:?}", ended.stdout);
}

#[test]
fn jobs_without_an_answer() {
    let server = serving(script_spec("true", 1), template_spec());
    for words in [["diff", "j-1", "nobody"], ["diff", "nobody", "j-1"]] {
        assert_eq!(run(&server, &words).code, 102);
    }
    assert_eq!(run(&server, &["clone", "nobody"]).code, 102);
    let ended = run(&server, &["clone", "j-old"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("the answer about j-old has no spec"), "{}", ended.stderr);
}
