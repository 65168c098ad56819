//! From `submit` to the first instruction of every rank of a gang of four, with real processes: a
//! coordinator and four agents on loopback. Beside it stands its floor: one durable commit, one
//! round trip and the start of one process, measured in the same run. Slurm, where it is installed, starts
//! the same gangs afterwards.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use gangline_benches::floor::{Echo, PlainRedb, RawDisk, spawn_stamp};
use gangline_benches::measure::{RUNS, Series};
use gangline_benches::program;
use gangline_benches::slurm::{self, Slurm};
use gangline_benches::stamps::{Stamps, monotonic_ns};
use gangline_benches::table::{Table, digits};
use gangline_common::ids::Epoch;
use gangline_fleet::api::Api;
use gangline_fleet::build::binaries;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};

const STAMP: &str = env!("CARGO_BIN_EXE_stamp");
/// Members of the gang, one per agent.
const RANKS: usize = 4;
const WARM_UP: usize = 20;
/// Gangs of all runs together, of either kind.
const GANGS: usize = 200;
/// Most gangs that may be started more than once; they are left out and counted.
const MOST_AGAIN: usize = 20;
/// Length of a frame of the round trip, in bytes.
const FRAME: usize = 200;
/// Pause after a gang that was measured alone: until its logs are filed away.
const SETTLE: Duration = Duration::from_millis(150);
/// How often it is asked whether a gang has ended.
const POLL: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(30);
/// Gangs of Slurm in all runs together, of either kind.
const PEER_GANGS: usize = 50;
const PEER_WARM_UP: usize = 3;

fn main() -> ExitCode {
    program::run("gang_start", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(bench())
    })
}

async fn bench() -> anyhow::Result<()> {
    let coordinator_config = "request_rate = 0\nsubmit_rate = 0\n".to_owned();
    let options = FleetOptions { coordinator_config, ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries(true).await?, options).await?;
    for number in 0..RANKS {
        fleet.add_agent(AgentOptions::worker(&format!("w{number}"), 0)).await?;
    }
    let measured = measure(&fleet).await;
    if measured.is_err() {
        eprintln!("{}", fleet.coordinator_log());
        for number in 0..RANKS {
            eprintln!("{}", fleet.agent_log(&format!("w{number}")));
        }
    }
    let measured = measured?;
    print(&measured);
    drop(fleet);
    match slurm::available() {
        Ok(()) => peer(&measured).await,
        Err(missing) => {
            println!("Slurm is left out: {missing}.");
            Ok(())
        }
    }
}

/// What was measured, in nanoseconds; each of the first group is part of the floor.
#[derive(Default)]
struct Measured {
    raw: Series,
    commit: Series,
    round_trip: Series,
    spawn: Series,
    floor: Series,
    spawns: Series,

    answered: Series,
    first: Series,
    last: Series,
    succeeded: Series,
    busy_last: Series,
    /// One entry per gang, all of a run the same: its mean time from submit to submit.
    cycle: Series,
    /// Gangs that were started more than once: they are in no series but `cycle`.
    again: usize,
}

impl Measured {
    fn begin_run(&mut self) -> anyhow::Result<()> {
        let all = [
            &mut self.raw,
            &mut self.commit,
            &mut self.round_trip,
            &mut self.spawn,
            &mut self.floor,
            &mut self.spawns,
            &mut self.answered,
            &mut self.first,
            &mut self.last,
            &mut self.succeeded,
            &mut self.busy_last,
            &mut self.cycle,
        ];
        all.into_iter().try_for_each(Series::begin_run)
    }
}

