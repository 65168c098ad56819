//! The checks on values: ranges, forms and sizes. They work on the typed spec, so that one made
//! by a program passes the same ones as one read from a text.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::arguments::TEMPLATE_VARIABLES;
use crate::checks::{
    ENV_NAME_FORM, JOB_FORM, LABEL_FORM, MAX_PATH_BYTES, NAME_FORM, check_bytes, check_form,
    check_items, check_nul, check_path, check_range, check_text, is_env_name, is_label, is_name,
    selects_job,
};
pub(crate) use crate::checks::{check_count, dotted};
use crate::code::{CodeSource, CodeSpec, Reward, TREE_FORM, is_commit, is_tree_name};
use crate::disconnect::OnDisconnect;
use crate::error::{Code, Problems, quoted};
use crate::hang::Hang;
use crate::job::{
    CHECKPOINT_VARIABLES, Checkpoint, Entrypoint, Expansion, JobSpec, Kind, Resources,
};
use crate::queue::{AFTER_FORM, MAX_AFTER, Queue, after_job};
use crate::retry::{self, Retry};
use crate::tracking::Tracking;
use crate::tree::join;
use crate::units;

/// Most nodes of one gang.
pub const MAX_NNODES: u32 = 4096;
/// Most GPUs of one node.
pub const MAX_GPUS_PER_NODE: u32 = 64;
/// Most bytes of `run` (or `command`) and `env` together.
pub const MAX_ENTRYPOINT_AND_ENV_BYTES: usize = 256 * 1024;
/// Most bytes of one argument or one `NAME=value`: Linux takes 128 KiB with the closing NUL.
pub const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;

pub(crate) const NNODES: RangeInclusive<u32> = 1..=MAX_NNODES;
pub(crate) const GPUS_PER_NODE: RangeInclusive<u32> = 0..=MAX_GPUS_PER_NODE;
pub(crate) const CPUS_PER_NODE: RangeInclusive<f64> = 0.001..=4096.0;
pub(crate) const CHECKPOINT_COUNT: RangeInclusive<u32> = 1..=1_000_000_000;
pub(crate) const PRIORITY: RangeInclusive<u32> = 0..=100;
const MAX_MEMORY_PER_NODE: u64 = 64 << 40;
const TIMEOUT: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600);
const START_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
const GRACE_PERIOD: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(24 * 3600);
const HANG: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 3600);
/// What is held is held by nobody who works.
const HOLD_ON_FAILURE: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
/// Shorter than the time between a few heartbeats, a hiccup of the network would stop a job.
const STOP_AFTER: RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(7 * 24 * 3600);
const MAX_CODE_BYTES: u64 = 1 << 40;
const MAX_LABELS: usize = 64;
const MAX_LABEL_VALUE_BYTES: usize = 256;
const MAX_DESCRIPTION_BYTES: usize = 4096;

/// Prefixes of variables that only Gangline sets: identity and secrets of the gang.
const RESERVED_ENV: [&str; 2] = ["GANGLINE_", "RAY_AUTH_"];

