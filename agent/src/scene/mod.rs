//! Takes down how things stand with one member, in a helper process: what is read here may hang.
//!
//! Every part is taken on a thread of its own, with its own time-out; what is not there in time says
//! so and holds up nothing else. Secrets go before anything is cut, so that no half of one stays.

mod dumps;
mod environment;
pub mod history;
mod logs;
mod node;
mod processes;
pub mod ras;
mod stacks;

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_common::redact::{RedactError, Redactor};
use gangline_common::wire::scene::{ENVIRONMENT_PART, MAX_SCENE, Part, ProcessStack, Scene};
use serde::{Deserialize, Serialize};

use crate::supervisor::process::ProcessId;

/// Version of the form of a scene.
pub const VERSION: u32 = 1;
/// Everything together takes at most so long.
pub const LIMIT: Duration = Duration::from_secs(8);
/// Parts that only read what this machine has.
const READING: Duration = Duration::from_secs(3);
/// Stacks of all processes together.
const STACKS: Duration = Duration::from_secs(7);
/// Most bytes of one part's text.
const PART_BYTES: usize = 256 << 10;
/// Most bytes of all texts together: JSON may write each of them with two.
const SCENE_BYTES: usize = MAX_SCENE / 2 - (64 << 10);
/// Name of the part that says how the stacks went.
pub const STACKS_PART: &str = "stacks";

/// What a helper is told of a member. Holds its secrets.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Subject {
    /// Root of the member's processes; absent when they are gone.
    pub shim: Option<ProcessId>,
    /// What its processes were given.
    pub environment: Vec<(String, String)>,
    /// Values that must not be in a scene.
    pub secrets: Vec<String>,
    /// Names of variables whose values must not be.
    pub secret_names: Vec<String>,
    /// Names of variables that the job has of its spec: their values are for its submitter alone,
    /// and a scene is for handing on.
    pub spec_names: Vec<String>,
    /// Logs by their names.
    pub logs: Vec<(String, PathBuf)>,
    /// Where Ray's services log.
    pub ray_logs: Option<PathBuf>,
    /// Where `py-spy` may be; the first that is there counts.
    pub py_spy: Vec<PathBuf>,
    pub only_stacks: bool,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("shim", &self.shim).finish_non_exhaustive()
    }
}

/// Why a part could not be taken.
pub(crate) type Failure = String;

type Take = Box<dyn FnOnce() -> Result<String, Failure> + Send>;

/// Takes parts and stacks; who asked fills in the rest. Returns within [`LIMIT`]; threads that hang
/// are left behind and end with the process.
///
/// # Errors
/// The secrets cannot be looked for: then nothing may be shown.
pub fn take(subject: &Subject) -> Result<Scene, RedactError> {
    let began = Instant::now();
    let redactor = Arc::new(Redactor::new(subject.secrets.iter().map(String::as_str))?);
    let parts = if subject.only_stacks { Vec::new() } else { readings(subject, &redactor) };
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let (sender, received) = mpsc::channel();
    for (index, (name, take)) in parts.into_iter().enumerate() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let part = timed(name, take);
            // Nobody waits for one that is late.
            let _ = sender.send((index, part));
        });
    }
    drop(sender);
    let stacks = subject.shim.map(|shim| {
        let (py_spy, redactor) = (stacks::find(&subject.py_spy), Arc::clone(&redactor));
        stacks::Dumps::begin(shim, py_spy, redactor, began + STACKS)
    });
    let mut parts: Vec<Part> = names.iter().map(|name| late(name)).collect();
    let until = began + READING;
    let left = || until.saturating_duration_since(Instant::now());
    // An error means that all are there, or that the time is over.
    while let Ok((index, part)) = received.recv_timeout(left()) {
        if let Some(slot) = parts.get_mut(index) {
            *slot = part;
        }
    }
    let mut scene = Scene { version: VERSION, ..Scene::default() };
    if let Some(dumps) = stacks {
        let (part, taken) = dumps.end();
        parts.insert(0, part);
        scene.stacks = taken;
    }
    for part in &mut parts {
        part.text = redactor.clean(&part.text);
    }
    scene.parts = parts;
    Ok(scene)
}

/// The parts that are read, by their names.
fn readings(subject: &Subject, redactor: &Arc<Redactor>) -> Vec<(&'static str, Take)> {
    let mut parts: Vec<(&'static str, Take)> = Vec::new();
    if let Some(shim) = subject.shim {
        let redactor = Arc::clone(redactor);
        parts.push(("processes", Box::new(move || processes::table(shim, &redactor))));
    }
    parts.push(("kernel", Box::new(node::kernel_log)));
    parts.push(("cgroup", Box::new(node::cgroup)));
    let (variables, secret) = (subject.environment.clone(), subject.secret_names.clone());
    let of_spec = subject.spec_names.clone();
    let shown = move || -> Result<String, Failure> {
        Ok(environment::shown(&variables, &secret, &of_spec))
    };
    parts.push((ENVIRONMENT_PART, Box::new(shown)));
    let (files, ray) = (subject.logs.clone(), subject.ray_logs.clone());
    let cleaner = Arc::clone(redactor);
    parts.push(("logs", Box::new(move || Ok(logs::tails(&files, ray.as_deref(), &cleaner)))));
    if let Some(prefix) = dumps::prefix(&subject.environment) {
        let redactor = Arc::clone(redactor);
        parts.push(("nccl dumps", Box::new(move || dumps::read(&prefix, &redactor))));
    }
    if subject.shim.is_some()
        && let Some(stream) = ras::connect(&subject.environment)
    {
        parts.push(("nccl ras", Box::new(move || ras::ask(stream))));
    }
    parts
}

/// Takes one part and the time that it takes.
pub fn timed(name: &str, take: impl FnOnce() -> Result<String, Failure>) -> Part {
    let began = Instant::now();
    let taken = take();
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (ok, text) = match taken {
        Ok(text) => (true, text),
        Err(problem) => (false, problem),
    };
    Part { name: name.to_owned(), ok, took_ms, text }
}

fn late(name: &str) -> Part {
    let text = format!("not there within {} s", READING.as_secs());
    Part { name: name.to_owned(), ok: false, took_ms: READING.as_millis() as u64, text }
}

/// Keeps a scene within its bounds, whatever is in it: control characters go, long stacks lose their
/// ends and long texts their beginnings, and what is too much in all goes from the end of the list.
pub fn bound(scene: &mut Scene) {
    let mut left = SCENE_BYTES;
    for stack in &mut scene.stacks {
        stack.text = start_of(plain(&stack.text), stacks::TEXT_BYTES.min(left));
        left = left.saturating_sub(stack.text.len());
    }
    for part in &mut scene.parts {
        part.text = end_of(plain(&part.text), PART_BYTES.min(left));
        left = left.saturating_sub(part.text.len());
    }
}

fn plain(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect()
}

const CUT: &str = "[cut]\n";

/// At most so many bytes, with the note that it was cut.
fn start_of(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub(CUT.len())));
        text.push_str(if most < CUT.len() { "" } else { CUT });
    }
    text
}

/// The same from the other end.
fn end_of(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let from = text.ceil_char_boundary(text.len() - most.saturating_sub(CUT.len()));
    let rest = text.get(from..).unwrap_or_default();
    if most < CUT.len() { String::new() } else { format!("{CUT}{rest}") }
}

/// Results that several threads add to.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<ProcessStack>>>);

impl Shared {
    fn add(&self, stack: ProcessStack) {
        // The list is whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stack);
    }

    fn take(&self) -> Vec<ProcessStack> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
