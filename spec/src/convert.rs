//! From the tree to the typed spec: which fields there are, and whether each value has the right
//! type. Ranges and forms are checked afterwards, in `validate`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Code, Problems, quoted};
use crate::fields::{self, Section, Status};
use crate::job::{Checkpoint, Entrypoint, JobSpec, Launcher, LauncherKind, Resources};
use crate::tree::{Entry, Node, Scalar, ScalarKind, Value, join};
use crate::units;
use crate::validate::{self, dotted};

/// The only version of the spec that there is.
const VERSION: i128 = 1;

/// Whether an environment entry may be left to the sender's shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenEnv {
    Allowed,
    Refused,
}

/// Read the spec of `root`. Where something is wrong it is reported to `out` and the default
/// stands in its place, so that the rest is read too; the caller drops such a spec.
pub(crate) fn job_spec(root: &Node, open_env: OpenEnv, out: &mut Problems) -> JobSpec {
    let mut spec = JobSpec::for_command(vec!["true".to_owned()]);
    if matches!(root.value, Value::Null) {
        let hint = "a spec has at least `run` or `command`";
        let message = "the spec is empty";
        out.value(Code::MISSING, "", message, Some(hint.to_owned()));
        return spec;
    }
    if !kind_is_job(root, out) {
        // The fields of the other kinds are others: nothing more can be said about this text.
        return spec;
    }
    let Some(top) = Reader::open(root, &fields::TOP, "", out) else {
        return spec;
    };
    if let Some(version) = top.get("version") {
        version.version(out);
    }
    spec.name = top.get("name").and_then(|cell| cell.text(out));
    spec.project = top.get("project").and_then(|cell| cell.text(out));
    spec.description = top.get("description").and_then(|cell| cell.text(out));
    if let Some(labels) = top.get("labels") {
        spec.labels = labels.labels(out);
    }
    if let Some(resources) = top.section("resources", &fields::RESOURCES, out) {
        spec.resources = read_resources(&resources, out);
    }
    if let Some(launcher) = top.section("launcher", &fields::LAUNCHER, out) {
        spec.launcher = read_launcher(&launcher, out);
    }
    spec.workdir = top.get("workdir").and_then(|cell| cell.text(out));
    if let Some(env) = top.get("env") {
        spec.env = env.env(open_env, out);
    }
    if let Some(entrypoint) = read_entrypoint(&top, out) {
        spec.entrypoint = entrypoint;
    }
    if let Some(period) = top.get("grace_period").and_then(|cell| cell.duration(out)) {
        spec.grace_period = period;
    }
    if let Some(checkpoint) = top.section("checkpoint", &fields::CHECKPOINT, out) {
        let dir = checkpoint.get("dir").and_then(|cell| cell.text(out));
        spec.checkpoint = Checkpoint { dir };
    }
    spec
}

fn kind_is_job(root: &Node, out: &mut Problems) -> bool {
    let Some(entry) = root.entry("kind") else {
        return true;
    };
    let Some(kind) = Cell::new(&entry.node, "/kind".to_owned()).text(out) else {
        return false;
    };
    if kind == "job" {
        return true;
    }
    if fields::KINDS_NOT_YET.contains(&kind.as_str()) {
        let message = format!("kind {} is not built yet", quoted(&kind));
        let hint = Some("this version runs only `job`".to_owned());
        out.value(Code::NOT_YET, "/kind", message, hint);
    } else {
        let message = format!("there is no kind {}", quoted(&kind));
        let hint = Some("this version runs only `job`".to_owned());
        out.value(Code::BAD_VALUE, "/kind", message, hint);
    }
    false
}

