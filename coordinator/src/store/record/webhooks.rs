//! Records of notices and of who is told of them.

use serde::{Deserialize, Serialize};

use super::{TimeV1, seal, unseal};
use crate::core::notices::Notice;
use crate::core::secrets::Sealed;
use crate::core::webhooks::{DeadLetter, Delivery, WebhookKey, WebhookKind, WebhookRecord};
use crate::store::notices::Numbered;

#[derive(Serialize, Deserialize)]
struct NoticeV1 {
    era: u32,
    sequence: u64,
    wall_ms: u64,
    kind: String,
    object: String,
    project: Option<String>,
    reason: String,
}

pub fn encode_notice(numbered: &Numbered) -> Result<Vec<u8>, String> {
    let Notice { wall_ms, kind, object, project, reason } = numbered.notice.clone();
    let (era, sequence) = (numbered.era, numbered.sequence);
    seal(&NoticeV1 { era, sequence, wall_ms, kind, object, project, reason })
}

pub fn decode_notice(bytes: &[u8]) -> Result<Numbered, String> {
    let NoticeV1 { era, sequence, wall_ms, kind, object, project, reason } = unseal(bytes)?;
    let notice = Notice { wall_ms, kind, object, project, reason };
    Ok(Numbered { era, sequence, notice })
}

#[derive(Serialize, Deserialize)]
struct KeyV1 {
    project: Option<String>,
    name: String,
}

impl From<&WebhookKey> for KeyV1 {
    fn from(key: &WebhookKey) -> Self {
        KeyV1 { project: key.project.clone(), name: key.name.clone() }
    }
}

impl From<KeyV1> for WebhookKey {
    fn from(record: KeyV1) -> Self {
        WebhookKey { project: record.project, name: record.name }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct WebhookV1 {
    key: KeyV1,
    kind: KindV1,
    shown: String,
    sealed: Vec<u8>,
    events: Vec<String>,
    set_by: String,
    set: TimeV1,
}

#[derive(Serialize, Deserialize)]
enum KindV1 {
    Generic,
    Alertmanager,
    Slack,
    Feishu,
    Dingtalk,
}

pub fn encode_webhook(record: &WebhookRecord) -> Result<Vec<u8>, String> {
    seal(&WebhookV1 {
        key: (&record.key).into(),
        kind: match record.kind {
            WebhookKind::Generic => KindV1::Generic,
            WebhookKind::Alertmanager => KindV1::Alertmanager,
            WebhookKind::Slack => KindV1::Slack,
            WebhookKind::Feishu => KindV1::Feishu,
            WebhookKind::Dingtalk => KindV1::Dingtalk,
        },
        shown: record.shown.clone(),
        sealed: record.sealed.0.clone(),
        events: record.events.clone(),
        set_by: record.set_by.clone(),
        set: record.set.into(),
    })
}

impl From<WebhookV1> for WebhookRecord {
    fn from(record: WebhookV1) -> Self {
        WebhookRecord {
            key: record.key.into(),
            kind: match record.kind {
                KindV1::Generic => WebhookKind::Generic,
                KindV1::Alertmanager => WebhookKind::Alertmanager,
                KindV1::Slack => WebhookKind::Slack,
                KindV1::Feishu => WebhookKind::Feishu,
                KindV1::Dingtalk => WebhookKind::Dingtalk,
            },
            shown: record.shown,
            sealed: Sealed(record.sealed),
            events: record.events,
            set_by: record.set_by,
            set: record.set.into(),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct DeliveryV1 {
    key: KeyV1,
    cursor: u64,
    delivered: u64,
    missed: u64,
    dead: Vec<DeadV1>,
}

#[derive(Serialize, Deserialize)]
struct DeadV1 {
    id: String,
    kind: String,
    object: String,
    wall_ms: u64,
    attempts: u32,
    cause: String,
}

pub fn encode_delivery(delivery: &Delivery) -> Result<Vec<u8>, String> {
    let dead = |letter: &DeadLetter| DeadV1 {
        id: letter.id.clone(),
        kind: letter.kind.clone(),
        object: letter.object.clone(),
        wall_ms: letter.wall_ms,
        attempts: letter.attempts,
        cause: letter.cause.clone(),
    };
    seal(&DeliveryV1 {
        key: (&delivery.key).into(),
        cursor: delivery.cursor,
        delivered: delivery.delivered,
        missed: delivery.missed,
        dead: delivery.dead.iter().map(dead).collect(),
    })
}

impl From<DeliveryV1> for Delivery {
    fn from(record: DeliveryV1) -> Self {
        let dead = |letter: DeadV1| DeadLetter {
            id: letter.id,
            kind: letter.kind,
            object: letter.object,
            wall_ms: letter.wall_ms,
            attempts: letter.attempts,
            cause: letter.cause,
        };
        Delivery {
            key: record.key.into(),
            cursor: record.cursor,
            delivered: record.delivered,
            missed: record.missed,
            dead: record.dead.into_iter().map(dead).collect(),
        }
    }
}
