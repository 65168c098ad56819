//! Tokens and whose they are.

use std::time::Duration;

use serde_json::{Value, json};

use super::{check_selector, count, items, or_dash};
use crate::client::{Client, Post, Repeat};
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;

const TOKEN_COLUMNS: &[&str] =
    &["NAME", "KIND", "USER", "PROJECT", "ROLE", "USES LEFT", "CREATED", "EXPIRES"];

/// Print who the token belongs to.
pub(super) async fn whoami(client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let answer = client.get(&["whoami"], &[]).await?;
    let text = |key: &str| clean(answer.get(key).and_then(Value::as_str).unwrap_or("-"));
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&answer)?,
        Format::Name => screen.line(&text("user"))?,
        Format::Table | Format::Wide => {
            let (user, project, role) = (text("user"), text("project"), text("role"));
            screen.line(&format!("{user}, project {project}, role {role}"))?;
        }
    }
    Ok(exit::OK)
}

/// Make a join token. Stdout gets the token alone, so that a script can take it.
pub(super) async fn join_token(
    client: &Client,
    uses: u32,
    ttl: Duration,
    pool: Option<String>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let body = json!({ "kind": "join", "uses": uses, "ttl_s": ttl.as_secs(), "pool": pool });
    let answer = create(client, &body, screen).await?;
    // A node does not reach this machine by the name of its loopback.
    let (host, note) = match client.host() {
        "localhost" | "127.0.0.1" | "[::1]" => ("HOST", "\n  HOST is this machine as nodes see it"),
        host => (host, ""),
    };
    screen.hint(&format!(
        "for {uses} agent(s){}; put it in a file on the node and run\n  \
         gangline-agent run --join quic://{}:8265 --token-file FILE{note}",
        expiry(&answer),
        clean(host),
    ));
    Ok(exit::OK)
}

/// An API token to be made.
pub(super) struct NewToken {
    pub name: String,
    pub user: String,
    pub project: String,
    pub role: String,
    pub ttl: Option<Duration>,
}

/// Make an API token.
pub(super) async fn api_token(
    client: &Client,
    token: &NewToken,
    screen: &Screen,
) -> Result<u8, CliError> {
    let body = json!({
        "kind": "api", "name": token.name, "user": token.user, "project": token.project,
        "role": token.role, "ttl_s": token.ttl.map(|ttl| ttl.as_secs()),
    });
    let answer = create(client, &body, screen).await?;
    screen.hint(&format!(
        "for {}{}; it is not shown again: keep it in a file and give that with --token-file",
        clean(&token.user),
        expiry(&answer),
    ));
    Ok(exit::OK)
}

/// List tokens.
pub(super) async fn list_tokens(client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let answer = client.get(&["tokens"], &[]).await?;
    let tokens = items(&answer, "tokens");
    let text = |token: &Value, key: &str| token.get(key).and_then(Value::as_str).map(str::to_owned);
    let time =
        |token: &Value, key: &str| text(token, key).map(|time| crate::durations::local(&time));
    let name =
        |token: &Value| text(token, "name").or_else(|| text(token, "id")).unwrap_or_default();
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => tokens.iter().try_for_each(|token| screen.json(token))?,
        Format::Name => tokens.iter().try_for_each(|token| screen.line(&clean(&name(token))))?,
        Format::Table | Format::Wide => {
            let mut table = Table::new(TOKEN_COLUMNS, screen.width());
            for token in tokens {
                let expired = token.get("expired").and_then(Value::as_bool) == Some(true);
                let uses = token.get("uses_left").and_then(Value::as_u64);
                let expires = time(token, "expires").map_or_else(
                    || "never".to_owned(),
                    |time| if expired { format!("{time} (expired)") } else { time },
                );
                table.row(vec![
                    name(token),
                    text(token, "kind").unwrap_or_default(),
                    or_dash(text(token, "user")),
                    or_dash(text(token, "project")),
                    or_dash(text(token, "role")),
                    count(uses),
                    or_dash(time(token, "created")),
                    expires,
                ]);
            }
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

/// Delete a token.
pub(super) async fn delete_token(
    client: &Client,
    name: &str,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("name of a token", name)?;
    client.delete(&["tokens", name], &[]).await?;
    screen.hint(&format!("{} is deleted", clean(name)));
    Ok(exit::OK)
}

async fn create(client: &Client, body: &Value, screen: &Screen) -> Result<Value, CliError> {
    let post = Post {
        path: &["tokens"],
        query: &[],
        body: body.to_string(),
        command: None,
        // Sent twice it could make two tokens, of which nobody would know one.
        repeat: Repeat::Never,
    };
    let answer = client.post(&post, screen).await?;
    let token = answer.get("token").and_then(Value::as_str).ok_or_else(|| {
        CliError::new(exit::ERROR, code::BAD_ANSWER, "the coordinator's answer has no token")
            .hint("the versions may not fit")
    })?;
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&answer)?,
        Format::Name | Format::Table | Format::Wide => {
            screen.line(token)?;
        }
    }
    Ok(answer)
}

fn expiry(answer: &Value) -> String {
    let expires = answer.get("expires").and_then(Value::as_str);
    expires
        .map(|time| format!(", until {}", clean(&crate::durations::local(time))))
        .unwrap_or_default()
}
