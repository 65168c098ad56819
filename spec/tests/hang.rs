//! `hang`: what it may be, and what it says when it is wrong.

use std::time::Duration;

use gangline_spec::{Hang, HangAction, parse};

fn minutes(warn: u64, after: u64, action: HangAction) -> Hang {
    let minutes = |minutes| Duration::from_secs(minutes * 60);
    Hang { warn_after: minutes(warn), after: minutes(after), action }
}

#[test]
fn it_is_read_and_written_again() {
    for (line, expected) in [
        ("", minutes(4, 20, HangAction::Notify)),
        ("hang: {warn_after: 10m}", minutes(10, 20, HangAction::Notify)),
        ("hang: {warn_after: 30m}", minutes(30, 30, HangAction::Notify)),
        ("hang: {after: 5m, action: restart}", minutes(4, 5, HangAction::Restart)),
        ("hang: {after: 20m, action: capture_and_notify}", minutes(4, 20, HangAction::Capture)),
    ] {
        let spec = parse(&format!("run: x\nname: x\n{line}")).unwrap();
        assert_eq!(spec.hang, expected, "{line}");
        assert_eq!(parse(&spec.canonical_json()).unwrap(), spec, "{line}");
    }
}

#[test]
fn a_gang_is_held_for_a_time() {
    let spec = parse("run: x\nname: x\nhold_on_failure: 2h").unwrap();
    assert_eq!(spec.hold_on_failure, Some(Duration::from_secs(7200)));
    assert_eq!(parse(&spec.canonical_json()).unwrap(), spec);
    assert_eq!(parse("run: x\nname: x").unwrap().hold_on_failure, None);
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (line, code, pointer, word) in [
        ("hold_on_failure: 25h", "E0103", "/hold_on_failure", "1d"),
        ("hold_on_failure: 0s", "E0103", "/hold_on_failure", "1s"),
        ("kind: cluster\nhold_on_failure: 1h", "E0107", "/hold_on_failure", "cluster"),
        ("cluster: c\nhold_on_failure: 1h", "E0107", "/hold_on_failure", "cluster"),
        ("hang: {warn_after: 5m, after: 4m}", "E0107", "/hang/after", "5m"),
        ("hang: {warn_after: 0s}", "E0103", "/hang/warn_after", "1s"),
        ("hang: {action: kill}", "E0103", "/hang/action", "restart"),
        ("hang: {warn_afer: 1m}", "E0101", "/hang/warn_afer", "warn_after"),
        ("hang: 5m", "E0103", "/hang", "mapping"),
        ("kind: cluster\nhang: {after: 5m}", "E0107", "/hang", "cluster"),
    ] {
        let wrong = parse(&format!("run: x\nname: x\n{line}")).expect_err(line);
        let error = wrong.errors.iter().find(|error| error.pointer == pointer);
        let error = error.unwrap_or_else(|| panic!("{line}: {wrong:?}"));
        let text = format!("{} {}", error.message, error.hint.clone().unwrap_or_default());
        assert!(error.code == code && text.contains(word), "{line}: {error:?}");
    }
}
