//! Webhooks: set, list, test and delete. No answer holds an address or, but once, a key.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use data_encoding::BASE64URL_NOPAD;
use gangline_common::random;
use gangline_common::time::{Timestamp, wall_text};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_BODY, BAD_PARAMETER, Kind, Problem, quoted};
use super::jobs::done;
use super::tokens::check_word;
use super::{App, Params, Selector, read_json};
use crate::core::credential::Principal;
use crate::core::event::Event;
use crate::core::notices::KINDS;
use crate::core::webhooks::{DeadLetter, Delivery, WebhookKey, WebhookKind, WebhookRecord};
use crate::store::NoticeLog;
use crate::store::notices::NoticeError;
use crate::webhooks::{Target, Trouble};

/// Kinds of events that one webhook names.
const MAX_EVENTS: usize = 32;
/// Events that are read at a time.
const PAGE: usize = 1000;

/// A webhook, and how far it was told.
type Told = (WebhookRecord, Option<Delivery>);

/// Query of every request about webhooks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WebhookParams {
    /// For administrators; the caller's own project when absent.
    project: Option<String>,
    /// For administrators: the webhooks that are told of every project and of the nodes.
    #[serde(default)]
    fleet: bool,
}

/// A webhook, without its address and key.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookView {
    name: String,
    /// Absent for one of the fleet.
    project: Option<String>,
    /// `generic`, `alertmanager`, `slack`, `feishu` or `dingtalk`.
    kind: &'static str,
    /// Scheme, host and port of its address.
    to: String,
    /// Kinds of events that it is told of; empty for all.
    events: Vec<String>,
    set_by: String,
    /// When, RFC 3339.
    set: String,
    delivered: u64,
    /// Events that were not kept long enough for it.
    missed: u64,
    /// Number of events that were given up, of the newest 100.
    dead: usize,
    /// Events that it wants, by kind and project, and has not come to yet. What is no alert, one of
    /// the kind `alertmanager` passes over.
    behind: u64,
    /// Null where the last attempt arrived, and before the first.
    failing: Option<FailingView>,
}

/// Attempts that have failed since the last one that arrived, or since the coordinator started.
#[derive(Serialize, ToSchema)]
pub(super) struct FailingView {
    attempts: u64,
    /// When the first of them failed, RFC 3339.
    since: String,
    /// Why the last one did.
    cause: String,
}

impl From<Trouble> for FailingView {
    fn from(trouble: Trouble) -> Self {
        let Trouble { attempts, since_ms, cause, .. } = trouble;
        FailingView { attempts, since: wall_text(since_ms), cause }
    }
}

/// Webhooks.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookList {
    /// By name.
    webhooks: Vec<WebhookView>,
}

/// A webhook.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookBody {
    /// An http or https URL. It is sealed, and no answer holds it.
    url: String,
    /// `generic`, `alertmanager`, `slack`, `feishu`, `dingtalk` or `wecom`; `generic` when absent.
    kind: Option<String>,
    /// What bodies of the kind `generic` are signed with: 16 to 256 visible ASCII characters. One is
    /// made when absent.
    key: Option<String>,
    /// Kinds of events, or their beginnings up to a `*`; absent or empty for all.
    #[serde(default)]
    events: Vec<String>,
}

/// A webhook is set, or tested.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookMade {
    name: String,
    /// The key, if one was made. It is shown this once.
    key: Option<String>,
}

/// Events that were given up.
#[derive(Serialize, ToSchema)]
pub(super) struct DeadLetters {
    /// Newest first, at most 100.
    dead: Vec<DeadLetterView>,
}

/// An event that was given up.
#[derive(Serialize, ToSchema)]
pub(super) struct DeadLetterView {
    id: String,
    kind: String,
    object: String,
    /// RFC 3339.
    at: String,
    attempts: u32,
    /// Why the last attempt failed.
    cause: String,
}

impl From<&DeadLetter> for DeadLetterView {
    fn from(letter: &DeadLetter) -> Self {
        DeadLetterView {
            id: letter.id.clone(),
            kind: letter.kind.clone(),
            object: letter.object.clone(),
            at: wall_text(letter.wall_ms),
            attempts: letter.attempts,
            cause: letter.cause.clone(),
        }
    }
}

