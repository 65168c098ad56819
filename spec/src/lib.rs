//! The job spec of Gangline: its types, its parser, and errors that say where and what instead.
//!
//! A spec is one YAML 1.2 (or JSON) document of at most [`MAX_SPEC_BYTES`]. The command line
//! parses it with [`parse_with_overrides`] to give errors with positions before anything is sent,
//! fills open environment entries with [`resolve_env`], and sends the text of
//! [`JobSpec::canonical_json`]; the coordinator reads it again with [`parse_resolved`].
//!
//! Three rules:
//! - nothing is accepted in silence: an unknown field is an error with a suggestion, and a field
//!   that is planned but does nothing yet is an error of its own ([`Code::NOT_YET`]);
//! - all problems of a spec are reported at once, except that a text which is not YAML ends the
//!   reading;
//! - what the user wrote arrives as written: an argument `1e-6` is not turned into another
//!   spelling of the number, and no shell sees a `command`.
//!
//! The way of a text: `tree` (YAML, positions) -> `overrides` -> `convert` (fields, types) ->
//! `validate` (ranges, forms, sizes). `table` holds the one table of fields. A template is data
//! (`templates/`); `template` turns it and the params of a spec into arguments. `import` makes
//! specs of other systems' files.

mod arguments;
mod canonical;
mod cell;
mod checks;
mod code;
mod convert;
mod disconnect;
mod entrypoint;
mod error;
mod fields;
mod hang;
mod import;
mod job;
mod logs;
mod nodes;
mod overrides;
mod priority;
mod queue;
mod reader;
mod render;
mod retry;
mod schema;
mod starter;
mod suggest;
mod table;
mod template;
mod tracking;
mod tree;
mod units;
mod validate;
mod variable;
mod yaml;

pub use arguments::{Argument, TEMPLATE_VARIABLES, VariableError, expand_variables};
pub use checks::is_env_name;
pub use code::{CHANGED, CodeSource, CodeSpec, DEFAULT_MAX_CODE_BYTES, Reward};
pub use disconnect::OnDisconnect;
pub use error::{Code, MAX_ERRORS, SpecError, SpecErrors};
pub use fields::not_yet_fields;
pub use hang::{Hang, HangAction};
pub use import::{Imported, from_sky, from_slurm, is_script, name_from};
pub use job::{
    CHECKPOINT_VARIABLES, Checkpoint, DEFAULT_GRACE_PERIOD, DEFAULT_START_TIMEOUT, Entrypoint,
    Expansion, JobSpec, Kind, Launcher, LauncherKind, Resources, resolve_env,
};
pub use logs::Logs;
pub use nodes::Topology;
pub use overrides::MAX_OVERRIDES;
pub use priority::Priority;
pub use queue::{MAX_AFTER, Moment, Queue, after_job};
pub use regex::bytes::Regex as LogPattern;
pub use retry::{
    Backoff, LogAction, LogPolicy, MAX_LOG_POLICIES, Retry, RetryEvent, pattern as log_pattern,
};
pub use schema::{Names, schema};
pub use starter::{modelines, starter};
pub use template::{Param, ParamKind, ParamValue, Template, find as find_template, templates};
pub use tracking::{Mlflow, Tracking, TrackingPlace, Wandb, WandbMode};
pub use units::duration as parse_duration;
pub use validate::{
    MAX_ARGUMENT_BYTES, MAX_ENTRYPOINT_AND_ENV_BYTES, MAX_GPUS_PER_NODE, MAX_NNODES,
};
pub use variable::Part;
pub use yaml::{json_source, yaml};

use cell::{Mode, OpenEnv};
use error::Problems;

/// Largest text of a spec, in bytes; checked before it is parsed.
pub const MAX_SPEC_BYTES: usize = 1024 * 1024;

/// Parse and check a spec. An environment entry without a value is kept as `None`, to be filled
/// by [`resolve_env`].
///
/// # Errors
/// Every problem of the text, with its position.
pub fn parse(source: &str) -> Result<JobSpec, SpecErrors> {
    read(source, &[], stored(OpenEnv::Allowed))
}

