//! A job in Ray's words: the object that its clients call JobDetails.

use std::collections::BTreeMap;

use gangline_common::time::Timestamp;
use gangline_spec::Reward;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::auth::{HIDDEN, sees_values};
use crate::api::error::ApiError;
use crate::api::view::{exit_code, newest_gang};
use crate::board::JobSnapshot;
use crate::core::credential::Principal;
use crate::core::job::{Job, JobRequest, JobState, written};

/// Times are milliseconds since 1970. A field that Ray's clients require to be there and that is
/// not known is null.
#[derive(Debug, Serialize)]
pub(super) struct JobDetails {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Ray's own number of the driver, which no agent reports.
    job_id: Option<String>,
    submission_id: String,
    driver_info: Option<DriverInfo>,
    status: &'static str,
    entrypoint: String,
    /// Why it waits, or why it ended.
    message: String,
    error_type: Option<&'static str>,
    start_time: Option<u64>,
    end_time: Option<u64>,
    metadata: BTreeMap<String, String>,
    runtime_env: Value,
    driver_agent_http_address: Option<String>,
    driver_node_id: Option<String>,
    driver_exit_code: Option<i32>,
}

/// A driver that has connected to its Ray cluster.
#[derive(Debug, Serialize)]
struct DriverInfo {
    /// Its submission id in the gang's own Ray.
    id: String,
    node_ip_address: String,
    /// Not known, but required: empty.
    pid: &'static str,
}

impl JobDetails {
    /// The job as `reader` may see it.
    pub fn of(snapshot: &JobSnapshot, reader: &Principal) -> Result<JobDetails, ApiError> {
        let job = &snapshot.job;
        let attempt = snapshot.attempts.last();
        let driver = attempt.and_then(|attempt| attempt.ray.as_ref()?.driver.as_ref());
        let driver_info = attempt.zip(driver).and_then(|(attempt, driver)| {
            Some(DriverInfo {
                id: job.operation(attempt.number),
                node_ip_address: driver.address.clone()?,
                pid: "",
            })
        });
        Ok(JobDetails {
            kind: "SUBMISSION",
            job_id: None,
            submission_id: job.id.to_string(),
            driver_info,
            status: status(job.state),
            entrypoint: entrypoint(&job.request),
            message: job.reason.clone(),
            error_type: None,
            start_time: job.started.map(ms),
            end_time: job.ended.map(ms),
            metadata: metadata(job)?,
            runtime_env: runtime_env(job, reader),
            driver_agent_http_address: None,
            driver_node_id: driver.map(|driver| driver.ray_node_id.clone()),
            driver_exit_code: match job.state {
                JobState::Succeeded => Some(0),
                _ => exit_code(job, newest_gang(snapshot)),
            },
        })
    }
}

fn ms(time: Timestamp) -> u64 {
    time.wall_ms
}

/// Ray has five states.
fn status(state: JobState) -> &'static str {
    match state {
        JobState::Pending | JobState::Starting => "PENDING",
        JobState::Running | JobState::Stopping | JobState::Held => "RUNNING",
        JobState::Succeeded => "SUCCEEDED",
        JobState::Failed | JobState::Timeout => "FAILED",
        JobState::Cancelled => "STOPPED",
    }
}

/// What runs, as one text for a shell.
fn entrypoint(request: &JobRequest) -> String {
    let argv: Vec<String> = request.argv.iter().map(written).collect();
    match Reward::after_check(&argv) {
        [shell, flag, text] if shell == "/bin/sh" && flag == "-c" => text.clone(),
        // It cannot be quoted only if it holds a NUL, which no spec lets in.
        argv => shlex::try_join(argv.iter().map(String::as_str)).unwrap_or_default(),
    }
}

/// The labels of the spec: what a Ray client sends as metadata.
fn metadata(job: &Job) -> Result<BTreeMap<String, String>, ApiError> {
    #[derive(Deserialize)]
    struct Labels {
        #[serde(default)]
        labels: BTreeMap<String, String>,
    }
    let spec: Labels = serde_json::from_str(&job.request.spec_json)
        .map_err(|error| ApiError::internal("reading a stored spec", &error))?;
    Ok(spec.labels)
}

/// The variables of the spec and of trackers; not the job's secrets, which no request has.
fn runtime_env(job: &Job, reader: &Principal) -> Value {
    if job.request.env.is_empty() {
        return json!({});
    }
    let shown = sees_values(reader, job);
    let variables = job
        .request
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), if shown { value.as_str() } else { HIDDEN }));
    json!({ "env_vars": variables.collect::<BTreeMap<_, _>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_states_are_rays() {
        use JobState::*;
        let ray = [Pending, Starting, Running, Stopping, Held].map(status);
        assert_eq!(ray, ["PENDING", "PENDING", "RUNNING", "RUNNING", "RUNNING"]);
        let ended = [Succeeded, Failed, Cancelled, Timeout].map(status);
        assert_eq!(ended, ["SUCCEEDED", "FAILED", "STOPPED", "FAILED"]);
    }
}
