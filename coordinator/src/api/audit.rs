//! The audit log over HTTP: its newest entries, and whether its chain holds.

use axum::Json;
use axum::extract::State;
use data_encoding::HEXLOWER;
use gangline_common::time::wall_text;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, Problem};
use super::{App, Params, page_size};
use crate::store::Chained;

/// Query of the audit log.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParams {
    /// 1 to 1000; 100 when absent.
    page_size: Option<usize>,
    /// Only entries with a sequence below this one: `next_before` of the page before.
    before: Option<u64>,
}

/// One act.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditView {
    sequence: u64,
    at: String,
    actor: String,
    /// Address of the request.
    source: Option<String>,
    action: String,
    object: String,
    detail: String,
    /// SHA-256 of this entry, in which the hash of the one before is contained.
    hash: String,
}

impl From<&Chained> for AuditView {
    fn from(chained: &Chained) -> Self {
        let entry = &chained.entry;
        AuditView {
            sequence: chained.sequence,
            at: wall_text(entry.wall_ms),
            actor: entry.actor.clone(),
            source: entry.source.map(|address| address.to_string()),
            action: entry.action.clone(),
            object: entry.object.clone(),
            detail: entry.detail.clone(),
            hash: HEXLOWER.encode(&chained.hash()),
        }
    }
}

/// A page of the audit log, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditPage {
    entries: Vec<AuditView>,
    /// Absent at the beginning of the log.
    next_before: Option<u64>,
}

/// Who did what.
#[utoipa::path(get, path = "/api/v1/audit", params(AuditParams),
    responses((status = 200, body = AuditPage), (status = 403, response = Problem)))]
pub(super) async fn list_audit(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<AuditParams>,
) -> Result<Json<AuditPage>, ApiError> {
    authorize(&principal, Action::ReadAudit, &Object::Fleet)?;
    let size = page_size(params.page_size)?;
    let (log, before) = (shared.api.audit.clone(), params.before.unwrap_or(u64::MAX));
    let page = tokio::task::spawn_blocking(move || log.page(before, size))
        .await
        .map_err(|error| ApiError::internal("reading the audit log", &error))?
        .map_err(|error| ApiError::internal("reading the audit log", &error))?;
    let oldest = page.last().map(|entry| entry.sequence);
    let next_before = oldest.filter(|&sequence| sequence > 1 && page.len() == size);
    Ok(Json(AuditPage { entries: page.iter().map(AuditView::from).collect(), next_before }))
}

/// What came of a look at the whole log.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditVerdict {
    intact: bool,
    /// Entries that follow from each other, from the first one on.
    entries: u64,
    /// Hash of the last of them: to be kept elsewhere, since a log that was cut at its end is
    /// intact as far as it goes.
    hash: String,
    /// Where and how the chain breaks.
    broken: Option<String>,
}

/// Follows the chain of the whole log.
#[utoipa::path(get, path = "/api/v1/audit/verify",
    responses((status = 200, body = AuditVerdict), (status = 403, response = Problem)))]
pub(super) async fn verify_audit(
    State(shared): App,
    Caller(principal): Caller,
) -> Result<Json<AuditVerdict>, ApiError> {
    authorize(&principal, Action::ReadAudit, &Object::Fleet)?;
    let log = shared.api.audit.clone();
    let (head, broken) = tokio::task::spawn_blocking(move || log.verify())
        .await
        .map_err(|error| ApiError::internal("reading the audit log", &error))?;
    Ok(Json(AuditVerdict {
        intact: broken.is_none(),
        entries: head.sequence,
        hash: HEXLOWER.encode(&head.hash),
        broken,
    }))
}
