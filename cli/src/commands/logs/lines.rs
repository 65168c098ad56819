//! Lines of a job's logs: of many members in the order of time, from a moment on, or those that were
//! searched for.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::super::attached::{as_unfinished, detached, or_ctrl_c};
use super::super::{find_job, or_dash};
use crate::args::{Logs, Tail};
use crate::client::Client;
use crate::durations::local;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::pauses::Pauses;
use crate::table::Table;
use crate::terminal::clean;
use crate::view::{self, Job};

/// Most last lines that the coordinator gives of many files.
const MAX_TAIL: u64 = 10_000;
/// How long one question waits for new lines.
const WAIT_S: u64 = 15;
/// Between two looks at a job that has not begun its next attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether lines are asked for, and not one file as it is.
pub(super) fn wanted(args: &Logs) -> bool {
    let several = args.file.as_ref().is_some_and(|file| file.ends_with('*'));
    args.all
        || several
        || args.node.is_some()
        || args.since.is_some()
        || args.grep.is_some()
        || args.errors
}

/// An answer with lines.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    attempt: Option<u32>,
    cursor: Option<String>,
    more: bool,
    complete: bool,
    unreadable: Vec<String>,
    incomplete: Vec<String>,
}

/// One line of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    job: String,
    time_ms: Option<u64>,
    member: String,
    file: String,
    offset: u64,
    next: u64,
    text: String,
}

/// Prints lines.
struct Printer<'a> {
    screen: &'a Screen,
    /// Whose line it is, and when it was read.
    prefix: bool,
    /// Hits are shown with their surroundings, and what does not hang together is parted.
    parted: bool,
    raw: bool,
    width: usize,
    last: Option<(String, String, u64)>,
}

impl<'a> Printer<'a> {
    fn new(screen: &'a Screen, args: &Logs, prefix: bool) -> Self {
        let parted = args.context > 0;
        Printer { screen, prefix, parted, raw: args.raw, width: 6, last: None }
    }

    fn print(&mut self, value: &Value) -> Result<(), CliError> {
        if self.screen.is_json() {
            return self.screen.json_line(value);
        }
        let line: Line = view::read(value)?;
        let place = (format!("{}/{}", line.job, line.member), line.file.clone(), line.offset);
        let follows = self.last.as_ref().is_some_and(|last| *last == place);
        if self.parted && self.last.is_some() && !follows {
            self.screen.plain("--\n")?;
        }
        self.last = Some((place.0, place.1, line.next));
        let text = if self.raw { line.text.clone() } else { clean(&line.text) };
        if !self.prefix {
            return self.screen.plain(&format!("{text}\n"));
        }
        let mut whose = label(&line);
        if !line.job.is_empty() {
            whose = format!("{} {whose}", clean(&line.job));
        }
        self.width = self.width.max(whose.chars().count()).min(40);
        let time = line.time_ms.map_or_else(|| "-       ".to_owned(), clock);
        self.screen.plain(&format!("{time} {whose:<width$} {text}\n", width = self.width))
    }
}

/// `driver`, `head`, `n2`, or `n2/worker-7-ab-err`.
fn label(line: &Line) -> String {
    let member = match line.member.as_str() {
        "head" => "head".to_owned(),
        rank => format!("n{rank}"),
    };
    let label = match line.file.as_str() {
        "output" => member,
        file if file.starts_with("driver-") => "driver".to_owned(),
        file => format!("{member}/{file}"),
    };
    clean(&label)
}

/// Local time of day; with the day when it is not today.
fn clock(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let Some(time) = time else { return "-".to_owned() };
    let zone = TimeZone::system();
    let time = time.to_zoned(zone.clone());
    let today = Timestamp::now().to_zoned(zone).date() == time.date();
    time.strftime(if today { "%H:%M:%S" } else { "%m-%d %H:%M:%S" }).to_string()
}

/// The query that all pages have in common.
fn query(args: &Logs, attempt: Option<u32>) -> Vec<(&'static str, String)> {
    let mut query = Vec::new();
    let mut add = |name, value: Option<String>| query.extend(value.map(|value| (name, value)));
    let flag = |on: bool| on.then(|| "true".to_owned());
    add("rank", args.rank.clone());
    add("node", args.node.clone());
    add("file", args.file.clone());
    add("all", flag(args.all));
    add("attempt", attempt.map(|attempt| attempt.to_string()));
    add("grep", args.grep.clone());
    add("errors", flag(args.errors));
    add("context", (args.context > 0).then(|| args.context.to_string()));
    add("raw", flag(args.raw));
    add("since_ms", since_ms(args).map(|ms| ms.to_string()));
    query
}