pub(crate) fn check(spec: &JobSpec, out: &mut Problems) {
    for (pointer, name) in [("/name", &spec.name), ("/project", &spec.project)] {
        if let Some(name) = name {
            check_form(pointer, name, is_name(name), NAME_FORM, out);
        }
    }
    if let Some(text) = &spec.description {
        check_nul("/description", text, out);
        check_bytes("/description", text.len(), MAX_DESCRIPTION_BYTES, out);
    }
    check_label_map("/labels", &spec.labels, out);
    check_resources(&spec.resources, out);
    check_range(
        "/launcher/start_timeout",
        &spec.launcher.start_timeout,
        &START_TIMEOUT,
        |d| units::write_duration(*d),
        out,
    );
    if let Some(path) = &spec.workdir {
        check_path("/workdir", path, out);
    }
    check_entrypoint(&spec.entrypoint, out);
    check_env(spec, out);
    check_range(
        "/grace_period",
        &spec.grace_period,
        &GRACE_PERIOD,
        |d| units::write_duration(*d),
        out,
    );
    check_checkpoint(&spec.checkpoint, &spec.entrypoint, out);
    check_tracking(&spec.tracking, out);
    check_time("/timeout", spec.timeout, out);
    check_time("/min_runtime", spec.min_runtime, out);
    retry::check(&spec.retry, &spec.log_policies, out);
    if let OnDisconnect::StopAfter(time) = &spec.on_disconnect {
        let pointer = "/on_disconnect/stop_after";
        check_range(pointer, time, &STOP_AFTER, |d| units::write_duration(*d), out);
    }
    check_hang(&spec.hang, out);
    if let Some(time) = &spec.hold_on_failure {
        let write = |d: &Duration| units::write_duration(*d);
        check_range("/hold_on_failure", time, &HOLD_ON_FAILURE, write, out);
    }
    if let Kind::Cluster { idle_stop } = spec.kind {
        check_time("/idle_stop", idle_stop, out);
        check_cluster(spec, out);
    } else if let Some(cluster) = &spec.cluster {
        check_form("/cluster", cluster, selects_job(cluster), JOB_FORM, out);
        check_guest(spec, out);
    }
    if spec.kind == Kind::Job && spec.entrypoint == Entrypoint::Nothing {
        out.key(Code::MISSING, "/run", "nothing to run: the job has no entrypoint", None);
    }
    check_queue(&spec.queue, out);
    if let Some(code) = &spec.code {
        check_code(code, out);
    }
    if let Some(reward) = &spec.reward {
        check_text("/reward/path", &reward.path, MAX_PATH_BYTES, out);
        let form = "a Python name: letters, digits and `_`, not a digit first";
        check_form("/reward/symbol", &reward.symbol, is_env_name(&reward.symbol), form, out);
        check_reward_path(spec, reward, out);
    }
    check_secrets(spec, out);
    spec.logs.check(spec.cluster.is_some(), out);
}

fn check_queue(queue: &Queue, out: &mut Problems) {
    check_count("/queue/priority", queue.priority.0, &PRIORITY, out);
    check_time("/queue/max_wait", queue.max_wait, out);
    if queue.after.len() > MAX_AFTER {
        let message =
            format!("`queue.after` names {} jobs; at most {MAX_AFTER}", queue.after.len());
        out.value(Code::TOO_LARGE, "/queue/after", message, None);
    }
    for (index, job) in queue.after.iter().enumerate() {
        let pointer = join("/queue/after", &index.to_string());
        check_form(&pointer, job, selects_job(after_job(job)), AFTER_FORM, out);
    }
}

/// A relative path is one in the directory that the job runs in, on every node.
fn check_reward_path(spec: &JobSpec, reward: &Reward, out: &mut Problems) {
    let Some(path) = reward.in_code() else { return };
    let inside = path.split('/').all(|part| part != "..");
    check_form("/reward/path", &reward.path, inside, "a path without `..`", out);
    let hint = Some("give the absolute path of a file on the shared file system".to_owned());
    if spec.cluster.is_some() {
        let message = "the workers of a standing cluster do not run in the job's directory, so \
                       that a relative `reward.path` leads nowhere there";
        out.value(Code::CONFLICT, "/reward/path", message, hint);
    } else if spec.code.is_none() && spec.workdir.is_none() {
        let message = "`reward.path` is relative, and the job brings no code";
        let hint = Some("add `code: {snapshot: .}`, or give an absolute path".to_owned());
        out.value(Code::CONFLICT, "/reward/path", message, hint);
    }
}