async fn measure(fleet: &Fleet) -> anyhow::Result<Measured> {
    let floors = tempfile::tempdir_in(fleet.path(""))?;
    let mut bench = Bench {
        api: fleet.api()?,
        stamps: Stamps::create(floors.path().join("stamps"))?,
        floor: Floor::start(floors.path()).await?,
        next: 0,
        again: 0,
    };
    for _ in 0..WARM_UP {
        bench.floor.once(&mut Measured::default(), &mut bench.stamps).await?;
        bench.gang().await?;
    }
    let mut measured = Measured::default();
    for _ in 0..RUNS {
        measured.begin_run()?;
        for _ in 0..GANGS / RUNS {
            tokio::time::sleep(SETTLE).await;
            bench.floor.once(&mut measured, &mut bench.stamps).await?;
            bench.floor.four_at_once(&mut measured, &mut bench.stamps).await?;
            tokio::time::sleep(POLL).await;
            let gang = bench.gang().await?;
            measured.answered.record(gang.answered, 1)?;
            measured.first.record(gang.first, 1)?;
            measured.last.record(gang.last, 1)?;
            measured.succeeded.record(gang.succeeded, 1)?;
        }
        tokio::time::sleep(SETTLE).await;
        let began = Instant::now();
        for _ in 0..GANGS / RUNS {
            let gang = bench.gang().await?;
            measured.busy_last.record(gang.last, 1)?;
        }
        measured.cycle.record(began.elapsed(), (GANGS / RUNS) as u32)?;
    }
    measured.again = bench.again;
    bench.floor.echo.stop().await?;
    Ok(measured)
}

struct Bench {
    api: Api,
    stamps: Stamps,
    floor: Floor,
    next: usize,
    again: usize,
}

/// One gang's times since just before its submission.
struct Gang {
    answered: Duration,
    first: Duration,
    last: Duration,
    succeeded: Duration,
}

impl Bench {
    async fn gang(&mut self) -> anyhow::Result<Gang> {
        loop {
            if let Some(gang) = self.try_gang().await? {
                return Ok(gang);
            }
        }
    }

    /// `None` when the gang was started more than once.
    async fn try_gang(&mut self) -> anyhow::Result<Option<Gang>> {
        self.next += 1;
        let tag = format!("gang{}", self.next);
        let spec = format!(
            "name: bench\nresources: {{nnodes: {RANKS}}}\nlauncher: {{type: command}}\n\
             command: [{STAMP:?}, {:?}, {tag:?}]\n",
            self.stamps.path()
        );
        let submitted = monotonic_ns();
        let job = self.api.submit(&spec).await?;
        let answered = monotonic_ns();
        let mut times = self.stamps.wait(&tag, RANKS).await?;
        times.sort_unstable();
        let (first, last) = match times.as_slice() {
            [first, .., last] => (*first, *last),
            _ => anyhow::bail!("too few stamps"),
        };
        let starts = self.ended(&job).await?;
        let succeeded = monotonic_ns();
        if starts != 1 {
            // Rolled back and placed anew, as when another program listens on one of its ports.
            eprintln!("{job} was started {starts} times; it is measured again");
            self.again += 1;
            anyhow::ensure!(self.again <= MOST_AGAIN, "too many gangs were started more than once");
            self.stamps.drop_rest().await?;
            return Ok(None);
        }
        let since = |time: u64| Duration::from_nanos(time.saturating_sub(submitted));
        Ok(Some(Gang {
            answered: since(answered),
            first: since(first),
            last: since(last),
            succeeded: since(succeeded),
        }))
    }

