//! The scene of a member: asked of a helper (`crate::scene`), completed with what the agent itself
//! knows, and kept in the member's spool as one more log.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gangline_common::ids::MemberKey;
use gangline_common::time::{Timestamp, wall_text};
use gangline_common::wire::request::{FailureReason, RayStateRequest, RaySubject, RequestFailure};
use gangline_common::wire::scene::{Occasion, Part, Scene};
use gangline_common::wire::v1::Assignment;
use tokio::sync::watch;

use super::births::Nursery;
use super::files::{self, Request, Task};
use super::process;
use super::ray_state::RayClusters;
use super::secrets::Known;
use super::spool::Spool;
use super::{MemberPlan, SupervisorConfig};
use crate::scene::history::History;
use crate::scene::{self, STACKS_PART, Subject};
use crate::shim::LAUNCH_FILE;
use crate::shim::record::Launch;

/// A scene that takes longer is given up; the helper itself ends a little before.
const LIMIT: Duration = Duration::from_secs(9);
/// The longest that anything waits for a scene.
pub const DELAY: Duration = Duration::from_secs(10);
/// What Ray is given for each of its lists.
const RAY_LIMIT: Duration = Duration::from_secs(2);
/// Most entries of a list of Ray's.
const RAY_ENTRIES: u32 = 200;
/// What a scene is taken of.
pub struct Witness {
    pub plan: MemberPlan,
    /// The newest content of the plan's assignment.
    pub assignment: watch::Receiver<Arc<Assignment>>,
    pub spool: Arc<Spool>,
    pub config: Arc<SupervisorConfig>,
    pub nursery: Arc<Nursery>,
    pub ray: RayClusters,
    pub history: History,
    /// One is being kept, or was.
    pub begun: AtomicBool,
}

/// The members that can be asked for their scenes; cheap to clone.
#[derive(Clone, Default)]
pub struct Scenes {
    witnesses: Arc<Mutex<BTreeMap<MemberKey, Arc<Witness>>>>,
}

/// A member's place among those that can be asked; given up on drop.
pub struct Listed {
    scenes: Scenes,
    key: MemberKey,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.scenes.lock().remove(&self.key);
    }
}

/// What somebody wants to have of a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Stacks,
    All,
    /// The stacks; and all of it is left among the member's logs, as of one that hangs.
    KeptHung,
    /// Nothing; it is left there as of one whose attempt has failed.
    KeptFailed,
}

impl Scenes {
    pub(super) fn list(&self, witness: &Arc<Witness>) -> Listed {
        let key = witness.plan.key.clone();
        self.lock().insert(key.clone(), Arc::clone(witness));
        Listed { scenes: self.clone(), key }
    }

    /// The scene of a member as JSON, or its stacks alone.
    ///
    /// # Errors
    /// When it does not run here, or nothing could be taken.
    pub async fn answer(&self, key: &MemberKey, wanted: Wanted) -> Result<Vec<u8>, RequestFailure> {
        let failure = |reason, text| RequestFailure { reason, text };
        let witness = self.lock().get(key).cloned();
        let witness = witness.filter(|witness| witness.lives()).ok_or_else(|| {
            failure(FailureReason::NotHere, "the member does not run here".to_owned())
        })?;
        let taken = match wanted {
            Wanted::Stacks => witness.take(Occasion::Asked, true).await,
            Wanted::All => witness.take(Occasion::Asked, false).await,
            Wanted::KeptHung => witness.keep_hung().await,
            Wanted::KeptFailed => {
                witness.keep(Occasion::Stopping).await;
                Ok(Scene::default())
            }
        };
        let taken = taken.and_then(|scene| written(&scene));
        taken.map_err(|text| failure(FailureReason::NoAnswer, text))
    }