/// The webhooks of a project, or of the fleet.
#[utoipa::path(get, path = "/api/v1/webhooks", params(WebhookParams),
    responses((status = 200, body = WebhookList), (status = 403, response = Problem)))]
pub(super) async fn list_webhooks(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<WebhookParams>,
) -> Result<Json<WebhookList>, ApiError> {
    let project = scope(&principal, params)?;
    let webhooks = shared.api.board.webhooks().into_iter();
    let webhooks: Vec<Told> =
        webhooks.filter(|(record, _)| record.key.project == project).collect();
    let log = shared.api.notices.clone();
    let counted = move || behind(&log, &webhooks).map(|behind| (webhooks, behind));
    let (webhooks, behind) = tokio::task::spawn_blocking(counted)
        .await
        .map_err(|error| ApiError::internal("reading the events", &error))?
        .map_err(|error| ApiError::internal("reading the events", &error))?;
    let view = |((record, delivery), behind): (Told, u64)| WebhookView {
        failing: shared.api.troubles.of(&record).map(FailingView::from),
        name: record.key.name,
        project: record.key.project,
        kind: record.kind.word(),
        to: record.shown,
        events: record.events,
        set_by: record.set_by,
        set: wall_text(record.set.wall_ms),
        delivered: delivery.as_ref().map_or(0, |delivery| delivery.delivered),
        missed: delivery.as_ref().map_or(0, |delivery| delivery.missed),
        dead: delivery.as_ref().map_or(0, |delivery| delivery.dead.len()),
        behind,
    };
    Ok(Json(WebhookList { webhooks: webhooks.into_iter().zip(behind).map(view).collect() }))
}

/// Sets a webhook, or replaces it. It is told of what happens from now on.
#[utoipa::path(put, path = "/api/v1/webhooks/{name}",
    params(WebhookParams, ("name" = String, Path, description = "Name of the webhook")),
    request_body(content = WebhookBody, content_type = "application/json"),
    responses((status = 200, body = WebhookMade), (status = 403, response = Problem),
        (status = 422, response = Problem), (status = 507, response = Problem)))]
pub(super) async fn set_webhook(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<WebhookParams>,
    Selector(name): Selector,
    body: Body,
) -> Result<Json<WebhookMade>, ApiError> {
    let project = scope(&principal, params)?;
    check_word(BAD_PARAMETER, "webhook", &name)?;
    let Some(WebhookBody { url, kind, key, events }) = read_json(body).await? else {
        return Err(ApiError::new(BAD_BODY, "the body is empty")
            .hint(r#"send {"url": "https://hooks.example.com/x"}, for example"#));
    };
    let kind = kind_named(kind.as_deref().unwrap_or("generic"))?;
    check_events(&events)?;
    let made = match key {
        Some(_) => None,
        None => Some(BASE64URL_NOPAD.encode(&random::bytes::<32>()?)),
    };
    let given = key.or_else(|| made.clone()).unwrap_or_default();
    let target = Target::new(&url, given, project.is_none())
        .map_err(|error| ApiError::new(BAD_BODY, error.to_string()))?;
    let key = WebhookKey { project, name: name.clone() };
    let sealer = shared.api.sealer.clone();
    let (of, called) = (key.project.clone().unwrap_or_default(), key.secret_name());
    let text = target.seal_text();
    // The first seal makes the key and waits for the disk.
    let sealed = tokio::task::spawn_blocking(move || sealer.seal(&of, &called, &text))
        .await
        .map_err(|error| ApiError::internal("sealing a webhook", &error))?
        .map_err(|error| ApiError::internal("sealing a webhook", &error))?;
    let (set_by, set) = (principal.user.clone(), Timestamp::now());
    let record = WebhookRecord { key, kind, shown: target.shown(), sealed, events, set_by, set };
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::SetWebhook { request, record, actor }).await?;
    let key = made.filter(|_| kind == WebhookKind::Generic);
    Ok(Json(WebhookMade { name, key }))
}

/// Deletes a webhook and what it could not be told of.
#[utoipa::path(delete, path = "/api/v1/webhooks/{name}",
    params(WebhookParams, ("name" = String, Path, description = "Name of the webhook")),
    responses((status = 204), (status = 403, response = Problem), (status = 404, response = Problem)))]
