//! Durable admissions of gangs: through the coordinator's driver, core and store, and through its HTTP API,
//! beside redb alone with the same records and beside an end-to-end ceiling, which has the same mailbox,
//! batches and answers, decides nothing, and only appends those records.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use gangline_benches::driven::Driven;
use gangline_benches::floor::{PlainRedb, RawDisk};
use gangline_benches::load::Client;
use gangline_benches::measure::{RUNS, Series};
use gangline_benches::nodes::Nodes;
use gangline_benches::program;
use gangline_benches::table::{Table, digits, duration};
use gangline_common::ids::short_suffix;
use gangline_coordinator::core::effect::Write;
use gangline_coordinator::core::job::JobRequest;
use gangline_coordinator::store::{AuditHead, record};
use gangline_fleet::build::binaries;
use gangline_fleet::fleet::{Fleet, FleetOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Nodes of eight GPUs, and the gangs of two nodes with one GPU each that fill them.
const NODES: usize = 128;
const ROOM: usize = 512;
/// Submitters that each wait for their answer.
const OUTSTANDING: [usize; 3] = [1, 64, 512];
/// Admissions of a round with one submitter.
const ALONE: usize = 64;
/// Rounds of one run; the nodes are emptied between them.
const ROUNDS: usize = 2;
/// The most that the coordinator commits together, and what waits for that at most.
const BATCH: usize = 256;
const MAILBOX: usize = 4096;
/// An odd number whose multiples lie far apart, as ids do.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Connections to the API, and the submissions of one run over each.
const SUBMITTERS: usize = 64;
const EACH: usize = 40;
/// Gangs that wait while others are submitted, and are never placed.
const WAITING: usize = 1_000;
const SPEC: &str = "name: bench\nresources: {nnodes: 2, gpus_per_node: 8}\nlauncher: {type: command}\n\
                    command: [python, -m, train, --config, grpo.yaml]\nenv: {LR: 1e-6, MODEL: llama}\n";

fn main() -> ExitCode {
    program::run("admissions", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(bench())
    })
}

async fn bench() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let records = records()?;
    let bytes: usize = records.all().iter().map(|record| record.len()).sum();
    println!("{}", through_driver(directory.path(), &records).await?);
    println!(
        "An admission is one gang of two nodes, with its place. It leaves {} records of {bytes} B together: \
         job, attempt, gang, two nodes, one line of the audit log. The ceiling is what the same mailbox, \
         batches of at most {BATCH} and answers allow when nothing is decided and redb gets those records \
         under the same keys in as many tables, two-phase. Redb alone has no mailbox either, and appends \
         them to one table, as no store of jobs with ids could.\n",
        records.all().len(),
    );
    println!("{}", through_http().await?);
    println!(
        "{SUBMITTERS} connections that stay open, a token for each, {} submissions a run of command gangs \
         that find no place, since there is no node; they are stopped after each run. Client and \
         coordinator share the machine.",
        SUBMITTERS * EACH
    );
    Ok(())
}

/// The gang that is admitted: one GPU of each of two nodes.
fn small(request: &mut JobRequest) {
    request.gpus_per_node = 1;
}

/// What one admission leaves in the store.
fn records() -> anyhow::Result<Records> {
    let mut nodes = Nodes::with_gangs(NODES, 0)?;
    let request = nodes.script.request_with(small);
    let event = nodes.submission_of(request)?;
    let effects = nodes.step(event);
    let mut records = Records::default();
    for write in &effects.writes {
        // Several times in one step the job; the last one stays.
        let (record, encoded) = match write {
            Write::Job(job) => (&mut records.job, record::encode_job(job)),
            Write::Attempt(attempt) => (&mut records.attempt, record::encode_attempt(attempt)),
            Write::Gang(gang) => (&mut records.gang, record::encode_gang(gang)),
            Write::Node(node) => (&mut records.node, record::encode_node(node)),
            Write::Audit(entry) => {
                let chained = AuditHead::default().chain(entry.clone());
                (&mut records.audit, record::encode_audit(&chained))
            }
            other => anyhow::bail!("an admission wrote {other:?}"),
        };
        *record = encoded.map_err(anyhow::Error::msg)?;
    }
    Ok(records)
}

/// The records of one admission, as they are stored; those of its two nodes are equally long.
#[derive(Clone, Default)]
struct Records {
    job: Vec<u8>,
    attempt: Vec<u8>,
    gang: Vec<u8>,
    node: Vec<u8>,
    audit: Vec<u8>,
}

impl Records {
    fn all(&self) -> [&[u8]; 6] {
        [&self.job, &self.attempt, &self.gang, &self.node, &self.node, &self.audit]
    }

