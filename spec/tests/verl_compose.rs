//! The verl templates against verl itself: Hydra composes verl's configuration with the arguments
//! of an expansion, and the values asked for must be the values found. A key that verl does not
//! have is refused by Hydra.
//!
//! The test makes a virtual environment below the target directory with verl's files and
//! hydra-core (about 50 MB, once). Without Python or a package index it says so and checks
//! nothing. `GANGLINE_VERL_VERSION` chooses another version of verl.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gangline_spec::{Entrypoint, expand_variables, parse};
use serde_json::{Value, json};

const VERL: &str = "0.9.1";

/// Python of an environment with verl and hydra-core, or why there is none.
fn python() -> Result<PathBuf, String> {
    let verl = std::env::var("GANGLINE_VERL_VERSION").unwrap_or_else(|_| VERL.to_owned());
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verl-{verl}"));
    let python = environment.join("bin/python");
    let complete = environment.join("complete");
    if complete.exists() {
        return Ok(python);
    }
    let verl = format!("verl=={verl}");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    let folder = environment.to_string_lossy().into_owned();
    run(Path::new("python3"), &["-m", "venv", "--clear", &folder])?;
    run(&python, &[&pip[..], &["--no-deps", &verl]].concat())?;
    run(&python, &[&pip[..], &["hydra-core==1.3.2"]].concat())?;
    std::fs::write(complete, "").map_err(|error| error.to_string())?;
    Ok(python)
}

fn run(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{arguments:?}: {}", text.lines().last().unwrap_or_default()))
}

/// What verl finds different from what `cases` expect.
fn problems(python: &Path, cases: &[Value]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verl_compose.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the environment has a Python");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(json!(cases).to_string().as_bytes()).expect("the script reads");
    drop(stdin);
    let output = child.wait_with_output().expect("the script ends");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("a list of texts")
}

/// A case from a spec: its expansion, with the variables of an imagined gang.
fn case(name: &str, source: &str, expect: Value) -> Value {
    let spec = parse(source).unwrap_or_else(|errors| panic!("{}", errors.render(name, source)));
    assert!(matches!(spec.entrypoint, Entrypoint::Template(_)), "{name}");
    let argv = expand_variables(&spec.entrypoint.arguments(), |name| {
        Some(match name {
            "GANGLINE_NNODES" => "4".to_owned(),
            "GANGLINE_GPUS_PER_NODE" => "8".to_owned(),
            "GANGLINE_CKPT_DIR" => "/ckpt/a b,{c}=[d]/x".to_owned(),
            "GANGLINE_NAME" => "0-name".to_owned(),
            "GANGLINE_PROJECT" => "rlhf".to_owned(),
            _ => "1".to_owned(),
        })
    });
    let argv = argv.unwrap();
    let module = argv.iter().position(|argument| argument == "-m").unwrap() + 1;
    let config = match argv[module].as_str() {
        "verl.trainer.main_ppo" => "ppo_trainer",
        "verl.trainer.sft_trainer" | "verl.trainer.sft_trainer_ray" => "sft_trainer_engine",
        other => panic!("{other}"),
    };
    json!({ "name": name, "config": config, "overrides": argv[module + 1..], "expect": expect })
}

fn example(name: &str, expect: Value) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/specs/{name}.yaml"));
    case(name, &std::fs::read_to_string(path).unwrap(), expect)
}

/// What every verl template sets, for the gang of [`case`].
fn with_common(mut expect: Value) -> Value {
    let common = json!({
        "trainer.nnodes": 4,
        "trainer.n_gpus_per_node": 8,
        "trainer.default_local_dir": "/ckpt/a b,{c}=[d]/x",
        "trainer.resume_mode": "auto",
        "trainer.experiment_name": "0-name",
    });
    for (key, value) in common.as_object().unwrap() {
        expect[key] = value.clone();
    }
    expect
}

