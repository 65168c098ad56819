//! Every kind of error: its code, its pointer and its position in the text.

use gangline_spec::{
    Code, MAX_ARGUMENT_BYTES, MAX_ERRORS, MAX_OVERRIDES, SpecError, SpecErrors, parse,
    parse_resolved, parse_with_overrides,
};

/// Code, pointer, line and column of each error, 0 for no position.
fn found(errors: &SpecErrors) -> Vec<(&str, &str, u32, u32)> {
    let errors = errors.errors.iter();
    errors
        .map(|e| {
            let (line, column) = (e.line.unwrap_or(0), e.column.unwrap_or(0));
            (e.code, e.pointer.as_str(), line, column)
        })
        .collect()
}

fn errors_of(source: &str) -> SpecErrors {
    match parse(source) {
        Ok(spec) => panic!("accepted: {source:?} as {spec:?}"),
        Err(errors) => errors,
    }
}

#[test]
fn each_error_has_code_pointer_and_position() {
    // (text, code, pointer, line, column)
    let cases: &[(&str, &str, &str, u32, u32)] = &[
        // Fields.
        ("run: x\nnme: a", "E0101", "/nme", 2, 1),
        ("run: x\nresources:\n  gpu_per_node: 8", "E0101", "/resources/gpu_per_node", 3, 3),
        ("run: x\nlauncher: {typ: ray}", "E0101", "/launcher/typ", 2, 12),
        ("run: x\ncheckpoint: {a/b~: 1}", "E0101", "/checkpoint/a~1b~0", 2, 14),
        // Values that are not built.
        ("run: x\nkind: serve", "E0102", "/kind", 2, 7),
        ("run: x\nkind: serve", "E0102", "/kind", 2, 7),
        ("run: x\nkind: notebook", "E0102", "/kind", 2, 7),
        ("run: x\nkind: pipeline", "E0102", "/kind", 2, 7),
        // Types and ranges.
        ("- a\n", "E0103", "", 0, 0),
        ("hello", "E0103", "", 0, 0),
        ("run: x\nversion: 2", "E0103", "/version", 2, 10),
        ("run: x\nversion: one", "E0103", "/version", 2, 10),
        ("run: x\nkind: jobb", "E0103", "/kind", 2, 7),
        ("run: x\nkind: [job]", "E0103", "/kind", 2, 7),
        ("run: x\nname: Upper", "E0103", "/name", 2, 7),
        ("run: x\nname: -a", "E0103", "/name", 2, 7),
        ("run: x\nname: ''", "E0103", "/name", 2, 7),
        ("run: x\nname: ~", "E0103", "/name", 2, 7),
        ("run: x\nname: [a]", "E0103", "/name", 2, 7),
        ("run: x\nproject: a_b", "E0103", "/project", 2, 10),
        ("run: x\ndescription: \"a\\0b\"", "E0103", "/description", 2, 14),
        ("run: x\nlabels: [a]", "E0103", "/labels", 2, 9),
        ("run: x\nlabels: {a: ~}", "E0103", "/labels/a", 2, 13),
        ("run: x\nlabels: {' a': 1}", "E0103", "/labels/ a", 2, 10),
        ("run: x\nresources: 4", "E0103", "/resources", 2, 12),
        ("run: x\nresources: {nnodes: 0}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 4..2}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 0..2}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: '2:4097'}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 2..}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 2..99999999999}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {pool: [a, b c]}", "E0103", "/resources/pool/1", 2, 23),
        ("run: x\nresources: {pool: {a: b}}", "E0103", "/resources/pool", 2, 19),
        ("run: x\nresources: {labels: [rack]}", "E0103", "/resources/labels", 2, 21),
        ("run: x\nresources: {labels: {rack: [a]}}", "E0103", "/resources/labels/rack", 2, 28),
        ("run: x\nresources: {labels: {' a': 1}}", "E0103", "/resources/labels/ a", 2, 22),
        ("run: x\nresources: {topology: racks}", "E0103", "/resources/topology", 2, 23),
        ("run: x\nresources: {exclusive: 1}", "E0103", "/resources/exclusive", 2, 24),
        ("run: x\nresources: {nnodes: -1}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 4097}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 1e9}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 4.0}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: .nan}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: two}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: '2'}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: true}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {nnodes: 18446744073709551615}", "E0103", "/resources/nnodes", 2, 21),
        ("run: x\nresources: {gpus_per_node: -1}", "E0103", "/resources/gpus_per_node", 2, 28),
        ("run: x\nresources: {gpus_per_node: 65}", "E0103", "/resources/gpus_per_node", 2, 28),
        ("run: x\nresources: {gpus_per_node: 0.5}", "E0103", "/resources/gpus_per_node", 2, 28),
        ("run: x\nresources: {cpus_per_node: 0}", "E0103", "/resources/cpus_per_node", 2, 28),
        ("run: x\nresources: {cpus_per_node: -2}", "E0103", "/resources/cpus_per_node", 2, 28),
        ("run: x\nresources: {cpus_per_node: .NaN}", "E0103", "/resources/cpus_per_node", 2, 28),
        ("run: x\nresources: {cpus_per_node: .inf}", "E0103", "/resources/cpus_per_node", 2, 28),
        ("run: x\nresources: {cpus_per_node: 1e9}", "E0103", "/resources/cpus_per_node", 2, 28),
        ("run: x\nresources: {cpus_per_node: all}", "E0103", "/resources/cpus_per_node", 2, 28),
        ("run: x\nresources: {memory_per_node: 512}", "E0103", "/resources/memory_per_node", 2, 30),
        (
            "run: x\nresources: {memory_per_node: 0GiB}",
            "E0103",
            "/resources/memory_per_node",
            2,
            30,
        ),
        (
            "run: x\nresources: {memory_per_node: 65TiB}",
            "E0103",
            "/resources/memory_per_node",
            2,
            30,
        ),
        (
            "run: x\nresources: {memory_per_node: 1.5TiB}",
            "E0103",
            "/resources/memory_per_node",
            2,
            30,
        ),
        ("run: x\nresources: {pool: 'a b'}", "E0103", "/resources/pool", 2, 19),
        ("run: x\nlauncher: {type: slurm}", "E0103", "/launcher/type", 2, 18),
        ("run: x\nlauncher: {start_timeout: 0s}", "E0103", "/launcher/start_timeout", 2, 27),
        ("run: x\nlauncher: {start_timeout: 5}", "E0103", "/launcher/start_timeout", 2, 27),
        ("run: x\ngrace_period: 2d", "E0103", "/grace_period", 2, 15),
        ("run: x\ngrace_period: -5s", "E0103", "/grace_period", 2, 15),
        ("run: x\nworkdir: opt", "E0103", "/workdir", 2, 10),
        ("run: x\nworkdir: /a/../b", "E0103", "/workdir", 2, 10),
        ("run: x\nworkdir: \"/a\\0\"", "E0103", "/workdir", 2, 10),
        ("run: x\nenv: [A=1]", "E0103", "/env", 2, 6),
        ("run: x\nenv: {1A: x}", "E0103", "/env/1A", 2, 7),
        ("run: x\nenv: {A-B: x}", "E0103", "/env/A-B", 2, 7),
        ("run: x\nenv: {A: {b: c}}", "E0103", "/env/A", 2, 10),
        ("run: x\nenv: {A: \"x\\0y\"}", "E0103", "/env/A", 2, 10),
        ("run: x\nenv: {GANGLINE_JOB_ID: x}", "E0103", "/env/GANGLINE_JOB_ID", 2, 7),
        ("run: x\nenv: {RAY_AUTH_TOKEN: x}", "E0103", "/env/RAY_AUTH_TOKEN", 2, 7),
        ("name: a\nrun: ' '", "E0103", "/run", 2, 6),
        ("name: a\nrun: 5", "E0103", "/run", 2, 6),
        ("name: a\nrun: [a, b]", "E0103", "/run", 2, 6),
        ("name: a\nrun: \"a\\0\"", "E0103", "/run", 2, 6),
        ("name: a\ncommand: python x.py", "E0103", "/command", 2, 10),
        ("name: a\ncommand: []", "E0103", "/command", 2, 10),
        ("name: a\ncommand: ['', a]", "E0103", "/command", 2, 10),
        ("name: a\ncommand: [a, ~]", "E0103", "/command/1", 2, 14),
        ("name: a\ncommand: [a, [b]]", "E0103", "/command/1", 2, 14),
        ("name: a\ncommand: [a, \"\\0\"]", "E0103", "/command/1", 2, 14),
        ("run: x\ncheckpoint: {dir: ckpt}", "E0103", "/checkpoint/dir", 2, 19),
        ("run: x\ncheckpoint: {dir: /c/$HOME}", "E0103", "/checkpoint/dir", 2, 19),
        ("run: x\ncheckpoint: {dir: /c/$GANGLINE_ATTEMPT}", "E0103", "/checkpoint/dir", 2, 19),
        // Missing.
        ("", "E0104", "", 0, 0),
        ("# nothing\n", "E0104", "", 0, 0),
        ("name: a", "E0104", "/run", 0, 0),
        // Syntax.
        ("run: x\nenv: {A: 1", "E0105", "", 2, 6),
        ("run: @x", "E0105", "", 1, 6),
        ("run: x\n---\nrun: y", "E0105", "", 3, 1),
        ("run: x\n? [a]\n: b", "E0105", "", 2, 3),
        ("run: x\n~: b", "E0105", "", 2, 1),
        ("run: x\nenv:\n  <<: {A: 1}", "E0105", "", 3, 3),
        ("run: !shell x", "E0105", "", 1, 13),
        ("run: *x", "E0105", "", 1, 6),
        ("env: &e {A: *e}", "E0105", "", 1, 13),
        // Conflict.
        ("run: x\ncommand: [x]", "E0107", "/command", 2, 1),
        // Duplicates.
        ("run: x\nrun: y", "E0108", "/run", 2, 1),
        ("run: x\nenv: {A: 1, A: 2}", "E0108", "/env/A", 2, 13),
        ("{\"run\": \"x\", \"run\": \"y\"}", "E0108", "/run", 1, 14),
        ("run: x\nlabels: {11: a, 0xB: b}", "E0108", "", 2, 17),
    ];
    for (source, code, pointer, line, column) in cases {
        let errors = errors_of(source);
        let expected = vec![(*code, *pointer, *line, *column)];
        assert_eq!(found(&errors), expected, "{source:?}: {errors}");
    }
}

