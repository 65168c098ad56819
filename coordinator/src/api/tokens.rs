//! Tokens: for new agents and for users of the API. A token is shown once, at its making.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use data_encoding::BASE64URL_NOPAD;
use gangline_common::ids::short_suffix;
use gangline_common::join_token::JoinToken;
use gangline_common::random;
use gangline_common::time::{Timestamp, wall_text};
use gangline_common::tls::sha256;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_BODY, Kind, Problem, quoted};
use super::jobs::done;
use super::{App, Selector, Shared, read_json};
use crate::core::credential::{ApiTokenRecord, JoinTokenRecord, Principal, Role};
use crate::core::event::Event;

/// Most agents that one join token lets in.
const MAX_USES: u32 = 10_000;
/// Life of a join token, in seconds.
const TTL_S: std::ops::RangeInclusive<u64> = 1..=30 * 24 * 3600;
/// Life of a token of the API, in seconds: up to ten years.
const API_TTL_S: std::ops::RangeInclusive<u64> = 1..=10 * 365 * 24 * 3600;

/// What kind of token to make.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum TokenRequest {
    /// Lets new agents join.
    Join {
        /// Agents that may join with it, 1 to 10000.
        #[serde(default = "one")]
        uses: u32,
        /// Its life in seconds, 1 to 2592000.
        #[serde(default = "hour")]
        ttl_s: u64,
        /// Pool that the agents are bound to; they choose without it.
        #[serde(default)]
        pool: Option<String>,
    },
    /// Lets a user use this API. A token of the same name, user, project and role is replaced.
    Api {
        name: String,
        user: String,
        project: String,
        role: RoleWord,
        /// Its life in seconds, 1 to 315360000; it stays without it.
        #[serde(default)]
        ttl_s: Option<u64>,
    },
}

fn one() -> u32 {
    1
}

fn hour() -> u64 {
    3600
}

/// What a token of the API may do.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RoleWord {
    /// A look at the jobs of its own project, and at the nodes.
    Viewer,
    /// The jobs of its own project, and a look at the nodes.
    Member,
    /// Everybody's jobs and the audit log as well; submits to its own project.
    Operator,
    /// Everything.
    Admin,
}

impl From<RoleWord> for Role {
    fn from(word: RoleWord) -> Self {
        match word {
            RoleWord::Viewer => Role::Viewer,
            RoleWord::Member => Role::Member,
            RoleWord::Operator => Role::Operator,
            RoleWord::Admin => Role::Admin,
        }
    }
}

/// A new token. It cannot be shown again.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenAnswer {
    token: String,
    /// Public id of a join token, name of a token of the API.
    id: String,
    /// RFC 3339; null for a token that does not expire.
    expires: Option<String>,
}

/// Makes a token.
#[utoipa::path(post, path = "/api/v1/tokens", request_body = TokenRequest,
    responses((status = 201, body = TokenAnswer), (status = 403, response = Problem),
        (status = 422, response = Problem)))]
pub(super) async fn create_token(
    State(shared): App,
    Caller(principal): Caller,
    body: Body,
) -> Result<(StatusCode, Json<TokenAnswer>), ApiError> {
    authorize(&principal, Action::ManageTokens, &Object::Fleet)?;
    let Some(request) = read_json::<TokenRequest>(body).await? else {
        return Err(ApiError::new(BAD_BODY, "the body is empty")
            .hint(r#"send {"kind": "join"} or {"kind": "api", "name": …}"#));
    };
    let answer = match request {
        TokenRequest::Join { uses, ttl_s, pool } => {
            join_token(&shared, &principal, uses, ttl_s, pool).await?
        }
        TokenRequest::Api { name, user, project, role, ttl_s } => {
            let stands_for = Principal { user, project, role: role.into(), from: None };
            api_token(&shared, &principal, &name, stands_for, ttl_s).await?
        }
    };
    Ok((StatusCode::CREATED, Json(answer)))
}

/// A token, without what would let anybody in.
#[derive(Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum TokenView {
    Join {
        id: String,
        uses_left: u32,
        pool: Option<String>,
        created_by: String,
        created: String,
        expires: String,
    },
    Api {
        name: String,
        user: String,
        project: String,
        role: &'static str,
        created: String,
        /// Null for a token that stays.
        expires: Option<String>,
        expired: bool,
    },
}

/// Every token.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenList {
    tokens: Vec<TokenView>,
}

/// The tokens that there are; never what they consist of.
#[utoipa::path(get, path = "/api/v1/tokens",
    responses((status = 200, body = TokenList), (status = 403, response = Problem)))]
