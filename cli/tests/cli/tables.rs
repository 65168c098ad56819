//! `ps`, `show`, `node` and `top`: tables, JSON, colours, and what others wrote.

use serde_json::{Value, json};

use crate::answers::{job, nodes, one_job, running, unexpected};
use crate::server::{Play, Server, command, finish, json as answer, run};

/// Two pages of jobs.
fn job_server() -> Server {
    Server::start(|asked, _| match (asked.path.as_str(), asked.query.get("page_token")) {
        ("/api/v1/jobs", None) => {
            let mut waiting = job("j-7f4c1", "qwen3-32b-ppo", "PENDING");
            waiting["reason"] = "waits for 5 more nodes in h100-a, behind nobody".into();
            let mut trains = job("j-7f3k2", "qwen3-8b-grpo", "RUNNING");
            trains["progress"] = json!({"step": 84, "total": 240});
            trains["stalled"] = "2099-01-02T03:04:05Z".into();
            let jobs = [trains, waiting];
            answer(200, &json!({"jobs": jobs, "next_page_token": "more"}))
        }
        ("/api/v1/jobs", Some(token)) => {
            assert_eq!(token, "more");
            let jobs = [job("j-7f2", "eval", "STARTING")];
            answer(200, &json!({"jobs": jobs, "next_page_token": null}))
        }
        _ => unexpected(),
    })
}

#[test]
fn ps_prints_pages_as_one_table() {
    let server = job_server();
    let ended = run(&server, &["ps"]);
    assert_eq!(
        ended.stdout,
        "ID       NAME           USER   STATE    NODES  GPUS  PROGRESS         AGE  REASON\n\
         j-7f3k2  qwen3-8b-grpo  alice  RUNNING  2      16    ██  step 84/240  0s   ! stalled for 0s\n\
         j-7f4c1  qwen3-32b-ppo  alice  PENDING  2      16    -                0s   waits for 5 more nodes in h100-a, behind nobody\n\
         j-7f2    eval           alice  STARTING  2      16    -                0s\n"
    );
    assert_eq!(ended.stderr, "3 jobs · gangline ps -a shows the ended ones too\n");
    assert_eq!(ended.code, 0);
    let asked = server.asked();
    assert_eq!(asked[0].query["state"], "PENDING,STARTING,RUNNING,STOPPING,HELD");
    assert_eq!(asked[0].headers["authorization"], "Bearer gla_test");
}

#[test]
fn ps_filters() {
    let server = job_server();
    assert_eq!(run(&server, &["ps", "-a", "-q"]).stderr, "");
    assert_eq!(server.asked()[0].query.get("state"), None);
    run(&server, &["ps", "-s", "failed"]);
    assert_eq!(server.asked()[2].query["state"], "FAILED");
    assert_eq!(run(&server, &["ps", "-s", "sleeping"]).code, 2);
}

#[test]
fn ps_json_is_what_the_coordinator_said() {
    let server = job_server();
    let ended = run(&server, &["ps", "--json"]);
    let document = ended.json();
    assert_eq!(document["jobs"][2], job("j-7f2", "eval", "STARTING"));
    assert_eq!(document["jobs"][0]["progress"], json!({"step": 84, "total": 240}));
    assert_eq!(document["jobs"].as_array().map(Vec::len), Some(3));
    assert_eq!(document["next_page_token"], Value::Null);
    assert_eq!(ended.stderr, "");

    let lines = run(&server, &["ps", "-o", "jsonl"]).stdout;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, document["jobs"].as_array().unwrap().clone());

    assert_eq!(run(&server, &["ps", "-o", "name"]).stdout, "j-7f3k2\nj-7f4c1\nj-7f2\n");
    let wide = run(&server, &["ps", "-o", "wide"]).stdout;
    assert!(wide.contains("2099-01-02 03:04:05 +00:00"), "{wide}");
    assert!(wide.contains("/shared/jobs/j-7f3k2"), "{wide}");
}

#[test]
fn an_empty_list_is_a_list() {
    let server = Server::start(|_, _| answer(200, &json!({"jobs": [], "next_page_token": null})));
    assert_eq!(
        run(&server, &["ps", "--json"]).json(),
        json!({"jobs": [], "next_page_token": null})
    );
    let table = run(&server, &["ps"]);
    assert_eq!(table.stdout, "ID  NAME  USER  STATE  NODES  GPUS  PROGRESS  AGE  REASON\n");
}

