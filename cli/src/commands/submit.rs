//! `submit`, `clone` and `run`: send a spec, and perhaps stay until the job has ended.

use std::path::{Path, PathBuf};

use gangline_spec::JobSpec;
use serde_json::Value;

use super::attached::{
    Following, as_unfinished, detached, end_of, follow_log, job_in, result_of, say_end,
};
use super::card::card;
use super::{find_job, spec_of};
use crate::args::{CloneJob, Run, SpecOptions, Submit, Tail};
use crate::client::{Client, Post, Repeat};
use crate::code::{self, Local};
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::spec_input::{Input, canonical, prepare, with_after};
use crate::submit_command::{percent_encoded, spelled};
use crate::view::Job;

/// How long to stay with the new job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    /// Go at once.
    No,
    /// Until the end, in silence.
    Wait,
    /// Until the end, with its log.
    Follow,
}

fn stay(follow: bool, wait: bool) -> Stay {
    match (follow, wait) {
        (true, _) => Stay::Follow,
        (false, true) => Stay::Wait,
        (false, false) => Stay::No,
    }
}

fn input(args: &Submit) -> Input<'_> {
    match &args.spec {
        Some(path) => Input::File { path: Path::new(path), command: &args.command },
        None => Input::Command(&args.command),
    }
}

/// Where the places of the spec are relative to.
fn base(args: &Submit) -> PathBuf {
    Local::base_of(args.spec.as_deref().map(Path::new))
}

fn shell(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Print what would be sent.
pub(super) fn dry_run(args: &Submit, screen: &Screen) -> Result<u8, CliError> {
    let mut spec = prepare(&input(args), &args.options, shell)?.say(screen);
    with_after(&mut spec, args.options.after.clone())?;
    let code = Local::find(&spec, &base(args))?;
    match screen.format() {
        Format::Name => {
            let name = spec.name.as_deref().unwrap_or_default();
            screen.line(name)?;
        }
        _ => screen.json(&canonical(&spec)?)?,
    }
    if let Some(code) = code {
        screen.hint(&code.describe());
    }
    screen.hint("the spec is valid; nothing was sent");
    Ok(exit::OK)
}

/// Submit a job. The spec is checked before `client` looks for a coordinator.
pub(super) async fn submit(
    args: &Submit,
    client: impl Fn() -> Result<Client, CliError>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let spec = prepare(&input(args), &args.options, shell)?.say(screen);
    let code = Local::find(&spec, &base(args))?;
    let stay = stay(args.follow, args.wait || args.options.propagate);
    send_and_stay(&client()?, (spec, code), &args.options, stay, screen).await
}

/// Submit the spec of a job again.
pub(super) async fn clone(
    args: &CloneJob,
    client: &Client,
    screen: &Screen,
) -> Result<u8, CliError> {
    let (id, spec) = spec_of(client, &args.job).await?;
    let spec = prepare(&Input::Job { id: &id, spec: &spec }, &args.options, shell)?.say(screen);
    let code = Local::find(&spec, &Local::base_of(None))?;
    let stay = stay(args.follow, args.wait || args.options.propagate);
    send_and_stay(client, (spec, code), &args.options, stay, screen).await
}

/// Run a command on its own nodes with its output here.
pub(super) async fn run(
    args: &Run,
    client: impl Fn() -> Result<Client, CliError>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let spec = prepare(&Input::OneOff(&args.command), &args.options, shell)?.say(screen);
    let code = Local::find(&spec, &Local::base_of(None))?;
    send_and_stay(&client()?, (spec, code), &args.options, Stay::Follow, screen).await
}

async fn send_and_stay(
    client: &Client,
    (mut spec, code): (JobSpec, Option<Local>),
    options: &SpecOptions,
    stay: Stay,
    screen: &Screen,
) -> Result<u8, CliError> {
    if let Some(code) = code {
        code::send(client, &mut spec, code, screen).await?;
    }
    run_after(client, &mut spec, &options.after).await?;
    let answer = send(client, &spec, options, screen).await?;
    let job = job_in(&answer)?;
    match stay {
        Stay::No => {
            report(&answer, &job, screen)?;
            next_steps(&job, screen);
            Ok(exit::OK)
        }
        Stay::Wait => {
            announce(&job, screen);
            let Some((value, job)) = end_of(client, &job.id, screen).await? else {
                return Ok(detached(&[job.id], screen));
            };
            report(&value, &job, screen)?;
            Ok(result_of(&job, options.propagate))
        }
        Stay::Follow => {
            if screen.is_json() {
                screen.json_line(&answer)?;
            }
            announce(&job, screen);
            if job.nnodes.is_some_and(|nodes| nodes > 1) && job.launcher == "command" {
                screen.hint(&format!("  other ranks  gangline logs {} --rank 1", job.id));
            }
            follow(client, &job, options.propagate, screen).await
        }
    }
}

/// The jobs of `--after` by their ids: who looks here means the job that there is now.
async fn run_after(
    client: &Client,
    spec: &mut JobSpec,
    selectors: &[String],
) -> Result<(), CliError> {
    if selectors.is_empty() {
        return Ok(());
    }
    let mut ids = Vec::new();
    for selector in selectors {
        ids.push(format!("job:{}", find_job(client, selector).await?.1.id));
    }
    with_after(spec, ids)
}

async fn send(
    client: &Client,
    spec: &JobSpec,
    options: &SpecOptions,
    screen: &Screen,
) -> Result<Value, CliError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let query: Vec<(&str, String)> =
        options.id.iter().map(|id| ("submission_id", id.clone())).collect();
    let post = Post {
        path: &["jobs"],
        query: &query,
        body: spec.canonical_json(),
        command: Some(percent_encoded(&spelled(&arguments))),
        repeat: Repeat::Safe,
    };
    client.post(&post, screen).await
}

async fn follow(
    client: &Client,
    job: &Job,
    propagate: bool,
    screen: &Screen,
) -> Result<u8, CliError> {
    let following = Following {
        client,
        job,
        rank: None,
        file: None,
        attempt: None,
        tail: Tail::All,
        raw: false,
    };
    let gone = || detached(std::slice::from_ref(&job.id), screen);
    if follow_log(&following, screen).await.map_err(as_unfinished)?.is_none() {
        return Ok(gone());
    }
    let Some((_, job)) = end_of(client, &job.id, screen).await? else {
        return Ok(gone());
    };
    say_end(&job, screen);
    announce(&job, screen);
    Ok(result_of(&job, propagate))
}

/// The job on stdout.
fn report(answer: &Value, job: &Job, screen: &Screen) -> Result<(), CliError> {
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(answer),
        Format::Name => screen.line(&job.id),
        Format::Table | Format::Wide => screen.print(&card(job)),
    }
}

/// The job on stderr, where stdout is for something else.
fn announce(job: &Job, screen: &Screen) {
    screen.hint(card(job).trim_end());
}

fn next_steps(job: &Job, screen: &Screen) {
    let id = &job.id;
    screen.hint(&format!(
        "  logs  gangline logs -f {id}\n  show  gangline show {id}\n  stop  gangline stop {id}"
    ));
}
