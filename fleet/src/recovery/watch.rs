//! A job that is looked at: what becomes of an attempt, and when.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gangline_common::time::Timestamp;
use serde_json::Value;

use crate::api::Api;
use crate::training::steps_below;

/// How often a job is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What was found out about an attempt that has ended.
#[derive(Debug, Clone)]
pub struct Found {
    /// `category (sub_code)`, as `why` says it; without one, why the attempt ended.
    pub verdict: String,
    pub action: String,
    /// What was done about it, in the coordinator's words.
    pub done: String,
}

/// Where the time went between a fault and the next training step.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// From the fault until the attempt was over for the coordinator.
    pub detect: Duration,
    /// From there until everything was gone that a node in contact had of it.
    pub stop: Duration,
    /// From there until nothing of it can run anywhere and its cause is known: the next attempt is
    /// assigned, or the job is over.
    pub fence: Duration,
    /// The last part of that and a little more: from the last thing that was waited for until every node
    /// of the next attempt had heard of it.
    pub deliver: Option<Duration>,
    /// From the assignment until the job ran again: for a Ray gang mostly Ray's own start.
    pub start: Option<Duration>,
    /// From there until its next training step.
    pub resume: Option<Duration>,
}

impl Times {
    /// From the fault until the next attempt was assigned.
    pub fn replaced(&self) -> Duration {
        self.detect + self.stop + self.fence
    }

    /// From the fault until the training made a step again; `None` where it never did.
    pub fn all(&self) -> Option<Duration> {
        Some(self.replaced() + self.start? + self.resume?)
    }
}

/// A job that is looked at.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    pub api: &'a Api,
    /// Where the nodes keep what jobs write.
    pub root: &'a Path,
    pub job: &'a str,
    /// Longest wait for anything.
    pub patience: Duration,
}

impl Watch<'_> {
    /// Follows a job from a fault that ends its attempt `number` to its next training step, or to its
    /// own end.
    pub async fn follow(&self, number: usize, injected: Instant) -> anyhow::Result<(Times, Found)> {
        let ended = self.ended(number).await?;
        let detect = injected.elapsed();
        let again = |page: &Value| page["attempts"].as_u64() > Some(number as u64) || is_over(page);
        self.gone(again).await?;
        let stop = injected.elapsed() - detect;
        let next = self.until(again).await?;
        let fence = injected.elapsed() - detect - stop;
        // Nothing of that attempt runs any more: what comes now is of the next.
        let of_it = self.steps();
        let (mut deliver, mut start, mut resume) = (None, None, None);
        if !is_over(&next) {
            let at = injected.elapsed();
            let heard = |page: &Value| {
                let mut members = page["members"].as_array().into_iter().flatten();
                members.all(|member| member["phase"] != "assigned")
            };
            let page = self.until(|page| is_over(page) || heard(page)).await?;
            deliver = Some(since_it_waited(&page)?);
            self.until(|page| page["state"] == "RUNNING" || is_over(page)).await?;
            start = Some(injected.elapsed() - at);
            let at = injected.elapsed();
            self.step_after(of_it).await?;
            resume = Some(injected.elapsed() - at);
        }
        let found = self.found(number, attempt(&ended, number)).await?;
        Ok((Times { detect, stop, fence, deliver, start, resume }, found))
    }

    /// Waits until no node in contact has anything of the attempt, or another one has begun.
    async fn gone(&self, again: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let page = self.page().await?;
            let members = page["members"].as_array().into_iter().flatten();
            let mut left = 0;
            for member in members.filter(|member| member["phase"] != "ended") {
                let node = member["node"].as_str().context("node")?;
                let node = self.answer(&format!("/api/v1/nodes/{node}")).await?;
                left += usize::from(!matches!(node["state"].as_str(), Some("suspect" | "lost")));
            }
            if left == 0 || again(&page) {
                return Ok(());
            }
            ensure!(began.elapsed() < self.patience, "{page}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until an attempt is over for the coordinator.
    pub async fn ended(&self, number: usize) -> anyhow::Result<Value> {
        self.until(|page| attempt(page, number)["outcome"].is_string()).await
    }

    async fn found(&self, number: usize, ended: &Value) -> anyhow::Result<Found> {
        let path = format!("/api/v1/jobs/{}/why?attempt={number}", self.job);
        let why = self.answer(&path).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let diagnosis = &why["diagnosis"];
        let verdict = match diagnosis["category"].as_str() {
            Some(category) => format!("{category} ({})", text(&diagnosis["sub_code"])),
            None => text(&ended["cause"]),
        };
        Ok(Found { verdict, action: text(&diagnosis["action"]), done: text(&why["done"]) })
    }

    /// Steps that were done so far, over all attempts.
    pub fn steps(&self) -> usize {
        steps_below(self.root, self.job).len()
    }

    /// Waits for one more step than `before`.
    async fn step_after(&self, before: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.steps() <= before {
            let page = self.page().await?;
            ensure!(!is_over(&page), "it has ended: {page:#}");
            ensure!(began.elapsed() < self.patience, "no step: {page:#}");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// What the coordinator says of the job.
    pub async fn page(&self) -> anyhow::Result<Value> {
        self.answer(&format!("/api/v1/jobs/{}", self.job)).await
    }

    /// The same, once something is so.
    pub async fn until(&self, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let began = Instant::now();
        loop {
            let page = self.page().await?;
            if is_so(&page) {
                return Ok(page);
            }
            ensure!(began.elapsed() < self.patience, "{page}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// An answer of the coordinator, which may be down for a while.
    async fn answer(&self, path: &str) -> anyhow::Result<Value> {
        let began = Instant::now();
        loop {
            match self.api.get(path).await {
                Ok(answer) => return Ok(answer),
                Err(error) if began.elapsed() > self.patience => bail!(error),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }
}

/// How long ago a job last went back to the queue.
fn since_it_waited(page: &Value) -> anyhow::Result<Duration> {
    let now_ms = Timestamp::now().wall_ms;
    let history = page["history"].as_array().context("history")?;
    let waited = history.iter().rev().find(|entry| entry["state"] == "PENDING");
    let time = waited.and_then(|entry| entry["time"].as_str()).context("it never waited")?;
    let time: jiff::Timestamp = time.parse().context("time")?;
    let waited_ms = u64::try_from(time.as_millisecond())?;
    Ok(Duration::from_millis(now_ms.saturating_sub(waited_ms)))
}

fn attempt(page: &Value, number: usize) -> &Value {
    &page["attempt_list"][number - 1]
}

/// Whether a job has ended.
pub fn is_over(page: &Value) -> bool {
    matches!(page["state"].as_str(), Some("SUCCEEDED" | "FAILED" | "CANCELLED" | "TIMEOUT"))
}

/// The node of a member of a job's newest attempt.
pub fn node_of(page: &Value, member: &str) -> anyhow::Result<String> {
    let members = page["members"].as_array().context("members")?;
    let found = members.iter().find(|known| known["member"] == member);
    let node = found.and_then(|found| found["node"].as_str());
    Ok(node.with_context(|| format!("no member {member}: {members:?}"))?.to_owned())
}
