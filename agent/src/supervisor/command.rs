//! Turns an assignment into what a shim runs. Pure: facts of the host are arguments.

use std::path::{Component, Path, PathBuf};

use gangline_common::ids::{MemberId, PortBlock};
use gangline_common::wire::v1::{Assignment, Launcher, Refusal};

use super::environment::{self, Environment};
use super::files::{LogCopy, Operation};
use super::ports::{self, FixedPort};
use super::{MemberPlan, SupervisorConfig};
use crate::code;
use crate::shim::record::{Launch, StopSignal};

/// Ray puts sockets below its temp dir, whose paths may not exceed 107 bytes.
pub const MAX_TEMP_DIRECTORY: usize = 40;
/// Ray refuses a smaller object store, in bytes.
const MIN_OBJECT_STORE: u64 = 78_643_200;
/// The head holds no data of its own, but a Ray driver beside it may attach to it.
const HEAD_OBJECT_STORE: u64 = 256 << 20;
/// Longest value that Ray takes for a label.
const MAX_LABEL: usize = 63;

/// What is known about the host when a member is started.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// The part of the agent's environment that members inherit.
    pub environment: Environment,
    /// Free bytes of `/dev/shm`; `None` when it cannot be read.
    pub shm_available: Option<u64>,
    /// Home directory of the member's user, when it is not the agent's.
    pub home: Option<String>,
}

/// Directories of one member.
#[derive(Debug, Clone)]
pub struct Places {
    /// Ray's temp dir, and the working directory of what has no other.
    pub temp: PathBuf,
    /// Where Ray's token is.
    pub token: PathBuf,
    /// The job's code lies below it when there is no shared root.
    pub code: PathBuf,
}

fn impossible<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Impossible { reason: reason.into() })
}

/// What the shim of this member runs.
///
/// Errors: [`Refusal::Impossible`] with the reason, when it cannot be carried out on any try.
pub fn build(
    plan: &MemberPlan,
    config: &SupervisorConfig,
    host: &HostFacts,
    places: &Places,
) -> Result<Launch, Refusal> {
    let assignment = &plan.assignment;
    let block = plan.member.ports;
    if block.size < ports::FIXED_PORTS || block.end() > 1 << 16 {
        return impossible(format!(
            "block of {} ports at {} is not usable",
            block.size, block.base
        ));
    }
    let mut base = host.environment.clone();
    if let Some(home) = &host.home {
        base.insert("HOME".to_owned(), home.clone());
    }
    let (argv, env) = match (assignment.launcher, plan.key.member) {
        (Launcher::Command, MemberId::Head) => {
            return impossible("a gang of the command launcher has no head");
        }
        (Launcher::Command, MemberId::Rank(_)) => {
            let facts = environment::facts_of_rank(plan);
            let argv = assignment.argv.iter().map(|argument| environment::fill(argument, &facts));
            let argv = argv.collect::<Result<_, _>>().or_else(|name| {
                impossible(format!("`${name}` of the template has no value for this job"))
            })?;
            (argv, environment::command_rank(plan, config, &base, &places.code))
        }
        (Launcher::Ray, _) => {
            let Some(token) = places.token.to_str() else {
                return impossible("the state directory's name is not valid UTF-8");
            };
            let mut env = environment::ray_start(plan, config, &base, token);
            env.extend(environment::code_root(assignment, &places.code));
            ray_start(plan, config, host, places, env)?
        }
    };
    check_exec(&argv, &env)?;
    let mut launch = Launch::new(argv, env.into_iter().collect(), working_directory(plan, places));
    launch.run_as = assignment.run_as;
    launch.operations = operations(plan, places)?;
    launch.log_copy = log_copy(plan);
    launch.stop_signal = match assignment.launcher {
        Launcher::Ray => StopSignal::Process,
        Launcher::Command => StopSignal::Group,
    };
    Ok(launch)
}

/// Where the member's logs are kept at the end; nowhere without a job directory.
fn log_copy(plan: &MemberPlan) -> Option<LogCopy> {
    let assignment = &plan.assignment;
    let directory = Path::new(assignment.job_directory.as_ref()?)
        .join("logs")
        .join(format!("attempt-{}", assignment.attempt));
    let member = match plan.key.member {
        MemberId::Rank(rank) => format!("rank-{rank}"),
        // A head's node need not have the shared root, and its log says nothing of the job.
        MemberId::Head => return None,
    };
    Some(LogCopy { directory, member, run_as: assignment.run_as })
}

