//! A job that is looked at: what becomes of an attempt, and when.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
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
    /// From there until everything was gone and the cause known: the next attempt is assigned.
    pub stop: Duration,
    /// From there until the job ran again: for a Ray gang mostly Ray's own start.
    pub start: Option<Duration>,
    /// From there until its next training step.
    pub resume: Option<Duration>,
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
        let next = self.until(again).await?;
        let stop = injected.elapsed() - detect;
        // Nothing of that attempt runs any more: what comes now is of the next.
        let of_it = self.steps();
        let (mut start, mut resume) = (None, None);
        if !is_over(&next) {
            let at = injected.elapsed();
            self.until(|page| page["state"] == "RUNNING" || is_over(page)).await?;
            start = Some(injected.elapsed() - at);
            let at = injected.elapsed();
            self.step_after(of_it).await?;
            resume = Some(injected.elapsed() - at);
        }
        let found = self.found(number, attempt(&ended, number)).await?;
        Ok((Times { detect, stop, start, resume }, found))
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
