//! Sending code: what the coordinator says is missing, many chunks in one request, then the list.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use gangline_spec::{CodeSpec, JobSpec};
use gangline_tree::{Hash, Kind, batch};
use reqwest::Method;
use serde_json::Value;

use super::{Local, Snapshot, cannot_read, refused};
use crate::client::Client;
use crate::commands::bytes;
use crate::errors::{CliError, code, exit};
use crate::output::Screen;

/// Tries of one request, and the wait before the second; each further wait is twice as long.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Makes sure that the coordinator has the code, and lets `spec` name it there.
///
/// # Errors
/// The code changed while it was read, or the coordinator refuses it.
pub async fn send(
    client: &Client,
    spec: &mut JobSpec,
    local: Local,
    screen: &Screen,
) -> Result<(), CliError> {
    let query: Vec<(&str, String)> =
        spec.project.iter().map(|project| ("project", project.clone())).collect();
    let upload = Upload { client, query };
    let (name, commit) = match local {
        Local::Directory(snapshot) => {
            let sent = upload.directory(&snapshot).await?;
            screen.hint(&format!("  code  {}; {}", snapshot.size_text(), sent.text()));
            (snapshot.tree.name().to_string(), snapshot.commit)
        }
        Local::Archive { path, bytes: size } => {
            let name = upload.archive(&path).await?;
            screen.hint(&format!("  code  {}; sent {}", path.display(), bytes(size)));
            (name, None)
        }
    };
    spec.code = Some(CodeSpec::of_tree(name, commit));
    Ok(())
}

/// What of a directory was sent.
struct Sent {
    bytes: u64,
    /// The chunks that were not sent: the coordinator had them.
    rest: HashSet<Hash>,
}

impl Sent {
    /// Nothing of it yet.
    fn nothing_of(snapshot: &Snapshot) -> Sent {
        Sent { bytes: 0, rest: snapshot.tree.chunks().map(|chunk| chunk.hash).collect() }
    }

    /// For people.
    fn text(&self) -> String {
        let rest = match (self.bytes, self.rest.is_empty()) {
            (0, _) => " (nothing to send)",
            (_, true) => "",
            (_, false) => " (the rest was there)",
        };
        format!("sent {}{rest}", bytes(self.bytes))
    }
}

struct Upload<'a> {
    client: &'a Client,
    query: Vec<(&'a str, String)>,
}

impl Upload<'_> {
    /// Sends a directory, or what of it the coordinator does not have.
    async fn directory(&self, snapshot: &Snapshot) -> Result<Sent, CliError> {
        let name = snapshot.tree.name().to_string();
        let path = ["code", "trees", &name];
        let mut sent = Sent::nothing_of(snapshot);
        match self.client.get(&path, &self.query).await {
            Ok(_) => return Ok(sent),
            Err(error) if error.status() == Some(404) => {}
            Err(error) => return Err(error),
        }
        let list = snapshot.tree.to_bytes();
        if let Some(new) = self.since_last(snapshot).await? {
            self.chunks(snapshot, new, &mut sent).await?;
            sent.bytes += list.len() as u64;
            match self.send(Method::PUT, &path, list.clone()).await {
                Err(error) if error.status() == Some(409) => {}
                done => return done.map(|_| sent),
            }
        }
        let answer = self.send(Method::POST, &["code", "missing"], list.clone()).await?;
        self.chunks(snapshot, missing(&answer)?, &mut sent).await?;
        sent.bytes += 2 * list.len() as u64;
        self.send(Method::PUT, &path, list).await?;
        Ok(sent)
    }

    /// The chunks that are new since the directory was last read, when the coordinator has what it
    /// was then: this spares it the question, which is as long as the list.
    async fn since_last(&self, snapshot: &Snapshot) -> Result<Option<HashSet<Hash>>, CliError> {
        let Some(before) = &snapshot.before else { return Ok(None) };
        let name = before.name().to_string();
        match self.client.get(&["code", "trees", &name], &self.query).await {
            Ok(_) => {}
            Err(error) if error.status() == Some(404) => return Ok(None),
            Err(error) => return Err(error),
        }
        let had: HashSet<Hash> = before.chunks().map(|chunk| chunk.hash).collect();
        let new = snapshot.tree.chunks().map(|chunk| chunk.hash).filter(|hash| !had.contains(hash));
        Ok(Some(new.collect()))
    }

    /// Sends these chunks.
    async fn chunks(
        &self,
        snapshot: &Snapshot,
        wanted: HashSet<Hash>,
        sent: &mut Sent,
    ) -> Result<(), CliError> {
        sent.rest.retain(|hash| !wanted.contains(hash));
        for body in Bodies::of(snapshot, wanted) {
            let body = body?;
            sent.bytes += body.len() as u64;
            self.send(Method::PUT, &["code", "chunks"], body).await?;
        }
        Ok(())
    }

    async fn archive(&self, path: &Path) -> Result<String, CliError> {
        let answer = self.client.post_file(&["code", "zip"], &self.query, path).await?;
        let name = answer.get("tree").and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| bad_answer("it does not name the code"))
    }

    /// Sends a body, which changes nothing when it arrives twice.
    async fn send(&self, method: Method, path: &[&str], body: Vec<u8>) -> Result<Value, CliError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            let sent = self.client.send_bytes(method.clone(), path, &self.query, body.clone());
            match sent.await {
                Err(error) if error.is_transport() || error.status() == Some(503) => {}
                done => return done,
            }
            tokio::time::sleep(crate::pauses::jittered(wait)).await;
            wait *= 2;
        }
        self.client.send_bytes(method, path, &self.query, body).await
    }
}

