//! The one table of fields. A field that a coordinator begins to act on changes its `later`
//! here to `built`, and nothing else decides what is refused.

use crate::code::GIT_WORDS;
use crate::disconnect::DISCONNECT_WORDS;
use crate::fields::{Field, Section, Shape, Status};
use crate::hang::HangAction;
use crate::job::LauncherKind;
use crate::nodes::Topology;
use crate::priority::PRIORITY_WORDS;
use crate::retry::{self, LogAction, RetryEvent};
use crate::tracking::WandbMode;
use crate::validate;

const fn built(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, status: Status::Built, shape, default: None, required: false, about }
}

const fn later(name: &'static str) -> Field {
    planned(name, None)
}

const fn instead(name: &'static str, hint: &'static str) -> Field {
    planned(name, Some(hint))
}

const fn planned(name: &'static str, hint: Option<&'static str>) -> Field {
    let status = Status::NotYet(hint);
    Field { name, status, shape: Shape::Open, default: None, required: false, about: "" }
}

/// Kinds of spec that run.
pub(crate) const DELIVERED_KINDS: [&str; 2] = ["job", "cluster"];
/// All kinds: those that run come first.
pub(crate) const KINDS: [&str; 5] = ["job", "cluster", "serve", "notebook", "pipeline"];

pub(crate) static TOP: Section = Section {
    name: "",
    fields: &[
        built("version", Shape::Count(1..=1), "Version of the spec.").default("1"),
        built("kind", Shape::Words(&DELIVERED_KINDS), "What this text describes.")
            .default("\"job\""),
        built("name", Shape::Name, "Name of the job; when absent, the file's or the program's."),
        built("project", Shape::Name, "Unit of accounting; when absent, the sender's."),
        built("description", Shape::Text, "Free text for people."),
        built("labels", Shape::Map(&Shape::Text), "Free keys and values."),
        built(
            "cluster",
            Shape::Text,
            "Name or id of a standing cluster of the project that the job runs on.",
        ),
        built("resources", Shape::Section(&RESOURCES), "The gang and its share of each node."),
        built("launcher", Shape::Section(&LAUNCHER), "Who starts the processes of the gang."),
        built("workdir", Shape::Path, "Directory on the nodes in which the entrypoint starts."),
        built(
            "env",
            Shape::Map(&Shape::Optional(&Shape::Text)),
            "Environment of the entrypoint; an empty value is taken from the sender's shell.",
        ),
        built("run", Shape::Script, "A script for /bin/sh."),
        built(
            "command",
            Shape::List(&Shape::Text),
            "A program and its arguments, which no shell sees.",
        ),
        built(
            "template",
            Shape::Template,
            "A template that makes the entrypoint: NAME, or NAME@VERSION.",
        ),
        built("params", Shape::Params, "The values that the template asks for."),
        built(
            "overrides",
            Shape::List(&Shape::Text),
            "Arguments put behind those of the template, unchanged; the last of a key wins.",
        ),
        built(
            "expansion",
            Shape::List(&Shape::OneOf(&[Shape::Text, Shape::Section(&ARGUMENT)])),
            "Written by Gangline when a job is submitted: the arguments that the template gave, \
             so that a retry runs the same ones.",
        ),
        built(
            "grace_period",
            Shape::Duration,
            "Time between SIGTERM and SIGKILL when the job is stopped.",
        )
        .default("\"30s\""),
        built("checkpoint", Shape::Section(&CHECKPOINT), "Training checkpoints."),
        built("tracking", Shape::Section(&TRACKING), "Where training metrics go."),
        built("queue", Shape::Section(&QUEUE), "The place of the job in the queue."),
        built("timeout", Shape::Duration, "Longest time in the state RUNNING."),
        later("idle_policy"),
        built("code", Shape::Section(&CODE), "The code that the job runs."),
        instead("files", "put the files on a shared path"),
        later("mounts_required"),
        built(
            "secrets",
            Shape::List(&Shape::Text),
            "Names of secrets of the project that the job gets as environment.",
        ),
        instead("setup", "put these lines at the start of `run`"),
        later("preflight"),
        built("retry", Shape::Section(&RETRY), "What leads to another attempt after a failure."),
        built(
            "log_policies",
            Shape::List(&Shape::Section(&LOG_POLICY)),
            "What lines of the log say about a failure; the first entry that fits a line counts.",
        ),
        built("hang", Shape::Section(&HANG), "What is done when the training goes on no more."),
        later("notify"),
        later("ports"),
        built(
            "min_runtime",
            Shape::Duration,
            "Time that the job runs at least before it may make room for another.",
        ),
        built(
            "on_disconnect",
            Shape::OneOf(&[Shape::Words(&DISCONNECT_WORDS), Shape::Section(&ON_DISCONNECT)]),
            "What a gang does on a node that loses contact. fence: it stops there after 60 s in \
             which it saw its gang incomplete as well. keep: it never stops by itself.",
        )
        .default("\"fence\""),
        built(
            "hold_on_failure",
            Shape::Duration,
            "Keep what is left of the gang up for a person for this long when the last attempt has \
             failed; at most 24 h.",
        ),
        built("logs", Shape::Section(&LOGS), "Which files are logs, and how much is kept."),
        built("reward", Shape::Section(&REWARD), "The reward function of an RL job."),
        instead("python", "call the interpreter by its path in `run`"),
        later("compat_env"),
        later("groups"),
        built("idle_stop", Shape::Duration, "Of a cluster: end it after this time without a job."),
        later("replicas"),
        later("scale"),
        later("port"),
        later("health"),
        later("ide"),
        later("vars"),
        later("steps"),
        later("on_failure"),
        later("schedule"),
        later("tz"),
        later("needs"),
        later("matrix"),
        later("max_parallel"),
        later("outputs"),
    ],
};

