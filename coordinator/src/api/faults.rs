//! Faults for simulated GPUs: an operator sees how the fleet takes a sick node without making one sick.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use gangline_common::request::RequestError;
use gangline_common::wire::request::{AgentRequest, FailureReason, Fault, RequestFailure};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, BAD_BODY, NOT_SIMULATED, Problem, quoted};
use super::jobs::done;
use super::nodes::find_node;
use super::scenes::problem;
use super::{App, Selector, read_json};
use crate::agents::AskError;
use crate::core::event::Event;

/// What is to happen to a node's simulated GPUs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultBody {
    /// `xid=N`: the first GPU raises Xid N; `link`: an NVLink of it goes down; `kill`: it is lost;
    /// `heal`: all are well again.
    fault: String,
}

/// What was done.
#[derive(Serialize, ToSchema)]
pub(super) struct FaultDone {
    node: String,
    fault: String,
    /// One sentence.
    done: String,
}

fn read_fault(text: &str) -> Option<Fault> {
    match text {
        "link" => Some(Fault::Link),
        "kill" => Some(Fault::Kill),
        "heal" => Some(Fault::Heal),
        other => Some(Fault::Xid { code: other.strip_prefix("xid=")?.parse().ok()? }),
    }
}

/// Makes a simulated GPU of a node fail, or all of them be well again. Only for nodes whose GPUs are
/// simulated; what follows is what would follow on a real node.
#[utoipa::path(post, path = "/api/v1/nodes/{id}/inject",
    params(("id" = String, Path, description = "Id or name")),
    request_body(content = FaultBody, content_type = "application/json"),
    responses((status = 200, body = FaultDone), (status = 403, response = Problem),
        (status = 404, response = Problem), (status = 409, response = Problem),
        (status = 422, response = Problem), (status = 501, response = Problem),
        (status = 502, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn inject_fault(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    body: Body,
) -> Result<Json<FaultDone>, ApiError> {
    authorize(&principal, Action::MaintainNode, &Object::Fleet)?;
    let hint = "use xid=79 (or another number), link, kill or heal";
    let body: Option<FaultBody> = read_json(body).await?;
    let wanted = body.map(|body| body.fault).unwrap_or_default();
    let fault = read_fault(&wanted).ok_or_else(|| {
        ApiError::new(BAD_BODY, format!("{} is not a fault", quoted(&wanted))).hint(hint)
    })?;
    let node = find_node(&shared, &id)?.node.clone();
    let (of, what, actor) = (node.id.clone(), wanted.clone(), principal.clone());
    let event = |request| Event::FaultAsked { request, node: of, fault: what, actor };
    done(&shared, &principal, event).await?;
    let answer = shared.api.agents.ask(&node.id, &AgentRequest::Inject(fault)).await;
    let said = answer.map_err(|error| match error {
        AskError::Request(RequestError::Failed(RequestFailure {
            reason: FailureReason::NotHere,
            text,
        })) => ApiError::new(NOT_SIMULATED, format!("{}: {}", quoted(&node.name), quoted(&text)))
            .hint("nothing was done; a node with real GPUs is never made sick"),
        other => problem(other, &node.name),
    })?;
    let done = String::from_utf8_lossy(&said).into_owned();
    Ok(Json(FaultDone { node: node.name.clone(), fault: wanted, done }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        assert_eq!(read_fault("xid=79"), Some(Fault::Xid { code: 79 }));
        assert_eq!(read_fault("kill"), Some(Fault::Kill));
        for text in ["", "xid", "xid=", "xid=-1", "Kill", "xid=79 "] {
            assert_eq!(read_fault(text), None, "{text}");
        }
    }
}
