//! `simulate --from-history`: the coordinator's own jobs, as they were and on another fleet.

use gangline_simulate::history::{PastJob, workload};
use gangline_simulate::report::Spread;
use gangline_simulate::{Fleet, Group, NodeSpec, ProjectQuota, Workload};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::show::{self, time};
use super::{Case, bad_fleet, policies, replay_all, scale, wished};
use crate::args::Simulate;
use crate::client::Client;
use crate::commands::items;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::view::{self, JobPage, Node, NodeList};

/// Jobs of one page.
const PAGE_SIZE: usize = 1_000;
/// Pages at most: a coordinator that hands out the same token for ever is left.
const MAX_PAGES: usize = 1_000;
/// The model of nodes whose GPUs the coordinator does not name.
const UNKNOWN_MODEL: &str = "GPU";

/// What a replay needs of a job that the coordinator remembers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Remembered {
    id: String,
    name: String,
    user: String,
    project: String,
    cluster: Option<String>,
    nnodes: u32,
    gpus_per_node: u32,
    pools: Vec<String>,
    priority: Option<u8>,
    submitted: Option<String>,
    started: Option<String>,
    ended: Option<String>,
}

/// The jobs of the past.
#[derive(Default)]
struct Past {
    jobs: Vec<PastJob>,
    /// Time until the last start and until the end, in milliseconds.
    waits: Vec<u64>,
    completions: Vec<u64>,
    /// Jobs that have not run, or not to an end.
    not_run: usize,
}

pub(super) async fn run(args: &Simulate, client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let past = fetch(args, client).await?;
    let nodes = nodes(client).await?;
    let quotas = quotas(client).await?;
    let fleet = |nodes: Vec<NodeSpec>| {
        // A quota in a pool that has no nodes any more binds nobody.
        let there = |quota: &&ProjectQuota| nodes.iter().any(|node| node.pool == quota.pool);
        let quotas = quotas.iter().filter(there).cloned().collect();
        Fleet::new(nodes).and_then(|fleet| fleet.with_quotas(quotas))
    };
    let now = fleet(nodes.clone()).map_err(|error| bad_fleet(&error))?;
    let changed = changed(args, nodes)
        .map(|nodes| fleet(nodes).and_then(|fleet| wished(fleet, &args.quota)))
        .transpose()
        .map_err(|error| bad_fleet(&error))?;
    let recorded = recorded(&past);
    let mut workload = workload(past.jobs);
    if workload.jobs.is_empty() {
        let what = "the coordinator remembers no job with GPUs that ran to its end";
        return Err(CliError::new(exit::INVALID, code::TRACE, what)
            .hint("give a longer --since, or use --trace or --generate"));
    }
    scale(&mut workload, &now, args)?;
    let cases = cases(args, &workload, &now, changed.as_ref());
    let replays = replay_all(&cases, args, screen)?;
    if past.not_run > 0 {
        screen.hint(&format!("{} jobs that have not run to an end are left out", past.not_run));
    }
    if screen.is_json() {
        let mut objects = vec![recorded.object()];
        for (case, replay) in cases.iter().zip(&replays) {
            let mut object = show::object(&replay.report)?;
            object["replay"] = case.title.clone().into();
            objects.push(object);
        }
        show::json(objects, screen)?;
    } else if screen.format() == Format::Name {
        cases.iter().try_for_each(|case| screen.line(&case.title))?;
    } else {
        let mut table = show::table(screen);
        table.row(recorded.row());
        for (case, replay) in cases.iter().zip(&replays) {
            table.row(show::row(case.title.clone(), &replay.report, screen));
        }
        screen.print(&table.take())?;
    }
    for (case, replay) in cases.iter().zip(&replays) {
        screen.hint(&format!("{}: {}", case.title, show::summary(&replay.report)));
        show::unfinished(&case.title, &replay.report, screen);
    }
    Ok(exit::OK)
}

