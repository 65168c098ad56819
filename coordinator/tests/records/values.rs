//! The values behind the golden records. Both ends of every choice occur: absent and present,
//! small and large numbers, each variant.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{Epoch, Generation, GpuId, JobId, MemberId, PortBlock};
use gangline_common::time::{Stopwatch, Timestamp};
use gangline_coordinator::core::accounts::{Account, Classes, HeldFor, Reading, Run, Spent};
use gangline_coordinator::core::audit::AuditEntry;
use gangline_coordinator::core::controls::{Changes, Hold};
use gangline_coordinator::core::credential::{
    ApiTokenRecord, IdempotencyRecord, JoinTokenRecord, Role,
};
use gangline_coordinator::core::gang::{End, EndHow, Gang, GangState, Member, Phase};
use gangline_coordinator::core::health::{ClearedCondition, Level};
use gangline_coordinator::core::idle::IdlePolicy;
use gangline_coordinator::core::job::{
    Addresses, Attempt, Guest, GuestPhase, GuestShare, Job, JobRequest, JobState, Outcome,
    RayDriver, RayFacts, RayNode, Transition,
};
use gangline_coordinator::core::node::{
    Cordon, Drain, Gpu, Inventory, Lifecycle, Node, Reachability,
};
use gangline_coordinator::core::node_test::{
    Measured, MeasuredNode, NodeTest, Pair, Rate, TestState,
};
use gangline_coordinator::core::notices::Notice;
use gangline_coordinator::core::pools::PoolRecord;
use gangline_coordinator::core::projects::{ProjectRecord, Quota};
use gangline_coordinator::core::recovery::{Again, Cause, Recovery, Rest, Verdict};
use gangline_coordinator::core::reputation::Doubt;
use gangline_coordinator::core::secrets::{Sealed, SecretRecord};
use gangline_coordinator::core::trials::{Finding, Proof, RuleTrial, Tally};
use gangline_coordinator::core::usage::Usage;
use gangline_coordinator::core::vacancy::Vacancy;
use gangline_coordinator::core::webhooks::{
    DeadLetter, Delivery, WebhookKey, WebhookKind, WebhookRecord,
};
use gangline_coordinator::paths::ResolvedPaths;
use gangline_coordinator::request::{Owner, job_request};
use gangline_coordinator::store::record::Layout;
use gangline_coordinator::store::{Chained, Meta, Numbered};

/// The canonical texts of two specs: what is stored is the text, byte for byte.
pub const SPEC_SMALL: &str = r#"{"command":["true"],"grace_period":"30s","kind":"job","launcher":{"start_timeout":"5m","type":"ray"},"resources":{"gpus_per_node":0,"nnodes":1},"version":1}"#;
pub const SPEC_LARGE: &str = r#"{"command":["python","train.py"],"env":{"LR":"1e-6"},"grace_period":"30s","kind":"job","launcher":{"start_timeout":"5m","type":"command"},"name":"ppo","resources":{"cpus_per_node":1.5,"gpus_per_node":8,"memory_per_node":"64GiB","nnodes":2,"pool":"h100-a"},"version":1,"workdir":"/code"}"#;

const FIRST: Timestamp = Timestamp { boot_ms: 1_000_000, wall_ms: 1_800_000_000_123 };
const SECOND: Timestamp = Timestamp { boot_ms: 1_000_500, wall_ms: 1_800_000_000_623 };
/// After a reboot: the boot clock has gone back.
const THIRD: Timestamp = Timestamp { boot_ms: 260, wall_ms: 1_800_000_061_123 };

pub fn meta() -> Meta {
    Meta { era: 3, cluster: "c7kq9x2m".to_owned(), boot_id: "b007-1d".to_owned() }
}

/// A layout of the whole store, as one fixed build would write it.
pub fn layout(version: u32) -> Layout {
    Layout { version, written_by: "0.1.0".to_owned() }
}

fn transition(at: Timestamp, state: &str, actor: &str, text: &str) -> Transition {
    Transition {
        wall_ms: at.wall_ms,
        state: state.to_owned(),
        actor: actor.to_owned(),
        text: text.to_owned(),
    }
}

