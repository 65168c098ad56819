//! The field `code`: its places, what goes with which, and that it reads back.

use gangline_spec::{CodeSource, CodeSpec, JobSpec, parse};

fn read(source: &str) -> JobSpec {
    match parse(source) {
        Ok(spec) => spec,
        Err(errors) => panic!("{}", errors.render("x.yaml", source)),
    }
}

const TREE: &str = "blake3:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";

#[test]
fn every_place_arrives_and_reads_back() {
    let spec =
        read("run: x\ncode: {snapshot: ., include: [configs/**], max_size: 64MiB, git: off}");
    assert_eq!(
        spec.code,
        Some(CodeSpec {
            source: CodeSource::Snapshot(".".to_owned()),
            include: vec!["configs/**".to_owned()],
            max_bytes: 64 << 20,
            record_git: false,
            commit: None,
        })
    );
    let code = read("run: x\ncode: {snapshot: src}").code.unwrap();
    assert_eq!((code.max_bytes, code.record_git), (200 << 20, true));
    let sent = format!("{{snapshot: '{TREE}', commit: {COMMIT}+changed}}");
    let code = read(&format!("run: x\ncode: {sent}")).code.unwrap();
    assert_eq!(code, CodeSpec::of_tree(TREE.to_owned(), Some(format!("{COMMIT}+changed"))));
    for code in [
        "{snapshot: ., include: [configs/**], max_size: 64MiB, git: off}",
        "{path: /opt/code}",
        "{zip: ../a b.zip, max_size: 1GiB}",
        &format!("{{snapshot: '{TREE}'}}"),
        &sent,
    ] {
        let spec = read(&format!("run: x\ncode: {code}"));
        let json = spec.canonical_json();
        assert_eq!(parse(&json).as_ref(), Ok(&spec), "{json}");
        assert_eq!(parse(&spec.to_yaml()).as_ref(), Ok(&spec), "{}", spec.to_yaml());
    }
}

#[test]
fn wrong_values_are_refused_at_their_place() {
    let long = format!("run: x\ncode: {{snapshot: '{TREE}0'}}");
    let named = format!("run: x\ncode: {{snapshot: '{TREE}', max_size: 1GiB}}");
    let upper = format!("run: x\ncode: {{snapshot: '{}'}}", TREE.replace("abc", "ABC"));
    let wordy = format!("run: x\ncode: {{snapshot: '{TREE}', commit: main}}");
    let cases = [
        ("run: x\ncode: .", "E0103", "/code"),
        ("run: x\ncode: {}", "E0104", "/code"),
        ("run: x\ncode: {snapshot: ., path: /a}", "E0107", "/code/path"),
        ("run: x\ncode: {snapshot: ., zip: a.zip}", "E0107", "/code/zip"),
        ("run: x\ncode: {path: a}", "E0103", "/code/path"),
        ("run: x\ncode: {path: /a/../b}", "E0103", "/code/path"),
        ("run: x\ncode: {path: /a, include: [x]}", "E0107", "/code/include"),
        ("run: x\ncode: {path: /a, max_size: 1GiB}", "E0107", "/code/max_size"),
        ("run: x\ncode: {zip: a.zip, git: off}", "E0107", "/code/git"),
        ("run: x\ncode: {zip: a.zip, commit: x}", "E0107", "/code/commit"),
        ("run: x\ncode: {snapshot: ., commit: x}", "E0107", "/code/commit"),
        ("run: x\ncode: {snapshot: ''}", "E0103", "/code/snapshot"),
        ("run: x\ncode: {snapshot: 'blake3:00'}", "E0103", "/code/snapshot"),
        ("run: x\ncode: {snapshot: ., max_size: 0B}", "E0103", "/code/max_size"),
        ("run: x\ncode: {snapshot: ., max_size: 5}", "E0103", "/code/max_size"),
        ("run: x\ncode: {snapshot: ., git: yes}", "E0103", "/code/git"),
        ("run: x\ncode: {snapsot: .}", "E0101", "/code/snapsot"),
        (&long, "E0103", "/code/snapshot"),
        (&upper, "E0103", "/code/snapshot"),
        (&named, "E0107", "/code/max_size"),
        (&wordy, "E0103", "/code/commit"),
    ];
    for (source, code, pointer) in cases {
        let errors = parse(source).expect_err(source).errors;
        let found: Vec<_> = errors.iter().map(|error| (error.code, &*error.pointer)).collect();
        assert!(!found.is_empty() && found.len() <= 2, "{source}: {found:?}");
        assert!(found.contains(&(code, pointer)), "{source}: {found:?}");
    }
}