fn bad_answer(why: &str) -> CliError {
    CliError::new(
        exit::ERROR,
        code::BAD_ANSWER,
        "the coordinator's answer about code is not usable",
    )
    .why(why)
    .hint("its version may not fit this one")
}

fn missing(answer: &Value) -> Result<HashSet<Hash>, CliError> {
    let names = answer.get("missing").and_then(Value::as_array);
    let names = names.ok_or_else(|| bad_answer("it does not say what is missing"))?;
    let hash = |name: &Value| name.as_str().and_then(Hash::from_hex);
    let hashes: Option<HashSet<Hash>> = names.iter().map(hash).collect();
    hashes.ok_or_else(|| bad_answer("it names a chunk that is none"))
}

/// Reads the missing chunks again, as many together as one request takes.
struct Bodies<'a> {
    snapshot: &'a Snapshot,
    missing: HashSet<Hash>,
    /// Entry, chunk in it, and the chunk's offset in the file.
    at: (usize, usize, u64),
    file: Option<File>,
}

impl<'a> Bodies<'a> {
    fn of(snapshot: &'a Snapshot, missing: HashSet<Hash>) -> Bodies<'a> {
        Bodies { snapshot, missing, at: (0, 0, 0), file: None }
    }

    fn next_body(&mut self) -> Result<Vec<u8>, CliError> {
        let mut body = Vec::new();
        while let Some(entry) = self.snapshot.tree.entries().get(self.at.0) {
            let (index, number, offset) = self.at;
            let chunks = match &entry.kind {
                Kind::File { chunks, .. } => chunks.as_slice(),
                Kind::Symlink { .. } => &[],
            };
            let Some(chunk) = chunks.get(number) else {
                self.at = (index + 1, 0, 0);
                self.file = None;
                continue;
            };
            if self.missing.contains(&chunk.hash) {
                let path = self.snapshot.root.join(&entry.path);
                let mut bytes = vec![0; chunk.bytes as usize];
                let file = match self.file.take() {
                    Some(file) => Ok(file),
                    None => File::open(&path),
                };
                let file = file.map_err(|error| cannot_read(&path, &error))?;
                let read = file.read_exact_at(&mut bytes, offset);
                if read.is_err() || Hash::of(&bytes) != chunk.hash {
                    return Err(refused(format!("{} changed while it was sent", path.display()))
                        .hint("submit again when nothing writes to the code"));
                }
                self.file = Some(file);
                if !batch::push(&mut body, &bytes) {
                    return Ok(body);
                }
                self.missing.remove(&chunk.hash);
            }
            self.at = (index, number + 1, offset + u64::from(chunk.bytes));
        }
        Ok(body)
    }
}

impl Iterator for Bodies<'_> {
    type Item = Result<Vec<u8>, CliError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_body() {
            Ok(body) if body.is_empty() => None,
            body => Some(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Wanted;
    use super::*;

    #[test]
    fn only_what_was_there_is_said_to_have_been_there() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "one").unwrap();
        let wanted = Wanted { include: &[], max_bytes: 1 << 20 };
        let snapshot = Snapshot::of(root.path(), &wanted, None, None).unwrap();
        let mut sent = Sent::nothing_of(&snapshot);
        assert_eq!(sent.text(), "sent 0 B (nothing to send)");
        sent.bytes = 1024;
        assert_eq!(sent.text(), "sent 1.0 KiB (the rest was there)");
        sent.rest.clear();
        assert_eq!(sent.text(), "sent 1.0 KiB");
    }

    #[test]
    fn the_missing_chunks_are_sent_once_and_as_they_were() {
        let root = tempfile::tempdir().unwrap();
        let large: Vec<u8> =
            (0..5_000_000u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
        for (name, content) in [("a", &large[..]), ("b", b"small"), ("c", b"small"), ("d", b"")] {
            std::fs::write(root.path().join(name), content).unwrap();
        }
        let wanted = Wanted { include: &[], max_bytes: 1 << 30 };
        let snapshot = Snapshot::of(root.path(), &wanted, None, None).unwrap();
        let all: BTreeSet<Hash> = snapshot.tree.chunks().map(|chunk| chunk.hash).collect();
        let bodies = |missing: &BTreeSet<Hash>| -> Vec<Vec<u8>> {
            let bodies = Bodies::of(&snapshot, missing.iter().copied().collect());
            bodies.map(Result::unwrap).collect()
        };
        let sent = bodies(&all);
        assert!(sent.len() >= 3 && sent.iter().all(|body| body.len() <= batch::MAX_BATCH_BYTES));
        let chunks = sent.iter().flat_map(|body| batch::chunks(body).unwrap());
        let names: Vec<Hash> = chunks.map(Hash::of).collect();
        assert_eq!((names.len(), names.into_iter().collect::<BTreeSet<_>>()), (all.len(), all));
        assert_eq!(bodies(&BTreeSet::new()), [[0; 0]; 0]);
        let small = BTreeSet::from([Hash::of(b"small")]);
        assert_eq!(bodies(&small), [b"\0\0\0\x05small"]);
        std::fs::write(root.path().join("b"), "other").unwrap();
        let text = Bodies::of(&snapshot, small.into_iter().collect()).next().unwrap().unwrap_err();
        assert!(text.to_text().contains("changed while it was sent"), "{}", text.to_text());
    }
}