#[test]
fn all_problems_come_at_once_in_the_order_of_the_text() {
    let source = "\
nme: a
resources:
  nnodes: 0
  gpus_per_node: -1
  shm: 1GiB
env:
  1A: x
  B: 1
  B: 2
launcher: {driver: rank0}
workdir: relative
";
    let errors = errors_of(source);
    assert_eq!(
        found(&errors),
        [
            ("E0101", "/nme", 1, 1),
            ("E0103", "/resources/nnodes", 3, 11),
            ("E0103", "/resources/gpus_per_node", 4, 18),
            ("E0102", "/resources/shm", 5, 3),
            ("E0103", "/env/1A", 7, 3),
            ("E0108", "/env/B", 9, 3),
            ("E0102", "/launcher/driver", 10, 12),
            ("E0103", "/workdir", 11, 10),
            ("E0104", "/run", 0, 0),
        ]
    );
    assert_eq!(errors.omitted, 0);
}

#[test]
fn the_number_of_errors_is_bounded() {
    let fields: String = (0..1000).map(|i| format!("unknown{i}: 1\n")).collect();
    let errors = errors_of(&format!("run: x\n{fields}"));
    assert_eq!(errors.errors.len(), MAX_ERRORS);
    assert_eq!(errors.omitted, 1000 - MAX_ERRORS);
    assert!(errors.to_string().contains("and 936 more"), "{errors}");
}

