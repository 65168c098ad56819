//! The code of a job, from a directory on the user's machine to the processes on the nodes, with the
//! real command line and real agents.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{RAY, SHORT, TestResult, built, command_fleet, ray_python};
use anyhow::{Context, ensure};
use gangline_common::ids::JobId;
use gangline_common::transport::StreamKind;
use gangline_common::wire::v1::{CodePart, CodeRequest};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::raw_agent::{RawAgent, hello};
use gangline_fleet::slots;
use serde_json::Value;

/// A program of two files and data, as it lies in a user's directory.
struct Project(PathBuf);

const SPEC: &str = "\
name: project
resources: {nnodes: 2}
launcher: {type: command}
code: {snapshot: .}
command: [python3, train.py]
";

const TRAIN: &str = r#"
import os
from pkg.value import VALUE
rank = os.environ["GANGLINE_NODE_RANK"]
print("value", VALUE, "of", len(open("data/words.txt").read().split()), "words", flush=True)
open(f"out-{rank}.txt", "w").write(str(VALUE))
"#;

impl Project {
    fn new(fleet: &Fleet) -> anyhow::Result<Project> {
        let project = Project(fleet.path("project"));
        project.write("spec.yaml", SPEC)?;
        project.write("train.py", TRAIN)?;
        project.write("pkg/__init__.py", "")?;
        project.write("pkg/value.py", "VALUE = 'one'\n")?;
        project.write("data/words.txt", "a b c\n")?;
        project.write(".gitignore", "*.secret\n")?;
        project.write("key.secret", "not for the nodes")?;
        project.write("pkg/large.bin", noise(8 << 20))?;
        Ok(project)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().context("a parent")?)?;
        Ok(std::fs::write(path, content)?)
    }

    /// Submits the spec with the command line; what it said of the code, and the job.
    async fn submit(&self, fleet: &Fleet) -> anyhow::Result<(String, Value)> {
        submitted(fleet, &["submit", path(&self.0.join("spec.yaml"))?]).await
    }
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path")
}

/// Bytes that do not repeat, the same every time.
fn noise(bytes: usize) -> Vec<u8> {
    let mut seed = 42u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// The command line as an administrator; both streams of a run that went well.
fn gangline(fleet: &Fleet, words: &[&str]) -> anyhow::Result<(String, String)> {
    let output = fleet.cli().args(words).env("XDG_CACHE_HOME", fleet.path("cache")).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{words:?}: {stderr}");
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), stderr))
}

/// Runs a command line that makes a job: what it said of the code, and the job.
async fn submitted(fleet: &Fleet, words: &[&str]) -> anyhow::Result<(String, Value)> {
    let (stdout, stderr) = gangline(fleet, words)?;
    let id = stdout.split_whitespace().next().context("an id")?;
    let code = stderr.lines().find(|line| line.contains("code")).unwrap_or(&stderr);
    Ok((code.to_owned(), fleet.api()?.job(id).await?))
}

fn id(job: &Value) -> anyhow::Result<String> {
    Ok(job["id"].as_str().context("an id")?.to_owned())
}

/// The name that the coordinator knows the code by.
fn tree(job: &Value) -> anyhow::Result<String> {
    let name = job["spec"]["code"]["snapshot"].as_str().context("code in the spec")?;
    Ok(name.strip_prefix("blake3:").context("a tree")?.to_owned())
}

/// Waits for a good end, and gives what rank 0 printed.
async fn succeeded(fleet: &Fleet, job: &Value) -> anyhow::Result<String> {
    let (api, id) = (fleet.api()?, id(job)?);
    let ended = api.wait_job(&id, &["SUCCEEDED", "FAILED"], SHORT).await?;
    let log = api.logs(&id, "").await?;
    ensure!(ended["state"] == "SUCCEEDED", "{ended}\n{log}");
    Ok(log)
}

