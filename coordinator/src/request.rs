//! From a parsed job spec to what the core decides on.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_common::ids::JobId;
use gangline_spec::{
    CodeSource, Entrypoint, JobSpec, Kind, LauncherKind, Part, RetryEvent, Reward, TrackingPlace,
};

use crate::core::job::{Argument, JobKind, JobRequest, Launcher, OnDisconnect, Piece};
use crate::core::recovery::{Cause, Retry};
use crate::core::stall::{HangAction, HangPolicy};
use crate::core::topology::Topology;
use crate::paths::{ResolvedPaths, trimmed};

/// Whose job a request is.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    pub job: &'a JobId,
    pub project: &'a str,
}

/// The core's view of a spec whose environment is resolved. `submit_command` is for people.
pub fn job_request(
    spec: &JobSpec,
    owner: Owner<'_>,
    paths: ResolvedPaths,
    submit_command: String,
) -> JobRequest {
    let launcher = match spec.launcher.kind {
        LauncherKind::Ray => Launcher::Ray,
        LauncherKind::Command | LauncherKind::Torchrun => Launcher::Command,
    };
    let kind = match spec.kind {
        Kind::Job => JobKind::Job,
        Kind::Cluster { idle_stop } => JobKind::Cluster { idle_stop_ms: idle_stop.map(millis) },
    };
    JobRequest {
        name: request_name(spec),
        kind,
        priority: spec.queue.priority.0,
        hold: spec.queue.hold,
        not_before_ms: spec.queue.not_before.map(|moment| moment.wall_ms),
        max_wait_ms: spec.queue.max_wait.map(millis),
        cluster: spec.cluster.clone(),
        nnodes: spec.resources.nnodes,
        nnodes_max: spec.resources.most_nodes(),
        gpus_per_node: spec.resources.gpus_per_node,
        cpus_milli: spec.resources.cpus_per_node.map(milli),
        memory_bytes: spec.resources.memory_per_node,
        pools: spec.resources.pools.clone(),
        node_labels: spec.resources.labels.clone(),
        exclusive: spec.resources.exclusive,
        topology: spec.resources.topology.map(topology),
        gpu_models: spec.resources.gpu.clone(),
        exclude_nodes: spec.resources.exclude_nodes.clone(),
        launcher,
        argv: arguments(spec),
        env: environment(spec, owner, paths.job_directory.as_deref()),
        secrets: spec.secrets.clone(),
        workdir: spec.workdir.clone().or_else(|| code_path(spec).map(str::to_owned)),
        tree: tree(spec).map(str::to_owned),
        job_directory: paths.job_directory,
        checkpoint_directory: paths.checkpoint_directory,
        directories: spec.tracking.directories().into_iter().map(str::to_owned).collect(),
        log_files: spec.logs.files.clone(),
        log_bytes: spec.logs.max_bytes,
        grace_ms: millis(spec.grace_period),
        start_timeout_ms: millis(spec.launcher.start_timeout),
        timeout_ms: spec.timeout.map(millis),
        preemptible: spec.queue.preemptible,
        min_runtime_ms: spec.min_runtime.map(millis),
        on_disconnect: match spec.on_disconnect {
            _ if spec.keeps_on_disconnect() => OnDisconnect::Keep { no_witness: true },
            gangline_spec::OnDisconnect::Fence => OnDisconnect::Fence,
            gangline_spec::OnDisconnect::Keep => OnDisconnect::Keep { no_witness: false },
            gangline_spec::OnDisconnect::StopAfter(time) => {
                OnDisconnect::StopAfter { ms: millis(time) }
            }
        },
        retry: retry(spec),
        hang: hang(spec.hang),
        hold_on_failure_ms: spec.hold_on_failure.map(millis),
        spec_json: spec.canonical_json(),
        submit_command,
    }
}

/// Pauses that a spec's backoff makes before it comes to its longest, which holds for all later ones.
const PAUSES: u32 = 24;

/// A job on a standing cluster has one attempt, and a cluster has no entrypoint that could fail.
fn retry(spec: &JobSpec) -> Retry {
    if spec.cluster.is_some() || spec.kind != Kind::Job {
        return Retry::default();
    }
    let cause = |event: &RetryEvent| match event {
        RetryEvent::NodeLost => Cause::NodeLost,
        RetryEvent::Hardware => Cause::Hardware,
        RetryEvent::NcclTimeout => Cause::NcclTimeout,
        RetryEvent::Preempted => Cause::Preempted,
        RetryEvent::Rendezvous => Cause::Rendezvous,
        RetryEvent::Ray => Cause::Ray,
        RetryEvent::Storage => Cause::Storage,
    };
    let mut pauses_ms: Vec<u64> =
        (2..2 + PAUSES).map(|retry| millis(spec.retry.backoff.before(retry))).collect();
    pauses_ms.dedup();
    Retry {
        max: spec.retry.max,
        causes: spec.retry.on_events.iter().map(cause).collect(),
        pauses_ms,
        exclude_failed_nodes: spec.retry.exclude_failed_nodes,
    }
}

