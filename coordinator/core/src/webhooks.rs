//! Who is told of notices: the endpoints that administrators and members of projects have given, and
//! how far each of them has been told.

use gangline_common::time::Timestamp;

use super::Core;
use super::credential::Principal;
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;
use super::notices::Notice;
use super::secrets::{Sealed, SecretRecord};

/// Webhooks of one project, or of the fleet.
pub const WEBHOOK_LIMIT: usize = 32;
/// Dead letters that one webhook keeps; the oldest goes.
pub const DEAD_LIMIT: usize = 100;
/// What somebody sends to see whether a webhook works: that one is told of it whatever it wants.
const TEST: &str = "webhook.test";
/// Longest cause of a dead letter, in characters.
const CAUSE_LIMIT: usize = 200;

/// Name of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WebhookKey {
    /// Absent for one that is told of everything.
    pub project: Option<String>,
    pub name: String,
}

impl WebhookKey {
    /// No variable, and so no secret of a project, has such a name.
    pub fn secret_name(&self) -> String {
        format!("webhook:{}", self.name)
    }
}

/// What an endpoint understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookKind {
    /// A JSON object with a signature.
    Generic,
    /// Version 2 of the API of Prometheus' Alertmanager.
    Alertmanager,
    Slack,
    Feishu,
    /// WeCom takes the same.
    Dingtalk,
}

impl WebhookKind {
    pub const ALL: [(&str, WebhookKind); 6] = [
        ("generic", WebhookKind::Generic),
        ("alertmanager", WebhookKind::Alertmanager),
        ("slack", WebhookKind::Slack),
        ("feishu", WebhookKind::Feishu),
        ("dingtalk", WebhookKind::Dingtalk),
        ("wecom", WebhookKind::Dingtalk),
    ];

    pub fn word(self) -> &'static str {
        WebhookKind::ALL.iter().find(|(_, kind)| *kind == self).map_or("generic", |(word, _)| word)
    }
}

/// One endpoint. Its address and key are sealed: the address of some is a secret by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRecord {
    pub key: WebhookKey,
    pub kind: WebhookKind,
    /// Scheme, host and port of the address, for people.
    pub shown: String,
    pub sealed: Sealed,
    /// Kinds of notices, or their beginnings up to a `*`; empty for all.
    pub events: Vec<String>,
    pub set_by: String,
    /// It is told of what happens from then on.
    pub set: Timestamp,
}

impl WebhookRecord {
    /// As what its address and key are sealed.
    pub fn as_secret(&self) -> SecretRecord {
        SecretRecord {
            project: self.key.project.clone().unwrap_or_default(),
            name: self.key.secret_name(),
            sealed: self.sealed.clone(),
            set_by: self.set_by.clone(),
            set: self.set,
        }
    }

    /// Whether it is told of a notice.
    pub fn wants(&self, notice: &Notice) -> bool {
        if notice.kind == TEST {
            return notice.object == object(&self.key);
        }
        let theirs = match &self.key.project {
            Some(project) => notice.project.as_ref() == Some(project),
            None => true,
        };
        let fits = |wanted: &String| match wanted.strip_suffix('*') {
            Some(beginning) => notice.kind.starts_with(beginning),
            None => *wanted == notice.kind,
        };
        theirs && (self.events.is_empty() || self.events.iter().any(fits))
    }
}

/// How far a webhook has been told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub key: WebhookKey,
    /// Number of the last notice that it needs no more.
    pub cursor: u64,
    pub delivered: u64,
    /// Notices that were gone before it could be told.
    pub missed: u64,
    /// What it could not be told of, the newest last.
    pub dead: Vec<DeadLetter>,
}

/// A notice that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Of the notice.
    pub id: String,
    pub kind: String,
    pub object: String,
    pub wall_ms: u64,
    pub attempts: u32,
    /// Why the last attempt failed.
    pub cause: String,
}

/// What has become of notices since the last word about a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub cursor: u64,
    pub delivered: u64,
    pub missed: u64,
    pub dead: Vec<DeadLetter>,
}

impl Core {
    pub(super) fn on_set_webhook(
        &mut self,
        request: RequestId,
        record: WebhookRecord,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let of_project = |key: &&WebhookKey| key.project == record.key.project;
        let known = self.webhooks.contains_key(&record.key);
        if !known && self.webhooks.keys().filter(of_project).count() >= WEBHOOK_LIMIT {
            return Core::reject(request, Rejected::TooManyWebhooks { limit: WEBHOOK_LIMIT }, out);
        }
        let detail = format!("{} to {}", record.kind.word(), record.shown);
        self.audit(actor, "webhook.set", object(&record.key), &detail, now, out);
        self.put(Write::Webhook(record), out);
        out.replies.push((request, Answer::Done));
    }

