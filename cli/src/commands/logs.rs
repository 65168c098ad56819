//! `logs`: print the log of a job, or follow it; lines of many files, searches and copies are in the
//! modules below.

mod download;
mod lines;

use super::attached::{
    Following, as_unfinished, detached, end_of, follow_log, last_attempt, result_of, say_end,
};
use super::find_job;
use crate::args::{Logs, Tail};
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::follow::LogSource;
use crate::log_sink::LogSink;
use crate::output::Screen;
use crate::terminal::clean;
use crate::view::{Job, exit_of};

/// Print or follow a log.
pub(super) async fn run(client: &Client, args: &Logs, screen: &Screen) -> Result<u8, CliError> {
    let Some(selector) = args.job.as_deref() else {
        return lines::search(client, args, screen).await;
    };
    if args.files {
        return lines::files(client, selector, args, screen).await;
    }
    if let Some(directory) = &args.download {
        return download::run(client, selector, args, directory, screen).await;
    }
    if lines::wanted(args) {
        return lines::run(client, selector, args, screen).await;
    }
    if args.follow {
        return follow(client, selector, args, screen).await.map_err(as_unfinished);
    }
    let (_, job) = find_job(client, selector).await?;
    title(&job, args, screen);
    // One attempt for all pieces, even if another begins meanwhile.
    let attempt = args.attempt.or_else(|| last_attempt(&job));
    let (rank, file) = (args.rank.as_deref(), args.file.as_deref());
    let source = LogSource { client, job: &job.id, rank, file, attempt };
    let (from, to) = source.range(args.tail).await?;
    if let (true, Tail::Lines(lines)) = (from > 0, args.tail) {
        screen.hint(&format!("the last {lines} lines; --tail all shows everything"));
    }
    let mut sink = LogSink::new(screen, args.raw);
    source.copy(from, to, &mut sink).await?;
    if to == 0 {
        screen.hint(&format!("{} has written nothing yet", job.id));
    }
    Ok(exit::OK)
}

async fn follow(
    client: &Client,
    selector: &str,
    args: &Logs,
    screen: &Screen,
) -> Result<u8, CliError> {
    let (_, job) = find_job(client, selector).await?;
    title(&job, args, screen);
    let following = Following {
        client,
        job: &job,
        rank: args.rank.as_deref(),
        file: args.file.as_deref(),
        attempt: args.attempt,
        tail: args.tail,
        raw: args.raw,
    };
    let gone = || detached(std::slice::from_ref(&job.id), screen);
    if follow_log(&following, screen).await?.is_none() {
        return Ok(gone());
    }
    result(client, &job, args, screen).await
}

/// The exit code of a log that was followed to its end, from the coordinator's record.
async fn result(client: &Client, job: &Job, args: &Logs, screen: &Screen) -> Result<u8, CliError> {
    if let Some(number) = args.attempt {
        // The job may go on with another attempt, which is not what was asked for.
        let (_, job) = find_job(client, &job.id).await?;
        let attempt = job.attempt_list.iter().find(|a| a.number == u64::from(number));
        let outcome = attempt.and_then(|attempt| attempt.outcome.clone()).unwrap_or_default();
        screen.hint(&format!("{} attempt {number} {}", job.id, clean(&outcome)));
        return Ok(exit_of(&outcome));
    }
    let Some((_, job)) = end_of(client, &job.id, screen).await? else {
        return Ok(detached(std::slice::from_ref(&job.id), screen));
    };
    say_end(&job, screen);
    Ok(result_of(&job, false))
}

fn title(job: &Job, args: &Logs, screen: &Screen) {
    let whose = match &args.file {
        Some(file) => format!("file {}", clean(file)),
        None => whose(job, args),
    };
    let attempt = args.attempt.map(|attempt| format!(" attempt {attempt}")).unwrap_or_default();
    let node = job.driver_node.as_deref();
    let own = args.rank.is_none() && args.attempt.is_none() && args.file.is_none();
    let node = node.filter(|_| own).map(|node| format!(" on {}", clean(node))).unwrap_or_default();
    screen.hint(&format!("── {}{attempt} · {} · {whose}{node} ──", job.id, job.state));
}

fn whose(job: &Job, args: &Logs) -> String {
    match (&args.rank, job.launcher.as_str()) {
        (Some(rank), _) if rank == "head" => "output of the head".to_owned(),
        (Some(rank), _) => format!("output of rank {rank}"),
        (None, "ray") => "log of the Ray driver".to_owned(),
        (None, _) => "output of rank 0".to_owned(),
    }
}
