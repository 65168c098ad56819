//! The validated job spec: what the coordinator stores and places, and its canonical text.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::arguments::Argument;
use crate::code::{CodeSpec, Reward};
use crate::disconnect::OnDisconnect;
use crate::error::{Code, Problems, SpecErrors};
use crate::hang::Hang;
use crate::logs::Logs;
use crate::nodes::Topology;
use crate::queue::Queue;
use crate::retry::{LogPolicy, Retry};
use crate::tracking::Tracking;
use crate::tree::join;
use crate::variable;

/// How long the members of a gang may take to join when the spec does not say.
pub const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Time between SIGTERM and SIGKILL when the spec does not say.
pub const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// The variables that may stand in `checkpoint.dir`. The attempt is not one of them: the
/// directory must be the same over retries, or a retry could not resume.
pub const CHECKPOINT_VARIABLES: [&str; 3] =
    ["GANGLINE_JOB_ID", "GANGLINE_NAME", "GANGLINE_PROJECT"];

/// A job as a user asked for it. The fields are public so that a program can build one; such a
/// spec goes through [`JobSpec::validate`], which makes the same checks as [`crate::parse`].
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// What the spec describes.
    pub kind: Kind,
    /// `^[a-z0-9][a-z0-9-]{0,62}$`; `None` when the sender is to choose one.
    pub name: Option<String>,
    /// Accounting unit, in the form of a name; `None` for the sender's default project.
    pub project: Option<String>,
    /// Name or id of the standing cluster that the job runs on; `None` for a gang of its own.
    pub cluster: Option<String>,
    /// Free text.
    pub description: Option<String>,
    /// Free key and value pairs.
    pub labels: BTreeMap<String, String>,
    /// What every node must give.
    pub resources: Resources,
    /// Who starts the processes of the gang.
    pub launcher: Launcher,
    /// Absolute path in which the entrypoint starts.
    pub workdir: Option<String>,
    /// Environment of the entrypoint. `None` as a value means "from the sender's shell"; see
    /// [`resolve_env`].
    pub env: BTreeMap<String, Option<String>>,
    /// What runs.
    pub entrypoint: Entrypoint,
    /// Time between SIGTERM and SIGKILL.
    pub grace_period: Duration,
    /// Where training checkpoints go.
    pub checkpoint: Checkpoint,
    /// Where training metrics go.
    pub tracking: Tracking,
    /// Longest time in the state RUNNING; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Its place in the queue, and what it waits for there.
    pub queue: Queue,
    /// Time that it runs at least before it may make room for another.
    pub min_runtime: Option<Duration>,
    /// What leads to another attempt after a failure.
    pub retry: Retry,
    /// What lines of the log say about a failure.
    pub log_policies: Vec<LogPolicy>,
    /// What the gang does on a node that loses contact.
    pub on_disconnect: OnDisconnect,
    /// What is done when it goes on no more.
    pub hang: Hang,
    /// How long the gang is kept up for a person when the last attempt has failed.
    pub hold_on_failure: Option<Duration>,
    /// Where the code comes from; `None` when it is on the nodes.
    pub code: Option<CodeSpec>,
    /// The reward function of an RL job.
    pub reward: Option<Reward>,
    /// Names of secrets of the project that the entrypoint gets as environment.
    pub secrets: Vec<String>,
    /// What is kept as its logs.
    pub logs: Logs,
}

/// What a spec describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A job with a gang of its own.
    #[default]
    Job,
    /// A standing Ray cluster; it has no entrypoint.
    Cluster {
        /// Time without a job after which the cluster ends; `None` for never.
        idle_stop: Option<Duration>,
    },
}

impl Kind {
    /// The word of the spec.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Cluster { .. } => "cluster",
        }
    }
}

