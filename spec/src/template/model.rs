//! What a template is.

use std::collections::BTreeMap;

use crate::arguments::Argument;
use crate::job::LauncherKind;

/// The variable that must not be 0.
pub(crate) const GPUS_PER_NODE: &str = "GANGLINE_GPUS_PER_NODE";

/// A way to make the arguments of a program from the params of a spec.
#[derive(Clone, Debug)]
pub struct Template {
    /// Such as `verl/grpo`.
    pub name: String,
    /// Grows with every change of the arguments; from 1.
    pub version: u32,
    /// What it is for, in one line.
    pub about: String,
    /// What a spec may say in `params`.
    pub params: Vec<Param>,
    /// Whether a spec may say `overrides`.
    pub takes_overrides: bool,
    /// The text that the template was read from, for people.
    pub source: &'static str,
    pub(crate) launcher: TemplateLauncher,
    pub(crate) pieces: Vec<Piece>,
}

impl Template {
    /// Name and version, such as `verl/grpo@1`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    /// Whether its arguments name the GPUs of a node, so that without params a job of it needs
    /// at least one.
    #[must_use]
    pub fn counts_gpus(&self) -> bool {
        counts_gpus(&self.pieces)
    }

    /// Whether a value from outside the params is passed on.
    pub(crate) fn uses(&self, source: &Source) -> bool {
        uses(&self.pieces, source)
    }
}

fn counts_gpus(pieces: &[Piece]) -> bool {
    pieces.iter().any(|piece| match piece {
        Piece::Text(argument) => argument.variables().any(|name| name == GPUS_PER_NODE),
        Piece::Value { .. } => false,
        Piece::If { pieces, .. } => counts_gpus(pieces),
    })
}

fn uses(pieces: &[Piece], source: &Source) -> bool {
    pieces.iter().any(|piece| match piece {
        Piece::Text(_) => false,
        Piece::Value { from, .. } => from.contains(source),
        Piece::If { condition, pieces } => condition.source == *source || uses(pieces, source),
    })
}

/// One value that a spec may give to a template.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its key in the spec.
    pub name: String,
    /// What it has to be.
    pub kind: ParamKind,
    /// Whether a spec has to give it.
    pub required: bool,
    /// What stands in its place when a spec does not give it.
    pub default: Option<ParamValue>,
    /// What it means, in one line.
    pub about: String,
}

/// What the value of a param has to be.
#[derive(Clone, Debug)]
pub enum ParamKind {
    /// One line of text.
    Text,
    /// Any text, for an argument that arrives as it is.
    Argument,
    /// An absolute path, or a URL.
    Path,
    /// A whole number, at least the given one.
    Integer(i128),
    /// A number between the two, both included.
    Float(f64, f64),
    /// `true` or `false`.
    Bool,
    /// One of the words.
    Choice(Vec<String>),
    /// A list of such values that is not empty.
    List(Box<ParamKind>),
    /// A mapping with params of its own.
    Table(Vec<Param>),
}

/// A value of a param.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    /// A text, path or choice.
    Text(String),
    /// A number, as it was written.
    Number(String),
    /// `true` or `false`.
    Bool(bool),
    /// The values of a list.
    List(Vec<ParamValue>),
    /// The values of a table: those given, and the defaults of the others.
    Table(BTreeMap<String, ParamValue>),
}

/// Who starts the processes of a template's gang.
#[derive(Clone, Debug)]
pub(crate) enum TemplateLauncher {
    Fixed(LauncherKind),
    /// The word that this source gives.
    From(Source),
}

/// Where a value of an argument comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A param, by its keys.
    Param(Vec<String>),
    CheckpointEvery,
    CheckpointKeep,
    TrackingProject,
    TrackingLoggers,
    RewardPath,
    RewardSymbol,
}

impl Source {
    /// The sources that are not params, by their names in a template.
    pub(crate) const FIXED: [(&'static str, Self); 6] = [
        ("checkpoint.every", Self::CheckpointEvery),
        ("checkpoint.keep", Self::CheckpointKeep),
        ("tracking.project", Self::TrackingProject),
        ("tracking.loggers", Self::TrackingLoggers),
        ("reward.path", Self::RewardPath),
        ("reward.symbol", Self::RewardSymbol),
    ];
}

/// A piece of the argument vector.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Text of the template; only here can variables stand.
    Text(Argument),
    /// The first source that has a value, or the default, or nothing at all. With a key it is one
    /// Hydra override `KEY=VALUE`; without, it is one argument, or one for each item of a list.
    Value { key: Option<String>, from: Vec<Source>, default: Option<ParamValue> },
    /// Pieces that are there only under a condition.
    If { condition: Condition, pieces: Vec<Piece> },
}

/// Whether a source has a value (and which).
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) source: Source,
    /// The value that it must have; `None` for any.
    pub(crate) is: Option<ParamValue>,
    /// The opposite of it all.
    pub(crate) negated: bool,
}
