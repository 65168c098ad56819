//! Any input ends in an answer, and no control sequence comes out of it.

use gangline_diagnosis::{Case, Category, Diagnosis, MAX_SOURCES, Rules, Source};
use proptest::prelude::*;
use std::sync::LazyLock;

static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::built_in().unwrap());

fn diagnose(text: &[u8]) -> Diagnosis {
    let mut case = Case::new(&RULES);
    case.read(&Source::whole("log", text));
    case.conclude()
}

fn is_safe(answer: &Diagnosis) -> bool {
    let shown = answer.evidence.iter().chain(answer.consequences.iter().map(|c| &c.evidence));
    shown.into_iter().all(|line| {
        line.text.chars().count() <= 401 && !line.text.chars().any(|c| c.is_control() && c != '\t')
    }) && answer.evidence.len() <= 5
        && answer.consequences.len() <= 12
}

#[test]
fn long_and_odd_logs_are_read() {
    const ERROR: &[u8] = b"RuntimeError: CUDA error: an illegal memory access was encountered";
    let two_megabytes: Vec<u8> = ERROR.iter().copied().cycle().take(2_000_000).collect();
    assert_eq!(diagnose(&two_megabytes).category, Category::GpuKernelFault);
    let bars: Vec<u8> = [b" 10%|#  | 1/9 [00:01<00:09, 1.0it/s]\r".as_slice(); 60_000].concat();
    assert_eq!(diagnose(&bars).category, Category::Unknown);
    assert_eq!(diagnose(&[bars.as_slice(), ERROR].concat()).category, Category::GpuKernelFault);
    let nuls = vec![0; 3_000_000];
    assert_eq!(diagnose(&nuls).category, Category::Unknown);
    assert_eq!(diagnose(&vec![b'\n'; 3_000_000]).category, Category::Unknown);
    let open =
        b"Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n".repeat(40_000);
    assert_eq!(diagnose(&open).category, Category::Unknown);
}

#[test]
fn what_stands_between_head_and_tail_is_not_read() {
    let filler = b"some line that says nothing\n".repeat(200_000);
    let error = b"RuntimeError: CUDA error: an illegal memory access was encountered\n";
    let middle = filler.len() / 2;
    let hidden = [&filler[..middle], error, &filler[middle..]].concat();
    assert_eq!(diagnose(&hidden).category, Category::Unknown);
    let shown = [&filler[..], error].concat();
    let answer = diagnose(&shown);
    assert_eq!(answer.category, Category::GpuKernelFault);
    assert_eq!(answer.evidence[0].line, Some(200_001));
}

#[test]
fn sources_beyond_the_most_are_not_read() {
    let mut case = Case::new(&RULES);
    for _ in 0..MAX_SOURCES {
        case.read(&Source::whole("log", b"fine\n"));
    }
    case.read(&Source::whole("log", b"OSError: [Errno 28] No space left on device\n"));
    assert_eq!(case.conclude().category, Category::Unknown);
}

#[test]
fn escape_sequences_do_not_come_out() {
    let text = b"\x1b[31mOSError:\x1b[0m [Errno 28] \x1b]0;title\x07No space left on device\x9b2J\xe2\x80\xae\n";
    let answer = diagnose(text);
    assert_eq!(answer.category, Category::Storage);
    assert!(is_safe(&answer), "{answer:?}");
}

/// Pieces that the reader has special words for.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![
        Just("Traceback (most recent call last):\n"),
        Just("  File \"/a.py\", line 1, in f\n"),
        Just("KeyError: 'x'\n"),
        Just("During handling of the above exception, another exception occurred:\n"),
        Just("[rank3]: "),
        Just("(Worker pid=1, ip=1.2.3.4) "),
        Just("2026-03-01 10:00:00,123 "),
        Just("[2026-99-99 29:59:59,999 E 1 1] "),
        Just("NVRM: Xid (PCI:0000:9b:00): 79, "),
        Just("CUDA out of memory. "),
        Just("{\"log\":\"OSError: [Errno 28]\\n\"}"),
        Just("[response] "),
        Just("[ground_truth] "),
        Just("```\n"),
        Just("nfs: server a not responding\nnfs: server a OK\n"),
        Just("\r"),
        Just("\n"),
        Just("\u{1b}["),
    ];
    prop_oneof![
        words.prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..200),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_the_same_safe_answer_twice(pieces in prop::collection::vec(piece(), 0..60)) {
        let text = pieces.concat();
        let answer = diagnose(&text);
        prop_assert!(is_safe(&answer), "{:?}", answer);
        prop_assert!((0.0..=1.0).contains(&answer.confidence));
        prop_assert!(!answer.certain);
        prop_assert_eq!(answer.category == Category::Unknown, answer.rule.is_none());
        prop_assert_eq!(diagnose(&text), answer);
    }

    #[test]
    fn the_order_of_any_sources_does_not_matter(texts in prop::collection::vec(piece(), 2..5)) {
        let names: Vec<String> = (0..texts.len()).map(|number| format!("log-{number}")).collect();
        let answer = |turned: bool| {
            let mut order: Vec<usize> = (0..texts.len()).collect();
            if turned {
                order.reverse();
            }
            let mut case = Case::new(&RULES);
            for index in order {
                case.read(&Source::whole(&names[index], &texts[index]));
            }
            case.conclude()
        };
        prop_assert_eq!(answer(false), answer(true));
    }
}
