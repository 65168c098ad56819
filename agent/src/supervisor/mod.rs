//! Owner of the processes of this node's members.
//!
//! Each member has one task here and one shim process (`crate::shim`), which outlives the agent.
//! Orders come in by methods that return at once; what happened goes out as events.

mod births;
pub mod checkpoints;
mod command;
#[cfg(test)]
mod command_tests;
pub mod curves;
mod environment;
mod fence;
pub mod files;
#[cfg(test)]
mod fixtures;
mod guests;
mod log_scope;
mod member;
mod orphans;
mod ports;
mod probe;
pub mod process;
mod ray_api;
mod ray_jobs;
mod ray_metrics;
mod ray_state;
mod release;
pub mod report;
pub mod scene;
mod secrets;
mod shim_link;
mod spool;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gangline_common::ids::MemberKey;
use gangline_common::wire::scene::{HUNG_SCENE_FILE, Occasion, SCENE_FILE};
use gangline_common::wire::v1::{
    Assignment, GangReport, GuestState, MemberAssignment, MemberState, SavedReport,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::births::Nursery;
use crate::code::Code;
use crate::collectors::NewestReadings;
use crate::health::gate::Gate;
use crate::link::contact::ContactTime;
use crate::scene::history::History;
use crate::tail::member::Tails;

use self::checkpoints::copy::CopyPlace;
use self::member::{Member, Reins};
pub use self::ray_state::RayClusters;
use self::release::Archive;
pub use self::scene::Scenes;
use self::scene::Witness;
use self::spool::Spool;

/// Longest grace of a stop; more would only overflow a clock.
const MAX_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What the supervisor needs to know of this node.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    pub state_dir: PathBuf,
    /// Parent of the members' temp dirs; short, because Ray puts sockets below it.
    pub temp_root: PathBuf,
    /// The agent's own program: shims and helpers are processes of it.
    pub agent_binary: PathBuf,
    /// Interpreter whose directory also has `ray`.
    pub python: PathBuf,
    pub node_address: IpAddr,
    /// Network interface of `node_address`.
    pub interface: Option<String>,
    /// Further `RAY_*` variables for `ray start`; they win over the built-in ones.
    pub ray_env: Vec<(String, String)>,
    /// What is read of this node: which RDMA ports ranks should use.
    pub readings: NewestReadings,
    /// RDMA devices that ranks do not use.
    pub rdma_exclude: BTreeSet<String>,
    /// Size of a rank's object store; derived from its memory when absent.
    pub object_store_bytes: Option<u64>,
    /// Where encrypted copies of training checkpoints go; nowhere when absent.
    pub copies: Option<CopyPlace>,
}

/// One member and what it is part of.
#[derive(Debug, Clone)]
pub struct MemberPlan {
    pub key: MemberKey,
    pub assignment: Arc<Assignment>,
    pub member: MemberAssignment,
}

/// What happened to a member or a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SupervisorEvent {
    /// Running, Stopping, Ended (with `logs_complete: false`) or Refused.
    MemberChanged { key: MemberKey, state: MemberState },
    /// Readiness and entrypoints of a gang whose Ray head runs here.
    GangChanged { report: GangReport },
    /// A member has done what it was told to do for a guest of its standing cluster.
    GuestChanged { key: MemberKey, operation: String, state: GuestState },
    /// There is a newer training checkpoint of the incarnation that rank 0 is of.
    CheckpointMade { key: MemberKey, checkpoint: TrainingCheckpoint },
    /// What there is in the checkpoint directory is not what it was.
    SavedChanged { key: MemberKey, saved: Saved },
}

/// A training checkpoint, and when it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingCheckpoint {
    /// The name of its entry in the checkpoint directory.
    pub name: String,
    /// On the boot clock of this machine, in milliseconds.
    pub made_ms: u64,
}

/// What there is of training checkpoints in the directory of a member's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub report: SavedReport,
    /// When the ages in it were right, on the boot clock of this machine in milliseconds.
    pub at_ms: u64,
}

impl Saved {
    /// The report as it is right at a later time of the boot clock.
    pub fn report_at(&self, now_ms: u64) -> SavedReport {
        let mut report = self.report.clone();
        if let Some(newest) = &mut report.newest {
            let since_ms = now_ms.saturating_sub(self.at_ms);
            newest.age_ms = newest.age_ms.saturating_add(since_ms);
        }
        report
    }
}

/// One log file of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSource {
    /// `output`, `driver-<operation>`, or `scene`, which is no log but goes the same way.
    pub file: String,
    /// Where it is now; a driver's log moves into the spool when its member ends.
    pub path: PathBuf,
    /// The writer is gone: no byte will be added.
    pub complete: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error("{0} has not ended")]
    NotEnded(MemberKey),
    #[error("{}: {source}", path.display())]
    Release { path: PathBuf, source: io::Error },
}

