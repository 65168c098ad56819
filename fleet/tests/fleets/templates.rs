//! Templates on real agents and real Ray: the program behind a template gets every argument as it
//! is meant, the facts of its gang filled in and the user's own words untouched.

use std::collections::BTreeMap;

use crate::support::{RAY, SHORT, TestResult, command_fleet, ray_fleet, write_program};
use anyhow::Context;
use gangline_fleet::fleet::Fleet;
use gangline_fleet::slots;
use serde_json::Value;

/// What no shell may see, no variable may replace, and no quoting may change.
const HOSTILE: [&str; 4] = ["$(id)", "$GANGLINE_NNODES", "a 'b' \"c\" \\", "{x: 1}"];

fn log(fleet: &Fleet, job: &str, name: &str) -> anyhow::Result<String> {
    let path = fleet.shared_root().join("jobs").join(job).join("logs/attempt-1").join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Waits until the log is copied: it comes after the job's end.
async fn copied(fleet: &Fleet, job: &str, name: &str) -> anyhow::Result<String> {
    for _ in 0..150 {
        if let Ok(text) = log(fleet, job, name) {
            return Ok(text);
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    log(fleet, job, name)
}

#[tokio::test]
async fn a26_torchrun_gets_its_rank_and_the_words_as_written() -> TestResult {
    let fleet = command_fleet(2).await?;
    let programs = tempfile::tempdir()?;
    write_program(&programs.path().join("torchrun"), "#!/bin/sh\nprintf '[%s]\\n' \"$@\"\n")?;
    let args = serde_json::to_string(&HOSTILE)?;
    let spec = format!(
        "name: words\ntemplate: torchrun\nresources: {{nnodes: 2, gpus_per_node: 0}}\n\
         params: {{script: my train.py, nproc_per_node: 1, args: {args}}}\n\
         env: {{PATH: \"{}:/usr/bin:/bin\"}}\n",
        programs.path().display()
    );
    let api = fleet.api()?;
    let job = api.submit(&spec).await?;
    let ended = api.wait_job(&job, &["SUCCEEDED", "FAILED"], SHORT).await?;
    assert_eq!(ended["state"], "SUCCEEDED", "{ended}");
    let mut ports = Vec::new();
    for rank in 0..2 {
        let words = copied(&fleet, &job, &format!("rank-{rank}.log")).await?;
        let mut expected = vec!["--nnodes=2".to_owned(), format!("--node-rank={rank}")];
        expected.extend(["my train.py"].into_iter().chain(HOSTILE).map(str::to_owned));
        for word in expected {
            assert!(words.contains(&format!("[{word}]\n")), "rank {rank}: {word} in\n{words}");
        }
        let port = words.lines().find(|line| line.starts_with("[--master-port="));
        ports.push(port.context("no master port")?.to_owned());
    }
    assert_eq!(ports[0], ports[1], "both ranks meet at one port");
    fleet.assert_clean().await
}

/// Stands in for verl: says what it was called with.
const WITNESS: &str = "import json, os, sys\n\
    names = [n for n in os.environ if n.startswith(('WANDB_', 'VERL_', 'TENSORBOARD_'))]\n\
    print('WITNESS ' + json.dumps({'argv': sys.argv[1:], 'env': {n: os.environ[n] for n in names}}))\n";

#[tokio::test]
async fn a26_verl_gets_its_configuration_through_ray() -> TestResult {
    let fleet = ray_fleet().await?;
    let slot = slots::heavy().await?;
    let fake = tempfile::tempdir()?;
    let package = fake.path().join("verl/trainer");
    std::fs::create_dir_all(&package)?;
    for directory in [&package, &fake.path().join("verl")] {
        std::fs::write(directory.join("__init__.py"), "")?;
    }
    std::fs::write(package.join("main_ppo.py"), WITNESS)?;
    let overrides: Vec<String> = HOSTILE.iter().map(|word| format!("+trainer.x={word}")).collect();
    let spec = format!(
        "name: qwen-grpo\ntemplate: verl/grpo\nresources: {{nnodes: 2, gpus_per_node: 1}}\n\
         params: {{model: /m/Qwen, train_files: [/d/a.parquet, /d/b.parquet]}}\n\
         overrides: {}\ncheckpoint: {{every: 7, keep: 2}}\n\
         tracking: {{wandb: {{project: curves}}, tensorboard: true}}\n\
         env: {{PYTHONPATH: \"{}\"}}\n",
        serde_json::to_string(&overrides)?,
        fake.path().display()
    );
    let api = fleet.api()?;
    let job = api.submit(&spec).await?;
    let ended = api.wait_job(&job, &["SUCCEEDED", "FAILED"], RAY).await?;
    assert_eq!(ended["state"], "SUCCEEDED", "{ended}");
    drop(slot);
    let text = copied(&fleet, &job, "driver.log").await?;
    let witness =
        text.lines().find_map(|line| line.split_once("WITNESS ")).context("no witness")?;
    let witness: Value = serde_json::from_str(witness.1)?;
    let argv: Vec<&str> =
        witness["argv"].as_array().context("argv")?.iter().filter_map(Value::as_str).collect();
    let directory = fleet.shared_root().join("jobs").join(&job);
    let checkpoints = format!("trainer.default_local_dir=\"{}/checkpoints\"", directory.display());
    for word in [
        "algorithm.adv_estimator=grpo",
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=1",
        "trainer.save_freq=7",
        "trainer.max_actor_ckpt_to_keep=2",
        "trainer.experiment_name=qwen-grpo",
        checkpoints.as_str(),
    ] {
        assert!(argv.contains(&word), "{word} in {argv:#?}");
    }
    // The user's own words are the last, in their order.
    let last: Vec<&str> = argv.iter().rev().take(HOSTILE.len()).rev().copied().collect();
    assert_eq!(last, overrides);
    let env: BTreeMap<String, String> = serde_json::from_value(witness["env"].clone())?;
    assert_eq!(env.get("WANDB_RUN_ID"), Some(&job));
    assert_eq!(env.get("WANDB_PROJECT").map(String::as_str), Some("curves"));
    assert_eq!(env.get("WANDB_MODE").map(String::as_str), Some("offline"));
    assert_eq!(env.get("WANDB_NAME").map(String::as_str), Some("qwen-grpo"));
    assert_eq!(env.get("WANDB_DIR").map(String::as_str), directory.to_str());
    let events = directory.join("tensorboard");
    assert_eq!(env.get("TENSORBOARD_DIR").map(String::as_str), events.to_str());
    for path in [directory.join("wandb"), events] {
        assert!(path.is_dir(), "{} was not made", path.display());
    }
    let metrics = directory.join("logs/metrics-1.jsonl");
    assert_eq!(env.get("VERL_FILE_LOGGER_PATH").map(String::as_str), metrics.to_str());
    fleet.assert_clean().await
}