pub(crate) static RESOURCES: Section = Section {
    name: "resources",
    fields: &[
        built(
            "nnodes",
            Shape::OneOf(&[Shape::Count(validate::NNODES), Shape::CountRange]),
            "Nodes of the gang; `2..4` is an elastic gang, which starts with at least 2.",
        )
        .default("1"),
        built(
            "gpus_per_node",
            Shape::Count(validate::GPUS_PER_NODE),
            "Whole GPUs on each node; 0 is a CPU job.",
        )
        .default("0"),
        built(
            "cpus_per_node",
            Shape::Number(validate::CPUS_PER_NODE),
            "CPUs on each node; when absent, the share of the GPUs.",
        ),
        built(
            "memory_per_node",
            Shape::Size,
            "Memory on each node; when absent, the share of the GPUs.",
        ),
        built(
            "pool",
            Shape::OneOf(&[Shape::Pool, Shape::List(&Shape::Pool)]),
            "The pool to place in, or pools of which any will do; when absent, any.",
        ),
        built(
            "gpu",
            Shape::OneOf(&[Shape::GpuModel, Shape::List(&Shape::GpuModel)]),
            "GPU models, any of which will do.",
        ),
        built("labels", Shape::Map(&Shape::Text), "Labels that a node must have."),
        built("exclude_nodes", Shape::List(&Shape::Text), "Nodes not to place on."),
        built(
            "topology",
            Shape::Words(&Topology::WORDS),
            "What the nodes should have in common, by their label of this name, when that costs no \
             waiting.",
        )
        .default("\"none\""),
        later("shm"),
        later("disk"),
        built(
            "exclusive",
            Shape::Bool,
            "Whole nodes, shared with no other gang; when absent, yes where all GPUs of a node are \
             asked.",
        ),
        later("ray_resources"),
    ],
};

pub(crate) static LAUNCHER: Section = Section {
    name: "launcher",
    fields: &[
        built(
            "type",
            Shape::Words(&LauncherKind::WORDS),
            "ray: the entrypoint is a Ray job. torchrun, command: it runs on every node. A \
             template brings its own.",
        )
        .default("\"ray\""),
        built("start_timeout", Shape::Duration, "Longest time for all nodes to join.")
            .default("\"5m\""),
        later("driver"),
        later("dashboard"),
        later("head"),
        later("network"),
    ],
};

