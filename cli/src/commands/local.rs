//! Commands that ask nobody: `validate` and `version`.

use serde_json::json;

use crate::args::Validate;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::spec_input::{check, read_source};

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
