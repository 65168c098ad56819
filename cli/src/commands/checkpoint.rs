//! `checkpoint`: the training checkpoints of a job.

use serde_json::Value;

use super::{bytes, one_job};
use crate::client::Client;
use crate::durations::short;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;

const TITLES: [&str; 6] = ["NAME", "SIZE", "FILES", "AGE", "COMPLETE", ""];

/// List them, those that were changed last first.
pub(super) async fn list(client: &Client, job: &str, screen: &Screen) -> Result<u8, CliError> {
    let job = one_job(job)?;
    let answer = client.get(&["jobs", &job, "checkpoints"], &[]).await?;
    let items = answer.get("checkpoints").and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |item: &Value, key: &str| {
        item.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let number = |item: &Value, key: &str| item.get(key).and_then(Value::as_u64).unwrap_or(0);
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => items.iter().try_for_each(|item| screen.json(item))?,
        Format::Name => {
            items.iter().try_for_each(|item| screen.line(&text(item, "name")))?;
        }
        Format::Table | Format::Wide => {
            let mut table = Table::new(&TITLES, screen.width());
            for item in &items {
                let is = |key: &str| item.get(key).and_then(Value::as_bool).unwrap_or(false);
                table.row(vec![
                    text(item, "name"),
                    bytes(number(item, "bytes")),
                    number(item, "files").to_string(),
                    short(number(item, "age_s")),
                    if is("complete") { "yes" } else { "not yet known" }.to_owned(),
                    if is("newest") { "<- newest" } else { "" }.to_owned(),
                ]);
            }
            screen.print(&table.take())?;
            let (directory, node) = (text(&answer, "directory"), text(&answer, "node"));
            screen.hint(&format!(
                "{} in {} (asked on {})",
                items.len(),
                clean(&directory),
                clean(&node)
            ));
        }
    }
    Ok(exit::OK)
}
