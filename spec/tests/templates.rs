//! Templates: what they expand to, what they refuse and where, and that what a user wrote arrives
//! unchanged.

use gangline_spec::{
    Argument, Code, Entrypoint, JobSpec, LauncherKind, SpecErrors, VariableError, expand_variables,
    parse, parse_resolved, parse_with_overrides, starter, templates,
};

const GRPO: &str = "\
template: verl/grpo
resources: {gpus_per_node: 8}
params:
  model: /models/m
  train_files: [/d/a.parquet]
";

fn spec(source: &str) -> JobSpec {
    parse(source).unwrap_or_else(|errors| panic!("{}", errors.render("x.yaml", source)))
}

fn texts(source: &str) -> Vec<String> {
    spec(source).entrypoint.argv()
}

/// The value of the last argument `KEY=...`, as Hydra takes it.
fn value(argv: &[String], key: &str) -> Option<String> {
    let values = argv.iter().filter_map(|argument| argument.split_once('='));
    values.filter(|(k, _)| *k == key).map(|(_, value)| value.to_owned()).next_back()
}

fn errors(source: &str) -> Vec<(String, String, u32, u32)> {
    let SpecErrors { errors, .. } = match parse(source) {
        Ok(spec) => panic!("accepted {source}: {spec:?}"),
        Err(errors) => errors,
    };
    let errors = errors.into_iter();
    errors
        .map(|e| (e.code.to_owned(), e.pointer, e.line.unwrap_or(0), e.column.unwrap_or(0)))
        .collect()
}

#[test]
fn params_reach_their_keys() {
    let source = "\
template: verl/grpo
resources: {nnodes: 4, gpus_per_node: 8}
params:
  model: /models/Qwen3-8B
  train_files: [/data/a b.parquet, \"/data/\\\"q\\\".parquet\"]
  val_files: [/data/v.parquet]
  rollout: {engine: sglang, tp: 2, n: 7, gpu_memory_utilization: 0.60, temperature: 1}
  train_batch_size: 1024
  lr: 1e-6
  lora: {rank: 16}
  offload: true
  total_epochs: 15
checkpoint: {every: 20, keep: 5}
";
    let argv = texts(source);
    assert_eq!(argv[..3], ["python3", "-m", "verl.trainer.main_ppo"]);
    let expected = [
        ("algorithm.adv_estimator", "grpo"),
        ("data.train_files", "[\"/data/a b.parquet\",\"/data/\\\"q\\\".parquet\"]"),
        ("data.val_files", "[\"/data/v.parquet\"]"),
        ("data.train_batch_size", "1024"),
        ("actor_rollout_ref.model.path", "/models/Qwen3-8B"),
        ("actor_rollout_ref.model.lora_rank", "16"),
        ("actor_rollout_ref.actor.optim.lr", "1e-6"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", "True"),
        ("actor_rollout_ref.rollout.name", "sglang"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", "2"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization", "0.60"),
        ("actor_rollout_ref.rollout.n", "7"),
        ("actor_rollout_ref.rollout.temperature", "1"),
        ("trainer.save_freq", "20"),
        ("trainer.max_actor_ckpt_to_keep", "5"),
        ("trainer.default_local_dir", "\"$GANGLINE_CKPT_DIR\""),
        ("trainer.resume_mode", "auto"),
        ("trainer.nnodes", "$GANGLINE_NNODES"),
        ("trainer.n_gpus_per_node", "$GANGLINE_GPUS_PER_NODE"),
        ("trainer.logger", "[\"console\",\"file\"]"),
        ("trainer.project_name", "$GANGLINE_PROJECT"),
        ("trainer.total_epochs", "15"),
    ];
    for (key, expected) in expected {
        assert_eq!(value(&argv, key).as_deref(), Some(expected), "{key}");
    }
    // What is not asked for is left to verl.
    for key in ["actor_rollout_ref.model.lora_alpha", "data.max_prompt_length", "critic.model.path"]
    {
        assert_eq!(value(&argv, key), None, "{key}");
    }
    let keys: Vec<&str> = argv.iter().filter_map(|a| Some(a.split_once('=')?.0)).collect();
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[index + 1..].contains(key), "{key} is given twice");
    }
}

