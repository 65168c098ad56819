//! Priorities, time limits, reward functions, and the nodes that a job asks for or not.

use std::time::Duration;

use gangline_spec::{JobSpec, MAX_AFTER, Priority, Reward, after_job, parse};

fn read(source: &str) -> JobSpec {
    match parse(source) {
        Ok(spec) => spec,
        Err(errors) => panic!("{}", errors.render("x.yaml", source)),
    }
}

fn errors(source: &str) -> Vec<(&'static str, String)> {
    let errors = parse(source).expect_err(source);
    errors.errors.into_iter().map(|error| (error.code, error.pointer)).collect()
}

#[test]
fn every_field_arrives_and_reads_back() {
    let source = "\
run: x
timeout: 1-02:00:00
queue: {priority: high}
reward: {path: /r/math.py, symbol: score}
resources: {gpu: [H100, H200], exclude_nodes: [gpu-0231]}
";
    let spec = read(source);
    assert_eq!(spec.timeout, Some(Duration::from_secs(26 * 3600)));
    assert_eq!(spec.queue.priority, Priority(75));
    let reward = Reward { path: "/r/math.py".to_owned(), symbol: "score".to_owned() };
    assert_eq!(spec.reward, Some(reward));
    assert_eq!(spec.resources.gpu, ["H100", "H200"]);
    assert_eq!(spec.resources.exclude_nodes, ["gpu-0231"]);
    let json = spec.canonical_json();
    assert_eq!(parse(&json).as_ref(), Ok(&spec), "{json}");
}

#[test]
fn defaults() {
    let spec = read("run: x\nreward: {path: /r.py}\nresources: {gpu: H100}");
    assert_eq!(spec.reward.unwrap().symbol, "compute_score");
    assert_eq!(spec.resources.gpu, ["H100"]);
    assert_eq!(spec.queue.priority, Priority::NORMAL);
    for (text, value) in [("low", 25), ("normal", 50), ("urgent", 100), ("0", 0), ("63", 63)] {
        let spec = read(&format!("run: x\nqueue: {{priority: {text}}}"));
        assert_eq!(spec.queue.priority, Priority(value), "{text}");
        let json = spec.canonical_json();
        assert_eq!(parse(&json), Ok(spec), "{json}");
    }
}

#[test]
fn what_a_job_waits_for_arrives_and_reads_back() {
    let source = "\
run: x
queue:
  hold: true
  not_before: 2026-12-01T22:00:00+08:00
  after: [job:tokenize-v3, j-7f3k2]
  max_wait: 7d
";
    let spec = read(source);
    assert!(spec.queue.hold);
    assert_eq!(spec.queue.not_before.unwrap().to_string(), "2026-12-01T14:00:00Z");
    let jobs: Vec<&str> = spec.queue.after.iter().map(|entry| after_job(entry)).collect();
    assert_eq!(jobs, ["tokenize-v3", "j-7f3k2"]);
    assert_eq!(spec.queue.max_wait, Some(Duration::from_secs(7 * 24 * 3600)));
    let json = spec.canonical_json();
    assert_eq!(parse(&json).as_ref(), Ok(&spec), "{json}");
}

#[test]
fn a_bad_time_is_shown_with_its_place_and_a_good_one() {
    let source = "run: x\nqueue: {not_before: 2026-12-01 22:00}\n";
    let errors = parse(source).unwrap_err().render("x.yaml", source);
    for part in ["x.yaml:2:21", "not `2026-12-01 22:00`", "such as 2026-12-01T22:00:00+08:00"] {
        assert!(errors.contains(part), "{errors}");
    }
}

#[test]
fn wrong_values_are_refused_at_their_place() {
    let cases = [
        ("run: x\ntimeout: 3", "E0103", "/timeout"),
        ("run: x\ntimeout: 0s", "E0103", "/timeout"),
        ("run: x\nqueue: {priority: hihg}", "E0103", "/queue/priority"),
        ("run: x\nqueue: {priority: 101}", "E0103", "/queue/priority"),
        ("run: x\nqueue: {priority: -1}", "E0103", "/queue/priority"),
        ("run: x\nqueue: {priority: 1.5}", "E0103", "/queue/priority"),
        ("run: x\nqueue: {hold: maybe}", "E0103", "/queue/hold"),
        ("run: x\nqueue: {not_before: '2026-12-01T22:00:00'}", "E0103", "/queue/not_before"),
        ("run: x\nqueue: {after: job:a}", "E0103", "/queue/after"),
        ("run: x\nqueue: {after: ['job:a b']}", "E0103", "/queue/after/0"),
        ("run: x\nqueue: {after: [a, 'node:b']}", "E0103", "/queue/after/1"),
        ("run: x\nqueue: {max_wait: 0s}", "E0103", "/queue/max_wait"),
        ("run: x\nqueue: {max_wait: 3}", "E0103", "/queue/max_wait"),
        ("run: x\nreward: {symbol: f}", "E0104", "/reward/path"),
        ("run: x\nreward: {path: r.py, symbol: a.b}", "E0103", "/reward/symbol"),
        ("run: x\nresources: {gpu: ['a b']}", "E0103", "/resources/gpu/0"),
        ("run: x\nresources: {exclude_nodes: a}", "E0103", "/resources/exclude_nodes"),
        ("run: x\nreward: {path: r.py}", "E0107", "/reward/path"),
        ("run: x\ncode: {path: /c}\nreward: {path: a/../r.py}", "E0103", "/reward/path"),
        ("run: x\ncode: {path: /c}\ncluster: c\nreward: {path: r.py}", "E0107", "/reward/path"),
        ("template: ray\nparams: {script: a}\nreward: {path: /r.py}", "E0107", "/reward"),
    ];
    for (source, code, pointer) in cases {
        let found = errors(source);
        // A section without its place is reported once, and so is everything else.
        assert!(!found.is_empty() && found.len() <= 2, "{source}: {found:?}");
        assert!(found.contains(&(code, pointer.to_owned())), "{source}: {found:?}");
    }
}

#[test]
fn a_reward_function_reaches_verl() {
    let spec = read(
        "template: verl/ppo\nresources: {gpus_per_node: 1}\n\
         params: {model: /m, train_files: [/t]}\nreward: {path: /r/math.py, symbol: f}",
    );
    let argv = spec.entrypoint.argv();
    assert!(argv.contains(&"reward.custom_reward_function.path=/r/math.py".to_owned()));
    assert!(argv.contains(&"reward.custom_reward_function.name=f".to_owned()));
}

#[test]
fn the_jobs_to_run_after_are_bounded() {
    let jobs = vec!["job:a"; MAX_AFTER + 1].join(", ");
    let source = format!("run: x\nqueue: {{after: [{jobs}]}}");
    assert_eq!(errors(&source), [("E0106", "/queue/after".to_owned())]);
}
