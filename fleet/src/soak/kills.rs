//! Kills of coordinator and agents under a running queue, and what must hold after each of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gangline_simulation::random::Random;
use serde_json::Value;

use super::check::Checker;
use super::clients::{Clients, Load};
use super::history::{Action, Answer, End, Id, Operation};
use super::runs::{self, Excuse};
use crate::build::Binaries;
use crate::fleet::{AgentOptions, Fleet, FleetOptions};

/// Longest time from a kill until everything that was queued before it has ended.
const PATIENCE: Duration = Duration::from_secs(180);
/// Longest moment before a kill, and longest time until the victim is started again.
const MOMENT_MS: u64 = 1000;
/// Jobs that wait or run while nobody is quiet, for each agent: more than agents can run at once.
const BACKLOG: usize = 6;
/// Submits at the moment at which a coordinator is killed, and within which time they are under way, in
/// microseconds: before, in and after the commit.
const RUSH: u64 = 3;
const RUSH_US: u64 = 8000;
/// Cycles between two looks at everything with the queue empty.
const CYCLES_PER_LOOK: u32 = 10;
/// What an agent says of a member that it was killed over.
const UNSTARTED: &str = "its shim never came up";

/// Whom a cycle kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    Coordinator,
    Agent,
    /// An agent while the coordinator is down; they come back in any order.
    Both,
}

impl Victim {
    pub fn word(self) -> &'static str {
        match self {
            Victim::Coordinator => "coordinator",
            Victim::Agent => "agent",
            Victim::Both => "both",
        }
    }
}

/// How long a soak goes on, and on what.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The same seed makes the same kills.
    pub seed: u64,
    /// Kills of the coordinator alone, and as many of an agent alone.
    pub cycles: u32,
    /// Kills of both.
    pub both: u32,
    pub agents: usize,
    pub clients: u64,
}

/// What cycles of one kind came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub kills: u32,
    /// From the kill until everything that was acknowledged before it had ended.
    pub slowest: Duration,
    pub total: Duration,
}

/// What a soak came to, when nothing was wrong.
#[derive(Debug, Default)]
pub struct Report {
    pub kills: BTreeMap<Victim, Tally>,
    /// Operations of clients, and rows of their lists.
    pub looked_at: u64,
    pub jobs: usize,
    pub cancelled: usize,
    /// Jobs of which a member was not started, for its agent was killed in that moment.
    pub unstarted: usize,
    /// Submits without an answer.
    pub unanswered: usize,
    /// Most jobs that waited or ran at a kill.
    pub queue: usize,
    /// How often the queue was emptied and everything looked at.
    pub looks: u32,
}

struct Soak<'a> {
    fleet: &'a mut Fleet,
    clients: Clients,
    checker: Checker,
    names: Vec<String>,
    random: Random,
    report: Report,
}

/// A fleet for a soak: agents without GPUs, and no limit on requests.
pub async fn fleet(binaries: Binaries, agents: usize) -> anyhow::Result<Fleet> {
    let coordinator_config = "request_rate = 0\nsubmit_rate = 0\n".to_owned();
    let options = FleetOptions { coordinator_config, ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries, options).await?;
    for name in names(agents) {
        fleet.add_agent(AgentOptions::worker(&name, 0)).await?;
    }
    Ok(fleet)
}

fn names(agents: usize) -> Vec<String> {
    (0..agents).map(|number| format!("w{number}")).collect()
}

/// Kills as asked; `say` is told after every look at everything.
///
/// # Errors
/// What was wrong, and after which cycle.
pub async fn run(
    fleet: &mut Fleet,
    options: Options,
    say: &mut dyn FnMut(String),
) -> anyhow::Result<Report> {
    let backlog = BACKLOG * options.agents;
    let load = Load { seed: options.seed, clients: options.clients, backlog };
    let mut soak = Soak {
        clients: Clients::start(fleet.api()?, load),
        fleet,
        checker: Checker::default(),
        names: names(options.agents),
        random: Random::new(options.seed),
        report: Report::default(),
    };
    let mut left = BTreeMap::from([
        (Victim::Coordinator, options.cycles),
        (Victim::Agent, options.cycles),
        (Victim::Both, options.both),
    ]);
    let cycles = 2 * options.cycles + options.both;
    for cycle in 1..=cycles {
        let victim = soak.choose(&mut left);
        let done = soak.cycle(victim).await;
        done.with_context(|| format!("cycle {cycle}: {}", victim.word()))?;
        if cycle % CYCLES_PER_LOOK == 0 || cycle == cycles {
            soak.look().await.with_context(|| format!("after cycle {cycle}"))?;
            let Report { jobs, looked_at, .. } = soak.report;
            say(format!("cycle {cycle}: {jobs} jobs, {looked_at} answers, nothing wrong"));
            soak.clients.busy();
        }
    }
    Ok(soak.report)
}

