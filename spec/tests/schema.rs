//! The JSON Schema: it is the recorded one, takes what the parser takes, and refuses what it
//! refuses. After a wanted change: `UPDATE_GOLDEN=1 cargo test -p gangline-spec --test schema`.

use std::path::Path;

use gangline_spec::{Names, modelines, not_yet_fields, parse, schema, starter, templates};
use serde_json::{Map, Value, json};

fn of_a_fleet() -> Value {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    schema(&Names { pools: names(&["h100-a", "h20"]), gpu_models: names(&["H100"]) }, templates())
}

fn validator() -> jsonschema::Validator {
    jsonschema::draft7::new(&schema(&Names::default(), templates())).expect("a schema of draft-07")
}

fn value(source: &str) -> Value {
    serde_saphyr::from_str(source).unwrap_or_else(|error| panic!("{error}: {source}"))
}

#[test]
fn the_schema_is_the_recorded_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/job.v1.schema.json");
    let text = serde_json::to_string_pretty(&of_a_fleet()).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(recorded == text, "the schema changed: see the head of this file");
    assert!(jsonschema::draft7::meta::is_valid(&of_a_fleet()));
}

#[test]
fn the_names_of_the_fleet_are_completed_and_others_pass() {
    let here = of_a_fleet();
    let resources = &here["properties"]["resources"]["properties"];
    assert_eq!(resources["pool"]["anyOf"][0]["anyOf"][0]["enum"], json!(["h100-a", "h20"]));
    assert_eq!(resources["gpu"]["anyOf"][0]["anyOf"][0]["enum"], json!(["H100"]));
    let here = jsonschema::draft7::new(&here).unwrap();
    for pool in [json!("h20"), json!("h21"), json!(["h20", "h21"])] {
        assert!(here.is_valid(&json!({ "run": "x", "resources": { "pool": pool } })));
    }
    assert!(!here.is_valid(&json!({ "run": "x", "resources": { "pool": { "h20": 1 } } })));
}

#[test]
fn modelines_leave_a_spec_as_it_is() {
    let lines = modelines("https://gangline.lan:8265/schema/job.v1.json");
    let expected = "# yaml-language-server: $schema=https://gangline.lan:8265/schema/job.v1.json\n\
                    # $schema: https://gangline.lan:8265/schema/job.v1.json\n";
    assert_eq!(lines, expected);
    let text = starter(None);
    assert_eq!(parse(&format!("{lines}{text}")), parse(&text));
}

fn examples() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let files = ["specs", "."].map(|sub| std::fs::read_dir(folder.join(sub)).unwrap());
    let paths = files.into_iter().flatten().map(|file| file.unwrap().path());
    let specs = paths.filter(|path| path.extension().is_some_and(|e| e == "yaml"));
    let read = |path: std::path::PathBuf| {
        let source = std::fs::read_to_string(&path).unwrap();
        parse(&source).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.display().to_string(), value(&source))
    };
    specs.map(read).collect()
}

#[test]
fn every_example_and_its_canonical_form_are_valid() {
    let validator = validator();
    let examples = examples();
    assert!(examples.len() >= 7);
    for (name, example) in &examples {
        let problems: Vec<String> =
            validator.iter_errors(example).map(|error| error.to_string()).collect();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        let canonical = parse(&example.to_string()).unwrap().canonical_json();
        assert!(validator.is_valid(&value(&canonical)), "{canonical}");
    }
}

/// Every mapping of `value` whose keys are not the user's own, with one more key in each.
fn with_an_unknown_field(value: &Value, free: bool, out: &mut Vec<Value>) {
    let Value::Object(entries) = value else {
        return;
    };
    if !free {
        let mut mutated = entries.clone();
        mutated.insert("bogus_field".to_owned(), json!(1));
        out.push(Value::Object(mutated));
    }
    for (key, inner) in entries {
        let mut below = Vec::new();
        with_an_unknown_field(inner, key == "env" || key == "labels", &mut below);
        out.extend(below.into_iter().map(|inner| {
            let mut mutated = entries.clone();
            mutated.insert(key.clone(), inner);
            Value::Object(mutated)
        }));
    }
}

#[test]
fn an_unknown_field_anywhere_is_refused() {
    let validator = validator();
    let mut mutations = 0;
    for (name, example) in examples() {
        let mut mutated = Vec::new();
        with_an_unknown_field(&example, false, &mut mutated);
        for mutated in mutated {
            assert!(!validator.is_valid(&mutated), "{name}: {mutated}");
            let errors = parse(&mutated.to_string()).expect_err(&name);
            let codes: Vec<&str> = errors.errors.iter().map(|error| error.code).collect();
            assert_eq!(codes, ["E0101"], "{name}: {mutated}");
            mutations += 1;
        }
    }
    assert!(mutations > 20, "{mutations}");
}

