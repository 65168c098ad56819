//! Faults in the middle of real trainings, and how long it takes until they train again, or until
//! it is known why they cannot.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::api::Api;
use crate::build::workspace;
use crate::fleet::Fleet;
use crate::process;
use crate::training::{steps, training, wait_steps};

/// How often a job is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Ray starts in seconds on a quiet machine; this machine may not be quiet.
const PATIENCE: Duration = Duration::from_secs(180);

/// What is done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    RayletKilled,
    WorkerKilled,
    HeadKilled,
    /// The simulated driver of rank 1's node reports that a GPU fell off the bus.
    Xid,
    Exception,
    WrongImport,
    MissingData,
}

/// What became of it.
#[derive(Debug)]
pub struct Recovered {
    pub fault: Fault,
    /// `category (sub_code)` of the first attempt, as `why` says it.
    pub verdict: String,
    pub action: String,
    /// What was done about it, in the coordinator's words.
    pub done: String,
    pub state: String,
    /// From the fault until the attempt was over for the coordinator.
    pub detect: Duration,
    /// From there until everything was gone and the cause known: the next attempt is assigned.
    pub stop: Duration,
    /// From there until the job ran again: for a Ray gang mostly Ray's own start.
    pub start: Option<Duration>,
    /// From there until its next training step.
    pub resume: Option<Duration>,
}

impl Fault {
    pub const ALL: [Fault; 7] = [
        Fault::RayletKilled,
        Fault::WorkerKilled,
        Fault::HeadKilled,
        Fault::Xid,
        Fault::Exception,
        Fault::WrongImport,
        Fault::MissingData,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::RayletKilled => "raylet killed",
            Fault::WorkerKilled => "worker process killed",
            Fault::HeadKilled => "Ray head killed",
            Fault::Xid => "Xid 79",
            Fault::Exception => "exception in the driver",
            Fault::WrongImport => "wrong import",
            Fault::MissingData => "missing data file",
        }
    }

    /// Whether the job is to train again after it.
    pub fn is_mended(self) -> bool {
        match self {
            Fault::RayletKilled | Fault::WorkerKilled | Fault::HeadKilled | Fault::Xid => true,
            Fault::Exception | Fault::WrongImport | Fault::MissingData => false,
        }
    }

    /// The category that the cause belongs to.
    pub fn category(self) -> &'static str {
        match self {
            Fault::RayletKilled | Fault::WorkerKilled | Fault::HeadKilled => "ray_runtime",
            // The node is taken out of use before anything fails.
            Fault::Xid => "",
            Fault::Exception => "user_code",
            Fault::WrongImport => "python_env",
            Fault::MissingData => "artifact_access",
        }
    }

    fn spec(self) -> String {
        let program = match self {
            Fault::Exception => "raise ValueError('the reward is no number')",
            Fault::WrongImport => "import a_package_that_nobody_has",
            Fault::MissingData => "open('/data/rlhf/train.parquet')",
            _ => return training("train", 2, 100_000, 0.1),
        };
        let steps = workspace().join("examples/ppo_cartpole.py");
        format!(
            "name: train\nresources: {{nnodes: 2, gpus_per_node: 2}}\nrun: |\n  python {} \
             --steps 10 --step-sleep 0.1 && python -c \"{program}\"\n",
            steps.display()
        )
    }

    async fn inject(self, fleet: &Fleet, api: &Api, job: &str) -> anyhow::Result<()> {
        match self {
            Fault::RayletKilled => kill(fleet, "/raylet/raylet", ":1"),
            Fault::WorkerKilled => kill(fleet, "ray::", ":1"),
            Fault::HeadKilled => kill(fleet, "gcs_server", ":head"),
            Fault::Xid => {
                let page = api.job(job).await?;
                let members = page["members"].as_array().context("members")?;
                let rank = members.iter().find(|member| member["member"] == "1");
                let node = rank.and_then(|rank| rank["node"].as_str()).context("rank 1")?;
                let file = fleet.gpu_file(node);
                let next = file.with_extension("next");
                let text = std::fs::read_to_string(&file)?;
                let gpu = "[[gpu]]\nxid = 79";
                std::fs::write(&next, text.replacen("[[gpu]]", gpu, 1))?;
                Ok(std::fs::rename(&next, &file)?)
            }
            Fault::Exception | Fault::WrongImport | Fault::MissingData => Ok(()),
        }
    }
}

fn kill(fleet: &Fleet, command: &str, member: &str) -> anyhow::Result<()> {
    let found = fleet.gang_processes();
    let process = found.iter().find(|found| {
        found.command.contains(command)
            && found.mark.as_ref().is_some_and(|mark| mark.ends_with(member))
    });
    process::kill(process.with_context(|| format!("no {command} of {member}"))?.pid)
}

/// Runs one training into one fault. The fleet has room for it on other nodes.
pub async fn recover(fleet: &Fleet, fault: Fault) -> anyhow::Result<Recovered> {
    let api = fleet.api()?;
    let job = api.submit(&fault.spec()).await?;
    wait_steps(fleet, &job, if fault.is_mended() { 12 } else { 10 }).await?;
    fault.inject(fleet, &api, &job).await?;
    let injected = Instant::now();
    let ended = until(&api, &job, |page| attempt(page, 1)["outcome"].is_string()).await?;
    let detect = injected.elapsed();
    let again = |page: &Value| page["attempts"] == 2 || is_over(page);
    let next = until(&api, &job, again).await?;
    let stop = injected.elapsed() - detect;
    // Nothing of the first attempt runs any more: what comes now is of the second.
    let of_first = steps(fleet, &job).len();
    let (mut start, mut resume) = (None, None);
    if !is_over(&next) {
        let at = injected.elapsed();
        until(&api, &job, |page| page["state"] == "RUNNING" || is_over(page)).await?;
        start = Some(injected.elapsed() - at);
        let at = injected.elapsed();
        while steps(fleet, &job).len() <= of_first {
            ensure!(injected.elapsed() < PATIENCE, "{job} makes no step");
            tokio::time::sleep(LOOK).await;
        }
        resume = Some(injected.elapsed() - at);
    }
    let why = api.get(&format!("/api/v1/jobs/{job}/why?attempt=1")).await?;
    let page = api.job(&job).await?;
    if !is_over(&page) {
        api.stop(&job).await?;
        api.wait_job(&job, &["CANCELLED"], PATIENCE).await?;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let diagnosis = &why["diagnosis"];
    let verdict = match diagnosis["category"].as_str() {
        Some(category) => format!("{category} ({})", text(&diagnosis["sub_code"])),
        None => text(&attempt(&ended, 1)["cause"]),
    };
    Ok(Recovered {
        fault,
        verdict,
        action: text(&diagnosis["action"]),
        done: text(&why["done"]),
        state: text(&page["state"]),
        detect,
        stop,
        start,
        resume,
    })
}

fn attempt(page: &Value, number: usize) -> &Value {
    &page["attempt_list"][number - 1]
}

fn is_over(page: &Value) -> bool {
    matches!(page["state"].as_str(), Some("SUCCEEDED" | "FAILED" | "CANCELLED" | "TIMEOUT"))
}

async fn until(api: &Api, job: &str, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let began = Instant::now();
    loop {
        let page = api.job(job).await?;
        if is_so(&page) {
            return Ok(page);
        }
        ensure!(began.elapsed() < PATIENCE, "{page}");
        tokio::time::sleep(LOOK).await;
    }
}
