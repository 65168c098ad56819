//! Commands that ask nobody: `validate`, `plan` and `version`.

use serde_json::json;

use crate::args::{Plan, Validate};
use crate::code::Local;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::spec_input::{Input, canonical, check, prepare, read_source};

/// Check a spec. The environment that it takes from the shell is not looked up: that is the
/// matter of the shell that submits it.
pub(super) fn validate(args: &Validate, screen: &Screen) -> Result<u8, CliError> {
    let source = read_source(&args.spec)?;
    let spec = check(&source)?.say(screen);
    if screen.is_json() {
        screen.json(&json!({ "file": source.name, "valid": true }))?;
    } else {
        let resources = &spec.resources;
        screen.hint(&format!(
            "{} is valid: {}, {} node(s) with {} GPU(s) each",
            crate::terminal::clean(&source.name),
            spec.launcher.kind.word(),
            resources.nnodes_text(),
            resources.gpus_per_node,
        ));
    }
    Ok(exit::OK)
}

/// Print the spec with every default and the arguments of its template. Whether and when the job
/// could start is the coordinator's matter, which is not asked.
pub(super) fn plan(args: &Plan, screen: &Screen) -> Result<u8, CliError> {
    let input = Input::File { path: &args.spec, command: &[] };
    let spec = prepare(&input, &args.options, |name| std::env::var(name).ok())?.say(screen);
    let code = Local::find(&spec, &Local::base_of(Some(&args.spec)))?;
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&canonical(&spec)?)?,
        Format::Name => screen.line(spec.name.as_deref().unwrap_or_default())?,
        Format::Table | Format::Wide => {
            spec.to_yaml().lines().try_for_each(|line| screen.line(line))?;
        }
    }
    if let Some(code) = code {
        screen.hint(&code.describe());
    }
    screen.hint("the spec is valid; nothing was sent");
    Ok(exit::OK)
}

/// Print the version of this program.
pub(super) fn version(screen: &Screen) -> Result<u8, CliError> {
    let version = env!("CARGO_PKG_VERSION");
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&json!({ "version": version }))?,
        Format::Name => screen.line(version)?,
        Format::Table | Format::Wide => screen.line(&format!("gangline {version}"))?,
    }
    Ok(exit::OK)
}
