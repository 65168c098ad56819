//! Memory and descriptors of coordinator and agents under a constant load of short jobs: they must
//! not grow.
//!
//! What grows by design is kept out: nothing but its user forgets an ended job, so each client
//! deletes its jobs, and at most [`CLIENTS`] are known at a time. Submits carry no idempotency key:
//! those are remembered for a day. An agent remembers the highest epoch of the last
//! [`MAX_SEEN`] gangs; every job runs on every node, and nothing is judged until that many have
//! ended. What stays is the audit log, which is on disk: the coordinator's pages of it are allowed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gangline_agent::core::MAX_SEEN;
use reqwest::Method;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::Api;
use crate::fleet::Fleet;

/// Clients at the same time, each with one job.
const CLIENTS: u64 = 6;
/// Pause of a client between two jobs.
const PAUSE: Duration = Duration::from_millis(200);
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Rows of the table of a whole run.
const ROWS: u32 = 12;
/// Gangs after which agents, pools and arenas are full: a tenth more than agents remember.
const WARM_UP: u64 = MAX_SEEN as u64 * 11 / 10;
/// Nodes of the fleet, and of every job.
pub const NODES: usize = 2;
/// The mean of the last third may be above that of the first by so much: a share in percent, and a
/// constant for what an allocator keeps by chance (two arenas' smallest heaps of 1 MiB).
const SHARE_PERCENT: u64 = 5;
const SLACK_KIB: u64 = 2048;
/// The coordinator may have this much more for every job in between: its store's cache, which has a
/// bound of its own, holds pages of the audit log, and a job leaves two entries there.
const AUDIT_BYTES: u64 = 400;
/// The same for descriptors: a connection or two of clients, and what is open for a moment.
const SLACK_FILES: u64 = 8;
/// Longest wait for one short job.
const PATIENCE: Duration = Duration::from_secs(120);

/// What one process had at one time.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    kib: u64,
    files: u64,
    /// Jobs that had ended.
    jobs: u64,
}

/// A process and all its samples.
struct Watched {
    name: String,
    samples: Vec<Sample>,
}

/// Keeps a fleet busy for `duration` and watches it; `say` is told the table, row by row.
///
/// # Errors
/// A process grew by more than is allowed, a job did not succeed, a node was taken for silent, or something
/// was left behind.
pub async fn run(
    fleet: &mut Fleet,
    duration: Duration,
    say: &mut dyn FnMut(String),
) -> anyhow::Result<()> {
    let processes = fleet.processes()?;
    let mut watched: Vec<Watched> = processes
        .iter()
        .map(|(name, _)| Watched { name: name.clone(), samples: Vec::new() })
        .collect();
    let (ended, counter) = watch::channel(0_u64);
    let (over, is_over) = watch::channel(false);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (api, root) = (fleet.api()?, fleet.shared_root());
        clients.spawn(client(api, root, ended.clone(), is_over.clone()));
    }
    let header: Vec<String> = watched.iter().map(|one| format!("{:>18}", one.name)).collect();
    say(format!("{:>7} {:>8} {}", "minutes", "jobs", header.join(" ")));
    let started = Instant::now();
    let mut row = 1;
    let mut since_row = 0;
    // Samples of the warm-up.
    let mut cold = 0;
    while started.elapsed() < duration {
        tokio::time::sleep(SAMPLE_EVERY).await;
        if let Some(ended) = clients.try_join_next() {
            ended??;
            bail!("a client has ended");
        }
        for (one, (_, pid)) in watched.iter_mut().zip(&processes) {
            let jobs = *counter.borrow();
            one.samples.push(Sample { jobs, ..sample(*pid)? });
        }
        if *counter.borrow() < WARM_UP {
            cold += 1;
        }
        since_row += 1;
        if started.elapsed() >= duration * row / ROWS {
            let minutes = started.elapsed().as_secs_f64() / 60.0;
            let cell = |one: &Watched| {
                let mean = mean(one.samples.rchunks(since_row).next().unwrap_or_default());
                format!("{:>9.1} MiB {:>4}", mean.kib as f64 / 1024.0, mean.files)
            };
            let cells: Vec<String> = watched.iter().map(cell).collect();
            say(format!("{minutes:>7.1} {:>8} {}", *counter.borrow(), cells.join(" ")));
            (row, since_row) = (row + 1, 0);
        }
    }
    over.send_replace(true);
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let left = fleet.api()?.get("/api/v1/jobs").await?;
    ensure!(left["jobs"].as_array().is_some_and(Vec::is_empty), "jobs are left: {left}");
    fleet.assert_clean().await?;
    no_false_alarm(&fleet.api()?).await?;
    let mut grown = Vec::new();
    for (index, one) in watched.iter().enumerate() {
        let (first, last) = thirds(one.samples.get(cold..).unwrap_or_default())?;
        // The coordinator is the first.
        let audit_kib = if index == 0 { (last.jobs - first.jobs) * AUDIT_BYTES / 1024 } else { 0 };
        let bound = first.kib + first.kib * SHARE_PERCENT / 100 + SLACK_KIB + audit_kib;
        let files = first.files + first.files * SHARE_PERCENT / 100 + SLACK_FILES;
        say(format!(
            "{}: {} KiB in the first third, {} KiB in the last, at most {bound}; {} descriptors, \
             {}, at most {files}",
            one.name, first.kib, last.kib, first.files, last.files
        ));
        if last.kib > bound || last.files > files {
            grown.push(one.name.as_str());
        }
    }
    ensure!(grown.is_empty(), "grown by more than is allowed: {}", grown.join(", "));
    Ok(())
}

