//! Watches one gang's Ray cluster from the node of its head: readiness, entrypoints, dead nodes. The
//! entrypoints are the gang's own, or those of a standing cluster's guests, which come and go.
//!
//! Everything is asked again and again, and only what was answered is reported. A question that
//! got no answer says nothing: the end of the head is seen by its shim, not here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{ATTEMPT_MARK_VARIABLE, MemberId, MemberKey};
use gangline_common::wire::v1::{
    Argument, Assignment, Entrypoint, EntrypointReport, EntrypointState, GangReport,
    GuestAssignment, GuestJob, GuestOrder, RayCluster, RayDriver, RayNode,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::command::{self, EPOCH_LABEL, GANG_LABEL, MEMBER_LABEL, rank_resource, shell_line};
use super::ports::{self, FixedPort};
use super::ray_api::{Job, Node, RayApi, RayApiError, RuntimeEnv, Submission, Version};
use super::secrets;
use super::spool::Spool;
use super::{MemberPlan, StopOrder, SupervisorEvent, environment};

/// Pause between two looks while the gang forms.
const FORMING_PAUSE: Duration = Duration::from_millis(200);
/// Pause between two looks at running entrypoints.
const RUNNING_PAUSE: Duration = Duration::from_millis(500);
/// Time between two looks at the nodes once the gang is ready.
const NODES_EVERY: Duration = Duration::from_secs(2);
/// How much of a failed entrypoint's message is reported, in bytes.
const MESSAGE_BYTES: usize = 4 << 10;
/// How much of a dead node's message is reported, in bytes.
const STATE_MESSAGE_BYTES: usize = 1 << 10;
/// A share of the rank's resource that keeps the Ray driver on that rank.
const DRIVER_SHARE: f64 = 0.001;

/// What is submitted to Ray.
#[derive(Clone)]
struct Task {
    operation: String,
    /// Of the gang, or what a guest would have if the gang were its own.
    assignment: Arc<Assignment>,
    argv: Vec<Argument>,
    driver: MemberId,
    /// Of the attempt, when it is a guest's: no other job of this cluster ever has it.
    mark: Option<String>,
    /// Where the entrypoint starts, when not where Ray's workers do.
    directory: Option<String>,
}

impl Task {
    fn own(entrypoint: &Entrypoint, assignment: &Arc<Assignment>) -> Self {
        Task {
            operation: entrypoint.operation.clone(),
            assignment: Arc::clone(assignment),
            argv: entrypoint.argv.clone(),
            driver: entrypoint.driver,
            mark: None,
            directory: None,
        }
    }

    fn of_guest(guest: &GuestAssignment, job: &GuestJob, assignment: &Assignment) -> Self {
        let own = assignment.of_guest(guest, job);
        let work = || Some(command::shared_work(&own)?.to_string_lossy().into_owned());
        Task {
            operation: guest.operation.clone(),
            argv: job.argv.clone(),
            driver: guest.driver(),
            mark: Some(guest.operation.clone()),
            directory: job.workdir.clone().or_else(work),
            assignment: Arc::new(own),
        }
    }
}

/// One entrypoint on its way.
struct Tracked {
    operation: String,
    /// Unknown for a guest that an agent finds only when it is to be stopped.
    task: Option<Task>,
    /// The guest is to end, and the gang is to run on.
    is_to_stop: bool,
    /// Ray is known to have it.
    accepted: bool,
    /// Ray was asked to stop it.
    stop_sent: bool,
    /// Ray's own word for its state, once there was one.
    status: Option<String>,
    state: EntrypointState,
    /// When submitting is given up; counts from the first try.
    submit_until: Option<Instant>,
}

impl Tracked {
    fn new(operation: String, task: Option<Task>) -> Self {
        Tracked {
            operation,
            task,
            is_to_stop: false,
            accepted: false,
            stop_sent: false,
            status: None,
            state: EntrypointState::Waiting,
            submit_until: None,
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state, EntrypointState::Succeeded { .. } | EntrypointState::Failed { .. })
    }
}

/// The watch of one gang.
pub struct RayWatch {
    plan: MemberPlan,
    spool: Arc<Spool>,
    api: RayApi,
    events: mpsc::Sender<SupervisorEvent>,
    stop: watch::Receiver<Option<StopOrder>>,
    /// The newest content of the gang's assignment.
    assignment: watch::Receiver<Arc<Assignment>>,
    /// Told true once no entrypoint stands in the way of stopping the gang.
    quiet: watch::Sender<bool>,
    version: Option<Version>,
    /// Another cluster answered on the head's port: said once.
    impostor_seen: bool,
    nodes: Vec<Node>,
    nodes_due: Instant,
    cluster: Option<RayCluster>,
    entrypoints: Vec<Tracked>,
    reported: Option<GangReport>,
}

impl RayWatch {
    /// Errors when no HTTP client can be made, or the block has no dashboard port.
    pub fn new(
        plan: MemberPlan,
        spool: Arc<Spool>,
        events: mpsc::Sender<SupervisorEvent>,
        stop: watch::Receiver<Option<StopOrder>>,
        assignment: watch::Receiver<Arc<Assignment>>,
        quiet: watch::Sender<bool>,
    ) -> Result<Self, RayApiError> {
        // A block without that port was refused before anything was started; port 0 is refused
        // by the kernel.
        let port = ports::fixed(plan.member.ports, FixedPort::Dashboard).unwrap_or(0);
        let api = RayApi::new(port, plan.assignment.auth_token.clone())?;
        let track = |entrypoint: &Entrypoint| {
            let task = Task::own(entrypoint, &plan.assignment);
            Tracked::new(entrypoint.operation.clone(), Some(task))
        };
        let entrypoints = plan.assignment.entrypoints.iter().map(track).collect();
        Ok(RayWatch {
            plan,
            spool,
            api,
            events,
            stop,
            assignment,
            quiet,
            version: None,
            impostor_seen: false,
            nodes: Vec::new(),
            nodes_due: Instant::now(),
            cluster: None,
            entrypoints,
            reported: None,
        })
    }

    /// Runs until the head's member has ended and the task is dropped.
    pub async fn run(mut self) {
        loop {
            self.take_guests();
            self.look().await;
            if self.report().await.is_err() {
                return; // nobody listens any more
            }
            let pause = if self.is_settled() { RUNNING_PAUSE } else { FORMING_PAUSE };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = self.assignment.changed() => {}
            }
        }
    }

    /// Begins with guests that are new, marks those that are to stop, and forgets those that have
    /// nothing more to do with Ray.
    fn take_guests(&mut self) {
        let assignment = Arc::clone(&self.assignment.borrow_and_update());
        let own = |operation: &str| {
            assignment.entrypoints.iter().any(|entrypoint| entrypoint.operation == operation)
        };
        let is_wanted = |operation: &str| {
            assignment.guests.iter().any(|guest| {
                guest.operation == operation
                    && !matches!(guest.order, GuestOrder::Prepare(_) | GuestOrder::Sweep { .. })
            })
        };
        self.entrypoints.retain(|t| own(&t.operation) || is_wanted(&t.operation));
        for guest in &assignment.guests {
            let (task, is_to_stop) = match &guest.order {
                GuestOrder::Run(job) => (Some(Task::of_guest(guest, job, &assignment)), false),
                GuestOrder::Watch => (None, false),
                GuestOrder::Stop => (None, true),
                GuestOrder::Prepare(_) | GuestOrder::Sweep { .. } => continue,
            };
            let known = self.entrypoints.iter_mut().find(|t| t.operation == guest.operation);
            match known {
                Some(tracked) => tracked.is_to_stop |= is_to_stop,
                None => {
                    let mut tracked = Tracked::new(guest.operation.clone(), task);
                    tracked.is_to_stop = is_to_stop;
                    // It was seen running, so Ray has it, or has lost it.
                    tracked.accepted = guest.order == GuestOrder::Watch;
                    self.entrypoints.push(tracked);
                }
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.is_ready() && self.entrypoints.iter().all(|t| t.accepted || t.is_over())
    }

    fn is_ready(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.ready)
    }

    fn is_stopping(&self) -> bool {
        self.stop.borrow().is_some()
    }

    async fn look(&mut self) {
        if self.version.is_none() {
            self.version = self.own_version().await;
        }
        let Some(version) = self.version.clone() else {
            self.tell_quiet();
            return;
        };
        let now = Instant::now();
        if !self.is_settled() || now >= self.nodes_due {
            if let Ok(nodes) = self.api.nodes().await {
                self.nodes = nodes;
                self.cluster = Some(cluster(&self.plan, &version, &self.nodes));
            }
            self.nodes_due = now + NODES_EVERY;
        }
        for index in 0..self.entrypoints.len() {
            self.advance(index).await;
        }
        self.tell_quiet();
    }

    /// The head's version, once the API that answers is known to be that of this very head.
    async fn own_version(&mut self) -> Option<Version> {
        let version = self.api.version().await.ok()?;
        let own = self.spool.session_name()?;
        if version.session_name == own {
            return Some(version);
        }
        if !std::mem::replace(&mut self.impostor_seen, true) {
            tracing::warn!(key = %self.plan.key, answered = version.session_name, own,
                "another Ray cluster answers on the port of this head");
        }
        None
    }

    /// One step of one entrypoint: find it in Ray, or submit it, or stop it.
    async fn advance(&mut self, index: usize) {
        let gang_stops = self.is_stopping();
        let ready = self.is_ready();
        let Some(tracked) = self.entrypoints.get_mut(index).filter(|t| !t.is_over()) else {
            return;
        };
        let stopping = gang_stops || tracked.is_to_stop;
        let operation = tracked.operation.clone();
        // An entrypoint of an earlier agent is there already, whatever the nodes look like now.
        match self.api.job(&operation).await {
            Ok(Some(mut job)) => {
                let own = tracked.task.as_ref().map(|task| &task.assignment);
                let own = own.unwrap_or(&self.plan.assignment);
                // Its end holds the last lines of the job's log.
                job.message = job.message.map(|text| secrets::removed(own, &text));
                tracked.accepted = true;
                tracked.status = Some(job.status.clone());
                tracked.state = state_of(&job, &self.nodes, &self.plan.key);
                if stopping && !tracked.is_over() && !tracked.stop_sent {
                    tracked.stop_sent = matches!(self.api.stop(&operation).await, Ok(true));
                }
            }
            // Ray has lost what it had accepted. Only its answer about the job counts, and it may
            // yet come back with it.
            Ok(None) if tracked.accepted => {}
            Ok(None) if tracked.is_to_stop => {
                tracked.state = not_submitted("stopped before it was submitted".to_owned());
            }
            Ok(None) if ready && !stopping => self.submit(index).await,
            Ok(None) | Err(_) => {}
        }
    }

    async fn submit(&mut self, index: usize) {
        let Some(tracked) = self.entrypoints.get_mut(index) else { return };
        let Some(task) = &tracked.task else { return };
        let patience = Duration::from_millis(self.plan.assignment.start_timeout_ms);
        let until = *tracked.submit_until.get_or_insert_with(|| Instant::now() + patience);
        let submission = match submission(task) {
            Ok(submission) => submission,
            Err(error) => return tracked.state = not_submitted(error.to_string()),
        };
        let mut stop = self.stop.clone();
        let submitted = tokio::select! {
            submitted = self.api.submit(&submission) => submitted,
            // The next look finds out whether it was accepted all the same.
            _ = stop.changed() => return,
        };
        match submitted {
            Ok(()) => {
                tracked.accepted = true;
                tracing::info!(key = %self.plan.key, operation = tracked.operation, "submitted");
            }
            Err(error) => {
                let late = Instant::now() >= until;
                // A submission whose answer got lost may have arrived: only a definite "unknown"
                // after it makes it a failure.
                let unknown =
                    || async { matches!(self.api.job(&tracked.operation).await, Ok(None)) };
                if (late || error.is_permanent()) && unknown().await {
                    tracked.state = not_submitted(error.to_string());
                } else {
                    tracing::debug!(key = %self.plan.key, %error, "not submitted yet");
                }
            }
        }
    }

    /// While stopping: nothing is left to wait for when every entrypoint is over, or waits inside
    /// Ray (which cannot stop it then), or never got there.
    fn tell_quiet(&self) {
        let waits = |tracked: &Tracked| {
            tracked.accepted && !tracked.is_over() && tracked.status.as_deref() != Some("PENDING")
        };
        if self.is_stopping() && !self.entrypoints.iter().any(waits) {
            self.quiet.send_replace(true);
        }
    }

    async fn report(&mut self) -> Result<(), ()> {
        let report = GangReport {
            gang: self.plan.key.gang.clone(),
            epoch: self.plan.key.epoch,
            ray: self.cluster.clone(),
            entrypoints: self
                .entrypoints
                .iter()
                .map(|tracked| EntrypointReport {
                    operation: tracked.operation.clone(),
                    state: tracked.state.clone(),
                })
                .collect(),
        };
        if self.reported.as_ref() == Some(&report) {
            return Ok(());
        }
        self.reported = Some(report.clone());
        self.events.send(SupervisorEvent::GangChanged { report }).await.map_err(drop)
    }
}

/// Which of Ray's nodes are members, and whether they are exactly this gang.
fn cluster(plan: &MemberPlan, version: &Version, nodes: &[Node]) -> RayCluster {
    let mut members: BTreeMap<MemberId, RayNode> = BTreeMap::new();
    let mut foreign = false;
    for node in nodes {
        let alive = node.state == "ALIVE";
        let Some(member) = member_of(node, &plan.key) else {
            if alive {
                foreign = true;
                tracing::debug!(key = %plan.key, node = node.node_id, ip = node.node_ip,
                    "a node that is no member of the gang is in its Ray cluster");
            }
            continue;
        };
        let seen = RayNode {
            member,
            ray_node_id: node.node_id.clone(),
            address: node.node_ip.clone(),
            alive,
            state_message: end_of(node.state_message.as_deref().unwrap_or(""), STATE_MESSAGE_BYTES),
        };
        match members.get(&member) {
            Some(other) if other.alive && alive => foreign = true,
            Some(other) if other.alive => {}
            _ => {
                members.insert(member, seen);
            }
        }
    }
    let alive = |member| members.get(&member).is_some_and(|node| node.alive);
    let complete = alive(MemberId::Head)
        && (0..plan.assignment.nnodes).all(|rank| alive(MemberId::Rank(rank)));
    let strangers = members.keys().any(|member| match member {
        MemberId::Head => false,
        MemberId::Rank(rank) => *rank >= plan.assignment.nnodes,
    });
    RayCluster {
        ready: complete && !foreign && !strangers,
        session: version.session_name.clone(),
        version: version.ray_version.clone(),
        nodes: members.into_values().collect(),
    }
}

pub(super) fn member_of(node: &Node, key: &MemberKey) -> Option<MemberId> {
    let label = |name: &str| node.labels.as_ref()?.get(name).map(String::as_str);
    if label(GANG_LABEL)? != key.gang.as_str() || label(EPOCH_LABEL)? != key.epoch.to_string() {
        return None;
    }
    label(MEMBER_LABEL)?.parse().ok()
}

/// An entrypoint cannot be written as Ray wants it.
#[derive(Debug, thiserror::Error)]
enum Unwritable {
    #[error(transparent)]
    Quote(#[from] shlex::QuoteError),
    #[error("`${0}` of the template has no value for this job")]
    Unset(String),
}

/// Starts a program in a directory: both are arguments, so that the shell reads neither.
const IN_DIRECTORY: [&str; 3] = ["/bin/sh", "-c", r#"cd -- "$0" && exec "$@""#];

fn submission(task: &Task) -> Result<Submission, Unwritable> {
    let facts = environment::facts_of_gang(&task.assignment);
    let argv = task.argv.iter().map(|argument| environment::fill(argument, &facts));
    let mut argv = argv.collect::<Result<Vec<_>, _>>().map_err(Unwritable::Unset)?;
    if let Some(directory) = &task.directory {
        let before = IN_DIRECTORY.map(str::to_owned).into_iter().chain([directory.clone()]);
        argv = before.chain(argv).collect();
    }
    let mut env_vars = environment::entrypoint(&task.assignment);
    if let Some(mark) = &task.mark {
        env_vars.insert(ATTEMPT_MARK_VARIABLE.to_owned(), mark.clone());
    }
    let mut entrypoint_resources = BTreeMap::new();
    if let MemberId::Rank(rank) = task.driver {
        entrypoint_resources.insert(rank_resource(rank), DRIVER_SHARE);
    }
    let metadata = BTreeMap::from([
        ("gangline_job".to_owned(), task.assignment.job.to_string()),
        ("gangline_attempt".to_owned(), task.assignment.attempt.to_string()),
    ]);
    Ok(Submission {
        entrypoint: shell_line(&argv)?,
        submission_id: task.operation.clone(),
        runtime_env: RuntimeEnv { env_vars },
        entrypoint_resources,
        metadata,
    })
}

fn state_of(job: &Job, nodes: &[Node], key: &MemberKey) -> EntrypointState {
    let driver = driver_of(job, nodes, key);
    match job.status.as_str() {
        "RUNNING" => EntrypointState::Running { driver },
        "SUCCEEDED" => EntrypointState::Succeeded { driver },
        "FAILED" | "STOPPED" => EntrypointState::Failed {
            driver,
            exit_code: job.driver_exit_code,
            error_type: job
                .error_type
                .clone()
                .or_else(|| (job.status == "STOPPED").then(|| "STOPPED".to_owned())),
            message: end_of(job.message.as_deref().unwrap_or(""), MESSAGE_BYTES),
        },
        // PENDING, or a word of a later Ray, which is no evidence of an end.
        _ => EntrypointState::Waiting,
    }
}

/// Where the Ray driver runs: the node id is what Ray's own supervisor saw; the address is what
/// the driver said of itself, and is absent when it never connected.
fn driver_of(job: &Job, nodes: &[Node], key: &MemberKey) -> Option<RayDriver> {
    let id = job.driver_node_id.clone()?;
    let member = nodes.iter().find(|node| node.node_id == id).and_then(|node| member_of(node, key));
    let address = job.driver_info.as_ref().and_then(|info| info.node_ip_address.clone());
    Some(RayDriver { ray_node_id: id, member, address })
}

fn not_submitted(message: String) -> EntrypointState {
    EntrypointState::Failed {
        driver: None,
        exit_code: None,
        error_type: Some("NOT_SUBMITTED".to_owned()),
        message: end_of(&message, MESSAGE_BYTES),
    }
}

pub(super) fn end_of(text: &str, bytes: usize) -> String {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.get(start..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use gangline_common::wire::v1::Piece;

    use super::*;
    use crate::supervisor::fixtures;

    fn node(id: &str, state: &str, labels: &[(&str, &str)]) -> Node {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Node {
            node_id: id.to_owned(),
            node_ip: "10.0.0.1".to_owned(),
            state: state.to_owned(),
            state_message: (state == "DEAD").then(|| "health check failed".to_owned()),
            labels: Some(labels),
            resources_total: None,
        }
    }

    fn member(id: &str, state: &str, member: &str) -> Node {
        node(id, state, &[(GANG_LABEL, "g-1"), (EPOCH_LABEL, "1.1"), (MEMBER_LABEL, member)])
    }

    fn seen(nodes: &[Node]) -> RayCluster {
        let (plan, _) = fixtures::ray_plan(MemberId::Head);
        let version =
            Version { ray_version: "2.60.0".to_owned(), session_name: "session_1".to_owned() };
        cluster(&plan, &version, nodes)
    }

    #[test]
    fn ready_is_exactly_this_gang() {
        let whole =
            [member("h", "ALIVE", "head"), member("a", "ALIVE", "0"), member("b", "ALIVE", "1")];
        assert!(seen(&whole).ready);
        assert!(!seen(&whole[..2]).ready, "a rank is missing");
        let with = |extra: Node| seen(&[&whole[..], &[extra]].concat());
        assert!(!with(node("x", "ALIVE", &[])).ready, "a node without labels");
        assert!(!with(member("x", "ALIVE", "2")).ready, "a rank too many");
        assert!(!with(member("x", "ALIVE", "1")).ready, "a rank twice");
        let old = [(GANG_LABEL, "g-1"), (EPOCH_LABEL, "1.0"), (MEMBER_LABEL, "1")];
        assert!(!with(node("x", "ALIVE", &old)).ready, "a member of another epoch");
        assert!(with(node("x", "DEAD", &[])).ready, "who has left does not matter");
        assert!(with(member("x", "DEAD", "1")).ready);
    }

    #[test]
    fn a_dead_member_is_reported_with_its_cause() {
        let cluster = seen(&[
            member("h", "ALIVE", "head"),
            member("a", "ALIVE", "0"),
            member("b", "DEAD", "1"),
        ]);
        assert!(!cluster.ready);
        let dead = cluster.nodes.iter().find(|node| node.member == MemberId::Rank(1)).unwrap();
        assert_eq!((dead.alive, dead.state_message.as_str()), (false, "health check failed"));
    }

    #[test]
    fn answers_of_ray_are_read() {
        let job: Job = serde_json::from_str(
            r#"{"type":"SUBMISSION","job_id":null,"submission_id":"job-1-2","driver_info":null,
                "status":"FAILED","message":"exit code 3","error_type":"JOB_ENTRYPOINT_COMMAND_ERROR",
                "driver_node_id":"b","driver_exit_code":3}"#,
        )
        .unwrap();
        let (plan, _) = fixtures::ray_plan(MemberId::Head);
        let nodes = [member("b", "ALIVE", "1")];
        let driver = RayDriver {
            ray_node_id: "b".to_owned(),
            member: Some(MemberId::Rank(1)),
            address: None,
        };
        assert_eq!(
            state_of(&job, &nodes, &plan.key),
            EntrypointState::Failed {
                driver: Some(driver),
                exit_code: Some(3),
                error_type: Some("JOB_ENTRYPOINT_COMMAND_ERROR".to_owned()),
                message: "exit code 3".to_owned(),
            }
        );
        let stopped = Job { status: "STOPPED".to_owned(), error_type: None, ..job.clone() };
        assert!(matches!(
            state_of(&stopped, &nodes, &plan.key),
            EntrypointState::Failed { error_type: Some(error), .. } if error == "STOPPED"
        ));
        let unheard_of = Job { status: "PAUSED".to_owned(), ..job };
        assert_eq!(state_of(&unheard_of, &nodes, &plan.key), EntrypointState::Waiting);
    }

    #[test]
    fn the_driver_is_pinned_to_its_rank() {
        let (plan, _) = fixtures::ray_plan(MemberId::Head);
        let mut entrypoint = Task::own(&plan.assignment.entrypoints[0], &plan.assignment);
        entrypoint.argv.push("--note=it's $(id)".into());
        let variable = Piece::Variable("GANGLINE_NNODES".to_owned());
        let pieces = vec![Piece::Text("n=$GANGLINE_NNODES is ".to_owned()), variable];
        entrypoint.argv.push(Argument { pieces });
        let json = serde_json::to_value(submission(&entrypoint).unwrap()).unwrap();
        assert_eq!(json["submission_id"], "job-1-2");
        assert_eq!(json["entrypoint_resources"]["gangline_rank_0"], 0.001);
        assert_eq!(json["runtime_env"]["env_vars"]["GANGLINE_JOB_ID"], "job-1");
        let words = ["python", "train.py", "--note=it's $(id)", "n=$GANGLINE_NNODES is 2"];
        assert_eq!(shlex::split(json["entrypoint"].as_str().unwrap()).unwrap(), words);
        let unset = Piece::Variable("GANGLINE_NODE_RANK".to_owned());
        entrypoint.argv.push(Argument { pieces: vec![unset] });
        assert!(matches!(submission(&entrypoint), Err(Unwritable::Unset(_))));
    }
}
