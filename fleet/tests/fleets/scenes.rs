//! How things stood is kept when a job fails, and can be asked of one that runs: on real processes,
//! with a real `py-spy`. Secrets are in none of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{
    RAY, SHORT, TestResult, built, ray_python, training, wait_steps, write_program,
};
use anyhow::Context;
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::ray_env::PY_SPY;
use gangline_fleet::slots;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A secret of the project, a variable that its name makes one, and what stands in their values.
const SECRET: &str = "canary-one-7d1f 'quoted' $HOME\nand a second line";
const TOKEN: &str = "canary-two-a93c";
const CANARIES: [&str; 2] = ["canary-one-7d1f", "canary-two-a93c"];

/// Ranks wait in `barrier`, but rank 2 in `lonely`, and the last fails once there is a file.
const SCRIPT: &str = r#"
import os, subprocess, sys, time
def barrier():
    while True: time.sleep(0.01)
def lonely():
    while True: time.sleep(0.01)
def fail():
    subprocess.Popen(["sh", "-c", "sleep 600; : " + os.environ["API_KEY"]])
    print("the key is", os.environ["API_KEY"], os.environ["MY_TOKEN"], flush=True)
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    sys.exit("no such file: data.parquet")
rank, last = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"]) - 1
print("up", flush=True)
fail() if rank == last else lonely() if rank == 2 else barrier()
"#;

fn spec(nnodes: u32, wait_for: &Path, more: Value) -> anyhow::Result<String> {
    let mut spec = json!({
        "name": "scenes",
        "resources": {"nnodes": nnodes},
        "launcher": {"type": "command"},
        "command": ["python3", "-u", "-c", SCRIPT, wait_for],
        "env": {"MY_TOKEN": TOKEN, "NCCL_DEBUG": "INFO"},
        "secrets": ["API_KEY"],
    });
    spec.as_object_mut().context("spec")?.extend(more.as_object().cloned().unwrap_or_default());
    Ok(spec.to_string())
}

/// The directory with `py-spy`.
async fn py_spy(target: &Path) -> anyhow::Result<PathBuf> {
    let python = PY_SPY.python(target, &|text| eprintln!("{text}")).await?;
    Ok(python.parent().context("no directory")?.to_owned())
}

async fn fleet_of(workers: u32, python: Option<PathBuf>) -> anyhow::Result<Fleet> {
    let binaries = built().await?;
    let programs = Some(py_spy(&binaries.target).await?);
    let options = FleetOptions { python, programs, ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries, options).await?;
    for number in 0..workers {
        fleet.add_agent(AgentOptions::worker(&format!("w{number}"), 0)).await?;
    }
    Ok(fleet)
}

fn gangline(fleet: &Fleet, words: &[&str]) -> anyhow::Result<String> {
    let output = fleet.cli().current_dir(fleet.path("")).args(words).output()?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    anyhow::ensure!(output.status.success(), "{words:?}: {text}");
    Ok(text)
}

/// The names of all files below a directory; none of them has a canary in it.
fn clean_files(place: &Path, found: &mut Vec<PathBuf>) -> TestResult {
    for entry in std::fs::read_dir(place)? {
        let path = entry?.path();
        if path.is_dir() {
            clean_files(&path, found)?;
            continue;
        }
        let bytes = std::fs::read(&path)?;
        for canary in CANARIES {
            let holds = bytes.windows(canary.len()).any(|window| window == canary.as_bytes());
            assert!(!holds, "{canary} in {}", path.display());
        }
        found.push(path);
    }
    Ok(())
}

/// What there is of one member of the newest attempt.
async fn scene(api: &Api, job: &str, member: &str) -> anyhow::Result<Value> {
    api.get(&format!("/api/v1/jobs/{job}/scene?rank={member}")).await
}

/// The text of a part that was taken.
fn part<'a>(scene: &'a Value, name: &str) -> anyhow::Result<&'a str> {
    let parts = scene["parts"].as_array().context("parts")?;
    let part = parts.iter().find(|part| part["name"] == name);
    let part = part.with_context(|| format!("no part {name} in {scene}"))?;
    anyhow::ensure!(part["ok"] == true, "{part}");
    part["text"].as_str().context("text")
}

