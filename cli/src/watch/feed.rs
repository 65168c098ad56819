//! Where the news of `watch` come from: the job, its steps, the readings of its GPUs and the end of its
//! log, asked for again and again, through lost connections.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::state::{Look, News, first};
use crate::client::Client;
use crate::errors::CliError;
use crate::terminal::clean;
use crate::view::{self, Job, JobMetrics, JobSeries, Progress};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks that wait to be shown.
pub const WAITING: usize = 2;
/// How far back the log begins, and what of it one look takes.
const LOG_BYTES: u64 = 16 << 10;
/// How far back the readings go.
const READINGS: Duration = Duration::from_secs(120);

/// Where the looks stand.
#[derive(Debug, Default)]
pub struct Feed {
    /// Attempt and offset of the log.
    log: Option<(u64, u64)>,
    /// The begun line at its end.
    rest: String,
    /// Step and metric of the newest series.
    seen: Option<(u64, Option<String>)>,
}

impl Feed {
    /// Sends looks until nobody takes them.
    ///
    /// # Errors
    /// A refusal that another try would not change.
    pub async fn run(
        mut self,
        client: &Client,
        job: &str,
        metric: watch::Receiver<Option<String>>,
        news: mpsc::Sender<News>,
    ) -> Result<(), CliError> {
        loop {
            let wanted = metric.borrow().clone();
            let one = match self.look(client, job, wanted).await {
                Ok(look) => News::Look(Box::new(look)),
                Err(error) if error.is_transport() || error.status() == Some(503) => {
                    News::Lost(error.to_string())
                }
                Err(error) => return Err(error),
            };
            if news.send(one).await.is_err() {
                return Ok(());
            }
            let mut changes = metric.clone();
            changes.mark_unchanged();
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = changes.changed() => {}
                () = news.closed() => return Ok(()),
            }
        }
    }

    /// Everything that is new.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn look(
        &mut self,
        client: &Client,
        id: &str,
        wanted: Option<String>,
    ) -> Result<Look, CliError> {
        let job: Job = view::read(&client.get(&["jobs", id], &[]).await?)?;
        let series = self.series(client, id, job.progress.as_ref(), wanted).await?;
        let ago = i64::try_from(READINGS.as_millis()).unwrap_or(i64::MAX);
        let since = Timestamp::now().as_millisecond().saturating_sub(ago).max(0);
        let query = [("since", since.to_string())];
        let metrics: JobMetrics =
            view::read_series(&client.get(&["jobs", id, "metrics"], &query).await?)?;
        let log = self.log(client, id, job.attempts.unwrap_or(0)).await?;
        Ok(Look { job, series, metrics: Some(metrics), log })
    }

    /// The steps with one metric, when there is a new step or another metric is wanted.
    async fn series(
        &mut self,
        client: &Client,
        id: &str,
        progress: Option<&Progress>,
        wanted: Option<String>,
    ) -> Result<Option<JobSeries>, CliError> {
        let Some(step) = progress.map(|progress| progress.step) else { return Ok(None) };
        if self.seen.as_ref().is_some_and(|(seen, metric)| *seen == step && *metric == wanted) {
            return Ok(None);
        }
        let ask = async |name: &str| {
            let query = [("names", name.to_owned())];
            view::read_series::<JobSeries>(&client.get(&["jobs", id, "series"], &query).await?)
        };
        let mut series = ask(wanted.as_deref().unwrap_or_default()).await?;
        if wanted.is_none()
            && let Some(name) = first(&series.names)
        {
            series = ask(&name).await?;
        }
        self.seen = Some((step, wanted));
        Ok(Some(series))
    }

    /// Whole lines that have come; the last ones of a log that is long already.
    async fn log(
        &mut self,
        client: &Client,
        id: &str,
        attempt: u64,
    ) -> Result<Vec<String>, CliError> {
        if attempt == 0 {
            return Ok(Vec::new());
        }
        let path = ["jobs", id, "logs"];
        let query = |offset: u64, limit: u64| {
            [("attempt", attempt), ("offset", offset), ("limit", limit)]
                .map(|(name, number)| (name, number.to_string()))
        };
        let known = self.log.filter(|(of, _)| *of == attempt).map(|(_, offset)| offset);
        let offset = match known {
            Some(offset) => offset,
            None => {
                self.rest.clear();
                let total = client.log_page(&path, &query(0, 1)).await?.total_bytes;
                total.saturating_sub(LOG_BYTES)
            }
        };
        let page = client.log_page(&path, &query(offset, LOG_BYTES)).await?;
        self.log = Some((attempt, page.next_offset));
        self.rest.push_str(&String::from_utf8_lossy(&page.bytes));
        let mut lines: Vec<String> = Vec::new();
        while let Some((line, rest)) = self.rest.split_once('\n') {
            // Of a progress bar its last state.
            let shown = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
            lines.push(clean(shown));
            self.rest = rest.to_owned();
        }
        if self.rest.len() > usize::try_from(LOG_BYTES).unwrap_or(usize::MAX) {
            self.rest.clear();
        }
        // It began somewhere in a line.
        if known.is_none() && offset > 0 && !lines.is_empty() {
            lines.remove(0);
        }
        Ok(lines)
    }
}