#[test]
fn output_format_from_the_environment() {
    let server = job_server();
    let address = format!("http://{}", server.address);
    let mut command = command(&address, &["ps"]);
    let ended = finish(command.env("GANGLINE_OUTPUT", "name").spawn().unwrap());
    assert_eq!(ended.stdout, "j-7f3k2\nj-7f4c1\nj-7f2\n");
}

#[test]
fn show_gives_directory_driver_and_ray_nodes() {
    let server = Server::start(one_job(running()));
    let ended = run(&server, &["show", "qwen3-8b-grpo"]);
    assert_eq!(
        ended.stdout,
        "\
j-7f3k2  qwen3-8b-grpo
  state        RUNNING
  user         alice, project rlhf
  needs        2 node(s) with 8 GPU(s) each, launcher ray, pool h100-a
  submitted    2099-01-02 03:04:05 +00:00
  started      2099-01-02 03:04:15 +00:00
  output       /shared/jobs/j-7f3k2
  checkpoints  /shared/jobs/j-7f3k2/checkpoints
  nodes        gpu-0203 gpu-0205
  Ray driver   gpu-0203
  last saved   global_step_40, 4m10s ago
  complete     global_step_20 (step 20, 12.3 GiB), 4m50s ago; 2 take 24.6 GiB
  disk low     20.0 GiB free, the next takes about 12.3 GiB, 1 old removed to make room
  command      gangline submit grpo.yaml

Attempts
  ATTEMPT  STARTED                     ENDED  OUTCOME  RAY     CAUSE
  1        2099-01-02 03:04:06 +00:00  -      -        2.60.0  -

Ray nodes of attempt 1
  MEMBER  NODE      ADDRESS   ALIVE  DRIVER  RAY NODE ID  MESSAGE
  head    gpu-0203  10.0.0.3  yes    -       hhhh
  0       gpu-0203  10.0.0.3  yes    yes     aaaa
  1       gpu-0205  10.0.0.5  no     -       bbbb         lost

Members
  MEMBER  NODE      PHASE    PID   CPUS  MEMORY    PORTS        END  GPUS
  0       gpu-0203  running  4121  16    64.0 GiB  20000-20255  -    GPU-1 GPU-2

History
  TIME                        STATE    ACTOR     TEXT
  2099-01-02 03:04:05 +00:00  PENDING  alice     submitted
  2099-01-02 03:04:15 +00:00  RUNNING  gangline  all members are up
"
    );
    assert_eq!(server.asked()[0].path, "/api/v1/jobs/qwen3-8b-grpo");
    assert_eq!(run(&server, &["show", "@last", "--json"]).json(), running());
    assert_eq!(server.asked()[1].path, "/api/v1/jobs/@last");
    assert_eq!(run(&server, &["show", "j-7", "-o", "name"]).stdout, "j-7f3k2\n");
}

fn node_server() -> Server {
    Server::start(|asked, _| match asked.line().as_str() {
        "GET /api/v1/nodes" => answer(200, &nodes()),
        "GET /api/v1/nodes/gpu-0203" => {
            let mut node = nodes()["nodes"][0].clone();
            let more = json!({
                "hostname": "c-1", "versions": {"ray": "2.60.0", "driver": "570.1"},
                "doctor": [{"check": "shm", "level": "warning", "text": "64 MiB", "advice": "use --shm-size"}],
                "history": [{"time": "2099-01-02T03:04:05Z", "state": "online", "actor": "agent", "text": "joined"}],
                "sampled": null, "members": [],
                "host": {"cpu_busy_pct": 12.4, "memory_used_bytes": 1073741824, "memory_total_bytes": null, "load1": 1.5, "shm_free_bytes": null},
            });
            node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            answer(200, &node)
        }
        "POST /api/v1/nodes/gpu-0203/force-release" => answer(200, &nodes()["nodes"][0]),
        "POST /api/v1/nodes/gpu-0203/revoke" => answer(200, &nodes()["nodes"][0]),
        _ => unexpected(),
    })
}

const NODE_TABLE: &str = "\
NODE      STATE     POOL    GPUS  IN USE  FREE  GPU%  TEMP  POWER  LAST   JOBS     REASON
gpu-0203  busy      h100-a  2     2       0     81    61    1.2kW  0.4s   j-7f3k2
gpu-0219  cordoned  -       -     0       -     -     -     -      4m12s  -        cordoned by liu: fan replacement; 1 unknown member(s) run there
";

