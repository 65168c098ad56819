//! What one member of a standing cluster does for the cluster's guests, apart from submitting their
//! entrypoints: it makes their directories before they run, and sweeps what they leave behind.
//!
//! Orders come with the gang's assignment, again and again; each is carried out once per agent.
//! Doing it twice, after a restart of the agent, changes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::Discriminant;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{ATTEMPT_MARK_VARIABLE, MemberId};
use gangline_common::wire::v1::{
    Assignment, GuestAssignment, GuestJob, GuestOrder, GuestState, Refusal,
};
use rustix::process::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::births::Nursery;
use super::files::{self, LogCopy};
use super::process;
use super::spool::Spool;
use super::{MemberPlan, SupervisorEvent, command};
use crate::code::{Code, Wish};

/// How long the directories of a guest may take below the shared root.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the copy of a guest's log may take.
const COPY_TIMEOUT: Duration = Duration::from_secs(60);
/// What a guest left behind gets SIGTERM, and SIGKILL after this long.
const SWEEP_GRACE: Duration = Duration::from_secs(5);
/// Pause between two looks for processes, at first and after a while.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);
const STUBBORN_PAUSE: Duration = Duration::from_secs(2);
/// After this long, what is left counts as unkillable and is only looked at now and then.
const STUBBORN: Duration = Duration::from_secs(60);
/// Looks in a row that must find nothing: a process that is just executing a new program shows no
/// environment for a moment.
const CLEAN_LOOKS: u32 = 5;
/// Ray may start an actor anew long after its job has ended; what has come back is killed this often.
const AFTERMATH: Duration = Duration::from_secs(5);
/// Ended attempts that are looked after, the newest.
const LOOKED_AFTER: usize = 256;
/// Driver logs of ended guests that are kept in Ray's directory; the coordinator has them long
/// before so many others have run.
const KEPT_LOGS: usize = 32;

/// The guests of one member.
pub struct Guests {
    pub plan: MemberPlan,
    pub spool: Arc<Spool>,
    pub nursery: Arc<Nursery>,
    pub code: Code,
    pub events: mpsc::Sender<SupervisorEvent>,
    pub assignment: watch::Receiver<Arc<Assignment>>,
}

impl Guests {
    /// Runs until the member has ended and the task is dropped.
    pub async fn run(mut self) {
        // By operation, the kind of the newest order that was begun.
        let mut begun: BTreeMap<String, Discriminant<GuestOrder>> = BTreeMap::new();
        let mut work: JoinSet<(String, GuestState)> = JoinSet::new();
        // Each is the mark of one attempt, and no other ever has it.
        let mut ended: VecDeque<String> = VecDeque::new();
        let mut aftermath = tokio::time::interval(AFTERMATH);
        aftermath.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let assignment = Arc::clone(&self.assignment.borrow_and_update());
            begun.retain(|operation, _| {
                assignment.guests.iter().any(|guest| guest.operation == *operation)
            });
            for guest in &assignment.guests {
                let kind = std::mem::discriminant(&guest.order);
                if begun.insert(guest.operation.clone(), kind) != Some(kind) {
                    self.begin(&assignment, guest, &mut work);
                }
            }
            tokio::select! {
                changed = self.assignment.changed() => if changed.is_err() {
                    return;
                },
                _ = aftermath.tick(), if !ended.is_empty() => look_after(&ended).await,
                Some(done) = work.join_next() => match done {
                    Ok((operation, state)) => {
                        if matches!(state, GuestState::Swept { .. }) {
                            ended.push_back(operation.clone());
                            ended.drain(..ended.len().saturating_sub(LOOKED_AFTER));
                        }
                        let key = self.plan.key.clone();
                        let event = SupervisorEvent::GuestChanged { key, operation, state };
                        if self.events.send(event).await.is_err() {
                            return; // nobody listens any more
                        }
                    }
                    Err(error) => tracing::error!(key = %self.plan.key, %error, "work for a guest"),
                },
            }
        }
    }

    fn begin(
        &self,
        assignment: &Assignment,
        guest: &GuestAssignment,
        work: &mut JoinSet<(String, GuestState)>,
    ) {
        let operation = guest.operation.clone();
        match &guest.order {
            GuestOrder::Prepare(job) => {
                let Some(plan) = self.plan_of(assignment, guest, job) else { return };
                let (nursery, code) = (Arc::clone(&self.nursery), self.code.clone());
                let spool = Arc::clone(&self.spool);
                work.spawn(async move {
                    let state = match prepare(&plan, &code, &nursery, &spool).await {
                        Ok(()) => GuestState::Prepared,
                        Err(reason) => GuestState::Failed { reason },
                    };
                    (operation, state)
                });
            }
            // Its head's watch over Ray does these.
            GuestOrder::Run(_) | GuestOrder::Watch | GuestOrder::Stop => {}
            GuestOrder::Sweep { log_directory } => {
                let kept = assignment.guests.iter().map(|guest| guest.operation.clone()).collect();
                let sweep = Sweep {
                    mark: guest.operation.clone(),
                    spool: Arc::clone(&self.spool),
                    nursery: Arc::clone(&self.nursery),
                    copy: log_directory.as_ref().map(|directory| LogCopy {
                        directory: PathBuf::from(directory),
                        member: "rank-0".to_owned(),
                        run_as: assignment.run_as,
                    }),
                    ran_driver: self.plan.key.member == guest.driver(),
                    kept,
                };
                work.spawn(async move {
                    let state = sweep.run(&operation).await;
                    (operation, state)
                });
            }
        }
    }

    /// The plan that this member would have in a gang of the guest's own; `None` for a member that
    /// is none of its ranks.
    fn plan_of(
        &self,
        assignment: &Assignment,
        guest: &GuestAssignment,
        job: &GuestJob,
    ) -> Option<MemberPlan> {
        let MemberId::Rank(rank) = self.plan.key.member else { return None };
        let own = guest.ranks.iter().position(|of_guest| *of_guest == rank)?;
        let mut plan = self.plan.clone();
        plan.key.member = MemberId::Rank(u32::try_from(own).ok()?);
        plan.assignment = Arc::new(assignment.of_guest(guest, job));
        Some(plan)
    }
}

