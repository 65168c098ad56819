//! Planned fields are refused, never accepted in silence: one case for every field that is known
//! and not built, and the full example where it is at hand.

use std::path::PathBuf;

use gangline_spec::{Code, not_yet_fields, parse};

/// (the field, what a user would write, the pointer of the refusal). A section that is not built
/// is refused as one; what stands in it is not read.
const CASES: &[(&str, &str, &str)] = &[
    ("idle_policy", "idle_policy: {min_gpu_util: 10%, window: 1h, action: notify}", "/idle_policy"),
    ("files", "files: [{src: ~/t, dest: /run/t, mode: '0600'}]", "/files"),
    ("mounts_required", "mounts_required: [/data, /ckpt]", "/mounts_required"),
    ("setup", "setup: uv pip install -e .", "/setup"),
    ("preflight", "preflight: [nccl, disk]", "/preflight"),
    ("tracking.metrics", "tracking: {metrics: auto}", "/tracking/metrics"),
    ("notify", "notify: {on_events: [failed], to: ['webhook:team-rl']}", "/notify"),
    ("ports", "ports: [{name: tb, port: 6006}]", "/ports"),
    ("python", "python: /usr/bin/python3", "/python"),
    ("compat_env", "compat_env: [slurm]", "/compat_env"),
    ("groups", "groups: [{name: head}]", "/groups"),
    ("replicas", "replicas: 1..4", "/replicas"),
    ("scale", "scale: {metric: requests_in_flight, target: 32}", "/scale"),
    ("port", "port: 8000", "/port"),
    ("health", "health: {http: /health}", "/health"),
    ("ide", "ide: jupyter", "/ide"),
    ("vars", "vars: {a: b}", "/vars"),
    ("steps", "steps: {a: {run: x}}", "/steps"),
    ("on_failure", "on_failure: stop", "/on_failure"),
    ("schedule", "schedule: '0 22 * * 5'", "/schedule"),
    ("tz", "tz: Europe/Berlin", "/tz"),
    ("needs", "needs: [data]", "/needs"),
    ("matrix", "matrix: {a: [1, 2]}", "/matrix"),
    ("max_parallel", "max_parallel: 1", "/max_parallel"),
    ("outputs", "outputs: {model: x}", "/outputs"),
    ("resources.shm", "resources: {shm: 256GiB}", "/resources/shm"),
    ("resources.disk", "resources: {disk: {path: /data, free: 2TiB}}", "/resources/disk"),
    (
        "resources.ray_resources",
        "resources: {ray_resources: {trainer: 1}}",
        "/resources/ray_resources",
    ),
    ("launcher.driver", "launcher: {driver: rank0}", "/launcher/driver"),
    ("launcher.dashboard", "launcher: {dashboard: true}", "/launcher/dashboard"),
    ("launcher.head", "launcher: {head: auto}", "/launcher/head"),
    ("launcher.network", "launcher: {network: {socket_ifname: bond0}}", "/launcher/network"),
    ("launcher.network", "launcher: {network: {ib_hca: 'mlx5_[0-7]'}}", "/launcher/network"),
    ("checkpoint.on_deadline", "checkpoint: {on_deadline: true}", "/checkpoint/on_deadline"),
    ("checkpoint.upload", "checkpoint: {upload: s3://models/x}", "/checkpoint/upload"),
];

#[test]
fn each_planned_field_is_refused_at_its_place() {
    for (field, text, pointer) in CASES {
        let source = format!("run: x\n{text}\n");
        let errors = match parse(&source) {
            Ok(spec) => panic!("{field} accepted in silence: {spec:?}"),
            Err(errors) => errors.errors,
        };
        assert_eq!(errors.len(), 1, "{field}: {errors:?}");
        let error = &errors[0];
        assert_eq!((error.code, error.pointer.as_str()), (Code::NOT_YET, *pointer));
        let column = match field.split_once('.') {
            Some((section, _)) => section.len() + ": {".len() + 1,
            None => 1,
        };
        assert_eq!(error.line, Some(2), "{field}");
        assert_eq!(error.column, u32::try_from(column).ok(), "{field}");
        let named = format!("`{}` is not built yet", field);
        assert_eq!(error.message, named);
        assert!(error.hint.is_some(), "{field}");
    }
}

#[test]
fn every_planned_field_has_a_case() {
    for field in not_yet_fields() {
        assert!(CASES.iter().any(|(case, _, _)| *case == field), "{field}");
    }
    let known: Vec<String> = not_yet_fields().collect();
    for (case, _, _) in CASES {
        assert!(known.iter().any(|field| field == case), "{case}");
    }
}

#[test]
fn what_is_planned_is_refused_in_its_place() {
    for kind in ["serve", "notebook", "pipeline"] {
        let errors = parse(&format!("kind: {kind}\nrun: x\n")).unwrap_err();
        assert_eq!(
            (errors.errors[0].code, errors.errors[0].line),
            (Code::NOT_YET, Some(1)),
            "{kind}"
        );
    }
}

/// The examples of the design, where the environment says where the shared data lies beside them:
/// everything that this version does not do is planned, and nothing is unknown or malformed.
#[test]
fn the_design_examples_hold_nothing_unknown() {
    let folder = std::env::var_os("GANGLINE_DATA")
        .map(|data| PathBuf::from(data).join("../design/jobspec"))
        .filter(|folder| folder.is_dir());
    let Some(folder) = folder else {
        return;
    };
    let mut read = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        read += 1;
        if ["01-", "02-", "03-", "04-"].iter().any(|start| name.starts_with(start)) {
            parse(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let Err(errors) = parse(&source) else {
            continue;
        };
        assert_eq!(errors.omitted, 0);
        for error in &errors.errors {
            assert_eq!(error.code, Code::NOT_YET, "{}: {error:?}", path.display());
            assert!(error.line.is_some(), "{}: {error:?}", path.display());
        }
    }
    assert!(read > 0);
}