#[test]
fn defaults_stand_in_where_a_spec_is_silent() {
    let argv = texts(GRPO);
    assert_eq!(value(&argv, "trainer.save_freq").as_deref(), Some("20"));
    assert_eq!(value(&argv, "trainer.max_actor_ckpt_to_keep").as_deref(), Some("3"));
    assert_eq!(value(&argv, "actor_rollout_ref.rollout.name").as_deref(), Some("vllm"));
    assert_eq!(value(&argv, "actor_rollout_ref.rollout.n").as_deref(), Some("5"));
    assert_eq!(value(&argv, "actor_rollout_ref.actor.optim.lr").as_deref(), Some("1.0e-6"));
    // Without validation files nothing is validated, and verl's own default is not reached.
    assert_eq!(value(&argv, "data.val_files").as_deref(), Some("[\"/d/a.parquet\"]"));
    assert_eq!(value(&argv, "trainer.val_before_train").as_deref(), Some("False"));
    let with_val = texts(&format!("{GRPO}  val_files: [/d/v.parquet]\n"));
    assert_eq!(value(&with_val, "trainer.val_before_train"), None);
}

#[test]
fn the_critic_falls_back_to_the_model() {
    let ppo = GRPO.replace("grpo", "ppo");
    let argv = texts(&ppo);
    assert_eq!(value(&argv, "algorithm.adv_estimator").as_deref(), Some("gae"));
    assert_eq!(value(&argv, "critic.model.path").as_deref(), Some("/models/m"));
    let argv = texts(&format!("{ppo}  critic_model: org/critic\ncheckpoint: {{keep: 7}}\n"));
    assert_eq!(value(&argv, "critic.model.path").as_deref(), Some("org/critic"));
    assert_eq!(value(&argv, "trainer.max_actor_ckpt_to_keep").as_deref(), Some("7"));
    assert_eq!(value(&argv, "trainer.max_critic_ckpt_to_keep").as_deref(), Some("7"));
}

#[test]
fn sft_is_started_by_torchrun_or_by_ray() {
    let sft = GRPO.replace("grpo", "sft");
    let by_torchrun = spec(&format!("{sft}  sp_size: 2\ncheckpoint: {{keep: 2}}\n"));
    assert_eq!(by_torchrun.launcher.kind, LauncherKind::Torchrun);
    let argv = by_torchrun.entrypoint.argv();
    assert_eq!(argv[0], "torchrun");
    assert!(argv.contains(&"--node-rank=$GANGLINE_NODE_RANK".to_owned()));
    assert!(argv.contains(&"verl.trainer.sft_trainer".to_owned()));
    assert_eq!(value(&argv, "engine.ulysses_sequence_parallel_size").as_deref(), Some("2"));
    assert_eq!(value(&argv, "trainer.max_ckpt_to_keep").as_deref(), Some("2"));
    assert_eq!(value(&argv, "trainer.max_actor_ckpt_to_keep"), None);

    let by_ray = spec(&format!("{sft}  launcher: ray\n  engine: veomni\n  sp_size: 2\n"));
    assert_eq!(by_ray.launcher.kind, LauncherKind::Ray);
    let argv = by_ray.entrypoint.argv();
    assert_eq!(argv[..3], ["python3", "-m", "verl.trainer.sft_trainer_ray"]);
    assert_eq!(value(&argv, "engine").as_deref(), Some("veomni"));
    assert_eq!(value(&argv, "optim").as_deref(), Some("veomni"));
    assert_eq!(value(&argv, "engine.ulysses_parallel_size").as_deref(), Some("2"));
}

