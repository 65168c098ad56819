//! `audit`: who did what, and whether the log is whole.

use serde_json::Value;

use super::{items, or_dash};
use crate::client::Client;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;

const COLUMNS: &[&str] = &["AT", "ACTOR", "FROM", "ACTION", "OBJECT", "DETAIL"];

/// Show the newest entries, newest first.
pub(super) async fn list(client: &Client, count: u16, screen: &Screen) -> Result<u8, CliError> {
    let answer = client.get(&["audit"], &[("page_size", count.to_string())]).await?;
    let entries = items(&answer, "entries");
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl | Format::Name => {
            entries.iter().try_for_each(|entry| screen.json(entry))?;
        }
        Format::Table | Format::Wide => {
            let mut table = Table::new(COLUMNS, screen.width()).cut_last();
            for entry in entries {
                let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                table.row(vec![
                    or_dash(text("at").map(|time| crate::durations::local(&time))),
                    or_dash(text("actor")),
                    or_dash(text("source")),
                    or_dash(text("action")),
                    or_dash(text("object")),
                    or_dash(text("detail")),
                ]);
            }
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

/// Follow the chain.
pub(super) async fn verify(client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let answer = client.get(&["audit", "verify"], &[]).await?;
    let intact = answer.get("intact").and_then(Value::as_bool) == Some(true);
    let text = |key: &str| clean(answer.get(key).and_then(Value::as_str).unwrap_or("-"));
    let entries = answer.get("entries").and_then(Value::as_u64).unwrap_or(0);
    if screen.is_json() {
        screen.json(&answer)?;
    } else if intact {
        screen.line(&format!("intact: {entries} entries, last hash {}", text("hash")))?;
        screen.hint(
            "keep the hash elsewhere: a log that was cut at its end is intact as far as it goes",
        );
    }
    if intact {
        return Ok(exit::OK);
    }
    let what = format!("the audit log is broken after {entries} entries");
    Err(CliError::new(exit::ERROR, code::BROKEN_AUDIT, what).why(text("broken")).hint(
        "somebody changed the store: compare it with a backup, and keep this one as evidence",
    ))
}
