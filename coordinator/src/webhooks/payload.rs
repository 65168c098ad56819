//! What an endpoint is sent: bodies by kind, and the signature.

use data_encoding::HEXLOWER;
use gangline_common::time::wall_text;
use ring::hmac;
use serde_json::{Value, json};

use super::alerts::alert_of;
use crate::core::webhooks::WebhookKind;
use crate::store::Numbered;

/// Header with the id of the notice: the same however often it is sent.
pub const EVENT_ID: &str = "x-gangline-event-id";
/// Header with the signature: `t=SECONDS,v1=HEX`, see [`signature`].
pub const SIGNATURE: &str = "x-gangline-signature";

/// HMAC-SHA256 of the seconds since 1970, a dot and the body, in hex. A receiver that also looks at the
/// time cannot be sent an old body again by somebody else.
pub fn signature(key: &str, seconds: u64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let signed = [format!("{seconds}.").as_bytes(), body].concat();
    HEXLOWER.encode(hmac::sign(&key, &signed).as_ref())
}

/// The body for a notice as it is sent now; `None` where an endpoint of this kind is not told of it.
pub(super) fn body(
    kind: WebhookKind,
    cluster: &str,
    numbered: &Numbered,
    now_ms: u64,
) -> Option<Vec<u8>> {
    let value = match kind {
        WebhookKind::Generic => generic(cluster, numbered),
        WebhookKind::Alertmanager => json!([alert_of(cluster, &numbered.notice, now_ms)?]),
        WebhookKind::Slack => json!({ "text": escaped(&line(cluster, numbered)) }),
        WebhookKind::Feishu => {
            json!({ "msg_type": "text", "content": { "text": line(cluster, numbered) } })
        }
        WebhookKind::Dingtalk => {
            json!({ "msgtype": "text", "text": { "content": line(cluster, numbered) } })
        }
    };
    Some(value.to_string().into_bytes())
}

fn generic(cluster: &str, numbered: &Numbered) -> Value {
    let notice = &numbered.notice;
    json!({
        "id": numbered.id(),
        "cluster": cluster,
        "at": wall_text(notice.wall_ms),
        "kind": notice.kind,
        "object": notice.object,
        "project": notice.project,
        "reason": notice.reason,
    })
}

/// For people: "[gangline 7f3k2] job j-1 (rlhf) job.failed: rank 1 on gpu-2 exited with code 1".
fn line(cluster: &str, numbered: &Numbered) -> String {
    let notice = &numbered.notice;
    let project = notice.project.as_ref().map(|project| format!(" ({project})"));
    let project = project.unwrap_or_default();
    format!("[gangline {cluster}] {}{project} {}: {}", notice.object, notice.kind, notice.reason)
}

/// Slack reads `<` as the beginning of a link or of a mention.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::notices::Notice;

    fn numbered(reason: &str) -> Numbered {
        let notice = Notice {
            wall_ms: 1_800_000_000_000,
            kind: "job.failed".to_owned(),
            object: "job j-1".to_owned(),
            project: Some("rlhf".to_owned()),
            reason: reason.to_owned(),
        };
        Numbered { era: 2, sequence: 17, notice }
    }

    fn sent(kind: WebhookKind) -> Value {
        let now_ms = 1_800_000_600_000;
        let body = body(kind, "c1", &numbered("<!here> a & b"), now_ms).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn each_kind_has_its_form() {
        assert_eq!(
            sent(WebhookKind::Generic),
            json!({
                "id": "2-17",
                "cluster": "c1",
                "at": "2027-01-15T08:00:00.000Z",
                "kind": "job.failed",
                "object": "job j-1",
                "project": "rlhf",
                "reason": "<!here> a & b",
            })
        );
        let line = "[gangline c1] job j-1 (rlhf) job.failed: <!here> a & b";
        let for_slack = "[gangline c1] job j-1 (rlhf) job.failed: &lt;!here&gt; a &amp; b";
        assert_eq!(sent(WebhookKind::Slack), json!({ "text": for_slack }));
        assert_eq!(sent(WebhookKind::Feishu)["content"]["text"], line);
        assert_eq!(sent(WebhookKind::Dingtalk)["text"]["content"], line);
    }

    /// It is sent ten minutes late: an end five minutes after the event would be in the past.
    #[test]
    fn an_alert_that_is_told_late_still_goes_on() {
        let alert = &sent(WebhookKind::Alertmanager)[0];
        assert_eq!(alert["startsAt"], "2027-01-15T08:00:00.000Z");
        assert_eq!(alert["endsAt"], "2027-01-15T08:15:00.000Z");
    }

    /// Made with `printf '1800000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef`.
    #[test]
    fn a_signature_is_what_others_make_of_it() {
        let made = signature("0123456789abcdef", 1_800_000_000, br#"{"a":1}"#);
        assert_eq!(made, "d3e17924cac4a72ca2ee9e5700df170fdb5733eaf69ecd909fb0c18a962b03a5");
    }
}
