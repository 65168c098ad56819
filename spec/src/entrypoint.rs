//! What runs: `run`, `command` or `template`, of which a job has exactly one and a cluster none.

use crate::arguments::Argument;
use crate::cell::Mode;
use crate::error::{Code, Problems, quoted};
use crate::job::{Entrypoint, Expansion, JobSpec, Kind};
use crate::reader::Reader;
use crate::template::{self, Asked};

/// The fields that say what runs, in the order of rank when several are given.
const ENTRYPOINTS: [&str; 3] = ["run", "command", "template"];
/// The fields that mean something only beside a template.
const OF_A_TEMPLATE: [&str; 3] = ["params", "overrides", "expansion"];

/// Read the entrypoint into `spec`, whose other fields have been read.
pub(crate) fn read(
    top: &Reader<'_>,
    mode: Mode,
    launcher_given: bool,
    spec: &mut JobSpec,
    out: &mut Problems,
) {
    let mut given = ENTRYPOINTS.iter().filter(|name| top.has(name));
    let first = given.next();
    if let Kind::Cluster { .. } = spec.kind {
        spec.entrypoint = Entrypoint::Nothing;
        for name in ENTRYPOINTS.iter().chain(&OF_A_TEMPLATE).filter(|name| top.has(name)) {
            let message = format!("a cluster has no `{name}`");
            let hint = Some("jobs are submitted to it once it stands".to_owned());
            out.key(Code::CONFLICT, &top.pointer(name), message, hint);
        }
        return;
    }
    if let (Some(first), Some(second)) = (first, given.next()) {
        let message = format!("`{first}` and `{second}` are both given");
        let hint = match *second {
            "template" => "keep one: a template brings its own command",
            _ => "keep one: a shell script in `run`, or a list in `command`",
        };
        out.key(Code::CONFLICT, &top.pointer(second), message, Some(hint.to_owned()));
        return;
    }
    if first != Some(&"template") {
        for name in OF_A_TEMPLATE.iter().filter(|name| top.has(name)) {
            let message = format!("`{name}` belongs to a `template`, and none is given");
            let hint = Some("add `template: verl/grpo`, or write it into the command".to_owned());
            out.key(Code::CONFLICT, &top.pointer(name), message, hint);
        }
    }
    let entrypoint = match first.copied() {
        Some("run") => top.get("run").and_then(|cell| cell.script(out)).map(Entrypoint::Script),
        Some("command") => top.get("command").and_then(|cell| cell.argv(out)).map(Entrypoint::Argv),
        Some(_) => {
            Some(read_template(top, mode, launcher_given, spec, out).unwrap_or_else(placeholder))
        }
        None => {
            out.key(
                Code::MISSING,
                "/run",
                "nothing to run: neither `run` nor `command` nor `template` is given",
                Some("add `run: |` and a shell script".to_owned()),
            );
            None
        }
    };
    if let Some(entrypoint) = entrypoint {
        spec.entrypoint = entrypoint;
    }
}

/// Stands for a template that could not be expanded, so that the rest is checked as beside one.
fn placeholder() -> Entrypoint {
    Entrypoint::Template(Expansion {
        template: "none@1".to_owned(),
        params: serde_json::Value::Null,
        overrides: Vec::new(),
        arguments: vec![Argument::Literal("true".to_owned())],
    })
}

fn read_template(
    top: &Reader<'_>,
    mode: Mode,
    launcher_given: bool,
    spec: &mut JobSpec,
    out: &mut Problems,
) -> Option<Entrypoint> {
    let cell = top.get("template")?;
    let name = cell.text(out)?;
    let overrides = match top.get("overrides") {
        Some(cell) => cell.texts(out)?,
        None => Vec::new(),
    };
    let params = top.get("params");
    let found = template::find(&name);
    let recorded = match top.get("expansion") {
        // The arguments of a job that was submitted.
        Some(cell) => Some(cell.arguments(out)?),
        None => None,
    };
    let empty = || serde_json::Value::Object(serde_json::Map::new());
    let expansion = |template: String, arguments: Vec<Argument>| Expansion {
        template,
        params: params.as_ref().map_or_else(empty, |cell| template::to_json(cell.node)),
        overrides: overrides.clone(),
        arguments,
    };
    let template = match (found, recorded.as_ref()) {
        (Ok(template), None) => template,
        (Ok(template), Some(_)) if mode.expand_again => template,
        // A version that is gone cannot be expanded again: its record is all there is.
        (_, Some(arguments)) => {
            return Some(Entrypoint::Template(expansion(name, arguments.clone())));
        }
        (Err(hint), None) => {
            let message = format!("there is no template {}", quoted(&name));
            out.value(Code::BAD_VALUE, &cell.pointer, message, Some(hint));
            return None;
        }
    };
    let asked = Asked {
        checkpoint: &spec.checkpoint,
        tracking: &spec.tracking,
        reward: spec.reward.as_ref(),
        gpus_per_node: spec.resources.gpus_per_node,
        launcher: launcher_given.then_some(spec.launcher.kind),
    };
    let made = template::expand(template, params.as_ref(), &overrides, &asked, out)?;
    let mut arguments = made.arguments;
    arguments.extend(overrides.iter().cloned().map(Argument::Literal));
    if recorded.is_some_and(|recorded| recorded != arguments) {
        let message = "`expansion` is not what the template gives for this spec";
        let hint = Some("leave `expansion` out: it is made anew".to_owned());
        out.key(Code::CONFLICT, &top.pointer("expansion"), message, hint);
        return None;
    }
    spec.launcher.kind = made.launcher;
    Some(Entrypoint::Template(expansion(template.full_name(), arguments)))
}
