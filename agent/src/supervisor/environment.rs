//! The environment of a member's processes and of the jobs below them.

use std::collections::BTreeMap;
use std::path::Path;

use gangline_common::ids::{ATTEMPT_MARK_VARIABLE, JobId, MARK_VARIABLE, MemberId};
use gangline_common::wire::v1::{Argument, Assignment, Launcher, MemberAssignment, Piece};

use super::ports::{self, FixedPort};
use super::{MemberPlan, SupervisorConfig};
use crate::scene::ras;
use crate::{code, network};

pub type Environment = BTreeMap<String, String>;

/// Variables of the agent that a member must not inherit: the agent's own settings and secrets,
/// settings of other Ray clusters, and what systemd says to the agent alone.
const WITHHELD_PREFIXES: [&str; 5] = ["GANGLINE_", "RAY_", "LISTEN_", "NOTIFY_", "WATCHDOG_"];
const WITHHELD: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MAINPID",
    "SYSTEMD_EXEC_PID",
    "OLDPWD",
];

/// What a member inherits of the agent's environment: what the image set (CUDA paths, locale,
/// proxies), less what is the agent's own.
pub fn inherited(agent: impl IntoIterator<Item = (String, String)>) -> Environment {
    agent
        .into_iter()
        .filter(|(key, _)| {
            !WITHHELD.contains(&key.as_str())
                && !WITHHELD_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        })
        .collect()
}

/// Variables that every process of a job sees, on every node.
fn of_job(assignment: &Assignment) -> Environment {
    let addresses: Vec<String> = assignment.addresses.iter().map(ToString::to_string).collect();
    let mut env = Environment::from([
        ("GANGLINE_JOB_ID".to_owned(), assignment.job.to_string()),
        ("GANGLINE_ATTEMPT".to_owned(), assignment.attempt.to_string()),
        ("GANGLINE_NAME".to_owned(), assignment.job_name.clone()),
        ("GANGLINE_PROJECT".to_owned(), assignment.project.clone()),
        ("GANGLINE_NNODES".to_owned(), assignment.nnodes.to_string()),
        ("GANGLINE_NODE_IPS".to_owned(), addresses.join(",")),
        ("GANGLINE_HEAD_IP".to_owned(), assignment.head_address.to_string()),
        ("GANGLINE_GPUS_PER_NODE".to_owned(), assignment.gpus_per_node.to_string()),
    ]);
    if let Some(directory) = &assignment.checkpoint_directory {
        env.insert("GANGLINE_CKPT_DIR".to_owned(), directory.clone());
    }
    env
}

/// Puts facts in the place of an argument's variables.
///
/// Errors: the name of a variable that has no value here.
pub fn fill(argument: &Argument, facts: &Environment) -> Result<String, String> {
    let mut text = String::new();
    for piece in &argument.pieces {
        match piece {
            Piece::Text(piece) => text.push_str(piece),
            Piece::Variable(name) => text.push_str(facts.get(name).ok_or_else(|| name.clone())?),
        }
    }
    Ok(text)
}

/// What a template's arguments may name on a member: nothing that the job itself can set.
pub fn facts_of_rank(plan: &MemberPlan) -> Environment {
    let assignment = &plan.assignment;
    let mut facts = of_job(assignment);
    if let MemberId::Rank(rank) = plan.key.member {
        facts.insert("GANGLINE_NODE_RANK".to_owned(), rank.to_string());
    }
    facts.insert("MASTER_ADDR".to_owned(), assignment.head_address.to_string());
    if let Some(port) = ports::fixed(assignment.head_ports, FixedPort::Rendezvous) {
        facts.insert("MASTER_PORT".to_owned(), port.to_string());
    }
    facts
}

/// What they may name in the entrypoint of a Ray job, which runs on one member for all.
pub fn facts_of_gang(assignment: &Assignment) -> Environment {
    of_job(assignment)
}

/// Tells the processes of a Ray node where this node has the code.
const CODE_ROOT: &str = "GANGLINE_CODE_ROOT";

