//! `ray`: what the Ray cluster of a running job says of itself.

use serde_json::Value;

use super::{bytes, one_job, or_dash};
use crate::args::{RayCommand, RayList};
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;

/// One list: its place in the API, the field of its items, the field of their ids, and its table.
struct List {
    segment: &'static str,
    id: &'static str,
    titles: &'static [&'static str],
    /// How many of the titles a table has that is not wide.
    narrow: usize,
    /// The cells below `titles`.
    cells: fn(&Value) -> Vec<String>,
}

const NODES: List = List {
    segment: "nodes",
    id: "node_id",
    titles: &["MEMBER", "NODE", "STATE", "ADDRESS", "RESOURCES", "RAY NODE", "MESSAGE"],
    narrow: 5,
    cells: |item| {
        vec![
            text(item, "member"),
            text(item, "node"),
            text(item, "state"),
            text(item, "address"),
            resources(item),
            text(item, "node_id"),
            text(item, "state_message"),
        ]
    },
};

const ACTORS: List = List {
    segment: "actors",
    id: "actor_id",
    titles: &[
        "ACTOR",
        "CLASS",
        "NAME",
        "STATE",
        "MEMBER",
        "NODE",
        "PID",
        "RESTARTS",
        "CAUSE OF DEATH",
        "RESOURCES",
        "PLACEMENT GROUP",
        "RAY NODE",
    ],
    narrow: 9,
    cells: |item| {
        vec![
            text(item, "actor_id"),
            text(item, "class"),
            text(item, "name"),
            text(item, "state"),
            text(item, "member"),
            text(item, "node"),
            text(item, "pid"),
            text(item, "restarts"),
            cause(item),
            resources(item),
            text(item, "placement_group_id"),
            text(item, "node_id"),
        ]
    },
};

const PLACEMENT_GROUPS: List = List {
    segment: "placement_groups",
    id: "placement_group_id",
    titles: &["PLACEMENT GROUP", "NAME", "STATE", "SCHEDULING", "BUNDLES"],
    narrow: 5,
    cells: |item| {
        vec![
            text(item, "placement_group_id"),
            text(item, "name"),
            text(item, "state"),
            text(item, "scheduling"),
            bundles(item),
        ]
    },
};

/// Show one list.
pub(super) async fn run(
    client: &Client,
    command: &RayCommand,
    screen: &Screen,
) -> Result<u8, CliError> {
    let (list, RayList { job, state, count }) = match command {
        RayCommand::Nodes(of) => (NODES, of),
        RayCommand::Actors(of) => (ACTORS, of),
        RayCommand::Pgs(of) => (PLACEMENT_GROUPS, of),
    };
    let job = one_job(job)?;
    let mut query = vec![("page_size", count.to_string())];
    query.extend(state.clone().map(|state| ("state", state)));
    let answer = client.get(&["jobs", &job, "ray", list.segment], &query).await?;
    let items = answer.get(list.segment).and_then(Value::as_array).cloned().unwrap_or_default();
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => items.iter().try_for_each(|item| screen.json(item))?,
        Format::Name => {
            items.iter().try_for_each(|item| screen.line(&text(item, list.id)))?;
        }
        Format::Table | Format::Wide => {
            let shown = if screen.is_wide() { list.titles.len() } else { list.narrow };
            let titles = list.titles.get(..shown).unwrap_or(list.titles);
            let mut table = Table::new(titles, screen.width()).cut_last();
            for item in &items {
                let mut cells = (list.cells)(item);
                cells.truncate(titles.len());
                table.row(cells);
            }
            screen.print(&table.take())?;
        }
    }
    let total = answer.get("total").and_then(Value::as_u64).unwrap_or(0);
    if total > items.len() as u64 {
        screen.hint(&format!("{} of {total} are shown; --state and -n choose others", items.len()));
    }
    Ok(exit::OK)
}

/// A text or a number as a cell.
fn text(item: &Value, key: &str) -> String {
    or_dash(match item.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    })
}

/// The last line of a cause of death: Python names the error there.
fn cause(item: &Value) -> String {
    let cause = item.get("death_cause").and_then(Value::as_str).unwrap_or_default();
    or_dash(cause.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned))
}

/// What a node has, or an actor or a bundle asks for: `CPU 4, GPU 2, memory 23.1 GiB`.
fn resources(item: &Value) -> String {
    let Some(resources) = item.get("resources").and_then(Value::as_object) else {
        return or_dash(None);
    };
    // Every node has a resource of its own name, which says nothing more.
    let told = resources.iter().filter(|(name, _)| !name.starts_with("node:"));
    let cell = |(name, amount): (&String, &Value)| {
        let amount = amount.as_f64().unwrap_or(0.0);
        match name.ends_with("memory") {
            // Ray counts memory in bytes, far below what a float holds exactly.
            true => format!("{name} {}", bytes(amount as u64)),
            false => format!("{name} {amount}"),
        }
    };
    let cells: Vec<String> = told.map(cell).collect();
    or_dash(Some(cells.join(", ")))
}

/// The bundles with their places: `0: CPU 1 on 0 (gpu-01); 1: CPU 1 waits`.
fn bundles(item: &Value) -> String {
    let Some(bundles) = item.get("bundles").and_then(Value::as_array) else {
        return or_dash(None);
    };
    let cell = |bundle: &Value| {
        let place = match bundle.get("member").and_then(Value::as_str) {
            Some(member) => format!("on {member} ({})", text(bundle, "node")),
            None => "waits".to_owned(),
        };
        format!("{}: {} {place}", text(bundle, "index"), resources(bundle))
    };
    let cells: Vec<String> = bundles.iter().map(cell).collect();
    or_dash(Some(cells.join("; ")))
}
