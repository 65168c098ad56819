//! `stop`: ask for the end of jobs.

use serde_json::{Value, json};

use super::attached::job_in;
use super::{confirm, expand, find_job};
use crate::args::Stop;
use crate::client::{Client, Post, Repeat};
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};

/// Stop every job that can be stopped; the exit code is that of the first failure.
pub(super) async fn run(client: &Client, args: &Stop, screen: &Screen) -> Result<u8, CliError> {
    let selectors = expand(&args.jobs)?;
    let several = selectors.len() > 1;
    let mut caller = Caller::default();
    let mut first_failure = None;
    for selector in selectors {
        match stop(client, &selector, args, &mut caller, screen).await {
            Ok(answer) => report(&answer, screen)?,
            Err(error) if several => {
                // The others are stopped all the same.
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

async fn stop(
    client: &Client,
    selector: &str,
    args: &Stop,
    caller: &mut Caller,
    screen: &Screen,
) -> Result<Value, CliError> {
    let (_, job) = find_job(client, selector).await?;
    if !args.yes && !job.is_over() && caller.user(client).await? != job.user {
        let question = format!("{} {} belongs to {}. Stop it?", job.id, job.name, job.user);
        confirm(&question, false)?;
    }
    let body = args.reason.as_ref().map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
    let post = Post {
        path: &["jobs", &job.id, "stop"],
        query: &[],
        body: body.to_string(),
        command: None,
        // A job that is asked to stop twice stops once.
        repeat: Repeat::Safe,
    };
    client.post(&post, screen).await
}

fn report(answer: &Value, screen: &Screen) -> Result<(), CliError> {
    let job = job_in(answer)?;
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(answer),
        Format::Name => screen.line(&job.id),
        Format::Table | Format::Wide => screen.line(&format!("{}  {}", job.id, job.state)),
    }
}