#[test]
fn node_ls() {
    let server = node_server();
    let ended = run(&server, &["node", "ls"]);
    assert_eq!(ended.stdout, NODE_TABLE);
    assert_eq!(ended.stderr, "2 nodes: 1 busy 1 cordoned · 2 GPUs, 2 in use\n");
    assert_eq!(run(&server, &["node", "ls", "--json"]).json(), nodes());
    assert_eq!(run(&server, &["node", "ls", "-o", "jsonl"]).stdout.lines().count(), 2);
    assert_eq!(run(&server, &["node", "ls", "-o", "name"]).stdout, "gpu-0203\ngpu-0219\n");
    let wide = run(&server, &["node", "ls", "-o", "wide"]).stdout;
    assert!(
        wide.contains("n-aaaaa") && wide.contains("rack=r12 rail=1") && wide.contains("1.7"),
        "{wide}"
    );
}

#[test]
fn node_show() {
    let server = node_server();
    let text = run(&server, &["node", "show", "gpu-0203"]).stdout;
    for part in [
        "gpu-0203  n-aaaaa\n",
        "  pool         h100-a (by the operator)\n",
        "  labels       rack=r12 rail=1\n    operators' rack=r12\n    agent's    rack=r1 rail=1\n",
        "  versions     driver 570.1, ray 2.60.0\n",
        "  now          CPU 12 %, load 1.5, memory 1.0 GiB\n",
        "  wanted       1.7, agent holds 1.7\n",
        "  gpu-0203  1    H100   82     40.0 GiB of 80.0 GiB  61    612W   j-7f3k2  GPU-1\n",
        "  shm    warning  64 MiB → use --shm-size\n",
        "  2099-01-02 03:04:05 +00:00  online  agent  joined\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
}

#[test]
fn top_once() {
    let server = node_server();
    let text = run(&server, &["top", "--once"]).stdout;
    let gpus = "\
NODE      GPU  MODEL  BUSY%  MEMORY                TEMP  POWER  JOB      UUID
gpu-0203  0    H100   80     40.0 GiB of 80.0 GiB  60    612W   j-7f3k2  GPU-0
gpu-0203  1    H100   82     40.0 GiB of 80.0 GiB  61    612W   j-7f3k2  GPU-1
";
    let summary = "2 nodes: 1 busy 1 cordoned · 2 GPUs, 2 in use";
    assert_eq!(text, format!("{summary}\n\n{NODE_TABLE}\n{gpus}"));
    assert_eq!(run(&server, &["top", "--once", "--json"]).json(), nodes());
}

#[test]
fn revoke_asks_first() {
    let server = node_server();
    let ended = run(&server, &["node", "revoke", "gpu-0203"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
    assert!(ended.stderr.contains("--yes"), "{}", ended.stderr);
    assert!(server.asked().is_empty());
    let ended = run(&server, &["node", "revoke", "gpu-0203", "--yes"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "gpu-0203  revoked\n"));
}

#[test]
fn forcing_asks_first_and_names_the_jobs() {
    let server = node_server();
    let force = ["node", "force-release", "gpu-0203", "--reason", "it is off"];
    let ended = run(&server, &force);
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
    assert!(ended.stderr.contains("--yes"), "{}", ended.stderr);
    let post = "POST /api/v1/nodes/gpu-0203/force-release";
    assert!(server.asked_for(post).is_empty());
    let ended = run(&server, &[&force[..], &["--yes"]].concat());
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "gpu-0203  released  j-7f3k2\n"));
    let asked = server.asked_for(post);
    assert_eq!(asked.len(), 1);
    assert!(asked[0].body.contains("it is off"), "{}", asked[0].body);
    assert_eq!(run(&server, &["node", "force-release", "gpu-0203"]).code, 2, "without a reason");
}

#[test]
fn colours_only_where_they_are_wanted() {
    let server = job_server();
    let address = format!("http://{}", server.address);
    let colored = |arguments: &[&str], env: &[(&str, &str)]| {
        let mut command = command(&address, arguments);
        let ended = finish(command.envs(env.iter().copied()).spawn().unwrap());
        ended.stdout.contains("\u{1b}[32mRUNNING\u{1b}[0m")
    };
    assert!(!colored(&["ps"], &[]), "stdout is no terminal");
    assert!(colored(&["ps", "--color=always"], &[]));
    assert!(colored(&["ps"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!colored(&["ps"], &[("NO_COLOR", "1")]));
    assert!(!colored(&["ps", "--color=never"], &[("CLICOLOR_FORCE", "1")]));
}

/// What a hostile name or reason looks like.
const CANARY: &str = "x\u{1b}]0;canary\u{7}\u{1b}[2J\u{9b}31m\u{202e}y\nz";

#[test]
fn control_sequences_never_reach_the_terminal() {
    let mut hostile = running();
    for field in ["name", "user", "project", "reason", "directory", "driver_node", "submit_command"]
    {
        hostile[field] = CANARY.into();
    }
    hostile["pools"] = json!([CANARY]);
    hostile["history"][0]["text"] = CANARY.into();
    hostile["attempt_list"][0]["cause"] = CANARY.into();
    hostile["attempt_list"][0]["ray_nodes"][0]["state_message"] = CANARY.into();
    let mut bad_nodes = nodes();
    bad_nodes["nodes"][1]["cordon"]["why"] = CANARY.into();
    bad_nodes["nodes"][0]["name"] = CANARY.into();
    let server = Server::start(move |asked, _| match asked.path.as_str() {
        "/api/v1/jobs" => answer(200, &json!({"jobs": [hostile], "next_page_token": null})),
        "/api/v1/nodes" => answer(200, &bad_nodes),
        "/api/v1/whoami" => Play::Answer {
            status: 500,
            headers: Vec::new(),
            body: json!({"title": CANARY, "detail": CANARY, "hint": CANARY, "code": CANARY})
                .to_string()
                .into(),
        },
        _ => answer(200, &hostile),
    });
    for arguments in [
        &["ps"][..],
        &["ps", "-o", "wide"],
        &["ps", "--json"],
        &["ps", "-o", "jsonl"],
        &["show", "j"],
        &["show", "j", "--json"],
        &["node", "ls"],
        &["node", "ls", "-o", "name"],
        &["top", "--once"],
        &["top", "--once", "-o", "name"],
        &["whoami"],
        &["whoami", "--json"],
    ] {
        let ended = run(&server, arguments);
        let all = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!all.is_empty());
        let bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!all.contains(bad), "{arguments:?}: {all:?}");
        let is_json = arguments.iter().any(|a| a.contains("json"));
        assert!(is_json || !all.contains("canary"), "{arguments:?}: {all:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let server = job_server();
    let mut command = command(&format!("http://{}", server.address), &["ps"]);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    child.stdout = Some(null_reader());
    let ended = finish(child);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
}

/// A pipe that is at its end, in place of the one that was closed.
fn null_reader() -> std::process::ChildStdout {
    let mut child = std::process::Command::new("true");
    child.stdout(std::process::Stdio::piped()).spawn().unwrap().stdout.unwrap()
}

/// A project's use of a week; the books go back for a day of it.
fn usage_server() -> Server {
    Server::start(|asked, _| match asked.line().as_str() {
        "GET /api/v1/usage" => {
            let row = json!({
                "key": "rlhf", "jobs": 2, "attempts": 3, "allocated_gpu_s": 7200.0,
                "productive_gpu_s": 5400.5, "idle_gpu_s": 1799.5, "unmeasured_gpu_s": 0.0,
                "startup_gpu_s": 0.0, "hung_gpu_s": 0.0, "lost_gpu_s": 0.0, "stopping_gpu_s": 0.0,
                "quarantined_gpu_s": null, "fragmented_gpu_s": null, "queued_gpu_s": 3600.0,
            });
            let mut other = row.clone();
            other["key"] = "a,b".into();
            answer(
                200,
                &json!({
                    "by": "project", "rows": [row, other], "total": row, "left_out": 0,
                    "complete_since": "2099-01-02T03:04:05Z",
                }),
            )
        }
        _ => unexpected(),
    })
}

#[test]
fn usage_is_a_table_or_comma_separated() {
    let server = usage_server();
    let ended = run(&server, &["usage", "--since", "7d"]);
    assert!(ended.stdout.starts_with("PROJECT  GPU-HOURS  PRODUCTIVE  "), "{}", ended.stdout);
    assert!(ended.stdout.contains("rlhf     2.0        75.0%"), "{}", ended.stdout);
    assert_eq!(
        ended.stderr,
        "the books are full: what ended before 2099-01-02 03:04:05 +00:00 is not in them\n"
    );
    assert_eq!(server.asked()[0].query["since_s"], "604800");
    assert_eq!(
        run(&server, &["usage", "--csv"]).stdout,
        "project,jobs,attempts,allocated_gpu_s,productive_gpu_s,idle_gpu_s,unmeasured_gpu_s,\
         startup_gpu_s,hung_gpu_s,lost_gpu_s,stopping_gpu_s,queued_gpu_s,fragmented_gpu_s,\
         quarantined_gpu_s\n\
         rlhf,2,3,7200.0,5400.5,1799.5,0.0,0.0,0.0,0.0,0.0,3600.0,,\n\
         \"a,b\",2,3,7200.0,5400.5,1799.5,0.0,0.0,0.0,0.0,0.0,3600.0,,\n"
    );
}