/// Makes what the guest needs on this node, or says why not.
async fn prepare(
    plan: &MemberPlan,
    code: &Code,
    nursery: &Arc<Nursery>,
    spool: &Spool,
) -> Result<(), String> {
    let assignment = &plan.assignment;
    if let Some(tree) = &assignment.code {
        let wish = Wish {
            job: &assignment.job,
            code: tree,
            own: &spool.places.code,
            run_as: assignment.run_as,
            patience: Duration::from_millis(assignment.start_timeout_ms),
        };
        let there = code.ensure(nursery, &wish).await;
        there.map_err(|error| format!("the code is not there: {error}"))?;
    }
    let operations = command::operations(plan, &spool.places).map_err(|refusal| match refusal {
        Refusal::Impossible { reason } => reason,
        other => format!("{other:?}"),
    })?;
    let made = files::run_helper(nursery, assignment.run_as, operations, PREPARE_TIMEOUT).await;
    made.map_err(|error| error.to_string())
}

/// The end of one guest on one member.
struct Sweep {
    mark: String,
    spool: Arc<Spool>,
    nursery: Arc<Nursery>,
    copy: Option<LogCopy>,
    ran_driver: bool,
    /// Operations whose logs must stay.
    kept: Vec<String>,
}

impl Sweep {
    /// Returns when no process of the attempt is left.
    async fn run(self, operation: &str) -> GuestState {
        let began = Instant::now();
        let mut clean = 0;
        let mut polite = true;
        loop {
            let signal = match (polite, began.elapsed() >= SWEEP_GRACE) {
                (_, true) => Some(Signal::KILL),
                (true, false) => Some(Signal::TERM),
                (false, false) => None,
            };
            let mark = self.mark.clone();
            let looked = tokio::task::spawn_blocking(move || look(&mark, signal)).await;
            let found = match looked {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!(mark = self.mark, %error, "a look for processes failed");
                    1
                }
            };
            polite &= found == 0;
            clean = if found == 0 { clean + 1 } else { 0 };
            if clean >= CLEAN_LOOKS {
                break;
            }
            let stubborn = began.elapsed() >= STUBBORN;
            tokio::time::sleep(if stubborn { STUBBORN_PAUSE } else { SWEEP_PAUSE }).await;
        }
        let log = match self.ran_driver {
            true => self.spool.driver_log(operation),
            false => None,
        };
        let length = |path: &PathBuf| std::fs::metadata(path).map(|file| file.len()).ok();
        let log_bytes = log.as_ref().and_then(length);
        if let (Some(path), Some(copy)) = (log, &self.copy) {
            let logs = [(format!("driver-{operation}"), path)];
            if let Err(error) = files::copy_logs(&self.nursery, copy, &logs, COPY_TIMEOUT).await {
                // The coordinator has every byte; only the convenience is gone.
                tracing::warn!(operation, %error, "the log of a guest was not copied");
            }
        }
        self.spool.prune_driver_logs(&self.kept, KEPT_LOGS);
        GuestState::Swept { log_bytes }
    }
}

/// Kills what has come back of attempts that have ended.
async fn look_after(ended: &VecDeque<String>) {
    let marks: BTreeSet<String> = ended.iter().cloned().collect();
    let looked = tokio::task::spawn_blocking(move || {
        for id in process::with_any_environment(ATTEMPT_MARK_VARIABLE, &marks) {
            tracing::warn!(pid = id.pid, "Ray has started a process of an ended job anew; killed");
            if let Err(error) = process::send(id, Signal::KILL) {
                tracing::warn!(pid = id.pid, %error, "a process cannot be killed");
            }
        }
    });
    if let Err(error) = looked.await {
        tracing::error!(%error, "a look for processes failed");
    }
}

/// Counts the processes that carry the mark, and signals each. Blocks while `/proc` is read.
fn look(mark: &str, signal: Option<Signal>) -> usize {
    let mut found = process::with_environment(ATTEMPT_MARK_VARIABLE, mark);
    // A worker of Ray that starts has its environment as JSON among its arguments first.
    found.extend(process::with_argument(&format!("\"{ATTEMPT_MARK_VARIABLE}\": \"{mark}\"")));
    for &id in &found {
        let Some(signal) = signal else { continue };
        if let Err(error) = process::send(id, signal) {
            tracing::warn!(mark, pid = id.pid, %error, "a process cannot be signalled");
        }
    }
    found.len()
}
