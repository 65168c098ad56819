//! `node`: the nodes of the cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::show::{history, members};
use super::{bytes, check_selector, confirm, count, items, or_dash};
use crate::args::LabelChange;
use crate::client::{Client, Post, Repeat};
use crate::durations::{local, short};
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;
use crate::view::{self, Node, NodeList};

const COLUMNS: &[&str] =
    &["NODE", "STATE", "POOL", "GPUS", "IN USE", "GPU%", "TEMP", "POWER", "LAST", "JOBS", "REASON"];
const WIDE: &[&str] = &[
    "NODE",
    "ID",
    "STATE",
    "REACH",
    "LIFECYCLE",
    "POOL",
    "ROLES",
    "LABELS",
    "ADDRESS",
    "GPUS",
    "IN USE",
    "GPU%",
    "TEMP",
    "POWER",
    "CPUS",
    "MEMORY",
    "AGENT",
    "LAST",
    "WANTED",
    "HELD",
    "JOBS",
    "REASON",
];

/// All nodes: the answer as it came, and as structs.
pub(super) async fn fetch(client: &Client) -> Result<(Value, Vec<Node>), CliError> {
    let answer = client.get(&["nodes"], &[]).await?;
    let list: NodeList = view::read(&answer)?;
    let nodes = list.nodes.iter().map(view::read).collect::<Result<_, _>>()?;
    Ok((answer, nodes))
}

/// List nodes.
pub(super) async fn list(client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let (answer, nodes) = fetch(client).await?;
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => items(&answer, "nodes").iter().try_for_each(|node| screen.json(node))?,
        Format::Name => {
            nodes.iter().try_for_each(|node| screen.line(&node.name))?;
        }
        Format::Table | Format::Wide => {
            screen.print(&table(&nodes, screen).take())?;
            screen.hint(&summary(&nodes));
        }
    }
    Ok(exit::OK)
}

/// The table of nodes; the last column may be cut on a terminal.
pub(super) fn table(nodes: &[Node], screen: &Screen) -> Table {
    let wide = screen.is_wide();
    let mut table = Table::new(if wide { WIDE } else { COLUMNS }, screen.width()).cut_last();
    for node in nodes {
        table.row(if wide { wide_row(node) } else { row(node) });
    }
    table
}

/// "3 nodes: 1 busy 2 ready · 24 GPUs: 8 in use".
pub(super) fn summary(nodes: &[Node]) -> String {
    let mut states: Vec<(&str, usize)> = Vec::new();
    for node in nodes {
        match states.iter_mut().find(|(state, _)| *state == node.state) {
            Some((_, number)) => *number += 1,
            None => states.push((&node.state, 1)),
        }
    }
    let states: Vec<String> =
        states.iter().map(|(state, number)| format!("{number} {}", clean(state))).collect();
    let total: u64 = nodes.iter().filter_map(|node| node.gpus_total).sum();
    let used: u64 = nodes.iter().filter_map(|node| node.gpus_in_use).sum();
    let plural = if nodes.len() == 1 { "" } else { "s" };
    let colon = if states.is_empty() { "" } else { ": " };
    format!("{} node{plural}{colon}{} · {total} GPUs, {used} in use", nodes.len(), states.join(" "))
}

fn row(node: &Node) -> Vec<String> {
    let mut cells = vec![node.name.clone(), node.state.clone(), or_dash(node.pool.clone())];
    cells.extend(gpu_cells(node));
    cells.extend([last_word(node), or_dash(Some(node.jobs.join(","))), reason(node)]);
    cells
}

fn wide_row(node: &Node) -> Vec<String> {
    let mut cells = vec![
        node.name.clone(),
        node.id.clone(),
        node.state.clone(),
        or_dash(Some(node.reachability.clone())),
        or_dash(Some(node.lifecycle.clone())),
        or_dash(node.pool.clone()),
        or_dash(Some(node.roles.join(","))),
        or_dash(Some(labels(&node.labels))),
        or_dash(node.address.clone()),
    ];
    cells.extend(gpu_cells(node));
    cells.extend([
        or_dash(node.cpus.map(|cpus| cpus.to_string())),
        or_dash(node.memory_bytes.map(bytes)),
        or_dash(node.agent_version.clone()),
        last_word(node),
        or_dash(node.generation.as_ref().map(ToString::to_string)),
        or_dash(node.held.as_ref().map(ToString::to_string)),
        or_dash(Some(node.jobs.join(","))),
        reason(node),
    ]);
    cells
}

