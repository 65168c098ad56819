//! `cluster`: standing Ray clusters. A cluster is a job of its own kind; what is the same for every
//! job is left to the commands of jobs.

use jiff::Timestamp;
use serde_json::Value;

use super::{confirm, control, count, find_job, or_dash, ps};
use crate::args::Stop;
use crate::client::Client;
use crate::durations::age;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;
use crate::view::{self, Job};

const COLUMNS: &[&str] =
    &["ID", "NAME", "USER", "STATE", "NODES", "GPUS", "FREE", "JOBS", "WAITING", "AGE", "REASON"];

/// List clusters.
pub(super) async fn list(client: &Client, all: bool, screen: &Screen) -> Result<u8, CliError> {
    let clusters = ps::first_clusters(client, all).await?;
    match screen.format() {
        Format::Json => screen.json(&serde_json::json!({ "clusters": clusters }))?,
        Format::Jsonl => clusters.iter().try_for_each(|cluster| screen.json(cluster))?,
        Format::Name => {
            for cluster in &clusters {
                screen.line(&clean(&view::read::<Job>(cluster)?.id))?;
            }
        }
        Format::Table | Format::Wide => {
            let mut table = Table::new(COLUMNS, screen.width()).cut_last();
            let now = Timestamp::now();
            for cluster in &clusters {
                table.row(row(view::read(cluster)?, now));
            }
            screen.print(&table.take())?;
            screen.hint("start one with `gangline submit`; run a job on it with --on NAME");
        }
    }
    Ok(exit::OK)
}

fn row(cluster: Job, now: Timestamp) -> Vec<String> {
    let (nodes, gpus) = (cluster.nodes_text(), count(cluster.gpus()));
    let usage = cluster.usage.as_ref();
    let [free, jobs, waiting] = [
        count(usage.map(|usage| usage.gpus_free)),
        count(usage.map(|usage| usage.jobs.len() as u64)),
        count(usage.map(|usage| usage.waiting)),
    ];
    vec![
        cluster.id,
        cluster.name,
        cluster.user,
        cluster.state,
        nodes,
        gpus,
        free,
        jobs,
        waiting,
        or_dash(cluster.submitted.and_then(|time| age(&time, now))),
        cluster.reason,
    ]
}

/// Stop a cluster; jobs that run on it are named before.
pub(super) async fn stop(
    client: &Client,
    selector: String,
    yes: bool,
    screen: &Screen,
) -> Result<u8, CliError> {
    let cluster = find(client, &selector).await?;
    let jobs = cluster.usage.map(|usage| usage.jobs).unwrap_or_default();
    if !jobs.is_empty() {
        let question =
            format!("{} of {} will end with it. Stop it?", jobs.join(", "), cluster.name);
        confirm(&question, yes)?;
    }
    let args = Stop { jobs: vec![cluster.id], reason: None, yes };
    control::stop(client, &args, screen).await
}

/// Print the address by which a stock Ray client submits to a cluster.
pub(super) async fn address(
    client: &Client,
    selector: &str,
    screen: &Screen,
) -> Result<u8, CliError> {
    let cluster = find(client, selector).await?;
    let address = format!("{}/on/{}", client.address(), cluster.name);
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&Value::from(address))?,
        Format::Name | Format::Table | Format::Wide => screen.line(&clean(&address))?,
    }
    screen.hint("ray job submit --address ADDRESS -- python train.py");
    Ok(exit::OK)
}

/// The cluster that is meant; a job that is none is an error.
async fn find(client: &Client, selector: &str) -> Result<Job, CliError> {
    let (_, job) = find_job(client, selector).await?;
    if job.kind == "cluster" {
        return Ok(job);
    }
    let what = format!("{} {} is a job, not a cluster", job.id, job.name);
    Err(CliError::new(exit::USAGE, code::USAGE, what).hint("`gangline cluster ls` lists clusters"))
}