    /// Asks until the job has succeeded. Returns how often its gang was started.
    async fn ended(&self, job: &str) -> anyhow::Result<u32> {
        let until = Instant::now() + PATIENCE;
        loop {
            let view = self.api.job(job).await?;
            let state = view["state"].as_str().context("no state")?;
            if state == "SUCCEEDED" {
                // A rolled back attempt keeps its number; the epoch counts every start.
                let epoch: Epoch =
                    view["attempt_list"][0]["epoch"].as_str().context("no epoch")?.parse()?;
                return Ok(epoch.n);
            }
            if ["FAILED", "CANCELLED"].contains(&state) || Instant::now() >= until {
                let reason = view["reason"].as_str().unwrap_or_default();
                anyhow::bail!("{job} is {state}: {reason}");
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The floor: what no design can do without.
struct Floor {
    raw: RawDisk,
    redb: PlainRedb,
    echo: Echo,
    program: PathBuf,
}

impl Floor {
    async fn start(directory: &Path) -> anyhow::Result<Self> {
        Ok(Floor {
            raw: RawDisk::create(directory)?,
            redb: PlainRedb::create(directory)?,
            echo: Echo::start(directory, FRAME).await?,
            program: PathBuf::from(STAMP),
        })
    }

    /// A commit, then a round trip, then a start, one after another as in a gang.
    async fn once(&mut self, measured: &mut Measured, stamps: &mut Stamps) -> anyhow::Result<()> {
        measured.raw.time(|| self.raw.write())??;
        let began = monotonic_ns();
        self.redb.commit(1)?;
        let committed = monotonic_ns();
        self.echo.round_trip().await?;
        let answered = monotonic_ns();
        let mut child = spawn_stamp(&self.program, stamps.path(), "floor")?;
        let times = stamps.wait("floor", 1).await?;
        let started = times.first().copied().context("no stamp")?;
        child.wait()?;
        let between = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        measured.commit.record(between(began, committed), 1)?;
        measured.round_trip.record(between(committed, answered), 1)?;
        measured.spawn.record(between(answered, started), 1)?;
        measured.floor.record(between(began, started), 1)
    }

    /// As many starts as the gang has ranks, by one process.
    async fn four_at_once(
        &mut self,
        measured: &mut Measured,
        stamps: &mut Stamps,
    ) -> anyhow::Result<()> {
        let began = monotonic_ns();
        let mut children = Vec::with_capacity(RANKS);
        for _ in 0..RANKS {
            children.push(spawn_stamp(&self.program, stamps.path(), "four")?);
        }
        let last = stamps.wait("four", RANKS).await?.into_iter().max().context("no stamp")?;
        for mut child in children {
            child.wait()?;
        }
        measured.spawns.record(Duration::from_nanos(last.saturating_sub(began)), 1)
    }
}

fn print(measured: &Measured) {
    let mut table = Table::of_timings();
    let floor = Some(("floor", &measured.floor));
    table.timing("raw 4 KiB write + fdatasync", &measured.raw, None);
    table.timing("floor: one durable commit (redb, two-phase)", &measured.commit, None);
    table.timing("floor: one round trip of 200 B (QUIC)", &measured.round_trip, None);
    table.timing("floor: start of one process", &measured.spawn, None);
    table.timing("floor: the three one after another", &measured.floor, None);
    table.timing("four starts at once, by one process", &measured.spawns, None);
    table.timing("submit -> answered (durable)", &measured.answered, floor);
    table.timing("submit -> first rank's first instruction", &measured.first, floor);
    table.timing("submit -> every rank's first instruction", &measured.last, floor);
    table.timing("submit -> SUCCEEDED is seen", &measured.succeeded, floor);
    table.timing("the same, back to back: every rank", &measured.busy_last, floor);
    table.timing("the same, back to back: submit to submit", &measured.cycle, floor);
    println!("{table}");
    let (fast, slow) = measured.cycle.spread();
    println!(
        "p90 of submit -> every rank: {} ms. Back to back: {} gangs/s ({} to {} over {RUNS} runs).",
        digits(measured.last.at(0.9) / 1e6),
        digits(1e9 / measured.cycle.median()),
        digits(1e9 / slow),
        digits(1e9 / fast),
    );
    println!("Gangs left out because they were started more than once: {}.", measured.again);
    println!(
        "{GANGS} gangs of {RANKS} alone and as many back to back, after {WARM_UP} to warm up. The \
         floor and the gangs take turns. A gang is seen as SUCCEEDED by asking every {} ms.",
        POLL.as_millis()
    );
}

// ---------------------------------------------------------------- the peer

/// Slurm's times of the same gangs since just before the command.
#[derive(Default)]
struct Peer {
    first: Series,
    last: Series,
    ended: Series,
    cycle: Series,
    batch: Series,
}

async fn peer(own: &Measured) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let mut stamps = Stamps::create(directory.path().join("stamps"))?;
    let mut slurm = Slurm::start(RANKS).await?;
    let mut peer = Peer::default();
    for number in 0..PEER_WARM_UP {
        srun(&mut slurm, &mut stamps, &format!("warm{number}")).await?;
    }
    for run in 0..RUNS {
        for series in
            [&mut peer.first, &mut peer.last, &mut peer.ended, &mut peer.cycle, &mut peer.batch]
        {
            series.begin_run()?;
        }
        for number in 0..PEER_GANGS / RUNS {
            tokio::time::sleep(SETTLE).await;
            let [first, last, ended] =
                srun(&mut slurm, &mut stamps, &format!("alone{run}-{number}")).await?;
            peer.first.record(first, 1)?;
            peer.last.record(last, 1)?;
            peer.ended.record(ended, 1)?;
        }
        let began = Instant::now();
        for number in 0..PEER_GANGS / RUNS {
            srun(&mut slurm, &mut stamps, &format!("busy{run}-{number}")).await?;
        }
        peer.cycle.record(began.elapsed(), (PEER_GANGS / RUNS) as u32)?;
        let tag = format!("batch{run}");
        let submitted = monotonic_ns();
        slurm.sbatch(&stamp_command(&stamps, &tag)).await?;
        let last = stamps.wait(&tag, RANKS).await?.into_iter().max().context("no stamp")?;
        slurm.ended().await?;
        peer.batch.record(Duration::from_nanos(last.saturating_sub(submitted)), 1)?;
    }
    slurm.stop().await?;
    peer.print(own);
    Ok(())
}

fn stamp_command(stamps: &Stamps, tag: &str) -> String {
    format!("{STAMP} {} {tag}", stamps.path().display())
}

/// First and last rank's first instruction, and the end of the command.
async fn srun(slurm: &mut Slurm, stamps: &mut Stamps, tag: &str) -> anyhow::Result<[Duration; 3]> {
    let submitted = monotonic_ns();
    slurm.srun(&stamp_command(stamps, tag)).await?;
    let times = stamps.wait(tag, RANKS).await?;
    slurm.ended().await?;
    let ended = monotonic_ns();
    let first = times.iter().min().copied().context("no stamp")?;
    let last = times.iter().max().copied().context("no stamp")?;
    Ok([first, last, ended].map(|time| Duration::from_nanos(time.saturating_sub(submitted))))
}

impl Peer {
    fn print(&self, own: &Measured) {
        let mut table = Table::of_timings();
        let mut row = |what: &str, series: &Series, own: &Series| {
            table.timing(what, series, Some(("Gangline", own)));
        };
        row("srun -> first rank's first instruction", &self.first, &own.first);
        row("srun -> every rank's first instruction", &self.last, &own.last);
        row("srun -> its end", &self.ended, &own.succeeded);
        row("srun, back to back: one after the other", &self.cycle, &own.cycle);
        row("sbatch -> every rank's first instruction", &self.batch, &own.last);
        println!("{table}");
        println!(
            "Slurm with {RANKS} nodes on this machine, after Gangline's own gangs: {PEER_GANGS} alone and \
             as many back to back, {RUNS} by sbatch; {} gangs/s. What sbatch and srun are told is not \
             durable: the controller saves its state later, in the background. On another machine of 2 \
             cores, not measured here, HyperQueue took 24 ms to every rank's first instruction and did 22 \
             gangs/s.",
            digits(1e9 / self.cycle.median()),
        );
    }
}