/// The size of a gang and of its share of each node.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    /// Number of nodes, at least 1; the least of an elastic gang.
    pub nnodes: u32,
    /// Most nodes of an elastic gang, at least `nnodes`; `None` for exactly `nnodes`.
    pub nnodes_max: Option<u32>,
    /// Whole GPUs on each node; 0 is a CPU job.
    pub gpus_per_node: u32,
    /// CPUs on each node; `None` for the default share.
    pub cpus_per_node: Option<f64>,
    /// Bytes of memory on each node; `None` for the default share.
    pub memory_per_node: Option<u64>,
    /// The pools to place in, any of them; empty for every pool.
    pub pools: Vec<String>,
    /// Labels that a node must have.
    pub labels: BTreeMap<String, String>,
    /// GPU models of which any will do; empty for every model.
    pub gpu: Vec<String>,
    /// Nodes not to place on.
    pub exclude_nodes: Vec<String>,
    /// Whether the gang shares its nodes with no other; `None` for yes where it takes all GPUs of a
    /// node.
    pub exclusive: Option<bool>,
    /// What its nodes should have in common; `None` for nothing.
    pub topology: Option<Topology>,
}

impl Resources {
    /// The most nodes that the gang may have.
    #[must_use]
    pub fn most_nodes(&self) -> u32 {
        self.nnodes_max.unwrap_or(self.nnodes)
    }

    /// The number of nodes as the spec writes it: `4`, or `2..4`.
    #[must_use]
    pub fn nnodes_text(&self) -> String {
        match self.nnodes_max {
            Some(most) => format!("{}..{most}", self.nnodes),
            None => self.nnodes.to_string(),
        }
    }

    /// The most GPUs of the whole gang; `None` when the product does not fit, which a validated spec
    /// rules out.
    #[must_use]
    pub fn total_gpus(&self) -> Option<u32> {
        self.most_nodes().checked_mul(self.gpus_per_node)
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            nnodes: 1,
            nnodes_max: None,
            gpus_per_node: 0,
            cpus_per_node: None,
            memory_per_node: None,
            pools: Vec::new(),
            labels: BTreeMap::new(),
            gpu: Vec::new(),
            exclude_nodes: Vec::new(),
            exclusive: None,
            topology: None,
        }
    }
}

/// Who starts the processes of the gang, and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// `launcher.type` of the spec.
    pub kind: LauncherKind,
    /// All members joined within this time, or the attempt fails.
    pub start_timeout: Duration,
}

impl Default for Launcher {
    fn default() -> Self {
        Self { kind: LauncherKind::Ray, start_timeout: DEFAULT_START_TIMEOUT }
    }
}

/// The built launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LauncherKind {
    /// A Ray cluster over the nodes; the entrypoint is one Ray job in it.
    Ray,
    /// The entrypoint on every node, with the address of rank 0 in its environment.
    Command,
    /// The same as [`LauncherKind::Command`], under the name that its users look for.
    Torchrun,
}

impl LauncherKind {
    /// All launchers, in the order of [`LauncherKind::WORDS`].
    pub const ALL: [Self; 3] = [Self::Ray, Self::Torchrun, Self::Command];
    /// The words of the spec.
    pub const WORDS: [&'static str; 3] = ["ray", "torchrun", "command"];

    /// Whether a Ray cluster is started; otherwise the entrypoint runs on every node.
    #[must_use]
    pub const fn starts_ray(self) -> bool {
        matches!(self, Self::Ray)
    }

    /// The word of the spec.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ray => "ray",
            Self::Command => "command",
            Self::Torchrun => "torchrun",
        }
    }
}

/// What runs: the field `run`, `command` or `template`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrypoint {
    /// A text for `/bin/sh -c`.
    Script(String),
    /// A program and its arguments, which arrive as they are: no shell sees them.
    Argv(Vec<String>),
    /// What a template made.
    Template(Expansion),
    /// Nothing: a standing cluster.
    Nothing,
}

/// A template with the values of a spec, and the arguments that they gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// Name and version of the template, such as `verl/grpo@1`.
    pub template: String,
    /// The params as the spec gives them, for people; what counts is `arguments`.
    pub params: serde_json::Value,
    /// What the spec puts behind the template's own arguments; part of `arguments` too.
    pub overrides: Vec<String>,
    /// The program and its arguments, with the variables of the template's text not filled in.
    pub arguments: Vec<Argument>,
}

