//! The rules as they stand in `rules.toml`: each fits its own example, and says what it should.

use gangline_diagnosis::{Case, Category, Rules, RulesError, Source};

/// Where the traceback ends that an example needs.
const INNERMOST: [&str; 4] = [
    "\"/venv/lib/python3.12/site-packages/transformers/configuration_auto.py\", line 1, in f",
    "\"/venv/lib/python3.12/site-packages/transformers/__init__.py\", line 1, in <module>",
    "\"/usr/lib/python3.12/multiprocessing/synchronize.py\", line 57, in __init__",
    "\"/usr/lib/python3.12/multiprocessing/spawn.py\", line 126, in _main",
];

#[test]
fn every_example_fits_its_own_rule() {
    let rules = Rules::built_in().unwrap();
    let mut broken = Vec::new();
    for rule in rules.all() {
        let mut logs = vec![rule.example.clone()];
        if rule.frames.is_some() {
            // The example ends a traceback where the rule wants one.
            let outer = "Traceback (most recent call last):\n  \
                File \"/app/data/load_config.py\", line 1, in f\n  \
                File \"/app/checkpoint/trainer.py\", line 1, in f\n";
            logs = INNERMOST.map(|last| format!("{outer}  File {last}\n{}", rule.example)).to_vec();
        }
        let answers = logs.iter().map(|log| {
            let mut case = Case::new(&rules);
            case.read(&Source::whole("log", log.as_bytes()));
            let answer = case.conclude();
            let seen: Vec<String> = if rule.shadow {
                answer.shadow.iter().map(|other| other.rule.clone()).collect()
            } else {
                answer.rule.iter().cloned().collect()
            };
            (answer.category, seen)
        });
        let answers: Vec<(Category, Vec<String>)> = answers.collect();
        let fits = |(category, seen): &(Category, Vec<String>)| {
            seen.contains(&rule.id) && (rule.shadow || *category == rule.category)
        };
        if !answers.iter().any(fits) {
            broken.push(format!("{}: {answers:?}", rule.id));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_category_has_rules_and_every_rule_says_where_it_is_from() {
    let rules = Rules::built_in().unwrap();
    for category in Category::ALL {
        assert!(rules.all().iter().any(|rule| rule.category == category), "{}", category.word());
    }
    for rule in rules.all() {
        assert!(rule.id.starts_with(&format!("{}.", rule.category.word())), "{}", rule.id);
        assert!(!rule.source.is_empty() && !rule.sub_code.is_empty(), "{}", rule.id);
    }
    assert!(rules.all().iter().any(|rule| rule.shadow));
}

#[test]
fn broken_rules_are_named() {
    let good = include_str!("../rules.toml");
    let head = good.split("[[rule]]").next().unwrap();
    let rule = |id: &str, pattern: &str| {
        format!(
            "[[rule]]\nid = '{id}'\npattern = '{pattern}'\ncategory = 'storage'\nsub_code = 'x'\n\
             example = 'x'\nsource = 'x'\n"
        )
    };
    let twice = format!("{head}{}{}", rule("a", "x"), rule("a", "y"));
    assert!(matches!(Rules::parse(&twice), Err(RulesError::Twice(id)) if id == "a"));
    let open = format!("{head}{}", rule("b", "("));
    assert!(matches!(Rules::parse(&open), Err(RulesError::Pattern { id, .. }) if id == "b"));
    let more = format!("{head}{}colour = 1\n", rule("c", "x"));
    assert!(matches!(Rules::parse(&more), Err(RulesError::Form(_))));
    assert!(matches!(Rules::parse("version = 1\ncategory = {}\n"), Err(RulesError::NoCategory(_))));
}