/// When a member has to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopOrder {
    pub deadline: Instant,
    /// No grace at all: SIGKILL at once.
    pub kill: bool,
}

impl StopOrder {
    fn is_sooner_than(self, other: StopOrder) -> bool {
        (self.kill && !other.kill) || self.deadline < other.deadline
    }
}

/// Brings the end forward to `grace` from now, if that is sooner than what was ordered before.
fn order(stop: &watch::Sender<Option<StopOrder>>, grace: Duration) {
    let deadline = Instant::now() + grace.min(MAX_GRACE);
    let order = StopOrder { deadline, kill: grace.is_zero() };
    stop.send_if_modified(|current| {
        let sooner = current.is_none_or(|current| order.is_sooner_than(current));
        if sooner {
            *current = Some(order);
        }
        sooner
    });
}

struct Handle {
    spool: Spool,
    assignment: watch::Sender<Arc<Assignment>>,
    stop: Arc<watch::Sender<Option<StopOrder>>>,
    witness: Arc<Witness>,
    _listed: scene::Listed,
    over: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

/// Starts, adopts, stops and releases members. Dropping it leaves every member running.
pub struct Supervisor {
    config: Arc<SupervisorConfig>,
    events: mpsc::Sender<SupervisorEvent>,
    members: BTreeMap<MemberKey, Handle>,
    nursery: Arc<Nursery>,
    code: Code,
    contact: ContactTime,
    gate: Option<Gate>,
    archive: Archive,
    ray: RayClusters,
    scenes: Scenes,
    history: History,
    shared_root: watch::Sender<Option<PathBuf>>,
    tails: Tails,
}

impl Supervisor {
    /// Must be called inside a tokio runtime: it takes up log copies of an earlier agent.
    pub fn new(config: SupervisorConfig, events: mpsc::Sender<SupervisorEvent>) -> Self {
        let nursery = Arc::new(Nursery::new(config.agent_binary.clone()));
        let archive = Archive::new(&config, Arc::clone(&nursery));
        archive.resume();
        let (config, members, ray) = (Arc::new(config), BTreeMap::new(), RayClusters::default());
        let code = Code::offline();
        let (_, contact) = watch::channel(None);
        let (shared_root, _) = watch::channel(None);
        let gate = None;
        Supervisor {
            config,
            events,
            members,
            nursery,
            code,
            contact,
            gate,
            archive,
            ray,
            scenes: Scenes::default(),
            history: History::default(),
            shared_root,
            tails: Tails::default(),
        }
    }

    /// Where helper processes come from.
    pub fn nursery(&self) -> Arc<Nursery> {
        Arc::clone(&self.nursery)
    }

    /// The shared root that the newest assignment with one was made for; `None` before the first.
    pub fn shared_root(&self) -> watch::Receiver<Option<PathBuf>> {
        self.shared_root.subscribe()
    }

    /// The Ray clusters whose head runs here.
    pub fn ray_clusters(&self) -> RayClusters {
        self.ray.clone()
    }

    /// The members whose scenes can be taken.
    pub fn scenes(&self) -> Scenes {
        self.scenes.clone()
    }

    /// Gives it the samples of the last minutes.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Gives it the way to the code of jobs.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Self {
        self.code = code;
        self
    }

    /// Gives it the times of contact with the coordinator.
    #[must_use]
    pub fn with_contact(mut self, contact: ContactTime) -> Self {
        self.contact = contact;
        self
    }

    /// Follows the logs of members in `tails`, where others read them.
    #[must_use]
    pub fn with_tails(mut self, tails: Tails) -> Self {
        self.tails = tails;
        self
    }

    /// Members start only when the node is found fit.
    #[must_use]
    pub fn with_gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Starts a member; a member that is known or was started before is left as it is.
    pub fn start(&mut self, plan: MemberPlan) {
        self.begin(plan, |member| tokio::spawn(member.start()));
    }

    /// Takes over a member that an earlier agent started: reconnects to its shim, or finds the
    /// record of its end, or sweeps what is left of it and reports it as failed.
    pub fn adopt(&mut self, plan: MemberPlan) {
        self.begin(plan, |member| tokio::spawn(member.adopt()));
    }

