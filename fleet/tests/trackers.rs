//! The field `tracking` against the trackers themselves: one Ray job tells Weights & Biases (offline),
//! an MLflow server and TensorBoard its loss, and names no run, project, server or directory. What
//! they hold afterwards is read back from their files and from the server.
//!
//! It runs only when it is named, because its environment takes 1.2 GB:
//! `cargo test -p gangline-fleet --test trackers -- --nocapture`.

#[path = "fleets/support/mod.rs"]
mod support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gangline_fleet::api::Api;
use gangline_fleet::build::workspace;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::process::Process;
use gangline_fleet::ray_env::TRACKERS;
use gangline_fleet::slots;
use reqwest::Method;
use serde_json::{Value, json};
use support::{RAY, TestResult, built};

/// A first import of MLflow on a busy machine takes its time.
const START: Duration = Duration::from_secs(120);

/// A tracking server on loopback; it ends with this value.
struct Mlflow {
    /// A plain client of HTTP will do.
    api: Api,
    process: Process,
}

impl Mlflow {
    async fn start(python: &Path, directory: &Path) -> anyhow::Result<Mlflow> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = Command::new(python);
        command
            .args(["-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"])
            .args(["--port", &port.to_string()])
            .arg("--backend-store-uri")
            .arg(format!("sqlite:///{}", directory.join("runs.db").display()))
            .arg("--artifacts-destination")
            .arg(directory.join("artifacts"))
            .env("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
            .env("MLFLOW_DISABLE_TELEMETRY", "true")
            .current_dir(directory);
        let log = directory.join("server.log");
        let process = Process::start("mlflow", &mut command, &log)?;
        let api = Api::new(format!("http://127.0.0.1:{port}"), String::new())?;
        let server = Mlflow { api, process };
        let until = Instant::now() + START;
        loop {
            let answer = server.api.send(Method::GET, "/health", &[], None).await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(server);
            }
            if Instant::now() >= until {
                bail!("mlflow does not answer\n{}", std::fs::read_to_string(&log)?);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.api.get(&format!("/api/2.0/mlflow/{path}")).await
    }

    async fn search(&self, wanted: &Value) -> anyhow::Result<Value> {
        let headers = [("content-type", "application/json")];
        let path = "/api/2.0/mlflow/runs/search";
        let (status, answer) = self.api.post(path, &headers, &wanted.to_string()).await?;
        anyhow::ensure!(status == 200, "{status}: {answer}");
        Ok(answer)
    }
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        // Its worker ends with it; what cannot be ended here is the next run's to see.
        let _ = self.process.terminate(Duration::from_secs(10));
    }
}

/// The files below `directory` whose names match.
fn files(directory: &Path, matches: &dyn Fn(&str) -> bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        if matches(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[tokio::test]
async fn trackers_hold_what_the_job_told_them() -> TestResult {
    let binaries = built().await?;
    let python = TRACKERS.python(&binaries.target, &|text| eprintln!("{text}")).await?;
    let directory = tempfile::tempdir()?;
    let server = Mlflow::start(&python, directory.path()).await?;
    let slot = slots::heavy().await?;
    let options = FleetOptions { python: Some(python.clone()), ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries, options).await?;
    fleet.add_agent(AgentOptions::head("head")).await?;
    fleet.add_agent(AgentOptions::worker("a", 0)).await?;

    let programs = workspace().join("fleet/tests/trackers");
    let spec = format!(
        "name: qwen-sft\nproject: default\nresources: {{nnodes: 1}}\n\
         tracking: {{wandb: {{project: curves}}, tensorboard: true, mlflow: {{uri: '{}'}}}}\n\
         env: {{MLFLOW_DISABLE_TELEMETRY: 'true'}}\n\
         command: [{}, {}/train.py]\n",
        server.api.base,
        python.display(),
        programs.display()
    );
    let api = fleet.api()?;
    let job = api.submit(&spec).await?;
    let ended = api.wait_job(&job, &["SUCCEEDED", "FAILED"], RAY).await?;
    assert_eq!(ended["state"], "SUCCEEDED", "{ended}\n{}", api.logs(&job, "").await?);
    drop(slot);
    let own = fleet.shared_root().join("jobs").join(&job);

    // Weights & Biases: an offline run with the job's id, its name, and the project of the spec.
    let suffix = format!("-{job}");
    let runs = files(&own.join("wandb"), &|name| {
        name.starts_with("offline-run-") && name.ends_with(&suffix)
    })?;
    let [run] = runs.as_slice() else { bail!("wandb runs: {runs:?}") };
    let read = Command::new(&python)
        .arg(programs.join("read_wandb.py"))
        .arg(run.join(format!("run-{job}.wandb")))
        .output()?;
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let run: Value = serde_json::from_slice(&read.stdout)?;
    eprintln!("wandb: {run}");
    let losses = [0.5, 0.25, 0.125];
    assert_eq!(run, json!({ "id": job, "name": "qwen-sft", "project": "curves", "loss": losses }));

    // MLflow: a run in the experiment of the job's project, with the job's id as name and tag.
    let path = "experiments/get-by-name?experiment_name=default";
    let experiment = server.get(path).await?;
    let wanted = json!({
        "experiment_ids": [experiment["experiment"]["experiment_id"]],
        "filter": format!("tags.`gangline.job_id` = '{job}'"),
    });
    let found = server.search(&wanted).await?;
    eprintln!("mlflow: {}", found["runs"][0]["info"]);
    assert_eq!(found["runs"].as_array().map(Vec::len), Some(1), "{found}");
    let info = &found["runs"][0]["info"];
    assert_eq!((&info["run_name"], &info["status"]), (&json!(job), &json!("FINISHED")));
    let id = info["run_id"].as_str().context("no id")?;
    let path = format!("metrics/get-history?run_id={id}&metric_key=loss");
    let history = server.get(&path).await?;
    let values: Vec<Option<f64>> = history["metrics"]
        .as_array()
        .context("no metrics")?
        .iter()
        .map(|metric| metric["value"].as_f64())
        .collect();
    assert_eq!(values, losses.map(Some));

    // TensorBoard: a file of events in the directory that the job was told.
    let events = files(&own.join("tensorboard"), &|name| name.starts_with("events.out.tfevents."))?;
    let [events] = events.as_slice() else { bail!("events: {events:?}") };
    let bytes = std::fs::read(events)?;
    eprintln!("tensorboard: {} bytes", bytes.len());
    assert!(bytes.windows(4).any(|window| window == b"loss"), "{}", events.display());
    fleet.assert_clean().await
}
