//! Readings on real processes: from a stand-in GPU over the agent and the coordinator to a watcher of the
//! stream, to `node ls -w`, and to the charts of the job that uses the GPU.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::{SHORT, TestResult, built};
use anyhow::{Context, ensure};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use reqwest::{Method, Response};
use serde_json::Value;

/// The stream of one node, event by event.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    /// Until a sample comes that `fits`.
    async fn sample(&mut self, fits: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let until = Instant::now() + SHORT;
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let is_sample = event.contains("event: sample\n");
                let data = data.map(serde_json::from_str::<Value>).transpose()?;
                self.text = rest.to_owned();
                if let Some(data) = data.filter(|data| is_sample && fits(data)) {
                    return Ok(data);
                }
            }
            ensure!(Instant::now() < until, "no such sample came");
            let chunk = self.response.chunk().await?.context("the stream has ended")?;
            self.text.push_str(std::str::from_utf8(&chunk)?);
        }
    }
}

fn gangline(fleet: &Fleet, words: &[&str]) -> Command {
    let mut command = fleet.cli();
    command.args(words).env_clear();
    command
}

fn said(fleet: &Fleet, words: &[&str]) -> anyhow::Result<String> {
    let output = gangline(fleet, words).output()?;
    let all = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "{words:?}: {all}");
    Ok(all)
}

#[tokio::test]
async fn what_a_gpu_does_is_seen_in_the_stream_in_lists_and_in_the_charts_of_its_job() -> TestResult
{
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    fleet.add_agent(AgentOptions::worker("w0", 2)).await?;
    let api = fleet.api()?;
    let response = api.send(Method::GET, "/api/v1/nodes/stream?node=w0", &[], None).await?;
    ensure!(response.status() == 200, "{}", response.status());
    let mut stream = Stream { response, text: String::new() };
    // The stand-in's second GPU is 7 % busy at 31 degrees.
    let first = stream.sample(|sample| sample["gpus"][1]["utilization_pct"] == 7).await?;
    ensure!(first["name"] == "w0" && first["gpus"][1]["temperature_c"] == 31, "{first}");
    ensure!(first["gpus"][1]["power_w"] == 71.5, "{first}");
    ensure!(first["host"]["memory_used_bytes"].is_u64(), "{first}");

    let file = fleet.gpu_file("w0");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("gpu_util = 7", "gpu_util = 93"))?;
    let changed = Instant::now();
    stream.sample(|sample| sample["gpus"][1]["utilization_pct"] == 93).await?;
    println!("a new reading was in the stream after {:?}", changed.elapsed());

    // Lists and the page of the node have it.
    let mut watching = gangline(&fleet, &["node", "ls", "-w"])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(watching.stdout.take().context("stdout")?).read_line(&mut line)?;
    watching.kill()?;
    watching.wait()?;
    let node: Value = serde_json::from_str(&line)?;
    ensure!(node["gpus"][1]["sample"]["utilization_pct"] == 93.0, "{node}");
    let show = said(&fleet, &["node", "show", "w0"])?;
    ensure!(show.contains("93") && show.contains("Collectors"), "{show}");
    said(&fleet, &["node", "health", "w0"])?;
    let top = said(&fleet, &["top"])?;
    ensure!(top.contains("1 node: 1 ready · 2 GPUs, 0 in use"), "{top}");

    // A job has the readings of its own GPUs.
    let spec =
        "name: uses\nresources: {gpus_per_node: 2}\nlauncher: {type: command}\nrun: sleep 600\n";
    let job = api.submit(spec).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    let until = Instant::now() + SHORT;
    loop {
        let json = said(&fleet, &["metrics", &job, "--since", "1m", "-o", "json"])?;
        let metrics: Value = serde_json::from_str(&json)?;
        let gpus = metrics["members"][0]["gpus"].as_array().cloned().unwrap_or_default();
        ensure!(gpus.len() == 2, "{metrics}");
        let busy = |value: &Value| value["series"]["utilization_pct"].as_array().cloned();
        if gpus.iter().filter_map(busy).flatten().any(|value| value == 93) {
            break;
        }
        ensure!(Instant::now() < until, "{metrics}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let charts = said(&fleet, &["metrics", "uses", "--since", "1m"])?;
    for part in ["GPU busy", "GPU memory", "power", "w0", "93%"] {
        ensure!(charts.contains(part), "{part} is not in\n{charts}");
    }
    let top = said(&fleet, &["top", "--user", "admin"])?;
    ensure!(top.contains("1 busy") && top.contains(&job), "{top}");
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;

    // Nothing of it was lost in silence.
    let told = api.get("/api/v1/nodes/w0").await?;
    ensure!(told["telemetry"]["received"].as_u64() > Some(0), "{told}");
    ensure!(told["telemetry"]["untimely"] == 0, "{told}");
    fleet.assert_clean().await
}
