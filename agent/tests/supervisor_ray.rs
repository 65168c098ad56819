//! Gangs of real Ray: head and two ranks on one host. Needs `GANGLINE_RAY_PYTHON`, an interpreter
//! with Ray beside it; says so and passes when it is not set.

mod supervisor_bench;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gangline_agent::supervisor::process;
use gangline_agent::supervisor::{MemberPlan, SupervisorEvent};
use gangline_common::ids::{GpuId, MemberId, MemberKey, PortBlock};
use gangline_common::wire::v1::{
    Ended, EndedHow, Entrypoint, EntrypointState, GangReport, Launcher, MemberAssignment,
    MemberState, Secret,
};
use rustix::process::Signal;

use supervisor_bench::{Bench, assignment, block, command, marked};

/// Takes its time to leave when it is told to, and needs the whole gang for it.
const DRIVER: &str = r#"
import os, signal, sys, time, ray
ray.init(logging_level="ERROR")

@ray.remote(num_cpus=0)
class Rank:
    def __init__(self):
        # A daemon that no group or session of Ray's knows.
        os.system("setsid sleep 1000 >/dev/null 2>&1 &")
    def where(self):
        return os.environ["GANGLINE_NODE_RANK"], os.environ["CUDA_VISIBLE_DEVICES"]
    def save(self):
        time.sleep(0.5)
        return "shard of rank " + os.environ["GANGLINE_NODE_RANK"]

ranks = [Rank.options(resources={f"gangline_rank_{n}": 0.1}).remote() for n in range(2)]
print(ray.get([rank.where.remote() for rank in ranks]))
print("driver on", os.environ["GANGLINE_NODE_RANK"], sys.argv[1:], os.environ["JOB_VAR"])

def on_term(*_):
    print(ray.get([rank.save.remote() for rank in ranks]), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
print("training", flush=True)
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.05)
print("done", flush=True)
"#;

struct Gang {
    bench: Bench,
    plans: Vec<MemberPlan>,
    states: BTreeMap<MemberId, MemberState>,
    report: Option<GangReport>,
    begun: Instant,
}

