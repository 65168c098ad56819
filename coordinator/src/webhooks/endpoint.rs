//! One webhook's task: the next notice, an attempt, a wait, an attempt; then the one after it.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_common::backoff::Backoff;
use gangline_common::random;
use gangline_common::time::Timestamp;
use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior};

use super::address::{Target, client};
use super::alerts::{AT_ONCE, Firing, STALLED, firing, name_of};
use super::payload::{EVENT_ID, SIGNATURE, body, signature};
use super::troubles::Strand;
use super::{Pace, Parts};
use crate::core::event::Event;
use crate::core::notices::Notice;
use crate::core::webhooks::{DeadLetter, Progress, WebhookKind, WebhookRecord};
use crate::store::Numbered;
use crate::store::notices::NoticeError;

/// Notices that are read at a time.
const PAGE: usize = 64;
/// How often a cursor is committed while all goes well. After a crash so much may be told again.
const COMMIT: Duration = Duration::from_secs(1);
/// The same where only notices were passed over.
const COMMIT_PASSED: Duration = Duration::from_secs(60);
/// Wait before a store that could not be read is read again.
const REREAD: Duration = Duration::from_secs(5);
/// Answers that speak of the body, or of an end: another attempt would get the same. What speaks of
/// the address or of a right, such as 404, may be a moment of its start.
const REFUSALS: [u16; 5] = [400, 410, 413, 415, 422];
/// Between two words that a webhook is broken.
const BROKEN: Duration = Duration::from_secs(60);
/// The longest that an endpoint may ask to be left alone for.
const LEFT_ALONE: Duration = Duration::from_secs(300);

pub(super) struct Endpoint {
    parts: Parts,
    record: WebhookRecord,
    /// What is not committed yet.
    progress: Progress,
    committed: Instant,
    /// The endpoint has asked to be left alone until then.
    not_before: Instant,
}

/// The coordinator is shutting down, or the webhook is gone.
struct Over;

impl Endpoint {
    pub(super) fn new(parts: Parts, record: WebhookRecord) -> Endpoint {
        let progress = Progress { cursor: 0, delivered: 0, missed: 0, dead: Vec::new() };
        let now = Instant::now();
        Endpoint { parts, record, progress, committed: now, not_before: now }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(self) {
        let name = self.record.key.name.clone();
        let opened = self.parts.sealer.reveal(&self.record.as_secret());
        let Some(target) = opened.ok().and_then(Target::opened) else {
            let cause = "its address cannot be opened; set it again";
            tracing::error!(webhook = name, cause);
            return self.stand_broken(cause).await;
        };
        let client = match client(self.record.key.project.is_none(), self.parts.pace.timeout) {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(webhook = name, %error, "no HTTP client");
                return self.stand_broken(&format!("no HTTP client: {error}")).await;
            }
        };
        let sender = Sender { client, target };
        if self.record.kind == WebhookKind::Alertmanager {
            let going_on = tell_what_goes_on(self.parts.clone(), self.record.clone(), &sender);
            tokio::join!(going_on, self.tell_notices(&sender));
        } else {
            self.tell_notices(&sender).await;
        }
    }

    /// Nothing can be told: that counts as an attempt now and then, so that it is noticed.
    async fn stand_broken(&self, cause: &str) {
        loop {
            self.parts.troubles.failed(&self.record, Strand::Notices, cause);
            tokio::time::sleep(BROKEN).await;
        }
    }

