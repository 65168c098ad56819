//! A SkyPilot task as a spec.

use super::draft::{Draft, For, bad_value, problem};
use super::{Imported, script};
use crate::checks::is_label;
use crate::error::{self, Code, SpecErrors, quoted};
use crate::tree::{self, Entry, Node, Pos, ScalarKind, Value};
use crate::units;
use crate::yaml::scalar_text;

const ACCELERATOR_FORM: &str = "MODEL:NUMBER of whole GPUs, or {MODEL: NUMBER}";

/// What SkyPilot runs `setup` and `run` with.
const INTERPRETER: &str = "/usr/bin/env bash";

/// What the variables of SkyPilot become.
const VARIABLES: [script::Replacement; 7] = [
    ("SKYPILOT_INTERNAL_JOB_ID", "$GANGLINE_JOB_ID"),
    ("SKYPILOT_JOB_NAME", "$GANGLINE_NAME"),
    (
        "SKYPILOT_NODE_IPS",
        "$GANGLINE_NODE_IPS, with commas and not line ends; the first is $MASTER_ADDR",
    ),
    ("SKYPILOT_NODE_RANK", "$GANGLINE_NODE_RANK"),
    ("SKYPILOT_NUM_GPUS_PER_NODE", "$GANGLINE_GPUS_PER_NODE"),
    ("SKYPILOT_NUM_NODES", "$GANGLINE_NNODES"),
    ("SKYPILOT_TASK_ID", "$GANGLINE_JOB_ID"),
];

/// Keys of `resources` without a counterpart, and what to do instead.
const WITHOUT: [(&str, &str); 10] = [
    ("any_of", "one shape of node is asked for: name a `pool`"),
    ("autostop", "the nodes of a job are free when it has ended"),
    ("cloud", "name a `pool`"),
    ("image_id", "the job runs in the image of the nodes"),
    ("infra", "name a `pool`"),
    ("instance_type", "name a `pool` of such nodes"),
    ("job_recovery", "nothing is retried yet"),
    ("ordered", "one shape of node is asked for: name a `pool`"),
    ("region", "name a `pool`"),
    ("zone", "name a `pool`"),
];

/// Make a spec of the SkyPilot task `source`, one YAML document.
///
/// # Errors
/// The text is not YAML, or a value of it cannot be meant; with the position in `source`.
pub fn from_sky(source: &str) -> Result<Imported, SpecErrors> {
    if source.len() > crate::MAX_SPEC_BYTES {
        let message =
            format!("the task has {} bytes; at most {}", source.len(), crate::MAX_SPEC_BYTES);
        return Err(problem(Code::TOO_LARGE, None, message, None));
    }
    let (root, duplicates) = tree::parse(source)?;
    if let Some(first) = duplicates.into_iter().next() {
        return Err(first.into());
    }
    let mut task = Task { draft: Draft::new("a SkyPilot task", For::File), setup: None, run: None };
    let start = Some(Pos { line: 1, column: 1 });
    task.draft.place("", root.pos.or(start));
    task.top(entries(&root, "a task")?)?;
    task.finish()
}

/// A script of the task, and where it stands.
struct Text {
    text: String,
    at: Option<Pos>,
}

struct Task {
    draft: Draft,
    setup: Option<Text>,
    run: Option<Text>,
}

impl Task {
    fn top(&mut self, entries: &[Entry]) -> Result<(), SpecErrors> {
        let find = |key: &str| entries.iter().find(|entry| entry.key == key);
        if let Some(name) = find("name").map(text).transpose()?.flatten() {
            self.draft.name(&name, find("name").and_then(|entry| entry.node.pos));
        }
        let nodes = find("num_nodes").map(number).transpose()?.flatten().unwrap_or(1);
        let at = find("num_nodes").and_then(|entry| entry.node.pos);
        self.draft.resource("nnodes", &nodes.to_string(), at);
        match find("resources") {
            Some(entry) => self.resources(entry)?,
            None => self.draft.resource("gpus_per_node", "0", None),
        }
        for entry in entries {
            match entry.key.as_str() {
                "name" | "num_nodes" | "resources" => {}
                "setup" => self.setup = script(entry)?,
                "run" => self.run = script(entry)?,
                "envs" => self.envs(entry)?,
                "secrets" => self.secrets(entry),
                "workdir" => self.workdir(entry),
                "file_mounts" | "volumes" => self.mounts(entry),
                key => self.draft.missed(&error::shown(key), &shown(entry), "no counterpart"),
            }
        }
        Ok(())
    }