fn check_hang(hang: &Hang, out: &mut Problems) {
    for (pointer, time) in [("/hang/warn_after", hang.warn_after), ("/hang/after", hang.after)] {
        check_range(pointer, &time, &HANG, |d| units::write_duration(*d), out);
    }
    if hang.after < hang.warn_after {
        let message = "`hang.after` is shorter than `hang.warn_after`";
        let hint = format!("at least {}", units::write_duration(hang.warn_after));
        out.value(Code::CONFLICT, "/hang/after", message, Some(hint));
    }
}

fn check_time(pointer: &str, time: Option<Duration>, out: &mut Problems) {
    if let Some(time) = time {
        check_range(pointer, &time, &TIMEOUT, |d| units::write_duration(*d), out);
    }
}

fn check_cluster(spec: &JobSpec, out: &mut Problems) {
    if spec.entrypoint != Entrypoint::Nothing {
        out.key(Code::CONFLICT, "/run", "a cluster has no entrypoint", None);
    }
    if !spec.launcher.kind.starts_ray() {
        let message = "a cluster is a Ray cluster: its launcher is `ray`";
        out.value(Code::CONFLICT, "/launcher/type", message, None);
    }
    check_cluster_fields(spec, out);
}

/// A cluster only stands: what a program needs belongs to the jobs that run on it.
fn check_cluster_fields(spec: &JobSpec, out: &mut Problems) {
    let given = [
        ("/env", !spec.env.is_empty()),
        ("/secrets", !spec.secrets.is_empty()),
        ("/checkpoint", spec.checkpoint != Checkpoint::default()),
        ("/tracking", !spec.tracking.is_empty()),
        ("/code", spec.code.is_some()),
        ("/reward", spec.reward.is_some()),
        ("/workdir", spec.workdir.is_some()),
        ("/hang", spec.hang != Hang::default()),
        ("/hold_on_failure", spec.hold_on_failure.is_some()),
        ("/cluster", spec.cluster.is_some()),
        ("/retry", spec.retry != Retry::default()),
        ("/log_policies", !spec.log_policies.is_empty()),
    ];
    for (pointer, _) in given.iter().filter(|(_, given)| *given) {
        let message = format!("a cluster has no `{}`", pointer.trim_start_matches('/'));
        let hint = "give it to the jobs that run on the cluster".to_owned();
        out.key(Code::CONFLICT, pointer, message, Some(hint));
    }
}

/// A job on a standing cluster takes a part of what the cluster has.
fn check_guest(spec: &JobSpec, out: &mut Problems) {
    if spec.on_disconnect != OnDisconnect::default() {
        let message =
            "a job on a cluster runs on the cluster's gang, which has a policy of its own";
        let hint = "leave it out, and give it to the cluster".to_owned();
        out.key(Code::CONFLICT, "/on_disconnect", message, Some(hint));
    }
    if spec.hold_on_failure.is_some() {
        let message = "a job on a cluster runs on the cluster's gang, which stays up by itself";
        let hint = "leave it out".to_owned();
        out.key(Code::CONFLICT, "/hold_on_failure", message, Some(hint));
    }
    for (pointer, given) in [
        ("/retry", spec.retry != Retry::default()),
        ("/log_policies", !spec.log_policies.is_empty()),
    ] {
        if given {
            let message = "a job on a standing cluster has one attempt";
            let hint = "leave it out, or leave out `cluster` for a gang of its own".to_owned();
            out.key(Code::CONFLICT, pointer, message, Some(hint));
        }
    }
    if !spec.launcher.kind.starts_ray() {
        let message = "a job on a cluster is a Ray job: its launcher is `ray`";
        let hint = "leave out `cluster` for a gang of its own".to_owned();
        out.value(Code::CONFLICT, "/launcher/type", message, Some(hint));
    }
    let resources = &spec.resources;
    check_guest_size(resources, out);
    let given = [
        ("/resources/pool", !resources.pools.is_empty()),
        ("/resources/labels", !resources.labels.is_empty()),
        ("/resources/gpu", !resources.gpu.is_empty()),
        ("/resources/exclude_nodes", !resources.exclude_nodes.is_empty()),
        ("/resources/exclusive", resources.exclusive.is_some()),
        ("/resources/topology", resources.topology.is_some()),
        ("/resources/memory_per_node", resources.memory_per_node.is_some()),
    ];
    for (pointer, _) in given.iter().filter(|(_, given)| *given) {
        let message = "the nodes of a cluster are given already".to_owned();
        let hint = "leave it out, or leave out `cluster` for a gang of its own".to_owned();
        out.key(Code::CONFLICT, pointer, message, Some(hint));
    }
}