pub(super) async fn list_tokens(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Json<TokenList>, ApiError> {
    authorize(&principal, Action::ManageTokens, &Object::Fleet)?;
    let now = Timestamp::now().wall_ms;
    let (api, join) = shared.api.board.tokens();
    let api = api.into_iter().map(|token| TokenView::Api {
        name: token.name,
        user: token.user,
        project: token.project,
        role: token.role.word(),
        created: wall_text(token.created.wall_ms),
        expires: token.expires_wall_ms.map(wall_text),
        expired: token.expires_wall_ms.is_some_and(|expires| now >= expires),
    });
    let join = join.into_iter().map(|token| TokenView::Join {
        id: token.id,
        uses_left: token.uses_left,
        pool: token.pool,
        created_by: token.created_by,
        created: wall_text(token.created.wall_ms),
        expires: wall_text(token.expires_wall_ms),
    });
    Ok(Json(TokenList { tokens: api.chain(join).collect() }))
}

/// Deletes a token: from then on nobody is let in with it.
#[utoipa::path(delete, path = "/api/v1/tokens/{name}",
    params(("name" = String, Path, description = "Name of a token of the API, id of a join token")),
    responses((status = 204), (status = 404, response = Problem), (status = 409, response = Problem)))]
pub(super) async fn delete_token(
    State(shared): App,
    Caller(principal): Caller,
    Selector(name): Selector,
) -> Result<StatusCode, ApiError> {
    authorize(&principal, Action::ManageTokens, &Object::Fleet)?;
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::DeleteToken { request, name, actor }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn join_token(
    shared: &Shared,
    principal: &Principal,
    uses: u32,
    ttl_s: u64,
    pool: Option<String>,
) -> Result<TokenAnswer, ApiError> {
    if !(1..=MAX_USES).contains(&uses) {
        return Err(bad(format!("uses is {uses}"), format!("use 1 to {MAX_USES}")));
    }
    if !TTL_S.contains(&ttl_s) {
        let hint = format!("use {} to {} seconds", TTL_S.start(), TTL_S.end());
        return Err(bad(format!("ttl_s is {ttl_s}"), hint));
    }
    if let Some(pool) = &pool {
        check_word(BAD_BODY, "pool", pool)?;
    }
    let created = Timestamp::now();
    let token = JoinToken {
        pin: shared.api.ca_pin,
        id: short_suffix(random::number()?),
        secret: random::bytes()?,
    };
    let record = JoinTokenRecord {
        id: token.id.clone(),
        secret_sha256: sha256(&token.secret),
        uses_left: uses,
        expires_wall_ms: created.wall_ms.saturating_add(ttl_s * 1000),
        pool,
        created_by: principal.user.clone(),
        created,
    };
    let expires = Some(wall_text(record.expires_wall_ms));
    let actor = principal.clone();
    // The token is handed out only after it is durable.
    done(shared, principal, |request| Event::CreateJoinToken { request, record, actor }).await?;
    Ok(TokenAnswer { token: token.reveal(), id: token.id, expires })
}

async fn api_token(
    shared: &Shared,
    principal: &Principal,
    name: &str,
    stands_for: Principal,
    ttl_s: Option<u64>,
) -> Result<TokenAnswer, ApiError> {
    check_word(BAD_BODY, "name", name)?;
    check_word(BAD_BODY, "user", &stands_for.user)?;
    check_word(BAD_BODY, "project", &stands_for.project)?;
    if let Some(ttl_s) = ttl_s.filter(|ttl_s| !API_TTL_S.contains(ttl_s)) {
        let hint = format!("use {} to {} seconds", API_TTL_S.start(), API_TTL_S.end());
        return Err(bad(format!("ttl_s is {ttl_s}"), hint));
    }
    let created = Timestamp::now();
    let expires_wall_ms = ttl_s.map(|ttl_s| created.wall_ms.saturating_add(ttl_s * 1000));
    let secret: [u8; 32] = random::bytes()?;
    let token = format!("gla_{}", BASE64URL_NOPAD.encode(&secret));
    let record = ApiTokenRecord {
        name: name.to_owned(),
        sha256: sha256(token.as_bytes()),
        user: stands_for.user,
        project: stands_for.project,
        role: stands_for.role,
        expires_wall_ms,
        created,
    };
    let actor = principal.clone();
    done(shared, principal, |request| Event::CreateApiToken { request, record, actor }).await?;
    Ok(TokenAnswer { token, id: name.to_owned(), expires: expires_wall_ms.map(wall_text) })
}

/// Names of people and things: what is safe in a path, a list and a terminal.
pub(super) fn check_word(kind: Kind, what: &str, text: &str) -> Result<(), ApiError> {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    if first && text.len() <= 63 && text.bytes().all(plain) {
        return Ok(());
    }
    Err(ApiError::new(kind, format!("{what} is {}", quoted(text)))
        .hint("use 1 to 63 characters of A-Z a-z 0-9 - _ . @, the first a letter or a digit"))
}

fn bad(detail: String, hint: String) -> ApiError {
    ApiError::new(BAD_BODY, detail).hint(hint)
}