pub(super) async fn delete_webhook(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<WebhookParams>,
    Selector(name): Selector,
) -> Result<StatusCode, ApiError> {
    let key = WebhookKey { project: scope(&principal, params)?, name };
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::DeleteWebhook { request, key, actor }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes an event that only this webhook is told of. Whether it arrives shows in the list.
#[utoipa::path(post, path = "/api/v1/webhooks/{name}/test",
    params(WebhookParams, ("name" = String, Path, description = "Name of the webhook")),
    responses((status = 200, body = WebhookMade), (status = 403, response = Problem),
        (status = 404, response = Problem)))]
pub(super) async fn test_webhook(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<WebhookParams>,
    Selector(name): Selector,
) -> Result<Json<WebhookMade>, ApiError> {
    let key = WebhookKey { project: scope(&principal, params)?, name: name.clone() };
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::TestWebhook { request, key, actor }).await?;
    Ok(Json(WebhookMade { name, key: None }))
}

/// What a webhook could not be told of.
#[utoipa::path(get, path = "/api/v1/webhooks/{name}/dead",
    params(WebhookParams, ("name" = String, Path, description = "Name of the webhook")),
    responses((status = 200, body = DeadLetters), (status = 403, response = Problem),
        (status = 404, response = Problem)))]
pub(super) async fn dead_letters(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<WebhookParams>,
    Selector(name): Selector,
) -> Result<Json<DeadLetters>, ApiError> {
    let key = WebhookKey { project: scope(&principal, params)?, name };
    if !shared.api.board.webhooks().iter().any(|(record, _)| record.key == key) {
        return Err(super::error::no_such_webhook());
    }
    let delivery = shared.api.board.delivery(&key);
    let dead = delivery.iter().flat_map(|delivery| delivery.dead.iter().rev());
    Ok(Json(DeadLetters { dead: dead.map(DeadLetterView::from).collect() }))
}

/// The project that the caller means, when it is theirs to work in; `None` for the fleet.
fn scope(principal: &Principal, params: WebhookParams) -> Result<Option<String>, ApiError> {
    if params.fleet {
        authorize(principal, Action::ManageFleetWebhooks, &Object::Fleet)?;
        return match params.project {
            None => Ok(None),
            Some(_) => Err(ApiError::new(BAD_PARAMETER, "both a project and the fleet are named")),
        };
    }
    let project = params.project.unwrap_or_else(|| principal.project.clone());
    authorize(principal, Action::ManageWebhooks, &Object::Project(&project))?;
    check_word(BAD_PARAMETER, "project", &project)?;
    Ok(Some(project))
}

fn kind_named(word: &str) -> Result<WebhookKind, ApiError> {
    let found = WebhookKind::ALL.iter().find(|(known, _)| *known == word);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let known: Vec<&str> = WebhookKind::ALL.iter().map(|(word, _)| *word).collect();
        ApiError::new(BAD_BODY, format!("kind is {}", quoted(word)))
            .hint(format!("use one of {}", known.join(", ")))
    })
}

fn check_events(events: &[String]) -> Result<(), ApiError> {
    if events.len() > MAX_EVENTS {
        return Err(ApiError::new(BAD_BODY, format!("more than {MAX_EVENTS} kinds of events")));
    }
    events.iter().try_for_each(|wanted| check_kind(BAD_BODY, wanted))
}

/// Refuses, as this error, a kind of events that there is not, or the beginning of none: what never
/// happens is a slip of the pen.
pub(super) fn check_kind(error: Kind, wanted: &str) -> Result<(), ApiError> {
    let is_known = match wanted.strip_suffix('*') {
        Some(beginning) => KINDS.iter().any(|kind| kind.starts_with(beginning)),
        None => KINDS.contains(&wanted),
    };
    if is_known {
        return Ok(());
    }
    Err(ApiError::new(error, format!("no event is of the kind {}", quoted(wanted)))
        .hint(format!("use `job.*`, `node.*` or some of {}", KINDS.join(", "))))
}

