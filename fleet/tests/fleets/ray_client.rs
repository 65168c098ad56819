//! The stock `ray job` command and `JobSubmissionClient` against our coordinator, on real Ray.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{RAY, SHORT, TestResult, ray_fleet, ray_python};
use anyhow::{Context, ensure};
use gangline_fleet::fleet::Fleet;
use gangline_fleet::slots;
use tokio::process::Command;

/// A user with Ray's own programs, and nothing of ours.
struct RayUser {
    python: PathBuf,
    url: String,
    token: String,
}

/// What a program printed, both streams, and whether it succeeded.
struct Printed {
    success: bool,
    text: String,
}

impl RayUser {
    async fn of(fleet: &Fleet) -> anyhow::Result<RayUser> {
        let python = ray_python(&fleet.binaries).await?;
        let token = std::fs::read_to_string(fleet.admin_token_file())?;
        Ok(RayUser { python, url: fleet.url(), token })
    }

    /// A program of the Ray environment, told where to go by Ray's own variables.
    fn command(&self, program: &Path, profile: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("RAY_API_SERVER_ADDRESS", format!("{}{profile}", self.url))
            .env("RAY_AUTH_MODE", "token")
            .env("RAY_AUTH_TOKEN", &self.token)
            .env("NO_PROXY", "127.0.0.1")
            .env_remove("RAY_ADDRESS")
            .env_remove("RAY_JOB_HEADERS")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// `ray job …` with the coordinator's plain address.
    async fn job(&self, arguments: &[&str]) -> anyhow::Result<Printed> {
        self.job_at("", arguments).await
    }

    /// `ray job …` with an address that names a size.
    async fn job_at(&self, profile: &str, arguments: &[&str]) -> anyhow::Result<Printed> {
        let mut command = self.command(&self.python.with_file_name("ray"), profile);
        command.arg("job").args(arguments);
        finish(command).await
    }

    /// As [`RayUser::job`]; an error when the command fails.
    async fn good_job(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let printed = self.job(arguments).await?;
        ensure!(printed.success, "ray job {arguments:?} failed:\n{}", printed.text);
        Ok(printed.text)
    }
}

async fn finish(mut command: Command) -> anyhow::Result<Printed> {
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = tokio::time::timeout(RAY, running).await.context("it does not end")??;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Printed { success: output.status.success(), text })
}

fn contains(text: &str, words: &[&str]) -> TestResult {
    for word in words {
        ensure!(text.contains(word), "{word:?} is not in:\n{text}");
    }
    Ok(())
}

/// Says hello with a variable of its runtime environment, and goes on for long.
const LONG: &str =
    "import os, time; print('hello', os.environ['WORD'], flush=True); time.sleep(600)";

#[tokio::test]
async fn the_ray_command_works() -> TestResult {
    let mut fleet = ray_fleet().await?;
    let _slot = slots::heavy().await?;
    let user = RayUser::of(&fleet).await?;
    let api = fleet.api()?;

    let variables = r#"{"env_vars": {"WORD": "mush"}}"#;
    let submit = ["submit", "--no-wait", "--submission-id", "first", "--runtime-env-json"];
    let submit = [&submit[..], &[variables, "--", "python", "-c", LONG]].concat();
    let submitted = user.job_at("/profile/2x1", &submit).await?;
    ensure!(submitted.success, "{}", submitted.text);
    contains(&submitted.text, &["Job 'first' submitted successfully"])?;
    // What was answered is durable: the submit here, the deletion below.
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    let running = api.wait_job("first", &["RUNNING"], RAY).await?;
    assert_eq!((&running["nnodes"], &running["gpus_per_node"]), (&2.into(), &1.into()));
    contains(&user.good_job(&["status", "first"]).await?, &["RUNNING"])?;
    let list = user.good_job(&["list"]).await?;
    contains(&list, &["submission_id='first'", "JobStatus.RUNNING", "driver_node_id="])?;
    let again = user.job(&submit).await?;
    ensure!(!again.success, "the id is taken");
    contains(&again.text, &["status code 400", "first exists already"])?;

    let until = Instant::now() + SHORT;
    while !user.good_job(&["logs", "first"]).await?.contains("hello mush") {
        ensure!(Instant::now() < until, "the log does not come");
    }
    let mut following = user.command(&user.python.with_file_name("ray"), "");
    following.args(["job", "logs", "-f", "first"]);
    let following = tokio::spawn(finish(following));
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(!following.is_finished(), "the job still runs");
    contains(&user.good_job(&["stop", "first"]).await?, &["Job 'first' was stopped"])?;
    contains(&user.good_job(&["status", "first"]).await?, &["Job 'first' was stopped"])?;
    let followed = following.await??;
    ensure!(followed.success, "{}", followed.text);
    contains(&followed.text, &["hello mush"])?;
    user.good_job(&["delete", "first"]).await?;
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    let gone = user.job(&["status", "first"]).await?;
    contains(&gone.text, &["status code 404", "Job first does not exist"])?;
    assert!(api.get("/api/v1/jobs/first").await.is_err(), "it is gone from our dialect too");

    // Waits, prints the log, and exits as the job did.
    let quick = ["submit", "--", "python", "-c", "print('six' * 7)"];
    let waited = user.job_at("/profile/1x1", &quick).await?;
    ensure!(waited.success, "{}", waited.text);
    contains(&waited.text, &["sixsixsixsixsixsixsix", "succeeded"])?;
    contains(&user.good_job(&["list"]).await?, &["JobStatus.SUCCEEDED", "raysubmit_"])?;
    fleet.assert_clean().await
}

