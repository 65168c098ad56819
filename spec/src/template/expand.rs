//! From a template and the values of a spec to the argument vector.

use std::collections::BTreeMap;

use crate::arguments::Argument;
use crate::cell::Cell;
use crate::code::Reward;
use crate::error::{Code, Problems};
use crate::job::{Checkpoint, LauncherKind};
use crate::template::hydra;
use crate::template::model::{
    Condition, GPUS_PER_NODE, ParamValue, Piece, Source, Template, TemplateLauncher,
};
use crate::template::params;
use crate::tracking::Tracking;

/// What a spec says outside `params`.
pub(crate) struct Asked<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) tracking: &'a Tracking,
    pub(crate) reward: Option<&'a Reward>,
    pub(crate) gpus_per_node: u32,
    /// The launcher, where the spec names one.
    pub(crate) launcher: Option<LauncherKind>,
}

/// What a template gave.
pub(crate) struct Made {
    pub(crate) launcher: LauncherKind,
    /// Without the overrides of the spec.
    pub(crate) arguments: Vec<Argument>,
}

/// Expand `template`; what is wrong is reported, all of it, and gives `None`.
pub(crate) fn expand(
    template: &Template,
    given: Option<&Cell<'_>>,
    overrides: &[String],
    asked: &Asked<'_>,
    out: &mut Problems,
) -> Option<Made> {
    let values = match given {
        Some(cell) => params::table(cell, &template.params, out),
        None => {
            let mut values = BTreeMap::new();
            let missing = params::absent("/params", &template.params, &[], &mut values, out);
            (!missing).then_some(values)
        }
    };
    let fits = check_fit(template, overrides, asked, out);
    let values = values?;
    let scope = Scope { values: &values, asked };
    let launcher = match &template.launcher {
        TemplateLauncher::Fixed(kind) => *kind,
        TemplateLauncher::From(source) => {
            let word = scope.value(source);
            LauncherKind::ALL
                .into_iter()
                .find(|kind| word == Some(ParamValue::Text(kind.word().to_owned())))
                .unwrap_or(LauncherKind::Ray)
        }
    };
    if let Some(other) = asked.launcher
        && other != launcher
    {
        let message = format!(
            "template `{}` is started by `{}`, not by `{}`",
            template.name,
            launcher.word(),
            other.word()
        );
        let hint = Some("leave `launcher.type` out".to_owned());
        out.value(Code::CONFLICT, "/launcher/type", message, hint);
        return None;
    }
    let mut arguments = Vec::new();
    let good = append(&template.pieces, &scope, &mut arguments, out);
    let has_gpus = check_gpus(template, &arguments, asked, out);
    (good && fits && has_gpus).then_some(Made { launcher, arguments })
}

/// A trainer that is told to use 0 GPUs fails on the nodes, with less of a reason.
fn check_gpus(
    template: &Template,
    arguments: &[Argument],
    asked: &Asked<'_>,
    out: &mut Problems,
) -> bool {
    let counts = arguments.iter().any(|a| a.variables().any(|name| name == GPUS_PER_NODE));
    if asked.gpus_per_node > 0 || !counts {
        return true;
    }
    let message = format!("template `{}` needs GPUs, and the job asks for none", template.name);
    let hint = Some("set `resources.gpus_per_node`".to_owned());
    out.value(Code::BAD_VALUE, "/resources/gpus_per_node", message, hint);
    false
}

/// Whether the template can do what the spec asks outside `params`: what it does not pass on
/// would be accepted in silence.
fn check_fit(
    template: &Template,
    overrides: &[String],
    asked: &Asked<'_>,
    out: &mut Problems,
) -> bool {
    let mut good = true;
    let unused = |given: bool, source: Source| given && !template.uses(&source);
    let idle = [
        ("/checkpoint/every", unused(asked.checkpoint.every.is_some(), Source::CheckpointEvery)),
        ("/checkpoint/keep", unused(asked.checkpoint.keep.is_some(), Source::CheckpointKeep)),
        ("/reward", unused(asked.reward.is_some(), Source::RewardPath)),
        ("/overrides", !overrides.is_empty() && !template.takes_overrides),
    ];
    for (pointer, _) in idle.into_iter().filter(|(_, idle)| *idle) {
        let field = crate::validate::dotted(pointer);
        let message = format!("`{field}` does nothing with template `{}`", template.name);
        let hint = Some("leave it out, or pass it in `params.args`".to_owned());
        out.key(Code::CONFLICT, pointer, message, hint);
        good = false;
    }
    // The agent puts the directory between the quotes of a Hydra override.
    let syntax = |dir: &String| dir.contains(['"', '\\']) || dir.chars().any(char::is_control);
    if template.takes_overrides && asked.checkpoint.dir.as_ref().is_some_and(syntax) {
        let message = "`checkpoint.dir` holds a quote, a backslash or a control character, which \
                       Hydra would take for syntax";
        out.value(Code::BAD_VALUE, "/checkpoint/dir", message, None);
        good = false;
    }
    let wandb = asked.tracking.wandb.as_ref().and_then(|wandb| wandb.project.as_ref());
    let mlflow = asked.tracking.mlflow.as_ref().and_then(|mlflow| mlflow.experiment.as_ref());
    if let (Some(wandb), Some(mlflow)) = (wandb, mlflow)
        && wandb != mlflow
        && template.uses(&Source::TrackingProject)
    {
        let message = "this program has one name for the project of W&B and the experiment of \
                       MLflow, and the two differ";
        let hint = Some(format!("make both `{}`", crate::error::shown(wandb)));
        out.value(Code::CONFLICT, "/tracking/mlflow/experiment", message, hint);
        good = false;
    }
    good
}