/// For each webhook the events after its cursor that it wants. Of those that are kept, no more are
/// looked at than have come since the webhook that was told of least.
fn behind(log: &NoticeLog, webhooks: &[Told]) -> Result<Vec<u64>, NoticeError> {
    let mut cursors = Vec::with_capacity(webhooks.len());
    for (record, delivery) in webhooks {
        cursors.push(match delivery {
            Some(delivery) => delivery.cursor,
            // It is told of what happens from then on, and has not been told of anything.
            None => log.number_at(record.set.wall_ms)?,
        });
    }
    let mut counts = vec![0_u64; webhooks.len()];
    let Some(mut from) = cursors.iter().copied().min() else { return Ok(counts) };
    loop {
        let page = log.after(from, PAGE)?;
        for (((record, _), cursor), count) in webhooks.iter().zip(&cursors).zip(&mut counts) {
            let news = page.iter().filter(|numbered| numbered.sequence > *cursor);
            *count += news.filter(|numbered| record.wants(&numbered.notice)).count() as u64;
        }
        match page.last() {
            Some(last) if page.len() == PAGE => from = last.sequence,
            Some(_) | None => return Ok(counts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::effect::Write;
    use crate::core::notices::Notice;
    use crate::core::secrets::Sealed;
    use crate::store::Store;

    #[test]
    fn kinds_that_there_are_not_are_refused() {
        for known in ["job.failed", "job.*", "node.l*", "*"] {
            assert!(check_kind(BAD_PARAMETER, known).is_ok(), "{known}");
        }
        for unknown in ["job.faild", "jobs.*", "job", ""] {
            let refused = check_kind(BAD_PARAMETER, unknown);
            assert_eq!(refused.unwrap_err().status(), StatusCode::BAD_REQUEST, "{unknown}");
        }
        assert!(check_events(&["job.*".to_owned(), "node.nosuch".to_owned()]).is_err());
    }

    #[test]
    fn a_webhook_is_behind_by_what_it_wants() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(&directory.path().join("store.redb"), false, "c").unwrap();
        let notice = |number: u64| {
            let is_job = number.is_multiple_of(2);
            Write::Notice(Notice {
                wall_ms: number,
                kind: if is_job { "job.failed" } else { "node.joined" }.to_owned(),
                object: String::new(),
                project: is_job.then(|| "rl".to_owned()),
                reason: String::new(),
            })
        };
        let last = PAGE as u64 + 100;
        store.commit(&(1..=last).map(notice).collect::<Vec<_>>()).unwrap();
        let told = |project: Option<&str>, events: &[&str], set_ms: u64, cursor: Option<u64>| {
            let key = WebhookKey { project: project.map(str::to_owned), name: "h".to_owned() };
            let delivery = cursor.map(|cursor| {
                let key = key.clone();
                Delivery { key, cursor, delivered: 0, missed: 0, dead: Vec::new() }
            });
            let record = WebhookRecord {
                key,
                kind: WebhookKind::Generic,
                shown: String::new(),
                sealed: Sealed(Vec::new()),
                events: events.iter().map(|&kind| kind.to_owned()).collect(),
                set_by: String::new(),
                set: Timestamp { wall_ms: set_ms, ..Timestamp::default() },
            };
            (record, delivery)
        };
        let webhooks = [
            told(None, &[], 1, Some(0)),
            told(None, &["job.*"], 1, Some(0)),
            told(Some("rl"), &[], 1, Some(last - 10)),
            told(Some("other"), &[], 1, Some(0)),
            told(None, &["node.joined"], 1, Some(last)),
            told(None, &[], last - 9, None),
        ];
        let counts = behind(&store.notices(), &webhooks).unwrap();
        assert_eq!(counts, [last, last / 2, 5, 0, 0, 10]);
        assert_eq!(behind(&store.notices(), &[]).unwrap(), [0; 0]);
    }
}
