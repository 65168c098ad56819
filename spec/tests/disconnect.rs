//! `on_disconnect`: what it may be, what it then means, and what it says when it is wrong.

use std::time::Duration;

use gangline_spec::{OnDisconnect, SpecErrors, parse};

fn policy(line: &str) -> OnDisconnect {
    parse(&format!("run: x\nname: x\n{line}")).unwrap().on_disconnect
}

fn errors(source: &str) -> SpecErrors {
    parse(source).expect_err("this is wrong")
}

#[test]
fn policies_are_read_and_written_again() {
    let cases = [
        ("", OnDisconnect::Fence),
        ("on_disconnect: fence", OnDisconnect::Fence),
        ("on_disconnect: keep", OnDisconnect::Keep),
        ("on_disconnect: {stop_after: 30m}", OnDisconnect::StopAfter(Duration::from_secs(1800))),
    ];
    for (line, expected) in cases {
        assert_eq!(policy(line), expected, "{line}");
        let spec = parse(&format!("run: x\nname: x\n{line}")).unwrap();
        assert_eq!(parse(&spec.canonical_json()).unwrap(), spec, "{line}");
    }
}

#[test]
fn a_gang_without_a_witness_keeps_running() {
    let keeps = |text: &str| parse(text).unwrap().keeps_on_disconnect();
    assert!(keeps("run: x"));
    assert!(keeps("run: x\nresources: {nnodes: 2}\nlauncher: {type: command}"));
    assert!(!keeps("run: x\nresources: {nnodes: 2}"));
    assert!(!keeps("run: x\non_disconnect: keep"), "nothing is changed: it says so itself");
    assert!(!keeps("run: x\non_disconnect: {stop_after: 30s}"));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    // (value, code, pointer, column, part of the message or the hint)
    let cases = [
        ("fance", "E0103", "/on_disconnect", 16, "`fence`"),
        ("[keep]", "E0103", "/on_disconnect", 16, "stop_after"),
        ("30m", "E0103", "/on_disconnect", 16, "fence"),
        ("{}", "E0104", "/on_disconnect", 1, "stop_after"),
        ("{stop_after: 30}", "E0103", "/on_disconnect/stop_after", 29, "unit"),
        ("{stop_after: 5s}", "E0103", "/on_disconnect/stop_after", 29, "10s"),
        ("{stop_after: 8d}", "E0103", "/on_disconnect/stop_after", 29, "7d"),
        ("{stop_afer: 30m}", "E0101", "/on_disconnect/stop_afer", 17, "stop_after"),
    ];
    for (value, code, pointer, column, word) in cases {
        let found = errors(&format!("run: x\non_disconnect: {value}"));
        let here = found.errors.iter().find(|error| error.pointer == pointer);
        let error = here.unwrap_or_else(|| panic!("{value}: {found:?}"));
        let place = (error.code, error.pointer.as_str(), error.line, error.column);
        assert_eq!(place, (code, pointer, Some(2), Some(column)), "{value}: {error:?}");
        let text = format!("{} {}", error.message, error.hint.clone().unwrap_or_default());
        assert!(text.contains(word), "{value}: {text}");
    }
    let guest = errors("run: x\ncluster: c\non_disconnect: keep");
    assert_eq!((guest.errors[0].code, guest.errors[0].line), ("E0107", Some(3)));
}
