//! The JSON Schema of a job spec, for editors: plain for everybody, with the names of this fleet for
//! those who may see its nodes.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::{Extension, Json};
use gangline_spec::{Names, schema, templates};
use serde_json::Value;

use super::auth::{Action, Caller, Object, authorize};
use super::error::ApiError;
use super::{App, Shared};

/// The schema (draft-07) of a job spec. An editor cannot log in, so without a token it is answered
/// as well, without names. With one it completes the pools and GPU models of this fleet.
#[utoipa::path(get, path = "/schema/job.v1.json",
    responses((status = 200, content_type = "application/json")), security((), ("bearer" = [])))]
pub(super) async fn job_schema(
    State(shared): App,
    caller: Option<Extension<Caller>>,
) -> Result<Json<Value>, ApiError> {
    let names = match caller {
        Some(Extension(Caller(principal))) => {
            authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
            names(&shared)
        }
        None => Names::default(),
    };
    Ok(Json(schema(&names, templates())))
}

/// Pools and GPU models of the nodes that may come back.
fn names(shared: &Shared) -> Names {
    let (declared, mut models) = (shared.api.board.declared_pools(), BTreeSet::new());
    let mut pools: BTreeSet<String> = declared.into_keys().collect();
    for snapshot in shared.api.board.nodes() {
        let node = snapshot.node;
        if let Some(inventory) = node.inventory.as_ref().filter(|_| !node.revoked) {
            pools.extend(node.pool().map(str::to_owned));
            models.extend(inventory.gpus.iter().map(|gpu| gpu.name.clone()));
        }
    }
    Names { pools: pools.into_iter().collect(), gpu_models: models.into_iter().collect() }
}