    /// Where the store has those of the admission `number`: table and key.
    fn placed(&self, number: u64) -> [(usize, String, &[u8]); 6] {
        let suffix = short_suffix(number.wrapping_mul(SPREAD));
        let first = number / 8 * 2 % NODES as u64;
        [
            (0, format!("j-{suffix}"), &self.job),
            (1, format!("j-{suffix}/1"), &self.attempt),
            (2, format!("g-{suffix}"), &self.gang),
            (3, format!("n-{first:05}"), &self.node),
            (3, format!("n-{:05}", first + 1), &self.node),
            (4, format!("{number:020}"), &self.audit),
        ]
    }
}

// ---------------------------------------------------------------- core and store

async fn through_driver(directory: &Path, records: &Records) -> anyhow::Result<Table> {
    let mut raw = RawDisk::create(directory)?;
    let mut plain = PlainRedb::create(directory)?;
    let ceiling = Ceiling::start(directory, records)?;
    let mut driven = Driven::start(directory, NODES).await?;
    let mut table = Table::new(&[
        "submitters",
        "redb alone, appending",
        "ceiling",
        "admissions/s",
        "of the runs",
        "of the ceiling",
        "of redb alone",
        "raw 4 KiB write + fdatasync",
    ]);
    for outstanding in OUTSTANDING {
        let count = if outstanding == 1 { ALONE } else { ROOM };
        let (mut alone, mut above, mut own, mut disk) =
            (Series::default(), Series::default(), Series::default(), Series::default());
        for _ in 0..RUNS {
            for series in [&mut alone, &mut above, &mut own, &mut disk] {
                series.begin_run()?;
            }
            for round in 0..=ROUNDS {
                let together = outstanding.min(BATCH);
                let began = Instant::now();
                for _ in 0..count / together {
                    plain.append((0..together).flat_map(|_| records.all()))?;
                }
                let alone_took = began.elapsed();
                let above_took = ceiling.round(outstanding, count).await?;
                let own_took = round_of_driver(&mut driven, outstanding, count).await?;
                // The first round warms up.
                if round > 0 {
                    alone.record(alone_took, count as u32)?;
                    above.record(above_took, count as u32)?;
                    own.record(own_took, count as u32)?;
                    disk.time(|| raw.write())??;
                }
            }
        }
        let (fast, slow) = own.spread();
        table.row(vec![
            outstanding.to_string(),
            rate(alone.median()),
            rate(above.median()),
            rate(own.median()),
            format!("{} to {}", rate(slow), rate(fast)),
            format!("{} x", digits(above.median() / own.median())),
            format!("{} x", digits(alone.median() / own.median())),
            duration(disk.median()),
        ]);
    }
    Ok(table)
}

/// Per second, of nanoseconds for each.
fn rate(nanoseconds: f64) -> String {
    format!("{:.0}", 1e9 / nanoseconds)
}

/// `count` admissions by `outstanding` submitters, each of which has a place at the end.
async fn round_of_driver(
    driven: &mut Driven,
    outstanding: usize,
    count: usize,
) -> anyhow::Result<Duration> {
    let request = driven.script.request_with(small);
    let mut submitters = JoinSet::new();
    let mut ready = Vec::new();
    for _ in 0..outstanding {
        let wishes: anyhow::Result<Vec<_>> =
            (0..count / outstanding).map(|_| driven.script.submission(request.clone())).collect();
        ready.push((driven.driver.handle.clone(), wishes?));
    }
    let began = Instant::now();
    for (driver, wishes) in ready {
        submitters.spawn(async move {
            for wish in wishes {
                Driven::submit(&driver, wish).await?;
            }
            anyhow::Ok(())
        });
    }
    all(submitters).await?;
    let took = began.elapsed();
    let placed = driven.placed();
    anyhow::ensure!(placed == count, "{placed} of {count} gangs have a place");
    driven.end_all().await?;
    Ok(took)
}

async fn all(mut tasks: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(())
}

/// Mailbox, group commits and answers, with nothing in between.
struct Ceiling {
    mailbox: mpsc::Sender<oneshot::Sender<()>>,
}

