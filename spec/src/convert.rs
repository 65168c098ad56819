//! From the tree to the typed spec: which fields there are, and whether each value has the right
//! type. Ranges and forms are checked afterwards, in `validate`.

use crate::cell::{Cell, Mode};
use crate::code::{CodeSource, CodeSpec, DEFAULT_MAX_CODE_BYTES, GIT_WORDS, Reward};
use crate::entrypoint;
use crate::error::{Code, Problems, quoted};
use crate::fields;
use crate::hang::{DEFAULT_HANG_AFTER, DEFAULT_WARN_AFTER, Hang, HangAction};
use crate::job::{Checkpoint, JobSpec, Kind, Launcher, Resources};
use crate::logs::Logs;
use crate::nodes::Topology;
use crate::queue::Queue;
use crate::reader::Reader;
use crate::retry::{self, Retry};
use crate::suggest::nearest;
use crate::table::KINDS;
use crate::tracking::{Mlflow, Tracking, Wandb, WandbMode};
use crate::tree::{Node, Value};
use crate::validate;

/// The symbol of a reward function when the spec does not say: verl's own default.
const DEFAULT_REWARD_SYMBOL: &str = "compute_score";

/// Read the spec of `root`. Where something is wrong it is reported to `out` and the default
/// stands in its place, so that the rest is read too; the caller drops such a spec.
pub(crate) fn job_spec(root: &Node, mode: Mode, out: &mut Problems) -> JobSpec {
    let mut spec = JobSpec::for_command(vec!["true".to_owned()]);
    if matches!(root.value, Value::Null) {
        let hint = "a spec has at least `run`, `command` or `template`; `gangline init` writes one";
        let message = "the spec is empty";
        out.value(Code::MISSING, "", message, Some(hint.to_owned()));
        return spec;
    }
    let Some(kind) = read_kind(root, out) else {
        // The fields of the other kinds are others: nothing more can be said about this text.
        return spec;
    };
    let Some(top) = Reader::open(root, &fields::TOP, "", out) else {
        return spec;
    };
    spec.kind = kind;
    if let Some(version) = top.get("version") {
        version.version(out);
    }
    spec.name = top.get("name").and_then(|cell| cell.text(out));
    spec.project = top.get("project").and_then(|cell| cell.text(out));
    spec.cluster = top.get("cluster").and_then(|cell| cell.text(out));
    spec.description = top.get("description").and_then(|cell| cell.text(out));
    if let Some(labels) = top.get("labels") {
        spec.labels = labels.labels(out);
    }
    if let Some(resources) = top.section("resources", &fields::RESOURCES, out) {
        spec.resources = read_resources(&resources, out);
    }
    let launcher = top.section("launcher", &fields::LAUNCHER, out);
    if let Some(launcher) = &launcher {
        spec.launcher = read_launcher(launcher, out);
    }
    spec.workdir = top.get("workdir").and_then(|cell| cell.text(out));
    if let Some(env) = top.get("env") {
        spec.env = env.env(mode.open_env, out);
    }
    if let Some(period) = top.get("grace_period").and_then(|cell| cell.duration(out)) {
        spec.grace_period = period;
    }
    if let Some(checkpoint) = top.section("checkpoint", &fields::CHECKPOINT, out) {
        spec.checkpoint = read_checkpoint(&checkpoint, out);
    }
    if let Some(tracking) = top.section("tracking", &fields::TRACKING, out) {
        spec.tracking = read_tracking(&tracking, out);
    }
    spec.timeout = top.get("timeout").and_then(|cell| cell.duration(out));
    spec.min_runtime = top.get("min_runtime").and_then(|cell| cell.duration(out));
    if let Some(queue) = top.section("queue", &fields::QUEUE, out) {
        spec.queue = read_queue(&queue, out);
    }
    if let Some(policy) = top.get("on_disconnect").and_then(|cell| cell.on_disconnect(out)) {
        spec.on_disconnect = policy;
    }
    if let Some(retry) = top.section("retry", &fields::RETRY, out) {
        spec.retry = read_retry(&retry, out);
    }
    if let Some(policies) = top.get("log_policies").and_then(|cell| cell.log_policies(out)) {
        spec.log_policies = policies;
    }
    if let Some(hang) = top.section("hang", &fields::HANG, out) {
        spec.hang = read_hang(&hang, out);
    }
    spec.hold_on_failure = top.get("hold_on_failure").and_then(|cell| cell.duration(out));
    let code = top.section("code", &fields::CODE, out);
    spec.code = code.and_then(|code| read_code(&code, out));
    let reward = top.section("reward", &fields::REWARD, out);
    spec.reward = reward.and_then(|reward| read_reward(&reward, out));
    if let Some(secrets) = top.get("secrets").and_then(|cell| cell.texts(out)) {
        spec.secrets = secrets;
    }
    if let Some(logs) = top.section("logs", &fields::LOGS, out) {
        spec.logs = Logs::read(&logs, out);
    }
    read_idle_stop(&top, &mut spec, out);
    let launcher_given = launcher.is_some_and(|launcher| launcher.has("type"));
    entrypoint::read(&top, mode, launcher_given, &mut spec, out);
    spec
}

