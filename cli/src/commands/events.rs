//! `events`: what has happened, newest first, or, with `-f`, oldest first and then as it comes, through
//! lost connections and restarts of the coordinator.

use serde_json::Value;

use super::{check_selector, find_job, items, one_job, or_dash, webhook};
use crate::args::Events;
use crate::client::Client;
use crate::durations::local;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::pauses::Pauses;
use crate::sse::SseParser;
use crate::terminal::clean;

pub(super) async fn run(client: &Client, args: &Events, screen: &Screen) -> Result<u8, CliError> {
    const TITLES: &[&str] = &["AT", "KIND", "OBJECT", "PROJECT", "REASON"];
    let mut wanted = Vec::new();
    wanted.extend(args.kind.clone().map(|kind| ("kind", kind)));
    wanted.extend(object(client, args).await?.map(|object| ("object", object)));
    let mut query = wanted.clone();
    query.push(("page_size", args.count.to_string()));
    let answer = client.get(&["events"], &query).await?;
    if !args.follow {
        let fields = ["at", "kind", "object", "project", "reason"];
        return webhook::show(&answer, "events", TITLES, &fields, screen);
    }
    let page = items(&answer, "events");
    page.iter().rev().try_for_each(|event| print(event, screen))?;
    // With none so far it begins with whatever came since.
    follow(client, &wanted, page.first().and_then(sequence).unwrap_or(0), screen).await
}

/// What the events are to be about, in the words of the API.
async fn object(client: &Client, args: &Events) -> Result<Option<String>, CliError> {
    if let Some(selector) = &args.job {
        let selector = one_job(selector)?;
        // By its id, so that a stream that begins anew stays with the job. Events of a job that was
        // deleted are still there: the coordinator knows.
        let found = find_job(client, &selector).await;
        let id = match found {
            Ok((_, job)) => job.id,
            Err(error) if error.status() == Some(404) => selector,
            Err(error) => return Err(error),
        };
        return Ok(Some(format!("job {id}")));
    }
    let Some(node) = &args.node else { return Ok(None) };
    check_selector("node", node)?;
    Ok(Some(format!("node {node}")))
}

fn sequence(event: &Value) -> Option<u64> {
    event.get("sequence").and_then(Value::as_u64)
}

/// One line for each, whichever the form.
fn print(event: &Value, screen: &Screen) -> Result<(), CliError> {
    let text = |key: &str| event.get(key).and_then(Value::as_str).map(str::to_owned);
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json_line(event),
        Format::Name => screen.line(&clean(&text("id").unwrap_or_default())),
        Format::Table | Format::Wide => screen.line(&format!(
            "{}  {:<20}  {:<16}  {}",
            or_dash(text("at").map(|at| local(&at))),
            or_dash(text("kind")),
            or_dash(text("object")),
            or_dash(text("reason"))
        )),
    }
}

/// Until the user ends it, or the coordinator refuses.
async fn follow(
    client: &Client,
    wanted: &[(&str, String)],
    mut after: u64,
    screen: &Screen,
) -> Result<u8, CliError> {
    let (mut pauses, mut told) = (Pauses::default(), false);
    loop {
        let before = after;
        match listen(client, wanted, &mut after, screen).await {
            Ok(()) => {}
            Err(error) if error.is_transport() || error.status() == Some(503) => {
                if !told {
                    screen.hint(&format!("{error}; trying again"));
                }
                told = true;
            }
            Err(error) => return Err(error),
        }
        if after != before {
            (pauses, told) = (Pauses::default(), false);
        }
        pauses.pause().await;
    }
}

/// One connection; `after` is the sequence of the last event that was printed.
async fn listen(
    client: &Client,
    wanted: &[(&str, String)],
    after: &mut u64,
    screen: &Screen,
) -> Result<(), CliError> {
    let nonsense = |why: &str| {
        CliError::new(exit::ERROR, code::BAD_ANSWER, "cannot read the stream of events").why(why)
    };
    let mut query = wanted.to_vec();
    query.push(("after", after.to_string()));
    let mut response = client.stream(&["events", "stream"], &query).await?;
    let mut parser = SseParser::default();
    loop {
        let chunk = response.chunk().await.map_err(|error| client.unreachable(&error))?;
        let Some(chunk) = chunk else { return Ok(()) };
        let events = parser.push(&chunk).map_err(|_| nonsense("an event is too long"))?;
        for event in events {
            let event: Value = serde_json::from_str(&event.data)
                .map_err(|error| nonsense(&format!("an event is no JSON: {error}")))?;
            print(&event, screen)?;
            *after = sequence(&event).ok_or_else(|| nonsense("an event has no sequence"))?;
        }
    }
}
