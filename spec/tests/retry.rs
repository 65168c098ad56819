//! Another attempt after a failure: what `retry` and `log_policies` may say.

use gangline_spec::{LogAction, Retry, RetryEvent, parse};

fn spec(more: &str) -> String {
    format!("run: python train.py\n{more}")
}

#[test]
fn without_a_word_the_causes_that_no_user_can_mend_are_retried() {
    let job = parse(&spec("")).unwrap();
    assert_eq!(job.retry, Retry::default());
    assert_eq!((job.retry.max, job.retry.on_events.len()), (3, RetryEvent::ALL.len()));
    assert!(!job.canonical_json().contains("retry"));
}

#[test]
fn what_is_said_comes_back() {
    let text = spec(concat!(
        "retry: {max: 0, on_events: [storage], backoff: {factor: 1.5, max: 1h}}\n",
        "log_policies: [{pattern: \"CUDA out of memory\", action: fail_no_retry}]\n",
    ));
    let job = parse(&text).unwrap();
    assert_eq!((job.retry.max, job.retry.backoff.factor), (0, 1.5));
    assert_eq!(Vec::from_iter(&job.retry.on_events), [&RetryEvent::Storage]);
    assert_eq!(job.log_policies[0].action, LogAction::FailNoRetry);
    assert_eq!(parse(&job.canonical_json()).unwrap(), job);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let cases = [
        ("retry: {max: 1001}", "/retry/max", "from 0 to 1000"),
        ("retry: {on_events: [nodelost]}", "/retry/on_events/0", "node_lost"),
        ("retry: {backoff: {factor: 0.5}}", "/retry/backoff/factor", "from 1 to 10"),
        ("retry: {backoff: {max: 25h}}", "/retry/backoff/max", ""),
        ("retry: {times: 3}", "/retry/times", ""),
        ("log_policies: [{pattern: \"(\", action: retry}]", "/log_policies/0/pattern", "unclosed"),
        ("log_policies: [{pattern: x}]", "/log_policies/0/action", ""),
        ("log_policies: [{pattern: x, action: cordon}]", "/log_policies/0/action", "one of"),
        (
            "log_policies: [{pattern: \"(a{999}){999}\", action: retry}]",
            "/log_policies/0/pattern",
            "large",
        ),
    ];
    for (text, pointer, says) in cases {
        let errors = parse(&spec(text)).unwrap_err();
        let error = &errors.errors[0];
        assert_eq!(error.pointer, pointer, "{text}");
        let all = format!("{} {}", error.message, error.hint.clone().unwrap_or_default());
        assert!(all.contains(says), "{text}: {all}");
    }
    let guest = parse(&spec("cluster: rl-dev\nretry: {max: 1}\n")).unwrap_err();
    assert_eq!(guest.errors[0].pointer, "/retry");
}
