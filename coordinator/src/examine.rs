//! Finding out why an attempt failed: its logs and what is known for certain go through the rules of
//! `gangline_diagnosis`. The answer is kept beside the logs, the verdict goes to the core.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gangline_common::ids::{GangId, MemberId, MemberKey, NodeId};
use gangline_common::redact::Redactor;
use gangline_common::wire::scene::is_scene;
use gangline_diagnosis::{
    Action, Case, Category, Diagnosis, Evidence, Fact, FactKind, MAX_SOURCES, Rules, Source,
    StopReason, share,
};
use gangline_spec::{LogAction, LogPattern, LogPolicy, log_pattern};
use tokio::sync::{Semaphore, mpsc};

use crate::agents::Agents;
use crate::board::{Board, JobSnapshot};
use crate::core::effect::Examine;
use crate::core::event::Event;
use crate::core::gang::{End, EndHow, Gang, Phase};
use crate::core::health::{Condition, Level};
use crate::core::job::{Attempt, Outcome};
use crate::core::node::Reachability;
use crate::core::recovery::{Again, Cause, Verdict};
use crate::driver::DriverHandle;
use crate::ingest::logs::{Logs, Times};
use crate::ingest::telemetry::Telemetry;
use crate::report::{self, Reports};
use crate::secrets::{Sealer, redactor};
use crate::training::Trainings;

/// Conditions that began so long before an attempt are still about it, in milliseconds: clocks differ.
const EARLY_MS: u64 = 5_000;
/// Time that the log policies of one job may take.
const POLICY_TIME: Duration = Duration::from_secs(5);
/// Longest line that a log policy is tried on, in bytes.
const POLICY_LINE: usize = 4096;
/// Attempts that are looked into at a time.
const AT_ONCE: usize = 2;
/// Bytes of the middles of logs in which the lines of one failure are counted.
const COUNTED_BYTES: u64 = 256 << 20;
/// Bytes that are read at once to count them.
const COUNTED_AT_ONCE: usize = 1 << 20;
/// Most times of each piece of a log.
const READ_TIMES: usize = 4096;
/// Longest summary, in characters.
const SUMMARY: usize = 400;
/// Instead of a line that may hold a secret.
const NOT_QUOTED: &str = "(not shown: the project's secrets cannot be looked for)";

/// Looks into attempts.
#[derive(Clone)]
pub struct Examiner {
    board: Board,
    sealer: Sealer,
    logs: Logs,
    rules: Arc<Rules>,
    trainings: Trainings,
    telemetry: Telemetry,
    reports: Option<Reports>,
}

/// What was found out.
#[derive(Debug)]
pub struct Found {
    pub diagnosis: Diagnosis,
    /// The log policy that decided, and the line that fitted it.
    policy: Option<(LogPolicy, String, Option<NodeId>)>,
    /// The node of the first cause.
    node: Option<NodeId>,
}

impl Examiner {
    pub fn new(
        (board, sealer): (Board, Sealer),
        logs: Logs,
        rules: Rules,
        trainings: Trainings,
        telemetry: Telemetry,
    ) -> Examiner {
        let rules = Arc::new(rules);
        Examiner { board, sealer, logs, rules, trainings, telemetry, reports: None }
    }

    /// Leaves a page on every verdict in the job's directory as well.
    pub fn with_reports(self, agents: Agents) -> Examiner {
        let reports = Some(Reports { board: self.board.clone(), agents });
        Examiner { reports, ..self }
    }

    /// Answers every request, [`AT_ONCE`] at a time; ends with the driver.
    pub async fn run(self, mut requests: mpsc::Receiver<Examine>, driver: DriverHandle) {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        while let Some(examine) = requests.recv().await {
            // Nobody closes it.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (this, driver) = (self.clone(), driver.clone());
            tokio::spawn(async move {
                this.answer_one(examine, &driver).await;
                drop(place);
            });
        }
    }