/// A range is for a gang of one's own: what a job takes of a cluster is one size.
fn check_guest_size(resources: &Resources, out: &mut Problems) {
    if resources.nnodes_max.is_some() {
        let message = "a job on a cluster has one number of nodes";
        let hint = format!("write {}, for example", resources.nnodes);
        out.value(Code::CONFLICT, "/resources/nnodes", message, Some(hint));
    }
}

fn check_code(code: &CodeSpec, out: &mut Problems) {
    let (field, place) = code.source.field();
    let pointer = join("/code", field);
    match code.source {
        CodeSource::Path(_) => check_path(&pointer, place, out),
        CodeSource::Snapshot(_) | CodeSource::Zip(_) => {
            check_text(&pointer, place, MAX_PATH_BYTES, out);
        }
        CodeSource::Tree(_) => check_form(&pointer, place, is_tree_name(place), TREE_FORM, out),
    }
    if let Some(commit) = &code.commit {
        let form = "a commit of git: 40 or 64 digits 0-9 a-f, and perhaps `+changed`";
        check_form("/code/commit", commit, is_commit(commit), form, out);
    }
    check_items("/code/include", code.include.len(), out);
    for (index, pattern) in code.include.iter().enumerate() {
        check_text(&join("/code/include", &index.to_string()), pattern, MAX_PATH_BYTES, out);
    }
    check_range(
        "/code/max_size",
        &code.max_bytes,
        &(1..=MAX_CODE_BYTES),
        |bytes| units::write_size(*bytes),
        out,
    );
}

fn check_tracking(tracking: &Tracking, out: &mut Problems) {
    if let Some(project) = tracking.wandb.as_ref().and_then(|wandb| wandb.project.as_deref()) {
        check_text("/tracking/wandb/project", project, MAX_LABEL_VALUE_BYTES, out);
    }
    if let Some(mlflow) = &tracking.mlflow {
        check_text("/tracking/mlflow/uri", &mlflow.uri, MAX_PATH_BYTES, out);
        if let Some(experiment) = &mlflow.experiment {
            let pointer = "/tracking/mlflow/experiment";
            check_text(pointer, experiment, MAX_LABEL_VALUE_BYTES, out);
        }
    }
}

fn check_secrets(spec: &JobSpec, out: &mut Problems) {
    check_items("/secrets", spec.secrets.len(), out);
    for (index, name) in spec.secrets.iter().enumerate() {
        let pointer = join("/secrets", &index.to_string());
        check_form(&pointer, name, is_env_name(name), ENV_NAME_FORM, out);
        check_reserved(&pointer, name, out);
        if spec.secrets.iter().take(index).any(|other| other == name) {
            let message = format!("{} is named twice", quoted(name));
            out.value(Code::CONFLICT, &pointer, message, Some("keep one".to_owned()));
        }
        if spec.env.contains_key(name) {
            let message = format!("{} is in `env` and in `secrets`", quoted(name));
            out.value(Code::CONFLICT, &pointer, message, Some("keep one".to_owned()));
        }
    }
}