impl Gang {
    /// `None` when there is no Ray.
    fn new(test: &str) -> Option<Self> {
        let Ok(python) = std::env::var("GANGLINE_RAY_PYTHON") else {
            println!("skipped {test}: GANGLINE_RAY_PYTHON is not set");
            return None;
        };
        let address = IpAddr::from([127, 0, 0, 2]);
        let bench = Bench::with(|config| {
            config.python = python.into();
            config.node_address = address;
            config.interface = Some("lo".to_owned());
            // A dead node is noticed soon; too tight for anything but a test.
            config.ray_env = [
                ("RAY_health_check_initial_delay_ms", "0"),
                ("RAY_health_check_period_ms", "1000"),
                ("RAY_health_check_timeout_ms", "1000"),
                ("RAY_health_check_failure_threshold", "3"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        });
        let script = bench.root.path().join("train it.py");
        std::fs::write(&script, DRIVER).unwrap();
        let blocks = [block(), block(), block()];
        let mut plan = command(["unused"]);
        let changed = assignment(&mut plan);
        changed.launcher = Launcher::Ray;
        changed.nnodes = 2;
        changed.gpus_per_node = 1;
        changed.addresses = vec![address; 2];
        changed.head_address = address;
        changed.head_ports = blocks[0];
        changed.auth_token = Secret("0123456789abcdef0123456789abcdef".to_owned());
        changed.workdir = Some(bench.root.path().to_str().unwrap().to_owned());
        let gate = bench.root.path().join("gate").to_str().unwrap().to_owned();
        // The last one would break every program that starts with it.
        changed.env = [("JOB_VAR", "of the job"), ("GATE", gate.as_str()), ("LD_BIND_NOW", "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        changed.entrypoints = vec![Entrypoint {
            operation: "job-1-1".to_owned(),
            argv: ["python", script.to_str().unwrap(), "$(id)", "a 'b'"].map(Into::into).to_vec(),
            driver: MemberId::Rank(1),
        }];
        let plans = [MemberId::Head, MemberId::Rank(0), MemberId::Rank(1)]
            .into_iter()
            .zip(blocks)
            .map(|(member, ports)| member_plan(&plan, member, ports))
            .collect();
        let (states, report, begun) = (BTreeMap::new(), None, Instant::now());
        Some(Gang { bench, plans, states, report, begun })
    }

    fn start(&mut self) {
        self.begun = Instant::now();
        for plan in self.plans.clone() {
            self.bench.supervisor.start(plan);
        }
    }

    fn note(&self, what: &str) {
        println!("{:6.2} s  {what}", self.begun.elapsed().as_secs_f64());
    }

    async fn until(&mut self, what: &str, true_now: impl Fn(&Gang) -> bool) {
        while !true_now(self) {
            match self.bench.event().await {
                SupervisorEvent::MemberChanged { key, state } => {
                    assert!(!matches!(state, MemberState::Refused(_)), "{key}: {state:?}");
                    self.note(&format!("{} {}", key.member, name_of(&state)));
                    self.states.insert(key.member, state);
                }
                SupervisorEvent::GangChanged { report } => self.report = Some(report),
                SupervisorEvent::GuestChanged { .. }
                | SupervisorEvent::CheckpointMade { .. }
                | SupervisorEvent::SavedChanged { .. } => {}
            }
        }
        self.note(what);
    }

    fn is_ready(&self) -> bool {
        self.report.as_ref().and_then(|report| report.ray.as_ref()).is_some_and(|ray| ray.ready)
    }

    fn entrypoint(&self) -> Option<&EntrypointState> {
        Some(&self.report.as_ref()?.entrypoints.first()?.state)
    }

    fn ended(&self, member: MemberId) -> Option<&Ended> {
        match self.states.get(&member) {
            Some(MemberState::Ended(ended)) => Some(ended),
            _ => None,
        }
    }

    fn key(&self, rank: u32) -> MemberKey {
        let gang = self.plans.first().map(|plan| plan.key.clone()).unwrap();
        MemberKey { member: MemberId::Rank(rank), ..gang }
    }

    fn driver_log(&self) -> String {
        let logs = self.bench.supervisor.log_files(&self.key(1));
        let log = logs.iter().find(|log| log.file == "driver-job-1-1");
        log.map(|log| std::fs::read_to_string(&log.path).unwrap()).unwrap_or_default()
    }

    async fn until_logged(&mut self, text: &str) {
        let find = async {
            while !self.driver_log().contains(text) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(supervisor_bench::PATIENCE, find).await.expect("not in the log");
        self.note(&format!("driver said `{text}`"));
    }

    async fn stop(&mut self, grace: Duration) {
        self.note("stop");
        for plan in &self.plans {
            self.bench.supervisor.stop(&plan.key, grace, false);
        }
        self.until("all ended", |gang| {
            gang.plans.iter().all(|plan| gang.ended(plan.key.member).is_some())
        })
        .await;
    }

    async fn release(&mut self) {
        for plan in self.plans.clone() {
            assert_eq!(marked(&plan.key), [], "processes of {} are left", plan.key);
            self.bench.release(&plan.key).await.unwrap();
        }
        let below = process::with_open_files_below(self.bench.root.path());
        assert!(below.is_empty(), "{below:?}");
    }
}

fn member_plan(of: &MemberPlan, member: MemberId, ports: PortBlock) -> MemberPlan {
    let gpus = match member {
        MemberId::Head => Vec::new(),
        MemberId::Rank(rank) => vec![GpuId(format!("GPU-{rank}{rank}{rank}"))],
    };
    MemberPlan {
        key: MemberKey { member, ..of.key.clone() },
        assignment: Arc::clone(&of.assignment),
        member: MemberAssignment { member, gpus, cpus_milli: 1000, memory_bytes: 1 << 30, ports },
    }
}

fn name_of(state: &MemberState) -> String {
    match state {
        MemberState::Ended(ended) => {
            format!("Ended {:?} asked {} swept {}", ended.how, ended.asked, ended.swept)
        }
        other => format!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_trains_through_a_restart_of_the_agent() {
    let Some(mut gang) = Gang::new("a_gang_trains_through_a_restart_of_the_agent") else { return };
    gang.start();
    gang.until("ready", Gang::is_ready).await;
    gang.until("running", |gang| {
        matches!(gang.entrypoint(), Some(EntrypointState::Running { .. }))
    })
    .await;
    gang.until_logged("training").await;
    let log = gang.driver_log();
    assert!(log.contains("[('0', 'GPU-000'), ('1', 'GPU-111')]"), "{log}");
    assert!(log.contains("driver on 1 ['$(id)', \"a 'b'\"] of the job"), "{log}");
    let before = marked(&gang.key(1));

    gang.bench.restart();
    gang.report = None;
    for plan in gang.plans.clone() {
        gang.bench.supervisor.adopt(plan);
    }
    gang.until("adopted", |gang| {
        matches!(gang.entrypoint(), Some(EntrypointState::Running { driver: Some(_) }))
    })
    .await;
    assert!(before.iter().all(|&id| process::lives(id)), "the restart disturbed something");
    std::fs::write(gang.bench.root.path().join("gate"), "").unwrap();
    gang.until("succeeded", |gang| {
        matches!(gang.entrypoint(), Some(EntrypointState::Succeeded { .. }))
    })
    .await;
    let Some(EntrypointState::Succeeded { driver: Some(driver) }) = gang.entrypoint() else {
        panic!("no driver in {:?}", gang.report);
    };
    assert_eq!(driver.member, Some(MemberId::Rank(1)));
    assert_eq!(gang.driver_log().matches("training").count(), 1, "it was submitted twice");

    gang.stop(Duration::from_secs(30)).await;
    assert!(gang.driver_log().ends_with("done\n"), "{}", gang.driver_log());
    let logs = gang.bench.supervisor.log_files(&gang.key(1));
    assert!(logs.iter().all(|log| log.complete && log.path.starts_with(gang.bench.root.path())));
    assert!(!gang.bench.temp(&gang.key(1)).exists());
    gang.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_job_uses_its_grace_and_needs_its_gang_for_it() {
    let Some(mut gang) = Gang::new("a_stopped_job_uses_its_grace") else { return };
    gang.start();
    gang.until("ready", Gang::is_ready).await;
    gang.until_logged("training").await;
    gang.stop(Duration::from_secs(60)).await;
    let log = gang.driver_log();
    assert!(log.contains("['shard of rank 0', 'shard of rank 1']"), "{log}");
    for plan in &gang.plans {
        assert!(gang.ended(plan.key.member).unwrap().asked);
    }
    gang.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_raylet_is_told_with_its_cause() {
    let Some(mut gang) = Gang::new("a_killed_raylet_is_told_with_its_cause") else { return };
    gang.start();
    gang.until("ready", Gang::is_ready).await;
    gang.until_logged("training").await;
    let shim = gang.bench.shim(&gang.key(0));
    let raylet = process::living_descendants(shim.pid)
        .into_iter()
        .find(|id| executable(id.pid).is_some_and(|name| name == "raylet"))
        .expect("a raylet");
    assert!(process::send(raylet, Signal::KILL).unwrap());
    gang.note("raylet killed");
    gang.until("rank 0 ended", |gang| gang.ended(MemberId::Rank(0)).is_some()).await;
    let ended = gang.ended(MemberId::Rank(0)).unwrap();
    assert_eq!((&ended.how, ended.asked), (&EndedHow::Exited { code: 1 }, false));
    assert!(ended.last_output.contains("raylet [exit code=-9]"), "{}", ended.last_output);
    gang.until("dead node reported", |gang| {
        let Some(ray) = gang.report.as_ref().and_then(|report| report.ray.as_ref()) else {
            return false;
        };
        let dead = |node: &gangline_common::wire::v1::RayNode| {
            node.member == MemberId::Rank(0) && !node.alive && !node.state_message.is_empty()
        };
        !ray.ready && ray.nodes.iter().any(dead)
    })
    .await;
    gang.stop(Duration::from_secs(5)).await;
    gang.release().await;
}

fn executable(pid: u32) -> Option<String> {
    let path = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).ok()?;
    Some(path.file_name()?.to_str()?.to_owned())
}