#[tokio::test]
async fn the_rank_that_stands_elsewhere_is_named() -> TestResult {
    let fleet = fleet_of(5, None).await?;
    let api = fleet.api()?;
    let file = fleet.path("value");
    std::fs::write(&file, SECRET)?;
    gangline(&fleet, &["secret", "set", "API_KEY", "--from-file", file.to_str().context("path")?])?;
    let hang = json!({"hang": {"warn_after": "3s", "after": "5s", "action": "capture"}});
    let job = api.submit(&spec(5, &fleet.path("never"), hang)?).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    for rank in 0..5 {
        let query = format!("rank={rank}");
        while !api.logs(&job, &query).await?.contains("up") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    // The interpreter may still be on its way from the print to the loop.
    let mut groups = Value::Null;
    for _ in 0..50 {
        let json = gangline(&fleet, &["stack", &job, "-o", "json"])?;
        groups = serde_json::from_str::<Value>(&json)?["groups"].take();
        if groups[0]["processes"].as_array().is_some_and(|most| most.len() == 3) {
            break;
        }
    }
    let frame = |group: &Value| group["frames"][0].as_str().unwrap_or_default().to_owned();
    let most = &groups[0];
    assert!(frame(most).starts_with("barrier ("), "{groups}");
    assert_eq!(most["odd"], false);
    let odd: Vec<&Value> =
        groups.as_array().context("groups")?.iter().filter(|group| group["odd"] == true).collect();
    let lonely = odd.iter().find(|group| frame(group).starts_with("lonely ("));
    let lonely = lonely.with_context(|| format!("{groups}"))?;
    assert_eq!(lonely["processes"][0]["member"], "2");
    let text = gangline(&fleet, &["stack", &job])?;
    assert!(text.contains("<- not where the others are\n    lonely ("), "{text}");
    let one = gangline(&fleet, &["stack", &job, "--rank", "2"])?;
    assert!(one.contains("lonely (") && !one.contains("barrier ("), "{one}");
    // Everything of one that runs, as the API gives it.
    let now = scene(&api, &job, "4").await?;
    assert_eq!((&now["occasion"], &now["member"]), (&"asked".into(), &"4".into()));
    assert!(part(&now, "processes")?.contains("sleep 600; : [secret]"), "{now}");
    assert!(CANARIES.iter().all(|canary| !now.to_string().contains(canary)));
    it_hangs_and_is_captured(&fleet, &job).await?;
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    kept_in_the_directory(&fleet, &job, &["rank-2-hung.json"]).await?;
    let refused = fleet.cli().args(["stack", &job]).output()?;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("E0360"));
    fleet.assert_clean().await
}

