//! Arguments of an entrypoint that a template made, and the variables in them. What a user wrote
//! is a literal and arrives unchanged; only a template's own text has variables.

use crate::variable::{self, Part};

/// The variables that a template may use, filled in by the agent when a gang starts: a closed
/// list. All of them but the deadline are in the environment of every entrypoint too.
pub const TEMPLATE_VARIABLES: [&str; 13] = [
    "GANGLINE_ATTEMPT",
    "GANGLINE_CKPT_DIR",
    "GANGLINE_DEADLINE",
    "GANGLINE_GPUS_PER_NODE",
    "GANGLINE_HEAD_IP",
    "GANGLINE_JOB_ID",
    "GANGLINE_NAME",
    "GANGLINE_NNODES",
    "GANGLINE_NODE_IPS",
    "GANGLINE_NODE_RANK",
    "GANGLINE_PROJECT",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// One argument of an entrypoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A text that arrives as it is, dollar signs included.
    Literal(String),
    /// A template's own text: each variable of [`TEMPLATE_VARIABLES`] in it is filled in.
    Fill(String),
}

impl Argument {
    /// The argument with its variables not filled in.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Literal(text) | Self::Fill(text) => text,
        }
    }

    /// Its pieces, in their order; a literal is one text.
    #[must_use]
    pub fn parts(&self) -> Vec<Part<'_>> {
        match self {
            Self::Literal(text) => vec![Part::Text(text)],
            Self::Fill(text) => variable::parts(text).collect(),
        }
    }

    /// The variables in it, in their order; none in a literal.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        let text = match self {
            Self::Literal(_) => "",
            Self::Fill(text) => text,
        };
        variable::parts(text).filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Variable(name) => Some(name),
        })
    }
}

/// A variable of an argument that cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// Not one of [`TEMPLATE_VARIABLES`].
    #[error("`${0}` is not a variable that a template may use")]
    Unknown(String),
    /// One of them, without a value at this place, such as `GANGLINE_CKPT_DIR` of a job that has
    /// no checkpoint directory.
    #[error("`${0}` has no value for this job")]
    Unset(String),
}

/// The arguments as the program gets them: `$NAME` and `${NAME}` of a [`Argument::Fill`] are
/// replaced by what `lookup` gives, once; a dollar sign in a value stays. Literals are untouched.
///
/// # Errors
/// The first variable that is not of [`TEMPLATE_VARIABLES`] or that `lookup` lacks.
pub fn expand_variables(
    arguments: &[Argument],
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>, VariableError> {
    let expand = |argument: &Argument| match argument {
        Argument::Literal(text) => Ok(text.clone()),
        Argument::Fill(text) => variable::replace(text, |name| {
            if !TEMPLATE_VARIABLES.contains(&name) {
                return Err(VariableError::Unknown(name.to_owned()));
            }
            lookup(name).ok_or_else(|| VariableError::Unset(name.to_owned()))
        }),
    };
    arguments.iter().map(expand).collect()
}
