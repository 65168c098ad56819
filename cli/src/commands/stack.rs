//! `stack`: where the processes of every rank stand, those at the same place together.

use gangline_diagnosis::stacks::{Group, Process, group};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::find_job;
use crate::args::Stack;
use crate::client::Client;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::terminal::clean;
use crate::view::Job;

/// Ranks that are asked at a time.
const AT_ONCE: usize = 8;
/// Most lines of one stack that are printed.
const MAX_FRAMES: usize = 40;
/// Most processes of one group that are named.
const MAX_NAMED: usize = 16;

/// Show the stacks.
pub(super) async fn run(client: &Client, args: &Stack, screen: &Screen) -> Result<u8, CliError> {
    let (_, job) = find_job(client, &args.job).await?;
    let ranks = match &args.rank {
        Some(rank) => vec![rank.clone()],
        None => ranks_of(&job),
    };
    let answers = ask_all(client, &job.id, &ranks).await;
    let mut problems = Vec::new();
    let mut members = Vec::new();
    for (rank, answer) in answers {
        match answer {
            Ok(value) => members.push(value),
            Err(error) => problems.push((rank, error)),
        }
    }
    // When nobody answers, that is the result.
    if members.is_empty()
        && let Some((_, error)) = problems.pop()
    {
        return Err(error);
    }
    for (rank, error) in &problems {
        screen.warn(&format!("rank {rank}: {error}"));
    }
    show(&job, &members, args.all, screen)?;
    Ok(if problems.is_empty() { exit::OK } else { exit::ERROR })
}

/// The members of a job that run its code.
pub(super) fn ranks_of(job: &Job) -> Vec<String> {
    (0..job.nnodes.unwrap_or(1)).map(|rank| rank.to_string()).collect()
}

async fn ask_all(
    client: &Client,
    job: &str,
    ranks: &[String],
) -> Vec<(String, Result<Value, CliError>)> {
    let (mut waiting, mut asking) = (ranks.iter().enumerate(), JoinSet::new());
    let mut answers = Vec::new();
    loop {
        while asking.len() < AT_ONCE
            && let Some((index, rank)) = waiting.next()
        {
            let (client, job, rank) = (client.clone(), job.to_owned(), rank.clone());
            asking.spawn(async move {
                let query = [("rank", rank.clone())];
                let answer = client.get(&["jobs", &job, "stacks"], &query).await;
                (index, rank, answer)
            });
        }
        match asking.join_next().await {
            Some(Ok(answer)) => answers.push(answer),
            Some(Err(error)) => {
                let lost = CliError::new(exit::ERROR, code::INTERNAL, error.to_string());
                answers.push((usize::MAX, "?".to_owned(), Err(lost)));
            }
            None => break,
        }
    }
    answers.sort_by_key(|(index, ..)| *index);
    answers.into_iter().map(|(_, rank, answer)| (rank, answer)).collect()
}

/// One process of one member.
#[derive(Clone, Debug)]
struct Place {
    member: String,
    node: String,
    pid: u64,
}

/// The processes of these scenes, those at the same place together; and how many are left out.
fn groups_of(members: &[Value], all: bool) -> (Vec<Group<Place>>, usize) {
    let mut processes = Vec::new();
    let mut left_out = 0;
    for member in members {
        let of = |field: &str| member.get(field).and_then(Value::as_str).unwrap_or("?").to_owned();
        for stack in member.get("stacks").and_then(Value::as_array).into_iter().flatten() {
            let is = |field: &str| stack.get(field).and_then(Value::as_bool).unwrap_or(false);
            if !all && !is("of_job") {
                left_out += 1;
                continue;
            }
            let text = |field: &str| stack.get(field).and_then(Value::as_str).unwrap_or_default();
            let pid = stack.get("pid").and_then(Value::as_u64).unwrap_or(0);
            let owner = Place { member: of("member"), node: of("node"), pid };
            processes.push(Process { owner, title: text("title"), text: text("text") });
        }
    }
    (group(processes), left_out)
}

/// The groups for people, as text; empty when there is no process.
pub(super) fn text_of(members: &[Value]) -> String {
    grouped(&groups_of(members, false).0)
}

fn grouped(groups: &[Group<Place>]) -> String {
    let mut out = String::new();
    for group in groups {
        out.push_str(&clean(&title(group)));
        out.push('\n');
        for frame in group.frames.iter().take(MAX_FRAMES) {
            out.push_str(&format!("    {}\n", clean(frame)));
        }
        if group.frames.len() > MAX_FRAMES {
            out.push_str(&format!("    ... {} more\n", group.frames.len() - MAX_FRAMES));
        }
    }
    out
}

fn show(job: &Job, members: &[Value], all: bool, screen: &Screen) -> Result<(), CliError> {
    let (groups, left_out) = groups_of(members, all);
    let count: usize = groups.iter().map(|group| group.owners.len()).sum();
    if screen.is_json() {
        let groups: Vec<Value> = groups.iter().map(as_json).collect();
        return screen.json(&json!({"job": job.id, "groups": groups, "left_out": left_out}));
    }
    if screen.format() == Format::Name {
        let odd = groups.iter().filter(|group| group.odd).flat_map(|group| &group.owners);
        return odd.into_iter().try_for_each(|place| screen.line(&place.member));
    }
    for member in members {
        for note in notes(member) {
            screen.hint(&note);
        }
    }
    screen.print(&grouped(&groups))?;
    let and = match left_out {
        0 => String::new(),
        n => format!("; {n} processes of Ray's own or without the job's mark are left out (--all)"),
    };
    screen.hint(&format!("{count} processes at {} places{and}", groups.len()));
    Ok(())
}

fn as_json(group: &Group<Place>) -> Value {
    let owner =
        |place: &Place| json!({"member": place.member, "node": place.node, "pid": place.pid});
    let processes: Vec<Value> = group.owners.iter().map(owner).collect();
    json!({"kind": group.kind, "odd": group.odd, "frames": group.frames, "processes": processes})
}

/// "3 of python train.py: 0 (pid 7 on gpu-1), ...".
fn title(group: &Group<Place>) -> String {
    let name = |place: &Place| format!("{} (pid {} on {})", place.member, place.pid, place.node);
    let mut named: Vec<String> = group.owners.iter().take(MAX_NAMED).map(name).collect();
    if group.owners.len() > MAX_NAMED {
        named.push(format!("{} more", group.owners.len() - MAX_NAMED));
    }
    let odd = if group.odd { "  <- not where the others are" } else { "" };
    format!("{} of {}: rank {}{odd}", group.owners.len(), group.kind, named.join(", "))
}

/// What is wrong with the stacks of a member.
fn notes(member: &Value) -> Vec<String> {
    let of = |value: &Value, field: &str| {
        value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let list = |field: &str| member.get(field).and_then(Value::as_array).into_iter().flatten();
    let who = of(member, "member");
    let parts = list("parts").map(|part| of(part, "text"));
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    let failed = list("stacks").find(|stack| stack.get("ok") == Some(&Value::Bool(false)));
    let failed = failed.map(|stack| first_line(of(stack, "text")));
    parts.chain(failed).map(|text| format!("{who}: {text}")).collect()
}