fn hang(wanted: gangline_spec::Hang) -> HangPolicy {
    HangPolicy {
        warn_after_ms: millis(wanted.warn_after),
        after_ms: millis(wanted.after),
        action: match wanted.action {
            gangline_spec::HangAction::Notify => HangAction::Notify,
            gangline_spec::HangAction::Capture => HangAction::Capture,
            gangline_spec::HangAction::Restart => HangAction::Restart,
        },
    }
}

fn topology(wanted: gangline_spec::Topology) -> Topology {
    match wanted {
        gangline_spec::Topology::Rack => Topology::Rack,
        gangline_spec::Topology::Rail => Topology::Rail,
        gangline_spec::Topology::Leaf => Topology::Leaf,
        gangline_spec::Topology::NvlDomain => Topology::NvlDomain,
    }
}

/// The entrypoint, behind the check of its reward function.
fn arguments(spec: &JobSpec) -> Vec<Argument> {
    let check = spec.reward.as_ref().map(Reward::check).unwrap_or_default();
    check.iter().chain(&spec.entrypoint.arguments()).map(pieces).collect()
}

fn pieces(argument: &gangline_spec::Argument) -> Argument {
    let piece = |part: &Part<'_>| match *part {
        Part::Text(text) => Piece::Text(text.to_owned()),
        Part::Variable(name) => Piece::Variable(name.to_owned()),
    };
    argument.parts().iter().map(piece).collect()
}

/// The directory of the job's code on the nodes.
fn code_path(spec: &JobSpec) -> Option<&str> {
    match &spec.code.as_ref()?.source {
        CodeSource::Path(path) => Some(trimmed(path)),
        CodeSource::Tree(_) | CodeSource::Snapshot(_) | CodeSource::Zip(_) => None,
    }
}

/// The tree with the job's code, by name. Where it lies is known to the agents.
pub fn tree(spec: &JobSpec) -> Option<&str> {
    match &spec.code.as_ref()?.source {
        CodeSource::Tree(name) => Some(name),
        CodeSource::Path(_) | CodeSource::Snapshot(_) | CodeSource::Zip(_) => None,
    }
}

