//! The JSON Schema of a job spec with the names of this fleet, for editors.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use gangline_spec::{schema, templates};
use serde_json::Value;

use super::App;

/// The schema (draft-07) of a job spec. Pools and GPU models are those of this fleet. An editor
/// cannot log in, so it is for everybody.
#[utoipa::path(get, path = "/schema/job.v1.json",
    responses((status = 200, content_type = "application/json")), security(()))]
pub(super) async fn job_schema(State(shared): App) -> Json<Value> {
    let (mut pools, mut models) = (BTreeSet::new(), BTreeSet::new());
    for snapshot in shared.api.board.nodes() {
        if let Some(inventory) = snapshot.node.inventory.as_ref().filter(|_| !snapshot.node.revoked)
        {
            pools.insert(inventory.pool.clone());
            models.extend(inventory.gpus.iter().map(|gpu| gpu.name.clone()));
        }
    }
    let (pools, models): (Vec<String>, Vec<String>) =
        (pools.into_iter().collect(), models.into_iter().collect());
    Json(schema(&pools, &models, templates()))
}
