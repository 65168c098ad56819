//! `bundle`: everything about a job in one file, to hand to somebody who looks into its failure.
//!
//! Made of what the API tells this user. Values of secrets are taken out by agents and coordinator;
//! what the spec sets in the job's environment goes here.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::find_job;
use super::stack::{ranks_of, text_of};
use crate::archive::Archive;
use crate::args::Bundle;
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::output::Screen;
use crate::view::Job;

/// What stands for a value that is not in it.
const HIDDEN: &str = "***";
/// Attempts of one bundle, unless one is asked for.
const ATTEMPTS: usize = 3;
/// Ranks whose scenes are in it, per attempt: the first ones.
const RANKS: usize = 64;
/// Events of a bundle.
const EVENTS: usize = 1000;
/// Bytes of everything before it is compressed; what comes later is left out, and that is said.
const MAX_BYTES: usize = 256 << 20;

/// Write the file.
pub(super) async fn run(client: &Client, args: &Bundle, screen: &Screen) -> Result<u8, CliError> {
    let (mut value, job) = find_job(client, &args.job).await?;
    hide(&mut value);
    let mut bundle =
        Contents { root: job.id.chars().take(24).collect(), files: Vec::new(), left: MAX_BYTES };
    let made = jiff::Timestamp::now();
    bundle.add("job.json", &value);
    let about = json!({
        "made": made.to_string(),
        "made_by": format!("gangline {}", env!("CARGO_PKG_VERSION")),
        "coordinator": version(client).await,
    });
    bundle.add("about.json", &about);
    let page = [("object", format!("job {}", job.id)), ("page_size", EVENTS.to_string())];
    bundle.take("events.json", client.get(&["events"], &page).await);
    bundle.take("explain.json", client.get(&["jobs", &job.id, "explain"], &[]).await);
    bundle.take("metrics.json", client.get(&["jobs", &job.id, "metrics"], &[]).await);
    for node in &job.nodes {
        let name = format!("nodes/{}.json", file_name(node));
        bundle.take(&name, client.get(&["nodes", node], &[]).await);
    }
    for number in attempts(&job, args.attempt) {
        add_attempt(client, &job, number, &mut bundle).await;
    }
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{}.tar.gz", job.id)));
    let seconds = u64::try_from(made.as_second()).unwrap_or(0);
    let cannot = |error| CliError::io(format!("cannot write {}", path.display()), &error);
    // What is in it is the user's own. An older one stays until this one is whole.
    let fresh = path.with_extension("part");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh);
    let count = bundle.files.len();
    let mut archive = Archive::new(file.map_err(cannot)?, seconds);
    for (name, content) in &bundle.files {
        archive.add(name, content).map_err(cannot)?;
    }
    archive.finish().and_then(|mut file| file.flush()).map_err(cannot)?;
    std::fs::rename(&fresh, &path).map_err(cannot)?;
    if screen.is_json() {
        screen.json(&json!({"file": path.display().to_string(), "files": count}))?;
    } else {
        screen.line(&path.display().to_string())?;
        screen.hint(&format!("{count} files; values of secrets and of `env` are not in them"));
    }
    Ok(exit::OK)
}

/// The coordinator's version, from its description of itself.
async fn version(client: &Client) -> Option<String> {
    let document = client.get(&["openapi.json"], &[]).await.ok()?;
    Some(document.pointer("/info/version")?.as_str()?.to_owned())
}