#[test]
fn sizes_are_bounded() {
    let long = |bytes: usize| "x".repeat(bytes);
    let many = |count: usize, item: &str| item.repeat(count);
    let labels: String = (0..65).map(|i| format!("a{i}: b, ")).collect();
    let cases = [
        (format!("name: a\nrun: {}", long(MAX_ARGUMENT_BYTES + 1)), "/run", 2),
        (format!("run: x\nenv:\n  A: {}", long(MAX_ARGUMENT_BYTES)), "/env/A", 3),
        (format!("name: a\ncommand: [{}]", many(300, &format!("{},", long(1000)))), "/command", 2),
        (format!("name: a\ncommand: [a, {}]", long(MAX_ARGUMENT_BYTES + 1)), "/command/1", 2),
        (format!("run: x\ndescription: {}", long(5000)), "/description", 2),
        (format!("run: x\nworkdir: /{}", long(4095)), "/workdir", 2),
        (format!("run: x\nlabels: {{a: {}}}", long(300)), "/labels/a", 2),
        (format!("run: x\nlabels: {{{labels}}}"), "/labels", 2),
    ];
    for (source, pointer, line) in &cases {
        let errors = errors_of(source);
        let found: Vec<_> = found(&errors).into_iter().map(|(c, p, l, _)| (c, p, l)).collect();
        assert_eq!(found, [("E0106", *pointer, *line)], "{errors}");
    }
    let largest = format!("run: {}", long(MAX_ARGUMENT_BYTES));
    assert!(parse(&largest).is_ok());
}

