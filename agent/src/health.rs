//! The health of this node: the rules (`gangline_health`) are fed with what the collectors read. What
//! stands is said to the coordinator, and is asked before a member starts.

pub mod gate;
pub mod judge;
pub mod readings;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gangline_common::ids::{GangId, GpuId};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::{self, HealthCleared, HealthLevel, NodeHealth};
use gangline_health::{Blind, Condition, Config, Level, blind_lines};
use tokio::sync::{mpsc, watch};

use self::gate::Gate;
use self::judge::{Beside, Judge, Kept};
use self::readings::Registered;
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
/// What could not be written is tried again after so long.
const TRY_AGAIN: Duration = Duration::from_secs(10);

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
    /// Gangs with a member here that may have a process.
    pub gangs: watch::Receiver<BTreeSet<GangId>>,
    /// The gang here whose NCCL has lost its network last.
    pub nccl: watch::Receiver<Option<GangId>>,
    /// What operators have ended.
    pub cleared: watch::Receiver<HealthCleared>,
}

pub(crate) type SharedJudge = Arc<Mutex<Judge>>;

pub(crate) fn lock(judge: &SharedJudge) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sources {
    /// Hands on what is known beside the readings, with a time from after it was looked at.
    fn told(&self, take: impl FnOnce(Beside<'_>, Timestamp)) {
        let (visible, holders) = (self.visible.borrow(), self.holders.borrow());
        let gangs = self.gangs.borrow();
        take(Beside { visible: &visible, holders: &holders, gangs: &gangs }, Timestamp::now());
    }
}

/// Judges readings as they come, for as long as it runs.
pub struct Watch {
    judge: SharedJudge,
    said: watch::Sender<Option<Arc<NodeHealth>>>,
    said_at: Option<Instant>,
    /// What stood when it was last said.
    standing: Vec<Condition>,
    path: PathBuf,
    saved_at: Option<Instant>,
    failed_at: Option<Instant>,
    /// What the node has, as it was written down last.
    saved: Registered,
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
        let judge = Judge::new(config, read(&path), Timestamp::now());
        let judge = Arc::new(Mutex::new(judge));
        let gate = Gate::new(Arc::clone(&judge));
        let (standing, saved) = (Vec::new(), Registered::default());
        (
            Watch {
                judge,
                said,
                said_at: None,
                standing,
                path,
                saved_at: None,
                failed_at: None,
                saved,
            },
            gate,
        )
    }

    /// Runs until it is dropped.
    pub async fn run(mut self, mut sources: Sources) {
        let found = sources.accelerators.as_ref().as_ref();
        lock(&self.judge).learn(found.map(|_| &sources.identities[..]));
        loop {
            tokio::select! {
                changed = sources.readings.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                    let readings = sources.readings.borrow_and_update().clone();
                    if let Some(readings) = readings {
                        sources.told(|beside, now| {
                            lock(&self.judge).on_readings(&readings, beside, now);
                        });
                    }
                }
                event = next(&mut sources.xids) => {
                    sources.told(|beside, now| lock(&self.judge).on_xid(&event, beside, now));
                }
                Ok(()) = sources.nccl.changed() => {
                    let gang = sources.nccl.borrow_and_update().clone();
                    if let Some(gang) = gang {
                        lock(&self.judge).on_nccl_error(gang, Timestamp::now());
                    }
                }
                changed = sources.cleared.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                    let cleared = sources.cleared.borrow_and_update().clone();
                    let now = Timestamp::now();
                    lock(&self.judge).on_cleared(&cleared, &sources.visible.borrow(), now);
                }
            }
            self.say().await;
        }
    }

    async fn say(&mut self) {
        let now = Timestamp::now();
        let (conditions, registered) = {
            let judge = lock(&self.judge);
            if !judge.began {
                return;
            }
            let changed = *judge.registered() != self.saved;
            (judge.conditions(now), changed.then(|| judge.registered().clone()))
        };
        let same = conditions.len() == self.standing.len()
            && conditions.iter().zip(&self.standing).all(|(now, before)| now.says_the_same(before));
        let news = self.said_at.is_none() || !same;
        // What a node has is written down as soon as it is known: an agent that ends now must miss it later.
        let due = self.saved_at.is_none_or(|at| at.elapsed() >= SAVE_EVERY);
        let may_try = self.failed_at.is_none_or(|at| at.elapsed() >= TRY_AGAIN);
        if news || due || registered.is_some() && may_try {
            self.saved_at = Some(Instant::now());
            let is_written = self.save().await;
            self.failed_at = (!is_written).then(Instant::now);
            if let Some(registered) = registered.filter(|_| is_written) {
                self.saved = registered;
            }
        }
        // Of what stands only the words may have changed.
        if !news && self.said_at.is_some_and(|at| at.elapsed() < WORDS_EVERY) {
            return;
        }
        let blind = lock(&self.judge).blind(now);
        let health = told(&conditions, &blind);
        if news || self.said.borrow().as_deref() != Some(&health) {
            self.said_at = Some(Instant::now());
            self.said.send_replace(Some(Arc::new(health)));
        }
        self.standing = conditions;
    }

    /// Before what it holds is said: an agent that is started again must not have forgotten it. Whether it is
    /// written.
    async fn save(&self) -> bool {
        let path = self.path.clone();
        let kept = lock(&self.judge).kept();
        let write = move || {
            let text = serde_json::to_vec(&kept).map_err(std::io::Error::other)?;
            replace_file(&path, &[&text])
        };
        let written = tokio::task::spawn_blocking(write).await;
        match written.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the state of health is not stored");
                false
            }
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