/// What trackers are told, and then the job's own variables, which win.
fn environment(spec: &JobSpec, owner: Owner<'_>, directory: Option<&str>) -> Vec<(String, String)> {
    let mut env: BTreeMap<&str, String> = spec.tracking.environment(&TrackingPlace {
        job_id: owner.job.as_str(),
        name: &request_name(spec),
        project: owner.project,
        directory,
        // Nobody knows yet whether the nodes have a route, and a wrong yes would hang the job.
        wandb_reachable: false,
    });
    env.extend(spec.resolved_env().map(|(name, value)| (name, value.to_owned())));
    if let Some(code) = code_path(spec) {
        // First, so that the job's own version of a package wins over the image's.
        let path = match env.get("PYTHONPATH") {
            Some(more) if !more.is_empty() => format!("{code}:{more}"),
            _ => code.to_owned(),
        };
        env.insert("PYTHONPATH", path);
    }
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Thousandths of a CPU, of which a valid spec asks at least one. The conversion saturates.
fn milli(cpus: f64) -> u32 {
    (cpus * 1000.0).round() as u32
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The spec's name, or one made from what runs: `train` for `python train.py`.
pub(crate) fn request_name(spec: &JobSpec) -> String {
    if let Some(name) = &spec.name {
        return name.clone();
    }
    let argv = match &spec.entrypoint {
        Entrypoint::Argv(argv) => argv,
        // `grpo` for `verl/grpo@1`.
        Entrypoint::Template(expansion) => {
            let name = expansion.template.split('@').next().unwrap_or_default();
            return name.rsplit('/').next().unwrap_or("job").to_owned();
        }
        Entrypoint::Script(_) => return "script".to_owned(),
        Entrypoint::Nothing => return "cluster".to_owned(),
    };
    let script = argv.iter().find(|argument| argument.ends_with(".py"));
    let word = script.or(argv.first()).map_or("", |word| word.rsplit('/').next().unwrap_or(word));
    let word = word.trim_end_matches(".py").to_ascii_lowercase();
    let clean: String = word
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(63)
        .collect();
    match clean.trim_matches('-') {
        "" => "job".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::{Asker, PathRules, resolve_paths};

    fn somebody(job: &JobId) -> Asker<'_> {
        Asker { job, user: "a", project: "rlhf", is_admin: false, project_of: &|_| None }
    }

    fn rules() -> PathRules {
        PathRules {
            shared_root: Some("/mnt/shared/".to_owned()),
            extra_roots: vec!["/fast".to_owned()],
        }
    }

    fn spec(checkpoint: Option<&str>) -> JobSpec {
        let mut spec = JobSpec::for_command(vec!["python".into(), "/code/Train_SFT.py".into()]);
        spec.checkpoint.dir = checkpoint.map(str::to_owned);
        spec
    }

    #[test]
    fn a29_code_on_the_nodes_comes_first_and_lies_below_a_root() {
        let spec = |text: &str| {
            gangline_spec::parse_resolved(&format!("run: x\nname: x\n{text}")).unwrap()
        };
        let job = JobId::new("j-1").unwrap();
        let request = |spec: &JobSpec| {
            let owner = Owner { job: &job, project: "rlhf" };
            job_request(spec, owner, ResolvedPaths::default(), String::new())
        };
        let plain = request(&spec("code: {path: /fast/code/v2/}"));
        assert_eq!(plain.workdir.as_deref(), Some("/fast/code/v2"));
        assert_eq!(plain.env, [("PYTHONPATH".to_owned(), "/fast/code/v2".to_owned())]);
        let more = "code: {path: /fast/code}\nworkdir: /data\nenv: {PYTHONPATH: /lib}";
        let more = request(&spec(more));
        assert_eq!(more.workdir.as_deref(), Some("/data"));
        assert_eq!(more.env, [("PYTHONPATH".to_owned(), "/fast/code:/lib".to_owned())]);

        let name = format!("blake3:{}", "0f".repeat(32));
        let tree = request(&spec(&format!("code: {{snapshot: '{name}'}}")));
        assert_eq!((tree.tree, tree.workdir, tree.env), (Some(name), None, Vec::new()));

        let resolve = |text: &str| resolve_paths(&spec(text), &somebody(&job), &rules());
        assert!(resolve("code: {path: /fast/code/v2/}").is_ok());
        for outside in ["/etc", "/home/a/.ssh", "/fast", "/fastother/x"] {
            let error = resolve(&format!("code: {{path: {outside}}}")).unwrap_err();
            assert_eq!(error.errors[0].pointer, "/code/path", "{outside}");
        }
        for (elsewhere, pointer) in [("snapshot: .", "/code/snapshot"), ("zip: a", "/code/zip")] {
            let error = resolve(&format!("code: {{{elsewhere}}}")).unwrap_err();
            assert_eq!(error.errors[0].pointer, pointer);
            assert!(error.errors[0].hint.as_ref().unwrap().contains("gangline submit"));
        }
    }

    #[test]
    fn trackers_without_a_shared_root_are_refused_or_told_what_they_can_use() {
        let job = JobId::new("j-1").unwrap();
        let read = |tracking: &str| {
            let text = format!("run: x\nname: x\ntracking: {tracking}\n");
            gangline_spec::parse_resolved(&text).unwrap()
        };
        let resolve = |spec: &JobSpec| resolve_paths(spec, &somebody(&job), &PathRules::default());
        for (tracking, pointer) in
            [("{wandb: {}}", "/tracking/wandb"), ("{tensorboard: true}", "/tracking/tensorboard")]
        {
            let error = resolve(&read(tracking)).unwrap_err();
            assert_eq!(error.errors[0].pointer, pointer);
        }
        let spec = read("{mlflow: {uri: 'http://m:5000'}}");
        let paths = resolve(&spec).unwrap();
        let owner = Owner { job: &job, project: "rlhf" };
        let request = job_request(&spec, owner, paths, String::new());
        let env: BTreeMap<_, _> = request.env.into_iter().collect();
        assert_eq!(env["MLFLOW_TRACKING_URI"], "http://m:5000");
        assert_eq!(env["MLFLOW_EXPERIMENT_NAME"], "rlhf");
    }

    #[test]
    fn the_words_of_topology_are_the_keys_of_labels() {
        for wanted in gangline_spec::Topology::ALL {
            assert_eq!(topology(wanted).label(), wanted.word());
        }
    }

    #[test]
    fn a_request_keeps_what_was_written() {
        let mut spec = spec(None);
        spec.resources.cpus_per_node = Some(1.5);
        spec.env.insert("LR".to_owned(), Some("1e-6".to_owned()));
        let job = JobId::new("j-1").unwrap();
        let owner = Owner { job: &job, project: "rlhf" };
        let request =
            job_request(&spec, owner, ResolvedPaths::default(), "gangline submit".to_owned());
        assert_eq!(request.name, "train-sft");
        assert_eq!(request.cpus_milli, Some(1500));
        assert_eq!(request.env, [("LR".to_owned(), "1e-6".to_owned())]);
        let texts = ["python", "/code/Train_SFT.py"];
        assert_eq!(request.argv, texts.map(|text| vec![Piece::Text(text.to_owned())]));
        assert_eq!(gangline_spec::parse(&request.spec_json).unwrap(), spec);
    }
}
