//! `project`: what the jobs of a project may ask for and use.

use serde_json::{Value, json};

use super::{check_selector, or_dash};
use crate::args::ProjectSettings;
use crate::client::Client;
use crate::durations::{local, short};
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
                Table::new(&["NAME", "HIGHEST PRIORITY", "GPUS", "SET BY", "SET"], screen.width());
            for project in &projects {
                let highest = project.get("max_priority").and_then(Value::as_u64);
                let set = Some(text(project, "set")).filter(|set| !set.is_empty());
                table.row(vec![
                    text(project, "name"),
                    or_dash(highest.map(|highest| highest.to_string())),
                    or_dash(Some(quotas(project)).filter(|quotas| !quotas.is_empty())),
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
    settings: &ProjectSettings,
    screen: &Screen,
) -> Result<u8, CliError> {
    let name = &settings.project;
    check_selector("project", name)?;
    let mut body = serde_json::Map::new();
    let mut said = Vec::new();
    if let Some(max_priority) = settings.max_priority {
        body.insert("max_priority".to_owned(), json!(max_priority));
        said.push(format!("may ask for at most priority {max_priority}"));
    }
    if let Some(pool) = &settings.pool {
        let quota = json!({ "guaranteed": settings.guaranteed, "maximum": settings.max_gpus });
        body.insert("quotas".to_owned(), json!({ pool: quota }));
        let most = settings.max_gpus.map_or("any number".to_owned(), |most| most.to_string());
        said.push(format!(
            "are guaranteed {} GPUs of pool {} and may use {most}",
            settings.guaranteed,
            clean(pool)
        ));
    }
    if let Some(pool) = &settings.no_quota {
        body.insert("end_quotas".to_owned(), json!([pool]));
        said.push(format!("have no quota in pool {}", clean(pool)));
    }
    if settings.idle_warn.is_some() || settings.idle_reclaim.is_some() {
        let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs());
        let (warn, reclaim) = (seconds(settings.idle_warn), seconds(settings.idle_reclaim));
        body.insert("idle".to_owned(), json!({ "warn_after_s": warn, "reclaim_after_s": reclaim }));
        let after = reclaim
            .map_or("are never stopped".to_owned(), |s| format!("are stopped after {}", short(s)));
        said.push(format!("{after} when their GPUs are idle"));
    }
    client.put(&["projects", name], &[], "application/json", json!(body).to_string()).await?;
    screen.hint(&format!("jobs of {} {}", clean(name), said.join(", ")));
    Ok(exit::OK)
}

/// "h100-a: 16 of 32 to 64" for each pool with a quota.
fn quotas(project: &Value) -> String {
    let quotas = project.get("quotas").and_then(Value::as_object);
    let number = |quota: &Value, key: &str| quota.get(key).and_then(Value::as_u64);
    let one = |(pool, quota): (&String, &Value)| {
        let most = number(quota, "maximum").map_or("any".to_owned(), |most| most.to_string());
        let [used, guaranteed] =
            ["in_use", "guaranteed"].map(|key| number(quota, key).unwrap_or_default());
        format!("{pool}: {used} of {guaranteed} to {most}")
    };
    quotas.into_iter().flatten().map(one).collect::<Vec<_>>().join(", ")
}
