//! The life of one member, as one task: from the probe of its ports to the evidence of its end.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gangline_common::ids::{ATTEMPT_MARK_VARIABLE, MARK_VARIABLE, MemberId};
use gangline_common::time::Timestamp;
use gangline_common::wire::scene::Occasion;
use gangline_common::wire::v1::{
    Assignment, Ended, EndedHow, Launcher, MemberState, OnDisconnect, Refusal,
};
use rustix::process::Signal;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::births::Nursery;
use super::checkpoints::watch::{self as checkpoints, CheckpointsTask};
use super::command::{self, HostFacts};
use super::curves::CurvesTask;
use super::fence;
use super::guests::Guests;
use super::log_scope;
use super::orphans;
use super::ports::{self, FixedPort};
use super::process::{self, ProcessId};
use super::ray_api::RayApi;
use super::ray_jobs::RayWatch;
use super::ray_metrics::Exported;
use super::ray_state::{Listed, RayClusters};
use super::scene::{self, Witness};
use super::secrets::Known;
use super::shim_link::{self, LinkError, ShimLink};
use super::spool::Spool;
use super::{MemberPlan, StopOrder, SupervisorConfig, SupervisorEvent, environment, probe};
use crate::code::{Code, Wish};
use crate::health::gate::Gate;
use crate::link::contact::ContactTime;
use crate::shim::protocol::{Push, SPOKEN, VERSION};
use crate::shim::record::{ExitRecord, How};
use crate::tail::member::MemberTail;

/// A member whose main process has not begun by then never will: its file operations hang.
const START_LIMIT: Duration = Duration::from_secs(30);
/// `ray start` ends its processes within about a second of SIGTERM; then they are killed.
pub(super) const RAY_GRACE: Duration = Duration::from_secs(5);
/// Pause before a lost connection to a living shim is made again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two looks for processes of a job that is being stopped.
const QUIET_PAUSE: Duration = Duration::from_millis(250);
/// How long a look for the head of a gang that is being stopped may take.
const HEAD_LOOK: Duration = Duration::from_secs(1);
/// How long a shim that cannot be reached may outstay its deadline before it is killed: it sweeps
/// for at most a minute.
const SHIM_OVERTIME: Duration = Duration::from_secs(75);
/// How long an ended shim may take to be gone.
const GONE_LIMIT: Duration = Duration::from_secs(5);

/// What the task of one member owns.
pub struct Member {
    pub plan: MemberPlan,
    pub config: Arc<SupervisorConfig>,
    pub nursery: Arc<Nursery>,
    pub code: Code,
    pub spool: Arc<Spool>,
    pub ray: RayClusters,
    pub events: mpsc::Sender<SupervisorEvent>,
    pub stop: watch::Receiver<Option<StopOrder>>,
    pub assignment: watch::Receiver<Arc<Assignment>>,
    pub contact: ContactTime,
    gate: Option<Gate>,
    tail: Arc<MemberTail>,
    witness: Arc<Witness>,
    pub over: Arc<AtomicBool>,
    progress: Progress,
}

/// A member's end of what its supervisor's handle of it holds.
pub struct Reins {
    pub stop: watch::Receiver<Option<StopOrder>>,
    /// The newest content of the plan's assignment.
    pub assignment: watch::Receiver<Arc<Assignment>>,
    pub contact: ContactTime,
    /// Asked before the start.
    pub gate: Option<Gate>,
    /// What is followed of its logs.
    pub tail: Arc<MemberTail>,
    pub witness: Arc<Witness>,
    /// Set before the end is reported: no byte is added to any log any more.
    pub over: Arc<AtomicBool>,
}

/// What has been learned and said so far.
struct Progress {
    /// Version that the shim speaks, as far as is known.
    shim_version: u8,
    /// The main process, once it has begun.
    main: Option<ProcessId>,
    stopping_said: bool,
    /// No process of a job stands in the way of stopping the cluster.
    quiet: bool,
    ray: Option<RayWatchTask>,
    guests: Option<GuestsTask>,
    checkpoints: Option<CheckpointsTask>,
    curves: Option<CurvesTask>,
    exported: Option<Exported>,
}

impl Default for Progress {
    fn default() -> Self {
        Progress {
            shim_version: VERSION,
            main: None,
            stopping_said: false,
            quiet: false,
            ray: None,
            guests: None,
            checkpoints: None,
            curves: None,
            exported: None,
        }
    }
}