fn read_resources(section: &Reader<'_>, out: &mut Problems) -> Resources {
    let mut resources = Resources::default();
    if let Some(nnodes) = section.get("nnodes").and_then(|cell| cell.nnodes(out)) {
        resources.nnodes = nnodes;
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
    resources.pool = section.get("pool").and_then(|cell| cell.pool(out));
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

fn read_entrypoint(top: &Reader<'_>, out: &mut Problems) -> Option<Entrypoint> {
    match (top.get("run"), top.get("command")) {
        (Some(run), None) => run.script(out).map(Entrypoint::Script),
        (None, Some(command)) => command.argv(out).map(Entrypoint::Argv),
        (Some(_), Some(_)) => {
            out.key(
                Code::CONFLICT,
                "/command",
                "`run` and `command` are both given",
                Some("keep one: a shell script in `run`, or a list in `command`".to_owned()),
            );
            None
        }
        (None, None) => {
            // A template would have given the entrypoint; that it is not built is said already.
            if !top.has("template") {
                out.key(
                    Code::MISSING,
                    "/run",
                    "nothing to run: neither `run` nor `command` is given",
                    Some("add `run: |` and a shell script".to_owned()),
                );
            }
            None
        }
    }
}

/// A mapping whose unknown and unbuilt fields have been reported.
struct Reader<'a> {
    entries: &'a [Entry],
    pointer: String,
}

impl<'a> Reader<'a> {
    fn open(node: &'a Node, section: &Section, pointer: &str, out: &mut Problems) -> Option<Self> {
        let entries = Cell::new(node, pointer.to_owned()).entries(out)?;
        for entry in entries {
            report_field(entry, section, &join(pointer, &entry.key), out);
        }
        Some(Self { entries, pointer: pointer.to_owned() })
    }

    fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name)
    }

    fn get(&self, name: &str) -> Option<Cell<'a>> {
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        Some(Cell::new(&entry.node, join(&self.pointer, name)))
    }

    fn section(&self, name: &str, section: &Section, out: &mut Problems) -> Option<Self> {
        let cell = self.get(name)?;
        Reader::open(cell.node, section, &cell.pointer, out)
    }
}

fn report_field(entry: &Entry, section: &Section, pointer: &str, out: &mut Problems) {
    match section.field(&entry.key).map(|field| field.status) {
        Some(Status::Built) => {}
        Some(Status::NotYet(hint)) => out.key(
            Code::NOT_YET,
            pointer,
            format!("`{}` is not built yet", dotted(pointer)),
            Some(hint.unwrap_or("leave it out: it would do nothing").to_owned()),
        ),
        None => {
            let place = match section.name {
                "" => String::new(),
                name => format!(" in {name}"),
            };
            let hint = match section.suggest(&entry.key) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("known here: {}", section.built_names()),
            };
            let message = format!("unknown field {}{place}", quoted(&entry.key));
            out.key(Code::UNKNOWN_FIELD, pointer, message, Some(hint));
        }
    }
}

/// One value to be read as one type. Each reading reports a wrong type and gives `None`.
struct Cell<'a> {
    node: &'a Node,
    pointer: String,
}

impl<'a> Cell<'a> {
    fn new(node: &'a Node, pointer: String) -> Self {
        Self { node, pointer }
    }

    /// "`x` must be ..., not ...".
    fn wrong(&self, expected: &str, hint: Option<&str>, out: &mut Problems) {
        let subject = match self.pointer.as_str() {
            "" => "a spec".to_owned(),
            pointer => format!("`{}`", dotted(pointer)),
        };
        let found = match &self.node.value {
            Value::Null => "nothing".to_owned(),
            Value::Scalar(scalar) => quoted(&scalar.text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        };
        out.value(
            Code::BAD_VALUE,
            &self.pointer,
            format!("{subject} must be {expected}, not {found}"),
            hint.map(str::to_owned),
        );
    }

    fn scalar(&self) -> Option<&'a Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    fn entries(&self, out: &mut Problems) -> Option<&'a [Entry]> {
        match &self.node.value {
            Value::Map(entries) => Some(entries),
            Value::Null | Value::Scalar(_) | Value::List(_) => {
                self.wrong("a mapping", None, out);
                None
            }
        }
    }

    /// A text; a number or boolean counts as the text that was written.
    fn text(&self, out: &mut Problems) -> Option<String> {
        let scalar = self.scalar();
        if scalar.is_none() {
            self.wrong("a text", None, out);
        }
        scalar.map(|scalar| scalar.text.clone())
    }

    fn script(&self, out: &mut Problems) -> Option<String> {
        match self.scalar() {
            Some(scalar) if scalar.kind == ScalarKind::Text => Some(scalar.text.clone()),
            _ => {
                let hint = matches!(self.node.value, Value::List(_))
                    .then_some("a list of arguments goes into `command`");
                self.wrong("a shell script", hint, out);
                None
            }
        }
    }

    fn argv(&self, out: &mut Problems) -> Option<Vec<String>> {
        let Value::List(items) = &self.node.value else {
            let hint = Some("a shell line goes into `run`");
            self.wrong("a list of arguments", hint, out);
            return None;
        };
        let items = items.iter().enumerate();
        // All are read before the first failure counts, so that every one is reported.
        let read: Vec<Option<String>> = items
            .map(|(index, item)| Cell::new(item, join(&self.pointer, &index.to_string())).text(out))
            .collect();
        read.into_iter().collect()
    }

    fn int(&self, out: &mut Problems) -> Option<i128> {
        match self.scalar().map(|scalar| scalar.kind) {
            Some(ScalarKind::Int(value)) => Some(value),
            _ => {
                self.wrong("a whole number in digits", None, out);
                None
            }
        }
    }

    fn version(&self, out: &mut Problems) {
        if self.int(out).is_some_and(|version| version != VERSION) {
            let hint = format!("this version of Gangline reads {VERSION}");
            self.wrong("a known version", Some(&hint), out);
        }
    }

    fn count(&self, range: &std::ops::RangeInclusive<u32>, out: &mut Problems) -> Option<u32> {
        let value = self.int(out)?;
        validate::check_count(&self.pointer, value, range, out)
    }

    fn nnodes(&self, out: &mut Problems) -> Option<u32> {
        if self.scalar().is_some_and(|scalar| is_range(&scalar.text)) {
            out.value(
                Code::NOT_YET,
                &self.pointer,
                "a range of nodes is not built yet",
                Some("give one number".to_owned()),
            );
            return None;
        }
        self.count(&validate::NNODES, out)
    }

    fn number(&self, out: &mut Problems) -> Option<f64> {
        match self.scalar().map(|scalar| scalar.kind) {
            // Beyond 2^53 the value is out of range anyhow, so nothing is lost by rounding.
            Some(ScalarKind::Int(value)) => Some(value as f64),
            Some(ScalarKind::Float(value)) => Some(value),
            _ => {
                self.wrong("a number", None, out);
                None
            }
        }
    }

    fn duration(&self, out: &mut Problems) -> Option<Duration> {
        let read = self.scalar().and_then(|s| units::duration(&s.text));
        if read.is_none() {
            self.wrong(units::DURATION_FORM, self.unit_hint(), out);
        }
        read
    }

    fn size(&self, out: &mut Problems) -> Option<u64> {
        let read = self.scalar().and_then(|s| units::size(&s.text));
        if read.is_none() {
            self.wrong(units::SIZE_FORM, self.unit_hint(), out);
        }
        read
    }

    fn unit_hint(&self) -> Option<&'static str> {
        let scalar = self.scalar()?;
        matches!(scalar.kind, ScalarKind::Int(_)).then_some("the unit is missing")
    }