/// GPUs, in use, mean utilisation, highest temperature, power of all together.
fn gpu_cells(node: &Node) -> [String; 5] {
    let samples: Vec<_> = node.gpus.iter().filter_map(|gpu| gpu.sample.as_ref()).collect();
    let busy: Vec<f64> = samples.iter().filter_map(|sample| sample.utilization_pct).collect();
    let mean = (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64);
    let hottest = samples.iter().filter_map(|sample| sample.temperature_c).reduce(f64::max);
    let power = samples.iter().filter_map(|sample| sample.power_w).reduce(|a, b| a + b);
    [
        count(node.gpus_total),
        count(node.gpus_in_use),
        or_dash(mean.map(|mean| format!("{mean:.0}"))),
        or_dash(hottest.map(|temperature| format!("{temperature:.0}"))),
        or_dash(power.map(watts)),
    ]
}

/// Power as people say it: `312W`, `5.1kW`.
pub(super) fn watts(watts: f64) -> String {
    if watts >= 1000.0 { format!("{:.1}kW", watts / 1000.0) } else { format!("{watts:.0}W") }
}

fn last_word(node: &Node) -> String {
    or_dash(node.last_word_ms_ago.map(|age| match age {
        0..10_000 => format!("{}.{}s", age / 1000, age % 1000 / 100),
        age => short(age / 1000),
    }))
}

fn reason(node: &Node) -> String {
    let mut reasons = Vec::new();
    if let Some(cordon) = &node.cordon {
        reasons.push(format!("cordoned by {}: {}", cordon.by, cordon.why));
    }
    if let Some(drain) = &node.drain {
        let by_when = drain.deadline.as_deref().map(|time| format!(", until {}", local(time)));
        let by_when = by_when.unwrap_or_default();
        reasons.push(format!("drained by {}: {}{by_when}", drain.by, drain.why));
    }
    if !node.unknown_members.is_empty() {
        reasons.push(format!("{} unknown member(s) run there", node.unknown_members.len()));
    }
    reasons.join("; ")
}

/// Show everything about a node.
pub(super) async fn show(client: &Client, node: &str, screen: &Screen) -> Result<u8, CliError> {
    check_selector("node", node)?;
    let value = client.get(&["nodes", node], &[]).await?;
    report(&value, screen)?;
    Ok(exit::OK)
}

fn report(value: &Value, screen: &Screen) -> Result<(), CliError> {
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(value),
        Format::Name => screen.line(&view::read::<Node>(value)?.name),
        Format::Table | Format::Wide => screen.print(&text(&view::read(value)?)),
    }
}

fn text(node: &Node) -> String {
    let mut out = format!("{}  {}\n", clean(&node.name), clean(&node.id));
    let mut line = |label: &str, text: &str| {
        out.push_str(&format!("  {label:<12} {}\n", clean(text)));
    };
    let reason = reason(node);
    let gap = if reason.is_empty() { "" } else { "  " };
    line("state", &format!("{}{gap}{reason}", node.state));
    line("last word", &format!("{} ago", last_word(node)));
    let pool_by = node.pool_by.as_ref().map(|by| format!(" (by the {by})")).unwrap_or_default();
    line("pool", &format!("{}{pool_by}", or_dash(node.pool.clone())));
    line("roles", &or_dash(Some(node.roles.join(" "))));
    line("labels", &or_dash(Some(labels(&node.labels))));
    if !node.operator_labels.is_empty() {
        line("  operators'", &labels(&node.operator_labels));
        line("  agent's", &or_dash(Some(labels(&node.agent_labels))));
    }
    line("address", &or_dash(node.address.clone()));
    line("host name", &or_dash(node.hostname.clone()));
    line("agent", &or_dash(node.agent_version.clone()));
    let versions: Vec<String> =
        node.versions.iter().map(|(what, version)| format!("{what} {version}")).collect();
    line("versions", &or_dash(Some(versions.join(", "))));
    line("CPUs", &or_dash(node.cpus.map(|cpus| cpus.to_string())));
    line("memory", &or_dash(node.memory_bytes.map(bytes)));
    if let Some(host) = &node.host {
        let percent = or_dash(host.cpu_busy_pct.map(|busy| format!("{busy:.0} %")));
        let load = or_dash(host.load1.map(|load| format!("{load:.1}")));
        let used = or_dash(host.memory_used_bytes.map(bytes));
        let shm = or_dash(host.shm_free_bytes.map(bytes));
        line("now", &format!("CPU {percent}, load {load}, memory {used}, /dev/shm free {shm}"));
    }
    let text = |value: &Option<view::Loose>| or_dash(value.as_ref().map(ToString::to_string));
    line("wanted", &format!("{}, agent holds {}", text(&node.generation), text(&node.held)));
    for member in &node.unknown_members {
        line("unknown", &member.to_string());
    }
    out.push_str(&super::top::gpu_table(std::slice::from_ref(node)).section("GPUs"));
    out.push_str(&members(&node.members));
    out.push_str(&doctor(node).section("Doctor"));
    out.push_str(&history(&node.history));
    out
}

