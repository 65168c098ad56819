//! `pool`: named sets of nodes that jobs ask for.

use serde::Serialize;
use serde_json::Value;

use super::node::labels;
use super::{check_selector, count, items, or_dash};
use crate::client::Client;
use crate::durations::local;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;
use crate::view::{self, Pool};

/// What to change about a pool.
#[derive(Serialize)]
pub(super) struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub add: Vec<String>,
    pub remove: Vec<String>,
}

/// List pools.
pub(super) async fn list(client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let answer = client.get(&["pools"], &[]).await?;
    let pools = items(&answer, "pools");
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => pools.iter().try_for_each(|pool| screen.json(pool))?,
        Format::Name => {
            for pool in pools {
                screen.line(&clean(&view::read::<Pool>(pool)?.name))?;
            }
        }
        Format::Table | Format::Wide => {
            let titles = &[
                "POOL",
                "NODES",
                "OPEN",
                "GPUS",
                "IN USE",
                "FREE",
                "WAITING",
                "MODELS",
                "DESCRIPTION",
            ];
            let mut table = Table::new(titles, screen.width()).cut_last();
            for pool in pools {
                let pool: Pool = view::read(pool)?;
                let numbers = [
                    pool.nodes,
                    pool.nodes_open,
                    pool.gpus,
                    pool.gpus_in_use,
                    pool.gpus_free,
                    pool.jobs_waiting,
                ];
                let mut row = vec![pool.name.clone()];
                row.extend(numbers.map(|number| number.to_string()));
                row.extend([or_dash(Some(models(&pool))), pool.description]);
                table.row(row);
            }
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

/// `16 x NVIDIA H100 80GB HBM3`.
fn models(pool: &Pool) -> String {
    let models = pool.gpu_models.iter().map(|(model, number)| format!("{number} x {model}"));
    models.collect::<Vec<_>>().join(", ")
}

/// Show a pool and its nodes.
pub(super) async fn show(client: &Client, pool: &str, screen: &Screen) -> Result<u8, CliError> {
    check_selector("pool", pool)?;
    let value = client.get(&["pools", pool], &[]).await?;
    report(&value, screen)?;
    Ok(exit::OK)
}

fn report(value: &Value, screen: &Screen) -> Result<(), CliError> {
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(value),
        Format::Name => screen.line(&clean(&view::read::<Pool>(value)?.name)),
        Format::Table | Format::Wide => screen.print(&text(&view::read(value)?)),
    }
}

fn text(pool: &Pool) -> String {
    let mut out = format!("{}\n", clean(&pool.name));
    let mut line = |label: &str, text: &str| {
        out.push_str(&format!("  {label:<12} {}\n", clean(text)));
    };
    if let (Some(by), Some(set)) = (&pool.set_by, &pool.set) {
        line("description", &or_dash(Some(pool.description.clone())));
        line("set", &format!("{} by {by}", local(set)));
    }
    line("nodes", &format!("{}, {} open", pool.nodes, pool.nodes_open));
    let models = models(pool);
    let models = if models.is_empty() { models } else { format!(": {models}") };
    line(
        "GPUs",
        &format!("{}, {} in use, {} free{models}", pool.gpus, pool.gpus_in_use, pool.gpus_free),
    );
    line("waiting", &format!("{} job(s) name this pool", pool.jobs_waiting));
    let titles = &["NODE", "STATE", "GPUS", "IN USE", "BY", "LABELS"];
    let rows = pool.members.iter().map(|node| {
        vec![
            node.name.clone(),
            node.state.clone(),
            count(node.gpus_total),
            count(node.gpus_in_use),
            or_dash(node.pool_by.clone()),
            labels(&node.labels),
        ]
    });
    out.push_str(&Table::new(titles, None).with_rows(rows).section("Nodes"));
    out
}

/// Make or describe a pool, and move nodes.
pub(super) async fn set(
    client: &Client,
    pool: &str,
    change: &Change,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("pool", pool)?;
    if change.description.is_none() && change.add.is_empty() && change.remove.is_empty() {
        let what = "nothing is to be changed";
        return Err(CliError::new(exit::USAGE, code::USAGE, what)
            .hint("give --description, --add NODE or --remove NODE"));
    }
    change.add.iter().chain(&change.remove).try_for_each(|node| check_selector("node", node))?;
    let body = serde_json::to_string(change).map_err(|error| {
        CliError::new(exit::ERROR, code::INTERNAL, format!("the request cannot be made: {error}"))
    })?;
    let answer = client.patch(&["pools", pool], body).await?;
    report(&answer, screen)?;
    if !change.add.is_empty() || !change.remove.is_empty() {
        screen.hint("jobs that start from now on see it; what runs runs on");
    }
    Ok(exit::OK)
}

/// Delete a pool.
pub(super) async fn delete(client: &Client, pool: &str, screen: &Screen) -> Result<u8, CliError> {
    check_selector("pool", pool)?;
    client.delete(&["pools", pool], &[]).await?;
    screen.hint(&format!("pool {} is deleted", clean(pool)));
    Ok(exit::OK)
}