    fn begin(&mut self, plan: MemberPlan, spawn: impl FnOnce(Member) -> JoinHandle<()>) {
        if self.members.contains_key(&plan.key) {
            return;
        }
        let key = plan.key.clone();
        if let Some(root) = files::shared_root(&plan.assignment) {
            self.shared_root.send_replace(Some(root));
        }
        let spool = Spool::of(&plan, &self.config);
        let scope = log_scope::of(&plan, &spool, &self.nursery);
        let tail = self.tails.add(&key, scope);
        let (stop, stop_receiver) = watch::channel(None);
        let (assignment, newest) = watch::channel(Arc::clone(&plan.assignment));
        let over = Arc::new(AtomicBool::new(false));
        let witness = Arc::new(Witness {
            plan: plan.clone(),
            assignment: newest.clone(),
            spool: Arc::new(spool.clone()),
            config: Arc::clone(&self.config),
            nursery: Arc::clone(&self.nursery),
            ray: self.ray.clone(),
            history: self.history.clone(),
            begun: AtomicBool::new(false),
        });
        let listed = self.scenes.list(&witness);
        let member = Member::new(
            plan,
            Arc::clone(&self.config),
            (Arc::clone(&self.nursery), self.code.clone()),
            self.ray.clone(),
            self.events.clone(),
            Reins {
                witness: Arc::clone(&witness),
                stop: stop_receiver,
                assignment: newest,
                contact: self.contact.clone(),
                gate: self.gate.clone(),
                tail,
                over: Arc::clone(&over),
            },
        );
        let task = spawn(member);
        let (stop, _listed) = (Arc::new(stop), listed);
        let handle = Handle { spool, assignment, stop, witness, _listed, over, task };
        self.members.insert(key, handle);
    }

    /// Tells a member the newest content of its assignment: the guests of a standing cluster come and
    /// go while it runs.
    pub fn update(&mut self, key: &MemberKey, assignment: Arc<Assignment>) {
        if let Some(handle) = self.members.get(key) {
            handle.assignment.send_replace(assignment);
        }
    }

    /// Ends a member: its job gets `grace` to end by itself, then everything is killed. Repeating
    /// it can only bring the end forward; a grace of zero kills at once. With `keep_scene` the first
    /// stop waits until the scene of the member is taken, for [`scene::DELAY`] at most.
    pub fn stop(&mut self, key: &MemberKey, grace: Duration, keep_scene: bool) {
        let Some(handle) = self.members.get(key) else { return };
        let stop = Arc::clone(&handle.stop);
        let is_over = handle.over.load(Ordering::Acquire);
        let begun = handle.witness.begun.load(Ordering::Acquire);
        if !keep_scene || begun || is_over || grace.is_zero() {
            return order(&stop, grace);
        }
        let witness = Arc::clone(&handle.witness);
        tokio::spawn(async move {
            witness.keep(Occasion::Stopping).await;
            order(&stop, grace);
        });
    }

    /// Forgets a member that has ended and whose logs are durable elsewhere: its directories go,
    /// and its logs are copied below the shared root in the background.
    ///
    /// Errors: the member has not ended, or its directories cannot be removed.
    pub async fn release(&mut self, key: &MemberKey) -> Result<(), SupervisorError> {
        let spool = match self.members.get(key) {
            Some(handle) if !handle.over.load(Ordering::Acquire) => {
                return Err(SupervisorError::NotEnded(key.clone()));
            }
            Some(handle) => handle.spool.clone(),
            // Never started or adopted here: what an earlier agent may have left.
            None => Spool::locate(key, &self.config, false),
        };
        if spool.shim().is_some_and(process::lives) && spool.exit_record().is_none() {
            return Err(SupervisorError::NotEnded(key.clone()));
        }
        let error = |source| SupervisorError::Release { path: spool.places.temp.clone(), source };
        spool.remove_temp().map_err(error)?;
        self.archive.take(&spool.directory)?;
        self.members.remove(key);
        self.tails.remove(key);
        Ok(())
    }

    /// The member's log files as they are now; empty for a member that is not known.
    pub fn log_files(&self, key: &MemberKey) -> Vec<LogSource> {
        let Some(handle) = self.members.get(key) else { return Vec::new() };
        // Read before the directory is: a log that appears later belongs to a writer that lives.
        let complete = handle.over.load(Ordering::Acquire);
        let mut logs = vec![("output".to_owned(), handle.spool.output())];
        logs.extend(handle.spool.driver_logs());
        logs.push((curves::CURVES.to_owned(), curves::log_of(&handle.spool.directory)));
        logs.push((SCENE_FILE.to_owned(), handle.spool.scene()));
        logs.push((HUNG_SCENE_FILE.to_owned(), handle.spool.hung_scene()));
        logs.into_iter()
            .filter(|(_, path)| path.exists())
            .map(|(file, path)| LogSource { file, path, complete })
            .collect()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for handle in self.members.values() {
            handle.task.abort();
        }
    }
}
