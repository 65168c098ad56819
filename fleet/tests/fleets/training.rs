//! Steps of real processes: how far a training is, that it goes on under another attempt, and that one
//! that hangs is told of.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::support::endpoint::{CANARY, Endpoint};
use crate::support::{SHORT, TestResult, built};
use anyhow::Context;
use gangline_common::time::{Timestamp, wall_text};
use gangline_fleet::build::workspace;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

async fn fleet_with_gpus() -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    fleet.add_agent(AgentOptions::worker("w0", 2)).await?;
    fleet.add_agent(AgentOptions::worker("w1", 2)).await?;
    Ok(fleet)
}

/// A gang of two whose rank 0 writes steps as verl does. `script` is what comes then, on every rank.
fn spec(name: &str, hang: &str, script: &str) -> String {
    format!(
        "name: {name}\nresources: {{nnodes: 2, gpus_per_node: 2}}\nlauncher: {{type: command}}\n\
         {hang}run: |\n  if [ $GANGLINE_NODE_RANK = 0 ]; then\n    for n in 1 2 3 4 5 6 7 8; do\n      \
         echo \"step:$n - actor/pg_loss:0.$n - lr:1e-06\"\n      sleep 1\n    done\n  fi\n  {script}\n"
    )
}

/// Three ranks, each of which says its own steps; those of rank 2 take longer, as it says.
const SLOW: &str = "name: slow\nresources: {nnodes: 3, gpus_per_node: 0}\n\
     launcher: {type: command}\nhang: {warn_after: 4s}\nrun: |\n  \
     [ $GANGLINE_NODE_RANK = 2 ] && took=1.6 || took=1.0\n  \
     for n in $(seq 1 600); do echo \"step:$n - timing_s/step:$took\"; sleep 0.5; done\n";

