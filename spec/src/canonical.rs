//! The canonical text of a spec: one line of JSON that reads back as the same spec.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::arguments::Argument;
use crate::code::{CodeSource, CodeSpec};
use crate::disconnect::OnDisconnect;
use crate::hang::{DEFAULT_HANG_AFTER, DEFAULT_WARN_AFTER, Hang, HangAction};
use crate::job::{Checkpoint, Entrypoint, JobSpec, Kind, Launcher, Resources};
use crate::logs::Logs;
use crate::priority::Priority;
use crate::queue::Queue;
use crate::retry::LogPolicy;
use crate::tracking::{Tracking, Wandb};
use crate::units;

impl JobSpec {
    /// The spec as one line of JSON: keys in alphabetical order, defaults written out, absent
    /// values left out. [`crate::parse`] of the text gives this spec again. A template stands in
    /// it with the arguments that it gave, so that the text means the same when the template has
    /// changed.
    #[must_use]
    pub fn canonical_json(&self) -> String {
        escape_for_yaml(&self.canonical().to_string())
    }

    /// [`JobSpec::canonical_json`] as a value.
    pub(crate) fn canonical(&self) -> Value {
        let mut top = Object::default();
        top.put("checkpoint", self.checkpoint.canonical());
        top.put("code", self.code.as_ref().map(CodeSpec::canonical));
        match &self.entrypoint {
            Entrypoint::Argv(argv) => top.put("command", Some(json!(argv))),
            Entrypoint::Script(text) => top.put("run", Some(json!(text))),
            Entrypoint::Nothing => {}
            Entrypoint::Template(expansion) => {
                let arguments = expansion.arguments.iter().map(canonical_argument).collect();
                top.put("template", Some(json!(expansion.template)));
                top.put("params", not_empty(sorted(&expansion.params)));
                top.put("overrides", not_empty(json!(expansion.overrides)));
                top.put("expansion", Some(Value::Array(arguments)));
            }
        }
        top.put("cluster", self.cluster.as_ref().map(|v| json!(v)));
        top.put("description", self.description.as_ref().map(|v| json!(v)));
        top.put("env", not_empty(json!(self.env)));
        top.put("grace_period", Some(json!(units::write_duration(self.grace_period))));
        if let Kind::Cluster { idle_stop } = self.kind {
            top.put("idle_stop", idle_stop.map(|time| json!(units::write_duration(time))));
        }
        top.put("hang", self.hang.canonical());
        let hold = self.hold_on_failure.map(|time| json!(units::write_duration(time)));
        top.put("hold_on_failure", hold);
        top.put("kind", Some(json!(self.kind.word())));
        top.put("labels", not_empty(json!(self.labels)));
        top.put("launcher", Some(self.launcher.canonical()));
        top.put("logs", self.logs.canonical());
        top.put("name", self.name.as_ref().map(|v| json!(v)));
        top.put("on_disconnect", self.on_disconnect.canonical());
        top.put("project", self.project.as_ref().map(|v| json!(v)));
        top.put("min_runtime", self.min_runtime.map(|time| json!(units::write_duration(time))));
        top.put("queue", self.queue.canonical());
        top.put("resources", Some(self.resources.canonical()));
        top.put("retry", self.retry.canonical());
        let policies = self.log_policies.iter().map(LogPolicy::canonical);
        top.put("log_policies", not_empty(policies.collect()));
        let reward = self.reward.as_ref();
        top.put("reward", reward.map(|r| json!({ "path": r.path, "symbol": r.symbol })));
        top.put("secrets", not_empty(json!(self.secrets)));
        top.put("timeout", self.timeout.map(|time| json!(units::write_duration(time))));
        top.put("tracking", self.tracking.canonical());
        top.put("version", Some(json!(1)));
        top.put("workdir", self.workdir.as_ref().map(|v| json!(v)));
        top.finish()
    }
}