/// Where values come from.
struct Scope<'a> {
    values: &'a BTreeMap<String, ParamValue>,
    asked: &'a Asked<'a>,
}

impl Scope<'_> {
    fn value(&self, source: &Source) -> Option<ParamValue> {
        let count = |value: Option<u32>| value.map(|value| ParamValue::Number(value.to_string()));
        let text = |value: Option<&str>| value.map(|value| ParamValue::Text(value.to_owned()));
        let asked = self.asked;
        match source {
            Source::Param(keys) => param(self.values, keys).cloned(),
            Source::CheckpointEvery => count(asked.checkpoint.every),
            Source::CheckpointKeep => count(asked.checkpoint.keep),
            Source::TrackingProject => text(asked.tracking.project()),
            Source::TrackingLoggers => {
                let loggers = asked.tracking.loggers().into_iter();
                Some(ParamValue::List(
                    loggers.map(|name| ParamValue::Text(name.to_owned())).collect(),
                ))
            }
            Source::RewardPath => text(asked.reward.map(|reward| reward.path.as_str())),
            Source::RewardSymbol => text(asked.reward.map(|reward| reward.symbol.as_str())),
        }
    }

    fn holds(&self, condition: &Condition) -> bool {
        let value = self.value(&condition.source);
        let holds = match &condition.is {
            Some(is) => value.as_ref() == Some(is),
            None => value.is_some(),
        };
        holds != condition.negated
    }
}

fn param<'a>(values: &'a BTreeMap<String, ParamValue>, keys: &[String]) -> Option<&'a ParamValue> {
    let (first, rest) = keys.split_first()?;
    let value = values.get(first)?;
    match (rest, value) {
        ([], value) => Some(value),
        (rest, ParamValue::Table(inner)) => param(inner, rest),
        _ => None,
    }
}

/// Append the arguments of `pieces`; `false` when one cannot be written.
fn append(
    pieces: &[Piece],
    scope: &Scope<'_>,
    arguments: &mut Vec<Argument>,
    out: &mut Problems,
) -> bool {
    let mut good = true;
    for piece in pieces {
        match piece {
            Piece::Text(argument) => arguments.push(argument.clone()),
            Piece::If { condition, pieces } => {
                if scope.holds(condition) {
                    good &= append(pieces, scope, arguments, out);
                }
            }
            Piece::Value { key, from, default } => {
                let found = from.iter().find_map(|source| Some((source, scope.value(source)?)));
                let source = found.as_ref().map(|(source, _)| *source).or(from.first());
                let value = found.map(|(_, value)| value).or_else(|| default.clone());
                let Some(value) = value else {
                    continue;
                };
                match key {
                    None => raw(&value, arguments),
                    Some(key) => match hydra::write(&value) {
                        Ok(text) => arguments.push(Argument::Literal(format!("{key}={text}"))),
                        Err(hydra::Interpolation) => {
                            report_interpolation(source, key, out);
                            good = false;
                        }
                    },
                }
            }
        }
    }
    good
}

/// Arguments as they are: one, or one for each item of a list.
fn raw(value: &ParamValue, arguments: &mut Vec<Argument>) {
    match value {
        ParamValue::Text(text) | ParamValue::Number(text) => {
            arguments.push(Argument::Literal(text.clone()));
        }
        ParamValue::Bool(value) => arguments.push(Argument::Literal(value.to_string())),
        ParamValue::List(items) => items.iter().for_each(|item| raw(item, arguments)),
        ParamValue::Table(entries) => entries.values().for_each(|item| raw(item, arguments)),
    }
}

fn report_interpolation(source: Option<&Source>, key: &str, out: &mut Problems) {
    let pointer = match source {
        Some(Source::Param(keys)) => format!("/params/{}", keys.join("/")),
        Some(other) => {
            let fixed = Source::FIXED.iter().find(|(_, source)| source == other);
            fixed.map_or(String::new(), |(name, _)| format!("/{}", name.replace('.', "/")))
        }
        None => String::new(),
    };
    let message = "`${` cannot stand here: Hydra would replace it".to_owned();
    let hint = Some(format!("write it out, or put `{key}=...` into `overrides`"));
    out.value(Code::BAD_VALUE, &pointer, message, hint);
}