#[test]
fn overrides_come_last_and_are_never_filled_in() {
    let source =
        format!("{GRPO}overrides: [trainer.nnodes=$GANGLINE_NNODES, 'a=\"x y\"', +b=1e-6]\n");
    let Entrypoint::Template(expansion) = spec(&source).entrypoint else {
        panic!("no template");
    };
    assert_eq!(expansion.template, "verl/grpo@1");
    assert_eq!(expansion.overrides, ["trainer.nnodes=$GANGLINE_NNODES", "a=\"x y\"", "+b=1e-6"]);
    let last = &expansion.arguments[expansion.arguments.len() - 3..];
    let literal = |text: &str| Argument::Literal(text.to_owned());
    assert_eq!(
        last,
        [literal("trainer.nnodes=$GANGLINE_NNODES"), literal("a=\"x y\""), literal("+b=1e-6")]
    );
    let lookup = |name: &str| Some(format!("<{name}>"));
    let argv = expand_variables(&expansion.arguments, lookup).unwrap();
    assert!(argv.contains(&"trainer.nnodes=<GANGLINE_NNODES>".to_owned()));
    assert_eq!(argv[argv.len() - 3..], expansion.overrides[..]);
}

#[test]
fn what_looks_like_a_variable_in_a_param_stays() {
    let source = GRPO.replace("/models/m", "$GANGLINE_NAME");
    let arguments = spec(&source).entrypoint.arguments();
    let filled = expand_variables(&arguments, |name| Some(format!("<{name}>"))).unwrap();
    let key = "actor_rollout_ref.model.path";
    assert_eq!(value(&filled, key).as_deref(), Some("\"$GANGLINE_NAME\""));
}

#[test]
fn only_whole_variables_of_the_list_are_filled_in() {
    let fill = |text: &str| [Argument::Fill(text.to_owned())];
    let lookup = |name: &str| match name {
        "GANGLINE_NNODES" => Some("4".to_owned()),
        "GANGLINE_NAME" => Some("$GANGLINE_NNODES".to_owned()),
        _ => None,
    };
    let filled = |text: &str| expand_variables(&fill(text), lookup).map(|argv| argv.concat());
    assert_eq!(filled("n=$GANGLINE_NNODES"), Ok("n=4".to_owned()));
    assert_eq!(filled("n=${GANGLINE_NNODES}x"), Ok("n=4x".to_owned()));
    // A value is not searched again.
    assert_eq!(filled("$GANGLINE_NAME/"), Ok("$GANGLINE_NNODES/".to_owned()));
    let unknown = |name: &str| Err(VariableError::Unknown(name.to_owned()));
    assert_eq!(filled("$GANGLINE_NNODESX"), unknown("GANGLINE_NNODESX"));
    assert_eq!(filled("$HOME"), unknown("HOME"));
    assert_eq!(filled("a$"), unknown(""));
    assert_eq!(
        filled("$GANGLINE_CKPT_DIR"),
        Err(VariableError::Unset("GANGLINE_CKPT_DIR".to_owned()))
    );
}

#[test]
fn every_variable_of_every_template_is_filled_in() {
    for template in templates() {
        let params = match template.name.as_str() {
            "command" => "{program: p}",
            "ray" | "torchrun" => "{script: s.py, args: [a, 1, '--x=$y']}",
            _ => "{model: /m, train_files: [/t]}",
        };
        let source = format!(
            "template: {}\nparams: {params}\nresources: {{gpus_per_node: 1}}\n",
            template.full_name()
        );
        let arguments = spec(&source).entrypoint.arguments();
        let argv = expand_variables(&arguments, |_| Some("V".to_owned())).unwrap();
        assert!(argv.iter().all(|argument| !argument.contains("$GANGLINE")), "{argv:?}");
    }
}

