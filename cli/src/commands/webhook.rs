//! `webhook`: who is told of what has happened.

use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};

use super::{check_selector, hidden, items, or_dash};
use crate::args::{Scope, WebhookCommand};
use crate::client::{Client, Post, Repeat};
use crate::durations::local;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;

/// Longest address and key, in bytes.
const MAX_TEXT: usize = 2048;

pub(super) async fn run(
    client: &Client,
    command: WebhookCommand,
    screen: &Screen,
) -> Result<u8, CliError> {
    match command {
        WebhookCommand::Ls { scope } => list(client, &scope, screen).await,
        WebhookCommand::Add { name, url_file, kind, key_file, events, scope } => {
            let key = key_file.as_deref().map(|file| text_of(Some(file), "key", screen));
            let mut body = json!({ "kind": kind, "events": events });
            body["url"] = text_of(url_file.as_deref(), "address", screen)?.into();
            if let Some(key) = key.transpose()? {
                body["key"] = key.into();
            }
            add(client, &name, &scope, &body, screen).await
        }
        WebhookCommand::Rm { name, scope } => {
            check_selector("name of a webhook", &name)?;
            client.delete(&["webhooks", &name], &query(&scope)).await?;
            screen.hint(&format!("{} is deleted", clean(&name)));
            Ok(exit::OK)
        }
        WebhookCommand::Test { name, scope } => test(client, &name, &scope, screen).await,
        WebhookCommand::Dead { name, scope } => dead(client, &name, &scope, screen).await,
    }
}

fn query(scope: &Scope) -> Vec<(&'static str, String)> {
    let project = scope.project.clone().map(|project| ("project", project));
    project.into_iter().chain(scope.fleet.then(|| ("fleet", "true".to_owned()))).collect()
}

/// The same as words of a command, each behind a space.
fn flags(scope: &Scope) -> String {
    let project = scope.project.iter().map(|project| format!(" --project {}", clean(project)));
    project.chain(scope.fleet.then(|| " --fleet".to_owned())).collect()
}

/// A line of a file, of stdin, or of the user at the terminal.
fn text_of(file: Option<&Path>, thing: &'static str, screen: &Screen) -> Result<String, CliError> {
    let wanted = hidden::Wanted { thing, most: MAX_TEXT, code: code::VALUE };
    let text = match file {
        Some(path) => {
            let cannot = |error| CliError::io(format!("cannot read {}", path.display()), &error);
            hidden::read_from(File::open(path).map_err(cannot)?, &wanted)?
        }
        None => hidden::read(&wanted, screen)?,
    };
    let text = text.trim();
    if text.is_empty() {
        return Err(CliError::new(exit::INVALID, code::VALUE, format!("there is no {thing}"))
            .hint("give it in a file, or on stdin"));
    }
    Ok(text.to_owned())
}

async fn add(
    client: &Client,
    name: &str,
    scope: &Scope,
    body: &Value,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("name of a webhook", name)?;
    let answer = client.put_json(&["webhooks", name], &query(scope), body.to_string()).await?;
    if screen.is_json() {
        screen.json(&answer)?;
    } else if let Some(key) = answer.get("key").and_then(Value::as_str) {
        screen.line(&clean(key))?;
        screen.hint("bodies are signed with this key; it is not shown again");
    }
    screen.hint(&format!("try it: gangline webhook test {}{}", clean(name), flags(scope)));
    Ok(exit::OK)
}

async fn test(client: &Client, name: &str, scope: &Scope, screen: &Screen) -> Result<u8, CliError> {
    check_selector("name of a webhook", name)?;
    let post = Post {
        path: &["webhooks", name, "test"],
        query: &query(scope),
        body: "{}".to_owned(),
        command: None,
        // Two tests are two events, which hurts nobody.
        repeat: Repeat::Safe,
    };
    let answer = client.post(&post, screen).await?;
    if screen.is_json() {
        screen.json(&answer)?;
    }
    let list = format!("gangline webhook ls{}", flags(scope));
    screen.hint(&format!("an event is on its way; `{list}` shows whether it has arrived"));
    Ok(exit::OK)
}