pub fn job_waiting() -> Job {
    let spec = gangline_spec::parse(SPEC_SMALL).unwrap();
    let id: JobId = "j-1".parse().unwrap();
    let owner = Owner { job: &id, project: "rlhf" };
    let request = Arc::new(job_request(&spec, owner, ResolvedPaths::default(), String::new()));
    Job {
        id,
        user: "alice".to_owned(),
        project: "rlhf".to_owned(),
        request,
        changes: Changes::default(),
        hold: None,
        waits_for: Vec::new(),
        state: JobState::Pending,
        gang: "g-1".parse().unwrap(),
        cluster: None,
        token_seed: [0xa5; 32],
        attempts: 0,
        sequence: 0,
        submitted: FIRST,
        started: None,
        ended: None,
        eligible: None,
        running: None,
        reason: String::new(),
        outcome: None,
        recovery: Recovery::default(),
        history: Vec::new(),
    }
}

/// Held, behind another job, and with everything that can be changed changed.
pub fn job_held() -> Job {
    let waiting = job_waiting();
    let changes = Changes {
        priority: Some(90),
        timeout_ms: Some(7_200_000),
        exclude_nodes: vec!["gpu-0231".to_owned()],
    };
    let mut request = JobRequest::clone(&waiting.request);
    changes.apply(&mut request);
    Job {
        id: "j-2".parse().unwrap(),
        request: Arc::new(request),
        changes,
        hold: Some(Hold { by: "bob".to_owned(), why: "wrong data".to_owned(), since: SECOND }),
        waits_for: vec!["j-0".parse().unwrap(), "tokenize".parse().unwrap()],
        eligible: Some(Stopwatch { since: THIRD, before_ms: 300 }),
        running: Some(Stopwatch { since: FIRST, before_ms: 0 }),
        outcome: Some(Outcome::Retried { cause: "a rank died".to_owned() }),
        recovery: Recovery {
            counted: 1,
            stuck: 2,
            rest: Some(Rest { passed: Stopwatch { since: SECOND, before_ms: 5 }, ms: 30_000 }),
        },
        ..waiting
    }
}

pub fn job_stopping() -> Job {
    let spec = gangline_spec::parse(SPEC_LARGE).unwrap();
    let paths = ResolvedPaths {
        job_directory: Some("/mnt/shared/jobs/j-7f3k2".to_owned()),
        checkpoint_directory: Some("/mnt/shared/c".to_owned()),
    };
    let command = "gangline submit ppo.yaml".to_owned();
    let id: JobId = "j-7f3k2".parse().unwrap();
    let request = job_request(&spec, Owner { job: &id, project: "rlhf" }, paths, command);
    Job {
        id,
        request: Arc::new(request),
        state: JobState::Stopping,
        gang: "g-4bq7".parse().unwrap(),
        cluster: Some("j-dev".parse().unwrap()),
        attempts: 2,
        sequence: 300,
        started: Some(SECOND),
        ended: Some(THIRD),
        reason: "stopped by bob".to_owned(),
        outcome: Some(Outcome::Cancelled {
            actor: "bob".to_owned(),
            reason: "wrong data".to_owned(),
        }),
        history: vec![
            transition(FIRST, "PENDING", "alice", "submitted"),
            transition(SECOND, "STARTING", "coordinator", "placed"),
        ],
        ..job_waiting()
    }
}

pub fn attempt_running() -> Attempt {
    Attempt {
        job: "j-7f3k2".parse().unwrap(),
        number: 1,
        gang: "g-4bq7".parse().unwrap(),
        epoch: Epoch { era: 3, n: 1 },
        started: SECOND,
        ended: None,
        outcome: None,
        ray: None,
        guest: Some(guest(GuestPhase::Preparing, &[])),
        verdict: None,
    }
}

fn guest(phase: GuestPhase, done: &[MemberId]) -> Guest {
    Guest {
        shares: vec![
            GuestShare { rank: 0, gpus: 4, cpus_milli: 8000 },
            GuestShare { rank: 300, gpus: 0, cpus_milli: 250 },
        ],
        phase,
        since: SECOND,
        done: done.iter().copied().collect(),
        log_bytes: (phase == GuestPhase::Over).then_some(65_536),
    }
}

fn attempt_ended(number: u32, outcome: Outcome, ray: RayFacts) -> Attempt {
    Attempt {
        number,
        epoch: Epoch { era: 3, n: number },
        ended: Some(THIRD),
        outcome: Some(outcome),
        ray: Some(ray),
        guest: Some(guest(GuestPhase::Over, &[])),
        ..attempt_running()
    }
}