fn read_kind(root: &Node, out: &mut Problems) -> Option<Kind> {
    let Some(entry) = root.entry("kind") else {
        return Some(Kind::Job);
    };
    let kind = Cell::new(&entry.node, "/kind".to_owned()).text(out)?;
    match kind.as_str() {
        "job" => return Some(Kind::Job),
        "cluster" => return Some(Kind::Cluster { idle_stop: None }),
        _ => {}
    }
    let runs = "this version runs `job` and `cluster`";
    if KINDS.contains(&kind.as_str()) {
        let message = format!("kind {} is not built yet", quoted(&kind));
        out.value(Code::NOT_YET, "/kind", message, Some(runs.to_owned()));
    } else {
        let message = format!("there is no kind {}", quoted(&kind));
        let hint = match nearest(&kind, KINDS.into_iter()) {
            Some(near) => format!("did you mean `{near}`? {runs}"),
            None => runs.to_owned(),
        };
        out.value(Code::BAD_VALUE, "/kind", message, Some(hint));
    }
    None
}

fn read_hang(section: &Reader<'_>, out: &mut Problems) -> Hang {
    let duration = |name: &str, out: &mut Problems| section.get(name)?.duration(out);
    let warn_after = duration("warn_after", out).unwrap_or(DEFAULT_WARN_AFTER);
    // Who wants to be warned later wants no action before that.
    let after = duration("after", out).unwrap_or(DEFAULT_HANG_AFTER.max(warn_after));
    let action = section.get("action").and_then(|cell| cell.word(&HangAction::WORDS, out));
    let action = action.map(HangAction::from_word).unwrap_or_default();
    Hang { warn_after, after, action }
}

fn read_idle_stop(top: &Reader<'_>, spec: &mut JobSpec, out: &mut Problems) {
    let Some(cell) = top.get("idle_stop") else {
        return;
    };
    let Some(time) = cell.duration(out) else {
        return;
    };
    match &mut spec.kind {
        Kind::Cluster { idle_stop } => *idle_stop = Some(time),
        Kind::Job => {
            let hint = Some("a job ends with its entrypoint".to_owned());
            let message = "`idle_stop` belongs to `kind: cluster`";
            out.key(Code::CONFLICT, &cell.pointer, message, hint);
        }
    }
}

