//! The validated job spec: what the coordinator stores and places, and its canonical text.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::error::{Code, Problems, SpecErrors};
use crate::tree::join;
use crate::units;

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
    /// `^[a-z0-9][a-z0-9-]{0,62}$`; `None` when the sender is to choose one.
    pub name: Option<String>,
    /// Accounting unit, in the form of a name; `None` for the sender's default project.
    pub project: Option<String>,
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
}

/// The size of a gang and of its share of each node.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    /// Number of nodes, at least 1.
    pub nnodes: u32,
    /// Whole GPUs on each node; 0 is a CPU job.
    pub gpus_per_node: u32,
    /// CPUs on each node; `None` for the default share.
    pub cpus_per_node: Option<f64>,
    /// Bytes of memory on each node; `None` for the default share.
    pub memory_per_node: Option<u64>,
    /// The pool to place in; `None` for any.
    pub pool: Option<String>,
}

impl Resources {
    /// GPUs of the whole gang; `None` when the product does not fit, which a validated spec
    /// rules out.
    #[must_use]
    pub fn total_gpus(&self) -> Option<u32> {
        self.nnodes.checked_mul(self.gpus_per_node)
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self { nnodes: 1, gpus_per_node: 0, cpus_per_node: None, memory_per_node: None, pool: None }
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
    /// The entrypoint on every node.
    Command,
}

impl LauncherKind {
    /// Both launchers, in the order of messages.
    pub const ALL: [Self; 2] = [Self::Ray, Self::Command];

    /// The word of the spec.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ray => "ray",
            Self::Command => "command",
        }
    }
}

/// What runs: the field `run` or the field `command`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrypoint {
    /// A text for `/bin/sh -c`.
    Script(String),
    /// A program and its arguments, which arrive as they are: no shell sees them.
    Argv(Vec<String>),
}

impl Entrypoint {
    /// The argument vector to execute.
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Script(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text.clone()],
            Self::Argv(argv) => argv.clone(),
        }
    }
}

/// Where training checkpoints go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Absolute path; may hold [`CHECKPOINT_VARIABLES`], see [`Checkpoint::expand_dir`].
    pub dir: Option<String>,
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
        let mut out = String::new();
        let mut rest = dir.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            let (name, tail) = variable(after);
            let value =
                Some(name).filter(|name| CHECKPOINT_VARIABLES.contains(name)).and_then(&lookup);
            out.push_str(&value.ok_or_else(|| name.to_owned())?);
            rest = tail;
        }
        out.push_str(rest);
        Ok(Some(out))
    }
}

/// The name after a `$`, as `NAME` or `{NAME}`, and what follows it.
fn variable(after_dollar: &str) -> (&str, &str) {
    let braced = after_dollar.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    if let Some(found) = braced {
        return found;
    }
    let end = after_dollar
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(after_dollar.len());
    after_dollar.split_at_checked(end).unwrap_or(("", ""))
}

impl JobSpec {
    /// A spec with all defaults that runs `argv` on one node without GPUs.
    #[must_use]
    pub fn for_command(argv: Vec<String>) -> Self {
        Self {
            name: None,
            project: None,
            description: None,
            labels: BTreeMap::new(),
            resources: Resources::default(),
            launcher: Launcher::default(),
            workdir: None,
            env: BTreeMap::new(),
            entrypoint: Entrypoint::Argv(argv),
            grace_period: DEFAULT_GRACE_PERIOD,
            checkpoint: Checkpoint::default(),
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

    /// The spec as one line of JSON: keys in alphabetical order, defaults written out, absent
    /// values left out. [`crate::parse`] of the text gives this spec again.
    #[must_use]
    pub fn canonical_json(&self) -> String {
        // Keys are put in alphabetical order, so that the order does not hang on the kind of
        // map that serde_json was built with.
        let mut top = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                top.insert(key.to_owned(), value);
            }
        };
        let (command, run) = match &self.entrypoint {
            Entrypoint::Argv(argv) => (Some(json!(argv)), None),
            Entrypoint::Script(text) => (None, Some(json!(text))),
        };
        let checkpoint = self.checkpoint.dir.as_ref();
        put("checkpoint", checkpoint.map(|dir| json!({ "dir": dir })));
        put("command", command);
        put("description", self.description.as_ref().map(|v| json!(v)));
        put("env", (!self.env.is_empty()).then(|| json!(self.env)));
        let grace = units::write_duration(self.grace_period);
        put("grace_period", Some(json!(grace)));
        put("kind", Some(json!("job")));
        put("labels", (!self.labels.is_empty()).then(|| json!(self.labels)));
        put("launcher", Some(self.launcher.canonical()));
        put("name", self.name.as_ref().map(|v| json!(v)));
        put("project", self.project.as_ref().map(|v| json!(v)));
        put("resources", Some(self.resources.canonical()));
        put("run", run);
        put("version", Some(json!(1)));
        put("workdir", self.workdir.as_ref().map(|v| json!(v)));
        escape_for_yaml(&Value::Object(top).to_string())
    }
}

impl Launcher {
    fn canonical(&self) -> Value {
        json!({
            "start_timeout": units::write_duration(self.start_timeout),
            "type": self.kind.word(),
        })
    }
}

impl Resources {
    fn canonical(&self) -> Value {
        let mut out = Map::new();
        if let Some(cpus) = self.cpus_per_node {
            out.insert("cpus_per_node".to_owned(), json!(cpus));
        }
        out.insert("gpus_per_node".to_owned(), json!(self.gpus_per_node));
        if let Some(bytes) = self.memory_per_node {
            let size = units::write_size(bytes);
            out.insert("memory_per_node".to_owned(), json!(size));
        }
        out.insert("nnodes".to_owned(), json!(self.nnodes));
        if let Some(pool) = &self.pool {
            out.insert("pool".to_owned(), json!(pool));
        }
        Value::Object(out)
    }
}

/// JSON lets some characters stand in a string that YAML wants escaped. They occur only inside
/// strings, so they can be escaped in the finished text.
fn escape_for_yaml(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        let plain = matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}'
            | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
            && !matches!(c, '\u{2028}' | '\u{2029}');
        if plain {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
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
