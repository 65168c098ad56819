//! Kills of Ray heads under real Ray jobs: the job fails and says why, everything of it goes, and the
//! next one runs on the same nodes.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gangline_simulation::random::Random;

use crate::fleet::Fleet;
use crate::process::kill;
use crate::training::{training, wait_steps};

/// Longest wait for a gang: Ray starts in seconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// Longest moment from the first step to the kill, in milliseconds.
const MOMENT_MS: u64 = 3000;
const WORKERS: [&str; 2] = ["a", "b"];

/// What of a head is killed. A head cannot be without either.
const VICTIMS: [(&str, &str); 2] = [("gcs_server", "/gcs_server"), ("raylet", "/raylet/raylet")];

/// What the kills of one part of a head came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub kills: u32,
    /// How often the job's reason is the head; else it is the entrypoint's end, which that caused: Ray's own
    /// watch of its parts takes a second, and the gang is stopped as soon as its entrypoint has failed.
    pub named: u32,
    /// From the kill until the job had ended and all its processes were gone.
    pub total: Duration,
    pub slowest: Duration,
}

/// Kills `heads` heads, and runs one more job to its end; `say` is told of each.
///
/// # Errors
/// What was wrong, and after which kill.
pub async fn run(
    fleet: &Fleet,
    heads: u32,
    seed: u64,
    say: &mut dyn FnMut(String),
) -> anyhow::Result<Vec<(&'static str, Tally)>> {
    let mut random = Random::new(seed);
    let mut tallies = VICTIMS.map(|(word, _)| (word, Tally::default()));
    for number in 1..=heads {
        let which = usize::from(random.one_in(2));
        let (Some((word, part)), Some((_, tally))) = (VICTIMS.get(which), tallies.get_mut(which))
        else {
            bail!("there is no part {which} of a head");
        };
        let moment = Duration::from_millis(random.below(MOMENT_MS));
        let (took, reason) = kill_one(fleet, part, moment)
            .await
            .with_context(|| format!("head {number}: {word}"))?;
        // What Ray said last follows in further lines.
        let reason = reason.lines().next().unwrap_or_default();
        say(format!("{number:>4} {word:<11} {:>6.1} s  {reason}", took.as_secs_f64()));
        tally.kills += 1;
        tally.named += u32::from(reason.contains("head"));
        tally.total += took;
        tally.slowest = tally.slowest.max(took);
    }
    let api = fleet.api()?;
    let last = api.submit(&training("last", 4, 5, 0.0)).await?;
    api.wait_job(&last, &["SUCCEEDED"], PATIENCE).await?;
    fleet.assert_clean().await?;
    Ok(tallies.to_vec())
}

/// A training on all GPUs whose head dies. Returns how long it took until nothing was left, and the
/// reason that the job gives.
async fn kill_one(
    fleet: &Fleet,
    part: &str,
    moment: Duration,
) -> anyhow::Result<(Duration, String)> {
    let api = fleet.api()?;
    let job = api.submit(&training("head", 4, 10_000, 0.2)).await?;
    api.wait_job(&job, &["RUNNING"], PATIENCE).await?;
    wait_steps(fleet, &job, 1).await?;
    tokio::time::sleep(moment).await;
    let of_head = |mark: &String| mark.ends_with(":head");
    let victim = fleet
        .gang_processes()
        .into_iter()
        .find(|p| p.command.contains(part) && p.mark.as_ref().is_some_and(of_head))
        .with_context(|| format!("no {part} of a head: {:?}", fleet.gang_processes()))?;
    kill(victim.pid)?;
    let killed = Instant::now();
    let done = api.wait_job(&job, &["FAILED"], PATIENCE).await?;
    let reason = done["reason"].as_str().unwrap_or_default().to_owned();
    let is_said = reason.contains("head") || reason.contains("entrypoint exited with code");
    ensure!(is_said, "the reason names neither the head nor its entrypoint: {reason}");
    ensure!(done["attempts"] == 1, "{job} was tried again: {}", done["attempts"]);
    fleet.assert_clean().await?;
    let took = killed.elapsed();
    for name in WORKERS {
        let node = api.get(&format!("/api/v1/nodes/{name}")).await?;
        ensure!(node["gpus_in_use"] == 0, "{name} has GPUs in use: {node}");
    }
    Ok((took, reason))
}