fn check_label_map(pointer: &str, labels: &BTreeMap<String, String>, out: &mut Problems) {
    if labels.len() > MAX_LABELS {
        let message = format!("{} labels; at most {MAX_LABELS}", labels.len());
        out.key(Code::TOO_LARGE, pointer, message, None);
    }
    for (key, value) in labels {
        let pointer = join(pointer, key);
        if !is_label(key) {
            out.key(
                Code::BAD_VALUE,
                &pointer,
                format!("{} cannot be the key of a label", quoted(key)),
                Some(LABEL_FORM.to_owned()),
            );
        }
        check_nul(&pointer, value, out);
        check_bytes(&pointer, value.len(), MAX_LABEL_VALUE_BYTES, out);
    }
}

fn check_resources(resources: &Resources, out: &mut Problems) {
    check_count("/resources/nnodes", resources.nnodes, &NNODES, out);
    if let Some(most) = resources.nnodes_max {
        let least = resources.nnodes.max(*NNODES.start());
        check_count("/resources/nnodes", most, &(least..=*NNODES.end()), out);
    }
    check_count("/resources/gpus_per_node", resources.gpus_per_node, &GPUS_PER_NODE, out);
    if resources.total_gpus().is_none() {
        out.value(
            Code::TOO_LARGE,
            "/resources/gpus_per_node",
            "nnodes x gpus_per_node is too large to count",
            None,
        );
    }
    if let Some(cpus) = &resources.cpus_per_node {
        check_range("/resources/cpus_per_node", cpus, &CPUS_PER_NODE, f64::to_string, out);
    }
    if let Some(bytes) = &resources.memory_per_node {
        check_range(
            "/resources/memory_per_node",
            bytes,
            &(1..=MAX_MEMORY_PER_NODE),
            |bytes| units::write_size(*bytes),
            out,
        );
    }
    match resources.pools.as_slice() {
        [pool] => check_form("/resources/pool", pool, is_label(pool), LABEL_FORM, out),
        pools => check_names("/resources/pool", pools, out),
    }
    check_label_map("/resources/labels", &resources.labels, out);
    check_names("/resources/gpu", &resources.gpu, out);
    check_names("/resources/exclude_nodes", &resources.exclude_nodes, out);
}

fn check_names(pointer: &str, names: &[String], out: &mut Problems) {
    check_items(pointer, names.len(), out);
    for (index, name) in names.iter().enumerate() {
        let item = join(pointer, &index.to_string());
        check_form(&item, name, is_label(name), LABEL_FORM, out);
    }
}

fn check_entrypoint(entrypoint: &Entrypoint, out: &mut Problems) {
    match entrypoint {
        Entrypoint::Script(text) => {
            if text.trim().is_empty() {
                out.value(Code::BAD_VALUE, "/run", "`run` is empty", None);
            }
            check_nul("/run", text, out);
            check_bytes("/run", text.len(), MAX_ARGUMENT_BYTES, out);
        }
        Entrypoint::Argv(argv) => {
            if argv.first().is_none_or(String::is_empty) {
                out.value(
                    Code::BAD_VALUE,
                    "/command",
                    "`command` has no program",
                    Some("a list: the program, then its arguments".to_owned()),
                );
            }
            for (index, argument) in argv.iter().enumerate() {
                let pointer = format!("/command/{index}");
                check_nul(&pointer, argument, out);
                check_bytes(&pointer, argument.len(), MAX_ARGUMENT_BYTES, out);
            }
        }
        Entrypoint::Template(expansion) => check_expansion(expansion, out),
        Entrypoint::Nothing => {}
    }
}