/// The fleet of today first, as a measure of how true the model is; then the change.
fn cases<'a>(
    args: &Simulate,
    workload: &'a Workload,
    now: &'a Fleet,
    changed: Option<&'a Fleet>,
) -> Vec<Case<'a>> {
    let policies = policies(args);
    let several = policies.len() > 1;
    let mut cases = Vec::new();
    for (fleet, words) in [(Some(now), "same fleet"), (changed, "with the change")] {
        for policy in &policies {
            cases.extend(fleet.map(|fleet| {
                let mut case = Case::new(workload, fleet, *policy);
                case.title =
                    if several { format!("{words}, {}", policy.word()) } else { words.to_owned() };
                case
            }));
        }
    }
    cases
}

async fn fetch(args: &Simulate, client: &Client) -> Result<Past, CliError> {
    let now = Timestamp::now();
    let oldest = args.since.map(|since| now.as_millisecond() - since.as_millis() as i64);
    let mut past = Past::default();
    let mut token = None;
    for _ in 0..MAX_PAGES {
        let mut query = vec![("page_size", PAGE_SIZE.to_string())];
        query.extend(token.take().map(|token| ("page_token", token)));
        let answer = client.get(&["jobs"], &query).await?;
        let page: JobPage = view::read(&answer)?;
        for job in &page.jobs {
            let job: Remembered = view::read(job)?;
            let Some(submitted) = milliseconds(job.submitted.as_deref()) else { continue };
            // Newest first: what follows is older.
            if oldest.is_some_and(|oldest| submitted < oldest) {
                return Ok(past);
            }
            past.take(job, submitted);
        }
        token = page.next_page_token.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(past);
        }
    }
    Ok(past)
}

impl Past {
    fn take(&mut self, job: Remembered, submitted: i64) {
        // A job on a standing cluster uses its cluster's GPUs, and the cluster is a job itself.
        if job.cluster.is_some() {
            return;
        }
        let started = milliseconds(job.started.as_deref());
        let ended = milliseconds(job.ended.as_deref());
        let times = (u64::try_from(submitted), started, ended);
        let (Ok(submit_ms), Some(started), Some(ended)) = times else {
            self.not_run += 1;
            return;
        };
        let between = |from: i64, to: i64| u64::try_from(to - from).unwrap_or(0);
        if job.gpus_per_node > 0 {
            self.waits.push(between(submitted, started));
            self.completions.push(between(submitted, ended));
        }
        self.jobs.push(PastJob {
            id: job.id,
            submit_ms,
            duration_ms: between(started, ended),
            nnodes: job.nnodes.max(1),
            gpus_per_node: job.gpus_per_node,
            group: Group {
                project: job.project,
                user: job.user,
                name: job.name,
                priority: job.priority.unwrap_or(50),
                pools: job.pools,
                ..Group::default()
            },
        });
    }
}

fn milliseconds(time: Option<&str>) -> Option<i64> {
    time?.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

/// The nodes that the coordinator has, apart from those that will not come back.
async fn nodes(client: &Client) -> Result<Vec<NodeSpec>, CliError> {
    let answer = client.get(&["nodes"], &[]).await?;
    let list: NodeList = view::read(&answer)?;
    let mut specs = Vec::new();
    for node in &list.nodes {
        let node: Node = view::read(node)?;
        let gpus = node.gpus_total.unwrap_or(0);
        if node.state == "revoked" || gpus == 0 {
            continue;
        }
        specs.push(NodeSpec {
            name: node.name,
            pool: node.pool.unwrap_or_default(),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            gpu_model: node
                .gpus
                .first()
                .map_or_else(|| UNKNOWN_MODEL.to_owned(), |gpu| gpu.name.clone()),
        });
    }
    Ok(specs)
}

/// The quotas of all projects that the caller may see.
async fn quotas(client: &Client) -> Result<Vec<ProjectQuota>, CliError> {
    let answer = client.get(&["projects"], &[]).await?;
    let number = |quota: &Value, key: &str| {
        quota.get(key).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok())
    };
    let mut quotas = Vec::new();
    for project in items(&answer, "projects") {
        let name = project.get("name").and_then(Value::as_str).unwrap_or_default();
        for (pool, quota) in project.get("quotas").and_then(Value::as_object).into_iter().flatten()
        {
            quotas.push(ProjectQuota {
                project: name.to_owned(),
                pool: pool.clone(),
                guaranteed: number(quota, "guaranteed").unwrap_or(0),
                maximum: number(quota, "maximum"),
            });
        }
    }
    Ok(quotas)
}

