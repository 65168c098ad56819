//! Secrets of a project: set, list and delete. No answer holds a value.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use gangline_common::time::{Timestamp, wall_text};
use gangline_spec::is_env_name;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_BODY, BAD_PARAMETER, Problem, TOO_LARGE, quoted};
use super::jobs::done;
use super::tokens::check_word;
use super::{App, Params, Selector, read_body};
use crate::core::credential::Principal;
use crate::core::event::Event;
use crate::core::secrets::SecretRecord;
use crate::secrets::PlainText;

/// Largest value, in bytes.
const MAX_VALUE: usize = 64 << 10;
/// Longest name, in characters.
const MAX_NAME: usize = 128;

/// Query of every request about secrets.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SecretParams {
    /// For administrators; the caller's own project when absent.
    project: Option<String>,
}

/// A secret, without its value.
#[derive(Serialize, ToSchema)]
pub(super) struct SecretView {
    name: String,
    /// Who gave it its present value.
    set_by: String,
    /// When, RFC 3339.
    set: String,
}

/// The secrets of a project.
#[derive(Serialize, ToSchema)]
pub(super) struct SecretList {
    project: String,
    /// By name.
    secrets: Vec<SecretView>,
}

/// The secrets that there are: names, never values.
#[utoipa::path(get, path = "/api/v1/secrets", params(SecretParams),
    responses((status = 200, body = SecretList), (status = 403, response = Problem)))]
pub(super) async fn list_secrets(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<SecretParams>,
) -> Result<Json<SecretList>, ApiError> {
    let project = project(&principal, params)?;
    let view = |secret: &SecretRecord| SecretView {
        name: secret.name.clone(),
        set_by: secret.set_by.clone(),
        set: wall_text(secret.set.wall_ms),
    };
    let secrets = shared.api.board.secrets(&project).iter().map(|secret| view(secret)).collect();
    Ok(Json(SecretList { project, secrets }))
}

/// Sets a secret, or replaces its value: jobs that start from now on get the new one.
#[utoipa::path(put, path = "/api/v1/secrets/{name}",
    params(SecretParams,
        ("name" = String, Path, description = "`[A-Za-z_][A-Za-z0-9_]{0,127}`: the variable's name")),
    request_body(content = String, content_type = "text/plain",
        description = "The value: 1 to 65536 bytes of UTF-8 text without NUL, kept as it is"),
    responses((status = 204), (status = 403, response = Problem), (status = 413, response = Problem),
        (status = 422, response = Problem), (status = 507, response = Problem)))]
pub(super) async fn set_secret(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<SecretParams>,
    Selector(name): Selector,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let project = project(&principal, params)?;
    if !is_name(&name) {
        return Err(ApiError::new(BAD_PARAMETER, format!("{} cannot be a secret", quoted(&name)))
            .hint(format!(
                "use 1 to {MAX_NAME} letters, digits and `_`, not a digit first: it is the name \
                 of a variable"
            )));
    }
    let value = value(body).await?;
    let sealer = shared.api.sealer.clone();
    let (of, called) = (project.clone(), name.clone());
    // The first seal makes the key and waits for the disk.
    let sealing = tokio::task::spawn_blocking(move || sealer.seal(&of, &called, &value)).await;
    let sealed = sealing
        .map_err(|error| ApiError::internal("sealing a secret", &error))?
        .map_err(|error| ApiError::internal("sealing a secret", &error))?;
    let (set_by, set) = (principal.user.clone(), Timestamp::now());
    let record = SecretRecord { project, name, sealed, set_by, set };
    let actor = principal.clone();
    done(&shared, &principal, |request| Event::SetSecret { request, record, actor }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes a secret that no waiting or running job names.
#[utoipa::path(delete, path = "/api/v1/secrets/{name}",
    params(SecretParams, ("name" = String, Path, description = "Name of the secret")),
    responses((status = 204), (status = 403, response = Problem), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn delete_secret(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<SecretParams>,
    Selector(name): Selector,
) -> Result<StatusCode, ApiError> {
    let project = project(&principal, params)?;
    let actor = principal.clone();
    let event = |request| Event::DeleteSecret { request, project, name, actor };
    done(&shared, &principal, event).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The project that the caller means, when it is theirs to work in.
fn project(principal: &Principal, params: SecretParams) -> Result<String, ApiError> {
    let project = params.project.unwrap_or_else(|| principal.project.clone());
    authorize(principal, Action::ManageSecrets, &Object::Project(&project))?;
    check_word(BAD_PARAMETER, "project", &project)?;
    Ok(project)
}

/// A body that a variable can hold.
async fn value(body: Body) -> Result<PlainText, ApiError> {
    let bytes = read_body(body, MAX_VALUE).await.map_err(|error| {
        if error.status() != TOO_LARGE.status {
            return error;
        }
        error.hint("put it into a file on a shared path, and only its key here")
    })?;
    let bad = |detail| Err(ApiError::new(BAD_BODY, detail));
    match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => bad("the value is empty"),
        Ok(text) if text.contains('\0') => bad("the value has a NUL, which no variable can hold"),
        Ok(text) => Ok(PlainText::new(text)),
        Err(_) => bad("the value is not UTF-8 text, which a variable has to be"),
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME && is_env_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_variable() {
        for good in ["A", "_", "HF_TOKEN", "a1", &"x".repeat(128)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "1A", "A-B", "A B", "\u{e4}", "A=", "../A", &"x".repeat(129)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