impl Ceiling {
    fn start(directory: &Path, records: &Records) -> anyhow::Result<Self> {
        let directory = directory.join("ceiling");
        std::fs::create_dir(&directory)?;
        let redb = PlainRedb::create(&directory)?;
        let (mailbox, mut inbox) = mpsc::channel::<oneshot::Sender<()>>(MAILBOX);
        let (records, mut number) = (records.clone(), 0);
        std::thread::spawn(move || {
            while let Some(first) = inbox.blocking_recv() {
                let mut waiting = vec![first];
                while waiting.len() < BATCH {
                    let Ok(next) = inbox.try_recv() else { break };
                    waiting.push(next);
                }
                let mut rows = BTreeMap::new();
                for _ in &waiting {
                    number += 1;
                    let placed = records.placed(number).into_iter();
                    rows.extend(placed.map(|(table, key, record)| ((table, key), record)));
                }
                if let Err(error) = redb.put(&rows) {
                    // The submitters see that no answer comes.
                    eprintln!("the ceiling: {error:#}");
                    return;
                }
                for answer in waiting {
                    // A submitter that has given up needs none.
                    let _ = answer.send(());
                }
            }
        });
        Ok(Ceiling { mailbox })
    }

    async fn round(&self, outstanding: usize, count: usize) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let mut submitters = JoinSet::new();
        for _ in 0..outstanding {
            let mailbox = self.mailbox.clone();
            submitters.spawn(async move {
                for _ in 0..count / outstanding {
                    let (answer, answered) = oneshot::channel();
                    mailbox.send(answer).await?;
                    answered.await?;
                }
                anyhow::Ok(())
            });
        }
        all(submitters).await?;
        Ok(began.elapsed())
    }
}

// ---------------------------------------------------------------- HTTP

async fn through_http() -> anyhow::Result<Table> {
    let coordinator_config = "request_rate = 0\nsubmit_rate = 0\n".to_owned();
    let options = FleetOptions { coordinator_config, ..FleetOptions::default() };
    let fleet = Fleet::start(binaries(true).await?, options).await?;
    let mut tokens = Vec::new();
    for number in 0..SUBMITTERS {
        tokens.push(token(&fleet, number).await?);
    }
    let mut table =
        Table::new(&["through HTTP", "submissions/s", "of the runs", "one answer", "p99"]);
    let mut row = |what: &str, each: &Series, mean: &Series| {
        let (fast, slow) = mean.spread();
        table.row(vec![
            what.to_owned(),
            rate(mean.median()),
            format!("{} to {}", rate(slow), rate(fast)),
            duration(each.median()),
            duration(each.at(0.99)),
        ]);
    };
    let address = fleet.url();
    let address = address.trim_start_matches("http://");
    for (count, waiting) in [(1, 0), (SUBMITTERS, 0), (SUBMITTERS, WAITING)] {
        let mut first = Client::connect(address, &tokens[0]).await?;
        for _ in 0..waiting {
            first.submit(SPEC, None).await?;
        }
        let (each, mean) = http_runs(address, &tokens[..count]).await?;
        row(&format!("{count} submitters, {waiting} others wait"), &each, &mean);
    }
    Ok(table)
}

/// A token of a user who may submit and no more.
async fn token(fleet: &Fleet, number: usize) -> anyhow::Result<String> {
    let body = format!(
        r#"{{"kind":"api","name":"t{number}","user":"u{number}","project":"rl","role":"member"}}"#
    );
    let headers = [("content-type", "application/json")];
    let (status, answer) = fleet.api()?.post("/api/v1/tokens", &headers, &body).await?;
    let token = answer["token"].as_str().with_context(|| format!("token: {status}: {answer}"))?;
    Ok(token.to_owned())
}

/// Every answer's time, and the mean time from one to the next of each run.
async fn http_runs(address: &str, tokens: &[String]) -> anyhow::Result<(Series, Series)> {
    let (mut each, mut mean) = (Series::default(), Series::default());
    for run in 0..=RUNS {
        let mut clients = Vec::new();
        for token in tokens {
            clients.push(Client::connect(address, token).await?);
        }
        let mut tasks = JoinSet::new();
        let began = Instant::now();
        for mut client in clients {
            tasks.spawn(async move {
                let mut answers = Vec::with_capacity(EACH);
                for _ in 0..EACH {
                    let began = Instant::now();
                    let job = client.submit(SPEC, None).await?;
                    answers.push((began.elapsed(), job));
                }
                anyhow::Ok((client, answers))
            });
        }
        let mut done = Vec::new();
        while let Some(result) = tasks.join_next().await {
            done.push(result??);
        }
        let took = began.elapsed();
        // The first run warms up.
        if run > 0 {
            each.begin_run()?;
            mean.begin_run()?;
            mean.record(took, (tokens.len() * EACH) as u32)?;
            for (time, _) in done.iter().flat_map(|(_, answers)| answers) {
                each.record(*time, 1)?;
            }
        }
        let mut stops = JoinSet::new();
        for (mut client, answers) in done {
            stops.spawn(async move {
                for (_, job) in answers {
                    client.stop(&job).await?;
                }
                anyhow::Ok(())
            });
        }
        all(stops).await?;
    }
    Ok((each, mean))
}