impl Entrypoint {
    /// The argument vector to execute; that of a template with its variables not filled in, see
    /// [`Entrypoint::arguments`].
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        self.arguments().iter().map(|argument| argument.text().to_owned()).collect()
    }

    /// The argument vector to execute, once [`crate::expand_variables`] has filled in the
    /// variables of a template's text.
    #[must_use]
    pub fn arguments(&self) -> Vec<Argument> {
        let literal = |text: &String| Argument::Literal(text.clone());
        match self {
            Self::Script(text) => {
                ["/bin/sh", "-c", text].map(|text| Argument::Literal(text.to_owned())).to_vec()
            }
            Self::Argv(argv) => argv.iter().map(literal).collect(),
            Self::Template(expansion) => expansion.arguments.clone(),
            Self::Nothing => Vec::new(),
        }
    }
}

/// Where training checkpoints go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Absolute path; may hold [`CHECKPOINT_VARIABLES`], see [`Checkpoint::expand_dir`].
    pub dir: Option<String>,
    /// Steps between two checkpoints, at least 1; a template passes it on. `None` for the
    /// template's own.
    pub every: Option<u32>,
    /// Checkpoints to keep, at least 1; a template passes it on, without one agents remove older
    /// ones. `None` for the template's own, or for all.
    pub keep: Option<u32>,
    /// Whether agents copy each complete one, encrypted, to where their configuration says.
    pub encrypted_copy: bool,
}

impl Checkpoint {
    /// The directory with its variables filled in by `lookup`; `Ok(None)` when none is asked.
    ///
    /// # Errors
    /// The name of a variable that is not of [`CHECKPOINT_VARIABLES`] or that `lookup` lacks.
    pub fn expand_dir(
        &self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<String>, String> {
        let Some(dir) = &self.dir else {
            return Ok(None);
        };
        let value = |name: &str| {
            let known = Some(name).filter(|name| CHECKPOINT_VARIABLES.contains(name));
            known.and_then(&lookup).ok_or_else(|| name.to_owned())
        };
        variable::replace(dir, value).map(Some)
    }
}

impl JobSpec {
    /// A spec with all defaults that runs `argv` on one node without GPUs.
    #[must_use]
    pub fn for_command(argv: Vec<String>) -> Self {
        Self {
            kind: Kind::Job,
            name: None,
            project: None,
            cluster: None,
            description: None,
            labels: BTreeMap::new(),
            resources: Resources::default(),
            launcher: Launcher::default(),
            workdir: None,
            env: BTreeMap::new(),
            entrypoint: Entrypoint::Argv(argv),
            grace_period: DEFAULT_GRACE_PERIOD,
            checkpoint: Checkpoint::default(),
            tracking: Tracking::default(),
            timeout: None,
            queue: Queue::default(),
            min_runtime: None,
            retry: Retry::default(),
            log_policies: Vec::new(),
            on_disconnect: OnDisconnect::default(),
            hang: Hang::default(),
            hold_on_failure: None,
            code: None,
            reward: None,
            secrets: Vec::new(),
            logs: Logs::default(),
        }
    }

    /// Make the checks of [`crate::parse`] on a spec that a program built.
    ///
    /// # Errors
    /// Every problem, with its pointer and without a position.
    pub fn validate(&self) -> Result<(), SpecErrors> {
        let mut problems = Problems::default();
        crate::validate::check(self, &mut problems);
        problems.finish(None)
    }

    /// The environment entries that have a value.
    pub fn resolved_env(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?)))
    }
}

/// Fill every environment entry without a value from `lookup`, the shell of the sender.
///
/// # Errors
/// E0104 for each entry that `lookup` lacks; the others are filled all the same.
pub fn resolve_env(
    spec: &mut JobSpec,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<(), SpecErrors> {
    let mut problems = Problems::default();
    for (name, value) in &mut spec.env {
        if value.is_some() {
            continue;
        }
        *value = lookup(name);
        if value.is_none() {
            problems.key(
                Code::MISSING,
                &join("/env", name),
                format!("`{name}` has no value in the spec and is not set in your shell"),
                Some(format!("export {name}, or give it a value")),
            );
        }
    }
    // What came from the shell has to pass the checks too: a NUL, or the size of all together.
    crate::validate::check_env(spec, &mut problems);
    problems.finish(None)
}