#[test]
fn verl_finds_what_was_asked_for() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("SKIPPED: verl cannot be installed here: {reason}");
            return;
        }
    };
    let mut cases = vec![
        example("grpo", with_common(grpo())),
        example("ppo", with_common(ppo())),
        example("sft", with_common(sft())),
    ];
    cases.extend(every_param());
    cases.extend(odd_texts());
    let found = problems(&python, &cases);
    assert!(found.is_empty(), "{found:#?}");

    // The check can fail: a key that verl lacks, and a value that is not the one asked for.
    let source = "template: verl/grpo\nresources: {gpus_per_node: 1}\n\
                  params: {model: m, train_files: [/t]}\noverrides: [trainer.bogus=1]\n";
    let found = problems(&python, &[case("bogus", source, json!({}))]);
    assert!(found.len() == 1 && found[0].contains("trainer.bogus"), "{found:?}");
    let source = source.replace("[trainer.bogus=1]", "[trainer.save_freq=7]");
    let found = problems(&python, &[case("wrong", &source, json!({ "trainer.save_freq": 20 }))]);
    assert_eq!(found, ["wrong: trainer.save_freq is 7, not 20"]);
}

fn grpo() -> Value {
    json!({
        "algorithm.adv_estimator": "grpo",
        "data.train_files": ["/data/gsm8k/train.parquet", "/data/math/train.parquet"],
        "data.val_files": ["/data/gsm8k/test.parquet"],
        "data.train_batch_size": 1024,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 2048,
        "data.filter_overlong_prompts": true,
        "data.truncation": "error",
        "actor_rollout_ref.model.path": "/models/Qwen3-8B",
        "actor_rollout_ref.model.use_remove_padding": true,
        "actor_rollout_ref.model.enable_gradient_checkpointing": true,
        "actor_rollout_ref.actor.optim.lr": 1.0e-6,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
        "actor_rollout_ref.actor.use_dynamic_bsz": true,
        // Batches by tokens reach the other passes too.
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": true,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": true,
        "actor_rollout_ref.actor.use_kl_loss": true,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
        "actor_rollout_ref.rollout.n": 5,
        "trainer.save_freq": 20,
        "trainer.max_actor_ckpt_to_keep": 3,
        "trainer.logger": ["console", "file", "wandb"],
        "trainer.project_name": "rlhf",
        "trainer.total_epochs": 15,
        "trainer.critic_warmup": 0,
        "trainer.test_freq": 5,
    })
}

fn ppo() -> Value {
    json!({
        "algorithm.adv_estimator": "gae",
        "actor_rollout_ref.actor.optim.lr": 1.0e-6,
        "critic.model.path": "/models/Qwen3-8B",
        "critic.optim.lr": 1.0e-5,
        "critic.use_dynamic_bsz": true,
        "critic.model.use_remove_padding": true,
        "trainer.save_freq": 20,
        "trainer.max_actor_ckpt_to_keep": 3,
        "trainer.max_critic_ckpt_to_keep": 3,
        "trainer.logger": ["console", "file"],
        "trainer.project_name": "rlhf",
    })
}

fn sft() -> Value {
    json!({
        "data.train_files": ["/data/sft/train.parquet"],
        "data.val_files": ["/data/sft/val.parquet"],
        "data.messages_key": "messages",
        "engine.strategy": "fsdp",
        "engine.ulysses_sequence_parallel_size": 2,
        "model.path": "/models/Qwen3-8B",
        "model.lora_rank": 32,
        "model.lora_alpha": 16,
        "optim.lr": 1.0e-4,
        "trainer.save_freq": 500,
        "trainer.max_ckpt_to_keep": 2,
        "trainer.total_epochs": 2,
        "trainer.project_name": "rlhf",
    })
}

