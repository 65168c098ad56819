//! How often the rules are right on labelled failures.

mod support;

use std::path::Path;

use gangline_diagnosis::Rules;
use support::{Labelled, Score, records};

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
    assert!(score.top_1() >= 0.9 && score.retry() >= 0.97);
}
