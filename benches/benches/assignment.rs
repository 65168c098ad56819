//! From `submit` to the word of four agents that they hold the assignment, without the start of a process:
//! a coordinator as a process of its own, four sessions over QUIC, submissions over HTTP. Beside it stands
//! its floor, measured in turns with it: one round trip over HTTP, one durable commit, one round trip over
//! QUIC.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use gangline_benches::agents::Agents;
use gangline_benches::floor::{Echo, PlainRedb, RawDisk};
use gangline_benches::load::Client;
use gangline_benches::measure::{RUNS, Series};
use gangline_benches::program;
use gangline_benches::table::Table;
use gangline_fleet::build::binaries;
use gangline_fleet::fleet::{Fleet, FleetOptions};
use tokio::task::JoinSet;

/// Agents, and members of the gang.
const AGENTS: usize = 4;
/// Gangs of a run that come one after another, and before the first run.
const ALONE: usize = 60;
const WARM_UP: usize = 30;
/// Submitters that each wait until their gang is held, and the gangs of each in one run.
const OUTSTANDING: usize = 64;
const EACH: usize = 5;
/// Length of a frame of the round trip, in bytes.
const FRAME: usize = 200;
const SPEC: &str =
    "name: bench\nresources: {nnodes: 4}\nlauncher: {type: command}\ncommand: [sleep, \"1\"]\n";

fn main() -> ExitCode {
    program::run("assignment", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(bench())
    })
}

#[derive(Default)]
struct Measured {
    raw: Series,
    http: Series,
    commit: Series,
    round_trip: Series,
    floor: Series,
    answered: Series,
    held: Series,
    crowd_answered: Series,
    crowd_held: Series,
}

async fn bench() -> anyhow::Result<()> {
    let coordinator_config = "request_rate = 0\nsubmit_rate = 0\n".to_owned();
    let options = FleetOptions { coordinator_config, ..FleetOptions::default() };
    let fleet = Fleet::start(binaries(true).await?, options).await?;
    let agents = Arc::new(Agents::start(&fleet, AGENTS).await?);
    let token = fleet.api()?.token;
    let address = fleet.url().trim_start_matches("http://").to_owned();
    let mut client = Client::connect(&address, &token).await?;
    let directory = tempfile::tempdir_in(fleet.path(""))?;
    let mut floor = Floor {
        raw: RawDisk::create(directory.path())?,
        redb: PlainRedb::create(directory.path())?,
        echo: Echo::start(directory.path(), FRAME).await?,
    };

    let mut measured = Measured::default();
    for number in 0..WARM_UP {
        floor.once(&mut client, &mut Measured::default()).await?;
        gang(&agents, &mut client, &format!("warm-{number}")).await?;
    }
    for run in 0..RUNS {
        measured.begin_run()?;
        for number in 0..ALONE {
            floor.once(&mut client, &mut measured).await?;
            let gang = gang(&agents, &mut client, &format!("alone-{run}-{number}")).await?;
            measured.answered.record(gang.answered, 1)?;
            measured.held.record(gang.held, 1)?;
        }
        let mut crowd = JoinSet::new();
        for submitter in 0..OUTSTANDING {
            let (agents, mut client) = (agents.clone(), Client::connect(&address, &token).await?);
            crowd.spawn(async move {
                let mut gangs = Vec::with_capacity(EACH);
                for number in 0..EACH {
                    let job = format!("crowd-{run}-{submitter}-{number}");
                    gangs.push(gang(&agents, &mut client, &job).await?);
                }
                anyhow::Ok(gangs)
            });
        }
        while let Some(gangs) = crowd.join_next().await {
            for gang in gangs?? {
                measured.crowd_answered.record(gang.answered, 1)?;
                measured.crowd_held.record(gang.held, 1)?;
            }
        }
    }
    floor.echo.stop().await?;
    measured.print();
    Ok(())
}

/// Times since just before the submission.
struct Gang {
    answered: std::time::Duration,
    held: std::time::Duration,
}

/// Submits a gang, waits for the word of every agent, and ends it.
async fn gang(agents: &Agents, client: &mut Client, job: &str) -> anyhow::Result<Gang> {
    let mut words = agents.await_job(job);
    let submitted = Instant::now();
    client.submit(SPEC, Some(job)).await?;
    let answered = submitted.elapsed();
    let mut last = submitted;
    for _ in 0..AGENTS {
        last = last.max(words.recv().await.context("an agent has ended")?);
    }
    agents.end(job).await?;
    Ok(Gang { answered, held: last.duration_since(submitted) })
}

/// What no design can do without.
struct Floor {
    raw: RawDisk,
    redb: PlainRedb,
    echo: Echo,
}

impl Floor {
    async fn once(&mut self, client: &mut Client, measured: &mut Measured) -> anyhow::Result<()> {
        measured.raw.time(|| self.raw.write())??;
        let began = Instant::now();
        let (status, answer) = client.send("GET", "/healthz", "application/json", "").await?;
        anyhow::ensure!(status == 200, "healthz: {status}: {answer}");
        let asked = Instant::now();
        self.redb.commit(1)?;
        let committed = Instant::now();
        self.echo.round_trip().await?;
        let done = Instant::now();
        measured.http.record(asked - began, 1)?;
        measured.commit.record(committed - asked, 1)?;
        measured.round_trip.record(done - committed, 1)?;
        measured.floor.record(done - began, 1)
    }
}

impl Measured {
    fn begin_run(&mut self) -> anyhow::Result<()> {
        let all = [
            &mut self.raw,
            &mut self.http,
            &mut self.commit,
            &mut self.round_trip,
            &mut self.floor,
            &mut self.answered,
            &mut self.held,
            &mut self.crowd_answered,
            &mut self.crowd_held,
        ];
        all.into_iter().try_for_each(Series::begin_run)
    }

    fn print(&self) {
        let mut table = Table::of_timings();
        let floor = Some(("floor", &self.floor));
        table.timing("raw 4 KiB write + fdatasync", &self.raw, None);
        table.timing("floor: one round trip over HTTP", &self.http, None);
        table.timing("floor: one durable commit (redb, two-phase)", &self.commit, None);
        table.timing("floor: one round trip of 200 B (QUIC)", &self.round_trip, None);
        table.timing("floor: the three one after another", &self.floor, None);
        table.timing("submit -> answered (durable)", &self.answered, floor);
        table.timing("submit -> acknowledged by 4 agents", &self.held, floor);
        table.timing("64 at a time: submit -> answered", &self.crowd_answered, floor);
        table.timing("64 at a time: submit -> acknowledged by 4 agents", &self.crowd_held, floor);
        println!("{table}");
        println!(
            "{} gangs of {AGENTS} one after another, and {} by {OUTSTANDING} submitters, after \
             {WARM_UP} to warm up. An agent's word is its report that it holds the assignment; it has \
             come when the answer to a heartbeat right behind it is back, so half a round trip is counted \
             too much. The agents have no ledger and start nothing; they and the submitters are one \
             process, the coordinator is another.",
            ALONE * RUNS,
            OUTSTANDING * EACH * RUNS,
        );
    }
}
