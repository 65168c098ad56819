//! `wait`: until jobs have ended.

use tokio::time::Instant;

use super::attached::{as_unfinished, detached, or_ctrl_c, result_of};
use super::{expand, find_job};
use crate::args::Wait;
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::follow::until_over;
use crate::output::{Format, Screen};
use crate::view::{self, Job};

/// Wait for all jobs; the exit code is that of the first one, in the order of the command line,
/// that did not succeed.
pub(super) async fn run(client: &Client, args: &Wait, screen: &Screen) -> Result<u8, CliError> {
    // The time runs from here, not from each job on.
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut result = exit::OK;
    let mut ids = Vec::new();
    for selector in expand(&args.jobs)? {
        match find_job(client, &selector).await {
            Ok((_, job)) => ids.push(job.id),
            Err(error) if error.exit() == exit::JOB_NOT_FOUND => {
                screen.error(&error);
                ids.push(String::new());
            }
            Err(error) => return Err(error),
        }
    }
    let work = async {
        for id in &ids {
            let code = match id.as_str() {
                "" => exit::JOB_NOT_FOUND,
                id => wait_for(client, id, deadline, screen).await?,
            };
            if result == exit::OK {
                result = code;
            }
        }
        Ok(result)
    };
    let done = or_ctrl_c(work).await.map_err(as_unfinished)?;
    ids.retain(|id| !id.is_empty());
    Ok(done.unwrap_or_else(|| detached(&ids, screen)))
}

async fn wait_for(
    client: &Client,
    id: &str,
    deadline: Option<Instant>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let Some(value) = until_over(client, id, deadline, screen).await? else {
        screen.warn(&format!("{id} has not ended in time; it goes on"));
        return Ok(exit::JOB_NOT_FINISHED);
    };
    let job: Job = view::read(&value)?;
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&value)?,
        Format::Name => screen.line(&job.id)?,
        Format::Table | Format::Wide => {
            let line = format!("{}  {}  {}", job.id, job.state, job.reason);
            screen.line(line.trim_end())?;
        }
    }
    Ok(result_of(&job, false))
}