async fn list(client: &Client, scope: &Scope, screen: &Screen) -> Result<u8, CliError> {
    const TITLES: &[&str] =
        &["NAME", "KIND", "TO", "EVENTS", "DELIVERED", "BEHIND", "DEAD", "MISSED", "SET BY"];
    let answer = client.get(&["webhooks"], &query(scope)).await?;
    let webhooks = items(&answer, "webhooks");
    let text = |row: &Value, key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |row: &Value, key: &str| or_dash(row.get(key).map(Value::to_string));
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => webhooks.iter().try_for_each(|row| screen.json(row))?,
        Format::Name => webhooks
            .iter()
            .try_for_each(|row| screen.line(&clean(&text(row, "name").unwrap_or_default())))?,
        Format::Table | Format::Wide => {
            let mut table = Table::new(TITLES, screen.width());
            for row in webhooks {
                let events = items(row, "events").iter().filter_map(Value::as_str);
                let events = events.collect::<Vec<_>>().join(",");
                table.row(vec![
                    or_dash(text(row, "name")),
                    or_dash(text(row, "kind")),
                    or_dash(text(row, "to")),
                    if events.is_empty() { "all".to_owned() } else { events },
                    number(row, "delivered"),
                    number(row, "behind"),
                    number(row, "dead"),
                    number(row, "missed"),
                    or_dash(text(row, "set_by")),
                ]);
            }
            screen.print(&table.take())?;
            webhooks.iter().filter_map(failing).for_each(|line| screen.hint(&line));
        }
    }
    Ok(exit::OK)
}

/// "team has failed 12 times since 2026-11-24 15:00:00 +00:00: no answer in time".
fn failing(row: &Value) -> Option<String> {
    let of = row.get("failing")?;
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let (name, attempts) = (text(row, "name")?, of.get("attempts")?.as_u64()?);
    let times = if attempts == 1 { "once" } else { &format!("{attempts} times") };
    let (since, cause) = (local(&text(of, "since")?), text(of, "cause")?);
    Some(format!("{} has failed {times} since {since}: {}", clean(&name), clean(&cause)))
}

async fn dead(client: &Client, name: &str, scope: &Scope, screen: &Screen) -> Result<u8, CliError> {
    const TITLES: &[&str] = &["EVENT", "AT", "KIND", "OBJECT", "ATTEMPTS", "CAUSE"];
    check_selector("name of a webhook", name)?;
    let answer = client.get(&["webhooks", name, "dead"], &query(scope)).await?;
    show(&answer, "dead", TITLES, &["id", "at", "kind", "object", "attempts", "cause"], screen)
}

/// A list whose columns are fields; the last column is a sentence.
pub(super) fn show(
    answer: &Value,
    list: &str,
    titles: &'static [&'static str],
    fields: &[&str],
    screen: &Screen,
) -> Result<u8, CliError> {
    let rows = items(answer, list);
    let cell = |row: &Value, field: &str| match row.get(field) {
        Some(Value::String(text)) if field == "at" => local(text),
        Some(Value::String(text)) => or_dash(Some(text.clone())),
        Some(Value::Null) | None => or_dash(None),
        Some(other) => other.to_string(),
    };
    match screen.format() {
        Format::Json => screen.json(answer)?,
        Format::Jsonl => rows.iter().try_for_each(|row| screen.json(row))?,
        Format::Name => rows
            .iter()
            .filter_map(|row| row.get("id").and_then(Value::as_str))
            .try_for_each(|id| screen.line(&clean(id)))?,
        Format::Table | Format::Wide => {
            let rows = rows.iter().map(|row| fields.iter().map(|field| cell(row, field)).collect());
            let mut table = Table::new(titles, screen.width()).cut_last().with_rows(rows);
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_that_fails_says_why() {
        let row = json!({ "name": "team", "failing": {
            "attempts": 12, "since": "soon", "cause": "no answer in time" } });
        let said = failing(&row);
        assert_eq!(said.as_deref(), Some("team has failed 12 times since soon: no answer in time"));
        assert_eq!(failing(&json!({ "name": "team", "failing": null })), None);
    }

    #[test]
    fn what_is_to_be_tried_names_the_same_webhook() {
        for (project, fleet, words) in
            [(None, false, ""), (None, true, " --fleet"), (Some("p1"), false, " --project p1")]
        {
            let scope = Scope { project: project.map(str::to_owned), fleet };
            assert_eq!(flags(&scope), words);
        }
    }
}
