//! A standing cluster and the jobs that share it, on real Ray: two versions of one package at a time,
//! and the end of a job that takes its own processes along and nobody else's.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{RAY, SHORT, TestResult, ray_fleet};
use anyhow::{Context, ensure};
use gangline_fleet::api::Api;
use gangline_fleet::fleet::Fleet;
use gangline_fleet::slots;
use serde_json::json;

const CLUSTER: &str = "{kind: cluster, name: dev, resources: {nnodes: 2, gpus_per_node: 4}}";

/// Tells the version of `pack` in the Ray driver, in an actor and in a program that the actor starts;
/// the actor leaves a daemon behind. Runs until a file is there.
const PROGRAM: &str = r#"
import os, subprocess, sys, time
import pack, ray

@ray.remote(num_gpus=1)
class Actor:
    def tell(self):
        child = [sys.executable, "-c", "import pack; print(pack.VERSION)"]
        child = subprocess.run(child, capture_output=True, text=True).stdout.strip()
        return f"actor {pack.VERSION} of {os.environ['GANGLINE_JOB_ID']}, child {child}"

    def leave_a_daemon(self, path):
        daemon = [sys.executable, "-c", "import time; time.sleep(600)"]
        daemon = subprocess.Popen(daemon, start_new_session=True)
        with open(path + ".new", "w") as file:
            file.write(str(daemon.pid))
        os.rename(path + ".new", path)

ray.init()
nodes = os.environ["GANGLINE_NNODES"]
print(f"driver {pack.VERSION} of {os.environ['GANGLINE_JOB_ID']}, {nodes} nodes", flush=True)
actor = Actor.remote()
print(ray.get(actor.tell.remote()), flush=True)
ray.get(actor.leave_a_daemon.remote(sys.argv[1]))
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
print("done", flush=True)
"#;

/// Imports a module of its own code and reads a file beside it, here and in an actor.
const OWN_CODE: &str = r#"
import ray
from own.word import WORD
ray.init()

@ray.remote
class Actor:
    def tell(self):
        from own.word import WORD
        return WORD

print("driver", WORD, open("data.txt").read(), "actor", ray.get(Actor.remote().tell.remote()))
open("written.txt", "w").write(WORD)
"#;

/// Leaves a detached actor that notes the id of each process that it is.
const DETACHED: &str = r#"
import os, ray, sys

@ray.remote(max_restarts=-1, lifetime="detached", name="stays", namespace="stays")
class Stays:
    def __init__(self, path):
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")

    def ready(self):
        return True

ray.init()
ray.get(Stays.remote(sys.argv[1]).ready.remote())
"#;

/// What the jobs of these tests share.
struct Scene {
    fleet: Fleet,
    api: Api,
    program: PathBuf,
}

impl Scene {
    /// A fleet on which the cluster `dev` stands, with two versions of a package.
    async fn standing() -> anyhow::Result<(Scene, String)> {
        let fleet = ray_fleet().await?;
        let code = fleet.shared_root().join("code");
        for version in ["1.0", "2.0"] {
            let package = code.join(version).join("pack");
            std::fs::create_dir_all(&package)?;
            std::fs::write(package.join("__init__.py"), format!("VERSION = '{version}'\n"))?;
        }
        let program = code.join("program.py");
        std::fs::write(&program, PROGRAM)?;
        let api = fleet.api()?;
        let cluster = api.submit(CLUSTER).await?;
        api.wait_job(&cluster, &["RUNNING"], RAY).await?;
        Ok((Scene { fleet, api, program }, cluster))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.fleet.path(name)
    }

    /// A job on the cluster with a version of the package.
    async fn submit(&self, name: &str, version: &str, gpus: u32) -> anyhow::Result<String> {
        let (daemon, go) = (self.file(&format!("{name}.daemon")), self.file(&format!("{name}.go")));
        let spec = json!({
            "name": name,
            "cluster": "dev",
            "resources": {"gpus_per_node": gpus},
            "code": {"path": self.fleet.shared_root().join("code").join(version)},
            "command": ["python", self.program, daemon, go],
        });
        self.api.submit(&spec.to_string()).await
    }

    fn let_go(&self, name: &str) -> TestResult {
        Ok(std::fs::write(self.file(&format!("{name}.go")), "")?)
    }