/// What is done for the guests of a standing cluster; ends with the member.
struct GuestsTask(tokio::task::JoinHandle<()>);

impl Drop for GuestsTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The watch of the gang's Ray cluster; ends with the member.
struct RayWatchTask {
    task: tokio::task::JoinHandle<()>,
    _listed: Option<Listed>,
    quiet: watch::Receiver<bool>,
}

impl Drop for RayWatchTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why the watch over a shim is over.
enum End {
    Recorded(ExitRecord),
    /// The shim is gone without a word.
    Vanished,
    /// The main process never began.
    Hung,
}

impl Member {
    pub fn new(
        plan: MemberPlan,
        config: Arc<SupervisorConfig>,
        (nursery, code): (Arc<Nursery>, Code),
        ray: RayClusters,
        events: mpsc::Sender<SupervisorEvent>,
        Reins { stop, assignment, contact, gate, witness, tail, over }: Reins,
    ) -> Self {
        let spool = Arc::new(Spool::of(&plan, &config));
        Member {
            plan,
            config,
            nursery,
            code,
            spool,
            ray,
            events,
            stop,
            assignment,
            contact,
            gate,
            tail,
            witness,
            over,
            progress: Progress::default(),
        }
    }

    /// Starts the member, or takes it over when it was started before.
    pub async fn start(mut self) {
        if self.spool.exists() {
            return self.adopt().await;
        }
        let (plan, config) = (self.plan.clone(), Arc::clone(&self.config));
        let (nursery, spool) = (Arc::clone(&self.nursery), Arc::clone(&self.spool));
        let ready = match self.pass_gate().await {
            Ok(()) => self.fetch_code().await,
            Err(refusal) => Err(refusal),
        };
        let prepared = match ready {
            Ok(()) => {
                let contact = self.contact.borrow().map(|at| at.boot_ms);
                blocking(move || prepare(&plan, &config, &nursery, &spool, contact)).await
            }
            Err(refusal) => Err(refusal),
        };
        match prepared {
            Ok(shim) => {
                let end = self.supervise(shim).await;
                self.finish(end).await;
            }
            Err(refusal) => {
                let spool = Arc::clone(&self.spool);
                if let Err(error) = blocking(move || spool.remove()).await {
                    tracing::warn!(key = %self.plan.key, %error, "a refused member left files");
                }
                self.over.store(true, Ordering::Release);
                self.say(MemberState::Refused(refusal)).await;
            }
        }
    }

    /// The check before the start: nothing has been made yet.
    async fn pass_gate(&mut self) -> Result<(), Refusal> {
        let Some(gate) = &self.gate else { return Ok(()) };
        let gpus = self.plan.member.gpus.clone();
        tokio::select! {
            passed = gate.check(&gpus) => passed.map_err(|reason| Refusal::Unfit { reason }),
            _ = self.stop.wait_for(Option::is_some) => {
                let reason = "it was stopped before it was started".to_owned();
                Err(Refusal::Impossible { reason })
            }
        }
    }

    /// Makes sure that the job's code is where this member expects it.
    async fn fetch_code(&mut self) -> Result<(), Refusal> {
        // The head runs no code of the job, and its node may not have the shared root.
        let (Some(code), MemberId::Rank(_)) = (&self.plan.assignment.code, self.plan.key.member)
        else {
            return Ok(());
        };
        let refusal = |reason: String| Err(Refusal::Impossible { reason });
        if code.shared_root.is_none() {
            let (spool, run_as) = (Arc::clone(&self.spool), self.plan.assignment.run_as);
            if let Err(error) = blocking(move || spool.create_code(run_as)).await {
                return refusal(format!("no directory for the code can be made: {error}"));
            }
        }
        let wish = Wish {
            job: &self.plan.assignment.job,
            code,
            own: &self.spool.places.code,
            run_as: self.plan.assignment.run_as,
            patience: Duration::from_millis(self.plan.assignment.start_timeout_ms),
        };
        tokio::select! {
            fetched = self.code.ensure(&self.nursery, &wish) => match fetched {
                Ok(_) => Ok(()),
                Err(error) => refusal(format!("the code of the job is not there: {error}")),
            },
            // An error means that the supervisor is being dropped, and this task with it.
            _ = self.stop.wait_for(Option::is_some) => {
                refusal("stopped before the code of the job was there".to_owned())
            }
        }
    }