async fn add_attempt(client: &Client, job: &Job, number: u64, bundle: &mut Contents) {
    let attempt = ("attempt", number.to_string());
    let logs = client.get(&["jobs", &job.id, "excerpts"], std::slice::from_ref(&attempt)).await;
    match logs {
        Ok(logs) => {
            for log in logs.get("logs").and_then(Value::as_array).into_iter().flatten() {
                let of = |field: &str| log.get(field).and_then(Value::as_str).unwrap_or_default();
                let (member, file) = (file_name(of("member")), file_name(of("file")));
                let name = format!("attempt-{number}/logs/{member}-{file}.log");
                bundle.add_text(&name, of("text"));
            }
        }
        Err(error) => bundle.take(&format!("attempt-{number}/logs.json"), Err(error)),
    }
    if job.cluster.is_some() {
        return; // its members are the cluster's
    }
    let mut members = ranks_of(job);
    if members.len() > RANKS {
        let more = members.len() - RANKS;
        let text =
            format!("the scenes of {more} more ranks; their logs are in full at `gangline logs`\n");
        bundle.add_text(&format!("attempt-{number}/left-out.txt"), &text);
    }
    members.truncate(RANKS);
    if job.launcher == "ray" {
        members.insert(0, "head".to_owned());
    }
    for hung in [false, true] {
        let which = if hung { "-hung" } else { "" };
        let mut scenes = Vec::new();
        for member in &members {
            let query = [("rank", member.clone()), attempt.clone(), ("hung", hung.to_string())];
            let name = format!("attempt-{number}/scene-{}{which}.json", file_name(member));
            match client.get(&["jobs", &job.id, "scene"], &query).await {
                // Nothing was kept: the attempt did not fail or hang, or the member had not begun.
                Err(error) if error.status() == Some(404) => {}
                answer => {
                    scenes.extend(answer.as_ref().ok().cloned());
                    bundle.take(&name, answer);
                }
            }
        }
        let stacks = text_of(&scenes);
        if !stacks.is_empty() {
            bundle.add_text(&format!("attempt-{number}/stacks{which}.txt"), &stacks);
        }
    }
}

fn attempts(job: &Job, wanted: Option<u64>) -> Vec<u64> {
    let all: Vec<u64> = job.attempt_list.iter().map(|attempt| attempt.number).collect();
    match wanted {
        Some(number) => vec![number],
        None => all.get(all.len().saturating_sub(ATTEMPTS)..).unwrap_or_default().to_vec(),
    }
}

/// Hides what the submitter alone may see.
fn hide(job: &mut Value) {
    let env = job.pointer_mut("/spec/env").and_then(Value::as_object_mut);
    for value in env.into_iter().flat_map(|env| env.values_mut()) {
        *value = Value::from(HIDDEN);
    }
    if let Some(command) = job.get_mut("submit_command") {
        *command = Value::from(HIDDEN);
    }
}

/// A name for a file: nothing of it is a path.
fn file_name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = text.chars().map(|c| if plain(c) { c } else { '_' }).take(40).collect();
    name.trim_start_matches('.').to_owned()
}

/// What a bundle is made of.
struct Contents {
    root: String,
    files: Vec<(String, Vec<u8>)>,
    left: usize,
}

impl Contents {
    fn add(&mut self, name: &str, value: &Value) {
        self.add_text(name, &format!("{value:#}\n"));
    }

    fn add_text(&mut self, name: &str, text: &str) {
        let text = if text.len() <= self.left { text } else { "left out: the bundle is full\n" };
        self.left = self.left.saturating_sub(text.len());
        let mut name = format!("{}/{name}", self.root);
        // Names that were cut may be the same.
        while self.files.iter().any(|(known, _)| *known == name) {
            name.push('_');
        }
        self.files.push((name, text.as_bytes().to_vec()));
    }

    /// Adds an answer, or why there is none.
    fn take(&mut self, name: &str, answer: Result<Value, CliError>) {
        self.add(name, &answer.unwrap_or_else(|error| error.to_json()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_environment_are_hidden() {
        let mut job = json!({
            "spec": {"env": {"A": "canary"}, "run": "x"}, "submit_command": "submit --env A=canary"
        });
        hide(&mut job);
        assert_eq!(
            job,
            json!({"spec": {"env": {"A": "***"}, "run": "x"}, "submit_command": "***"})
        );
    }

    #[test]
    fn names_are_no_paths() {
        assert_eq!(file_name("../etc/passwd"), "_etc_passwd");
        assert_eq!(file_name("gpu-1.rack"), "gpu-1.rack");
    }
}