    async fn answer_one(&self, Examine { job, attempt }: Examine, driver: &DriverHandle) {
        let Some(snapshot) = self.board.job(&job) else { return };
        let mut attempts = snapshot.attempts.iter();
        // Whoever waits asks again after a while.
        if attempts.any(|known| known.number == attempt && known.verdict.is_some()) {
            return;
        }
        // What is told below may begin another attempt, on other nodes.
        let nodes = report::nodes(&snapshot, attempt);
        let this = self.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let found = this.look_into(&snapshot, attempt)?;
            this.keep(&snapshot, attempt, &found.diagnosis);
            let progressed = this.trainings.has_progressed(&snapshot, attempt);
            Some((Verdict { progressed, ..verdict(&found) }, found.diagnosis))
        });
        match looked.await {
            Ok(Some((verdict, diagnosis))) => {
                let verdict = Box::new(verdict);
                let event = Event::Examined { job: job.clone(), attempt, verdict };
                // Without a driver there is nobody who waits for it.
                let _ = driver.tell(event).await;
                if let Some(reports) = self.reports.clone() {
                    let rules = Arc::clone(&self.rules);
                    // Nothing waits for it, and it ends by itself.
                    tokio::spawn(async move {
                        reports.write(&job, attempt, nodes, &diagnosis, &rules).await;
                    });
                }
            }
            Ok(None) => tracing::warn!(%job, attempt, "there is no such attempt to look into"),
            Err(error) => tracing::error!(%job, attempt, %error, "looking into a failure"),
        }
    }

    /// Why an attempt failed; `None` when there is no such attempt. Blocking.
    pub fn look_into(&self, snapshot: &JobSnapshot, number: u32) -> Option<Found> {
        let attempt = snapshot.attempts.iter().find(|attempt| attempt.number == number)?;
        let gang = snapshot.gang.as_deref().filter(|gang| gang.epoch == attempt.epoch);
        // Before anything is cut: half a secret would not be known as one.
        let redactor = self.redactor(snapshot);
        let hide = |bytes: Vec<u8>| match &redactor {
            Some(redactor) => redactor.clean_bytes(&bytes),
            None => bytes,
        };
        let mut case = Case::new(&self.rules);
        for fact in self.facts(attempt, gang) {
            case.fact(fact);
        }
        let said = words_of(attempt, gang);
        case.read(&Source::whole("gangline", said.as_bytes()));
        let policies = policies(&snapshot.job.request.spec_json);
        let mut by_policy: Option<(usize, String, Option<NodeId>)> = None;
        let mut files = self.logs.files(&attempt.gang, attempt.epoch);
        let driver = format!("driver-{}", snapshot.job.operation(attempt.number));
        files.retain(|(_, file, _)| match &attempt.guest {
            // The rest is of its cluster and of other jobs on it.
            Some(_) => *file == driver,
            // It says again what the logs say, and much that says nothing.
            None => !is_scene(file),
        });
        files.sort_by_cached_key(|(member, file, _)| weight(gang, *member, file));
        let until = Instant::now() + POLICY_TIME;
        let mut uncounted = COUNTED_BYTES;
        let (head_bytes, tail_bytes) = share(files.len());
        for (member, file, length) in files.into_iter().take(MAX_SOURCES) {
            let key = MemberKey { gang: attempt.gang.clone(), epoch: attempt.epoch, member };
            let read = |offset: u64, bytes: usize| {
                self.logs.read(&key, &file, offset, bytes).unwrap_or_else(|error| {
                    tracing::warn!(%key, file, %error, "a log cannot be looked at");
                    Vec::new()
                })
            };
            let head = read(0, head_bytes);
            let rest = length.saturating_sub(head.len() as u64);
            let tail_length = rest.min(tail_bytes as u64);
            let mut tail_from = length - tail_length;
            let mut tail = read(tail_from, tail_length as usize);
            let mut tail_line = None;
            if rest > tail_length {
                // It begins within a line.
                let begin = tail.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                let cut = begin.map_or(tail.len(), |at| at + 1);
                tail.drain(..cut);
                tail_from += cut as u64;
                tail_line = self.lines_before(&key, &file, tail_from, &mut uncounted);
                tail_line = tail_line.map(|lines| lines + 1);
            }
            let times = self.logs.times(&key, &file, length);
            let read_times = read_times(&times, (head.len(), length), tail_from);
            let node = gang.and_then(|gang| gang.members.get(&member)).map(|m| m.node.clone());
            let name = format!("{}/{file}", member_name(member));
            let node_name = node.as_ref().map(|node| self.name(node)).unwrap_or_default();
            // A tail that follows the head at once belongs to it.
            let (head, tail) = match rest == tail_length {
                true => (hide([head, tail].concat()), Vec::new()),
                false => (hide(head), hide(tail)),
            };
            let mut source = Source {
                head: &head,
                tail: &tail,
                tail_line,
                read_times: &read_times,
                ..Source::whole(&name, &[])
            };
            if let MemberId::Rank(rank) = member {
                source = source.of_rank(Some(rank));
            }
            if !node_name.is_empty() {
                let ahead_ms = node.as_ref().and_then(|node| self.telemetry.clock_ahead_ms(node));
                source = source.on_node(&node_name, ahead_ms.unwrap_or_default());
            }
            case.read(&source);
            if let Some((index, line)) = first_policy(&policies, &[head, tail].concat(), until)
                && by_policy.as_ref().is_none_or(|(known, ..)| index < *known)
            {
                by_policy = Some((index, line, node));
            }
        }
        let mut diagnosis = case.conclude();
        let node = self.node_of(&diagnosis, gang);
        let policy = by_policy.and_then(|(index, line, node)| {
            policies.get(index).map(|(policy, _)| (policy.clone(), line, node))
        });
        if let Some((policy, line, _)) = &policy {
            diagnosis = under(policy, line, diagnosis);
        }
        let mut found = Found { diagnosis, policy, node };
        redact(redactor.as_ref(), &mut found);
        Some(found)
    }

    /// Line ends before a place in a log; `None` when it is too far to count them. Takes what was
    /// counted from `budget`.
    fn lines_before(
        &self,
        key: &MemberKey,
        file: &str,
        until: u64,
        budget: &mut u64,
    ) -> Option<u64> {
        *budget = budget.checked_sub(until)?;
        let mut log = self.logs.open(key, file).ok()??;
        let (mut at, mut lines) = (0, 0);
        while at < until {
            let bytes = log.read_at(at, COUNTED_AT_ONCE.min((until - at) as usize)).ok()?;
            if bytes.is_empty() {
                return None;
            }
            at += bytes.len() as u64;
            lines += memchr::memchr_iter(b'\n', &bytes).count() as u64;
        }
        Some(lines)
    }

    /// What finds the secrets of the job's project; `None` when that cannot be had.
    fn redactor(&self, snapshot: &JobSnapshot) -> Option<Redactor> {
        redactor(&self.sealer, &self.board, snapshot)
            .inspect_err(|error| {
                tracing::warn!(job = %snapshot.job.id, %error, "no line is quoted");
            })
            .ok()
    }

    /// What needs no log: the ends of members, lost nodes, conditions of nodes.
    fn facts(&self, attempt: &Attempt, gang: Option<&Gang>) -> Vec<Fact> {
        let ended_ms = attempt.ended.map(|ended| millis(ended.wall_ms));
        let mut facts = Vec::new();
        let from_ms = attempt.started.wall_ms.saturating_sub(EARLY_MS);
        for (id, member) in gang.iter().flat_map(|gang| &gang.members) {
            let node = self.name(&member.node);
            let rank = match id {
                MemberId::Rank(rank) => Some(*rank),
                MemberId::Head => None,
            };
            let fact = |kind, at_ms| Fact { at_ms, node: Some(node.clone()), rank, kind };
            match &member.phase {
                Phase::Ended(end) => match end_fact(end) {
                    Some(kind @ FactKind::Stopped(_)) => facts.push(fact(kind, ended_ms)),
                    Some(kind) => facts.push(fact(kind, None)),
                    None => {}
                },
                _ if self.is_lost(&member.node) => facts.push(fact(FactKind::NodeLost, None)),
                _ => {}
            }
        }
        for node in gang.iter().flat_map(|gang| gang.nodes()) {
            let Some(snapshot) = self.board.node(node.as_str()) else { continue };
            let news = snapshot.node.standing().filter(|found| found.since_ms >= from_ms);
            facts.extend(news.filter_map(|condition| {
                let kind = condition_fact(condition)?;
                let (at_ms, node) = (Some(millis(condition.since_ms)), self.name(&node));
                Some(Fact { at_ms, node: Some(node), rank: None, kind })
            }));
        }
        facts
    }

    fn is_lost(&self, node: &NodeId) -> bool {
        let snapshot = self.board.node(node.as_str());
        snapshot
            .is_none_or(|found| found.node.revoked || found.node.reachability == Reachability::Lost)
    }

    fn name(&self, node: &NodeId) -> String {
        self.board.node(node.as_str()).map_or(node.to_string(), |found| found.node.name.clone())
    }

    /// The node of the first cause: as the answer names it, or the one of its rank.
    fn node_of(&self, diagnosis: &Diagnosis, gang: Option<&Gang>) -> Option<NodeId> {
        let gang = gang?;
        let named = diagnosis
            .node
            .as_ref()
            .and_then(|name| gang.nodes().into_iter().find(|node| self.name(node) == *name));
        let of_rank = || gang.members.get(&MemberId::Rank(diagnosis.rank?));
        named.or_else(|| of_rank().map(|member| member.node.clone()))
    }

    /// Puts the answer beside the logs; without it the verdict still says what it was.
    fn keep(&self, snapshot: &JobSnapshot, number: u32, diagnosis: &Diagnosis) {
        let Some(attempt) = snapshot.attempts.iter().find(|a| a.number == number) else { return };
        // Its logs go with it when it is deleted meanwhile.
        if self.board.job(&snapshot.job.id).is_none() {
            return;
        }
        let of = name_of(attempt);
        let kept = serde_json::to_vec(diagnosis)
            .map_err(std::io::Error::other)
            .and_then(|answer| self.logs.put_answer(&attempt.gang, attempt.epoch, &of, &answer));
        if let Err(error) = kept {
            tracing::warn!(job = %attempt.job, %error, "an answer cannot be kept");
        }
    }

    /// The answer that was kept, or one that is made now. Blocking.
    pub fn answer(&self, snapshot: &JobSnapshot, attempt: &Attempt) -> Option<serde_json::Value> {
        let (gang, epoch): (&GangId, _) = (&attempt.gang, attempt.epoch);
        let kept = self.logs.answer(gang, epoch, &name_of(attempt)).ok().flatten();
        kept.and_then(|answer| serde_json::from_slice(&answer).ok()).or_else(|| {
            let found = self.look_into(snapshot, attempt.number)?;
            // A gang that still stops may say more.
            if snapshot.gang.as_ref().is_none_or(|gang| !gang.is_live()) {
                self.keep(snapshot, attempt.number, &found.diagnosis);
            }
            serde_json::to_value(found.diagnosis).ok()
        })
    }

    /// The title of a category.
    pub fn title(&self, category: &str) -> &str {
        let known = Category::ALL.into_iter().find(|known| known.word() == category);
        self.rules.title(known.unwrap_or(Category::Unknown))
    }
}