/// The nodes that are asked for; `None` when nothing is to change.
fn changed(args: &Simulate, nodes: Vec<NodeSpec>) -> Option<Vec<NodeSpec>> {
    let same_nodes = args.nodes.is_none() && args.add_nodes.is_none();
    if same_nodes && args.gpus_per_node.is_none() && args.quota.is_empty() {
        return None;
    }
    let first = nodes.first().cloned()?;
    let gpus = args.gpus_per_node.unwrap_or(first.gpus);
    let like_first = |number: u32| NodeSpec {
        name: format!("{}-new-{number}", first.name),
        gpus,
        ..first.clone()
    };
    Some(match (args.nodes, args.add_nodes, args.gpus_per_node) {
        (Some(count), _, _) => (1..=count).map(like_first).collect(),
        (None, Some(more), _) => nodes.into_iter().chain((1..=more).map(like_first)).collect(),
        (None, None, Some(gpus)) => {
            nodes.into_iter().map(|node| NodeSpec { gpus, ..node }).collect()
        }
        (None, None, None) => nodes,
    })
}

/// What really happened.
struct Recorded {
    jobs: usize,
    wait: Spread,
    jct: Spread,
    makespan_s: f64,
    gpu_hours: f64,
}

fn recorded(past: &Past) -> Recorded {
    let jobs = || past.jobs.iter().filter(|job| job.gpus_per_node > 0);
    let first = jobs().map(|job| job.submit_ms).min().unwrap_or(0);
    let ends = jobs().map(|job| job.submit_ms).zip(&past.completions);
    let last = ends.map(|(submitted, took)| submitted + took).max().unwrap_or(first);
    let gpu_ms: f64 = jobs()
        .map(|job| f64::from(job.nnodes) * f64::from(job.gpus_per_node) * job.duration_ms as f64)
        .sum();
    Recorded {
        jobs: past.completions.len(),
        wait: Spread::of(past.waits.iter().copied()),
        jct: Spread::of(past.completions.iter().copied()),
        makespan_s: (last - first) as f64 / 1000.0,
        gpu_hours: gpu_ms / 3_600_000.0,
    }
}

impl Recorded {
    const TITLE: &str = "as it was";

    /// With the keys of a report; null where the coordinator does not remember it.
    fn object(&self) -> Value {
        json!({
            "replay": Self::TITLE, "policy": null, "jobs": self.jobs, "finished": self.jobs,
            "makespan_s": self.makespan_s, "gpu_hours": self.gpu_hours,
            "gpu_utilisation": null, "fragmentation": null,
            "wait_mean_s": self.wait.mean, "wait_p50_s": self.wait.p50,
            "wait_p90_s": self.wait.p90, "wait_p99_s": self.wait.p99, "wait_max_s": self.wait.max,
            "jct_mean_s": self.jct.mean, "jct_p50_s": self.jct.p50, "jct_p90_s": self.jct.p90,
            "jct_p99_s": self.jct.p99, "jct_max_s": self.jct.max,
            "preemptions": null, "gpu_hours_lost": null, "unfinished": 0,
        })
    }

    fn row(&self) -> Vec<String> {
        let Recorded { wait, jct, .. } = self;
        let mut cells = vec![
            Self::TITLE.to_owned(),
            self.jobs.to_string(),
            "0".to_owned(),
            time(self.makespan_s),
            "-".to_owned(),
        ];
        let times = [wait.mean, wait.p50, wait.p90, wait.p99, wait.max];
        cells.extend(times.map(time));
        cells.extend([jct.mean, jct.p50, jct.p90, jct.p99].map(time));
        cells.extend(["-".to_owned(), "-".to_owned()]);
        cells
    }
}