fn doctor(node: &Node) -> Table {
    let mut table = Table::new(&["CHECK", "LEVEL", "FINDING"], None);
    for finding in &node.doctor {
        let advice = finding.advice.as_ref().map(|advice| format!(" → {advice}"));
        let text = format!("{}{}", finding.text, advice.unwrap_or_default());
        table.row(vec![finding.check.clone(), finding.level.clone(), text]);
    }
    table
}

/// Cordon, drain or resume a node.
pub(super) async fn maintain(
    client: &Client,
    node: &str,
    what: &str,
    body: Value,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("node", node)?;
    let post = Post {
        path: &["nodes", node, what],
        query: &[],
        body: body.to_string(),
        command: None,
        // Twice is once, but for a deadline that begins anew.
        repeat: Repeat::Safe,
    };
    let answer = client.post(&post, screen).await?;
    if screen.is_json() {
        screen.json(&answer)?;
    } else {
        let changed: Node = view::read(&answer)?;
        screen.line(
            format!("{}  {}  {}", changed.name, changed.state, reason(&changed)).trim_end(),
        )?;
    }
    Ok(exit::OK)
}

/// `rack=r12 rail=3`.
pub(super) fn labels(labels: &BTreeMap<String, String>) -> String {
    let pairs = labels.iter().map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(" ")
}

/// Give labels to a node, and take labels of operators back.
pub(super) async fn label(
    client: &Client,
    node: &str,
    changes: &[LabelChange],
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("node", node)?;
    let mut wanted = serde_json::Map::new();
    for LabelChange { key, value } in changes {
        if wanted.insert(key.clone(), json!(value)).is_some() {
            let what = format!("label {key} is named twice");
            return Err(CliError::new(exit::USAGE, code::USAGE, what).hint("keep one"));
        }
    }
    let answer = client.patch(&["nodes", node], json!({ "labels": wanted }).to_string()).await?;
    if screen.is_json() {
        screen.json(&answer)?;
    } else {
        let changed: Node = view::read(&answer)?;
        screen.line(&clean(&format!(
            "{}  {}",
            changed.name,
            or_dash(Some(labels(&changed.labels)))
        )))?;
        screen.hint("jobs that start from now on see it; what runs there runs on");
    }
    Ok(exit::OK)
}

/// Give up what a lost node holds.
pub(super) async fn force_release(
    client: &Client,
    node: &str,
    reason: &str,
    yes: bool,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("node", node)?;
    let lost: Node = view::read(&client.get(&["nodes", node], &[]).await?)?;
    let jobs = clean(&lost.jobs.join(", "));
    let question = format!(
        "Release node {}? You answer for it that nothing of {} runs there any more: if something \
         does, two attempts may write the same training checkpoints.",
        clean(&lost.name),
        if jobs.is_empty() { "any job" } else { &jobs },
    );
    confirm(&question, yes)?;
    let post = Post {
        path: &["nodes", node, "force-release"],
        query: &[],
        body: json!({ "reason": reason }).to_string(),
        command: None,
        repeat: Repeat::Never,
    };
    let answer = client.post(&post, screen).await?;
    if screen.is_json() {
        screen.json(&answer)?;
    } else {
        screen.line(&format!("{}  released  {jobs}", clean(&lost.name)))?;
    }
    Ok(exit::OK)
}

/// Take a node's identity away.
pub(super) async fn revoke(
    client: &Client,
    node: &str,
    yes: bool,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("node", node)?;
    let question = format!("Revoke node {node}? Its agent cannot come back without a new token.");
    confirm(&question, yes)?;
    let post = Post {
        path: &["nodes", node, "revoke"],
        query: &[],
        body: "{}".to_owned(),
        command: None,
        // A node that is revoked twice is revoked once.
        repeat: Repeat::Safe,
    };
    let answer = client.post(&post, screen).await?;
    if screen.is_json() {
        screen.json(&answer)?;
    } else {
        screen.line(&format!("{node}  revoked"))?;
    }
    Ok(exit::OK)
}