#[tokio::test]
async fn the_ray_command_says_what_is_wrong() -> TestResult {
    let fleet = ray_fleet().await?;
    let user = RayUser::of(&fleet).await?;
    let bucket = r#"{"working_dir": "s3://bucket/code.zip"}"#;
    let remote = user.job(&["submit", "--runtime-env-json", bucket, "--", "true"]).await?;
    ensure!(!remote.success, "nobody fetches a working directory from elsewhere");
    contains(&remote.text, &["runtime_env.working_dir", "is not available yet"])?;
    let elsewhere = user.job_at("/profile/2xmany", &["list"]).await?;
    ensure!(!elsewhere.success, "there is no such profile");

    let stranger = RayUser { token: "gla_wrong".to_owned(), ..user };
    let refused = stranger.job(&["list"]).await?;
    ensure!(!refused.success, "the token is wrong");
    contains(&refused.text, &["the token is not known"])?;
    let api = fleet.api()?;
    assert_eq!(api.get("/api/v1/jobs").await?["jobs"], serde_json::json!([]));
    Ok(())
}

#[tokio::test]
async fn a_standing_cluster_takes_jobs_of_the_ray_command() -> TestResult {
    let fleet = ray_fleet().await?;
    let _slot = slots::heavy().await?;
    let user = RayUser::of(&fleet).await?;
    let api = fleet.api()?;
    let none = user.job_at("/on/dev", &["submit", "--", "true"]).await?;
    ensure!(!none.success, "there is no cluster yet");
    contains(&none.text, &["has no standing cluster of this name"])?;
    let spec = "{kind: cluster, name: dev, resources: {nnodes: 2, gpus_per_node: 2}}";
    let cluster = api.submit(spec).await?;
    let elsewhere = user.job(&["submit", "--no-wait", "--submission-id", "own", "--", "true"]);
    ensure!(elsewhere.await?.success, "a job with a gang of its own");
    api.wait_job(&cluster, &["RUNNING"], RAY).await?;
    let quick = ["submit", "--submission-id", "guest", "--", "python", "-c", "print('six' * 7)"];
    let waited = user.job_at("/on/dev/profile/1x1", &quick).await?;
    ensure!(waited.success, "{}", waited.text);
    contains(&waited.text, &["sixsixsixsixsixsixsix", "succeeded"])?;
    assert_eq!(api.job("guest").await?["cluster"], cluster);
    let listed = user.job_at("/on/dev", &["list"]).await?.text;
    contains(&listed, &["submission_id='guest'"])?;
    ensure!(!listed.contains("submission_id='own'"), "a job of another gang: {listed}");
    api.wait_job("own", &["SUCCEEDED"], RAY).await?;
    api.stop(&cluster).await?;
    api.wait_job(&cluster, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

/// Half of it of the kind that packs well, half of the kind that does not.
const DATA_BYTES: usize = 50 << 20;

/// Imports a module of its directory and reads its data, here and in a task on the other node.
const TRAIN: &str = r#"
import hashlib, os, ray
from pkg.lines import WORD
ray.init()

@ray.remote(num_gpus=1)
def there():
    from pkg.lines import WORD
    return WORD, hashlib.sha256(open("pkg/data.bin", "rb").read()).hexdigest()

here = (WORD, hashlib.sha256(open("pkg/data.bin", "rb").read()).hexdigest())
agree = set(ray.get([there.remote() for _ in range(2)])) == {here}
print("tasks agree", agree, *here, flush=True)
open("result.txt", "w").write(WORD)
"#;

#[tokio::test]
async fn a_working_directory_of_50_mb_is_uploaded_and_run() -> TestResult {
    let fleet = ray_fleet().await?;
    let _slot = slots::heavy().await?;
    let user = RayUser::of(&fleet).await?;
    let code = fleet.path("code");
    std::fs::create_dir_all(code.join("pkg"))?;
    let mut seed = 7u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    let mut data: Vec<u8> = (0..DATA_BYTES / 2).map(|_| next()).collect();
    data.resize(DATA_BYTES, b'.');
    std::fs::write(code.join("pkg/data.bin"), &data)?;
    std::fs::write(code.join("pkg/__init__.py"), "")?;
    std::fs::write(code.join("pkg/lines.py"), "WORD = 'mush'\n")?;
    std::fs::write(code.join("train.py"), TRAIN)?;
    let hash = data_encoding::HEXLOWER.encode(&gangline_common::tls::sha256(&data));
    let directory = code.to_str().context("path")?;
    let submit = ["submit", "--working-dir", directory, "--", "python", "train.py"];
    let ran = user.job_at("/profile/2x1", &submit).await?;
    ensure!(ran.success, "{}", ran.text);
    contains(&ran.text, &["tasks agree True mush", &hash, "succeeded"])?;
    // What the job wrote is not in its code, which the next job finds as it was.
    std::fs::write(code.join("pkg/lines.py"), "WORD = 'gee'\n")?;
    let ran = user.job_at("/profile/2x1", &submit).await?;
    contains(&ran.text, &["tasks agree True gee", &hash, "succeeded"])?;
    let mut words = Vec::new();
    for tree in std::fs::read_dir(fleet.shared_root().join("users/admin/code"))? {
        let tree = tree?.path();
        if tree.is_dir() {
            words.push(std::fs::read_to_string(tree.join("pkg/lines.py"))?);
            ensure!(!tree.join("result.txt").exists(), "the job wrote into its code");
        }
    }
    words.sort();
    assert_eq!(words, ["WORD = 'gee'\n", "WORD = 'mush'\n"]);
    // The second time the client finds its upload there.
    let again = user.job_at("/profile/2x1", &submit).await?;
    contains(&again.text, &["already exists, skipping upload", "succeeded"])?;
    fleet.assert_clean().await
}

/// What Python programs do, on a job that fails.
const CLIENT: &str = r#"
import asyncio, sys
from ray.job_submission import JobSubmissionClient

client = JobSubmissionClient(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
job = client.submit_job(entrypoint="echo to the log; exit 3", metadata={"team": "rl"})
print("pending", client.get_job_status(job).value)

async def follow():
    return "".join([text async for text in client.tail_job_logs(job)])

tail = asyncio.run(follow())
info = client.get_job_info(job)
print("after the tail", info.status.value, info.metadata, info.end_time > info.start_time)
logs = client.get_job_logs(job)
print("logs", "to the log\n" in logs, "as tailed", logs == tail, logs, tail)
print("message", info.message)
print("listed", [other.submission_id for other in client.list_jobs()] == [job])
print("stopped", client.stop_job(job), "deleted", client.delete_job(job), client.list_jobs())
"#;

#[tokio::test]
async fn the_python_client_works() -> TestResult {
    let fleet = ray_fleet().await?;
    let _slot = slots::heavy().await?;
    let user = RayUser::of(&fleet).await?;
    let mut command = user.command(&user.python, "");
    command.env_remove("RAY_AUTH_MODE").env_remove("RAY_AUTH_TOKEN");
    command.args(["-c", CLIENT, &format!("{}/profile/1x0", user.url), &user.token]);
    let printed = finish(command).await?;
    ensure!(printed.success, "{}", printed.text);
    contains(
        &printed.text,
        &[
            "pending PENDING",
            "after the tail FAILED {'team': 'rl'} True",
            "logs True as tailed True",
            "message the entrypoint exited with code 3",
            "listed True",
            "stopped False deleted True []",
        ],
    )?;
    fleet.assert_clean().await
}
