//! `node test`: the network between nodes, measured by a job on them; and faults for simulated GPUs.

use std::time::Duration;

use serde_json::{Value, json};

use super::attached::{detached, or_ctrl_c};
use super::{check_selector, items};
use crate::args;
use crate::client::{Client, Post, Repeat};
use crate::durations::local;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;
use crate::top::draw::rate;
use crate::view::{self, NetworkTest, NodeTest, NodeTestResult, Rate};

/// Between two looks at a check that is open.
const EVERY: Duration = Duration::from_secs(1);
/// Pairs that a table has; the slowest of them.
const PAIRS: usize = 20;

/// Run a check, show the newest one, or make a simulated GPU fail.
pub(super) async fn run(
    client: &Client,
    args: &args::NodeTest,
    screen: &Screen,
) -> Result<u8, CliError> {
    args.nodes.iter().try_for_each(|node| check_selector("node", node))?;
    if let Some(fault) = &args.inject {
        return inject(client, &args.nodes, fault, screen).await;
    }
    if args.last {
        return last(client, args, screen).await;
    }
    let body = json!({
        "nodes": args.nodes,
        "pool": args.pool,
        "gpus_per_node": args.gpus,
        "backend": args.backend.map(args::Backend::word),
        "python": args.python,
        "timeout_s": args.timeout.as_secs(),
    });
    let post = Post {
        path: &["node-tests"],
        query: &[],
        body: body.to_string(),
        command: None,
        // Two would measure each other.
        repeat: Repeat::Never,
    };
    let begun = client.post(&post, screen).await?;
    let test: NodeTest = view::read(&begun)?;
    if args.no_wait {
        show(&begun, &test, screen)?;
        return Ok(exit::OK);
    }
    let job = clean(&test.job);
    screen.hint(&format!("{job} measures pool {}; gangline show {job}", clean(&test.pool)));
    let Some((answer, test)) = or_ctrl_c(until_over(client, &test.job, screen)).await? else {
        return Ok(detached(&[test.job], screen));
    };
    show(&answer, &test, screen)?;
    result_of(&test)
}