#[test]
fn entrypoint_and_env_are_bounded_together() {
    let half = "x".repeat(100_000);
    let source = format!("run: {half}\nenv:\n  A: {half}\n  B: {half}\n");
    assert_eq!(found(&errors_of(&source)), [("E0106", "/run", 1, 1)]);
}

#[test]
fn the_parser_is_bounded() {
    let deep_block: String = (0..40).map(|i| format!("{}k:\n", " ".repeat(i))).collect();
    let deep_flow = format!("a: {}{}", "[".repeat(40), "]".repeat(40));
    let wide = format!("command: [{}]", "a,".repeat(60_000));
    let aliases = format!("a: &a x\nb: [{}]", "*a, ".repeat(100));
    let anchors: String = (0..100).map(|i| format!("k{i}: &a{i} x\n")).collect();
    let laughs: String = ('b'..='t')
        .zip('a'..)
        .map(|(this, last)| format!("{this}: &{this} [*{last}, *{last}]\n"))
        .collect();
    let laughs = format!("a: &a [x]\n{laughs}");
    let list = "x,".repeat(40_000);
    let wide_alias = format!("a: &a [{list}]\nb: [*a, *a]");
    let (half, repeats) = ("x".repeat(500_000), "*a, ".repeat(20));
    let long_alias = format!("a: &a \"{half}\\n\"\nb: [{repeats}]");
    for source in [deep_block, deep_flow, wide, aliases, anchors, laughs, wide_alias, long_alias] {
        let errors = errors_of(&source);
        assert_eq!(errors.errors[0].code, Code::TOO_LARGE, "{errors}");
        assert!(errors.errors[0].line.is_some(), "{errors}");
    }
}

#[test]
fn the_coordinator_refuses_open_env() {
    let source = "run: x\nenv:\n  A: 1\n  B:\n";
    let errors = parse_resolved(source).unwrap_err();
    assert_eq!(found(&errors), [("E0104", "/env/B", 4, 3)]);
}

#[test]
fn suggestions_and_hints() {
    let cases = [
        ("run: x\nresources: {gpu_per_node: 8}", "did you mean `gpus_per_node`?"),
        ("run: x\nresources: {num_nodes: 8}", "did you mean `nnodes`?"),
        ("run: x\nnnodes: 8", "did you mean `resources.nnodes`?"),
        ("run: x\ntimeuot: 8", "did you mean `timeout`?"),
        (
            "run: x\ncheckpoint: {zzzzzz: 8}",
            "known here: `dir`, `every`, `keep` and `encrypted_copy`",
        ),
        ("run: x\nlauncher: {zzzzzz: 8}", "known here: `type` and `start_timeout`"),
        ("run: x\nresources: {memory_per_node: 512}", "the unit is missing"),
        ("run: x\nrun: y", "first given at line 1"),
    ];
    for (source, hint) in cases {
        let errors = errors_of(source);
        assert_eq!(errors.errors[0].hint.as_deref(), Some(hint), "{source:?}");
    }
}