    /// A directory of the user is sent as code; a repository is nobody's directory yet.
    fn workdir(&mut self, entry: &Entry) {
        match &entry.node.value {
            Value::Scalar(scalar) if !scalar.text.starts_with('~') => {
                // A JSON string is a YAML string, whatever is in it.
                let code = format!("{{snapshot: {}}}", serde_json::json!(scalar.text));
                self.draft.top("code", &code, entry.node.pos);
            }
            _ => {
                let advice = "write `code: {snapshot: DIR}` with a directory relative to the spec";
                self.draft.missed("workdir", &shown(entry), advice);
            }
        }
    }

    fn resources(&mut self, entry: &Entry) -> Result<(), SpecErrors> {
        let entries = match &entry.node.value {
            Value::Null => &[],
            _ => entries(&entry.node, "`resources`")?,
        };
        let accelerators = entries.iter().find(|entry| entry.key == "accelerators");
        match accelerators {
            Some(entry) => self.accelerators(entry)?,
            None => self.draft.resource("gpus_per_node", "0", None),
        }
        for entry in entries {
            match entry.key.as_str() {
                "accelerators" => {}
                "cpus" => self.at_least(entry, "cpus_per_node", |amount| {
                    let number: f64 = amount.parse().ok()?;
                    number.is_finite().then(|| amount.to_owned())
                })?,
                "memory" => self.at_least(entry, "memory_per_node", memory)?,
                other => {
                    let known = WITHOUT.iter().find(|(key, _)| *key == other);
                    let advice = known.map_or("no counterpart", |(_, advice)| advice);
                    let written = format!("resources.{}", shown(entry));
                    self.draft.missed(
                        &format!("resources.{}", error::shown(other)),
                        &written,
                        advice,
                    );
                }
            }
        }
        Ok(())
    }

    /// GPUs: all models that are named must be asked for in the same number.
    fn accelerators(&mut self, entry: &Entry) -> Result<(), SpecErrors> {
        let wrong =
            |node: &Node| bad_value(node.pos, "`accelerators` cannot be read", ACCELERATOR_FORM);
        let mut found: Vec<(String, u64)> = Vec::new();
        match &entry.node.value {
            Value::Null => {}
            Value::Scalar(scalar) => {
                found.push(accelerator(&scalar.text).ok_or_else(|| wrong(&entry.node))?);
            }
            Value::List(items) => {
                for item in items {
                    let Value::Scalar(scalar) = &item.value else {
                        return Err(wrong(item));
                    };
                    found.push(accelerator(&scalar.text).ok_or_else(|| wrong(item))?);
                }
            }
            Value::Map(models) => {
                for model in models {
                    let count = match &model.node.value {
                        Value::Null => Some(1),
                        Value::Scalar(scalar) => whole(&scalar.text),
                        Value::List(_) | Value::Map(_) => None,
                    };
                    let named = is_label(&model.key).then(|| model.key.clone());
                    found.push(named.zip(count).ok_or_else(|| wrong(&model.node))?);
                }
            }
        }
        let count = found.first().map_or(0, |(_, count)| *count);
        if found.iter().any(|(_, other)| *other != count) {
            let message = "`accelerators` asks for another number of each model";
            return Err(bad_value(entry.node.pos, message, "name one model"));
        }
        self.draft.resource("gpus_per_node", &count.to_string(), entry.node.pos);
        if !found.is_empty() {
            let models: Vec<String> = found.iter().map(|(model, _)| scalar_text(model)).collect();
            let models = format!("[{}]", models.join(", "));
            self.draft.resource("gpu", &models, entry.node.pos);
        }
        Ok(())
    }

