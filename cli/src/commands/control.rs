//! What is asked of jobs that have not ended: `stop`, `hold`, `release`, `requeue`, `set-priority`
//! and `extend`. Each is one request for each job, and may be sent again without harm.

use std::time::Duration;

use serde_json::{Value, json};

use super::attached::job_in;
use super::{confirm, expand, find_job};
use crate::args::{Extend, Hold, Jobs, Requeue, SetPriority, Stop};
use crate::client::{Client, Post, Repeat};
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::view::Job;

/// One request to each of several jobs.
struct Wanted<'a> {
    /// What stands after the job in the address.
    verb: &'static str,
    /// Asked before it is done to a job of another user; nothing for what can be taken back.
    question: Option<&'static str>,
    /// The body of the request for a job.
    body: &'a dyn Fn(&Job) -> Result<Value, CliError>,
}

/// Stop jobs.
pub(super) async fn stop(client: &Client, args: &Stop, screen: &Screen) -> Result<u8, CliError> {
    let body = |_: &Job| Ok(with_reason(args.reason.as_ref()));
    let question = (!args.yes).then_some("Stop it?");
    each(client, &args.jobs, &Wanted { verb: "stop", question, body: &body }, screen).await
}

/// Hold jobs that wait.
pub(super) async fn hold(client: &Client, args: &Hold, screen: &Screen) -> Result<u8, CliError> {
    let body = |_: &Job| Ok(with_reason(args.reason.as_ref()));
    each(client, &args.jobs, &Wanted { verb: "hold", question: None, body: &body }, screen).await
}

/// Release jobs that are held.
pub(super) async fn release(client: &Client, args: &Jobs, screen: &Screen) -> Result<u8, CliError> {
    let body = |_: &Job| Ok(json!({}));
    each(client, &args.jobs, &Wanted { verb: "release", question: None, body: &body }, screen).await
}

/// Send jobs back to the queue.
pub(super) async fn requeue(
    client: &Client,
    args: &Requeue,
    screen: &Screen,
) -> Result<u8, CliError> {
    let body = |job: &Job| {
        let mut body = with_reason(args.reason.as_ref());
        // Sent twice it must not stop the attempt after this one.
        if let Some(attempt) = job.attempts {
            body["attempt"] = attempt.into();
        }
        if !args.exclude_node.is_empty() {
            body["exclude_nodes"] = json!(args.exclude_node);
        }
        Ok(body)
    };
    let question = (!args.yes).then_some("Send it back to the queue?");
    each(client, &args.jobs, &Wanted { verb: "requeue", question, body: &body }, screen).await
}

/// Give jobs another priority.
pub(super) async fn set_priority(
    client: &Client,
    args: &SetPriority,
    screen: &Screen,
) -> Result<u8, CliError> {
    let body = |_: &Job| Ok(json!({ "priority": args.priority }));
    each(client, &args.jobs, &Wanted { verb: "priority", question: None, body: &body }, screen)
        .await
}

/// Give jobs more time.
pub(super) async fn extend(
    client: &Client,
    args: &Extend,
    screen: &Screen,
) -> Result<u8, CliError> {
    let body = |job: &Job| Ok(extended(job, args.by));
    each(client, &args.jobs, &Wanted { verb: "extend", question: None, body: &body }, screen).await
}

/// The whole time that a job then has: once more it is the same. Of a job without a limit the
/// coordinator says what is the matter: perhaps it has ended.
fn extended(job: &Job, by: Duration) -> Value {
    let whole = job.timeout_s.unwrap_or(0).saturating_add(by.as_secs());
    json!({ "timeout_s": whole.max(1) })
}

fn with_reason(reason: Option<&String>) -> Value {
    reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }))
}

/// Ask it of every job that it can be asked of; the exit code is that of the first failure.
async fn each(
    client: &Client,
    selectors: &[String],
    wanted: &Wanted<'_>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let selectors = expand(selectors)?;
    let several = selectors.len() > 1;
    let mut caller = Caller::default();
    let mut first_failure = None;
    for selector in selectors {
        match one(client, &selector, wanted, &mut caller, screen).await {
            Ok(answer) => report(&answer, screen)?,
            Err(error) if several => {
                // It is done to the others all the same.
                screen.error(&error);
                first_failure.get_or_insert(error.exit());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(first_failure.unwrap_or(exit::OK))
}

/// Who the token belongs to, asked at most once.
#[derive(Default)]
struct Caller(Option<String>);

impl Caller {
    async fn user(&mut self, client: &Client) -> Result<&str, CliError> {
        if self.0.is_none() {
            let answer = client.get(&["whoami"], &[]).await?;
            let user = answer.get("user").and_then(Value::as_str).unwrap_or_default();
            self.0 = Some(user.to_owned());
        }
        Ok(self.0.as_deref().unwrap_or_default())
    }
}

async fn one(
    client: &Client,
    selector: &str,
    wanted: &Wanted<'_>,
    caller: &mut Caller,
    screen: &Screen,
) -> Result<Value, CliError> {
    let (_, job) = find_job(client, selector).await?;
    if let Some(question) = wanted.question
        && !job.is_over()
        && caller.user(client).await? != job.user
    {
        let question = format!("{} {} belongs to {}. {question}", job.id, job.name, job.user);
        confirm(&question, false)?;
    }
    let post = Post {
        path: &["jobs", &job.id, wanted.verb],
        query: &[],
        body: (wanted.body)(&job)?.to_string(),
        command: None,
        // What is asked twice is done once.
        repeat: Repeat::Safe,
    };
    client.post(&post, screen).await
}

fn report(answer: &Value, screen: &Screen) -> Result<(), CliError> {
    let job = job_in(answer)?;
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(answer),
        Format::Name => screen.line(&job.id),
        Format::Table | Format::Wide => {
            let waits = job.state == "PENDING" && !job.reason.is_empty();
            let reason = if waits { format!("  {}", job.reason) } else { String::new() };
            screen.line(&format!("{}  {}{reason}", job.id, job.state))
        }
    }
}
