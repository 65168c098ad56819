//! The example specs of the repository: each is valid, and its expansion is the recorded one.
//! After a wanted change: `INSTA_UPDATE=always cargo test -p gangline-spec --test examples`.

use std::path::{Path, PathBuf};

use gangline_spec::{Entrypoint, parse, parse_resolved};

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/specs");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files
}

#[test]
fn each_example_expands_as_recorded() {
    let mut with_template = 0;
    for path in examples() {
        let source = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let spec = parse(&source).unwrap_or_else(|e| panic!("{}", e.render(&name, &source)));
        let yaml = spec.to_yaml();
        assert_eq!(parse_resolved(&yaml).as_ref(), Ok(&spec), "{yaml}");
        assert_eq!(parse_resolved(&spec.canonical_json()).as_ref(), Ok(&spec));
        with_template += usize::from(matches!(spec.entrypoint, Entrypoint::Template(_)));
        insta::assert_snapshot!(name, yaml);
    }
    assert!(with_template >= 4);
}
