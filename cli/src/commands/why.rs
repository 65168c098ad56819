//! `why`: why a job failed, and what was done about it.

use gangline_diagnosis::Diagnosis;
use serde::Deserialize;
use serde_json::Value;

use super::{diagnose, one_job};
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::terminal::clean;

#[derive(Debug, Deserialize)]
struct Why {
    job: String,
    name: String,
    state: String,
    reason: String,
    attempt: Option<u32>,
    outcome: Option<String>,
    #[serde(default)]
    cause: Option<String>,
    diagnosis: Option<Value>,
    done: String,
    #[serde(default)]
    stalled: Option<String>,
    #[serde(default)]
    stragglers: Vec<String>,
    attempts: Vec<End>,
}

#[derive(Debug, Deserialize)]
struct End {
    attempt: u32,
    outcome: Option<String>,
    summary: String,
    done: String,
}

/// Ask, and print the answer.
pub(super) async fn run(
    client: &Client,
    job: &str,
    attempt: Option<u32>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let job = one_job(job)?;
    let query: Vec<_> = attempt.iter().map(|number| ("attempt", number.to_string())).collect();
    let answer = client.get(&["jobs", &job, "why"], &query).await?;
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&answer)?,
        Format::Name => {
            let category = answer.pointer("/diagnosis/category").and_then(Value::as_str);
            screen.line(&clean(category.unwrap_or("none")))?;
        }
        Format::Table | Format::Wide => screen.print(&page(&answer)?)?,
    }
    Ok(exit::OK)
}

fn page(answer: &Value) -> Result<String, CliError> {
    let why: Why = serde_json::from_value(answer.clone()).map_err(|error| unreadable(&error))?;
    let mut out = format!("{} {}", clean(&why.job), clean(&why.name));
    match (why.attempt, &why.outcome) {
        (None, _) => out.push_str(&format!(" has not started: {}\n", clean(&why.state))),
        (Some(attempt), None) => {
            out.push_str(&format!(" attempt {attempt} has not ended: {}\n", clean(&why.state)));
        }
        (Some(attempt), Some(outcome)) => {
            let now = format!("the job is {}", clean(&why.state));
            out.push_str(&format!(" attempt {attempt} {}; {now}\n", clean(outcome)));
        }
    }
    match &why.diagnosis {
        None => out.push_str(&format!("{:<11} {}\n", "Reason", clean(&why.reason))),
        Some(found) => {
            // The last lines of a rank follow; the evidence says more.
            if let Some(said) = why.cause.as_deref().and_then(|cause| cause.lines().next()) {
                out.push_str(&format!("{:<11} {}\n", "Said", clean(said)));
            }
            let diagnosis: Diagnosis =
                serde_json::from_value(found.clone()).map_err(|error| unreadable(&error))?;
            out.push_str(&diagnose::page(&diagnosis, &diagnose::rules()?, false));
        }
    }
    let now = why.stalled.iter().map(|text| ("Stalled", text));
    for (label, text) in now.chain(why.stragglers.iter().map(|text| ("Slow", text))) {
        out.push_str(&format!("{label:<11} {}\n", clean(text)));
    }
    if !why.done.is_empty() {
        out.push_str(&format!("{:<11} {}\n", "Done", clean(&why.done)));
    }
    if why.attempts.len() > 1 {
        for (index, end) in why.attempts.iter().enumerate() {
            let label = if index == 0 { "Attempts" } else { "" };
            out.push_str(&format!("{label:<11} {}\n", line(end)));
        }
    }
    Ok(out)
}

/// `2 FAILED  ray_runtime (node_dead): ...; tried again`.
fn line(end: &End) -> String {
    let outcome = end.outcome.as_deref().unwrap_or("has not ended");
    let done = if end.done.is_empty() { String::new() } else { format!("; {}", end.done) };
    let colon = if end.summary.is_empty() { "" } else { ": " };
    clean(&format!("{} {outcome}{colon}{}{done}", end.attempt, end.summary))
}

fn unreadable(error: &serde_json::Error) -> CliError {
    CliError::new(exit::ERROR, crate::errors::code::INTERNAL, "the answer cannot be read")
        .why(error.to_string())
        .hint("the coordinator may be of another version: -o json prints what it said")
}
