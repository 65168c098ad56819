//! `top`: what nodes and GPUs do now.

use std::time::Duration;

use serde_json::Value;

use super::node::{fetch, summary, table, watts};
use super::{bytes, count, items, or_dash};
use crate::args::Top;
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::view::Node;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// Show nodes and GPUs: once, or every second until Ctrl-C. Without a terminal every look is
/// appended, as JSON lines.
pub(super) async fn run(client: &Client, args: &Top, screen: &Screen) -> Result<u8, CliError> {
    let mut shown: Option<String> = None;
    loop {
        match fetch(client).await {
            Ok((answer, nodes)) if args.once => {
                once(&answer, &nodes, screen)?;
                return Ok(exit::OK);
            }
            Ok((_, nodes)) if screen.is_terminal() && !screen.is_json() => {
                let text = text(&nodes, screen);
                screen.redraw(&text)?;
                shown = Some(text);
            }
            Ok((answer, _)) => {
                lines(&answer, screen)?;
                shown.get_or_insert_default();
            }
            Err(error) if error.is_transport() => match &shown {
                Some(text) if screen.is_terminal() && !screen.is_json() => {
                    screen.redraw(&format!(
                        "{text}{}; trying again\n",
                        crate::terminal::clean(&error.to_string())
                    ))?;
                }
                Some(_) => screen.hint(&format!("{error}; trying again")),
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn once(answer: &Value, nodes: &[Node], screen: &Screen) -> Result<(), CliError> {
    match screen.format() {
        Format::Json => screen.json(answer),
        Format::Jsonl => lines(answer, screen),
        Format::Name => nodes.iter().try_for_each(|node| screen.line(&node.name)),
        Format::Table | Format::Wide => screen.print(&text(nodes, screen)),
    }
}

fn lines(answer: &Value, screen: &Screen) -> Result<(), CliError> {
    items(answer, "nodes").iter().try_for_each(|node| screen.json_line(node))
}

fn text(nodes: &[Node], screen: &Screen) -> String {
    let mut out = format!("{}\n\n{}", summary(nodes), table(nodes, screen).take());
    if nodes.iter().any(|node| !node.gpus.is_empty()) {
        out.push_str(&format!("\n{}", gpu_table(nodes).take()));
    }
    out
}

/// One row for each GPU of `nodes`.
pub(super) fn gpu_table(nodes: &[Node]) -> Table {
    let titles = &["NODE", "GPU", "MODEL", "BUSY%", "MEMORY", "TEMP", "POWER", "JOB", "UUID"];
    let mut table = Table::new(titles, None);
    for node in nodes {
        for gpu in &node.gpus {
            let sample = gpu.sample.as_ref();
            let total = sample.and_then(|sample| sample.memory_total_bytes).or(gpu.memory_bytes);
            let used = sample.and_then(|sample| sample.memory_used_bytes);
            let memory = match (used, total) {
                (Some(used), Some(total)) => Some(format!("{} of {}", bytes(used), bytes(total))),
                (None, Some(total)) => Some(format!("- of {}", bytes(total))),
                (used, None) => used.map(bytes),
            };
            // A job of another project is not named, but the GPU is in use.
            let hidden = gpu.in_use.filter(|used| *used).map(|_| "in use".to_owned());
            table.row(vec![
                node.name.clone(),
                count(gpu.index),
                or_dash(Some(gpu.name.clone())),
                or_dash(sample.and_then(|s| s.utilization_pct).map(|busy| format!("{busy:.0}"))),
                or_dash(memory),
                or_dash(sample.and_then(|s| s.temperature_c).map(|t| format!("{t:.0}"))),
                or_dash(sample.and_then(|s| s.power_w).map(watts)),
                or_dash(gpu.job.clone().or(hidden)),
                or_dash(Some(gpu.uuid.clone())),
            ]);
        }
    }
    table
}