    /// Takes over what an earlier agent started.
    pub async fn adopt(mut self) {
        let end = match self.spool.exit_record() {
            Some(record) => End::Recorded(record),
            None => self.supervise(self.spool.shim()).await,
        };
        self.finish(end).await;
    }

    async fn say(&self, state: MemberState) {
        let event = SupervisorEvent::MemberChanged { key: self.plan.key.clone(), state };
        // An error means that the agent is ending; the next one finds everything on disk.
        let _ = self.events.send(event).await;
    }

    async fn say_stopping(&mut self) {
        if !std::mem::replace(&mut self.progress.stopping_said, true) {
            self.say(MemberState::Stopping).await;
        }
    }

    /// Stays with the shim, over any number of connections, until the member's end is known.
    async fn supervise(&mut self, shim: Option<ProcessId>) -> End {
        let start_until = Instant::now() + START_LIMIT;
        loop {
            let version = self.progress.shim_version;
            let lost = match ShimLink::connect(&self.spool.directory, version).await {
                Ok(mut link) => match self.serve(&mut link, start_until).await {
                    Ok(end) => {
                        if matches!(end, End::Hung) {
                            self.kill_shim(shim);
                        }
                        return end;
                    }
                    Err(lost) => lost,
                },
                Err(lost) => lost,
            };
            // Who is alive is asked before the record is read: a shim writes it, then goes.
            let lives = shim.or_else(|| self.spool.shim()).is_some_and(process::lives);
            if let Some(record) = self.spool.exit_record() {
                return End::Recorded(record);
            }
            if !lives {
                return End::Vanished;
            }
            tracing::debug!(key = %self.plan.key, error = %lost, "connection to the shim lost");
            if self.progress.main.is_none() && Instant::now() >= start_until {
                self.kill_shim(shim);
                return End::Hung;
            }
            let order = *self.stop.borrow();
            if order.is_some_and(|order| Instant::now() >= order.deadline + SHIM_OVERTIME) {
                self.kill_shim(shim);
                return End::Vanished;
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    fn kill_shim(&self, shim: Option<ProcessId>) {
        let Some(shim) = shim.or_else(|| self.spool.shim()) else { return };
        if let Err(error) = process::send(shim, Signal::KILL) {
            tracing::warn!(key = %self.plan.key, %error, "the shim cannot be killed");
        }
    }

    /// One connection. Returns the member's end, or why the connection was lost.
    async fn serve(&mut self, link: &mut ShimLink, start_until: Instant) -> Result<End, LinkError> {
        let mut sent: Option<StopOrder> = None;
        let feeds = self.plan.assignment.on_disconnect.after_ms().is_some();
        self.contact.mark_changed();
        loop {
            let order = *self.stop.borrow_and_update();
            let mut holds_back = false;
            if let Some(order) = order {
                self.say_stopping().await;
                holds_back = self.holds_back(order);
                if !holds_back && sent.is_none_or(|sent| order.is_sooner_than(sent)) {
                    link.stop(self.ladder_grace(order)).await?;
                    sent = Some(order);
                }
            }
            let deadline = order.map_or(start_until, |order| order.deadline);
            tokio::select! {
                push = link.next() => match push? {
                    Push::Started(main) => self.on_started(main).await,
                    Push::Ended(record) => return Ok(End::Recorded(record)),
                    Push::Unsupported { lowest, highest } => {
                        self.take_version(lowest..=highest);
                        return Err(LinkError::Closed);
                    }
                },
                changed = self.stop.changed() => if changed.is_err() {
                    // The supervisor is being dropped and this task with it.
                    std::future::pending::<()>().await;
                },
                Ok(()) = self.contact.changed(), if feeds => {
                    let contact = *self.contact.borrow_and_update();
                    if let Some(at) = contact {
                        link.contact(at.boot_ms).await?;
                    }
                }
                () = quiet(&self.plan, self.progress.main, self.progress.ray.as_ref()), if holds_back => {
                    self.progress.quiet = true;
                }
                () = tokio::time::sleep_until(deadline), if holds_back => {}
                () = tokio::time::sleep_until(start_until), if self.progress.main.is_none() => {
                    return Ok(End::Hung);
                }
            }
        }
    }

    /// Goes on in the newest version that the shim speaks as well.
    fn take_version(&mut self, theirs: RangeInclusive<u8>) {
        match SPOKEN.rev().find(|version| theirs.contains(version)) {
            Some(version) if version != self.progress.shim_version => {
                self.progress.shim_version = version;
            }
            _ => tracing::error!(key = %self.plan.key, ?theirs,
                "the shim speaks another version; its end will be seen all the same"),
        }
    }

    /// A Ray cluster is left alone while the job that runs on it uses its grace: with the cluster
    /// gone it could not write a training checkpoint any more.
    fn holds_back(&self, order: StopOrder) -> bool {
        self.plan.assignment.launcher == Launcher::Ray
            && self.progress.main.is_some()
            && !self.progress.quiet
            && !order.kill
            && Instant::now() < order.deadline
    }

    fn ladder_grace(&self, order: StopOrder) -> Duration {
        match self.plan.assignment.launcher {
            _ if order.kill => Duration::ZERO,
            Launcher::Ray => RAY_GRACE,
            Launcher::Command => order.deadline.saturating_duration_since(Instant::now()),
        }
    }

    async fn on_started(&mut self, main: ProcessId) {
        if self.progress.main.replace(main).is_some() {
            return;
        }
        self.begin_curves(main);
        self.say(MemberState::Running { pid: main.pid }).await;
        let (nursery, events) = (Arc::clone(&self.nursery), self.events.clone());
        let copies = self.config.copies.clone();
        self.progress.checkpoints = checkpoints::watch(&self.plan, main, copies, nursery, events);
        if self.plan.assignment.launcher != Launcher::Ray {
            return;
        }
        let guests = Guests {
            plan: self.plan.clone(),
            spool: Arc::clone(&self.spool),
            nursery: Arc::clone(&self.nursery),
            code: self.code.clone(),
            events: self.events.clone(),
            assignment: self.assignment.clone(),
        };
        self.progress.guests = Some(GuestsTask(tokio::spawn(guests.run())));
        let port = ports::fixed(self.plan.member.ports, FixedPort::MetricsExport);
        let node = self.config.node_address;
        self.progress.exported = port.map(|port| self.ray.exports.list(&self.plan.key, node, port));
        if self.plan.key.member != MemberId::Head {
            return;
        }
        let (tell_quiet, quiet) = watch::channel(false);
        let watch = RayWatch::new(
            self.plan.clone(),
            Arc::clone(&self.spool),
            self.events.clone(),
            self.stop.clone(),
            self.assignment.clone(),
            tell_quiet,
        );
        match watch {
            Ok(watch) => {
                let task = tokio::spawn(watch.run());
                let _listed = self.list_ray();
                self.progress.ray = Some(RayWatchTask { task, _listed, quiet });
            }
            Err(error) => {
                tracing::error!(key = %self.plan.key, %error, "the Ray cluster cannot be watched");
            }
        }
    }

    fn begin_curves(&mut self, main: ProcessId) {
        let now = Timestamp::now();
        let ran_ms = now.boot_ms.saturating_sub(main.started_ms());
        let began_ms = now.wall_ms.saturating_sub(ran_ms);
        let roots = log_scope::roots(&self.plan, &self.spool);
        let spool = &self.spool.directory;
        self.progress.curves =
            CurvesTask::begin(&self.plan, began_ms, &roots, spool, &self.nursery);
    }

    /// Lets the coordinator ask the cluster.
    fn list_ray(&self) -> Option<Listed> {
        let port = ports::fixed(self.plan.member.ports, FixedPort::Dashboard)?;
        let api = RayApi::new(port, self.plan.assignment.auth_token.clone()).ok()?;
        Some(self.ray.list(&self.plan.key, Arc::clone(&self.spool), api))
    }

    /// Makes sure that nothing is left, keeps the logs, and reports the end.
    async fn finish(mut self, end: End) {
        self.progress.ray = None;
        self.progress.guests = None;
        self.progress.checkpoints = None;
        self.progress.exported = None;
        let by_shim = matches!(end, End::Recorded(_));
        let record = match end {
            End::Recorded(record) => record,
            End::Vanished => ExitRecord::failed(self.vanished_reason()),
            End::Hung => ExitRecord::failed(self.hung_reason()),
        };
        if let Some(shim) = self.spool.shim() {
            match blocking(move || process::wait(shim, GONE_LIMIT)).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!(key = %self.plan.key, "the ended shim does not go away")
                }
                Err(error) => tracing::warn!(key = %self.plan.key, %error, "waiting for the shim"),
            }
        }
        if record.survivors.iter().any(|&id| process::lives(id)) {
            // GPUs stay taken until the last process is really gone.
            tracing::error!(key = %self.plan.key, survivors = ?record.survivors, "unkillable processes");
            self.say_stopping().await;
        }
        let swept = match by_shim && record.survivors.is_empty() {
            // A subreaper that has no child left has no descendant left.
            true => 0,
            false => self.sweep_orphans(&record.survivors).await,
        };
        let asked = record.asked || self.stop.borrow().is_some();
        if !asked && record.how != (How::Exited { code: 0 }) {
            // What Ray's services wrote goes with the temp dir.
            self.witness.keep(Occasion::Ended).await;
        }
        if let Some(curves) = self.progress.curves.take() {
            curves.finish().await;
        }
        let spool = Arc::clone(&self.spool);
        let (key, tail) = (self.plan.key.clone(), Arc::clone(&self.tail));
        let assignment = Arc::clone(&self.assignment.borrow());
        let last_output = blocking(move || {
            tail.keep();
            if let Err(error) = spool.keep_driver_logs() {
                tracing::warn!(%key, %error, "a log of a Ray driver was not kept");
            }
            if let Err(error) = spool.remove_temp() {
                tracing::warn!(%key, %error, "the temp dir was not removed");
            }
            let environment = scene::environment_of(&spool);
            match Known::of(&assignment, &environment).redactor() {
                Ok(redactor) => spool.last_output(&redactor),
                Err(error) => format!("(not shown: {error})"),
            }
        })
        .await;
        let how = match record.how {
            _ if record.fenced => EndedHow::Failed { reason: self.fenced_reason() },
            How::Exited { code } => EndedHow::Exited { code },
            How::Signalled { signal } => EndedHow::Signalled { signal },
            How::Failed { reason } => EndedHow::Failed { reason },
        };
        let swept = record.swept.saturating_add(swept);
        self.over.store(true, Ordering::Release);
        self.say(MemberState::Ended(Ended {
            how,
            asked,
            last_output,
            swept,
            logs_complete: false,
        }))
        .await;
    }

    /// Finds what is left when the shim could not sweep it. Returns only when nothing of the member
    /// runs.
    async fn sweep_orphans(&mut self, survivors: &[ProcessId]) -> u32 {
        let mut sweep = orphans::Sweep::new(&self.plan.key, &self.spool.places.temp, survivors);
        loop {
            let (back, clean) = blocking(move || {
                let clean = sweep.round();
                (sweep, clean)
            })
            .await;
            sweep = back;
            if clean {
                return sweep.killed();
            }
            if sweep.is_stubborn() {
                self.say_stopping().await;
            }
            tokio::time::sleep(sweep.pause()).await;
        }
    }

    fn fenced_reason(&self) -> String {
        let after_s = self.plan.assignment.on_disconnect.after_ms().unwrap_or_default() / 1000;
        match self.plan.assignment.on_disconnect {
            OnDisconnect::Fence { .. } => format!(
                "it stopped itself: for {after_s} s the node had no contact with the coordinator \
                 and saw the gang incomplete (on_disconnect: fence)"
            ),
            OnDisconnect::StopAfter { .. } | OnDisconnect::Keep => format!(
                "it stopped itself: for {after_s} s the node had no contact with the coordinator \
                 (on_disconnect: stop_after)"
            ),
        }
    }

    fn vanished_reason(&self) -> String {
        if self.spool.shim().is_some() {
            "the shim vanished without a record of the member's end".to_owned()
        } else {
            "the member was not started: its shim never came up".to_owned()
        }
    }

    fn hung_reason(&self) -> String {
        let assignment = &self.plan.assignment;
        let places: Vec<&str> =
            [&assignment.job_directory, &assignment.checkpoint_directory, &assignment.workdir]
                .into_iter()
                .filter_map(|place| place.as_deref())
                .collect();
        format!(
            "the member did not start within {} s: its file operations hang; \
             is the shared root reachable ({})?",
            START_LIMIT.as_secs(),
            places.join(", ")
        )
    }
}

/// Ends when no job on this node stands in the way of stopping the cluster: on the head when Ray
/// says so, elsewhere when no process below an entrypoint is left in the tree of `main`. Daemons
/// that a job left behind are no longer in that tree, and nobody waits for them.
async fn quiet(plan: &MemberPlan, main: Option<ProcessId>, ray: Option<&RayWatchTask>) {
    if let Some(ray) = ray {
        // An error means that the watch has ended: nothing to wait for.
        let _ = ray.quiet.clone().wait_for(|quiet| *quiet).await;
        return;
    }
    let Some(main) = main else { return };
    loop {
        let mark = plan.key.mark();
        let busy = blocking(move || {
            let of_jobs =
                process::with_environment_and(MARK_VARIABLE, &mark, ATTEMPT_MARK_VARIABLE);
            process::living_descendants(main.pid).iter().any(|id| of_jobs.contains(id))
        })
        .await;
        // A head that has ended asks no job to end, and no job goes on without it.
        if !busy || head_has_ended(plan).await {
            return;
        }
        tokio::time::sleep(QUIET_PAUSE).await;
    }
}

/// Whether nobody listens for the gang any more where its head did. A host that does not answer says
/// nothing.
async fn head_has_ended(plan: &MemberPlan) -> bool {
    let assignment = &plan.assignment;
    let Some(port) = ports::fixed(assignment.head_ports, FixedPort::Gcs) else { return false };
    let look = tokio::net::TcpStream::connect((assignment.head_address, port));
    let seen = tokio::time::timeout(HEAD_LOOK, look).await;
    matches!(seen, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

/// Everything before the shim runs on its own: decide, probe, write, fork. The shim is known by
/// its file only when its birth was not seen.
fn prepare(
    plan: &MemberPlan,
    config: &SupervisorConfig,
    nursery: &Nursery,
    spool: &Spool,
    contact_ms: Option<u64>,
) -> Result<Option<ProcessId>, Refusal> {
    let impossible = |what: &str, error: std::io::Error| Refusal::Impossible {
        reason: format!("{what}: {error}"),
    };
    let mut launch = command::build(plan, config, &host_facts(plan), &spool.places)?;
    launch.fence = fence::of(plan, &spool.places, contact_ms)?;
    if let (Launcher::Ray, Some(ray)) = (plan.assignment.launcher, launch.argv.first()) {
        std::fs::metadata(ray).map_err(|error| {
            impossible(
                &format!("{ray} is not there, is Ray installed beside the interpreter"),
                error,
            )
        })?;
    }
    probe::ports_free(probed(plan))?;
    spool.create(plan, &launch).map_err(|error| impossible("the spool cannot be made", error))?;
    let listener = shim_link::listen(&spool.directory)
        .map_err(|error| impossible("the shim's socket cannot be made", error))?;
    nursery
        .shim(&spool.directory, &plan.key.mark(), listener)
        .map_err(|error| impossible("the shim cannot be run", error))
}

/// Ray binds any port of its block; a command rank only those that are named to it.
fn probed(plan: &MemberPlan) -> Box<dyn Iterator<Item = u16>> {
    let block = ports::all(plan.member.ports);
    match plan.assignment.launcher {
        Launcher::Ray => Box::new(block),
        Launcher::Command => Box::new(block.take(usize::from(ports::FIXED_PORTS))),
    }
}

fn host_facts(plan: &MemberPlan) -> HostFacts {
    let variables = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let shm_available =
        rustix::fs::statvfs("/dev/shm").ok().map(|shm| shm.f_bavail.saturating_mul(shm.f_frsize));
    HostFacts {
        environment: environment::inherited(variables),
        shm_available,
        home: plan.assignment.run_as.and_then(|(uid, _)| home_of(uid)),
    }
}

fn home_of(uid: u32) -> Option<String> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        match fields.as_slice() {
            &[_, _, id, _, _, home, ..] if id.parse() == Ok(uid) => Some(home.to_owned()),
            _ => None,
        }
    })
}

/// Runs `work` where it may block. A panic in it is a defect and is passed on.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down: there is no later.
            Err(_) => std::future::pending().await,
        },
    }
}