    // The map is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberKey, Arc<Witness>>> {
        self.witnesses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Witness {
    fn lives(&self) -> bool {
        self.spool.shim().is_some_and(process::lives)
    }

    /// Takes the scene and leaves it among the member's logs, unless that was done or begun before.
    /// Returns after [`DELAY`] at the latest.
    pub async fn keep(&self, occasion: Occasion) {
        if occasion == Occasion::Stopping && !self.lives() {
            return; // its own end says more, or there never was anything
        }
        if self.begun.swap(true, Ordering::AcqRel) || self.spool.scene().exists() {
            return;
        }
        let keeping = async {
            let scene = self.take(occasion, false).await?;
            let (bytes, path) = (written(&scene)?, self.spool.scene());
            let writing = tokio::task::spawn_blocking(move || write_new(&path, &bytes));
            writing.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
        };
        let key = &self.plan.key;
        match tokio::time::timeout(DELAY, keeping).await {
            Ok(Ok(())) => tracing::info!(%key, "kept how things stood"),
            Ok(Err(error)) => tracing::warn!(%key, error, "how things stood was not kept"),
            Err(_) => tracing::warn!(%key, "how things stood was not kept in time"),
        }
    }

    /// Takes the scene of a member that hangs and leaves it among its logs, unless there is one of an
    /// earlier time. Returns the stacks.
    async fn keep_hung(&self) -> Result<Scene, String> {
        let mut scene = self.take(Occasion::Hung, false).await?;
        let (bytes, path) = (written(&scene)?, self.spool.hung_scene());
        let writing = tokio::task::spawn_blocking(move || write_new(&path, &bytes));
        let kept = writing.await.map_err(|error| error.to_string())?;
        // Who asked wants the stacks whether there is room for the rest or not.
        if let Err(error) = kept {
            tracing::warn!(key = %self.plan.key, %error, "how it hangs was not kept");
        }
        scene.parts.retain(|part| part.name == STACKS_PART);
        Ok(scene)
    }

    async fn take(&self, occasion: Occasion, only_stacks: bool) -> Result<Scene, String> {
        let began = Instant::now();
        let wall_ms = Timestamp::now().wall_ms;
        let spool = Arc::clone(&self.spool);
        let launched = tokio::task::spawn_blocking(move || environment_of(&spool));
        let mut environment = launched.await.unwrap_or_default();
        let assignment = Arc::clone(&self.assignment.borrow());
        environment.extend(assignment.env.iter().cloned());
        let known = Known::of(&assignment, &environment);
        let redactor = known.redactor().map_err(|error| error.to_string())?;
        let Known { names: secret_names, values: secrets } = known;
        let subject = Subject {
            shim: self.spool.shim().filter(|_| occasion != Occasion::Ended),
            environment,
            secrets,
            secret_names,
            spec_names: assignment.env.iter().map(|(name, _)| name.clone()).collect(),
            logs: self.logs(),
            ray_logs: self.spool.ray_logs(),
            py_spy: py_spy(&self.config.python),
            only_stacks,
        };
        let request = Request { run_as: None, task: Task::TakeScene(Box::new(subject)) };
        let helper = files::ask_helper::<Scene>(&self.nursery, &request, LIMIT);
        let (taken, own) = tokio::join!(helper, self.own_parts(occasion, only_stacks));
        let mut scene = taken
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "the helper took nothing".to_owned())?;
        for mut part in own {
            part.text = redactor.clean(&part.text);
            scene.parts.push(part);
        }
        scene.job = self.plan.assignment.job.to_string();
        scene.attempt = self.plan.assignment.attempt;
        scene.mark = self.plan.key.mark();
        scene.occasion = occasion;
        scene.taken = wall_text(wall_ms);
        scene.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        scene::bound(&mut scene);
        Ok(scene)
    }

    fn logs(&self) -> Vec<(String, PathBuf)> {
        let mut logs = vec![("output".to_owned(), self.spool.output())];
        // The newest are those of the jobs that run.
        logs.extend(self.spool.driver_logs().into_iter().rev().take(4));
        logs
    }

    /// What the agent knows without a helper.
    async fn own_parts(&self, occasion: Occasion, only_stacks: bool) -> Vec<Part> {
        if only_stacks {
            return Vec::new();
        }
        let mut parts = vec![
            scene::timed("versions", || Ok(self.versions())),
            scene::timed("samples", || {
                Ok(self.history.table(&self.plan.member.gpus.iter().cloned().collect()))
            }),
        ];
        let is_head = self.plan.key.member == gangline_common::ids::MemberId::Head;
        if is_head && occasion != Occasion::Ended {
            for (name, subject) in
                [("ray nodes", RaySubject::Nodes), ("ray actors", RaySubject::Actors)]
            {
                parts.push(self.ray_part(name, subject).await);
            }
        }
        parts
    }

    async fn ray_part(&self, name: &str, subject: RaySubject) -> Part {
        let began = Instant::now();
        let key = &self.plan.key;
        let (gang, epoch) = (key.gang.clone(), key.epoch);
        let request = RayStateRequest { gang, epoch, subject, state: None, limit: RAY_ENTRIES };
        let answer = tokio::time::timeout(RAY_LIMIT, self.ray.answer(&request)).await;
        let mut part = scene::timed(name, || match answer {
            Ok(Ok(json)) => Ok(String::from_utf8_lossy(&json).into_owned()),
            Ok(Err(failure)) => Err(failure.text),
            Err(_) => Err("Ray did not answer in time".to_owned()),
        });
        part.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        part
    }

    fn versions(&self) -> String {
        let readings = self.config.readings.borrow().clone();
        let found = readings.and_then(|readings| readings.versions.value.clone());
        let mut text = format!("agent {}\n", env!("CARGO_PKG_VERSION"));
        for (name, version) in found.iter().flat_map(|found| found.iter()) {
            text.push_str(&format!("{name} {version}\n"));
        }
        text
    }
}

/// What the member's processes were given, less what the agent can no longer read. Blocks.
pub fn environment_of(spool: &Spool) -> Vec<(String, String)> {
    let launch = std::fs::read(spool.directory.join(LAUNCH_FILE)).ok();
    let launch = launch.and_then(|bytes| Launch::from_json(&bytes).ok());
    launch.map(|launch| launch.env).unwrap_or_default()
}

/// Where `py-spy` may be: beside the job's Python, and wherever the agent finds its programs.
fn py_spy(python: &Path) -> Vec<PathBuf> {
    let beside = python.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = beside.into_iter().chain(std::env::split_paths(&path));
    found.filter(|directory| directory.is_absolute()).map(|d| d.join("py-spy")).collect()
}

fn written(scene: &Scene) -> Result<Vec<u8>, String> {
    serde_json::to_vec(scene).map_err(|error| error.to_string())
}

/// Writes a file that appears under its name complete or not at all. One that is there stays.
fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let unfinished = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(bytes)?;
    let linked = std::fs::hard_link(&unfinished, path);
    std::fs::remove_file(&unfinished)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
