//! Tokens and whose they are.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, Post, Repeat};
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::terminal::clean;

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
    screen.hint(&format!(
        "for {uses} agent(s){}; put it in a file on the node and run\n  \
         gangline-agent run --join quic://{}:8265 --token-file FILE",
        expiry(&answer),
        clean(client.host()),
    ));
    Ok(exit::OK)
}

/// Make an API token.
pub(super) async fn api_token(
    client: &Client,
    user: &str,
    project: &str,
    role: &str,
    name: &str,
    screen: &Screen,
) -> Result<u8, CliError> {
    let body =
        json!({ "kind": "api", "name": name, "user": user, "project": project, "role": role });
    let answer = create(client, &body, screen).await?;
    screen.hint(&format!(
        "for {}{}; it is not shown again: keep it in a file and give that with --token-file",
        clean(user),
        expiry(&answer),
    ));
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