/// When the bytes of a log's start, and of its end from `tail_from` on, were read: see
/// [`Source::read_times`]. What is hidden of secrets moves the offsets a little.
fn read_times(
    times: &Times,
    (head_length, length): (usize, u64),
    tail_from: u64,
) -> Vec<(usize, i64)> {
    let of_head = times.between(0, head_length as u64, READ_TIMES);
    let of_tail = times.between(tail_from, length, READ_TIMES);
    let in_head = of_head.into_iter().map(|(offset, ms)| (offset as usize, millis(ms)));
    let in_tail = of_tail
        .into_iter()
        .map(|(offset, ms)| (head_length + (offset - tail_from) as usize, millis(ms)));
    in_head.chain(in_tail).collect()
}

/// What the answer on an attempt is kept as.
fn name_of(attempt: &Attempt) -> String {
    format!("{}-{}", attempt.job, attempt.number)
}

/// `rank-3`, `head`.
fn member_name(member: MemberId) -> String {
    match member {
        MemberId::Head => "head".to_owned(),
        MemberId::Rank(rank) => format!("rank-{rank}"),
    }
}

/// In which order the logs of a gang are looked at, for of a large one not all are: what its jobs said,
/// what ended by itself, the output of ranks, their workers, Ray's own.
fn weight(gang: Option<&Gang>, member: MemberId, file: &str) -> u8 {
    let by_itself = gang.and_then(|gang| gang.members.get(&member)).is_some_and(
        |member| matches!(&member.phase, Phase::Ended(end) if !end.asked && !end.is_success()),
    );
    match file {
        _ if file.starts_with("driver-") => 0,
        "output" if by_itself => 1,
        _ if by_itself && file.contains("worker") => 2,
        "output" => 3,
        _ if file.contains("worker") => 4,
        _ => 5,
    }
}

