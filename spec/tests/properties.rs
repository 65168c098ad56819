//! Properties over generated texts and specs: reading never panics, every position lies in the
//! text, and the canonical text of a spec reads back as the same spec.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_spec::{
    Argument, Checkpoint, Entrypoint, Expansion, JobSpec, Launcher, LauncherKind, Mlflow,
    Resources, TEMPLATE_VARIABLES, Topology, Tracking, Wandb, WandbMode, expand_variables, parse,
    parse_resolved, parse_with_overrides,
};
use proptest::prelude::*;

const SEED: &str = r#"name: qwen3-8b-grpo
labels: {owner: alice, "a b": 'c'}
resources:
  nnodes: 4
  gpus_per_node: 8
  memory_per_node: 512GiB
launcher: {type: ray, start_timeout: 5m}
env:
  A: &a 1.0e-6
  B: *a
  C: ~
run: |
  echo "$HOME"
checkpoint:
  dir: /ckpt/$GANGLINE_NAME
"#;

/// Read `source` in every way; what comes back must make sense for it.
fn check(source: &str) {
    for result in [parse(source), parse_resolved(source)] {
        let Err(errors) = result else {
            continue;
        };
        assert!(!errors.errors.is_empty());
        let lines = source.split(['\n', '\r']).count() + 1;
        for error in &errors.errors {
            assert_eq!(error.line.is_some(), error.column.is_some());
            if let Some(line) = error.line {
                assert!(line >= 1 && line as usize <= lines, "{error:?}");
            }
        }
        let text = errors.render("x.yaml", source);
        assert!(text.starts_with("error[E01"), "{text}");
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Insert(usize, String),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let token = prop_oneof![
        "[-:{}\\[\\]&*!|>'\"%@`,?#~\t\n\r $<.0-9a-z]{1,4}",
        Just("<<: ".to_owned()),
        Just("!!binary ".to_owned()),
        Just("\u{feff}".to_owned()),
        Just("\u{85}".to_owned()),
        Just("---\n".to_owned()),
        any::<char>().prop_map(String::from),
    ];
    prop_oneof![
        (0..SEED.len(), token).prop_map(|(at, text)| Mutation::Insert(at, text)),
        (0..SEED.len(), 1..20usize).prop_map(|(at, len)| Mutation::Remove(at, len)),
        (0..SEED.len(), 1..60usize).prop_map(|(at, len)| Mutation::Repeat(at, len)),
    ]
}

fn mutate(text: &str, mutation: &Mutation) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| index.min(chars.len());
    let part = |from: usize, to: usize| chars[at(from)..at(to)].iter().collect::<String>();
    match mutation {
        Mutation::Insert(i, new) => part(0, *i) + new + &part(*i, chars.len()),
        Mutation::Remove(i, len) => part(0, *i) + &part(i + len, chars.len()),
        Mutation::Repeat(i, len) => part(0, i + len) + &part(*i, chars.len()),
    }
}

/// Any text a spec can carry: no NUL, everything else.
fn text() -> impl Strategy<Value = String> {
    let special = "\t\n\r\"'\\$:#{}[]-\u{1b}\u{7f}\u{85}\u{a0}\u{2028}\u{feff}\u{fffe}";
    let special = special.chars().collect::<Vec<char>>();
    let char = prop_oneof![any::<char>(), proptest::sample::select(special)];
    proptest::collection::vec(char, 1..40)
        .prop_map(|chars| chars.into_iter().filter(|c| *c != '\0').collect())
}

fn script() -> impl Strategy<Value = String> {
    text().prop_map(|text| format!("x{text}"))
}

fn entrypoint() -> impl Strategy<Value = Entrypoint> {
    prop_oneof![
        script().prop_map(Entrypoint::Script),
        (script(), proptest::collection::vec(text(), 0..5)).prop_map(|(program, mut rest)| {
            rest.insert(0, program);
            Entrypoint::Argv(rest)
        }),
    ]
}

fn resources() -> impl Strategy<Value = Resources> {
    (
        1..=4096u32,
        0..=64u32,
        proptest::option::of(0.001..=4096.0f64),
        proptest::option::of(prop_oneof![
            1..=(64u64 << 40),
            (1..=65536u64).prop_map(|gib| gib << 30)
        ]),
        constraints(),
        0..=4096u32,
    )
        .prop_map(|(nnodes, gpus_per_node, cpus_per_node, memory_per_node, which, most)| {
            Resources {
                nnodes,
                nnodes_max: Some(most).filter(|most| *most > nnodes),
                gpus_per_node,
                cpus_per_node,
                memory_per_node,
                ..which
            }
        })
}