    fn pool(&self, out: &mut Problems) -> Option<String> {
        if matches!(self.node.value, Value::List(_)) {
            out.value(
                Code::NOT_YET,
                &self.pointer,
                "a list of pools is not built yet",
                Some("name one pool".to_owned()),
            );
            return None;
        }
        self.text(out)
    }

    fn launcher_kind(&self, out: &mut Problems) -> Option<LauncherKind> {
        let word = self.text(out)?;
        let known = LauncherKind::ALL.into_iter().find(|k| k.word() == word);
        if known.is_none() {
            let (code, message) = if fields::LAUNCHERS_NOT_YET.contains(&word.as_str()) {
                let message = format!("launcher {} is not built yet", quoted(&word));
                (Code::NOT_YET, message)
            } else {
                let message = format!("there is no launcher {}", quoted(&word));
                (Code::BAD_VALUE, message)
            };
            let words = LauncherKind::ALL.map(|kind| format!("`{}`", kind.word()));
            let hint = format!("one of {}", words.join(", "));
            out.value(code, &self.pointer, message, Some(hint));
        }
        known
    }

    fn labels(&self, out: &mut Problems) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for entry in self.entries(out).unwrap_or_default() {
            let cell = Cell::new(&entry.node, join(&self.pointer, &entry.key));
            if let Some(value) = cell.text(out) {
                labels.insert(entry.key.clone(), value);
            }
        }
        labels
    }

    fn env(&self, open_env: OpenEnv, out: &mut Problems) -> BTreeMap<String, Option<String>> {
        let mut env = BTreeMap::new();
        for entry in self.entries(out).unwrap_or_default() {
            let cell = Cell::new(&entry.node, join(&self.pointer, &entry.key));
            if !matches!(entry.node.value, Value::Null) {
                if let Some(value) = cell.text(out) {
                    env.insert(entry.key.clone(), Some(value));
                }
                continue;
            }
            if open_env == OpenEnv::Refused {
                out.key(
                    Code::MISSING,
                    &cell.pointer,
                    format!("{} has no value", quoted(&entry.key)),
                    Some("only the command line can fill it in from a shell".to_owned()),
                );
            }
            env.insert(entry.key.clone(), None);
        }
        env
    }
}

/// `2..4`, and torchrun's `2:4`.
fn is_range(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    ["..", ":"]
        .iter()
        .filter_map(|separator| text.split_once(separator))
        .any(|(low, high)| digits(low) && digits(high))
}