fn millis(wall_ms: u64) -> i64 {
    i64::try_from(wall_ms).unwrap_or(i64::MAX)
}

fn end_fact(end: &End) -> Option<FactKind> {
    match &end.how {
        _ if end.asked => Some(FactKind::Stopped(StopReason::AfterFailure)),
        EndHow::Exited { code } => Some(FactKind::Exit { code: *code }),
        EndHow::Signalled { signal } => Some(FactKind::Signal { signal: *signal }),
        EndHow::GivenUp { .. } => Some(FactKind::NodeLost),
        EndHow::Failed { .. } | EndHow::Refused { .. } | EndHow::Unfit { .. } => None,
    }
}

/// What a condition of a node says about the failure of a gang on it; nothing when it is no cause.
fn condition_fact(condition: &Condition) -> Option<FactKind> {
    let part = condition.component.split_once(':').map(|(_, part)| part.to_owned());
    let rule = condition.rule.as_str();
    if rule == "oom-kill" {
        return Some(FactKind::OomKills(1));
    }
    let severe = condition.level >= Level::NoNewJobs;
    let sick = |gpu| FactKind::Sick { rule: rule.to_owned(), gpu, said: condition.reason.clone() };
    match condition.component.split_once(':').map(|(kind, _)| kind) {
        Some("gpu") if severe => Some(sick(part)),
        Some("port") if condition.level >= Level::Degraded => {
            Some(FactKind::LinkDown { device: part.unwrap_or_default() })
        }
        Some("mount") if severe => Some(FactKind::DiskFull { path: part.unwrap_or_default() }),
        None if severe => Some(sick(None)),
        _ => None,
    }
}