/// What says which nodes will do.
fn constraints() -> impl Strategy<Value = Resources> {
    let name = "[a-zA-Z0-9][a-zA-Z0-9._/-]{0,20}";
    (
        proptest::collection::vec(name, 0..3),
        proptest::collection::btree_map(name, text(), 0..3),
        proptest::option::of(proptest::bool::ANY),
        proptest::option::of(proptest::sample::select(Topology::ALL.to_vec())),
    )
        .prop_map(|(pools, labels, exclusive, topology)| Resources {
            pools,
            labels,
            exclusive,
            topology,
            ..Resources::default()
        })
}

fn path() -> impl Strategy<Value = String> {
    text()
        .prop_map(|text| format!("/{}", text.replace('$', "")))
        .prop_filter("no parent directories", |path| !path.contains(".."))
}

fn env() -> impl Strategy<Value = BTreeMap<String, Option<String>>> {
    let name = "[A-FH-QS-Za-z_][A-Za-z0-9_]{0,12}";
    proptest::collection::btree_map(name, text().prop_map(Some), 0..5)
}

fn job_spec() -> impl Strategy<Value = JobSpec> {
    let name = || proptest::option::of("[a-z0-9][a-z0-9-]{0,62}");
    let labels = proptest::collection::btree_map("[a-z0-9][a-z0-9./_-]{0,9}", text(), 0..5);
    let heading = (name(), name(), proptest::option::of(text()), labels);
    let times = (1..=86400u64, 0..=86400u64, any::<bool>());
    let paths = (proptest::option::of(path()), proptest::option::of(path()));
    (heading, resources(), times, paths, env(), entrypoint()).prop_map(
        |(heading, resources, times, paths, env, entrypoint)| JobSpec {
            name: heading.0,
            project: heading.1,
            description: heading.2,
            labels: heading.3,
            resources,
            launcher: Launcher {
                kind: if times.2 { LauncherKind::Ray } else { LauncherKind::Command },
                start_timeout: Duration::from_secs(times.0),
            },
            workdir: paths.0,
            env,
            entrypoint,
            grace_period: Duration::from_secs(times.1),
            checkpoint: Checkpoint {
                encrypted_copy: paths.1.is_some(),
                dir: paths.1,
                ..Checkpoint::default()
            },
            ..JobSpec::for_command(Vec::new())
        },
    )
}

fn argument() -> impl Strategy<Value = Argument> {
    let variable = proptest::sample::select(&TEMPLATE_VARIABLES[..]);
    prop_oneof![
        text().prop_map(Argument::Literal),
        ("[a-z. =/]{0,8}", variable.clone(), any::<bool>()).prop_map(|(text, name, braced)| {
            Argument::Fill(if braced {
                format!("{text}${{{name}}}")
            } else {
                format!("{text}${name}")
            })
        }),
    ]
}

