//! `explain`, `plan` and `queue`: why a job waits, what would become of one, and who is before whom.

use serde::Deserialize;
use serde_json::Value;

use super::{count, items, one_job, or_dash};
use crate::args::Plan;
use crate::client::{Client, Post, Repeat};
use crate::code::{Local, without_local};
use crate::durations::{local, short};
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::spec_input::{Input, canonical, prepare, with_after};
use crate::table::Table;
use crate::terminal::clean;
use crate::view;

/// Names of nodes in one line of a group.
const SHOWN: usize = 12;

#[derive(Debug, Deserialize)]
struct Explanation {
    job: Option<String>,
    name: String,
    project: String,
    verdict: String,
    reason: Option<String>,
    #[serde(default)]
    on: Vec<String>,
    start: Option<Start>,
    queue: Option<Place>,
    #[serde(default)]
    quotas: Vec<Quota>,
    #[serde(default)]
    nodes: Vec<Group>,
    #[serde(default)]
    helps: Vec<String>,
    /// Running jobs that are sent back to the queue for it.
    #[serde(default)]
    makes_room: Vec<Leaver>,
}

#[derive(Debug, Deserialize)]
struct Start {
    at: String,
    in_s: u64,
    plus_minus_s: Option<u64>,
    after: Option<String>,
    #[serde(default)]
    overdue: bool,
}

#[derive(Debug, Deserialize)]
struct Leaver {
    /// Absent for a job that the caller may not see.
    job: Option<String>,
    name: Option<String>,
    gpus: u32,
    loses: Option<String>,
    grace_s: u64,
}

#[derive(Debug, Deserialize)]
struct Place {
    position: usize,
    of: usize,
    priority: u8,
    age: u8,
    guaranteed: bool,
    used_gpu_hours: f64,
    overtaken_by_gpu_hours: f64,
    went_before_gpu_hours: f64,
    due: bool,
}

#[derive(Debug, Deserialize)]
struct Quota {
    pool: String,
    held: u32,
    wanted: u32,
    guaranteed: u32,
    maximum: Option<u32>,
    allowed: bool,
}

#[derive(Debug, Deserialize)]
struct Group {
    reason: Option<String>,
    nodes: Vec<String>,
    /// What is held against nodes that are taken last.
    #[serde(default)]
    last: std::collections::BTreeMap<String, String>,
}

/// Why a job is where it is.
pub(super) async fn job(client: &Client, selector: &str, screen: &Screen) -> Result<u8, CliError> {
    let job = one_job(selector)?;
    let answer = client.get(&["jobs", &job, "explain"], &[]).await?;
    report(&answer, screen)?;
    Ok(exit::OK)
}

/// What would become of a job. Without a coordinator: what its spec means.
pub(super) async fn plan(
    args: &Plan,
    client: Option<&Client>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let input = Input::File { path: &args.spec, command: &[] };
    let mut spec = prepare(&input, &args.options, |name| std::env::var(name).ok())?.say(screen);
    with_after(&mut spec, args.options.after.clone())?;
    let code = Local::find(&spec, &Local::base_of(Some(&args.spec)))?;
    let Some(client) = client.filter(|_| screen.format() != Format::Name) else {
        match screen.format() {
            Format::Json | Format::Jsonl => screen.json(&canonical(&spec)?)?,
            Format::Name => screen.line(spec.name.as_deref().unwrap_or_default())?,
            Format::Table | Format::Wide => {
                spec.to_yaml().lines().try_for_each(|line| screen.line(line))?;
            }
        }
        if let Some(code) = code {
            screen.hint(&code.describe());
        }
        screen.hint("the spec is valid; nothing was sent");
        return Ok(exit::OK);
    };
    let post = Post {
        path: &["plan"],
        query: &[],
        body: without_local(&spec).canonical_json(),
        command: None,
        repeat: Repeat::Safe,
    };
    let mut answer = client.post(&post, screen).await?;
    let verdict = answer.get("verdict").and_then(Value::as_str).unwrap_or_default().to_owned();
    if screen.is_json() {
        answer["spec"] = canonical(&spec)?;
    }
    report(&answer, screen)?;
    if let Some(code) = code {
        screen.hint(&code.describe());
    }
    screen.hint("nothing was submitted");
    Ok(match verdict.as_str() {
        "never" => exit::IMPOSSIBLE,
        "waits" if args.exit_code => exit::WOULD_QUEUE,
        _ => exit::OK,
    })
}

