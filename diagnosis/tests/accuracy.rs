//! How often the rules are right on labelled failures.

mod support;

use std::path::Path;

use gangline_diagnosis::{Category, Rules};
use serde::Deserialize;
use support::{Labelled, Score, corpus, diagnose, records};

#[test]
fn training_set() {
    let Some(data) = std::env::var_os("GANGLINE_DATA") else {
        println!("GANGLINE_DATA is not set: the training set is not there");
        return;
    };
    let logs: Vec<Labelled> = records(&Path::new(&data).join("diagnosis_train.jsonl"));
    let score = Score::of(&Rules::built_in().unwrap(), &logs);
    println!("{}", score.report("training set"));
    assert!(score.logs >= 50);
    assert!(score.top_1() >= 0.95 && score.retry() >= 0.97);
}

#[test]
fn held_out_failures() {
    let logs: Vec<Labelled> = records(&corpus().join("failures.jsonl"));
    let score = Score::of(&Rules::built_in().unwrap(), &logs);
    println!("{}", score.report("held-out failures"));
    assert!(score.logs >= 60);
    assert!(score.top_1() >= 0.95 && score.retry() >= 0.97);
}

#[test]
fn harder_held_out_failures() {
    for file in [
        "failures-2.jsonl",
        "failures-3.jsonl",
        "failures-4.jsonl",
        "failures-5.jsonl",
        "failures-6.jsonl",
    ] {
        let logs: Vec<Labelled> = records(&corpus().join(file));
        let score = Score::of(&Rules::built_in().unwrap(), &logs);
        println!("{}", score.report(file));
        assert!(score.logs >= 36);
        assert!(score.top_1() >= 0.95 && score.retry() >= 0.97, "{file}");
    }
}

/// An excerpt in which nothing has failed.
#[derive(Deserialize)]
struct Healthy {
    id: String,
    log: String,
}

#[test]
fn healthy_logs_raise_no_alarm() {
    let rules = Rules::built_in().unwrap();
    let logs: Vec<Healthy> = records(&corpus().join("healthy.jsonl"));
    assert!(logs.len() >= 200);
    let mut alarms = Vec::new();
    for healthy in &logs {
        let answer = diagnose(&rules, &healthy.log);
        if answer.category != Category::Unknown || answer.retry {
            let line = answer.evidence.first().map_or("", |line| line.text.as_str());
            alarms.push(format!("{}: {:?}: {line}", healthy.id, answer.rule));
        }
        assert!(answer.confidence <= 0.3 || answer.category != Category::Unknown);
    }
    println!("{} alarms in {} healthy logs", alarms.len(), logs.len());
    assert!(alarms.is_empty(), "{alarms:#?}");
}