pub fn attempt_succeeded() -> Attempt {
    let node = |member, id: &str, address: &str, alive, state: &str| RayNode {
        member,
        ray_node_id: id.to_owned(),
        address: address.to_owned(),
        alive,
        state_message: state.to_owned(),
    };
    let ray = RayFacts {
        version: "2.56.0".to_owned(),
        session: "session_1".to_owned(),
        nodes: vec![
            node(MemberId::Head, "f00d", "10.20.0.1", true, ""),
            node(MemberId::Rank(300), "beef", "10.20.0.2", false, "lost"),
        ],
        driver: Some(RayDriver {
            ray_node_id: "beef".to_owned(),
            member: Some(MemberId::Rank(300)),
            address: Some("10.20.0.2".to_owned()),
        }),
    };
    attempt_ended(2, Outcome::Succeeded, ray)
}

pub fn attempt_failed() -> Attempt {
    let ray = RayFacts {
        version: "2.56.0".to_owned(),
        session: "session_2".to_owned(),
        nodes: Vec::new(),
        driver: Some(RayDriver { ray_node_id: "f00d".to_owned(), member: None, address: None }),
    };
    Attempt {
        guest: Some(guest(GuestPhase::Sweeping, &[MemberId::Rank(0), MemberId::Head])),
        verdict: Some(Arc::new(Verdict {
            again: Again::After(Cause::Storage),
            category: "storage".to_owned(),
            sub_code: "full".to_owned(),
            node: Some("n-1".parse().unwrap()),
            progressed: true,
            summary: "full".to_owned(),
            done: "tried again".to_owned(),
        })),
        ..attempt_ended(3, Outcome::Failed { cause: "exited with code 1".to_owned() }, ray)
    }
}

pub fn attempt_rolled_back() -> Attempt {
    let outcome = Outcome::RolledBack { cause: "port 20001 is taken".to_owned() };
    Attempt { guest: None, ..attempt_ended(4, outcome, RayFacts::default()) }
}

pub fn attempt_preempted() -> Attempt {
    let outcome =
        Outcome::Preempted { cause: "gpu-01 was drained: fan".to_owned(), keeps_nodes: true };
    Attempt { guest: None, ..attempt_ended(5, outcome, RayFacts::default()) }
}

pub fn attempt_timed_out() -> Attempt {
    let outcome = Outcome::TimedOut { cause: "its time limit of 60 s is over".to_owned() };
    Attempt { guest: None, ..attempt_ended(6, outcome, RayFacts::default()) }
}

pub fn attempt_evacuated() -> Attempt {
    let outcome = Outcome::Evacuated { cause: "gpu-01: Xid 79".to_owned() };
    Attempt { guest: None, ..attempt_ended(7, outcome, RayFacts::default()) }
}

fn killed() -> End {
    let how = EndHow::Signalled { signal: 9 };
    End { how, asked: false, last_output: String::new(), logs_complete: false }
}

/// A gang whose members are in every phase, and have ended in every way.
pub fn gang_every_phase() -> Gang {
    let ended = |how| End { how, asked: false, last_output: String::new(), logs_complete: false };
    let refused =
        |reason: &str, busy_port| EndHow::Refused { reason: reason.to_owned(), busy_port };
    let done = End {
        asked: true,
        last_output: "done".to_owned(),
        logs_complete: true,
        ..ended(EndHow::Exited { code: 0 })
    };
    let phases = [
        Phase::Assigned,
        Phase::Starting,
        Phase::Running { pid: 4711 },
        Phase::Stopping,
        Phase::Ended(done),
        Phase::Ended(ended(EndHow::Exited { code: -1 })),
        Phase::Ended(killed()),
        Phase::Ended(ended(EndHow::Failed { reason: "no ray".to_owned() })),
        Phase::Ended(ended(refused("busy", Some(20001)))),
        Phase::Ended(ended(refused("no GPU", None))),
        Phase::Ended(ended(EndHow::Unfit { reason: "sick".to_owned() })),
        Phase::Ended(ended(EndHow::GivenUp { reason: "gone".to_owned() })),
    ];
    let mut members: BTreeMap<MemberId, Member> = (0_u16..).zip(phases).map(member).collect();
    if let Some(head) = members.get_mut(&MemberId::Head) {
        (head.cpus_milli, head.memory_bytes) = (500, 1 << 30);
    }
    if let Some(first) = members.get_mut(&MemberId::Rank(0)) {
        first.gpus = vec![GpuId("GPU-a".to_owned()), GpuId("GPU-b".to_owned())];
        (first.cpus_milli, first.memory_bytes) = (16_000, 64 << 30);
        first.exclusive = true;
    }
    let ranks: [IpAddr; 2] = ["10.20.0.1".parse().unwrap(), "fd00::2".parse().unwrap()];
    Gang {
        id: "g-4bq7".parse().unwrap(),
        job: "j-7f3k2".parse().unwrap(),
        attempt: 2,
        epoch: Epoch { era: 3, n: 9 },
        state: GangState::Starting,
        since: FIRST,
        members,
        addresses: Addresses { ranks: ranks.to_vec(), head: ranks[0] },
        keeps: true,
    }
}