impl Soak<'_> {
    /// The next victim: at random, in proportion to what is left of each kind.
    fn choose(&mut self, left: &mut BTreeMap<Victim, u32>) -> Victim {
        let mut at = self.random.below(left.values().map(|count| u64::from(*count)).sum());
        for (victim, count) in left {
            match at.checked_sub(u64::from(*count)) {
                Some(rest) => at = rest,
                None => {
                    *count -= 1;
                    return *victim;
                }
            }
        }
        Victim::Both
    }

    /// A moment, a kill, a restart; then everything that was acknowledged before has to end.
    async fn cycle(&mut self, victim: Victim) -> anyhow::Result<()> {
        self.moment().await;
        let live = self.clients.live();
        self.report.queue = self.report.queue.max(live.len());
        let killed = Instant::now();
        self.kill(victim).await?;
        self.settle(live, killed).await?;
        let tally = self.report.kills.entry(victim).or_default();
        tally.kills += 1;
        tally.slowest = tally.slowest.max(killed.elapsed());
        tally.total += killed.elapsed();
        Ok(())
    }

    async fn moment(&mut self) {
        let wait = self.random.below(MOMENT_MS);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }

    async fn kill(&mut self, victim: Victim) -> anyhow::Result<()> {
        let agent = self.random.pick(&self.names).cloned().context("no agents")?;
        if victim != Victim::Agent {
            self.clients.rush(RUSH);
            let within = self.random.below(RUSH_US);
            tokio::time::sleep(Duration::from_micros(within)).await;
            self.fleet.kill_coordinator()?;
        }
        if victim == Victim::Both {
            self.moment().await;
        }
        if victim != Victim::Coordinator {
            self.fleet.kill_agent(&agent)?;
        }
        self.moment().await;
        let agent_first = self.random.one_in(2);
        if victim != Victim::Coordinator && agent_first {
            self.fleet.start_agent(&agent)?;
            if victim == Victim::Both {
                self.moment().await;
            }
        }
        if victim != Victim::Agent {
            self.fleet.start_coordinator().await?;
        }
        if victim != Victim::Coordinator && !agent_first {
            self.fleet.start_agent(&agent)?;
        }
        Ok(())
    }

    async fn settle(&mut self, mut live: Vec<Id>, since: Instant) -> anyhow::Result<()> {
        loop {
            self.clients.check()?;
            let mut rest = Vec::new();
            for job in live {
                if !self.clients.look(&job).await? {
                    rest.push(job);
                }
            }
            if rest.is_empty() {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                bail!("{rest:?} have not ended after {PATIENCE:?}");
            }
            live = rest;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Empties the queue, and looks at the history, at what every job has done, and at what is left.
    async fn look(&mut self) -> anyhow::Result<()> {
        self.clients.quiet(PATIENCE).await?;
        self.settle(self.clients.live(), Instant::now()).await?;
        let listed = self.clients.list().await?.context("the list has no answer")?;
        let history = self.clients.history();
        let wrong = self.checker.add(&history);
        if !wrong.is_empty() {
            let lines: Vec<String> = wrong.iter().take(20).map(ToString::to_string).collect();
            bail!("the history is impossible, {} times:\n  {}", wrong.len(), lines.join("\n  "));
        }
        let made = self.checker.jobs().count();
        if listed != made {
            bail!("{made} keys have made {listed} jobs");
        }
        self.count(&history, listed);
        self.report.unstarted = 0;
        for (job, end) in ends(&history) {
            let page = match end {
                End::Failed => self.fleet.api()?.job(&job).await?,
                _ => Value::Null,
            };
            let unstarted = page["reason"].as_str().is_some_and(|why| why.contains(UNSTARTED));
            self.report.unstarted += usize::from(unstarted);
            if let Err(error) = self.check_runs(&job, end, unstarted) {
                let page = self.fleet.api()?.job(&job).await?;
                return Err(error.context(format!("{page:#}")));
            }
        }
        self.fleet.assert_clean().await
    }

    fn count(&mut self, history: &[Operation], jobs: usize) {
        let unanswered = |operation: &&Operation| {
            matches!(operation.action, Action::Submit { .. }) && operation.answer == Answer::Unknown
        };
        self.report.unanswered += history.iter().filter(unanswered).count();
        let cancelled = ends(history).values().filter(|end| **end == End::Cancelled).count();
        self.report.cancelled = cancelled;
        self.report.jobs = jobs;
        self.report.looked_at = self.checker.looked_at;
        self.report.looks += 1;
    }

    /// See [`runs::wrong`].
    fn check_runs(&self, job: &str, end: End, unstarted: bool) -> anyhow::Result<()> {
        let directory = self.fleet.shared_root().join("jobs").join(job).join("checkpoints");
        let ranks = runs::read(&directory).with_context(|| job.to_owned())?;
        let excuse = Excuse { stopped: self.checker.may_be_stopped(job), unstarted };
        match runs::wrong(end, excuse, &ranks) {
            Some(wrong) => bail!("{job}: {wrong}"),
            None => Ok(()),
        }
    }
}

/// Every job that ended, and how, from the answers of a history.
fn ends(history: &[Operation]) -> BTreeMap<Id, End> {
    let mut ends = BTreeMap::new();
    for operation in history {
        if let Answer::Rows(rows) = &operation.answer {
            ends.extend(
                rows.iter().filter_map(|row| Some((row.job.clone(), row.seen.state.end()?))),
            );
        }
    }
    ends
}