/// Now less the time of `--since`, in milliseconds since 1970.
fn since_ms(args: &Logs) -> Option<u64> {
    let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    args.since.map(|since| now.saturating_sub(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// Print lines of a job, and go on until it has ended with `--follow`.
pub(super) async fn run(
    client: &Client,
    selector: &str,
    args: &Logs,
    screen: &Screen,
) -> Result<u8, CliError> {
    let (_, job) = find_job(client, selector).await?;
    let attempt = args.attempt.map(|attempt| format!(" attempt {attempt}")).unwrap_or_default();
    screen.hint(&format!("── {}{attempt} · {} · {} ──", job.id, job.state, whose(args)));
    let several = args.file.as_ref().is_some_and(|file| file.ends_with('*'));
    let mut printer = Printer::new(screen, args, args.all || several || args.node.is_some());
    if !args.follow {
        pages(client, &job, args, &mut printer).await?;
        return Ok(exit::OK);
    }
    let followed = or_ctrl_c(follow(client, &job, args, &mut printer)).await;
    match followed.map_err(as_unfinished)? {
        Some(()) => super::result(client, &job, args, screen).await,
        None => Ok(detached(std::slice::from_ref(&job.id), screen)),
    }
}

fn whose(args: &Logs) -> String {
    let mut parts = Vec::new();
    match (&args.rank, &args.node, &args.file) {
        (_, _, Some(file)) => parts.push(format!("files {}", clean(file))),
        (Some(rank), _, _) => parts.push(format!("rank {rank}")),
        (None, Some(node), _) => parts.push(format!("members on {}", clean(node))),
        (None, None, None) if args.all => parts.push("all members by time".to_owned()),
        (None, None, None) => parts.push("the job's own log".to_owned()),
    }
    if let Some(pattern) = &args.grep {
        parts.push(format!("lines that fit {}", clean(pattern)));
    }
    if args.errors {
        parts.push("errors".to_owned());
    }
    parts.join(", ")
}

/// The number of last lines to begin with, when not everything is wanted.
fn tail(args: &Logs) -> Option<String> {
    let searched = args.grep.is_some() || args.errors || args.since.is_some();
    match args.tail {
        Tail::Lines(lines) if !searched => Some(lines.min(MAX_TAIL).to_string()),
        Tail::Lines(_) | Tail::All => None,
    }
}

/// Everything that is there now.
async fn pages(
    client: &Client,
    job: &Job,
    args: &Logs,
    printer: &mut Printer<'_>,
) -> Result<(), CliError> {
    let query = query(args, args.attempt);
    let mut cursor = None;
    let mut count = 0;
    loop {
        let mut asked = query.clone();
        match cursor.take() {
            Some(cursor) => asked.push(("cursor", cursor)),
            None => asked.extend(tail(args).map(|tail| ("tail", tail))),
        }
        let (lines, page) =
            ask(client, &["jobs", &job.id, "logs", "lines"], &asked, printer).await?;
        count += lines;
        if !page.more {
            break;
        }
        cursor = page.cursor;
    }
    if count == 0 {
        printer.screen.hint(&format!("no such lines in the logs of {}", job.id));
    }
    Ok(())
}

/// One answer; its lines are printed and counted.
async fn ask(
    client: &Client,
    path: &[&str],
    query: &[(&str, String)],
    printer: &mut Printer<'_>,
) -> Result<(usize, Page), CliError> {
    let mut answer = client.get(path, query).await?;
    let lines = answer.get_mut("lines").map(Value::take);
    let lines = lines.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    lines.iter().try_for_each(|line| printer.print(line))?;
    let page: Page = view::read(&answer)?;
    for file in &page.unreadable {
        printer.screen.warn(&format!("{file} is damaged on the coordinator's disk"));
    }
    for job in &page.incomplete {
        printer.screen.warn(&format!("not all logs of {job} are there: some were removed"));
    }
    Ok((lines.len(), page))
}

/// Everything until the job has ended, over lost connections; the cursor knows what was printed.
async fn follow(
    client: &Client,
    job: &Job,
    args: &Logs,
    printer: &mut Printer<'_>,
) -> Result<(), CliError> {
    let query = query(args, args.attempt);
    let mut cursor: Option<String> = None;
    let mut newer: Option<u32> = None;
    let mut pauses = Pauses::default();
    let mut told = false;
    loop {
        let mut asked = query.clone();
        asked.push(("wait_s", WAIT_S.to_string()));
        asked.extend(newer.map(|number| ("attempt", number.to_string())));
        match &cursor {
            Some(cursor) => asked.push(("cursor", cursor.clone())),
            None if newer.is_none() => asked.extend(tail(args).map(|tail| ("tail", tail))),
            None => {}
        }
        let answer = ask(client, &["jobs", &job.id, "logs", "lines"], &asked, printer).await;
        let page = match answer {
            Ok((_, page)) => page,
            Err(error) if error.is_transport() => {
                if !std::mem::replace(&mut told, true) {
                    printer.screen.hint(&format!("{error}; the job goes on, trying again"));
                }
                pauses.pause().await;
                continue;
            }
            Err(error) => return Err(error),
        };
        (pauses, told) = (Pauses::default(), false);
        cursor = page.cursor.filter(|cursor| !cursor.is_empty());
        if !page.complete {
            continue;
        }
        if args.attempt.is_some() {
            return Ok(());
        }
        let (_, now) = find_job(client, &job.id).await?;
        let last = now.attempts.and_then(|number| u32::try_from(number).ok());
        if let Some(next) = last.filter(|last| page.attempt.is_some_and(|done| done < *last)) {
            printer.screen.hint(&format!("── {} attempt {next} ──", job.id));
            (newer, cursor) = (Some(next), None);
        } else if now.is_over() {
            return Ok(());
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Search the logs of all jobs of a project.
pub(super) async fn search(client: &Client, args: &Logs, screen: &Screen) -> Result<u8, CliError> {
    let mut query: Vec<(&str, String)> = Vec::new();
    query.extend(args.search.clone().map(|pattern| ("grep", pattern)));
    query.extend(args.project.clone().map(|project| ("project", project)));
    query.extend(args.errors.then(|| ("errors", "true".to_owned())));
    query.extend(since_ms(args).map(|ms| ("since_ms", ms.to_string())));
    query.push(("context", args.context.to_string()));
    let mut printer = Printer::new(screen, args, true);
    let (mut cursor, mut count) = (None, 0);
    loop {
        let mut asked = query.clone();
        asked.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let (lines, page) = ask(client, &["logs", "search"], &asked, &mut printer).await?;
        count += lines;
        match page.cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    if count == 0 {
        screen.hint("no such lines in the logs of the project");
    }
    Ok(exit::OK)
}

/// List the files of an attempt.
pub(super) async fn files(
    client: &Client,
    selector: &str,
    args: &Logs,
    screen: &Screen,
) -> Result<u8, CliError> {
    let (_, job) = find_job(client, selector).await?;
    let attempt = args.attempt.map(|attempt| ("attempt", attempt.to_string()));
    let query: Vec<_> = attempt.into_iter().collect();
    let answer = client.get(&["jobs", &job.id, "logs", "files"], &query).await?;
    let files = answer.get("files").and_then(Value::as_array).cloned().unwrap_or_default();
    let files = chosen(&files, args)?;
    let text = |file: &Value, key: &str| file.get(key).and_then(Value::as_str).map(str::to_owned);
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => files.iter().try_for_each(|file| screen.json(file))?,
        Format::Name => files
            .iter()
            .try_for_each(|file| screen.line(&text(file, "file").unwrap_or_default()))?,
        Format::Table | Format::Wide => {
            let titles = &["MEMBER", "NODE", "FILE", "BYTES", "FIRST", "NEWEST"];
            let mut table = Table::new(titles, screen.width());
            for file in &files {
                let bytes = file.get("bytes").and_then(Value::as_u64);
                table.row(vec![
                    or_dash(text(file, "member")),
                    or_dash(text(file, "node")),
                    or_dash(text(file, "file")),
                    or_dash(bytes.map(|bytes| bytes.to_string())),
                    or_dash(text(file, "first").map(|time| local(&time))),
                    or_dash(text(file, "newest").map(|time| local(&time))),
                ]);
            }
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

/// The files of a list that `args` mean: all of them without a choice.
///
/// # Errors
/// None of them has the name that was given, or is of the node.
pub(super) fn chosen<'a>(files: &'a [Value], args: &Logs) -> Result<Vec<&'a Value>, CliError> {
    let unknown = |what: String| {
        CliError::new(exit::USAGE, code::USAGE, what)
            .hint("`gangline logs JOB --files` lists all of them")
    };
    if let Some(name) = &args.file
        && !has(files, |file| is_named(file, args))
    {
        return Err(unknown(format!("there is no file {}", clean(name))));
    }
    if let Some(node) = &args.node
        && !has(files, |file| is(file, "node", Some(node)))
    {
        return Err(unknown(format!("no member of this attempt is on {}", clean(node))));
    }
    let wanted = |file: &&Value| {
        is_named(file, args)
            && is(file, "member", args.rank.as_ref())
            && is(file, "node", args.node.as_ref())
    };
    Ok(files.iter().filter(wanted).collect())
}

/// Whether one of them fits; of an attempt that has written nothing yet nobody knows better.
fn has(files: &[Value], fits: impl Fn(&Value) -> bool) -> bool {
    files.is_empty() || files.iter().any(fits)
}

fn is_named(file: &Value, args: &Logs) -> bool {
    let name = file.get("file").and_then(Value::as_str).unwrap_or_default();
    args.file.as_ref().is_none_or(|wanted| match wanted.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == wanted,
    })
}

/// Whether a field of a file is what is wanted, or nothing is.
fn is(file: &Value, key: &str, wanted: Option<&String>) -> bool {
    wanted.is_none_or(|wanted| file.get(key).and_then(Value::as_str) == Some(wanted.as_str()))
}