/// Texts that both take, and texts that both refuse.
#[test]
fn the_schema_agrees_with_the_parser() {
    let good = [
        "run: x",
        "command: [python, -c, 1.5, true]",
        "{run: x, env: {A: null, B: 1, C: true}, labels: {a: 1}}",
        "{run: x, grace_period: 0-02:30:00, launcher: {type: torchrun, start_timeout: 1h30m}}",
        "{run: x, resources: {memory_per_node: 64 GiB, cpus_per_node: 0.5, nnodes: 4096}}",
        "{run: x, tracking: {wandb: {mode: offline}, tensorboard: true, mlflow: {uri: u}}}",
        "{template: torchrun, params: {script: a.py, args: [1, b, true], nproc_per_node: 1}}",
        "{template: ray@1, params: {script: a.py}}",
        "{kind: cluster, name: rl-dev, idle_stop: 2h}",
        "{run: x, cluster: rl-dev}",
        "{template: gone@7, params: {any: thing}, expansion: [a, {fill: $GANGLINE_NAME}]}",
    ];
    let bad = [
        "{}",
        "{run: x, command: [a]}",
        "{run: x, template: ray}",
        "{run: x, params: {a: b}}",
        "{run: x, name: Upper}",
        "{run: x, kind: cluster}",
        "{run: x, idle_stop: 2h}",
        "{kind: serve, run: x}",
        "{run: x, version: 2}",
        "{run: x, workdir: here}",
        "{run: x, grace_period: 5}",
        "{run: x, grace_period: 5x}",
        "{run: x, launcher: {type: slurm}}",
        "{run: x, resources: {nnodes: 0}}",
        "{run: x, resources: {nnodes: 2..}}",
        "{run: x, resources: {topology: racks}}",
        "{run: x, resources: {exclusive: 1}}",
        "{run: x, resources: {pool: {a: b}}}",
        "{run: x, resources: {gpus_per_node: 65}}",
        "{run: x, resources: {memory_per_node: 64}}",
        "{run: x, tracking: {wandb: {mode: on}}}",
        "{run: x, tracking: {mlflow: {}}}",
        "{template: verl/none, params: {}}",
        "{template: ray}",
        "{template: ray, params: {scrpt: a}}",
        "{template: verl/grpo, params: {model: m, train_files: []}, resources: {gpus_per_node: 1}}",
        "{template: verl/grpo, params: {model: m, train_files: [a]}, resources: {gpus_per_node: 1}}",
        "{template: command, params: {program: [a]}}",
    ];
    let validator = validator();
    for source in good {
        assert!(parse(source).is_ok(), "{source}: {:?}", parse(source));
        assert!(validator.is_valid(&value(source)), "{source}");
    }
    for source in bad {
        assert!(parse(source).is_err(), "{source}");
        assert!(!validator.is_valid(&value(source)), "{source}");
    }
}

#[test]
fn fields_that_are_not_built_are_not_in_it() {
    let schema = schema(&Names::default(), templates());
    for field in not_yet_fields() {
        let pointer = format!("/properties/{}", field.replace('.', "/properties/"));
        assert!(schema.pointer(&pointer).is_none(), "{field}");
    }
}

/// Each documented default, written out, means the same as leaving the field away.
#[test]
fn documented_defaults_are_the_real_ones() {
    let mut found = Vec::new();
    defaults(&schema(&Names::default(), templates()), &[], &mut found);
    assert!(found.len() >= 8, "{found:?}");
    for (path, default) in found {
        let spec = |last: Option<Value>| {
            let (key, above) = path.split_last().unwrap();
            let mut inner = Map::new();
            inner.extend(last.map(|value| (key.clone(), value)));
            // What its section cannot do without.
            if above == ["code"] {
                inner.insert("snapshot".to_owned(), json!("."));
            } else if above == ["reward"] {
                inner.insert("path".to_owned(), json!("/r.py"));
            }
            let mut value = Value::Object(inner);
            for key in above.iter().rev() {
                value = json!({ key: value });
            }
            value["run"] = json!("x");
            parse(&value.to_string()).unwrap_or_else(|error| panic!("{path:?}: {error}"))
        };
        assert_eq!(spec(Some(default.clone())), spec(None), "{path:?} = {default}");
    }
}

fn defaults(schema: &Value, path: &[String], out: &mut Vec<(Vec<String>, Value)>) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    for (key, inner) in properties {
        let mut path = path.to_vec();
        path.push(key.clone());
        out.extend(inner.get("default").map(|default| (path.clone(), default.clone())));
        defaults(inner, &path, out);
    }
}
