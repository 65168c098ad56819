//! The health of this node: the rules (`gangline_health`) are fed with what the collectors read. What
//! stands is said to the coordinator, and is asked before a member starts.

pub mod gate;
pub mod readings;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gangline_common::ids::{GangId, GpuId};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::{self, HealthCleared, HealthLevel, NodeHealth};
use gangline_health::{
    Blind, Component, Condition, Config, Engine, Level, Reading, Rule, Saved, blind_lines,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::gate::Gate;
use self::readings::{Registered, Translator};
use crate::collectors::NewestReadings;
use crate::collectors::accelerator::{Accelerators, GpuIdentity, XidEvent};
use crate::durable::replace_file;
use crate::holders::Holders;

/// File in the state directory with what must survive a restart of the agent.
const FILE: &str = "health.json";
/// Longest file that is read back, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Words that changed in conditions that stand (how full, how often) are said at most this often.
const WORDS_EVERY: Duration = Duration::from_secs(30);
/// What only counts further is written down at most this often.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// What NVIDIA's driver makes wherever it is.
const CONTROL_DEVICE: &str = "/dev/nvidiactl";

/// Where the watch gets what it judges.
pub struct Sources {
    pub readings: NewestReadings,
    /// Errors that the driver reports by itself; `None` on a CPU node.
    pub xids: Option<mpsc::Receiver<XidEvent>>,
    /// GPUs in the inventory.
    pub visible: watch::Receiver<BTreeSet<GpuId>>,
    pub accelerators: Accelerators,
    /// Where they are on the bus.
    pub identities: Vec<GpuIdentity>,
    pub holders: watch::Receiver<Holders>,
    /// The gang here whose NCCL has lost its network last.
    pub nccl: watch::Receiver<Option<GangId>>,
    /// What operators have ended.
    pub cleared: watch::Receiver<HealthCleared>,
}

/// What survives the agent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    engine: Saved,
    registered: Registered,
}

/// The rules and what they compare with; shared with the [`Gate`].
pub(crate) struct State {
    engine: Engine,
    registered: Registered,
    /// Readings were taken in since the agent began.
    began: bool,
    has_shared_root: bool,
}

pub(crate) type SharedState = Arc<Mutex<State>>;

pub(crate) fn lock(state: &SharedState) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Judges readings as they come, for as long as it runs.
pub struct Watch {
    state: SharedState,
    translator: Translator,
    said: watch::Sender<Option<Arc<NodeHealth>>>,
    said_at: Option<Instant>,
    /// What stood when it was last said.
    standing: Vec<Condition>,
    path: PathBuf,
    saved_at: Option<Instant>,
}

impl Watch {
    /// Goes on from what the last agent left in `state_dir`. What cannot be read is left aside and
    /// said: the rules then begin anew.
    pub fn new(
        state_dir: &Path,
        config: Config,
        said: watch::Sender<Option<Arc<NodeHealth>>>,
    ) -> (Self, Gate) {
        let path = state_dir.join(FILE);
        let kept = read(&path);
        let state = State {
            engine: Engine::new(config, &kept.engine, Timestamp::now()),
            registered: kept.registered,
            began: false,
            has_shared_root: false,
        };
        let state = Arc::new(Mutex::new(state));
        let gate = Gate::new(Arc::clone(&state));
        let translator = Translator::default();
        (
            Watch {
                state,
                translator,
                said,
                said_at: None,
                standing: Vec::new(),
                path,
                saved_at: None,
            },
            gate,
        )
    }