fn read_resources(section: &Reader<'_>, out: &mut Problems) -> Resources {
    let mut resources = Resources::default();
    if let Some(nnodes) = section.get("nnodes").and_then(|cell| cell.nnodes(out)) {
        (resources.nnodes, resources.nnodes_max) = nnodes;
    }
    if let Some(cell) = section.get("gpus_per_node")
        && let Some(gpus) = cell.count(&validate::GPUS_PER_NODE, out)
    {
        resources.gpus_per_node = gpus;
    }
    let cpus = section.get("cpus_per_node");
    resources.cpus_per_node = cpus.and_then(|cell| cell.number(out));
    let memory = section.get("memory_per_node");
    resources.memory_per_node = memory.and_then(|cell| cell.size(out));
    if let Some(pools) = section.get("pool").and_then(|cell| cell.one_or_more(out)) {
        resources.pools = pools;
    }
    if let Some(labels) = section.get("labels") {
        resources.labels = labels.labels(out);
    }
    if let Some(models) = section.get("gpu").and_then(|cell| cell.one_or_more(out)) {
        resources.gpu = models;
    }
    if let Some(nodes) = section.get("exclude_nodes").and_then(|cell| cell.texts(out)) {
        resources.exclude_nodes = nodes;
    }
    resources.exclusive = section.get("exclusive").and_then(|cell| cell.boolean(out));
    let topology = section.get("topology").and_then(|cell| cell.word(&Topology::WORDS, out));
    let topology = topology.and_then(|word| word.checked_sub(1)); // `none` is the first
    resources.topology = topology.and_then(|index| Topology::ALL.get(index).copied());
    resources
}

fn read_launcher(section: &Reader<'_>, out: &mut Problems) -> Launcher {
    let mut launcher = Launcher::default();
    if let Some(kind) = section.get("type").and_then(|cell| cell.launcher_kind(out)) {
        launcher.kind = kind;
    }
    if let Some(cell) = section.get("start_timeout")
        && let Some(timeout) = cell.duration(out)
    {
        launcher.start_timeout = timeout;
    }
    launcher
}

fn read_queue(section: &Reader<'_>, out: &mut Problems) -> Queue {
    let priority = section.get("priority").and_then(|cell| cell.priority(out));
    let hold = section.get("hold").and_then(|cell| cell.boolean(out));
    let not_before = section.get("not_before").and_then(|cell| cell.moment(out));
    let after = section.get("after").and_then(|cell| cell.texts(out));
    let max_wait = section.get("max_wait").and_then(|cell| cell.duration(out));
    let preemptible = section.get("preemptible").and_then(|cell| cell.boolean(out));
    Queue {
        priority: priority.unwrap_or_default(),
        preemptible: preemptible.unwrap_or(false),
        hold: hold.unwrap_or(false),
        not_before,
        after: after.unwrap_or_default(),
        max_wait,
    }
}

fn read_retry(section: &Reader<'_>, out: &mut Problems) -> Retry {
    let mut retry = Retry::default();
    if let Some(max) = section.get("max").and_then(|cell| cell.count(&retry::RETRIES, out)) {
        retry.max = max;
    }
    if let Some(events) = section.get("on_events").and_then(|cell| cell.retry_events(out)) {
        retry.on_events = events.into_iter().collect();
    }
    if let Some(backoff) = section.section("backoff", &fields::BACKOFF, out) {
        let given = &mut retry.backoff;
        let mut time = |name: &str| backoff.get(name).and_then(|cell| cell.duration(out));
        given.initial = time("initial").unwrap_or(given.initial);
        given.max = time("max").unwrap_or(given.max);
        let factor = backoff.get("factor").and_then(|cell| cell.number(out));
        given.factor = factor.unwrap_or(given.factor);
    }
    let exclude = section.get("exclude_failed_nodes").and_then(|cell| cell.boolean(out));
    retry.exclude_failed_nodes = exclude.unwrap_or(true);
    retry
}

fn read_checkpoint(section: &Reader<'_>, out: &mut Problems) -> Checkpoint {
    let mut count = |name: &str| {
        section.get(name).and_then(|cell| cell.count(&validate::CHECKPOINT_COUNT, out))
    };
    let (every, keep) = (count("every"), count("keep"));
    let dir = section.get("dir").and_then(|cell| cell.text(out));
    let copy = section.get("encrypted_copy").and_then(|cell| cell.boolean(out));
    Checkpoint { dir, every, keep, encrypted_copy: copy.unwrap_or(false) }
}