    async fn tell_notices(mut self, sender: &Sender) {
        let mut changes = self.parts.board.notices();
        // A cursor that cannot be found yet would tell everything again.
        while let Err(error) = self.find_cursor().await {
            tracing::error!(%error, "cannot read the notices");
            tokio::time::sleep(REREAD).await;
        }
        loop {
            changes.mark_unchanged();
            let page = match self.page().await {
                Ok(page) => page,
                Err(error) => {
                    tracing::error!(%error, "cannot read the notices");
                    tokio::time::sleep(REREAD).await;
                    continue;
                }
            };
            if page.is_empty() {
                if self.commit_if_due(true).await.is_err() || changes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            for numbered in page {
                if self.tell(sender, &numbered).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn find_cursor(&mut self) -> Result<(), NoticeError> {
        let known = self.parts.board.delivery(&self.record.key);
        let (log, since_ms) = (self.parts.notices.clone(), self.record.set.wall_ms);
        self.progress.cursor = match known {
            Some(delivery) => delivery.cursor,
            None => read(move || log.number_at(since_ms)).await?,
        };
        Ok(())
    }

    async fn page(&mut self) -> Result<Vec<Numbered>, NoticeError> {
        let (log, cursor) = (self.parts.notices.clone(), self.progress.cursor);
        let page = read(move || log.after(cursor, PAGE)).await?;
        if let Some(first) = page.first().filter(|_| cursor > 0) {
            self.progress.missed += first.sequence.saturating_sub(cursor + 1);
        }
        Ok(page)
    }

    /// Tells of one notice, or gives it up, or passes it over.
    async fn tell(&mut self, sender: &Sender, numbered: &Numbered) -> Result<(), Over> {
        let Pace { wait: (shortest, longest), attempts, patience, .. } = self.parts.pace;
        let mut backoff = Backoff::new(shortest, longest);
        let wanted = self.record.wants(&numbered.notice);
        let mut attempt = 1;
        loop {
            tokio::time::sleep_until(self.not_before).await;
            // Made anew each time: an alert says until when it goes on.
            let now_ms = Timestamp::now().wall_ms;
            let body = (wanted && !self.is_over(&numbered.notice)).then(|| {
                let Endpoint { parts, record, .. } = &*self;
                body(record.kind, &parts.cluster, numbered, now_ms)
            });
            let Some(body) = body.flatten() else { break };
            let signed = self.record.kind == WebhookKind::Generic;
            let sent = sender.send(body, signed.then(|| numbered.id())).await;
            let Err(Failure { cause, again_after }) = sent else {
                self.parts.troubles.end(&self.record, Strand::Notices);
                self.progress.delivered += 1;
                break;
            };
            self.parts.troubles.failed(&self.record, Strand::Notices, &cause);
            let name = &self.record.key.name;
            let age_ms = now_ms.saturating_sub(numbered.notice.wall_ms);
            // Who asks for a pause has not refused: an old notice is tried again, too.
            let pauses = again_after.is_some_and(|pause| pause > Duration::ZERO);
            self.not_before = Instant::now() + again_after.unwrap_or_default();
            let is_young = u128::from(age_ms) < patience.as_millis();
            if again_after.is_none() || attempt >= attempts || !(is_young || pauses) {
                tracing::warn!(webhook = name, notice = numbered.id(), cause, "given up");
                self.progress.dead.push(DeadLetter {
                    id: numbered.id(),
                    kind: numbered.notice.kind.clone(),
                    object: numbered.notice.object.clone(),
                    wall_ms: numbered.notice.wall_ms,
                    attempts: attempt,
                    cause,
                });
                break;
            }
            tracing::info!(webhook = name, notice = numbered.id(), attempt, cause, "not told");
            // What was told before must not be told again because this one takes long.
            self.commit().await?;
            attempt += 1;
            // Without random bits it goes on without jitter.
            let wait = backoff.next_wait(random::number().unwrap_or(u64::MAX));
            tokio::time::sleep(wait).await;
        }
        self.progress.cursor = numbered.sequence;
        self.commit_if_due(false).await
    }

    /// What goes on is told as long as it does. A notice of it that comes late would begin it again.
    fn is_over(&self, notice: &Notice) -> bool {
        self.record.kind == WebhookKind::Alertmanager
            && notice.kind == STALLED
            && !firing(&self.parts, &self.record).contains_key(&name_of(notice))
    }

    async fn commit_if_due(&mut self, at_rest: bool) -> Result<(), Over> {
        let Progress { delivered, missed, ref dead, .. } = self.progress;
        let has_news = delivered > 0 || missed > 0 || !dead.is_empty();
        let waited = self.committed.elapsed();
        let due = waited >= if has_news { COMMIT } else { COMMIT_PASSED };
        match due || (at_rest && has_news) || dead.len() >= PAGE {
            true => self.commit().await,
            false => Ok(()),
        }
    }

    async fn commit(&mut self) -> Result<(), Over> {
        let cursor = self.progress.cursor;
        let rest = Progress { cursor, delivered: 0, missed: 0, dead: Vec::new() };
        let progress = std::mem::replace(&mut self.progress, rest);
        let key = self.record.key.clone();
        let answer = self.parts.driver.ask(|request| Event::Told { request, key, progress }).await;
        self.committed = Instant::now();
        match answer {
            Ok(crate::core::effect::Answer::Done) => Ok(()),
            Ok(_) | Err(_) => Err(Over),
        }
    }
}

/// Reads from the disk, which may block.
async fn read<T: Send + 'static>(
    from: impl FnOnce() -> Result<T, NoticeError> + Send + 'static,
) -> Result<T, NoticeError> {
    tokio::task::spawn_blocking(from)
        .await
        .unwrap_or_else(|error| Err(NoticeError { key: String::new(), reason: error.to_string() }))
}

/// Sends alerts that go on again and again, and each once more when it is over.
async fn tell_what_goes_on(parts: Parts, record: WebhookRecord, sender: &Sender) {
    let mut changes = parts.board.notices();
    let mut ticks = tokio::time::interval(parts.pace.again);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: BTreeMap<String, Firing> = BTreeMap::new();
    let mut is_tick = false;
    loop {
        let now = firing(&parts, &record);
        let now_ms = Timestamp::now().wall_ms;
        let over = known.iter().filter(|(object, _)| !now.contains_key(*object));
        let over = over.map(|(_, firing)| firing.alert(now_ms, true));
        let news =
            now.iter().filter(|(object, firing)| is_tick || known.get(*object) != Some(*firing));
        let alerts: Vec<Value> =
            over.chain(news.map(|(_, firing)| firing.alert(now_ms, false))).collect();
        let mut told = true;
        for some in alerts.chunks(AT_ONCE) {
            let body = Value::from(some.to_vec()).to_string().into_bytes();
            if let Err(Failure { cause, again_after }) = sender.send(body, None).await {
                tracing::info!(cause, "alerts not told; they are sent again");
                parts.troubles.failed(&record, Strand::GoingOn, &cause);
                told = false;
                // What is refused says nothing of the others.
                if again_after.is_some() {
                    break;
                }
            }
        }
        if told && !alerts.is_empty() {
            parts.troubles.end(&record, Strand::GoingOn);
        }
        // What could not be told is news again at the next tick.
        if told {
            known = now;
        }
        tokio::select! {
            _ = ticks.tick() => is_tick = true,
            changed = changes.changed() => match changed {
                Ok(()) => is_tick = false,
                Err(_) => return,
            },
        }
    }
}

/// An attempt that counts as not told.
struct Failure {
    /// Without the address.
    cause: String,
    /// The least wait before another attempt; `None` where there is no use in one.
    again_after: Option<Duration>,
}

struct Sender {
    client: Client,
    target: Target,
}

impl Sender {
    /// One attempt. The answer's body is not looked at.
    ///
    /// # Errors
    /// Why it counts as not told.
    async fn send(&self, body: Vec<u8>, signed_as: Option<String>) -> Result<(), Failure> {
        let mut request = self.client.post(self.target.url());
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(id) = signed_as {
            let seconds = Timestamp::now().wall_ms / 1000;
            let made = signature(self.target.key(), seconds, &body);
            let signed = format!("t={seconds},v1={made}");
            request = request.header(EVENT_ID, id).header(SIGNATURE, signed);
        }
        let answer = request.body(body).send().await.map_err(|error| {
            let error = error.without_url();
            let late = error.is_timeout();
            let cause = if late { "no answer in time".to_owned() } else { innermost(&error) };
            Failure { cause, again_after: Some(Duration::ZERO) }
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let refused = REFUSALS.contains(&status.as_u16());
        let again_after = (!refused).then(|| wished(answer.headers()).min(LEFT_ALONE));
        Err(Failure { cause: format!("it answered {}", status.as_u16()), again_after })
    }
}

/// For how long an endpoint wants to be left alone. A date, as few write it, is not read.
fn wished(headers: &HeaderMap) -> Duration {
    let text = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    Duration::from_secs(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

/// The cause at the bottom: what is above it says where, which is hidden.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