/// Waits until something of a job is so.
async fn until(
    fleet: &Fleet,
    path: &str,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let end = Instant::now() + 2 * SHORT;
    loop {
        let answer = fleet.api()?.get(path).await?;
        if is_so(&answer) {
            return Ok(answer);
        }
        anyhow::ensure!(Instant::now() < end, "{what}: {answer}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// It is quiet for five seconds before that is said, unless `GANGLINE_WARN_AFTER_S` says another number;
/// the default of specs is 240.
#[tokio::test]
async fn a_rank_that_hangs_is_told_of_and_its_steps_are_there() -> TestResult {
    let endpoint = Endpoint::default();
    endpoint.is_well.store(true, Ordering::Relaxed);
    let url = endpoint.start().await?;
    let mut fleet = fleet_with_gpus().await?;
    for name in ["c0", "c1", "c2"] {
        fleet.add_agent(AgentOptions::worker(name, 0)).await?;
    }
    let api = fleet.api()?;
    let body = json!({ "url": url, "key": CANARY, "events": ["job.*"] }).to_string();
    let (status, answer) = api.put("/api/v1/webhooks/ops?fleet=true", &body).await?;
    anyhow::ensure!(status == 200, "{answer}");

    let go_on = fleet.path("go-on");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.1; done; [ $GANGLINE_NODE_RANK = 1 ] || echo 'step:9 - \
         actor/pg_loss:0.9'; sleep 600",
        go_on.display()
    );
    let quiet_s = match std::env::var("GANGLINE_WARN_AFTER_S") {
        Ok(text) => text.parse().context("GANGLINE_WARN_AFTER_S")?,
        Err(_) => 5,
    };
    let hang = format!("hang: {{warn_after: {quiet_s}s, after: 20m}}\n");
    let job = api.submit(&spec("hangs", &hang, &script)).await?;
    let began = Instant::now();
    let slow = api.submit(SLOW).await?;
    sleep(Duration::from_secs(quiet_s)).await;
    endpoint.until("job.stalled", &job).await?;
    println!("a stall was told {:?} after the submission", began.elapsed());
    let told = endpoint.lock().clone();
    let told = told.iter().find(|event| event["kind"] == "job.stalled").context("no event")?;
    let reason = told["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("no step after 8") && reason.contains("4 GPUs"), "{reason}");

    // How far it is, that it has stalled, and its steps.
    let path = format!("/api/v1/jobs/{job}");
    let view = until(&fleet, &path, "stalled", |view| view["stalled"].is_string()).await?;
    assert_eq!(view["progress"]["step"], 8, "{view}");
    let step_time = view["progress"]["step_time_s"].as_f64().context("no step time")?;
    assert!(step_time > 0.0, "{view}");
    let series = api.get(&format!("{path}/series?names=actor/pg_loss")).await?;
    assert_eq!(series["steps"], json!([1, 2, 3, 4, 5, 6, 7, 8]), "{series}");
    assert_eq!(series["names"], json!(["actor/pg_loss", "lr"]));
    assert_eq!(series["values"]["actor/pg_loss"][7], 0.8);
    assert_eq!(series["values"].as_object().map(serde_json::Map::len), Some(1));
    let metrics = page(&fleet).await?;
    for line in ["gangline_job_step", "gangline_job_stalled"] {
        let expected =
            format!("{line}{{hpc_job=\"{job}\"}} {}", if line.ends_with("step") { 8 } else { 1 });
        assert!(metrics.contains(&expected), "{expected} in {metrics}");
    }

    // It goes on.
    std::fs::write(&go_on, "")?;
    endpoint.until("job.resumed", &job).await?;
    let view = until(&fleet, &path, "resumed", |view| view["stalled"].is_null()).await?;
    assert_eq!(view["progress"]["step"], 9, "{view}");
    let cursor = series["cursor"].as_str().context("no cursor")?;
    let news = api.get(&format!("{path}/series?after={cursor}")).await?;
    assert_eq!((&news["steps"], &news["reset"]), (&json!([9]), &json!(false)), "{news}");

    // Of another job one rank is slow, and was all the while.
    endpoint.until("job.straggler", &slow).await?;
    let path = format!("/api/v1/jobs/{slow}");
    let view = until(&fleet, &path, "slow", |view| view["stragglers"][0].is_object()).await?;
    let found = &view["stragglers"][0];
    assert_eq!((&found["rank"], &view["stragglers"][1]), (&json!(2), &Value::Null), "{view}");
    let text = found["text"].as_str().context("no text")?;
    assert!(text.contains("a step takes 1.60 s, 1.00 s on the 2 others, for "), "{text}");
    let why = api.get(&format!("{path}/why")).await?;
    let said = why["stragglers"][0].as_str().unwrap_or_default();
    assert!(said.starts_with("rank 2 on c"), "{why}");
    assert!(view["history"].to_string().contains("rank 2 on c"), "{view}");
    api.stop(&slow).await?;
    api.wait_job(&slow, &["CANCELLED"], SHORT).await?;

    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    let kinds: Vec<String> =
        endpoint.lock().iter().map(|event| event["kind"].to_string()).collect();
    assert!(!kinds.contains(&"\"job.hung\"".to_owned()), "{kinds:?}");
    curves_in_files(&fleet).await?;
    fleet.assert_clean().await
}

/// What verl's file logger, TensorBoard's writer and W&B have written is there beside the steps of the log,
/// and says nothing of steps that the training has not come to.
async fn curves_in_files(fleet: &Fleet) -> TestResult {
    let api = fleet.api()?;
    // `loss` at steps 1 and 2, `acc` at step 2.
    let events = workspace().join("agent/src/supervisor/curves/events.out.tfevents.sample");
    // `loss` at steps 1 to 3, `actor/acc` and `nested.a` at step 2.
    let run = workspace().join("training/src/runs/run-sample.wandb");
    let script = format!(
        "echo 'step:1 - lr:0.5'; echo 'step:2 - lr:0.25'\n\
         echo '{{\"step\": 2, \"data\": {{\"critic/score\": 0.75, \"kl\": NaN}}}}' \
         >> $VERL_FILE_LOGGER_PATH\n\
         mkdir -p outputs/2026-11-24/08-40-50\n\
         echo 'hydra says so' > outputs/2026-11-24/08-40-50/main_ppo.log\n\
         mkdir $TENSORBOARD_DIR/val; cat {} > $TENSORBOARD_DIR/val/events.out.tfevents.1.host\n\
         run=$WANDB_DIR/wandb/offline-run-20261123_084050-$WANDB_RUN_ID; mkdir -p $run\n\
         cat {} > $run/run-$WANDB_RUN_ID.wandb\n\
         until [ -e {} ]; do sleep 0.1; done",
        events.display(),
        run.display(),
        fleet.path("enough").display(),
    );
    let spec = json!({
        "name": "curves", "launcher": {"type": "command"}, "command": ["sh", "-c", script],
        "tracking": {"tensorboard": true, "wandb": {"mode": "offline"}},
    });
    let job = api.submit(&spec.to_string()).await?;
    let names =
        ["actor/acc", "critic/score", "kl", "loss", "lr", "nested.a", "val/acc", "val/loss"];
    let path = format!("/api/v1/jobs/{job}/series");
    let all = |series: &Value| series["names"] == json!(names);
    let series = until(fleet, &path, "curves of files", all).await?;
    assert_eq!(series["steps"], json!([1, 2]), "{series}");
    assert_eq!(series["values"]["critic/score"], json!([null, 0.75]));
    assert_eq!(series["values"]["val/loss"], json!([0.5, 0.25]));
    // Nobody named it: Hydra writes there when a program does not say otherwise.
    let lines = format!("/api/v1/jobs/{job}/logs/lines?file=*&grep=hydra");
    until(fleet, &lines, "the log of hydra", |page| page.to_string().contains("hydra says so"))
        .await?;
    assert_eq!(series["values"]["loss"], json!([0.5, 0.25]));
    let output = fleet.cli().args(["metrics", &job, "--step", "--csv"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(names.iter().all(|name| text.contains(name)) && text.contains("0.75"), "{text}");
    std::fs::write(fleet.path("enough"), "")?;
    api.wait_job(&job, &["SUCCEEDED"], SHORT).await?;
    Ok(())
}

/// The coordinator's own metrics.
async fn page(fleet: &Fleet) -> anyhow::Result<String> {
    let answer = fleet.api()?.send(reqwest::Method::GET, "/metrics", &[], None).await?;
    Ok(answer.error_for_status()?.text().await?)
}

#[tokio::test]
async fn a_job_that_wants_it_is_tried_again_and_a_restart_warns_later() -> TestResult {
    let mut fleet = fleet_with_gpus().await?;
    let api = fleet.api()?;
    let hang = "hang: {warn_after: 3s, after: 6s, action: restart}\n";
    let job = api.submit(&spec("again", hang, "sleep 600")).await?;
    let path = format!("/api/v1/jobs/{job}");
    until(&fleet, &path, "stalled", |view| view["stalled"].is_string()).await?;
    // A coordinator that was killed has its steps again, and says nothing of a stall before its time.
    fleet.kill_coordinator()?;
    let killed = wall_text(Timestamp::now().wall_ms);
    fleet.start_coordinator().await?;
    let view = api.get(&path).await?;
    assert_eq!(view["state"], "RUNNING", "{view}");
    // Times of one form: as texts they are in their order.
    assert!(view["stalled"].as_str().is_none_or(|since| *since > *killed), "{killed}: {view}");
    let series = api.get(&format!("{path}/series")).await?;
    assert_eq!(series["steps"], json!([1, 2, 3, 4, 5, 6, 7, 8]), "{series}");
    let is_second = |view: &Value| view["attempts"] == 2 && view["state"] == "RUNNING";
    let view = until(&fleet, &path, "a second attempt", is_second).await?;
    let cause = view["attempt_list"][0]["cause"].as_str().unwrap_or_default();
    assert!(cause.starts_with("no progress: no step after 8 and no line for "), "{cause}");
    // Its processes were looked at before they were stopped.
    assert!(cause.contains("; stacks: "), "{cause}");
    assert_eq!(view["stalled"], Value::Null);
    // Its steps take the place of those of the first.
    let series = format!("{path}/series");
    until(&fleet, &series, "steps of the second", |series| series["attempts"][0] == 2).await?;
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}