    /// An amount that may end in `+`, for at least that much.
    fn at_least(
        &mut self,
        entry: &Entry,
        field: &str,
        convert: impl Fn(&str) -> Option<String>,
    ) -> Result<(), SpecErrors> {
        let Some(written) = text(entry)? else {
            return Ok(());
        };
        if written.ends_with('x') {
            let written = format!("resources.{}", shown(entry));
            let advice = format!("write the product into `resources.{field}`");
            self.draft.missed(&format!("resources.{}", entry.key), &written, &advice);
            return Ok(());
        }
        let value = convert(written.trim_end_matches('+')).ok_or_else(|| {
            let message = format!("`{}` cannot be {}", entry.key, quoted(&written));
            bad_value(entry.node.pos, message, "a number, perhaps with `+` behind it")
        })?;
        if written.ends_with('+') {
            self.draft.resource_note(&format!("{}: {written}, at least.", entry.key));
        }
        self.draft.resource(field, &value, entry.node.pos);
        Ok(())
    }

    fn envs(&mut self, entry: &Entry) -> Result<(), SpecErrors> {
        if matches!(entry.node.value, Value::Null) {
            return Ok(());
        }
        for variable in entries(&entry.node, "`envs`")? {
            let value = text(variable)?;
            self.draft.variable(&variable.key, value, variable.key_pos);
        }
        Ok(())
    }

    /// The names alone: a value would be a secret in a file.
    fn secrets(&mut self, entry: &Entry) {
        let before_value = |text: &str| text.split('=').next().unwrap_or_default().to_owned();
        let names: Vec<String> = match &entry.node.value {
            Value::Map(entries) => entries.iter().map(|entry| entry.key.clone()).collect(),
            Value::List(items) => items
                .iter()
                .filter_map(|item| match &item.value {
                    Value::Scalar(scalar) => Some(before_value(&scalar.text)),
                    Value::Null | Value::List(_) | Value::Map(_) => None,
                })
                .collect(),
            Value::Scalar(_) | Value::Null => Vec::new(),
        };
        let yaml: Vec<String> = names.iter().map(|name| scalar_text(name)).collect();
        self.draft.top("secrets", &format!("[{}]", yaml.join(", ")), entry.node.pos);
        self.draft.missed(
            "secrets",
            "secrets",
            "their values are not copied: give each one with `gangline secret set NAME`",
        );
    }

    fn mounts(&mut self, entry: &Entry) {
        let advice = "files are not sent yet: put them on a path that all nodes have";
        let Value::Map(mounts) = &entry.node.value else {
            self.draft.missed(&entry.key, &shown(entry), advice);
            return;
        };
        for mount in mounts {
            self.draft.missed(&entry.key, &format!("{} {}", entry.key, shown(mount)), advice);
        }
    }

    fn finish(mut self) -> Result<Imported, SpecErrors> {
        let Some(run) = self.run.take().filter(|run| !run.text.trim().is_empty()) else {
            let message = "the task has no `run`";
            let hint = "add what it runs; a cluster alone cannot be asked for yet";
            return Err(problem(
                Code::MISSING,
                Some(Pos { line: 1, column: 1 }),
                message,
                Some(hint),
            ));
        };
        self.draft.place("/run", run.at);
        let mut body = String::new();
        if let Some(setup) = self.setup.take().filter(|setup| !setup.text.trim().is_empty()) {
            self.draft.run_note(
                "`setup` is not built yet: it stands before the rest, in a shell of its own, and \
                 runs at every start.",
            );
            let setup = setup.text.trim_end();
            body = format!("# setup\n(\n{setup}\n) || exit\n# run\n");
        }
        body.push_str(&run.text);
        let found = script::variables(&body, "SKYPILOT_");
        let replaced = script::replaced(&found, &VARIABLES);
        let title = "Variables of SkyPilot in the script, and what to use instead:";
        self.draft.findings("the task uses variables of SkyPilot", title, &replaced);
        self.draft.top("launcher", script::launcher(&body), None);
        if let Some(note) = script::note(INTERPRETER) {
            self.draft.file_note(note);
        }
        self.draft.finish(&script::for_sh(INTERPRETER, &body))
    }
}