/// A job whose template's arguments were recorded, and trackers.
fn recorded_job() -> impl Strategy<Value = JobSpec> {
    let counts = (proptest::option::of(1..1000u32), proptest::option::of(1..1000u32));
    let params = proptest::collection::btree_map(
        "[a-z_]{1,6}",
        prop_oneof![
            text().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            (-1.0e9..1.0e9).prop_map(serde_json::Value::from),
            any::<bool>().prop_map(serde_json::Value::from),
        ],
        0..4,
    );
    let arguments = proptest::collection::vec(argument(), 0..6);
    let overrides = proptest::collection::vec(text(), 0..3);
    let tracking = (any::<bool>(), proptest::option::of("[a-z]{1,8}"), 0..4usize, any::<bool>());
    (job_spec(), arguments, overrides, params, counts, tracking).prop_map(
        |(spec, arguments, overrides, params, counts, tracking)| {
            let program = std::iter::once(Argument::Literal("python3".to_owned()));
            let (wandb, project, mode, mlflow) = tracking;
            let expansion = Expansion {
                template: "verl/old@7".to_owned(),
                params: serde_json::Value::Object(params.into_iter().collect()),
                overrides,
                arguments: program.chain(arguments).collect(),
            };
            JobSpec {
                entrypoint: Entrypoint::Template(expansion),
                checkpoint: Checkpoint { every: counts.0, keep: counts.1, ..spec.checkpoint },
                launcher: Launcher { kind: LauncherKind::Torchrun, ..spec.launcher },
                tracking: Tracking {
                    wandb: wandb
                        .then(|| Wandb { project: project.clone(), mode: WandbMode::ALL[mode] }),
                    tensorboard: !wandb,
                    mlflow: mlflow
                        .then(|| Mlflow { uri: "sqlite:////x y".to_owned(), experiment: project }),
                },
                ..spec
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_without_a_panic(source in any::<String>()) {
        check(&source);
    }

    #[test]
    fn yaml_like_text_is_read_without_a_panic(
        source in "([a-z_]{1,8}: ?|[-?] |\\{|\\}|\\[|\\]|[&*!][a-z]|\"|'|\\||>|#|\n {0,4}|\t|\r\n|[0-9.e]{1,5}){0,40}"
    ) {
        check(&source);
    }

    #[test]
    fn a_mutated_spec_is_read_without_a_panic(
        mutations in proptest::collection::vec(mutation(), 1..6)
    ) {
        let source = mutations.iter().fold(SEED.to_owned(), |text, m| mutate(&text, m));
        check(&source);
    }

    #[test]
    fn any_override_is_read_without_a_panic(path in "[a-z./_~]{0,20}|\\PC{0,8}", value in any::<String>()) {
        if let Err(errors) = parse_with_overrides(SEED, &[(path, value)]) {
            prop_assert!(errors.render("x.yaml", SEED).starts_with("error[E01"));
        }
    }

    #[test]
    fn the_canonical_text_reads_back(spec in prop_oneof![job_spec(), recorded_job()]) {
        prop_assert_eq!(spec.validate(), Ok(()));
        let json = spec.canonical_json();
        prop_assert!(!json.contains('\n'));
        let read = parse_resolved(&json);
        prop_assert_eq!(read.as_ref(), Ok(&spec), "{}", json);
        prop_assert_eq!(read.map(|spec| spec.canonical_json()), Ok(json.clone()));
        let yaml = spec.to_yaml();
        let read = parse_resolved(&yaml);
        prop_assert_eq!(read.as_ref(), Ok(&spec), "{}", yaml);
        let value: serde_json::Value = serde_json::from_str(&json).expect("plain JSON");
        prop_assert!(value.is_object());
    }

    #[test]
    fn literals_stay_and_variables_go(
        arguments in proptest::collection::vec(argument(), 0..8), value in text()
    ) {
        let filled = expand_variables(&arguments, |_| Some(value.clone())).expect("known names");
        prop_assert_eq!(filled.len(), arguments.len());
        for (argument, filled) in arguments.iter().zip(&filled) {
            match argument {
                Argument::Literal(text) => prop_assert_eq!(text, filled),
                Argument::Fill(_) => prop_assert!(filled.ends_with(&value)),
            }
        }
    }

    #[test]
    fn overrides_and_params_arrive_as_they_were_written(
        text in "\\PC{0,12}['\"\\\\${}=, \t]{0,3}\\PC{0,12}",
    ) {
        let quoted = serde_json::to_string(&text).expect("a string");
        let source = format!(
            "{{\"template\": \"command\", \"params\": {{\"program\": \"p\", \"args\": [{quoted}]}}}}"
        );
        let arguments = parse(&source).expect("a text is an argument").entrypoint.arguments();
        prop_assert_eq!(arguments.last(), Some(&Argument::Literal(text.clone())));
        let source = format!(
            "{{\"template\": \"verl/grpo\", \"resources\": {{\"gpus_per_node\": 1}}, \
             \"params\": {{\"model\": \"/m\", \"train_files\": [\"/t\"]}}, \"overrides\": [{quoted}]}}"
        );
        let arguments = parse(&source).expect("an override is an argument").entrypoint.arguments();
        prop_assert_eq!(arguments.last(), Some(&Argument::Literal(text)));
    }

    #[test]
    fn numbers_in_arguments_arrive_as_written(
        argument in "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,9})?(e[-+]?[0-9]{1,3})?"
    ) {
        let source = format!("command: [x, {argument}]");
        let spec = parse(&source).expect("a number is an argument");
        prop_assert_eq!(spec.entrypoint.argv(), vec!["x".to_owned(), argument]);
    }
}