/// The check once it is over, through a coordinator that is away for a while.
async fn until_over(
    client: &Client,
    job: &str,
    screen: &Screen,
) -> Result<(Value, NodeTest), CliError> {
    let mut said = false;
    loop {
        match client.get(&["node-tests", job], &[]).await {
            Ok(answer) => {
                let test: NodeTest = view::read(&answer)?;
                if test.state != "open" {
                    return Ok((answer, test));
                }
            }
            Err(error) if error.is_transport() => {
                if !std::mem::replace(&mut said, true) {
                    screen.hint(&format!("{error}; trying again"));
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// A check without a result is an error, with what to do about it.
fn result_of(test: &NodeTest) -> Result<u8, CliError> {
    let Some(why) = test.why.as_ref().filter(|_| test.state == "failed") else {
        return Ok(exit::OK);
    };
    let what = format!("the check {} has no result: {}", clean(&test.job), clean(why));
    Err(CliError::new(exit::ERROR, code::NO_RESULT, what)
        .hint(format!("gangline logs {0} --rank 0; gangline why {0}", clean(&test.job))))
}

async fn last(client: &Client, args: &args::NodeTest, screen: &Screen) -> Result<u8, CliError> {
    let node = match args.nodes.as_slice() {
        [] => None,
        [node] => Some(node),
        _ => {
            return Err(CliError::new(exit::USAGE, code::USAGE, "--last shows one node or pool")
                .hint("name one node, or --pool"));
        }
    };
    let mut query = Vec::new();
    query.extend(node.map(|node| ("node", node.clone())));
    query.extend(args.pool.clone().map(|pool| ("pool", pool)));
    let answer = client.get(&["node-tests"], &query).await?;
    let over = |value: &&Value| value.get("state").and_then(Value::as_str) != Some("open");
    let Some(value) = items(&answer, "tests").iter().find(over) else {
        return Err(CliError::new(exit::ERROR, code::NO_RESULT, "there is no such check yet")
            .hint("gangline node test begins one"));
    };
    let test: NodeTest = view::read(value)?;
    show(value, &test, screen)?;
    result_of(&test)
}

async fn inject(
    client: &Client,
    nodes: &[String],
    fault: &str,
    screen: &Screen,
) -> Result<u8, CliError> {
    for node in nodes {
        let post = Post {
            path: &["nodes", node, "inject"],
            query: &[],
            body: json!({ "fault": fault }).to_string(),
            command: None,
            repeat: Repeat::Never,
        };
        let answer = client.post(&post, screen).await?;
        let field = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
        match screen.format() {
            Format::Json => screen.json(&answer)?,
            Format::Jsonl => screen.json_line(&answer)?,
            Format::Name => screen.line(&clean(&field("node")))?,
            Format::Table | Format::Wide => {
                screen.line(&clean(&format!("{}  {}", field("node"), field("done"))))?;
            }
        }
    }
    screen.hint("gangline node health shows what comes of it; --inject heal ends it");
    Ok(exit::OK)
}

fn show(value: &Value, test: &NodeTest, screen: &Screen) -> Result<(), CliError> {
    match screen.format() {
        Format::Json => screen.json(value),
        Format::Jsonl => screen.json_line(value),
        Format::Name => screen.line(&clean(&test.job)),
        Format::Table | Format::Wide => screen.print(&text(test, screen)),
    }
}

/// `12.3 GB/s`, `18 us`.
fn cells(found: Rate) -> [String; 2] {
    [rate(found.bytes_per_s), format!("{:.0} us", found.latency_us)]
}

fn text(test: &NodeTest, screen: &Screen) -> String {
    let mut out = format!("{}  {}\n", clean(&test.job), clean(&test.state));
    let mut line = |label: &str, text: &str| {
        out.push_str(&format!("  {label:<12} {}\n", clean(text)));
    };
    line("pool", &format!("{}, by {}", test.pool, test.by));
    line("begun", &local(&test.begun));
    if let Some(why) = &test.why {
        line("no result", why);
    }
    let Some(result) = &test.result else { return out };
    let versions: Vec<String> =
        result.versions.iter().map(|(what, version)| format!("{what} {version}")).collect();
    line("through", &format!("{} ({})", result.backend, versions.join(", ")));
    let [speed, latency] = cells(result.all_reduce);
    let size = super::bytes(result.message_bytes);
    line(
        "all-reduce",
        &format!("{speed} over {} nodes, {latency}; {size} each", result.nodes.len()),
    );
    line("median", &rate(result.median_bytes_per_s));
    match result.slow.as_slice() {
        [] => line("slow", "no node"),
        slow => line("slow", &format!("{} (below 70 % of the median)", slow.join(", "))),
    }
    out.push_str(&nodes(result, screen).section("Nodes, by the best with any other"));
    out.push_str(&pairs(result, screen).section(match result.pairs.len() {
        0..=PAIRS => "Pairs",
        _ => "The slowest pairs",
    }));
    out
}

fn nodes(result: &NodeTestResult, screen: &Screen) -> Table {
    let mut table = Table::new(&["NODE", "RATE", "LATENCY", "OF MEDIAN", ""], screen.width());
    for node in &result.nodes {
        let [speed, latency] = cells(node.best);
        let part = node.best.bytes_per_s / result.median_bytes_per_s.max(1.0) * 100.0;
        let mark = if node.slow { "SLOW" } else { "" };
        table.row(vec![node.name.clone(), speed, latency, format!("{part:.0}%"), mark.to_owned()]);
    }
    table
}

fn pairs(result: &NodeTestResult, screen: &Screen) -> Table {
    let mut table = Table::new(&["PAIR", "RATE", "LATENCY"], screen.width());
    let mut pairs: Vec<_> = result.pairs.iter().collect();
    pairs.sort_by(|a, b| a.rate.bytes_per_s.total_cmp(&b.rate.bytes_per_s));
    for pair in pairs.into_iter().take(PAIRS) {
        let [speed, latency] = cells(pair.rate);
        table.row(vec![pair.nodes.join(" "), speed, latency]);
    }
    table
}

/// What the newest check says of a node, in one line.
pub(super) fn of_node(test: &NetworkTest) -> String {
    let best = Rate { bytes_per_s: test.best_bytes_per_s, latency_us: test.latency_us };
    let [speed, latency] = cells(best);
    let slow = if test.slow { "SLOW: " } else { "" };
    format!(
        "{slow}{speed} ({} of {} nodes, median {}), {latency}; {} {}",
        test.backend,
        test.nodes,
        rate(test.median_bytes_per_s),
        test.job,
        local(&test.at)
    )
}