#[test]
fn the_generic_templates_pass_arguments_on() {
    let args = "[a b, '*', 1.50, '', \"two\\nlines\", '$HOME ${x}']";
    let expected = ["a b", "*", "1.50", "", "two\nlines", "$HOME ${x}"];
    let command = spec(&format!("template: command\nparams: {{program: echo, args: {args}}}"));
    assert_eq!(command.launcher.kind, LauncherKind::Command);
    assert_eq!(command.entrypoint.argv()[0], "echo");
    assert_eq!(command.entrypoint.argv()[1..], expected);
    let ray = spec(&format!("template: ray\nparams: {{script: s.py, args: {args}}}"));
    assert_eq!(ray.launcher.kind, LauncherKind::Ray);
    assert_eq!(ray.entrypoint.argv()[..2], ["python3", "s.py"]);
    assert_eq!(ray.entrypoint.argv()[2..], expected);
    let torchrun = "template: torchrun\nresources: {gpus_per_node: 1}\n";
    let torchrun = spec(&format!("{torchrun}params: {{script: s.py, args: {args}}}"));
    assert_eq!(torchrun.launcher.kind, LauncherKind::Torchrun);
    let argv = expand_variables(&torchrun.entrypoint.arguments(), |_| Some("1".into())).unwrap();
    assert_eq!(
        argv[..7],
        [
            "torchrun",
            "--nnodes=1",
            "--node-rank=1",
            "--master-addr=1",
            "--master-port=1",
            "--nproc-per-node=1",
            "--max-restarts"
        ]
    );
    assert_eq!(argv[argv.len() - expected.len()..], expected);
}

#[test]
fn a_wrong_param_is_reported_at_its_place() {
    let head = "resources: {gpus_per_node: 8}\ntemplate: verl/grpo\n";
    let base = "model: /m, train_files: [/t]";
    // (the params, code, pointer, column on line 3)
    let cases = [
        ("modle: /m, train_files: [/t], model: /m", "E0101", "/params/modle", 10),
        ("model: /m, train_files: /t", "E0103", "/params/train_files", 34),
        ("model: /m, train_files: []", "E0103", "/params/train_files", 34),
        ("model: /m, train_files: [t]", "E0103", "/params/train_files/0", 35),
        ("model: [/m], train_files: [/t]", "E0103", "/params/model", 17),
        (&format!("{base}, lr: fast"), "E0103", "/params/lr", 44),
        (&format!("{base}, lr: 2"), "E0103", "/params/lr", 44),
        (&format!("{base}, lr: .nan"), "E0103", "/params/lr", 44),
        (&format!("{base}, train_batch_size: 1.5"), "E0103", "/params/train_batch_size", 58),
        (&format!("{base}, train_batch_size: 0"), "E0103", "/params/train_batch_size", 58),
        (&format!("{base}, offload: 1"), "E0103", "/params/offload", 49),
        (&format!("{base}, rollout: 3"), "E0103", "/params/rollout", 49),
        (&format!("{base}, rollout: {{tq: 3}}"), "E0101", "/params/rollout/tq", 50),
        (&format!("{base}, rollout: {{engine: hf}}"), "E0103", "/params/rollout/engine", 58),
        (&format!("{base}, rollout: {{n: -1}}"), "E0103", "/params/rollout/n", 53),
        ("model: 'a${b}', train_files: [/t]", "E0103", "/params/model", 17),
    ];
    for (params, code, pointer, column) in cases {
        let found = errors(&format!("{head}params: {{{params}}}\n"));
        let expected = (code.to_owned(), pointer.to_owned(), 3, column);
        assert_eq!(found, [expected], "{params}");
    }
}

#[test]
fn a_missing_param_is_named() {
    let found = parse("template: verl/sft\nresources: {gpus_per_node: 1}\n").unwrap_err();
    let found: Vec<(&str, &str)> =
        found.errors.iter().map(|e| (e.code, e.pointer.as_str())).collect();
    assert_eq!(found, [(Code::MISSING, "/params/model"), (Code::MISSING, "/params/train_files")]);
}

