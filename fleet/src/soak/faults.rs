//! Faults under trainings on real Ray, on nodes in namespaces of their own. Each meets a training that
//! has saved a training checkpoint since its last one. At the end every training has succeeded, from its
//! checkpoints, and nothing is left of it.

mod plan;
mod report;
mod story;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

pub use self::plan::Kind;
use self::plan::{Order, Plan};
pub use self::report::{Met, Report, Times};
use self::story::Story;
use crate::api::Api;
use crate::build::{Binaries, workspace};
use crate::recovery::{Found, Watch, cure, is_over, node_of};
use crate::training::{Hosted, logged_steps, saved_step, steps_below};

/// Longest wait for anything: many Ray clusters start at a time.
const PATIENCE: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(100);
/// Nodes of each training.
const RANKS: u8 = 2;
/// Steps between two training checkpoints.
const INTERVAL: u32 = 5;

/// How long a soak goes on, and on what.
#[derive(Debug, Clone)]
pub struct Options {
    /// The same seed makes the same faults; which training each of them meets is not repeatable.
    pub seed: u64,
    pub faults: u32,
    pub trainings: u8,
    /// How often each kind comes before all come again.
    pub deck: Vec<(Kind, usize)>,
}

/// What every training runs on.
struct Soak {
    ground: Mutex<Hosted>,
    api: Api,
    /// Where the nodes keep what jobs write.
    root: PathBuf,
    plan: std::sync::Mutex<Plan>,
    /// Held while a node is sick: there is one to spare.
    sick: Mutex<()>,
}

/// Two nodes for each training, and one that takes the place of a sick one. Needs what
/// [`crate::hosts::available`] asks for.
pub async fn ground(binaries: Binaries, trainings: u8) -> anyhow::Result<Hosted> {
    let workers = trainings.saturating_mul(RANKS).saturating_add(1);
    Hosted::ray_fleet(binaries, workers, 1).await
}

/// A training on two nodes that goes on until the file `enough` is there.
fn spec(number: u8, enough: &Path) -> String {
    let program = workspace().join("examples/ppo_cartpole.py");
    format!(
        "name: train-{number}\nresources: {{nnodes: {RANKS}, gpus_per_node: 1}}\nretry: {{max: \
         100}}\nrun: exec python {} --steps 1000000 --step-sleep 0.4 --save-every {INTERVAL} \
         --until-file {}\n",
        program.display(),
        enough.display()
    )
}

/// Lets the faults happen; `say` is told of each.
///
/// # Errors
/// What was wrong, and after which fault.
pub async fn run(ground: Hosted, options: Options, say: fn(String)) -> anyhow::Result<Report> {
    let (api, root) = (ground.fleet.api()?, ground.fleet.shared_root());
    let plan = Plan::new(options.seed, options.deck, options.faults, RANKS.into());
    let soak = Arc::new(Soak {
        ground: Mutex::new(ground),
        api,
        root,
        plan: std::sync::Mutex::new(plan),
        sick: Mutex::default(),
    });
    let began = Instant::now();
    let enough = soak.root.join("enough");
    let mut jobs = Vec::new();
    let mut lanes = JoinSet::new();
    for number in 0..options.trainings {
        let job = soak.api.submit(&spec(number, &enough)).await?;
        jobs.push(job.clone());
        let soak = Arc::clone(&soak);
        lanes.spawn(async move {
            let met = soak.lane(&job, say).await;
            met.with_context(|| format!("training {job}"))
        });
    }
    let mut report = Report { trainings: options.trainings, ..Report::default() };
    while let Some(lane) = lanes.join_next().await {
        report.met.extend(lane.context("a lane broke down")??);
    }
    std::fs::write(&enough, "")?;
    for job in &jobs {
        soak.watch(job).until(is_over).await?;
    }
    report.took = began.elapsed();
    for job in &jobs {
        soak.judge(job, &mut report).await.with_context(|| format!("training {job}"))?;
    }
    soak.nothing_is_left().await?;
    Ok(report)
}

