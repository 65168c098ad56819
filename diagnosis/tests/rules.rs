//! The rules as they stand in `rules.toml`: each fits its own example, and says what it should.

use gangline_diagnosis::{Case, Category, Rules, RulesError, Source};

#[test]
fn every_example_fits_its_own_rule() {
    let rules = Rules::built_in().unwrap();
    let mut broken = Vec::new();
    for rule in rules.all() {
        // The example ends a traceback where the rule wants one.
        let frames = ["/app/data/load_config.py", "/app/checkpoint/trainer.py"];
        let mut log = String::new();
        if rule.frames.is_some() {
            log.push_str("Traceback (most recent call last):\n");
            for path in frames {
                log.push_str(&format!("  File \"{path}\", line 1, in f\n"));
            }
            let library = "/venv/lib/python3.12/site-packages/transformers/configuration_auto.py";
            log.push_str(&format!("  File \"{library}\", line 1, in f\n"));
        }
        log.push_str(&rule.example);
        let mut case = Case::new(&rules);
        case.read(&Source::whole("log", log.as_bytes()));
        let answer = case.conclude();
        let seen: Vec<&str> = if rule.shadow {
            answer.shadow.iter().map(|other| other.rule.as_str()).collect()
        } else {
            answer.rule.iter().map(String::as_str).collect()
        };
        if !seen.contains(&rule.id.as_str()) {
            broken.push(format!("{}: {seen:?}", rule.id));
        } else if !rule.shadow && answer.category != rule.category {
            broken.push(format!("{}: {}", rule.id, answer.category.word()));
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