#[tokio::test]
async fn a_changed_file_is_all_that_is_sent_and_old_code_stays() -> TestResult {
    let fleet = command_fleet(2).await?;
    let project = Project::new(&fleet)?;
    let (said, first) = project.submit(&fleet).await?;
    ensure!(said.contains("7 files, 8.0 MiB; sent 8.0 MiB"), "{said}");
    assert_eq!(succeeded(&fleet, &first).await?, "value one of 3 words\n");
    let first_tree = tree(&first)?;
    let snapshots = fleet.shared_root().join("users/admin/code");
    let snapshot = snapshots.join(&first_tree);
    let work = fleet.shared_root().join("jobs").join(id(&first)?).join("work");
    // What the job wrote beside its code is the job's; the code is as it was sent.
    for rank in 0..2 {
        assert_eq!(std::fs::read_to_string(work.join(format!("out-{rank}.txt")))?, "one");
    }
    let of_snapshot = || -> anyhow::Result<Vec<String>> {
        let entries = std::fs::read_dir(&snapshot)?;
        let mut names: Vec<String> = entries
            .map(|e| Ok(e?.file_name().to_string_lossy().into()))
            .collect::<anyhow::Result<_>>()?;
        names.sort();
        Ok(names)
    };
    assert_eq!(of_snapshot()?, [".gitignore", "data", "pkg", "spec.yaml", "train.py"]);
    ensure!(!snapshot.join("pkg/__pycache__").exists(), "Python wrote into the code");

    project.write("pkg/value.py", "VALUE = 'two'\n")?;
    let (said, second) = project.submit(&fleet).await?;
    ensure!(said.contains("the rest was there") && !said.contains("MiB ("), "{said}");
    assert_eq!(succeeded(&fleet, &second).await?, "value two of 3 words\n");
    ensure!(tree(&second)? != first_tree, "other code has another name");
    assert_eq!(std::fs::read_to_string(snapshot.join("pkg/value.py"))?, "VALUE = 'one'\n");
    let (said, third) = project.submit(&fleet).await?;
    ensure!(said.contains("nothing to send"), "{said}");
    assert_eq!(tree(&third)?, tree(&second)?);
    succeeded(&fleet, &third).await?;

    // A clone runs what the job ran, whatever the directory holds now.
    let (_, cloned) = submitted(&fleet, &["clone", &id(&first)?]).await?;
    assert_eq!(succeeded(&fleet, &cloned).await?, "value one of 3 words\n");
    let unfinished = std::fs::read_dir(&snapshots)?.flatten();
    let left = unfinished.filter(|e| e.file_name().to_string_lossy().contains(".new-")).count();
    assert_eq!(left, 0, "something unfinished was left");
    fleet.assert_clean().await
}

#[tokio::test]
async fn an_archive_is_code_as_well() -> TestResult {
    let fleet = command_fleet(2).await?;
    let project = Project::new(&fleet)?;
    let zip = "import shutil, sys; shutil.make_archive(sys.argv[1], 'zip', sys.argv[2])";
    let archive = fleet.path("code");
    let made = Command::new("python3").args(["-c", zip]).arg(&archive).arg(&project.0).status()?;
    ensure!(made.success(), "no archive");
    let spec = SPEC.replace("snapshot: .", "zip: code.zip");
    std::fs::write(fleet.path("zip.yaml"), spec)?;
    let zip = fleet.path("zip.yaml");
    let (said, job) = submitted(&fleet, &["submit", path(&zip)?]).await?;
    ensure!(said.contains("code.zip; sent 8."), "{said}");
    assert_eq!(succeeded(&fleet, &job).await?, "value one of 3 words\n");
    fleet.assert_clean().await
}

