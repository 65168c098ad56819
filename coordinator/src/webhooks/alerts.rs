//! Alerts as version 2 of the API of Prometheus' Alertmanager takes them. What goes on is sent again
//! and again until it is over; what has happened is sent once and ends by itself. Every alert has an
//! end in the near future, so that none outlives a coordinator that is gone.

use std::collections::BTreeMap;

use gangline_common::time::wall_text;
use serde_json::{Value, json};

use super::Parts;
use crate::board::Board;
use crate::core::health::Level;
use crate::core::job::JobState;
use crate::core::node::Reachability;
use crate::core::notices::Notice;
use crate::core::webhooks::WebhookRecord;

/// An alert that is not sent again ends after this long, in milliseconds: Alertmanager's own default.
const LIFE_MS: u64 = 300_000;
/// Alerts of one request.
pub(super) const AT_ONCE: usize = 100;

/// What a stalled training is told as.
pub(super) const STALLED: &str = "job.stalled";

/// Name and severity of what becomes an alert by itself. Lost nodes, standing conditions and stalled
/// trainings go on: see [`firing`].
const NAMES: [(&str, &str, &str); 15] = [
    ("job.failed", "GanglineJobFailed", "warning"),
    ("job.timeout", "GanglineJobTimeout", "info"),
    ("job.interrupted", "GanglineJobInterrupted", "warning"),
    ("job.held", "GanglineJobHeld", "warning"),
    ("job.node_lost", "GanglineJobNodeLost", "warning"),
    ("job.idle", "GanglineJobIdle", "warning"),
    (STALLED, "GanglineJobStalled", "warning"),
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
    Some(json!({
        "labels": labels_of(cluster, notice)?,
        "annotations": { "summary": notice.reason },
        "startsAt": wall_text(notice.wall_ms),
        "endsAt": wall_text(now_ms.max(notice.wall_ms).saturating_add(LIFE_MS)),
    }))
}

fn labels_of(cluster: &str, notice: &Notice) -> Option<BTreeMap<&'static str, String>> {
    let (_, name, severity) = NAMES.iter().find(|(kind, ..)| *kind == notice.kind)?;
    let mut labels = labels(name, severity, cluster, &notice.object);
    labels.extend(notice.project.as_ref().map(|project| ("project", project.clone())));
    Some(labels)
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
            // The clock of a node may be ahead, and what ends before it begins is refused.
            "startsAt": wall_text(self.since_ms.min(now_ms)),
            "endsAt": wall_text(ends_ms),
        })
    }
}

/// Everything that goes on now and that a webhook is told of, by what it is about. Nodes are for those
/// of the fleet.
pub(super) fn firing(parts: &Parts, record: &WebhookRecord) -> BTreeMap<String, Firing> {
    let mut all = stalled(parts, record);
    if record.key.project.is_none() {
        all.extend(of_nodes(&parts.cluster, &parts.board));
    }
    all
}

/// Trainings that have stalled: the alert of the notice about that goes on for as long as it is so.
fn stalled(parts: &Parts, record: &WebhookRecord) -> BTreeMap<String, Firing> {
    let running = parts.board.jobs().into_iter().filter(|job| job.state == JobState::Running);
    let stalled = running.filter_map(|job| {
        let shown = parts.trainings.shown(&job.id);
        let stalled = shown.stalled(&job)?;
        let (object, project) = (format!("job {}", job.id), Some(job.project.clone()));
        let (kind, reason) = (STALLED.to_owned(), stalled.said.to_string());
        let wall_ms = stalled.since.wall_ms;
        let notice = Notice { wall_ms, kind, object, project, reason };
        record.wants(&notice).then(|| going_on(&parts.cluster, &notice)).flatten()
    });
    stalled.collect()
}

/// What a notice tells of as something that goes on.
fn going_on(cluster: &str, notice: &Notice) -> Option<(String, Firing)> {
    let labels = labels_of(cluster, notice)?;
    let (summary, since_ms) = (notice.reason.clone(), notice.wall_ms);
    Some((name_of(notice), Firing { labels, summary, since_ms }))
}

/// By which what a notice tells of is known as long as it goes on.
pub(super) fn name_of(notice: &Notice) -> String {
    format!("{} {}", notice.object, notice.kind)
}

fn of_nodes(cluster: &str, board: &Board) -> BTreeMap<String, Firing> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Under other labels Alertmanager would have two, of which one ends by itself.
    #[test]
    fn what_goes_on_is_the_alert_of_its_notice() {
        let notice = Notice {
            wall_ms: 1_800_000_000_000,
            kind: STALLED.to_owned(),
            object: "job j-1".to_owned(),
            project: Some("rl".to_owned()),
            reason: "no step for 5 min".to_owned(),
        };
        let now_ms = notice.wall_ms + 60_000;
        let (name, firing) = going_on("c1", &notice).unwrap();
        assert_eq!(name, "job j-1 job.stalled");
        assert_eq!(alert_of("c1", &notice, now_ms), Some(firing.alert(now_ms, false)));
        assert_eq!(firing.alert(now_ms, false)["labels"]["project"], "rl");
        assert_eq!(firing.alert(now_ms, true)["endsAt"], wall_text(now_ms));
    }
}
