//! Sick hardware on real processes: agents whose stand-in NVML is told to fail, and a shared file system
//! that is frozen. What is shown, what is done about it, and what is left alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{SHORT, TestResult, built, runs};
use anyhow::{Context, ensure};
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::slots;
use serde_json::Value;

/// NVML's own time-out is 15 s, and a canary may take as long to be tried.
const PATIENCE: Duration = Duration::from_secs(100);

async fn workers(count: u32, options: FleetOptions) -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::start(built().await?, options).await?;
    for n in 0..count {
        fleet.add_agent(AgentOptions::worker(&format!("w{n}"), 2)).await?;
    }
    Ok(fleet)
}

/// Changes the state of an agent's GPUs in one step.
fn edit_gpus(fleet: &Fleet, agent: &str, edit: impl Fn(String) -> String) -> TestResult {
    let file = fleet.gpu_file(agent);
    let next = file.with_extension("next");
    std::fs::write(&next, edit(std::fs::read_to_string(&file)?))?;
    std::fs::rename(&next, &file)?;
    Ok(())
}

fn conditions(node: &Value) -> impl Iterator<Item = &Value> {
    node["conditions"].as_array().into_iter().flatten()
}

/// The node once a rule stands (or no longer does), and how long that took.
async fn until(
    api: &Api,
    node: &str,
    rule: &str,
    stands: bool,
) -> anyhow::Result<(Value, Duration)> {
    let began = Instant::now();
    loop {
        let page = api.get(&format!("/api/v1/nodes/{node}")).await?;
        if conditions(&page).any(|condition| condition["rule"] == rule) == stands {
            return Ok((page, began.elapsed()));
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "{rule} on {node}, wanted {stands}: {}",
            page["conditions"]
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn node_of(api: &Api, job: &str) -> anyhow::Result<String> {
    let job = api.job(job).await?;
    Ok(job["nodes"][0].as_str().context("a node")?.to_owned())
}

/// The driver of a node hangs: nothing that it has says that a GPU is sick, and nothing says that it is
/// well. A gang that is sent there is not started, and loses no attempt.
#[tokio::test]
async fn a_node_without_certain_readings_starts_nothing_and_the_gang_loses_no_attempt() -> TestResult
{
    let fleet = workers(2, FleetOptions::default()).await?;
    let api = fleet.api()?;
    edit_gpus(&fleet, "w0", |state| format!("hang = true\n{state}"))?;
    // Longer than a reading is believed.
    tokio::time::sleep(Duration::from_secs(35)).await;
    let spec = "name: both\nresources: {nnodes: 2, gpus_per_node: 2}\nretry: {max: 0}\n\
                launcher: {type: command}\ncommand: [sleep, '600']\n";
    let job = api.submit(spec).await?;
    let waits = |page: &Value| {
        page["state"] == "PENDING" && page.to_string().contains("w0: refused to start a gang")
    };
    let began = Instant::now();
    let page = loop {
        let page = api.job(&job).await?;
        if waits(&page) {
            break page;
        }
        ensure!(began.elapsed() < PATIENCE, "{page}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    println!("{}", page["reason"]);
    ensure!(page["attempts"] == 0 && page.to_string().contains("no certain reading"), "{page}");
    ensure!(page["history"].to_string().contains("w0 is not fit to start it"), "{page}");
    ensure!(fleet.gang_processes().is_empty(), "something runs");

    // Well again, and an operator who says so: it starts, in its first attempt.
    edit_gpus(&fleet, "w0", |state| state.replacen("hang = true\n", "", 1))?;
    api.post("/api/v1/nodes/w0/resume", &[], "{}").await?;
    let page = api.wait_job(&job, &["RUNNING"], PATIENCE).await?;
    ensure!(page["attempts"] == 1, "{page}");
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

/// F32, and A45.
#[tokio::test]
async fn an_xid_79_cordons_the_node_and_the_job_runs_elsewhere_but_a_line_that_says_so_does_nothing()
-> TestResult {
    let fleet = workers(2, FleetOptions::default()).await?;
    let api = fleet.api()?;
    let spec = "name: train\nresources: {gpus_per_node: 2}\nlauncher: {type: command}\n\
                run: echo 'NVRM Xid (PCI:0000:1b:00) 79, GPU has fallen off the bus'; sleep 600\n";
    let job = api.submit(spec).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    let first = node_of(&api, &job).await?;
    // A45: the line was printed and shipped, and nothing came of it.
    let printed = Instant::now();
    while !api.logs(&job, "").await?.contains("fallen off the bus") {
        ensure!(printed.elapsed() < SHORT, "the line never came");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calm = api.get(&format!("/api/v1/nodes/{first}")).await?;
    // The disk of this machine may be full, which is another condition.
    let of_gpus = conditions(&calm).any(|condition| condition["rule"] == "xid-fatal");
    ensure!(calm["cordon"].is_null() && !of_gpus, "{calm}");

    let inject = |node: &str, fault: &str| {
        let (path, body) =
            (format!("/api/v1/nodes/{node}/inject"), format!(r#"{{"fault": "{fault}"}}"#));
        let api = &api;
        async move { api.post(&path, &[], &body).await }
    };
    let (status, answer) = inject(&first, "xid=79").await?;
    ensure!(status == 200 && answer.to_string().contains("Xid 79"), "{status}: {answer}");
    let (node, took) = until(&api, &first, "xid-fatal", true).await?;
    println!("Xid 79 was shown after {took:?}");
    ensure!(node["cordon"]["by"] == "health" && node["health"] == "unhealthy", "{node}");
    let began = Instant::now();
    loop {
        let page = api.job(&job).await?;
        if page["state"] == "RUNNING" && node_of(&api, &job).await? != first {
            ensure!(
                page.to_string().contains("Xid 79") || page.to_string().contains("xid-fatal"),
                "{page}"
            );
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "{page}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("the job ran elsewhere {:?} after that", began.elapsed());
    // Why is known for certain, though nothing in a log says so, and what ran was seen before it went.
    let why = api.get(&format!("/api/v1/jobs/{job}/why?attempt=1")).await?;
    let found = &why["diagnosis"];
    ensure!(why["outcome"] == "FAILED" && found["sub_code"] == "xid", "{why}");
    ensure!(found["node"] == *first && found["certain"] == true, "{why}");
    ensure!(why["done"] == "goes on without the part that is sick", "{why}");
    let scene = api.get(&format!("/api/v1/jobs/{job}/scene?rank=0&attempt=1")).await?;
    ensure!(scene["occasion"] == "stopping" && scene.to_string().contains("sleep 600"), "{scene}");
    let page = fleet.shared_root().join("jobs").join(&job).join("logs/attempt-1/why.txt");
    let until_written = Instant::now();
    while !page.exists() {
        ensure!(until_written.elapsed() < SHORT, "there is no page on the attempt");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // Only an operator ends it; the agent hears of it.
    let (status, answer) = api.post(&format!("/api/v1/nodes/{first}/resume"), &[], "{}").await?;
    ensure!(status == 200, "{status}: {answer}");
    let (node, _) = until(&api, &first, "xid-fatal", false).await?;
    ensure!(node["cordon"].is_null() && node["doubt"].is_null(), "{node}");

    // What cannot be simulated here is refused, and so is what is no fault; a GPU that is lost and well
    // again is seen as both.
    for (fault, code) in [("link", "E0396"), ("fire", "E0320")] {
        let (_, answer) = inject(&first, fault).await?;
        ensure!(answer["code"] == code, "{fault}: {answer}");
    }
    inject(&first, "kill").await?;
    until(&api, &first, "gpu-handle", true).await?;
    inject(&first, "heal").await?;
    api.post(&format!("/api/v1/nodes/{first}/resume"), &[], "{}").await?;
    until(&api, &first, "gpu-handle", false).await?;
    // It has every CPU of its node.
    api.post(&format!("/api/v1/jobs/{job}/stop"), &[], "{}").await?;
    api.wait_job(&job, &["CANCELLED"], PATIENCE).await?;
    check_the_network(&fleet, &api).await
}

/// Checks of the network as jobs on both nodes: one without PyTorch, and one with a program in its
/// place that says what it measured.
async fn check_the_network(fleet: &Fleet, api: &Api) -> TestResult {
    let measures = fleet.path("measures");
    let said = r#"gangline-node-test: {"backend": "gloo", "versions": {"torch": "0"}, "message_bytes": 8,
        "all_reduce": {"bytes_per_s": 5, "latency_ns": 6},
        "pairs": [{"a": 0, "b": 1, "bytes_per_s": 7000, "latency_ns": 8000}]}"#;
    let said = said.replace("\n       ", "");
    let script = format!(
        "#!/bin/sh\ncase \"$2\" in *find_spec*) exit 0;; esac\n\
         [ \"$GANGLINE_NODE_RANK\" = 0 ] && [ \"$GANGLINE_NNODES\" = 2 ] && echo '{said}'\nexit 0\n"
    );
    std::fs::write(&measures, script)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&measures, mode)?;
    let test = node_test(api, "/bin/false").await?;
    let why = test["why"].as_str().unwrap_or_default();
    ensure!(test["state"] == "failed" && why.contains("apt install python3-torch"), "{test}");
    let test = node_test(api, &measures.to_string_lossy()).await?;
    ensure!(
        test["state"] == "measured" && test["result"]["slow"] == serde_json::json!([]),
        "{test}"
    );
    let pair = &test["result"]["pairs"][0];
    ensure!(
        pair["nodes"] == serde_json::json!(["w0", "w1"]) && pair["latency_us"] == 8.0,
        "{test}"
    );
    let node = api.get("/api/v1/nodes/w1").await?;
    ensure!(node["network_test"]["best_bytes_per_s"] == 7000, "{}", node["network_test"]);
    Ok(())
}

/// What a check of the network with this interpreter comes to.
async fn node_test(api: &Api, python: &str) -> anyhow::Result<Value> {
    let body = format!(r#"{{"python": "{python}"}}"#);
    let (status, begun) = api.post("/api/v1/node-tests", &[], &body).await?;
    ensure!(status == 201, "{status}: {begun}");
    let path = format!("/api/v1/node-tests/{}", begun["job"].as_str().context("a job")?);
    let began = Instant::now();
    loop {
        let test = api.get(&path).await?;
        if test["state"] != "open" {
            return Ok(test);
        }
        ensure!(began.elapsed() < NETWORK, "{test}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// PyTorch takes long to be loaded on a busy machine, and has its own time-out.
const NETWORK: Duration = Duration::from_secs(400);

#[tokio::test]
async fn the_network_is_measured_with_debians_pytorch() -> TestResult {
    if !has_torch() {
        eprintln!("skipped: no PyTorch (the Debian package is `python3-torch`)");
        return Ok(());
    }
    let fleet = workers(2, FleetOptions::default()).await?;
    let _slot = slots::heavy().await?;
    let api = fleet.api()?;
    for name in ["w0", "w1"] {
        api.wait_node(name, &["ready"], SHORT).await?;
    }
    let test = node_test(&api, PYTHON).await?;
    let result = &test["result"];
    ensure!(test["state"] == "measured" && result["backend"] == "gloo", "{test}");
    for rate in [&result["all_reduce"], &result["pairs"][0]] {
        ensure!(rate["bytes_per_s"].as_u64().is_some_and(|rate| rate > 1_000_000), "{test}");
    }
    Ok(())
}

/// Debian's interpreter.
const PYTHON: &str = "/usr/bin/python3";

fn has_torch() -> bool {
    runs(PYTHON, &["-c", "import torch.distributed"])
}

#[tokio::test]
async fn a_gpu_that_is_missing_after_a_restart_of_the_agent_is_missed() -> TestResult {
    let mut fleet = workers(1, FleetOptions::default()).await?;
    let api = fleet.api()?;
    api.wait_node("w0", &["ready"], SHORT).await?;
    // Its first readings are in: what it has, it knows.
    let read = Instant::now() + SHORT;
    while api.get("/api/v1/nodes/w0").await?["host"]["memory_used_bytes"].is_null() {
        ensure!(Instant::now() < read, "no readings");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    fleet.stop_agent("w0")?;
    edit_gpus(&fleet, "w0", |text| {
        let second = text.rfind("[[gpu]]").unwrap_or(text.len());
        text[..second].to_owned()
    })?;
    fleet.start_agent("w0")?;
    let (node, _) = until(&api, "w0", "gpu-set", true).await?;
    let missing = conditions(&node).find(|condition| condition["rule"] == "gpu-set");
    ensure!(missing.is_some_and(|c| c["level"] == "fatal"), "{node}");
    ensure!(node["cordon"]["by"] == "health", "{node}");
    Ok(())
}

/// F33.
#[tokio::test]
async fn a_driver_that_hangs_degrades_the_node_and_stops_nothing() -> TestResult {
    let fleet = workers(1, FleetOptions::default()).await?;
    let api = fleet.api()?;
    let spec = "name: train\nresources: {gpus_per_node: 1}\nlauncher: {type: command}\n\
                run: sleep 600\n";
    let job = api.submit(spec).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    edit_gpus(&fleet, "w0", |text| format!("hang = true\n{text}"))?;
    let (node, took) = until(&api, "w0", "collector", true).await?;
    println!("a hanging driver was shown after {took:?}");
    ensure!(node["health"] == "degraded" && node["cordon"].is_null(), "{node}");
    ensure!(node["reachability"] == "reachable", "{node}");
    ensure!(api.state(&job).await? == "RUNNING");
    // The host is read all the same.
    ensure!(node["host"]["memory_used_bytes"].is_u64(), "{node}");
    Ok(())
}

#[tokio::test]
async fn a42_a_gpu_that_a_job_takes_without_having_been_given_it_is_reported_and_not_offered()
-> TestResult {
    let fleet = workers(1, FleetOptions::default()).await?;
    let api = fleet.api()?;
    let spec = |name: &str, run: &str| {
        format!(
            "name: {name}\nresources: {{gpus_per_node: 1}}\nlauncher: {{type: command}}\nrun: {run}\n"
        )
    };
    let thief = api.submit(&spec("thief", "echo pid $$ end; sleep 600")).await?;
    api.wait_job(&thief, &["RUNNING"], SHORT).await?;
    let began = Instant::now();
    let pid = loop {
        let log = api.logs(&thief, "").await?;
        let mut words = log.split_whitespace().skip_while(|word| *word != "pid");
        if let (Some(_), Some(pid), Some("end")) = (words.next(), words.next(), words.next()) {
            break pid.parse::<u32>()?;
        }
        ensure!(began.elapsed() < SHORT, "no pid in {log:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let node = api.get("/api/v1/nodes/w0").await?;
    let free = node["gpus"].as_array().into_iter().flatten().find(|gpu| gpu["in_use"] == false);
    let free = free.and_then(|gpu| gpu["uuid"].as_str()).context("a free GPU")?;
    let line = format!("uuid = \"{free}\"\n");
    edit_gpus(&fleet, "w0", |text| text.replacen(&line, &format!("{line}pids = [{pid}]\n"), 1))?;
    let (node, took) = until(&api, "w0", "gpu-foreign", true).await?;
    println!("the process was reported after {took:?}");
    let found = conditions(&node).find(|condition| condition["rule"] == "gpu-foreign");
    let found = found.context("the condition")?;
    ensure!(found["component"] == format!("gpu:{free}"), "{found}");
    let evidence = found["evidence"].as_str().unwrap_or_default();
    ensure!(evidence.contains(&pid.to_string()), "{found}");
    // The node is in use as before, but for this GPU.
    let next = api.submit(&spec("next", "\"true\"")).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(api.state(&next).await? == "PENDING", "it got the GPU");
    edit_gpus(&fleet, "w0", |text| text.replacen(&format!("pids = [{pid}]\n"), "", 1))?;
    until(&api, "w0", "gpu-foreign", false).await?;
    api.wait_job(&next, &["SUCCEEDED"], PATIENCE).await?;
    Ok(())
}

/// A file system that can be frozen; thawed and gone at the end.
struct Freezer {
    mount: PathBuf,
}

impl Freezer {
    fn mount(directory: &Path) -> anyhow::Result<Freezer> {
        let (image, mount) = (directory.join("image"), directory.join("shared"));
        std::fs::File::create(&image)?.set_len(32 << 20)?;
        std::fs::create_dir(&mount)?;
        run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()])?;
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), mount.as_os_str()])?;
        Ok(Freezer { mount })
    }

    fn set(&self, frozen: bool) -> anyhow::Result<()> {
        let flag = if frozen { "-f" } else { "-u" };
        run("fsfreeze", &[flag.as_ref(), self.mount.as_os_str()])
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // Thawed already if the test came to its end.
        let _ = self.set(false);
        let _ = run("umount", &["-l".as_ref(), self.mount.as_os_str()]);
    }
}

fn run(program: &str, words: &[&std::ffi::OsStr]) -> anyhow::Result<()> {
    let output = Command::new(program).args(words).output().with_context(|| program.to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{program}: {said}");
    Ok(())
}

/// F34.
#[tokio::test]
async fn a_shared_file_system_that_hangs_keeps_new_jobs_away_and_disturbs_nothing() -> TestResult {
    let directory = tempfile::tempdir()?;
    let freezer = match Freezer::mount(directory.path()) {
        Ok(freezer) => freezer,
        Err(error) => {
            println!("skipped: no file system can be mounted here to be frozen: {error:#}");
            return Ok(());
        }
    };
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    let shared = freezer.mount.to_string_lossy().into_owned();
    let extra = vec!["--shared-root".to_owned(), shared];
    fleet.add_agent(AgentOptions { extra, ..AgentOptions::worker("w0", 1) }).await?;
    let api = fleet.api()?;
    api.wait_node("w0", &["ready"], SHORT).await?;
    // One try has come back: what is frozen next is what is read next.
    tokio::time::sleep(Duration::from_secs(11)).await;
    freezer.set(true)?;
    let (node, took) = until(&api, "w0", "shared-root", true).await?;
    println!("a hanging file system was shown after {took:?}");
    ensure!(node["state"] == "unfit" && node["reachability"] == "reachable", "{node}");
    ensure!(node["cordon"].is_null(), "{node}");
    freezer.set(false)?;
    Ok(())
}