/// No agent fell silent, so no node may ever have been suspect or lost.
async fn no_false_alarm(api: &Api) -> anyhow::Result<()> {
    let nodes = api.get("/api/v1/nodes").await?;
    let names = nodes["nodes"].as_array().context("nodes")?.iter();
    for name in names.filter_map(|node| node["name"].as_str()) {
        let node = api.get(&format!("/api/v1/nodes/{name}")).await?;
        let history = node["history"].as_array().context("history")?;
        ensure!(!history.is_empty(), "{name} has no history");
        let alarm = history.iter().find(|one| one["state"] == "suspect" || one["state"] == "lost");
        ensure!(alarm.is_none(), "a false alarm about {name}: {alarm:?}");
    }
    Ok(())
}

/// Submits a short job, waits for its end, and deletes it with what it wrote; again and again.
async fn client(
    api: Api,
    root: PathBuf,
    ended: watch::Sender<u64>,
    mut over: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let spec = format!(
        "name: short\nresources: {{nnodes: {NODES}}}\nlauncher: {{type: command}}\nrun: sleep 0.1\n"
    );
    while !*over.borrow_and_update() {
        let job = api.submit(&spec).await?;
        api.wait_job(&job, &["SUCCEEDED"], PATIENCE).await?;
        // The agents' last word about it may still be under way.
        let until = Instant::now() + PATIENCE;
        loop {
            let deleted = api.send(Method::DELETE, &format!("/api/jobs/{job}"), &[], None).await?;
            if deleted.status().is_success() {
                break;
            }
            let status = deleted.status();
            ensure!(Instant::now() < until, "{job}: {status}: {}", deleted.text().await?);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        remove(&root.join("jobs").join(&job), until).await.with_context(|| job.clone())?;
        ended.send_modify(|count| *count += 1);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Removes a job's directory, into which an agent may still copy the job's logs.
async fn remove(directory: &Path, until: Instant) -> anyhow::Result<()> {
    loop {
        match std::fs::remove_dir_all(directory) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// The first and the last third of what is judged.
fn thirds(judged: &[Sample]) -> anyhow::Result<(Sample, Sample)> {
    let third = judged.len() / 3;
    ensure!(third > 0, "it took too short: {WARM_UP} jobs are the warm-up");
    let first = judged.get(..third).unwrap_or_default();
    let last = judged.get(judged.len() - third..).unwrap_or_default();
    Ok((mean(first), mean(last)))
}

fn mean(samples: &[Sample]) -> Sample {
    let count = samples.len().max(1) as u64;
    Sample {
        kib: samples.iter().map(|sample| sample.kib).sum::<u64>() / count,
        files: samples.iter().map(|sample| sample.files).sum::<u64>() / count,
        jobs: samples.iter().map(|sample| sample.jobs).sum::<u64>() / count,
    }
}

/// A process and its children, but not theirs: with an agent its nursery, without the members.
fn sample(pid: u32) -> anyhow::Result<Sample> {
    let mut sample = sample_one(pid)?;
    // Each thread has its own.
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            // It may have ended meanwhile.
            if let Some(one) = child.parse().ok().and_then(|child| sample_one(child).ok()) {
                sample.kib += one.kib;
                sample.files += one.files;
            }
        }
    }
    Ok(sample)
}

fn sample_one(pid: u32) -> anyhow::Result<Sample> {
    let process = Path::new("/proc").join(pid.to_string());
    let status = std::fs::read_to_string(process.join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?.parse()?;
    let files = std::fs::read_dir(process.join("fd"))?.count() as u64;
    Ok(Sample { kib, files, jobs: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_third_are_compared() {
        let samples: Vec<Sample> =
            (0..90).map(|kib| Sample { kib, files: 1, jobs: 2 * kib }).collect();
        let (first, last) = thirds(&samples).unwrap();
        // 0 to 29, and 60 to 89.
        assert_eq!((first.kib, last.kib, last.files, last.jobs), (14, 74, 1, 149));
        assert!(thirds(&samples[..2]).is_err());
    }

    #[test]
    fn a_process_is_measured() {
        let own = sample(std::process::id()).unwrap();
        assert!(own.kib > 100 && own.files > 2, "{own:?}");
    }
}
