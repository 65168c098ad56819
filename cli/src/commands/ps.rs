//! `ps`: the list of jobs, page by page.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{count, items, or_dash};
use crate::args::Ps;
use crate::client::Client;
use crate::durations::{age, local};
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::view::{self, Job, JobPage, STATES, is_terminal};

/// Jobs of one page.
const PAGE_SIZE: usize = 500;
/// Pages of one list at most: a coordinator that hands out the same token for ever is left.
const MAX_PAGES: usize = 10_000;
/// Width of a whole bar of progress, in characters.
const BAR: usize = 6;
/// Time between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Rows that `--watch` keeps in memory for a terminal.
const MAX_WATCHED: usize = 1_000;

const COLUMNS: &[&str] =
    &["ID", "NAME", "USER", "STATE", "NODES", "GPUS", "PROGRESS", "AGE", "REASON"];
const WIDE: &[&str] = &[
    "ID",
    "NAME",
    "USER",
    "PROJECT",
    "STATE",
    "LAUNCHER",
    "NODES",
    "GPUS",
    "PROGRESS",
    "POOL",
    "ATTEMPTS",
    "AGE",
    "SUBMITTED",
    "STARTED",
    "ENDED",
    "DRIVER",
    "ON",
    "OUTPUT",
    "REASON",
];

/// List jobs.
pub(super) async fn run(client: &Client, args: &Ps, screen: &Screen) -> Result<u8, CliError> {
    match (args.watch, screen.is_terminal()) {
        (false, _) => list(client, args, screen).await,
        (true, true) => redraw(client, args, screen).await,
        (true, false) => changes(client, args, screen).await,
    }
}

/// The pages of a list.
struct Pages<'a> {
    client: &'a Client,
    query: Vec<(&'static str, String)>,
    next: Option<Option<String>>,
    left: usize,
}

impl<'a> Pages<'a> {
    fn new(client: &'a Client, args: &Ps) -> Self {
        let mut query = vec![("page_size", PAGE_SIZE.to_string())];
        let live = || STATES.iter().filter(|s| !is_terminal(s)).copied().collect::<Vec<_>>();
        match &args.state {
            Some(state) => query.push(("state", state.clone())),
            None if args.all => {}
            None => query.push(("state", live().join(","))),
        }
        Self { client, query, next: Some(None), left: MAX_PAGES }
    }

    /// The jobs of the next page; `None` after the last one.
    async fn next(&mut self) -> Result<Option<Vec<Value>>, CliError> {
        let Some(token) = self.next.take().filter(|_| self.left > 0) else {
            return Ok(None);
        };
        self.left -= 1;
        let mut query = self.query.clone();
        query.extend(token.map(|token| ("page_token", token)));
        let answer = self.client.get(&["jobs"], &query).await?;
        let page: JobPage = view::read(&answer)?;
        // The jobs as they were sent, with their nulls.
        let jobs = items(&answer, "jobs").to_vec();
        self.next = page.next_page_token.filter(|token| !token.is_empty()).map(Some);
        Ok(Some(jobs))
    }
}

async fn list(client: &Client, args: &Ps, screen: &Screen) -> Result<u8, CliError> {
    let mut pages = Pages::new(client, args);
    let mut table = table(screen);
    let mut jobs = 0;
    let mut json = JsonList::new(screen, "jobs");
    while let Some(page) = pages.next().await? {
        jobs += page.len();
        match screen.format() {
            Format::Json => json.items(&page)?,
            Format::Jsonl => page.iter().try_for_each(|job| screen.json(job))?,
            Format::Name => {
                for job in &page {
                    screen.line(&view::read::<Job>(job)?.id)?;
                }
            }
            Format::Table | Format::Wide => {
                fill(&mut table, &page, screen)?;
                screen.print(&table.take())?;
            }
        }
    }
    json.end()?;
    if matches!(screen.format(), Format::Table | Format::Wide) {
        screen.hint(&footer(jobs, args));
    }
    Ok(exit::OK)
}

fn footer(jobs: usize, args: &Ps) -> String {
    let plural = if jobs == 1 { "" } else { "s" };
    if args.all || args.state.is_some() {
        format!("{jobs} job{plural}")
    } else {
        format!("{jobs} job{plural} · gangline ps -a shows the ended ones too")
    }
}

/// One JSON object with a long list in it, written as the items arrive.
struct JsonList<'a> {
    screen: &'a Screen,
    name: &'static str,
    active: bool,
    first: bool,
}

impl<'a> JsonList<'a> {
    fn new(screen: &'a Screen, name: &'static str) -> Self {
        Self { screen, name, active: screen.format() == Format::Json, first: true }
    }

    fn items(&mut self, items: &[Value]) -> Result<(), CliError> {
        let mut out = String::new();
        for item in items {
            let before = if std::mem::replace(&mut self.first, false) {
                format!("{{\n  \"{}\": [", self.name)
            } else {
                ",".to_owned()
            };
            let item = crate::terminal::escape_json(&format!("{item:#}"));
            out.push_str(&format!("{before}\n    {}", item.replace('\n', "\n    ")));
        }
        self.screen.plain(&out)
    }

    fn end(&self) -> Result<(), CliError> {
        match (self.active, self.first) {
            (false, _) => Ok(()),
            (true, true) => {
                let empty =
                    format!("{{\n  \"{}\": [],\n  \"next_page_token\": null\n}}\n", self.name);
                self.screen.plain(&empty)
            }
            (true, false) => self.screen.plain("\n  ],\n  \"next_page_token\": null\n}\n"),
        }
    }
}