fn entries<'a>(node: &'a Node, what: &str) -> Result<&'a [Entry], SpecErrors> {
    match &node.value {
        Value::Map(entries) => Ok(entries),
        Value::Null | Value::Scalar(_) | Value::List(_) => {
            let at = node.pos.or(Some(Pos { line: 1, column: 1 }));
            Err(bad_value(at, format!("{what} must be a mapping"), "write `key: value`"))
        }
    }
}

/// A scalar as it was written; `None` for nothing.
fn text(entry: &Entry) -> Result<Option<String>, SpecErrors> {
    match &entry.node.value {
        Value::Null => Ok(None),
        Value::Scalar(scalar) if scalar.text.contains('\0') => {
            let message = format!("{} holds a NUL character", quoted(&entry.key));
            Err(bad_value(entry.node.pos, message, "remove it"))
        }
        Value::Scalar(scalar) => Ok(Some(scalar.text.clone())),
        Value::List(_) | Value::Map(_) => {
            let message = format!("{} must be a text", quoted(&entry.key));
            Err(bad_value(entry.node.pos, message, "one value"))
        }
    }
}

fn script(entry: &Entry) -> Result<Option<Text>, SpecErrors> {
    Ok(text(entry)?.map(|text| Text { text, at: entry.node.pos }))
}

fn number(entry: &Entry) -> Result<Option<u64>, SpecErrors> {
    let wrong = || {
        let message = format!("{} must be a whole number", quoted(&entry.key));
        bad_value(entry.node.pos, message, "digits alone")
    };
    match &entry.node.value {
        Value::Null => Ok(None),
        Value::Scalar(scalar) => match scalar.kind {
            ScalarKind::Int(number) => u64::try_from(number).map(Some).map_err(|_| wrong()),
            _ => Err(wrong()),
        },
        Value::List(_) | Value::Map(_) => Err(wrong()),
    }
}

/// `H100:8`, `H100`.
fn accelerator(text: &str) -> Option<(String, u64)> {
    let (model, count) = text.split_once(':').unwrap_or((text, "1"));
    is_label(model).then_some(())?;
    Some((model.to_owned(), whole(count.trim())?))
}

/// A whole number, also written as `8.0`.
fn whole(text: &str) -> Option<u64> {
    let digits = text.strip_suffix(".0").unwrap_or(text);
    super::slurm_values::whole(digits)
}

/// An amount of memory: GiB, or with a unit.
fn memory(text: &str) -> Option<String> {
    if let Some(gib) = super::slurm_values::whole(text) {
        return gib.checked_mul(1 << 30).map(units::write_size);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    // SkyPilot counts in units of 1024, whatever their spelling.
    let bytes: u64 = match text.strip_prefix(digits)?.to_ascii_uppercase().as_str() {
        "MB" | "M" | "MIB" => 1 << 20,
        "GB" | "G" | "GIB" => 1 << 30,
        "TB" | "T" | "TIB" => 1 << 40,
        _ => return None,
    };
    super::slurm_values::whole(digits)?.checked_mul(bytes).map(units::write_size)
}

/// `key: value` for a comment; what is no scalar is left out.
fn shown(entry: &Entry) -> String {
    match &entry.node.value {
        Value::Scalar(scalar) => format!("{}: {}", entry.key, scalar.text),
        Value::Null | Value::List(_) | Value::Map(_) => entry.key.clone(),
    }
}