    pub(super) fn on_delete_webhook(
        &mut self,
        request: RequestId,
        key: &WebhookKey,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !self.webhooks.contains_key(key) {
            return Core::reject(request, Rejected::NoSuchWebhook, out);
        }
        self.audit(actor, "webhook.delete", object(key), "", now, out);
        self.put(Write::ForgetDelivery { key: key.clone() }, out);
        self.put(Write::ForgetWebhook { key: key.clone() }, out);
        out.replies.push((request, Answer::Done));
    }

    /// Somebody wants to see whether a webhook works.
    pub(super) fn on_test_webhook(
        &mut self,
        request: RequestId,
        key: &WebhookKey,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !self.webhooks.contains_key(key) {
            return Core::reject(request, Rejected::NoSuchWebhook, out);
        }
        let notice = Notice {
            wall_ms: now.wall_ms,
            kind: TEST.to_owned(),
            object: object(key),
            project: key.project.clone(),
            reason: format!("{} tests this webhook", actor.user),
        };
        self.put(Write::Notice(notice), out);
        out.replies.push((request, Answer::Done));
    }

    /// Answered only once it is durable: then what was told is not told again.
    pub(super) fn on_told(
        &mut self,
        request: RequestId,
        key: &WebhookKey,
        progress: Progress,
        out: &mut Effects,
    ) {
        if !self.webhooks.contains_key(key) {
            return Core::reject(request, Rejected::NoSuchWebhook, out);
        }
        let known = self.deliveries.get(key).cloned();
        let mut delivery = known.unwrap_or_else(|| Delivery {
            key: key.clone(),
            cursor: 0,
            delivered: 0,
            missed: 0,
            dead: Vec::new(),
        });
        delivery.cursor = delivery.cursor.max(progress.cursor);
        delivery.delivered = delivery.delivered.saturating_add(progress.delivered);
        delivery.missed = delivery.missed.saturating_add(progress.missed);
        delivery.dead.extend(progress.dead.into_iter().map(|letter| DeadLetter {
            cause: letter.cause.chars().take(CAUSE_LIMIT).collect(),
            ..letter
        }));
        let over = delivery.dead.len().saturating_sub(DEAD_LIMIT);
        delivery.dead.drain(..over);
        self.put(Write::Delivery(delivery), out);
        out.replies.push((request, Answer::Done));
    }

    pub fn webhooks(&self) -> impl Iterator<Item = &WebhookRecord> {
        self.webhooks.values()
    }

    pub fn deliveries(&self) -> impl Iterator<Item = &Delivery> {
        self.deliveries.values()
    }
}

/// `webhook rlhf/team`, or `webhook team` for one of the fleet.
fn object(key: &WebhookKey) -> String {
    let project = key.project.as_ref().map(|project| format!("{project}/"));
    format!("webhook {}{}", project.unwrap_or_default(), key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_told_of_what_is_its_own() {
        let hook = |project: Option<&str>, events: &[&str]| WebhookRecord {
            key: WebhookKey { project: project.map(str::to_owned), name: "h".to_owned() },
            kind: WebhookKind::Generic,
            shown: String::new(),
            sealed: Sealed(Vec::new()),
            events: events.iter().map(|&kind| kind.to_owned()).collect(),
            set_by: String::new(),
            set: Timestamp::default(),
        };
        let notice = |kind: &str, object: &str, project: Option<&str>| Notice {
            wall_ms: 0,
            kind: kind.to_owned(),
            object: object.to_owned(),
            project: project.map(str::to_owned),
            reason: String::new(),
        };
        let job = notice("job.failed", "job j", Some("rl"));
        let node = notice("node.lost", "node n", None);
        for (project, events, wants_job, wants_node) in [
            (None, &[][..], true, true),
            (None, &["job.*"], true, false),
            (None, &["node.lost", "job.idle"], false, true),
            (Some("rl"), &[], true, false),
            (Some("rl"), &["job.failed"], true, false),
            (Some("vision"), &[], false, false),
        ] {
            let hook = hook(project, events);
            assert_eq!((hook.wants(&job), hook.wants(&node)), (wants_job, wants_node), "{hook:?}");
        }
        // A test is for one webhook, whatever that wants, and for no other of the same name.
        let test = notice(TEST, "webhook rl/h", Some("rl"));
        assert!(hook(Some("rl"), &["job.failed"]).wants(&test));
        assert!(!hook(None, &[]).wants(&test) && !hook(Some("vision"), &[]).wants(&test));
    }
}
