//! Faults in the middle of real trainings, and how long it takes until they train again, or until
//! it is known why they cannot.

pub mod limits;
mod stage;
mod watch;

use std::time::{Duration, Instant};

use anyhow::Context;
use gangline_common::ids::MARK_VARIABLE;
use rustix::process::Signal;
use serde_json::Value;

pub use self::stage::Stage;
pub use self::watch::{Found, Times, Watch, is_over, node_of};
use crate::build::workspace;
use crate::fleet::Fleet;
use crate::process;
use crate::training::{training, wait_steps};

/// Ray starts in seconds on a quiet machine, and a lost node is waited for; this machine may not be
/// quiet.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process that a member consists of, `ray start` of rank 1: nobody but the kernel of a full machine
    /// is known to do that, so it is taken for that.
    MemberKilled,
    RayletKilled,
    WorkerKilled,
    HeadKilled,
    /// The simulated driver of rank 1's node reports that a GPU fell off the bus.
    Xid,
    /// A process of rank 1 stands still, and the spec asks for a restart.
    Hang,
    /// What the nodes share is full until the attempt has failed.
    FullDisk,
    /// Rank 1's node is cut off, and nothing of it ever comes back.
    NodeLost,
    Exception,
    WrongImport,
    MissingData,
    /// A task on rank 1 wants more than its cgroup may have.
    OutOfMemory,
}

/// What became of it.
#[derive(Debug)]
pub struct Recovered {
    pub fault: Fault,
    pub found: Found,
    pub state: String,
    pub times: Times,
}

impl Fault {
    pub const ALL: [Fault; 12] = [
        Fault::MemberKilled,
        Fault::RayletKilled,
        Fault::WorkerKilled,
        Fault::HeadKilled,
        Fault::Xid,
        Fault::Hang,
        Fault::FullDisk,
        Fault::NodeLost,
        Fault::Exception,
        Fault::WrongImport,
        Fault::MissingData,
        Fault::OutOfMemory,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::MemberKilled => "member process killed",
            Fault::RayletKilled => "raylet killed",
            Fault::WorkerKilled => "worker process killed",
            Fault::HeadKilled => "Ray head killed",
            Fault::Xid => "Xid 79",
            Fault::Hang => "a rank hangs",
            Fault::FullDisk => "full disk",
            Fault::NodeLost => "node lost",
            Fault::Exception => "exception in the driver",
            Fault::WrongImport => "wrong import",
            Fault::MissingData => "missing data file",
            Fault::OutOfMemory => "out of memory in a cgroup",
        }
    }

    /// Whether the job is to train again after it.
    pub fn is_mended(self) -> bool {
        !matches!(
            self,
            Fault::MemberKilled
                | Fault::Exception
                | Fault::WrongImport
                | Fault::MissingData
                | Fault::OutOfMemory
        )
    }

    /// A process or a GPU of it dies: that is seen at once, and nothing has to be waited for.
    pub fn is_death(self) -> bool {
        matches!(self, Fault::RayletKilled | Fault::WorkerKilled | Fault::HeadKilled | Fault::Xid)
    }

    /// The category that the cause belongs to.
    pub fn category(self) -> &'static str {
        match self {
            Fault::RayletKilled | Fault::WorkerKilled | Fault::HeadKilled | Fault::NodeLost => {
                "ray_runtime"
            }
            Fault::Xid => "gpu_hardware",
            Fault::Hang => "collective_hang",
            Fault::FullDisk => "storage",
            Fault::Exception => "user_code",
            Fault::WrongImport => "python_env",
            Fault::MissingData => "artifact_access",
            Fault::OutOfMemory | Fault::MemberKilled => "host_resources",
        }
    }

    fn spec(self) -> String {
        let program = match self {
            Fault::Exception => "raise ValueError('the reward is no number')",
            Fault::WrongImport => "import a_package_that_nobody_has",
            Fault::MissingData => "open('/data/rlhf/train.parquet')",
            Fault::OutOfMemory => EATER,
            Fault::Hang => return format!("{}{HANG}", training("train", 2, 100_000, 0.1)),
            _ => return training("train", 2, 100_000, 0.1),
        };
        let steps = workspace().join("examples/ppo_cartpole.py");
        format!(
            "name: train\nresources: {{nnodes: 2, gpus_per_node: 2}}\nrun: |\n  python {} \
             --steps 10 --step-sleep 0.1 && python -c \"{program}\"\n",
            steps.display()
        )
    }

    /// Does it to a job that trains, where it is about a rank to this one.
    pub fn inject(self, fleet: &Fleet, page: &Value, rank: u32) -> anyhow::Result<()> {
        let job = page["id"].as_str().context("id")?;
        let rank = rank.to_string();
        match self {
            Fault::MemberKilled => signal(job, RAY_START, &rank, Signal::KILL),
            Fault::RayletKilled => signal(job, "/raylet/raylet", &rank, Signal::KILL),
            Fault::WorkerKilled => signal(job, ACTOR, &rank, Signal::KILL),
            Fault::HeadKilled => signal(job, "gcs_server", "head", Signal::KILL),
            Fault::Xid => edit_gpus(fleet, &node_of(page, &rank)?, WELL, SICK),
            Fault::Hang => signal(job, ACTOR, &rank, Signal::STOP),
            // Of the fleet's surroundings, or of the program itself.
            Fault::FullDisk
            | Fault::NodeLost
            | Fault::Exception
            | Fault::WrongImport
            | Fault::MissingData
            | Fault::OutOfMemory => Ok(()),
        }
    }
}

