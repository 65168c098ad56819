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
use super::error::{ApiError, BAD_BODY, BAD_PARAMETER, Problem, quoted};
use super::jobs::done;
use super::tokens::check_word;
use super::{App, Params, Selector, read_json};
use crate::core::credential::Principal;
use crate::core::event::Event;
use crate::core::notices::KINDS;
use crate::core::webhooks::{DeadLetter, Delivery, WebhookKey, WebhookKind, WebhookRecord};
use crate::webhooks::Target;

/// Kinds of events that one webhook names.
const MAX_EVENTS: usize = 32;

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
    /// Events that it has not been told of yet, whether or not it is to be.
    behind: u64,
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
    let log = shared.api.notices.clone();
    let newest = tokio::task::spawn_blocking(move || log.newest())
        .await
        .map_err(|error| ApiError::internal("reading the events", &error))?
        .map_err(|error| ApiError::internal("reading the events", &error))?;
    let webhooks = shared.api.board.webhooks().into_iter();
    let webhooks = webhooks.filter(|(record, _)| record.key.project == project);
    let view = |(record, delivery): (WebhookRecord, Option<Delivery>)| WebhookView {
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
        behind: delivery.as_ref().map_or(0, |delivery| newest.saturating_sub(delivery.cursor)),
    };
    Ok(Json(WebhookList { webhooks: webhooks.map(view).collect() }))
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

/// What is never told is a slip of the pen.
fn check_events(events: &[String]) -> Result<(), ApiError> {
    if events.len() > MAX_EVENTS {
        return Err(ApiError::new(BAD_BODY, format!("more than {MAX_EVENTS} kinds of events")));
    }
    let known = |wanted: &String| match wanted.strip_suffix('*') {
        Some(beginning) => KINDS.iter().any(|kind| kind.starts_with(beginning)),
        None => KINDS.contains(&wanted.as_str()),
    };
    match events.iter().find(|wanted| !known(wanted)) {
        None => Ok(()),
        Some(unknown) => {
            Err(ApiError::new(BAD_BODY, format!("no event is of the kind {}", quoted(unknown)))
                .hint(format!("use `job.*`, `node.*` or some of {}", KINDS.join(", "))))
        }
    }
}