/// What the coordinator and the agents say of the end, as text that rules can fit.
fn words_of(attempt: &Attempt, gang: Option<&Gang>) -> String {
    let cause = match &attempt.outcome {
        Some(
            Outcome::Failed { cause } | Outcome::Retried { cause } | Outcome::Evacuated { cause },
        ) => cause.as_str(),
        _ => "",
    };
    let members = gang.iter().flat_map(|gang| gang.members.values());
    let reasons = members.filter_map(|member| match &member.phase {
        Phase::Ended(End {
            how: EndHow::Failed { reason } | EndHow::GivenUp { reason },
            asked: false,
            ..
        }) => Some(reason.as_str()),
        _ => None,
    });
    // The cause ends with what a rank said last, which is in its log as well.
    let own = cause.split('\n').next().unwrap_or_default();
    [own].into_iter().chain(reasons).collect::<Vec<_>>().join("\n")
}

/// The log policies of a stored spec with their expressions, in order.
fn policies(spec_json: &str) -> Vec<(LogPolicy, LogPattern)> {
    let Ok(spec) = gangline_spec::parse(spec_json) else { return Vec::new() };
    // Their expressions were checked when the spec was submitted.
    let compiled = |policy: LogPolicy| Some((policy.clone(), log_pattern(&policy.pattern).ok()?));
    spec.log_policies.into_iter().filter_map(compiled).collect()
}

/// The first policy that some line fits, and the first such line.
fn first_policy(
    policies: &[(LogPolicy, LogPattern)],
    text: &[u8],
    until: Instant,
) -> Option<(usize, String)> {
    policies.iter().enumerate().find_map(|(index, (_, expression))| {
        // Expressions can be slow, and others wait for their verdicts.
        let lines = text.split(|byte| *byte == b'\n').take_while(|_| Instant::now() < until);
        let mut lines = lines.map(|line| (line, line.get(..POLICY_LINE).unwrap_or(line)));
        let (line, _) = lines.find(|(_, start)| expression.is_match(start))?;
        let shown = line.get(..SUMMARY).unwrap_or(line);
        Some((index, String::from_utf8_lossy(shown).into_owned()))
    })
}

