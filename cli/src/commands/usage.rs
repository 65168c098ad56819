//! `usage`: what was used of the GPUs, and what became of it.

use serde_json::Value;

use super::items;
use crate::args::{By, Usage};
use crate::client::Client;
use crate::durations::local;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;

/// The titles of a table with this first column.
macro_rules! titles {
    ($first:literal $(, $last:literal)*) => {
        [
            $first,
            "GPU-HOURS",
            "PRODUCTIVE",
            "IDLE",
            "UNMEASURED",
            "STARTUP",
            "HUNG",
            "LOST",
            "STOPPING",
            "JOBS",
            "ATTEMPTS",
            $($last,)*
        ]
    };
}

/// The classes in the order of their columns.
const CLASSES: [&str; 7] = [
    "productive_gpu_s",
    "idle_gpu_s",
    "unmeasured_gpu_s",
    "startup_gpu_s",
    "hung_gpu_s",
    "lost_gpu_s",
    "stopping_gpu_s",
];

/// GPU-seconds that are of no allocation, in the order of their columns.
const VACANT: [&str; 3] = ["queued_gpu_s", "fragmented_gpu_s", "quarantined_gpu_s"];

/// Show the usage.
pub(super) async fn run(client: &Client, args: &Usage, screen: &Screen) -> Result<u8, CliError> {
    let mut query =
        vec![("by", args.by.word().to_owned()), ("since_s", args.since.as_secs().to_string())];
    query.extend(args.project.clone().map(|project| ("project", project)));
    let answer = client.get(&["usage"], &query).await?;
    let rows = items(&answer, "rows");
    match screen.format() {
        _ if args.csv => csv(args.by, rows).iter().try_for_each(|line| screen.line(line))?,
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => rows.iter().try_for_each(|row| screen.json(row))?,
        Format::Name => rows.iter().try_for_each(|row| screen.line(&clean(&key(row))))?,
        Format::Table | Format::Wide => {
            let titles: &[&str] = match args.by {
                By::User => &titles!("USER"),
                By::Project => &titles!("PROJECT", "QUEUED"),
                By::Pool => &titles!("POOL", "QUEUED", "FRAGMENTED", "QUARANTINED"),
                By::Job => &titles!("JOB"),
            };
            let mut table = Table::new(titles, screen.width());
            let vacant = match args.by {
                By::User | By::Job => &VACANT[..0],
                By::Project => &VACANT[..1],
                By::Pool => &VACANT,
            };
            rows.iter().for_each(|row| table.row(cells(row, vacant)));
            if let Some(total) = answer.get("total").filter(|_| rows.len() > 1) {
                table.row(cells(total, vacant));
            }
            screen.print(&table.take())?;
        }
    }
    let left_out = answer.get("left_out").and_then(Value::as_u64).unwrap_or(0);
    if left_out > 0 {
        screen.hint(&format!("{left_out} more rows are not shown"));
    }
    if let Some(since) = answer.get("complete_since").and_then(Value::as_str) {
        screen.hint(&format!(
            "the books are full: what ended before {} is not in them",
            local(since)
        ));
    }
    Ok(exit::OK)
}

/// A line of titles and one for each row, without the total: GPU-seconds, and nothing where it cannot be
/// told.
fn csv(by: By, rows: &[Value]) -> Vec<String> {
    let seconds: Vec<&str> = ["allocated_gpu_s"].into_iter().chain(CLASSES).chain(VACANT).collect();
    let titles = [by.word(), "jobs", "attempts"].into_iter().chain(seconds.iter().copied());
    let mut lines = vec![titles.collect::<Vec<_>>().join(",")];
    for row in rows {
        let number = |key: &&str| row.get(*key).and_then(Value::as_number).map(ToString::to_string);
        let numbers = ["jobs", "attempts"].iter().chain(&seconds);
        let numbers = numbers.map(|key| number(key).unwrap_or_default());
        lines.push([quoted(&key(row))].into_iter().chain(numbers).collect::<Vec<_>>().join(","));
    }
    lines
}

/// A field as RFC 4180 has it.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

fn key(row: &Value) -> String {
    row.get("key").and_then(Value::as_str).unwrap_or("-").to_owned()
}

/// GPU-hours, the classes as parts of them, and hours that are of no allocation.
fn cells(row: &Value, vacant: &[&str]) -> Vec<String> {
    let seconds = |key: &str| row.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let count = |key: &str| row.get(key).and_then(Value::as_u64).unwrap_or(0).to_string();
    let all = seconds("allocated_gpu_s");
    let part = |class: &&str| match seconds(class) {
        none if none <= 0.0 => "-".to_owned(),
        some if some < all * 0.001 => "<0.1%".to_owned(),
        some => format!("{:.1}%", some / all * 100.0),
    };
    let mut cells = vec![key(row), format!("{:.1}", all / 3600.0)];
    cells.extend(CLASSES.iter().map(part));
    cells.extend([count("jobs"), count("attempts")]);
    cells.extend(vacant.iter().map(|key| match seconds(key) {
        none if none <= 0.0 => "-".to_owned(),
        some => format!("{:.1}", some / 3600.0),
    }));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_are_parts_of_the_hours() {
        let row = json!({
            "key": "rlhf", "jobs": 2, "attempts": 3, "allocated_gpu_s": 7200.0,
            "productive_gpu_s": 5400.0, "idle_gpu_s": 1.0, "lost_gpu_s": 1799.0,
        });
        let expected = ["rlhf", "2.0", "75.0%", "<0.1%", "-", "-", "-", "25.0%", "-", "2", "3"];
        assert_eq!(cells(&row, &[]), expected);
        let pool = json!({"key": "h100", "queued_gpu_s": 7200.0, "fragmented_gpu_s": null});
        assert_eq!(cells(&pool, &VACANT)[11..], ["2.0", "-", "-"]);
    }
}
