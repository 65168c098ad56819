//! Standing clusters, and jobs that run on one.

use std::time::Duration;

use gangline_spec::{Entrypoint, Kind, parse};

const CLUSTER: &str = "\
kind: cluster
name: rl-dev
resources: {nnodes: 2, gpus_per_node: 8}
launcher: {type: ray}
idle_stop: 2h
";

#[test]
fn a_cluster_stands_without_an_entrypoint() {
    let spec = parse(CLUSTER).unwrap();
    assert_eq!(spec.kind, Kind::Cluster { idle_stop: Some(Duration::from_secs(7200)) });
    assert_eq!(spec.entrypoint, Entrypoint::Nothing);
    assert!(spec.entrypoint.argv().is_empty());
    let json = spec.canonical_json();
    assert_eq!(parse(&json), Ok(spec), "{json}");
    assert_eq!(parse("kind: cluster").unwrap().kind, Kind::Cluster { idle_stop: None });
}

#[test]
fn a_job_names_the_cluster_it_runs_on() {
    let spec = parse("run: x\ncluster: rl-dev\nresources: {gpus_per_node: 4}").unwrap();
    assert_eq!((spec.kind, spec.cluster.as_deref()), (Kind::Job, Some("rl-dev")));
    let json = spec.canonical_json();
    assert_eq!(parse(&json), Ok(spec), "{json}");
}

#[test]
fn what_belongs_to_the_other_is_refused() {
    let cases = [
        ("run: x\nidle_stop: 2h", "E0107", "/idle_stop"),
        ("kind: cluster\nrun: x", "E0107", "/run"),
        ("kind: cluster\ntemplate: ray\n", "E0107", "/template"),
        ("kind: cluster\nlauncher: {type: command}", "E0107", "/launcher/type"),
        ("kind: cluster\nidle_stop: 0s", "E0103", "/idle_stop"),
        ("kind: clutser\nrun: x", "E0103", "/kind"),
        ("kind: cluster\nenv: {A: b}", "E0107", "/env"),
        ("kind: cluster\nsecrets: [A]", "E0107", "/secrets"),
        ("kind: cluster\ncheckpoint: {dir: /a}", "E0107", "/checkpoint"),
        ("kind: cluster\ntracking: {tensorboard: true}", "E0107", "/tracking"),
        ("kind: cluster\ncode: {path: /a}", "E0107", "/code"),
        ("kind: cluster\nworkdir: /a", "E0107", "/workdir"),
        ("kind: cluster\ncluster: a", "E0107", "/cluster"),
        ("run: x\ncluster: a b", "E0103", "/cluster"),
        ("run: x\ncluster: ''", "E0103", "/cluster"),
        ("run: x\ncluster: a\nlauncher: {type: torchrun}", "E0107", "/launcher/type"),
        ("run: x\ncluster: a\nresources: {pool: a}", "E0107", "/resources/pool"),
        ("run: x\ncluster: a\nresources: {gpu: H100}", "E0107", "/resources/gpu"),
        (
            "run: x\ncluster: a\nresources: {exclude_nodes: [a]}",
            "E0107",
            "/resources/exclude_nodes",
        ),
        (
            "run: x\ncluster: a\nresources: {memory_per_node: 1GiB}",
            "E0107",
            "/resources/memory_per_node",
        ),
    ];
    for (source, code, pointer) in cases {
        let refused = parse(source).unwrap_err();
        let found: Vec<(String, &str)> =
            refused.errors.iter().map(|e| (e.code.to_string(), e.pointer.as_str())).collect();
        assert_eq!(found, [(code.to_owned(), pointer)], "{source}");
    }
}