/// The agents have looked, who is apart is named, and when its time for that has come it is kept.
async fn it_hangs_and_is_captured(fleet: &Fleet, job: &str) -> TestResult {
    let api = fleet.api()?;
    let end = Instant::now() + SHORT;
    let how = loop {
        let view = api.get(&format!("/api/v1/jobs/{job}")).await?;
        let how = view["stalled_how"].as_str().unwrap_or_default();
        // It is told of when it was seen: with the warning, and when its time was over.
        let told = view["history"].to_string().matches("stacks: ").count();
        if how.contains("stacks: ") && told >= 2 {
            break how.to_owned();
        }
        anyhow::ensure!(Instant::now() < end, "{view}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    eprintln!("{how}");
    assert!(how.starts_with("no line for ") && how.contains("rank 2 on w2 (pid "), "{how}");
    assert!(how.contains(") in lonely (") && how.contains("3 in barrier ("), "{how}");
    let why = gangline(fleet, &["why", job])?;
    assert!(why.contains("Stalled     no line for ") && why.contains("in lonely ("), "{why}");
    let events = api.get(&format!("/api/v1/events?object=job%20{job}")).await?.to_string();
    // The warning before it had named who is apart as well.
    let (stalled, hung) = (events.find("job.stalled"), events.find("job.hung"));
    assert!(stalled.is_some() && hung.is_some(), "{events}");
    assert!(events.matches("rank 2 on w2 (pid ").count() >= 2, "{events}");
    let path = format!("/api/v1/jobs/{job}/scene?rank=2&hung=true");
    let kept = loop {
        match api.get(&path).await {
            Ok(kept) => break kept,
            Err(error) => anyhow::ensure!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(kept["occasion"], "hung");
    assert!(part(&kept, "environment")?.contains("NCCL_DEBUG=***\n"), "{kept}");
    assert!(kept["stacks"].to_string().contains("lonely ("), "{kept}");
    assert!(CANARIES.iter().all(|canary| !kept.to_string().contains(canary)));
    Ok(())
}

/// Waits until the scenes of the first attempt are below the shared root, where the helper that copies
/// logs puts them; they hold no canary.
async fn kept_in_the_directory(fleet: &Fleet, job: &str, names: &[&str]) -> TestResult {
    let kept = fleet.shared_root().join("jobs").join(job).join("bundle/attempt-1");
    let missing = || names.iter().map(|name| kept.join(name)).any(|path| !path.exists());
    for _ in 0..200 {
        if !missing() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!missing(), "{names:?} in {}", kept.display());
    clean_files(&kept, &mut Vec::new())
}

#[tokio::test]
async fn a46_a_failure_keeps_how_things_stood_and_no_secret() -> TestResult {
    let fleet = fleet_of(2, None).await?;
    let api = fleet.api()?;
    let file = fleet.path("value");
    std::fs::write(&file, SECRET)?;
    gangline(&fleet, &["secret", "set", "API_KEY", "--from-file", file.to_str().context("path")?])?;
    let go = fleet.path("go");
    let job = api.submit(&spec(2, &go, json!({"hold_on_failure": "10m"}))?).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    while !api.logs(&job, "rank=1").await?.contains("the key is") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    std::fs::write(&go, "")?;
    // What is left stays for a person, who looks and lets it go.
    let held = api.wait_job(&job, &["HELD"], SHORT).await?;
    assert!(held["kept_up_until"].is_string(), "{held}");
    // Not all of it may be there yet.
    while !scene(&api, &job, "0").await.is_ok_and(|scene| scene["occasion"] == "stopping") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let show = gangline(&fleet, &["show", &job])?;
    assert!(show.contains("data.parquet") && show.contains("kept up      until "), "{show}");
    let ranks = || {
        fleet
            .gang_processes()
            .into_iter()
            .filter(|process| process.command.contains("python3 -u -c"))
    };
    assert!(ranks().count() > 0, "rank 0 is still there");
    gangline(&fleet, &["release", &job])?;
    let done = api.wait_job(&job, &["FAILED"], SHORT).await?;
    let reason = done["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("rank 1 on") && reason.contains("data.parquet"), "{reason}");
    assert!(CANARIES.iter().all(|canary| !reason.contains(canary)), "{reason}");

    let (other, failed) = (scene(&api, &job, "0").await?, scene(&api, &job, "1").await?);
    eprintln!("taken in {} ms of rank 0, {} ms of rank 1", other["took_ms"], failed["took_ms"]);
    assert_eq!(failed["occasion"], "ended");
    let log = part(&failed, "logs")?;
    assert!(log.contains("the key is [secret]") && log.contains("no such file: data.parquet"));
    let environment = part(&failed, "environment")?;
    for line in ["API_KEY=[secret]\n", "MY_TOKEN=[secret]\n", "NCCL_DEBUG=***\n"] {
        assert!(environment.contains(line), "{environment}");
    }
    assert_eq!(other["occasion"], "stopping", "rank 0 ran, and was seen before it was stopped");
    assert!(part(&other, "processes")?.contains("python3 -u -c"), "{other}");
    let stacks = other["stacks"].as_array().context("stacks")?;
    let python = stacks.iter().find(|stack| stack["source"] == "py-spy").context("no py-spy")?;
    assert!(python["of_job"] == true && python["text"].as_str().unwrap().contains("barrier ("));
    assert!(part(&other, "samples")?.contains("Z host memory="), "{other}");
    assert!(part(&other, "versions")?.starts_with("agent "), "{other}");

    kept_in_the_directory(&fleet, &job, &["rank-0.json", "rank-1.json"]).await?;
    let page = fleet.shared_root().join("jobs").join(&job).join("logs/attempt-1/why.txt");
    for _ in 0..200 {
        if page.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let page = std::fs::read_to_string(page)?;
    eprintln!("{page}");
    for said in ["attempt 1 failed", "Cause ", "data.parquet", "Done        not tried again: "] {
        assert!(page.contains(said), "{page}");
    }

    let archive = fleet.path("b.tar.gz");
    gangline(&fleet, &["bundle", &job, "-f", archive.to_str().context("path")?])?;
    let unpacked = fleet.path("unpacked");
    std::fs::create_dir(&unpacked)?;
    let tar = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&unpacked).status()?;
    assert!(tar.success());
    let mut found = Vec::new();
    clean_files(&unpacked, &mut found)?;
    let root = unpacked.join(&job);
    let name = |path: &PathBuf| {
        path.strip_prefix(&root).map(|path| path.display().to_string()).unwrap_or_default()
    };
    let mut found: Vec<String> = found.iter().map(name).collect();
    found.sort();
    let expected = [
        "about.json",
        "attempt-1/logs/0-output.log",
        "attempt-1/logs/1-output.log",
        "attempt-1/scene-0.json",
        "attempt-1/scene-1.json",
        "attempt-1/stacks.txt",
        "events.json",
        "explain.json",
        "job.json",
        "metrics.json",
        "nodes/w0.json",
        "nodes/w1.json",
    ];
    assert_eq!(found, expected);
    let read = |name: &str| std::fs::read_to_string(root.join(name));
    assert!(read("attempt-1/logs/1-output.log")?.contains("the key is [secret]"));
    let stacks = read("attempt-1/stacks.txt")?;
    assert!(stacks.contains("rank 0 (pid ") && stacks.contains("    barrier ("), "{stacks}");
    let spec: Value = serde_json::from_str(&read("job.json")?)?;
    assert_eq!(spec["spec"]["env"]["MY_TOKEN"], "***");
    assert!(read("events.json")?.contains("job.failed"));
    fleet.assert_clean().await
}

/// A raylet is killed: of its member there are the logs of Ray, which go with its temp dir; of the
/// others the stacks from before they were stopped, and Ray's own word on its actors.
#[tokio::test]
async fn a_raylet_dies_and_every_member_was_seen() -> TestResult {
    let binaries = built().await?;
    let python = ray_python(&binaries).await?;
    let mut fleet = fleet_of(0, Some(python)).await?;
    fleet.add_agent(AgentOptions::head("head")).await?;
    fleet.add_agent(AgentOptions::worker("a", 4)).await?;
    fleet.add_agent(AgentOptions::worker("b", 4)).await?;
    let _slot = slots::heavy().await?;
    let api = fleet.api()?;
    let spec = training("scene", 4, 400, 0.3) + "retry: {max: 0}\n";
    let job = api.submit(&spec).await?;
    api.wait_job(&job, &["RUNNING"], RAY).await?;
    wait_steps(&fleet, &job, 2).await?;
    let text = gangline(&fleet, &["stack", &job])?;
    eprintln!("{text}");
    assert!(text.contains("of ray::RolloutActor: rank 0 ("), "{text}");
    let raylet = fleet.gang_processes().into_iter().find(|process| {
        let of_rank_one = process.mark.as_ref().is_some_and(|mark| mark.ends_with(":1"));
        process.command.contains("/raylet/raylet") && of_rank_one
    });
    let pid = i32::try_from(raylet.context("no raylet of rank 1")?.pid)?;
    kill_process(Pid::from_raw(pid).context("pid")?, Signal::KILL)?;
    api.wait_job(&job, &["FAILED"], RAY).await?;
    let head = scene(&api, &job, "head").await?;
    let (other, dead) = (scene(&api, &job, "0").await?, scene(&api, &job, "1").await?);
    for scene in [&head, &other, &dead] {
        eprintln!("{} {}: {} ms", scene["member"], scene["occasion"], scene["took_ms"]);
        for part in scene["parts"].as_array().context("parts")? {
            eprintln!("  {} {} {} ms", part["name"], part["ok"], part["took_ms"]);
        }
    }
    assert_eq!(dead["occasion"], "ended");
    assert!(part(&dead, "logs")?.contains("== ray/raylet."), "{dead}");
    assert_eq!((&other["occasion"], &head["occasion"]), (&"stopping".into(), &"stopping".into()));
    assert!(part(&other, "samples")?.contains("GPU-"), "{other}");
    let stacks = other["stacks"].as_array().context("stacks")?;
    assert!(stacks.iter().any(|stack| stack["source"] == "py-spy" && stack["ok"] == true));
    assert!(part(&head, "ray nodes")?.contains("\"member\":\"1\""), "{head}");
    fleet.assert_clean().await
}

/// Whoever looks into a process may hang as well: what is stopped is stopped all the same, and what was
/// seen in time is kept.
#[tokio::test]
async fn a_look_that_hangs_does_not_keep_a_gang_from_being_stopped() -> TestResult {
    let directory = tempfile::tempdir()?;
    write_program(&directory.path().join("py-spy"), "#!/bin/sh\nexec sleep 600\n")?;
    let programs = Some(directory.path().to_owned());
    let options = FleetOptions { programs, ..FleetOptions::default() };
    let mut fleet = Fleet::start(built().await?, options).await?;
    for name in ["w0", "w1"] {
        fleet.add_agent(AgentOptions::worker(name, 0)).await?;
    }
    let api = fleet.api()?;
    let (fails, term) = (fleet.path("fails"), fleet.path("term"));
    let script = format!(
        "if [ $NODE_RANK = 1 ]; then until [ -e {} ]; do sleep 0.1; done; exit 3; fi\n\
         trap 'echo TERM > {}; exit 0' TERM\n\
         python3 -c 'import time; time.sleep(600)' & wait",
        fails.display(),
        term.display()
    );
    let spec = json!({
        "name": "hangs", "resources": {"nnodes": 2}, "launcher": {"type": "command"},
        "command": ["sh", "-c", script], "retry": {"max": 0},
    });
    let job = api.submit(&spec.to_string()).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    std::fs::write(&fails, "")?;
    let began = Instant::now();
    api.wait_job(&job, &["FAILED"], SHORT).await?;
    eprintln!("over {:?} after a rank had failed", began.elapsed());
    assert!(term.exists(), "rank 0 was asked to end");
    let scene = scene(&api, &job, "0").await?;
    assert!(scene["stacks"].to_string().contains("it took too long"), "{scene}");
    assert!(part(&scene, "processes")?.contains("time.sleep(600)"), "{scene}");
    fleet.assert_clean().await
}