/// The process that the shim of a member of a Ray gang starts.
const RAY_START: &str = "ray start ";
/// The process of a rank that trains.
const ACTOR: &str = "ray::RolloutActor";
/// Takes memory on rank 1 until it is killed.
const EATER: &str = "import ray; ray.init(); eat = ray.remote(resources={'gangline_rank_1': \
                     0.001}, max_retries=0)(lambda: [b'x' * (1 << 26) for _ in range(1000)]); \
                     ray.get(eat.remote())";
const HANG: &str = "hang: {warn_after: 5s, after: 10s, action: restart}\n";

/// The first GPU of a node, and the same after an Xid.
const WELL: &str = "[[gpu]]\n";
const SICK: &str = "[[gpu]]\nxid = 79\n";

/// Takes an Xid back.
pub fn cure(fleet: &Fleet, node: &str) -> anyhow::Result<()> {
    edit_gpus(fleet, node, SICK, WELL)
}

/// Changes the state of a node's GPUs in one step.
fn edit_gpus(fleet: &Fleet, node: &str, from: &str, to: &str) -> anyhow::Result<()> {
    let file = fleet.gpu_file(node);
    let next = file.with_extension("next");
    std::fs::write(&next, std::fs::read_to_string(&file)?.replacen(from, to, 1))?;
    Ok(std::fs::rename(&next, &file)?)
}

/// To the process of a member that has this in its command.
fn signal(job: &str, command: &str, member: &str, signal: Signal) -> anyhow::Result<()> {
    // Only what runs for the job names it; everything of its gang has the gang's mark.
    let of_job = process::find("GANGLINE_JOB_ID", job, None);
    let mark = of_job.iter().find_map(|found| found.mark.as_ref());
    let gang = mark.and_then(|mark| Some(mark.rsplit_once(':')?.0)).context("the job's gang")?;
    let mark = format!("{gang}:{member}");
    let mut found = process::find(MARK_VARIABLE, &mark, None);
    found.retain(|process| process.mark.as_ref() == Some(&mark));
    let process = found.iter().find(|process| process.command.contains(command));
    let process = process.with_context(|| format!("no {command} of {mark}: {found:?}"))?;
    process::signal(process.pid, signal)
}

/// Runs one training into one fault, on what was made for it.
pub async fn recover(stage: &Stage, fault: Fault) -> anyhow::Result<Recovered> {
    let fleet = stage.fleet();
    let api = fleet.api()?;
    let job = api.submit(&fault.spec()).await?;
    wait_steps(fleet, &job, if fault.is_mended() { 12 } else { 10 }).await?;
    let page = api.job(&job).await?;
    fault.inject(fleet, &page, 1)?;
    stage.inject(fault, &page, 1)?;
    let injected = Instant::now();
    let watch = Watch { api: &api, root: &fleet.shared_root(), job: &job, patience: PATIENCE };
    watch.ended(1).await?;
    stage.give_back()?;
    let (times, found) = watch.follow(1, injected).await?;
    let page = api.job(&job).await?;
    if !is_over(&page) {
        api.stop(&job).await?;
        api.wait_job(&job, &["CANCELLED"], PATIENCE).await?;
    }
    let state = page["state"].as_str().unwrap_or_default().to_owned();
    Ok(Recovered { fault, found, state, times })
}
