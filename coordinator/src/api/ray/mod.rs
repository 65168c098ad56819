//! Ray's Jobs API, so that the `ray job` command and `JobSubmissionClient` work unchanged. The
//! contract is what these clients do (Ray 2.60.0): exact paths, plain-text errors, and jobs in
//! Ray's words. What is behind it is the same as behind our own routes.

mod address;
mod details;
mod logs;
mod packages;
mod submit;
mod tail;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::routing::{MethodRouter, delete, get, post, put};
use gangline_common::ids::JobId;
use serde_json::{Value, json};

use self::address::Address;
use self::details::JobDetails;
use super::auth::{Action, Caller, Object, authorize, sees};
use super::error::{ApiError, NO_SUCH_JOB, cleaned};
use super::jobs::{ask_to_stop, refused};
use super::{App, Shared};
use crate::board::{Board, JobSnapshot};
use crate::core::credential::Principal;
use crate::core::effect::Rejected;
use crate::core::job::Job;

/// Version of the Jobs API that is spoken.
const API_VERSION: &str = "4";
/// What the fleet is said to run while no node has reported its Ray.
const DEFAULT_RAY_VERSION: &str = "2.60.0";
/// Jobs of a list, the newest: this contract has no pages.
const MAX_LISTED: usize = 1000;

type RayRoute = (Action, Method, &'static str, MethodRouter<Arc<Shared>>);

/// Every route: what it does, its method and path, its handler. The slash at the end of the
/// collection is part of the contract.
pub(super) fn routes() -> Vec<RayRoute> {
    use Action::*;
    const COLLECTION: &str = "/api/jobs/";
    const JOB: &str = "/api/jobs/{id}";
    const PACKAGE: &str = "/api/packages/{protocol}/{package}";
    vec![
        (ReadNodes, Method::GET, "/api/version", get(version)),
        (ReadPackages, Method::GET, PACKAGE, get(packages::find_package)),
        (WritePackage, Method::PUT, PACKAGE, put(packages::put_package)),
        (SubmitJob, Method::POST, COLLECTION, post(submit::submit_job)),
        (ReadJobs, Method::GET, COLLECTION, get(list_jobs)),
        (ReadJobs, Method::GET, JOB, get(get_job)),
        (DeleteJob, Method::DELETE, JOB, delete(delete_job)),
        (ReadJobs, Method::GET, "/api/jobs/{id}/logs", get(logs::whole_log)),
        (ReadJobs, Method::GET, "/api/jobs/{id}/logs/tail", get(tail::tail_log)),
        (StopJob, Method::POST, "/api/jobs/{id}/stop", post(stop_job)),
    ]
}

/// Asked two or three times by every command. The Ray version is the one that most nodes of the
/// pool have, because clients decide by it what they may send.
async fn version(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
) -> Result<Json<Value>, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    let reported = shared.api.board.common_version("ray", address.pool.as_deref());
    let ray_version = reported.filter(|version| is_version(version));
    Ok(Json(json!({
        "version": API_VERSION,
        "ray_version": ray_version.as_deref().unwrap_or(DEFAULT_RAY_VERSION),
        "ray_commit": "unknown",
        "session_name": shared.api.cluster,
    })))
}

/// Whether clients can read it as a version (PEP 440); agents may report any text.
fn is_version(text: &str) -> bool {
    let numbers = text.split(['a', 'b', 'r', '.', '+']).next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+');
    numbers.parse::<u32>().is_ok()
        && text.chars().all(plain)
        && text.split(['.', '+']).all(|part| !part.is_empty())
}

/// The job of this id, when the caller may do this to it; ids only, no names.
///
/// # Errors
/// The same 404 for a job that does not exist and for one that the caller may not see.
fn find_job(
    board: &Board,
    principal: &Principal,
    action: Action,
    id: &str,
) -> Result<JobSnapshot, ApiError> {
    let found = JobId::new(id).ok().and_then(|id| board.job(&id));
    found
        .filter(|s| authorize(principal, action, &Object::Job(&s.job)).is_ok())
        .ok_or_else(|| ApiError::new(NO_SUCH_JOB, format!("Job {} does not exist", cleaned(id))))
}

async fn list_jobs(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
) -> Result<Json<Vec<JobDetails>>, ApiError> {
    let board = &shared.api.board;
    // A standing cluster is no job of Ray's; its address lists the jobs on it.
    let wanted = |job: &Arc<Job>| {
        let of_cluster = address.cluster.as_ref().is_none_or(|cluster| {
            let spec = job.request.cluster.as_ref();
            spec == Some(cluster) || job.cluster.as_ref().is_some_and(|id| id.as_str() == cluster)
        });
        !job.is_cluster() && of_cluster && sees(&principal, job)
    };
    let visible = board.jobs().into_iter().filter(wanted).take(MAX_LISTED);
    let snapshots = visible.filter_map(|job| board.job(&job.id));
    snapshots
        .map(|snapshot| JobDetails::of(&snapshot, &principal))
        .collect::<Result<_, _>>()
        .map(Json)
}

async fn get_job(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
) -> Result<Json<JobDetails>, ApiError> {
    let board = &shared.api.board;
    let snapshot = find_job(board, &principal, Action::ReadJobs, address.id())?;
    JobDetails::of(&snapshot, &principal).map(Json)
}

/// `stopped` is false for a job that had ended before.
async fn stop_job(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
) -> Result<Json<Value>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::StopJob, address.id())?;
    let asked = ask_to_stop(&shared, &principal, &snapshot.job.id, String::new()).await?;
    match asked {
        Ok(()) => Ok(Json(json!({ "stopped": true }))),
        Err(Rejected::AlreadyEnded { .. }) => Ok(Json(json!({ "stopped": false }))),
        Err(rejected) => Err(refused(&shared, &principal, rejected)),
    }
}

async fn delete_job(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
) -> Result<Json<Value>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::DeleteJob, address.id())?;
    super::jobs::delete(&shared, &principal, &snapshot.job.id).await?;
    Ok(Json(json!({ "deleted": true })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_that_clients_can_read_are_told() {
        for good in ["2.60.0", "2.9", "3.0.0.dev0", "2.60.0rc1", "2.60.0+cu12"] {
            assert!(is_version(good), "{good}");
        }
        for bad in ["", "unknown", "2..0", ".2", "2.60 (patched)", "v2", "2.60.", "-1.0"] {
            assert!(!is_version(bad), "{bad}");
        }
    }
}