pub(crate) static CHECKPOINT: Section = Section {
    name: "checkpoint",
    fields: &[
        built("dir", Shape::Path, "Directory of training checkpoints, the same over retries."),
        built(
            "every",
            Shape::Count(validate::CHECKPOINT_COUNT),
            "Steps between two checkpoints; needs a template.",
        ),
        built(
            "keep",
            Shape::Count(validate::CHECKPOINT_COUNT),
            "Checkpoints to keep; a template passes it on, else older ones are removed.",
        ),
        later("on_deadline"),
        later("upload"),
        built(
            "encrypted_copy",
            Shape::Bool,
            "Copy each complete one, encrypted, to where the agent's configuration says.",
        )
        .default("false"),
    ],
};

pub(crate) static TRACKING: Section = Section {
    name: "tracking",
    fields: &[
        built("wandb", Shape::Section(&WANDB), "Weights & Biases."),
        built("tensorboard", Shape::Bool, "Write TensorBoard events.").default("false"),
        built("mlflow", Shape::Section(&MLFLOW), "MLflow."),
        instead("metrics", "leave it out: step metrics are found without it"),
    ],
};

pub(crate) static WANDB: Section = Section {
    name: "tracking.wandb",
    fields: &[
        built("project", Shape::Text, "Project of the run; when absent, the job's."),
        built(
            "mode",
            Shape::Words(&WandbMode::WORDS),
            "auto: offline, as nobody looks yet whether a node reaches the server.",
        )
        .default("\"auto\""),
    ],
};

pub(crate) static MLFLOW: Section = Section {
    name: "tracking.mlflow",
    fields: &[
        built("uri", Shape::Text, "Tracking server, such as http://mlflow:5000.").required(),
        built("experiment", Shape::Text, "Experiment of the run; when absent, the job's project."),
    ],
};

pub(crate) static QUEUE: Section = Section {
    name: "queue",
    fields: &[
        built(
            "priority",
            Shape::OneOf(&[Shape::Words(&PRIORITY_WORDS), Shape::Count(validate::PRIORITY)]),
            "low (25), normal (50), high (75), urgent (100), or a number; the higher goes first. A \
             project has a highest one.",
        )
        .default("\"normal\""),
        built(
            "preemptible",
            Shape::Bool,
            "Whether the job may be sent back to the queue for one of higher priority.",
        )
        .default("false"),
        built(
            "after",
            Shape::List(&Shape::Text),
            "Jobs that must have SUCCEEDED before this one starts: `job:` and the name or id of a \
             job that was submitted before. When one ends otherwise, this one FAILED.",
        ),
        built(
            "not_before",
            Shape::Moment,
            "Does not start before this time, such as 2026-12-01T22:00:00+08:00.",
        ),
        built("hold", Shape::Bool, "Does not start until somebody releases it.").default("false"),
        built(
            "max_wait",
            Shape::Duration,
            "Longest time in the queue in which the job could have started; then it FAILED. Time \
             held, before `not_before` or behind `after` does not count.",
        ),
    ],
};

pub(crate) static RETRY: Section = Section {
    name: "retry",
    fields: &[
        built(
            "max",
            Shape::Count(retry::RETRIES),
            "Attempts after the first; those that a lost node or Gangline itself ended do not count.",
        )
        .default("3"),
        built(
            "on_events",
            Shape::List(&Shape::Words(&RetryEvent::WORDS)),
            "The causes that lead to another attempt; when absent, all of these words.",
        ),
        built("backoff", Shape::Section(&BACKOFF), "The pause before an attempt."),
        built(
            "exclude_failed_nodes",
            Shape::Bool,
            "Whether nodes that failed are left out of later attempts.",
        )
        .default("true"),
    ],
};

pub(crate) static BACKOFF: Section = Section {
    name: "retry.backoff",
    fields: &[
        built("initial", Shape::Duration, "The first pause: the first retry has none.")
            .default("\"30s\""),
        built("factor", Shape::Number(retry::FACTOR), "What each further pause is longer by.")
            .default("2.0"),
        built("max", Shape::Duration, "The longest pause.").default("\"10m\""),
    ],
};