#[test]
fn suggestions() {
    let source = "template: verl/gpro\nparams: {}\n";
    let found = parse(source).unwrap_err();
    insta::assert_snapshot!(found.render("x.yaml", source), @r#"
    error[E0103]: there is no template `verl/gpro`
     --> x.yaml:1:11
      |
    1 | template: verl/gpro
      |           ^ did you mean `verl/grpo`?
    "#);
    let source = format!("{GRPO}  ppo_minibatch_size: 1\n  rollout: {{engine: vlm}}\n");
    let found = parse(&source).unwrap_err();
    insta::assert_snapshot!(found.render("x.yaml", &source), @r#"
    error[E0101]: unknown field `ppo_minibatch_size` in params
     --> x.yaml:6:3
      |
    6 |   ppo_minibatch_size: 1
      |   ^ did you mean `ppo_mini_batch_size`?

    error[E0103]: `params.rollout.engine` cannot be `vlm`
     --> x.yaml:7:21
      |
    7 |   rollout: {engine: vlm}
      |                     ^ did you mean `vllm`?
    "#);
}

#[test]
fn what_a_template_cannot_do_is_refused() {
    // (the spec, code, pointer)
    let cases = [
        ("template: verl/none", "E0103", "/template"),
        ("template: verl/grpo@9", "E0103", "/template"),
        ("template: [a]", "E0103", "/template"),
        ("run: x\nparams: {a: b}", "E0107", "/params"),
        ("run: x\noverrides: [a=b]", "E0107", "/overrides"),
        ("run: x\nexpansion: [a]", "E0107", "/expansion"),
        ("run: x\ntemplate: ray", "E0107", "/template"),
        ("command: [x]\ntemplate: ray", "E0107", "/template"),
        ("run: x\ncheckpoint: {every: 5}", "E0102", "/checkpoint/every"),
        (
            "template: ray\nparams: {script: a}\ncheckpoint: {every: 5}",
            "E0107",
            "/checkpoint/every",
        ),
        ("template: ray\nparams: {script: a}\noverrides: [a=b]", "E0107", "/overrides"),
        (
            "template: ray\nparams: {script: a}\nlauncher: {type: command}",
            "E0107",
            "/launcher/type",
        ),
        (
            "template: verl/grpo\nparams: {model: /m, train_files: [/t]}\n\
             resources: {gpus_per_node: 1}\ncheckpoint: {dir: '/a\"b'}",
            "E0103",
            "/checkpoint/dir",
        ),
        (
            "template: verl/grpo\nparams: {model: /m, train_files: [/t]}",
            "E0103",
            "/resources/gpus_per_node",
        ),
        ("template: torchrun\nparams: {script: a.py}", "E0103", "/resources/gpus_per_node"),
        (
            "template: verl/grpo\nparams: {model: /m, train_files: [/t]}\n\
             resources: {gpus_per_node: 1}\n\
             tracking: {wandb: {project: a}, mlflow: {uri: u, experiment: b}}",
            "E0107",
            "/tracking/mlflow/experiment",
        ),
    ];
    for (source, code, pointer) in cases {
        let found = errors(source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        assert_eq!((found[0].0.as_str(), found[0].1.as_str()), (code, pointer), "{source}");
    }
    for (text, code) in [("0", "E0103"), ("-1", "E0103"), ("x", "E0103"), ("1.5", "E0103")] {
        let found = errors(&format!("{GRPO}checkpoint: {{every: {text}, keep: {text}}}\n"));
        let codes: Vec<&str> = found.iter().map(|(code, ..)| code.as_str()).collect();
        assert_eq!(codes, [code, code], "{text}");
    }
}

#[test]
fn trackers_reach_the_loggers_and_the_project() {
    let argv = texts(&format!(
        "{GRPO}tracking: {{wandb: {{project: my rl}}, tensorboard: true, mlflow: {{uri: u}}}}\n"
    ));
    let loggers = "[\"console\",\"file\",\"wandb\",\"tensorboard\",\"mlflow\"]";
    assert_eq!(value(&argv, "trainer.logger").as_deref(), Some(loggers));
    assert_eq!(value(&argv, "trainer.project_name").as_deref(), Some("\"my rl\""));
    let disabled = texts(&format!("{GRPO}tracking: {{wandb: {{mode: disabled}}}}\n"));
    assert_eq!(value(&disabled, "trainer.logger").as_deref(), Some("[\"console\",\"file\"]"));
}

#[test]
fn a_recorded_expansion_outlives_its_template() {
    let recorded = spec(GRPO).canonical_json().replace("verl/grpo@1", "verl/gone@3");
    let read = parse_resolved(&recorded).unwrap();
    assert_eq!(read.entrypoint.arguments(), spec(GRPO).entrypoint.arguments());
    assert_eq!(read.canonical_json(), recorded);

    let cases = [
        ("template: a@1\nexpansion: [x, {fill: $HOME}]", "E0103", "/expansion/1"),
        ("template: a@1\nexpansion: [x, {fil: a}]", "E0101", "/expansion/1/fil"),
        ("template: a@1\nexpansion: []", "E0103", "/expansion"),
        ("template: a\nexpansion: [x]", "E0103", "/template"),
        ("template: a@0\nexpansion: [x]", "E0103", "/template"),
    ];
    for (source, code, pointer) in cases {
        let found = errors(source);
        assert_eq!((found[0].0.as_str(), found[0].1.as_str()), (code, pointer), "{found:?}");
    }
}

#[test]
fn processes_without_gpus_are_counted_by_hand() {
    let argv = texts("template: torchrun\nparams: {script: a.py, nproc_per_node: 4}\n");
    assert!(argv.windows(2).any(|pair| pair == ["--nproc-per-node", "4"]), "{argv:?}");
}

/// A person who edits the params of a printed plan must not get the old arguments.
#[test]
fn an_edited_plan_is_not_run_as_it_was() {
    let planned = spec(GRPO).to_yaml();
    assert_eq!(parse_with_overrides(&planned, &[]), Ok(spec(GRPO)));
    let edited = planned.replace("model: /models/m", "model: /models/other");
    assert_ne!(edited, planned);
    let found = parse_with_overrides(&edited, &[]).unwrap_err();
    assert_eq!(
        (found.errors[0].code, found.errors[0].pointer.as_str()),
        (Code::CONFLICT, "/expansion")
    );
    let set = [("checkpoint.every".to_owned(), "7".to_owned())];
    assert!(parse_with_overrides(&planned, &set).is_err());
    // The record of a job is read as it was made, whatever this version would make of it.
    assert!(parse_resolved(&edited).is_ok());
}

#[test]
fn params_can_be_set_from_the_command_line() {
    let set = [("params.rollout.tp", "4"), ("params.lr", "2e-6"), ("checkpoint.every", "7")];
    let set = set.map(|(path, value)| (path.to_owned(), value.to_owned()));
    let argv = parse_with_overrides(GRPO, &set).unwrap().entrypoint.argv();
    let tp = "actor_rollout_ref.rollout.tensor_model_parallel_size";
    assert_eq!(value(&argv, tp).as_deref(), Some("4"));
    assert_eq!(value(&argv, "actor_rollout_ref.actor.optim.lr").as_deref(), Some("2e-6"));
    assert_eq!(value(&argv, "trainer.save_freq").as_deref(), Some("7"));

    let set = [("params.rollout.tq".to_owned(), "4".to_owned())];
    let found = parse_with_overrides(GRPO, &set).unwrap_err();
    assert!(found.errors[0].message.contains("from override"), "{found}");
}

/// Every line of a starter is usable: as it stands, and with its comments made fields.
#[test]
fn a_spec_to_begin_with_is_valid() {
    assert!(matches!(spec(&starter(None)).entrypoint, Entrypoint::Script(_)));
    for template in templates() {
        let text = starter(Some(template));
        assert!(text.contains("CHANGE-ME"), "{text}");
        assert!(matches!(spec(&text).entrypoint, Entrypoint::Template(_)));
        let lines = text.lines().map(|line| match line.trim_start().strip_prefix("# ") {
            Some(field) if field.split(':').next().is_some_and(|key| !key.contains(' ')) => {
                line.replacen("# ", "", 1)
            }
            _ => line.to_owned(),
        });
        let filled = lines.collect::<Vec<_>>().join("\n") + "\n";
        assert_ne!(filled, text);
        spec(&filled);
    }
}
