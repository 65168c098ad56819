//! `project`: what the jobs of a project may ask for.

use serde_json::{Value, json};

use super::{check_selector, or_dash};
use crate::client::Client;
use crate::durations::local;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;

/// List the projects that the caller may see.
pub(super) async fn list(client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let answer = client.get(&["projects"], &[]).await?;
    let projects = answer.get("projects").and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |project: &Value, key: &str| {
        project.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => projects.iter().try_for_each(|project| screen.json(project))?,
        Format::Name => {
            projects.iter().try_for_each(|project| screen.line(&clean(&text(project, "name"))))?;
        }
        Format::Table | Format::Wide => {
            let mut table =
                Table::new(&["NAME", "HIGHEST PRIORITY", "SET BY", "SET"], screen.width());
            for project in &projects {
                let highest = project.get("max_priority").and_then(Value::as_u64);
                let set = Some(text(project, "set")).filter(|set| !set.is_empty());
                table.row(vec![
                    text(project, "name"),
                    or_dash(highest.map(|highest| highest.to_string())),
                    or_dash(Some(text(project, "set_by"))),
                    or_dash(set.map(|set| local(&set))),
                ]);
            }
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

/// Decide about a project.
pub(super) async fn set(
    client: &Client,
    project: &str,
    max_priority: u8,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("project", project)?;
    let body = json!({ "max_priority": max_priority }).to_string();
    client.put(&["projects", project], &[], "application/json", body).await?;
    screen.hint(&format!("jobs of {} may ask for at most {max_priority}", clean(project)));
    Ok(exit::OK)
}