pub(crate) static LOG_POLICY: Section = Section {
    name: "log_policies",
    fields: &[
        built("pattern", Shape::Text, "A regular expression that a line of the log fits.")
            .required(),
        built(
            "action",
            Shape::Words(&LogAction::WORDS),
            "retry: another attempt. exclude_node_and_retry: without the node that wrote the line. \
             fail_no_retry: the end of the job.",
        )
        .required(),
        built("diagnose", Shape::Text, "The category that the failure is then shown under."),
    ],
};

pub(crate) static HANG: Section = Section {
    name: "hang",
    fields: &[
        built(
            "warn_after",
            Shape::Duration,
            "Warn when no step and no line has come for this long and for five of its steps, and \
             its GPUs draw a flat line.",
        )
        .default("\"4m\""),
        built("after", Shape::Duration, "Do what `action` says after this long.")
            .default("\"20m\""),
        built(
            "action",
            Shape::Words(&HangAction::WORDS),
            "notify: an event. capture: the agents look where every process stands; the event names \
             who is not where the others are, and the rest is kept with the job. restart: the same, \
             then the attempt ends as failed.",
        )
        .default("\"notify\""),
    ],
};

/// `on_disconnect` with a time.
pub(crate) static ON_DISCONNECT: Section = Section {
    name: "on_disconnect",
    fields: &[built(
        "stop_after",
        Shape::Duration,
        "It stops this long after the last contact, whole or not.",
    )
    .required()],
};

pub(crate) static CODE: Section = Section {
    name: "code",
    fields: &[
        built(
            "snapshot",
            Shape::Text,
            "A directory beside the spec, which `gangline submit` sends by content; or the name \
             that it got, `blake3:` and 64 digits.",
        ),
        built(
            "path",
            Shape::Path,
            "A directory that all nodes have: the working directory, and first in PYTHONPATH.",
        ),
        built("zip", Shape::Text, "An archive beside the spec, which `gangline submit` sends."),
        built(
            "include",
            Shape::List(&Shape::Text),
            "Patterns of ignored files to send all the same.",
        ),
        built("max_size", Shape::Size, "Refuse to send more than this.").default("\"200MiB\""),
        built("git", Shape::Words(&GIT_WORDS), "Record the commit of the snapshot.")
            .default("\"auto\""),
        built(
            "commit",
            Shape::Text,
            "Written by Gangline: the commit of the snapshot, and `+changed` when files differed.",
        ),
    ],
};

pub(crate) static REWARD: Section = Section {
    name: "reward",
    fields: &[
        built(
            "path",
            Shape::Text,
            "Python file of the function, absolute or relative to the code.",
        )
        .required(),
        built("symbol", Shape::Text, "Name of the function.").default("\"compute_score\""),
    ],
};

pub(crate) static LOGS: Section = Section {
    name: "logs",
    fields: &[
        built(
            "files",
            Shape::List(&Shape::Text),
            "Patterns of further files, below the working directory or the job's directory.",
        ),
        built(
            "max_bytes",
            Shape::Size,
            "Most bytes of all its logs, in equal parts for its nodes; when absent, 16 GiB a node.",
        ),
    ],
};

/// An argument of a recorded expansion in which variables are filled in.
pub(crate) static ARGUMENT: Section = Section {
    name: "expansion.fill",
    fields: &[
        built("fill", Shape::Text, "A text with variables that the agent fills in.").required()
    ],
};

pub(crate) static SECTIONS: [&Section; 17] = [
    &TOP,
    &RESOURCES,
    &LAUNCHER,
    &CHECKPOINT,
    &TRACKING,
    &WANDB,
    &MLFLOW,
    &QUEUE,
    &RETRY,
    &BACKOFF,
    &LOG_POLICY,
    &HANG,
    &ON_DISCONNECT,
    &CODE,
    &REWARD,
    &LOGS,
    &ARGUMENT,
];