/// A mapping under construction. It sorts its keys itself, because the map of serde_json keeps
/// the order of insertion when another crate of the build asks for that.
#[derive(Default)]
struct Object(BTreeMap<&'static str, Value>);

impl Object {
    fn put(&mut self, key: &'static str, value: Option<Value>) {
        if let Some(value) = value {
            self.0.insert(key, value);
        }
    }

    fn finish(self) -> Value {
        Value::Object(self.0.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    fn finish_not_empty(self) -> Option<Value> {
        not_empty(self.finish())
    }
}

fn not_empty(value: Value) -> Option<Value> {
    let empty = match &value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    (!empty).then_some(value)
}

/// `value` with the keys of its mappings in alphabetical order.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let entries: BTreeMap<&String, Value> =
                entries.iter().map(|(key, value)| (key, sorted(value))).collect();
            let entries = entries.into_iter().map(|(key, value)| (key.clone(), value));
            Value::Object(entries.collect::<Map<String, Value>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn canonical_argument(argument: &Argument) -> Value {
    match argument {
        Argument::Literal(text) => json!(text),
        Argument::Fill(text) => json!({ "fill": text }),
    }
}

impl Checkpoint {
    fn canonical(&self) -> Option<Value> {
        let mut out = Object::default();
        out.put("dir", self.dir.as_ref().map(|v| json!(v)));
        out.put("every", self.every.map(|v| json!(v)));
        out.put("keep", self.keep.map(|v| json!(v)));
        out.put("encrypted_copy", self.encrypted_copy.then_some(json!(true)));
        out.finish_not_empty()
    }
}

impl Logs {
    fn canonical(&self) -> Option<Value> {
        let mut out = Object::default();
        out.put("files", not_empty(json!(self.files)));
        out.put("max_bytes", self.max_bytes.map(|bytes| json!(units::write_size(bytes))));
        out.finish_not_empty()
    }
}

impl CodeSpec {
    fn canonical(&self) -> Value {
        let mut out = Object::default();
        let (field, place) = self.source.field();
        out.put(field, Some(json!(place)));
        out.put("commit", self.commit.as_ref().map(|commit| json!(commit)));
        if let CodeSource::Snapshot(_) = self.source {
            out.put("git", Some(json!(if self.record_git { "auto" } else { "off" })));
            out.put("include", not_empty(json!(self.include)));
        }
        if !matches!(self.source, CodeSource::Path(_) | CodeSource::Tree(_)) {
            out.put("max_size", Some(json!(units::write_size(self.max_bytes))));
        }
        out.finish()
    }
}

impl OnDisconnect {
    fn canonical(self) -> Option<Value> {
        match self {
            Self::Fence => None,
            Self::Keep => Some(json!("keep")),
            Self::StopAfter(time) => Some(json!({ "stop_after": units::write_duration(time) })),
        }
    }
}

impl Hang {
    fn canonical(&self) -> Option<Value> {
        let mut out = Object::default();
        let time = |time, usual| (time != usual).then(|| json!(units::write_duration(time)));
        out.put("warn_after", time(self.warn_after, DEFAULT_WARN_AFTER));
        out.put("after", time(self.after, DEFAULT_HANG_AFTER.max(self.warn_after)));
        let action = (self.action != HangAction::default()).then(|| json!(self.action.word()));
        out.put("action", action);
        out.finish_not_empty()
    }
}

impl Launcher {
    fn canonical(&self) -> Value {
        let mut out = Object::default();
        out.put("start_timeout", Some(json!(units::write_duration(self.start_timeout))));
        out.put("type", Some(json!(self.kind.word())));
        out.finish()
    }
}

impl Queue {
    fn canonical(&self) -> Option<Value> {
        let mut out = Object::default();
        out.put("after", not_empty(json!(self.after)));
        out.put("hold", self.hold.then_some(json!(true)));
        out.put("max_wait", self.max_wait.map(|time| json!(units::write_duration(time))));
        out.put("not_before", self.not_before.map(|moment| json!(moment.to_string())));
        out.put("preemptible", self.preemptible.then_some(json!(true)));
        let priority = Some(self.priority).filter(|priority| *priority != Priority::NORMAL);
        out.put("priority", priority.map(|priority| json!(priority.0)));
        out.finish_not_empty()
    }
}

impl Resources {
    fn canonical(&self) -> Value {
        let mut out = Object::default();
        out.put("cpus_per_node", self.cpus_per_node.map(|v| json!(v)));
        out.put("exclude_nodes", not_empty(json!(self.exclude_nodes)));
        out.put("exclusive", self.exclusive.map(|v| json!(v)));
        out.put("gpu", not_empty(json!(self.gpu)));
        out.put("gpus_per_node", Some(json!(self.gpus_per_node)));
        out.put("memory_per_node", self.memory_per_node.map(|v| json!(units::write_size(v))));
        out.put("labels", not_empty(json!(self.labels)));
        out.put(
            "nnodes",
            Some(match self.nnodes_max {
                Some(_) => json!(self.nnodes_text()),
                None => json!(self.nnodes),
            }),
        );
        out.put(
            "pool",
            match self.pools.as_slice() {
                [pool] => Some(json!(pool)),
                pools => not_empty(json!(pools)),
            },
        );
        out.put("topology", self.topology.map(|v| json!(v.word())));
        out.finish()
    }
}

impl Tracking {
    fn canonical(&self) -> Option<Value> {
        let mut out = Object::default();
        if let Some(mlflow) = &self.mlflow {
            let mut section = Object::default();
            section.put("experiment", mlflow.experiment.as_ref().map(|v| json!(v)));
            section.put("uri", Some(json!(mlflow.uri)));
            out.put("mlflow", Some(section.finish()));
        }
        out.put("tensorboard", self.tensorboard.then_some(json!(true)));
        out.put("wandb", self.wandb.as_ref().map(Wandb::canonical));
        out.finish_not_empty()
    }
}

impl Wandb {
    fn canonical(&self) -> Value {
        let mut out = Object::default();
        out.put("mode", Some(json!(self.mode.word())));
        out.put("project", self.project.as_ref().map(|v| json!(v)));
        out.finish()
    }
}

/// JSON lets some characters stand in a string that YAML wants escaped. They occur only inside
/// strings, so they can be escaped in the finished text.
pub(crate) fn escape_for_yaml(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_printable(c) {
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

/// Whether every YAML reader takes `c` as it is, also outside quotes.
pub(crate) fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}'
        | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
        && !matches!(c, '\u{2028}' | '\u{2029}')
}
