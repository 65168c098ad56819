//! `node`: the nodes of the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

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
use crate::top::draw::rate;
use crate::view::{self, Condition, Node, NodeList};

const COLUMNS: &[&str] = &[
    "NODE", "STATE", "POOL", "GPUS", "IN USE", "FREE", "GPU%", "TEMP", "POWER", "LAST", "JOBS",
    "REASON",
];
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
    "FREE",
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

/// The nodes of one pool, or of all: the answer as it came, and as structs.
pub(crate) async fn fetch(
    client: &Client,
    pool: Option<&str>,
) -> Result<(Value, Vec<Node>), CliError> {
    let query: Vec<_> = pool.into_iter().map(|pool| ("pool", pool.to_owned())).collect();
    let answer = client.get(&["nodes"], &query).await?;
    let list: NodeList = view::read(&answer)?;
    let nodes = list.nodes.iter().map(view::read).collect::<Result<_, _>>()?;
    Ok((answer, nodes))
}

/// What is listed.
pub(super) struct Listed {
    pub pool: Option<String>,
    /// Again and again, until Ctrl-C.
    pub watch: bool,
}

/// List nodes.
pub(super) async fn list(
    client: &Client,
    listed: &Listed,
    screen: &Screen,
) -> Result<u8, CliError> {
    if listed.watch {
        return watch(client, listed.pool.as_deref(), screen).await;
    }
    let (answer, nodes) = fetch_pool(client, listed.pool.as_deref()).await?;
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

/// As [`fetch`]; also of a coordinator that does not know the parameter and gives all of them.
async fn fetch_pool(client: &Client, pool: Option<&str>) -> Result<(Value, Vec<Node>), CliError> {
    let (mut answer, mut nodes) = fetch(client, pool).await?;
    if let Some(pool) = pool {
        nodes.retain(|node| node.pool.as_deref() == Some(pool));
        let of_pool = |node: &&Value| node.get("pool").and_then(Value::as_str) == Some(pool);
        let list: Vec<Value> = items(&answer, "nodes").iter().filter(of_pool).cloned().collect();
        answer = json!({ "nodes": list });
    }
    Ok((answer, nodes))
}

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// Looks at the nodes every second until Ctrl-C: on a terminal in place, elsewhere as JSON lines of the
/// nodes about which something is new.
pub(super) async fn watch(
    client: &Client,
    pool: Option<&str>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let in_place = screen.is_terminal() && !screen.is_json();
    let mut shown: Option<String> = None;
    let mut told: BTreeMap<String, Value> = BTreeMap::new();
    loop {
        match fetch_pool(client, pool).await {
            Ok((_, nodes)) if in_place => {
                let text = format!("{}\n\n{}", summary(&nodes), table(&nodes, screen).take());
                screen.redraw(&text)?;
                shown = Some(text);
            }
            Ok((answer, _)) => {
                changed_lines(&answer, &mut told, screen)?;
                shown.get_or_insert_default();
            }
            Err(error) if error.is_transport() => match &shown {
                Some(text) if in_place => {
                    let why = clean(&error.to_string());
                    screen.redraw(&format!("{text}\n{why}; trying again\n"))?;
                }
                Some(_) => screen.hint(&format!("{error}; trying again")),
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// One line for each node that is not as it was told last.
fn changed_lines(
    answer: &Value,
    told: &mut BTreeMap<String, Value>,
    screen: &Screen,
) -> Result<(), CliError> {
    for node in items(answer, "nodes") {
        let id = node.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        // Its age is new every time, and says nothing new.
        let mut lasting = node.clone();
        if let Some(fields) = lasting.as_object_mut() {
            fields.remove("last_word_ms_ago");
        }
        if told.get(&id) != Some(&lasting) {
            screen.json_line(node)?;
            told.insert(id, lasting);
        }
    }
    // A node that is gone would come as a new one.
    let is_there =
        |id: &String| items(answer, "nodes").iter().any(|node| node.get("id") == Some(&json!(id)));
    told.retain(|id, _| is_there(id));
    Ok(())
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
pub(crate) fn summary(nodes: &[Node]) -> String {
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

/// GPUs, in use, free, mean utilisation, highest temperature, power of all together.
fn gpu_cells(node: &Node) -> [String; 6] {
    let samples: Vec<_> = node.gpus.iter().filter_map(|gpu| gpu.sample.as_ref()).collect();
    let busy: Vec<f64> = samples.iter().filter_map(|sample| sample.utilization_pct).collect();
    let mean = (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64);
    let hottest = samples.iter().filter_map(|sample| sample.temperature_c).reduce(f64::max);
    let power = samples.iter().filter_map(|sample| sample.power_w).reduce(|a, b| a + b);
    [
        count(node.gpus_total),
        count(node.gpus_in_use),
        count(node.gpus_free),
        or_dash(mean.map(|mean| format!("{mean:.0}"))),
        or_dash(hottest.map(|temperature| format!("{temperature:.0}"))),
        or_dash(power.map(watts)),
    ]
}

/// Power as people say it: `312W`, `5.1kW`.
pub(crate) fn watts(watts: f64) -> String {
    if watts >= 1000.0 { format!("{:.1}kW", watts / 1000.0) } else { format!("{watts:.0}W") }
}

pub(crate) fn last_word(node: &Node) -> String {
    or_dash(node.last_word_ms_ago.map(|age| match age {
        0..10_000 => format!("{}.{}s", age / 1000, age % 1000 / 100),
        age => short(age / 1000),
    }))
}

/// Why it is as it is: who took it out of use, what ails it, what runs there unknown.
pub(crate) fn reason(node: &Node) -> String {
    let mut reasons = Vec::new();
    if let Some(cordon) = &node.cordon {
        reasons.push(format!("cordoned by {}: {}", cordon.by, cordon.why));
    }
    if let Some(drain) = &node.drain {
        let by_when = drain.deadline.as_deref().map(|time| format!(", until {}", local(time)));
        let by_when = by_when.unwrap_or_default();
        reasons.push(format!("drained by {}: {}{by_when}", drain.by, drain.why));
    }
    // What a cordon by the rules says already needs no second word.
    if node.cordon.is_none() {
        let active = node.conditions.iter().filter(|c| !c.shadow && !c.cleared);
        reasons.extend(active.take(1).map(|c| format!("{} {}: {}", c.rule, c.component, c.reason)));
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
        line("now", &host_line(host));
    }
    if let Some(health) = &node.health {
        line("health", health);
    }
    for condition in &node.conditions {
        line("", &condition_line(condition));
    }
    if let Some(doubt) = &node.doubt {
        let view::Doubt { points, why, at } = doubt;
        line("doubt", &format!("{points:.1}, taken last: {why} ({})", local(at)));
    }
    if let Some(test) = &node.network_test {
        line("network", &super::node_test::of_node(test));
    }
    if !node.blind.is_empty() {
        line("not seen", &node.blind.join(", "));
    }
    if let Some(telemetry) = node.telemetry.as_ref().filter(|t| t.untimely + t.dropped > 0) {
        let view::Telemetry { received, dropped, untimely, .. } = telemetry;
        line("samples", &format!("{received}; {dropped} not sent, {untimely} with a wrong time"));
    }
    let text = |value: &Option<view::Loose>| or_dash(value.as_ref().map(ToString::to_string));
    line("wanted", &format!("{}, agent holds {}", text(&node.generation), text(&node.held)));
    for member in &node.unknown_members {
        line("unknown", &member.to_string());
    }
    out.push_str(&super::top::gpu_table(std::slice::from_ref(node)).section("GPUs"));
    out.push_str(&gpu_details(node).section("GPU health"));
    out.push_str(&ports(node).section("RDMA ports"));
    out.push_str(&collectors(node).section("Collectors"));
    out.push_str(&members(&node.members));
    out.push_str(&doctor(node).section("Doctor"));
    out.push_str(&history(&node.history));
    out
}

/// What the host does now.
pub(crate) fn host_line(host: &view::HostSample) -> String {
    let percent = or_dash(host.cpu_busy_pct.map(|busy| format!("{busy:.0} %")));
    let load = or_dash(host.load1.map(|load| format!("{load:.1}")));
    let used = or_dash(host.memory_used_bytes.map(bytes));
    let mut text = format!("CPU {percent}, load {load}, memory {used}");
    if let Some(shm) = host.shm_free_bytes {
        text.push_str(&format!(", /dev/shm free {}", bytes(shm)));
    }
    for (what, value) in [("network", host.network_bytes_per_s), ("RDMA", host.rdma_bytes_per_s)] {
        text.extend(value.map(|value| format!(", {what} {}", rate(value))));
    }
    text
}

/// Why nothing is done about a condition.
fn note(condition: &Condition) -> Option<&'static str> {
    match (condition.cleared, condition.shadow) {
        (true, _) => Some("cleared by an operator"),
        (false, true) => Some("only watched"),
        (false, false) => None,
    }
}

/// One condition in one line.
pub(crate) fn condition_line(condition: &view::Condition) -> String {
    let Condition { rule, component, level, reason, .. } = condition;
    let since = condition.since.as_deref().map(|time| format!(" since {}", local(time)));
    let action = condition.action.as_ref().map(|action| format!(" → {action}"));
    let shadow = note(condition).map(|note| format!(" ({note})")).unwrap_or_default();
    let (since, action) = (since.unwrap_or_default(), action.unwrap_or_default());
    format!("{level} {rule} {component}{since}: {reason}{action}{shadow}")
}

/// What ails nodes: of one with the evidence, or of all.
pub(super) async fn health(
    client: &Client,
    node: Option<&str>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let values = match node {
        Some(node) => {
            check_selector("node", node)?;
            vec![client.get(&["nodes", node], &[]).await?]
        }
        None => {
            let answer = client.get(&["nodes"], &[]).await?;
            items(&answer, "nodes").to_vec()
        }
    };
    let nodes: Vec<Node> = values.iter().map(view::read).collect::<Result<_, _>>()?;
    let short = |value: &Value| {
        let field = |name: &str| value.get(name).cloned().unwrap_or_default();
        json!({ "id": field("id"), "name": field("name"), "health": field("health"),
            "conditions": value.get("conditions").cloned().unwrap_or_else(|| json!([])) })
    };
    let ill = || nodes.iter().filter(|node| !node.conditions.is_empty());
    match screen.format() {
        Format::Json => {
            let list: Vec<Value> = values.iter().map(short).collect();
            screen.json(&json!({ "nodes": list }))?;
        }
        Format::Jsonl => values.iter().try_for_each(|value| screen.json_line(&short(value)))?,
        Format::Name => ill().try_for_each(|node| screen.line(&node.name))?,
        Format::Table | Format::Wide => {
            screen.print(&health_table(&nodes, screen).take())?;
            if node.is_some() {
                for condition in nodes.iter().flat_map(|node| &node.conditions) {
                    let Condition { rule, component, .. } = condition;
                    if let Some(evidence) = &condition.evidence {
                        screen.line(&format!("{rule} {component}: evidence: {evidence}"))?;
                    }
                    if let Some(clears) = &condition.clears {
                        screen.line(&format!("{rule} {component}: ends with: {clears}"))?;
                    }
                }
            }
            let judged = nodes.iter().filter(|node| node.health.is_some()).count();
            let ill = ill().count();
            screen.hint(&format!(
                "{ill} of {} node(s) with conditions, {judged} judged",
                nodes.len()
            ));
        }
    }
    Ok(exit::OK)
}

fn health_table(nodes: &[Node], screen: &Screen) -> Table {
    let titles = &["NODE", "HEALTH", "RULE", "COMPONENT", "LEVEL", "SINCE", "ACTION", "REASON"];
    let mut table = Table::new(titles, screen.width()).cut_last();
    for node in nodes {
        for condition in &node.conditions {
            let shadow = note(condition).map(|note| format!("{note}: ")).unwrap_or_default();
            table.row(vec![
                node.name.clone(),
                or_dash(node.health.clone()),
                or_dash(Some(condition.rule.clone())),
                or_dash(Some(condition.component.clone())),
                or_dash(Some(condition.level.clone())),
                or_dash(condition.since.as_deref().map(local)),
                or_dash(condition.action.clone()),
                format!("{shadow}{}", condition.reason),
            ]);
        }
    }
    table
}

/// What tells of the health of each GPU, and what its work is made of.
fn gpu_details(node: &Node) -> Table {
    let mut table = Table::new(
        &[
            "GPU",
            "SM",
            "TENSOR",
            "HBM",
            "XIDS",
            "LAST XID",
            "ECC",
            "NVLINKS DOWN",
            "NVLINK ERRORS",
            "PCIE REPLAYS",
            "PROCESSES",
            "OF NO GANG",
        ],
        None,
    );
    for gpu in &node.gpu_details {
        let index = node.gpus.iter().find(|known| known.uuid == gpu.uuid).and_then(|g| g.index);
        let name = index.map_or_else(|| gpu.uuid.clone(), |index| index.to_string());
        let share = |share: Option<f64>| or_dash(share.map(|s| format!("{:.0}%", s * 100.0)));
        table.row(vec![
            if gpu.lost { format!("{name} LOST") } else { name },
            share(gpu.sm_active),
            share(gpu.tensor_active),
            or_dash(gpu.memory_temperature_c.map(|celsius| format!("{celsius:.0}"))),
            count(gpu.xids),
            count(gpu.last_xid),
            count(gpu.ecc_uncorrected),
            count(gpu.nvlinks_down),
            count(gpu.nvlink_errors),
            count(gpu.pcie_replays),
            count(gpu.processes),
            count(gpu.foreign_processes),
        ]);
    }
    table
}

fn ports(node: &Node) -> Table {
    let titles = &["PORT", "KIND", "STATE", "RATE", "RECEIVED", "SENT", "ERRORS", "TIMES DOWN"];
    let mut table = Table::new(titles, None);
    for port in &node.ports {
        let kind = port.ethernet.map(|ethernet| if ethernet { "RoCE" } else { "InfiniBand" });
        let state = port.state.map(|state| match state {
            1 => "down".to_owned(),
            2 => "init".to_owned(),
            3 => "armed".to_owned(),
            4 => "active".to_owned(),
            other => other.to_string(),
        });
        table.row(vec![
            format!("{}/{}", port.device, count(port.port)),
            or_dash(kind.map(str::to_owned)),
            or_dash(state),
            or_dash(
                port.rate_bytes_per_s.map(|bytes| format!("{} Gb/s", bytes as f64 * 8.0 / 1e9)),
            ),
            or_dash(port.received_bytes.map(bytes)),
            or_dash(port.sent_bytes.map(bytes)),
            count(port.errors),
            count(port.link_downed),
        ]);
    }
    table
}

fn collectors(node: &Node) -> Table {
    let mut table = Table::new(&["COLLECTOR", "SUCCESS", "TOOK", "LAST GOOD"], None);
    for collector in &node.collectors {
        table.row(vec![
            collector.name.clone(),
            if collector.success { "yes" } else { "no" }.to_owned(),
            or_dash(
                collector.duration_us.map(|us| format!("{}.{} ms", us / 1000, us % 1000 / 100)),
            ),
            or_dash(collector.age_ms.map(|ms| format!("{}s ago", ms / 1000))),
        ]);
    }
    table
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
