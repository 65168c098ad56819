//! Templates and the spec to begin with, which ask nobody, and the schema, which asks the
//! coordinator where there is one.

use std::io::Write;
use std::path::Path;

use gangline_spec::{
    Imported, Names, SpecErrors, Template, find_template, from_sky, from_slurm, modelines, starter,
    templates,
};
use serde_json::{Value, json};

use crate::args::Init;
use crate::client::{Client, schema_address};
use crate::config::Settings;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::spec_input::read_foreign;
use crate::table::Table;

fn find(name: &str) -> Result<&'static Template, CliError> {
    find_template(name).map_err(|hint| {
        let what = format!("there is no template {}", crate::terminal::clean(name));
        CliError::new(exit::INVALID, gangline_spec::Code::BAD_VALUE, what).hint(hint)
    })
}

/// The spec made of another system's file, and its warnings.
fn import(
    path: &Path,
    convert: fn(&str) -> Result<Imported, SpecErrors>,
    screen: &Screen,
) -> Result<String, CliError> {
    let source = read_foreign(path)?;
    let made = convert(&source.text).map_err(|errors| {
        let what = format!("cannot make a spec of {}", source.name);
        CliError::problems(&errors, &source.name, &source.text, what)
    })?;
    for warning in &made.warnings {
        screen.warn(warning);
    }
    Ok(made.text)
}

/// Where an editor finds the schema without a coordinator, beside the spec.
const OWN_SCHEMA: &str = ".gangline/job.v1.json";

/// Write a spec to begin with; a file that exists stays as it is. Its first lines tell editors
/// where the schema is.
pub(super) fn init(
    args: &Init,
    coordinator: Option<&Settings>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let schema = match coordinator {
        Some(settings) => schema_address(&settings.address).to_string(),
        None => OWN_SCHEMA.to_owned(),
    };
    let text = match (&args.from_slurm, &args.from_sky) {
        (Some(path), _) => import(path, from_slurm, screen)?,
        (None, Some(path)) => import(path, from_sky, screen)?,
        (None, None) => starter(args.template.as_deref().map(find).transpose()?),
    };
    let text = modelines(&schema) + &text;
    if args.file.as_os_str() == "-" {
        screen.plain(&text)?;
        return Ok(exit::OK);
    }
    let name = args.file.display();
    // One call makes the file or finds it there, so that no other program's file is lost.
    let file = std::fs::File::options().write(true).create_new(true).open(&args.file);
    let mut file = file.map_err(|error| {
        let what = format!("cannot write {name}");
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            return CliError::new(exit::CONFLICT, code::IO, what)
                .why("it exists, and nothing is overwritten")
                .hint("name another file with --file");
        }
        CliError::io(what, &error)
    })?;
    file.write_all(text.as_bytes())
        .map_err(|error| CliError::io(format!("cannot write {name}"), &error))?;
    if screen.is_json() {
        screen.json(&json!({ "file": name.to_string() }))?;
    }
    screen.hint(&format!("wrote {name}; next: edit it, then gangline plan {name}"));
    let own = args.file.with_file_name(OWN_SCHEMA);
    if coordinator.is_none() && !own.exists() {
        let (own, folder) = (own.display(), own.parent().unwrap_or(Path::new(".")).display());
        screen.hint(&format!(
            "for completion in an editor: mkdir -p {folder} && gangline schema job > {own}"
        ));
    }
    Ok(exit::OK)
}

/// Print the templates of this version.
pub(super) fn list(screen: &Screen) -> Result<u8, CliError> {
    match screen.format() {
        Format::Json => {
            screen.json(&json!({ "items": templates().iter().map(summary).collect::<Vec<_>>() }))?
        }
        Format::Jsonl => templates().iter().try_for_each(|t| screen.json(&summary(t)))?,
        Format::Name => templates().iter().try_for_each(|t| screen.line(&t.name))?,
        Format::Table | Format::Wide => {
            let mut table = Table::new(&["NAME", "VERSION", "ABOUT"], screen.width()).cut_last();
            for template in templates() {
                let version = template.version.to_string();
                table.row(vec![template.name.clone(), version, template.about.clone()]);
            }
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

fn summary(template: &Template) -> Value {
    json!({ "name": template.name, "version": template.version, "about": template.about })
}

/// Print one template.
pub(super) fn show(name: &str, screen: &Screen) -> Result<u8, CliError> {
    let template = find(name)?;
    match screen.format() {
        Format::Json | Format::Jsonl => {
            let mut value = summary(template);
            value["params"] = template.params_schema();
            value["source"] = json!(template.source);
            screen.json(&value)?;
        }
        Format::Name => screen.line(&template.full_name())?,
        Format::Table | Format::Wide => screen.plain(template.source)?,
    }
    Ok(exit::OK)
}

/// Print the JSON Schema of a job spec: the coordinator's, which completes the pools and GPU models
/// of its fleet, or the one of this program for a user who is not logged in.
pub(super) async fn job_schema(
    coordinator: Option<&Settings>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let schema = match coordinator {
        Some(settings) => Client::new(settings)?.job_schema().await?,
        None => {
            screen.hint("not logged in: the schema names no pools and GPU models");
            gangline_spec::schema(&Names::default(), templates())
        }
    };
    screen.json(&schema)?;
    Ok(exit::OK)
}