/// Each param that the examples leave out.
fn every_param() -> Vec<Value> {
    let rl = "model: org/m, train_files: [/t], val_files: [/v], test_freq: 9, \
              rollout: {temperature: 0.7}, lora: {rank: 8, alpha: 32}, offload: true, sp_size: 2, \
              total_steps: 77";
    let rl_expected = json!({
        "trainer.test_freq": 9,
        "actor_rollout_ref.rollout.temperature": 0.7,
        "actor_rollout_ref.model.lora_rank": 8,
        "actor_rollout_ref.model.lora_alpha": 32,
        "actor_rollout_ref.actor.fsdp_config.param_offload": true,
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": true,
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2,
        "trainer.total_training_steps": 77,
        "trainer.project_name": "p q",
        "trainer.logger": ["console", "file", "tensorboard", "mlflow"],
    });
    let mut ppo_expected = rl_expected.clone();
    ppo_expected["trainer.critic_warmup"] = json!(4);
    ppo_expected["critic.model.path"] = json!("org/m");
    let rest = "resources: {nnodes: 4, gpus_per_node: 8}\n\
                tracking: {tensorboard: true, mlflow: {uri: u, experiment: p q}}\n";
    let sft = "model: m, train_files: [/t], engine: veomni, sp_size: 2, launcher: ray, \
               train_batch_size: 64, max_length: 512, max_tokens_per_gpu: 4096, test_freq: 5, \
               total_steps: 9";
    let sft_expected = json!({
        "engine.ulysses_parallel_size": 2,
        "data.train_batch_size": 64,
        "data.max_length": 512,
        "data.max_token_len_per_gpu": 4096,
        "data.val_files": null,
        "optim.lr": 1.0e-5,
        "trainer.test_freq": 5,
        "trainer.total_training_steps": 9,
        "trainer.save_freq": 200,
        "trainer.max_ckpt_to_keep": 3,
    });
    let silent = json!({
        "trainer.val_before_train": false, "trainer.test_freq": -1, "data.val_files": ["/t"],
    });
    let minimal = "model: m, train_files: [/t]";
    let mut rewarded = with_common(silent.clone());
    rewarded["reward.custom_reward_function.path"] = json!("/r/a b.py");
    rewarded["reward.custom_reward_function.name"] = json!("score");
    let reward = "reward: {path: /r/a b.py, symbol: score}\n";
    let source = |template: &str, params: &str| {
        format!("template: verl/{template}\nparams: {{{params}}}\n{rest}")
    };
    vec![
        case("grpo, all", &source("grpo", rl), with_common(rl_expected)),
        case(
            "ppo, all",
            &source("ppo", &format!("{rl}, critic_warmup: 4")),
            with_common(ppo_expected),
        ),
        case("sft, all", &source("sft", sft), with_common(sft_expected)),
        case("grpo, minimal", &source("grpo", minimal), with_common(silent.clone())),
        case("reward", &(source("grpo", minimal) + reward), rewarded),
        case("ppo, minimal", &source("ppo", minimal), with_common(silent)),
        case("sft, minimal", &source("sft", minimal), with_common(json!({}))),
    ]
}

/// Texts that Hydra could take for something else arrive as they are, alone and in a list.
fn odd_texts() -> Vec<Value> {
    let texts = [
        "a b",
        " a ",
        "1e-6",
        "1",
        "true",
        "null",
        "nan",
        "a=b",
        "a,b",
        "[a]",
        "{a:b}",
        "a\"b",
        "a'b",
        "a\\b",
        "a\\\"b",
        "a\\\\\"b",
        "a\\",
        "a\\\\",
        "\"",
        "\\\"",
        "$HOME",
        "a#b",
        "a:b",
        "é",
        "a\\'b",
        "~/m",
        "-x",
        "/a/b-c.d_e",
        "a(b)",
        "a;b",
        "a%b",
        "x@y",
        "???x",
        "\\$x",
        "a|b",
        "$(x)",
        "`x`",
    ];
    let read = |text: &str| {
        let quoted = json!(text);
        let path = json!(format!("/{text}"));
        let source = format!(
            "{{template: verl/grpo, resources: {{gpus_per_node: 1}}, \
             params: {{model: {quoted}, train_files: [{path}, /x]}}}}"
        );
        let expect = json!({
            "actor_rollout_ref.model.path": text,
            "data.train_files": [format!("/{text}"), "/x"],
        });
        case(text, &source, expect)
    };
    texts.into_iter().map(read).collect()
}