#[tokio::test]
async fn code_that_cannot_be_had_fails_the_job_with_its_cause() -> TestResult {
    let fleet = command_fleet(2).await?;
    let project = Project::new(&fleet)?;
    // A file where the directory of trees should be.
    std::fs::create_dir_all(fleet.shared_root().join("users"))?;
    std::fs::write(fleet.shared_root().join("users/admin"), "in the way")?;
    let (_, job) = project.submit(&fleet).await?;
    let ended = fleet.api()?.wait_job(&id(&job)?, &["SUCCEEDED", "FAILED"], SHORT).await?;
    let reason = ended["reason"].as_str().unwrap_or_default();
    ensure!(ended["state"] == "FAILED", "{ended}");
    ensure!(
        reason.contains("the code of the job is not there") && reason.contains("users/admin"),
        "{reason}"
    );
    std::fs::remove_file(fleet.shared_root().join("users/admin"))?;
    // The coordinator's own disk has lost it.
    project.write("pkg/value.py", "VALUE = 'three'\n")?;
    for packs in find_packs(&fleet.state_dir().join("code/projects"))? {
        std::fs::remove_file(packs)?;
    }
    let (_, job) = project.submit(&fleet).await?;
    let ended = fleet.api()?.wait_job(&id(&job)?, &["SUCCEEDED", "FAILED"], SHORT).await?;
    let reason = ended["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("the coordinator cannot read the code"), "{reason}");
    fleet.assert_clean().await
}

const REWARDED: &str = "\
name: rewarded
resources: {nnodes: 1}
launcher: {type: command}
code: {snapshot: .}
reward: {path: rewards/math.py, symbol: score}
command: [python3, train.py]
";

/// What the command line says of a spec that it does not send.
fn refused(fleet: &Fleet, spec: &Path) -> anyhow::Result<String> {
    let output = fleet
        .cli()
        .args(["submit", path(spec)?])
        .env("XDG_CACHE_HOME", fleet.path("cache"))
        .output()?;
    ensure!(!output.status.success(), "it was submitted");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn a_reward_function_is_checked_at_submit_and_before_the_job_runs() -> TestResult {
    let fleet = command_fleet(1).await?;
    let project = Project::new(&fleet)?;
    project.write("spec.yaml", REWARDED)?;
    let spec = project.0.join("spec.yaml");
    let said = refused(&fleet, &spec)?;
    ensure!(said.contains("the code has no file rewards/math.py"), "{said}");
    project.write("rewards/math.py", "def score(x:\n    return 1\n")?;
    let said = refused(&fleet, &spec)?;
    ensure!(said.contains("rewards/math.py: line 1: "), "{said}");
    project.write("rewards/math.py", "def scores(x):\n    return 1\n")?;
    let said = refused(&fleet, &spec)?;
    ensure!(said.contains("no function score") && said.contains("file: scores"), "{said}");
    project.write(".gitignore", "rewards\n")?;
    ensure!(refused(&fleet, &spec)?.contains("ignored"), "a file that is not sent");
    project.write(".gitignore", "*.secret\n")?;
    let jobs = fleet.api()?.get("/api/v1/jobs").await?;
    ensure!(jobs["jobs"].as_array().is_some_and(Vec::is_empty), "something was submitted: {jobs}");

    // It imports what the job brings, and leaves no trace in the job's environment.
    let good = "import os\nfrom pkg.value import VALUE\nos.environ['GANGLINE_NODE_RANK'] = 'x'\n\
                def score(x):\n    return VALUE\n";
    project.write("rewards/math.py", good)?;
    let (_, job) = project.submit(&fleet).await?;
    assert_eq!(succeeded(&fleet, &job).await?, "value one of 3 words\n");

    // What only the job's environment can tell.
    let failed = async |file: &str| -> anyhow::Result<String> {
        project.write("rewards/math.py", file)?;
        let (_, job) = project.submit(&fleet).await?;
        let (api, id) = (fleet.api()?, id(&job)?);
        let ended = api.wait_job(&id, &["SUCCEEDED", "FAILED"], SHORT).await?;
        ensure!(ended["state"] == "FAILED", "{ended}");
        ensure!(ended["reason"].as_str().is_some_and(|r| r.contains("code 2")), "{ended}");
        let log = api.logs(&id, "").await?;
        ensure!(!log.contains("words"), "the program ran: {log}");
        Ok(log)
    };
    let log = failed("import no_such_package\ndef score(x):\n    return 1\n").await?;
    ensure!(log.contains("No module named 'no_such_package'"), "{log}");
    ensure!(log.contains("reward.path: rewards/math.py cannot be imported by /"), "{log}");
    let log = failed("def other(x):\n    return 1\nif False:\n    score = other\n").await?;
    ensure!(log.contains("has no function score") && log.contains("one of: other"), "{log}");
    fleet.assert_clean().await
}

fn find_packs(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut packs = Vec::new();
    for project in std::fs::read_dir(directory)? {
        for pack in std::fs::read_dir(project?.path().join("packs"))? {
            packs.push(pack?.path());
        }
    }
    ensure!(!packs.is_empty(), "no packs in {}", directory.display());
    Ok(packs)
}

/// Takes the lock of a tree, as a node does that is about to fetch it.
fn lock(fleet: &Fleet, tree: &str) -> anyhow::Result<File> {
    let shelf = fleet.shared_root().join("users/admin/code");
    std::fs::create_dir_all(&shelf)?;
    let lock = File::create(shelf.join(format!(".{tree}.lock")))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

#[tokio::test]
async fn a_fetch_waits_for_another_node_outlives_the_coordinator_and_can_be_stopped() -> TestResult
{
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    for name in ["w0", "w1"] {
        fleet.add_agent(AgentOptions::worker(name, 1)).await?;
    }
    let project = Project::new(&fleet)?;
    project.write("spec.yaml", SPEC.replace("nnodes: 2", "nnodes: 2, gpus_per_node: 1"))?;
    let held = submit_behind_lock(&fleet, &project).await?;
    let api = fleet.api()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(api.state(&held.job).await?, "STARTING", "it did not wait for the lock");
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    drop(held.lock);
    let job = fleet.api()?.job(&held.job).await?;
    assert_eq!(succeeded(&fleet, &job).await?, "value one of 3 words\n");

    project.write("pkg/value.py", "VALUE = 'two'\n")?;
    let held = submit_behind_lock(&fleet, &project).await?;
    let api = fleet.api()?;
    api.stop(&held.job).await?;
    api.wait_job(&held.job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

/// A job that starts and finds the lock of its code taken.
struct Held {
    job: String,
    lock: File,
}

/// Submits while another job has the GPUs, so that the code is known before the job starts.
async fn submit_behind_lock(fleet: &Fleet, project: &Project) -> anyhow::Result<Held> {
    let api = fleet.api()?;
    let blocker = "name: blocker\nresources: {nnodes: 2, gpus_per_node: 1}\n\
                   launcher: {type: command}\ncommand: [sleep, '600']\n";
    let blocker = api.submit(blocker).await?;
    api.wait_job(&blocker, &["RUNNING"], SHORT).await?;
    let (_, job) = project.submit(fleet).await?;
    ensure!(job["state"] == "PENDING", "{job}");
    let lock = lock(fleet, &tree(&job)?)?;
    api.stop(&blocker).await?;
    let job = id(&job)?;
    api.wait_job(&job, &["STARTING"], SHORT).await?;
    Ok(Held { job, lock })
}

#[tokio::test]
async fn a38_an_agent_gets_the_code_of_its_own_jobs_alone() -> TestResult {
    let fleet = command_fleet(2).await?;
    let project = Project::new(&fleet)?;
    project.write("train.py", "import time; print('up', flush=True); time.sleep(600)")?;
    let (_, job) = project.submit(&fleet).await?;
    let job = id(&job)?;
    let running = fleet.api()?.wait_job(&job, &["RUNNING"], SHORT).await?;
    let tree = running["spec"]["code"]["snapshot"].as_str().context("code")?.to_owned();
    let token = fleet.join_token(1, 600).await?;
    let liar = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let session = liar.connect(&hello("liar")).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    for job in [job.as_str(), "j-unknown"] {
        let (mut sender, mut receiver) = session.connection.open_bi(StreamKind::Code).await?;
        let request = CodeRequest { job: JobId::new(job)?, tree: tree.clone() };
        sender.send(&request.to_frame()?).await?;
        let answer = CodePart::from_frame(&receiver.receive().await?.context("an answer")?)?;
        let reason = "this node runs no job with that code".to_owned();
        assert_eq!(answer, CodePart::Refused { reason });
        ensure!(receiver.receive().await?.is_none(), "more than a refusal");
    }
    fleet.api()?.stop(&job).await?;
    fleet.api()?.wait_job(&job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

#[tokio::test]
async fn nodes_that_share_nothing_fetch_their_own() -> TestResult {
    let options = FleetOptions { without_shared_root: true, ..FleetOptions::default() };
    let mut fleet = Fleet::start(built().await?, options).await?;
    for name in ["w0", "w1"] {
        fleet.add_agent(AgentOptions::worker(name, 0)).await?;
    }
    let project = Project::new(&fleet)?;
    let (_, job) = project.submit(&fleet).await?;
    assert_eq!(succeeded(&fleet, &job).await?, "value one of 3 words\n");
    assert_eq!(fleet.api()?.logs(&id(&job)?, "rank=1").await?, "value one of 3 words\n");
    // The code goes with its member: temp dirs are looked through here.
    fleet.assert_clean().await
}

/// Imports a module of the code and reads a file of it, in the driver and on every node.
const RAY_PROGRAM: &str = r#"
import os, ray
from pkg.value import VALUE
ray.init()

@ray.remote(num_gpus=4)
def there():
    from pkg.value import VALUE
    return VALUE, open("data/words.txt").read(), os.environ["GANGLINE_NODE_RANK"]

seen = sorted(ray.get([there.remote() for _ in range(2)]), key=lambda one: one[2])
print("driver", VALUE, "tasks", seen, flush=True)
"#;

#[tokio::test]
async fn tasks_of_ray_see_the_code_on_every_node() -> TestResult {
    let binaries = built().await?;
    let python = Some(ray_python(&binaries).await?);
    let options = FleetOptions { python, without_shared_root: true, ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries, options).await?;
    let _slot = slots::heavy().await?;
    fleet.add_agent(AgentOptions::head("head")).await?;
    fleet.add_agent(AgentOptions::worker("a", 4)).await?;
    fleet.add_agent(AgentOptions::worker("b", 4)).await?;
    let project = Project::new(&fleet)?;
    project.write("train.py", RAY_PROGRAM)?;
    project.write("rewards/own.py", "from pkg.value import VALUE\ndef compute_score(x): ...\n")?;
    project.write(
        "spec.yaml",
        "name: ray\nresources: {nnodes: 2, gpus_per_node: 4}\ncode: {snapshot: .}\n\
         reward: {path: rewards/own.py}\ncommand: [python, train.py]\n",
    )?;
    let (_, job) = project.submit(&fleet).await?;
    let (api, id) = (fleet.api()?, id(&job)?);
    let ended = api.wait_job(&id, &["SUCCEEDED", "FAILED"], RAY).await?;
    let log = api.logs(&id, "").await?;
    ensure!(ended["state"] == "SUCCEEDED", "{ended}\n{log}");
    let expected = r"driver one tasks [('one', 'a b c\n', '0'), ('one', 'a b c\n', '1')]";
    ensure!(log.contains(expected), "{log}");
    fleet.assert_clean().await
}