/// The arguments that a template made, or that a job recorded.
fn check_expansion(expansion: &Expansion, out: &mut Problems) {
    let named = expansion.template.rsplit_once('@').is_some_and(|(name, version)| {
        is_label(name) && version.parse::<u32>().is_ok_and(|version| version > 0)
    });
    check_form("/template", &expansion.template, named, "NAME@VERSION", out);
    if expansion.arguments.first().is_none_or(|program| program.text().is_empty()) {
        out.value(Code::BAD_VALUE, "/expansion", "`expansion` has no program", None);
    }
    for (index, argument) in expansion.arguments.iter().enumerate() {
        let pointer = format!("/expansion/{index}");
        check_nul(&pointer, argument.text(), out);
        check_bytes(&pointer, argument.text().len(), MAX_ARGUMENT_BYTES, out);
        let unknown = argument.variables().find(|name| !TEMPLATE_VARIABLES.contains(name));
        if let Some(name) = unknown {
            out.value(
                Code::BAD_VALUE,
                &pointer,
                format!("{} is not filled in here", quoted(&format!("${name}"))),
                Some(format!("only ${}", TEMPLATE_VARIABLES.join(", $"))),
            );
        }
    }
}

/// The environment, and its size together with that of the entrypoint.
pub(crate) fn check_env(spec: &JobSpec, out: &mut Problems) {
    let (pointer, entrypoint) = match &spec.entrypoint {
        Entrypoint::Script(text) => ("/run", text.len()),
        Entrypoint::Argv(argv) => ("/command", argv.iter().map(|a| a.len() + 1).sum()),
        Entrypoint::Template(expansion) => {
            ("/template", expansion.arguments.iter().map(|a| a.text().len() + 1).sum())
        }
        Entrypoint::Nothing => ("/env", 0),
    };
    let mut total = entrypoint;
    for (name, value) in &spec.env {
        let pointer = join("/env", name);
        if !is_env_name(name) {
            out.key(
                Code::BAD_VALUE,
                &pointer,
                format!("{} cannot be the name of a variable", quoted(name)),
                Some(ENV_NAME_FORM.to_owned()),
            );
        }
        check_reserved(&pointer, name, out);
        let value = value.as_deref().unwrap_or_default();
        let bytes = name.len() + 1 + value.len();
        check_nul(&pointer, value, out);
        check_bytes(&pointer, bytes, MAX_ARGUMENT_BYTES, out);
        total += bytes;
    }
    if total > MAX_ENTRYPOINT_AND_ENV_BYTES {
        out.key(
            Code::TOO_LARGE,
            pointer,
            format!(
                "the entrypoint and `env` have {total} bytes together; at most \
                 {MAX_ENTRYPOINT_AND_ENV_BYTES}"
            ),
            Some("put the script in a file on a shared path".to_owned()),
        );
    }
}

fn check_reserved(pointer: &str, name: &str, out: &mut Problems) {
    if let Some(prefix) = RESERVED_ENV.iter().find(|p| name.starts_with(**p)) {
        out.key(
            Code::BAD_VALUE,
            pointer,
            format!("{} is reserved", quoted(name)),
            Some(format!("Gangline itself sets the variables {prefix}*")),
        );
    }
}

fn check_checkpoint(checkpoint: &Checkpoint, entrypoint: &Entrypoint, out: &mut Problems) {
    for (pointer, value) in
        [("/checkpoint/every", checkpoint.every), ("/checkpoint/keep", checkpoint.keep)]
    {
        let Some(value) = value else {
            continue;
        };
        check_count(pointer, value, &CHECKPOINT_COUNT, out);
        // Without a template the agents see to what is kept.
        if pointer != "/checkpoint/keep" && !matches!(entrypoint, Entrypoint::Template(_)) {
            let message = format!("`{}` without a `template` is not built yet", dotted(pointer));
            let hint = Some("pass it to your program yourself".to_owned());
            out.key(Code::NOT_YET, pointer, message, hint);
        }
    }
    let pointer = "/checkpoint/dir";
    if let Some(dir) = &checkpoint.dir {
        check_path(pointer, dir, out);
    }
    if let Err(variable) = checkpoint.expand_dir(|_| Some(String::new())) {
        out.value(
            Code::BAD_VALUE,
            pointer,
            format!("{} is not filled in here", quoted(&format!("${variable}"))),
            Some(format!("only ${}", CHECKPOINT_VARIABLES.join(", $"))),
        );
    }
}
