//! Where the news of `top` come from: the lists of nodes and jobs, and the stream of samples, through
//! lost connections and restarts of the coordinator.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::state::News;
use crate::client::Client;
use crate::commands::node;
use crate::errors::CliError;
use crate::pauses::Pauses;
use crate::sse::{SseEvent, SseParser};
use crate::view::{self, Job, JobPage, NodeSeries};

/// News that wait to be shown. A screen that is slower makes the coordinator leave some out.
pub const WAITING: usize = 4096;
/// The lists are fetched again when something has changed, but no sooner than this after the last
/// time; and after the longer time in any case.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(10);
/// Jobs that are looked up.
const JOBS: usize = 1000;

/// The screen has gone.
struct Gone;

/// Why a connection has ended.
enum End {
    Gone,
    Error(CliError),
}

impl From<CliError> for End {
    fn from(error: CliError) -> Self {
        End::Error(error)
    }
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        End::Gone
    }
}

/// Data of the event `dropped`.
#[derive(Deserialize)]
struct Dropped {
    events: Option<u64>,
}

/// Sends news until nobody takes them.
///
/// # Errors
/// A refusal that another try would not change.
pub async fn run(
    client: &Client,
    pool: Option<&str>,
    news: mpsc::Sender<News>,
) -> Result<(), CliError> {
    let mut pauses = Pauses::default();
    loop {
        let began = Instant::now();
        let error = match connection(client, pool, &news).await {
            Err(End::Gone) | Ok(()) => return Ok(()),
            Err(End::Error(error)) => error,
        };
        let busy = error.status() == Some(503);
        if !error.is_transport() && !busy {
            return Err(error);
        }
        if began.elapsed() > Pauses::LONGEST {
            pauses = Pauses::default();
        }
        if news.send(News::Lost(error.to_string())).await.is_err() {
            return Ok(());
        }
        pauses.pause().await;
    }
}

async fn connection(
    client: &Client,
    pool: Option<&str>,
    news: &mpsc::Sender<News>,
) -> Result<(), End> {
    fetch(client, pool, news).await?;
    let query: Vec<_> = pool.into_iter().map(|pool| ("pool", pool.to_owned())).collect();
    let mut response = client.stream(&["nodes", "stream"], &query).await?;
    tell(news, News::Connected).await?;
    let mut parser = SseParser::default();
    let mut fetched = Instant::now();
    let mut stale = false;
    loop {
        let due = fetched + if stale { LEAST } else { MOST };
        let chunk = tokio::select! {
            chunk = response.chunk() => chunk.map_err(|error| client.unreachable(&error))?,
            () = tokio::time::sleep_until(due.into()) => {
                fetch(client, pool, news).await?;
                (fetched, stale) = (Instant::now(), false);
                continue;
            }
            () = news.closed() => return Err(End::Gone),
        };
        let Some(chunk) = chunk else { return Err(ended(client).into()) };
        let events = parser.push(&chunk).map_err(|_| ended(client))?;
        for event in events {
            stale |= take(&event, news).await?;
        }
    }
}

/// Passes one event on. Gives whether the lists are out of date.
async fn take(event: &SseEvent, news: &mpsc::Sender<News>) -> Result<bool, Gone> {
    match event.name.as_str() {
        "sample" => {
            // An event of another version is none for this one.
            if let Ok(sample) = serde_json::from_str(&event.data) {
                tell(news, News::Sample(Box::new(sample))).await?;
            }
            Ok(false)
        }
        "dropped" => {
            let events = serde_json::from_str::<Dropped>(&event.data).ok();
            tell(news, News::Dropped(events.and_then(|dropped| dropped.events))).await?;
            Ok(true)
        }
        other => Ok(other == "node"),
    }
}

/// All nodes, or those of the pool: a fleet of thousands is much to send again and again.
async fn fetch(client: &Client, pool: Option<&str>, news: &mpsc::Sender<News>) -> Result<(), End> {
    let (_, nodes) = node::fetch(client, pool).await?;
    Ok(tell(news, News::All(nodes, live_jobs(client).await?)).await?)
}

/// The jobs that have nodes, with their users.
///
/// # Errors
/// As [`Client::get`].
pub async fn live_jobs(client: &Client) -> Result<Vec<Job>, CliError> {
    let query =
        [("state", "STARTING,RUNNING,STOPPING".to_owned()), ("page_size", JOBS.to_string())];
    let answer = client.get(&["jobs"], &query).await?;
    let page: JobPage = view::read(&answer)?;
    page.jobs.iter().map(view::read).collect()
}

/// The last two minutes of one node.
///
/// # Errors
/// As [`Client::get`].
pub async fn past(client: &Client, id: &str) -> Result<News, CliError> {
    let query = [("step_s", "1".to_owned())];
    let answer: Value = client.get(&["nodes", id, "samples"], &query).await?;
    let series: NodeSeries = view::read_series(&answer)?;
    Ok(News::Past(id.to_owned(), series))
}

async fn tell(news: &mpsc::Sender<News>, one: News) -> Result<(), Gone> {
    news.send(one).await.map_err(|_| Gone)
}

fn ended(client: &Client) -> CliError {
    let what = format!("the coordinator at {} has ended the stream", client.address());
    CliError::new(crate::errors::exit::UNREACHABLE, crate::errors::code::UNREACHABLE, what)
        .transport()
}
