//! What a spec may say and what it then means.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_spec::{
    Backoff, Checkpoint, Entrypoint, Hang, HangAction, JobSpec, Kind, Launcher, LauncherKind,
    LogAction, LogPolicy, Logs, MAX_SPEC_BYTES, Mlflow, OnDisconnect, Queue, Resources, Retry,
    RetryEvent, Tracking, Wandb, WandbMode, parse, parse_resolved, parse_with_overrides,
    resolve_env,
};

const EVERY_FIELD: &str = r#"
# A comment of more than thirty-two lines is no problem, and neither is a tab after a value.
version: 1
kind: job
name: qwen3-8b-grpo
project: rlhf
description: "GRPO: lr sweep, arm 3"
labels: {owner: alice, sweep: lr-3, arm: 3, a.b/c: true}
resources:
  nnodes: 4
  gpus_per_node: 8
  cpus_per_node: 1.5
  memory_per_node: 512GiB
  pool: h100-a
launcher:
  type: command
  start_timeout: 10m
workdir: /opt/verl
retry: {max: 5, on_events: [node_lost, hardware], backoff: {initial: 10s}, exclude_failed_nodes: false}
log_policies:
  - {pattern: "Xid .*: (48|79)", action: exclude_node_and_retry, diagnose: gpu_hardware}
env:
  NCCL_DEBUG: WARN
  LD_PRELOAD: /opt/lib/x.so
  RATE: 1.0e-6
  VERSION: 1.10
  OCTAL: 010
  DEBUG: True
  NORWAY: no
  EMPTY: ""
run: |
  python3 -m trainer nnodes=$GANGLINE_NNODES
grace_period: 2m
on_disconnect: {stop_after: 30m}
hang: {after: 10m, action: restart}
checkpoint:
  dir: /ckpt/$GANGLINE_PROJECT/${GANGLINE_NAME}
  encrypted_copy: true
tracking:
  wandb: {project: rl, mode: offline}
  tensorboard: true
  mlflow: {uri: "http://mlflow:5000", experiment: rl}
"#;

fn map<V>(pairs: &[(&str, &str)], value: impl Fn(&str) -> V) -> BTreeMap<String, V> {
    let pairs = pairs.iter();
    pairs.map(|(k, v)| ((*k).to_owned(), value(v))).collect()
}

#[test]
fn every_field_arrives() {
    let expected = JobSpec {
        kind: Kind::Job,
        name: Some("qwen3-8b-grpo".to_owned()),
        project: Some("rlhf".to_owned()),
        cluster: None,
        description: Some("GRPO: lr sweep, arm 3".to_owned()),
        labels: map(
            &[("owner", "alice"), ("sweep", "lr-3"), ("arm", "3"), ("a.b/c", "true")],
            str::to_owned,
        ),
        resources: Resources {
            nnodes: 4,
            nnodes_max: None,
            gpus_per_node: 8,
            cpus_per_node: Some(1.5),
            memory_per_node: Some(512 << 30),
            pools: vec!["h100-a".to_owned()],
            gpu: Vec::new(),
            exclude_nodes: Vec::new(),
            labels: BTreeMap::new(),
            exclusive: None,
            topology: None,
        },
        launcher: Launcher { kind: LauncherKind::Command, start_timeout: Duration::from_secs(600) },
        workdir: Some("/opt/verl".to_owned()),
        env: map(
            &[
                ("NCCL_DEBUG", "WARN"),
                ("LD_PRELOAD", "/opt/lib/x.so"),
                ("RATE", "1.0e-6"),
                ("VERSION", "1.10"),
                ("OCTAL", "010"),
                ("DEBUG", "True"),
                ("NORWAY", "no"),
                ("EMPTY", ""),
            ],
            |value| Some(value.to_owned()),
        ),
        entrypoint: Entrypoint::Script("python3 -m trainer nnodes=$GANGLINE_NNODES\n".to_owned()),
        grace_period: Duration::from_secs(120),
        checkpoint: Checkpoint {
            dir: Some("/ckpt/$GANGLINE_PROJECT/${GANGLINE_NAME}".to_owned()),
            every: None,
            keep: None,
            encrypted_copy: true,
        },
        tracking: Tracking {
            wandb: Some(Wandb { project: Some("rl".to_owned()), mode: WandbMode::Offline }),
            tensorboard: true,
            mlflow: Some(Mlflow {
                uri: "http://mlflow:5000".to_owned(),
                experiment: Some("rl".to_owned()),
            }),
        },
        timeout: None,
        queue: Queue::default(),
        retry: Retry {
            max: 5,
            on_events: [RetryEvent::Hardware, RetryEvent::NodeLost].into(),
            backoff: Backoff { initial: Duration::from_secs(10), ..Backoff::default() },
            exclude_failed_nodes: false,
        },
        log_policies: vec![LogPolicy {
            pattern: "Xid .*: (48|79)".to_owned(),
            action: LogAction::ExcludeNodeAndRetry,
            diagnose: Some("gpu_hardware".to_owned()),
        }],
        on_disconnect: OnDisconnect::StopAfter(Duration::from_secs(1800)),
        hang: Hang {
            after: Duration::from_secs(600),
            action: HangAction::Restart,
            ..Hang::default()
        },
        min_runtime: None,
        hold_on_failure: None,
        code: None,
        reward: None,
        secrets: Vec::new(),
        logs: Logs::default(),
    };
    assert_eq!(parse(EVERY_FIELD), Ok(expected));
}

