//! Alerts as version 2 of the API of Prometheus' Alertmanager takes them. What goes on is sent again
//! and again until it is over; what has happened is sent once and ends by itself. Every alert has an
//! end in the near future, so that none outlives a coordinator that is gone.

use std::collections::BTreeMap;

use gangline_common::time::wall_text;
use serde_json::{Value, json};

use crate::board::Board;
use crate::core::health::Level;
use crate::core::node::Reachability;
use crate::core::notices::Notice;

/// An alert that is not sent again ends after this long, in milliseconds: Alertmanager's own default.
const LIFE_MS: u64 = 300_000;
/// Alerts of one request.
pub(super) const AT_ONCE: usize = 100;

/// Name and severity of what becomes an alert by itself. Lost nodes and standing conditions go on: see
/// [`firing`].
const NAMES: [(&str, &str, &str); 15] = [
    ("job.failed", "GanglineJobFailed", "warning"),
    ("job.timeout", "GanglineJobTimeout", "info"),
    ("job.interrupted", "GanglineJobInterrupted", "warning"),
    ("job.held", "GanglineJobHeld", "warning"),
    ("job.node_lost", "GanglineJobNodeLost", "warning"),
    ("job.idle", "GanglineJobIdle", "warning"),
    ("job.stalled", "GanglineJobStalled", "warning"),
    ("job.hung", "GanglineJobHung", "critical"),
    ("job.disk_low", "GanglineJobDiskLow", "warning"),
    ("job.copy_failed", "GanglineJobCopyFailed", "warning"),
    ("job.straggler", "GanglineJobStraggler", "warning"),
    ("node.revoked", "GanglineNodeRevoked", "warning"),
    ("node.released", "GanglineNodeReleased", "warning"),
    ("node.not_cordoned", "GanglineNodeNotCordoned", "critical"),
    ("webhook.test", "GanglineTest", "info"),
];

/// The alert of something that has happened. It goes on from now, not from then: what is told late
/// would be over when it comes.
pub(super) fn alert_of(cluster: &str, notice: &Notice, now_ms: u64) -> Option<Value> {
    let (_, name, severity) = NAMES.iter().find(|(kind, ..)| *kind == notice.kind)?;
    let mut labels = labels(name, severity, cluster, &notice.object);
    labels.extend(notice.project.as_ref().map(|project| ("project", project.clone())));
    Some(json!({
        "labels": labels,
        "annotations": { "summary": notice.reason },
        "startsAt": wall_text(notice.wall_ms),
        "endsAt": wall_text(now_ms.max(notice.wall_ms).saturating_add(LIFE_MS)),
    }))
}

/// `job j-1` becomes the label `job_id`, `node gpu-1` the label `node`.
fn labels(
    name: &str,
    severity: &str,
    cluster: &str,
    object: &str,
) -> BTreeMap<&'static str, String> {
    let (what, id) = object.split_once(' ').unwrap_or(("object", object));
    let what = match what {
        "job" => "job_id",
        "node" => "node",
        _ => "object",
    };
    BTreeMap::from([
        ("alertname", name.to_owned()),
        ("severity", severity.to_owned()),
        ("cluster", cluster.to_owned()),
        (what, id.to_owned()),
    ])
}

/// Something that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Firing {
    labels: BTreeMap<&'static str, String>,
    summary: String,
    since_ms: u64,
}

impl Firing {
    /// As it is sent while it goes on, and once more with its end.
    pub(super) fn alert(&self, now_ms: u64, is_over: bool) -> Value {
        let ends_ms = if is_over { now_ms } else { now_ms.saturating_add(LIFE_MS) };
        json!({
            "labels": self.labels,
            "annotations": { "summary": self.summary },
            "startsAt": wall_text(self.since_ms),
            "endsAt": wall_text(ends_ms),
        })
    }
}

/// Everything that goes on now, by what it is about.
pub(super) fn firing(cluster: &str, board: &Board) -> BTreeMap<String, Firing> {
    let nodes = board.nodes().into_iter().map(|snapshot| snapshot.node);
    let nodes: Vec<_> = nodes.filter(|node| !node.revoked).collect();
    let sick = nodes.iter().flat_map(|node| {
        let standing = node.standing().filter(|condition| condition.level > Level::Warning);
        standing.map(|condition| {
            let object = format!("node {}", node.name);
            let severity = if condition.level == Level::Fatal { "critical" } else { "warning" };
            let mut labels = labels("GanglineNodeCondition", severity, cluster, &object);
            labels.insert("rule", condition.rule.clone());
            labels.insert("component", condition.component.clone());
            let (summary, since_ms) = (condition.sentence(), condition.since_ms);
            let name = format!("{object} {} {}", condition.rule, condition.component);
            (name, Firing { labels, summary, since_ms })
        })
    });
    let lost = nodes.iter().filter(|node| node.reachability == Reachability::Lost);
    let lost = lost.map(|node| {
        let object = format!("node {}", node.name);
        let last = node.history.iter().rev().find(|entry| entry.state == "lost");
        let firing = Firing {
            labels: labels("GanglineNodeLost", "critical", cluster, &object),
            summary: last.map_or_else(String::new, |entry| entry.text.clone()),
            since_ms: last.map_or(0, |entry| entry.wall_ms),
        };
        (object, firing)
    });
    sick.chain(lost).collect()
}