/// The head for 0, rank n - 1 for n; each on its own node and port block.
fn member((index, phase): (u16, Phase)) -> (MemberId, Member) {
    let (id, node) = match index.checked_sub(1) {
        None => (MemberId::Head, "n-head".to_owned()),
        Some(rank) => (MemberId::Rank(rank.into()), format!("n-{rank}")),
    };
    let member = Member {
        node: node.parse().unwrap(),
        gpus: Vec::new(),
        cpus_milli: 0,
        memory_bytes: 0,
        exclusive: false,
        ports: PortBlock { base: 20_000 + 256 * index, size: 256 },
        kept: phase == Phase::Ended(killed()),
        phase,
    };
    (id, member)
}

pub fn node_new() -> Node {
    Node {
        id: "n-1".parse().unwrap(),
        name: "gpu-02".to_owned(),
        joined: FIRST,
        bound_pool: None,
        set_pool: None,
        set_labels: BTreeMap::new(),
        lifecycle: Lifecycle::Pending,
        cordon: None,
        drain: None,
        revoked: false,
        certificates: Vec::new(),
        generation: Generation::default(),
        inventory: None,
        history: Vec::new(),
        stops: BTreeMap::new(),
        reachability: Reachability::Suspect,
        session: None,
        last_word_ms: 0,
        held: None,
        unknown: BTreeSet::new(),
        health: Default::default(),
        cleared: Default::default(),
        doubt: None,
    }
}