/// The waiting jobs in the order in which they are looked at.
pub(super) async fn queue(
    client: &Client,
    pool: Option<&str>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let query: Vec<(&str, String)> = pool.iter().map(|pool| ("pool", (*pool).to_owned())).collect();
    let answer = client.get(&["queue"], &query).await?;
    let lines = items(&answer, "queue");
    let text = |line: &Value, key: &str| {
        line.get(key).and_then(Value::as_str).map(clean).filter(|text| !text.is_empty())
    };
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => lines.iter().try_for_each(|line| screen.json(line))?,
        Format::Name => {
            lines
                .iter()
                .filter_map(|line| text(line, "job"))
                .try_for_each(|job| screen.line(&job))?;
        }
        Format::Table | Format::Wide => {
            const COLUMNS: &[&str] = &[
                "#", "ID", "NAME", "USER", "PROJECT", "NODES", "GPUS", "PRIORITY", "USED",
                "STARTS", "REASON",
            ];
            let mut table = Table::new(COLUMNS, screen.width()).cut_last();
            for line in lines {
                let number = |key: &str| line.get(key).and_then(Value::as_u64);
                let place: Place = view::read(line.get("queue").unwrap_or(&Value::Null))?;
                let start = line.get("start").filter(|start| start.is_object());
                let start: Option<Start> = start.map(view::read).transpose()?;
                let gpus = number("nnodes").zip(number("gpus_per_node")).map(|(n, g)| n * g);
                table.row(vec![
                    place.position.to_string(),
                    or_dash(text(line, "job")),
                    or_dash(text(line, "name")),
                    or_dash(text(line, "user")),
                    or_dash(text(line, "project")),
                    count(number("nnodes")),
                    count(gpus),
                    priority(&place),
                    format!("{:.1}", place.used_gpu_hours),
                    or_dash(start.as_ref().map(in_words)),
                    or_dash(text(line, "reason")),
                ]);
            }
            screen.print(&table.take())?;
            screen.hint(
                "PRIORITY is the job's own, and points for waiting; USED are GPU-hours of its project; gangline \
                 explain JOB tells more",
            );
        }
    }
    Ok(exit::OK)
}

fn priority(place: &Place) -> String {
    let first = if place.guaranteed { "guaranteed " } else { "" };
    match place.age {
        0 => format!("{first}{}", place.priority),
        age => format!("{first}{}+{age}", place.priority),
    }
}

/// "in 40m ±10m".
fn in_words(start: &Start) -> String {
    match start.plus_minus_s {
        Some(_) if start.in_s == 0 => "now".to_owned(),
        Some(plus_minus) => format!("in {} ±{}", short(start.in_s), short(plus_minus)),
        None => "nobody can tell".to_owned(),
    }
}

fn report(answer: &Value, screen: &Screen) -> Result<(), CliError> {
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(answer),
        Format::Name => {
            screen.line(&clean(answer.get("job").and_then(Value::as_str).unwrap_or_default()))
        }
        Format::Table | Format::Wide => screen.print(&text(&view::read(answer)?)),
    }
}

