//! The rules of this repository that a machine can check, read from its files alone.
//!
//! Rust text is looked at through [`repository::code_of`], which blanks comments and texts, so that a
//! rule about code is not broken by a sentence about it.

mod repository;

use std::collections::BTreeSet;

use repository::imports::{Module, foreign_paths};
use repository::{Source, code_map, has_word, paths, root, sources, without_tests};

/// What broke a rule, one line each; a test shows all of it at once.
fn assert_none(broken: Vec<String>) {
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent = |source: &&Source| !source.text.starts_with("//! ");
    assert_none(sources().iter().filter(silent).map(|source| source.path.clone()).collect());
}

#[test]
fn no_file_is_a_drawer() {
    const DRAWERS: [&str; 8] =
        ["utils", "util", "misc", "helpers", "helper", "common_stuff", "stuff", "various"];
    let is_drawer = |path: &&String| {
        path.split('/').any(|part| DRAWERS.contains(&part.trim_end_matches(".rs")))
    };
    let sources = sources();
    assert_none(sources.iter().map(|source| &source.path).filter(is_drawer).cloned().collect());
}

/// A core decides; it does not reach out. Its tests may.
#[test]
fn a_core_imports_only_itself_ids_and_time() {
    let mut seen = 0;
    let mut broken = Vec::new();
    for (package, under) in [
        ("coordinator/core", "coordinator/core/src/"),
        ("agent/core", "agent/core/src/"),
        ("health", "health/src/"),
    ] {
        let dependencies = repository::dependencies(package);
        for source in sources().iter().filter(|source| source.path.starts_with(under)) {
            if source.is_test() {
                continue;
            }
            seen += 1;
            let module = Module::of(&source.path);
            let code = without_tests(&source.code);
            let foreign = foreign_paths(&code, &module, &dependencies);
            // What the health engine keeps is written down by the agent: one file says how.
            let allowed =
                |path: &String| source.path == "health/src/saved.rs" && path.starts_with("serde::");
            let foreign = foreign.into_iter().filter(|path| !allowed(path));
            broken.extend(foreign.map(|path| format!("{}: {path}", source.path)));
        }
    }
    assert!(seen > 10, "the cores were not found");
    assert_none(broken);
}

#[test]
fn only_the_top_of_the_coordinator_knows_its_api() {
    const TOP: [&str; 3] = ["main.rs", "coordinator.rs", "lib.rs"];
    let sources = sources();
    let below = sources.iter().filter(|source| {
        source
            .path
            .strip_prefix("coordinator/src/")
            .is_some_and(|rest| !rest.starts_with("api/") && !TOP.contains(&rest))
    });
    let knows = |source: &&Source| {
        repository::imports::paths_in(&source.code)
            .iter()
            .any(|path| path.starts_with("crate::api"))
    };
    assert_none(below.filter(knows).map(|source| source.path.clone()).collect());
}

/// The files whose code has `word`.
fn files_with(word: &str) -> BTreeSet<String> {
    let sources = sources();
    sources.iter().filter(|s| has_word(&s.code, word)).map(|s| s.path.clone()).collect()
}

#[test]
fn bincode_is_named_in_two_files() {
    let expected = ["common/src/wire/codec.rs", "coordinator/src/store/record.rs"];
    assert_eq!(files_with("bincode"), expected.map(str::to_owned).into());
}

/// Everything else speaks through the transport. Tests may be strangers with a client of their own.
#[test]
fn quinn_is_named_in_the_transport() {
    let allowed =
        ["common/src/transport.rs", "common/src/transport/connection_ids.rs", "common/src/tls.rs"];
    let mut named = files_with("quinn");
    named.extend(files_with("quinn_proto"));
    assert!(named.contains(allowed[0]));
    let elsewhere = |path: &String| path.contains("/src/") && !allowed.contains(&path.as_str());
    assert_none(named.into_iter().filter(elsewhere).collect());
}

#[test]
fn every_channel_has_a_bound() {
    assert_eq!(files_with("unbounded_channel"), BTreeSet::new());
}

#[test]
fn no_test_is_skipped_or_passes_by_panicking() {
    let mut broken = Vec::new();
    for source in sources() {
        let dense: String = source.code.chars().filter(|c| !c.is_whitespace()).collect();
        for attribute in ["#[ignore", "#[should_panic", ",ignore)]", ",should_panic)]"] {
            if dense.contains(attribute) {
                broken.push(format!("{}: {attribute}", source.path));
            }
        }
    }
    assert_none(broken);
}

#[test]
fn what_is_left_to_do_has_a_number() {
    // Written apart, so that this file does not match itself.
    const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut broken = Vec::new();
    for path in paths().iter().filter(|path| !path.ends_with(".lock")) {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            if MARKS.iter().any(|mark| repository::unnumbered(line, mark)) {
                broken.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    assert_none(broken);
}

/// The repository is the same everywhere: no directory of one developer, no download host.
#[test]
fn no_file_names_a_developers_machine_or_a_registry() {
    const FORBIDDEN: [&str; 5] = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("crates", ".io"),
        concat!("pypi", ".org"),
        concat!("registry", ".npmjs"),
    ];
    let mut broken = Vec::new();
    // The lock file is cargo's: it names the registry of every package.
    for path in paths().iter().filter(|path| !path.ends_with("Cargo.lock")) {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            for forbidden in FORBIDDEN.iter().filter(|forbidden| line.contains(**forbidden)) {
                broken.push(format!("{path}:{number}: {forbidden}"));
            }
        }
    }
    assert_none(broken);
}

#[test]
fn the_code_map_lists_the_modules_that_exist() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    assert_none(code_map::problems(&readme, &paths()));
}

/// The page of attacks: every number is there, and every test that it names exists.
#[test]
fn the_attacks_are_listed_with_tests_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/security.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| A")).collect();
    let numbers: Vec<String> =
        rows.iter().filter_map(|row| row.split('|').nth(1)).map(|n| n.trim().to_owned()).collect();
    let all: Vec<String> = (1..=50).map(|number| format!("A{number}")).collect();
    assert_eq!(numbers, all);
    let mut broken = Vec::new();
    for row in rows {
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let tests = named.iter().filter(|name| name.contains('_') && **name == name.to_lowercase());
        for test in tests.clone() {
            let signature = format!("fn {test}(");
            if !sources().iter().any(|source| source.code.contains(&signature)) {
                broken.push(format!("{test} does not exist: {row}"));
            }
        }
        let explained = ["waits for", "not prevented", "request id"];
        if tests.count() == 0 && !explained.iter().any(|word| row.contains(word)) {
            broken.push(format!("neither a test nor a reason: {row}"));
        }
    }
    assert_none(broken);
}