/// Where a member starts.
pub fn working_directory(plan: &MemberPlan, places: &Places) -> PathBuf {
    match (&plan.assignment.workdir, plan.key.member) {
        // The head runs no code of the job, and its node may not have the directory at all.
        (Some(directory), MemberId::Rank(_)) => PathBuf::from(directory),
        (None, MemberId::Rank(_)) => work(plan, places).unwrap_or_else(|| places.temp.clone()),
        (_, MemberId::Head) => places.temp.clone(),
    }
}

/// Where the job runs that brought its code: a directory with a link to each part of the code, so
/// that what the job writes beside it does not end up in it.
fn work(plan: &MemberPlan, places: &Places) -> Option<PathBuf> {
    let assignment = &plan.assignment;
    assignment.code.as_ref()?;
    shared_work(assignment).or_else(|| Some(places.temp.join(WORK)))
}

const WORK: &str = "work";

/// The same for a job with a directory that all nodes have.
pub fn shared_work(assignment: &Assignment) -> Option<PathBuf> {
    assignment.code.as_ref()?;
    Some(Path::new(assignment.job_directory.as_ref()?).join(WORK))
}

/// What `execve` cannot take is refused before anything is started.
fn check_exec(argv: &[String], env: &Environment) -> Result<(), Refusal> {
    if argv.first().is_none_or(String::is_empty) {
        return impossible("there is no program to start");
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return impossible("an argument has a NUL byte");
    }
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return impossible(format!("`{}` is not a usable variable", key.escape_debug()));
        }
    }
    Ok(())
}

/// Directories and files below the job's directory. Only ranks make them: a head's node need not
/// have the shared root.
pub fn operations(plan: &MemberPlan, places: &Places) -> Result<Vec<Operation>, Refusal> {
    let MemberId::Rank(rank) = plan.key.member else { return Ok(Vec::new()) };
    let assignment = &plan.assignment;
    let mut operations = Vec::new();
    let mut make = |path: PathBuf| operations.push(Operation::MakeDirectory { path });
    if let Some(directory) = &assignment.job_directory {
        for part in ["config", "logs", "checkpoints"] {
            make(Path::new(directory).join(part));
        }
        for name in &assignment.directories {
            if !is_plain_name(name) {
                return impossible(format!("`{}` is not a name", name.escape_debug()));
            }
            make(Path::new(directory).join(name));
        }
    }
    if let Some(directory) = &assignment.checkpoint_directory {
        make(PathBuf::from(directory));
    }
    if let (Some(tree), Some(work)) = (&assignment.code, work(plan, places)) {
        let Some(from) = code::directory(tree, &places.code) else {
            return impossible(format!("`{}` is not the name of a tree", tree.tree.escape_debug()));
        };
        make(work.clone());
        operations.push(Operation::LinkAll { from, into: work });
    }
    let (0, Some(directory)) = (rank, &assignment.job_directory) else { return Ok(operations) };
    let config = Path::new(directory).join("config");
    for (name, text) in &assignment.config_files {
        let relative = Path::new(name);
        if name.is_empty() || !relative.components().all(|c| matches!(c, Component::Normal(_))) {
            return impossible(format!("`{}` is not a name of a file", name.escape_debug()));
        }
        let path = config.join(relative);
        if let Some(parent) = path.parent().filter(|parent| *parent != config) {
            operations.push(Operation::MakeDirectory { path: parent.to_owned() });
        }
        operations.push(Operation::WriteNew { path, text: text.clone() });
    }
    Ok(operations)
}

fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

/// Bytes of a member's object store, and whether it is larger than what `/dev/shm` has free.
fn object_store(plan: &MemberPlan, config: &SupervisorConfig, host: &HostFacts) -> (u64, bool) {
    let shm = host.shm_available.unwrap_or(0);
    let wanted = match plan.key.member {
        MemberId::Head => HEAD_OBJECT_STORE.min(shm / 2),
        // Ray's own share of the memory; other members of this node need their part of the shm.
        MemberId::Rank(_) => config
            .object_store_bytes
            .unwrap_or_else(|| (plan.member.memory_bytes / 10 * 3).min(shm / 10 * 8)),
    };
    let bytes = wanted.max(MIN_OBJECT_STORE);
    (bytes, bytes >= shm)
}