fn table(screen: &Screen) -> Table {
    let titles = if screen.is_wide() { WIDE } else { COLUMNS };
    Table::new(titles, screen.width()).cut_last()
}

fn fill(table: &mut Table, jobs: &[Value], screen: &Screen) -> Result<(), CliError> {
    let now = Timestamp::now();
    for job in jobs {
        let job: Job = view::read(job)?;
        table.row(if screen.is_wide() { wide_row(job, now) } else { row(job, now) });
    }
    Ok(())
}

fn row(job: Job, now: Timestamp) -> Vec<String> {
    let (nodes, gpus) = (job.nodes_text(), count(job.gpus()));
    let (progress, reason) = (progress(&job), reason(&job, now));
    vec![
        job.id,
        job.name,
        job.user,
        job.state,
        nodes,
        gpus,
        progress,
        or_dash(job.submitted.and_then(|time| age(&time, now))),
        reason,
    ]
}

/// `███▌  step 84/240`, or the step alone where nobody knows how many there are.
fn progress(job: &Job) -> String {
    let Some(progress) = &job.progress else { return "-".to_owned() };
    let text = format!("step {}", progress.steps());
    match progress.total.filter(|total| *total > 0) {
        Some(total) => format!("{}  {text}", bar(progress.step as f64 / total as f64)),
        None => text,
    }
}

/// Eighths of a character, up to ten characters.
fn bar(share: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * 8.0 * BAR as f64) as usize;
    let part = PARTS.get(eighths % 8).copied().unwrap_or_default();
    format!("{}{part}", "█".repeat(eighths / 8))
}

/// Why it waits or ended; of one that has stalled, that it has.
fn reason(job: &Job, now: Timestamp) -> String {
    match job.stalled.as_deref().and_then(|since| age(since, now)) {
        Some(age) => format!("! stalled for {age}"),
        None => job.reason.clone(),
    }
}

fn wide_row(job: Job, now: Timestamp) -> Vec<String> {
    let (nnodes, gpus) = (job.nodes_text(), count(job.gpus()));
    let (progress, reason) = (progress(&job), reason(&job, now));
    let time = |time: &Option<String>| or_dash(time.as_deref().map(local));
    let times = [time(&job.submitted), time(&job.started), time(&job.ended)];
    let [submitted, started, ended] = times;
    vec![
        job.id,
        job.name,
        job.user,
        job.project,
        job.state,
        job.launcher,
        nnodes,
        gpus,
        progress,
        or_dash(Some(job.pools.join(","))),
        count(job.attempts),
        or_dash(job.submitted.and_then(|time| age(&time, now))),
        submitted,
        started,
        ended,
        or_dash(job.driver_node),
        or_dash(Some(job.nodes.join(","))),
        or_dash(job.directory),
        reason,
    ]
}

/// Redraw the list on a terminal until Ctrl-C.
async fn redraw(client: &Client, args: &Ps, screen: &Screen) -> Result<u8, CliError> {
    let mut shown = String::new();
    loop {
        let mut table = table(screen);
        match first_jobs(client, args).await {
            Ok(jobs) => {
                fill(&mut table, &jobs, screen)?;
                shown = format!("{}{}\n", table.take(), footer(jobs.len(), args));
                screen.redraw(&shown)?;
            }
            Err(error) if error.is_transport() && !shown.is_empty() => {
                screen.redraw(&format!(
                    "{shown}{}; trying again\n",
                    crate::terminal::clean(&error.to_string())
                ))?;
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Print the jobs that changed since the last look, one JSON object a line, until Ctrl-C.
async fn changes(client: &Client, args: &Ps, screen: &Screen) -> Result<u8, CliError> {
    let mut known: Option<HashMap<String, Value>> = None;
    loop {
        match first_jobs(client, args).await {
            Ok(jobs) => {
                let mut now = HashMap::new();
                for job in jobs {
                    let id = view::read::<Job>(&job)?.id;
                    let before = known.as_ref().and_then(|known| known.get(&id));
                    if before != Some(&job) {
                        screen.json_line(&job)?;
                    }
                    now.insert(id, job);
                }
                known = Some(now);
            }
            Err(error) if error.is_transport() && known.is_some() => {
                screen.hint(&format!("{error}; trying again"));
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// The newest jobs, at most [`MAX_WATCHED`].
async fn first_jobs(client: &Client, args: &Ps) -> Result<Vec<Value>, CliError> {
    first_of(Pages::new(client, args)).await
}

/// The newest clusters, at most [`MAX_WATCHED`].
pub(super) async fn first_clusters(client: &Client, all: bool) -> Result<Vec<Value>, CliError> {
    let mut pages = Pages::new(client, &Ps { all, state: None, watch: false });
    pages.query.push(("kind", "cluster".to_owned()));
    first_of(pages).await
}

async fn first_of(mut pages: Pages<'_>) -> Result<Vec<Value>, CliError> {
    let mut jobs = Vec::new();
    while let Some(page) = pages.next().await? {
        jobs.extend(page);
        if jobs.len() >= MAX_WATCHED {
            jobs.truncate(MAX_WATCHED);
            break;
        }
    }
    Ok(jobs)
}