fn text(explanation: &Explanation) -> String {
    let name = clean(&explanation.name);
    let who = match &explanation.job {
        Some(job) => format!("{} {name} (project {})", clean(job), clean(&explanation.project)),
        None => format!("{name} (project {})", clean(&explanation.project)),
    };
    let on = explanation.on.iter().map(|node| clean(node)).collect::<Vec<_>>().join(", ");
    let reason = explanation.reason.as_deref().map(clean).unwrap_or_default();
    let what = match explanation.verdict.as_str() {
        "now" if !explanation.makes_room.is_empty() => {
            let back = match explanation.makes_room.len() {
                1 => "a running job is".to_owned(),
                many => format!("{many} running jobs are"),
            };
            format!("would start after making room: {back} sent back to the queue for it")
        }
        "now" => format!("would start now on {on}"),
        "waits" => reason,
        "never" => format!("can never start as things are: {reason}"),
        "placed" => format!("is on {on}"),
        _ => format!("has ended: {reason}"),
    };
    let mut lines = vec![format!("{who}: {what}")];
    if let Some(place) = &explanation.queue {
        let age = match place.age {
            0 => String::new(),
            age => format!(" + {age} for waiting"),
        };
        lines.push(format!(
            "  queue     {} of {}; priority {}{age}{}",
            place.position,
            place.of,
            place.priority,
            if place.guaranteed { "; within what its project is guaranteed" } else { "" },
        ));
        if place.overtaken_by_gpu_hours >= 0.05 || place.due {
            lines.push(format!(
                "  passed    by {:.1} GPU-hours of later jobs, while {:.1} of earlier ones ran{}",
                place.overtaken_by_gpu_hours,
                place.went_before_gpu_hours,
                if place.due { ": nodes are kept for it now" } else { "" },
            ));
        }
    }
    for quota in &explanation.quotas {
        let maximum = quota.maximum.map_or("any number".to_owned(), |most| most.to_string());
        lines.push(format!(
            "  {} quota   {}: {} + {} of {maximum}, {} guaranteed",
            if quota.allowed { "✓" } else { "✗" },
            clean(&quota.pool),
            quota.held,
            quota.wanted,
            quota.guaranteed,
        ));
    }
    for group in &explanation.nodes {
        lines.push(format!(
            "  {} {:<8}{}",
            if group.reason.is_none() { "✓" } else { "✗" },
            match group.nodes.len() {
                1 => "1 node".to_owned(),
                many => format!("{many} nodes"),
            },
            node_list(group)
        ));
        for (node, why) in group.last.iter().take(SHOWN) {
            lines.push(format!("            {} is taken last: {}", clean(node), clean(why)));
        }
    }
    let leavers = &explanation.makes_room;
    lines.extend(leavers.iter().take(SHOWN).map(|leaver| format!("  sent back {}", goes(leaver))));
    if leavers.len() > SHOWN {
        lines.push(format!("  sent back {} more", leavers.len() - SHOWN));
    }
    if let Some(start) = &explanation.start {
        let after = start.after.as_deref().map(|job| format!(", when {} ends", clean(job)));
        let after = after.unwrap_or_default();
        lines.push(match start.plus_minus_s {
            Some(_) => {
                format!("  starts    {} ({}){after}", in_words(start), local(&start.at))
            }
            None if start.overdue => format!(
                "  starts    nobody can tell{after}: a job before it has taken longer than was supposed"
            ),
            None => format!(
                "  starts    nobody can tell{after}: of some jobs before it nothing is known; a `timeout` in \
                 their specs helps"
            ),
        });
    }
    if !explanation.helps.is_empty() {
        let helps: Vec<String> = explanation.helps.iter().map(|help| clean(help)).collect();
        lines.push(format!("  sooner    {} (now)", helps.join(" · ")));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// "j-7f4c1 train: 8 GPUs, loses 3 min of work; has 30s for its end".
fn goes(leaver: &Leaver) -> String {
    let who = match (&leaver.job, &leaver.name) {
        (Some(job), Some(name)) => format!("{} {}", clean(job), clean(name)),
        (Some(job), None) => clean(job),
        (None, _) => "a job of another project".to_owned(),
    };
    let gpus = if leaver.gpus == 1 { "GPU" } else { "GPUs" };
    let loses = leaver.loses.as_deref().map(|loses| format!(", {}", clean(loses)));
    format!(
        "{who}: {} {gpus}{}; has {} for its end",
        leaver.gpus,
        loses.unwrap_or_default(),
        short(leaver.grace_s)
    )
}

fn node_list(group: &Group) -> String {
    let mut names: Vec<String> = group.nodes.iter().take(SHOWN).map(|name| clean(name)).collect();
    if group.nodes.len() > SHOWN {
        names.push(format!("and {} more", group.nodes.len() - SHOWN));
    }
    let reason = group.reason.as_deref().map_or("would do".to_owned(), clean);
    format!("{reason}: {}", names.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_explanation_names_every_node_once() {
        let answer = json!({
            "job": "j-7f4c1", "name": "qwen3-32b-ppo", "project": "rlhf", "verdict": "waits",
            "reason": "waits for 8 nodes with 8 GPUs each: 3 of 6 fit now", "on": [],
            "start": {"at": "2026-11-22T17:40:00Z", "in_s": 2400, "plus_minus_s": 600, "after": "j-7ew81"},
            "queue": {"position": 1, "of": 3, "priority": 50, "age": 4, "guaranteed": false,
                "used_gpu_hours": 1.5, "overtaken_by_gpu_hours": 2.0, "went_before_gpu_hours": 9.0, "due": true},
            "quotas": [{"pool": "h100-a", "held": 96, "wanted": 64, "guaranteed": 32, "maximum": 160,
                "allowed": true}],
            "nodes": [{"reason": null, "nodes": ["gpu-1", "gpu-2"], "last": {"gpu-2": "degraded: slow"}},
                {"reason": "drained by liu: fan", "nodes": ["gpu-3"]}],
            "helps": ["--nnodes 3"]
        });
        let text = text(&view::read(&answer).unwrap());
        for line in [
            "j-7f4c1 qwen3-32b-ppo (project rlhf): waits for 8 nodes with 8 GPUs each: 3 of 6 fit now",
            "  queue     1 of 3; priority 50 + 4 for waiting",
            "  passed    by 2.0 GPU-hours of later jobs, while 9.0 of earlier ones ran: nodes are kept for it now",
            "  ✓ quota   h100-a: 96 + 64 of 160, 32 guaranteed",
            "  ✓ 2 nodes would do: gpu-1 gpu-2",
            "            gpu-2 is taken last: degraded: slow",
            "  ✗ 1 node  drained by liu: fan: gpu-3",
            "  sooner    --nnodes 3 (now)",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert!(text.contains("  starts    in 40m ±10m ("), "{text}");
        assert!(text.contains("when j-7ew81 ends"), "{text}");
    }

    #[test]
    fn now_is_only_what_starts_at_once() {
        let words = |start: Value| in_words(&view::read(&start).unwrap());
        let at = "2026-11-22T17:40:00Z";
        assert_eq!(words(json!({"at": at, "in_s": 0, "plus_minus_s": 0})), "now");
        assert_eq!(words(json!({"at": at, "in_s": 1, "plus_minus_s": 0})), "in 1s ±0s");
        assert_eq!(words(json!({"at": at, "in_s": 0, "plus_minus_s": null})), "nobody can tell");
        let answer = json!({
            "name": "a", "project": "p", "verdict": "waits", "reason": "waits",
            "start": {"at": at, "in_s": 60, "plus_minus_s": null, "after": "j-1", "overdue": true},
        });
        let text = text(&view::read(&answer).unwrap());
        let line = "  starts    nobody can tell, when j-1 ends: a job before it has taken longer than was supposed";
        assert!(text.lines().any(|have| have == line), "{text}");
    }

    #[test]
    fn a_plan_names_the_jobs_that_make_room() {
        let answer = json!({
            "name": "urgent", "project": "p1", "verdict": "now", "on": [],
            "makes_room": [
                {"job": "j-7f4c1", "name": "train", "gpus": 8, "loses": "loses 3 min of work", "grace_s": 30},
                {"job": null, "name": null, "gpus": 1, "loses": null, "grace_s": 90},
            ],
        });
        let text = text(&view::read(&answer).unwrap());
        for line in [
            "urgent (project p1): would start after making room: 2 running jobs are sent back to the queue for it",
            "  sent back j-7f4c1 train: 8 GPUs, loses 3 min of work; has 30s for its end",
            "  sent back a job of another project: 1 GPU; has 1m30s for its end",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