    /// Runs until it is dropped.
    pub async fn run(mut self, mut sources: Sources) {
        if let Err(problem) = sources.accelerators.as_ref() {
            self.translator.learn_problem(problem, Path::new(CONTROL_DEVICE).exists());
        }
        self.translator.learn_addresses(&sources.identities);
        loop {
            tokio::select! {
                changed = sources.readings.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                    self.on_readings(&mut sources);
                }
                event = next(&mut sources.xids) => {
                    let reading = Translator::xid(&event, &sources.holders.borrow());
                    lock(&self.state).engine.observe(&reading, Timestamp::now());
                }
                Ok(()) = sources.nccl.changed() => {
                    let gang = sources.nccl.borrow_and_update().clone();
                    if let Some(gang) = gang {
                        let reading = Reading::NcclError(gang);
                        lock(&self.state).engine.observe(&reading, Timestamp::now());
                    }
                }
                changed = sources.cleared.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                    let cleared = sources.cleared.borrow_and_update().clone();
                    self.on_cleared(&cleared, &sources.visible.borrow());
                }
            }
            self.say().await;
        }
    }

    fn on_readings(&mut self, sources: &mut Sources) {
        let Some(readings) = sources.readings.borrow_and_update().clone() else { return };
        let (visible, holders) = (sources.visible.borrow(), sources.holders.borrow());
        let now = Timestamp::now();
        let mut state = lock(&self.state);
        state.registered.add(&visible);
        if let Some(rdma) = &readings.rdma.value {
            state.registered.add_ports(rdma);
        }
        state.has_shared_root = readings.shared.is_some();
        state.began = true;
        let registered = state.registered.clone();
        for reading in self.translator.take(&readings, &visible, &registered, &holders, now) {
            state.engine.observe(&reading, now);
        }
    }

    /// An operator has put the node back into use.
    fn on_cleared(&mut self, cleared: &HealthCleared, visible: &BTreeSet<GpuId>) {
        let now = Timestamp::now();
        let mut state = lock(&self.state);
        for wanted in &cleared.conditions {
            let known = Rule::from_id(&wanted.rule).zip(wanted.component.parse::<Component>().ok());
            let Some((rule, component)) = known else { continue };
            if !state.engine.clear_one(rule, &component, wanted.since_ms, now) {
                continue;
            }
            tracing::info!(
                rule = wanted.rule,
                component = wanted.component,
                "ended by an operator"
            );
            match rule {
                // What is there now is what the node has from now on.
                Rule::GpuSet => {
                    state.registered.gpus = visible.iter().map(|gpu| gpu.0.clone()).collect();
                }
                Rule::PortCount => state.registered.ports = 0,
                // Nor is it slower than it can be any more.
                Rule::PortState => {
                    let port = wanted.component.split_once(':').map(|(_, port)| port.to_owned());
                    port.and_then(|port| state.registered.rates.remove(&port));
                }
                _ => {}
            }
        }
    }

    async fn say(&mut self) {
        let now = Timestamp::now();
        let conditions = {
            let state = lock(&self.state);
            if !state.began {
                return;
            }
            state.engine.conditions(now)
        };
        let same = conditions.len() == self.standing.len()
            && conditions.iter().zip(&self.standing).all(|(now, before)| now.says_the_same(before));
        let news = self.said_at.is_none() || !same;
        if news || self.saved_at.is_none_or(|at| at.elapsed() >= SAVE_EVERY) {
            self.saved_at = Some(Instant::now());
            self.save().await;
        }
        // Of what stands only the words may have changed.
        if !news && self.said_at.is_some_and(|at| at.elapsed() < WORDS_EVERY) {
            return;
        }
        let blind = lock(&self.state).engine.blind(now);
        let health = told(&conditions, &blind);
        if news || self.said.borrow().as_deref() != Some(&health) {
            self.said_at = Some(Instant::now());
            self.said.send_replace(Some(Arc::new(health)));
        }
        self.standing = conditions;
    }

    /// Before what it holds is said: an agent that is started again must not have forgotten it.
    async fn save(&self) {
        let path = self.path.clone();
        let kept = {
            let state = lock(&self.state);
            Kept { engine: state.engine.saved(), registered: state.registered.clone() }
        };
        let write = move || {
            let text = serde_json::to_vec(&kept).map_err(std::io::Error::other)?;
            replace_file(&path, &[&text])
        };
        let written = tokio::task::spawn_blocking(write).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!(path = %self.path.display(), %error, "the state of health is not stored");
        }
    }
}

async fn next(xids: &mut Option<mpsc::Receiver<XidEvent>>) -> XidEvent {
    if let Some(receiver) = xids {
        if let Some(event) = receiver.recv().await {
            return event;
        }
        *xids = None;
    }
    std::future::pending().await
}

fn read(path: &Path) -> Kept {
    let read = || -> Result<Option<Kept>, String> {
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Ok(found) if found.len() > MAX_FILE_BYTES => return Err("it is too long".to_owned()),
            _ => {}
        }
        let text = std::fs::read(path).map_err(|error| error.to_string())?;
        serde_json::from_slice(&text).map(Some).map_err(|error| error.to_string())
    };
    read().unwrap_or_else(|error| {
        let path = path.display();
        tracing::error!(%path, error, "the state of health cannot be read; its rules begin anew");
        None
    })
    .unwrap_or_default()
}

/// Everything that stands, as it is said.
fn told(conditions: &[Condition], blind: &[Blind]) -> NodeHealth {
    let condition = |condition: &Condition| v1::Condition {
        rule: condition.rule.id().to_owned(),
        component: condition.component.to_string(),
        level: level(condition.level),
        blocks_start: condition.blocks_start,
        shadow: condition.shadow,
        action: condition.suggested_action.word().to_owned(),
        reason: condition.reason.clone(),
        evidence: condition.evidence.clone(),
        clears: format!("{} (ends by: {})", condition.advice, condition.clears),
        since_ms: condition.since_wall_ms,
    };
    let mut blind = blind_lines(blind);
    blind.truncate(v1::CONDITION_LIMIT);
    let conditions = conditions.iter().take(v1::CONDITION_LIMIT).map(condition).collect();
    NodeHealth { conditions, blind }
}

fn level(level: Level) -> HealthLevel {
    match level {
        Level::Info => HealthLevel::Info,
        Level::Warning => HealthLevel::Warning,
        Level::Degraded => HealthLevel::Degraded,
        Level::NoNewJobs => HealthLevel::NoNewJobs,
        Level::DrainAfterJob => HealthLevel::DrainAfterJob,
        Level::Fatal => HealthLevel::Fatal,
    }
}

#[cfg(test)]
mod tests;
