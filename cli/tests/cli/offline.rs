//! What needs no coordinator: help texts, wrong usage, `validate`, `--dry-run`. The golden texts
//! are in `tests/cmd`; `TRYCMD=overwrite` writes them anew.

#[test]
fn golden_texts() {
    let caches = tempfile::tempdir().unwrap();
    trycmd::TestCases::new()
        .default_bin_path(std::path::Path::new(env!("CARGO_BIN_EXE_gangline")))
        .env("GANGLINE_CONFIG", "")
        .env("GANGLINE_ADDRESS", "http://127.0.0.1:1")
        .env("GANGLINE_TOKEN", "")
        .env("NO_COLOR", "1")
        .env("XDG_CACHE_HOME", caches.path().to_str().unwrap())
        .case("tests/cmd/*.trycmd");
}

fn gangline(folder: &std::path::Path, arguments: &[&str]) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_gangline"))
        .args(arguments)
        .current_dir(folder)
        .env("GANGLINE_CONFIG", "")
        .env("GANGLINE_ADDRESS", "http://127.0.0.1:1")
        .output()
        .unwrap()
}

#[test]
fn init_writes_a_valid_spec_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let made = gangline(folder.path(), &["init", "verl/grpo", "--file", "grpo.yaml"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let planned = gangline(folder.path(), &["plan", "grpo.yaml", "-o", "yaml", "-q"]);
    assert_eq!(planned.status.code(), Some(0), "{planned:?}");
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(text.contains("  - algorithm.adv_estimator=grpo\n"), "{text}");
    // What `plan` prints is itself a spec that means the same.
    std::fs::write(folder.path().join("planned.yaml"), &text).unwrap();
    let again = gangline(folder.path(), &["plan", "planned.yaml", "-o", "yaml", "-q"]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);

    let before = std::fs::read(folder.path().join("grpo.yaml")).unwrap();
    let refused = gangline(folder.path(), &["init", "ray", "--file", "grpo.yaml"]);
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    assert_eq!(std::fs::read(folder.path().join("grpo.yaml")).unwrap(), before);
}

#[test]
fn schema_job_is_json_schema() {
    let folder = tempfile::tempdir().unwrap();
    let printed = gangline(folder.path(), &["schema", "job"]);
    assert_eq!(printed.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    assert!(schema["properties"]["template"].is_object());
}

#[test]
fn a_command_takes_the_place_of_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let spec = "template: ray\nparams: {script: a.py}\n";
    std::fs::write(folder.path().join("a.yaml"), spec).unwrap();
    let sent = gangline(folder.path(), &["submit", "--dry-run", "a.yaml", "--", "hostname"]);
    assert_eq!(sent.status.code(), Some(0), "{sent:?}");
    let sent: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    assert_eq!(sent["command"], serde_json::json!(["hostname"]));
    assert!(sent.get("template").is_none() && sent.get("expansion").is_none());
}

#[test]
fn a_converted_file_is_valid_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cmd/import.in");
    for (option, name) in [("--from-slurm", "train.sh"), ("--from-sky", "task.yaml")] {
        let from = format!("{files}/{name}");
        let out = format!("{name}.yaml");
        let made = gangline(folder.path(), &["init", option, &from, "--file", &out]);
        assert_eq!(made.status.code(), Some(0), "{made:?}");
        let stderr = String::from_utf8(made.stderr).unwrap();
        assert!(stderr.contains("warning: not converted"), "{stderr}");
        let valid = gangline(folder.path(), &["validate", &out]);
        assert_eq!(valid.status.code(), Some(0), "{valid:?}");
        // Nothing is overwritten.
        let again = gangline(folder.path(), &["init", option, &from, "--file", &out]);
        assert_eq!(again.status.code(), Some(7), "{again:?}");
    }
}

#[test]
fn export_writes_files_and_overwrites_them_only_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["export", "grafana", "--out", "boards/gangline"];
    let made = gangline(folder.path(), &words);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let said = String::from_utf8(made.stdout).unwrap();
    let names: Vec<&str> = said.lines().collect();
    assert_eq!(names.len(), 3, "{said}");
    for name in &names {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("\"title\""), "{name}");
        std::fs::write(folder.path().join(name), "mine").unwrap();
    }
    assert_eq!(gangline(folder.path(), &words).status.code(), Some(7));
    assert_eq!(std::fs::read_to_string(folder.path().join(names[0])).unwrap(), "mine");
    let forced = gangline(folder.path(), &[&words[..], &["--force", "-o", "json"]].concat());
    assert_eq!(forced.status.code(), Some(0), "{forced:?}");
    assert_ne!(std::fs::read_to_string(folder.path().join(names[0])).unwrap(), "mine");
    let rules = gangline(folder.path(), &["export", "prometheus-rules"]);
    let committed = include_str!("../../../packaging/monitoring/rules.yml");
    assert_eq!(String::from_utf8(rules.stdout).unwrap(), committed);
}