/// For `ray start`, when nodes have the code in places of their own.
pub fn code_root(assignment: &Assignment, own_code: &Path) -> Option<(String, String)> {
    let code = assignment.code.as_ref().filter(|code| code.shared_root.is_none());
    code.map(|_| (CODE_ROOT.to_owned(), own_code.to_string_lossy().into_owned()))
}

/// Python keeps no caches beside code that never changes.
fn no_caches(assignment: &Assignment) -> Option<(String, String)> {
    let variable = ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned());
    assignment.code.as_ref().map(|_| variable)
}

/// Code comes first, so that the job's own version of a package wins over the image's.
fn put_first(env: &mut Environment, directory: &str) {
    let path = match env.get("PYTHONPATH") {
        Some(more) if !more.is_empty() => format!("{directory}:{more}"),
        _ => directory.to_owned(),
    };
    env.insert("PYTHONPATH".to_owned(), path);
}

/// What every process below the gang's own entrypoint carries; a guest's has its operation instead.
fn attempt_mark(job: &JobId, attempt: u32) -> String {
    format!("{job}:{attempt}")
}

/// Variables that depend on the node: the same for Ray and for command ranks.
fn of_member(plan: &MemberPlan, config: &SupervisorConfig) -> Environment {
    let mut env = Environment::new();
    env.insert(MARK_VARIABLE.to_owned(), plan.key.mark());
    env.insert("CUDA_VISIBLE_DEVICES".to_owned(), visible_gpus(&plan.member));
    if let MemberId::Rank(rank) = plan.key.member {
        env.insert("GANGLINE_NODE_RANK".to_owned(), rank.to_string());
    }
    if let Some(interface) = &config.interface {
        for variable in ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"] {
            env.insert(variable.to_owned(), interface.clone());
        }
    }
    env
}

/// What was found out of this node's RDMA ports.
fn of_ports(config: &SupervisorConfig) -> Environment {
    let readings = config.readings.borrow().clone();
    let rdma = readings.and_then(|readings| readings.rdma.value.clone());
    rdma.map(|rdma| network::variables(&rdma, &config.rdma_exclude)).unwrap_or_default()
}

/// Where NCCL of this member answers questions: gangs that share a node must not share its own default.
fn of_ras(plan: &MemberPlan) -> Environment {
    let port = ports::fixed(plan.member.ports, FixedPort::NcclRas);
    let pair = |port| (ras::VARIABLE.to_owned(), format!("localhost:{port}"));
    port.map(pair).into_iter().collect()
}

/// An image (or a job) that says it otherwise knows better.
fn add_missing(env: &mut Environment, found: Environment) {
    for (name, value) in found {
        env.entry(name).or_insert(value);
    }
}

/// UUIDs in the order of the assignment; the empty text hides every GPU.
fn visible_gpus(member: &MemberAssignment) -> String {
    let uuids: Vec<&str> = member.gpus.iter().map(|gpu| gpu.0.as_str()).collect();
    uuids.join(",")
}