impl Soak {
    fn watch<'a>(&'a self, job: &'a str) -> Watch<'a> {
        Watch { api: &self.api, root: &self.root, job, patience: PATIENCE }
    }

    /// One training: a fault after each new training checkpoint, while there are faults left.
    async fn lane(&self, job: &str, say: fn(String)) -> anyhow::Result<Vec<Met>> {
        let mut all = Vec::new();
        loop {
            self.new_checkpoint(job).await?;
            let order = self.plan.lock().unwrap_or_else(PoisonError::into_inner).draw();
            let Some(order) = order else { return Ok(all) };
            tokio::time::sleep(order.moment).await;
            let (number, what) = (order.number, order.kind.word());
            let met = self.meet(job, order).await;
            let met = met.with_context(|| format!("fault {number}, {what}, {order:?}"))?;
            let found = met.found.as_ref().map(|found| found.verdict.as_str());
            say(format!(
                "{number:>4} {what:<21} {job} rank {}, a step after {:>5.1} s: {}",
                order.rank,
                met.times.step.as_secs_f64(),
                found.unwrap_or("the attempt went on")
            ));
            all.push(met);
        }
    }

    async fn new_checkpoint(&self, job: &str) -> anyhow::Result<()> {
        let known = saved_step(&self.root, job);
        let began = Instant::now();
        while saved_step(&self.root, job) <= known {
            let page = self.watch(job).page().await?;
            ensure!(!is_over(&page), "it has ended: {page:#}");
            ensure!(began.elapsed() < PATIENCE, "no training checkpoint: {page:#}");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn meet(&self, job: &str, order: Order) -> anyhow::Result<Met> {
        let kind = order.kind;
        let only = match kind {
            Kind::Xid => Some(self.sick.lock().await),
            _ => None,
        };
        let page = self.watch(job).until(|page| page["state"] == "RUNNING").await?;
        let attempt = page["attempts"].as_u64().context("attempts")?;
        let node = node_of(&page, &order.rank.to_string())?;
        let (times, found) = match kind.fatal() {
            None => self.take_away(job, attempt, &node, order).await?,
            Some(fault) => {
                fault.inject(&self.ground.lock().await.fleet, &page, order.rank)?;
                let (times, found) = self.follow(job, attempt, Instant::now()).await?;
                (times, Some(found))
            }
        };
        if only.is_some() {
            self.cure(&node).await?;
        }
        Ok(Met { kind, job: job.to_owned(), attempt, times, found })
    }

    /// Follows an attempt that ends, to the next one's first step.
    async fn follow(
        &self,
        job: &str,
        attempt: u64,
        since: Instant,
    ) -> anyhow::Result<(Times, Found)> {
        let (times, found) = self.watch(job).follow(usize::try_from(attempt)?, since).await?;
        let Some(step) = times.all() else { bail!("it has ended: {found:?}") };
        let (detected, replaced) = (Some(times.detect), times.replaced());
        Ok((Times { detected, replaced, step }, found))
    }

    /// Takes something away for a while, which an attempt lives through. Only a cut may be too long for
    /// Ray.
    async fn take_away(
        &self,
        job: &str,
        attempt: u64,
        node: &str,
        order: Order,
    ) -> anyhow::Result<(Times, Option<Found>)> {
        let watch = self.watch(job);
        let before = watch.steps();
        let since = Instant::now();
        match order.kind {
            Kind::Coordinator => {
                let mut ground = self.ground.lock().await;
                ground.fleet.kill_coordinator()?;
                tokio::time::sleep(order.away).await;
                ground.fleet.start_coordinator().await?;
            }
            Kind::Cut => {
                let host = self.ground.lock().await.host(node)?;
                host.cut()?;
                tokio::time::sleep(order.away).await;
                host.heal()?;
            }
            _ => {
                self.ground.lock().await.fleet.kill_agent(node)?;
                tokio::time::sleep(order.away).await;
                self.ground.lock().await.fleet.start_agent(node)?;
                self.word_from(node).await?;
            }
        }
        let replaced = since.elapsed();
        let is_cut = order.kind == Kind::Cut;
        // The step that was under way may need nothing more of the node.
        let wanted = before + if is_cut { 2 } else { 1 };
        loop {
            let has_stepped = watch.steps() >= wanted;
            let step = since.elapsed();
            let page = watch.page().await?;
            let newest = &page["attempt_list"][usize::try_from(attempt.saturating_sub(1))?];
            if page["attempts"] != attempt || newest["outcome"].is_string() {
                ensure!(is_cut, "an attempt has ended: {page:#}");
                let (times, found) = self.follow(job, attempt, since).await?;
                return Ok((times, Some(found)));
            }
            if has_stepped {
                return Ok((Times { detected: None, replaced, step }, None));
            }
            ensure!(step < PATIENCE, "no further step: {page:#}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits for word of an agent that has just been started.
    async fn word_from(&self, node: &str) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            // The coordinator may be down.
            if let Ok(page) = self.api.get(&format!("/api/v1/nodes/{node}")).await {
                let ago = page["last_word_ms_ago"].as_u64().map(Duration::from_millis);
                if ago.is_some_and(|ago| ago < since.elapsed()) {
                    return Ok(());
                }
                ensure!(since.elapsed() < PATIENCE, "no word from {node}: {page:#}");
            }
            ensure!(since.elapsed() < PATIENCE, "nobody answers about {node}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Mends a sick node, as an operator does.
    async fn cure(&self, node: &str) -> anyhow::Result<()> {
        cure(&self.ground.lock().await.fleet, node)?;
        let since = Instant::now();
        loop {
            match self.api.post(&format!("/api/v1/nodes/{node}/resume"), &[], "{}").await {
                Ok((200, _)) => break,
                // The coordinator may be down.
                other if since.elapsed() > PATIENCE => bail!("{node} is not resumed: {other:?}"),
                _ => tokio::time::sleep(LOOK).await,
            }
        }
        self.api.wait_node(node, &["ready", "mixed", "busy"], PATIENCE).await?;
        Ok(())
    }

    /// A training that is over has succeeded, and its logs say how.
    async fn judge(&self, job: &str, report: &mut Report) -> anyhow::Result<()> {
        let page = self.watch(job).page().await?;
        ensure!(page["state"] == "SUCCEEDED", "it has not succeeded: {page:#}");
        let list = page["attempt_list"].as_array().context("attempts")?;
        ensure!(page["attempts"] == list.len(), "attempts are missing: {page:#}");
        let met = report.met.iter().filter(|met| met.job == job && met.found.is_some());
        let by_fault: BTreeSet<u64> = met.map(|met| met.attempt).collect();
        let mut story = Story { interval: INTERVAL, ..Story::default() };
        for attempt in list {
            let number = attempt["number"].as_u64().context("number")?;
            let log = self.api.logs(job, &format!("attempt={number}")).await?;
            story.attempts.push(logged_steps(&log));
            if attempt["outcome"] != "SUCCEEDED" && !by_fault.contains(&number) {
                report.others.push(format!("{job} attempt {number}: {}", attempt["cause"]));
            }
        }
        story.done = steps_below(&self.root, job);
        report.steps += story.done.len();
        report.attempts += list.len();
        report.repeated += story.judge().map_err(|wrong| anyhow::anyhow!("{wrong}; {story:?}"))?;
        Ok(())
    }

    async fn nothing_is_left(&self) -> anyhow::Result<()> {
        let ground = self.ground.lock().await;
        ground.fleet.assert_clean().await?;
        for name in ground.hosts.keys() {
            let node = self.api.wait_node(name, &["ready"], PATIENCE).await?;
            ensure!(node["gpus_in_use"] == 0, "GPUs are in use: {node:#}");
        }
        Ok(())
    }
}
