//! What a gang asks of its nodes beside their size: labels, and whole nodes. Ray heads do not count as
//! company: they do no compute, and share only nodes that have the role `head`.

use std::collections::BTreeSet;
use std::fmt;

use super::capacity::{Capacity, Kind, Slot};
use super::job::JobRequest;

/// Whether a gang would have a node of this kind to itself: as it says, else where it takes all GPUs.
pub(super) fn is_exclusive(request: &JobRequest, kind: &Kind) -> bool {
    let all = request.gpus_per_node > 0 && request.gpus_per_node == kind.gpus;
    request.exclusive.unwrap_or(all)
}

/// Why a gang and those that are on the node cannot be together.
pub(super) fn shared(request: &JobRequest, slot: &Slot) -> Option<String> {
    if slot.held_whole {
        return Some("another job has the whole node".to_owned());
    }
    if slot.gangs > 0 && is_exclusive(request, &slot.kind) {
        let jobs = if slot.gangs == 1 { "job runs" } else { "jobs run" };
        return Some(format!("{} {jobs} there, and this one wants the whole node", slot.gangs));
    }
    None
}

/// Whether a gang and those on the node could be together when `gone` of these have gone.
pub(super) fn may_share(request: &JobRequest, slot: &Slot, gone: u32) -> bool {
    slot.gangs <= gone || !slot.held_whole && !is_exclusive(request, &slot.kind)
}

/// The value of a label, if nodes of this kind have it.
pub(super) fn label<'a>(kind: &'a Kind, key: &str) -> Option<&'a str> {
    kind.labels.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

/// A label that a node should have; it has another value of it, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unlike<'a> {
    key: &'a str,
    other: Option<&'a str>,
}

impl fmt::Display for Unlike<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.other {
            Some(other) => write!(f, "has {}={other}", self.key),
            None => write!(f, "has no label {}", self.key),
        }
    }
}

/// The first label that a node should have and has not.
pub(super) fn unlike<'a>(request: &'a JobRequest, kind: &'a Kind) -> Option<Unlike<'a>> {
    let differs = |(key, value): &(&String, &String)| label(kind, key) != Some(value.as_str());
    let (key, _) = request.node_labels.iter().find(differs)?;
    Some(Unlike { key, other: label(kind, key) })
}

/// The label that no node has, and the values that there are.
pub(super) fn nobody_has(request: &JobRequest, capacity: &Capacity) -> Option<String> {
    let kinds = || capacity.groups().map(|(kind, _)| kind);
    let absent = |(key, value): &(&String, &String)| {
        kinds().all(|kind| label(kind, key) != Some(value.as_str()))
    };
    let (key, value) = request.node_labels.iter().find(absent)?;
    let values: BTreeSet<&str> = kinds().filter_map(|kind| label(kind, key)).collect();
    Some(if values.is_empty() {
        let labels = kinds().flat_map(|kind| &kind.labels);
        let keys: BTreeSet<&str> = labels.map(|(key, _)| key.as_str()).collect();
        format!("no node has a label {key}; there are: {}", some_of(keys))
    } else {
        format!("no node has {key}={value}; {key} is one of: {}", some_of(values))
    })
}

/// "a, b, c", and how many more.
fn some_of(words: BTreeSet<&str>) -> String {
    const SHOWN: usize = 16;
    let more = words.len().saturating_sub(SHOWN);
    let shown: Vec<&str> = words.into_iter().take(SHOWN).collect();
    match (shown.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} more", shown.join(", ")),
    }
}