/// Puts the interpreter's directory first, so that `python` and `ray` are the chosen ones.
fn prefer_python(env: &mut Environment, python: &Path) {
    let Some(bin) = python.parent().and_then(Path::to_str) else { return };
    let path = match env.get("PATH") {
        Some(path) if !path.is_empty() => format!("{bin}:{path}"),
        _ => format!("{bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    };
    env.insert("PATH".to_owned(), path);
}

/// Environment of a command rank. The user's variables win over everything but the marks.
pub fn command_rank(
    plan: &MemberPlan,
    config: &SupervisorConfig,
    base: &Environment,
    own_code: &Path,
) -> Environment {
    let assignment = &plan.assignment;
    let mut env = base.clone();
    prefer_python(&mut env, &config.python);
    env.insert("PYTHONUNBUFFERED".to_owned(), "1".to_owned());
    env.extend(of_job(assignment));
    env.extend(of_member(plan, config));
    add_missing(&mut env, of_ports(config));
    add_missing(&mut env, of_ras(plan));
    env.extend(facts_of_rank(plan));
    env.insert("NNODES".to_owned(), assignment.nnodes.to_string());
    // One process is started per node; a launcher such as torchrun multiplies it by itself.
    env.insert("WORLD_SIZE".to_owned(), assignment.nnodes.to_string());
    if let MemberId::Rank(rank) = plan.key.member {
        env.insert("NODE_RANK".to_owned(), rank.to_string());
    }
    env.extend(no_caches(assignment));
    env.extend(assignment.env.iter().cloned());
    if let Some(directory) = assignment.code.as_ref().and_then(|c| code::directory(c, own_code)) {
        put_first(&mut env, &directory.to_string_lossy());
    }
    env.insert(MARK_VARIABLE.to_owned(), plan.key.mark());
    env.insert(ATTEMPT_MARK_VARIABLE.to_owned(), attempt_mark(&assignment.job, assignment.attempt));
    env
}

/// What Ray gives a stopped job before SIGKILL: whole seconds, rounded up.
fn grace_s(assignment: &Assignment) -> String {
    assignment.grace_ms.div_ceil(1000).max(1).to_string()
}

/// Environment of `ray start`. The job's own variables are not in it: they go into the job's
/// runtime environment, so that an `LD_PRELOAD` of a job cannot break the cluster itself.
pub fn ray_start(
    plan: &MemberPlan,
    config: &SupervisorConfig,
    base: &Environment,
    token_file: &str,
) -> Environment {
    let mut env = base.clone();
    prefer_python(&mut env, &config.python);
    env.extend(of_member(plan, config));
    add_missing(&mut env, of_ports(config));
    add_missing(&mut env, of_ras(plan));
    let grace_s = grace_s(&plan.assignment);
    let defaults = [
        ("RAY_DEDUP_LOGS", "0"),
        ("RAY_USAGE_STATS_ENABLED", "0"),
        // Without this, SIGTERM waits half a minute for other nodes to take over objects.
        ("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"),
        ("RAY_JOB_STOP_WAIT_TIME_S", grace_s.as_str()),
        // A cut node is dead after about 35 s; tighter values kill nodes that are merely busy.
        ("RAY_health_check_initial_delay_ms", "5000"),
        ("RAY_health_check_period_ms", "2000"),
        ("RAY_health_check_timeout_ms", "5000"),
        ("RAY_health_check_failure_threshold", "5"),
        ("RAY_gcs_rpc_server_reconnect_timeout_s", "60"),
    ];
    env.extend(defaults.map(|(key, value)| (key.to_owned(), value.to_owned())));
    if plan.key.member == MemberId::Head {
        // The head shares a container with ranks and would kill its own job supervisor.
        env.insert("RAY_memory_monitor_refresh_ms".to_owned(), "0".to_owned());
        let metrics = [
            ("DASHBOARD_METRIC_PORT", FixedPort::DashboardMetrics),
            ("AUTOSCALER_METRIC_PORT", FixedPort::AutoscalerMetrics),
        ];
        for (variable, port) in metrics {
            if let Some(port) = ports::fixed(plan.member.ports, port) {
                env.insert(variable.to_owned(), port.to_string());
            }
        }
    }
    env.extend(config.ray_env.iter().cloned());
    // Set even so: with a token file in the home directory Ray would choose a mode by itself.
    env.insert("RAY_AUTH_MODE".to_owned(), "token".to_owned());
    env.insert("RAY_AUTH_TOKEN_PATH".to_owned(), token_file.to_owned());
    env.insert(MARK_VARIABLE.to_owned(), plan.key.mark());
    env
}

/// Variables of an entrypoint's runtime environment: they reach the Ray driver, its tasks and its
/// actors. Values must be text; Ray itself replaces `$NAME` and `${NAME}` in them.
pub fn entrypoint(assignment: &Assignment) -> Environment {
    debug_assert_eq!(assignment.launcher, Launcher::Ray);
    let mut env = of_job(assignment);
    // A driver that brings a runtime environment of its own is not refused for a key of ours.
    env.insert("RAY_OVERRIDE_JOB_RUNTIME_ENV".to_owned(), "1".to_owned());
    // A guest's own: that of `ray start` is its cluster's.
    env.insert("RAY_JOB_STOP_WAIT_TIME_S".to_owned(), grace_s(assignment));
    env.extend(no_caches(assignment));
    env.extend(assignment.env.iter().cloned());
    if let Some(tree) = &assignment.code {
        // Without a shared root the place differs from node to node: Ray fills it in on each.
        let own = format!("${{{CODE_ROOT}}}");
        if let Some(directory) = code::directory(tree, Path::new(&own)) {
            put_first(&mut env, &directory.to_string_lossy());
        }
    }
    env.insert(ATTEMPT_MARK_VARIABLE.to_owned(), attempt_mark(&assignment.job, assignment.attempt));
    env.remove(MARK_VARIABLE); // each node's own, from its `ray start`
    env
}

#[cfg(test)]
mod tests {
    use gangline_common::wire::v1::CodeTree;

    use super::*;
    use crate::supervisor::fixtures;

    #[test]
    fn the_agents_own_settings_are_withheld() {
        let agent = [
            ("GANGLINE_TOKEN", "secret"),
            ("RAY_ADDRESS", "10.0.0.1:6379"),
            ("NOTIFY_SOCKET", "/run/x"),
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64"),
        ];
        let kept = inherited(agent.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["LD_LIBRARY_PATH"]);
    }

    #[test]
    fn a_rank_gets_every_promised_variable() {
        let (plan, config) = fixtures::command_plan(1);
        let base = Environment::from([("PATH".to_owned(), "/usr/bin".to_owned())]);
        let env = command_rank(&plan, &config, &base, Path::new("/own"));
        let expected = [
            ("GANGLINE_JOB_ID", "job-1"),
            ("GANGLINE_ATTEMPT", "2"),
            ("GANGLINE_NAME", "sft"),
            ("GANGLINE_PROJECT", "nlp"),
            ("GANGLINE_NNODES", "2"),
            ("GANGLINE_NODE_RANK", "1"),
            ("GANGLINE_NODE_IPS", "127.0.0.2,127.0.0.3"),
            ("GANGLINE_HEAD_IP", "127.0.0.2"),
            ("GANGLINE_GPUS_PER_NODE", "2"),
            ("GANGLINE_CKPT_DIR", "/shared/jobs/job-1/checkpoints"),
            ("MASTER_ADDR", "127.0.0.2"),
            ("MASTER_PORT", "20011"),
            ("NNODES", "2"),
            ("NODE_RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("GANGLINE_MARK", "g-1:1.1:1"),
            ("GANGLINE_ATTEMPT_MARK", "job-1:2"),
            ("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"),
            ("GLOO_SOCKET_IFNAME", "eth0"),
            ("NCCL_SOCKET_IFNAME", "eth0"),
            ("NCCL_RAS_ADDR", "localhost:20268"),
            ("PATH", "/venv/bin:/usr/bin"),
            ("LD_PRELOAD", "/opt/hook.so"),
        ];
        for (key, value) in expected {
            assert_eq!(env.get(key).map(String::as_str), Some(value), "{key}");
        }
    }

    #[test]
    fn what_the_image_says_of_ports_stays() {
        let ports = || {
            let pairs = [("NCCL_IB_HCA", "=mlx5_0:1"), ("NCCL_IB_GID_INDEX", "3")];
            Environment::from(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())))
        };
        let mut env = Environment::from([("NCCL_IB_HCA".to_owned(), "mlx5_7".to_owned())]);
        add_missing(&mut env, ports());
        assert_eq!(
            (env["NCCL_IB_HCA"].as_str(), env["NCCL_IB_GID_INDEX"].as_str()),
            ("mlx5_7", "3")
        );
    }

    #[test]
    fn a_users_variables_win_but_never_over_the_marks() {
        let (mut plan, config) = fixtures::command_plan(0);
        let assignment = std::sync::Arc::make_mut(&mut plan.assignment);
        for key in ["MASTER_PORT", "GANGLINE_MARK", "GANGLINE_ATTEMPT_MARK"] {
            assignment.env.push((key.to_owned(), "mine".to_owned()));
        }
        let env = command_rank(&plan, &config, &Environment::new(), Path::new("/own"));
        assert_eq!(env["MASTER_PORT"], "mine");
        assert_eq!(env["GANGLINE_MARK"], "g-1:1.1:0");
        assert_eq!(env["GANGLINE_ATTEMPT_MARK"], "job-1:2");
        let env = entrypoint(&{
            let mut ray = (*plan.assignment).clone();
            ray.launcher = Launcher::Ray;
            ray
        });
        assert_eq!(env["GANGLINE_ATTEMPT_MARK"], "job-1:2");
        assert!(!env.contains_key("GANGLINE_MARK"));
    }

    #[test]
    fn ray_itself_gets_nothing_of_the_job() {
        let (plan, config) = fixtures::ray_plan(MemberId::Rank(0));
        let env = ray_start(&plan, &config, &Environment::new(), "/spool/auth_token");
        assert!(!env.contains_key("LD_PRELOAD"));
        assert!(!env.contains_key("GANGLINE_ATTEMPT_MARK"));
        assert_eq!(env["RAY_AUTH_MODE"], "token");
        assert_eq!(env["RAY_AUTH_TOKEN_PATH"], "/spool/auth_token");
        assert_eq!(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"], "0");
        assert_eq!(env["RAY_health_check_period_ms"], "500", "the pool's value wins");
        assert!(!env.contains_key("RAY_memory_monitor_refresh_ms"));
        assert!(!env.values().any(|value| value.contains("sesame")), "the token is in a file");
        assert_eq!(entrypoint(&plan.assignment)["LD_PRELOAD"], "/opt/hook.so");

        let (plan, config) = fixtures::ray_plan(MemberId::Head);
        let env = ray_start(&plan, &config, &Environment::new(), "/spool/auth_token");
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "");
        assert_eq!(env["RAY_memory_monitor_refresh_ms"], "0");
        assert_eq!(env["DASHBOARD_METRIC_PORT"], "20008");
        assert_eq!(env["AUTOSCALER_METRIC_PORT"], "20009");
    }

    #[test]
    fn code_comes_first_on_every_node() {
        let tree = format!("blake3:{}", "0f".repeat(32));
        let shared = CodeTree {
            tree: tree.clone(),
            shared_root: Some("/nfs".to_owned()),
            user: "alice".to_owned(),
        };
        let own = CodeTree { shared_root: None, ..shared.clone() };
        let there = format!("/nfs/users/alice/code/{}", "0f".repeat(32));
        let here = format!("/own/{}", "0f".repeat(32));
        for (code, place) in [(shared.clone(), &there), (own.clone(), &here)] {
            let (mut plan, config) = fixtures::command_plan(0);
            let assignment = std::sync::Arc::make_mut(&mut plan.assignment);
            assignment.code = Some(code);
            assignment.env.push(("PYTHONPATH".to_owned(), "/lib".to_owned()));
            let base = Environment::new();
            let env = command_rank(&plan, &config, &base, Path::new("/own"));
            assert_eq!(env["PYTHONPATH"], format!("{place}:/lib"));
            assert_eq!(env["PYTHONDONTWRITEBYTECODE"], "1");
        }
        let (mut plan, _) = fixtures::ray_plan(MemberId::Rank(0));
        let assignment = std::sync::Arc::make_mut(&mut plan.assignment);
        assignment.code = Some(shared);
        assert_eq!(entrypoint(assignment)["PYTHONPATH"], there);
        assert_eq!(code_root(assignment, Path::new("/own")), None);
        // Ray fills the variable in on each node, from the environment of its `ray start`.
        assignment.code = Some(own);
        let expected = format!("${{GANGLINE_CODE_ROOT}}/{}", "0f".repeat(32));
        assert_eq!(entrypoint(assignment)["PYTHONPATH"], expected);
        let root = code_root(assignment, Path::new("/own"));
        assert_eq!(root, Some(("GANGLINE_CODE_ROOT".to_owned(), "/own".to_owned())));
    }
}