pub fn node_full() -> Node {
    Node {
        id: "n-4bq7".parse().unwrap(),
        name: "gpu-01".to_owned(),
        bound_pool: Some("h100-a".to_owned()),
        set_pool: Some("h100-b".to_owned()),
        set_labels: [("leaf", "l1"), ("rack", "r12")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        lifecycle: Lifecycle::Draining,
        cordon: Some(Cordon { by: "bob".to_owned(), why: "fan".to_owned() }),
        drain: Some(Drain {
            by: "liu".to_owned(),
            why: "psu".to_owned(),
            since: SECOND,
            deadline_ms: Some(7_200_000),
        }),
        revoked: true,
        certificates: vec![[0x11; 32], [0x22; 32]],
        generation: Generation { era: 3, n: 70_000 },
        inventory: Some(inventory().into()),
        history: vec![transition(SECOND, "online", "agent", "first inventory")],
        stops: [("g-7".parse().unwrap(), Epoch { era: 3, n: 2 })].into(),
        cleared: [ClearedCondition {
            rule: "xid-fatal".to_owned(),
            component: "node".to_owned(),
            since_ms: 9_000,
        }]
        .into(),
        doubt: Some(Doubt { milli: 1_500, at: SECOND, why: "Xid 79".to_owned() }),
        ..node_new()
    }
}

fn inventory() -> Inventory {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let line = |check: &str, level: &str, text: &str, advice: Option<&str>| {
        (check.to_owned(), level.to_owned(), text.to_owned(), advice.map(str::to_owned))
    };
    Inventory {
        hostname: "gpu-01.lab".to_owned(),
        agent_version: "0.1.0".to_owned(),
        head_role: true,
        worker_role: true,
        pool: "h100-a".to_owned(),
        labels: vec![pair("rack", "r7")],
        address: "10.20.0.1".parse().unwrap(),
        boot_id: "b007-1d".to_owned(),
        network_namespace: 4_026_531_840,
        container_start_ms: 123_456,
        gpus: vec![Gpu {
            uuid: GpuId("GPU-a".to_owned()),
            index: 7,
            name: "H200".to_owned(),
            memory_bytes: 139 << 30,
        }],
        cpus_milli: 192_000,
        memory_bytes: 2 << 40,
        shm_bytes: 64 << 20,
        pids_limit: Some(4096),
        ports: PortBlock { base: 20_000, size: 10_000 },
        versions: vec![pair("ray", "2.56.0")],
        doctor: vec![
            line("gpu", "ok", "1 GPU", None),
            line("shm", "warning", "small", Some("--shm-size")),
        ],
    }
}

pub fn join_token_bound() -> JoinTokenRecord {
    JoinTokenRecord {
        id: "k3x9".to_owned(),
        secret_sha256: [0xc3; 32],
        uses_left: 16,
        expires_wall_ms: FIRST.wall_ms + 86_400_000,
        pool: Some("h100-a".to_owned()),
        created_by: "admin".to_owned(),
        created: FIRST,
    }
}

pub fn join_token_open() -> JoinTokenRecord {
    JoinTokenRecord { id: "p4w8".to_owned(), uses_left: 1, pool: None, ..join_token_bound() }
}

pub fn api_token(name: &str, role: Role) -> ApiTokenRecord {
    ApiTokenRecord {
        name: name.to_owned(),
        sha256: [0xd4; 32],
        user: name.to_owned(),
        project: "rlhf".to_owned(),
        role,
        expires_wall_ms: (role != Role::Admin).then_some(FIRST.wall_ms),
        created: FIRST,
    }
}

pub fn audit() -> Chained {
    let entry = AuditEntry {
        wall_ms: FIRST.wall_ms,
        actor: "alice".to_owned(),
        source: Some("127.0.0.1".parse().unwrap()),
        action: "job.submit".to_owned(),
        object: "job j-7f3k2".to_owned(),
        detail: "grpo in rlhf".to_owned(),
    };
    Chained { sequence: 7, entry, previous: [0xf6; 32] }
}

pub fn secret() -> SecretRecord {
    SecretRecord {
        project: "rlhf".to_owned(),
        name: "HF_TOKEN".to_owned(),
        sealed: Sealed(vec![0x5e; 30]),
        set_by: "alice".to_owned(),
        set: FIRST,
    }
}

pub fn idempotency() -> IdempotencyRecord {
    IdempotencyRecord {
        user: "alice".to_owned(),
        key: "retry-1".to_owned(),
        body_sha256: [0xe5; 32],
        made: "j-7f3k2".to_owned(),
        created: FIRST,
    }
}

pub fn usage() -> Usage {
    Usage { project: "rlhf".to_owned(), gpu_ms: 3_600_000, at: FIRST }
}

pub fn project() -> ProjectRecord {
    ProjectRecord {
        name: "rlhf".to_owned(),
        max_priority: 100,
        quotas: BTreeMap::from([
            ("a".to_owned(), Quota { guaranteed: 8, maximum: Some(16) }),
            ("b".to_owned(), Quota { guaranteed: 0, maximum: None }),
        ]),
        idle: IdlePolicy { warn_after_ms: Some(600_000), reclaim_after_ms: None },
        set_by: "root".to_owned(),
        set: FIRST,
    }
}

pub fn pool() -> PoolRecord {
    PoolRecord {
        name: "h100-a".to_owned(),
        description: "8 x H100".to_owned(),
        set_by: "liu".to_owned(),
        set: FIRST,
    }
}

pub fn node_test_open() -> NodeTest {
    NodeTest {
        job: "j-1".parse().unwrap(),
        by: "ops".to_owned(),
        pool: "h100-a".to_owned(),
        gpus_per_node: 0,
        begun: FIRST,
        ended_wall_ms: None,
        state: TestState::Open,
    }
}

pub fn node_test_measured() -> NodeTest {
    let rate = |bytes_per_s, latency_ns| Rate { bytes_per_s, latency_ns };
    let node = |id: &str, name: &str, slow| MeasuredNode {
        node: id.parse().unwrap(),
        name: name.to_owned(),
        best: rate(300, 5),
        slow,
    };
    let measured = Measured {
        backend: "gloo".to_owned(),
        versions: vec![("torch".to_owned(), "1.13".to_owned())],
        message_bytes: 64 << 20,
        all_reduce: rate(1_000, 7),
        nodes: vec![node("n-1", "w1", false), node("n-2", "w2", true)],
        pairs: vec![Pair { a: 0, b: 1, rate: rate(300, 5) }],
        median_bytes_per_s: 300,
    };
    NodeTest {
        job: "j-2".parse().unwrap(),
        gpus_per_node: 8,
        ended_wall_ms: Some(SECOND.wall_ms),
        state: TestState::Measured(measured),
        ..node_test_open()
    }
}

pub fn node_test_failed() -> NodeTest {
    let state = TestState::Failed { why: "no PyTorch".to_owned() };
    let job = "j-3".parse().unwrap();
    NodeTest { job, ended_wall_ms: Some(SECOND.wall_ms), state, ..node_test_open() }
}

pub fn rule_trial() -> RuleTrial {
    let finding = |component: &str, proof| Finding {
        node: "n-1".parse().unwrap(),
        component: component.to_owned(),
        level: Level::Degraded,
        since_ms: 7,
        found: FIRST,
        proof,
    };
    RuleTrial {
        rule: "gpu-clock".to_owned(),
        over: Tally { confirmed: 1, refuted: 2, untold: 3 },
        findings: vec![
            finding("gpu:g", Proof::None),
            finding("node", Proof::Refuted),
            finding("port:p/1", Proof::Confirmed { why: "lost".to_owned() }),
        ],
    }
}

pub fn account() -> Account {
    let shares = [(MemberId::Head, 0, 0), (MemberId::Rank(1), 900_000, 450_000)];
    let share = |(member, measured_ms, busy_ms)| {
        (member, HeldFor { gpus: 8, ms: 120_000, reading: Reading { measured_ms, busy_ms } })
    };
    Account {
        gang: "g-7f3k2".parse().unwrap(),
        epoch: Epoch { era: 2, n: 1 },
        pool: "h100-a".to_owned(),
        held: Stopwatch { since: FIRST, before_ms: 7_000 },
        hung_ms: 6_000,
        run: Some(Run { startup_ms: 30_000, ran_ms: 90_000, hung_ms: 8_000, lost_ms: 5_000 }),
        shares: shares.into_iter().map(share).collect(),
    }
}

pub fn vacancy() -> Vacancy {
    Vacancy {
        pool: "h100-a".to_owned(),
        from_wall_ms: FIRST.wall_ms,
        until_wall_ms: SECOND.wall_ms,
        quarantined_ms: 1_000,
        fragmented_ms: 5,
        queued_ms: [("rlhf".to_owned(), 70_000)].into(),
    }
}

pub fn spent() -> Spent {
    Spent {
        gang: "g-7f3k2".parse().unwrap(),
        epoch: Epoch { era: 2, n: 1 },
        job: "j-7f3k2".parse().unwrap(),
        attempt: 3,
        user: "alice".to_owned(),
        project: "rlhf".to_owned(),
        pool: "h100-a".to_owned(),
        from_wall_ms: FIRST.wall_ms,
        shares: vec![(8, 21), (1, 0)],
        classes: Classes {
            productive_ms: 100,
            idle_ms: 20,
            unmeasured_ms: 30,
            startup_ms: 10,
            hung_ms: 9,
            lost_ms: 5,
            stopping_ms: 3,
        },
    }
}

pub fn notice() -> Numbered {
    let notice = Notice {
        wall_ms: FIRST.wall_ms,
        kind: "job.failed".to_owned(),
        object: "job j-7f3k2".to_owned(),
        project: Some("rlhf".to_owned()),
        reason: "rank 1".to_owned(),
    };
    Numbered { era: 2, sequence: 7, notice }
}

pub fn webhook() -> WebhookRecord {
    WebhookRecord {
        key: WebhookKey { project: Some("rlhf".to_owned()), name: "team".to_owned() },
        kind: WebhookKind::Slack,
        shown: "https://a.b".to_owned(),
        sealed: Sealed(vec![0x5e; 4]),
        events: vec!["job.*".to_owned()],
        set_by: "alice".to_owned(),
        set: FIRST,
    }
}

pub fn delivery() -> Delivery {
    let letter = DeadLetter {
        id: "2-6".to_owned(),
        kind: "job.failed".to_owned(),
        object: "job j-1".to_owned(),
        wall_ms: FIRST.wall_ms,
        attempts: 16,
        cause: "it answered 500".to_owned(),
    };
    Delivery {
        key: WebhookKey { project: None, name: "ops".to_owned() },
        cursor: 300,
        delivered: 290,
        missed: 2,
        dead: vec![letter],
    }
}