#[test]
fn canonical_json_is_stable_and_reads_back() {
    let spec = parse(EVERY_FIELD).unwrap();
    let json = spec.canonical_json();
    insta::assert_snapshot!(json, @r#"{"checkpoint":{"dir":"/ckpt/$GANGLINE_PROJECT/${GANGLINE_NAME}","encrypted_copy":true},"description":"GRPO: lr sweep, arm 3","env":{"DEBUG":"True","EMPTY":"","LD_PRELOAD":"/opt/lib/x.so","NCCL_DEBUG":"WARN","NORWAY":"no","OCTAL":"010","RATE":"1.0e-6","VERSION":"1.10"},"grace_period":"2m","hang":{"action":"restart","after":"10m"},"kind":"job","labels":{"a.b/c":"true","arm":"3","owner":"alice","sweep":"lr-3"},"launcher":{"start_timeout":"10m","type":"command"},"log_policies":[{"action":"exclude_node_and_retry","diagnose":"gpu_hardware","pattern":"Xid .*: (48|79)"}],"name":"qwen3-8b-grpo","on_disconnect":{"stop_after":"30m"},"project":"rlhf","resources":{"cpus_per_node":1.5,"gpus_per_node":8,"memory_per_node":"512GiB","nnodes":4,"pool":"h100-a"},"retry":{"backoff":{"factor":2.0,"initial":"10s","max":"10m"},"exclude_failed_nodes":false,"max":5,"on_events":["node_lost","hardware"]},"run":"python3 -m trainer nnodes=$GANGLINE_NNODES\n","tracking":{"mlflow":{"experiment":"rl","uri":"http://mlflow:5000"},"tensorboard":true,"wandb":{"mode":"offline","project":"rl"}},"version":1,"workdir":"/opt/verl"}"#);
    assert_eq!(parse_resolved(&json), Ok(spec));
}

#[test]
fn a_short_spec_gets_the_defaults() {
    let spec = parse("run: hostname").unwrap();
    let mut expected = JobSpec::for_command(Vec::new());
    expected.entrypoint = Entrypoint::Script("hostname".to_owned());
    assert_eq!(spec, expected);
    assert_eq!(spec.resources.nnodes, 1);
    assert_eq!(spec.resources.total_gpus(), Some(0));
    assert_eq!(spec.launcher.kind, LauncherKind::Ray);
    assert_eq!(spec.launcher.start_timeout, Duration::from_secs(300));
    assert_eq!(spec.grace_period, Duration::from_secs(30));
}

#[test]
fn a_command_stays_an_argument_vector() {
    let source = "command: [python, -c, 'print(\"$HOME  x\")', lr=1e-6, 1e-6, 0x10, true, '', '*']";
    let spec = parse(source).unwrap();
    assert_eq!(
        spec.entrypoint.argv(),
        ["python", "-c", "print(\"$HOME  x\")", "lr=1e-6", "1e-6", "0x10", "true", "", "*"]
    );
    let script = parse("run: echo $HOME").unwrap();
    assert_eq!(script.entrypoint.argv(), ["/bin/sh", "-c", "echo $HOME"]);
}

#[test]
fn json_is_taken_too() {
    let source =
        "{\n\t\"resources\": {\"nnodes\": 2},\n\t\"run\": \"a\\u0009\\ud83d\\ude00\\/b\"\n}";
    let spec = parse(source).unwrap();
    assert_eq!(spec.resources.nnodes, 2);
    assert_eq!(spec.entrypoint, Entrypoint::Script("a\t😀/b".to_owned()));
}

#[test]
fn many_comment_lines_and_an_alias_are_fine() {
    let comments = "# line\n".repeat(500);
    let source = format!("{comments}env: {{A: &v x, B: *v}}\n{comments}run: 'true'\n");
    let spec = parse(&source).unwrap();
    let env: Vec<_> = spec.resolved_env().collect();
    assert_eq!(env, [("A", "x"), ("B", "x")]);
}

#[test]
fn open_env_is_filled_from_the_shell() {
    let source = "run: 'true'\nenv:\n  HOME_DIR:\n  TOKEN: null\n  SET: x\n";
    let mut spec = parse(source).unwrap();
    assert_eq!(spec.env.get("TOKEN"), Some(&None));
    assert_eq!(spec.resolved_env().collect::<Vec<_>>(), [("SET", "x")]);

    let mut errors =
        resolve_env(&mut spec, |name| (name == "TOKEN").then(|| "t".to_owned())).unwrap_err();
    assert_eq!(spec.env.get("TOKEN"), Some(&Some("t".to_owned())));
    assert_eq!(errors.errors.len(), 1);
    assert_eq!(errors.errors[0].code, "E0104");
    assert_eq!(errors.errors[0].pointer, "/env/HOME_DIR");
    errors.locate(source);
    assert_eq!(errors.errors[0].line, Some(3));

    resolve_env(&mut spec, |_| Some("h".to_owned())).unwrap();
    assert_eq!(
        spec.resolved_env().collect::<Vec<_>>(),
        [("HOME_DIR", "h"), ("SET", "x"), ("TOKEN", "t")]
    );
    assert_eq!(parse_resolved(&spec.canonical_json()), Ok(spec));
}

#[test]
fn what_the_shell_gives_is_checked() {
    let mut spec = parse("run: 'true'\nenv: {BIG: null}").unwrap();
    let errors = resolve_env(&mut spec, |_| Some("x".repeat(200_000))).unwrap_err();
    assert_eq!(errors.errors[0].code, "E0106");
}

#[test]
fn overrides_win_over_the_file() {
    let overrides = [
        ("resources.nnodes", "8"),
        ("resources.nnodes", "9"),
        ("resources.pool", "b200"),
        ("env.NCCL_DEBUG", "INFO"),
        ("env.NEW", "1.50"),
        ("labels.a.b/c", "x"),
        ("launcher", "{type: command, start_timeout: 1m}"),
        ("grace_period", "45s"),
    ];
    let overrides = overrides.map(|(path, value)| (path.to_owned(), value.to_owned()));
    let spec = parse_with_overrides(EVERY_FIELD, &overrides).unwrap();
    assert_eq!(spec.resources.nnodes, 9);
    assert_eq!(spec.resources.gpus_per_node, 8);
    assert_eq!(spec.resources.pools, ["b200"]);
    assert_eq!(spec.env.get("NCCL_DEBUG"), Some(&Some("INFO".to_owned())));
    assert_eq!(spec.env.get("NEW"), Some(&Some("1.50".to_owned())));
    assert_eq!(spec.labels.get("a.b/c").map(String::as_str), Some("x"));
    assert_eq!(spec.launcher.start_timeout, Duration::from_secs(60));
    assert_eq!(spec.grace_period, Duration::from_secs(45));
}

#[test]
fn overrides_alone_make_a_spec() {
    let overrides = [
        ("run".to_owned(), "hostname".to_owned()),
        ("resources.nnodes".to_owned(), "2".to_owned()),
    ];
    let spec = parse_with_overrides("", &overrides).unwrap();
    assert_eq!(spec.resources.nnodes, 2);
}

#[test]
fn a_checkpoint_directory_is_filled_in() {
    let lookup = |name: &str| Some(name.trim_start_matches("GANGLINE_").to_lowercase());
    let expand = |dir: &str| {
        let dir = Some(dir.to_owned());
        Checkpoint { dir, ..Checkpoint::default() }.expand_dir(lookup)
    };
    let expected = Ok(Some("/c/project/name-x/job_id".to_owned()));
    assert_eq!(expand("/c/$GANGLINE_PROJECT/${GANGLINE_NAME}-x/$GANGLINE_JOB_ID"), expected);
    assert_eq!(expand("/c/$HOME"), Err("HOME".to_owned()));
    assert_eq!(expand("/c/$"), Err(String::new()));
    assert_eq!(expand("/c/${GANGLINE_NAME"), Err(String::new()));
    assert_eq!(Checkpoint::default().expand_dir(lookup), Ok(None));
}

#[test]
fn a_spec_made_by_a_program_passes_the_same_checks() {
    let mut spec = JobSpec::for_command(vec!["python".to_owned(), "x.py".to_owned()]);
    assert_eq!(spec.validate(), Ok(()));
    spec.resources.nnodes = 0;
    spec.resources.cpus_per_node = Some(f64::NAN);
    spec.workdir = Some("relative".to_owned());
    spec.entrypoint = Entrypoint::Argv(Vec::new());
    let errors = spec.validate().unwrap_err();
    let pointers: Vec<&str> = errors.errors.iter().map(|e| e.pointer.as_str()).collect();
    assert_eq!(pointers, ["/resources/nnodes", "/resources/cpus_per_node", "/workdir", "/command"]);
}

#[test]
fn a_spec_of_the_largest_size_is_read() {
    let head = "run: 'true'\n#";
    let source = format!("{head}{}", "x".repeat(MAX_SPEC_BYTES - head.len()));
    assert!(parse(&source).is_ok());
    let errors = parse(&format!("{source}x")).unwrap_err();
    assert_eq!(errors.errors[0].code, "E0106");
}

#[test]
fn logs_are_patterns_below_the_job() {
    let spec =
        parse("run: x\nlogs: {files: ['outputs/**/*.log', a.txt], max_bytes: 2GiB}").unwrap();
    assert_eq!(spec.logs.files, ["outputs/**/*.log", "a.txt"]);
    assert_eq!(spec.logs.max_bytes, Some(2 << 30));
    let json = spec.canonical_json();
    let expected = r#""logs":{"files":["outputs/**/*.log","a.txt"],"max_bytes":"2GiB"}"#;
    assert!(json.contains(expected), "{json}");
    assert_eq!(parse_resolved(&json).unwrap(), spec);
    for (text, code, pointer) in [
        ("run: x\nlogs: {files: a.log}", "E0103", "/logs/files"),
        ("run: x\nlogs: {files: [/var/log/x]}", "E0103", "/logs/files/0"),
        ("run: x\nlogs: {files: [a.log, ../b.log]}", "E0103", "/logs/files/1"),
        ("run: x\nlogs: {files: ['']}", "E0103", "/logs/files/0"),
        ("run: x\nlogs: {max_bytes: 1KiB}", "E0103", "/logs/max_bytes"),
        ("run: x\ncluster: dev\nlogs: {files: [a.log]}", "E0107", "/logs"),
    ] {
        let errors = parse(text).unwrap_err().errors;
        assert_eq!((errors[0].code, errors[0].pointer.as_str()), (code, pointer), "{text}");
    }
}

#[test]
fn secrets_are_names_of_variables() {
    let spec = parse("run: x\nsecrets: [HF_TOKEN, WANDB_API_KEY]").unwrap();
    assert_eq!(spec.secrets, ["HF_TOKEN", "WANDB_API_KEY"]);
    let json = spec.canonical_json();
    assert!(json.contains(r#""secrets":["HF_TOKEN","WANDB_API_KEY"]"#), "{json}");
    assert_eq!(parse_resolved(&json), Ok(spec));
    for (source, code, pointer) in [
        ("run: x\nsecrets: WANDB", "E0103", "/secrets"),
        ("run: x\nsecrets: [A-B]", "E0103", "/secrets/0"),
        ("run: x\nsecrets: [GANGLINE_X]", "E0103", "/secrets/0"),
        ("run: x\nsecrets: [A, B, A]", "E0107", "/secrets/2"),
        ("run: x\nsecrets: [A]\nenv: {A: b}", "E0107", "/secrets/0"),
    ] {
        let errors = parse(source).unwrap_err().errors;
        assert_eq!(errors.len(), 1, "{source}: {errors:?}");
        assert_eq!((errors[0].code, errors[0].pointer.as_str()), (code, pointer), "{source}");
    }
}