fn read_tracking(section: &Reader<'_>, out: &mut Problems) -> Tracking {
    let wandb = section.section("wandb", &fields::WANDB, out).map(|wandb| {
        let project = wandb.get("project").and_then(|cell| cell.text(out));
        let mode = wandb.get("mode").and_then(|cell| cell.word(&WandbMode::WORDS, out));
        let mode = mode.and_then(|index| WandbMode::ALL.get(index).copied()).unwrap_or_default();
        Wandb { project, mode }
    });
    let mlflow = section.section("mlflow", &fields::MLFLOW, out).and_then(|mlflow| {
        let experiment = mlflow.get("experiment").and_then(|cell| cell.text(out));
        let uri = mlflow.required("uri", out)?.text(out)?;
        Some(Mlflow { uri, experiment })
    });
    let tensorboard = section.get("tensorboard").and_then(|cell| cell.boolean(out));
    Tracking { wandb, tensorboard: tensorboard.unwrap_or(false), mlflow }
}

fn read_code(section: &Reader<'_>, out: &mut Problems) -> Option<CodeSpec> {
    let include = section.get("include").and_then(|cell| cell.texts(out)).unwrap_or_default();
    let max_bytes = section.get("max_size").and_then(|cell| cell.size(out));
    let git = section.get("git").and_then(|cell| cell.word(&GIT_WORDS, out));
    let commit = section.get("commit").and_then(|cell| cell.text(out));
    let mut source: Option<CodeSource> = None;
    for name in ["snapshot", "path", "zip"] {
        let Some(cell) = section.get(name) else {
            continue;
        };
        let place = cell.text(out)?;
        if let Some(first) = &source {
            let (first, _) = first.field();
            let message = format!("`code.{first}` and `code.{name}` are both given");
            let hint = Some("the code has one place: keep one".to_owned());
            out.key(Code::CONFLICT, &cell.pointer, message, hint);
            return None;
        }
        source = Some(match name {
            "snapshot" => CodeSource::snapshot(place),
            "path" => CodeSource::Path(place),
            _ => CodeSource::Zip(place),
        });
    }
    let Some(source) = source else {
        let hint = Some("add `snapshot: .`, `path: DIR` or `zip: FILE`".to_owned());
        out.key(Code::MISSING, "/code", "`code` does not say where the code is", hint);
        return None;
    };
    // What does nothing for this place would be accepted in silence.
    let idle: &[&str] = match source {
        CodeSource::Snapshot(_) => &["commit"],
        CodeSource::Tree(_) => &["include", "git", "max_size"],
        CodeSource::Zip(_) => &["include", "git", "commit"],
        CodeSource::Path(_) => &["include", "git", "max_size", "commit"],
    };
    for name in idle {
        if section.get(name).is_some() {
            let (place, _) = source.field();
            let what = match source {
                CodeSource::Tree(_) => "code that was sent before".to_owned(),
                _ => format!("`code.{place}`"),
            };
            let message = format!("`code.{name}` does nothing with {what}");
            out.key(Code::CONFLICT, &section.pointer(name), message, Some("leave it out".into()));
        }
    }
    Some(CodeSpec {
        record_git: matches!(source, CodeSource::Snapshot(_)) && git != Some(1),
        max_bytes: max_bytes.unwrap_or(DEFAULT_MAX_CODE_BYTES),
        source,
        include,
        commit,
    })
}

fn read_reward(section: &Reader<'_>, out: &mut Problems) -> Option<Reward> {
    let symbol = section.get("symbol").and_then(|cell| cell.text(out));
    let path = section.required("path", out)?.text(out)?;
    Some(Reward { path, symbol: symbol.unwrap_or_else(|| DEFAULT_REWARD_SYMBOL.to_owned()) })
}