#[test]
fn limits_are_named() {
    let cases = [
        ("resources: {nnodes: 5000}", "`resources.nnodes` must be from 1 to 4096, not 5000"),
        ("resources: {nnodes: -1}", "`resources.nnodes` must be from 1 to 4096, not -1"),
        (
            "resources: {gpus_per_node: 99}",
            "`resources.gpus_per_node` must be from 0 to 64, not 99",
        ),
        (
            "resources: {nnodes: 1e9}",
            "`resources.nnodes` must be a whole number in digits, not `1e9`",
        ),
        (
            "resources: {cpus_per_node: .nan}",
            "`resources.cpus_per_node` must be from 0.001 to 4096, not NaN",
        ),
        (
            "resources: {memory_per_node: 65TiB}",
            "`resources.memory_per_node` must be from 1B to 64TiB, not 65TiB",
        ),
        ("grace_period: 25h", "`grace_period` must be from 0s to 1d, not 1d1h"),
    ];
    for (text, message) in cases {
        let errors = errors_of(&format!("run: x\n{text}"));
        assert_eq!(errors.errors[0].message, message);
    }
}

#[test]
fn errors_of_overrides_name_the_override() {
    // (path, value, code, pointer, line)
    let cases = [
        ("resources.nnodes", "0", "E0103", "/resources/nnodes"),
        ("resources.nnods", "1", "E0101", "/resources/nnods"),
        ("launcher.driver", "rank0", "E0102", "/launcher/driver"),
        ("resources", "{nnodes: 1, nnodes: 2}", "E0108", "/resources"),
        ("name", "[a", "E0105", "/name"),
        ("name.x", "1", "E0107", "/name/x"),
    ];
    for (path, value, code, pointer) in cases {
        let overrides = [(path.to_owned(), value.to_owned())];
        let errors = parse_with_overrides("run: x\nname: a", &overrides).unwrap_err();
        assert_eq!(found(&errors), [(code, pointer, 0, 0)], "{path}={value}");
        let named = format!("(from override `{path}`)");
        let message = &errors.errors[0].message;
        assert_eq!(message.matches(&named).count(), 1, "{message}");
    }
}

#[test]
fn overrides_are_bounded_and_need_a_path() {
    let one = ("env.A".to_owned(), "1".to_owned());
    let errors = parse_with_overrides("run: x", &vec![one; MAX_OVERRIDES + 1]).unwrap_err();
    assert_eq!(found(&errors), [("E0106", "", 0, 0)]);
    for path in ["", ".", "a..b", "env."] {
        let overrides = [(path.to_owned(), "1".to_owned())];
        let errors = parse_with_overrides("run: x", &overrides).unwrap_err();
        assert_eq!(found(&errors), [("E0103", "", 0, 0)], "{path:?}");
    }
    let onto_a_list = [("a".to_owned(), "1".to_owned())];
    let errors = parse_with_overrides("[x]", &onto_a_list).unwrap_err();
    assert_eq!(found(&errors)[0].0, "E0107");
}

#[test]
fn errors_found_later_can_be_located() {
    let source = "run: x\nresources:\n  pool: nowhere\n";
    let error = SpecError::new(Code::BAD_VALUE, "/resources/pool", "no such pool", None);
    let mut errors = SpecErrors::from(error);
    errors.locate(source);
    assert_eq!(found(&errors), [("E0103", "/resources/pool", 3, 9)]);
    let mut elsewhere = SpecErrors::from(SpecError::new(Code::MISSING, "/a/0/b", "x", None));
    elsewhere.locate(source);
    assert_eq!(found(&elsewhere), [("E0104", "/a/0/b", 0, 0)]);
}

#[test]
fn errors_serialise_for_an_answer() {
    let errors = errors_of("run: x\nnme: a");
    let json = serde_json::to_value(&errors).unwrap();
    assert_eq!(json["errors"][0]["code"], "E0101");
    assert_eq!(json["errors"][0]["pointer"], "/nme");
    assert_eq!(json["errors"][0]["line"], 2);
    assert_eq!(json["errors"][0]["column"], 1);
}
