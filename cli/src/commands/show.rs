//! `show`: everything about one job.

use serde_json::Value;

use super::card::places;
use super::{bytes, count, expand, find_job, or_dash};
use crate::client::Client;
use crate::durations::{local, short};
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;
use crate::view::{Attempt, Job, Member, Saved, Transition};

/// Show a job, or each of a list on stdin; the exit code is that of the first that cannot be shown.
pub(super) async fn run(client: &Client, selector: &str, screen: &Screen) -> Result<u8, CliError> {
    let selectors = expand(&[selector.to_owned()])?;
    let several = selectors.len() > 1;
    let mut first_failure = None;
    for (index, selector) in selectors.iter().enumerate() {
        match find_job(client, selector).await {
            Ok((value, job)) => one(&value, &job, index > 0, screen)?,
            Err(error) if several => {
                screen.error(&error);
                first_failure.get_or_insert(error.exit());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(first_failure.unwrap_or(exit::OK))
}

/// A job; `more` that was shown before it is parted from it by an empty line.
fn one(value: &Value, job: &Job, more: bool, screen: &Screen) -> Result<(), CliError> {
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(value),
        Format::Name => screen.line(&job.id),
        Format::Table | Format::Wide if more => screen.print(&format!("\n{}", text(job))),
        Format::Table | Format::Wide => screen.print(&text(job)),
    }
}

fn text(job: &Job) -> String {
    let mut out = format!("{}  {}\n", clean(&job.id), clean(&job.name));
    let mut line = |label: &str, text: &str| {
        out.push_str(&format!("  {label:<12} {}\n", clean(text)));
    };
    let reason = if job.reason.is_empty() { String::new() } else { format!("  {}", job.reason) };
    line("state", &format!("{}{reason}", job.state));
    line("user", &format!("{}, project {}", job.user, job.project));
    line("needs", &needs(job));
    for (label, text) in queue(job) {
        line(label, &text);
    }
    for (label, time) in
        [("submitted", &job.submitted), ("started", &job.started), ("ended", &job.ended)]
    {
        if let Some(time) = time {
            line(label, &local(time));
        }
    }
    if let Some(code) = job.exit_code {
        line("exit code", &code.to_string());
    }
    for (label, text) in places(job) {
        // The Ray nodes have a table of their own below.
        if label != "Ray nodes" {
            line(label, &text);
        }
    }
    if let Some(progress) = &job.progress {
        let parts = std::iter::once(format!("step {}", progress.steps())).chain(progress.pace());
        line("progress", &parts.collect::<Vec<_>>().join(", "));
    }
    if let Some(since) = &job.stalled {
        let how = job.stalled_how.as_deref().filter(|how| !how.is_empty());
        let how = how.map(|how| format!(": {how}")).unwrap_or_default();
        line("stalled", &format!("since {}{how}", local(since)));
    }
    if let Some(until) = &job.kept_up_until {
        let id = clean(&job.id);
        line("kept up", &format!("until {}; `gangline release {id}` ends it", local(until)));
    }
    for slow in &job.stragglers {
        line("slow", &format!("since {}: {}", local(&slow.since), slow.text));
    }
    if let Some(newest) = &job.last_checkpoint {
        line("last saved", &format!("{}, {} ago", newest.name, short(newest.age_s)));
    }
    if let Some(saved) = &job.saved {
        for (label, text) in saved_text(saved) {
            line(label, &text);
        }
    }
    if !job.submit_command.is_empty() {
        line("command", &job.submit_command);
    }
    out.push_str(&attempts(&job.attempt_list));
    if let Some(attempt) = job.attempt_list.last() {
        out.push_str(&ray(attempt));
    }
    out.push_str(&members(&job.members));
    out.push_str(&history(&job.history));
    out
}

/// The newest training checkpoint that is complete, and the room for more.
fn saved_text(saved: &Saved) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    if let Some(newest) = &saved.newest {
        let step = newest.step.map(|step| format!("step {step}, ")).unwrap_or_default();
        let all = match saved.count {
            0 | 1 => String::new(),
            count => format!("; {count} take {}", bytes(saved.bytes)),
        };
        let (size, age) = (bytes(newest.bytes), short(newest.age_s));
        out.push(("complete", format!("{} ({step}{size}), {age} ago{all}", newest.name)));
    }
    if saved.is_low {
        let next = match saved.next_bytes {
            0 => String::new(),
            next => format!(", the next takes about {}", bytes(next)),
        };
        let removed = match saved.removed {
            0 => String::new(),
            removed => format!(", {removed} old removed to make room"),
        };
        let free = bytes(saved.free_bytes);
        out.push(("disk low", format!("{free} free{next}{removed}")));
    }
    if let Some(copied) = &saved.copied {
        out.push(("copied", copied.clone()));
    }
    if let Some(problem) = &saved.copy_problem {
        out.push(("not copied", problem.clone()));
    }
    out
}

/// What counts in the queue, and what keeps the job there.
fn queue(job: &Job) -> Vec<(&'static str, String)> {
    let held = job.held.as_ref().map(|held| {
        let why = if held.why.is_empty() { String::new() } else { format!(": {}", held.why) };
        format!("by {} since {}{why}", held.by, local(&held.since))
    });
    let lines = [
        ("priority", job.priority.map(|priority| priority.to_string())),
        ("time limit", job.timeout_s.map(short)),
        ("held", held),
        ("waits for", (!job.waits_for.is_empty()).then(|| job.waits_for.join(" "))),
        ("not before", job.not_before.as_ref().map(|time| local(time))),
        ("max wait", job.max_wait_s.map(short)),
    ];
    lines.into_iter().filter_map(|(label, text)| Some((label, text?))).collect()
}

fn needs(job: &Job) -> String {
    let pool = match job.pools.is_empty() {
        true => String::new(),
        false => format!(", pool {}", job.pools.join(" or ")),
    };
    format!(
        "{} node(s) with {} GPU(s) each, launcher {}{pool}",
        job.wanted_nodes(),
        count(job.gpus_per_node),
        job.launcher,
    )
}

fn time(time: Option<&String>) -> String {
    or_dash(time.map(|time| local(time)))
}

fn attempts(attempts: &[Attempt]) -> String {
    let rows = attempts.iter().map(|attempt| {
        vec![
            attempt.number.to_string(),
            time(attempt.started.as_ref()),
            time(attempt.ended.as_ref()),
            or_dash(attempt.outcome.clone()),
            or_dash(attempt.ray_version.clone()),
            or_dash(attempt.cause.clone()),
        ]
    });
    let titles = &["ATTEMPT", "STARTED", "ENDED", "OUTCOME", "RAY", "CAUSE"];
    Table::new(titles, None).with_rows(rows).section("Attempts")
}

/// The gang's Ray nodes, and which of them has the Ray driver.
fn ray(attempt: &Attempt) -> String {
    let driver = attempt.driver.as_ref();
    let driver_id = driver.and_then(|driver| driver.ray_node_id.as_deref());
    let rows = attempt.ray_nodes.iter().map(|node| {
        let is_driver = driver_id.is_some_and(|id| id == node.ray_node_id);
        vec![
            or_dash(node.member.as_ref().map(ToString::to_string)),
            or_dash(node.node.clone()),
            or_dash(node.address.clone()),
            or_dash(node.alive.map(|alive| if alive { "yes" } else { "no" }.to_owned())),
            if is_driver { "yes" } else { "-" }.to_owned(),
            or_dash(Some(node.ray_node_id.clone())),
            node.state_message.clone().unwrap_or_default(),
        ]
    });
    let titles = &["MEMBER", "NODE", "ADDRESS", "ALIVE", "DRIVER", "RAY NODE ID", "MESSAGE"];
    let title = format!("Ray nodes of attempt {}", attempt.number);
    Table::new(titles, None).with_rows(rows).section(&title)
}

/// The members of a gang, or those on one node: then each with its job.
pub(super) fn members(members: &[Member]) -> String {
    let with_jobs = members.iter().any(|member| member.job.is_some());
    let rows = members.iter().map(|member| {
        let mut row = Vec::new();
        if with_jobs {
            row.push(or_dash(member.job.clone()));
        }
        let ports = member.ports.as_ref();
        let last_port = |base: u64, size: u64| base.saturating_add(size).saturating_sub(1);
        row.extend([
            or_dash(member.member.as_ref().map(ToString::to_string)),
            or_dash(Some(member.node.clone())),
            or_dash(member.phase.as_ref().map(ToString::to_string)),
            count(member.pid),
            or_dash(member.cpus.map(|cpus| cpus.to_string())),
            or_dash(member.memory_bytes.map(bytes)),
            or_dash(
                ports.map(|ports| format!("{}-{}", ports.base, last_port(ports.base, ports.size))),
            ),
            or_dash(member.end.as_ref().map(ToString::to_string)),
            or_dash(Some(member.gpus.join(" "))),
        ]);
        row
    });
    let titles: &[&str] = if with_jobs {
        &["JOB", "MEMBER", "NODE", "PHASE", "PID", "CPUS", "MEMORY", "PORTS", "END", "GPUS"]
    } else {
        &["MEMBER", "NODE", "PHASE", "PID", "CPUS", "MEMORY", "PORTS", "END", "GPUS"]
    };
    Table::new(titles, None).with_rows(rows).section("Members")
}

/// The remembered changes of state, oldest first.
pub(super) fn history(history: &[Transition]) -> String {
    let rows = history.iter().map(|change| {
        vec![local(&change.time), change.state.clone(), change.actor.clone(), change.text.clone()]
    });
    Table::new(&["TIME", "STATE", "ACTOR", "TEXT"], None).with_rows(rows).section("History")
}