/// As [`parse`], but an environment entry without a value is an error: for the coordinator, which
/// has no shell to take it from.
///
/// # Errors
/// Every problem of the text, with its position.
pub fn parse_resolved(source: &str) -> Result<JobSpec, SpecErrors> {
    read(source, &[], stored(OpenEnv::Refused))
}

/// As [`parse`], with values put over those of the text: pairs of a dotted path
/// (`resources.nnodes`) and a YAML value (`8`), of which the last wins. Below `env` and `labels`
/// the rest of the path is one key. An empty value is a YAML null.
///
/// For a person's spec: when it holds a recorded `expansion` of a template of this version, that
/// must be the one that the rest of the spec gives.
///
/// # Errors
/// Every problem of the text, with its position, and of the overrides, with their paths.
pub fn parse_with_overrides(
    source: &str,
    overrides: &[(String, String)],
) -> Result<JobSpec, SpecErrors> {
    read(source, overrides, Mode { expand_again: true, ..stored(OpenEnv::Allowed) })
}

/// As [`parse_with_overrides`], for the spec of a job that was submitted: its recorded `expansion`
/// is taken as it is.
///
/// # Errors
/// Every problem of the text, with its position, and of the overrides, with their paths.
pub fn parse_recorded(source: &str, overrides: &[(String, String)]) -> Result<JobSpec, SpecErrors> {
    read(source, overrides, stored(OpenEnv::Allowed))
}

/// A spec that was read from a script.
#[derive(Debug)]
pub struct FromScript {
    pub spec: JobSpec,
    /// What a person should know, one line each.
    pub warnings: Vec<String>,
    /// What was left out because it does not matter to the job, one line each.
    pub notes: Vec<String>,
    tree: tree::Node,
}

impl FromScript {
    /// As [`SpecErrors::locate`], in the script.
    pub fn locate(&self, errors: &mut SpecErrors) {
        errors.locate_in(&self.tree);
    }
}

/// As [`parse_with_overrides`], for a script: its `#GANGLINE` lines and the `#SBATCH` lines that
/// have a counterpart are the fields, and the script is `run`. See [`is_script`].
///
/// # Errors
/// Every problem of those lines, with its position in the script.
pub fn parse_script(
    source: &str,
    overrides: &[(String, String)],
) -> Result<FromScript, SpecErrors> {
    let batch = import::batch::read(source)?;
    let (mut tree, mut problems) = (batch.tree, batch.problems);
    let mode = Mode { expand_again: true, ..stored(OpenEnv::Allowed) };
    let spec = check(&mut tree, overrides, mode, &mut problems);
    problems.finish(Some(&tree))?;
    Ok(FromScript { spec, warnings: batch.warnings, notes: batch.notes, tree })
}

/// Reads only what a coordinator acts on, and takes a recorded expansion as it is.
const fn stored(open_env: OpenEnv) -> Mode {
    Mode { open_env, expand_again: false }
}

fn read(source: &str, overrides: &[(String, String)], mode: Mode) -> Result<JobSpec, SpecErrors> {
    if source.len() > MAX_SPEC_BYTES {
        let message = format!("the spec has {} bytes; at most {MAX_SPEC_BYTES}", source.len());
        return Err(SpecError::new(Code::TOO_LARGE, "", message, None).into());
    }
    let (mut tree, duplicates) = tree::parse(source)?;
    let mut problems = Problems::default();
    for duplicate in duplicates {
        problems.known(duplicate);
    }
    let spec = check(&mut tree, overrides, mode, &mut problems);
    problems.finish(Some(&tree))?;
    Ok(spec)
}

/// The spec of `tree` with the overrides; what is wrong goes to `problems`.
fn check(
    tree: &mut tree::Node,
    overrides: &[(String, String)],
    mode: Mode,
    problems: &mut Problems,
) -> JobSpec {
    overrides::apply(tree, overrides, problems);
    let spec = convert::job_spec(tree, mode, problems);
    validate::check(&spec, problems);
    spec
}