    /// The daemon that the job's actor left, once there is one.
    async fn daemon(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.file(&format!("{name}.daemon"));
        let until = Instant::now() + RAY;
        loop {
            if let Ok(pid) = std::fs::read_to_string(&path) {
                return Ok(Path::new("/proc").join(pid));
            }
            ensure!(
                Instant::now() < until,
                "{name} has no daemon\n{}",
                self.fleet.coordinator_log()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Waits until the job's log has this line.
async fn logs(api: &Api, job: &str, line: &str) -> TestResult {
    let until = Instant::now() + SHORT;
    loop {
        let text = api.logs(job, "").await?;
        if text.lines().any(|found| found.ends_with(line)) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "no line {line:?} in:\n{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn two_versions_of_a_package_run_side_by_side() -> TestResult {
    let (mut scene, cluster) = Scene::standing().await?;
    let _slot = slots::heavy().await?;
    let old = scene.submit("old", "1.0", 3).await?;
    let new = scene.submit("new", "2.0", 3).await?;
    let (old_daemon, new_daemon) = (scene.daemon("old").await?, scene.daemon("new").await?);
    for (job, version) in [(&old, "1.0"), (&new, "2.0")] {
        scene.api.wait_job(job, &["RUNNING"], SHORT).await?;
        logs(&scene.api, job, &format!("driver {version} of {job}, 1 nodes")).await?;
        logs(&scene.api, job, &format!("actor {version} of {job}, child {version}")).await?;
    }

    // The GPUs of the cluster are counted: two more wait, and are told for what.
    let third = scene.submit("third", "1.0", 2).await?;
    let waiting = scene.api.wait_job(&third, &["PENDING"], SHORT).await?;
    let reason = waiting["reason"].as_str().context("reason")?;
    assert_eq!(
        reason,
        "needs 1 node with 2 GPUs free on cluster dev; 0 fit now, and 2 GPUs are free"
    );
    let shown = scene.api.job(&cluster).await?;
    assert_eq!(shown["usage"]["gpus_free"], 2);
    assert_eq!(shown["usage"]["jobs"], json!([old, new]));

    // A stop takes the job's own processes, daemons and all, and nobody else's.
    ensure!(old_daemon.exists() && new_daemon.exists(), "both daemons live");
    scene.api.stop(&old).await?;
    let stopped = scene.api.wait_job(&old, &["CANCELLED"], SHORT).await?;
    assert_eq!(stopped["cluster"], cluster);
    ensure!(!old_daemon.exists(), "the daemon of the stopped job lives");
    ensure!(new_daemon.exists(), "the daemon of the other job is gone");
    assert_eq!(scene.api.state(&new).await?, "RUNNING");

    // What was waited for is free; and neither coordinator nor agents need to be there for a job.
    scene.daemon("third").await?;
    scene.fleet.kill_coordinator()?;
    scene.fleet.start_coordinator().await?;
    for agent in ["head", "a", "b"] {
        scene.fleet.kill_agent(agent)?;
        scene.fleet.start_agent(agent)?;
    }
    for name in ["new", "third"] {
        scene.let_go(name)?;
    }
    for job in [&new, &third] {
        scene.api.wait_job(job, &["SUCCEEDED"], RAY).await?;
        logs(&scene.api, job, "done").await?;
        let log = scene.api.logs(job, "").await?;
        let kept = scene.fleet.shared_root().join("jobs").join(job).join("logs/attempt-1");
        let kept = std::fs::read_dir(kept)?.next().context("no log is kept")??.path();
        assert_eq!(std::fs::read_to_string(&kept)?, log, "{}", kept.display());
    }
    ensure!(!new_daemon.exists(), "a job that succeeds leaves nothing either");
    assert_eq!(scene.api.state(&cluster).await?, "RUNNING");

    scene.api.stop(&cluster).await?;
    scene.api.wait_job(&cluster, &["CANCELLED"], SHORT).await?;
    scene.fleet.assert_clean().await
}

#[tokio::test]
async fn a_job_that_fails_or_cannot_start_fails_alone() -> TestResult {
    let (scene, cluster) = Scene::standing().await?;
    let _slot = slots::heavy().await?;
    let run = |text: &str, more: &str| format!("{{cluster: dev, run: {text:?}{more}}}");
    let fails = scene.api.submit(&run("echo to the log; exit 3", "")).await?;
    let failed = scene.api.wait_job(&fails, &["FAILED"], RAY).await?;
    let reason = failed["reason"].as_str().context("reason")?;
    ensure!(reason.starts_with("the entrypoint exited with code 3"), "{reason}");
    logs(&scene.api, &fails, "to the log").await?;

    // Where it starts, and a directory that cannot be made.
    let place = scene.fleet.path("a place");
    std::fs::create_dir(&place)?;
    let there = format!(", workdir: {place:?}");
    let there = scene.api.submit(&run("pwd", &there)).await?;
    scene.api.wait_job(&there, &["SUCCEEDED"], RAY).await?;
    logs(&scene.api, &there, &place.display().to_string()).await?;
    let blocked = scene.fleet.shared_root().join("blocked");
    std::fs::write(&blocked, "a file, where a directory is wanted")?;
    let blocked = format!(", checkpoint: {{dir: {:?}}}", blocked.join("c"));
    let blocked = scene.api.submit(&run("true", &blocked)).await?;
    let failed = scene.api.wait_job(&blocked, &["FAILED"], RAY).await?;
    let reason = failed["reason"].as_str().context("reason")?;
    ensure!(reason.contains("make directory") && reason.contains("blocked"), "{reason}");

    // An actor that outlives its driver and that Ray starts anew goes with the job as well.
    let program = scene.fleet.path("detached.py");
    std::fs::write(&program, DETACHED)?;
    let pids = scene.fleet.path("pids");
    let detached = json!({"cluster": "dev", "command": ["python", program, pids]});
    let detached = scene.api.submit(&detached.to_string()).await?;
    scene.api.wait_job(&detached, &["SUCCEEDED"], RAY).await?;
    // Ray starts it anew for as long as it likes; none lives long.
    let until = Instant::now() + SHORT;
    loop {
        let started = std::fs::read_to_string(&pids)?;
        ensure!(started.lines().count() >= 1, "the actor ran");
        let lives = |pid: &&str| Path::new("/proc").join(pid).exists();
        let Some(living) = started.lines().find(lives) else { break };
        ensure!(Instant::now() < until, "{living} of {started:?} lives");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    // The end of the cluster is the end of what runs on it.
    let long = scene.api.submit(&run("sleep 600", "")).await?;
    scene.api.wait_job(&long, &["RUNNING"], RAY).await?;
    scene.api.stop(&cluster).await?;
    scene.api.wait_job(&cluster, &["CANCELLED"], SHORT).await?;
    let ended = scene.api.wait_job(&long, &["CANCELLED"], SHORT).await?;
    let reason = ended["reason"].as_str().context("reason")?;
    ensure!(reason.contains("its cluster dev ended"), "{reason}");
    scene.fleet.assert_clean().await
}

#[tokio::test]
async fn a_job_brings_its_code_to_a_cluster() -> TestResult {
    let (scene, cluster) = Scene::standing().await?;
    let _slot = slots::heavy().await?;
    let project = scene.fleet.path("project");
    std::fs::create_dir_all(project.join("own"))?;
    std::fs::write(project.join("main.py"), OWN_CODE)?;
    std::fs::write(project.join("data.txt"), "data")?;
    let spec = "{name: own, cluster: dev, code: {snapshot: .}, command: [python, main.py]}";
    std::fs::write(project.join("spec.yaml"), spec)?;
    for word in ["mush", "gee"] {
        std::fs::write(project.join("own/word.py"), format!("WORD = '{word}'\n"))?;
        let submitted = std::process::Command::new(&scene.fleet.binaries.cli)
            .args(["--address", &scene.fleet.url(), "--token-file"])
            .arg(scene.fleet.admin_token_file())
            .args(["submit", "--id", word, "-o", "name"])
            .arg(project.join("spec.yaml"))
            .env("XDG_CACHE_HOME", scene.fleet.path("cache"))
            .output()?;
        let said = String::from_utf8_lossy(&submitted.stderr);
        ensure!(submitted.status.success(), "{said}");
        scene.api.wait_job(word, &["SUCCEEDED"], RAY).await?;
        logs(&scene.api, word, &format!("driver {word} data actor {word}")).await?;
        let job = scene.fleet.shared_root().join("jobs").join(word);
        assert_eq!(std::fs::read_to_string(job.join("work/written.txt"))?, word);
    }
    scene.api.stop(&cluster).await?;
    scene.api.wait_job(&cluster, &["CANCELLED"], SHORT).await?;
    scene.fleet.assert_clean().await
}