/// Takes secrets out of the lines that are quoted: the answer is kept, and shown to everybody who may
/// see the job.
fn redact(redactor: Option<&Redactor>, found: &mut Found) {
    let clean = |text: &mut String| {
        *text = redactor.map_or_else(|| NOT_QUOTED.to_owned(), |redactor| redactor.clean(text));
    };
    let Diagnosis { evidence, consequences, shadow, .. } = &mut found.diagnosis;
    let others = consequences.iter_mut().chain(shadow).map(|other| &mut other.evidence);
    evidence.iter_mut().chain(others).for_each(|line| clean(&mut line.text));
    if let Some((_, line, _)) = &mut found.policy {
        clean(line);
    }
}

/// The answer where a log policy of the spec decides: its line comes first, and what it says is done.
fn under(policy: &LogPolicy, line: &str, diagnosis: Diagnosis) -> Diagnosis {
    let named = policy.diagnose.as_deref();
    let category = Category::ALL.into_iter().find(|known| Some(known.word()) == named);
    let first = Evidence { file: "log_policies".to_owned(), line: None, text: line.to_owned() };
    let action = match policy.action {
        LogAction::Retry => Action::RetrySame,
        LogAction::ExcludeNodeAndRetry => Action::RetryElsewhere,
        LogAction::FailNoRetry => Action::Watch,
    };
    Diagnosis {
        category: category.unwrap_or(diagnosis.category),
        sub_code: category.map_or(diagnosis.sub_code, |_| "log_policy".to_owned()),
        retry: action.retries(),
        action,
        evidence: [first].into_iter().chain(diagnosis.evidence).collect(),
        advice: format!("The spec says what this means: its log policy {:?}.", policy.pattern),
        ..diagnosis
    }
}

fn verdict(found: &Found) -> Verdict {
    let diagnosis = &found.diagnosis;
    let evidence = diagnosis.evidence.first().map(|line| line.text.as_str()).unwrap_or_default();
    let place = match (&diagnosis.node, diagnosis.rank) {
        (Some(node), Some(rank)) => format!(" on {node} (rank {rank})"),
        (Some(node), None) => format!(" on {node}"),
        (None, Some(rank)) => format!(" at rank {rank}"),
        (None, None) => String::new(),
    };
    let mut category = diagnosis.category.word().to_owned();
    let sub_code = &diagnosis.sub_code;
    let mut summary = format!("{category} ({sub_code}){place}: {evidence}");
    let mut again = again(diagnosis);
    let mut node = found.node.clone().filter(|_| again == Again::After(Cause::Hardware));
    if let Some((policy, line, writer)) = &found.policy {
        summary = format!("log policy {:?}: {line}", policy.pattern);
        category = policy.diagnose.clone().unwrap_or(category);
        (again, node) = match policy.action {
            LogAction::Retry => (Again::Always, None),
            LogAction::ExcludeNodeAndRetry => (Again::Always, writer.clone()),
            LogAction::FailNoRetry => (Again::Never, None),
        };
    }
    Verdict {
        again,
        category,
        sub_code: sub_code.clone(),
        node,
        progressed: false,
        summary: summary.trim_end_matches(": ").chars().take(SUMMARY).collect(),
        done: String::new(),
    }
}

/// Whether the same job may run again, and as what its spec calls the cause.
fn again(diagnosis: &Diagnosis) -> Again {
    if !diagnosis.retry || diagnosis.action == Action::RollbackCheckpoint {
        // A checkpoint that is taken back is a person's decision.
        return Again::Never;
    }
    Again::After(match diagnosis.category {
        Category::CollectiveHang | Category::NetworkFabric => Cause::NcclTimeout,
        Category::Preempted => Cause::Preempted,
        Category::RendezvousPort => Cause::Rendezvous,
        Category::RayRuntime if diagnosis.sub_code == "node_lost" => Cause::NodeLost,
        Category::RayRuntime | Category::RayResources | Category::RolloutEngine => Cause::Ray,
        Category::Storage => Cause::Storage,
        Category::GpuHardware
        | Category::GpuDriverEnv
        | Category::GpuKernelFault
        | Category::GpuOom
        | Category::HostResources => Cause::Hardware,
        Category::ArtifactAccess
        | Category::ConfigError
        | Category::PythonEnv
        | Category::Numerical
        | Category::UserCode
        | Category::Unknown => return Again::Never,
    })
}