/// Arguments of `ray start`, every port pinned.
fn ray_start(
    plan: &MemberPlan,
    config: &SupervisorConfig,
    host: &HostFacts,
    places: &Places,
    mut env: Environment,
) -> Result<(Vec<String>, Environment), Refusal> {
    let Some(temp) = places.temp.to_str().filter(|temp| temp.len() <= MAX_TEMP_DIRECTORY) else {
        return impossible(format!(
            "Ray's temp dir {} is longer than {MAX_TEMP_DIRECTORY} characters: \
             give the agent a shorter temp root",
            places.temp.display()
        ));
    };
    let ray = config.python.with_file_name("ray");
    let Some(ray) = ray.to_str() else {
        return impossible("the interpreter's name is not valid UTF-8");
    };
    let block = plan.member.ports;
    let Some((first_worker, last_worker)) = ports::workers(block) else {
        return impossible(format!("block of {} ports has none for Ray's workers", block.size));
    };
    let (object_store, beyond_shm) = object_store(plan, config, host);
    if beyond_shm {
        env.insert("RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE".to_owned(), "1".to_owned());
    }
    let memory = plan.member.memory_bytes.saturating_sub(object_store).max(MIN_OBJECT_STORE);
    let mut argv = vec![ray.to_owned(), "start".to_owned()];
    let mut add = |argument: String| argv.push(argument);
    add("--block".to_owned());
    add("--disable-usage-stats".to_owned());
    add(format!("--node-ip-address={}", config.node_address));
    add(format!("--temp-dir={temp}"));
    add(format!("--object-store-memory={object_store}"));
    add(format!("--memory={memory}"));
    add(format!("--min-worker-port={first_worker}"));
    add(format!("--max-worker-port={last_worker}"));
    add(format!("--labels={}", labels(plan)?));
    let mut pin = |flag: &str, block: PortBlock, port: FixedPort| match ports::fixed(block, port) {
        Some(port) => {
            add(format!("--{flag}={port}"));
            Ok(())
        }
        None => impossible(format!("block of {} ports is too short", block.size)),
    };
    pin("node-manager-port", block, FixedPort::NodeManager)?;
    pin("object-manager-port", block, FixedPort::ObjectManager)?;
    pin("dashboard-agent-listen-port", block, FixedPort::DashboardAgentHttp)?;
    pin("dashboard-agent-grpc-port", block, FixedPort::DashboardAgentGrpc)?;
    pin("runtime-env-agent-port", block, FixedPort::RuntimeEnvAgent)?;
    pin("metrics-export-port", block, FixedPort::MetricsExport)?;
    match plan.key.member {
        MemberId::Head => {
            pin("port", block, FixedPort::Gcs)?;
            pin("dashboard-port", block, FixedPort::Dashboard)?;
            pin("ray-client-server-port", block, FixedPort::ClientServer)?;
            for flag in ["--head", "--no-monitor", "--include-dashboard=true"] {
                add(flag.to_owned());
            }
            add("--dashboard-host=127.0.0.1".to_owned());
            add("--num-cpus=0".to_owned());
            add("--num-gpus=0".to_owned());
        }
        MemberId::Rank(rank) => {
            add(format!("--address={}", head_endpoint(plan)?));
            add(format!("--num-cpus={}", logical_cpus(plan)));
            add(format!("--num-gpus={}", plan.member.gpus.len()));
            add(format!("--resources={{\"{}\":1}}", rank_resource(rank)));
        }
    }
    Ok((argv, env))
}

fn head_endpoint(plan: &MemberPlan) -> Result<String, Refusal> {
    let address = plan.assignment.head_address;
    match ports::fixed(plan.assignment.head_ports, FixedPort::Gcs) {
        Some(port) => Ok(std::net::SocketAddr::new(address, port).to_string()),
        None => impossible("the head has no ports"),
    }
}

/// Custom resource that pins a Ray driver to one rank.
pub fn rank_resource(rank: u32) -> String {
    format!("gangline_rank_{rank}")
}

/// A logical number: with too few, placement groups of training frameworks wait for ever.
fn logical_cpus(plan: &MemberPlan) -> u64 {
    let cpus = u64::from(plan.member.cpus_milli.div_ceil(1000));
    cpus.max(10 * plan.member.gpus.len() as u64 + 2)
}

/// Labels by which a node of the Ray cluster is told to be a member of this very incarnation.
pub const GANG_LABEL: &str = "gangline-gang";
pub const EPOCH_LABEL: &str = "gangline-epoch";
pub const MEMBER_LABEL: &str = "gangline-member";

fn labels(plan: &MemberPlan) -> Result<String, Refusal> {
    let gang = plan.key.gang.as_str();
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if gang.len() > MAX_LABEL || !edge(gang.chars().next()) || !edge(gang.chars().next_back()) {
        return impossible(format!("Ray takes no label with the gang id `{gang}`"));
    }
    let key = &plan.key;
    Ok(format!("{GANG_LABEL}={gang},{EPOCH_LABEL}={},{MEMBER_LABEL}={}", key.epoch, key.member))
}

/// One line of shell that runs exactly `argv`: Ray's Jobs API takes nothing else.
pub fn shell_line(argv: &[String]) -> Result<String, shlex::QuoteError> {
    shlex::try_join(argv.iter().map(String::as_str))
}
